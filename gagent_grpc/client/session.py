"""The session of one agent as the client keeps it: one stream at a time, found again when it is lost.

Owns: connecting and reconnecting, the frames, and heartbeats. Frames fill with whatever waits while the previous write
is on its way, so a lone message never waits and a flood shares its cost. Leaves to others: what is sent
(`client.outbox`), what came and is to be settled (`client.deliveries`), what an agent is (`client.agent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from google.protobuf.message import DecodeError

from gagent_grpc import __version__
from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState
from gagent_grpc.client.deliveries import Deliveries
from gagent_grpc.client.message import Received, receipt_from_proto
from gagent_grpc.client.outbox import Outbox
from gagent_grpc.client.questions import Questions
from gagent_grpc.client.topics import TopicChanges, tell_gap
from gagent_grpc.client.transport import error_from_status, is_cancelled, open_channel
from gagent_grpc.codec.frame_size import FrameSize, patience
from gagent_grpc.codec.management import df_to_proto, state_from_proto
from gagent_grpc.codec.times import seconds_of
from gagent_grpc.config import PROTOCOL_VERSION, ClientLimits
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusError,
    BusUnreachable,
    InvalidArgument,
    PreconditionFailed,
    ProtocolViolation,
    SessionSuperseded,
    Unauthenticated,
    Unauthorised,
)
from gagent_grpc.pb.gagent.internal.v1 import bus_frames_pb2 as twin
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

if TYPE_CHECKING:
    Stream = grpc.aio.StreamStreamCall[bytes, bytes]

_logger = logging.getLogger(__name__)

SOFTWARE = f"gagent-python/{__version__}"
_METHOD = "/gagent.v1.BusService/OpenSession"
_FINAL = (AgentAlreadyRegistered, Unauthorised, Unauthenticated, InvalidArgument, PreconditionFailed)
"""Errors after which trying again by itself would be wrong or in vain."""
_LOST = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises when a call is over; its status says why."""
_MISSED_HEARTBEATS = 3
_HEARTBEAT_INTERVAL = 15.0
"""Seconds, where the bus names none."""
_BATCH_MESSAGES = 1024


@dataclass(slots=True)
class Introduction:
    """What the agent says when it opens a session."""

    name: str
    description: DFAgentDescription | None
    """DF entry to install; None leaves the entry as it is."""
    ephemeral: bool
    ownership: str
    topics: tuple[str, ...] = ()
    """Topics to listen to from the start."""


