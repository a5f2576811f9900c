"""The calls of the bus about tasks, in the name of one agent: those of delegators, and those of executors.

Owns: requests and responses as values, and repeating a call until the bus answers. Leaves to others: what a delegator
holds in hand (`client.tasks`), working on a task (`client.executing`), the wire (`codec.tasks`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import grpc

from gagent_grpc.acp.free_json import json_text, parameters_text
from gagent_grpc.acp.tasks import Attachment, DelegatedTask, OnExecutorLost, TaskEvent, TaskKey, TaskState
from gagent_grpc.client.transport import Calls, request_of
from gagent_grpc.codec.tasks import (
    attachment_to_proto,
    event_from_proto,
    policy_to_proto,
    priority_to_proto,
    state_from_proto,
    state_to_proto,
    task_from_proto,
)
from gagent_grpc.codec.times import timestamp_to_proto
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import BusError, InvalidArgument, NoProvider, ResourceExhausted, Unauthenticated, Unavailable
from gagent_grpc.pb.gagent.v1 import task_service_pb2, task_service_pb2_grpc

_logger = logging.getLogger(__name__)

_PAGE = 100
_DAY = 86_400.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt that is in force."""

    task: DelegatedTask
    """With the last checkpoint of an earlier attempt."""
    attempt: int
    lease: float
    """Seconds after which it counts as lost when nothing is reported."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What an executor hears when it reports."""

    state: TaskState | None
    cancel_requested: bool
    events: list[TaskEvent]
    """Answers, signals and wishes to cancel."""
    lease: float
    """Seconds that the lease runs from now."""


