"""One message for many agents: a topic's, or everybody's. Its sender hears once, how many were reached.

Owns: gathering what became of it at each of them, and telling those that it did not reach. Leaves to others: who they are
(`bus.router`), their mailboxes (`bus.post`).
"""

from __future__ import annotations

from gagent_grpc.bus.ams import AgentRecord
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.origins import Origin, Receipt
from gagent_grpc.envelope import Outcome

_MAX_GAPS = 100
"""Addresses of which an agent without a session is told what it missed; further ones are counted under the last."""


class Gaps:
    """What agents missed of topics, until they are told."""

    def __init__(self) -> None:
        self._untold: dict[AgentRecord, dict[str, int]] = {}

    def missed(self, record: AgentRecord, address: str) -> None:
        """A message to ``address`` did not find room at an agent: its session is told, this one or the next."""
        if record.session is not None:
            record.session.missed(address)
            return
        untold = self._untold.setdefault(record, {})
        if address not in untold and len(untold) == _MAX_GAPS:
            address = next(reversed(untold))
        untold[address] = untold.get(address, 0) + 1

    def tell(self, record: AgentRecord) -> None:
        """Tell the session that an agent has now."""
        for address, count in self._untold.pop(record, {}).items():
            if record.session is not None:
                record.session.missed(address, count)

    def forget(self, record: AgentRecord) -> None:
        """An agent is gone."""
        self._untold.pop(record, None)


class Publication:
    """`Origin` of one message at each of many receivers."""

    def __init__(self, sender: Origin, number: int, address: str, gaps: Gaps) -> None:
        """Publish for ``sender``, who gets one receipt under ``number`` for ``address`` once all is known."""
        self.aid = sender.aid
        # Nobody waits behind a full listener, so there is no order to hold.
        self.holds = Holds()
        self.wants_failures = False
        self._sender = sender
        self._number = number
        self._address = address
        self._gaps = gaps
        self._receivers: dict[str, AgentRecord] = {}
        self._left = 1
        """Receivers whose outcome is open, and one for the receivers that are still to be asked."""
        self._waits = False
        self._reached = 0
        self._anew = 0
        self._missed = 0
        self._why = ""

    def ask(self, record: AgentRecord) -> None:
        """The message goes to ``record`` next."""
        self._left += 1
        self._receivers[record.name] = record

    def expect(self, number: int) -> None:
        """A receiver is being written."""
        if not self._waits:
            self._waits = True
            self._sender.expect(self._number)

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        """A receiver was reached."""
        self._reached += 1
        self._anew += 1
        self._one_less()

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        """A receiver was not reached, or had the message already."""
        if receipt.outcome.delivered:
            self._reached += 1
        else:
            self._missed += 1
            self._why = self._why or f"{receipt.outcome.name}: {receipt.detail}"
            self._gaps.missed(self._receivers[receipt.receiver], self._address)
        self._one_less()

    def all_asked(self) -> None:
        """There are no more receivers."""
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left:
            return
        outcome = Outcome.ACCEPTED if self._anew or not self._reached else Outcome.DUPLICATE
        detail = f"{self._missed:,} missed it, the first because of {self._why}" if self._missed else ""
        receipt = Receipt(self._number, self._address, outcome, detail, reached=self._reached, missed=self._missed)
        self._sender.refuse(receipt, waited=self._waits)
