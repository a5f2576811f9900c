"""The Envelope: what travels through the bus. The few facts that routing needs, beside the message as it was written.

Owns: the names of these facts. Filled by `codec`; read by `bus` and `storage`. The payload is never changed.
"""

from __future__ import annotations

import enum


class Priority(enum.IntEnum):
    """Urgency of a message; the values are those of the wire. Higher ones leave a mailbox first."""

    LOW = 1
    NORMAL = 2
    HIGH = 3
    URGENT = 4

    def __str__(self) -> str:
        return self.name.lower()


class Report(enum.IntEnum):
    """How a sender wants to hear what became of a message; the values are those of the wire."""

    RECEIPT = 1
    RECEIPT_LAZY = 2
    FAILURE_MESSAGE = 3


class Outcome(enum.IntEnum):
    """What became of one message for one receiver; the values are those of the wire."""

    ACCEPTED = 1
    DUPLICATE = 2
    NO_SUCH_AGENT = 3
    NO_PROVIDER = 4
    DENIED = 5
    EXPIRED = 6
    MAILBOX_FULL = 7
    HELD = 8
    TOO_LARGE = 9
    INVALID = 10
    RATE_LIMITED = 11
    UNREACHABLE = 12

    @property
    def delivered(self) -> bool:
        """Whether the message is in the mailbox, from this sending or an earlier one."""
        return self <= Outcome.DUPLICATE

    @property
    def retryable(self) -> bool:
        """Whether the same message may be accepted later."""
        return self in _RETRYABLE


_RETRYABLE = frozenset(
    {Outcome.MAILBOX_FULL, Outcome.HELD, Outcome.RATE_LIMITED, Outcome.UNREACHABLE, Outcome.NO_PROVIDER}
)


class Envelope:
    """One message on its way. No field is set again once `codec` has filled it.

    A slotted class and not a frozen dataclass, since one is built for every message that the bus carries.
    """

    __slots__ = (
        "conversation_id",
        "digest",
        "expires_at",
        "id",
        "in_reply_to",
        "payload",
        "performative",
        "priority",
        "protocol",
        "reply_with",
        "report",
        "resend",
        "sender",
        "to",
        "transient",
    )

    id: str
    """Identity that the sender gave; "" when it gave none."""
    sender: str
    """Sender as the body names it; "" when it names none. Who really sent it is said beside the envelope."""
    to: tuple[str, ...]
    """Delivery addresses as the sender wrote them."""
    performative: int
    """FIPA code of the act; 0 for an ACP message."""
    protocol: str
    conversation_id: str
    reply_with: str
    in_reply_to: str
    """These four are "" when absent."""
    expires_at: float
    """When it stops being of use, in Unix seconds; 0.0 for never."""
    priority: int
    transient: bool
    resend: bool
    report: int
    digest: bytes
    """Hash of the body: the same for a repetition, another for another message."""
    payload: bytes
    """The encoded `BusMessage`, exactly as it came."""
