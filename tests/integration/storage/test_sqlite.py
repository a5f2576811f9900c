"""The SQLite store against real files, real processes and real failures of both.

What a test knows of a store it learns as the platform does, from `next_commit` and `flush`, or by opening the file anew.
"""

# ruff: noqa: ASYNC240
# Files are handled where the test is: its event loop has nothing else to do.

import asyncio
import contextlib
import logging
import math
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState, Property, ServiceDescription
from gagent_grpc.bus.ports import (
    Commit,
    Store,
    StoredAgent,
    StoredDeadLetter,
    StoredDescription,
    StoredKey,
    StoredMessage,
    StoredPlatform,
    StoredSubscription,
)
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import ConfigurationError, InvalidArgument, StoreUnavailable
from gagent_grpc.storage import sqlite_rows
from gagent_grpc.storage.sqlite import SqliteStore


def message(sequence: int, *, receiver: str = "bob", payload: bytes = b"payload", key: str = "") -> StoredMessage:
    return StoredMessage(
        receiver=receiver,
        sequence=sequence,
        sender="alice@local",
        message_id=f"m-{sequence}",
        key=key,
        digest=b"d" * 16,
        via="",
        accepted_at=1_700_000_000.25,
        attempt=0,
        payload=payload,
    )


def dead(number: int, *, payload: bytes = b"payload") -> StoredDeadLetter:
    return StoredDeadLetter(
        number, "bob", number, "alice@local", f"m-{number}", "", 1.0, 1, DeadReason.REJECTED, "", 2.0, payload
    )


def key_of(sequence: int, *, settled_at: float = 10.0) -> StoredKey:
    return StoredKey("alice@local", f"k-{sequence}", "bob", b"d" * 16, settled_at)


def entry(description: DFAgentDescription, registered_at: float, *, lease_end: float = math.inf) -> StoredDescription:
    return StoredDescription(description, registered_at, lease_end)


def agent(name: str = "bob", *, registered_at: float = 1.0, next_sequence: int = 1) -> StoredAgent:
    state = LifeCycleState.ACTIVE
    return StoredAgent(name, "token:ops", "", state, state, False, 3, True, next_sequence, b"r" * 32, registered_at)


async def outcomes(store: Store, through: int) -> list[Commit]:
    """Return the commits up to the one that covers position ``through``."""
    found = [await store.next_commit()]
    while found[-1].through < through:
        found.append(await store.next_commit())
    return found


async def accepted(store: Store, *messages: StoredMessage) -> bool:
    """Accept messages and return whether all of them were stored."""
    for item in messages:
        through = store.accept(item)
    return not any(commit.error for commit in await outcomes(store, through))


@contextlib.asynccontextmanager
async def opened(path: Path, **options: float) -> AsyncIterator[tuple[SqliteStore, StoredPlatform]]:
    store = SqliteStore(path, **options)  # type: ignore[arg-type]  # max_bytes and busy_timeout, as the tests name them.
    try:
        yield store, await store.open()
    finally:
        await store.close()


async def content(path: Path) -> StoredPlatform:
    async with opened(path) as (_, stored):
        return stored


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "bus.db"


# ---- what is kept


async def test_everything_comes_back_as_it_was_written(path: Path) -> None:
    suspended = replace(
        agent("ünï-ço_dé", registered_at=2.5),
        state=LifeCycleState.SUSPENDED,
        resume_to=LifeCycleState.WAITING,
        ephemeral=True,
        attached=False,
        ownership='"quoted"; DROP TABLE agents',
        resume_digest=b"",
        generation=2**53,
    )
    description = DFAgentDescription(
        name="bob@local",
        services=(
            ServiceDescription(
                name="s",
                type="summarise",
                protocols=frozenset({"fipa-request", "fipa-query"}),
                ontologies=frozenset({"o"}),
                languages=frozenset({"fipa-sl0"}),
                ownership="ops",
                properties=(Property("lang", "en"), Property("any"), Property("empty", "")),
            ),
            ServiceDescription(),
        ),
        protocols=frozenset({"p"}),
        ontologies=frozenset({"o"}),
        languages=frozenset({"l"}),
        lease_seconds=30.5,
    )
    younger = DFAgentDescription(name="alice@local")
    messages = [
        replace(message(1), payload=bytes(range(256)), via="topic:news.*", key="k-1", attempt=2),
        replace(message(2), payload=b"", digest=b"", message_id="", sender="nul\0l@local"),
        replace(message(3), payload=os.urandom(1_000_000)),
        message(2**53, receiver="zoe"),
    ]
    async with opened(path) as (store, stored):
        assert stored == StoredPlatform(clean=True)
        store.put_agent(suspended)
        store.put_agent(agent())
        store.put_description(entry(younger, 2.0))
        store.put_description(entry(description, 1.0, lease_end=31.5))
        assert await accepted(store, *reversed(messages), message(9))
        store.settle("bob", 9, key_of(9))

    assert await content(path) == StoredPlatform(
        clean=True,
        agents=[replace(agent(), next_sequence=4), suspended],
        messages=messages,
        keys=[key_of(9)],
        descriptions=[entry(description, 1.0, lease_end=31.5), entry(younger, 2.0)],
    )


