"""One interceptor turns errors into statuses, for every arity and both styles of handlers.

Owns: which status a caller sees when a handler raises or a request cannot be decoded. Leaves to others: the table
(`errors`), the form of the status (`server.status`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from gagent_grpc.errors import BusError, InvalidArgument
from gagent_grpc.server.status import abort_with

_log = logging.getLogger(__name__)

STATUS_TIMEOUT = 5.0
"""Seconds that a status may take to reach the client."""

_FACTORIES = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call whose handler raises: a `BusError` with its status, anything else INTERNAL without a word of it."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a call, wrapped."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        streams = (handler.request_streaming, handler.response_streaming)
        inner = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
        # Decoding happens inside the guard: by itself it would tell the caller of Python classes.
        decode = handler.request_deserializer or _as_it_is
        serve = (
            _generator(inner, decode, method, streams[0])
            if inspect.isasyncgenfunction(inner)
            else _coroutine(inner, decode, method, streams[0])
        )
        made: grpc.RpcMethodHandler[Any, Any] = _FACTORIES[streams](serve, None, handler.response_serializer)
        return made


def _coroutine(inner: Any, decode: Callable[[bytes], Any], method: str, request_streaming: bool) -> Any:
    async def serve(request: Any, context: Any) -> Any:
        try:
            return await inner(_decoded(request, decode, request_streaming), context)
        except Exception as error:
            await _end(context, error, method)

    return serve


def _generator(inner: Any, decode: Callable[[bytes], Any], method: str, request_streaming: bool) -> Any:
    async def serve(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for response in inner(_decoded(request, decode, request_streaming), context):
                yield response
        except Exception as error:
            await _end(context, error, method)

    return serve


def _decoded(request: Any, decode: Callable[[bytes], Any], request_streaming: bool) -> Any:
    if request_streaming:
        return _each_decoded(request, decode)
    return _decode(request, decode)


async def _each_decoded(requests: AsyncIterator[bytes], decode: Callable[[bytes], Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _decode(request, decode)


def _decode(request: bytes, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(request)
    except DecodeError as error:
        raise InvalidArgument(f"the request of {len(request)} bytes is not of the expected type: {error}") from error


def _as_it_is(request: bytes) -> bytes:
    return request


async def _end(context: Any, error: Exception, method: str) -> None:
    if isinstance(error, grpc.aio.AbortError):
        # The handler ended the call itself.
        raise error
    if not isinstance(error, BusError):
        _log.error("a call failed: %s", method, exc_info=error)
        error = BusError("internal error; the log of the bus has more")
    try:
        async with asyncio.timeout(STATUS_TIMEOUT):
            await abort_with(context, error)
    except (TimeoutError, grpc.aio.InternalError) as unheard:
        # The client reads nothing, and its status waits behind what was written before; or it is gone already. Letting
        # go of the call resets it.
        _log.info("a status was not heard: %s of %s (%r)", error.status, method, unheard)
