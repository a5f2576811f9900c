"""`gagent ps`, `suspend`, `resume` and `kill`: the AMS from the command line."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.output import note, print_json, print_table, printable

if TYPE_CHECKING:
    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.client.ams import AgentEntry

UNKNOWN = "unknown: no session; its mail waits"
"""What FIPA's word for an agent that is away says of it."""
Act = Literal["suspend", "resume", "kill"]


def ps(
    show_all: Annotated[
        bool,
        typer.Option("--all", "-a", help=f"Show those that are away, too. {UNKNOWN[0].upper()}{UNKNOWN[1:]}."),
    ] = False,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """List the agents that are connected."""
    import asyncio

    from gagent_grpc.cli.settings import resolve

    entries = asyncio.run(_search(resolve(config, bus=bus, timeout=timeout)))
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
