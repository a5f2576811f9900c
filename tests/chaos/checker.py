"""What the histories of a run say about the promises of the bus, once everything has ended.

Owns: the levels L0 to L4 and their counts. Leaves to others: making histories (`tests.chaos.history`), reading what is left
in the mailboxes (the collector of `tests.chaos.clients`, whose history is one more file here).

    L0  no accepted message is lost
    L1  no message comes from nowhere, changed, under another sender, after a refusal, after it was given up, or under a number
        used before
    L2  a second delivery is flagged as redelivered; no handler of a living process has a message to its end twice
    L3  first deliveries are in the order of sending, per sender and receiver; where handlers run side by side, or deliveries
        were sent back, which holds up only their own lane, per sender, receiver and conversation
    L4  every accepted message ends acknowledged, given up and said so, expired, or is still queued; every message of a
        sender that was left its time has an outcome

Tasks are not judged here: their histories do not exist yet.
"""

from __future__ import annotations

import bisect
from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.history import read
from tests.chaos.scenario import Report

Key = tuple[str, str]
"""(id, receiver without platform)."""

_DELIVERED = frozenset({"ACCEPTED", "DUPLICATE"})
_UNKNOWN = frozenset({"UNKNOWN", "UNREACHABLE"})
"""Outcomes that leave open whether the message is in the mailbox."""
_EXAMPLES = 3


class _Message:
    """One message to one receiver, as its sender wrote it down."""

    __slots__ = (
        "accepted",
        "answered",
        "body",
        "expected",
        "expires_at",
        "lane",
        "number",
        "refused",
        "sender",
        "transient",
    )

    def __init__(self, event: dict[str, Any], history: int) -> None:
        self.sender: str = event["sender"]
        self.number: int = event["number"]
        self.body: str = event["body"]
        self.expires_at: float | None = event.get("expires_at")
        self.transient: bool = event.get("transient", False)
        self.lane = (self.sender, history, event.get("priority", "normal"), self.transient)
        """Order is promised among messages of one priority, durable and transient each on its own. A sender that was killed
        and started anew has numbers of its own each time; what it sent in between has no order that anybody could name."""
        self.accepted = False
        self.refused = False
        """Was refused at least once, so that its place in the order is not that of its number."""
        self.answered = False
        self.expected = False
        """Its sender lived to the end, so that an outcome is due."""


class _Arrival(NamedTuple):
    """One delivery; sorts by time, then by place in its history."""

    at: float
    history: int
    line: int
    id: str
    sender: str
    sequence: int
    redelivered: bool
    body: str
    conversation: str
    by_handler: bool


@dataclass(slots=True)
class Count:
    """How often something happened that must not happen, with a few examples."""

    what: str
    times: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        self.times += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(example)

    def __str__(self) -> str:
        more = ", ..." if self.times > len(self.examples) else ""
        return f"{self.times:,} {self.what} ({', '.join(self.examples)}{more})"


