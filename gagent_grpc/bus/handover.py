"""A task on its way to its executor: the DELEGATE message that stands for it, and what becomes of both together.

Owns: whom an attempt goes to, that task and message are there both or neither, and whoever waits to hear of it. Leaves to
others: what a task is (`bus.tasks`), the mailboxes (`bus.post`), when another attempt is due (`bus.task_endings`).
"""

from __future__ import annotations

import asyncio
import logging

from gagent_grpc.acl.aid import RESERVED_NAMES, split_aid
from gagent_grpc.acp.tasks import TaskKey
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.hints import Hints
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.origins import Origin, Receipt
from gagent_grpc.bus.ports import Store
from gagent_grpc.bus.post import REPEATED, ROLE, Post
from gagent_grpc.bus.roles import Roles
from gagent_grpc.bus.task_letters import TaskLetters
from gagent_grpc.bus.task_table import TaskTable
from gagent_grpc.bus.tasks import Task
from gagent_grpc.bus.topics import TOPIC
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import Envelope, Outcome
from gagent_grpc.errors import (
    AgentNotRegistered,
    BusError,
    InvalidArgument,
    InvalidName,
    MailboxFull,
    MessageTooLarge,
    NoProvider,
    StoreUnavailable,
    Unauthorised,
    Unavailable,
    shown,
)

_log = logging.getLogger(__name__)

_MAX_SERVICE_CHARS = 1_000


