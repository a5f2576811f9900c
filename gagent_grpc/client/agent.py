"""`Agent`: one agent on a bus, with handlers, sending, and requests that are one awaitable call.

Owns: what an author of an agent uses. Leaves to others: the stream (`client.session`), AMS and DF calls (`client.ams`,
`client.df`), choosing handlers (`client.handlers`), which request an answer is for (`client.questions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import structlog

from gagent_grpc.acl.aid import AgentIdentifier, split_aid
from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState, ServiceDescription
from gagent_grpc.acl.message import ACLMessage, identifiers
from gagent_grpc.acl.performative import EXPECTS_ANSWER, NEVER_ANSWERED, Performative
from gagent_grpc.client.ams import AmsClient
from gagent_grpc.client.df import DfClient
from gagent_grpc.client.handlers import Answer, Handlers
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.lanes import Job
from gagent_grpc.client.message import Receipt, Received
from gagent_grpc.client.outbox import RESEND_FLAG, Sending
from gagent_grpc.client.questions import Question, Questions, refusal
from gagent_grpc.client.session import ClientSession, Introduction
from gagent_grpc.client.transport import Calls, endpoints
from gagent_grpc.codec.acl import acl_to_proto
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Priority, Report
from gagent_grpc.errors import (
    AgentNotRegistered,
    AnswerTimeout,
    BusError,
    DeliveryRefused,
    FailureFromAgent,
    InvalidArgument,
    MessageTooLarge,
    NotUnderstoodByAgent,
    PreconditionFailed,
    RefusedByAgent,
)
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

log = structlog.get_logger(__name__)

Who = str | AgentIdentifier | Iterable[str | AgentIdentifier]
"""One receiver, or several."""
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])
_ENDINGS = {
    Performative.REFUSE: RefusedByAgent,
    Performative.FAILURE: FailureFromAgent,
    Performative.NOT_UNDERSTOOD: NotUnderstoodByAgent,
}


class Agent:
    """One agent. Open while its block lasts, or while `run` does.

    Handlers are registered with `on`; each message goes to the first one that fits. A handler that returns text has it
    sent as `inform` to whoever asked. The message counts as handled when its handler has returned; one that raises is
    tried again after a delay, and given up by the bus after a number of deliveries.

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
            ownership: Who owns it, in words; the AMS shows it.
            ephemeral: The name ends by itself when no session has been open for a while.
            limits: Intervals and bounds; the defaults of `ClientLimits`.

        Raises:
            InvalidName: ``name`` is no valid name.
            InvalidArgument: An endpoint is not HOST:PORT, or both services and a description are given.
        """
        split_aid(name)
        if services and description is not None:
            raise InvalidArgument("services and description are both given; expected one of them", field="description")
        if services:
            description = _description_of(services)
        self._limits = limits or ClientLimits()
        self._handlers = Handlers()
        self._state = LifeCycleState.INITIATED
        self._state_handlers: list[Callable[[LifeCycleState, str], None]] = []
        self._questions = Questions()
        self._session = ClientSession(
            Introduction(name, description, ephemeral, ownership),
            endpoints(bus),
            self._limits,
            self._run,
            self._questions,
            self._take_answer,
            self._changed,
        )
        self._keeper: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self.name = name.partition("@")[0]
        """Local name."""
        calls = Calls(self._session, self._limits.call_timeout)
        self.ams = AmsClient(calls)
        """The agent management system, in this agent's name."""
        self.df = DfClient(calls, remember=self._offers)
        """The directory facilitator, in this agent's name."""

    # ---- life ------------------------------------------------------------------------------------------------------

    @property
    def aid(self) -> str:
        """`name@platform`; the bare name before the first session."""
        return self._session.aid

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
        """
        if self._keeper is not None:
            raise PreconditionFailed(f"{self.name}: the agent is open already")
        self._session.prepare()
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Lock()
        self._keeper = asyncio.create_task(self._session.run())
        try:
            opened = asyncio.create_task(self._session.connected.wait())
            try:
                await asyncio.wait({self._keeper, opened}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
                await asyncio.gather(opened, return_exceptions=True)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self._keeper.done():
            keeper, self._keeper = self._keeper, None
            keeper.result()
        return self

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

        Handlers that run are given ``grace`` seconds to finish; what is left then comes again to the next session. A
        handler cannot wait for its own end: called from one, this returns at once, and the session closes when all
        handlers have returned; `run` and `wait` return then.

        Args:
            deregister: Free the name, too; mail that is left is given up.
            grace: Seconds for running handlers, and again for what was sent to get its receipts.
        """
        session = self._session
        if session.lanes.has_worker(asyncio.current_task()):
            session.lanes.close()
            session.say_bye(deregister=deregister)
            return
        async with self._closing:
            keeper = self._keeper
            if keeper is None:
                return
            try:
                if not keeper.done():
                    await self._leave(keeper, deregister=deregister, grace=grace)
            finally:
                self._keeper = None
                keeper.cancel()
                try:
                    await asyncio.wait({keeper})
                finally:
                    await session.lanes.aclose()
                    if self._threads is not None:
                        # A thread cannot be stopped; what it returns is nobody's any more.
                        self._threads.shutdown(wait=False, cancel_futures=True)
                        self._threads = None

    async def _leave(self, keeper: asyncio.Task[None], *, deregister: bool, grace: float) -> None:
        """End the session politely as far as that can be done in time."""
        session = self._session
        # Anything that has not begun comes again to the next session. Nothing may begin any more either, or an agent
        # with steady mail would never be found idle.
        session.lanes.close()
        session.say_bye(deregister=deregister)
        if session.is_open or (session.sessions_opened and session.unsaid):
            await asyncio.wait({keeper}, timeout=grace)
            if not keeper.done():
                session.say_bye(deregister=deregister, at_once=True)
                await asyncio.wait({keeper}, timeout=grace)

    def pause(self) -> None:
        """Begin no handler any more: mail waits for the next session. What runs goes on, and so does sending."""
        self._session.lanes.close()

    async def offer(self, services: Sequence[str | ServiceDescription]) -> None:
        """Offer these services in the DF in the place of those before, also after a reconnect; none withdraws the entry.

        Raises:
            MissingParameter: A service has no type.
            BusUnreachable: No session is open at present.
        """
        with contextlib.suppress(AgentNotRegistered):
            await self.df.deregister()
        self._offers(None)
        if services:
            await self.df.register(_description_of(services))

    def _offers(self, entry: DFAgentDescription | None) -> None:
        """Remember the DF entry: a reconnect installs it again, in case the bus has forgotten it."""
        self._session.introduction.description = entry

    # ---- receiving -------------------------------------------------------------------------------------------------

    def on(self, performative: str | Performative | None = None, **parameters: Any) -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function for messages with these ACL parameters.

        Args:
            performative: Act that it is for; every act when absent.
            parameters: Values that further parameters must have, such as ``ontology="weather"``.

        Raises:
            UnknownPerformative: None of FIPA's 22 acts.
            InvalidArgument: A parameter that ACL messages do not have.
        """
        if callable(performative):
            raise InvalidArgument("@agent.on without parentheses; expected @agent.on(...)", field="performative")

        def register(handler: HandlerT) -> HandlerT:
            self._handlers.add(performative, parameters, handler)
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
        to: Who,
        performative: str | Performative,
        content: str | bytes | None = None,
        *,
        priority: Priority = Priority.NORMAL,
        transient: bool = False,
        expires_in: float | None = None,
        report: Report = Report.RECEIPT,
        message_id: str | None = None,
        **parameters: Any,
    ) -> list[Receipt]:
        """Send one message and wait for its receipts.

        Args:
            to: Receiver or receivers.
            performative: The communicative act.
            content: Text or bytes; None for none.
            priority: Urgency.
            transient: Need not survive a restart of the bus.
            expires_in: Seconds after which it is of no use.
            report: How to hear of the outcome.
            message_id: Identity; a new UUIDv7 by default. The same one with the same body is DUPLICATE.
            parameters: Further ACL parameters, such as ``conversation_id`` or ``ontology``.

        Returns:
            A receipt for each receiver that is DUPLICATE; empty when all were accepted anew.

        Raises:
            DeliveryRefused: A receiver was not reached; its `receipts` tell of all.
            MessageTooLarge: The message is over the limit of the bus.
            InvalidArgument: A parameter has a value that cannot be sent.
            PreconditionFailed: The agent is not open.
            BusError: The session is over.
        """
        act = Performative.parse(performative) if isinstance(performative, str) else performative
        message = ACLMessage(act, receivers=identifiers(to), content=content, **parameters)
        return await self.send_message(
            message, priority=priority, transient=transient, expires_in=expires_in, report=report, message_id=message_id
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
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sending = Sending(1, done)
        payload = _encoded(message, priority, transient, expires_in, report, message_id, headers, to)
        await self._hand_over([payload], [len(to or message.receivers)], sending)
        await done
        refused = [one for _, one in sending.refusals if not one.delivered]
        if refused:
            raise refusal(refused, message)
        return [one for _, one in sending.refusals]

    async def send_all(self, messages: Iterable[ACLMessage], *, transient: bool = False) -> list[tuple[int, Receipt]]:
        """Send many messages and wait until each has its receipts: the cheap way for a flood.

        Args:
            messages: In the order in which they are to arrive.
            transient: Need not survive a restart of the bus.

        Returns:
            (place among the messages, receipt) of every receiver that is not ACCEPTED.

        Raises:
            MessageTooLarge: One is over the limit of the bus; none of its batch is sent.
            InvalidArgument: One has a value that cannot be sent; none of its batch is sent.
            PreconditionFailed: The agent is not open.
            BusError: The session is over.
        """
        payloads: list[bytes] = []
        receivers: list[int] = []
        waiting: list[tuple[int, Sending, asyncio.Future[None]]] = []
        place = 0

        async def hand_over() -> None:
            nonlocal place
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            sending = Sending(len(payloads), done)
            await self._hand_over(payloads, receivers, sending)
            waiting.append((place, sending, done))
            place += len(payloads)
            payloads.clear()
            receivers.clear()

        for message in messages:
            made = bus_service_pb2.BusMessage(id=new_id())
            if transient:
                made.transient = True
            acl_to_proto(message, made.acl)
            payloads.append(made.SerializeToString())
            receivers.append(len(message.receivers))
            if len(payloads) >= _SEND_ALL_BATCH:
                await hand_over()
                # The writer sends these while the next ones are made.
                await asyncio.sleep(0)
        if payloads:
            await hand_over()
        found: list[tuple[int, Receipt]] = []
        for first, sending, done in waiting:
            await done
            found.extend((first + index, receipt) for index, receipt in sending.refusals)
        return found

    async def reply(
        self,
        original: ACLMessage,
        performative: str | Performative,
        content: str | bytes | None = None,
        **parameters: Any,
    ) -> list[Receipt]:
        """Answer a message: conversation, protocol and language are kept (SC00061); arguments as `send`."""
        act = Performative.parse(performative) if isinstance(performative, str) else performative
        headers = answer_headers(original)
        return await self.send_message(original.create_reply(act, content, **parameters), headers=headers)

    async def request(
        self, to: Who, content: str | bytes | None = None, *, timeout: float | None = None, **parameters: Any
    ) -> Received:
        """Send a `request` and wait for what it leads to (FIPA SC00026): an `inform`, after an `agree` or without.

        Args:
            to: Whom to ask.
            content: What is asked.
            timeout: Seconds to wait for the answer; `request_timeout` (120 s) by default.
            parameters: Further ACL parameters; ``performative`` for another act that expects an answer.

        Raises:
            DeliveryRefused: The receiver was not reached.
            RefusedByAgent, FailureFromAgent, NotUnderstoodByAgent: The conversation ended so.
            AnswerTimeout: No answer came in time.
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
        question = Question(message, self._session.platform)
        self._questions.add(question)
        try:
            async with asyncio.timeout(seconds):
                payload = _encoded(message, report=Report.RECEIPT_LAZY)
                await self._hand_over([payload], [len(message.receivers)], question)
                answer = await question.answer
        except TimeoutError:
            raise AnswerTimeout(", ".join(one.name for one in message.receivers), seconds) from None
        finally:
            self._questions.discard(question)
        ending = _ENDINGS.get(answer.performative)
        if ending is not None:
            content_text = answer.content if isinstance(answer.content, str) else ""
            raise ending(answer.sender.name if answer.sender else "", content_text)
        return answer

    async def _hand_over(self, payloads: Sequence[bytes], receivers: Sequence[int], sending: Sending) -> None:
        """Put encoded messages into the outbox, waiting while it is full."""
        session = self._session
        keeper = self._keeper
        if keeper is None:
            text = "the agent is not open; use it inside `async with agent` or `run`"
            raise PreconditionFailed(f"{self.name}: {text}")
        if asyncio.get_running_loop() is not self._loop:
            text = "the agent lives on another event loop; hand the coroutine to asyncio.run_coroutine_threadsafe"
            raise PreconditionFailed(f"{self.name}: {text}")
        for payload in payloads:
            # A repetition is a little longer, and must fit as well.
            size = len(payload) + len(RESEND_FLAG)
            if session.max_message_bytes and size > session.max_message_bytes:
                raise MessageTooLarge(size, session.max_message_bytes)
        while session.outbox.bytes > self._limits.max_queued_bytes and not keeper.done():
            session.room.clear()
            await session.room.wait()
        if keeper.done():
            error = None if keeper.cancelled() else keeper.exception()
            raise error if isinstance(error, BusError) else PreconditionFailed(f"{self.name}: the session is over")
        session.outbox.add(payloads, receivers, sending)
        session.wake()

    # ---- handling --------------------------------------------------------------------------------------------------

    async def _run(self, job: Job) -> bool:
        """Handle one delivery; return whether its lane may go on."""
        session = self._session
        delivery: Any = job.delivery
        session.begin(job)
        try:
            await self._handle(Received(delivery, session.sender_of(delivery)))
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            # A CancelledError of something that the handler awaited is the handler's failure, and no more than that.
            attempt = max(1, delivery.attempt)
            delay = min(60.0, self._limits.retry_delay * 2 ** min(attempt - 1, 10))
            log.exception("a handler failed", agent=self.name, sender=delivery.sender, attempt=attempt, retry_in=delay)
            return not session.nack(job, delay, _words(error))
        session.ack(job)
        return True

    def _take_answer(self, delivery: bus_service_pb2.Delivery) -> bool:
        """Give an answer to the request that waits for it; return whether one did."""
        acl = delivery.message.acl
        sender = self._session.sender_of(delivery)
        question = self._questions.find(acl.performative, sender.name, acl.in_reply_to, acl.conversation_id)
        if question is None:
            return False
        if acl.performative not in _ACTS:
            # Not an answer that could be read; a handler finds out, and the bus hears of it.
            return False
        if int(acl.performative) != Performative.AGREE:
            # At once, so that the next answer under the same mark is another question's.
            self._questions.discard(question)
            if not question.answer.done():
                question.answer.set_result(Received(delivery, sender))
        return True

    async def _handle(self, message: Received) -> None:
        found = self._handlers.find(message)
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
            await self._answer(message, Performative.INFORM, answer)

    async def _not_for_anybody(self, message: Received) -> None:
        """FIPA demands an answer to what an agent cannot handle (SC00037, not-understood)."""
        if message.performative in EXPECTS_ANSWER:
            text = f"no handler for {message.performative}"
            await self._answer(message, Performative.NOT_UNDERSTOOD, text, user_parameters={"X-automatic": "true"})
        else:
            log.debug("nobody is for a message", agent=self.name, performative=str(message.performative))

    async def _in_thread(self, handler: Callable[[Received], Any], message: Received) -> Any:
        if self._threads is None:
            # Its own, with a thread for each handler that may run: the loop's has six on a small machine, for everybody.
            self._threads = ThreadPoolExecutor(self._limits.concurrency, thread_name_prefix=f"{self.name}-handler")
        context = contextvars.copy_context()
        running = asyncio.get_running_loop().run_in_executor(self._threads, _call, context, handler, message)
        value, error = await running
        if error is not None:
            raise error
        return value

    async def _answer(self, message: Received, act: Performative, content: str | bytes, **parameters: Any) -> None:
        """Answer, unless the act is one that nobody answers; an answer that cannot be delivered is the asker's loss."""
        if message.performative in NEVER_ANSWERED:
            return
        headers = answer_headers(message)
        answer = message.create_reply(act, content, **parameters)
        try:
            await self._send_patiently(answer, headers)
        except (MessageTooLarge, InvalidArgument) as error:
            # The same would come of handling the message once more.
            log.error("an answer cannot be sent", agent=self.name, to=message.sender, error=str(error))  # noqa: TRY400
            text = f"the answer cannot be sent: {error}"
            failure = message.create_reply(Performative.FAILURE, text, user_parameters={"X-automatic": "true"})
            await self._send_patiently(failure, headers)

    async def _send_patiently(self, answer: ACLMessage, headers: Mapping[str, str]) -> None:
        """Send an answer; tried again for a while when its receiver has no room."""
        message_id = new_id()
        for attempt in range(_ANSWER_ATTEMPTS):
            try:
                await self.send_message(answer, headers=headers, message_id=message_id)
            except DeliveryRefused as refused:
                if refused.retry_after is None or attempt == _ANSWER_ATTEMPTS - 1:
                    log.warning(
                        "an answer was not delivered",
                        agent=self.name,
                        receiver=refused.receiver,
                        outcome=refused.outcome,
                    )
                    return
                await asyncio.sleep(min(5.0, refused.retry_after * 2**attempt))
            else:
                return

    def _changed(self, state: LifeCycleState, changed_by: str) -> None:
        if state is self._state:
            return
        self._state = state
        for handler in self._state_handlers:
            try:
                handler(state, changed_by)
            except Exception:
                # It is told in passing; the session goes on.
                log.exception("a handler of states failed", agent=self.name, state=str(state))


