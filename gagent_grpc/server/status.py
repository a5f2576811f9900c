"""Errors to gRPC statuses: the code of the error's class, its text, and google.rpc.ErrorInfo with what it carries."""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gagent_grpc.codec.times import duration_to_proto
from gagent_grpc.errors import DOMAIN, BusError

_MAX_TEXT_BYTES = 1_000
"""Most bytes of one text in a status. Metadata over 8 KiB would reach the client as another error altogether."""


async def abort_with(context: grpc.aio.ServicerContext[bytes, bytes], error: BusError) -> NoReturn:
    """End a call with the status of ``error``.

    The details carry ErrorInfo (domain, reason, metadata), and RetryInfo where a retry may help.
    """
    code = grpc.StatusCode[error.status]
    text = _cut(str(error))
    metadata = {key: _cut(value) for key, value in error.details().items()}
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=metadata))]
    if error.retry_after is not None:
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=duration_to_proto(error.retry_after))))
    status = status_pb2.Status(code=code.value[0], message=text, details=details)
    rich = rpc_status.to_status(status)
    await context.abort(code, text, rich.trailing_metadata)


def _cut(text: str) -> str:
    return text.encode()[:_MAX_TEXT_BYTES].decode(errors="ignore")


def _packed(detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> Any:
    packed = Any()
    packed.Pack(detail)
    return packed
