"""The interaction protocols as methods of an agent: one awaitable call or one block to begin, one decorator to take part.

Owns: these methods. Leaves to others: a contract net (`client.contract_net`, `client.bids`), a subscription
(`client.subscriptions`, `client.publishing`), questions with one answer (`Agent.request`).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import identifiers
from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.bids import Bidding
from gagent_grpc.client.contract_net import CallForProposals
from gagent_grpc.client.conversations import Accepted, Conversations, Rejected, moment, positive_seconds
from gagent_grpc.client.handling import Handling
from gagent_grpc.client.message import Received
from gagent_grpc.client.participants import Participants
from gagent_grpc.client.subscriptions import QUEUE, Subscription
from gagent_grpc.config import ClientLimits
from gagent_grpc.errors import ConversationFailed, InvalidArgument
from gagent_grpc.protocols.propose import ProposeProtocol
from gagent_grpc.protocols.query import QueryProtocol

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])
PublishT = TypeVar("PublishT", bound=Callable[..., Any])


class Conversing:
    """The part of an `Agent` that speaks the interaction protocols."""

    _limits: ClientLimits
    _handling: Handling
    _conversations: Conversations
    _participants: Participants

    async def request(self, to: Any, content: str | bytes | None = None, **parameters: Any) -> Received:
        """As `Agent.request`."""
        raise NotImplementedError

    # ---- beginning -------------------------------------------------------------------------------------------------

    async def query(
        self,
        to: str | AgentIdentifier | Iterable[str | AgentIdentifier],
        content: str | bytes | None = None,
        *,
        performative: str | Performative = Performative.QUERY_REF,
        timeout: float | None = None,
        **parameters: Any,
    ) -> Received:
        """Ask what something is, or whether something is so, and wait for the answer (FIPA SC00027).

        Args:
            to: Whom to ask. Of several receivers the first one that answers counts.
            content: What is asked.
            performative: `query-ref`, or `query-if` for a truth value.
            timeout: Seconds to wait, told as reply-by; `request_timeout` (120 s) by default.
            parameters: Further parameters, as `request` takes them.

        Returns:
            The `inform`.

        Raises:
            InvalidArgument: ``performative`` is another act; or as for `request`.
            DeliveryRefused, RefusedByAgent, FailureFromAgent, NotUnderstoodByAgent, AnswerTimeout, BusError: As `request`.
        """
        act = Performative.parse(performative) if isinstance(performative, str) else performative
        if act not in QueryProtocol.opening:
            raise InvalidArgument(f"a query with {act}; expected query-ref or query-if", field="performative")
        return await self._ask(to, content, act, QueryProtocol.name, timeout, parameters)

    async def propose(
        self,
        to: str | AgentIdentifier,
        content: str | bytes | None = None,
        *,
        timeout: float | None = None,
        **parameters: Any,
    ) -> Accepted | Rejected:
        """Propose to do something, and wait for whether the other agent wants it (FIPA SC00036).

        Args:
            to: Whom to ask.
            content: What is proposed.
            timeout: Seconds to wait, told as reply-by; `request_timeout` (120 s) by default.
            parameters: Further parameters, as `request` takes them.

        Returns:
            `Accepted`, which is true in a condition, or `Rejected`, which is false; both have `content` and `answer`.

        Raises:
            ConversationFailed: The other agent answered with an act that decides nothing.
            DeliveryRefused, RefusedByAgent, FailureFromAgent, NotUnderstoodByAgent, AnswerTimeout, BusError: As `request`.
        """
        answer = await self._ask(to, content, Performative.PROPOSE, ProposeProtocol.name, timeout, parameters)
        if answer.performative is Performative.ACCEPT_PROPOSAL:
            return Accepted(answer)
        if answer.performative is Performative.REJECT_PROPOSAL:
            return Rejected(answer)
        text = f"{answer.performative} in answer to a proposal; expected accept-proposal or reject-proposal"
        raise ConversationFailed(answer.sender.name if answer.sender is not None else "", text)

    async def _ask(
        self,
        to: str | AgentIdentifier | Iterable[str | AgentIdentifier],
        content: str | bytes | None,
        act: Performative,
        protocol: str,
        timeout: float | None,
        parameters: dict[str, Any],
    ) -> Received:
        seconds = positive_seconds(self._limits.request_timeout if timeout is None else timeout, "timeout")
        parameters = {"protocol": protocol, "reply_by": moment(time.time() + seconds), **parameters}
        return await self.request(to, content, performative=act, timeout=seconds, **parameters)

    def call_for_proposals(
        self,
        to: str | AgentIdentifier | Iterable[str | AgentIdentifier],
        content: str | bytes | None = None,
        *,
        reply_by: float,
        **parameters: Any,
    ) -> CallForProposals:
        """Return a call for proposals to these agents (FIPA SC00029); it is sent when its block is entered.

            async with agent.call_for_proposals(["s1", "s2"], "crate 9", reply_by=3) as call:
                async for proposal in call:
                    ...

        Args:
            to: Whom to call; one message per hundred of them, in one conversation.
            content: What is to be done.
            reply_by: Seconds from the entry of the block for proposals to come in; what comes later is rejected.
            parameters: Further ACL parameters, which the whole conversation has, such as ``ontology``.

        Raises:
            InvalidArgument: Nobody is called, ``reply_by`` is no time, or a parameter is set by the call itself.
        """
        receivers = identifiers(to)
        return CallForProposals(self._conversations, receivers, content, reply_by=reply_by, parameters=parameters)

    def subscribe(
        self,
        to: str | AgentIdentifier,
        content: str | bytes | None = None,
        *,
        timeout: float | None = None,
        queue: int = QUEUE,
        **parameters: Any,
    ) -> Subscription:
        """Return a subscription to what another agent informs of (FIPA SC00035); it begins when its block is entered.

            async with agent.subscribe("prices", "EUR/USD") as subscription:
                async for notice in subscription:
                    ...

        Args:
            to: The publisher.
            content: What is subscribed to.
            timeout: Seconds in which the publisher has to say something, told as reply-by; `request_timeout` by default.
            queue: Notices that wait for the reader at most; beyond that the oldest one is dropped and counted in `missed`.
            parameters: Further ACL parameters, such as ``ontology``.

        Raises:
            InvalidArgument: ``to`` is not one agent, a number is out of range, or a parameter is set by the subscription.
        """
        seconds = self._limits.request_timeout if timeout is None else timeout
        return Subscription(self._conversations, to, content, timeout=seconds, queue=queue, parameters=parameters)

    # ---- taking part -----------------------------------------------------------------------------------------------

    def on_cfp(
        self, *, decision_within: float | None = None, **parameters: Any
    ) -> Callable[[Callable[..., Any]], Bidding]:
        """Have the decorated function bid in contract nets (FIPA SC00029); see `Bidding` for awards.

        The function gets the `cfp` and returns what it proposes, as text or bytes. `Refuse`, raised or returned, and nothing
        at all, refuse. After any other error the call comes again. A proposal stands until ``decision_within`` seconds after
        the deadline of the call, which the initiator is told as reply-by; then it counts as rejected.

        Args:
            decision_within: As above; `request_timeout` (120 s) by default.
            parameters: Values that ACL parameters of the call must have, as for `on`.

        Raises:
            InvalidArgument: ``decision_within`` is no time, or ACL messages have no such parameter.
        """
        seconds = self._limits.request_timeout if decision_within is None else decision_within
        seconds = positive_seconds(seconds, "decision_within")

        def register(function: Callable[..., Any]) -> Bidding:
            bidding = Bidding(function, seconds)
            self._handling.handlers.add(Performative.CFP, parameters, self._participants.bids.add(bidding))
            return bidding

        return register

    def on_propose(self, **parameters: Any) -> Callable[[HandlerT], HandlerT]:
        """Have the decorated function decide on proposals (FIPA SC00036).

        It gets the `propose`. True accepts; False and None reject; text or bytes accept and are sent with it; `Refuse`,
        raised or returned, rejects and says why.

        Args:
            parameters: Values that ACL parameters of the proposal must have, as for `on`.

        Raises:
            InvalidArgument: ACL messages have no such parameter.
        """

        def register(function: HandlerT) -> HandlerT:
            self._handling.handlers.add(Performative.PROPOSE, parameters, self._participants.deciding(function))
            return function

        return register

    def on_subscribe(self, **parameters: Any) -> Callable[[PublishT], PublishT]:
        """Have the decorated coroutine function serve subscriptions (FIPA SC00035), one call for each `Subscriber`.

            @agent.on_subscribe()
            async def publish(subscriber):
                async for price in prices(subscriber.content):
                    await subscriber.inform(price)

        When the subscriber cancels, the function is cancelled, and the cancel is answered. `Refuse` as the first thing
        refuses; any other error, or `Fail`, ends the subscription with a `failure`. A function that returns leaves it open:
        whoever keeps the `Subscriber` goes on informing. The subscription lives as long as the agent is open; then the
        subscriber gets a `failure`.

        Args:
            parameters: Values that ACL parameters of the subscription must have, as for `on`.

        Raises:
            InvalidArgument: The function is not a coroutine function, or ACL messages have no such parameter.
        """

        def register(function: PublishT) -> PublishT:
            if not inspect.iscoroutinefunction(function):
                raise InvalidArgument("a handler of subscriptions is not async; expected `async def`", field="handler")
            self._handling.handlers.add(Performative.SUBSCRIBE, parameters, self._participants.publishing.add(function))
            return function

        return register
