"""What every fault of the harness has in common: how large it is made, and what it says at the end.

Owns: the shape of a scenario and its line. Leaves to others: making the fault (one module each), what the histories say
(`tests.chaos.checker`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

LEAST_RATE = 100.0
"""Messages per second before the fault, below which a run says nothing."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a scenario is made."""

    long: bool
    """The long form of `make chaos`; else the short one of `make check`."""
    seed: int
    """Seed of everything that is drawn; printed, so that a run can be repeated."""
    folder: Path
    """Where histories, stores and logs of the run go; kept when it fails."""


@dataclass(slots=True)
class Report:
    """What one fault did. Printed as one line."""

    fault: str
    """Short name, such as `kill -9 of the bus`."""
    done: str
    """What was done, with its numbers: `20 kills in 41 s`."""
    accepted: int = 0
    """Messages with an ACCEPTED (or DUPLICATE) receipt."""
    handled: int = 0
    """Distinct accepted messages that a receiver acknowledged."""
    stored: int = 0
    """Accepted messages that are still in a mailbox, in the dead letters, or expired, at the end."""
    lost: int = 0
    """Accepted messages of which nothing is left."""
    doubled_unflagged: int = 0
    """Second deliveries of a message that were not flagged as redelivered."""
    rate_before: float | None = None
    """Messages per second before the fault; None where the scenario needs no load."""
    problems: list[str] = field(default_factory=list)
    """Everything else that is not as promised, in words: order, wrong bodies, bounds, time-outs, processes left."""

    @property
    def void(self) -> bool:
        """Whether there was too little load for the run to say anything."""
        return self.rate_before is not None and self.rate_before < LEAST_RATE

    @property
    def good(self) -> bool:
        """Whether everything is as promised."""
        return not (self.lost or self.doubled_unflagged or self.problems or self.void)

    def line(self) -> str:
        """Return the report as one line of text."""
        rate = "" if self.rate_before is None else f", {self.rate_before:,.0f}/s before"
        words = (
            f"{self.fault}: {self.done}{rate}; accepted {self.accepted:,}, handled {self.handled:,}, "
            f"stored {self.stored:,}, lost {self.lost:,}, doubled unflagged {self.doubled_unflagged:,}"
        )
        if self.void:
            words += f" | VOID: below {LEAST_RATE:.0f} messages/s"
        return words + "".join(f" | {one}" for one in self.problems)


Scenario = Callable[[Scale], Awaitable[Report]]
"""Makes one fault and reports. Owns every process that it starts, and ends it whatever happens."""
