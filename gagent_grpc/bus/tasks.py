"""One delegated task: its states, its attempts and its events. Pure: no clock, no store, no mail.

Owns: what may follow what, that the first final state stays, that only the attempt in force may speak, the numbers of events
and how many are kept. Leaves to others: all tasks together (`bus.task_table`), handing over (`bus.handover`), leases and
deadlines (`bus.task_timers`), who may do what (`bus.delegation`, `bus.execution`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from gagent_grpc.acp.tasks import TaskKey, TaskState
from gagent_grpc.bus.task_values import (
    Answered,
    Attempt,
    CancelAsked,
    Noted,
    Produced,
    Progressed,
    Signalled,
    StateChanged,
    TaskEvent,
    TaskOrder,
    What,
    size_of,
)
from gagent_grpc.errors import (
    AttemptSuperseded,
    EventsGone,
    InvalidArgument,
    PreconditionFailed,
    TaskEnded,
)

MAX_REASON_CHARS = 1_000
"""Most characters of a reason; what is longer is cut."""
RELEASED = "released"
"""Outcome of an attempt that its executor gave back, before the words in which it said why."""
_TASK_COST = 4_000
"""What a task takes beside its texts, in bytes."""

_ENDS = frozenset(state for state in TaskState if state.final)
# An attempt that is lost leads back to SUBMITTED, and REJECTED is the word of somebody who has not begun.
_NEXT: dict[TaskState, frozenset[TaskState]] = {
    TaskState.SUBMITTED: frozenset({TaskState.SUBMITTED, TaskState.ACCEPTED} | _ENDS - {TaskState.COMPLETED}),
    TaskState.ACCEPTED: frozenset({TaskState.SUBMITTED, TaskState.RUNNING, TaskState.INPUT_REQUIRED} | _ENDS),
    TaskState.RUNNING: frozenset({TaskState.SUBMITTED, TaskState.INPUT_REQUIRED} | _ENDS - {TaskState.REJECTED}),
    TaskState.INPUT_REQUIRED: frozenset({TaskState.SUBMITTED, TaskState.RUNNING} | _ENDS - {TaskState.REJECTED}),
}
"""What may follow each state that is not final."""


def may_follow(state: TaskState, following: TaskState) -> bool:
    """Return whether ``following`` may come after ``state``; nothing comes after a final one."""
    return following in _NEXT.get(state, frozenset())


# ---- the task --------------------------------------------------------------------------------------------------------


class Task:
    """A task. Every method is done as a whole, or raises and changes nothing; times are Unix seconds."""

    __slots__ = (
        "_events_bytes",
        "_max_event_bytes",
        "_max_events",
        "attempts",
        "by_message",
        "cancel_by",
        "cancel_requested",
        "checkpoint",
        "created_at",
        "deadline",
        "depth",
        "ended_at",
        "ended_by",
        "events",
        "executor",
        "key",
        "last_event",
        "leased",
        "message_id",
        "note",
        "number",
        "order",
        "orphaned",
        "principal",
        "progress",
        "question",
        "reason",
        "result",
        "root",
        "sequence",
        "state",
        "target",
        "updated_at",
    )

    def __init__(
        self,
        number: int,
        key: TaskKey,
        order: TaskOrder,
        *,
        target: str,
        principal: str,
        created_at: float,
        root: TaskKey | None = None,
        depth: int = 1,
        deadline: float = 0.0,
        by_message: bool = False,
        max_events: int = 1_000,
        max_event_bytes: int = 1_048_576,
    ) -> None:
        """Make a task that nobody was given yet, and that has no events; `submit` begins it.

        Args:
            number: Number on this node, rising.
            key: Delegator and id.
            order: What was delegated.
            target: Whom it is for, as the delegator wrote it.
            principal: Who owned the delegator's name.
            created_at: When.
            root: First task of the chain; None for itself.
            depth: Place in the chain.
            deadline: When it expires, with what it inherits; 0.0 for never.
            by_message: It came as a DELEGATE message, so its delegator hears of it by messages.
            max_events: Events that are kept.
            max_event_bytes: Bytes of them; one is always kept.
        """
        self.number = number
        self.key = key
        self.order = order
        self.target = target
        self.principal = principal
        self.created_at = created_at
        self.root = root or key
        self.depth = depth
        self.deadline = deadline
        self.by_message = by_message
        self.state = TaskState.SUBMITTED
        self.reason = ""
        self.result: str | None = None
        self.progress: float | None = None
        self.note = ""
        self.question = ""
        self.checkpoint: str | None = None
        self.cancel_requested = False
        self.cancel_by = 0.0
        """When it is cancelled without its executor; 0.0 while nobody asked for that."""
        self.executor = ""
        """Who has it, `name@platform`; "" while it waits for somebody."""
        self.attempts: list[Attempt] = []
        self.leased = False
        """The attempt in force was accepted by a call, so it lives by its reports; else by its executor's session."""
        self.message_id = ""
        """Id of the DELEGATE message of the newest attempt."""
        self.sequence = 0
        """Its number in the mailbox of the executor."""
        self.ended_by = ""
        """Id of the message that ended it; "" where it was none."""
        self.orphaned = False
        """The name of its delegator was freed: who bears it now is somebody else."""
        self.updated_at = created_at
        self.ended_at = 0.0
        self.last_event = 0
        self.events: deque[TaskEvent] = deque()
        self._max_events = max_events
        self._max_event_bytes = max_event_bytes
        self._events_bytes = 0

    # ---- reading ---------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """Number of the newest attempt; 0 before the first one."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def counted(self) -> int:
        """Attempts that count: all but those that were given back."""
        return sum(not one.released for one in self.attempts)

    @property
    def releases(self) -> int:
        """Attempts that were given back and do not count."""
        return sum(one.released for one in self.attempts)

    @property
    def accepted(self) -> bool:
        """Whether somebody has it in hand."""
        return not self.state.final and self.state is not TaskState.SUBMITTED

    @property
    def waits(self) -> bool:
        """Whether it has still to be handed to somebody."""
        return self.state is TaskState.SUBMITTED and not self.executor

    @property
    def first_event(self) -> int:
        """Sequence of the first event that is kept; the next one's when none is."""
        return self.events[0].sequence if self.events else self.last_event + 1

    @property
    def size(self) -> int:
        """Bytes that it takes, nearly."""
        texts = size_of(self.result or "", self.checkpoint or "", self.note, self.question, self.reason)
        return _TASK_COST + self.order.size + texts + self._events_bytes

    def events_after(self, sequence: int) -> list[TaskEvent]:
        """Return the events after ``sequence``, oldest first; 0 for everything that is kept.

        Raises:
            EventsGone: The next one is not kept any more.
            InvalidArgument: There was never such an event.
        """
        if sequence > self.last_event:
            raise InvalidArgument(
                f"after {sequence:,}: the last event of the task is {self.last_event:,}", field="after"
            )
        skipped = sequence - self.first_event + 1
        if sequence and skipped < 0:
            raise EventsGone(self.key.task_id, sequence, self.first_event)
        return [self.events[index] for index in range(max(0, skipped), len(self.events))]

    def was_executor(self, aid: str, *, since: float = 0.0) -> bool:
        """Return whether ``aid`` was given the task in any attempt; the agent that bears the name ``since`` then."""
        return any(one.executor == aid and one.handed_at >= since for one in self.attempts)

    def given_at(self, aid: str, *, since: float = 0.0) -> float | None:
        """Return when ``aid`` was first given the task, in Unix seconds; None when it never was, as `was_executor` has it."""
        given = (one.handed_at for one in self.attempts if one.executor == aid and one.handed_at >= since)
        return min(given, default=None)

    def was_released(self, aid: str, attempt: int) -> bool:
        """Return whether ``aid`` gave this attempt back."""
        return any(
            one.number == attempt and one.executor == aid and one.outcome.startswith(RELEASED) for one in self.attempts
        )

    # ---- checks ----------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Make sure that the task has not ended.

        Raises:
            TaskEnded: It has.
        """
        if self.state.final:
            raise TaskEnded(self.key.task_id, str(self.state), self.reason)

    def check_asks(self) -> None:
        """Make sure that input is asked for.

        Raises:
            TaskEnded: The task has ended.
            PreconditionFailed: None is asked for.
        """
        self.check_open()
        if self.state is not TaskState.INPUT_REQUIRED:
            raise PreconditionFailed(f"the task is {self.state}; no input is asked for")

    def check_attempt(self, executor: str, attempt: int) -> None:
        """Make sure that ``executor`` speaks for the attempt that is due or in force.

        Raises:
            TaskEnded: The task has ended.
            AttemptSuperseded: Somebody else has it, or it is another attempt.
        """
        self.check_open()
        if executor != self.executor:
            why = f"{self.executor} has it" if self.executor else "it waits for another executor"
            raise AttemptSuperseded(self.key.task_id, attempt, self.attempt, why)
        if attempt != self.attempt:
            why = f"attempt {self.attempt} is"
            raise AttemptSuperseded(self.key.task_id, attempt, self.attempt, why)

    def _check_in_force(self, executor: str, attempt: int) -> None:
        self.check_attempt(executor, attempt)
        if self.state is TaskState.SUBMITTED:
            raise PreconditionFailed(f"attempt {attempt} was not accepted; accept it first")

    # ---- attempts --------------------------------------------------------------------------------------------------

    def submit(self, now: float) -> None:
        """Begin the task: its first event."""
        self._append(now, StateChanged(None, TaskState.SUBMITTED), attempt=0)

    def hand_over(self, executor: str, message_id: str, sequence: int, now: float) -> None:
        """The next attempt is due at ``executor``, whose mailbox has the DELEGATE message.

        Raises:
            PreconditionFailed: Somebody has the task, or it has ended.
        """
        self.check_open()
        if not self.waits:
            raise PreconditionFailed(f"the task {self.key.task_id!r} is with {self.executor}")
        self.attempts.append(Attempt(self.attempt + 1, executor, handed_at=now))
        self.executor, self.message_id, self.sequence = executor, message_id, sequence

    def take_back(self) -> None:
        """The attempt that is due never was: nobody has seen its message."""
        if self.state is not TaskState.SUBMITTED or not self.executor:
            raise PreconditionFailed("only an attempt that is due can be taken back")
        self.attempts.pop()
        self.executor, self.message_id, self.sequence = "", "", 0

    def lose(self, why: str, now: float) -> None:
        """The attempt is over because its executor is lost: the task waits for the next one.

        Raises:
            TaskEnded: The task has ended.
            PreconditionFailed: Nobody has it.
        """
        self.check_open()
        if not self.executor:
            raise PreconditionFailed("nobody has the task")
        self._wait_again(why, now)

    def release(self, executor: str, attempt: int, reason: str, now: float, *, counts: bool = False) -> None:
        """The attempt, due or in force, is over because its executor gives it back: the task waits for the next one.

        Args:
            executor: Who gives it back.
            attempt: Its number.
            reason: Why, in words; "" where nothing is said.
            now: Unix seconds.
            counts: It is an attempt like any other.

        Raises:
            TaskEnded: The task has ended.
            AttemptSuperseded: Somebody else has it, or it is another attempt.
        """
        self.check_attempt(executor, attempt)
        self.attempts[-1].released = not counts
        self._wait_again(_cut(f"{RELEASED}: {reason}" if reason else RELEASED), now)

    def accept(self, executor: str, attempt: int, now: float, *, leased: bool) -> None:
        """The attempt is in force. Accepting it again changes no more than how it lives.

        Raises:
            TaskEnded: The task has ended.
            AttemptSuperseded: Somebody else has it, or it is another attempt.
        """
        self.check_attempt(executor, attempt)
        # Whoever has said that it reports is judged by its reports from then on.
        self.leased = self.leased or leased
        if self.state is TaskState.SUBMITTED:
            self.attempts[-1].began_at = now
            self._enter(TaskState.ACCEPTED, now)

    # ---- what the executor says ------------------------------------------------------------------------------------

    def report(
        self,
        executor: str,
        attempt: int,
        now: float,
        *,
        progress: Progressed | None = None,
        output: Sequence[Produced] = (),
        checkpoint: str | None = None,
        question: str = "",
    ) -> None:
        """Note what the executor of the attempt in force says; nothing at all is fine, too.

        Progress makes the task running; so does anything else where it was only accepted. A question, which is noted last,
        makes it input-required.

        Raises:
            TaskEnded: The task has ended.
            AttemptSuperseded: The attempt is not in force.
            PreconditionFailed: It was not accepted.
        """
        self._check_in_force(executor, attempt)
        begins = self.state is TaskState.ACCEPTED and (output or checkpoint is not None)
        if begins or (progress is not None and self.state is not TaskState.RUNNING):
            self._enter(TaskState.RUNNING, now)
        if progress is not None:
            self.progress, self.note = progress.fraction, progress.note
            self._append(now, progress)
        for part in output:
            self._append(now, part)
        if checkpoint is not None:
            self.checkpoint = checkpoint
            self._append(now, Noted(checkpoint))
        if question and self.state is TaskState.INPUT_REQUIRED:
            # Another question takes the place of the one before.
            self._enter(TaskState.RUNNING, now)
        if question:
            self._enter(TaskState.INPUT_REQUIRED, now, question=question)

    def complete(self, executor: str, attempt: int, result: str | None, now: float) -> None:
        """End the task with its result, one JSON value as text.

        Raises:
            TaskEnded: The task has ended.
            AttemptSuperseded: The attempt is not in force.
            PreconditionFailed: It was not accepted.
        """
        self._check_in_force(executor, attempt)
        self._enter(TaskState.COMPLETED, now, result=result)

    def give_up(self, executor: str, attempt: int, state: TaskState, reason: str, now: float) -> None:
        """End the task without a result, as its executor wants it: failed, rejected, or cancelled as was asked for.

        Raises:
            TaskEnded: The task has ended.
            AttemptSuperseded: The attempt is not the one that is due or in force.
            PreconditionFailed: Work has begun and it can no longer be rejected, or none has and it cannot fail, or nobody
                asked to cancel it.
        """
        self.check_attempt(executor, attempt)
        if state is TaskState.REJECTED and self.state not in {TaskState.SUBMITTED, TaskState.ACCEPTED}:
            raise PreconditionFailed(f"the task is {self.state}; only one on which no work was done is rejected")
        if state is not TaskState.REJECTED:
            self._check_in_force(executor, attempt)
        if state is TaskState.CANCELLED and not self.cancel_requested:
            raise PreconditionFailed("nobody asked to cancel the task; expected failed, or rejected before work began")
        if state not in {TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELLED}:
            raise PreconditionFailed(f"an executor cannot end a task as {state}")
        self._enter(state, now, reason)

    # ---- what the delegator says, and the bus ----------------------------------------------------------------------

    def answer(self, answer: str, now: float) -> None:
        """Give the input that was asked for, one JSON value as text; the task runs on.

        Raises:
            TaskEnded: The task has ended.
            PreconditionFailed: None is asked for.
        """
        self.check_asks()
        self._append(now, Answered(answer))
        self._enter(TaskState.RUNNING, now)

    def signal(self, name: str, value: str, now: float) -> None:
        """Tell the executor something.

        Raises:
            TaskEnded: The task has ended.
        """
        self.check_open()
        self._append(now, Signalled(name, value))

    def ask_to_cancel(self, reason: str, now: float, *, by: float) -> bool:
        """Ask the executor to end the task before ``by``; return False where that was asked before.

        Raises:
            TaskEnded: The task has ended.
        """
        self.check_open()
        if self.cancel_requested:
            return False
        self.cancel_requested = True
        self.cancel_by = by
        self._append(now, CancelAsked(_cut(reason)))
        return True

    def end(self, state: TaskState, reason: str, now: float) -> None:
        """End the task by the bus: failed, rejected, cancelled or expired.

        Raises:
            TaskEnded: The task has ended.
            PreconditionFailed: It cannot end so from its state.
        """
        self.check_open()
        if state is TaskState.COMPLETED:
            raise PreconditionFailed("only its executor completes a task")
        self._enter(state, now, reason)

    # ---- for a store -----------------------------------------------------------------------------------------------

    def restore_events(self, events: Iterable[TaskEvent], last: int) -> None:
        """Take over events that a store held, oldest first, and the sequence of the last one that ever was."""
        for one in events:
            self._keep(one)
        self.last_event = max(last, self.last_event)

    def keep_little(self) -> None:
        """Keep the newest event only: the bus has no room for more."""
        while len(self.events) > 1:
            self._forget_first()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _enter(
        self,
        state: TaskState,
        now: float,
        reason: str = "",
        *,
        result: str | None = None,
        question: str = "",
        attempt: int | None = None,
    ) -> None:
        self.check_open()
        former = self.state
        if not may_follow(former, state):
            raise PreconditionFailed(f"the task is {former}, and cannot become {state}")
        reason = _cut(reason)
        self.state, self.reason, self.result, self.question = state, reason, result, question
        if state.final:
            self.ended_at = now
            self._end_attempt(now, reason if state is TaskState.FAILED and reason else str(state))
            self.leased = False
        self._append(now, StateChanged(former, state, reason, result, question), attempt=attempt)

    def _wait_again(self, why: str, now: float) -> None:
        over = self.attempt
        self._end_attempt(now, why)
        self.executor, self.message_id, self.sequence, self.leased = "", "", 0, False
        self.progress, self.note, self.question = None, "", ""
        self._enter(TaskState.SUBMITTED, now, why, attempt=over)

    def _end_attempt(self, now: float, outcome: str) -> None:
        if self.attempts and not self.attempts[-1].ended_at:
            self.attempts[-1].ended_at = now
            self.attempts[-1].outcome = outcome

    def _append(self, now: float, what: What, *, attempt: int | None = None) -> None:
        number = attempt if attempt is not None else self.attempt if self.accepted or self.state.final else 0
        self.updated_at = now
        self._keep(TaskEvent(self.last_event + 1, now, number, what))

    def _keep(self, event: TaskEvent) -> None:
        self.last_event = event.sequence
        self.events.append(event)
        self._events_bytes += event.size
        while len(self.events) > 1 and (
            len(self.events) > self._max_events or self._events_bytes > self._max_event_bytes
        ):
            self._forget_first()

    def _forget_first(self) -> None:
        self._events_bytes -= self.events.popleft().size


def _cut(reason: str) -> str:
    return reason[:MAX_REASON_CHARS]
