"""The platform without a wire: starting from a store, names and sessions, what is written down, what the clock does."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl, eventually

from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState, ServiceDescription
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.ports import StoredAgent, StoredKey, StoredMessage, StoredPlatform
from gagent_grpc.bus.session import Nack
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    MissingParameter,
    StoreUnavailable,
    TooManySessions,
    Unauthorised,
)
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

S = LifeCycleState
TOKEN = "a token from before the restart"


def platform_of(store: Any, clock: FakeClock | None = None, **limits: Any) -> Platform:
    bounds = BusLimits(**limits)
    return Platform("local", store, EnvelopeCodec(bounds), clock or FakeClock(), bounds)


def stored_agent(name: str = "bob", **changes: Any) -> StoredAgent:
    fields: dict[str, Any] = {
        "name": name,
        "principal": "local",
        "ownership": "",
        "state": S.ACTIVE,
        "resume_to": S.ACTIVE,
        "ephemeral": False,
        "generation": 4,
        "attached": True,
        "next_sequence": 50,
        "resume_digest": hashlib.sha256(TOKEN.encode()).digest(),
        "registered_at": 1.0,
    }
    return StoredAgent(**{**fields, **changes})


def stored_message(
    sequence: int, *, receiver: str = "bob", attempt: int = 0, payload: bytes | None = None
) -> StoredMessage:
    body = acl("bob", f"{sequence}", id=f"m{sequence}").SerializeToString() if payload is None else payload
    digest = EnvelopeCodec(BusLimits()).decode(body).digest if payload is None else b""
    return StoredMessage(
        receiver, sequence, "alice@local", f"m{sequence}", f"m{sequence}", digest, "", 1.0e9, attempt, body
    )


def letters(platform: Platform, name: str = "bob") -> list[tuple[int, bool]]:
    found = sorted(platform.ams.get(name).mailbox.letters(), key=lambda letter: letter.sequence)
    return [(letter.sequence, letter.redelivered) for letter in found]


def offer(name: str | None = None) -> DFAgentDescription:
    return DFAgentDescription(name=name, services=(ServiceDescription(type="sum"),))


# ---- from a store ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clean", "flags"), [(True, [False, True]), (False, [True, True])])
async def test_start_takes_over_what_the_store_held(clean: bool, flags: list[bool]) -> None:
    held = StoredPlatform(
        clean=clean,
        agents=[stored_agent(), stored_agent("quiet", attached=False, state=S.SUSPENDED)],
        messages=[stored_message(7), stored_message(9, attempt=2), stored_message(3, receiver="quiet")],
        keys=[StoredKey("alice@local", "old", "bob", b"d", 999_999_999.0)],
        descriptions=[offer("bob@local"), offer("gone@local")],
    )
    store = ManualStore(held)
    platform = platform_of(store)
    async with platform.running():
        bob = platform.ams.get("bob")
        assert (bob.state, bob.generation, bob.mailbox.next_sequence) == (S.UNKNOWN, 4, 50)
        assert platform.ams.get("quiet").state is S.SUSPENDED
        assert letters(platform) == [(7, flags[0]), (9, flags[1])]
        assert letters(platform, "quiet") == [(3, False)]
        assert [one.name for one in platform.df] == ["bob@local"]
        alice = NotingOrigin("alice@local")
        platform.router.submit(acl("bob", "7", id="m7").SerializeToString(), alice, 1)
        platform.router.submit(acl("bob", "other", id="old").SerializeToString(), alice, 2)
        assert alice.outcomes == [(1, "bob", "DUPLICATE"), (2, "bob", "INVALID")]
        resumed = await platform.attach(Hello("bob", resume_token=TOKEN, held=frozenset({9, 8})), "local")
        assert resumed.held == {9}
        assert resumed.session.generation == 5
        assert store.agents["bob"].attached
    assert store.closed is True
    assert not store.agents["bob"].attached


async def test_start_leaves_what_it_cannot_read_in_the_store_and_goes_on() -> None:
    unreadable = stored_message(60, payload=b"\xff\xff")
    orphan = stored_message(1, receiver="nobody")
    no_type = DFAgentDescription(name="bob@local", services=(ServiceDescription(name="x"),))
    held = StoredPlatform(
        agents=[stored_agent()], messages=[stored_message(7), unreadable, orphan], descriptions=[no_type]
    )
    platform = platform_of(ManualStore(held))
    async with platform.running():
        assert letters(platform) == [(7, False)]
        assert platform.ams.get("bob").mailbox.next_sequence > 60


async def test_error_in_the_block_is_an_unclean_stop() -> None:
    store = ManualStore()
    with pytest.raises(RuntimeError):
        async with platform_of(store).running():
            raise RuntimeError
    assert store.closed is False


async def test_what_was_in_hand_is_written_when_its_session_ends() -> None:
    store = ManualStore()
    platform = platform_of(store)
    opened = await platform.attach(Hello("bob"), "local")
    for lane in ("a", "a", "b"):
        platform.router.submit(acl("bob", acl_conversation_id=lane).SerializeToString(), opened.session, 1)
    platform.router.commit(store.commit())
    out = await opened.session.outgoing()
    assert out is not None
    opened.session.record.mailbox.nack({1: (10.0, "")})
    platform.detach(opened.session)
    # The second was returned with the first: its attempt does not count, but it has been delivered.
    assert sorted(store.attempts) == [("bob", 1, 1), ("bob", 2, 1), ("bob", 3, 1)]


async def test_store_that_fails_for_good_is_told_to_who_waits_and_to_who_comes_later() -> None:
    store = ManualStore()
    platform = platform_of(store)
    async with platform.running():
        await platform.register("bob", "", platform.caller_for("x"))
        alice = NotingOrigin("alice@local")
        platform.router.submit(acl("bob").SerializeToString(), alice, 1)
        store.fail("the disk is gone")
        await eventually(lambda: not alice.waiting)
        platform.router.submit(acl("bob").SerializeToString(), alice, 2)
        assert alice.outcomes == [(1, "bob", "MAILBOX_FULL"), (2, "bob", "UNREACHABLE")]


async def test_commit_that_cannot_be_finished_does_not_keep_later_ones_from_their_receipts() -> None:
    store = ManualStore()
    platform = platform_of(store)

    class Broken(NotingOrigin):
        def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
            raise ValueError(number)

    async with platform.running():
        await platform.register("bob", "", platform.caller_for("x"))
        good = NotingOrigin("alice@local")
        platform.router.submit(acl("bob").SerializeToString(), Broken("alice@local"), 1)
        platform.router.submit(acl("bob").SerializeToString(), good, 1)
        store.commit(1)
        store.commit(2)
        await eventually(lambda: not good.waiting)
        assert good.reached == [(1, "bob")]


async def test_store_that_does_not_write_is_an_error_and_no_wait_for_ever() -> None:
    store = ManualStore()
    store.flushing.clear()
    platform = platform_of(store, write_timeout=0.01)
    with pytest.raises(StoreUnavailable, match="try again later"):
        await platform.attach(Hello("bob"), "local")
    with pytest.raises(StoreUnavailable):
        await platform.register("carol", "", platform.caller_for("x"))
    assert platform.sessions == 0
    store.flushing.set()
    assert (await platform.attach(Hello("bob"), "local")).attached


# ---- names and sessions ----------------------------------------------------------------------------------------------


async def test_of_two_hellos_during_one_write_exactly_one_wins() -> None:
    store = ManualStore()
    store.flushing.clear()
    platform = platform_of(store, probe_timeout=0.01)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_outcome(platform.attach(Hello("planner"), "local")))
        await asyncio.sleep(0)
        second = group.create_task(_outcome(platform.attach(Hello("planner"), "local")))
        await asyncio.sleep(0)
        store.flushing.set()
    assert sorted([first.result(), second.result()]) == ["AgentAlreadyRegistered", "Opened"]
    assert platform.sessions == 1


async def _outcome(attaching: Any) -> str:
    try:
        return type(await attaching).__name__
    except AgentAlreadyRegistered as error:
        return type(error).__name__


async def test_hello_that_is_cancelled_leaves_no_session_and_an_ephemeral_name_ends() -> None:
    store = ManualStore()
    store.flushing.clear()
    clock = FakeClock()
    platform = platform_of(store, clock)
    attaching = asyncio.ensure_future(platform.attach(Hello("cli-1", ephemeral=True), "local"))
    await asyncio.sleep(0)
    attaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attaching
    assert platform.sessions == 0
    clock.advance(31)
    platform.keep_house()
    assert platform.ams.find("cli-1") is None


async def test_two_claimants_of_a_silent_name_do_not_both_get_it() -> None:
    platform = platform_of(MemoryStore(), probe_timeout=0.01)
    silent = (await platform.attach(Hello("bob"), "local")).session
    async with asyncio.TaskGroup() as group:
        claims = [group.create_task(platform.attach(Hello("bob"), "local")) for _ in range(2)]
    # Nobody answers in this test, so the second claimant takes the name from the first; at no time two have it.
    generations = sorted(claim.result().session.generation for claim in claims)
    assert generations == [2, 3]
    record = platform.ams.get("bob")
    assert record.session is not None
    assert record.session.generation == 3
    assert [claim.result().session.ended for claim in claims].count(False) == 1
    assert silent.ended


async def test_name_of_another_principal_cannot_be_attached_to() -> None:
    platform = platform_of(MemoryStore())
    opened = await platform.attach(Hello("bob"), "one")
    platform.detach(opened.session)
    with pytest.raises(Unauthorised, match="another principal"):
        await platform.attach(Hello("bob"), "two")


async def test_sessions_are_bounded_and_a_takeover_adds_none() -> None:
    platform = platform_of(MemoryStore(), max_sessions=1)
    opened = await platform.attach(Hello("bob"), "local")
    with pytest.raises(TooManySessions):
        await platform.attach(Hello("alice"), "local")
    assert platform.ams.find("alice") is None
    await platform.attach(Hello("bob", resume_token=opened.resume_token), "local")


async def test_hello_with_a_bad_description_changes_nothing() -> None:
    store = ManualStore()
    platform = platform_of(store)
    bad = DFAgentDescription(services=(ServiceDescription(name="x"),))
    with pytest.raises(MissingParameter):
        await platform.attach(Hello("fresh", description=bad), "local")
    assert (len(platform.ams), store.agents) == (0, {})
    opened = await platform.attach(Hello("bob", description=offer()), "local")
    with pytest.raises(MissingParameter):
        await platform.attach(Hello("bob", resume_token=opened.resume_token, description=bad), "local")
    assert not opened.session.ended
    assert opened.session.record.session is opened.session
    assert platform.df.get("bob@local") == opened.description
    with pytest.raises(Unauthorised):
        await platform.attach(Hello("carol", description=offer("bob")), "local")


async def test_token_stands_for_the_agent_while_its_session_is_open() -> None:
    platform = platform_of(MemoryStore())
    first = await platform.attach(Hello("bob"), "local")
    assert platform.agent_of(first.resume_token) is first.session.record
    second = await platform.attach(Hello("bob", resume_token=first.resume_token), "local")
    assert platform.agent_of(first.resume_token) is None
    assert platform.agent_of(second.resume_token) is second.session.record
    platform.detach(first.session)
    assert platform.agent_of(second.resume_token) is second.session.record
    platform.detach(second.session)
    assert platform.agent_of(second.resume_token) is None
    assert platform.agent_of("") is None


async def test_detach_of_an_older_session_does_nothing_to_the_newer_one() -> None:
    platform = platform_of(MemoryStore())
    first = await platform.attach(Hello("bob", description=offer()), "local")
    second = await platform.attach(Hello("bob", resume_token=first.resume_token), "local")
    platform.bye(first.session, deregister=True)
    platform.detach(first.session)
    record = platform.ams.get("bob")
    assert record.session is second.session
    assert record.state is S.ACTIVE
    assert platform.df.get("bob@local") is not None
    assert platform.sessions == 1


# ---- by the clock ----------------------------------------------------------------------------------------------------


async def test_lease_that_ends_takes_the_entry_and_its_place_in_the_store() -> None:
    store, clock = ManualStore(), FakeClock()
    platform = platform_of(store, clock)
    leased = DFAgentDescription(services=(ServiceDescription(type="sum"),), lease_seconds=60)
    await platform.attach(Hello("bob", description=leased), "local")
    assert "bob@local" in store.descriptions
    clock.advance(60)
    platform.keep_house()
    assert platform.df.get("bob@local") is None
    assert store.descriptions == {}


async def test_mail_waits_no_longer_than_its_time_to_live_and_its_sender_is_told() -> None:
    clock = FakeClock()
    platform = platform_of(MemoryStore(), clock, mailbox_ttl=100.0)
    await platform.register("bob", "", platform.caller_for("x"))
    alice = (await platform.attach(Hello("alice"), "local")).session
    alice.submit([acl("bob", act=19).SerializeToString()])
    clock.advance(100)
    alice.heard()
    platform.keep_house()
    assert letters(platform) == [(1, False)]
    clock.advance(1)
    platform.keep_house()
    assert letters(platform) == []
    assert platform.ams.get("alice").mailbox.reserve_messages == 1


async def test_nacked_lane_goes_on_when_its_time_has_come_and_wakes_its_session() -> None:
    clock = FakeClock()
    platform = platform_of(MemoryStore(), clock)
    bob = (await platform.attach(Hello("bob"), "local")).session
    bob.submit([acl("bob").SerializeToString()])
    await bob.outgoing()
    bob.settle(ack_through_tag=0, acks=(), nacks=[Nack(1, 5.0, "busy")], in_progress=(), rejects=())
    assert platform.router.holding == {bob.record}
    clock.advance(4.9)
    platform.release_lanes()
    assert bob._collect().letters == []
    clock.advance(0.1)
    platform.release_lanes()
    assert platform.router.holding == set()
    out = await bob.outgoing()
    assert out is not None
    assert [(one.sequence, one.attempt) for one in out.letters] == [(1, 2)]


async def test_housekeeping_that_fails_is_done_again() -> None:
    platform = platform_of(MemoryStore(), heartbeat_interval=0.01)
    turns = 0
    again = asyncio.Event()

    def broken() -> None:
        nonlocal turns
        turns += 1
        if turns > 2:
            again.set()
        raise RuntimeError(turns)

    platform.keep_house = broken  # type: ignore[method-assign]  # [method-assign]: stands in for a defect.
    async with platform.running(), asyncio.timeout(5):
        await again.wait()
