"""For tests of agents and of the bus: a bus in this process, and a clock that stands still.

Owns: what makes tests short. Leaves to others: everything that they test.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from gagent_grpc.bus.ports import Store
from gagent_grpc.config import DEFAULT_PLATFORM, BusLimits
from gagent_grpc.server.app import Bus, open_bus
from gagent_grpc.storage.memory import MemoryStore


class FakeClock:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        """Start at ``now``, in Unix seconds; the monotonic time starts at 0."""
        self._start = now
        self._passed = 0.0

    def monotonic(self) -> float:
        """Return the seconds that passed since the start."""
        return self._passed

    def time(self) -> float:
        """Return Unix seconds."""
        return self._start + self._passed

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass.

        Raises:
            ValueError: They are negative; time goes forward only.
        """
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s; expected 0 or more")
        self._passed += seconds


@contextlib.asynccontextmanager
async def running_bus(
    store: Store | None = None,
    *,
    listen: str = "127.0.0.1:0",
    platform: str = DEFAULT_PLATFORM,
    limits: BusLimits | None = None,
) -> AsyncIterator[Bus]:
    """Run a bus in this process while the block lasts.

    Args:
        store: Where it keeps what must survive; by default a memory store of its own.
        listen: Loopback address; port 0 takes a free one, which `Bus.address` tells.
        platform: Name of the platform.
        limits: Bounds of the bus; the defaults of `config`.
    """
    async with open_bus(store or MemoryStore(), listen=listen, platform=platform, limits=limits) as bus:
        yield bus
