"""What becomes of one message: its handler is run, and what the handler returns is the answer.

Owns: running handlers, in threads where they may block, and their answers. Leaves to others: choosing the handler
(`client.handlers`), what a handler that raises means for the message (`client.deliveries`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative
from gagent_grpc.client.answers import Declined
from gagent_grpc.client.handlers import Handlers
from gagent_grpc.client.message import Received, answer_headers
from gagent_grpc.client.running import CANCELLED, Running, may_be_cancelled
from gagent_grpc.client.threads import Threads
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import DeliveryRefused, InvalidArgument, MessageTooLarge

_logger = logging.getLogger(__name__)

_PASSING = {Outcome.MAILBOX_FULL.name, Outcome.HELD.name, Outcome.RATE_LIMITED.name}
_BY_PROGRAM = {AUTOMATIC: "true"}


class Handling:
    """Handles the messages of one agent."""

    def __init__(
        self, name: str, send: Callable[[ACLMessage, Mapping[str, str]], Awaitable[object]], *, threads: int
    ) -> None:
        """Handle messages of the agent ``name``.

        Args:
            name: Whose they are, for the log and the names of the threads.
            send: Sends an answer with these headers. One that finds no room waits a while before it raises.
            threads: Handlers that may block at the same time.
        """
        self.handlers = Handlers()
        self.running = Running()
        """Handlers at work that a cancel may end."""
        self.otherwise: Callable[[Received], Awaitable[bool]] | None = None
        """Is offered what no handler is for, and returns whether that is dealt with; None for nobody."""
        self._name = name
        self._send = send
        self._threads = Threads(f"{name}-handler", threads)

    async def handle(self, message: Received) -> None:
        """Run the handler of ``message`` and send what it returns; raise what it raises."""
        found = self.handlers.find(message)
        if found is None:
            if self.otherwise is None or not await self.otherwise(message):
                await self._not_for_anybody(message)
            return
        if found.is_async and not may_be_cancelled(message.performative):
            # At once: each call in between costs every message as much as choosing its handler.
            answer = await cast("Awaitable[Any]", found.handler(message))
        else:
            answer = await self.call(found.handler, message, message, is_async=found.is_async)
        if answer is None:
            return
        if isinstance(answer, Declined):
            raise answer
        if answer is not CANCELLED:
            if message.performative in EXPECTS_ANSWER:
                await self.answer(message, Performative.INFORM, answer)
            else:
                # Two agents that answer every inform with another one would never end.
                act = message.performative.text
                _logger.warning("%s: text that is returned for %r is not sent; it expects no answer", self._name, act)

    async def call(self, handler: Callable[..., Any], message: Received, *arguments: Any, is_async: bool) -> Any:
        """Return what a handler of ``message`` returns, called with ``arguments``; CANCELLED where a cancel ended it."""
        if is_async:
            return await self.running.run(message, cast("Awaitable[Any]", handler(*arguments)))
        return await self.call_in_thread(handler, *arguments)

    async def call_in_thread(self, handler: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a handler returns that may block: it must not keep heartbeats and other lanes waiting."""
        made = await self._threads.run(handler, *arguments)
        return await made if inspect.isawaitable(made) else made

    def close(self) -> None:
        """Let the threads go. A thread cannot be stopped; what it returns is nobody's any more."""
        self._threads.close()

    async def _not_for_anybody(self, message: Received) -> None:
        """FIPA demands an answer to what an agent cannot handle (SC00037, not-understood)."""
        if message.performative in EXPECTS_ANSWER:
            text = f"no handler for {message.performative}"
            await self.answer(message, Performative.NOT_UNDERSTOOD, text, user_parameters=_BY_PROGRAM)
        else:
            _logger.debug("%s: no handler for %r", self._name, message.performative.text)

    async def answer(
        self, message: Received, act: Performative, content: str | bytes | None, **parameters: Any
    ) -> None:
        """Answer; an answer that cannot be delivered is the asker's loss.

        Raises:
            DeliveryRefused: The asker had no room for as long as an answer waits: the message is to be handled again.
        """
        try:
            await self._send_answer(message, message.create_reply(act, content, **parameters))
        except (MessageTooLarge, InvalidArgument) as error:
            # The same would come of handling the message once more.
            _logger.error("%s: an answer to %s cannot be sent: %s", self._name, _sender(message), error)  # noqa: TRY400
            text = f"the answer cannot be sent: {error}"
            failure = message.create_reply(Performative.FAILURE, text, user_parameters=_BY_PROGRAM)
            await self._send_answer(message, failure)

    async def _send_answer(self, message: Received, answer: ACLMessage) -> None:
        try:
            await self._send(answer, answer_headers(message))
        except DeliveryRefused as refused:
            if refused.outcome in _PASSING:
                raise
            _logger.warning("%s: an answer was not delivered: %s", self._name, refused)


def _sender(message: Received) -> str:
    return message.sender.name if message.sender is not None else "nobody"
