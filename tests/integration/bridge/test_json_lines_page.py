"""The page of the JSON lines: its events are those that a script gets, its actions are taken, its agents run."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from script_agents import ROOT, WAIT, Bridge, Person, PersonFactory, until

from gagent_grpc import ACPMessage, Attachment, TaskRefused, TaskRejected
from gagent_grpc.acl.message import identifiers
from gagent_grpc.bridge import extension_actions, framing
from gagent_grpc.bridge.framing import Answer, BadAction, max_line_bytes, parse_line

PAGE = ROOT / "docs" / "json-lines.md"
BLOCK = re.compile(r"<!-- (\w+)(?:: (\S+))? -->\n```\w*\n(.*?)```", re.DOTALL)
FAR = datetime(2099, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


def blocks(kind: str) -> dict[str, str]:
    return {name: text for what, name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if what == kind}


def lines(kind: str, mark: str) -> list[str]:
    return [line[2:] for text in blocks(kind).values() for line in text.splitlines() if line.startswith(f"{mark} ")]


def words(line: str) -> set[str]:
    """Return the names of the actions in a line."""
    return set(re.findall(r'"action":"(\w+)"', line))


# --- Actions ---


@pytest.mark.parametrize("line", lines("actions", "<") + lines("events", "<"))
def test_every_answer_of_the_page_is_one(line: str) -> None:
    answer = parse_line(line.encode())
    assert isinstance(answer, Answer)
    assert not [action for action in answer.actions if isinstance(action, BadAction)]


@pytest.mark.parametrize("line", lines("errors", "<"))
def test_every_error_of_the_page_is_one_and_counts(line: str) -> None:
    answer = parse_line(line.encode())
    assert isinstance(answer, Answer)
    assert isinstance(answer.actions[0], BadAction)
    assert answer.idle


def test_page_has_every_action_and_the_limit_of_a_line() -> None:
    on_page = set().union(*(words(line) for line in lines("actions", "<")))
    assert on_page == set(framing.ACTIONS)
    declared = parse_line(blocks("actions")["declare"].strip()[2:].encode())
    assert isinstance(declared, Answer)
    assert declared.extensions == extension_actions.EXTENSIONS
    assert f"{max_line_bytes():,}" in PAGE.read_text(encoding="utf-8")


# --- Events ---

TAP = """
    log = open("{log}", "a")
    for line in sys.stdin.buffer:
        log.write(line.decode("ascii"))
        log.flush()
        event = json.loads(line)
        if event["event"] == "stop":
            break
        answer = [{{"action": "noop"}}]
        if event["event"] == "start":
            answer = [{{"action": "noop", "extensions": ["delegate", "task", "acp"]}}]
        content = event.get("msg", {{}}).get("content")
        if isinstance(content, str) and content.startswith("["):
            answer = json.loads(content)
        print(json.dumps(answer), flush=True)
"""


class Tap:
    """A script that notes its events, and answers with what a message tells it to."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text(encoding="ascii").splitlines()]

    def shapes(self) -> set[Any]:
        return {shape(event) for event in self.events()}

    async def shows(self, event: str, **keys: Any) -> None:
        """Wait until it was told of something."""

        def told() -> bool:
            return any(
                one["event"] == event and all(one.get(name) == value for name, value in keys.items())
                for one in self.events()
            )

        await until(told)


def shape(event: dict[str, Any]) -> Any:
    """Return what two events of one kind have in common: their keys, in order, and those of a message in them."""
    inner = event.get("msg", {})
    return event["event"], event.get("kind"), tuple(event), tuple(sorted(inner))


