"""The HTTP and WebSocket server under the gateway: uvicorn's, with what ASGI has no words for.

Owns: pings whose answers are heard of, the time of the last sign of life, connections that say nothing, and a server that
leaves signals alone. Leaves to others: HTTP and WebSocket themselves (uvicorn, websockets), what is said (`gateway.websocket`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from gagent_grpc.config import GatewayLimits
from gagent_grpc.errors import ConfigurationError
from gagent_grpc.gateway.origins import Address

_WIRE = "gagent.wire"
_REQUEST_TIMEOUT = 10.0
"""Seconds within which a new connection has to have asked for something."""
_STOP_TIMEOUT = 2
"""Seconds that connections get to end, once the sockets of agents are closed."""
_HEADER_BYTES = 64 * 1024


class Wire(WebSocketsSansIOProtocol):
    """One WebSocket connection, as uvicorn has it, and what its application wants to know of it beside."""

    heard_at = 0.0
    """When the peer was heard of last, by the clock of the loop."""
    on_pong: Callable[[bytes], None] | None = None
    """Hears of each pong and what is in it."""

    @classmethod
    def of(cls, scope: Any) -> Wire:
        """Return the connection behind the scope of an application."""
        found = scope["extensions"][_WIRE]
        assert isinstance(found, cls)
        return found

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            # The application begins in a later turn of the loop.
            extensions: Any = self.scope["extensions"]
            extensions[_WIRE] = self

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        super().data_received(data)

    def handle_pong(self, event: Frame) -> None:
        super().handle_pong(event)
        if self.on_pong is not None:
            self.on_pong(bytes(event.data))

    def ping(self, payload: bytes) -> None:
        """Send a ping; nothing once the connection is being closed."""
        if self.handshake_complete and not (self.close_sent or self.disconnected or self.transport.is_closing()):
            self.conn.send_ping(payload)
            self.transport.write(b"".join(self.conn.data_to_send()))

    def abort(self) -> None:
        """Close the connection with what waits to be written left unsaid."""
        self.stop_keepalive()
        self.transport.abort()


class Http(H11Protocol):
    """One HTTP connection; one on which nobody asks for anything is closed after a while."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # [override]: uvicorn's.
        super().connection_made(transport)
        self._deadline = self.loop.call_later(_REQUEST_TIMEOUT, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _too_late(self) -> None:
        # Typed as if there always were one.
        cycle: Any = self.cycle
        if cycle is None and self.transport.get_protocol() is self:
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server in a process that is not its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to whoever runs the process."""
        yield


def bind(address: Address) -> socket.socket:
    """Return a socket that listens at ``address``; port 0 takes a free one.

    Raises:
        ConfigurationError: The address is in use, or not of this machine.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, where = found[0]
        made = socket.create_server((str(where[0]), address.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigurationError(
            f"cannot serve the web at {address}: the address is in use, or not of this machine ({error.strerror}). "
            "Choose another one with --web HOST:PORT"
        ) from error
    made.setblocking(False)
    return made


def server(app: Any, limits: GatewayLimits) -> Server:
    """Return a server of ``app``, an ASGI application, which does not run yet."""
    config = uvicorn.Config(
        app,
        http=Http,
        ws=Wire,
        loop="none",
        lifespan="off",
        ws_max_size=limits.max_frame_bytes,
        ws_per_message_deflate=False,
        # The gateway sends its own, to know what they prove.
        ws_ping_interval=None,
        ws_ping_timeout=None,
        # Each socket counts twice, as a connection and as a task.
        limit_concurrency=2 * limits.max_sockets + 200,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_graceful_shutdown=_STOP_TIMEOUT,
        proxy_headers=False,
        server_header=False,
        log_config=None,
        # At lower levels it tells paths with their queries, and headers with the tokens in them.
        log_level="warning",
        access_log=False,
    )
    return Server(config)
