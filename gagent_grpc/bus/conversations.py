"""The conversation monitor: what agents say to each other in turn, in which sequence, and when that has to end.

Owns: which message belongs to which conversation, the limits on turns and hops, whose move is out of sequence, and what is
overdue. Leaves to others: the protocols (`protocols`), what is done about it (`bus.moderator`). Pure: no loop and no clock;
times are given by the caller. What it knows is in memory only: after a restart every conversation begins anew, and what
begins in the middle is not judged.

An id is unique for its initiator only, so that a conversation is known by its id and two agents in it: those who use the same
id without having spoken to each other never mix. Each receiver of a message gets a move of its own, since each may be refused
by itself. What goes too far ends the talk of those two alone: one that misbehaves must not silence the others.

Not handled: answers that go to the `reply_to` of a message, and providers of a role that take over from each other; such a
conversation is not judged.
"""

from __future__ import annotations

import heapq
import itertools

from gagent_grpc.acl.performative import ACTS_BY_CODE, Performative
from gagent_grpc.bus.followed import Followed
from gagent_grpc.bus.origins import ANONYMOUS
from gagent_grpc.config import BusLimits, ConversationPolicy
from gagent_grpc.envelope import Envelope
from gagent_grpc.errors import shown
from gagent_grpc.protocols import InteractionProtocol, Move, Stage, open_protocol
from gagent_grpc.protocols.contract_net import ContractNetProtocol

ROLE = "role:"
"""Beginning of the address of a role, behind which there is one agent."""
_AT_ONCE = 200
"""Parts from which on one look ends no further conversation's: sessions that are well must not wait for those that are not."""
_STALE = 100
"""Deadlines that are done with and kept beside as many as there are conversations."""


class Conversation:
    """What is known of one conversation."""

    __slots__ = ("at", "heard", "id", "initiator", "net", "noted", "pairs", "queued_at", "told")

    def __init__(self, conversation_id: str, initiator: str, now: float, heard: dict[str, int]) -> None:
        self.id = conversation_id
        self.initiator = initiator
        """Who spoke first in it, as far as is known."""
        self.at = now
        """When the last message of it came, in Unix seconds."""
        self.queued_at = now
        """The same when it was last put into its place among the others."""
        self.heard = heard
        """By agent, how many messages one after the other led to the last one that it got; 0 for who got none. Shared by
        conversations that came out of each other."""
        self.pairs: list[Pair] = []
        self.net: InteractionProtocol | None = None
        """The protocol that it is under; None for one that is not judged."""
        self.noted = 0.0
        """When it is to be looked at for who is overdue; 0.0 for never."""
        self.told = False
        """Its initiator was told of two others in it that were ended."""

    @property
    def forgotten(self) -> bool:
        """Whether it is no longer followed."""
        return not self.pairs


class Pair:
    """Two agents in one conversation; the same one for a message to oneself."""

    __slots__ = ("asked", "closed", "conversation", "depth", "first", "heard", "second", "told", "turns", "why")

    def __init__(self, conversation: Conversation, first: str, second: str) -> None:
        self.conversation = conversation
        self.heard = conversation.heard
        """That of the conversation: it is looked into for every message."""
        self.first = first
        self.second = second
        self.turns = 0
        self.depth = 0
        """How many messages one after the other led to the latest turn, that turn counted."""
        self.asked = ""
        """Reply-with of what the initiator of its protocol said last; "" for none."""
        self.closed = False
        self.told = False
        """The initiator of the conversation, which is one of them, was told of its end."""
        self.why = ""
        """Why it was ended."""

    def close(self, why: str) -> None:
        """End it: whatever one of them says to the other is refused."""
        self.closed = True
        self.why = why


class Step:
    """What a message means for its conversation, if it is accepted; or why it must not be."""

    __slots__ = ("conversation", "depth", "ends", "envelope", "pair", "receiver", "refusal", "sender")

    def __init__(self, envelope: Envelope, sender: str, receiver: str, pair: Pair | None, depth: int) -> None:
        self.envelope = envelope
        self.sender = sender
        self.receiver = receiver
        self.pair = pair
        self.depth = depth
        self.conversation: Conversation | None = pair.conversation if pair is not None else None
        """That which it goes on with; None for one that it begins."""
        self.refusal = ""
        """Why the message is refused; "" when it is not."""
        self.ends = False
        """Its two agents are through with each other in this conversation by this refusal."""


