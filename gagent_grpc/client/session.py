"""The session of one agent as the client keeps it: one stream at a time, found again when it is lost.

Owns: connecting and reconnecting, the frames, heartbeats, settling, and which deliveries are new. Frames fill with
whatever waits while the previous write is on its way, so a lone message never waits and a flood shares its cost.
Leaves to others: what is sent (`client.outbox`), running handlers (`client.lanes`), what an agent is (`client.agent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import structlog
from google.protobuf.message import DecodeError

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState
from gagent_grpc.client.lanes import Job, Lanes
from gagent_grpc.client.message import receipt_from_proto
from gagent_grpc.client.outbox import Outbox
from gagent_grpc.client.questions import Questions
from gagent_grpc.client.transport import error_from_status, open_channel
from gagent_grpc.codec.management import df_from_proto, df_to_proto, state_from_proto
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

log = structlog.get_logger(__name__)

SOFTWARE = "gagent-python/0.1.0"
_METHOD = "/gagent.v1.BusService/OpenSession"
_FINAL = (AgentAlreadyRegistered, Unauthorised, Unauthenticated, InvalidArgument, PreconditionFailed)
"""Errors after which trying again by itself would be wrong or in vain."""
_LOST = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises when a call is over; its status says why."""
_MISSED_HEARTBEATS = 3
_HEARTBEAT_INTERVAL = 15.0
"""Seconds, where the bus names none."""
_BATCH_BYTES = 512 * 1024
_BATCH_MESSAGES = 1024


@dataclass(slots=True)
class Introduction:
    """What the agent says when it opens a session."""

    name: str
    description: DFAgentDescription | None
    """DF entry to install; None leaves the entry as it is."""
    ephemeral: bool
    ownership: str


