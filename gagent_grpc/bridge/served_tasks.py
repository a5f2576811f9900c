"""Tasks that a script works on: from its `delegate` event to the `complete` or `fail` that ends it.

Owns: which tasks the script has in hand, and what becomes of them when it dies. Leaves to others: attempts, leases and
reports (`client.executing`), giving events (`bridge.events`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from gagent_grpc.acp.tasks import OnExecutorLost, TaskKey
from gagent_grpc.bridge.actions import local_name
from gagent_grpc.bridge.extension_actions import TaskReport
from gagent_grpc.bridge.extension_events import ExtensionEvent, Give, Owned
from gagent_grpc.bridge.faults import ScriptExited
from gagent_grpc.client.answers import Fail
from gagent_grpc.client.task_context import TaskContext
from gagent_grpc.errors import BusError, PreconditionFailed, ScriptError, TaskRefused

_logger = logging.getLogger(__name__)


class ServedTask:
    """One attempt at a task that the script has in hand, or is about to get."""

    def __init__(self, context: TaskContext) -> None:
        self.context = context
        self.key = TaskKey(context.delegator, context.task_id)
        self.checkpoint = context.checkpoint
        """What was saved last, in this attempt or an earlier one."""
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.event = ExtensionEvent()
        """Its `delegate` event."""
        self.is_answered = False
        """Whether the script has answered its `delegate` event, and nothing but its `complete` or `fail` is to come."""
        self.is_called_off = False
        """Whether the attempt was called off: by the delegator, or since it is not in force any more."""
        self.is_asking = False
        """Whether a question of the script waits for its answer."""
        self.runs = 0
        """How many runs of the script have been given it."""

    def renew(self) -> ExtensionEvent:
        """Return a new `delegate` event, for a run of the script that has not seen it."""
        told = self.context
        self.is_answered = False
        self.runs += 1
        self.event = ExtensionEvent(
            served=self,
            event="delegate",
            task_id=told.task_id,
            delegator=told.delegator,
            target=told.task.target,
            description=told.description,
            parameters=told.parameters,
            attempt=told.attempt,
            checkpoint=self.checkpoint,
            deadline=told.deadline.isoformat() if told.deadline is not None else None,
            attachments=[dataclasses.asdict(one) for one in told.attachments] or None,
        )
        return self.event

    def tell(self, kind: str, **keys: Any) -> ExtensionEvent:
        """Return a `task` event about it."""
        return ExtensionEvent(
            served=self, event="task", task_id=self.key.task_id, delegator=self.key.delegator, kind=kind, **keys
        )

    def complete(self, result: Any) -> None:
        """It is done."""
        if not self.outcome.done():
            self.outcome.set_result(result)

    def fail(self, error: Exception) -> None:
        """It ends without a result."""
        if not self.outcome.done():
            self.outcome.set_exception(error)


class ServedTasks:
    """Every task that the script of one agent has in hand."""

    def __init__(self, name: str, give: Give, owned: Owned) -> None:
        self._name = name
        self._give = give
        self._owned = owned
        self._tasks: dict[TaskKey, ServedTask] = {}

    async def serve(self, context: TaskContext) -> Any:
        """Have the script work on a task; return its result.

        Raises:
            Fail: The script failed it, died with it, or did not answer.
            TaskRefused: The script rejected it.
        """
        task = ServedTask(context)
        self._tasks[task.key] = task
        # Tasks of their own: when this attempt is called off, the event that is under way still gets its answer.
        self._owned.spawn(self._hand_over(task))
        self._owned.spawn(self._listen(task))
        try:
            return await task.outcome
        except asyncio.CancelledError:
            task.is_called_off = True
            if task.is_answered:
                self._owned.spawn(self._tell_cancelled(task))
            raise
        finally:
            task.event.withdrawn = True
            if self._tasks.get(task.key) is task:
                del self._tasks[task.key]

    def give_up(self, why: str) -> None:
        """The script has died with these in hand: they fail, or go to its next run where they may be delivered again."""
        for task in list(self._tasks.values()):
            if task.is_answered:
                self._lost(task, why)

    def find(self, task_id: str | None, delegator: str | None, event: ExtensionEvent | None) -> ServedTask:
        """Return the task that an action is about.

        Args:
            task_id: Its id; None for the task of the event that is answered.
            delegator: Who delegated it; None for whoever did, when that is clear.
            event: What is answered; None for no event of an extension.

        Raises:
            PreconditionFailed: There is none, or there are several.
        """
        own = event.served if event is not None else None
        if task_id is None:
            if own is None or self._tasks.get(own.key) is not own:
                raise PreconditionFailed("no task is in hand here; expected `task_id`")
            return own
        found = [task for task in self._tasks.values() if task.key.task_id == task_id]
        if delegator is not None:
            found = [
                task
                for task in found
                if delegator in (task.key.delegator, local_name(task.key.delegator, _platform(task)))
            ]
        elif own in found:
            return own
        if len(found) != 1:
            problem = "it is of several delegators; expected `delegator`" if found else "it is not in hand (any more)"
            raise PreconditionFailed(f"task {task_id[:100]}: {problem}")
        return found[0]

    async def report(self, action: TaskReport, event: ExtensionEvent | None) -> None:
        """Do what the script says of a task.

        Raises:
            BusError: It cannot be done: the task is not in hand, or what is said was refused.
        """
        task = self.find(action.task_id, action.delegator, event)
        match action.word:
            case "progress":
                await task.context.progress(action.value, action.text)
            case "output":
                await task.context.output(action.text, action.channel)
            case "save":
                await task.context.save(action.value)
                task.checkpoint = action.value
            case "ask":
                if task.is_asking:
                    raise PreconditionFailed(f"task {task.key.task_id}: its last question has no answer yet")
                task.is_asking = True
                self._owned.spawn(self._ask(task, action.text))
            case "complete":
                task.complete(action.value)
            case "reject":
                task.fail(TaskRefused(action.text or "rejected"))
            case _:
                task.fail(Fail(action.text or "failed"))

    # ---- one task --------------------------------------------------------------------------------------------------

    async def _hand_over(self, task: ServedTask) -> None:
        event = task.renew()
        try:
            await self._give(event)
            task.is_answered = True
            if task.is_called_off and event.is_given:
                # While its event was under way: the script may have kept it.
                await self._tell_cancelled(task)
        except ScriptExited as error:
            self._lost(task, error.summary)
        except ScriptError as error:
            task.fail(Fail(str(error)))

    def _lost(self, task: ServedTask, why: str) -> None:
        may_go_on = task.context.task.on_executor_lost is OnExecutorLost.REDELIVER
        # The limit that the delegator set for dead executors holds for dead runs of a script as well.
        if may_go_on and task.runs < max(task.context.task.max_attempts, 1):
            self._owned.spawn(self._hand_over(task))
        else:
            task.fail(Fail(why))

    async def _tell_cancelled(self, task: ServedTask) -> None:
        await self._tell_later(task.tell("cancel", reason=task.context.cancel_reason))

    async def _ask(self, task: ServedTask, question: str) -> None:
        try:
            value = await task.context.ask(question)
        except BusError as error:
            _logger.warning("%s: a question about the task %s failed: %s", self._name, task.key.task_id, error)
            return
        finally:
            task.is_asking = False
        event = task.tell("answer")
        # Also where it is null: that is an answer, too.
        event["value"] = value
        await self._tell_later(event)

    async def _listen(self, task: ServedTask) -> None:
        async for signal in task.context.signals():
            event = task.tell("signal", name=signal.name)
            event["value"] = signal.value
            await self._tell_later(event)

    async def _tell_later(self, event: ExtensionEvent) -> None:
        try:
            await self._give(event)
        except ScriptError as error:
            # Whoever watches the script knows; the task is seen to by its end.
            _logger.info("%s: an event about a task has no answer: %s", self._name, error)


def _platform(task: ServedTask) -> str:
    return task.context.agent.aid.partition("@")[2]
