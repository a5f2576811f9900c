"""Queries, proposals, and work that is cancelled, between agents."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from waiting import Inbox

from gagent_grpc import (
    Accepted,
    AnswerTimeout,
    ConversationFailed,
    Fail,
    FailureFromAgent,
    InvalidArgument,
    Performative,
    Priority,
    Received,
    Refuse,
    RefusedByAgent,
    Rejected,
)

pytestmark = pytest.mark.timeout(60)


async def test_a_query_is_answered_as_a_request_is(agents: Any) -> None:
    oracle, alice = await agents("oracle"), await agents("alice")
    asked: list[Received] = []

    @oracle.on("query-ref")
    async def refer(message: Received) -> str:
        asked.append(message)
        return "42"

    @oracle.on("query-if")
    async def tell(message: Received) -> str:
        raise Refuse("no opinion")

    before = datetime.now(UTC)
    answer = await alice.query("oracle", "how many?", ontology="numbers")
    assert (answer.content, answer.protocol) == ("42", "fipa-query")
    (message,) = asked
    assert (message.protocol, message.ontology) == ("fipa-query", "numbers")
    assert message.conversation_id
    assert message.reply_with
    assert message.reply_by is not None
    assert 119 < (message.reply_by - before).total_seconds() < 150
    with pytest.raises(RefusedByAgent, match="no opinion"):
        await alice.query("oracle", "is it so?", performative="query-if")
    with pytest.raises(InvalidArgument, match="a query with request; expected query-ref or query-if"):
        await alice.query("oracle", "?", performative="request")
    with pytest.raises(InvalidArgument, match="timeout 0"):
        await alice.query("oracle", "?", timeout=0)


async def test_a_proposal_is_accepted_or_rejected(agents: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")

    @bob.on_propose(ontology="thread")
    def decide_in_a_thread(message: Received) -> bool:
        return message.content == "good"

    @bob.on_propose()
    async def decide(message: Received) -> Any:
        if message.content == "raise":
            raise Refuse("no")
        return {"words": "with pleasure", "refuse": Refuse("busy"), "nothing": None, "yes": True}[message.content]

    results = {}
    for content in ("words", "refuse", "nothing", "yes", "raise"):
        result = await alice.propose("bob", content)
        results[content] = (bool(result), type(result), result.content)
        assert result.answer.protocol == "fipa-propose"
    assert results == {
        "words": (True, Accepted, "with pleasure"),
        "refuse": (False, Rejected, "busy"),
        "nothing": (False, Rejected, None),
        "yes": (True, Accepted, None),
        "raise": (False, Rejected, "no"),
    }
    assert await alice.propose("bob", "good", ontology="thread")
    assert not await alice.propose("bob", "bad", ontology="thread")


async def test_an_answer_that_decides_nothing(agents: Any) -> None:
    bob, alice = await agents("bob", lambda message: "yes, maybe"), await agents("alice")
    assert bob.connected
    with pytest.raises(ConversationFailed, match="inform in answer to a proposal; expected accept-proposal"):
        await alice.propose("bob", "?")


async def test_a_request_may_be_refused_or_fail_by_raising(agents: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")

    @bob.on("request", content="return")
    async def returns(message: Received) -> Any:
        return Refuse("not today")

    @bob.on("request")
    def fails(message: Received) -> str:
        raise Fail("tried")

    with pytest.raises(RefusedByAgent, match="not today"):
        await alice.request("bob", "return")
    with pytest.raises(FailureFromAgent, match="tried"):
        await alice.request("bob", "raise")


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.URGENT])
async def test_a_cancel_ends_the_handler_and_is_answered(agents: Any, inbox: Inbox, priority: Priority) -> None:
    alice, bob = await agents("alice", inbox), await agents("bob")
    begun, ended = asyncio.Event(), asyncio.Event()

    @bob.on("request", content="long")
    async def work(message: Received) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    bob.on("request")(lambda message: "short")
    marks = {"conversation_id": "c", "protocol": "fipa-request"}
    await alice.send("bob", "request", "long", reply_with="r", **marks)
    await begun.wait()
    await alice.send("bob", "cancel", reply_with="x", priority=priority, **marks)
    await inbox.holds(1)
    done = inbox.messages[0]
    assert (done.performative, done.content, done.in_reply_to) == (Performative.INFORM, "done", "x")
    assert ended.is_set()
    # The conversation goes on, and there is nothing any more to cancel; nor is there in another one.
    assert (await alice.request("bob", "?", conversation_id="c")).content == "short"
    for conversation in ("c", "d"):
        await alice.send("bob", "cancel", conversation_id=conversation, priority=priority)
    await inbox.holds(3)
    assert [one.performative for one in inbox.messages[1:]] == [Performative.FAILURE] * 2
    assert inbox.contents[1:] == ["nothing to cancel"] * 2


async def test_a_cancel_of_somebody_else_ends_nothing(agents: Any, inbox: Inbox) -> None:
    alice, bob, mallory = await agents("alice"), await agents("bob"), await agents("mallory", inbox)
    begun, go = asyncio.Event(), asyncio.Event()

    @bob.on("request")
    async def work(message: Received) -> str:
        begun.set()
        await go.wait()
        return "done"

    asking = asyncio.create_task(alice.request("bob", "?", conversation_id="c"))
    await begun.wait()
    await mallory.send("bob", "cancel", conversation_id="c")
    assert await inbox.holds(1) == ["nothing to cancel"]
    go.set()
    assert (await asking).content == "done"


async def test_an_agent_with_a_handler_for_cancel_decides_itself(agents: Any, inbox: Inbox) -> None:
    alice, bob = await agents("alice", inbox), await agents("bob")
    begun, stop = asyncio.Event(), asyncio.Event()

    @bob.on("request")
    async def work(message: Received) -> str:
        begun.set()
        await stop.wait()
        return "stopped in order"

    @bob.on("cancel")
    async def cancel(message: Received) -> None:
        stop.set()

    await alice.send("bob", "request", conversation_id="c")
    await begun.wait()
    await alice.send("bob", "cancel", conversation_id="c", priority=Priority.URGENT)
    assert await inbox.holds(1) == ["stopped in order"]


async def test_a_handler_in_a_thread_cannot_be_cancelled(agents: Any, inbox: Inbox) -> None:
    alice, bob = await agents("alice", inbox), await agents("bob")
    begun, go = threading.Event(), threading.Event()

    @bob.on("request")
    def work(message: Received) -> str:
        begun.set()
        go.wait(20)
        return "done after all"

    await alice.send("bob", "request", conversation_id="c")
    await asyncio.to_thread(begun.wait, 20)
    await alice.send("bob", "cancel", conversation_id="c", priority=Priority.URGENT)
    assert await inbox.holds(1) == ["nothing to cancel"]
    go.set()
    assert await inbox.holds(2) == ["nothing to cancel", "done after all"]


async def test_a_proposal_without_a_decision_ends_in_time(agents: Any) -> None:
    await agents("bob", lambda message: None)
    alice = await agents("alice")
    with pytest.raises(AnswerTimeout, match=r"bob: no answer within 0\.1 s"):
        await alice.propose("bob", "?", timeout=0.1)
