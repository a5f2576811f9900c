"""Which receivers of one sender wait for a message to be sent again, so that waiting keeps the order (`hold_order`).

Owns: that memory. Leaves to others: when a message counts as refused or as taken (`bus.router`). Pure.
"""

from __future__ import annotations

from gagent_grpc.envelope import Envelope, Outcome

_MAX_HOLDS = 10_000
"""Holds of one sender; beyond that the oldest one is let go, as for somebody who refers to ever new receivers."""


class Holds:
    """The holds of one session, or of one call; empty for nearly every sender, so that one looks into `waiting` first."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        # By the receiver's local name, or its address where it is not of this platform, and by priority: order is kept
        # among messages of one priority, and what is urgent does not wait for bulk.
        self.waiting: dict[tuple[str, int], str] = {}

    def blocker(self, receiver: str, envelope: Envelope) -> str:
        """Return the id of the message that has to be sent again before this one; "" when there is none."""
        waited_for = self.waiting.get((receiver, envelope.priority), "")
        return "" if waited_for == envelope.id else waited_for

    def taken(self, receiver: str, envelope: Envelope) -> None:
        """A message is in a mailbox, or on its way into it: whoever waited for it goes on."""
        key = (receiver, envelope.priority)
        if self.waiting.get(key) == envelope.id:
            del self.waiting[key]

    def refused(self, receiver: str, envelope: Envelope, outcome: Outcome) -> None:
        """A message was refused: for a passing reason others wait for it, if it says so; else nobody does any more.

        ``receiver`` is "" where the message was refused as a whole.
        """
        if outcome.retryable:
            if envelope.hold_order and receiver:
                # Not when another one is waited for: this one was refused because of that.
                self.waiting.setdefault((receiver, envelope.priority), envelope.id)
                if len(self.waiting) > _MAX_HOLDS:
                    del self.waiting[next(iter(self.waiting))]
        elif receiver:
            self.taken(receiver, envelope)
        else:
            for key in [one for one, waited_for in self.waiting.items() if waited_for == envelope.id]:
                del self.waiting[key]
