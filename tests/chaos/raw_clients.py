"""Receivers that speak the wire itself: what the SDK drops, or flags, or keeps in order, is seen here as the bus sends it.

Owns: the `raw` receiver and the collector of `tests.chaos.clients`. They hold nothing over from one session to the next, so
that whatever they have not settled comes again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from collections import deque
from typing import Any

import grpc

from gagent_grpc import AMSAgentDescription, BusError, Operator
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc
from tests.chaos.client_life import Stop, fails, say_ready
from tests.chaos.history import FAILED_RECEIVER, History, body_hash, mark_of

_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
]
_LOST = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
ATTACH_WITHIN = 60.0
"""Seconds within which a name has to be free: a client that was cut off holds it until the bus notices."""
EMPTY_WITHIN = 90.0
"""Seconds within which a mailbox has to be empty; a delivery that was sent back may wait for 60."""


class RawReceiver:
    """One agent on the wire, through as many sessions as it takes."""

    def __init__(self, name: str, options: argparse.Namespace, history: History, *, collects: bool) -> None:
        self.name = name
        self.connected = asyncio.Event()
        self.settled = 0
        """Deliveries whose settle was written to a stream."""
        self.refused = ""
        """Why the bus does not take this agent; "" while it may."""
        self._options = options
        self._history = history
        self._collects = collects
        self._token = ""
        self._in_hand: deque[tuple[float, pb.Delivery]] = deque()
        """(time from which it may be settled, delivery) of this session."""
        self._stopping = asyncio.Event()
        self._call: Any = None
        self._answered = asyncio.Event()
        self._random = random.Random(name)

    async def run(self) -> None:
        """Hold a session open until told to leave; find it again when it is lost."""
        began = time.monotonic()
        while not (self._stopping.is_set() and not self._in_hand):
            try:
                code = await self._session()
            except grpc.aio.AioRpcError as error:
                code = error.code()
            except (grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError):
                code = None
            self.connected.clear()
            self._in_hand.clear()
            if self._stopping.is_set():
                return
            if code is grpc.StatusCode.FAILED_PRECONDITION:
                self.refused = "superseded, or terminated"
                return
            if code is grpc.StatusCode.ALREADY_EXISTS and time.monotonic() - began > ATTACH_WITHIN:
                self.refused = "somebody else holds the name"
                return
            await asyncio.sleep(self._random.uniform(0.05, 0.3))

    def leave(self) -> None:
        """Settle what is in hand, and go."""
        self._stopping.set()

    async def in_step(self) -> None:
        """Wait until everything that is due now has come, and is settled."""
        self._answered.clear()
        # An empty frame is of no known kind, so a notice comes back; what is due before comes before it.
        await self._call.write(pb.OpenSessionRequest())
        await self._answered.wait()
        while self._in_hand:  # noqa: ASYNC110  # It is emptied every 10 ms, and nobody else wants to know.
            await asyncio.sleep(0.01)

    async def _session(self) -> grpc.StatusCode:
        """Open one session and serve it to its end; return its status."""
        async with grpc.aio.insecure_channel(self._options.bus, options=_OPTIONS) as channel:
            call: Any = bus_service_pb2_grpc.BusServiceStub(channel).OpenSession()
            try:
                hello = pb.Hello(protocol_version=1, agent=self.name, resume_token=self._token)
                hello.window.messages = self._options.window
                await call.write(pb.OpenSessionRequest(hello=hello))
                async with asyncio.timeout(10):
                    frame = await call.read()
                if frame is grpc.aio.EOF:
                    return await _code(call)
                self._token = frame.welcome.resume_token
                self._in_hand.clear()
                self._call = call
                self.connected.set()
                settling = asyncio.create_task(self._settle(call))
                try:
                    await self._read(call)
                    return await _code(call)
                finally:
                    settling.cancel()
                    await asyncio.wait({settling})
            finally:
                call.cancel()

    async def _read(self, call: Any) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            kind = frame.WhichOneof("frame")
            if kind == "deliver":
                due = time.monotonic() + self._options.delay
                for delivery in frame.deliver.deliveries:
                    self._note(delivery)
                    self._in_hand.append((due, delivery))
            elif kind == "returned":
                gone = set(frame.returned.sequences)
                self._in_hand = deque(one for one in self._in_hand if one[1].sequence not in gone)
            elif kind == "heartbeat":
                await call.write(pb.OpenSessionRequest(heartbeat=pb.Heartbeat()))
            elif kind == "notice" and frame.notice.kind == pb.NOTICE_KIND_UNKNOWN_FRAME:
                self._answered.set()
            elif kind == "notice" and frame.notice.kind == pb.NOTICE_KIND_DRAINING:
                # What is not settled comes again in the next session.
                self._in_hand.clear()
                await call.done_writing()

    def _note(self, delivery: pb.Delivery) -> None:
        """Write a delivery down; one from the platform itself is word of a message that was given up."""
        acl = delivery.message.acl
        if delivery.sender.startswith("ams@"):
            self._history.dead(acl.in_reply_to, acl.user_parameters[FAILED_RECEIVER], acl.text[:200])
            return
        content = acl.text if acl.WhichOneof("content") == "text" else acl.data
        self._history.delivered(
            mark_of(content) or delivery.message.id or delivery.id,
            sender=delivery.sender,
            receiver=delivery.receiver,
            sequence=delivery.sequence,
            attempt=delivery.attempt,
            redelivered=delivery.redelivered,
            body=body_hash(content),
            conversation=acl.conversation_id,
        )

    async def _settle(self, call: Any) -> None:
        """Settle what is due, again and again, by tag and by sequence in turn; end with bye when told to leave."""
        by_tag = False
        while True:
            await asyncio.sleep(0.01)
            batch = pb.SettleBatch()
            now = time.monotonic()
            last_tag = 0
            while self._in_hand and (self._in_hand[0][0] <= now or self._stopping.is_set()):
                _, delivery = self._in_hand.popleft()
                mark = mark_of(delivery.message.acl.text) or delivery.message.id or delivery.id
                if not self._collects and fails(mark, delivery.attempt, self._options):
                    self._history.settled(mark, delivery.receiver, "nack")
                    nack = batch.nacks.add(sequence=delivery.sequence, error="on purpose")
                    nack.delay.FromNanoseconds(int(self._options.retry_delay * 1e9))
                    continue
                self._history.settled(mark, delivery.receiver, "ack")
                batch.ack_sequences.append(delivery.sequence)
                last_tag = delivery.tag
            if last_tag and by_tag and not batch.nacks and not self._sends_back:
                # Everything before was settled in this session as well.
                del batch.ack_sequences[:]
                batch.ack_through_tag = last_tag
            if batch.ByteSize():
                by_tag = not by_tag
                self.settled += len(batch.ack_sequences)
                try:
                    await call.write(pb.OpenSessionRequest(settle=batch))
                except _LOST:
                    # The reader hears why.
                    return
            if self._stopping.is_set() and not self._in_hand:
                with contextlib.suppress(*_LOST):
                    await call.write(pb.OpenSessionRequest(bye=pb.Bye()))
                    await call.done_writing()
                return

    @property
    def _sends_back(self) -> bool:
        return bool(self._options.fail_every or self._options.nack_every)


async def _code(call: Any) -> grpc.StatusCode:
    found: grpc.StatusCode = await call.code()
    return found


async def receive(options: argparse.Namespace, history: History) -> None:
    """Be a raw receiver."""
    stop = Stop()
    agents = [RawReceiver(name, options, history, collects=False) for name in options.names]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one.run()) for one in agents]
        for one in agents:
            await one.connected.wait()
        say_ready()
        told = group.create_task(stop.told.wait())
        await asyncio.wait({told, *running}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        for one in agents:
            one.leave()
    refused = [f"{one.name}: {one.refused}" for one in agents if one.refused]
    for text in refused:
        history.error(text)
    if refused:
        raise SystemExit(", ".join(refused))


async def collect(options: argparse.Namespace, history: History) -> None:
    """Be the collector: take what is left for each name until its mailbox is empty."""
    Stop()
    failure = ""
    agents = [RawReceiver(name, options, history, collects=True) for name in options.names]
    async with asyncio.TaskGroup() as group:
        for one in agents:
            group.create_task(one.run())
        try:
            async with asyncio.timeout(ATTACH_WITHIN):
                for one in agents:
                    await one.connected.wait()
            say_ready()
            async with asyncio.timeout(EMPTY_WITHIN):
                await _empty(options)
                # Words of the platform about what was given up do not count as mail, so nothing is left to ask but this.
                for one in agents:
                    await one.in_step()
        except TimeoutError:
            left = await _left(options) if all(one.connected.is_set() for one in agents) else {}
            failure = f"mailboxes are not empty, or names not free: {left or [one.refused for one in agents]}"
            history.error(failure)
        finally:
            for one in agents:
                one.leave()
    if failure:
        raise SystemExit(failure)


async def _empty(options: argparse.Namespace) -> None:
    """Wait until the bus says that the mailboxes are empty, twice in a row."""
    times = 0
    while times < 2:
        await asyncio.sleep(0.2)
        with contextlib.suppress(BusError):
            times = 0 if any((await _left(options)).values()) else times + 1


async def _left(options: argparse.Namespace) -> dict[str, int]:
    """Return how many messages the mailbox of each agent holds, as the AMS has it."""
    found: dict[str, int] = {}
    async with Operator(options.bus) as operator:
        for name in options.names:
            entries = await operator.ams.search(AMSAgentDescription(name=name))
            found[name] = entries[0].mailbox_messages if entries else 0
    return {name: count for name, count in found.items() if count}
