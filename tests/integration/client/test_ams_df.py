"""AMS and DF as an agent, and as nobody in particular, calls them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from proxy import Proxy
from waiting import until

from gagent_grpc import (
    Agent,
    AgentAlreadyRegistered,
    AgentNotRegistered,
    AMSAgentDescription,
    BusUnreachable,
    DFAgentDescription,
    InvalidArgument,
    InvalidName,
    LifeCycleState,
    MissingParameter,
    Operator,
    PreconditionFailed,
    Property,
    ServiceDescription,
    Unauthorised,
    UnrecognisedParameterValue,
)
from gagent_grpc.testing import running_bus

pytestmark = pytest.mark.timeout(30)


async def test_what_an_agent_offers_is_found_while_it_is_there(agents: Any) -> None:
    weather = ServiceDescription(name="w", type="weather", properties=(Property("city", "Brno"),))
    bob = await agents("bob", services=["summarise", weather])
    alice = await agents("alice")
    (found,) = await alice.df.search("weather")
    assert found.name == "bob@local"
    assert found.services == (ServiceDescription(name="summarise", type="summarise"), weather)
    assert await alice.df.search(ServiceDescription(properties=(Property("city", "Praha"),))) == []
    assert await alice.df.search_all(DFAgentDescription(name="bob")) == [found]
    await bob.aclose()
    assert await alice.df.search_all() == []


async def test_a_search_returns_as_many_as_are_asked_for_oldest_first(agents: Any) -> None:
    for name in ("c", "a", "b"):
        await agents(name, services=["x"])
    alice = await agents("alice")
    assert [one.name for one in await alice.df.search("x")] == ["c@local"]
    assert [one.name for one in await alice.df.search("x", max_results=2)] == ["c@local", "a@local"]
    assert [one.name for one in await alice.df.search_all("x")] == ["c@local", "a@local", "b@local"]
    with pytest.raises(UnrecognisedParameterValue):
        await alice.df.search("x", max_results=0)
    with pytest.raises(UnrecognisedParameterValue):
        await alice.ams.search(max_results=0)


async def test_a_df_entry_is_registered_and_deregistered(agents: Any) -> None:
    alice, _ = await agents("alice"), await agents("bob")
    with pytest.raises(AgentNotRegistered) as missing:
        await alice.df.deregister()
    assert missing.value.where == "DF"
    entry = await alice.df.register("x")
    assert (entry.name, entry.services) == ("alice@local", (ServiceDescription(name="x", type="x"),))
    with pytest.raises(AgentAlreadyRegistered) as taken:
        await alice.df.register("y")
    assert taken.value.where == "DF"
    with pytest.raises(Unauthorised):
        await alice.df.register(DFAgentDescription(name="bob", services=(ServiceDescription(type="x"),)))
    await alice.df.deregister()
    with pytest.raises(MissingParameter) as absent:
        await alice.df.register(ServiceDescription(name="no type"))
    assert absent.value.parameter == "type"


async def test_offering_replaces_what_was_offered(agents: Any) -> None:
    alice = await agents("alice", services=["x"])
    await alice.offer(["y"])
    assert await alice.df.search("x") == []
    assert [one.name for one in await alice.df.search("y")] == ["alice@local"]
    await alice.offer([])
    assert await alice.df.search_all() == []
    await alice.offer(["z"])
    assert len(await alice.df.search("z")) == 1


async def test_an_offer_that_is_refused_leaves_what_was_offered(bus: Any, agents: Any, proxy: Proxy) -> None:
    bob = await agents("bob")
    alice = await agents("alice", services=["x"], bus=proxy.address)
    with pytest.raises(MissingParameter) as absent:
        await alice.offer(["y", ServiceDescription(name="no type")])
    assert absent.value.parameter == "type"
    assert len(await bob.df.search("x")) == 1
    with pytest.raises(UnrecognisedParameterValue):
        await alice.offer(["y" * 100_000])
    assert len(await bob.df.search("x")) == 1
    # What was refused must not be what a reconnect says, or that is refused as well.
    await _reconnect(bus, alice, proxy)
    assert len(await bob.df.search("x")) == 1


@pytest.mark.parametrize("found_again", [False, True])
async def test_an_offer_whose_connection_is_cut_is_installed_with_the_next_one(
    bus: Any, agents: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, found_again: bool
) -> None:
    bob = await agents("bob")
    alice = await agents("alice", services=["x"], bus=proxy.address)
    register = alice.df.register

    async def cut(description: Any) -> Any:
        if found_again:
            await _reconnect(bus, alice, proxy)
        else:
            proxy.cut()
        return await register(description)

    monkeypatch.setattr(alice.df, "register", cut)
    with contextlib.suppress(*[] if found_again else [BusUnreachable]):
        await alice.offer(["y"])
    await until(lambda: bob.df.search("y"))
    assert await bob.df.search("x") == []
    monkeypatch.undo()
    await alice.offer(["z"])
    assert len(await bob.df.search("z")) == 1


async def _reconnect(bus: Any, agent: Agent, proxy: Proxy) -> None:
    """Cut the connection of ``agent`` and wait until it has another one."""
    before = bus.platform.ams.get(agent.name).generation
    proxy.cut()
    await until(lambda: bus.platform.ams.get(agent.name).generation > before and agent.connected)


async def test_a_name_is_registered_without_a_session_and_freed(agents: Any) -> None:
    alice = await agents("alice")
    assert await alice.ams.register("later") is False
    assert await alice.ams.register("later") is True
    (entry,) = await alice.ams.search(AMSAgentDescription(name="later"))
    assert (entry.name, entry.connected, entry.description.state) == ("later@local", False, LifeCycleState.INITIATED)
    await alice.send("later", "inform", "waits")
    (entry,) = await alice.ams.search(AMSAgentDescription(name="later"))
    assert entry.mailbox_messages == 1
    await alice.ams.deregister("later")
    with pytest.raises(AgentNotRegistered, match="later") as raised:
        await alice.ams.deregister("later")
    assert (raised.value.name, raised.value.where) == ("later", "AMS")
    with pytest.raises(InvalidName):
        await alice.ams.register("no blanks")
    with pytest.raises(Unauthorised):
        await alice.ams.register("ams")
    with pytest.raises(AgentAlreadyRegistered):
        await alice.ams.register("alice")


async def test_states_are_changed(agents: Any) -> None:
    alice = await agents("alice", ownership="us", ephemeral=True)
    await agents("bob")
    assert await alice.ams.suspend("bob") is LifeCycleState.SUSPENDED
    assert await alice.ams.resume("bob") is LifeCycleState.ACTIVE
    await alice.ams.register("early")
    await alice.ams.terminate("early")
    with pytest.raises(AgentNotRegistered):
        await alice.ams.suspend("early")
    assert [one.name for one in await alice.ams.search_all()] == ["bob@local"]
    (me,) = await alice.ams.search(AMSAgentDescription(name="alice"))
    assert (me.ephemeral, me.description.ownership, me.connected) == (True, "us", True)


async def test_an_operator_calls_in_the_name_of_nobody(bus: Any, agents: Any) -> None:
    await agents("alice", services=["x"])
    async with Operator(f"127.0.0.1:1,{bus.address}") as operator:
        assert operator.endpoint == bus.address
        assert [one.name for one in await operator.ams.search_all()] == ["alice@local"]
        assert [one.name for one in await operator.df.search("x")] == ["alice@local"]
        assert await operator.ams.suspend("alice") is LifeCycleState.SUSPENDED
        with pytest.raises(Unauthorised):
            await operator.df.register("x")
    with pytest.raises(PreconditionFailed, match="not open"):
        await operator.ams.search_all()
    with pytest.raises(BusUnreachable, match=r"No bus at 127.0.0.1:1\. Start one"):
        async with Operator("127.0.0.1:1"):
            pass


async def test_a_bus_that_is_gone_says_so() -> None:
    async with running_bus() as bus:
        operator = Operator(bus.address, timeout=5)
        await operator.__aenter__()
    with pytest.raises(BusUnreachable):
        await operator.ams.search_all()
    await operator.__aexit__(None, None, None)


async def test_a_value_that_cannot_travel_is_an_argument_that_is_refused(agents: Any) -> None:
    alice = await agents("alice")
    bad = "\ud800"
    for call in (
        alice.ams.suspend(bad),
        alice.ams.resume(bad),
        alice.ams.terminate(bad),
        alice.ams.register("carol", ownership=bad),
        alice.ams.modify(alice.name, ownership=bad),
        alice.ams.search(AMSAgentDescription(ownership=bad)),
        alice.df.register(DFAgentDescription(ontologies=(bad,))),
        alice.df.search(bad),
        alice.request("alice", "?", headers={bad: "1"}),
    ):
        with pytest.raises(InvalidArgument):
            await call
