"""The frames of `/acp`: ACP messages as they are, and beside them control frames, which have no `type`.

    client                                                        gateway
                                                                  {"control": "welcome", "agent", "window", ...}
    {"type": "request", "id": "m-1", "target": "bob", ...}
                                                                  {"control": "receipt", "number": 1, "id": "m-1",
                                                                   "outcome": "ACCEPTED"}
                                                                  {"type": "response", "in_reply_to": "m-1", ...}
    {"control": "ack", "id": "..."}
    {"control": "watch", "task_id": "t-1", "after": 0}
                                                                  {"control": "event", "task_id": "t-1", "task": {...}}
                                                                  {"control": "event", "task_id": "t-1", "event": {...}}
                                                                  {"control": "watch_ended", "task_id": "t-1", ...}
    {"control": "unwatch", "task_id": "t-1"}

Owns: what each frame says, in both directions. Pure. Leaves to others: the ACP messages (`acp.message`), what is done about
a frame (`gateway.websocket`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gagent_grpc.acp.free_json import json_text, json_value
from gagent_grpc.acp.message import AUTOMATIC_ENTRY, ACPMessage, ACPMessageType, ACPMetadata, error_content
from gagent_grpc.acp.task_json import event_to_json, task_to_json
from gagent_grpc.acp.tasks import DelegatedTask, TaskEvent
from gagent_grpc.client.message import Receipt
from gagent_grpc.errors import BusError, InvalidArgument, MissingParameter, shown

UNKNOWN_TYPE = "UNKNOWN_TYPE"
"""Code of the ERROR about a message whose type is none of the seven."""
INVALID_CONTENT = "INVALID_CONTENT"
"""The same, for its sender, about a message that cannot be handed to the client of a socket."""
INVALID_MESSAGE = "INVALID_MESSAGE"
"""The same about a frame that is no message, or one with a value that it cannot have."""
NEVER_ANSWERED = frozenset({ACPMessageType.HEARTBEAT, ACPMessageType.ERROR})
"""Types that get no ERROR, whatever is wrong with them."""
PLATFORM = "ams"
"""Source of the ERRORs of the gateway: the AMS speaks for the platform."""
_MOST_EVENTS = 2**53


@dataclass(frozen=True, slots=True)
class Ack:
    """The client has a message for good."""

    id: str
    source: str | None
    """Who sent it; None for whoever did."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The client wants to hear of a task."""

    task_id: str
    delegator: str
    """Who delegated it; "" for the client itself."""
    after: int | None
    """Sequence of the last event that it knows; None for what happens from now on."""


@dataclass(frozen=True, slots=True)
class Unwatch:
    """The client wants to hear of a task no longer."""

    task_id: str
    delegator: str


Control = Ack | Watch | Unwatch


