"""Messages that differ from one before in nothing but id and text, as those of a flood do: read without a parser.

Owns: telling them, byte by byte, and what they have in common. Leaves to others: every other message (`codec.envelope`).

What is compared are whole fields. The message that was parsed and the one that is read consist of the same bytes around an
id and a text, each of which is measured and is valid UTF-8; so a parser would find the same in both.
"""

from __future__ import annotations

from gagent_grpc.envelope import Envelope, Priority, Report

_ID, _ACL, _HOLD_ORDER = 0x0A, 0x6A, b"\x48\x01"
"""How these fields of a `BusMessage` begin, and the last one as a whole."""
_ACT, _TEXT = 0x08, 0x2A
"""How these fields of an `AclMessage` begin."""
_IDENTIFIERS = frozenset({0x12, 0x1A, 0x22})
"""How those of its fields begin that may stand between the two: sender, receivers, reply_to."""
_MAX_ID_BYTES = 127
"""Longest id here: its length is one byte."""
# Plain numbers, as in every envelope.
_NORMAL = int(Priority.NORMAL)
_RECEIPT = int(Report.RECEIPT)


class Likeness:
    """What messages have in common that differ in id and text alone."""

    __slots__ = (
        "_before",
        "_before_size",
        "_body_rest",
        "_max_id_bytes",
        "_model",
        "after",
    )

    after: bytes
    """What such a message ends with; it is worth a look before anything else."""

    def __init__(self, model: Envelope, before: bytes, after: bytes, max_id_bytes: int) -> None:
        """Make that of ``model``, whose ACL body has ``before`` and ``after`` around its text."""
        self._model = model
        self._before = before
        self._before_size = len(before)
        self._body_rest = len(after)
        self._max_id_bytes = min(max_id_bytes, _MAX_ID_BYTES)
        self.after = after + (_HOLD_ORDER if model.hold_order else b"")

    def read(self, payload: bytes) -> tuple[Envelope, bytes] | None:
        """Return the envelope of an encoded `BusMessage`, without its digest, and the ACL body in it.

        None when the message differs in more than id and text, is longer than most, or is not valid.
        """
        try:
            # As protobuf encodes them: an id, then a body that ends where the message does, or before the one flag.
            id_size = payload[1]
            if payload[0] != _ID or not 0 < id_size <= self._max_id_bytes or payload[2 + id_size] != _ACL:
                return None
            size, body = payload[3 + id_size], 4 + id_size
            if size > 0x7F:
                size, body = size & 0x7F | payload[body] << 7, body + 1
            text = body + self._before_size
            if payload[text] != _TEXT:
                return None
            length, begin = payload[text + 1], text + 2
            if length > 0x7F:
                more, begin = payload[begin], begin + 1
                # A length that needs a third byte, or not this one, is left to the parser.
                if not 0 < more <= 0x7F:
                    return None
                length = length & 0x7F | more << 7
            end = begin + length
            rest = end + self._body_rest
            if (
                rest != body + size
                or end + len(self.after) != len(payload)
                or not payload.startswith(self._before, body)
                or not payload.endswith(self.after)
            ):
                return None
            content = payload[begin:end]
            if not content.isascii():
                content.decode()
            message_id = payload[2 : 2 + id_size].decode()
        except (IndexError, UnicodeDecodeError):
            return None
        model = self._model
        made = Envelope()
        made.read_flow = model.read_flow
        made.payload = payload
        made.id = message_id
        made.performative = model.performative
        made.sender = model.sender
        made.to = model.to
        made.conversation_id = model.conversation_id
        made.protocol = ""
        made.transient = made.resend = False
        made.expires_at = 0.0
        made.priority = _NORMAL
        made.report = _RECEIPT
        made.hops = 0
        made.hold_order = model.hold_order
        made.on_receiver_lost = 0
        return made, payload[body:rest]


def likeness_of(model: Envelope, body: bytes, *, max_id_bytes: int) -> Likeness | None:
    """Return what is common to messages like ``model``, of an id and an ACL body, and maybe `hold_order`.

    None for one without text, with a protocol, whose conversation is followed by more than the common fields, or which is
    not written as protobuf would write it: of such ones the digest is not that of the bytes as they came.

    Args:
        model: A message as it was parsed.
        body: Its ACL message, as protobuf writes it.
        max_id_bytes: Longest id that such messages may have.
    """
    end = len(model.payload) - (len(_HOLD_ORDER) if model.hold_order else 0)
    text = _text_in(body)
    if text < 0 or model.protocol or model.payload[end - len(body) : end] != body:
        return None
    _, after = _measured(body, text + 1)
    return Likeness(model, body[:text], body[after:], max_id_bytes)


def _text_in(body: bytes) -> int:
    """Return where the text of an ACL message begins; -1 when it has none."""
    at = 0
    while at < len(body):
        if body[at] == _TEXT:
            return at
        if body[at] == _ACT:
            at += 2
        elif body[at] in _IDENTIFIERS:
            _, at = _measured(body, at + 1)
        else:
            break
    return -1


def _measured(data: bytes, at: int) -> tuple[int, int]:
    """Return where a field begins whose length is at ``at``, and where it ends."""
    length = shift = 0
    while data[at] > 0x7F:
        length |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    length |= data[at] << shift
    return at + 1, at + 1 + length