async def test_new_database_is_private_and_its_folder_is_made(path: Path) -> None:
    async with opened(path) as (store, _):
        assert await accepted(store, message(1))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(["bus.db", "bus.db-wal", "bus.db-shm", "bus.db.lock"], 0o600)
    # A clean stop leaves one file to copy.
    assert {file.name for file in path.parent.iterdir()} == {"bus.db", "bus.db.lock"}


async def test_stop_counts_as_unclean_unless_close_said_otherwise(path: Path) -> None:
    store = SqliteStore(path)
    assert (await store.open()).clean
    assert await accepted(store, message(1))
    store.mark_attempts("bob", [(1, 1)])
    await store.close(clean=False)

    store = SqliteStore(path)
    stored = await store.open()
    assert not stored.clean
    assert stored.messages == [replace(message(1), attempt=1)]
    await store.close()
    assert (await content(path)).clean


async def test_agent_and_entry_keep_their_place_when_they_change(path: Path) -> None:
    async with opened(path) as (store, _):
        for name in ("c", "a", "b"):
            store.put_agent(agent(name))
            store.put_description(entry(DFAgentDescription(name=name), 5.0))
        changed = replace(agent("c"), state=LifeCycleState.UNKNOWN, generation=9)
        store.put_agent(changed)
        store.put_description(entry(DFAgentDescription(name="c", languages=frozenset({"l"})), 5.0))
    stored = await content(path)
    assert stored.agents == [changed, agent("a"), agent("b")]
    assert [found.description.name for found in stored.descriptions] == ["c", "a", "b"]
    assert stored.descriptions[0].description.languages == {"l"}


async def test_agent_is_stored_as_it_was_when_it_was_put(path: Path) -> None:
    async with opened(path) as (store, _):
        live = agent()
        store.put_agent(live)
        live.generation = 99
        await store.flush()
    assert (await content(path)).agents == [agent()]


async def test_removed_agent_takes_its_mail_and_entry_with_it(path: Path) -> None:
    async with opened(path) as (store, _):
        for name in ("bob", "zoe"):
            store.put_agent(agent(name))
            store.put_description(entry(DFAgentDescription(name=name), 1.0))
            assert await accepted(store, message(1, receiver=name), message(2, receiver=name))
        store.settle("bob", 1, key_of(1))
        store.remove_agent("bob")
    stored = await content(path)
    assert [found.name for found in stored.agents] == ["zoe"]
    assert [found.description.name for found in stored.descriptions] == ["zoe"]
    assert stored.messages == [message(1, receiver="zoe"), message(2, receiver="zoe")]
    assert stored.keys == [key_of(1)]


def subscription(name: str, conversation: str = "c", body: str = "{}") -> StoredSubscription:
    return StoredSubscription(name, conversation, body)


async def test_subscriptions_are_kept_until_they_are_removed_or_their_agent_is(path: Path) -> None:
    async with opened(path) as (store, _):
        for name in ("bob", "zoe"):
            store.put_agent(agent(name))
            for conversation in ("one", "two", "\N{SNOWMAN}"):
                store.put_subscription(subscription(name, conversation))
        store.put_subscription(subscription("zoe", "two", "changed"))
        store.remove_subscription("zoe", "one")
        store.remove_subscription("zoe", "never there")
        await store.flush()
        store.remove_agent("bob")
    stored = await content(path)
    assert sorted(stored.subscriptions, key=lambda one: one.conversation) == [
        subscription("zoe", "two", "changed"),
        subscription("zoe", "\N{SNOWMAN}"),
    ]


