"""The line protocol of script agents, pure: bytes to lines to typed actions, and events to bytes.

Owns: what a line is, what counts as an answer, and what an action may hold. Leaves to others: the child process and
which event an answer belongs to (`bridge.process`), and what an action does on the bus (`bridge.events`).

A script answers with one JSON object per line. What a line may be:

    {"action":"noop"}                                      one action
    {"actions":[{"action":"send",...},...],"id":7}         several actions, as `gagent_py` writes them
    [{"action":"send",...},{"action":"noop"}]              several actions, as a script by hand may write them

`id` is optional and repeats the `id` of the event that is answered; `extensions`, in the answer to `start`, names the
further events that the script takes (`bridge.extension_actions`). A line that is none of these is noise: it is
logged and counts for nothing. A line that is an answer, but holds an action that cannot be carried out, still counts
as the answer; the action becomes a `BadAction`, which does nothing but say why.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from gagent_grpc.acl.descriptions import Property, ServiceDescription
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bridge.extension_actions import EXTENSION_PARSERS, ExtensionAction, extensions_of
from gagent_grpc.bridge.values import Unusable, content_of, encodable, kind_of, names_of, shown, text_of, time_of
from gagent_grpc.errors import UnknownPerformative

DEFAULT_MESSAGE_BYTES = 1_000_000
"""Message limit that the default line limit is made for, in bytes encoded."""
MAX_ACTIONS_PER_LINE = 1_000
"""Most actions that one line may hold."""
MAX_INTEGER_DIGITS = 1_000
"""Longest integer in a line; Python's own conversion is quadratic and refuses more than 4,300 digits."""
EXCERPT_CHARS = 80
"""Longest piece of a noise line that reaches the log."""

_BOM = b"\xef\xbb\xbf"
_JSON_BLANKS = b" \t\r\n"
_ACTION = re.compile(rb'"actions?"[ \t]*:')
_HEAD_BYTES = 64


def max_line_bytes(message_bytes: int = DEFAULT_MESSAGE_BYTES) -> int:
    """Return the line limit for a message limit: ASCII escaping makes up to six bytes of one, and keys need room."""
    return 6 * message_bytes + 64 * 1024


