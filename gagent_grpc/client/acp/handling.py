"""What becomes of one ACP message: the handler that it is for, whoever waits for it, or the ACL handlers of the agent.

Owns: choosing among them, automatic answers, and answers between agents of the two kinds. Leaves to others: the table
that maps messages (`acp.mapping`), running ACL handlers (`client.handling`), settling (`client.deliveries`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative
from gagent_grpc.acp.mapping import ACCEPTED, ANSWERS, FAILED, REFUSED, acl_from_acp, acp_from_acl
from gagent_grpc.acp.message import AUTOMATIC_ENTRY, ACPMessage, ACPMessageType, ACPMetadata, error_content
from gagent_grpc.client.acp.message import ReceivedACP, headers_after, received_acp
from gagent_grpc.client.answers import Declined, Refuse
from gagent_grpc.client.deliveries import Deliveries, NotTaken, Taken
from gagent_grpc.client.handling import Handling
from gagent_grpc.client.lanes import Job
from gagent_grpc.client.message import Received
from gagent_grpc.codec.acl import acl_to_proto
from gagent_grpc.codec.acp import TYPES_BY_NUMBER
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import DeliveryRefused, InvalidArgument, MessageTooLarge
from gagent_grpc.pb.gagent.v1 import acl_pb2

_logger = logging.getLogger(__name__)

UNKNOWN_TYPE = "UNKNOWN_TYPE"
"""Code of the ERROR that answers a message whose type is not known here."""
INVALID_CONTENT = "INVALID_CONTENT"
"""The same for one that cannot be read."""
_NEVER_ANSWERED = frozenset({ACPMessageType.HEARTBEAT, ACPMessageType.ERROR})
_AGREED = frozenset({Performative.AGREE, Performative.INFORM, Performative.FAILURE})
_PASSING = {Outcome.MAILBOX_FULL.name, Outcome.HELD.name, Outcome.RATE_LIMITED.name}
_REMEMBERED = 10_000
"""Questions between agents of different kinds whose answers are still mapped; beyond that the oldest one is forgotten."""

ACPHandler = Callable[[ReceivedACP], Any]
SendACP = Callable[[ACPMessage, Mapping[str, str]], Awaitable[object]]
Claim = Callable[[ReceivedACP, Callable[[], None], Callable[[], None]], bool]
"""(message, acknowledge it, give it back) -> whether somebody keeps it, and calls one of the two later."""
ValueT = TypeVar("ValueT")


class Remembered(Generic[ValueT]):
    """Values by key, of which the oldest is forgotten when there are too many."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._values: OrderedDict[str, ValueT] = OrderedDict()

    def __setitem__(self, key: str, value: ValueT) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def get(self, key: str | None) -> ValueT | None:
        """Return the value of a key; None when there is none."""
        return self._values.get(key) if key else None


@dataclass(frozen=True, slots=True)
class _Registered:
    kind: ACPMessageType | None
    handler: ACPHandler
    is_async: bool


def _registered(kind: ACPMessageType | None, handler: ACPHandler) -> _Registered:
    # An object with a method `async def __call__` is one, too; the first test knows what `functools.partial` hides.
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    return _Registered(kind, handler, is_async)