def test_of_subscriptions_that_wait_for_the_disk_only_what_holds_is_written() -> None:
    put, remove = sqlite_rows.put_subscription_operation, sqlite_rows.remove_subscription_operation
    again, later = put(subscription("bob", "one")), put(subscription("bob", "two"))
    removed = sqlite_rows.remove_agent_operation("bob")
    other = remove("zoe", "one")
    assert sqlite_rows.without_accepts(
        [
            put(subscription("bob", "one", "old")),
            remove("bob", "one"),
            put(subscription("zoe", "one")),
            removed,
            put(subscription("bob", "one", "old")),
            again,
            other,
            later,
        ]
    ) == [removed, again, other, later]


async def test_file_of_the_schema_before_subscriptions_gets_them(path: Path) -> None:
    async with opened(path) as (store, _):
        store.put_agent(agent())
        assert await accepted(store, message(1))
    older = apsw.Connection(str(path))
    for table in ("subscriptions", "contexts", "context_entries"):
        older.execute(f"DROP TABLE {table}")
    older.execute("DELETE FROM meta WHERE name = 'context_revision'")
    older.pragma("user_version", 3)
    older.close()
    async with opened(path) as (store, stored):
        assert (stored.agents, stored.messages, stored.subscriptions) == ([agent(next_sequence=2)], [message(1)], [])
        store.put_subscription(subscription("bob"))
    assert (await content(path)).subscriptions == [subscription("bob")]


async def test_operations_of_one_group_act_in_their_order(path: Path) -> None:
    async with opened(path) as (store, _):
        with held_lock(path):
            store.put_agent(agent(next_sequence=8))
            store.accept(message(1))
            store.put_description(entry(DFAgentDescription(name="bob"), 1.0))
            store.remove_agent("bob")
            store.put_agent(agent(next_sequence=5))
            store.accept(message(2))
            store.accept(message(3))
            store.settle("bob", 2, key_of(2, settled_at=20.0))
            store.settle("bob", 1, key_of(1))
            store.prune_keys(30.0, 10)
            through = store.accept(message(4))
            store.settle("bob", 3, key_of(3))
            store.put_description(entry(DFAgentDescription(name="x"), 1.0))
            store.remove_description("x")
        await outcomes(store, through)
    stored = await content(path)
    assert stored.agents == [agent(next_sequence=5)]
    assert stored.messages == [message(4)]
    assert stored.keys == [key_of(3)]
    assert stored.descriptions == []


async def test_keys_are_forgotten_by_age_and_by_number(path: Path) -> None:
    async with opened(path) as (store, _):
        assert await accepted(store, *map(message, range(10)))
        for sequence in range(10):
            store.settle("bob", sequence, key_of(sequence, settled_at=100.0 + sequence))
        store.prune_keys(103.0, 1_000)
        await store.flush()
        store.prune_keys(0.0, 5)
    assert (await content(path)).keys == [key_of(n, settled_at=100.0 + n) for n in range(5, 10)]


async def test_settle_of_unknown_message_is_harmless(path: Path) -> None:
    async with opened(path) as (store, _):
        assert await accepted(store, message(1))
        store.settle("bob", 7, key_of(7))
        store.settle("nobody", 1, None)
        store.mark_attempts("bob", [(7, 3), (1, 2)])
        await store.flush()
        store.mark_attempts("bob", [(1, 1)])
    stored = await content(path)
    # No key is left that would turn the repetition of a refused message into a duplicate; attempts never go down.
    assert stored.keys == []
    assert stored.messages == [replace(message(1), attempt=2)]


async def test_next_sequence_is_above_every_message_that_is_stored(path: Path) -> None:
    async with opened(path) as (store, _):
        store.put_agent(agent(next_sequence=1))
        store.put_agent(agent("zoe", next_sequence=1_000))
        assert await accepted(store, message(41), message(40), message(3, receiver="zoe"))
    assert {found.name: found.next_sequence for found in (await content(path)).agents} == {"bob": 42, "zoe": 1_000}


HALF = "half a pair: \ud800"


async def test_value_that_cannot_be_written_is_refused_at_once_and_never_ends_the_store(path: Path) -> None:
    async with opened(path) as (store, _):
        for wrong in (replace(agent(), ownership=HALF), agent(HALF), replace(agent(), generation=1 << 63)):
            with pytest.raises(InvalidArgument):
                store.put_agent(wrong)
        with pytest.raises(InvalidArgument):
            store.put_agent(agent(registered_at=math.nan))
        for item in (message(1, receiver=HALF), message(1, key=HALF)):
            with pytest.raises(InvalidArgument):
                store.accept(item)
        with pytest.raises(InvalidArgument):
            store.settle("bob", 1, key_of(1)._replace(key=HALF))
        with pytest.raises(InvalidArgument):
            store.remove_agent(HALF)
        with pytest.raises(InvalidArgument):
            store.put_description(entry(DFAgentDescription(name="bob", ontologies=frozenset({HALF})), 1.0))
        await store.flush()
        assert await accepted(store, message(1))
    assert len((await content(path)).messages) == 1


