"""ACP messages about a task: what the bus writes it reads again, and what is about no task it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.acp.task_messages import TaskMessage, TaskMessageKind
from gagent_grpc.acp.tasks import Attachment, OnExecutorLost, TaskKey
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

CODEC = EnvelopeCodec(max_id_bytes=128)
K = TaskMessageKind
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
NAME = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
FRACTION = st.none() | st.floats(min_value=0, max_value=1)
MESSAGES = st.one_of(
    st.builds(
        TaskMessage,
        st.just(K.DELEGATE),
        TEXT,
        description=TEXT,
        parameters=TEXT,
        callback_url=st.none() | TEXT,
        attempt=st.integers(0, 100),
        delegator=TEXT,
        deadline=st.integers(0, 2**40).map(float),
        on_executor_lost=st.sampled_from(OnExecutorLost),
        max_attempts=st.integers(0, 2**32 - 1),
        parent=st.none() | st.builds(TaskKey, NAME, NAME),
        attachments=st.lists(
            st.builds(Attachment, NAME, NAME, TEXT, TEXT, st.none() | st.integers(0, 2**64 - 1)), max_size=3
        ).map(tuple),
    ),
    st.builds(
        TaskMessage, st.sampled_from([K.RESPONSE, K.NOTIFICATION]), TEXT, status=TEXT, progress=FRACTION, note=TEXT
    ),
    st.builds(TaskMessage, st.just(K.RESULT), TEXT, status=TEXT, result=st.none() | TEXT),
    st.builds(TaskMessage, st.just(K.ERROR), TEXT, code=TEXT, text=TEXT),
)


@given(MESSAGES)
def test_what_is_written_is_read_again(message: TaskMessage) -> None:
    payload = CODEC.encode_task(
        message, source="a@p", target="b@p", message_id="m", in_reply_to="n", priority=Priority.HIGH, expires_at=2e9
    )
    assert CODEC.decode_task(payload) == message
    envelope = CODEC.decode(payload)
    assert (envelope.performative, envelope.sender, envelope.to, envelope.id) == (0, "a@p", ("b@p",), "m")
    assert (envelope.in_reply_to, envelope.priority, envelope.expires_at, envelope.resend) == ("n", 3, 2e9, False)


@pytest.mark.parametrize("kind", list(TaskMessageKind))
def test_kinds_have_the_numbers_of_the_wire(kind: TaskMessageKind) -> None:
    assert acp_pb2.AcpMessageType.Value(f"ACP_MESSAGE_TYPE_{kind}") == kind


def acp(kind: int, **content: Any) -> bytes:
    return pb.BusMessage(to=["b"], acp=acp_pb2.AcpMessage(message_type=kind, **content)).SerializeToString()


@pytest.mark.parametrize(
    "payload",
    [
        acp(acp_pb2.ACP_MESSAGE_TYPE_REQUEST, json="{}"),
        acp(acp_pb2.ACP_MESSAGE_TYPE_HEARTBEAT),
        acp(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE, json='{"task_id": "t"}'),
        acp(acp_pb2.ACP_MESSAGE_TYPE_RESULT, update=acp_pb2.TaskUpdate(task_id="t")),
        acp(acp_pb2.ACP_MESSAGE_TYPE_REQUEST, result=acp_pb2.TaskResult(task_id="t")),
        pb.BusMessage(to=["b"]).SerializeToString(),
    ],
)
def test_other_messages_are_about_no_task(payload: bytes) -> None:
    assert CODEC.decode_task(payload) is None


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (
            acp(acp_pb2.ACP_MESSAGE_TYPE_NOTIFICATION, update=acp_pb2.TaskUpdate(task_id="t", progress=1.5)),
            "acp.update.progress",
        ),
        (
            acp(acp_pb2.ACP_MESSAGE_TYPE_NOTIFICATION, update=acp_pb2.TaskUpdate(progress=float("nan"))),
            "acp.update.progress",
        ),
        (
            acp(
                acp_pb2.ACP_MESSAGE_TYPE_DELEGATE,
                delegation=acp_pb2.TaskDelegation(task_id="t"),
                metadata=acp_pb2.AcpMetadata(ttl_seconds=float("inf")),
            ),
            "acp.metadata.ttl_seconds",
        ),
        (
            acp(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE, delegation=acp_pb2.TaskDelegation(on_executor_lost=7)),  # type: ignore[arg-type]  # [arg-type]: a number of a later version.
            "acp.delegation.on_executor_lost",
        ),
        (
            acp(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE, delegation=acp_pb2.TaskDelegation(parent_task_id="p")),
            "acp.delegation.parent_delegator",
        ),
    ],
)
def test_number_that_cannot_be_is_refused_with_its_field(payload: bytes, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        CODEC.decode_task(payload)
    assert caught.value.field == field


def test_ids_that_were_left_out_are_filled_in_and_nothing_else_changes() -> None:
    message = pb.BusMessage(to=["b"], headers={"traceparent": "00-x"})
    message.acp.message_type = acp_pb2.ACP_MESSAGE_TYPE_DELEGATE
    message.acp.delegation.description = "do it"
    completed = pb.BusMessage.FromString(
        CODEC.complete_delegation(message.SerializeToString(), task_id="t", message_id="m")
    )
    message.id, message.acp.delegation.task_id = "m", "t"
    assert completed == message
    again = CODEC.complete_delegation(message.SerializeToString(), task_id="other", message_id="other")
    assert pb.BusMessage.FromString(again) == message
