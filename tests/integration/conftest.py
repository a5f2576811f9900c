"""A bus on loopback, and channels and sessions to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from raw import RawSession

from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc as services
from gagent_grpc.server.app import Bus
from gagent_grpc.testing import running_bus

Connect = Callable[..., Awaitable[RawSession]]
BusFactory = Callable[..., Awaitable[Bus]]


@pytest.fixture
async def buses() -> AsyncIterator[BusFactory]:
    """Return a factory of buses: `await buses(limits=...)`. Each one ends with the test, and leaves no session."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings: Any) -> Bus:
            settings.setdefault("limits", BusLimits(drain_grace=1.0))
            return await stack.enter_async_context(_checked(**settings))

        yield start


@contextlib.asynccontextmanager
async def _checked(**settings: Any) -> AsyncIterator[Bus]:
    async with running_bus(**settings) as bus:
        yield bus
    assert bus.platform.sessions == 0


@pytest.fixture
async def bus(buses: BusFactory) -> Bus:
    return await buses()


@pytest.fixture
async def channels() -> AsyncIterator[Callable[[Bus], grpc.aio.Channel]]:
    """Return a factory of channels, each with a connection of its own."""
    opened: list[grpc.aio.Channel] = []

    def connect(bus: Bus) -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        opened.append(grpc.aio.insecure_channel(bus.address, options=options))
        return opened[-1]

    yield connect
    for channel in opened:
        await channel.close()


@pytest.fixture
async def channel(bus: Bus, channels: Callable[[Bus], grpc.aio.Channel]) -> grpc.aio.Channel:
    return channels(bus)


@pytest.fixture
async def connect(channels: Callable[[Bus], grpc.aio.Channel]) -> AsyncIterator[Connect]:
    """Return a factory of sessions: `await connect(bus, "alice", window=...)`; unless `welcomed=False`, the welcome is there."""
    calls: list[Any] = []

    async def open_session(
        at: Bus | grpc.aio.Channel, agent: str | None, *, answers: bool = True, welcomed: bool = True, **hello: Any
    ) -> RawSession:
        channel = channels(at) if isinstance(at, Bus) else at
        call = services.BusServiceStub(channel).OpenSession()
        calls.append(call)
        session = RawSession(call, answers=answers)
        if agent is not None:
            await session.say(hello=pb.Hello(protocol_version=1, agent=agent, **hello))
        if agent is not None and welcomed:
            await session.until(lambda: bool(session.welcome.agent))
        return session

    yield open_session
    for call in calls:
        call.cancel()
