"""How results are printed: tables for people, JSON for programs, and notes on stderr."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gagent_grpc.acl.message import ACLMessage

_TEXT_PARAMETERS = (
    "language",
    "encoding",
    "ontology",
    "protocol",
    "conversation_id",
    "reply_with",
    "in_reply_to",
)


def print_json(value: object) -> None:
    """Print ``value`` as JSON with two spaces of indent."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their headings, plain enough to be piped: no frame, and no cell is cut."""
    from rich.console import Console  # noqa: PLC0415  # Only tables need it.
    from rich.table import Table  # noqa: PLC0415  # As above.
    from rich.text import Text  # noqa: PLC0415  # As above.

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Text, so that brackets in what others wrote are no markup; control characters could move the cursor.
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    # A pipe has no width: a line per row, whatever its length.
    console.width = 10_000
    with console.capture() as capture:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_content(content: str | bytes | None) -> None:
    """Print the content of a message: text with a line end, bytes as they are."""
    if isinstance(content, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        typer.echo(content or "")


def message_to_json(message: ACLMessage) -> dict[str, Any]:
    """Return the JSON object of a message; keys as in the events of script agents, absent parameters absent."""
    made: dict[str, Any] = {
        "performative": message.performative.text,
        "sender": message.sender.name if message.sender is not None else None,
    }
    if isinstance(message.content, bytes):
        made["content_base64"] = b64encode(message.content).decode("ascii")
    elif message.content is not None:
        made["content"] = message.content
    made.update((name, getattr(message, name)) for name in _TEXT_PARAMETERS)
    return {name: value for name, value in made.items() if value is not None}


def note(text: str) -> None:
    """Say something to the person at the terminal, beside the result."""
    typer.echo(text, err=True)


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that it stays in its place."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
