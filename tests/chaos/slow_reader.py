"""A receiver that stops reading: it costs itself, its senders hear that its mailbox is full, and nothing of its mail is lost.

Owns: the receiver that never reads, `python -m tests.chaos.slow_reader HOST:PORT NAME`, and who floods it. It says heartbeats, so
that nothing but its silence about its deliveries tells that something is wrong with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from gagent_grpc import ACLMessage, Agent, AgentIdentifier, AMSAgentDescription, ClientLimits, Operator, Performative
from gagent_grpc.config import MIB, BusLimits
from gagent_grpc.envelope import Outcome
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc
from tests.chaos.bus_process import ROOT, BusProcess, clean_environment
from tests.chaos.clients import Client, names_of
from tests.chaos.ending import end_bus
from tests.chaos.history import History, body_hash, history_path, read
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.traffic import Pings, all_active, under_load, until

STALLED = "stalled"
OTHERS = 49
MESSAGES = 20_000
CONTENT_BYTES = 20
BATCH = 500
GROWN_BYTES = 64 * MIB
"""What the bus may grow by, its full mailbox included."""
RATIO = 2.0
"""How much higher the p99 of others may get meanwhile ..."""
P99_WITHIN = 0.25
"""... where it is not below these seconds anyway, which a busy machine alone can cost."""
FULL_FOR = 8.0
"""Seconds that the receiver reads nothing with a full mailbox."""
ALL_WITHIN = 30.0
"""Seconds in which a new receiver has got everything."""


class _Flood:
    """An agent that sends numbered messages to the stalled one, in order, and writes down what becomes of them."""

    def __init__(self, bus: BusProcess, folder: Path) -> None:
        self.agent = Agent("flood", bus=bus.address, limits=ClientLimits(connect_timeout=15.0))
        self.accepted = 0
        self.refusals = 0
        self.others: set[str] = set()
        """Outcomes that are neither acceptance nor MAILBOX_FULL, and refusals that do not say when to try again."""
        self._bus = bus
        self._history = History(history_path(folder, "flood"), kind="sender")

    def close(self) -> None:
        """Close the history, as of a sender that has ended as it was to."""
        self._history.__exit__(None, None, None)

    async def fill(self, *, up_to: int) -> None:
        """Send until a message is refused, or ``up_to`` are accepted. Those behind a refused one are refused as well."""
        refused = 0
        while not refused and self.accepted < up_to:
            refused = await self._send(min(BATCH, up_to - self.accepted))

    async def rest(self, *, up_to: int) -> None:
        """Send what is left, no faster than the mailbox is emptied, so that none is refused and they stay in order."""
        room = BusLimits().mailbox_messages - BATCH
        async with Operator(self._bus.address) as operator:
            while self.accepted < up_to:
                entries = await operator.ams.search(AMSAgentDescription(name=STALLED))
                if entries[0].mailbox_messages <= room:
                    await self._send(min(BATCH, up_to - self.accepted))
                else:
                    await asyncio.sleep(0.02)

    async def _send(self, count: int) -> int:
        """Send the next messages; return how many were refused."""
        numbers = range(self.accepted + 1, self.accepted + count + 1)
        messages = []
        for number in numbers:
            content = f"flood-{number:06} ".ljust(CONTENT_BYTES, "x")
            messages.append(ACLMessage(Performative.INFORM, receivers=(AgentIdentifier(STALLED),), content=content))
            self._history.sent(_mark(number), STALLED, sender=self.agent.name, number=number, body=body_hash(content))
        exceptions = dict(await self.agent.send_all(messages, when_full="fail"))
        for place, number in enumerate(numbers):
            receipt = exceptions.get(place)
            outcome = Outcome.ACCEPTED if receipt is None else receipt.outcome
            self._history.receipt(_mark(number), STALLED, outcome.name, "" if receipt is None else receipt.detail)
            if receipt is not None and (outcome is not Outcome.MAILBOX_FULL or receipt.retry_after is None):
                self.others.add(f"{outcome.name}, retry after {receipt.retry_after}")
        self.accepted += count - len(exceptions)
        self.refusals += len(exceptions)
        return len(exceptions)


def _mark(number: int) -> str:
    return f"flood-{number:06}"


async def slow_reader(scale: Scale) -> Report:
    """Have one of 50 receivers read nothing while it is sent more than its mailbox holds; then kill it, and have it come back.

    Seen to fail when the bus delivered twice the window.
    """
    return await _stalled(scale, "slow reader, killed", kill_bus=False)


async def slow_reader_bus_killed(scale: Scale) -> Report:
    """The same, with the bus killed in the place of the reader."""
    return await _stalled(scale, "slow reader, bus killed", kill_bus=True)


async def _stalled(scale: Scale, fault: str, *, kill_bus: bool) -> Report:
    report = Report(fault, "")
    folder = scale.folder
    names = names_of("r", OTHERS)
    messages = MESSAGES * (5 if scale.long else 1)
    said: list[str] = []
    kept = 0
    async with BusProcess(folder) as bus, contextlib.AsyncExitStack() as stack:
        flood = _Flood(bus, folder)
        stack.callback(flood.close)
        await stack.enter_async_context(flood.agent)
        pings = await stack.enter_async_context(Pings(bus.address))
        receivers = [Client.receiver(folder, bus.address, names, kind="sdk")]
        senders = [Client.sender(folder, bus.address, names_of("s", 2), to=names, rate=300, seed=scale.seed)]
        # It comes for the mail of the one that did not read.
        reader = Client.receiver(folder, bus.address, [STALLED], kind="raw", client="reader")

        async def fault_under_load() -> None:
            nonlocal kept
            base = pings.p99(time.monotonic() - 3.0, time.monotonic())
            before = bus.rss
            async with _never_reads(bus.address, folder) as never:
                await all_active(report, bus.address, [STALLED])
                began = time.monotonic()
                await flood.fill(up_to=messages)
                await asyncio.sleep(FULL_FOR)
                grown = bus.rss - before
                p99 = pings.p99(began, time.monotonic())
                kept = flood.accepted
                said.append(
                    f"{kept:,} of {kept + flood.refusals:,} accepted without a reader; the bus grew by "
                    f"{grown / MIB:.1f} MiB, p99 of others {base * 1000:.0f} to {p99 * 1000:.0f} ms"
                )
                if kill_bus:
                    bus.kill()
                    await bus.wait()
                never.kill()
                await never.wait()
            if not flood.refusals:
                report.problems.append(f"{kept:,} messages were accepted, and none was refused")
            if grown > GROWN_BYTES:
                report.problems.append(f"the bus grew by {grown / MIB:.1f} MiB")
            if p99 > max(RATIO * base, P99_WITHIN):
                report.problems.append(f"the p99 of others rose from {base * 1000:.0f} to {p99 * 1000:.0f} ms")
            if kill_bus:
                await bus.start()
            async with reader:
                began = time.monotonic()
                await flood.rest(up_to=messages)
                if await until(lambda: _handled(reader.history) >= messages, within=ALL_WITHIN) is None:
                    report.problems.append(
                        f"{_handled(reader.history):,} of {messages:,} messages came to a new reader"
                    )
                said.append(f"{messages:,} at a new reader within {time.monotonic() - began:.1f} s")

        await under_load(
            report, folder, bus, receivers=receivers, senders=senders, names=[*names, STALLED], fault=fault_under_load
        )
        await end_bus(report, bus)
    if flood.others:
        report.problems.append(f"not refused as a full mailbox is: {sorted(flood.others)}")
    # What was stored before an unclean stop is flagged as well, delivered or not.
    said.append(_flagged(report, reader.history, at_most=kept if kill_bus else BusLimits().window_messages))
    report.done = "; ".join(said)
    return report


def _flagged(report: Report, path: Path, *, at_most: int) -> str:
    """Look at how many came flagged: those that were under way to the reader that did not read, so no more than its window."""
    flagged = sum(event["redelivered"] for event in read(path) if event["e"] == "delivered")
    if flagged > at_most:
        report.problems.append(f"{flagged:,} messages were flagged, which is more than {at_most:,} under way at once")
    return f"{flagged:,} of them flagged, at most {at_most:,} may be"


def _handled(path: Path) -> int:
    """Return how many deliveries a raw receiver has acknowledged so far."""
    if not path.exists():
        return 0
    return path.read_bytes().count(b'"e":"settled"')


# ---- the receiver that never reads -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _never_reads(bus: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a receiver that never reads, in a process of its own, while the block lasts."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.chaos.slow_reader", bus, STALLED),
        cwd=ROOT,
        env=clean_environment(folder),
        # Its end is that of the process, should this one be killed.
        stdin=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


async def _never_read(bus: str, name: str) -> None:
    """Open a session with the whole default window, and say heartbeats until stdin ends."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with grpc.aio.insecure_channel(bus) as channel:
        call = bus_service_pb2_grpc.BusServiceStub(channel).OpenSession()
        await call.write(pb.OpenSessionRequest(hello=pb.Hello(protocol_version=1, agent=name)))
        while not ended.done():
            with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
                await call.write(pb.OpenSessionRequest(heartbeat=pb.Heartbeat()))
            await asyncio.wait({ended}, timeout=2.0)


SCENARIOS: dict[str, Scenario] = {
    "slow_reader": slow_reader,
    "slow_reader_bus_killed": slow_reader_bus_killed,
}

if __name__ == "__main__":
    asyncio.run(_never_read(*sys.argv[1:]))