async def test_entry_that_could_not_be_read_back_is_refused_at_once(path: Path) -> None:
    async with opened(path) as (store, _):
        for wrong in (
            DFAgentDescription(),
            DFAgentDescription(name="no name"),
            DFAgentDescription(name="bob", lease_seconds=float("inf")),
        ):
            with pytest.raises(InvalidArgument):
                store.put_description(entry(wrong, 1.0))
        store.put_description(entry(DFAgentDescription(name="bob"), 1.0))
    assert (await content(path)).descriptions == [entry(DFAgentDescription(name="bob"), 1.0)]


# ---- groups and commits


@contextlib.contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Keep the store from writing, so that what is given to it meanwhile is one group, or two at most."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def test_accepts_that_come_during_a_write_share_the_next_sync(path: Path) -> None:
    async with opened(path) as (store, _):
        before = store.commits
        with held_lock(path):
            positions = [store.accept(message(n)) for n in range(1, 1_001)]
        found = await outcomes(store, positions[-1])
        assert store.commits - before == len(found) <= 2
        assert not any(commit.error for commit in found)
    assert positions == list(range(1, 1_001))
    assert len((await content(path)).messages) == 1_000


async def test_commits_come_in_order_and_cover_every_accept(path: Path) -> None:
    async with opened(path) as (store, _):
        found = []
        for n in range(200):
            through = store.accept(message(n))
            if n % 3 == 0:
                found.append(await store.next_commit())
        if found[-1].through < through:
            found += await outcomes(store, through)
        throughs = [commit.through for commit in found]
        assert throughs == sorted(set(throughs))
        assert throughs[-1] == through == 200


async def test_cancelled_wait_loses_no_commit(path: Path) -> None:
    async with opened(path) as (store, _):
        with held_lock(path):
            waiting = asyncio.create_task(store.next_commit())
            flushing = asyncio.create_task(store.flush())
            store.accept(message(1))
            await asyncio.sleep(0)
            waiting.cancel()
            flushing.cancel()
            await asyncio.gather(waiting, flushing, return_exceptions=True)
        assert await store.next_commit() == Commit(1)
        await store.flush()


async def test_flush_returns_when_all_before_it_is_in_the_file(path: Path) -> None:
    async with opened(path) as (store, _):
        await store.flush()
        store.put_agent(agent())
        await store.flush()
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        assert list(reader.execute("SELECT name FROM agents")) == [("bob",)]
        reader.close()


# ---- groups that cannot be written


async def test_full_store_refuses_accepts_and_takes_them_again_once_there_is_room(path: Path) -> None:
    block = b"x" * 20_000
    async with opened(path, max_bytes=1_000_000) as (store, _):
        kept: list[int] = []
        while await accepted(store, message(len(kept) + 1, payload=block)):
            kept.append(len(kept) + 1)
        assert 20 < len(kept) < 50

        # The same again with others beside it: they are kept, the accept leaves nothing, its settle does no harm.
        refused = len(kept) + 1
        for number in range(100):
            store.put_agent(replace(agent(f"a-{number:02}"), ownership="x" * 1_000))
        assert not await accepted(store, message(refused, payload=block))
        store.settle("bob", refused, key_of(refused))
        for sequence in kept[:5]:
            store.settle("bob", sequence, key_of(sequence))
        for sequence in kept[5:15]:
            store.settle("bob", sequence, None)
        await flushed(store)
        assert await accepted(store, message(refused + 1, payload=block))
    stored = await content(path)
    assert [found.sequence for found in stored.messages] == [*kept[15:], refused + 1]
    assert {key for _, key, *_ in stored.keys} == {f"k-{sequence}" for sequence in kept[:5]}
    assert [found.name for found in stored.agents] == [f"a-{number:02}" for number in range(100)]


