"""More than anybody needs: streams opened and cancelled, connections that say nothing, sessions that do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import resource
import time
from collections.abc import Iterator
from typing import Any

import grpc

from gagent_grpc import Agent, AMSAgentDescription, ClientLimits, Operator
from gagent_grpc.config import MIB, BusLimits
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc
from tests.chaos.bus_process import BusProcess
from tests.chaos.clients import names_of
from tests.chaos.ending import end_bus
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.soak import WatchedBus
from tests.chaos.traffic import LOOK, Pings, until

BYTES_PER_CANCEL = 200
"""What one cancelled stream may leave behind for good, in bytes."""
SLACK_BYTES = 8 * MIB
"""What allocators keep after a flood of any size."""
WORKERS = 100
"""Streams that are open at the same time in the storm of cancels."""
CHANNELS = 10
SILENT = 1_000
"""Connections that say nothing, or nothing that is HTTP/2."""
SILENT_BYTES = 32 * MIB
HANDSHAKE_WITHIN = 10.0 + 2.0
"""Seconds after which a connection without a handshake has to be closed, and a look."""
P99_WITHIN = 0.25
"""Seconds that 99 of 100 requests of a good client may take at most meanwhile."""
BYTES_PER_SESSION = 64 * 1024
"""What one idle session may take on the bus."""
STOPPED_WITHIN = 3.0
"""Seconds within which a bus without any session has to stop; one that is left would take the whole grace."""


# ---- cancelled streams -------------------------------------------------------------------------------------------------


async def cancel_storm(scale: Scale) -> Report:
    """Open and cancel streams: before hello, with the hello on its way, and after the welcome.

    Seen to fail, in the long form, when the bus kept 3 kB of each session that had ended.
    """
    report = Report("cancel storm", "")
    count = 12_000 if scale.long else 2_000
    async with WatchedBus(scale.folder) as bus:
        untouched = await bus.sample()
        async with _Storm(bus.address, scale.seed) as storm:
            await storm.rage(count // 2)
            before = bus.rss
            began = time.monotonic()
            await storm.rage(count)
            seconds = time.monotonic() - began
            left = await _connected(bus.address, storm.names)
            await until(lambda: bus.rss - before < SLACK_BYTES, within=3.0)
            grown = bus.rss - before
        after = await bus.sample()
        if after.tasks > untouched.tasks:
            report.problems.append(f"{after.tasks - untouched.tasks} handlers or tasks are left")
        if await until(lambda: bus.descriptors <= untouched.descriptors, within=3.0) is None:
            report.problems.append(f"{bus.descriptors - untouched.descriptors} descriptors are left")
        if left:
            report.problems.append(f"{len(left)} sessions are left: {left[:5]}")
        # The short form has not warmed all of the allocators up.
        if grown > BYTES_PER_CANCEL * count + SLACK_BYTES // (2 if scale.long else 1):
            report.problems.append(f"the bus grew by {grown / MIB:.1f} MiB, {grown / count:,.0f} bytes per cancel")
        if scale.long:
            await _ephemeral_gone(report, bus, storm.names)
        await _stops_at_once(report, bus)
    report.done = (
        f"{count:,} streams in {seconds:.0f} s, {storm.welcomed:,} of them after the welcome; the bus grew by "
        f"{grown / MIB:.1f} MiB, {after.tasks - untouched.tasks} tasks and {len(left)} sessions left"
    )
    return report


class _Storm:
    """Streams that are opened and cancelled by a number of workers, each with a name of its own."""

    def __init__(self, bus: str, seed: int) -> None:
        self.names = names_of("storm", WORKERS)
        self.welcomed = 0
        self._bus = bus
        self._random = random.Random(seed)
        self._tokens = dict.fromkeys(self.names, "")
        self._stack = contextlib.AsyncExitStack()
        self._stubs: list[Any] = []

    async def __aenter__(self) -> _Storm:
        for _ in range(CHANNELS):
            channel = grpc.aio.insecure_channel(self._bus, options=[("grpc.use_local_subchannel_pool", 1)])
            self._stubs.append(bus_service_pb2_grpc.BusServiceStub(await self._stack.enter_async_context(channel)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def rage(self, count: int) -> None:
        """Open and cancel ``count`` streams."""
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(self.names):
                group.create_task(self._work(name, self._stubs[number % CHANNELS], count // WORKERS))

    async def _work(self, name: str, stub: Any, count: int) -> None:
        for _ in range(count):
            call = stub.OpenSession()
            moment = self._random.random()
            try:
                if moment < 1 / 3:
                    # The stream opens by itself; when it is cancelled the bus waits for the hello, or has not seen it yet.
                    await asyncio.sleep(self._random.uniform(0.0, 0.02))
                    continue
                hello = pb.Hello(protocol_version=1, agent=name, resume_token=self._tokens[name], ephemeral=True)
                await call.write(pb.OpenSessionRequest(hello=hello))
                if moment > 2 / 3:
                    frame = await call.read()
                    if frame is not grpc.aio.EOF:
                        self._tokens[name] = frame.welcome.resume_token
                        self.welcomed += 1
            except grpc.aio.AioRpcError:
                # The name is still held by a stream of which the bus does not know yet that it was cancelled.
                pass
            finally:
                call.cancel()


async def _connected(bus: str, names: list[str]) -> list[str]:
    """Return which agents have a session, after a while in which the bus may notice that they have none."""
    began = time.monotonic()
    async with Operator(bus) as operator:
        while True:
            found = [await operator.ams.search(AMSAgentDescription(name=name)) for name in names]
            left = [entries[0].name for entries in found if entries and entries[0].connected]
            if not left or time.monotonic() - began > 5.0:
                return left
            await asyncio.sleep(LOOK)


async def _ephemeral_gone(report: Report, bus: BusProcess, names: list[str]) -> None:
    """Wait until the names have ended, as ephemeral ones do."""
    await asyncio.sleep(BusLimits().resume_grace + 3.0)
    async with Operator(bus.address) as operator:
        left = [name for name in names if await operator.ams.search(AMSAgentDescription(name=name))]
    if left:
        report.problems.append(f"{len(left)} ephemeral names are left: {left[:5]}")


async def _stops_at_once(report: Report, bus: BusProcess) -> None:
    """Stop the bus: one with a handler or a session left waits for it."""
    began = time.monotonic()
    await end_bus(report, bus)
    took = time.monotonic() - began
    if took > STOPPED_WITHIN:
        report.problems.append(f"the bus took {took:.1f} s to stop, though nobody is connected")


# ---- silent connections ------------------------------------------------------------------------------------------------


async def silent_connections(scale: Scale) -> Report:
    """Connect and say nothing, or garbage, or half of a greeting; a good client must not feel it.

    Seen to fail with the time-out that gRPC has for a handshake by itself.
    """
    report = Report("silent connections", "")
    chance = random.Random(scale.seed)
    with _many_descriptors():
        async with BusProcess(scale.folder) as bus:
            async with Pings(bus.address) as pings:
                await asyncio.sleep(1.0)
                before, sockets = bus.rss, bus.sockets
                closed: list[float] = []
                most = 0
                began = time.monotonic()
                for _ in range(3 if scale.long else 1):
                    async with asyncio.TaskGroup() as group:
                        flood = [group.create_task(_say_nothing(bus.address, chance)) for _ in range(SILENT)]
                        while not all(task.done() for task in flood):
                            most = max(most, bus.rss)
                            await asyncio.sleep(LOOK)
                    closed += [task.result() for task in flood]
                ended = time.monotonic()
                if await until(lambda: bus.sockets <= sockets, within=2.0) is None:
                    report.problems.append(f"{bus.sockets - sockets} sockets more than before")
                p99 = pings.p99(began, ended)
            await _stops_at_once(report, bus)
    late = [seconds for seconds in closed if seconds > HANDSHAKE_WITHIN]
    if late:
        report.problems.append(f"{len(late)} connections were open for more than {HANDSHAKE_WITHIN:g} s")
    if most - before > SILENT_BYTES:
        report.problems.append(f"the bus grew by {(most - before) / MIB:.1f} MiB")
    if p99 > P99_WITHIN or pings.failures:
        report.problems.append(f"p99 of a good client is {p99 * 1000:.0f} ms, {len(pings.failures)} failures")
    report.done = (
        f"{len(closed):,} connections, the last one closed after {max(closed):.1f} s; the bus grew by "
        f"{(most - before) / MIB:.1f} MiB, p99 of a good client {p99 * 1000:.0f} ms"
    )
    return report


async def _say_nothing(bus: str, chance: random.Random) -> float:
    """Connect, say nothing of use, and wait to be thrown out; return after how many seconds that came."""
    host, _, port = bus.rpartition(":")
    greeting = chance.choice((b"", b"", b"", b"", os.urandom(64), b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n"))
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        with contextlib.suppress(OSError):
            writer.write(greeting)
            async with asyncio.timeout(2 * HANDSHAKE_WITHIN):
                # The bus may send its settings before it throws us out.
                while await reader.read(4096):
                    pass
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()
    return time.monotonic() - began


@contextlib.contextmanager
def _many_descriptors() -> Iterator[None]:
    """Let this process, and the bus that it starts, open as many descriptors as they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- idle sessions -----------------------------------------------------------------------------------------------------


