"""How every run under load ends: clients stop, what is left is read, the bus stops, and the histories are judged.

Owns: the order of these steps. Leaves to others: the verdict (`tests.chaos.checker`), the fault (its own module).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from gagent_grpc import AMSAgentDescription, Operator
from tests.chaos.bus_process import BusProcess
from tests.chaos.checker import Findings, check
from tests.chaos.clients import Client, collect, stop_all
from tests.chaos.history import histories
from tests.chaos.scenario import Report


async def end_run(
    report: Report,
    bus: BusProcess,
    *,
    senders: Sequence[Client],
    receivers: Sequence[Client],
    folder: Path,
    absent: Sequence[str] = (),
) -> Findings:
    """End a run on a bus that serves, and put what it came to into ``report``.

    Args:
        report: Gets numbers and problems.
        bus: Runs; does not afterwards.
        senders: Told to stop first, so that each message gets its receipt.
        receivers: Told to stop next, with mail left: what is stored then is counted, too.
        folder: Where the histories are.
        absent: Agents without a client that may have mail all the same. Those of the clients, senders too, which hear of
            what was given up, are known.
    """
    report.problems += await stop_all([one for one in senders if one.running])
    report.problems += await stop_all([one for one in receivers if one.running])
    agents = {name for one in (*senders, *receivers) for name in one.agents}
    report.problems += await collect(folder, bus.address, sorted(agents.union(absent)))
    await end_bus(report, bus)
    # Reading hundreds of thousands of lines takes a while, and whoever watches the time must be able to interrupt.
    findings = await asyncio.to_thread(check, histories(folder))
    findings.into(report)
    return findings


async def left_after(bus: BusProcess, names: Sequence[str], *, within: float = 30.0) -> int:
    """Wait until the mailboxes of ``names`` are empty; return how many messages are left in them after ``within`` seconds."""
    deadline = time.monotonic() + within
    async with Operator(bus.address) as operator:
        while True:
            left = 0
            for name in names:
                entries = await operator.ams.search(AMSAgentDescription(name=name))
                left += sum(entry.mailbox_messages for entry in entries)
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.1)


async def end_bus(report: Report, bus: BusProcess) -> None:
    """Stop the bus politely and look at what it leaves: exit code, store and log."""
    code = await bus.stop()
    if code:
        report.problems.append(f"the bus ended with {code}")
    checked = await asyncio.to_thread(bus.quick_check)
    if checked != "ok":
        report.problems.append(f"quick_check: {checked}")
    complaints = bus.complaints()
    if complaints:
        report.problems.append(f"{len(complaints)} tracebacks in the log of the bus ({complaints[0][:200]})")
