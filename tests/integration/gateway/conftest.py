"""A gateway before a bus in this process, and WebSocket clients that know nothing but JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import WAIT, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gagent_grpc import Agent
from gagent_grpc.config import ClientLimits, GatewayLimits
from gagent_grpc.gateway.app import Gateway, open_gateway
from gagent_grpc.security.tokens import TokenFile
from gagent_grpc.server.app import Bus

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, retry_delay=0.05, connect_timeout=5.0)
"""Intervals that make a test short."""


class Client:
    """The other end of a socket: says and reads JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.welcome: dict[str, Any] = {}
        self.frames: list[dict[str, Any]] = []
        """Frames that came and were not asked for yet."""

    async def say(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def next(self, **like: Any) -> dict[str, Any]:
        """Return the next frame with these values; others are kept for later."""
        found = next((one for one in self.frames if fits(one, like)), None)
        if found is not None:
            self.frames.remove(found)
            return found
        async with asyncio.timeout(WAIT):
            while True:
                frame = json.loads(await self.socket.recv())
                if fits(frame, like):
                    return frame
                self.frames.append(frame)

    async def receipt(self, message_id: str | None) -> str:
        """Return the outcome of a message."""
        return str((await self.next(control="receipt", id=message_id))["outcome"])

    async def end(self) -> tuple[int, str]:
        """Wait until the gateway has closed the socket; return code and reason."""
        async with asyncio.timeout(WAIT):
            while True:
                try:
                    self.frames.append(json.loads(await self.socket.recv()))
                except ConnectionClosed as closed:
                    return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd is not None else (1006, "")


def fits(frame: dict[str, Any], like: dict[str, Any]) -> bool:
    return all(frame.get(name) == value for name, value in like.items())


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


@pytest.fixture
async def gateways(bus: Bus, tokens: TokenFile) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """Return a factory of gateways: `await gateways(limits=...)`. Each one ends with the test, and leaves no socket."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings: Any) -> Gateway:
            limits = GatewayLimits(token_check_interval=0.02, probe_timeout=0.5)
            made = open_gateway(bus.address, **{"tokens": tokens.path, "limits": limits, **settings})
            return await stack.enter_async_context(made)

        yield start


@pytest.fixture
async def gateway(gateways: Any) -> Gateway:
    return await gateways()


@pytest.fixture
async def clients() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """Return a factory of clients: `await clients(gateway, "alice", acks="client")`; all are closed at the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(at: Gateway | str, agent: str | None = None, **options: Any) -> Client:
            url = at if isinstance(at, str) else at.url
            query = {**({"agent": agent} if agent else {}), **options.pop("query", {})}
            query |= {name: options.pop(name) for name in ("acks", "window", "ephemeral") if name in options}
            asked = "&".join(f"{name}={value}" for name, value in query.items())
            options = {"proxy": None, "close_timeout": 1, **options}
            socket = await stack.enter_async_context(connect(f"{url}?{asked}" if asked else url, **options))
            client = Client(socket)
            client.welcome = await client.next(control="welcome")
            return client

        yield start


@pytest.fixture
async def agents(bus: Bus) -> AsyncIterator[Callable[..., Awaitable[Agent]]]:
    """Return a factory of open agents over gRPC: `await agents("bob", handler)`; the handler gets every ACP message."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str, *handlers: Callable[..., Any], **settings: Any) -> Agent:
            agent = Agent(name, **{"bus": bus.address, "limits": QUICK, **settings})
            for handler in handlers:
                agent.on_acp()(handler)
            return await stack.enter_async_context(agent)

        yield start


@pytest.fixture
def refused() -> Callable[..., Awaitable[tuple[int, dict[str, Any]]]]:
    """Return a function that asks for a socket which is refused; it returns the status and what it says."""

    async def ask(at: Gateway, query: str = "", **options: Any) -> tuple[int, dict[str, Any]]:
        with pytest.raises(InvalidStatus) as raised:
            await connect(f"{at.url}{query}", proxy=None, **options)
        response = raised.value.response
        return response.status_code, json.loads(response.body or b"{}")

    return ask


@pytest.fixture
def gone() -> Callable[[Gateway], Awaitable[None]]:
    """Return a function that waits until a gateway has no socket."""

    async def wait(gateway: Gateway) -> None:
        await until(lambda: not gateway.sockets)

    return wait
