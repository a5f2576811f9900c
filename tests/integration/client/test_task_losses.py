"""Executors that are lost, cut off or closed, delegators whose connections are lost, and more tasks than an agent works on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from proxy import Proxy, proxy_to
from task_workers import Worker, events_of
from waiting import WAIT, settled, until

from gagent_grpc import (
    Agent,
    BlockingTaskContext,
    BusLimits,
    ClientLimits,
    OnExecutorLost,
    PreconditionFailed,
    Received,
    TaskContext,
    TaskEvent,
    TaskEventKind,
    TaskFailed,
    TaskKey,
    TaskState,
)

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, retry_delay=0.05, connect_timeout=2.0)


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


async def _is(task: Any, state: TaskState) -> bool:
    return (await task.get()).state is state


# ---- many at a time ----------------------------------------------------------------------------------------------------------


async def test_what_is_beyond_the_bound_waits_and_other_mail_does_not(bus: Any, boss: Agent) -> None:
    agent = Agent("worker", bus=bus.address, limits=ClientLimits(task_concurrency=2))
    worker = Worker()
    agent.on_delegate(worker)

    @agent.on("request")
    async def answer(message: Received) -> str:
        return "still here"

    async with agent:
        tasks = [await boss.delegate("worker", str(number)) for number in range(6)]
        await worker.runs(2)
        assert (await boss.request("worker", "?")).content == "still here"
        assert len(worker.contexts) == 2
        states = [(await task.get()).state for task in tasks]
        assert states[2:] == [TaskState.SUBMITTED] * 4
        await until(lambda: bus.platform.ams.get("worker").mailbox.messages == 4)
        worker.go_on.set()
        assert [await task.result() for task in tasks] == [{"attempt": 1}] * 6
        assert [context.description for context in worker.contexts] == [str(number) for number in range(6)]
    await settled(bus, "worker")


# ---- lost connections --------------------------------------------------------------------------------------------------------


async def test_watcher_that_comes_back_goes_on_with_the_next_event(
    bus: Any, agents: Any, worker: Agent, proxy: Proxy
) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> None:
        for number in range(30):
            await task.output(str(number))
            if number in (5, 15):
                await task.ask("Go on?")

    boss = await agents("boss", bus=proxy.address)
    async with worker:
        task = await boss.delegate("worker")
        seen: list[TaskEvent] = []
        async for event in task.events():
            seen.append(event)
            if event.sequence == 10:
                before = proxy.connections
                proxy.cut()
                await until(lambda before=before: proxy.connections > before)
            if event.question:
                await until(lambda: _answered(task))
        assert [event.sequence for event in seen] == list(range(1, seen[-1].sequence + 1))
        assert [event.text for event in seen if event.kind is TaskEventKind.OUTPUT] == [str(n) for n in range(30)]
        # By hand, as a program would that begins anew.
        assert (await anext(task.events(after=10))).sequence == 11


async def _answered(task: Any) -> bool:
    try:
        await task.answer(True)
    except PreconditionFailed:
        # It was answered, and the answer of the bus was lost.
        return True
    except Exception:
        return False
    return True


async def test_result_survives_lost_connections(boss: Agent, agents: Any, worker: Agent, proxy: Proxy) -> None:
    handler = Worker()
    worker.on_delegate(handler)
    far = await agents("far", bus=proxy.address)
    async with worker:
        task = await far.delegate("worker")
        waiting = [asyncio.create_task(task.result()) for _ in range(3)]
        await handler.runs()
        for _ in range(3):
            before = proxy.connections
            proxy.cut()
            await until(lambda before=before: proxy.connections > before)
        handler.go_on.set()
        assert await asyncio.gather(*waiting) == [{"attempt": 1}] * 3


async def test_what_was_told_when_the_connection_was_lost_is_told_once(bus: Any, boss: Agent, proxy: Proxy) -> None:
    """The report arrives and its answer does not: it is not told again."""
    worker = Agent("worker", bus=proxy.address, limits=QUICK)
    ready, told = asyncio.Event(), asyncio.Event()

    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        await task.output("first")
        await task.reports.flush()
        ready.set()
        await told.wait()
        await task.output("second")
        return await task.ask("Which?")

    async with worker:
        task = await boss.delegate("worker")
        await ready.wait()
        proxy.silence("out")
        told.set()
        await until(lambda: _is(task, TaskState.INPUT_REQUIRED))
        proxy.cut()
        proxy.speak()
        await task.answer("this")
        assert await task.result() == "this"
        events = await events_of(task)
    assert [event.text for event in events if event.kind is TaskEventKind.OUTPUT] == ["first", "second"]
    assert [event.question for event in events if event.question] == ["Which?"]


async def test_closed_agent_raises_for_whoever_waits(boss: Agent, bus: Any, worker: Agent) -> None:
    handler = Worker()
    worker.on_delegate(handler)
    other = Agent("other", bus=bus.address, limits=QUICK)
    async with worker:
        async with other:
            task = await other.delegate("worker")
            waiting = asyncio.create_task(task.result())
            await handler.runs()
        with pytest.raises(PreconditionFailed, match="closed"):
            await waiting
        with pytest.raises(PreconditionFailed, match=r"not open|closed"):
            await other.delegate("worker")
        handler.go_on.set()
        # Whoever it was that delegated it may ask anew.
        async with other:
            assert await other.task(task.task_id).result() == {"attempt": 1}


# ---- the end of an executor --------------------------------------------------------------------------------------------------


async def test_agent_that_closes_fails_what_it_has_in_hand(boss: Agent, worker: Agent) -> None:
    handler = Worker()
    worker.on_delegate(handler)
    async with worker:
        task = await boss.delegate("worker")
        await handler.runs()
        await worker.aclose(grace=0)
    with pytest.raises(TaskFailed, match="worker was closed"):
        await task.result()
    assert handler.cancelled == 1


async def test_agent_that_closes_lets_a_task_finish_within_its_grace(boss: Agent, worker: Agent) -> None:
    handler = Worker()
    worker.on_delegate(handler)
    async with worker:
        task = await boss.delegate("worker")
        later = await boss.delegate("worker")
        await handler.runs(2)
        closing = asyncio.create_task(worker.aclose())
        await until(lambda: worker._executor._closed)
        third = await boss.delegate("worker")
        handler.go_on.set()
        await closing
    assert await task.result() == await later.result() == {"attempt": 1}
    assert (await third.get()).state is TaskState.SUBMITTED
    async with worker:
        assert await third.result() == {"attempt": 1}


async def test_handler_may_close_its_own_agent(boss: Agent, worker: Agent) -> None:
    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        await task.agent.aclose()
        return "the last one"

    async with worker:
        task = await boss.delegate("worker")
        await worker.wait()
    assert await task.result() == "the last one"


async def test_task_that_is_delivered_again_goes_on_from_its_checkpoint(buses: Any) -> None:
    # A lease that would not end before the test does: the next attempt comes since the first one was given back.
    bus = await buses(limits=BusLimits(drain_grace=1.0))
    handler = Worker()
    saved: list[Any] = []

    async def work(task: TaskContext) -> Any:
        saved.append(task.checkpoint)
        if task.attempt == 1:
            await task.save({"page": 3.0})
            await handler(task)
        return saved

    first = Agent("worker", bus=bus.address, limits=QUICK)
    first.on_delegate(work)
    async with Agent("boss", bus=bus.address, limits=QUICK) as boss:
        async with first:
            task = await boss.delegate("worker", on_executor_lost=OnExecutorLost.REDELIVER)
            await handler.runs()
            await first.aclose(grace=0)
        second = Agent("worker", bus=bus.address, limits=QUICK)
        second.on_delegate(work)
        async with second:
            assert repr(await task.result()) == repr([None, {"page": 3.0}])
        assert [(one.number, one.outcome) for one in (await task.get()).attempts] == [
            (1, "released: worker was closed"),
            (2, "completed"),
        ]


async def test_attempt_that_is_not_in_force_any_more_is_cancelled(buses: Any) -> None:
    """Cut off for longer than its lease, an executor hears that another attempt runs, and stops working on its own."""
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_lease=0.4))
    old, new = Worker(), Worker()
    async with (
        proxy_to(bus.address) as proxy,
        Agent("boss", bus=bus.address, limits=QUICK) as boss,
        Agent("first", bus=proxy.address, services=["work"], limits=QUICK) as first,
    ):
        first.on_delegate(old)
        task = await boss.delegate("role:work", on_executor_lost=OnExecutorLost.REDELIVER)
        context = await old.runs()
        second = Agent("second", bus=bus.address, services=["work"], limits=QUICK)
        second.on_delegate(new)
        async with second:
            proxy.cut(admit=False)
            assert (await new.runs()).attempt == 2
            assert old.cancelled == 0
            proxy.admit()
            await until(lambda: old.cancelled)
            assert context.cancelled
            with pytest.raises(PreconditionFailed):
                await context.progress(0.9)
            new.go_on.set()
            assert await task.result() == {"attempt": 2}
        assert [one.executor for one in (await task.get()).attempts] == ["first@local", "second@local"]


async def test_thread_that_blocks_keeps_its_lease(buses: Any) -> None:
    """The lease of a task whose executor says nothing ends meanwhile, which tells that there was time enough."""
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_lease=0.4))
    blocked, let_go = threading.Event(), threading.Event()
    worker, dead = Agent("worker", bus=bus.address, limits=QUICK), Agent("dead", bus=bus.address, limits=QUICK)

    @worker.on_delegate
    def work(task: BlockingTaskContext) -> str:
        blocked.set()
        assert let_go.wait(WAIT)
        return "done"

    try:
        async with worker, dead, Agent("boss", bus=bus.address, limits=QUICK) as boss:
            # It takes a task up and is never heard of again.
            dead._acp.delegations = lambda job, message: asyncio.sleep(WAIT)
            task = await boss.delegate("worker")
            assert await asyncio.to_thread(blocked.wait, WAIT)
            for _ in range(2):
                silent = await boss.delegate("dead")
                await dead._task_calls.accept(TaskKey("boss@local", silent.task_id), 0)
                with pytest.raises(TaskFailed, match="executor lost"):
                    await silent.result()
            assert (await task.get()).state is TaskState.ACCEPTED
            let_go.set()
            assert await task.result() == "done"
            await dead.aclose(grace=0)
    finally:
        let_go.set()
