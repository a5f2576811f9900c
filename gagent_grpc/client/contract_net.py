"""A contract net as its initiator holds it: one call, proposals by a deadline, awards, and an answer for everybody.

Owns: the call. Leaves to others: who may say what (`protocols.contract_net`), which conversation a message belongs to
(`client.conversations`), bidding (`client.bids`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage, identifiers
from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.ams import why_no_answer
from gagent_grpc.client.conversations import (
    BY_PROGRAM,
    ENDINGS,
    LEAVE_WITHIN,
    Conversations,
    ending,
    moment,
    positive_seconds,
)
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.message import Receipt, Received
from gagent_grpc.client.pending import Sending
from gagent_grpc.client.proposals import AnswerKind, CallAnswer, Proposal
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import (
    AnswerTimeout,
    BusError,
    DeliveryRefused,
    FailureFromAgent,
    InvalidArgument,
    PreconditionFailed,
)
from gagent_grpc.pb.gagent.v1 import bus_service_pb2
from gagent_grpc.protocols import Move, Stage
from gagent_grpc.protocols.contract_net import ContractNetProtocol

_logger = logging.getLogger(__name__)

_AT_ONCE = 100
"""Receivers of one message; a bus takes so many by default."""


class CallForProposals:
    """A call for proposals (FIPA SC00029). Open while its block lasts.

        async with agent.call_for_proposals(["s1", "s2"], "crate 9", reply_by=3) as call:
            proposals = await call.proposals()
            if proposals:
                done = await call.accept(min(proposals, key=price))

    Leaving the block rejects every proposal without a decision. A proposal that comes after the deadline, or after the
    block, is rejected by itself for as long as the agent lives (of the last 1,000 calls). Nobody is waited for longer than
    the deadline, and a participant that is not reached, or is lost before it answers, counts as having answered.
    """

    def __init__(
        self,
        conversations: Conversations,
        to: Sequence[AgentIdentifier] | str | AgentIdentifier | Sequence[str | AgentIdentifier],
        content: str | bytes | None,
        *,
        reply_by: float,
        parameters: Mapping[str, Any],
    ) -> None:
        """Prepare a call; nothing is sent yet. Arguments and errors as `Agent.call_for_proposals`."""
        self._seconds = positive_seconds(reply_by, "reply_by")
        receivers = identifiers(to)
        if not receivers:
            raise InvalidArgument("a call for proposals to nobody; expected at least one participant", field="to")
        for name in ("performative", "receivers", "reply_with", "in_reply_to"):
            if name in parameters:
                raise InvalidArgument(f"{name} is set by the call itself", field=name)
        self._conversations = conversations
        self._content = content
        self._parameters = {"protocol": ContractNetProtocol.name, **parameters}
        self.mark = str(parameters.get("conversation_id") or new_id())
        """Its conversation-id."""
        self._parameters["conversation_id"] = self.mark
        self._receivers = receivers
        self._names: dict[str, str] = {}
        """How participants are called here, by their bare names."""
        self._answers: dict[str, CallAnswer] = {}
        self._proposals: dict[str, Proposal] = {}
        """By bare name, in the order in which they came."""
        self._net = ContractNetProtocol("")
        self._changed = asyncio.Event()
        self._deadline = 0.0
        """In the loop's time."""
        self._reply_by = 0.0
        """The same in Unix seconds."""
        self._state = "not open yet"
        """Why nothing can be decided; "" while the block lasts."""
        self._cancelled: dict[str, bool] = {}
        """Who was told of a cancel, and whether it said that it is done."""
        self._error: BusError | None = None

    # ---- the block -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Send the call; who is not reached is told in `answers`.

        Raises:
            MessageTooLarge: The call is over the limit of the bus.
            InvalidArgument: A parameter has a value that cannot be sent, or the conversation-id is in use.
            AnswerTimeout: The bus was away until the deadline.
            PreconditionFailed: The agent is not open; or the call was made before.
            BusError: The session is over for another reason.
        """
        if self._state != "not open yet":
            raise PreconditionFailed("the call for proposals was made before; expected a new one")
        conversations = self._conversations
        loop = asyncio.get_running_loop()
        self._names = {conversations.bare(one.name): one.name for one in reversed(self._receivers)}
        self._answers = {conversations.bare(one.name): CallAnswer(AnswerKind.WAITING) for one in self._receivers}
        self._net = ContractNetProtocol(conversations.me)
        self._deadline = loop.time() + self._seconds
        self._reply_by = time.time() + self._seconds
        messages = [
            ACLMessage(
                Performative.CFP,
                receivers=self._receivers[first : first + _AT_ONCE],
                content=self._content,
                **{"reply_by": moment(self._reply_by), **self._parameters, "reply_with": self.mark},
            )
            for first in range(0, len(self._receivers), _AT_ONCE)
        ]
        self._observe(Move(self._net.initiator, tuple(self._answers), Performative.CFP, self.mark, "", self._reply_by))
        conversations.add(self)
        try:
            async with asyncio.timeout_at(self._deadline):
                await conversations.hand_over(messages, _Calls(self, messages))
        except BaseException as error:
            self._state = "not made"
            conversations.end(self)
            if isinstance(error, TimeoutError):
                raise AnswerTimeout(", ".join(self._names.values()), self._seconds, "the call was not sent") from None
            raise
        self._state = ""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Reject every proposal that got no decision. Never raises for one who is gone."""
        self._close("the call for proposals is over")
        left = [one for one in self._proposals.values() if one._decision is None]
        messages = [self._decide(one, Performative.REJECT_PROPOSAL, None, by_program=True) for one in left]
        try:
            await self._conversations.tell_all([one for one in messages if one is not None])
        finally:
            self._conversations.end(self)

    def _close(self, why: str) -> None:
        if not self._state:
            self._state = why
        self._expire("the call was closed before")
        self._changed.set()

    # ---- what came -------------------------------------------------------------------------------------------------

    @property
    def answers(self) -> dict[str, CallAnswer]:
        """How each participant answered so far, by the name that the call gave it."""
        if self._deadline and asyncio.get_running_loop().time() >= self._deadline:
            self._expire("no answer in time")
        return {self._names[name]: answer for name, answer in self._answers.items()}

    async def proposals(self) -> list[Proposal]:
        """Wait until everybody has answered, at the longest to the deadline; return the proposals as they came.

        Raises:
            BusError: The agent's session is over.
        """
        await self._until(lambda: False)
        return list(self._proposals.values())

    async def __aiter__(self) -> AsyncIterator[Proposal]:
        """Yield proposals as they come, until everybody has answered, at the longest to the deadline."""
        given = 0
        while True:
            await self._until(lambda: len(self._proposals) > given)  # noqa: B023  # Awaited before it changes.
            if len(self._proposals) <= given:
                return
            yield list(self._proposals.values())[given]
            given += 1

    async def _until(self, enough: Callable[[], bool]) -> None:
        if self._state == "not open yet":
            raise PreconditionFailed("the call for proposals is not open; use it inside `async with`")
        try:
            async with asyncio.timeout_at(self._deadline):
                while self._error is None and not enough() and not self._state and self._somebody_waits():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._expire("no answer in time")
        if self._error is not None:
            raise self._error

    def _somebody_waits(self) -> bool:
        """Whether somebody is waited for."""
        return any(one.kind is AnswerKind.WAITING for one in self._answers.values())

    def _expire(self, why: str) -> None:
        for name, answer in self._answers.items():
            if answer.kind is AnswerKind.WAITING:
                self._answers[name] = CallAnswer(AnswerKind.LATE, why)

    # ---- deciding --------------------------------------------------------------------------------------------------

    async def accept(
        self,
        proposal: Proposal,
        content: str | bytes | None = None,
        *,
        timeout: float | None = None,
        **parameters: Any,
    ) -> Received:
        """Accept a proposal and wait for what comes of it. Others may be accepted, too.

        Args:
            proposal: Which.
            content: What is said with it.
            timeout: Seconds to wait, which the proposer is told as reply-by; `request_timeout` (120 s) by default.
            parameters: Further ACL parameters.

        Returns:
            The `inform` of the proposer.

        Raises:
            FailureFromAgent, NotUnderstoodByAgent: It did not come about; `sender` is the AMS where the proposer was lost.
            DeliveryRefused: The proposer was not reached.
            AnswerTimeout: Nothing was heard of it in time.
            PreconditionFailed: The proposal was decided on before, or the block is over.
            BusError: The session is over for another reason.
        """
        seconds = positive_seconds(
            self._conversations.limits.request_timeout if timeout is None else timeout, "timeout"
        )
        self._check(proposal)
        parameters = {"reply_by": moment(time.time() + seconds), **parameters}
        message = self._decide(proposal, Performative.ACCEPT_PROPOSAL, content, **parameters)
        if message is None:
            # It went back on its word, or is gone, and the result says so.
            return await proposal._result
        try:
            async with asyncio.timeout(seconds):
                await self._conversations.say(message, patience=seconds)
                return await proposal._result
        except TimeoutError:
            hint = await why_no_answer(self._conversations.ams, proposal.proposer)
            raise AnswerTimeout(proposal.proposer, seconds, hint) from None
        except DeliveryRefused as refused:
            self._lose(self._conversations.bare(proposal.proposer), str(refused))
            raise

    async def reject(self, proposal: Proposal, content: str | bytes | None = None, **parameters: Any) -> None:
        """Reject a proposal; a proposer that is gone need not be told.

        Args:
            proposal: Which.
            content: Why.
            parameters: Further ACL parameters.

        Raises:
            PreconditionFailed: The proposal was decided on before, or the block is over.
            DeliveryRefused: The proposer has no room; it treats a missing decision as a rejection.
            BusError: The session is over.
        """
        self._check(proposal)
        message = self._decide(proposal, Performative.REJECT_PROPOSAL, content, **parameters)
        if message is None:
            return
        try:
            await self._conversations.say(message, patience=self._conversations.limits.answer_patience)
        except DeliveryRefused as refused:
            first = refused.receipts[0] if refused.receipts else None
            if isinstance(first, Receipt) and first.outcome.retryable:
                raise

    async def cancel(self, content: str | bytes | None = None, *, timeout: float = LEAVE_WITHIN) -> dict[str, bool]:
        """Call the whole thing off: tell everybody whose part is not over, and wait for their answers.

        Nothing can be decided afterwards; who was cancelled is not rejected as well.

        Args:
            content: Why.
            timeout: Seconds to wait for the answers.

        Returns:
            For each participant that was told whether it answered `inform`, which says that the cancel is done.

        Raises:
            PreconditionFailed: The call is not open.
            BusError: The session is over.
        """
        seconds = positive_seconds(timeout, "timeout")
        if self._state:
            raise PreconditionFailed(f"the call cannot be cancelled: {self._state}")
        told = [name for name in self._answers if self._net.stage_of(name) not in {Stage.OVER, None}]
        self._close("the call for proposals was cancelled")
        if not told:
            return {}
        mark, due = new_id(), time.time() + seconds
        self._cancelled = dict.fromkeys(told, False)
        self._observe(Move(self._net.initiator, tuple(told), Performative.CANCEL, mark, "", due))
        parameters = {**self._parameters, "reply_with": mark, "reply_by": moment(due)}
        messages = [
            ACLMessage(
                Performative.CANCEL,
                receivers=identifiers([self._names[name] for name in told[first : first + _AT_ONCE]]),
                content=content,
                **parameters,
            )
            for first in range(0, len(told), _AT_ONCE)
        ]
        sending = _Calls(self, messages, patience=seconds, priority=int(Priority.URGENT))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # Past a mailbox full of other mail, since it saves the work.
                await self._conversations.hand_over(messages, sending, priority=Priority.URGENT)
                while self._error is None and any(self._net.stage_of(name) is not Stage.OVER for name in told):
                    self._changed.clear()
                    await self._changed.wait()
        if self._error is not None:
            raise self._error
        return {self._names[name]: done for name, done in self._cancelled.items()}

    def _check(self, proposal: Proposal) -> None:
        if self._state:
            raise PreconditionFailed(f"the proposal of {proposal.proposer} cannot be decided on: {self._state}")
        if self._proposals.get(self._conversations.bare(proposal.proposer)) is not proposal:
            raise PreconditionFailed(f"the proposal of {proposal.proposer} belongs to another call")
        if proposal._decision is not None:
            raise PreconditionFailed(f"the proposal of {proposal.proposer} was decided on: {proposal._decision}")

    def _decide(
        self,
        proposal: Proposal,
        act: Performative,
        content: str | bytes | None,
        *,
        by_program: bool = False,
        **parameters: Any,
    ) -> ACLMessage | None:
        """Decide on a proposal; return the message that says so, and None when its maker's part is over."""
        if by_program:
            parameters["user_parameters"] = BY_PROGRAM
        fixed = {**self._parameters, "reply_with": new_id(), **parameters}
        # Made first: a parameter that does not exist decides nothing.
        message = proposal.message.create_reply(act, content, **fixed)
        name = self._conversations.bare(proposal.proposer)
        if not self._observe(
            Move(self._net.initiator, (name,), act, fixed["reply_with"], proposal.message.reply_with or "")
        ):
            return None
        proposal._decision = act
        return message

    # ---- what the conversation hears -------------------------------------------------------------------------------

    def take(self, delivery: bus_service_pb2.Delivery, sender: AgentIdentifier, lost: str) -> bool:
        """As `Conversation.take`."""
        acl = delivery.message.acl
        name = lost or self._conversations.bare(sender.name)
        if name not in self._answers or acl.performative not in _ACTS:
            return False
        act = Performative(int(acl.performative))
        before = self._net.stage_of(name)
        # The clock of the loop, as for the deadline itself, whoever turns the other one.
        at = self._reply_by - self._deadline + asyncio.get_running_loop().time()
        move = Move(name, (self._net.initiator,), act, acl.reply_with, acl.in_reply_to, 0.0, at, bool(lost), lost)
        if not self._observe(move):
            # A failure of the platform is about what was sent here, and no mail of anybody's.
            return bool(lost)
        stage = self._net.stage_of(name)
        if stage is Stage.LATE:
            self._answers[name] = CallAnswer(AnswerKind.LATE, "proposed after the deadline", Received(delivery, sender))
            return False
        waited_for = not self._state and self._answers[name].kind is AnswerKind.WAITING
        if act is Performative.PROPOSE and not waited_for and name not in self._cancelled:
            # In time, and yet nobody waits for it any more: `handle` rejects it.
            return False
        message = Received(delivery, sender)
        if name in self._cancelled and act is Performative.INFORM:
            self._cancelled[name] = True
        self._note(name, message, lost=bool(lost))
        self._changed.set()
        if before is Stage.AGREED and act is Performative.INFORM and name not in self._cancelled:
            return self._conclude(self._proposals[name], message)
        return True

    def _note(self, name: str, message: Received, *, lost: bool) -> None:
        act = message.performative
        text = message.content if isinstance(message.content, str) else ""
        waiting = self._answers[name].kind is AnswerKind.WAITING
        if lost:
            self._lose(name, text, message)
        elif act is Performative.PROPOSE:
            if waiting:
                self._answers[name] = CallAnswer(AnswerKind.PROPOSE, "", message)
                self._proposals[name] = Proposal(self._names[name], message)
        elif act in ENDINGS:
            if waiting:
                self._answers[name] = CallAnswer(AnswerKind(act.text), text, message)
            self._break(name, message)

    def _lose(self, name: str, text: str, message: Received | None = None) -> None:
        if self._answers[name].kind in {AnswerKind.WAITING, AnswerKind.PROPOSE}:
            self._answers[name] = CallAnswer(AnswerKind.LOST, text, message)
        if message is not None:
            self._break(name, message)
        self._changed.set()

    def _break(self, name: str, message: Received) -> None:
        """A participant will not do what it proposed."""
        proposal, error = self._proposals.get(name), ending(message)
        if proposal is not None and error is not None and not proposal._result.done():
            if message.performative is Performative.REFUSE:
                error = FailureFromAgent(error.sender, error.text)
            proposal._result.set_exception(error)
            # Perhaps nobody waits for it.
            proposal._result.exception()

    def _conclude(self, proposal: Proposal, message: Received) -> bool:
        if self._state or proposal._result.done():
            # Whoever accepted it waits no more: it is mail.
            return False
        proposal._result.set_result(message)
        return True

    def wants(self, message: Received) -> bool:
        """Return whether a message is a proposal of somebody who was called."""
        name = self._conversations.bare(message.sender.name if message.sender is not None else "")
        return message.performative is Performative.PROPOSE and name in self._answers

    async def handle(self, message: Received) -> bool:
        """Reject a proposal that came too late, or is the second one of its maker."""
        if not self.wants(message):
            return False
        name = self._conversations.bare(message.sender.name if message.sender is not None else "")
        stage = self._net.stage_of(name)
        standing = self._proposals.get(name)
        if standing is not None and standing.message.id != message.id:
            why = "another proposal of yours was made before"
        elif stage is Stage.LATE or asyncio.get_running_loop().time() >= self._deadline:
            why = "late"
        else:
            why = "the call for proposals is over"
        if standing is None and stage in {Stage.LATE, Stage.PROPOSED}:
            # A second one says nothing about the first.
            self._observe(Move(self._net.initiator, (name,), Performative.REJECT_PROPOSAL))
        parameters = {**self._parameters, "reply_with": new_id()}
        parameters.pop("user_parameters", None)
        await self._conversations.answer(message, Performative.REJECT_PROPOSAL, why, **parameters)
        return True

    def refused(self, receipts: Sequence[Receipt], receivers: Sequence[AgentIdentifier]) -> None:
        """Participants were not reached."""
        for receipt in receipts:
            if receipt.delivered:
                continue
            names = [receipt.receiver] if receipt.receiver else [one.name for one in receivers]
            for name in map(self._conversations.bare, names):
                if name in self._answers:
                    move = Move("ams", (), Performative.FAILURE, platform=True, about=name)
                    if self._observe(move):
                        self._lose(name, f"{receipt.outcome.name}: {receipt.detail}".removesuffix(": "))

    def fail(self, error: BusError) -> None:
        """As `Conversation.fail`."""
        self._error = error
        for proposal in self._proposals.values():
            if not proposal._result.done():
                proposal._result.set_exception(error)
                proposal._result.exception()
        self._changed.set()

    def _observe(self, move: Move) -> bool:
        verdict = self._net.observe(move)
        if not verdict.in_sequence:
            _logger.debug("conversation %s: %s", self.mark, verdict.why)
        return verdict.in_sequence


_ACTS = frozenset(int(act) for act in Performative)


class _Calls(Sending):
    """The messages of a call: who was not reached has answered with that."""

    __slots__ = ("_call", "_messages")

    def __init__(
        self,
        call: CallForProposals,
        messages: Sequence[ACLMessage],
        *,
        patience: float = 0.0,
        priority: int = int(Priority.NORMAL),
    ) -> None:
        nobody: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(len(messages), nobody, patience=patience, priority=priority)
        self._call = call
        self._messages = messages

    def resolved(self, place: int, refusals: Sequence[Receipt]) -> None:
        if refusals:
            self._call.refused(refusals, self._messages[place].receivers)
        super().resolved(place, refusals)
