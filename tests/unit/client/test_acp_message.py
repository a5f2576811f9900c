"""What an ACP message looks like on its way: values that cannot travel are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from gagent_grpc import ACPMessage, ACPMetadata, InvalidArgument
from gagent_grpc.client.acp.message import encoded_acp, filled

HALF = "\ud800"
"""Half a character, which no encoding has."""


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("id", {"id": HALF}),
        ("source", {"source": HALF}),
        ("target", {"target": HALF}),
        ("in_reply_to", {"in_reply_to": HALF}),
        ("content", {"content": {"a": HALF}}),
        ("metadata.trace", {"metadata": ACPMetadata(trace=HALF)}),
        ("metadata", {"metadata": ACPMetadata(entries={"a": HALF})}),
    ],
)
def test_half_a_character_is_refused_in_every_field(field: str, change: dict[str, Any]) -> None:
    message = filled(ACPMessage(**{"type": "request", "target": "bob", **change}), "alice")
    with pytest.raises(InvalidArgument, match="surrogate") as raised:
        encoded_acp(message)
    assert raised.value.field == field


def test_half_a_character_is_refused_in_an_address() -> None:
    with pytest.raises(InvalidArgument, match="surrogate") as raised:
        encoded_acp(filled(ACPMessage(type="request"), "alice"), to=["bob", HALF])
    assert raised.value.field == "to"
