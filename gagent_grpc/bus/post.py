"""From an agent that is to get a message to a letter in its mailbox, or to a receipt that says why not.

Owns: the bound on all mail together, letters that a store is making durable, what is written when a letter arrives and
when it leaves, and the `failure` messages of the platform. Leaves to others: who a message goes to (`bus.router`), the
mailboxes themselves, dead letters, answers that are owed (`bus.debts`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.management import ONTOLOGY
from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import NEVER_ANSWERED, Performative
from gagent_grpc.bus.ams import SEQUENCES_WRITTEN_AHEAD, AgentManagementSystem, AgentRecord
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.debts import CANCEL, MAY_OWE_ANSWER, Debt, Debts, owes_answer
from gagent_grpc.bus.dedupe import Dedupe, Key
from gagent_grpc.bus.mailbox import RESERVE_SHARE, Account, Letter
from gagent_grpc.bus.moderator import Ended, Moderator
from gagent_grpc.bus.origins import ANONYMOUS, Origin, PlatformOrigin, Receipt
from gagent_grpc.bus.overdue import Overdue
from gagent_grpc.bus.participation import Participation
from gagent_grpc.bus.ports import Clock, Codec, Commit, Store, StoredDeadLetter, StoredKey, StoredMessage
from gagent_grpc.bus.traffic import Traffic
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason, Envelope, Outcome, Report
from gagent_grpc.errors import InvalidArgument

if TYPE_CHECKING:
    from gagent_grpc.bus.tasking import Tasking

_log = logging.getLogger(__name__)

LETTER_COST = 800
"""What a letter takes beside its payload, in bytes (measured); it counts against the bound on all mail together."""
ROLE = "role:"
"""Beginning of the address of a role."""
REPEATED = "accepted before under this id"
_FAULTY = "internal error; the log of the bus has more"
# A plain number: it is compared for every message.
_LAZY = int(Report.RECEIPT_LAZY)
# A valid address, as that of a role, has no more; what an error repeats of a longer one need not be whole. One that may be
# tried again has to be: its sender knows by it what waits, and so does the bus.
_MAX_RECEIVER_CHARS = 1_005
_MAX_DETAIL_CHARS = 1_000


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


class Post:
    """Brings letters into mailboxes and sees them out. Synchronous: what waits for a store is finished by `commit`."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        store: Store,
        codec: Codec,
        clock: Clock,
        limits: BusLimits,
        dedupe: Dedupe,
        dead_letters: DeadLetters,
    ) -> None:
        self._ams = ams
        self._store = store
        self._codec = codec
        self._clock = clock
        self._limits = limits
        self._max_mail_bytes = limits.total_mail_bytes
        self._dedupe = dedupe
        self._dead_letters = dead_letters
        self._durable = store.durable
        self._writing: deque[_Writing] = deque()
        self._being_written: dict[Key, _Writing] = {}
        self._mail_bytes = 0
        self._notice_bytes = 0
        self._self = PlatformOrigin(f"ams@{ams.platform}")
        # Ids for messages whose senders give none: never the same again, also not after a restart.
        self._run = secrets.token_hex(6)
        self._given_ids = itertools.count(1)
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
        self.traffic = Traffic(clock, ams.platform, most=limits.traffic_watches)
        """Those who watch what passes."""
        self.moderator = Moderator(self, ams, codec, limits, self.traffic)
        """Keeps conversations within their limits."""
        self._look = self.moderator.monitor.look
        self.participation = Participation(ams, clock, limits)
        """Those who have a part in a conversation."""
        self.overdue = Overdue(self)
        """Letters whose time was over."""
        self.tasks: Tasking | None = None
        """Delegated tasks, whose delegators hear by them what becomes of a DELEGATE."""
        self.stranded: Callable[[AgentRecord], None] = lambda record: None
        """Is told of an agent without a session that gets mail for a role."""
        self.unheard_failures = 0
        """Failures of the platform that found no mailbox or no room in its reserve."""

    # ---- room ------------------------------------------------------------------------------------------------------

    @property
    def mail_bytes(self) -> int:
        """Bytes of all unsettled mail, with what each letter takes beside its payload; notices of the platform not."""
        return self._mail_bytes

    @property
    def notice_bytes(self) -> int:
        """The same of unsettled notices of the platform."""
        return self._notice_bytes

    def has_room(self, size: int) -> bool:
        """Return whether all mailboxes together take ``size`` bytes more."""
        return self._mail_bytes + size + LETTER_COST <= self._max_mail_bytes

    def cannot_store(self, envelope: Envelope) -> str:
        """Say why a message cannot be made as durable as it should be; "" when it can."""
        lost = self.store_failure and self._durable and not envelope.transient
        return f"not stored: {self.store_failure}" if lost else ""

    def reserve(self, record: AgentRecord, size: int, sender: str, *, over: bool = False) -> Account | None:
        """Keep room for ``size`` bytes of ``sender`` in the mailbox of an agent; return None when there is none.

        With ``over`` the bounds are exceeded if need be.
        """
        if over:
            account = record.mailbox.reserve_over(size, sender)
        elif not self.has_room(size) or (room := record.mailbox.reserve(size, sender)) is None:
            return None
        else:
            account = room
        self._mail_bytes += size + LETTER_COST
        return account

    def _uncount(self, letter: Letter) -> None:
        if letter.in_reserve:
            self._notice_bytes -= letter.size + LETTER_COST
        else:
            self._mail_bytes -= letter.size + LETTER_COST

    def local(self, receiver: str) -> str:
        """Return the name of an agent of this platform, however it is written; else the address as it is."""
        return receiver.removesuffix(f"@{self._ams.platform}")

    # ---- in --------------------------------------------------------------------------------------------------------

    def sender_of(self, aid: str) -> AgentRecord | None:
        """Return the agent that sends as ``aid``; None for nobody in particular, and for one that is gone."""
        return None if aid == ANONYMOUS else self._ams.find(aid)

    def accept(
        self,
        record: AgentRecord,
        receiver: str,
        envelope: Envelope,
        origin: Origin,
        number: int,
        now: float,
        via: str = "",
    ) -> None:
        """Put a message into the mailbox of an agent, or refuse it, now or with a commit.

        Args:
            record: The agent.
            receiver: What receipts call it.
            envelope: The message, which its sender may send and which is still of use.
            origin: Who sends it and hears of it.
            number: What the receipts call the message.
            now: Unix seconds.
            via: Address that led to the agent, where it is not its own.
        """
        key = None
        # Nobody in particular is many senders, and their ids are not unique among them.
        sender = origin.aid
        if envelope.id and sender != ANONYMOUS:
            key = (sender, envelope.id, addressed(record.name, via) if via else record.name)
            written = self._being_written.get(key) if self._being_written else None
            if written is not None and self._ams.find(written.record.aid) is not written.record:
                # Written for an agent that is gone.
                written = None
            known = written.letter.envelope.digest if written is not None else self._dedupe.find(key)
            if known is not None and known != envelope.digest:
                self.refuse(origin, used_id(number, receiver, envelope), envelope)
                return
            if written is not None:
                # DUPLICATE promises as much as ACCEPTED, so it has to wait for the same commit.
                written.repeats.append((origin, number, receiver))
                origin.expect(number)
                origin.holds.taken(self.local(receiver), envelope)
                return
            if known is not None:
                self.refuse(origin, Receipt(number, receiver, Outcome.DUPLICATE, REPEATED), envelope)
                return
        debt = None
        if sender in self.debts.accounts:
            debt = self.debts.find(sender, record.aid, envelope)
            if debt is not None and debt.closed_at is not None:
                self.refuse(origin, _late(number, receiver, now - debt.closed_at), envelope)
                return
        if self.store_failure and (detail := self.cannot_store(envelope)):
            self.refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, detail), envelope)
            return
        step = None
        if envelope.conversation_id or envelope.hops:
            step = self._look(envelope, sender, record.aid, now, via)
            if step is not None and step.refusal:
                self.moderator.refuse(step, receiver, envelope, origin, number)
                return
        mailbox = record.mailbox
        size = len(envelope.payload)
        cost = size + LETTER_COST
        if self._mail_bytes + cost > self._max_mail_bytes:
            detail = f"all mailboxes together hold {self._mail_bytes:,} bytes, the limit is {self._max_mail_bytes:,}"
            self.refuse(origin, Receipt(number, receiver, Outcome.MAILBOX_FULL, detail, 0.1), envelope)
            return
        account = mailbox.reserve(size, sender)
        if account is None:
            detail = f"{mailbox.messages:,} messages, {mailbox.bytes:,} bytes unsettled"
            self.refuse(origin, Receipt(number, receiver, Outcome.MAILBOX_FULL, detail, 0.1), envelope)
            return
        self._mail_bytes += cost
        flag = ""
        if step is not None:
            flag = self.moderator.monitor.take(step, now)
            if flag and not self.moderator.allows(flag, step, receiver, envelope, origin, number):
                letter = Letter(0, envelope, sender, "", via, now, account)
                mailbox.release(letter)
                self._uncount(letter)
                return
        if origin.holds.waiting:
            origin.holds.taken(self.local(receiver), envelope)
        self.deliver(record, account, envelope, origin, number, receiver, key, now, debt=debt, via=via, flag=flag)

    def is_known(self, origin: Origin, receiver: str, envelope: Envelope) -> bool:
        """Return whether this very message was accepted before for a receiver."""
        if not envelope.id or origin.aid == ANONYMOUS:
            return False
        return self._dedupe.find((origin.aid, envelope.id, receiver)) == envelope.digest

    def deliver(
        self,
        record: AgentRecord,
        account: Account | None,
        envelope: Envelope,
        origin: Origin,
        number: int,
        receiver: str,
        key: Key | None,
        now: float,
        *,
        debt: Debt | None = None,
        dead: StoredDeadLetter | None = None,
        via: str = "",
        message_id: str = "",
        flag: str = "",
    ) -> None:
        """Make a letter of a message for which room is reserved, and put it into the mailbox now or with its commit.

        A ``debt`` that it pays is paid at once: its sender may be lost, or go, before the commit. What was ``dead`` is
        called as before, and is flagged.
        """
        sequence = record.mailbox.take_sequence()
        message_id = envelope.id or message_id or f"{self._run}-{next(self._given_ids)}"
        letter = Letter(sequence, envelope, origin.aid, message_id, via, now, account)
        if flag and self.traffic.watched:
            self.traffic.flag(letter, flag)
        if dead is not None:
            letter.message_id, letter.via = dead.message_id, dead.via
            letter.redelivered = True
        if self._durable:
            if sequence >= record.sequences_written:
                # Before the letter, so that no crash makes the mailbox use a number again.
                record.sequences_written = sequence + SEQUENCES_WRITTEN_AHEAD
                self._store.put_agent(record.stored())
            if not (envelope.transient or self.store_failure):
                self._write(record, letter, origin, number, receiver, key, debt, dead)
                return
        self._put(record, letter, key)
        origin.accepted(number, receiver, waited=False, lazy=envelope.report == _LAZY)
        if debt is not None:
            self.debts.pay(debt)

    def _write(
        self,
        record: AgentRecord,
        letter: Letter,
        origin: Origin,
        number: int,
        receiver: str,
        key: Key | None,
        debt: Debt | None,
        dead: StoredDeadLetter | None,
    ) -> None:
        """Have a letter made durable: it is put into the mailbox with its commit. Arguments as `deliver`."""
        envelope = letter.envelope
        stored = StoredMessage(
            record.name,
            letter.sequence,
            origin.aid,
            letter.message_id,
            envelope.id if origin.aid != ANONYMOUS else "",
            envelope.digest,
            letter.via,
            letter.accepted_at,
            0,
            envelope.payload,
            dead.number if dead is not None else 0,
        )
        try:
            position = self._store.accept(stored)
        except InvalidArgument as error:
            record.mailbox.release(letter)
            self._uncount(letter)
            self._not_taken(record, letter)
            self.refuse(origin, Receipt(number, receiver, Outcome.INVALID, str(error), field=error.field), envelope)
            return
        writing = _Writing(position, record, letter, origin, number, receiver, key)
        if debt is not None:
            writing.debt, writing.debtor = debt, self._ams.find(debt.debtor)
        self._writing.append(writing)
        if key is not None and dead is None:
            self._being_written[key] = writing
        origin.expect(number)
        if debt is not None:
            self.debts.pay(debt)

    def _put(self, record: AgentRecord, letter: Letter, key: Key | None) -> None:
        if key is not None:
            self._dedupe.accepted(key, letter.envelope.digest)
        self.accepted_messages += 1
        if self.traffic.watched:
            self.traffic.accepted(record.aid, letter)
        if conversation_id := letter.envelope.conversation_id:
            self.participation.note(conversation_id, letter.sender, record.aid, letter.accepted_at, letter.via)
        record.mailbox.put(letter)
        session = record.session
        if session is not None:
            if not session.awake:
                session.wake()
        elif letter.via.startswith(ROLE):
            # Its agent was lost while it was being written.
            self.stranded(record)

    def restore(self, record: AgentRecord, letters: Sequence[Letter]) -> None:
        """Put the stored letters of an agent back into its mailbox at the start, over its bounds if need be."""
        mailbox, accepted, name = record.mailbox, self._dedupe.accepted, record.name
        for letter in letters:
            sender, envelope = letter.sender, letter.envelope
            size = len(envelope.payload)
            letter.account = mailbox.reserve_over(size, sender)
            self._mail_bytes += size + LETTER_COST
            if envelope.id and sender != ANONYMOUS:
                accepted((sender, envelope.id, addressed(name, letter.via)), envelope.digest)
            mailbox.put(letter)
        # Not noted at once, which would read what is read late otherwise.
        self.participation.restored[record] = {letter.sequence for letter in letters}

    # ---- commits ---------------------------------------------------------------------------------------------------

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
        if one.origin.holds.waiting and (
            blocker := one.origin.holds.blocker(self.local(one.receiver), letter.envelope)
        ):
            # An earlier one was not stored, in a commit before this: to keep the order this one has to go as well.
            self._store.settle(one.record.name, letter.sequence, None)
            refusal = held(one.number, one.receiver, blocker)
            self._not_kept(one, refusal.outcome, refusal.detail, refusal.retry_after)
            return
        self._put(one.record, letter, one.key)
        one.origin.accepted(one.number, one.receiver, waited=True, lazy=letter.envelope.report == _LAZY)
        for origin, number, receiver in one.repeats:
            self.refuse(origin, Receipt(number, receiver, Outcome.DUPLICATE, REPEATED), None, waited=True)

    def _refuse_faulty(self, one: _Writing) -> None:
        """Tell whoever waits for a letter that could not be finished; nobody knows what became of it."""
        for origin, number, receiver in [(one.origin, one.number, one.receiver), *one.repeats]:
            # Where telling is what fails, or it was told already, there is no more to do.
            with contextlib.suppress(Exception):
                self.refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, _FAULTY), None, waited=True)

    def _not_kept(self, one: _Writing, outcome: Outcome, detail: str, retry_after: float | None) -> None:
        """A letter did not become durable, or its receiver is gone: nobody was reached."""
        one.record.mailbox.release(one.letter)
        self._uncount(one.letter)
        self._not_taken(one.record, one.letter)
        envelope = one.letter.envelope
        debt = one.debt
        if debt is not None and one.debtor is not None and self._ams.find(debt.debtor) is one.debtor:
            self.debts.reinstate(debt)
        elif debt is not None:
            # It went in the belief that it had answered.
            self.fail(debt, debt.asker, debt.debtor, f"{debt.debtor} is gone, and its answer was not kept: {detail}")
        for origin, number, receiver in [(one.origin, one.number, one.receiver), *one.repeats]:
            self.refuse(origin, Receipt(number, receiver, outcome, detail, retry_after), envelope, waited=True)

    def _not_taken(self, record: AgentRecord, letter: Letter) -> None:
        """What was noted when a letter was accepted is not so: sent again, it is no second move."""
        self.traffic.not_kept(letter)
        self.moderator.monitor.lose_track(letter.envelope.conversation_id, letter.sender, record.aid)

    # ---- out -------------------------------------------------------------------------------------------------------

    def settled(self, record: AgentRecord, letter: Letter, now: float | None = None) -> None:
        """A letter left its mailbox for good: forget it in the store, remember its key from ``now`` (Unix seconds) on."""
        self.settled_all(record, [letter], now or self._clock.time())

    def settled_all(self, record: AgentRecord, letters: Sequence[Letter], now: float) -> None:
        """As `settled`, for many."""
        name, durable, remember = record.name, self._durable, self._dedupe.settled
        for letter in letters:
            envelope, sender = letter.envelope, letter.sender
            stored_key = None
            cost = len(envelope.payload) + LETTER_COST
            if letter.account is None:
                # Nobody repeats a notice of the platform, so its key need not be remembered.
                self._notice_bytes -= cost
            else:
                self._mail_bytes -= cost
                if envelope.id and sender != ANONYMOUS:
                    receiver = addressed(name, letter.via) if letter.via else name
                    digest = envelope.digest
                    remember((sender, envelope.id, receiver), digest, now)
                    if durable:
                        stored_key = StoredKey(sender, envelope.id, receiver, digest, now)
            if durable and not envelope.transient:
                self._store.settle(name, letter.sequence, stored_key)

    def moved_away(self, record: AgentRecord, letter: Letter) -> None:
        """A letter that was withdrawn is in another mailbox: what the store keeps of it here goes, its key does not."""
        self._uncount(letter)
        self.moderator.monitor.lose_track(letter.envelope.conversation_id, letter.sender, record.aid)
        if self._durable and not letter.envelope.transient:
            self._store.settle(record.name, letter.sequence, None)

    def failed_attempts(self, record: AgentRecord, letters: Sequence[Letter]) -> None:
        """Write down how often letters were delivered that were sent back: a crash must not have them begin anew."""
        attempts = [(letter.sequence, letter.counted) for letter in letters if not letter.envelope.transient]
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
        if letter.envelope.performative in MAY_OWE_ANSWER:
            self.debts.drop(record.aid, letter.sequence)
        now = self._clock.time()
        if self.traffic.watched:
            self.traffic.given_up(record.aid, letter, why)
        # A crash must not come in between: its sender would never hear of it.
        with self._store.together():
            told = (
                not letter.envelope.performative
                and self.tasks is not None
                and self.tasks.given_up(record, letter, reason, why)
            )
            self._dead_letters.bury(record.name, letter, reason, why if error is None else error, now=now)
            self.settled(record, letter, now)
            if not told:
                self.fail(letter.envelope, letter.sender, record.aid, why)

    # ---- answers that are owed -------------------------------------------------------------------------------------

    def delivered(self, record: AgentRecord, letter: Letter) -> None:
        """A letter whose act expects an answer is being delivered: the answer is owed from its first delivery on.

        With a `cancel` the answer to a subscription is owed no more. Not when it is accepted: what it cancels may be delivered
        later than that.
        """
        if letter.envelope.performative == CANCEL:
            self.debts.cancelled(record.aid, letter.sender, letter.envelope)
        elif letter.attempt == 1 and (not letter.redelivered or letter.envelope.resend):
            self.owe(record, letter)

    def owe(self, record: AgentRecord, letter: Letter) -> None:
        """``record`` owes the answer to a letter, if that expects one and somebody can hear it."""
        if letter.sender != ANONYMOUS and owes_answer(letter.envelope):
            self.debts.owe(record.aid, letter, self._clock.time())

    # ---- refusals and failures -------------------------------------------------------------------------------------

    def refuse(
        self,
        origin: Origin,
        receipt: Receipt,
        envelope: Envelope | None,
        *,
        waited: bool = False,
        with_failure: bool = True,
        flag: str = "",
    ) -> None:
        """Give ``origin`` a receipt that is no ACCEPTED, also as a `failure` when the message in ``envelope`` asks for that.

        Without ``with_failure`` there is none, whatever it asks for. The ``flag`` is for those who watch.
        """
        if len(receipt.receiver) > _MAX_RECEIVER_CHARS:
            receipt.receiver = receipt.receiver[:_MAX_RECEIVER_CHARS]
        if len(receipt.detail) > _MAX_DETAIL_CHARS:
            receipt.detail = receipt.detail[:_MAX_DETAIL_CHARS]
        if envelope is not None and (envelope.hold_order or origin.holds.waiting):
            origin.holds.refused(self.local(receipt.receiver), envelope, receipt.outcome)
        if self.traffic.watched and not receipt.outcome.delivered:
            self.traffic.refused(origin.aid, receipt, envelope, flag)
        origin.refuse(receipt, waited=waited)
        if envelope is None or receipt.outcome.delivered or not (origin.wants_failures and with_failure):
            return
        if envelope.report == Report.FAILURE_MESSAGE:
            self.fail(envelope, origin.aid, receipt.receiver, f"{receipt.outcome.name}: {receipt.detail}")

    def fail(self, envelope: Envelope | Debt | Ended, sender: str, receiver: str, why: str) -> None:
        """Send the AMS's `failure` for one receiver of a message to its sender, as a reply (FIPA SC00023 §5, SC00067).

        Never for a message that is itself a failure, refuse or not-understood, or from the platform: two broken agents
        would go on for ever.
        """
        record = self.sender_of(sender)
        if envelope.performative in NEVER_ANSWERED or record is None:
            return
        if envelope.conversation_id:
            about = self._ams.find(receiver)
            name = about.aid if about is not None else receiver
            self.moderator.monitor.platform_failed(envelope.conversation_id, record.aid, name, self._clock.time())
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
            notice = self.encoded(message)
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
        self.deliver(record, None, notice, self._self, 0, record.name, None, self._clock.time())

    def encoded(self, message: ACLMessage) -> Envelope:
        """Return a message of the platform as one that travels, with an id of its own.

        Raises:
            InvalidArgument: It holds a value that cannot be encoded.
        """
        return self._codec.decode(self._codec.encode(message, message_id=str(uuid.uuid4())))


def held(number: int, receiver: str, blocker: str) -> Receipt:
    detail = f"the message {blocker!r}, refused before, has to be sent again first"
    return Receipt(number, receiver, Outcome.HELD, detail, 0.1)


def _late(number: int, receiver: str, ago: float) -> Receipt:
    detail = f"its sender was lost while it owed this answer, and the bus answered in its place {ago:.1f} s ago"
    return Receipt(number, receiver, Outcome.EXPIRED, detail)


def used_id(number: int, receiver: str, envelope: Envelope) -> Receipt:
    detail = f"the id {envelope.id!r} was used for another message to this receiver; expected a new id"
    return Receipt(number, receiver, Outcome.INVALID, detail, field="id")


def addressed(receiver: str, via: str) -> str:
    """Return by which receiver a repetition is recognised: a role counts as one, whoever serves it."""
    return via if via.startswith(ROLE) else receiver
