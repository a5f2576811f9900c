"""`AmsService`: the calls of the agent management system, adapted to `bus.platform`."""

from __future__ import annotations

from typing import Any, cast

import grpc

from gagent_grpc.bus.agent_events import AgentNews
from gagent_grpc.bus.ams import AgentRecord, AgentView
from gagent_grpc.bus.platform import Platform
from gagent_grpc.codec.management import (
    ams_from_proto,
    ams_to_proto,
    constraints_of,
    platform_to_proto,
    state_to_proto,
)
from gagent_grpc.codec.times import timestamp_of
from gagent_grpc.errors import MissingParameter
from gagent_grpc.pb.gagent.v1 import agent_pb2, ams_service_pb2, ams_service_pb2_grpc
from gagent_grpc.server.answers import written
from gagent_grpc.server.identity import caller_of
from gagent_grpc.server.watching import counted_as, tell

Context = grpc.aio.ServicerContext[Any, Any]


class AmsServicer(ams_service_pb2_grpc.AmsServiceServicer):
    """Serves the AMS. Errors are raised as they are; the interceptor makes statuses of them."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    async def RegisterAgent(
        self, request: ams_service_pb2.RegisterAgentRequest, context: Context
    ) -> ams_service_pb2.RegisterAgentResponse:
        """Register an agent without a session."""
        name = _named("ams-agent-description", "name", request.description.name.name)
        caller = caller_of(self._platform, context)
        record, existed = self._platform.register(name, request.description.ownership, caller)
        await self._platform.flush()
        return ams_service_pb2.RegisterAgentResponse(description=_described(record), existed=existed)

    async def DeregisterAgent(
        self, request: ams_service_pb2.DeregisterAgentRequest, context: Context
    ) -> ams_service_pb2.DeregisterAgentResponse:
        """Free a name."""
        name = _named("deregister", "agent", request.agent)
        self._platform.deregister(name, caller_of(self._platform, context), why="deregistered")
        await self._platform.flush()
        return ams_service_pb2.DeregisterAgentResponse()

    async def SearchAgents(
        self, request: ams_service_pb2.SearchAgentsRequest, context: Context
    ) -> ams_service_pb2.SearchAgentsResponse:
        """Search the agents."""
        constraints = constraints_of(request.max_results if request.HasField("max_results") else None)
        found = self._platform.search_agents(ams_from_proto(request.template), constraints)
        limit = self._platform.limits.max_frame_bytes
        return ams_service_pb2.SearchAgentsResponse(
            descriptions=await written(found, _described, max_frame_bytes=limit)
        )

    async def SuspendAgent(
        self, request: ams_service_pb2.SuspendAgentRequest, context: Context
    ) -> ams_service_pb2.SuspendAgentResponse:
        """Suspend an agent."""
        record = self._platform.suspend(_named("suspend", "agent", request.agent), caller_of(self._platform, context))
        return ams_service_pb2.SuspendAgentResponse(state=state_to_proto(record.state))

    async def ResumeAgent(
        self, request: ams_service_pb2.ResumeAgentRequest, context: Context
    ) -> ams_service_pb2.ResumeAgentResponse:
        """Resume an agent."""
        record = self._platform.resume(_named("resume", "agent", request.agent), caller_of(self._platform, context))
        return ams_service_pb2.ResumeAgentResponse(state=state_to_proto(record.state))

    async def TerminateAgent(
        self, request: ams_service_pb2.TerminateAgentRequest, context: Context
    ) -> ams_service_pb2.TerminateAgentResponse:
        """End an agent whatever it wants."""
        name = _named("terminate", "agent", request.agent)
        self._platform.deregister(name, caller_of(self._platform, context), why="terminated by the AMS")
        await self._platform.flush()
        return ams_service_pb2.TerminateAgentResponse()

    async def ModifyAgent(
        self, request: ams_service_pb2.ModifyAgentRequest, context: Context
    ) -> ams_service_pb2.ModifyAgentResponse:
        """Change the ownership of an agent, its state, or both."""
        _named("ams-agent-description", "name", request.description.name.name)
        record = self._platform.modify_agent(ams_from_proto(request.description), caller_of(self._platform, context))
        await self._platform.flush()
        return ams_service_pb2.ModifyAgentResponse(description=_described(record))

    async def GetDescription(
        self, request: ams_service_pb2.GetDescriptionRequest, context: Context
    ) -> ams_service_pb2.GetDescriptionResponse:
        """Describe the platform."""
        return ams_service_pb2.GetDescriptionResponse(description=platform_to_proto(self._platform.get_description()))

    async def WatchAgents(  # type: ignore[override]  # [override]: a coroutine that writes, and so knows of its end.
        self, request: ams_service_pb2.WatchAgentsRequest, context: Context
    ) -> None:
        """Tell who is there, and what changes."""
        watch = self._platform.watch_agents(
            ams_from_proto(request.template),
            request.cursor,
            with_ephemeral=request.with_ephemeral,
            caller=counted_as(caller_of(self._platform, context), context),
        )
        await tell(watch, _news, context, timeout=self._platform.limits.write_timeout)


def _named(what: str, parameter: str, name: str) -> str:
    if not name:
        raise MissingParameter(what, parameter)
    return name


def _described(record: AgentRecord) -> agent_pb2.AmsAgentDescription:
    return _viewed(record.view())


def _viewed(view: AgentView) -> agent_pb2.AmsAgentDescription:
    return ams_to_proto(
        view.description,
        connected=view.connected,
        mailbox_messages=view.mailbox_messages,
        ephemeral=view.ephemeral,
    )


def _news(news: AgentNews) -> ams_service_pb2.WatchAgentsResponse:
    return ams_service_pb2.WatchAgentsResponse(
        cursor=news.cursor,
        kind=cast("ams_service_pb2.AgentEventKind.ValueType", int(news.kind)),
        description=_viewed(news.agent) if news.agent is not None else None,
        previous_state=state_to_proto(news.previous_state),
        cause=news.cause,
        at=timestamp_of(news.at),
    )
