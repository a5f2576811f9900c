"""`gagent task`: delegated tasks from the command line, to hand out, to follow and to look after."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.exits import ExitCode, exit_code
from gagent_grpc.cli.following import print_json_line
from gagent_grpc.cli.output import note, print_json, print_table, printable

if TYPE_CHECKING:
    from gagent_grpc.acp.tasks import DelegatedTask, TaskState
    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.client.admin import TaskStats
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.operator import Operator
    from gagent_grpc.client.tasks import Task

OWN_NAME = "cli-tasks"
"""Name under which the command line delegates; the AMS keeps it, as long as nobody frees it."""
_LOOK_AGAIN_S = 0.1
"""Seconds between attempts at a name that another command has for a moment."""

app = typer.Typer(help="Delegate tasks, follow them and look after them.", no_args_is_help=True, rich_markup_mode=None)

Id = Annotated[
    str,
    typer.Argument(metavar="ID", callback=options.readable, help="Id of the task, as gagent task list shows it."),
]
Delegator = Annotated[
    str | None,
    typer.Option(
        "--delegator", metavar="NAME", help="Who delegated it. [default: cli-tasks, else whoever has a task of this id]"
    ),
]


@app.callback()
def task() -> None:
    """Delegate tasks, follow them and look after them."""


@app.command()
def delegate(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Whom: a name, NAME@PLATFORM, or role:TYPE.")],
    description: Annotated[str, typer.Argument(metavar="DESCRIPTION", help="What is to be done.")],
    parameters: Annotated[
        str | None,
        typer.Option("--parameters", metavar="JSON", help="Arguments as a JSON object; - reads it from stdin."),
    ] = None,
    task_id: Annotated[
        str | None,
        typer.Option(
            "--task-id", metavar="ID", help="Id of the task; the same one again changes nothing. [default: a new one]"
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", metavar="SECONDS", help="When the task expires, from now. [default: never]"),
    ] = None,
    redeliver: Annotated[
        bool,
        typer.Option(
            "--redeliver", help="Hand it over again when its executor is lost, 3 attempts in all; else it fails."
        ),
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--as", metavar="NAME", help="Name that delegates it, which stays: freeing it calls the task off."
        ),
    ] = OWN_NAME,
    wait_for: Annotated[
        float,
        typer.Option(
            "--wait-for",
            metavar="SECONDS",
            min=0.0,
            help="Wait until TARGET is active, at most so long; 0 does not wait.",
        ),
    ] = 0.0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end, show how it goes, and print the result.")
    ] = False,
    as_json: options.Json = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", help="How long to wait. [default: 10 for a call, no end with --wait]"
        ),
    ] = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Delegate a task and print its id, or with --wait its result.

    The bus keeps the task: it goes on whatever becomes of this command.
    """
    import asyncio

    from gagent_grpc.acl.aid import split_aid
    from gagent_grpc.cli.settings import resolve
    from gagent_grpc.errors import AgentNotRegistered

    settings = resolve(config, bus=bus, timeout=timeout)
    arguments = _object(parameters)
    if not target.startswith("role:"):
        split_aid(target)
    split_aid(name)
    more: dict[str, Any] = {"task_id": task_id, "deadline": deadline, "redeliver": redeliver, "wait_for": wait_for}
    try:
        done = asyncio.run(_delegate(settings, name, target, description, arguments, more, wait=wait, quiet=as_json))
    except AgentNotRegistered as error:
        note(f"{printable(target)}: {error}. See gagent ps --all")
        raise typer.Exit(ExitCode.NOT_DELIVERED) from None
    if wait:
        _end(done, as_json=as_json)
    elif as_json:
        from gagent_grpc.cli.task_view import task_to_json

        print_json(task_to_json(done))
    else:
        typer.echo(done.task_id)


@app.command("list")
def list_tasks(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", metavar="STATE", help="Only tasks in this state, such as running; several for any of them."
        ),
    ] = None,
    delegator: Annotated[
        str | None, typer.Option("--delegator", metavar="NAME", help="Only tasks of this agent.")
    ] = None,
    executor: Annotated[
        str | None, typer.Option("--executor", metavar="NAME", help="Only tasks that were handed to this agent.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Most tasks that are shown.")] = 100,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """List tasks, newest first; those that have ended stay for a while."""
    import asyncio

    from gagent_grpc.acl.aid import split_aid
    from gagent_grpc.cli.settings import resolve
    from gagent_grpc.cli.task_view import COLUMNS, row_of, task_to_json

    states = [_state(one) for one in state or ()]
    for one in (delegator, executor):
        if one is not None:
            split_aid(one)
    settings = resolve(config, bus=bus, timeout=timeout)
    wanted = {"delegator": delegator, "executor": executor, "states": states, "max_results": limit}
    found = asyncio.run(_list(settings, wanted))
    if as_json:
        print_json([task_to_json(one) for one in found])
    elif found:
        print_table(COLUMNS, [row_of(one) for one in found])
    else:
        note("No such task." if state or delegator or executor else "No task.")


