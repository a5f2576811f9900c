"""`BusService` over the twin frames: one reader and one writer for each session, and one-shot sending.

Owns: reading and writing of streams. Leaves to others: the form of frames (`server.frames`), their meaning
(`bus.session`), who is calling (`server.identity`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence

import grpc

from gagent_grpc.bus.origins import ANONYMOUS
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.session import Notice, Session
from gagent_grpc.codec.frame_size import FrameSize, patience
from gagent_grpc.errors import (
    AnswerTimeout,
    BusDraining,
    BusError,
    InvalidArgument,
    ProtocolViolation,
    Unavailable,
    first_error,
)
from gagent_grpc.pb.gagent.internal.v1 import bus_frames_pb2 as twin
from gagent_grpc.server import frames
from gagent_grpc.server.identity import caller_of, principal_of
from gagent_grpc.server.receipts import ReceiptCollector

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]
_SLICE = 512
"""Messages, and receivers, that are routed in one go: a frame may hold a million empty ones, or name 200,000 receivers."""

_REJECTS = 100
"""Rejected deliveries that are given up in one go: each is a dead letter, and a failure for its sender."""

_MAX_RECEIPTS = 10_000
"""Receipts of one `Send`: few enough that its response can travel, whatever they have to say."""


class BusServicer:
    """Serves `OpenSession` and `Send` on encoded frames."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of the service.

        Made by hand: the generated registration would bind the public decoder, which parses every message.
        """
        return grpc.method_handlers_generic_handler(
            "gagent.v1.BusService",
            {
                "OpenSession": grpc.stream_stream_rpc_method_handler(self.open_session),
                "Send": grpc.unary_unary_rpc_method_handler(self.send),
            },
        )

    # ---- sessions --------------------------------------------------------------------------------------------------

    async def open_session(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve one session from hello to its end."""
        limits = self._platform.limits
        hello = await self._hello(context, limits.hello_timeout)
        opened = await self._platform.attach(hello, principal_of(context))
        session = opened.session
        try:
            async with asyncio.timeout(limits.write_timeout):
                await context.write(frames.welcome_frame(opened, self._platform.name, limits))
            async with asyncio.TaskGroup() as group:
                others = [
                    group.create_task(self._read(session, context)),
                    group.create_task(self._watch(session)),
                ]
                # Returns once the session is over and everything is said.
                await self._write(session, context)
                for other in others:
                    other.cancel()
        except* TimeoutError:
            session.end(AnswerTimeout(f"{session.aid}: a write did not get through", limits.write_timeout))
            _log.info("session lost: %s, generation %d: a write did not get through", session.aid, session.generation)
        except* (grpc.aio.BaseError, asyncio.InvalidStateError) as group_error:
            session.end(Unavailable(f"{session.aid}: the connection was lost"))
            _log.info("session lost: %s, generation %d: %r", session.aid, session.generation, group_error.exceptions[0])
        except* BusError as group_error:
            session.end(first_error(group_error))
        finally:
            self._platform.detach(session)
        if session.failure is not None:
            # Outside the group, so the interceptor sees the error itself.
            raise session.failure

    async def _hello(self, context: Context, timeout: float) -> Hello:
        try:
            async with asyncio.timeout(timeout):
                data: object = await context.read()
        except TimeoutError:
            raise ProtocolViolation(
                f"no hello within {timeout:g} s; expected it as the first frame", field="hello"
            ) from None
        if not isinstance(data, bytes):
            raise ProtocolViolation("the stream ended before hello", field="hello")
        kind, frame = frames.decode_frame(data)
        if kind != "hello":
            what = f"a {kind} frame" if kind else frames.describe_unknown(frame)
            raise ProtocolViolation(f"the first frame is {what}; expected hello", field="hello")
        return frames.hello_from_frame(frame.hello)

    async def _read(self, session: Session, context: Context) -> None:
        """Take frames until the client ends its side. Waits for nothing but the next frame and the client's own receipts."""
        while True:
            data: object = await context.read()
            if not isinstance(data, bytes):
                # The client half-closed, or its connection is gone.
                session.close_when_answered()
                return
            if session.ended:
                # What a client says after a newer session took over, or after its agent is gone, is nobody's word.
                return
            session.heard()
            try:
                kind, frame = frames.decode_frame(data)
                if kind == "settle":
                    frames.check_settle(frame.settle)
            except ProtocolViolation as error:
                session.end(error)
                return
            if kind == "send":
                await self._submit(session, frame.send.messages)
            elif kind == "settle":
                await self._settle(session, frame.settle)
            elif kind == "window":
                session.set_window(frame.window.messages, frame.window.bytes)
            elif kind == "subscribe":
                asked = frame.subscribe
                self._platform.subscribe(session, asked.number, add=asked.add, remove=asked.remove)
            elif kind == "bye":
                self._platform.bye(session, deregister=frame.bye.deregister)
                # The name may be somebody else's from now on, so nothing more is taken in it.
                return
            elif kind == "hello":
                session.end(
                    ProtocolViolation("a second hello; expected exactly one, as the first frame", field="hello")
                )
                return
            elif kind != "heartbeat":
                session.notify(Notice("UNKNOWN_FRAME", frames.describe_unknown(frame)))
            # A reader that finds a frame waiting each time would keep the loop from everybody else.
            await asyncio.sleep(0)

    @staticmethod
    async def _submit(session: Session, messages: Sequence[bytes]) -> None:
        for start in range(0, len(messages), _SLICE):
            part = messages[start : start + _SLICE]
            while part and not session.ended:
                part = part[session.submit(part, max_receivers=_SLICE) :]
                await session.room_to_send()
                if part or start + _SLICE < len(messages):
                    await asyncio.sleep(0)

    @staticmethod
    async def _settle(session: Session, settle: twin.SettleBatch) -> None:
        rejects = [(reject.sequence, reject.reason[:1000]) for reject in settle.rejects]
        session.settle(
            ack_through_tag=settle.ack_through_tag,
            acks=settle.ack_sequences,
            nacks=frames.nacks_from_frame(settle.nacks),
            rejects=rejects[:_REJECTS],
        )
        for start in range(_REJECTS, len(rejects), _REJECTS):
            await asyncio.sleep(0)
            session.settle(ack_through_tag=0, acks=(), nacks=(), rejects=rejects[start : start + _REJECTS])

    @staticmethod
    async def _watch(session: Session) -> None:
        """End the stream of a client that is lost, whatever is being written to it."""
        await session.lost.wait()
        if session.failure is not None:
            raise session.failure

    async def _write(self, session: Session, context: Context) -> None:
        """Write what the session has to say until it is over. The only writer of the stream."""
        limit = self._platform.limits.write_timeout
        size = FrameSize()
        while (out := await session.outgoing()) is not None:
            delivery = frames.deliver_frame(out.letters, session.aid) if out.letters else None
            for frame in frames.control_frames(out):
                async with asyncio.timeout(patience(limit, len(frame))):
                    await context.write(frame)
            # What was taken over meanwhile is the newer session's to deliver.
            if delivery is not None and not session.ended:
                began = time.monotonic()
                async with asyncio.timeout(patience(limit, len(delivery))):
                    await context.write(delivery)
                size.wrote(time.monotonic() - began)
                session.batch_bytes = size.bytes

    # ---- one-shot sending ------------------------------------------------------------------------------------------

    async def send(self, request: bytes, context: Context) -> bytes:
        """Serve `Send`: route every message and return one receipt for each of its receivers."""
        if self._platform.draining:
            raise BusDraining("the bus is shutting down")
        messages = frames.send_request_messages(request)
        limits = self._platform.limits
        if len(messages) > limits.send_window_messages:
            raise InvalidArgument(
                f"{len(messages):,} messages; expected at most {limits.send_window_messages:,} in one call",
                field="messages",
            )
        caller = caller_of(self._platform, context)
        await self._check_receipts(messages)
        sender = ReceiptCollector(caller.agent.aid if caller.agent is not None else ANONYMOUS)
        receivers = 0
        for number, payload in enumerate(messages, start=1):
            receivers += self._platform.router.submit(payload, sender, number)
            if receivers >= _SLICE:
                receivers = 0
                await asyncio.sleep(0)
        await sender.answered()
        return frames.send_response(sender.receipts(), max_bytes=limits.max_frame_bytes)

    async def _check_receipts(self, messages: Sequence[bytes]) -> None:
        """Refuse a call with too many receipts as a whole: once a message is routed, its receipt has to be told."""
        if len(messages) * self._platform.limits.max_receivers <= _MAX_RECEIPTS:
            return
        receipts = 0
        for number, payload in enumerate(messages, start=1):
            receipts += self._platform.router.count_receipts(payload)
            if not number % _SLICE:
                await asyncio.sleep(0)
        if receipts > _MAX_RECEIPTS:
            raise InvalidArgument(
                f"the messages name {receipts:,} receivers; expected at most {_MAX_RECEIPTS:,} receivers in one call",
                field="messages",
            )
