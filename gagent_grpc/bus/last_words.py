"""How subscribers to the DF hear of the end of a subscription that ended with a bus that was killed.

Owns: the `failure` that is written down with each subscription, and that it is told once by the next run. Leaves to others:
the subscriptions (`bus.subscriptions`), mail (`bus.asking`). Whoever is told subscribes again, and then hears of all that
matches: what it was told of before is not written down, which would cost a write for each change and subscriber.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Protocol

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.ports import Store, StoredSubscription
from gagent_grpc.errors import BusDraining, ResourceExhausted

_log = logging.getLogger(__name__)

STOPPED = BusDraining("the bus has stopped, and with it the subscription; subscribe again")
"""Why subscriptions end with a bus, politely or not."""
_AT_ONCE = 200
"""Failures that one look sends at most: about 20 ms of work."""
_TEXTS = ("content", "language", "encoding", "ontology", "protocol", "conversation_id", "in_reply_to")


class Tell(Protocol):
    """Sends a message of one of the platform's agents as ordinary mail."""

    def __call__(self, message: ACLMessage, record: AgentRecord) -> bool:
        """Return whether ``message`` is in the mailbox of ``record``, or on its way into it; False when it has no room.

        Raises:
            ResourceExhausted: It is longer than any message may be.
        """
        ...


class LastWords:
    """What a node would have its `df` say to each subscriber, had it no time to say it."""

    def __init__(self, ams: AgentManagementSystem, tell: Tell, store: Store) -> None:
        self._ams = ams
        self._actor = AgentIdentifier(f"df@{ams.platform}")
        self._tell = tell
        self._store = store
        self._owed: dict[AgentRecord, dict[str, ACLMessage]] = {}
        """By subscriber and conversation, what an earlier run left to say. In the order of their turns."""

    def note(self, record: AgentRecord, failure: ACLMessage) -> None:
        """A subscription begins in the conversation of ``failure``, which tells of its end should the bus be killed.

        Raises:
            InvalidArgument: The store cannot take what it says.
        """
        conversation = failure.conversation_id or ""
        # Whoever subscribes again knows that the one before has ended; to be told so now would seem to end the new one.
        self._drop_owed(record, conversation)
        if self._store.durable:
            texts = {name: value for name in _TEXTS if (value := getattr(failure, name)) is not None}
            self._store.put_subscription(StoredSubscription(record.name, conversation, json.dumps(texts)))

    def forget(self, record: AgentRecord, conversation: str) -> None:
        """A subscription has ended, and its subscriber knows."""
        self._store.remove_subscription(record.name, conversation)

    def end(self, record: AgentRecord) -> None:
        """An agent is gone, or said farewell: nobody is to be told any more."""
        for conversation in self._owed.pop(record, {}):
            self.forget(record, conversation)

    def restore(self, stored: Iterable[StoredSubscription]) -> None:
        """Tell subscribers of the end of what a store held; whoever has no room now is told by a later `look`."""
        for one in stored:
            record = self._ams.find(one.name)
            failure = self._failure(record, one) if record is not None else None
            if record is not None and failure is not None:
                self._owed.setdefault(record, {})[one.conversation] = failure
            else:
                self._store.remove_subscription(one.name, one.conversation)
        self.look()

    def look(self) -> None:
        """Tell those who have room now, a bounded number of them."""
        left = _AT_ONCE
        for record, own in list(self._owed.items()):
            if left <= 0:
                return
            left -= 1
            # Behind the others, so that each one has its turn.
            self._owed[record] = self._owed.pop(record)
            for conversation, failure in list(own.items()):
                if left <= 0 or record.mailbox.full or not self._was_told(record, failure):
                    break
                left -= 1
                self._drop_owed(record, conversation)
                self.forget(record, conversation)

    def _was_told(self, record: AgentRecord, failure: ACLMessage) -> bool:
        try:
            return self._tell(failure, record)
        except ResourceExhausted:
            # A bus with another limit wrote it.
            _log.warning("%s does not hear that its subscription ended: no message is so long", record.aid)
            return True

    def _drop_owed(self, record: AgentRecord, conversation: str) -> None:
        """Owe a subscriber nothing any more in one conversation; the store is the caller's business."""
        own = self._owed.get(record)
        if own is not None:
            own.pop(conversation, None)
            if not own:
                del self._owed[record]

    def _failure(self, record: AgentRecord, stored: StoredSubscription) -> ACLMessage | None:
        try:
            texts = {str(name): str(value) for name, value in json.loads(stored.body).items() if name in _TEXTS}
        except (ValueError, AttributeError) as error:
            _log.error("%s does not hear that its subscription ended: %s", record.aid, error)
            return None
        return ACLMessage(
            Performative.FAILURE,
            sender=self._actor,
            receivers=(AgentIdentifier(record.aid),),
            user_parameters={AUTOMATIC: "true"},
            **texts,  # type: ignore[arg-type]  # [arg-type]: texts, of the parameters that are texts.
        )
