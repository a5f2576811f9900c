"""Shared contexts as a store keeps them: whose one is, as JSON text, and back.

Owns: the form. Leaves to others: what the values mean (`bus.contexts`), when they are written, the store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gagent_grpc.bus.context_values import Entry
from gagent_grpc.bus.ports import StoredEntry


@dataclass(frozen=True, slots=True)
class Header:
    """Whose a shared context is, as it is written."""

    conversation_id: str
    """"" for that of a tree of tasks."""
    root: int
    """Number of the first task of the tree; 0 for that of a conversation."""
    members: tuple[str, ...]
    """Who has a part in the conversation; empty for a tree, whose tasks say it."""
    owner: str
    """Who put the first entry; "" once that name was freed."""
    at: float
    """When something was said or changed in the conversation, in Unix seconds, to within a part of the retention."""
    forgotten: int
    """Removals up to this revision may be forgotten."""
    joined: tuple[float, ...] = ()
    """When each of the members came, in Unix seconds; empty in what older versions wrote."""


def header_text(header: Header) -> str:
    """Return a header as it is written."""
    return json.dumps(asdict(header), separators=(",", ":"))


def header_of(text: str) -> Header:
    """Return the header in a text.

    Raises:
        ValueError: It is not what this version writes.
    """
    try:
        found = json.loads(text)
        header = Header(**{**found, "members": tuple(found["members"]), "joined": tuple(found.get("joined", ()))})
        if bool(header.conversation_id) == bool(header.root):
            raise ValueError("neither of a conversation nor of a task, or of both")
        if header.joined and len(header.joined) != len(header.members):
            raise ValueError(f"{len(header.members)} members, and {len(header.joined)} times when they came")
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not what this version writes: {error!r}") from error
    return header


def stored_entry(entry: Entry) -> StoredEntry:
    """Return an entry as a store keeps it."""
    return StoredEntry(entry.key, entry.revision, entry.author, entry.at, entry.value, entry.removed)


def entry_of(stored: StoredEntry) -> Entry:
    """Return the entry that a store held."""
    return Entry(stored.key, stored.value, stored.revision, stored.author, stored.at, stored.removed)
