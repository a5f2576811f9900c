"""Scripts that nobody meant well with: what they write costs themselves, and everybody who waits hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from proxy import proxy_to
from script_agents import BY_HAND, WAIT, Bridge, Person, until
from waiting import settled

from gagent_grpc.bridge import process as process_module
from gagent_grpc.bridge.framing import Answer, Blank, Noise, OverlongLine, parse_line
from gagent_grpc.bridge.limits import ScriptLimits
from gagent_grpc.bridge.process import LONG_LINE_BYTES
from gagent_grpc.bridge.sources import SourceFiles
from gagent_grpc.errors import ConfigurationError, ScriptError
from gagent_grpc.server.app import Bus

ANSWERS = """
for event in events():
    msg = event.get("msg")
    if msg is None:
        say(action="noop")
    else:
        {answer}
"""


def answering(answer: str) -> str:
    return textwrap.dedent(ANSWERS).format(answer=answer)


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


# --- What it writes ---


async def test_answer_in_latin_1_is_told_at_once_and_shifts_nothing(
    bridge: Bridge, alice: Person, caplog: pytest.LogCaptureFixture
) -> None:
    source = """os.write(1, json.dumps({"action": "send", "to": "alice", "msg": {"performative": "inform",
            "content": msg["content"]}}, ensure_ascii=False).encode("latin-1") + b"\\n")"""
    await bridge(ANSWERS.replace("{answer}", source), by_hand=True, tick_ms=0)
    # The time for an answer is 120 s: nobody waits for that.
    await alice.send("helper", "caf\u00e9", conversation_id="k1")
    told = await alice.next()
    assert (told.performative.text, told.conversation_id) == ("failure", "k1")
    assert str(told.content).startswith("the script's answer cannot be read: not UTF-8 at byte ")
    # A part of the content is for the log alone.
    assert "e9" not in str(told.content)
    assert any("61 66 e9 22" in record.message for record in caplog.records)
    assert await alice.ask("helper", "tea", conversation_id="k2") == "tea"


@pytest.mark.parametrize("mark", ['"mine-7"', "10**9", "-3", '"9" * 5000', '"\\u0663"', "0"])
async def test_id_that_no_event_had_is_none(bridge: Bridge, alice: Person, mark: str) -> None:
    await bridge(answering(f'send(msg["sender"], msg["content"], id={mark})'), by_hand=True, tick_ms=0)
    for number in ("one", "two", "three"):
        await alice.send("helper", number, conversation_id=f"k-{number}", reply_with=f"q-{number}")
        answer = await alice.next()
        assert answer.content == number
        assert (answer.conversation_id, answer.in_reply_to) == (f"k-{number}", f"q-{number}")


async def test_long_line_is_read_beside_the_loop(
    bridge: Bridge, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, turned = asyncio.get_running_loop(), threading.Event()
    seen: list[bool] = []

    def parse(line: bytes | OverlongLine) -> Answer | Noise | Blank:
        if isinstance(line, bytes) and len(line) > LONG_LINE_BYTES:
            # Were this the thread of the loop, it would never come to this turn.
            loop.call_soon_threadsafe(turned.set)
            seen.append(turned.wait(WAIT))
        return parse_line(line)

    monkeypatch.setattr(process_module, "parse_line", parse)
    await bridge(answering("send('alice', msg['content'], note=[1] * 50_000)"), by_hand=True, tick_ms=0)
    assert [await alice.ask("helper", text) for text in ("one", "two")] == ["one", "two"]
    assert seen == [True, True]


# --- Who waits for it ---


async def test_all_who_wait_are_told_of_its_death_side_by_side(bus: Bus, bridge: Bridge, alice: Person) -> None:
    async with proxy_to(bus.address) as proxy:
        running = await bridge(answering("say(action='noop')"), by_hand=True, tick_ms=0, bus=proxy.address)
        for number in range(5):
            await alice.send("helper", "?", conversation_id=f"k{number}")
        await settled(bus, "helper")
        # No receipt comes back: whoever tells one after the other tells nobody but the first.
        proxy.silence("out")
        assert running.agent.behaviour.pid is not None
        os.kill(running.agent.behaviour.pid, signal.SIGKILL)
        told = [await alice.next() for _ in range(5)]
        assert {(one.performative.text, one.conversation_id) for one in told} == {
            ("failure", f"k{number}") for number in range(5)
        }
        proxy.speak()


# --- What it is started with ---


@pytest.mark.parametrize(
    "value",
    [float("nan"), {"a": [float("inf")]}, b"bytes", {1, 2}, Path("x")],
    ids=["nan", "inf", "bytes", "set", "path"],
)
async def test_configuration_that_no_line_can_tell_is_refused_before_anything_starts(
    bridge: Bridge, alice: Person, value: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.odd cannot be told to a script: .*what JSON has"):
        await bridge(answering("pass"), by_hand=True, config={"odd": value})
    assert await alice.state("helper") == "gone"


async def test_limit_beyond_any_number_of_the_kernel_is_told(bridge: Bridge, alice: Person) -> None:
    with pytest.raises(ScriptError, match=f"memory_mb {10**20} cannot be set"):
        await bridge(answering("pass"), by_hand=True, limits=ScriptLimits(memory_mb=10**20))
    assert await alice.state("helper") == "gone"


# --- Changes while it runs ---


async def test_change_that_no_parser_can_read_leaves_the_old_script_running(
    bridge: Bridge, alice: Person, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "helper.py"
    script.write_text(BY_HAND + answering("send(msg['sender'], 'old')"))
    running = await bridge(script, reload=True, tick_ms=0)
    script.write_text("-" * 200_000 + "1\n")
    await until(lambda: "not started anew: helper.py: nested too deeply" in caplog.text)
    assert await alice.ask("helper") == "old"
    assert running.agent.behaviour.runs == 1


def test_module_that_no_parser_can_read_is_a_defect_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("-" * 200_000 + "1\n")
    script = tmp_path / "helper.py"
    script.write_text("import deep\n")
    assert SourceFiles(script).defect() == "deep.py: nested too deeply"
