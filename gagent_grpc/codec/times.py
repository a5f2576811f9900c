"""Durations and moments to the wire and back: seconds as `float`, moments as Unix seconds or an aware `datetime`."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from gagent_grpc.errors import InvalidArgument


def duration_to_proto(seconds: float) -> Duration:
    """Return ``seconds`` as they travel."""
    whole = int(seconds)
    return Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


def seconds_of(value: Duration | Timestamp) -> float:
    """Return the seconds in ``value``, those of a moment since the epoch."""
    return value.seconds + value.nanos / 1e9


def timestamp_of(seconds: float) -> Timestamp:
    """Return a moment in Unix seconds as it travels."""
    whole = int(seconds)
    return Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9))


def timestamp_to_proto(moment: datetime, field: str) -> Timestamp:
    """Return ``moment``, the value of ``field``, as it travels.

    Raises:
        InvalidArgument: It has no time zone, or is before the year 1 or after the year 9999 in UTC.
    """
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{field} {moment.isoformat()}: has no time zone; expected an aware datetime", field=field
        )
    made = Timestamp()
    try:
        made.FromDatetime(moment)
    except (OverflowError, ValueError) as error:
        raise InvalidArgument(
            f"{field} {moment.isoformat()}: is beyond the years 1 to 9999 in UTC", field=field
        ) from error
    return made


def datetime_of(value: Timestamp) -> datetime:
    """Return the moment in ``value``; one beyond what a datetime can say is the nearest that it can."""
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        return datetime.max.replace(tzinfo=UTC) if value.seconds > 0 else datetime.min.replace(tzinfo=UTC)
