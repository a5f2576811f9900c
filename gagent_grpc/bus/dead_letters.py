"""Dead letters: messages that were accepted and given up, kept for people to look at, to deliver again or to remove.

Owns: their numbers, their bounds, and that a store keeps the same ones. Leaves to others: when a message is given up and
how it goes back into a mailbox (`bus.router`), who may see it (`server`). Has no clock; times are given by the caller.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.ports import Store, StoredDeadLetter
from gagent_grpc.envelope import DeadReason

_log = logging.getLogger(__name__)

MAX_ERROR_CHARS = 1_000
"""Most characters of the error that is kept with a dead letter."""
_WARNING_INTERVAL = 60.0
"""Seconds between two warnings that dead letters are dropped."""


class DeadLetters:
    """The dead letters of one bus, oldest first. What is buried and removed here is so in the store, too."""

    def __init__(self, store: Store, *, most: int, most_bytes: int, ttl: float) -> None:
        """Keep dead letters in ``store``.

        Args:
            store: Keeps them across restarts.
            most: Most letters that are kept; beyond that the oldest ones go.
            most_bytes: Most bytes of them; one letter is always kept.
            ttl: Seconds that a letter is kept.
        """
        self._store = store
        self._most = most
        self._most_bytes = most_bytes
        self._ttl = ttl
        # Ordered, since the first key of a plain dictionary gets dearer to find with each one deleted before it.
        self._letters: OrderedDict[int, StoredDeadLetter] = OrderedDict()
        self._next_number = 1
        self._next_warning = 0.0
        self.bytes = 0
        """What they take, with their errors."""
        self.dropped = 0
        """Letters that went since the start because there were too many."""

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[StoredDeadLetter]:
        return iter(self._letters.values())

    def restore(self, letters: Iterable[StoredDeadLetter], next_number: int, *, now: float) -> None:
        """Take over what the store held; what is over the bounds of today goes."""
        for letter in letters:
            self._add(letter)
        self._next_number = max(next_number, self._next_number)
        self._keep_bounds(now)

    def bury(self, receiver: str, letter: Letter, reason: DeadReason, error: str, *, now: float) -> None:
        """Keep a letter that is given up, unless nobody would miss it.

        Those are notices of the platform, and transient messages whose time was over: that is what transient means.

        Args:
            receiver: Local name of the agent in whose mailbox it was.
            letter: What is given up.
            reason: Why.
            error: What is to be said beside that; cut at `MAX_ERROR_CHARS`.
            now: Unix seconds.
        """
        if letter.in_reserve or (letter.envelope.transient and reason is DeadReason.EXPIRED):
            return
        dead = StoredDeadLetter(
            number=self._next_number,
            receiver=receiver,
            sequence=letter.sequence,
            sender=letter.sender,
            message_id=letter.message_id,
            via=letter.via,
            accepted_at=letter.accepted_at,
            attempt=letter.attempt,
            reason=reason,
            # What a store could not write must not keep the letter from being settled.
            error=error[:MAX_ERROR_CHARS].encode("utf-8", "replace").decode(),
            died_at=now,
            payload=letter.envelope.payload,
        )
        self._store.bury(dead)
        self._add(dead)
        self._keep_bounds(now)

    def find(self, number: int) -> StoredDeadLetter | None:
        """Return the letter with a number; None when there is none, or none any more."""
        return self._letters.get(number)

    def matching(self, *, receiver: str = "", after: int = 0) -> list[StoredDeadLetter]:
        """Return letters, oldest first.

        Args:
            receiver: Local name of the receiver; "" for all.
            after: Only those with a higher number.
        """
        return [
            one for one in self._letters.values() if one.number > after and (not receiver or one.receiver == receiver)
        ]

    def remove(self, numbers: Iterable[int]) -> int:
        """Remove letters for good; return how many there were."""
        removed = [number for number in dict.fromkeys(numbers) if self._take(number)]
        if removed:
            self._store.exhume(removed)
        return len(removed)

    def expire(self, now: float) -> int:
        """Remove the letters that are kept for long enough; return how many there were."""
        return self.remove([one.number for one in self._letters.values() if one.died_at + self._ttl <= now])

    def _add(self, letter: StoredDeadLetter) -> None:
        self._letters[letter.number] = letter
        self._next_number = max(self._next_number, letter.number + 1)
        self.bytes += _size(letter)

    def _take(self, number: int) -> bool:
        letter = self._letters.pop(number, None)
        if letter is None:
            return False
        self.bytes -= _size(letter)
        return True

    def _keep_bounds(self, now: float) -> None:
        dropped = 0
        while len(self._letters) > self._most or (self.bytes > self._most_bytes and len(self._letters) > 1):
            dropped += self.remove([next(iter(self._letters))])
        if not dropped:
            return
        self.dropped += dropped
        # Also after the clock went back, so that it is not silent until it is there again.
        if not self._next_warning - _WARNING_INTERVAL <= now < self._next_warning:
            self._next_warning = now + _WARNING_INTERVAL
            _log.warning(
                "dead letters are dropped, the oldest first: %d so far; at most %d, %d bytes, are kept",
                self.dropped,
                self._most,
                self._most_bytes,
            )


def _size(letter: StoredDeadLetter) -> int:
    return len(letter.payload) + len(letter.error)