@dataclass(slots=True)
class Findings:
    """What a run came to, in numbers; everything of type `Count` must be zero."""

    sent: int = 0
    """Messages handed over, per receiver."""
    accepted: int = 0
    """Of these, with an ACCEPTED or DUPLICATE receipt."""
    handled: int = 0
    """Of the accepted ones, acknowledged by a receiver."""
    stored: int = 0
    """Of the accepted ones, still in a mailbox at the end, given up and said so, or expired."""
    refused: int = 0
    """Messages that were refused and never accepted."""
    dead: int = 0
    """Accepted messages that the bus gave up and said so."""
    deliveries: int = 0
    """Deliveries in all, repeated ones included."""
    redeliveries: int = 0
    """Second and later deliveries of a message, all of which have to be flagged."""
    flagged_first: int = 0
    """First deliveries with the flag; allowed, since it says *may have been delivered before*."""
    errors: int = 0
    """Errors that clients wrote down."""
    left: int = 0
    """Messages that the collector found, accepted ones or not."""
    lost: Count = field(default_factory=lambda: Count("accepted messages lost"))
    """L0 and L4: never delivered, or delivered and neither acknowledged nor anywhere at the end."""
    from_nowhere: Count = field(default_factory=lambda: Count("messages from nowhere"))
    wrong_body: Count = field(default_factory=lambda: Count("bodies changed"))
    wrong_sender: Count = field(default_factory=lambda: Count("deliveries under another sender"))
    after_refusal: Count = field(default_factory=lambda: Count("messages delivered after a refusal"))
    after_given_up: Count = field(default_factory=lambda: Count("messages delivered after they were given up"))
    sequence_reused: Count = field(default_factory=lambda: Count("sequences used for two messages"))
    doubled_unflagged: Count = field(default_factory=lambda: Count("second deliveries without a flag"))
    handled_twice: Count = field(default_factory=lambda: Count("messages handled twice by one process"))
    out_of_order: Count = field(default_factory=lambda: Count("first deliveries out of order"))
    unanswered: Count = field(default_factory=lambda: Count("messages without an outcome"))
    accepted_at: array[float] = field(default_factory=lambda: array("d"))
    """Monotonic times of the accepting receipts, in order."""

    def problems(self) -> list[str]:
        """Return in words what is not as promised, except what `Report` has a number for."""
        counts = (
            self.from_nowhere,
            self.wrong_body,
            self.wrong_sender,
            self.after_refusal,
            self.after_given_up,
            self.sequence_reused,
            self.handled_twice,
            self.out_of_order,
            self.unanswered,
        )
        said = [str(one) for one in counts if one.times]
        # Their numbers stand in the report already; the examples do not.
        said += [f"{one.what}: {', '.join(one.examples)}" for one in (self.lost, self.doubled_unflagged) if one.times]
        return said

    def rate(self, start: float, end: float) -> float:
        """Return accepted messages per second between two moments of the monotonic clock."""
        if end <= start:
            return 0.0
        return (bisect.bisect(self.accepted_at, end) - bisect.bisect(self.accepted_at, start)) / (end - start)

    def into(self, report: Report) -> Report:
        """Put the numbers and problems into a report, beside what is there; return it."""
        report.accepted = self.accepted
        report.handled = self.handled
        report.stored = self.stored
        report.lost = self.lost.times
        report.doubled_unflagged = self.doubled_unflagged.times
        report.problems.extend(self.problems())
        return report


def check(paths: Iterable[Path]) -> Findings:
    """Return what the histories in ``paths`` say. Call it when every client has ended and the collector has run."""
    return _Run(paths).judged()


