"""Processes that are frozen, and a bus that is told to stop: once, twice, and under load with hundreds of agents connected."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from gagent_grpc import Agent, ClientLimits, Received
from gagent_grpc.config import BusLimits
from tests.chaos import limited_bus
from tests.chaos.bus_process import BusProcess
from tests.chaos.clients import Client, names_of
from tests.chaos.ending import end_bus
from tests.chaos.link import Link, link_to
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.traffic import all_active, all_lost, under_load, until

SHORT_HEARTBEAT = 2.0
"""Seconds between heartbeats in the scaled runs, of which three may be missed."""
NOTICED_WITHIN = 20.0 + 5.0
"""Seconds after which a frozen peer has to be taken for lost: keepalive and its time-out."""
FROZEN = 30.0
"""Seconds that a process is frozen in the long form."""
SLACK = 1.0
IDLE = 200
"""Agents that are connected and idle while the bus restarts."""
GRACE = BusLimits().drain_grace + 2.0
"""Seconds after which a bus that was told to stop has to be gone."""
ALL_BACK_WITHIN = 30.0
WINDOW = 0.1
"""Seconds in which no more than a share of the attempts to reconnect may fall."""
SHARE = 0.25
AT_ONCE = 1.0
"""Seconds that a bus may take to be gone after a second signal."""


# ---- frozen processes --------------------------------------------------------------------------------------------------


async def frozen(scale: Scale) -> Report:
    """Freeze the bus, then clients, for longer than anybody waits for a sign of life.

    Seen to fail when the bus ended no silent session.
    """
    report = Report("SIGSTOP of the bus and of clients", "")
    folder = scale.folder
    limits = {} if scale.long else {"heartbeat_interval": SHORT_HEARTBEAT}
    within = NOTICED_WITHIN if scale.long else SHORT_HEARTBEAT * (BusLimits().missed_heartbeats + 1)
    seconds = FROZEN if scale.long else within + SLACK
    names, sending = names_of("r", 3), names_of("s", 2)
    said: list[str] = []
    async with BusProcess(folder, program=limited_bus.program(limits)) as bus, contextlib.AsyncExitStack() as stack:
        links = [await stack.enter_async_context(link_to(bus.address)) for _ in range(5)]
        receivers = [
            Client.receiver(folder, links[0].address, names[:1], kind="sdk"),
            Client.receiver(folder, links[1].address, names[1:2], kind="sdk"),
            Client.receiver(folder, links[2].address, names[2:], kind="raw"),
        ]
        senders = [
            Client.sender(folder, link.address, [name], to=names, rate=150, seed=scale.seed + number)
            for number, (name, link) in enumerate(zip(sending, links[3:], strict=True))
        ]

        async def fault() -> None:
            # The raw client waits for heartbeats of nobody; the transport alone tells it.
            watched = [*links[:2], *links[3:]]
            took = await _freeze_bus(report, bus, watched, within, seconds)
            back = await all_active(report, bus.address, [*names, *sending])
            said.append(f"bus for {seconds:.0f} s, clients noticed after {took:.0f} s, active {back:.1f} s after")
            took = await _freeze_clients(report, bus, {"r0": receivers[0], "s0": senders[0]}, within, seconds)
            back = await all_active(report, bus.address, [*names, *sending])
            said.append(f"2 clients for {seconds:.0f} s, bus noticed after {took:.0f} s, active {back:.1f} s after")

        await under_load(report, folder, bus, receivers=receivers, senders=senders, names=names, fault=fault)
        await end_bus(report, bus)
    report.done = "; ".join(said)
    return report


async def _freeze_bus(report: Report, bus: BusProcess, links: Sequence[Link], within: float, seconds: float) -> float:
    """Freeze the bus until every client has given its connection up, at least for ``seconds``; return when they had."""
    before = [len(link.attempts) for link in links]
    began = time.monotonic()
    bus.kill(signal.SIGSTOP)
    try:
        noticed = await until(
            lambda: all(len(link.attempts) > count for link, count in zip(links, before, strict=True)),
            within=within + SLACK,
        )
        if noticed is None:
            report.problems.append(f"a client did not give a frozen bus up within {within:g} s")
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))
    finally:
        bus.kill(signal.SIGCONT)
    return noticed or within


async def _freeze_clients(
    report: Report, bus: BusProcess, clients: dict[str, Client], within: float, seconds: float
) -> float:
    """Freeze clients until the AMS has none of their agents as active, at least for ``seconds``; return when it had."""
    began = time.monotonic()
    for one in clients.values():
        one.kill(signal.SIGSTOP)
    try:
        noticed = await all_lost(report, bus.address, list(clients), within=within + SLACK)
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))
    finally:
        for one in clients.values():
            one.kill(signal.SIGCONT)
    return noticed


# ---- a bus that is told to stop ----------------------------------------------------------------------------------------


class _Staff:
    """Agents of the SDK with its shipped limits: many that are idle, three at work on a request, and who asked them."""

    def __init__(self, bus: str, *, idle: int, work: float) -> None:
        self.handled: Counter[str] = Counter()
        """Runs of handlers that came to their end, by message."""
        self.at_work: set[str] = set()
        """Agents that have a request in hand."""
        self.answers: list[asyncio.Task[Received]] = []
        limits = ClientLimits(connect_timeout=20.0)
        self.boss = Agent("boss", bus=bus, limits=limits)
        self.busy = [Agent(name, bus=bus, limits=limits) for name in names_of("busy", 3)]
        self.idle = [Agent(name, bus=bus, limits=limits) for name in names_of("idle", idle)]
        for agent in self.busy:
            agent.on("request")(self._worker(agent.name, work))

    @property
    def names(self) -> list[str]:
        return [agent.name for agent in (self.boss, *self.busy, *self.idle)]

    async def connect(self, stack: contextlib.AsyncExitStack) -> None:
        """Connect all of them, some at a time: that is not what is measured."""
        agents = [self.boss, *self.busy, *self.idle]
        for start in range(0, len(agents), 20):
            await asyncio.gather(*map(stack.enter_async_context, agents[start : start + 20]))

    async def ask(self, mark: str) -> None:
        """Give each of the three a request, and wait until they are at work."""
        self.answers = [asyncio.create_task(self.boss.request(one.name, f"{mark} {one.name}")) for one in self.busy]
        await until(lambda: len(self.at_work) == len(self.busy), within=10.0)

    async def answered(self, report: Report) -> None:
        """Wait for the answers, and report those that do not come, or were worked out twice."""
        done = await asyncio.gather(*self.answers, return_exceptions=True)
        report.problems += [
            f"a request under way was not answered: {one!r}" for one in done if isinstance(one, Exception)
        ]
        twice = [mark for mark, times in self.handled.items() if times > 1]
        if twice:
            report.problems.append(f"requests under way were handled twice: {twice}")

    def _worker(self, name: str, work: float) -> Callable[[Received], Awaitable[str]]:
        async def handle(message: Received) -> str:
            self.at_work.add(name)
            await asyncio.sleep(work)
            self.at_work.discard(name)
            self.handled[str(message.content)] += 1
            return "done"

        return handle


async def rolling_restart(scale: Scale) -> Report:
    """Stop the bus politely and start it again, with 200 idle agents, three at work, and traffic.

    Seen to fail when the back-off of the clients was not drawn at random.
    """
    report = Report("rolling restart under load", "")
    folder = scale.folder
    names, sending = names_of("r", 2), names_of("s", 2)
    said: list[str] = []
    async with BusProcess(folder) as bus, contextlib.AsyncExitStack() as stack:
        link = await stack.enter_async_context(link_to(bus.address))
        staff = _Staff(link.address, idle=IDLE, work=10.0)
        await staff.connect(stack)
        receivers = [Client.receiver(folder, bus.address, names, kind="sdk")]
        senders = [Client.sender(folder, bus.address, sending, to=names, rate=200, seed=scale.seed)]

        async def fault() -> None:
            for life in range(3 if scale.long else 1):
                await staff.ask(f"life {life}")
                said.append(await _restart(report, bus, link, staff, away=5.0 if scale.long else 2.0))
                await staff.answered(report)
                await all_active(report, bus.address, [*names, *sending])

        await under_load(report, folder, bus, receivers=receivers, senders=senders, names=names, fault=fault)
        await end_bus(report, bus)
    report.done = f"{IDLE} agents idle and 3 at work: " + "; ".join(said)
    return report


async def _restart(report: Report, bus: BusProcess, link: Link, staff: _Staff, *, away: float) -> str:
    """Stop the bus, start it again after ``away`` seconds, and wait until everybody is back."""
    first = len(link.attempts)
    began = time.monotonic()
    bus.kill(signal.SIGTERM)
    code = await bus.wait()
    stopped = time.monotonic() - began
    if code:
        report.problems.append(f"the bus ended with {code}")
    if stopped > GRACE:
        report.problems.append(f"the bus took {stopped:.1f} s to stop, more than {GRACE:g} s")
    await asyncio.sleep(away)
    await bus.start()
    back = await all_active(report, bus.address, staff.names, within=ALL_BACK_WITHIN)
    attempts = link.attempts[first:]
    # As many as there are agents: later attempts are spread wider anyway, and would hide how dense the first ones were.
    wave = attempts[: len(staff.names)]
    densest = max(bisect.bisect(wave, at + WINDOW) - place for place, at in enumerate(wave))
    share = densest / len(wave)
    if share > SHARE:
        report.problems.append(f"{densest} of the first {len(wave)} attempts to reconnect within {WINDOW:g} s")
    return (
        f"exit {code} after {stopped:.1f} s, all active {back:.1f} s after the start, {len(attempts)} attempts to "
        f"reconnect, {share:.0%} of the first {len(wave)} in the densest {WINDOW * 1000:.0f} ms"
    )


async def second_signal(scale: Scale) -> Report:
    """Tell a bus to stop that has to wait for work under way, and tell it once more.

    Seen to fail when the second signal was ignored.
    """
    report = Report("SIGTERM twice under load", "")
    folder = scale.folder
    names, sending = names_of("r", 2), names_of("s", 2)
    said: list[str] = []
    async with BusProcess(folder) as bus, contextlib.AsyncExitStack() as stack:
        staff = _Staff(bus.address, idle=0, work=6.0)
        await staff.connect(stack)
        receivers = [Client.receiver(folder, bus.address, names, kind="sdk")]
        senders = [Client.sender(folder, bus.address, sending, to=names, rate=200, seed=scale.seed)]

        async def fault() -> None:
            for life in range(5 if scale.long else 1):
                await staff.ask(f"life {life}")
                said.append(await _stop_twice(report, bus))
                await bus.start()
                await all_active(report, bus.address, [*names, *sending, *staff.names], within=ALL_BACK_WITHIN)
                await staff.answered(report)

        await under_load(report, folder, bus, receivers=receivers, senders=senders, names=names, fault=fault)
        await end_bus(report, bus)
    report.done = "; ".join(said)
    return report


async def _stop_twice(report: Report, bus: BusProcess) -> str:
    """Send SIGTERM, and again while the bus still waits for the handlers of its agents."""
    bus.kill(signal.SIGTERM)
    await asyncio.sleep(1.0)
    if not bus.running:
        report.problems.append("the bus did not wait for work under way, so there was no second signal")
        return "gone after the first signal"
    began = time.monotonic()
    bus.kill(signal.SIGTERM)
    code = await bus.wait()
    took = time.monotonic() - began
    if took > AT_ONCE:
        report.problems.append(f"the bus took {took:.1f} s to exit after a second signal")
    if code != 128 + signal.SIGTERM:
        report.problems.append(f"the bus exited with {code} after a second signal; expected {128 + signal.SIGTERM}")
    return f"exit {code} {took:.2f} s after the second signal"


SCENARIOS: dict[str, Scenario] = {
    "frozen": frozen,
    "rolling_restart": rolling_restart,
    "second_signal": second_signal,
}
