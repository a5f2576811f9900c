"""What the clock and absent agents do to tasks: leases, deadlines, executors that are lost, tasks that are forgotten.

Owns: when it is time. Leaves to others: what follows (`bus.task_endings`), who calls this (`bus.housekeeping`).
"""

from __future__ import annotations

import logging

from gagent_grpc.acp.tasks import TaskState
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.handover import Handovers
from gagent_grpc.bus.ports import Clock
from gagent_grpc.bus.post import ROLE
from gagent_grpc.bus.task_endings import DISOBEYED, TaskEndings, TaskSchedule
from gagent_grpc.bus.task_letters import EXECUTOR_LOST
from gagent_grpc.bus.task_table import TaskTable
from gagent_grpc.bus.tasks import Task
from gagent_grpc.config import BusLimits

_log = logging.getLogger(__name__)

_AT_ONCE = 500
"""Tasks without an executor that one look tries to hand over at most."""


class TaskTimers:
    """The clock's business with the tasks of one node."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        table: TaskTable,
        handovers: Handovers,
        endings: TaskEndings,
        schedule: TaskSchedule,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._ams = ams
        self._table = table
        self._handovers = handovers
        self._endings = endings
        self._schedule = schedule
        self._clock = clock
        self._limits = limits
        # By executor: when it left, in monotonic seconds, and whether what follows from its loss was done. So the mailbox of
        # an agent that is away is looked through twice, and not once a second.
        self._away: dict[str, tuple[float, bool]] = {}
        self._stranded: dict[int, Task] = {}
        """Tasks of a role that nobody has seen, with an agent that is away, while nobody else serves the role."""

    def look(self) -> None:
        """Do what is due."""
        wall, now = self._clock.time(), self._clock.monotonic()
        for number in self._schedule.due(wall):
            task = self._table.numbered(number)
            if task is not None:
                self._moment(task, wall)
        for number in self._schedule.leases_due(now):
            task = self._table.numbered(number)
            if task is not None and task.leased and task.accepted:
                why = f"{task.executor} reported nothing for {self._limits.task_lease:g} s"
                self._endings.lose(task, why, wall)
        for task in list(self._handovers.waiting.values())[:_AT_ONCE]:
            # To the end of the line, so that each one has its turn.
            self._handovers.waiting.pop(task.number, None)
            self._handovers.try_again(task, wall)
        self._look_for_the_lost(now, wall)

    def restore(self, task: Task) -> None:
        """Take over a task that a store held: leases and graces begin anew, deadlines stay."""
        wall = self._clock.time()
        if task.state.final:
            self._schedule.at(task.ended_at + self._limits.task_retention, task)
            return
        if task.deadline:
            self._schedule.at(task.deadline, task)
        if task.cancel_requested:
            task.cancel_by = wall + self._limits.task_cancel_grace
            self._schedule.at(task.cancel_by, task)
        if task.leased:
            self._schedule.lease(self._clock.monotonic() + self._limits.task_lease, task)
        if task.waits:
            self._handovers.waiting[task.number] = task
            self._schedule.at(task.updated_at + self._limits.mailbox_ttl, task)

    def _moment(self, task: Task, wall: float) -> None:
        """Do what a moment of a task is for, if it still is."""
        if task.state.final:
            if task.ended_at + self._limits.task_retention <= wall:
                self._table.remove(task)
                _log.debug("task %s of %s is forgotten", *reversed(task.key))
        elif task.deadline and task.deadline <= wall:
            self._endings.end(task, TaskState.EXPIRED, "its deadline passed", wall)
        elif task.cancel_requested and task.cancel_by <= wall:
            self._endings.end(task, TaskState.CANCELLED, DISOBEYED, wall)
        elif task.waits and task.updated_at + self._limits.mailbox_ttl <= wall:
            self._endings.end(task, TaskState.FAILED, EXECUTOR_LOST, wall, detail="nobody else could take it")

    # ---- executors that are away -------------------------------------------------------------------------------------

    def _look_for_the_lost(self, now: float, wall: float) -> None:
        for aid in self._table.executors():
            record = self._ams.find(aid)
            if record is None:
                # Only where the store lost the agent and not the task.
                for task in self._table.of_executor(aid):
                    self._endings.lose(task, f"{aid} is not registered any more", wall)
            elif record.session is None and record.detached_at is not None:
                self._look_at(record, record.detached_at, now, wall)
            else:
                self._away.pop(aid, None)
        for task in list(self._stranded.values()):
            self._move(task, wall)

    def _look_at(self, record: AgentRecord, left_at: float, now: float, wall: float) -> None:
        known, done = self._away.get(record.aid, (None, False))
        is_lost = now - left_at > self._limits.resume_grace
        if known == left_at and (done or not is_lost):
            return
        tasks = self._table.of_executor(record.aid)
        unseen = {
            letter.sequence for letter in record.mailbox.letters() if not letter.attempt and not letter.redelivered
        }
        self._away[record.aid] = (left_at, is_lost)
        for task in tasks:
            if not task.accepted and task.sequence in unseen:
                if task.order.address.startswith(ROLE):
                    self._stranded[task.number] = task
            elif is_lost and not task.leased:
                # A lease is judged by itself; who has none lives by its session.
                self._endings.lose(task, f"{record.aid} had no session for {self._limits.resume_grace:g} s", wall)

    def _move(self, task: Task, wall: float) -> None:
        record = self._ams.find(task.executor)
        waits = record is not None and record.session is None and task.state is TaskState.SUBMITTED
        if not waits or record is None or self._endings.move(task, record, wall):
            self._stranded.pop(task.number, None)
