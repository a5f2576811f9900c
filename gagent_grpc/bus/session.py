"""One connected agent: what it sent and is owed, what was delivered to it and is not settled, and how it ends.

Owns: receipts, the window, the generation's rights, liveness. It is the only reader of its agent's mailbox. Leaves to
others: routing (`bus.router`), frames and the wire (`codec`, `server`), the life cycle of the agent (`bus.platform`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gagent_grpc.acl.descriptions import LifeCycleState
from gagent_grpc.bus.ams import AgentRecord
from gagent_grpc.bus.debts import CONCERNS_DEBTS
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.ports import Clock
from gagent_grpc.bus.post import Post
from gagent_grpc.bus.router import Router
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import AnswerTimeout, BusError, PreconditionFailed, ProtocolViolation, SessionSuperseded

MAX_BATCH_MESSAGES = 512
"""Most messages in one delivery frame: enough to spread a frame's cost, few enough to keep a frame short."""
BATCH_BYTES = 64 * 1024
"""Bytes in one delivery frame at the start, except that one message always fits; whoever writes frames changes it."""
MAX_UNSAID = 100
"""Most notices, and most changes of state, that wait for a client to read."""
MAX_BATCH_RECEIPTS = 500
"""Most exceptions in one frame of receipts, so that it fits a frame however much they have to say."""
MAX_UNSAID_RETURNS = 100_000
"""Sequences that wait to be named as returned, beyond which unknown ones are not named any more."""
MAX_UNSAID_EXCEPTIONS = 10_000
"""Exceptions that wait for a client to read, beyond which the bus reads nothing more of it."""


