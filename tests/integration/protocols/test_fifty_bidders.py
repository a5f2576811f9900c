"""A contract net with fifty bidders, of whom some die, some refuse and some are late: right awards, in time, for everybody."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from waiting import WAIT, Inbox, until

from gagent_grpc import Agent, AnswerKind, Bid, BusLimits, Received, Refuse

pytestmark = pytest.mark.timeout(60)

REPLY_BY = 3.0
DYING = [f"dying-{n}" for n in range(5)]
REFUSING = [f"refusing-{n}" for n in range(5)]
LATE = [f"late-{n}" for n in range(5)]
BIDDING = [f"bidding-{n:02}" for n in range(35)]


async def test_fifty_bidders(buses: Any, agents: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(resume_grace=0.3, drain_grace=0.2))
    buyer: Agent = await agents("buyer", bus=bus.address)
    decisions: Counter[str] = Counter()
    rejected_late, over = Inbox(), asyncio.Event()

    async def refuse(cfp: Received) -> str:
        raise Refuse("busy")

    async def open_one(name: str) -> Agent:
        agent: Agent = await agents(name, bus=bus.address)
        if name in REFUSING:
            agent.on_cfp()(refuse)
        elif name in LATE:

            @agent.on("cfp")
            async def propose_late(cfp: Received) -> None:
                await over.wait()
                await agent.reply(cfp, "propose", "0")

            agent.on("reject-proposal")(rejected_late)
        else:

            @agent.on_cfp()
            async def bid(cfp: Received) -> str:
                return name.removeprefix("bidding-")

            @bid.accepted
            async def work(bid: Bid) -> str:
                decisions[f"accepted {name}"] += 1
                return f"{name} has done it"

            @bid.rejected
            async def lose(bid: Bid) -> None:
                decisions[f"rejected {name}"] += 1

        return agent

    await asyncio.gather(*(open_one(name) for name in (*REFUSING, *LATE, *BIDDING)))
    dying = [await connect(bus, name) for name in DYING]

    async def die(session: Any) -> None:
        await session.delivered(1)
        await session.vanish()

    everybody = [*DYING, *REFUSING, *LATE, *BIDDING]
    async with asyncio.TaskGroup() as deaths:
        for session in dying:
            deaths.create_task(die(session))
        async with buyer.call_for_proposals(everybody, "lift", reply_by=REPLY_BY) as call:
            # Those who are late are waited for to the deadline, and nobody beyond it.
            async with asyncio.timeout(REPLY_BY + WAIT):
                proposals = await call.proposals()
            answers = call.answers
            best = sorted(proposals, key=lambda one: int(str(one.content)))[:3]
            results = await asyncio.gather(*(call.accept(one) for one in best))
            over.set()
            await rejected_late.holds(len(LATE))
    kinds = {name: answer.kind for name, answer in answers.items()}
    assert kinds == {
        **dict.fromkeys(DYING, AnswerKind.LOST),
        **dict.fromkeys(REFUSING, AnswerKind.REFUSE),
        **dict.fromkeys(LATE, AnswerKind.LATE),
        **dict.fromkeys(BIDDING, AnswerKind.PROPOSE),
    }
    assert [one.content for one in results] == [f"{name} has done it" for name in BIDDING[:3]]
    assert set(rejected_late.contents) == {"late"}
    await until(lambda: decisions.total() == len(BIDDING))
    assert decisions == Counter(
        [*(f"accepted {name}" for name in BIDDING[:3]), *(f"rejected {name}" for name in BIDDING[3:])]
    )
