"""Durations and moments: what travels comes back, and what cannot be said is the nearest that can."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.codec.times import datetime_of, duration_to_proto, seconds_of, timestamp_to_proto
from gagent_grpc.errors import InvalidArgument


@given(st.floats(-1e9, 1e9))
def test_duration_comes_back(seconds: float) -> None:
    assert seconds_of(duration_to_proto(seconds)) == pytest.approx(seconds, abs=1e-6)


@given(st.datetimes(timezones=st.just(UTC)))
def test_moment_comes_back(moment: datetime) -> None:
    assert datetime_of(timestamp_to_proto(moment, "reply_by")) == moment


def test_moment_of_another_zone_is_the_same_moment() -> None:
    moment = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    made = timestamp_to_proto(moment, "reply_by")
    assert seconds_of(made) == moment.timestamp()
    assert datetime_of(made) == moment


def test_moment_without_a_zone_is_refused_under_the_name_of_its_field() -> None:
    with pytest.raises(InvalidArgument, match="expires_at 2026-03-01T12:00:00: has no time zone") as caught:
        timestamp_to_proto(datetime(2026, 3, 1, 12), "expires_at")
    assert caught.value.field == "expires_at"


def test_moment_beyond_the_calendar_is_its_end() -> None:
    assert datetime_of(Timestamp(seconds=2**62)) == datetime.max.replace(tzinfo=UTC)
    assert datetime_of(Timestamp(seconds=-(2**62))) == datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_moment_that_utc_cannot_say_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="beyond the years") as refused:
        timestamp_to_proto(datetime.fromisoformat(text), "reply_by")
    assert refused.value.field == "reply_by"
