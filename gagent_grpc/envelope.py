"""The Envelope: what travels through the bus. The few facts that routing needs, beside the message as it was written.

Owns: the names of these facts. Filled by `codec`; read by `bus` and `storage`. The payload is never changed.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable
from typing import Any


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


class OnReceiverLost(enum.IntEnum):
    """What happens when a receiver is lost while it owes an answer; the values are those of the wire."""

    FAIL = 1
    """The bus answers `failure` in its place and withdraws the message."""
    WAIT = 2
    """The message waits for the receiver, until its reply-by."""


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


class DeadReason(enum.IntEnum):
    """Why a message that was accepted was given up; the values are those of the wire."""

    MAX_DELIVERIES = 1
    REJECTED = 2
    EXPIRED = 3
    DEREGISTERED = 4
    RECEIVER_LOST = 5


class Envelope:
    """One message on its way. No field is set again once `codec` has filled it.

    A slotted class and not a frozen dataclass, since one is built for every message that the bus carries.
    """

    __slots__ = (
        "conversation_id",
        "digest",
        "expires_at",
        "hold_order",
        "hops",
        "id",
        "in_reply_to",
        "on_receiver_lost",
        "payload",
        "performative",
        "priority",
        "protocol",
        "read_flow",
        "reply_by",
        "reply_to",
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
    """These four are "" when absent. All but `conversation_id`, and `reply_to` and `reply_by`, are read when one of them is
    first asked for; in a conversation `protocol` is there at once, and everything where it names one."""
    reply_to: tuple[str, ...]
    """Names of those whom the answer goes to; empty for the sender."""
    reply_by: float
    """When an answer stops being of use, in Unix seconds; 0.0 for never."""
    expires_at: float
    """When it stops being of use, in Unix seconds; 0.0 for never."""
    priority: int
    transient: bool
    resend: bool
    report: int
    hops: int
    """How many messages led to this one, each answering or forwarding the one before, as its header says; 0 for none."""
    hold_order: bool
    """Once it was refused for a passing reason, later ones of its session to that receiver wait for it."""
    on_receiver_lost: int
    """0 for what goes by the act."""
    digest: bytes
    """Hash of the body: the same for a repetition, another for another message."""
    read_flow: Callable[[Envelope], None]
    """Fills in the parameters of a conversation."""
    payload: bytes
    """The encoded `BusMessage`, exactly as it came."""

    def as_transient(self) -> Envelope:
        """Return the same message as one that need not survive a restart."""
        made = copy.copy(self)
        made.transient = True
        return made

    def __getattr__(self, name: str) -> Any:
        # Called for a slot that is not filled yet, and for nothing else.
        if name not in _FLOW and name not in _BODY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.read_flow(self)
        return getattr(self, name)


_FLOW = frozenset({"protocol", "conversation_id", "reply_with", "in_reply_to", "reply_to", "reply_by"})
_BODY = frozenset({"performative", "sender", "to"})
"""What is read late of a stored message, too."""
