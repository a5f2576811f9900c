"""Tasks as their delegator holds them: delegated in one call, and followed to their end across lost connections.

Owns: the handle of a task, and the methods of an agent by which it comes by one. Leaves to others: single calls
(`client.task_calls`), the rules of a task (the bus), working on one (`client.executing`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import datetime
from typing import Any

from gagent_grpc.acp.tasks import (
    Attachment,
    DelegatedTask,
    OnExecutorLost,
    TaskEvent,
    TaskEventKind,
    TaskKey,
    TaskState,
)
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.task_calls import Pauses, TaskCalls, delegation
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import (
    AnswerTimeout,
    BusError,
    BusUnreachable,
    TaskAlreadyExists,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskNotCompleted,
    TaskRejected,
)

_ENDINGS: dict[TaskState, type[TaskNotCompleted]] = {
    TaskState.FAILED: TaskFailed,
    TaskState.REJECTED: TaskRejected,
    TaskState.CANCELLED: TaskCancelled,
    TaskState.EXPIRED: TaskExpired,
}


class Task:
    """A task that somebody delegated. The bus keeps it: a handle can be made anew from its id at any time.

    task = await agent.delegate("role:summarise", "Summarise the report", {"pages": 3}, deadline=600)
    async for event in task.events():
        print(event.kind, event.progress)
    print(await task.result())
    """

    def __init__(self, calls: TaskCalls, key: TaskKey, latest: DelegatedTask | None = None) -> None:
        self._calls = calls
        self._key = key
        self.latest = latest
        """The task as it was heard of last; None before anything was. `get` asks for it as it is now."""

    def __repr__(self) -> str:
        state = f" {self.latest.state}" if self.latest is not None else ""
        return f"<Task {self.task_id}{state}>"

    @property
    def task_id(self) -> str:
        """Its id, unique for its delegator."""
        return self._key.task_id

    @property
    def delegator(self) -> str:
        """Who delegated it; "" for the agent itself, before anything was heard of the task."""
        return self.latest.delegator if self.latest is not None else self._key.delegator

    @property
    def done(self) -> bool:
        """Whether it is known to have ended."""
        return self.latest is not None and self.latest.state.final

    async def get(self) -> DelegatedTask:
        """Return the task as it is now.

        Raises:
            TaskNotFound: There is none, or it is forgotten after its retention.
            Unauthorised: It is somebody else's.
            BusError: As every call.
        """
        self.latest = await self._calls.get(self._key)
        return self.latest

    async def wait(self, timeout: float | None = None) -> DelegatedTask:
        """Wait until it has ended, however, and return it. A bus that is away is found again.

        Args:
            timeout: Seconds; None for as long as it takes.

        Raises:
            AnswerTimeout: It has not ended in time. It goes on.
            TaskNotFound: There is none, or it is forgotten after its retention.
            Unauthorised: It is somebody else's.
            PreconditionFailed: The agent is not open, or was closed meanwhile.
            BusError: The session is over for another reason.
        """
        if self.latest is not None and self.latest.state.final:
            return self.latest
        try:
            async with asyncio.timeout(timeout):
                return await self._ended()
        except TimeoutError:
            hint = f"it is {self.latest.state}" if self.latest is not None else ""
            raise AnswerTimeout(f"the task {self.task_id}", timeout or 0.0, hint) from None

    async def result(self, timeout: float | None = None) -> Any:
        """Wait until it is completed, and return its result, a JSON value. A bus that is away is found again.

        Args:
            timeout: Seconds; None for as long as it takes.

        Raises:
            TaskFailed, TaskRejected, TaskCancelled, TaskExpired: It ended so; `why` says more.
            AnswerTimeout: It has not ended in time. It goes on.
            BusError: As `wait`.
        """
        task = await self.wait(timeout)
        error = error_of(task)
        if error is not None:
            raise error
        return task.result

    async def events(self, *, after: int = 0) -> AsyncGenerator[TaskEvent, None]:
        """Iterate over what happened and happens to it, each event once and in order, until it has ended.

        A connection that is lost is found again, and the iteration goes on after the last event. Closing the iterator, as
        `contextlib.aclosing` does, ends it.

        Args:
            after: Sequence of the last event that was read earlier; 0 for everything that the bus keeps.

        Raises:
            EventsGone: The events after ``after`` are not kept any more; its `first_kept` says which are.
            TaskNotFound, Unauthorised, PreconditionFailed, BusError: As `wait`.
        """
        cursor = after
        pauses = Pauses(self._calls)
        while True:
            ended = False
            with pauses.forgiven(self.task_id):
                async with contextlib.aclosing(self._calls.watch(self._key, cursor)) as stream:
                    async for told in stream:
                        pauses.reset()
                        if isinstance(told, DelegatedTask):
                            self.latest = told
                            ended = told.state.final and told.last_event <= cursor
                            continue
                        if told.sequence > cursor:
                            cursor = told.sequence
                            ended = told.state is not None and told.state.final
                            yield told
            if ended:
                return
            await pauses.pause()

    async def answer(self, value: Any) -> None:
        """Give the input that the executor asked for, a JSON value.

        Raises:
            PreconditionFailed: None is asked for.
            InvalidArgument: It is no JSON value, or too large.
            TaskNotFound, Unauthorised, BusError: As `get`.
        """
        self.latest = await self._calls.answer(self._key, value)

    async def signal(self, name: str, value: Any = None) -> None:
        """Tell the executor something, in words that it knows.

        Args:
            name: Name of the signal.
            value: What is told, a JSON value.

        Raises:
            TaskEnded: The task has ended.
            InvalidArgument: No name, or no JSON value.
            TaskNotFound, Unauthorised, BusError: As `get`.
        """
        self.latest = await self._calls.signal(self._key, name, value)

    async def cancel(self, reason: str = "") -> DelegatedTask:
        """Ask to end it, and the tasks that came of it; return it as it is then.

        Before somebody has taken it up it is cancelled at once. Afterwards its executor is told, and the bus waits some time
        for that one to end; `wait` tells how it ended. A task that has ended stays as it is.

        Args:
            reason: Why, in words.

        Raises:
            TaskNotFound, Unauthorised, BusError: As `get`.
        """
        self.latest = await self._calls.cancel(self._key, reason)
        return self.latest

    async def _ended(self) -> DelegatedTask:
        pauses = Pauses(self._calls)
        while True:
            with pauses.forgiven(self.task_id):
                if pauses.crowded:
                    # No room for one more stream; a look now and then does as well.
                    await self.get()
                else:
                    await self._watch_end()
                    pauses.reset()
            if self.latest is not None and self.latest.state.final:
                return self.latest
            await pauses.pause()

    async def _watch_end(self) -> None:
        """Follow the task over one stream, to its end or that of the stream."""
        async with contextlib.aclosing(self._calls.watch(self._key)) as stream:
            async for told in stream:
                if isinstance(told, DelegatedTask):
                    self.latest = told
                    if told.state.final:
                        return
                elif told.kind is TaskEventKind.STATE and told.state is not None and told.state.final:
                    await self.get()
                    return


def error_of(task: DelegatedTask) -> TaskNotCompleted | None:
    """Return the error for a task that ended without a result; None for any other one."""
    ending = _ENDINGS.get(task.state)
    return ending(task.task_id, task.executor, task.reason) if ending is not None else None


class Following:
    """The part of an `Agent` or an `Operator` that looks after tasks which are there."""

    _task_calls: TaskCalls

    def task(self, task_id: str, delegator: str | None = None) -> Task:
        """Return the handle of a task that was delegated before, maybe by an earlier program; nothing is asked yet.

        Args:
            task_id: Its id.
            delegator: Who delegated it, `name` or `name@platform`; the caller when absent.
        """
        return Task(self._task_calls, TaskKey(delegator or "", task_id))

    async def tasks(
        self,
        *,
        delegator: str | None = None,
        executor: str | None = None,
        states: Sequence[TaskState] = (),
        max_results: int = 100,
    ) -> list[DelegatedTask]:
        """Return tasks, newest first.

        Args:
            delegator: Only those that this agent delegated.
            executor: Only those that were handed to this agent. With neither: those that the caller delegated or works on,
                and all for an operator.
            states: Only those in these states; all when empty.
            max_results: Most that are returned; negative for all.

        Raises:
            Unauthorised: They are somebody else's.
            BusError: As every call.
        """
        found: list[DelegatedTask] = []
        if max_results == 0:
            return found
        page = min(max_results, 1_000) if max_results > 0 else 1_000
        listing = self._task_calls.list(delegator=delegator or "", executor=executor or "", states=states, page=page)
        async with contextlib.aclosing(listing) as stream:
            async for task in stream:
                found.append(task)
                if len(found) == max_results:
                    break
        return found


class Delegating(Following):
    """The part of an `Agent` that delegates tasks."""

    _limits: ClientLimits

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
        priority: Priority = Priority.NORMAL,
        timeout: float | None = None,
        wait_for_provider: bool = False,
    ) -> Task:
        """Delegate a task, and return its handle once the bus keeps it durably and its executor has been handed it.

        A bus that is away is found again; the task is delegated once all the same. A program that begins anew may delegate
        the same task again under the same id, and gets it as it is.

        Args:
            target: Whom it is for: `name`, `name@platform`, or `role:TYPE` for an agent that offers such a service.
            description: What is to be done, in words.
            parameters: Arguments, as JSON has them; numbers keep their types.
            task_id: Identity, unique for this agent; a new UUIDv7 by default.
            deadline: When it expires: seconds from now, or an aware datetime; never by default, or with its parent.
            callback_url: Carried unchanged; the bus never fetches it.
            on_executor_lost: What happens when its executor is lost: it fails, or is handed over again.
            max_attempts: Most attempts; by default 1, and 3 where it is handed over again.
            attachments: What belongs to it and lies elsewhere.
            priority: Urgency.
            timeout: Seconds for reaching the bus, and for somebody who serves a role where that is waited for;
                `request_timeout` (120 s) by default.
            wait_for_provider: A role that nobody serves is tried again until somebody does; else NoProvider is raised at
                once.

        Raises:
            AgentNotRegistered: Nobody has the name.
            NoProvider: Nobody offers the service, or nobody came to offer it within ``timeout``.
            TaskAlreadyExists: The id has other data.
            MailboxFull: The target has no room.
            InvalidArgument: A value that cannot be sent.
            PreconditionFailed: The agent is not open or was closed meanwhile.
            BusUnreachable: No bus was reached in time.
            BusError: The bus refused it for another reason, such as too many tasks.
        """
        return await self._delegate(
            target,
            description,
            parameters,
            task_id=task_id,
            deadline=deadline,
            callback_url=callback_url,
            on_executor_lost=on_executor_lost,
            max_attempts=max_attempts,
            attachments=attachments,
            priority=priority,
            timeout=timeout,
            wait_for_provider=wait_for_provider,
        )

    async def _delegate(
        self,
        target: str,
        description: str = "",
        parameters: dict[str, Any] | None = None,
        *,
        task_id: str | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        wait_for_provider: bool = False,
        parent: TaskKey | None = None,
        **more: Any,
    ) -> Task:
        """As `delegate`; ``parent`` is the task that this agent works on and that the new one comes of."""
        calls = self._task_calls
        request = delegation(
            task_id or new_id(),
            target,
            description,
            parameters,
            max_attempts=max_attempts or 0,
            parent=parent,
            **more,
        )
        seconds = self._limits.request_timeout if timeout is None else timeout
        last: list[BusError] = []
        try:
            async with asyncio.timeout(seconds):
                try:
                    task, _ = await calls.insist(
                        lambda: calls.hand_over(request), failed=last.append, wait_for_provider=wait_for_provider
                    )
                except TaskAlreadyExists as error:
                    if error.differs != "deadline" or not isinstance(more.get("deadline"), int | float):
                        raise
                    # Seconds from now are another moment each time, and mean the same.
                    await calls.insist(lambda: calls.take_deadline(request), failed=last.append)
                    task, _ = await calls.insist(lambda: calls.hand_over(request), failed=last.append)
        except TimeoutError:
            if last:
                raise last[-1] from None
            raise BusUnreachable(calls.endpoint, f"the task was not taken within {seconds:g} s") from None
        return Task(calls, task.key, task)
