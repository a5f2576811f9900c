"""10,000 ids, each sent three times: at once, after a reconnect, after a kill and after a polite restart of the bus.

Each must be in its mailbox once, and be handled once; every repetition must be told DUPLICATE, and the same id with another
body INVALID. Two receivers handle their mail meanwhile, so that their keys are those of settled messages; two never come, so
that theirs are those of messages that wait, and what is stored can be counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gagent_grpc import Agent, AMSAgentDescription, DeliveryRefused, Operator
from tests.chaos.bus_process import BusProcess
from tests.chaos.clients import Client
from tests.chaos.ending import end_run, left_after
from tests.chaos.history import History, body_hash, history_path
from tests.chaos.scenario import Report, Scale, Scenario
from tests.chaos.sdk_clients import QUICK

IDS = 10_000
TIMES = 3
"""How often each id is sent."""
HANDLED = ["d0", "d1"]
STORED = ["d2", "d3"]
SENDERS = ["s0", "s1"]
AT_ONCE = 500
"""Messages that are on their way at the same time."""


@dataclass(slots=True)
class _Letter:
    """One message that is sent again and again."""

    mark: str
    number: int
    sender: str
    to: str
    text: str
    outcomes: list[str] = field(default_factory=list)


async def duplicates(scale: Scale) -> Report:
    """Send 10,000 ids three times each; the long form is the same."""
    return await repeated(scale, ids=IDS)


async def repeated(scale: Scale, *, ids: int) -> Report:
    """Send ``ids`` ids three times each."""
    folder = scale.folder
    report = Report("duplicates", "")
    letters = [_letter(number) for number in range(ids)]
    # What is sent twice in the same breath, what is sent again later, and what is on its way when the bus is killed.
    twice, later, cut_off = letters[: ids // 3], letters[ids // 3 : 2 * ids // 3], letters[2 * ids // 3 :]
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(BusProcess(folder))
        receivers = [
            Client.receiver(folder, bus.address, [HANDLED[0]], kind="sdk"),
            Client.receiver(folder, bus.address, [HANDLED[1]], kind="raw"),
        ]
        for client in receivers:
            await stack.enter_async_context(client)
        async with Operator(bus.address) as operator:
            for name in STORED:
                await operator.ams.register(name)
        history = stack.enter_context(History(history_path(folder, "repeater"), kind="sender"))
        repeater = _Repeater(bus.address, history)
        first = time.monotonic()
        async with repeater:
            await repeater.send(letter for letter in twice for _ in range(2))
            await repeater.send(later)
            loaded = time.monotonic()
            sending = asyncio.create_task(repeater.send(cut_off))
            await repeater.answered(len(cut_off) // 2)
            bus.kill()
            await bus.wait()
            await bus.start()
            await sending
            await repeater.send([*twice, *cut_off])
            invalid = await repeater.send_other_bodies(letters[:: max(1, ids // 100)])
        # Another session, without the token of the first one.
        async with repeater:
            await repeater.send([*later, *cut_off])
        await bus.stop()
        await bus.start()
        async with repeater:
            await repeater.send(later)
        left = await left_after(bus, HANDLED)
        stored = await _stored(bus, STORED)
        findings = await end_run(
            report, bus, senders=[], receivers=receivers, folder=folder, absent=[*STORED, *SENDERS]
        )
    report.rate_before = findings.rate(first, loaded)
    report.done = f"{ids:,} ids sent {TIMES} times each in {time.monotonic() - began:.0f} s, {stored:,} stored once"
    report.problems += _judged(letters, stored)
    if left:
        report.problems.append(f"{left} messages are not handled")
    if findings.left != stored:
        report.problems.append(f"{stored} messages are stored, and {findings.left} come out")
    if invalid.keys() != {"INVALID"}:
        report.problems.append(f"the same ids with other bodies: {dict(invalid)}; expected INVALID")
    return report


def _letter(number: int) -> _Letter:
    names = [*HANDLED, *STORED]
    mark = f"twin-{number}"
    return _Letter(
        mark, number, SENDERS[number // len(names) % len(SENDERS)], names[number % len(names)], f"{mark} {'x' * 60}"
    )


async def _stored(bus: BusProcess, names: Sequence[str]) -> int:
    """Return how many messages wait in the mailboxes of ``names``, as the bus has it."""
    async with Operator(bus.address) as operator:
        entries = [await operator.ams.search(AMSAgentDescription(name=name)) for name in names]
    return sum(entry.mailbox_messages for found in entries for entry in found)


def _judged(letters: Sequence[_Letter], stored: int) -> list[str]:
    """Return what is wrong with the outcomes: one is ACCEPTED and the others are DUPLICATE, for each id."""
    problems = []
    expected = ("ACCEPTED", *["DUPLICATE"] * (TIMES - 1))
    # Of two on their way at the same time, the repetition may hear first.
    outcomes = Counter(tuple(sorted(one.outcomes)) for one in letters)
    wrong = outcomes - Counter({expected: len(letters)})
    if wrong:
        problems.append(f"{wrong.total():,} ids with other outcomes than {expected}: {wrong.most_common(3)}")
    waiting = sum(one.to in STORED for one in letters)
    if stored != waiting:
        problems.append(f"{stored:,} messages are stored for {waiting:,} ids")
    return problems


class _Repeater:
    """The senders. Open while its block lasts; the next block has other sessions."""

    def __init__(self, address: str, history: History) -> None:
        self._address = address
        self._history = history
        self._agents: dict[str, Agent] = {}
        self._stack = contextlib.AsyncExitStack()
        self._answers = 0
        self._progress = asyncio.Condition()

    async def __aenter__(self) -> _Repeater:
        for name in SENDERS:
            agent = Agent(name, bus=self._address, limits=QUICK)
            self._agents[name] = await self._stack.enter_async_context(agent)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def answered(self, count: int) -> None:
        """Wait until ``count`` more receipts have come."""
        goal = self._answers + count
        async with self._progress, asyncio.timeout(60):
            await self._progress.wait_for(lambda: self._answers >= goal)

    async def send(self, letters: Iterable[_Letter]) -> None:
        """Send messages under their own ids, and wait for all receipts."""
        room = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for letter in letters:
                await room.acquire()
                self._history.sent(
                    letter.mark, letter.to, sender=letter.sender, number=letter.number, body=body_hash(letter.text)
                )
                # Tasks begin in the order in which they are made, so this is the order of sending.
                group.create_task(self._one(letter, room))

    async def send_other_bodies(self, letters: Iterable[_Letter]) -> Counter[str]:
        """Send ids that are known with other contents; return the outcomes. None of this may arrive."""
        found: Counter[str] = Counter()
        for letter in letters:
            found[await self._outcome(letter, f"{letter.text} and more")] += 1
        return found

    async def _one(self, letter: _Letter, room: asyncio.Semaphore) -> None:
        outcome = await self._outcome(letter, letter.text)
        room.release()
        self._history.receipt(letter.mark, letter.to, outcome)
        letter.outcomes.append(outcome)
        self._answers += 1
        async with self._progress:
            self._progress.notify_all()

    async def _outcome(self, letter: _Letter, text: str) -> str:
        try:
            duplicates = await self._agents[letter.sender].send(letter.to, "inform", text, message_id=letter.mark)
        except DeliveryRefused as refused:
            return str(refused.outcome)
        return "DUPLICATE" if duplicates else "ACCEPTED"


SCENARIOS: dict[str, Scenario] = {"duplicates": duplicates}