class ClientSession:
    """Keeps the session of one agent open until it is closed, superseded or refused."""

    def __init__(
        self,
        introduction: Introduction,
        endpoints: list[str],
        limits: ClientLimits,
        handle: Callable[[Job], Awaitable[bool]],
        questions: Questions,
        take_answer: Callable[[bus_service_pb2.Delivery], bool],
        state_changed: Callable[[LifeCycleState, str], None],
    ) -> None:
        self.introduction = introduction
        self.outbox = Outbox()
        self.lanes = Lanes(handle, concurrency=limits.concurrency)
        self.endpoint = endpoints[0]
        self.token = ""
        self.aid = introduction.name
        """`name@platform`, once the session is open."""
        self.platform = ""
        self.max_message_bytes = 0
        self.description: DFAgentDescription | None = None
        self._endpoints = endpoints
        self._limits = limits
        self._questions = questions
        self._take_answer = take_answer
        self._state_changed = state_changed
        self._window_messages = 0
        self._window_bytes = 0
        self._heartbeat_interval = _HEARTBEAT_INTERVAL
        self._acks: list[int] = []
        self._nacks: list[twin.Nack] = []
        self._rejects: list[twin.Reject] = []
        self._in_progress: dict[tuple[str, str], Job] = {}
        # Ordered, since the first key of a plain dictionary gets dearer to find with each one that was deleted before it.
        self._handled: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._aids: dict[str, AgentIdentifier] = {}
        self._over: BusError | None = None
        """Why there is no session and none is looked for."""
        self.prepare()
        self._over = PreconditionFailed(f"{introduction.name}: the agent is not open")

    def prepare(self) -> None:
        """Make ready for `run`, the first time or again after an end, on whatever loop runs now."""
        self.connected = asyncio.Event()
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
        self._over = None
        # Handlers that were cut off at the end are nobody's any more; what they had in hand comes again.
        self._in_progress.clear()
        self.lanes.reopen()

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
            log.exception("the session failed", agent=self.introduction.name)
            failure = BusError(f"the session failed: {type(bug).__name__}")
            raise
        finally:
            self._over = failure or PreconditionFailed(f"{self.introduction.name}: the agent is closed")
            self.connected.set()
            self.outbox.fail(self._over)
            self._questions.fail(self._over)
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
                log.info("connection lost", agent=self.introduction.name, why=str(error))
                if self.sessions_opened == 0 and loop.time() >= give_up_at:
                    if len(self._endpoints) > 1 and isinstance(error, BusUnreachable):
                        raise BusUnreachable(",".join(self._endpoints)) from error
                    raise
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
        in_hand = bool(self._in_progress) and not self._at_once
        return not self._bye_said and (in_hand or bool(self._acks) or self._deregister)

    async def reach(self) -> grpc.aio.Channel:
        """Return the channel of the open session; wait for one while the connection is being found again.

        Raises:
            BusError: The session is over.
        """
        while self._channel is None:
            if self._over is not None:
                raise self._over
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
            await self._serve(call)
        finally:
            self.connected.clear()
            self._channel = None
            self.lanes.forget_waiting()
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
                writer = group.create_task(self._write(call))
                await self._read(call)
                # Before the writer is cancelled, which would end a call that has no status yet.
                code = await call.code()
                writer.cancel()
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
            held_sequences=sorted(
                {job.sequence for job in self._in_progress.values() if job.sequence} | set(self._acks)
            ),
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
        interval = welcome.heartbeat_interval
        self._heartbeat_interval = interval.seconds + interval.nanos / 1e9 or _HEARTBEAT_INTERVAL
        self.description = df_from_proto(welcome.description) if welcome.HasField("description") else None
        self._aids.clear()
        # What the bus does not hold for this agent any more comes again, maybe under another number.
        held = frozenset(welcome.held_sequences)
        self._acks = [sequence for sequence in self._acks if sequence in held]
        for job in self._in_progress.values():
            if job.sequence not in held:
                job.sequence = 0
        # A handler that failed since the hello has its delivery held, though nobody has it in hand any more.
        self._nacks = [nack for nack in self._nacks if nack.sequence in held]
        self.lanes.forget_waiting(held=held)
        self._rejects.clear()
        self.outbox.reconnected()
        self._make_room()
        self._draining = False
        self._bye_said = False
        self._heard = True
        self.sessions_opened += 1
        self._wake.set()
        state = state_from_proto(welcome.state)
        if state is not None:
            self._state_changed(state, "")

    # ---- writing ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    async def _write(self, call: Stream) -> None:
        """Write whatever waits, frame after frame. The only writer of the stream.

        Raises:
            BusUnreachable: Nothing was heard for three heartbeats, or a write did not get through.
        """
        loop = asyncio.get_running_loop()
        interval = self._heartbeat_interval
        look_at = loop.time() + interval
        missed = 0
        half_closed = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(look_at):
                    await self._wake.wait()
            self._wake.clear()
            if loop.time() >= look_at:
                # Counted in looks and not in seconds: a loop that stood still has not heard anybody, whoever spoke.
                missed = 0 if self._heard else missed + 1
                if missed == _MISSED_HEARTBEATS:
                    raise BusUnreachable(self.endpoint, "nothing heard for three heartbeats")
                self._heard = False
                self._heartbeat_due = True
                look_at = loop.time() + interval
            if half_closed:
                continue
            try:
                while (frame := self._next_frame()) is not None:
                    async with asyncio.timeout(self._limits.write_timeout):
                        await call.write(frame)
                if self._bye_said or (self._draining and not self._in_progress):
                    await call.done_writing()
                    half_closed = True
            except TimeoutError as error:
                raise BusUnreachable(self.endpoint, "a write did not get through") from error
            except _LOST:
                # The stream is over, and the reader hears why.
                return

    def _next_frame(self) -> bytes | None:
        if self._heartbeat_due:
            self._heartbeat_due = False
            return _HEARTBEAT
        if self._acks or self._nacks or self._rejects:
            settle = twin.SettleBatch(ack_sequences=self._acks, nacks=self._nacks, rejects=self._rejects)
            self._acks.clear()
            self._nacks.clear()
            self._rejects.clear()
            return twin.OpenSessionRequest(settle=settle).SerializeToString()
        if self.outbox.waiting:
            batch = self.outbox.take(
                window_messages=self._window_messages,
                window_bytes=self._window_bytes,
                batch_bytes=_BATCH_BYTES,
                batch_messages=_BATCH_MESSAGES,
            )
            if batch:
                return twin.OpenSessionRequest(send=twin.SendBatch(messages=batch)).SerializeToString()
        elif self._leaving.is_set() and not self._bye_said and (self._at_once or not self._in_progress):
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
                self._deliver(frame.deliver)
            elif kind == "receipts":
                self._receipts(frame.receipts)
            elif kind == "heartbeat":
                self._heartbeat_due = True
                self._wake.set()
            elif kind == "returned":
                self.lanes.returned(frozenset(frame.returned.sequences))
            elif kind == "state":
                state = state_from_proto(frame.state.state)
                if state is not None:
                    self._state_changed(state, frame.state.changed_by)
            elif kind == "notice":
                self._notice(frame.notice)

    def _receipts(self, batch: bus_service_pb2.ReceiptBatch) -> None:
        exceptions = [(one.number, receipt_from_proto(one)) for one in batch.exceptions]
        self.outbox.receipts(batch.accepted_through, exceptions)
        self._make_room()
        if self.outbox.waiting or self._leaving.is_set():
            self._wake.set()

    def _make_room(self) -> None:
        if self.outbox.bytes <= self._limits.max_queued_bytes:
            self.room.set()

    def _notice(self, notice: bus_service_pb2.Notice) -> None:
        if notice.kind == bus_service_pb2.NOTICE_KIND_DRAINING:
            # Half-closing tells the bus that all was said; what is in a handler is held over to the next session.
            self._reconnect_after = notice.reconnect_after.seconds + notice.reconnect_after.nanos / 1e9
            self._draining = True
            self.lanes.forget_waiting()
            self._wake.set()
            log.info("the bus is shutting down", agent=self.introduction.name)
        elif notice.kind == bus_service_pb2.NOTICE_KIND_SUPERSEDED:
            # Said by the status, too, but that one may be lost with the connection.
            raise SessionSuperseded(notice.text)
        elif notice.kind == bus_service_pb2.NOTICE_KIND_TERMINATED:
            raise PreconditionFailed(notice.text)
        else:
            log.warning("notice from the bus", agent=self.introduction.name, kind=notice.kind, text=notice.text)

    def _deliver(self, batch: bus_service_pb2.DeliverBatch) -> None:
        jobs: list[Job] = []
        if self._draining or self._bye_said:
            return
        asking = bool(self._questions)
        for delivery in batch.deliveries:
            sender = delivery.sender
            message = delivery.message
            key = (sender, message.id or delivery.id)
            if delivery.redelivered and self._known(delivery.sequence, key):
                continue
            if not message.HasField("acl"):
                reason = "this agent handles ACL messages; it got another kind of body"
                self._rejects.append(twin.Reject(sequence=delivery.sequence, reason=reason))
                self._wake.set()
            elif asking and self._take_answer(delivery):
                # Not by way of the lanes: the handler that asked may hold the lane, or be the last that may run.
                self._settle(key, delivery.sequence)
            else:
                jobs.append(Job(delivery, delivery.sequence, key, (sender, message.acl.conversation_id)))
        if jobs:
            self.lanes.add(jobs)

    def _known(self, sequence: int, key: tuple[str, str]) -> bool:
        """Return whether a redelivery is of a message that a handler has, or had; its settle goes to the new number."""
        job = self._in_progress.get(key)
        if job is not None:
            job.sequence = sequence
            return True
        if key in self._handled:
            self._acks.append(sequence)
            self._wake.set()
            return True
        return False

    def sender_of(self, delivery: bus_service_pb2.Delivery) -> AgentIdentifier:
        """Return who sent a delivery: the bare name for an agent of this platform."""
        sender = delivery.sender
        found = self._aids.get(sender)
        if found is None:
            name, _, platform = sender.partition("@")
            found = AgentIdentifier(name if platform == self.platform else sender)
            if len(self._aids) > 10_000:
                self._aids.clear()
            self._aids[sender] = found
        return found

    # ---- settling --------------------------------------------------------------------------------------------------

    def begin(self, job: Job) -> None:
        """A handler begins on a delivery."""
        self._in_progress[job.key] = job

    def ack(self, job: Job) -> None:
        """A handler is done with a delivery."""
        self._in_progress.pop(job.key, None)
        self._settle(job.key, job.sequence)

    def _settle(self, key: tuple[str, str], sequence: int) -> None:
        handled = self._handled
        handled[key] = None
        if len(handled) > self._limits.handled_ids:
            handled.popitem(last=False)
        if sequence:
            self._acks.append(sequence)
        self._wake.set()

    def nack(self, job: Job, delay: float, error: str) -> bool:
        """A handler failed: the delivery is to come again after ``delay`` seconds.

        Returns:
            Whether the lane waits for it; not when the delivery is another session's, which knows for itself.
        """
        self._in_progress.pop(job.key, None)
        self._wake.set()
        if not job.sequence:
            return False
        made = twin.Nack(sequence=job.sequence, error=error)
        made.delay.FromNanoseconds(int(delay * 1e9))
        self._nacks.append(made)
        return True


async def _read_frame(call: Stream) -> bytes | None:
    """Return the next frame; None at the end of the stream."""
    try:
        data = await call.read()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody cancelled this task: gRPC raises it also for a status CANCELLED that came from the other side.
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
