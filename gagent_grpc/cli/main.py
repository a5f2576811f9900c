"""The command `gagent`: the list of its commands in their order, and where errors become a line and an exit code.

Owns: the entry point. Leaves to others: the commands themselves, one module per group. Those import what they need when
they run, so that help and version answer at once.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gagent_grpc import __version__
from gagent_grpc.cli import agents, auth, config, demo, df, dlq, messages, run, serve, tasks, watch
from gagent_grpc.cli.exits import describe, exit_code
from gagent_grpc.errors import BusError

ORDER = (
    "serve",
    "run",
    "request",
    "send",
    "ps",
    "df",
    "task",
    "watch",
    "suspend",
    "resume",
    "kill",
    "dlq",
    "auth",
    "config",
    "demo",
)
"""The commands as the help lists them: what a newcomer needs comes first."""


class InOrder(TyperGroup):
    """Commands in the order of `ORDER`; by itself a group of commands comes after all single ones."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(ORDER)


app = typer.Typer(
    name="gagent",
    cls=InOrder,
    help="An agent bus: agents in any language find each other and exchange messages over gRPC.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help and errors: loading rich for them would cost more than everything else that they need.
    rich_markup_mode=None,
    # Errors of ours are told by `main`; any other traceback is for a bug report and shows no local variables.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gagent-grpc {__version__}")
        raise typer.Exit


@app.callback()
def gagent(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An agent bus: agents in any language find each other and exchange messages over gRPC."""


app.command()(serve.serve)
app.command(cls=run.RunCommand)(run.run)
app.command()(messages.request)
app.command()(messages.send)
app.command()(agents.ps)
app.add_typer(df.app, name="df")
app.add_typer(tasks.app, name="task")
app.command()(watch.watch)
app.command()(agents.suspend)
app.command()(agents.resume)
app.command()(agents.kill)
app.add_typer(dlq.app, name="dlq")
app.add_typer(auth.app, name="auth")
app.command()(config.config)
app.command()(demo.demo)


def main() -> None:
    """Run the command that the arguments name; an error of the bus is one line on stderr and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # JSON of others may say half a character, which no encoding has: it is shown as JSON says it, and so it is on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except BusError as error:
        typer.echo(describe(error), err=True)
        sys.exit(exit_code(error))
