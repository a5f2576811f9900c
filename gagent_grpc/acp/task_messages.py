"""ACP messages about a task, as values: what the bus reads of DELEGATE, RESPONSE, NOTIFICATION, RESULT and ERROR.

Owns: their kinds, and the words of status by which agents speak of tasks. Leaves to others: the wire (`codec.task_messages`),
what follows from a message (the bus).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gagent_grpc.acp.tasks import Attachment, OnExecutorLost, TaskKey


class TaskMessageKind(enum.IntEnum):
    """Kinds of ACP messages that are about a task; the values are those of the wire."""

    RESPONSE = 2
    NOTIFICATION = 3
    ERROR = 5
    DELEGATE = 6
    RESULT = 7

    def __str__(self) -> str:
        return self.name


class Status:
    """Words of status in a RESPONSE, NOTIFICATION or RESULT."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RUNNING = "running"
    INPUT_REQUIRED = "input-required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CANCEL = "cancel"
    """To an executor, which did not accept by a call: the task is to end; the note says why."""
    ANSWER = "answer"
    """To such an executor: the note is the input that it asked for, as JSON text."""
    SIGNAL = "signal"
    """To such an executor: the note is a JSON object with the `name` and the `value` of a signal."""


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One message about a task. What does not belong to its kind has its default."""

    kind: TaskMessageKind
    task_id: str
    description: str = ""
    """Of DELEGATE, and the next ones: what is to be done, in words."""
    parameters: str = ""
    """One JSON object as text; "" for none."""
    callback_url: str | None = None
    attempt: int = 0
    """0 for the first one."""
    delegator: str = ""
    """`name@platform`; "" for the source of the message."""
    deadline: float = 0.0
    """When the task expires, in Unix seconds; 0.0 where that is not said."""
    on_executor_lost: OnExecutorLost = OnExecutorLost.FAIL
    max_attempts: int = 0
    """0 for 1 with FAIL and 3 with REDELIVER."""
    parent: TaskKey | None = None
    """Task that it comes of; None for none."""
    attachments: tuple[Attachment, ...] = ()
    ttl_seconds: float | None = None
    """Seconds from its acceptance after which the message, and so the task, is of no use; None for what the message says."""
    status: str = ""
    """Of RESPONSE, NOTIFICATION and RESULT."""
    progress: float | None = None
    """Of RESPONSE and NOTIFICATION: from 0 to 1."""
    note: str = ""
    """Of these: what is being done, in words."""
    result: str | None = None
    """Of RESULT: one JSON value as text; None for none."""
    code: str = ""
    """Of ERROR: reason in UPPER_SNAKE_CASE."""
    text: str = ""
    """Of ERROR: what went wrong, in words."""
