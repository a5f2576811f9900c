"""ACL messages to the wire and back: every parameter, absent and empty told apart, none forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import PARAMETERS, ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.codec.acl import LazyACLMessage, acl_from_proto, acl_to_proto
from gagent_grpc.errors import InvalidArgument, UnknownPerformative
from gagent_grpc.pb.gagent.v1 import acl_pb2

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
slots = st.dictionaries(texts.map(lambda text: f"X-{text}"), texts, max_size=3)
aids = st.recursive(
    st.builds(AgentIdentifier, texts, st.lists(texts, max_size=2).map(tuple), st.just(()), slots),
    lambda inner: st.builds(
        AgentIdentifier, texts, st.lists(texts, max_size=2).map(tuple), st.lists(inner, max_size=2).map(tuple), slots
    ),
    max_leaves=4,
)
moments = st.datetimes(
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))]),
)
messages = st.builds(
    ACLMessage,
    st.sampled_from(Performative),
    sender=st.none() | aids,
    receivers=st.lists(aids, max_size=3).map(tuple),
    reply_to=st.lists(aids, max_size=2).map(tuple),
    content=st.none() | texts | st.binary(max_size=20),
    reply_by=st.none() | moments,
    user_parameters=slots,
    **{
        name: st.none() | texts
        for name in ("language", "encoding", "ontology", "protocol", "conversation_id", "reply_with", "in_reply_to")
    },
)


def on_the_wire(message: ACLMessage) -> acl_pb2.AclMessage:
    made = acl_pb2.AclMessage()
    acl_to_proto(message, made)
    return acl_pb2.AclMessage.FromString(made.SerializeToString())


def whole(aid: AgentIdentifier) -> tuple[Any, ...]:
    """Return everything in an identifier: two are equal by their names alone."""
    return aid.name, aid.addresses, tuple(whole(one) for one in aid.resolvers), dict(aid.user_slots)


@settings(deadline=None)
@given(messages)
def test_every_parameter_comes_back_as_it_was(message: ACLMessage) -> None:
    wire = on_the_wire(message)
    for read in (acl_from_proto(wire), LazyACLMessage(wire)):
        assert read == message
        assert type(read.content) is type(message.content)
        for name in PARAMETERS:
            value, expected = getattr(read, name), getattr(message, name)
            assert (value is None) == (expected is None)
            if name in {"receivers", "reply_to"}:
                assert [whole(one) for one in value] == [whole(one) for one in expected]
            if name == "sender" and expected is not None:
                assert whole(value) == whole(expected)


def _filled(field: FieldDescriptor) -> Any:
    """Return a value for one field that is neither absent nor a default."""
    message = acl_pb2.AclMessage()
    if field.message_type is None:
        value: Any = 7 if field.enum_type else b"\x01" if field.type == field.TYPE_BYTES else "x"
        setattr(message, field.name, value)
    elif field.message_type.GetOptions().map_entry:
        getattr(message, field.name)["X-a"] = "b"
    elif field.is_repeated:
        getattr(message, field.name).add(name="x")
    elif field.message_type.name == "Timestamp":
        getattr(message, field.name).seconds = 5
    else:
        getattr(message, field.name).name = "x"
    return message


@pytest.mark.parametrize("field", list(acl_pb2.AclMessage.DESCRIPTOR.fields), ids=lambda field: field.name)
def test_no_field_of_the_wire_is_dropped_by_the_codec(field: FieldDescriptor) -> None:
    """A field that is added to the proto and forgotten in the codec fails here."""
    message = _filled(field)
    message.performative = 7
    again = acl_pb2.AclMessage()
    acl_to_proto(acl_from_proto(message), again)
    assert again == message
    acl_to_proto(LazyACLMessage(message), cleared := acl_pb2.AclMessage())
    assert cleared == message


def test_every_parameter_has_a_field_and_the_other_way_round() -> None:
    fields = {field.name for field in acl_pb2.AclMessage.DESCRIPTOR.fields}
    assert fields - {"text", "data"} == set(PARAMETERS) - {"content"}


def test_acts_have_the_same_numbers_and_names_on_the_wire() -> None:
    wire = {name.removeprefix("PERFORMATIVE_"): number for name, number in acl_pb2.Performative.items()}
    assert wire.pop("UNSPECIFIED") == 0
    assert wire == {act.name: int(act) for act in Performative}


@pytest.mark.parametrize("code", [0, 23, -1])
def test_unknown_act_is_refused_with_the_acts_that_there_are(code: int) -> None:
    message = acl_pb2.AclMessage()
    message.performative = code  # type: ignore[assignment]  # [assignment]: what a stranger may send.
    for read in (acl_from_proto, LazyACLMessage):
        with pytest.raises(UnknownPerformative, match=f"performative {code}.*accept-proposal"):
            read(message)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("content", 5),
        ("content", "\ud800"),
        *((name, 5) for name in PARAMETERS[5:12]),
        ("conversation_id", "\udcff"),
        ("sender", "bob"),
        ("receivers", ("bob",)),
        ("reply_by", datetime(2030, 1, 1)),
        ("reply_by", 5.0),
        ("user_parameters", {"X-a": 5}),
    ],
)
def test_value_that_cannot_travel_is_refused_with_its_parameter(parameter: str, value: Any) -> None:
    message = ACLMessage(Performative.INFORM).replace(**{parameter: value})
    with pytest.raises(InvalidArgument, match=parameter) as caught:
        acl_to_proto(message, acl_pb2.AclMessage())
    assert caught.value.field == parameter


@pytest.mark.parametrize(("seconds", "expected"), [(2**62, datetime.max), (-(2**62), datetime.min)])
def test_moment_beyond_all_calendars_is_as_good_as_its_end(seconds: int, expected: datetime) -> None:
    message = acl_pb2.AclMessage(performative=acl_pb2.PERFORMATIVE_INFORM)
    message.reply_by.seconds = seconds
    assert acl_from_proto(message).reply_by == expected.replace(tzinfo=UTC)


def test_lazy_message_reads_what_is_asked_for_and_is_an_acl_message() -> None:
    lazy = LazyACLMessage(on_the_wire(ACLMessage(Performative.REQUEST, content="x", language="y")))
    assert isinstance(lazy, ACLMessage)
    assert (lazy.content, lazy.language, lazy.encoding) == ("x", "y", None)
    assert lazy.create_reply(Performative.AGREE).language == "y"
    with pytest.raises(AttributeError, match="no attribute 'subject'"):
        _ = lazy.subject  # type: ignore[attr-defined]  # [attr-defined]: that it is not there is the point.
