"""`ContextService`: the calls about shared contexts, adapted to `bus.contexts`.

What a call returns is durable, and so is what a stream tells: a crash takes back nothing that somebody has seen.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.context_values import ContextAddress, Entry, Synced, Told
from gagent_grpc.bus.platform import Platform
from gagent_grpc.codec.times import timestamp_of
from gagent_grpc.errors import ResourceExhausted
from gagent_grpc.pb.gagent.v1 import context_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import context_service_pb2_grpc
from gagent_grpc.server.identity import caller_of
from gagent_grpc.server.watching import counted_as

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_RESULTS = 100
_RESULT_BYTES = 6
"""What a result takes beside itself: its tag and its length."""
_SLICE = 100
"""Entries that are written in one go, before everybody else has a turn."""


class ContextServicer(context_service_pb2_grpc.ContextServiceServicer):
    """Serves shared contexts. Errors are raised as they are; the interceptor makes statuses of them."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._contexts = platform.contexts

    async def GetContextEntry(self, request: pb.GetContextEntryRequest, context: Context) -> pb.GetContextEntryResponse:
        """Return an entry."""
        entry = self._contexts.get(self._caller(context), _address(request.space), request.key)
        await self._platform.flush()
        return pb.GetContextEntryResponse(entry=_written(entry))

    async def PutContextEntry(self, request: pb.PutContextEntryRequest, context: Context) -> pb.PutContextEntryResponse:
        """Write an entry."""
        expected = request.expected_revision if request.HasField("expected_revision") else None
        entry = self._contexts.put(
            self._caller(context), _address(request.space), request.key, request.value_json, expected
        )
        await self._platform.flush()
        return pb.PutContextEntryResponse(entry=_written(entry))

    async def DeleteContextEntry(
        self, request: pb.DeleteContextEntryRequest, context: Context
    ) -> pb.DeleteContextEntryResponse:
        """Remove an entry."""
        expected = request.expected_revision if request.HasField("expected_revision") else None
        removal = self._contexts.delete(self._caller(context), _address(request.space), request.key, expected)
        await self._platform.flush()
        if removal is None:
            return pb.DeleteContextEntryResponse()
        return pb.DeleteContextEntryResponse(existed=True, revision=removal.revision)

    async def ListContextEntries(
        self, request: pb.ListContextEntriesRequest, context: Context
    ) -> pb.ListContextEntriesResponse:
        """Return entries by key, as many as fit. The page token is the last key."""
        found = self._contexts.list(self._caller(context), _address(request.space), request.prefix, request.page_token)
        most = request.max_results or _DEFAULT_RESULTS
        # A quarter of a frame is left for what no client of today asks for.
        room = self._platform.limits.max_frame_bytes * 3 // 4
        response = pb.ListContextEntriesResponse()
        # All at once: what changes during a wait is of another moment.
        for entry in list(found)[: most + 1]:
            written = _written(entry)
            room -= written.ByteSize() + _RESULT_BYTES
            # One comes whatever its size, or nobody could get past it.
            if len(response.entries) >= most or (room < 0 and response.entries):
                response.next_page_token = response.entries[-1].key
                break
            response.entries.append(written)
            if not len(response.entries) % _SLICE:
                await asyncio.sleep(0)
        await self._platform.flush()
        return response

    async def WatchContext(  # type: ignore[override]  # [override]: a coroutine that writes, and so knows of its end.
        self, request: pb.WatchContextRequest, context: Context
    ) -> None:
        """Tell of a shared context, and of what changes in it."""
        caller = self._caller(context)
        names = counted_as(caller, context)
        with self._contexts.watch(
            caller, _address(request.space), request.prefix, request.after_revision, names
        ) as watch:
            # At once, so that the client knows that it is heard.
            await context.send_initial_metadata(())
            while told := await watch.next():
                await self._platform.flush()
                for one in told:
                    await self._tell(_response(one), context)

    async def _tell(self, response: pb.WatchContextResponse, context: Context) -> None:
        timeout = self._platform.limits.write_timeout
        try:
            async with asyncio.timeout(timeout):
                await context.write(response)
        except TimeoutError:
            raise ResourceExhausted(
                f"nothing was read for {timeout:g} s; watch again after the last revision that was read"
            ) from None

    def _caller(self, context: Context) -> Caller:
        return caller_of(self._platform, context)


def _address(space: pb.ContextSpace) -> ContextAddress:
    if space.WhichOneof("space") == "task":
        return ContextAddress(delegator=space.task.delegator, task_id=space.task.task_id)
    return ContextAddress(conversation_id=space.conversation_id)


def _written(entry: Entry) -> pb.ContextEntry:
    return pb.ContextEntry(
        key=entry.key,
        value_json=entry.value,
        revision=entry.revision,
        author=entry.author,
        put_at=timestamp_of(entry.at),
    )


def _response(told: Told) -> pb.WatchContextResponse:
    if isinstance(told, Synced):
        return pb.WatchContextResponse(synced=told.revision)
    if told.removed:
        return pb.WatchContextResponse(removed=_written(told))
    return pb.WatchContextResponse(put=_written(told))
