"""What waits and is sent in batches is the same, to whoever looks, as message by message."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.client.message import Receipt
from gagent_grpc.client.outbox import Outbox
from gagent_grpc.client.pending import ROOM, Sending
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import BusUnreachable


class OneByOne(Outbox):
    """An outbox that has an entry for each message from the start."""

    def add(self, *arguments: Any) -> None:
        super().add(*arguments)
        self._unfold()


steps = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(1, 9), min_size=0, max_size=6), st.booleans()),
    st.tuples(st.just("take"), st.integers(0, 8), st.integers(1, 30), st.integers(1, 20), st.integers(0, 8)),
    st.tuples(st.just("receipts"), st.integers(0, 8), st.booleans()),
    st.tuples(st.just("refuse"), st.integers(0, 8), st.sampled_from([Outcome.MAILBOX_FULL, Outcome.DENIED])),
    st.tuples(st.just("reconnect")),
)


class Sender:
    """One outbox, what was handed over, and what was seen of it."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.sendings: list[Sending] = []
        self.results: list[asyncio.Future[None]] = []
        self.sent = self.first = self.number = 0
        self.now = 0.0

    def do(self, step: tuple[Any, ...]) -> Any:
        """Take one step; return what is seen of it."""
        what, *values = step
        self.now += 10.0
        seen = getattr(self, f"_{what}")(*values)
        told = [(one.refusals, done.done()) for one, done in zip(self.sendings, self.results, strict=True)]
        return seen, told, len(self.outbox), self.outbox.bytes, self.outbox.waiting, self.outbox.backlogged

    def _add(self, sizes: list[int], patient: bool) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sending = Sending(len(sizes), done, patience=1e9 if patient else 0.0, waits_for=ROOM)
        payloads = []
        for size in sizes:
            self.number += 1
            payloads.append(b"%d" % self.number + b"." * size)
        self.sendings.append(sending)
        self.results.append(done)
        self.outbox.add(payloads, [("bob",)] * len(payloads), sending)

    def _take(self, window: int, window_bytes: int, batch_bytes: int, batch: int) -> list[bytes]:
        taken = self.outbox.take(
            window_messages=window,
            window_bytes=window_bytes,
            batch_bytes=batch_bytes,
            batch_messages=batch,
            now=self.now,
        )
        self.sent += len(taken)
        return taken

    def _receipts(self, count: int, late: bool) -> None:
        self.first = min(self.sent, self.first + count)
        # The bus may say again what it said.
        self.outbox.receipts(max(0, self.first - late), [], now=self.now)

    def _refuse(self, place: int, outcome: Outcome) -> None:
        number = min(self.sent, self.first + 1 + place)
        if number > self.first:
            self.outbox.receipts(self.first, [(number, Receipt(outcome, "bob"))], now=self.now)

    def _reconnect(self) -> None:
        self.outbox.reconnected("local")
        self.sent = self.first = 0

    def end(self) -> list[object]:
        self.outbox.fail(BusUnreachable("nowhere"))
        # An empty one hears nothing, as there is nothing to hear of.
        return [type(done.exception()) if done.done() else None for done in self.results]


@settings(deadline=None, max_examples=300)
@given(st.lists(steps, max_size=30))
def test_nobody_sees_whether_messages_are_kept_together(taken: list[tuple[Any, ...]]) -> None:
    async def compare() -> None:
        batched, one_by_one = Sender(Outbox()), Sender(OneByOne())
        for step in taken:
            assert batched.do(step) == one_by_one.do(step)
        assert batched.end() == one_by_one.end()
        assert len(batched.outbox) == len(one_by_one.outbox) == 0

    asyncio.run(compare())
