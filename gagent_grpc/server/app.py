"""A bus in this process: platform, store and gRPC server, started and stopped together.

Owns: the order of start and stop, and where a bus may listen. The one place that joins the platform to its codec.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gagent_grpc.bus.platform import Platform
from gagent_grpc.bus.ports import Store
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import DEFAULT_PLATFORM, BusLimits
from gagent_grpc.errors import ConfigurationError
from gagent_grpc.pb.gagent.v1 import (
    admin_service_pb2_grpc,
    ams_service_pb2_grpc,
    context_service_pb2_grpc,
    df_service_pb2_grpc,
    task_service_pb2_grpc,
)
from gagent_grpc.server import reflection
from gagent_grpc.server.admin_servicer import AdminServicer
from gagent_grpc.server.ams_servicer import AmsServicer
from gagent_grpc.server.bus_servicer import BusServicer
from gagent_grpc.server.clock import SteadyClock
from gagent_grpc.server.context_servicer import ContextServicer
from gagent_grpc.server.df_servicer import DfServicer
from gagent_grpc.server.interceptors import ErrorInterceptor
from gagent_grpc.server.options import max_concurrent_rpcs, max_connections, server_options
from gagent_grpc.server.task_servicer import TaskServicer

_log = logging.getLogger(__name__)


class Bus:
    """A running bus. Made by `open_bus`."""

    def __init__(
        self,
        platform: Platform,
        server: grpc.aio.Server,
        health: health.aio.HealthServicer,
        address: str,
        stop_requested: asyncio.Event,
    ) -> None:
        self.platform = platform
        self.address = address
        """`host:port` where it listens; the port is the real one when 0 was asked for."""
        self.stop_requested = stop_requested
        """An operator asked for the end: the bus drains, and whoever opened it is to leave its block."""
        self._server = server
        self._health = health
        self._stopped = False

    async def drain(self) -> None:
        """Stop politely: take nothing new, tell every session, end streams with OK. Mail stays stored. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        # First of all, so that whoever balances load sends nobody here any more.
        await self._health.enter_graceful_shutdown()
        await self.platform.drain()
        # Last, since those who watch see how it ends.
        self.platform.post.traffic.close()
        self.platform.tasks.close()
        self.platform.contexts.close()
        # Sessions have ended by now; this waits for unary calls and refuses new ones.
        await self._server.stop(self.platform.limits.drain_grace)

    async def drain_on_request(self) -> None:
        """Wait until the end is asked for, and drain."""
        await self.stop_requested.wait()
        await self.drain()


@contextlib.asynccontextmanager
async def open_bus(
    store: Store,
    *,
    listen: str = "127.0.0.1:0",
    platform: str = DEFAULT_PLATFORM,
    limits: BusLimits | None = None,
    insecure: bool = False,
) -> AsyncIterator[Bus]:
    """Run a bus in this process while the block lasts; leaving it drains the bus.

    Args:
        store: Where the platform keeps what must survive. Opened and closed here.
        listen: `host:port`; port 0 takes a free one.
        platform: Name of the platform.
        limits: Bounds of the bus; the defaults of `config`.
        insecure: Allow an address that is not loopback, without TLS and credentials.

    Raises:
        ConfigurationError: The address is not loopback, cannot be bound, or the store belongs to somebody else.
        StoreUnavailable: The store cannot be read.
    """
    bounds = limits or BusLimits()
    check_listen(listen, insecure=insecure)
    core = Platform(platform, store, EnvelopeCodec(max_id_bytes=bounds.max_id_bytes), SteadyClock(), bounds)
    async with core.running():
        server = grpc.aio.server(
            interceptors=[ErrorInterceptor()],
            options=server_options(bounds),
            maximum_concurrent_rpcs=max_concurrent_rpcs(bounds),
        )
        healthiness = health.aio.HealthServicer()
        server.add_generic_rpc_handlers((BusServicer(core).handlers(), *reflection.handlers()))
        ams_service_pb2_grpc.add_AmsServiceServicer_to_server(AmsServicer(core), server)
        df_service_pb2_grpc.add_DfServiceServicer_to_server(DfServicer(core), server)
        task_service_pb2_grpc.add_TaskServiceServicer_to_server(TaskServicer(core), server)
        context_service_pb2_grpc.add_ContextServiceServicer_to_server(ContextServicer(core), server)
        stop_requested = asyncio.Event()
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(core, stop_requested), server)
        health_pb2_grpc.add_HealthServicer_to_server(healthiness, server)
        port = _bind(server, listen)
        for service in ("", *reflection.SERVICES):
            await healthiness.set(service, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        bus = Bus(core, server, healthiness, f"{listen.rpartition(':')[0]}:{port}", stop_requested)
        core.addresses.append(bus.address)
        _log.info("bus listens: %s, platform %r, up to %d connections", bus.address, platform, max_connections(bounds))
        draining = asyncio.create_task(bus.drain_on_request())
        try:
            yield bus
        finally:
            # One way to the end, whoever begins it; a drain that is under way is waited for.
            stop_requested.set()
            await draining


def check_listen(listen: str, *, insecure: bool) -> None:
    """Make sure that a bus may listen at ``listen``.

    Raises:
        ConfigurationError: No `host:port`, or an address that is not loopback without ``insecure``.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(
            f"listen address {listen!r}: expected HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051"
        )
    if not insecure and not is_loopback(host):
        raise ConfigurationError(
            f"listen address {listen!r} is not loopback, and this bus has no TLS and no credentials: anybody who reaches it "
            "can read and send everything. Listen on 127.0.0.1, or say --insecure if the network is yours alone."
        )


def is_loopback(host: str) -> bool:
    """Return whether ``host`` can be reached from this machine only."""
    bare = host.strip("[]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _bind(server: grpc.aio.Server, listen: str) -> int:
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise ConfigurationError(
            f"cannot listen at {listen}: the address is in use, or not of this machine. "
            "Is another bus running there? Choose another one with --listen HOST:PORT"
        ) from error
    return int(port)
