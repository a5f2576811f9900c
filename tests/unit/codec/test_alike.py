"""A message that is like one before is read without a parser, and comes out as the parser would have it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.codec import envelope
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.codec.plain import acl_field, id_field
from gagent_grpc.envelope import Envelope
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

HOLD_ORDER = b"\x48\x01"
FACTS = sorted(set(Envelope.__slots__) - {"read_flow"})
LEARNT = 64
"""Messages of a kind after which the codec knows what they have in common."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
contents = texts | st.sampled_from(["", "é", "x" * 127, "x" * 128, "é" * 100, "y" * 5_000, "z" * 17_000])
names = st.sampled_from(["bob", "bob@local", "zoë"]).map(AgentIdentifier)
aids = names | st.builds(
    AgentIdentifier, st.just("amy"), st.just(("grpc://amy:1",)), st.just(()), st.just({"X-a": "b"})
)
models = st.builds(
    ACLMessage,
    st.sampled_from(Performative),
    sender=st.none() | aids,
    receivers=st.lists(aids, max_size=2).map(tuple),
    reply_to=st.lists(aids, max_size=1).map(tuple),
    content=st.none() | contents | st.binary(max_size=5),
    language=st.none() | texts,
    protocol=st.none() | st.sampled_from(["", "fipa-request"]),
    conversation_id=st.none() | texts,
    reply_with=st.none() | texts,
    user_parameters=st.just({}) | st.just({"X-a": "b"}),
)
changes = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from(["set", "insert", "delete"]), st.integers(0, 255)), max_size=3
)


def written(message_id: str, message: ACLMessage, tail: bytes = b"") -> bytes:
    return id_field(message_id) + acl_field(message) + tail


def taught(payload: bytes) -> EnvelopeCodec:
    codec = EnvelopeCodec(max_id_bytes=64)
    for _ in range(LEARNT):
        codec.decode(payload)
    return codec


def outcome(codec: EnvelopeCodec, payload: bytes) -> dict[str, Any] | str:
    try:
        made = codec.decode(payload)
    except InvalidArgument as error:
        return str(error)
    return {name: getattr(made, name) for name in FACTS}


def changed(payload: bytes, edits: list[tuple[int, str, int]]) -> bytes:
    made = bytearray(payload)
    for place, what, value in edits:
        at = place % len(made)
        if what == "set":
            made[at] = value
        elif what == "insert":
            made.insert(at, value)
        elif len(made) > 1:
            del made[at]
    return bytes(made)


@settings(deadline=None, max_examples=400)
@given(models, ids, contents, st.sampled_from([b"", HOLD_ORDER]), changes)
@example(ACLMessage(Performative.INFORM, receivers=(AgentIdentifier("bob"),), content="a"), "n", "b", b"", [])
@example(ACLMessage(Performative.INFORM, receivers=(AgentIdentifier("bob"),), content="a"), "n" * 65, "b", b"", [])
def test_it_comes_out_as_from_a_codec_that_has_seen_none(
    model: ACLMessage, message_id: str, content: str, tail: bytes, edits: list[tuple[int, str, int]]
) -> None:
    codec = taught(written("m-1", model, tail))
    like = model if model.content is None or isinstance(model.content, bytes) else model.replace(content=content)
    for payload in (written(message_id, like, tail), changed(written(message_id, like, tail), edits)):
        assert outcome(codec, payload) == outcome(EnvelopeCodec(max_id_bytes=64), payload)


def plain(content: str) -> ACLMessage:
    return ACLMessage(Performative.INFORM, receivers=(AgentIdentifier("bob"),), content=content, conversation_id="c-1")


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\x0a\x01n\x6a\x97\x00" + acl_field(plain("abcd"))[2:], id="length of the body in two bytes"),
        pytest.param(
            b"\x0a\x01n\x6a\x18" + acl_field(plain("abcd"))[2:].replace(b"\x2a\x04", b"\x2a\x84\x00"),
            id="length of the text in two bytes",
        ),
        pytest.param(written("n", plain("ab")) + acl_field(plain("cd")), id="body in two parts"),
        pytest.param(written("n", plain("ab")).replace(b"ab", b"\xff\xfe"), id="text that is not UTF-8"),
        pytest.param(written("nn", plain("ab")).replace(b"nn", b"\xff\xfe"), id="id that is not UTF-8"),
        pytest.param(b"", id="nothing"),
        pytest.param(written("n", plain("ab"))[-9:], id="no more than the end"),
    ],
)
def test_odd_encodings_come_out_the_same(payload: bytes) -> None:
    assert outcome(taught(written("m-1", plain("x"))), payload) == outcome(EnvelopeCodec(max_id_bytes=64), payload)


def test_the_body_is_known_again_however_it_was_read() -> None:
    first, other = written("m-1", plain("x")), written("m-1", plain("y"))
    codec = taught(first)
    parsed = EnvelopeCodec(max_id_bytes=64).decode(first)
    assert codec.decode(first).digest == parsed.digest
    assert codec.decode(other).digest != parsed.digest


def test_what_is_alike_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = taught(written("m-1", plain("x")))
    parsed: list[bytes] = []
    parse = envelope._message

    def noted(payload: bytes) -> bus_service_pb2.BusMessage:
        parsed.append(payload)
        return parse(payload)

    monkeypatch.setattr(envelope, "_message", noted)
    for number in range(100):
        codec.decode(written(f"m-{number}", plain(f"text {number}")))
    assert not parsed
    codec.decode(written("m-1", plain("x").replace(conversation_id="c-2")))
    assert len(parsed) == 1
