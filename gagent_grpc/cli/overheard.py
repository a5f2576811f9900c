"""A store that tells of what it keeps: the demo prints the conversation of the bus with it.

Owns: how a message reads on one line. Leaves to others: keeping it (`storage.sqlite`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from gagent_grpc.bus.ports import StoredMessage
from gagent_grpc.cli.output import printable
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.storage.sqlite import SqliteStore

LONGEST = 300
"""Characters of a content that are told."""


class OverheardStore(SqliteStore):
    """An SQLite store by which every accepted message can be heard: each one passes it once before its receipt."""

    def __init__(self, path: str | os.PathLike[str], tell: Callable[[str, str, str, str], None]) -> None:
        """Make a store that is not open yet.

        Args:
            path: The database file.
            tell: Called for each message with sender and receiver (local names), act and content.
        """
        super().__init__(path)
        self._tell = tell
        self._codec = EnvelopeCodec(max_id_bytes=BusLimits().max_id_bytes)
        self.heard = 0
        """Messages so far."""

    def accept(self, message: StoredMessage) -> int:
        """Store a message and tell of it."""
        position = super().accept(message)
        acl = self._codec.decode_acl(message.payload)
        if acl is not None:
            self.heard += 1
            sender = message.sender.partition("@")[0]
            self._tell(sender, message.receiver, str(acl.performative), _words(sender, acl.content))
        return position


def _words(sender: str, content: str | bytes | None) -> str:
    """Return a content as a person reads it."""
    if isinstance(content, bytes):
        return f"({len(content)} bytes)"
    text = content or ""
    if sender == "df":
        text = _found(text) or text
    text = "\n".join(printable(line) for line in text.splitlines())
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def _found(text: str) -> str | None:
    """Return whom the DF found; None when that is not what it says."""
    try:
        return "found: " + ", ".join(entry["name"].partition("@")[0] for entry in json.loads(text)["result"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
