"""Shared contexts in the stores: entries, removals and revisions, what is void, older files, damage, and a full disk."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from gagent_grpc.bus.ports import StoredContext, StoredEntry, StoredMessage, StoredPlatform
from gagent_grpc.errors import InvalidArgument, StoreUnavailable
from gagent_grpc.storage import sqlite_rows
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.storage.sqlite_file import SCHEMA_VERSION


def entry(key: str, revision: int, value: str = "1", *, removed: bool = False) -> StoredEntry:
    return StoredEntry(key, revision, "alice@local", 1_700_000_000.25, "" if removed else value, removed)


def message(sequence: int) -> StoredMessage:
    return StoredMessage("bob", sequence, "alice@local", f"m-{sequence}", "", b"d", "", 1.0, 0, b"payload")


@contextlib.asynccontextmanager
async def opened(path: Path, max_bytes: int | None = None) -> AsyncIterator[tuple[SqliteStore, StoredPlatform]]:
    store = SqliteStore(path, max_bytes=max_bytes)
    stored = await store.open()
    try:
        yield store, stored
    finally:
        await store.close()


async def content(path: Path) -> StoredPlatform:
    async with opened(path) as (_, stored):
        return stored


def changed(path: Path, *statements: str, version: int | None = None) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    if version is not None:
        connection.pragma("user_version", version)
    connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bus.db"


async def test_entries_come_back_by_revision_with_those_that_were_removed(path: Path) -> None:
    async with opened(path) as (store, stored):
        assert (stored.contexts, stored.context_revision) == ([], 0)
        for number in (10, 2):
            store.put_context(number, f"of {number}")
        for one in (entry("a", 1), entry("é", 2, '"nul\\u0000 ä"'), entry("a\0b", 3), entry("gone", 4)):
            store.put_context_entry(2, one)
        store.put_context_entry(2, entry("a", 5, "x" * 70_000))
        store.put_context_entry(2, entry("gone", 6, removed=True))
        store.put_context_entry(10, entry("a", 7))
        store.put_context(10, "changed")
        await store.flush()
    stored = await content(path)
    assert stored.contexts == [
        StoredContext(
            2,
            "of 2",
            [
                entry("é", 2, '"nul\\u0000 ä"'),
                entry("a\0b", 3),
                entry("a", 5, "x" * 70_000),
                entry("gone", 6, removed=True),
            ],
        ),
        StoredContext(10, "changed", [entry("a", 7)]),
    ]


async def test_removed_context_leaves_nothing_but_its_last_revision(path: Path) -> None:
    async with opened(path) as (store, _):
        for number in (1, 2):
            store.put_context(number, "x")
            store.put_context_entry(number, entry("k", 1))
        store.put_context_entry(2, entry("gone", 2, removed=True))
        store.drop_context_entries(2, ["gone", "never there"])
        await store.flush()
        store.remove_context(1, 40)
        store.remove_context(7, 12)
    stored = await content(path)
    assert (stored.contexts, stored.context_revision) == ([StoredContext(2, "x", [entry("k", 1)])], 40)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE contexts SET body = 'y'",
        "UPDATE context_entries SET value = '2'",
        "UPDATE context_entries SET revision = 9",
        "UPDATE context_entries SET removed = 1",
        "UPDATE context_entries SET key = 'other'",
        "DELETE FROM contexts",
    ],
)
async def test_what_is_not_as_it_was_written_is_damage(path: Path, change: str) -> None:
    async with opened(path) as (store, _):
        store.put_context(1, "x")
        store.put_context_entry(1, entry("k", 1))
        await store.flush()
    changed(path, change)
    with pytest.raises(StoreUnavailable, match=r"damaged \(.*(is not what was written|which is not there)"):
        await content(path)


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put_context(1, "\ud800"),
        lambda store: store.put_context_entry(1, entry("\ud800", 1)),
        lambda store: store.put_context_entry(1, entry("k", 1 << 63)),
        lambda store: store.put_context_entry(1, entry("k", 1, "\ud800")),
    ],
)
async def test_what_cannot_be_written_is_refused_at_once(path: Path, write: Callable[[Any], None]) -> None:
    async with opened(path) as (store, _):
        with pytest.raises(InvalidArgument):
            write(store)
        await store.flush()


async def test_file_of_version_3_keeps_what_it_holds_and_takes_contexts(path: Path) -> None:
    async with opened(path) as (store, _):
        store.accept(message(1))
        store.put_task(1, "order", "x")
        await store.flush()
    changed(
        path,
        "DROP TABLE subscriptions; DROP TABLE contexts; DROP TABLE context_entries",
        "DELETE FROM meta WHERE name = 'context_revision'",
        version=3,
    )
    async with opened(path) as (store, stored):
        assert (stored.messages, [one.number for one in stored.tasks]) == ([message(1)], [1])
        assert (stored.contexts, stored.context_revision) == ([], 0)
        store.put_context(1, "x")
        store.put_context_entry(1, entry("k", 1))
        store.remove_context(2, 30)
        await store.flush()
    stored = await content(path)
    assert (stored.contexts, stored.context_revision) == ([StoredContext(1, "x", [entry("k", 1)])], 30)
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == SCHEMA_VERSION
    connection.close()


def test_what_waits_for_a_full_disk_is_no_more_than_what_the_bus_holds() -> None:
    rows = sqlite_rows
    void = [
        rows.put_context_operation(1, "x"),
        rows.put_context_entry_operation(1, entry("k", 1)),
        rows.drop_context_entry_operation(1, "k"),
        rows.put_context_operation(2, "old"),
        rows.put_context_entry_operation(2, entry("k", 1)),
        rows.put_context_entry_operation(2, entry("gone", 2, removed=True)),
    ]
    left = [
        rows.remove_context_operation(1),
        rows.use_revision_operation(40),
        rows.put_context_operation(2, "new"),
        rows.put_context_entry_operation(2, entry("k", 3)),
        rows.drop_context_entry_operation(2, "gone"),
        rows.use_revision_operation(7),
    ]
    assert rows.without_accepts(void + left) == left


async def test_writes_for_which_there_was_no_room_come_to_be_when_there_is(path: Path) -> None:
    async with opened(path, max_bytes=100_000) as (store, _):
        store.put_context(1, "x")
        failed = 0
        for number in range(4):
            store.put_context_entry(1, entry(f"{number}", number + 1, "x" * 60_000))
            try:
                await store.flush()
            except StoreUnavailable:
                failed += 1
        assert failed
    assert [one.key for one in (await content(path)).contexts[0].entries] == ["0", "1", "2", "3"]


async def test_many_writes_at_once_share_few_commits(path: Path) -> None:
    async with opened(path) as (store, _):
        store.put_context(1, "x")
        await store.flush()
        before = store.commits
        for number in range(500):
            store.put_context_entry(1, entry(f"{number}", number + 1))
        await store.flush()
        assert store.commits - before <= 3


async def test_memory_store_takes_everything_and_keeps_nothing() -> None:
    store = MemoryStore()
    await store.open()
    store.put_context(1, "x")
    store.put_context_entry(1, entry("k", 1))
    store.drop_context_entries(1, ["k"])
    store.remove_context(1, 2)
    await store.flush()
    assert await MemoryStore().open() == StoredPlatform()
    await store.close()
