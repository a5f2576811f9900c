"""Delegations as they travel, and what an error means for an attempt at a task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gagent_grpc import (
    AgentNotRegistered,
    Attachment,
    AttemptSuperseded,
    BusUnreachable,
    InvalidArgument,
    MessageTooLarge,
    OnExecutorLost,
    Priority,
    TaskEnded,
    TaskKey,
    TaskNotFound,
    Unauthorised,
)
from gagent_grpc.client.task_calls import delegation, is_gone, moment_of
from gagent_grpc.codec.times import datetime_of
from gagent_grpc.pb.gagent.v1 import acp_pb2


def test_delegation_says_everything_that_was_asked_for() -> None:
    deadline = datetime(2030, 1, 2, tzinfo=UTC)
    made = delegation(
        "t1",
        "role:work",
        "Do it",
        {"ratio": 3.0},
        deadline=deadline,
        callback_url="http://x",
        on_executor_lost=OnExecutorLost.REDELIVER,
        max_attempts=4,
        attachments=[Attachment("file:///a", "text/plain", size_bytes=0)],
        priority=Priority.URGENT,
        parent=TaskKey("boss@local", "t0"),
    )
    assert (made.task_id, made.target, made.description, made.parameters_json) == (
        "t1",
        "role:work",
        "Do it",
        '{"ratio":3.0}',
    )
    assert datetime_of(made.deadline) == deadline
    assert (made.callback_url, made.max_attempts, made.priority) == ("http://x", 4, 4)
    assert made.on_executor_lost == acp_pb2.EXECUTOR_LOST_POLICY_REDELIVER
    assert (made.parent_delegator, made.parent_task_id) == ("boss@local", "t0")
    (attachment,) = made.attachments
    assert attachment.HasField("size_bytes")


def test_what_is_not_said_is_not_there() -> None:
    made = delegation("t1", "worker", "")
    assert not made.HasField("deadline")
    assert not made.HasField("callback_url")
    assert (made.parameters_json, made.max_attempts, made.parent_task_id) == ("", 0, "")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deadline", 0),
        ("deadline", -1.0),
        ("deadline", float("nan")),
        ("deadline", float("inf")),
        ("deadline", True),
        ("deadline", "soon"),
        ("deadline", datetime(2030, 1, 2)),  # Without a time zone, which is refused.
        ("max_attempts", -1),
        ("max_attempts", 1.5),
        ("parameters", [1]),
        ("parameters", {"a": object()}),
        ("attachments", [Attachment("", "text/plain")]),
        ("callback_url", 3),
    ],
)
def test_value_that_cannot_travel_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument):
        delegation("t1", "worker", "x", **{field: value})


def test_seconds_count_from_now() -> None:
    before = datetime.now(UTC)
    found = moment_of(90, "deadline")
    assert found is not None
    assert before + timedelta(seconds=90) <= found <= datetime.now(UTC) + timedelta(seconds=90)
    assert moment_of(None, "deadline") is None


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (TaskEnded("t1", "cancelled"), True),
        (AttemptSuperseded("t1", 1, 2, "attempt 2 is"), True),
        (TaskNotFound("boss@local", "t1"), True),
        (Unauthorised("not yours"), True),
        (AgentNotRegistered("boss"), True),
        (BusUnreachable("127.0.0.1:1"), False),
        (MessageTooLarge(2, 1), False),
        (InvalidArgument("bad"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_end_an_attempt_are_told_from_those_that_do_not(error: Any, gone: bool) -> None:
    assert is_gone(error) is gone
