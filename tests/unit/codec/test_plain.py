"""Messages written by hand: the same bytes that protobuf makes, and the same errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.codec.acl import acl_to_proto
from gagent_grpc.codec.plain import TRANSIENT_FIELD, acl_field, id_field
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["", "é" * 100, "x" * 20_000])
slots = st.dictionaries(texts.map(lambda text: f"X-{text}"), texts, max_size=1)
names = st.builds(AgentIdentifier, texts)
aids = names | st.builds(
    AgentIdentifier, texts, st.lists(texts, max_size=1).map(tuple), st.lists(names, max_size=1).map(tuple), slots
)
messages = st.builds(
    ACLMessage,
    st.sampled_from(Performative),
    sender=st.none() | aids,
    receivers=st.lists(aids, max_size=3).map(tuple),
    reply_to=st.lists(aids, max_size=2).map(tuple),
    content=st.none() | texts | st.binary(max_size=20),
    reply_by=st.none() | st.just(datetime(2030, 1, 1, tzinfo=UTC)),
    user_parameters=st.just({}) | slots,
    **{
        name: st.none() | texts
        for name in ("language", "encoding", "ontology", "protocol", "conversation_id", "reply_with", "in_reply_to")
    },
)


@settings(deadline=None, max_examples=300)
@given(texts, messages, st.booleans())
def test_fields_are_the_bytes_that_protobuf_writes(message_id: str, message: ACLMessage, transient: bool) -> None:
    expected = bus_service_pb2.BusMessage(id=message_id, transient=transient)
    acl_to_proto(message, expected.acl)
    written = id_field(message_id) + (TRANSIENT_FIELD if transient else b"") + acl_field(message)
    read = bus_service_pb2.BusMessage.FromString(written)
    assert read == expected
    if message_id and len(message.user_parameters) < 2:
        assert written == expected.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("content", "\ud800"),
        ("content", 5),
        ("language", "\ud800"),
        ("in_reply_to", 5),
        ("performative", "inform"),
        ("receivers", (AgentIdentifier("\ud800"),)),
        ("receivers", ("bob",)),
        ("sender", "alice"),
        ("reply_by", "tomorrow"),
    ],
)
def test_what_cannot_travel_is_named_as_by_protobuf(parameter: str, value: Any) -> None:
    parameters: dict[str, Any] = {"performative": Performative.INFORM, parameter: value}
    with pytest.raises(InvalidArgument) as raised:
        acl_field(ACLMessage(**parameters))
    assert raised.value.field == parameter


def test_act_that_is_a_plain_number_travels() -> None:
    message = ACLMessage(int(Performative.CFP))  # type: ignore[arg-type]  # [arg-type]: what a careless caller passes.
    assert bus_service_pb2.BusMessage.FromString(acl_field(message)).acl.performative == int(Performative.CFP)
