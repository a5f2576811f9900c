"""`gagent run`: a script becomes an agent for as long as this command lasts."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gagent_grpc.cli import options
from gagent_grpc.cli.exits import ended_by_ams
from gagent_grpc.cli.output import note

if TYPE_CHECKING:
    from gagent_grpc.bridge.supervisor import ScriptAgent


class RunCommand(TyperCommand):
    """`gagent run`, which has a command of its own behind `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what is behind `--` apart: the parser would drop the mark, and with it what it means."""
        if "--" in args:
            mark = args.index("--")
            ctx.obj = tuple(args[mark + 1 :])
            args = args[:mark]
        return super().parse_args(ctx, args)


def run(
    ctx: typer.Context,
    script: Annotated[
        Path | None,
        typer.Argument(metavar="SCRIPT", help="A .py, .js or .sh file; or --name NAME -- CMD ARGS for anything else."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the agent. [default: that of the file]")
    ] = None,
    service: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Service that it offers in the DF; may be repeated. [default: its name]"),
    ] = None,
    system_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instructions for its language model.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its language model. [default: gpt-4o-mini]")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Longest answer of the model, in tokens. [default: 200]")
    ] = None,
    max_history: Annotated[
        int | None, typer.Option(metavar="N", help="Turns of a conversation to keep. [default: 20]")
    ] = None,
    tick_ms: Annotated[
        int | None,
        typer.Option(
            metavar="MS", help="Tick after that many milliseconds without a message; 0 for none. [default: 200]"
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Variable for the script; may be repeated.")
    ] = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Run a script as an agent until it ends, SIGTERM or Ctrl-C. Its name and mail stay.

    Usage: gagent run SCRIPT, or gagent run --name NAME -- CMD ARGS
    """
    import asyncio

    command = _command(script, ctx.obj)
    name = _name(script, name)
    variables = _variables(env or [])
    from gagent_grpc.cli.logs import set_up_logs
    from gagent_grpc.cli.settings import resolve

    settings = resolve(
        config,
        bus=bus,
        system_prompt=system_prompt,
        model=model,
        max_tokens=max_tokens,
        max_history=max_history,
        tick_ms=tick_ms,
    )
    set_up_logs(settings.log_format, settings.log_level)
    from gagent_grpc.bridge.supervisor import ScriptAgent

    agent = ScriptAgent(
        name=name,
        command=command,
        services=service or (),
        bus=settings.bus,
        system_prompt=settings.system_prompt,
        model=settings.model,
        max_tokens=settings.max_tokens,
        max_history=settings.max_history,
        tick_ms=settings.tick_ms,
        env=variables,
    )
    asyncio.run(_run(agent, str(script or command[0])))


async def _run(agent: ScriptAgent, what: str) -> None:
    """Be the agent until it ends; SIGTERM and Ctrl-C end it politely, and a second one at once."""
    import asyncio

    from gagent_grpc.bridge.events import Ending

    running = asyncio.ensure_future(agent.run())
    asked = False

    def on_signal(number: int) -> None:
        nonlocal asked
        if asked:
            if (pid := agent.behaviour.pid) is not None:
                # Its process group is its own, so nothing else would end it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            os._exit(128 + number)
        asked = True
        running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, int(number))
    ready = asyncio.ensure_future(agent.ready.wait())
    try:
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            typer.echo(f"gagent: {agent.agent.aid} runs {what}; Ctrl-C stops it")
        if await running is Ending.TERMINATED:
            note(ended_by_ams(agent.name))
    except asyncio.CancelledError:
        if not asked:
            raise
    finally:
        # Nobody may be there to read the line above, and the agent still ends politely.
        running.cancel()
        ready.cancel()
        await asyncio.gather(running, ready, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _command(script: Path | None, given: tuple[str, ...] | None) -> list[str]:
    """Return the command of the script, or the one behind `--`.

    Raises:
        typer.BadParameter: Neither or both are given, there is no such file, or nothing is known to run it.
    """
    if script is not None and given is not None:
        raise typer.BadParameter(
            f"{script}: a script and a command are both given; expected one of them", param_hint="SCRIPT"
        )
    if given is not None:
        if not given:
            raise typer.BadParameter("nothing is given behind --; expected CMD ARGS", param_hint="CMD")
        return list(given)
    if script is None:
        raise typer.BadParameter(
            "expected a script, or a command behind --: gagent run --name NAME -- CMD ARGS", param_hint="SCRIPT"
        )
    if not script.is_file():
        raise typer.BadParameter(f"{script}: no such file; expected a .py, .js or .sh file", param_hint="SCRIPT")
    from gagent_grpc.bridge.command import script_command
    from gagent_grpc.errors import ScriptError

    try:
        return script_command(script)
    except ScriptError as error:
        raise typer.BadParameter(str(error), param_hint="SCRIPT") from error


def _name(script: Path | None, name: str | None) -> str:
    """Return the agent's name: the one given, or the file's stem.

    Raises:
        InvalidName: It is not valid.
    """
    from gagent_grpc.acl.aid import split_aid

    if name is None:
        if script is None:
            raise typer.BadParameter("expected a name for the agent of a command", param_hint="--name")
        name = script.stem
    split_aid(name)
    return name


def _variables(given: list[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for one in given:
        key, sign, value = one.partition("=")
        if not key or not sign:
            raise typer.BadParameter(f"{one!r}: expected KEY=VALUE", param_hint="--env")
        variables[key] = value
    return variables
