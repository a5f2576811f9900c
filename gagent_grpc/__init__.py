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
    from gagent_grpc.acl.changes import AgentEventKind, DescriptionEventKind
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
    from gagent_grpc.acl.message import ACLMessage
    from gagent_grpc.acl.performative import Performative
    from gagent_grpc.acl.template import MessageTemplate
    from gagent_grpc.acp.message import ACPMessage, ACPMessageType, ACPMetadata, DelegateMessage
    from gagent_grpc.acp.tasks import (
        Attachment,
        DelegatedTask,
        OnExecutorLost,
        Signal,
        TaskAttempt,
        TaskEvent,
        TaskEventKind,
        TaskKey,
        TaskState,
    )
    from gagent_grpc.bridge.behaviour import PythonBehaviour, RestartPolicy, ScriptBehaviour
    from gagent_grpc.bridge.fleet import Fleet, MemberState, MemberStatus
    from gagent_grpc.bridge.limits import ScriptLimits
    from gagent_grpc.bridge.supervisor import ScriptAgent
    from gagent_grpc.client.acp.agent import ACPAgent
    from gagent_grpc.client.acp.client import ACPClient, ACPcredentials
    from gagent_grpc.client.acp.connection import ACPConnection
    from gagent_grpc.client.acp.message import ReceivedACP
    from gagent_grpc.client.acp.service import ACPService
    from gagent_grpc.client.admin import AdminClient, BusStats, DeadLetter, Redriven, TaskStats
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.ams import AgentEntry, AgentEvent
    from gagent_grpc.client.answers import Fail, Refuse
    from gagent_grpc.client.behaviours import (
        Behaviour,
        CyclicBehaviour,
        OneShotBehaviour,
        TickerBehaviour,
        WakerBehaviour,
    )
    from gagent_grpc.client.bids import Bid, Bidding
    from gagent_grpc.client.composites import FSMBehaviour, ParallelBehaviour, SequentialBehaviour, Until
    from gagent_grpc.client.contexts import ContextChange, ContextChangeKind, ContextEntry, SharedContext
    from gagent_grpc.client.contract_net import CallForProposals
    from gagent_grpc.client.conversations import Accepted, Rejected
    from gagent_grpc.client.df import DescriptionEvent
    from gagent_grpc.client.message import Receipt, Received, answer_headers
    from gagent_grpc.client.operator import Operator
    from gagent_grpc.client.proposals import AnswerKind, CallAnswer, Proposal
    from gagent_grpc.client.publishing import Subscriber
    from gagent_grpc.client.subscriptions import Subscription
    from gagent_grpc.client.task_context import BlockingTaskContext, TaskContext
    from gagent_grpc.client.tasks import Task
    from gagent_grpc.client.timers import Timer
    from gagent_grpc.client.traffic import TrafficEvent, TrafficKind, TrafficStream
    from gagent_grpc.config import BusLimits, ClientLimits, ConversationPolicy
    from gagent_grpc.envelope import DeadReason, OnReceiverLost, Outcome, Priority, Report
    from gagent_grpc.errors import (
        AgentAlreadyRegistered,
        AgentNotRegistered,
        AnswerTimeout,
        AttemptSuperseded,
        BusDraining,
        BusError,
        BusUnreachable,
        ConfigurationError,
        ContextEnded,
        ConversationFailed,
        DeliveryRefused,
        EntryNotFound,
        EventsGone,
        FailureFromAgent,
        InvalidArgument,
        InvalidName,
        MailboxFull,
        MessageTooLarge,
        MissingParameter,
        NoProvider,
        NotUnderstoodByAgent,
        PreconditionFailed,
        RefusedByAgent,
        RevisionConflict,
        ScriptError,
        SearchRepeated,
        SessionSuperseded,
        StoreUnavailable,
        TaskAlreadyExists,
        TaskCancelled,
        TaskEnded,
        TaskExpired,
        TaskFailed,
        TaskNotCompleted,
        TaskNotFound,
        TaskRefused,
        TaskRejected,
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
    "gagent_grpc.acl.changes": ["AgentEventKind", "DescriptionEventKind"],
    "gagent_grpc.acl.descriptions": [
        "AMSAgentDescription",
        "DFAgentDescription",
        "LifeCycleState",
        "PlatformDescription",
        "PlatformService",
        "Property",
        "SearchConstraints",
        "ServiceDescription",
    ],
    "gagent_grpc.acl.message": ["ACLMessage"],
    "gagent_grpc.acl.performative": ["Performative"],
    "gagent_grpc.acl.template": ["MessageTemplate"],
    "gagent_grpc.acp.message": ["ACPMessage", "ACPMessageType", "ACPMetadata", "DelegateMessage"],
    "gagent_grpc.acp.tasks": [
        "Attachment",
        "DelegatedTask",
        "OnExecutorLost",
        "Signal",
        "TaskAttempt",
        "TaskEvent",
        "TaskEventKind",
        "TaskKey",
        "TaskState",
    ],
    "gagent_grpc.bridge.behaviour": ["PythonBehaviour", "RestartPolicy", "ScriptBehaviour"],
    "gagent_grpc.bridge.fleet": ["Fleet", "MemberState", "MemberStatus"],
    "gagent_grpc.bridge.limits": ["ScriptLimits"],
    "gagent_grpc.bridge.supervisor": ["ScriptAgent"],
    "gagent_grpc.client.acp.agent": ["ACPAgent"],
    "gagent_grpc.client.acp.client": ["ACPClient", "ACPcredentials"],
    "gagent_grpc.client.acp.connection": ["ACPConnection"],
    "gagent_grpc.client.acp.message": ["ReceivedACP"],
    "gagent_grpc.client.acp.service": ["ACPService"],
    "gagent_grpc.client.admin": ["AdminClient", "BusStats", "DeadLetter", "Redriven", "TaskStats"],
    "gagent_grpc.client.agent": ["Agent"],
    "gagent_grpc.client.ams": ["AgentEntry", "AgentEvent"],
    "gagent_grpc.client.answers": ["Fail", "Refuse"],
    "gagent_grpc.client.behaviours": [
        "Behaviour",
        "CyclicBehaviour",
        "OneShotBehaviour",
        "TickerBehaviour",
        "WakerBehaviour",
    ],
    "gagent_grpc.client.bids": ["Bid", "Bidding"],
    "gagent_grpc.client.composites": ["FSMBehaviour", "ParallelBehaviour", "SequentialBehaviour", "Until"],
    "gagent_grpc.client.contexts": ["ContextChange", "ContextChangeKind", "ContextEntry", "SharedContext"],
    "gagent_grpc.client.contract_net": ["CallForProposals"],
    "gagent_grpc.client.conversations": ["Accepted", "Rejected"],
    "gagent_grpc.client.df": ["DescriptionEvent"],
    "gagent_grpc.client.message": ["Receipt", "Received", "answer_headers"],
    "gagent_grpc.client.operator": ["Operator"],
    "gagent_grpc.client.proposals": ["AnswerKind", "CallAnswer", "Proposal"],
    "gagent_grpc.client.publishing": ["Subscriber"],
    "gagent_grpc.client.subscriptions": ["Subscription"],
    "gagent_grpc.client.task_context": ["BlockingTaskContext", "TaskContext"],
    "gagent_grpc.client.tasks": ["Task"],
    "gagent_grpc.client.timers": ["Timer"],
    "gagent_grpc.client.traffic": ["TrafficEvent", "TrafficKind", "TrafficStream"],
    "gagent_grpc.config": ["BusLimits", "ClientLimits", "ConversationPolicy"],
    "gagent_grpc.envelope": ["DeadReason", "OnReceiverLost", "Outcome", "Priority", "Report"],
    "gagent_grpc.errors": [
        "AgentAlreadyRegistered",
        "AgentNotRegistered",
        "AnswerTimeout",
        "AttemptSuperseded",
        "BusDraining",
        "BusError",
        "BusUnreachable",
        "ConfigurationError",
        "ContextEnded",
        "ConversationFailed",
        "DeliveryRefused",
        "EntryNotFound",
        "EventsGone",
        "FailureFromAgent",
        "InvalidArgument",
        "InvalidName",
        "MailboxFull",
        "MessageTooLarge",
        "MissingParameter",
        "NoProvider",
        "NotUnderstoodByAgent",
        "PreconditionFailed",
        "RefusedByAgent",
        "RevisionConflict",
        "ScriptError",
        "SearchRepeated",
        "SessionSuperseded",
        "StoreUnavailable",
        "TaskAlreadyExists",
        "TaskCancelled",
        "TaskEnded",
        "TaskExpired",
        "TaskFailed",
        "TaskNotCompleted",
        "TaskNotFound",
        "TaskRefused",
        "TaskRejected",
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
    "ACPAgent",
    "ACPClient",
    "ACPConnection",
    "ACPMessage",
    "ACPMessageType",
    "ACPMetadata",
    "ACPService",
    "ACPcredentials",
    "AMSAgentDescription",
    "Accepted",
    "AdminClient",
    "Agent",
    "AgentAlreadyRegistered",
    "AgentEntry",
    "AgentEvent",
    "AgentEventKind",
    "AgentIdentifier",
    "AgentNotRegistered",
    "AnswerKind",
    "AnswerTimeout",
    "Attachment",
    "AttemptSuperseded",
    "Behaviour",
    "Bid",
    "Bidding",
    "BlockingTaskContext",
    "Bus",
    "BusDraining",
    "BusError",
    "BusLimits",
    "BusStats",
    "BusUnreachable",
    "CallAnswer",
    "CallForProposals",
    "ClientLimits",
    "ConfigurationError",
    "ContextChange",
    "ContextChangeKind",
    "ContextEnded",
    "ContextEntry",
    "ConversationFailed",
    "ConversationPolicy",
    "CyclicBehaviour",
    "DFAgentDescription",
    "DeadLetter",
    "DeadReason",
    "DelegateMessage",
    "DelegatedTask",
    "DeliveryRefused",
    "DescriptionEvent",
    "DescriptionEventKind",
    "EntryNotFound",
    "EventsGone",
    "FSMBehaviour",
    "Fail",
    "FailureFromAgent",
    "Fleet",
    "InvalidArgument",
    "InvalidName",
    "LifeCycleState",
    "MailboxFull",
    "MemberState",
    "MemberStatus",
    "MemoryStore",
    "MessageTemplate",
    "MessageTooLarge",
    "MissingParameter",
    "NoProvider",
    "NotUnderstoodByAgent",
    "OnExecutorLost",
    "OnReceiverLost",
    "OneShotBehaviour",
    "Operator",
    "Outcome",
    "ParallelBehaviour",
    "Performative",
    "PlatformDescription",
    "PlatformService",
    "PreconditionFailed",
    "Priority",
    "Property",
    "Proposal",
    "PythonBehaviour",
    "Receipt",
    "Received",
    "ReceivedACP",
    "Redriven",
    "Refuse",
    "RefusedByAgent",
    "Rejected",
    "Report",
    "RestartPolicy",
    "RevisionConflict",
    "ScriptAgent",
    "ScriptBehaviour",
    "ScriptError",
    "ScriptLimits",
    "SearchConstraints",
    "SearchRepeated",
    "SequentialBehaviour",
    "ServiceDescription",
    "SessionSuperseded",
    "SharedContext",
    "Signal",
    "SqliteStore",
    "StoreUnavailable",
    "Subscriber",
    "Subscription",
    "Task",
    "TaskAlreadyExists",
    "TaskAttempt",
    "TaskCancelled",
    "TaskContext",
    "TaskEnded",
    "TaskEvent",
    "TaskEventKind",
    "TaskExpired",
    "TaskFailed",
    "TaskKey",
    "TaskNotCompleted",
    "TaskNotFound",
    "TaskRefused",
    "TaskRejected",
    "TaskState",
    "TaskStats",
    "TickerBehaviour",
    "Timer",
    "TrafficEvent",
    "TrafficKind",
    "TrafficStream",
    "Unauthenticated",
    "Unauthorised",
    "UnknownPerformative",
    "UnrecognisedParameterValue",
    "UnsupportedFunction",
    "Until",
    "WakerBehaviour",
    "__version__",
    "answer_headers",
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
