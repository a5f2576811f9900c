"""What becomes of one message: its handler is run, and what the handler returns is the answer.

Owns: running handlers, in threads where they may block, and their answers. Leaves to others: choosing the handler
(`client.handlers`), what a handler that raises means for the message (`client.deliveries`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative
from gagent_grpc.client.handlers import Answer, Handlers
from gagent_grpc.client.message import Received, answer_headers
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
        self._name = name
        self._send = send
        self._most_threads = threads
        self._threads: ThreadPoolExecutor | None = None

    async def handle(self, message: Received) -> None:
        """Run the handler of ``message`` and send what it returns; raise what it raises."""
        found = self.handlers.find(message)
        if found is None:
            await self._not_for_anybody(message)
            return
        if found.is_async:
            answer = await cast("Awaitable[Answer]", found.handler(message))
        else:
            # A handler that blocks must not keep heartbeats and other lanes waiting.
            made = await self._in_thread(found.handler, message)
            answer = await made if inspect.isawaitable(made) else made
        if answer is not None:
            if message.performative in EXPECTS_ANSWER:
                await self._answer(message, Performative.INFORM, answer)
            else:
                # Two agents that answer every inform with another one would never end.
                act = message.performative.text
                _logger.warning("%s: text that is returned for %r is not sent; it expects no answer", self._name, act)

    def close(self) -> None:
        """Let the threads go. A thread cannot be stopped; what it returns is nobody's any more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _not_for_anybody(self, message: Received) -> None:
        """FIPA demands an answer to what an agent cannot handle (SC00037, not-understood)."""
        if message.performative in EXPECTS_ANSWER:
            text = f"no handler for {message.performative}"
            await self._answer(message, Performative.NOT_UNDERSTOOD, text, user_parameters=_BY_PROGRAM)
        else:
            _logger.debug("%s: no handler for %r", self._name, message.performative.text)

    async def _in_thread(self, handler: Callable[[Received], Any], message: Received) -> Any:
        if self._threads is None:
            # Its own, with a thread for each handler that may run: the loop's has six on a small machine, for everybody.
            self._threads = ThreadPoolExecutor(self._most_threads, thread_name_prefix=f"{self._name}-handler")
        context = contextvars.copy_context()
        running = asyncio.get_running_loop().run_in_executor(self._threads, _call, context, handler, message)
        value, error = await running
        if error is not None:
            raise error
        return value

    async def _answer(self, message: Received, act: Performative, content: str | bytes, **parameters: Any) -> None:
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


def _call(context: contextvars.Context, handler: Callable[[Received], Any], message: Received) -> tuple[Any, Any]:
    """Call a handler in a thread; return its value and its error, since a future does not carry every error."""
    try:
        return context.run(handler, message), None
    except Exception as error:
        return None, error
