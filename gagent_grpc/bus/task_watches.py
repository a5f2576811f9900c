"""What one stream is told of a delegated task: each event after a cursor, once, until the task has ended.

Owns: the pace and the end of a watch. The events of the task itself are what waits for readers, so a slow one costs no memory
of its own. Leaves to others: the events (`bus.tasks`), who is woken when (`bus.task_table`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gagent_grpc.bus.task_values import TaskEvent
from gagent_grpc.bus.tasks import Task
from gagent_grpc.errors import BusError, EventsGone, ResourceExhausted

_BATCH = 64
"""Events that are given at once."""


class TaskWatch:
    """One watch, made by `TaskTable.watch`. A block closes it."""

    def __init__(self, task: Task, after: int, *, leave: Callable[[], None]) -> None:
        """Watch ``task`` from the event after ``after`` on; ``leave`` is called at the end."""
        self.task = task
        self._after = after
        self._leave = leave
        self._failure: BusError | None = None
        self._wake = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    def wake(self) -> None:
        """Look again whether there is something to tell."""
        self._wake.set()

    def end(self, failure: BusError) -> None:
        """End the watch, once what there is has been told; a task that has ended ends it well."""
        self._failure = failure
        self._wake.set()

    async def next(self) -> list[TaskEvent]:
        """Wait for events and return them, oldest first; none after the last one of a task that has ended.

        Raises:
            ResourceExhausted: The reader is so slow that its next event is not kept any more.
            BusDraining: The bus is shutting down.
            TaskNotFound: The task was never durable after all.
        """
        while True:
            self._wake.clear()
            try:
                found = self.task.events_after(self._after)[:_BATCH]
            except EventsGone as error:
                raise ResourceExhausted(f"the stream reads too slowly: {error}") from None
            if found:
                self._after = found[-1].sequence
                return found
            if self.task.state.final:
                return []
            if self._failure is not None:
                raise self._failure
            await self._wake.wait()
