"""The interceptor that makes statuses of errors: four arities, two styles of handlers, one behaviour."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from gagent_grpc.errors import AgentNotRegistered, BusError, InvalidArgument, MailboxFull
from gagent_grpc.server.interceptors import ErrorInterceptor

ARITIES = [(False, False), (False, True), (True, False), (True, True)]
STYLES = ["coroutine", "generator"]
MATRIX = [
    pytest.param(arity, style, id=f"{'stream' if arity[0] else 'unary'}-{'stream' if arity[1] else 'unary'}-{style}")
    for arity in ARITIES
    for style in STYLES
    # A generator answers with a stream by its nature.
    if style == "coroutine" or arity[1]
]


def handler(arity: tuple[bool, bool], style: str, error: BaseException | None) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler that reads everything, then raises ``error`` or answers with what it read."""

    async def everything(request: Any) -> bytes:
        if arity[0]:
            return b"".join([(bytes([one.seconds])) async for one in request])
        return bytes([request.seconds])

    async def coroutine(request: Any, context: Any) -> Any:
        answer = Duration(seconds=sum(await everything(request)))
        if error is not None:
            raise error
        if not arity[1]:
            return answer
        await context.write(answer)
        return None

    async def generator(request: Any, context: Any) -> AsyncIterator[Any]:
        answer = Duration(seconds=sum(await everything(request)))
        if error is not None:
            raise error
        yield answer

    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    serve: Any = coroutine if style == "coroutine" else generator
    made: grpc.RpcMethodHandler[Any, Any] = makers[arity](
        serve, request_deserializer=Duration.FromString, response_serializer=Duration.SerializeToString
    )
    return made


@contextlib.asynccontextmanager
async def served(arity: tuple[bool, bool], style: str, error: BaseException | None) -> AsyncIterator[Any]:
    """Serve one such handler; yield a function that calls it with raw requests and returns the answer's seconds."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("test.Service", {"Do": handler(arity, style, error)})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        names = ("unary", "stream")
        method = getattr(channel, f"{names[arity[0]]}_{names[arity[1]]}")("/test.Service/Do")

        async def call(*requests: bytes) -> list[int]:
            async def each() -> AsyncIterator[bytes]:
                for request in requests:
                    yield request

            made = method(each() if arity[0] else requests[0])
            answers = [one async for one in made] if arity[1] else [await made]
            return [Duration.FromString(one).seconds for one in answers]

        yield call
    await server.stop(0)


@pytest.mark.parametrize(("arity", "style"), MATRIX)
async def test_answer_passes(arity: tuple[bool, bool], style: str) -> None:
    async with served(arity, style, None) as call:
        requests = [Duration(seconds=2).SerializeToString()] * (2 if arity[0] else 1)
        assert await call(*requests) == [4 if arity[0] else 2]


@pytest.mark.parametrize(("arity", "style"), MATRIX)
async def test_error_of_the_bus_has_its_status_and_details(arity: tuple[bool, bool], style: str) -> None:
    async with served(arity, style, MailboxFull("bob@local", "3 messages")) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "bob@local: the mailbox is full (3 messages)"
    status = rpc_status.from_call(caught.value)
    assert status is not None
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.domain, info.reason) == ("gagent.v1", MailboxFull("", "").code)
    assert info.metadata["aid"] == "bob@local"
    assert retry.retry_delay.ToMilliseconds() == 100


@pytest.mark.parametrize(("arity", "style"), MATRIX)
async def test_any_other_exception_is_internal_and_says_nothing(arity: tuple[bool, bool], style: str) -> None:
    async with served(arity, style, ValueError("secret")) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value)
    assert "ValueError" not in str(caught.value)


@pytest.mark.parametrize(("arity", "style"), MATRIX)
async def test_request_that_cannot_be_decoded_is_invalid(arity: tuple[bool, bool], style: str) -> None:
    async with served(arity, style, None) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "3 bytes is not of the expected type" in (caught.value.details() or "")


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000, "\U0001f600" * 100_000, "line\nbreak\0"])
async def test_text_that_would_not_fit_a_status_is_cut_and_the_status_arrives(text: str) -> None:
    async with served((False, False), "coroutine", InvalidArgument(text, field=text)) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith(text[:10])


async def test_error_without_retry_has_no_retry_info() -> None:
    async with served((False, False), "coroutine", AgentNotRegistered("bob")) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
    status = rpc_status.from_call(caught.value)
    assert status is not None
    assert len(status.details) == 1


async def test_unknown_method_stays_unimplemented() -> None:
    async with served((False, False), "coroutine", BusError()):
        pass
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test.Service/Other")(b"")
    await server.stop(0)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
