"""What the field cases share: programs in processes of their own, and buses with small bounds in theirs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from raw import RawSession
from script_agents import LIBRARY
from waiting import WAIT

from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc as services
from tests.chaos.bus_process import ROOT, BusProcess, clean_environment
from tests.chaos.limited_bus import program as limited


class Program:
    """A Python program in a process of its own; its stdout is read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """Return the next line that it writes."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT):
            data = await self.process.stdout.readline()
        assert data, f"the program ended: {await self.process.wait()}"
        return data.decode().rstrip("\n")

    async def wait(self) -> int:
        """Wait for its end; return its exit code."""
        async with asyncio.timeout(WAIT):
            return await self.process.wait()

    async def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.wait()


Programs = Callable[..., contextlib.AbstractAsyncContextManager[Program]]
RawSessions = Callable[..., contextlib.AbstractAsyncContextManager[RawSession]]
BusProcesses = Callable[..., BusProcess]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """Return a factory: `async with programs(source, *arguments, NAME=value) as one` runs a program, with variables.

    What is left of it at the end is killed.
    """
    usual = clean_environment(tmp_path)
    usual["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(LIBRARY)])

    @contextlib.asynccontextmanager
    async def start(source: str, *arguments: str, **env: str) -> AsyncIterator[Program]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(source),
            *arguments,
            cwd=tmp_path,
            env=usual | env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        made = Program(process)
        try:
            yield made
        finally:
            await made.kill()
            # The transport of its stdout closes with the end of the file, in a later turn of the loop.
            assert process.stdout is not None
            async with asyncio.timeout(WAIT):
                await process.stdout.read()

    return start


@pytest.fixture
def raw() -> RawSessions:
    """Return a factory: `async with raw(bus.address, "bob", window=...) as bob` is a session with its own connection.

    At the end of the block the call is cancelled and the connection closed, unless the test has ended both.
    """

    @contextlib.asynccontextmanager
    async def start(address: str, agent: str, *, answers: bool = True, **hello: Any) -> AsyncIterator[RawSession]:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            call = services.BusServiceStub(channel).OpenSession()
            session = RawSession(call, answers=answers)
            try:
                await session.say(hello=pb.Hello(protocol_version=1, agent=agent, **hello))
                await session.until(lambda: bool(session.welcome.agent))
                yield session
            finally:
                await session.vanish()
                # A call keeps its connection, also when its channel is closed.
                session.call = call = None

    return start


@pytest.fixture
def bus_processes(tmp_path: Path) -> BusProcesses:
    """Return a factory of buses in processes of their own: `async with bus_processes(mailbox_messages=100) as bus`."""

    def make(*, store: str | None = None, **limits: float) -> BusProcess:
        return BusProcess(tmp_path / "bus", store=store, program=limited(limits))

    return make
