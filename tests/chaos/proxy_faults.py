"""Connections that are reset, silenced, forgotten, slow or narrow, by a TCP proxy before each client."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

from gagent_grpc import Agent, BusError, ClientLimits, Received
from tests.chaos.bus_process import BusProcess
from tests.chaos.clients import Client, names_of
from tests.chaos.ending import end_bus, left_after
from tests.chaos.link import Link, link_to
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.traffic import all_active, under_load, until

NOTICED_WITHIN = 20.0 + 5.0 + 2.0
"""Seconds after which a client gives a half-open connection up: keepalive, its time-out, and the back-off with a margin."""
NARROW = 32_000
"""Bytes per second of a line of 256 kbit/s."""
BACKLOG = 400
"""Messages that wait when a line gets narrow, of 900 bytes on average: 11 s of it, more than a ping may take."""
LARGE = 400_000
"""Bytes of one message, more than a narrow line takes in the time that a write may stand still."""
BACKLOG_WITHIN = 60.0
"""Seconds that either may take."""


async def resets(scale: Scale) -> Report:
    """Cut, silence and forget the connections of senders and receivers at random moments.

    Seen to fail without keepalive and heartbeats.
    """
    report = Report("connections reset and half-open", "")
    chance = random.Random(scale.seed)
    folder = scale.folder
    seconds = 120.0 if scale.long else NOTICED_WITHIN
    names = names_of("r", 5)
    async with BusProcess(folder) as bus, contextlib.AsyncExitStack() as stack:
        links = [await stack.enter_async_context(link_to(bus.address)) for _ in range(7)]
        receivers = [
            Client.receiver(folder, links[0].address, names[:2], kind="sdk"),
            Client.receiver(folder, links[1].address, names[2:3], kind="raw"),
            Client.receiver(folder, links[2].address, names[3:4], kind="raw"),
            # These two, and the last sender, are left to half-open connections.
            Client.receiver(folder, links[3].address, names[4:], kind="sdk"),
        ]
        senders = [
            Client.sender(folder, link.address, [f"s{number}"], to=names, rate=150, seed=scale.seed + number)
            for number, link in enumerate(links[4:])
        ]
        made: dict[str, int] = {}

        async def fault() -> None:
            half_open = [links[3], links[6]]
            async with asyncio.TaskGroup() as group:
                for link in half_open:
                    group.create_task(_half_open(link, report))
                group.create_task(_cut_at_random([*links[:3], *links[4:6]], chance, seconds, made))
            await all_active(report, bus.address, [*names, "s0", "s1", "s2"])

        await under_load(report, folder, bus, receivers=receivers, senders=senders, names=names, fault=fault)
        connections = sum(link.connections for link in links)
        await end_bus(report, bus)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(made.items()))
    report.done = f"{kinds}, 2 half-open in {seconds:.0f} s, {connections} connections"
    return report


async def _cut_at_random(links: Sequence[Link], chance: random.Random, seconds: float, made: dict[str, int]) -> None:
    """Make one fault after the other, each on one link, until the time is over; leave every link whole."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        await asyncio.sleep(chance.uniform(0.1, 0.8))
        link = chance.choice(links)
        kind = chance.choice(("cut", "cut", "outage", "silence in", "silence out", "silence, then cut"))
        made[kind] = made.get(kind, 0) + 1
        if kind == "cut":
            link.cut()
        elif kind == "outage":
            link.cut(admit=False)
            await asyncio.sleep(chance.uniform(0.1, 1.0))
            link.admit()
        else:
            link.silence(*(way for way in ("in", "out") if way in kind.split()))
            await asyncio.sleep(chance.uniform(0.1, 1.0))
            if "cut" in kind:
                link.cut()
            link.speak()


async def _half_open(link: Link, report: Report) -> None:
    """Have both ends of a link believe in a connection that is none; the client has to find that out by itself."""
    before = len(link.attempts)
    link.forget()
    if await until(lambda: len(link.attempts) > before, within=NOTICED_WITHIN) is None:
        report.problems.append(f"a half-open connection was not given up within {NOTICED_WITHIN:g} s")


