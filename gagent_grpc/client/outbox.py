"""What an agent has sent and not yet has receipts for; survives a lost connection.

Owns: numbering, the send window, resending, and handing receipts to whoever waits. Pure: no loop of its own, no frames.
Leaves to others: writing (`client.session`), what to send (`client.agent`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from gagent_grpc.client.message import Receipt
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import BusError

RESEND_FLAG = b"\x40\x01"
"""`BusMessage.resend = true`, encoded: a field may stand anywhere, so appending it marks a message as a repetition."""


class Sending:
    """Some messages that were handed over together, and their receipts."""

    __slots__ = ("_done", "_left", "refusals")

    def __init__(self, count: int, done: asyncio.Future[Any]) -> None:
        self._left = count
        self._done = done
        self.refusals: list[tuple[int, Receipt]] = []
        """(place among the messages, receipt) of every receiver that has no ACCEPTED."""

    def resolved(self, place: int, refusals: Sequence[Receipt]) -> None:
        """One message has all its receipts; ``refusals`` are those that are not ACCEPTED."""
        self.refusals.extend((place, receipt) for receipt in refusals)
        self._left -= 1
        if self._left == 0 and not self._done.done():
            self._conclude()

    def fail(self, error: BusError) -> None:
        """Nothing more will be heard of these messages."""
        if not self._done.done():
            self._done.set_exception(error)
            # Whoever gave up waiting does not want to hear of it from the loop.
            self._done.exception()

    def _conclude(self) -> None:
        """All messages have their receipts."""
        self.refusals.sort(key=_place_of)
        self._done.set_result(None)


def _place_of(refusal: tuple[int, Receipt]) -> int:
    return refusal[0]


class _Entry:
    """One message without a receipt."""

    __slots__ = ("payload", "place", "receivers", "refusals", "resend", "sending")

    def __init__(self, payload: bytes, receivers: int, sending: Sending, place: int) -> None:
        self.payload = payload
        self.receivers = receivers
        self.sending: Sending | None = sending
        """None once all is known about the message, though its number is not yet covered."""
        self.place = place
        self.refusals: tuple[Receipt, ...] = ()
        self.resend = False


class Outbox:
    """Messages in the order in which they were handed over: first those that were sent, then those that wait."""

    def __init__(self) -> None:
        self._sent: deque[_Entry] = deque()
        self._waiting: deque[_Entry] = deque()
        self._first = 1
        self._sent_bytes = 0
        self.bytes = 0
        """Bytes of all messages without a receipt."""

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting)

    def add(self, payloads: Sequence[bytes], receivers: Sequence[int], sending: Sending) -> None:
        """Hand messages over; ``receivers`` says how many each one has."""
        for place, (payload, count) in enumerate(zip(payloads, receivers, strict=True)):
            self._waiting.append(_Entry(payload, count, sending, place))
            self.bytes += len(payload)

    @property
    def waiting(self) -> bool:
        """Whether there is a message to send."""
        return bool(self._waiting)

    def take(self, *, window_messages: int, window_bytes: int, batch_bytes: int, batch_messages: int) -> list[bytes]:
        """Return the next messages to write, within the window; one message always fits when none is on its way."""
        taken: list[bytes] = []
        size = 0
        waiting = self._waiting
        room = min(window_messages - len(self._sent), batch_messages)
        while waiting and len(taken) < room:
            entry = waiting[0]
            length = len(entry.payload)
            if (taken and size + length > batch_bytes) or (self._sent and self._sent_bytes + length > window_bytes):
                break
            waiting.popleft()
            self._sent.append(entry)
            self._sent_bytes += length
            size += length
            taken.append(entry.payload + RESEND_FLAG if entry.resend else entry.payload)
        return taken

    def receipts(self, accepted_through: int, exceptions: Sequence[tuple[int, Receipt]]) -> None:
        """Take receipts of the present session.

        Args:
            accepted_through: Number up to which all is said.
            exceptions: (number, receipt) of receivers without an ACCEPTED.
        """
        for number, receipt in exceptions:
            index = number - self._first
            if not 0 <= index < len(self._sent):
                continue
            entry = self._sent[index]
            if entry.sending is None or (entry.resend and receipt.outcome is Outcome.DUPLICATE):
                # What was sent before the connection was lost had arrived: accepted, as far as its sender cares.
                continue
            entry.refusals += (receipt,)
            # A refusal is heard at once, also when acceptances come later.
            if not receipt.receiver or len(entry.refusals) >= entry.receivers:
                entry.sending.resolved(entry.place, entry.refusals)
                entry.sending = None
        while self._sent and self._first <= accepted_through:
            entry = self._sent.popleft()
            self._first += 1
            length = len(entry.payload)
            self._sent_bytes -= length
            self.bytes -= length
            if entry.sending is not None:
                entry.sending.resolved(entry.place, entry.refusals)

    def reconnected(self) -> None:
        """A new session begins: what has no receipt is sent again, in order, and numbers begin anew."""
        unresolved = []
        for entry in self._sent:
            if entry.sending is None:
                # Refused already; nobody wants it again.
                self.bytes -= len(entry.payload)
                continue
            entry.resend = True
            # Every receiver is told of once more.
            entry.refusals = ()
            unresolved.append(entry)
        self._waiting.extendleft(reversed(unresolved))
        self._sent.clear()
        self._sent_bytes = 0
        self._first = 1

    def fail(self, error: BusError) -> None:
        """End every wait with ``error``: there will be no session any more."""
        for entry in [*self._sent, *self._waiting]:
            if entry.sending is not None:
                entry.sending.fail(error)
        self._sent.clear()
        self._waiting.clear()
        self._sent_bytes = self.bytes = 0
