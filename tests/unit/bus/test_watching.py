"""What those who watch are told of agents and of descriptions, as sessions, states, leases and names come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import NotingOrigin
from raw import acl

from gagent_grpc.acl.changes import AgentEventKind as A
from gagent_grpc.acl.changes import DescriptionEventKind as D
from gagent_grpc.acl.descriptions import AMSAgentDescription, DFAgentDescription, LifeCycleState, ServiceDescription
from gagent_grpc.bus.platform import Caller, Hello, Platform
from gagent_grpc.bus.ports import StoredAgent, StoredPlatform
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import Unauthorised, UnrecognisedParameterValue
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

S = LifeCycleState
ANY = AMSAgentDescription()
EVERYTHING = DFAgentDescription()


def offer(*types: str, lease: float | None = None, name: str | None = None) -> DFAgentDescription:
    services = tuple(ServiceDescription(type=one) for one in types)
    return DFAgentDescription(name=name, services=services, lease_seconds=lease)


class Node:
    """A platform, and shorthands for what happens on it."""

    def __init__(self, **limits: Any) -> None:
        bounds = BusLimits(**limits)
        self.clock = FakeClock()
        codec = EnvelopeCodec(max_id_bytes=bounds.max_id_bytes)
        self.platform = Platform("local", MemoryStore(), codec, self.clock, bounds)

    async def open(self, name: str, description: DFAgentDescription | None = None, **hello: Any) -> Any:
        return (await self.platform.attach(Hello(name, description=description, **hello), "local")).session

    def itself(self, name: str) -> Caller:
        return Caller(self.platform.ams.get(name), "local", operator=False)

    def agents(self, template: AMSAgentDescription = ANY, cursor: str = "", **options: Any) -> Seen:
        return Seen(self.platform.watch_agents(template, cursor, **options))

    def offers(self, template: DFAgentDescription = EVERYTHING, cursor: str = "") -> Seen:
        return Seen(self.platform.watch_descriptions(template, cursor))


OPERATOR = Caller(None, "local", operator=True)


class Seen:
    """A watch, read as far as there is something."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch
        self.cursor = ""

    async def next(self) -> list[tuple[Any, ...]]:
        """Return what is told now, in short."""
        told = []
        for one in await self.watch.next():
            self.cursor = one.cursor
            if isinstance(one.kind, A):
                agent = one.agent
                name = agent.description.name.partition("@")[0] if agent is not None else ""
                state = agent.description.state if agent is not None else None
                told.append((one.kind, name, state) if one.cause == "" else (one.kind, name, state, one.cause))
            else:
                name = one.description.name.partition("@")[0] if one.description is not None else ""
                told.append((one.kind, name) if one.cause == "" else (one.kind, name, one.cause))
        return told


# ---- agents ----------------------------------------------------------------------------------------------------------


async def test_life_of_an_agent_is_told_from_birth_to_death() -> None:
    node = Node()
    seen = node.agents()
    assert await seen.next() == [(A.SNAPSHOT_END, "", None)]
    session = await node.open("bob")
    node.platform.suspend("bob", OPERATOR)
    node.platform.suspend("bob", OPERATOR)
    node.platform.resume("bob", node.itself("bob"))
    node.platform.detach(session)
    node.platform.deregister("bob", OPERATOR, why="terminated by the AMS")
    assert await seen.next() == [
        (A.BORN, "bob", S.INITIATED, "registered"),
        (A.STATE, "bob", S.ACTIVE, "session opened"),
        (A.STATE, "bob", S.SUSPENDED, "suspended by ams"),
        (A.STATE, "bob", S.ACTIVE, "resumed by self"),
        (A.STATE, "bob", S.UNKNOWN, "agent lost"),
        (A.DEAD, "bob", S.UNKNOWN, "terminated by the AMS"),
    ]


async def test_snapshot_shows_who_is_there_and_ends_before_the_first_change() -> None:
    node = Node()
    await node.open("a")
    node.platform.register("b", "ops", OPERATOR)
    seen = node.agents()
    assert await seen.next() == [
        (A.PRESENT, "a", S.ACTIVE),
        (A.PRESENT, "b", S.INITIATED),
        (A.SNAPSHOT_END, "", None),
    ]
    await node.open("b")
    assert await seen.next() == [(A.STATE, "b", S.ACTIVE, "session opened")]


