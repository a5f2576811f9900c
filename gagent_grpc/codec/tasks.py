"""Delegated tasks to the wire and back; free JSON is text there and Python values here.

Owns: every field of a task, its events and attachments. Leaves to others: JSON itself (`acp.free_json`), calls
(`client.task_calls`).
"""

from __future__ import annotations

from typing import Any, cast

from gagent_grpc.acp.free_json import json_value, parameters_value
from gagent_grpc.acp.tasks import (
    Attachment,
    DelegatedTask,
    OnExecutorLost,
    TaskAttempt,
    TaskEvent,
    TaskEventKind,
    TaskKey,
    TaskState,
)
from gagent_grpc.codec.times import datetime_of
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import InvalidArgument, MissingParameter
from gagent_grpc.pb.gagent.v1 import acp_pb2, task_service_pb2

_STATES = {int(state): state for state in TaskState}
_POLICIES = {int(policy): policy for policy in OnExecutorLost}
_PRIORITIES = {int(priority): priority for priority in Priority}
_KINDS = {kind.value: kind for kind in TaskEventKind}
_WHAT = {field.name: field.number for field in task_service_pb2.TaskEvent.DESCRIPTOR.oneofs_by_name["what"].fields}


def state_from_proto(value: int) -> TaskState | None:
    """Return the state that ``value`` stands for; None for an absent one, or one that is not known here."""
    return _STATES.get(value)


def state_to_proto(state: TaskState) -> task_service_pb2.TaskState.ValueType:
    """Return a state as it travels."""
    return cast("task_service_pb2.TaskState.ValueType", int(state))


def policy_to_proto(policy: OnExecutorLost) -> acp_pb2.ExecutorLostPolicy.ValueType:
    """Return a policy as it travels."""
    return cast("acp_pb2.ExecutorLostPolicy.ValueType", int(policy))


def policy_from_proto(number: int) -> OnExecutorLost:
    """Return the policy with a number; an absent one means FAIL.

    Raises:
        InvalidArgument: There is none.
    """
    try:
        return OnExecutorLost(number or OnExecutorLost.FAIL)
    except ValueError:
        raise InvalidArgument(
            f"on_executor_lost {number}; expected 1 (fail) or 2 (redeliver)", field="on_executor_lost"
        ) from None


def parent_from_proto(delegator: str, task_id: str) -> TaskKey | None:
    """Return the parent that is named; None where none is.

    Raises:
        MissingParameter: It is named by half.
    """
    if not (delegator or task_id):
        return None
    if not (delegator and task_id):
        raise MissingParameter("task", "parent_delegator" if task_id else "parent_task_id")
    return TaskKey(delegator, task_id)


def priority_to_proto(priority: Priority) -> acp_pb2.Priority.ValueType:
    """Return an urgency as it travels."""
    return cast("acp_pb2.Priority.ValueType", int(priority))


def attachment_to_proto(attachment: Attachment) -> acp_pb2.TaskAttachment:
    """Return an attachment as it travels.

    Raises:
        InvalidArgument: It says neither where it is nor what it is, or its size is no number of bytes.
    """
    if not attachment.uri or not attachment.media_type:
        raise InvalidArgument("attachment: without uri or media_type; expected both", field="attachments")
    try:
        return acp_pb2.TaskAttachment(
            name=attachment.name,
            media_type=attachment.media_type,
            digest=attachment.digest,
            uri=attachment.uri,
            size_bytes=attachment.size_bytes,
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"attachment: cannot be sent ({error})", field="attachments") from error


def attachment_from_proto(attachment: acp_pb2.TaskAttachment) -> Attachment:
    """Return the attachment in ``attachment``."""
    return Attachment(
        uri=attachment.uri,
        media_type=attachment.media_type,
        name=attachment.name,
        digest=attachment.digest,
        size_bytes=attachment.size_bytes if attachment.HasField("size_bytes") else None,
    )


