"""Load around one bus while a fault is made, and what became of every message: the part that most faults have in common.

Owns: the order of a run (receivers, senders, steady load, the fault, what is left, the verdict) and what the AMS says
meanwhile. Leaves to others: the fault, the clients (`tests.chaos.clients`), the end of the bus (`tests.chaos.ending`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from gagent_grpc import Agent, AMSAgentDescription, BusError, ClientLimits, Operator, Received
from tests.chaos.bus_process import BusProcess
from tests.chaos.checker import Findings, check
from tests.chaos.clients import Client, collect, stop_all
from tests.chaos.ending import left_after
from tests.chaos.history import histories
from tests.chaos.scenario import Report

STEADY = 3.0
"""Seconds of load before the fault, of which the rate is taken."""
EMPTY_WITHIN = 20.0
"""Seconds after a fault within which the receivers have emptied their mailboxes."""
BACK_WITHIN = 5.0 + 0.5 + 1.0
"""Seconds after a fault within which agents are active again: 5 s, the longest back-off of the clients, and a look."""
LOOK = 0.1
"""Seconds between two looks at something that tells nobody when it changes."""


async def under_load(
    report: Report,
    folder: Path,
    bus: BusProcess,
    *,
    receivers: Sequence[Client],
    senders: Sequence[Client],
    names: Sequence[str],
    fault: Callable[[], Awaitable[None]],
) -> Findings:
    """Make a fault under load, and put what became of the messages into the report. The bus runs on.

    Args:
        report: Gets the rate before the fault, the counts, and the problems.
        folder: Where the clients write their histories.
        bus: The bus, which serves, and has to serve again when the fault is over.
        receivers: Not started yet; they are ready before the first sender starts.
        senders: Not started yet.
        names: The agents that receive.
        fault: Makes the fault, and returns when it is over.
    """
    async with contextlib.AsyncExitStack() as stack:
        for one in receivers:
            await stack.enter_async_context(one)
        for one in senders:
            await stack.enter_async_context(one)
        began = time.monotonic()
        await asyncio.sleep(STEADY)
        steady = time.monotonic()
        await fault()
        report.problems += await stop_all(senders)
        left = await left_after(bus, names, within=EMPTY_WITHIN)
        if left:
            report.problems.append(f"{left:,} messages are not handled {EMPTY_WITHIN:g} s after the fault")
        report.problems += await stop_all(receivers)
    report.problems += await collect(folder, bus.address, names)
    found = await asyncio.to_thread(check, histories(folder))
    report.rate_before = found.rate(began, steady)
    found.into(report)
    return found


# ---- what the AMS says -----------------------------------------------------------------------------------------------


async def states(bus: str, names: Iterable[str]) -> dict[str, str]:
    """Return the life-cycle state of each agent, `gone` for one that is not registered."""
    async with Operator(bus, timeout=5.0) as operator:
        found: dict[str, str] = {}
        for name in names:
            entries = await operator.ams.search(AMSAgentDescription(name=name))
            found[name] = str(entries[0].description.state) if entries else "gone"
        return found


async def became(
    bus: str, names: Sequence[str], fits: Callable[[str], bool], *, within: float
) -> tuple[float | None, Mapping[str, str]]:
    """Wait until the state of every agent fits; return the seconds that it took, None for never, and the last states."""
    began = time.monotonic()
    last: dict[str, str] = {}
    while True:
        with contextlib.suppress(BusError):
            last = await states(bus, names)
            if all(map(fits, last.values())):
                return time.monotonic() - began, last
        if time.monotonic() - began > within:
            return None, last
        await asyncio.sleep(LOOK)


async def all_active(report: Report, bus: str, names: Sequence[str], *, within: float = BACK_WITHIN) -> float:
    """Wait until every agent is active; return the seconds that it took, and report when it takes too long."""
    took, last = await became(bus, names, lambda state: state == "active", within=within)
    if took is None:
        away = {name: state for name, state in last.items() if state != "active"}
        report.problems.append(f"not active again within {within:g} s: {away or 'the bus does not say'}")
        return within
    return took


async def all_lost(report: Report, bus: str, names: Sequence[str], *, within: float) -> float:
    """Wait until no agent is active; return the seconds that it took, and report when it takes too long."""
    took, last = await became(bus, names, lambda state: state != "active", within=within)
    if took is None:
        there = [name for name, state in last.items() if state == "active"]
        report.problems.append(f"still active after {within:g} s of silence: {there or 'the bus does not say'}")
        return within
    return took


async def until(condition: Callable[[], object], *, within: float) -> float | None:
    """Wait until a condition holds; return the seconds that it took, None when it does not come in time."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within:
            return None
        await asyncio.sleep(LOOK)
    return time.monotonic() - began


# ---- how others fare meanwhile -----------------------------------------------------------------------------------------


class Pings:
    """One agent that asks another one again and again, and how long each answer takes."""

    def __init__(self, bus: str, *, name: str = "ping", every: float = 0.02) -> None:
        """Make a pair of agents on ``bus`` that exchange a request every ``every`` seconds, one at a time."""
        self.times: list[tuple[float, float]] = []
        """(when it was asked, seconds until the answer) of each request."""
        self.failures: list[str] = []
        """What was not answered, in words."""
        limits = ClientLimits(connect_timeout=15.0)
        self._asker = Agent(f"{name}-asker", bus=bus, limits=limits)
        self._answerer = Agent(f"{name}-answerer", bus=bus, limits=limits)
        self._answerer.on("request")(_pong)
        self._every = every
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._answerer.__aenter__()
        await self._asker.__aenter__()
        self._task = asyncio.create_task(self._ask())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._asker.aclose()
        await self._answerer.aclose()

    async def _ask(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._asker.request(self._answerer.name, "ping", timeout=10.0)
            except BusError as error:
                self.failures.append(str(error))
            else:
                self.times.append((began, time.monotonic() - began))
            await asyncio.sleep(self._every)

    def p99(self, start: float, end: float) -> float:
        """Return the 99th percentile of the seconds of those that were asked between two moments; infinite for none."""
        times = sorted(took for at, took in self.times if start <= at <= end)
        return times[int(len(times) * 0.99)] if times else math.inf


async def _pong(message: Received) -> str:
    return "pong"
