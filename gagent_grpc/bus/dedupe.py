"""Which messages were accepted before: the memory that makes a repetition harmless.

Owns: the keys (sender, id, receiver) with a hash of the body, of messages that are kept and, for a while, of those that
were settled. Leaves to others: writing them down (a store).
"""

from __future__ import annotations

from collections import OrderedDict

Key = tuple[str, str, str]
"""Sender as stamped, id as the sender gave it, receiver."""


class Dedupe:
    """Keys of accepted messages. Bounded: kept messages are bounded by the mailboxes, settled ones by rows and age."""

    def __init__(self, *, window: float, rows: int) -> None:
        self._window = window
        self._rows = rows
        self._kept: dict[Key, bytes] = {}
        # Ordered, since the first key of a plain dictionary gets dearer to find with each one deleted before it.
        self._settled: OrderedDict[Key, tuple[bytes, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept) + len(self._settled)

    def find(self, key: Key) -> bytes | None:
        """Return the body hash under which ``key`` was accepted; None when it was not, or is forgotten."""
        digest = self._kept.get(key)
        if digest is not None:
            return digest
        settled = self._settled.get(key)
        return settled[0] if settled is not None else None

    def accepted(self, key: Key, digest: bytes) -> None:
        """Remember an accepted message for as long as it is kept."""
        self._kept[key] = digest

    def settled(self, key: Key, digest: bytes, now: float) -> None:
        """Remember a message that is no longer kept, for the window."""
        self._kept.pop(key, None)
        # Taken out first, since a key that is written again would keep its old place in the order.
        self._settled.pop(key, None)
        self._settled[key] = (digest, now)
        if len(self._settled) > self._rows:
            self._settled.popitem(last=False)

    def forget_old(self, now: float) -> float:
        """Forget what was settled before the window; return that time."""
        before = now - self._window
        old = []
        for key, (_, settled_at) in self._settled.items():
            if settled_at >= before:
                break
            old.append(key)
        for key in old:
            del self._settled[key]
        return before
