"""The database file of the SQLite store: its lock, its schema, and the statements that read and change it.

Owns: everything that is SQL or that SQLite has to be told. All of it blocks, and belongs to the one thread that opened
the file. Leaves to others: that thread, grouping, and what happens when a group cannot be written (`storage.sqlite`);
what stands in a row (`storage.sqlite_rows`).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import ClassVar, Literal

import apsw

from gagent_grpc.bus.ports import StoredContext, StoredMessage, StoredPlatform, StoredTask
from gagent_grpc.errors import BusError, ConfigurationError, StoreUnavailable
from gagent_grpc.storage import sqlite_rows
from gagent_grpc.storage.sqlite_names import FileNames
from gagent_grpc.storage.sqlite_rows import Operation, Row, Value

APPLICATION_ID = 0x67416742
"""`application_id` of the file, "gAgB": tells a bus's database from those of other programs."""
SCHEMA_VERSION = 4
"""`user_version` of the file; a bus reads files up to its own."""

_MAGIC = b"SQLite format 3\x00"
_MAX_ROWS = 256
"""Rows of one statement at most; 13 values each stay far below SQLite's bound of 32,766."""
_MOST_PAGES = 0xFFFFFFFE
"""SQLite's own bound of a file, in pages."""
_WAL_PAGES = 1_000
"""Pages in the log after which they are moved into the database."""
_SPACE_LEFT_SHARE = 16
"""Part of a disk, of a small one, that is left for removing what is stored."""
_MOST_SPACE_LEFT = 16 * 1024 * 1024
"""What is left on any other, in bytes."""
_WAL_BYTES = 64 * 1024 * 1024
"""Size to which the log's file is cut back after a peak."""

PASSING_ERRORS = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.FullError,
    apsw.InterruptError,
    apsw.IOError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)
"""What may pass: the disk gets space, a lock is let go, the file system is mounted for writing again. Any other error is
a damaged file or a mistake in this program, and trying again would not help."""

