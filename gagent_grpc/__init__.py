"""gagent_grpc: an agent bus. Agents find each other, exchange FIPA ACL messages and delegate tasks over gRPC.

This page is the whole public surface of the SDK; `gagent_grpc.testing` has helpers for tests, `gagent_grpc.bridge` the
script agents. Names are imported when they are first used, so that a command that needs none of them starts quickly.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# gRPC's fork handlers stop a process that spawns children while calls are under way; nothing here forks and goes on
# with gRPC in the child. Read when grpc is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if TYPE_CHECKING:
    from gagent_grpc.acl.aid import AgentIdentifier
    from gagent_grpc.acl.descriptions import (
        AMSAgentDescription,
        DFAgentDescription,
        LifeCycleState,
        Property,
        SearchConstraints,
        ServiceDescription,
    )
    from gagent_grpc.acl.message import ACLMessage
    from gagent_grpc.acl.performative import Performative
    from gagent_grpc.client.admin import AdminClient, BusStats, DeadLetter, Redriven
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.ams import AgentEntry
    from gagent_grpc.client.message import Receipt, Received
    from gagent_grpc.client.operator import Operator
    from gagent_grpc.config import BusLimits, ClientLimits
    from gagent_grpc.envelope import DeadReason, OnReceiverLost, Outcome, Priority, Report
    from gagent_grpc.errors import (
        AgentAlreadyRegistered,
        AgentNotRegistered,
        AnswerTimeout,
        BusDraining,
        BusError,
        BusUnreachable,
        ConfigurationError,
        ConversationFailed,
        DeliveryRefused,
        FailureFromAgent,
        InvalidArgument,
        InvalidName,
        MailboxFull,
        MessageTooLarge,
        MissingParameter,
        NotUnderstoodByAgent,
        PreconditionFailed,
        RefusedByAgent,
        ScriptError,
        SessionSuperseded,
        StoreUnavailable,
        Unauthenticated,
        Unauthorised,
        UnknownPerformative,
        UnrecognisedParameterValue,
        UnsupportedFunction,
    )
    from gagent_grpc.server.app import Bus, open_bus
    from gagent_grpc.storage.memory import MemoryStore
    from gagent_grpc.storage.sqlite import SqliteStore

__version__ = "0.1.0"

_HOMES = {
    "gagent_grpc.acl.aid": ["AgentIdentifier"],
    "gagent_grpc.acl.descriptions": [
        "AMSAgentDescription",
        "DFAgentDescription",
        "LifeCycleState",
        "Property",
        "SearchConstraints",
        "ServiceDescription",
    ],
    "gagent_grpc.acl.message": ["ACLMessage"],
    "gagent_grpc.acl.performative": ["Performative"],
    "gagent_grpc.client.admin": ["AdminClient", "BusStats", "DeadLetter", "Redriven"],
    "gagent_grpc.client.agent": ["Agent"],
    "gagent_grpc.client.ams": ["AgentEntry"],
    "gagent_grpc.client.message": ["Receipt", "Received"],
    "gagent_grpc.client.operator": ["Operator"],
    "gagent_grpc.config": ["BusLimits", "ClientLimits"],
    "gagent_grpc.envelope": ["DeadReason", "OnReceiverLost", "Outcome", "Priority", "Report"],
    "gagent_grpc.errors": [
        "AgentAlreadyRegistered",
        "AgentNotRegistered",
        "AnswerTimeout",
        "BusDraining",
        "BusError",
        "BusUnreachable",
        "ConfigurationError",
        "ConversationFailed",
        "DeliveryRefused",
        "FailureFromAgent",
        "InvalidArgument",
        "InvalidName",
        "MailboxFull",
        "MessageTooLarge",
        "MissingParameter",
        "NotUnderstoodByAgent",
        "PreconditionFailed",
        "RefusedByAgent",
        "ScriptError",
        "SessionSuperseded",
        "StoreUnavailable",
        "Unauthenticated",
        "Unauthorised",
        "UnknownPerformative",
        "UnrecognisedParameterValue",
        "UnsupportedFunction",
    ],
    "gagent_grpc.server.app": ["Bus", "open_bus"],
    "gagent_grpc.storage.memory": ["MemoryStore"],
    "gagent_grpc.storage.sqlite": ["SqliteStore"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ACLMessage",
    "AMSAgentDescription",
    "AdminClient",
    "Agent",
    "AgentAlreadyRegistered",
    "AgentEntry",
    "AgentIdentifier",
    "AgentNotRegistered",
    "AnswerTimeout",
    "Bus",
    "BusDraining",
    "BusError",
    "BusLimits",
    "BusStats",
    "BusUnreachable",
    "ClientLimits",
    "ConfigurationError",
    "ConversationFailed",
    "DFAgentDescription",
    "DeadLetter",
    "DeadReason",
    "DeliveryRefused",
    "FailureFromAgent",
    "InvalidArgument",
    "InvalidName",
    "LifeCycleState",
    "MailboxFull",
    "MemoryStore",
    "MessageTooLarge",
    "MissingParameter",
    "NotUnderstoodByAgent",
    "OnReceiverLost",
    "Operator",
    "Outcome",
    "Performative",
    "PreconditionFailed",
    "Priority",
    "Property",
    "Receipt",
    "Received",
    "Redriven",
    "RefusedByAgent",
    "Report",
    "ScriptError",
    "SearchConstraints",
    "ServiceDescription",
    "SessionSuperseded",
    "SqliteStore",
    "StoreUnavailable",
    "Unauthenticated",
    "Unauthorised",
    "UnknownPerformative",
    "UnrecognisedParameterValue",
    "UnsupportedFunction",
    "__version__",
    "open_bus",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
