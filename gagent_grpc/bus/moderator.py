"""What follows from what the conversation monitor finds: refusals, failures, notices, and lines in the log.

Owns: what the policy does about a message out of sequence, how a conversation is ended, and who hears of it. Leaves to
others: finding it (`bus.conversations`), mailboxes and receipts (`bus.post`).

What two say to each other in a conversation is ended under every policy when it has gone too far: one `failure` to the
initiator, whatever comes later is refused without another one; what others say in it goes on. So is the part of a participant that did not answer by the reply-by of what it was asked: who set
one wants to hear. The policy is about sequence alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gagent_grpc.acl.message import AUTOMATIC
from gagent_grpc.acl.performative import NEVER_ANSWERED, Performative
from gagent_grpc.bus.ams import AgentManagementSystem
from gagent_grpc.bus.conversations import ConversationMonitor, Overdue, Step
from gagent_grpc.bus.origins import Origin, Receipt
from gagent_grpc.bus.ports import Codec
from gagent_grpc.bus.traffic import Traffic
from gagent_grpc.config import BusLimits, ConversationPolicy
from gagent_grpc.envelope import Envelope, Outcome

if TYPE_CHECKING:
    from gagent_grpc.bus.post import Post

_log = logging.getLogger(__name__)

_REQUEST = int(Performative.REQUEST)


class Ended:
    """What a `failure` about a conversation has to say of it, as one about a message has it from its envelope."""

    __slots__ = ("conversation_id", "id", "performative", "protocol", "reply_with")

    def __init__(self, conversation_id: str, protocol: str, reply_with: str = "", message_id: str = "") -> None:
        self.conversation_id = conversation_id
        self.protocol = protocol
        self.reply_with = reply_with
        """What the failure is in reply to; "" for nothing in particular."""
        self.id = message_id
        self.performative = _REQUEST
        """Somebody waits for an answer."""


class Moderator:
    """Keeps the conversations of one node within their limits."""

    def __init__(
        self, post: Post, ams: AgentManagementSystem, codec: Codec, limits: BusLimits, traffic: Traffic
    ) -> None:
        self._post = post
        self._ams = ams
        self._codec = codec
        self._policy = limits.conversation_policy
        self._traffic = traffic
        self.monitor = ConversationMonitor(limits)

    # ---- a message comes -------------------------------------------------------------------------------------------

    def refuse(self, step: Step, receiver: str, envelope: Envelope, origin: Origin, number: int) -> None:
        """Refuse a message of two that have gone too far in a conversation. Its initiator gets a `failure`, once.

        Not for a failure, a refuse, a not-understood, or what a program wrote by itself: then the next message is the one.
        """
        pair = step.pair
        assert pair is not None
        conversation = pair.conversation
        initiator = conversation.initiator
        receipt = Receipt(number, receiver, Outcome.DENIED, step.refusal, field="acl.conversation_id")
        # Whoever wants its refusals as messages gets one for the message that is the first to be refused, and no more.
        first = step.ends and initiator != origin.aid
        self._post.refuse(origin, receipt, envelope, with_failure=first)
        if step.ends:
            _log.warning("ended by the conversation monitor: %s", pair.why)
            if self._traffic.watched:
                other = step.receiver if initiator == step.sender else step.sender
                self._traffic.conversation_ended(conversation.id, initiator, other, pair.why)
            self._notify(initiator, pair.why, conversation.id)
            # What they owe each other in it will not be delivered any more; that is said once.
            self._post.debts.end(step.sender, step.receiver, conversation.id)
            self._post.debts.end(step.receiver, step.sender, conversation.id)
        # Of others in its conversation it hears once, however many of them are ended.
        mark = pair if initiator in (pair.first, pair.second) else conversation
        if not mark.told and self._may_be_answered(envelope):
            mark.told = True
            self.monitor.end_with(pair, initiator, f"ams@{self._ams.platform}")
            asked = initiator == step.sender
            about = step.receiver if asked else step.sender
            # Where the initiator still waits for an answer, this is it.
            reply_with = envelope.reply_with if asked else envelope.in_reply_to
            ended = Ended(conversation.id, envelope.protocol, reply_with, envelope.id)
            self._post.fail(ended, initiator, about, pair.why)

    def _may_be_answered(self, envelope: Envelope) -> bool:
        if envelope.performative in NEVER_ANSWERED:
            return False
        message = self._codec.decode_acl(envelope.payload)
        return message is None or message.user_parameters.get(AUTOMATIC) != "true"

    def allows(self, why: str, step: Step, receiver: str, envelope: Envelope, origin: Origin, number: int) -> bool:
        """Return whether a message out of sequence is delivered; else it is refused, as the policy wants it."""
        text = f"out of sequence in conversation {envelope.conversation_id!r}: {why}"
        if self._policy is ConversationPolicy.ENFORCE:
            receipt = Receipt(number, receiver, Outcome.DENIED, text, field="acl.performative")
            self._post.refuse(origin, receipt, envelope, flag=why)
            return False
        self._notify(step.sender, text, envelope.conversation_id)
        return True

    def _notify(self, aid: str, text: str, conversation_id: str) -> None:
        if self._policy is ConversationPolicy.OBSERVE:
            return
        record = self._post.sender_of(aid)
        if record is not None and record.session is not None:
            record.session.warn(text, conversation_id)

    # ---- what the clock brings -------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Answer for participants whose time is over at ``now`` (Unix seconds), and forget conversations that are idle."""
        for one in self.monitor.overdue(now):
            self._end_part(one)
        self.monitor.forget_idle(now)

    def _end_part(self, one: Overdue) -> None:
        conversation, initiator, participant = one.conversation, one.initiator, one.participant
        why = f"no answer of {participant} by reply_by"
        _log.info("%s in conversation %s of %s", why, conversation.id, initiator)
        # Answered for now, and not once more when it is lost.
        self._post.debts.end(participant, initiator, conversation.id)
        if self._traffic.watched:
            self._traffic.conversation_ended(conversation.id, initiator, participant, why)
        self._notify(initiator, why, conversation.id)
        self._post.fail(Ended(conversation.id, one.protocol, one.reply_with), initiator, participant, why)