class ACPHandling:
    """Handles the ACP messages of one agent, and the ACL messages that only a handler of ACP messages is for."""

    def __init__(
        self, name: str, handling: Handling, deliveries: Deliveries, send: SendACP, platform: Callable[[], str]
    ) -> None:
        """Handle the messages of the agent ``name``.

        Args:
            name: Whose they are, for the log.
            handling: Its ACL handlers.
            deliveries: Where its messages come from.
            send: Sends an answer with these headers. One that finds no room waits a while before it raises.
            platform: Tells the platform of the present session; "" before the first one.
        """
        self._name = name
        self._platform = platform
        self._handling = handling
        self._send = send
        self._entries: list[_Registered] = []
        self._asked_in_acp: Remembered[ReceivedACP] = Remembered()
        """Questions that were handed to ACL handlers, by the ids that they have as ACL messages."""
        self._agreed: Remembered[bool] = Remembered()
        """Whether a task that was handed to ACL handlers is accepted, by the id of its message."""
        self._asked_in_acl: Remembered[Received] = Remembered()
        """Questions that were handed to ACP handlers, by the ids that they have as ACP messages."""
        self.delegations: Callable[[Job, ReceivedACP], Awaitable[Received | Taken]] | None = None
        """Takes DELEGATEs that no handler of their very type is for; None while nobody does."""
        self._table: Mapping[ACPMessageType, ACPHandler] = {}
        self._claim: Claim | None = None
        self._deliveries = deliveries
        deliveries.handle_acp = self.handle

    def add(self, kind: ACPMessageType | None, handler: ACPHandler) -> None:
        """Register a handler for messages of a type, or of every type; the first one that fits gets a message."""
        self._entries.append(_registered(kind, handler))
        self._handling.otherwise = self.handle_acl

    def attach(self, table: Mapping[ACPMessageType, ACPHandler], claim: Claim) -> None:
        """Have messages that no registered handler is for go to those in ``table``, then to whoever claims them.

        Args:
            table: Handlers by type; it may change at any time. One for DELEGATE is left to `work`.
            claim: Keeps a message that no handler is for, or not.
        """
        self._table = table
        self._claim = claim
        self._handling.otherwise = self.handle_acl

    # ---- ACP messages ----------------------------------------------------------------------------------------------

    async def handle(self, job: Job, sender: AgentIdentifier) -> Received | Taken:
        """Handle the ACP message of a delivery; raise what its handler raises.

        Returns:
            What became of it; or, for an agent that has ACL handlers alone, the ACL message that says the same.
        """
        try:
            message = received_acp(job.delivery, sender)
        except InvalidArgument as error:
            await self._cannot_read(job, sender, error)
            return Taken.HANDLED
        entry = self._find(message.type, exact=message.type is ACPMessageType.DELEGATE and self.delegations is not None)
        if entry is not None:
            await self._run(entry, message)
            return Taken.HANDLED
        if message.type is ACPMessageType.DELEGATE and self.delegations is not None:
            return await self.delegations(job, message)
        kept = self._deliveries
        if self._claim is not None and self._claim(message, lambda: kept.handled(job), lambda: kept.not_taken(job)):
            return Taken.KEPT
        if message.type is ACPMessageType.HEARTBEAT:
            return Taken.HANDLED
        return self._as_acl(job, sender, message)

    def _find(self, kind: ACPMessageType, *, exact: bool = False) -> _Registered | None:
        """Return the handler for messages of a type; with ``exact`` only one for that very type."""
        for one in self._entries:
            if one.kind is kind or (one.kind is None and not exact):
                return one
        # Tasks come to the table by `work`, once they are accepted.
        found = self._table.get(kind) if kind is not ACPMessageType.DELEGATE else None
        return _registered(kind, found) if found is not None else None

    async def _run(self, entry: _Registered, message: ReceivedACP) -> None:
        try:
            answer = await self._call(entry, message)
            if isinstance(answer, Declined):
                raise answer
        except Declined as declined:
            await self._decline(message, declined)
            return
        if answer is None:
            return
        if message.type is ACPMessageType.REQUEST:
            await self.answer(message, ACPMessageType.RESPONSE, answer)
        else:
            text = "%s: what is returned for a %s is not sent; only a request is answered so"
            _logger.warning(text, self._name, message.type)

    async def _call(self, entry: _Registered, message: ReceivedACP) -> Any:
        if entry.is_async:
            return await cast("Awaitable[Any]", entry.handler(message))
        return await self._handling.call_in_thread(entry.handler, message)

    async def _decline(self, message: ReceivedACP, declined: Declined) -> None:
        if message.type in _NEVER_ANSWERED:
            _logger.warning("%s: %s, raised for a %s, is not sent", self._name, declined.act, message.type)
            return
        code = REFUSED if isinstance(declined, Refuse) else FAILED
        text = declined.content if isinstance(declined.content, str) else str(declined)
        await self.answer(message, ACPMessageType.ERROR, error_content(code, text, message.task_id))

    async def answer(
        self, message: ReceivedACP, kind: ACPMessageType, content: Any, *, automatic: bool = False
    ) -> None:
        """Answer; an answer that cannot be delivered is the asker's loss.

        Raises:
            DeliveryRefused: The asker had no room for as long as an answer waits: the message is to be handled again.
        """
        answer = message.create_reply(kind, content)
        if automatic:
            answer = answer.replace(metadata=ACPMetadata(entries={AUTOMATIC_ENTRY: "true"}))
        try:
            await self._send_answer(answer, message)
        except (MessageTooLarge, InvalidArgument) as error:
            # The same would come of handling the message once more.
            _logger.error("%s: an answer to %s cannot be sent: %s", self._name, message.source, error)  # noqa: TRY400
            failure = error_content(FAILED, f"the answer cannot be sent: {error}", message.task_id)
            metadata = ACPMetadata(entries={AUTOMATIC_ENTRY: "true"})
            await self._send_answer(message.create_reply(ACPMessageType.ERROR, failure, metadata=metadata), message)

    async def _send_answer(self, answer: ACPMessage, original: ACPMessage) -> None:
        try:
            await self._send(answer, headers_after(original))
        except DeliveryRefused as refused:
            if refused.outcome in _PASSING:
                raise
            _logger.warning("%s: an answer was not delivered: %s", self._name, refused)

    async def _cannot_read(self, job: Job, sender: AgentIdentifier, error: InvalidArgument) -> None:
        """Say what is wrong with a message, unless it is of a type that is never answered."""
        wire = job.delivery.message.acp
        kind = TYPES_BY_NUMBER.get(int(wire.message_type))
        if kind in _NEVER_ANSWERED:
            _logger.warning("%s: a message of %s cannot be read: %s", self._name, sender.name, error)
            return
        message_id = wire.id or job.delivery.message.id or job.delivery.id
        # Its type stands for one that cannot be said; only its id and its sender matter for the answer.
        original = ReceivedACP(
            id=message_id, type=ACPMessageType.REQUEST, source=sender.name, headers=dict(job.delivery.message.headers)
        )
        content = error_content(UNKNOWN_TYPE if kind is None else INVALID_CONTENT, str(error))
        await self.answer(original, ACPMessageType.ERROR, content, automatic=True)

    async def work(self, handler: ACPHandler, message: ReceivedACP) -> Any:
        """Return what a handler makes of a task that `message` hands over; raise what it raises, `Declined` among it."""
        result = await self._call(_registered(message.type, handler), message)
        if isinstance(result, Declined):
            raise result
        return result

    # ---- an ACP message for ACL handlers ---------------------------------------------------------------------------

    def _as_acl(self, job: Job, sender: AgentIdentifier, message: ReceivedACP) -> Received | Taken:
        """Return the ACL message that says the same."""
        mapped = acl_from_acp(message)
        assert mapped is not None
        if message.type in {ACPMessageType.REQUEST, ACPMessageType.DELEGATE}:
            self._asked_in_acp[message.id or ""] = message
            self._asked_in_acp[mapped.conversation_id or ""] = message
        body = acl_pb2.AclMessage()
        acl_to_proto(mapped, body)
        return Received(job.delivery, sender, body)

    def translated(self, answer: ACLMessage) -> list[ACPMessage]:
        """Return what is to be sent in the place of ``answer``; nothing where it is to be sent as it is.

        An answer names its question by `in_reply_to`, or by the conversation alone, and goes to whoever asked. A task whose
        agent has not agreed is accepted first, which its answer implies (FIPA SC00026), but for a refusal.
        """
        if answer.performative in EXPECTS_ANSWER or answer.performative is Performative.CANCEL:
            return []
        question = self._asked_in_acp.get(answer.in_reply_to or answer.conversation_id)
        if question is None or len(answer.receivers) != 1 or not self._same(answer.receivers[0].name, question.source):
            return []
        task_id = question.task_id if question.type is ACPMessageType.DELEGATE else None
        made = [
            acp_from_acl(answer, task_id=task_id, in_reply_to=question.id).replace(source=None, target=question.source)
        ]
        if task_id is not None and answer.performative in _AGREED and not self._agreed.get(question.id):
            self._agreed[question.id or ""] = True
            if answer.performative is not Performative.AGREE:
                made.insert(0, question.create_reply(ACPMessageType.RESPONSE, {"task_id": task_id, "status": ACCEPTED}))
        return made

    def _same(self, one: str, other: str | None) -> bool:
        """Whether two names are of the same agent; a bare one is of this platform."""
        own = f"@{self._platform()}"
        return other is not None and one.removesuffix(own) == other.removesuffix(own)

    # ---- an ACL message for ACP handlers ---------------------------------------------------------------------------

    async def handle_acl(self, message: Received) -> bool:
        """Handle a message that no ACL handler is for; return whether that could be done. Raise what its handler raises."""
        asks = message.performative in EXPECTS_ANSWER
        mapped = acp_from_acl(message, message_id=message.id, timestamp=message.accepted_at)
        entry = self._find(mapped.type)
        if mapped.type is ACPMessageType.DELEGATE and (entry is None or entry.kind is None):
            # No task of the bus: whoever takes tasks from there knows nothing of it.
            mapped = acp_from_acl(message, message_id=message.id, timestamp=message.accepted_at, delegates=False)
            entry = self._find(mapped.type)
        source = message.sender.name if message.sender is not None else None
        fields: dict[str, Any] = {name: getattr(mapped, name) for name in _OWN_FIELDS}
        received = ReceivedACP(
            **{**fields, "source": source, "target": message.receiver, "metadata": mapped.metadata or ACPMetadata()},
            headers=message.headers,
            receiver=message.receiver,
            attempt=message.attempt,
            redelivered=message.redelivered,
        )
        if asks:
            self._asked_in_acl[message.id] = message
        if entry is not None:
            await self._run(entry, received)
            return True
        if self._claim is None:
            return False
        # Not the lane's to keep: the handler waits, and the message counts as handled when it was taken.
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def end(*, taken: bool) -> None:
            if not done.done():
                done.set_result(taken)

        if not self._claim(received, lambda: end(taken=True), lambda: end(taken=False)):
            return False
        if await done:
            return True
        if self._deliveries.lanes.closed:
            raise NotTaken
        # Somebody else's turn.
        return await self.handle_acl(message)

    def translated_to_acl(self, answer: ACPMessage) -> ACLMessage | None:
        """Return the ACL message that is to be sent in the place of ``answer``; None where it is to be sent as it is."""
        if answer.type not in ANSWERS and answer.type is not ACPMessageType.NOTIFICATION:
            return None
        question = self._asked_in_acl.get(answer.in_reply_to)
        mapped = acl_from_acp(answer) if question is not None else None
        if question is None or mapped is None:
            return None
        changes: dict[str, Any] = {"user_parameters": mapped.user_parameters}
        if mapped.language is not None:
            changes["language"] = mapped.language
        return question.create_reply(mapped.performative, mapped.content, **changes)


_OWN_FIELDS = ("id", "type", "content", "timestamp", "in_reply_to", "extra")
