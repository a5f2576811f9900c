"""What the bus reads in a message: from an encoded `BusMessage` to an `Envelope`, checked; and the platform's own ones.

Owns: what makes a message valid on its own. Leaves to others: whether its sender may send it and whether its receivers
exist (`bus.router`).
"""

from __future__ import annotations

import hashlib
import time

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.acp.task_messages import TaskMessage
from gagent_grpc.codec import task_messages
from gagent_grpc.codec.acl import acl_from_proto, acl_to_proto
from gagent_grpc.codec.alike import Likeness, likeness_of
from gagent_grpc.codec.depth import check_depth
from gagent_grpc.codec.times import seconds_of
from gagent_grpc.envelope import Envelope, OnReceiverLost, Priority, Report
from gagent_grpc.errors import InvalidArgument, shown
from gagent_grpc.pb.gagent.v1 import acl_pb2, acp_pb2, bus_service_pb2

_NOT_SERVED = {5: "not_before", 15: "signed"}
"""Numbers that are reserved in `BusMessage`: a sender that uses one counts on something that would not happen."""
_ACP_SIGNATURE = 13
"""The same in `AcpMessage`."""
_ACTS = frozenset(int(act) for act in Performative)
_ACP_TYPES = frozenset(acp_pb2.AcpMessageType.values()) - {0}
_PRIORITIES = frozenset(int(one) for one in Priority)
_REPORTS = frozenset(int(one) for one in Report)
_ON_RECEIVER_LOST = frozenset({0, *(int(one) for one in OnReceiverLost)})
# Plain numbers: a member of an enum is ten times as dear to look up in a set.
_NORMAL = int(Priority.NORMAL)
_RECEIPT = int(Report.RECEIPT)
_HOLD_ORDER_BYTES = 2
"""What `hold_order` takes: no other field fits beside it in as little."""
_ID_TAG, _ACL_TAG, _HOLD_ORDER = 0x0A, 0x6A, b"\x48\x01"
"""How these fields of a `BusMessage` begin, and the last one as a whole."""
_UNLIKE = 32
"""Messages from one likeness to the next: learning costs as much as reading one, and what has nothing in common pays for it
in vain."""
_HOPS_DIGITS = 10
_MAX_FLOW_ID_BYTES = 1_024
"""Largest `conversation_id`, `reply_with` or `in_reply_to`: the bus keeps them long after their message."""
_MAX_SECONDS = 253_402_300_799.0
"""The last second of the year 9999: what a Timestamp may hold."""


