"""Delegated tasks on one node: joins the rooms that see to them.

Owns: their order of construction, and taking over what a store held. Leaves to others: everything else: one task
(`bus.tasks`), all of them (`bus.task_table`), delegators (`bus.delegation`), executors (`bus.execution`), the way from one to
the other (`bus.handover`), messages (`bus.task_mail`, `bus.task_letters`), ends (`bus.task_endings`), the clock
(`bus.task_timers`).
"""

from __future__ import annotations

from collections.abc import Iterable

from gagent_grpc.acp.tasks import TaskState
from gagent_grpc.bus.ams import AgentManagementSystem
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.delegation import Delegation
from gagent_grpc.bus.execution import Execution
from gagent_grpc.bus.handover import Handovers
from gagent_grpc.bus.ports import Clock, Codec, Store, StoredTask
from gagent_grpc.bus.post import Post, addressed
from gagent_grpc.bus.roles import Roles
from gagent_grpc.bus.task_endings import TaskEndings, TaskSchedule
from gagent_grpc.bus.task_letters import TaskLetters
from gagent_grpc.bus.task_mail import TaskMail
from gagent_grpc.bus.task_table import TaskTable
from gagent_grpc.bus.task_timers import TaskTimers
from gagent_grpc.config import BusLimits


class Tasking:
    """The tasks of one node. Synchronous; what is done is durable after `Platform.flush`."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        post: Post,
        roles: Roles,
        dedupe: Dedupe,
        store: Store,
        codec: Codec,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._ams = ams
        self._dedupe = dedupe
        self._clock = clock
        self.table = TaskTable(store, limits)
        letters = TaskLetters(ams, post, codec, clock)
        self._handovers = Handovers(ams, post, roles, self.table, letters, store, limits)
        schedule = TaskSchedule()
        self._endings = TaskEndings(self.table, letters, self._handovers, schedule, store, clock, limits)
        self.delegation = Delegation(
            ams, self.table, letters, self._handovers, self._endings, schedule, store, clock, limits
        )
        self.execution = Execution(self.table, letters, self._endings, schedule, store, clock, limits)
        mail = TaskMail(ams, post, codec, store, self.table, self.delegation, self.execution, self._endings)
        self._timers = TaskTimers(ams, self.table, self._handovers, self._endings, schedule, clock, limits)
        # What others call is in the rooms that own it.
        self.take = mail.take
        self.given_up = self._endings.given_up
        self.removed = self._endings.removed
        self.look = self._timers.look
        self.close = self.table.close

    def restore(self, stored: Iterable[StoredTask]) -> None:
        """Take over what a store held, once its agents and their mail are there.

        A DELEGATE that is neither in a mailbox nor known to have been settled did not survive, as a transient one does not:
        it is handed over again, flagged.
        """
        tasks = self.table.restore(stored)
        if not tasks:
            return
        # By these alone: looking into each letter would read what is read late otherwise.
        letters = ((one.sender, one.message_id) for record in self._ams for one in record.mailbox.letters())
        kept = {letter for letter in letters if letter in self.table.letters}
        now = self._clock.time()
        for task in tasks:
            self._timers.restore(task)
            if task.state is not TaskState.SUBMITTED or not task.executor:
                continue
            record = self._ams.find(task.executor)
            letter = (task.key.delegator, task.message_id)
            address = task.order.address
            if record is None or letter in kept:
                continue
            via = address if address != record.aid else ""
            if self._dedupe.find((*letter, addressed(record.name, via))) is None:
                task.take_back()
                self._handovers.try_again(task, now, again=True)
