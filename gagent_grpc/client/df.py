"""The directory facilitator for an agent: `agent.df` (FIPA SC00023 §4.1)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import grpc

from gagent_grpc.acl.changes import DescriptionEventKind
from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
from gagent_grpc.client.transport import Calls, request_of
from gagent_grpc.client.watching import watched
from gagent_grpc.codec.management import df_from_proto, df_to_proto
from gagent_grpc.codec.times import datetime_of
from gagent_grpc.errors import MissingParameter
from gagent_grpc.pb.gagent.v1 import df_service_pb2, df_service_pb2_grpc

Template = str | ServiceDescription | DFAgentDescription
"""A service type, a pattern of one service, or a whole pattern."""


@dataclass(frozen=True, slots=True)
class DescriptionEvent:
    """One current match, or one change."""

    kind: DescriptionEventKind
    """What happened."""
    description: DFAgentDescription | None
    """As it is now; of one that matches no more its name alone. None at the end of a snapshot."""
    cause: str
    """Why: `lease ended`, `agent lost`, ...; "" where nothing is said."""
    at: datetime
    """When, by the clock of the bus."""
    cursor: str
    """With which a later `watch` goes on after this event; "" inside a snapshot, which then begins again."""

    @property
    def name(self) -> str:
        """`name@platform` of the agent; "" at the end of a snapshot."""
        return (self.description.name or "") if self.description is not None else ""


class DfClient:
    """Calls of the DF in the name of one agent. Each raises the error that the bus raised, or BusUnreachable."""

    def __init__(
        self,
        calls: Calls,
        *,
        remember: Callable[[DFAgentDescription | None], None] = lambda entry: None,
        granted: Callable[[float | None], None] = lambda seconds: None,
    ) -> None:
        """Make calls.

        Args:
            calls: Where they go, and in whose name.
            remember: Hears of the agent's entry whenever it is changed here; None for no entry.
            granted: Hears of the lease of that entry in seconds whenever it begins anew; None for none.
        """
        self._calls = calls
        self._remember = remember
        self._granted = granted

    async def _stub(self) -> df_service_pb2_grpc.DfServiceAsyncStub:
        return df_service_pb2_grpc.DfServiceStub(await self._calls.channel())

    async def register(self, description: Template) -> DFAgentDescription:
        """Register what the agent offers; return the entry with the lease granted.

        Raises:
            AgentAlreadyRegistered: The agent has an entry.
            MissingParameter: A service has no type.
            Unauthorised: The description names another agent.
        """
        entry = template_of(description)
        request = request_of(lambda: df_service_pb2.RegisterDescriptionRequest(description=df_to_proto(entry)))
        response = await self._calls.unary((await self._stub()).RegisterDescription, request)
        return self._kept(entry, df_from_proto(response.description))

    async def modify(self, description: Template) -> DFAgentDescription:
        """Replace the agent's own entry as a whole; return it with the lease granted, which starts anew.

        Raises:
            AgentNotRegistered: It has none.
            MissingParameter: A service has no type.
            Unauthorised: The description names another agent.
        """
        entry = template_of(description)
        request = request_of(lambda: df_service_pb2.ModifyDescriptionRequest(description=df_to_proto(entry)))
        response = await self._calls.unary((await self._stub()).ModifyDescription, request)
        return self._kept(entry, df_from_proto(response.description))

    async def renew(self, lease_seconds: float | None = None) -> DFAgentDescription:
        """Start the lease of the agent's own entry anew; return it with the lease granted.

        An open `Agent` does so by itself at half of its lease.

        Args:
            lease_seconds: Lease asked for; None for as long as the one that runs.

        Raises:
            AgentNotRegistered: It has no entry, as after the lease has ended.
            UnrecognisedParameterValue: The lease is not a positive number.
        """
        request = request_of(lambda: df_service_pb2.RenewDescriptionRequest(lease_seconds=lease_seconds))
        response = await self._calls.unary((await self._stub()).RenewDescription, request)
        entry = df_from_proto(response.description)
        self._granted(entry.lease_seconds)
        return entry

    def _kept(self, asked: DFAgentDescription, entry: DFAgentDescription) -> DFAgentDescription:
        """Note the agent's entry: what was asked for is what the next session asks for again."""
        self._remember(asked)
        self._granted(entry.lease_seconds)
        return entry

    async def deregister(self) -> None:
        """Remove the agent's own entry.

        Raises:
            AgentNotRegistered: It has none.
        """
        request = df_service_pb2.DeregisterDescriptionRequest()
        await self._calls.unary((await self._stub()).DeregisterDescription, request)
        self._remember(None)
        self._granted(None)

    async def search(
        self, template: Template | None = None, *, max_results: int = 1, max_depth: int = 0, search_id: str = ""
    ) -> list[DFAgentDescription]:
        """Return the live registrations that match ``template``, oldest registration first.

        A registration matches when every parameter set in the template is equal in it; a set-valued parameter matches
        when it contains the template's elements. Agents that are suspended or not connected never match.

        Args:
            template: A service type, or a pattern; None matches every registration.
            max_results: Largest number of results; negative for all.
            max_depth: How far the search goes into other directories; negative for no bound. There are none at present.
            search_id: Identity of the search, at most 256 characters; "" for none.

        Raises:
            UnrecognisedParameterValue: ``max_results`` is 0.
            SearchRepeated: A search of this ``search_id`` was made within five minutes.

        Spec: FIPA SC00023 §6.1.4 (search-constraints).
        """
        request = request_of(
            lambda: df_service_pb2.SearchDescriptionsRequest(
                template=df_to_proto(template_of(template)),
                max_results=max_results,
                max_depth=max_depth,
                search_id=search_id,
            )
        )
        response = await self._calls.unary((await self._stub()).SearchDescriptions, request)
        return [df_from_proto(one) for one in response.descriptions]

    async def search_all(self, template: Template | None = None) -> list[DFAgentDescription]:
        """Return every live registration that matches ``template``."""
        return await self.search(template, max_results=-1)

    async def watch(
        self, template: Template | None = None, *, cursor: str = ""
    ) -> AsyncGenerator[DescriptionEvent, None]:
        """Iterate over what a search finds, and then over what changes, each change once and in order; without an end.

        It begins with a snapshot: a PRESENT for each match, and SNAPSHOT_END. An agent that is lost, suspended or lets
        its lease end is REMOVED, and ADDED when it is found again. A connection that is lost is found again, and the
        iteration goes on after the last event; where that cannot be, as after a restart of the bus, a new snapshot comes,
        and what was known before is void. Closing the iterator, as `contextlib.aclosing` does, ends it.

        Args:
            template: A service type, or a pattern; None matches every registration.
            cursor: That of the last event that was read earlier, to go on after it; "" for a snapshot.

        Raises:
            BusUnreachable: Nobody answers at the beginning.
            ResourceExhausted: Too many watch.
            PreconditionFailed: The agent, or the operator, is not open or was closed.
            UnrecognisedParameterValue: The template is over a limit.
        """
        wanted = request_of(lambda: df_to_proto(template_of(template)))

        async def begin(
            cursor: str,
        ) -> grpc.aio.UnaryStreamCall[
            df_service_pb2.WatchDescriptionsRequest, df_service_pb2.WatchDescriptionsResponse
        ]:
            request = df_service_pb2.WatchDescriptionsRequest(template=wanted, cursor=cursor)
            return await self._calls.begin((await self._stub()).WatchDescriptions, request)

        async with contextlib.aclosing(watched(self._calls, begin, cursor, "watching descriptions")) as stream:
            async for told in stream:
                yield DescriptionEvent(
                    kind=DescriptionEventKind(told.kind),
                    description=df_from_proto(told.description) if told.HasField("description") else None,
                    cause=told.cause,
                    at=datetime_of(told.at),
                    cursor=told.cursor,
                )


def template_of(template: Template | None) -> DFAgentDescription:
    """Return the df-agent-description that ``template`` stands for; the empty one for None."""
    if template is None:
        return DFAgentDescription()
    if isinstance(template, DFAgentDescription):
        return template
    service = template if isinstance(template, ServiceDescription) else ServiceDescription(type=template)
    return DFAgentDescription(services=(service,))


def entry_of(services: Sequence[str | ServiceDescription]) -> DFAgentDescription:
    """Return the entry of an agent that offers ``services``.

    Raises:
        MissingParameter: One has no type.
    """
    offered = tuple(one if isinstance(one, ServiceDescription) else ServiceDescription(type=one) for one in services)
    if not all(one.type for one in offered):
        raise MissingParameter("service-description", "type")
    return DFAgentDescription(services=offered)
