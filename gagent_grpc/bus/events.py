"""What happened, for those who watch: a bounded log, whose readers go on from where they were.

Owns: the numbers of events, cursors, and what becomes of a reader that is too slow. The log itself is what waits for
readers, so a slow one costs no memory of its own. Leaves to others: what an event is and who is told of it
(`bus.agent_events`, `bus.offers`). An event costs a wake-up for each reader; a message costs nothing here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from gagent_grpc.bus.places import Places
from gagent_grpc.errors import BusDraining, ResourceExhausted

EventT = TypeVar("EventT")
ToldT = TypeVar("ToldT")

_BATCH = 256
"""Events that a reader is given at once."""


class EventLog(Generic[EventT]):
    """The newest events of one kind, numbered from 1 on in each run of the bus."""

    def __init__(self, *, most: int, most_size: int, max_readers: int) -> None:
        """Make an empty log.

        Args:
            most: Events that are kept.
            most_size: Sum of their sizes, in whatever unit `append` is told.
            max_readers: Readers at a time; one caller may have a part of them.
        """
        self._most = most
        self._most_size = most_size
        self._places = Places(max_readers, "streams that watch", "max_watches")
        # By which a cursor of an earlier run is recognised.
        self._run = secrets.token_hex(6)
        self._events: dict[int, tuple[EventT, int]] = {}
        self._first = 1
        self._size = 0
        self._readers: set[Reader[EventT]] = set()
        self.last = 0
        """Number of the newest event; 0 before the first one."""
        self.closed = False

    @property
    def readers(self) -> int:
        """Readers at present."""
        return len(self._readers)

    def append(self, event: EventT, size: int = 1) -> None:
        """Add an event, and forget the oldest ones beyond the bounds."""
        self.last += 1
        self._events[self.last] = (event, size)
        self._size += size
        while len(self._events) > self._most or (self._size > self._most_size and len(self._events) > 1):
            _, gone = self._events.pop(self._first)
            self._size -= gone
            self._first += 1
        for reader in self._readers:
            reader.wake()

    def cursor(self, number: int) -> str:
        """Return the cursor that continues after the event with this number."""
        return f"{self._run}-{number}"

    def after(self, cursor: str) -> int | None:
        """Return the number after which a cursor continues; None when the log cannot continue there any more."""
        run, dash, number = cursor.rpartition("-")
        if not dash or run != self._run or not (number.isascii() and number.isdecimal() and len(number) < 20):
            return None
        return int(number) if self._first - 1 <= int(number) <= self.last else None

    def read(self, after: int, caller: Sequence[str] = ()) -> Reader[EventT]:
        """Return a reader of the events that follow; whoever takes it closes it.

        Args:
            after: Number of the event before the first one that is read.
            caller: Names under which the caller is counted, as `Places.take` takes them.

        Raises:
            ResourceExhausted: There are too many readers, or too many of this caller.
            BusDraining: The log is closed.
        """
        if self.closed:
            raise BusDraining("the bus is shutting down")
        self._places.take(caller)
        reader = Reader(self, after, caller)
        self._readers.add(reader)
        return reader

    def since(self, number: int) -> list[tuple[int, EventT]]:
        """Return events after ``number``, with their own numbers, oldest first; as many as one turn should take.

        Raises:
            ResourceExhausted: The next one is forgotten.
        """
        if number < self._first - 1:
            raise ResourceExhausted(
                "the stream reads too slowly, and what comes next is forgotten; resume with the last cursor"
            )
        through = min(self.last, number + _BATCH)
        return [(one, self._events[one][0]) for one in range(number + 1, through + 1)]

    def leave(self, reader: Reader[EventT]) -> None:
        """A reader reads no more. Idempotent."""
        if reader in self._readers:
            self._readers.discard(reader)
            self._places.leave(reader.caller)

    def close(self) -> None:
        """End every reader once it has read what there is. Idempotent."""
        self.closed = True
        for reader in self._readers:
            reader.wake()


class Reader(Generic[EventT]):
    """One reader of a log. Made by `EventLog.read`."""

    def __init__(self, log: EventLog[EventT], after: int, caller: Sequence[str] = ()) -> None:
        self.caller = caller
        """Names under which whoever reads is counted."""
        self._log = log
        self._number = after
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look again whether there is something to read."""
        self._wake.set()

    async def next(self) -> list[tuple[int, EventT]]:
        """Wait for events and return them with their numbers, oldest first; none once the log is closed and read.

        Raises:
            ResourceExhausted: This reader is so slow that its next event is forgotten.
        """
        while True:
            self._wake.clear()
            found = self._log.since(self._number)
            if found:
                self._number = found[-1][0]
                return found
            if self._log.closed:
                return []
            await self._wake.wait()

    def close(self) -> None:
        """Read no more. Idempotent."""
        self._log.leave(self)


class Watch(Generic[EventT, ToldT]):
    """What one stream is told: a snapshot, unless it goes on from a cursor, and then what changes. A block closes it."""

    def __init__(
        self, reader: Reader[EventT], snapshot: Sequence[ToldT], tell: Callable[[int, EventT], ToldT | None]
    ) -> None:
        """Make a watch.

        Args:
            reader: Reads what follows the snapshot, and is closed here.
            snapshot: What is told first; empty for nothing.
            tell: Returns what the stream is told of an event; None when it does not concern it.
        """
        self._reader = reader
        self._snapshot = snapshot
        self._tell = tell

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.close()

    async def next(self) -> Sequence[ToldT]:
        """Wait for what is to be told; nothing once the bus shuts down.

        Raises:
            ResourceExhausted: The stream reads so slowly that what comes next is forgotten.
        """
        if self._snapshot:
            snapshot, self._snapshot = self._snapshot, ()
            return snapshot
        while events := await self._reader.next():
            told = [one for number, event in events if (one := self._tell(number, event)) is not None]
            if told:
                return told
            # A reader with much to pass over must not keep everybody else from their turn.
            await asyncio.sleep(0)
        return ()
