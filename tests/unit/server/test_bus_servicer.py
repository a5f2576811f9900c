"""A session's stream that breaks: what the session is told of it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from raw import acl, eventually

from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import AnswerTimeout, BusError, Unavailable
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.server.bus_servicer import BusServicer
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock


class Stream:
    """The bus's side of a call: it reads one hello, and writing goes as it is told to."""

    def __init__(self, failure: Exception | None, *, writes: int) -> None:
        self._failure = failure
        self._writes = writes
        self._hello = [pb.OpenSessionRequest(hello=pb.Hello(protocol_version=1, agent="bob")).SerializeToString()]

    async def read(self) -> Any:
        if not self._hello:
            await asyncio.Event().wait()
        return self._hello.pop()

    async def write(self, frame: bytes) -> None:
        self._writes -= 1
        if self._writes >= 0:
            return
        if self._failure is not None:
            raise self._failure
        await asyncio.Event().wait()


async def test_wide_frame_lets_the_others_have_their_turn() -> None:
    limits = BusLimits()
    platform = Platform("local", MemoryStore(), EnvelopeCodec(max_id_bytes=limits.max_id_bytes), FakeClock(), limits)
    session = (await platform.attach(Hello("bob"), "local")).session
    wide = acl([f"nobody-{index}" for index in range(100)]).SerializeToString()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await BusServicer._submit(session, [wide] * 50)
    task.cancel()
    assert turns >= 5_000 // 600 - 1
    assert len(session._exceptions) == 5_000


async def ending(stream: Stream) -> BusError:
    limits = BusLimits(write_timeout=0.01)
    codec = EnvelopeCodec(max_id_bytes=limits.max_id_bytes)
    platform = Platform("local", MemoryStore(), codec, FakeClock(), limits)
    async with platform.running(), asyncio.timeout(5):
        serving = asyncio.ensure_future(BusServicer(platform).open_session(None, stream))  # type: ignore[arg-type]  # [arg-type]: stands in for a call.
        await eventually(lambda: platform.ams.find("bob") is not None)
        session = platform.ams.get("bob").session
        if session is not None:
            session.beat()
        with pytest.raises(BusError) as caught:
            await serving
        assert platform.sessions == 0
    return caught.value


@pytest.mark.parametrize("writes", [0, 1], ids=["welcome", "later"])
async def test_write_that_takes_too_long_is_called_so(writes: int) -> None:
    error = await ending(Stream(None, writes=writes))
    assert isinstance(error, AnswerTimeout)
    assert "a write did not get through" in str(error)


@pytest.mark.parametrize("writes", [0, 1], ids=["welcome", "later"])
@pytest.mark.parametrize("failure", [grpc.aio.UsageError("closed"), asyncio.InvalidStateError("closed")])
async def test_connection_that_is_gone_is_called_so(failure: Exception, writes: int) -> None:
    error = await ending(Stream(failure, writes=writes))
    assert isinstance(error, Unavailable)
    assert "the connection was lost" in str(error)
