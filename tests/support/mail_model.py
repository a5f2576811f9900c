"""What mailboxes have to do, as plain lists: the model that a platform is compared with.

Owns: which outcomes, deliveries, flags and counts are right, and what senders have to hear. Leaves to others: the platform
(`mail_bench`), and what happens in which order (`tests/integration/storage/test_store_model.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason, Outcome
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

LIMITS = BusLimits(mailbox_messages=8, max_deliveries=3, urgent_messages=2, dead_letter_ttl=1e9)
"""So small that bounds are met; dead letters stay, however much time passes."""
URGENT = 4


@dataclass(eq=False)
class Mail:
    """One accepted message in one mailbox."""

    number: int
    """Place in the order of acceptance."""
    sender: str
    message: pb.BusMessage
    accepted_at: float
    flagged: bool
    sequence: int = 0
    """0 until it was delivered."""
    attempt: int = 0
    """Deliveries, but for those that a nack of another one has ended."""
    written: int = 0
    """Deliveries that count, as a store has them, where they never go down."""
    tag: int = 0
    suspect: bool = False
    """Its last reader was lost with it in hand."""
    granted: int = 0
    """Deliveries beyond the bound: those that nobody failed in, and one where nobody knows any more after a stop whether its
    readers were lost because of it."""
    returned: bool = False
    """Its reader had it in hand before it was returned, and may still settle it."""
    holds: bool = False
    """Its lane waits for it."""

    def __post_init__(self) -> None:
        self.payload = self.message.SerializeToString()
        self.lane = (self.sender, self.message.acl.conversation_id)
        self.urgent = self.message.priority == URGENT
        self.order = (self.sender, self.message.priority, self.message.transient)

    @property
    def counted(self) -> int:
        return max(1, self.attempt - self.granted)

    def deliveries_left(self) -> float:
        return LIMITS.max_deliveries + self.granted - self.attempt if self.suspect else math.inf

    def is_over(self, now: float) -> bool:
        return self.accepted_at < now - LIMITS.mailbox_ttl or ends_at(self.message) <= now


def ends_at(message: pb.BusMessage) -> float:
    """Return when a message expires, in Unix seconds."""
    return message.expires_at.ToMilliseconds() / 1000 if message.HasField("expires_at") else math.inf


@dataclass
class Box:
    """One registered reader: its mail, in the order of acceptance, and what it has in hand, in the order of delivery."""

    suspended: bool = False
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Place in the order of acceptance, and sequence, of all that was ever delivered."""
    waiting: list[Mail] = field(default_factory=list)
    in_hand: list[Mail] = field(default_factory=list)
    lanes: dict[tuple[str, str], float] = field(default_factory=dict)
    """Lanes that wait after a nack, and until when."""
    there: bool = False
    """A session is open."""
    tag: int = 0
    alone: Mail | None = None
    """What was delivered by itself last."""
    returned: Counter[int] = field(default_factory=Counter)
    """Sequences of which the reader is still to hear that they were returned."""

    @property
    def mail(self) -> list[Mail]:
        return [*self.waiting, *self.in_hand]

    @property
    def answerable(self) -> list[Mail]:
        """What the reader may settle: also what was returned by the nack of another letter, which it has in hand."""
        return [*self.in_hand, *(mail for mail in self.waiting if mail.returned)]

    def deliverable(self) -> list[Mail]:
        if not self.there or self.suspended:
            return []
        all_but_urgent = self.alone not in self.in_hand
        return [mail for mail in self.waiting if mail.lane not in self.lanes and (mail.urgent or all_but_urgent)]

    def expected(self, room: int) -> range:
        """Return how many letters may come to a reader that takes ``room`` more."""
        deliverable = self.deliverable()
        urgent = sum(mail.urgent for mail in deliverable)
        # Some urgent ones pass a full window, and take the room of what is not.
        passing = min(urgent, room + LIMITS.urgent_messages)
        most = passing + min(max(0, room - passing), len(deliverable) - urgent)
        # Nothing goes beside what goes alone, so it depends on whose turn it is.
        return range(0 if any(mail.deliveries_left() <= 1 for mail in deliverable) else most, most + 1)

    def deliver(self, letter: Letter) -> None:
        """Check that a letter may come now and as it did, and have the reader take it."""
        deliverable = self.deliverable()
        sender = letter.sender.partition("@")[0]
        found = [mail for mail in deliverable if (mail.sender, mail.payload) == (sender, letter.envelope.payload)]
        assert len(found) == 1, f"{letter.message_id} of {sender} must not come: {self}"
        mail = found[0]
        for one in deliverable:
            assert one.message.priority <= mail.message.priority, f"{mail} came before the more urgent {one}"
            assert one.order != mail.order or one.number >= mail.number, f"{mail} came before {one}"
        assert mail.deliveries_left() > 0, f"{mail} came, and should have been given up"
        if mail.deliveries_left() == 1:
            assert not self.in_hand, f"{mail} did not come alone"
            self.alone = mail
        mail.attempt += 1
        self.tag += 1
        came = (letter.redelivered, letter.attempt, letter.tag, letter.accepted_at)
        assert came == (mail.flagged, mail.attempt, self.tag, mail.accepted_at), f"{mail} came as {came}"
        assert letter.message_id == mail.message.id or not mail.message.id
        assert mail.sequence in {0, letter.sequence}
        if not mail.sequence:
            # In the order of acceptance, whoever sent it, and never one that was used, in whatever life of the bus.
            assert all((number < mail.number) == (sequence < letter.sequence) for number, sequence in self.seen)
            self.seen.append((mail.number, letter.sequence))
        mail.sequence, mail.tag, mail.returned = letter.sequence, letter.tag, False
        self.waiting.remove(mail)
        self.in_hand.append(mail)

    def lose(self, *, politely: bool = False, held: Iterable[Mail] = ()) -> None:
        """The session ends: all that the reader had in hand waits again; another one goes on with what is ``held``."""
        for mail in self.in_hand:
            mail.flagged, mail.suspect = True, not politely
            mail.granted += politely and mail not in held
        for mail in self.answerable:
            # What nobody failed in counts as one: it was delivered.
            mail.written = max(mail.written, mail.counted)
        self._put_back(self.in_hand)
        for mail in self.waiting:
            mail.returned = mail.holds = False
        self.alone = None if politely else self.alone
        self.lanes.clear()
        self.returned.clear()
        self.there, self.tag = False, 0

    def attach(self, held: Iterable[Mail], *, resumed: bool) -> None:
        """A session opens, of a reader that has ``held`` in hand still. One that resumed was not lost by what waits."""
        self.there = True
        for mail in sorted(held, key=lambda mail: (-mail.message.priority, mail.number)):
            self.waiting.remove(mail)
            self.in_hand.append(mail)
            mail.tag, mail.attempt = 0, max(1, mail.attempt)
        for mail in [mail for mail in self.waiting if mail.suspect and resumed]:
            mail.suspect = False
            mail.granted += 1

    def nack(self, nacked: Sequence[Mail], until: float) -> None:
        """Have letters come again: what was nacked, and the later deliveries of its lane, which then do not count."""
        returned: dict[tuple[str, str], list[Mail]] = {}
        for mail in self.in_hand:
            if mail.lane in returned or mail in nacked:
                returned.setdefault(mail.lane, []).append(mail)
        for lane, mails in returned.items():
            self.lanes[lane] = max(self.lanes.get(lane, until), until)
            mails[0].holds = True
            for mail in mails:
                mail.attempt -= mail is not mails[0]
                mail.flagged, mail.suspect, mail.returned = True, False, True
                self.alone = None if mail is self.alone else self.alone
                mail.written = max(mail.written, mail.counted) if mail in nacked else mail.written
                self.returned[mail.sequence] += 1
            self._put_back(mails)

    def remove(self, mail: Mail) -> None:
        (self.in_hand if mail in self.in_hand else self.waiting).remove(mail)
        if mail.holds and not any(one.holds for one in self.waiting if one.lane == mail.lane):
            del self.lanes[mail.lane]

    def let_go(self, now: float) -> None:
        """Have the lanes go on whose time has come."""
        self.lanes = {lane: until for lane, until in self.lanes.items() if until > now}
        for mail in self.waiting:
            mail.holds = mail.holds and mail.lane in self.lanes

    def restarted(self, *, crashed: bool) -> Box:
        """Return what is there of it after the bus ended; a crash comes before anything of that is written."""
        may_be_doubled = crashed and self.there
        if not crashed:
            # It is the bus that goes.
            self.lose(politely=True)
        kept = sorted((mail for mail in self.mail if not mail.message.transient), key=lambda mail: mail.number)
        for mail in kept:
            mail.attempt, mail.suspect = mail.written, mail.written >= LIMITS.max_deliveries
            mail.granted, mail.returned, mail.holds = int(mail.suspect), False, False
            mail.flagged |= may_be_doubled
            mail.written = max(mail.written, int(may_be_doubled))
        return Box(self.suspended, self.seen, kept)

    def _put_back(self, mails: Iterable[Mail]) -> None:
        for mail in list(mails):
            self.in_hand.remove(mail)
            self.waiting.append(mail)
        self.waiting.sort(key=lambda mail: mail.number)


