"""What the bus takes, a receiver can read, however deeply it is nested."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.codec.depth import check_depth
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.codec.varint import varint
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import agent_pb2, bus_service_pb2

RESOLVERS = agent_pb2.AgentIdentifier.DESCRIPTOR.fields_by_name["resolvers"].number
NAME = b"\x0a\x03bob"


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(levels: list[bool], *, text: str = "") -> bytes:
    """Return a message whose receiver is nested: True is a resolver within another one, False a group that nobody knows.

    Groups come last, since nothing is read within them.
    """
    groups = levels.count(False)
    inner = b"\xa3\x06" * groups + b"\xa4\x06" * groups
    for _ in range(levels.count(True)):
        inner = field(RESOLVERS, inner)
    body = b"\x08\x07" + field(3, NAME + inner) + (field(5, text.encode()) if text else b"")
    return field(1, b"m-1") + field(13, body)


def delivered(payload: bytes) -> bytes:
    frame = bus_service_pb2.OpenSessionResponse()
    frame.deliver.deliveries.add(sequence=1)
    inside = field(bus_service_pb2.Delivery.DESCRIPTOR.fields_by_name["message"].number, payload)
    batch = field(bus_service_pb2.DeliverBatch.DESCRIPTOR.fields_by_name["deliveries"].number, inside)
    return field(bus_service_pb2.OpenSessionResponse.DESCRIPTOR.fields_by_name["deliver"].number, batch)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 104), st.integers(0, 104), st.sampled_from(["", "cks" * 100, "x" * 1_000]))
def test_whatever_is_taken_can_be_read_in_a_delivery(resolvers: int, groups: int, text: str) -> None:
    payload = message([True] * resolvers + [False] * groups, text=text)
    try:
        EnvelopeCodec(max_id_bytes=128).decode(payload)
    except InvalidArgument:
        # Far from what anybody means, and never for what is merely long.
        assert resolvers + groups > 80
    else:
        bus_service_pb2.OpenSessionResponse.FromString(delivered(payload))


@pytest.mark.parametrize("levels", [[True] * 96, [False] * 97, [True] * 48 + [False] * 49])
def test_what_only_the_bus_could_read_is_refused(levels: list[bool]) -> None:
    payload = message(levels)
    bus_service_pb2.BusMessage.FromString(payload)
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        check_depth(payload)
