"""Power cuts under load: what a platform had promised when the power went is there when it comes back.

A whole platform on the SQLite store works on a recorded disk: senders, readers that acknowledge, return, reject, come and
go, descriptions, group commits, checkpoints. Then the power is cut after changes of the disk drawn at random, the files
are rebuilt as the disk would have them, and another platform opens them. One of the rebuilt folders is where the next
life begins, so recoveries are followed by traffic, and by cuts again.

The same check has to find losses when the store does not sync its commits; else it would say nothing.

Owns: lives, cuts, and the counts of what they left. Leaves to others: recording and rebuilding (`crash_vfs`), the clients
(`power_load`) and what they know (`power_ledger`), whether it is kept (`power_check`).

    python -m tests.chaos.power_cut [--long] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest import mock

from gagent_grpc.storage import sqlite_file
from gagent_grpc.storage.sqlite import SqliteStore
from tests.chaos.crash_vfs import Disk, recorded_disk, write_image
from tests.chaos.power_check import Verdict, check, platform_on
from tests.chaos.power_ledger import Ledger
from tests.chaos.power_load import Load
from tests.chaos.scenario import Report, Scale, Scenario

CHECKPOINT_PAGES = 120
"""Pages of the log after which a checkpoint comes: small, so that a run of seconds has dozens."""


@dataclass(slots=True)
class Outcomes:
    """What all cuts of a run left."""

    cuts: int = 0
    cuts_with_loss: int = 0
    torn: int = 0
    """Cuts after which some of what was not synced was there."""
    lives: int = 0
    changes: int = 0
    """Changes of the disk."""
    checkpoints: int = 0
    promised: int = 0
    stored: int = 0
    lost: int = 0
    doubled_unflagged: int = 0
    accepted: int = 0
    seconds_of_load: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages per second that the load got through."""
        return self.accepted / self.seconds_of_load if self.seconds_of_load else 0.0

    def add(self, verdict: Verdict, where: str) -> None:
        """Count one cut in."""
        self.cuts += 1
        self.cuts_with_loss += bool(verdict.lost)
        self.promised += verdict.promised
        self.stored += verdict.stored
        self.lost += len(verdict.lost)
        self.doubled_unflagged += verdict.doubled_unflagged
        self.problems += [f"{where}: {problem}" for problem in verdict.problems[:3]]
        if verdict.lost:
            self.problems.append(f"{where}: lost {len(verdict.lost):,}, such as {verdict.lost[0]}")


async def cut_power(
    folder: Path, *, seed: int, lives: int, cuts: int, bursts: int, synchronous: Literal["FULL", "NORMAL"] = "FULL"
) -> Outcomes:
    """Run a platform for some lives, and cut the power in each of them.

    Args:
        folder: Where files are made; those of a cut that broke a promise are left there.
        seed: Of everything that is drawn. What the writer thread groups is not, so a run is alike and not the same.
        lives: How often the platform starts, each time from what a cut left.
        cuts: In each life.
        bursts: In each life; one has six messages in the mean.
        synchronous: As for the store.
    """
    outcomes = Outcomes()
    drawn = random.Random(seed)
    work = folder / "work"
    ledger = Ledger()
    image: dict[str, bytes] = {}
    first = 1
    for life in range(1, lives + 1):
        write_image(work, image)
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(sqlite_file, "_WAL_PAGES", CHECKPOINT_PAGES))
            disk = stack.enter_context(recorded_disk(work))
            if synchronous == "FULL":
                # Else receipts are noted late, when a checkpoint has synced what they promise.
                stack.enter_context(_restless_threads())
            store = SqliteStore(work / "bus.db", synchronous=synchronous)
            load = await _live(store, disk, ledger, drawn, first, bursts, outcomes)
        first = load.number
        outcomes.lives += 1
        outcomes.changes += disk.position
        outcomes.checkpoints += _checkpoints(disk)
        outcomes.problems += load.problems[:3]
        survived: list[tuple[dict[str, bytes], Ledger]] = []
        for _ in range(cuts):
            cut = _draw_cut(disk, ledger, drawn, after_receipt=synchronous == "NORMAL")
            # Most disks lose all that was not synced, or any part of it. That all is there is what a kill leaves.
            # To show that a store does not sync it takes the strictest disk and the youngest promises.
            weights = [5, 4, 1] if synchronous == "FULL" else [1, 0, 0]
            how = drawn.choices(["synced", "torn", "killed"], weights)[0]
            torn = random.Random(drawn.random()) if how == "torn" else None
            outcomes.torn += how == "torn"
            left = disk.image_after(cut, lose_unsynced=how != "killed", torn=torn)
            opened = folder / f"life-{life}-cut-{cut}"
            write_image(opened, left)
            verdict = await check(opened, ledger, cut, drawn)
            outcomes.add(verdict, f"life {life}, cut {cut}, {how}")
            if verdict.good:
                shutil.rmtree(opened)
                survived.append((left, ledger.next_life(cut, verdict.found)))
            else:
                # As it was before it was opened.
                write_image(opened, left)
        if not survived:
            break
        image, ledger = drawn.choice(survived)
    return outcomes


