"""The directory facilitator for an agent: `agent.df` (FIPA SC00023 §4.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
from gagent_grpc.client.transport import Calls
from gagent_grpc.codec.management import df_from_proto, df_to_proto
from gagent_grpc.errors import MissingParameter
from gagent_grpc.pb.gagent.v1 import df_service_pb2, df_service_pb2_grpc

Template = str | ServiceDescription | DFAgentDescription
"""A service type, a pattern of one service, or a whole pattern."""


class DfClient:
    """Calls of the DF in the name of one agent. Each raises the error that the bus raised, or BusUnreachable."""

    def __init__(
        self, calls: Calls, *, remember: Callable[[DFAgentDescription | None], None] = lambda entry: None
    ) -> None:
        """Make calls; ``remember`` hears of the agent's entry whenever it is changed here, None for no entry."""
        self._calls = calls
        self._remember = remember

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
        request = df_service_pb2.RegisterDescriptionRequest(description=df_to_proto(entry))
        response = await self._calls.unary((await self._stub()).RegisterDescription, request)
        self._remember(entry)
        return df_from_proto(response.description)

    async def deregister(self) -> None:
        """Remove the agent's own entry.

        Raises:
            AgentNotRegistered: It has none.
        """
        request = df_service_pb2.DeregisterDescriptionRequest()
        await self._calls.unary((await self._stub()).DeregisterDescription, request)
        self._remember(None)

    async def search(self, template: Template | None = None, *, max_results: int = 1) -> list[DFAgentDescription]:
        """Return the live registrations that match ``template``, oldest registration first.

        A registration matches when every parameter set in the template is equal in it; a set-valued parameter matches
        when it contains the template's elements. Agents that are suspended or not connected never match.

        Args:
            template: A service type, or a pattern; None matches every registration.
            max_results: Largest number of results; negative for all.

        Raises:
            UnrecognisedParameterValue: ``max_results`` is 0.

        Spec: FIPA SC00023 §6.1.4 (search-constraints).
        """
        request = df_service_pb2.SearchDescriptionsRequest(
            template=df_to_proto(template_of(template)), max_results=max_results
        )
        response = await self._calls.unary((await self._stub()).SearchDescriptions, request)
        return [df_from_proto(one) for one in response.descriptions]

    async def search_all(self, template: Template | None = None) -> list[DFAgentDescription]:
        """Return every live registration that matches ``template``."""
        return await self.search(template, max_results=-1)


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
