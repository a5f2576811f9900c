"""Looking after a bus: `operator.admin`. Counts, dead letters, the traffic as it passes, and the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acp.tasks import TaskState
from gagent_grpc.client.message import Receipt, receipt_from_proto
from gagent_grpc.client.traffic import TrafficStream, watch_request
from gagent_grpc.client.transport import Calls
from gagent_grpc.codec.acl import acl_from_proto
from gagent_grpc.codec.tasks import state_from_proto
from gagent_grpc.codec.times import datetime_of
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import admin_service_pb2, admin_service_pb2_grpc

_PAGE = 500
"""Dead letters asked for in one call."""
_BATCH = 1_000
"""Dead letters put back in one call: of so many the bus tells each one that stays."""
_MAX_NUMBER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TaskStats:
    """Counts of the delegated tasks of one node."""

    by_state: dict[TaskState, int]
    """Tasks that are kept, ended ones included; every state is there."""
    delegated: int
    """Tasks delegated since the start."""
    running: int
    """Tasks that somebody has accepted and that have not ended."""
    waiting: int
    """Tasks that wait for somebody who takes the next attempt."""
    leases: int
    """Leases that run: attempts that live by their reports."""
    watches: int
    """Streams that watch a task."""
    size_bytes: int
    """Bytes that all tasks take, with their events."""

    @property
    def open(self) -> int:
        """Tasks that have not ended."""
        return sum(count for state, count in self.by_state.items() if not state.final)


@dataclass(frozen=True, slots=True)
class BusStats:
    """Counts of one node: what it holds now, and what it has done since its start."""

    agents: int
    """Registered agents."""
    sessions: int
    """Open sessions."""
    messages: int
    """Unsettled messages in all mailboxes."""
    message_bytes: int
    """Their bytes, with what each takes beside its payload."""
    accepted: int
    """Messages accepted since the start, one for each receiver."""
    dead_letters: int
    """Dead letters that are kept."""
    dropped_dead_letters: int
    """Dead letters that went since the start because there were too many."""
    unheard_failures: int
    """Failures of the platform that found no mailbox, or no room, since the start."""
    descriptions: int
    """Entries in the DF."""
    owed_answers: int
    """Answers that are owed to messages that were delivered."""
    draining: bool
    """The node is shutting down."""
    tasks: TaskStats
    """Delegated tasks."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that was accepted and given up."""

    number: int
    """Number among the dead letters; rising, and never used again."""
    receiver: str
    """`name@platform`; its agent may be gone."""
    sender: str
    """`name@platform`, as the bus vouches for it."""
    id: str
    """The sender's id, or the one that the bus gave."""
    sequence: int
    """Number that it had in the mailbox."""
    reason: DeadReason | None
    """Why it was given up; None for a reason that is not known here."""
    error: str
    """The last error that a handler reported, or what else is to be said; "" for nothing."""
    attempts: int
    """How often it was delivered."""
    accepted_at: datetime
    died_at: datetime
    size_bytes: int
    """Size of the message, in bytes encoded."""
    message: ACLMessage | None = None
    """The message, where it was asked for and is ACL."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What became of dead letters that were to go back into their mailboxes."""

    count: int
    """Letters that are in their mailboxes again."""
    refused: dict[int, Receipt]
    """By number the letters that stay dead, and why."""


