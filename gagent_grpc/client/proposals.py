"""What comes back to a call for proposals, for whoever decides on it: proposals, and how everybody else answered.

Owns: these values. Leaves to others: the call (`client.contract_net`).
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass

from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.message import Received


class AnswerKind(enum.Enum):
    """What a participant of a contract net answered to the call."""

    WAITING = "waiting"
    """Nothing yet, and there is still time."""
    PROPOSE = "propose"
    REFUSE = "refuse"
    FAILURE = "failure"
    NOT_UNDERSTOOD = "not-understood"
    LATE = "late"
    """Nothing in time; a proposal that comes later is rejected."""
    LOST = "lost"
    """It was not reached, or is gone, and the bus said so in its place."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """How one participant answered a call for proposals."""

    kind: AnswerKind
    text: str = ""
    """Why, in words; "" where nothing was said."""
    message: Received | None = None
    """The answer; None where there is none."""


class Proposal:
    """One proposal that came in time."""

    __slots__ = ("_decision", "_result", "message", "proposer")

    def __init__(self, proposer: str, message: Received) -> None:
        self.proposer = proposer
        """Who made it, as the call named it."""
        self.message = message
        """The `propose`."""
        self._decision: Performative | None = None
        self._result: asyncio.Future[Received] = asyncio.get_running_loop().create_future()

    @property
    def content(self) -> str | bytes | None:
        """What is proposed."""
        return self.message.content

    @property
    def decision(self) -> Performative | None:
        """ACCEPT_PROPOSAL, REJECT_PROPOSAL, or None while there is none."""
        return self._decision

    def __repr__(self) -> str:
        return f"Proposal({self.proposer}: {self.content!r}, {self._decision or 'undecided'})"
