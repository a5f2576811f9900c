"""The pulse check: after a case the bus serves a newcomer, nobody has said a traceback, and nothing is left open.

    async with pulse_check(bus) as stack:
        alice = await stack.enter_async_context(Agent("alice", bus=bus.address))
        ...

What the case opens goes into the stack, which is left before the check.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import psutil
from waiting import until

from gagent_grpc import Agent, Received

_SLACK = 2
"""Descriptors, children and tasks that may come and go by themselves."""
_numbers = itertools.count(1)


async def pulse(address: str) -> None:
    """Register somebody new, who sends itself a ping, gets it within 2 s, and deregisters."""
    came = asyncio.Event()
    agent = Agent(f"pulse-{next(_numbers)}", bus=address)

    @agent.on("inform", content="ping")
    async def take(message: Received) -> None:
        came.set()

    async with agent:
        assert await agent.send(agent.name, "inform", "ping") == []
        async with asyncio.timeout(2):
            await came.wait()
        await agent.aclose(deregister=True)


@contextlib.asynccontextmanager
async def pulse_check(bus: Any) -> AsyncIterator[contextlib.AsyncExitStack]:
    """Check the pulse of ``bus``, in this process or in one of its own, before and after the block."""
    # What gRPC opens once and keeps is open from here on.
    await pulse(bus.address)
    before = _level(bus)
    tracebacks = _Tracebacks()
    logging.getLogger().addHandler(tracebacks)
    try:
        async with contextlib.AsyncExitStack() as stack:
            yield stack
        await pulse(bus.address)
        said = tracebacks.heard + (bus.complaints() if hasattr(bus, "complaints") else [])
        assert not said, f"tracebacks in the log: {said}"
        # A bus in this process ends its calls a little after the agents that made them.
        with contextlib.suppress(AssertionError):
            await until(lambda: not _above(_level(bus), before))
        left = _above(_level(bus), before)
        assert not left, f"left open: {left}"
    finally:
        logging.getLogger().removeHandler(tracebacks)


def _level(bus: Any) -> dict[str, int]:
    """Return how many things are open, those of a bus in a process of its own as well."""
    here = psutil.Process()
    level = {
        "descriptors": here.num_fds(),
        "children": len(here.children(recursive=True)),
        "tasks": len(asyncio.all_tasks()),
    }
    if hasattr(bus, "descriptors"):
        level |= {"descriptors of the bus": bus.descriptors, "children of the bus": bus.children}
    return level


def _above(now: dict[str, int], before: dict[str, int]) -> dict[str, str]:
    return {what: f"{before[what]} -> {count}" for what, count in now.items() if count > before[what] + _SLACK}


class _Tracebacks(logging.Handler):
    """Keeps what is logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.heard.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
