"""Hostile and mistaken input: each gets one clear error that names the value and the expected form, and the bus goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from raw import RawSession, acl, eventually
from waiting import WAIT

from gagent_grpc.codec.varint import varint
from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.server.app import Bus

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def tagged(number: int, payload: bytes) -> bytes:
    """Return the encoding of a length-delimited field."""
    size, prefix = len(payload), b""
    key, head = number << 3 | 2, b""
    while key > 127:
        head += bytes([key & 127 | 128])
        key >>= 7
    while size > 127:
        prefix += bytes([size & 127 | 128])
        size >>= 7
    return head + bytes([key]) + prefix + bytes([size]) + payload


def sent(*messages: bytes) -> bytes:
    """Return a `send` frame around messages that are bytes."""
    return tagged(4, b"".join(tagged(1, message) for message in messages))


HELLO = pb.OpenSessionRequest(hello=pb.Hello(protocol_version=1, agent="alice")).SerializeToString()


@pytest.fixture
async def raw_connect(channels: Any) -> AsyncIterator[Any]:
    """Return a factory of sessions whose frames are written as bytes; the first ones at once."""
    calls: list[Any] = []

    async def open_session(bus: Bus, *frames: bytes) -> RawSession:
        method = channels(bus).stream_stream(
            "/gagent.v1.BusService/OpenSession", response_deserializer=pb.OpenSessionResponse.FromString
        )
        call = method()
        calls.append(call)
        for frame in frames:
            await call.write(frame)
        return RawSession(call, answers=False)

    yield open_session
    for call in calls:
        call.cancel()


async def works(bus: Bus, connect: Any) -> None:
    """The bus still carries a message."""
    agent = await connect(bus, "witness")
    await agent.send(acl("witness"))
    await agent.delivered(1)
    await agent.leave()


# ---- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pb.OpenSessionRequest(send=pb.SendBatch()), "the first frame is a send frame; expected hello"),
        (pb.OpenSessionRequest(heartbeat=pb.Heartbeat()), "the first frame is a heartbeat frame; expected hello"),
        (pb.OpenSessionRequest(bye=pb.Bye()), "the first frame is a bye frame; expected hello"),
        (pb.OpenSessionRequest(), "the first frame is an empty frame is not served"),
        (pb.OpenSessionRequest(hello=pb.Hello(agent="alice")), "protocol_version 0; expected 1"),
        (pb.OpenSessionRequest(hello=pb.Hello(agent="alice", protocol_version=2)), "protocol_version 2; expected 1"),
    ],
)
async def test_first_frame_must_be_a_hello_that_is_spoken_here(
    bus: Bus, connect: Any, frame: pb.OpenSessionRequest, expected: str
) -> None:
    session = await connect(bus, None)
    await session.write(frame)
    code, text = await session.end()
    assert code == INVALID
    assert expected in text
    await works(bus, connect)


@pytest.mark.parametrize(
    ("agent", "code", "expected"),
    [
        ("", INVALID, "agent name ''"),
        ("a b", INVALID, "'a b'"),
        ("-a", INVALID, "letter or digit first"),
        ("a@b c", INVALID, "platform name 'b c'"),
        ("e\u0301", INVALID, "normal form C"),
        ("x" * 129, INVALID, "129 bytes"),
        ("x" * 1_000_000, INVALID, "1000000 bytes"),
        ("a@elsewhere", INVALID, "'local'"),
        ("role:sum", INVALID, "role:sum"),
        ("ams", grpc.StatusCode.PERMISSION_DENIED, "reserved"),
        ("df@local", grpc.StatusCode.PERMISSION_DENIED, "reserved"),
    ],
)
async def test_bad_name_is_refused_with_the_name_and_the_form(
    bus: Bus, connect: Any, agent: str, code: grpc.StatusCode, expected: str
) -> None:
    session = await connect(bus, agent, welcomed=False)
    got, text = await session.end()
    assert got == code
    assert expected in text
    assert len(bus.platform.ams) == 0


async def test_second_hello_ends_the_stream(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    await alice.say(hello=pb.Hello(protocol_version=1, agent="alice"))
    code, text = await alice.end()
    assert code == INVALID
    assert "a second hello" in text
    await works(bus, connect)


async def test_silence_instead_of_a_hello_ends_the_stream(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(hello_timeout=0.1, drain_grace=1.0))
    code, text = await (await connect(bus, None)).end()
    assert code == INVALID
    assert "no hello within 0.1 s" in text


async def test_stream_that_ends_before_hello_is_told_so(bus: Bus, connect: Any) -> None:
    session = await connect(bus, None)
    await session.call.done_writing()
    code, text = await session.end()
    assert code == INVALID
    assert "ended before hello" in text


@pytest.mark.parametrize("frame", [b"\xff\xff\xff", b"\x0a\x05\xff", b"hello\n"])
async def test_bytes_that_are_no_frame_end_the_stream(bus: Bus, connect: Any, raw_connect: Any, frame: bytes) -> None:
    for frames in ([frame], [HELLO, frame]):
        session = await raw_connect(bus, *frames)
        code, text = await session.end()
        assert code == INVALID
        assert f"{len(frame)} bytes that are not a gagent.v1.OpenSessionRequest frame" in text
        assert "twin" not in text
        assert "internal" not in text
    await works(bus, connect)


@pytest.mark.parametrize("number", [2, 3, 77])
async def test_frame_of_an_unknown_kind_gives_a_notice_and_the_stream_goes_on(
    bus: Bus, raw_connect: Any, number: int
) -> None:
    session = await raw_connect(bus, HELLO, tagged(number, b""), b"".join([tagged(99, b"")] * 100_000))
    await session.until(lambda: len(session.notices) == 2)
    assert {notice.kind for notice in session.notices} == {pb.NOTICE_KIND_UNKNOWN_FRAME}
    assert f"field {number} of OpenSessionRequest" in session.notices[0].text
    assert "expected one of hello, send, settle, window, heartbeat, bye" in session.notices[0].text
    assert len(session.notices[1].text) < 500
    await session.call.write(sent(acl("alice").SerializeToString()))
    await session.delivered(1)


@pytest.mark.parametrize(("number", "name"), [(6, "take_over")])
async def test_field_of_hello_that_is_not_served_is_refused(bus: Bus, raw_connect: Any, number: int, name: str) -> None:
    hello = pb.Hello(protocol_version=1, agent="alice").SerializeToString() + tagged(number, b"\x01")
    code, text = await (await raw_connect(bus, tagged(1, hello))).end()
    assert code == INVALID
    assert f"hello.{name} is not served" in text


@pytest.mark.parametrize("field", ["ack_sequences", "nacks", "rejects", "in_progress_sequences"])
async def test_settle_of_more_than_can_have_been_delivered_ends_the_stream(bus: Bus, connect: Any, field: str) -> None:
    alice = await connect(bus, "alice")
    one: Any = {"nacks": pb.Nack(sequence=1), "rejects": pb.Reject(sequence=1)}.get(field, 1)
    await alice.settle(**{field: [one] * 100_001})
    code, text = await alice.end()
    assert code == INVALID
    assert f"settle.{field} has 100,001 elements" in text


async def test_settle_of_what_never_was_does_nothing(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    await alice.settle(
        ack_through_tag=2**63,
        ack_sequences=[0, 2**64 - 1],
        nacks=[pb.Nack(sequence=5)],
        rejects=[pb.Reject(sequence=2**63)],
    )
    await alice.send(acl("alice"))
    await alice.delivered(1)


async def test_nack_with_an_absurd_delay_is_taken_as_it_is(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    await alice.send(acl("alice", acl_conversation_id="a"))
    await alice.delivered(1)
    nack = pb.Nack(sequence=1)
    nack.delay.seconds = -(2**62)
    await alice.settle(nacks=[nack])
    await alice.delivered(2)
    nack.delay.seconds = 2**62
    await alice.settle(nacks=[nack])
    await alice.send(acl("alice", acl_conversation_id="b"))
    await alice.delivered(3)
    assert alice.deliveries[2].message.acl.conversation_id == "b"


# ---- messages --------------------------------------------------------------------------------------------------------


def _with_not_before() -> bytes:
    return acl("alice").SerializeToString() + tagged(5, b"")


def _without_act() -> bytes:
    return acl("alice", act=0).SerializeToString()


def _acp(**fields: Any) -> bytes:
    message = pb.BusMessage(to=["alice"], id=fields.pop("envelope_id", ""), priority=fields.pop("priority", 0))
    message.acp.message_type = fields.pop("kind", 1)
    for name, value in fields.items():
        setattr(message.acp, name, value)
    return message.SerializeToString()


def _nested(levels: int) -> bytes:
    """Return a message that a parser can just about read by itself, and not within a frame that delivers it."""
    inner = b""
    for _ in range(levels):
        inner = b"\x1a" + varint(len(inner)) + inner
    return pb.BusMessage(to=["alice"], id="nested").SerializeToString() + tagged(
        13, b"\x08\x07" + b"\x1a" + varint(len(inner)) + inner
    )


@pytest.mark.parametrize(
    ("payload", "outcome", "field", "expected"),
    [
        (b"\xff\xff", "INVALID", "", "not a gagent.v1.BusMessage"),
        (b"", "INVALID", "body", "no body; expected acl or acp"),
        (b"\x12\x02\xff\xfe", "INVALID", "", "not a gagent.v1.BusMessage"),
        (acl("alice", act=23).SerializeToString(), "INVALID", "performative", "unknown performative 23"),
        (_without_act(), "INVALID", "performative", "unknown performative 0"),
        (acl("alice", act=-1).SerializeToString(), "INVALID", "performative", "accept-proposal"),
        (acl("alice", hold_order=True).SerializeToString(), "INVALID", "id", "hold_order without an id"),
        (acl("alice", on_receiver_lost=3).SerializeToString(), "INVALID", "on_receiver_lost", "expected 1 (fail) or 2"),
        (_with_not_before(), "INVALID", "not_before", "not_before is not served"),
        (tagged(15, b"x"), "INVALID", "signed", "signed is not served"),
        (acl().SerializeToString(), "INVALID", "to", "no receiver"),
        (acl(["alice"] * 101).SerializeToString(), "INVALID", "to", "101 receivers; expected at most 100"),
        (acl("alice", id="x" * 129).SerializeToString(), "INVALID", "id", "129 bytes; expected at most 128"),
        (acl("alice", id="é" * 65).SerializeToString(), "INVALID", "id", "130 bytes"),
        (acl("alice", priority=9).SerializeToString(), "INVALID", "priority", "priority 9"),
        (acl("alice", report=9).SerializeToString(), "INVALID", "report", "report 9"),
        (acl("alice", acl_sender="bob").SerializeToString(), "DENIED", "sender", "'bob'"),
        (acl("alice", acl_sender="alice@elsewhere").SerializeToString(), "DENIED", "sender", "alice@local"),
        (_acp(source="bob"), "DENIED", "sender", "'bob'"),
        (_acp(kind=0), "INVALID", "acp.message_type", "unknown ACP message type 0"),
        (_acp(kind=8), "INVALID", "acp.message_type", "7 (result)"),
        (_acp(id="a", envelope_id="b"), "INVALID", "acp.id", "differs"),
        (acl("x" * 900_000).SerializeToString(), "INVALID", "to", "900000 bytes"),
        (acl("role:" + "x" * 900_000).SerializeToString(), "INVALID", "to", "expected role:TYPE"),
        (acl("alice", acl_sender="x" * 900_000).SerializeToString(), "DENIED", "sender", "900,000 characters"),
        (acl("alice", "x" * 1_000_000).SerializeToString(), "TOO_LARGE", "", "the limit is 1,000,000"),
        (_nested(96), "INVALID", "acl", "nested too deeply"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
async def test_bad_message_is_one_receipt_and_its_neighbours_pass(
    bus: Bus, raw_connect: Any, payload: bytes, outcome: str, field: str, expected: str
) -> None:
    alice = await raw_connect(bus, HELLO)
    good = acl("alice", acl_sender="alice").SerializeToString()
    await alice.call.write(sent(good, payload, good))
    (receipt,) = await alice.receipted(3)
    assert receipt.number == 2
    assert pb.Outcome.Name(receipt.outcome) == f"OUTCOME_{outcome}"
    assert receipt.field == field
    assert expected in receipt.detail
    assert len(receipt.detail) <= 1_000
    assert len(receipt.receiver) <= 1_005
    assert not receipt.retryable
    await alice.delivered(2)


async def test_refused_message_with_a_body_is_also_a_failure_where_that_is_asked_for(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    report = pb.REPORT_MODE_FAILURE_MESSAGE
    await alice.send(
        acl("alice", act=19, acl_sender="bob", acl_reply_with="r1", report=report),
        acl(act=19, acl_reply_with="r2", report=report),
    )
    failures = [delivery.message.acl for delivery in await alice.delivered(2)]
    assert [(one.in_reply_to, one.text.partition(":")[0]) for one in failures] == [("r1", "DENIED"), ("r2", "INVALID")]


@pytest.mark.parametrize("size", [900_000, 1_100_000, 3_900_000, 4_100_000])
async def test_one_message_too_big_concerns_that_message_only(bus: Bus, connect: Any, size: int) -> None:
    """C11 on one node, within a frame."""
    alice = await connect(bus, "alice")
    bob = await connect(bus, "bob")
    await alice.send(acl("bob", "before"))
    await alice.send(acl("bob", "x" * size))
    await alice.send(acl("bob", "after"))
    receipts = await alice.receipted(3)
    if size <= 1_000_000:
        assert receipts == []
        await bob.delivered(3)
    else:
        assert [(one.number, one.outcome) for one in receipts] == [(2, pb.OUTCOME_TOO_LARGE)]
        assert f"{size // 1000}," in receipts[0].detail.replace(",", "", 1)
        await bob.delivered(2)
    assert bob.deliveries[-1].message.acl.text == "after"


async def test_frame_over_the_limit_of_the_transport_ends_that_stream_clearly(bus: Bus, connect: Any) -> None:
    """C11: 12 MB in one frame cannot be read; what was sent before it stands, and the bus goes on."""
    alice = await connect(bus, "alice")
    bob = await connect(bus, "bob")
    await alice.send(acl("bob", "before"))
    await alice.receipted(1)
    await alice.send(acl("bob", "x" * 12_000_000))
    code, text = await alice.end()
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in text
    assert "4194304" in text
    await eventually(lambda: bus.platform.ams.get("alice").session is None)
    alice = await connect(bus, "alice", resume_token=alice.welcome.resume_token)
    await alice.send(acl("bob", "after"))
    await bob.delivered(2)
    assert [one.message.acl.text for one in bob.deliveries] == ["before", "after"]


async def test_frame_of_very_many_empty_messages_holds_up_nobody_else(
    buses: Any, connect: Any, raw_connect: Any
) -> None:
    bus = await buses(limits=BusLimits(send_window_messages=1_000, drain_grace=1.0))
    hostile = await raw_connect(bus, HELLO, sent(*[b""] * 50_000))
    neighbour = await connect(bus, "neighbour")
    await neighbour.send(acl("neighbour"))
    await neighbour.delivered(1)
    receipts = await hostile.receipted(50_000)
    assert len(receipts) == 50_000


async def test_frame_that_rejects_very_much_holds_up_nobody_else(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    await alice.send(*[acl("alice", act=16) for _ in range(500)])
    deliveries = await alice.delivered(500)
    dead = bus.platform.dead_letters
    await alice.settle(rejects=[pb.Reject(sequence=one.sequence, reason="no") for one in deliveries])
    seen: set[int] = set()
    async with asyncio.timeout(WAIT):
        while len(dead) < 500:
            seen.add(len(dead))
            await asyncio.sleep(0)
    # Others have their turn in between.
    assert seen - {0}


async def test_failures_of_the_platform_are_bounded_by_their_reserve(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(mailbox_bytes=400_000, mailbox_messages=1_000, drain_grace=1.0))
    alice = await connect(bus, "alice", window=pb.Window(messages=1))
    await alice.send(
        *[acl("nobody", acl_protocol="p" * 30_000, report=pb.REPORT_MODE_FAILURE_MESSAGE) for _ in range(40)]
    )
    assert len(await alice.receipted(40)) == 40
    mailbox = bus.platform.ams.get("alice").mailbox
    assert 0 < mailbox.reserve_bytes <= 100_000
    assert bus.platform.post.unheard_failures == 40 - mailbox.reserve_messages
