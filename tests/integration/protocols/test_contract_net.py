"""Contract nets between agents: who is called, who bids, who is awarded, and an answer for everybody."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from waiting import WAIT, Inbox, until

from gagent_grpc import (
    Agent,
    AnswerKind,
    AnswerTimeout,
    Bid,
    BusLimits,
    DeliveryRefused,
    Fail,
    FailureFromAgent,
    InvalidArgument,
    NotUnderstoodByAgent,
    PreconditionFailed,
    Received,
    Refuse,
)
from gagent_grpc.acl.message import AUTOMATIC
from gagent_grpc.server.app import Bus

pytestmark = pytest.mark.timeout(60)

GRACE = 0.4


@pytest.fixture
async def bus(buses: Any) -> Bus:
    made: Bus = await buses(limits=BusLimits(resume_grace=GRACE, drain_grace=0.2))
    return made


async def bidder(agents: Any, name: str, price: int) -> tuple[Agent, list[Any]]:
    """Open an agent that always bids ``price``; what it heard is in the list."""
    agent = await agents(name)
    heard: list[Any] = []

    @agent.on_cfp()
    async def bid(cfp: Received) -> str:
        return str(price)

    @bid.accepted
    async def work(bid: Bid) -> str:
        heard.append(("accepted", bid.decision and bid.decision.content))
        return f"{name} did {bid.cfp.content} for {bid.content}"

    @bid.rejected
    async def lose(bid: Bid) -> None:
        heard.append(("rejected", bid.decision and bid.decision.content))

    return agent, heard


def price(proposal: Any) -> int:
    return int(proposal.content)


async def test_three_bidders_of_whom_one_refuses_and_one_is_late(agents: Any) -> None:
    """The conversation of a field case: s2 has no truck, s3 is cheaper and too late, s1 gets it."""
    buyer, s1, s2, s3 = [await agents(name) for name in ("buyer", "s1", "s2", "s3")]
    over, rejected, log = asyncio.Event(), Inbox(), Inbox()

    @s1.on_cfp(ontology="freight")
    async def bid(cfp: Received) -> str:
        await log(cfp)
        return json.dumps({"price": 38, "cur": "EUR"})

    @bid.accepted
    async def drive(bid: Bid) -> str:
        await log(bid.decision)
        return json.dumps({"done": True})

    @s2.on_cfp()
    async def no_truck(cfp: Received) -> str:
        raise Refuse(json.dumps({"reason": "no truck"}))

    @s3.on("cfp")
    async def too_late(cfp: Received) -> None:
        await over.wait()
        await s3.reply(cfp, "propose", json.dumps({"price": 20, "cur": "EUR"}))

    s3.on("reject-proposal")(rejected)
    content = json.dumps({"crate": 9, "to": "dock 4"})
    async with buyer.call_for_proposals(
        ["s1", "s2", "s3"], content, reply_by=1.5, conversation_id="cn-9", ontology="freight"
    ) as call:
        proposals = await call.proposals()
        assert [one.proposer for one in proposals] == ["s1"]
        over.set()
        await rejected.holds(1)
        assert {name: answer.kind for name, answer in call.answers.items()} == {
            "s1": AnswerKind.PROPOSE,
            "s2": AnswerKind.REFUSE,
            "s3": AnswerKind.LATE,
        }
        assert call.answers["s2"].text == '{"reason": "no truck"}'
        result = await call.accept(proposals[0])
    assert (result.content, result.sender.name, result.conversation_id) == ('{"done": true}', "s1", "cn-9")
    assert rejected.contents == ["late"]
    assert rejected.messages[0].user_parameters == {AUTOMATIC: "true"}
    cfp, award = log.messages
    assert (cfp.content, cfp.protocol, cfp.conversation_id) == (content, "fipa-contract-net", "cn-9")
    assert cfp.reply_with
    assert cfp.reply_by is not None
    assert (award.in_reply_to, award.conversation_id) == (proposals[0].message.reply_with, "cn-9")
    assert proposals[0].message.in_reply_to == cfp.reply_with
    assert result.in_reply_to == award.reply_with


async def test_leaving_the_block_rejects_whoever_got_no_decision(agents: Any) -> None:
    buyer = await agents("buyer")
    heard = [(await bidder(agents, f"s{n}", n))[1] for n in range(4)]
    async with buyer.call_for_proposals([f"s{n}@local" for n in range(4)], "crate", reply_by=20) as call:
        proposals = sorted(await call.proposals(), key=price)
        assert [one.proposer for one in proposals] == [f"s{n}@local" for n in range(4)]
        assert (await call.accept(proposals[0], "go")).content == "s0 did crate for 0"
        await call.reject(proposals[1], "too dear")
        with pytest.raises(PreconditionFailed, match="was decided on: accept-proposal"):
            await call.accept(proposals[0])
        with pytest.raises(PreconditionFailed, match="was decided on: reject-proposal"):
            await call.reject(proposals[1])
    await until(lambda: all(heard))
    assert heard == [[("accepted", "go")], [("rejected", "too dear")], [("rejected", None)], [("rejected", None)]]
    with pytest.raises(PreconditionFailed, match="the call for proposals is over"):
        await call.accept(proposals[2])


async def test_an_error_in_the_block_rejects_everybody_too(agents: Any) -> None:
    buyer, (_, heard) = await agents("buyer"), await bidder(agents, "s1", 1)

    async def fails() -> None:
        async with buyer.call_for_proposals("s1", "crate", reply_by=20) as call:
            await call.proposals()
            raise RuntimeError("no money")

    with pytest.raises(RuntimeError, match="no money"):
        await fails()
    await until(lambda: heard)
    assert heard == [("rejected", None)]


async def test_proposals_may_be_taken_as_they_come(agents: Any) -> None:
    buyer, slow = await agents("buyer"), await agents("slow")
    go = asyncio.Event()

    @slow.on_cfp()
    async def bid(cfp: Received) -> str:
        await go.wait()
        return "2"

    await bidder(agents, "quick", 1)
    seen = []
    async with buyer.call_for_proposals(["slow", "quick"], reply_by=20) as call:
        async for proposal in call:
            seen.append(proposal.proposer)
            assert call.answers["slow"].kind is (AnswerKind.WAITING if len(seen) == 1 else AnswerKind.PROPOSE)
            go.set()
        assert [one.proposer for one in await call.proposals()] == seen == ["quick", "slow"]


async def test_a_proposal_after_the_block_is_rejected_by_itself(agents: Any, inbox: Inbox) -> None:
    stray = Inbox()
    buyer, late = await agents("buyer", stray), await agents("late")
    asked = Inbox()
    late.on("cfp")(asked)
    late.on("reject-proposal")(inbox)
    await bidder(agents, "s1", 1)
    async with buyer.call_for_proposals(["s1", "late"], reply_by=20) as call:
        async for _ in call:
            break
        await asked.holds(1)
    assert call.answers["late"].kind is AnswerKind.LATE
    await late.reply(asked.messages[0], "propose", "1", reply_with="mine")
    assert await inbox.holds(1) == ["the call for proposals is over"]
    assert inbox.messages[0].in_reply_to == "mine"
    # A second one of the same agent, too.
    await late.reply(asked.messages[0], "propose", "0")
    await inbox.holds(2)
    assert stray.messages == []


async def test_a_second_proposal_of_one_bidder_is_rejected_and_the_first_one_stands(agents: Any, inbox: Inbox) -> None:
    buyer, keen = await agents("buyer"), await agents("keen")
    keen.on("reject-proposal")(inbox)

    @keen.on("cfp")
    async def bid_twice(cfp: Received) -> None:
        await keen.reply(cfp, "propose", "2", reply_with="first")
        await keen.reply(cfp, "propose", "1", reply_with="second")

    @keen.on("accept-proposal")
    async def work(award: Received) -> None:
        await keen.reply(award, "inform", award.in_reply_to)

    async with buyer.call_for_proposals("keen", reply_by=20) as call:
        (proposal,) = await call.proposals()
        await inbox.holds(1)
        assert inbox.messages[0].in_reply_to == "second"
        assert (await call.accept(proposal)).content == "first"


async def test_who_cannot_be_reached_or_has_no_handler_has_answered(agents: Any) -> None:
    buyer = await agents("buyer")
    await agents("dumb")
    failing = await agents("failing")

    @failing.on_cfp()
    async def fail(cfp: Received) -> str:
        raise Fail("no idea what that costs")

    async with buyer.call_for_proposals(["nobody", "dumb", "failing", "far@away"], reply_by=20) as call:
        assert await call.proposals() == []
        answers = call.answers
    assert {name: str(one.kind) for name, one in answers.items()} == {
        "nobody": "lost",
        "dumb": "not-understood",
        "failing": "failure",
        "far@away": "lost",
    }
    assert answers["nobody"].text.startswith("NO_SUCH_AGENT")
    assert answers["failing"].text == "no idea what that costs"
    assert answers["nobody"].message is None
    # That was all of them, so the deadline was not waited for; nobody at all is over at once.
    async with buyer.call_for_proposals(["nobody"], reply_by=20) as call:
        assert [one async for one in call] == []


async def test_who_is_lost_before_it_answers_does_not_hang_the_call(bus: Bus, agents: Any, connect: Any) -> None:
    buyer = await agents("buyer")
    await bidder(agents, "s1", 1)
    victim = await connect(bus, "victim")
    async with buyer.call_for_proposals(["s1", "victim"], reply_by=WAIT) as call:
        await victim.delivered(1)
        await victim.vanish()
        assert [one.proposer for one in await call.proposals()] == ["s1"]
        assert call.answers["victim"].kind is AnswerKind.LOST
        assert "victim@local was lost" in call.answers["victim"].text


async def test_who_is_lost_after_the_award_does_not_hang_the_call(bus: Bus, agents: Any) -> None:
    buyer, working = await agents("buyer"), asyncio.Event()
    seller = await agents("seller")

    @seller.on_cfp()
    async def bid(cfp: Received) -> str:
        return "1"

    @bid.accepted
    async def work(bid: Bid) -> str:
        working.set()
        await asyncio.Event().wait()
        return ""

    async with buyer.call_for_proposals("seller", reply_by=WAIT) as call:
        (proposal,) = await call.proposals()
        awarded = asyncio.ensure_future(call.accept(proposal, timeout=2 * WAIT))
        await working.wait()
        await seller.aclose(grace=0.0)
        with pytest.raises(FailureFromAgent, match="was lost before it answered"):
            await awarded


async def test_a_bidder_that_fails_after_the_award_and_one_that_says_nothing(agents: Any) -> None:
    buyer, over = await agents("buyer"), asyncio.Event()
    for name in ("fails", "refuses", "silent", "puzzled"):
        agent = await agents(name)

        @agent.on_cfp()
        async def bid(cfp: Received) -> str:
            return "1"

        if name == "puzzled":

            @agent.on("accept-proposal")
            async def unused(award: Received) -> None: ...

        @bid.accepted
        async def work(bid: Bid, name: str = name, agent: Agent = agent) -> str | None:
            if name == "fails":
                raise Fail("flat tyre")
            if name == "refuses":
                raise Refuse("changed my mind")
            if name == "puzzled":
                await agent.reply(bid.decision, "not-understood", "what?")
            await over.wait()
            return None

    async with buyer.call_for_proposals(["fails", "refuses", "silent", "puzzled"], reply_by=20) as call:
        by_name = {one.proposer: one for one in await call.proposals()}
        with pytest.raises(FailureFromAgent, match="fails: failure flat tyre"):
            await call.accept(by_name["fails"])
        # After an award there is no refuse any more (SC00029).
        with pytest.raises(FailureFromAgent, match="refuses: failure changed my mind"):
            await call.accept(by_name["refuses"])
        with pytest.raises(NotUnderstoodByAgent, match="what"):
            await call.accept(by_name["puzzled"])
        with pytest.raises(AnswerTimeout, match=r"silent: no answer within 0\.1 s"):
            await call.accept(by_name["silent"], timeout=0.1)
        over.set()


async def test_a_proposer_that_has_gone_is_told_at_once(agents: Any) -> None:
    buyer, (s1, _) = await agents("buyer"), await bidder(agents, "s1", 1)
    async with buyer.call_for_proposals("s1", reply_by=20) as call:
        (proposal,) = await call.proposals()
        await s1.aclose(deregister=True)
        with pytest.raises(DeliveryRefused, match="NO_SUCH_AGENT"):
            await call.accept(proposal)
        assert call.answers["s1"].kind is AnswerKind.LOST


async def test_a_proposer_that_takes_its_word_back_cannot_be_awarded(agents: Any) -> None:
    buyer, fickle = await agents("buyer"), await agents("fickle")
    go = asyncio.Event()

    @fickle.on("cfp")
    async def bid(cfp: Received) -> None:
        await fickle.reply(cfp, "propose", "1")
        await go.wait()
        await fickle.reply(cfp, "failure", "sold out")

    async with buyer.call_for_proposals("fickle", reply_by=20) as call:
        (proposal,) = await call.proposals()
        go.set()
        await until(proposal._result.done)
        with pytest.raises(FailureFromAgent, match="sold out"):
            await call.accept(proposal)


async def test_no_decision_in_time_counts_as_a_rejection_and_an_award_after_that_fails(agents: Any) -> None:
    buyer, s1 = await agents("buyer"), await agents("s1")
    lost: list[Bid] = []
    gone = asyncio.Event()

    @s1.on_cfp(decision_within=0.05)
    async def bid(cfp: Received) -> str:
        return "1"

    @bid.rejected
    async def forget(bid: Bid) -> None:
        lost.append(bid)
        gone.set()

    await agents("never", lambda message: None)
    async with buyer.call_for_proposals(["s1", "never"], reply_by=1.0) as call:
        (proposal,) = await call.proposals()
        assert proposal.message.reply_by is not None
        async with asyncio.timeout(WAIT):
            await gone.wait()
        assert (lost[0].decision, lost[0].initiator, lost[0].content) == (None, "buyer", "1")
        with pytest.raises(FailureFromAgent, match="no proposal of this agent waits for a decision"):
            await call.accept(proposal)


async def test_a_call_with_a_deadline_at_the_end_of_time_is_bid_for(agents: Any, inbox: Inbox) -> None:
    buyer, (_, _) = await agents("buyer", inbox), await bidder(agents, "s1", 1)
    end = datetime.max.replace(tzinfo=UTC)
    await buyer.send("s1", "cfp", "crate", conversation_id="c", reply_by=end)
    assert await inbox.holds(1) == ["1"]
    due = inbox.messages[0].reply_by
    assert due is not None
    assert due < datetime.now(UTC) + timedelta(days=31)
    # By hand, and without naming the proposal: the conversation says which.
    await buyer.send("s1", "accept-proposal", conversation_id="c")
    assert await inbox.holds(2) == ["1", "s1 did crate for 1"]


async def test_an_award_whose_handler_raises_comes_again(agents: Any) -> None:
    buyer, s1 = await agents("buyer"), await agents("s1")
    tries = []

    @s1.on_cfp()
    async def bid(cfp: Received) -> str:
        return "1"

    @bid.accepted
    def work(bid: Bid) -> str:
        tries.append(bid)
        if len(tries) == 1:
            raise OSError("try again")
        return "done at last"

    async with buyer.call_for_proposals("s1", reply_by=20) as call:
        (proposal,) = await call.proposals()
        assert (await call.accept(proposal)).content == "done at last"


async def test_a_cancelled_call_ends_bids_and_work(agents: Any) -> None:
    buyer, worker = await agents("buyer"), await agents("worker")
    _, heard = await bidder(agents, "s1", 1)
    begun, ended = asyncio.Event(), asyncio.Event()

    @worker.on_cfp()
    async def bid(cfp: Received) -> str:
        return "0"

    @bid.accepted
    async def work(bid: Bid) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asked = Inbox()
    await agents("thinker", asked)
    thinking = asyncio.Event()
    slow = await agents("slow")

    @slow.on_cfp()
    async def think(cfp: Received) -> str:
        thinking.set()
        await asyncio.Event().wait()
        return "never"

    async with buyer.call_for_proposals(["s1", "worker", "slow", "nobody"], reply_by=20) as call:
        proposals: dict[str, Any] = {}
        async for proposal in call:
            proposals[proposal.proposer] = proposal
            if len(proposals) == 2:
                break
        working = asyncio.create_task(call.accept(proposals["worker"]))
        await begun.wait()
        await thinking.wait()
        assert await call.cancel("no more money") == {"s1": True, "worker": True, "slow": True}
        assert ended.is_set()
        with pytest.raises(PreconditionFailed, match="was cancelled"):
            await call.accept(proposals["s1"])
        with pytest.raises(PreconditionFailed, match="was cancelled"):
            await call.cancel()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert heard == [("rejected", "no more money")]


async def test_a_request_within_the_conversation_gets_its_own_answer(agents: Any) -> None:
    buyer, (s1, _) = await agents("buyer"), await bidder(agents, "s1", 7)
    s1.on("request")(lambda message: "references")
    async with buyer.call_for_proposals("s1", reply_by=20, conversation_id="c") as call:
        (proposal,) = await call.proposals()
        assert (await buyer.request("s1", "who are you?", conversation_id="c")).content == "references"
        with pytest.raises(InvalidArgument, match="conversation_id 'c' belongs to an open conversation"):
            async with buyer.call_for_proposals("s1", reply_by=20, conversation_id="c"):
                pass
        assert (await call.accept(proposal)).content == "s1 did None for 7"


async def test_an_agent_may_call_itself(agents: Any) -> None:
    me, heard = await bidder(agents, "me", 3)
    async with me.call_for_proposals("me", "task", reply_by=20) as call:
        (proposal,) = await call.proposals()
        assert (await call.accept(proposal)).content == "me did task for 3"
    assert heard == [("accepted", None)]


async def test_an_agent_that_is_closed_leaves_nobody_waiting(agents: Any) -> None:
    buyer = await agents("buyer")
    await agents("never", lambda message: None)

    async def call() -> None:
        async with buyer.call_for_proposals("never", reply_by=WAIT) as call:
            await call.proposals()

    calling = asyncio.create_task(call())
    await until(lambda: buyer._conversations)
    await buyer.aclose()
    with pytest.raises(PreconditionFailed, match="closed"):
        await calling


@pytest.mark.parametrize(
    ("to", "more", "why"),
    [
        ([], {"reply_by": 1}, "nobody"),
        ("s1", {"reply_by": 0}, "reply_by 0; expected seconds above 0"),
        ("s1", {"reply_by": float("nan")}, "reply_by nan"),
        ("s1", {"reply_by": 1, "reply_with": "x"}, "reply_with is set by the call itself"),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused(agents: Any, to: Any, more: Any, why: str) -> None:
    buyer = await agents("buyer")
    with pytest.raises(InvalidArgument, match=why):
        buyer.call_for_proposals(to, **more)


async def test_a_call_is_made_once_and_in_its_block(agents: Any) -> None:
    buyer = await agents("buyer")
    call = buyer.call_for_proposals("nobody", reply_by=5)
    with pytest.raises(PreconditionFailed, match="not open"):
        await call.proposals()
    async with call:
        pass
    with pytest.raises(PreconditionFailed, match="made before"):
        async with call:
            pass
