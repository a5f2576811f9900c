"""What the content of a DELEGATE says beside the work itself, in its JSON form: lost executors, attempts, attachments.

Owns: these values as JSON and back. They are orders to the bus, so one that cannot be understood is refused and not passed over.
Leaves to others: the message (`acp.message`), the wire (`codec.acp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gagent_grpc.acp.tasks import Attachment, OnExecutorLost
from gagent_grpc.errors import InvalidArgument, shown

_POLICIES = {str(one): one for one in OnExecutorLost}
_MOST = 2**32 - 1
_TEXTS = ("uri", "media_type", "name", "digest")


def policy_of(value: object, field: str) -> OnExecutorLost:
    """Return the policy that ``value``, the value of ``field``, names: `fail` or `redeliver`.

    Raises:
        InvalidArgument: It names none.
    """
    found = _POLICIES.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise InvalidArgument(f"{field} {shown(str(value))}; expected one of: {', '.join(_POLICIES)}", field=field)
    return found


def attempts_of(value: object, field: str) -> int:
    """Return a number of attempts; 0 for the usual one.

    Raises:
        InvalidArgument: It is no whole number, or negative.
    """
    if type(value) is not int or not 0 <= value <= _MOST:
        raise InvalidArgument(f"{field} {shown(str(value))}; expected a whole number, 0 or more", field=field)
    return value


def attachments_of(value: object, field: str) -> tuple[Attachment, ...]:
    """Return the attachments in a list of objects with `uri`, `media_type`, and maybe `name`, `digest`, `size_bytes`.

    Raises:
        InvalidArgument: It is no such list; the error names the place.
    """
    if not isinstance(value, list | tuple):
        raise InvalidArgument(f"{field} of type {type(value).__name__}; expected a list of objects", field=field)
    return tuple(_attachment_of(one, f"{field}[{index}]") for index, one in enumerate(value))


def attachment_json(attachment: Attachment) -> dict[str, Any]:
    """Return an attachment as an object; what is not said stays absent."""
    found: dict[str, Any] = {name: value for name in _TEXTS if (value := getattr(attachment, name))}
    if attachment.size_bytes is not None:
        found["size_bytes"] = attachment.size_bytes
    return found


def _attachment_of(value: object, field: str) -> Attachment:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{field} of type {type(value).__name__}; expected an object", field=field)
    for name in _TEXTS:
        if not isinstance(value.get(name, ""), str):
            raise InvalidArgument(f"{field}.{name} is no text", field=f"{field}.{name}")
    for name in ("uri", "media_type"):
        if not value.get(name):
            raise InvalidArgument(f"{field} has no {name}", field=f"{field}.{name}")
    size = value.get("size_bytes")
    if size is not None and (type(size) is not int or not 0 <= size < 2**64):
        raise InvalidArgument(
            f"{field}.size_bytes {shown(str(size))}; expected a number of bytes", field=f"{field}.size_bytes"
        )
    return Attachment(value["uri"], value["media_type"], value.get("name", ""), value.get("digest", ""), size)
