"""What a search by type costs among 100, 10,000 and 100,000 registrations: in the registry, and end to end over gRPC.

The three directories are measured in turns, in one run, so that a busy machine slows all of them. Ten agents offer what is
looked for; all others offer one of a hundred other types. Exit code 1 when the median among 100,000 is more than twice
that among 100.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from gagent_grpc import Agent, BusLimits, DFAgentDescription, Operator, Property, SearchConstraints, ServiceDescription
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.testing import running_bus

SIZES = (100, 10_000, 100_000)
PROVIDERS = 10
MOST = 2.0
"""Largest ratio of the median among the most registrations to that among the fewest."""
WANTED = DFAgentDescription(services=(ServiceDescription(type="wanted"),))


def entry(name: str, service: str) -> DFAgentDescription:
    described = ServiceDescription(
        name=f"{service} of {name}",
        type=service,
        languages=frozenset({"fipa-sl0"}),
        properties=(Property("lang", "en"),),
    )
    return DFAgentDescription(name=name, services=(described,), protocols=frozenset({"fipa-request"}))


def fill(df: DirectoryFacilitator, size: int, *, wanted: int) -> None:
    """Bring a directory to ``size`` entries, ``wanted`` of which offer what is looked for, spread over all of them."""
    every = (size - len(df)) // wanted if wanted else 0
    for number in range(size - len(df)):
        is_wanted = wanted and number % every == 0 and number // every < wanted
        df.register(entry(f"agent{number}@local", "wanted" if is_wanted else f"other{number % 100}"), now=0.0)


def in_the_registry(rounds: int, per_round: int) -> dict[str, dict[int, float]]:
    """Return the median cost of a search in microseconds, by what is asked for and by size."""
    directories = {}
    for size in SIZES:
        directories[size] = DirectoryFacilitator(max_entries=size)
        fill(directories[size], size, wanted=PROVIDERS)
    found: dict[str, dict[int, float]] = {}
    for what, most in (("registry, first match", 1), (f"registry, all {PROVIDERS}", -1)):
        constraints = SearchConstraints(max_results=most)
        taken: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(rounds):
            for size, df in directories.items():
                for _ in range(per_round):
                    begun = time.perf_counter()
                    results = df.search(WANTED, constraints, now=1.0, live=lambda name: True)
                    taken[size].append(time.perf_counter() - begun)
                    assert len(results) == (PROVIDERS if most < 0 else 1)
        found[what] = {size: statistics.median(times) * 1e6 for size, times in taken.items()}
    return found


async def over_grpc(rounds: int, per_round: int) -> dict[str, dict[int, float]]:
    """Return the same end to end: providers with sessions, the rest in the directory alone."""
    taken: dict[int, list[float]] = {size: [] for size in SIZES}
    async with contextlib.AsyncExitStack() as stack:
        searches: dict[int, Callable[[], Awaitable[list[DFAgentDescription]]]] = {}
        for size in SIZES:
            bus = await stack.enter_async_context(running_bus(limits=BusLimits(drain_grace=1.0)))
            for number in range(PROVIDERS):
                described = entry(f"provider{number}", "wanted")
                await stack.enter_async_context(Agent(f"provider{number}", bus=bus.address, description=described))
            fill(bus.platform.df, size, wanted=0)
            operator = await stack.enter_async_context(Operator(bus.address))
            searches[size] = lambda operator=operator: operator.df.search("wanted", max_results=-1)
        for turn in range(rounds):
            for size, search in searches.items():
                for _ in range(per_round):
                    begun = time.perf_counter()
                    results = await search()
                    if turn:
                        # The first turn warms up.
                        taken[size].append(time.perf_counter() - begun)
                    assert len(results) == PROVIDERS
    return {f"gRPC, all {PROVIDERS}": {size: statistics.median(times) * 1e6 for size, times in taken.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="turns of the three directories")
    parser.add_argument("--searches", type=int, default=100, help="searches in each turn")
    arguments = parser.parse_args()
    gc.freeze()
    found = in_the_registry(arguments.rounds, arguments.searches)
    found |= asyncio.run(over_grpc(max(2, arguments.rounds // 2), max(1, arguments.searches // 4)))
    print("p50 of a search by type, in microseconds, among")
    print(f"{'':24}" + "".join(f"{size:>10,}" for size in SIZES) + f"{'ratio':>9}")
    worst = 0.0
    for what, medians in found.items():
        ratio = medians[SIZES[-1]] / medians[SIZES[0]]
        worst = max(worst, ratio)
        print(f"{what:24}" + "".join(f"{medians[size]:>10,.1f}" for size in SIZES) + f"{ratio:>9.2f}")
    print(f"largest ratio {worst:.2f}, the bound is {MOST:g}")
    return 0 if worst <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
