"""From a message to those who are to get it, or to a receipt that says why nobody does.

Owns: what makes a message acceptable from its sender, and what its delivery addresses mean. Leaves to others: reading
frames and writing receipts (`bus.session`), mailboxes and commits (`bus.post`), the platform's own agents (`bus.asking`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gagent_grpc.acl.aid import RESERVED_NAMES, split_aid
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.asking import Asking
from gagent_grpc.bus.hints import Hints
from gagent_grpc.bus.origins import Origin, Receipt
from gagent_grpc.bus.ports import Clock, Codec
from gagent_grpc.bus.post import REPEATED, ROLE, Post, held
from gagent_grpc.bus.publication import Gaps, Publication
from gagent_grpc.bus.roles import Roles
from gagent_grpc.bus.topics import TOPIC, Topics, check_topic
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import Envelope, Outcome
from gagent_grpc.errors import InvalidArgument, InvalidName, shown

if TYPE_CHECKING:
    from gagent_grpc.bus.tasking import Tasking

EVERYBODY = "*"
"""Address of every connected agent but the sender and ephemeral ones."""
_MAX_SERVICE_CHARS = 1_000


class Router:
    """Routes the messages of one node."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        post: Post,
        asking: Asking,
        roles: Roles,
        topics: Topics,
        gaps: Gaps,
        codec: Codec,
        clock: Clock,
        limits: BusLimits,
        hints: Hints,
    ) -> None:
        self._ams = ams
        self._post = post
        self._asking = asking
        self._roles = roles
        self._topics = topics
        self._gaps = gaps
        self._codec = codec
        self._clock = clock
        self._limits = limits
        self._max_message_bytes = limits.max_message_bytes
        self._max_receivers = limits.max_receivers
        self._hints = hints
        self.tasks: Tasking | None = None
        """Looks through ACP messages, before they go their way."""

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
            How many agents it was for; 1 for a message that is refused as a whole.
        """
        if len(payload) > self._max_message_bytes:
            detail = f"the message has {len(payload):,} bytes encoded, the limit is {self._max_message_bytes:,}"
            self._post.refuse(origin, Receipt(number, "", Outcome.TOO_LARGE, detail), None)
            return 1
        try:
            envelope = self._codec.decode(payload)
        except InvalidArgument as error:
            self._post.refuse(origin, Receipt(number, "", Outcome.INVALID, str(error), field=error.field), None)
            return 1
        sender = envelope.sender
        if sender and origin.aid not in {sender, f"{sender}@{self._ams.platform}"}:
            detail = f"the body names the sender {shown(sender)}, the session is that of {origin.aid}"
            self._post.refuse(origin, Receipt(number, "", Outcome.DENIED, detail, field="sender"), envelope)
            return 1
        receivers = envelope.to
        if now is None:
            now = self._clock.time()
        if len(receivers) == 1:
            return self._submit_to(receivers[0], envelope, origin, number, now)
        if not 1 <= len(receivers) <= self._max_receivers:
            detail = (
                f"{len(receivers):,} receivers; expected at most {self._max_receivers} in one message"
                if receivers
                else "no receiver: neither `to` nor the body names one"
            )
            self._post.refuse(origin, Receipt(number, "", Outcome.INVALID, detail, field="to"), envelope)
            return 1
        # A name that stands twice, in either form, is one receiver.
        seen: set[str] = set()
        count = 0
        for receiver in receivers:
            name = self._post.local(receiver)
            if name not in seen:
                seen.add(name)
                count += self._submit_to(receiver, envelope, origin, number, now)
        return count

    def _submit_to(self, receiver: str, envelope: Envelope, origin: Origin, number: int, now: float) -> int:
        """Handle one delivery address; return how many agents it stands for."""
        if envelope.expires_at and envelope.expires_at <= now:
            detail = f"expires_at was {now - envelope.expires_at:.3f} s ago by the clock of the bus"
            self._post.refuse(origin, Receipt(number, receiver, Outcome.EXPIRED, detail, field="expires_at"), envelope)
            return 1
        if origin.holds.waiting and (blocker := origin.holds.blocker(self._post.local(receiver), envelope)):
            self._post.refuse(origin, held(number, receiver, blocker), envelope)
            return 1
        if (
            not envelope.performative
            and self.tasks is not None
            and self.tasks.take(receiver, envelope, origin, number, now)
        ):
            return 1
        record = self._ams.find(receiver)
        if record is not None:
            self._post.accept(record, receiver, envelope, origin, number, now)
        elif receiver.startswith(ROLE):
            self._submit_to_role(receiver, envelope, origin, number, now)
        elif receiver.startswith(TOPIC):
            return self._submit_to_topic(receiver, envelope, origin, number, now)
        elif receiver == EVERYBODY:
            there = [
                one for one in self._ams if one.session is not None and not one.ephemeral and one.aid != origin.aid
            ]
            return self._publish(receiver, there, envelope.as_transient(), origin, number, now)
        else:
            self._submit_elsewhere(receiver, envelope, origin, number)
        return 1

    def _submit_to_role(self, address: str, envelope: Envelope, origin: Origin, number: int, now: float) -> None:
        service = address.removeprefix(ROLE)
        if not 0 < len(service) <= _MAX_SERVICE_CHARS:
            detail = f"the role {shown(service)} is not valid; expected role:TYPE, of at most {_MAX_SERVICE_CHARS:,} characters"
            self._post.refuse(origin, Receipt(number, address, Outcome.INVALID, detail, field="to"), envelope)
            return
        record = self._roles.choose(service, origin.aid, envelope.conversation_id, now)
        if record is not None:
            self._post.accept(record, address, envelope, origin, number, now, address)
        elif self._post.is_known(origin, address, envelope):
            # Its agent has gone since.
            self._post.refuse(origin, Receipt(number, address, Outcome.DUPLICATE, REPEATED), envelope)
        else:
            detail = f"nobody who is connected offers a service of the type {shown(service)}{self._roles.offered()}"
            self._post.refuse(origin, Receipt(number, address, Outcome.NO_PROVIDER, detail), envelope)

    def _submit_to_topic(self, address: str, envelope: Envelope, origin: Origin, number: int, now: float) -> int:
        try:
            topic = check_topic(address.removeprefix(TOPIC))
        except InvalidArgument as error:
            self._post.refuse(origin, Receipt(number, address, Outcome.INVALID, str(error), field="to"), envelope)
            return 1
        listeners = [record for name in self._topics.listeners(topic) if (record := self._ams.find(name)) is not None]
        return self._publish(address, listeners, envelope, origin, number, now)

    def _publish(
        self, address: str, receivers: list[AgentRecord], envelope: Envelope, origin: Origin, number: int, now: float
    ) -> int:
        """Give a message to many; its sender gets one receipt."""
        if not receivers:
            what = "nobody else is connected" if address == EVERYBODY else f"nobody listens to {shown(address)}"
            self._post.refuse(origin, Receipt(number, address, Outcome.NO_PROVIDER, what), envelope)
            return 1
        publication = Publication(origin, number, address, self._gaps)
        for record in receivers:
            publication.ask(record)
            self._post.accept(record, record.name, envelope, publication, number, now, address)
        publication.all_asked()
        return len(receivers)

    def _submit_elsewhere(self, receiver: str, envelope: Envelope, origin: Origin, number: int) -> None:
        """Handle an address that is no registered agent: the platform's own agents, or a refusal that says why."""
        try:
            name, platform = split_aid(receiver)
        except InvalidName as error:
            self._post.refuse(origin, Receipt(number, receiver, Outcome.INVALID, str(error), field="to"), envelope)
            return
        if platform and platform != self._ams.platform:
            detail = f"the platform {platform!r} is not known here; this one is {self._ams.platform!r}"
            self._post.refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, detail), envelope)
        elif name in RESERVED_NAMES:
            self._asking.submit(name, receiver, envelope, origin, number)
        else:
            if origin.aid in self._post.debts.accounts:
                debt = self._post.debts.find(origin.aid, f"{name}@{self._ams.platform}", envelope, final=True)
                if debt is not None and debt.closed_at is None:
                    # Whoever asked is gone; there is nobody to answer for.
                    self._post.debts.pay(debt)
            self._post.refuse(
                origin, Receipt(number, receiver, Outcome.NO_SUCH_AGENT, self._hints.registered()), envelope
            )
