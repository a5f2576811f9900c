"""The frames of a session on the bus's side: bytes to what a session understands, and back.

Uses the twin of the public frames in which a `BusMessage` is bytes, so a message is neither parsed nor written again
here. Owns: the form of frames. Leaves to others: their meaning (`bus.session`), messages (`codec.envelope`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from google.protobuf.message import DecodeError

from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.platform import Hello, Opened
from gagent_grpc.bus.session import Nack, Outgoing
from gagent_grpc.bus.topics import check_subscriptions
from gagent_grpc.codec.envelope import unknown_fields
from gagent_grpc.codec.management import df_from_proto, df_to_proto, state_to_proto
from gagent_grpc.codec.times import duration_to_proto, seconds_of, timestamp_of
from gagent_grpc.config import PROTOCOL_VERSION, BusLimits
from gagent_grpc.errors import InvalidArgument, ProtocolViolation
from gagent_grpc.pb.gagent.internal.v1 import bus_frames_pb2 as twin

Frame = twin.OpenSessionRequest
MAX_SEQUENCES = 100_000
"""Most sequences that one frame may name: above every window, and no work that would hold up other sessions."""
_RECEIPT_BYTES = 64
"""What a receipt takes at most without its detail and its receiver."""
_FRAME_NAMES = tuple(field.name for field in Frame.DESCRIPTOR.oneofs_by_name["frame"].fields)
_NOT_SERVED_IN_HELLO = {6: "take_over"}


def decode_frame(data: bytes) -> tuple[str, twin.OpenSessionRequest]:
    """Return the kind of a client's frame and the frame; the kind is "" for one that is not known here.

    Raises:
        ProtocolViolation: The bytes are no frame.
    """
    try:
        frame = twin.OpenSessionRequest.FromString(data)
    except DecodeError as error:
        # The library's own words would name the twin, of which a client knows nothing.
        raise ProtocolViolation(f"{len(data)} bytes that are not a gagent.v1.OpenSessionRequest frame") from error
    return frame.WhichOneof("frame") or "", frame


def describe_unknown(frame: twin.OpenSessionRequest) -> str:
    """Say in words what is wrong with a frame of no known kind."""
    numbers = sorted(unknown_fields(frame))[:5]
    what = (
        f"field {', '.join(str(number) for number in numbers)} of OpenSessionRequest" if numbers else "an empty frame"
    )
    return f"{what} is not served by this bus; expected one of {', '.join(_FRAME_NAMES)}"


def hello_from_frame(hello: twin.Hello) -> Hello:
    """Return what a client wants.

    Raises:
        InvalidArgument: The protocol version is not spoken here, a field is not served, or a topic is not valid.
    """
    if hello.protocol_version != PROTOCOL_VERSION:
        raise InvalidArgument(
            f"protocol_version {hello.protocol_version}; expected {PROTOCOL_VERSION}", field="hello.protocol_version"
        )
    for number in unknown_fields(hello):
        name = _NOT_SERVED_IN_HELLO.get(number)
        if name is not None:
            raise InvalidArgument(
                f"hello.{name} is not served by this bus; expected a hello without it", field=f"hello.{name}"
            )
    _check_count("hello.held_sequences", len(hello.held_sequences))
    return Hello(
        agent=hello.agent,
        resume_token=hello.resume_token,
        window_messages=hello.window.messages,
        window_bytes=hello.window.bytes,
        held=frozenset(hello.held_sequences),
        description=df_from_proto(hello.description) if hello.HasField("description") else None,
        topics=check_subscriptions(hello.topics),
        ephemeral=hello.ephemeral,
        ownership=hello.ownership,
        software=hello.client_software[:100],
    )


def check_settle(settle: twin.SettleBatch) -> None:
    """Make sure that a settle names no more sequences than can have been delivered.

    Raises:
        ProtocolViolation: It does.
    """
    for name in ("ack_sequences", "nacks", "in_progress_sequences", "rejects"):
        _check_count(f"settle.{name}", len(getattr(settle, name)))


def _check_count(field: str, count: int) -> None:
    if count > MAX_SEQUENCES:
        raise ProtocolViolation(f"{field} has {count:,} elements; expected at most {MAX_SEQUENCES:,}", field=field)


def nacks_from_frame(nacks: Sequence[twin.Nack]) -> list[Nack]:
    """Return the deliveries that are to come again."""
    return [Nack(nack.sequence, seconds_of(nack.delay), nack.error[:1000]) for nack in nacks]


def welcome_frame(opened: Opened, platform: str, limits: BusLimits) -> bytes:
    """Return the first frame of a session."""
    session = opened.session
    welcome = twin.Welcome(
        protocol_version=PROTOCOL_VERSION,
        agent=session.aid,
        platform=platform,
        generation=session.generation,
        resume_token=opened.resume_token,
        heartbeat_interval=duration_to_proto(limits.heartbeat_interval),
        max_message_bytes=limits.max_message_bytes,
        max_frame_bytes=limits.max_frame_bytes,
        send_window=twin.Window(messages=limits.send_window_messages, bytes=limits.send_window_bytes),
        window=twin.Window(messages=session.window_messages, bytes=session.window_bytes),
        resume_grace=duration_to_proto(limits.resume_grace),
        state=state_to_proto(session.record.state),
        attached=opened.attached,
        held_sequences=sorted(opened.held),
        topics=opened.topics,
    )
    if opened.description is not None:
        welcome.description.CopyFrom(df_to_proto(opened.description))
    return twin.OpenSessionResponse(welcome=welcome).SerializeToString()


def control_frames(out: Outgoing) -> Iterator[bytes]:
    """Yield the frames that say everything in ``out`` but the deliveries."""
    if out.accepted_through is not None:
        batch = twin.ReceiptBatch(
            accepted_through=out.accepted_through, exceptions=[receipt_to_proto(one) for one in out.exceptions]
        )
        yield twin.OpenSessionResponse(receipts=batch).SerializeToString()
    for change in out.states:
        made = twin.StateChange(state=state_to_proto(change.state), changed_by=change.changed_by)
        yield twin.OpenSessionResponse(state=made).SerializeToString()
    for notice in out.notices:
        frame = twin.OpenSessionResponse(
            notice=twin.Notice(
                kind=twin.NoticeKind.Value(f"NOTICE_KIND_{notice.kind}"),
                text=notice.text,
                address=notice.address,
                missed=notice.missed,
                conversation_id=notice.conversation_id,
            )
        )
        if notice.reconnect_after is not None:
            frame.notice.reconnect_after.CopyFrom(duration_to_proto(notice.reconnect_after))
        yield frame.SerializeToString()
    for answer in out.subscribed:
        subscribed = twin.Subscribed(number=answer.number, topics=answer.topics, error=answer.error)
        yield twin.OpenSessionResponse(subscribed=subscribed).SerializeToString()
    if out.returned:
        yield twin.OpenSessionResponse(returned=twin.ReturnBatch(sequences=out.returned)).SerializeToString()
    if out.heartbeat:
        yield twin.OpenSessionResponse(heartbeat=twin.Heartbeat()).SerializeToString()


def deliver_frame(letters: list[Letter], receiver: str) -> bytes:
    """Return the frame that delivers ``letters`` as they are now: tag and attempt change with the next delivery."""
    frame = twin.OpenSessionResponse()
    add = frame.deliver.deliveries.add
    moment, stamp = 0.0, b""
    for letter in letters:
        envelope = letter.envelope
        if letter.accepted_at != moment:
            moment = letter.accepted_at
            stamp = timestamp_of(moment).SerializeToString()
        delivery = add(
            tag=letter.tag,
            sequence=letter.sequence,
            attempt=letter.attempt,
            sender=letter.sender,
            receiver=receiver,
            accepted_at=stamp,
            message=envelope.payload,
        )
        if letter.redelivered or letter.attempt > 1:
            delivery.redelivered = True
        if letter.via:
            delivery.via = letter.via
        if not envelope.id:
            delivery.id = letter.message_id
    return frame.SerializeToString()


def receipt_to_proto(receipt: Receipt) -> twin.Receipt:
    """Return one receipt as it travels."""
    made = twin.Receipt(
        number=receipt.number,
        receiver=receipt.receiver,
        outcome=cast("twin.Outcome.ValueType", int(receipt.outcome)),
        detail=receipt.detail,
        retryable=receipt.outcome.retryable,
        field=receipt.field,
        reached=receipt.reached,
        missed=receipt.missed,
    )
    if receipt.retry_after is not None:
        made.retry_after.CopyFrom(duration_to_proto(receipt.retry_after))
    return made


def send_request_messages(data: bytes) -> list[bytes]:
    """Return the encoded messages in an encoded `SendRequest`.

    Raises:
        InvalidArgument: The bytes are no `SendRequest`.
    """
    try:
        return list(twin.SendRequest.FromString(data).messages)
    except DecodeError as error:
        raise InvalidArgument(f"{len(data)} bytes that are not a gagent.v1.SendRequest") from error


def send_response(receipts: list[Receipt], *, max_bytes: int) -> bytes:
    """Return an encoded `SendResponse`, with the ACCEPTED receipts too.

    The outcomes matter most: where a response would be too large to travel, the words go, and then what is too long of
    the receivers, which the order tells as well.
    """
    response = twin.SendResponse(receipts=[receipt_to_proto(one) for one in receipts])
    if response.ByteSize() > max_bytes:
        for one in response.receipts:
            one.ClearField("detail")
    if response.ByteSize() > max_bytes:
        longest = max(0, max_bytes // len(receipts) - _RECEIPT_BYTES)
        for one in response.receipts:
            one.receiver = one.receiver.encode()[:longest].decode(errors="ignore")
    return response.SerializeToString()
