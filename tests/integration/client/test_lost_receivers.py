"""Agents that are lost while they owe an answer: whoever asked hears of it in time, and hears nothing else later."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy, proxy_to
from waiting import WAIT, Inbox, until

from gagent_grpc import (
    AnswerTimeout,
    BusLimits,
    DeliveryRefused,
    FailureFromAgent,
    OnReceiverLost,
    Received,
    SqliteStore,
)
from gagent_grpc.server.app import Bus
from gagent_grpc.testing import running_bus

pytestmark = pytest.mark.timeout(60)

GRACE = 0.6
LIMITS = BusLimits(resume_grace=GRACE, drain_grace=0.2)

# Says that it was asked, and thinks; a content of "agree" is agreed to first.
THINKER = """
import asyncio, sys
from gagent_grpc import Agent

agent = Agent(sys.argv[1], bus=sys.argv[2])

@agent.on()
async def think(message):
    if message.content == "agree":
        await agent.reply(message, "agree")
    print("asked", flush=True)
    await asyncio.Event().wait()

asyncio.run(agent.run())
"""


class Thinker:
    """An agent in a process of its own that never comes to an answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def asked(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT):
            assert await self.process.stdout.readline() == b"asked\n"

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


ThinkerFactory = Callable[..., Awaitable[Thinker]]


@pytest.fixture
async def bus(buses: Any) -> Bus:
    made: Bus = await buses(limits=LIMITS)
    return made


@pytest.fixture
async def thinker() -> AsyncIterator[ThinkerFactory]:
    """Return a factory: `await thinker(bus, "bob")` starts a process and waits until it is connected."""
    processes: list[asyncio.subprocess.Process] = []

    async def start(bus: Bus, name: str = "bob") -> Thinker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", THINKER, name, bus.address, stdout=asyncio.subprocess.PIPE
        )
        processes.append(process)
        await until(lambda: (record := bus.platform.ams.find(name)) is not None and record.session is not None)
        return Thinker(process)

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def lost(bus: Bus, name: str = "bob") -> None:
    """Wait until an agent has been away for longer than the grace, and the bus has looked after that."""
    record = bus.platform.ams.get(name)
    await until(lambda: record.detached_at is not None)
    # Twice the time in which it looks again.
    await until(lambda: time.monotonic() - (record.detached_at or time.monotonic()) > GRACE * 1.5 + 0.1)


@pytest.mark.parametrize("content", ["?", "agree"])
async def test_who_asked_hears_that_the_receiver_was_killed(
    bus: Bus, agents: Any, thinker: ThinkerFactory, inbox: Inbox, content: str
) -> None:
    bob, alice = await thinker(bus), await agents("alice", inbox)
    asking = asyncio.create_task(alice.request("bob", content, reply_with="r", conversation_id="c", timeout=30))
    await bob.asked()
    await bob.kill()
    killed = time.monotonic()
    why = rf"bob@local was lost before it answered: no session for {GRACE:g} s"
    with pytest.raises(FailureFromAgent, match=why) as raised:
        await asking
    assert GRACE * 0.9 < time.monotonic() - killed < GRACE + 1.5
    assert raised.value.sender == "ams"
    # Who comes back finds nothing in its mailbox, and is told that it is too late.
    handed: list[Received] = []
    back = await agents("bob", handed.append)
    with pytest.raises(DeliveryRefused, match="was lost while it owed this answer") as refused:
        await back.send("alice", "inform", "late", in_reply_to="r", conversation_id="c")
    assert refused.value.outcome == "EXPIRED"
    await back.send("alice", "inform", "something else")
    assert await inbox.holds(1) == ["something else"]
    assert handed == []


async def test_who_is_back_in_time_answers_as_if_nothing_had_been(buses: Any, agents: Any) -> None:
    bus = await buses(limits=BusLimits(resume_grace=3.0, drain_grace=1.0))
    asked, think = asyncio.Event(), asyncio.Event()
    async with proxy_to(bus.address) as proxy:
        bob = await agents("bob", bus=proxy.address)
        alice = await agents("alice", bus=bus.address)

        @bob.on("request")
        async def answer(message: Received) -> str:
            asked.set()
            await think.wait()
            return "done"

        asking = asyncio.create_task(alice.request("bob", "?", timeout=30))
        await asked.wait()
        record = bus.platform.ams.get("bob")
        before = record.generation
        proxy.cut()
        await until(lambda: record.generation > before and record.session is not None)
        # As long as the grace after the loss: it is the session that counts, not the answer.
        back_at = time.monotonic()
        await until(lambda: time.monotonic() - back_at > 3.5)
        assert not asking.done()
        think.set()
        assert (await asking).content == "done"
        assert bus.platform.post.debts.count == 0


