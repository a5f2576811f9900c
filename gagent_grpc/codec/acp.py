"""ACP messages to the wire and back.

Content about a task, and an error, travels in the parts that the protos have for it, so that a bus and clients without JSON
read it; everything else is JSON text. What a part has no field for goes into the metadata, under names with a prefix, so
that nothing is lost on the way and 3 does not become 3.0:

    content:KEY   a key of the content, as JSON text
    as:KEY        the name under which the content had this key
    message:KEY   a key of the whole message, as JSON text
    json:KEY      an entry of the metadata that is no text, as JSON text

Owns: every field in both directions. Leaves to others: what the bus message around it says (`client.acp.message`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from gagent_grpc.acp.delegations import attachment_json, attachments_of, attempts_of, policy_of
from gagent_grpc.acp.free_json import json_text, json_value
from gagent_grpc.acp.message import ACPMessage, ACPMessageType, ACPMetadata
from gagent_grpc.acp.moments import iso_text, moment_of
from gagent_grpc.acp.tasks import OnExecutorLost
from gagent_grpc.codec.tasks import attachment_from_proto, attachment_to_proto
from gagent_grpc.codec.times import datetime_of, timestamp_to_proto
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import acp_pb2

_NUMBERS = {
    kind: acp_pb2.AcpMessageType.Value(f"ACP_MESSAGE_TYPE_{kind.name}") for kind in ACPMessageType
}  # By name: the two have no numbers in common.
TYPES_BY_NUMBER = {int(number): kind for kind, number in _NUMBERS.items()}
"""The types by their numbers on the wire."""
_PRIORITIES = {int(one): str(one) for one in Priority}
_POLICIES = {int(one): str(one) for one in OnExecutorLost}
_PRIORITY_NUMBERS = {name: number for number, name in _PRIORITIES.items()}
_CONTENT, _NAME, _MESSAGE, _JSON = "content:", "as:", "message:", "json:"
_PREFIXES = (_CONTENT, _NAME, _MESSAGE, _JSON)
_EMPTY = ACPMetadata(priority=None)
_EMPTY_MARK = f"{_MESSAGE}metadata"
_MOST_ATTEMPTS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a part."""

    key: str
    """Its name in the JSON form."""
    name: str
    """Its name on the wire."""
    write: Callable[[Any], Any]
    """Makes of a JSON value what travels; None for a value that the field cannot hold."""
    read: Callable[[Any], Any] = lambda value: value
    other_key: str = ""
    """Another name that it is known by; "" for none."""


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _fraction(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(value: Any) -> Any:
    return value if type(value) is int and 0 <= value <= _MOST_ATTEMPTS else None


def _object(value: Any) -> Any:
    return json_text(value, "content.parameters") if isinstance(value, Mapping) else None


def _order_text(key: str) -> Callable[[Any], Any]:
    def write(value: Any) -> Any:
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(f"{key} of type {type(value).__name__}; expected text", field=f"content.{key}")
        return value

    return write


def _deadline(value: Any) -> Any:
    moment = moment_of(value, "content.deadline")
    return None if moment is None else timestamp_to_proto(moment, "content.deadline")


def _policy(value: Any) -> Any:
    return None if value is None else int(policy_of(value, "content.on_executor_lost"))


def _attempts(value: Any) -> Any:
    return None if value is None else attempts_of(value, "content.max_attempts")


def _attachments(value: Any) -> Any:
    if value is None:
        return None
    return [attachment_to_proto(one) for one in attachments_of(value, "content.attachments")]


def _any(value: Any) -> Any:
    return json_text(value, "content.result")


_TASK_ID = _Field("task_id", "task_id", _text)
_PARTS: dict[str, tuple[_Field, ...]] = {
    "delegation": (
        _TASK_ID,
        _Field("description", "description", _text, other_key="task_description"),
        _Field("parameters", "parameters_json", _object, lambda text: json_value(text, "content.parameters")),
        _Field("callback_url", "callback_url", _text),
        _Field("attempt", "attempt", _count),
        _Field("delegator", "delegator", _text),
        _Field("deadline", "deadline", _deadline, lambda moment: iso_text(datetime_of(moment))),
        _Field("on_executor_lost", "on_executor_lost", _policy, lambda number: _POLICIES.get(number, number)),
        _Field("max_attempts", "max_attempts", _attempts),
        _Field("parent_delegator", "parent_delegator", _order_text("parent_delegator")),
        _Field("parent_task_id", "parent_task_id", _order_text("parent_task_id")),
        _Field(
            "attachments",
            "attachments",
            _attachments,
            lambda found: [attachment_json(attachment_from_proto(one)) for one in found],
        ),
    ),
    "update": (
        _TASK_ID,
        _Field("status", "status", _text),
        _Field("progress", "progress", _fraction),
        _Field("note", "note", _text),
    ),
    "result": (
        _TASK_ID,
        _Field("status", "status", _text),
        _Field("result", "result_json", _any, lambda text: json_value(text, "content.result")),
    ),
    "error": (_Field("code", "code", _text), _Field("error", "text", _text, other_key="text"), _TASK_ID),
}
_PART_OF = {
    ACPMessageType.DELEGATE: "delegation",
    ACPMessageType.RESPONSE: "update",
    ACPMessageType.NOTIFICATION: "update",
    ACPMessageType.RESULT: "result",
    ACPMessageType.ERROR: "error",
}
_ABOUT_A_TASK = frozenset({ACPMessageType.RESPONSE, ACPMessageType.NOTIFICATION, ACPMessageType.RESULT})
"""Types whose content is in a part only where it names a task; else it is free."""


def acp_to_proto(message: ACPMessage, into: acp_pb2.AcpMessage) -> None:
    """Write an ACP message into an empty one.

    Raises:
        InvalidArgument: A field has a value that cannot travel; the error names it. A signature is one.
    """
    if message.signature is not None:
        raise InvalidArgument(
            "signature: is not served by the bus yet; expected a message without it", field="signature"
        )
    field = "type"
    try:
        into.message_type = _NUMBERS[message.type]
        for field in ("id", "source", "target"):
            value = getattr(message, field)
            if value is not None:
                setattr(into, field, value)
        field = "in_reply_to"
        if message.in_reply_to is not None:
            into.in_reply_to = message.in_reply_to
        if message.timestamp is not None:
            into.timestamp.CopyFrom(timestamp_to_proto(message.timestamp, "timestamp"))
        field = "metadata"
        entries = {f"{_MESSAGE}{key}": json_text(value, key) for key, value in message.extra.items()}
        if message.metadata is not None:
            into.metadata.SetInParent()
            entries.update(_metadata_to_proto(message.metadata, into.metadata))
        field = "content"
        entries.update(_content_to_proto(message, into))
        field = "metadata"
        if entries:
            if message.metadata == _EMPTY:
                # The entries alone would not tell it from none.
                entries[_EMPTY_MARK] = "{}"
            into.metadata.entries.update(entries)
    except (TypeError, ValueError) as error:
        # protobuf says what it wanted, but not where; a lone surrogate in a text ends here too.
        raise InvalidArgument(f"{field}: a value cannot be sent ({error})", field=field) from error


def acp_from_proto(message: acp_pb2.AcpMessage) -> ACPMessage:
    """Return the ACP message in ``message``.

    Raises:
        InvalidArgument: Its type is not known here, or what should be JSON text is none; the error names the field.
    """
    kind = TYPES_BY_NUMBER.get(int(message.message_type))
    if kind is None:
        expected = ", ".join(f"{number} ({name})" for number, name in sorted(TYPES_BY_NUMBER.items()))
        raise InvalidArgument(f"unknown ACP message type {message.message_type}; expected {expected}", field="type")
    entries = dict(message.metadata.entries)
    empty = entries.pop(_EMPTY_MARK, None) is not None
    content = _content_from_proto(message, entries)
    extra = {key: json_value(text, key) for key, text in _taken(entries, _MESSAGE).items()}
    return ACPMessage(
        id=message.id or None,
        type=kind,
        source=message.source or None,
        target=message.target or None,
        content=content,
        metadata=_metadata_from_proto(message, entries) or (_EMPTY if empty else None),
        timestamp=datetime_of(message.timestamp) if message.HasField("timestamp") else None,
        in_reply_to=message.in_reply_to if message.HasField("in_reply_to") else None,
        extra=extra,
    )


# ---- content -----------------------------------------------------------------------------------------------------------


def _content_to_proto(message: ACPMessage, into: acp_pb2.AcpMessage) -> dict[str, str]:
    """Write the content; return what its part has no field for, as entries of the metadata."""
    content, part = message.content, _PART_OF.get(message.type)
    if content is None:
        return {}
    named = isinstance(content, Mapping) and (message.type not in _ABOUT_A_TASK or message.task_id is not None)
    if part is None or not named:
        into.json = json_text(content, "content")
        return {}
    # Of the whole, so that the error is about the content and keys that are no texts are found.
    json_text(content, "content")
    made: Any = getattr(into, part)
    made.SetInParent()
    entries: dict[str, str] = {}
    for field in _PARTS[part]:
        key = field.key
        if field.other_key and key not in content and isinstance(content.get(field.other_key), str):
            key = field.other_key
            entries[f"{_NAME}{field.key}"] = key
        value = field.write(content[key]) if key in content else None
        if value is not None:
            _put(made, field.name, value)
    arrives = _part_to_content(part, made, {name.removeprefix(_NAME): key for name, key in entries.items()})
    for key, value in content.items():
        if key not in arrives or not _same(arrives[key], value):
            entries[f"{_CONTENT}{key}"] = json_text(value, f"content.{key}")
    return entries


def _put(made: Message, name: str, value: Any) -> None:
    """Set a field of whatever kind."""
    if isinstance(value, Message):
        getattr(made, name).CopyFrom(value)
    elif isinstance(value, list):
        getattr(made, name).extend(value)
    else:
        setattr(made, name, value)


def _content_from_proto(message: acp_pb2.AcpMessage, entries: dict[str, str]) -> Any:
    """Return the content, and take from ``entries`` what belongs to it."""
    which = message.WhichOneof("content")
    if which is None:
        return None
    if which == "json":
        return json_value(message.json, "content")
    content = _part_to_content(which, getattr(message, which), _taken(entries, _NAME))
    for key, text in _taken(entries, _CONTENT).items():
        content[key] = json_value(text, f"content.{key}")
    return content


def _part_to_content(part: str, made: Message, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what a part says: an object with the keys that are there."""
    found: dict[str, Any] = {}
    for field in _PARTS[part]:
        value = getattr(made, field.name)
        has_presence = made.DESCRIPTOR.fields_by_name[field.name].has_presence
        if made.HasField(field.name) if has_presence else value:
            found[names.get(field.key, field.key)] = field.read(value)
    return found


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal and of the same types: 3 and 3.0 are not."""
    if isinstance(one, dict) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


# ---- metadata ----------------------------------------------------------------------------------------------------------


def _metadata_to_proto(metadata: ACPMetadata, into: acp_pb2.AcpMetadata) -> dict[str, str]:
    """Write the metadata; return its entries as they travel."""
    if metadata.priority is not None:
        into.priority = _PRIORITY_NUMBERS[metadata.priority]  # type: ignore[assignment]  # [assignment]: same numbers by test.
    if metadata.ttl is not None:
        into.ttl_seconds = metadata.ttl
    if metadata.trace is not None:
        into.trace = metadata.trace
    entries: dict[str, str] = {}
    for key, value in metadata.entries.items():
        if isinstance(value, str) and not key.startswith(_PREFIXES):
            entries[key] = value
        else:
            entries[f"{_JSON}{key}"] = json_text(value, f"metadata.{key}")
    return entries


def _metadata_from_proto(message: acp_pb2.AcpMessage, entries: dict[str, str]) -> ACPMetadata | None:
    """Return the metadata, with what is left of its entries; None when there is none."""
    metadata = message.metadata
    others: dict[str, Any] = {key: json_value(text, f"metadata.{key}") for key, text in _taken(entries, _JSON).items()}
    others.update(entries)
    ttl = metadata.ttl_seconds if metadata.HasField("ttl_seconds") else None
    trace = metadata.trace if metadata.HasField("trace") else None
    priority = _PRIORITIES.get(int(metadata.priority))
    said = (priority, ttl, trace) != (None, None, None) or others
    # Entries that were not metadata make the message have some on the wire, and none for whoever reads it.
    if not (said or (message.HasField("metadata") and not metadata.entries)):
        return None
    # Of a known name a text is not metadata of its own: whoever writes both is believed in the field.
    for name in ("priority", "ttl", "trace"):
        others.pop(name, None)
    return ACPMetadata(priority, int(ttl) if ttl is not None and ttl.is_integer() else ttl, trace, others)


def _taken(entries: dict[str, str], prefix: str) -> dict[str, str]:
    """Take the entries with a prefix; return them without it."""
    found = {key: entries.pop(key) for key in list(entries) if key.startswith(prefix)}
    return {key.removeprefix(prefix): value for key, value in found.items()}
