"""All delegated tasks of one node: found by delegator and id, by executor and by parent; kept in step with a store.

Owns: the table, its bounds, what is written of a task when it changes, and waking those who watch it. Leaves to others: what
may change (`bus.tasks`), and why.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from gagent_grpc.acp.tasks import TaskKey, TaskState
from gagent_grpc.bus import task_records
from gagent_grpc.bus.ports import Store, StoredTask
from gagent_grpc.bus.task_watches import TaskWatch
from gagent_grpc.bus.tasks import Task
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import BusDraining, ResourceExhausted, TaskNotFound

KeyT = TypeVar("KeyT")

_log = logging.getLogger(__name__)

_IN_HAND = frozenset({TaskState.ACCEPTED, TaskState.RUNNING, TaskState.INPUT_REQUIRED})


class _Kept:
    """What the table knows of a task beside it."""

    __slots__ = (
        "checkpoint",
        "counted",
        "executor",
        "first_event",
        "letter",
        "size",
        "stored",
        "task",
        "through",
        "watches",
    )

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stored = False
        self.through = 0
        """Sequence of the last event that was written."""
        self.first_event = 1
        """Sequence of the first event that the store keeps."""
        self.checkpoint: str | None = None
        """The one that was written."""
        self.size = 0
        self.executor = ""
        """Whose list it stands in."""
        self.letter: tuple[str, str] | None = None
        self.counted: tuple[TaskState, bool, bool] | None = None
        """How it is counted: its state, whether it waits, whether it has a lease."""
        self.watches: set[TaskWatch] = set()


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What a table holds, and what it has seen."""

    by_state: dict[TaskState, int]
    """Tasks that are kept; states without any are absent."""
    delegated: int
    """Tasks delegated since the start."""
    running: int
    """Tasks that somebody has accepted and that have not ended."""
    waiting: int
    """Tasks that wait for somebody who takes the next attempt."""
    leases: int
    """Attempts that live by their reports."""
    watches: int
    """Streams that watch a task."""
    size: int
    """Bytes that all of them take, nearly."""


