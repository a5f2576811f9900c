"""Delegated tasks in the SQLite store: their parts and events, what is void, older files, and a disk without room."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from gagent_grpc.bus.ports import StoredMessage, StoredPlatform, StoredTask
from gagent_grpc.errors import InvalidArgument, StoreUnavailable
from gagent_grpc.storage import sqlite_rows
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.storage.sqlite_file import SCHEMA_VERSION


def message(sequence: int, *, payload: bytes = b"payload") -> StoredMessage:
    return StoredMessage("bob", sequence, "alice@local", f"m-{sequence}", "", b"d", "", 1.0, 0, payload)


@contextlib.asynccontextmanager
async def opened(path: Path, max_bytes: int | None = None) -> AsyncIterator[tuple[SqliteStore, StoredPlatform]]:
    store = SqliteStore(path, max_bytes=max_bytes)
    stored = await store.open()
    try:
        yield store, stored
    finally:
        await store.close()


async def tasks_in(path: Path) -> list[StoredTask]:
    async with opened(path) as (_, stored):
        return stored.tasks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bus.db"


async def test_parts_and_events_come_back_by_number_and_sequence(path: Path) -> None:
    async with opened(path) as (store, stored):
        assert stored.tasks == []
        for number in (10, 2):
            store.put_task(number, "order", f"order of {number} é")
            store.put_task(number, "state", "first")
        for sequence in (1, 2, 3, 11):
            store.add_task_event(2, sequence, f"event {sequence}")
        store.put_task(2, "state", "second")
        store.trim_task_events(2, 3)
        await store.flush()
    assert await tasks_in(path) == [
        StoredTask(2, {"order": "order of 2 é", "state": "second"}, [(3, "event 3"), (11, "event 11")]),
        StoredTask(10, {"order": "order of 10 é", "state": "first"}, []),
    ]


async def test_removed_task_leaves_nothing(path: Path) -> None:
    async with opened(path) as (store, _):
        store.put_task(1, "order", "x")
        store.add_task_event(1, 1, "x")
        await store.flush()
        store.remove_task(1)
        store.remove_task(7)
        await store.flush()
    assert await tasks_in(path) == []


@pytest.mark.parametrize(
    "change",
    ["UPDATE task_parts SET body = 'y'", "UPDATE task_events SET sequence = 2", "UPDATE task_parts SET part = 'z'"],
)
async def test_what_is_not_as_it_was_written_is_damage(path: Path, change: str) -> None:
    async with opened(path) as (store, _):
        store.put_task(1, "order", "x")
        store.add_task_event(1, 1, "x")
        await store.flush()
    connection = apsw.Connection(str(path))
    connection.execute(change)
    connection.close()
    with pytest.raises(StoreUnavailable, match="not what was written"):
        await tasks_in(path)


async def test_text_that_cannot_be_written_is_refused_at_once(path: Path) -> None:
    async with opened(path) as (store, _):
        with pytest.raises(InvalidArgument, match="surrogate"):
            store.put_task(1, "order", "\ud800")
        with pytest.raises(InvalidArgument, match="64 bits"):
            store.add_task_event(1, 1 << 63, "x")


async def test_task_and_its_message_are_there_both_or_neither(path: Path) -> None:
    async with opened(path, max_bytes=200_000) as (store, _):
        with store.together():
            store.put_task(1, "order", "x")
            store.accept(message(1, payload=b"x" * 1_000_000))
        assert (await store.next_commit()).error
        # The platform takes it back, as it hears of that.
        store.remove_task(1)
        with store.together():
            store.put_task(2, "order", "y")
            store.accept(message(2))
        assert not (await store.next_commit()).error
        await store.flush()
    async with opened(path) as (_, stored):
        assert [one.number for one in stored.tasks] == [2]
        assert [one.sequence for one in stored.messages] == [2]


def test_what_waits_for_a_full_disk_is_no_more_than_what_the_bus_holds() -> None:
    operations = [
        sqlite_rows.put_task_operation(1, "order", "x"),
        sqlite_rows.put_task_operation(1, "state", "first"),
        *(sqlite_rows.add_task_event_operation(1, sequence, "x") for sequence in range(1, 6)),
        sqlite_rows.trim_task_events_operation(1, 3),
        sqlite_rows.put_task_operation(1, "state", "second"),
        sqlite_rows.add_task_event_operation(1, 6, "x"),
        sqlite_rows.trim_task_events_operation(1, 5),
        sqlite_rows.put_task_operation(2, "order", "x"),
        sqlite_rows.add_task_event_operation(2, 1, "x"),
        sqlite_rows.trim_task_events_operation(2, 1),
        sqlite_rows.remove_task_operation(2),
    ]
    left = sqlite_rows.without_accepts(operations)
    assert left == [
        sqlite_rows.put_task_operation(1, "order", "x"),
        sqlite_rows.add_task_event_operation(1, 5, "x"),
        sqlite_rows.put_task_operation(1, "state", "second"),
        sqlite_rows.add_task_event_operation(1, 6, "x"),
        sqlite_rows.trim_task_events_operation(1, 5),
        sqlite_rows.remove_task_operation(2),
    ]
    assert sqlite_rows.without_accepts(left) == left


async def test_file_of_version_2_takes_tasks(path: Path) -> None:
    async with opened(path) as (store, _):
        store.accept(message(1))
        await store.flush()
    connection = apsw.Connection(str(path))
    connection.execute("DROP TABLE topics; DROP TABLE task_parts; DROP TABLE task_events")
    connection.execute("DROP TABLE subscriptions; DROP TABLE contexts; DROP TABLE context_entries")
    connection.execute("DELETE FROM meta WHERE name = 'context_revision'")
    connection.pragma("user_version", 2)
    connection.close()
    async with opened(path) as (store, stored):
        assert (stored.messages, stored.tasks) == ([message(1)], [])
        store.put_task(1, "order", "x")
        await store.flush()
    assert await tasks_in(path) == [StoredTask(1, {"order": "x"}, [])]
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == SCHEMA_VERSION
    connection.close()
