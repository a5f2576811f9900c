"""Actions: the JSON objects that a script answers events with.

Owns: their form, and the checks that catch a mistake here, with a traceback that its author sees, and not on the bus.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Union

from gagent_py._message import LIST_PARAMETERS, TEXT_PARAMETERS, ACLMessage

Action = dict[str, Any]
"""One action as the line protocol has it, such as `{"action": "noop"}`."""
Content = Union[str, bytes, None]  # Python 3.9 has no `|` here.
"""What a message says; None for a message without content."""

PERFORMATIVES = frozenset(
    {
        "accept-proposal",
        "agree",
        "cancel",
        "cfp",
        "confirm",
        "disconfirm",
        "failure",
        "inform",
        "inform-if",
        "inform-ref",
        "not-understood",
        "propagate",
        "propose",
        "proxy",
        "query-if",
        "query-ref",
        "refuse",
        "reject-proposal",
        "request",
        "request-when",
        "request-whenever",
        "subscribe",
    }
)
"""The 22 communicative acts of FIPA SC00037."""
MAX_SHOWN_CHARS = 40
"""Longest piece of a bad value in an error."""
COPIED_TO_REPLY = ("conversation_id", "protocol", "language", "ontology", "encoding")
"""Parameters that an answer takes over from the message that it answers."""


def simple(word: str) -> Action:
    """Return the action of that name, one that needs nothing else."""
    return {"action": word}


def send(to: str | Sequence[str], performative: str, content: Content, parameters: dict[str, Any]) -> Action:
    """Return the action that sends a message.

    Args:
        to: Name of the receiver, or several.
        performative: One of FIPA's 22 acts.
        content: Text or bytes; None for a message without content.
        parameters: Further ACL parameters by name; those that are None are left out.

    Raises:
        TypeError: A parameter is unknown or of a wrong type.
        ValueError: The performative is not one of the 22 acts, there is no receiver, or a text is not valid Unicode.
    """
    receivers = [to] if isinstance(to, str) else list(to)
    if not receivers or not all(isinstance(name, str) and name for name in receivers):
        raise ValueError(f"the receiver is {shown(to)}; expected an agent's name or a list of names")
    act = str(performative).strip().lower()
    if act not in PERFORMATIVES:
        known = ", ".join(sorted(PERFORMATIVES))
        raise ValueError(f"unknown performative {shown(performative)}; expected one of: {known}")
    msg: dict[str, Any] = {"performative": act}
    if isinstance(content, str):
        msg["content"] = checked("content", content)
    elif isinstance(content, (bytes, bytearray)):
        msg["content_base64"] = base64.b64encode(content).decode("ascii")
    elif content is not None:
        raise TypeError(f"content is {type(content).__name__}; expected str or bytes, such as json.dumps(...)")
    for key, value in parameters.items():
        if value is not None:
            _set(msg, key, value)
    return {"action": "send", "to": receivers[0] if len(receivers) == 1 else receivers, "msg": msg}


def reply(original: ACLMessage, performative: str, content: Content, parameters: dict[str, Any]) -> Action:
    """Return the action that answers ``original``; ``parameters`` override what it would take over, None removes it.

    Raises:
        TypeError: As `send`.
        ValueError: As `send`; or the message has neither sender nor reply_to.
    """
    taken = {key: getattr(original, key) or None for key in COPIED_TO_REPLY}
    taken["in_reply_to"] = original.reply_with or None
    taken.update(parameters)
    return send(taken.pop("to", None) or original.reply_to or original.sender, performative, content, taken)


def _set(msg: dict[str, Any], key: str, value: Any) -> None:
    if key == "reply_by" and isinstance(value, datetime):
        # A time without zone is local time in Python, and the bus wants one with a zone.
        msg[key] = (value if value.tzinfo else value.astimezone()).isoformat()
    elif key in LIST_PARAMETERS:
        msg[key] = [checked(key, name) for name in ([value] if isinstance(value, str) else value)]
    elif key == "user_parameters":
        for name, text in value.items():
            _set(msg, name, text)
    elif key in TEXT_PARAMETERS or key[:2] in ("X-", "x-"):
        msg[key] = checked(key, value)
    else:
        known = ", ".join((*TEXT_PARAMETERS, *LIST_PARAMETERS, "user_parameters"))
        raise TypeError(f"unknown ACL parameter {key!r}; expected one of: {known}, or a name that begins with X-")


def shown(value: Any) -> str:
    """Return a bad value as an error shows it: short, since it may be a content in the wrong place."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def checked(key: str, value: Any) -> str:
    """Return the text ``value``.

    Raises:
        TypeError: It is no text.
        ValueError: It holds half a surrogate pair.
    """
    if not isinstance(value, str):
        raise TypeError(f"{key} is {type(value).__name__}; expected str")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        # No encoding of the bus can carry it. The error of Python's own shows the whole text.
        raise ValueError(f"{key}: surrogates not allowed (at {error.start}); expected valid Unicode") from None
    return value
