"""The participant's side of the interaction protocols, between an agent's session and its handlers.

Owns: what an accept, reject, cancel or late proposal is about, and answers that no author has to write. Leaves to others:
bids (`client.bids`), subscriptions (`client.publishing`), ordinary messages (`client.handling`), conversations that this
agent began (`client.conversations`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative
from gagent_grpc.client.answers import Declined
from gagent_grpc.client.bids import Bids
from gagent_grpc.client.conversations import BY_PROGRAM, Conversations
from gagent_grpc.client.handling import Handling
from gagent_grpc.client.message import Received
from gagent_grpc.client.publishing import Publishing
from gagent_grpc.client.running import CANCELLED, key_of
from gagent_grpc.errors import BusError, InvalidArgument
from gagent_grpc.pb.gagent.v1 import bus_service_pb2
from gagent_grpc.protocols.contract_net import ContractNetProtocol

_logger = logging.getLogger(__name__)

_CANCEL = int(Performative.CANCEL)
_INFORM, _REQUEST = Performative.INFORM, Performative.REQUEST
_OURS = frozenset(
    {Performative.PROPOSE, Performative.ACCEPT_PROPOSAL, Performative.REJECT_PROPOSAL, Performative.CANCEL}
)


class Participants:
    """What one agent does in the conversations of others. Listens before its handlers do, too."""

    def __init__(self, name: str, handling: Handling, conversations: Conversations) -> None:
        self._name = name
        self._handling = handling
        self._conversations = conversations
        self._tasks: set[asyncio.Task[None]] = set()
        self.bids = Bids(name, handling, self._spawn)
        self.publishing = Publishing(name, conversations, self._spawn)

    # ---- before handlers -------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._conversations or self._handling.running)

    def take(self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier) -> bool:
        """Give a message to a conversation that this agent began; return whether it is dealt with.

        A `cancel` ends the handler that it is about at once, and is answered when its turn comes, which is after that: it
        would wait behind what it is to end.
        """
        if int(delivery.message.acl.performative) == _CANCEL and self._handling.running:
            message = Received(delivery, sender)
            key = key_of(message)
            if key is not None and self._handling.handlers.find(message) is None:
                self._handling.running.cancel(key)
            return False
        return self._conversations.take(delivery, sender)

    def fail(self, error: BusError) -> None:
        """There will be no session any more."""
        self._conversations.fail(error)

    # ---- as a handler ----------------------------------------------------------------------------------------------

    async def handle(self, message: Received) -> None:
        """Handle a message, by itself or with the handler that it is for; raise what that raises."""
        act = message.performative
        # Most are one of these two, and a set has to be asked in Python.
        if act is not _INFORM and act is not _REQUEST and act in _OURS and await self._dealt_with(act, message):
            return
        try:
            await self._handling.handle(message)
        except Declined as declined:
            await self._decline(message, declined)

    def concerns(self, message: Received) -> bool:
        """Return whether a message is one that `handle` deals with by itself, because of a conversation that goes on."""
        act = message.performative
        if act not in _OURS:
            return False
        if act is Performative.PROPOSE:
            return self._conversations.wants(message)
        if act is not Performative.CANCEL:
            return self.bids.concerns(message)
        if self.publishing.concerns(message) or self.bids.is_cancelled_by(message):
            return True
        key = key_of(message)
        return key is not None and self._handling.running.knows(key) and self._handling.handlers.find(message) is None

    async def _dealt_with(self, act: Performative, message: Received) -> bool:
        if act is Performative.PROPOSE:
            return await self._conversations.handle(message)
        if act is Performative.CANCEL:
            return await self._cancel(message)
        if await self.bids.decided(message):
            return True
        if (
            act is Performative.ACCEPT_PROPOSAL
            and (message.protocol or "").lower() == ContractNetProtocol.name
            and self._handling.handlers.find(message) is None
        ):
            # Nobody decided in time, or this program began anew: whoever accepts now must not wait for the result.
            text = "no proposal of this agent waits for a decision in the conversation"
            await self._handling.answer(message, Performative.FAILURE, text, user_parameters=BY_PROGRAM)
            return True
        return False

    async def _cancel(self, message: Received) -> bool:
        """Answer a `cancel`, unless there is a handler for it and nothing that this library runs (SC00026 and its like)."""
        key, running = key_of(message), self._handling.running
        done = await self.publishing.cancel(message) or await self.bids.cancel(message)
        if not done:
            if key is None or self._handling.handlers.find(message) is not None:
                # Without a conversation it is about nothing.
                return False
            done = running.take_cancelled(key) or running.cancel(key)
            running.take_cancelled(key)
        act, text = (Performative.INFORM, "done") if done else (Performative.FAILURE, "nothing to cancel")
        await self._handling.answer(message, act, text, user_parameters=BY_PROGRAM)
        return True

    async def _decline(self, message: Received, declined: Declined) -> None:
        act = declined.act
        if message.performative is Performative.PROPOSE:
            act = Performative.REJECT_PROPOSAL
        if message.performative in EXPECTS_ANSWER:
            await self._handling.answer(message, act, declined.content)
        else:
            text = "%s: %s, raised for %r, is not sent; it expects no answer"
            _logger.warning(text, self._name, act, message.performative.text)

    def deciding(self, function: Callable[[Received], Any]) -> Callable[[Received], Coroutine[Any, Any, None]]:
        """Return the handler of proposals on which ``function`` decides; as `Agent.on_propose`."""
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

        async def decide(message: Received) -> None:
            decision = await self._handling.call(function, message, message, is_async=is_async)
            if decision is CANCELLED:
                return
            if isinstance(decision, Declined):
                raise decision
            content = decision if isinstance(decision, str | bytes) else None
            if content is None and decision is not None and not isinstance(decision, bool):
                text = f"a decision of type {type(decision).__name__}; expected True, False, text, or Refuse"
                raise InvalidArgument(text, field="content")
            accepted = content is not None or decision is True
            act = Performative.ACCEPT_PROPOSAL if accepted else Performative.REJECT_PROPOSAL
            await self._handling.answer(message, act, content)

        return decide

    # ---- life ------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """End what runs beside the handlers, tell subscribers, and forget open bids. Idempotent."""
        self.bids.clear()
        try:
            await self.publishing.clear()
        finally:
            # Whoever closes the agent from one of them goes on to its own end.
            tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
