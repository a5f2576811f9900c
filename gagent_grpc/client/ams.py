"""The agent management system for an agent: `agent.ams` (FIPA SC00023 §5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime

import grpc

from gagent_grpc.acl.changes import AgentEventKind
from gagent_grpc.acl.descriptions import AMSAgentDescription, LifeCycleState, PlatformDescription
from gagent_grpc.client.transport import Calls, request_of
from gagent_grpc.client.watching import watched
from gagent_grpc.codec.management import ams_from_proto, ams_to_proto, platform_from_proto, state_from_proto
from gagent_grpc.codec.times import datetime_of
from gagent_grpc.errors import BusError
from gagent_grpc.pb.gagent.v1 import agent_pb2, ams_service_pb2, ams_service_pb2_grpc


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


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One agent of a snapshot, or one change."""

    kind: AgentEventKind
    """What happened."""
    agent: AgentEntry | None
    """As it is now; of a dead one as it was. None at the end of a snapshot."""
    previous_state: LifeCycleState | None
    """Of a STATE: the one before."""
    cause: str
    """Who or what caused it, in words; "" where nothing is said."""
    at: datetime
    """When, by the clock of the bus."""
    cursor: str
    """With which a later `watch` goes on after this event; "" inside a snapshot, which then begins again."""


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
        described = AMSAgentDescription(name=name, ownership=ownership or None)
        request = request_of(lambda: ams_service_pb2.RegisterAgentRequest(description=ams_to_proto(described)))
        return (await self._calls.unary((await self._stub()).RegisterAgent, request)).existed

    async def deregister(self, name: str) -> None:
        """Free a name: its session ends and its mail is given up.

        Raises:
            AgentNotRegistered: Nobody has the name.
            Unauthorised: It is another agent's.
        """
        await self._calls.unary(
            (await self._stub()).DeregisterAgent, request_of(lambda: ams_service_pb2.DeregisterAgentRequest(agent=name))
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
        request = request_of(
            lambda: ams_service_pb2.SearchAgentsRequest(
                template=ams_to_proto(template or AMSAgentDescription()), max_results=max_results
            )
        )
        response = await self._calls.unary((await self._stub()).SearchAgents, request)
        return [_entry(one) for one in response.descriptions]

    async def search_all(self, template: AMSAgentDescription | None = None) -> list[AgentEntry]:
        """Return every agent that matches a template."""
        return await self.search(template, max_results=-1)

    async def modify(
        self, name: str, *, ownership: str | None = None, state: LifeCycleState | None = None
    ) -> AMSAgentDescription:
        """Change the entry of an agent, and return it as the AMS keeps it.

        Args:
            name: The agent.
            ownership: Its new owner in words, "" for none; None leaves it as it is.
            state: Its new life-cycle state; None leaves it as it is. An agent may suspend itself, wait (from active) and
                move (to transit, from active), and gets no mail then; who governs agents may bring it back to active.

        Raises:
            AgentNotRegistered: Nobody has the name.
            Unauthorised: The caller may not change this agent, or not in this way.
            PreconditionFailed: The life-cycle table has no such transition.
            InvalidArgument: The ownership is too long.

        Spec: FIPA SC00023 §5.1.2 (life cycle), §6.2 (modify).
        """
        described = AMSAgentDescription(name=name, ownership=ownership, state=state)
        request = request_of(lambda: ams_service_pb2.ModifyAgentRequest(description=ams_to_proto(described)))
        response = await self._calls.unary((await self._stub()).ModifyAgent, request)
        return ams_from_proto(response.description)

    async def get_description(self) -> PlatformDescription:
        """Return what the platform is and offers itself (FIPA SC00023 §6.1.5)."""
        request = ams_service_pb2.GetDescriptionRequest()
        response = await self._calls.unary((await self._stub()).GetDescription, request)
        return platform_from_proto(response.description)

    async def watch(
        self, template: AMSAgentDescription | None = None, *, with_ephemeral: bool = False, cursor: str = ""
    ) -> AsyncGenerator[AgentEvent, None]:
        """Iterate over who is there, and then over what changes, each change once and in order; without an end.

        It begins with a snapshot: a PRESENT for each agent, and SNAPSHOT_END. A connection that is lost is found again,
        and the iteration goes on after the last event; where that cannot be, as after a restart of the bus, a new snapshot
        comes, and what was known before is void. Closing the iterator, as `contextlib.aclosing` does, ends it.

        Args:
            template: Which agents; None for all that are not ephemeral. One that matches no more is told once more.
            with_ephemeral: Those whose names end by themselves, too.
            cursor: That of the last event that was read earlier, to go on after it; "" for a snapshot.

        Raises:
            BusUnreachable: Nobody answers at the beginning.
            ResourceExhausted: Too many watch.
            PreconditionFailed: The agent, or the operator, is not open or was closed.
            InvalidName: The template has no valid name.
        """
        wanted = request_of(lambda: ams_to_proto(template or AMSAgentDescription()))

        async def begin(
            cursor: str,
        ) -> grpc.aio.UnaryStreamCall[ams_service_pb2.WatchAgentsRequest, ams_service_pb2.WatchAgentsResponse]:
            request = ams_service_pb2.WatchAgentsRequest(template=wanted, cursor=cursor, with_ephemeral=with_ephemeral)
            return await self._calls.begin((await self._stub()).WatchAgents, request)

        async with contextlib.aclosing(watched(self._calls, begin, cursor, "watching agents")) as stream:
            async for told in stream:
                yield AgentEvent(
                    kind=AgentEventKind(told.kind),
                    agent=_entry(told.description) if told.HasField("description") else None,
                    previous_state=state_from_proto(told.previous_state),
                    cause=told.cause,
                    at=datetime_of(told.at),
                    cursor=told.cursor,
                )

    async def suspend(self, name: str) -> LifeCycleState:
        """Suspend an agent and return its state: mail waits, searches skip it, what it has in hand stays in hand.

        Raises:
            AgentNotRegistered: Nobody has the name.
            PreconditionFailed: Its state forbids it.
        """
        response = await self._calls.unary(
            (await self._stub()).SuspendAgent, request_of(lambda: ams_service_pb2.SuspendAgentRequest(agent=name))
        )
        return state_from_proto(response.state) or LifeCycleState.SUSPENDED

    async def resume(self, name: str) -> LifeCycleState:
        """Resume a suspended agent and return its state; errors as `suspend`."""
        response = await self._calls.unary(
            (await self._stub()).ResumeAgent, request_of(lambda: ams_service_pb2.ResumeAgentRequest(agent=name))
        )
        return state_from_proto(response.state) or LifeCycleState.ACTIVE

    async def terminate(self, name: str) -> None:
        """End an agent whatever it wants.

        Raises:
            AgentNotRegistered: Nobody has the name.
        """
        await self._calls.unary(
            (await self._stub()).TerminateAgent, request_of(lambda: ams_service_pb2.TerminateAgentRequest(agent=name))
        )


def _entry(described: agent_pb2.AmsAgentDescription) -> AgentEntry:
    return AgentEntry(ams_from_proto(described), described.connected, described.mailbox_messages, described.ephemeral)


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
