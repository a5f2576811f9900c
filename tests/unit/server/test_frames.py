"""The twin of the public frames: the same wire, with a message as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from raw import acl

from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.session import Notice, Outgoing
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import InvalidArgument, ProtocolViolation
from gagent_grpc.pb.gagent.internal.v1 import bus_frames_pb2 as twin
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as public
from gagent_grpc.server import frames

PUBLIC = public.DESCRIPTOR
TWIN = twin.DESCRIPTOR


def described(field: FieldDescriptor) -> dict[str, Any]:
    """Return everything about a field that the wire or a reader of it depends on."""
    kind = field.message_type or field.enum_type
    return {
        "name": field.name,
        "json_name": field.json_name,
        "number": field.number,
        "type": field.type,
        "is_repeated": field.is_repeated,
        "is_packed": field.is_packed,
        "has_presence": field.has_presence,
        "oneof": field.containing_oneof.name if field.containing_oneof else None,
        "kind": kind.full_name.replace("gagent.internal.v1.", "gagent.v1.") if kind else None,
    }


def test_twin_has_every_message_and_enum_but_the_opaque_one() -> None:
    assert set(PUBLIC.message_types_by_name) - set(TWIN.message_types_by_name) == {"BusMessage"}
    assert set(TWIN.message_types_by_name) <= set(PUBLIC.message_types_by_name)
    assert set(PUBLIC.enum_types_by_name) == set(TWIN.enum_types_by_name)
    assert not TWIN.services_by_name


@pytest.mark.parametrize("name", sorted(TWIN.message_types_by_name))
def test_fields_are_the_same_but_for_messages_as_bytes(name: str) -> None:
    ours: Descriptor = TWIN.message_types_by_name[name]
    theirs: Descriptor = PUBLIC.message_types_by_name[name]
    assert [field.name for field in ours.fields] == [field.name for field in theirs.fields]
    for mine, original in zip(ours.fields, theirs.fields, strict=True):
        expected = described(original)
        if mine.type != original.type:
            opaque = original.message_type.name == "BusMessage"
            assert opaque or (name, original.name) == ("Delivery", "accepted_at")
            assert mine.type == FieldDescriptor.TYPE_BYTES
            # Bytes have no presence of their own: absent and empty are the same message.
            expected.update(type=FieldDescriptor.TYPE_BYTES, kind=None, has_presence=mine.has_presence)
        assert described(mine) == expected


@pytest.mark.parametrize("name", sorted(TWIN.enum_types_by_name))
def test_enum_values_are_the_same(name: str) -> None:
    ours: EnumDescriptor = TWIN.enum_types_by_name[name]
    theirs: EnumDescriptor = PUBLIC.enum_types_by_name[name]
    assert [(value.name, value.number) for value in ours.values] == [
        (value.name, value.number) for value in theirs.values
    ]


def test_frame_of_a_client_is_read_with_its_messages_untouched() -> None:
    payload = acl("bob").SerializeToString() + b"\xf8\x07\x01"
    message = public.BusMessage.FromString(payload)
    frame = public.OpenSessionRequest(send=public.SendBatch(messages=[message, message]))
    kind, read = frames.decode_frame(frame.SerializeToString())
    assert kind == "send"
    assert list(read.send.messages) == [payload, payload]


def letter(*, message_id: str = "") -> Letter:
    envelope = EnvelopeCodec(max_id_bytes=BusLimits().max_id_bytes).decode(
        acl("bob", id=message_id).SerializeToString()
    )
    made = Letter(7, envelope, "alice@local", message_id or "given", "", 1_700_000_000.25)
    made.tag, made.attempt = 3, 1
    return made


def read(data: bytes) -> public.OpenSessionResponse:
    return public.OpenSessionResponse.FromString(data)


def test_delivery_is_read_by_the_public_type() -> None:
    first, second = letter(message_id="m"), letter()
    second.attempt, second.via = 2, "role:x"
    a, b = read(frames.deliver_frame([first, second], "bob@local")).deliver.deliveries
    assert (a.tag, a.sequence, a.attempt, a.redelivered, a.id, a.via) == (3, 7, 1, False, "", "")
    assert (a.sender, a.receiver) == ("alice@local", "bob@local")
    assert a.accepted_at.ToMilliseconds() == 1_700_000_000_250
    assert a.message == acl("bob", id="m")
    assert (b.attempt, b.redelivered, b.id, b.via) == (2, True, "given", "role:x")


def test_control_frames_say_everything_but_the_deliveries() -> None:
    refusal = Receipt(4, "bob", Outcome.MAILBOX_FULL, "full", 0.25, "to")
    out = Outgoing(accepted_through=3, exceptions=[refusal], notices=[Notice("DRAINING", "bye", 0.5)], heartbeat=True)
    out.letters = [letter()]
    made = [read(data) for data in frames.control_frames(out)]
    assert [one.WhichOneof("frame") for one in made] == ["receipts", "notice", "heartbeat"]
    (receipt,) = made[0].receipts.exceptions
    assert (made[0].receipts.accepted_through, receipt.number, receipt.receiver) == (3, 4, "bob")
    assert (receipt.outcome, receipt.retryable, receipt.field) == (public.OUTCOME_MAILBOX_FULL, True, "to")
    assert receipt.retry_after.ToMilliseconds() == 250
    assert made[1].notice.kind == public.NOTICE_KIND_DRAINING
    assert made[1].notice.reconnect_after.ToMilliseconds() == 500


@pytest.mark.parametrize("outcome", list(Outcome))
def test_receipt_of_each_outcome(outcome: Outcome) -> None:
    made = public.Receipt.FromString(frames.receipt_to_proto(Receipt(1, "a", outcome)).SerializeToString())
    assert made.outcome == int(outcome)
    assert made.retryable == (outcome.name in {"MAILBOX_FULL", "HELD", "RATE_LIMITED", "UNREACHABLE", "NO_PROVIDER"})
    assert not made.HasField("retry_after")


def test_response_that_would_not_fit_loses_its_words_and_keeps_its_outcomes() -> None:
    refusals = [Receipt(number, "bob", Outcome.INVALID, "x" * 500) for number in range(10)]
    whole = public.SendResponse.FromString(frames.send_response(refusals, max_bytes=10_000))
    short = public.SendResponse.FromString(frames.send_response(refusals, max_bytes=1_000))
    assert whole.receipts[0].detail
    assert [one.number for one in short.receipts] == list(range(10))
    assert not any(one.detail for one in short.receipts)


def test_response_with_long_receivers_fits_all_the_same() -> None:
    refusals = [Receipt(1, f"{index:03}" + "\u20ac" * 397, Outcome.INVALID, "x", 0.1, "to") for index in range(100)]
    encoded = frames.send_response(refusals, max_bytes=10_000)
    assert len(encoded) <= 10_000
    short = public.SendResponse.FromString(encoded)
    assert [one.receiver[:3] for one in short.receipts] == [f"{index:03}" for index in range(100)]
    assert {one.outcome for one in short.receipts} == {public.OUTCOME_INVALID}


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x7f", b"\x0a\x04\x12\x02\xff\xfe"])
def test_bytes_that_are_no_frame_are_refused_without_a_word_of_the_twin(data: bytes) -> None:
    with pytest.raises(ProtocolViolation, match=r"are not a gagent\.v1\.OpenSessionRequest frame") as caught:
        frames.decode_frame(data)
    assert "internal" not in str(caught.value)
    with pytest.raises(InvalidArgument, match=r"are not a gagent\.v1\.SendRequest"):
        frames.send_request_messages(b"\xff")
