"""`WatchTraffic` over a real channel: who sees what, that nobody waits for a watcher, and how a watch ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from raw import acl
from waiting import WAIT, until

from gagent_grpc import (
    BusDraining,
    BusLimits,
    BusUnreachable,
    InvalidArgument,
    InvalidName,
    Operator,
    Outcome,
    TrafficEvent,
    TrafficKind,
)
from gagent_grpc.bus.traffic import MAX_EVENTS
from gagent_grpc.errors import ResourceExhausted
from gagent_grpc.pb.gagent.v1 import admin_service_pb2, admin_service_pb2_grpc
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.server.app import Bus


@pytest.fixture
async def operator(bus: Bus) -> AsyncIterator[Operator]:
    async with Operator(bus.address) as made:
        yield made


async def take(events: Any, count: int) -> list[TrafficEvent]:
    async with asyncio.timeout(WAIT):
        return [await anext(events) for _ in range(count)]


async def test_what_becomes_of_messages_is_told_in_order(bus: Bus, connect: Any, operator: Operator) -> None:
    alice, bob = await connect(bus, "alice"), await connect(bus, "bob")
    async with operator.admin.watch_traffic() as events:
        await alice.send(acl("bob", "one", id="m1", acl_conversation_id="c"), acl("nobody", "two", id="m2"))
        await alice.receipted(2)
        (delivery,) = await bob.delivered(1)
        await bob.settle(rejects=[pb.Reject(sequence=delivery.sequence, reason="no")])
        told = await take(events, 4)
    assert [(one.kind, one.sender, one.receiver, one.message_id) for one in told[:3]] == [
        (TrafficKind.ACCEPTED, "alice@local", "bob@local", "m1"),
        (TrafficKind.REFUSED, "alice@local", "nobody@local", "m2"),
        (TrafficKind.GIVEN_UP, "alice@local", "bob@local", "m1"),
    ]
    assert told[0].conversation_id == "c"
    assert told[1].outcome is Outcome.NO_SUCH_AGENT
    assert "registered: " in told[1].detail
    assert "rejected by the receiver: no" in told[2].detail
    # The platform's own words are traffic, too.
    assert (told[3].sender, told[3].receiver) == ("ams@local", "alice@local")
    assert [one.message is not None and one.message.content for one in told] == [None, None, None, None]


async def test_contents_are_told_to_who_asks_for_them(bus: Bus, connect: Any, operator: Operator) -> None:
    alice = await connect(bus, "alice")
    await connect(bus, "bob")
    async with operator.admin.watch_traffic(with_content=True) as whole, operator.admin.watch_traffic() as bare:
        data = acl("bob")
        data.acl.data = b"\0secret"
        task = pb.BusMessage(to=["bob"])
        task.acp.message_type = 1
        task.acp.json = '"secret"'
        await alice.send(acl("bob", "secret"), data, task)
        contents = [one.message.content if one.message else None for one in await take(whole, 3)]
        assert contents == ["secret", b"\0secret", None]
        assert all(one.message is None or one.message.content is None for one in await take(bare, 3))
    # The same on the wire.
    async with grpc.aio.insecure_channel(bus.address) as channel:
        stub = admin_service_pb2_grpc.AdminServiceStub(channel)
        call = stub.WatchTraffic(admin_service_pb2.WatchTrafficRequest())
        await call.initial_metadata()
        await alice.send(acl("bob", "secret"), data, task)
        for _ in range(3):
            async with asyncio.timeout(WAIT):
                response = await call.read()
            assert b"secret" not in response.SerializeToString()
            assert response.message.to == ["bob"]
        call.cancel()


async def test_a_watch_sees_the_agents_and_the_conversation_that_it_names(
    bus: Bus, connect: Any, operator: Operator
) -> None:
    alice = await connect(bus, "alice")
    await connect(bus, "bob"), await connect(bus, "carol")
    watch = operator.admin.watch_traffic
    async with watch(["bob"]) as of_bob, watch(["bob@local", "carol"], conversation_id="c") as of_c:
        await alice.send(
            acl("carol", "1"), acl("bob", "2"), acl("carol", "3", acl_conversation_id="c"), acl("bob", "4")
        )
        assert [one.receiver for one in await take(of_bob, 2)] == ["bob@local", "bob@local"]
        assert [(one.receiver, one.conversation_id) for one in await take(of_c, 1)] == [("carol@local", "c")]


async def test_nobody_waits_for_a_watcher_that_reads_nothing(bus: Bus, connect: Any, operator: Operator) -> None:
    alice, bob = await connect(bus, "alice"), await connect(bus, "bob")
    text = "x" * 2_000
    async with operator.admin.watch_traffic(with_content=True) as events:
        rounds, size = 12, 1_000
        for number in range(1, rounds + 1):
            # Far more than the connection and the queue hold.
            await alice.send(*[acl("bob", text) for _ in range(size)])
            await alice.receipted(number * size)
            await bob.delivered(number * size)
            await bob.settle(ack_through_tag=number * size)
        seen = missed = 0
        while seen + missed < rounds * size:
            (event,) = await take(events, 1)
            seen += event.kind is TrafficKind.ACCEPTED
            missed += event.missed
    assert missed > 0
    assert seen >= MAX_EVENTS // 2


async def test_watcher_that_reads_nothing_loses_its_place(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(write_timeout=0.3, drain_grace=1.0))
    alice = await connect(bus, "alice")
    await connect(bus, "bob")
    async with grpc.aio.insecure_channel(bus.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = admin_service_pb2_grpc.AdminServiceStub(channel)
        stuck = stub.WatchTraffic(admin_service_pb2.WatchTrafficRequest(with_content=True))
        await stuck.initial_metadata()
        sent = 0
        async with asyncio.timeout(WAIT):
            while bus.platform.post.traffic.watched:
                sent += 1
                # The mailbox of bob is full at some point; what is refused is told as well.
                await alice.send(acl("bob", "x" * 60_000))
                await alice.receipted(sent)
        stuck.cancel()


async def test_watches_are_bounded_and_free_their_place(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(traffic_watches=1, drain_grace=1.0))
    alice = await connect(bus, "alice")
    async with Operator(bus.address) as operator:
        watch = operator.admin.watch_traffic
        async with watch(["alice"]) as events:
            with pytest.raises(ResourceExhausted, match=r"limit of this node \(traffic_watches\)"):
                await anext(watch())
            await alice.send(acl("alice"))
            await take(events, 1)
        await until(lambda: not bus.platform.post.traffic.watched)
        async with watch():
            pass


async def test_one_client_cannot_have_all_the_places(buses: Any) -> None:
    bus = await buses(limits=BusLimits(traffic_watches=8, drain_grace=1.0))
    async with Operator(bus.address) as greedy, Operator(bus.address) as other:
        async with greedy.admin.watch_traffic(), greedy.admin.watch_traffic():
            with pytest.raises(ResourceExhausted, match=r"has 2 .* one caller: a part of the 8 .*\(traffic_watches\)"):
                await anext(greedy.admin.watch_traffic())
            async with other.admin.watch_traffic(), other.admin.watch_traffic():
                pass
        await until(lambda: not bus.platform.post.traffic.watched)
        async with greedy.admin.watch_traffic():
            pass


async def test_what_cannot_be_watched_is_refused(operator: Operator) -> None:
    for name in ("a b", "alice@elsewhere"):
        with pytest.raises(InvalidName, match=name):
            await anext(operator.admin.watch_traffic([name]))
    with pytest.raises(InvalidArgument, match="expected at most 1,000"):
        await anext(operator.admin.watch_traffic(["a"] * 1_001))
    with pytest.raises(InvalidArgument, match="expected a list of names"):
        operator.admin.watch_traffic("alice")


async def test_a_watch_ends_with_the_bus_and_with_its_reader(buses: Any) -> None:
    bus = await buses()
    async with Operator(bus.address) as operator:
        closed = operator.admin.watch_traffic()
        events = operator.admin.watch_traffic()
        async with events, closed:
            closed.close()
            assert [event async for event in closed] == []
            async with asyncio.timeout(WAIT):
                await bus.drain()
                assert [event async for event in events] == []
            with pytest.raises((BusDraining, BusUnreachable)):
                await anext(operator.admin.watch_traffic())