async def test_state_event_says_what_the_state_was() -> None:
    node = Node()
    await node.open("bob")
    seen = node.platform.watch_agents(ANY)
    await seen.next()
    node.platform.modify_agent(AMSAgentDescription("bob", state=S.WAITING), node.itself("bob"))
    (told,) = await seen.next()
    assert (told.previous_state, told.agent.connected) == (S.ACTIVE, True)


async def test_change_of_owner_and_state_is_two_events_and_no_change_is_none() -> None:
    node = Node()
    await node.open("bob")
    seen = node.agents()
    await seen.next()
    node.platform.modify_agent(AMSAgentDescription("bob", ownership="ops", state=S.SUSPENDED), OPERATOR)
    node.platform.modify_agent(AMSAgentDescription("bob", ownership="ops", state=S.SUSPENDED), OPERATOR)
    assert await seen.next() == [
        (A.MODIFIED, "bob", S.ACTIVE, "suspend by ams"),
        (A.STATE, "bob", S.SUSPENDED, "suspend by ams"),
    ]


async def test_agent_that_matches_no_more_is_told_once_more() -> None:
    node = Node()
    await node.open("bob")
    await node.open("eve")
    seen = node.agents(AMSAgentDescription(state=S.SUSPENDED))
    named = node.agents(AMSAgentDescription("bob"))
    assert await seen.next() == [(A.SNAPSHOT_END, "", None)]
    assert len(await named.next()) == 2
    node.platform.suspend("bob", OPERATOR)
    node.platform.resume("bob", OPERATOR)
    node.platform.deregister("eve", OPERATOR)
    node.platform.suspend("bob", OPERATOR)
    told = [(A.STATE, S.SUSPENDED), (A.STATE, S.ACTIVE), (A.STATE, S.SUSPENDED)]
    assert [one[::2] for one in [x[:3] for x in await seen.next()]] == told
    assert [one[::2] for one in [x[:3] for x in await named.next()]] == told


async def test_ephemeral_agents_are_told_to_who_asks_for_them() -> None:
    node = Node(resume_grace=30)
    plain, all_of_them, by_name = (
        node.agents(),
        node.agents(with_ephemeral=True),
        node.agents(AMSAgentDescription("cli")),
    )
    for seen in (plain, all_of_them, by_name):
        await seen.next()
    session = await node.open("cli", ephemeral=True)
    node.platform.detach(session)
    node.clock.advance(31)
    node.platform.keep_house()
    await node.open("bob")
    assert [told[:2] for told in await plain.next()] == [(A.BORN, "bob"), (A.STATE, "bob")]
    kinds = [(A.BORN, "cli"), (A.STATE, "cli"), (A.STATE, "cli"), (A.DEAD, "cli")]
    assert [told[:2] for told in await by_name.next()] == kinds
    assert [told[:2] for told in await all_of_them.next()] == [*kinds, (A.BORN, "bob"), (A.STATE, "bob")]


async def test_name_that_shall_stay_is_told_as_modified() -> None:
    node = Node()
    node.platform.detach(await node.open("bob", ephemeral=True))
    seen = node.agents()
    await seen.next()
    await node.open("bob")
    assert [told[:2] for told in await seen.next()] == [(A.MODIFIED, "bob"), (A.STATE, "bob")]


async def test_cursor_goes_on_and_one_from_before_a_restart_begins_anew() -> None:
    node = Node()
    seen = node.agents()
    await seen.next()
    await node.open("a")
    await seen.next()
    await node.open("b")
    again = node.agents(cursor=seen.cursor)
    assert [told[:2] for told in await again.next()] == [(A.BORN, "b"), (A.STATE, "b")]
    restarted = Node()
    assert await restarted.agents(cursor=again.cursor).next() == [(A.SNAPSHOT_END, "", None)]


async def test_snapshot_that_was_not_read_to_its_end_begins_again() -> None:
    node = Node()
    await node.open("a")
    (present, _) = await node.platform.watch_agents(ANY).next()
    assert present.cursor == ""