async def flushed(store: SqliteStore) -> None:
    """Wait until what is kept was written by a later try; each failed one wakes the waiter with an error."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await store.flush()


@contextlib.contextmanager
def failing_writes(limit: int) -> Iterator[None]:
    """Make the kernel refuse writes beyond byte ``limit`` of any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_failed_group_loses_its_accepts_and_nothing_else(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gagent_grpc.storage.sqlite")
    big = b"x" * 300_000
    async with opened(path) as (store, _):
        store.put_agent(agent("gone"))
        assert await accepted(store, message(1), message(2), message(1, receiver="gone"))
        with failing_writes(200_000):
            # One group each time, and each one fails as a whole: it is larger than what the log may grow by.
            for sequence in (10, 11):
                with held_lock(path):
                    store.put_agent(agent("new", next_sequence=sequence))
                    store.put_description(entry(DFAgentDescription(name="new"), float(sequence)))
                    store.mark_attempts("bob", [(1, sequence)])
                    store.remove_agent("gone")
                    through = store.accept(message(sequence, receiver="new", payload=big))
                found = (await outcomes(store, through))[-1]
                assert found.error
                assert str(path) not in found.error
            store.settle("new", 10, key_of(10))
            store.settle("bob", 2, key_of(2))
        await flushed(store)
        assert await accepted(store, message(12, receiver="new", payload=big))

    stored = await content(path)
    assert stored.clean
    assert [found.name for found in stored.agents] == ["new"]
    assert [found.description.name for found in stored.descriptions] == ["new"]
    assert stored.messages == [replace(message(1), attempt=11), message(12, receiver="new", payload=big)]
    assert stored.keys == [key_of(2)]
    # Said once when it begins and once when it ends, not for each group.
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_kept_operations_are_tried_again_without_new_ones(path: Path) -> None:
    async with opened(path, busy_timeout=0.01) as (store, _):
        with held_lock(path):
            store.put_agent(agent())
            with pytest.raises(StoreUnavailable, match="locked"):
                await store.flush()
        await flushed(store)
    assert (await content(path)).agents == [agent()]


async def test_close_gives_up_what_cannot_be_written_and_counts_as_unclean(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(path, busy_timeout=0.01)
    await store.open()
    with held_lock(path):
        store.put_agent(agent())
        store.accept(message(1))
        await store.close()
        assert (await store.next_commit()).error
    assert "1 changes" in caplog.messages[-1]
    assert await content(path) == StoredPlatform(clean=False)


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
        # Lazily, so that a test that fails with its store open leaves no mount behind.
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path, *, but: int = 0) -> Path:
    """Take all the space of ``disk``, and give back ``but`` bytes of it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(b"0" * 4096)
        file.truncate(file.tell() - but)
    return ballast


async def test_full_disk_loses_nothing_accepted_and_heals_with_space(small_disk: Path) -> None:
    block = b"x" * 1_000
    async with opened(small_disk / "bus.db") as (store, _):
        assert await accepted(store, *(message(n, payload=block) for n in range(1, 501)))
        ballast = fill(small_disk, but=100_000)
        refused = 501
        while await accepted(store, message(refused, payload=block)):
            refused += 1
        store.put_agent(agent())
        store.settle("bob", 1, key_of(1))
        assert not await accepted(store, message(refused + 1, payload=block))
        ballast.unlink()
        await flushed(store)
        assert await accepted(store, message(refused + 2, payload=block))
    stored = await content(small_disk / "bus.db")
    assert stored.clean
    assert [found.sequence for found in stored.messages] == [*range(2, refused), refused + 2]
    assert stored.keys == [key_of(1)]
    assert [found.name for found in stored.agents] == ["bob"]


async def test_disk_that_mail_alone_has_filled_takes_mail_again_when_that_is_settled(small_disk: Path) -> None:
    path, block = small_disk / "bus.db", b"x" * 10_000
    async with opened(path) as (store, _):
        for _ in range(3):
            kept = []
            sequence = 0
            while len(kept) < 1_000:
                sequence += 1
                if not await accepted(store, message(sequence, payload=block)):
                    break
                kept.append(sequence)
            assert 50 < len(kept) < 1_000
            for sequence in kept:
                store.settle("bob", sequence, key_of(sequence))
            await flushed(store)
            store.prune_keys(10.0**12, 0)
    assert (await content(path)).messages == []


async def test_dead_letters_take_no_space_that_is_left_for_removing_what_is_stored(small_disk: Path) -> None:
    """What is given up beside new mail takes its room, too, so that mail waits; what is given up alone never waits."""
    path, block = small_disk / "bus.db", b"x" * 300_000
    async with opened(path) as (store, _):
        assert await accepted(store, message(1))
        fill(small_disk, but=700_000)
        with store.together():
            store.bury(dead(1, payload=block))
            store.accept(message(2, payload=b"small"))
        assert (await store.next_commit()).error
        await flushed(store)
        store.bury(dead(2, payload=b"small"))
        await store.flush()
    stored = await content(path)
    assert [one.sequence for one in stored.messages] == [1]
    assert [one.number for one in stored.dead_letters] == [1, 2]


async def test_nearly_full_disk_uses_the_room_it_has_again_and_again(small_disk: Path) -> None:
    path, block = small_disk / "bus.db", b"x" * 1_000
    async with opened(path) as (store, _):
        assert await accepted(store, *(message(n, payload=block) for n in range(1, 501)))
        for n in range(1, 501):
            store.settle("bob", n, None)
    fill(small_disk, but=300_000)
    sequence = 500
    async with opened(path) as (store, _):
        # Several times what the log has space for. A refused message finds room when its sender repeats it.
        for _ in range(120):
            sequence += 1
            if not await accepted(store, message(sequence, payload=block)):
                await flushed(store)
                sequence += 1
                assert await accepted(store, message(sequence, payload=block))
            store.settle("bob", sequence, None)
        await flushed(store)
    assert (await content(path)).messages == []


LOCK_HOLDER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("released", flush=True)
"""


async def test_accept_waits_for_another_program_that_has_the_file_locked(path: Path) -> None:
    async with opened(path, busy_timeout=60.0) as (store, _):
        with python(LOCK_HOLDER, path) as other:
            assert other.stdout
            assert other.stdout.readline() == "locked\n"
            store.accept(message(1))
            other.communicate("go\n")
            assert await store.next_commit() == Commit(1)
    assert (await content(path)).messages == [message(1)]


async def test_accept_fails_when_another_program_keeps_the_file_locked(path: Path) -> None:
    async with opened(path, busy_timeout=0.01) as (store, _):
        with python(LOCK_HOLDER, path) as other:
            assert other.stdout
            assert other.stdout.readline() == "locked\n"
            store.put_agent(agent())
            assert not await accepted(store, message(1))
            other.communicate("go\n")
        await flushed(store)
        assert await accepted(store, message(2))
    stored = await content(path)
    assert stored.agents == [replace(agent(), next_sequence=3)]
    assert stored.messages == [message(2)]


async def test_store_that_has_failed_answers_everybody(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SqliteStore(path)
    await store.open()
    assert await accepted(store, message(1))
    waiting = asyncio.create_task(store.next_commit())
    # Numbers are not used twice: a mistake of the platform that no second try mends.
    store.accept(message(1, payload=b"another"))
    failed = await waiting
    assert failed.error
    assert failed.final
    with pytest.raises(StoreUnavailable):
        await store.next_commit()
    with pytest.raises(StoreUnavailable):
        await store.flush()

    store.settle("bob", 1, None)
    assert store.accept(message(2)) == 3
    found = await store.next_commit()
    assert found.through == 3
    assert found.error
    assert found.final
    await store.close()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert await content(path) == StoredPlatform(clean=False, messages=[message(1)])


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("end", ["", "-wal", ".lock"], ids=["database", "log", "lock"])
async def test_nothing_is_accepted_once_a_file_is_not_the_one_that_the_next_start_finds(
    path: Path, end: str, how: str
) -> None:
    """Otherwise everything that is accepted from then on is gone with the process."""
    store = SqliteStore(path)
    await store.open()
    assert await accepted(store, message(1))
    meant = Path(f"{path}{end}")
    if how == "replaced":
        other = path.with_name("other")
        shutil.copyfile(meant, other)
        other.replace(meant)
    else:
        meant.unlink()
    store.accept(message(2))
    refused = await store.next_commit()
    assert refused.final
    assert f"{meant}: was {how}" in refused.error
    with pytest.raises(StoreUnavailable, match=how):
        await store.flush()
    await store.close()


# ---- opening and closing


async def test_close_writes_what_is_left_and_is_idempotent(path: Path) -> None:
    store = SqliteStore(path)
    await store.close()
    await store.open()
    store.put_agent(agent())
    store.accept(message(1))
    waiting = asyncio.create_task(store.next_commit())
    await asyncio.gather(store.close(), store.close())
    await store.close()
    assert await waiting == Commit(1)
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.next_commit()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.flush()
    assert store.accept(message(2)) == 2
    assert "closed" in (await store.next_commit()).error
    with pytest.raises(StoreUnavailable, match="opened before"):
        await store.open()
    assert (await content(path)).messages == [message(1)]


async def test_waiter_is_let_go_by_close(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    waiting = asyncio.create_task(store.next_commit())
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await waiting


async def test_cancelled_open_releases_the_file(path: Path) -> None:
    store = SqliteStore(path)
    opening = asyncio.create_task(store.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await store.close()
    assert (await content(path)).messages == []


async def test_second_bus_on_the_same_file_is_refused(path: Path, tmp_path: Path) -> None:
    async with opened(path) as (store, _):
        other_name = tmp_path / "other.db"
        other_name.symlink_to(path)
        for name in (path, other_name):
            with pytest.raises(ConfigurationError, match=rf"another bus has it open \(process {os.getpid()}\)"):
                await SqliteStore(name).open()
        assert await accepted(store, message(1))
    assert (await content(other_name)).messages == [message(1)]


FORK = """
import asyncio, os, sys
from gagent_grpc.storage.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        try:
            await SqliteStore(sys.argv[1]).open()
        except Exception as refused:
            print(type(refused).__name__)
        await store.close()
        store = SqliteStore(sys.argv[1])
        await store.open()
        print("opened again")
        await store.close()
    finally:
        os.close(write)
        os.waitpid(child, 0)

asyncio.run(main())
"""


async def test_forked_child_neither_keeps_the_lock_nor_lets_it_go(path: Path) -> None:
    with python(FORK, path) as process:
        out, _ = process.communicate()
    assert out.split("\n") == ["ConfigurationError", "opened again", ""]


async def test_file_that_is_not_sqlite_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"# notes\n" * 1_000)
    with pytest.raises(ConfigurationError, match=rf"{path}: is not an SQLite database; expected"):
        await SqliteStore(path).open()
    assert path.read_bytes() == b"# notes\n" * 1_000
    with pytest.raises(ConfigurationError, match="is not a file"):
        await SqliteStore(path.parent).open()


@pytest.mark.parametrize("application", [0, 0x12345678])
async def test_database_of_another_program_is_refused_and_left_alone(path: Path, application: int) -> None:
    path.parent.mkdir()
    other = apsw.Connection(str(path))
    other.pragma("application_id", application)
    other.execute("CREATE TABLE agents (name)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=rf"{path}: .*another program \(application_id {application:#x}\)"):
        await SqliteStore(path).open()
    assert path.read_bytes() == before


async def test_database_of_newer_version_is_refused(path: Path) -> None:
    await content(path)
    other = apsw.Connection(str(path))
    other.pragma("user_version", 7)
    other.close()
    with pytest.raises(ConfigurationError, match=rf"{path}: .*newer gagent-grpc \(schema 7\)"):
        await SqliteStore(path).open()


async def test_empty_file_becomes_a_database(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert await content(path) == StoredPlatform()


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
async def test_log_without_its_database_is_refused_and_left_alone(path: Path, tmp_path: Path, left: str) -> None:
    """SQLite would begin a new database, and remove the log with all the mail in it."""
    lost = tmp_path / "lost.db"
    async with opened(path) as (store, _):
        assert await accepted(store, message(1))
        shutil.copy(path, tmp_path / "found.db")
        shutil.copy(f"{path}-wal", f"{lost}-wal")
    if left == "an empty file":
        lost.touch()
    with pytest.raises(
        StoreUnavailable, match=rf"{lost}: is missing or empty, but its log {lost}-wal holds [\d,]+ bytes"
    ):
        await SqliteStore(lost).open()
    assert lost.exists() == (left == "an empty file")
    shutil.copy(tmp_path / "found.db", lost)
    assert (await content(lost)).messages == [message(1)]


async def test_log_that_holds_nothing_is_no_reason_to_refuse(path: Path) -> None:
    path.parent.mkdir()
    Path(f"{path}-wal").touch()
    assert await content(path) == StoredPlatform()


async def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=rf"{tmp_path}/file/bus.db: cannot be opened"):
        await SqliteStore(tmp_path / "file" / "bus.db").open()


READ_ONLY = """
import asyncio, os, sys
from gagent_grpc.storage.sqlite import SqliteStore
if not os.geteuid():
    os.setegid(65534)
    os.seteuid(65534)
try:
    asyncio.run(SqliteStore(sys.argv[1]).open())
except Exception as refused:
    print(type(refused).__name__, refused)
"""


async def test_database_that_cannot_be_written_is_refused() -> None:
    # Not below tmp_path, which another user cannot enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bus.db")
        await content(path)
        path.chmod(0o444)
        Path(folder, "bus.db.lock").chmod(0o666)
        Path(folder).chmod(0o777)
        with python(READ_ONLY, path) as process:
            out, _ = process.communicate()
    assert out.startswith(f"StoreUnavailable {path}: cannot be")


# ---- crashes and damage

SENDER = """
import asyncio, sys
from gagent_grpc.bus.ports import StoredMessage
from gagent_grpc.storage.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    stored = await store.open()
    n = first = max((message.sequence for message in stored.messages), default=0)
    through = 0
    while True:
        while n - first < through + 64:
            n += 1
            store.accept(StoredMessage("bob", n, "alice@local", f"m-{n}", "", b"d", "", 1.0, 0, b"%d" % n * 20))
        commit = await store.next_commit()
        assert not commit.error, commit
        through = commit.through
        print(first + through, flush=True)

asyncio.run(main())
"""


async def test_kill_loses_no_message_whose_commit_was_reported(path: Path) -> None:
    reported = 0
    for cycle in range(5):
        with python(SENDER, path) as sender:
            assert sender.stdout
            # Killed at no particular point: after a commit, and during whatever follows it.
            for _ in range(10 + 7 * cycle):
                reported = int(sender.stdout.readline())
            sender.send_signal(signal.SIGKILL)
            rest = sender.stdout.read().split("\n")
            reported = max([reported, *(int(line) for line in rest[:-1] if line)])
        store = SqliteStore(path)
        stored = await store.open()
        await store.close(clean=False)
        assert not stored.clean
        sequences = [found.sequence for found in stored.messages]
        assert sequences == list(range(1, len(sequences) + 1))
        assert len(sequences) >= reported
        assert all(found.payload == b"%d" % found.sequence * 20 for found in stored.messages)


async def filled(path: Path, count: int = 300) -> list[StoredMessage]:
    """Make a database with mail, without a clean stop's checkpoint of the log."""
    messages = [message(n, payload=b"%d " % n * 50) for n in range(1, count + 1)]
    async with opened(path) as (store, _):
        store.put_agent(agent())
        store.put_description(entry(DFAgentDescription(name="bob"), 1.0))
        assert await accepted(store, *messages)
    return messages


async def test_flipped_byte_never_serves_garbage(path: Path, tmp_path: Path) -> None:
    messages = await filled(path)
    whole = path.read_bytes()
    picked = random.Random(7)
    refused = 0
    damaged = tmp_path / "damaged.db"
    for position in [*picked.sample(range(100), 10), *picked.sample(range(100, len(whole)), 60)]:
        content_ = bytearray(whole)
        content_[position] ^= 1 << picked.randrange(8)
        damaged.write_bytes(content_)
        for name in ("-wal", "-shm"):
            Path(f"{damaged}{name}").unlink(missing_ok=True)
        try:
            stored = await content(damaged)
        except (StoreUnavailable, ConfigurationError):
            refused += 1
        else:
            assert stored.messages == messages
            assert stored.agents == [replace(agent(), next_sequence=301)]
    assert refused > 20


async def test_flipped_byte_in_a_payload_is_found(path: Path) -> None:
    await filled(path)
    whole = path.read_bytes()
    place = whole.index(b"150 150 150")
    path.write_bytes(whole[:place] + b"2" + whole[place + 1 :])
    with pytest.raises(StoreUnavailable, match=r"damaged \(message 150 of 'bob' .*Put back a copy"):
        await SqliteStore(path).open()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
async def test_truncated_database_is_refused(path: Path, part: float) -> None:
    await filled(path)
    os.truncate(path, int(path.stat().st_size * part))
    with pytest.raises(StoreUnavailable, match=rf"{path}: the database is damaged"):
        await SqliteStore(path).open()


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.99])
async def test_truncated_log_leaves_the_messages_before_the_cut(path: Path, tmp_path: Path, part: float) -> None:
    cut = tmp_path / "cut.db"
    async with opened(path) as (store, _):
        for n in range(1, 51):
            assert await accepted(store, message(n))
        # As a crash would leave it: everything is in the log.
        shutil.copy(path, cut)
        shutil.copy(f"{path}-wal", f"{cut}-wal")
    os.truncate(f"{cut}-wal", int(Path(f"{cut}-wal").stat().st_size * part))
    stored = await content(cut)
    assert stored.messages == [message(n) for n in range(1, len(stored.messages) + 1)]
    assert (len(stored.messages) == 0) == (part == 0.0)
    assert len(stored.messages) < 50


async def test_what_is_written_together_is_one_group(tmp_path: Path) -> None:
    """Without the block the writer thread may take its group between two writes, and a crash leaves the first alone."""
    async with opened(tmp_path / "bus.db") as (store, _):
        before = store.commits
        with store.together():
            store.put_agent(agent())
            # The writer thread has all the time that it needs to take what is there.
            await asyncio.sleep(0.2)
            with store.together():
                store.accept(message(1))
            assert store.commits == before
        await flushed(store)
        assert store.commits == before + 1
