"""What a handler gets, how what an agent sends travels, and what becomes of it: messages and their receipts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.client.ids import new_id
from gagent_grpc.codec.acl import LazyACLMessage
from gagent_grpc.codec.plain import acl_field, id_field
from gagent_grpc.codec.times import datetime_of, seconds_of
from gagent_grpc.envelope import OnReceiverLost, Outcome, Priority, Report
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import acl_pb2, bus_service_pb2


class Received(LazyACLMessage):
    """An ACL message as it was delivered: its 13 parameters, and what the bus says about it.

    `sender` is the one that the bus vouches for, not what the body claims.
    """

    __slots__ = ("_delivery",)

    def __init__(
        self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier, acl: acl_pb2.AclMessage | None = None
    ) -> None:
        """Make the view of a delivery; ``acl`` is the message in it, where the caller has it at hand."""
        self._read_first(delivery.message.acl if acl is None else acl)
        self._delivery = delivery
        self.sender = sender

    @property
    def sequence(self) -> int:
        """Number of the message in this agent's mailbox."""
        return self._delivery.sequence

    @property
    def attempt(self) -> int:
        """How often it has been delivered, this time included; a lower bound after a crash of the bus."""
        return self._delivery.attempt

    @property
    def redelivered(self) -> bool:
        """It may have been delivered before."""
        return self._delivery.redelivered

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
        return datetime_of(self._delivery.accepted_at)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the message: trace context and hops."""
        return dict(self._delivery.message.headers)


def encoded(
    message: ACLMessage,
    priority: Priority = Priority.NORMAL,
    transient: bool = False,
    expires_in: float | None = None,
    report: Report = Report.RECEIPT,
    message_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    to: Sequence[str] = (),
    on_receiver_lost: OnReceiverLost | None = None,
) -> bytes:
    """Return a message as it travels; arguments as `Agent.send_message`.

    Raises:
        InvalidArgument: A parameter has a value that cannot travel.
    """
    head = id_field(message_id or new_id())
    made = bus_service_pb2.BusMessage()
    if priority is not Priority.NORMAL:
        made.priority = int(priority)  # type: ignore[assignment]  # [assignment]: same numbers by test.
    if transient:
        made.transient = True
    if report is not Report.RECEIPT:
        made.report = int(report)  # type: ignore[assignment]  # [assignment]: same numbers by test.
    if expires_in is not None:
        made.expires_at.FromDatetime(datetime.now(UTC) + timedelta(seconds=expires_in))
    if on_receiver_lost is not None:
        made.on_receiver_lost = int(on_receiver_lost)  # type: ignore[assignment]  # [assignment]: same numbers by test.
    if headers:
        try:
            made.headers.update(headers)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"headers: cannot be sent ({error}); expected texts", field="headers") from error
    made.to.extend(to)
    return head + made.SerializeToString() + acl_field(message)


def answer_headers(original: ACLMessage) -> dict[str, str]:
    """Return the headers of an answer: the trace goes on, and the count of hops rises by one."""
    return next_hop(original.headers if isinstance(original, Received) else {})


def next_hop(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a message that follows from one with ``headers``."""
    hops = headers.get("hops", "0")
    return {**headers, "hops": str(int(hops) + 1 if hops.isdecimal() and len(hops) < 10 else 1)}


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
    reached: int = 0
    """Of a topic and of `*`: in how many mailboxes the message is."""
    missed: int = 0
    """Of a topic and of `*`: how many agents that should have it do not; each is told by a gap."""

    @property
    def delivered(self) -> bool:
        """Whether the message is in the receiver's mailbox."""
        return self.outcome.delivered


def receipt_from_proto(receipt: bus_service_pb2.Receipt) -> Receipt:
    """Return the receipt in ``receipt``; an outcome that is not known here counts as UNREACHABLE."""
    outcome, detail = _OUTCOMES.get(receipt.outcome), receipt.detail
    if outcome is None:
        outcome, detail = Outcome.UNREACHABLE, f"outcome {receipt.outcome}: {detail}"
    retry_after = seconds_of(receipt.retry_after) if receipt.HasField("retry_after") else None
    return Receipt(outcome, receipt.receiver, detail, retry_after, receipt.field, receipt.reached, receipt.missed)


_OUTCOMES = {int(outcome): outcome for outcome in Outcome}
