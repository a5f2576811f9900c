"""The side of those who delegate tasks: delegating, looking, answering, signalling, calling off.

Owns: what a delegator may ask for, what a task inherits from its parent, and who may see or change which task. Leaves to
others: the way to the executor (`bus.handover`), what follows from an end (`bus.task_endings`).
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator

from gagent_grpc.acp.free_json import json_value, parameters_value
from gagent_grpc.acp.task_messages import TaskMessage
from gagent_grpc.acp.tasks import Attachment, OnExecutorLost, TaskKey, TaskState
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.handover import Handover, Handovers
from gagent_grpc.bus.origins import Origin
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.task_endings import TaskEndings, TaskSchedule
from gagent_grpc.bus.task_letters import TaskLetters
from gagent_grpc.bus.task_table import TaskTable
from gagent_grpc.bus.task_values import TaskOrder, size_of
from gagent_grpc.bus.task_watches import TaskWatch
from gagent_grpc.bus.tasks import Task
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import Envelope, Priority
from gagent_grpc.errors import (
    InvalidArgument,
    MessageTooLarge,
    MissingParameter,
    PreconditionFailed,
    TaskAlreadyExists,
    TaskEnded,
    Unauthorised,
    shown,
)

MAX_ATTACHMENT_BYTES = 64 * 1024
"""What the attachments of one task may take together, as texts."""
MAX_URL_BYTES = 8_000
"""Longest callback URL."""
_REDELIVERIES = 3
"""Attempts where REDELIVER names no number."""
_LOOKED_AT = 500
"""Tasks that a search looks at in one go, before everybody else has a turn."""
_YEAR_10000 = 253_402_300_800.0


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """What a delegator asks for."""

    target: str
    task_id: str = ""
    """"" for one that the bus makes."""
    description: str = ""
    parameters: str = ""
    """One JSON object as text; "" for none."""
    callback_url: str | None = None
    deadline: float = 0.0
    """Unix seconds; 0.0 for never."""
    on_executor_lost: OnExecutorLost = OnExecutorLost.FAIL
    max_attempts: int = 0
    """0 for 1 with FAIL and 3 with REDELIVER."""
    parent: TaskKey | None = None
    attachments: tuple[Attachment, ...] = ()
    priority: Priority = Priority.NORMAL


class Delegation:
    """Delegators of one node. Synchronous; what is done is durable after `Platform.flush`."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        table: TaskTable,
        letters: TaskLetters,
        handovers: Handovers,
        endings: TaskEndings,
        schedule: TaskSchedule,
        store: Store,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._ams = ams
        self._table = table
        self._letters = letters
        self._handovers = handovers
        self._endings = endings
        self._schedule = schedule
        self._store = store
        self._clock = clock
        self._limits = limits

    # ---- delegating ------------------------------------------------------------------------------------------------

    def delegate(self, caller: Caller, wish: Wish) -> tuple[Task, bool, Handover | None]:
        """Delegate a task for the calling agent.

        Returns:
            The task, whether it was there before with the same data, and its handover where that is still under way or was
            refused: its outcome has to be waited for.

        Raises:
            Unauthorised: The caller is no agent, or does not work on the parent.
            InvalidArgument: A value is of another form than expected.
            MessageTooLarge: Something is over a limit.
            Unavailable: The target is on a platform that is not known here.
            TaskAlreadyExists: There is one of this id with other data.
            TaskNotFound: There is no such parent.
            TaskEnded: The parent has ended.
            PreconditionFailed: The chain would be too long.
            ResourceExhausted: There are too many tasks.
        """
        if caller.agent is None:
            raise Unauthorised("only an agent delegates tasks; open a session and show its token")
        delegator = caller.agent
        key, order = self._order(delegator, wish)
        existing = self._table.find(key)
        if existing is not None and not existing.orphaned:
            self._check_same(existing, order)
            return existing, True, self._handovers.under_way.get(key)
        task = self._new(delegator, key, order, wish.target, existing, by_message=False)
        return task, False, self._handovers.begin(task, task.created_at, first=True)

    def by_message(
        self,
        delegator: AgentRecord,
        message: TaskMessage,
        envelope: Envelope,
        origin: Origin,
        number: int,
        address: str,
    ) -> None:
        """Delegate a task by a DELEGATE message; its receipt says what becomes of it. Arguments as for `Router.submit`.

        Raises:
            BusError: It is refused as it stands; as `delegate`.
        """
        now = self._clock.time()
        ttl = now + message.ttl_seconds if message.ttl_seconds is not None else 0.0
        deadlines = [message.deadline, envelope.expires_at, ttl]
        wish = Wish(
            address,
            message.task_id or envelope.id,
            message.description,
            message.parameters,
            message.callback_url,
            min((one for one in deadlines if one), default=0.0),
            message.on_executor_lost,
            message.max_attempts,
            message.parent,
            message.attachments,
            priority=Priority(envelope.priority),
        )
        key, order = self._order(delegator, wish)
        existing = self._table.find(key)
        if existing is not None and not existing.orphaned:
            if message.ttl_seconds is not None:
                # What runs from the acceptance on is another moment each time.
                order = dataclasses.replace(order, deadline=existing.order.deadline)
            self._check_same(existing, order)
            handover = self._handovers.under_way.get(key)
            if handover is not None:
                handover.repeat(origin, number, address, envelope)
            else:
                self._handovers.repeated(origin, number, address, envelope)
            return
        if not (message.task_id and envelope.id):
            envelope = self._letters.completed(envelope, key.task_id)
        task = self._new(delegator, key, order, address, existing, by_message=True)
        self._handovers.begin(task, now, first=True, envelope=envelope, caller=origin, number=number, receiver=address)

    def _order(self, delegator: AgentRecord, wish: Wish) -> tuple[TaskKey, TaskOrder]:
        """Return what a wish comes to, checked."""
        limits = self._limits
        task_id = wish.task_id or str(uuid.uuid4())
        if len(task_id.encode()) > limits.max_id_bytes:
            raise InvalidArgument(
                f"task_id has {len(task_id.encode())} bytes; expected at most {limits.max_id_bytes}", field="task_id"
            )
        if not wish.target:
            raise MissingParameter("task", "target")
        size = size_of(wish.description, wish.parameters)
        if size > limits.max_message_bytes:
            raise MessageTooLarge(size, limits.max_message_bytes)
        parameters_value(wish.parameters)
        if size_of(wish.callback_url or "") > MAX_URL_BYTES:
            raise InvalidArgument(f"callback_url is longer than {MAX_URL_BYTES:,} bytes", field="callback_url")
        if wish.deadline and not self._clock.time() < wish.deadline < _YEAR_10000:
            # A repetition of what was delegated before its deadline is not new.
            known = self._table.find(TaskKey(delegator.aid, task_id))
            if known is None or known.order.deadline != wish.deadline:
                raise InvalidArgument(
                    "the deadline has passed by the clock of the bus, or is after the year 9999", field="deadline"
                )
        if wish.max_attempts > limits.task_attempts:
            raise InvalidArgument(
                f"max_attempts {wish.max_attempts}; expected 1 to {limits.task_attempts}", field="max_attempts"
            )
        self._check_attachments(wish.attachments)
        redelivers = wish.on_executor_lost is OnExecutorLost.REDELIVER
        parent = wish.parent
        if parent is not None:
            parent = TaskKey(self._aid(parent.delegator, "parent_delegator"), parent.task_id)
        order = TaskOrder(
            self._handovers.address(wish.target),
            wish.description,
            wish.parameters,
            wish.callback_url,
            wish.deadline,
            wish.on_executor_lost,
            wish.max_attempts or (_REDELIVERIES if redelivers else 1),
            parent,
            wish.attachments,
            wish.priority,
        )
        return TaskKey(delegator.aid, task_id), order

    def _check_attachments(self, attachments: tuple[Attachment, ...]) -> None:
        if len(attachments) > self._limits.task_attachments:
            raise InvalidArgument(
                f"{len(attachments):,} attachments; expected at most {self._limits.task_attachments}",
                field="attachments",
            )
        for index, one in enumerate(attachments):
            missing = "uri" if not one.uri else "media_type" if not one.media_type else ""
            if missing:
                raise InvalidArgument(
                    f"attachment {index + 1} has no {missing}", field=f"attachments[{index}].{missing}"
                )
        size = size_of(*(text for one in attachments for text in (one.uri, one.media_type, one.name, one.digest)))
        if size > MAX_ATTACHMENT_BYTES:
            raise InvalidArgument(
                f"the attachments take {size:,} bytes; expected at most {MAX_ATTACHMENT_BYTES:,}, without their contents",
                field="attachments",
            )

    @staticmethod
    def _check_same(task: Task, order: TaskOrder) -> None:
        differs = task.order.difference(order)
        if differs:
            raise TaskAlreadyExists(task.key.task_id, "target" if differs == "address" else differs)

    def _new(
        self,
        delegator: AgentRecord,
        key: TaskKey,
        order: TaskOrder,
        target: str,
        former: Task | None,
        *,
        by_message: bool,
    ) -> Task:
        """Return a new task, which is in the table and waits. A ``former`` one of a former bearer of the name goes."""
        now, root, depth, deadline = self._clock.time(), None, 1, order.deadline
        if order.parent is not None:
            parent = self._table.get(order.parent)
            if parent.executor != delegator.aid:
                raise Unauthorised(
                    f"{delegator.aid} does not work on the task {shown(parent.key.task_id)} of {parent.key.delegator}"
                )
            if parent.state.final:
                raise TaskEnded(parent.key.task_id, str(parent.state), "nothing can come of it any more")
            root, depth = parent.root, parent.depth + 1
            if depth > self._limits.task_depth:
                raise PreconditionFailed(
                    f"{depth} tasks would come of each other; expected at most {self._limits.task_depth} (task_depth)"
                )
            if parent.deadline:
                deadline = min(deadline, parent.deadline) if deadline else parent.deadline
        task = Task(
            self._table.next_number(),
            key,
            order,
            target=target,
            principal=delegator.principal,
            created_at=now,
            root=root,
            depth=depth,
            deadline=deadline,
            by_message=by_message,
            max_events=self._limits.task_events,
            max_event_bytes=self._limits.task_event_bytes,
        )
        self._table.check_room(delegator.aid, task.size)
        if former is not None:
            self._table.remove(former)
        task.submit(now)
        self._table.add(task)
        if deadline:
            self._schedule.at(deadline, task)
        return task

    # ---- looking ---------------------------------------------------------------------------------------------------

    def get(self, caller: Caller, delegator: str, task_id: str) -> Task:
        """Return a task; ``delegator`` is the caller itself where it is "".

        Raises:
            TaskNotFound: There is no such task.
            Unauthorised: The caller has nothing to do with it.
            MissingParameter: The caller is no agent and names no delegator.
        """
        task = self._table.get(self.key(caller, delegator, task_id))
        if not _may_see(caller, task):
            raise Unauthorised(f"{caller.name} may not see the task {shown(task_id)} of {task.key.delegator}")
        return task

    def search(
        self, caller: Caller, *, delegator: str = "", executor: str = "", states: frozenset[TaskState], before: int
    ) -> Iterator[Task | None]:
        """Return the tasks that a caller may see, newest first, and None now and then while it looks on.

        Args:
            caller: Who asks. An agent that names neither delegator nor executor gets its own tasks, those that it delegated
                and those that it works on; an operator that is no agent gets all.
            delegator: Only those that it delegated; "" for any.
            executor: Only those that were handed to it; "" for any.
            states: Only those in these states; empty for all.
            before: Only those whose number is below; 0 for all.

        Raises:
            InvalidArgument: A name is no valid one.
        """
        delegator = self._aid(delegator, "delegator") if delegator else ""
        executor = self._aid(executor, "executor") if executor else ""
        own = caller.agent if caller.agent is not None and not (delegator or executor) else None
        found = self._table.newest(before=before, delegator=delegator)
        for looked, task in enumerate(found, start=1):
            if not looked % _LOOKED_AT:
                yield None
            if (
                (not executor or task.executor == executor)
                and (own is None or _is_delegator(caller, task) or _is_executor(own, task))
                and (not states or task.state in states)
                and _may_see(caller, task)
            ):
                yield task

    def watch(self, caller: Caller, delegator: str, task_id: str, after: int | None) -> TaskWatch:
        """Return what a stream is told of a task; errors as `get` and `TaskTable.watch`."""
        return self._table.watch(self.get(caller, delegator, task_id), after)

    # ---- changing --------------------------------------------------------------------------------------------------

    def answer(self, caller: Caller, delegator: str, task_id: str, answer: str) -> Task:
        """Give the input that an executor asked for, one JSON value as text.

        Raises:
            TaskNotFound: There is no such task.
            Unauthorised: The caller is not its delegator.
            TaskEnded: It has ended.
            PreconditionFailed: No input is asked for.
            InvalidArgument: The answer is no JSON.
            MessageTooLarge: It is over the message limit.
            MailboxFull: The executor hears of it by messages, and has no room.
        """
        task = self._own(caller, delegator, task_id)
        self._check_value(answer, "answer_json")
        task.check_asks()
        with self._store.together():
            if not task.leased:
                self._letters.answer(task, answer)
            task.answer(answer, self._clock.time())
            self._table.write(task)
        return task

    def signal(self, caller: Caller, delegator: str, task_id: str, name: str, value: str) -> Task:
        """Tell the executor something; errors as `answer`."""
        task = self._own(caller, delegator, task_id)
        if not name or len(name.encode()) > self._limits.max_id_bytes:
            raise InvalidArgument(
                f"the name of the signal has {len(name.encode())} bytes; expected 1 to {self._limits.max_id_bytes}",
                field="name",
            )
        if value:
            self._check_value(value, "value_json")
        task.check_open()
        with self._store.together():
            if task.accepted and not task.leased:
                self._letters.signal(task, name, value)
            task.signal(name, value, self._clock.time())
            self._table.write(task)
        return task

    def cancel(self, caller: Caller, delegator: str, task_id: str, reason: str) -> Task:
        """Call a task off, with those that came of it; one that has ended is returned as it is.

        Raises:
            TaskNotFound: There is no such task.
            Unauthorised: The caller is not its delegator.
        """
        task = self._own(caller, delegator, task_id)
        self._endings.cancel(task, reason, self._clock.time())
        return task

    def _own(self, caller: Caller, delegator: str, task_id: str) -> Task:
        task = self._table.get(self.key(caller, delegator, task_id))
        if not (caller.operator or _is_delegator(caller, task)):
            raise Unauthorised(f"{caller.name} did not delegate the task {shown(task_id)}")
        return task

    def key(self, caller: Caller, delegator: str, task_id: str) -> TaskKey:
        """Return what names a task of ``delegator``, or of the caller where that is "".

        Raises:
            MissingParameter: Something is missing.
            InvalidArgument: The delegator is no valid name.
        """
        if not task_id:
            raise MissingParameter("task", "task_id")
        if delegator:
            return TaskKey(self._aid(delegator, "delegator"), task_id)
        if caller.agent is None:
            raise MissingParameter("task", "delegator")
        return TaskKey(caller.agent.aid, task_id)

    def _aid(self, name: str, field: str) -> str:
        try:
            return f"{self._ams.local_name(name)}@{self._ams.platform}"
        except InvalidArgument as error:
            raise InvalidArgument(f"{field}: {error}", field=field) from error

    def _check_value(self, text: str, field: str) -> None:
        size = size_of(text)
        if size > self._limits.max_message_bytes:
            raise MessageTooLarge(size, self._limits.max_message_bytes)
        json_value(text, field)


def _is_delegator(caller: Caller, task: Task) -> bool:
    return caller.agent is not None and caller.agent.aid == task.key.delegator and not task.orphaned


def _may_see(caller: Caller, task: Task) -> bool:
    if caller.operator or _is_delegator(caller, task):
        return True
    return caller.agent is not None and _is_executor(caller.agent, task)


def _is_executor(agent: AgentRecord, task: Task) -> bool:
    """Whether an agent was given a task, and not a former bearer of its name."""
    return task.was_executor(agent.aid, since=agent.registered_at)
