"""The receipts of one unary call: gathered until all are there."""

from __future__ import annotations

import asyncio

from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.envelope import Outcome


class ReceiptCollector:
    """`Origin` of the messages of one unary call."""

    def __init__(self, aid: str) -> None:
        """Collect for ``aid``, the sender."""
        self.aid = aid
        self.holds = Holds()
        self.wants_failures = True
        self._waiting = 0
        self._receipts: list[Receipt] = []
        self._done = asyncio.Event()

    def expect(self, number: int) -> None:
        """A receiver is being written."""
        self._waiting += 1

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        """A receiver was reached."""
        self.refuse(Receipt(number, receiver, Outcome.ACCEPTED), waited=waited)

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        """A receiver was not reached."""
        self._receipts.append(receipt)
        if waited:
            self._waiting -= 1
            self._done.set()

    async def answered(self) -> None:
        """Wait until every receiver has its receipt."""
        while self._waiting > 0:
            self._done.clear()
            await self._done.wait()

    def receipts(self) -> list[Receipt]:
        """Return all receipts in the order of the messages."""
        return sorted(self._receipts, key=lambda one: one.number)
