"""Watching agents and descriptions with the SDK: what is told, and going on over lost connections and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy
from waiting import WAIT, until

from gagent_grpc import (
    Agent,
    AgentEventKind,
    AMSAgentDescription,
    BusLimits,
    BusUnreachable,
    ClientLimits,
    DescriptionEventKind,
    DFAgentDescription,
    InvalidName,
    LifeCycleState,
    Operator,
    PreconditionFailed,
    SearchRepeated,
    ServiceDescription,
    SqliteStore,
    Unauthorised,
)
from gagent_grpc.errors import ResourceExhausted
from gagent_grpc.testing import running_bus

pytestmark = pytest.mark.timeout(60)
QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, connect_timeout=2.0)


class Watcher:
    """Reads a watch in a task, and notes what it tells."""

    def __init__(self, stream: Any) -> None:
        self.events: list[Any] = []
        self._stream = stream
        self._came = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with contextlib.aclosing(self._stream) as stream:
            async for event in stream:
                self.events.append(event)
                self._came.set()

    async def told(self, count: int) -> list[Any]:
        """Wait until so many events came, in all; return them."""
        async with asyncio.timeout(WAIT):
            while len(self.events) < count:
                self._came.clear()
                await self._came.wait()
        return self.events

    async def kinds(self, count: int) -> list[str]:
        return [str(event.kind) for event in await self.told(count)]

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


@pytest.fixture
async def watch() -> AsyncIterator[Callable[[Any], Watcher]]:
    """Return a function that watches a stream until the end of the test."""
    watchers: list[Watcher] = []

    def start(stream: Any) -> Watcher:
        watchers.append(Watcher(stream))
        return watchers[-1]

    yield start
    for one in watchers:
        await one.close()


async def test_agents_are_watched_by_an_agent_and_by_an_operator(bus: Any, agents: Any, watch: Any) -> None:
    alice = await agents("alice")
    async with Operator(bus.address) as operator:
        watchers = [watch(alice.ams.watch()), watch(operator.ams.watch(AMSAgentDescription(name="bob")))]
        assert await watchers[0].kinds(2) == ["present", "snapshot-end"]
        assert await watchers[1].kinds(1) == ["snapshot-end"]
        bob = await agents("bob", ownership="ops")
        await bob.ams.modify("bob", ownership="dev")
        await alice.ams.terminate("bob")
        for watcher, before in zip(watchers, (2, 1), strict=True):
            born, state, modified, dead, *_ = (await watcher.told(before + 4))[before:]
            assert [one.kind for one in (born, state, modified, dead)] == [
                AgentEventKind.BORN,
                AgentEventKind.STATE,
                AgentEventKind.MODIFIED,
                AgentEventKind.DEAD,
            ]
            assert (state.previous_state, state.agent.description.state) == (
                LifeCycleState.INITIATED,
                LifeCycleState.ACTIVE,
            )
            assert (modified.agent.description.ownership, modified.cause) == ("dev", "modified by self")
            assert (dead.agent.name, dead.cause) == ("bob@local", "terminated by the AMS")
            assert born.at.tzinfo is not None


async def test_descriptions_are_watched_by_a_template(bus: Any, agents: Any, watch: Any) -> None:
    alice = await agents("alice", services=["sum"])
    watcher = watch(alice.df.watch("sum"))
    assert await watcher.kinds(2) == ["present", "snapshot-end"]
    bob = await agents("bob", services=["sing"])
    await bob.df.modify("sum")
    await bob.df.modify(DFAgentDescription(services=(ServiceDescription(type="sum"),), protocols=frozenset({"p"})))
    await bob.aclose()
    events = (await watcher.told(5))[2:]
    assert [(str(one.kind), one.name, one.cause) for one in events] == [
        ("added", "bob@local", "modified"),
        ("changed", "bob@local", "modified"),
        ("removed", "bob@local", "agent left"),
    ]


async def test_iteration_goes_on_after_a_lost_connection_and_tells_nothing_twice(
    bus: Any, agents: Any, watch: Any, proxy: Proxy
) -> None:
    bob = await agents("bob", services=["sum"])
    async with Operator(proxy.address, limits=QUICK) as operator:
        of_agents, of_offers = watch(operator.ams.watch()), watch(operator.df.watch())
        await of_agents.told(2)
        await of_offers.told(2)
        proxy.cut(admit=False)
        await bob.ams.suspend("bob")
        await bob.ams.resume("bob")
        proxy.admit()
        assert await of_agents.kinds(4) == ["present", "snapshot-end", "state", "state"]
        assert await of_offers.kinds(4) == ["present", "snapshot-end", "removed", "added"]
        proxy.cut()
        await bob.ams.suspend("bob")
        assert (await of_agents.kinds(5))[4:] == ["state"]
        assert (await of_offers.kinds(5))[4:] == ["removed"]


async def test_agent_goes_on_watching_with_its_next_session(bus: Any, agents: Any, watch: Any, proxy: Proxy) -> None:
    alice = await agents("alice", bus=proxy.address)
    bob = await agents("bob", services=["sum"])
    watcher = watch(alice.df.watch("sum"))
    await watcher.told(2)
    before = bus.platform.ams.get("alice").generation
    proxy.cut()
    await until(lambda: bus.platform.ams.get("alice").generation > before)
    await bob.aclose()
    assert (await watcher.kinds(3))[2:] == ["removed"]


async def test_restart_of_the_bus_begins_with_a_new_snapshot(tmp_path: Path, proxy: Proxy, watch: Any) -> None:
    limits = BusLimits(drain_grace=1.0)
    async with Operator(proxy.address, limits=QUICK) as operator:
        async with running_bus(SqliteStore(tmp_path / "bus.db"), limits=limits) as first:
            proxy.target = first.address
            proxy.cut()
            async with Agent("bob", bus=first.address, services=["sum"]):
                await until(lambda: _answers(operator))
                of_agents, of_offers = watch(operator.ams.watch()), watch(operator.df.watch())
                await of_agents.told(2)
                await of_offers.told(2)
        async with running_bus(SqliteStore(tmp_path / "bus.db"), limits=limits) as second:
            proxy.target = second.address
            events = await of_agents.told(5)
            assert [str(one.kind) for one in events[-2:]] == ["present", "snapshot-end"]
            assert events[-2].agent.description.state is LifeCycleState.UNKNOWN
            assert (await of_offers.kinds(4))[2:] == ["removed", "snapshot-end"]


async def _answers(operator: Operator) -> bool:
    try:
        await operator.ams.search_all()
    except BusUnreachable:
        return False
    return True


async def test_cursor_of_an_event_goes_on_after_it(bus: Any, agents: Any, watch: Any) -> None:
    alice = await agents("alice")
    bob = await agents("bob", services=["sum"])
    first = watch(alice.df.watch())
    await first.told(2)
    await bob.ams.suspend("bob")
    await bob.ams.resume("bob")
    events = await first.told(4)
    again = watch(alice.df.watch(cursor=events[2].cursor))
    assert await again.told(1) == [events[3]]
    assert events[0].cursor == ""


async def test_watch_that_cannot_begin_says_why(buses: Any) -> None:
    bus = await buses(limits=BusLimits(max_watches=1, drain_grace=1.0))
    async with Operator(bus.address) as operator:
        with pytest.raises(InvalidName):
            await anext(operator.ams.watch(AMSAgentDescription(name="no blanks")))
        async with contextlib.aclosing(operator.df.watch()) as first:
            await anext(first)
            with pytest.raises(ResourceExhausted, match="max_watches"):
                await anext(operator.df.watch())
        # It was closed, so there is room.
        await until(lambda: bus.platform._registrations._offers.log.readers == 0)
        async with contextlib.aclosing(operator.df.watch()) as again:
            assert (await anext(again)).kind is DescriptionEventKind.SNAPSHOT_END
    with pytest.raises(PreconditionFailed, match="not open"):
        await anext(operator.df.watch())


async def test_closed_agent_watches_no_more(agents: Any, watch: Any) -> None:
    alice = await agents("alice")
    watcher = watch(alice.df.watch())
    await watcher.told(1)
    await alice.aclose()
    with pytest.raises(PreconditionFailed):
        await watcher.task


async def test_state_of_an_agent_is_changed_by_the_table(agents: Any, inbox: Any) -> None:
    alice, bob = await agents("alice"), await agents("bob", inbox)
    with pytest.raises(Unauthorised, match="only bob itself may"):
        await alice.ams.modify("bob", state=LifeCycleState.WAITING)
    states: list[LifeCycleState] = []
    bob.on_state(lambda state, by: states.append(state))
    described = await bob.ams.modify("bob", state=LifeCycleState.WAITING)
    assert described == AMSAgentDescription("bob@local", None, LifeCycleState.WAITING)
    await alice.send("bob", "inform", "waits")
    await until(lambda: states == [LifeCycleState.WAITING])
    assert inbox.messages == []
    await alice.ams.modify("bob", state=LifeCycleState.ACTIVE)
    assert await inbox.holds(1) == ["waits"]
    with pytest.raises(PreconditionFailed, match="no transition leads to initiated"):
        await alice.ams.modify("bob", state=LifeCycleState.INITIATED)


async def test_platform_is_described(bus: Any, agents: Any) -> None:
    alice = await agents("alice")
    described = await alice.ams.get_description()
    assert (described.name, described.services[0].name) == ("local", "ams@local")
    assert described.services[0].addresses == (bus.address,)


async def test_search_of_one_id_is_made_once(agents: Any) -> None:
    alice = await agents("alice", services=["sum"])
    assert len(await alice.df.search("sum", max_depth=-1, search_id="one")) == 1
    with pytest.raises(SearchRepeated) as raised:
        await alice.df.search("sum", search_id="one")
    assert raised.value.search_id == "one"


# ---- leases ----------------------------------------------------------------------------------------------------------


def leased(seconds: float, *types: str) -> DFAgentDescription:
    return DFAgentDescription(services=tuple(ServiceDescription(type=one) for one in types), lease_seconds=seconds)


def lease_end(bus: Any, name: str) -> float:
    """Return when the lease of an agent ends; 0 for no entry."""
    return float(bus.platform.df.stored(f"{name}@local").lease_end) if bus.platform.df.get(f"{name}@local") else 0.0


async def test_lease_of_an_open_agent_is_renewed_however_it_was_granted(buses: Any, agents: Any, watch: Any) -> None:
    bus = await buses(limits=BusLimits(max_lease=1.5, heartbeat_interval=0.4, drain_grace=1.0))
    alice = await agents("alice", bus=bus.address, description=leased(100, "sum"))
    bob = await agents("bob", bus=bus.address)
    watcher = watch(bob.df.watch("sum"))
    await watcher.told(2)
    assert (await bob.df.register("sum")).lease_seconds == 1.5
    begun = {name: lease_end(bus, name) for name in ("alice", "bob")}
    # The first leases are over, and both are still found.
    await until(lambda: all(lease_end(bus, name) > end + 1.5 for name, end in begun.items()))
    assert await watcher.kinds(3) == ["present", "snapshot-end", "added"]
    await bob.df.deregister()
    assert (await watcher.kinds(4))[3:] == ["removed"]
    assert len(await alice.df.search_all("sum")) == 1


async def test_renewal_by_hand_says_what_is_granted(agents: Any) -> None:
    alice = await agents("alice", description=leased(50, "sum"))
    assert (await alice.df.renew()).lease_seconds == 50
    assert (await alice.df.renew(20)).lease_seconds == 20
    (found,) = await alice.df.search("sum")
    assert found.lease_seconds == 20


async def test_entry_whose_lease_had_ended_is_registered_anew(bus: Any, agents: Any) -> None:
    alice = await agents("alice", description=leased(0.6, "sum"))
    # As after a long sleep of the machine.
    bus.platform.df.withdraw("alice@local")
    await until(lambda: lease_end(bus, "alice"))
    assert len(await alice.df.search_all("sum")) == 1


async def test_lease_is_kept_over_a_reconnect(bus: Any, agents: Any, proxy: Proxy) -> None:
    alice = await agents("alice", bus=proxy.address, description=leased(0.4, "sum"))
    proxy.cut(admit=False)
    # Its lease ends while it is away.
    await until(lambda: not bus.platform.df.get("alice@local"))
    proxy.admit()
    await until(lambda: lease_end(bus, "alice"))
    end = lease_end(bus, "alice")
    await until(lambda: lease_end(bus, "alice") > end + 0.8)
    assert alice.connected


async def test_closed_agent_renews_nothing(bus: Any, agents: Any) -> None:
    alice = await agents("alice", description=leased(0.2, "sum"))
    await until(lambda: lease_end(bus, "alice"))
    await alice.aclose()
    assert not bus.platform.df.get("alice@local")


# ---- by message, and over restarts -----------------------------------------------------------------------------------


async def test_df_is_subscribed_to_by_message_as_any_agent_is(agents: Any) -> None:
    alice = await agents("alice")
    search = '{"action": "search", "description": {"services": [{"type": "sum"}]}}'
    async with alice.subscribe("df", search) as subscription:
        notices = aiter(subscription)
        bob = await agents("bob", services=["sum"])
        await bob.aclose()
        async with asyncio.timeout(WAIT):
            told = [json.loads((await anext(notices)).content)["result"] for _ in range(3)]
    assert [[one["name"] for one in result] for result in told] == [[], ["bob@local"], ["bob@local"]]
    assert ["services" in one for result in told for one in result] == [True, False]
    # It was cancelled with the block.
    answer = await alice.request("df", search, performative="request")
    assert json.loads(str(answer.content)) == {"result": []}


@pytest.mark.parametrize("state", [LifeCycleState.WAITING, LifeCycleState.TRANSIT, LifeCycleState.SUSPENDED])
async def test_state_outlives_a_restart_and_mail_goes_on_waiting(
    tmp_path: Path, inbox: Any, state: LifeCycleState
) -> None:
    limits = BusLimits(drain_grace=1.0)
    async with (
        running_bus(SqliteStore(tmp_path / "bus.db"), limits=limits) as bus,
        Agent("bob", bus=bus.address) as bob,
        Agent("alice", bus=bus.address) as alice,
    ):
        await bob.ams.modify("bob", state=state)
        await alice.send("bob", "inform", "waits")
    async with running_bus(SqliteStore(tmp_path / "bus.db"), limits=limits) as bus, Operator(bus.address) as operator:
        bob = Agent("bob", bus=bus.address)
        bob.on()(inbox)
        async with bob:
            (entry,) = await operator.ams.search(AMSAgentDescription(name="bob"))
            assert (entry.description.state, entry.mailbox_messages) == (state, 1)
            assert bob.state is state
            assert inbox.messages == []
            await operator.ams.modify("bob", state=LifeCycleState.ACTIVE)
            assert await inbox.holds(1) == ["waits"]
