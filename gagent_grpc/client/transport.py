"""The client's side of gRPC: channel options, calls, and statuses turned back into our errors.

Owns: everything that names `grpc` on the client's side but the frames. Leaves to others: sessions (`client.session`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from gagent_grpc import errors
from gagent_grpc.codec.times import seconds_of
from gagent_grpc.config import DEFAULT_ENDPOINT, MIB, SESSION_METADATA_KEY, ClientLimits
from gagent_grpc.errors import DOMAIN, BusError, BusUnreachable

MessageT = TypeVar("MessageT")

OPTIONS: list[tuple[str, int]] = [
    # A dead or frozen bus is noticed after 20 + 5 s; the bus allows pings every 10 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # An idle session has no data for hours, and is to be watched all the same.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 250),
    # Also the time that an attempt has to connect: over a line with a delay of 0.3 s each way, 250 ms are too few.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", 4 * MIB),
    ("grpc.max_send_message_length", 4 * MIB),
    # Measuring the line with pings takes a slow one for dead, since they wait behind the data.
    ("grpc.http2.bdp_probe", 0),
    # Agents of one process would share a connection, and so each other's flow control.
    ("grpc.use_local_subchannel_pool", 1),
    # A client that retries knows its message ids; the transport does not.
    ("grpc.enable_retries", 0),
]


def request_of(make: Callable[[], MessageT]) -> MessageT:
    """Return the request, or a part of one, that ``make`` puts together.

    Raises:
        InvalidArgument: A value in it cannot travel.
    """
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise errors.InvalidArgument(f"the call cannot be made: {error}") from error


def endpoints(bus: str | None) -> list[str]:
    """Return the endpoints in ``bus``, `HOST:PORT[,HOST:PORT]`; for None or "" those of `GAGENT_BUS`, else the default.

    Raises:
        InvalidArgument: One is not `HOST:PORT`.
    """
    found = [one.strip() for one in (bus or os.environ.get("GAGENT_BUS") or DEFAULT_ENDPOINT).split(",") if one.strip()]
    for one in found:
        host, colon, port = one.rpartition(":")
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
            raise errors.InvalidArgument(
                f"bus endpoint {one!r}: expected HOST:PORT, such as {DEFAULT_ENDPOINT}", field="bus"
            )
    return found


def open_channel(endpoint: str) -> grpc.aio.Channel:
    """Return a channel to one endpoint; it connects when it is first used."""
    options = [*OPTIONS, _NO_PROXY] if _is_loopback(endpoint) else OPTIONS
    return grpc.aio.insecure_channel(endpoint, options=options)


_NO_PROXY = ("grpc.enable_http_proxy", 0)
"""gRPC asks the proxy that `http_proxy` names even for this machine, which means another one to the proxy."""


def _is_loopback(endpoint: str) -> bool:
    host = endpoint.rpartition(":")[0].strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # Another name; where it leads is for the network to say.
        return False


def session_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata by which a unary call stands for the agent of a session."""
    return ((SESSION_METADATA_KEY, token),) if token else ()


