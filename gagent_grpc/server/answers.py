"""Answers to searches that travel: bounded while they are built, and not after all of it is there.

Owns: where an answer stops. Leaves to others: what is found (`bus`), how it is written (`codec`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from gagent_grpc.errors import ResourceExhausted

_SLICE = 500
"""Results that are written in one go, before everybody else has a turn."""
_RESULT_BYTES = 6
"""What a result takes beside itself: its tag and its length."""

Found = TypeVar("Found")
Written = TypeVar("Written", bound=Message)


async def written(found: Sequence[Found], write: Callable[[Found], Written], *, max_frame_bytes: int) -> list[Written]:
    """Return everything that was found as it travels.

    Raises:
        ResourceExhausted: It takes more than three quarters of a frame; the text says how many results fit.
    """
    bound = max_frame_bytes * 3 // 4
    results: list[Written] = []
    size = 0
    for one in found:
        result = write(one)
        size += result.ByteSize() + _RESULT_BYTES
        if size > bound:
            raise ResourceExhausted(
                f"the answer would be over {bound:,} bytes: {len(results):,} results fit of {len(found):,}; "
                "ask for no more with max_results, or for a narrower template"
            )
        results.append(result)
        if not len(results) % _SLICE:
            await asyncio.sleep(0)
    return results
