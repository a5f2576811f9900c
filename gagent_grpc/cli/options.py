"""Options that several commands share. An absent one is None, so that environment and file can speak (`cli.settings`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def readable(given: Any) -> Any:
    """Return text that a command was given, one or several; for the `callback` of a parameter that goes to the bus.

    Raises:
        typer.BadParameter: It is none in the encoding of the terminal, so that it cannot be sent.
    """
    for one in [given] if isinstance(given, str) else given or ():
        try:
            one.encode()
        except UnicodeEncodeError:
            raise typer.BadParameter("not valid text in the encoding of this terminal; expected UTF-8") from None
    return given


Bus = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="HOST:PORT[,HOST:PORT]",
        help="Where the bus is; the first one that answers. [default: 127.0.0.1:50051]",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="How long to wait. [default: 120 for an answer, 10 for a call]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file. [default: gagent.toml in this folder]")
]
AgentName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent.")]
