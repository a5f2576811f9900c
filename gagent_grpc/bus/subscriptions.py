"""Subscriptions with the DF by ACL message (protocol fipa-subscribe, SC00035): informs about what matches, and each change.

Owns: who subscribed to what and was told of what, and that a change is told once although a mailbox was full meanwhile.
Leaves to others: what is found (`bus.offers`), the form of the contents (`bus.management`), mail (`bus.asking`), and what is
said about them after the bus was killed (`bus.last_words`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.descriptions import DFAgentDescription, SearchConstraints
from gagent_grpc.acl.matching import Offer
from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.df import Key, check_size, keys_of
from gagent_grpc.bus.last_words import STOPPED, LastWords, Tell
from gagent_grpc.bus.offers import OfferChange, Offers
from gagent_grpc.bus.ports import Store, StoredSubscription
from gagent_grpc.errors import (
    AgentNotRegistered,
    BusError,
    MissingParameter,
    ResourceExhausted,
    UnrecognisedParameterValue,
)

_log = logging.getLogger(__name__)

PROTOCOL = "fipa-subscribe"
_MOST = 10_000
"""Subscriptions of one node."""
_AT_ONCE = 200
"""Informs that one look sends at most to those that are behind: about 20 ms of work."""
_MOST_WAITING = 40_000
"""Informs of changes that wait for a later look at most; who would have to wait beyond them is behind."""
_MAX_CHARS = 8_192
"""Characters of a `subscribe` that are kept for its answers, at most."""
_KEPT = ("content", "language", "encoding", "ontology", "protocol", "conversation_id", "reply_with")
_ALL = ("", "")
"""Key of the subscriptions whose templates have none: any change may concern them."""


class Form(Protocol):
    """Writes the contents of one conversation, in the language of its first message."""

    def informed(self, found: Iterable[DFAgentDescription]) -> str:
        """Return the content of an `inform` that tells of descriptions.

        Raises:
            ResourceExhausted: They do not fit a message.
        """
        ...

    def exception(self, error: BusError) -> str:
        """Return the content of a `failure`."""
        ...

    def cancelled(self) -> str:
        """Return the content of the `inform` that the subscription has ended as it was asked to."""
        ...


@dataclass(eq=False, slots=True)
class Subscription:
    """What one agent wants to be told in one conversation."""

    record: AgentRecord
    conversation: str
    answer: dict[str, Any]
    """Parameters of every answer to the `subscribe`, which itself may be large and is not kept."""
    template: DFAgentDescription
    form: Form
    key: Key
    told: dict[str, DFAgentDescription] = field(default_factory=dict)
    """By agent what the subscriber was told last, and believes to match."""
    behind: bool = False
    """There was no room to tell it of something."""
    ended: bool = False
    """It is not among the subscriptions any more."""
    number: int = 0
    """Of the last change that it knows of from a search; what waits for it and is older is no news."""


@dataclass(eq=False, slots=True)
class _News:
    """A change, for all those who are told of it."""

    number: int
    agent: str
    after: Offer | None


class Subscriptions:
    """The subscriptions of one node. They end with the agent's name, its polite farewell, and the bus."""

    def __init__(self, ams: AgentManagementSystem, offers: Offers, tell: Tell, store: Store, *, per_agent: int) -> None:
        self._actor = AgentIdentifier(f"df@{ams.platform}")
        self._offers = offers
        self._tell_agent = tell
        self._per_agent = per_agent
        self._last_words = LastWords(ams, tell, store)
        self._by_agent: dict[AgentRecord, dict[str, Subscription]] = {}
        # A change looks only at the subscriptions that share a key with it. Sets with an order, which tests can repeat.
        self._by_key: dict[Key, dict[Subscription, None]] = {}
        self._behind: dict[Subscription, None] = {}
        # In the order of the changes: thousands may be told of one, and the bus has others to serve in between.
        self._waiting: deque[tuple[_News, Subscription]] = deque()
        self._number = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # ---- beginning and ending --------------------------------------------------------------------------------------

    def subscribe(self, record: AgentRecord, message: ACLMessage, template: DFAgentDescription, form: Form) -> None:
        """Begin to tell an agent what matches; the current matches first, in one `inform` if they fit.

        A conversation that has a subscription begins anew.

        Args:
            record: Who subscribes.
            message: The `subscribe`.
            template: What is absent matches anything.
            form: Writes the contents.

        Raises:
            MissingParameter: The message has no conversation-id, by which it could be cancelled (SC00035).
            UnrecognisedParameterValue: The message is too long, or the template over a limit.
            ResourceExhausted: The agent, or all of them together, have too many subscriptions.
            InvalidArgument: The store cannot take what it would say of the end.
        """
        if not message.conversation_id:
            raise MissingParameter("subscribe", "conversation-id")
        size = sum(len(getattr(message, name) or "") for name in _KEPT)
        if size > _MAX_CHARS:
            why = f"has {size:,} characters with its parameters; expected at most {_MAX_CHARS:,}"
            raise UnrecognisedParameterValue("subscribe", "content", why)
        check_size(template)
        own = self._by_agent.setdefault(record, {})
        before = own.get(message.conversation_id)
        if before is not None:
            self._drop(before)
            own = self._by_agent.setdefault(record, {})
        elif len(own) >= self._per_agent:
            raise ResourceExhausted(
                f"{record.aid} has {len(own)} subscriptions, the limit (df_subscriptions); cancel one"
            )
        if self._count >= _MOST:
            self._by_agent = {one: its for one, its in self._by_agent.items() if its}
            raise ResourceExhausted(f"the DF has {self._count:,} subscriptions, its limit; try again later")
        key = ("name", template.name) if template.name is not None else next(keys_of(template), _ALL)
        answer: dict[str, Any] = {
            "sender": self._actor,
            "receivers": (AgentIdentifier(record.aid),),
            "language": message.language,
            "encoding": message.encoding,
            "ontology": message.ontology,
            "protocol": message.protocol or PROTOCOL,
            "conversation_id": message.conversation_id,
            "in_reply_to": message.reply_with,
            "user_parameters": {AUTOMATIC: "true"},
        }
        self._last_words.note(record, ACLMessage(Performative.FAILURE, content=form.exception(STOPPED), **answer))
        made = Subscription(record, message.conversation_id, answer, template, form, key)
        own[message.conversation_id] = made
        self._by_key.setdefault(key, {})[made] = None
        self._count += 1
        self._begin(made)

    def _begin(self, made: Subscription) -> None:
        """Tell the current matches at once; where they do not fit one message, one by one."""
        found = self._offers.search(made.template, SearchConstraints(max_results=-1))
        made.number = self._number
        try:
            told = self._send(made, Performative.INFORM, made.form.informed(found))
        except ResourceExhausted:
            self._fall_behind(made)
            self.tell_what_waits()
            return
        if told:
            made.told = {one.name: one for one in found if one.name is not None}
        else:
            self._fall_behind(made)

    def cancel(self, record: AgentRecord, message: ACLMessage) -> str:
        """End the subscription of the conversation of ``message``; return the content that says so.

        Raises:
            AgentNotRegistered: There is none.
        """
        conversation = message.conversation_id or ""
        found = self._by_agent.get(record, {}).get(conversation)
        if found is None:
            raise AgentNotRegistered(f"a subscription in the conversation {conversation!r}", "DF")
        self._drop(found)
        return found.form.cancelled()

    def end(self, record: AgentRecord) -> None:
        """An agent is gone, or said farewell: its subscriptions end, and nobody is told."""
        self._last_words.end(record)
        for one in list(self._by_agent.get(record, {}).values()):
            self._drop(one)

    def restore(self, stored: Iterable[StoredSubscription]) -> None:
        """Tell the subscribers of an earlier run, which was killed, that their subscriptions have ended."""
        self._last_words.restore(stored)

    def end_all(self) -> None:
        """The bus stops, and subscriptions with it: tell every subscriber by a `failure`, which waits in its mailbox.

        Who has no room is told by the next run.
        """
        self._waiting.clear()
        for one in [one for own in self._by_agent.values() for one in own.values()]:
            self._take_out(one)
            if self._send_failure(one, STOPPED):
                self._last_words.forget(one.record, one.conversation)
            else:
                _log.warning("%s does not hear yet that its subscription ended: no room", one.record.aid)

    def _drop(self, one: Subscription) -> None:
        """End a subscription of which nothing more is to be said."""
        self._take_out(one)
        self._last_words.forget(one.record, one.conversation)

    def _take_out(self, one: Subscription) -> None:
        one.ended = True
        own = self._by_agent[one.record]
        del own[one.conversation]
        if not own:
            del self._by_agent[one.record]
        keyed = self._by_key[one.key]
        del keyed[one]
        if not keyed:
            del self._by_key[one.key]
        self._behind.pop(one, None)
        self._count -= 1

    # ---- telling ---------------------------------------------------------------------------------------------------

    def notify(self, change: OfferChange) -> None:
        """Tell every subscriber whom a change concerns; who has no room for it is told later what is then so.

        Where they are many, most of them hear of it from `tell_what_waits`, in the order of the changes.
        """
        if not self._count:
            return
        self._number += 1
        news = _News(self._number, change.agent, Offer(change.after) if change.after is not None else None)
        keys: dict[Key, None] = {_ALL: None, ("name", change.agent): None}
        for description in (change.before, change.after):
            if description is not None:
                keys.update(dict.fromkeys(keys_of(description)))
        first = not self._waiting
        for one in [one for key in keys for one in self._by_key.get(key, ())]:
            if one.behind:
                continue
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append((news, one))
            else:
                self._fall_behind(one)
        if first:
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Tell the next ones of the changes that wait for them."""
        left = _AT_ONCE
        while self._waiting and left > 0:
            news, one = self._waiting.popleft()
            if one.ended or one.behind or news.number <= one.number:
                continue
            left -= 1
            if not self._tell(one, news.agent, news.after):
                self._fall_behind(one)

    def tell_what_waits(self) -> None:
        """Tell of changes that wait, and those that were left behind what has changed for them since.

        Both as far as one look goes, and the latter as far as they have room now.
        """
        self._last_words.look()
        self._tell_waiting()
        left = _AT_ONCE
        for one in list(self._behind):
            if left <= 0:
                return
            left -= 1
            # Behind the others, so that each one has its turn.
            del self._behind[one]
            self._behind[one] = None
            if one.record.mailbox.full:
                continue
            found = {
                entry.name: entry
                for entry in self._offers.search(one.template, SearchConstraints(max_results=-1))
                if entry.name is not None
            }
            for name in [*(name for name in one.told if name not in found), *found]:
                if one.told.get(name) == found.get(name):
                    continue
                entry = found.get(name)
                if left <= 0 or not self._tell(one, name, Offer(entry) if entry is not None else None):
                    break
                left -= 1
                if one.ended:
                    break
            else:
                one.behind = False
                one.number = self._number
                self._behind.pop(one, None)

    def _tell(self, one: Subscription, agent: str, offer: Offer | None) -> bool:
        """Tell a subscriber what is found of an agent now, if that is news to it; return False when it has no room.

        What fits no message ends the subscription, as soon as there is room to say so.
        """
        before = one.told.get(agent)
        after = offer.entry if offer is not None and offer.satisfies(one.template) else None
        if before == after:
            return True
        try:
            # An agent that matches no more is told with its name and without services, as JADE does.
            content = one.form.informed((after or DFAgentDescription(name=agent),))
            if not self._send(one, Performative.INFORM, content):
                return False
        except ResourceExhausted as error:
            # It will never fit; a subscriber that misses something has to know. Without room to say so it is behind like
            # any other, and looked at again.
            if not self._send_failure(one, error):
                return False
            self._drop(one)
            return True
        if after is None:
            del one.told[agent]
        else:
            one.told[agent] = after
        return True

    def _fall_behind(self, one: Subscription) -> None:
        one.behind = True
        self._behind[one] = None

    def _send_failure(self, one: Subscription, error: BusError) -> bool:
        """Say that a subscription ends; return False when there is no room to say so."""
        try:
            return self._send(one, Performative.FAILURE, one.form.exception(error))
        except ResourceExhausted:
            _log.warning("%s does not hear that its subscription ended: no message is so long", one.record.aid)
            return True

    def _send(self, one: Subscription, act: Performative, content: str) -> bool:
        return self._tell_agent(ACLMessage(act, content=content, **one.answer), one.record)
