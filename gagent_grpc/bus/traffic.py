"""The traffic of the bus as others watch it: one event for each message and receiver, and for what else happens to them.

Owns: the events, who watches which of them, and that nobody waits for a watcher. Leaves to others: when something happens
(`bus.post`, `bus.moderator`), the wire (`server`). Whoever tells of something asks `watched` first, so that without watchers
nothing is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from gagent_grpc.acl.aid import split_aid
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.places import Places
from gagent_grpc.bus.ports import Clock
from gagent_grpc.envelope import Envelope, Outcome
from gagent_grpc.errors import BusDraining, InvalidName

MAX_EVENTS = 4_096
"""Events that wait for one watcher to read."""
MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Bytes of the messages in them."""


class TrafficKind(enum.IntEnum):
    """What happened; the values are those of the wire."""

    ACCEPTED = 1
    """A message is in a mailbox, as durably as promised."""
    REFUSED = 2
    """A receiver was not reached."""
    GIVEN_UP = 3
    """A message that was accepted is a dead letter now."""
    CONVERSATION_ENDED = 4
    """The conversation monitor ended a conversation, or a participant's part in it."""
    MISSED = 5
    """Events that the watcher was too slow for."""


@dataclass(frozen=True, slots=True)
class TrafficEvent:
    """One event."""

    kind: TrafficKind
    at: float
    """Unix seconds."""
    sender: str = ""
    """`name@platform`."""
    receiver: str = ""
    """`name@platform`; of a refused one that is no agent's name the address as it was written."""
    via: str = ""
    """Address that led to the receiver when it was not its own."""
    payload: bytes = b""
    """The encoded `BusMessage`; empty where there is none."""
    outcome: Outcome | None = None
    """Of REFUSED."""
    detail: str = ""
    flag: str = ""
    """What the conversation monitor says against it; "" for nothing."""
    conversation_id: str = ""
    missed: int = 0
    """Of MISSED."""


class TrafficWatch:
    """One watcher: what it wants to see, and the events that it has not read."""

    def __init__(self, agents: frozenset[str], conversation_id: str) -> None:
        """Watch messages from or to ``agents`` (`name@platform`; empty for all), of one conversation where it is not ""."""
        self._agents = agents
        self._conversation_id = conversation_id
        self._events: deque[TrafficEvent] = deque()
        self._bytes = 0
        self._missed = 0
        """Events missed since the last one that is kept."""
        self._missed_at = 0.0
        """When that began, in Unix seconds."""
        self._ended = False
        self._wake = asyncio.Event()

    def wants(self, sender: str, receiver: str, conversation_id: str) -> bool:
        """Whether it is to see what is between these two in this conversation."""
        if self._conversation_id and conversation_id != self._conversation_id:
            return False
        return not self._agents or sender in self._agents or receiver in self._agents

    def tell(self, event: TrafficEvent) -> None:
        """Keep an event until it is read, or count it as missed where there is no room."""
        size = len(event.payload)
        if len(self._events) >= MAX_EVENTS or (self._events and self._bytes + size > MAX_EVENT_BYTES):
            # No more than a number: whoever reads nothing must not cost those who send.
            if not self._missed:
                self._missed_at = event.at
            self._missed += 1
            return
        if self._missed:
            # In its place among the others, so that a reader sees where there is a gap.
            self._events.append(self._gap())
        self._events.append(event)
        self._bytes += size
        self._wake.set()

    def _gap(self) -> TrafficEvent:
        gap = TrafficEvent(TrafficKind.MISSED, self._missed_at, missed=self._missed)
        self._missed = 0
        return gap

    def end(self) -> None:
        """There is nothing more to come."""
        self._ended = True
        self._wake.set()

    async def events(self) -> AsyncIterator[TrafficEvent]:
        """Yield events as they come, until the bus stops."""
        while True:
            while self._events:
                event = self._events.popleft()
                self._bytes -= len(event.payload)
                yield event
            if self._missed:
                yield self._gap()
                continue
            if self._ended:
                return
            self._wake.clear()
            await self._wake.wait()


