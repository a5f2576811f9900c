"""`ACPClient`: a simple client of the ACP interface, for whoever sends messages to agents and reads what comes back.

Owns: what its URL means. Leaves to others: the way over gRPC (`client.agent`), the way over WebSocket (`gateway.acp`).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from gagent_grpc.acl.aid import split_aid
from gagent_grpc.acp.message import ACPMessage, ACPMessageType
from gagent_grpc.client.acp.box import ACPBox, Waiting
from gagent_grpc.client.acp.message import ReceivedACP
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.transport import endpoints
from gagent_grpc.config import ClientLimits
from gagent_grpc.errors import BusError, InvalidArgument, PreconditionFailed, shown

_logger = logging.getLogger(__name__)

GATEWAY_MODULE = "gagent_grpc.gateway.acp"
"""Module that connects over WebSocket, by its function `open_link(url, agent_id, credentials, limits)`; see `ACPLink`."""
_GATEWAY_SCHEMES = frozenset({"ws", "wss"})


@dataclass(frozen=True, slots=True)
class ACPcredentials:
    """What an `ACPClient` shows of itself."""

    token: str = field(default="", repr=False)
    """Bearer token; "" for none."""


class ACPLink(Protocol):
    """A way to the bus, as an `ACPClient` uses it."""

    async def open(self) -> None:
        """Connect.

        Raises:
            BusError: That was refused, or nobody answers.
        """
        ...

    async def send(self, message: ACPMessage) -> ACPMessage:
        """Send a message; return it as it was sent.

        Raises:
            BusError: It was not taken.
        """
        ...

    async def get(self, timeout: float | None) -> ACPMessage:
        """Return the next message.

        Raises:
            TimeoutError: None came in time.
            BusError: The link is over.
        """
        ...

    async def aclose(self) -> None:
        """Disconnect. Idempotent."""
        ...


class ACPClient:
    """A client that sends ACP messages to agents and reads what they send. Open while its block lasts, or from `connect` to
    `aclose`.

        async with ACPClient("127.0.0.1:50051", "visitor") as client:
            await client.send_direct_message("helper", "What can you do?")
            print((await client.receive()).content)

    It is an agent of the bus like any other. An agent that speaks ACL alone is asked and answers in the same way.
    """

    def __init__(
        self,
        server_url: str,
        agent_id: str,
        credentials: ACPcredentials | None = None,
        *,
        limits: ClientLimits | None = None,
    ) -> None:
        """Make a client; nothing is connected yet.

        Args:
            server_url: `grpc://HOST:PORT` or `HOST:PORT` of the bus, several separated by commas; or `ws://HOST:PORT/acp` of
                its gateway.
            agent_id: Name under which the client sends, `name` or `name@platform`.
            credentials: What it shows of itself, to a gateway. Over gRPC the bus does not ask for any yet, and a token is not
                sent.
            limits: Intervals and bounds; the defaults of `ClientLimits`.

        Raises:
            InvalidName: ``agent_id`` is no valid name.
            InvalidArgument: ``server_url`` is none of these.
        """
        split_aid(agent_id)
        scheme, _, rest = server_url.rpartition("://")
        if scheme not in {"", "grpc"} | _GATEWAY_SCHEMES or not rest:
            text = f"server_url {shown(server_url)}; expected grpc://HOST:PORT, HOST:PORT or ws://HOST:PORT/acp"
            raise InvalidArgument(text, field="server_url")
        bus = rest.rstrip("/")
        if scheme not in _GATEWAY_SCHEMES:
            # So that a bad address is heard of here.
            endpoints(bus)
        self.server_url = server_url
        self.agent_id = agent_id
        """As it was given."""
        self._bus = "" if scheme in _GATEWAY_SCHEMES else bus
        self._credentials = credentials or ACPcredentials()
        self._limits = limits
        self._link: ACPLink | None = None

    async def connect(self) -> None:
        """Connect.

        Raises:
            PreconditionFailed: The client is connected.
            Unauthenticated: The gateway does not know the token, or asks for one.
            Unauthorised: The token does not stand for this agent.
            BusUnreachable: No bus answered in time.
            AgentAlreadyRegistered: Somebody else holds the name.
            BusError: The bus refused the session for another reason.
        """
        if self._link is not None:
            raise PreconditionFailed(f"{self.agent_id}: the client is connected already")
        if self._bus:
            if self._credentials.token:
                _logger.warning("%s: the bus asks for no credentials yet; the token is not sent", self.agent_id)
            link: ACPLink = _BusLink(self._bus, self.agent_id, self._limits)
        else:
            link = _gateway()(self.server_url, self.agent_id, self._credentials, self._limits)
        await link.open()
        self._link = link

    async def send_direct_message(
        self,
        target: str,
        content: Any,
        *,
        type: ACPMessageType | str = ACPMessageType.REQUEST,  # noqa: A002  # ACP's word.
        **fields: Any,
    ) -> ACPMessage:
        """Send a message to one agent, and return it as it was sent; its `id` is what an answer names as `in_reply_to`.

        Args:
            target: The agent, or `role:TYPE`.
            content: JSON value.
            type: Type of the message; a REQUEST, which is answered by a RESPONSE or an ERROR.
            fields: Further fields, as `ACPMessage` has them, such as ``metadata``.

        Raises:
            PreconditionFailed: The client is not connected.
            DeliveryRefused: The target was not reached.
            InvalidArgument, MessageTooLarge, BusError: As `Agent.send_acp`.
        """
        message = ACPMessage(type=ACPMessageType.parse(type), target=target, content=content, **fields)
        return await self._connected().send(message)

    async def receive(self, timeout: float | None = None) -> ACPMessage:
        """Return the next message, of whoever it is, and acknowledge it. Heartbeats are left out.

        Args:
            timeout: Seconds to wait; None for as long as it takes.

        Raises:
            TimeoutError: None came in time.
            PreconditionFailed: The client is not connected, or was closed meanwhile.
            BusError: The session is over.
        """
        return await self._connected().get(timeout)

    async def __aiter__(self) -> AsyncIterator[ACPMessage]:
        """Iterate over the messages that come, until the client is closed.

        Raises:
            BusError: The session is over, as for an agent that was terminated.
        """
        while (link := self._link) is not None:
            try:
                message = await link.get(None)
            except PreconditionFailed:
                if self._link is link:
                    # Nobody closed the client: there will be no message any more, however often it is asked for one.
                    raise
                continue
            yield message

    async def aclose(self) -> None:
        """Disconnect; what was not received comes again to the next session. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _connected(self) -> ACPLink:
        if self._link is None:
            text = "the client is not connected; use it inside `async with`, or after `connect`"
            raise PreconditionFailed(f"{self.agent_id}: {text}")
        return self._link


