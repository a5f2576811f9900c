"""The stream of `WatchTraffic`: events of `bus.traffic` as they travel, written for as long as somebody reads.

Owns: their form on the wire, and that contents go only to whoever asked for them. Leaves to others: what is told
(`bus.traffic`), who may watch (`server.admin_servicer`).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from gagent_grpc.bus.platform import Platform
from gagent_grpc.bus.traffic import TrafficEvent
from gagent_grpc.codec.times import timestamp_of
from gagent_grpc.errors import InvalidArgument, ResourceExhausted
from gagent_grpc.pb.gagent.v1 import admin_service_pb2, bus_service_pb2
from gagent_grpc.server.identity import caller_of
from gagent_grpc.server.watching import counted_as

_MAX_AGENTS = 1_000
"""Agents that one watch may name."""


async def tell_traffic(
    platform: Platform, request: admin_service_pb2.WatchTrafficRequest, context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    """Write what passes, until the bus shuts down, the stream then ends OK, or the client goes.

    Raises:
        InvalidArgument: Too many agents are named.
        InvalidName: One is no name of this platform.
        ResourceExhausted: Too many watch already, all together or of this caller, or the client reads nothing.
    """
    if len(request.agents) > _MAX_AGENTS:
        raise InvalidArgument(f"{len(request.agents):,} agents; expected at most {_MAX_AGENTS:,}", field="agents")
    agents = frozenset(f"{platform.ams.local_name(name)}@{platform.name}" for name in request.agents)
    timeout = platform.limits.write_timeout
    caller = counted_as(caller_of(platform, context), context)
    with platform.post.traffic.watching(agents, request.conversation_id, caller=caller) as watch:
        # At once, so that the client knows that it misses nothing from here on.
        await context.send_initial_metadata(())
        async for event in watch.events():
            try:
                async with asyncio.timeout(timeout):
                    await context.write(event_to_proto(event, with_content=request.with_content))
            except TimeoutError:
                # Its place is for somebody who reads.
                raise ResourceExhausted(f"nothing was read for {timeout:g} s; watch anew") from None


def event_to_proto(event: TrafficEvent, *, with_content: bool) -> admin_service_pb2.WatchTrafficResponse:
    """Return an event as it travels."""
    made = admin_service_pb2.WatchTrafficResponse(
        kind=cast("admin_service_pb2.TrafficKind.ValueType", int(event.kind)),
        at=timestamp_of(event.at),
        sender=event.sender,
        receiver=event.receiver,
        via=event.via,
        detail=event.detail,
        flag=event.flag,
        conversation_id=event.conversation_id,
        missed=event.missed,
    )
    if event.outcome is not None:
        made.outcome = cast("bus_service_pb2.Outcome.ValueType", int(event.outcome))
    if event.payload:
        try:
            made.message.ParseFromString(event.payload)
        except DecodeError:
            made.ClearField("message")
    if not with_content and made.HasField("message"):
        _clear_content(made.message)
    return made


def _clear_content(message: bus_service_pb2.BusMessage) -> None:
    if message.HasField("acl"):
        for field in ("text", "data"):
            message.acl.ClearField(field)
    elif message.HasField("acp"):
        which = message.acp.WhichOneof("content")
        if which is not None:
            message.acp.ClearField(which)