class Traffic:
    """Those who watch the traffic of one node."""

    def __init__(self, clock: Clock, platform: str, *, most: int) -> None:
        """Let at most ``most`` watch at the same time, a part of them of one caller."""
        self._clock = clock
        self._platform = platform
        self._places = Places(most, "streams that watch the traffic", "traffic_watches")
        self._watches: list[TrafficWatch] = []
        self._flags: dict[Letter, str] = {}
        self._closed = False
        self.watched = False
        """Whether anybody watches."""

    @contextlib.contextmanager
    def watching(
        self, agents: frozenset[str], conversation_id: str = "", *, caller: Sequence[str] = ()
    ) -> Iterator[TrafficWatch]:
        """Watch while the block lasts.

        Args:
            agents: As of `TrafficWatch`.
            conversation_id: As of `TrafficWatch`.
            caller: Names under which the caller is counted, as `Places.take` takes them.

        Raises:
            BusDraining: The bus shuts down.
            ResourceExhausted: Too many watch already, or too many streams of this caller.
        """
        if self._closed:
            raise BusDraining("the bus is shutting down")
        self._places.take(caller)
        watch = TrafficWatch(agents, conversation_id)
        self._watches.append(watch)
        self.watched = True
        try:
            yield watch
        finally:
            self._places.leave(caller)
            self._watches.remove(watch)
            self.watched = bool(self._watches)
            if not self.watched:
                self._flags.clear()

    def close(self) -> None:
        """The bus stops: every watcher reads what there is, and ends. Idempotent."""
        self._closed = True
        for watch in self._watches:
            watch.end()

    # ---- what happens ----------------------------------------------------------------------------------------------

    def flag(self, letter: Letter, flag: str) -> None:
        """The monitor has something against a letter, whose acceptance is told later."""
        self._flags[letter] = flag

    def accepted(self, receiver: str, letter: Letter) -> None:
        """A letter is in the mailbox of ``receiver``, `name@platform`."""
        envelope = letter.envelope
        flag = self._flags.pop(letter, "")
        self._tell(TrafficKind.ACCEPTED, letter.sender, receiver, envelope, via=letter.via, flag=flag)

    def not_kept(self, letter: Letter) -> None:
        """A letter will never be accepted; its refusal is told by itself."""
        self._flags.pop(letter, None)

    def asked(self, sender: str, receiver: str, envelope: Envelope) -> None:
        """A message was taken by one of the platform's own agents."""
        self._tell(TrafficKind.ACCEPTED, sender, receiver, envelope)

    def refused(self, sender: str, receipt: Receipt, envelope: Envelope | None, flag: str = "") -> None:
        """A message was refused, or could not even be read."""
        outcome, detail = receipt.outcome, receipt.detail
        kind = TrafficKind.REFUSED
        self._tell(kind, sender, receipt.receiver, envelope, outcome=outcome, detail=detail, flag=flag)

    def given_up(self, receiver: str, letter: Letter, why: str) -> None:
        """A letter became a dead one."""
        self._tell(TrafficKind.GIVEN_UP, letter.sender, receiver, letter.envelope, via=letter.via, detail=why)

    def conversation_ended(self, conversation_id: str, sender: str, receiver: str, why: str) -> None:
        """A conversation, or a part in it, was ended; ``sender`` began it."""
        kind = TrafficKind.CONVERSATION_ENDED
        self._tell(kind, sender, receiver, None, conversation_id=conversation_id, detail=why)

    def _tell(
        self,
        kind: TrafficKind,
        sender: str,
        receiver: str,
        envelope: Envelope | None,
        *,
        via: str = "",
        outcome: Outcome | None = None,
        detail: str = "",
        flag: str = "",
        conversation_id: str = "",
    ) -> None:
        if envelope is not None:
            conversation_id = envelope.conversation_id
        event = None
        receiver = self._named(receiver)
        for watch in self._watches:
            if not watch.wants(sender, receiver, conversation_id):
                continue
            if event is None:
                event = TrafficEvent(
                    kind,
                    self._clock.time(),
                    sender,
                    receiver,
                    via,
                    envelope.payload if envelope is not None else b"",
                    outcome,
                    detail,
                    flag,
                    conversation_id,
                )
            watch.tell(event)

    def _named(self, receiver: str) -> str:
        """Return a receiver in the one form in which agents are named, however it was written; another address as it is."""
        try:
            name, platform = split_aid(receiver)
        except InvalidName:
            return receiver
        return f"{name}@{platform or self._platform}"