async def slow_link(scale: Scale) -> Report:
    """Run over lines with 200 ms of delay each way, then over narrow ones: nobody may be taken for dead.

    Seen to fail with frames of 512 KiB and gRPC's bandwidth probe (pings wait behind data for longer than their time-out), with
    10 s for a write, and with 250 ms for a connection.
    """
    report = Report("slow links", "")
    folder = scale.folder
    seconds = 60.0 if scale.long else 8.0
    names = names_of("r", 2)
    async with BusProcess(folder) as bus, contextlib.AsyncExitStack() as stack:
        links = [await stack.enter_async_context(link_to(bus.address)) for _ in range(4)]
        to_r0, to_r1, from_s0, from_s1 = links
        receivers = [
            Client.receiver(folder, to_r0.address, names[:1], kind="sdk"),
            Client.receiver(folder, to_r1.address, names[1:], kind="raw"),
        ]
        senders = [
            Client.sender(folder, from_s0.address, ["s0"], to=names, rate=150, seed=scale.seed),
            Client.sender(folder, from_s1.address, ["s1"], to=names, rate=150, seed=scale.seed + 1),
        ]
        said: list[str] = []

        async def fault() -> None:
            for link in links:
                link.delay = 0.2
            await asyncio.sleep(seconds)
            _no_new_connections(report, links, f"{seconds:.0f} s with a delay of 0.2 s each way")
            for link in links:
                link.delay = 0.0
            said.append(f"0.2 s of delay for {seconds:.0f} s")

        await under_load(report, folder, bus, receivers=receivers, senders=senders, names=names, fault=fault)
        said.append(await _far_away(bus, report))
        said += await asyncio.gather(_narrow(scale, bus, report), _large(bus, report))
        await end_bus(report, bus)
    report.done = ", ".join(said)
    return report


def _no_new_connections(report: Report, links: Sequence[Link], when: str) -> None:
    more = sum(len(link.attempts) - 1 for link in links)
    if more:
        report.problems.append(f"a living peer was taken for dead: {more} new connections during {when}")


async def _far_away(bus: BusProcess, report: Report) -> str:
    """Connect over a line as long as one by satellite."""
    async with link_to(bus.address) as link:
        link.delay = 0.35
        began = time.monotonic()
        try:
            async with Agent("far", bus=link.address, ephemeral=True, limits=ClientLimits(connect_timeout=15.0)):
                return f"connected over 0.35 s of delay in {time.monotonic() - began:.1f} s"
        except BusError as error:
            report.problems.append(f"no connection over 0.35 s of delay, after {len(link.attempts)} attempts: {error}")
            return "no connection over 0.35 s of delay"


async def _narrow(scale: Scale, bus: BusProcess, report: Report) -> str:
    """Have a backlog go down a line of 256 kbit/s to its receiver, and up another one from its sender."""
    folder = scale.folder / "narrow"
    folder.mkdir()
    count = BACKLOG * (2 if scale.long else 1)
    names = ["narrow0", "narrow1"]
    sub = Report("narrow", "")
    async with link_to(bus.address) as down, link_to(bus.address) as up:
        receivers = [
            Client.receiver(folder, down.address, names[:1], kind="sdk"),
            Client.receiver(folder, bus.address, names[1:], kind="sdk"),
        ]
        senders = [
            Client.sender(folder, bus.address, ["wide"], to=names[:1], rate=10_000, bulk=1.0, count=count),
            Client.sender(folder, up.address, ["slim"], to=names[1:], rate=10_000, bulk=1.0, count=count),
        ]
        down.rate = up.rate = NARROW
        began = time.monotonic()

        async def fault() -> None:
            # A sender ends by itself once it has sent its count and has every receipt.
            sent = await until(lambda: not any(one.running for one in senders), within=BACKLOG_WITHIN)
            if sent is None or await left_after(bus, names, within=BACKLOG_WITHIN):
                report.problems.append(f"a backlog of {count} messages is not through after {BACKLOG_WITHIN:g} s")
            _no_new_connections(report, (down, up), "a backlog on a line of 256 kbit/s")
            # Whatever is left need not take as long.
            down.rate = up.rate = 0.0

        await under_load(sub, folder, bus, receivers=receivers, senders=senders, names=names, fault=fault)
        took = time.monotonic() - began
    report.accepted += sub.accepted
    report.handled += sub.handled
    report.stored += sub.stored
    report.lost += sub.lost
    report.doubled_unflagged += sub.doubled_unflagged
    report.problems += sub.problems
    return f"{sub.accepted} messages over 256 kbit/s in {took:.0f} s"


async def _large(bus: BusProcess, report: Report) -> str:
    """Have one large message go up a line of 256 kbit/s and down another one: longer than a write may stand still."""
    came = asyncio.Event()
    async with link_to(bus.address) as down, link_to(bus.address) as up:
        down.rate = up.rate = NARROW
        receiver, sender = Agent("large-to", bus=down.address), Agent("large-from", bus=up.address)

        @receiver.on()
        async def take(message: Received) -> None:
            if len(message.content or "") == LARGE:
                came.set()

        async with receiver, sender:
            began = time.monotonic()
            sending = asyncio.create_task(sender.send("large-to", "inform", "x" * LARGE))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BACKLOG_WITHIN):
                    await asyncio.gather(sending, came.wait())
            took = time.monotonic() - began
            if not came.is_set():
                report.problems.append(f"a message of {LARGE:,} bytes is not through 256 kbit/s after {took:.0f} s")
            _no_new_connections(report, (down, up), "a large message on a line of 256 kbit/s")
            # Whatever is left need not take as long.
            down.rate = up.rate = 0.0
    return f"{LARGE:,} bytes in one message in {took:.0f} s"


SCENARIOS: dict[str, Scenario] = {"resets": resets, "slow_link": slow_link}
