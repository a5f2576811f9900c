"""`kill -9` of receivers that have messages in hand, and handlers that fail each time: what comes again, and what is given up.

Receivers `k...` are killed between delivery and acknowledgement: everything that they had in hand comes again to their next
life, flagged and with a higher attempt. Receivers `f...` live, and fail with every seventh message: each of these is tried
`max_deliveries` times with attempts 1, 2, 3 ..., then given up, and its sender is told. How a message is known to be given up
is `dead` in the histories; a list of dead letters would be one more writer of these events.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gagent_grpc.config import BusLimits
from tests.chaos.bus_process import BusProcess
from tests.chaos.checker import Key
from tests.chaos.clients import Client
from tests.chaos.ending import end_run, left_after
from tests.chaos.history import histories, read
from tests.chaos.scenario import Report, Scale, Scenario

RATE = 300.0
"""Messages per second of all senders."""
DELAY = 0.1
"""Seconds that a message is in hand: at any moment about RATE x DELAY are."""
_MOST = BusLimits().max_deliveries
"""Deliveries of a message after which it is given up."""
FAIL_EVERY = 7
"""Every message of a number divisible by it fails at the receivers `f...`; no divisor of the number of receivers."""
KILLED = {"sdk": ["k0", "k1"], "raw": ["k2", "k3"]}
FAILING = {"sdk": ["f0"], "raw": ["f1"]}


async def kill_receiver(scale: Scale) -> Report:
    """Kill receivers 12 times, in the long form 100 times."""
    return await killed(scale, kills=100 if scale.long else 12)


async def killed(scale: Scale, *, kills: int) -> Report:
    """Kill one receiver process after the other, ``kills`` times, while others fail on purpose."""
    folder = scale.folder
    chance = random.Random(scale.seed)
    report = Report("kill -9 of receivers", "")
    senders = ["s0", "s1", "s2", "s3"]
    killed_lives: list[Path] = []
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(BusProcess(folder))

        async def life(kind: str) -> Client:
            client = Client.receiver(folder, bus.address, KILLED[kind], kind=kind, delay=DELAY)
            return await stack.enter_async_context(client)

        alive = {kind: await life(kind) for kind in KILLED}
        failing = [
            await stack.enter_async_context(
                Client.receiver(folder, bus.address, names, kind=kind, fail_every=FAIL_EVERY, retry_delay=0.02)
            )
            for kind, names in FAILING.items()
        ]
        to = [name for group in (KILLED, FAILING) for names in group.values() for name in names]
        sender = Client.sender(folder, bus.address, senders, to=to, rate=RATE, seed=scale.seed)
        await stack.enter_async_context(sender)
        began = time.monotonic()
        await asyncio.sleep(2.0)
        first = time.monotonic()
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            kind = chance.choice(list(alive))
            alive[kind].kill()
            await alive[kind].wait()
            killed_lives.append(alive[kind].history)
            alive[kind] = await life(kind)
        took = time.monotonic() - first
        await sender.stop()
        # So that the last ones that fail have failed often enough.
        left = await left_after(bus, [name for names in FAILING.values() for name in names])
        if left:
            report.problems.append(f"receivers whose handlers fail are not done: {left} left")
        findings = await end_run(report, bus, senders=[sender], receivers=[*alive.values(), *failing], folder=folder)
    report.rate_before = findings.rate(began, first)
    seen = await asyncio.to_thread(_Deliveries, folder)
    hands = seen.in_hand(killed_lives)
    given_up = seen.given_up(FAILING)
    report.problems += hands.problems + given_up.problems
    report.done = (
        f"{kills} kills in {took:.0f} s with {hands.count:,} messages in hand; "
        f"{given_up.count:,} given up after {_MOST} deliveries each"
    )
    if not hands.count or not given_up.count:
        report.problems.append("nothing was in hand, or nothing was given up: the run says nothing")
    return report


class _Delivery(NamedTuple):
    at: float
    attempt: int
    redelivered: bool
    history: Path


@dataclass(slots=True)
class _Verdict:
    count: int
    problems: list[str]


class _Deliveries:
    """The deliveries of every message over all lives, in order of time, and how they ended."""

    def __init__(self, folder: Path) -> None:
        self.of: defaultdict[Key, list[_Delivery]] = defaultdict(list)
        self.done: set[tuple[Path, Key]] = set()
        self.dead: set[Key] = set()
        self.accepted: set[Key] = set()
        for path in histories(folder):
            for event in read(path):
                what = event["e"]
                if what == "delivered":
                    delivery = _Delivery(event["t"], event["attempt"], event["redelivered"], path)
                    self.of[_key(event)].append(delivery)
                elif what == "handled" or (what == "settled" and event["how"] == "ack"):
                    self.done.add((path, _key(event)))
                elif what == "dead":
                    self.dead.add(_key(event))
                elif what == "receipt" and event["outcome"] in {"ACCEPTED", "DUPLICATE"}:
                    self.accepted.add(_key(event))
        for deliveries in self.of.values():
            deliveries.sort()

    def in_hand(self, killed: list[Path]) -> _Verdict:
        """What killed lives had in hand came again: flagged, and with a higher attempt."""
        found = _Verdict(0, [])
        lives = set(killed)
        for key, deliveries in self.of.items():
            for place, one in enumerate(deliveries):
                if one.history not in lives or (one.history, key) in self.done:
                    continue
                found.count += 1
                again = deliveries[place + 1] if place + 1 < len(deliveries) else None
                if again is None and key in self.dead and one.attempt >= _MOST:
                    # Every one of its readers was killed with it in hand: it is given up like one that kills them.
                    continue
                if again is None:
                    found.problems.append(f"{key[0]} was in hand and did not come again")
                elif not again.redelivered or again.attempt <= one.attempt:
                    found.problems.append(
                        f"{key[0]} came again as attempt {again.attempt} after {one.attempt}, flag {again.redelivered}"
                    )
        return _shortened(found)

    def given_up(self, failing: dict[str, list[str]]) -> _Verdict:
        """What fails each time was delivered as often as is allowed, counted upwards, and its sender was told."""
        found = _Verdict(0, [])
        names = {name for group in failing.values() for name in group}
        expected = list(range(1, _MOST + 1))
        for key in self.accepted:
            number = key[0].rpartition("-")[2]
            if key[1] not in names or int(number) % FAIL_EVERY:
                if key in self.dead and max((one.attempt for one in self.of[key]), default=0) < _MOST:
                    found.problems.append(f"{key[0]} to {key[1]} was given up for no reason")
                continue
            attempts = [one.attempt for one in self.of[key]]
            # One that comes again for an earlier one of its lane has the same attempt as before.
            if key in self.dead and attempts == sorted(attempts) and sorted(set(attempts)) == expected:
                found.count += 1
            else:
                told = "told" if key in self.dead else "not told"
                found.problems.append(f"{key[0]} to {key[1]} fails; attempts {attempts}, sender {told}")
        return _shortened(found)


def _shortened(verdict: _Verdict) -> _Verdict:
    """Return the verdict with a few of its problems, and how many there are more."""
    more = len(verdict.problems) - 3
    if more > 0:
        verdict.problems = [*verdict.problems[:3], f"and {more:,} more like these"]
    return verdict


def _key(event: dict[str, str]) -> Key:
    return (event["id"], event["receiver"].partition("@")[0])


SCENARIOS: dict[str, Scenario] = {"kill_receiver": kill_receiver}
