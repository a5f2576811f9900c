"""The one encoding of numbers that messages written or read by hand need: lengths, as protobuf writes them."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1_024)
def varint(number: int) -> bytes:
    """Return a number from 0 on as a varint, in as few bytes as it takes."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
