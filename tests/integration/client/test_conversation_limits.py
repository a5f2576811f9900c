"""Conversations that would go on for ever, that leave their protocol, or that nobody answers, with agents on a real bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw import RawSession, acl
from waiting import WAIT, Inbox, until

from gagent_grpc import (
    BusLimits,
    ConversationPolicy,
    DeliveryRefused,
    Operator,
    Performative,
    SqliteStore,
    TrafficEvent,
    TrafficKind,
    answer_headers,
)
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.server.app import Bus
from gagent_grpc.testing import running_bus

Connect = Callable[..., Any]
CODES = {act.text: int(act) for act in Performative}


@pytest.fixture
async def bus(buses: Any) -> Bus:
    return await buses(limits=BusLimits(drain_grace=1.0, max_turns=10))


async def accepted(bus: Bus) -> int:
    async with Operator(bus.address) as operator:
        return (await operator.admin.stats()).accepted


async def first(events: Any, kind: TrafficKind) -> TrafficEvent:
    """Return the next event of a kind."""
    async with asyncio.timeout(WAIT):
        async for event in events:
            if event.kind is kind:
                return event
    raise AssertionError("the watch ended")


async def test_two_agents_that_answer_everything_are_ended_with_one_failure_to_the_initiator(
    bus: Bus, agents: Any, inbox: Inbox
) -> None:
    refused: list[str] = []

    def polite(name: str) -> Callable[[Any], Any]:
        async def answer(message: Any) -> None:
            if message.performative is Performative.FAILURE:
                await inbox(message)
            try:
                await open_agents[name].reply(message, "inform", "thank you")
            except DeliveryRefused:
                refused.append(name)

        return answer

    open_agents: dict[str, Any] = {}
    for name in ("anna", "ben"):
        open_agents[name] = await agents(name, polite(name))
    async with Operator(bus.address) as operator, operator.admin.watch_traffic() as traffic:
        await open_agents["anna"].send("ben", "inform", "hello", conversation_id="thanks")
        end = await first(traffic, TrafficKind.CONVERSATION_ENDED)
        assert (end.sender, end.receiver, end.conversation_id) == ("anna@local", "ben@local", "thanks")
        # What anna said to ben, and what she says to the failure.
        await until(lambda: refused == ["anna", "anna"])
    (failure,) = inbox.messages
    assert (failure.performative, failure.receiver, failure.conversation_id) == (
        Performative.FAILURE,
        "anna@local",
        "thanks",
    )
    assert "10 turns" in failure.content
    # Ten messages and the failure, and nothing more: who goes on is refused, and nobody is told of that but by its receipt.
    for sender, receiver in (("ben", "anna"), ("anna", "ben")):
        with pytest.raises(DeliveryRefused, match="10 turns"):
            await open_agents[sender].send(receiver, "inform", "still there?", conversation_id="thanks")
    await until(lambda: all(not record.mailbox.messages for record in bus.platform.ams))
    assert await accepted(bus) == 11
    assert len(inbox.messages) == 1
    # Another conversation of the same two is untouched.
    await open_agents["anna"].send("ben", "refuse", "no thanks", conversation_id="another")


async def test_answers_without_a_conversation_are_ended_by_their_hops(buses: Any, connect: Connect) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, max_hops=5))
    anna, ben = await connect(bus, "anna"), await connect(bus, "ben")
    speakers = [(anna, "ben"), (ben, "anna")]
    for hops in range(20):
        session, receiver = speakers[hops % 2]
        number = hops // 2 + 1
        await session.send(acl(receiver, "again", headers={"hops": str(hops)}))
        if await session.receipted(number):
            break
    (receipt,) = session.receipts
    assert hops == 6
    assert receipt.outcome == pb.OUTCOME_DENIED
    assert "max_hops" in receipt.detail


async def test_agents_that_ask_each_other_because_of_a_message_come_to_the_end_of_its_hops(
    buses: Any, agents: Any
) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, max_hops=5))
    hops: list[str] = []

    def curious(name: str, other: str) -> Callable[[Any], Any]:
        async def answer(message: Any) -> str:
            hops.append(message.headers.get("hops", "0"))
            try:
                asked = await open_agents[name].request(
                    other, "and you?", headers=answer_headers(message), timeout=WAIT
                )
            except DeliveryRefused as refused:
                return refused.detail
            return str(asked.content)

        return answer

    open_agents: dict[str, Any] = {}
    for name, other in (("anna", "ben"), ("ben", "anna")):
        open_agents[name] = await agents(name, bus=bus.address)
        open_agents[name].on("request")(curious(name, other))
    answer = await (await agents("asker", bus=bus.address)).request("anna", "you?", timeout=WAIT)
    assert "max_hops" in answer.content
    assert hops == ["0", "1", "2", "3", "4", "5", "6"]


async def test_thirty_turns_are_no_trouble_by_default(buses: Any, connect: Connect) -> None:
    bus = await buses()
    anna, ben = await connect(bus, "anna"), await connect(bus, "ben")
    for turn in range(30):
        session, receiver = ((anna, "ben"), (ben, "anna"))[turn % 2]
        await session.send(acl(receiver, str(turn), acl_conversation_id="long"))
        assert await session.receipted(turn // 2 + 1) == []


# ---- sequence --------------------------------------------------------------------------------------------------------


async def exchange(bus: Bus, connect: Connect) -> tuple[RawSession, RawSession]:
    """Have ben answer a request of anna under `fipa-request` twice."""
    anna, ben = await connect(bus, "anna"), await connect(bus, "ben")
    flow = {"acl_conversation_id": "job", "acl_protocol": "fipa-request"}
    await anna.send(acl("ben", act=CODES["request"], acl_reply_with="r", **flow))
    await anna.receipted(1)
    await ben.send(*[acl("anna", text, act=CODES["inform"], acl_in_reply_to="r", **flow) for text in ("one", "two")])
    await ben.receipted(2)
    return anna, ben


@pytest.mark.parametrize("policy", list(ConversationPolicy))
async def test_second_answer_is_flagged_warned_of_or_refused(
    policy: ConversationPolicy, buses: Any, connect: Connect
) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, conversation_policy=policy))
    enforced = policy is ConversationPolicy.ENFORCE
    async with Operator(bus.address) as operator, operator.admin.watch_traffic(conversation_id="job") as traffic:
        anna, ben = await exchange(bus, connect)
        async with asyncio.timeout(WAIT):
            events = [await anext(traffic) for _ in range(3)]
    assert [event.flag for event in events[:2]] == ["", ""]
    assert "after its end" in events[2].flag
    assert events[2].kind is (TrafficKind.REFUSED if enforced else TrafficKind.ACCEPTED)
    await anna.delivered(1 if enforced else 2)
    await anna.in_step()
    assert [one.message.acl.text for one in anna.deliveries] == (["one"] if enforced else ["one", "two"])
    assert [receipt.outcome for receipt in ben.receipts] == ([pb.OUTCOME_DENIED] if enforced else [])
    for session in (anna, ben):
        # Whatever the bus has to say comes before its answer to a frame that it does not know.
        await session.write(pb.OpenSessionRequest())
        await session.until(lambda: session.notices[-1:] and session.notices[-1].kind == pb.NOTICE_KIND_UNKNOWN_FRAME)  # noqa: B023
        session.notices.pop()
    assert anna.notices == []
    assert [(one.kind, one.conversation_id) for one in ben.notices] == (
        [(pb.NOTICE_KIND_CONVERSATION, "job")] if policy is ConversationPolicy.WARN else []
    )
    assert all("after its end" in one.text for one in ben.notices)


# ---- deadlines -------------------------------------------------------------------------------------------------------


async def test_requester_hears_that_nobody_answered_by_reply_by(bus: Bus, connect: Connect) -> None:
    anna = await connect(bus, "anna")
    ben = await connect(bus, "ben")
    asked = acl("ben", act=CODES["request"], acl_conversation_id="job", acl_protocol="fipa-request")
    asked.acl.reply_with = "r"
    asked.acl.reply_by.FromNanoseconds(int((time.time() + 0.1) * 1e9))
    await anna.send(asked)
    (delivery,) = await anna.delivered(1)
    failure = delivery.message.acl
    assert (failure.performative, failure.in_reply_to, failure.text) == (
        CODES["failure"],
        "r",
        "no answer of ben@local by reply_by",
    )
    # It is late now, and goes to anna all the same.
    await ben.delivered(1)
    await ben.send(acl("anna", "late", acl_conversation_id="job", acl_protocol="fipa-request", acl_in_reply_to="r"))
    await anna.delivered(2)


async def test_conversation_that_goes_on_after_a_restart_is_not_judged(connect: Connect, tmp_path: Path) -> None:
    limits = BusLimits(drain_grace=1.0, conversation_policy=ConversationPolicy.ENFORCE)
    flow = {"acl_conversation_id": "job", "acl_protocol": "fipa-request"}
    async with running_bus(SqliteStore(tmp_path / "bus.db"), limits=limits) as bus:
        anna, ben = await connect(bus, "anna"), await connect(bus, "ben")
        await anna.send(acl("ben", act=CODES["request"], acl_reply_with="r", **flow))
        await ben.delivered(1)
    async with running_bus(SqliteStore(tmp_path / "bus.db"), limits=limits) as bus:
        anna, ben = await connect(bus, "anna"), await connect(bus, "ben")
        flow["acl_in_reply_to"] = "r"
        await ben.send(acl("anna", "agreed", act=CODES["agree"], **flow), acl("anna", "done", **flow))
        assert await ben.receipted(2) == []
        assert len(await anna.delivered(2)) == 2
