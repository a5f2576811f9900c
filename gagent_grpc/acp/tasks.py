"""Delegated tasks as values: their states, what the bus keeps of one, and what happens to it.

Owns: the words and the values. Leaves to others: the rules by which a task changes (the bus), the wire (`codec.tasks`),
JSON (`acp.free_json`).
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from gagent_grpc.envelope import Priority


class TaskState(enum.IntEnum):
    """State of a task; the values are those of the wire. The first final one that is reached stays."""

    SUBMITTED = 1
    """Kept by the bus; nobody has taken it up."""
    ACCEPTED = 2
    """An executor has taken it up."""
    RUNNING = 3
    """Work has begun."""
    INPUT_REQUIRED = 4
    """The executor waits for input of the delegator."""
    COMPLETED = 5
    """Done; there is a result."""
    FAILED = 6
    """It ended without a result."""
    REJECTED = 7
    """The executor did not take it."""
    CANCELLED = 8
    """The delegator, or the end of its parent, called it off."""
    EXPIRED = 9
    """Its deadline passed."""

    @property
    def final(self) -> bool:
        """Whether a task stays in this state."""
        return self >= TaskState.COMPLETED

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


class OnExecutorLost(enum.IntEnum):
    """What becomes of a task whose executor is lost; the values are those of the wire."""

    FAIL = 1
    """It fails."""
    REDELIVER = 2
    """It is handed over again, as often as its `max_attempts` allow, with the last checkpoint."""

    def __str__(self) -> str:
        return self.name.lower()


class TaskKey(NamedTuple):
    """What names a task."""

    delegator: str
    """Who delegated it, `name@platform`."""
    task_id: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something that belongs to a task and lies elsewhere. The bus carries it and never fetches it."""

    uri: str
    """Where it is."""
    media_type: str
    """Such as `text/csv`."""
    name: str = ""
    """Name for people; "" for none."""
    digest: str = ""
    """`sha256:HEX` of its content; "" where it is not known."""
    size_bytes: int | None = None
    """Size of its content in bytes; None where it is not known."""

    @classmethod
    def of(cls, content: bytes, uri: str, media_type: str, *, name: str = "") -> Attachment:
        """Return the attachment for ``content``, which whoever makes it keeps at ``uri``."""
        return cls(uri, media_type, name, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))

    def matches(self, content: bytes) -> bool:
        """Whether ``content`` is what the attachment says, as far as it says anything."""
        if self.size_bytes is not None and len(content) != self.size_bytes:
            return False
        return not self.digest or self.digest.lower() == f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt at a task."""

    number: int
    """1, 2, 3 ..."""
    executor: str
    """Who worked on it, `name@platform`."""
    began_at: datetime
    ended_at: datetime | None
    """None while it is in force."""
    outcome: str
    """How it ended, in words, such as `completed` or `executor lost`; "" while it is in force."""
    released: bool = False
    """Its executor gave it back, and it does not count."""


@dataclass(frozen=True, slots=True)
class DelegatedTask:
    """A task as the bus keeps it. Free JSON is there as Python values, with the types of its numbers kept."""

    task_id: str
    """Identity, unique for the delegator."""
    delegator: str
    """Who delegated it, `name@platform`."""
    target: str
    """Whom it was delegated to, as the delegator wrote it."""
    executor: str
    """Whose mailbox it was handed to, `name@platform`; "" while nobody was found."""
    description: str
    """What is to be done, in words."""
    state: TaskState
    created_at: datetime
    updated_at: datetime
    parameters: dict[str, Any] = field(default_factory=dict)
    """Arguments; {} for none."""
    callback_url: str | None = None
    """Carried unchanged and never fetched by the bus."""
    reason: str = ""
    """Why it is in its state, in words; "" for nothing to say."""
    result: Any = None
    """Outcome of a completed task; None for none, too."""
    progress: float | None = None
    """From 0 to 1; None where it is not known."""
    note: str = ""
    """What is being done, in words; "" for nothing to say."""
    question: str = ""
    """What the executor asks while input is required."""
    checkpoint: Any = None
    """What the executor noted last for whoever goes on after it; None for nothing."""
    cancel_requested: bool = False
    """The delegator asked to cancel it."""
    attempts: tuple[TaskAttempt, ...] = ()
    """So far, the present one last."""
    max_attempts: int = 1
    on_executor_lost: OnExecutorLost = OnExecutorLost.FAIL
    deadline: datetime | None = None
    """When it expires; None for never."""
    parent: TaskKey | None = None
    """Task that it came of; None for none."""
    root: TaskKey | None = None
    """First task of the chain; itself where it has no parent."""
    depth: int = 1
    """Place in the chain, from 1."""
    attachments: tuple[Attachment, ...] = ()
    priority: Priority = Priority.NORMAL
    last_event: int = 0
    """Sequence of its last event."""
    forgotten_at: datetime | None = None
    """When the bus forgets it; None before it has ended."""

    @property
    def key(self) -> TaskKey:
        """What names it."""
        return TaskKey(self.delegator, self.task_id)


class TaskEventKind(enum.IntEnum):
    """What happened to a task; the values are the field numbers of the wire."""

    STATE = 4
    """Its state changed."""
    PROGRESS = 5
    """The executor told how far it is."""
    OUTPUT = 6
    """A part of what comes out of it."""
    ANSWER = 7
    """The delegator gave the input that was asked for."""
    SIGNAL = 8
    """The delegator told the executor something."""
    CHECKPOINT = 9
    """The executor noted something for whoever goes on after it."""
    CANCEL_REQUESTED = 10
    """The delegator asked to cancel it."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Something that happened to a task. What does not belong to its kind has its default."""

    sequence: int
    """1, 2, 3 ... within the task."""
    at: datetime
    """When, by the clock of the bus."""
    attempt: int
    """Attempt that it belongs to; 0 for none."""
    kind: TaskEventKind | None
    """What happened; None for something that this version does not know."""
    state: TaskState | None = None
    """Of STATE: the one now."""
    former: TaskState | None = None
    """Of STATE: the one before; None for the first one."""
    reason: str = ""
    """Of STATE and CANCEL_REQUESTED: why, in words."""
    question: str = ""
    """Of STATE, when input is required: what is asked."""
    progress: float | None = None
    """Of PROGRESS: from 0 to 1; None where it is not known."""
    note: str = ""
    """Of PROGRESS: what is being done, in words."""
    text: str = ""
    """Of OUTPUT: the part, in order."""
    channel: str = ""
    """Of OUTPUT: where it belongs; "" for the only one."""
    name: str = ""
    """Of SIGNAL: its name."""
    value: Any = None
    """Of STATE, when completed, the result; of ANSWER the input; of SIGNAL and CHECKPOINT what is told."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What a delegator tells the executor of a running task."""

    name: str
    value: Any = None
