from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gagent_grpc import errors
from gagent_grpc.client.transport import OPTIONS, endpoints, error_from_status
from gagent_grpc.errors import DOMAIN, BusError, BusUnreachable, InvalidArgument


def every_error() -> list[BusError]:
    made: list[BusError] = []
    arguments: dict[str, tuple[Any, ...]] = {
        "AgentNotRegistered": ("bob", "DF"),
        "AgentAlreadyRegistered": ("bob", "AMS", "a live session"),
        "MissingParameter": ("service-description", "type"),
        "UnrecognisedParameterValue": ("search-constraints", "max-results", "is 0"),
        "UnknownPerformative": ("shout", "inform, ..."),
        "MailboxFull": ("bob@local", "10 messages"),
        "MessageTooLarge": (2_000_000, 1_000_000),
        "BusUnreachable": ("127.0.0.1:1",),
        "DeliveryRefused": ("NO_SUCH_AGENT", "bob"),
        "AnswerTimeout": ("bob", 3.0),
        "ConversationFailed": ("bob", "no"),
        "RefusedByAgent": ("bob", "no"),
        "FailureFromAgent": ("bob", "no"),
        "NotUnderstoodByAgent": ("bob", "no"),
        "EventsGone": ("T-1", 3, 9),
        "TaskAlreadyExists": ("T-1", "description"),
        "TaskEnded": ("T-1", "cancelled"),
        "AttemptSuperseded": ("T-1", 1, 2, "another one was begun"),
        "TaskNotFound": ("alice@local", "T-1"),
        "EntryNotFound": ("plan",),
        "RevisionConflict": ("plan", 3, 5),
    }
    pending: list[type[BusError]] = [BusError]
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        # Errors of other rooms never travel as a status.
        if cls.__module__ == BusError.__module__:
            made.append(cls(*arguments.get(cls.__name__, ("something is wrong",))))
    return made


def call_error(
    code: str, text: str = "", *details: Any, trailing: grpc.aio.Metadata | None = None
) -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata()
    if details:
        packed = []
        for detail in details:
            packed.append(Packed())
            packed[-1].Pack(detail)
        status = status_pb2.Status(code=grpc.StatusCode[code].value[0], message=text, details=packed)
        metadata = grpc.aio.Metadata(*rpc_status.to_status(status).trailing_metadata)
    return grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), trailing or metadata, text)


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_a_status_becomes_the_error_that_it_was(error: BusError) -> None:
    info = error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=error.details())
    back = error_from_status(call_error(error.status, str(error), info), "here:1")
    assert type(back) is type(error)
    assert (str(back), back.act, back.reason, back.status) == (str(error), error.act, error.reason, error.status)
    assert json.dumps(back.details()) == json.dumps(error.details())
    assert {name: getattr(back, name) for name in error.details() if name != "text"} == {
        name: getattr(error, name) for name in error.details() if name != "text"
    }


def test_the_advice_to_retry_is_kept() -> None:
    info = error_details_pb2.ErrorInfo(reason="TOO_MANY_SESSIONS", domain=DOMAIN)
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=7, nanos=500_000_000))
    back = error_from_status(call_error("RESOURCE_EXHAUSTED", "full", retry, info), "here:1")
    assert isinstance(back, errors.TooManySessions)
    assert back.retry_after == 7.5


def test_an_error_of_a_newer_bus_is_a_plain_one_with_its_text() -> None:
    info = error_details_pb2.ErrorInfo(reason="SOMETHING_NEW", domain=DOMAIN, metadata={"x": "y"})
    back = error_from_status(call_error("INTERNAL", "of tomorrow", info), "here:1")
    assert (type(back), str(back)) == (BusError, "of tomorrow")


@pytest.mark.parametrize(
    ("code", "text", "cls", "words"),
    [
        ("CANCELLED", "Locally cancelled by application!", BusUnreachable, "the connection was closed"),
        (
            "UNAVAILABLE",
            "failed to connect to all addresses",
            BusUnreachable,
            "No bus at here:1. Start one: gagent serve",
        ),
        ("UNAVAILABLE", "Socket closed", BusUnreachable, "No bus at here:1. (Socket closed) Start one: gagent serve"),
        ("DEADLINE_EXCEEDED", "", BusUnreachable, "not answered in time"),
        ("UNAUTHENTICATED", "who?", errors.Unauthenticated, "UNAUTHENTICATED: who?"),
        ("PERMISSION_DENIED", "no", errors.Unauthorised, "PERMISSION_DENIED: no"),
        ("UNIMPLEMENTED", "what?", errors.UnsupportedFunction, "UNIMPLEMENTED: what?"),
        ("INTERNAL", "", BusError, "INTERNAL: "),
        ("CANCELLED", "gone", BusError, "CANCELLED: gone"),
    ],
)
def test_a_status_of_somebody_else_is_told_in_its_words(code: str, text: str, cls: type, words: str) -> None:
    back = error_from_status(call_error(code, text), "here:1")
    assert type(back) is cls
    assert words in str(back)


def test_details_of_another_domain_or_another_status_or_no_details_at_all_do_not_count() -> None:
    foreign = error_details_pb2.ErrorInfo(reason="MAILBOX_FULL", domain="example.org")
    assert type(error_from_status(call_error("INTERNAL", "x", foreign), "here:1")) is BusError
    for value in (status_pb2.Status(code=5, message="other").SerializeToString(), b"\xff\xff garbage"):
        trailing = grpc.aio.Metadata(("grpc-status-details-bin", value))
        assert type(error_from_status(call_error("INTERNAL", "x", trailing=trailing), "here:1")) is BusError


def test_endpoints_are_host_and_port() -> None:
    assert endpoints(None) == endpoints("") == ["127.0.0.1:50051"]
    assert endpoints(" a:1 , [::1]:2,") == ["a:1", "[::1]:2"]
    for bad in ("a", "a:", ":1", "a:b", "a:0", "a:65536", "a:1,b"):
        with pytest.raises(InvalidArgument, match="expected HOST:PORT"):
            endpoints(bad)


def test_the_client_pings_no_more_often_than_a_bus_allows() -> None:
    options = dict(OPTIONS)
    assert options["grpc.keepalive_time_ms"] >= 10_000
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 25_000
