"""Conversations that this agent began: which of them a message belongs to, and how they speak.

Owns: the table of conversations, open ones and those that ended lately, and sending in their name. Leaves to others: what a
conversation is about (`client.contract_net`, `client.subscriptions`), single questions (`client.questions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.ams import AmsClient
from gagent_grpc.client.message import Receipt, Received, answer_headers, encoded
from gagent_grpc.client.pending import HOLD_ORDER_FLAG, Sending
from gagent_grpc.client.sending import Sender
from gagent_grpc.client.session import ClientSession
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import (
    BusError,
    ConversationFailed,
    DeliveryRefused,
    FailureFromAgent,
    InvalidArgument,
    NotUnderstoodByAgent,
    RefusedByAgent,
)
from gagent_grpc.pb.gagent.v1 import acl_pb2, bus_service_pb2

_logger = logging.getLogger(__name__)

BY_PROGRAM = {AUTOMATIC: "true"}
"""User parameters of what the library itself says."""
LEAVE_WITHIN = 5.0
"""Seconds that the end of a conversation may take: a cancel to be answered, rejections to be handed over."""
ENDINGS: dict[Performative, type[ConversationFailed]] = {
    Performative.REFUSE: RefusedByAgent,
    Performative.FAILURE: FailureFromAgent,
    Performative.NOT_UNDERSTOOD: NotUnderstoodByAgent,
}
"""Acts that end a conversation without the wanted answer, and what is raised for them."""
_MAX_ENDED = 1_000


@dataclass(frozen=True, slots=True)
class Accepted:
    """A proposal was accepted. True in a condition."""

    answer: Received
    """The `accept-proposal`."""

    @property
    def content(self) -> str | bytes | None:
        """What was said with it."""
        return self.answer.content

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Rejected:
    """A proposal was rejected. False in a condition."""

    answer: Received
    """The `reject-proposal`."""

    @property
    def content(self) -> str | bytes | None:
        """What was said with it: mostly why."""
        return self.answer.content

    def __bool__(self) -> bool:
        return False


class Conversation(Protocol):
    """One conversation that this agent began."""

    mark: str
    """Its conversation-id, which is also the reply-with of what it began with."""

    def take(self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier, lost: str) -> bool:
        """Take a message of the conversation; return whether it is dealt with, else it is mail for a handler.

        Args:
            delivery: It.
            sender: Who sent it.
            lost: In whose place the AMS answers; "" for a message of an agent.
        """
        ...

    def wants(self, message: Received) -> bool:
        """Return whether `handle` deals with a message that `take` left."""
        ...

    async def handle(self, message: Received) -> bool:
        """Deal with what `take` left, as a handler does; return whether that was done."""
        ...

    def fail(self, error: BusError) -> None:
        """The agent's session is over: nothing more will come."""
        ...


