"""Messages that wait for one receiver that has no room, in the order in which they were handed over.

Owns: when they are tried again, and how many at a time. Pure: times are given by the caller. Leaves to others: the rest
of what an agent sends, and what a refusal means (`client.outbox`).
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace

from gagent_grpc.client.message import Receipt
from gagent_grpc.client.pending import Entry, Nobody, name_of, withdrawal
from gagent_grpc.envelope import Outcome

_FIRST_DELAY = 0.1
"""Seconds before a repetition, where the bus names none."""
_MAX_DELAY = 2.0
"""Seconds; what the bus asks for may be longer."""
_JITTER = 0.5
"""Part of a delay by which it is longer at most, so that those who were refused together do not come back together."""
_MOST_AT_ONCE = 1024


class Backlog:
    """What waits for one receiver. It is tried in rounds: one message first, and twice as many after each good round.

    Nothing else goes to the receiver while a round is under way, since the bus lets everything pass as soon as the first
    message that it refused has been taken.
    """

    __slots__ = (
        "_at_once",
        "_failures",
        "_heap",
        "_progress",
        "_refused",
        "_retry_after",
        "bytes",
        "due",
        "on_way",
        "why",
    )

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._at_once = 1
        self._failures = 0
        self._refused = self._progress = False
        self._retry_after = 0.0
        self.bytes = 0
        self.due = math.inf
        """When the next round may begin; infinite while one is under way."""
        self.on_way: set[Entry] = set()
        """Messages to the receiver that wait for their receipts."""
        self.why: Receipt | None = None
        """The last refusal that was for more than for the order."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        """Have a message wait for the others; it takes the place in which it was handed over."""
        assert entry.sending is not None
        heapq.heappush(self._heap, (entry.sending.order, entry.place, entry))
        self.bytes += len(entry.payload)

    def refused(self, receipt: Receipt) -> None:
        """A message of this round was refused for a passing reason."""
        self._refused = True
        self._retry_after = max(self._retry_after, receipt.retry_after or _FIRST_DELAY)
        if receipt.outcome is not Outcome.HELD or self.why is None:
            self.why = receipt

    def went(self) -> None:
        """A message of this round is no longer waited for: it was taken, or refused for good."""
        self._progress = True

    def end_round(self, now: float) -> bool:
        """All messages that were on their way have their receipts; return whether one was refused for a passing reason."""
        refused = self._refused
        if refused:
            self._failures = 1 if self._progress else self._failures + 1
            delay = max(self._retry_after, min(_MAX_DELAY, self._retry_after * 2.0 ** min(self._failures - 1, 10)))
            self.due = now + delay * (1 + _JITTER * random.random())  # noqa: S311  # Jitter, not a secret.
            self._at_once = 1
        else:
            self._failures = 0
            self.due = now
            self._at_once = min(2 * self._at_once, _MOST_AT_ONCE)
        self._refused = self._progress = False
        self._retry_after = 0.0
        return refused

    def begin_round(self) -> list[Entry]:
        """Take the messages that are to be sent now; none when nothing is left."""
        taken: list[Entry] = []
        while self._heap and len(taken) < self._at_once:
            _, _, entry = heapq.heappop(self._heap)
            self.bytes -= len(entry.payload)
            assert entry.sending is not None
            if entry.sending.given_up:
                if not entry.refused:
                    continue
                # The bus lets nothing pass before it has heard of this one again.
                entry.payload = withdrawal(entry.payload, entry.receivers)
                entry.sending = Nobody(entry.sending)
            taken.append(entry)
        self.on_way.update(taken)
        self.due = math.inf
        return taken

    def lose_patience(self, now: float) -> None:
        """Refuse the messages that have waited for as long as they may. The bus has to hear of those that it refused."""
        for _, _, entry in self._heap:
            sending = entry.sending
            if sending is not None and sending.give_up_at <= now and not sending.given_up and self.why is not None:
                entry.sending = Nobody(sending)
                sending.resolved(entry.place, (replace(self.why, receiver=name_of(entry.receivers[0])),))

    def entries(self) -> list[Entry]:
        """Return all that waits and that somebody still waits for."""
        return [entry for _, _, entry in self._heap if entry.sending is not None and not entry.sending.given_up]
