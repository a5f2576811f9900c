"""The ACL message of FIPA SC00061 as a value: its 13 parameters, and how an answer is made from it.

Owns: the parameters and the reply rule. Leaves to others: encodings (`codec`), delivery (`client`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.performative import Performative

_NO_PARAMETERS: Mapping[str, str] = {}

AUTOMATIC = "X-automatic"
"""User parameter, "true" in what a program and no agent answered: a failure or not-understood that nobody composed."""

PARAMETERS = (
    "performative",
    "sender",
    "receivers",
    "reply_to",
    "content",
    "language",
    "encoding",
    "ontology",
    "protocol",
    "conversation_id",
    "reply_with",
    "in_reply_to",
    "reply_by",
    "user_parameters",
)
"""The parameters of SC00061 in the specification's order, and the user-defined ones."""


class ACLMessage:
    """One ACL message. Absent parameters are None, absent sets are empty; absent is different from empty.

    A value: a change is a new message, as in ``message.replace(content="...")`` or ``message.create_reply(...)``.
    It is a slotted class without a freeze, since building a frozen one costs four times as much and one is built for
    every message; nothing in the SDK changes a message, and what was sent no longer depends on it.
    """

    __slots__ = PARAMETERS

    performative: Performative
    """The communicative act, the only mandatory parameter."""
    sender: AgentIdentifier | None
    """Who sent it; the bus vouches for it on delivery. None when sending: the agent of the session."""
    receivers: tuple[AgentIdentifier, ...]
    reply_to: tuple[AgentIdentifier, ...]
    """Where answers go; empty: to the sender."""
    content: str | bytes | None
    language: str | None
    encoding: str | None
    ontology: str | None
    protocol: str | None
    conversation_id: str | None
    reply_with: str | None
    in_reply_to: str | None
    reply_by: datetime | None
    """Latest time for the next message of the flow; always aware."""
    user_parameters: Mapping[str, str]
    """Parameters whose names begin with `X-`."""

    def __init__(
        self,
        performative: Performative,
        *,
        receivers: tuple[AgentIdentifier, ...] = (),
        content: str | bytes | None = None,
        sender: AgentIdentifier | None = None,
        reply_to: tuple[AgentIdentifier, ...] = (),
        language: str | None = None,
        encoding: str | None = None,
        ontology: str | None = None,
        protocol: str | None = None,
        conversation_id: str | None = None,
        reply_with: str | None = None,
        in_reply_to: str | None = None,
        reply_by: datetime | None = None,
        user_parameters: Mapping[str, str] = _NO_PARAMETERS,
    ) -> None:
        self.performative = performative
        self.receivers = receivers
        self.content = content
        self.sender = sender
        self.reply_to = reply_to
        self.language = language
        self.encoding = encoding
        self.ontology = ontology
        self.protocol = protocol
        self.conversation_id = conversation_id
        self.reply_with = reply_with
        self.in_reply_to = in_reply_to
        self.reply_by = reply_by
        self.user_parameters = user_parameters

    def parameters(self) -> dict[str, Any]:
        """Return every parameter by name, absent ones too."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def replace(self, **changes: Any) -> ACLMessage:
        """Return a message with the parameters in ``changes`` and the rest of this one.

        Raises:
            TypeError: A name is none of the 13 parameters.
        """
        return ACLMessage(**{**self.parameters(), **changes})

    def create_reply(
        self, performative: Performative, content: str | bytes | None = None, **changes: Any
    ) -> ACLMessage:
        """Return an answer to this message.

        It goes to `reply_to`, else to the sender; language, encoding, ontology, protocol and conversation_id are copied,
        `in_reply_to` is this message's `reply_with`, and it carries a fresh `reply_with` when the conversation names a
        protocol. ``changes`` override any of that.

        Spec: FIPA SC00061 §2.3 and §2.5; the reply rule that platforms share.
        """
        receivers = self.reply_to or ((self.sender,) if self.sender is not None else ())
        parameters: dict[str, Any] = {
            "receivers": receivers,
            "content": content,
            "language": self.language,
            "encoding": self.encoding,
            "ontology": self.ontology,
            "protocol": self.protocol,
            "conversation_id": self.conversation_id,
            "in_reply_to": self.reply_with,
            "reply_with": str(uuid.uuid4()) if self.protocol is not None else None,
        }
        parameters.update(changes)
        return ACLMessage(performative, **parameters)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ACLMessage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in PARAMETERS)

    __hash__ = None  # type: ignore[assignment]  # [assignment]: a value with a mapping in it has no hash.

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r}"
            for name, value in self.parameters().items()
            if value not in (None, (), {}) and name != "performative"
        )
        return f"{type(self).__name__}({self.performative.text}{', ' + shown if shown else ''})"


def identifiers(who: str | AgentIdentifier | Iterable[str | AgentIdentifier]) -> tuple[AgentIdentifier, ...]:
    """Return agent identifiers for one name, one identifier, or several of either."""
    if isinstance(who, (str, AgentIdentifier)):
        return (AgentIdentifier.of(who),)
    return tuple(AgentIdentifier.of(one) for one in who)
