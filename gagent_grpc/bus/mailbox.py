"""The mailbox of one agent: bounded, in order, with what is delivered kept until it is settled.

Owns: queues by urgency, deliveries in flight, lanes that are held after a nack, the bounds, and that no sender takes all
of it. Leaves to others: what is durable (a store), who may read (the session that holds the newest generation), what
becomes of mail that is given up. Pure: no loop and no clock; times are given by the caller.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from gagent_grpc.bus.queue import FairQueue
from gagent_grpc.envelope import Envelope, Priority

RESERVE_SHARE = 4
"""Part of a bound on bytes, of one mailbox or of all together, that notices of the platform may take beside it."""
_OTHERS_SHARE = 16
"""Part of a mailbox's bounds, beside them, that is kept for senders who have little in it; a sender who filled it all, or
many at once, then keeps nobody out at once."""
_LITTLE_SHARE = 8
"""Part of that part that one sender may take of it; at least one message."""
_URGENT_BYTES = 256 * 1024
"""What urgent deliveries may take beyond a full window, in bytes."""


class Letter:
    """One message in one mailbox. Slotted, since one is built for every message and receiver."""

    __slots__ = (
        "accepted_at",
        "account",
        "attempt",
        "envelope",
        "message_id",
        "pardoned",
        "redelivered",
        "reprieve",
        "sender",
        "sequence",
        "suspect",
        "tag",
        "via",
    )

    def __init__(
        self,
        sequence: int,
        envelope: Envelope,
        sender: str,
        message_id: str,
        via: str,
        accepted_at: float,
        account: Account | None = None,
    ) -> None:
        self.sequence = sequence
        self.envelope = envelope
        self.sender = sender
        """`name@platform`, as the bus vouches for it."""
        self.message_id = message_id
        """The sender's id, or the one that the bus gave."""
        self.via = via
        """Address that led here when it was not the receiver's own."""
        self.accepted_at = accepted_at
        """Unix seconds."""
        self.account = account
        """What its sender has in the mailbox; None for a notice of the platform."""
        self.attempt = 0
        """Deliveries so far."""
        self.redelivered = envelope.resend
        """It may have been delivered before."""
        self.suspect = False
        """Its last reader was lost with it in hand: that may have been its doing."""
        self.pardoned = 0
        """Deliveries that nobody failed in, which do not count against the bound."""
        self.reprieve = 0
        """Deliveries that `restore` grants beyond the bound."""
        self.tag = 0
        """Number of the delivery in the present session; 0 while not in flight."""

    @property
    def in_reserve(self) -> bool:
        """Whether it is a notice of the platform, which counts against the reserve and not against the mailbox's bound."""
        return self.account is None

    @property
    def counted(self) -> int:
        """Deliveries that count against the bound on them, of a letter that was delivered: at least 1."""
        return max(1, self.attempt - self.pardoned)

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return len(self.envelope.payload)

    @property
    def lane(self) -> tuple[str, str]:
        """Messages with the same lane are never delivered out of order."""
        return (self.sender, self.envelope.conversation_id)


class Account:
    """What one sender has in a mailbox, what is being written included."""

    __slots__ = ("bytes", "messages", "sender")

    def __init__(self, sender: str) -> None:
        self.sender = sender
        self.messages = 0
        self.bytes = 0


