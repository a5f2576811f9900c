"""Handing messages to an agent's outbox, in the order of the calls, and hearing what becomes of them.

Owns: how much may be handed over, and the batches of a flood. Leaves to others: when a message is sent, or sent again
(`client.outbox`), what an agent is (`client.agent`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acp.message import ACPMessage
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.message import Receipt
from gagent_grpc.client.pending import HOLD_ORDER_FLAG, PROVIDER, RESEND_FLAG, ROOM, Sending, name_of, narrowed
from gagent_grpc.client.questions import refusal
from gagent_grpc.client.session import ClientSession
from gagent_grpc.codec.plain import TRANSIENT_FIELD, acl_field, id_field
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Outcome, Priority, Report
from gagent_grpc.errors import InvalidArgument, MessageTooLarge, PreconditionFailed, shown

WhenFull = Literal["fail", "wait"]
"""What happens when a receiver has no room: its refusal is told, or the message waits for room."""

_BATCH_MESSAGES = 512
_BATCH_BYTES = 1024 * 1024
_MOST_ADDRESS_BYTES = 100 * 1_100
"""What the addresses of one message hardly ever exceed; far below the limit it need not be looked at whether they do."""
_SHARES = 4
"""Receivers without room for which messages may wait before they fill `max_queued_bytes`."""


def patience_of(when_full: WhenFull, report: Report = Report.RECEIPT) -> float:
    """Return how long a message may wait for room, in seconds.

    Raises:
        InvalidArgument: Neither "fail" nor "wait"; or waiting, with outcomes told in another way than by receipts.
    """
    if when_full == "fail":
        return 0.0
    if when_full != "wait":
        raise InvalidArgument(f"when_full {shown(when_full)}; expected 'fail' or 'wait'", field="when_full")
    if report is not Report.RECEIPT:
        raise InvalidArgument(
            f"report {report.name} with when_full='wait'; expected RECEIPT, which is what is waited for", field="report"
        )
    return math.inf


def waits_for(when_full: WhenFull, *, provider: bool) -> frozenset[Outcome]:
    """Return the refusals that a message waits out."""
    return (ROOM if when_full == "wait" else frozenset()) | (PROVIDER if provider else frozenset())


def _longest_form(payload: bytes, receivers: Sequence[AgentIdentifier | str]) -> int:
    """Return the bytes of a message that may wait for room: for some of its receivers alone it names those beside its body."""
    if len(receivers) < 2:
        return len(payload)
    some = sorted(map(name_of, receivers), key=len)[1:]
    return max(len(payload), len(narrowed(payload, some)))


class Sender:
    """Sends in the name of one agent."""

    def __init__(self, name: str, session: ClientSession, limits: ClientLimits) -> None:
        self._name = name
        self._session = session
        self._limits = limits

    async def send(
        self,
        message: ACLMessage | ACPMessage,
        payload: bytes,
        *,
        to: Sequence[str] = (),
        patience: float = 0.0,
        waits_for: Collection[Outcome] = ROOM,
        priority: Priority = Priority.NORMAL,
    ) -> list[Receipt]:
        """Send one message and wait for its receipts.

        Args:
            message: What is sent, for the error.
            payload: The same, encoded.
            to: Delivery addresses, where they are others than the receivers of the message.
            patience: Seconds that it may wait for what a receiver lacks.
            waits_for: Refusals that are waited out.
            priority: Its urgency.

        Returns:
            A receipt for each receiver that is DUPLICATE, and for each topic and `*`.

        Raises:
            DeliveryRefused: A receiver was not reached.
            MessageTooLarge, PreconditionFailed, BusError: As `hand_over`.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sending = Sending(1, done, patience=patience, priority=int(priority), waits_for=waits_for)
        if patience:
            payload += HOLD_ORDER_FLAG
        await self.hand_over([payload], [to or message.receivers], sending)
        await done
        refused = [one for _, one in sending.refusals if not one.delivered]
        if refused:
            raise refusal(refused, message)
        return [one for _, one in sending.refusals]

    async def send_all(
        self, messages: Iterable[ACLMessage], *, transient: bool, patience: float
    ) -> list[tuple[int, Receipt]]:
        """Send many messages; as `Agent.send_all`."""
        payloads: list[bytes] = []
        receivers: list[Sequence[AgentIdentifier]] = []
        waiting: list[tuple[int, Sending, asyncio.Future[None]]] = []
        place = size = 0
        before, after = TRANSIENT_FIELD if transient else b"", HOLD_ORDER_FLAG if patience else b""

        async def hand_over() -> None:
            nonlocal place, size
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            sending = Sending(len(payloads), done, patience=patience)
            if patience:
                await self._share(receivers)
            await self.hand_over(payloads, receivers, sending)
            waiting.append((place, sending, done))
            place += len(payloads)
            size = 0
            payloads.clear()
            receivers.clear()

        try:
            for message in messages:
                payload = b"".join((id_field(new_id()), before, acl_field(message), after))
                size += len(payload)
                payloads.append(payload)
                receivers.append(message.receivers)
                if len(payloads) >= _BATCH_MESSAGES or size >= _BATCH_BYTES:
                    await hand_over()
                    # The writer sends these while the next ones are made.
                    await asyncio.sleep(0)
            if payloads:
                await hand_over()
            found: list[tuple[int, Receipt]] = []
            for first, sending, done in waiting:
                await done
                found.extend((first + index, receipt) for index, receipt in sending.refusals)
            return found
        finally:
            # Nobody waits any more, which matters for what waits for room.
            for _, _, done in waiting:
                done.cancel()

    async def hand_over(
        self, payloads: Sequence[bytes], receivers: Sequence[Sequence[AgentIdentifier | str]], sending: Sending
    ) -> None:
        """Put encoded messages into the outbox, waiting while it is full.

        Raises:
            MessageTooLarge: One is over the limit of the bus; none is sent.
            PreconditionFailed: The agent is not open, or lives on another loop.
            BusError: The session is over.
        """
        session = self._session
        if session.over is not None:
            raise session.over
        if asyncio.get_running_loop() is not session.loop:
            text = "the agent lives on another event loop; hand the coroutine to asyncio.run_coroutine_threadsafe"
            raise PreconditionFailed(f"{self._name}: {text}")
        # A repetition is a little longer, and must fit as well.
        size = max(map(len, payloads)) + len(RESEND_FLAG)
        limit = session.max_message_bytes
        if limit and sending.patience and size + _MOST_ADDRESS_BYTES > limit:
            size = max(map(_longest_form, payloads, receivers)) + len(RESEND_FLAG)
        if limit and size > limit:
            raise MessageTooLarge(size, limit)
        # One after the other, as they came: nobody who comes when there is room again passes those who waited for it.
        async with session.gate:
            while session.outbox.bytes > self._limits.max_queued_bytes and session.over is None:
                session.room.clear()
                await session.room.wait()
            if session.over is not None:
                raise session.over
            session.outbox.add(payloads, receivers, sending)
            session.wake()

    async def _share(self, receivers: Sequence[Sequence[AgentIdentifier]]) -> None:
        """Wait while too much waits for room at one of ``receivers``."""
        session = self._session
        outbox = session.outbox
        if not outbox.backlogged:
            return
        keys = outbox.keys(receivers, int(Priority.NORMAL))
        most = self._limits.max_queued_bytes
        while session.over is None and outbox.crowded(keys, share=most // _SHARES, total=most):
            session.room.clear()
            await session.room.wait()
