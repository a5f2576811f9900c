"""One socket of `/acp`: what a client says goes to the bus as its agent, what comes for the agent goes to the client.

The agent's session with the bus is the socket's own, so that the gateway can do nothing that the caller cannot. Its window is
that of the socket: a client that reads slowly has so many deliveries on their way to it, and everything else waits in its
mailbox. A delivery is acknowledged when the client says so (``acks=client``), or when a ping that was sent after it has been
answered: then the peer's WebSocket has it. What is neither comes again to the next socket.

Owns: the frames of one socket, its life and its end. Leaves to others: who may open it (`gateway.admission`), the connection
(`gateway.wire`), the session with the bus (`client.agent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from gagent_grpc.acp.message import AUTOMATIC_ENTRY, ACPMessage, ACPMessageType, ACPMetadata, error_content
from gagent_grpc.client.acp.message import ReceivedACP
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.message import Receipt
from gagent_grpc.client.session import SOFTWARE
from gagent_grpc.config import GatewayLimits
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import (
    BusError,
    DeliveryRefused,
    InvalidArgument,
    MessageTooLarge,
    SessionSuperseded,
    Unavailable,
)
from gagent_grpc.gateway import frames
from gagent_grpc.gateway.admission import Admission
from gagent_grpc.gateway.wire import Wire

_logger = logging.getLogger(__name__)

_BAD_IN_A_ROW = 100
"""Frames that say nothing known, without one in between that does, after which a socket is closed."""
_FRAMES_IN_A_TURN = 16
"""Frames of one socket after which the others have their turn."""
_CLOSE_TIMEOUT = 2.0
"""Seconds for the last words of a socket, and again for those of its session."""
_LINGER = 10.0
"""Seconds after which a connection is gone that was closed while its peer reads nothing."""


class CloseCode(enum.IntEnum):
    """Why the gateway closes a socket (RFC 6455 §7.4); 4000 and above are its own."""

    UNSUPPORTED_DATA = 1003
    """A binary frame."""
    POLICY_VIOLATION = 1008
    """Nothing but frames that say nothing known."""
    INTERNAL_ERROR = 1011
    """The peer answers no ping any more, or the gateway failed."""
    SERVICE_RESTART = 1012
    """The bus shuts down; it is to be looked for again after a while."""
    SUPERSEDED = 4001
    """A newer socket or session of the agent took over; this one must not connect again by itself."""
    TERMINATED = 4002
    """The agent was ended by the AMS."""
    TOKEN_REVOKED = 4003
    """The token is not valid any more."""


class _End(NamedTuple):
    code: CloseCode | None
    """None where the peer is gone."""
    reason: str


@dataclass(eq=False, slots=True)
class _Delivery:
    message: ReceivedACP
    take: Callable[[], None]
    give_back: Callable[[], None]


class Socket:
    """One socket, from its acceptance to its end."""

    def __init__(self, websocket: WebSocket, admission: Admission, agent: Agent, limits: GatewayLimits) -> None:
        """Serve ``agent``, which is not open yet, to whoever is at the other end."""
        self.admission = admission
        self.agent = agent
        self.closed = asyncio.Event()
        """Set when the session with the bus is over, too; by whoever made the socket."""
        self._websocket = websocket
        self._wire = Wire.of(websocket.scope)
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._end: _End | None = None
        self._ended = asyncio.Event()
        self._is_dead = False
        self._writing = asyncio.Lock()
        self._waiting: deque[_Delivery] = deque()
        """Deliveries that are not written yet; bounded by the window of the session."""
        self._unsettled: deque[_Delivery] = deque()
        """Those that are, oldest first."""
        self._came = asyncio.Event()
        self._proof = 0
        """How many of them the answer to the ping that is on its way proves to have arrived."""
        self._ping: bytes | None = None
        """What is in that ping; None when none is on its way."""
        self._pings = 0
        self._answered = asyncio.Event()
        self._ponged = asyncio.Event()
        self._frames = 0
        self._bad = 0
        self._sends: set[asyncio.Task[None]] = set()
        self._sending = self._sending_bytes = 0
        self._sent = asyncio.Event()
        self._busy_at = 0.0
        """When the gateway itself kept the client from being heard last."""
        self._watches: dict[tuple[str, str], asyncio.Task[None]] = {}
        agent._acp.attach({}, self._claim)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Accept the socket and serve it until its end, which is told to the peer where it is there."""
        limits = self._limits
        self._wire.on_pong = self._on_pong
        try:
            await self._websocket.accept(subprotocol=self.admission.subprotocol)
        except OSError:
            return
        welcome = frames.welcome(
            self.agent.aid,
            acks=self.admission.acks,
            window=self.admission.window,
            heartbeat=limits.ping_interval,
            max_bytes=limits.max_frame_bytes,
            max_message_bytes=self.agent._session.max_message_bytes,
            software=SOFTWARE,
        )
        try:
            await self._write(welcome)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one) for one in (self._pump(), self._beat(), self._follow_session())]
                reader = group.create_task(self._read(group))
                await self._ended.wait()
                reader.cancel()
                if self._end is not None and self._end.code is CloseCode.SERVICE_RESTART:
                    await self._last_receipts()
                for task in [*tasks, *self._watches.values(), *self._sends]:
                    task.cancel()
        except* (OSError, WebSocketDisconnect, WebSocketDisconnected):
            self.end(None)
        except* Exception as failures:
            _logger.exception("%s: the socket failed", self.agent.name, exc_info=failures)
            self.end(CloseCode.INTERNAL_ERROR, "the gateway failed")
        assert self._end is not None
        code, reason = self._end
        _logger.info("%s: socket closed: %s", self.agent.name, reason or "the client is gone")
        try:
            if code is not None:
                await self._close(code, reason)
        finally:
            self._wire.give_up(_LINGER)

    def end(self, code: CloseCode | None, reason: str = "") -> None:
        """Have the socket end; the first reason counts."""
        if self._end is None:
            self._end = _End(code, reason)
            self._ended.set()

    @property
    def ending(self) -> bool:
        """Whether it is on its way to the end."""
        return self._end is not None

    async def leave(self) -> None:
        """Give back what is not acknowledged, and close the session politely: name and mail stay."""
        # Nothing is begun any more, or what is given back would come here once more.
        self.agent.pause()
        for delivery in [*self._unsettled, *self._waiting]:
            delivery.give_back()
        self._unsettled.clear()
        self._waiting.clear()
        await self.agent.aclose(grace=_CLOSE_TIMEOUT)

    async def is_alive(self, within: float) -> bool:
        """Whether the peer is heard of within ``within`` seconds, when it is asked."""
        asked_at = self._loop.time()
        self._ponged.clear()
        self._wire.ping(b"alive?")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._ponged.wait()
        return self._wire.heard_at > asked_at and not self.ending

    async def _close(self, code: CloseCode, reason: str) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._websocket.close(code, reason)
        except TimeoutError:
            # It does not read what was written before.
            self._wire.abort()
        except (OSError, RuntimeError, WebSocketDisconnect):
            # The peer was quicker.
            return
        if self._is_dead:
            # Nobody is there to answer it.
            self._wire.abort()

    async def _follow_session(self) -> None:
        """End the socket with the session of its agent."""
        try:
            await self.agent.wait()
        except SessionSuperseded as error:
            self.end(CloseCode.SUPERSEDED, _short(error))
        except Unavailable as error:
            self.end(CloseCode.SERVICE_RESTART, _short(error))
        except BusError as error:
            is_final = error.status in {"FAILED_PRECONDITION", "ALREADY_EXISTS"}
            self.end(CloseCode.TERMINATED if is_final else CloseCode.INTERNAL_ERROR, _short(error))
        else:
            self.end(CloseCode.SERVICE_RESTART, "the session is over")

    # ---- life of the peer ------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Ping the peer now and then; one that is not heard of after it is gone."""
        while True:
            await asyncio.sleep(self._limits.ping_interval)
            asked_at = self._loop.time()
            self._answered.clear()
            self._prove()
            try:
                async with asyncio.timeout(self._limits.ping_timeout):
                    await self._answered.wait()
            except TimeoutError:
                # What it says may wait behind frames that the gateway has not taken yet.
                if self._wire.heard_at <= asked_at and self._busy_at <= asked_at and not self._is_full:
                    self._is_dead = True
                    self.end(CloseCode.INTERNAL_ERROR, "no answer to a ping")
                    return

    def _prove(self) -> None:
        """Send a ping, unless one is on its way: its answer proves that everything written before has arrived."""
        if self._ping is None:
            self._pings += 1
            self._ping = self._pings.to_bytes(8)
            self._proof = len(self._unsettled)
            self._wire.ping(self._ping)

    def _on_pong(self, payload: bytes) -> None:
        self._ponged.set()
        if payload != self._ping:
            return
        self._ping = None
        self._answered.set()
        if self.admission.acks == "client" or self.ending:
            return
        for _ in range(self._proof):
            self._unsettled.popleft().take()
        if self._unsettled:
            self._prove()

    # ---- to the client ---------------------------------------------------------------------------------------------

    def _claim(self, message: ReceivedACP, take: Callable[[], None], give_back: Callable[[], None]) -> bool:
        self._waiting.append(_Delivery(message, take, give_back))
        self._came.set()
        return True

    async def _pump(self) -> None:
        """Write deliveries in their order."""
        while True:
            while not self._waiting:
                self._came.clear()
                await self._came.wait()
            text = _json_of(self._waiting[0].message)
            if text is None:
                await self._cannot_say(self._waiting.popleft())
                continue
            async with self._writing:
                # Before it is written: the client may acknowledge it before this goes on.
                self._unsettled.append(self._waiting.popleft())
                await self._websocket.send_text(text)
            if self.admission.acks == "socket":
                self._prove()

    async def _cannot_say(self, delivery: _Delivery) -> None:
        """Tell the sender of a message that it cannot be handed on, rather than have it come again for ever."""
        message = delivery.message
        _logger.warning("%s: a message of %s cannot be said in JSON", self.agent.name, message.source)
        if message.type not in frames.NEVER_ANSWERED:
            content = error_content(frames.INVALID_CONTENT, "the message is nested too deeply", message.task_id)
            metadata = ACPMetadata(entries={AUTOMATIC_ENTRY: "true"})
            with contextlib.suppress(DeliveryRefused):
                await self.agent.reply_acp(message, ACPMessageType.ERROR, content, metadata=metadata)
        delivery.take()

    async def _write(self, text: str) -> None:
        async with self._writing:
            if self._end is None or self._end.code is not None:
                await self._websocket.send_text(text)

    # ---- from the client -------------------------------------------------------------------------------------------

    async def _read(self, group: asyncio.TaskGroup) -> None:
        for number in itertools.count(1):
            if number % _FRAMES_IN_A_TURN == 0:
                # What has come already is read without a wait, and thousands of frames may have come.
                await asyncio.sleep(0)
            told = await self._websocket.receive()
            if told["type"] == "websocket.disconnect":
                self.end(None)
                return
            text = told.get("text")
            if text is None:
                self.end(CloseCode.UNSUPPORTED_DATA, "binary frames are not taken; send JSON as text")
                return
            try:
                said = frames.read_frame(text)
            except frames.BadFrame as bad:
                await self._refuse(bad)
                continue
            self._bad = 0
            if isinstance(said, ACPMessage):
                await self._take(group, said, len(text))
            elif isinstance(said, frames.Ack):
                self._acknowledge(said)
            elif isinstance(said, frames.Watch):
                await self._begin_watch(group, said)
            else:
                await self._end_watch(said)

    async def _refuse(self, bad: frames.BadFrame) -> None:
        """Say what is wrong with a frame; the socket stays open, unless there is nothing but such frames."""
        self._bad += 1
        if bad.control is not None:
            await self._write(frames.control_refused(bad))
        else:
            self._frames += 1
            number = self._frames
            if bad.answered:
                error = frames.refused(self.agent.aid, bad.code, bad.text, in_reply_to=bad.message_id)
                await self._write(self.agent.filled(error).to_json())
            told = Receipt(Outcome.INVALID, "", bad.text)
            await self._write(frames.text_of(frames.receipt(number, bad.message_id, "INVALID", told)))
        if self._bad >= _BAD_IN_A_ROW:
            self.end(CloseCode.POLICY_VIOLATION, f"{_BAD_IN_A_ROW} frames in a row that say nothing known here")

    @property
    def _is_full(self) -> bool:
        limits = self._limits
        return self._sending >= limits.send_window_messages or self._sending_bytes >= limits.send_window_bytes

    async def _take(self, group: asyncio.TaskGroup, message: ACPMessage, size: int) -> None:
        """Take a message; while many wait for their receipts, nothing is read."""
        self._frames += 1
        number = self._frames
        while self._is_full:
            self._sent.clear()
            await self._sent.wait()
            self._busy_at = self._loop.time()
        self._sending += 1
        self._sending_bytes += size
        task = group.create_task(self._forward(number, message))
        self._sends.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._sends.discard(task)
            self._sending -= 1
            self._sending_bytes -= size
            self._sent.set()

        task.add_done_callback(done)

    async def _forward(self, number: int, message: ACPMessage) -> None:
        """Send a message as the agent, and tell its outcome. Begun in order, messages stay in order."""
        made = message
        sizes: dict[str, object] = {}
        try:
            if message.type is ACPMessageType.HEARTBEAT and message.target is None:
                # It is for the socket.
                told: list[Receipt] = []
            else:
                made = self.agent.filled(message)
                is_beat = message.type is ACPMessageType.HEARTBEAT
                told = await self.agent.send_acp(made, transient=is_beat)
        except DeliveryRefused as refused:
            found = frames.worst([one for one in refused.receipts if isinstance(one, Receipt)])
            told = [found or Receipt(Outcome[refused.outcome], refused.receiver, refused.detail, refused.retry_after)]
        except MessageTooLarge as error:
            told = [Receipt(Outcome.TOO_LARGE, "", str(error))]
            sizes = {"size_bytes": error.size_bytes, "limit_bytes": error.limit_bytes}
        except InvalidArgument as error:
            told = [Receipt(Outcome.INVALID, "", str(error), field=error.field)]
        except BusError as error:
            if self.agent._session.over is not None:
                # Whether it was taken is not known; the client sends it again under the same id.
                return
            told = [Receipt(Outcome.UNREACHABLE, "", str(error), error.retry_after)]
        await self._tell(number, made, frames.worst(told), sizes)

    async def _tell(self, number: int, message: ACPMessage, told: Receipt | None, sizes: Mapping[str, object]) -> None:
        outcome = told.outcome if told is not None else Outcome.ACCEPTED
        message_id, task_id = _encodable(message.id), _encodable(message.task_id)
        is_order = message.type is ACPMessageType.DELEGATE
        receipt = frames.receipt(number, message_id, outcome.name, told, task_id=task_id if is_order else None, **sizes)
        if told is not None and not outcome.delivered and message.type not in frames.NEVER_ANSWERED:
            text = f"{told.receiver}: {told.detail}" if told.receiver and told.detail else told.detail
            error = frames.refused(
                self.agent.aid,
                outcome.name,
                text or outcome.name,
                in_reply_to=message_id,
                task_id=task_id,
            )
            # First, so that who reads receipts knows by then that it is about the same.
            await self._write(self.agent.filled(error).to_json())
        await self._write(frames.text_of(receipt))

    async def _last_receipts(self) -> None:
        """Give what is on its way to the bus a moment to come back, before the farewell."""
        if self._sends:
            await asyncio.wait(self._sends, timeout=_CLOSE_TIMEOUT)

    def _acknowledge(self, ack: frames.Ack) -> None:
        """Settle the oldest message of that id; one that waits no more was acknowledged before."""
        if self.admission.acks != "client":
            return
        for delivery in self._unsettled:
            message = delivery.message
            if message.id == ack.id and ack.source in {None, message.source}:
                self._unsettled.remove(delivery)
                delivery.take()
                return

    # ---- watching --------------------------------------------------------------------------------------------------

    async def _begin_watch(self, group: asyncio.TaskGroup, wish: frames.Watch) -> None:
        key = (wish.delegator, wish.task_id)
        before = self._watches.pop(key, None)
        if before is not None:
            # From another event on. Waited for, so that no client begins more of them than end.
            before.cancel()
            await asyncio.wait({before})
        if len(self._watches) >= self._limits.max_watches:
            text = f"watch: {self._limits.max_watches} tasks are watched already; expected an unwatch before"
            await self._write(frames.control_refused(frames.BadFrame(text, control="watch")))
            return
        self._watches[key] = group.create_task(self._watch(wish, set(self._sends)))

    async def _end_watch(self, wish: frames.Unwatch) -> None:
        task = self._watches.pop((wish.delegator, wish.task_id), None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._write(frames.watch_ended(wish, None))

    async def _watch(self, wish: frames.Watch, before: set[asyncio.Task[None]]) -> None:
        """Tell a task as it is, then what happens to it, until it has ended; once what was said ``before`` has its outcome."""
        task = self.agent.task(wish.task_id, wish.delegator or None)
        try:
            if before:
                # The task may be one that is being delegated.
                await asyncio.wait(before)
            now = await task.get()
            await self._write(frames.task_event(wish, now))
            after = now.last_event if wish.after is None else wish.after
            async with contextlib.aclosing(task.events(after=after)) as events:
                async for event in events:
                    await self._write(frames.task_event(wish, event))
            await self._write(frames.watch_ended(wish, await task.get()))
        except BusError as error:
            if self.agent._session.over is None:
                await self._write(frames.watch_failed(wish, error))
        finally:
            key = (wish.delegator, wish.task_id)
            if self._watches.get(key) is asyncio.current_task():
                del self._watches[key]


def _json_of(message: ReceivedACP) -> str | None:
    """Return the JSON form of a message; None for one that is nested too deeply."""
    try:
        return message.to_json()
    except InvalidArgument:
        # Half a character, which its sender has escaped, and so can this.
        with contextlib.suppress(RecursionError):
            return json.dumps(message.to_dict(), allow_nan=False, separators=(",", ":"))
    return None


def _encodable(text: str | None) -> str | None:
    """Return a text that JSON can say; None for another one, which the bus has refused."""
    try:
        if text is not None:
            text.encode()
    except UnicodeEncodeError:
        return None
    return text


def _short(error: BusError) -> str:
    """Return what an error says, in as many bytes as a close frame takes (RFC 6455 §5.5: 125 with the code)."""
    return str(error).encode()[:120].decode("utf-8", "ignore")
