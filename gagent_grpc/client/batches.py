"""Messages that were handed over together, for as long as there is nothing to say of any of them.

Owns: how many of them are sent and receipted. Leaves to others: what is refused, waits for room or is sent again, for which
each message has an entry of its own (`client.pending`). A flood would make thousands of them, each of which the garbage
collector has to look at.
"""

from __future__ import annotations

from collections.abc import Sequence

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.client.pending import Entry, Sending


class Batch:
    """Some messages, of which the first ones are receipted, the next ones are sent, and the rest waits."""

    __slots__ = ("_receivers", "_sending", "payloads", "receipted", "sent")

    def __init__(
        self, payloads: Sequence[bytes], receivers: Sequence[Sequence[AgentIdentifier | str]], sending: Sending
    ) -> None:
        """Make a batch that is not sent; the sequences may change afterwards."""
        self.payloads = tuple(payloads)
        self._receivers = tuple(receivers)
        self._sending = sending
        self.sent = 0
        """How many were written."""
        self.receipted = 0
        """How many of those have their receipts."""

    @property
    def waiting(self) -> int:
        """How many are to be sent."""
        return len(self.payloads) - self.sent

    @property
    def under_way(self) -> int:
        """How many are sent and have no receipt."""
        return self.sent - self.receipted

    def accepted(self, count: int) -> int:
        """The next ``count`` that are under way were accepted; return their bytes."""
        begin, self.receipted = self.receipted, self.receipted + count
        for place in range(begin, self.receipted):
            self._sending.resolved(place, ())
        return sum(map(len, self.payloads[begin : self.receipted]))

    def entries_under_way(self) -> list[Entry]:
        """Return an entry for each that is sent and has no receipt."""
        return self._entries(self.receipted, self.sent)

    def entries_waiting(self) -> list[Entry]:
        """Return an entry for each that is not sent."""
        return self._entries(self.sent, len(self.payloads))

    def _entries(self, begin: int, end: int) -> list[Entry]:
        return [Entry(self.payloads[i], self._receivers[i], self._sending, i) for i in range(begin, end)]
