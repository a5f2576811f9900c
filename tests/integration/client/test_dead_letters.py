"""Messages that are given up, as agents and operators meet them: over gRPC, over restarts, and back again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from raw import acl
from waiting import settled, until

from gagent_grpc import (
    Agent,
    BusLimits,
    ClientLimits,
    DeadReason,
    FailureFromAgent,
    InvalidArgument,
    InvalidName,
    MemoryStore,
    Operator,
    Outcome,
    Received,
    SqliteStore,
    Unauthorised,
)
from gagent_grpc.bus.platform import Caller
from gagent_grpc.pb.gagent.v1 import acl_pb2, admin_service_pb2, admin_service_pb2_grpc
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.server.app import Bus
from gagent_grpc.testing import running_bus

pytestmark = pytest.mark.timeout(60)

QUICK = ClientLimits(retry_delay=0.01, initial_backoff=0.02, max_backoff=0.1)
LIMITS = BusLimits(drain_grace=1.0)


class Handler:
    """Raises until it is mended, and notes what it gets."""

    def __init__(self) -> None:
        self.mended = False
        self.seen: list[tuple[str, int, bool]] = []
        self.handled: list[str] = []

    async def __call__(self, message: Received) -> str | None:
        self.seen.append((str(message.content), message.attempt, message.redelivered))
        if not self.mended and message.content == "poison":
            raise ValueError(f"cannot handle it, attempt {message.attempt}")
        self.handled.append(str(message.content))
        return "done" if message.performative.text == "request" else None


@pytest.fixture
async def operator(bus: Bus) -> AsyncIterator[Operator]:
    async with Operator(bus.address) as made:
        yield made


async def all_of(operator: Operator, receiver: str = "", **options: Any) -> list[Any]:
    return [one async for one in operator.admin.dead_letters(receiver, **options)]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_poison_dies_of_its_last_error_its_lane_goes_on_and_it_is_handled_once_it_can_be(
    buses: Any, agents: Any, tmp_path: Path, kind: str
) -> None:
    bus = await buses(store=MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "bus.db"))
    handler = Handler()
    await agents("bob", handler, bus=bus.address, limits=QUICK)
    alice = await agents("alice", bus=bus.address)
    asked = asyncio.create_task(alice.request("bob", "poison", conversation_id="c"))
    await until(lambda: handler.seen)
    await alice.send("bob", "inform", "next", conversation_id="c")
    with pytest.raises(FailureFromAgent, match="given up after 5 deliveries: ValueError: cannot handle it, attempt 5"):
        await asked
    await until(lambda: handler.handled == ["next"])
    assert [attempt for content, attempt, _ in handler.seen if content == "poison"] == [1, 2, 3, 4, 5]

    async with Operator(bus.address) as operator:
        (dead,) = await all_of(operator, with_messages=True)
        assert (dead.reason, dead.error) == (DeadReason.MAX_DELIVERIES, "ValueError: cannot handle it, attempt 5")
        assert (dead.receiver, dead.sender, dead.attempts) == ("bob@local", "alice@local", 5)
        assert dead.message.content == "poison"
        assert dead.accepted_at < dead.died_at
        stats = await operator.admin.stats()
        assert (stats.dead_letters, stats.dropped_dead_letters, stats.agents, stats.sessions) == (1, 0, 2, 2)

        handler.mended = True
        handler.seen.clear()
        done = await operator.admin.redrive([dead.number])
        assert (done.count, done.refused) == (1, {})
        await until(lambda: handler.handled == ["next", "poison"])
        assert handler.seen == [("poison", 1, True)]
        assert await all_of(operator) == []
    await settled(bus, "bob")


async def test_letter_that_is_redriven_too_early_dies_again_under_another_number(bus: Bus, agents: Any) -> None:
    handler = Handler()
    await agents("bob", handler, limits=QUICK)
    alice = await agents("alice")
    await alice.send("bob", "inform", "poison")
    async with Operator(bus.address) as operator:
        await until(lambda: len(bus.platform.dead_letters) == 1)
        assert (await operator.admin.redrive(receiver="bob@local")).count == 1
        await until(lambda: len(handler.seen) == 10)
        await until(lambda: len(bus.platform.dead_letters) == 1)
        assert [one.number for one in await all_of(operator)] == [2]
    assert [attempt for _, attempt, _ in handler.seen] == [1, 2, 3, 4, 5] * 2


async def test_attempts_count_over_restarts_of_the_bus_and_dead_letters_are_kept(tmp_path: Path) -> None:
    path, handler = tmp_path / "bus.db", Handler()
    attempts: list[int] = []
    for life in range(4):
        async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
            if not life:
                async with Agent("alice", bus=bus.address) as alice:
                    await bus.platform.flush()
                    async with Operator(bus.address) as operator:
                        await operator.ams.register("bob")
                    await alice.send("bob", "inform", "poison")
            agent = Agent("bob", bus=bus.address, limits=ClientLimits(retry_delay=0.01))
            agent.on()(handler)
            before = len(handler.seen)
            async with agent:
                # Two failures in each life; the third life sees the last one.
                await until(lambda: len(handler.seen) >= before + 2 or len(bus.platform.dead_letters))  # noqa: B023
            attempts = [attempt for _, attempt, _ in handler.seen]
            if len(bus.platform.dead_letters):
                break
    assert max(attempts) == 5
    assert sorted(set(attempts)) == [1, 2, 3, 4, 5]
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus, Operator(bus.address) as operator:
        (dead,) = await all_of(operator)
        assert (dead.reason, dead.attempts) == (DeadReason.MAX_DELIVERIES, 5)
        assert dead.error.startswith("ValueError: cannot handle it")
        handler.mended = True
        assert (await operator.admin.redrive([dead.number])).count == 1
    # The flag of what was delivered before is on the disk, and so is its end as a dead letter.
    handler.seen.clear()
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        agent = Agent("bob", bus=bus.address, limits=QUICK)
        agent.on()(handler)
        async with agent:
            await until(lambda: handler.handled == ["poison"])
        assert handler.seen == [("poison", 1, True)]
        assert len(bus.platform.dead_letters) == 0


async def test_mail_of_an_agent_that_is_removed_waits_as_dead_letters_for_another_one_of_its_name(
    bus: Bus, operator: Operator, agents: Any, inbox: Any
) -> None:
    alice = await agents("alice")
    await operator.ams.register("bob")
    for content in ("1", "2"):
        await alice.send("bob", "inform", content)
    await operator.ams.terminate("bob")
    found = await all_of(operator, "bob")
    assert [(one.reason, one.error, one.attempts) for one in found] == [
        (DeadReason.DEREGISTERED, "terminated by the AMS", 0)
    ] * 2
    refused = (await operator.admin.redrive(receiver="bob")).refused
    assert {number: one.outcome for number, one in refused.items()} == {
        1: Outcome.NO_SUCH_AGENT,
        2: Outcome.NO_SUCH_AGENT,
    }
    assert "registered: alice" in refused[1].detail
    await agents("bob", inbox)
    assert (await operator.admin.redrive(receiver="bob")).count == 2
    assert await inbox.holds(2) == ["1", "2"]
    assert all(message.redelivered for message in inbox.messages)


async def test_letters_are_listed_page_by_page_within_a_frame(buses: Any, connect: Any, channels: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, max_frame_bytes=100_000, max_message_bytes=80_000))
    async with Operator(bus.address) as operator:
        for name in ("bob", "eve"):
            await operator.ams.register(name)
        alice = await connect(bus, "alice")
        texts = ["a" * 30_000, "b" * 30_000, "c" * 30_000, "d" * 79_000, "e"]
        for text in texts:
            await alice.send(acl("bob", text), acl("eve", text[:1]))
        await alice.receipted(10)
        for name in ("bob", "eve"):
            await operator.ams.terminate(name)
        found = await all_of(operator, "bob", with_messages=True)
        assert [one.message.content for one in found] == texts
        assert [one.number for one in await all_of(operator)] == list(range(1, 11))
        assert [one.receiver for one in await all_of(operator, "eve@local", after=8)] == ["eve@local"] * 2
        # Two of three fit three quarters of a frame, and one that does not fit comes on its own.
        stub = admin_service_pb2_grpc.AdminServiceStub(channels(bus))
        sizes, after = [], 0
        while True:
            page = await stub.ListDeadLetters(
                admin_service_pb2.ListDeadLettersRequest(receiver="bob", after=after, with_messages=True)
            )
            sizes.append(len(page.letters))
            if not page.more:
                break
            after = page.letters[-1].number
        assert sizes == [2, 1, 1, 1]
        page = await stub.ListDeadLetters(admin_service_pb2.ListDeadLettersRequest(max_results=3))
        assert ([one.number for one in page.letters], page.more) == ([1, 2, 3], True)
        assert not any(one.HasField("message") for one in page.letters)


async def test_purged_letters_are_gone(bus: Bus, operator: Operator, connect: Any) -> None:
    alice = await connect(bus, "alice")
    for name in ("bob", "eve"):
        await operator.ams.register(name)
        await alice.send(*[acl(name, str(number)) for number in range(3)])
    await alice.receipted(6)
    for name in ("bob", "eve"):
        await operator.ams.terminate(name)
    assert await operator.admin.purge([2, 2, 99]) == 1
    assert [one.number for one in await all_of(operator)] == [1, 3, 4, 5, 6]
    assert await operator.admin.purge(receiver="bob@local") == 2
    assert [one.number for one in await all_of(operator)] == [4, 5, 6]
    assert (await operator.admin.redrive([5, 77])).refused[77].outcome is Outcome.INVALID
    assert await operator.admin.purge(everything=True) == 3
    assert (await operator.admin.stats()).dead_letters == 0


async def test_call_that_says_in_no_way_or_in_two_which_letters_it_means_is_refused(operator: Operator) -> None:
    with pytest.raises(InvalidArgument, match="nothing given; expected exactly one of numbers, receiver"):
        await operator.admin.redrive()
    with pytest.raises(InvalidArgument, match="numbers and receiver given"):
        await operator.admin.redrive([1], receiver="bob")
    with pytest.raises(InvalidArgument, match="expected exactly one of numbers, receiver, all"):
        await operator.admin.purge()
    with pytest.raises(InvalidArgument, match="receiver and all given"):
        await operator.admin.purge(receiver="bob", everything=True)
    with pytest.raises(InvalidArgument, match="dead letter -1"):
        await operator.admin.purge([1, -1])
    with pytest.raises(InvalidName, match="two words"):
        await all_of(operator, "two words")
    with pytest.raises(InvalidName, match="this platform is 'local'"):
        await operator.admin.purge(receiver="bob@elsewhere")


async def test_numbers_tell_what_the_bus_holds(bus: Bus, operator: Operator, connect: Any) -> None:
    bob, alice = await connect(bus, "bob"), await connect(bus, "alice")
    assert not (await operator.admin.stats()).message_bytes
    await alice.send(acl("bob", "1"), acl("bob", "2"), acl("nobody"))
    await alice.receipted(3)
    await bob.delivered(2)
    stats = await operator.admin.stats()
    assert (stats.agents, stats.sessions, stats.messages, stats.accepted, stats.descriptions) == (2, 2, 2, 2, 0)
    assert stats.message_bytes > 2 * acl("bob", "1").ByteSize()
    assert (stats.draining, stats.unheard_failures, stats.dead_letters) == (False, 0, 0)


async def test_rejected_message_and_what_is_no_acl_are_listed(bus: Bus, operator: Operator, connect: Any) -> None:
    bob, alice = await connect(bus, "bob"), await connect(bus, "alice")
    told = pb.BusMessage(to=["bob"], id="acp")
    told.acp.message_type = 1
    await alice.send(acl("bob", "no"), told)
    for delivery in list(await bob.delivered(2)):
        await bob.settle(rejects=[pb.Reject(sequence=delivery.sequence, reason="x" * 2_000)])
    await bob.in_step()
    first, second = await all_of(operator, with_messages=True)
    assert (first.reason, first.error, first.message.content) == (DeadReason.REJECTED, "x" * 1_000, "no")
    assert (second.id, second.message, second.size_bytes) == ("acp", None, told.ByteSize())


async def test_unknown_fields_of_a_message_are_listed_and_redriven_as_they_came(
    bus: Bus, operator: Operator, connect: Any, channels: Any
) -> None:
    bob, alice = await connect(bus, "bob"), await connect(bus, "alice")
    payload = acl("bob", "hi", id="m")
    # A field of a later version, in the body.
    payload.acl.MergeFromString(acl_pb2.AclMessage().SerializeToString() + b"\xba\x3e\x03new")
    await alice.send(payload)
    (delivery,) = await bob.delivered(1)
    await bob.settle(rejects=[pb.Reject(sequence=delivery.sequence)])
    await bob.in_step()
    stub = admin_service_pb2_grpc.AdminServiceStub(channels(bus))
    page = await stub.ListDeadLetters(admin_service_pb2.ListDeadLettersRequest(with_messages=True))
    assert b"new" in page.letters[0].message.SerializeToString()
    await operator.admin.redrive([1])
    assert b"new" in (await bob.delivered(2))[1].message.SerializeToString()


async def test_administration_is_for_operators_only(
    bus: Bus, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = Caller(agent=None, principal="guest", operator=False)
    monkeypatch.setattr("gagent_grpc.server.admin_servicer.caller_of", lambda platform, context: guest)
    calls = [
        operator.admin.stats,
        operator.admin.drain,
        lambda: all_of(operator),
        lambda: operator.admin.redrive([1]),
        lambda: operator.admin.purge(everything=True),
    ]
    for call in calls:
        with pytest.raises(Unauthorised, match="guest is no operator"):
            await call()
    assert not bus.stop_requested.is_set()


async def test_drain_ends_sessions_well_and_tells_who_opened_the_bus(
    bus: Bus, operator: Operator, connect: Any
) -> None:
    bob = await connect(bus, "bob")
    await operator.admin.drain()
    async with asyncio.timeout(10):
        await bus.stop_requested.wait()
    assert await bob.end() == (grpc.StatusCode.OK, "")
    assert bob.notices[0].kind == pb.NOTICE_KIND_DRAINING
