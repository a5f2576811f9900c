"""Nearly every ACL message as it travels, written by hand: the bytes that protobuf would make, at a third of its price.

Owns: messages of texts, bytes and bare names. Leaves to others: identifiers with more than a name, dates and user
parameters, and what is wrong with a message (`codec.acl`).
"""

from __future__ import annotations

from functools import lru_cache

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.codec.acl import acl_to_proto
from gagent_grpc.codec.varint import varint
from gagent_grpc.pb.gagent.v1 import acl_pb2

TRANSIENT_FIELD = b"\x38\x01"
"""`BusMessage.transient = true`, encoded."""
_ID, _ACL = b"\x0a", b"\x6a"
"""How these fields of a `BusMessage` begin."""
_ACTS = tuple(bytes((0x08, code)) for code in range(len(Performative) + 1))
"""The field `performative` by its code; there is none with the code 0."""
_SENDER, _RECEIVER, _REPLY_TO, _TEXT, _DATA = b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x32"
_LANGUAGE, _ENCODING, _ONTOLOGY, _PROTOCOL = b"\x3a", b"\x42", b"\x4a", b"\x52"
_CONVERSATION_ID, _REPLY_WITH, _IN_REPLY_TO = b"\x5a", b"\x62", b"\x6a"
"""How the fields of an `AclMessage` begin, in the order in which they are written."""
_NAME = b"\x0a"
"""The same of `AgentIdentifier.name`."""
_REMEMBERED = 1_024
"""Names of which the encoding is kept: an agent mostly talks to the same few others."""


def id_field(message_id: str) -> bytes:
    """Return the encoded field `id` of a `BusMessage`."""
    raw = message_id.encode()
    return _ID + varint(len(raw)) + raw


def acl_field(message: ACLMessage) -> bytes:
    """Return the encoded field `acl` of a `BusMessage`, which may follow its other ones.

    Raises:
        InvalidArgument: A parameter has a value that cannot travel; the error names it.
    """
    body = _plain(message)
    if body is None:
        made = acl_pb2.AclMessage()
        acl_to_proto(message, made)
        body = made.SerializeToString()
    return _ACL + varint(len(body)) + body


def _plain(message: ACLMessage) -> bytes | None:
    """Return the encoded `AclMessage`; None for one that has more in it, or something that is not right."""
    act, content = message.performative, message.content
    if message.reply_by is not None or message.user_parameters or type(act) is not Performative:
        return None
    parts = [_ACTS[act]]
    try:
        if (one := message.sender) is not None:
            parts += _SENDER, _identifier(one)
        for one in message.receivers:
            parts += _RECEIVER, _identifier(one)
        for one in message.reply_to:
            parts += _REPLY_TO, _identifier(one)
        if isinstance(content, str):
            parts += _TEXT, varint(len(raw := content.encode())), raw
        elif content is not None:
            if type(content) is not bytes:
                return None
            parts += _DATA, varint(len(content)), content
        # In a straight line, since a loop over the names costs every message more.
        if (value := message.language) is not None:
            parts += _LANGUAGE, varint(len(raw := value.encode())), raw
        if (value := message.encoding) is not None:
            parts += _ENCODING, varint(len(raw := value.encode())), raw
        if (value := message.ontology) is not None:
            parts += _ONTOLOGY, varint(len(raw := value.encode())), raw
        if (value := message.protocol) is not None:
            parts += _PROTOCOL, varint(len(raw := value.encode())), raw
        if (value := message.conversation_id) is not None:
            parts += _CONVERSATION_ID, varint(len(raw := value.encode())), raw
        if (value := message.reply_with) is not None:
            parts += _REPLY_WITH, varint(len(raw := value.encode())), raw
        if (value := message.in_reply_to) is not None:
            parts += _IN_REPLY_TO, varint(len(raw := value.encode())), raw
        return b"".join(parts)
    except (TypeError, ValueError, AttributeError):
        # A lone surrogate, or no text at all: protobuf finds it, too, and says where.
        return None


def _identifier(aid: AgentIdentifier) -> bytes:
    """Return an identifier after its length.

    Raises:
        ValueError: It is more than a name.
    """
    if aid.addresses or aid.resolvers or aid.user_slots:
        raise ValueError(aid)
    return _named(aid.name)


@lru_cache(maxsize=_REMEMBERED)
def _named(name: str) -> bytes:
    """Return an `AgentIdentifier` of a name alone, after its length."""
    raw = name.encode()
    # What is empty and need not be told from absent is not written.
    made = _NAME + varint(len(raw)) + raw if raw else b""
    return varint(len(made)) + made
