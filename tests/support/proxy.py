"""A TCP proxy in the way of a connection, to cut it, to silence it, and to keep newcomers out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Forwards every connection to ``target``, until it is told otherwise."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passing = {"in": asyncio.Event(), "out": asyncio.Event()}
        self._passed = {"in": asyncio.Event(), "out": asyncio.Event()}
        self.speak()
        self._admitting = True
        self._closed = False
        self._connected = asyncio.Event()
        self._held = asyncio.Event()

    def silence(self, *ways: str) -> None:
        """Forward nothing any more, "in" to the target, "out" of it, or both; connections stay open."""
        self._held.clear()
        for way in ways or ("in", "out"):
            self._passing[way].clear()

    async def held(self) -> None:
        """Wait until something is held back that came after the silence began."""
        await self._held.wait()

    async def passed(self, way: str) -> None:
        """Wait until something more has been forwarded."""
        self._passed[way].clear()
        await self._passed[way].wait()

    def speak(self) -> None:
        """Forward again, also what was held back."""
        for passing in self._passing.values():
            passing.set()

    def cut(self, *, admit: bool = True) -> None:
        """Reset every connection; with ``admit`` off, new ones are reset as well."""
        self._admitting = admit
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    def admit(self) -> None:
        """Let new connections through again."""
        self._admitting = True

    async def connected(self) -> None:
        """Wait for the next connection, admitted or not."""
        self._connected.clear()
        await self._connected.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._connected.set()
        if not self._admitting:
            writer.transport.abort()
            return
        # Before the other half is there: a cut in between cuts this connection, too.
        self._open.add(writer)
        host, _, port = self.target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        if writer not in self._open:
            far_writer.transport.abort()
            return
        self._open.add(far_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, far_writer, "in"))
                group.create_task(self._pass(far_reader, writer, "out"))
        finally:
            self._open -= {writer, far_writer}
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not self._passing[way].is_set():
                    self._held.set()
                await self._passing[way].wait()
                writer.write(data)
                await writer.drain()
                self._passed[way].set()
        writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Also of a task that is cancelled before its first step.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def aclose(self, server: asyncio.Server) -> None:
        self._closed = True
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    """Run a proxy to ``target``, `host:port`, while the block lasts."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        await proxy.aclose(server)
