"""The log of events: cursors, what is forgotten, and readers that are too slow."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.bus.events import EventLog, Watch
from gagent_grpc.errors import BusDraining, ResourceExhausted


def log_of(most: int = 100, *, most_size: int = 1_000, readers: int = 10) -> EventLog[str]:
    return EventLog(most=most, most_size=most_size, max_readers=readers)


async def test_reader_gets_what_follows_in_order_and_waits_for_more() -> None:
    log = log_of()
    log.append("before")
    reader = log.read(log.last)
    log.append("a")
    log.append("b")
    assert await reader.next() == [(2, "a"), (3, "b")]
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    log.append("c")
    assert await waiting == [(4, "c")]


async def test_cursor_goes_on_where_it_was_and_nowhere_else() -> None:
    log = log_of(3)
    for text in "abcde":
        log.append(text)
    assert [log.after(log.cursor(number)) for number in range(6)] == [None, None, 2, 3, 4, 5]
    assert log.after(log.cursor(6)) is None
    assert log.after(log_of().cursor(0)) is None
    assert log_of().after(log.cursor(3)) is None
    for number in range(2, 5):
        assert [text for _, text in log.since(number)] == list("abcde"[number:])


@given(st.text())
def test_whatever_somebody_calls_a_cursor_begins_anew(text: str) -> None:
    log = log_of()
    log.append("a")
    run = log.cursor(0).rpartition("-")[0]
    for cursor in (text, f"{run}-{text}", f"{text}-1"):
        assert log.after(cursor) in {None, *((int(text),) if text.isdecimal() and int(text) <= 1 else ())}


async def test_slow_reader_is_ended_and_its_cursor_begins_anew() -> None:
    log = log_of(3)
    reader = log.read(0)
    cursor = log.cursor(0)
    for text in "abc":
        log.append(text)
    assert log.after(cursor) == 0
    log.append("d")
    with pytest.raises(ResourceExhausted, match="resume with the last cursor"):
        await reader.next()
    assert log.after(cursor) is None


async def test_log_is_bounded_by_size_and_keeps_at_least_the_newest_event() -> None:
    log = log_of(most_size=10)
    for size in (4, 4, 4):
        log.append(f"{size}", size)
    assert log.after(log.cursor(0)) is None
    assert log.after(log.cursor(1)) == 1
    log.append("huge", 1_000)
    assert await log.read(3).next() == [(4, "huge")]
    assert log.after(log.cursor(2)) is None


async def test_readers_are_bounded_and_leave_room_when_they_go() -> None:
    log = log_of(readers=2)
    first, _ = log.read(0), log.read(0)
    with pytest.raises(ResourceExhausted, match="max_watches"):
        log.read(0)
    first.close()
    first.close()
    assert log.readers == 1
    log.read(0)


async def test_closed_log_ends_its_readers_after_what_there_is() -> None:
    log = log_of()
    reader, idle = log.read(0), log.read(0)
    log.append("a")
    assert await idle.next() == [(1, "a")]
    waiting = asyncio.create_task(idle.next())
    await asyncio.sleep(0)
    log.close()
    assert await waiting == []
    assert await reader.next() == [(1, "a")]
    assert await reader.next() == []
    with pytest.raises(BusDraining):
        log.read(0)


async def test_watch_tells_its_snapshot_first_and_passes_over_what_does_not_concern_it() -> None:
    log = log_of()
    watch = Watch(log.read(0), ["snapshot"], lambda number, text: f"{number}{text}" if text in "xy" else None)
    for text in "axby":
        log.append(text)
    with watch:
        assert await watch.next() == ["snapshot"]
        assert await watch.next() == ["2x", "4y"]
        waiting = asyncio.create_task(watch.next())
        for _ in range(3):
            log.append("a")
            await asyncio.sleep(0)
        log.append("x")
        assert await waiting == ["8x"]
    assert log.readers == 0


async def test_reader_far_behind_gives_everybody_else_their_turn() -> None:
    log = log_of(10_000, most_size=10_000)
    for _ in range(5_000):
        log.append("a")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with Watch(log.read(0), [], lambda number, text: text if number == 5_000 else None) as watch:
        beside = asyncio.create_task(other())
        assert await watch.next() == ["a"]
        beside.cancel()
    await asyncio.wait({beside})
    assert turns >= 10