# Messages are kept in the order of acceptance and not by mailbox: a group for a hundred mailboxes then fills a few pages
# at the end instead of changing a hundred all over the file. The narrow index finds what is settled. Checksums are ours,
# since SQLite keeps none; a forgotten key costs no more than an unrecognised repetition, so keys have none.
_SCHEMA = """
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
    attempt INTEGER NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL, redriven INTEGER NOT NULL DEFAULT 0,
    UNIQUE (receiver, sequence)
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
# AUTOINCREMENT remembers the highest number also when its letter is gone: people may have noted it.
_DEAD_LETTERS = """
CREATE TABLE dead_letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT, receiver TEXT NOT NULL, sequence INTEGER NOT NULL, sender TEXT NOT NULL,
    message_id TEXT NOT NULL, via TEXT NOT NULL, accepted_at REAL NOT NULL, attempt INTEGER NOT NULL,
    reason INTEGER NOT NULL, error TEXT NOT NULL, died_at REAL NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL
) STRICT;
"""
_TOPICS = """
CREATE TABLE topics (name TEXT PRIMARY KEY, body TEXT NOT NULL, checksum INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""
_SUBSCRIPTIONS = """
CREATE TABLE subscriptions (
    name TEXT NOT NULL, conversation TEXT NOT NULL, body TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (name, conversation)
) STRICT, WITHOUT ROWID;
"""
# In parts, so that a report of progress does not write again what was delegated, which may be a megabyte.
_TASKS = """
CREATE TABLE task_parts (
    number INTEGER NOT NULL, part TEXT NOT NULL, body TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (number, part)
) STRICT;
CREATE TABLE task_events (
    number INTEGER NOT NULL, sequence INTEGER NOT NULL, body TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (number, sequence)
) STRICT;
"""
# A removed entry stays as a row without a value, for those who come back to watch. The highest revision of what has ended is
# in `meta`, since no later context may use it again.
_CONTEXTS = """
CREATE TABLE contexts (number INTEGER PRIMARY KEY, body TEXT NOT NULL, checksum INTEGER NOT NULL) STRICT;
CREATE TABLE context_entries (
    number INTEGER NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL, author TEXT NOT NULL, at REAL NOT NULL,
    value TEXT NOT NULL, removed INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (number, key)
) STRICT;
INSERT INTO meta VALUES ('context_revision', 0);
"""
_MIGRATIONS = {
    1: "ALTER TABLE messages ADD COLUMN redriven INTEGER NOT NULL DEFAULT 0;" + _DEAD_LETTERS,
    2: _TOPICS + _TASKS,
    3: _SUBSCRIPTIONS + _CONTEXTS,
}
"""What makes of a file of each older schema one of the next."""

_SELECT_MESSAGES = """
    SELECT receiver, sequence, sender, message_id, key, digest, via, accepted_at, attempt, payload, redriven, checksum
    FROM messages
"""
_SELECT_AGENTS = """
    SELECT name, principal, ownership, state, resume_to, ephemeral, generation, attached, next_sequence,
        resume_digest, registered_at, checksum
    FROM agents ORDER BY registered_at, number
"""
_SELECT_KEYS = "SELECT sender, key, receiver, digest, settled_at FROM settled_keys"
_SELECT_DESCRIPTIONS = """
    SELECT name, registered_at, lease_end, body, checksum FROM descriptions ORDER BY registered_at, number
"""
_SELECT_TOPICS = "SELECT name, body, checksum FROM topics"
_SELECT_SUBSCRIPTIONS = "SELECT name, conversation, body, checksum FROM subscriptions"
_SELECT_DEAD_LETTERS = """
    SELECT number, receiver, sequence, sender, message_id, via, accepted_at, attempt, reason, error, died_at, payload,
        checksum
    FROM dead_letters ORDER BY number
"""
_SELECT_TASK_PARTS = "SELECT number, part, body, checksum FROM task_parts ORDER BY number"
_SELECT_TASK_EVENTS = "SELECT number, sequence, body, checksum FROM task_events ORDER BY number, sequence"
_SELECT_CONTEXTS = "SELECT number, body, checksum FROM contexts ORDER BY number"
_SELECT_CONTEXT_ENTRIES = """
    SELECT number, key, revision, author, at, value, removed, checksum FROM context_entries ORDER BY number, revision
"""
_SELECT_LAST_DEAD_LETTER = "SELECT seq FROM sqlite_sequence WHERE name = 'dead_letters'"

# Statements over many rows: `{rows}` becomes as many `(?, ?)` as there are rows.
_INSERT_MESSAGES = """
    INSERT INTO messages (
        receiver, sequence, sender, message_id, key, digest, via, accepted_at, attempt, payload, redriven, checksum
    ) VALUES {rows}
"""
_DELETE_MESSAGES = "DELETE FROM messages WHERE (receiver, sequence) IN (VALUES {rows})"
_UPDATE_ATTEMPTS = """
    WITH given (receiver, sequence, attempt) AS (VALUES {rows})
    UPDATE messages SET attempt = max(messages.attempt, given.attempt) FROM given
    WHERE messages.receiver = given.receiver AND messages.sequence = given.sequence
"""
# Joined with the message: of one whose accept failed, no key may stay that would make its repetition a duplicate.
_INSERT_KEYS = """
    WITH given (mailbox, sequence, sender, key, receiver, digest, settled_at) AS (VALUES {rows})
    INSERT INTO settled_keys (sender, key, receiver, digest, settled_at)
    SELECT given.sender, given.key, given.receiver, given.digest, given.settled_at
    FROM given CROSS JOIN messages ON messages.receiver = given.mailbox AND messages.sequence = given.sequence
    WHERE true
    ON CONFLICT DO UPDATE SET digest = excluded.digest, settled_at = excluded.settled_at
"""
_INSERT_DEAD_LETTERS = """
    INSERT INTO dead_letters (
        number, receiver, sequence, sender, message_id, via, accepted_at, attempt, reason, error, died_at, payload,
        checksum
    ) VALUES {rows}
"""
_DELETE_DEAD_LETTERS = "DELETE FROM dead_letters WHERE number IN (VALUES {rows})"

# Statements over one row each, run one after the other.
_STATEMENTS: dict[str, tuple[str, ...]] = {
    # An upsert and not a replacement: the row keeps its number, by which equal times of registration are ordered.
    sqlite_rows.PUT_AGENT: (
        """
        INSERT INTO agents (
            name, principal, ownership, state, resume_to, ephemeral, generation, attached, next_sequence,
            resume_digest, registered_at, checksum
        ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (name) DO UPDATE SET principal = excluded.principal, ownership = excluded.ownership,
            state = excluded.state, resume_to = excluded.resume_to, ephemeral = excluded.ephemeral,
            generation = excluded.generation, attached = excluded.attached, next_sequence = excluded.next_sequence,
            resume_digest = excluded.resume_digest, registered_at = excluded.registered_at, checksum = excluded.checksum
        """,
    ),
    sqlite_rows.REMOVE_AGENT: (
        "DELETE FROM messages WHERE receiver = ?",
        "DELETE FROM descriptions WHERE name = ?",
        "DELETE FROM topics WHERE name = ?",
        "DELETE FROM subscriptions WHERE name = ?",
        "DELETE FROM agents WHERE name = ?",
    ),
    sqlite_rows.PUT_DESCRIPTION: (
        """
        INSERT INTO descriptions (name, registered_at, lease_end, body, checksum) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT (name) DO UPDATE SET registered_at = excluded.registered_at, lease_end = excluded.lease_end,
            body = excluded.body, checksum = excluded.checksum
        """,
    ),
    sqlite_rows.REMOVE_DESCRIPTION: ("DELETE FROM descriptions WHERE name = ?",),
    sqlite_rows.PUT_TOPICS: (
        """
        INSERT INTO topics (name, body, checksum) VALUES (?, ?, ?)
        ON CONFLICT (name) DO UPDATE SET body = excluded.body, checksum = excluded.checksum
        """,
    ),
    sqlite_rows.REMOVE_TOPICS: ("DELETE FROM topics WHERE name = ?",),
    sqlite_rows.PUT_SUBSCRIPTION: (
        """
        INSERT INTO subscriptions (name, conversation, body, checksum) VALUES (?, ?, ?, ?)
        ON CONFLICT (name, conversation) DO UPDATE SET body = excluded.body, checksum = excluded.checksum
        """,
    ),
    sqlite_rows.REMOVE_SUBSCRIPTION: ("DELETE FROM subscriptions WHERE name = ? AND conversation = ?",),
    sqlite_rows.PUT_TASK: (
        """
        INSERT INTO task_parts (number, part, body, checksum) VALUES (?, ?, ?, ?)
        ON CONFLICT (number, part) DO UPDATE SET body = excluded.body, checksum = excluded.checksum
        """,
    ),
    sqlite_rows.ADD_TASK_EVENT: (
        """
        INSERT INTO task_events (number, sequence, body, checksum) VALUES (?, ?, ?, ?)
        ON CONFLICT (number, sequence) DO UPDATE SET body = excluded.body, checksum = excluded.checksum
        """,
    ),
    sqlite_rows.TRIM_TASK_EVENTS: ("DELETE FROM task_events WHERE number = ? AND sequence < ?",),
    sqlite_rows.REMOVE_TASK: ("DELETE FROM task_events WHERE number = ?", "DELETE FROM task_parts WHERE number = ?"),
    sqlite_rows.PUT_CONTEXT: (
        """
        INSERT INTO contexts (number, body, checksum) VALUES (?, ?, ?)
        ON CONFLICT (number) DO UPDATE SET body = excluded.body, checksum = excluded.checksum
        """,
    ),
    sqlite_rows.PUT_CONTEXT_ENTRY: (
        """
        INSERT INTO context_entries (number, key, revision, author, at, value, removed, checksum)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (number, key) DO UPDATE SET revision = excluded.revision, author = excluded.author, at = excluded.at,
            value = excluded.value, removed = excluded.removed, checksum = excluded.checksum
        """,
    ),
    sqlite_rows.DROP_CONTEXT_ENTRY: ("DELETE FROM context_entries WHERE number = ? AND key = ?",),
    sqlite_rows.REMOVE_CONTEXT: (
        "DELETE FROM context_entries WHERE number = ?",
        "DELETE FROM contexts WHERE number = ?",
    ),
    sqlite_rows.USE_REVISION: ("UPDATE meta SET value = max(value, ?) WHERE name = 'context_revision'",),
    sqlite_rows.PRUNE_KEYS: (
        """
        DELETE FROM settled_keys WHERE settled_at < ?1 OR (sender, key, receiver) IN (
            SELECT sender, key, receiver FROM settled_keys ORDER BY settled_at DESC LIMIT -1 OFFSET ?2
        )
        """,
    ),
}


class SqliteFile:
    """One open database, and the right to be its only bus."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Literal["FULL", "NORMAL"],
        busy_timeout: float,
        max_bytes: int | None,
    ) -> None:
        """Open the file, make it when it is absent, and check that it is whole; arguments as for `SqliteStore`.

        The check reads the whole file after a clean stop, too: loading reads nearly all of it anyway, and damage that is
        found now serves no garbage later.

        Raises:
            ConfigurationError: The file belongs to another program or to a newer version, or another bus has it open.
            StoreUnavailable: It cannot be read or written, or it is damaged.
        """
        self.path = path
        with contextlib.ExitStack() as resources, self._translated():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            resources.callback(_FileLock(path).release)
            _check_magic(path)
            _check_log(path)
            # Made here and not by SQLite, because messages are private; SQLite gives the files beside it the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            resources.callback(self._connection.close)
            self._connection.set_busy_timeout(int(busy_timeout * 1000))
            self._prepare(synchronous)
            page_size = self._connection.pragma("page_size")
            self._max_pages = _MOST_PAGES if max_bytes is None else max(1, max_bytes // page_size)
            self._connection.pragma("max_page_count", self._max_pages)
            self._page_limit = self._max_pages
            # Also the lock: with another one in its place, a second bus could open the database.
            self._names = FileNames(Path(f"{path}{end}") for end in ("", "-wal", ".lock"))
            self._names.check()
            # Kept for `close`: what was opened last is closed first, so the lock outlives the connection.
            self._resources = resources.pop_all()

    def load(self) -> StoredPlatform:
        """Return what the file holds, after noting durably that a stop from now on is unclean until `mark_clean`.

        Raises:
            StoreUnavailable: It cannot be read or written, or it is damaged.
        """
        select = self._connection.execute
        with self._translated():
            ((clean,),) = select("SELECT value FROM meta WHERE name = 'clean'")
            stored = StoredPlatform(clean=clean == 1)
            stored.messages = _by_receiver(map(sqlite_rows.message_of, select(_SELECT_MESSAGES)))
            stored.agents = [sqlite_rows.agent_of(row) for row in select(_SELECT_AGENTS)]
            # Sorted here, which takes half as long as along the index.
            stored.keys = sorted(select(_SELECT_KEYS), key=itemgetter(4))
            stored.dead_letters = [sqlite_rows.dead_letter_of(row) for row in select(_SELECT_DEAD_LETTERS)]
            for (last,) in select(_SELECT_LAST_DEAD_LETTER):
                stored.next_dead_letter = last + 1
            stored.topics = dict(sqlite_rows.topics_of(row) for row in select(_SELECT_TOPICS))
            stored.subscriptions = [sqlite_rows.subscription_of(row) for row in select(_SELECT_SUBSCRIPTIONS)]
            stored.descriptions = [sqlite_rows.description_of(row) for row in select(_SELECT_DESCRIPTIONS)]
            stored.tasks = self._load_tasks()
            stored.contexts = self._load_contexts()
            ((stored.context_revision,),) = select("SELECT value FROM meta WHERE name = 'context_revision'")
            with self._transaction():
                self._connection.execute("UPDATE meta SET value = 0 WHERE name = 'clean'")
        last = {message.receiver: message.sequence for message in stored.messages}
        for agent in stored.agents:
            agent.next_sequence = max(agent.next_sequence, last.get(agent.name, 0) + 1)
        return stored

    def _load_tasks(self) -> list[StoredTask]:
        tasks: dict[int, StoredTask] = {}
        for number, part, body in map(sqlite_rows.task_part_of, self._connection.execute(_SELECT_TASK_PARTS)):
            tasks.setdefault(number, StoredTask(number)).parts[part] = body
        for number, sequence, body in map(sqlite_rows.task_event_of, self._connection.execute(_SELECT_TASK_EVENTS)):
            tasks.setdefault(number, StoredTask(number)).events.append((sequence, body))
        return [tasks[number] for number in sorted(tasks)]

    def _load_contexts(self) -> list[StoredContext]:
        contexts = {
            number: StoredContext(number, body)
            for number, body in map(sqlite_rows.context_of, self._connection.execute(_SELECT_CONTEXTS))
        }
        for number, entry in map(sqlite_rows.context_entry_of, self._connection.execute(_SELECT_CONTEXT_ENTRIES)):
            if number not in contexts:
                raise ValueError(f"entry {entry.key!r} is of shared context {number}, which is not there")
            contexts[number].entries.append(entry)
        return list(contexts.values())

    def write(self, operations: Sequence[Operation], *, bounded: bool = True) -> None:
        """Write ``operations`` in one transaction, durably: all of them, or none when it raises.

        Without ``bounded`` the file may grow over `max_bytes`, and into the space that is left on the disk for it. That is
        for what must be written in the end, and what makes room: a settle removes a message, but before that it needs a
        place for the key.

        The effect is that of one by one in order. Accepts, attempts, settles and dead letters are gathered over the whole
        group and each kind is written in a few statements: every statement lets go the interpreter's lock and has to win
        it back from the event loop, which costs up to 5 ms each time while that one computes. Only two other operations
        touch the same tables, and what was gathered is written before them. Among the gathered, nothing is added again
        after it was removed, since sequences, and numbers of dead letters, are not reused.

        Raises:
            apsw.Error: One of `PASSING_ERRORS` when a later try may succeed.
            StoreUnavailable: The file under the name of the database is not the one that is open any more.
        """
        accepts: list[Row] = []
        attempts: dict[tuple[Value, Value], Row] = {}
        settles: list[Row] = []
        buried: list[Row] = []
        exhumed: list[Row] = []

        def write_gathered() -> None:
            self._write_rows(_INSERT_MESSAGES, accepts)
            self._write_rows(_UPDATE_ATTEMPTS, list(attempts.values()))
            self._write_rows(_INSERT_KEYS, [row for row in settles if len(row) > 2])
            self._write_rows(_DELETE_MESSAGES, [row[:2] for row in settles])
            self._write_rows(_INSERT_DEAD_LETTERS, buried)
            self._write_rows(_DELETE_DEAD_LETTERS, exhumed)
            for gathered in (accepts, attempts, settles, buried, exhumed):
                gathered.clear()

        self._names.check()
        if bounded:
            self._leave_space(operations)
        limit = self._max_pages if bounded else _MOST_PAGES
        if limit != self._page_limit:
            self._connection.pragma("max_page_count", limit)
            self._page_limit = limit
        with self._transaction():
            for kind, row in operations:
                if kind == sqlite_rows.ACCEPT:
                    accepts.append(row)
                elif kind == sqlite_rows.SETTLE:
                    settles.append(row)
                elif kind == sqlite_rows.ATTEMPT:
                    # The last one of a message, which is the highest: joined with two, either might win.
                    attempts[row[0], row[1]] = row
                elif kind == sqlite_rows.BURY:
                    buried.append(row)
                elif kind == sqlite_rows.EXHUME:
                    exhumed.append(row)
                else:
                    if kind in {sqlite_rows.REMOVE_AGENT, sqlite_rows.PRUNE_KEYS}:
                        write_gathered()
                    for statement in _STATEMENTS[kind]:
                        self._connection.execute(statement, row)
            write_gathered()
        # Once more: nobody is told of what the next start would not find.
        self._names.check()

    def _leave_space(self, operations: Sequence[Operation]) -> None:
        """Make sure that the disk takes new messages and still has space for removing what is stored.

        Dead letters beside them count, too, but by themselves are never refused: they must be written in the end.

        A disk that is full of mail alone would stay so: a settle is written to the log first, and what is in the log needs
        its place in the database before the log's room is used again.

        Raises:
            apsw.FullError: It has not.
        """
        if not sqlite_rows.count_accepts(operations):
            return
        size = sqlite_rows.payload_bytes(operations)
        free, total = self._disk()
        left = min(_MOST_SPACE_LEFT, total // _SPACE_LEFT_SHARE)
        # Twice: once in the log, and once in the database.
        if free >= left + 2 * size + self._log_bytes():
            return
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        free, _ = self._disk()
        unused = self._connection.pragma("freelist_count") * self._connection.pragma("page_size")
        half = left // 2 + size
        if free < half + max(0, half - unused):
            raise apsw.FullError(f"the disk has {free:,} bytes left; {left:,} are kept for removing what is stored")

    def _disk(self) -> tuple[int, int]:
        """Return the free bytes of the disk, and all of them."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self) -> None:
        """Move the log into the database as far as possible, so that the log's room is used again; never raises."""
        with contextlib.suppress(apsw.Error):
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def mark_clean(self) -> None:
        """Note that everything is written; the next `load` says so.

        Raises:
            apsw.Error: It cannot be noted; the next start then counts as one after a crash.
        """
        with self._transaction():
            self._connection.execute("UPDATE meta SET value = 1 WHERE name = 'clean'")
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def close(self) -> None:
        """Close the file and let go its lock. Idempotent."""
        self._resources.close()

    def _prepare(self, synchronous: str) -> None:
        """Make sure that the file is ours and whole, and has the schema of this version."""
        connection = self._connection
        application = connection.pragma("application_id")
        version = connection.pragma("user_version")
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_schema")
        empty = not tables and not application
        # Nothing is changed in the file before this is known.
        if application != APPLICATION_ID and not empty:
            raise ConfigurationError(
                f"{self.path}: is an SQLite database of another program (application_id {application:#x}); "
                f"expected one of gagent-grpc ({APPLICATION_ID:#x}) or a new path"
            )
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"{self.path}: is a database of a newer gagent-grpc (schema {version}); expected schema "
                f"{SCHEMA_VERSION} at most: upgrade gagent-grpc, or take a new path"
            )
        # A new file gets its log through a rollback journal. EXTRA syncs the removal of that one, too: coming back after a
        # power cut it would undo everything.
        connection.pragma("synchronous", "EXTRA")
        if connection.pragma("journal_mode", "wal") != "wal":
            raise StoreUnavailable(f"{self.path}: no write-ahead log is possible here; expected a local file system")
        connection.pragma("synchronous", synchronous)
        connection.pragma("wal_autocheckpoint", _WAL_PAGES)
        connection.pragma("journal_size_limit", _WAL_BYTES)
        if empty:
            # The identity in the same transaction, so that a crash leaves an empty file or a whole one.
            with self._transaction():
                connection.execute(_SCHEMA + _DEAD_LETTERS + _TOPICS + _TASKS + _SUBSCRIPTIONS + _CONTEXTS)
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", SCHEMA_VERSION)
        if (found := connection.pragma("quick_check", 1)) != "ok":
            raise self._damaged(str(found))
        if not empty and version < SCHEMA_VERSION:
            self._migrate(version)

    def _migrate(self, version: int) -> None:
        """Bring a file of an older schema up to this one, in one transaction: a crash leaves the old file or the new one."""
        with self._transaction():
            for older in range(version, SCHEMA_VERSION):
                self._connection.execute(_MIGRATIONS[older])
            self._connection.pragma("user_version", SCHEMA_VERSION)

    def _write_rows(self, template: str, rows: Sequence[Row]) -> None:
        """Run a statement over many rows, in pieces of powers of two: so few texts that SQLite keeps them prepared."""
        done = 0
        while done < len(rows):
            size = min(_MAX_ROWS, 1 << ((len(rows) - done).bit_length() - 1))
            part = rows[done : done + size]
            statement = _statement(template, size, len(part[0]))
            self._connection.execute(statement, [value for row in part for value in row])
            done += size

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block does, durably; undo it when the block or the commit fails."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # After some errors SQLite has rolled back by itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn what opening and reading raise into the errors that the port names."""
        try:
            yield
        except (ConfigurationError, StoreUnavailable):
            raise
        except apsw.BusyError as exc:
            raise StoreUnavailable(f"{self.path}: another program has it locked; end that program") from exc
        except PASSING_ERRORS as exc:
            raise StoreUnavailable(f"{self.path}: cannot be read and written ({exc})") from exc
        except OSError as exc:
            raise StoreUnavailable(f"{self.path}: cannot be opened ({exc})") from exc
        # SQL that fails means another schema than the version says; the rest are values that do not add up.
        except (apsw.Error, BusError, ValueError, TypeError) as exc:
            raise self._damaged(str(exc)) from exc

    def _damaged(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path}: the database is damaged ({what}). Put back a copy of it, or move it and its -wal file away "
            f"and start with an empty one; `sqlite3 {self.path} .recover` shows what is still readable"
        )


