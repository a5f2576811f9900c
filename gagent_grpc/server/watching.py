"""Streams that watch: what a watch of the platform tells, written one by one for as long as the client reads.

Owns: the pace, how such a stream ends, and under which names its caller is counted. Leaves to others: what is told (`bus.agent_events`, `bus.offers`), and its
form (the servicers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from gagent_grpc.bus.events import Watch
from gagent_grpc.bus.platform import Caller
from gagent_grpc.errors import ResourceExhausted
from gagent_grpc.server.identity import DEVELOPER

ToldT = TypeVar("ToldT")


def counted_as(caller: Caller, context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, ...]:
    """Return the names under which the streams of a caller are counted.

    That is the principal where there are credentials; else the connection and, where a session token was shown, its agent:
    neither further agents on one connection nor further connections of one agent get more.
    """
    if caller.principal != DEVELOPER:
        return (caller.principal,)
    connection = f"the connection from {context.peer()}"
    return (connection,) if caller.agent is None else (caller.agent.aid, connection)


async def tell(
    watch: Watch[Any, ToldT],
    write: Callable[[ToldT], Any],
    context: grpc.aio.ServicerContext[Any, Any],
    *,
    timeout: float,
) -> None:
    """Write what ``watch`` tells until the bus shuts down, the stream then ends OK, or the client goes.

    Args:
        watch: Closed here, however the stream ends.
        write: Returns a response.
        context: The call.
        timeout: Seconds that one response may wait for the client to read.

    Raises:
        ResourceExhausted: The client reads too slowly, or not at all.
    """
    with watch:
        # At once, so that the client knows that it is heard while nothing happens.
        await context.send_initial_metadata(())
        while news := await watch.next():
            for one in news:
                try:
                    async with asyncio.timeout(timeout):
                        await context.write(write(one))
                except TimeoutError:
                    raise ResourceExhausted(
                        f"nothing was read for {timeout:g} s; resume with the last cursor"
                    ) from None
