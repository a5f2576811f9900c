"""Moments in the JSON form of ACP messages: ISO 8601 text, and aware datetimes in Python.

Owns: the two directions. Leaves to others: what a moment is of (`acp.message`, `acp.delegations`).
"""

from __future__ import annotations

from datetime import UTC, datetime

from gagent_grpc.errors import InvalidArgument, shown


def moment_of(value: object, field: str) -> datetime | None:
    """Return the moment in UTC that ``value``, the value of ``field``, stands for: text, an aware datetime, or None.

    Raises:
        InvalidArgument: It is none of these, or has no time zone.
    """
    if value is None:
        return None
    if isinstance(value, str):
        written = value
        try:
            value = datetime.fromisoformat(written)
        except ValueError as error:
            text = f"{field} {shown(written)}; expected ISO 8601 with a zone, such as 2026-03-01T10:00:00.123Z"
            raise InvalidArgument(text, field=field) from error
    if not isinstance(value, datetime):
        kind = type(value).__name__
        raise InvalidArgument(f"{field} of type {kind}; expected an aware datetime or text", field=field)
    if value.tzinfo is None:
        raise InvalidArgument(f"{field} {value.isoformat()} has no time zone; expected one, such as Z", field=field)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise InvalidArgument(
            f"{field} {value.isoformat()}: is beyond the years 1 to 9999 in UTC", field=field
        ) from error


def iso_text(moment: datetime) -> str:
    """Return a moment in UTC with as many digits of the second as it needs: none, three or six."""
    digits = "seconds" if not moment.microsecond else "microseconds" if moment.microsecond % 1000 else "milliseconds"
    return moment.astimezone(UTC).isoformat(timespec=digits).replace("+00:00", "Z")
