"""What an agent does at its beginning and at its end: `setup` and `take_down`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from waiting import WAIT, settled, until

from gagent_grpc import Agent, OneShotBehaviour, Received

pytestmark = pytest.mark.timeout(30)


class Hooked(Agent):
    """Notes when its hooks are called, and what it is able to do in them."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.notes: list[Any] = []
        self.handled = asyncio.Event()
        self.on("inform")(self.note)

    async def setup(self) -> None:
        self.notes.append(("setup", self.connected))

    async def take_down(self) -> None:
        self.notes.append(("take_down", self.connected))

    async def note(self, message: Received) -> None:
        self.notes.append(message.content)
        self.handled.set()


async def test_hooks_are_called_within_the_session_at_each_opening(bus: Any) -> None:
    agent = Hooked("bob", bus=bus.address)
    for opening in (1, 2):
        async with agent:
            assert agent.notes == [("setup", True), ("take_down", True)] * (opening - 1) + [("setup", True)]
    assert agent.notes == [("setup", True), ("take_down", True)] * 2


async def test_no_handler_begins_before_setup_has_returned_and_setup_may_ask(bus: Any, agents: Any) -> None:
    async with Agent("bob", bus=bus.address):
        pass
    oracle, alice = await agents("oracle"), await agents("alice")
    await alice.send("bob", "inform", "waits since yesterday")
    release = asyncio.Event()

    @oracle.on("request")
    async def answer(message: Received) -> str:
        await release.wait()
        return "42"

    class Asking(Hooked):
        async def setup(self) -> None:
            await self.send("bob", "inform", "from setup")
            alice_sees.set()
            self.notes.append((await self.request("oracle", "?")).content)

    alice_sees = asyncio.Event()
    bob = Asking("bob", bus=bus.address)
    opening = asyncio.create_task(bob.__aenter__())
    await alice_sees.wait()
    # Delivered already, and not begun.
    await until(lambda: bus.platform.ams.get("bob").mailbox.in_flight == 2)
    assert bob.notes == []
    assert not opening.done()
    release.set()
    await opening
    await until(lambda: len(bob.notes) == 3)
    assert bob.notes[0] == "42"
    assert set(bob.notes[1:]) == {"waits since yesterday", "from setup"}
    await bob.aclose()


async def test_when_setup_raises_the_agent_is_closed_and_its_mail_kept(bus: Any, agents: Any) -> None:
    async with Agent("bob", bus=bus.address):
        pass
    await (await agents("alice")).send("bob", "inform", "1")

    class Broken(Hooked):
        async def setup(self) -> None:
            self.ticks = self.every(0.005, self.never)
            self.after_setup = self.add_behaviour(Waiting())
            await until(lambda: bus.platform.ams.get("bob").mailbox.in_flight == 1)
            raise OSError("no database")

        async def never(self) -> None:
            pass

    class Waiting(OneShotBehaviour):
        async def action(self) -> None:
            await asyncio.Event().wait()

    bob = Broken("bob", bus=bus.address, services=["x"])
    with pytest.raises(OSError, match="no database"):
        async with bob:
            pytest.fail("it is not open")
    assert not bob.connected
    # What was not set up is not taken down, either.
    assert bob.notes == []
    assert bob.after_setup.killed
    assert bus.platform.ams.get("bob").session is None
    again = Hooked("bob", bus=bus.address)
    async with again:
        await asyncio.wait_for(again.handled.wait(), WAIT)
        await settled(bus, "bob")
    assert again.notes[1] == "1"


async def test_setup_that_is_cancelled_closes_the_agent(bus: Any) -> None:
    begun = asyncio.Event()

    class Slow(Hooked):
        async def setup(self) -> None:
            begun.set()
            await asyncio.Event().wait()

    bob = Slow("bob", bus=bus.address)
    running = asyncio.create_task(bob.run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not bob.connected
    assert bus.platform.ams.get("bob").session is None


@pytest.mark.parametrize("end", ["cancel", "error", "aclose", "handler", "behaviour"])
async def test_take_down_comes_once_before_the_session_ends_however_it_ends(
    bus: Any, agents: Any, inbox: Any, end: str
) -> None:
    alice = await agents("alice", inbox)

    class Polite(Hooked):
        async def take_down(self) -> None:
            await self.send("alice", "inform", "bye")
            self.notes.append("said")

    class Leaving(OneShotBehaviour):
        async def action(self) -> None:
            await self.agent.aclose()

    bob = Polite("bob", bus=bus.address)
    opened = asyncio.Event()

    async def live() -> None:
        async with bob:
            opened.set()
            if end == "error":
                raise ValueError
            await bob.wait()

    @bob.on("request")
    async def leave(message: Received) -> None:
        await bob.aclose()

    living = asyncio.create_task(live())
    await opened.wait()
    if end == "cancel":
        living.cancel()
    elif end == "aclose":
        await bob.aclose()
    elif end == "handler":
        await alice.send("bob", "request", "leave")
    elif end == "behaviour":
        bob.add_behaviour(Leaving())
    async with asyncio.timeout(WAIT):
        await asyncio.gather(living, return_exceptions=True)
    assert await inbox.holds(1) == ["bye"]
    assert bob.notes == [("setup", True), "said"]
    assert bus.platform.ams.get("bob").session is None


async def test_take_down_waits_for_handlers_and_what_it_uses_is_there_for_them(agents: Any, bus: Any) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    class Working(Hooked):
        async def note(self, message: Received) -> None:
            begun.set()
            await release.wait()
            self.notes.append(message.content)

    bob = Working("bob", bus=bus.address)
    await bob.__aenter__()
    await (await agents("alice")).send("bob", "inform", "work")
    await begun.wait()
    closing = asyncio.create_task(bob.aclose())
    await asyncio.sleep(0)
    release.set()
    await closing
    assert bob.notes == [("setup", True), "work", ("take_down", True)]


@pytest.mark.parametrize("fault", ["raises", "hangs", "closes"])
async def test_take_down_that_fails_is_logged_and_the_agent_closes(
    bus: Any, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    class Faulty(Agent):
        async def take_down(self) -> None:
            if fault == "raises":
                raise ValueError("oh")
            if fault == "closes":
                await self.aclose()
            else:
                await asyncio.Event().wait()

    bob = Faulty("bob", bus=bus.address)
    await bob.__aenter__()
    await bob.aclose(grace=0.05 if fault == "hangs" else 5.0)
    assert bus.platform.ams.get("bob").session is None
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    expected = {
        "raises": ["bob: take_down failed"],
        "hangs": ["bob: take_down did not end within 0.05 s"],
        "closes": [],
    }
    assert told == expected[fault]


async def test_setup_may_close_its_agent(bus: Any) -> None:
    class Shy(Hooked):
        async def setup(self) -> None:
            await self.aclose()

    bob = Shy("bob", bus=bus.address)
    async with asyncio.timeout(WAIT):
        await bob.run()
    assert not bob.connected
    assert bob.notes == []
