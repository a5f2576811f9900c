"""Publishing to subscribers: one handle for each subscription, until one of the two ends it.

Owns: the open subscriptions to one agent. Leaves to others: which handler gets a subscription (`client.handlers`), the
subscriber's side (`client.subscriptions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.answers import Declined, Refuse
from gagent_grpc.client.conversations import BY_PROGRAM, LEAVE_WITHIN, Conversations
from gagent_grpc.client.message import Receipt, Received, answer_headers
from gagent_grpc.client.running import Key, key_of
from gagent_grpc.client.sending import WhenFull, patience_of
from gagent_grpc.errors import BusError, DeliveryRefused, PreconditionFailed

_logger = logging.getLogger(__name__)

MAX_OPEN = 10_000
"""Open subscriptions to one agent; beyond that one is refused."""
AGREE_WITHIN = 1.0
"""Seconds that a handler has for its first word; then the subscription is agreed to in its place."""

Publish = Callable[["Subscriber"], Coroutine[Any, Any, object]]


class Subscriber:
    """One subscription to this agent (FIPA SC00035)."""

    def __init__(self, message: Received, conversations: Conversations, gone: Callable[[Subscriber], None]) -> None:
        self.message = message
        """The `subscribe`."""
        self._conversations = conversations
        self._gone = gone
        self._ended = asyncio.Event()
        self._decided = asyncio.Event()
        """It was agreed to, or informed, or it is over."""
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Who subscribed."""
        return self.message.sender.name if self.message.sender is not None else ""

    @property
    def content(self) -> str | bytes | None:
        """What was subscribed to."""
        return self.message.content

    @property
    def is_open(self) -> bool:
        """Whether it may be informed."""
        return not self._ended.is_set()

    async def agree(self, content: str | bytes | None = None) -> None:
        """Send an `agree`; nothing happens when that was done, or a notice was sent. By itself it comes after a second.

        Raises:
            PreconditionFailed: The subscription is over.
            DeliveryRefused, BusError: As `Agent.send`.
        """
        self._check()
        if not self._decided.is_set():
            self._decided.set()
            by_program = {} if content is not None else {"user_parameters": BY_PROGRAM}
            await self._say(Performative.AGREE, content, 0.0, **by_program)

    async def inform(
        self, content: str | bytes | None = None, *, when_full: WhenFull = "fail", **parameters: Any
    ) -> None:
        """Send a notice. Notices arrive in the order of the calls.

        Args:
            content: What is new.
            when_full: As `Agent.send`: whether a subscriber without room is waited for.
            parameters: Further ACL parameters.

        Raises:
            PreconditionFailed: The subscription is over, or the agent is closed.
            DeliveryRefused: The subscriber was not reached. One that is gone has no subscription any more.
            MessageTooLarge, InvalidArgument, BusError: As `Agent.send`.
        """
        self._check()
        self._decided.set()
        await self._say(Performative.INFORM, content, patience_of(when_full), **parameters)

    async def end(self, content: str | bytes | None = None) -> None:
        """End the subscription from this side: the subscriber gets a `failure`. Idempotent.

        Raises:
            BusError: The session is over.
        """
        if self.is_open:
            await self._finish(Performative.FAILURE, content)

    async def wait_ended(self) -> None:
        """Wait until the subscription is over."""
        await self._ended.wait()

    def _check(self) -> None:
        if not self.is_open:
            raise PreconditionFailed(f"the subscription of {self.name} is over")

    def _close(self) -> None:
        self._ended.set()
        self._decided.set()
        self._gone(self)

    async def _finish(self, act: Performative, content: str | bytes | None, **parameters: Any) -> None:
        self._close()
        with contextlib.suppress(DeliveryRefused):
            await self._say(act, content, self._conversations.limits.answer_patience, **parameters)

    async def _say(self, act: Performative, content: str | bytes | None, patience: float, **parameters: Any) -> None:
        made = self.message.create_reply(act, content, **parameters)
        try:
            await self._conversations.say(made, patience=patience, headers=answer_headers(self.message))
        except DeliveryRefused as refused:
            first = refused.receipts[0] if refused.receipts else None
            if not (isinstance(first, Receipt) and first.outcome.retryable):
                self._close()
            raise


