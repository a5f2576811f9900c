"""The scripts that come with the package, and scripts as their users write them, in both modes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from script_agents import LIBRARY, ROOT, WAIT, Bridge, DirectFactory, Launch, Person

from gagent_grpc import TaskRejected
from gagent_grpc.bridge.events import Ending

pytest.importorskip("openai")


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


@pytest.mark.parametrize("name", ["echo", "middle"])
async def test_examples_of_the_readme_are_agents(launch: Launch, bridge: Bridge, alice: Person, name: str) -> None:
    text = (LIBRARY / "README.md").read_text(encoding="utf-8")
    source = re.search(rf"<!-- file: {name}\.py -->\n```python\n(.*?)```", text, re.DOTALL)
    assert source is not None
    await launch(source[1], name=name)
    if name == "middle":
        await alice.send(name, "hello", conversation_id="k1")
        failure = await alice.next()
        assert (failure.performative.text, failure.conversation_id) == ("failure", "k1")
        await bridge(LIBRARY / "echo.py", name="echo")
    await alice.send(name, "hello", conversation_id="k2", reply_with="q2")
    answer = await alice.next()
    assert (answer.content, answer.conversation_id, answer.in_reply_to) == ("hello", "k2", "q2")


async def test_counter_of_the_readme_works_on_tasks_and_shares_them(launch: Launch, alice: Person) -> None:
    text = (LIBRARY / "README.md").read_text(encoding="utf-8")
    source = re.search(r"<!-- file: counter\.py -->\n```python\n(.*?)```", text, re.DOTALL)
    assert source is not None
    for name in ("counter", "counter2"):
        await launch(source[1], name=name)
    whole = await alice.agent.delegate("counter", "Count", {"texts": ["one two", "three"]})
    assert await whole.result() == {"words": 3}
    with pytest.raises(TaskRejected, match="expected the parameter texts"):
        await (await alice.agent.delegate("counter", "Count")).result()


class Vendor(ThreadingHTTPServer):
    """A server that speaks as much of the chat completions API as its clients need.

    It answers with the number of messages that it was given and the last of them.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _VendorHandler)
        self.requests: list[dict[str, Any]] = []
        self.is_broken = False
        self.env = {
            "OPENAI_API_KEY": "sk-a-secret",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.server_address[1]}/v1",
            "NO_PROXY": "127.0.0.1",
        }


class _VendorHandler(BaseHTTPRequestHandler):
    server: Vendor

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions"
        assert self.headers["Authorization"] == "Bearer sk-a-secret"
        self.server.requests.append(asked)
        status = 200
        answer: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": asked["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {
                        "role": "assistant",
                        "content": f" {len(asked['messages'])}: {asked['messages'][-1]['content']}\n",
                    },
                }
            ],
        }
        if self.server.is_broken:
            status, answer = (
                401,
                {"error": {"message": "Incorrect API key provided: sk-a-secret", "code": "invalid_api_key"}},
            )
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


# --- echo ---

# What some line reader or other takes for the end of a line, raw wherever JSON allows it (C02).
SEPARATORS = "one\u2028two\u2029three\u0085four\u000bfive\u000csix\u001cseven\rend caf\u00e9"


async def test_echo(launch: Launch, alice: Person) -> None:
    await launch(LIBRARY / "echo.py")
    assert (await alice.agent.request("helper", SEPARATORS)).content == SEPARATORS
    assert (await alice.agent.request("helper", b"\x00\xff")).content == b"\x00\xff"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_echo_in_node(bridge: Bridge, alice: Person) -> None:
    await bridge(ROOT / "agent_scripts" / "node" / "echo.js")
    assert (await alice.agent.request("helper", SEPARATORS)).content == SEPARATORS


async def test_six_lines_of_bash(bridge: Bridge, alice: Person) -> None:
    script = ROOT / "agent_scripts" / "bash" / "shout.sh"
    assert len(script.read_text().splitlines()) <= 6
    await bridge(script)
    assert (await alice.agent.request("helper", 'a "quoted"\nline \u00e9')).content == 'a "quoted"\nline \u00e9!'
    await alice.send("helper", "not a question", "inform")
    assert (await alice.agent.request("helper", "two")).content == "two!"


# --- llm ---


async def test_llm_without_a_key_echoes_and_says_so(direct: DirectFactory, alice: Person) -> None:
    running = await direct(LIBRARY / "llm.py", env={"OPENAI_API_KEY": ""})
    assert (await alice.agent.request("helper", "hello")).content == "(echo: no OPENAI_API_KEY) hello"
    assert running.err == "llm: OPENAI_API_KEY is not set, so this agent only echoes\n"


async def test_llm_asks_the_model_with_its_own_history_for_each_conversation(
    launch: Launch, alice: Person, vendor: Vendor
) -> None:
    await launch(LIBRARY / "llm.py", env=vendor.env, system_prompt="Be brief.", max_history=2, max_tokens=7)
    for number in range(4):
        answer = await alice.ask("helper", f"question {number}", conversation_id="k1")
        # The system prompt, at most two earlier turns of two messages each, the question.
        assert answer == f"{1 + 2 * min(number, 2) + 1}: question {number}"
    assert await alice.ask("helper", "elsewhere", conversation_id="k2") == "2: elsewhere"
    last = vendor.requests[3]
    assert (last["model"], last["max_tokens"]) == ("gpt-4o-mini", 7)
    assert last["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "question 1"},
        {"role": "assistant", "content": "4: question 1"},
        {"role": "user", "content": "question 2"},
        {"role": "assistant", "content": "6: question 2"},
        {"role": "user", "content": "question 3"},
    ]