async def idle_sessions(scale: Scale) -> Report:
    """Have many agents connected that do nothing, for longer than a heartbeat takes.

    Seen to fail, in the long form, with the pings that gRPC allows by itself.
    """
    report = Report("idle sessions", "")
    count = 1_000 if scale.long else 200
    seconds = 60.0 if scale.long else BusLimits().heartbeat_interval + 3.0
    names = names_of("idle", count)
    with _many_descriptors():
        async with BusProcess(scale.folder) as bus:
            async with Pings(bus.address, every=0.05) as pings, contextlib.AsyncExitStack() as stack:
                await asyncio.sleep(1.0)
                before = bus.rss
                limits = ClientLimits(connect_timeout=20.0)
                for start in range(0, count, 20):
                    agents = [Agent(name, bus=bus.address, limits=limits) for name in names[start : start + 20]]
                    await asyncio.gather(*map(stack.enter_async_context, agents))
                began = time.monotonic()
                pinging = asyncio.create_task(_ping_often(bus.address, seconds))
                await asyncio.sleep(seconds)
                lasts = await pinging
                each = (bus.rss - before) / count
                p99 = pings.p99(began, time.monotonic())
                opened = len(re.findall(r"session opened: idle\d", bus.log.read_text(encoding="utf-8")))
            await _stops_at_once(report, bus)
    if opened != count:
        report.problems.append(f"{opened - count} idle sessions were lost")
    if not lasts:
        report.problems.append("a client that pings every 10 s was thrown out")
    if each * count > BYTES_PER_SESSION * count + SLACK_BYTES:
        report.problems.append(f"each idle session takes {each / 1024:.0f} KiB")
    if p99 > P99_WITHIN or pings.failures:
        report.problems.append(f"p99 of a good client is {p99 * 1000:.0f} ms, {len(pings.failures)} failures")
    report.done = (
        f"{count:,} sessions idle for {seconds:.0f} s, {each / 1024:.0f} KiB each on the bus, {opened - count} lost, "
        f"p99 of a good client {p99 * 1000:.0f} ms"
    )
    return report


async def _ping_often(bus: str, seconds: float) -> bool:
    """Hold a connection that pings as often as the bus allows, and has no call whose data would excuse that; return if it lasts."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with grpc.aio.insecure_channel(bus, options=options) as channel:
        await channel.channel_ready()
        changed = asyncio.create_task(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        await asyncio.wait({changed}, timeout=seconds)
        lasts = not changed.done()
        changed.cancel()
        await asyncio.wait({changed})
        return lasts


SCENARIOS: dict[str, Scenario] = {
    "cancel_storm": cancel_storm,
    "silent_connections": silent_connections,
    "idle_sessions": idle_sessions,
}
