"""`gagent run`: a script becomes an agent for as long as this command lasts; with `--all`, a fleet of them."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import contextlib
import math
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
    inherit_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Give the script only this variable of the environment, beside PATH and the like; may be repeated,"
            " * stands for anything. [default: all of them]",
        ),
    ] = None,
    answer_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long it may take for one event. [default: 120]")
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(metavar="N", help="How often it may be started anew in a period after it died. [default: 1]"),
    ] = None,
    restart_period: Annotated[float | None, typer.Option(metavar="SECONDS", help="That period. [default: 5]")] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="MB", help="Most memory of each of its processes.")] = None,
    cpu_seconds: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Most CPU time of each of its processes.")
    ] = None,
    open_files: Annotated[
        int | None, typer.Option(metavar="N", help="Most open files of each of its processes.")
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="Start it anew when its file changes, or a Python module beside it that it imports."
        ),
    ] = False,
    run_all: Annotated[
        bool, typer.Option("--all", help="Run the agents of all [[agents]] tables in gagent.toml instead.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --all: a JSON object for each change of an agent, one a line.")
    ] = False,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Run a script as an agent until it ends, SIGTERM or Ctrl-C. Its name and mail stay.

    Usage: gagent run SCRIPT, gagent run --name NAME -- CMD ARGS, or gagent run --all
    """
    import asyncio

    if run_all:
        _refuse_beside_all(ctx)
    elif as_json:
        raise typer.BadParameter("only with --all", param_hint="--json")
    else:
        command = _command(script, ctx.obj)
        name = _name(script, name)
        variables = _variables(env or [])
        more = _more(answer_timeout, restarts, restart_period, memory_mb, cpu_seconds, open_files)
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
    if run_all:
        from gagent_grpc.cli.fleet import run_fleet
        from gagent_grpc.cli.fleet_config import fleet_agents

        run_fleet(fleet_agents(config, settings, reload=reload), settings, as_json=as_json)
        return
    set_up_logs(settings.log_format, settings.log_level)
    from gagent_grpc.bridge.supervisor import ScriptAgent

    agent = ScriptAgent(
        script,
        name=name,
        command=None if script is not None else command,
        services=service or (),
        bus=settings.bus,
        system_prompt=settings.system_prompt,
        model=settings.model,
        max_tokens=settings.max_tokens,
        max_history=settings.max_history,
        tick_ms=settings.tick_ms,
        env=variables,
        inherit=inherit_env,
        reload=reload,
        **more,
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


_FOR_ALL = (
    "run_all",
    "as_json",
    "reload",
    "bus",
    "config",
    "system_prompt",
    "model",
    "max_tokens",
    "max_history",
    "tick_ms",
)
"""What may be said beside `--all`."""


def _refuse_beside_all(ctx: typer.Context) -> None:
    """Refuse what belongs to one script where all are to be run.

    Raises:
        typer.BadParameter: There is something.
    """
    if ctx.obj is not None:
        raise typer.BadParameter("a command and --all are both given; expected one of them", param_hint="CMD")
    for name, value in ctx.params.items():
        if value and name not in _FOR_ALL:
            flag = "SCRIPT" if name == "script" else "--" + name.replace("_", "-")
            raise typer.BadParameter("with --all it belongs into the [[agents]] tables of gagent.toml", param_hint=flag)


def _more(
    answer_timeout: float | None,
    restarts: int | None,
    restart_period: float | None,
    memory_mb: int | None,
    cpu_seconds: int | None,
    open_files: int | None,
) -> dict[str, Any]:
    """Return what `ScriptAgent` takes of these, with its own defaults where nothing was said.

    Raises:
        typer.BadParameter: A number makes no sense.
        ConfigurationError: So does a limit.
    """
    from gagent_grpc.bridge.behaviour import RestartPolicy
    from gagent_grpc.bridge.limits import ScriptLimits
    from gagent_grpc.bridge.process import ANSWER_TIMEOUT_S

    usual = RestartPolicy()
    policy = RestartPolicy(
        usual.restarts if restarts is None else restarts, usual.period if restart_period is None else restart_period
    )
    seconds = ANSWER_TIMEOUT_S if answer_timeout is None else answer_timeout
    for flag, value, makes_sense in (
        ("--answer-timeout", seconds, 0 < seconds < math.inf),
        ("--restarts", policy.restarts, policy.restarts >= 0),
        ("--restart-period", policy.period, 0 < policy.period < math.inf),
    ):
        if not makes_sense:
            least = "0 or more" if flag == "--restarts" else "more than 0"
            raise typer.BadParameter(f"{value}: expected {least}", param_hint=flag)
    return {
        "answer_timeout": seconds,
        "restart": policy,
        "limits": ScriptLimits(memory_mb, cpu_seconds, open_files),
    }


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
            "expected a script, a command behind -- (gagent run --name NAME -- CMD ARGS), or --all for those of gagent.toml",
            param_hint="SCRIPT",
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
        InvalidName: The one given is not valid.
        typer.BadParameter: That of the file is not, or there is neither.
    """
    from gagent_grpc.acl.aid import split_aid
    from gagent_grpc.errors import InvalidName

    if name is None:
        if script is None:
            raise typer.BadParameter("expected a name for the agent of a command", param_hint="--name")
        try:
            split_aid(script.stem)
        except InvalidName as error:
            raise typer.BadParameter(
                f"{error}. Give the agent another one: --name NAME", param_hint="SCRIPT"
            ) from error
        return script.stem
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
