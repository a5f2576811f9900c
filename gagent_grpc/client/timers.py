"""Timers of an agent: functions that are called again and again, or once after a while.

Owns: when they are called, and what an error in one means. Leaves to others: when an agent's timers begin and end
(`client.activity`), threads (`client.threads`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
from collections.abc import Callable
from typing import Any

from gagent_grpc.client.threads import Threads
from gagent_grpc.client.transport import is_cancelled
from gagent_grpc.errors import InvalidArgument

_logger = logging.getLogger(__name__)


def seconds_over(value: object, minimum: float, field: str) -> float:
    """Return a number of seconds that is finite and not below ``minimum``; 0.0 itself is too little when that is above.

    Raises:
        InvalidArgument: It is none.
    """
    number = math.nan
    text = "with too many digits"
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        text = repr(value)
    else:
        # A whole number may be too large for a float, and even to be written down.
        with contextlib.suppress(OverflowError):
            number = float(value)
            text = repr(value)
    if not math.isfinite(number) or number < minimum:
        least = "more than 0" if minimum > 0 else "0 or more"
        raise InvalidArgument(f"{field} {text}; expected a number of seconds, {least}", field=field)
    return number


SHORTEST = 0.001
"""Seconds; a shorter period would be a loop that does nothing else."""


def next_due(due: float, period: float, now: float) -> float:
    """Return when a tick comes after the one that was due at ``due``: on the beat, or at once when that has passed.

    What was missed while a run took longer is left out, so that late ticks never pile up.
    """
    return max(due + period, now)


class Timer:
    """One timer of an agent; call `cancel` when it is no longer wanted. Calling the timer calls its function."""

    def __init__(self, function: Callable[[], Any], seconds: float, *, repeats: bool) -> None:
        """Make a timer; `begin` starts it.

        Args:
            function: Without parameters; `async def`, or `def`, which runs in a thread of its own.
            seconds: Until its first call, and between calls.
            repeats: It is called again and again.

        Raises:
            InvalidArgument: ``function`` cannot be called without arguments, or ``seconds`` is no such time.
        """
        self.seconds = seconds_over(seconds, SHORTEST if repeats else 0.0, "seconds")
        """Until its first call, and between calls."""
        self.function = _callable(function)
        """What it calls."""
        self._repeats = repeats
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def __call__(self) -> Any:
        return self.function()

    def __repr__(self) -> str:
        kind = "every" if self._repeats else "after"
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"<Timer {name} {kind} {self.seconds:g} s{', cancelled' if self._cancelled else ''}>"

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Call the function no more, for good. A call under way goes on to its end. Idempotent; from any thread."""
        self._cancelled = True
        if self._loop is not None:
            # A loop that is closed has no timer to wake.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    def begin(self, agent: str) -> asyncio.Task[None] | None:
        """Start for the agent of that name; return the task, or None for a timer that was cancelled before."""
        if self._cancelled:
            return None
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._task = self._loop.create_task(self._run(agent), name=f"{agent}-timer")
        return self._task

    async def _run(self, agent: str) -> None:
        loop = asyncio.get_running_loop()
        threads = Threads(f"{agent}-timer", 1)
        due = loop.time() + self.seconds
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._wake.wait()
                if self._cancelled:
                    return
                await self._call(agent, threads)
                if not self._repeats:
                    return
                # Woken at once where the call itself has cancelled the timer.
                due = next_due(due, self.seconds, loop.time())
        finally:
            threads.close()

    async def _call(self, agent: str, threads: Threads) -> None:
        try:
            made = self.function() if self._is_async else await threads.run(self.function)
            if inspect.isawaitable(made):
                await made
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            # A CancelledError of something that the function awaited is its failure, and no more than that.
            _logger.exception("%s: %r failed", agent, self)


def _callable(function: Any) -> Callable[[], Any]:
    """Return ``function``.

    Raises:
        InvalidArgument: It cannot be called without arguments.
    """
    if not callable(function):
        raise InvalidArgument(f"{function!r} is no function; expected one without parameters", field="function")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidArgument(f"{name}: {error}; expected a function without parameters", field="function") from error
    except ValueError:
        # Some built-in ones do not tell.
        pass
    return function  # type: ignore[no-any-return]  # [no-any-return]: checked above.
