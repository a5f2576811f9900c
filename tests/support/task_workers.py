"""Handlers of tasks that a test steers, and what came of a task."""

from __future__ import annotations

import asyncio
from typing import Any

from waiting import until

from gagent_grpc import TaskContext, TaskEvent


class Worker:
    """A handler that tells when it runs, and goes on when it is told to."""

    def __init__(self) -> None:
        self.contexts: list[TaskContext] = []
        self.go_on = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, task: TaskContext) -> Any:
        self.contexts.append(task)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"attempt": task.attempt}

    async def runs(self, count: int = 1) -> TaskContext:
        await until(lambda: len(self.contexts) >= count)
        return self.contexts[count - 1]


async def events_of(task: Any) -> list[TaskEvent]:
    return [event async for event in task.events()]