async def test_llm_answers_failure_when_the_model_fails(launch: Launch, alice: Person, vendor: Vendor) -> None:
    vendor.is_broken = True
    await launch(LIBRARY / "llm.py", env=vendor.env)
    await alice.send("helper", conversation_id="k1")
    failure = await alice.next()
    assert (failure.performative.text, failure.content) == ("failure", "model-error: AuthenticationError")
    vendor.is_broken = False
    # The question that failed is no part of the history.
    assert await alice.ask("helper", "again", conversation_id="k1") == "1: again"


OPENAI_AGENT = """
    import os

    import gagent_py
    from openai import OpenAI

    client = OpenAI(api_key=os.environ["OPENAI_API_KEY"])


    class Assistant(gagent_py.Agent):
        def on_start(self):
            self._turns = []

        def on_message(self, msg):
            if msg.performative == "cancel":
                return self.delete()
            if msg.performative != "request":
                return self.noop()
            self._turns.append({"role": "user", "content": msg.content})
            self._turns = self._turns[-self.max_history * 2 :]
            answer = client.chat.completions.create(
                model=self.model,
                max_tokens=self.max_tokens,
                messages=[{"role": "system", "content": self.system_prompt}, *self._turns],
            )
            text = answer.choices[0].message.content.strip()
            self._turns.append({"role": "assistant", "content": text})
            return self.reply(msg, "inform", text)


    Assistant().run()
"""


async def test_script_as_its_author_writes_it_with_the_vendors_sdk(
    launch: Launch, alice: Person, vendor: Vendor
) -> None:
    running = await launch(OPENAI_AGENT, env=vendor.env, model="gpt-x")
    assert (await alice.agent.request("helper", "one")).content == "2: one"
    assert (await alice.agent.request("helper", "two")).content == "4: two"
    assert {asked["model"] for asked in vendor.requests} == {"gpt-x"}
    await alice.send("helper", "", "cancel")
    assert await running.wait() == 0
    assert await alice.state("helper") == "gone"


# --- planner and tester ---


async def test_planner_finds_workers_in_the_df_and_reports(launch: Launch, bridge: Bridge, alice: Person) -> None:
    await bridge(LIBRARY / "echo.py", name="parrot", services=["answer"])
    await bridge(ROOT / "agent_scripts" / "bash" / "shout.sh", name="shout", services=["answer", "shout"])
    await bridge(LIBRARY / "echo.py", name="other", services=["something-else"])
    await launch(LIBRARY / "planner.py", name="planner")
    answer = await alice.agent.request("planner", "hello", conversation_id="k1")
    assert sorted(str(answer.content).splitlines()) == ["parrot: hello", "shout: hello!"]
    assert answer.conversation_id == "k1"


async def test_planner_without_workers_fails_and_goes_on(bridge: Bridge, alice: Person) -> None:
    # It offers the service itself, and does not ask itself.
    await bridge(LIBRARY / "planner.py", name="planner", services=["answer"])
    await alice.send("planner")
    failure = await alice.next()
    assert (failure.performative.text, failure.content) == ("failure", "nobody offers the service 'answer'")
    await bridge(LIBRARY / "echo.py", name="parrot", services=["answer"])
    assert await alice.ask("planner", "hello") == "parrot: hello"


async def test_planner_reports_who_failed(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            os._exit(3) if "msg" in event else say(action="noop")
        """,
        name="mortal",
        by_hand=True,
        services=["spell"],
    )
    await bridge(LIBRARY / "echo.py", name="parrot", services=["spell"])
    await bridge(LIBRARY / "planner.py", name="planner", config={"service": "spell"})
    report = str(await alice.ask("planner", "hello"))
    assert sorted(report.splitlines()) == ["mortal: (failure) the script ended (exit code 3)", "parrot: hello"]


async def test_tester_prints_answers_and_ends(direct: DirectFactory, bridge: Bridge, alice: Person) -> None:
    await bridge(LIBRARY / "echo.py", name="parrot")
    running = await direct(LIBRARY / "tester.py", name="tester", args=("parrot", "one", "two"), wait=False)
    assert await running.wait() == 0
    assert running.out == "parrot < one\nparrot > one\nparrot < two\nparrot > two\n"
    assert running.err == ""
    assert await alice.state("tester") == "gone"


async def test_tester_under_the_bridge_takes_its_questions_from_the_configuration(
    bridge: Bridge, alice: Person, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        running = await bridge(LIBRARY / "tester.py", name="tester", config={"target": "nobody", "questions": ["one"]})
        assert await running.ending() is Ending.DELETED
    told = [record.message for record in caplog.records if "stderr: " in record.message]
    assert told == [
        "tester: stderr: nobody < one",
        "tester: stderr: ams > (failure) NO_SUCH_AGENT: registered: alice, tester",
    ]
