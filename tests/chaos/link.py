"""A TCP link that misbehaves: besides being cut and silenced it delays, throttles, and forgets connections.

Owns: delay, rate, and half-open connections. Leaves to others: forwarding, cuts and silence (`tests.support.proxy`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.support.proxy import Proxy

_CHUNK = 16 * 1024
_BUFFER = 64 * 1024
"""Bytes that a link holds in each direction at least, as a router's queue does; what does not fit pushes back."""


class Link(Proxy):
    """A proxy with the weaknesses of a long or narrow line. Each takes effect for what is forwarded from then on."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.delay = 0.0
        """Seconds that each byte is on its way, in either direction."""
        self.rate = 0.0
        """Bytes per second and direction; 0 for no bound."""
        self.attempts: list[float] = []
        """When each connection was asked for, admitted or not, by the clock of the loop."""
        self._forgotten: set[asyncio.StreamWriter] = set()

    def forget(self) -> None:
        """Leave every connection half-open: both ends believe in it and nothing passes any more; new ones are fine."""
        self._forgotten |= self._open

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts.append(asyncio.get_running_loop().time())
        super()._accept(reader, writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        loop = asyncio.get_running_loop()
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        held = 0
        room = asyncio.Event()

        async def deliver() -> None:
            nonlocal held
            with contextlib.suppress(OSError):
                while True:
                    due, data = await line.get()
                    await asyncio.sleep(due - loop.time())
                    if not data:
                        break
                    await self._passing[way].wait()
                    if writer not in self._forgotten:
                        writer.write(data)
                        await writer.drain()
                        self._passed[way].set()
                    held -= len(data)
                    room.set()
            writer.transport.abort()
            room.set()

        free_at = 0.0
        delivering = asyncio.create_task(deliver())
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(_CHUNK):
                    if not self._passing[way].is_set():
                        self._held.set()
                    now = loop.time()
                    if self.rate:
                        free_at = max(free_at, now) + len(data) / self.rate
                    line.put_nowait((max(free_at, now) + self.delay, data))
                    held += len(data)
                    # As much as is on its way at the full rate, and a queue.
                    while held > _BUFFER + self.rate * self.delay and not delivering.done():
                        room.clear()
                        await room.wait()
            if writer in self._forgotten:
                # Whoever gives a half-open connection up is not heard at the other end either.
                await asyncio.Event().wait()
            line.put_nowait((loop.time() + self.delay, b""))
            await delivering
        finally:
            delivering.cancel()


@contextlib.asynccontextmanager
async def link_to(target: str) -> AsyncIterator[Link]:
    """Run a link to ``target``, `host:port`, while the block lasts."""
    link = Link(target)
    server = await asyncio.start_server(link._accept, "127.0.0.1", 0, backlog=1024)
    link.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield link
    finally:
        await link.aclose(server)
