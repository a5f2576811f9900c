"""Script agents that run one way or the other, and somebody to talk to them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from waiting import WAIT, until  # noqa: F401  # `until` for those who import it from here.

from gagent_grpc import Agent
from gagent_grpc.acl.descriptions import AMSAgentDescription
from gagent_grpc.bridge.events import Ending
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.client.ams import AgentEntry
from gagent_grpc.client.message import Received

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "agent_scripts" / "python"

BY_HAND = """
import json, os, signal, sys, threading, time

def events():
    for line in sys.stdin.buffer:
        event = json.loads(line)
        if event["event"] == "stop":
            return
        yield event

def say(**action):
    sys.stdout.write(json.dumps(action) + "\\n")
    sys.stdout.flush()

def send(to, content, performative="inform", **more):
    say(action="send", to=to, msg={"performative": performative, "content": content}, **more)
"""
"""What a script by hand has: it knows events and actions and nothing else, not even ids."""


class Person:
    """An agent that keeps what it gets."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.inbox: asyncio.Queue[Received] = asyncio.Queue()
        agent.on()(self._keep)

    async def _keep(self, message: Received) -> None:
        self.inbox.put_nowait(message)

    async def next(self) -> Received:
        async with asyncio.timeout(WAIT):
            return await self.inbox.get()

    async def send(self, to: str, content: str = "hi", performative: str = "request", **parameters: Any) -> None:
        await self.agent.send(to, performative, content, **parameters)

    async def ask(self, to: str, content: str = "hi", performative: str = "request", **parameters: Any) -> str | bytes:
        """Send a message and return the content of the next one that comes, which has to be an inform."""
        await self.send(to, content, performative, **parameters)
        answer = await self.next()
        assert answer.performative.text == "inform", answer
        assert answer.content is not None
        return answer.content

    async def entry(self, name: str) -> AgentEntry | None:
        found = await self.agent.ams.search(AMSAgentDescription(name=name))
        return found[0] if found else None

    async def state(self, name: str) -> str:
        found = await self.entry(name)
        return str(found.description.state) if found is not None else "gone"


class Running:
    """A script agent that runs, one way or the other."""

    name: str

    async def wait(self) -> int:
        """Wait for its own end; return its exit code, 0 for a good end."""
        raise NotImplementedError

    async def stop(self) -> int:
        """Ask it politely to end, and return its exit code."""
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


class Bridged(Running):
    def __init__(self, agent: ScriptAgent) -> None:
        self.agent = agent
        self.name = agent.name
        self.task = asyncio.create_task(agent.run())

    async def ready(self) -> None:
        """Wait until it is active.

        Raises:
            BusError: It could not start.
        """
        ready = asyncio.create_task(self.agent.ready.wait())
        try:
            async with asyncio.timeout(WAIT):
                await asyncio.wait({ready, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self.task.done():
            self.task.result()

    async def ending(self) -> Ending:
        async with asyncio.timeout(WAIT):
            return await self.task

    async def wait(self) -> int:
        await self.ending()
        return 0

    async def stop(self) -> int:
        self.task.cancel()
        async with asyncio.timeout(WAIT):
            await asyncio.wait({self.task})
        return 0 if self.task.cancelled() else 1

    async def aclose(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Direct(Running):
    """A script that connects by itself; what it writes goes to two files."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, out: Path, err: Path) -> None:
        self.name = name
        self.process = process
        self._out, self._err = out, err

    async def wait(self) -> int:
        async with asyncio.timeout(WAIT):
            return await self.process.wait()

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return await self.wait()

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8")

    async def aclose(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()


PersonFactory = Callable[[str], Awaitable[Person]]
Bridge = Callable[..., Awaitable[Bridged]]
DirectFactory = Callable[..., Awaitable[Direct]]
Launch = Callable[..., Awaitable[Running]]


def script_file(folder: Path, source: str | Path, name: str, suffix: str) -> Path:
    if isinstance(source, Path):
        return source
    path = folder / f"{name}{suffix}"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path
