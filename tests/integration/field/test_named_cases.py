"""Cases that the promises of delivery are known to break at, each from the sender to what the receiver sees."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from proxy import proxy_to
from pulse import pulse_check
from raw import RawSession, acl
from waiting import settled, until

from gagent_grpc import Agent, BusLimits, ClientLimits, LifeCycleState, Received
from gagent_grpc.pb.gagent.v1 import acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

QUICK = ClientLimits(initial_backoff=0.05, max_backoff=0.2)
LONG = Duration(seconds=600)
"""Longer than any test."""


def ids(session: RawSession) -> list[str]:
    """Return the ids of everything that was delivered."""
    return [one.message.id for one in session.deliveries]


def outcomes(receipts: list[pb.Receipt]) -> list[tuple[int, str]]:
    return [(one.number, pb.Outcome.Name(one.outcome).removeprefix("OUTCOME_")) for one in receipts]


async def settle_all(session: RawSession) -> None:
    await session.settle(ack_through_tag=session.deliveries[-1].tag)
    await session.in_step()


# ---- at least once, and never doubled unflagged ----------------------------------------------------------------------


async def test_bus_killed_between_delivery_and_settle_delivers_again_flagged(bus_processes: Any, raw: Any) -> None:
    """Unflagged, nobody could tell the second delivery from another message; flagged without a reason, the flag says
    nothing.
    """
    async with bus_processes() as bus, pulse_check(bus):
        async with raw(bus.address, "carol") as carol:
            # Away when the bus is killed, so nothing of hers can have been delivered.
            await carol.leave()
        async with raw(bus.address, "bob") as bob, raw(bus.address, "alice") as alice:
            await alice.send(
                *(acl(name, "hi", id=f"{name} {number}") for name in ("bob", "carol") for number in (1, 2))
            )
            assert await alice.receipted(4) == []
            await bob.delivered(2)
            assert [(one.redelivered, one.attempt) for one in bob.deliveries] == [(False, 1), (False, 1)]
            bus.kill(signal.SIGKILL)
            await bus.wait()
        await bus.start()
        async with (
            raw(bus.address, "bob") as bob,
            raw(bus.address, "carol") as carol,
            raw(bus.address, "alice") as alice,
        ):
            await bob.delivered(2)
            assert ids(bob) == ["bob 1", "bob 2"]
            assert all(one.redelivered for one in bob.deliveries)
            await carol.delivered(2)
            assert [(one.message.id, one.redelivered) for one in carol.deliveries] == [
                ("carol 1", False),
                ("carol 2", False),
            ]
            await alice.send(acl("bob", "hi", id="bob 1", resend=True))
            assert outcomes(await alice.receipted(1)) == [(1, "DUPLICATE")]
            await settle_all(bob)
            await settle_all(carol)
            assert len(bob.deliveries) == 2


async def test_receipt_lost_with_the_connection_is_asked_for_again(bus: Any, raw: Any) -> None:
    """Without the memory of ids the message is accepted, and handled, a second time."""
    async with pulse_check(bus) as stack:
        proxy = await stack.enter_async_context(proxy_to(bus.address))
        bob = await stack.enter_async_context(raw(bus.address, "bob"))
        async with raw(proxy.address, "alice") as alice:
            token = alice.welcome.resume_token
            proxy.silence("out")
            await alice.send(acl("bob", "once", id="1"), acl("bob", "twice", id="2"))
            await bob.delivered(2)
            # The receipts have left the bus, and do not arrive.
            await proxy.held()
            proxy.cut()
            proxy.speak()
            await alice.end()
            assert alice.accepted_through == 0
        again = await stack.enter_async_context(raw(proxy.address, "alice", resume_token=token))
        # One of the two is handled by now, the other one is in hand.
        await bob.settle(ack_sequences=[bob.deliveries[0].sequence])
        await bob.in_step()
        await again.send(acl("bob", "once", id="1", resend=True), acl("bob", "twice", id="2", resend=True))
        await again.send(acl("bob", "new", id="3"))
        assert outcomes(await again.receipted(3)) == [(1, "DUPLICATE"), (2, "DUPLICATE")]
        await bob.delivered(3)
        await settle_all(bob)
        assert ids(bob) == ["1", "2", "3"]
        assert not any(one.redelivered for one in bob.deliveries)


@pytest.mark.parametrize("reason", ["full", "unknown"])
async def test_refused_id_may_be_sent_again(buses: Any, raw: Any, reason: str) -> None:
    """Remembered as if it had been accepted, the second try would be a DUPLICATE that nobody ever gets."""
    bus = await buses(limits=BusLimits(mailbox_messages=1, drain_grace=1.0))
    async with pulse_check(bus) as stack:
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        if reason == "full":
            bob = await stack.enter_async_context(raw(bus.address, "bob"))
            await alice.send(acl("bob", "first", id="1"), acl("bob", "second", id="2"))
            assert outcomes(await alice.receipted(2)) == [(2, "MAILBOX_FULL")]
            await bob.delivered(1)
            await settle_all(bob)
        else:
            await alice.send(acl("bob", "second", id="2"))
            assert outcomes(await alice.receipted(1)) == [(1, "NO_SUCH_AGENT")]
            bob = await stack.enter_async_context(raw(bus.address, "bob"))
        refusals = len(alice.receipts)
        last = alice.accepted_through + 1
        await alice.send(acl("bob", "second", id="2"))
        assert len(await alice.receipted(last)) == refusals
        await bob.delivered(len(bob.deliveries) + 1)
        assert ids(bob)[-1] == "2"
        await settle_all(bob)


# ---- order -----------------------------------------------------------------------------------------------------------


async def test_nack_of_the_first_of_six_brings_all_six_again_in_order(bus: Any, raw: Any) -> None:
    """Without the hold 1 comes behind 6; attempts that were not made would use up those that may be."""
    async with pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob"))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        await alice.send(*(acl("bob", "hi", id=f"{number}", acl_conversation_id="c") for number in range(1, 7)))
        await bob.delivered(6)
        await bob.settle(nacks=[pb.Nack(sequence=bob.deliveries[0].sequence)])
        await bob.delivered(12)
        assert ids(bob)[6:] == ["1", "2", "3", "4", "5", "6"]
        assert bob.returned == [one.sequence for one in bob.deliveries[:6]]
        again = bob.deliveries[6:]
        assert all(one.redelivered for one in again)
        assert [one.attempt for one in again] == [2, 1, 1, 1, 1, 1]
        await settle_all(bob)
        assert len(bob.deliveries) == 12


async def test_nack_in_one_of_six_lanes_holds_no_other(bus: Any, raw: Any) -> None:
    """Held as a whole, the mailbox of an agent stands still for one message that it cannot handle yet."""
    async with pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob"))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        await alice.send(*(acl("bob", "hi", id=f"{lane} a", acl_conversation_id=f"{lane}") for lane in range(6)))
        await bob.delivered(6)
        first = bob.deliveries[0].sequence
        await bob.settle(nacks=[pb.Nack(sequence=first, delay=LONG)])
        await alice.send(*(acl("bob", "hi", id=f"{lane} b", acl_conversation_id=f"{lane}") for lane in range(6)))
        await bob.delivered(11)
        await bob.in_step()
        assert ids(bob)[6:] == [f"{lane} b" for lane in range(1, 6)]
        assert not any(one.redelivered for one in bob.deliveries)
        # Its receiver had the held one in hand and may still settle it; then its lane goes on.
        await bob.settle(ack_sequences=[first])
        await bob.delivered(12)
        assert ids(bob)[-1] == "0 b"
        await settle_all(bob)


async def test_hold_order_keeps_the_order_through_a_full_mailbox(buses: Any, raw: Any) -> None:
    """Without the hold 6 takes the room that 5 waits for."""
    bus = await buses(limits=BusLimits(mailbox_messages=4, drain_grace=1.0))

    def message(number: int) -> pb.BusMessage:
        return acl("bob", "hi", id=f"{number}", hold_order=True)

    async with pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob"))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        carol = await stack.enter_async_context(raw(bus.address, "carol"))
        await alice.send(*(message(number) for number in range(1, 7)))
        assert outcomes(await alice.receipted(6)) == [(5, "MAILBOX_FULL"), (6, "HELD")]
        assert all(one.retryable for one in alice.receipts)
        await bob.delivered(4)
        await bob.settle(ack_through_tag=2)
        await bob.in_step()
        # There is room, and it is not for the one behind. Nobody else, and no other receiver, waits with them.
        await alice.send(message(6), acl("carol", "hi", id="elsewhere", hold_order=True))
        assert outcomes(await alice.receipted(8))[2:] == [(7, "HELD")]
        await carol.delivered(1)
        await alice.send(message(5), message(6))
        assert len(await alice.receipted(10)) == 3
        await bob.delivered(6)
        assert ids(bob) == ["1", "2", "3", "4", "5", "6"]
        await settle_all(bob)
        # Nothing is held any more.
        await alice.send(message(7))
        assert len(await alice.receipted(11)) == 3
        await bob.delivered(7)
        await settle_all(bob)
        await settle_all(carol)


# ---- sessions --------------------------------------------------------------------------------------------------------


async def test_half_open_session_is_resumed_by_its_token(buses: Any, raw: Any) -> None:
    """Without the token the newcomer waits for the probe of a session that cannot answer."""
    bus = await buses(limits=BusLimits(probe_timeout=60.0, drain_grace=1.0))
    async with pulse_check(bus) as stack:
        proxy = await stack.enter_async_context(proxy_to(bus.address))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        half_open = await stack.enter_async_context(raw(proxy.address, "bob"))
        await alice.send(*(acl("bob", "hi", id=f"{number}") for number in range(4)))
        await half_open.delivered(4)
        # Neither end hears of it: a cable that was pulled.
        proxy.silence()
        held = half_open.deliveries[1].sequence
        token = half_open.welcome.resume_token
        began = time.monotonic()
        bob = await stack.enter_async_context(raw(bus.address, "bob", resume_token=token, held_sequences=[held]))
        assert time.monotonic() - began < 5
        assert (bob.welcome.attached, list(bob.welcome.held_sequences)) == (True, [held])
        assert bob.welcome.generation == half_open.welcome.generation + 1
        await bob.delivered(3)
        assert [(one.message.id, one.redelivered) for one in bob.deliveries] == [("0", True), ("2", True), ("3", True)]
        await bob.settle(ack_through_tag=3, ack_sequences=[held])
        await bob.in_step()
        await settled(bus, "bob")
        proxy.cut()


async def test_settle_of_an_ended_generation_is_ignored(bus: Any, raw: Any) -> None:
    """Honoured, it would take away what the newer session has in hand and has not handled."""
    async with pulse_check(bus) as stack:
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        proxy = await stack.enter_async_context(proxy_to(bus.address))
        older = await stack.enter_async_context(raw(proxy.address, "bob"))
        # Nothing gets through to it any more, so the bus stands in a write and cannot end its stream; it is heard.
        proxy.silence("out")
        for start in range(0, 80, 20):
            await alice.send(*(acl("bob", "x" * 90_000, id=f"{number}") for number in range(start, start + 20)))
        assert await alice.receipted(80) == []
        token, window = older.welcome.resume_token, pb.Window(messages=2)
        newer = await stack.enter_async_context(raw(bus.address, "bob", resume_token=token, window=window))
        await newer.delivered(2)
        passing = asyncio.create_task(proxy.passed("in"))
        await older.settle(ack_through_tag=80, ack_sequences=range(1, 81))
        await passing
        await newer.in_step()
        proxy.speak()
        assert (await older.end())[0] is grpc.StatusCode.FAILED_PRECONDITION
        assert older.notices[-1].kind == pb.NOTICE_KIND_SUPERSEDED
        await newer.in_step()
        # Its window is full still.
        assert ids(newer) == ["0", "1"]
        while len(newer.deliveries) < 80:
            await newer.settle(ack_through_tag=newer.deliveries[-1].tag)
            await newer.delivered(len(newer.deliveries) + 1)
        assert ids(newer) == [f"{number}" for number in range(80)]
        await settle_all(newer)


async def test_deliveries_in_handlers_outlive_the_bus_and_are_settled_in_the_new_session(
    bus_processes: Any, raw: Any
) -> None:
    """Without `held_sequences` they come again, and without the memory of ids they run again."""
    runs: list[str] = []
    release = asyncio.Event()

    async def handle(message: Received) -> None:
        runs.append(message.content)
        await release.wait()

    async with bus_processes() as bus, pulse_check(bus), Agent("alice", bus=bus.address, limits=QUICK) as alice:
        bob = Agent("bob", bus=bus.address, limits=QUICK)
        bob.on()(handle)
        async with bob:
            for lane in range(5):
                await alice.send("bob", "inform", f"{lane}", conversation_id=f"{lane}")
            await until(lambda: len(runs) == 5)
            bus.kill()
            await bus.wait()
            await bus.start()
            await until(lambda: bob.connected and alice.connected)
            await alice.send("bob", "inform", "new", conversation_id="new")
            await until(lambda: len(runs) == 6)
            release.set()
        # Its farewell went out behind its settles.
        entries = {one.name: one for one in await alice.ams.search_all()}
        assert entries["bob@local"].mailbox_messages == 0
        assert runs == ["0", "1", "2", "3", "4", "new"]


# ---- control passes data, and nobody is shut out ---------------------------------------------------------------------


async def test_urgent_messages_and_heartbeats_pass_a_full_window_of_bulk(buses: Any, raw: Any) -> None:
    """Without the extra room an urgent message waits until bulk is settled, as long as that may take."""
    limits = BusLimits(heartbeat_interval=0.1, urgent_messages=4, drain_grace=1.0)
    bus = await buses(limits=limits)
    async with pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob", window=pb.Window(messages=10)))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        await alice.send(*(acl("bob", "x" * 10_000, id=f"bulk {number}") for number in range(100)))
        await bob.delivered(10)
        await bob.in_step()
        assert len(bob.deliveries) == 10
        urgent = [acl("bob", "stop", id=f"urgent {number}", priority=acp_pb2.PRIORITY_URGENT) for number in range(6)]
        await alice.send(*urgent)
        await bob.delivered(14)
        assert ids(bob)[10:] == ["urgent 0", "urgent 1", "urgent 2", "urgent 3"]
        # Heartbeats come and are answered while nothing is settled, for far longer than three may be missed.
        beats = bob.heartbeats
        await asyncio.gather(
            bob.until(lambda: bob.heartbeats >= beats + 8), alice.until(lambda: alice.heartbeats >= beats + 8)
        )
        assert len(bob.deliveries) == 14
        assert bus.platform.ams.get("bob").state is LifeCycleState.ACTIVE
        # Urgent ones first also when there is room for all.
        await bob.settle(ack_sequences=[one.sequence for one in bob.deliveries[10:]])
        await bob.delivered(16)
        assert ids(bob)[14:] == ["urgent 4", "urgent 5"]
        while len(bob.deliveries) < 106:
            await bob.settle(ack_through_tag=bob.deliveries[-1].tag)
            await bob.delivered(len(bob.deliveries) + 1)
        assert sorted(ids(bob)) == sorted([f"bulk {number}" for number in range(100)] + [one.id for one in urgent])
        await settle_all(bob)


async def test_flooding_sender_neither_delays_nor_locks_out_another_one(buses: Any, raw: Any) -> None:
    """In one queue for all the other one's message comes behind the whole flood, if there is room for it at all."""
    bus = await buses(limits=BusLimits(mailbox_messages=2_000, drain_grace=1.0))
    async with pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob", window=pb.Window(messages=64)))
        flood = await stack.enter_async_context(raw(bus.address, "flood"))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        await flood.send(*(acl("bob", "hi", id=f"flood {number}") for number in range(2_500)))
        assert {what for _, what in outcomes(await flood.receipted(2_500))} == {"MAILBOX_FULL"}
        accepted = 2_500 - len(flood.receipts)
        assert accepted >= 2_000
        # Not locked out of a mailbox that somebody else has filled.
        await alice.send(acl("bob", "hi", id="alice"))
        assert await alice.receipted(1) == []
        total = accepted + 1
        await bob.delivered(64)
        while len(bob.deliveries) < total:
            await bob.settle(ack_through_tag=bob.deliveries[-1].tag)
            await bob.delivered(len(bob.deliveries) + 1)
        # Behind what was on its way already, and at most two turns of the other one.
        assert ids(bob).index("alice") < 64 + 2 * 64
        assert [one for one in ids(bob) if one != "alice"] == [f"flood {number}" for number in range(accepted)]
        await settle_all(bob)
