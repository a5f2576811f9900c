"""ACL messages to the wire and back, and the lazy view through which a receiver reads them.

Owns: every parameter of SC00061 in both directions. Leaves to others: frames, and what the bus needs to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import ACTS_BY_CODE, Performative
from gagent_grpc.codec.times import datetime_of, timestamp_to_proto
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import acl_pb2, agent_pb2

_TEXT_PARAMETERS = ("language", "encoding", "ontology", "protocol", "conversation_id", "reply_with", "in_reply_to")


def aid_to_proto(aid: AgentIdentifier, into: agent_pb2.AgentIdentifier) -> None:
    """Write an agent identifier into an empty message."""
    into.name = aid.name
    if aid.addresses:
        into.addresses.extend(aid.addresses)
    for resolver in aid.resolvers:
        aid_to_proto(resolver, into.resolvers.add())
    if aid.user_slots:
        into.user_slots.update(aid.user_slots)


def aid_from_proto(aid: agent_pb2.AgentIdentifier) -> AgentIdentifier:
    """Return the agent identifier in ``aid``."""
    if not (aid.addresses or aid.resolvers or aid.user_slots):
        return AgentIdentifier(aid.name)
    return AgentIdentifier(
        aid.name, tuple(aid.addresses), tuple(aid_from_proto(one) for one in aid.resolvers), dict(aid.user_slots)
    )


def acl_to_proto(message: ACLMessage, into: acl_pb2.AclMessage) -> None:
    """Write an ACL message into an empty one.

    Raises:
        InvalidArgument: A parameter has a value that cannot travel; the error names it.
    """
    parameter = "performative"
    try:
        into.performative = int(message.performative)  # type: ignore[assignment]  # [assignment]: same numbers by test.
        parameter = "content"
        content = message.content
        if isinstance(content, str):
            into.text = content
        elif content is not None:
            into.data = content
        parameter = "sender"
        if message.sender is not None:
            aid_to_proto(message.sender, into.sender)
        parameter = "receivers"
        for receiver in message.receivers:
            aid_to_proto(receiver, into.receivers.add())
        parameter = "reply_to"
        for one in message.reply_to:
            aid_to_proto(one, into.reply_to.add())
        # In a straight line, since a loop over the names costs every message 0.3 us more.
        if (value := message.language) is not None:
            parameter = "language"
            into.language = value
        if (value := message.encoding) is not None:
            parameter = "encoding"
            into.encoding = value
        if (value := message.ontology) is not None:
            parameter = "ontology"
            into.ontology = value
        if (value := message.protocol) is not None:
            parameter = "protocol"
            into.protocol = value
        if (value := message.conversation_id) is not None:
            parameter = "conversation_id"
            into.conversation_id = value
        if (value := message.reply_with) is not None:
            parameter = "reply_with"
            into.reply_with = value
        if (value := message.in_reply_to) is not None:
            parameter = "in_reply_to"
            into.in_reply_to = value
        parameter = "reply_by"
        if message.reply_by is not None:
            into.reply_by.CopyFrom(timestamp_to_proto(message.reply_by, "reply_by"))
        parameter = "user_parameters"
        if message.user_parameters:
            into.user_parameters.update(message.user_parameters)
    except (TypeError, ValueError, AttributeError) as error:
        # protobuf says what it wanted, but not where; a lone surrogate in a text ends here too.
        kind = type(getattr(message, parameter)).__name__
        raise InvalidArgument(
            f"{parameter}: a value of type {kind} cannot be sent ({error})", field=parameter
        ) from error


def acl_from_proto(message: acl_pb2.AclMessage) -> ACLMessage:
    """Return the ACL message in ``message``, every parameter read.

    Raises:
        UnknownPerformative: The act is none of FIPA's 22.
    """
    return ACLMessage(
        Performative.from_code(message.performative), **{name: _READERS[name](message) for name in _READERS}
    )


class LazyACLMessage(ACLMessage):
    """An ACL message that reads a parameter from the wire form when it is first asked for.

    A receiver that looks at three parameters pays for three: reading all of them costs five times as much. What nearly
    every receiver looks at is read at once, which costs a tenth of asking later.
    """

    __slots__ = ("_wire",)

    _wire: acl_pb2.AclMessage

    def __init__(self, wire: acl_pb2.AclMessage) -> None:
        # Not the base's __init__, on purpose: parameters stay unset until __getattr__ fills them.
        self._read_first(wire)

    def _read_first(self, wire: acl_pb2.AclMessage) -> None:
        """Read what nearly every receiver looks at."""
        self._wire = wire
        act = ACTS_BY_CODE.get(wire.performative)
        self.performative = Performative.from_code(wire.performative) if act is None else act
        text = wire.text
        if text:
            self.content = text
        conversation_id = wire.conversation_id
        if conversation_id:
            self.conversation_id = conversation_id

    def __getattr__(self, name: str) -> Any:
        reader = _READERS.get(name)
        if reader is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = reader(self._wire)
        setattr(self, name, value)
        return value


def _aids(found: Iterable[agent_pb2.AgentIdentifier]) -> tuple[AgentIdentifier, ...]:
    return tuple([aid_from_proto(one) for one in found])


def _content(wire: acl_pb2.AclMessage) -> str | bytes | None:
    which = wire.WhichOneof("content")
    if which == "text":
        return wire.text
    return wire.data if which == "data" else None


def _reply_by(wire: acl_pb2.AclMessage) -> datetime | None:
    return datetime_of(wire.reply_by) if wire.HasField("reply_by") else None


def _text(name: str) -> Any:
    def read(wire: acl_pb2.AclMessage) -> str | None:
        value: str = getattr(wire, name)
        # Absent or empty is asked only where it makes a difference.
        return value if value or wire.HasField(name) else None  # type: ignore[arg-type]  # [arg-type]: one of _TEXT_PARAMETERS.

    return read


_READERS: dict[str, Any] = {
    "sender": lambda wire: aid_from_proto(wire.sender) if wire.HasField("sender") else None,
    "receivers": lambda wire: _aids(wire.receivers),
    "reply_to": lambda wire: _aids(wire.reply_to),
    "content": _content,
    **{name: _text(name) for name in _TEXT_PARAMETERS},
    "reply_by": _reply_by,
    "user_parameters": lambda wire: dict(wire.user_parameters),
}
