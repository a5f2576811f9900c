"""Mail to and from the platform's own agents, `ams` and `df`.

Owns: that what is asked is done once, and that the answer finds a mailbox. Leaves to others: the answers themselves
(`bus.management`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.debts import OWES_ANSWER
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.origins import ANONYMOUS, Origin, PlatformOrigin, Receipt
from gagent_grpc.bus.ports import Clock, Codec
from gagent_grpc.bus.post import REPEATED, Post, used_id
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import Envelope, Outcome, Report
from gagent_grpc.errors import InvalidArgument, ResourceExhausted

_log = logging.getLogger(__name__)

_IN_A_ROW = 8
"""Answers to one agent in a row that say that something was not understood for which it expects no answer."""
_MAX_TALKATIVE = 10_000
"""Agents of which that is counted."""


class PlatformAgents(Protocol):
    """The platform's own agents, `ams` and `df`."""

    def answer(self, name: str, message: ACLMessage, sender: str) -> ACLMessage | None:
        """Return the answer of the agent ``name`` to a message; None when it needs none."""
        ...


class Asking:
    """Has the platform's own agents answer, and speak."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        post: Post,
        codec: Codec,
        clock: Clock,
        limits: BusLimits,
        dedupe: Dedupe,
        agents: PlatformAgents,
    ) -> None:
        self._ams = ams
        self._post = post
        self._codec = codec
        self._clock = clock
        self._limits = limits
        self._dedupe = dedupe
        self._agents = agents
        self._not_understood: dict[str, int] = {}
        """By agent, how many answers in a row said that something was not understood for which no answer was expected."""

    def tell(self, message: ACLMessage, record: AgentRecord) -> bool:
        """Send a message of one of the platform's agents, which it names as its sender, as ordinary mail to an agent.

        Returns:
            Whether it is in the mailbox, or on its way into it; False when there is no room.

        Raises:
            ResourceExhausted: It is longer than any message may be.
        """
        if message.sender is None:
            raise ValueError("a message of the platform names its sender")
        made = self._post.encoded(message)
        size = len(made.payload)
        if size > self._limits.max_message_bytes:
            raise ResourceExhausted(
                f"the message would have {size:,} bytes, the limit is {self._limits.max_message_bytes:,}"
            )
        account = self._post.reserve(record, size, message.sender.name)
        if account is None:
            return False
        actor = PlatformOrigin(message.sender.name)
        self._post.deliver(record, account, made, actor, 0, record.name, None, self._clock.time())
        return True

    def submit(self, name: str, receiver: str, envelope: Envelope, origin: Origin, number: int) -> None:
        """Have `ams` or `df` answer a message. Its answer is ordinary mail of whoever asked."""
        key = (origin.aid, envelope.id, name)
        known = self._dedupe.find(key) if envelope.id and origin.aid != ANONYMOUS else None
        if known is not None:
            repeated = Receipt(number, receiver, Outcome.DUPLICATE, REPEATED)
            self._post.refuse(
                origin, repeated if known == envelope.digest else used_id(number, receiver, envelope), envelope
            )
            return
        if envelope.conversation_id or envelope.hops:
            # An agent that answers whatever comes answers the failure, too, by which it hears of the end.
            step = self._post.moderator.monitor.look(
                envelope, origin.aid, f"{name}@{self._ams.platform}", self._clock.time()
            )
            if step is not None and step.refusal:
                self._post.moderator.refuse(step, receiver, envelope, origin, number)
                return
        message = self._codec.decode_acl(envelope.payload)
        if message is None:
            detail = f"{name} speaks ACL only; expected an ACL body"
            self._post.refuse(origin, Receipt(number, receiver, Outcome.INVALID, detail, field="body"), envelope)
            return
        asker = self._post.sender_of(origin.aid)
        if asker is not None and (asker.mailbox.full or not self._post.has_room(0)):
            # Asked before anything is done, since what is done could not be told.
            detail = "the mailbox of the sender has no room for the answer"
            self._post.refuse(origin, Receipt(number, receiver, Outcome.MAILBOX_FULL, detail, 0.1), envelope)
            return
        answer = self._agents.answer(name, message, origin.aid)
        if envelope.id and origin.aid != ANONYMOUS:
            self._dedupe.settled(key, envelope.digest, self._clock.time())
        origin.holds.taken(name, envelope)
        origin.accepted(number, receiver, waited=False, lazy=envelope.report == Report.RECEIPT_LAZY)
        if self._post.traffic.watched:
            self._post.traffic.asked(origin.aid, f"{name}@{self._ams.platform}", envelope)
        if answer is None or self._is_talkative(origin.aid, envelope, answer):
            return
        actor = PlatformOrigin(f"{name}@{self._ams.platform}")
        try:
            made = self._post.encoded(answer)
        except InvalidArgument:
            _log.exception("an answer of %s could not be encoded: to %s", actor.aid, origin.aid)
            self._post.fail(envelope, origin.aid, actor.aid, "done, but the answer cannot be encoded")
            return
        size = len(made.payload)
        if size > self._limits.max_message_bytes:
            why = (
                f"the answer has {size:,} bytes, the limit is {self._limits.max_message_bytes:,}; ask for fewer results"
            )
            self._post.fail(envelope, origin.aid, actor.aid, why)
            return
        for record in self._answered(message, origin):
            # Whoever asked had room when the question was taken, which is all that can be made sure of.
            account = self._post.reserve(record, size, actor.aid, over=record is asker)
            if account is None:
                self._post.unheard_failures += 1
                continue
            self._post.deliver(record, account, made, actor, 0, record.name, None, self._clock.time())

    def _is_talkative(self, asker: str, envelope: Envelope, answer: ACLMessage) -> bool:
        """Whether ``asker`` says one thing after another that is not understood and waits for no answer to any.

        Most likely it answers each not-understood, and would for ever (SC00037, not-understood). A message that is understood,
        or that waits for an answer, ends that.
        """
        if answer.performative is not Performative.NOT_UNDERSTOOD or envelope.performative in OWES_ANSWER:
            self._not_understood.pop(asker, None)
            return False
        if len(self._not_understood) >= _MAX_TALKATIVE and asker not in self._not_understood:
            self._not_understood.clear()
        count = self._not_understood[asker] = self._not_understood.get(asker, 0) + 1
        if count == _IN_A_ROW + 1:
            _log.warning("%s goes on with what is not understood; it gets no more answers to that", asker)
        return count > _IN_A_ROW

    def _answered(self, message: ACLMessage, origin: Origin) -> Iterable[AgentRecord]:
        """Return who gets the answer to ``message``: `reply_to` where it names agents of this platform, else its sender.

        Looked up after the request was carried out, which may have removed the sender.
        """
        named = [self._ams.find(one.name) for one in message.reply_to[: self._limits.max_receivers]]
        found = dict.fromkeys(record for record in named if record is not None)
        if not found:
            asker = self._post.sender_of(origin.aid)
            return () if asker is None else (asker,)
        return found