class _HeldLane:
    """A lane that waits: its letters in order, for which of them it waits, and when it may go on."""

    __slots__ = ("holders", "letters", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        # By sequence: its reader may settle what was returned, in any order.
        self.letters: dict[int, Letter] = {}
        self.holders: set[int] = set()
        """Sequences of the letters that were nacked; without them nothing holds the lane."""


class Mailbox:
    """One agent's mail.

    Room is reserved with `reserve` when a message is accepted, and the letter appears with `put` once it is as durable
    as promised; so a bound holds for what is being written, too.
    """

    __slots__ = (
        "_accounts",
        "_alone",
        "_held",
        "_in_flight",
        "_in_flight_bytes",
        "_queues",
        "_returned",
        "_timers",
        "bytes",
        "exhausted",
        "max_bytes",
        "max_messages",
        "messages",
        "next_expiry",
        "next_sequence",
        "overdue",
        "reserve_bytes",
        "reserve_messages",
    )

    def __init__(self, *, max_messages: int, max_bytes: int, next_sequence: int = 1) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.next_sequence = next_sequence
        self.messages = 0
        """Unsettled messages, those being written included."""
        self.bytes = 0
        self.next_expiry = math.inf
        """When the next letter may expire, in Unix seconds."""
        self.reserve_messages = 0
        """Notices of the platform that are not settled; outside the bounds, and bounded by themselves."""
        self.reserve_bytes = 0
        self._accounts: dict[str, Account] = {}
        # The most urgent one first.
        self._queues = tuple(FairQueue() for _ in Priority)
        self.exhausted: list[Letter] = []
        """Letters out of the queues that `take` found delivered too often; whoever took gives them up."""
        self.overdue: list[Letter] = []
        """As `exhausted`, of those whose time was over."""
        self._alone = 0
        """Sequence of the letter that was delivered by itself last."""
        self._in_flight: dict[int, Letter] = {}
        self._in_flight_bytes = 0
        self._held: dict[tuple[str, str], _HeldLane] = {}
        # Letters that the present reader had in hand and that wait to come again: it may still settle them.
        self._returned: dict[int, Letter] = {}
        self._timers: list[tuple[float, tuple[str, str]]] = []

    # ---- accepting -------------------------------------------------------------------------------------------------

    def reserve(self, size: int, sender: str) -> Account | None:
        """Take room for a message of ``size`` bytes; return what its letter counts for, or None when there is no room.

        An empty mailbox takes any size. Beside the bounds there is a sixteenth more for senders who have little in it:
        whoever filled it does not keep the others out.
        """
        account = self._accounts.get(sender)
        messages, total = self.messages, self.bytes + size
        if (
            (messages >= self.max_messages or total > self.max_bytes)
            and messages
            and not self._has_room_for_others(size, account)
        ):
            return None
        # As `reserve_over`, without another call for every message.
        if account is None:
            account = self._accounts[sender] = Account(sender)
        account.messages += 1
        account.bytes += size
        self.messages = messages + 1
        self.bytes = total
        return account

    def _has_room_for_others(self, size: int, account: Account | None) -> bool:
        """Whether a message over the bounds fits what is kept for senders with little in the mailbox."""
        messages, total = self.max_messages // _OTHERS_SHARE, self.max_bytes // _OTHERS_SHARE
        if self.messages >= self.max_messages + messages or self.bytes + size > self.max_bytes + total:
            return False
        if account is None:
            return True
        return account.messages < messages // _LITTLE_SHARE and account.bytes + size <= total // _LITTLE_SHARE

    @property
    def full(self) -> bool:
        """Whether there is no room for another message of any size, of a sender who has much in it."""
        return self.messages >= self.max_messages or self.bytes >= self.max_bytes

    def reserve_over(self, size: int, sender: str) -> Account:
        """Take room for one message that must not be refused any more, over the bounds if need be; as `reserve`."""
        account = self._accounts.get(sender)
        if account is None:
            account = self._accounts[sender] = Account(sender)
        account.messages += 1
        account.bytes += size
        self.messages += 1
        self.bytes += size
        return account

    def reserve_notice(self, size: int) -> bool:
        """Take room for a notice of the platform of ``size`` bytes; return whether the reserve had any."""
        if self.reserve_messages and (
            self.reserve_messages >= self.max_messages or self.reserve_bytes + size > self.max_bytes // RESERVE_SHARE
        ):
            return False
        self.reserve_messages += 1
        self.reserve_bytes += size
        return True

    def release(self, letter: Letter) -> None:
        """Give back the room of a letter that is settled, given up, or was never stored."""
        account, size = letter.account, len(letter.envelope.payload)
        if account is None:
            self.reserve_messages -= 1
            self.reserve_bytes -= size
            return
        self.messages -= 1
        self.bytes -= size
        account.bytes -= size
        account.messages -= 1
        if not account.messages:
            del self._accounts[account.sender]

    def _release_all(self, letters: Sequence[Letter]) -> None:
        """As `release`, of many: nearly all of them are of one sender, so that its account is written once."""
        accounts: dict[Account | None, list[Letter]] = {}
        for letter in letters:
            of_one = accounts.get(letter.account)
            if of_one is None:
                accounts[letter.account] = [letter]
            else:
                of_one.append(letter)
        for account, of_one in accounts.items():
            count, size = len(of_one), sum([len(letter.envelope.payload) for letter in of_one])
            if account is None:
                self.reserve_messages -= count
                self.reserve_bytes -= size
                continue
            self.messages -= count
            self.bytes -= size
            account.bytes -= size
            account.messages -= count
            if not account.messages:
                del self._accounts[account.sender]

    def take_sequence(self) -> int:
        """Return the next sequence of this mailbox; it is never used again."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        return sequence

    def put(self, letter: Letter) -> None:
        """Add a letter for which room is reserved."""
        envelope = letter.envelope
        self._queues[4 - envelope.priority].append(letter)
        if envelope.expires_at:
            self._note_expiry(letter)

    # ---- delivering ------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Deliveries that are not settled."""
        return len(self._in_flight)

    def take(
        self,
        *,
        max_messages: int,
        max_bytes: int,
        batch_messages: int,
        batch_bytes: int,
        urgent_messages: int = 0,
        max_deliveries: int = 2**31,
        now: float = 0.0,
    ) -> list[Letter]:
        """Return the next letters and count them as in flight: urgent ones first, and senders in turn.

        One whose readers were lost with it, all but the last time that it may be delivered, goes out by itself that last
        time: if its reader is lost again, it was that one and none of its neighbours. Then it is `exhausted`.

        Args:
            max_messages: Bound on all letters in flight.
            max_bytes: Bound on their bytes; one letter always fits when none is in flight.
            batch_messages: Most letters that this call returns.
            batch_bytes: Most bytes that this call returns, except that one letter always fits.
            urgent_messages: How many urgent letters may go out beyond the bounds: they do not wait behind bulk.
            max_deliveries: How often a letter is delivered at most.
            now: Unix seconds. A letter whose time is over then is not delivered, but is `overdue`.
        """
        taken: list[Letter] = []
        held, in_flight = self._held, self._in_flight
        some_expired = self.next_expiry <= now
        # What is urgent, as the word to stop it may be, passes also what went out by itself.
        queues = self._queues[:1] if self._alone in in_flight else self._queues
        batch = 0
        extra, extra_bytes = urgent_messages, _URGENT_BYTES if urgent_messages else 0
        for queue in queues:
            room = min(max_messages + extra - len(in_flight), batch_messages - len(taken))
            bound = max_bytes + extra_bytes
            extra = extra_bytes = 0
            while queue and room > 0:
                letters = queue.turn
                most = min(room, queue.left, len(letters))
                gone, before = 0, len(taken)
                blocked = alone = False
                while gone < most:
                    letter = letters[0]
                    if held and (lane := held.get(letter.lane)) is not None:
                        # Found here and not when the lane was held, so that a nack does not walk the whole mailbox.
                        lane.letters[letter.sequence] = letters.popleft()
                        gone += 1
                        continue
                    if some_expired and 0.0 < letter.envelope.expires_at <= now:
                        # Found here, so that a mailbox in which one after the other expires is not walked each time.
                        self._returned.pop(letter.sequence, None)
                        self.overdue.append(letters.popleft())
                        gone += 1
                        continue
                    if letter.suspect and letter.attempt + 1 >= max_deliveries + letter.reprieve + letter.pardoned:
                        if letter.attempt >= max_deliveries + letter.reprieve + letter.pardoned:
                            self.exhausted.append(letters.popleft())
                            gone += 1
                            continue
                        if in_flight:
                            # Nor does anything else go out, or its turn would never come.
                            queue.took(gone)
                            return taken
                        most, alone = gone + 1, True
                        self._alone = letter.sequence
                    size = len(letter.envelope.payload)
                    if (in_flight and self._in_flight_bytes + size > bound) or (taken and batch + size > batch_bytes):
                        blocked = True
                        break
                    letters.popleft()
                    gone += 1
                    batch += size
                    letter.attempt += 1
                    if self._returned:
                        self._returned.pop(letter.sequence, None)
                    in_flight[letter.sequence] = letter
                    self._in_flight_bytes += size
                    taken.append(letter)
                queue.took(gone)
                if alone or blocked:
                    # What is less urgent does not pass a letter that is too large for now: it would find the window full of
                    # small ones each time.
                    return taken
                # What waits in a lane, or is given up, takes no room of what may go out.
                room -= len(taken) - before
            if batch >= batch_bytes:
                break
        return taken

    # ---- settling --------------------------------------------------------------------------------------------------

    def in_flight_letter(self, sequence: int) -> Letter | None:
        """Return the letter in flight with this sequence."""
        return self._in_flight.get(sequence)

    def settle(self, sequence: int) -> Letter | None:
        """Remove a delivered letter and free its room; None when it is unknown or settled already.

        A letter that was returned by the nack of an earlier one of its lane may be settled as well: its receiver had it
        in hand, and delivering it again would double it. A lane that waits for this letter goes on.
        """
        letter = self._in_flight.pop(sequence, None)
        if letter is not None:
            self._in_flight_bytes -= len(letter.envelope.payload)
            letter.tag = 0
        else:
            letter = self._leave_returned(sequence)
            if letter is None:
                return None
        self.release(letter)
        return letter

    def settle_all(self, sequences: Iterable[int]) -> list[Letter]:
        """Settle many letters; return those that were there."""
        settled: list[Letter] = []
        in_flight = self._in_flight
        size = 0
        for sequence in sequences:
            letter = in_flight.pop(sequence, None)
            if letter is not None:
                size += len(letter.envelope.payload)
                letter.tag = 0
            else:
                letter = self._leave_returned(sequence)
                if letter is None:
                    continue
            settled.append(letter)
        self._in_flight_bytes -= size
        self._release_all(settled)
        return settled

    def withdraw(self, sequence: int) -> Letter | None:
        """Remove an unsettled letter wherever it is and free its room; None when it is unknown or settled."""
        return self.withdraw_all({sequence}).get(sequence)

    def withdraw_all(self, sequences: Set[int]) -> dict[int, Letter]:
        """Withdraw many letters in one walk through the mailbox; return those that were there, by sequence."""
        withdrawn = {sequence: letter for sequence in sequences if (letter := self.settle(sequence)) is not None}
        rest = sequences - withdrawn.keys()
        if not rest:
            return withdrawn

        def stays(letter: Letter) -> bool:
            return letter.sequence not in rest

        gone = [letter for queue in self._queues for letter in queue.keep(stays)]
        for lane in self._held.values():
            gone += [lane.letters.pop(sequence) for sequence in rest.intersection(lane.letters)]
        for letter in gone:
            self.release(letter)
            withdrawn[letter.sequence] = letter
        return withdrawn

    def settle_through(self, tag: int) -> list[Letter]:
        """Remove every letter in flight with a tag up to ``tag``."""
        settled = []
        for letter in self._in_flight.values():
            # Letters enter in the order of their tags, so the first higher one ends the walk.
            if letter.tag > tag:
                break
            # One without a tag is held over from an earlier session: no tag of this one covers it.
            if letter.tag:
                settled.append(letter)
        for letter in settled:
            self._leave_flight(letter.sequence)
        self._release_all(settled)
        return settled

    def nack(self, nacks: Mapping[int, float]) -> list[Letter]:
        """Hold the lanes of delivered letters; return what comes again by that. Unknown ones are passed over.

        Later deliveries of a lane count as returned: they come again, too, flagged, and their attempt does not count.

        Args:
            nacks: For each sequence until when its lane waits.
        """
        # One walk for all, in the order of delivery, which differs from that of acceptance where urgencies differ: an
        # urgent letter that went out first is no later delivery.
        lanes: dict[tuple[str, str], list[Letter]] = {}
        for letter in self._in_flight.values():
            key = letter.lane
            if key in lanes:
                lanes[key].append(letter)
            elif letter.sequence in nacks:
                lanes[key] = [letter]
        for key, returned in lanes.items():
            for letter in returned:
                self._leave_flight(letter.sequence)
                letter.redelivered = True
                letter.suspect = False
                if letter.sequence == self._alone:
                    self._alone = 0
                letter.attempt -= 1
                self._returned[letter.sequence] = letter
                self._note_expiry(letter)
            first = returned[0]
            first.attempt += 1
            until = nacks[first.sequence]
            lane = self._held.get(key)
            if lane is None:
                lane = self._held[key] = _HeldLane(until)
            lane.until = max(lane.until, until)
            lane.holders.add(first.sequence)
            lane.letters = _by_sequence([*returned, *lane.letters.values()])
            self._start_timer(lane.until, key)
        return [letter for returned in lanes.values() for letter in returned]

    def release_due(self, now: float) -> bool:
        """Let lanes go on whose time has come; return whether any did."""
        went = False
        while self._timers and self._timers[0][0] <= now:
            _, key = heapq.heappop(self._timers)
            lane = self._held.get(key)
            if lane is not None and lane.until <= now:
                self._let_go(key)
                went = True
        return went

    @property
    def next_due(self) -> float | None:
        """When the next held lane may go on, in the caller's time; None when none is held."""
        return self._timers[0][0] if self._timers else None

    # ---- changing hands --------------------------------------------------------------------------------------------

    def return_in_flight(self, *, lost: bool = False, kept: Set[int] = frozenset()) -> list[Letter]:
        """Put every unsettled delivery back to the front, flagged, in order; return what the reader had in hand.

        Args:
            lost: The reader did not go of its own will. Else these deliveries do not count: nobody failed in them.
            kept: Sequences that the next reader goes on with, by `resume_in_flight`: those deliveries have not ended.
        """
        in_hand = [*self._in_flight.values(), *self._returned.values()]
        waiting = list(self._in_flight.values())
        if not lost:
            # Nothing is suspect any more, and need not be by itself when it comes again.
            self._alone = 0
        for letter in waiting:
            letter.redelivered = True
            letter.suspect = lost
            if not lost and letter.sequence not in kept:
                letter.pardoned += 1
            letter.tag = 0
        # A reader that is gone holds no lane: its successor starts afresh, in order.
        for lane in self._held.values():
            waiting.extend(lane.letters.values())
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._held.clear()
        self._timers.clear()
        self._returned.clear()
        self._requeue(waiting)
        return in_hand

    def resume_in_flight(self, sequences: set[int]) -> set[int]:
        """Count queued letters with these sequences as in flight again, without a delivery; return which were found.

        One that was never delivered is in nobody's hands and stays where it is.
        """
        found: set[int] = set()
        if not sequences:
            return found
        for queue in self._queues:
            hit = [one for one in queue if one.sequence in sequences and (one.attempt or one.redelivered)]
            if hit:
                found.update(letter.sequence for letter in hit)
                queue.keep(lambda letter: letter.sequence not in found)
                # By tag, as everything in flight is: what was delivered first.
                for letter in sorted(hit, key=_sequence_of):
                    # By a delivery that counts again, if the nack of another letter had taken it out of the count.
                    letter.attempt = max(1, letter.attempt)
                    self._in_flight[letter.sequence] = letter
                    self._in_flight_bytes += letter.size
        return found

    def pardon(self) -> None:
        """The reader that was lost is back, so nothing that waits was its end: those deliveries do not count."""
        for queue in self._queues:
            for letter in queue:
                if letter.suspect:
                    letter.suspect = False
                    letter.pardoned += 1

    def expire(self, now: float, accepted_before: float) -> list[Letter]:
        """Remove and return letters, not in flight, whose time is over or that were accepted too long ago."""
        heads = [head for queue in self._queues for head in queue.heads()]
        heads += [next(iter(lane.letters.values())) for lane in self._held.values() if lane.letters]
        oldest = min((letter.accepted_at for letter in heads), default=accepted_before)
        if now < self.next_expiry and oldest >= accepted_before:
            return []

        def lives(letter: Letter) -> bool:
            return letter.accepted_at >= accepted_before and not 0.0 < letter.envelope.expires_at <= now

        expired = [letter for queue in self._queues for letter in queue.keep(lives)]
        for lane in self._held.values():
            gone = [letter for letter in lane.letters.values() if not lives(letter)]
            for letter in gone:
                del lane.letters[letter.sequence]
            expired += gone
        for letter in expired:
            self._returned.pop(letter.sequence, None)
            self.release(letter)
            self._stop_holding(letter)
        ends = (one.envelope.expires_at for one in self.letters() if one.envelope.expires_at)
        # A letter in flight is past saving, and would have this walk repeated at every look.
        self.next_expiry = min((end for end in ends if end > now), default=math.inf)
        return expired

    def drain(self) -> list[Letter]:
        """Remove and return everything."""
        everything = sorted(self.letters(), key=_sequence_of)
        for queue in self._queues:
            queue.clear()
        self._held.clear()
        self._timers.clear()
        self._returned.clear()
        self._in_flight.clear()
        self._in_flight_bytes = 0
        for letter in everything:
            self.release(letter)
        return everything

    def letters(self) -> Iterator[Letter]:
        """Iterate over every unsettled letter, in no particular order."""
        yield from self._in_flight.values()
        for queue in self._queues:
            yield from queue
        for lane in self._held.values():
            yield from lane.letters.values()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _leave_flight(self, sequence: int) -> Letter | None:
        letter = self._in_flight.pop(sequence, None)
        if letter is not None:
            self._in_flight_bytes -= len(letter.envelope.payload)
            letter.tag = 0
        return letter

    def _leave_returned(self, sequence: int) -> Letter | None:
        """Take out a letter that the reader had in hand before it was returned."""
        letter = self._returned.pop(sequence, None)
        if letter is not None:
            lane = self._held.get(letter.lane)
            if lane is None or lane.letters.pop(sequence, None) is None:
                self._queue_of(letter).remove(letter)
            self._stop_holding(letter)
        return letter

    def _stop_holding(self, letter: Letter) -> None:
        """A letter is gone: its lane goes on unless it waits for another one."""
        key = letter.lane
        lane = self._held.get(key)
        if lane is not None and letter.sequence in lane.holders:
            lane.holders.discard(letter.sequence)
            if not lane.holders:
                self._let_go(key)

    def _start_timer(self, until: float, key: tuple[str, str]) -> None:
        heapq.heappush(self._timers, (until, key))
        # A lane that goes on early leaves its timer behind; the bound keeps long delays from piling them up.
        if len(self._timers) > 2 * len(self._held) + 64:
            self._timers = [(lane.until, one) for one, lane in self._held.items()]
            heapq.heapify(self._timers)

    def _let_go(self, key: tuple[str, str]) -> None:
        lane = self._held.pop(key, None)
        if lane is not None:
            self._requeue(list(lane.letters.values()))

    def _requeue(self, letters: list[Letter]) -> None:
        """Put letters back so that each queue is in the order of acceptance again."""
        by_queue: dict[FairQueue, list[Letter]] = {}
        for letter in letters:
            by_queue.setdefault(self._queue_of(letter), []).append(letter)
            self._note_expiry(letter)
        for queue, mine in by_queue.items():
            queue.put_back(mine)

    def _queue_of(self, letter: Letter) -> FairQueue:
        return self._queues[4 - letter.envelope.priority]

    def _note_expiry(self, letter: Letter) -> None:
        if letter.envelope.expires_at:
            self.next_expiry = min(self.next_expiry, letter.envelope.expires_at)


def _sequence_of(letter: Letter) -> int:
    return letter.sequence


def _by_sequence(letters: Iterable[Letter]) -> dict[int, Letter]:
    return {letter.sequence: letter for letter in sorted(letters, key=_sequence_of)}
