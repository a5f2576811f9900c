"""Dead letters that go back into mailboxes: in their senders' names, with receipts for who asked for it.

Owns: that a letter stays dead until it is in the mailbox, as durably as promised, and is gone then. Leaves to others:
bringing it there (`bus.post`), the letters themselves (`bus.dead_letters`).
"""

from __future__ import annotations

from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.hints import Hints
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.origins import ANONYMOUS, Origin, Receipt
from gagent_grpc.bus.ports import Clock, Codec, StoredDeadLetter
from gagent_grpc.bus.post import Post, addressed
from gagent_grpc.envelope import Envelope, Outcome
from gagent_grpc.errors import InvalidArgument


class Redrives:
    """Puts dead letters of one node back."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        post: Post,
        codec: Codec,
        clock: Clock,
        dead_letters: DeadLetters,
        hints: Hints,
    ) -> None:
        self._ams = ams
        self._post = post
        self._codec = codec
        self._clock = clock
        self._dead_letters = dead_letters
        self._hints = hints
        self._under_way: set[int] = set()

    def redrive(self, dead: StoredDeadLetter, caller: Origin) -> None:
        """Put a dead letter back into the mailbox of its receiver: a new letter, flagged as redelivered.

        It stays dead until it is accepted. ``caller`` gets the receipt, under the number of the dead letter.
        """
        number, receiver = dead.number, dead.receiver
        if number in self._under_way:
            caller.refuse(
                Receipt(number, receiver, Outcome.DUPLICATE, "another call puts it back just now"), waited=False
            )
            return
        origin = Redriver(dead, self._dead_letters, self._under_way, caller)
        try:
            envelope = self._codec.decode(dead.payload)
        except InvalidArgument as error:
            self._post.refuse(origin, Receipt(number, receiver, Outcome.INVALID, str(error), field=error.field), None)
            return
        now = self._clock.time()
        record = self._ams.find(receiver)
        if envelope.expires_at and envelope.expires_at <= now:
            detail = f"expires_at was {now - envelope.expires_at:.3f} s ago by the clock of the bus"
            self._post.refuse(origin, Receipt(number, receiver, Outcome.EXPIRED, detail, field="expires_at"), envelope)
        elif record is None:
            self._post.refuse(
                origin, Receipt(number, receiver, Outcome.NO_SUCH_AGENT, self._hints.registered()), envelope
            )
        elif detail := self._post.cannot_store(envelope):
            self._post.refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, detail), envelope)
        else:
            self._redrive_to(record, envelope, dead, origin, now)

    def _redrive_to(
        self, record: AgentRecord, envelope: Envelope, dead: StoredDeadLetter, origin: Redriver, now: float
    ) -> None:
        account = self._post.reserve(record, len(envelope.payload), dead.sender)
        if account is None:
            detail = f"{record.mailbox.messages:,} messages unsettled; all mailboxes together hold {self._post.mail_bytes:,} bytes"
            self._post.refuse(origin, Receipt(dead.number, dead.receiver, Outcome.MAILBOX_FULL, detail, 0.1), envelope)
            return
        key = (
            (dead.sender, envelope.id, addressed(record.name, dead.via))
            if envelope.id and dead.sender != ANONYMOUS
            else None
        )
        self._post.deliver(record, account, envelope, origin, dead.number, dead.receiver, key, now, dead=dead)


class Redriver:
    """`Origin` of one dead letter. Its sender hears nothing: it was told of the end before."""

    def __init__(self, dead: StoredDeadLetter, letters: DeadLetters, under_way: set[int], caller: Origin) -> None:
        """Make the origin of ``dead``.

        Args:
            dead: The letter.
            letters: Where it is removed once it is accepted.
            under_way: Numbers that are being put back; that of the letter is in it until its outcome is known.
            caller: Gets the receipt.
        """
        self.aid = dead.sender
        # The order of its session is over; nothing waits for it.
        self.holds = Holds()
        self.wants_failures = False
        self._number = dead.number
        self._letters = letters
        self._under_way = under_way
        self._caller = caller
        under_way.add(dead.number)

    def expect(self, number: int) -> None:
        self._caller.expect(number)

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        # Now and not before: until its commit the stored letter is the only one there is.
        self._letters.remove([self._number])
        self._under_way.discard(self._number)
        self._caller.accepted(number, receiver, waited=waited, lazy=lazy)

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        self._under_way.discard(self._number)
        self._caller.refuse(receipt, waited=waited)
