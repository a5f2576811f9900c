"""A disk that fills up under a bus: what cannot be saved is refused, at once and in words, and nothing that was saved is lost.

Owns: the small file system, which is a mount of its own and is gone afterwards, and filling it, once by somebody else's file and
once by mail alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from gagent_grpc import ACLMessage, Agent, AgentIdentifier, ClientLimits, DeliveryRefused, Operator, Performative
from gagent_grpc.config import MIB
from tests.chaos.bus_process import BusProcess
from tests.chaos.clients import Client, names_of
from tests.chaos.ending import end_bus, left_after
from tests.chaos.history import History, body_hash, histories, history_path, read
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.traffic import EMPTY_WITHIN, all_active, under_load

DISK_BYTES = 8 * MIB
MESSAGE_BYTES = 10_000
REFUSED_WITHIN = 1.0
"""Seconds within which the sender of what cannot be saved hears that."""
RECOVERED_WITHIN = 5.0
"""Seconds after which the bus accepts again, once there is room."""
FULL_FOR = 5.0
ABSENT = "absent"
"""An agent that does not come for its mail until it is told to."""


class NotHere(Exception):
    """This user may not mount a file system."""


@contextlib.asynccontextmanager
async def small_disk(folder: Path) -> AsyncIterator[Path]:
    """Have a file system of its own at ``folder``, of 8 MiB, while the block lasts.

    Raises:
        NotHere: It cannot be mounted.
    """
    await asyncio.to_thread(folder.mkdir)
    await _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "gagent-chaos", str(folder))
    try:
        yield folder
    finally:
        try:
            await _run("umount", str(folder))
        except NotHere:
            # Somebody still looks at it; it goes when they do.
            await _run("umount", "--lazy", str(folder))


async def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise NotHere(f"no command {command[0]}")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise NotHere(f"{' '.join(command)}: {said.decode(errors='replace').strip()}")


class _Filler:
    """An agent that sends large messages one by one, writes down what becomes of each, and knows how long it took."""

    def __init__(self, bus: str, history: History) -> None:
        self.agent = Agent("filler", bus=bus, limits=ClientLimits(connect_timeout=10.0))
        self._history = history
        self._numbers = itertools.count(1)

    async def send(self) -> tuple[DeliveryRefused | None, float]:
        """Send one message to the absent agent; return why it was refused, None when it was not, and after how long."""
        number = next(self._numbers)
        mark = f"filler-{number}"
        content = f"{mark} {'x' * MESSAGE_BYTES}"
        message = ACLMessage(Performative.INFORM, receivers=(AgentIdentifier(ABSENT),), content=content)
        self._history.sent(mark, ABSENT, sender=self.agent.name, number=number, body=body_hash(content))
        began = time.monotonic()
        try:
            await self.agent.send_message(message, message_id=mark)
        except DeliveryRefused as refused:
            self._history.receipt(mark, ABSENT, refused.outcome, refused.detail)
            return refused, time.monotonic() - began
        self._history.receipt(mark, ABSENT, "ACCEPTED")
        return None, time.monotonic() - began

    async def fill(self, report: Report) -> int:
        """Send until the disk is full; return how many messages were accepted, and report a refusal that is not as promised."""
        for accepted in range(2 * DISK_BYTES // MESSAGE_BYTES):
            refused, took = await self.send()
            if refused is not None:
                receipt: Any = refused.receipts[0]
                if refused.outcome != "MAILBOX_FULL" or receipt.retry_after is None:
                    report.problems.append(
                        f"a full disk was told as {refused.outcome}, retry after {receipt.retry_after}: {refused.detail}"
                    )
                if took > REFUSED_WITHIN:
                    report.problems.append(f"a refusal took {took:.1f} s")
                return accepted
        report.problems.append("the disk does not get full")
        return 0

    async def recover(self, report: Report, after: str) -> float:
        """Send until a message is accepted; return the seconds that it took, and report when it takes too long."""
        began = time.monotonic()
        while time.monotonic() - began < 2 * RECOVERED_WITHIN:
            refused, _ = await self.send()
            took = time.monotonic() - began
            if refused is None:
                if took > RECOVERED_WITHIN:
                    report.problems.append(f"accepts again only {took:.1f} s after {after}")
                return took
            await asyncio.sleep(0.05)
        report.problems.append(f"does not accept again after {after}")
        return 2 * RECOVERED_WITHIN


async def disk_full(scale: Scale) -> Report:
    """Fill the disk of the store under load, with a file and with mail, and make room again, in both ways.

    Seen to fail when the store had no reserve: then a settle found no room either, for ever.
    """
    try:
        async with small_disk(scale.folder / "disk") as disk:
            return await _filled(scale, disk)
    except NotHere as reason:
        return Report("disk full", f"not run here: {reason}")


async def _filled(scale: Scale, disk: Path) -> Report:
    report = Report("disk full", "")
    folder = scale.folder
    names = names_of("r", 2)
    said: list[str] = []
    async with BusProcess(folder, store=f"sqlite:{disk / 'bus.db'}") as bus, contextlib.AsyncExitStack() as stack:
        async with Operator(bus.address) as operator:
            await operator.ams.register(ABSENT)
        history = stack.enter_context(History(history_path(folder, "filler"), kind="sender"))
        filler = _Filler(bus.address, history)
        await stack.enter_async_context(filler.agent)
        receivers = [
            Client.receiver(folder, bus.address, names[:1], kind="sdk"),
            Client.receiver(folder, bus.address, names[1:], kind="raw"),
        ]
        senders = [Client.sender(folder, bus.address, names_of("s", 2), to=names, rate=200, seed=scale.seed)]

        async def fault() -> None:
            for _ in range(5 if scale.long else 1):
                ballast = _fill_up(disk)
                filled = await filler.fill(report)
                await asyncio.sleep(FULL_FOR)
                ballast.unlink()
                took = await filler.recover(report, "room was made")
                said.append(f"full after {filled} messages beside a file, accepts {took:.2f} s after it is gone")
                filled = await filler.fill(report)
                await asyncio.sleep(FULL_FOR)
                async with Client.receiver(folder, bus.address, [ABSENT], kind="raw"):
                    took = await filler.recover(report, "the mail is settled")
                    await all_active(report, bus.address, [*names, ABSENT])
                    left = await left_after(bus, [ABSENT], within=EMPTY_WITHIN)
                    if left:
                        report.problems.append(f"{left} messages of a full disk are not handled")
                said.append(f"full after {filled} more, accepts {took:.2f} s after their owner comes")

        await under_load(report, folder, bus, receivers=receivers, senders=senders, names=[*names, ABSENT], fault=fault)
        await end_bus(report, bus)
    refusals = _refusals(histories(folder))
    late = [seconds for seconds in refusals if seconds > REFUSED_WITHIN]
    if late:
        report.problems.append(f"{len(late)} of {len(refusals)} refusals took up to {max(late):.1f} s")
    report.done = "; ".join(said) + f"; {len(refusals)} refusals, the slowest after {max(refusals, default=0.0):.2f} s"
    return report


def _fill_up(disk: Path) -> Path:
    """Fill what is left of the disk with a file of somebody else's; return its path."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def _refusals(paths: Sequence[Path]) -> list[float]:
    """Return after how many seconds each refused message was refused."""
    found: list[float] = []
    for path in paths:
        sent: dict[str, float] = {}
        for event in read(path):
            if event["e"] == "sent":
                sent[event["id"]] = event["t"]
            elif event["e"] == "receipt" and event["outcome"] == "MAILBOX_FULL":
                found.append(event["t"] - sent[event["id"]])
    return found


SCENARIOS: dict[str, Scenario] = {"disk_full": disk_full}
