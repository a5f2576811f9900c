"""Bidding in contract nets: what was proposed, until it is accepted, rejected, cancelled, or nobody decides in time.

Owns: the open bids of one agent. Leaves to others: which handler gets a call (`client.handlers`), the initiator's side
(`client.contract_net`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.answers import Declined, Refuse
from gagent_grpc.client.conversations import BY_PROGRAM, moment
from gagent_grpc.client.handling import Handling
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.message import Received
from gagent_grpc.client.running import CANCELLED, Key, key_of
from gagent_grpc.errors import InvalidArgument

_logger = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
MAX_OPEN = 10_000
"""Open bids of one agent; beyond that a call is refused."""
_MAX_STANDING = 30 * 86_400.0
"""Seconds for which the deadline of a call is waited for at most."""


class Bid:
    """What was proposed to one call."""

    __slots__ = ("_due", "_timer", "bidding", "cfp", "content", "decision", "reply_with")

    def __init__(self, bidding: Bidding, cfp: Received, content: str | bytes, due: float) -> None:
        self.bidding = bidding
        """Whose it is."""
        self.cfp = cfp
        """The call for proposals."""
        self.content = content
        """What was proposed."""
        self.decision: Received | None = None
        """The `accept-proposal`, `reject-proposal` or `cancel`; None while there is none, and when none came in time."""
        self.reply_with = new_id()
        """Mark of the proposal."""
        self._due = due
        self._timer: asyncio.TimerHandle | None = None

    @property
    def initiator(self) -> str:
        """Who called for proposals."""
        return self.cfp.sender.name if self.cfp.sender is not None else ""

    def __repr__(self) -> str:
        return f"Bid({self.content!r} to {self.initiator})"


class Bidding:
    """How an agent bids: what it proposes, and what it does when that is accepted or rejected.

    Made by `Agent.on_cfp`, and callable as what it decorates:

    @agent.on_cfp(ontology="freight")
    async def bid(cfp):
        if not trucks:
            raise Refuse("no truck")
        return "38 EUR"

    @bid.accepted
    async def drive(bid):
        return "done"
    """

    def __init__(self, function: Callable[..., Any], decision_within: float) -> None:
        self.function = function
        self.decision_within = decision_within
        """Seconds after the deadline of the call that a proposal stands."""
        self.on_accepted: Callable[..., Any] | None = None
        self.on_rejected: Callable[..., Any] | None = None

    def __call__(self, cfp: Received) -> Any:
        """Return what the decorated function returns."""
        return self.function(cfp)

    def accepted(self, function: FunctionT) -> FunctionT:
        """Register the decorated function for awards: it gets the `Bid`, and what it returns is sent as `inform`.

        Returning nothing says "done". `Fail`, raised or returned, is sent as `failure`; after any other error the award
        comes again, and is given up after a number of deliveries, of which the bus tells the initiator.
        """
        self.on_accepted = function
        return function

    def rejected(self, function: FunctionT) -> FunctionT:
        """Register the decorated function for bids that come to nothing: it gets the `Bid`; what it returns is not sent.

        A bid comes to nothing with a `reject-proposal`, with a `cancel`, and when nobody decides in time: `decision` tells.
        """
        self.on_rejected = function
        return function


class Bids:
    """The open bids of one agent."""

    def __init__(self, name: str, handling: Handling, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Keep the bids of the agent ``name``; ``spawn`` starts what runs beside its handlers."""
        self._name = name
        self._handling = handling
        self._spawn = spawn
        self._open: dict[str, Bid] = {}
        """By the mark of the proposal."""
        self._by_conversation: dict[Key, Bid] = {}
        """The latest one of each conversation: a revised call is answered by a new bid in the place of the former."""

    def add(self, bidding: Bidding) -> Callable[[Received], Coroutine[Any, Any, None]]:
        """Return the handler of calls for ``bidding``."""

        async def bid(cfp: Received) -> None:
            await self._bid(bidding, cfp)

        return bid

    async def _bid(self, bidding: Bidding, cfp: Received) -> None:
        if len(self._open) >= MAX_OPEN:
            text = f"{MAX_OPEN:,} proposals wait for a decision"
            await self._handling.answer(cfp, Performative.REFUSE, text, user_parameters=BY_PROGRAM)
            return
        content = await self._call(bidding.function, cfp, cfp)
        if content is CANCELLED:
            return
        if content is None:
            raise Refuse
        if isinstance(content, Declined):
            raise content
        if not isinstance(content, str | bytes):
            text = f"a proposal of type {type(content).__name__}; expected text, bytes, or Refuse"
            raise InvalidArgument(text, field="content")
        now = time.time()
        deadline = cfp.reply_by.timestamp() if cfp.reply_by is not None else now
        # Whatever the call says: a bid is not kept for ever.
        due = min(max(now, deadline), now + _MAX_STANDING) + bidding.decision_within
        made = Bid(bidding, cfp, content, due)
        # Before it is sent: the decision may be here before the receipt.
        self._enter(made)
        try:
            parameters = {"reply_with": made.reply_with, "reply_by": moment(due)}
            await self._handling.answer(cfp, Performative.PROPOSE, content, **parameters)
        except BaseException:
            self._leave(made)
            raise

    def concerns(self, message: Received) -> bool:
        """Return whether an `accept-proposal` or `reject-proposal` is about an open bid."""
        return self._find(message) is not None

    async def decided(self, message: Received) -> bool:
        """Take an `accept-proposal` or `reject-proposal`; return whether it is about an open bid."""
        bid = self._find(message)
        if bid is None:
            return False
        bid.decision = message
        if message.performative is not Performative.ACCEPT_PROPOSAL:
            self._leave(bid)
            await self._rejected(bid)
            return True
        if bid._timer is not None:
            bid._timer.cancel()
        try:
            await self._accepted(bid, message)
        except Exception:
            # It comes again, and has to find the bid; when it does not, there is an end to that, too.
            self._wait(bid, time.time() + bid.bidding.decision_within)
            raise
        except BaseException:
            self._leave(bid)
            raise
        self._leave(bid)
        return True

    async def _accepted(self, bid: Bid, message: Received) -> None:
        function = bid.bidding.on_accepted
        if function is None:
            _logger.error("%s: a bid was accepted, and there is no handler for that; use @bid.accepted", self._name)
            text = "no handler for accepted proposals"
            await self._handling.answer(message, Performative.FAILURE, text, user_parameters=BY_PROGRAM)
            return
        try:
            result = await self._call(function, message, bid)
        except Declined as declined:
            result = declined
        if result is CANCELLED:
            return
        if isinstance(result, Declined):
            await self._handling.answer(message, Performative.FAILURE, result.content)
        else:
            await self._handling.answer(message, Performative.INFORM, "done" if result is None else result)

    def is_cancelled_by(self, message: Received) -> bool:
        """Return whether a `cancel` is about a bid that waits for a decision."""
        return self._cancelled_by(message) is not None

    def _cancelled_by(self, message: Received) -> Bid | None:
        key = key_of(message)
        bid = self._by_conversation.get(key) if key is not None else None
        return bid if bid is not None and bid.decision is None else None

    async def cancel(self, message: Received) -> bool:
        """Take a `cancel`; return whether it is about a bid that waits for a decision."""
        bid = self._cancelled_by(message)
        if bid is None:
            return False
        bid.decision = message
        self._leave(bid)
        await self._rejected(bid)
        return True

    def clear(self) -> None:
        """Forget all bids: the agent is closed."""
        for bid in list(self._open.values()):
            self._leave(bid)

    def _find(self, message: Received) -> Bid | None:
        if message.in_reply_to:
            bid = self._open.get(message.in_reply_to)
        else:
            # Simple agents know the conversation only.
            key = key_of(message)
            bid = self._by_conversation.get(key) if key is not None else None
        # Nobody decides in the place of who called.
        return bid if bid is not None and bid.cfp.sender == message.sender else None

    def _enter(self, bid: Bid) -> None:
        key = key_of(bid.cfp)
        if key is not None:
            former = self._by_conversation.get(key)
            if former is not None and former.decision is None:
                self._leave(former)
            self._by_conversation[key] = bid
        self._open[bid.reply_with] = bid
        self._wait(bid, bid._due)

    def _wait(self, bid: Bid, until: float) -> None:
        bid._timer = asyncio.get_running_loop().call_later(until - time.time(), self._expire, bid)

    def _leave(self, bid: Bid) -> None:
        if bid._timer is not None:
            bid._timer.cancel()
        self._open.pop(bid.reply_with, None)
        key = key_of(bid.cfp)
        if key is not None and self._by_conversation.get(key) is bid:
            del self._by_conversation[key]

    def _expire(self, bid: Bid) -> None:
        self._leave(bid)
        if bid.decision is None:
            self._spawn(self._rejected(bid))

    async def _rejected(self, bid: Bid) -> None:
        function = bid.bidding.on_rejected
        if function is not None:
            try:
                await self._call(function, bid.decision or bid.cfp, bid)
            except Exception:
                # There is nothing to repeat: the decision stands, whatever the handler makes of it.
                _logger.exception("%s: the handler of a rejected bid failed", self._name)

    async def _call(self, function: Callable[..., Any], message: Received, argument: object) -> Any:
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        return await self._handling.call(function, message, argument, is_async=is_async)
