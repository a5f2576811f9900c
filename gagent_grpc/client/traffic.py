"""The traffic of the bus as it passes: `operator.admin.watch_traffic()`.

Owns: the stream and its events as values. Leaves to others: calls (`client.transport`), how people see them (`cli.watch`).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self

import grpc

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.client.transport import Calls
from gagent_grpc.codec.acl import acl_from_proto
from gagent_grpc.codec.times import datetime_of
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import BusUnreachable, InvalidArgument
from gagent_grpc.pb.gagent.v1 import admin_service_pb2, admin_service_pb2_grpc


class TrafficKind(enum.Enum):
    """What happened."""

    ACCEPTED = "accepted"
    """A message is in the mailbox of its receiver."""
    REFUSED = "refused"
    """A receiver was not reached."""
    GIVEN_UP = "given up"
    """A message that was accepted is a dead letter now."""
    CONVERSATION_ENDED = "ended"
    """The bus ended a conversation, or a participant's part in it."""
    MISSED = "missed"
    """Events that this reader was too slow for."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class TrafficEvent:
    """One message for one receiver, or another event."""

    kind: TrafficKind | None
    """What happened; None for something that is not known here."""
    at: datetime
    """When, by the clock of the bus."""
    sender: str
    """`name@platform`; of CONVERSATION_ENDED who began it."""
    receiver: str
    """`name@platform`; of REFUSED another address, such as `role:planner`, as it was written, "" for a message that could not
    be read."""
    via: str
    """Address that led to the receiver when it was not its own, such as `role:planner`; else ""."""
    message_id: str
    """The sender's id; "" when it gave none."""
    conversation_id: str
    """"" for none."""
    message: ACLMessage | None
    """The message, without its content unless that was asked for; None where there is none, or it is not ACL."""
    outcome: Outcome | None
    """Of REFUSED: what became of it; None for one that is not known here, and of other kinds."""
    detail: str
    """Of REFUSED, GIVEN_UP, CONVERSATION_ENDED: why."""
    flag: str
    """What the conversation monitor says against the message, such as that it is out of sequence; "" for nothing."""
    missed: int
    """Of MISSED: how many."""


class TrafficStream:
    """The events as they come: an async iterator, and a context manager that ends the watch.

    With `async with` the watch has begun when the block does, and nothing after that is missed unnoticed; without, it begins
    with the first event that is asked for.
    """

    def __init__(
        self,
        calls: Calls,
        stub: Callable[[], Awaitable[admin_service_pb2_grpc.AdminServiceAsyncStub]],
        request: admin_service_pb2.WatchTrafficRequest,
    ) -> None:
        self._calls = calls
        self._stub = stub
        self._request = request
        self._call: (
            grpc.aio.UnaryStreamCall[admin_service_pb2.WatchTrafficRequest, admin_service_pb2.WatchTrafficResponse]
            | None
        ) = None
        self._closed = False

    async def __aenter__(self) -> Self:
        """Begin to watch.

        Raises:
            BusUnreachable: Nobody answers.
            ResourceExhausted: Too many watch already.
            InvalidName: One of the agents cannot be one of this platform.
            Unauthorised: The caller is no operator.
        """
        if self._call is None and not self._closed:
            self._call = await self._calls.begin((await self._stub()).WatchTraffic, self._request)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Watch no more."""
        self.close()

    def close(self) -> None:
        """Watch no more; who waits for an event sees the end. Idempotent."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TrafficEvent:
        """Return the next event; the iteration ends when the bus shuts down, or with `close`.

        Raises:
            BusUnreachable: The connection was lost.
        """
        await self.__aenter__()
        if self._closed or self._call is None:
            raise StopAsyncIteration
        try:
            response = await self._calls.read(self._call)
        except BusUnreachable:
            if self._closed:
                raise StopAsyncIteration from None
            raise
        if response is None:
            raise StopAsyncIteration
        return event_from_proto(response)


def watch_request(
    agents: Sequence[str], conversation_id: str, with_content: bool
) -> admin_service_pb2.WatchTrafficRequest:
    """Return the request of a watch; arguments as `AdminClient.watch_traffic`.

    Raises:
        InvalidArgument: ``agents`` is one text.
    """
    if isinstance(agents, str):
        raise InvalidArgument(f"agents {agents!r}: expected a list of names", field="agents")
    return admin_service_pb2.WatchTrafficRequest(
        agents=agents, conversation_id=conversation_id, with_content=with_content
    )


def event_from_proto(event: admin_service_pb2.WatchTrafficResponse) -> TrafficEvent:
    """Return the event in ``event``."""
    message = None
    if event.message.HasField("acl"):
        try:
            message = acl_from_proto(event.message.acl)
        except InvalidArgument:
            # Of a program that speaks of acts that are not known here.
            message = None
    return TrafficEvent(
        kind=_KINDS.get(event.kind),
        at=datetime_of(event.at),
        sender=event.sender,
        receiver=event.receiver,
        via=event.via,
        message_id=event.message.id,
        conversation_id=event.conversation_id,
        message=message,
        outcome=_OUTCOMES.get(event.outcome),
        detail=event.detail,
        flag=event.flag,
        missed=event.missed,
    )


_KINDS: dict[int, TrafficKind] = {
    admin_service_pb2.TRAFFIC_KIND_ACCEPTED: TrafficKind.ACCEPTED,
    admin_service_pb2.TRAFFIC_KIND_REFUSED: TrafficKind.REFUSED,
    admin_service_pb2.TRAFFIC_KIND_GIVEN_UP: TrafficKind.GIVEN_UP,
    admin_service_pb2.TRAFFIC_KIND_CONVERSATION_ENDED: TrafficKind.CONVERSATION_ENDED,
    admin_service_pb2.TRAFFIC_KIND_MISSED: TrafficKind.MISSED,
}
_OUTCOMES = {int(outcome): outcome for outcome in Outcome}
