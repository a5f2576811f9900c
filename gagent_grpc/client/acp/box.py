"""ACP messages that wait for whoever asks for them, unacknowledged until he does.

Owns: the order, and waiting. There is no bound of its own: what waits here is unsettled, so the window of the session bounds
it. Leaves to others: which box a message is for (`client.acp.service`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gagent_grpc.client.acp.message import ReceivedACP
from gagent_grpc.errors import BusError, PreconditionFailed


class Waiting:
    """One message in a box."""

    __slots__ = ("give_back", "message", "take")

    def __init__(self, message: ReceivedACP, take: Callable[[], None], give_back: Callable[[], None]) -> None:
        """Make it of a message; ``take`` acknowledges it, ``give_back`` leaves it to somebody else."""
        self.message = message
        self.take = take
        self.give_back = give_back


class ACPBox:
    """Messages for one reader or several, oldest first; each goes to one of them."""

    def __init__(self, whose: str) -> None:
        """Make an empty box; ``whose`` it is, for the error."""
        self._whose = whose
        self._waiting: deque[Waiting] = deque()
        self._came = asyncio.Event()
        self._over: BusError | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether nothing comes any more."""
        return self._over is not None

    def put(self, waiting: Waiting) -> None:
        """Put a message in; into a closed box none goes."""
        if self.closed:
            waiting.give_back()
            return
        self._waiting.append(waiting)
        self._came.set()

    async def get(self, timeout: float | None) -> ReceivedACP:
        """Take the oldest message, which is acknowledged by that; cancelled, nothing is taken.

        Raises:
            TimeoutError: None came within ``timeout`` seconds.
            BusError: The box is closed; the error says why.
        """
        async with asyncio.timeout(timeout):
            while not self._waiting:
                if self._over is not None:
                    raise self._over
                self._came.clear()
                await self._came.wait()
        first = self._waiting.popleft()
        first.take()
        return first.message

    def close(self, why: BusError | None = None) -> None:
        """Take nothing any more, and give back what nobody has taken. Idempotent."""
        if self._over is None:
            self._over = why or PreconditionFailed(f"{self._whose} is closed")
        self._came.set()
        while self._waiting:
            self._waiting.popleft().give_back()
