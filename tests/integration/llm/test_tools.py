"""The bus as a model's tools: what a model may do, whom it may ask, and that nobody asks in a circle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from vendor import Asked, Call, Reply, Vendor
from waiting import WAIT, Inbox

from gagent_grpc import Agent, InvalidArgument, InvalidName, TaskEventKind
from gagent_grpc.llm import BusTools
from gagent_grpc.server.app import Bus

from .conftest import Start


@pytest.fixture
async def people(bus: Bus) -> Any:
    """Alice, who asks, and two agents who know something."""
    seen: dict[str, Any] = {}

    def knows(name: str, service: str, text: str) -> Agent:
        agent = Agent(name, bus=bus.address, services=[service])

        @agent.on("request")
        async def answer(message: Any) -> str:
            seen[name] = message
            return f"{text} ({message.content})"

        return agent

    async with (
        knows("ann", "rivers", "the Danube") as ann,
        knows("ben", "towns", "Ulm") as ben,
        Agent("alice", bus=bus.address) as alice,
    ):
        yield alice, ann, ben, seen


def uses(*calls: Call, then: str = "{}") -> Any:
    """Have the model use tools, and answer with what came."""

    def answer(asked: Asked) -> Reply:
        return Reply(then.replace("{}", " | ".join(asked.results))) if asked.results else Reply(calls=calls)

    return answer


def ask(agent: str, question: str = "?", mark: str = "c1") -> Call:
    return Call("ask_agent", {"agent": agent, "question": question}, mark)


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
async def test_a_planner_asks_two_others(kind: str, start: Start, make: Any, people: Any, vendor: Vendor) -> None:
    alice, _, _, seen = people
    vendor.answer = uses(
        Call("search_agents", {}, "c1"), ask("ann", "Which river?", "c2"), ask("role:towns", "Which town?", "c3")
    )
    await start("planner", make(kind), tools=BusTools(["role:rivers", "role:towns"]))
    answer = await alice.request("planner", "Where?", timeout=WAIT)
    found, river, town = answer.content.split(" | ")
    assert {one["agent"]: one["services"] for one in json.loads(found)["agents"]} == {
        "ann@local": ["rivers"],
        "ben@local": ["towns"],
    }
    assert (river, town) == ("the Danube (Which river?)", "Ulm (Which town?)")
    assert seen["ann"].user_parameters["X-asked-by"] == "alice@local planner@local"
    assert seen["ann"].reply_by is not None
    # The bus counts what led to a message.
    assert seen["ann"].headers["hops"] == "1"


async def test_questions_of_one_turn_are_asked_side_by_side(
    start: Start, bus: Bus, people: Any, vendor: Vendor
) -> None:
    alice = people[0]
    both = asyncio.Barrier(2)

    def waits(name: str) -> Agent:
        agent = Agent(name, bus=bus.address)

        @agent.on("request")
        async def answer(message: Any) -> str:
            await both.wait()
            return name

        return agent

    vendor.answer = uses(ask("one", mark="c1"), ask("two", mark="c2"))
    await start("planner", tools=BusTools(["*"]))
    async with waits("one"), waits("two"):
        assert (await alice.request("planner", "?", timeout=WAIT)).content == "one | two"


@pytest.mark.parametrize(
    ("allow", "call", "result"),
    [
        (["ann"], ask("ben"), "error: ben may not be asked; search_agents shows who may"),
        (["ann@local"], ask("ann"), "the Danube (?)"),
        (["role:rivers"], ask("ann@local"), "the Danube (?)"),
        (["role:rivers"], ask("ben"), "error: ben may not be asked"),
        (["role:rivers"], ask("role:towns"), "error: nobody who may be asked offers 'towns'"),
        (["*"], ask("df"), "error: df may not be asked"),
        (["*"], ask("planner"), "error: planner is this agent itself"),
        (["*"], ask("planner@local"), "error: planner@local is this agent itself"),
        (["*"], ask("alice"), "error: alice is waiting for this very answer"),
        (["*"], ask("nobody"), "error: nobody: NO_SUCH_AGENT"),
        (["*"], ask("no such name"), "error: "),
        (["*"], ask("ann", ""), "error: question is missing; expected text"),
        (["*"], Call("ask_agent", {"agent": 7, "question": "?"}), "error: agent is missing"),
        (["*"], Call("ask_agent", "[1]"), "error: the arguments are no JSON object"),
        (["*"], Call("ask_agent", '{"agent": '), "error: the arguments are no JSON"),
        (["*"], Call("rm", {}), "error: no tool 'rm'; there are search_agents, ask_agent, delegate_task"),
        (["*"], Call("search_agents", {"service": 5}), "error: service is no text"),
        (["*"], Call("search_agents", {"service": "rivers"}), '{"agents": [{"agent": "ann@local", "services": ["rivers"]}]}'),
        (["ben"], Call("search_agents", {"service": "rivers"}), '{"agents": []}'),
    ],
)  # fmt: skip
async def test_whom_a_model_may_ask_and_what_it_is_told(
    allow: Sequence[str], call: Call, result: str, start: Start, people: Any, vendor: Vendor
) -> None:
    vendor.answer = uses(call)
    await start("planner", tools=BusTools(allow))
    assert (await people[0].request("planner", "?", timeout=WAIT)).content.startswith(result)


async def test_an_agent_that_says_no_says_it_to_the_model(start: Start, bus: Bus, people: Any, vendor: Vendor) -> None:
    moody = Agent("moody", bus=bus.address)

    @moody.on("request")
    async def no(message: Any) -> None:
        await moody.reply(message, "refuse", "not today")

    vendor.answer = uses(ask("moody"), then="I hear: {}")
    await start("planner", tools=BusTools(["moody"]))
    async with moody:
        assert "not today" in (await people[0].request("planner", "?", timeout=WAIT)).content


async def test_a_result_that_is_too_long_is_cut(start: Start, people: Any, vendor: Vendor) -> None:
    vendor.answer = uses(ask("ann", "x" * 200))
    await start("planner", tools=BusTools(["ann"], max_result_chars=20))
    content = (await people[0].request("planner", "?", timeout=WAIT)).content
    assert content == "the Danube (xxxxxxxx\n[cut: 213 characters in all]"


async def test_a_model_that_never_stops_using_tools_is_stopped(start: Start, people: Any, vendor: Vendor) -> None:
    vendor.answer = lambda asked: (
        Reply("enough") if asked.body["tool_choice"] == "none" else Reply(calls=[ask("ann"), ask("ann", mark="c2")])
    )
    await start("planner", tools=BusTools(["ann"], max_calls=3))
    assert (await people[0].request("planner", "?", timeout=WAIT)).content == "enough"
    # Three of four uses were allowed.
    assert [result.startswith("error: 3 uses") for result in vendor.asked[-1].results] == [False, False, False, True]


async def test_an_endpoint_that_heeds_no_end_of_tools(start: Start, people: Any, vendor: Vendor) -> None:
    vendor.answer = lambda asked: Reply(calls=[ask("ann")])
    await start("planner", tools=BusTools(["ann"], max_calls=2))
    with pytest.raises(Exception, match="too-many-calls"):
        await people[0].request("planner", "?", timeout=WAIT)
    assert len(vendor.asked) == 3


async def test_c23_agents_that_would_ask_in_a_circle_come_to_an_end(start: Start, people: Any, vendor: Vendor) -> None:
    nexts = {"one": "two", "two": "three", "three": "one"}

    def answer(asked: Asked) -> Reply:
        name = asked.messages[0]["content"]
        if asked.results or "tools" not in asked.body:
            return Reply(f"{name}: {' '.join(asked.results)}")
        return Reply(calls=[ask(nexts[name], "pass it on")])

    vendor.answer = answer
    for name in nexts:
        await start(name, system_prompt=name, tools=BusTools(["*"], max_depth=9))
    content = (await people[0].request("one", "pass it on", timeout=WAIT)).content
    assert content.startswith("one: two: three: error: one is waiting for this very answer")
    assert len(vendor.asked) == 6


async def test_c23_a_circle_of_questions_and_tasks_comes_to_an_end(start: Start, people: Any, vendor: Vendor) -> None:
    def answer(asked: Asked) -> Reply:
        name = asked.messages[0]["content"]
        if asked.results:
            return Reply(f"{name}: {' '.join(asked.results)}")
        if name == "one":
            return Reply(calls=[Call("delegate_task", {"agent": "two", "description": "pass it on"})])
        return Reply(calls=[ask({"two": "three", "three": "one"}[name])])

    vendor.answer = answer
    for name in ("one", "two", "three"):
        await start(name, system_prompt=name, tools=BusTools(["*"], max_depth=9))
    content = (await people[0].request("one", "?", timeout=WAIT)).content
    assert content.startswith("one: two: three: error: one is waiting")


async def test_who_is_far_down_the_chain_gets_no_tools(start: Start, people: Any, vendor: Vendor) -> None:
    def answer(asked: Asked) -> Reply:
        name = asked.messages[0]["content"]
        if asked.results or "tools" not in asked.body:
            return Reply(f"{name}: {' '.join(asked.results)}")
        return Reply(calls=[ask({"one": "two", "two": "three", "three": "four"}[name])])

    vendor.answer = answer
    for name in ("one", "two", "three", "four"):
        await start(name, system_prompt=name, tools=BusTools(["*"], max_depth=2))
    assert (await people[0].request("one", "?", timeout=WAIT)).content.strip() == "one: two: three:"


async def test_a_task_is_delegated_and_its_result_comes_back(
    start: Start, bus: Bus, people: Any, vendor: Vendor
) -> None:
    painter = Agent("painter", bus=bus.address, services=["paint"])
    parents: list[Any] = []

    @painter.on_delegate
    async def paint(task: Any) -> Any:
        parents.append(task.task.parent)
        if not task.parameters:
            raise ValueError("no paint")
        return {"walls": task.parameters["walls"]}

    vendor.answer = uses(
        Call("delegate_task", {"agent": "role:paint", "description": "Paint", "parameters": {"walls": 2}}, "c1"),
        Call("delegate_task", {"agent": "painter", "description": "Paint"}, "c2"),
    )
    await start("planner", tools=BusTools(["painter", "role:paint"]))
    async with painter:
        alice = people[0]
        done, failed = (await alice.request("planner", "?", timeout=WAIT)).content.split(" | ")
        assert done == '{"walls":2}'
        assert failed.startswith("error: ")
        assert "no paint" in failed
        # As a task of its own it has the parts, which end with it.
        task = await alice.delegate("planner", "House")
        notes = [event.note async for event in task.events() if event.kind is TaskEventKind.PROGRESS]
        assert "uses delegate_task" in notes
        assert (await task.result()).startswith('{"walls":2}')
        assert parents == [None, None, (await task.get()).key, (await task.get()).key]


async def test_the_end_of_a_question_ends_what_it_led_to(start: Start, bus: Bus, people: Any, vendor: Vendor) -> None:
    slow = Agent("slow", bus=bus.address)
    began: asyncio.Queue[str] = asyncio.Queue()
    ended: asyncio.Queue[str] = asyncio.Queue()

    @slow.on("request")
    async def wait_for_ever(message: Any) -> None:
        await go_on("question")

    @slow.on_delegate
    async def work_for_ever(task: Any) -> None:
        await go_on("task")

    async def go_on(name: str) -> None:
        began.put_nowait(name)
        try:
            await asyncio.Event().wait()
        finally:
            ended.put_nowait(name)

    vendor.answer = uses(ask("slow", mark="c1"), Call("delegate_task", {"agent": "slow", "description": "Work"}, "c2"))
    await start("planner", tools=BusTools(["slow"]))
    alice = people[0]
    async with slow, asyncio.timeout(WAIT):
        asking = asyncio.create_task(alice.request("planner", "?", conversation_id="x", timeout=WAIT))
        assert {await began.get(), await began.get()} == {"question", "task"}
        await alice.request("planner", performative="cancel", conversation_id="x", timeout=WAIT)
        assert {await ended.get(), await ended.get()} == {"question", "task"}
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_who_does_not_answer_in_time_is_called_off(start: Start, bus: Bus, people: Any, vendor: Vendor) -> None:
    slow = Agent("slow", bus=bus.address)
    ended = Inbox()

    @slow.on("request")
    async def wait_for_ever(message: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ended(message)

    vendor.answer = uses(ask("slow"))
    await start("planner", tools=BusTools(["slow"], call_time=1.0))
    async with slow:
        assert "no answer within 1 s" in (await people[0].request("planner", "?", timeout=WAIT)).content
        await ended.holds(1)


async def test_tools_without_a_way_to_ask(start: Start, people: Any, vendor: Vendor) -> None:
    vendor.answer = uses(ask("ann"))
    await start("planner", tools=BusTools(["*"], ask=False))
    content = (await people[0].request("planner", "?", timeout=WAIT)).content
    assert content == "error: no tool 'ask_agent'; there are search_agents, delegate_task"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"allow": []}, InvalidArgument),
        ({"allow": "ann"}, InvalidArgument),
        ({"allow": ["role:"]}, InvalidArgument),
        ({"allow": ["no such name"]}, InvalidName),
        ({"allow": ["ann"], "max_calls": 0}, InvalidArgument),
        ({"allow": ["ann"], "call_time": -1.0}, InvalidArgument),
    ],
)
def test_rules_that_are_none(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        BusTools(**options)
