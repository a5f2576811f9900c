"""What a script says on stderr, as bytes that are there already."""

from __future__ import annotations

import asyncio

from gagent_grpc.bridge.child import LINES_PER_TURN, LastWords


async def test_a_flood_of_lines_does_not_keep_the_loop_from_others() -> None:
    lines = 100 * LINES_PER_TURN
    stderr = asyncio.StreamReader()
    stderr.feed_data(b"step\n" * lines)
    stderr.feed_eof()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    words = LastWords("helper")
    await words.read(stderr)
    beside.cancel()
    assert turns >= 100
    assert words.tail.splitlines()[-1] == "step"
