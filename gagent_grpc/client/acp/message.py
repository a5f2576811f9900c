"""An ACP message as it was delivered, what is filled in before it is sent, and the bus message around it.

Owns: which fields of the bus message and of the ACP message in it are the same. Leaves to others: the ACP message itself
(`codec.acp`), sending (`client.acp.exchanging`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acp.message import ACPMessage, ACPMessageType, ACPMetadata
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.message import next_hop
from gagent_grpc.codec.acp import acp_from_proto, acp_to_proto
from gagent_grpc.codec.times import datetime_of, timestamp_to_proto
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import InvalidArgument, MissingParameter
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

_TRACE = "traceparent"
_PRIORITIES = {int(one): str(one) for one in Priority}


@dataclass(frozen=True, slots=True)
class ReceivedACP(ACPMessage):
    """An ACP message as it was delivered: what its sender left out is filled in, and what the bus says about it.

    `source` is the one that the bus vouches for, not what the message claims: the bare name for an agent of this platform.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Headers of the bus message: trace context and hops. Answers carry them on."""
    receiver: str = field(default="", repr=False, compare=False)
    """Whose mailbox it came to, `name@platform`."""
    attempt: int = field(default=1, repr=False, compare=False)
    """How often it has been delivered, this time included; a lower bound after a crash of the bus."""
    redelivered: bool = field(default=False, repr=False, compare=False)
    """It may have been delivered before."""


def received_acp(delivery: bus_service_pb2.Delivery, sender: AgentIdentifier) -> ReceivedACP:
    """Return the ACP message of a delivery.

    Raises:
        InvalidArgument: Its type is not known here, or what should be JSON text is none.
    """
    around = delivery.message
    message = acp_from_proto(around.acp)
    made_at = around.created_at if around.HasField("created_at") else delivery.accepted_at
    return ReceivedACP(
        id=message.id or around.id or delivery.id,
        type=message.type,
        source=sender.name,
        target=message.target or (around.to[0] if len(around.to) == 1 else delivery.receiver),
        content=message.content,
        metadata=_said_of(message.metadata or ACPMetadata(priority=None), around),
        timestamp=message.timestamp or datetime_of(made_at),
        in_reply_to=message.in_reply_to,
        extra=message.extra,
        headers=dict(around.headers),
        receiver=delivery.receiver,
        attempt=delivery.attempt,
        redelivered=delivery.redelivered,
    )


def _said_of(metadata: ACPMetadata, around: bus_service_pb2.BusMessage) -> ACPMetadata:
    """Return the metadata with what the bus message says in its place."""
    priority = metadata.priority or _PRIORITIES.get(int(around.priority), "normal")
    return ACPMetadata(priority, metadata.ttl, metadata.trace or around.headers.get(_TRACE), metadata.entries)


def filled(message: ACPMessage, source: str) -> ACPMessage:
    """Return ``message`` with what it leaves out: an id, ``source``, the time, metadata of normal priority; of a DELEGATE
    without one a task id.

    Sending the result twice sends the same message twice, which arrives once.
    """
    metadata = message.metadata or ACPMetadata()
    if metadata.priority is None:
        metadata = ACPMetadata("normal", metadata.ttl, metadata.trace, metadata.entries)
    content = message.content
    if message.type is ACPMessageType.DELEGATE and isinstance(content, Mapping) and not content.get("task_id"):
        content = {**content, "task_id": new_id()}
    return message.replace(
        id=message.id or new_id(),
        source=message.source or source,
        content=content,
        metadata=metadata,
        # The bus keeps microseconds, and so does a datetime: what arrives is equal.
        timestamp=message.timestamp or datetime.now(UTC),
    )


def encoded_acp(
    message: ACPMessage,
    *,
    headers: Mapping[str, str] | None = None,
    transient: bool = False,
    to: Sequence[str] = (),
) -> bytes:
    """Return an ACP message that is `filled` as it travels.

    Args:
        message: What is sent.
        headers: Headers of the bus message.
        transient: Need not survive a restart of the bus.
        to: Delivery addresses, where they are others than its target.

    Raises:
        MissingParameter: It has no target, and ``to`` names none either.
        InvalidArgument: A field has a value that cannot travel.
    """
    if not (message.target or to):
        raise MissingParameter("acp-message", "target")
    metadata = message.metadata or ACPMetadata()
    _check_text(message.id, "id")
    _check_text(metadata.trace, "metadata.trace")
    for address in to:
        _check_text(address, "to")
    made = bus_service_pb2.BusMessage(id=message.id or new_id(), to=to, transient=transient)
    if metadata.urgency is not Priority.NORMAL:
        made.priority = int(metadata.urgency)  # type: ignore[assignment]  # [assignment]: same numbers by test.
    if metadata.ttl is not None:
        try:
            end = (message.timestamp or datetime.now(UTC)) + timedelta(seconds=metadata.ttl)
        except OverflowError as error:
            raise InvalidArgument(f"ttl {metadata.ttl:g} s ends after the year 9999", field="metadata.ttl") from error
        made.expires_at.CopyFrom(timestamp_to_proto(end, "metadata.ttl"))
    if headers:
        made.headers.update(headers)
    if metadata.trace is not None:
        made.headers[_TRACE] = metadata.trace
    acp_to_proto(message, made.acp)
    return made.SerializeToString()


def _check_text(text: str | None, field: str) -> None:
    try:
        if text is not None:
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{field}: has a lone surrogate; expected valid Unicode", field=field) from error


def headers_after(original: ACPMessage) -> dict[str, str]:
    """Return the headers of an answer to ``original``."""
    return next_hop(original.headers if isinstance(original, ReceivedACP) else {})
