"""Identities for messages: UUIDv7 (RFC 9562 §5.7), made without a call to the system for each."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable


def uuid7_source() -> Callable[[], str]:
    """Return a function that makes a new UUIDv7 at each call, rising within one millisecond. Any thread may call it.

    One source has 52 random bits of its own and counts in the other 22, so four million identities of one millisecond
    differ, and two sources do not meet; nor do a process and its forked child, which draws new bits.
    """
    # A counter of the C library is stepped as a whole, where `count += 1` in two threads would give one number twice.
    step = itertools.count().__next__
    clock = time.time_ns
    seed = 0

    def draw() -> None:
        nonlocal seed
        seed = int.from_bytes(os.urandom(7), "big") & ((1 << 52) - 1)

    def make() -> str:
        count = step() & 0x3FFFFF
        # 12 bits after the version, then 10 bits of the count and the seed after the variant.
        high = ((clock() // 1_000_000) << 16) | 0x7000 | (count >> 10)
        low = 0x8000_0000_0000_0000 | ((count & 0x3FF) << 52) | seed
        text = f"{high:016x}{low:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    draw()
    if hasattr(os, "register_at_fork"):
        # In place, since others hold the function itself.
        os.register_at_fork(after_in_child=draw)
    return make


new_id = uuid7_source()
"""Make a new identity."""
