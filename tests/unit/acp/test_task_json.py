"""Tasks and events as JSON objects: what there is, under its name, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gagent_grpc.acp.task_json import event_to_json, task_to_json
from gagent_grpc.acp.tasks import DelegatedTask, TaskEvent, TaskEventKind, TaskState

AT = datetime(2026, 3, 1, 10, 0, 0, 123_000, UTC)


def task(**fields: Any) -> DelegatedTask:
    needed: dict[str, Any] = {
        "task_id": "t",
        "delegator": "a@local",
        "target": "b",
        "executor": "",
        "description": "",
        "state": TaskState.SUBMITTED,
        "created_at": AT,
        "updated_at": AT,
    }
    return DelegatedTask(**{**needed, **fields})


def test_what_a_task_has_not_is_absent() -> None:
    assert task_to_json(task(state=TaskState.SUBMITTED, last_event=1)) == {
        "task_id": "t",
        "delegator": "a@local",
        "target": "b",
        "state": "submitted",
        "created_at": "2026-03-01T10:00:00.123000Z",
        "updated_at": "2026-03-01T10:00:00.123000Z",
        "last_event": 1,
    }


def test_a_task_that_has_ended_has_a_result_also_when_it_is_null() -> None:
    done = task_to_json(task(state=TaskState.COMPLETED, result=None, progress=0.0))
    assert done["result"] is None
    # Nothing done is something else than nothing known.
    assert done["progress"] == 0.0
    failed = task_to_json(task(state=TaskState.FAILED, reason="no room"))
    assert (failed["state"], failed["reason"]) == ("failed", "no room")
    assert "result" not in task_to_json(task(state=TaskState.INPUT_REQUIRED, question="Which?"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": TaskEventKind.STATE, "state": TaskState.SUBMITTED}, {"kind": "state", "state": "submitted"}),
        (
            {"kind": TaskEventKind.STATE, "state": TaskState.COMPLETED, "former": TaskState.RUNNING, "value": 3.0},
            {"kind": "state", "state": "completed", "former": "running", "value": 3.0},
        ),
        (
            {"kind": TaskEventKind.STATE, "state": TaskState.COMPLETED, "value": None},
            {"kind": "state", "state": "completed", "value": None},
        ),
        ({"kind": TaskEventKind.PROGRESS, "progress": 0.0}, {"kind": "progress", "progress": 0.0}),
        ({"kind": TaskEventKind.OUTPUT, "text": "x"}, {"kind": "output", "text": "x"}),
        ({"kind": TaskEventKind.SIGNAL, "name": "stop"}, {"kind": "signal", "name": "stop", "value": None}),
        ({"kind": TaskEventKind.CANCEL_REQUESTED, "reason": "late"}, {"kind": "cancel-requested", "reason": "late"}),
        ({"kind": None}, {}),
    ],
)
def test_an_event_says_what_belongs_to_its_kind(fields: dict[str, Any], said: dict[str, Any]) -> None:
    made = event_to_json(TaskEvent(sequence=7, at=AT, attempt=2, **fields))
    assert made == {"sequence": 7, "at": "2026-03-01T10:00:00.123000Z", "attempt": 2, **said}
