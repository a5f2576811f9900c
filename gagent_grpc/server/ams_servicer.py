"""`AmsService`: the calls of the agent management system, adapted to `bus.platform`."""

from __future__ import annotations

from typing import Any

import grpc

from gagent_grpc.bus.ams import AgentRecord
from gagent_grpc.bus.platform import Platform
from gagent_grpc.codec.management import ams_from_proto, ams_to_proto, constraints_of, state_to_proto
from gagent_grpc.errors import MissingParameter
from gagent_grpc.pb.gagent.v1 import agent_pb2, ams_service_pb2, ams_service_pb2_grpc
from gagent_grpc.server.answers import written
from gagent_grpc.server.identity import caller_of

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


def _named(what: str, parameter: str, name: str) -> str:
    if not name:
        raise MissingParameter(what, parameter)
    return name


def _described(record: AgentRecord) -> agent_pb2.AmsAgentDescription:
    return ams_to_proto(
        record.description(),
        connected=record.session is not None,
        mailbox_messages=record.mailbox.messages + record.mailbox.reserve_messages,
        ephemeral=record.ephemeral,
    )
