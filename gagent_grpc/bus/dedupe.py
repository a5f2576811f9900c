"""Which messages were accepted before: the memory that makes a repetition harmless.

Owns: the keys (sender, id, receiver) with a hash of the body, of messages that are kept and, for a while, of those that
were settled. Leaves to others: writing them down (a store).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Key = tuple[str, str, str]
"""Sender as stamped, id as the sender gave it, receiver."""


_Settled = tuple[bytes, float, Key]
"""Body hash, when it was settled in Unix seconds, and the key itself."""


class Dedupe:
    """Keys of accepted messages. Bounded: kept messages are bounded by the mailboxes, settled ones by rows and age."""

    def __init__(self, *, window: float, rows: int) -> None:
        self._window = window
        self._rows = rows
        # One table for both, since every message passes it four times: a body hash while the message is kept, and what
        # stands in `_settled` afterwards.
        self._known: dict[Key, bytes | _Settled] = {}
        self._settled: deque[_Settled] = deque()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: Key) -> bytes | None:
        """Return the body hash under which ``key`` was accepted; None when it was not, or is forgotten."""
        known = self._known.get(key)
        return known if known is None or isinstance(known, bytes) else known[0]

    def accepted(self, key: Key, digest: bytes) -> None:
        """Remember an accepted message for as long as it is kept."""
        self._known[key] = digest

    def settled(self, key: Key, digest: bytes, now: float) -> None:
        """Remember a message that is no longer kept, for the window."""
        known = self._known[key] = (digest, now, key)
        self._settled.append(known)
        if len(self._settled) > self._rows:
            self._forget()

    def restore(self, settled: Sequence[tuple[str, str, str, bytes, float]]) -> None:
        """Remember what was settled before the start, as far as there is room, oldest first.

        Args:
            settled: Sender, id, receiver, body hash and Unix seconds of each.
        """
        known, remembered = self._known, self._settled
        for sender, message_id, receiver, digest, at in settled[-self._rows :]:
            key = (sender, message_id, receiver)
            entry = known[key] = (digest, at, key)
            remembered.append(entry)

    def forget_old(self, now: float) -> float:
        """Forget what was settled before the window; return that time."""
        before = now - self._window
        while self._settled and self._settled[0][1] < before:
            self._forget()
        return before

    def _forget(self) -> None:
        oldest = self._settled.popleft()
        # Not when it was accepted, or settled, once more since then.
        if self._known.get(oldest[2]) is oldest:
            del self._known[oldest[2]]