class BadFrame(Exception):
    """A frame that is neither a message nor a control frame.

    Attributes:
        text: What is wrong, and what is expected.
        code: `UNKNOWN_TYPE` or `INVALID_MESSAGE`.
        message_id: Id of the message; None where it names none that can be said.
        answered: Whether an ERROR says so; not about a HEARTBEAT or an ERROR.
        control: Name of the control frame that it was meant to be; None for a message.
    """

    def __init__(
        self,
        text: str,
        code: str = INVALID_MESSAGE,
        message_id: str | None = None,
        *,
        answered: bool = True,
        control: str | None = None,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.message_id = message_id
        self.answered = answered
        self.control = control


def read_frame(text: str) -> ACPMessage | Control:
    """Return what a client says in a text frame. What has a `type` is an ACP message.

    Raises:
        BadFrame: It says nothing that is known here.
    """
    try:
        found = json_value(text, "frame")
    except InvalidArgument as error:
        raise BadFrame(str(error)) from error
    if not isinstance(found, dict):
        raise BadFrame(f"frame: JSON of type {type(found).__name__}; expected an object")
    if "type" not in found and "control" in found:
        return _control(found)
    return _message(found, text)


def _message(found: dict[str, Any], text: str) -> ACPMessage:
    message_id, kind = _sayable(found.get("id")), found.get("type")
    if kind is not None:
        try:
            kind = ACPMessageType.parse(kind)
        except InvalidArgument as error:
            raise BadFrame(str(error), UNKNOWN_TYPE, message_id) from error
    try:
        if r"\ud" in text.lower():
            # Escapes can say half a character, which nothing else can.
            json_text(found, "message")
        return ACPMessage.from_dict(found)
    except MissingParameter as error:
        why = 'frame: neither "type" nor "control"; expected an ACP message, or a control frame'
        raise BadFrame(why, message_id=message_id) from error
    except InvalidArgument as error:
        raise BadFrame(str(error), message_id=message_id, answered=kind not in NEVER_ANSWERED) from error


def _control(found: dict[str, Any]) -> Control:
    name = found["control"]
    keys = _KEYS.get(name) if isinstance(name, str) else None
    if keys is None:
        what = shown(name) if isinstance(name, str) else f"of type {type(name).__name__}"
        raise BadFrame(f"control {what}; expected one of: {', '.join(_KEYS)}", control="")
    unknown = next((key for key in found if key not in keys and key != "control"), None)
    if unknown is not None:
        raise BadFrame(f"{name}: unknown key {shown(unknown)}; expected: {', '.join(keys)}", control=name)
    texts: dict[str, str] = {}
    for key in keys[:2]:
        value = found.get(key)
        if value is None and key != keys[0]:
            continue
        if not isinstance(value, str) or not value or _sayable(value) is None:
            raise BadFrame(f"{name}: {key} is no text; expected that of what is meant", control=name)
        texts[key] = value
    if name == "ack":
        return Ack(texts["id"], texts.get("source"))
    if name == "unwatch":
        return Unwatch(texts["task_id"], texts.get("delegator", ""))
    after = found.get("after")
    if after is not None and not (type(after) is int and 0 <= after <= _MOST_EVENTS):
        raise BadFrame("watch: after is no number of an event; expected 0 or more", control=name)
    return Watch(texts["task_id"], texts.get("delegator", ""), after)


_KEYS: dict[str, tuple[str, ...]] = {
    "ack": ("id", "source"),
    "watch": ("task_id", "delegator", "after"),
    "unwatch": ("task_id", "delegator"),
}
"""Keys of each control frame of a client: the one that must be there, another text, what else."""


def _sayable(value: Any) -> str | None:
    """Return a text that can be said back; None for everything else."""
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


# ---- what the gateway says ---------------------------------------------------------------------------------------------


def welcome(
    agent: str, *, acks: str, window: int, heartbeat: float, max_bytes: int, max_message_bytes: int, software: str
) -> str:
    """Return the first frame: who the client is, `name@platform`, and the limits in force."""
    return _text(
        {
            "control": "welcome",
            "agent": agent,
            "acks": acks,
            "window": window,
            "heartbeat_ms": round(heartbeat * 1000),
            "max_bytes": max_bytes,
            "max_message_bytes": max_message_bytes,
            "software": software,
        }
    )


def receipt(
    number: int, message_id: str | None, outcome: str, told: Receipt | None = None, **more: object
) -> dict[str, Any]:
    """Return the frame that says what became of the message that was the client's ``number``-th frame with one.

    Args:
        number: 1 for the first message of the socket.
        message_id: Its id; the one that it got where it had none.
        outcome: Name of the outcome.
        told: What the bus said about it.
        more: Further keys; None is left out.
    """
    made: dict[str, Any] = {"control": "receipt", "number": number, "id": message_id, "outcome": outcome}
    if told is not None:
        made["receiver"] = told.receiver or None
        made["reason"] = told.detail or None
        made["field"] = told.field or None
        if told.retry_after is not None:
            made["retry_after_ms"] = round(told.retry_after * 1000)
        made["reached"] = told.reached or None
        made["missed"] = told.missed or None
    made.update(more)
    return {key: value for key, value in made.items() if value is not None or key == "id"}


def refused(
    agent: str, code: str, text: str, *, in_reply_to: str | None = None, task_id: str | None = None
) -> ACPMessage:
    """Return the ERROR that tells a client, ``agent``, that its message was not taken."""
    return ACPMessage(
        type=ACPMessageType.ERROR,
        source=PLATFORM,
        target=agent,
        content=error_content(code, text, task_id),
        metadata=ACPMetadata(entries={AUTOMATIC_ENTRY: "true"}),
        in_reply_to=in_reply_to,
    )


def task_event(wish: Watch, told: DelegatedTask | TaskEvent) -> str:
    """Return the frame of a task as it is, or of what happened to it."""
    if isinstance(told, DelegatedTask):
        return _text({**_of(wish, "event"), "task": task_to_json(told)})
    return _text({**_of(wish, "event"), "event": event_to_json(told)})


def watch_ended(wish: Watch | Unwatch, task: DelegatedTask | None) -> str:
    """Return the frame after which no more is heard of a task: it has ended, or the client wanted no more."""
    made = _of(wish, "watch_ended")
    return _text(made if task is None else {**made, "task": task_to_json(task)})


def watch_failed(wish: Watch, error: BusError) -> str:
    """Return the frame that says why a task is not watched, or no longer."""
    made = {**_of(wish, "error"), "about": "watch", "code": error.code, "reason": str(error)}
    return _text({**made, "details": dict(error.details())})


def control_refused(bad: BadFrame) -> str:
    """Return the frame that says what is wrong with a control frame."""
    return _text({"control": "error", "about": bad.control or None, "code": "INVALID_CONTROL", "reason": bad.text})


def text_of(frame: Mapping[str, Any]) -> str:
    """Return a control frame as it travels."""
    return _text(frame)


def worst(receipts: Sequence[Receipt]) -> Receipt | None:
    """Return the receipt that a message is told by: one that was not delivered, else the first one; None for none."""
    return next((one for one in receipts if not one.delivered), receipts[0] if receipts else None)


def _of(wish: Watch | Unwatch, control: str) -> dict[str, Any]:
    made = {"control": control, "task_id": wish.task_id}
    return {**made, "delegator": wish.delegator} if wish.delegator else made


def _text(frame: Mapping[str, Any]) -> str:
    return json_text(frame, "frame")
