"""Dead letters in the file of the SQLite store: kept, gone, never lost to a full disk, and added to a file without them."""

# ruff: noqa: ASYNC240
# Files are handled where the test is: its event loop has nothing else to do.

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import apsw
import pytest

from gagent_grpc.bus.ports import StoredDeadLetter, StoredKey, StoredMessage, StoredPlatform
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import InvalidArgument, StoreUnavailable
from gagent_grpc.storage import sqlite_rows
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.storage.sqlite_file import SCHEMA_VERSION

OLD_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE agents (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, principal TEXT NOT NULL, ownership TEXT NOT NULL,
    state INTEGER NOT NULL, resume_to INTEGER NOT NULL, ephemeral INTEGER NOT NULL, generation INTEGER NOT NULL,
    attached INTEGER NOT NULL, next_sequence INTEGER NOT NULL, resume_digest BLOB NOT NULL,
    registered_at REAL NOT NULL, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE messages (
    position INTEGER PRIMARY KEY, receiver TEXT NOT NULL, sequence INTEGER NOT NULL, sender TEXT NOT NULL,
    message_id TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, via TEXT NOT NULL, accepted_at REAL NOT NULL,
    attempt INTEGER NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL, UNIQUE (receiver, sequence)
) STRICT;
CREATE TABLE settled_keys (
    sender TEXT NOT NULL, key TEXT NOT NULL, receiver TEXT NOT NULL, digest BLOB NOT NULL, settled_at REAL NOT NULL,
    PRIMARY KEY (sender, key, receiver)
) STRICT, WITHOUT ROWID;
CREATE INDEX settled_keys_by_time ON settled_keys (settled_at);
CREATE TABLE descriptions (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, registered_at REAL NOT NULL, lease_end REAL NOT NULL,
    body TEXT NOT NULL, checksum INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES ('clean', 1);
"""
"""Version 1, as it was released: what stands here never changes."""


def message(sequence: int, *, payload: bytes = b"payload") -> StoredMessage:
    return StoredMessage("bob", sequence, "alice@local", f"m-{sequence}", "", b"d" * 8, "", 1.25, 0, payload)


def dead(number: int, *, payload: bytes = b"payload") -> StoredDeadLetter:
    return StoredDeadLetter(
        number=number,
        receiver="bob",
        sequence=number,
        sender="alice@local",
        message_id=f"m-{number}",
        via="",
        accepted_at=1.25,
        attempt=5,
        reason=DeadReason.MAX_DELIVERIES,
        error="ValueError: no",
        died_at=2.5,
        payload=payload,
    )


async def accepted(store: SqliteStore, *messages: StoredMessage) -> bool:
    through = [store.accept(item) for item in messages][-1]
    errors = []
    while not errors or errors[-1][0] < through:
        commit = await store.next_commit()
        errors.append((commit.through, commit.error))
    return not any(error for _, error in errors)


@contextlib.asynccontextmanager
async def opened(path: Path, **options: int) -> AsyncIterator[tuple[SqliteStore, StoredPlatform]]:
    store = SqliteStore(path, **options)  # type: ignore[arg-type]  # max_bytes, as the tests name it.
    try:
        yield store, await store.open()
    finally:
        await store.close()


async def content(path: Path) -> StoredPlatform:
    async with opened(path) as (_, stored):
        return stored


async def flushed(store: SqliteStore) -> None:
    """Wait until what is kept was written by a later try."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await store.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bus.db"


async def test_dead_letters_come_back_as_they_were_written(path: Path) -> None:
    letters = [
        dead(1),
        replace(dead(2, payload=bytes(range(256))), via="role:x", error="é\n\0", reason=DeadReason.RECEIVER_LOST),
        replace(dead(2**53, payload=b""), attempt=0, error="", message_id="", receiver="zoë"),
        dead(4, payload=b"x" * 1_000_000),
    ]
    async with opened(path) as (store, stored):
        assert (stored.dead_letters, stored.next_dead_letter) == ([], 1)
        for letter in letters:
            store.bury(letter)
    stored = await content(path)
    assert stored.dead_letters == sorted(letters, key=lambda one: one.number)
    assert stored.next_dead_letter == 2**53 + 1


async def test_removed_letters_are_gone_and_their_numbers_are_not_used_again(path: Path) -> None:
    async with opened(path) as (store, _):
        for number in range(1, 400):
            store.bury(dead(number))
        store.exhume([7, 3, 1_000])
        store.exhume(range(200, 400))
    stored = await content(path)
    assert [one.number for one in stored.dead_letters] == [n for n in range(1, 200) if n not in {3, 7}]
    assert stored.next_dead_letter == 400
    async with opened(path) as (store, _):
        store.exhume(range(400))
    assert (await content(path)).next_dead_letter == 400


async def test_removed_agent_leaves_its_dead_letters(path: Path) -> None:
    async with opened(path) as (store, _):
        assert await accepted(store, message(1))
        store.bury(dead(1))
        store.remove_agent("bob")
    stored = await content(path)
    assert (stored.messages, stored.dead_letters) == ([], [dead(1)])


async def test_message_remembers_which_dead_letter_it_was(path: Path) -> None:
    async with opened(path) as (store, _):
        assert await accepted(store, replace(message(1), redriven=12), message(2))
    assert [one.redriven for one in (await content(path)).messages] == [12, 0]


@pytest.mark.parametrize(
    "change",
    [
        "error = 'none'",
        "reason = 2",
        "payload = x'00'",
        "sender = 'eve@local'",
        "attempt = 1",
        "died_at = 9.0",
        "number = 3",
        "reason = 77",
    ],
)
async def test_letter_that_is_not_what_was_written_is_damage(path: Path, change: str) -> None:
    async with opened(path) as (store, _):
        store.bury(dead(1))
    other = apsw.Connection(str(path))
    other.execute(f"UPDATE dead_letters SET {change}")
    other.close()
    with pytest.raises(StoreUnavailable, match="damaged"):
        await SqliteStore(path).open()


async def test_redriven_number_that_is_not_what_was_written_is_damage(path: Path) -> None:
    async with opened(path) as (store, _):
        assert await accepted(store, replace(message(1), redriven=12))
    other = apsw.Connection(str(path))
    other.execute("UPDATE messages SET redriven = 13")
    other.close()
    with pytest.raises(StoreUnavailable, match="damaged"):
        await SqliteStore(path).open()


async def test_letter_that_cannot_be_written_is_refused_at_once(path: Path) -> None:
    async with opened(path) as (store, _):
        with pytest.raises(InvalidArgument, match="bury"):
            store.bury(replace(dead(1), error="\ud800"))
        await store.flush()


async def test_full_store_takes_dead_letters_all_the_same_and_loses_none(path: Path) -> None:
    block = b"x" * 20_000
    async with opened(path, max_bytes=1_000_000) as (store, _):
        kept = 0
        while await accepted(store, message(kept + 1, payload=block)):
            kept += 1
        assert kept > 20
        # Room for a second copy of each is there only beyond the bound, until the first one is settled.
        for sequence in range(1, kept + 1):
            store.bury(dead(sequence, payload=block))
            store.settle("bob", sequence, StoredKey("alice@local", f"k-{sequence}", "bob", b"d", 3.0))
        await flushed(store)
    stored = await content(path)
    assert stored.messages == []
    assert stored.dead_letters == [dead(n, payload=block) for n in range(1, kept + 1)]
    assert len(stored.keys) == kept


def test_what_waits_for_a_full_disk_holds_each_letter_once_and_none_that_is_gone() -> None:
    waiting = [
        sqlite_rows.bury_operation(dead(1)),
        sqlite_rows.settle_operation("bob", 1, None),
        sqlite_rows.bury_operation(dead(2)),
        sqlite_rows.exhume_operation(1),
        # Buried by an earlier group, which was written.
        sqlite_rows.exhume_operation(0),
        sqlite_rows.accept_operation(message(3)),
    ]
    left = sqlite_rows.without_accepts(waiting)
    assert left == [waiting[1], waiting[2], waiting[4]]
    assert sqlite_rows.without_accepts(left + left[-1:]) == left


def old_file(path: Path, *messages: StoredMessage) -> None:
    """Make a file as version 1 did."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute(OLD_SCHEMA)
    connection.pragma("application_id", 0x67416742)
    connection.pragma("user_version", 1)
    for one in messages:
        texts = (one.receiver, one.sender, one.message_id, one.key, one.via)
        head = "\0".join(texts) + f"\0{one.sequence}\0{float(one.accepted_at)}"
        checksum = crc32(one.payload, crc32(one.digest, crc32(head.encode())))
        connection.execute(
            "INSERT INTO messages (receiver, sequence, sender, message_id, key, digest, via, accepted_at, attempt,"
            " payload, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(one.receiver, one.sequence, one.sender, one.message_id, one.key, one.digest, one.via),
                *(one.accepted_at, one.attempt, one.payload, checksum),
            ),
        )
    connection.execute("INSERT INTO settled_keys VALUES ('alice@local', 'k', 'bob', x'01', 9.0)")
    connection.close()


async def test_file_of_version_1_keeps_what_it_holds_and_takes_dead_letters(path: Path) -> None:
    messages = [message(1), replace(message(2, payload=b"x" * 100_000), attempt=3, via="role:x", key="k-2")]
    old_file(path, *messages)
    async with opened(path) as (store, stored):
        assert stored == StoredPlatform(
            messages=messages, keys=[StoredKey("alice@local", "k", "bob", b"\1", 9.0)], dead_letters=[]
        )
        assert stored.clean
        store.bury(dead(1))
        store.settle("bob", 1, None)
        assert await accepted(store, replace(message(3), redriven=8))
    stored = await content(path)
    assert stored.dead_letters == [dead(1)]
    assert stored.messages == [messages[1], replace(message(3), redriven=8)]
    other = apsw.Connection(str(path))
    assert other.pragma("user_version") == SCHEMA_VERSION
    other.close()


async def test_change_of_version_is_made_as_a_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_file(path, message(1))
    broken = {1: "ALTER TABLE messages ADD COLUMN redriven INTEGER NOT NULL DEFAULT 0; SELECT nothing;"}
    with monkeypatch.context() as patched:
        patched.setattr("gagent_grpc.storage.sqlite_file._MIGRATIONS", broken)
        with pytest.raises(StoreUnavailable, match="damaged"):
            await SqliteStore(path).open()
    assert (await content(path)).messages == [message(1)]


async def test_damaged_file_of_version_1_is_left_as_it_is(path: Path) -> None:
    old_file(path, *[message(n, payload=b"x" * 3_000) for n in range(1, 60)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(StoreUnavailable, match="damaged"):
        await SqliteStore(path).open()
    other = apsw.Connection(str(path))
    assert other.pragma("user_version") == 1
    other.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def test_dead_letters_wait_for_a_full_disk_and_removing_them_makes_way_for_the_rest(small_disk: Path) -> None:
    block, path = b"x" * 10_000, small_disk / "bus.db"
    async with opened(path) as (store, _):
        assert await accepted(store, *(message(n, payload=block) for n in range(1, 101)))
        assert await accepted(store, message(200))
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(b"0" * 4096)
        file.truncate(file.tell() - 100_000)
    async with opened(path) as (store, _):
        for sequence in range(1, 101):
            store.bury(dead(sequence, payload=block))
            store.settle("bob", sequence, None)
        with pytest.raises(StoreUnavailable, match="full"):
            await store.flush()
        # Nobody needs those, so what is left takes no room.
        store.exhume(range(2, 101))
        await flushed(store)
        store.bury(dead(200))
        store.settle("bob", 200, None)
        ballast.unlink()
        await flushed(store)
    stored = await content(path)
    assert [one.number for one in stored.dead_letters] == [1, 200]
    assert stored.messages == []
