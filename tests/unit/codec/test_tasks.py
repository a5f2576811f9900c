"""Tasks and their events from the wire: every field arrives, absent ones stay absent, numbers keep their types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from gagent_grpc import Attachment, OnExecutorLost, Priority, TaskAttempt, TaskEventKind, TaskKey, TaskState
from gagent_grpc.codec.tasks import attachment_to_proto, event_from_proto, state_from_proto, task_from_proto
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import task_service_pb2 as pb

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OF_JSON = '{"limit":3,"ratio":3.0,"ticket":9007199254740993}'


def filled(message: Any) -> Any:
    """Set every field of a message to something that is not its default."""
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1:
            continue
        if field.name.endswith("_json"):
            setattr(message, field.name, OF_JSON)
        elif field.message_type is not None:
            target = getattr(message, field.name)
            one = target.add() if field.is_repeated else target
            if field.message_type.full_name == "google.protobuf.Timestamp":
                one.FromDatetime(MOMENT)
            else:
                filled(one)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, field.name)
        elif field.type == FieldDescriptor.TYPE_DOUBLE:
            setattr(message, field.name, 0.25)
        else:
            setattr(message, field.name, 1 if field.type == FieldDescriptor.TYPE_BOOL else 2)
    return message


def test_every_field_of_a_task_arrives() -> None:
    task = task_from_proto(pb.DelegatedTask.FromString(filled(pb.DelegatedTask()).SerializeToString()))
    values = {"limit": 3, "ratio": 3.0, "ticket": 9007199254740993}
    assert (task.task_id, task.delegator, task.target, task.executor) == ("task_id", "delegator", "target", "executor")
    assert task.key == TaskKey("delegator", "task_id")
    assert (task.description, task.callback_url, task.reason) == ("description", "callback_url", "reason")
    assert (task.note, task.question, task.progress) == ("note", "question", 0.25)
    assert repr([task.parameters, task.result, task.checkpoint]) == repr([values] * 3)
    assert task.state is TaskState.ACCEPTED
    assert task.on_executor_lost is OnExecutorLost.REDELIVER
    assert task.priority is Priority.NORMAL
    assert task.cancel_requested
    assert task.attempts == (TaskAttempt(2, "executor", MOMENT, MOMENT, "outcome", released=True),)
    assert (task.max_attempts, task.depth, task.last_event) == (2, 2, 2)
    assert {task.created_at, task.updated_at, task.deadline, task.forgotten_at} == {MOMENT}
    assert task.parent == TaskKey("parent_delegator", "parent_task_id")
    assert task.root == TaskKey("root_delegator", "root_task_id")
    assert task.attachments == (Attachment("uri", "media_type", "name", "digest", 2),)


def test_what_is_absent_stays_absent() -> None:
    task = task_from_proto(pb.DelegatedTask(task_id="t", delegator="a@local", state=pb.TASK_STATE_SUBMITTED))
    assert task.parameters == {}
    assert [task.callback_url, task.result, task.progress, task.checkpoint] == [None] * 4
    assert [task.deadline, task.parent, task.root, task.forgotten_at] == [None] * 4
    assert (task.attempts, task.attachments, task.cancel_requested) == ((), (), False)
    assert (task.on_executor_lost, task.priority) == (OnExecutorLost.FAIL, Priority.NORMAL)


def test_task_that_cannot_be_read_says_which_field_is_at_fault() -> None:
    with pytest.raises(InvalidArgument, match="state 77"):
        task_from_proto(pb.DelegatedTask(state=77))
    with pytest.raises(InvalidArgument, match=r"^parameters: "):
        task_from_proto(pb.DelegatedTask(state=pb.TASK_STATE_RUNNING, parameters_json="[1]"))


@pytest.mark.parametrize(
    ("wire", "kind", "told"),
    [
        (
            {"state": {"former": 3, "state": 5, "reason": "why", "result_json": "3.0"}},
            TaskEventKind.STATE,
            {"former": TaskState.RUNNING, "state": TaskState.COMPLETED, "reason": "why", "value": 3.0},
        ),
        (
            {"state": {"state": 4, "question": "which?"}},
            TaskEventKind.STATE,
            {"former": None, "state": TaskState.INPUT_REQUIRED, "question": "which?", "value": None},
        ),
        ({"progress": {"fraction": 0.0, "note": "n"}}, TaskEventKind.PROGRESS, {"progress": 0.0, "note": "n"}),
        ({"progress": {"note": "n"}}, TaskEventKind.PROGRESS, {"progress": None, "note": "n"}),
        ({"output": {"text": "part", "channel": "log"}}, TaskEventKind.OUTPUT, {"text": "part", "channel": "log"}),
        ({"answer_json": '"yes"'}, TaskEventKind.ANSWER, {"value": "yes"}),
        ({"signal": {"name": "pause", "value_json": "[3]"}}, TaskEventKind.SIGNAL, {"name": "pause", "value": [3]}),
        ({"signal": {"name": "pause"}}, TaskEventKind.SIGNAL, {"name": "pause", "value": None}),
        ({"checkpoint_json": '{"page":3}'}, TaskEventKind.CHECKPOINT, {"value": {"page": 3}}),
        ({"cancel_requested": "late"}, TaskEventKind.CANCEL_REQUESTED, {"reason": "late"}),
    ],
)
def test_every_event_arrives(wire: dict[str, Any], kind: TaskEventKind, told: dict[str, Any]) -> None:
    event = event_from_proto(pb.TaskEvent(sequence=7, attempt=2, **wire))
    assert (event.sequence, event.attempt, event.kind) == (7, 2, kind)
    assert {name: getattr(event, name) for name in told} == told
    assert all(type(getattr(event, name)) is type(value) for name, value in told.items())


def test_every_kind_of_the_wire_is_known() -> None:
    fields = pb.TaskEvent.DESCRIPTOR.oneofs_by_name["what"].fields
    assert {field.number for field in fields} == set(TaskEventKind)


def test_event_of_a_later_version_has_no_kind() -> None:
    event = event_from_proto(pb.TaskEvent(sequence=7))
    assert (event.sequence, event.kind) == (7, None)


def test_states_are_those_of_the_wire() -> None:
    assert {f"TASK_STATE_{state.name}": int(state) for state in TaskState} == {
        name: number for name, number in pb.TaskState.items() if number
    }
    assert state_from_proto(0) is None


def test_attachment_without_its_place_or_kind_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="uri"):
        attachment_to_proto(Attachment("", "text/csv"))
    with pytest.raises(InvalidArgument, match="media_type"):
        attachment_to_proto(Attachment("file:///x", ""))
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        attachment_to_proto(Attachment("file:///x", "text/csv", size_bytes=-1))