class Handover:
    """`Origin` of one DELEGATE: whoever delegated hears of it, and the task goes where its message goes."""

    def __init__(self, owner: Handovers, task: Task, caller: Origin | None, *, first: bool) -> None:
        """Hand ``task`` over; ``caller`` gets the receipt of a message that came, and is None for one of the bus."""
        self.aid = task.key.delegator
        self.holds = caller.holds if caller is not None else Holds()
        self.wants_failures = caller is not None and caller.wants_failures
        self.task = task
        self.first = first
        self.message_id = ""
        self.refusal: Receipt | None = None
        self.error: BusError | None = None
        """What the refusal is in a call, where that is known."""
        self._owner = owner
        self._caller = caller
        self._repeats: list[tuple[Origin, int, str, Envelope]] = []
        self._done = asyncio.Event()

    # ---- as an origin ----------------------------------------------------------------------------------------------

    def expect(self, number: int) -> None:
        """It is being written."""
        if self._caller is not None:
            self._caller.expect(number)

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        """It is in the mailbox, as durably as promised."""
        self._owner.finish(self)
        self._done.set()
        if self._caller is not None:
            self._caller.accepted(number, receiver, waited=waited, lazy=lazy)
        for origin, repeat, address, _ in self._repeats:
            self._owner.repeated(origin, repeat, address, None, waited=True)

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        """It is in no mailbox, so there is no such attempt."""
        self.refusal = receipt
        self._owner.finish(self)
        self._done.set()
        if self._caller is not None:
            self._caller.refuse(receipt, waited=waited)
        for origin, number, address, envelope in self._repeats:
            again = Receipt(number, address, receipt.outcome, receipt.detail, receipt.retry_after, receipt.field)
            self._owner.tell(origin, again, envelope, waited=True)

    # ---- for who waits ---------------------------------------------------------------------------------------------

    def repeat(self, origin: Origin, number: int, address: str, envelope: Envelope) -> None:
        """The same task was delegated again meanwhile, by a message: it shares the outcome."""
        origin.expect(number)
        self._owner.taken(origin, address, envelope)
        self._repeats.append((origin, number, address, envelope))

    async def outcome(self, timeout: float) -> None:
        """Wait until the task is with its executor.

        Args:
            timeout: Seconds that the store may take.

        Raises:
            AgentNotRegistered: Nobody bears the name.
            NoProvider: Nobody who is connected serves the role.
            MailboxFull: The executor has no room.
            MessageTooLarge: Description and parameters are over the message limit.
            StoreUnavailable: It cannot be made durable.
            Unavailable: It cannot be handed over now.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._done.wait()
        except TimeoutError:
            raise StoreUnavailable("the store does not write at present; delegate again under the same id") from None
        if self.refusal is not None:
            raise self.error or _error_of(self.refusal, self.task)


class Handovers:
    """Brings the tasks of one node to their executors. Synchronous."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        post: Post,
        roles: Roles,
        table: TaskTable,
        letters: TaskLetters,
        store: Store,
        limits: BusLimits,
    ) -> None:
        self._ams = ams
        self._post = post
        self._roles = roles
        self._table = table
        self._letters = letters
        self._store = store
        self._limits = limits
        self._hints = Hints(ams)
        self.under_way: dict[TaskKey, Handover] = {}
        """What is being written."""
        self.waiting: dict[int, Task] = {}
        """Tasks whose next attempt found nobody with room for it."""
        self._leaving: dict[int, tuple[AgentRecord, int]] = {}
        """Of such tasks who gave them back before it goes, and in which session: there they do not come again."""

    def address(self, target: str) -> str:
        """Return the normal form of whom a task is for: `name@platform` or `role:TYPE`.

        Raises:
            InvalidArgument: It is no address of one agent, or that of the platform's own.
            Unavailable: It is on a platform that is not known here.
        """
        if target.startswith(ROLE):
            if not len(ROLE) < len(target) <= _MAX_SERVICE_CHARS:
                raise InvalidArgument(
                    f"the role {shown(target)} is not valid; expected role:TYPE, of at most {_MAX_SERVICE_CHARS:,} characters",
                    field="target",
                )
            return target
        if target == "*" or target.startswith(TOPIC):
            raise InvalidArgument(
                f"target {shown(target)}: a task is for one agent; expected a name or a role", field="target"
            )
        try:
            name, platform = split_aid(target)
        except InvalidName as error:
            raise InvalidArgument(f"target: {error}", field="target") from error
        if platform and platform != self._ams.platform:
            raise Unavailable(f"the platform {platform!r} is not known here; this one is {self._ams.platform!r}")
        if name in RESERVED_NAMES:
            raise InvalidArgument(f"target {shown(target)}: the platform's own agents take no tasks", field="target")
        return f"{name}@{self._ams.platform}"

    def begin(
        self,
        task: Task,
        now: float,
        *,
        first: bool,
        lost: AgentRecord | None = None,
        envelope: Envelope | None = None,
        caller: Origin | None = None,
        number: int = 0,
        receiver: str = "",
        again: bool = False,
    ) -> Handover:
        """Begin to hand a task over; its outcome may be there at once, or comes with a commit.

        Args:
            task: The task, which is in the table and waits.
            now: Unix seconds.
            first: It was delegated just now, and is forgotten again when it reaches nobody; else it goes on waiting.
            lost: Who is not to get it.
            envelope: The DELEGATE that came; None for one that the bus writes.
            caller: Who sent that.
            number: What its receipt calls it.
            receiver: What it calls the receiver.
            again: What the bus writes may have been delivered before.
        """
        handover = Handover(self, task, caller, first=first)
        receiver = receiver or task.target
        lost = lost or self._leaver(task)
        try:
            record = self._choose(task, now, lost, must_have_room=not first)
            if envelope is None:
                envelope = self._letters.delegation(task, again=again)
            size = len(envelope.payload)
            if size > self._limits.max_message_bytes:
                raise MessageTooLarge(size, self._limits.max_message_bytes)
        except BusError as error:
            self._refuse(handover, error, number, receiver, envelope)
            return handover
        via = task.order.address if task.order.address.startswith(ROLE) else ""
        with self._store.together():
            task.hand_over(record.aid, envelope.id, record.mailbox.next_sequence, now)
            handover.message_id = envelope.id
            self.under_way[task.key] = handover
            self._post.accept(record, receiver, envelope, handover, number, now, via)
            if handover.refusal is None:
                self._table.write(task)
                self.forget(task)
        return handover

    def try_again(self, task: Task, now: float, *, lost: AgentRecord | None = None, again: bool = False) -> bool:
        """Hand a task that waits to its next executor; return whether that is on its way. Else it goes on waiting."""
        if self.begin(task, now, first=False, lost=lost, again=again).refusal is None:
            _log.info("task %s of %s goes to %s, attempt %d", *reversed(task.key), task.executor, task.attempt)
            return True
        return False

    def given_back(self, task: Task, record: AgentRecord, now: float, *, leaving: bool) -> None:
        """Hand a task on that its executor gave back, and that waits: for a role to another one that serves it.

        Where there is none it waits, and comes to the same one again; with ``leaving`` not before that one has another session.
        """
        if leaving:
            self._leaving[task.number] = (record, record.generation)
        self.try_again(task, now, lost=record if leaving or task.order.address.startswith(ROLE) else None)

    def forget(self, task: Task) -> None:
        """A task waits for nobody any more."""
        self.waiting.pop(task.number, None)
        self._leaving.pop(task.number, None)

    def _leaver(self, task: Task) -> AgentRecord | None:
        """Return who gave a task back and is about to go; None when there is none, or it is gone."""
        record, generation = self._leaving.get(task.number, (None, 0))
        if record is None or record.session is None or record.generation != generation:
            self._leaving.pop(task.number, None)
            return None
        return record

    def has_other(self, task: Task, lost: AgentRecord, now: float) -> bool:
        """Return whether somebody else than ``lost`` serves the role of a task, and has room."""
        service = task.order.address.removeprefix(ROLE)
        record = self._roles.least_busy(service, task.key.delegator, now, lost=lost)
        return record is not None and not record.mailbox.full

    def finish(self, handover: Handover) -> None:
        """A handover has its outcome."""
        task = handover.task
        if self.under_way.get(task.key) is handover:
            del self.under_way[task.key]
        if handover.refusal is None:
            if task.state.final:
                # It ended while its message was being written.
                self._letters.withdraw(task)
        elif handover.first:
            self._table.remove(task)
        elif task.waits:
            self.waiting[task.number] = task
        elif task.message_id == handover.message_id and not task.state.final:
            task.take_back()
            self._table.write(task)
            self.waiting[task.number] = task

    def repeated(
        self, origin: Origin, number: int, address: str, envelope: Envelope | None, *, waited: bool = False
    ) -> None:
        """Tell who delegated a task again by a message that it is there."""
        self.tell(origin, Receipt(number, address, Outcome.DUPLICATE, REPEATED), envelope, waited=waited)

    def tell(self, origin: Origin, receipt: Receipt, envelope: Envelope | None, *, waited: bool) -> None:
        """Give the sender of a DELEGATE a receipt that is no ACCEPTED."""
        self._post.refuse(origin, receipt, envelope, waited=waited)

    def taken(self, origin: Origin, address: str, envelope: Envelope) -> None:
        """A DELEGATE is as good as accepted: what waits for it in order goes on."""
        origin.holds.taken(self._post.local(address), envelope)

    def _choose(self, task: Task, now: float, lost: AgentRecord | None, *, must_have_room: bool) -> AgentRecord:
        """Return who gets the next attempt.

        Raises:
            AgentNotRegistered: Nobody bears the name.
            NoProvider: Nobody who is connected serves the role.
            MailboxFull: It has no room, which is looked at here only when it must have some.
            Unavailable: It is about to go.
        """
        address = task.order.address
        record: AgentRecord | None
        if address.startswith(ROLE):
            service = address.removeprefix(ROLE)
            record = self._roles.least_busy(service, task.key.delegator, now, lost=lost)
            if record is None:
                raise NoProvider(service, self._roles.offered())
        else:
            record = self._ams.get(address)
            if record is lost:
                raise Unavailable(f"{record.aid} is about to go")
        if must_have_room and record.mailbox.full:
            raise MailboxFull(record.aid, f"{record.mailbox.messages:,} messages")
        return record

    def _refuse(
        self, handover: Handover, error: BusError, number: int, receiver: str, envelope: Envelope | None
    ) -> None:
        handover.error = error
        detail = self._hints.registered() if isinstance(error, AgentNotRegistered) else str(error)
        receipt = Receipt(number, receiver, _OUTCOMES[type(error)], detail)
        if handover.first:
            self._post.refuse(handover, receipt, envelope)
        else:
            # It is tried again once a second, which is no news to anybody.
            handover.refuse(receipt, waited=False)


_OUTCOMES: dict[type[BusError], Outcome] = {
    AgentNotRegistered: Outcome.NO_SUCH_AGENT,
    NoProvider: Outcome.NO_PROVIDER,
    MailboxFull: Outcome.MAILBOX_FULL,
    MessageTooLarge: Outcome.TOO_LARGE,
    Unavailable: Outcome.UNREACHABLE,
}


def _error_of(receipt: Receipt, task: Task) -> BusError:
    """Return the error that says in a call what a receipt says of a message."""
    outcome, detail = receipt.outcome, receipt.detail
    if outcome is Outcome.NO_SUCH_AGENT:
        return AgentNotRegistered(task.order.address)
    if outcome is Outcome.MAILBOX_FULL:
        return StoreUnavailable(detail) if detail.startswith("not stored") else MailboxFull(task.order.address, detail)
    if outcome in {Outcome.INVALID, Outcome.DUPLICATE}:
        return InvalidArgument(detail, field=receipt.field)
    if outcome is Outcome.DENIED:
        return Unauthorised(detail)
    return Unavailable(f"{outcome.name}: {detail}")
