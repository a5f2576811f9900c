"""Requests that are one awaitable call."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from proxy import Proxy
from waiting import settled

from gagent_grpc import (
    ACLMessage,
    AgentIdentifier,
    AnswerTimeout,
    ClientLimits,
    DeliveryRefused,
    FailureFromAgent,
    NotUnderstoodByAgent,
    Performative,
    PreconditionFailed,
    Received,
    RefusedByAgent,
)

pytestmark = pytest.mark.timeout(30)


async def test_an_inform_is_the_answer_also_after_an_agree(agents: Any) -> None:
    bob = await agents("bob")

    @bob.on("request", content="at once")
    async def at_once(message: Received) -> str:
        return "done"

    @bob.on("request")
    async def agree_first(message: Received) -> str:
        await bob.reply(message, "agree", "will do")
        return "done, too"

    alice = await agents("alice")
    answer = await alice.request("bob", "at once")
    assert (answer.content, answer.performative, answer.sender.name) == ("done", Performative.INFORM, "bob")
    assert (await alice.request("bob@local", "agree first")).content == "done, too"


@pytest.mark.parametrize(
    ("act", "error"),
    [("refuse", RefusedByAgent), ("failure", FailureFromAgent), ("not-understood", NotUnderstoodByAgent)],
)
@pytest.mark.parametrize("agreed", [False, True])
async def test_every_other_ending_raises_its_error(agents: Any, act: str, error: type, agreed: bool) -> None:
    bob = await agents("bob")

    @bob.on("request")
    async def end(message: Received) -> None:
        if agreed:
            await bob.reply(message, "agree")
        await bob.reply(message, act, "because")

    alice = await agents("alice")
    with pytest.raises(error) as raised:
        await alice.request("bob", "?")
    assert (raised.value.sender, raised.value.text) == ("bob", "because")


async def test_other_acts_may_ask_too(agents: Any) -> None:
    bob = await agents("bob")

    @bob.on("cfp")
    async def bid(message: Received) -> None:
        await bob.reply(message, "propose", "5")

    alice = await agents("alice")
    assert (await alice.request("bob", "?", performative="cfp")).performative is Performative.PROPOSE


async def test_nobody_is_told_at_once(agents: Any) -> None:
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match="nobody: NO_SUCH_AGENT") as raised:
        await alice.request("nobody", "?")
    assert raised.value.outcome == "NO_SUCH_AGENT"
    assert not alice._questions


async def test_one_unknown_among_several_is_told_at_once(agents: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")
    bob.on("request")(asyncio.Event().wait)  # Never answers.
    with pytest.raises(DeliveryRefused, match="nobody"):
        await alice.request(["bob", "nobody"], "?")


async def test_no_answer_in_time_and_one_that_comes_late(agents: Any, inbox: Any) -> None:
    asked: list[Received] = []

    async def keep(message: Received) -> None:
        asked.append(message)

    bob = await agents("bob", keep)
    alice = await agents("alice", inbox)
    with pytest.raises(AnswerTimeout, match=r"bob: no answer within 0\.05 s"):
        await alice.request("bob", "?", timeout=0.05)
    assert not alice._questions
    # Not lost: it is mail like any other.
    await bob.reply(asked[0], "inform", "late")
    assert await inbox.holds(1) == ["late"]


async def test_a_request_without_an_answer_says_when_nobody_is_there_to_answer(agents: Any, proxy: Proxy) -> None:
    alice = await agents("alice", bus=proxy.address)
    await alice.ams.register("never")
    bob = await agents("bob")
    await bob.aclose()
    await agents("carol")
    await alice.ams.suspend("carol")
    for name, why in (
        ("bob", r"bob is not connected \(unknown\); the request waits in its mailbox"),
        ("bob@local", r"bob@local is not connected \(unknown\); the request waits in its mailbox"),
        ("never", r"never is not connected \(initiated\); the request waits in its mailbox"),
        ("carol", "carol is suspended; the request waits in its mailbox"),
    ):
        with pytest.raises(AnswerTimeout, match=rf"^{name}: no answer within 0\.05 s; {why}$"):
            await alice.request(name, "?", timeout=0.05)
    with pytest.raises(AnswerTimeout, match=r"^bob, carol: no answer within 0\.05 s$"):
        await alice.request(["bob", "carol"], "?", timeout=0.05)
    # Who does not hear of it in time says what is known.
    proxy.silence("out")
    started = time.monotonic()
    with pytest.raises(AnswerTimeout, match=r"0\.05 s$"):
        await alice.request("bob", "?", timeout=0.05)
    assert time.monotonic() - started < 5
    proxy.cut(admit=False)
    await proxy.connected()
    with pytest.raises(AnswerTimeout, match=r"0\.05 s; no session with the bus is open at present$"):
        await alice.request("bob", "?", timeout=0.05)
    proxy.admit()
    proxy.speak()


async def test_a_late_answer_is_not_taken_for_the_next_one(agents: Any, inbox: Any) -> None:
    asked: list[Received] = []
    again = asyncio.Event()

    async def keep(message: Received) -> None:
        asked.append(message)
        if len(asked) == 2:
            again.set()

    bob = await agents("bob", keep)
    alice = await agents("alice", inbox)
    with pytest.raises(AnswerTimeout):
        await alice.request("bob", "1", timeout=0.05)
    second = asyncio.create_task(alice.request("bob", "2"))
    await again.wait()
    await bob.reply(asked[0], "inform", "one")
    await bob.reply(asked[1], "inform", "two")
    assert (await second).content == "two"
    assert await inbox.holds(1) == ["one"]


async def test_two_callers_with_the_same_mark_each_get_their_own_answer(agents: Any) -> None:
    for name in ("bob", "carol"):
        agent = await agents(name)

        @agent.on("request")
        async def answer(message: Received, name: str = name) -> str:
            return f"{name} {message.content}"

    alice = await agents("alice")
    same = {"reply_with": "q", "conversation_id": "c"}
    answers = await asyncio.gather(
        alice.request("bob", "1", **same), alice.request("carol@local", "2", **same), alice.request("bob", "3", **same)
    )
    assert [answer.content for answer in answers] == ["bob 1", "carol 2", "bob 3"]
    assert not alice._questions


async def test_an_answer_that_knows_only_the_conversation(agents: Any, inbox: Any) -> None:
    bob = await agents("bob")

    @bob.on("request")
    async def simple(message: Received) -> None:
        await bob.send("alice", "inform", f"got {message.content}", conversation_id=message.conversation_id)

    alice = await agents("alice", inbox)
    assert (await alice.request("bob", "1")).content == "got 1"
    assert (await alice.request("bob", "2", conversation_id="ours")).content == "got 2"
    assert inbox.messages == []


async def test_a_stranger_in_a_named_conversation_does_not_answer(agents: Any, inbox: Any) -> None:
    bob, carol = await agents("bob"), await agents("carol")

    @bob.on("request")
    async def ask_carol_first(message: Received) -> str:
        await carol.send("alice", "inform", "gossip", conversation_id=message.conversation_id)
        # Another question in the conversation is no answer either.
        await bob.send("alice", "query-if", "really?", conversation_id=message.conversation_id)
        await inbox.holds(2)
        return "fact"

    alice = await agents("alice", inbox)
    assert (await alice.request("bob", "?", conversation_id="ours")).content == "fact"
    assert sorted(inbox.contents) == ["gossip", "really?"]


async def test_somebody_else_may_answer_in_the_place_of_who_was_asked(agents: Any) -> None:
    bob, carol = await agents("bob"), await agents("carol")

    @bob.on("request")
    async def delegate(message: Received) -> None:
        await carol.reply(message, "inform", "from carol")

    alice = await agents("alice")
    assert (await alice.request("bob", "?")).sender.name == "carol"


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_handlers_that_ask_do_not_stand_in_the_way_of_their_answers(agents: Any, concurrency: int) -> None:
    limits = ClientLimits(concurrency=concurrency)
    oracle = await agents("oracle")
    oracle.on("request")(lambda message: f"truth about {message.content}")
    bob = await agents("bob", limits=limits)

    @bob.on("request")
    async def ask(message: Received) -> str:
        return (await bob.request("oracle", message.content)).content

    alice = await agents("alice")
    answers = await asyncio.gather(*(alice.request("bob", str(one)) for one in range(8)))
    assert [answer.content for answer in answers] == [f"truth about {one}" for one in range(8)]


async def test_a_handler_may_ask_back_within_the_conversation(agents: Any) -> None:
    alice, bob = await agents("alice"), await agents("bob", limits=ClientLimits(concurrency=1))
    alice.on("query-ref")(lambda message: "red")

    @bob.on("request")
    async def ask_back(message: Received) -> str:
        answer = await bob.request(
            "alice", "which colour?", performative="query-ref", conversation_id=message.conversation_id
        )
        return f"painted {answer.content}"

    assert (await alice.request("bob", "paint", conversation_id="c")).content == "painted red"


async def test_agents_that_ask_themselves(agents: Any) -> None:
    alice = await agents("alice", limits=ClientLimits(concurrency=1))
    alice.on("request")(lambda message: "me")
    assert (await alice.request("alice", "who?")).content == "me"


async def test_an_answer_is_acknowledged_and_not_handled_as_mail(bus: Any, agents: Any, inbox: Any) -> None:
    await agents("bob", _yes)
    alice = await agents("alice", inbox)
    await asyncio.gather(*(alice.request("bob", str(one)) for one in range(50)))
    await settled(bus, "alice")
    assert inbox.messages == []


async def test_the_ams_answers_and_fails_requests(agents: Any) -> None:
    alice = await agents("alice")
    with pytest.raises((NotUnderstoodByAgent, RefusedByAgent)):
        await alice.request("ams", "nonsense", ontology="fipa-agent-management", language="fipa-sl0")
    bob = await agents("bob")
    begun = asyncio.Event()

    @bob.on("request")
    async def hang(message: Received) -> None:
        begun.set()
        await asyncio.Event().wait()

    asking = asyncio.create_task(alice.request("bob", "?"))
    await begun.wait()
    await alice.ams.terminate("bob")
    with pytest.raises(FailureFromAgent, match="gone") as raised:
        await asking
    assert raised.value.sender == "ams"


async def test_a_request_that_is_cancelled_at_any_moment_leaves_nothing(agents: Any, inbox: Any) -> None:
    await agents("bob", _yes)
    alice = await agents("alice", inbox)
    cancelled = 0
    for turns in range(12):
        asking = asyncio.create_task(alice.request("bob", str(turns)))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        cancelled += isinstance((await asyncio.gather(asking, return_exceptions=True))[0], asyncio.CancelledError)
        assert not alice._questions
    assert cancelled
    assert (await alice.request("bob", "end")).content == "yes"
    to = (AgentIdentifier("bob"),)
    assert await alice.send_all([ACLMessage(Performative.INFORM, receivers=to)]) == []
    assert len(alice._session.outbox) == 0


async def test_a_request_that_waits_when_the_session_ends_hears_so_at_once(bus: Any, agents: Any) -> None:
    asked = asyncio.Event()

    async def never(message: Received) -> None:
        asked.set()

    await agents("bob", never)
    alice = await agents("alice")
    asking = asyncio.create_task(alice.request("bob", "?"))
    await asked.wait()
    await alice.aclose()
    with pytest.raises(PreconditionFailed, match="alice: the agent is closed"):
        await asking
    asked.clear()
    carol = await agents("carol")
    asking = asyncio.create_task(carol.request("bob", "?"))
    await asked.wait()
    await carol.ams.terminate("carol")
    with pytest.raises(PreconditionFailed, match="terminated"):
        await asking


async def _yes(message: Received) -> str:
    return "yes"