class EnvelopeCodec:
    """The `Codec` port of the bus over protobuf. It remembers what messages of late have in common, and nothing else."""

    def __init__(self, *, max_id_bytes: int) -> None:
        """Make a codec that takes ids of at most ``max_id_bytes`` bytes of UTF-8."""
        self._max_id_bytes = max_id_bytes
        self._likeness: Likeness | None = None
        self._unlike = 0
        """Messages that were not like it since it was learnt."""

    def decode(self, payload: bytes, *, digest: bytes = b"") -> Envelope:
        """Return the envelope of one encoded `BusMessage`; its ``digest``, where it is known, is not made again.

        The whole message is parsed, so that what reaches a receiver can be read by it.

        Raises:
            InvalidArgument: It is no valid message; the error names the field and the expected form.
        """
        likeness = self._likeness
        if likeness is not None and not digest and payload.endswith(likeness.after):
            found = likeness.read(payload)
            if found is not None:
                made, body = found
                made.digest = _digest(body)
                return made
        message = _message(payload)
        made = Envelope()
        made.read_flow = _read_flow
        made.payload = payload
        made.digest = digest
        made.id = message_id = message.id
        acl = message.acl
        # What is stored was taken, maybe before there was this limit; and a short message has no long ids.
        if not digest:
            check_depth(payload)
            if len(payload) > _MAX_FLOW_ID_BYTES:
                _check_flow_ids(acl)
        body_bytes = self._read_acl(acl, made) if acl.performative else 0
        more = len(payload) - len(message_id) - body_bytes - _frame_size(body_bytes)
        hold_order = more == _HOLD_ORDER_BYTES and message.hold_order
        if body_bytes and message_id and (not more or hold_order):
            # Identity and body, maybe to be kept in order, and nothing else is in it: the way of nearly every message.
            made.transient = made.resend = False
            made.expires_at = 0.0
            made.priority = _NORMAL
            made.report = _RECEIPT
            made.hops = 0
            made.hold_order = hold_order
            made.on_receiver_lost = 0
            self._unlike += 1
            if self._unlike == _UNLIKE:
                self._unlike = 0
                body = acl.SerializeToString(deterministic=True)
                self._likeness = likeness_of(made, body, max_id_bytes=self._max_id_bytes)
        else:
            self._read_whole(message, made)
        # Four bytes is the most that a character takes.
        if len(message_id) * 4 > self._max_id_bytes and len(message_id.encode()) > self._max_id_bytes:
            size = len(message_id.encode())
            raise InvalidArgument(f"id has {size} bytes; expected at most {self._max_id_bytes}", field="id")
        return made

    def decode_stored(self, payload: bytes, *, digest: bytes) -> Envelope:
        """Return the envelope of a message that `decode` took before; its body is read when that is first asked for.

        So a hundred thousand stored messages do not keep a bus from serving. Nearly all of them are an id and a body; any
        other is read at once.

        Raises:
            InvalidArgument: As `decode`, of a message that is read at once.
        """
        end = len(payload)
        hold_order = payload.endswith(_HOLD_ORDER)
        if hold_order:
            end -= _HOLD_ORDER_BYTES
        id_end = 2 + payload[1] if end > 2 and payload[0] == _ID_TAG else 0
        if not (2 < id_end <= min(self._max_id_bytes, 127) + 2 and _is_body(payload, id_end, end)):
            return self.decode(payload, digest=digest)
        made = Envelope()
        made.read_flow = self._read_late
        made.payload = payload
        made.digest = digest
        made.id = payload[2:id_end].decode()
        made.transient = made.resend = False
        made.expires_at = 0.0
        made.priority = _NORMAL
        made.report = _RECEIPT
        made.hops = 0
        made.hold_order = hold_order
        made.on_receiver_lost = 0
        return made

    def _read_late(self, made: Envelope) -> None:
        """Read the body of a stored message."""
        acl = _message(made.payload).acl
        made.read_flow = _read_flow
        self._read_acl(acl, made)
        made.protocol = acl.protocol
        _read_rest(acl, made)

    def _read_whole(self, message: bus_service_pb2.BusMessage, made: Envelope) -> None:
        """Read a message of any kind, with all that it may carry beside its body."""
        which = message.WhichOneof("body")
        self._refuse_unserved(message)
        if which is None:
            raise InvalidArgument("the message has no body; expected acl or acp", field="body")
        if which == "acp":
            self._read_acp(message, made)
        elif not message.acl.performative:
            self._read_acl(message.acl, made)
        to = message.to
        if to:
            made.to = tuple(to)
        hops = message.headers.get("hops", "")
        # What is no number of a plausible length counts as none: headers belong to those who write them.
        made.hops = int(hops) if hops.isdecimal() and len(hops) < _HOPS_DIGITS else 0
        made.transient = message.transient
        made.resend = message.resend
        made.expires_at = 0.0
        if message.HasField("expires_at"):
            end = message.expires_at
            # Before the epoch is as much over as one second after it.
            made.expires_at = max(1.0, seconds_of(end))
            if made.expires_at > _MAX_SECONDS:
                raise InvalidArgument(f"expires_at {end.seconds} s is after the year 9999", field="expires_at")
        elif which == "acp" and message.acp.metadata.HasField("ttl_seconds"):
            made.expires_at = _end_of_use(message)
        made.priority = message.priority or (message.acp.metadata.priority if which == "acp" else 0) or _NORMAL
        if made.priority not in _PRIORITIES:
            raise InvalidArgument(f"priority {made.priority}; expected 1 (low) to 4 (urgent)", field="priority")
        made.report = message.report or _RECEIPT
        if made.report not in _REPORTS:
            raise InvalidArgument(f"report {made.report}; expected 1 to {max(_REPORTS)}", field="report")
        made.on_receiver_lost = message.on_receiver_lost
        if made.on_receiver_lost not in _ON_RECEIVER_LOST:
            raise InvalidArgument(
                f"on_receiver_lost {made.on_receiver_lost}; expected 1 (fail) or 2 (wait)", field="on_receiver_lost"
            )
        made.hold_order = message.hold_order
        if made.hold_order and not message.id:
            raise InvalidArgument("hold_order without an id; expected an id, by which it is known again", field="id")

    def encode(self, message: ACLMessage, *, message_id: str) -> bytes:
        """Return the encoded `BusMessage` around a message that the platform itself writes."""
        made = bus_service_pb2.BusMessage(id=message_id)
        acl_to_proto(message, made.acl)
        return made.SerializeToString()

    def decode_acl(self, payload: bytes) -> ACLMessage | None:
        """Return the ACL message in an encoded `BusMessage`; None when its body is not ACL."""
        message = bus_service_pb2.BusMessage.FromString(payload)
        return acl_from_proto(message.acl) if message.HasField("acl") else None

    def decode_task(self, payload: bytes) -> TaskMessage | None:
        """Return what an encoded `BusMessage` says of a task; None when it is not about one.

        Raises:
            InvalidArgument: A number in it is none that it can be.
        """
        return task_messages.read_task_message(payload)

    def encode_task(
        self,
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
        """Return the encoded `BusMessage` around a message about a task; arguments as `Codec.encode_task`."""
        return task_messages.write_task_message(
            message,
            source=source,
            target=target,
            message_id=message_id,
            in_reply_to=in_reply_to,
            priority=priority,
            expires_at=expires_at,
            resend=resend,
        )

    def complete_delegation(self, payload: bytes, *, task_id: str, message_id: str) -> bytes:
        """Return an encoded DELEGATE with the ids that its sender left out."""
        return task_messages.complete_delegation(payload, task_id=task_id, message_id=message_id)

    def _read_acl(self, acl: acl_pb2.AclMessage, made: Envelope) -> int:
        """Read what routing needs; return the bytes that the body takes."""
        act = acl.performative
        if act not in _ACTS:
            # The error of the value tells the 22 acts.
            Performative.from_code(act)
        made.performative = act
        made.sender = acl.sender.name if acl.HasField("sender") else ""
        receivers = acl.receivers
        made.to = (receivers[0].name,) if len(receivers) == 1 else tuple([one.name for one in receivers])
        made.conversation_id = conversation_id = acl.conversation_id
        if conversation_id:
            made.protocol = protocol = acl.protocol
            if protocol:
                # Its conversation is followed, and another parse would cost four times as much.
                _read_rest(acl, made)
        # Not the bytes as they came: maps, in the message or in an identifier, have no order of their own on the wire.
        if made.digest:
            return acl.ByteSize()
        body = acl.SerializeToString(deterministic=True)
        made.digest = _digest(body)
        return len(body)

    def _read_acp(self, message: bus_service_pb2.BusMessage, made: Envelope) -> None:
        acp = message.acp
        if acp.message_type not in _ACP_TYPES:
            expected = ", ".join(
                f"{value} ({name[17:].lower()})" for name, value in acp_pb2.AcpMessageType.items() if value
            )
            raise InvalidArgument(
                f"unknown ACP message type {acp.message_type}; expected one of {expected}", field="acp.message_type"
            )
        if acp.id and message.id and acp.id != message.id:
            raise InvalidArgument(
                f"acp.id {shown(acp.id)} differs from the id {shown(message.id)} of the message", field="acp.id"
            )
        urgency = acp.metadata.priority
        if urgency and message.priority and urgency != message.priority:
            raise InvalidArgument(
                f"acp.metadata.priority {urgency} differs from the priority {message.priority} of the message",
                field="acp.metadata.priority",
            )
        trace = message.headers.get("traceparent", "")
        if acp.metadata.trace and trace and acp.metadata.trace != trace:
            raise InvalidArgument("acp.metadata.trace differs from the header traceparent", field="acp.metadata.trace")
        if _ACP_SIGNATURE in unknown_fields(acp):
            raise InvalidArgument(
                "acp.signature is not served by this bus; expected a message without it", field="acp.signature"
            )
        made.performative = 0
        made.sender = acp.source
        made.to = (acp.target,) if acp.target else ()
        made.protocol = made.reply_with = made.conversation_id = ""
        made.in_reply_to = acp.in_reply_to
        made.reply_to = ()
        made.reply_by = 0.0
        if not made.digest:
            made.digest = _digest(acp.SerializeToString(deterministic=True))

    @staticmethod
    def _refuse_unserved(message: bus_service_pb2.BusMessage) -> None:
        for number in unknown_fields(message):
            name = _NOT_SERVED.get(number)
            if name is not None:
                raise InvalidArgument(f"{name} is not served by this bus; expected a message without it", field=name)


def _end_of_use(message: bus_service_pb2.BusMessage) -> float:
    """Return when the ttl of an ACP message ends, in Unix seconds: counted from when it was made."""
    ttl = message.acp.metadata.ttl_seconds
    # Written so that it holds for what is no number, too.
    if not 0 <= ttl <= _MAX_SECONDS:
        raise InvalidArgument(f"acp.metadata.ttl_seconds {ttl:g}; expected 0 or more", field="acp.metadata.ttl_seconds")
    made_at = time.time()
    if message.HasField("created_at"):
        made_at = seconds_of(message.created_at)
    elif message.acp.HasField("timestamp"):
        made_at = seconds_of(message.acp.timestamp)
    # Nothing that was said is no end at all.
    return min(max(1.0, made_at + ttl), _MAX_SECONDS)


def _frame_size(body_bytes: int) -> int:
    """Return what an id and a body take beside themselves, as tags and lengths, when nothing else is written."""
    # Ids are shorter than 128 bytes where this is right; a longer one takes the way of a message with more in it.
    return 4 if body_bytes < 0x80 else 5 if body_bytes < 0x4000 else 6 if body_bytes < 0x200000 else 7


def _is_body(payload: bytes, at: int, end: int) -> bool:
    """Whether an ACL body begins at ``at`` and nothing but that is left."""
    if at >= end or payload[at] != _ACL_TAG:
        return False
    length = shift = 0
    for place in range(at + 1, min(at + 5, end)):
        length |= (payload[place] & 0x7F) << shift
        if payload[place] < 0x80:
            return length > 0 and place + 1 + length == end
        shift += 7
    return False


def _read_flow(made: Envelope) -> None:
    """Read what only conversations need: a message that is merely handed on is spared it."""
    acl = _message(made.payload).acl
    made.protocol = acl.protocol
    made.conversation_id = acl.conversation_id
    _read_rest(acl, made)


def _read_rest(acl: acl_pb2.AclMessage, made: Envelope) -> None:
    """Read what places a message in its conversation, and whom its answer goes to."""
    made.reply_with = acl.reply_with
    made.in_reply_to = acl.in_reply_to
    made.reply_to = tuple([one.name for one in acl.reply_to]) if acl.reply_to else ()
    made.reply_by = seconds_of(acl.reply_by) if acl.HasField("reply_by") else 0.0


def _check_flow_ids(acl: acl_pb2.AclMessage) -> None:
    """Refuse ids that are too long to be kept."""
    for name, value in (
        ("conversation_id", acl.conversation_id),
        ("reply_with", acl.reply_with),
        ("in_reply_to", acl.in_reply_to),
    ):
        # Four bytes is the most that a character takes.
        if len(value) * 4 > _MAX_FLOW_ID_BYTES and (size := len(value.encode())) > _MAX_FLOW_ID_BYTES:
            raise InvalidArgument(
                f"{name} has {size:,} bytes; expected at most {_MAX_FLOW_ID_BYTES:,}", field=f"acl.{name}"
            )


def _message(payload: bytes) -> bus_service_pb2.BusMessage:
    try:
        return bus_service_pb2.BusMessage.FromString(payload)
    except DecodeError as error:
        raise InvalidArgument(f"not a gagent.v1.BusMessage: {error}") from error


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).digest()


def unknown_fields(message: Message) -> set[int]:
    """Return the numbers of the fields that ``message`` carries and that its type does not know here."""
    unknown = UnknownFieldSet(message)
    return {unknown[index].field_number for index in range(len(unknown))}
