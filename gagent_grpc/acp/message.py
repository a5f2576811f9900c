"""ACP messages as values, and their JSON form. The Agent Client Protocol of editors is something else.

Owns: the fields, what is mandatory, JSON in both directions. Leaves to others: the wire (`codec.acp`), what corresponds to
them in ACL (`acp.mapping`), delivery (`client.acp`).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acp.delegations import attachment_json, attachments_of, attempts_of, policy_of
from gagent_grpc.acp.free_json import json_text, json_value
from gagent_grpc.acp.moments import iso_text, moment_of
from gagent_grpc.acp.tasks import Attachment, OnExecutorLost, TaskKey
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import InvalidArgument, MissingParameter, shown

AUTOMATIC_ENTRY = "automatic"
"""Entry of the metadata, "true" in what a program answered and no agent composed; never answered by another one."""


class ACPMessageType(enum.StrEnum):
    """Kind of an ACP message; the value is `type` of the JSON form."""

    REQUEST = "request"
    """A question that expects a RESPONSE."""
    RESPONSE = "response"
    """The answer to a REQUEST, or the acceptance of a DELEGATE."""
    NOTIFICATION = "notification"
    """News that expect no answer, such as the progress of a task."""
    HEARTBEAT = "heartbeat"
    """A sign of life. Never answered."""
    ERROR = "error"
    """Something went wrong; names the message or task concerned. Never answered by another one."""
    DELEGATE = "delegate"
    """Hands a task over."""
    RESULT = "result"
    """The outcome of a delegated task."""

    @classmethod
    def parse(cls, value: str) -> ACPMessageType:
        """Return the type that ``value`` names; case does not matter.

        Raises:
            InvalidArgument: It names none of the seven.
        """
        found = _TYPES.get(value.strip().lower()) if isinstance(value, str) else None
        if found is None:
            text = f"unknown ACP message type {shown(str(value))}; expected one of: {', '.join(_TYPES)}"
            raise InvalidArgument(text, field="type")
        return found


_TYPES = {kind.value: kind for kind in ACPMessageType}
_PRIORITIES = {str(one): one for one in Priority}


@dataclass(frozen=True, slots=True)
class ACPMetadata:
    """Metadata of an ACP message. Raises InvalidArgument when it is made with a value that it cannot have."""

    priority: str | None = "normal"
    """Urgency: low, normal, high or urgent; a `Priority` is taken, too. None: not said, which means normal."""
    ttl: float | None = None
    """Seconds after its timestamp when the message stops being of use; None for never."""
    trace: str | None = None
    """W3C `traceparent`; None for none."""
    entries: Mapping[str, Any] = field(default_factory=dict)
    """Everything else, by name: JSON values."""

    def __post_init__(self) -> None:
        if self.priority is not None:
            named = str(self.priority).strip().lower() if isinstance(self.priority, str | Priority) else ""
            if named not in _PRIORITIES:
                text = f"priority {shown(str(self.priority))}; expected one of: {', '.join(_PRIORITIES)}"
                raise InvalidArgument(text, field="metadata.priority")
            object.__setattr__(self, "priority", named)
        if self.ttl is not None and not (_is_number(self.ttl) and math.isfinite(self.ttl) and self.ttl >= 0):
            raise InvalidArgument(f"ttl {shown(str(self.ttl))}; expected seconds, 0 or more", field="metadata.ttl")
        _text_or_none(self.trace, "metadata.trace")
        for name in self.entries:
            if name in _METADATA:
                raise InvalidArgument(f"entries has {name!r}, which is a field of its own", field="metadata.entries")

    @property
    def urgency(self) -> Priority:
        """The priority as the bus has it."""
        return _PRIORITIES[self.priority] if self.priority is not None else Priority.NORMAL

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form as an object; absent stays absent."""
        own = {name: value for name in _METADATA if (value := getattr(self, name)) is not None}
        return {**own, **self.entries}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Return the metadata in an object of the JSON form; a null counts as absent, an unknown key is kept.

        Raises:
            InvalidArgument: A value is of the wrong form.
        """
        entries = {name: value for name, value in found.items() if name not in _METADATA}
        return cls(found.get("priority"), found.get("ttl"), found.get("trace"), entries)


_METADATA = ("priority", "ttl", "trace")


@dataclass(frozen=True, slots=True)
class ACPMessage:
    """One ACP message: a value; a change is a new one, by `replace`, and an answer is made by `create_reply`.

    Only the type is mandatory. What is None is filled when the message is sent: an id, the agent as source, the time, and
    metadata of normal priority. Raises InvalidArgument when it is made with a value that it cannot have.
    """

    id: str | None = None
    """Identity, unique for the source. The same id with the same message arrives once, however often it is sent."""
    type: ACPMessageType = None  # type: ignore[assignment]  # [assignment]: keeps its place; None is refused below.
    """Kind; its name as text is taken, too."""
    source: str | None = None
    """Who sent it, `name` or `name@platform`. Another one than the agent that sends it is DENIED by the bus."""
    target: str | None = None
    """Whom it is for, as a delivery address."""
    content: Any = None
    """JSON value; None for none."""
    metadata: ACPMetadata | None = None
    timestamp: datetime | None = None
    """When it was made, aware; ISO 8601 text is taken, too."""
    signature: str | None = None
    """Signature of the JSON form. The bus does not serve it yet, so a message with one cannot be sent."""
    in_reply_to: str | None = None
    """Id of the message that this one answers."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the JSON form that are not known here: JSON values, kept and sent on."""

    def __post_init__(self) -> None:
        if self.type is None:
            raise MissingParameter("acp-message", "type")
        object.__setattr__(self, "type", ACPMessageType.parse(self.type))
        for name in ("id", "source", "target", "signature", "in_reply_to"):
            _text_or_none(getattr(self, name), name)
        metadata: Any = self.metadata
        if isinstance(metadata, Mapping):
            object.__setattr__(self, "metadata", ACPMetadata.from_dict(metadata))
        elif metadata is not None and not isinstance(metadata, ACPMetadata):
            text = f"metadata of type {_kind(metadata)}; expected ACPMetadata or an object"
            raise InvalidArgument(text, field="metadata")
        object.__setattr__(self, "timestamp", moment_of(self.timestamp, "timestamp"))
        for name in self.extra:
            if name in _FIELDS:
                raise InvalidArgument(f"extra has {name!r}, which is a field of its own", field="extra")

    @property
    def task_id(self) -> str | None:
        """Task that the content names; None when it names none."""
        found = self.content.get("task_id") if isinstance(self.content, Mapping) else None
        return found if isinstance(found, str) and found else None

    @property
    def receivers(self) -> tuple[AgentIdentifier, ...]:
        """Whom it is for, as an ACL message says it."""
        return () if self.target is None else (AgentIdentifier(self.target),)

    @property
    def automatic(self) -> bool:
        """Whether a program answered it and no agent composed it."""
        return self.metadata is not None and self.metadata.entries.get(AUTOMATIC_ENTRY) == "true"

    def replace(self, **changes: Any) -> ACPMessage:
        """Return a message with the fields in ``changes`` and the rest of this one.

        Raises:
            TypeError: A name is none of the fields.
            InvalidArgument: A value that the field cannot have.
        """
        return ACPMessage(
            **{**{one.name: getattr(self, one.name) for one in dataclasses.fields(ACPMessage)}, **changes}
        )

    def create_reply(self, kind: ACPMessageType | str, content: Any = None, **changes: Any) -> ACPMessage:
        """Return an answer: to the source, with this message's id as `in_reply_to` and its priority and trace.

        Raises:
            InvalidArgument: ``kind`` is no type, or a value that the field in ``changes`` cannot have.
        """
        metadata = None
        if self.metadata is not None:
            metadata = ACPMetadata(priority=self.metadata.priority, trace=self.metadata.trace)
        fields: dict[str, Any] = {"target": self.source, "in_reply_to": self.id, "metadata": metadata, **changes}
        return ACPMessage(type=ACPMessageType.parse(kind), content=content, **fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form as an object; absent stays absent."""
        found: dict[str, Any] = {}
        for name in _FIELDS:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, ACPMetadata):
                value = value.to_dict()
            elif isinstance(value, datetime):
                value = iso_text(value)
            found[name] = str(value) if name == "type" else value
        return {**found, **self.extra}

    def to_json(self) -> str:
        """Return the JSON form as text, on one line.

        Raises:
            InvalidArgument: Content, metadata or an extra key is no JSON value.
        """
        return json_text(self.to_dict(), "message")

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> ACPMessage:
        """Return the message in an object of the JSON form; a null counts as absent, an unknown key is kept.

        Raises:
            MissingParameter: It has no type.
            InvalidArgument: A value is of the wrong form; the error names the key.
        """
        metadata = found.get("metadata")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidArgument(f"metadata of type {_kind(metadata)}; expected an object", field="metadata")
        extra = {name: value for name, value in found.items() if name not in _FIELDS}
        fields: dict[str, Any] = {name: found.get(name) for name in _FIELDS}
        return ACPMessage(**fields, extra=extra)

    @classmethod
    def from_json(cls, text: str | bytes) -> ACPMessage:
        """Return the message in JSON text; numbers keep their type and integers every digit.

        Raises:
            MissingParameter: It has no type.
            InvalidArgument: It is no JSON object, or a value is of the wrong form; the error names the key.
        """
        if isinstance(text, bytes):
            try:
                text = text.decode()
            except UnicodeDecodeError as error:
                raise InvalidArgument(f"message: no UTF-8 ({error}); expected JSON text", field="message") from error
        found = json_value(text, "message")
        if not isinstance(found, dict):
            raise InvalidArgument(f"an ACP message of type {_kind(found)}; expected a JSON object", field="message")
        return cls.from_dict(found)


_FIELDS = ("id", "type", "source", "target", "content", "metadata", "timestamp", "signature", "in_reply_to")
"""Keys of the JSON form, in the order in which they are written."""


@dataclass(frozen=True, slots=True)
class DelegateMessage:
    """Content of a DELEGATE: the task that is handed over. It makes the same task as `Agent.delegate` with these values."""

    task_id: str = ""
    """Identity of the task, unique for the delegator. Empty: one is made when it is sent."""
    task_description: str = ""
    """What is to be done, in words; `description` in the JSON form."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Arguments: a JSON object."""
    callback_url: str | None = None
    """Carried unchanged and fetched by nobody; None for none."""
    deadline: datetime | None = None
    """When the task expires, aware; None for with the message, or with its parent."""
    on_executor_lost: OnExecutorLost = OnExecutorLost.FAIL
    """What happens when its executor is lost; `fail` or `redeliver` in the JSON form."""
    max_attempts: int = 0
    """Most attempts; 0 for 1, and 3 where it is handed over again."""
    parent: TaskKey | None = None
    """Task that the sender works on and that this one comes of; `parent_delegator` and `parent_task_id` in the JSON form."""
    attachments: tuple[Attachment, ...] = ()
    """What belongs to it and lies elsewhere."""

    def to_content(self) -> dict[str, Any]:
        """Return the content that says so; what is not said stays absent."""
        found: dict[str, Any] = {"task_id": self.task_id, "description": self.task_description}
        if self.parameters:
            found["parameters"] = dict(self.parameters)
        if self.callback_url is not None:
            found["callback_url"] = self.callback_url
        if self.deadline is not None:
            found["deadline"] = iso_text(self.deadline)
        if self.on_executor_lost is not OnExecutorLost.FAIL:
            found["on_executor_lost"] = str(self.on_executor_lost)
        if self.max_attempts:
            found["max_attempts"] = self.max_attempts
        if self.parent is not None:
            found["parent_delegator"], found["parent_task_id"] = self.parent
        if self.attachments:
            found["attachments"] = [attachment_json(one) for one in self.attachments]
        return found

    def to_message(self, target: str | None = None, **fields: Any) -> ACPMessage:
        """Return a DELEGATE for ``target``; further ``fields`` as `ACPMessage` has them."""
        return ACPMessage(type=ACPMessageType.DELEGATE, target=target, content=self.to_content(), **fields)

    @classmethod
    def from_message(cls, message: ACPMessage) -> Self:
        """Return the task that a DELEGATE hands over; `task_description` is read as `description`, too.

        Raises:
            InvalidArgument: It is no DELEGATE, or its content is of another form.
        """
        content = message.content
        if message.type is not ACPMessageType.DELEGATE or not isinstance(content, Mapping):
            text = f"a {message.type} with content of type {_kind(content)}; expected a delegate with an object"
            raise InvalidArgument(text, field="content")
        description = content.get("description", content.get("task_description"))
        parameters = content.get("parameters")
        for name, value, expected in (
            ("task_id", content.get("task_id"), str),
            ("description", description, str),
            ("parameters", parameters, Mapping),
            ("callback_url", content.get("callback_url"), str),
            ("parent_delegator", content.get("parent_delegator"), str),
            ("parent_task_id", content.get("parent_task_id"), str),
        ):
            if value is not None and not isinstance(value, expected):
                what = "an object" if expected is Mapping else "text"
                raise InvalidArgument(f"{name} of type {_kind(value)}; expected {what}", field=f"content.{name}")
        lost, attempts, attachments = map(content.get, ("on_executor_lost", "max_attempts", "attachments"))
        parent = (content.get("parent_delegator") or "", content.get("parent_task_id") or "")
        return cls(
            content.get("task_id") or "",
            description or "",
            parameters or {},
            content.get("callback_url"),
            moment_of(content.get("deadline"), "content.deadline"),
            OnExecutorLost.FAIL if lost is None else policy_of(lost, "content.on_executor_lost"),
            0 if attempts is None else attempts_of(attempts, "content.max_attempts"),
            TaskKey(*parent) if any(parent) else None,
            () if attachments is None else attachments_of(attachments, "content.attachments"),
        )


def error_content(code: str, text: str, task_id: str | None = None) -> dict[str, Any]:
    """Return the content of an ERROR: a reason for programs in UPPER_SNAKE_CASE, one for people, the task if any."""
    found: dict[str, Any] = {"code": code, "error": text}
    if task_id is not None:
        found["task_id"] = task_id
    return found


def _kind(value: object) -> str:
    return type(value).__name__


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_or_none(value: object, name: str) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{name} of type {_kind(value)}; expected text", field=name)
