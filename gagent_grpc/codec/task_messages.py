"""ACP messages about a task on the wire: what the bus reads of them, and those that it writes.

Owns: the typed parts of an ACP message as `TaskMessage`. Leaves to others: ACP messages in general (`codec.acp`), what makes
a message valid on its own (`codec.envelope`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar, cast

from gagent_grpc.acp.task_messages import TaskMessage, TaskMessageKind
from gagent_grpc.acp.tasks import OnExecutorLost
from gagent_grpc.codec.tasks import (
    attachment_from_proto,
    attachment_to_proto,
    parent_from_proto,
    policy_from_proto,
    policy_to_proto,
)
from gagent_grpc.codec.times import seconds_of, timestamp_of
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import InvalidArgument, MissingParameter
from gagent_grpc.pb.gagent.v1 import acp_pb2, bus_service_pb2

T = TypeVar("T")
_KINDS = {int(kind): kind for kind in TaskMessageKind}
_PARTS = {
    TaskMessageKind.DELEGATE: "delegation",
    TaskMessageKind.RESPONSE: "update",
    TaskMessageKind.NOTIFICATION: "update",
    TaskMessageKind.RESULT: "result",
    TaskMessageKind.ERROR: "error",
}
"""Content by which a message of each kind is about a task."""


def read_task_message(payload: bytes) -> TaskMessage | None:
    """Return what an encoded `BusMessage` says of a task; None when it is not about one.

    A message whose content is free JSON is about none, nor is one of another kind than its content belongs to.

    Raises:
        InvalidArgument: Its progress or its ttl is no number that it can be, its policy is none, or its parent is named by
            half.
    """
    acp = bus_service_pb2.BusMessage.FromString(payload).acp
    kind = _KINDS.get(acp.message_type)
    which = acp.WhichOneof("content")
    if kind is None or which is None or _PARTS.get(kind) != which:
        return None
    if which == "delegation":
        order = acp.delegation
        ttl = acp.metadata.ttl_seconds if acp.metadata.HasField("ttl_seconds") else None
        if ttl is not None and not (math.isfinite(ttl) and ttl >= 0):
            raise InvalidArgument(f"ttl_seconds {ttl}; expected seconds, 0 or more", field="acp.metadata.ttl_seconds")
        return TaskMessage(
            kind,
            order.task_id,
            description=order.description,
            parameters=order.parameters_json,
            callback_url=order.callback_url if order.HasField("callback_url") else None,
            attempt=order.attempt,
            delegator=order.delegator,
            # Before the epoch is as much over as one second after it.
            deadline=max(1.0, seconds_of(order.deadline)) if order.HasField("deadline") else 0.0,
            on_executor_lost=_of_delegation(lambda: policy_from_proto(order.on_executor_lost)),
            max_attempts=order.max_attempts,
            parent=_of_delegation(lambda: parent_from_proto(order.parent_delegator, order.parent_task_id)),
            attachments=tuple(attachment_from_proto(one) for one in order.attachments),
            ttl_seconds=ttl,
        )
    if which == "update":
        update = acp.update
        progress = update.progress if update.HasField("progress") else None
        if progress is not None and not 0 <= progress <= 1:
            raise InvalidArgument(f"progress {progress}; expected 0 to 1", field="acp.update.progress")
        return TaskMessage(kind, update.task_id, status=update.status, progress=progress, note=update.note)
    if which == "result":
        result = acp.result.result_json if acp.result.HasField("result_json") else None
        return TaskMessage(kind, acp.result.task_id, status=acp.result.status, result=result)
    return TaskMessage(kind, acp.error.task_id, code=acp.error.code, text=acp.error.text)


def write_task_message(
    message: TaskMessage,
    *,
    source: str,
    target: str,
    message_id: str,
    in_reply_to: str = "",
    priority: Priority = Priority.NORMAL,
    expires_at: float = 0.0,
    resend: bool = False,
) -> bytes:
    """Return the encoded `BusMessage` around a message about a task.

    Args:
        message: What it says.
        source: Who sends it.
        target: Whom it is for.
        message_id: Its id.
        in_reply_to: Id of the message that it answers; "" for none.
        priority: Its urgency.
        expires_at: When it stops being of use, in Unix seconds; 0.0 for never.
        resend: It may have been delivered before.
    """
    made = bus_service_pb2.BusMessage(id=message_id, to=[target], resend=resend)
    if priority is not Priority.NORMAL:
        made.priority = cast("acp_pb2.Priority.ValueType", int(priority))
    if expires_at:
        made.expires_at.CopyFrom(timestamp_of(expires_at))
    acp = made.acp
    acp.message_type = cast("acp_pb2.AcpMessageType.ValueType", int(message.kind))
    acp.source, acp.target = source, target
    if in_reply_to:
        acp.in_reply_to = in_reply_to
    part = _PARTS[message.kind]
    if part == "delegation":
        order = acp.delegation
        order.task_id, order.description, order.parameters_json = (
            message.task_id,
            message.description,
            message.parameters,
        )
        order.attempt, order.delegator = message.attempt, message.delegator
        if message.callback_url is not None:
            order.callback_url = message.callback_url
        if message.deadline:
            order.deadline.CopyFrom(timestamp_of(message.deadline))
        if message.on_executor_lost is not OnExecutorLost.FAIL:
            order.on_executor_lost = policy_to_proto(message.on_executor_lost)
        order.max_attempts = message.max_attempts
        if message.parent is not None:
            order.parent_delegator, order.parent_task_id = message.parent
        order.attachments.extend(attachment_to_proto(one) for one in message.attachments)
    elif part == "update":
        update = acp.update
        update.task_id, update.status = message.task_id, message.status
        if message.progress is not None:
            update.progress = message.progress
        if message.note:
            update.note = message.note
    elif part == "result":
        result = acp.result
        result.task_id, result.status = message.task_id, message.status
        if message.result is not None:
            result.result_json = message.result
    else:
        error = acp.error
        error.code, error.text, error.task_id = message.code, message.text, message.task_id
    return made.SerializeToString()


def _of_delegation(read: Callable[[], T]) -> T:
    """Return what ``read`` returns; what is wrong with it is said of the DELEGATE."""
    try:
        return read()
    except MissingParameter as error:
        raise InvalidArgument(f"{error.parameter} is missing", field=f"acp.delegation.{error.parameter}") from error
    except InvalidArgument as error:
        raise InvalidArgument(str(error), field=f"acp.delegation.{error.field}") from error


def complete_delegation(payload: bytes, *, task_id: str, message_id: str) -> bytes:
    """Return a DELEGATE with the ids that its sender left out; everything else in it stays."""
    made = bus_service_pb2.BusMessage.FromString(payload)
    made.id = made.id or message_id
    made.acp.delegation.task_id = made.acp.delegation.task_id or task_id
    return made.SerializeToString()