class _Run:
    """The histories of one run, read into tables."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.found = Findings()
        self.messages: dict[Key, _Message] = {}
        self.arrivals: defaultdict[str, list[_Arrival]] = defaultdict(list)
        self.acknowledged: set[Key] = set()
        self.left: set[Key] = set()
        self.dead: dict[Key, float] = {}
        """Messages that were given up, and when somebody first heard of it."""
        self.sent_back: set[str] = set()
        """Receivers that sent deliveries back."""
        self.last_wall = 0.0
        receipts: list[tuple[float, Key, str]] = []
        ended: set[int] = set()
        sent_by: list[tuple[int, Key]] = []
        for history, path in enumerate(paths):
            kind = ""
            done: set[Key] = set()
            for line, event in enumerate(read(path)):
                self.last_wall = max(self.last_wall, event["w"])
                what = event["e"]
                if what == "start":
                    kind = event["kind"]
                elif what == "sent":
                    key = (event["id"], _local(event["to"]))
                    if key not in self.messages:
                        self.messages[key] = _Message(event, history)
                    sent_by.append((history, key))
                elif what == "receipt":
                    receipts.append((event["t"], (event["id"], _local(event["receiver"])), event["outcome"]))
                elif what == "delivered":
                    self._arrived(event, kind, history, line)
                elif what == "handled":
                    key = (event["id"], _local(event["receiver"]))
                    self.acknowledged.add(key)
                    if key in done:
                        self.found.handled_twice.add(_name(key))
                    done.add(key)
                elif what == "settled":
                    if event["how"] != "ack":
                        self.sent_back.add(_local(event["receiver"]))
                    elif kind != "collector":
                        self.acknowledged.add((event["id"], _local(event["receiver"])))
                elif what == "dead":
                    self.dead.setdefault((event["id"], _local(event["receiver"])), event["t"])
                elif what == "error":
                    self.found.errors += 1
                elif what == "end":
                    ended.add(history)
        # A receipt may stand in another history than the sending, so all of them first.
        self._receipts(receipts)
        for history, key in sent_by:
            if history in ended:
                self.messages[key].expected = True
        for key in self.dead.keys() - self.messages.keys():
            self.found.from_nowhere.add(f"a failure of {_name(key)}")

    def _arrived(self, event: dict[str, Any], kind: str, history: int, line: int) -> None:
        receiver = _local(event["receiver"])
        self.arrivals[receiver].append(
            _Arrival(
                event["t"],
                history,
                line,
                event["id"],
                _local(event["sender"]),
                event["sequence"],
                event["redelivered"],
                event["body"],
                event["conversation"],
                kind == "sdk",
            )
        )
        if kind == "collector":
            self.left.add((event["id"], receiver))

    def _receipts(self, receipts: list[tuple[float, Key, str]]) -> None:
        for at, key, outcome in sorted(receipts):
            message = self.messages.get(key)
            if message is None:
                self.found.from_nowhere.add(f"a receipt for {_name(key)}")
                continue
            message.answered |= outcome != "UNKNOWN"
            if outcome in _DELIVERED:
                if not message.accepted:
                    self.found.accepted_at.append(at)
                message.accepted = True
            elif outcome not in _UNKNOWN:
                message.refused = True

    # ---- judging ---------------------------------------------------------------------------------------------------

    def judged(self) -> Findings:
        found = self.found
        unknown_outcome = self._ended()
        found.sent = len(self.messages)
        found.left = len(self.left)
        for receiver, arrivals in self.arrivals.items():
            arrivals.sort()
            self._deliveries(receiver, arrivals, unknown_outcome)
        return found

    def _ended(self) -> set[Key]:
        """L0 and L4: where every message ended. Return those that were refused, and of which nothing else was heard."""
        found = self.found
        refused: set[Key] = set()
        for key, message in self.messages.items():
            if not message.accepted:
                if message.refused:
                    found.refused += 1
                    refused.add(key)
                elif message.expected and not message.answered:
                    found.unanswered.add(_name(key))
                continue
            found.accepted += 1
            expired = message.expires_at is not None and message.expires_at <= self.last_wall
            if key in self.acknowledged:
                found.handled += 1
            elif key in self.left or key in self.dead or expired:
                found.stored += 1
            elif not message.transient:
                found.lost.add(_name(key))
            found.dead += key in self.dead
        return refused

    def _deliveries(self, receiver: str, arrivals: list[_Arrival], refused: set[Key]) -> None:
        """L1, L2 and L3 for one receiver, whose deliveries are in order of time."""
        found = self.found
        seen: set[str] = set()
        sequences: dict[int, str] = {}
        last: dict[tuple[Any, ...], int] = {}
        for one in arrivals:
            found.deliveries += 1
            key = (one.id, receiver)
            message = self.messages.get(key)
            if message is None:
                found.from_nowhere.add(_name(key))
                continue
            if message.body != one.body:
                found.wrong_body.add(_name(key))
            if message.sender != one.sender:
                found.wrong_sender.add(f"{_name(key)} as of {one.sender}")
            if sequences.setdefault(one.sequence, one.id) != one.id:
                found.sequence_reused.add(f"{one.sequence} of {receiver}: {sequences[one.sequence]} and {one.id}")
            if one.at > self.dead.get(key, one.at):
                found.after_given_up.add(_name(key))
            if one.id in seen:
                found.redeliveries += 1
                if not one.redelivered:
                    found.doubled_unflagged.add(_name(key))
                continue
            seen.add(one.id)
            found.flagged_first += one.redelivered
            if key in refused:
                found.after_refusal.add(_name(key))
            if message.refused:
                continue
            by_lane = one.by_handler or receiver in self.sent_back
            lane = (*message.lane, one.conversation if by_lane else None)
            before = last.get(lane, -1)
            if message.number < before:
                found.out_of_order.add(f"{_name(key)}: number {message.number} after {before}")
            last[lane] = max(before, message.number)


def _local(name: str) -> str:
    return name.partition("@")[0]


def _name(key: Key) -> str:
    return f"{key[0]} to {key[1]}"
