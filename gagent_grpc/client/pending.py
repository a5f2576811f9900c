"""What an agent has handed over and has no receipt for yet: messages, and who waits for them.

Owns: handing receipts to whoever waits, and the other forms in which a message is sent again. Pure. Leaves to others:
when it is sent (`client.outbox`, `client.backlog`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from typing import Any

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.client.message import Receipt
from gagent_grpc.envelope import Outcome, Priority
from gagent_grpc.errors import BusError
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

RESEND_FLAG = b"\x40\x01"
"""`BusMessage.resend = true`, encoded: a field may stand anywhere, so appending it marks a message as a repetition."""
HOLD_ORDER_FLAG = b"\x48\x01"
"""`BusMessage.hold_order = true`, likewise."""


ROOM = frozenset({Outcome.MAILBOX_FULL, Outcome.HELD, Outcome.RATE_LIMITED, Outcome.UNREACHABLE})
"""Refusals that pass when a receiver, or the store behind all of them, has room again."""

PROVIDER = frozenset({Outcome.NO_PROVIDER, Outcome.HELD})
"""Refusals that pass when somebody serves a role, or listens to a topic; HELD is that of a message behind another one."""


class Sending:
    """Some messages that were handed over together, and their receipts."""

    __slots__ = ("_done", "_left", "give_up_at", "order", "patience", "priority", "refusals", "waits_for")

    def __init__(
        self,
        count: int,
        done: asyncio.Future[Any],
        *,
        patience: float = 0.0,
        priority: int = int(Priority.NORMAL),
        waits_for: Collection[Outcome] = ROOM,
    ) -> None:
        """Expect the receipts of ``count`` messages.

        Args:
            count: How many messages.
            done: Is set when all of them have their receipts. Cancelled, it says that nobody waits any more.
            patience: Seconds that each may wait for what a receiver lacks; 0 has a refusal told at once.
            waits_for: Refusals that are waited out.
            priority: Their urgency; order is kept among messages of one urgency.
        """
        self._left = count
        self._done = done
        self.patience = patience
        self.waits_for = waits_for
        self.give_up_at = math.inf
        """When the patience ends, in the caller's time; never, while nothing was refused."""
        self.priority = priority
        self.order = 0
        """Place among all that were handed over."""
        self.refusals: list[tuple[int, Receipt]] = []
        """(place among the messages, receipt) of every receiver that has no ACCEPTED."""

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for the messages any more."""
        return self._done.done()

    def begin_waiting(self, now: float) -> None:
        """A receiver has no room: the patience begins, if it has not."""
        if self.give_up_at == math.inf:
            self.give_up_at = now + self.patience

    def split(self, parts: int) -> None:
        """A message goes on as ``parts`` more: each is resolved for itself."""
        self._left += parts

    def resolved(self, place: int, refusals: Sequence[Receipt]) -> None:
        """One message has all its receipts; ``refusals`` are those that are not ACCEPTED."""
        if refusals:
            self.refusals.extend((place, receipt) for receipt in refusals)
        self._left -= 1
        if self._left == 0 and not self._done.done():
            self._conclude()

    def fail(self, error: BusError) -> None:
        """Nothing more will be heard of these messages."""
        if not self._done.done():
            self._done.set_exception(error)
            # Whoever gave up waiting does not want to hear of it from the loop.
            self._done.exception()

    def _conclude(self) -> None:
        """All messages have their receipts."""
        self.refusals.sort(key=_place_of)
        self._done.set_result(None)


def _place_of(refusal: tuple[int, Receipt]) -> int:
    return refusal[0]


class Nobody(Sending):
    """Stands for whoever has given up on a message of which the bus has to hear once more."""

    __slots__ = ()

    def __init__(self, of: Sending) -> None:
        self.patience = math.inf
        self.waits_for = of.waits_for
        self.give_up_at = math.inf
        self.priority = of.priority
        self.order = of.order
        self.refusals = []

    @property
    def given_up(self) -> bool:
        return True

    def resolved(self, place: int, refusals: Sequence[Receipt]) -> None:
        """Nothing is told."""

    def fail(self, error: BusError) -> None:
        """Nothing is told."""


class Entry:
    """One message without a receipt."""

    __slots__ = ("payload", "place", "receivers", "refusals", "resend", "sending")

    refused = False
    """Whether the bus has refused it for want of room, and waits for it to come again."""

    def __init__(
        self, payload: bytes, receivers: Sequence[AgentIdentifier | str], sending: Sending, place: int
    ) -> None:
        self.payload = payload
        self.receivers = receivers
        self.sending: Sending | None = sending
        """None once all is known about the message, though its number is not yet covered."""
        self.place = place
        self.refusals: tuple[Receipt, ...] = ()
        self.resend = False


class RefusedEntry(Entry):
    """One message for the one receiver that had no room for it."""

    __slots__ = ()

    refused = True


def name_of(receiver: AgentIdentifier | str) -> str:
    """Return the name of a receiver, however it was given."""
    return receiver if isinstance(receiver, str) else receiver.name


def narrowed(payload: bytes, receivers: Sequence[AgentIdentifier | str]) -> bytes:
    """Return a message that goes to ``receivers`` alone; its body, which says to whom it goes, stays as it was."""
    message = bus_service_pb2.BusMessage.FromString(payload)
    del message.to[:]
    message.to.extend(map(name_of, receivers))
    return message.SerializeToString()


def withdrawal(payload: bytes, receivers: Sequence[AgentIdentifier | str]) -> bytes:
    """Return what releases the order that the bus keeps for a message which nobody wants any more: itself, expired."""
    message = bus_service_pb2.BusMessage.FromString(payload)
    made = bus_service_pb2.BusMessage(id=message.id, to=list(map(name_of, receivers)), hold_order=True)
    # The bus keeps the order among messages of one priority.
    made.priority = message.priority
    made.expires_at.seconds = 1
    # Not the whole body, which may be large.
    if message.WhichOneof("body") == "acp":
        made.acp.message_type = message.acp.message_type
    else:
        made.acl.performative = message.acl.performative
    return made.SerializeToString()
