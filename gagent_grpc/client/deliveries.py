"""What the bus has given an agent and has not been told the end of: at least once, and each message handled once.

Owns: which deliveries are new, which are in a handler, and what is acknowledged, given back or rejected. Leaves to
others: order and workers (`client.lanes`), frames and reconnecting (`client.session`), handling (given as `handle`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.client.lanes import Job, Lane, Lanes
from gagent_grpc.client.letters import Letter, LetterBox
from gagent_grpc.client.message import Received
from gagent_grpc.client.questions import Questions
from gagent_grpc.client.transport import is_cancelled
from gagent_grpc.codec.times import duration_to_proto
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Priority
from gagent_grpc.pb.gagent.internal.v1 import bus_frames_pb2 as twin
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

_logger = logging.getLogger(__name__)

_URGENT = int(Priority.URGENT)
_MAX_RETRY_DELAY = 60.0
"""Seconds."""
_REMEMBERED_FAILURES = 1_000
_REMEMBERED_SENDERS = 10_000
_NO_BODY = "this agent handles ACL and ACP messages; it got another kind of body"


class Taken(enum.Enum):
    """What became of a delivery that no handler of ACL messages is for."""

    HANDLED = enum.auto()
    """It is done."""
    KEPT = enum.auto()
    """Somebody keeps it in hand, and calls `handled`, `failed` or `not_taken` later; its lane goes on."""


class NotTaken(Exception):
    """Raised where a message is handled while lanes are closed: nobody has taken it, and it is for the next session."""


class Deliveries:
    """Deliveries of one agent, across its sessions."""

    def __init__(
        self,
        name: str,
        handle: Callable[[Received], Awaitable[None]],
        questions: Questions,
        limits: ClientLimits,
    ) -> None:
        """Take deliveries for the agent ``name``.

        Args:
            name: Whose they are, for the log.
            handle: Handles one message; what it raises has the message delivered again.
            questions: Requests that wait for an answer: answers go to them, and are not handled.
            limits: Bounds and delays.
        """
        self.lanes = Lanes(self._run, concurrency=limits.concurrency)
        self._name = name
        self._handle = handle
        self._questions = questions
        self._limits = limits
        self._platform = ""
        self._wake = asyncio.Event()
        self._acks: list[int] = []
        self._nacks: list[twin.Nack] = []
        self._rejects: list[twin.Reject] = []
        self._in_progress: set[Job] = set()
        # Two halves: when the newer one is full, the older one is forgotten whole, so that no message pays for that.
        self._handled: set[tuple[str, str]] = set()
        self._handled_before: set[tuple[str, str]] = set()
        self._failed: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Messages whose failure has been logged with its traceback."""
        self._aids: dict[str, AgentIdentifier] = {}
        self.claim: Callable[[Received], LetterBox | None] | None = None
        """Whose message it is, where somebody takes it by himself instead of a handler; None while nobody does."""
        self.handle_acp: Callable[[Job, AgentIdentifier], Awaitable[Received | Taken]] = _for_nobody
        """Handles the ACP message of a delivery from an agent, or returns the ACL message that says the same and is to be
        handled in its place. What it raises has the message delivered again."""

    def prepare(self, wake: asyncio.Event) -> None:
        """Make ready for a new life of the agent; ``wake`` is set whenever there is something to write."""
        self._wake = wake
        # Handlers that were cut off at the end are nobody's any more; what they had in hand comes again.
        self._in_progress.clear()
        self.lanes.reopen()

    # ---- what the session says -------------------------------------------------------------------------------------

    @property
    def in_progress(self) -> bool:
        """Whether a handler has a message in hand."""
        return bool(self._in_progress)

    @property
    def unsaid(self) -> bool:
        """Whether an acknowledgement waits to be written."""
        return bool(self._acks)

    def held(self) -> list[int]:
        """Return the numbers that a new session is to leave with this agent, in order."""
        in_hand = {job.sequence for job in self._in_progress if job.sequence}
        return sorted(in_hand.union(self._acks))

    def reconnected(self, held: frozenset[int], platform: str) -> None:
        """A new session begins, in which the bus leaves the numbers in ``held`` with this agent."""
        self._platform = platform
        self._aids.clear()
        # What the bus does not hold for this agent any more comes again, maybe under another number.
        self._acks = [sequence for sequence in self._acks if sequence in held]
        for job in self._in_progress:
            if job.sequence not in held:
                job.sequence = 0
        # A handler that failed since the hello has its delivery held, though nobody has it in hand any more.
        self._nacks = [nack for nack in self._nacks if nack.sequence in held]
        # Again, though it was done when the connection was lost: a handler that has failed since then has stopped its
        # lane for a return that comes only if the bus still holds the delivery.
        self.lanes.forget_waiting(held=held)
        self._rejects.clear()

    def settlements(self) -> twin.SettleBatch | None:
        """Take what is to be settled; None when there is nothing."""
        if not (self._acks or self._nacks or self._rejects):
            return None
        settle = twin.SettleBatch(ack_sequences=self._acks, nacks=self._nacks, rejects=self._rejects)
        self._acks.clear()
        self._nacks.clear()
        self._rejects.clear()
        return settle

    # ---- what comes ------------------------------------------------------------------------------------------------

    def add(self, batch: bus_service_pb2.DeliverBatch) -> None:
        """Take a batch as it came: answers to whoever waits for them, the rest to the handlers."""
        jobs: list[Job] = []
        asking = bool(self._questions)
        # That of the delivery before, which mostly is of the same sender: a text that was looked up once is found sooner.
        lane: Lane = ("", "", False)
        for delivery in batch.deliveries:
            sender = delivery.sender
            if sender == lane[0]:
                sender = lane[0]
            message = delivery.message
            key = (sender, message.id or delivery.id)
            sequence = delivery.sequence
            if delivery.redelivered and self._known(sequence, key):
                continue
            acl = message.acl
            if not (acl.performative or message.HasField("acl")):
                if message.HasField("acp"):
                    # The urgency that the bus reads: its lanes are the same.
                    urgent = (message.priority or message.acp.metadata.priority) == _URGENT
                    jobs.append(Job(delivery, None, sequence, key, (sender, "", urgent)))
                    continue
                self._rejects.append(twin.Reject(sequence=sequence, reason=_NO_BODY))
                self._wake.set()
            elif asking and self._questions.take(delivery, self._identifier(sender)):
                # Not by way of the lanes: the handler that asked may hold the lane, or be the last that may run.
                self._settle(key, sequence)
            else:
                conversation_id, urgent = acl.conversation_id, message.priority == _URGENT
                if conversation_id != lane[1] or urgent is not lane[2] or sender is not lane[0]:
                    lane = (sender, conversation_id, urgent)
                jobs.append(Job(delivery, acl, sequence, key, lane))
        if jobs:
            self.lanes.add(jobs)

    def _known(self, sequence: int, key: tuple[str, str]) -> bool:
        """Return whether a redelivery is of a message that a handler has, or had; its settle goes to the new number."""
        job = next((job for job in self._in_progress if job.key == key), None)
        if job is not None:
            job.sequence = sequence
            return True
        if key in self._handled or key in self._handled_before:
            self._acks.append(sequence)
            self._wake.set()
            return True
        return False

    def _identifier(self, sender: str) -> AgentIdentifier:
        """Return who sent a delivery: the bare name for an agent of this platform."""
        found = self._aids.get(sender)
        if found is None:
            name, _, platform = sender.partition("@")
            found = AgentIdentifier(name if platform == self._platform else sender)
            if len(self._aids) > _REMEMBERED_SENDERS:
                self._aids.clear()
            self._aids[sender] = found
        return found

    # ---- handling --------------------------------------------------------------------------------------------------

    async def _run(self, job: Job) -> bool:
        """Handle one delivery; return whether its lane may go on."""
        self._in_progress.add(job)
        try:
            name, acl = job.key[0], job.acl
            sender = self._aids.get(name) or self._identifier(name)
            if acl is not None:
                message = Received(job.delivery, sender, acl)
            else:
                found = await self.handle_acp(job, sender)
                if isinstance(found, Taken):
                    if found is Taken.HANDLED:
                        self.handled(job)
                    return True
                message = found
            while self.claim is not None and (box := self.claim(message)) is not None:
                # In hand until whoever takes it is done with it; the lane goes on, since he may wait for what is behind.
                if await box.put(Letter(message, job)):
                    return True
                if self.lanes.closed:
                    self.leave(job)
                    return False
            await self._handle(message)
        except NotTaken:
            self.leave(job)
            return False
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            # A CancelledError of something that the handler awaited is the handler's failure, and no more than that.
            return not self._give_back(job, error)
        self._in_progress.discard(job)
        self._settle(job.key, job.sequence)
        return True

    def handled(self, job: Job) -> None:
        """Whoever took a delivery out of his box is done with it."""
        self._in_progress.discard(job)
        self._settle(job.key, job.sequence)

    def failed(self, job: Job, error: BaseException) -> None:
        """Whoever took a delivery out of his box has failed: it comes again after a delay, to whoever is for it then."""
        # Its traceback is in the log already, as the behaviour's.
        self._failed[job.key] = None
        self._give_back(job, error)

    def not_taken(self, job: Job) -> None:
        """A box is gone with a delivery in it: somebody else's turn."""
        self.leave(job)
        if job.sequence:
            # Without a number it is on its way here once more.
            self.lanes.put_back(job)

    def leave(self, job: Job) -> None:
        """Neither handled nor failed: when nobody else takes it, it comes again to the next session."""
        self._in_progress.discard(job)
        self._wake.set()

    def _settle(self, key: tuple[str, str], sequence: int) -> None:
        self._handled.add(key)
        if len(self._handled) >= self._limits.handled_ids:
            self._handled, self._handled_before = set(), self._handled
        if not self._acks:
            # Also without a number: somebody may wait for the last handler to be done.
            self._wake.set()
        if sequence:
            self._acks.append(sequence)

    def _give_back(self, job: Job, error: BaseException) -> bool:
        """A handler failed: the delivery is to come again after a delay.

        Returns:
            Whether the lane waits for it; not when the delivery is another session's, which knows for itself.
        """
        attempt = max(1, job.delivery.attempt)
        delay = min(_MAX_RETRY_DELAY, self._limits.retry_delay * 2 ** min(attempt - 1, 10))
        words = _words(error)
        self._log_failure(job, attempt, delay, words)
        self._in_progress.discard(job)
        self._wake.set()
        if not job.sequence:
            return False
        self._nacks.append(twin.Nack(sequence=job.sequence, delay=duration_to_proto(delay), error=words))
        return True

    def _log_failure(self, job: Job, attempt: int, delay: float, words: str) -> None:
        """Log a failure: with its traceback the first time that the message fails here, later in one line."""
        text = "%s: the handler of a message of %s failed (attempt %d, again in %g s)"
        values = (self._name, self._identifier(job.key[0]).name, attempt, delay)
        if job.key in self._failed:
            _logger.error(f"{text}: %s", *values, " ".join(words.split()))
            return
        self._failed[job.key] = None
        if len(self._failed) > _REMEMBERED_FAILURES:
            self._failed.popitem(last=False)
        _logger.exception(text, *values)


async def _for_nobody(job: Job, sender: AgentIdentifier) -> Taken:
    return Taken.HANDLED


def _words(error: BaseException) -> str:
    """Say an error in words that can travel, whatever it says of itself."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text[:500].encode("utf-8", "replace").decode()