async def test_agents_that_a_store_held_are_not_born_again() -> None:
    stored = StoredAgent("bob", "local", "", S.ACTIVE, S.ACTIVE, False, 1, False, 1, b"", 1.0)

    class Holding(MemoryStore):
        async def open(self) -> StoredPlatform:
            return StoredPlatform(agents=[stored, replace(stored, name="eve", state=S.TRANSIT)])

    bounds = BusLimits()
    platform = Platform("local", Holding(), EnvelopeCodec(max_id_bytes=bounds.max_id_bytes), FakeClock(), bounds)
    async with platform.running():
        seen = Seen(platform.watch_agents(ANY))
        assert await seen.next() == [
            (A.PRESENT, "bob", S.UNKNOWN),
            (A.PRESENT, "eve", S.TRANSIT),
            (A.SNAPSHOT_END, "", None),
        ]
        await platform.attach(Hello("bob"), "local")
        await platform.attach(Hello("eve"), "local")
        assert await seen.next() == [(A.STATE, "bob", S.ACTIVE, "session opened")]


# ---- who may change what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "wanted", "itself", "other", "governor"),
    [
        (S.ACTIVE, S.SUSPENDED, True, False, True),
        (S.SUSPENDED, S.ACTIVE, False, False, True),
        (S.ACTIVE, S.WAITING, True, False, False),
        (S.WAITING, S.ACTIVE, False, False, True),
        (S.ACTIVE, S.TRANSIT, True, False, False),
        (S.TRANSIT, S.ACTIVE, False, False, True),
    ],
)
async def test_each_transition_is_for_whom_the_table_names(
    before: S, wanted: S, itself: bool, other: bool, governor: bool
) -> None:
    for who, may in (("itself", itself), ("other", other), ("governor", governor)):
        node = Node()
        await node.open("bob")
        await node.open("eve")
        record = node.platform.ams.get("bob")
        record.state = before
        callers = {"itself": node.itself("bob"), "other": node.itself("eve"), "governor": OPERATOR}
        asked = AMSAgentDescription("bob", ownership="new", state=wanted)
        if may:
            node.platform.modify_agent(asked, callers[who])
            assert (record.state, record.ownership) == (wanted, "new")
        else:
            with pytest.raises(Unauthorised):
                node.platform.modify_agent(asked, callers[who])
            # Nothing of it is done.
            assert (record.state, record.ownership) == (before, "")


# ---- descriptions ----------------------------------------------------------------------------------------------------


async def test_description_comes_and_goes_with_its_agent() -> None:
    node = Node()
    seen = node.offers(offer("sum"))
    assert await seen.next() == [(D.SNAPSHOT_END, "")]
    session = await node.open("a", offer("sum"))
    node.platform.suspend("a", OPERATOR)
    node.platform.resume("a", OPERATOR)
    node.platform.detach(session)
    await node.open("a")
    node.platform.deregister("a", OPERATOR)
    assert await seen.next() == [
        (D.ADDED, "a", "session opened"),
        (D.REMOVED, "a", "agent suspended"),
        (D.ADDED, "a", "agent active"),
        (D.REMOVED, "a", "agent lost"),
        (D.ADDED, "a", "session opened"),
        (D.REMOVED, "a", "deregistered"),
    ]


async def test_waiting_agent_goes_on_to_match_and_one_in_transit_does_not() -> None:
    node = Node()
    await node.open("a", offer("sum"))
    seen = node.offers()
    await seen.next()
    for state in (S.WAITING, S.ACTIVE, S.TRANSIT):
        caller = OPERATOR if state is S.ACTIVE else node.itself("a")
        node.platform.modify_agent(AMSAgentDescription("a", state=state), caller)
    assert await seen.next() == [(D.REMOVED, "a", "agent transit")]


async def test_farewell_withdraws_and_a_newer_session_is_no_change() -> None:
    node = Node()
    first = await node.platform.attach(Hello("a", description=offer("sum")), "local")
    seen = node.offers()
    await seen.next()
    again = Hello("a", resume_token=first.resume_token, description=offer("sum"))
    second = await node.platform.attach(again, "local")
    node.platform.detach(first.session)
    node.platform.bye(second.session, deregister=False)
    assert await seen.next() == [(D.REMOVED, "a", "agent left")]