def is_cancelled() -> bool:
    """Return whether somebody has cancelled the running task.

    gRPC raises CancelledError also when a channel is closed, or the status of a call is CANCELLED.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_CLOSED_HERE = "Locally cancelled"
"""How the status begins that gRPC gives a call whose channel was closed on this side; what it says is no word of the bus."""


def error_from_status(error: grpc.aio.AioRpcError, endpoint: str) -> BusError:
    """Return the error that the status of a call stands for."""
    info, retry_after = _error_details(error)
    text = error.details() or ""
    if info is not None:
        made = errors.restore(info.reason, text, dict(info.metadata))
        if retry_after is not None:
            made.retry_after = retry_after
        return made
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return BusUnreachable(endpoint, "" if "connect" in text.lower() else text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return BusUnreachable(endpoint, "the call was not answered in time")
    if code is grpc.StatusCode.CANCELLED and text.startswith(_CLOSED_HERE):
        return BusUnreachable(endpoint, "the connection was closed")
    by_status = {cls.status: cls for cls in (errors.Unauthenticated, errors.Unauthorised, errors.UnsupportedFunction)}
    cls = by_status.get(code.name, BusError)
    return cls(f"{code.name}: {text}")


def _error_details(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo | None, float | None]:
    """Return what the bus said of its error, and after how many seconds a retry may help."""
    try:
        status = rpc_status.from_call(error)
    except (ValueError, DecodeError):
        # The details belong to another status, or are none: a proxy rewrote it.
        return None, None
    found, retry_after = None, None
    for detail in status.details if status is not None else ():
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            found = info
        elif detail.Unpack(retry):
            retry_after = seconds_of(retry.retry_delay)
    return found, retry_after


class Link(Protocol):
    """Where unary calls go, and in whose name."""

    async def reach(self) -> grpc.aio.Channel:
        """Return the channel in use; wait for one while the connection is being found again.

        Raises:
            BusError: There is none, and none is being looked for.
        """
        ...

    @property
    def endpoint(self) -> str:
        """`HOST:PORT` of the bus in use."""
        ...

    @property
    def token(self) -> str:
        """Session token of the calling agent; "" for nobody in particular."""
        ...


RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Calls:
    """Unary calls over a link: each with a deadline, the caller's token, and errors as our classes."""

    def __init__(self, link: Link, timeout: float, limits: ClientLimits | None = None) -> None:
        """Make calls over ``link``, each within ``timeout`` seconds; ``limits`` has the waits before another attempt."""
        self._link = link
        self._timeout = timeout
        limits = limits or ClientLimits()
        self.initial_backoff = limits.initial_backoff
        """Upper bound of the first wait before a lost stream is begun again, in seconds."""
        self.max_backoff = limits.max_backoff
        """Upper bound of any such wait, in seconds."""

    @property
    def token(self) -> str:
        """Session token that calls carry at present; "" for none."""
        return self._link.token

    @property
    def endpoint(self) -> str:
        """`HOST:PORT` of the bus in use."""
        return self._link.endpoint

    async def channel(self) -> grpc.aio.Channel:
        """Return the channel in use.

        Raises:
            BusUnreachable: There was none in time.
            BusError: There will be none.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._link.reach()
        except TimeoutError:
            raise BusUnreachable(self._link.endpoint, "no session is open at present") from None

    async def unary(
        self, method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        """Call ``method`` and return its response.

        Raises:
            BusError: The error that the bus raised.
            BusUnreachable: Nobody answers, or not in time.
        """
        try:
            return await method(request, timeout=self._timeout, metadata=session_metadata(self._link.token))
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, self._link.endpoint) from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise BusUnreachable(self._link.endpoint, "the connection was closed") from error

    async def begin(
        self, method: grpc.aio.UnaryStreamMultiCallable[RequestT, ResponseT], request: RequestT
    ) -> grpc.aio.UnaryStreamCall[RequestT, ResponseT]:
        """Begin the stream of ``method``, which has no deadline, and return it once the bus has taken it.

        Whoever gets it cancels it at the end.

        Raises:
            BusError: The bus refused it.
            BusUnreachable: Nobody answers, or not in time.
        """
        call = method(request, metadata=session_metadata(self._link.token))
        try:
            async with asyncio.timeout(self._timeout):
                await call.wait_for_connection()
        except TimeoutError:
            call.cancel()
            raise BusUnreachable(self._link.endpoint, "the call was not answered in time") from None
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, self._link.endpoint) from error
        except asyncio.CancelledError as error:
            call.cancel()
            if is_cancelled():
                raise
            raise BusUnreachable(self._link.endpoint, "the connection was closed") from error
        return call

    async def read(self, call: grpc.aio.UnaryStreamCall[RequestT, ResponseT]) -> ResponseT | None:
        """Return the next response of a stream; None at its good end.

        Raises:
            BusError: The error with which the bus ended it.
            BusUnreachable: The connection was lost.
        """
        try:
            # The types of gRPC do not tell the end from a response.
            response: Any = await call.read()
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, self._link.endpoint) from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise BusUnreachable(self._link.endpoint, "the connection was closed") from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise BusUnreachable(self._link.endpoint, "the connection was closed") from error
        if response is grpc.aio.EOF:
            return None
        found: ResponseT = response
        return found
