"""`Operator`: calls of a bus without being an agent, for the command line and for tools."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import grpc

from gagent_grpc.client.admin import AdminClient
from gagent_grpc.client.ams import AmsClient
from gagent_grpc.client.df import DfClient
from gagent_grpc.client.task_calls import TaskCalls
from gagent_grpc.client.tasks import Following
from gagent_grpc.client.transport import Calls, endpoints, open_channel
from gagent_grpc.config import ClientLimits
from gagent_grpc.errors import BusUnreachable, PreconditionFailed


class Operator(Following):
    """Unary calls to a bus, in the name of nobody in particular. Open while its block lasts."""

    token = ""
    """Nobody's."""

    def __init__(
        self, bus: str | None = None, *, timeout: float | None = None, limits: ClientLimits | None = None
    ) -> None:
        """Make an operator; nothing is connected yet.

        Args:
            bus: `HOST:PORT[,HOST:PORT]`; the first one that answers is used.
            timeout: Seconds for each call; `call_timeout` by default.
            limits: Intervals and bounds; the defaults of `ClientLimits`.

        Raises:
            InvalidArgument: An endpoint is not HOST:PORT.
        """
        limits = limits or ClientLimits()
        self._endpoints = endpoints(bus)
        self._connect_timeout = min(limits.connect_timeout, timeout or limits.connect_timeout)
        self._channel: grpc.aio.Channel | None = None
        self.endpoint = self._endpoints[0]
        calls = Calls(self, timeout or limits.call_timeout, limits)
        self.ams = AmsClient(calls)
        """The agent management system."""
        self.df = DfClient(calls)
        """The directory facilitator."""
        self.admin = AdminClient(calls)
        """Counts, dead letters, and the end of the bus."""
        self._task_calls = TaskCalls(calls)

    async def __aenter__(self) -> Self:
        """Connect to the first endpoint that answers.

        Raises:
            BusUnreachable: None does.
        """
        for endpoint in self._endpoints:
            channel = open_channel(endpoint)
            if await _ready(channel, self._connect_timeout):
                self._channel = channel
                self.endpoint = endpoint
                return self
            await channel.close()
        raise BusUnreachable(",".join(self._endpoints))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def reach(self) -> grpc.aio.Channel:
        """Return the channel in use.

        Raises:
            PreconditionFailed: The operator is not open.
        """
        if self._channel is None:
            raise PreconditionFailed("the operator is not open; use it inside `async with operator`")
        return self._channel


async def _ready(channel: grpc.aio.Channel, timeout: float) -> bool:
    """Return whether a channel connects; a refused connection is told at once, a silent host after ``timeout``."""
    try:
        async with asyncio.timeout(timeout):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    return False
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return True
