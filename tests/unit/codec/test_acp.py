"""ACP messages to the wire and back: nothing is dropped, and nothing changes its type."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc import ACPMessage, ACPMessageType, ACPMetadata, InvalidArgument
from gagent_grpc.codec.acp import TYPES_BY_NUMBER, acp_from_proto, acp_to_proto
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.pb.gagent.v1 import acp_pb2, bus_service_pb2

KIND_OF_PART = {
    "delegation": ACPMessageType.DELEGATE,
    "update": ACPMessageType.NOTIFICATION,
    "result": ACPMessageType.RESULT,
    "error": ACPMessageType.ERROR,
    "json": ACPMessageType.REQUEST,
}
NUMBERS = {kind: number for number, kind in TYPES_BY_NUMBER.items()}


def there(message: ACPMessage) -> acp_pb2.AcpMessage:
    made = acp_pb2.AcpMessage()
    acp_to_proto(message, made)
    return acp_pb2.AcpMessage.FromString(made.SerializeToString())


def and_back(message: ACPMessage) -> ACPMessage:
    return acp_from_proto(there(message))


# ---- every field of the protos -----------------------------------------------------------------------------------------


def value_for(field: FieldDescriptor) -> Any:
    """Return a value that is not the default of the field."""
    if field.name.endswith("_json") or field.name == "json":
        return '{"limit":3,"ratio":3.0,"ticket":9007199254740993}'
    return {
        FieldDescriptor.CPPTYPE_STRING: f"a {field.name}",
        FieldDescriptor.CPPTYPE_DOUBLE: 0.25,
        FieldDescriptor.CPPTYPE_UINT32: 7,
        FieldDescriptor.CPPTYPE_INT64: 1_700_000_000,
        FieldDescriptor.CPPTYPE_INT32: 123_456_000,
        FieldDescriptor.CPPTYPE_UINT64: 2**53 + 1,
        FieldDescriptor.CPPTYPE_ENUM: field.enum_type.values[-1].number if field.enum_type else 0,
    }[field.cpp_type]


def fill(message: Message, without: str = "", part: str = "") -> None:
    """Fill every field but the one whose path is ``without``; of the content only ``part``."""
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None and field.containing_oneof.name == "content" and field.name != part:
            continue
        if field.name == without:
            continue
        inner = without.removeprefix(f"{field.name}.") if without.startswith(f"{field.name}.") else ""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)["entry"] = "a text"
        elif field.message_type is not None and field.is_repeated:
            fill(getattr(message, field.name).add(), inner)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), inner)
        else:
            setattr(message, field.name, value_for(field))


def filled(part: str, without: str = "") -> acp_pb2.AcpMessage:
    message = acp_pb2.AcpMessage()
    fill(message, without, part)
    message.message_type = NUMBERS[KIND_OF_PART[part]]  # type: ignore[assignment]  # [assignment]: a number.
    return message


def paths(descriptor: Any, prefix: str = "") -> list[str]:
    found = []
    for field in descriptor.fields:
        if field.name in ("message_type", "timestamp") or (
            field.containing_oneof and field.containing_oneof.name == "content"
        ):
            continue
        found.append(prefix + field.name)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            found += paths(field.message_type, f"{prefix}{field.name}.")
    return found


@pytest.mark.parametrize("part", KIND_OF_PART)
def test_every_field_survives(part: str) -> None:
    message = filled(part)
    assert there(acp_from_proto(message)) == message


def test_every_part_of_the_content_is_tried() -> None:
    assert {one.name for one in acp_pb2.AcpMessage.DESCRIPTOR.oneofs_by_name["content"].fields} == set(KIND_OF_PART)


@pytest.mark.parametrize("part", KIND_OF_PART)
@pytest.mark.parametrize("absent", paths(acp_pb2.AcpMessage.DESCRIPTOR))
def test_an_absent_field_stays_absent(part: str, absent: str) -> None:
    message = filled(part, absent)
    assert there(acp_from_proto(message)) == message


@pytest.mark.parametrize("part", [part for part in KIND_OF_PART if part != "json"])
def test_an_absent_field_of_a_part_stays_absent(part: str) -> None:
    for field in getattr(acp_pb2.AcpMessage(), part).DESCRIPTOR.fields:
        if field.name == "task_id" and part in ("update", "result"):
            # Without it the content is free.
            continue
        message = filled(part, f"{part}.{field.name}")
        assert not getattr(message, part).ListFields() or field.name not in {
            one.name for one, _ in getattr(message, part).ListFields()
        }
        assert there(acp_from_proto(message)) == message


def test_every_type_has_its_number() -> None:
    names = {number: name for name, number in acp_pb2.AcpMessageType.items() if number}
    assert {number: f"ACP_MESSAGE_TYPE_{kind.name}" for number, kind in TYPES_BY_NUMBER.items()} == names


# ---- every value of the JSON form --------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(
    [
        "task_id",
        "status",
        "progress",
        "note",
        "result",
        "code",
        "error",
        "text",
        "description",
        "task_description",
        "parameters",
        "callback_url",
        "attempt",
        "delegator",
        "other",
    ]
)
objects = st.dictionaries(keys, texts | json_values, max_size=5)
metadata = st.none() | st.builds(
    ACPMetadata,
    priority=st.none() | st.sampled_from(["low", "normal", "high", "urgent"]),
    ttl=st.none() | st.integers(0, 10**9),
    trace=st.none() | texts,
    entries=st.dictionaries(texts.filter(lambda key: key not in ("priority", "ttl", "trace")), json_values, max_size=3),
)


def written(message: ACPMessage) -> str:
    return json.dumps(message.to_dict(), sort_keys=True)


@given(
    st.sampled_from(ACPMessageType),
    objects | json_values,
    metadata,
    st.dictionaries(texts.map("x{}".format), json_values),
)
def test_any_message_arrives_as_it_was(
    kind: ACPMessageType, content: Any, meta: ACPMetadata | None, extra: Any
) -> None:
    message = ACPMessage("m", kind, "a", "b", content, meta, in_reply_to="q", extra=extra)
    assert written(and_back(message)) == written(message)


@pytest.mark.parametrize("prefix", ["json:", "content:", "as:", "message:"])
def test_an_entry_that_looks_like_one_of_ours_is_an_entry(prefix: str) -> None:
    message = ACPMessage(type="request", metadata=ACPMetadata(entries={f"{prefix}x": "{"}))
    assert and_back(message) == message


def test_a_task_travels_in_fields_that_need_no_json() -> None:
    content = {"task_id": "t", "task_description": "do it", "parameters": {"limit": 3}, "callback_url": None}
    made = there(ACPMessage(type="delegate", content=content))
    assert (made.delegation.task_id, made.delegation.description) == ("t", "do it")
    assert made.delegation.parameters_json == '{"limit":3}'
    assert not made.delegation.HasField("callback_url")
    assert acp_from_proto(made).content == content


def test_progress_that_is_a_whole_number_is_told_and_stays_one() -> None:
    made = there(ACPMessage(type="notification", content={"task_id": "t", "progress": 1}))
    assert made.update.progress == 1.0
    assert json.dumps(acp_from_proto(made).content) == '{"task_id": "t", "progress": 1}'


def test_content_about_no_task_is_free() -> None:
    for kind in ("response", "notification", "result"):
        assert there(ACPMessage(type=kind, content={"status": "accepted"})).json == '{"status":"accepted"}'


def test_a_moment_keeps_its_microseconds() -> None:
    moment = datetime(2026, 3, 1, 10, 0, 0, 123_456, tzinfo=UTC)
    assert and_back(ACPMessage(type="heartbeat", timestamp=moment)).timestamp == moment


# ---- what the bus reads ------------------------------------------------------------------------------------------------


def with_ttl(seconds: float) -> bus_service_pb2.BusMessage:
    message = bus_service_pb2.BusMessage(id="m", to=["b"])
    acp_to_proto(ACPMessage(type="request", metadata=ACPMetadata(ttl=seconds)), message.acp)
    return message


def end_of(message: bus_service_pb2.BusMessage) -> float:
    return EnvelopeCodec(max_id_bytes=128).decode(message.SerializeToString()).expires_at


def test_a_ttl_counts_from_when_the_message_was_made() -> None:
    message = with_ttl(60.5)
    before = time.time()
    # Nobody says when: it was made when it is read.
    assert before + 60.5 <= end_of(message) <= time.time() + 60.5
    message.acp.timestamp.seconds = 1_000
    assert end_of(message) == 1_060.5
    message.created_at.seconds = 2_000
    assert end_of(message) == 2_060.5
    message.expires_at.seconds = 3_000
    assert end_of(message) == 3_000


def test_a_ttl_of_nothing_is_an_end_and_an_absent_one_is_none() -> None:
    message = with_ttl(0)
    message.created_at.seconds = -5
    assert end_of(message) == 1.0
    message.acp.metadata.ClearField("ttl_seconds")
    assert end_of(message) == 0.0


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_ttl_that_is_none_is_refused(seconds: float) -> None:
    message = with_ttl(1)
    message.acp.metadata.ttl_seconds = seconds
    with pytest.raises(InvalidArgument, match="expected 0 or more") as raised:
        end_of(message)
    assert raised.value.field == "acp.metadata.ttl_seconds"


# ---- what cannot travel ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (ACPMessage(type="request", signature="x"), "signature"),
        (ACPMessage(type="request", content=float("inf")), "content"),
        (ACPMessage(type="request", content={"a": {1: 2}}), "content"),
        (ACPMessage(type="delegate", content={"parameters": {"n": float("nan")}}), "content"),
        (ACPMessage(type="delegate", content={"deadline": 600}), "content.deadline"),
        (ACPMessage(type="delegate", content={"on_executor_lost": "retry"}), "content.on_executor_lost"),
        (ACPMessage(type="delegate", content={"max_attempts": "2"}), "content.max_attempts"),
        (ACPMessage(type="delegate", content={"parent_task_id": 1}), "content.parent_task_id"),
        (ACPMessage(type="delegate", content={"attachments": [{}]}), "content.attachments[0].uri"),
        (ACPMessage(type="request", id="\ud800"), "id"),
        (ACPMessage(type="request", metadata=ACPMetadata(entries={"x": object()})), "metadata.x"),
        (ACPMessage(type="request", extra={"x": object()}), "x"),
    ],
)
def test_what_cannot_travel_is_named(message: ACPMessage, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        there(message)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (acp_pb2.AcpMessage(), "type"),
        (acp_pb2.AcpMessage(message_type=9), "type"),  # type: ignore[arg-type]  # [arg-type]: one that is not known.
        (acp_pb2.AcpMessage(message_type="ACP_MESSAGE_TYPE_REQUEST", json="{"), "content"),
        (acp_pb2.AcpMessage(message_type="ACP_MESSAGE_TYPE_RESULT", result={"result_json": "{"}), "content.result"),
        (
            acp_pb2.AcpMessage(message_type="ACP_MESSAGE_TYPE_REQUEST", metadata={"entries": {"json:x": "{"}}),
            "metadata.x",
        ),
        (acp_pb2.AcpMessage(message_type="ACP_MESSAGE_TYPE_REQUEST", metadata={"ttl_seconds": -1}), "metadata.ttl"),
    ],
)
def test_what_cannot_be_read_is_named(message: acp_pb2.AcpMessage, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        acp_from_proto(message)
    assert raised.value.field == field
