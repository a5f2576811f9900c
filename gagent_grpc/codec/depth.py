"""How deeply a message is nested: what the bus can read, its receiver has to be able to read, too.

Owns: that bound. A parser of protobuf gives up a hundred levels down, and a delivery stands deeper in its frame than the bus
found the message: one in between would end each session of its receiver. Leaves to others: everything else that a message
has to be (`codec.envelope`).
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from gagent_grpc.codec.varint import varint
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

_LENGTH_DELIMITED, _START_GROUP = 2, 3
"""Wire types: how a field in a message within another one begins, and how a group does, which no type here knows."""
_RESOLVERS = bytes((3 << 3 | _LENGTH_DELIMITED,))
"""How `AgentIdentifier.resolvers` begins, the only field here through which a message holds another one of its kind."""
_NO_GROUP = bytes(byte for byte in range(256) if byte & 7 != _START_GROUP)
_SAFE_LEVELS = 80
"""Levels that fit every parser, with those of the types and frames around them."""
_TOO_MANY_LEVELS = 92
"""Fewer, and every parser reads the message and the frame around it; so what is short need not be looked at."""
_LEVEL_BYTES = 2
"""What a level takes at least: its beginning, and its length or its end."""
# The frame that delivers it, from the inside: each of these messages is the only field of the next one.
_AROUND = tuple(
    bytes((kind.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH_DELIMITED,))
    for kind, field in (
        (bus_service_pb2.Delivery, "message"),
        (bus_service_pb2.DeliverBatch, "deliveries"),
        (bus_service_pb2.OpenSessionResponse, "deliver"),
    )
)


def check_depth(payload: bytes) -> None:
    """Refuse an encoded `BusMessage`, which can be parsed, that could not be parsed within a frame that delivers it.

    Raises:
        InvalidArgument: It is nested too deeply.
    """
    if len(payload) < _TOO_MANY_LEVELS * _LEVEL_BYTES:
        return
    # Nearly every message ends here: it has fewer bytes that could begin a level than it takes.
    if payload.count(_RESOLVERS) + len(payload.translate(None, _NO_GROUP)) < _SAFE_LEVELS:
        return
    frame = payload
    for tag in _AROUND:
        frame = tag + varint(len(frame)) + frame
    try:
        bus_service_pb2.OpenSessionResponse.FromString(frame)
    except DecodeError as error:
        raise InvalidArgument(
            f"nested too deeply for a receiver to read; expected at most {_SAFE_LEVELS} levels of resolvers",
            field="acl",
        ) from error