@app.command()
def stats(
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Count the tasks of the bus: by state, and what runs and waits."""
    import asyncio

    from gagent_grpc.cli.settings import resolve
    from gagent_grpc.cli.task_view import stats_rows, stats_to_json

    found = asyncio.run(_stats(resolve(config, bus=bus, timeout=timeout)))
    if as_json:
        print_json(stats_to_json(found))
    else:
        print_table(("TASKS", "COUNT"), stats_rows(found))


@app.command()
def get(
    task_id: Id,
    delegator: Delegator = None,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Show a task with its attempts."""
    from gagent_grpc.cli.task_view import print_task, task_to_json

    async def look(task: Task) -> None:
        await task.get()

    found = _on_task(look, task_id, delegator, bus=bus, timeout=timeout, config=config)
    if as_json:
        print_json(task_to_json(found))
    else:
        print_task(found)


@app.command()
def watch(
    task_id: Id,
    delegator: Delegator = None,
    after: Annotated[
        int,
        typer.Option(
            "--after", metavar="N", min=0, help="Begin after the event of this number; 0 shows all that is kept."
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for programs.")] = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Follow a task to its end, event by event; a lost bus is found again. Ctrl-C ends the watch, not the task."""
    from gagent_grpc.acp.task_json import event_to_json
    from gagent_grpc.cli.logs import set_up_logs
    from gagent_grpc.cli.task_view import Screen

    set_up_logs()

    async def follow(task: Task) -> None:
        screen = Screen(lines=True)
        with contextlib.nullcontext() if as_json else screen.open(await task.get()):
            async with contextlib.aclosing(task.events(after=after)) as events:
                async for event in events:
                    if as_json:
                        print_json_line(event_to_json(event))
                    else:
                        screen.show(event)
        await task.get()

    found = _on_task(follow, task_id, delegator, bus=bus, timeout=timeout, config=config)
    _check_end(found)


@app.command()
def answer(
    task_id: Id,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", callback=options.readable, help="The input that is asked for; - reads it from stdin."
        ),
    ],
    delegator: Delegator = None,
    is_json: Annotated[bool, typer.Option("--as-json", help="TEXT is JSON: give the value that it says.")] = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Give the input that the executor of a task asks for."""
    given = _read(text, "TEXT")
    value = _value(given, "TEXT") if is_json else given

    async def tell(task: Task) -> None:
        await task.answer(value)

    _tell(_on_task(tell, task_id, delegator, bus=bus, timeout=timeout, config=config))


@app.command()
def signal(
    task_id: Id,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", callback=options.readable, help="Name of the signal, which the executor knows."),
    ],
    value: Annotated[str | None, typer.Argument(metavar="[JSON]", help="What is told, as a JSON value.")] = None,
    delegator: Delegator = None,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Tell the executor of a task something."""
    told = None if value is None else _value(value, "JSON")

    async def tell(task: Task) -> None:
        await task.signal(name, told)

    _tell(_on_task(tell, task_id, delegator, bus=bus, timeout=timeout, config=config))


@app.command()
def cancel(
    task_id: Id,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", callback=options.readable, help="Why, in words.")
    ] = "",
    delegator: Delegator = None,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Ask to end a task and the tasks that came of it; its executor has a while to obey."""

    async def tell(task: Task) -> None:
        await task.cancel(reason)

    found = _on_task(tell, task_id, delegator, bus=bus, timeout=timeout, config=config)
    _tell(found, "cancel requested" if not found.state.final else "")


# ---- at the bus ------------------------------------------------------------------------------------------------------


async def _delegate(
    settings: Settings,
    name: str,
    target: str,
    description: str,
    parameters: dict[str, Any],
    more: dict[str, Any],
    *,
    wait: bool,
    quiet: bool,
) -> DelegatedTask:
    import asyncio

    from gagent_grpc.acp.tasks import OnExecutorLost
    from gagent_grpc.cli.logs import set_up_logs
    from gagent_grpc.cli.messages import until_active
    from gagent_grpc.client.operator import Operator
    from gagent_grpc.errors import AnswerTimeout

    set_up_logs()
    policy = OnExecutorLost.REDELIVER if more.pop("redeliver") else OnExecutorLost.FAIL
    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        async with _delegator(operator.endpoint, name, settings.call_timeout) as agent:
            await until_active(agent, target, more.pop("wait_for"))
            delegated = await agent.delegate(
                target, description, parameters, on_executor_lost=policy, timeout=settings.call_timeout, **more
            )
        assert delegated.latest is not None
        if not wait:
            return delegated.latest
        # The name is free for another command meanwhile: following a task needs none.
        task = operator.task(delegated.task_id, delegated.delegator)
        try:
            async with asyncio.timeout(settings.timeout):
                if not quiet:
                    await _show_output(task, delegated.latest)
                return await task.wait()
        except TimeoutError:
            seconds = settings.timeout or 0.0
            hint = f"it goes on; see gagent task watch {task.task_id}"
            raise AnswerTimeout(f"the task {task.task_id}", seconds, hint) from None


async def _show_output(task: Task, latest: DelegatedTask) -> None:
    """Show what comes out of a task on the terminal until it has ended."""
    from gagent_grpc.cli.task_view import Screen

    screen = Screen(lines=False)
    with screen.open(latest):
        async with contextlib.aclosing(task.events()) as events:
            async for event in events:
                screen.show(event)


@contextlib.asynccontextmanager
async def _delegator(bus: str, name: str, patience: float) -> AsyncIterator[Agent]:
    """Be the agent ``name`` while the block lasts; wait a while for another command that has the name."""
    import asyncio

    from gagent_grpc.client.agent import Agent
    from gagent_grpc.errors import AgentAlreadyRegistered

    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + patience
    while True:
        # Not ephemeral: a task is called off when the name of its delegator is freed.
        agent = Agent(name, bus=bus)
        try:
            await agent.__aenter__()
            break
        except AgentAlreadyRegistered:
            if loop.time() >= give_up_at:
                raise
        await asyncio.sleep(_LOOK_AGAIN_S)
    try:
        yield agent
    finally:
        await agent.aclose()


async def _stats(settings: Settings) -> TaskStats:
    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        return (await operator.admin.stats()).tasks


async def _list(settings: Settings, wanted: dict[str, Any]) -> list[DelegatedTask]:
    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        return await operator.tasks(**wanted)


def _on_task(
    act: Callable[[Task], Awaitable[None]],
    task_id: str,
    delegator: str | None,
    *,
    bus: str | None,
    timeout: float | None,
    config: Any,
) -> DelegatedTask:
    """Do something with a task, and return it as it is then."""
    import asyncio

    from gagent_grpc.acl.aid import split_aid
    from gagent_grpc.cli.settings import resolve

    settings = resolve(config, bus=bus, timeout=timeout)
    if delegator is not None:
        split_aid(delegator)

    async def run() -> DelegatedTask:
        from gagent_grpc.client.operator import Operator

        async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
            task = await _find(operator, task_id, delegator)
            await act(task)
            return task.latest or await task.get()

    return asyncio.run(run())


async def _find(operator: Operator, task_id: str, delegator: str | None) -> Task:
    """Return the handle of the task of this id.

    Raises:
        TaskNotFound: There is none.
        typer.BadParameter: There are several, of several delegators.
    """
    from gagent_grpc.errors import TaskNotFound

    if delegator is not None:
        return operator.task(task_id, delegator)
    own = operator.task(task_id, OWN_NAME)
    with contextlib.suppress(TaskNotFound):
        await own.get()
        return own
    found = [one for one in await operator.tasks(max_results=-1) if one.task_id == task_id]
    if not found:
        raise TaskNotFound("nobody", task_id)
    if len(found) > 1:
        names = ", ".join(printable(one.delegator) for one in found)
        raise typer.BadParameter(f"tasks of {names} have this id; say which with --delegator NAME", param_hint="ID")
    return operator.task(task_id, found[0].delegator)


# ---- what was typed, and what is told --------------------------------------------------------------------------------


def _end(task: DelegatedTask, *, as_json: bool) -> None:
    """Print how a task ended that was waited for."""
    from gagent_grpc.acp.tasks import TaskState
    from gagent_grpc.cli.task_view import shown_value, task_to_json

    if as_json:
        print_json(task_to_json(task))
    elif task.state is TaskState.COMPLETED and task.result is not None:
        typer.echo(shown_value(task.result))
    _check_end(task)


def _check_end(task: DelegatedTask) -> None:
    """End the command as the task has ended."""
    from gagent_grpc.client.tasks import error_of

    error = error_of(task)
    if error is not None:
        note(printable(str(error)))
        raise typer.Exit(exit_code(error))


def _tell(task: DelegatedTask, more: str = "") -> None:
    told = (
        f"{task.task_id}: {task.state}" + (f" ({task.reason})" if task.reason else "") + (f", {more}" if more else "")
    )
    typer.echo(printable(told))


def _state(text: str) -> TaskState:
    from gagent_grpc.acp.tasks import TaskState

    found = {str(state): state for state in TaskState}
    state = found.get(text.lower().replace("_", "-"))
    if state is None:
        raise typer.BadParameter(f"{text!r}; expected one of: {', '.join(found)}", param_hint="--state")
    return state


def _object(text: str | None) -> dict[str, Any]:
    value = {} if text is None else _value(_read(text, "--parameters"), "--parameters")
    if not isinstance(value, dict):
        raise typer.BadParameter('not a JSON object; expected one, such as {"limit": 3}', param_hint="--parameters")
    return value


def _value(text: str, hint: str) -> Any:
    from gagent_grpc.acp.free_json import json_value
    from gagent_grpc.errors import InvalidArgument

    try:
        return json_value(text, hint)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def _read(text: str, hint: str) -> str:
    """Return what an argument stands for; `-` is stdin without its last line end, as shells do."""
    if text == "-":
        try:
            return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError:
            raise typer.BadParameter("stdin is not UTF-8 text; expected UTF-8", param_hint=hint) from None
    return text
