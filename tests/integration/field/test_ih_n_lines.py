"""IH-N: lines as scripts write them, each as the answer to a request, with the stated outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pulse import pulse_check
from script_agents import BY_HAND, WAIT, Bridged, Person, script_file, until

from gagent_grpc import Agent
from gagent_grpc.bridge.events import Ending
from gagent_grpc.bridge.supervisor import ScriptAgent

# Writes the line that the request holds in hex; `end` in its conversation is the end of the output.
TELLER = (
    BY_HAND
    + """
for event in events():
    msg = event.get("msg")
    if msg is None:
        say(action="noop")
    elif msg["content"] == "how are you?":
        send(msg["sender"], "well")
    else:
        sys.stdout.buffer.write(bytes.fromhex(msg["content"]))
        sys.stdout.buffer.flush()
        if msg["conversation_id"] == "end":
            break
        if msg["conversation_id"] == "noise":
            say(action="noop")
"""
)
ACCEPTED = {
    1: b'{"action":"noop"}\r\n',
    2: b'\xef\xbb\xbf{"action":"noop"}\n',
    4: b' {"action" : "noop"} \n',
    13: b'{"action":"noop","extra":{"k":1}}\n',
}
IGNORED = {3: b"\n"}
NOISE = {7: b'{"action":"noop"}{"action":"noop"}\n'}
ERRORS = {
    8: (b'{"action":"NOOP"}\n', "unknown action 'NOOP'"),
    9: (b'{"action":"send"}\n', "missing `to`"),
    11: (b'{"action":"send","to":"alice","msg":"text"}\n', "`msg` is a text, not an object"),
    12: (b'{"action":"explode"}\n', "unknown action 'explode'"),
}
TWO = b'{"action":"send","to":["alice","bob"],"msg":{"performative":"inform","content":"x"}}\n'


class Teller:
    """The script agent, and those who talk to it."""

    def __init__(self, running: Bridged, alice: Person, bob: Person) -> None:
        self.running, self.alice, self.bob = running, alice, bob

    async def write(self, line: bytes, how: str = "answer") -> None:
        """Have it answer a request with ``line``; with a `noop` behind it where that is no answer."""
        await self.alice.send("teller", line.hex(), conversation_id=how)

    async def is_well(self) -> None:
        """Ask it something: it answers that, and nothing has come in between."""
        assert await self.alice.ask("teller", "how are you?") == "well"
        assert self.alice.inbox.empty()
        assert await self.alice.state("teller") == "active"


@pytest.fixture
async def teller(bus: Any, tmp_path: Path) -> AsyncIterator[Teller]:
    async with asyncio.timeout(3 * WAIT), pulse_check(bus) as stack:
        alice, bob = Person(Agent("alice", bus=bus.address)), Person(Agent("bob", bus=bus.address))
        for person in (alice, bob):
            await stack.enter_async_context(person.agent)
        script = script_file(tmp_path, TELLER, "teller", ".py")
        running = Bridged(ScriptAgent(script, bus=bus.address, tick_ms=0))
        stack.push_async_callback(running.aclose)
        await running.ready()
        yield Teller(running, alice, bob)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the bridge had to say of lines."""
    return [one.getMessage() for one in caplog.records if one.name.startswith("gagent_grpc.bridge")]


@pytest.mark.parametrize("number", ACCEPTED)
async def test_ih_n_accepted_lines(teller: Teller, caplog: pytest.LogCaptureFixture, number: int) -> None:
    with caplog.at_level(logging.WARNING):
        await teller.write(ACCEPTED[number])
        await teller.is_well()
    assert told(caplog) == []


async def test_ih_n_blank_line_is_ignored(teller: Teller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await teller.write(IGNORED[3], "noise")
        await teller.is_well()
    assert told(caplog) == []


async def test_ih_n_two_objects_in_a_line_are_noise(teller: Teller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await teller.write(NOISE[7], "noise")
        await teller.is_well()
    (text,) = told(caplog)
    assert text.startswith("teller: line ignored (not JSON: Extra data")


@pytest.mark.parametrize("number", ERRORS)
async def test_ih_n_errors_are_told_once_and_count_as_noop(
    teller: Teller, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    line, reason = ERRORS[number]
    with caplog.at_level(logging.WARNING):
        await teller.write(line)
        await teller.is_well()
    (text,) = told(caplog)
    assert "protocol error, taken as noop" in text
    assert reason in text


async def test_ih_n_list_of_receivers_is_a_send_to_each(teller: Teller) -> None:
    await teller.write(TWO)
    assert [(await one.next()).content for one in (teller.alice, teller.bob)] == ["x", "x"]
    await teller.is_well()


async def test_ih_n_last_line_without_newline_counts(teller: Teller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await teller.write(b'{"action":"send","to":"alice","msg":{"performative":"inform","content":"last"}}', "end")
        assert (await teller.alice.next()).content == "last"
        assert await teller.running.ending() is Ending.STOPPED
    assert told(caplog) == []


async def test_ih_n_incomplete_last_line_is_noise(teller: Teller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await teller.write(b'{"action":"no', "end")
        assert await teller.running.ending() is Ending.STOPPED
        await until(lambda: told(caplog))
    assert any("line ignored (not JSON: Unterminated string" in text for text in told(caplog))
    # The line that was owed never came.
    assert (await teller.alice.next()).performative.text == "failure"
