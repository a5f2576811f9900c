"""What a script may do beyond messages and its life cycle: delegate tasks, work on tasks, speak ACP.

Owns: which of that the present run of a script takes, and ACP messages. Leaves to others: tasks (`bridge.served_tasks`,
`bridge.followed_tasks`), giving events one at a time (`bridge.events`).

A script that names none of it in its answer to `start` gets no event that it does not know: a task for it comes as an
ACL `request`, an ACP message as the ACL message that says the same, and a task that it delegated ends with `inform` or
`failure`.
"""

from __future__ import annotations

import logging
from typing import Any

from gagent_grpc.acp.message import AUTOMATIC_ENTRY, ACPMessage, ACPMessageType, ACPMetadata, error_content
from gagent_grpc.bridge.extension_actions import (
    AnswerTask,
    CancelTask,
    Delegate,
    ExtensionAction,
    SendACP,
    TaskReport,
)
from gagent_grpc.bridge.extension_events import ExtensionEvent, Give, Owned, as_message
from gagent_grpc.bridge.faults import ScriptExited
from gagent_grpc.bridge.followed_tasks import FollowedTasks
from gagent_grpc.bridge.served_tasks import ServedTasks
from gagent_grpc.client.acp.message import ReceivedACP, headers_after
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.answers import Fail
from gagent_grpc.errors import BusError, DeliveryRefused, InvalidArgument, MessageTooLarge, ScriptError

MAX_OPEN_QUESTIONS = 1_000
"""ACP requests without an answer that are remembered; beyond that the oldest is forgotten."""

_AUTOMATIC = ACPMetadata(entries={AUTOMATIC_ENTRY: "true"})
_logger = logging.getLogger(__name__)


class Extensions:
    """The extensions of one agent's script."""

    def __init__(self, agent: Agent, give: Give) -> None:
        """Prepare; nothing is taken before `declare`.

        Args:
            agent: Whose script it is.
            give: Gives an event and carries out its answer.
        """
        self._agent = agent
        self._give = give
        self._owned = Owned(agent.name)
        self._served = ServedTasks(agent.name, give, self._owned)
        self._takes: tuple[str, ...] = ()
        self._followed = FollowedTasks(agent, give, self._owned, lambda: self._takes)
        self._registered: set[str] = set()
        self._questions: dict[str, ReceivedACP] = {}

    def declare(self, names: tuple[str, ...]) -> None:
        """Take what the run of the script that has just started says it takes."""
        self._takes = names
        self._owned.open()
        if "delegate" in names and "delegate" not in self._registered:
            self._agent.on_delegate(self._work)
        if "acp" in names and "acp" not in self._registered:
            self._agent.on_acp()(self._take_acp)
        self._registered.update(names)

    async def carry_out(self, action: ExtensionAction, event: ExtensionEvent | None) -> None:
        """Do what an action says. What cannot be done is logged; where somebody waits, that one is told.

        Args:
            action: The action.
            event: Event of an extension that it answers; None for none.
        """
        try:
            match action:
                case Delegate():
                    parent = self._served.find(action.parent, None, event) if action.parent else None
                    await self._followed.delegate(action, parent)
                case AnswerTask():
                    await self._followed.answer(action)
                case CancelTask():
                    await self._followed.cancel(action)
                case TaskReport():
                    await self._served.report(action, event)
                case SendACP():
                    await self._send(action.message, event)
        except BusError as error:
            word = action.word if isinstance(action, TaskReport) else type(action).__name__.lower()
            _logger.warning("%s: the action %s failed: %s", self._agent.name, word, error)

    async def give_up(self, why: str) -> None:
        """The script has ended: what it had in hand fails, or goes to its next run."""
        self._served.give_up(why)
        open_questions, self._questions = self._questions, {}
        for question in open_questions.values():
            try:
                await self._agent.reply_acp(question, "error", error_content("FAILED", why), metadata=_AUTOMATIC)
            except BusError as error:
                _logger.info("%s: an error was not delivered: %s", self._agent.name, error)

    async def aclose(self) -> None:
        """End every wait. Idempotent."""
        await self._owned.aclose()

    # ---- tasks -----------------------------------------------------------------------------------------------------

    async def _work(self, context: Any) -> Any:
        if "delegate" not in self._takes:
            # An earlier run of the script took tasks.
            raise Fail("the script takes no tasks any more")
        return await self._served.serve(context)

    # ---- ACP -------------------------------------------------------------------------------------------------------

    async def _take_acp(self, message: ReceivedACP) -> None:
        event = self._event_of(message)
        if event is None:
            return
        if message.type is ACPMessageType.REQUEST:
            self._questions[message.id or ""] = message
            if len(self._questions) > MAX_OPEN_QUESTIONS:
                del self._questions[next(iter(self._questions))]
        try:
            await self._give(event)
        except ScriptError as error:
            self._questions.pop(message.id or "", None)
            raise Fail(error.summary if isinstance(error, ScriptExited) else str(error)) from error

    def _event_of(self, message: ACPMessage) -> ExtensionEvent | None:
        """Return what the script hears of an ACP message; None where it takes none and ACL has no word for it."""
        if "acp" in self._takes:
            return ExtensionEvent(message=message, event="acp", msg=message.to_dict())
        return as_message(message, self._agent.name)

    async def _send(self, message: ACPMessage, event: ExtensionEvent | None) -> None:
        original = event.message if event is not None else None
        headers = None
        if message.target is None:
            if original is None:
                raise InvalidArgument(
                    "an ACP message without `target` answers nothing; expected `target`", field="target"
                )
            message = message.replace(target=original.source, in_reply_to=message.in_reply_to or original.id)
            headers = headers_after(original)
        if message.type in (ACPMessageType.RESPONSE, ACPMessageType.ERROR):
            self._questions.pop(message.in_reply_to or "", None)
        made = self._agent.filled(message)
        try:
            await self._agent.send_acp(made, headers=headers)
        except (DeliveryRefused, MessageTooLarge, InvalidArgument) as error:
            _logger.warning("%s: an ACP message was not sent: %s", self._agent.name, error)
            if made.type not in (ACPMessageType.ERROR, ACPMessageType.HEARTBEAT):
                self._owned.spawn(self._tell_refused(made, error))

    async def _tell_refused(self, message: ACPMessage, error: BusError) -> None:
        """Tell the script that what it sent did not arrive, as the platform tells it of an ACL message."""
        code = error.outcome if isinstance(error, DeliveryRefused) else "INVALID"
        told = ACPMessage(
            type=ACPMessageType.ERROR,
            source="ams",
            target=self._agent.name,
            content=error_content(code, str(error), message.task_id),
            metadata=_AUTOMATIC,
            in_reply_to=message.id,
        )
        event = self._event_of(told)
        if event is not None:
            try:
                await self._give(event)
            except ScriptError as refused:
                _logger.info("%s: an error has no answer: %s", self._agent.name, refused)
