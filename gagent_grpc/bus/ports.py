"""What the platform needs from outside, as Protocols: a clock, a store, a codec. Their implementations are other rooms.

A store is written to in order and without waiting; `next_commit` tells what has become durable. So one sync serves all
that was written meanwhile, and no message needs a future of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acp.task_messages import TaskMessage
from gagent_grpc.envelope import DeadReason, Envelope, Priority


class Clock(Protocol):
    """Time, so that tests can hold it."""

    def monotonic(self) -> float:
        """Return seconds that only go forward: for intervals and liveness."""
        ...

    def time(self) -> float:
        """Return Unix seconds: for expiry, leases and what is stored."""
        ...


class Codec(Protocol):
    """Turns encoded messages into envelopes and the platform's own messages into bytes."""

    def decode(self, payload: bytes, *, digest: bytes = b"") -> Envelope:
        """Return the envelope of one encoded `BusMessage`; its ``digest``, where it is known, is not made again.

        Raises:
            InvalidArgument: It is no valid message; the error names the field and the expected form.
        """
        ...

    def decode_stored(self, payload: bytes, *, digest: bytes) -> Envelope:
        """Return the envelope of a message that `decode` took before, where it can without reading the body.

        Raises:
            InvalidArgument: It is no valid message, as far as it is read.
        """
        ...

    def encode(self, message: ACLMessage, *, message_id: str) -> bytes:
        """Return the encoded `BusMessage` around a message that the platform itself writes."""
        ...

    def decode_acl(self, payload: bytes) -> ACLMessage | None:
        """Return the ACL message in an encoded `BusMessage`; None when its body is not ACL."""
        ...

    def decode_task(self, payload: bytes) -> TaskMessage | None:
        """Return what an encoded `BusMessage` says of a task; None when it is not about one.

        Raises:
            InvalidArgument: A number in it is none that it can be.
        """
        ...

    def encode_task(
        self,
        message: TaskMessage,
        *,
        source: str,
        target: str,
        message_id: str,
        in_reply_to: str = "",
        priority: Priority = Priority.NORMAL,
        expires_at: float = 0.0,
        resend: bool = False,
    ) -> bytes:
        """Return the encoded `BusMessage` around a message about a task.

        Args:
            message: What it says.
            source: Who sends it, `name@platform`.
            target: Whom it is for.
            message_id: Its id.
            in_reply_to: Id of the message that it answers; "" for none.
            priority: Its urgency.
            expires_at: When it stops being of use, in Unix seconds; 0.0 for never.
            resend: It may have been delivered before.
        """
        ...

    def complete_delegation(self, payload: bytes, *, task_id: str, message_id: str) -> bytes:
        """Return an encoded DELEGATE with the ids that its sender left out."""
        ...


@dataclass(slots=True)
class StoredAgent:
    """What a store keeps of one agent."""

    name: str
    principal: str
    """Who owns the name."""
    ownership: str
    """Owner in words, as the AMS shows it; "" for none."""
    state: LifeCycleState
    resume_to: LifeCycleState
    """State that `resume` restores; equal to `state` unless suspended."""
    ephemeral: bool
    generation: int
    """Number of the newest session."""
    attached: bool
    """A session was open when this was written: after an unclean stop its mail may have been delivered before."""
    next_sequence: int
    """A number above every sequence of the mailbox, also of what is settled."""
    resume_digest: bytes
    """SHA-256 of the resume token of the newest session; b"" for none."""
    registered_at: float
    """Unix seconds."""