async def _live(
    store: SqliteStore,
    disk: Disk,
    ledger: Ledger,
    drawn: random.Random,
    first: int,
    bursts: int,
    outcomes: Outcomes,
) -> Load:
    """Let a platform work on a store until its clean stop."""
    before = sum(one.accepted is not None for one in ledger.sent.values())
    started = time.monotonic()
    async with platform_on(store) as platform:
        ledger.opened = disk.position
        load = Load(platform, disk, ledger, drawn, first)
        await load.run(bursts)
        ledger.closing = disk.position
    ledger.closed = disk.position
    outcomes.seconds_of_load += time.monotonic() - started
    outcomes.accepted += sum(one.accepted is not None for one in ledger.sent.values()) - before
    return load


@contextlib.contextmanager
def _restless_threads() -> Iterator[None]:
    """Have the writer thread take what there is at any point of what the event loop does, not only between its turns."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _draw_cut(disk: Disk, ledger: Ledger, drawn: random.Random, *, after_receipt: bool) -> int:
    """Draw a cut: anywhere, or at once after a promise."""
    receipts = [one.accepted for one in ledger.sent.values() if one.accepted]
    welcomes = [position for position in ledger.agents.values() if position]
    what = drawn.random()
    if receipts and (after_receipt or what < 0.5):
        return drawn.choice(receipts)
    if welcomes and what < 0.6:
        return drawn.choice(welcomes)
    return drawn.randint(0, disk.position)


def _checkpoints(disk: Disk) -> int:
    return sum(event.kind == "sync" and event.name == "bus.db" for event in disk.events)


async def _power_cut(scale: Scale) -> Report:
    lives, cuts, bursts = (10, 20, 300) if scale.long else (4, 5, 150)
    started = time.monotonic()
    full = await cut_power(scale.folder / "full", seed=scale.seed, lives=lives, cuts=cuts, bursts=bursts)
    normal = await cut_power(
        scale.folder / "normal", seed=scale.seed, lives=1, cuts=20, bursts=bursts, synchronous="NORMAL"
    )
    report = Report(
        "power cut",
        f"{full.cuts} cuts ({full.torn} torn) in {full.lives} lives, {full.changes:,} changes, "
        f"{full.checkpoints} checkpoints, {time.monotonic() - started:.0f} s; "
        f"without a sync for each commit {normal.cuts_with_loss} of {normal.cuts} cuts lose",
        accepted=full.promised,
        handled=full.promised - full.stored - full.lost,
        stored=full.stored,
        lost=full.lost,
        doubled_unflagged=full.doubled_unflagged,
        rate_before=full.rate,
        problems=full.problems,
    )
    # Its cuts broke promises, as they should.
    shutil.rmtree(scale.folder / "normal")
    if normal.cuts_with_loss * 2 <= normal.cuts:
        report.problems.append("the check does not find what a store loses that does not sync")
    return report


SCENARIOS: dict[str, Scenario] = {"power cut": _power_cut}


def main() -> None:
    """Run the scenario once and print its line."""
    arguments = argparse.ArgumentParser(description="Cut the power under load, again and again.")
    arguments.add_argument("--long", action="store_true")
    arguments.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="power-cut-"))
    report = asyncio.run(_power_cut(Scale(given.long, given.seed, folder)))
    print(report.line(), f"(seed {given.seed})")
    if not report.good:
        raise SystemExit(f"files are in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
