"""From a message to the mailboxes of its receivers, or to a receipt for each that was not reached.

Owns: who a message goes to, recognising repetitions, the bounds at accept, and the `failure` messages of the platform.
Leaves to others: reading frames and writing receipts (`bus.session`), keeping (`bus.mailbox`, a store).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gagent_grpc.acl.aid import RESERVED_NAMES, AgentIdentifier, split_aid
from gagent_grpc.acl.management import ONTOLOGY
from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import NEVER_ANSWERED, Performative
from gagent_grpc.bus.ams import SEQUENCES_WRITTEN_AHEAD, AgentManagementSystem, AgentRecord
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.debts import OWES_ANSWER, Debt, Debts
from gagent_grpc.bus.dedupe import Dedupe, Key
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.mailbox import RESERVE_SHARE, Account, Letter
from gagent_grpc.bus.ports import Clock, Codec, Commit, Store, StoredDeadLetter, StoredKey, StoredMessage
from gagent_grpc.bus.redrive import Redriver
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason, Envelope, Outcome, Report
from gagent_grpc.errors import InvalidArgument, InvalidName, shown

_log = logging.getLogger(__name__)

ANONYMOUS = "anonymous"
"""Sender of the messages of nobody in particular; whatever agent bears this name is somebody else."""
LETTER_COST = 800
"""What a letter takes beside its payload, in bytes (measured); it counts against the bound on all mail together."""
_REPEATED = "accepted before under this id"
_FAULTY = "internal error; the log of the bus has more"
# A plain number: it is compared for every message.
_LAZY = int(Report.RECEIPT_LAZY)
# A valid address has no more than 384 characters; what an error repeats of a longer one need not be whole.
_MAX_RECEIVER_CHARS = 400
_MAX_DETAIL_CHARS = 1_000
_MAX_NAMES_LOOKED_AT = 50


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


class Origin(Protocol):
    """Where a message came from, and where its receipts go."""

    aid: str
    """`name@platform` of the sender, or `anonymous`."""
    holds: Holds
    """Receivers that wait for a message to be sent again."""

    def expect(self, number: int) -> None:
        """A receiver of message ``number`` is being written; `accepted` or `refuse` follows."""
        ...

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        """``receiver`` of message ``number`` was reached; ``waited`` when `expect` was called for it."""
        ...

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        """A receiver was not reached; ``waited`` when `expect` was called for it."""
        ...


class PlatformAgents(Protocol):
    """The platform's own agents, `ams` and `df`."""

    def answer(self, name: str, message: ACLMessage, sender: str) -> ACLMessage | None:
        """Return the answer of the agent ``name`` to a message; None when it needs none."""
        ...


class _Writing:
    """A letter that a store is making durable."""

    __slots__ = ("debt", "debtor", "key", "letter", "number", "origin", "position", "receiver", "record", "repeats")

    def __init__(
        self,
        position: int,
        record: AgentRecord,
        letter: Letter,
        origin: Origin,
        number: int,
        receiver: str,
        key: Key | None,
    ) -> None:
        self.position = position
        self.record = record
        self.letter = letter
        self.origin = origin
        self.number = number
        self.receiver = receiver
        self.key = key
        self.debt: Debt | None = None
        """What it pays when it is kept."""
        self.debtor: AgentRecord | None = None
        """Who owed that."""
        self.repeats: list[tuple[Origin, int, str]] = []
        """Repetitions that came meanwhile: they share the outcome."""


class _Platform:
    """Origin of the platform's own messages: nobody waits for their receipts."""

    def __init__(self, aid: str) -> None:
        self.aid = aid
        self.holds = Holds()

    def expect(self, number: int) -> None:
        pass

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        pass

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        pass


