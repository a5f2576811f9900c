"""The ACL message as a script sees it. Owns: reading the `msg` of an event. Leaves building one to `_actions`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

TEXT_PARAMETERS = (
    "language",
    "encoding",
    "ontology",
    "protocol",
    "conversation_id",
    "reply_with",
    "in_reply_to",
    "reply_by",
)
"""Parameters that are plain texts, beside performative, sender and content."""
LIST_PARAMETERS = ("receivers", "reply_to")
"""Parameters that are lists of agent names."""


@dataclass(repr=False)
class ACLMessage:
    """One FIPA ACL message. A parameter that is absent is an empty text, list or mapping."""

    performative: str = ""
    """The act, such as `request`."""
    sender: str = ""
    """Name of the sending agent, as the bus vouches for it: `alice` or `alice@platform`."""
    content: str | bytes = ""
    """Bytes when the sender sent bytes."""
    receivers: list[str] = field(default_factory=list)
    reply_to: list[str] = field(default_factory=list)
    """Agents that answers go to in the place of the sender."""
    language: str = ""
    encoding: str = ""
    ontology: str = ""
    protocol: str = ""
    conversation_id: str = ""
    reply_with: str = ""
    in_reply_to: str = ""
    reply_by: str = ""
    """Latest time for an answer, in ISO 8601."""
    user_parameters: dict[str, str] = field(default_factory=dict)
    """Parameters whose names begin with `X-`."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What else the `msg` object held."""

    @classmethod
    def from_msg(cls, msg: Mapping[str, Any]) -> ACLMessage:
        """Return the message that the `msg` object of a message event describes."""
        message = cls()
        for key, value in msg.items():
            if value is None:
                continue
            if key == "content_base64":
                message.content = base64.b64decode(value)
            elif key in LIST_PARAMETERS:
                setattr(message, key, [value] if isinstance(value, str) else list(value))
            elif key in TEXT_PARAMETERS or key in ("performative", "sender", "content"):
                setattr(message, key, value)
            elif key[:2] in ("X-", "x-"):
                message.user_parameters[key] = value
            else:
                message.extra[key] = value
        return message

    def __repr__(self) -> str:
        """Show the parameters that are present, in the order of the fields."""
        present = ((item.name, getattr(self, item.name)) for item in fields(self))
        return f"ACLMessage({', '.join(f'{name}={value!r}' for name, value in present if value)})"