class AdminClient:
    """Calls for operators. Each raises the error that the bus raised, or BusUnreachable."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def _stub(self) -> admin_service_pb2_grpc.AdminServiceAsyncStub:
        return admin_service_pb2_grpc.AdminServiceStub(await self._calls.channel())

    async def stats(self) -> BusStats:
        """Return counts of the node.

        Raises:
            Unauthorised: The caller is no operator, here as in the other calls.
        """
        response = await self._calls.unary((await self._stub()).GetStats, admin_service_pb2.GetStatsRequest())
        return BusStats(
            agents=response.agents,
            sessions=response.sessions,
            messages=response.messages,
            message_bytes=response.message_bytes,
            accepted=response.accepted,
            dead_letters=response.dead_letters,
            dropped_dead_letters=response.dropped_dead_letters,
            unheard_failures=response.unheard_failures,
            descriptions=response.descriptions,
            owed_answers=response.owed_answers,
            draining=response.draining,
            tasks=_task_stats(response.tasks),
        )

    async def drain(self) -> None:
        """Have the node shut down as SIGTERM does; returns at once."""
        await self._calls.unary((await self._stub()).Drain, admin_service_pb2.DrainRequest())

    def watch_traffic(
        self, agents: Sequence[str] = (), *, conversation_id: str = "", with_content: bool = False
    ) -> TrafficStream:
        """Return a stream of what passes the bus, as it passes: for looking on.

        Use it as ``async with operator.admin.watch_traffic() as events: async for event in events``. Nothing on the bus
        waits for its reader: one that is too slow misses some, and is told how many. It ends when the bus shuts down.

        Args:
            agents: Only messages from or to one of these, `name` or `name@platform`; empty for all.
            conversation_id: Only this conversation; "" for all.
            with_content: With what the messages say.

        Raises:
            InvalidArgument: ``agents`` is one text.
        """
        return TrafficStream(self._calls, self._stub, watch_request(agents, conversation_id, with_content))

    async def dead_letters(
        self, receiver: str = "", *, after: int = 0, with_messages: bool = False
    ) -> AsyncIterator[DeadLetter]:
        """Iterate over dead letters, oldest first; fetched page by page, so those that come meanwhile are there, too.

        Args:
            receiver: Only those of this agent, `name` or `name@platform`; "" for all.
            after: Only those with a higher number.
            with_messages: With the messages themselves.

        Raises:
            InvalidName: ``receiver`` is no name of this platform.
        """
        while True:
            request = admin_service_pb2.ListDeadLettersRequest(
                receiver=receiver, after=after, max_results=_PAGE, with_messages=with_messages
            )
            response = await self._calls.unary((await self._stub()).ListDeadLetters, request)
            for letter in response.letters:
                yield dead_letter_from_proto(letter)
            if not (response.more and response.letters):
                return
            after = response.letters[-1].number

    async def redrive(self, numbers: Iterable[int] = (), *, receiver: str = "") -> Redriven:
        """Put dead letters back into the mailboxes of their receivers: flagged as redelivered, attempts counted anew.

        One whose receiver is not registered or has no room, or whose time is over, stays dead.

        Args:
            numbers: Which ones.
            receiver: All of this agent, `name` or `name@platform`, instead of numbers.

        Raises:
            InvalidArgument: Neither is given, or both are.
            InvalidName: ``receiver`` is no name of this platform.
            BusDraining: The bus is shutting down.
        """
        chosen = _checked(numbers)
        if receiver or not chosen:
            return await self._redrive(chosen, receiver)
        count, refused = 0, {}
        for start in range(0, len(chosen), _BATCH):
            done = await self._redrive(chosen[start : start + _BATCH], "")
            count += done.count
            refused.update(done.refused)
        return Redriven(count, refused)

    async def _redrive(self, numbers: Sequence[int], receiver: str) -> Redriven:
        request = admin_service_pb2.RedriveDeadLettersRequest(numbers=numbers, receiver=receiver)
        response = await self._calls.unary((await self._stub()).RedriveDeadLetters, request)
        return Redriven(response.redriven, {one.number: receipt_from_proto(one) for one in response.refused})

    async def purge(self, numbers: Iterable[int] = (), *, receiver: str = "", everything: bool = False) -> int:
        """Remove dead letters for good; return how many there were.

        Args:
            numbers: Which ones; those that are not there are passed over.
            receiver: All of this agent instead, `name` or `name@platform`.
            everything: All instead.

        Raises:
            InvalidArgument: Not exactly one of the three is given.
            InvalidName: ``receiver`` is no name of this platform.
            StoreUnavailable: They are removed, and the store could not write that yet.
        """
        request = admin_service_pb2.PurgeDeadLettersRequest(
            numbers=_checked(numbers), receiver=receiver, all=everything
        )
        return (await self._calls.unary((await self._stub()).PurgeDeadLetters, request)).purged


def _checked(numbers: Iterable[int]) -> list[int]:
    """Return numbers, each one once and rising.

    Raises:
        InvalidArgument: One cannot be that of a dead letter.
    """
    chosen = sorted(set(numbers))
    for one in chosen[:1] + chosen[-1:]:
        if not 0 < one <= _MAX_NUMBER:
            raise InvalidArgument(f"dead letter {one}: expected a number from 1 on", field="numbers")
    return chosen


def dead_letter_from_proto(letter: admin_service_pb2.DeadLetter) -> DeadLetter:
    """Return the dead letter in ``letter``."""
    message = None
    if letter.message.HasField("acl"):
        try:
            message = acl_from_proto(letter.message.acl)
        except InvalidArgument:
            # Written by a program that speaks of acts that are not known here: the letter is worth seeing all the same.
            message = None
    return DeadLetter(
        number=letter.number,
        receiver=letter.receiver,
        sender=letter.sender,
        id=letter.id,
        sequence=letter.sequence,
        reason=_REASONS.get(letter.reason),
        error=letter.error,
        attempts=letter.attempts,
        accepted_at=datetime_of(letter.accepted_at),
        died_at=datetime_of(letter.died_at),
        size_bytes=letter.size_bytes,
        message=message,
    )


_REASONS = {int(reason): reason for reason in DeadReason}


def _task_stats(stats: admin_service_pb2.TaskStats) -> TaskStats:
    # A state that a later bus knows and this version does not is left out.
    counts = {state_from_proto(one.state): one.tasks for one in stats.by_state}
    return TaskStats(
        by_state={state: counts.get(state, 0) for state in TaskState},
        delegated=stats.delegated,
        running=stats.running,
        waiting=stats.waiting,
        leases=stats.leases,
        watches=stats.watches,
        size_bytes=stats.size_bytes,
    )
