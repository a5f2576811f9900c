"""The store that keeps nothing: for tests and throw-away buses.

Owns: the shape of a store without durability. What the platform holds in memory is all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from gagent_grpc.bus.ports import (
    Commit,
    StoredAgent,
    StoredDeadLetter,
    StoredDescription,
    StoredEntry,
    StoredKey,
    StoredMessage,
    StoredPlatform,
    StoredSubscription,
)
from gagent_grpc.errors import StoreUnavailable


class MemoryStore:
    """A `Store` of which nothing survives: every write is taken and forgotten."""

    def __init__(self) -> None:
        self._position = 0
        self._closed = asyncio.Event()

    @property
    def durable(self) -> bool:
        """Always False: accepts need no commit and get none."""
        return False

    async def open(self) -> StoredPlatform:
        """Return an empty platform."""
        return StoredPlatform()

    def accept(self, message: StoredMessage) -> int:
        """Return the next position; no commit will cover it."""
        self._position += 1
        return self._position

    def settle(self, receiver: str, sequence: int, key: StoredKey | None) -> None:
        """Keep nothing."""

    def bury(self, letter: StoredDeadLetter) -> None:
        """Keep nothing."""

    def exhume(self, numbers: Iterable[int]) -> None:
        """Keep nothing."""

    def mark_attempts(self, receiver: str, attempts: Sequence[tuple[int, int]]) -> None:
        """Keep nothing."""

    def put_agent(self, agent: StoredAgent) -> None:
        """Keep nothing."""

    def remove_agent(self, name: str) -> None:
        """Keep nothing."""

    def put_description(self, entry: StoredDescription) -> None:
        """Keep nothing."""

    def put_topics(self, name: str, topics: Sequence[str]) -> None:
        """Do nothing."""

    def remove_description(self, name: str) -> None:
        """Keep nothing."""

    def put_subscription(self, subscription: StoredSubscription) -> None:
        """Keep nothing."""

    def remove_subscription(self, name: str, conversation: str) -> None:
        """Keep nothing."""

    def put_task(self, number: int, part: str, body: str) -> None:
        """Keep nothing."""

    def add_task_event(self, number: int, sequence: int, body: str) -> None:
        """Keep nothing."""

    def trim_task_events(self, number: int, before: int) -> None:
        """Keep nothing."""

    def remove_task(self, number: int) -> None:
        """Keep nothing."""

    def put_context(self, number: int, body: str) -> None:
        """Keep nothing."""

    def put_context_entry(self, number: int, entry: StoredEntry) -> None:
        """Keep nothing."""

    def drop_context_entries(self, number: int, keys: Iterable[str]) -> None:
        """Keep nothing."""

    def remove_context(self, number: int, revision: int) -> None:
        """Keep nothing."""

    def prune_keys(self, settled_before: float, keep: int) -> None:
        """Keep nothing."""

    def together(self) -> contextlib.nullcontext[None]:
        """Return a block that does nothing."""
        return contextlib.nullcontext()

    async def next_commit(self) -> Commit:
        """Wait until the store is closed: there are no commits. Safe to cancel.

        Raises:
            StoreUnavailable: The store is closed.
        """
        await self._closed.wait()
        raise StoreUnavailable("the store is closed")

    async def flush(self) -> None:
        """Return at once: there is nothing that could become durable."""

    async def close(self, *, clean: bool = True) -> None:
        """Release whoever waits in `next_commit`. Idempotent."""
        self._closed.set()
