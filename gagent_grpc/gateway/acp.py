"""The way to the bus over a gateway, as an `ACPClient` uses it: one socket at a time, found again when it is lost.

What has no receipt is sent again under the same id, so that it arrives once, and what comes a second time is told once.

Owns: the client's side of `/acp`. Leaves to others: the frames (`gateway.frames` has them from the other side), what waits to
be received (`client.acp.box`), the class that people use (`client.acp.client`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from gagent_grpc.acp.free_json import json_text, json_value
from gagent_grpc.acp.message import ACPMessage, ACPMessageType
from gagent_grpc.client.acp.box import ACPBox, Waiting
from gagent_grpc.client.acp.message import ReceivedACP, filled
from gagent_grpc.config import ClientLimits, GatewayLimits
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusError,
    BusUnreachable,
    DeliveryRefused,
    InvalidArgument,
    MessageTooLarge,
    PreconditionFailed,
    ProtocolViolation,
    SessionSuperseded,
    Unauthenticated,
    Unauthorised,
    restore,
)
from gagent_grpc.gateway.frames import PLATFORM
from gagent_grpc.gateway.origins import Address
from gagent_grpc.gateway.websocket import CloseCode

if TYPE_CHECKING:
    from gagent_grpc.client.acp.client import ACPcredentials, ACPLink

_logger = logging.getLogger(__name__)
_frame_logger = logging.getLogger(f"{__name__}.frames")
# Below this level websockets tells the headers with the token in them, and what messages say.
_frame_logger.setLevel(logging.INFO)

_FINAL = (AgentAlreadyRegistered, Unauthorised, Unauthenticated, InvalidArgument, PreconditionFailed)
"""Errors after which trying again by itself would be wrong or in vain."""
_ENDINGS: dict[int, type[BusError]] = {
    CloseCode.SUPERSEDED: SessionSuperseded,
    CloseCode.TERMINATED: PreconditionFailed,
    CloseCode.TOKEN_REVOKED: Unauthenticated,
}
_CLOSE_TIMEOUT = 5.0
"""Seconds for what was received to be acknowledged at the end, and for the farewell of a socket."""
_LONGEST_FIRST_WAIT = 0.2
"""Most seconds between attempts at the first socket: somebody waits in `open` meanwhile."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""Form of a bearer token (RFC 6750 §2.1)."""
_MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Largest frame of the gateway: a message of the largest size with all of its text escaped."""


class _Sent:
    """A message that has no receipt yet."""

    __slots__ = ("done", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class SocketLink:
    """A way to the bus over a gateway; made by `open_link`."""

    def __init__(self, url: str, agent_id: str, token: str, limits: ClientLimits) -> None:
        """Make it; nothing is connected yet."""
        parts = urlsplit(url)
        asked = {
            "window": str(min(limits.window_messages, GatewayLimits().window_messages)),
            **dict(parse_qsl(parts.query)),
            # Last, since it acknowledges by itself what was received, and nothing else.
            "agent": agent_id,
            "acks": "client",
        }
        self._url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/acp", urlencode(asked), ""))
        self._endpoint = parts.netloc.rpartition("@")[2]
        self._is_local = Address(parts.hostname or "", 0).is_loopback
        self._agent_id = agent_id
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._limits = limits
        self._aid = agent_id
        self._max_bytes = 0
        self._box = ACPBox(f"the client {agent_id}")
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        """By id, in the order in which they were sent."""
        self._unwritten: deque[_Sent] = deque()
        """Those that this socket has not seen."""
        self._acks: deque[str] = deque()
        self._wake = asyncio.Event()
        self._held: set[tuple[str | None, str | None]] = set()
        """Messages that wait to be received."""
        self._received: OrderedDict[tuple[str | None, str | None], None] = OrderedDict()
        """Messages that were."""
        self._opened = asyncio.Event()
        self._leaving = False
        self._over: BusError | None = None
        self._keeper: asyncio.Task[None] | None = None

    # ---- what an `ACPLink` does ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect; errors as `ACPLink.open`."""
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(connected))
        try:
            await connected
        except BaseException:
            await self._end()
            raise

    async def send(self, message: ACPMessage) -> ACPMessage:
        """Send a message and wait for its receipt; the socket is found again where it was lost.

        Raises:
            DeliveryRefused: The target was not reached.
            InvalidArgument: The message has a value that cannot be sent.
            MessageTooLarge: It is over the limit.
            PreconditionFailed: The link is closed.
            BusError: The link is over for another reason.
        """
        made = filled(message, self._aid)
        text = made.to_json()
        size = len(text.encode())
        if self._max_bytes and size > self._max_bytes:
            raise MessageTooLarge(size, self._max_bytes)
        if self._over is not None:
            raise self._over
        message_id = made.id or ""
        sent = self._sent.get(message_id)
        if sent is None:
            sent = self._sent[message_id] = _Sent(text)
            self._unwritten.append(sent)
            self._wake.set()
        elif sent.text != text:
            raise InvalidArgument(f"id {message_id}: another message with it is being sent", field="id")
        # The other one who sends the same is not to be cancelled with this one.
        await asyncio.shield(sent.done)
        return made

    async def get(self, timeout: float | None) -> ACPMessage:
        """Return the next message; errors as `ACPLink.get`."""
        return await self._box.get(timeout)

    async def aclose(self) -> None:
        """Disconnect, once what was received is acknowledged. Idempotent."""
        self._leaving = True
        self._wake.set()
        keeper = self._keeper
        if keeper is not None and self._opened.is_set():
            await asyncio.wait({keeper}, timeout=_CLOSE_TIMEOUT)
        await self._end()

    async def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait({keeper})
        self._finish(PreconditionFailed(f"{self._agent_id}: the client is closed"))

    def _finish(self, why: BusError) -> None:
        """Nothing comes and goes any more."""
        if self._over is None:
            self._over = why
        self._box.close(self._over)
        for sent in self._sent.values():
            if not sent.done.done():
                sent.done.set_exception(self._over)
                # Whoever sent it may have given up.
                sent.done.exception()
        self._sent.clear()
        self._unwritten.clear()

    # ---- one socket after the other --------------------------------------------------------------------------------

    async def _keep(self, connected: asyncio.Future[None]) -> None:
        """Hold a socket open until the link is closed or refused; ``connected`` hears of the first one."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._limits.connect_timeout
        attempt = 0
        while True:
            opened = False
            try:
                async with await self._connect() as socket:
                    self._take_up(json_value(await self._first_word(socket), "welcome"))
                    opened = True
                    if not connected.done():
                        connected.set_result(None)
                    self._opened.set()
                    await self._serve(socket)
                return
            except ConnectionClosed as closed:
                error = self._why(closed)
            except BusError as refused:
                error = refused
            except Exception as bug:
                _logger.exception("%s: the link failed", self._agent_id)
                error = ProtocolViolation(f"the link failed: {type(bug).__name__}")
            finally:
                self._opened.clear()
            late = not connected.done() and loop.time() >= give_up_at
            if isinstance(error, _FINAL) or late or self._leaving:
                if not connected.done():
                    connected.set_exception(error)
                self._finish(error)
                return
            _logger.info("%s: socket lost: %s", self._agent_id, error)
            attempt = 0 if opened else attempt + 1
            bound = min(self._limits.max_backoff, self._limits.initial_backoff * 2**attempt)
            if not connected.done():
                bound = min(bound, _LONGEST_FIRST_WAIT)
            # Each client waits on its own, so that no stampede forms.
            await asyncio.sleep(random.random() * bound)  # noqa: S311  # Jitter, not a secret.

    async def _connect(self) -> ClientConnection:
        """Return a new socket.

        Raises:
            BusError: Nobody answers, or that is refused.
        """
        try:
            return await connect(
                self._url,
                additional_headers=self._headers,
                open_timeout=self._limits.connect_timeout,
                close_timeout=_CLOSE_TIMEOUT,
                max_size=_MAX_FRAME_BYTES,
                compression=None,
                logger=_frame_logger,
                # Nobody else is on the way to this machine.
                proxy=None if self._is_local else True,
            )
        except InvalidStatus as error:
            raise _refusal(error, self._endpoint) from error
        except InvalidURI as error:
            raise InvalidArgument(f"no URL of a gateway: {error}", field="server_url") from error
        except (OSError, InvalidHandshake) as error:
            raise BusUnreachable(self._endpoint, "no gateway answers; it is served by gagent serve --web") from error

    async def _first_word(self, socket: ClientConnection) -> str:
        """Return the first frame of a socket.

        Raises:
            BusUnreachable: None came in time.
        """
        try:
            async with asyncio.timeout(self._limits.connect_timeout):
                return str(await socket.recv())
        except (TimeoutError, asyncio.CancelledError) as error:
            # What says nothing would not answer a farewell either.
            socket.transport.abort()
            if isinstance(error, TimeoutError):
                raise BusUnreachable(self._endpoint, "what answers says nothing; is it a gateway?") from error
            raise

    def _take_up(self, welcome: Any) -> None:
        if not isinstance(welcome, dict) or welcome.get("control") != "welcome":
            raise ProtocolViolation("the gateway did not begin with a welcome; is it of another version?")
        self._aid = str(welcome.get("agent") or self._agent_id)
        found = welcome.get("max_bytes")
        self._max_bytes = found if isinstance(found, int) else 0
        # Those of an earlier socket are void: what is not settled comes again, and is acknowledged then.
        self._acks.clear()
        self._unwritten = deque(self._sent.values())
        self._wake.set()

    async def _serve(self, socket: ClientConnection) -> None:
        """Read and write until the link is left.

        Raises:
            ConnectionClosed: The socket is closed, or lost.
        """
        reading = asyncio.create_task(self._read(socket))
        writing = asyncio.create_task(self._write(socket))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, writing):
                task.cancel()
            results = await asyncio.gather(reading, writing, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, ConnectionClosed):
                raise error
        for error in results:
            if isinstance(error, ConnectionClosed):
                raise error

    async def _write(self, socket: ClientConnection) -> None:
        """Write whatever waits; return once the link is left and all is said."""
        while True:
            while self._acks or self._unwritten:
                if self._acks:
                    await socket.send(self._acks.popleft())
                else:
                    sent = self._unwritten.popleft()
                    if not sent.done.done():
                        await socket.send(sent.text)
            if self._leaving and not self._sent:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            found = json_value(str(await socket.recv()), "frame")
            if not isinstance(found, dict):
                raise ProtocolViolation("the gateway sent a frame that is no object")
            if "type" in found:
                self._message(ACPMessage.from_dict(found))
            elif found.get("control") == "receipt":
                self._receipt(found)
            elif found.get("control") == "error":
                _logger.warning("%s: the gateway says: %s", self._agent_id, found.get("reason"))

    # ---- what comes ------------------------------------------------------------------------------------------------

    def _message(self, message: ACPMessage) -> None:
        if (
            message.type is ACPMessageType.ERROR
            and message.automatic
            and message.source == PLATFORM
            and message.in_reply_to in self._sent
        ):
            # The receipt, which comes next, says the same.
            return
        key = (message.source, message.id)
        if key in self._held:
            return
        if message.type is ACPMessageType.HEARTBEAT or key in self._received:
            self._acknowledge(key)
            return
        self._held.add(key)
        fields = {name: getattr(message, name) for name in ACPMessage.__dataclass_fields__}
        received = ReceivedACP(**fields, receiver=self._aid)
        self._box.put(Waiting(received, lambda: self._taken(key), lambda: self._held.discard(key)))

    def _taken(self, key: tuple[str | None, str | None]) -> None:
        self._held.discard(key)
        self._received[key] = None
        if len(self._received) > self._limits.handled_ids:
            self._received.popitem(last=False)
        self._acknowledge(key)

    def _acknowledge(self, key: tuple[str | None, str | None]) -> None:
        source, message_id = key
        self._acks.append(json_text({"control": "ack", "id": message_id, "source": source}, "ack"))
        self._wake.set()

    def _receipt(self, receipt: Mapping[str, Any]) -> None:
        sent = self._sent.pop(str(receipt.get("id")), None)
        self._wake.set()
        if sent is None or sent.done.done():
            return
        outcome, reason = str(receipt.get("outcome")), str(receipt.get("reason") or "")
        if outcome in {Outcome.ACCEPTED.name, Outcome.DUPLICATE.name}:
            sent.done.set_result(None)
        elif outcome == Outcome.TOO_LARGE.name and isinstance(receipt.get("size_bytes"), int):
            sent.done.set_exception(MessageTooLarge(receipt["size_bytes"], receipt.get("limit_bytes", 0)))
        elif outcome == Outcome.INVALID.name and not receipt.get("receiver"):
            sent.done.set_exception(InvalidArgument(reason, field=str(receipt.get("field") or "")))
        else:
            after = receipt.get("retry_after_ms")
            retry_after = after / 1000 if isinstance(after, int | float) else None
            receiver = str(receipt.get("receiver") or "")
            sent.done.set_exception(DeliveryRefused(outcome, receiver, reason, retry_after))
        # Whoever sent it may have given up.
        sent.done.exception()

    def _why(self, closed: ConnectionClosed) -> BusError:
        """Return the error that the end of a socket stands for."""
        code = closed.rcvd.code if closed.rcvd is not None else 1006
        reason = closed.rcvd.reason if closed.rcvd is not None else "the connection was lost"
        ending = _ENDINGS.get(code)
        if ending is not None:
            return ending(reason)
        return BusUnreachable(self._endpoint, reason or f"the socket was closed with {code}")


def open_link(url: str, agent_id: str, credentials: ACPcredentials, limits: ClientLimits | None) -> ACPLink:
    """Return a link over the gateway at ``url``, `ws://HOST:PORT/acp`, which is not open yet.

    Args:
        url: Where the gateway is.
        agent_id: The agent that the client is.
        credentials: What it shows of itself; its token goes into a header.
        limits: Intervals and bounds; None for the defaults.

    Raises:
        InvalidArgument: The URL has no host, or a user in it; or the token is none.
    """
    parts = urlsplit(url)
    if not parts.hostname or parts.username is not None:
        text = "server_url without a host, or with a user; expected ws://HOST:PORT/acp, and a token in the credentials"
        raise InvalidArgument(text, field="server_url")
    if credentials.token and not _TOKEN.fullmatch(credentials.token):
        # Such as the line end of the file that it was read from, which would begin another header.
        text = "the token has characters that no token has, such as a blank or a line end; expected such as gag_..."
        raise InvalidArgument(text, field="credentials")
    return SocketLink(url, agent_id, credentials.token, limits or ClientLimits())


def _refusal(error: InvalidStatus, endpoint: str) -> BusError:
    """Return the error that the answer to a request for a socket tells."""
    status = error.response.status_code
    found: Any = None
    with contextlib.suppress(ValueError):
        found = json.loads(error.response.body or b"")
    if isinstance(found, dict) and isinstance(found.get("code"), str) and isinstance(found.get("details"), dict):
        details = {str(name): str(value) for name, value in found["details"].items()}
        return restore(found["code"], str(found.get("error", "")), details)
    return BusUnreachable(endpoint, f"what answers is no gateway (HTTP {status})")
