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

import h11
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
"""Seconds within which a connection has to have asked for something: a new one, or one whose last request was answered."""
_PIECE_BYTES = 16 * 1024
"""Bytes of a connection that are parsed in one turn of the loop."""
_MOST_UNREAD_PONGS = 1_000
"""Pings of a peer that reads nothing, after which its connection is closed: each one is answered."""
_STOP_TIMEOUT = 2
"""Seconds that connections get to end, once the sockets of agents are closed."""
_HEADER_BYTES = 64 * 1024
"""Most bytes of the headers of a request that are read before it is refused."""
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 48\r\n\r\nthe headers are too many, or one is over 8 KiB.\n"
)


class Wire(WebSocketsSansIOProtocol):
    """One WebSocket connection, as uvicorn has it, and what its application wants to know of it beside."""

    heard_at = 0.0
    """When the peer was heard of last, by the clock of the loop."""
    on_pong: Callable[[bytes], None] | None = None
    """Hears of each pong and what is in it."""
    _rest = b""
    """What has come and is not parsed yet; nothing more is read meanwhile."""
    _is_parse_due = False
    """Whether `_parse_piece` is called in the next turn of the loop."""
    _unread_pongs = 0
    """Answers to pings since the peer read last."""
    _given_up: asyncio.TimerHandle | None = None
    """Aborts the connection; None before `give_up`."""

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
        if self._rest or len(data) > _PIECE_BYTES:
            self._rest += data
            self._parse_later()
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated and self.conn.handshake_exc is not None:
            # Headers of a size that the HTTP parser takes and the one of WebSocket does not: it says nothing about it, and
            # nobody would end the connection.
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _parse_later(self) -> None:
        """Have the next piece of what has come parsed in a turn of its own, unless the application has enough to do.

        What comes at once may be tens of thousands of frames, which nobody else is to wait for.
        """
        if not self._rest or self.transport.is_closing():
            self._rest = b""
            if not (self.read_paused or self.transport.is_closing()):
                self.transport.resume_reading()
            return
        self.transport.pause_reading()
        if not (self.read_paused or self._is_parse_due):
            self._is_parse_due = True
            self.loop.call_soon(self._parse_piece)

    def _parse_piece(self) -> None:
        self._is_parse_due = False
        if not (self.read_paused or self.transport.is_closing()):
            piece, self._rest = self._rest[:_PIECE_BYTES], self._rest[_PIECE_BYTES:]
            self._parse(piece)
        self._parse_later()

    async def receive(self) -> Any:
        message = await super().receive()
        if self._rest:
            self._parse_later()
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        if self._given_up is not None:
            self._given_up.cancel()
        super().connection_lost(exc)

    def handle_cont(self, event: Frame) -> None:
        # Gathered in one place: in a list of their own, a message of a million fragments takes a hundred times its size, and
        # one of empty fragments has no end.
        frames: list[Any] = self.frames
        if not isinstance(frames[0], bytearray):
            frames[0] = bytearray(frames[0])
        frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        super().handle_ping()
        # Answers are written whether the peer reads or not, so that one who does not would fill the memory with them.
        self._unread_pongs = 0 if self.writable.is_set() else self._unread_pongs + 1
        if self._unread_pongs > _MOST_UNREAD_PONGS:
            self.abort()

    def handle_pong(self, event: Frame) -> None:
        super().handle_pong(event)
        if self.on_pong is not None:
            self.on_pong(bytes(event.data))

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self._rest:
            # After its last words, the answer of the peer waits behind what it has said before.
            self._parse_later()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # It has been answered: uvicorn tells an error in the log otherwise, for each request that is refused.
            self.handshake_complete = True

    def ping(self, payload: bytes) -> None:
        """Send a ping; nothing once the connection is being closed."""
        if self.handshake_complete and not (self.close_sent or self.disconnected or self.transport.is_closing()):
            self.conn.send_ping(payload)
            self.transport.write(b"".join(self.conn.data_to_send()))

    def give_up(self, after: float) -> None:
        """Abort the connection in ``after`` seconds, unless it has ended by then: what nobody reads would hold it for ever."""
        if not self.disconnected:
            self._given_up = self.loop.call_later(after, self.abort)

    def abort(self) -> None:
        """Close the connection with what waits to be written left unsaid."""
        self.stop_keepalive()
        self.transport.abort()


class Http(H11Protocol):
    """One HTTP connection; one on which nobody asks for anything, or never comes to the end of it, is closed after a while."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # [override]: uvicorn's.
        super().connection_made(transport)
        self._deadline = self.loop.call_later(_REQUEST_TIMEOUT, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(_REQUEST_TIMEOUT, self._too_late)
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._cancel_deadline()
        super().handle_websocket_upgrade(event)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _too_late(self) -> None:
        # Typed as if there always were one.
        cycle: Any = self.cycle
        is_being_answered = cycle is not None and not cycle.response_complete
        if not is_being_answered or self.conn.their_state is h11.SEND_BODY:
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
