"""`Agent`: one agent on a bus, with handlers, sending, and requests that are one awaitable call.

Owns: what an author of an agent uses. Leaves to others: the stream (`client.session`), AMS and DF calls (`client.ams`,
`client.df`), tasks (`client.tasks`, `client.executing`), timers, behaviours and hooks (`client.active`), handing over what is sent (`client.sending`), running handlers (`client.handling`), which request an answer is for (`client.questions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from gagent_grpc.acl.aid import AgentIdentifier, split_aid
from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState, ServiceDescription
from gagent_grpc.acl.message import ACLMessage, identifiers
from gagent_grpc.acl.performative import Performative
from gagent_grpc.acl.template import MessageTemplate
from gagent_grpc.client.acp.exchanging import Exchanging
from gagent_grpc.client.acp.handling import ACPHandling
from gagent_grpc.client.active import leave
from gagent_grpc.client.ams import AmsClient, why_no_answer
from gagent_grpc.client.contexts import ContextCalls, Sharing
from gagent_grpc.client.conversations import ENDINGS, Conversations
from gagent_grpc.client.conversing import Conversing
from gagent_grpc.client.df import DfClient, entry_of
from gagent_grpc.client.executing import Executing, Executor
from gagent_grpc.client.handling import Handling
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.lease import Lease
from gagent_grpc.client.message import Receipt, Received, answer_headers, encoded
from gagent_grpc.client.participants import Participants
from gagent_grpc.client.pending import HOLD_ORDER_FLAG
from gagent_grpc.client.questions import Question, Questions
from gagent_grpc.client.sending import Sender, WhenFull, patience_of, waits_for
from gagent_grpc.client.session import ClientSession, Introduction
from gagent_grpc.client.task_calls import TaskCalls
from gagent_grpc.client.tasks import Delegating
from gagent_grpc.client.topics import Listening
from gagent_grpc.client.transport import Calls, endpoints
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import OnReceiverLost, Priority, Report
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    AgentNotRegistered,
    AnswerTimeout,
    BusError,
    InvalidArgument,
    PreconditionFailed,
    Unavailable,
)

_logger = logging.getLogger(__name__)

Receivers = str | AgentIdentifier | Iterable[str | AgentIdentifier]
"""One receiver, or several."""
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


class Agent(Conversing, Exchanging, Delegating, Executing, Listening, Sharing):
    """One agent. Open while its block lasts, or while `run` does.

    Handlers are registered with `on`; each message goes to the first one that fits. Text that a handler returns is sent
    as `inform` to whoever asked; messages that expect no answer get none. The message counts as handled when its handler
    has returned; one that raises is tried again after a delay, and given up by the bus after a number of deliveries.

        agent = Agent("helper", services=["summarise"])

        @agent.on("request")
        async def answer(message):
            return f"You said: {message.content}"

        asyncio.run(agent.run())
    """

    def __init__(
        self,
        name: str,
        *,
        bus: str | None = None,
        services: Sequence[str | ServiceDescription] = (),
        description: DFAgentDescription | None = None,
        topics: Sequence[str] = (),
        ownership: str = "",
        ephemeral: bool = False,
        limits: ClientLimits | None = None,
    ) -> None:
        """Make an agent; nothing is connected yet.

        Args:
            name: Its name, `name` or `name@platform`.
            bus: `HOST:PORT[,HOST:PORT]` of the bus; by default what `GAGENT_BUS` says, else 127.0.0.1:50051.
            services: What it offers in the DF, as service types or descriptions.
            description: Its whole DF entry, instead of ``services``.
            topics: Topics that it listens to, as for `listen_to`.
            ownership: Who owns it, in words; the AMS shows it.
            ephemeral: The name ends by itself when no session has been open for a while.
            limits: Intervals and bounds; the defaults of `ClientLimits`.

        Raises:
            InvalidName: ``name`` is no valid name.
            InvalidArgument: An endpoint is not HOST:PORT, or both services and a description are given.
            MissingParameter: A service has no type.
        """
        split_aid(name)
        if services and description is not None:
            raise InvalidArgument("services and description are both given; expected one of them", field="description")
        if services:
            description = entry_of(services)
        self.name = name.partition("@")[0]
        """Local name."""
        self._limits = limits or ClientLimits()
        self._handling = Handling(self.name, self._send_answer, threads=self._limits.concurrency + 1)
        self._state = LifeCycleState.INITIATED
        self._state_handlers: list[Callable[[LifeCycleState, str], None]] = []
        self._questions = Questions()
        self._conversations = Conversations(self._limits)
        self._participants = Participants(self.name, self._handling, self._conversations)
        self._questions.listener = self._participants
        self._lease = Lease(self.name, lambda: self._session.introduction.description)
        self._session = ClientSession(
            Introduction(name, description, ephemeral, ownership, tuple(topics)),
            endpoints(bus),
            self._limits,
            self._questions,
            handle=self._participants.handle,
            state_changed=self._changed,
            granted=self._lease.granted,
        )
        super().__init__(self.name, self._session.deliveries)
        self._activity.before = self._participants.concerns
        self._sender = Sender(self.name, self._session, self._limits)
        self._acp = ACPHandling(
            self.name, self._handling, self._session.deliveries, self._send_acp_answer, lambda: self._session.platform
        )
        self._keeper: asyncio.Task[None] | None = None
        self._closing = asyncio.Lock()
        calls = Calls(self._session, self._limits.call_timeout, self._limits)
        self.ams = AmsClient(calls)
        """The agent management system, in this agent's name."""
        self.df = DfClient(calls, remember=self._offers, granted=self._lease.granted)
        """The directory facilitator, in this agent's name."""
        self._conversations.attach(self._session, self._sender, self.ams)
        self._task_calls = TaskCalls(calls)
        self._context_calls = ContextCalls(calls)
        self._executor = Executor(self, self._task_calls, self._session, self._activity, self._limits)

    # ---- life ------------------------------------------------------------------------------------------------------

    @property
    def aid(self) -> str:
        """`name@platform`; the bare name before the first session."""
        return self._session.aid

    @property
    def connected(self) -> bool:
        """Whether a session is open; False before the first one, while a lost one is being found again, and at the end."""
        return self._session.is_open

    @property
    def state(self) -> LifeCycleState:
        """Life-cycle state as the AMS told it last."""
        return self._state

    async def __aenter__(self) -> Self:
        """Open the session.

        Raises:
            BusUnreachable: No bus answered within `connect_timeout`.
            AgentAlreadyRegistered: Somebody else holds the name.
            BusError: The bus refused the session.
            Exception: What `setup` raised; the agent is closed again.
        """
        if self._keeper is not None:
            raise PreconditionFailed(f"{self.name}: the agent is open already")
        self._session.prepare()
        self._session.deliveries.lanes.hold()
        self._closing = asyncio.Lock()
        self._keeper = asyncio.create_task(self._live())
        try:
            opened = asyncio.create_task(self._session.connected.wait())
            try:
                await asyncio.wait({self._keeper, opened}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
                await asyncio.gather(opened, return_exceptions=True)
            if self._session.over is not None:
                # It woke whoever waits for a session because there will be none; its keeper has a step or two left.
                await asyncio.wait({self._keeper})
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self._keeper.done():
            keeper, self._keeper = self._keeper, None
            keeper.result()
        await self._set_up(lambda: self._keeper is not None)
        return self

    async def _live(self) -> None:
        """Keep the session, and the lease of the DF entry as long as there is one."""
        renewing = asyncio.create_task(self._lease.keep(self.df))
        try:
            await self._session.run()
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close politely: name and mail stay."""
        await self.aclose()

    async def run(self) -> None:
        """Open the session and serve until cancelled, superseded or terminated; close politely at the end.

        Raises:
            SessionSuperseded: A newer session of this agent took over.
            BusError: As for opening.
        """
        async with self:
            await self.wait()

    async def wait(self) -> None:
        """Wait until the session is over for good.

        Raises:
            SessionSuperseded: A newer session of this agent took over.
            PreconditionFailed: The agent was terminated.
            BusError: The bus refused to have it back.
        """
        keeper = self._keeper
        if keeper is not None:
            # Not awaited itself: whoever waits here is not the one who is cancelled when the agent is closed.
            await asyncio.wait({keeper})
            if not keeper.cancelled():
                keeper.result()

    async def aclose(self, *, deregister: bool = False, grace: float = 5.0) -> None:
        """Close the session. Idempotent; who comes second waits for the first one.

        Timers and behaviours are cancelled. Handlers that run are given ``grace`` seconds to finish; what is left then
        comes again to the next session. Tasks are given the same first; then their handlers are cancelled, and they fail, or
        are given back where they are to be delivered again, as are those that have not begun. Then `take_down` is called.
        Whatever of these calls this cannot wait for its own end: it returns at once, and the session closes when all handlers have returned; `run` and `wait` return then.

        Args:
            deregister: Free the name, too; mail that is left is given up.
            grace: Seconds for running handlers, and again for what was sent to get its receipts. A bus that is away
                so long hears nothing of it, and a name that was to be freed stays.
        """
        session = self._session
        lanes = session.deliveries.lanes
        if self._is_inside(asyncio.current_task()):
            self._retire_soon(grace, lambda: session.say_bye(deregister=deregister))
            return
        async with self._closing:
            keeper = self._keeper
            if keeper is None:
                return
            try:
                patience = grace if await self._retire(grace) else 0.0
                # Before the bye, so that subscribers hear of it.
                await self._participants.aclose()
                if not keeper.done():
                    await leave(session, keeper, deregister=deregister, patience=patience, grace=grace)
            finally:
                self._keeper = None
                keeper.cancel()
                try:
                    await asyncio.wait({keeper})
                finally:
                    await self._end_now()
                    await lanes.aclose()
                    # Once more: a handler may have begun something, and whoever closes may have been cancelled above.
                    await self._participants.aclose()
                    self._handling.close()

    def pause(self) -> None:
        """Begin no handler any more: mail waits for the next session. What runs goes on, and so does sending."""
        self._session.deliveries.lanes.close()

    async def offer(self, services: Sequence[str | ServiceDescription]) -> None:
        """Offer these services in the DF in the place of those before, also after a reconnect; none withdraws the entry.

        Raises:
            MissingParameter: A service has no type; nothing is changed.
            BusError: The DF refused them; what was offered before is offered again.
            BusUnreachable: The connection was lost. When the old entry was withdrawn already, the new one is installed
                with the next session; else the old one stays.
        """
        description = entry_of(services) if services else None
        before = self._session.introduction.description
        with contextlib.suppress(AgentNotRegistered):
            await self.df.deregister()
        # Before it is registered: a connection that is lost from here on is found again with the new entry.
        self._offers(description)
        if description is None:
            return
        try:
            with contextlib.suppress(AgentAlreadyRegistered):
                # Raised when a new session has installed it meanwhile.
                await self.df.register(description)
        except Unavailable:
            raise
        except BusError:
            # A reconnect that says what is refused would be the end of the agent.
            self._offers(before)
            if before is not None:
                with contextlib.suppress(BusError):
                    await self.df.register(before)
            raise

    def _offers(self, entry: DFAgentDescription | None) -> None:
        """Remember the DF entry: a reconnect installs it again, in case the bus has forgotten it."""
        self._session.introduction.description = entry

    # ---- receiving -------------------------------------------------------------------------------------------------

    def on(
        self, performative: str | Performative | MessageTemplate | None = None, **parameters: Any
    ) -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function for messages with these ACL parameters.

        Args:
            performative: Act that it is for, or a whole template; every act when absent.
            parameters: Values that further parameters must have, such as ``ontology="weather"``, as `MessageTemplate`
                takes them.

        Raises:
            UnknownPerformative: None of FIPA's 22 acts.
            InvalidArgument: A parameter that ACL messages do not have, or a value that it cannot have.
        """
        if callable(performative):
            raise InvalidArgument("@agent.on without parentheses; expected @agent.on(...)", field="performative")

        def register(handler: HandlerT) -> HandlerT:
            self._handling.handlers.add(performative, parameters, handler)
            return handler

        return register

    def on_state(self, handler: Callable[[LifeCycleState, str], None]) -> Callable[[LifeCycleState, str], None]:
        """Register the decorated function for life-cycle changes: (new state, who changed it).

        Raises:
            InvalidArgument: It is a coroutine function; changes are told in passing, and nobody would wait for it.
        """
        if inspect.iscoroutinefunction(handler):
            raise InvalidArgument("a handler of states is async; expected a plain function", field="handler")
        self._state_handlers.append(handler)
        return handler

    # ---- sending ---------------------------------------------------------------------------------------------------

    async def send(
        self,
        to: Receivers,
        performative: str | Performative,
        content: str | bytes | None = None,
        *,
        priority: Priority = Priority.NORMAL,
        transient: bool = False,
        expires_in: float | None = None,
        report: Report = Report.RECEIPT,
        message_id: str | None = None,
        on_receiver_lost: OnReceiverLost | None = None,
        when_full: WhenFull = "fail",
        wait_for_provider: bool = False,
        **parameters: Any,
    ) -> list[Receipt]:
        """Send one message and wait for its receipts.

        While the bus is away this waits without a limit: the message is sent when the bus is back. Giving up the wait,
        as `asyncio.timeout` does, does not unsend it. Whoever sends it once more must give the same ``message_id``
        both times, and it still arrives once. A message that was refused for want of room is not sent again once its
        caller has given up.

        Args:
            to: Receiver or receivers: `name` or `name@platform`; `role:TYPE` for the least busy agent that offers a service
                of that type in the DF, which stays the one for a conversation; `topic:a.b` for everybody who listens to it;
                `*` for every connected agent but this one.
            performative: The communicative act.
            content: Text or bytes; None for none.
            priority: Urgency.
            transient: Need not survive a restart of the bus.
            expires_in: Seconds after which it is of no use.
            report: How to hear of the outcome.
            message_id: Identity; a new UUIDv7 by default. The same one with the same body is DUPLICATE.
            on_receiver_lost: For acts that expect an answer: what happens when the receiver got the message and is lost
                before it answered. FAIL, the default, has the bus answer with a `failure`; with WAIT the message
                waits for it to come back, until the ``reply_by`` of the message.
            when_full: What happens when a receiver has no room for the message, or another passing reason keeps it out.
                "fail" has that raised at once. With "wait" the message is sent again until the receiver takes it,
                refuses it for good, or the agent is closed; what is sent to the same receiver with "wait" meanwhile
                waits behind it, so that the order holds, and other receivers are not concerned.
            wait_for_provider: A message to a role that nobody serves, or to a topic that nobody listens to, is likewise
                sent again until somebody does; else NO_PROVIDER is raised at once.
            parameters: Further ACL parameters, such as ``conversation_id`` or ``ontology``.

        Returns:
            A receipt for each receiver that is DUPLICATE, and for each topic and `*`, which tells how many were `reached`;
            empty when all others were accepted anew.

        Raises:
            DeliveryRefused: A receiver was not reached, or there is none; its `receipts` tell of all. HELD is the
                outcome where messages that were sent with "wait" still wait for room at the receiver.
            MessageTooLarge: The message is over the limit of the bus.
            UnknownPerformative: ``performative`` is none of FIPA's 22 acts.
            InvalidArgument: A parameter has a value that cannot be sent.
            PreconditionFailed: The agent is not open, was closed meanwhile, or was terminated.
            BusError: The session is over for another reason.
        """
        act = Performative.parse(performative) if isinstance(performative, str) else performative
        message = ACLMessage(act, receivers=identifiers(to), content=content, **parameters)
        return await self.send_message(
            message,
            priority=priority,
            transient=transient,
            expires_in=expires_in,
            report=report,
            message_id=message_id,
            on_receiver_lost=on_receiver_lost,
            when_full=when_full,
            wait_for_provider=wait_for_provider,
        )

    async def send_message(
        self,
        message: ACLMessage,
        *,
        priority: Priority = Priority.NORMAL,
        transient: bool = False,
        expires_in: float | None = None,
        report: Report = Report.RECEIPT,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        to: Sequence[str] = (),
        on_receiver_lost: OnReceiverLost | None = None,
        when_full: WhenFull = "fail",
        wait_for_provider: bool = False,
    ) -> list[Receipt]:
        """Send an ACL message as it is; arguments, result and errors as `send`.

        Args:
            message: What is sent.
            priority: As `send`.
            transient: As `send`.
            expires_in: As `send`.
            report: As `send`.
            message_id: As `send`.
            headers: Trace context and hops, as `answer_headers` makes them for an answer.
            to: Delivery addresses, where they are others than the receivers that the message names.
            on_receiver_lost: As `send`.
            when_full: As `send`.
            wait_for_provider: As `send`.
        """
        patience = patience_of(when_full, report)
        if wait_for_provider:
            patience = patience or patience_of("wait", report)
        acp = self._in_acp(message, priority=priority, expires_in=expires_in, message_id=message_id)
        if acp:
            # It answers what came as an ACP message.
            return await self._answer_in_acp(acp, patience=patience, transient=transient, headers=headers, to=to)
        payload = encoded(message, priority, transient, expires_in, report, message_id, headers, to, on_receiver_lost)
        return await self._sender.send(
            message,
            payload,
            to=to,
            patience=patience,
            waits_for=waits_for(when_full, provider=wait_for_provider),
            priority=priority,
        )

    async def _send_answer(self, message: ACLMessage, headers: Mapping[str, str]) -> None:
        """Send what a handler answers; it may wait for room for `answer_patience`."""
        acp = self._in_acp(message)
        if acp:
            await self._answer_in_acp(acp, patience=self._limits.answer_patience, headers=headers)
            return
        payload = encoded(message, headers=headers)
        await self._sender.send(message, payload, patience=self._limits.answer_patience)

    async def send_all(
        self, messages: Iterable[ACLMessage], *, transient: bool = False, when_full: WhenFull = "wait"
    ) -> list[tuple[int, Receipt]]:
        """Send many messages and wait until each has its receipts: the cheap way for a flood.

        By default it goes at the pace of the slowest receiver: nothing is left out, and each receiver gets its messages
        in order. Cancelled, it sends nothing again that was refused for want of room.

        Args:
            messages: In the order in which they are to arrive.
            transient: Need not survive a restart of the bus.
            when_full: As `send`, but for its default. With "fail" what a receiver has no room for is left out and told.

        Returns:
            (place among the messages, receipt) of every receiver that is not ACCEPTED.

        Raises:
            MessageTooLarge: One is over the limit of the bus; none of its batch is sent.
            InvalidArgument: One has a value that cannot be sent; none of its batch is sent.
            PreconditionFailed: The agent is not open.
            BusError: The session is over.
        """
        return await self._sender.send_all(messages, transient=transient, patience=patience_of(when_full))

    async def reply(
        self,
        original: ACLMessage,
        performative: str | Performative,
        content: str | bytes | None = None,
        *,
        when_full: WhenFull = "fail",
        **parameters: Any,
    ) -> list[Receipt]:
        """Answer a message: conversation, protocol and language are kept (SC00061).

        Args:
            original: What is answered; the answer goes to its `reply_to`, else to its sender.
            performative: The communicative act.
            content: Text or bytes; None for none.
            when_full: As `send`.
            parameters: ACL parameters that differ from what an answer has by itself.

        Returns:
            As `send`.

        Raises:
            DeliveryRefused: Whoever asked was not reached, or the original names nobody.
            MessageTooLarge, UnknownPerformative, InvalidArgument, PreconditionFailed, BusError: As `send`.
        """
        act = Performative.parse(performative) if isinstance(performative, str) else performative
        headers = answer_headers(original)
        answer = original.create_reply(act, content, **parameters)
        return await self.send_message(answer, headers=headers, when_full=when_full)

    async def request(
        self,
        to: Receivers,
        content: str | bytes | None = None,
        *,
        timeout: float | None = None,
        on_receiver_lost: OnReceiverLost | None = None,
        wait_for_provider: bool = False,
        headers: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> Received:
        """Send a `request` and wait for what it leads to (FIPA SC00026): an `inform`, after an `agree` or without.

        An `agree` is not the answer yet. An answer that comes after the time is mail like any other, and goes to a
        handler. Giving up, in time or before, does not take the request back. An agent that got the request and is lost
        before it answered does not let anybody wait to the end: the bus answers with a `failure` in its place.

        Args:
            to: Whom to ask. Of several receivers the first one that answers counts, whatever its answer is.
            content: What is asked.
            timeout: Seconds to wait for the answer, time for finding a lost bus again included; `request_timeout`
                (120 s) by default.
            on_receiver_lost: As `send`.
            wait_for_provider: As `send`.
            headers: Trace context and hops, where this is asked because of a message: what `answer_headers` makes of that one.
                Agents that ask each other in a circle so come to the end of the hops that the bus allows.
            parameters: Further ACL parameters; ``performative`` for another act that expects an answer.

        Returns:
            The answer: an `inform`, or another act that is no ending in failure, such as `propose` after a `cfp`.

        Raises:
            DeliveryRefused: A receiver was not reached.
            RefusedByAgent, FailureFromAgent, NotUnderstoodByAgent: The conversation ended so; `sender` is the AMS of the
                bus where that answered in the place of an agent.
            AnswerTimeout: No answer came in time; it says so when the receiver is not there to answer, which takes up
                to a second more.
            MessageTooLarge: The message is over the limit of the bus.
            UnknownPerformative: ``performative`` is none of FIPA's 22 acts.
            InvalidArgument: A parameter has a value that cannot be sent.
            PreconditionFailed: The agent is not open, was closed meanwhile, or was terminated.
            BusError: The session is over for another reason.
        """
        act = parameters.pop("performative", Performative.REQUEST)
        act = Performative.parse(act) if isinstance(act, str) else act
        seconds = self._limits.request_timeout if timeout is None else timeout
        mark = new_id()
        message = ACLMessage(
            act,
            receivers=identifiers(to),
            content=content,
            **{"conversation_id": mark, "reply_with": mark, **parameters},
        )
        question = Question(message, self._session.platform, waits_for_provider=wait_for_provider)
        self._questions.add(question)
        try:
            async with asyncio.timeout(seconds):
                payload = encoded(
                    message, report=Report.RECEIPT_LAZY, headers=headers, on_receiver_lost=on_receiver_lost
                )
                if wait_for_provider:
                    payload += HOLD_ORDER_FLAG
                await self._sender.hand_over([payload], [message.receivers], question)
                answer = await question.answer
        except TimeoutError:
            # First of all, so that an answer that still comes is mail.
            self._questions.discard(question)
            whom = [one.name for one in message.receivers]
            hint = "no session with the bus is open at present"
            if self.connected:
                hint = await why_no_answer(self.ams, whom[0]) if len(whom) == 1 else ""
            raise AnswerTimeout(", ".join(whom), seconds, hint) from None
        finally:
            self._questions.discard(question)
        ending = ENDINGS.get(answer.performative)
        if ending is not None:
            content_text = answer.content if isinstance(answer.content, str) else ""
            raise ending(answer.sender.name if answer.sender else "", content_text)
        return answer

    def _changed(self, state: LifeCycleState, changed_by: str) -> None:
        if state is self._state:
            return
        self._state = state
        for handler in self._state_handlers:
            try:
                handler(state, changed_by)
            except Exception:
                # It is told in passing; the session goes on.
                _logger.exception("%s: a handler of states failed at %s", self.name, state)
