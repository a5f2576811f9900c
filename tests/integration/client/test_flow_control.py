"""Receivers without room, order, and urgency: what waits, what does not, and what that costs others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from proxy import Proxy, proxy_to
from waiting import settled, until

from gagent_grpc import (
    ACLMessage,
    Agent,
    AgentIdentifier,
    BusLimits,
    ClientLimits,
    DeliveryRefused,
    InvalidArgument,
    MessageTooLarge,
    Outcome,
    Performative,
    PreconditionFailed,
    Priority,
    Received,
    Report,
)

pytestmark = pytest.mark.timeout(60)

ROOM = 8
"""Messages that a mailbox takes here."""


@pytest.fixture
async def small(buses: Any) -> Any:
    return await buses(limits=BusLimits(drain_grace=1.0, mailbox_messages=ROOM))


@pytest.fixture
async def link(small: Any) -> AsyncIterator[Proxy]:
    async with proxy_to(small.address) as made:
        yield made


class Gate:
    """A handler that begins when it is told to, and keeps what came."""

    def __init__(self) -> None:
        self.contents: list[str] = []
        self.redelivered = 0
        self.go_on = asyncio.Event()

    async def __call__(self, message: Received) -> None:
        await self.go_on.wait()
        self.contents.append(str(message.content))
        self.redelivered += message.redelivered


def informs(to: str, contents: Iterator[str] | list[str]) -> Iterator[ACLMessage]:
    for content in contents:
        yield ACLMessage(Performative.INFORM, receivers=(AgentIdentifier(to),), content=content)


def numbers(start: int, end: int) -> list[str]:
    return [str(number) for number in range(start, end)]


def mail_of(bus: Any, name: str) -> Any:
    return bus.platform.ams.get(name).mailbox


async def fill(agent: Agent, name: str) -> int:
    """Send what the mailbox takes; return how much that is."""
    for count in range(ROOM):
        await agent.send(name, "inform", str(count))
    with pytest.raises(DeliveryRefused, match="MAILBOX_FULL"):
        await agent.send(name, "inform", "too much")
    return ROOM


# ---- order ------------------------------------------------------------------------------------------------------------


async def test_c14_first_sent_is_first_handled_through_two_tasks_large_and_small_across_a_reconnect(
    bus: Any, agents: Any, proxy: Proxy
) -> None:
    chance = random.Random(14)
    handled: list[int] = []
    halfway, done = asyncio.Event(), asyncio.Event()

    async def handle(message: Received) -> None:
        await asyncio.sleep(chance.random() * 0.02)
        handled.append(int(str(message.content).partition(" ")[0]))
        if len(handled) == 250:
            halfway.set()
        if handled[-1] == 499:
            done.set()

    await agents("bob", handle, bus=proxy.address)
    alice = await agents("alice")
    count = iter(range(500))

    async def send() -> None:
        for number in count:
            await alice.send("bob", "inform", f"{number} {'x' * (500_000 if number % 10 == 0 else 6)}")

    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        group.create_task(send())
        group.create_task(send())
        await halfway.wait()
        proxy.cut()
    async with asyncio.timeout(50):
        await done.wait()
    assert list(dict.fromkeys(handled)) == list(range(500))
    await settled(bus, "bob")


async def test_c14_a_sender_whose_message_takes_long_keeps_no_other_waiting(agents: Any) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    handled: list[str] = []

    async def handle(message: Received) -> None:
        if message.sender.name == "alice":
            begun.set()
            await go_on.wait()
        handled.append(str(message.content))

    await agents("bob", handle)
    alice, carol = await agents("alice"), await agents("carol")
    await alice.send_all(informs("bob", numbers(0, 100)))
    await begun.wait()
    await carol.send_all(informs("bob", [f"c{number}" for number in range(100)]))
    await until(lambda: len(handled) == 100)
    assert handled == [f"c{number}" for number in range(100)]
    go_on.set()
    await until(lambda: len(handled) == 200)
    assert handled[100:] == numbers(0, 100)


# ---- receivers without room -------------------------------------------------------------------------------------------


async def test_c14_what_waits_for_room_arrives_once_and_in_order(small: Any, agents: Any) -> None:
    bob = Gate()
    await agents("bob", bob, bus=small.address)
    alice = await agents("alice", bus=small.address)
    waiting = [
        asyncio.create_task(alice.send("bob", "inform", str(number), when_full="wait")) for number in range(ROOM + 12)
    ]
    await asyncio.wait(waiting, timeout=0.3)
    assert [one.done() for one in waiting] == [True] * ROOM + [False] * 12
    flood = asyncio.create_task(alice.send_all(informs("bob", numbers(ROOM + 12, 100))))
    # Whoever does not want to wait hears at once, and gets past nobody.
    with pytest.raises(DeliveryRefused) as refused:
        await alice.send("bob", "inform", "now")
    assert refused.value.outcome in {"HELD", "MAILBOX_FULL"}
    bob.go_on.set()
    assert await asyncio.gather(*waiting, flood) == [[]] * (ROOM + 13)
    await until(lambda: len(bob.contents) == 100)
    assert bob.contents == numbers(0, 100)
    # To the receiver they are messages like any other: they came for the first time.
    assert bob.redelivered == 0
    await settled(small, "bob")


async def test_what_waits_for_room_survives_a_lost_connection(small: Any, agents: Any, link: Proxy) -> None:
    bob = Gate()
    await agents("bob", bob, bus=small.address)
    alice = await agents("alice", bus=link.address)
    flood = asyncio.create_task(alice.send_all(informs("bob", numbers(0, 40))))
    await until(lambda: mail_of(small, "bob").messages == ROOM)
    link.cut()
    await until(lambda: not alice.connected)
    bob.go_on.set()
    assert await flood == []
    await until(lambda: len(bob.contents) == 40)
    assert bob.contents == numbers(0, 40)


async def test_of_several_receivers_those_with_room_have_it_at_once_and_nobody_has_it_twice(
    small: Any, agents: Any, inbox: Any
) -> None:
    bob = Gate()
    await agents("bob", bob, bus=small.address)
    await agents("carol", inbox, bus=small.address)
    alice = await agents("alice", bus=small.address)
    count = await fill(alice, "bob")
    both = [
        asyncio.create_task(alice.send(["carol", "bob"], "inform", f"both {number}", when_full="wait"))
        for number in range(3)
    ]
    assert await inbox.holds(3) == [f"both {number}" for number in range(3)]
    assert not any(one.done() for one in both)
    bob.go_on.set()
    assert await asyncio.gather(*both) == [[]] * 3
    await until(lambda: len(bob.contents) == count + 3)
    assert bob.contents[count:] == [f"both {number}" for number in range(3)]
    await settled(small, "carol")
    assert len(inbox.messages) == 3


async def test_what_may_wait_fits_the_limit_also_for_some_of_its_receivers_alone(
    buses: Any, agents: Any, inbox: Any
) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, mailbox_messages=ROOM, max_message_bytes=10_000))
    bob = Gate()
    await agents("bob", bob, bus=bus.address)
    await agents("carol", inbox, bus=bus.address)
    alice = await agents("alice", bus=bus.address)
    count = await fill(alice, "bob")
    with pytest.raises(MessageTooLarge) as refused:
        await alice.send(["carol", "bob"], "inform", "x" * 10_000, when_full="wait")
    largest = "x" * (10_000 - (refused.value.size_bytes - refused.value.limit_bytes))
    with pytest.raises(MessageTooLarge):
        await alice.send(["carol", "bob"], "inform", largest + "x", when_full="wait")
    sending = asyncio.create_task(alice.send(["carol", "bob"], "inform", largest, when_full="wait"))
    assert await inbox.holds(1) == [largest]
    bob.go_on.set()
    assert await sending == []
    await until(lambda: len(bob.contents) == count + 1)
    assert bob.contents[count] == largest


async def test_a_receiver_without_room_keeps_no_other_waiting(small: Any, agents: Any, inbox: Any) -> None:
    bob = Gate()
    await agents("bob", bob, bus=small.address)
    await agents("carol", inbox, bus=small.address)
    limits = ClientLimits(max_queued_bytes=40_000)
    alice = await agents("alice", bus=small.address, limits=limits)
    made = 0

    def endless() -> Iterator[ACLMessage]:
        nonlocal made
        while True:
            made += 1
            yield from informs("bob", ["x" * 1000])

    flood = asyncio.create_task(alice.send_all(endless()))
    single = asyncio.create_task(alice.send("bob", "inform", "single", when_full="wait"))
    await until(lambda: mail_of(small, "bob").messages == ROOM)
    before = made
    for number in range(200):
        await alice.send("carol", "inform", str(number), when_full="wait")
    assert await inbox.holds(200) == numbers(0, 200)
    # What may wait for one receiver is bounded: two batches, one of which filled the share.
    assert made - before <= 1024
    assert not flood.done()
    assert not single.done()
    single.cancel()
    flood.cancel()
    await asyncio.gather(single, flood, return_exceptions=True)
    bob.go_on.set()
    await settled(small, "bob")
    await until(lambda: not alice._session.outbox.backlogged)
    assert "single" not in bob.contents
    assert len(bob.contents) <= ROOM


async def test_whoever_gives_up_waiting_is_not_sent_and_keeps_nobody_waiting(small: Any, agents: Any) -> None:
    bob = Gate()
    await agents("bob", bob, bus=small.address)
    alice = await agents("alice", bus=small.address)
    count = await fill(alice, "bob")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await alice.send("bob", "inform", "given up", when_full="wait")
    last = asyncio.create_task(alice.send("bob", "inform", "last", when_full="wait"))
    cancelled = asyncio.create_task(alice.send("bob", "inform", "cancelled", when_full="wait"))
    await asyncio.sleep(0)
    cancelled.cancel()
    bob.go_on.set()
    await last
    await alice.send("bob", "inform", "end", when_full="wait")
    await until(lambda: bob.contents[-1:] == ["end"])
    assert bob.contents == [*numbers(0, count), "last", "end"]


async def test_closing_ends_the_wait_for_room_at_once(small: Any, agents: Any) -> None:
    bob = Gate()
    await agents("bob", bob, bus=small.address)
    alice = await agents("alice", bus=small.address)
    await fill(alice, "bob")
    waiting = asyncio.create_task(alice.send("bob", "inform", "x", when_full="wait"))
    flood = asyncio.create_task(alice.send_all(informs("bob", numbers(0, 2000))))
    await until(lambda: alice._session.outbox.backlogged)
    async with asyncio.timeout(3):
        await alice.aclose()
        for one in (waiting, flood):
            with pytest.raises(PreconditionFailed, match="alice: the agent is closed"):
                await one
    bob.go_on.set()


async def test_a_receiver_that_is_removed_ends_the_wait(small: Any, agents: Any) -> None:
    await agents("bob", Gate(), bus=small.address)
    alice = await agents("alice", bus=small.address)
    await fill(alice, "bob")
    waiting = [asyncio.create_task(alice.send("bob", "inform", "x", when_full="wait")) for _ in range(3)]
    await until(lambda: alice._session.outbox.backlogged)
    await alice.ams.terminate("bob")
    for one in waiting:
        with pytest.raises(DeliveryRefused) as refused:
            await one
        assert refused.value.outcome == "NO_SUCH_AGENT"


async def test_a_flood_that_does_not_wait_is_told_what_was_left_out(small: Any, agents: Any) -> None:
    bob = Gate()
    await agents("bob", bob, bus=small.address)
    alice = await agents("alice", bus=small.address)
    refused = await alice.send_all(informs("bob", numbers(0, 30)), when_full="fail")
    assert {receipt.outcome for _, receipt in refused} == {Outcome.MAILBOX_FULL}
    assert [place for place, _ in refused] == list(range(30 - len(refused), 30))
    bob.go_on.set()
    await settled(small, "bob")
    assert bob.contents == numbers(0, 30 - len(refused))


async def test_waiting_needs_receipts_and_one_of_two_words(agents: Any) -> None:
    alice = await agents("alice")
    with pytest.raises(InvalidArgument, match="'fail' or 'wait'"):
        await alice.send("alice", "inform", "x", when_full="later")
    for report in (Report.RECEIPT_LAZY, Report.FAILURE_MESSAGE):
        with pytest.raises(InvalidArgument, match="RECEIPT"):
            await alice.send("alice", "inform", "x", report=report, when_full="wait")


# ---- answers ----------------------------------------------------------------------------------------------------------


async def test_what_a_handler_returns_waits_for_room_at_whoever_asked(small: Any, agents: Any) -> None:
    asked: list[int] = []

    async def answer(message: Received) -> str:
        asked.append(message.attempt)
        return "answer"

    await agents("helper", answer, bus=small.address)
    bob = Gate()
    asker = await agents("bob", bob, bus=small.address)
    carol = await agents("carol", bus=small.address)
    count = await fill(carol, "bob")
    await asker.send("helper", "request", "?")
    await until(lambda: asked)
    await asyncio.sleep(0.2)
    assert mail_of(small, "helper").messages == 1
    bob.go_on.set()
    await until(lambda: len(bob.contents) == count + 1)
    assert bob.contents[-1] == "answer"
    await settled(small, "helper")
    assert asked == [1]


async def test_an_answer_that_finds_no_room_for_long_fails_its_handler(small: Any, agents: Any) -> None:
    asked: list[int] = []

    async def answer(message: Received) -> str:
        asked.append(message.attempt)
        return f"answer {message.attempt}"

    limits = ClientLimits(answer_patience=0.2, retry_delay=0.05)
    await agents("helper", answer, bus=small.address, limits=limits)
    bob = Gate()
    asker = await agents("bob", bob, bus=small.address)
    carol = await agents("carol", bus=small.address)
    count = await fill(carol, "bob")
    await asker.send("helper", "request", "?")
    await until(lambda: asked == [1, 2])
    bob.go_on.set()
    await settled(small, "helper")
    await until(lambda: len(bob.contents) == count + 1)
    assert bob.contents[-1] == f"answer {asked[-1]}"


# ---- urgency ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conversation", ["same", "another"])
async def test_an_urgent_cancel_does_not_wait_behind_handlers_that_are_all_busy(agents: Any, conversation: str) -> None:
    running = 0
    go_on, cancelled = asyncio.Event(), asyncio.Event()

    async def work(message: Received) -> None:
        nonlocal running
        running += 1
        await go_on.wait()

    async def cancel(message: Received) -> None:
        cancelled.set()
        go_on.set()

    bob = await agents("bob", limits=ClientLimits(concurrency=64))
    bob.on("inform")(work)
    bob.on("cancel")(cancel)
    alice = await agents("alice")
    for number in range(100):
        await alice.send("bob", "inform", "work", conversation_id="same" if number == 0 else str(number))
    await until(lambda: running == 64)
    await alice.send("bob", "cancel", conversation_id=conversation, priority=Priority.URGENT)
    async with asyncio.timeout(10):
        await cancelled.wait()
    await until(lambda: running == 100)
