"""LLM agents on a bus: what they answer, in which order, by when, and what they say when there is no answer."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from vendor import Asked, Reply, Vendor
from waiting import WAIT, Inbox, until

from gagent_grpc import (
    ACPMessage,
    Agent,
    BusLimits,
    ClientLimits,
    ConfigurationError,
    DeliveryRefused,
    FailureFromAgent,
    NotUnderstoodByAgent,
    Operator,
    RefusedByAgent,
    TaskCancelled,
    TaskEventKind,
    TaskFailed,
    TaskRejected,
)
from gagent_grpc.llm import Echo, Histories, LLMAgent, OpenAIChat, RetryPolicy, TokenUsage
from gagent_grpc.server.app import Bus

from .conftest import AT_ONCE, KEY, MakeProvider, Start


@pytest.fixture
async def alice(bus: Bus) -> Any:
    async with Agent("alice", bus=bus.address) as one:
        yield one


def said(asked: Asked) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in asked.messages]


async def failure(asking: Any) -> str:
    with pytest.raises(FailureFromAgent) as caught:
        await asking
    return str(caught.value.why if hasattr(caught.value, "why") else caught.value)


# ---- what is answered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["request", "query-ref", "query-if"])
async def test_questions_are_answered(act: str, start: Start, alice: Agent, vendor: Vendor) -> None:
    await start("helper", system_prompt="Be brief.", max_tokens=33)
    answer = await alice.request("helper", "What is it?", performative=act, timeout=WAIT)
    assert (answer.performative.text, answer.content) == ("inform", "model says: What is it?")
    assert said(vendor.asked[0]) == [("system", "Be brief."), ("user", "What is it?")]
    assert vendor.asked[0].body["max_tokens"] == 33


async def test_acp_requests_are_answered(start: Start, alice: Agent) -> None:
    await start("helper")
    inbox = Inbox()
    alice.on_acp("response")(inbox)
    await alice.send_acp(ACPMessage(type="request", target="helper", content={"how": "many"}))
    assert await inbox.holds(1) == ['model says: {"how":"many"}']


async def test_c23_what_expects_no_answer_gets_none(start: Start, alice: Agent, vendor: Vendor, bus: Bus) -> None:
    await start("helper")
    for act in ("inform", "failure", "refuse", "not-understood", "agree", "confirm"):
        await alice.send("helper", act, "thank you", conversation_id="talk")
    # Handled in order: the answer to the last one says that the others are done with.
    await alice.request("helper", "And now?", conversation_id="talk", timeout=WAIT)
    assert [one.question for one in vendor.asked] == ["And now?"]
    async with Operator(bus.address) as operator:
        assert (await operator.admin.stats()).accepted == 6 + 2


async def test_c23_two_llm_agents_do_not_thank_each_other(start: Start, bus: Bus, vendor: Vendor) -> None:
    one, other = await start("one"), await start("other")
    await one.send("other", "request", "Thank you!", conversation_id="chat", reply_with="r")

    async def quiet() -> bool:
        async with Operator(bus.address) as operator:
            stats = await operator.admin.stats()
        return stats.accepted == 2 and all(not entry.mailbox.messages for entry in bus.platform.ams)

    await until(quiet)
    assert len(vendor.asked) == 1
    assert other.usage["a-model"].completions == 1


async def test_c23_acts_that_it_does_not_know_are_not_understood(start: Start, alice: Agent, vendor: Vendor) -> None:
    await start("helper")
    with pytest.raises(NotUnderstoodByAgent):
        await alice.request("helper", "crate 9", performative="cfp", timeout=WAIT)
    assert vendor.asked == []


@pytest.mark.parametrize("content", [None, "", " \n", b"bytes"])
async def test_no_question_is_refused(content: Any, start: Start, alice: Agent, vendor: Vendor) -> None:
    await start("helper")
    with pytest.raises(RefusedByAgent, match="expected text"):
        await alice.request("helper", content, timeout=WAIT)
    assert vendor.asked == []


async def test_handlers_of_the_author_come_first(bus: Bus, make: MakeProvider, alice: Agent) -> None:
    helper = LLMAgent("helper", make(), bus=bus.address)
    helper.on("request", ontology="time")(lambda message: "noon")
    async with helper:
        assert (await alice.request("helper", "?", ontology="time", timeout=WAIT)).content == "noon"
        assert (await alice.request("helper", "?", timeout=WAIT)).content == "model says: ?"
    async with helper:
        assert (await alice.request("helper", "again", timeout=WAIT)).content == "model says: again"


async def test_the_echo_says_what_it_is(start: Start, alice: Agent) -> None:
    await start("helper", Echo("(echo: no key)"))
    assert (await alice.request("helper", "Hello", timeout=WAIT)).content == "(echo: no key) Hello"


# ---- history and order -----------------------------------------------------------------------------------------------


async def test_each_conversation_has_its_own_history_cut_to_whole_turns(
    start: Start, alice: Agent, bus: Bus, vendor: Vendor
) -> None:
    vendor.answer = lambda asked: Reply(f"re {asked.question}")
    await start("helper", max_history=2)
    async with Agent("bob", bus=bus.address) as bob:
        for asker, conversation, question in [
            (alice, "x", "a1"), (alice, "x", "a2"), (bob, "x", "b1"), (alice, "y", "c1"), (alice, "x", "a3"), (alice, "x", "a4"),
        ]:  # fmt: skip
            await asker.request("helper", question, conversation_id=conversation, timeout=WAIT)
    shown = {asked.question: [text for _, text in said(asked)] for asked in vendor.asked}
    assert shown["b1"] == ["b1"]
    assert shown["c1"] == ["c1"]
    assert shown["a3"] == ["a1", "re a1", "a2", "re a2", "a3"]
    assert shown["a4"] == ["a2", "re a2", "a3", "re a3", "a4"]


async def test_what_came_to_nothing_is_not_remembered(start: Start, alice: Agent, vendor: Vendor) -> None:
    replies = iter([Reply(""), Reply("yes")])
    vendor.answer = lambda asked: next(replies)
    await start("helper")
    assert "empty-answer" in await failure(alice.request("helper", "first", conversation_id="x", timeout=WAIT))
    await alice.request("helper", "second", conversation_id="x", timeout=WAIT)
    assert said(vendor.asked[1]) == [("user", "second")]


async def test_one_conversation_in_order_and_others_side_by_side(start: Start, alice: Agent, vendor: Vendor) -> None:
    go = asyncio.Event()
    vendor.answer = lambda asked: Reply("done", hang=go)
    await start("helper")
    asking = [
        asyncio.create_task(alice.request("helper", question, conversation_id=conversation, timeout=WAIT))
        for question, conversation in [("x1", "x"), ("x2", "x"), ("y1", "y"), ("z1", "z")]
    ]
    assert {one.question for one in await vendor.holds(3)} == {"x1", "y1", "z1"}
    go.set()
    await asyncio.gather(*asking)
    assert [one.question for one in vendor.asked if one.question.startswith("x")] == ["x1", "x2"]
    assert said(vendor.asked[3])[0] == ("user", "x1")


async def test_no_more_than_concurrency_at_the_same_time(start: Start, alice: Agent, vendor: Vendor) -> None:
    open_now: list[int] = []
    at_work = 0

    def answer(asked: Asked) -> Reply:
        nonlocal at_work
        at_work += 1
        open_now.append(at_work)
        hang = asyncio.Event()

        def let_go() -> None:
            nonlocal at_work
            at_work -= 1
            hang.set()

        asyncio.get_running_loop().call_later(0.01, let_go)
        return Reply("done", hang=hang)

    vendor.answer = answer
    await start("helper", concurrency=2)
    await asyncio.gather(*(alice.request("helper", "?", timeout=WAIT) for _ in range(8)))
    assert max(open_now) == 2


async def test_a_history_that_grew_too_long_is_shortened(start: Start, alice: Agent, vendor: Vendor) -> None:
    def answer(asked: Asked) -> Reply:
        return Reply("ok") if len(asked.messages) <= 3 else Reply(status=400, code="context_length_exceeded")

    vendor.answer = answer
    await start("helper")
    for question in ("a", "b", "c", "d"):
        assert (await alice.request("helper", question, conversation_id="x", timeout=WAIT)).content == "ok"
    assert said(vendor.asked[-1])[-1] == ("user", "d")


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "word", "advice", "attempts"),
    [
        (Reply(status=401, error="authentication_error", says=f"wrong: {KEY}"), "key-refused", "set OPENAI_API_KEY", 1),
        (Reply(status=404), "no-such-model", "a-model", 1),
        (Reply(status=429, headers={"retry-after-ms": "1"}), "rate-limited", "given up after 3 attempts", 3),
        (Reply(status=500), "server-error", "given up after 3 attempts", 3),
        (Reply(""), "empty-answer", "ask again", 1),
        (Reply("", stop="length"), "empty-answer", "raise max_tokens", 1),
        (Reply("half", stop="filter"), "content-filter", "other words", 1),
        (Reply(status=400, code="context_length_exceeded"), "context-too-long", "shorter", 1),
        (Reply(raw=b"[]"), "bad-answer", "base URL", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_failure_says_what_to_do(
    reply: Reply, word: str, advice: str, attempts: int,
    start: Start, alice: Agent, vendor: Vendor, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    vendor.answer = lambda asked: reply
    caplog.set_level(logging.DEBUG, "gagent_grpc")
    helper = await start("helper", retry=RetryPolicy(attempts=3, initial_delay=0.001, max_delay=0.01))
    text = await failure(alice.request("helper", "What is the password?", timeout=WAIT))
    assert word in text
    assert advice in text
    assert len(vendor.asked) == attempts
    assert helper.usage["a-model"].retries == attempts - 1
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert word in logged
    assert KEY not in text + logged
    assert "password" not in text + logged


async def test_no_key(start: Start, alice: Agent) -> None:
    await start("helper", OpenAIChat("gpt-4o-mini"))
    assert "no-key: api.openai.com needs a key; set OPENAI_API_KEY" in await failure(
        alice.request("helper", "?", timeout=WAIT)
    )


async def test_a_package_that_is_missing_ends_the_opening(
    bus: Bus, make: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'gagent-grpc\[llm\]'"):
        async with LLMAgent("helper", make(), bus=bus.address):
            pass


async def test_what_fails_for_a_moment_is_tried_again(start: Start, alice: Agent, vendor: Vendor) -> None:
    replies = iter(
        [
            Reply(status=500),
            Reply("lost", cut_after=-1),
            Reply(status=429, headers={"retry-after-ms": "5"}),
            Reply("at last"),
        ]
    )
    vendor.answer = lambda asked: next(replies)
    helper = await start("helper")
    assert (await alice.request("helper", "?", timeout=WAIT)).content == "at last"
    assert (helper.usage["a-model"].completions, helper.usage["a-model"].retries) == (1, 3)


async def test_a_wait_beyond_the_time_is_not_begun(start: Start, alice: Agent, vendor: Vendor) -> None:
    vendor.answer = lambda asked: Reply(status=429, headers={"retry-after": "3600"})
    await start("helper", total_time=WAIT)
    text = await failure(alice.request("helper", "?", timeout=WAIT))
    assert "rate-limited" in text
    assert "3600.0 s" in text


# ---- time, cancelling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["total_time", "reply_by"])
async def test_c22_an_endpoint_that_never_answers_ends_in_a_failure_in_time(
    bound: str, start: Start, alice: Agent, vendor: Vendor
) -> None:
    vendor.answer = lambda asked: Reply("late", hang=asyncio.Event())
    await start("helper", total_time=0.3 if bound == "total_time" else 60.0)
    by = datetime.now(UTC) + timedelta(seconds=1.0 if bound == "reply_by" else WAIT)
    text = await failure(alice.request("helper", "?", timeout=WAIT, reply_by=by))
    assert "timeout" in text
    # The call was given up, too, and nothing is tried again.
    async with asyncio.timeout(WAIT):
        for asked in vendor.asked:
            await asked.gone.wait()
    assert len(vendor.asked) <= 1


async def test_c22_questions_whose_time_has_passed_cost_no_call(start: Start, alice: Agent, vendor: Vendor) -> None:
    go = asyncio.Event()
    vendor.answer = lambda asked: Reply("done", hang=go)
    await start("helper", concurrency=1)
    first = asyncio.create_task(alice.request("helper", "first", timeout=WAIT))
    await vendor.holds(1)
    by = datetime.now(UTC) + timedelta(seconds=0.05)
    late = [asyncio.create_task(alice.request("helper", "late", timeout=WAIT, reply_by=by)) for _ in range(3)]
    await until(lambda: time.time() > by.timestamp())
    go.set()
    assert (await first).content == "done"
    for one in late:
        assert "reply-by had passed" in await failure(one)
    assert [one.question for one in vendor.asked] == ["first"]


async def test_a_cancel_ends_the_call(start: Start, alice: Agent, vendor: Vendor) -> None:
    vendor.answer = lambda asked: Reply("late", hang=asyncio.Event())
    await start("helper")
    asking = asyncio.create_task(alice.request("helper", "?", conversation_id="x", timeout=WAIT))
    (asked,) = await vendor.holds(1)
    assert (await alice.request("helper", performative="cancel", conversation_id="x", timeout=WAIT)).content == "done"
    async with asyncio.timeout(WAIT):
        await asked.gone.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_an_answer_that_finds_no_room_is_not_paid_for_twice(
    buses: Any, make: MakeProvider, vendor: Vendor
) -> None:
    bus = await buses(limits=BusLimits(mailbox_messages=1, drain_grace=1.0))
    limits = ClientLimits(answer_patience=0.05, retry_delay=0.01)
    async with LLMAgent("helper", make(), bus=bus.address, limits=limits), Agent("bob", bus=bus.address) as bob:
        inbox = Inbox()
        async with Agent("alice", bus=bus.address) as alice:
            await alice.send("helper", "request", "Are you there?", conversation_id="x")
            alice.pause()
            await alice.ams.get_description()
        # Her mailbox is full now, whatever came first.
        while True:
            try:
                await bob.send("alice", "inform", "full")
            except DeliveryRefused:
                break
        await vendor.holds(1)
        returning = Agent("alice", bus=bus.address)
        returning.on("inform")(inbox)
        async with returning, asyncio.timeout(WAIT):
            while "model says: Are you there?" not in inbox.contents:
                await inbox.holds(len(inbox.messages) + 1)
        assert len(vendor.asked) == 1


# ---- tasks -----------------------------------------------------------------------------------------------------------


async def test_output_of_a_task_comes_as_it_is_made(start: Start, alice: Agent, vendor: Vendor) -> None:
    go = asyncio.Event()
    vendor.answer = lambda asked: Reply("one two three", hang=go, hang_after=3)
    await start("helper")
    task = await alice.delegate("helper", "Count", {"to": 3})
    parts: list[str] = []
    async with asyncio.timeout(WAIT):
        async for event in task.events():
            if event.kind is TaskEventKind.OUTPUT:
                parts.append(event.text)
                # The rest is not made before this was heard.
                go.set()
    assert "".join(parts) == await task.result() == "one two three"
    assert len(parts) > 1
    assert vendor.asked[0].question == 'Count\n\nParameters: {"to":3}'


async def test_c21_a_task_that_is_cancelled_ends_the_call(start: Start, alice: Agent, vendor: Vendor) -> None:
    vendor.answer = lambda asked: Reply("one two", hang=asyncio.Event(), hang_after=2)
    await start("helper")
    task = await alice.delegate("helper", "Count")
    (asked,) = await vendor.holds(1)
    await task.cancel("enough")
    with pytest.raises(TaskCancelled):
        await task.result(WAIT)
    async with asyncio.timeout(WAIT):
        await asked.gone.wait()
    vendor.answer = lambda asked: Reply("next")
    assert await (await alice.delegate("helper", "Go on")).result(WAIT) == "next"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(""), "empty-answer"),
        (Reply(status=401, error="authentication_error"), "key-refused"),
        (Reply("one two three four", cut_after=4), "broke-off"),
    ],
)
async def test_a_task_without_an_answer_fails(
    reply: Reply, why: str, start: Start, alice: Agent, vendor: Vendor
) -> None:
    vendor.answer = lambda asked: reply
    await start("helper")
    task = await alice.delegate("helper", "Count")
    with pytest.raises(TaskFailed, match=why):
        await task.result(WAIT)
    # What was passed on cannot be taken back, so nothing was tried again.
    assert len(vendor.asked) == 1


async def test_a_stream_that_fails_before_it_began_is_tried_again(start: Start, alice: Agent, vendor: Vendor) -> None:
    replies = iter([Reply(status=500), Reply("x", cut_after=0), Reply("one two")])
    vendor.answer = lambda asked: next(replies)
    await start("helper")
    assert await (await alice.delegate("helper", "Count")).result(WAIT) == "one two"


async def test_a_task_without_a_description_is_rejected(start: Start, alice: Agent) -> None:
    await start("helper")
    with pytest.raises(TaskRejected, match="what is to be done"):
        await (await alice.delegate("helper")).result(WAIT)


async def test_a_deadline_of_a_task_ends_the_call(start: Start, alice: Agent, vendor: Vendor) -> None:
    vendor.answer = lambda asked: Reply("late", hang=asyncio.Event())
    await start("helper")
    task = await alice.delegate("helper", "Count", deadline=1.0)
    with pytest.raises(TaskFailed, match="timeout"):
        await task.result(WAIT)
    async with asyncio.timeout(WAIT):
        for asked in vendor.asked:
            await asked.gone.wait()


# ---- limits of endpoints, usage --------------------------------------------------------------------------------------


async def test_c22_sixty_questions_to_a_limited_endpoint_are_all_answered(
    bus: Bus, make: MakeProvider, alice: Agent, vendor: Vendor
) -> None:
    """The limit is scaled: 5 in any 50 ms in the place of 5 in a second."""
    period, limit = 0.05, 5
    taken: list[float] = []
    refused = 0

    def answer(asked: Asked) -> Reply:
        nonlocal refused
        now = time.monotonic()
        if sum(at > now - period for at in taken) >= limit:
            refused += 1
            return Reply(status=429, error="rate_limit_error", headers={"retry-after-ms": str(int(1_000 * period))})
        taken.append(now)
        return Reply(f"re {asked.question}")

    vendor.answer = answer
    # Two agents that share the endpoint share its pace.
    agents = [
        LLMAgent(name, make(api_key=KEY), bus=bus.address, concurrency=64, retry=AT_ONCE) for name in ("one", "two")
    ]
    async with agents[0], agents[1]:
        asking = [alice.request(agents[n % 2].name, f"question {n}", timeout=WAIT) for n in range(60)]
        answers = await asyncio.gather(*asking)
    assert [one.content for one in answers] == [f"re question {n}" for n in range(60)]
    # Each question led to one answer of the model, and few were sent in vain.
    assert len(taken) == 60
    assert refused < 0.2 * len(vendor.asked)
    assert sum(one.usage["a-model"].completions for one in agents) == 60


async def test_usage_is_counted_and_told(start: Start, alice: Agent, vendor: Vendor) -> None:
    told: list[tuple[str, TokenUsage]] = []

    def on_usage(model: str, tokens: TokenUsage) -> None:
        told.append((model, tokens))
        raise RuntimeError("the exporter is broken")

    helper = await start("helper", on_usage=on_usage, histories=Histories(0))
    await alice.request("helper", "one", timeout=WAIT)
    await (await alice.delegate("helper", "two")).result(WAIT)
    vendor.answer = lambda asked: Reply(status=401, error="authentication_error")
    await failure(alice.request("helper", "three", timeout=WAIT))
    usage = helper.usage["a-model"]
    assert (usage.completions, usage.failures, usage.tokens) == (2, 1, TokenUsage(20, 6))
    assert told == [("a-model", TokenUsage(10, 3))] * 2
