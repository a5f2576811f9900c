"""The calls of AMS and DF over loopback: what they answer, who may do what, and the statuses with their details."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from raw import acl

from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import (
    agent_pb2,
    ams_service_pb2,
    ams_service_pb2_grpc,
    df_service_pb2,
    df_service_pb2_grpc,
)
from gagent_grpc.server.app import Bus

STATUS = grpc.StatusCode


@pytest.fixture
def ams(channel: grpc.aio.Channel) -> Any:
    return ams_service_pb2_grpc.AmsServiceStub(channel)


@pytest.fixture
def df(channel: grpc.aio.Channel) -> Any:
    return df_service_pb2_grpc.DfServiceStub(channel)


def described(name: str, ownership: str | None = None, state: int = 0) -> agent_pb2.AmsAgentDescription:
    made = agent_pb2.AmsAgentDescription(ownership=ownership, state=state)  # type: ignore[arg-type]  # [arg-type]: a number.
    if name:
        made.name.name = name
    return made


def offer(*types: str, name: str = "", lease: float | None = None) -> agent_pb2.DfAgentDescription:
    services = [agent_pb2.ServiceDescription(service_type=one) for one in types]
    made = agent_pb2.DfAgentDescription(services=services, lease_seconds=lease)
    if name:
        made.name.name = name
    return made


def token(session: Any) -> tuple[tuple[str, str], ...]:
    return (("gagent-session", session.welcome.resume_token),)


async def refused(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str], str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = rpc_status.from_call(caught.value)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "gagent.v1"
    return caught.value.code(), info.reason, dict(info.metadata), caught.value.details() or ""


# ---- AMS -------------------------------------------------------------------------------------------------------------


async def test_registered_agent_has_a_mailbox_before_its_first_session(bus: Bus, ams: Any, connect: Any) -> None:
    answer = await ams.RegisterAgent(ams_service_pb2.RegisterAgentRequest(description=described("bob", "ops")))
    assert answer.description.name.name == "bob@local"
    assert (answer.description.ownership, answer.description.state) == ("ops", agent_pb2.AGENT_STATE_INITIATED)
    assert not answer.existed
    alice = await connect(bus, "alice")
    await alice.send(acl("bob"))
    assert await alice.receipted(1) == []
    found = await ams.SearchAgents(ams_service_pb2.SearchAgentsRequest(template=described("bob")))
    assert (found.descriptions[0].mailbox_messages, found.descriptions[0].connected) == (1, False)
    bob = await connect(bus, "bob")
    await bob.delivered(1)


async def test_name_that_is_taken_is_already_exists_with_the_reason(bus: Bus, ams: Any, connect: Any) -> None:
    await connect(bus, "bob")
    request = ams_service_pb2.RegisterAgentRequest(description=described("bob"))
    code, reason, metadata, text = await refused(ams.RegisterAgent(request))
    assert (code, reason) == (STATUS.ALREADY_EXISTS, "AGENT_ALREADY_REGISTERED")
    assert metadata["name"] == "bob"
    assert "a live session holds the name" in text


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("", STATUS.INVALID_ARGUMENT, "MISSING_PARAMETER"),
        ("a b", STATUS.INVALID_ARGUMENT, "INVALID_NAME"),
        ("bob@elsewhere", STATUS.INVALID_ARGUMENT, "INVALID_NAME"),
        ("ams", STATUS.PERMISSION_DENIED, "UNAUTHORISED"),
    ],
)
async def test_bad_name_is_not_registered(ams: Any, name: str, code: grpc.StatusCode, reason: str) -> None:
    request = ams_service_pb2.RegisterAgentRequest(description=described(name))
    assert (await refused(ams.RegisterAgent(request)))[:2] == (code, reason)


async def test_search_follows_fipa_in_its_template_and_its_limits(bus: Bus, ams: Any, connect: Any) -> None:
    for name in ("b", "a", "c"):
        await connect(bus, name, ownership="ops" if name != "c" else "dev")
    await connect(bus, "cli-1", ephemeral=True)

    async def search(template: Any = None, most: int | None = None) -> list[str]:
        request = ams_service_pb2.SearchAgentsRequest(template=template, max_results=most)
        return [one.name.name for one in (await ams.SearchAgents(request)).descriptions]

    assert await search() == ["b@local"]
    assert await search(most=-1) == ["b@local", "a@local", "c@local"]
    assert await search(most=2) == ["b@local", "a@local"]
    assert await search(described("", "dev"), -1) == ["c@local"]
    assert await search(described("", state=agent_pb2.AGENT_STATE_UNKNOWN), -1) == []
    assert await search(described("cli-1")) == ["cli-1@local"]
    assert await search(described("a@local")) == ["a@local"]
    assert await search(described("nobody")) == []
    request = ams_service_pb2.SearchAgentsRequest(max_results=0)
    assert (await refused(ams.SearchAgents(request)))[0] == STATUS.INVALID_ARGUMENT
    request = ams_service_pb2.SearchAgentsRequest(template=described("", state=99))
    assert (await refused(ams.SearchAgents(request)))[0] == STATUS.INVALID_ARGUMENT


async def test_life_cycle_calls_follow_the_states(bus: Bus, ams: Any, connect: Any) -> None:
    def suspend(name: str) -> Any:
        return ams.SuspendAgent(ams_service_pb2.SuspendAgentRequest(agent=name))

    def resume(name: str) -> Any:
        return ams.ResumeAgent(ams_service_pb2.ResumeAgentRequest(agent=name))

    await ams.RegisterAgent(ams_service_pb2.RegisterAgentRequest(description=described("fresh")))
    assert (await refused(suspend("fresh")))[0] == STATUS.FAILED_PRECONDITION
    assert (await refused(resume("fresh")))[0] == STATUS.FAILED_PRECONDITION
    assert (await refused(suspend("nobody")))[0] == STATUS.NOT_FOUND
    assert (await refused(suspend("")))[0] == STATUS.INVALID_ARGUMENT
    await connect(bus, "bob")
    assert (await resume("bob")).state == agent_pb2.AGENT_STATE_ACTIVE
    assert (await suspend("bob")).state == agent_pb2.AGENT_STATE_SUSPENDED
    assert (await suspend("bob@local")).state == agent_pb2.AGENT_STATE_SUSPENDED
    assert (await resume("bob")).state == agent_pb2.AGENT_STATE_ACTIVE


async def test_deregistered_name_is_free_and_unknown_ones_are_not_found(bus: Bus, ams: Any, connect: Any) -> None:
    bob = await connect(bus, "bob", description=offer("sum"))
    await ams.DeregisterAgent(ams_service_pb2.DeregisterAgentRequest(agent="bob"))
    assert (await bob.end())[0] == STATUS.FAILED_PRECONDITION
    assert bus.platform.df.get("bob@local") is None
    code, reason, _, _ = await refused(ams.DeregisterAgent(ams_service_pb2.DeregisterAgentRequest(agent="bob")))
    assert (code, reason) == (STATUS.NOT_FOUND, "AGENT_NOT_REGISTERED")
    code, _, _, _ = await refused(ams.TerminateAgent(ams_service_pb2.TerminateAgentRequest(agent="bob")))
    assert code == STATUS.NOT_FOUND


@pytest.mark.parametrize("name", ["ams", "df", "df@local"])
async def test_platforms_own_agents_are_governed_by_nobody(ams: Any, name: str) -> None:
    calls = [
        ams.TerminateAgent(ams_service_pb2.TerminateAgentRequest(agent=name)),
        ams.DeregisterAgent(ams_service_pb2.DeregisterAgentRequest(agent=name)),
        ams.SuspendAgent(ams_service_pb2.SuspendAgentRequest(agent=name)),
        ams.ResumeAgent(ams_service_pb2.ResumeAgentRequest(agent=name)),
    ]
    for call in calls:
        code, reason, _, text = await refused(call)
        assert (code, reason) == (STATUS.PERMISSION_DENIED, "UNAUTHORISED")
        assert "reserved" in text


# ---- DF --------------------------------------------------------------------------------------------------------------


async def test_agent_registers_its_own_offer_and_nobody_elses(bus: Bus, df: Any, connect: Any) -> None:
    alice = await connect(bus, "alice")
    bob = await connect(bus, "bob")

    def register(description: Any, who: Any = None) -> Any:
        request = df_service_pb2.RegisterDescriptionRequest(description=description)
        return df.RegisterDescription(request, metadata=token(who) if who is not None else None)

    answer = await register(offer("sum", lease=30), alice)
    assert answer.description.name.name == "alice@local"
    assert (answer.description.services[0].name, answer.description.lease_seconds) == ("sum", 30)
    code, reason, _, _ = await refused(register(offer("sum"), alice))
    assert (code, reason) == (STATUS.ALREADY_EXISTS, "AGENT_ALREADY_REGISTERED")
    assert (await refused(register(offer("sum", name="alice"), bob)))[0] == STATUS.PERMISSION_DENIED
    assert (await refused(register(offer("sum", name="bob"))))[0] == STATUS.PERMISSION_DENIED
    assert (await refused(register(offer("sum", name="nobody"), bob)))[0] == STATUS.NOT_FOUND
    nameless = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(name="x")])
    assert (await refused(register(nameless, bob)))[:2] == (STATUS.INVALID_ARGUMENT, "MISSING_PARAMETER")

    def deregister(agent: str, who: Any) -> Any:
        return df.DeregisterDescription(df_service_pb2.DeregisterDescriptionRequest(agent=agent), metadata=token(who))

    assert (await refused(deregister("alice", bob)))[0] == STATUS.PERMISSION_DENIED
    assert (await refused(deregister("", bob)))[0] == STATUS.NOT_FOUND
    await deregister("", alice)
    await register(offer("sum"), alice)


async def test_search_finds_who_is_there_and_not_suspended(bus: Bus, df: Any, ams: Any, connect: Any) -> None:
    agents = {name: await connect(bus, name, description=offer("sum", name)) for name in ("a", "b", "c")}

    async def search(template: Any = None, most: int | None = -1) -> list[str]:
        request = df_service_pb2.SearchDescriptionsRequest(template=template, max_results=most)
        return [one.name.name for one in (await df.SearchDescriptions(request)).descriptions]

    assert await search(offer("sum")) == ["a@local", "b@local", "c@local"]
    assert await search(offer("sum"), None) == ["a@local"]
    assert await search(offer("b", "sum")) == ["b@local"]
    assert await search(offer(name="c")) == ["c@local"]
    assert await search() == ["a@local", "b@local", "c@local"]
    await ams.SuspendAgent(ams_service_pb2.SuspendAgentRequest(agent="a"))
    await agents["b"].leave()
    assert await search(offer("sum")) == ["c@local"]
    await ams.ResumeAgent(ams_service_pb2.ResumeAgentRequest(agent="a"))
    assert await search(offer("sum")) == ["a@local", "c@local"]
    request = df_service_pb2.SearchDescriptionsRequest(max_results=0)
    assert (await refused(df.SearchDescriptions(request)))[0] == STATUS.INVALID_ARGUMENT


async def test_description_beyond_all_measure_is_refused_before_it_is_read(df: Any, bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    huge = offer(*["x" * 30] * 50_000)
    request = df_service_pb2.RegisterDescriptionRequest(description=huge)
    code, _, _, text = await refused(df.RegisterDescription(request, metadata=token(alice)))
    assert code == STATUS.INVALID_ARGUMENT
    assert "the limit is 300,000" in text


async def test_bytes_that_are_no_request_say_nothing_of_what_is_inside(channel: grpc.aio.Channel) -> None:
    search = channel.unary_unary("/gagent.v1.AmsService/SearchAgents")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await search(b"\xff\xff\xff")
    assert caught.value.code() == STATUS.INVALID_ARGUMENT
    assert "not of the expected type" in (caught.value.details() or "")


@pytest.mark.parametrize("service", ["ams", "df"])
async def test_search_whose_answer_would_not_travel_says_how_many_fit(
    buses: Any, channels: Any, connect: Any, service: str
) -> None:
    bus = await buses(limits=BusLimits(max_frame_bytes=20_000, drain_grace=1.0))
    channel = channels(bus)
    for index in range(20):
        await connect(bus, f"a{index}", ownership="x" * 900, description=offer("x" * 900))
    if service == "ams":
        ams = ams_service_pb2_grpc.AmsServiceStub(channel)
        search: Any = lambda most: ams.SearchAgents(ams_service_pb2.SearchAgentsRequest(max_results=most))  # noqa: E731
    else:
        df = df_service_pb2_grpc.DfServiceStub(channel)
        search = lambda most: df.SearchDescriptions(df_service_pb2.SearchDescriptionsRequest(max_results=most))  # noqa: E731
    code, _, _, text = await refused(search(-1))
    assert code == STATUS.RESOURCE_EXHAUSTED
    assert "max_results" in text
    fits = int(text.split(" results fit")[0].split()[-1])
    assert len((await search(fits)).descriptions) == fits
