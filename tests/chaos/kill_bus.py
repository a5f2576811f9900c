"""`kill -9` of the bus under load, again and again: what was accepted is not lost, what comes twice is flagged.

The bus is killed at a random moment 0.5 to 3 s after it serves, in the middle of commits, deliveries and settles, and has to
serve again within 2 s; in the long form with 100,000 messages stored. Half of the receivers use the SDK, half the wire. Some
deliveries are sent back once, and some each time until they are given up, so that held lanes and failures of the bus are among
what is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from pathlib import Path

from gagent_grpc import Operator
from tests.chaos.bus_process import BusProcess
from tests.chaos.checker import Findings
from tests.chaos.clients import Client, names_of
from tests.chaos.ending import end_run
from tests.chaos.scenario import Report, Scale, Scenario

SERVING_WITHIN = 2.0
"""Seconds after which a killed bus has to serve again, from the start of its process. What it waits for the CPU while its own
clients, and whatever else the machine does, have it is not counted."""
RATE = 600.0
"""Messages per second of all senders: what two cores carry beside eight processes."""
ABSENT = 11
"""Agents that never come for their mail, in the long form; a mailbox holds 10,000 messages."""
STORED = 100_000


async def kill_bus(scale: Scale) -> Report:
    """Kill the bus 20 times, in the long form 200 times."""
    return await killed(scale, kills=200 if scale.long else 20, stored=STORED if scale.long else 0)


async def killed(scale: Scale, *, kills: int, stored: int) -> Report:
    """Kill the bus ``kills`` times, with ``stored`` messages in it that nobody comes for."""
    folder = scale.folder
    chance = random.Random(scale.seed)
    report = Report("kill -9 of the bus", "")
    sending, to = names_of("s", 8), names_of("r", 8)
    absent = names_of("a", ABSENT if stored else 0)
    up: list[tuple[float, float]] = []
    """When it served, from and to."""
    starts: list[float] = []
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(BusProcess(folder))
        if stored:
            await fill(folder, bus, absent, stored)
        receivers = [
            Client.receiver(folder, bus.address, to[:4], kind="sdk", delay=0.005, nack_every=97, fail_every=101),
            Client.receiver(folder, bus.address, to[4:6], kind="raw", delay=0.005, nack_every=97, fail_every=101),
            # These send nothing back, so that the order of all conversations together is seen.
            Client.receiver(folder, bus.address, to[6:], kind="raw", delay=0.005),
        ]
        senders = [
            Client.sender(folder, bus.address, names, to=to, rate=RATE / 2, seed=scale.seed)
            for names in (sending[:4], sending[4:])
        ]
        for client in (*receivers, *senders):
            await stack.enter_async_context(client)
        serves = time.monotonic()
        # Some load before the first kill, by which the run is measured.
        await asyncio.sleep(1.0)
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.5, 3.0))
            up.append((serves, time.monotonic()))
            bus.kill()
            await bus.wait()
            starts.append(await bus.start() - bus.starved)
            serves = time.monotonic()
        await asyncio.sleep(1.0)
        findings = await end_run(report, bus, senders=senders, receivers=receivers, folder=folder, absent=absent)
    late = [seconds for seconds in starts if seconds > SERVING_WITHIN]
    if late:
        report.problems.append(f"{len(late)} times not serving within {SERVING_WITHIN:g} s (up to {max(late):.1f} s)")
    report.done = f"{kills} kills in {time.monotonic() - began:.0f} s, serving again after {max(starts):.2f} s at most"
    if stored:
        report.done += f" with {stored:,} stored"
    report.rate_before = rate_while_up(findings, up)
    return report


async def fill(folder: Path, bus: BusProcess, names: Sequence[str], count: int) -> None:
    """Have ``count`` messages wait for agents that are registered and never come."""
    async with Operator(bus.address) as operator:
        for name in names:
            await operator.ams.register(name)
    filler = Client.sender(folder, bus.address, ["filler"], to=names, rate=10_000, bulk=1.0, count=count)
    async with filler:
        # It ends by itself when the last receipt has come.
        await filler.wait(within=120)


def rate_while_up(findings: Findings, up: Sequence[tuple[float, float]]) -> float:
    """Return messages per second accepted while the bus served, all lives together."""
    accepted = sum(findings.rate(start, end) * (end - start) for start, end in up)
    return accepted / sum(end - start for start, end in up)


SCENARIOS: dict[str, Scenario] = {"kill_bus": kill_bus}
