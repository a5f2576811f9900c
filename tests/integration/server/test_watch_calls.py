"""Streams that watch over loopback: what is written, cursors, readers that are slow or gone, and the drain."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from raw import acl
from waiting import WAIT, until

from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import (
    agent_pb2,
    ams_service_pb2,
    ams_service_pb2_grpc,
    df_service_pb2,
    df_service_pb2_grpc,
)
from gagent_grpc.server.app import Bus

pytestmark = pytest.mark.timeout(60)
STATUS = grpc.StatusCode


@pytest.fixture
def ams(channel: grpc.aio.Channel) -> Any:
    return ams_service_pb2_grpc.AmsServiceStub(channel)


@pytest.fixture
def df(channel: grpc.aio.Channel) -> Any:
    return df_service_pb2_grpc.DfServiceStub(channel)


def named(name: str, **changes: Any) -> agent_pb2.AmsAgentDescription:
    return agent_pb2.AmsAgentDescription(name=agent_pb2.AgentIdentifier(name=name), **changes)


def offer(*types: str, name: str = "", lease: float | None = None) -> agent_pb2.DfAgentDescription:
    services = [agent_pb2.ServiceDescription(service_type=one, name=name or None) for one in types]
    return agent_pb2.DfAgentDescription(services=services, lease_seconds=lease)


def token(session: Any) -> tuple[tuple[str, str], ...]:
    return (("gagent-session", session.welcome.resume_token),)


async def read(call: Any, count: int) -> list[Any]:
    """Read so many responses."""
    async with asyncio.timeout(WAIT):
        return [await call.read() for _ in range(count)]


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """Read to the end of a stream and return its status."""
    async with asyncio.timeout(WAIT):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await call.code(), await call.details()


async def test_agents_are_told_as_a_snapshot_and_then_change_by_change(bus: Bus, ams: Any, connect: Any) -> None:
    await connect(bus, "alice", ownership="ops")
    call = ams.WatchAgents(ams_service_pb2.WatchAgentsRequest())
    present, end = await read(call, 2)
    assert (present.kind, present.description.name.name, present.cursor) == (
        ams_service_pb2.AGENT_EVENT_KIND_PRESENT,
        "alice@local",
        "",
    )
    assert (present.description.ownership, present.description.connected) == ("ops", True)
    assert end.kind == ams_service_pb2.AGENT_EVENT_KIND_SNAPSHOT_END
    assert not end.HasField("description")
    await ams.SuspendAgent(ams_service_pb2.SuspendAgentRequest(agent="alice"))
    await ams.ModifyAgent(ams_service_pb2.ModifyAgentRequest(description=named("alice", ownership="dev")))
    await ams.TerminateAgent(ams_service_pb2.TerminateAgentRequest(agent="alice"))
    state, modified, dead = await read(call, 3)
    assert [one.kind for one in (state, modified, dead)] == [
        ams_service_pb2.AGENT_EVENT_KIND_STATE,
        ams_service_pb2.AGENT_EVENT_KIND_MODIFIED,
        ams_service_pb2.AGENT_EVENT_KIND_DEAD,
    ]
    assert (state.previous_state, state.description.state) == (
        agent_pb2.AGENT_STATE_ACTIVE,
        agent_pb2.AGENT_STATE_SUSPENDED,
    )
    assert state.cause == "suspended by ams"
    assert modified.description.ownership == "dev"
    assert (dead.description.name.name, dead.cause) == ("alice@local", "terminated by the AMS")
    assert present.at.seconds <= dead.at.seconds
    again = ams.WatchAgents(ams_service_pb2.WatchAgentsRequest(cursor=state.cursor))
    assert await read(again, 2) == [modified, dead]


async def test_state_is_changed_by_the_table_and_mail_waits(bus: Bus, ams: Any, connect: Any) -> None:
    alice, bob = await connect(bus, "alice"), await connect(bus, "bob")

    def modify(state: str, who: Any = None, agent: str = "bob") -> Any:
        request = ams_service_pb2.ModifyAgentRequest(
            description=named(agent, state=agent_pb2.AgentState.Value(f"AGENT_STATE_{state}"))
        )
        return ams.ModifyAgent(request, metadata=token(who) if who is not None else None)

    for state in ("WAITING", "TRANSIT"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await modify(state, alice)
        assert caught.value.code() == STATUS.PERMISSION_DENIED
        answer = await modify(state, bob)
        assert answer.description.state == agent_pb2.AgentState.Value(f"AGENT_STATE_{state}")
        await alice.send(acl("bob"))
        number = 1 if state == "WAITING" else 2
        assert await alice.receipted(number) == []
        await bob.in_step()
        assert len(bob.deliveries) == number - 1
        await modify("ACTIVE")
        await bob.delivered(number)
    for agent, code in (("nobody", STATUS.NOT_FOUND), ("ams", STATUS.PERMISSION_DENIED), ("", STATUS.INVALID_ARGUMENT)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await modify("ACTIVE", agent=agent)
        assert caught.value.code() == code
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await modify("UNKNOWN")
    assert caught.value.code() == STATUS.FAILED_PRECONDITION


async def test_platform_describes_itself_with_the_address_of_the_bus(bus: Bus, ams: Any) -> None:
    described = (await ams.GetDescription(ams_service_pb2.GetDescriptionRequest())).description
    assert described.name == "local"
    assert {one.service_type: list(one.addresses) for one in described.services} == {
        "fipa.agent-management.ams": [bus.address],
        "fipa.agent-management.df": [bus.address],
        "fipa.mts": [bus.address],
    }


async def test_descriptions_are_told_by_the_rules_of_a_search(bus: Bus, df: Any, connect: Any) -> None:
    await connect(bus, "a", description=offer("sum"))
    call = df.WatchDescriptions(df_service_pb2.WatchDescriptionsRequest(template=offer("sum")))
    kinds = df_service_pb2.DescriptionEventKind
    present, end = await read(call, 2)
    assert (present.kind, present.description.name.name) == (kinds.Value("DESCRIPTION_EVENT_KIND_PRESENT"), "a@local")
    b = await connect(bus, "b", description=offer("sum"))
    request = df_service_pb2.ModifyDescriptionRequest(description=offer("sum", "sing"))
    await df.ModifyDescription(request, metadata=token(b))
    await connect(bus, "c", description=offer("sing"))
    await b.vanish()
    added, changed, removed = await read(call, 3)
    assert [
        (kinds.Name(one.kind).rpartition("_")[2], one.description.name.name) for one in (added, changed, removed)
    ] == [
        ("ADDED", "b@local"),
        ("CHANGED", "b@local"),
        ("REMOVED", "b@local"),
    ]
    assert [service.service_type for service in changed.description.services] == ["sum", "sing"]
    assert not removed.description.services
    assert removed.cause == "agent lost"
    again = df.WatchDescriptions(df_service_pb2.WatchDescriptionsRequest(template=offer("sum"), cursor=end.cursor))
    assert await read(again, 3) == [added, changed, removed]


async def test_lease_is_renewed_and_told(bus: Bus, df: Any, connect: Any) -> None:
    a = await connect(bus, "a", description=offer("sum", lease=100))
    assert a.welcome.description.lease_seconds == 100

    def renew(lease: float | None = None, agent: str = "", who: Any = a) -> Any:
        request = df_service_pb2.RenewDescriptionRequest(agent=agent, lease_seconds=lease)
        return df.RenewDescription(request, metadata=token(who) if who is not None else None)

    assert (await renew()).description.lease_seconds == 100
    assert (await renew(50, "a")).description.lease_seconds == 50
    b = await connect(bus, "b")
    refusals = [
        (renew(who=None), STATUS.PERMISSION_DENIED),
        (renew(agent="a", who=b), STATUS.PERMISSION_DENIED),
        (renew(who=b), STATUS.NOT_FOUND),
        (renew(0.0), STATUS.INVALID_ARGUMENT),
    ]
    for call, code in refusals:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == code


async def test_search_of_one_id_is_made_once(df: Any) -> None:
    request = df_service_pb2.SearchDescriptionsRequest(search_id="s", max_depth=-1)
    await df.SearchDescriptions(request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await df.SearchDescriptions(request)
    assert caught.value.code() == STATUS.FAILED_PRECONDITION
    await df.SearchDescriptions(df_service_pb2.SearchDescriptionsRequest(search_id="t", max_depth=5))


async def test_idle_stream_is_heard_at_once_and_bad_ones_are_refused(ams: Any, df: Any) -> None:
    begun = ams.WatchAgents(ams_service_pb2.WatchAgentsRequest())
    (end,) = await read(begun, 1)
    resumed = ams.WatchAgents(ams_service_pb2.WatchAgentsRequest(cursor=end.cursor))
    async with asyncio.timeout(WAIT):
        await resumed.wait_for_connection()
    bad = [
        ams.WatchAgents(ams_service_pb2.WatchAgentsRequest(template=named("a b"))),
        df.WatchDescriptions(df_service_pb2.WatchDescriptionsRequest(template=offer("x" * 70_000))),
    ]
    for call in bad:
        assert (await ended(call))[0] == STATUS.INVALID_ARGUMENT
    stale = ams.WatchAgents(ams_service_pb2.WatchAgentsRequest(), metadata=(("gagent-session", "nobody's"),))
    assert (await ended(stale))[0] == STATUS.UNAUTHENTICATED


async def test_drain_ends_streams_well_and_begins_none(bus: Bus, ams: Any, df: Any, connect: Any) -> None:
    alice = await connect(bus, "alice", description=offer("sum"))
    agents = ams.WatchAgents(ams_service_pb2.WatchAgentsRequest())
    descriptions = df.WatchDescriptions(df_service_pb2.WatchDescriptionsRequest())
    await read(agents, 2)
    await read(descriptions, 2)
    draining = asyncio.create_task(bus.drain())
    await alice.end()
    # They hear of those that leave before them.
    assert (await read(agents, 1))[0].description.state == agent_pb2.AGENT_STATE_UNKNOWN
    assert await ended(agents) == (STATUS.OK, "")
    assert await ended(descriptions) == (STATUS.OK, "")
    await draining


async def test_client_that_is_gone_leaves_nothing_behind(bus: Bus, ams: Any, df: Any) -> None:
    registrations = bus.platform._registrations
    logs = (registrations._events.log, registrations._offers.log)
    calls = [ams.WatchAgents(ams_service_pb2.WatchAgentsRequest()) for _ in range(3)]
    calls += [df.WatchDescriptions(df_service_pb2.WatchDescriptionsRequest()) for _ in range(3)]
    for call in calls:
        await read(call, 1)
    assert [log.readers for log in logs] == [3, 3]
    for call in calls:
        call.cancel()
    await until(lambda: [log.readers for log in logs] == [0, 0])


async def test_streams_are_bounded(buses: Any, channels: Any) -> None:
    bus = await buses(limits=BusLimits(max_watches=1, drain_grace=1.0))
    ams = ams_service_pb2_grpc.AmsServiceStub(channels(bus))
    first = ams.WatchAgents(ams_service_pb2.WatchAgentsRequest())
    await read(first, 1)
    code, text = await ended(ams.WatchAgents(ams_service_pb2.WatchAgentsRequest()))
    assert code == STATUS.RESOURCE_EXHAUSTED
    assert "max_watches" in text


async def test_neither_one_connection_nor_one_agent_can_have_all_the_streams(
    buses: Any, channels: Any, connect: Any
) -> None:
    bus = await buses(limits=BusLimits(max_watches=8, drain_grace=1.0))
    alice, bob = await connect(bus, "alice"), await connect(bus, "bob")
    request = df_service_pb2.WatchDescriptionsRequest()
    here, there = (df_service_pb2_grpc.DfServiceStub(channels(bus)) for _ in range(2))
    streams = [here.WatchDescriptions(request), here.WatchDescriptions(request, metadata=token(alice))]
    for stream in streams:
        await read(stream, 1)
    # Another agent on the connection is no other client.
    code, text = await ended(here.WatchDescriptions(request, metadata=token(bob)))
    assert code == STATUS.RESOURCE_EXHAUSTED
    assert "connection" in text
    assert "has 2" in text
    assert "max_watches" in text
    # Another connection of the agent has what is left to that.
    streams.append(there.WatchDescriptions(request, metadata=token(alice)))
    await read(streams[-1], 1)
    code, text = await ended(there.WatchDescriptions(request, metadata=token(alice)))
    assert code == STATUS.RESOURCE_EXHAUSTED
    assert "alice@local has 2" in text
    streams.append(there.WatchDescriptions(request, metadata=token(bob)))
    await read(streams[-1], 1)
    # Agents are watched by as many again.
    agents = ams_service_pb2_grpc.AmsServiceStub(channels(bus)).WatchAgents(ams_service_pb2.WatchAgentsRequest())
    await read(agents, 1)


async def test_reader_that_is_too_slow_is_ended_and_costs_nobody_else(buses: Any, channels: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(watch_events=20, drain_grace=1.0))
    slow_df, df = df_service_pb2_grpc.DfServiceStub(channels(bus)), df_service_pb2_grpc.DfServiceStub(channels(bus))
    request = df_service_pb2.WatchDescriptionsRequest()
    slow, quick = slow_df.WatchDescriptions(request), df.WatchDescriptions(request)
    (end,) = await read(slow, 1)
    await read(quick, 1)
    a = await connect(bus, "a", description=offer("sum"))
    await read(quick, 1)
    # More than the transport takes without a reader.
    for number in range(250):
        entry = offer("sum", name=f"{number}" + "x" * 60_000)
        await df.ModifyDescription(df_service_pb2.ModifyDescriptionRequest(description=entry), metadata=token(a))
        ((told),) = await read(quick, 1)
        assert told.description.services[0].name.startswith(f"{number}x")
    code, text = await ended(slow)
    assert code == STATUS.RESOURCE_EXHAUSTED
    assert "resume with the last cursor" in text
    again = df.WatchDescriptions(df_service_pb2.WatchDescriptionsRequest(cursor=end.cursor))
    present, end = await read(again, 2)
    assert present.kind == df_service_pb2.DESCRIPTION_EVENT_KIND_PRESENT
    assert end.kind == df_service_pb2.DESCRIPTION_EVENT_KIND_SNAPSHOT_END


async def test_reader_that_reads_nothing_is_ended(buses: Any, channels: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(write_timeout=0.3, drain_grace=1.0))
    df = df_service_pb2_grpc.DfServiceStub(channels(bus))
    a = await connect(bus, "a", description=offer("sum"))
    stuck = df_service_pb2_grpc.DfServiceStub(channels(bus)).WatchDescriptions(
        df_service_pb2.WatchDescriptionsRequest()
    )
    await read(stuck, 2)
    log = bus.platform._registrations._offers.log
    number = 0
    while log.readers:
        number += 1
        entry = offer("sum", name=f"{number}" + "x" * 60_000)
        await df.ModifyDescription(df_service_pb2.ModifyDescriptionRequest(description=entry), metadata=token(a))
        assert number < 5_000
    assert (await ended(stuck))[0] in {STATUS.RESOURCE_EXHAUSTED, STATUS.CANCELLED}