class ClientSession:
    """Keeps the session of one agent open until it is closed, superseded or refused."""

    def __init__(
        self,
        introduction: Introduction,
        endpoints: list[str],
        limits: ClientLimits,
        questions: Questions,
        *,
        handle: Callable[[Received], Awaitable[None]],
        state_changed: Callable[[LifeCycleState, str], None],
        granted: Callable[[float | None], None] = lambda seconds: None,
    ) -> None:
        """Make a session; nothing is connected before `run`.

        Args:
            introduction: What the hello says.
            endpoints: Where a bus may be, each tried in turn.
            limits: Intervals and bounds.
            questions: Requests that wait for an answer.
            handle: Handles one message; what it raises has the message delivered again.
            state_changed: Hears of each life-cycle state and who changed it; "" when nobody is named.
            granted: Hears with each session of the lease of the DF entry in seconds; None for no end, or no entry.
        """
        self.introduction = introduction
        self.outbox = Outbox()
        self.topics = TopicChanges(introduction.topics)
        self.gap_handlers: list[Callable[[str, int], None]] = []
        self.connection_handlers: list[Callable[[bool], None]] = []
        """Hear when a stream is open, and when it is lost or at its end; they must not raise."""
        self.deliveries = Deliveries(introduction.name, handle, questions, limits)
        self.endpoint = endpoints[0]
        self.token = ""
        self.aid = introduction.name
        """`name@platform`, once the session is open."""
        self.platform = ""
        self.max_message_bytes = 0
        self._endpoints = endpoints
        self._limits = limits
        self._questions = questions
        self._state_changed = state_changed
        self._granted = granted
        self._window_messages = 0
        self._window_bytes = 0
        self._heartbeat_interval = _HEARTBEAT_INTERVAL
        self.over: BusError | None = None
        """Why there is no session and none is looked for."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the session lives."""
        self.prepare()
        text = "the agent is not open; use it inside `async with agent` or `run`"
        self.over = PreconditionFailed(f"{introduction.name}: {text}")

    def prepare(self) -> None:
        """Make ready for `run`, the first time or again after an end, on whatever loop runs now."""
        with contextlib.suppress(RuntimeError):
            # None runs where an agent is made.
            self.loop = asyncio.get_running_loop()
        self.connected = asyncio.Event()
        self.gate = asyncio.Lock()
        """Held by whoever hands messages over."""
        self.room = asyncio.Event()
        """Set while the outbox takes more."""
        self.room.set()
        self.sessions_opened = 0
        self._channel: grpc.aio.Channel | None = None
        self._wake = asyncio.Event()
        self._leaving = asyncio.Event()
        self._deregister = False
        self._at_once = False
        self._bye_said = False
        self._draining = False
        self._reconnect_after = 0.0
        self._heartbeat_due = False
        self._heard = False
        self.over = None
        self.deliveries.prepare(self._wake)

    # ---- the life of the session -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hold the session open; return after a polite end.

        Raises:
            BusUnreachable: No bus answered within the connect time-out, before the first session.
            AgentAlreadyRegistered: Somebody else holds the name.
            SessionSuperseded: A newer session of the agent took over.
            BusError: The bus refused the session for another reason that a retry does not mend.
        """
        failure: BusError | None = None
        try:
            await self._hold()
        except BusError as error:
            failure = error
            raise
        except Exception as bug:
            # Whoever only sends never asks how the session ended.
            _logger.exception("%s: the session failed", self.introduction.name)
            failure = BusError(f"the session failed: {type(bug).__name__}")
            raise
        finally:
            self.over = failure or PreconditionFailed(f"{self.introduction.name}: the agent is closed")
            self.connected.set()
            self.outbox.fail(self.over)
            self._questions.fail(self.over)
            self.topics.fail(self.over)
            self.room.set()

    async def _hold(self) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._limits.connect_timeout
        attempt = 0
        while True:
            opened = self.sessions_opened
            within = self._limits.connect_timeout
            if not opened:
                # So that each endpoint gets its turn before the time is over.
                within = min(within / len(self._endpoints), max(0.1, give_up_at - loop.time()))
            try:
                await self._connect(self._endpoints[attempt % len(self._endpoints)], within)
                if self._bye_said:
                    return
            except BusError as error:
                if isinstance(error, _FINAL):
                    raise
                _logger.info("%s: connection lost: %s", self.introduction.name, error)
                if self.sessions_opened == 0 and loop.time() >= give_up_at:
                    if len(self._endpoints) > 1 and isinstance(error, BusUnreachable):
                        raise BusUnreachable(",".join(self._endpoints)) from error
                    raise
                # The bus may not have heard it.
                self._bye_said = False
            if self._leaving.is_set() and not self.unsaid:
                return
            attempt = 0 if self.sessions_opened > opened else attempt + 1
            await self._pause(attempt)

    @property
    def is_open(self) -> bool:
        """Whether a stream is open at present."""
        return self._channel is not None

    @property
    def unsaid(self) -> bool:
        """Whether something is left to say to the bus that is worth another connection."""
        if len(self.outbox):
            return True
        in_hand = self.deliveries.in_progress and not self._at_once
        return not self._bye_said and (in_hand or self.deliveries.unsaid or self._deregister)

    async def reach(self) -> grpc.aio.Channel:
        """Return the channel of the open session; wait for one while the connection is being found again.

        Raises:
            BusError: The session is over.
        """
        while self._channel is None:
            if self.over is not None:
                raise self.over
            await self.connected.wait()
        return self._channel

    async def _pause(self, attempt: int) -> None:
        """Wait before the next attempt: longer each time, and each agent on its own, so that no stampede forms."""
        bound = min(self._limits.max_backoff, self._limits.initial_backoff * 2**attempt)
        if self.sessions_opened == 0:
            # Nobody else starts in this very moment; a newcomer who has just started the bus should not wait.
            bound = min(bound, 0.2)
        delay = self._reconnect_after + random.random() * bound  # noqa: S311  # Jitter, not a secret.
        self._reconnect_after = 0.0
        if self._leaving.is_set():
            await asyncio.sleep(delay)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._leaving.wait()

    async def _connect(self, endpoint: str, within: float) -> None:
        """Open one stream, within ``within`` seconds, and serve it until it ends well.

        Raises:
            BusError: It did not open, or ended otherwise.
        """
        self.endpoint = endpoint
        channel = open_channel(endpoint)
        call: Stream | None = None
        try:
            method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(_METHOD)
            call = method()
            try:
                async with asyncio.timeout(within):
                    data = await self._begin(call)
            except TimeoutError as error:
                raise BusUnreachable(endpoint, "no answer in time") from error
            frame = _decode(data)
            if not frame.HasField("welcome"):
                raise ProtocolViolation("the bus did not begin with a welcome; is it of another version?")
            self._welcome(frame.welcome)
            self._channel = channel
            self.connected.set()
            for hears in self.connection_handlers:
                hears(True)
            await self._serve(call)
        finally:
            self.connected.clear()
            was_open, self._channel = self._channel is not None, None
            if was_open:
                for hears in self.connection_handlers:
                    hears(False)
            self.deliveries.lanes.forget_waiting()
            if call is not None:
                call.cancel()
            await channel.close()

    async def _begin(self, call: Stream) -> bytes:
        """Say hello; return the frame that comes back.

        Raises:
            BusError: The bus ended the stream instead.
        """
        try:
            await call.write(self._hello())
            data = await _read_frame(call)
        except _LOST as error:
            raise await self._status(call) from error
        if data is None:
            raise await self._status(call)
        return data

    async def _serve(self, call: Stream) -> None:
        """Read and write until the bus ends the stream.

        Raises:
            BusError: It did not end well.
        """
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(self._write(call)), group.create_task(self._watch())]
                await self._read(call)
                # Before the writer is cancelled, which would end a call that has no status yet.
                code = await call.code()
                for other in others:
                    other.cancel()
        except* Exception as raised:
            failure = _reason(raised.exceptions)
        if failure is not None:
            raise failure
        if code is not grpc.StatusCode.OK:
            raise await self._status(call)

    async def _status(self, call: Stream) -> BusError:
        """Return the error that the status of an ended call stands for."""
        code, details = await call.code(), await call.details()
        if code is grpc.StatusCode.OK:
            return BusUnreachable(self.endpoint, "the stream ended before it was open")
        trailing, initial = await call.trailing_metadata(), await call.initial_metadata()
        return error_from_status(grpc.aio.AioRpcError(code, initial, trailing, details), self.endpoint)

    # ---- opening ---------------------------------------------------------------------------------------------------

    def _hello(self) -> bytes:
        me = self.introduction
        hello = twin.Hello(
            protocol_version=PROTOCOL_VERSION,
            agent=me.name,
            resume_token=self.token,
            window=twin.Window(messages=self._limits.window_messages, bytes=self._limits.window_bytes),
            held_sequences=self.deliveries.held(),
            topics=self.topics.wanted,
            ephemeral=me.ephemeral,
            ownership=me.ownership,
            client_software=SOFTWARE,
        )
        if me.description is not None:
            hello.description.CopyFrom(df_to_proto(me.description))
        return twin.OpenSessionRequest(hello=hello).SerializeToString()

    def _welcome(self, welcome: bus_service_pb2.Welcome) -> None:
        self.aid = welcome.agent
        self.platform = welcome.platform
        self.token = welcome.resume_token
        self.max_message_bytes = welcome.max_message_bytes
        self._window_messages = max(1, welcome.send_window.messages)
        self._window_bytes = welcome.send_window.bytes
        self._heartbeat_interval = seconds_of(welcome.heartbeat_interval) or _HEARTBEAT_INTERVAL
        self.deliveries.reconnected(frozenset(welcome.held_sequences), self.platform)
        self.outbox.reconnected(self.platform)
        self.topics.reconnected()
        self._make_room()
        self._draining = False
        self._bye_said = False
        self._heard = True
        self.sessions_opened += 1
        self._wake.set()
        has_lease = welcome.description.HasField("lease_seconds")
        self._granted(welcome.description.lease_seconds if has_lease else None)
        state = state_from_proto(welcome.state)
        if state is not None:
            self._state_changed(state, "")

    # ---- writing ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    async def _watch(self) -> None:
        """Send a heartbeat at each interval, and hear whether the bus lives. Beside the writer, which may be stuck.

        Raises:
            BusUnreachable: Nothing was heard for three heartbeats.
        """
        missed = 0
        while True:
            await asyncio.sleep(self._heartbeat_interval)
            # Counted in looks and not in seconds: a loop that stood still has not heard anybody, whoever spoke.
            missed = 0 if self._heard else missed + 1
            if missed == _MISSED_HEARTBEATS:
                raise BusUnreachable(self.endpoint, "nothing heard for three heartbeats")
            self._heard = False
            self._heartbeat_due = True
            self._wake.set()

    async def _write(self, call: Stream) -> None:
        """Write whatever waits, frame after frame. The only writer of the stream.

        Raises:
            BusUnreachable: A write did not get through.
        """
        loop = asyncio.get_running_loop()
        size = FrameSize()
        while True:
            # Also when what waits for room at a receiver is due once more.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self.outbox.due):
                    await self._wake.wait()
            self._wake.clear()
            try:
                while (frame := self._next_frame(size.bytes)) is not None:
                    began = loop.time()
                    async with asyncio.timeout(patience(self._limits.write_timeout, len(frame))):
                        await call.write(frame)
                    size.wrote(loop.time() - began)
                if self._bye_said or (self._draining and not self.deliveries.in_progress):
                    await call.done_writing()
                    return
            except TimeoutError as error:
                raise BusUnreachable(self.endpoint, "a write did not get through") from error
            except _LOST:
                # The stream is over, and the reader hears why.
                return

    def _next_frame(self, batch_bytes: int) -> bytes | None:
        if self._heartbeat_due:
            self._heartbeat_due = False
            return _HEARTBEAT
        settle = self.deliveries.settlements()
        if settle is not None:
            return twin.OpenSessionRequest(settle=settle).SerializeToString()
        change = self.topics.frame()
        if change is not None:
            return change
        now = asyncio.get_running_loop().time()
        if self.outbox.waiting or self.outbox.due <= now:
            batch = self.outbox.take(
                window_messages=self._window_messages,
                window_bytes=self._window_bytes,
                batch_bytes=batch_bytes,
                batch_messages=_BATCH_MESSAGES,
                now=now,
            )
            if batch:
                return twin.OpenSessionRequest(send=twin.SendBatch(messages=batch)).SerializeToString()
        elif self._leaving.is_set() and not self._bye_said and (self._at_once or not self.deliveries.in_progress):
            # The bus answers whatever it has read before it ends the stream.
            self._bye_said = True
            return twin.OpenSessionRequest(bye=twin.Bye(deregister=self._deregister)).SerializeToString()
        return None

    def say_bye(self, *, deregister: bool, at_once: bool = False) -> None:
        """End politely once no handler runs and everything is sent; `run` returns when all of it has its receipt.

        With ``at_once`` handlers may still run; what they have in hand comes again to the next session.
        """
        self._deregister = deregister
        self._at_once = at_once
        self._leaving.set()
        text = "the agent is closed, and a receiver still had no room"
        self.outbox.stop_waiting(PreconditionFailed(f"{self.introduction.name}: {text}"))
        self._make_room()
        self._wake.set()

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def _read(self, call: Stream) -> None:
        """Take frames until the bus ends the stream.

        Raises:
            SessionSuperseded, PreconditionFailed: The bus says that this session is over for good.
        """
        while True:
            try:
                data = await _read_frame(call)
            except _LOST:
                data = None
            if data is None:
                return
            self._heard = True
            frame = _decode(data)
            kind = frame.WhichOneof("frame")
            if kind == "deliver":
                if not (self._draining or self._bye_said):
                    self.deliveries.add(frame.deliver)
            elif kind == "receipts":
                self._receipts(frame.receipts)
            elif kind == "heartbeat":
                self._heartbeat_due = True
                self._wake.set()
            elif kind == "returned":
                self.deliveries.lanes.returned(frozenset(frame.returned.sequences))
            elif kind == "state":
                state = state_from_proto(frame.state.state)
                if state is not None:
                    self._state_changed(state, frame.state.changed_by)
            elif kind == "subscribed":
                self.topics.answered(frame.subscribed)
            elif kind == "notice":
                self._notice(frame.notice)

    def _receipts(self, batch: bus_service_pb2.ReceiptBatch) -> None:
        exceptions = [(one.number, receipt_from_proto(one)) for one in batch.exceptions]
        outbox = self.outbox
        outbox.receipts(batch.accepted_through, exceptions, now=asyncio.get_running_loop().time())
        self._make_room()
        if outbox.waiting or outbox.backlogged or self._leaving.is_set():
            self._wake.set()

    def _make_room(self) -> None:
        if self.outbox.bytes <= self._limits.max_queued_bytes:
            self.room.set()

    def _notice(self, notice: bus_service_pb2.Notice) -> None:
        if notice.kind == bus_service_pb2.NOTICE_KIND_DRAINING:
            # Half-closing tells the bus that all was said; what is in a handler is held over to the next session.
            self._reconnect_after = seconds_of(notice.reconnect_after)
            self._draining = True
            self.deliveries.lanes.forget_waiting()
            self._wake.set()
            _logger.info("%s: the bus is shutting down", self.introduction.name)
        elif notice.kind == bus_service_pb2.NOTICE_KIND_SUPERSEDED:
            # Said by the status, too, but that one may be lost with the connection.
            raise SessionSuperseded(notice.text)
        elif notice.kind == bus_service_pb2.NOTICE_KIND_TERMINATED:
            raise PreconditionFailed(notice.text)
        elif notice.kind == bus_service_pb2.NOTICE_KIND_GAP:
            tell_gap(self.introduction.name, self.gap_handlers, notice)
        else:
            _logger.warning("%s: notice %d from the bus: %s", self.introduction.name, notice.kind, notice.text)


async def _read_frame(call: Stream) -> bytes | None:
    """Return the next frame; None at the end of the stream."""
    try:
        data = await call.read()
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        # A status CANCELLED that came from the other side.
        return None
    return data if isinstance(data, bytes) else None


def _decode(data: bytes) -> bus_service_pb2.OpenSessionResponse:
    """Return the frame in ``data``.

    Raises:
        ProtocolViolation: It is none.
    """
    try:
        return bus_service_pb2.OpenSessionResponse.FromString(data)
    except DecodeError as error:
        raise ProtocolViolation(f"not a gagent.v1.OpenSessionResponse frame of {len(data):,} bytes: {error}") from error


def _reason(failures: Sequence[Exception]) -> Exception:
    """Return the failure that matters most: a bug, then what is final, then the first one."""
    bug = next((one for one in failures if not isinstance(one, BusError)), None)
    return bug or next((one for one in failures if isinstance(one, _FINAL)), failures[0])


_HEARTBEAT = twin.OpenSessionRequest(heartbeat=twin.Heartbeat()).SerializeToString()
