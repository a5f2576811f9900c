"""How tasks and their events look: what a person reads, and what a program gets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gagent_grpc import Attachment, DelegatedTask, TaskAttempt, TaskEvent, TaskEventKind, TaskKey, TaskState
from gagent_grpc.acp.task_json import event_to_json
from gagent_grpc.cli.task_view import Screen, event_words, print_task, row_of, task_to_json

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def task(**more: Any) -> DelegatedTask:
    values: dict[str, Any] = {
        "task_id": "t1",
        "delegator": "boss@local",
        "target": "role:work",
        "executor": "worker@local",
        "description": "Do\nit " + "x" * 100,
        "state": TaskState.RUNNING,
        "created_at": AT,
        "updated_at": AT,
    }
    return DelegatedTask(**(values | more))


def event(kind: TaskEventKind | None, **more: Any) -> TaskEvent:
    return TaskEvent(7, AT, 1, kind, **more)


def test_row_of_a_table_is_short_and_on_one_line() -> None:
    row = row_of(task(progress=0.256, attempts=(TaskAttempt(1, "worker@local", AT, None, ""),), max_attempts=3))
    assert (row[1], row[2], row[5]) == ("running", "26%", "1/3")
    assert row[-1].startswith("Do it xxx")
    assert row[-1].endswith("...")
    assert len(row[-1]) < 70
    # One that was given back is not one of them.
    given_back = TaskAttempt(1, "other@local", AT, AT, "released", released=True)
    assert row_of(task(attempts=(given_back, TaskAttempt(2, "worker@local", AT, None, "")), max_attempts=1))[5] == "1/1"
    assert row_of(task())[2] == ""


def test_task_is_shown_with_what_it_has_and_without_what_it_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    print_task(
        task(
            description="\x1b[31mred",
            state=TaskState.COMPLETED,
            result={"ratio": 3.0},
            attempts=(TaskAttempt(1, "worker@local", AT, AT, "completed"),),
            attachments=(Attachment("file:///a", "text/plain", "a"),),
            parent=TaskKey("boss@local", "t0"),
        )
    )
    shown = capsys.readouterr().out
    assert '{"ratio": 3.0}' in shown
    assert r"\x1b[31mred" in shown
    assert "t0 of boss@local" in shown
    assert "a text/plain file:///a" in shown
    assert "attempt 1:" in shown
    for absent in ("question", "checkpoint", "deadline", "cancel", "callback"):
        assert absent not in shown


def test_json_of_a_task_leaves_out_what_is_not_there_but_for_its_result() -> None:
    made = task_to_json(task())
    assert made["state"] == "running"
    assert not {"result", "question", "deadline", "parent", "attachments", "cancel_requested", "parameters"} & set(made)
    made = task_to_json(task(state=TaskState.COMPLETED, progress=0.0, parameters={"a": 3}))
    assert made["result"] is None
    assert (made["progress"], made["parameters"]) == (0.0, {"a": 3})


@pytest.mark.parametrize(
    ("told", "words", "keys"),
    [
        (
            event(TaskEventKind.STATE, state=TaskState.COMPLETED, former=TaskState.RUNNING, value=[3.0]),
            ["completed", "[3.0]"],
            {"state": "completed", "former": "running", "value": [3.0]},
        ),
        (
            event(TaskEventKind.STATE, state=TaskState.FAILED, reason="why"),
            ["failed", "(why)"],
            {"state": "failed", "reason": "why"},
        ),
        (
            event(TaskEventKind.STATE, state=TaskState.INPUT_REQUIRED, question="Which?"),
            ["input-required", "Which?"],
            {"state": "input-required", "question": "Which?"},
        ),
        (
            event(TaskEventKind.PROGRESS, progress=0.0, note="n"),
            ["progress", "0%", "n"],
            {"progress": 0.0, "note": "n"},
        ),
        (
            event(TaskEventKind.OUTPUT, text="part", channel="log"),
            ["output", "[log]", "part"],
            {"text": "part", "channel": "log"},
        ),
        (event(TaskEventKind.ANSWER, value="yes"), ["answer", "yes"], {"value": "yes"}),
        (event(TaskEventKind.SIGNAL, name="stop"), ["signal", "stop"], {"name": "stop", "value": None}),
        (event(TaskEventKind.CHECKPOINT, value={"p": 3}), ["checkpoint", '{"p": 3}'], {"value": {"p": 3}}),
        (event(TaskEventKind.CANCEL_REQUESTED, reason="late"), ["cancel requested", "(late)"], {"reason": "late"}),
        (event(None), ["something that this version does not know"], {}),
    ],
    ids=lambda value: str(value.kind) if isinstance(value, TaskEvent) else None,
)
def test_event_is_words_for_people_and_keys_for_programs(
    told: TaskEvent, words: list[str], keys: dict[str, Any]
) -> None:
    assert [one for one in event_words(told) if one] == words
    kind = {} if told.kind is None else {"kind": str(told.kind)}
    assert event_to_json(told) == {"sequence": 7, "at": "2026-01-02T03:04:05Z", "attempt": 1} | kind | keys


def test_output_is_shown_as_it_comes_and_ends_with_a_line_end(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(lines=False)
    with screen.open(task()):
        for part in ("one ", "two\n", "\x1b[31mthree"):
            screen.show(event(TaskEventKind.OUTPUT, text=part))
        screen.show(event(TaskEventKind.PROGRESS, progress=0.5))
        screen.show(event(TaskEventKind.STATE, state=TaskState.INPUT_REQUIRED, question="Which?"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("one two\n\\x1b[31mthree")
    assert "Which? Answer: gagent task answer t1 TEXT" in shown.err
    assert shown.err.endswith("\n")


def test_followed_task_is_a_line_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(lines=True)
    with screen.open(task()):
        screen.show(event(TaskEventKind.OUTPUT, text="a\nb"))
        screen.show(event(TaskEventKind.PROGRESS, progress=0.5, note="half"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [r"output a\nb", "progress 50% half"]
