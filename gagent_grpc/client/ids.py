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
    # All that can stand there: writing a number costs four times as much as finding it written.
    middles = [f"{count:03x}-" for count in range(1 << 12)]
    ends: list[str] = []

    def draw() -> None:
        seed = int.from_bytes(os.urandom(7), "big") & ((1 << 52) - 1)
        # The first four bits stand beside the variant, the others are the last group.
        variant, tail = 0x8000 | seed >> 48, f"-{seed & 0xFFFF_FFFF_FFFF:012x}"
        ends[:] = [f"{variant | count << 4:04x}{tail}" for count in range(1 << 10)]

    # The millisecond and how it is written, as one value, so that another thread never sees half of a change.
    now: tuple[int, str] = (0, "")

    def make() -> str:
        nonlocal now
        count = step() & 0x3FFFFF
        moment, head = now
        millisecond = clock() // 1_000_000
        if millisecond != moment:
            head = f"{millisecond >> 16:08x}-{millisecond & 0xFFFF:04x}-7"
            now = millisecond, head
        # 12 bits of the count after the version, 10 after the variant.
        return head + middles[count >> 10] + ends[count & 0x3FF]

    draw()
    if hasattr(os, "register_at_fork"):
        # In place, since others hold the function itself.
        os.register_at_fork(after_in_child=draw)
    return make


new_id = uuid7_source()
"""Make a new identity."""
