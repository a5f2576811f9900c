"""The messages that the bus itself writes about tasks: the DELEGATE, and what a call says to somebody who speaks messages.

Owns: their form, and that they find a mailbox. Who delegated by a message hears by messages; so does an executor that accepted
by one. Leaves to others: when something is said (`bus.execution`, `bus.task_endings`), the way into a mailbox (`bus.post`).
"""

from __future__ import annotations

import copy
import json
import logging
import uuid

from gagent_grpc.acp.task_messages import Status, TaskMessage, TaskMessageKind
from gagent_grpc.acp.tasks import TaskState
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import PlatformOrigin
from gagent_grpc.bus.ports import Clock, Codec
from gagent_grpc.bus.post import Post
from gagent_grpc.bus.task_values import Progressed
from gagent_grpc.bus.tasks import Task
from gagent_grpc.envelope import Envelope
from gagent_grpc.errors import InvalidArgument

_log = logging.getLogger(__name__)


class TaskLetters:
    """Writes and withdraws the messages of one node that are about tasks. Synchronous."""

    def __init__(self, ams: AgentManagementSystem, post: Post, codec: Codec, clock: Clock) -> None:
        self._ams = ams
        self._post = post
        self._codec = codec
        self._clock = clock
        self._self = f"ams@{ams.platform}"

    # ---- the DELEGATE ----------------------------------------------------------------------------------------------

    def delegation(self, task: Task, *, again: bool = False) -> Envelope:
        """Return the DELEGATE of the next attempt at a task, in the name of its delegator.

        With ``again`` it may have been delivered before, and says so.
        """
        order = task.order
        message = TaskMessage(
            TaskMessageKind.DELEGATE,
            task.key.task_id,
            description=order.description,
            parameters=order.parameters,
            callback_url=order.callback_url,
            attempt=task.attempt + 1,
            delegator=task.key.delegator,
        )
        payload = self._codec.encode_task(
            message,
            source=task.key.delegator,
            target=order.address,
            message_id=str(uuid.uuid4()),
            priority=order.priority,
            expires_at=task.deadline,
            resend=again,
        )
        return self._codec.decode(payload)

    def completed(self, envelope: Envelope, task_id: str) -> Envelope:
        """Return a DELEGATE that came without an id of the task, or of itself, with both; it is known as before."""
        made = copy.copy(envelope)
        made.id = envelope.id or str(uuid.uuid4())
        made.payload = self._codec.complete_delegation(envelope.payload, task_id=task_id, message_id=made.id)
        return made

    def find(self, task: Task) -> tuple[AgentRecord, Letter] | None:
        """Return the unsettled DELEGATE of the newest attempt and whose mailbox it is in; None when it is in none."""
        record = self._ams.find(task.executor) if task.executor else None
        if record is None or not task.sequence:
            return None
        letter = record.mailbox.in_flight_letter(task.sequence)
        if letter is None:
            waiting = (one for one in record.mailbox.letters() if one.sequence == task.sequence)
            letter = next(waiting, None)
        if letter is None or (letter.sender, letter.message_id) != (task.key.delegator, task.message_id):
            return None
        return record, letter

    def is_unseen(self, task: Task) -> bool:
        """Return whether the DELEGATE of the newest attempt waits in a mailbox, and nobody has seen it."""
        found = self.find(task)
        return found is not None and not found[1].attempt and not found[1].redelivered

    def withdraw(self, task: Task) -> None:
        """Take the DELEGATE of the newest attempt out of the mailbox, where it still is."""
        found = self.find(task)
        if found is not None:
            record, letter = found
            record.mailbox.withdraw(letter.sequence)
            self._post.settled(record, letter)

    # ---- to the delegator ------------------------------------------------------------------------------------------

    def accepted(self, task: Task) -> None:
        """Tell a delegator that its executor has taken the task up, which it said by a call."""
        self._answer(task, task.executor, TaskMessageKind.RESPONSE, status=Status.ACCEPTED)

    def progressed(self, task: Task, progress: Progressed) -> None:
        """Tell a delegator how far its executor says that it is."""
        self._answer(
            task,
            task.executor,
            TaskMessageKind.NOTIFICATION,
            status=Status.RUNNING,
            progress=progress.fraction,
            note=progress.note,
        )

    def asked(self, task: Task) -> None:
        """Tell a delegator what its executor asks."""
        self._answer(
            task, task.executor, TaskMessageKind.NOTIFICATION, status=Status.INPUT_REQUIRED, note=task.question
        )

    def ended(self, task: Task, *, by_executor: bool, detail: str = "") -> None:
        """Tell a delegator how its task ended, in the name of its executor or of the platform."""
        source = task.executor if by_executor else self._self
        if task.state is TaskState.COMPLETED:
            self._answer(task, source, TaskMessageKind.RESULT, status=Status.COMPLETED, result=task.result)
            return
        code = "EXECUTOR_LOST" if task.reason == EXECUTOR_LOST else task.state.name
        text = ": ".join(one for one in (task.reason or str(task.state), detail) if one)
        self._answer(task, source, TaskMessageKind.ERROR, code=code, text=text)

    def _answer(
        self,
        task: Task,
        source: str,
        kind: TaskMessageKind,
        *,
        status: str = "",
        progress: float | None = None,
        note: str = "",
        result: str | None = None,
        code: str = "",
        text: str = "",
    ) -> None:
        if not task.by_message or task.orphaned:
            return
        message = TaskMessage(
            kind,
            task.key.task_id,
            status=status,
            progress=progress,
            note=note,
            result=result,
            code=code,
            text=text,
        )
        self._send(message, source, task.key.delegator, in_reply_to=task.message_id, over=task.state.final)

    # ---- to the executor -------------------------------------------------------------------------------------------

    def cancel(self, task: Task, why: str) -> None:
        """Tell an executor that accepted by a message that a task is to end, or has."""
        self._tell_executor(task, Status.CANCEL, why)

    def answer(self, task: Task, answer: str) -> None:
        """Give it the input that it asked for, as JSON text."""
        self._tell_executor(task, Status.ANSWER, answer)

    def signal(self, task: Task, name: str, value: str) -> None:
        """Give it a signal."""
        told = f'{{"name": {json.dumps(name)}' + (f', "value": {value}}}' if value else "}")
        self._tell_executor(task, Status.SIGNAL, told)

    def _tell_executor(self, task: Task, status: str, note: str) -> None:
        message = TaskMessage(TaskMessageKind.NOTIFICATION, task.key.task_id, status=status, note=note)
        self._send(message, task.key.delegator, task.executor, in_reply_to=task.message_id, over=True)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _send(self, message: TaskMessage, source: str, target: str, *, in_reply_to: str, over: bool) -> None:
        """Put a message into a mailbox; without ``over`` one that has no room for it does without."""
        record = self._ams.find(target)
        if record is None:
            return
        try:
            envelope = self._codec.decode(
                self._codec.encode_task(
                    message, source=source, target=target, message_id=str(uuid.uuid4()), in_reply_to=in_reply_to
                )
            )
        except InvalidArgument:
            _log.exception("a message about a task could not be encoded: to %s", target)
            return
        size = len(envelope.payload)
        account = self._post.reserve(record, size, source) or (
            self._post.reserve(record, size, source, over=True) if over else None
        )
        if account is None:
            return
        origin = PlatformOrigin(source)
        self._post.deliver(record, account, envelope, origin, 0, record.name, None, self._clock.time())


EXECUTOR_LOST = "executor lost"
"""Reason of a task that failed because nobody is left who works on it."""