async def test_a_request_may_wait_for_the_receiver_to_come_back(
    bus: Bus, agents: Any, thinker: ThinkerFactory, inbox: Inbox
) -> None:
    bob, alice = await thinker(bus), await agents("alice", inbox)
    asking = asyncio.create_task(alice.request("bob", "?", on_receiver_lost=OnReceiverLost.WAIT, timeout=30))
    told = {"conversation_id": "c", "reply_with": "r"}
    await alice.send("bob", "request", "?", on_receiver_lost=OnReceiverLost.FAIL, **told)
    for _ in range(2):
        await bob.asked()
    await bob.kill()
    await lost(bus)
    # The other one has failed.
    assert await inbox.holds(1) == [f"bob@local was lost before it answered: no session for {GRACE:g} s"]
    assert not asking.done()

    async def answer(message: Received) -> str:
        return f"again: {message.redelivered}"

    await agents("bob", answer)
    assert (await asking).content == "again: True"


@pytest.mark.parametrize("act", ["cfp", "query-ref"])
async def test_of_three_that_are_asked_the_one_that_dies_fails(
    bus: Bus, agents: Any, thinker: ThinkerFactory, inbox: Inbox, act: str
) -> None:
    async def bid(message: Received) -> None:
        await (bob if message.receiver == "bob@local" else carol).reply(message, "propose", message.receiver)

    bob, carol = await agents("bob", bid), await agents("carol", bid)
    dave = await thinker(bus, "dave")
    alice = await agents("alice", inbox)
    await alice.send(["bob", "carol", "dave"], act, "?", reply_with="r", conversation_id="c", protocol="p")
    await dave.asked()
    await dave.kill()
    await inbox.holds(3)
    for agent in (bob, carol):
        await agent.aclose()
    await lost(bus, "bob")
    *bids, failure = inbox.messages
    assert sorted(one.content for one in bids) == ["bob@local", "carol@local"]
    assert (failure.performative.text, failure.sender.name) == ("failure", "ams")
    assert (failure.in_reply_to, failure.conversation_id, failure.protocol) == ("r", "c", "p")
    assert failure.user_parameters["X-failed-receiver"] == "dave@local"


async def test_two_requests_under_one_mark_fail_each_for_itself(bus: Bus, agents: Any, thinker: ThinkerFactory) -> None:
    async def answer(message: Received) -> str:
        await gone.wait()
        return "carol"

    gone = asyncio.Event()
    bob, alice = await thinker(bus), await agents("alice")
    await agents("carol", answer)
    marks = {"reply_with": "r", "conversation_id": "c", "timeout": 30}
    async with asyncio.TaskGroup() as group:
        # The older one is not the one that fails.
        of_carol = group.create_task(alice.request("carol", "?", **marks))
        await asyncio.sleep(0)
        of_bob = group.create_task(_failure(alice.request("bob", "?", **marks)))
        await bob.asked()
        await bob.kill()
        assert "bob@local was lost" in await of_bob
        assert not of_carol.done()
        gone.set()
    assert of_carol.result().content == "carol"


async def test_who_frees_its_name_answers_nothing_any_more(bus: Bus, agents: Any) -> None:
    asked = asyncio.Event()

    async def think(message: Received) -> None:
        asked.set()
        await asyncio.Event().wait()

    bob, alice = await agents("bob", think), await agents("alice")
    asking = asyncio.create_task(_failure(alice.request("bob", "?", timeout=30)))
    await asked.wait()
    await bob.aclose(deregister=True, grace=0.1)
    assert "bob@local is gone: deregistered" in await asking


async def test_what_a_killed_agent_owed_fails_also_after_a_restart_of_the_bus(
    agents: Any, thinker: ThinkerFactory, tmp_path: Path
) -> None:
    path = tmp_path / "bus.db"
    async with proxy_to("127.0.0.1:1") as proxy:
        async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
            proxy.target = bus.address
            bob, alice = await thinker(bus), await agents("alice", bus=proxy.address)
            asking = asyncio.create_task(_failure(alice.request("bob", "?", timeout=30)))
            await bob.asked()
            await bob.kill()
        async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
            proxy.target = bus.address
            assert "bob@local was lost" in await asking
            await alice.aclose()


async def test_a_request_ends_in_time_also_when_the_bus_never_returns(
    bus: Bus, agents: Any, thinker: ThinkerFactory, proxy: Proxy
) -> None:
    bob, alice = await thinker(bus), await agents("alice", bus=proxy.address)
    started = time.monotonic()
    asking = asyncio.create_task(alice.request("bob", "?", timeout=1.0))
    await bob.asked()
    proxy.cut(admit=False)
    with pytest.raises(AnswerTimeout):
        await asking
    assert time.monotonic() - started < 4
    proxy.admit()


async def _failure(asking: Awaitable[Received]) -> str:
    with pytest.raises(FailureFromAgent) as raised:
        await asking
    return raised.value.text
