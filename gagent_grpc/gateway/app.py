"""The gateway of a bus: where it listens, which sockets are open, and its end.

Owns: the paths, one socket for each agent, tokens that stop being valid, and the order of the end. Leaves to others: one
socket (`gateway.websocket`), who may open it (`gateway.admission`), the server under it (`gateway.wire`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gagent_grpc.client.agent import Agent
from gagent_grpc.config import ClientLimits, GatewayLimits
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusDraining,
    BusError,
    ConfigurationError,
    PreconditionFailed,
    ResourceExhausted,
)
from gagent_grpc.gateway.admission import Admission, admit, http_status
from gagent_grpc.gateway.origins import Address, Origins
from gagent_grpc.gateway.websocket import CloseCode, Socket
from gagent_grpc.gateway.wire import bind, server
from gagent_grpc.security.tokens import TokenFile

_logger = logging.getLogger(__name__)

PATH = "/acp"
"""Where ACP messages go in and out."""


class Gateway:
    """The sockets of one gateway. Made by `open_gateway`."""

    def __init__(self, bus: str, tokens: TokenFile, limits: GatewayLimits) -> None:
        """Let nobody in before `listens_at` was said."""
        self.address = ""
        """`HOST:PORT` where it listens; the port is the real one when 0 was asked for."""
        self._bus = bus
        self._tokens = tokens
        self._limits = limits
        self._origins: Origins | None = None
        self._sockets: dict[str, Socket] = {}
        """By the local name of the agent."""
        self._draining = False

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws://{self.address}{PATH}"

    @property
    def sockets(self) -> int:
        """How many are open, or being opened."""
        return len(self._sockets)

    @property
    def routes(self) -> list[BaseRoute]:
        """The paths that it serves."""
        return [
            Route("/healthz", self._health),
            WebSocketRoute(PATH, self._socket),
            Route(PATH, _no_socket),
        ]

    def listens_at(self, address: Address, origins: Sequence[str]) -> None:
        """Take callers, which know the gateway by this address; pages of it and of ``origins`` may connect.

        Raises:
            ConfigurationError: One of these is no origin.
        """
        self._origins = Origins(address, origins)
        self.address = str(address)

    async def check_tokens(self) -> None:
        """Read the tokens again whenever their file has changed, and close the sockets of those that ended. Never returns."""
        while True:
            await asyncio.sleep(self._limits.token_check_interval)
            self._refresh_tokens()
            for socket in list(self._sockets.values()):
                token = socket.admission.token
                if token is None and self._tokens.required:
                    # Who came in by the open door is out with the first token.
                    socket.end(CloseCode.TOKEN_REVOKED, "a token is required now")
                elif token is not None and not self._tokens.stands_for(token, socket.admission.name):
                    socket.end(CloseCode.TOKEN_REVOKED, "the token is not valid any more")

    def _refresh_tokens(self) -> None:
        try:
            if self._tokens.refresh():
                _logger.info("tokens read again: %d", len(self._tokens.tokens))
        except ConfigurationError as error:
            _logger.error("tokens are as they were before: %s", error)  # noqa: TRY400  # No bug of ours.

    async def drain(self) -> None:
        """Let nobody in any more, and close every socket as one that finds a bus again later. Idempotent."""
        self._draining = True
        sockets = list(self._sockets.values())
        for socket in sockets:
            socket.end(CloseCode.SERVICE_RESTART, "the bus shuts down")
        await asyncio.gather(*(socket.closed.wait() for socket in sockets))

    # ---- sockets ---------------------------------------------------------------------------------------------------

    async def _socket(self, websocket: WebSocket) -> None:
        """Serve one socket, or answer its request with the reason why not."""
        try:
            admission = self._admit(websocket)
            await self._make_way(admission)
        except BusError as error:
            await _deny(websocket, error)
            return
        limits = ClientLimits(
            window_messages=admission.window,
            window_bytes=self._limits.window_bytes,
            # What is claimed waits outside the lanes, but for what came as ACL messages.
            concurrency=admission.window,
        )
        agent = Agent(admission.agent, bus=self._bus, ephemeral=admission.ephemeral, limits=limits)
        socket = Socket(websocket, admission, agent, self._limits)
        self._sockets[admission.name] = socket
        try:
            try:
                await agent.__aenter__()
                if socket.ending:
                    raise PreconditionFailed(f"{agent.name}: the socket ends before it is open")
            except BusError as error:
                await _deny(websocket, error)
                return
            _logger.info("%s: socket opened%s", agent.name, _by(admission))
            await socket.run()
        finally:
            try:
                await socket.leave()
            finally:
                if self._sockets.get(admission.name) is socket:
                    del self._sockets[admission.name]
                socket.closed.set()

    def _admit(self, websocket: WebSocket) -> Admission:
        if self._draining or self._origins is None:
            raise BusDraining("the bus shuts down; look for it again later")
        # A token that was issued just now is good at once, and one that was revoked is not.
        self._refresh_tokens()
        admission = admit(
            websocket.scope["headers"],
            websocket.scope["query_string"],
            tokens=self._tokens,
            origins=self._origins,
            limits=self._limits,
        )
        if len(self._sockets) >= self._limits.max_sockets and admission.name not in self._sockets:
            raise ResourceExhausted(f"{self._limits.max_sockets:,} sockets are open; expected fewer")
        return admission

    async def _make_way(self, admission: Admission) -> None:
        """Have an older socket of the agent end: at once for the same token, else when its client is not there any more.

        Raises:
            AgentAlreadyRegistered: It is there.
        """
        while (holder := self._sockets.get(admission.name)) is not None:
            token, held_by = admission.token, holder.admission.token
            is_same = token is not None and held_by is not None and token.id == held_by.id
            if not is_same and not holder.ending and await holder.is_alive(self._limits.probe_timeout):
                raise AgentAlreadyRegistered(admission.name, why="another socket is open and answers")
            holder.end(CloseCode.SUPERSEDED, "a newer socket of the agent took over")
            await holder.closed.wait()
        if self._draining:
            raise BusDraining("the bus shuts down; look for it again later")

    async def _health(self, request: Request) -> Response:
        if self._draining:
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok"})


@contextlib.asynccontextmanager
async def open_gateway(
    bus: str,
    *,
    listen: str = "127.0.0.1:0",
    tokens: Path | None = None,
    origins: Iterable[str] = (),
    require_token: bool = False,
    insecure: bool = False,
    routes: Sequence[BaseRoute] = (),
    limits: GatewayLimits | None = None,
) -> AsyncIterator[Gateway]:
    """Serve the bus at ``bus`` over WebSocket while the block lasts; leaving it closes every socket.

    Args:
        bus: `HOST:PORT` of the bus.
        listen: `HOST:PORT`; port 0 takes a free one.
        tokens: File of tokens; None, or one without tokens, asks for none.
        origins: Origins beside its own whose pages may connect, `SCHEME://HOST[:PORT]`.
        require_token: Ask for a token also while there is none.
        insecure: Allow an address that is not loopback, without TLS.
        routes: Further paths.
        limits: Bounds of the gateway; the defaults of `GatewayLimits`.

    Raises:
        ConfigurationError: The address is none, is not loopback, or cannot be bound; an origin is none; or the tokens cannot
            be read.
    """
    bounds = limits or GatewayLimits()
    address = Address.parse(listen)
    if not (insecure or address.is_loopback):
        raise ConfigurationError(
            f"web address {listen!r} is not loopback, and this gateway has no TLS: anybody on the way reads tokens and "
            "messages. Serve on 127.0.0.1, or say --insecure if the network is yours alone."
        )
    found = TokenFile(tokens)
    found.read()
    found.required = found.required or require_token
    gateway = Gateway(bus, found, bounds)
    # Before it listens, so that a bad origin is heard of first.
    Origins(address, origins := list(origins))
    with contextlib.closing(bind(address)) as listener:
        gateway.listens_at(Address(address.host, listener.getsockname()[1]), origins)
        http = server(Starlette(routes=[*gateway.routes, *routes]), bounds)
        serving = asyncio.create_task(http.serve(sockets=[listener]))
        checking = asyncio.create_task(gateway.check_tokens())
        _logger.info("gateway listens: %s, %s", gateway.url, _asks_for(found))
        try:
            yield gateway
        finally:
            checking.cancel()
            await gateway.drain()
            http.should_exit = True
            await asyncio.gather(serving, checking, return_exceptions=True)


async def _no_socket(request: Request) -> Response:
    text = f"{PATH} is for WebSocket: connect to ws://HOST:PORT{PATH}?agent=NAME"
    return JSONResponse({"code": "UPGRADE_REQUIRED", "error": text}, 426, headers={"Upgrade": "websocket"})


async def _deny(websocket: WebSocket, error: BusError) -> None:
    """Answer a request for a socket with an error, as HTTP says it."""
    status = http_status(error)
    _logger.info("socket refused: %d %s", status, error.code)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    body = {"code": error.code, "error": str(error), "details": error.details()}
    with contextlib.suppress(OSError):
        await websocket.send_denial_response(JSONResponse(body, status, headers=headers))


def _by(admission: Admission) -> str:
    return f" by token {admission.token.id}" if admission.token is not None else ""


def _asks_for(tokens: TokenFile) -> str:
    return "with a token" if tokens.required else "no token: the developer's default, as long as none was issued"