class _BusLink:
    """The way over gRPC: an agent of whom everything waits until it is received."""

    def __init__(self, bus: str, name: str, limits: ClientLimits | None) -> None:
        self._agent = Agent(name, bus=bus, limits=limits)
        self._agent._acp.attach({}, self._claim)
        self._box = ACPBox(f"the client {name}")
        self._watcher: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._agent.__aenter__()
        self._watcher = asyncio.create_task(self._watch())

    async def send(self, message: ACPMessage) -> ACPMessage:
        made = self._agent.filled(message)
        await self._agent.send_acp(made)
        return made

    async def get(self, timeout: float | None) -> ACPMessage:
        return await self._box.get(timeout)

    async def aclose(self) -> None:
        watcher, self._watcher = self._watcher, None
        # Handlers are not begun any more, or what is given back would come here once more.
        self._agent.pause()
        self._box.close()
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
        await self._agent.aclose()

    def _claim(self, message: ReceivedACP, take: Callable[[], None], give_back: Callable[[], None]) -> bool:
        if message.type is ACPMessageType.HEARTBEAT:
            take()
        else:
            self._box.put(Waiting(message, take, give_back))
        return True

    async def _watch(self) -> None:
        """Tell whoever waits for a message when there will be no session any more."""
        try:
            await self._agent.wait()
        except BusError as error:
            self._box.close(error)
        else:
            self._box.close()


def _gateway() -> Callable[..., ACPLink]:
    """Return the function that makes a link over WebSocket."""
    # By name, and once it is wanted: the gateway is a client of this package, and most clients have no use for it.
    found: Callable[..., ACPLink] = importlib.import_module(GATEWAY_MODULE).open_link
    return found
