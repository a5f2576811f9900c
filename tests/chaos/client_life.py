"""How every client process lives and fails: told to stop, and failing where it was told to.

Owns: the signs between a client and whoever started it. Leaves to others: what a client does meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys

ORPHAN_ENDS = 20.0
"""Seconds that a client goes on at most whose harness is gone."""


class Stop:
    """Set once the client is to end: by a line on stdin, the end of stdin, or SIGTERM."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.told.set)
        self._stdin = sys.stdin.fileno()
        os.set_blocking(self._stdin, False)
        loop.add_reader(self._stdin, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            said = os.read(self._stdin, 4096)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._stdin)
            self.told.set()
            if not said:
                # Whoever started this process is gone, and so is the bus, maybe: nobody is left to end it.
                loop.call_later(ORPHAN_ENDS, os._exit, 1)


def say_ready() -> None:
    """Tell whoever started this process that it is connected."""
    print("ready", flush=True)


class HandlerFailed(Exception):
    """A handler fails since it is told to."""


def fails(mark: str, attempt: int, options: argparse.Namespace) -> bool:
    """Return whether the delivery of a message fails on purpose."""
    text = mark.rpartition("-")[2]
    number = int(text) if text.isdecimal() else 0
    if options.fail_every and number % options.fail_every == 0:
        return True
    return bool(options.nack_every and attempt <= 1 and number % options.nack_every == 0)