class TaskCalls:
    """Calls in the name of one agent, or of nobody. Each raises the error that the bus raised, or BusUnreachable."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._made: tuple[grpc.aio.Channel, task_service_pb2_grpc.TaskServiceAsyncStub] | None = None

    async def _stub(self) -> task_service_pb2_grpc.TaskServiceAsyncStub:
        channel = await self._calls.channel()
        if self._made is None or self._made[0] is not channel:
            # One for each connection: making it costs more than a call.
            self._made = channel, task_service_pb2_grpc.TaskServiceStub(channel)
        return self._made[1]

    @property
    def endpoint(self) -> str:
        """`HOST:PORT` of the bus in use."""
        return self._calls.endpoint

    @property
    def token(self) -> str:
        """Session token that calls carry at present; "" for none."""
        return self._calls.token

    @property
    def initial_backoff(self) -> float:
        """Upper bound of the first wait before another attempt, in seconds."""
        return self._calls.initial_backoff

    @property
    def max_backoff(self) -> float:
        """Upper bound of any such wait, in seconds."""
        return self._calls.max_backoff

    async def insist(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        failed: Callable[[BusError], None] = lambda error: None,
        wait_for_provider: bool = False,
    ) -> T:
        """Return what ``call`` returns, called again with growing pauses while no bus is to be reached.

        Args:
            call: One attempt.
            failed: Hears of each attempt that is followed by another one.
            wait_for_provider: Nobody who serves a role passes, too.

        Raises:
            BusError: What a repetition does not mend.
        """
        longest = self._calls.initial_backoff
        while True:
            token = self._calls.token
            try:
                return await call()
            except Unavailable as error:
                if isinstance(error, NoProvider) and not wait_for_provider:
                    raise
                failed(error)
                pause = longest
            except Unauthenticated:
                # The agent has another session meanwhile, or will have one; else it is not known any more.
                if not token or token == self._calls.token:
                    raise
                pause = 0.0
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311  # Spreads the load; nothing secret.
            longest = min(2 * longest, self._calls.max_backoff)

    # ---- delegators ------------------------------------------------------------------------------------------------

    async def hand_over(self, request: task_service_pb2.DelegateTaskRequest) -> tuple[DelegatedTask, bool]:
        """Delegate a task as it travels; return it, and whether it existed before."""
        response = await self._calls.unary((await self._stub()).DelegateTask, request)
        return task_from_proto(response.task), response.existed

    async def take_deadline(self, request: task_service_pb2.DelegateTaskRequest) -> None:
        """Give a delegation the deadline of the task of its id that is there."""
        asked = task_service_pb2.GetTaskRequest(task_id=request.task_id)
        found = await self._calls.unary((await self._stub()).GetTask, asked)
        # As it travels: a datetime has fewer digits.
        request.ClearField("deadline")
        if found.task.HasField("deadline"):
            request.deadline.CopyFrom(found.task.deadline)

    async def get(self, key: TaskKey) -> DelegatedTask:
        """Return a task."""
        request = request_of(lambda: task_service_pb2.GetTaskRequest(task_id=key.task_id, delegator=key.delegator))
        return task_from_proto((await self._calls.unary((await self._stub()).GetTask, request)).task)

    async def list(
        self, *, delegator: str = "", executor: str = "", states: Sequence[TaskState] = (), page: int = _PAGE
    ) -> AsyncGenerator[DelegatedTask, None]:
        """Iterate over tasks, newest first, ``page`` at a time."""
        request = request_of(
            lambda: task_service_pb2.ListTasksRequest(
                delegator=delegator,
                executor=executor,
                states=[state_to_proto(state) for state in states],
                max_results=page,
            )
        )
        while True:
            response = await self._calls.unary((await self._stub()).ListTasks, request)
            for task in response.tasks:
                yield task_from_proto(task)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def answer(self, key: TaskKey, value: Any) -> DelegatedTask:
        """Give input that was asked for."""
        request = request_of(
            lambda: task_service_pb2.AnswerTaskRequest(
                task_id=key.task_id, delegator=key.delegator, answer_json=json_text(value, "answer")
            )
        )
        return task_from_proto((await self._calls.unary((await self._stub()).AnswerTask, request)).task)

    async def signal(self, key: TaskKey, name: str, value: Any = None) -> DelegatedTask:
        """Tell the executor something."""
        text = "" if value is None else json_text(value, "value")
        request = request_of(
            lambda: task_service_pb2.SignalTaskRequest(
                task_id=key.task_id, delegator=key.delegator, name=name, value_json=text
            )
        )
        return task_from_proto((await self._calls.unary((await self._stub()).SignalTask, request)).task)

    async def cancel(self, key: TaskKey, reason: str = "") -> DelegatedTask:
        """Ask to end a task."""
        request = request_of(
            lambda: task_service_pb2.CancelTaskRequest(task_id=key.task_id, delegator=key.delegator, reason=reason)
        )
        return task_from_proto((await self._calls.unary((await self._stub()).CancelTask, request)).task)

    async def watch(self, key: TaskKey, after: int | None = None) -> AsyncGenerator[DelegatedTask | TaskEvent, None]:
        """Iterate over one stream: the task as it is, then its events after a cursor; it ends with the task's last one.

        Args:
            key: The task.
            after: Sequence of the last event that was read; None for what happens from now on only.
        """
        request = request_of(
            lambda: task_service_pb2.WatchTaskRequest(task_id=key.task_id, delegator=key.delegator, after=after)
        )
        call = await self._calls.begin((await self._stub()).WatchTask, request)
        try:
            while (told := await self._calls.read(call)) is not None:
                if told.HasField("task"):
                    yield task_from_proto(told.task)
                elif told.HasField("event"):
                    yield event_from_proto(told.event)
        finally:
            call.cancel()

    # ---- executors -------------------------------------------------------------------------------------------------

    async def accept(self, key: TaskKey, attempt: int) -> Begun:
        """Begin an attempt; 0 for the one that is due."""
        request = task_service_pb2.AcceptTaskRequest(delegator=key.delegator, task_id=key.task_id, attempt=attempt)
        response = await self._calls.unary((await self._stub()).AcceptTask, request)
        return Begun(task_from_proto(response.task), response.attempt, response.lease_seconds)

    async def report(self, request: task_service_pb2.ReportTaskRequest) -> Reported:
        """Say how a task goes."""
        response = await self._calls.unary((await self._stub()).ReportTask, request)
        return Reported(
            state_from_proto(response.state),
            response.cancel_requested,
            [event_from_proto(event) for event in response.events],
            response.lease_seconds,
        )

    async def complete(self, key: TaskKey, attempt: int, result: str) -> None:
        """End a task with its result, as JSON text."""
        request = task_service_pb2.CompleteTaskRequest(
            delegator=key.delegator, task_id=key.task_id, attempt=attempt, result_json=result
        )
        await self._calls.unary((await self._stub()).CompleteTask, request)

    async def fail(self, key: TaskKey, attempt: int, state: TaskState, reason: str) -> None:
        """End a task without a result."""
        request = task_service_pb2.FailTaskRequest(
            delegator=key.delegator, task_id=key.task_id, attempt=attempt, state=state_to_proto(state), reason=reason
        )
        await self._calls.unary((await self._stub()).FailTask, request)

    async def release(self, key: TaskKey, attempt: int, reason: str, *, leaving: bool) -> None:
        """Give an attempt back, 0 for the one that is due; ``leaving`` when the session is about to end."""
        request = task_service_pb2.ReleaseTaskRequest(
            delegator=key.delegator, task_id=key.task_id, attempt=attempt, reason=reason, leaving=leaving
        )
        await self._calls.unary((await self._stub()).ReleaseTask, request)


class Pauses:
    """Waits between two streams that follow the same task: longer each time, until something is heard again."""

    def __init__(self, calls: TaskCalls) -> None:
        self._calls = calls
        self._longest = calls.initial_backoff
        self.crowded = False
        """The bus had no room for another stream."""

    def reset(self) -> None:
        """Something was heard."""
        self._longest = self._calls.initial_backoff

    @contextlib.contextmanager
    def forgiven(self, task_id: str) -> Iterator[None]:
        """Take what passes by itself for the end of the stream; raise everything else."""
        token = self._calls.token
        self.crowded = False
        try:
            yield
        except (Unavailable, ResourceExhausted) as error:
            self.crowded = isinstance(error, ResourceExhausted)
            _logger.info("task %s: the stream has ended (%s); it begins again", task_id, error)
        except Unauthenticated:
            # The agent has another session meanwhile; else it is not known any more.
            if not token or token == self._calls.token:
                raise

    async def pause(self) -> None:
        """Wait before the next stream."""
        await asyncio.sleep(random.uniform(0, self._longest))  # noqa: S311  # Spreads the load; nothing secret.
        self._longest = min(2 * self._longest, self._calls.max_backoff)


def delegation(
    task_id: str,
    target: str,
    description: str,
    parameters: dict[str, Any] | None = None,
    *,
    deadline: float | datetime | None = None,
    callback_url: str | None = None,
    on_executor_lost: OnExecutorLost = OnExecutorLost.FAIL,
    max_attempts: int = 0,
    attachments: Iterable[Attachment] = (),
    priority: Priority = Priority.NORMAL,
    parent: TaskKey | None = None,
) -> task_service_pb2.DelegateTaskRequest:
    """Return a delegation as it travels; arguments as `Agent.delegate`.

    Raises:
        InvalidArgument: A value cannot travel.
    """
    if not isinstance(max_attempts, int) or max_attempts < 0:
        raise InvalidArgument(f"max_attempts {max_attempts!r}; expected 1 or more", field="max_attempts")
    try:
        request = task_service_pb2.DelegateTaskRequest(
            task_id=task_id,
            target=target,
            description=description,
            parameters_json=parameters_text(parameters),
            callback_url=callback_url,
            on_executor_lost=policy_to_proto(on_executor_lost),
            max_attempts=max_attempts,
            attachments=[attachment_to_proto(one) for one in attachments],
            priority=priority_to_proto(priority),
        )
        if parent is not None:
            request.parent_delegator, request.parent_task_id = parent
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"the task cannot be delegated: {error}", field="task") from error
    moment = moment_of(deadline, "deadline")
    if moment is not None:
        request.deadline.CopyFrom(timestamp_to_proto(moment, "deadline"))
    return request


def moment_of(when: float | datetime | None, field: str) -> datetime | None:
    """Return the moment that ``when``, the value of ``field``, stands for: seconds from now, or itself.

    Raises:
        InvalidArgument: It is no positive number of seconds, or too far away.
    """
    if when is None or isinstance(when, datetime):
        return when
    if isinstance(when, bool) or not isinstance(when, int | float) or not 0 < when < 1_000_000 * _DAY:
        raise InvalidArgument(f"{field} {when!r}: expected seconds from now, or an aware datetime", field=field)
    return datetime.now(UTC) + timedelta(seconds=when)


def is_gone(error: BusError) -> bool:
    """Whether ``error`` says that a task, or an attempt at it, is nobody's to work on any more."""
    return error.status in ("FAILED_PRECONDITION", "NOT_FOUND", "PERMISSION_DENIED")