@functools.cache
def _statement(template: str, rows: int, columns: int) -> str:
    row = "(" + ", ".join("?" * columns) + ")"
    return template.format(rows=", ".join([row] * rows))


def _check_magic(path: Path) -> None:
    """Make sure that a file that is there is SQLite's, before SQLite touches it.

    Raises:
        ConfigurationError: It is something else.
        OSError: It cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path}: is not a file; expected a database of gagent-grpc or a new path")
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except FileNotFoundError:
        return
    if start not in {b"", _MAGIC}:
        raise ConfigurationError(f"{path}: is not an SQLite database; expected a database of gagent-grpc or a new path")


def _check_log(path: Path) -> None:
    """Make sure that no log waits for a database that is not there: SQLite would make a new one and throw the log away.

    Raises:
        StoreUnavailable: It does.
    """
    log = Path(f"{path}-wal")
    written = log.stat().st_size if log.exists() else 0
    if written and not (path.exists() and path.stat().st_size):
        raise StoreUnavailable(
            f"{path}: is missing or empty, but its log {log} holds {written:,} bytes of it. Put the database back beside "
            f"the log, or move {log} away and start with an empty one"
        )


def _by_receiver(messages: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Return messages by receiver and sequence.

    Not by the statement, since SQLite would fetch message by message along its index; and receiver by receiver, since those of
    one are in order already, or nearly.
    """
    mailboxes: dict[str, list[StoredMessage]] = {}
    for message in messages:
        mailboxes.setdefault(message.receiver, []).append(message)
    ordered: list[StoredMessage] = []
    for receiver in sorted(mailboxes):
        ordered += sorted(mailboxes[receiver], key=attrgetter("sequence"))
    return ordered


