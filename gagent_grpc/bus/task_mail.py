"""ACP messages about tasks on their way through the bus: a DELEGATE makes a task, what its executor answers drives it.

Owns: which message is about which task, and the receipts of those that are refused. Leaves to others: what a message does to a
task (`bus.delegation`, `bus.execution`). A message that is about no task of this bus goes its way like any other.
"""

from __future__ import annotations

from gagent_grpc.acp.task_messages import Status, TaskMessage, TaskMessageKind
from gagent_grpc.acp.tasks import TaskKey
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.delegation import Delegation
from gagent_grpc.bus.execution import Execution
from gagent_grpc.bus.origins import Origin, Receipt
from gagent_grpc.bus.ports import Codec, Store
from gagent_grpc.bus.post import Post
from gagent_grpc.bus.task_endings import TaskEndings
from gagent_grpc.bus.task_table import TaskTable
from gagent_grpc.bus.tasks import Task
from gagent_grpc.envelope import Envelope, Outcome
from gagent_grpc.errors import (
    BusError,
    InvalidArgument,
    MessageTooLarge,
    ResourceExhausted,
    TaskAlreadyExists,
    Unauthorised,
    shown,
)

_BUSY = 1.0
"""Seconds after which a delegator that has too many tasks may try again."""


class TaskMail:
    """Looks through the ACP messages of one node."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        post: Post,
        codec: Codec,
        store: Store,
        table: TaskTable,
        delegation: Delegation,
        execution: Execution,
        endings: TaskEndings,
    ) -> None:
        self._ams = ams
        self._post = post
        self._codec = codec
        self._store = store
        self._table = table
        self._delegation = delegation
        self._execution = execution
        self._endings = endings

    def take(self, receiver: str, envelope: Envelope, origin: Origin, number: int, now: float) -> bool:
        """Handle an ACP message that is about a task; return False for one that goes its way like any other.

        Args:
            receiver: Delivery address.
            envelope: The message, which is still of use.
            origin: Who sends it and hears of it.
            number: What the receipts call it.
            now: Unix seconds.
        """
        try:
            message = self._codec.decode_task(envelope.payload)
        except InvalidArgument as error:
            self._refuse(origin, number, receiver, Outcome.INVALID, str(error), envelope, field=error.field)
            return True
        if message is None:
            return False
        if message.kind is TaskMessageKind.DELEGATE:
            self._delegate(message, receiver, envelope, origin, number)
            return True
        record = self._ams.find(receiver)
        if record is None or not message.task_id:
            return False
        own = self._table.find(TaskKey(origin.aid, message.task_id))
        if own is not None and own.executor == record.aid and _calls_off(message):
            self._endings.cancel(own, message.note, now, told=True)
            return False
        task = self._table.find(TaskKey(record.aid, message.task_id))
        if task is None or task.orphaned:
            return False
        return self._drive(task, message, record, receiver, envelope, origin, number, now)

    def _delegate(self, message: TaskMessage, receiver: str, envelope: Envelope, origin: Origin, number: int) -> None:
        delegator = self._post.sender_of(origin.aid)
        if delegator is None:
            detail = "nobody in particular cannot delegate a task: nobody would hear of it; open a session"
            self._refuse(origin, number, receiver, Outcome.DENIED, detail, envelope)
            return
        if len(envelope.to) > 1:
            detail = f"{len(envelope.to)} receivers; a task is for one agent"
            self._refuse(origin, number, receiver, Outcome.INVALID, detail, envelope, field="to")
            return
        try:
            self._delegation.by_message(delegator, message, envelope, origin, number, receiver)
        except InvalidArgument as error:
            field = "to" if error.field == "target" else f"acp.delegation.{error.field}"
            self._refuse(origin, number, receiver, Outcome.INVALID, str(error), envelope, field=field)
        except BusError as error:
            outcome = next(
                (outcome for kind, outcome in _OUTCOMES.items() if isinstance(error, kind)), Outcome.UNREACHABLE
            )
            retry_after = _BUSY if outcome is Outcome.RATE_LIMITED else error.retry_after
            field = "acp.delegation.task_id" if isinstance(error, TaskAlreadyExists) else ""
            self._refuse(origin, number, receiver, outcome, str(error), envelope, retry_after, field)

    def _drive(
        self,
        task: Task,
        message: TaskMessage,
        record: AgentRecord,
        receiver: str,
        envelope: Envelope,
        origin: Origin,
        number: int,
        now: float,
    ) -> bool:
        if task.state.final:
            if envelope.id and envelope.id == task.ended_by and origin.aid == task.executor:
                # What ended it comes again: its receiver may not have it yet.
                return False
            late = task.was_executor(origin.aid)
            detail = f"the task {shown(task.key.task_id)} is {task.state}" + (f": {task.reason}" if task.reason else "")
            self._refuse(origin, number, receiver, Outcome.EXPIRED if late else Outcome.DENIED, detail, envelope)
            return True
        try:
            self._execution.check_message(task, message, origin.aid)
        except Unauthorised as error:
            self._refuse(origin, number, receiver, Outcome.DENIED, str(error), envelope, field="sender")
            return True
        except InvalidArgument as error:
            self._refuse(origin, number, receiver, Outcome.INVALID, str(error), envelope, field=error.field)
            return True
        reporter = _Reporter(origin)
        # One group: after a crash the delegator has the message and the task what it says, or neither.
        with self._store.together():
            self._post.accept(record, receiver, envelope, reporter, number, now)
            if reporter.taken:
                self._execution.heard(task, message, envelope.id)
        return True

    def _refuse(
        self,
        origin: Origin,
        number: int,
        receiver: str,
        outcome: Outcome,
        detail: str,
        envelope: Envelope,
        retry_after: float | None = None,
        field: str = "",
    ) -> None:
        self._post.refuse(origin, Receipt(number, receiver, outcome, detail, retry_after, field), envelope)


_OUTCOMES: dict[type[BusError], Outcome] = {
    TaskAlreadyExists: Outcome.INVALID,
    MessageTooLarge: Outcome.TOO_LARGE,
    ResourceExhausted: Outcome.RATE_LIMITED,
    Unauthorised: Outcome.DENIED,
}
"""What a refused DELEGATE is told, by the first kind of its error; else UNREACHABLE."""


def _calls_off(message: TaskMessage) -> bool:
    """Whether it is what a delegator says to end a task."""
    return message.kind is TaskMessageKind.NOTIFICATION and message.status.strip().lower() == Status.CANCEL


class _Reporter:
    """`Origin` of what an executor says: it notes whether its message was taken, and passes on everything."""

    def __init__(self, origin: Origin) -> None:
        self.aid = origin.aid
        self.holds = origin.holds
        self.wants_failures = origin.wants_failures
        self.taken = True
        self._origin = origin

    def expect(self, number: int) -> None:
        """It is being written."""
        self._origin.expect(number)

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        """It is in the mailbox."""
        self._origin.accepted(number, receiver, waited=waited, lazy=lazy)

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        """It is not, or was there before."""
        self.taken = False
        self._origin.refuse(receipt, waited=waited)
