"""Stand-ins at `bus.ports`: a durable store whose commits a test gives out, and an origin that notes its receipts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Sequence

from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.ports import (
    Commit,
    StoredAgent,
    StoredContext,
    StoredDeadLetter,
    StoredDescription,
    StoredEntry,
    StoredKey,
    StoredMessage,
    StoredPlatform,
    StoredSubscription,
    StoredTask,
)
from gagent_grpc.errors import StoreUnavailable


class ManualStore:
    """A durable `Store` that commits when it is told to, and keeps what is committed in plain lists."""

    durable = True

    def __init__(self, stored: StoredPlatform | None = None) -> None:
        self.stored = stored or StoredPlatform()
        self.accepted: list[StoredMessage] = []
        self.settled: list[tuple[str, int, StoredKey | None]] = []
        self.attempts: list[tuple[str, int, int]] = []
        self.buried: dict[int, StoredDeadLetter] = {}
        self.exhumed: list[int] = []
        self.writes: list[str] = []
        """Names of the writes that are about messages and dead letters, in their order."""
        self.agents: dict[str, StoredAgent] = {}
        self.descriptions: dict[str, StoredDescription] = {}
        self.topics: dict[str, tuple[str, ...]] = {}
        self.subscriptions: dict[tuple[str, str], StoredSubscription] = {}
        self.tasks: dict[int, StoredTask] = {}
        self.contexts: dict[int, StoredContext] = {}
        self.context_revision = 0
        self.closed: bool | None = None
        self.flushing = asyncio.Event()
        self.flushing.set()
        """Clear it to hold up whoever flushes."""
        self.flush_failure = ""
        """Why nothing can be made durable at present."""
        self._commits: deque[Commit | Exception] = deque()
        self._arrived = asyncio.Event()
        self.position = 0

    def commit(self, through: int | None = None, error: str = "") -> Commit:
        """Return the commit of everything accepted so far, and give it to who waits in `next_commit`."""
        made = Commit(self.position if through is None else through, error)
        self._commits.append(made)
        self._arrived.set()
        return made

    def fail(self, why: str | Exception) -> None:
        """Fail for good."""
        self._commits.append(StoreUnavailable(why) if isinstance(why, str) else why)
        self._arrived.set()

    async def open(self) -> StoredPlatform:
        return self.stored

    def accept(self, message: StoredMessage) -> int:
        self.writes.append("accept")
        self.accepted.append(message)
        self.position += 1
        return self.position

    def settle(self, receiver: str, sequence: int, key: StoredKey | None) -> None:
        self.writes.append("settle")
        self.settled.append((receiver, sequence, key))

    def bury(self, letter: StoredDeadLetter) -> None:
        self.writes.append("bury")
        self.buried[letter.number] = letter

    def exhume(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.writes.append("exhume")
            self.buried.pop(number, None)
            self.exhumed.append(number)

    def mark_attempts(self, receiver: str, attempts: Sequence[tuple[int, int]]) -> None:
        self.attempts.extend((receiver, sequence, attempt) for sequence, attempt in attempts)

    def put_agent(self, agent: StoredAgent) -> None:
        self.agents[agent.name] = agent

    def remove_agent(self, name: str) -> None:
        self.agents.pop(name, None)

    def put_description(self, entry: StoredDescription) -> None:
        assert entry.description.name is not None
        self.descriptions[entry.description.name] = entry

    def put_topics(self, name: str, topics: Sequence[str]) -> None:
        self.topics[name] = tuple(topics)

    def remove_description(self, name: str) -> None:
        self.descriptions.pop(name, None)

    def put_subscription(self, subscription: StoredSubscription) -> None:
        self.subscriptions[subscription.name, subscription.conversation] = subscription

    def remove_subscription(self, name: str, conversation: str) -> None:
        self.subscriptions.pop((name, conversation), None)

    def put_task(self, number: int, part: str, body: str) -> None:
        self.tasks.setdefault(number, StoredTask(number)).parts[part] = body

    def add_task_event(self, number: int, sequence: int, body: str) -> None:
        self.tasks.setdefault(number, StoredTask(number)).events.append((sequence, body))

    def trim_task_events(self, number: int, before: int) -> None:
        task = self.tasks[number]
        task.events = [one for one in task.events if one[0] >= before]

    def remove_task(self, number: int) -> None:
        self.tasks.pop(number, None)

    def put_context(self, number: int, body: str) -> None:
        self.contexts.setdefault(number, StoredContext(number, body)).body = body

    def put_context_entry(self, number: int, entry: StoredEntry) -> None:
        self.drop_context_entries(number, [entry.key])
        self.contexts[number].entries.append(entry)

    def drop_context_entries(self, number: int, keys: Iterable[str]) -> None:
        context, gone = self.contexts[number], set(keys)
        context.entries = [one for one in context.entries if one.key not in gone]

    def remove_context(self, number: int, revision: int) -> None:
        self.contexts.pop(number, None)
        self.context_revision = max(self.context_revision, revision)

    def prune_keys(self, settled_before: float, keep: int) -> None:
        pass

    def together(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    async def next_commit(self) -> Commit:
        while not self._commits:
            self._arrived.clear()
            await self._arrived.wait()
        found = self._commits.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    async def flush(self) -> None:
        await self.flushing.wait()
        if self.flush_failure:
            raise StoreUnavailable(self.flush_failure)

    async def close(self, *, clean: bool = True) -> None:
        self.closed = clean


class NotingOrigin:
    """An `Origin` that notes what becomes of its messages."""

    def __init__(self, aid: str) -> None:
        self.aid = aid
        self.holds = Holds()
        self.wants_failures = True
        self.waiting = 0
        self.reached: list[tuple[int, str]] = []
        self.refusals: list[Receipt] = []

    def expect(self, number: int) -> None:
        self.waiting += 1

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        self.waiting -= waited
        self.reached.append((number, receiver))

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        self.waiting -= waited
        self.refusals.append(receipt)

    @property
    def outcomes(self) -> list[tuple[int, str, str]]:
        return [(one.number, one.receiver, one.outcome.name) for one in self.refusals]
