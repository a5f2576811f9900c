"""Waiting for what tells nobody that it has happened, without a guess at how long it takes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

WAIT = 20.0
"""Seconds after which something that should have come will not come any more."""


async def until(condition: Callable[[], object]) -> None:
    """Wait until ``condition`` holds, of something that has no event; it may be asynchronous."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT):
            while not await _value(condition):  # noqa: ASYNC110  # See above.
                await asyncio.sleep(0.005)
    assert await _value(condition)


async def _value(condition: Callable[[], object]) -> object:
    found = condition()
    return await found if inspect.isawaitable(found) else found


async def settled(bus: Any, name: str) -> None:
    """Wait until the mailbox of ``name`` is empty."""
    await until(lambda: not bus.platform.ams.get(name).mailbox.messages)


class Inbox:
    """A handler that keeps what came."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._came = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        self._came.set()

    @property
    def contents(self) -> list[Any]:
        return [message.content for message in self.messages]

    async def holds(self, count: int) -> list[Any]:
        """Wait until ``count`` messages came, in all; return their contents."""
        async with asyncio.timeout(WAIT):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()
        return self.contents
