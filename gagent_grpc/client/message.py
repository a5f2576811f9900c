"""What a handler gets, and what becomes of what an agent sends: received messages and receipts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.codec.acl import LazyACLMessage
from gagent_grpc.envelope import Outcome
from gagent_grpc.pb.gagent.v1 import bus_service_pb2


class Received(LazyACLMessage):
    """An ACL message as it was delivered: its 13 parameters, and what the bus says about it.

    `sender` is the one that the bus vouches for, not what the body claims.
    """

    __slots__ = ("_delivery", "attempt", "redelivered", "sequence")

    sequence: int
    """Number of the message in this agent's mailbox."""
    attempt: int
    """How often it has been delivered, this time included; a lower bound after a crash of the bus."""
    redelivered: bool
    """It may have been delivered before."""

    def __init__(self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier) -> None:
        super().__init__(delivery.message.acl)
        self._delivery = delivery
        self.sender = sender
        self.sequence = delivery.sequence
        self.attempt = delivery.attempt
        self.redelivered = delivery.redelivered

    @property
    def id(self) -> str:
        """Identity that the sender gave the message, or the bus when it gave none."""
        return self._delivery.message.id or self._delivery.id

    @property
    def receiver(self) -> str:
        """Whose mailbox it came to, `name@platform`."""
        return self._delivery.receiver

    @property
    def via(self) -> str:
        """Address that led here when it was not the receiver's own; "" when it was."""
        return self._delivery.via

    @property
    def accepted_at(self) -> datetime:
        """When the bus accepted it."""
        return self._delivery.accepted_at.ToDatetime(tzinfo=UTC)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the message: trace context and hops."""
        return dict(self._delivery.message.headers)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one message for one receiver."""

    outcome: Outcome
    receiver: str
    """As the sender named it; "" for the message as a whole."""
    detail: str = ""
    """Why, in words; "" when it was accepted."""
    retry_after: float | None = None
    """Seconds after which a repetition makes sense; None when not known, or never."""
    field: str = ""
    """Field that is at fault; "" for none."""

    @property
    def delivered(self) -> bool:
        """Whether the message is in the receiver's mailbox."""
        return self.outcome.delivered


def receipt_from_proto(receipt: bus_service_pb2.Receipt) -> Receipt:
    """Return the receipt in ``receipt``; an outcome that is not known here counts as UNREACHABLE."""
    outcome, detail = _OUTCOMES.get(receipt.outcome), receipt.detail
    if outcome is None:
        outcome, detail = Outcome.UNREACHABLE, f"outcome {receipt.outcome}: {detail}"
    retry_after = None
    if receipt.HasField("retry_after"):
        retry_after = receipt.retry_after.seconds + receipt.retry_after.nanos / 1e9
    return Receipt(outcome, receipt.receiver, detail, retry_after, receipt.field)


_OUTCOMES = {int(outcome): outcome for outcome in Outcome}