class Overdue:
    """A participant that did not answer by the reply-by."""

    __slots__ = ("conversation", "initiator", "participant", "protocol", "reply_with")

    def __init__(self, conversation: Conversation, net: InteractionProtocol, participant: str, reply_with: str) -> None:
        self.conversation = conversation
        self.initiator = net.initiator
        self.protocol = net.name
        self.participant = participant
        self.reply_with = reply_with
        """That of what it was asked last; "" for none."""


class ConversationMonitor:
    """Follows the conversations of one node.

    Bounded: beyond that, of whoever began the most the one that has been idle longest is forgotten.
    """

    def __init__(self, limits: BusLimits) -> None:
        self._limits = limits
        self._max_turns = limits.max_turns
        self._max_hops = limits.max_hops
        self._idle = limits.conversation_idle
        self._enforce = limits.conversation_policy is ConversationPolicy.ENFORCE
        self._pairs: dict[tuple[str, str, str], Pair] = {}
        """By id and two agents, in both orders."""
        self._latest: dict[tuple[str, str], Conversation] = {}
        """By id and agent, the conversation that it came into last."""
        self._conversations = Followed()
        self._deadlines: list[tuple[float, int, Conversation]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def pairs(self) -> int:
        """Pairs of agents that are followed."""
        return self._conversations.pairs

    # ---- a message comes -------------------------------------------------------------------------------------------

    def look(self, envelope: Envelope, sender: str, receiver: str, now: float, via: str = "") -> Step | None:
        """Look at a message that would be accepted. Nothing changes but for one that goes too far.

        Args:
            envelope: The message.
            sender: `name@platform` of who really sends it.
            receiver: The same of who is to get it.
            now: Unix seconds.
            via: Address that led to the receiver, where it is not its own. What goes to everybody, or to a topic, is no
                conversation between two, and only its hops count.

        Returns:
            None when there is nothing to note. Else, unless it is refused, `take` is to follow once there is room for it.
        """
        conversation_id = "" if via and not via.startswith(ROLE) else envelope.conversation_id
        pair = self._pairs.get((conversation_id, sender, receiver)) if conversation_id else None
        if pair is not None:
            conversation = pair.conversation
            depth = pair.heard.get(sender, 0) + 1
            if depth <= pair.depth and conversation.net is None and not pair.closed and not envelope.hops:
                # Another word in the same breath, as nearly every message of a flood is.
                conversation.at = now
                return None
            if self._is_over(conversation, now):
                self._forget(conversation)
                pair = None
        if pair is None:
            if sender == ANONYMOUS:
                # Many senders, whose conversations cannot be told apart.
                conversation_id = ""
            if not conversation_id and not self._is_too_far(envelope, 0):
                return None
            depth = 1
        step = Step(envelope, sender, receiver, pair, depth)
        if pair is None and conversation_id:
            self._join(step, conversation_id, now)
        self._check(step, conversation_id, now)
        return step

    def _join(self, step: Step, conversation_id: str, now: float) -> None:
        """Look which conversation a message goes on with whose receiver its sender has not spoken to in it."""
        latest = self._latest.get((conversation_id, step.sender))
        if latest is not None and self._is_over(latest, now):
            self._forget(latest)
        elif latest is not None:
            step.conversation = latest
            step.depth += latest.heard.get(step.sender, 0)

    def _check(self, step: Step, conversation_id: str, now: float) -> None:
        """Refuse a message of two that are through with each other, or one that goes too far."""
        pair = step.pair
        if pair is not None and pair.closed:
            # Not idle as long as somebody goes on with it.
            pair.conversation.at = now
            step.refusal = f"{pair.why}; it may go on once nobody has said anything in it for {self._idle:g} s"
            return
        turn = 1 if conversation_id else 0
        if pair is not None:
            turn = pair.turns + (step.depth > pair.depth)
        if self._max_turns and turn > self._max_turns:
            step.refusal = (
                f"conversation {shown(conversation_id)} of {step.sender} and {step.receiver} was ended: "
                f"it has had its {self._max_turns} turns (max_turns)"
            )
        elif self._is_too_far(step.envelope, turn):
            what = f"conversation {shown(conversation_id)}" if conversation_id else "a message without conversation"
            step.refusal = (
                f"{what} of {step.sender} and {step.receiver} was ended: {step.envelope.hops} messages led to it, "
                f"each by answering or forwarding the one before; the limit is {self._max_hops} (max_hops)"
            )
        if step.refusal:
            self._end(step, conversation_id, now)

    def end_with(self, pair: Pair, agent: str, teller: str) -> None:
        """End what ``agent`` says to ``teller``, an agent of the platform, in whose name it hears of the end of a pair.

        It may be one that answers whatever it hears.
        """
        conversation = pair.conversation
        other = self._pairs.get((conversation.id, agent, teller)) or self._add_pair(conversation, agent, teller)
        other.told = True
        other.close(pair.why)

    def _is_too_far(self, envelope: Envelope, turn: int) -> bool:
        """Whether more messages led to this one than the turns of its own conversation and the hops beyond it allow."""
        return 0 < self._max_hops < envelope.hops - turn

    def _end(self, step: Step, conversation_id: str, now: float) -> None:
        pair = step.pair
        if pair is None:
            # One without an id is noted under "" so that its sender is told once, and not for each message.
            pair = self._pairs.get((conversation_id, step.sender, step.receiver))
        if pair is None:
            # By itself: what was refused takes no room in a conversation of others, and leads nobody into another one.
            pair = self._add_pair(Conversation(conversation_id, step.sender, now, {}), step.sender, step.receiver)
        step.pair = pair
        conversation = step.conversation = pair.conversation
        step.ends = not pair.closed
        if not conversation_id and self._is_over(conversation, now):
            pair.told, step.ends = False, True
        conversation.at = now
        pair.close(step.refusal)
        net = conversation.net
        if all(one.closed for one in conversation.pairs):
            conversation.net = None
        elif net is not None and net.initiator in (pair.first, pair.second):
            # It does not get an answer any more, and hears of it now.
            other = pair.second if net.initiator == pair.first else pair.first
            net.observe(_failure(net.initiator, other, now))

    def take(self, step: Step, now: float) -> str:
        """Note that a message is accepted; return what is out of sequence about it, "" for nothing.

        Where such messages are refused, one that is out of sequence changes nothing.
        """
        pair = step.pair
        if pair is None:
            pair = step.pair = self._begin(step, step.envelope.conversation_id, now)
            if pair is None:
                return ""
        conversation = step.conversation = pair.conversation
        conversation.at = now
        why = self._judge(conversation, step, now)
        if why and self._enforce:
            return why
        if step.depth > pair.depth:
            pair.turns += 1
            pair.depth = step.depth
            heard = conversation.heard
            if step.receiver in heard or len(heard) <= self._limits.conversation_pairs:
                heard[step.receiver] = max(heard.get(step.receiver, 0), step.depth)
        return why

    # ---- sequence --------------------------------------------------------------------------------------------------

    def _judge(self, conversation: Conversation, step: Step, now: float) -> str:
        """Take a message as a move of the protocol that its conversation is under; return what is wrong with it."""
        net, envelope, sender = conversation.net, step.envelope, step.sender
        act = ACTS_BY_CODE.get(envelope.performative)
        if net is None or act is None or net.initiator not in (sender, step.receiver):
            # What participants say to each other is not of this protocol.
            return ""
        name = envelope.protocol.strip().lower()
        if net.finished:
            another = open_protocol(name or net.name, sender)
            if another is not None and act in another.opening:
                # Another round under the same id, maybe the other way round.
                net = conversation.net = another
        if name not in ("", net.name):
            return ""
        move = Move(
            sender,
            (step.receiver,),
            act,
            reply_with=envelope.reply_with,
            in_reply_to=envelope.in_reply_to,
            reply_by=envelope.reply_by,
            at=now,
        )
        verdict = net.observe(move)
        if not verdict.in_sequence:
            return verdict.why
        if sender == net.initiator and step.pair is not None:
            step.pair.asked = envelope.reply_with
            if envelope.reply_by:
                self._note_deadline(conversation, envelope.reply_by)
        return ""

    def platform_failed(self, conversation_id: str, asker: str, about: str, now: float) -> None:
        """The platform told ``asker`` by a `failure` that ``about`` was not reached, or answers no more."""
        pair = self._pairs.get((conversation_id, asker, about))
        if pair is not None and pair.conversation.net is not None:
            pair.conversation.net.observe(_failure(asker, about, now))

    def lose_track(self, conversation_id: str, sender: str, receiver: str) -> None:
        """An accepted message went another way than was noted: its conversation is not judged any more."""
        pair = self._pairs.get((conversation_id, sender, receiver))
        if pair is not None:
            pair.conversation.net = None

    # ---- time ------------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> list[Overdue]:
        """Return who did not answer in time, each once: its part is over.

        A call for proposals ends by its deadline without anybody's doing: who proposes late is rejected by the initiator.

        Spec: FIPA SC00061 (reply-by), SC00029.
        """
        found: list[Overdue] = []
        # Those that were answered in time do not count: they are nearly all, and cheap.
        while self._deadlines and self._deadlines[0][0] < now and len(found) < _AT_ONCE:
            at, _, conversation = heapq.heappop(self._deadlines)
            if at != conversation.noted:
                continue
            conversation.noted = 0.0
            net = conversation.net
            if net is None or conversation.forgotten:
                continue
            for participant in sorted(net.overdue(now)):
                if isinstance(net, ContractNetProtocol) and net.stage_of(participant) is Stage.ASKED:
                    continue
                net.observe(_failure(net.initiator, participant, now))
                pair = self._pairs.get((conversation.id, net.initiator, participant))
                found.append(Overdue(conversation, net, participant, pair.asked if pair is not None else ""))
            if later := net.next_due(now):
                self._note_deadline(conversation, later)
        return found

    def forget_idle(self, now: float) -> None:
        """Forget conversations in which nothing was said for `conversation_idle` seconds, unless an answer is due later."""
        while self._conversations:
            conversation = next(iter(self._conversations))
            if conversation.queued_at >= now - self._idle:
                break
            if self._is_over(conversation, now):
                self._forget(conversation)
            else:
                at = max(conversation.at, now if self._is_due_later(conversation, now) else 0.0)
                self._conversations.requeue(conversation, at)

    def _is_over(self, conversation: Conversation, now: float) -> bool:
        return conversation.at < now - self._idle and not self._is_due_later(conversation, now)

    @staticmethod
    def _is_due_later(conversation: Conversation, now: float) -> bool:
        return conversation.net is not None and conversation.net.deadline > now

    def _note_deadline(self, conversation: Conversation, reply_by: float) -> None:
        if 0.0 < conversation.noted <= reply_by:
            # It is looked at before that, and then noted for what is due next.
            return
        conversation.noted = reply_by
        if len(self._deadlines) >= 2 * (len(self._conversations) + _STALE):
            # At least half of them are of conversations that are forgotten, or that are noted for an earlier time.
            self._deadlines = [one for one in self._deadlines if one[0] == one[2].noted and not one[2].forgotten]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (reply_by, next(self._numbers), conversation))

    # ---- coming and going ------------------------------------------------------------------------------------------

    def _begin(self, step: Step, conversation_id: str, now: float) -> Pair | None:
        """Follow two agents that have not spoken to each other in this conversation; None when it has no room for more."""
        envelope, sender, receiver = step.envelope, step.sender, step.receiver
        conversation, name = step.conversation, envelope.protocol
        net = open_protocol(name, sender) if name else None
        if net is not None and ACTS_BY_CODE.get(envelope.performative) not in net.opening:
            # It begins in the middle, as far as is known here.
            net = None
        if conversation is None or (net is not None and conversation.initiator != sender):
            # What came out of another one, such as a request that is passed on, goes on with its count.
            heard = conversation.heard if conversation is not None else {}
            conversation = Conversation(conversation_id, sender, now, heard)
            conversation.net = net
        elif len(conversation.pairs) >= self._limits.conversation_pairs:
            return None
        if conversation_id:
            self._latest[conversation_id, sender] = self._latest[conversation_id, receiver] = conversation
        return self._add_pair(conversation, sender, receiver)

    def _add_pair(self, conversation: Conversation, sender: str, receiver: str) -> Pair:
        pair = Pair(conversation, sender, receiver)
        self._conversations.add_pair(conversation)
        conversation.pairs.append(pair)
        self._pairs[conversation.id, sender, receiver] = self._pairs[conversation.id, receiver, sender] = pair
        conversation.heard.setdefault(sender, 0)
        while self.pairs > self._limits.conversations:
            found = self._conversations.next_to_forget(conversation)
            if found is None:
                break
            self._forget(found)
        return pair

    def _forget(self, conversation: Conversation) -> None:
        self._conversations.remove(conversation, len(conversation.pairs))
        for pair in conversation.pairs:
            for key in ((conversation.id, pair.first, pair.second), (conversation.id, pair.second, pair.first)):
                self._pairs.pop(key, None)
            for agent in (pair.first, pair.second):
                if self._latest.get((conversation.id, agent)) is conversation:
                    del self._latest[conversation.id, agent]
        conversation.pairs = []


def _failure(asker: str, about: str, now: float) -> Move:
    return Move("ams", (asker,), Performative.FAILURE, at=now, platform=True, about=about)
