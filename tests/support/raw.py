"""Sessions spoken frame by frame with the generated public stubs, as a client in another language would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc
from waiting import WAIT
from waiting import until as eventually  # noqa: F401  # For those who import it from here.

from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb


class RawSession:
    """One `OpenSession` stream, spoken frame by frame; it answers the heartbeats of the bus unless it is told not to."""

    def __init__(self, call: Any, *, answers: bool) -> None:
        self.call = call
        self.welcome = pb.Welcome()
        self.receipts: list[pb.Receipt] = []
        self.accepted_through = 0
        self.notices: list[pb.Notice] = []
        self.states: list[pb.StateChange] = []
        self.deliveries: list[pb.Delivery] = []
        self.returned: list[int] = []
        self.heartbeats = 0
        self._answers = answers
        self._writing = asyncio.Lock()

    async def write(self, frame: pb.OpenSessionRequest) -> None:
        async with self._writing:
            await self.call.write(frame)

    async def say(self, **frame: Any) -> None:
        """Write one frame: `say(bye=pb.Bye())`."""
        await self.write(pb.OpenSessionRequest(**frame))

    async def send(self, *messages: pb.BusMessage) -> None:
        await self.say(send=pb.SendBatch(messages=messages))

    async def settle(self, **what: Any) -> None:
        await self.say(settle=pb.SettleBatch(**what))

    async def read(self) -> pb.OpenSessionResponse | None:
        """Read the next frame and note what it says; None at the end of the stream."""
        async with asyncio.timeout(WAIT):
            frame = await self.call.read()
        if frame is grpc.aio.EOF:
            return None
        kind = frame.WhichOneof("frame")
        if kind == "welcome":
            self.welcome = frame.welcome
        elif kind == "receipts":
            for receipt in frame.receipts.exceptions:
                # An exception may come before its number is covered, never after.
                assert receipt.number > self.accepted_through
            assert frame.receipts.accepted_through >= self.accepted_through
            self.accepted_through = frame.receipts.accepted_through
            self.receipts.extend(frame.receipts.exceptions)
        elif kind == "returned":
            self.returned.extend(frame.returned.sequences)
        elif kind == "deliver":
            self.deliveries.extend(frame.deliver.deliveries)
        elif kind == "notice":
            self.notices.append(frame.notice)
        elif kind == "state":
            self.states.append(frame.state)
        elif kind == "heartbeat":
            self.heartbeats += 1
            if self._answers:
                with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.BaseError):
                    await self.say(heartbeat=pb.Heartbeat())
        return frame

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read frames until ``condition`` holds."""
        async with asyncio.timeout(WAIT):
            while not condition():
                assert await self.read() is not None, f"the stream ended: {await self.call.code()}"

    async def delivered(self, count: int) -> list[pb.Delivery]:
        """Read until ``count`` deliveries came, in all; return them."""
        await self.until(lambda: len(self.deliveries) >= count)
        return self.deliveries

    async def receipted(self, number: int) -> list[pb.Receipt]:
        """Read until everything is said about the messages up to ``number``; return the exceptions so far."""
        await self.until(lambda: self.accepted_through >= number)
        return self.receipts

    async def in_step(self) -> None:
        """Wait until the bus has read and answered everything that was written so far."""
        seen = len(self.notices)
        # An empty frame is of no known kind, so a notice comes back; what is due before it comes before it.
        await self.write(pb.OpenSessionRequest())
        await self.until(lambda: len(self.notices) > seen)
        self.notices.pop()

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """Read until the stream ends; return its status."""
        try:
            async with asyncio.timeout(WAIT):
                while await self.read() is not None:
                    pass
        except grpc.aio.AioRpcError:
            pass
        async with asyncio.timeout(WAIT):
            return await self.call.code(), await self.call.details()

    async def leave(self) -> None:
        """Say bye and wait for the end."""
        await self.say(bye=pb.Bye())
        await self.call.done_writing()
        assert await self.end() == (grpc.StatusCode.OK, "")

    async def vanish(self) -> None:
        """Cancel the call, as a client that is killed does."""
        self.call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.call.code()


def acl(to: str | list[str] = "", text: str = "hi", *, act: int = 8, **message: Any) -> pb.BusMessage:
    """Return an `inform` (or another act) whose receivers are named by the envelope; `acl_...` keys go into the body."""
    body = {key.removeprefix("acl_"): message.pop(key) for key in list(message) if key.startswith("acl_")}
    made = pb.BusMessage(to=[to] if isinstance(to, str) and to else to, **message)
    made.acl.performative = act
    made.acl.text = text
    for key, value in body.items():
        if key == "sender":
            made.acl.sender.name = value
        else:
            setattr(made.acl, key, value)
    return made
