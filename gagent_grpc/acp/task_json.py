"""Tasks and their events as JSON objects, for clients that read no protobuf.

Owns: names and forms of the keys. Leaves to others: the values (`acp.tasks`), the text (`acp.free_json`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gagent_grpc.acp.tasks import DelegatedTask, TaskEvent, TaskEventKind, TaskState

_WITH_VALUE = frozenset({TaskEventKind.ANSWER, TaskEventKind.CHECKPOINT, TaskEventKind.SIGNAL})


def task_to_json(task: DelegatedTask) -> dict[str, Any]:
    """Return the JSON object of a task; what it has not is absent, and so is `result` before it has ended."""
    made: dict[str, Any] = {
        "task_id": task.task_id,
        "delegator": task.delegator,
        "target": task.target,
        "executor": task.executor,
        "description": task.description,
        "parameters": task.parameters or None,
        "callback_url": task.callback_url,
        "state": str(task.state),
        "reason": task.reason,
        "progress": task.progress,
        "note": task.note,
        "question": task.question,
        "checkpoint": task.checkpoint,
        "cancel_requested": task.cancel_requested or None,
        "created_at": moment_to_json(task.created_at),
        "updated_at": moment_to_json(task.updated_at),
        "deadline": moment_to_json(task.deadline),
        "last_event": task.last_event,
    }
    made = {name: value for name, value in made.items() if value is not None and value != ""}
    if task.state.final:
        made["result"] = task.result
    return made


def event_to_json(event: TaskEvent) -> dict[str, Any]:
    """Return the JSON object of an event; what does not belong to its kind is absent."""
    made: dict[str, Any] = {
        "sequence": event.sequence,
        "at": moment_to_json(event.at),
        "attempt": event.attempt or None,
        "kind": str(event.kind) if event.kind is not None else None,
        "state": str(event.state) if event.state is not None else None,
        "former": str(event.former) if event.former is not None else None,
        "reason": event.reason,
        "question": event.question,
        "progress": event.progress,
        "note": event.note,
        "text": event.text,
        "channel": event.channel,
        "name": event.name,
    }
    made = {name: value for name, value in made.items() if value is not None and value != ""}
    if event.kind in _WITH_VALUE or event.state is TaskState.COMPLETED:
        made["value"] = event.value
    return made


def moment_to_json(moment: datetime | None) -> str | None:
    """Return a time as ISO 8601 text in UTC, such as `2026-01-31T09:30:00Z`; None for None."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z") if moment is not None else None