@dataclass(slots=True)
class StoredMessage:
    """One unsettled message of one mailbox."""

    receiver: str
    sequence: int
    sender: str
    """`name@platform`, as the bus stamped it."""
    message_id: str
    """Identity of the delivery: the sender's, or the one that the bus gave."""
    key: str
    """Identity for recognising a repetition; "" when the sender gave none."""
    digest: bytes
    via: str
    accepted_at: float
    attempt: int
    """Deliveries so far; a lower bound after an unclean stop."""
    payload: bytes
    redriven: int = 0
    """Number of the dead letter that it was before; 0 when it was none."""


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """One message that was accepted and given up."""

    number: int
    """Rising, and never used again."""
    receiver: str
    """Local name; its agent may be gone."""
    sequence: int
    """Number that it had in the mailbox."""
    sender: str
    """`name@platform`, as the bus stamped it."""
    message_id: str
    """The sender's id, or the one that the bus gave."""
    via: str
    accepted_at: float
    """Unix seconds."""
    attempt: int
    """How often it was delivered."""
    reason: DeadReason
    error: str
    """The last error that a handler reported, or what else is to be said; "" for nothing."""
    died_at: float
    """When it was given up, in Unix seconds."""
    payload: bytes


class StoredKey(NamedTuple):
    """The key of a settled message, by which a repetition is recognised."""

    sender: str
    key: str
    receiver: str
    digest: bytes
    settled_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class StoredDescription:
    """One entry of the DF."""

    description: DFAgentDescription
    """With the granted lease."""
    registered_at: float
    """When the entry came to be, in Unix seconds; a change of it keeps this."""
    lease_end: float
    """Unix seconds; infinite without a lease."""


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """What a store keeps of one subscription with the DF by ACL message: how its end is told to the subscriber."""

    name: str
    """Local name of the subscriber."""
    conversation: str
    body: str
    """A text, whose meaning is that of `bus.last_words`."""


@dataclass(slots=True)
class StoredTask:
    """What a store keeps of one delegated task: texts, whose meaning is that of `bus.task_records`."""

    number: int
    """Rising in the order of delegation."""
    parts: dict[str, str] = field(default_factory=dict)
    """By name: what was delegated, its state, its checkpoint. Written apart, as they change at different times."""
    events: list[tuple[int, str]] = field(default_factory=list)
    """Sequence and text, by sequence, rising."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a shared context, or what is remembered of one that was removed."""

    key: str
    revision: int
    author: str
    """Who put or removed it, `name@platform`."""
    at: float
    """When, in Unix seconds."""
    value: str
    """JSON text; "" when it was removed."""
    removed: bool = False


@dataclass(slots=True)
class StoredContext:
    """What a store keeps of one shared context."""

    number: int
    """Rising in the order of beginning."""
    body: str
    """Whose it is; the meaning is that of `bus.context_records`."""
    entries: list[StoredEntry] = field(default_factory=list)
    """By revision, rising."""


@dataclass(slots=True)
class StoredPlatform:
    """Everything a store holds, read once at the start."""

    clean: bool = True
    """The last stop wrote everything; False after a crash."""
    agents: list[StoredAgent] = field(default_factory=list)
    """Oldest registration first."""
    messages: list[StoredMessage] = field(default_factory=list)
    """By receiver and sequence, rising."""
    keys: list[tuple[str, str, str, bytes, float]] = field(default_factory=list)
    """The fields of each `StoredKey`, oldest first. Plain tuples, since they are the most that a store holds."""
    descriptions: list[StoredDescription] = field(default_factory=list)
    """Entries of the DF, oldest registration first."""
    topics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Subscriptions to topics, by the local name of the agent."""
    subscriptions: list[StoredSubscription] = field(default_factory=list)
    """With the DF; those whose end nobody was told of."""
    dead_letters: list[StoredDeadLetter] = field(default_factory=list)
    """By number, rising."""
    next_dead_letter: int = 1
    """A number above that of every dead letter, also of those that are gone."""
    tasks: list[StoredTask] = field(default_factory=list)
    """By number, rising."""
    contexts: list[StoredContext] = field(default_factory=list)
    """By number, rising."""
    context_revision: int = 0
    """A number that no revision of a shared context that has ended is above."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One outcome of the store: every accept up to `through` that no earlier commit covered."""

    through: int
    """Position of the last accept that this commit covers."""
    error: str = ""
    """Why these accepts are not stored, such as a full disk; "" when they are durable."""
    final: bool = False
    """The store has failed for good, so trying again does not help."""


