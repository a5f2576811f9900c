"""What `gagent demo` shows: a bus, a few agents, and their conversation as the bus hears it.

Owns: who takes part, and that nothing is left of it. Leaves to others: the agents' own words (the scripts).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import typer

from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.cli.overheard import OverheardStore
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.message import Received
from gagent_grpc.errors import AnswerTimeout, ConfigurationError, ScriptError
from gagent_grpc.server.app import open_bus

TIMEOUT_S = 60.0
"""Seconds that the whole conversation may take."""
KILL_AFTER_S = 5.0
"""Seconds that the agent which connects by itself gets to end."""
QUESTIONS = ("What is an agent?", "What is a service?", "Who is on this bus?")
WORDS = {
    "agent": "An agent is a program with a name, a mailbox and a life of its own on the bus.",
    "message": "A message is a communicative act, such as request or inform, with a content.",
    "service": "A service is what an agent offers in the directory, so that others find it by type.",
}
"""What the guide knows by heart."""


async def show() -> None:
    """Run the demo; SIGTERM and Ctrl-C end it, with every agent."""
    running = asyncio.ensure_future(_within_time())
    stopped_by = 0

    def on_signal(number: int) -> None:
        nonlocal stopped_by
        # Once only: a second cancel would interrupt the ending of the agents, which takes a few seconds at most.
        if not stopped_by:
            stopped_by = number
            running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, int(number))
    try:
        await running
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        raise typer.Exit(128 + stopped_by) from None


async def _within_time() -> None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await _demo(_scripts())
    except TimeoutError:
        raise AnswerTimeout("the demo", TIMEOUT_S) from None


async def _demo(scripts: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="gagent-demo-") as folder:
        store = OverheardStore(Path(folder) / "bus.db", _tell)
        async with open_bus(store) as bus:
            typer.echo(f"A bus listens at {bus.address}; what it accepts is kept in {folder}/bus.db\n")
            crew = [
                ScriptAgent(scripts / "echo.py", bus=bus.address, services=["echo"]),
                ScriptAgent(
                    scripts / "llm.py", bus=bus.address, services=["answer"], system_prompt="Answer in one sentence."
                ),
                ScriptAgent(scripts / "planner.py", bus=bus.address, services=["plan"]),
            ]
            guide = _guide(bus.address)
            async with contextlib.AsyncExitStack() as stack:
                for agent in crew:
                    await stack.enter_async_context(_running(agent))
                    typer.echo(f"{agent.name:>8} is a script behind stdin and stdout")
                await stack.enter_async_context(guide)
                typer.echo(f"{guide.name:>8} is a Python agent of the SDK")
                for entry in await guide.df.search_all():
                    offered = ", ".join(service.type or "" for service in entry.services)
                    typer.echo(f"{(entry.name or '').partition('@')[0]:>8} offers: {offered}")

                typer.echo("\nA visitor, a script too, asks the echo:\n")
                visitor = [sys.executable, "-u", str(scripts / "tester.py"), "echo", "Is anybody there?"]
                await ScriptAgent(name="visitor", command=visitor, bus=bus.address).run()

                typer.echo(
                    "\nA tester, the same script without a bridge, asks the planner, which looks for who answers:\n"
                )
                await _run_directly("tester", bus.address, [str(scripts / "tester.py"), "planner", *QUESTIONS])
                typer.echo("\nThe agents stop ...")
    typer.echo(f"Done: {store.heard} messages, all of them accepted on disk before their receipts.")


def _guide(address: str) -> Agent:
    """Return an agent that answers simple questions about words and about the bus."""
    agent = Agent("guide", bus=address, services=["answer"])

    @agent.on("request")
    async def answer(message: Received) -> str:
        question = str(message.content).lower()
        if "who" in question:
            names = [entry.name.partition("@")[0] for entry in await agent.ams.search_all()]
            return f"There are {', '.join(sorted(names))}."
        return next((said for word, said in WORDS.items() if word in question), "I do not know.")

    return agent


@contextlib.asynccontextmanager
async def _running(agent: ScriptAgent) -> AsyncIterator[None]:
    """Run a script agent while the block lasts, which begins once it is active.

    Raises:
        BusError: It did not start, or ended meanwhile.
    """
    running = asyncio.create_task(agent.run())
    ready = asyncio.create_task(agent.ready.wait())
    try:
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        yield
        if running.done():
            await running
    finally:
        ready.cancel()
        running.cancel()
        await asyncio.gather(running, ready, return_exceptions=True)


async def _run_directly(name: str, address: str, arguments: list[str]) -> None:
    """Run a script that connects to the bus by itself, until it ends.

    Raises:
        ScriptError: It ended with an error.
    """
    env = {key: value for key, value in os.environ.items() if key != "GAGENT_BRIDGE"}
    env.update(GAGENT_NAME=name, GAGENT_BUS=address)
    # What it prints is heard on the bus as well; what it complains about is not.
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        code = await process.wait()
    finally:
        await _end(process)
    if code:
        raise ScriptError(f"{name}: the script ended with exit code {code}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Make sure that a child has ended."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(KILL_AFTER_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _tell(sender: str, receiver: str, act: str, text: str) -> None:
    """Print one message: who says what to whom."""
    first, *others = text.splitlines() or [""]
    head = f"{sender:>8} > {receiver:<8} {act:<8} "
    typer.echo(head + first)
    for line in others:
        typer.echo(" " * len(head) + line)


def _scripts() -> Path:
    """Return the folder of the scripts: inside the package where it is installed, else in the source folder.

    Raises:
        ConfigurationError: They are in neither.
    """
    folders = [Path(__file__).parent / "demo_scripts", Path(__file__).parents[2] / "agent_scripts" / "python"]
    for folder in folders:
        if (folder / "tester.py").is_file():
            return folder
    raise ConfigurationError(f"the scripts of the demo are missing; expected them in {folders[0]}")
