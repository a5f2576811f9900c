"""What the clients of a platform know, and at which point of the disk's record they came to know it.

A promise that was seen at one point has to survive every power cut from there on; what was asked for after a cut cannot
be there. Owns: these facts. Leaves to others: coming to know them (`power_load`), comparing (`power_check`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from gagent_grpc.bus.ports import StoredMessage, StoredPlatform

Key = tuple[str, str, str]
"""Sender as stamped, id, receiver."""

SENDERS = ("ada", "bea", "cleo")
READERS = ("rex", "sam", "tom")


@dataclass(slots=True)
class Sent:
    """One message for one receiver. Positions are those of the disk when its client knew; None for never."""

    number: int
    """Rises with every message of the run."""
    payload: bytes
    priority: int
    transient: bool
    submitted: int
    accepted: int | None = None
    """When its receipt was there."""
    deliveries: list[int] = field(default_factory=list)
    sequence: int = 0
    """Known from the first delivery on."""
    settled: int | None = None
    """When its reader settled it: from then on it may be gone."""
    rejected: bool = False
    """Its reader settled it by a rejection: where it is gone, it is a dead letter, and its sender is told."""
    forgotten: int | None = None
    """When the settle had become durable: from then on it must not come again."""

    def delivered_by(self, cut: int) -> int:
        """Return how often it had been delivered by then."""
        return sum(position <= cut for position in self.deliveries)


@dataclass(slots=True)
class Version:
    """One state of a description in the DF."""

    name: str
    submitted: int
    durable: int | None = None


def by(position: int | None, cut: int) -> bool:
    """Whether something was known when the power was cut."""
    return position is not None and position <= cut


@dataclass(slots=True)
class Ledger:
    """What the clients of one life know, and when they came to know it."""

    sent: dict[Key, Sent] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)
    """When a registration was confirmed."""
    versions: defaultdict[str, list[Version]] = field(default_factory=lambda: defaultdict(list))
    floors: Counter[str] = field(default_factory=Counter)
    """Highest sequence of each mailbox that was seen in an earlier life."""
    opened: int | None = None
    """When the platform ran: from then on a stop is unclean."""
    closing: int | None = None
    """When its stop began: from then on the stop may count as clean."""
    closed: int | None = None
    """When it had ended: from then on the stop is clean."""

    def next_life(self, cut: int, found: StoredPlatform) -> Ledger:
        """Return what is still true after a cut that left ``found``; all of it from before the next life began."""
        left = Ledger(agents=dict.fromkeys((name for name, at in self.agents.items() if at <= cut), 0))
        left.floors = Counter({name: self.highest_seen(name, cut) for name in READERS})
        kept = {key_of(message) for message in found.messages}
        for key, one in self.sent.items():
            if one.transient or not (key in kept or by(one.accepted, cut)):
                continue
            gone = None if key in kept else 0
            deliveries = [0] * one.delivered_by(cut)
            sequence = one.sequence if deliveries else 0
            left.sent[key] = Sent(
                one.number,
                one.payload,
                one.priority,
                False,
                -1,
                0,
                deliveries,
                sequence,
                settled=gone,
                forgotten=gone,
                rejected=one.rejected and gone is not None,
            )
        for name, versions in self.versions.items():
            there = version_of(found, name)
            left.versions[name] = [Version(one.name, -1, 0) for one in versions if one.name == there]
        return left

    def highest_seen(self, reader: str, cut: int) -> int:
        """Return the highest sequence of a mailbox that a reader had seen by then."""
        # Not handled: a transient message, which may be delivered before its sequence is covered by what the store has.
        sent = ((key[2], one) for key, one in self.sent.items() if not one.transient and one.delivered_by(cut))
        return max([self.floors[reader], *(one.sequence for name, one in sent if name == reader)])


def key_of(message: StoredMessage) -> Key:
    """Return by what a ledger knows a message."""
    return message.sender, message.message_id, message.receiver


def version_of(found: StoredPlatform, name: str) -> str:
    """Return the version of the description that an agent has in a store; "" for none."""
    for entry in found.descriptions:
        if entry.description.name == f"{name}@local":
            return entry.description.services[0].name or ""
    return ""
