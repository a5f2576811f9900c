"""A conversation as a sequence diagram in the language of Mermaid (https://mermaid.js.org/syntax/sequenceDiagram.html).

Owns: the diagram, and that no name and no text can break it. Leaves to others: where the events come from (`cli.watch`).
Pure.
"""

from __future__ import annotations

from gagent_grpc.client.traffic import TrafficEvent, TrafficKind

_MAX_TEXT_CHARS = 80
"""Characters of a content in an arrow's label."""
_PLAIN = frozenset(" .,:!?'()[]/+*=_-@")
"""Beside letters and digits, what stands for itself in a label."""


def sequence_diagram(events: list[TrafficEvent]) -> str:
    """Return the diagram of ``events``, in their order, with a line feed at its end.

    An answer has a dotted arrow, a message that was refused one that ends in a cross. What else happened is a note. Contents
    are in it where the events have them.
    """
    names: dict[str, str] = {}
    lines = [line for event in events for line in _lines(event, names)]
    participants = [f"    participant {mark} as {escape(name)}" for name, mark in names.items()]
    if not lines:
        lines = ["    %% Nothing was said."]
    return "\n".join(["sequenceDiagram", *participants, *lines, ""])


def escape(text: str) -> str:
    """Return ``text`` as a label in which nothing has a meaning to Mermaid: what might have one is an entity code."""
    return "".join(char if char.isalnum() or char in _PLAIN else f"#{ord(char)};" for char in text)


def _lines(event: TrafficEvent, names: dict[str, str]) -> list[str]:
    if event.kind is TrafficKind.MISSED:
        return [f"    Note over {','.join(_ends(names)) or _mark('?', names)}: {event.missed} events missed"]
    sender, receiver = _mark(event.sender, names), _mark(event.receiver or "?", names)
    over = sender if sender == receiver else f"{sender},{receiver}"
    found = []
    if event.kind in (TrafficKind.ACCEPTED, TrafficKind.REFUSED):
        found.append(f"    {sender}{_arrow(event)}{receiver}: {_label(event)}")
    elif event.kind is TrafficKind.GIVEN_UP:
        found.append(f"    Note over {over}: given up{_because(event.detail)}")
    elif event.kind is TrafficKind.CONVERSATION_ENDED:
        found.append(f"    Note over {over}: ended by the bus{_because(event.detail)}")
    if event.flag:
        found.append(f"    Note over {over}: out of sequence{_because(event.flag)}")
    return found


def _mark(name: str, names: dict[str, str]) -> str:
    """Return by what a participant is named in the diagram: names themselves may hold anything."""
    return names.setdefault(name, f"p{len(names) + 1}")


def _ends(names: dict[str, str]) -> list[str]:
    marks = list(names.values())
    return list(dict.fromkeys([*marks[:1], *marks[-1:]]))


def _arrow(event: TrafficEvent) -> str:
    answers = event.message is not None and event.message.in_reply_to is not None
    if event.kind is TrafficKind.REFUSED:
        return "--x" if answers else "-x"
    return "-->>" if answers else "->>"


def _label(event: TrafficEvent) -> str:
    message = event.message
    text = str(message.performative) if message is not None else "message"
    if event.outcome is not None:
        text += f" refused: {event.outcome.name}"
    if message is not None and message.content is not None:
        content = message.content
        said = f"({len(content):,} bytes)" if isinstance(content, bytes) else content
        text += f": {_shortened(said)}"
    return escape(text)


def _because(text: str) -> str:
    return escape(f": {_shortened(text)}") if text else ""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT_CHARS else f"{line[:_MAX_TEXT_CHARS]}..."
