"""What a handler of delegated tasks holds in hand: the task, and the ways to speak to its delegator while it works.

Owns: both forms of it, for handlers on the loop and for handlers in threads. Leaves to others: telling the bus
(`client.task_reports`), running the handler (`client.executing`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from gagent_grpc.acp.free_json import json_text
from gagent_grpc.acp.tasks import Attachment, DelegatedTask, OnExecutorLost, Signal, TaskEvent, TaskEventKind, TaskKey
from gagent_grpc.client.task_calls import Begun, TaskCalls
from gagent_grpc.client.task_reports import Reports
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import AnswerTimeout, InvalidArgument, PreconditionFailed

if TYPE_CHECKING:
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.contexts import SharedContext
    from gagent_grpc.client.tasks import Task

_logger = logging.getLogger(__name__)

_MAX_SIGNALS = 1_000
"""Signals that wait to be read; beyond that the oldest one goes."""
_LOOK_AGAIN_S = 1.0
"""Seconds after which a thread that waits looks whether anybody is left to wait for."""
T = TypeVar("T")


class _Attempt:
    """What both forms show of a task."""

    def __init__(self, agent: Agent, begun: Begun) -> None:
        self.agent = agent
        """The agent that works on it."""
        self.task: DelegatedTask = begun.task
        """The task as it was when this attempt began."""
        self.attempt = begun.attempt
        """Number of this attempt, from 1."""

    @property
    def task_id(self) -> str:
        """Id of the task."""
        return self.task.task_id

    @property
    def delegator(self) -> str:
        """Who delegated it, `name@platform`."""
        return self.task.delegator

    @property
    def description(self) -> str:
        """What is to be done, in words."""
        return self.task.description

    @property
    def parameters(self) -> dict[str, Any]:
        """Arguments; {} for none."""
        return self.task.parameters

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """What belongs to it and lies elsewhere."""
        return self.task.attachments

    @property
    def checkpoint(self) -> Any:
        """What an earlier attempt saved last; None when none did."""
        return self.task.checkpoint

    @property
    def deadline(self) -> datetime | None:
        """When the task expires; None for never."""
        return self.task.deadline

    @property
    def shared(self) -> SharedContext:
        """The shared context of the tree that the task belongs to, as `Agent.context` returns it."""
        return self.agent.context(task=self.task)


class TaskContext(_Attempt):
    """One attempt at a task, for a handler that is `async def`.

    When the delegator asks to cancel the task, or the attempt is not in force any more, the handler is cancelled: it may
    clean up, and raises `asyncio.CancelledError` on.
    """

    def __init__(self, agent: Agent, calls: TaskCalls, begun: Begun, limits: ClientLimits, largest: int) -> None:
        super().__init__(agent, begun)
        self._signals: deque[Signal] = deque(maxlen=_MAX_SIGNALS)
        self._came = asyncio.Event()
        self._asking = asyncio.Lock()
        self._answer: asyncio.Future[Any] | None = None
        self._ended = False
        self._stopped = False
        self.cancel_reason = ""
        """Why the delegator wants the task to end, in words; "" where it said nothing."""
        self.release_reason: str | None = None
        """Why the handler gives the attempt back, in words; None while it does not."""
        self._over = asyncio.Event()
        self._reports = Reports(
            calls,
            begun,
            most_bytes=limits.task_output_bytes,
            largest=largest,
            heard=self._hear,
            cancelled=self._to_be_cancelled,
        )
        self._to_cancel = asyncio.Event()
        self._to_release = asyncio.Event()

    # ---- for the handler -------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is to end: the delegator asked for it, it is given back, or it is not in force any more."""
        return self._stopped

    async def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Tell how far the work is. This does not wait; of several in a short time the latest is told, before output that
        came between them.

        Args:
            fraction: From 0 to 1; None where it is not known.
            note: What is being done, in words.

        Raises:
            InvalidArgument: ``fraction`` is not from 0 to 1, or something told earlier was refused.
            PreconditionFailed: The attempt is over, or not in force any more.
        """
        if fraction is not None:
            number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
            if not number or math.isnan(fraction) or not 0 <= fraction <= 1:
                raise InvalidArgument(f"progress {fraction!r}; expected 0 to 1", field="progress")
        self._reports.progress(fraction, _text(note, "note"))

    async def output(self, text: str, channel: str = "") -> None:
        """Give a part of what comes out, in order. This waits only when the bus is far behind.

        Args:
            text: The part.
            channel: Where it belongs, when there are several outputs.

        Raises:
            InvalidArgument: No text, or something told earlier was refused.
            MessageTooLarge: The part alone is over the message limit of the bus.
            PreconditionFailed: The attempt is over, or not in force any more.
        """
        await self._reports.output(_text(text, "output"), _text(channel, "channel"))

    async def save(self, checkpoint: Any) -> None:
        """Note something for whoever goes on after this attempt, and wait until the bus keeps it.

        Args:
            checkpoint: JSON value, at most 256 KiB; it takes the place of the one before.

        Raises:
            InvalidArgument: No JSON value, or too large.
            PreconditionFailed: The attempt is over, or not in force any more.
        """
        await self._reports.save(json_text(checkpoint, "checkpoint"))

    async def ask(self, question: str, *, timeout: float | None = None) -> Any:
        """Ask the delegator for input and wait for it; one question at a time, others wait.

        Args:
            question: What is asked, in words.
            timeout: Seconds; None for as long as it takes.

        Returns:
            The input, a JSON value.

        Raises:
            AnswerTimeout: None came in time.
            InvalidArgument: No question.
            PreconditionFailed: The attempt is over, or not in force any more.
        """
        if not _text(question, "question"):
            raise InvalidArgument("question ''; expected what is asked", field="question")
        try:
            async with asyncio.timeout(timeout), self._asking:
                answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self._answer = answer
                try:
                    await self._reports.ask(question)
                    return await answer
                finally:
                    self._answer = None
        except TimeoutError:
            raise AnswerTimeout(self.delegator, timeout or 0.0) from None

    async def signals(self) -> AsyncGenerator[Signal, None]:
        """Iterate over what the delegator tells this task, in order, until the attempt is over."""
        while True:
            while self._signals:
                yield self._signals.popleft()
            if self._ended:
                return
            self._came.clear()
            await self._came.wait()

    def check(self) -> None:
        """Raise `asyncio.CancelledError` when the attempt is to end, for handlers that wait for nothing in between."""
        if self.cancelled:
            raise asyncio.CancelledError

    async def release(self, reason: str = "") -> NoReturn:
        """Give this attempt back, and end the handler: it is cancelled here, may clean up, and what it returns is nobody's.

        The task is handed over again at once, whatever its policy, with what was saved last: to another agent that serves
        its role, where there is one, else to this one. The attempt does not count as lost. The bus takes 20 attempts at a
        task back; from then on they count.

        Args:
            reason: Why, in words.

        Raises:
            asyncio.CancelledError: Always, when the attempt was in force.
            InvalidArgument: The reason is no text.
            PreconditionFailed: The attempt is over, or not in force any more.
        """
        reason = _text(reason, "reason")
        if self._reports.over is not None:
            raise self._reports.over
        self.release_reason = reason
        self._to_release.set()
        # Whoever runs the handler cancels it, so that it ends as by any other cancellation.
        await self._over.wait()
        raise asyncio.CancelledError

    async def delegate(
        self,
        target: str,
        description: str = "",
        parameters: dict[str, Any] | None = None,
        *,
        task_id: str | None = None,
        deadline: float | datetime | None = None,
        callback_url: str | None = None,
        on_executor_lost: OnExecutorLost = OnExecutorLost.FAIL,
        max_attempts: int | None = None,
        attachments: Iterable[Attachment] = (),
        priority: Priority | None = None,
        timeout: float | None = None,
        wait_for_provider: bool = False,
    ) -> Task:
        """Delegate a part of the work. The new task comes of this one: it ends with it, and expires no later.

        Arguments, result and errors as `Agent.delegate`; the priority is that of this task by default. An attempt that goes
        on after another one should give its parts the same ids.

        Raises:
            PreconditionFailed: This task has ended, or the chain would be of more than 8 tasks.
        """
        return await self.agent._delegate(
            target,
            description,
            parameters,
            task_id=task_id,
            deadline=deadline,
            callback_url=callback_url,
            on_executor_lost=on_executor_lost,
            max_attempts=max_attempts,
            attachments=attachments,
            priority=self.task.priority if priority is None else priority,
            timeout=timeout,
            wait_for_provider=wait_for_provider,
            parent=TaskKey(self.delegator, self.task_id),
        )

    # ---- for whoever runs it ---------------------------------------------------------------------------------------

    @property
    def to_cancel(self) -> asyncio.Event:
        """Set once the delegator has asked to cancel the task."""
        return self._to_cancel

    @property
    def to_release(self) -> asyncio.Event:
        """Set once the handler has given the attempt back."""
        return self._to_release

    @property
    def reports(self) -> Reports:
        """What is told of the attempt."""
        return self._reports

    def stop(self) -> None:
        """The attempt is to end: whoever waits in a thread hears it."""
        self._stopped = True
        self._over.set()
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()

    def end(self) -> None:
        """The handler is done; what is left of it in other tasks hears no more."""
        self._ended = True
        self._came.set()
        self._over.set()

    def _to_be_cancelled(self) -> None:
        self._to_cancel.set()

    def _hear(self, event: TaskEvent) -> None:
        if event.kind is TaskEventKind.CANCEL_REQUESTED:
            self.cancel_reason = event.reason
        elif event.kind is TaskEventKind.SIGNAL:
            if len(self._signals) == _MAX_SIGNALS:
                _logger.warning("task %s: signals are not read; the oldest one is forgotten", self.task_id)
            self._signals.append(Signal(event.name, event.value))
            self._came.set()
        elif (
            event.kind is TaskEventKind.ANSWER
            and event.attempt == self.attempt
            and self._answer is not None
            and not self._answer.done()
        ):
            # One that was meant for an earlier attempt is not for this one.
            self._answer.set_result(event.value)


class BlockingTaskContext(_Attempt):
    """One attempt at a task, for a handler that is `def` and runs in a thread; the methods wait as the work does.

    A thread cannot be cancelled from outside. When the attempt is to end, `check` and every other method raise
    `asyncio.CancelledError`, which a handler that works for long therefore calls now and then.
    """

    def __init__(self, context: TaskContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(context.agent, Begun(context.task, context.attempt, 0.0))
        self._context = context
        self._loop = loop

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is to end: the delegator asked for it, it is given back, or it is not in force any more."""
        return self._context.cancelled

    def check(self) -> None:
        """Raise `asyncio.CancelledError` when the attempt is to end."""
        self._context.check()

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """As `TaskContext.progress`."""
        self.run(self._context.progress(fraction, note))

    def output(self, text: str, channel: str = "") -> None:
        """As `TaskContext.output`."""
        self.run(self._context.output(text, channel))

    def save(self, checkpoint: Any) -> None:
        """As `TaskContext.save`."""
        self.run(self._context.save(checkpoint))

    def ask(self, question: str, *, timeout: float | None = None) -> Any:
        """As `TaskContext.ask`."""
        return self.run(self._context.ask(question, timeout=timeout))

    def release(self, reason: str = "") -> NoReturn:
        """As `TaskContext.release`; raises `asyncio.CancelledError`, at which the handler has to end."""
        self.run(self._context.release(reason))
        raise asyncio.CancelledError

    def signals(self) -> Iterator[Signal]:
        """Iterate over what the delegator has told this task and was not read yet; waits for nothing."""
        self.check()
        signals = self._context._signals
        while signals:
            yield signals.popleft()

    def delegate(
        self, target: str, description: str = "", parameters: dict[str, Any] | None = None, **more: Any
    ) -> Task:
        """As `TaskContext.delegate`. What the handle can do is done by `run`, as in ``ctx.run(task.result())``."""
        return self.run(self._context.delegate(target, description, parameters, **more))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the agent's loop and return what it returns, such as ``ctx.run(ctx.agent.request(...))``.

        Raises:
            asyncio.CancelledError: The attempt is to end.
            PreconditionFailed: The agent's loop is closed.
        """
        try:
            self.check()
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException as error:
            coroutine.close()
            if isinstance(error, RuntimeError):
                raise PreconditionFailed("the agent is closed") from error
            raise
        while True:
            try:
                return future.result(_LOOK_AGAIN_S)
            except concurrent.futures.CancelledError as error:
                raise asyncio.CancelledError from error
            except TimeoutError:
                if future.done():
                    # The coroutine's own.
                    raise
                if self._loop.is_closed():
                    raise PreconditionFailed("the agent is closed") from None
                if self.cancelled:
                    future.cancel()
                    raise asyncio.CancelledError from None


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{field} of type {type(value).__name__}; expected text", field=field)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{field}: has a lone surrogate; expected valid Unicode", field=field) from error
    return value
