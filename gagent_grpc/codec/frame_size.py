"""How much goes into one frame: much where it gets through at once, little where the line is slow.

Owns: that measure, which the bus and its clients share. Leaves to others: what a frame holds.
"""

from __future__ import annotations

SMALL = 64 * 1024
LARGE = 512 * 1024
"""Bytes of messages in one frame, from and to; one message always fits."""
_FAST = 0.1
"""Seconds within which a write got through at once."""
_SLOW = 0.5
"""Seconds after which it did not: signs of life wait behind it, and both sides would take the other one for dead."""
SLOWEST = 64 * 1024
"""Bytes per second that a line is granted at least before a write counts as stuck."""


class FrameSize:
    """The size of the next frame of one stream."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = SMALL

    def wrote(self, seconds: float) -> None:
        """Note how long it took to write a frame."""
        if seconds > _SLOW:
            self.bytes = SMALL
        elif seconds < _FAST:
            self.bytes = min(LARGE, self.bytes * 2)


def patience(write_timeout: float, size: int) -> float:
    """Return the seconds that a write of ``size`` bytes may take: a slow line is not a dead one."""
    return write_timeout + size / SLOWEST
