"""How tasks end: cancelled, with the tasks that came of them, expired, or without an executor; and what follows from an end.

Owns: the consequences, so that nobody waits without end: messages withdrawn, both sides told, children called off, the time
at which a task is forgotten. Leaves to others: the rules (`bus.tasks`), when it is time (`bus.task_timers`).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator

from gagent_grpc.acp.tasks import OnExecutorLost, TaskState
from gagent_grpc.bus.ams import AgentRecord
from gagent_grpc.bus.handover import Handovers
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.post import ROLE
from gagent_grpc.bus.task_letters import EXECUTOR_LOST, TaskLetters
from gagent_grpc.bus.task_table import TaskTable
from gagent_grpc.bus.tasks import Task
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import StoreUnavailable

_log = logging.getLogger(__name__)

DISOBEYED = "its executor did not obey"
"""Reason of a task that was cancelled without its executor."""


class TaskSchedule:
    """When which task is to be looked at: in Unix seconds, and for leases in monotonic ones."""

    def __init__(self) -> None:
        self._wall: list[tuple[float, int]] = []
        self._leases: list[tuple[float, int]] = []
        self._lease_ends: dict[int, float] = {}

    def at(self, moment: float, task: Task) -> None:
        """Look at a task at a moment, in Unix seconds."""
        heapq.heappush(self._wall, (moment, task.number))

    def lease(self, end: float, task: Task) -> None:
        """The lease of a task ends at a monotonic time; renewing it costs nothing."""
        if task.number not in self._lease_ends:
            heapq.heappush(self._leases, (end, task.number))
        self._lease_ends[task.number] = end

    def due(self, wall: float) -> Iterator[int]:
        """Yield the numbers of the tasks whose moment has come; each moment is forgotten as it is yielded."""
        while self._wall and self._wall[0][0] <= wall:
            yield heapq.heappop(self._wall)[1]

    def leases_due(self, now: float) -> Iterator[int]:
        """Yield the numbers of the tasks whose lease has ended; each lease is forgotten as it is yielded."""
        while self._leases and self._leases[0][0] <= now:
            _, number = heapq.heappop(self._leases)
            end = self._lease_ends.get(number)
            if end is None:
                continue
            if end > now:
                heapq.heappush(self._leases, (end, number))
            else:
                del self._lease_ends[number]
                yield number


class TaskEndings:
    """Ends the tasks of one node. Synchronous."""

    def __init__(
        self,
        table: TaskTable,
        letters: TaskLetters,
        handovers: Handovers,
        schedule: TaskSchedule,
        store: Store,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._table = table
        self._letters = letters
        self._handovers = handovers
        self._schedule = schedule
        self._store = store
        self._clock = clock
        self._limits = limits

    def cancel(self, task: Task, reason: str, now: float, *, told: bool = False) -> None:
        """Call a task off: at once where nobody has accepted it, else its executor has `task_cancel_grace` to end it.

        Args:
            task: The task; nothing happens to one that has ended.
            reason: Why, in words; "" where nothing is said.
            now: Unix seconds.
            told: Its executor hears of it otherwise.
        """
        if task.state.final:
            return
        if not task.accepted:
            self.end(task, TaskState.CANCELLED, reason or "cancelled by its delegator", now)
            return
        by = now + self._limits.task_cancel_grace
        if not task.ask_to_cancel(reason, now, by=by):
            return
        with self._store.together():
            self._table.write(task)
            self._schedule.at(by, task)
            if not task.leased and not told:
                self._letters.cancel(task, reason)

    def end(self, task: Task, state: TaskState, reason: str, now: float, *, detail: str = "") -> None:
        """End a task that has not ended by the bus; ``detail`` is told beside the reason."""
        # Who reports hears of it by its next report.
        by_session = task.accepted and not task.leased
        with self._store.together():
            task.end(state, reason, now)
            self.ended(task, now)
            self._letters.ended(task, by_executor=False, detail=detail)
            if by_session:
                self._letters.cancel(task, reason)
        _log.info("task %s of %s is %s: %s", *reversed(task.key), state, detail or reason)

    def ended(self, task: Task, now: float) -> None:
        """A task has ended: what follows from that, beside telling its delegator. It is written here."""
        with self._store.together():
            self._letters.withdraw(task)
            self._handovers.forget(task)
            self._table.write(task)
            self._schedule.at(now + self._limits.task_retention, task)
            if task.state is not TaskState.COMPLETED:
                for child in self._table.children(task):
                    self.cancel(child, f"its parent, the task {task.key.task_id!r}, is {task.state}", now)

    # ---- executors that are lost ------------------------------------------------------------------------------------

    def lose(self, task: Task, why: str, now: float, *, lost: AgentRecord | None = None) -> None:
        """The executor of a task is lost: the next attempt begins, as its policy says, or it fails.

        Args:
            task: The task, which is with somebody.
            why: What happened, in words, for the log and for whoever delegated by a message.
            now: Unix seconds.
            lost: The executor, where it is about to lose its name.
        """
        if task.state.final or not task.executor or task.key in self._handovers.under_way:
            return
        order = task.order
        with self._store.together():
            self._letters.withdraw(task)
            if task.cancel_requested:
                self.end(task, TaskState.CANCELLED, EXECUTOR_LOST, now, detail=why)
                return
            again = order.on_executor_lost is OnExecutorLost.REDELIVER and task.counted < order.max_attempts
            # A name that was freed is nobody's any more; whoever bears it next is somebody else.
            if not again or (lost is not None and not order.address.startswith(ROLE)):
                self.end(task, TaskState.FAILED, EXECUTOR_LOST, now, detail=why)
                return
            _log.info("task %s of %s: attempt %d is lost: %s", *reversed(task.key), task.attempt, why)
            task.lose(EXECUTOR_LOST, now)
            self._table.write(task)
            self._schedule.at(now + self._limits.mailbox_ttl, task)
            self._handovers.try_again(task, now, lost=lost)
            self._call_off_parts(task, now)

    def release(self, task: Task, record: AgentRecord, attempt: int, reason: str, now: float, *, leaving: bool) -> None:
        """The executor of a task gives its attempt back: the next one begins, whatever its policy, and so on in bounds.

        Args:
            task: The task, which is with ``record``.
            record: The executor.
            attempt: The attempt, due or in force.
            reason: Why, in words; "" where nothing is said.
            now: Unix seconds.
            leaving: The executor is about to end its session, in which it gets nothing of this task any more.

        Raises:
            TaskEnded: The task has ended.
            AttemptSuperseded: The attempt is not the one that is due or in force.
            StoreUnavailable: The attempt is still being written.
        """
        task.check_attempt(record.aid, attempt)
        if task.key in self._handovers.under_way:
            raise StoreUnavailable("the attempt is still being written; give it back again")
        counts = task.releases >= self._limits.task_releases
        with self._store.together():
            if task.cancel_requested:
                self.end(task, TaskState.CANCELLED, reason or f"given back by {record.aid}", now)
                return
            if counts and task.counted >= task.order.max_attempts:
                self.end(task, TaskState.FAILED, f"given back {task.releases + 1} times", now, detail=reason)
                return
            _log.info("task %s of %s: attempt %d is given back by %s", *reversed(task.key), attempt, record.aid)
            self._letters.withdraw(task)
            task.release(record.aid, attempt, reason, now, counts=counts)
            self._table.write(task)
            self._schedule.at(now + self._limits.mailbox_ttl, task)
            self._handovers.given_back(task, record, now, leaving=leaving)
            self._call_off_parts(task, now)

    def _call_off_parts(self, task: Task, now: float) -> None:
        """Call off what somebody else than the executor of a task made of it.

        What the next executor delegates again under the same ids it finds; nobody waits for the rest.
        """
        for child in self._table.children(task):
            if child.key.delegator != task.executor:
                self.cancel(child, f"{child.key.delegator} is not the executor of its parent any more", now)

    def move(self, task: Task, lost: AgentRecord, now: float) -> bool:
        """Give a task that nobody has seen to another agent that serves its role, as the same attempt.

        Returns:
            Whether there is one; else it stays where it is, unless ``lost`` is about to lose its name.
        """
        if not task.order.address.startswith(ROLE) or task.key in self._handovers.under_way:
            return False
        if not self._handovers.has_other(task, lost, now):
            return False
        with self._store.together():
            self._letters.withdraw(task)
            task.take_back()
            self._table.write(task)
            return self._handovers.try_again(task, now, lost=lost)

    def removed(self, record: AgentRecord, why: str) -> None:
        """A name was freed: nobody waits for what its agent should do, and nobody does what only it would hear of."""
        now = self._clock.time()
        for task in self._table.of_executor(record.aid):
            unseen = not task.accepted and self._letters.is_unseen(task)
            if not (unseen and self.move(task, record, now)):
                self.lose(task, f"{record.aid} is gone: {why}", now, lost=record)
        for task in self._table.of_delegator(record.aid):
            if task.orphaned:
                continue
            with self._store.together():
                task.orphaned = True
                if task.state.final:
                    self._table.write(task)
                else:
                    self.end(task, TaskState.CANCELLED, f"its delegator is gone: {why}", now)

    def given_up(self, record: AgentRecord, letter: Letter, reason: DeadReason, why: str) -> bool:
        """The DELEGATE of a task was given up; return whether the task is what its delegator hears of it by.

        Args:
            record: Whose mailbox it was in.
            letter: The message.
            reason: Why.
            why: The same in words.
        """
        task = self._table.letters.get((letter.sender, letter.message_id))
        if task is None or task.state.final or task.executor != record.aid:
            return False
        now = self._clock.time()
        if reason is DeadReason.EXPIRED:
            if task.deadline and task.deadline <= now:
                self.end(task, TaskState.EXPIRED, "its deadline passed", now)
            elif not task.accepted:
                self.end(task, TaskState.FAILED, f"nobody took it up: {why}", now)
        elif reason is DeadReason.REJECTED and not task.accepted:
            self.end(task, TaskState.REJECTED, why, now)
        elif reason in {DeadReason.REJECTED, DeadReason.MAX_DELIVERIES}:
            self.end(task, TaskState.FAILED, why, now)
        else:
            self.lose(task, why, now)
        return True
