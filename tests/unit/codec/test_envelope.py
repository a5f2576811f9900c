"""From an encoded `BusMessage` to an `Envelope`: what the bus reads, what it refuses, and what it never touches."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw import acl

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import Envelope, OnReceiverLost, Outcome, Priority, Report
from gagent_grpc.errors import BusError, InvalidArgument
from gagent_grpc.pb.gagent.v1 import acl_pb2, acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

CODEC = EnvelopeCodec(max_id_bytes=BusLimits().max_id_bytes)


def decode(message: pb.BusMessage) -> Envelope:
    return CODEC.decode(message.SerializeToString())


def acp(**fields: Any) -> pb.BusMessage:
    message = pb.BusMessage(
        **{name: fields.pop(name) for name in ("id", "to", "priority", "headers") if name in fields}
    )
    metadata = {name: fields.pop(name) for name in ("urgency", "trace") if name in fields}
    message.acp.CopyFrom(acp_pb2.AcpMessage(message_type=fields.pop("kind", 6), **fields))  # type: ignore[arg-type]  # [arg-type]: a number.
    if "urgency" in metadata:
        message.acp.metadata.priority = metadata["urgency"]
    if "trace" in metadata:
        message.acp.metadata.trace = metadata["trace"]
    return message


def test_facts_of_an_acl_message_are_read() -> None:
    message = acl(
        ["bob", "carol@p"],
        act=19,
        id="m",
        priority=4,
        transient=True,
        resend=True,
        report=3,
        acl_sender="alice",
        acl_protocol="fipa-request",
        acl_conversation_id="c",
        acl_reply_with="r",
        acl_in_reply_to="i",
    )
    message.expires_at.FromNanoseconds(1_700_000_000_500_000_000)
    message.acl.reply_by.FromNanoseconds(1_800_000_000_500_000_000)
    message.acl.reply_to.add(name="dave")
    message.acl.reply_to.add(name="erin@p")
    made = decode(message)
    assert (made.id, made.sender, made.to) == ("m", "alice", ("bob", "carol@p"))
    assert (made.performative, made.protocol, made.conversation_id) == (19, "fipa-request", "c")
    assert (made.reply_with, made.in_reply_to, made.expires_at) == ("r", "i", 1_700_000_000.5)
    assert (made.reply_to, made.reply_by) == (("dave", "erin@p"), 1_800_000_000.5)
    assert (made.priority, made.transient, made.resend, made.report) == (4, True, True, 3)


def test_what_is_absent_has_its_default() -> None:
    made = decode(acl())
    assert (made.id, made.sender, made.to, made.expires_at) == ("", "", (), 0.0)
    assert (made.protocol, made.conversation_id, made.reply_with, made.in_reply_to) == ("", "", "", "")
    assert (made.reply_to, made.reply_by, made.on_receiver_lost) == ((), 0.0, 0)
    assert (made.priority, made.report) == (Priority.NORMAL, Report.RECEIPT)
    assert not made.transient
    assert not made.resend


@pytest.mark.parametrize("receivers", [["bob"], ["bob", "carol", "dave"]])
def test_receivers_of_the_body_stand_in_for_those_of_the_envelope(receivers: list[str]) -> None:
    message = acl()
    for name in receivers:
        message.acl.receivers.add(name=name)
    assert decode(message).to == tuple(receivers)
    message.to.append("elsewhere")
    assert decode(message).to == ("elsewhere",)


def test_facts_of_an_acp_message_are_read() -> None:
    made = decode(acp(source="alice", target="role:sum", in_reply_to="q", id="m"))
    assert (made.performative, made.sender, made.to, made.in_reply_to) == (0, "alice", ("role:sum",), "q")
    assert (made.protocol, made.conversation_id, made.reply_with) == ("", "", "")
    assert (made.reply_to, made.reply_by) == ((), 0.0)


def test_urgency_of_an_acp_message_counts_where_the_envelope_says_none() -> None:
    assert decode(acp(urgency=4)).priority == Priority.URGENT
    assert decode(acp(urgency=4, priority=4)).priority == Priority.URGENT
    assert decode(acp()).priority == Priority.NORMAL


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (acp(kind=0), "acp.message_type"),
        (acp(kind=8), "acp.message_type"),
        (acp(urgency=4, priority=1), "acp.metadata.priority"),
        (acp(urgency=9), "priority"),
        (acp(trace="00-a", headers={"traceparent": "00-b"}), "acp.metadata.trace"),
        (acl(priority=5), "priority"),
        (acl(priority=-1), "priority"),
        (acl(report=4), "report"),
        (acl(id="x" * 129), "id"),
        (acl(id="é" * 65), "id"),
        (acl(act=0), "performative"),
        (acl(act=23), "performative"),
        (pb.BusMessage(id="m"), "body"),
    ],
)
def test_message_that_is_not_valid_on_its_own_is_refused_with_its_field(message: pb.BusMessage, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(message)
    assert caught.value.field == field


def test_differing_ids_are_refused_and_equal_or_absent_ones_are_fine() -> None:
    inner = acp(id="m")
    inner.acp.id = "m"
    assert decode(inner).id == "m"
    inner.acp.id = "x" * 1_000
    with pytest.raises(InvalidArgument, match=r"1,000 characters.*'m'"):
        decode(inner)


@pytest.mark.parametrize(("number", "name"), [(5, "not_before"), (15, "signed")])
def test_field_that_is_not_served_is_refused_by_its_name(number: int, name: str) -> None:
    for body in (acl("bob").SerializeToString(), b""):
        with pytest.raises(InvalidArgument, match=f"{name} is not served") as caught:
            CODEC.decode(body + bytes([number << 3, 1]))
        assert caught.value.field == name


def test_signature_of_an_acp_message_is_not_served() -> None:
    inner = acp().acp.SerializeToString() + bytes([13 << 3 | 2, 0])
    payload = bytes([14 << 3 | 2, len(inner)]) + inner
    with pytest.raises(InvalidArgument, match=r"acp\.signature is not served"):
        CODEC.decode(payload)


def test_field_of_a_later_version_passes_untouched() -> None:
    payload = acl("bob").SerializeToString() + b"\xf8\x07\x01"
    assert CODEC.decode(payload).payload == payload


@pytest.mark.parametrize("seconds", [-1, 0, -(2**62)])
def test_end_before_the_epoch_is_over(seconds: int) -> None:
    message = acl()
    message.expires_at.seconds = seconds
    assert decode(message).expires_at == 1.0


def test_end_after_all_time_is_refused() -> None:
    message = acl()
    message.expires_at.seconds = 253_402_300_800
    with pytest.raises(InvalidArgument, match="after the year 9999"):
        decode(message)


@pytest.mark.parametrize("payload", [b"\xff", b"\x12\x02\xff\xfe", b"\x6a\x05\x08", b"\x6a\x04\x2a\x02\xff\xfe"])
def test_bytes_that_are_no_message_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"not a gagent\.v1\.BusMessage"):
        CODEC.decode(payload)


def test_resolvers_nested_beyond_all_measure_are_refused() -> None:
    aid = b""
    for _ in range(300):
        aid = b"\x1a" + _size(aid) + aid
    body = b"\x08\x08\x12" + _size(aid) + aid
    with pytest.raises(InvalidArgument):
        CODEC.decode(b"\x6a" + _size(body) + body)


def _size(data: bytes) -> bytes:
    size, made = len(data), b""
    while size > 127:
        made += bytes([size & 127 | 128])
        size >>= 7
    return made + bytes([size])


def test_digest_is_that_of_the_body_alone() -> None:
    first = decode(acl("bob", "text", id="a", acl_conversation_id="c"))
    again = decode(acl("carol", "text", id="b", resend=True, priority=4, acl_conversation_id="c"))
    other = decode(acl("bob", "text", id="a", acl_conversation_id="d"))
    assert first.digest == again.digest
    assert first.digest != other.digest


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=2, max_size=20), st.randoms())
def test_digest_does_not_depend_on_the_order_of_maps(entries: dict[str, str], random: Any) -> None:
    order = list(entries.items())
    digests = set()
    for _ in range(3):
        random.shuffle(order)
        message = acl("bob")
        resolver = message.acl.receivers.add(name="bob")
        for name, value in order:
            message.acl.user_parameters[name] = value
            resolver.user_slots[name] = value
        digests.add(decode(message).digest)
        message.acl.ClearField("user_parameters")
        inner = decode(message).digest
        assert decode(pb.BusMessage.FromString(message.SerializeToString(deterministic=True))).digest == inner
    assert len(digests) == 1


def test_digest_of_a_body_whose_only_maps_are_in_identifiers_is_stable() -> None:
    names = [f"X-{index}" for index in range(50)]
    digests = set()
    for order in (names, names[::-1], names[25:] + names[:25]):
        message = acl("bob")
        receiver = message.acl.receivers.add(name="bob")
        for name in order:
            receiver.user_slots[name] = "x"
        digests.add(decode(message).digest)
    assert len(digests) == 1


def test_message_of_the_platform_is_one_that_the_platform_reads() -> None:
    message = ACLMessage(
        Performative.FAILURE, sender=AgentIdentifier("ams@p"), receivers=(AgentIdentifier("a@p"),), content="x"
    )
    payload = CODEC.encode(message, message_id="m")
    made = CODEC.decode(payload)
    assert (made.id, made.sender, made.to, made.performative) == ("m", "ams@p", ("a@p",), 7)
    assert CODEC.decode_acl(payload) == message
    assert CODEC.decode_acl(acp().SerializeToString()) is None


@pytest.mark.parametrize(
    ("mine", "wire", "prefix"),
    [
        (Outcome, pb.Outcome, "OUTCOME_"),
        (Report, pb.ReportMode, "REPORT_MODE_"),
        (OnReceiverLost, pb.OnReceiverLost, "ON_RECEIVER_LOST_"),
        (Priority, acp_pb2.Priority, "PRIORITY_"),
    ],
)
def test_enums_of_the_core_have_the_numbers_of_the_wire(mine: Any, wire: Any, prefix: str) -> None:
    assert {one.name: int(one) for one in mine} == {
        name.removeprefix(prefix): number for name, number in wire.items() if number
    }


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for payload in (data, b"\x6a" + bytes([len(data)]) + data):
        try:
            made = CODEC.decode(payload)
        except InvalidArgument:
            continue
        # Whatever was taken can be read by a receiver as well.
        CODEC.decode_acl(made.payload)


def addressed(receiver: str, text: str, **message: Any) -> pb.BusMessage:
    made = acl("", text, **message)
    made.acl.receivers.add(name=receiver)
    return made


def test_a_body_that_stands_twice_counts_as_its_receiver_reads_it() -> None:
    # Merged by every reader: the sender of the first one and the content of the second.
    first = pb.BusMessage(id="m")
    first.acl.performative = 18
    first.acl.sender.name = "mallory"
    payload = first.SerializeToString() + addressed("bob", "text", id="m").SerializeToString()
    made = EnvelopeCodec(max_id_bytes=128).decode(payload)
    read = pb.BusMessage.FromString(payload)
    assert (made.sender, made.to) == ("mallory", ("bob",)) == (read.acl.sender.name, (read.acl.receivers[0].name,))


@pytest.mark.parametrize(
    "more",
    [
        {"priority": 4},
        {"resend": True},
        {"transient": True},
        {"report": 2},
        {"to": ["carol"]},
        {"expires_at": {"seconds": 5}},
        {"hold_order": True},
        {"on_receiver_lost": 2},
    ],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.parametrize("identity", ["", "m", "é", "m" * 128])
@pytest.mark.parametrize("size", [1, 0x7F, 0x80, 0x3FFF, 0x4000])
def test_nothing_beside_the_body_is_overlooked(more: dict[str, Any], identity: str, size: int) -> None:
    bare = addressed("bob", "x" * size, id=identity)
    message = pb.BusMessage(**more)
    message.MergeFrom(bare)
    if more == {"hold_order": True} and not identity:
        with pytest.raises(InvalidArgument, match="hold_order without an id"):
            decode(message)
        return
    made, plain = decode(message), decode(bare)
    ((name, value),) = more.items()
    wanted = {"to": ("carol",), "expires_at": 5.0}.get(name, value)
    assert getattr(made, name) == wanted != getattr(plain, name)
    assert (made.id, made.digest) == (plain.id, plain.digest) == (identity, plain.digest)


_FACTS = [name for name in Envelope.__slots__ if name != "read_flow"]


@given(
    identity=st.text(max_size=40),
    content=st.text(max_size=300),
    resend=st.booleans(),
    hold_order=st.booleans(),
    conversation=st.sampled_from(["", "c-1"]),
    protocol=st.sampled_from(["", "fipa-request"]),
    priority=st.sampled_from([0, 3]),
    act=st.sampled_from([7, 16]),
)
def test_a_stored_message_is_read_late_and_comes_to_the_same(
    identity: str, content: str, conversation: str, protocol: str, act: Any, **more: Any
) -> None:
    message = pb.BusMessage(id=identity, acl=acl_pb2.AclMessage(performative=act, text=content), **more)
    message.acl.receivers.add(name="bob")
    message.acl.sender.name = "alice"
    message.acl.conversation_id, message.acl.protocol, message.acl.reply_with = conversation, protocol, "r"
    if more["hold_order"] and not identity:
        message.hold_order = False
    payload = message.SerializeToString()
    codec = EnvelopeCodec(max_id_bytes=128)
    first = codec.decode(payload)
    stored = codec.decode_stored(payload, digest=first.digest)
    assert [getattr(stored, name) for name in _FACTS] == [getattr(first, name) for name in _FACTS]


@given(data=st.binary(max_size=200))
def test_any_stored_bytes_are_a_message_or_refused(data: bytes) -> None:
    with contextlib.suppress(InvalidArgument):
        made = EnvelopeCodec(max_id_bytes=128).decode_stored(data, digest=b"d")
        assert made.payload == data


def test_a_stored_message_is_not_read_before_its_body_is_asked_for() -> None:
    message = pb.BusMessage(id="m", acl=acl_pb2.AclMessage(performative=7, text="hi"))  # type: ignore[arg-type]  # A number.
    payload = message.SerializeToString()
    # The act is turned into one that there is not: whoever reads it finds out.
    broken = payload.replace(b"\x08\x07", b"\x08\x7f")
    assert broken != payload
    stored = EnvelopeCodec(max_id_bytes=128).decode_stored(broken, digest=b"d")
    assert (stored.id, stored.priority) == ("m", 2)
    with pytest.raises(BusError, match="127"):
        _ = stored.performative


@pytest.mark.parametrize("name", ["conversation_id", "reply_with", "in_reply_to"])
@pytest.mark.parametrize("protocol", ["", "fipa-request"])
def test_ids_that_are_kept_are_of_a_bounded_length(name: str, protocol: str) -> None:
    for value in ("a" * 1_024, "é" * 512):
        message = acl("bob", id="m", acl_protocol=protocol, **{f"acl_{name}": value})
        assert getattr(decode(message), name) == value
    for value in ("a" * 1_025, "é" * 513, "a" * 900_000):
        message = acl("bob", id="m", acl_protocol=protocol, **{f"acl_{name}": value})
        with pytest.raises(InvalidArgument, match=f"{name} has .* bytes; expected at most 1,024") as caught:
            decode(message)
        assert caught.value.field == f"acl.{name}"


@pytest.mark.parametrize("more", [{}, {"transient": True}])
def test_stored_messages_may_have_longer_ids(more: dict[str, Any]) -> None:
    payload = acl(
        "bob", id="m", acl_conversation_id="a" * 2_000, acl_reply_with="r" * 2_000, **more
    ).SerializeToString()
    envelope = CODEC.decode_stored(payload, digest=b"12345678")
    assert (len(envelope.conversation_id), len(envelope.reply_with)) == (2_000, 2_000)
