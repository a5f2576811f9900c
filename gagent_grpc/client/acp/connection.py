"""An ACP connection: what one agent says to another and hears from it, as a view on the one session with the bus.

Owns: the calls on one peer, and trying again. Leaves to others: which message is from whom (`client.acp.service`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gagent_grpc.acp.message import ACPMessage, ACPMessageType
from gagent_grpc.client.acp.box import ACPBox, Waiting
from gagent_grpc.client.acp.message import ReceivedACP
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import BusError, BusUnreachable, DeliveryRefused, InvalidArgument, Unavailable

if TYPE_CHECKING:
    from gagent_grpc.client.agent import Agent

_JITTER = 0.2
"""How much a wait may be longer or shorter, as a part of it: agents that failed together do not come back together."""


class ACPConnection:
    """A connection of one agent with another one; made by `ACPService.connect`.

    It opens no socket of its own: all of them share the session of the agent, which is found again when it is lost. What the
    peer sends and no handler is for waits here, unacknowledged, until `recv` takes it.
    """

    def __init__(
        self, agent: Agent, target: str, limits: ClientLimits, *, closed: Callable[[ACPConnection], None]
    ) -> None:
        """Make it; ``closed`` hears of its end."""
        self.target = target
        """The peer."""
        self.last_seen: datetime | None = None
        """When its last message was made; None before the first one."""
        self.box = ACPBox(f"the connection with {target}")
        """What it has sent."""
        self._agent = agent
        self._limits = limits
        self._closed = closed

    def __repr__(self) -> str:
        return f"<ACPConnection with {self.target}{' (closed)' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed, by whoever made it, with its service, or since the peer is gone."""
        return self.box.closed

    async def send(self, message: ACPMessage) -> ACPMessage:
        """Send a message to the peer, and return it as it was sent: with its id, source, time and metadata.

        Raises:
            DeliveryRefused: The peer was not reached.
            InvalidArgument, MessageTooLarge, PreconditionFailed, BusError: As `Agent.send_acp`.
        """
        made = self._addressed(message)
        await self._agent.send_acp(made)
        return made

    async def send_with_retry(self, message: ACPMessage, max_retries: int = 3) -> ACPMessage:
        """Send a message, again where it was not taken for a passing reason, and return it as it was sent.

        Every attempt has the same id, so that the message arrives once however many of them got through. Between attempts
        there is 1 s, then 2 s and so on, a fifth more or less, and the session is found again where it was lost.

        Args:
            message: What is sent.
            max_retries: Attempts in all; at least 1.

        Raises:
            DeliveryRefused: The peer was not reached: refused for good, or for a passing reason in the last attempt.
            BusUnreachable: The bus said nothing to any attempt within `call_timeout` (10 s) each. What is on its way may
                still arrive.
            InvalidArgument: ``max_retries`` is no such number; or as for `send`.
            MessageTooLarge, PreconditionFailed, BusError: As `send`.
        """
        if not isinstance(max_retries, int) or max_retries < 1:
            raise InvalidArgument(f"max_retries {max_retries!r}; expected 1 or more", field="max_retries")
        made = self._addressed(message)
        wait, failure = self._limits.initial_backoff, BusError("no attempt was made")
        for attempt in range(max_retries):
            if attempt:
                await asyncio.sleep(wait * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311  # No secret.
                wait *= 2
            try:
                async with asyncio.timeout(self._limits.call_timeout):
                    await self._agent.send_acp(made)
                return made
            except TimeoutError:
                failure = BusUnreachable(
                    self._agent._session.endpoint, f"no receipt within {self._limits.call_timeout:g} s"
                )
            except DeliveryRefused as refused:
                if not Outcome[refused.outcome].retryable:
                    raise
                failure = refused
            except Unavailable as error:
                failure = error
        raise failure

    async def recv(self, timeout: float | None = None) -> ReceivedACP:
        """Return the next message of the peer that no handler is for, and acknowledge it. Heartbeats are left out.

        Args:
            timeout: Seconds to wait; None for as long as it takes.

        Raises:
            TimeoutError: None came in time.
            PreconditionFailed: The connection is closed.
            AgentNotRegistered: The peer is gone.
            BusError: The session is over.
        """
        return await self.box.get(timeout)

    async def __aiter__(self) -> AsyncIterator[ReceivedACP]:
        """Iterate over the messages of the peer, as `recv` returns them, until the connection is closed."""
        while True:
            try:
                message = await self.recv()
            except BusError:
                if self.closed:
                    return
                raise
            yield message

    def heard(self, message: ReceivedACP, take: Callable[[], None], give_back: Callable[[], None]) -> None:
        """Take a message of the peer: (message, acknowledge it, give it back). A HEARTBEAT says no more than its time."""
        self.last_seen = message.timestamp
        if message.type is ACPMessageType.HEARTBEAT:
            take()
        else:
            self.box.put(Waiting(message, take, give_back))

    async def aclose(self) -> None:
        """Close it: what was not taken is somebody else's. Idempotent."""
        self.close()

    def close(self, why: BusError | None = None) -> None:
        """As `aclose`; whoever waits gets ``why``."""
        self.box.close(why)
        self._closed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _addressed(self, message: ACPMessage) -> ACPMessage:
        return self._agent.filled(message.replace(target=self.target))
