"""Working on delegated tasks: from the DELEGATE message to the end of an attempt.

Owns: which handler a task is for, how many are worked on at the same time, and what becomes of an attempt when its handler
returns, raises, is cancelled or is cut off. Leaves to others: what a handler may say (`client.task_context`), reports and
the lease (`client.task_reports`), agents that have handlers of messages alone (`client.acp`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from gagent_grpc.acp.free_json import json_text
from gagent_grpc.acp.tasks import DelegatedTask, OnExecutorLost, TaskEventKind, TaskKey, TaskState
from gagent_grpc.client.acp.handling import ACPHandling
from gagent_grpc.client.acp.message import ReceivedACP
from gagent_grpc.client.active import Active
from gagent_grpc.client.activity import Activity
from gagent_grpc.client.answers import Declined, Refuse
from gagent_grpc.client.deliveries import Taken
from gagent_grpc.client.lanes import Job
from gagent_grpc.client.session import ClientSession
from gagent_grpc.client.task_calls import Begun, Pauses, TaskCalls, is_gone
from gagent_grpc.client.task_context import BlockingTaskContext, TaskContext
from gagent_grpc.client.threads import Threads
from gagent_grpc.config import ClientLimits
from gagent_grpc.errors import BusError, InvalidArgument, PreconditionFailed, TaskRefused

if TYPE_CHECKING:
    from gagent_grpc.client.agent import Agent

_logger = logging.getLogger(__name__)

_LAST_WORDS_S = 3.0
"""Seconds in which the bus is to hear of an attempt that is cut off; else its lease tells."""
_AT_ONCE = 16
"""Attempts that are given back at the same time."""
_LISTEN_AFTER_S = 0.05
_CONCERNS = {TaskEventKind.ANSWER, TaskEventKind.SIGNAL, TaskEventKind.CANCEL_REQUESTED}
_ROLE = "role:"
_MAX_REASON_CHARS = 500

TaskHandler = Callable[[TaskContext], Awaitable[Any]] | Callable[[BlockingTaskContext], Any]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Registered:
    services: frozenset[str]
    """Types of services; empty for any target."""
    when: Callable[[DelegatedTask], bool] | None
    handler: Callable[..., Any]
    is_async: bool

    def fits(self, task: DelegatedTask) -> bool:
        if self.services and task.target.removeprefix(_ROLE) not in self.services:
            return False
        return self.when is None or self.when(task)


class Executor:
    """Works on the tasks of one agent.

    A DELEGATE is acknowledged once its attempt has begun; what is beyond the bound waits unacknowledged. Every attempt is a
    task of the loop that this object holds on to until it is over.
    """

    def __init__(
        self, agent: Agent, calls: TaskCalls, session: ClientSession, activity: Activity, limits: ClientLimits
    ) -> None:
        self._agent = agent
        self._calls = calls
        self._session = session
        self._deliveries = session.deliveries
        self._limits = limits
        self._entries: list[_Registered] = []
        self._waiting: deque[tuple[Job, TaskKey, int]] = deque()
        self._running: dict[asyncio.Task[None], TaskContext | None] = {}
        self._threads = Threads(f"{agent.name}-task", limits.task_concurrency)
        self._closed = False
        self._activity = activity

    def add(
        self, services: tuple[str, ...], when: Callable[[DelegatedTask], bool] | None, handler: Callable[..., Any]
    ) -> None:
        """Register a handler; the first one that fits a task gets it."""
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        wanted = frozenset(service.removeprefix(_ROLE) for service in services)
        self._entries.append(_Registered(wanted, when, handler, is_async))

    @property
    def working(self) -> int:
        """Attempts that run at present."""
        return len(self._running)

    # ---- beginning and end -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin attempts from now on."""
        self._closed = False

    async def stop(self, patience: float | None) -> None:
        """Begin no attempt any more, and end those that run. Idempotent.

        What has not begun is given back. What runs is given ``patience`` seconds to end, or all the time it needs for
        None, and is then cut off: handlers are cancelled, and the bus hears of it. There a task fails, unless it is one that
        is to be delivered again: that one is given back, too, and goes to the next executor at once.
        """
        self._closed = True
        waiting, self._waiting = self._waiting, deque()
        running = {task for task in self._running if task is not asyncio.current_task()}
        async with asyncio.TaskGroup() as group:
            if waiting:
                group.create_task(self._give_back(waiting))
            if running:
                _, running = await asyncio.wait(running, timeout=patience)
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def aclose(self) -> None:
        """End everything at once. Idempotent."""
        await self.stop(0.0)
        self._threads.close()

    async def _give_back(self, waiting: deque[tuple[Job, TaskKey, int]]) -> None:
        """Give back attempts that have not begun, as far as the bus hears of it in time; the rest comes to the next session."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def give_back(job: Job, key: TaskKey, attempt: int) -> None:
            async with room:
                await self._release(key, attempt, self._was_closed, leaving=True)
            self._deliveries.handled(job)

        left = {asyncio.create_task(give_back(*one)): one[0] for one in waiting}
        try:
            # Nobody hears of it where there is no session.
            await asyncio.wait(left, timeout=_LAST_WORDS_S if self._session.is_open else 0.0)
        finally:
            for task, job in left.items():
                if not task.done() or task.exception() is not None:
                    task.cancel()
                    self._deliveries.leave(job)
            await asyncio.gather(*left, return_exceptions=True)

    # ---- DELEGATEs -------------------------------------------------------------------------------------------------

    async def take(self, job: Job, message: ReceivedACP) -> Taken:
        """Take a DELEGATE, to begin it when there is room."""
        wire = job.delivery.message.acp.delegation
        if not wire.task_id:
            _logger.warning("%s: a DELEGATE of %s names no task", self._agent.name, message.source)
            return Taken.HANDLED
        key = TaskKey(wire.delegator or job.delivery.sender, wire.task_id)
        if self._closed:
            self._deliveries.leave(job)
            return Taken.KEPT
        self._waiting.append((job, key, wire.attempt))
        self._fill()
        return Taken.KEPT

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._limits.task_concurrency and not self._closed:
            job, key, attempt = self._waiting.popleft()
            task = asyncio.create_task(self._work(job, key, attempt), name=f"task {key.task_id}")
            self._running[task] = None
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # Never seen, and if it is, it must be heard of.
            _logger.error("%s: %s broke", self._agent.name, task.get_name(), exc_info=error)
        self._fill()

    # ---- one attempt -----------------------------------------------------------------------------------------------

    async def _work(self, job: Job, key: TaskKey, attempt: int) -> None:
        begun = await self._begin(job, key, attempt)
        if begun is None:
            return
        context = TaskContext(self._agent, self._calls, begun, self._limits, self._session.max_message_bytes)
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = context
        entry = next((one for one in self._entries if self._fits(one, begun.task)), None)
        if entry is None:
            await self._end(key, begun.attempt, TaskState.REJECTED, self._not_for_anybody(begun.task))
            return
        await self._attempt(context, entry, key)

    def _not_for_anybody(self, task: DelegatedTask) -> str:
        """Say why no handler takes a task, and what would be taken."""
        services = sorted({f"{_ROLE}{service}" for entry in self._entries for service in entry.services})
        taken = f"; it takes tasks for {', '.join(services)}" if services else ""
        return f"{self._agent.name} has no handler for a task to {task.target}{taken}"

    def _fits(self, entry: _Registered, task: DelegatedTask) -> bool:
        try:
            return entry.fits(task)
        except Exception:
            _logger.exception(
                "%s: a test for tasks failed at %s; the task is not for it", self._agent.name, task.task_id
            )
            return False

    async def _begin(self, job: Job, key: TaskKey, attempt: int) -> Begun | None:
        """Begin an attempt; its message is settled then, and also when it is not this agent's to begin any more."""
        try:
            begun = await self._calls.insist(lambda: self._calls.accept(key, attempt))
        except asyncio.CancelledError:
            self._deliveries.leave(job)
            raise
        except BusError as error:
            if self._deliveries_are_over():
                self._deliveries.leave(job)
                return None
            unreadable = isinstance(error, InvalidArgument)
            if not (is_gone(error) or unreadable):
                _logger.warning("%s: the task %s is not begun now: %s", self._agent.name, key.task_id, error)
                self._deliveries.failed(job, error)
                return None
            _logger.info("%s: the task %s is not begun: %s", self._agent.name, key.task_id, error)
            self._deliveries.handled(job)
            if unreadable:
                # The bus keeps what cannot be read here; whoever waits for it is told.
                await self._end(key, attempt or 1, TaskState.REJECTED, f"the task cannot be read: {error}")
            return None
        self._deliveries.handled(job)
        return begun

    def _deliveries_are_over(self) -> bool:
        return self._closed or self._deliveries.lanes.closed or self._session.over is not None

    async def _attempt(self, context: TaskContext, entry: _Registered, key: TaskKey) -> None:
        """Run the handler of an attempt to its end, and say how it ended."""
        reporting = asyncio.create_task(context.reports.run(), name=f"reports on {key.task_id}")
        cancelling = asyncio.create_task(context.to_cancel.wait())
        releasing = asyncio.create_task(context.to_release.wait())
        handling = asyncio.create_task(self._call(context, entry), name=f"handler of {key.task_id}")
        listening = asyncio.create_task(self._listen(context), name=f"watch of {key.task_id}")
        # Whoever closes the agent from inside the handler cannot wait for its end.
        self._activity.own(handling)
        try:
            await asyncio.wait({handling, reporting, cancelling, releasing}, return_when=asyncio.FIRST_COMPLETED)
            if not handling.done():
                # Called off, given back, or lost.
                context.stop()
                if entry.is_async:
                    handling.cancel()
                # Also for one that does not let itself be disturbed: it takes up the room that it takes.
                await asyncio.wait({handling})
            if not reporting.done():
                await self._conclude(context, handling, key)
        except asyncio.CancelledError:
            await self._cut_off(context, handling, key)
            raise
        finally:
            context.stop()
            context.end()
            leftover = {handling, reporting, cancelling, releasing, listening}
            for task in leftover:
                task.cancel()
            await asyncio.gather(*leftover, return_exceptions=True)

    async def _listen(self, context: TaskContext) -> None:
        """Have the attempt look at once when there is something to hear; its reports look now and then anyway."""
        # What is done in a moment is not worth a stream.
        await asyncio.sleep(_LISTEN_AFTER_S)
        heard = context.task.last_event
        pauses = Pauses(self._calls)
        try:
            while True:
                with pauses.forgiven(context.task_id):
                    async with contextlib.aclosing(self._calls.watch(context.task.key)) as stream:
                        async for told in stream:
                            pauses.reset()
                            if isinstance(told, DelegatedTask):
                                concerns = told.state.final or told.last_event > heard
                            else:
                                concerns = told.kind in _CONCERNS or (told.state is not None and told.state.final)
                            if concerns:
                                context.reports.poke()
                await pauses.pause()
        except BusError as error:
            # The next report hears why.
            _logger.info("%s: the task %s is not watched: %s", self._agent.name, context.task_id, error)
            context.reports.poke()

    async def _call(self, context: TaskContext, entry: _Registered) -> Any:
        if entry.is_async:
            return await entry.handler(context)
        made = await self._threads.run(_blocking, entry.handler, context, asyncio.get_running_loop())
        if isinstance(made, BaseException):
            raise made
        return await made if inspect.isawaitable(made) else made

    async def _conclude(self, context: TaskContext, handling: asyncio.Task[Any], key: TaskKey) -> None:
        """The handler is done: tell what is left to tell, and how the task ends, or that it is given back."""
        if context.release_reason is not None and not context.to_cancel.is_set():
            # Whatever the handler came to: that it is given back has been promised.
            await self._flush_and_release(context, key, context.release_reason, leaving=self._closed)
            return
        state, text = self._outcome(context, handling, key)
        try:
            await context.reports.flush()
        except BusError as error:
            if is_gone(error):
                _logger.info("%s: the task %s is another's: %s", self._agent.name, key.task_id, error)
                return
            if state is TaskState.COMPLETED:
                state, text = TaskState.FAILED, f"something told of the task was refused: {error}"
        await self._end(key, context.attempt, state, text)

    def _outcome(self, context: TaskContext, handling: asyncio.Task[Any], key: TaskKey) -> tuple[TaskState, str]:
        """Return the state in which the task ends, and its result as JSON text, or the reason."""
        name, task_id = self._agent.name, key.task_id
        if context.to_cancel.is_set():
            # Whatever it came to: that it is cancelled has been promised.
            return TaskState.CANCELLED, context.cancel_reason or "cancelled as was asked for"
        try:
            value = handling.result()
            if not isinstance(value, Declined):
                return TaskState.COMPLETED, json_text(value, "result")
            declined = value
        except TaskRefused as refused:
            return TaskState.REJECTED, str(refused)
        except Declined as raised:
            declined = raised
        except (Exception, asyncio.CancelledError) as error:
            _logger.exception("%s: the handler of the task %s failed", name, task_id)
            return TaskState.FAILED, _words(error)
        state = TaskState.REJECTED if isinstance(declined, Refuse) else TaskState.FAILED
        return state, declined.content if isinstance(declined.content, str) else str(declined)

    async def _end(self, key: TaskKey, attempt: int, state: TaskState, text: str) -> None:
        """Say how a task ends, until the bus has heard it."""
        try:
            if state is TaskState.COMPLETED:
                await self._calls.insist(lambda: self._calls.complete(key, attempt, text))
            else:
                await self._calls.insist(lambda: self._calls.fail(key, attempt, state, text))
        except PreconditionFailed as error:
            if state is TaskState.REJECTED and type(error) is PreconditionFailed:
                # Work has begun, so that it is too late to say no.
                await self._end(key, attempt, TaskState.FAILED, text)
            else:
                _logger.info("%s: the task %s has ended otherwise: %s", self._agent.name, key.task_id, error)
        except BusError as error:
            if state is TaskState.COMPLETED and not is_gone(error):
                # A result that is too large, for one: the delegator must not wait for a task that is done.
                await self._end(key, attempt, TaskState.FAILED, f"the result was not taken: {error}")
            else:
                _logger.warning("%s: the end of the task %s was not taken: %s", self._agent.name, key.task_id, error)

    async def _flush_and_release(self, context: TaskContext, key: TaskKey, reason: str, *, leaving: bool) -> None:
        try:
            await context.reports.flush()
        except BusError as error:
            if is_gone(error):
                _logger.info("%s: the task %s is another's: %s", self._agent.name, key.task_id, error)
                return
            _logger.warning("%s: something told of the task %s was refused: %s", self._agent.name, key.task_id, error)
        try:
            await self._release(key, context.attempt, reason, leaving=leaving)
        except BusError as error:
            _logger.warning("%s: the task %s was not taken back: %s", self._agent.name, key.task_id, error)

    async def _release(self, key: TaskKey, attempt: int, reason: str, *, leaving: bool) -> None:
        """Give an attempt back, until the bus has heard it; one that is nobody's any more is none to give back."""
        try:
            await self._calls.insist(lambda: self._calls.release(key, attempt, reason, leaving=leaving))
        except BusError as error:
            if not is_gone(error):
                raise
            _logger.info("%s: the task %s is not given back: %s", self._agent.name, key.task_id, error)

    @property
    def _was_closed(self) -> str:
        return f"{self._agent.name} was closed"

    async def _cut_off(self, context: TaskContext, handling: asyncio.Task[Any], key: TaskKey) -> None:
        """The agent ends before its handler did: cancel that one, and say what can be said in time."""
        context.stop()
        handling.cancel()
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await asyncio.wait({handling})
                if handling.done() and not handling.cancelled() and handling.exception() is None:
                    await self._conclude(context, handling, key)
                    return
                await context.reports.flush()
                if context.to_cancel.is_set():
                    reason = context.cancel_reason or "cancelled as was asked for"
                    await self._end(key, context.attempt, TaskState.CANCELLED, reason)
                elif context.release_reason is not None:
                    await self._release(key, context.attempt, context.release_reason, leaving=True)
                elif context.task.on_executor_lost is OnExecutorLost.FAIL:
                    await self._end(key, context.attempt, TaskState.FAILED, self._was_closed)
                else:
                    await self._release(key, context.attempt, self._was_closed, leaving=True)
        except (TimeoutError, BusError) as error:
            _logger.warning("%s: the task %s was cut off: %r", self._agent.name, key.task_id, error)


