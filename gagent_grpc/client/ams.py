"""The agent management system for an agent: `agent.ams` (FIPA SC00023 §5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gagent_grpc.acl.descriptions import AMSAgentDescription, LifeCycleState
from gagent_grpc.client.transport import Calls
from gagent_grpc.codec.management import ams_from_proto, ams_to_proto, state_from_proto
from gagent_grpc.errors import BusError
from gagent_grpc.pb.gagent.v1 import ams_service_pb2, ams_service_pb2_grpc


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One agent as the AMS shows it."""

    description: AMSAgentDescription
    connected: bool
    """A session of it is open."""
    mailbox_messages: int
    """Unsettled messages in its mailbox."""
    ephemeral: bool
    """Its name ends by itself after its session."""

    @property
    def name(self) -> str:
        """`name@platform`."""
        return self.description.name or ""


class AmsClient:
    """Calls of the AMS in the name of one agent. Each raises the error that the bus raised, or BusUnreachable."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def _stub(self) -> ams_service_pb2_grpc.AmsServiceAsyncStub:
        return ams_service_pb2_grpc.AmsServiceStub(await self._calls.channel())

    async def register(self, name: str, *, ownership: str = "") -> bool:
        """Register an agent without a session, in state initiated; return whether it was registered before.

        Raises:
            AgentAlreadyRegistered: Somebody else holds the name.
            InvalidName: No valid name.
            Unauthorised: A reserved name.
        """
        description = ams_to_proto(AMSAgentDescription(name=name, ownership=ownership or None))
        request = ams_service_pb2.RegisterAgentRequest(description=description)
        return (await self._calls.unary((await self._stub()).RegisterAgent, request)).existed

    async def deregister(self, name: str) -> None:
        """Free a name: its session ends and its mail is given up.

        Raises:
            AgentNotRegistered: Nobody has the name.
            Unauthorised: It is another agent's.
        """
        await self._calls.unary(
            (await self._stub()).DeregisterAgent, ams_service_pb2.DeregisterAgentRequest(agent=name)
        )

    async def search(self, template: AMSAgentDescription | None = None, *, max_results: int = 1) -> list[AgentEntry]:
        """Return agents that match a template, oldest registration first.

        Args:
            template: Pattern; None matches every agent that is not ephemeral. A template with a name finds that agent
                whatever it is.
            max_results: Largest number of results; negative for all.

        Raises:
            UnrecognisedParameterValue: ``max_results`` is 0.
        """
        request = ams_service_pb2.SearchAgentsRequest(
            template=ams_to_proto(template or AMSAgentDescription()), max_results=max_results
        )
        response = await self._calls.unary((await self._stub()).SearchAgents, request)
        return [
            AgentEntry(ams_from_proto(one), one.connected, one.mailbox_messages, one.ephemeral)
            for one in response.descriptions
        ]

    async def search_all(self, template: AMSAgentDescription | None = None) -> list[AgentEntry]:
        """Return every agent that matches a template."""
        return await self.search(template, max_results=-1)

    async def suspend(self, name: str) -> LifeCycleState:
        """Suspend an agent and return its state: mail waits, searches skip it, what it has in hand stays in hand.

        Raises:
            AgentNotRegistered: Nobody has the name.
            PreconditionFailed: Its state forbids it.
        """
        response = await self._calls.unary(
            (await self._stub()).SuspendAgent, ams_service_pb2.SuspendAgentRequest(agent=name)
        )
        return state_from_proto(response.state) or LifeCycleState.SUSPENDED

    async def resume(self, name: str) -> LifeCycleState:
        """Resume a suspended agent and return its state; errors as `suspend`."""
        response = await self._calls.unary(
            (await self._stub()).ResumeAgent, ams_service_pb2.ResumeAgentRequest(agent=name)
        )
        return state_from_proto(response.state) or LifeCycleState.ACTIVE

    async def terminate(self, name: str) -> None:
        """End an agent whatever it wants.

        Raises:
            AgentNotRegistered: Nobody has the name.
        """
        await self._calls.unary((await self._stub()).TerminateAgent, ams_service_pb2.TerminateAgentRequest(agent=name))


async def why_no_answer(ams: AmsClient, name: str, *, timeout: float = 1.0) -> str:
    """Return in words why an agent does not answer; "" when it could, or when nobody tells within ``timeout`` seconds."""
    try:
        async with asyncio.timeout(timeout):
            found = await ams.search(AMSAgentDescription(name=name))
    except (BusError, TimeoutError):
        return ""
    for entry in found:
        state = entry.description.state
        waits = "; the request waits in its mailbox" if entry.mailbox_messages else ""
        if state is LifeCycleState.SUSPENDED:
            return f"{name} is suspended{waits}"
        if not entry.connected:
            return f"{name} is not connected ({state}){waits}"
    return ""
