"""What one stream is told of a shared context: what is there, then each change once and in order.

Owns: the pace and the end of a watch. The changes of the space itself are what waits for readers, so a slow one costs no more
than its own stream. Leaves to others: the changes (`bus.context_space`), who may watch (`bus.contexts`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gagent_grpc.bus.context_space import Space
from gagent_grpc.bus.context_values import Entry, Synced, Told
from gagent_grpc.errors import BusError

_BATCH = 64
"""Changes that are given at once."""
_PASSED_OVER = 200
"""Changes that do not concern a watch after which it is told how far it is: it must not fall behind what is remembered."""


class ContextWatch:
    """One watch, made by `Contexts.watch`. A block closes it."""

    def __init__(
        self, space: Space, aid: str, prefix: str, after: int, *, leave: Callable[[ContextWatch], None]
    ) -> None:
        """Watch a space.

        Args:
            space: What is watched.
            aid: Who watches.
            prefix: What the keys begin with; "" for all.
            after: Revision up to which everything is known; 0 for nothing.
            leave: Called at the end.

        Raises:
            EventsGone: Removals after it are forgotten, or it is of an earlier space.
            InvalidArgument: There was never such a revision.
        """
        self.space = space
        self.aid = aid
        self._prefix = prefix
        self._leave = leave
        self._first = [one for one in space.changes_after(after) if one.key.startswith(prefix)]
        """What was there at the beginning, until it has been told."""
        self._place = 0
        """How many of these were told."""
        self._synced = False
        """Whether all of these were."""
        self._after = space.revision
        """Revision of the last change that was looked at, whether it concerned this watch or not."""
        self._told = self._after
        """Revision up to which the reader knows that it knows everything."""
        self._failure: BusError | None = None
        """Why the watch ends, once all changes are told; None while it goes on."""
        self._wake = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(self)

    def wake(self) -> None:
        """Look again whether there is something to tell."""
        self._wake.set()

    def end(self, failure: BusError) -> None:
        """End the watch, once what there is has been told."""
        if self._failure is None:
            self._failure = failure
        self._wake.set()

    async def next(self) -> list[Told]:
        """Wait for something to tell, and return it, oldest first.

        Raises:
            ResourceExhausted: The reader is so slow that its next change is not kept any more.
            ContextEnded: The space is over.
            Unauthorised: The watching agent is gone.
            BusDraining: The bus is shutting down.
        """
        while True:
            self._wake.clear()
            if not self._synced:
                return self._beginning()
            changes = self.space.log_after(self._after, _BATCH)
            if changes:
                found = self._of_prefix(changes)
                if found:
                    return found
                continue
            if self._failure is not None:
                raise self._failure
            await self._wake.wait()

    def _beginning(self) -> list[Told]:
        told: list[Told] = list(self._first[self._place : self._place + _BATCH])
        self._place += len(told)
        if self._place >= len(self._first):
            self._first.clear()
            self._synced = True
            told.append(Synced(self._told))
        return told

    def _of_prefix(self, changes: list[Entry]) -> list[Told]:
        self._after = changes[-1].revision
        found: list[Told] = [one for one in changes if one.key.startswith(self._prefix)]
        if not found and self._after - self._told >= _PASSED_OVER:
            found.append(Synced(self._after))
        if found:
            last = found[-1]
            self._told = last.revision
        return found
