"""Values inside the actions of a script, pure: what a key of JSON may hold, and what is wrong with what it holds.

Owns: reading texts, names, times, numbers and free JSON out of a parsed object. Leaves to others: lines, and what an
action is made of (`bridge.framing`, `bridge.extension_actions`).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gagent_grpc.acp.free_json import json_text
from gagent_grpc.errors import InvalidArgument


class Unusable(Exception):
    """Why an action cannot be carried out; ends the parsing of this one action."""


def encodable(text: str, what: str) -> str:
    """Return a text that can be encoded on its way to the bus.

    Raises:
        Unusable: JSON can write half a surrogate pair, which is no character.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Unusable(f"{what} holds a lone surrogate") from None
    return text


def text_of(holder: Mapping[str, Any], key: str) -> str | None:
    """Return the text at ``key``; None when it is absent or null.

    Raises:
        Unusable: It is no text.
    """
    value = holder.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise Unusable(f"`{key}` is {kind_of(value)}, not a text")
    return encodable(value, f"`{key}`")


def needed_text(holder: Mapping[str, Any], key: str) -> str:
    """Return the text at ``key``, which has to be there and to say something.

    Raises:
        Unusable: It is missing, empty or no text.
    """
    text = text_of(holder, key)
    if not text:
        raise Unusable(f"missing `{key}`")
    return text


def names_of(holder: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the name or list of names at ``key``, each once; none when it is absent.

    Raises:
        Unusable: One of them is no name.
    """
    value = holder.get(key)
    if value is None:
        return ()
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or not name:
            raise Unusable(f"`{key}` holds {kind_of(name)}; expected a name or a list of names")
        encodable(name, f"`{key}`")
    return tuple(dict.fromkeys(names))


def content_of(message: Mapping[str, Any]) -> str | bytes | None:
    """Return the content of an ACL message: `content`, or `content_base64` for bytes.

    Raises:
        Unusable: Both are there, or what is there cannot be read.
    """
    text = text_of(message, "content")
    encoded = text_of(message, "content_base64")
    if encoded is None:
        return text
    if text is not None:
        raise Unusable("`content` and `content_base64` exclude each other")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise Unusable("`content_base64` is not base64") from None


def time_of(holder: Mapping[str, Any], key: str) -> datetime | None:
    """Return the moment at ``key``, in UTC; None when it is absent.

    Raises:
        Unusable: It is no moment in ISO 8601, or has no zone.
    """
    text = text_of(holder, key)
    if text is None:
        return None
    with contextlib.suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            # In UTC, as it travels: the last hours of the year 9999 elsewhere are beyond what can be said there.
            return time.astimezone(UTC)
    raise Unusable(f"`{key}` is {shown(text)}; expected ISO 8601 with a zone, such as 2026-12-31T23:59:59Z")


def number_of(
    holder: Mapping[str, Any], key: str, *, least: float = 0.0, most: float | None = None
) -> int | float | None:
    """Return the number at ``key``; None when it is absent.

    Raises:
        Unusable: It is no number, or out of range.
    """
    value = holder.get(key)
    if value is None:
        return None
    expected = f"a number from {least:g} to {most:g}" if most is not None else f"a number, {least:g} or more"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unusable(f"`{key}` is {kind_of(value)}; expected {expected}")
    if value < least or (most is not None and value > most):
        raise Unusable(f"`{key}` is out of range; expected {expected}")
    return value


def json_of(holder: Mapping[str, Any], key: str) -> Any:
    """Return the free JSON at ``key``; None when it is absent.

    Raises:
        Unusable: It holds what cannot travel, such as a lone surrogate.
    """
    value = holder.get(key)
    try:
        json_text(value, f"`{key}`")
    except InvalidArgument as error:
        raise Unusable(str(error)) from None
    return value


def object_of(holder: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """Return the free JSON object at ``key``; None when it is absent.

    Raises:
        Unusable: It is no object, or as `json_of`.
    """
    value = json_of(holder, key)
    if value is not None and not isinstance(value, dict):
        raise Unusable(f"`{key}` is {kind_of(value)}, not an object")
    return value


def kind_of(value: Any) -> str:
    """Name the JSON type of a value; the value itself may be the content of a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case "":
            return "an empty text"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


def shown(value: Any) -> str:
    """Return a bad word as an error shows it: short, and a value that is no text by its type."""
    if not isinstance(value, str):
        return kind_of(value)
    return ascii(value if len(value) <= 40 else value[:37] + "...")
