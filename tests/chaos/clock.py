"""A wall clock that jumps by an hour under a running bus, forward and back: nobody is lost, and nothing ends too early or too late.

Owns: the clock, which is libfaketime's, for the process of the bus alone; its monotonic clock stays real. Clients live by the
real time throughout, as on another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from pathlib import Path

from gagent_grpc import (
    Agent,
    AMSAgentDescription,
    ClientLimits,
    DeliveryRefused,
    DFAgentDescription,
    Operator,
    ServiceDescription,
)
from gagent_grpc.client.df import DfClient
from tests.chaos.bus_process import BusProcess
from tests.chaos.clients import Client, names_of
from tests.chaos.ending import end_bus
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.traffic import all_active, under_load, until

HOUR = 3600
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/local/lib/faketime/libfaketimeMT.so.1")
SETTLE = 3.0
"""Seconds after a jump in which the bus has looked at all that ends at some time."""
LONG_LEASE = 600.0
SHORT_LEASE = 4.0
"""Seconds of a lease that ends soon after a jump back."""
LIFE = 600.0
"""Seconds until a message is of no use any more."""
ABSENT = "absent"


class _Clock:
    """The wall clock of one process."""

    def __init__(self, library: str, file: Path) -> None:
        self._file = file
        self.turn(0)
        self.env = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            # Read again each second; each time would slow the bus down to a crawl.
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # Its remedy for old C libraries has waits of this one end at once, again and again.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def turn(self, seconds: int) -> None:
        """Let the clock differ from the real one by ``seconds``."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{seconds:+d}\n", encoding="ascii")
        # In one step: who reads half of it would be on another day.
        draft.replace(self._file)


def _library() -> str | None:
    for pattern in LIBRARIES:
        for found in Path("/").glob(pattern.lstrip("/")):
            return str(found)
    return None


async def clock(scale: Scale) -> Report:
    """Turn the clock of the bus an hour forward, back, another hour back, and right again, under load.

    Seen to fail, in five ways, when the bus went by the time of the system.
    """
    report = Report("clock jumps of an hour", "")
    library = _library()
    if library is None:
        report.done = "not run here: there is no libfaketime (Debian's package libfaketime)"
        return report
    folder = scale.folder
    turned = _Clock(library, folder / "clock")
    names, sending = names_of("r", 3), names_of("s", 2)
    jumps = [HOUR, 0, -HOUR, 0] * (5 if scale.long else 1)
    async with BusProcess(folder, env=turned.env) as bus, contextlib.AsyncExitStack() as stack:
        probe = await stack.enter_async_context(_Probe(bus))
        receivers = [
            Client.receiver(folder, bus.address, names[:2], kind="sdk", nack_every=50),
            Client.receiver(folder, bus.address, names[2:], kind="raw"),
        ]
        senders = [Client.sender(folder, bus.address, sending, to=names, rate=300, seed=scale.seed)]
        restarts = 0

        async def fault() -> None:
            nonlocal restarts
            await probe.prepare()
            opened = _sessions_opened(bus)
            for jump in jumps:
                await probe.before(back=jump < 0)
                turned.turn(jump)
                await asyncio.sleep(SETTLE)
                await probe.after(report, jump)
            lost = _sessions_opened(bus) - opened
            if lost:
                report.problems.append(f"{lost} sessions were lost by jumps of the clock")
            # A bus that finds its own notes to be from the future.
            turned.turn(-HOUR)
            bus.kill()
            await bus.wait()
            await bus.start()
            restarts += 1
            await all_active(report, bus.address, [*names, *sending])
            await asyncio.sleep(SETTLE)

        await under_load(report, folder, bus, receivers=receivers, senders=senders, names=names, fault=fault)
        await end_bus(report, bus)
    report.done = f"{len(jumps)} jumps, {restarts} restart an hour back"
    return report


def _sessions_opened(bus: BusProcess) -> int:
    return len(re.findall("session opened", bus.log.read_text(encoding="utf-8", errors="replace")))


class _Probe:
    """What must end at its time and not with a jump: leases, messages, and the memory of what was handled."""

    def __init__(self, bus: BusProcess) -> None:
        limits = ClientLimits(connect_timeout=15.0)
        self._bus = bus
        self._leased = Agent("leased", bus=bus.address, limits=limits)
        self._short = Agent("leased-short", bus=bus.address, limits=limits)
        self._sender = Agent("prober", bus=bus.address, limits=limits)
        self._stack = contextlib.AsyncExitStack()
        self._waiting = 0
        self._handled: list[str] = []
        self._ends = 0.0
        """When the short lease ends, by the monotonic clock; 0 for none."""
        self._marks = 0
        self._leased.on()(self._handle)

    async def __aenter__(self) -> _Probe:
        for agent in (self._leased, self._short, self._sender):
            await self._stack.enter_async_context(agent)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _handle(self, message: object) -> None:
        self._handled.append(str(getattr(message, "content", "")))

    async def prepare(self) -> None:
        """Have a lease of ten minutes, and mail of ten minutes for an agent that does not come."""
        async with Operator(self._bus.address) as operator:
            await operator.ams.register(ABSENT)
        await self._leased.df.register(_offer("long", LONG_LEASE))
        await self._send()

    async def before(self, *, back: bool) -> None:
        """Have something handled; before a jump back, have a lease that ends soon."""
        self._marks += 1
        await self._sender.send("leased", "inform", f"mark {self._marks}", message_id=f"mark-{self._marks}")
        await until(lambda: f"mark {self._marks}" in self._handled, within=5.0)
        if back:
            # Not by the agent's own client, which would renew the lease.
            await DfClient(self._short.df._calls).register(_offer("short", SHORT_LEASE))
            self._ends = time.monotonic() + SHORT_LEASE

    async def after(self, report: Report, jump: int) -> None:
        """Look at all of it, after a jump."""
        to = f"after the clock jumped to {jump:+d} s"
        if not await self._leased.df.search("long"):
            report.problems.append(f"a lease of {LONG_LEASE:g} s ended {to}")
            await self._leased.df.register(_offer("long", LONG_LEASE))
        if self._ends:
            await asyncio.sleep(max(0.0, self._ends + SETTLE - time.monotonic()))
            if await self._leased.df.search("short"):
                report.problems.append(f"a lease of {SHORT_LEASE:g} s goes on {to}")
                await self._short.df.deregister()
            self._ends = 0.0
        async with Operator(self._bus.address) as operator:
            entries = await operator.ams.search(_named(ABSENT))
        if entries[0].mailbox_messages != self._waiting:
            gone = self._waiting - entries[0].mailbox_messages
            report.problems.append(f"{gone} messages with {LIFE:g} s to live expired {to}")
            self._waiting = entries[0].mailbox_messages
        try:
            await self._send()
        except DeliveryRefused as refused:
            report.problems.append(f"a message with {LIFE:g} s to live was refused {to}: {refused.outcome}")
        again = await self._sender.send("leased", "inform", f"mark {self._marks}", message_id=f"mark-{self._marks}")
        if not again:
            report.problems.append(f"a message handled seconds ago was taken for a new one {to}")

    async def _send(self) -> None:
        await self._sender.send(ABSENT, "inform", "of use for a while", expires_in=LIFE)
        self._waiting += 1


def _offer(kind: str, lease: float) -> DFAgentDescription:
    return DFAgentDescription(services=(ServiceDescription(type=kind),), lease_seconds=lease)


def _named(name: str) -> AMSAgentDescription:
    return AMSAgentDescription(name=name)


SCENARIOS: dict[str, Scenario] = {"clock": clock}
