"""Scripts whose bus is killed, or who are killed themselves, in both modes: nothing lost, nothing handled twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from script_agents import WAIT, Bridge, DirectFactory, Launch, Person, Running
from waiting import until

from gagent_grpc import Agent, OnReceiverLost
from tests.chaos.bus_process import BusProcess


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(4 * WAIT):
        yield


@pytest.fixture
async def mortal(tmp_path: Path) -> AsyncIterator[BusProcess]:
    async with BusProcess(tmp_path / "bus") as bus:
        yield bus


@pytest.fixture
async def bob(mortal: BusProcess) -> AsyncIterator[Person]:
    person = Person(Agent("bob", bus=mortal.address))
    async with person.agent:
        yield person


LEDGER = """
    import os
    import time
    import gagent_py

    class Ledger(gagent_py.Agent):
        def on_message(self, msg):
            if msg.performative != "request":
                return None
            with open("ledger.txt", "a") as ledger:
                ledger.write(msg.content + "\\n")
            if msg.content == "block":
                while not os.path.exists("go.txt"):
                    time.sleep(0.01)
            return self.reply(msg, "inform", "done " + msg.content)

    Ledger().run()
"""


@pytest.fixture(params=["bridge", "direct"])
def launch(request: pytest.FixtureRequest, bridge: Bridge, direct: DirectFactory, mortal: BusProcess) -> Launch:
    """Run a script in either mode at the bus that is killed."""

    async def start(source: str) -> Running:
        if request.param == "bridge":
            return await bridge(source, bus=mortal.address)
        return await direct(source, bus=mortal.address, wait=False)

    return start


class Handled:
    """What the script has noted."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ledger.txt"

    def contents(self) -> list[str]:
        return self._file.read_text(encoding="utf-8").split() if self._file.exists() else []


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handled:
    # Where a bridge of this process runs its scripts; those that connect by themselves run there anyway.
    monkeypatch.chdir(tmp_path)
    return Handled(tmp_path)


async def there(bob: Person, name: str = "helper") -> None:
    """Wait until the agent is connected."""

    async def connected() -> bool:
        entry = await bob.entry(name)
        return entry is not None and entry.connected

    await until(connected)


async def test_bus_that_is_killed_while_a_hook_blocks_costs_nothing(
    launch: Launch, mortal: BusProcess, bob: Person, ledger: Handled, tmp_path: Path
) -> None:
    running = await launch(LEDGER)
    await there(bob)
    for content in ("before", "block", "waits"):
        await bob.send("helper", content, conversation_id=content)
    assert (await bob.next()).content == "done before"
    await until(lambda: ledger.contents() == ["before", "block"])
    # One is answered, one is in its hook, one is on its way or in the mailbox.
    mortal.kill(signal.SIGKILL)
    await mortal.wait()
    await mortal.start()
    await bob.send("helper", "after", conversation_id="after")
    await there(bob)
    (tmp_path / "go.txt").touch()
    answers = [await bob.next() for _ in range(3)]
    assert [(one.conversation_id, one.content) for one in answers] == [
        (content, f"done {content}") for content in ("block", "waits", "after")
    ]
    assert ledger.contents() == ["before", "block", "waits", "after"]
    assert await running.stop() == 0
    assert bob.inbox.empty()


async def test_message_counts_as_handled_when_its_hook_has_returned(
    direct: DirectFactory, mortal: BusProcess, bob: Person, ledger: Handled, tmp_path: Path
) -> None:
    running = await direct(LEDGER, bus=mortal.address, wait=False)
    await there(bob)
    await bob.send("helper", "before", conversation_id="k0")
    assert (await bob.next()).content == "done before"
    await bob.agent.send("helper", "request", "block", conversation_id="k1", on_receiver_lost=OnReceiverLost.WAIT)
    await until(lambda: ledger.contents() == ["before", "block"])
    running.process.kill()
    await running.wait()
    (tmp_path / "go.txt").touch()
    await direct(LEDGER, bus=mortal.address, wait=False)
    assert (await bob.next()).content == "done block"
    # Once more, since it may not have been handled; what was answered before does not come again.
    assert ledger.contents() == ["before", "block", "block"]
