"""Requests that wait for their answers, and which of them an answer is for.

Owns: matching by reply-with, and by conversation for agents that do not know it. Leaves to others: sending
(`client.outbox`), settling what was taken (`client.deliveries`), what an answer means to whoever asked (`client.agent`).
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative
from gagent_grpc.acp.message import ACPMessage
from gagent_grpc.client.message import Receipt, Received
from gagent_grpc.client.pending import PROVIDER, Sending
from gagent_grpc.errors import BusError, DeliveryRefused
from gagent_grpc.pb.gagent.v1 import acl_pb2, bus_service_pb2

_ACTS = frozenset(int(act) for act in Performative)


class Question(Sending):
    """One request: over with its answer, or with a refusal to deliver it. Acceptance alone changes nothing."""

    __slots__ = ("answer", "anybody", "asked", "conversation_id", "message", "reply_with")

    def __init__(self, message: ACLMessage, platform: str, *, waits_for_provider: bool = False) -> None:
        """Ask ``message``, which has `reply_with` and `conversation_id`; agents of ``platform`` have bare names."""
        self.answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        patience = math.inf if waits_for_provider else 0.0
        super().__init__(1, self.answer, patience=patience, waits_for=PROVIDER)
        self.message = message
        self.reply_with = message.reply_with or ""
        self.conversation_id = message.conversation_id or ""
        names = [one.name.removesuffix(f"@{platform}") for one in message.receivers]
        self.asked = frozenset([*names, *(f"{name}@{platform}" for name in names)])
        """Names of those who are asked, in either form."""
        self.anybody = any(name == "*" or name.startswith(("role:", "topic:")) for name in names)
        """Who is asked is not known before the answer."""

    def asks(self, sender: str) -> bool:
        """Whether ``sender`` may be one of those who are asked."""
        return self.anybody or sender in self.asked

    def _conclude(self) -> None:
        refused = [one for _, one in self.refusals if not one.delivered]
        if refused:
            self.answer.set_exception(refusal(refused, self.message))
            # Whoever gave up waiting does not want to hear of it from the loop.
            self.answer.exception()


class Listener(Protocol):
    """Hears of messages before any handler does: conversations of more than a question and its answer."""

    def __bool__(self) -> bool:
        """Whether it listens to anything at present."""
        ...

    def take(self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier) -> bool:
        """Return whether a message was for it, and is dealt with."""
        ...

    def fail(self, error: BusError) -> None:
        """There will be no session any more."""
        ...


class Questions:
    """The questions of one agent that have no answer yet, oldest first."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        """Hears of what answers no question; None for nobody."""
        self._by_reply_with: dict[str, list[Question]] = {}
        self._by_conversation: dict[str, list[Question]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_reply_with or self.listener)

    def add(self, question: Question) -> None:
        """Expect an answer."""
        self._by_reply_with.setdefault(question.reply_with, []).append(question)
        self._by_conversation.setdefault(question.conversation_id, []).append(question)

    def discard(self, question: Question) -> None:
        """Expect none any more. Idempotent."""
        for table, key in (
            (self._by_reply_with, question.reply_with),
            (self._by_conversation, question.conversation_id),
        ):
            waiting = table.get(key, [])
            if question in waiting:
                waiting.remove(question)
                if not waiting:
                    del table[key]

    def fail(self, error: BusError) -> None:
        """No answer will come any more: there will be no session."""
        for waiting in self._by_reply_with.values():
            for question in waiting:
                question.fail(error)
        if self.listener is not None:
            self.listener.fail(error)

    def take(self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier) -> bool:
        """Give an answer to the question that waits for it; return whether one did.

        An `agree` is taken, and the question goes on waiting for what was agreed to.
        """
        acl = delivery.message.acl
        # A question within a conversation names itself in its mark, and everything else is the conversation's.
        if self.listener and acl.in_reply_to not in self._by_reply_with and self.listener.take(delivery, sender):
            return True
        if not self._by_reply_with:
            return False
        lost = _answered_for(acl, sender)
        question = self.find(acl.performative, lost or sender.name, acl.in_reply_to, acl.conversation_id)
        if question is not None and lost and not question.asks(lost):
            # The failure of a request that nobody waits for any more.
            question = None
        if question is None or acl.performative not in _ACTS:
            # What could not be read is no answer: a handler finds out, and the bus hears of it.
            return False
        if question.answer.done():
            # Whoever asked has given up in this very turn of the loop: it is mail like any other.
            return False
        if int(acl.performative) != Performative.AGREE:
            # At once, so that the next answer under the same mark is another question's.
            self.discard(question)
            question.answer.set_result(Received(delivery, sender))
        return True

    def find(self, act: int, sender: str, in_reply_to: str, conversation_id: str) -> Question | None:
        """Return the question that a message answers; None when it answers none.

        Where several share a mark, the oldest one to this sender is meant, else the oldest: somebody else may answer in
        the place of who was asked.

        Args:
            act: FIPA code of the message's act.
            sender: Its sender; the bare name for an agent of this platform.
            in_reply_to: Its `in-reply-to`; "" when absent.
            conversation_id: Its `conversation-id`; "" when absent.
        """
        if in_reply_to:
            waiting = self._by_reply_with.get(in_reply_to)
            return _oldest(waiting, sender) or waiting[0] if waiting else None
        if not conversation_id or act in EXPECTS_ANSWER:
            return None
        # Simple agents answer within the conversation and know no in-reply-to. A conversation that the caller named may
        # hold other messages, so there only the one who was asked can mean the answer.
        waiting = self._by_conversation.get(conversation_id)
        if not waiting:
            return None
        return _oldest(waiting, sender) or next((one for one in waiting if one.reply_with == conversation_id), None)


def _answered_for(acl: acl_pb2.AclMessage, sender: AgentIdentifier) -> str:
    """Return for whom the AMS answers with this message; "" for a message of anybody else's."""
    if int(acl.performative) != Performative.FAILURE or sender.name.partition("@")[0] != "ams":
        return ""
    return acl.user_parameters.get("X-failed-receiver", "")


def _oldest(waiting: list[Question], sender: str) -> Question | None:
    return next((one for one in waiting if one.asks(sender)), None)


def refusal(refused: list[Receipt], message: ACLMessage | ACPMessage) -> DeliveryRefused:
    """Return the error that says whom a message did not reach."""
    first = refused[0]
    receiver = first.receiver or ", ".join(one.name for one in message.receivers) or "(no receiver)"
    made = DeliveryRefused(first.outcome.name, receiver, first.detail, first.retry_after)
    made.receipts = tuple(refused)
    return made
