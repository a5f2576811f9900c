"""From a message to those who are to get it, or to a receipt that says why nobody does.

Owns: what makes a message acceptable from its sender, and what its delivery addresses mean. Leaves to others: reading
frames and writing receipts (`bus.session`), mailboxes and commits (`bus.post`), the platform's own agents (`bus.asking`).
"""

from __future__ import annotations

from gagent_grpc.acl.aid import RESERVED_NAMES, split_aid
from gagent_grpc.bus.ams import AgentManagementSystem
from gagent_grpc.bus.asking import Asking
from gagent_grpc.bus.hints import Hints
from gagent_grpc.bus.origins import Origin, Receipt
from gagent_grpc.bus.ports import Clock, Codec
from gagent_grpc.bus.post import Post, held
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import Envelope, Outcome
from gagent_grpc.errors import InvalidArgument, InvalidName, shown


class Router:
    """Routes the messages of one node."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        post: Post,
        asking: Asking,
        codec: Codec,
        clock: Clock,
        limits: BusLimits,
        hints: Hints,
    ) -> None:
        self._ams = ams
        self._post = post
        self._asking = asking
        self._codec = codec
        self._clock = clock
        self._limits = limits
        self._hints = hints

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
        if not 1 <= len(receivers) <= self._limits.max_receivers:
            detail = (
                f"{len(receivers):,} receivers; expected at most {self._limits.max_receivers} in one message"
                if receivers
                else "no receiver: neither `to` nor the body names one"
            )
            self._post.refuse(origin, Receipt(number, "", Outcome.INVALID, detail, field="to"), envelope)
            return 1
        if now is None:
            now = self._clock.time()
        if len(receivers) == 1:
            self._submit_to(receivers[0], envelope, origin, number, now)
            return 1
        # A name that stands twice, in either form, is one receiver.
        seen: set[str] = set()
        for receiver in receivers:
            name = self._post.local(receiver)
            if name not in seen:
                seen.add(name)
                self._submit_to(receiver, envelope, origin, number, now)
        return len(seen)

    def _submit_to(self, receiver: str, envelope: Envelope, origin: Origin, number: int, now: float) -> None:
        if envelope.expires_at and envelope.expires_at <= now:
            detail = f"expires_at was {now - envelope.expires_at:.3f} s ago by the clock of the bus"
            self._post.refuse(origin, Receipt(number, receiver, Outcome.EXPIRED, detail, field="expires_at"), envelope)
            return
        if origin.holds and (blocker := origin.holds.blocker(self._post.local(receiver), envelope)):
            self._post.refuse(origin, held(number, receiver, blocker), envelope)
            return
        record = self._ams.find(receiver)
        if record is None:
            self._submit_elsewhere(receiver, envelope, origin, number)
            return
        self._post.accept(record, receiver, envelope, origin, number, now)

    def _submit_elsewhere(self, receiver: str, envelope: Envelope, origin: Origin, number: int) -> None:
        """Handle an address that is no registered agent: the platform's own agents, or a refusal that says why."""
        try:
            name, platform = split_aid(receiver)
        except InvalidName as error:
            if receiver.startswith(("role:", "topic:")) or receiver == "*":
                detail = f"the delivery address {shown(receiver)} is of a kind that is not served; expected name or name@platform"
            else:
                detail = str(error)
            self._post.refuse(origin, Receipt(number, receiver, Outcome.INVALID, detail, field="to"), envelope)
            return
        if platform and platform != self._ams.platform:
            detail = f"the platform {platform!r} is not known here; this one is {self._ams.platform!r}"
            self._post.refuse(origin, Receipt(number, receiver, Outcome.UNREACHABLE, detail), envelope)
        elif name in RESERVED_NAMES:
            self._asking.submit(name, receiver, envelope, origin, number)
        else:
            if origin.aid in self._post.debts.accounts:
                debt = self._post.debts.find(origin.aid, f"{name}@{self._ams.platform}", envelope)
                if debt is not None and debt.closed_at is None:
                    # Whoever asked is gone; there is nobody to answer for.
                    self._post.debts.pay(debt)
            self._post.refuse(
                origin, Receipt(number, receiver, Outcome.NO_SUCH_AGENT, self._hints.registered()), envelope
            )