def attempt_from_proto(attempt: task_service_pb2.TaskAttempt) -> TaskAttempt:
    """Return the attempt in ``attempt``."""
    return TaskAttempt(
        number=attempt.number,
        executor=attempt.executor,
        began_at=datetime_of(attempt.began_at),
        ended_at=datetime_of(attempt.ended_at) if attempt.HasField("ended_at") else None,
        outcome=attempt.outcome,
        released=attempt.released,
    )


def task_from_proto(task: task_service_pb2.DelegatedTask) -> DelegatedTask:
    """Return the task in ``task``.

    Raises:
        InvalidArgument: It is in no state that is known here, or what should be JSON is none.
    """
    state = state_from_proto(task.state)
    if state is None:
        raise InvalidArgument(f"task: the state {task.state} is not known here", field="state")
    return DelegatedTask(
        task_id=task.task_id,
        delegator=task.delegator,
        target=task.target,
        executor=task.executor,
        description=task.description,
        state=state,
        created_at=datetime_of(task.created_at),
        updated_at=datetime_of(task.updated_at),
        parameters=parameters_value(task.parameters_json),
        callback_url=task.callback_url if task.HasField("callback_url") else None,
        reason=task.reason,
        result=_json(task.result_json, "result"),
        progress=task.progress if task.HasField("progress") else None,
        note=task.note,
        question=task.question,
        checkpoint=_json(task.checkpoint_json, "checkpoint"),
        cancel_requested=task.cancel_requested,
        attempts=tuple(attempt_from_proto(one) for one in task.attempts),
        max_attempts=task.max_attempts,
        on_executor_lost=_POLICIES.get(task.on_executor_lost, OnExecutorLost.FAIL),
        deadline=datetime_of(task.deadline) if task.HasField("deadline") else None,
        parent=TaskKey(task.parent_delegator, task.parent_task_id) if task.parent_task_id else None,
        root=TaskKey(task.root_delegator, task.root_task_id) if task.root_task_id else None,
        depth=task.depth,
        attachments=tuple(attachment_from_proto(one) for one in task.attachments),
        priority=_PRIORITIES.get(task.priority, Priority.NORMAL),
        last_event=task.last_event,
        forgotten_at=datetime_of(task.forgotten_at) if task.HasField("forgotten_at") else None,
    )


def event_from_proto(event: task_service_pb2.TaskEvent) -> TaskEvent:
    """Return the event in ``event``; one of a kind that is not known here has none.

    Raises:
        InvalidArgument: What should be JSON is none.
    """
    kind = _KINDS.get(_WHAT.get(event.WhichOneof("what") or "", 0))
    more: dict[str, Any] = {}
    if kind is TaskEventKind.STATE:
        change = event.state
        more = {
            "state": state_from_proto(change.state),
            "former": state_from_proto(change.former),
            "reason": change.reason,
            "question": change.question,
            "value": _json(change.result_json, "result"),
        }
    elif kind is TaskEventKind.PROGRESS:
        fraction = event.progress.fraction if event.progress.HasField("fraction") else None
        more = {"progress": fraction, "note": event.progress.note}
    elif kind is TaskEventKind.OUTPUT:
        more = {"text": event.output.text, "channel": event.output.channel}
    elif kind is TaskEventKind.ANSWER:
        more = {"value": _json(event.answer_json, "answer")}
    elif kind is TaskEventKind.SIGNAL:
        more = {"name": event.signal.name, "value": _json(event.signal.value_json, "value")}
    elif kind is TaskEventKind.CHECKPOINT:
        more = {"value": _json(event.checkpoint_json, "checkpoint")}
    elif kind is TaskEventKind.CANCEL_REQUESTED:
        more = {"reason": event.cancel_requested}
    return TaskEvent(event.sequence, datetime_of(event.at), event.attempt, kind, **more)


def _json(text: str, field: str) -> Any:
    return json_value(text, field) if text else None
