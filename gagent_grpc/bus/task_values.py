"""What a delegated task is made of: what was asked for, attempts, and the events that tell of it. Values, with their sizes.

Owns: the values. Leaves to others: the task, which makes them (`bus.tasks`), their form in a store (`bus.task_records`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from gagent_grpc.acp.tasks import Attachment, OnExecutorLost, TaskKey, TaskState
from gagent_grpc.envelope import Priority

_EVENT_COST = 300
"""What an event takes beside its texts, in bytes."""


# ---- what was delegated ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """What was delegated. It never changes, and by it a repetition is recognised."""

    address: str
    """Whom it is for: `name@platform` or `role:TYPE`."""
    description: str
    parameters: str = ""
    """One JSON object as text; "" for none."""
    callback_url: str | None = None
    deadline: float = 0.0
    """When it expires, as was asked for, in Unix seconds; 0.0 for never."""
    on_executor_lost: OnExecutorLost = OnExecutorLost.FAIL
    max_attempts: int = 1
    parent: TaskKey | None = None
    attachments: tuple[Attachment, ...] = ()
    priority: Priority = Priority.NORMAL

    def difference(self, other: TaskOrder) -> str:
        """Return the name of the first value that differs; "" when none does."""
        for one in fields(self):
            if getattr(self, one.name) != getattr(other, one.name):
                return one.name
        return ""

    @property
    def size(self) -> int:
        """Bytes that its texts take, nearly."""
        texts = [self.address, self.description, self.parameters, self.callback_url or ""]
        for one in self.attachments:
            texts += (one.uri, one.media_type, one.name, one.digest)
        return size_of(*texts)


# ---- what happened ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Another state."""

    former: TaskState | None
    """None for the first one."""
    state: TaskState
    reason: str = ""
    result: str | None = None
    """Of COMPLETED: one JSON value as text; None for none."""
    question: str = ""
    """Of INPUT_REQUIRED."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far it is."""

    fraction: float | None
    """From 0 to 1; None where it is not known."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Produced:
    """A part of what comes out of it."""

    text: str
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """The input that was asked for, as one JSON value in text."""

    answer: str


@dataclass(frozen=True, slots=True)
class Signalled:
    """What the delegator told the executor."""

    name: str
    value: str = ""
    """One JSON value as text; "" for nothing more."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What the executor noted for whoever goes on after it, as one JSON value in text."""

    checkpoint: str


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """The delegator wants it to end."""

    reason: str = ""


What = StateChanged | Progressed | Produced | Answered | Signalled | Noted | CancelAsked


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Something that happened to a task."""

    sequence: int
    """1, 2, 3 ... within the task."""
    at: float
    """Unix seconds."""
    attempt: int
    """Attempt that it belongs to; 0 for none."""
    what: What

    @property
    def size(self) -> int:
        """Bytes that it takes, nearly."""
        values = (getattr(self.what, one.name) for one in fields(self.what))
        return _EVENT_COST + size_of(*(value for value in values if isinstance(value, str)))

    @property
    def concerns_executor(self) -> bool:
        """Whether it is something that the delegator said."""
        return isinstance(self.what, Answered | Signalled | CancelAsked)


@dataclass(slots=True)
class Attempt:
    """One attempt at a task."""

    number: int
    executor: str
    """`name@platform`."""
    handed_at: float = 0.0
    """When it was handed over, in Unix seconds."""
    began_at: float = 0.0
    """When it was accepted, in Unix seconds; 0.0 where nobody did."""
    ended_at: float = 0.0
    """0.0 while it is in force or due."""
    outcome: str = ""
    """How it ended, in words."""
    released: bool = False
    """Its executor gave it back, and it does not count."""


def size_of(*texts: str) -> int:
    """Return the bytes that texts take in memory, nearly: what is not ASCII counts for what it takes encoded."""
    return sum(len(text) if text.isascii() else len(text.encode(errors="surrogatepass")) for text in texts)
