"""Values of shared contexts: which one is meant, its entries, and what is told to those who watch.

Owns: their form, and what a key, a prefix and a value may be. Leaves to others: one space of entries (`bus.context_space`), all
of them and who may touch which (`bus.contexts`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gagent_grpc.acp.free_json import json_value
from gagent_grpc.errors import InvalidArgument, MissingParameter, ResourceExhausted

MAX_KEY_BYTES = 256
"""Longest key, in bytes of UTF-8."""
ENTRY_COST = 400
"""What an entry, or the memory of one that was removed, takes beside its key and value, in bytes."""


@dataclass(frozen=True, slots=True)
class ContextAddress:
    """Which shared context is meant: that of a conversation, or that of the tree of a task."""

    conversation_id: str = ""
    """Conversation; "" for a tree of tasks."""
    delegator: str = ""
    """Who delegated the task, as the caller wrote it; "" for the caller itself."""
    task_id: str = ""
    """Any task of the tree; "" for a conversation."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, or what is remembered of one that was removed."""

    key: str
    value: str
    """JSON text; "" when it was removed."""
    revision: int
    """Of its space, at this change."""
    author: str
    """Who put or removed it, `name@platform`."""
    at: float
    """When, in Unix seconds."""
    removed: bool = False

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return size_of(self.key) + size_of(self.value)


@dataclass(frozen=True, slots=True)
class Synced:
    """What was there at the beginning of a watch has been told, or what was passed over since."""

    revision: int
    """Up to which everything is told that concerns the watch."""


Told = Entry | Synced
"""What a stream that watches is told."""


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def check_key(key: str) -> None:
    """Make sure that a key can be one.

    Raises:
        MissingParameter: It is empty.
        InvalidArgument: It is too long.
    """
    if not key:
        raise MissingParameter("context-entry", "key")
    if size_of(key) > MAX_KEY_BYTES:
        raise InvalidArgument(f"key has {size_of(key):,} bytes; expected 1 to {MAX_KEY_BYTES}", field="key")


def check_prefix(prefix: str) -> None:
    """Make sure that keys can begin with a prefix.

    Raises:
        InvalidArgument: It is longer than any key.
    """
    if size_of(prefix) > MAX_KEY_BYTES:
        raise InvalidArgument(f"prefix has {size_of(prefix):,} bytes; expected at most {MAX_KEY_BYTES}", field="prefix")


def check_value(text: str, most: int) -> None:
    """Make sure that a text is a JSON value of at most ``most`` bytes.

    Raises:
        ResourceExhausted: It is larger.
        InvalidArgument: It is no JSON, or has a number that nothing here can hold.
    """
    size = size_of(text)
    if size > most:
        raise ResourceExhausted(f"the value has {size:,} bytes, the limit is {most:,} (context_value_bytes)")
    json_value(text, "value_json")