@dataclass(frozen=True, slots=True)
class Nack:
    """A delivery that is to come again."""

    sequence: int
    delay: float
    """Seconds to wait before."""
    error: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the client should know."""

    kind: str
    """Name of the notice on the wire, without its prefix."""
    text: str
    reconnect_after: float | None = None
    """Seconds; None for the client's own back-off."""
    address: str = ""
    """Of GAP: where to messages are missing."""
    missed: int = 0
    """Of GAP: how many, since the last such notice."""
    conversation_id: str = ""
    """Of CONVERSATION."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Answer to a change of topics."""

    number: int
    """That of the question."""
    topics: tuple[str, ...]
    """All in force."""
    error: str = ""
    """Why nothing changed; "" when it did."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """The life-cycle state of the agent changed."""

    state: LifeCycleState
    changed_by: str


@dataclass(slots=True)
class Outgoing:
    """What is to be written to the client now, in this order."""

    accepted_through: int | None = None
    """Receipts: number up to which all is said; None for no receipts."""
    exceptions: list[Receipt] = field(default_factory=list)
    states: list[StateChange] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    subscribed: list[Subscribed] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    """Sequences of deliveries that the client sent back, and of those that count as returned with them."""
    heartbeat: bool = False
    letters: list[Letter] = field(default_factory=list)
    """Deliveries; their tags are set."""

    def __bool__(self) -> bool:
        return bool(
            self.accepted_through is not None
            or self.letters
            or self.heartbeat
            or self.exceptions
            or self.notices
            or self.states
            or self.subscribed
            or self.returned
        )


class Session:
    """One open stream of one agent. Used from one event loop; only `outgoing` waits."""

    def __init__(
        self,
        record: AgentRecord,
        generation: int,
        router: Router,
        post: Post,
        clock: Clock,
        limits: BusLimits,
        *,
        window_messages: int,
        window_bytes: int,
        held_back: bool = False,
    ) -> None:
        """Make a session; one that is ``held_back`` delivers nothing before `start_delivering`."""
        self.record = record
        self.aid = record.aid
        self.holds = Holds()
        self.wants_failures = True
        """Receivers that wait for a message of this session to be sent again."""
        self.generation = generation
        self.window_messages = window_messages
        self.window_bytes = window_bytes
        self.batch_bytes = BATCH_BYTES
        self.failure: BusError | None = None
        """Why the session ended; None when it ended well, or has not."""
        self.heard_at = clock.monotonic()
        """When the last frame came, in monotonic seconds."""
        self.written_at = self.heard_at
        """When something was last given out to be written."""
        self.polite = False
        """Whether the client or the bus said that it would end; else it is lost when it ends."""
        self.listening = True
        """False while the bus reads nothing, because too much of what the client sent waits for its receipt."""
        self._beat_at = self.heard_at
        self._router = router
        self._post = post
        self._clock = clock
        self._limits = limits
        self._number = 0
        self._unresolved: deque[int] = deque()
        self._said_through = 0
        self._unsaid_bytes = 0
        # (last number, bytes) of each batch that has not all its receipts.
        self._unsaid: deque[tuple[int, int]] = deque()
        self._receipts_due = False
        self._exceptions: list[Receipt] = []
        self._notices: list[Notice] = []
        self._subscribed: list[Subscribed] = []
        self._states: list[StateChange] = []
        self._returned: list[int] = []
        self._heartbeat_due = False
        self._tag = 0
        self._paused = False
        self._held_back = held_back
        self._ended = False
        self._closing = False
        self._draining = False
        self.awake = False
        """It looks for something to write anyway; asked with each message, for which a call of `wake` would be too dear."""
        self._wake = asyncio.Event()
        self._heard = asyncio.Event()
        self._receipted = asyncio.Event()
        self.lost = asyncio.Event()
        """Set when the client has been silent for too long: a write to it may be stuck, and is not waited for."""

    # ---- what the client says --------------------------------------------------------------------------------------

    def heard(self) -> None:
        """A frame came: the client is alive."""
        self.heard_at = self._clock.monotonic()
        self._heard.set()

    def submit(self, payloads: Sequence[bytes], *, max_receivers: float = math.inf) -> int:
        """Route a batch of encoded messages, or its beginning; their receipts come with `outgoing`.

        Returns:
            How many were taken: all, or as many as it takes to come to ``max_receivers`` receivers.
        """
        before = number = self._number
        receivers = 0
        submit = self._router.submit
        now = self._clock.time()
        for payload in payloads:
            number += 1
            self._number = number
            receivers += submit(payload, self, number, now)
            if receivers >= max_receivers:
                break
        taken = number - before
        size = sum(map(len, payloads if taken == len(payloads) else payloads[:taken]))
        self._unsaid_bytes += size
        self._unsaid.append((number, size))
        return taken

    async def room_to_send(self) -> None:
        """Wait while more than the send window is sent and not receipted, or too many exceptions are not read.

        Only who ignores the window waits here, or whose receipts nobody reads. What it holds up is its own stream.
        """
        limits = self._limits
        while not self._ended and (
            self._number - self._said_through > limits.send_window_messages
            or self._unsaid_bytes > limits.send_window_bytes
            or len(self._exceptions) > MAX_UNSAID_EXCEPTIONS
        ):
            self.listening = False
            self._receipts_due = True
            self.wake()
            self._receipted.clear()
            await self._receipted.wait()
        if not self.listening:
            self.listening = True
            self.heard()

    def settle(
        self,
        *,
        ack_through_tag: int,
        acks: Sequence[int],
        nacks: Sequence[Nack],
        rejects: Sequence[tuple[int, str]],
    ) -> None:
        """Say what became of deliveries. Nothing happens for an ended generation or an unknown sequence.

        What is in progress need not be said: no lease runs while its session lives, and any frame is a sign of life.
        """
        record = self.record
        if record.generation != self.generation or self._ended:
            return
        mailbox = record.mailbox
        post = self._post
        now = self._clock.time()
        if ack_through_tag:
            post.settled_all(record, mailbox.settle_through(ack_through_tag), now)
        if acks:
            post.settled_all(record, mailbox.settle_all(acks), now)
        if nacks:
            self._nack(nacks)
        for sequence, reason in rejects:
            rejected = mailbox.settle(sequence)
            if rejected is not None:
                why = f"rejected by the receiver: {reason}" if reason else "rejected by the receiver"
                post.give_up(record, rejected, why, reason=DeadReason.REJECTED, error=reason)
        self.wake()

    def _nack(self, nacks: Sequence[Nack]) -> None:
        mailbox = self.record.mailbox
        now = self._clock.monotonic()
        again: dict[int, float] = {}
        for nack in nacks:
            letter = mailbox.in_flight_letter(nack.sequence)
            if letter is None:
                # Settled or unknown: a client that holds its lane back until it hears of the nack has to hear of it.
                if len(self._returned) < MAX_UNSAID_RETURNS:
                    self._returned.append(nack.sequence)
                continue
            if letter.attempt < self._limits.max_deliveries + letter.reprieve + letter.pardoned:
                again[nack.sequence] = now + max(0.0, nack.delay)
            else:
                why = f"given up after {letter.attempt} deliveries" + (f": {nack.error}" if nack.error else "")
                mailbox.settle(nack.sequence)
                # It does not come again; its lane at the client waits for the answer all the same.
                self._returned.append(nack.sequence)
                self._post.give_up(self.record, letter, why, reason=DeadReason.MAX_DELIVERIES, error=nack.error)
        returned = mailbox.nack(again)
        self._returned.extend(letter.sequence for letter in returned)
        self._post.failed_attempts(self.record, [letter for letter in returned if letter.sequence in again])
        mailbox.release_due(now)
        if mailbox.next_due is not None:
            self._post.holding.add(self.record)

    def set_window(self, messages: int, window_bytes: int) -> None:
        """Set the absolute bound on unsettled deliveries; 0 is the default of the bus."""
        self.window_messages = messages or self._limits.window_messages
        self.window_bytes = window_bytes or self._limits.window_bytes
        self.wake()

    def close_when_answered(self) -> None:
        """The client has no more to say: deliver nothing more, and end well once all that it sent has its receipt."""
        self._closing = True
        self._paused = True
        self.wake()

    # ---- what the bus says -----------------------------------------------------------------------------------------

    def expect(self, number: int) -> None:
        """A receiver of message ``number`` waits for a commit."""
        self._unresolved.append(number)

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        """``receiver`` of message ``number`` was reached."""
        if waited:
            # Commits come in the order in which messages were written, so the first one is always meant.
            self._resolve(number)
        if not lazy or self._much_is_unsaid(number):
            self._receipts_due = True
            if not self.awake:
                self.wake()

    def _much_is_unsaid(self, number: int) -> bool:
        """Whether lazy receipts must go out now, since half of the client's send window waits for them."""
        limits = self._limits
        return (
            number - self._said_through >= limits.send_window_messages // 2
            or self._unsaid_bytes >= limits.send_window_bytes // 2
        )

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        """A receiver was not reached, or had the message already."""
        if waited:
            self._resolve(receipt.number)
        self._exceptions.append(receipt)
        self._receipts_due = True
        self.wake()

    def _resolve(self, number: int) -> None:
        if self._unresolved and self._unresolved[0] == number:
            self._unresolved.popleft()
        else:
            # A repetition shares the commit of its original, which may have been written by an earlier session.
            self._unresolved.remove(number)

    def notify(self, notice: Notice) -> None:
        """Tell the client something."""
        if len(self._notices) == MAX_UNSAID:
            # A client that reads nothing and provokes notices gets the newest ones.
            del self._notices[0]
        self._notices.append(notice)
        self.wake()

    def warn(self, text: str, conversation_id: str) -> None:
        """Tell the client what is wrong in one of its conversations."""
        self.notify(Notice("CONVERSATION", text, conversation_id=conversation_id))

    def missed(self, address: str, count: int = 1) -> None:
        """Tell the client that messages to ``address`` did not find room; what was not yet told is told together."""
        for index, notice in enumerate(self._notices):
            if notice.kind == "GAP" and notice.address == address:
                count += notice.missed
                del self._notices[index]
                break
        text = f"{count:,} messages to {address} did not find room in the mailbox of {self.aid}"
        self.notify(Notice("GAP", text, address=address, missed=count))

    def subscribed(self, answer: Subscribed) -> None:
        """Answer a change of topics."""
        if len(self._subscribed) == MAX_UNSAID:
            self.end(
                ProtocolViolation(f"{MAX_UNSAID} changes of topics whose answers were not read", field="subscribe")
            )
            return
        self._subscribed.append(answer)
        self.wake()

    def state_changed(self, state: LifeCycleState, changed_by: str) -> None:
        """Tell the client of a new life-cycle state."""
        if len(self._states) == MAX_UNSAID:
            del self._states[0]
        self._states.append(StateChange(state, changed_by))
        self.wake()

    def beat(self) -> None:
        """Send a heartbeat, which the client answers."""
        self._beat_at = self._clock.monotonic()
        self._heartbeat_due = True
        self.wake()

    def keep_alive(self, now: float) -> None:
        """End the session when the client has been silent for too long; send a heartbeat when one is due."""
        interval = self._limits.heartbeat_interval
        silence = now - self.heard_at
        if self.listening and silence > interval * self._limits.missed_heartbeats:
            self.end(AnswerTimeout(f"{self.aid}: nothing heard", silence))
            self.lost.set()
        elif max(silence, now - self.written_at) >= interval and now - self._beat_at >= interval:
            # Also while deliveries go out: a client that is slow to settle them has to be asked whether it lives.
            self.beat()

    def start_delivering(self) -> None:
        """Deliver from now on; nothing happens for a session that was not held back."""
        self._held_back = False
        self.wake()

    def wake(self) -> None:
        """Look again whether there is something to write."""
        if not self.awake:
            self.awake = True
            self._wake.set()

    async def probe(self, timeout: float) -> bool:
        """Ask for a sign of life; return whether one came within ``timeout`` seconds."""
        if self._ended:
            return False
        if not self.listening:
            # The bus itself reads nothing of it; silence says nothing.
            return True
        self._heard.clear()
        self.beat()
        try:
            async with asyncio.timeout(timeout):
                await self._heard.wait()
        except TimeoutError:
            return False
        return not self._ended

    def drain(self, notice: Notice) -> None:
        """The bus stops: deliver nothing more, and end well once all is settled and has its receipt."""
        self._draining = True
        self._paused = True
        self.polite = True
        self.notify(notice)

    def end(self, failure: BusError | None = None) -> None:
        """End the session: with a status when there is a failure, else well. Idempotent; the first reason stands."""
        if not self._ended:
            self._ended = True
            self.failure = failure
            self._heard.set()
            self._receipted.set()
        self.wake()

    def supersede(self) -> None:
        """A newer session of the agent took over."""
        text = f"a newer session of {self.aid} took over"
        self.notify(Notice("SUPERSEDED", text))
        self.end(SessionSuperseded(text))

    def terminate(self) -> None:
        """The agent was ended by the AMS."""
        text = f"{self.aid} was deregistered or terminated"
        self.notify(Notice("TERMINATED", text))
        self.end(PreconditionFailed(text))

    @property
    def ended(self) -> bool:
        """Whether the session is over; what is still to be written is written."""
        return self._ended

    async def outgoing(self) -> Outgoing | None:
        """Wait for something to write and return it; None once the session is over and all is written."""
        while True:
            self.awake = False
            self._wake.clear()
            out = self._collect()
            if out:
                self.written_at = self._clock.monotonic()
                return out
            if not self._unresolved and (self._closing or (self._draining and not self.record.mailbox.in_flight)):
                self.end()
            if self._ended:
                return None
            await self._wake.wait()

    def _collect(self) -> Outgoing:
        out = Outgoing()
        if self._states:
            out.states, self._states = self._states, []
        if self._subscribed:
            out.subscribed, self._subscribed = self._subscribed, []
        if self._notices:
            out.notices, self._notices = self._notices, []
        if self._returned:
            out.returned, self._returned = self._returned, []
        if self._heartbeat_due:
            out.heartbeat = True
            self._heartbeat_due = False
        if not self._ended and not self._paused and not self._held_back and self.record.deliverable:
            out.letters = self._take()
        through = self._unresolved[0] - 1 if self._unresolved else self._number
        # Lazy receipts go along with whatever goes out anyway.
        if self._exceptions or (through > self._said_through and (self._receipts_due or self._closing or out)):
            if len(self._exceptions) > MAX_BATCH_RECEIPTS:
                # The rest comes with the next frames, and only the last one may say that all is said.
                out.exceptions = self._exceptions[:MAX_BATCH_RECEIPTS]
                del self._exceptions[:MAX_BATCH_RECEIPTS]
            else:
                out.exceptions, self._exceptions = self._exceptions, []
                self._said_through = through
                # A batch counts until the last of its receipts, so that nothing is noted for each message.
                while self._unsaid and self._unsaid[0][0] <= through:
                    self._unsaid_bytes -= self._unsaid.popleft()[1]
                self._receipts_due = False
            self._receipted.set()
            out.accepted_through = self._said_through
        return out

    def _give_up_exhausted(self) -> None:
        """Give up what every one of its readers was lost with, as by a message that kills whoever handles it."""
        mailbox = self.record.mailbox
        exhausted, mailbox.exhausted = mailbox.exhausted, []
        for letter in exhausted:
            mailbox.release(letter)
            why = f"given up after {letter.attempt} deliveries: its receiver was lost with it in hand each time"
            self._post.give_up(self.record, letter, why, reason=DeadReason.MAX_DELIVERIES)

    def _give_up_overdue(self) -> None:
        """Give up what came to its turn too late; what else has expired meanwhile is found in a look at the whole mailbox."""
        mailbox = self.record.mailbox
        overdue, mailbox.overdue = mailbox.overdue, []
        for letter in overdue:
            mailbox.release(letter)
        self._post.overdue.add(self.record, overdue)

    def _take(self) -> list[Letter]:
        mailbox = self.record.mailbox
        letters = mailbox.take(
            max_messages=self.window_messages,
            max_bytes=self.window_bytes,
            batch_messages=MAX_BATCH_MESSAGES,
            batch_bytes=self.batch_bytes,
            urgent_messages=self._limits.urgent_messages,
            max_deliveries=self._limits.max_deliveries,
            now=0.0 if mailbox.next_expiry == math.inf else self._clock.time(),
        )
        if mailbox.exhausted:
            self._give_up_exhausted()
        if mailbox.overdue:
            self._give_up_overdue()
        if self._post.participation.restored:
            self._post.participation.delivered(self.record, letters)
        tag = self._tag
        for letter in letters:
            tag += 1
            letter.tag = tag
            if letter.envelope.performative in CONCERNS_DEBTS:
                self._post.delivered(self.record, letter)
        self._tag = tag
        return letters
