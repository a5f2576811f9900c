"""The operating system's side of a script: the process with its group and pipes, and bounded logging of what it says.

Owns: signals, reaping, closing descriptors. Leaves to others: when a script is ended, and what its lines mean
(`bridge.process`).
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import logging
import os
import signal
from collections import deque
from typing import Any, cast

from gagent_grpc.bridge.framing import LineSplitter, OverlongLine

CHUNK_BYTES = 64 * 1024
"""Most bytes that are read from a pipe at once."""
LINES_PER_TURN = 256
"""Most lines that are taken in one turn of the loop: a script that floods must not keep the loop from others."""
TAIL_LINES = 20
TAIL_CHARS = 4096
"""How much of the end of stderr is kept for errors."""

_STDERR_LINE_BYTES = 64 * 1024
_SHOWN_STDERR_CHARS = 500

_logger = logging.getLogger(__name__)


class Child(asyncio.subprocess.SubprocessStreamProtocol):
    """The process and its streams.

    asyncio's own `Process.wait` returns only when the pipes are closed, which a grandchild that inherited them can
    put off for ever; `exited` is done when the process itself has ended.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit, loop)
        self.exited: asyncio.Future[None] = loop.create_future()
        self.pid = 0
        self._process: asyncio.subprocess.Process | None = None
        self._own_transport: asyncio.SubprocessTransport | None = None
        self._own_loop = loop

    @property
    def returncode(self) -> int | None:
        return self._own_transport.get_returncode() if self._own_transport else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # That of uvloop is one by its methods only.
        made = cast(asyncio.SubprocessTransport, transport)
        self._own_transport = made
        self._process = asyncio.subprocess.Process(made, self, self._own_loop)
        self.pid = made.get_pid()

    def process_exited(self) -> None:
        # What the script left running in its group goes with it. The leader is reaped, but its id cannot have been
        # given away within this turn of the loop: ids are handed out in a cycle.
        self.signal_group(signal.SIGKILL)
        if not self.exited.done():
            self.exited.set_result(None)
        super().process_exited()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and everything in its process group; nothing once the child was reaped."""
        if self.exited.done() or not self.pid:
            return
        # PermissionError: what is left of the group runs as another user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Close this end of the pipes at once; what a full stdin still holds is dropped."""
        if self.stdin.transport.get_write_buffer_size():
            # Closing alone would wait until it is written, which may be never.
            self.stdin.transport.abort()
        if self._own_transport is not None:
            self._own_transport.close()

    async def wait_closed(self) -> None:
        """Wait until the transport has closed its descriptors."""
        if self._process is not None:
            await self._process.wait()


class Throttle:
    """Logs at most so many records: a burst, then some per second; says how many it left out."""

    def __init__(self, *, burst: int, per_second: float) -> None:
        self._burst = float(burst)
        self._rate = per_second
        self._left = self._burst
        self._at = 0.0
        self._omitted = 0

    def log(self, level: int, agent: str, text: str) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            self._omitted += 1
            return
        self._left -= 1
        if self._omitted:
            text += f" ({self._omitted:,} records before this one were left out)"
            self._omitted = 0
        _logger.log(level, "%s: %s", agent, text, extra={"agent": agent})


async def done(future: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a future without cancelling it; return whether it is done."""
    await asyncio.wait({future}, timeout=seconds)
    return future.done()


class LastWords:
    """What a script writes to stderr: each line goes to the log, the last ones are kept for errors."""

    def __init__(self, name: str) -> None:
        """Keep and log for the agent ``name``."""
        self._name = name
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._records = Throttle(burst=100, per_second=20.0)

    @property
    def tail(self) -> str:
        """The last lines."""
        return "\n".join(self._lines)[-TAIL_CHARS:]

    async def read(self, stderr: asyncio.StreamReader) -> None:
        """Read to the end, whenever it comes."""
        splitter = LineSplitter(_STDERR_LINE_BYTES)
        while data := await read_some(stderr):
            await self._take(splitter.feed(data))
        await self._take(splitter.finish())

    async def _take(self, lines: list[bytes | OverlongLine]) -> None:
        for number, line in enumerate(lines):
            if number % LINES_PER_TURN == 0:
                await asyncio.sleep(0)
            if isinstance(line, OverlongLine):
                text = f"{_printable(line.head)}... ({line.size_bytes:,} bytes)"
            else:
                text = _printable(line[-TAIL_CHARS:])
            if text.strip():
                self._lines.append(text)
                self._records.log(logging.INFO, self._name, f"stderr: {text[:_SHOWN_STDERR_CHARS]}")


async def read_some(stream: asyncio.StreamReader) -> bytes:
    """Return what there is to read, at least one byte; nothing at the end, however it came."""
    try:
        return await stream.read(CHUNK_BYTES)
    except OSError:
        return b""


def _printable(line: bytes) -> str:
    """Return a line of stderr as text without control characters, which a terminal would obey."""
    text = line.decode("utf-8", errors="backslashreplace").rstrip()
    return "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in text)
