"""`gagent ps`, `suspend`, `resume` and `kill`: the AMS from the command line."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.output import note, print_json, print_table, printable

if TYPE_CHECKING:
    from rich.console import Group

    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.client.ams import AgentEntry, AgentEvent

UNKNOWN = "unknown: no session; its mail waits"
"""What FIPA's word for an agent that is away says of it."""
Act = Literal["suspend", "resume", "kill"]


def ps(
    show_all: Annotated[
        bool,
        typer.Option("--all", "-a", help=f"Show those that are away, too. {UNKNOWN[0].upper()}{UNKNOWN[1:]}."),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Go on and show every change until Ctrl-C: a table on a terminal, else one line per change, with --json "
            "one JSON object.",
        ),
    ] = False,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """List the agents that are connected."""
    import asyncio

    from gagent_grpc.cli.settings import resolve

    settings = resolve(config, bus=bus, timeout=timeout)
    if watch:
        _watch(settings, show_all=show_all, as_json=as_json)
        return
    entries = asyncio.run(_search(settings))
    shown = [entry for entry in entries if show_all or entry.connected]
    if as_json:
        print_json([_to_json(entry) for entry in shown])
        return
    if shown:
        print_table(
            ("NAME", "STATE", "CONNECTED", "MAIL", "OWNERSHIP"),
            [
                (
                    entry.name,
                    str(entry.description.state or ""),
                    "yes" if entry.connected else "no",
                    str(entry.mailbox_messages),
                    entry.description.ownership or "",
                )
                for entry in shown
            ],
        )
    else:
        note("No agent is registered." if not entries else "No agent is connected.")
    if len(shown) < len(entries):
        note(f"{len(entries) - len(shown)} more away ({UNKNOWN}); see them: gagent ps --all")


def suspend(
    name: options.AgentName,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Suspend an agent: its mail waits and searches skip it."""
    _govern("suspend", name, as_json, timeout, bus, config)


def resume(
    name: options.AgentName,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Resume a suspended agent: it gets the mail that waited."""
    _govern("resume", name, as_json, timeout, bus, config)


def kill(
    name: options.AgentName,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """End an agent and free its name; mail that is left is given up."""
    _govern("kill", name, as_json, timeout, bus, config)


def _govern(act: Act, name: str, as_json: bool, timeout: float | None, bus: str | None, config: Path | None) -> None:
    import asyncio

    from gagent_grpc.acl.aid import split_aid
    from gagent_grpc.cli.settings import resolve

    settings = resolve(config, bus=bus, timeout=timeout)
    split_aid(name)
    state = asyncio.run(_carry_out(settings, act, name))
    if as_json:
        print_json({"name": name, "state": state})
    else:
        typer.echo(f"{printable(name)}: {state}")


async def _search(settings: Settings) -> list[AgentEntry]:
    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        return await operator.ams.search_all()


async def _carry_out(settings: Settings, act: Act, name: str) -> str:
    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        if act == "suspend":
            return str(await operator.ams.suspend(name))
        if act == "resume":
            return str(await operator.ams.resume(name))
        await operator.ams.terminate(name)
        return "terminated"


def _to_json(entry: AgentEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "state": str(entry.description.state) if entry.description.state is not None else None,
        "connected": entry.connected,
        "mailbox_messages": entry.mailbox_messages,
        "ownership": entry.description.ownership,
    }


# ---- watching --------------------------------------------------------------------------------------------------------


def _watch(settings: Settings, *, show_all: bool, as_json: bool) -> None:
    from gagent_grpc.cli.following import follow

    if as_json:
        follow(settings, lambda operator: operator.ams.watch(), _print_event)
    elif not sys.stdout.isatty():
        follow(settings, lambda operator: operator.ams.watch(), _print_change)
    else:
        from rich.live import Live

        agents = LiveAgents(show_all=show_all)
        with Live(agents.table(), auto_refresh=False) as live:
            follow(
                settings,
                lambda operator: operator.ams.watch(),
                lambda event: live.update(agents.table(), refresh=True) if agents.hear(event) else None,
            )


class LiveAgents:
    """The agents as the events so far have it."""

    def __init__(self, *, show_all: bool) -> None:
        self._show_all = show_all
        self._agents: dict[str, AgentEvent] = {}
        self._complete = False

    def hear(self, event: AgentEvent) -> bool:
        """Note an event; return whether there is something new to show."""
        from gagent_grpc.acl.changes import AgentEventKind

        if event.kind is AgentEventKind.PRESENT and self._complete:
            # Another snapshot: the bus was away.
            self._agents.clear()
            self._complete = False
        if event.kind is AgentEventKind.SNAPSHOT_END:
            if self._complete:
                self._agents.clear()
            self._complete = True
        elif event.agent is not None and event.kind is AgentEventKind.DEAD:
            self._agents.pop(event.agent.name, None)
        elif event.agent is not None:
            self._agents[event.agent.name] = event
        # A snapshot is shown when all of it is there.
        return self._complete

    def rows(self) -> list[tuple[str, ...]]:
        """Return the lines of the table."""
        return [
            (
                name,
                str(event.agent.description.state or ""),
                event.at.astimezone().strftime("%H:%M:%S") if event.cause else "",
                event.cause,
                event.agent.description.ownership or "",
            )
            for name, event in self._agents.items()
            if event.agent is not None and (self._show_all or event.agent.connected)
        ]

    def table(self) -> Group:
        """Return the agents as a table."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = self.rows()
        away = len(self._agents) - len(rows)
        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        for column in ("NAME", "STATE", "SINCE", "BY", "OWNERSHIP"):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        return Group(table, Text(f"{away} more away; see them: gagent ps --all --watch")) if away else Group(table)


def _print_change(event: AgentEvent) -> None:
    """Print an event as a line; the end of a snapshot is none."""
    from gagent_grpc.cli.following import print_line

    if event.agent is None:
        return
    state = str(event.agent.description.state or "")
    if event.previous_state is not None:
        state = f"{event.previous_state} -> {state}"
    cause = f"({event.cause})" if event.cause else ""
    print_line(event.at, str(event.kind), event.agent.name, state, cause)


def _print_event(event: AgentEvent) -> None:
    from gagent_grpc.cli.following import print_json_line

    made: dict[str, Any] = {"event": str(event.kind), "at": event.at.isoformat()}
    if event.agent is not None:
        # What waits in a mailbox changes with every message, which is no event.
        made |= {name: value for name, value in _to_json(event.agent).items() if name != "mailbox_messages"}
    if event.previous_state is not None:
        made["previous_state"] = str(event.previous_state)
    if event.cause:
        made["cause"] = event.cause
    print_json_line(made)