class _FileLock:
    """The right to be the only bus on a database, as a kernel's lock on a file of its own, `PATH.lock`.

    SQLite's locks last for a transaction, so a second bus could come in between two. The kernel lets go this one with
    the process, so kill -9 leaves nothing to clean up. The file stays after the release: removing it would let one bus
    lock a new file of that name while another locks the removed one. Programs that this process starts do not inherit
    it, as all of Python's descriptors; a forked child would hold the lock on and closes its copy.
    """

    _held: ClassVar[set[int]] = set()

    def __init__(self, database: Path) -> None:
        """Take the lock.

        Raises:
            ConfigurationError: Another bus has it.
            OSError: The file cannot be made, or the file system knows no locks.
        """
        descriptor = os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if not isinstance(exc, BlockingIOError):
                raise
            raise ConfigurationError(
                f"{database}: another bus has it open (process {holder or 'unknown'}); end that one, or take another path"
            ) from exc
        self._descriptor = descriptor
        self._held.add(descriptor)
        # Only for people to read, so a full disk is no reason to stop here.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        self._held.discard(self._descriptor)
        os.close(self._descriptor)

    @classmethod
    def close_in_child(cls) -> None:
        # Closed and not unlocked, which would take the lock from the parent, too.
        for descriptor in cls._held:
            os.close(descriptor)
        cls._held.clear()


os.register_at_fork(after_in_child=_FileLock.close_in_child)
