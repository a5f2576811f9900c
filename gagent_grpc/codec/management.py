"""AMS and DF descriptions to the wire and back."""

from __future__ import annotations

from typing import cast

from gagent_grpc.acl.descriptions import (
    AMSAgentDescription,
    DFAgentDescription,
    LifeCycleState,
    PlatformDescription,
    PlatformService,
    Property,
    SearchConstraints,
    ServiceDescription,
)
from gagent_grpc.errors import UnrecognisedParameterValue
from gagent_grpc.pb.gagent.v1 import agent_pb2, ams_service_pb2

MAX_DESCRIPTION_BYTES = 300_000
"""Largest df-agent-description, in bytes encoded."""


def service_to_proto(service: ServiceDescription) -> agent_pb2.ServiceDescription:
    """Return a service description as it travels."""
    return agent_pb2.ServiceDescription(
        name=service.name,
        service_type=service.type,
        protocols=sorted(service.protocols),
        ontologies=sorted(service.ontologies),
        languages=sorted(service.languages),
        ownership=service.ownership,
        properties=[agent_pb2.ServiceProperty(name=one.name, value=one.value) for one in service.properties],
    )


def service_from_proto(service: agent_pb2.ServiceDescription) -> ServiceDescription:
    """Return the service description in ``service``."""
    return ServiceDescription(
        name=service.name if service.HasField("name") else None,
        type=service.service_type if service.HasField("service_type") else None,
        protocols=frozenset(service.protocols),
        ontologies=frozenset(service.ontologies),
        languages=frozenset(service.languages),
        ownership=service.ownership if service.HasField("ownership") else None,
        properties=tuple(
            Property(one.name, one.value if one.HasField("value") else None) for one in service.properties
        ),
    )


def df_to_proto(description: DFAgentDescription) -> agent_pb2.DfAgentDescription:
    """Return a df-agent-description as it travels."""
    return agent_pb2.DfAgentDescription(
        name=agent_pb2.AgentIdentifier(name=description.name) if description.name is not None else None,
        services=[service_to_proto(service) for service in description.services],
        protocols=sorted(description.protocols),
        ontologies=sorted(description.ontologies),
        languages=sorted(description.languages),
        lease_seconds=description.lease_seconds,
    )


def df_from_proto(description: agent_pb2.DfAgentDescription) -> DFAgentDescription:
    """Return the df-agent-description in ``description``.

    Raises:
        UnrecognisedParameterValue: It is larger than any that a DF keeps: reading it would hold up everybody else.
    """
    size = description.ByteSize()
    if size > MAX_DESCRIPTION_BYTES:
        why = f"has {size:,} bytes encoded; the limit is {MAX_DESCRIPTION_BYTES:,}"
        raise UnrecognisedParameterValue("df-agent-description", "services", why)
    return DFAgentDescription(
        name=(description.name.name or None) if description.HasField("name") else None,
        services=tuple(service_from_proto(service) for service in description.services),
        protocols=frozenset(description.protocols),
        ontologies=frozenset(description.ontologies),
        languages=frozenset(description.languages),
        lease_seconds=description.lease_seconds if description.HasField("lease_seconds") else None,
    )


def state_to_proto(state: LifeCycleState | None) -> agent_pb2.AgentState.ValueType:
    """Return a life-cycle state as it travels; None is unspecified."""
    return cast("agent_pb2.AgentState.ValueType", 0 if state is None else int(state))


def state_from_proto(state: int) -> LifeCycleState | None:
    """Return the life-cycle state with the number ``state``; None for unspecified.

    Raises:
        UnrecognisedParameterValue: No state has this number.
    """
    if state == agent_pb2.AGENT_STATE_UNSPECIFIED:
        return None
    try:
        return LifeCycleState(state)
    except ValueError:
        expected = ", ".join(f"{int(one)} ({one})" for one in LifeCycleState)
        raise UnrecognisedParameterValue(
            "ams-agent-description", "state", f"is {state}; expected one of {expected}"
        ) from None


def ams_to_proto(
    description: AMSAgentDescription, *, connected: bool = False, mailbox_messages: int = 0, ephemeral: bool = False
) -> agent_pb2.AmsAgentDescription:
    """Return an ams-agent-description as it travels, with what the bus adds to it."""
    return agent_pb2.AmsAgentDescription(
        name=agent_pb2.AgentIdentifier(name=description.name) if description.name is not None else None,
        ownership=description.ownership,
        state=state_to_proto(description.state),
        connected=connected,
        mailbox_messages=mailbox_messages,
        ephemeral=ephemeral,
    )


def ams_from_proto(description: agent_pb2.AmsAgentDescription) -> AMSAgentDescription:
    """Return the ams-agent-description in ``description``."""
    return AMSAgentDescription(
        name=(description.name.name or None) if description.HasField("name") else None,
        ownership=description.ownership if description.HasField("ownership") else None,
        state=state_from_proto(description.state),
    )


def platform_to_proto(description: PlatformDescription) -> ams_service_pb2.PlatformDescription:
    """Return an ap-description as it travels."""
    return ams_service_pb2.PlatformDescription(
        name=description.name,
        services=[
            ams_service_pb2.PlatformService(name=one.name, service_type=one.type, addresses=one.addresses)
            for one in description.services
        ],
    )


def platform_from_proto(description: ams_service_pb2.PlatformDescription) -> PlatformDescription:
    """Return the ap-description in ``description``."""
    services = (PlatformService(one.name, one.service_type, tuple(one.addresses)) for one in description.services)
    return PlatformDescription(description.name, tuple(services))


def constraints_of(max_results: int | None, *, max_depth: int = 0, search_id: str = "") -> SearchConstraints:
    """Return search constraints; an absent number of results is 1, as FIPA has it (SC00023 §6.1.4)."""
    most = SearchConstraints().max_results if max_results is None else max_results
    return SearchConstraints(max_results=most, max_depth=max_depth, search_id=search_id)