class Store(Protocol):
    """Keeps the platform across restarts. Methods without `async` never wait; what they write is durable in order.

    A failed write of accepts is reported by `next_commit` and leaves nothing of them behind. Everything else is tried
    again with the next write until it succeeds.
    """

    @property
    def durable(self) -> bool:
        """Whether accepted messages survive a crash. When False, accepts need no commit and get none."""
        ...

    async def open(self) -> StoredPlatform:
        """Open the store for this process alone and return what it holds.

        Raises:
            ConfigurationError: The file belongs to another program, or another bus has it open.
            StoreUnavailable: It cannot be read.
        """
        ...

    def accept(self, message: StoredMessage) -> int:
        """Store a message; return the position that `next_commit` will cover.

        Raises:
            InvalidArgument: It holds a value that cannot be stored, here as in the other methods that write.
        """
        ...

    def settle(self, receiver: str, sequence: int, key: StoredKey | None) -> None:
        """Remove a message, and remember the key of it when there is one."""
        ...

    def bury(self, letter: StoredDeadLetter) -> None:
        """Add a dead letter, before the message that it was is settled."""
        ...

    def exhume(self, numbers: Iterable[int]) -> None:
        """Remove dead letters."""
        ...

    def mark_attempts(self, receiver: str, attempts: Sequence[tuple[int, int]]) -> None:
        """Write (sequence, deliveries so far) of messages that were delivered and not settled."""
        ...

    def put_agent(self, agent: StoredAgent) -> None:
        """Write an agent, new or changed."""
        ...

    def remove_agent(self, name: str) -> None:
        """Remove an agent, its messages, its DF entry and its subscriptions."""
        ...

    def put_description(self, entry: StoredDescription) -> None:
        """Write a DF entry, new or changed."""
        ...

    def remove_description(self, name: str) -> None:
        """Remove a DF entry."""
        ...

    def put_topics(self, name: str, topics: Sequence[str]) -> None:
        """Write the subscriptions of an agent in the place of the former ones; none at all removes them."""
        ...

    def put_subscription(self, subscription: StoredSubscription) -> None:
        """Write a subscription with the DF, new or in the place of the one of the same agent and conversation."""
        ...

    def remove_subscription(self, name: str, conversation: str) -> None:
        """Remove a subscription with the DF."""
        ...

    def put_task(self, number: int, part: str, body: str) -> None:
        """Write one part of a delegated task, new or changed."""
        ...

    def add_task_event(self, number: int, sequence: int, body: str) -> None:
        """Add an event of a task."""
        ...

    def trim_task_events(self, number: int, before: int) -> None:
        """Forget the events of a task whose sequence is below ``before``."""
        ...

    def remove_task(self, number: int) -> None:
        """Remove a task with all its parts and events. Its number is not used again while the store is open."""
        ...

    def put_context(self, number: int, body: str) -> None:
        """Write whose a shared context is, new or changed."""
        ...

    def put_context_entry(self, number: int, entry: StoredEntry) -> None:
        """Write an entry of a shared context, or that it was removed, in the place of the former one of its key."""
        ...

    def drop_context_entries(self, number: int, keys: Iterable[str]) -> None:
        """Forget entries of a shared context that were removed."""
        ...

    def remove_context(self, number: int, revision: int) -> None:
        """Remove a shared context with all its entries. Its number is not used again while the store is open.

        Args:
            number: The context.
            revision: Its last one, which no later context may use again.
        """
        ...

    def prune_keys(self, settled_before: float, keep: int) -> None:
        """Forget the keys of messages settled before a time, and the oldest ones beyond ``keep``."""
        ...

    def together(self) -> AbstractContextManager[object]:
        """Return a block whose writes become durable together or not at all. It does not wait, and may be nested."""
        ...

    async def next_commit(self) -> Commit:
        """Wait for the next outcome. Only one caller waits at a time.

        Raises:
            StoreUnavailable: The store has failed and accepts nothing more.
        """
        ...

    async def flush(self) -> None:
        """Wait until everything written so far is durable.

        Raises:
            StoreUnavailable: It cannot be made durable.
        """
        ...

    async def close(self, *, clean: bool = True) -> None:
        """Write what is left, note a clean stop when ``clean``, and release the store. Idempotent."""
        ...
