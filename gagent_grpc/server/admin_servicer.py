"""`AdminService`: what operators see of a bus and do with it, adapted to `bus.platform`. For nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.platform import Caller, Platform
from gagent_grpc.bus.ports import StoredDeadLetter
from gagent_grpc.codec.times import timestamp_of
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import BusDraining, InvalidArgument, Unauthorised
from gagent_grpc.pb.gagent.v1 import admin_service_pb2, admin_service_pb2_grpc, bus_service_pb2
from gagent_grpc.server.frames import receipt_to_proto
from gagent_grpc.server.identity import caller_of
from gagent_grpc.server.receipts import ReceiptCollector
from gagent_grpc.server.task_forms import task_stats_to_proto
from gagent_grpc.server.traffic import tell_traffic

Context = grpc.aio.ServicerContext[Any, Any]
_log = logging.getLogger(__name__)

_DEFAULT_RESULTS = 100
_MAX_NUMBERS = 100_000
"""Most letters that one call may name."""
_MAX_REFUSED = 1_000
"""Most letters of which a response says why they stay dead."""
_SLICE = 200
"""Letters that are handled in one go, before everybody else has a turn."""
_RESULT_BYTES = 6
"""What a letter takes in a response beside itself: its tag and its length."""


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """Serves operators. Errors are raised as they are; the interceptor makes statuses of them."""

    def __init__(self, platform: Platform, stop_requested: asyncio.Event) -> None:
        """Serve ``platform``; ``stop_requested`` is set when an operator asks for the end of the bus."""
        self._platform = platform
        self._stop_requested = stop_requested

    async def GetStats(
        self, request: admin_service_pb2.GetStatsRequest, context: Context
    ) -> admin_service_pb2.GetStatsResponse:
        """Return what the bus holds and has done."""
        self._operator(context)
        platform = self._platform
        mailboxes = [record.mailbox for record in platform.ams]
        return admin_service_pb2.GetStatsResponse(
            agents=len(platform.ams),
            sessions=platform.sessions,
            messages=sum(mailbox.messages + mailbox.reserve_messages for mailbox in mailboxes),
            message_bytes=platform.post.mail_bytes + platform.post.notice_bytes,
            accepted=platform.post.accepted_messages,
            dead_letters=len(platform.dead_letters),
            unheard_failures=platform.post.unheard_failures,
            descriptions=len(platform.df),
            owed_answers=platform.post.debts.count,
            draining=platform.draining or self._stop_requested.is_set(),
            dropped_dead_letters=platform.dead_letters.dropped,
            tasks=task_stats_to_proto(platform.tasks.table.counts),
        )

    async def Drain(self, request: admin_service_pb2.DrainRequest, context: Context) -> admin_service_pb2.DrainResponse:
        """Begin the shutdown."""
        caller = self._operator(context)
        _log.info("stopping: asked by %s", _name_of(caller))
        self._stop_requested.set()
        return admin_service_pb2.DrainResponse()

    async def ListDeadLetters(
        self, request: admin_service_pb2.ListDeadLettersRequest, context: Context
    ) -> admin_service_pb2.ListDeadLettersResponse:
        """Return dead letters, as many as fit."""
        self._operator(context)
        found = self._platform.dead_letters.matching(receiver=self._local(request.receiver), after=request.after)
        most = request.max_results or _DEFAULT_RESULTS
        # A quarter of a frame is left for what no client of today asks for.
        room = self._platform.limits.max_frame_bytes * 3 // 4
        response = admin_service_pb2.ListDeadLettersResponse()
        for letter in found[:most]:
            written = dead_letter_to_proto(letter, self._platform.name, with_message=request.with_messages)
            room -= written.ByteSize() + _RESULT_BYTES
            # One comes whatever its size, or nobody could get past it.
            if room < 0 and response.letters:
                break
            response.letters.append(written)
            if not len(response.letters) % _SLICE:
                await asyncio.sleep(0)
        response.more = len(found) > len(response.letters)
        return response

    async def RedriveDeadLetters(
        self, request: admin_service_pb2.RedriveDeadLettersRequest, context: Context
    ) -> admin_service_pb2.RedriveDeadLettersResponse:
        """Put dead letters back into their mailboxes, in the order of their numbers."""
        caller = self._operator(context)
        if self._platform.draining:
            raise BusDraining("the bus is shutting down")
        _check_choice({"numbers": request.numbers, "receiver": request.receiver})
        numbers = self._chosen(request.numbers, request.receiver)
        collector = ReceiptCollector(_name_of(caller))
        for place, number in enumerate(numbers, start=1):
            letter = self._platform.dead_letters.find(number)
            if letter is not None:
                self._platform.redrives.redrive(letter, collector)
            elif request.numbers:
                unknown = Receipt(number, "", Outcome.INVALID, "no dead letter has this number", field="numbers")
                collector.refuse(unknown, waited=False)
            if not place % _SLICE:
                await asyncio.sleep(0)
        await collector.answered()
        receipts = collector.receipts()
        refused = [one for one in receipts if one.outcome is not Outcome.ACCEPTED]
        redriven = len(receipts) - len(refused)
        _log.info("dead letters redriven by %s: %d, and %d refused", _name_of(caller), redriven, len(refused))
        response = admin_service_pb2.RedriveDeadLettersResponse(
            redriven=redriven, refused=[_public_receipt(one) for one in refused[:_MAX_REFUSED]]
        )
        if response.ByteSize() > self._platform.limits.max_frame_bytes:
            for receipt in response.refused:
                receipt.ClearField("detail")
        return response

    async def WatchTraffic(  # type: ignore[override]  # [override]: a coroutine that writes, and so knows of its end.
        self, request: admin_service_pb2.WatchTrafficRequest, context: Context
    ) -> None:
        """Tell of the messages that pass."""
        self._operator(context)
        await tell_traffic(self._platform, request, context)

    async def PurgeDeadLetters(
        self, request: admin_service_pb2.PurgeDeadLettersRequest, context: Context
    ) -> admin_service_pb2.PurgeDeadLettersResponse:
        """Remove dead letters for good."""
        caller = self._operator(context)
        _check_choice({"numbers": request.numbers, "receiver": request.receiver, "all": request.all})
        purged = self._platform.dead_letters.remove(self._chosen(request.numbers, request.receiver))
        _log.info("dead letters purged by %s: %d", _name_of(caller), purged)
        await self._platform.flush()
        return admin_service_pb2.PurgeDeadLettersResponse(purged=purged)

    def _operator(self, context: Context) -> Caller:
        """Return who calls.

        Raises:
            Unauthorised: It is no operator.
        """
        caller = caller_of(self._platform, context)
        if not caller.operator:
            raise Unauthorised(f"{_name_of(caller)} is no operator of this bus")
        return caller

    def _local(self, receiver: str) -> str:
        return self._platform.ams.local_name(receiver) if receiver else ""

    def _chosen(self, numbers: Sequence[int], receiver: str) -> list[int]:
        """Return the numbers that a call means, rising; without ``numbers`` those of a receiver, or all."""
        if numbers:
            return sorted(set(numbers))
        return [one.number for one in self._platform.dead_letters.matching(receiver=self._local(receiver))]


def dead_letter_to_proto(
    letter: StoredDeadLetter, platform: str, *, with_message: bool
) -> admin_service_pb2.DeadLetter:
    """Return a dead letter as it travels; a message that cannot be read stays behind."""
    made = admin_service_pb2.DeadLetter(
        number=letter.number,
        receiver=f"{letter.receiver}@{platform}",
        sender=letter.sender,
        id=letter.message_id,
        sequence=letter.sequence,
        reason=cast("admin_service_pb2.DeadReason.ValueType", int(letter.reason)),
        error=letter.error,
        attempts=letter.attempt,
        accepted_at=timestamp_of(letter.accepted_at),
        died_at=timestamp_of(letter.died_at),
        size_bytes=len(letter.payload),
    )
    if with_message:
        try:
            made.message.ParseFromString(letter.payload)
        except DecodeError:
            made.ClearField("message")
    return made


def _public_receipt(receipt: Receipt) -> bus_service_pb2.Receipt:
    # The twin is the same on the wire.
    return bus_service_pb2.Receipt.FromString(receipt_to_proto(receipt).SerializeToString())


def _check_choice(given: dict[str, object]) -> None:
    """Make sure that a call says in exactly one way which letters it means.

    Raises:
        InvalidArgument: It does not, or names too many.
    """
    ways = [name for name, value in given.items() if value]
    if len(ways) != 1:
        what = " and ".join(ways) or "nothing"
        raise InvalidArgument(f"{what} given; expected exactly one of {', '.join(given)}", field="numbers")
    numbers = given["numbers"]
    if isinstance(numbers, Sequence) and len(numbers) > _MAX_NUMBERS:
        raise InvalidArgument(f"{len(numbers):,} numbers; expected at most {_MAX_NUMBERS:,}", field="numbers")


def _name_of(caller: Caller) -> str:
    return caller.agent.aid if caller.agent is not None else caller.principal
