"""The clock of a bus: the system's time of day, kept steady over its jumps.

Owns: what time it is for a bus. Leaves to others: what ends when (`bus`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

_LOOK_INTERVAL = 60.0
"""Seconds between looks at the system's clock."""
_LARGEST_CORRECTION = 2.0
"""Seconds by which the system's clock may differ and be followed: what keeping it right, or a leap second, brings about."""


def _elapsed_source() -> Callable[[], float]:
    """Return a clock that never jumps and that also counts while the machine sleeps, where there is one."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    if boot_time is None:
        return time.monotonic
    return lambda: time.clock_gettime(boot_time)


class SteadyClock:
    """Time of day, read from the system at the start and counted on from there.

    Leases, expiries and time-to-live are moments in time. If they went by a clock that somebody sets an hour forward,
    everything would end at once, and an hour back, nothing would. A bus that is to follow such a change is restarted.
    """

    monotonic = staticmethod(time.monotonic)

    def __init__(self, *, system: Callable[[], float] = time.time, elapsed: Callable[[], float] | None = None) -> None:
        """Make a clock.

        Args:
            system: The system's time of day, in Unix seconds.
            elapsed: Seconds that only go forward, from any start.
        """
        self._system = system
        self._elapsed = elapsed or _elapsed_source()
        now = self._elapsed()
        self._start = system() - now
        self._look_at = now + _LOOK_INTERVAL
        self._told = 0.0

    def time(self) -> float:
        """Return Unix seconds."""
        now = self._elapsed()
        if now >= self._look_at:
            self._look_at = now + _LOOK_INTERVAL
            self._follow(self._system() - now - self._start)
        return self._start + now

    def _follow(self, difference: float) -> None:
        """Follow the system's clock where it differs a little, and say so where it differs much."""
        if abs(difference) <= _LARGEST_CORRECTION:
            self._start += difference
            self._told = 0.0
        elif abs(difference - self._told) > _LARGEST_CORRECTION:
            self._told = difference
            _log.warning(
                "the system's clock was set by %+.0f s; the bus goes on by the time that it had, until it is restarted",
                difference,
            )
