"""A subscription as its initiator holds it: notices in the order in which they were sent, until one of the two ends it.

Owns: the subscription and its bounded queue. Leaves to others: who may say what (`protocols.subscribe`), which conversation a
message belongs to (`client.conversations`), publishing (`client.publishing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage, identifiers
from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.ams import why_no_answer
from gagent_grpc.client.conversations import ENDINGS, LEAVE_WITHIN, Conversations, ending, moment, positive_seconds
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.message import Received
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import AnswerTimeout, BusError, InvalidArgument, PreconditionFailed
from gagent_grpc.pb.gagent.v1 import bus_service_pb2
from gagent_grpc.protocols import Move, Stage
from gagent_grpc.protocols.subscribe import SubscribeProtocol

_logger = logging.getLogger(__name__)

QUEUE = 1_000
"""Notices that wait for their reader by default."""
_ACTS = frozenset(int(act) for act in Performative)


class Subscription:
    """A subscription to what another agent informs of (FIPA SC00035). Open while its block lasts.

        async with agent.subscribe("prices", "EUR/USD") as subscription:
            async for notice in subscription:
                print(notice.content)

    Notices come in the order in which they were sent. At most ``queue`` of them wait for the reader; when one more comes the
    oldest one is dropped, and `missed` counts it: a reader that is too slow sees what is newest. A `refuse`, `failure` or
    `not-understood` is raised once what came before it was read.
    """

    def __init__(
        self,
        conversations: Conversations,
        to: str | AgentIdentifier,
        content: str | bytes | None,
        *,
        timeout: float,
        queue: int,
        parameters: Mapping[str, Any],
    ) -> None:
        """Prepare a subscription; nothing is sent yet. Arguments and errors as `Agent.subscribe`."""
        self._seconds = positive_seconds(timeout, "timeout")
        if isinstance(queue, bool) or not isinstance(queue, int) or queue < 1:
            raise InvalidArgument(f"queue {queue!r}; expected a whole number of notices, at least 1", field="queue")
        if not isinstance(to, str | AgentIdentifier):
            raise InvalidArgument("a subscription is to one agent; open one for each", field="to")
        for name in ("performative", "receivers", "reply_with", "in_reply_to", "reply_by"):
            if name in parameters:
                raise InvalidArgument(f"{name} is set by the subscription itself", field=name)
        self._conversations = conversations
        self._receivers = identifiers(to)
        self._content = content
        self._parameters = {"protocol": SubscribeProtocol.name, **parameters}
        self.mark = str(parameters.get("conversation_id") or new_id())
        """Its conversation-id."""
        self._parameters["conversation_id"] = self.mark
        self._protocol = SubscribeProtocol("")
        self._waiting: deque[Received] = deque()
        self._most = queue
        self._changed = asyncio.Event()
        self._opened = self._left = False
        self._answer_due = 0.0
        """When the first answer has to be there, in the loop's time."""
        self._error: BusError | None = None
        """What the reader is told once it has read what waits."""
        self._name = ""
        self.missed = 0
        """Notices that were dropped because the reader was too slow."""
        self.cancel_confirmed: bool | None = None
        """After the block: whether the publisher said that it has stopped; None when it did not answer, or was not asked."""

    async def __aenter__(self) -> Self:
        """Send the subscription and wait for its receipt, not for its first answer.

        Raises:
            DeliveryRefused: The other agent was not reached.
            AnswerTimeout: The bus was away for ``timeout`` seconds.
            MessageTooLarge, InvalidArgument, PreconditionFailed, BusError: As `Agent.send`.
        """
        if self._opened:
            raise PreconditionFailed("the subscription was opened before; expected a new one")
        conversations = self._conversations
        me, self._name = conversations.me, conversations.bare(self._receivers[0].name)
        self._protocol = SubscribeProtocol(me)
        due = time.time() + self._seconds
        self._answer_due = asyncio.get_running_loop().time() + self._seconds
        message = ACLMessage(
            Performative.SUBSCRIBE,
            receivers=self._receivers,
            content=self._content,
            **{**self._parameters, "reply_with": self.mark, "reply_by": moment(due)},
        )
        self._observe(Move(me, (self._name,), Performative.SUBSCRIBE, self.mark, "", due))
        conversations.add(self)
        self._opened = True
        try:
            async with asyncio.timeout_at(self._answer_due):
                await conversations.say(message, patience=0.0)
        except BaseException as error:
            self._left = True
            conversations.end(self)
            if isinstance(error, TimeoutError):
                raise AnswerTimeout(self._receivers[0].name, self._seconds, "the subscription was not sent") from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancel the subscription if it is open, and wait a few seconds at most for the answer to that."""
        self._left = True
        self._waiting.clear()
        self._changed.set()
        try:
            if self._stage is not Stage.OVER and self._error is None:
                with contextlib.suppress(BusError, TimeoutError):
                    async with asyncio.timeout(LEAVE_WITHIN):
                        await self._cancel()
        finally:
            self._conversations.end(self)

    async def _cancel(self) -> None:
        # Before the publisher is known to have the subscription, a cancel must not overtake it.
        priority = Priority.NORMAL if self._stage is Stage.ASKED else Priority.URGENT
        mark, due = new_id(), time.time() + LEAVE_WITHIN
        message = ACLMessage(
            Performative.CANCEL,
            receivers=self._receivers,
            **{**self._parameters, "reply_with": mark, "in_reply_to": self.mark, "reply_by": moment(due)},
        )
        self._observe(Move(self._protocol.initiator, (self._name,), Performative.CANCEL, mark, self.mark, due))
        await self._conversations.say(message, patience=LEAVE_WITHIN, priority=priority)
        while self._stage is not Stage.OVER and self._error is None:
            self._changed.clear()
            await self._changed.wait()

    @property
    def _stage(self) -> Stage | None:
        return self._protocol.stage_of(self._name)

    @property
    def is_open(self) -> bool:
        """Whether notices may still come: neither side has ended it."""
        return self._opened and not self._left and self._error is None and self._stage is not Stage.OVER

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        """Return the next notice; wait for it as long as it takes, but for the first answer of the publisher.

        Raises:
            StopAsyncIteration: The block is over.
            RefusedByAgent, FailureFromAgent, NotUnderstoodByAgent: The publisher ended it; `sender` is the AMS where the
                publisher was lost before it answered.
            AnswerTimeout: The publisher said nothing within ``timeout`` seconds, neither `agree` nor a notice.
            PreconditionFailed: The block has not begun, or the agent was closed.
        """
        if not self._opened:
            raise PreconditionFailed("the subscription is not open; use it inside `async with`")
        try:
            async with asyncio.timeout_at(self._answer_due if self._stage is Stage.ASKED else None) as patience:
                while not self._waiting:
                    if self._left:
                        raise StopAsyncIteration
                    if self._error is not None:
                        raise self._error
                    if self._stage is not Stage.ASKED:
                        patience.reschedule(None)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            name = self._receivers[0].name
            raise AnswerTimeout(name, self._seconds, await why_no_answer(self._conversations.ams, name)) from None
        return self._waiting.popleft()

    # ---- what the conversation hears -------------------------------------------------------------------------------

    def take(self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier, lost: str) -> bool:
        """As `Conversation.take`."""
        acl = delivery.message.acl
        name = lost or self._conversations.bare(sender.name)
        if name != self._name or acl.performative not in _ACTS:
            return False
        act = Performative(int(acl.performative))
        me = self._protocol.initiator
        move = Move(name, (me,), act, acl.reply_with, acl.in_reply_to, platform=bool(lost), about=lost)
        if not self._observe(move):
            # Notices that crossed the cancel and its answer are for nobody; anything else is mail.
            return bool(lost) or (act is Performative.INFORM and self._stage is Stage.OVER)
        over = self._stage is Stage.OVER
        if self._left:
            if over:
                self.cancel_confirmed = act is Performative.INFORM
        elif act is Performative.INFORM:
            self._queue(Received(delivery, sender))
        elif act in ENDINGS:
            self._error = ending(Received(delivery, sender))
        self._changed.set()
        return True

    def _queue(self, notice: Received) -> None:
        if len(self._waiting) >= self._most:
            self._waiting.popleft()
            self.missed += 1
            if self.missed == 1:
                text = "%s: the reader of the subscription to %s is too slow; the oldest notices are dropped"
                _logger.warning(text, self._protocol.initiator, self._name)
        self._waiting.append(notice)

    def wants(self, message: Received) -> bool:
        """Nothing that `take` left."""
        return False

    async def handle(self, message: Received) -> bool:
        """Nothing is left by `take` that is dealt with here."""
        return False

    def fail(self, error: BusError) -> None:
        """As `Conversation.fail`."""
        if self._error is None:
            self._error = error
        self._changed.set()

    def _observe(self, move: Move) -> bool:
        verdict = self._protocol.observe(move)
        if not verdict.in_sequence:
            _logger.debug("conversation %s: %s", self.mark, verdict.why)
        return verdict.in_sequence
