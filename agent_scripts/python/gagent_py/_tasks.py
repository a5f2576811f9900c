"""Tasks and ACP messages as a script sees them. Owns: reading their events. Leaves building actions to `_task_actions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


def _read(cls: Any, found: Mapping[str, Any], left_out: tuple[str, ...] = ()) -> Any:
    """Return a `cls` with what an event holds; what it has no field for goes to `extra`, and null counts as absent."""
    names = {one.name for one in fields(cls)} - {"extra"}
    known = {key: value for key, value in found.items() if key in names and value is not None}
    extra = {key: value for key, value in found.items() if key not in names and key not in left_out}
    return cls(**known, extra=extra)


@dataclass
class Task:
    """A task that somebody delegated to this agent, as one attempt at it begins."""

    task_id: str = ""
    """Unique for its delegator."""
    delegator: str = ""
    """Who delegated it, `name@platform`."""
    description: str = ""
    """What is to be done, in words."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Arguments, as JSON has them."""
    attempt: int = 1
    """Number of this attempt, from 1."""
    checkpoint: Any = None
    """What was saved last, by an earlier attempt or an earlier run of this script; None for nothing."""
    target: str = ""
    """Whom it was delegated to, as the delegator wrote it: this agent, or `role:TYPE`."""
    deadline: str = ""
    """When it expires, in ISO 8601; "" for never."""
    attachments: list[dict[str, Any]] = field(default_factory=list)
    """What belongs to it and lies elsewhere: `uri`, `media_type`, `name`, `digest`, `size_bytes`."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What else the event held."""

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Task:
        """Return the task that a `delegate` event hands over."""
        task: Task = _read(cls, event, ("event", "id"))
        return task


@dataclass
class TaskEvent:
    """Something that happened to a task that this agent delegated, or works on. What does not belong to its kind is empty.

    Of tasks that it delegated the kinds are `accepted`, `progress`, `output`, `question`, and at the end `result` or
    `error`; of tasks that it works on they are `answer`, `signal` and `cancel`, after which the task is not its own any
    more.
    """

    task_id: str = ""
    kind: str = ""
    delegator: str = ""
    """Who delegated it, `name@platform`; "" for a task of this agent's own."""
    progress: float | None = None
    """Of progress: from 0 to 1; None where it is not known."""
    note: str = ""
    """Of progress: what is being done, in words."""
    text: str = ""
    """Of output: the part, in order."""
    channel: str = ""
    """Of output: where the part belongs."""
    question: str = ""
    """Of question: what the executor asks; `answer_task` answers it."""
    result: Any = None
    """Of result."""
    state: str = ""
    """Of error: failed, rejected, cancelled or expired; unknown when nothing more can be heard of it."""
    reason: str = ""
    """Of error and cancel: why, in words."""
    name: str = ""
    """Of signal: its name."""
    value: Any = None
    """Of answer: the input that was asked for. Of signal: what is told."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What else the event held."""

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> TaskEvent:
        """Return what a `task` event tells."""
        told: TaskEvent = _read(cls, event, ("event", "id"))
        return told

    @property
    def is_end(self) -> bool:
        """Whether nothing more comes of the task."""
        return self.kind in ("result", "error", "cancel")


@dataclass
class ACPMessage:
    """One ACP message. What is absent is empty."""

    type: str = ""
    """request, response, notification, heartbeat, error, delegate or result."""
    source: str = ""
    """Who sent it, as the bus vouches for it."""
    content: Any = None
    """A JSON value."""
    id: str = ""
    target: str = ""
    in_reply_to: str = ""
    """Id of the message that it answers."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """`priority`, `ttl` in seconds, `trace`, and further entries."""
    timestamp: str = ""
    """When it was made, in ISO 8601."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What else the message held."""

    @classmethod
    def from_msg(cls, msg: Mapping[str, Any]) -> ACPMessage:
        """Return the message that the `msg` object of an `acp` event describes."""
        message: ACPMessage = _read(cls, msg)
        return message
