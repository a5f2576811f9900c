"""The side of those who work on tasks: taking one up, saying how it goes, ending it, by calls and by messages.

Owns: what an executor may say, the lease that its reports renew, and that its delegator hears of it in the way in which it
delegated. Leaves to others: the rules (`bus.tasks`), what follows from an end (`bus.task_endings`), which message is about
which task (`bus.task_mail`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gagent_grpc.acp.free_json import json_value
from gagent_grpc.acp.task_messages import Status, TaskMessage, TaskMessageKind
from gagent_grpc.acp.tasks import TaskKey, TaskState
from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.task_endings import TaskEndings, TaskSchedule
from gagent_grpc.bus.task_letters import TaskLetters
from gagent_grpc.bus.task_table import TaskTable
from gagent_grpc.bus.task_values import Produced, Progressed, TaskEvent, size_of
from gagent_grpc.bus.tasks import Task
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import (
    EventsGone,
    InvalidArgument,
    MessageTooLarge,
    Unauthorised,
    shown,
)

_ENDS_BY_CALL = frozenset({TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELLED})
_REJECTED = frozenset({Status.REJECTED, "refused", "declined"})
_CANCELLED = frozenset({Status.CANCELLED, "canceled"})
_COMPLETED = frozenset({Status.COMPLETED, "success", "done"})
_FAILED = frozenset({Status.FAILED, "error"})
_NOT_BEGUN = frozenset({"REJECTED", "REFUSED"})
"""Codes of an ERROR that say that no work was done."""


class Execution:
    """Executors of one node. Synchronous; what is done by a call is durable after `Platform.flush`."""

    def __init__(
        self,
        table: TaskTable,
        letters: TaskLetters,
        endings: TaskEndings,
        schedule: TaskSchedule,
        store: Store,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._table = table
        self._letters = letters
        self._endings = endings
        self._schedule = schedule
        self._store = store
        self._clock = clock
        self._limits = limits

    # ---- by calls --------------------------------------------------------------------------------------------------

    def accept(self, caller: Caller, key: TaskKey, attempt: int) -> Task:
        """Begin an attempt, with a lease of `task_lease` seconds; again for the same one is fine.

        Args:
            caller: Who takes it up.
            key: The task.
            attempt: The one that the DELEGATE message named; 0 for the one that is due.

        Raises:
            TaskNotFound: There is no such task.
            TaskEnded: It has ended.
            AttemptSuperseded: It was handed to somebody else, or another attempt is due or in force.
            Unauthorised: The caller is no agent.
        """
        task, executor = self._table.get(key), _agent_of(caller)
        known = task.state is not TaskState.SUBMITTED
        with self._store.together():
            # A message that names no attempt means the first one, and so does one that was never told of another.
            task.accept(executor, attempt or task.attempt, self._clock.time(), leased=True)
            self._renew(task)
            if not known:
                self._letters.accepted(task)
            self._table.write(task)
        return task

    def report(
        self,
        caller: Caller,
        key: TaskKey,
        attempt: int,
        *,
        progress: Progressed | None = None,
        output: Sequence[Produced] = (),
        checkpoint: str | None = None,
        question: str = "",
        events_after: int | None = None,
    ) -> tuple[Task, list[TaskEvent]]:
        """Note how it goes, or nothing; the lease begins anew.

        Args:
            caller: The executor.
            key: The task.
            attempt: The attempt in force.
            progress: How far it is.
            output: Parts of what comes out.
            checkpoint: One JSON value as text, for whoever goes on after this attempt.
            question: What is asked of the delegator; "" for nothing.
            events_after: Sequence after which what the delegator said is returned; None for none of it.

        Returns:
            The task, and what the delegator said since; of that what is kept.

        Raises:
            TaskNotFound: There is no such task.
            TaskEnded: It has ended.
            AttemptSuperseded: The attempt is not in force.
            PreconditionFailed: It was not accepted.
            Unauthorised: The caller never had the task.
            InvalidArgument: The progress or the checkpoint has a bad value, or there was never such an event.
            MessageTooLarge: It is over a limit.
        """
        task, executor = self._worked_on(caller, key)
        if progress is not None and progress.fraction is not None and not 0 <= progress.fraction <= 1:
            raise InvalidArgument(f"fraction {progress.fraction}; expected 0 to 1", field="progress.fraction")
        if checkpoint is not None:
            _check_size(checkpoint, limit=self._limits.task_checkpoint_bytes)
            json_value(checkpoint, "checkpoint_json")
        texts = [one for part in output for one in (part.text, part.channel)]
        _check_size(question, progress.note if progress else "", *texts, limit=self._limits.max_message_bytes)
        said = self._said(task, events_after) if events_after is not None else []
        new = progress is not None or output or checkpoint is not None or question
        with self._store.together():
            task.report(
                executor,
                attempt,
                self._clock.time(),
                progress=progress,
                output=output,
                checkpoint=checkpoint,
                question=question,
            )
            self._renew(task)
            if new:
                if progress is not None:
                    self._letters.progressed(task, progress)
                if question:
                    self._letters.asked(task)
                self._table.write(task)
        return task, said

    def complete(self, caller: Caller, key: TaskKey, attempt: int, result: str) -> Task:
        """End a task with its result, one JSON value as text; "" for none. Again with the same result is fine.

        Raises:
            TaskNotFound: There is no such task.
            TaskEnded: It has ended otherwise.
            AttemptSuperseded: The attempt is not in force.
            PreconditionFailed: It was not accepted.
            Unauthorised: The caller never had the task.
            InvalidArgument: The result is no JSON.
            MessageTooLarge: It is over the message limit.
        """
        task, executor = self._worked_on(caller, key)
        _check_size(result, limit=self._limits.max_message_bytes)
        if result:
            json_value(result, "result_json")
        if task.state is TaskState.COMPLETED and _by(task, executor, attempt) and task.result == (result or None):
            return task
        now = self._clock.time()
        with self._store.together():
            task.complete(executor, attempt, result or None, now)
            self._endings.ended(task, now)
            self._letters.ended(task, by_executor=True)
        return task

    def fail(self, caller: Caller, key: TaskKey, attempt: int, state: TaskState | None, reason: str) -> Task:
        """End a task without a result: FAILED, REJECTED, or CANCELLED as was asked for. Again with the same state is fine.

        ``attempt`` is 0 where none was begun, which only REJECTED may say.

        Raises:
            TaskNotFound: There is no such task.
            TaskEnded: It has ended otherwise.
            AttemptSuperseded: The attempt is not the one that is due or in force.
            PreconditionFailed: The state of the task does not allow it.
            Unauthorised: The caller never had the task.
            InvalidArgument: It is no such state.
        """
        task, executor = self._worked_on(caller, key)
        if state not in _ENDS_BY_CALL:
            raise InvalidArgument(f"state {state}; expected failed, rejected or cancelled", field="state")
        if not attempt and state is TaskState.REJECTED:
            attempt = task.attempt
        if task.state is state and _by(task, executor, attempt):
            return task
        now = self._clock.time()
        with self._store.together():
            task.give_up(executor, attempt, state, reason or f"{state} by its executor", now)
            self._endings.ended(task, now)
            self._letters.ended(task, by_executor=True)
        return task

    def release(self, caller: Caller, key: TaskKey, attempt: int, reason: str, *, leaving: bool) -> Task:
        """Give an attempt back, due or in force, so that the task is handed over again. Again for the same one is fine.

        Args:
            caller: The executor.
            key: The task.
            attempt: The attempt; 0 for the one that is due.
            reason: Why, in words; "" where nothing is said.
            leaving: The executor is about to end its session.

        Raises:
            TaskNotFound: There is no such task.
            TaskEnded: It has ended.
            AttemptSuperseded: The attempt is not the one that is due or in force.
            Unauthorised: The caller never had the task.
            StoreUnavailable: The attempt is still being written.
        """
        task, executor = self._worked_on(caller, key)
        if not attempt and task.state is TaskState.SUBMITTED:
            attempt = task.attempt
        if not task.was_released(executor, attempt):
            assert caller.agent is not None
            self._endings.release(task, caller.agent, attempt, reason, self._clock.time(), leaving=leaving)
        return task

    def _worked_on(self, caller: Caller, key: TaskKey) -> tuple[Task, str]:
        task, executor = self._table.get(key), _agent_of(caller)
        if not task.was_executor(executor):
            raise Unauthorised(f"{executor} does not work on the task {shown(key.task_id)} of {key.delegator}")
        return task, executor

    def _renew(self, task: Task) -> None:
        if task.leased:
            self._schedule.lease(self._clock.monotonic() + self._limits.task_lease, task)

    def _said(self, task: Task, after: int) -> list[TaskEvent]:
        try:
            events = task.events_after(after)
        except EventsGone:
            # A report must not fail for that: what is kept is better than a lost lease.
            events = list(task.events)
        return [one for one in events if one.concerns_executor]

    # ---- by messages -----------------------------------------------------------------------------------------------

    def check_message(self, task: Task, message: TaskMessage, sender: str) -> None:
        """Make sure that a message of ``sender`` may drive a task that has not ended, before it is taken.

        Raises:
            Unauthorised: Another one is its executor.
            InvalidArgument: The status or the result is none.
        """
        if sender != task.executor:
            whose = f"{task.executor} is" if task.executor else "nobody is at present"
            raise Unauthorised(f"{sender} is not the executor of the task {shown(task.key.task_id)}; {whose}")
        if message.kind is not TaskMessageKind.RESULT:
            return
        if _word(message) not in _COMPLETED | _FAILED | _REJECTED | _CANCELLED | {""}:
            raise InvalidArgument(
                f"status {shown(message.status)} of a RESULT; expected completed or failed", field="acp.result.status"
            )
        if message.result is not None:
            json_value(message.result, "acp.result.result_json")

    def heard(self, task: Task, message: TaskMessage, message_id: str) -> None:
        """A message that was checked is taken: it drives the task. Its receiver has it, and is told nothing more."""
        now, word = self._clock.time(), _word(message)
        with self._store.together():
            if message.kind is TaskMessageKind.ERROR:
                reason = message.text or message.code or "an error without a text"
                self._give_up(task, TaskState.REJECTED if message.code in _NOT_BEGUN else TaskState.FAILED, reason, now)
            elif word in _REJECTED:
                self._give_up(task, TaskState.REJECTED, message.note or _short(message.result) or word, now)
            elif word in _CANCELLED:
                self._give_up(task, TaskState.FAILED, message.note or _short(message.result) or word, now)
            else:
                self._take_up(task, now)
                if message.kind is TaskMessageKind.RESULT and word in _FAILED:
                    self._give_up(task, TaskState.FAILED, _short(message.result) or word, now)
                elif message.kind is TaskMessageKind.RESULT:
                    task.complete(task.executor, task.attempt, message.result, now)
                elif word == Status.INPUT_REQUIRED:
                    question = message.note or "input is required"
                    task.report(task.executor, task.attempt, now, question=question)
                elif message.progress is not None or word == Status.RUNNING or (message.note and word != "accepted"):
                    progress = Progressed(message.progress, message.note)
                    task.report(task.executor, task.attempt, now, progress=progress)
            if task.state.final:
                task.ended_by = message_id
                self._endings.ended(task, now)
            else:
                self._table.write(task)

    def _take_up(self, task: Task, now: float) -> None:
        # By its own message it is judged by its session, unless it reports by calls.
        task.accept(task.executor, task.attempt, now, leased=False)
        self._renew(task)

    def _give_up(self, task: Task, state: TaskState, reason: str, now: float) -> None:
        """End a task without a result: rejected where nothing was accepted, cancelled where that was asked for, else failed."""
        if task.state is TaskState.SUBMITTED:
            state = TaskState.REJECTED
        elif task.cancel_requested:
            state = TaskState.CANCELLED
        elif state is not TaskState.REJECTED or task.state is not TaskState.ACCEPTED:
            state = TaskState.FAILED
        task.give_up(task.executor, task.attempt, state, reason, now)


def _agent_of(caller: Caller) -> str:
    if caller.agent is None:
        raise Unauthorised("only an agent works on tasks; open a session and show its token")
    return caller.agent.aid


def _by(task: Task, executor: str, attempt: int) -> bool:
    """Whether a task ended with this attempt of ``executor``."""
    return task.executor == executor and task.attempt == attempt


def _check_size(*texts: str, limit: int) -> None:
    size = size_of(*texts)
    if size > limit:
        raise MessageTooLarge(size, limit)


def _word(message: TaskMessage) -> str:
    return message.status.strip().lower().replace("_", "-")


def _short(result: str | None) -> str:
    return result or ""
