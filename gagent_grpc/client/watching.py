"""Watching over a connection that comes and goes: one stream after another, each going on from the last cursor.

Owns: finding the bus again. Leaves to others: what is watched (`client.ams`, `client.df`), calls (`client.transport`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc

from gagent_grpc.client.transport import Calls
from gagent_grpc.errors import BusError, ResourceExhausted, Unauthenticated, Unavailable

_logger = logging.getLogger(__name__)


class Told(Protocol):
    """A response of a stream that watches."""

    @property
    def cursor(self) -> str:
        """Where to go on after it; "" inside a snapshot, which then begins again."""
        ...


ToldT = TypeVar("ToldT", bound=Told)
Open = Callable[[str], Awaitable["grpc.aio.UnaryStreamCall[Any, ToldT]"]]


async def watched(calls: Calls, begin: Open[ToldT], cursor: str, what: str) -> AsyncGenerator[ToldT, None]:
    """Yield what a stream tells, and go on with another one when it is lost or the bus shuts down.

    Args:
        calls: Where the streams go.
        begin: Begins a stream at a cursor.
        cursor: Where to begin.
        what: What is watched, for the log.

    Raises:
        BusError: The first stream could not be begun, or a later one was refused for good.
    """
    begun = heard = False
    longest = calls.initial_backoff
    while True:
        call = None
        token = calls.token
        try:
            call = await begin(cursor)
            begun = True
            while (told := await calls.read(call)) is not None:
                heard = True
                longest = calls.initial_backoff
                cursor = told.cursor
                yield told
            why: BusError | None = None
        except (Unavailable, ResourceExhausted) as error:
            # Who reads too slowly has read something; a refusal may come when gRPC has said that the stream has begun.
            if not (heard if isinstance(error, ResourceExhausted) else begun):
                raise
            why = error
        except Unauthenticated as error:
            # The agent has another session meanwhile; else it is not known any more.
            if token == calls.token:
                raise
            why = error
        finally:
            if call is not None:
                call.cancel()
        _logger.warning("%s: the stream has ended (%s); it begins again", what, why or "the bus shut down")
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311  # Spreads the load; nothing secret.
        longest = min(2 * longest, calls.max_backoff)
