"""Tasks that a script delegated: handed to the bus, and followed to their end for the script to hear.

Owns: what of a task's events the script is told, and in which words. Leaves to others: the task (the bus), its events
across lost connections (`client.tasks`), giving events (`bridge.events`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from gagent_grpc.acp.message import ACPMessage, error_content
from gagent_grpc.acp.tasks import TaskEvent, TaskEventKind, TaskState
from gagent_grpc.bridge.extension_actions import AnswerTask, CancelTask, Delegate
from gagent_grpc.bridge.extension_events import ExtensionEvent, Give, Owned, as_message
from gagent_grpc.bridge.served_tasks import ServedTask
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.tasks import Task
from gagent_grpc.errors import BusError, EventsGone, PreconditionFailed, ResourceExhausted, ScriptError

MAX_FOLLOWED = 1_000
"""Tasks that one script may follow at the same time."""

_logger = logging.getLogger(__name__)


class FollowedTasks:
    """Every task of one agent's script that has not ended, as far as the script delegated it in this life of its agent."""

    def __init__(self, agent: Agent, give: Give, owned: Owned, takes: Callable[[], Sequence[str]]) -> None:
        """Follow tasks.

        Args:
            agent: Whose tasks they are.
            give: Gives an event to its script.
            owned: Holds the tasks of the loop that follow them.
            takes: Tells which extensions the present run of the script takes.
        """
        self._agent = agent
        self._give = give
        self._owned = owned
        self._takes = takes
        self._followed: dict[str, Task] = {}

    async def delegate(self, action: Delegate, parent: ServedTask | None) -> None:
        """Delegate a task, and follow it. What goes wrong is told to the script, as the end of the task."""
        task_id = action.task_id or new_id()
        if task_id in self._followed:
            # The same once more: the bus would say so, and its events come already.
            return
        arguments: dict[str, Any] = {
            "task_id": task_id,
            "deadline": action.deadline,
            "callback_url": action.callback_url,
            "on_executor_lost": action.on_executor_lost,
            "max_attempts": action.max_attempts,
            "attachments": action.attachments,
        }
        by = parent.context if parent is not None else self._agent
        try:
            if len(self._followed) >= MAX_FOLLOWED:
                raise ResourceExhausted(f"{MAX_FOLLOWED:,} tasks are followed already, the limit of a script")
            task = await by.delegate(action.target, action.description, action.parameters, **arguments)
        except BusError as error:
            _logger.warning("%s: a task was not delegated: %s", self._agent.name, error)
            told = {"kind": "error", "state": "rejected", "reason": str(error)}
            self._owned.spawn(self._tell(task_id, "ams", told))
            return
        self._followed[task_id] = task
        self._owned.spawn(self._follow(task))

    async def answer(self, action: AnswerTask) -> None:
        """Give the input that a task asks for; raise BusError when that cannot be done."""
        await self._find(action.task_id).answer(action.value)

    async def cancel(self, action: CancelTask) -> None:
        """Ask to end a task; raise BusError when that cannot be done."""
        await self._find(action.task_id).cancel(action.reason)

    def _find(self, task_id: str) -> Task:
        # One that was delegated in an earlier life of the agent is its own, too.
        return self._followed.get(task_id) or self._agent.task(task_id)

    async def _follow(self, task: Task) -> None:
        after, is_accepted = 0, False
        try:
            while True:
                try:
                    async with contextlib.aclosing(task.events(after=after)) as events:
                        async for event in events:
                            after = event.sequence
                            told = _told(event)
                            if told is None or (told["kind"] == "accepted" and is_accepted):
                                continue
                            is_accepted = is_accepted or told["kind"] == "accepted"
                            await self._tell(task.task_id, self._executor(task), told)
                    return
                except EventsGone as error:
                    # A script that is slow to answer, or an agent that was away: the latest ones tell enough.
                    after = max(after, int(error.first_kept) - 1)
        except PreconditionFailed as error:
            # The agent ends.
            _logger.info("%s: the task %s is not followed any more: %s", self._agent.name, task.task_id, error)
        except BusError as error:
            told = {"kind": "error", "state": "unknown", "reason": str(error)}
            await self._tell(task.task_id, "ams", told)
        finally:
            self._followed.pop(task.task_id, None)

    def _executor(self, task: Task) -> str:
        return (task.latest.executor if task.latest is not None else "") or "ams"

    async def _tell(self, task_id: str, executor: str, told: dict[str, Any]) -> None:
        event: ExtensionEvent | None
        if "task" in self._takes():
            event = ExtensionEvent(event="task", task_id=task_id)
            event.update(told)
        else:
            event = self._in_acl(task_id, executor, told)
        if event is None:
            return
        try:
            await self._give(event)
        except ScriptError as error:
            _logger.info("%s: an event of the task %s has no answer: %s", self._agent.name, task_id, error)

    def _in_acl(self, task_id: str, executor: str, told: dict[str, Any]) -> ExtensionEvent | None:
        """Return what a script hears that knows messages only: agree, then inform or failure, as any executor answers."""
        content: dict[str, Any]
        match told["kind"]:
            case "accepted":
                kind, content = "response", {"task_id": task_id, "status": "accepted"}
            case "result":
                kind, content = "result", {"task_id": task_id, "status": "completed", "result": told["result"]}
            case "error":
                kind, content = "error", error_content(told["state"].upper(), told["reason"] or told["state"], task_id)
            case _:
                return None
        told_by = executor.removesuffix(f"@{self._agent.aid.partition('@')[2]}")
        message = ACPMessage(type=kind, source=told_by, content=content, in_reply_to=task_id)  # type: ignore[arg-type]  # [arg-type]: it takes names of types, too.
        return as_message(message, self._agent.name)


def _told(event: TaskEvent) -> dict[str, Any] | None:
    """Return what the script is told of an event; None for nothing."""
    match event.kind:
        case TaskEventKind.PROGRESS:
            return {"kind": "progress", "progress": event.progress, "note": event.note}
        case TaskEventKind.OUTPUT:
            return {"kind": "output", "text": event.text, "channel": event.channel}
        case TaskEventKind.STATE if event.state is not None:
            return _told_of_state(event, event.state)
        case _:
            return None


def _told_of_state(event: TaskEvent, state: TaskState) -> dict[str, Any] | None:
    if state in (TaskState.ACCEPTED, TaskState.RUNNING):
        # Also after input was given; only the first one is told.
        return {"kind": "accepted"}
    if state is TaskState.INPUT_REQUIRED:
        return {"kind": "question", "question": event.question}
    if state is TaskState.COMPLETED:
        return {"kind": "result", "result": event.value}
    if state.final:
        return {"kind": "error", "state": str(state), "reason": event.reason}
    return None
