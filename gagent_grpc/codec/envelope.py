"""What the bus reads in a message: from an encoded `BusMessage` to an `Envelope`, checked; and the platform's own ones.

Owns: what makes a message valid on its own. Leaves to others: whether its sender may send it and whether its receivers
exist (`bus.router`).
"""

from __future__ import annotations

import hashlib

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.codec.acl import acl_from_proto, acl_to_proto
from gagent_grpc.codec.times import seconds_of
from gagent_grpc.envelope import Envelope, Priority, Report
from gagent_grpc.errors import InvalidArgument, shown
from gagent_grpc.pb.gagent.v1 import acp_pb2, bus_service_pb2

_NOT_SERVED = {5: "not_before", 9: "hold_order", 10: "on_receiver_lost", 15: "signed"}
"""Numbers that are reserved in `BusMessage`: a sender that uses one counts on something that would not happen."""
_ACP_SIGNATURE = 13
"""The same in `AcpMessage`."""
_ACTS = frozenset(int(act) for act in Performative)
_ACP_TYPES = frozenset(acp_pb2.AcpMessageType.values()) - {0}
_PRIORITIES = frozenset(int(one) for one in Priority)
_REPORTS = frozenset(int(one) for one in Report)
# Plain numbers: a member of an enum is ten times as dear to look up in a set.
_NORMAL = int(Priority.NORMAL)
_RECEIPT = int(Report.RECEIPT)
_MAX_SECONDS = 253_402_300_799.0
"""The last second of the year 9999: what a Timestamp may hold."""


class EnvelopeCodec:
    """The `Codec` port of the bus over protobuf. Stateless but for its limit."""

    def __init__(self, *, max_id_bytes: int) -> None:
        """Make a codec that takes ids of at most ``max_id_bytes`` bytes of UTF-8."""
        self._max_id_bytes = max_id_bytes

    def decode(self, payload: bytes) -> Envelope:
        """Return the envelope of one encoded `BusMessage`.

        The whole message is parsed, so that what reaches a receiver can be read by it.

        Raises:
            InvalidArgument: It is no valid message; the error names the field and the expected form.
        """
        try:
            message = bus_service_pb2.BusMessage.FromString(payload)
        except DecodeError as error:
            raise InvalidArgument(f"not a gagent.v1.BusMessage: {error}") from error
        made = Envelope()
        made.payload = payload
        body = message.WhichOneof("body")
        if body == "acl":
            self._read_acl(message, made)
        elif body == "acp":
            self._read_acp(message, made)
        else:
            self._refuse_unserved(message)
            raise InvalidArgument("the message has no body; expected acl or acp", field="body")
        made.id = message_id = message.id
        # Four bytes is the most that a character takes.
        if len(message_id) * 4 > self._max_id_bytes and len(message_id.encode()) > self._max_id_bytes:
            size = len(message_id.encode())
            raise InvalidArgument(f"id has {size} bytes; expected at most {self._max_id_bytes}", field="id")
        to = message.to
        if to:
            made.to = tuple(to)
        made.transient = message.transient
        made.resend = message.resend
        made.expires_at = 0.0
        if message.HasField("expires_at"):
            end = message.expires_at
            # Before the epoch is as much over as one second after it.
            made.expires_at = max(1.0, seconds_of(end))
            if made.expires_at > _MAX_SECONDS:
                raise InvalidArgument(f"expires_at {end.seconds} s is after the year 9999", field="expires_at")
        made.priority = message.priority or (message.acp.metadata.priority if body == "acp" else 0) or _NORMAL
        if made.priority not in _PRIORITIES:
            raise InvalidArgument(f"priority {made.priority}; expected 1 (low) to 4 (urgent)", field="priority")
        made.report = message.report or _RECEIPT
        if made.report not in _REPORTS:
            raise InvalidArgument(f"report {made.report}; expected 1 to {max(_REPORTS)}", field="report")
        self._refuse_unserved(message)
        return made

    def encode(self, message: ACLMessage, *, message_id: str) -> bytes:
        """Return the encoded `BusMessage` around a message that the platform itself writes."""
        made = bus_service_pb2.BusMessage(id=message_id)
        acl_to_proto(message, made.acl)
        return made.SerializeToString()

    def decode_acl(self, payload: bytes) -> ACLMessage | None:
        """Return the ACL message in an encoded `BusMessage`; None when its body is not ACL."""
        message = bus_service_pb2.BusMessage.FromString(payload)
        return acl_from_proto(message.acl) if message.HasField("acl") else None

    def _read_acl(self, message: bus_service_pb2.BusMessage, made: Envelope) -> None:
        acl = message.acl
        act = acl.performative
        if act not in _ACTS:
            # The error of the value tells the 22 acts.
            Performative.from_code(act)
        made.performative = act
        made.sender = acl.sender.name if acl.HasField("sender") else ""
        receivers = acl.receivers
        made.to = (receivers[0].name,) if len(receivers) == 1 else tuple([one.name for one in receivers])
        made.protocol = acl.protocol
        made.conversation_id = acl.conversation_id
        made.reply_with = acl.reply_with
        made.in_reply_to = acl.in_reply_to
        # Maps, in the message or in an identifier, have no order of their own on the wire.
        body = acl.SerializeToString(deterministic=True)
        made.digest = hashlib.blake2b(body, digest_size=8).digest()

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
        made.digest = hashlib.blake2b(acp.SerializeToString(deterministic=True), digest_size=8).digest()

    @staticmethod
    def _refuse_unserved(message: bus_service_pb2.BusMessage) -> None:
        for number in unknown_fields(message):
            name = _NOT_SERVED.get(number)
            if name is not None:
                raise InvalidArgument(f"{name} is not served by this bus; expected a message without it", field=name)


def unknown_fields(message: Message) -> set[int]:
    """Return the numbers of the fields that ``message`` carries and that its type does not know here."""
    unknown = UnknownFieldSet(message)
    return {unknown[index].field_number for index in range(len(unknown))}
