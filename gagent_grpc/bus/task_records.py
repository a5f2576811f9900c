"""Delegated tasks as a store keeps them: three texts and the events, in JSON, and back.

Owns: the form. Leaves to others: what the values mean (`bus.tasks`), when they are written (`bus.task_table`), the store.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gagent_grpc.acp.tasks import Attachment, OnExecutorLost, TaskKey, TaskState
from gagent_grpc.bus.ports import StoredTask
from gagent_grpc.bus.task_values import (
    Answered,
    Attempt,
    CancelAsked,
    Noted,
    Produced,
    Progressed,
    Signalled,
    StateChanged,
    TaskEvent,
    TaskOrder,
    What,
)
from gagent_grpc.bus.tasks import Task
from gagent_grpc.envelope import Priority

ORDER, STATE, CHECKPOINT = "order", "state", "checkpoint"
"""Names of the parts: what never changes, what changes with nearly every write, and what may be large."""

_KINDS: dict[str, type[What]] = {
    "state": StateChanged,
    "progress": Progressed,
    "output": Produced,
    "answer": Answered,
    "signal": Signalled,
    "checkpoint": Noted,
    "cancel": CancelAsked,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_STATE = (
    "reason",
    "result",
    "progress",
    "note",
    "question",
    "cancel_requested",
    "cancel_by",
    "executor",
    "leased",
    "message_id",
    "sequence",
    "ended_by",
    "orphaned",
    "updated_at",
    "ended_at",
    "last_event",
)
"""Attributes of a task that are written as they are."""


def order_text(task: Task) -> str:
    """Return what never changes of a task."""
    order = task.order
    return _text(
        {
            "delegator": task.key.delegator,
            "task_id": task.key.task_id,
            "order": {
                **{one.name: getattr(order, one.name) for one in dataclasses.fields(order)},
                "attachments": [dataclasses.asdict(one) for one in order.attachments],
            },
            "target": task.target,
            "principal": task.principal,
            "created_at": task.created_at,
            "root": task.root,
            "depth": task.depth,
            "deadline": task.deadline,
            "by_message": task.by_message,
        }
    )


def state_text(task: Task) -> str:
    """Return what changes of a task, but its checkpoint and its events."""
    state = {name: getattr(task, name) for name in _STATE}
    return _text({**state, "state": task.state, "attempts": [dataclasses.asdict(one) for one in task.attempts]})


def event_text(event: TaskEvent) -> str:
    """Return an event without its sequence."""
    what = {one.name: getattr(event.what, one.name) for one in dataclasses.fields(event.what)}
    return _text({"at": event.at, "attempt": event.attempt, "kind": _NAMES[type(event.what)], **what})


def task_of(stored: StoredTask, *, max_events: int, max_event_bytes: int) -> Task:
    """Return the task that a store held.

    Raises:
        ValueError: A part is missing, or is not what this version writes.
    """
    try:
        found = json.loads(stored.parts[ORDER])
        state = json.loads(stored.parts[STATE])
        task = Task(
            stored.number,
            TaskKey(found["delegator"], found["task_id"]),
            _order(found["order"]),
            target=found["target"],
            principal=found["principal"],
            created_at=found["created_at"],
            root=TaskKey(*found["root"]),
            depth=found["depth"],
            deadline=found["deadline"],
            by_message=found["by_message"],
            max_events=max_events,
            max_event_bytes=max_event_bytes,
        )
        for name in _STATE:
            setattr(task, name, state[name])
        task.state = TaskState(state["state"])
        task.attempts = [Attempt(**one) for one in state["attempts"]]
        task.checkpoint = stored.parts.get(CHECKPOINT)
        last = task.last_event
        task.restore_events((_event(sequence, body) for sequence, body in stored.events), last)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"task {stored.number} is not what this version writes: {error!r}") from error
    return task


def _order(found: dict[str, Any]) -> TaskOrder:
    made = dict(found)
    made["on_executor_lost"] = OnExecutorLost(made["on_executor_lost"])
    made["priority"] = Priority(made["priority"])
    made["parent"] = TaskKey(*made["parent"]) if made["parent"] is not None else None
    made["attachments"] = tuple(Attachment(**one) for one in made["attachments"])
    return TaskOrder(**made)


def _event(sequence: int, body: str) -> TaskEvent:
    found = json.loads(body)
    at, attempt, kind = found.pop("at"), found.pop("attempt"), found.pop("kind")
    if kind == "state":
        found["former"] = TaskState(found["former"]) if found["former"] is not None else None
        found["state"] = TaskState(found["state"])
    return TaskEvent(sequence, at, attempt, _KINDS[kind](**found))


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
