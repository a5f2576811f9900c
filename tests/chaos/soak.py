"""A day in small: 200 messages a second, agents that come and go, clients that are killed; memory and descriptors stay flat.

In the long form, 30 minutes, what the bus holds may grow by less than 2 MB in ten minutes once it is warm. The keys of what was
settled are remembered for ten minutes; and their table, in which a place that was used once is not free again, takes its last
size, 5 MiB more, when as many keys as it has places have come, which at this rate is after 15 minutes. It is the slope through all samples, since these keys go by
the minute and the memory rises and falls with them, and each sample is taken after the bus has collected its garbage and returned
free memory, which would hide a slope of this size. The short form is too short for that, and judges only that everything that the
clients took is given back when they have gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.bus_process import BusProcess
from tests.chaos.clients import Client, names_of, stop_all
from tests.chaos.ending import end_run
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.watched_bus import TASKS_FILE

RATE = 200.0
"""Messages per second: 3/5 from agents that stay, 1/5 from visitors, 1/5 from senders that are killed now and then."""
WARM_AFTER = 960.0
"""Seconds until the bus is warm: its table of keys has been filled once, 175,000 at `RATE`, and a minute has passed."""
MOST_GROWTH = 2.0
"""MiB in ten minutes."""
SLACK = 8
"""Descriptors, sockets, threads or tasks that may be more at one time than at another without saying anything."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the bus has at one moment."""

    at: float
    rss: int
    descriptors: int
    sockets: int
    threads: int
    children: int
    tasks: int


COUNTS = ("descriptors", "sockets", "threads", "children", "tasks")


async def soak(scale: Scale) -> Report:
    """Soak for 30 s, in the long form for 30 minutes."""
    if scale.long:
        return await soaked(scale, seconds=1800.0, every=5.0, warm_after=WARM_AFTER, life=30.0)
    return await soaked(scale, seconds=30.0, every=1.0, warm_after=10.0, life=5.0)


async def soaked(scale: Scale, *, seconds: float, every: float, warm_after: float, life: float) -> Report:
    """Soak.

    Args:
        scale: As the scenario gets it.
        seconds: How long.
        every: Seconds between two samples.
        warm_after: Seconds after which samples count.
        life: Seconds after which a sender is killed and started anew.
    """
    folder = scale.folder
    report = Report("soak", "")
    to = names_of("r", 4)
    bus = WatchedBus(folder)
    samples: list[_Sample] = []
    mortals: list[Client] = []
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(bus)
        before = await bus.sample()
        receivers = [
            Client.receiver(folder, bus.address, to[:2], kind="sdk"),
            Client.receiver(folder, bus.address, to[2:], kind="raw"),
        ]
        staying = Client.sender(folder, bus.address, names_of("s", 4), to=to, rate=RATE * 0.6, seed=scale.seed)
        visitors = Client.visitors(folder, bus.address, to=to, rate=RATE * 0.2, seed=scale.seed)
        for client in (*receivers, staying, visitors):
            await stack.enter_async_context(client)
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            if now >= began + life * len(mortals):
                if mortals:
                    mortals[-1].kill()
                    await mortals[-1].wait()
                mortals.append(
                    Client.sender(
                        folder, bus.address, ["m0", "m1"], to=to, rate=RATE * 0.2, seed=scale.seed, client="mortal"
                    )
                )
                await stack.enter_async_context(mortals[-1])
            await asyncio.sleep(every)
            samples.append(await bus.sample())
        senders = [staying, visitors, mortals[-1]]
        report.problems += await stop_all(senders)
        report.problems += await stop_all(receivers)
        after = await _settled(bus, before)
        findings = await end_run(report, bus, senders=senders, receivers=receivers, folder=folder)
    report.rate_before = findings.rate(began, began + seconds)
    highest = max(one.rss for one in samples) / MIB
    report.done = f"{seconds:.0f} s, {len(mortals)} lives of a sender, from {before.rss / MIB:.0f} to {highest:.0f} MiB"
    if findings.errors:
        report.problems.append(f"clients heard {findings.errors} errors")
    report.problems += _kept(before, after)
    if scale.long:
        warm = [one for one in samples if one.at >= began + warm_after]
        slope, _ = statistics.linear_regression([one.at for one in warm], [one.rss / MIB for one in warm])
        growth = slope * 600
        report.done += f", {growth:+.1f} MiB in 10 min once warm"
        report.problems += _grown(warm)
        if growth >= MOST_GROWTH:
            report.problems.append(f"grows by {growth:.1f} MiB in 10 min, allowed are {MOST_GROWTH:g}")
    return report


class WatchedBus(BusProcess):
    """A bus that can be asked how many tasks it has."""

    def __init__(self, folder: Path) -> None:
        self._tasks = folder / "tasks"
        program = (sys.executable, "-m", "tests.chaos.watched_bus")
        super().__init__(folder, program=program, env={TASKS_FILE: str(self._tasks)})

    async def sample(self) -> _Sample:
        """Return what the bus has, once it has given back what it does not use."""
        self.kill(signal.SIGUSR1)
        async with asyncio.timeout(10):
            while (tasks := self._told()) is None:  # noqa: ASYNC110  # Another process writes it.
                await asyncio.sleep(0.01)
        return _Sample(time.monotonic(), self.rss, self.descriptors, self.sockets, self.threads, self.children, tasks)

    def _told(self) -> int | None:
        """Take what the bus has written; None while it has not."""
        try:
            count = int(self._tasks.read_text())
        except FileNotFoundError:
            return None
        self._tasks.unlink()
        return count


async def _settled(bus: WatchedBus, before: _Sample) -> _Sample:
    """Return a sample once the bus has let go of clients that have gone, or of what it still has after 10 s."""
    deadline = time.monotonic() + 10
    while True:
        after = await bus.sample()
        if not _kept(before, after) or time.monotonic() > deadline:
            return after
        await asyncio.sleep(0.5)


def _kept(before: _Sample, after: _Sample) -> list[str]:
    """Return what the bus has more of without any client than before the first one."""
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in COUNTS]
    return [f"{name}: {new} without clients, {old} at the start" for name, old, new in pairs if new > old + SLACK]


def _grown(warm: Sequence[_Sample]) -> list[str]:
    """Return what there is more of in the last quarter of the samples than in the first one."""
    quarter = max(1, len(warm) // 4)
    problems = []
    for name in COUNTS:
        first, last = (max(getattr(one, name) for one in part) for part in (warm[:quarter], warm[-quarter:]))
        if last > first + SLACK:
            problems.append(f"{name} grow: {first} at first, {last} at last")
    return problems


SCENARIOS: dict[str, Scenario] = {"soak": soak}