class Router:
    """Routes messages of one node. Synchronous: what has to wait for a store is finished by `commit`."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        store: Store,
        codec: Codec,
        clock: Clock,
        limits: BusLimits,
        dedupe: Dedupe,
        agents: PlatformAgents,
        dead_letters: DeadLetters,
    ) -> None:
        self._ams = ams
        self._store = store
        self._codec = codec
        self._clock = clock
        self._limits = limits
        self._dedupe = dedupe
        self._agents = agents
        self._dead_letters = dead_letters
        self._being_redriven: set[int] = set()
        self._durable = store.durable
        self._writing: deque[_Writing] = deque()
        self._being_written: dict[Key, _Writing] = {}
        self._mail_bytes = 0
        self._notice_bytes = 0
        self._self = _Platform(f"ams@{ams.platform}")
        # Ids for messages whose senders give none: never the same again, also not after a restart.
        self._run = secrets.token_hex(6)
        self._given_ids = itertools.count(1)
        self._hint = ""
        self._hint_changes = -1
        self.store_failure = ""
        """Why the store takes nothing more; "" while it does."""
        self.accepted_messages = 0
        """Letters accepted since the start."""
        self.holding: set[AgentRecord] = set()
        """Agents with a lane that waits after a nack."""
        self.debts = Debts(
            per_agent=limits.owed_answers,
            max_bytes=limits.total_mail_bytes // RESERVE_SHARE,
            longest_wait=limits.mailbox_ttl,
            closed_age=limits.dedupe_window,
        )
        """Answers that agents owe."""
        self.unheard_failures = 0
        """Failures of the platform that found no mailbox or no room in its reserve."""

    # ---- accepting -------------------------------------------------------------------------------------------------

    @property
    def mail_bytes(self) -> int:
        """Bytes of all unsettled mail, with what each letter takes beside its payload; notices of the platform not."""
        return self._mail_bytes

    @property
    def notice_bytes(self) -> int:
        """The same of unsettled notices of the platform."""
        return self._notice_bytes

    def sender_of(self, aid: str) -> AgentRecord | None:
        """Return the agent that sends as ``aid``; None for nobody in particular, and for one that is gone."""
        return None if aid == ANONYMOUS else self._ams.find(aid)

    def count_receipts(self, payload: bytes) -> int:
        """Return how many receipts `submit` would give for one encoded message at most; 1 when it refuses it as a whole."""
        if len(payload) > self._limits.max_message_bytes:
            return 1
        try:
            receivers = len(self._codec.decode(payload).to)
        except InvalidArgument:
            return 1
        return receivers if 1 <= receivers <= self._limits.max_receivers else 1

    def submit(self, payload: bytes, origin: Origin, number: int, now: float | None = None) -> int:
        """Take one encoded message from ``origin``: each receiver is reached or refused, now or with a commit.

        Args:
            payload: The message.
            origin: Who sends it and hears of it.
            number: What the receipts call it.
            now: Unix seconds, which messages that came together share; those of the clock by default.

        Returns:
            How many receivers were handled; 1 for a message that is refused as a whole.
        """
        if len(payload) > self._limits.max_message_bytes:
            detail = f"the message has {len(payload):,} bytes encoded, the limit is {self._limits.max_message_bytes:,}"
            self._refuse(origin, Receipt(number, "", Outcome.TOO_LARGE, detail), None)
            return 1
        try:
            envelope = self._codec.decode(payload)
        except InvalidArgument as error:
            self._refuse(origin, Receipt(number, "", Outcome.INVALID, str(error), field=error.field), None)
            return 1
        sender = envelope.sender
        if sender and origin.aid not in {sender, f"{sender}@{self._ams.platform}"}:
            detail = f"the body names the sender {shown(sender)}, the session is that of {origin.aid}"
            self._refuse(origin, Receipt(number, "", Outcome.DENIED, detail, field="sender"), envelope)
            return 1
        receivers = envelope.to
        if not 1 <= len(receivers) <= self._limits.max_receivers:
            detail = (
                f"{len(receivers):,} receivers; expected at most {self._limits.max_receivers} in one message"
                if receivers
                else "no receiver: neither `to` nor the body names one"
            )
            self._refuse(origin, Receipt(number, "", Outcome.INVALID, detail, field="to"), envelope)
            return 1
        if now is None:
            now = self._clock.time()
        if len(receivers) == 1:
            self._submit_to(receivers[0], envelope, origin, number, now)
            return 1
        # A name that stands twice, in either form, is one receiver.
        seen: set[str] = set()
        for receiver in receivers:
            name = self._local(receiver)
            if name not in seen:
                seen.add(name)
                self._submit_to(receiver, envelope, origin, number, now)
        return len(seen)

    def _submit_to(self, receiver: str, envelope: Envelope, origin: Origin, number: int, now: float) -> None:
        if envelope.expires_at and envelope.expires_at <= now:
            detail = f"expires_at was {now - envelope.expires_at:.3f} s ago by the clock of the bus"
            self._refuse(origin, Receipt(number, receiver, Outcome.EXPIRED, detail, field="expires_at"), envelope)
            return
        if origin.holds and (blocker := origin.holds.blocker(self._local(receiver), envelope)):
            self._refuse(origin, _held(number, receiver, blocker), envelope)
            return
        record = self._ams.find(receiver)
        if record is None:
            self._submit_elsewhere(receiver, envelope, origin, number)
            return
        key = None
        # Nobody in particular is many senders, and their ids are not unique among them.
        if envelope.id and origin.aid != ANONYMOUS:
            key = (origin.aid, envelope.id, record.name)
            written = self._being_written.get(key) if self._being_written else None
            if written is not None and written.record is not record:
                # Written for an agent of the same name that is gone.
                written = None
            known = written.letter.envelope.digest if written is not None else self._dedupe.find(key)
            if known is not None and known != envelope.digest:
                self._refuse(origin, _used_id(number, receiver, envelope), envelope)
                return
            if written is not None:
                # DUPLICATE promises as much as ACCEPTED, so it has to wait for the same commit.
                written.repeats.append((origin, number, receiver))
                origin.expect(number)
                origin.holds.taken(record.name, envelope)
                return
            if known is not None:
                self._refuse(origin, Receipt(number, receiver, Outcome.DUPLICATE, _REPEATED), envelope)
                return
        debt = None
        if origin.aid in self.debts.accounts:
            debt = self.debts.find(origin.aid, record.aid, envelope)
            if debt is not None and debt.closed_at is not None:
                self._refuse(origin, _late(number, receiver, now - debt.closed_at), envelope)
                return
        if self.store_failure and self._durable and not envelope.transient:
            detail = f"not stored: {self.store_failure}"
            self._refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, detail), envelope)
            return
        mailbox = record.mailbox
        size = len(envelope.payload)
        cost = size + LETTER_COST
        if self._mail_bytes + cost > self._limits.total_mail_bytes:
            detail = f"all mailboxes together hold {self._mail_bytes:,} bytes, the limit is {self._limits.total_mail_bytes:,}"
            self._refuse(origin, Receipt(number, receiver, Outcome.MAILBOX_FULL, detail, 0.1), envelope)
            return
        account = mailbox.reserve(size, origin.aid)
        if account is None:
            detail = f"{mailbox.messages:,} messages, {mailbox.bytes:,} bytes unsettled"
            self._refuse(origin, Receipt(number, receiver, Outcome.MAILBOX_FULL, detail, 0.1), envelope)
            return
        self._mail_bytes += cost
        if origin.holds:
            origin.holds.taken(record.name, envelope)
        self._deliver(record, account, envelope, origin, number, receiver, key, now, debt)

    def _local(self, receiver: str) -> str:
        """Return the name of an agent of this platform, however it is written; else the address as it is."""
        return receiver.removesuffix(f"@{self._ams.platform}")

    def _has_room(self, size: int) -> bool:
        return self._mail_bytes + size + LETTER_COST <= self._limits.total_mail_bytes

    def _submit_elsewhere(self, receiver: str, envelope: Envelope, origin: Origin, number: int) -> None:
        """Handle an address that is no registered agent: the platform's own agents, or a refusal that says why."""
        try:
            name, platform = split_aid(receiver)
        except InvalidName as error:
            if receiver.startswith(("role:", "topic:")) or receiver == "*":
                detail = f"the delivery address {shown(receiver)} is of a kind that is not served; expected name or name@platform"
            else:
                detail = str(error)
            self._refuse(origin, Receipt(number, receiver, Outcome.INVALID, detail, field="to"), envelope)
            return
        if platform and platform != self._ams.platform:
            detail = f"the platform {platform!r} is not known here; this one is {self._ams.platform!r}"
            self._refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, detail), envelope)
        elif name in RESERVED_NAMES:
            self._submit_to_platform(name, receiver, envelope, origin, number)
        else:
            if origin.aid in self.debts.accounts:
                debt = self.debts.find(origin.aid, f"{name}@{self._ams.platform}", envelope)
                if debt is not None and debt.closed_at is None:
                    # Whoever asked is gone; there is nobody to answer for.
                    self.debts.pay(debt)
            self._refuse(origin, Receipt(number, receiver, Outcome.NO_SUCH_AGENT, self._who_is_there()), envelope)

    def _who_is_there(self) -> str:
        """Say who is registered, in the same words until somebody comes or goes: refusals come in thousands."""
        if self._hint_changes != self._ams.changes:
            self._hint_changes = self._ams.changes
            self._hint = self._describe_registered()
        return self._hint

    def _describe_registered(self) -> str:
        # A look at all of them would cost more than everything else that happens to the message.
        looked_at = itertools.islice(self._ams, _MAX_NAMES_LOOKED_AT)
        names = list(itertools.islice((record.name for record in looked_at if not record.ephemeral), 6))
        if not names:
            return "nobody is registered" if len(self._ams) <= _MAX_NAMES_LOOKED_AT else ""
        return f"registered: {', '.join(names[:5])}" + (" and others" if len(names) > 5 else "")

    def _deliver(
        self,
        record: AgentRecord,
        account: Account | None,
        envelope: Envelope,
        origin: Origin,
        number: int,
        receiver: str,
        key: Key | None,
        now: float,
        debt: Debt | None = None,
        dead: StoredDeadLetter | None = None,
    ) -> None:
        """Make a letter of a message for which room is reserved, and put it into the mailbox now or with its commit.

        A ``debt`` that it pays is paid at once: its sender may be lost, or go, before the commit. What was ``dead`` is
        called as before, and is flagged.
        """
        sequence = record.mailbox.take_sequence()
        message_id = envelope.id or f"{self._run}-{next(self._given_ids)}"
        letter = Letter(sequence, envelope, origin.aid, message_id, "", now)
        letter.account = account
        if dead is not None:
            letter.message_id, letter.via = dead.message_id, dead.via
            letter.redelivered = True
        durable = self._durable and not envelope.transient and not self.store_failure
        if self._durable and sequence >= record.sequences_written:
            # Before the letter, so that no crash makes the mailbox use a number again.
            record.sequences_written = sequence + SEQUENCES_WRITTEN_AHEAD
            self._store.put_agent(record.stored())
        if durable:
            stored = StoredMessage(
                record.name,
                sequence,
                origin.aid,
                letter.message_id,
                envelope.id if origin.aid != ANONYMOUS else "",
                envelope.digest,
                letter.via,
                now,
                0,
                envelope.payload,
                dead.number if dead is not None else 0,
            )
            try:
                position = self._store.accept(stored)
            except InvalidArgument as error:
                record.mailbox.release(letter)
                self._uncount(letter)
                self._refuse(
                    origin, Receipt(number, receiver, Outcome.INVALID, str(error), field=error.field), envelope
                )
                return
            writing = _Writing(position, record, letter, origin, number, receiver, key)
            if debt is not None:
                writing.debt, writing.debtor = debt, self._ams.find(debt.debtor)
            self._writing.append(writing)
            if key is not None and dead is None:
                self._being_written[key] = writing
            origin.expect(number)
        else:
            self._put(record, letter, key)
            origin.accepted(number, receiver, waited=False, lazy=envelope.report == _LAZY)
        if debt is not None:
            self.debts.pay(debt)

    def _put(self, record: AgentRecord, letter: Letter, key: Key | None) -> None:
        if key is not None:
            self._dedupe.accepted(key, letter.envelope.digest)
        self.accepted_messages += 1
        record.mailbox.put(letter)
        if record.session is not None:
            record.session.wake()

    def commit(self, commit: Commit) -> None:
        """Finish the letters that a commit of the store covers: deliver and receipt them, or refuse them."""
        writing = self._writing
        while writing and writing[0].position <= commit.through:
            one = writing.popleft()
            try:
                self._finish(one, commit)
            except Exception:
                # One letter's trouble must not keep those after it from their receipts.
                _log.exception("a letter was not finished: to %s, sequence %d", one.record.aid, one.letter.sequence)
                self._refuse_faulty(one)

    def _finish(self, one: _Writing, commit: Commit) -> None:
        letter = one.letter
        if one.key is not None and self._being_written.get(one.key) is one:
            del self._being_written[one.key]
        if self._ams.find(one.record.aid) is not one.record:
            self._not_kept(one, Outcome.NO_SUCH_AGENT, "deregistered meanwhile", None)
            return
        # A notice goes out even if it cannot be stored: it may be the one that says so.
        if commit.error and not letter.in_reserve:
            if commit.final:
                self._not_kept(one, Outcome.UNREACHABLE, f"not stored: {commit.error}", None)
            else:
                self._not_kept(one, Outcome.MAILBOX_FULL, f"not stored: {commit.error}", 1.0)
            return
        if one.origin.holds and (blocker := one.origin.holds.blocker(one.record.name, letter.envelope)):
            # An earlier one was not stored, in a commit before this: to keep the order this one has to go as well.
            self._store.settle(one.record.name, letter.sequence, None)
            held = _held(one.number, one.receiver, blocker)
            self._not_kept(one, held.outcome, held.detail, held.retry_after)
            return
        self._put(one.record, letter, one.key)
        one.origin.accepted(one.number, one.receiver, waited=True, lazy=letter.envelope.report == _LAZY)
        for origin, number, receiver in one.repeats:
            self._refuse(origin, Receipt(number, receiver, Outcome.DUPLICATE, _REPEATED), None, waited=True)

    def _refuse_faulty(self, one: _Writing) -> None:
        """Tell whoever waits for a letter that could not be finished; nobody knows what became of it."""
        for origin, number, receiver in [(one.origin, one.number, one.receiver), *one.repeats]:
            # Where telling is what fails, or it was told already, there is no more to do.
            with contextlib.suppress(Exception):
                self._refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, _FAULTY), None, waited=True)

    def _not_kept(self, one: _Writing, outcome: Outcome, detail: str, retry_after: float | None) -> None:
        """A letter did not become durable, or its receiver is gone: nobody was reached."""
        one.record.mailbox.release(one.letter)
        self._uncount(one.letter)
        envelope = one.letter.envelope
        debt = one.debt
        if debt is not None and one.debtor is not None and self._ams.find(debt.debtor) is one.debtor:
            self.debts.reinstate(debt)
        elif debt is not None:
            # It went in the belief that it had answered.
            self.fail(debt, debt.asker, debt.debtor, f"{debt.debtor} is gone, and its answer was not kept: {detail}")
        for origin, number, receiver in [(one.origin, one.number, one.receiver), *one.repeats]:
            self._refuse(origin, Receipt(number, receiver, outcome, detail, retry_after), envelope, waited=True)

    def _uncount(self, letter: Letter) -> None:
        if letter.in_reserve:
            self._notice_bytes -= letter.size + LETTER_COST
        else:
            self._mail_bytes -= letter.size + LETTER_COST

    def restore(self, record: AgentRecord, letter: Letter) -> None:
        """Put a stored letter back into its mailbox at the start, over its bounds if need be: it was accepted."""
        letter.account = record.mailbox.reserve_over(letter.size, letter.sender)
        self._mail_bytes += letter.size + LETTER_COST
        if letter.envelope.id and letter.sender != ANONYMOUS:
            self._dedupe.accepted((letter.sender, letter.envelope.id, record.name), letter.envelope.digest)
        record.mailbox.put(letter)

    # ---- answers that are owed -------------------------------------------------------------------------------------

    def delivered(self, record: AgentRecord, letter: Letter) -> None:
        """A letter whose act expects an answer is being delivered: the answer is owed from its first delivery on."""
        if letter.attempt == 1 and (not letter.redelivered or letter.envelope.resend):
            self.owe(record, letter)

    def owe(self, record: AgentRecord, letter: Letter) -> None:
        """``record`` owes the answer to a letter, if that expects one and somebody can hear it."""
        if letter.envelope.performative in OWES_ANSWER and letter.sender != ANONYMOUS:
            self.debts.owe(record.aid, letter, self._clock.time())

    # ---- settling --------------------------------------------------------------------------------------------------

    def settled(self, record: AgentRecord, letter: Letter, now: float | None = None) -> None:
        """A letter left its mailbox for good: forget it in the store, remember its key from ``now`` (Unix seconds) on."""
        envelope = letter.envelope
        stored_key = None
        if letter.in_reserve:
            # Nobody repeats a notice of the platform, so its key need not be remembered.
            self._notice_bytes -= len(envelope.payload) + LETTER_COST
        else:
            self._mail_bytes -= len(envelope.payload) + LETTER_COST
        if envelope.id and not letter.in_reserve and letter.sender != ANONYMOUS:
            now = now or self._clock.time()
            self._dedupe.settled((letter.sender, envelope.id, record.name), envelope.digest, now)
            if self._durable:
                stored_key = StoredKey(letter.sender, envelope.id, record.name, envelope.digest, now)
        if self._durable and not envelope.transient:
            self._store.settle(record.name, letter.sequence, stored_key)

    def failed_attempts(self, record: AgentRecord, letters: Sequence[Letter]) -> None:
        """Write down how often letters were delivered that were sent back: a crash must not have them begin anew."""
        attempts = [(letter.sequence, letter.attempt) for letter in letters if not letter.envelope.transient]
        if attempts:
            self._store.mark_attempts(record.name, attempts)

    def give_up(
        self, record: AgentRecord, letter: Letter, why: str, *, reason: DeadReason, error: str | None = None
    ) -> None:
        """A letter that is out of its mailbox will never be handled: it becomes a dead letter, and its sender is told.

        Args:
            record: The receiver.
            letter: What is given up.
            why: What its sender is told.
            reason: Why, for people who look at dead letters.
            error: What they are told beside that; ``why`` when None.
        """
        if letter.envelope.performative in OWES_ANSWER:
            self.debts.drop(record.aid, letter.sequence)
        now = self._clock.time()
        # A crash must not come in between: its sender would never hear of it.
        with self._store.together():
            self._dead_letters.bury(record.name, letter, reason, why if error is None else error, now=now)
            self.settled(record, letter, now)
            self.fail(letter.envelope, letter.sender, record.aid, why)

    def redrive(self, dead: StoredDeadLetter, caller: Origin) -> None:
        """Put a dead letter back into the mailbox of its receiver: a new letter, flagged as redelivered.

        It stays dead until it is accepted. ``caller`` gets the receipt, under the number of the dead letter.
        """
        number, receiver = dead.number, dead.receiver
        if number in self._being_redriven:
            caller.refuse(
                Receipt(number, receiver, Outcome.DUPLICATE, "another call puts it back just now"), waited=False
            )
            return
        origin = Redriver(dead, self._dead_letters, self._being_redriven, caller)
        try:
            envelope = self._codec.decode(dead.payload)
        except InvalidArgument as error:
            self._refuse(origin, Receipt(number, receiver, Outcome.INVALID, str(error), field=error.field), None)
            return
        now = self._clock.time()
        record = self._ams.find(receiver)
        if envelope.expires_at and envelope.expires_at <= now:
            detail = f"expires_at was {now - envelope.expires_at:.3f} s ago by the clock of the bus"
            self._refuse(origin, Receipt(number, receiver, Outcome.EXPIRED, detail, field="expires_at"), envelope)
        elif record is None:
            self._refuse(origin, Receipt(number, receiver, Outcome.NO_SUCH_AGENT, self._who_is_there()), envelope)
        elif self.store_failure and self._durable and not envelope.transient:
            detail = f"not stored: {self.store_failure}"
            self._refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, detail), envelope)
        else:
            self._redrive_to(record, envelope, dead, origin, now)

    def _redrive_to(
        self, record: AgentRecord, envelope: Envelope, dead: StoredDeadLetter, origin: Redriver, now: float
    ) -> None:
        size = len(envelope.payload)
        account = record.mailbox.reserve(size, dead.sender) if self._has_room(size) else None
        if account is None:
            detail = f"{record.mailbox.messages:,} messages unsettled; all mailboxes together hold {self._mail_bytes:,} bytes"
            self._refuse(origin, Receipt(dead.number, dead.receiver, Outcome.MAILBOX_FULL, detail, 0.1), envelope)
            return
        self._mail_bytes += size + LETTER_COST
        key = (dead.sender, envelope.id, record.name) if envelope.id and dead.sender != ANONYMOUS else None
        self._deliver(record, account, envelope, origin, dead.number, dead.receiver, key, now, dead=dead)

    # ---- failures of the platform ----------------------------------------------------------------------------------

    def fail(self, envelope: Envelope | Debt, sender: str, receiver: str, why: str) -> None:
        """Send the AMS's `failure` for one receiver of a message to its sender, as a reply (FIPA SC00023 §5, SC00067).

        Never for a message that is itself a failure, refuse or not-understood, or from the platform: two broken agents
        would go on for ever.
        """
        record = self.sender_of(sender)
        if envelope.performative in NEVER_ANSWERED or record is None:
            return
        message = ACLMessage(
            Performative.FAILURE,
            sender=AgentIdentifier(self._self.aid),
            receivers=(AgentIdentifier(record.aid),),
            content=why,
            ontology=ONTOLOGY,
            protocol=envelope.protocol or None,
            conversation_id=envelope.conversation_id or None,
            in_reply_to=envelope.reply_with or None,
            user_parameters={"X-failed-receiver": receiver, "X-failed-id": envelope.id, AUTOMATIC: "true"},
        )
        try:
            notice = self._encoded(message)
        except InvalidArgument:
            # Only a defect gets here, and it must not end the session that is at work.
            _log.exception("a failure could not be encoded: to %s, about %s", record.aid, receiver)
            self.unheard_failures += 1
            return
        cost = len(notice.payload) + LETTER_COST
        reserve = self._limits.total_mail_bytes // RESERVE_SHARE
        if self._notice_bytes + cost > reserve or not record.mailbox.reserve_notice(len(notice.payload)):
            self.unheard_failures += 1
            return
        self._notice_bytes += cost
        self._deliver(record, None, notice, self._self, 0, record.name, None, self._clock.time())

    def _encoded(self, message: ACLMessage) -> Envelope:
        return self._codec.decode(self._codec.encode(message, message_id=str(uuid.uuid4())))

    # ---- the platform's own agents ---------------------------------------------------------------------------------

    def _submit_to_platform(self, name: str, receiver: str, envelope: Envelope, origin: Origin, number: int) -> None:
        """Have `ams` or `df` answer a message. Its answer is ordinary mail of whoever asked."""
        key = (origin.aid, envelope.id, name)
        known = self._dedupe.find(key) if envelope.id and origin.aid != ANONYMOUS else None
        if known is not None:
            repeated = Receipt(number, receiver, Outcome.DUPLICATE, _REPEATED)
            self._refuse(
                origin, repeated if known == envelope.digest else _used_id(number, receiver, envelope), envelope
            )
            return
        message = self._codec.decode_acl(envelope.payload)
        if message is None:
            detail = f"{name} speaks ACL only; expected an ACL body"
            self._refuse(origin, Receipt(number, receiver, Outcome.INVALID, detail, field="body"), envelope)
            return
        asker = self.sender_of(origin.aid)
        if asker is not None and (asker.mailbox.full or not self._has_room(0)):
            # Asked before anything is done, since what is done could not be told.
            detail = "the mailbox of the sender has no room for the answer"
            self._refuse(origin, Receipt(number, receiver, Outcome.MAILBOX_FULL, detail, 0.1), envelope)
            return
        answer = self._agents.answer(name, message, origin.aid)
        if envelope.id and origin.aid != ANONYMOUS:
            self._dedupe.settled(key, envelope.digest, self._clock.time())
        origin.holds.taken(name, envelope)
        origin.accepted(number, receiver, waited=False, lazy=envelope.report == _LAZY)
        if answer is None:
            return
        actor = _Platform(f"{name}@{self._ams.platform}")
        try:
            made = self._encoded(answer)
        except InvalidArgument:
            _log.exception("an answer of %s could not be encoded: to %s", actor.aid, origin.aid)
            self.fail(envelope, origin.aid, actor.aid, "done, but the answer cannot be encoded")
            return
        size = len(made.payload)
        if size > self._limits.max_message_bytes:
            why = (
                f"the answer has {size:,} bytes, the limit is {self._limits.max_message_bytes:,}; ask for fewer results"
            )
            self.fail(envelope, origin.aid, actor.aid, why)
            return
        for record in self._answered(message, origin):
            if record is asker:
                account = record.mailbox.reserve_over(size, actor.aid)
            else:
                room = record.mailbox.reserve(size, actor.aid) if self._has_room(size) else None
                if room is None:
                    self.unheard_failures += 1
                    continue
                account = room
            self._mail_bytes += size + LETTER_COST
            self._deliver(record, account, made, actor, 0, record.name, None, self._clock.time())

    def _answered(self, message: ACLMessage, origin: Origin) -> Iterable[AgentRecord]:
        """Return who gets the answer to ``message``: `reply_to` where it names agents of this platform, else its sender.

        Looked up after the request was carried out, which may have removed the sender.
        """
        named = [self._ams.find(one.name) for one in message.reply_to[: self._limits.max_receivers]]
        found = dict.fromkeys(record for record in named if record is not None)
        if not found:
            asker = self.sender_of(origin.aid)
            return () if asker is None else (asker,)
        return found

    def _refuse(self, origin: Origin, receipt: Receipt, envelope: Envelope | None, *, waited: bool = False) -> None:
        """Give ``origin`` a receipt that is no ACCEPTED, also as a `failure` when the message in ``envelope`` asks for that."""
        if len(receipt.receiver) > _MAX_RECEIVER_CHARS:
            receipt.receiver = receipt.receiver[:_MAX_RECEIVER_CHARS]
        if len(receipt.detail) > _MAX_DETAIL_CHARS:
            receipt.detail = receipt.detail[:_MAX_DETAIL_CHARS]
        if envelope is not None and (envelope.hold_order or origin.holds):
            origin.holds.refused(self._local(receipt.receiver), envelope, receipt.outcome)
        origin.refuse(receipt, waited=waited)
        if envelope is None or receipt.outcome.delivered or isinstance(origin, Redriver):
            return
        if envelope.report == Report.FAILURE_MESSAGE:
            self.fail(envelope, origin.aid, receipt.receiver, f"{receipt.outcome.name}: {receipt.detail}")


def _held(number: int, receiver: str, blocker: str) -> Receipt:
    detail = f"the message {blocker!r}, refused before, has to be sent again first"
    return Receipt(number, receiver, Outcome.HELD, detail, 0.1)


def _late(number: int, receiver: str, ago: float) -> Receipt:
    detail = f"its sender was lost while it owed this answer, and the bus answered in its place {ago:.1f} s ago"
    return Receipt(number, receiver, Outcome.EXPIRED, detail)


def _used_id(number: int, receiver: str, envelope: Envelope) -> Receipt:
    detail = f"the id {envelope.id!r} was used for another message to this receiver; expected a new id"
    return Receipt(number, receiver, Outcome.INVALID, detail, field="id")
