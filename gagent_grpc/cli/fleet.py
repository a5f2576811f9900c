"""How a fleet of script agents is run at a terminal: a live table for people, lines where there is none, JSON for programs.

Owns: what is shown, signals, and the exit code. Leaves to others: the agents (`bridge.fleet`), where they come from
(`cli.fleet_config`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gagent_grpc.bridge.fleet import Fleet, MemberState, MemberStatus
from gagent_grpc.cli.logs import set_up_logs
from gagent_grpc.cli.output import printable

if TYPE_CHECKING:
    from gagent_grpc.bridge.supervisor import ScriptAgent
    from gagent_grpc.cli.settings import Settings

_COLOURS = {
    MemberState.ACTIVE: "green",
    MemberState.SUSPENDED: "cyan",
    MemberState.RESTARTING: "yellow",
    MemberState.FAILED: "bold red",
}


def run_fleet(agents: Sequence[ScriptAgent], settings: Settings, *, as_json: bool = False) -> None:
    """Run agents until all of them have ended; SIGTERM and Ctrl-C stop them in order, a second one kills them.

    Raises:
        BusError: All of them failed; the error is the first one's.
    """
    fleet = Fleet(agents)
    console = Console()
    show = _print_json if as_json else _print_line
    with contextlib.ExitStack() as stack:
        if console.is_terminal and not as_json:
            # Log lines go above it: the table sees to what is written to stderr from here on.
            stack.enter_context(
                Live(console=console, get_renderable=lambda: _table(fleet.statuses), refresh_per_second=4)
            )
            show = _print_nothing
        set_up_logs(settings.log_format, settings.log_level)
        asyncio.run(_run(fleet, show))


async def _run(fleet: Fleet, show: Callable[[MemberStatus], None]) -> None:
    """Run a fleet until it has ended, or a signal has stopped it; ``show`` gets each change."""
    running = asyncio.ensure_future(fleet.run())
    with _signals(fleet, running) as asked:
        try:
            while changes := await fleet.take_changes():
                for status in changes:
                    show(status)
            with contextlib.suppress(asyncio.CancelledError):
                await running
        finally:
            # Nobody may be there to read the lines any more, and the agents still end politely.
            running.cancel()
            await asyncio.wait({running})
    if running.cancelled() and not asked:
        raise asyncio.CancelledError


@contextlib.contextmanager
def _signals(fleet: Fleet, running: asyncio.Future[None]) -> Iterator[list[int]]:
    """Have the first SIGTERM or Ctrl-C cancel ``running``, and the second one end everything; yield those that came."""
    came: list[int] = []

    def on_signal(number: int) -> None:
        if came:
            fleet.kill()
            os._exit(128 + number)
        came.append(number)
        running.cancel()

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, int(number))
    try:
        yield came
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _print_json(status: MemberStatus) -> None:
    said = {
        "agent": status.name,
        "state": status.state.value,
        "script": status.what,
        "pid": status.pid,
        "restarts": status.restarts,
        "detail": status.detail,
    }
    typer.echo(json.dumps(said, ensure_ascii=False))


def _print_line(status: MemberStatus) -> None:
    if status.state is MemberState.WAITING:
        return
    more = f", pid {status.pid}" if status.pid is not None else ""
    more += f", started anew {status.restarts} times" if status.restarts else ""
    typer.echo(f"{printable(status.name)}: {status.state.value}{more}{_why(status)}")


def _print_nothing(status: MemberStatus) -> None:
    """Leave it to the table."""


def _why(status: MemberStatus) -> str:
    # The rest of it, the last lines of the script on stderr, is in the log.
    return f": {printable(status.detail.splitlines()[0])}" if status.detail else ""


def _table(statuses: Sequence[MemberStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("AGENT", "STATE", "PID", "RESTARTS", "SCRIPT"):
        table.add_column(column, overflow="fold")
    for status in statuses:
        table.add_row(
            Text(printable(status.name)),
            Text(status.state.value + _why(status), style=_COLOURS.get(status.state, "")),
            "" if status.pid is None else str(status.pid),
            str(status.restarts or ""),
            Text(printable(status.what)),
        )
    return table
