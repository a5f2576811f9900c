"""One shared context: its entries by key, their revisions, and what changed after a revision.

Owns: compare-and-set, the bounds of one space, which removals are remembered, and the changes that wait for those who watch.
Leaves to others: whose space it is, who may touch it and how long it lives (`bus.contexts`), the pace of a watch
(`bus.context_watches`). Pure: no loop, no store and no clock; times are given by the caller.

Each change has the next revision. An entry keeps that of its last change, and so does a removal until its key is put again, so
that the changes after a revision can be told at any time, the last one of each key. While somebody watches, all changes are kept
for a while, too, since a watch tells each one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gagent_grpc.bus.context_values import ENTRY_COST, Entry
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import BusError, EventsGone, InvalidArgument, ResourceExhausted, RevisionConflict

if TYPE_CHECKING:
    from gagent_grpc.bus.context_watches import ContextWatch

_SPACE_COST = 2_000
"""What a space takes beside its entries, in bytes."""
_TRIM_SHARE = 16
"""Part of the remembered removals that are forgotten at once, so that not every further removal writes whose space it is."""
_LOG_COST = 100
"""What a change that waits for those who watch takes beside its key and value, in bytes."""


class Space:
    """The entries of one shared context."""

    def __init__(self, limits: BusLimits, *, used: int = 0) -> None:
        """Make an empty space.

        Args:
            limits: Bounds.
            used: Revisions up to this one may have been used by an earlier space of the same conversation.
        """
        self._limits = limits
        # What an earlier space was watched up to is none of this one, whose first revision is above that.
        self.revision = used + 1 if used else 0
        """Of the last change."""
        self.forgotten = self.revision
        """Removals up to this revision may be forgotten: no watch goes on from below it."""
        self.bytes = 0
        """Of keys and values of all entries."""
        self._entries: dict[str, Entry] = {}
        # In the order of revisions, since a key that is put again leaves it.
        self._removals: dict[str, Entry] = {}
        self._removal_bytes = 0
        """Of their keys."""
        self._log: deque[Entry] = deque()
        """The latest changes, each one, oldest first, without a gap between revisions; empty while nobody watches."""
        self._log_bytes = 0
        self.watches: set[ContextWatch] = set()
        """Those who watch: `Contexts.watch` adds one, `left` takes it out."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes that it takes, nearly, without what waits for those who watch."""
        count = len(self._entries) + len(self._removals)
        return _SPACE_COST + self.bytes + self._removal_bytes + count * ENTRY_COST

    # ---- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Entry | None:
        """Return the entry of a key; None where there is none."""
        return self._entries.get(key)

    def following(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Yield the entries whose keys begin with ``prefix`` and come after ``after``, by key in the order of code points."""
        for key in sorted(key for key in self._entries if key > after and key.startswith(prefix)):
            yield self._entries[key]

    def changes_after(self, revision: int) -> list[Entry]:
        """Return the last change of each key after a revision, by revision; for 0 the present entries.

        Raises:
            EventsGone: Removals after it are forgotten, or it is of an earlier space.
            InvalidArgument: There was never such a revision.
        """
        if not revision:
            return sorted(self._entries.values(), key=_revision)
        if revision > self.revision:
            raise InvalidArgument(
                f"after_revision {revision:,}: the last one of this shared context is {self.revision:,}",
                field="after_revision",
            )
        if revision < self.forgotten:
            raise EventsGone("", revision, self.forgotten + 1)
        changed = [*self._entries.values(), *self._removals.values()]
        return sorted((one for one in changed if one.revision > revision), key=_revision)

    # ---- changing --------------------------------------------------------------------------------------------------

    def put(self, key: str, value: str, author: str, now: float, expected: int | None) -> Entry:
        """Write an entry, and return it.

        Args:
            key: Its key.
            value: JSON text.
            author: Who puts it.
            now: Unix seconds.
            expected: Revision that the entry has to have; 0 for no entry, None for whatever there is.

        Raises:
            RevisionConflict: It is another one.
            ResourceExhausted: There are too many entries, or too many bytes of them.
        """
        former = self._check(key, expected)
        entry = Entry(key, value, self.revision + 1, author, now)
        limits = self._limits
        if former is None and len(self._entries) >= limits.context_entries:
            raise ResourceExhausted(
                f"this shared context has {len(self._entries):,} entries, the limit is {limits.context_entries:,} "
                "(context_entries)"
            )
        size = self.bytes + entry.size - (former.size if former is not None else 0)
        if size > limits.context_bytes:
            raise ResourceExhausted(
                f"this shared context would have {size:,} bytes of keys and values, the limit is "
                f"{limits.context_bytes:,} (context_bytes)"
            )
        self.bytes = size
        self._entries[key] = entry
        self._forget(key)
        self._changed(entry)
        return entry

    def remove(self, key: str, author: str, now: float, expected: int | None) -> Entry | None:
        """Remove an entry; return what is remembered of it, None where there was none. Arguments as `put`.

        Raises:
            RevisionConflict: It has another revision.
        """
        former = self._check(key, expected)
        if former is None:
            return None
        removal = Entry(key, "", self.revision + 1, author, now, removed=True)
        del self._entries[key]
        self.bytes -= former.size
        self._removals[key] = removal
        self._removal_bytes += removal.size
        self._changed(removal)
        return removal

    def trim(self) -> list[str]:
        """Forget the oldest removals when there are too many; return their keys."""
        most = self._limits.context_removals
        if len(self._removals) <= most:
            return []
        left = most - most // _TRIM_SHARE
        gone = list(self._removals)[: len(self._removals) - left]
        self.forgotten = self._removals[gone[-1]].revision
        for key in gone:
            self._forget(key)
        return gone

    def restore(self, entries: Iterator[Entry], forgotten: int) -> None:
        """Take over what a store held, by revision."""
        self.forgotten = forgotten
        self.revision = max(self.revision, forgotten)
        for entry in entries:
            self.revision = max(self.revision, entry.revision)
            if entry.removed:
                self._removals[entry.key] = entry
                self._removal_bytes += entry.size
            else:
                self._entries[entry.key] = entry
                self.bytes += entry.size

    def _check(self, key: str, expected: int | None) -> Entry | None:
        entry = self._entries.get(key)
        present = entry.revision if entry is not None else 0
        if expected is not None and expected != present:
            raise RevisionConflict(key, expected, present)
        return entry

    def _forget(self, key: str) -> None:
        removal = self._removals.pop(key, None)
        if removal is not None:
            self._removal_bytes -= removal.size

    # ---- watching --------------------------------------------------------------------------------------------------

    def _changed(self, change: Entry) -> None:
        self.revision = change.revision
        if not self.watches:
            return
        limits, log = self._limits, self._log
        log.append(change)
        self._log_bytes += change.size + _LOG_COST
        while len(log) > 1 and (len(log) > limits.context_changes or self._log_bytes > limits.context_bytes):
            self._log_bytes -= log.popleft().size + _LOG_COST
        for watch in self.watches:
            watch.wake()

    def left(self, watch: ContextWatch) -> None:
        """A watch is over."""
        self.watches.discard(watch)
        if not self.watches:
            self._log.clear()
            self._log_bytes = 0

    def log_after(self, revision: int, most: int) -> list[Entry]:
        """Return at most ``most`` changes after a revision, each one, oldest first; for those who watch from then on.

        Raises:
            ResourceExhausted: The next one is not kept any more.
        """
        if revision >= self.revision:
            return []
        first = self._log[0].revision if self._log else self.revision + 1
        if revision + 1 < first:
            raise ResourceExhausted(
                f"the stream reads too slowly: the changes after revision {revision:,} are not kept any more; watch again "
                "after the last one that was read"
            )
        start = revision + 1 - first
        return [self._log[index] for index in range(start, min(start + most, len(self._log)))]

    def end(self, why: BusError) -> None:
        """The space is over: whoever watches it hears that."""
        for watch in list(self.watches):
            watch.end(why)


def _revision(entry: Entry) -> int:
    return entry.revision
