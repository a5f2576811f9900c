"""Messages that differ from one before in nothing but id and text, as those of a flood do: read without a parser.

Owns: telling them by their bytes, and what they have in common. Leaves to others: every other message (`codec.envelope`).

What is compared are whole fields. The message that was parsed and the one that is read consist of the same bytes around an
id and a text, whose lengths are as they have to be, and both of which are valid UTF-8; so a parser would find the same in
both.
"""

from __future__ import annotations

from gagent_grpc.codec.varint import varint
from gagent_grpc.envelope import Envelope, Priority, Report

_ID = 0x0A
_ACL, _HOLD_ORDER = b"\x6a", b"\x48\x01"
"""How these fields of a `BusMessage` begin, and the last one as a whole."""
_ACT, _TEXT = 0x08, 0x2A
"""How these fields of an `AclMessage` begin."""
_IDENTIFIERS = frozenset({0x12, 0x1A, 0x22})
"""How those of its fields begin that may stand between the two: sender, receivers, reply_to."""
_MAX_ID_BYTES = 127
"""Longest id here: its length is one byte."""
_MAX_BEFORE = 512
"""Most bytes of an ACL message before its text: they are kept once for each size that is remembered."""
_REMEMBERED = 1_024
"""Sizes of messages that are remembered."""
_LENGTH_BYTES = range(1, 5)
"""What the length of a field may take."""
# Plain numbers, as in every envelope.
_NORMAL = int(Priority.NORMAL)
_RECEIPT = int(Report.RECEIPT)


class Likeness:
    """What messages have in common that differ in id and text alone."""

    __slots__ = ("_after_size", "_before", "_body_after", "_flag_size", "_max_id_bytes", "_middles", "_model", "after")

    after: bytes
    """What such a message ends with; it is worth a look before anything else."""

    def __init__(self, model: Envelope, before: bytes, after: bytes, max_id_bytes: int) -> None:
        """Make that of ``model``, whose ACL body has ``before`` and ``after`` around its text."""
        flag = _HOLD_ORDER if model.hold_order else b""
        self.after = after + flag
        self._model = model
        self._before = before
        self._body_after = len(after)
        self._after_size = len(self.after)
        self._flag_size = len(flag)
        self._max_id_bytes = min(max_id_bytes, _MAX_ID_BYTES)
        # By what follows the id, in bytes: what is between id and text, and where in it the body begins.
        self._middles: dict[int, tuple[bytes, int]] = {}

    def read(self, payload: bytes) -> tuple[Envelope, bytes] | None:
        """Return the envelope of an encoded `BusMessage`, without its digest, and the ACL body in it.

        None when the message differs in more than id and text, or is not valid. It ends with `after`.
        """
        size = len(payload)
        # As protobuf encodes them: an id, then a body that ends where the message does, or before the one flag.
        if size < 2 or payload[0] != _ID or not 0 < (id_size := payload[1]) <= self._max_id_bytes:
            return None
        begin = 2 + id_size
        # The lengths in it follow from the size of the message.
        middle, body = self._middles.get(size - begin) or self._middle(size - begin)
        if not (middle and payload.startswith(middle, begin)):
            return None
        text = payload[begin + len(middle) : size - self._after_size]
        try:
            if not text.isascii():
                text.decode()
            message_id = payload[2:begin].decode()
        except UnicodeDecodeError:
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
        return made, payload[begin + body : size - self._flag_size]

    def _middle(self, size: int) -> tuple[bytes, int]:
        """Return what stands between id and text of a message of which ``size`` bytes follow the id; see `_middles`.

        Empty when there is no such message.
        """
        made = (b"", 0)
        # A field together with its length grows with the field, so one pair of lengths fits a size at most. A few sizes have
        # none: 127 bytes and their length take 128 bytes, 128 bytes and theirs take 130.
        for body_bytes in _LENGTH_BYTES:
            body = size - self._flag_size - len(_ACL) - body_bytes
            for text_bytes in _LENGTH_BYTES:
                text = body - len(self._before) - 1 - text_bytes - self._body_after
                if text >= 0 and len(varint(body)) == body_bytes and len(varint(text)) == text_bytes:
                    head = _ACL + varint(body)
                    made = (head + self._before + bytes((_TEXT,)) + varint(text), len(head))
        if len(self._middles) >= _REMEMBERED:
            self._middles.clear()
        self._middles[size] = made
        return made


def likeness_of(model: Envelope, body: bytes, *, max_id_bytes: int) -> Likeness | None:
    """Return what is common to messages like ``model``, of an id and an ACL body, and maybe `hold_order`.

    None for one without text, for one with a protocol, of which more is read than is common, for one with very much before
    its text, and for one that is not written as protobuf would write it: its digest is not that of the bytes as they came.

    Args:
        model: A message as it was parsed.
        body: Its ACL message, as protobuf writes it.
        max_id_bytes: Longest id that such messages may have.
    """
    end = len(model.payload) - (len(_HOLD_ORDER) if model.hold_order else 0)
    text = _text_in(body)
    if not 0 <= text <= _MAX_BEFORE or model.protocol or model.payload[end - len(body) : end] != body:
        return None
    return Likeness(model, body[:text], body[_end_of(body, text + 1) :], max_id_bytes)


def _text_in(body: bytes) -> int:
    """Return where the text of an ACL message begins; -1 when it has none."""
    at = 0
    while at < len(body):
        if body[at] == _TEXT:
            return at
        if body[at] == _ACT:
            at += 2
        elif body[at] in _IDENTIFIERS:
            at = _end_of(body, at + 1)
        else:
            break
    return -1


def _end_of(data: bytes, at: int) -> int:
    """Return where a field ends whose length is at ``at``."""
    length = shift = 0
    while data[at] > 0x7F:
        length |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return at + 1 + (length | data[at] << shift)
