"""A network that lets nothing through, both ways or one way: the bus and its clients in two network namespaces.

Owns: the namespaces and the wire between them, made here and removed whatever happens. The clients' side of a run is a process
of its own inside its namespace: whatever it starts is there, too, and it reaches the bus over the wire alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from gagent_grpc.config import BusLimits
from tests.chaos import limited_bus
from tests.chaos.bus_process import GAGENT, ROOT, BusProcess
from tests.chaos.clients import Client, names_of
from tests.chaos.ending import end_bus
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.traffic import LOOK, all_active, under_load

BUS_ADDRESS = "10.213.0.1"
FAR_ADDRESS = "10.213.0.2"
"""Addresses in the two namespaces; nothing outside of them is ever reached by these."""
DEVICE = "wire0"
NOTICED_WITHIN = 20.0 + 5.0
"""Seconds after which both sides have to know that the other one is gone: keepalive and its time-out."""
SHORT_HEARTBEAT = 2.0
"""Seconds between heartbeats in the scaled runs, of which three may be missed."""
SLACK = 2.0
"""Seconds that looking may take: the bus is asked by a command of its own."""
RUN_WITHIN = 420.0
BOTH, TO_BUS, FROM_BUS = "both ways", "to the bus", "from the bus"


class NotHere(Exception):
    """This machine, or this user, has no network namespaces."""


class Wire:
    """Two namespaces with one wire between them."""

    def __init__(self, name: str) -> None:
        self.bus = f"gagent-{name}-bus"
        self.far = f"gagent-{name}-far"

    async def lay(self) -> None:
        """Make the namespaces and the wire.

        Raises:
            NotHere: It cannot be done here.
        """
        for namespace in (self.bus, self.far):
            await _ip("netns", "add", namespace)
        await _ip("link", "add", DEVICE, "netns", self.bus, "type", "veth", "peer", "name", DEVICE, "netns", self.far)
        for namespace, address in ((self.bus, BUS_ADDRESS), (self.far, FAR_ADDRESS)):
            await _ip("-n", namespace, "addr", "add", f"{address}/30", "dev", DEVICE)
            for device in (DEVICE, "lo"):
                await _ip("-n", namespace, "link", "set", device, "up")
        # Whatever a fault needs, before there is a fault.
        await self.drop(BOTH)
        await self.heal()

    async def drop(self, ways: str) -> None:
        """Let nothing through: each packet is thrown away where it should leave, and nobody is told."""
        for namespace in self._senders(ways):
            await _run("tc", "-n", namespace, "qdisc", "replace", "dev", DEVICE, "root", "blackhole")

    async def heal(self) -> None:
        """Let everything through again."""
        for namespace in self._senders(BOTH):
            with contextlib.suppress(NotHere):
                await _run("tc", "-n", namespace, "qdisc", "del", "dev", DEVICE, "root")

    async def remove(self) -> None:
        """Remove the namespaces, and with them the wire; idempotent."""
        for namespace in (self.bus, self.far):
            with contextlib.suppress(NotHere):
                await _ip("netns", "del", namespace)

    def _senders(self, ways: str) -> list[str]:
        return {BOTH: [self.bus, self.far], TO_BUS: [self.far], FROM_BUS: [self.bus]}[ways]


@contextlib.asynccontextmanager
async def _wire() -> AsyncIterator[Wire]:
    wire = Wire(os.urandom(3).hex())
    try:
        await wire.lay()
        yield wire
    finally:
        await wire.remove()


async def _ip(*arguments: str) -> None:
    await _run("ip", *arguments)


async def _run(*command: str) -> None:
    """Run a command to its end.

    Raises:
        NotHere: There is none of that name, or it fails.
    """
    if shutil.which(command[0]) is None:
        raise NotHere(f"no command {command[0]}")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise NotHere(f"{' '.join(command)}: {said.decode(errors='replace').strip()}")


# ---- outside: the namespaces, and the process that runs the clients' side ----------------------------------------------


async def partition(scale: Scale) -> Report:
    """Cut the network in both directions, with the shipped time-outs. Seen to fail without keepalive and heartbeats."""
    return await _partitioned(scale, "network partition", [BOTH] * (3 if scale.long else 1), scaled=False)


async def partition_one_way(scale: Scale) -> Report:
    """Cut the network in one direction and then in the other; in the short form with short heartbeats."""
    return await _partitioned(scale, "network partition one way", [TO_BUS, FROM_BUS], scaled=not scale.long)


async def _partitioned(scale: Scale, fault: str, ways: Sequence[str], *, scaled: bool) -> Report:
    try:
        async with _wire() as wire:
            return await _inside(wire, scale, fault, ways, scaled=scaled)
    except NotHere as reason:
        return Report(fault, f"not run here: {reason}")


async def _inside(wire: Wire, scale: Scale, fault: str, ways: Sequence[str], *, scaled: bool) -> Report:
    """Have the run made by a process in the namespace of the clients; return its report."""
    plan = {"wire": wire.bus[7:-4], "folder": str(scale.folder), "seed": scale.seed, "fault": fault}
    plan |= {"ways": list(ways), "scaled": scaled}
    command = ("ip", "netns", "exec", wire.far, sys.executable, "-m", "tests.chaos.partition", json.dumps(plan))
    log = scale.folder / "partition.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        try:
            async with asyncio.timeout(RUN_WITHIN):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                # Politely, since it has processes of its own to end.
                process.terminate()
                await process.wait()
    if process.returncode:
        tail = log.read_text(errors="replace").splitlines()[-5:]
        return Report(fault, "", problems=[f"the run ended with {process.returncode}: {' '.join(tail)}"])
    return Report(**json.loads(said.splitlines()[-1]))


# ---- inside: the run itself --------------------------------------------------------------------------------------------


async def _cut(wire: Wire, folder: Path, seed: int, fault: str, ways: Sequence[str], *, scaled: bool) -> Report:
    report = Report(fault, "")
    limits = {"heartbeat_interval": SHORT_HEARTBEAT} if scaled else {}
    within = SHORT_HEARTBEAT * (BusLimits().missed_heartbeats + 1) if scaled else NOTICED_WITHIN
    names, sending = names_of("r", 3), names_of("s", 2)
    bus = BusProcess(
        folder,
        program=("ip", "netns", "exec", wire.bus, *(limited_bus.program(limits) if scaled else GAGENT)),
        arguments=["--insecure"],
    )
    bus.address = f"{BUS_ADDRESS}:50051"
    times: list[str] = []
    async with bus:
        receivers = [
            Client.receiver(folder, bus.address, names[:2], kind="sdk"),
            Client.receiver(folder, bus.address, names[2:], kind="sdk"),
            # Where nothing is under way no packet is missed, so that only pings and heartbeats tell.
            Client.receiver(folder, bus.address, ["idle"], kind="sdk"),
        ]
        agents = [*names, *sending, "idle"]
        senders = [
            Client.sender(folder, bus.address, [name], to=names, rate=150, seed=seed + number)
            for number, name in enumerate(sending)
        ]

        async def make() -> None:
            for way in ways:
                await wire.drop(way)
                bus_noticed, clients_noticed = await asyncio.gather(
                    _bus_notices(report, wire, bus, agents, within),
                    _clients_notice(report, [*receivers, *senders], within),
                )
                await wire.heal()
                back = await all_active(report, bus.address, agents)
                times.append(
                    f"{way}: the bus noticed after {bus_noticed:.0f} s, clients after {clients_noticed:.0f} s, "
                    f"all active {back:.1f} s after the end"
                )
                await asyncio.sleep(1.0)

        await under_load(report, folder, bus, receivers=receivers, senders=senders, names=names, fault=make)
        await end_bus(report, bus)
    report.done = "; ".join(times)
    return report


async def _bus_notices(report: Report, wire: Wire, bus: BusProcess, names: Sequence[str], within: float) -> float:
    """Wait until the AMS has none of the agents as active; it is asked from the side of the bus."""
    began = time.monotonic()
    while True:
        process = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", wire.bus, *GAGENT, "ps", "--all", "--json", "--bus", bus.address),
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        said, _ = await process.communicate()
        entries: list[dict[str, Any]] = json.loads(said or b"[]")
        states = {entry["name"].partition("@")[0]: entry["state"] for entry in entries}
        took = time.monotonic() - began
        active = [name for name in names if states.get(name, "active") == "active"]
        if not active or took > within + SLACK:
            if active:
                report.problems.append(f"the bus has {active} as active after {took:.0f} s without a network")
            return took
        await asyncio.sleep(LOOK)


async def _clients_notice(report: Report, clients: Sequence[Client], within: float) -> float:
    """Wait until no client believes in its connection any more."""
    began = time.monotonic()
    # Those of the moment of the cut, since a client may dial again at once.
    before = {one.name: _connections(one) for one in clients}
    while True:
        took = time.monotonic() - began
        believing = [one.name for one in clients if _connections(one) & before[one.name]]
        if not believing or took > within + SLACK:
            if believing:
                report.problems.append(f"{believing} hold on to a dead connection after {took:.0f} s")
            return took
        await asyncio.sleep(LOOK)


def _connections(client: Client) -> set[int]:
    """Return the local ports of the established connections of a client."""
    found = psutil.Process(client.pid).net_connections("tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_ESTABLISHED}


def main() -> None:
    """Make the run that the argument describes, inside the namespace of the clients; print its report."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.partition", description=main.__doc__)
    parser.add_argument("plan", type=json.loads)
    plan = parser.parse_args().plan
    report = asyncio.run(_told(plan))
    print(json.dumps(dataclasses.asdict(report)))


async def _told(plan: dict[str, Any]) -> Report:
    """Make a run; SIGTERM ends it together with all that it has started."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    wire, folder = Wire(plan["wire"]), Path(plan["folder"])
    return await _cut(wire, folder, plan["seed"], plan["fault"], plan["ways"], scaled=plan["scaled"])


SCENARIOS: dict[str, Scenario] = {"partition": partition, "partition_one_way": partition_one_way}

if __name__ == "__main__":
    main()
