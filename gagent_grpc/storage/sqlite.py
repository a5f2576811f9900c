"""The embedded store: one SQLite file, written by one thread that commits in groups.

    event loop ──operations──▶ list ──the whole list──▶ writer thread ──one transaction──▶ file
    next_commit, flush ◀──────────── call_soon_threadsafe ───┘

Owns: the writer thread, the grouping, and what becomes of a group that cannot be written. Leaves to others: the file
itself (`storage.sqlite_file`), the form of its rows (`storage.sqlite_rows`), and what they mean (`bus`).

A commit is a sync of the write-ahead log, so what `next_commit` reports survives kill -9 and a power cut. While one group
is written the next one gathers, so the number of syncs follows the disk and not the traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import apsw

from gagent_grpc.bus.ports import (
    Commit,
    StoredAgent,
    StoredDeadLetter,
    StoredDescription,
    StoredEntry,
    StoredKey,
    StoredMessage,
    StoredPlatform,
    StoredSubscription,
)
from gagent_grpc.errors import BusError, StoreUnavailable
from gagent_grpc.storage import sqlite_file, sqlite_rows
from gagent_grpc.storage.sqlite_file import SqliteFile
from gagent_grpc.storage.sqlite_rows import Operation

_log = logging.getLogger(__name__)

_RETRY_PAUSE = 0.25
"""Seconds after which kept operations are tried again when nothing else is written."""
_CLOSE_TRIES = 3
"""Failed writes after which a closing store gives up kept operations."""
_WARNING_INTERVAL = 10.0
"""Seconds at least between two warnings that the file cannot be written."""


class SqliteStore:
    """A `Store` in one SQLite file, with a sync before every commit that it reports.

    Made for one opening: after `close` another instance opens the file again. All methods belong to the event loop that
    called `open`. The file does not shrink; the room of settled messages is used again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_timeout: float = 5.0,
        max_bytes: int | None = None,
    ) -> None:
        """Make a store that is not open yet.

        Args:
            path: The database file; it and its folder are made when they are absent. Beside it are `-wal` and `-shm`,
                which belong to the data, and `.lock`.
            synchronous: FULL syncs every commit. NORMAL survives a crash of the process, but may lose the last commits
                in a power cut.
            busy_timeout: Seconds to wait for another program that has the file locked.
            max_bytes: Size of the database file at which accepts fail as on a full disk; None for no bound. What has to
                be written all the same may go a little over it.
        """
        # The real path, so that two names of one file have one lock.
        self._path = Path(os.path.realpath(path))
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._max_bytes = max_bytes
        self._commits = 0

        # Shared with the writer thread, under the condition's lock.
        self._wake = threading.Condition()
        self._pending: list[Operation] = []
        self._waiting = False
        self._stopping = False
        self._clean = False

        # The event loop's own. Positions count accepts, the other two numbers count operations of any kind.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._gathered: list[Operation] | None = None
        """Operations of a block that is open, which go to the writer thread together."""
        self._position = 0
        self._reported = 0
        self._written = 0
        self._durable = 0
        self._reports: deque[Commit] = deque()
        self._arrived = asyncio.Event()
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._failure = "the store is not open"
        self._ended = asyncio.Event()

    @property
    def durable(self) -> bool:
        """Always True: accepted messages survive a crash once their commit is reported."""
        return True

    @property
    def commits(self) -> int:
        """Groups written so far; accepts per group tell how well the grouping works."""
        return self._commits

    async def open(self) -> StoredPlatform:
        """Open the file for this process alone and return what it holds.

        The whole file is checked, whatever the last stop was like. When cancelled, the file is released.

        Raises:
            ConfigurationError: The file belongs to another program or to a newer version, or another bus has it open.
            StoreUnavailable: It cannot be read or written, or it is damaged.
        """
        if self._thread is not None:
            raise StoreUnavailable(f"{self._path}: this store was opened before; make another one")
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[StoredPlatform] = self._loop.create_future()
        # A daemon, since a bus that ends without close() must not hang: to the file that is a crash like any other.
        self._thread = threading.Thread(target=self._run, args=(opened,), name="gagent-store", daemon=True)
        self._thread.start()
        try:
            return await opened
        except asyncio.CancelledError:
            self._stop(clean=False)
            raise

    def accept(self, message: StoredMessage) -> int:
        """Store a message; return the position that `next_commit` will cover.

        Raises:
            InvalidArgument: It holds a value that the file cannot take, here as in the other methods that write.
        """
        self._append(sqlite_rows.accept_operation(message))
        self._position += 1
        if self._failure:
            # Nothing takes it any more, and its sender has to hear that.
            self._report_accepts(self._position, self._failure, final=True)
        return self._position

    def settle(self, receiver: str, sequence: int, key: StoredKey | None) -> None:
        """Remove a message, and remember the key of it when there is one.

        Harmless for a message that is not there: then no key is remembered either.
        """
        self._append(sqlite_rows.settle_operation(receiver, sequence, key))

    def bury(self, letter: StoredDeadLetter) -> None:
        """Add a dead letter; its number was never used before."""
        self._append(sqlite_rows.bury_operation(letter))

    def exhume(self, numbers: Iterable[int]) -> None:
        """Remove dead letters; harmless for those that are not there."""
        for number in numbers:
            self._append(sqlite_rows.exhume_operation(number))

    def mark_attempts(self, receiver: str, attempts: Sequence[tuple[int, int]]) -> None:
        """Write (sequence, deliveries so far) of messages that were delivered and not settled; they never go down."""
        for sequence, attempt in attempts:
            self._append(sqlite_rows.attempt_operation(receiver, sequence, attempt))

    def put_agent(self, agent: StoredAgent) -> None:
        """Write an agent as it is now, new or changed."""
        self._append(sqlite_rows.put_agent_operation(agent))

    def remove_agent(self, name: str) -> None:
        """Remove an agent, its messages and the DF entry of exactly that name; keys of settled messages stay."""
        self._append(sqlite_rows.remove_agent_operation(name))

    def put_description(self, entry: StoredDescription) -> None:
        """Write a DF entry, new or changed.

        Raises:
            InvalidArgument: It has no name, or a value that could not be read back.
        """
        self._append(sqlite_rows.put_description_operation(entry))

    def put_topics(self, name: str, topics: Sequence[str]) -> None:
        """Write the subscriptions of an agent; none at all removes them."""
        self._append(sqlite_rows.put_topics_operation(name, topics))

    def remove_description(self, name: str) -> None:
        """Remove the DF entry of exactly that name."""
        self._append(sqlite_rows.remove_description_operation(name))

    def put_subscription(self, subscription: StoredSubscription) -> None:
        """Write a subscription with the DF in the place of the former one of the same agent and conversation."""
        self._append(sqlite_rows.put_subscription_operation(subscription))

    def remove_subscription(self, name: str, conversation: str) -> None:
        """Remove a subscription with the DF; harmless for one that is not there."""
        self._append(sqlite_rows.remove_subscription_operation(name, conversation))

    def put_task(self, number: int, part: str, body: str) -> None:
        """Write one part of a task in the place of the former one."""
        self._append(sqlite_rows.put_task_operation(number, part, body))

    def add_task_event(self, number: int, sequence: int, body: str) -> None:
        """Add an event of a task."""
        self._append(sqlite_rows.add_task_event_operation(number, sequence, body))

    def trim_task_events(self, number: int, before: int) -> None:
        """Forget the events of a task whose sequence is below ``before``."""
        self._append(sqlite_rows.trim_task_events_operation(number, before))

    def remove_task(self, number: int) -> None:
        """Remove a task with all its parts and events; harmless for one that is not there."""
        self._append(sqlite_rows.remove_task_operation(number))

    def put_context(self, number: int, body: str) -> None:
        """Write whose a shared context is, in the place of what was written before."""
        self._append(sqlite_rows.put_context_operation(number, body))

    def put_context_entry(self, number: int, entry: StoredEntry) -> None:
        """Write an entry of a shared context, or that it was removed, in the place of the former one of its key."""
        self._append(sqlite_rows.put_context_entry_operation(number, entry))

    def drop_context_entries(self, number: int, keys: Iterable[str]) -> None:
        """Forget entries of a shared context that were removed; harmless for those that are not there."""
        for key in keys:
            self._append(sqlite_rows.drop_context_entry_operation(number, key))

    def remove_context(self, number: int, revision: int) -> None:
        """Remove a shared context with all its entries, and remember that revisions up to its last one were used."""
        with self.together():
            self._append(sqlite_rows.remove_context_operation(number))
            self._append(sqlite_rows.use_revision_operation(revision))

    def prune_keys(self, settled_before: float, keep: int) -> None:
        """Forget the keys of messages settled before a time, and the oldest ones beyond ``keep``."""
        self._append(sqlite_rows.prune_keys_operation(settled_before, keep))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Write what the block writes in one group: a crash leaves all of it or nothing. The block must not wait."""
        if self._gathered is not None:
            yield
            return
        gathered: list[Operation] = []
        self._gathered = gathered
        try:
            yield
        finally:
            self._gathered = None
            self._hand_over(gathered)

    async def next_commit(self) -> Commit:
        """Wait for the next outcome. Only one caller waits at a time. Safe to cancel: no outcome is lost.

        Raises:
            StoreUnavailable: The store has failed or is closed. Every accept so far was reported before; a later one is
                reported as failed by the next call.
        """
        while not self._reports:
            if self._failure:
                raise StoreUnavailable(self._failure)
            self._arrived.clear()
            await self._arrived.wait()
        return self._reports.popleft()

    async def flush(self) -> None:
        """Wait until everything written so far is durable. Safe to cancel.

        Raises:
            StoreUnavailable: A write of it failed. What is not an accept is tried again all the same.
        """
        if self._failure:
            raise StoreUnavailable(self._failure)
        if self._durable < self._written:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append((self._written, done))
            await done

    async def close(self, *, clean: bool = True) -> None:
        """Write what is left, note a clean stop when ``clean``, and release the file. Idempotent.

        What cannot be written is tried a few times; then the stop counts as unclean, and the log says so.
        """
        if self._thread is None:
            return
        self._stop(clean=clean)
        await self._ended.wait()
        self._thread.join()  # Its last act was to set the event.

    # ---- on the event loop; what begins with `_on_` is called by the writer thread through `_post`

    def _append(self, operation: Operation) -> None:
        # Here and not in the writer thread, where one value that cannot be written would be the end of the store.
        sqlite_rows.check_operation(operation)
        if self._failure:
            return
        self._written += 1
        if self._gathered is not None:
            self._gathered.append(operation)
        else:
            self._hand_over((operation,))

    def _hand_over(self, operations: Iterable[Operation]) -> None:
        with self._wake:
            self._pending.extend(operations)
            if self._waiting:
                self._wake.notify()

    def _stop(self, *, clean: bool) -> None:
        with self._wake:
            if not self._stopping:
                self._stopping = True
                self._clean = clean
                self._wake.notify()

    def _on_opened(self, opened: asyncio.Future[StoredPlatform], stored: StoredPlatform) -> None:
        self._failure = ""
        if not opened.done():
            opened.set_result(stored)

    def _on_written(self, through: int, taken: int, error: str, *, final: bool = False) -> None:
        """Note the outcome of accepts up to position ``through``, and of operations up to number ``taken``."""
        self._report_accepts(through, error, final=final)
        if not error:
            self._durable = taken
        waiting = []
        for target, done in self._flushes:
            if target > taken:
                waiting.append((target, done))
            elif not done.done():
                if error:
                    done.set_exception(StoreUnavailable(error))
                else:
                    done.set_result(None)
        self._flushes = waiting

    def _on_ended(self, failure: str, opened: asyncio.Future[StoredPlatform], cause: BusError | None) -> None:
        """Let go everybody who waits: the writer thread takes nothing more."""
        self._failure = failure
        if not opened.done():
            opened.set_exception(cause or StoreUnavailable(failure))
        self._on_written(self._position, self._written, failure, final=True)
        self._arrived.set()
        self._ended.set()

    def _report_accepts(self, through: int, error: str, *, final: bool = False) -> None:
        if through > self._reported:
            self._reported = through
            self._reports.append(Commit(through, error, final))
            self._arrived.set()

    # ---- in the writer thread

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        # A closed loop has nobody left who could hear it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _run(self, opened: asyncio.Future[StoredPlatform]) -> None:
        failure, cause = "the store is closed", None
        try:
            file = SqliteFile(
                self._path,
                synchronous=self._synchronous,
                busy_timeout=self._busy_timeout,
                max_bytes=self._max_bytes,
            )
            with contextlib.closing(file):
                # Not held by a name here: the thread lives as long as the bus, and the platform takes it all over.
                self._post(self._on_opened, opened, file.load())
                self._write_until_stopped(file)
        except BusError as exc:
            failure, cause = str(exc), exc
        except Exception as exc:
            _log.exception("%s: the store has failed and takes nothing more", self._path)
            failure = f"the store has failed: {exc}"
        finally:
            self._post(self._on_ended, failure, opened, cause)

    def _write_until_stopped(self, file: SqliteFile) -> None:
        """Write what the event loop appends, group by group, until `close` asks for the end."""
        kept: list[Operation] = []
        through = taken = 0
        tries = _CLOSE_TRIES
        warned, next_warning = False, 0.0
        while True:
            operations, stopping = self._take(retry=bool(kept))
            if not operations and not kept:
                if stopping:
                    break
                continue
            error = ""
            if kept:
                # On its own and first: settles make room, which they could not if accepts beside them, needing more
                # than there is, undid them each time.
                error = self._try(file, kept, bounded=False)
                if not error:
                    kept = []
                    self._post(self._on_written, through, taken, "")
            through += sqlite_rows.count_accepts(operations)
            taken += len(operations)
            if operations and not error:
                error = self._try(file, operations, bounded=True)
            if error:
                kept = sqlite_rows.without_accepts(kept + operations)
                # Not for each group: while large messages fail and small ones pass, there are hundreds in a second.
                if not warned and time.monotonic() >= next_warning:
                    warned, next_warning = True, time.monotonic() + _WARNING_INTERVAL
                    _log.warning("%s: %s; accepts fail until it can", self._path, error)
            elif warned:
                warned = False
                _log.info("%s: can be written again", self._path)
            self._post(self._on_written, through, taken, error)
            if stopping and kept:
                tries -= 1
                if not tries:
                    _log.error("%s: closed with %d changes that could not be written", self._path, len(kept))
                    return
        if self._clean:
            try:
                file.mark_clean()
            except sqlite_file.PASSING_ERRORS as exc:
                _log.warning("%s: a clean stop could not be noted (%s)", self._path, exc)

    def _take(self, *, retry: bool) -> tuple[list[Operation], bool]:
        """Wait for operations, for `close`, or with ``retry`` for the pause to pass; return what there is."""
        with self._wake:
            if not self._pending and (retry or not self._stopping):
                self._waiting = True
                self._wake.wait(_RETRY_PAUSE if retry else None)
                self._waiting = False
            operations, self._pending = self._pending, []
            return operations, self._stopping

    def _try(self, file: SqliteFile, operations: Sequence[Operation], *, bounded: bool) -> str:
        """Write a group; return "", or why it is not written and may be later."""
        try:
            file.write(operations, bounded=bounded)
        except sqlite_file.PASSING_ERRORS as exc:
            # On a full disk the log's room is used again after this, so receivers can settle, and so make room.
            if not isinstance(exc, apsw.BusyError):
                file.checkpoint()
            return f"the store cannot write: {exc}"
        self._commits += 1
        return ""