def encode_event(event: Mapping[str, Any]) -> bytes:
    r"""Return ``event`` as one line of ASCII-escaped JSON with one LF.

    Escaped, the line holds no U+2028 or other character that a careless line reader of a script takes for a newline.

    Raises:
        ValueError: The event holds NaN or an infinity, which JSON does not have.
    """
    return json.dumps(event, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


# --- Bytes to lines -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """A line over the limit; all but its beginning was dropped."""

    size_bytes: int
    """Length of the whole line without its newline."""
    head: bytes
    """Its first bytes, at most 64."""


class LineSplitter:
    """Cuts a stream of bytes into lines at byte 0x0A and nowhere else, holding at most one line.

    A line over the limit is dropped up to its newline and reported once, at its end, so that what follows is read in
    step. Each byte is looked at once, however the stream is cut into pieces.
    """

    __slots__ = ("_buffer", "_limit", "_size")

    def __init__(self, limit: int) -> None:
        """Start at the beginning of a line.

        Args:
            limit: Longest line that is returned, in bytes without the newline.
        """
        self._limit = limit
        self._size = 0
        # The present line up to here; once it is over the limit, only its head.
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes | OverlongLine]:
        """Return the lines that ``data`` completes, without their newlines."""
        lines: list[bytes | OverlongLine] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._append(data, start, end)
            lines.append(self._take())
            start = end + 1
        self._append(data, start, len(data))
        return lines

    def finish(self) -> list[bytes | OverlongLine]:
        """Return the last line when the stream ended without a newline; no line when it ended with one."""
        return [self._take()] if self._size else []

    def _append(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._size > self._limit:
            end = min(end, start + max(0, _HEAD_BYTES - len(self._buffer)))
        self._buffer += memoryview(data)[start:end]
        if self._size > self._limit:
            del self._buffer[_HEAD_BYTES:]

    def _take(self) -> bytes | OverlongLine:
        line, size = bytes(self._buffer), self._size
        self._buffer.clear()
        self._size = 0
        return line if size <= self._limit else OverlongLine(size, line)


# --- Actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Noop:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class SendAction:
    """Send one message to each of ``to``. The sender is not here: the bridge stamps it. None means absent."""

    to: tuple[str, ...]
    """Delivery addresses, at least one, none twice."""
    performative: Performative
    content: str | bytes | None = None
    receivers: tuple[str, ...] = ()
    """The `receiver` parameter; empty when it is to be ``to``."""
    reply_to: tuple[str, ...] = ()
    language: str | None = None
    encoding: str | None = None
    ontology: str | None = None
    protocol: str | None = None
    conversation_id: str | None = None
    reply_with: str | None = None
    in_reply_to: str | None = None
    reply_by: datetime | None = None
    """Aware."""
    user_parameters: Mapping[str, str] = field(default_factory=dict)
    """Names begin with `X-`."""


@dataclass(frozen=True, slots=True)
class Delete:
    """End the agent: out of DF and AMS, its name and mail freed."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspend the agent: messages wait and ticks stop until it is woken."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Make a suspended agent active again; nothing happens to an active one."""


@dataclass(frozen=True, slots=True)
class Register:
    """Offer these services in the DF, in the place of what was registered before."""

    services: tuple[ServiceDescription, ...]


@dataclass(frozen=True, slots=True)
class Deregister:
    """Withdraw the agent's entries from the DF."""


@dataclass(frozen=True, slots=True)
class BadAction:
    """An action that cannot be carried out. It does nothing, and the line it is in counts all the same."""

    reason: str
    """What is wrong and what is expected; without the content of a message."""
    is_whole: bool = False
    """Whether it stands for a whole line of which nothing could be read, and not for one action that makes no sense."""
    excerpt: str = ""
    """What was read there, for the log alone; mostly nothing."""


Action: TypeAlias = Noop | SendAction | Delete | Suspend | Wake | Register | Deregister | ExtensionAction | BadAction


@dataclass(frozen=True, slots=True)
class Answer:
    """A line that answers an event."""

    actions: tuple[Action, ...]
    """At least one."""
    id: int | str | None = None
    """The `id` of the event as the script repeats it; None when it does not."""
    extensions: tuple[str, ...] = ()
    """Further events that the script takes, as it says in its answer to `start`."""

    @property
    def idle(self) -> bool:
        """Whether no action does anything."""
        return all(isinstance(action, Noop | BadAction) for action in self.actions)

    @property
    def unreadable(self) -> str | None:
        """Why nothing of the line could be read, so that no answer will come in its place; None when it could."""
        return next((one.reason for one in self.actions if isinstance(one, BadAction) and one.is_whole), None)


@dataclass(frozen=True, slots=True)
class Noise:
    """A line that is no answer, such as a progress bar or a debugging print."""

    reason: str
    excerpt: str
    """Its beginning in printable ASCII, or in hex where it is not UTF-8."""


@dataclass(frozen=True, slots=True)
class Blank:
    """A line of nothing but blanks."""


# --- Lines to actions -----------------------------------------------------------------------------------------------


def parse_line(line: bytes | OverlongLine) -> Answer | Noise | Blank:
    """Return what a script's line means. Never raises, whatever the line holds.

    A BOM at the beginning and a CR at the end are tolerated. The JSON is read strictly: what holds NaN, an infinity,
    a key twice or an endless integer, is not UTF-8, or is nested too deeply to be read, is a `BadAction` where it has an
    `action`, since its script meant to answer.
    """
    if isinstance(line, OverlongLine):
        return _judge_overlong(line)
    text = line.removeprefix(_BOM).strip(_JSON_BLANKS)
    if not text:
        return Blank()
    if text[0] not in b"{[":
        return Noise("not a JSON object", _excerpt(text))
    defects: list[str] = []
    try:
        value = _load(text.decode("utf-8"), defects)
    except UnicodeDecodeError as error:
        around = f"... {text[max(0, error.start - 8) : error.start + 8].hex(' ')} ..."
        reason = f"not UTF-8 at byte {error.start}"
        # A script that writes Latin-1 meant to answer as well, and nothing else will come in its place.
        return _lost(reason, excerpt=around) if _ACTION.search(text) else Noise(reason, around)
    except RecursionError:
        # As with a line over the limit: were an answer taken for noise, the event would wait for its time-out.
        reason = "JSON nested too deeply"
        return _lost(reason) if _ACTION.search(text) else Noise(reason, _excerpt(text))
    except ValueError as error:
        return Noise(f"not JSON: {error}", _excerpt(text))
    found = _find_actions(value)
    if found is None:
        return Noise("JSON without `action`", _excerpt(text))
    if defects:
        return _lost(f"not strict JSON: {defects[0]}", _find_id(value))
    return Answer(found or (Noop(),), _find_id(value), _find_extensions(value))


def _judge_overlong(line: OverlongLine) -> Answer | Noise:
    # Something that begins like an answer is taken for one: were it noise, the event would wait for its time-out.
    reason = f"a line of {line.size_bytes:,} bytes is over the limit and was dropped"
    if line.head.removeprefix(_BOM).lstrip(_JSON_BLANKS)[:1] in (b"{", b"["):
        return _lost(reason)
    return Noise(reason, _excerpt(line.head))


def _lost(reason: str, answered: int | str | None = None, *, excerpt: str = "") -> Answer:
    """Return the answer that a line meant to be, of which nothing can be carried out."""
    return Answer((BadAction(reason, is_whole=True, excerpt=excerpt),), answered)


def _load(text: str, defects: list[str]) -> Any:
    """Parse JSON and note in ``defects`` the first thing that Python takes and strict JSON does not."""

    def note(defect: str) -> None:
        if not defects:
            defects.append(defect)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, item in items:
            if key in value:
                note(f"the key {shown(key)} comes twice")
            value[key] = item
        return value

    def constant(name: str) -> None:
        note(f"{name} is not a JSON value")

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            note("a number is too large")
        return value

    def integer(digits: str) -> int:
        if len(digits) > MAX_INTEGER_DIGITS:
            note(f"an integer of {len(digits):,} digits")
            return 0
        return int(digits)

    return json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number, parse_int=integer)


