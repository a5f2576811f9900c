"""What a process that is nothing but a bus sets for the whole of itself; a bus inside another program leaves it alone."""

from __future__ import annotations

import gc
import logging
import resource

_log = logging.getLogger(__name__)

_THRESHOLDS = (50_000, 20, 50)
"""New objects before a collection of the youngest ones, and collections of each generation before one of the next."""

_ALWAYS_GRANTED = 10_240
"""Descriptors that also a system grants which refuses its own hard limit, as macOS does."""


def raise_descriptor_limit() -> int:
    """Let the process open as many descriptors as it may; return how many.

    Each connection takes one. The usual soft limit of 1,024 is made for programs that call `select`, and a bus that runs
    out of descriptors can accept nobody, nor open a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, _ALWAYS_GRANTED):
        if not _above(limit, soft):
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (ValueError, OSError):
            continue
        soft = limit
        break
    _log.info("descriptors: %d at most", soft)
    return soft


def _above(limit: int, other: int) -> bool:
    """Compare two limits, of which infinity is -1 on some systems."""
    return other != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or limit > other)


def tune_collector() -> None:
    """Let the cyclic garbage collector run less often.

    Mail is long-lived and has no cycles; walking all of it again and again, as the collector's defaults do, costs a bus
    with a hundred thousand waiting messages a quarter of its time. What was made at start is never looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
