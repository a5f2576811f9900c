"""Threads for what an author wrote as a plain function: it may block, and must keep nobody waiting.

Owns: running one call in a thread and bringing back what came of it. Leaves to others: how many (whoever makes one).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Threads:
    """Threads of one owner, begun when they are first needed; the loop's own are six on a small machine, for everybody."""

    def __init__(self, name: str, most: int) -> None:
        """Make none yet.

        Args:
            name: Beginning of the threads' names.
            most: Calls that may run at the same time.
        """
        self._name = name
        self._most = most
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what ``function(*arguments)`` returns, and raise what it raises; it runs in the caller's context.

        Cancelled, this no longer waits; a thread cannot be stopped, and what it returns is nobody's any more.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
        context = contextvars.copy_context()
        running = asyncio.get_running_loop().run_in_executor(self._pool, _call, context, function, arguments)
        value, error = await running
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let the threads go, when they are done; new ones are made when they are needed again. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _call(
    context: contextvars.Context, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, Exception | None]:
    """Call a function in a thread; return its value and its error, since a future does not carry every error."""
    try:
        return context.run(function, *arguments), None
    except Exception as error:
        return None, error