def _find_actions(value: Any) -> tuple[Action, ...] | None:
    """Return the actions of a parsed line; None when it is no answer."""
    if isinstance(value, dict):
        if "action" in value:
            return (_parse_action(value),)
        if "actions" not in value:
            return None
        several = value["actions"]
        if not isinstance(several, list):
            return (BadAction(f"`actions` is {kind_of(several)}, not a list of actions"),)
    elif isinstance(value, list) and value and all(isinstance(item, dict) and "action" in item for item in value):
        several = value
    else:
        return None
    if len(several) > MAX_ACTIONS_PER_LINE:
        return (BadAction(f"{len(several):,} actions in one line; at most {MAX_ACTIONS_PER_LINE:,}", is_whole=True),)
    return tuple(_parse_action(item) for item in several)


def _find_id(value: Any) -> int | str | None:
    for holder in value if isinstance(value, list) else (value,):
        found = holder.get("id")
        if isinstance(found, int | str) and not isinstance(found, bool):
            return found
    return None


def _find_extensions(value: Any) -> tuple[str, ...]:
    return extensions_of(value[0] if isinstance(value, list) else value)


def _parse_action(value: Any) -> Action:
    if not isinstance(value, dict) or "action" not in value:
        return BadAction(f"an entry of `actions` is {kind_of(value)}, not an object with `action`")
    word = value["action"]
    parse = _PARSERS.get(word) if isinstance(word, str) else None
    if parse is None:
        usual = ", ".join(_USUAL)
        return BadAction(f"unknown action {shown(word)}; expected one of: {usual}, or one about tasks or ACP")
    try:
        return parse(value)
    except Unusable as error:
        return BadAction(f"{word}: {error}")


def _parse_send(value: dict[str, Any]) -> SendAction:
    message = value.get("msg")
    to = names_of(value, "to")
    if message is None:
        raise Unusable("missing `msg`" if to else "missing `to`")
    if not isinstance(message, dict):
        raise Unusable(f"`msg` is {kind_of(message)}, not an object")
    receivers = names_of(message, "receivers")
    # As on the wire, the receivers of the body say where it goes when nothing else does.
    to = to or receivers
    if not to:
        raise Unusable("missing `to`")
    act = text_of(message, "performative")
    if act is None:
        raise Unusable("missing `msg.performative`")
    try:
        performative = Performative.parse(act)
    except UnknownPerformative as error:
        raise Unusable(f"unknown performative {shown(act)}; expected one of: {error.expected}") from None
    return SendAction(
        to=to,
        performative=performative,
        content=content_of(message),
        receivers=receivers,
        reply_to=names_of(message, "reply_to"),
        language=text_of(message, "language"),
        encoding=text_of(message, "encoding"),
        ontology=text_of(message, "ontology"),
        protocol=text_of(message, "protocol"),
        conversation_id=text_of(message, "conversation_id"),
        reply_with=text_of(message, "reply_with"),
        in_reply_to=text_of(message, "in_reply_to"),
        reply_by=time_of(message, "reply_by"),
        user_parameters={
            key: text
            for key in message
            if key[:2] in ("X-", "x-") and (text := text_of(message, encodable(key, "a key of `msg`"))) is not None
        },
    )


def _parse_register(value: dict[str, Any]) -> Register:
    services = value.get("services")
    if not isinstance(services, list) or not services:
        raise Unusable("`services` must be a list with at least one service")
    return Register(tuple(_service(item) for item in services))


def _service(value: Any) -> ServiceDescription:
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict):
        raise Unusable(f"an entry of `services` is {kind_of(value)}, not a service type or an object with `type`")
    type_ = text_of(value, "type")
    if not type_:
        raise Unusable("a service without `type`")
    properties = value.get("properties") or {}
    if not isinstance(properties, dict):
        raise Unusable(f"`properties` is {kind_of(properties)}, not an object")
    return ServiceDescription(
        name=text_of(value, "name"),
        type=type_,
        protocols=frozenset(names_of(value, "protocols")),
        ontologies=frozenset(names_of(value, "ontologies")),
        languages=frozenset(names_of(value, "languages")),
        ownership=text_of(value, "ownership"),
        properties=tuple(
            Property(encodable(key, "a key of `properties`"), text_of(properties, key)) for key in properties
        ),
    )


_USUAL: dict[str, Callable[[dict[str, Any]], Action]] = {
    "noop": lambda _: Noop(),
    "send": _parse_send,
    "delete": lambda _: Delete(),
    "suspend": lambda _: Suspend(),
    "wake": lambda _: Wake(),
    "register": _parse_register,
    "deregister": lambda _: Deregister(),
}
_PARSERS: dict[str, Callable[[dict[str, Any]], Action]] = {**_USUAL, **EXTENSION_PARSERS}
ACTIONS = tuple(_PARSERS)
"""Words of all actions."""


def _excerpt(line: bytes) -> str:
    text = line[:EXCERPT_CHARS].decode("utf-8", errors="replace")
    return ascii(text)[1:-1][:EXCERPT_CHARS]