class Model:
    """All mailboxes of a platform, and what is known beside them."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.keys: dict[tuple[str, str, str], tuple[pb.BusMessage, float]] = {}
        """By (sender, id, receiver) what was accepted, and when it was settled."""
        self.dead: Counter[tuple[str, bytes, DeadReason, int]] = Counter()
        """Dead letters as (receiver, payload, reason, attempt)."""
        self.to_tell: Counter[tuple[str, str, str]] = Counter()
        """Failures of which senders have to hear, as (sender, receiver, id)."""
        self._number = 0

    def allowed(self, sender: str, message: pb.BusMessage, receiver: str, now: float) -> set[Outcome]:
        """Return the outcomes that are right for one receiver of a message."""
        new = self.allowed_anew(message, receiver, now)
        known = self.keys.get((sender, message.id, receiver))
        if known is None or new in {Outcome.EXPIRED, Outcome.NO_SUCH_AGENT}:
            return {new}
        repeated = Outcome.DUPLICATE if known[0].acl == message.acl else Outcome.INVALID
        # Remembered for the window at least.
        return {repeated, new} if known[1] < now - LIMITS.dedupe_window else {repeated}

    def allowed_anew(self, message: pb.BusMessage, receiver: str, now: float) -> Outcome:
        """Return the outcome for one receiver of a message that is no repetition."""
        if ends_at(message) <= now:
            return Outcome.EXPIRED
        box = self.boxes.get(receiver)
        if box is None:
            return Outcome.NO_SUCH_AGENT
        return Outcome.MAILBOX_FULL if len(box.mail) >= LIMITS.mailbox_messages else Outcome.ACCEPTED

    def accept(self, sender: str, message: pb.BusMessage, receiver: str, now: float, *, flagged: bool) -> None:
        self._number += 1
        if message.id:
            self.keys[sender, message.id, receiver] = (message, math.inf)
        self.boxes[receiver].waiting.append(Mail(self._number, sender, message, now, flagged))

    def settle(self, reader: str, mail: Mail, now: float) -> None:
        self.boxes[reader].remove(mail)
        if mail.message.id:
            self.keys[mail.sender, mail.message.id, reader] = (mail.message, now)

    def give_up(self, reader: str, mail: Mail, reason: DeadReason, now: float) -> None:
        self.settle(reader, mail, now)
        self.to_tell[mail.sender, reader, mail.message.id] += 1
        if not (mail.message.transient and reason is DeadReason.EXPIRED):
            self.dead[reader, mail.payload, reason, mail.attempt] += 1

    def pass_time(self, now: float) -> None:
        """Do what is due."""
        for reader, box in self.boxes.items():
            for mail in [mail for mail in box.waiting if mail.is_over(now)]:
                self.give_up(reader, mail, DeadReason.EXPIRED, now)
            box.let_go(now)

    def restart(self, *, keeps: bool, crashed: bool) -> None:
        """The bus ends and starts, on a store that ``keeps`` what is written or one that does not."""
        if not keeps:
            self.boxes, self.keys, self.dead = {}, {}, Counter()
        self.keys = {key: known for key, known in self.keys.items() if not known[0].transient}
        self.boxes = {name: box.restarted(crashed=crashed) for name, box in self.boxes.items()}