class TaskTable:
    """The tasks of one node, in the order of delegation. Synchronous."""

    def __init__(self, store: Store, limits: BusLimits) -> None:
        self._store = store
        self._limits = limits
        self._kept: dict[int, _Kept] = {}
        self._by_key: dict[TaskKey, Task] = {}
        self._by_delegator: dict[str, dict[int, Task]] = {}
        self._by_executor: dict[str, dict[int, Task]] = {}
        self._children: dict[TaskKey, dict[int, Task]] = {}
        self._next_number = 1
        self._counts: Counter[tuple[TaskState, bool, bool]] = Counter()
        self._watches = 0
        self._closed = False
        self.letters: dict[tuple[str, str], Task] = {}
        """Tasks that somebody has or is to get, by delegator and id of the DELEGATE message of their newest attempt."""
        self.bytes = 0
        """What all of them take, nearly."""
        self.forgotten: Callable[[Task], None] = lambda task: None
        """Is told of a task that was removed."""
        self.delegated = 0
        """Tasks that were delegated since the start."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def counts(self) -> TaskCounts:
        """What is held now, and has been delegated since the start."""
        by_state: Counter[TaskState] = Counter()
        waiting = leases = 0
        for (state, waits, leased), count in self._counts.items():
            by_state[state] += count
            waiting += count * waits
            leases += count * leased
        running = sum(count for state, count in by_state.items() if state in _IN_HAND)
        kept = {state: count for state, count in sorted(by_state.items()) if count}
        return TaskCounts(kept, self.delegated, running, waiting, leases, self._watches, self.bytes)

    # ---- looking up ------------------------------------------------------------------------------------------------

    def find(self, key: TaskKey) -> Task | None:
        """Return the task of a delegator with an id; None when there is none."""
        return self._by_key.get(key)

    def get(self, key: TaskKey) -> Task:
        """Return the task of a delegator with an id.

        Raises:
            TaskNotFound: There is none.
        """
        task = self._by_key.get(key)
        if task is None:
            raise TaskNotFound(key.delegator, key.task_id)
        return task

    def numbered(self, number: int) -> Task | None:
        """Return the task with a number; None when there is none."""
        kept = self._kept.get(number)
        return kept.task if kept is not None else None

    def newest(self, *, before: int = 0, delegator: str = "") -> Iterator[Task]:
        """Return the tasks whose number is below ``before``, or all, newest first; a change of the table in between is fine.

        With a ``delegator`` only those that it delegated.
        """
        kept_by = self._by_delegator.get(delegator, {}) if delegator else self._kept
        numbers = [number for number in kept_by if not before or number < before]
        for number in reversed(numbers):
            if (kept := self._kept.get(number)) is not None:
                yield kept.task

    def of_delegator(self, aid: str) -> list[Task]:
        """Return the tasks that ``aid`` delegated, oldest first."""
        return list(self._by_delegator.get(aid, {}).values())

    def of_executor(self, aid: str) -> list[Task]:
        """Return the tasks that ``aid`` has or is to get, oldest first."""
        return list(self._by_executor.get(aid, {}).values())

    def executors(self) -> list[str]:
        """Return those who have tasks."""
        return list(self._by_executor)

    def children(self, task: Task) -> list[Task]:
        """Return the tasks that came of a task."""
        return list(self._children.get(task.key, {}).values())

    def root(self, task: Task) -> Task | None:
        """Return the first task of the chain that a task came of; None when it is forgotten."""
        root = self._by_key.get(task.root)
        # What came of it is younger; else another one bears its name by now.
        return root if root is not None and root.number <= task.number else None

    def tree(self, root: Task) -> Iterator[Task]:
        """Yield a task, and all that came of it and of these."""
        pending = [root]
        while pending:
            task = pending.pop()
            yield task
            pending += [child for child in self.children(task) if child.number > task.number]

    # ---- coming and going ------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Return a number for a new task."""
        number = self._next_number
        self._next_number += 1
        return number

    def check_room(self, delegator: str, size: int) -> None:
        """Make sure that a delegator may have one more task of ``size`` bytes.

        Raises:
            ResourceExhausted: It has too many, or the bus has.
        """
        limits = self._limits
        if len(self._kept) >= limits.max_tasks:
            raise ResourceExhausted(f"{len(self._kept):,} tasks are kept, the limit of this bus (max_tasks)")
        own = len(self._by_delegator.get(delegator, ()))
        if own >= limits.tasks_per_agent:
            raise ResourceExhausted(
                f"{own:,} tasks of {delegator} are kept, the limit for one agent (tasks_per_agent); ended ones count until "
                f"they are forgotten after {limits.task_retention:g} s"
            )
        if self.bytes + size > limits.total_task_bytes:
            raise ResourceExhausted(
                f"all tasks together take {self.bytes:,} bytes, the limit is {limits.total_task_bytes:,} (total_task_bytes)"
            )

    def add(self, task: Task) -> None:
        """Add a task; `write` writes it."""
        kept = self._kept[task.number] = _Kept(task)
        self._by_key[task.key] = task
        self._by_delegator.setdefault(task.key.delegator, {})[task.number] = task
        if task.order.parent is not None:
            self._children.setdefault(task.order.parent, {})[task.number] = task
        self._index(kept)

    def remove(self, task: Task) -> None:
        """Forget a task; who watches it hears that it is not there any more."""
        kept = self._kept.pop(task.number, None)
        if kept is None:
            return
        if self._by_key.get(task.key) is task:
            del self._by_key[task.key]
        _leave(self._by_delegator, task.key.delegator, task.number)
        if task.order.parent is not None:
            _leave(self._children, task.order.parent, task.number)
        _leave(self._by_executor, kept.executor, task.number)
        if kept.letter is not None:
            self.letters.pop(kept.letter, None)
        self.bytes -= kept.size
        if kept.counted is not None:
            self._counts[kept.counted] -= 1
        if kept.stored:
            self._store.remove_task(task.number)
        for watch in list(kept.watches):
            watch.end(TaskNotFound(*task.key))
        self.forgotten(task)

    def restore(self, stored: Iterable[StoredTask]) -> list[Task]:
        """Take over what a store held; return the tasks. What cannot be read stays in the store."""
        limits = self._limits
        for one in stored:
            self._next_number = max(self._next_number, one.number + 1)
            try:
                task = task_records.task_of(one, max_events=limits.task_events, max_event_bytes=limits.task_event_bytes)
            except ValueError as error:
                _log.error("a task is left in the store: %s", error)
                continue
            self.add(task)
            kept = self._kept[task.number]
            kept.stored, kept.through, kept.checkpoint = True, task.last_event, task.checkpoint
            kept.first_event = one.events[0][0] if one.events else 1
        return [kept.task for kept in self._kept.values()]

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write(self, task: Task) -> None:
        """Write what is new of a task, in one group, and tell those who watch it."""
        kept = self._kept[task.number]
        if self.bytes > self._limits.total_task_bytes:
            task.keep_little()
        store, number = self._store, task.number
        with store.together():
            if not kept.stored:
                self.delegated += 1
                store.put_task(number, task_records.ORDER, task_records.order_text(task))
                kept.stored = True
            store.put_task(number, task_records.STATE, task_records.state_text(task))
            if task.checkpoint is not None and task.checkpoint != kept.checkpoint:
                store.put_task(number, task_records.CHECKPOINT, task.checkpoint)
                kept.checkpoint = task.checkpoint
            # From the end, since mostly one of a thousand is new.
            new = itertools.takewhile(lambda event: event.sequence > kept.through, reversed(task.events))
            for event in reversed(list(new)):
                store.add_task_event(number, event.sequence, task_records.event_text(event))
            kept.through = task.last_event
            if task.first_event > kept.first_event:
                store.trim_task_events(number, task.first_event)
                kept.first_event = task.first_event
        self._index(kept)
        for watch in kept.watches:
            watch.wake()

    def _index(self, kept: _Kept) -> None:
        task = kept.task
        size = task.size
        self.bytes += size - kept.size
        kept.size = size
        counted = (task.state, task.waits, task.leased)
        if counted != kept.counted:
            if kept.counted is not None:
                self._counts[kept.counted] -= 1
            self._counts[counted] += 1
            kept.counted = counted
        executor = "" if task.state.final else task.executor
        if executor != kept.executor:
            _leave(self._by_executor, kept.executor, task.number)
            kept.executor = executor
            if executor:
                self._by_executor.setdefault(executor, {})[task.number] = task
        letter = (task.key.delegator, task.message_id) if executor and task.message_id else None
        if letter != kept.letter:
            if kept.letter is not None:
                self.letters.pop(kept.letter, None)
            if letter is not None:
                self.letters[letter] = task
            kept.letter = letter

    # ---- watching --------------------------------------------------------------------------------------------------

    def watch(self, task: Task, after: int | None) -> TaskWatch:
        """Return what a stream is told of a task after an event; None for what happens from now on, 0 for all that is kept.

        Raises:
            EventsGone: The next event is not kept any more.
            InvalidArgument: There was never such an event.
            ResourceExhausted: Too many watch.
            BusDraining: The bus is shutting down.
        """
        if self._closed:
            raise BusDraining("the bus is shutting down")
        if self._watches >= self._limits.task_watches:
            raise ResourceExhausted(f"{self._watches:,} streams watch tasks, the limit of this node (task_watches)")
        start = task.last_event if after is None else after
        task.events_after(start)
        watches = self._kept[task.number].watches
        watch = TaskWatch(task, max(start, task.first_event - 1), leave=lambda: self._leave(watches, watch))
        watches.add(watch)
        self._watches += 1
        return watch

    def _leave(self, watches: set[TaskWatch], watch: TaskWatch) -> None:
        if watch in watches:
            watches.discard(watch)
            self._watches -= 1

    def close(self) -> None:
        """End every watch of a task that goes on: the bus shuts down. Idempotent."""
        self._closed = True
        for kept in self._kept.values():
            for watch in kept.watches:
                watch.end(
                    BusDraining("the bus is shutting down; watch the task again after the last event that was read")
                )


def _leave(index: dict[KeyT, dict[int, Task]], key: KeyT, number: int) -> None:
    tasks = index.get(key)
    if tasks is not None:
        tasks.pop(number, None)
        if not tasks:
            del index[key]
