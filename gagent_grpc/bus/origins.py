"""Where a message came from, and where its receipts go.

Owns: the receipt as a value, and what the bus needs of whoever sends. Leaves to others: sessions and calls, which are
origins (`bus.session`, `server`), and what the receipts say (`bus.router`, `bus.post`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gagent_grpc.bus.holds import Holds
from gagent_grpc.envelope import Outcome

ANONYMOUS = "anonymous"
"""Sender of the messages of nobody in particular; whatever agent bears this name is somebody else."""


@dataclass(slots=True)
class Receipt:
    """What became of a message for one receiver, or of the message as a whole; mostly why it was not reached."""

    number: int
    """Number of the message in its session, or place in its request."""
    receiver: str
    """As the sender wrote it; "" for the message as a whole."""
    outcome: Outcome
    detail: str = ""
    retry_after: float | None = None
    """Seconds; None when not known."""
    field: str = ""
    reached: int = 0
    """Of an address for many: mailboxes that have the message."""
    missed: int = 0
    """Of an address for many: agents that should have it and do not."""


class Origin(Protocol):
    """Where a message came from, and where its receipts go."""

    aid: str
    """`name@platform` of the sender, or `anonymous`."""
    holds: Holds
    """Receivers that wait for a message to be sent again."""
    wants_failures: bool
    """A message may ask for its refusal as a `failure`, too; False where its sender was told of it before."""

    def expect(self, number: int) -> None:
        """A receiver of message ``number`` is being written; `accepted` or `refuse` follows."""
        ...

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        """``receiver`` of message ``number`` was reached; ``waited`` when `expect` was called for it."""
        ...

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        """A receiver was not reached; ``waited`` when `expect` was called for it."""
        ...


class PlatformOrigin:
    """Origin of the messages of the platform's own agents: nobody waits for their receipts."""

    def __init__(self, aid: str) -> None:
        self.aid = aid
        self.holds = Holds()
        self.wants_failures = True

    def expect(self, number: int) -> None:
        pass

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        pass

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        pass