class Conversations:
    """The conversations that one agent began."""

    session: ClientSession
    sender: Sender
    ams: AmsClient

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self._open: dict[str, Conversation] = {}
        self._ended: dict[str, Conversation] = {}
        """Oldest first. What still comes in them is no mail: a late proposal, a notice that crossed the cancel."""

    def __bool__(self) -> bool:
        return bool(self._open or self._ended)

    def attach(self, session: ClientSession, sender: Sender, ams: AmsClient) -> None:
        """Say with what they speak; done once, since the session is made with what listens here."""
        self.session = session
        self.sender = sender
        self.ams = ams

    @property
    def me(self) -> str:
        """Name of the agent, as others of this platform see it."""
        return self.bare(self.session.aid)

    def bare(self, name: str) -> str:
        """Return a name in the form in which it is compared: without the platform for an agent of this one."""
        return name.removesuffix(f"@{self.session.platform}")

    # ---- the table -------------------------------------------------------------------------------------------------

    def add(self, conversation: Conversation) -> None:
        """Expect messages of a conversation that begins.

        Raises:
            InvalidArgument: Another one with its conversation-id is open.
        """
        if conversation.mark in self._open:
            raise InvalidArgument(
                f"conversation_id {conversation.mark!r} belongs to an open conversation; expected one of its own",
                field="conversation_id",
            )
        self._ended.pop(conversation.mark, None)
        self._open[conversation.mark] = conversation

    def end(self, conversation: Conversation) -> None:
        """A conversation is over; what still comes in it goes to it for a while. Idempotent."""
        if self._open.get(conversation.mark) is not conversation:
            return
        del self._open[conversation.mark]
        self._ended[conversation.mark] = conversation
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def fail(self, error: BusError) -> None:
        """There will be no session any more."""
        for conversation in list(self._open.values()):
            conversation.fail(error)
        self._ended.clear()

    def find(self, mark: str) -> Conversation | None:
        """Return the conversation with this id, open or ended lately; None when there is none."""
        return self._open.get(mark) or self._ended.get(mark)

    def take(self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier) -> bool:
        """Give a message to its conversation; return whether that dealt with it."""
        acl = delivery.message.acl
        conversation = self.find(acl.conversation_id or acl.in_reply_to)
        return conversation is not None and conversation.take(delivery, sender, self.bare(answered_for(acl, sender)))

    def wants(self, message: Received) -> bool:
        """Return whether `handle` has a conversation deal with a message."""
        conversation = self.find(message.conversation_id or message.in_reply_to or "")
        return conversation is not None and conversation.wants(message)

    async def handle(self, message: Received) -> bool:
        """Have a conversation deal with a message that it did not take at once; return whether it did."""
        conversation = self.find(message.conversation_id or message.in_reply_to or "")
        return conversation is not None and await conversation.handle(message)

    # ---- speaking --------------------------------------------------------------------------------------------------

    async def hand_over(
        self,
        messages: Sequence[ACLMessage],
        sending: Sending,
        *,
        priority: Priority = Priority.NORMAL,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send messages without waiting for their receipts, which ``sending`` gets; errors as `Sender.hand_over`."""
        flag = HOLD_ORDER_FLAG if sending.patience else b""
        payloads = [encoded(one, priority, headers=headers) + flag for one in messages]
        await self.sender.hand_over(payloads, [one.receivers for one in messages], sending)

    async def say(
        self,
        message: ACLMessage,
        *,
        patience: float,
        priority: Priority = Priority.NORMAL,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a message and wait for its receipts; it waits ``patience`` seconds for room. Errors as `Agent.send`."""
        payload = encoded(message, priority, headers=headers)
        await self.sender.send(message, payload, patience=patience, priority=priority)

    async def tell_all(self, messages: Sequence[ACLMessage], *, within: float = LEAVE_WITHIN) -> None:
        """Send what need not be heard of again, such as rejections at the end; who is gone need not be told."""
        if not messages:
            return
        nobody: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sending = Sending(len(messages), nobody, patience=self.limits.answer_patience)
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(within):
                await self.hand_over(messages, sending)

    async def answer(self, original: Received, act: Performative, content: str, **parameters: Any) -> None:
        """Answer in the library's own name; whoever is gone need not be told.

        Raises:
            DeliveryRefused: The receiver had no room for as long as an answer waits.
        """
        made = original.create_reply(act, content, user_parameters=BY_PROGRAM, **parameters)
        try:
            await self.say(made, patience=self.limits.answer_patience, headers=answer_headers(original))
        except DeliveryRefused as refused:
            first = refused.receipts[0] if refused.receipts else None
            if isinstance(first, Receipt) and first.outcome.retryable:
                raise
            _logger.info("%s: %s was not delivered: %s", self.me, act, refused)


def moment(seconds: float) -> datetime:
    """Return the moment in ``seconds`` from the epoch, as ACL parameters have it."""
    return datetime.fromtimestamp(seconds, UTC)


def positive_seconds(value: float, field: str) -> float:
    """Return a time of so many seconds.

    Raises:
        InvalidArgument: It is none, or not above 0, or longer than a year.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 366 * 86_400:
        raise InvalidArgument(f"{field} {value!r}; expected seconds above 0, of a year at most", field=field)
    return float(value)


def ending(message: Received) -> ConversationFailed | None:
    """Return what an ending without the wanted answer raises; None for another act."""
    made = ENDINGS.get(message.performative)
    if made is None:
        return None
    text = message.content if isinstance(message.content, str) else ""
    return made(message.sender.name if message.sender is not None else "", text)


def answered_for(acl: acl_pb2.AclMessage, sender: AgentIdentifier) -> str:
    """Return for whom the AMS answers with this message; "" for a message of anybody else's."""
    if int(acl.performative) != Performative.FAILURE or sender.name.partition("@")[0] != "ams":
        return ""
    return acl.user_parameters.get("X-failed-receiver", "")