class Executing(Active):
    """The part of an `Agent` that acts of its own accord, and works on tasks."""

    _acp: ACPHandling
    _executor: Executor

    @overload
    def on_delegate(self, handler: HandlerT, /) -> HandlerT: ...

    @overload
    def on_delegate(
        self, *services: str, when: Callable[[DelegatedTask], bool] | None = None
    ) -> Callable[[HandlerT], HandlerT]: ...

    def on_delegate(self, *services: Any, when: Callable[[DelegatedTask], bool] | None = None) -> Any:
        """Register the decorated function for delegated tasks; the first one that fits a task gets it.

            @agent.on_delegate
            async def summarise(task):
                await task.progress(0.5, "half way")
                return {"summary": "..."}

        An `async def` gets a `TaskContext` and runs on the agent's loop; a `def` gets a `BlockingTaskContext` and runs in a
        thread. What it returns, a JSON value, is the result. What it raises fails the task; `TaskRefused` rejects it before
        work has begun, and `Fail` fails it without a traceback in the log. While it runs the bus hears of it by itself, also
        when it says nothing.

        An agent without any such handler handles a task as the ACL `request` that says the same.

        Args:
            services: Only tasks for these types of services: those delegated to `role:TYPE`. Any target when there are none.
            when: Only tasks for which this returns true; it gets the `DelegatedTask`.

        Raises:
            InvalidArgument: A service is no text.
        """
        if len(services) == 1 and when is None and callable(services[0]):
            self._register((), None, services[0])
            return services[0]
        if not all(isinstance(service, str) and service for service in services):
            raise InvalidArgument(
                "on_delegate takes types of services; expected texts, a test goes to when=", field="services"
            )

        def register(handler: HandlerT) -> HandlerT:
            self._register(services, when, handler)
            return handler

        return register

    async def _set_up(self, still_open: Callable[[], bool]) -> None:
        self._executor.open()
        await super()._set_up(still_open)

    async def _end(self, grace: float, patience: float | None) -> bool:
        # Mail first, so that nothing new begins while the last attempts end.
        self._activity.deliveries.lanes.close()
        await self._executor.stop(patience)
        return await super()._end(grace, patience)

    async def _end_now(self) -> None:
        await super()._end_now()
        await self._executor.aclose()

    def _register(
        self, services: tuple[str, ...], when: Callable[[DelegatedTask], bool] | None, handler: Callable[..., Any]
    ) -> None:
        self._executor.add(services, when, handler)
        self._acp.delegations = self._executor.take


def _blocking(handler: Callable[..., Any], context: TaskContext, loop: asyncio.AbstractEventLoop) -> Any:
    """Run a handler in a thread; return a CancelledError that it raised, which a future of a thread would make its own."""
    try:
        return handler(BlockingTaskContext(context, loop))
    except asyncio.CancelledError as error:
        return error


def _words(error: BaseException) -> str:
    """Say an error in words that can travel, whatever it says of itself."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text[:_MAX_REASON_CHARS].encode("utf-8", "replace").decode()
