"""A bus as it runs in real life: `gagent serve` in a process of its own, to be killed, started again and measured.

Owns: the process, its port, its log, and that nothing of it is left. Leaves to others: what is sent to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
"""Top folder of the repository."""
START_WITHIN = 30.0
"""Seconds after which a bus that does not serve yet never will."""
STOP_WITHIN = 20.0
"""Seconds that a polite stop may take: the grace of the bus is 5 s, and the machine may be busy."""
_PORTS = range(20_000, 32_000)
GAGENT = (sys.executable, "-m", "gagent_grpc")


class BusFailed(Exception):
    """The bus did not start, or did not stop; the message ends with the last lines of its log."""


def free_port() -> int:
    """Return a loopback port that was free a moment ago.

    It is below the ports that the system gives to outgoing connections: a client that calls again and again while the bus is
    down would be given the very port that it calls, talk to itself, and keep the bus from coming back.
    """
    for port in random.sample(_PORTS, 200):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise BusFailed(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")


def clean_environment(folder: Path) -> dict[str, str]:
    """Return this environment without settings of gagent; what it keeps by default goes below ``folder``."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GAGENT_")}
    env["XDG_STATE_HOME"] = str(folder / "state")
    env["PYTHONUNBUFFERED"] = "1"
    return env


class BusProcess:
    """One bus on one port and one store, through as many lives as a fault gives it.

        async with BusProcess(folder) as bus:
            ...
            bus.kill()
            seconds = await bus.start()

    Entering starts it; leaving ends it, whatever happened, and waits until it is gone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        store: str | None = None,
        port: int | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = GAGENT,
    ) -> None:
        """Make a bus; nothing is started yet.

        Args:
            folder: Where its log goes, and its store by default.
            store: Value of `--store`; `sqlite:<folder>/bus.db` by default.
            port: Loopback port; a free one by default, kept over all lives.
            arguments: Further arguments of `gagent serve`.
            env: Environment variables on top of a clean environment, such as LD_PRELOAD.
            program: What is run in the place of `python -m gagent_grpc`, where the process itself is part of the fault.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.store = store or f"sqlite:{folder / 'bus.db'}"
        self.address = f"127.0.0.1:{port or free_port()}"
        self.log = folder / "bus.log"
        """Everything that all lives wrote to stdout and stderr."""
        self.arguments = list(arguments)
        """Further arguments; a change counts from the next start."""
        self.env = dict(env or {})
        """Further environment variables; a change counts from the next start."""
        self.lives = 0
        """How often it was started."""
        self.starved = 0.0
        """Seconds of the last start during which other processes had the CPU that it could have used."""
        self._program = tuple(program)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Start the bus; see `start`."""
        try:
            await self.start()
        except BaseException:
            await self.reap()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the bus, politely when it is alive and nothing went wrong, and wait until it is gone."""
        try:
            if self.running and error is None:
                await self.stop()
        finally:
            await self.reap()

    # ---- life ------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the process is there, serving or not."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Process id of the present life."""
        assert self._process is not None, "the bus was never started"
        return self._process.pid

    async def start(self, *, within: float = START_WITHIN) -> float:
        """Start it, again or for the first time, on its port; return the seconds until it answered its first call.

        Raises:
            BusFailed: It ended instead, or does not serve in time. A process that is there is left to `reap`.
        """
        assert not self.running, "the bus runs already"
        await self.reap()
        began = time.monotonic()
        where = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._program,
                "serve",
                "--listen",
                self.address,
                "--store",
                self.store,
                *self.arguments,
                cwd=ROOT,
                env={**clean_environment(self.folder), **self.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.lives += 1
        try:
            async with asyncio.timeout(within):
                while b"gagent: bus " not in self._said_since(where):
                    if not self.running:
                        raise BusFailed(f"the bus ended with {self._process.returncode}: {self.tail()}")
                    await asyncio.sleep(0.01)
                await self._serving()
        except TimeoutError:
            raise BusFailed(f"the bus does not serve after {within:g} s: {self.tail()}") from None
        self.starved = self._waited_for_cpu()
        return time.monotonic() - began

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the process a signal, by its id: the harshest one by default. Nobody waits for its end here."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self, *, within: float = STOP_WITHIN) -> int:
        """Wait for the end of the process; return its exit code, negative for a signal.

        Raises:
            BusFailed: It is still there.
        """
        assert self._process is not None
        try:
            async with asyncio.timeout(within):
                return await self._process.wait()
        except TimeoutError:
            raise BusFailed(f"the bus is still there after {within:g} s: {self.tail()}") from None

    async def stop(self) -> int:
        """Stop it politely; return its exit code.

        Raises:
            BusFailed: It does not stop.
        """
        self.kill(signal.SIGTERM)
        return await self.wait()

    async def reap(self) -> None:
        """Have nothing of the process left; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
                # A stopped process dies of it as well.
        await process.wait()

    async def _serving(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    answer = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=5)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                if not self.running:
                    raise BusFailed(f"the bus ended with {self._process and self._process.returncode}: {self.tail()}")
                await asyncio.sleep(0.02)

    # ---- measuring -------------------------------------------------------------------------------------------------

    @property
    def rss(self) -> int:
        """Resident memory, in bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def descriptors(self) -> int:
        """Open file descriptors."""
        return int(psutil.Process(self.pid).num_fds())

    @property
    def sockets(self) -> int:
        """Open network sockets, the listening one included."""
        return len(psutil.Process(self.pid).net_connections("tcp"))

    @property
    def threads(self) -> int:
        """Threads of the process."""
        return int(psutil.Process(self.pid).num_threads())

    @property
    def children(self) -> int:
        """Processes that it started."""
        return len(psutil.Process(self.pid).children(recursive=True))

    # ---- afterwards ------------------------------------------------------------------------------------------------

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def complaints(self) -> list[str]:
        """Return the lines of the log that say that something broke in the bus: each traceback's last line."""
        if not self.log.exists():
            return []
        found: list[str] = []
        inside = False
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lstrip(" |+-").startswith("Traceback (most recent call last)"):
                inside = True
            elif inside and line and not line.startswith((" ", "|", "+")):
                found.append(line)
                inside = False
        return found

    def quick_check(self) -> str:
        """Return what `PRAGMA quick_check` says of the SQLite store, `ok` when it is whole. The bus must not run."""
        kind, _, path = self.store.partition(":")
        if kind != "sqlite":
            return "ok"
        with contextlib.closing(sqlite3.connect(path)) as store:
            return ", ".join(str(row[0]) for row in store.execute("PRAGMA quick_check"))

    def _waited_for_cpu(self) -> float:
        """Return for how many seconds its threads were ready to run and did not; 0 where the system does not tell.

        Summed up: of the two that have work at the start, loop and store, one waits for the other.
        """
        waited = 0
        for one in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError):
                waited += int(one.read_text(encoding="ascii").split()[1])
        return waited / 1e9

    def _said_since(self, where: int) -> bytes:
        with self.log.open("rb") as log:
            log.seek(where)
            return log.read()