_ACTS = frozenset(int(act) for act in Performative)
_SEND_ALL_BATCH = 256
_ANSWER_ATTEMPTS = 6
"""With the bus's own advice of 0.1 s, doubled each time, an answer waits 3 s for room."""


def _encoded(
    message: ACLMessage,
    priority: Priority = Priority.NORMAL,
    transient: bool = False,
    expires_in: float | None = None,
    report: Report = Report.RECEIPT,
    message_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    to: Sequence[str] = (),
) -> bytes:
    """Return a message as it travels."""
    made = bus_service_pb2.BusMessage(id=message_id or new_id())
    if priority is not Priority.NORMAL:
        made.priority = int(priority)  # type: ignore[assignment]  # [assignment]: same numbers by test.
    if transient:
        made.transient = True
    if report is not Report.RECEIPT:
        made.report = int(report)  # type: ignore[assignment]  # [assignment]: same numbers by test.
    if expires_in is not None:
        made.expires_at.FromDatetime(datetime.now(UTC) + timedelta(seconds=expires_in))
    if headers:
        made.headers.update(headers)
    acl_to_proto(message, made.acl)
    made.to.extend(to)
    return made.SerializeToString()


def _call(context: contextvars.Context, handler: Callable[[Received], Any], message: Received) -> tuple[Any, Any]:
    """Call a handler in a thread; return its value and its error, since a future does not carry every error."""
    try:
        return context.run(handler, message), None
    except Exception as error:
        return None, error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _words(error: BaseException) -> str:
    """Say an error in words that can travel, whatever it says of itself."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text[:500].encode("utf-8", "replace").decode()


def _description_of(services: Sequence[str | ServiceDescription]) -> DFAgentDescription:
    offered = tuple(one if isinstance(one, ServiceDescription) else ServiceDescription(type=one) for one in services)
    return DFAgentDescription(services=offered)


def answer_headers(original: ACLMessage) -> dict[str, str]:
    """Return the headers of an answer: the trace goes on, and the count of hops rises by one."""
    headers = dict(original.headers) if isinstance(original, Received) else {}
    hops = headers.get("hops", "0")
    headers["hops"] = str(int(hops) + 1 if hops.isdecimal() and len(hops) < 10 else 1)
    return headers
