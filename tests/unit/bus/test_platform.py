"""The platform without a wire: starting from a store, names and sessions, what is written down, what the clock does."""

from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import replace
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl, eventually

from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState, SearchConstraints, ServiceDescription
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.ports import StoredAgent, StoredDescription, StoredKey, StoredMessage, StoredPlatform
from gagent_grpc.bus.session import Nack
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import (
    BusError,
    InvalidArgument,
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
    return Platform("local", store, EnvelopeCodec(max_id_bytes=bounds.max_id_bytes), clock or FakeClock(), bounds)


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
    digest = EnvelopeCodec(max_id_bytes=BusLimits().max_id_bytes).decode(body).digest if payload is None else b""
    return StoredMessage(
        receiver, sequence, "alice@local", f"m{sequence}", f"m{sequence}", digest, "", 1.0e9, attempt, body
    )


def letters(platform: Platform, name: str = "bob") -> list[tuple[int, bool]]:
    found = sorted(platform.ams.get(name).mailbox.letters(), key=lambda letter: letter.sequence)
    return [(letter.sequence, letter.redelivered) for letter in found]


def offer(name: str | None = None) -> DFAgentDescription:
    return DFAgentDescription(name=name, services=(ServiceDescription(type="sum"),))


def stored(description: DFAgentDescription) -> StoredDescription:
    return StoredDescription(description, 1.0, math.inf)


# ---- from a store ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clean", "flags"), [(True, [False, True]), (False, [True, True])])
async def test_start_takes_over_what_the_store_held(clean: bool, flags: list[bool]) -> None:
    held = StoredPlatform(
        clean=clean,
        agents=[stored_agent(), stored_agent("quiet", attached=False, state=S.SUSPENDED)],
        messages=[stored_message(7), stored_message(9, attempt=2), stored_message(3, receiver="quiet")],
        keys=[StoredKey("alice@local", "old", "bob", b"d", 999_999_999.0)],
        descriptions=[stored(offer("bob@local")), stored(offer("gone@local"))],
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


async def test_df_entries_keep_their_order_and_their_leases_over_a_restart() -> None:
    store, clock = ManualStore(), FakeClock()
    platform = platform_of(store, clock)
    sessions = {}
    for name in ("old", "leased", "short"):
        lease = {"old": None, "leased": 100.0, "short": 30.0}[name]
        described = replace(offer(), lease_seconds=lease)
        sessions[name] = await platform.attach(Hello(name, description=described), "local")
        clock.advance(1)
    # A client that says the same again at each hello is no younger for it.
    await platform.attach(Hello("old", resume_token=sessions["old"].resume_token, description=offer()), "local")
    entries = sorted(store.descriptions.values(), key=lambda entry: entry.registered_at)
    assert [entry.description.name for entry in entries] == ["old@local", "leased@local", "short@local"]

    clock.advance(50)
    again = ManualStore(StoredPlatform(agents=list(store.agents.values()), descriptions=entries))
    again.descriptions = dict(store.descriptions)
    platform = platform_of(again, clock)
    async with platform.running():
        assert [one.name for one in platform.df] == ["old@local", "leased@local"]
        assert set(again.descriptions) == {"old@local", "leased@local"}
        for name in ("leased", "old"):
            opened = await platform.attach(Hello(name), "local")
            assert opened.description is not None
        found = platform.search_descriptions(offer(), SearchConstraints(max_results=-1))
        assert [one.name for one in found] == ["old@local", "leased@local"]
        # 51 of its 100 seconds are over.
        clock.advance(49)
        platform.keep_house()
        assert [one.name for one in platform.df] == ["old@local"]


async def test_start_leaves_what_it_cannot_read_in_the_store_and_goes_on() -> None:
    unreadable = stored_message(60, payload=b"\xff\xff")
    orphan = stored_message(1, receiver="nobody")
    no_type = DFAgentDescription(name="bob@local", services=(ServiceDescription(name="x"),))
    held = StoredPlatform(
        agents=[stored_agent()], messages=[stored_message(7), unreadable, orphan], descriptions=[stored(no_type)]
    )
    platform = platform_of(ManualStore(held))
    async with platform.running():
        assert letters(platform) == [(7, False)]
        assert platform.ams.get("bob").mailbox.next_sequence > 60


async def test_flag_that_an_unclean_stop_gave_outlives_the_next_stop() -> None:
    held = StoredPlatform(
        clean=False,
        agents=[stored_agent(), stored_agent("quiet", attached=False)],
        messages=[stored_message(7), stored_message(9, attempt=2), stored_message(3, receiver="quiet")],
    )
    store = ManualStore(held)
    platform = platform_of(store)
    async with platform.running():
        # Before anything else: what is written next says that no session was open.
        assert store.attempts == [("bob", 7, 1)]
        await platform.attach(Hello("bob"), "local")
    again = [replace(one, attempt=max([one.attempt, *_attempts(store, one)])) for one in held.messages]
    platform = platform_of(ManualStore(StoredPlatform(agents=list(store.agents.values()), messages=again)))
    async with platform.running():
        assert letters(platform) == [(7, True), (9, True)]


def _attempts(store: ManualStore, message: StoredMessage) -> list[int]:
    return [
        attempt for name, number, attempt in store.attempts if (name, number) == (message.receiver, message.sequence)
    ]


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
    platform.post.commit(store.commit())
    out = await opened.session.outgoing()
    assert out is not None
    opened.session.record.mailbox.nack({1: 10.0})
    platform.detach(opened.session)
    # The second was returned with the first: its attempt does not count, but it has been delivered.
    assert sorted(store.attempts) == [("bob", 1, 1), ("bob", 2, 1), ("bob", 3, 1)]


async def test_store_that_fails_for_good_is_told_to_who_waits_and_to_who_comes_later() -> None:
    store = ManualStore()
    platform = platform_of(store)
    async with platform.running():
        platform.register("bob", "", platform.caller_for("x"))
        alice = NotingOrigin("alice@local")
        platform.router.submit(acl("bob").SerializeToString(), alice, 1)
        store.fail("the disk is gone")
        await eventually(lambda: not alice.waiting)
        platform.router.submit(acl("bob").SerializeToString(), alice, 2)
        assert alice.outcomes == [(1, "bob", "UNREACHABLE"), (2, "bob", "UNREACHABLE")]


async def test_defect_in_the_store_is_told_as_its_failure_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = ManualStore()
    platform = platform_of(store)
    async with platform.running():
        platform.register("bob", "", platform.caller_for("x"))
        alice = NotingOrigin("alice@local")
        platform.router.submit(acl("bob").SerializeToString(), alice, 1)
        store.fail(RuntimeError("a defect"))
        await eventually(lambda: not alice.waiting)
        platform.router.submit(acl("bob").SerializeToString(), alice, 2)
        assert alice.outcomes == [(1, "bob", "UNREACHABLE"), (2, "bob", "UNREACHABLE")]
    assert any(record.exc_info and "a defect" in str(record.exc_info[1]) for record in caplog.records)


async def test_task_of_the_platform_that_died_is_in_the_log_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = asyncio.Event()

    async def broken(self: Platform) -> None:
        died.set()
        raise RuntimeError("a defect")

    monkeypatch.setattr(Platform, "_commits", broken)
    async with platform_of(MemoryStore()).running():
        await died.wait()
    assert any(record.exc_info and "a defect" in str(record.exc_info[1]) for record in caplog.records)


async def test_commit_that_cannot_be_finished_does_not_keep_later_ones_from_their_receipts() -> None:
    store = ManualStore()
    platform = platform_of(store)

    class Broken(NotingOrigin):
        def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
            raise ValueError(number)

    async with platform.running():
        platform.register("bob", "", platform.caller_for("x"))
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
        await platform.flush()
    assert platform.sessions == 0
    store.flushing.set()
    assert (await platform.attach(Hello("bob"), "local")).session.aid == "bob@local"


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
    except BusError as error:
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


async def test_sessions_are_bounded_also_while_their_names_are_being_written() -> None:
    store = ManualStore()
    store.flushing.clear()
    platform = platform_of(store, max_sessions=2)
    async with asyncio.TaskGroup() as group:
        hellos = [group.create_task(_outcome(platform.attach(Hello(f"a{n}"), "local"))) for n in range(5)]
        await asyncio.sleep(0)
        store.flushing.set()
    assert sorted(hello.result() for hello in hellos) == ["Opened"] * 2 + ["TooManySessions"] * 3
    assert (platform.sessions, len(platform.ams)) == (2, 2)
    # Neither a refused hello nor one that was given up takes a place for ever.
    for record in list(platform.ams):
        assert record.session is not None
        platform.detach(record.session)
    store.flushing.clear()
    leaving = asyncio.ensure_future(platform.attach(Hello("leaving"), "local"))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    for name in ("a0", "a1"):
        await platform.attach(Hello(name), "local")
    store.flushing.set()


async def test_hello_whose_offer_finds_the_df_full_by_then_leaves_no_name() -> None:
    store = ManualStore()
    platform = platform_of(store, max_df_entries=1)
    other = (await platform.attach(Hello("other"), "local")).session
    store.flushing.clear()
    async with asyncio.TaskGroup() as group:
        hello = group.create_task(_outcome(platform.attach(Hello("bob", description=offer()), "local")))
        await asyncio.sleep(0)
        platform.register_description(offer(), platform.caller_for(other.aid))
        store.flushing.set()
    assert hello.result() == "ResourceExhausted"
    assert platform.ams.find("bob") is None
    assert (set(store.agents), set(store.descriptions)) == ({"other"}, {"other@local"})
    assert platform.sessions == 1


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


async def test_ephemeral_hello_does_not_make_a_name_end_that_was_meant_to_stay() -> None:
    clock = FakeClock()
    platform = platform_of(MemoryStore(), clock)
    for ephemeral in (False, True):
        opened = await platform.attach(Hello("planner", ephemeral=ephemeral), "local")
        platform.detach(opened.session)
    for ephemeral in (True, False, True):
        opened = await platform.attach(Hello("promoted", ephemeral=ephemeral), "local")
        platform.detach(opened.session)
    clock.advance(31)
    platform.keep_house()
    assert {record.name for record in platform.ams} == {"planner", "promoted"}


@pytest.mark.parametrize("ownership", ["x" * 1_001, "half a pair: \ud800"])
async def test_ownership_that_is_too_long_or_no_text_is_refused_before_anything_changes(ownership: str) -> None:
    store = ManualStore()
    platform = platform_of(store)
    with pytest.raises(InvalidArgument, match="ownership"):
        await platform.attach(Hello("bob", ownership=ownership), "local")
    with pytest.raises(InvalidArgument, match="ownership"):
        platform.register("bob", ownership, platform.caller_for("x"))
    assert (len(platform.ams), store.agents) == (0, {})


@pytest.mark.parametrize("failing", [False, True])
async def test_hello_that_cannot_be_written_down_leaves_no_name(failing: bool) -> None:
    store = ManualStore()
    platform = platform_of(store, write_timeout=0.05)
    if failing:
        store.flush_failure = "the disk is full"
    else:
        store.flushing.clear()
    with pytest.raises(StoreUnavailable):
        await platform.attach(Hello("bob"), "one")
    assert platform.ams.find("bob") is None
    store.flush_failure = ""
    store.flushing.set()
    # So that somebody else may have it.
    assert (await platform.attach(Hello("bob"), "two")).session.aid == "bob@local"


async def test_agent_that_the_store_cannot_take_leaves_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ManualStore()

    def refuse(agent: object) -> None:
        raise InvalidArgument("not to be written")

    monkeypatch.setattr(store, "put_agent", refuse)
    platform = platform_of(store)
    with pytest.raises(InvalidArgument):
        await platform.attach(Hello("bob"), "local")
    assert len(platform.ams) == 0


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


@pytest.mark.parametrize("name", ["ams", "df", "df@local"])
async def test_platforms_own_agents_are_governed_by_nobody(name: str) -> None:
    platform = platform_of(MemoryStore())
    caller = platform.caller_for((await platform.attach(Hello("bob"), "local")).session.aid)
    for act in (platform.deregister, platform.suspend, platform.resume):
        with pytest.raises(Unauthorised, match="reserved"):
            act(name, caller)


# ---- the first delivery of a session ---------------------------------------------------------------------------------


async def waiting_mail(store: ManualStore, **limits: Any) -> Platform:
    """Return a platform with one message for bob, who is registered and not there."""
    platform = platform_of(store, **limits)
    platform.register("bob", "", platform.caller_for("x"))
    platform.router.submit(acl("bob").SerializeToString(), NotingOrigin("alice@local"), 1)
    platform.post.commit(store.commit())
    return platform


async def test_first_delivery_waits_until_it_is_durable_that_there_is_a_session() -> None:
    # Killed before, the bus would deliver again and not know that it does.
    store = ManualStore()
    platform = await waiting_mail(store)
    store.flushing.clear()
    session = (await platform.attach(Hello("bob"), "")).session
    await asyncio.sleep(0.02)
    assert session._collect().letters == []
    store.flushing.set()
    async with asyncio.timeout(5):
        out = await session.outgoing()
    assert out is not None
    assert [one.sequence for one in out.letters] == [1]


@pytest.mark.parametrize("failing", [False, True])
async def test_store_that_cannot_write_keeps_nobody_from_its_mail_for_ever(failing: bool) -> None:
    store = ManualStore()
    platform = await waiting_mail(store, write_timeout=0.05)
    store.flushing.clear()
    if failing:
        store.flush_failure = "the disk is full"
        store.flushing.set()
    session = (await platform.attach(Hello("bob"), "")).session
    await asyncio.sleep(0.01)
    assert session._collect().letters == []
    async with asyncio.timeout(5):
        out = await session.outgoing()
    assert out is not None
    assert [one.sequence for one in out.letters] == [1]


async def test_store_without_durability_holds_up_no_delivery() -> None:
    platform = platform_of(MemoryStore())
    session = (await platform.attach(Hello("bob"), "local")).session
    platform.router.submit(acl("bob").SerializeToString(), NotingOrigin("alice@local"), 1)
    assert [one.sequence for one in session._collect().letters] == [1]


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
    platform.register("bob", "", platform.caller_for("x"))
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
    bob.settle(ack_through_tag=0, acks=(), nacks=[Nack(1, 5.0, "busy")], rejects=())
    assert platform.post.holding == {bob.record}
    clock.advance(4.9)
    platform.release_lanes()
    assert bob._collect().letters == []
    clock.advance(0.1)
    platform.release_lanes()
    assert platform.post.holding == set()
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