class Publishing:
    """The subscriptions to one agent."""

    def __init__(
        self, name: str, conversations: Conversations, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        """Keep the subscriptions to the agent ``name``; ``spawn`` starts what runs beside its handlers."""
        self._name = name
        self._conversations = conversations
        self._spawn = spawn
        self._open: dict[Key, Subscriber] = {}

    def add(self, function: Publish) -> Callable[[Received], Coroutine[Any, Any, None]]:
        """Return the handler of subscriptions that ``function`` serves."""

        async def begin(message: Received) -> None:
            await self._begin(function, message)

        return begin

    async def _begin(self, function: Publish, message: Received) -> None:
        key = _key(message)
        if key in self._open or len(self._open) >= MAX_OPEN:
            why = (
                "a subscription of yours is open in this conversation"
                if key in self._open
                else f"{MAX_OPEN:,} subscriptions are open"
            )
            await self._conversations.answer(message, Performative.REFUSE, why)
            return
        subscriber = self._open[key] = Subscriber(message, self._conversations, self._forget)
        subscriber._task = self._spawn(self._publish(function, subscriber))
        patience = AGREE_WITHIN
        if message.reply_by is not None:
            patience = min(patience, max(0.0, message.reply_by.timestamp() - time.time()) / 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await subscriber._decided.wait()
        if subscriber.is_open:
            with contextlib.suppress(DeliveryRefused):
                await subscriber.agree()

    async def _publish(self, function: Publish, subscriber: Subscriber) -> None:
        try:
            said: object
            try:
                said = await function(subscriber)
            except Declined as declined:
                said = declined
            if isinstance(said, Declined):
                if subscriber.is_open:
                    first = isinstance(said, Refuse) and not subscriber._decided.is_set()
                    act = Performative.REFUSE if first else Performative.FAILURE
                    await subscriber._finish(act, said.content)
            elif subscriber.is_open:
                # It goes on elsewhere, with the handle.
                await subscriber.agree()
        except Exception as error:
            if not subscriber.is_open:
                _logger.debug("%s: the handler of an ended subscription stopped: %s", self._name, error)
                return
            _logger.exception("%s: the handler of the subscription of %s failed", self._name, subscriber.name)
            with contextlib.suppress(BusError):
                text = f"the subscription failed: {type(error).__name__}"
                await subscriber._finish(Performative.FAILURE, text, user_parameters=BY_PROGRAM)

    def concerns(self, message: Received) -> bool:
        """Return whether a `cancel` is about an open subscription."""
        return _key(message) in self._open

    async def cancel(self, message: Received) -> bool:
        """Take a `cancel`; return whether a subscription was ended by it, and its handler, too."""
        subscriber = self._open.get(_key(message))
        if subscriber is None:
            return False
        subscriber._close()
        task = subscriber._task
        if task is not None and not task.done():
            task.cancel()
            # One that does not let itself be disturbed must not keep the subscriber waiting.
            await asyncio.wait({task}, timeout=LEAVE_WITHIN / 2)
        return True

    async def clear(self) -> None:
        """End all subscriptions, as far as that can still be said: the agent is closed."""
        subscribers = list(self._open.values())
        made = [
            one.message.create_reply(Performative.FAILURE, "the publisher has left", user_parameters=BY_PROGRAM)
            for one in subscribers
        ]
        for one in subscribers:
            one._close()
        await self._conversations.tell_all(made, within=1.0)

    def _forget(self, subscriber: Subscriber) -> None:
        key = _key(subscriber.message)
        if self._open.get(key) is subscriber:
            del self._open[key]


def _key(message: Received) -> Key:
    """Return under which key a subscription is known; one without a conversation goes by its reply-with."""
    found = key_of(message)
    if found is not None:
        return found
    return (message.sender.name if message.sender is not None else "", message.reply_with or message.id)
