"""Runs the faults one after another and says what became of every message: `python -m tests.chaos`.

Owns: which faults there are, their time bounds, and what is kept of a run that failed. Leaves to others: making them (one module
each, in `SCENARIOS`), judging them (`tests.chaos.checker`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.chaos.scenario import Report, Scale, Scenario

BOUNDS: dict[str, tuple[float, float]] = {
    "kill_bus": (180, 2400),
    "kill_receiver": (120, 600),
    "duplicates": (120, 120),
    "power_cut": (240, 1800),
    "proxy_faults": (300, 1200),
    "partition": (300, 1200),
    "stop_signal": (300, 1200),
    "slow_reader": (300, 1200),
    "floods": (300, 1200),
    "disk_full": (300, 1200),
    "broken_file": (300, 1200),
    "clock": (300, 1200),
    "soak": (120, 2700),
}
"""Modules in the order in which they are run, and the seconds that each of their faults may take: short form, long form."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults that the arguments name, and return the exit code: 0 when all is as promised."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--long", action="store_true", help="many more faults each, for the night; soaks half an hour")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="faults, or modules of faults, to run")
    parser.add_argument("--seed", type=int, help="of everything that is drawn; another one each time by default")
    parser.add_argument("--folder", type=Path, help="where runs are kept that failed; a new one in /tmp by default")
    parser.add_argument("--list", action="store_true", help="name the faults, and run none")
    options = parser.parse_args(arguments)
    faults = _faults(options.only)
    if options.list:
        print("\n".join(faults))
        return 0
    unknown = set(options.only) - faults.keys() - BOUNDS.keys()
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(faults)}")
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="gagent-chaos-"))
    print(f"chaos: {len(faults)} faults, {'long' if options.long else 'short'} form, seed {seed}", flush=True)
    reports = asyncio.run(_run(faults, long=options.long, seed=seed, folder=folder.resolve()))
    lost, doubled = sum(one.lost for one in reports), sum(one.doubled_unflagged for one in reports)
    print(f"chaos: {len(reports)} faults, lost {lost}, doubled unflagged {doubled}")
    bad = [one.fault for one in reports if not one.good]
    missing = len(faults) - len(reports)
    if not bad and not missing:
        if options.folder is None:
            folder.rmdir()
        return 0
    if bad:
        print(f"not as promised: {', '.join(bad)}")
    if missing:
        print(f"ended early, {missing} faults were not made")
    print(f"histories, stores and logs are kept in {folder}")
    return 1


def _faults(only: Sequence[str]) -> dict[str, tuple[str, Scenario]]:
    """Return the faults that are asked for, each with its module; all of them when none is named."""
    named = [name for name in only if name in BOUNDS]
    # A fault that has the name of its module needs no other one to be found.
    modules = named if named and len(named) == len(only) else list(BOUNDS)
    found: dict[str, tuple[str, Scenario]] = {}
    for module in modules:
        where = f"tests.chaos.{module}"
        scenarios: dict[str, Scenario] = importlib.import_module(where).SCENARIOS
        found |= {
            name: (module, scenario)
            for name, scenario in scenarios.items()
            if not only or name in only or module in only
        }
    return found


async def _run(faults: dict[str, tuple[str, Scenario]], *, long: bool, seed: int, folder: Path) -> list[Report]:
    """Run faults one after another; print the line of each as it ends. Ends early, and cleanly, at SIGTERM and Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    reports: list[Report] = []
    with contextlib.suppress(asyncio.CancelledError):
        for name, (module, scenario) in faults.items():
            scale = Scale(long, seed, folder / name)
            report = await _one(name, scenario, scale, BOUNDS[module][long])
            reports.append(report)
            print(report.line(), flush=True)
            if report.good:
                # Hundreds of megabytes in the long form.
                shutil.rmtree(scale.folder)
    return reports


async def _one(name: str, scenario: Scenario, scale: Scale, bound: float) -> Report:
    """Run one fault within its time; whatever happens, nothing of it is left running."""
    began = time.monotonic()
    scale.folder.mkdir(parents=True)
    time_out = asyncio.timeout(bound)
    try:
        async with time_out:
            report = await scenario(scale)
    except Exception as error:
        report = Report(name, f"broke off after {time.monotonic() - began:.0f} s")
        said = f"not within {bound:.0f} s" if time_out.expired() else f"{type(error).__name__}: {error}"
        report.problems.append(said.replace("\n", " / ")[:1000])
        (scale.folder / "traceback.txt").write_text(traceback.format_exc())
    left = psutil.Process().children(recursive=True)
    if left:
        report.problems.append(f"processes left: {[' '.join(_command(one))[:100] for one in left]}")
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    return report


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() or [process.name()]
    except psutil.Error:
        return [str(process.pid)]


if __name__ == "__main__":
    sys.exit(main())
