"""Delegated tasks from both ends, over a real bus: how they run, are followed, asked, stopped, lost and taken up again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from task_workers import Worker, events_of
from waiting import WAIT, until

from gagent_grpc import (
    Agent,
    AgentNotRegistered,
    AnswerTimeout,
    Attachment,
    BlockingTaskContext,
    BusLimits,
    ClientLimits,
    Fail,
    InvalidArgument,
    MessageTooLarge,
    NoProvider,
    Operator,
    PreconditionFailed,
    Priority,
    Refuse,
    TaskAlreadyExists,
    TaskCancelled,
    TaskContext,
    TaskEnded,
    TaskEventKind,
    TaskExpired,
    TaskFailed,
    TaskKey,
    TaskNotFound,
    TaskRefused,
    TaskRejected,
    TaskState,
)

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, retry_delay=0.05, connect_timeout=2.0)
ORDER = {
    "limit": 3,
    "ratio": 3.0,
    "ticket": 9007199254740993,
    "neg": -0.5,
    "flags": [True, None, ""],
    "empty": {},
    "list": [],
}
"""Values that lose their type or their digits on a careless way (repr tells 3 and 3.0 apart)."""


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


# ---- the way of a task ---------------------------------------------------------------------------------------------------


async def test_task_comes_back_with_its_result_and_every_value_as_it_was(boss: Agent, worker: Agent) -> None:
    got: list[TaskContext] = []

    @worker.on_delegate
    async def work(task: TaskContext) -> Any:
        got.append(task)
        return task.parameters

    report = Attachment.of(b"a,b", "file:///report.csv", "text/csv", name="report")
    async with worker:
        task = await boss.delegate(
            "role:work",
            "Repeat it",
            ORDER,
            deadline=600,
            callback_url="http://127.0.0.1:1/never-fetched",
            attachments=[report],
            priority=Priority.HIGH,
        )
        result = await task.result()
    assert repr(result) == repr(ORDER)
    (context,) = got
    assert repr(context.parameters) == repr(ORDER)
    assert (context.description, context.delegator, context.attempt) == ("Repeat it", "boss@local", 1)
    assert (context.task_id, context.attachments, context.checkpoint) == (task.task_id, (report,), None)
    assert context.deadline == task.latest.deadline
    known = await task.get()
    assert (known.state, known.target, known.executor) == (TaskState.COMPLETED, "role:work", "worker@local")
    assert (known.callback_url, known.priority) == ("http://127.0.0.1:1/never-fetched", Priority.HIGH)
    assert known.root == TaskKey("boss@local", task.task_id)
    assert [(one.number, one.executor, one.outcome) for one in known.attempts] == [(1, "worker@local", "completed")]
    assert task.done


async def test_events_tell_the_whole_story_in_order(boss: Agent, worker: Agent) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        await task.progress(0.25, "reading")
        for part in ("one ", "two ", "three"):
            await task.output(part)
        await task.output("a line", channel="log")
        await task.save({"page": 3})
        return f"{await task.ask('Which colour?')} it is"

    async with worker:
        task = await boss.delegate("worker", "Paint")
        seen = []
        async for event in task.events():
            seen.append(event)
            if event.question:
                with pytest.raises(AnswerTimeout):
                    await task.result(timeout=0.01)
                await task.answer("blue")
        assert await task.result() == "blue it is"
    assert [event.sequence for event in seen] == list(range(1, len(seen) + 1))
    assert [str(event.state) for event in seen if event.kind is TaskEventKind.STATE] == [
        "submitted",
        "accepted",
        "running",
        "input-required",
        "running",
        "completed",
    ]
    assert "".join(event.text for event in seen if event.kind is TaskEventKind.OUTPUT and not event.channel) == (
        "one two three"
    )
    assert [(event.progress, event.note) for event in seen if event.kind is TaskEventKind.PROGRESS] == [
        (0.25, "reading")
    ]
    assert [event.value for event in seen if event.kind is TaskEventKind.CHECKPOINT] == [{"page": 3}]
    assert [event.value for event in seen if event.kind is TaskEventKind.ANSWER] == ["blue"]
    assert seen[-1].value == "blue it is"
    # The same story for somebody who comes late, in part or in whole.
    assert await events_of(task) == seen
    assert [event async for event in task.events(after=4)] == seen[4:]


@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [
        (ValueError("page 3 is missing"), TaskFailed, "ValueError: page 3 is missing"),
        (Fail("no paper"), TaskFailed, "no paper"),
        (TaskRefused("not on Sundays"), TaskRejected, "not on Sundays"),
        (Refuse("not for you"), TaskRejected, "not for you"),
    ],
    ids=["error", "fail", "refused", "refuse"],
)
async def test_what_a_handler_raises_ends_the_task(
    boss: Agent, worker: Agent, raised: Exception, error: type[Exception], words: str
) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> None:
        raise raised

    async with worker:
        task = await boss.delegate("worker")
        with pytest.raises(error, match=words) as caught:
            await task.result()
    assert (caught.value.task_id, caught.value.executor) == (task.task_id, "worker@local")
    assert caught.value.why == words


async def test_a_no_that_comes_after_work_began_is_a_failure(boss: Agent, worker: Agent) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> None:
        await task.save("half")
        raise TaskRefused("cannot go on")

    async with worker:
        with pytest.raises(TaskFailed, match="cannot go on"):
            await (await boss.delegate("worker")).result()


async def test_result_that_cannot_travel_fails_the_task_and_says_why(boss: Agent, worker: Agent) -> None:
    results = iter([{1: "no text"}, "x" * 1_100_000])

    @worker.on_delegate
    async def work(task: TaskContext) -> Any:
        return next(results)

    async with worker:
        with pytest.raises(TaskFailed, match="a key of type int"):
            await (await boss.delegate("worker")).result()
        with pytest.raises(TaskFailed, match=r"result was not taken: .*1,100,002 bytes"):
            await (await boss.delegate("worker")).result()


async def test_first_handler_that_fits_gets_the_task_and_none_rejects_it(boss: Agent, agents: Any) -> None:
    worker = Agent("worker", bus=boss._session.endpoint, services=["add", "subtract", "sing"], limits=QUICK)

    @worker.on_delegate("add", "role:subtract")
    async def calculate(task: TaskContext) -> str:
        return "calculated"

    @worker.on_delegate(when=lambda task: task.parameters["loud"])
    async def shout(task: TaskContext) -> str:
        return "SHOUTED"

    async with worker:
        assert await (await boss.delegate("role:add")).result() == "calculated"
        assert await (await boss.delegate("role:subtract")).result() == "calculated"
        assert await (await boss.delegate("role:sing", parameters={"loud": True})).result() == "SHOUTED"
        with pytest.raises(
            TaskRejected, match="no handler for a task to role:sing; it takes tasks for role:add, role:subtract"
        ):
            await (await boss.delegate("role:sing", parameters={"loud": False})).result()
        # A test that fails is for nobody, and the agent goes on.
        with pytest.raises(TaskRejected, match="no handler"):
            await (await boss.delegate("role:sing")).result()
    with pytest.raises(InvalidArgument, match="on_delegate"):
        worker.on_delegate("add", lambda task: True)


async def test_task_of_an_agent_without_any_handler_is_rejected(boss: Agent, agents: Any) -> None:
    await agents("idle")
    task = await boss.delegate("idle", "Do something")
    with pytest.raises(TaskRejected):
        await task.result()
    assert (await task.get()).reason


async def test_nobody_to_delegate_to_is_told_at_once(boss: Agent) -> None:
    with pytest.raises(AgentNotRegistered, match="nobody"):
        await boss.delegate("nobody")
    with pytest.raises(NoProvider, match="sing"):
        await boss.delegate("role:sing")
    for bad in (
        {"max_attempts": -1},
        {"deadline": -3},
        {"deadline": True},
        {"parameters": [1]},
        {"parameters": {1: 2}},
    ):
        with pytest.raises(InvalidArgument):
            await boss.delegate("boss", **bad)
    assert await boss.tasks() == []


async def test_a_task_waits_for_whoever_comes_to_serve_its_role(boss: Agent, agents: Any) -> None:
    with pytest.raises(NoProvider, match="sing"):
        await boss.delegate("role:sing", timeout=0.1, wait_for_provider=True)
    delegating = asyncio.create_task(boss.delegate("role:sing", "a song", timeout=WAIT, wait_for_provider=True))
    singer = await agents("singer", services=["sing"])

    @singer.on_delegate()
    async def sing(task: Any) -> str:
        return f"la la {task.description}"

    assert await (await delegating).result(WAIT) == "la la a song"
    assert len(await boss.tasks()) == 1


async def test_the_same_id_again_is_the_same_task(boss: Agent, worker: Agent) -> None:
    runs = []

    @worker.on_delegate
    async def work(task: TaskContext) -> int:
        runs.append(task.task_id)
        return len(runs)

    async with worker:
        first = await boss.delegate("worker", "Count", {"a": 1}, task_id="t1")
        assert await first.result() == 1
        again = await boss.delegate("worker", "Count", {"a": 1}, task_id="t1")
        assert again.done
        assert await again.result() == 1
        with pytest.raises(TaskAlreadyExists, match="t1"):
            await boss.delegate("worker", "Count", {"a": 1.0}, task_id="t1")
        # Seconds from now mean the same each time.
        timed = [await boss.delegate("worker", task_id="t2", deadline=600) for _ in range(2)]
        assert [await task.result() for task in timed] == [2, 2]
        with pytest.raises(TaskAlreadyExists, match="description"):
            await boss.delegate("worker", "Other", task_id="t2", deadline=600)
        with pytest.raises(TaskAlreadyExists, match="deadline"):
            await boss.delegate("worker", task_id="t2", deadline=datetime.now(UTC) + timedelta(hours=1))
    assert runs == ["t1", "t2"]


async def test_tasks_are_listed_for_agents_and_for_operators(bus: Any, boss: Agent, worker: Agent, agents: Any) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        if task.description == "bad":
            raise Fail("bad")
        return task.description

    other = await agents("other")
    async with worker, Operator(bus.address) as operator:
        for agent, what in ((boss, "one"), (boss, "bad"), (other, "two")):
            await (await agent.delegate("worker", what)).wait()
        assert [task.description for task in await boss.tasks()] == ["bad", "one"]
        assert [task.description for task in await boss.tasks(states=[TaskState.FAILED])] == ["bad"]
        assert [task.description for task in await worker.tasks(executor="worker")] == ["two", "bad", "one"]
        assert [task.description for task in await operator.tasks()] == ["two", "bad", "one"]
        assert [task.description for task in await operator.tasks(delegator="boss", max_results=1)] == ["bad"]
        assert [task.description for task in await operator.tasks(max_results=-1)] == ["two", "bad", "one"]
        found = (await operator.tasks(delegator="other"))[0]
        assert await operator.task(found.task_id, "other").result() == "two"
        with pytest.raises(TaskNotFound, match="never"):
            await boss.task("never").get()
        with pytest.raises(TaskNotFound, match="never"):
            await boss.task("never").result()


# ---- speaking with the executor --------------------------------------------------------------------------------------------


async def test_signals_reach_the_running_task_in_order(boss: Agent, worker: Agent) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> list[Any]:
        told = []
        await task.progress(note="listening")
        async for signal in task.signals():
            told.append([signal.name, signal.value])
            if signal.name == "enough":
                break
        return told

    async with worker:
        task = await boss.delegate("worker")
        await task.signal("early", {"n": 3})
        await until(lambda: _is(task, TaskState.RUNNING))
        for number in range(5):
            await task.signal("more", number)
        await task.signal("enough")
        told = await task.result()
        assert told == [["early", {"n": 3}], *(["more", number] for number in range(5)), ["enough", None]]
        with pytest.raises(TaskEnded):
            await task.signal("late")
        with pytest.raises(PreconditionFailed):
            await task.answer("late")


async def _is(task: Any, state: TaskState) -> bool:
    return (await task.get()).state is state


async def test_question_without_an_answer_in_time_is_the_handlers_to_deal_with(boss: Agent, worker: Agent) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        try:
            await task.ask("Anybody?", timeout=0.05)
        except AnswerTimeout:
            return await task.ask("Really nobody?")
        return "answered"

    async with worker:
        task = await boss.delegate("worker")
        async for event in task.events():
            if event.question == "Really nobody?":
                await task.answer("here I am")
        assert await task.result() == "here I am"


async def test_thread_works_as_the_loop_does(boss: Agent, worker: Agent) -> None:
    threads = []

    @worker.on_delegate
    def work(task: BlockingTaskContext) -> Any:
        threads.append(threading.current_thread())
        task.progress(0.5, "half way")
        task.output("out")
        task.save([1, 2.0])
        name = task.ask("Who?")
        part = task.delegate("helper", "Part of it", {"for": name})
        return [name, [signal.name for signal in task.signals()], task.run(part.result()), task.cancelled]

    @worker.on_delegate
    async def never(task: TaskContext) -> None:
        raise AssertionError("not the first handler")

    async with worker, Agent("helper", bus=boss._session.endpoint, limits=QUICK) as helper:

        @helper.on_delegate
        async def help_out(task: TaskContext) -> str:
            return f"for {task.parameters['for']}"

        task = await boss.delegate("worker")
        async for event in task.events():
            if event.question:
                await task.signal("hello")
                await task.answer("eva")
        assert await task.result() == ["eva", ["hello"], "for eva", False]
        known = await task.get()
        assert (known.progress, known.note, repr(known.checkpoint)) == (0.5, "half way", "[1, 2.0]")
    assert threads[0] is not threading.main_thread()


async def test_bad_words_of_a_handler_are_told_to_the_handler(boss: Agent, worker: Agent) -> None:
    caught: list[Exception] = []

    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        for attempt in (
            lambda: task.progress(1.5),
            lambda: task.progress(float("nan")),
            lambda: task.progress(0.5, note=3),
            lambda: task.output(b"bytes"),
            lambda: task.output("\ud800"),
            lambda: task.output("x" * 1_100_000),
            lambda: task.save({1: 2}),
            lambda: task.save("x" * 300_000),
            lambda: task.ask(""),
        ):
            try:
                await attempt()
            except (InvalidArgument, MessageTooLarge) as error:
                caught.append(error)
        return "done"

    async with worker:
        task = await boss.delegate("worker")
        assert await task.result() == "done"
    assert len(caught) == 9
    assert [event for event in await events_of(task) if event.kind is not TaskEventKind.STATE] == []


async def test_checkpoint_that_is_too_large_takes_no_output_with_it(boss: Agent, worker: Agent) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        await task.output("kept")
        try:
            await task.save("x" * 300_000)
        except MessageTooLarge:
            return "told"
        return "not told"

    async with worker:
        task = await boss.delegate("worker")
        assert await task.result() == "told"
        assert [event.text for event in await events_of(task) if event.text] == ["kept"]


@pytest.mark.parametrize(("dots", "most_bytes"), [(95, 20_000), (0, 256 * 1024)], ids=["large", "tiny"])
async def test_flood_of_output_arrives_whole_and_in_order(buses: Any, dots: int, most_bytes: int) -> None:
    """One report takes along what gathers while the one before is on its way; nothing of it is lost or out of order."""
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_events=20_000, task_event_bytes=64_000_000))
    limits = ClientLimits(task_output_bytes=most_bytes)
    worker = Agent("worker", bus=bus.address, limits=limits)

    @worker.on_delegate
    async def work(task: TaskContext) -> None:
        for number in range(3_000):
            await task.output(f"{number:05}" + "." * dots)
            await task.progress(number / 3_000)

    async with worker, Agent("boss", bus=bus.address) as boss:
        task = await boss.delegate("worker")
        await task.result()
        events = await events_of(task)
        told = [event.text[:5] for event in events if event.kind is TaskEventKind.OUTPUT]
        assert told == [f"{number:05}" for number in range(3_000)]
        progress = [event.progress for event in events if event.kind is TaskEventKind.PROGRESS]
        assert progress == sorted(progress)
        assert progress[-1] == 2_999 / 3_000


async def test_what_is_told_last_arrives_before_the_end(boss: Agent, worker: Agent) -> None:
    """A handler that returns while a report is on its way must not overtake it."""

    @worker.on_delegate
    async def work(task: TaskContext) -> None:
        await task.progress(0.5)
        for _ in range(task.parameters["turns"]):
            await asyncio.sleep(0)
        await task.output("the last words")

    async with worker:
        for turns in range(40):
            events = await events_of(await boss.delegate("worker", parameters={"turns": turns}))
            assert [event.text for event in events if event.text] == ["the last words"]
            assert [event.progress for event in events if event.progress] == [0.5]
            assert events[-1].state is TaskState.COMPLETED


async def test_parts_of_a_task_carry_where_they_come_from(boss: Agent, worker: Agent, agents: Any) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> Any:
        part = await task.delegate("helper", "Part", {"n": 1}, task_id="part")
        return await part.result()

    helper = await agents("helper")

    @helper.on_delegate
    async def help_out(task: TaskContext) -> Any:
        return [list(task.task.parent), list(task.task.root), task.task.depth, int(task.task.priority)]

    async with worker:
        task = await boss.delegate("worker", priority=Priority.HIGH)
        own = ["boss@local", task.task_id]
        assert await task.result() == [own, own, 2, int(Priority.HIGH)]


async def test_chain_that_is_too_long_ends(boss: Agent, worker: Agent) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> int:
        try:
            return await (await task.delegate("worker")).result()
        except PreconditionFailed:
            return task.task.depth

    async with worker:
        assert await (await boss.delegate("worker")).result() == 8


async def test_operator_follows_a_task_without_being_an_agent(bus: Any, boss: Agent, worker: Agent) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        return await task.ask("Name?")

    async with worker, Operator(bus.address) as operator:
        made = await boss.delegate("worker")
        task = operator.task(made.task_id, "boss")
        async with contextlib.aclosing(task.events()) as events:
            async for event in events:
                if event.question:
                    await task.answer("operator")
        assert await task.result() == "operator"


async def test_cancelled_task_raises_for_the_delegator(boss: Agent, worker: Agent) -> None:
    handler = Worker()
    worker.on_delegate(handler)
    async with worker:
        task = await boss.delegate("worker")
        context = await handler.runs()
        await task.cancel("changed my mind")
        with pytest.raises(TaskCancelled, match="changed my mind"):
            await task.result()
        assert context.cancelled
        assert context.cancel_reason == "changed my mind"


async def test_expired_task_raises_for_the_delegator(boss: Agent, worker: Agent) -> None:
    handler = Worker()
    worker.on_delegate(handler)
    async with worker:
        task = await boss.delegate("worker", deadline=0.3)
        with pytest.raises(TaskExpired):
            await task.result()
        await until(lambda: handler.cancelled)