async def test_every_event_of_the_page_is_what_a_script_gets(
    bridge: Bridge, alice: Person, person: PersonFactory, tmp_path: Path
) -> None:
    await person("clerk")
    await person("bob")
    tap = Tap(tmp_path / "events.txt")
    await bridge(TAP.format(log=tmp_path / "events.txt"), name="tap", by_hand=True, tick_ms=20)
    await tap.shows("tick")

    async def do(*actions: dict[str, Any]) -> None:
        await alice.send("tap", json.dumps(actions), "inform")

    # Messages.
    await alice.send("tap", "hi", conversation_id="k1", reply_with="q1")
    more: dict[str, Any] = {
        "ontology": "docs",
        "language": "json",
        "encoding": "none",
        "protocol": "fipa-request",
        "conversation_id": "k2",
        "reply_with": "q2",
        "in_reply_to": "q0",
        "reply_by": FAR,
        "reply_to": identifiers(["clerk"]),
        "user_parameters": {"X-team": "blue"},
    }
    await alice.agent.send(["tap", "bob"], "request", b"\x00\xff", **more)

    # Tasks that it works on.
    first = await alice.agent.delegate("tap", "count", {"limit": 3}, task_id="T-1")
    attachment = Attachment("https://example.invalid/a.csv", "text/csv", "a", "", 7)
    await alice.agent.delegate("tap", "count", task_id="T-2", deadline=FAR, attachments=[attachment])
    await tap.shows("delegate", task_id="T-2")
    await do({"action": "ask", "task_id": "T-1", "question": "Which one?"})
    async for event in first.events():
        if event.question:
            break
    await first.answer("the blue one")
    await tap.shows("task", kind="answer")
    await first.signal("hurry")
    await first.cancel("not needed")
    await tap.shows("task", kind="cancel")

    # Tasks that it delegates.
    @alice.agent.on_delegate
    async def work(task: Any) -> Any:
        if task.description == "no":
            raise TaskRefused("why")
        await task.progress(0.5, "half way")
        await task.output("a part", "log")
        await task.ask("Which one?")
        return {"words": 3}

    await do({"action": "delegate", "target": "alice", "description": "count", "task_id": "T-7"})
    await tap.shows("task", task_id="T-7", kind="question")
    await do({"action": "answer", "task_id": "T-7", "value": "the blue one"})
    await tap.shows("task", task_id="T-7", kind="result", result={"words": 3})
    await do({"action": "delegate", "target": "alice", "description": "no", "task_id": "T-8"})
    await tap.shows("task", task_id="T-8", kind="error")

    # ACP.
    await alice.agent.send_acp(ACPMessage(type="request", target="tap", content={"n": 3}))
    await tap.shows("acp")

    got = tap.shapes()
    for line in lines("events", ">"):
        event = json.loads(line)
        if event["event"] != "stop":
            assert shape(event) in got, line
    # And nothing that the page does not know.
    known = {(event["event"], event.get("kind")) for event in map(json.loads, lines("events", ">"))}
    assert {(one["event"], one.get("kind")) for one in tap.events()} <= known


# --- Agents ---


def test_worker_of_the_page_is_the_one_in_the_folder() -> None:
    assert blocks("file")["worker.js"] == (ROOT / "agent_scripts" / "node" / "worker.js").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_worker_in_node_serves_tasks(bridge: Bridge, alice: Person) -> None:
    await bridge(ROOT / "agent_scripts" / "node" / "worker.js")
    task = await alice.agent.delegate("role:helper", "Count", {"texts": ["one two", "caf\u00e9 \u2028", ""]})
    assert await task.result() == {"words": 3, "counts": [2, 1, 0]}
    outputs = [event.text async for event in task.events() if event.text]
    assert outputs == ["text 1: 2 words\n", "text 2: 1 words\n", "text 3: 0 words\n"]
    refused = await alice.agent.delegate("helper", "Count")
    with pytest.raises(TaskRejected, match="expected the parameter texts"):
        await refused.result()


async def test_least_agent_of_the_page(bridge: Bridge, alice: Person) -> None:
    await bridge(blocks("file")["shout.py"])
    assert (await alice.agent.request("helper", "hi")).content == "hi!"
    assert (await alice.agent.request("helper", b"\x00")).content == "!"