async def test_changes_are_told_by_what_matched_before_and_after() -> None:
    node = Node()
    await node.open("a")
    caller = node.itself("a")
    sums, sings, everything = node.offers(offer("sum")), node.offers(offer("sing")), node.offers()
    for seen in (sums, sings, everything):
        await seen.next()
    node.platform.register_description(offer("sum"), caller)
    node.platform.modify_description(offer("sum", "sing"), caller)
    node.platform.modify_description(offer("sum", "sing"), caller)
    node.platform.modify_description(offer("sing"), caller)
    node.platform.deregister_description(None, caller)
    assert [told[0] for told in await sums.next()] == [D.ADDED, D.CHANGED, D.REMOVED]
    assert [told[0] for told in await sings.next()] == [D.ADDED, D.CHANGED, D.REMOVED]
    assert [told[0] for told in await everything.next()] == [D.ADDED, D.CHANGED, D.CHANGED, D.REMOVED]


async def test_lease_that_ends_is_told_once_and_not_to_who_came_later() -> None:
    node = Node()
    await node.open("a", offer("sum", lease=10))
    seen = node.offers()
    assert await seen.next() == [(D.PRESENT, "a"), (D.SNAPSHOT_END, "")]
    node.clock.advance(6)
    node.platform.renew_description(None, None, node.itself("a"))
    node.clock.advance(6)
    node.platform.keep_house()
    node.clock.advance(4)
    # Before the house is kept: searches find nothing, so nobody may be told of an end who was not told of it.
    late = node.offers()
    assert await late.next() == [(D.SNAPSHOT_END, "")]
    node.platform.keep_house()
    node.platform.keep_house()
    assert await seen.next() == [(D.REMOVED, "a", "lease ended")]
    node.platform.register_description(offer("sum"), node.itself("a"))
    assert await late.next() == [(D.ADDED, "a", "registered")]


async def test_old_lease_ends_before_a_new_entry_begins() -> None:
    node = Node()
    await node.open("a", offer("sum", lease=10))
    seen = node.offers()
    await seen.next()
    node.clock.advance(10)
    node.platform.register_description(offer("sum", lease=5), node.itself("a"))
    assert await seen.next() == [(D.REMOVED, "a", "lease ended"), (D.ADDED, "a", "registered")]


async def test_renewal_by_another_lease_is_a_change_and_by_the_same_is_none() -> None:
    node = Node()
    await node.open("a", offer("sum", lease=10))
    seen = node.platform.watch_descriptions(EVERYTHING)
    await seen.next()
    node.platform.renew_description(None, 10, node.itself("a"))
    node.platform.renew_description("a", 20, node.itself("a"))
    (told,) = await seen.next()
    assert (told.kind, told.cause, told.description.lease_seconds) == (D.CHANGED, "renewed", 20)
    with pytest.raises(Unauthorised):
        node.platform.renew_description("a", 20, OPERATOR)


async def test_removal_names_the_agent_alone() -> None:
    node = Node()
    await node.open("a", offer("sum"))
    seen = node.platform.watch_descriptions(offer(name="a"))
    assert [one.kind for one in await seen.next()] == [D.PRESENT, D.SNAPSHOT_END]
    node.platform.deregister_description(None, node.itself("a"))
    (told,) = await seen.next()
    assert told.description == DFAgentDescription(name="a@local")


async def test_cursor_of_the_other_log_begins_anew() -> None:
    node = Node()
    await node.open("a", offer("sum"))
    agents = node.agents()
    await agents.next()
    assert (await node.offers(cursor=agents.cursor).next())[0] == (D.PRESENT, "a")


async def test_template_over_a_limit_is_refused_also_with_a_cursor() -> None:
    node = Node()
    seen = node.offers()
    await seen.next()
    for cursor in ("", seen.cursor):
        with pytest.raises(UnrecognisedParameterValue, match="the limit is 65,536"):
            node.offers(offer("x" * 70_000), cursor)


async def test_messages_are_no_events() -> None:
    node = Node()
    await node.open("a", offer("sum"))
    agents, offers = node.platform.watch_agents(ANY), node.platform.watch_descriptions(EVERYTHING)
    ends = [(await watch.next())[-1].cursor for watch in (agents, offers)]
    origin = NotingOrigin("a@local")
    for number in range(10):
        node.platform.router.submit(acl("a").SerializeToString(), origin, number)
    assert len(origin.reached) == 10
    node.platform.suspend("a", OPERATOR)
    told = [(await watch.next())[0].cursor for watch in (agents, offers)]
    assert [int(one.rpartition("-")[2]) - int(end.rpartition("-")[2]) for one, end in zip(told, ends, strict=True)] == [
        1,
        1,
    ]
