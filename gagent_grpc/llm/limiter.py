"""How fast an endpoint may be called: a pace that is learnt from what it refuses, shared by all who call it.

Owns: the pace, and the line of those who wait for their turn. Leaves to others: calling, and repeating what was refused
(`llm.calling`), who shares a limiter (`llm.providers`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from gagent_grpc.errors import InvalidArgument

FIRST_RATE = 8.0
"""Calls per second at the beginning, while no limit is known."""
_RAMP = 0.7
"""What each call adds to the rate while no limit is known: under load it doubles every second."""
_FASTEST = 1_000.0
_SLOWEST = 0.2
"""Calls per second: longer waits are those that the endpoint asks for."""
_BURST = 3.0
"""Calls that may go at once after a quiet time."""
_CUT = 0.7
_REGAIN_FIRST, _REGAIN = 1.04, 1.01
"""What the rate is multiplied by with each success, until the second refusal and after it."""
_JITTER = 0.25
"""Largest part of a wait that the endpoint asked for that is added to it, so that processes do not come back in step."""


class Pace:
    """When the next call may begin. Pure: every method is told the time, in seconds of any clock that only goes forward.

    While nothing was refused the rate rises quickly; the first refusal has it drop to what went well within the time that
    the endpoint asked to wait, and later ones to 0.7 of what it was. In between it rises slowly, so that a limit that was
    lifted is noticed.
    """

    def __init__(self, rate: float | None = None) -> None:
        """Make a pace; ``rate`` in calls per second where it is known, and is then never exceeded.

        Raises:
            InvalidArgument: The rate is not a positive number.
        """
        if rate is not None and not 0 < rate < float("inf"):
            raise InvalidArgument(f"requests per second {rate!r}; expected a positive number", field="rate")
        self._known = rate
        self.rate = FIRST_RATE if rate is None else rate
        """Calls per second at present."""
        self._refusals = 0
        self._next_at = float("-inf")
        self._not_before = float("-inf")
        self._cut_at = float("-inf")
        self._successes: deque[float] = deque(maxlen=4_096)

    def wait(self, now: float) -> float:
        """Return the seconds until the next call may begin; 0 for now."""
        return max(0.0, self._not_before - now, self._next_at - now)

    def held_off(self, now: float) -> float:
        """Return the seconds that the endpoint asked not to be called for; 0 for none."""
        return max(0.0, self._not_before - now)

    def begin(self, now: float) -> None:
        """A call begins."""
        burst = 1.0 if self._refusals or self._known else _BURST
        self._next_at = max(self._next_at, now - (burst - 1.0) / self.rate) + 1.0 / self.rate
        if not self._refusals and self._known is None:
            self.rate = min(self.rate + _RAMP, _FASTEST)

    def succeeded(self, now: float) -> None:
        """A call was taken."""
        self._successes.append(now)
        if self._refusals:
            self._set(self.rate * (_REGAIN_FIRST if self._refusals == 1 else _REGAIN))

    def refused(self, now: float, began: float, pause: float | None) -> None:
        """A call that began at ``began`` was refused; the endpoint asks for ``pause`` seconds, or says nothing."""
        if pause is not None:
            self._not_before = max(self._not_before, now + pause)
        if began < self._cut_at:
            # It was on its way already when the rate was lowered.
            return
        self._cut_at = now
        self._refusals += 1
        rate = self.rate * _CUT
        if self._refusals == 1:
            period = min(max(pause or 1.0, 0.05), 60.0)
            # At least one: where nothing was taken, others had used up what there is.
            rate = min(rate, max(1, sum(one >= now - period for one in self._successes)) / period)
        self._set(rate)
        self._next_at = max(self._next_at, self._not_before)

    def _set(self, rate: float) -> None:
        self.rate = min(max(rate, _SLOWEST), self._known or _FASTEST)


class Limiter:
    """Gives turns in the order in which they are asked for."""

    def __init__(self, rate: float | None = None, *, jitter: Callable[[], float] = random.random) -> None:
        """Make a limiter.

        Args:
            rate: Calls per second where they are known; learnt by default.
            jitter: Returns numbers from 0 to 1.

        Raises:
            InvalidArgument: The rate is not a positive number.
        """
        self.pace = Pace(rate)
        self._door = asyncio.Lock()
        self._jitter = jitter
        self.waiting = 0
        """Calls that wait for their turn."""

    async def turn(self) -> float:
        """Wait for a turn; return when it began, for `refused`."""
        loop = asyncio.get_running_loop()
        self.waiting += 1
        try:
            # One at a time looks at the clock; the others wait in line behind it.
            async with self._door:
                while (seconds := self.pace.wait(loop.time())) > 0:  # noqa: ASYNC110  # It is a time that is waited for.
                    await asyncio.sleep(seconds)
                now = loop.time()
                self.pace.begin(now)
                return now
        finally:
            self.waiting -= 1

    def succeeded(self) -> None:
        """The call was taken."""
        self.pace.succeeded(asyncio.get_running_loop().time())

    def refused(self, began: float, retry_after: float | None) -> None:
        """The call that began at ``began`` was refused for a while: nobody calls before that while is over."""
        pause = None if retry_after is None else retry_after * (1.0 + _JITTER * self._jitter())
        self.pace.refused(asyncio.get_running_loop().time(), began, pause)


_shared: WeakValueDictionary[Hashable, Limiter] = WeakValueDictionary()


def shared_limiter(endpoint: Hashable, rate: float | None = None) -> Limiter:
    """Return the limiter of an endpoint, the same one for everybody on this loop who asks with the same ``rate``."""
    key = (id(asyncio.get_running_loop()), endpoint, rate)
    limiter = _shared.get(key)
    if limiter is None:
        limiter = _shared[key] = Limiter(rate)
    return limiter
