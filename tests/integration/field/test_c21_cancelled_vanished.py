"""C21: cancelled, vanished, forgotten. Every task reaches its end within a bound, at both sides the same one, and says why."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from proxy import proxy_to
from script_agents import Bridged, script_file
from waiting import WAIT, until

from gagent_grpc import (
    Agent,
    AMSAgentDescription,
    BusLimits,
    ClientLimits,
    LifeCycleState,
    OnExecutorLost,
    Operator,
    Received,
    TaskCancelled,
    TaskContext,
    TaskExpired,
    TaskNotFound,
    TaskState,
)
from gagent_grpc.bridge.supervisor import ScriptAgent

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, connect_timeout=2.0)
SOON = BusLimits(drain_grace=1.0, task_cancel_grace=0.3, task_lease=0.6, resume_grace=0.5)
"""Thirty seconds of grace and of lease, scaled."""


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


class Executor:
    """An agent that works on tasks, and answers requests beside them; the description says how it works."""

    def __init__(self, address: str, name: str = "worker") -> None:
        self.agent = Agent(name, bus=address, limits=QUICK)
        self.agent.on_delegate(self.work)
        self.agent.on("request")(self.answer)
        self.contexts: list[TaskContext] = []
        self.cancelled: list[str] = []
        self.let_go = asyncio.Event()

    async def work(self, task: TaskContext) -> Any:
        self.contexts.append(task)
        if task.description == "quick":
            return "done"
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(task.task_id)
            if task.description != "stubborn":
                raise
            await self.let_go.wait()
        return "a result that nobody wants any more"

    async def answer(self, message: Received) -> str:
        return "still here"

    async def runs(self, count: int = 1) -> TaskContext:
        await until(lambda: len(self.contexts) >= count)
        return self.contexts[count - 1]


@contextlib.asynccontextmanager
async def opened(bus: Any) -> AsyncIterator[tuple[Executor, Agent]]:
    executor = Executor(bus.address)
    async with executor.agent, Agent("boss", bus=bus.address, limits=QUICK) as boss:
        try:
            yield executor, boss
        finally:
            executor.let_go.set()


async def is_of_use(executor: Executor, boss: Agent) -> None:
    """Make sure that an executor takes requests and tasks as before."""
    assert (await boss.request("worker", "?")).content == "still here"
    assert await (await boss.delegate("worker", "quick")).result() == "done"


async def test_c21a_executor_that_obeys_cancels_the_task(buses: Any) -> None:
    async with opened(await buses(limits=SOON)) as (executor, boss):
        task = await boss.delegate("worker", "obey")
        context = await executor.runs()
        await task.cancel("no longer needed")
        with pytest.raises(TaskCancelled, match="no longer needed"):
            await task.result()
        # At the executor: its handler was told, and nothing of it is left.
        assert executor.cancelled == [task.task_id]
        assert context.cancelled
        await until(lambda: not executor.agent._executor.working)
        assert [one.outcome for one in (await task.get()).attempts] == ["cancelled"]
        await is_of_use(executor, boss)


async def test_c21b_task_is_cancelled_without_an_executor_that_ignores_it(buses: Any) -> None:
    async with opened(await buses(limits=SOON)) as (executor, boss):
        task = await boss.delegate("worker", "stubborn")
        context = await executor.runs()
        assert not (await task.cancel()).state.final
        with pytest.raises(TaskCancelled, match="did not obey"):
            await task.result()
        assert executor.cancelled == [task.task_id]
        await is_of_use(executor, boss)
        executor.let_go.set()
        # What it comes to in the end changes nothing.
        await until(lambda: not executor.agent._executor.working)
        assert context.cancelled
        assert (await task.get()).state is TaskState.CANCELLED
        assert (await task.get()).result is None


BLOCKED = """
    import gagent_py

    class Model(gagent_py.Agent):
        def on_message(self, msg):
            if msg.performative != "request":
                return None
            if msg.content == "slow":
                # A call that does not return before the test opens the other end.
                with open(self.system_prompt) as call:
                    call.read()
            return self.reply(msg, "inform", "answer to " + msg.content)

    Model().run()
"""


async def test_c21c_script_that_is_blocked_in_a_call_is_given_up_and_answers_the_next(
    buses: Any, tmp_path: Path
) -> None:
    call = tmp_path / "call"
    os.mkfifo(call)
    bus = await buses(limits=SOON)
    script = script_file(tmp_path, BLOCKED, "model", ".py")
    async with contextlib.AsyncExitStack() as stack:
        boss = await stack.enter_async_context(Agent("boss", bus=bus.address, limits=QUICK))
        bridged = Bridged(ScriptAgent(script, bus=bus.address, system_prompt=str(call)))
        stack.push_async_callback(bridged.aclose)
        await bridged.ready()
        task = await boss.delegate("model", "slow")
        # Opened for writing only when the script reads: it is in its call.
        descriptor = await asyncio.to_thread(os.open, call, os.O_WRONLY)
        try:
            await task.cancel("too slow")
            with pytest.raises(TaskCancelled):
                await task.result()
        finally:
            os.close(descriptor)
        assert await (await boss.delegate("model", "next")).result() == "answer to next"
        assert (await boss.request("model", "more")).content == "answer to more"
        assert (await task.get()).state is TaskState.CANCELLED


async def test_c21d_task_of_a_dead_executor_is_cancelled(buses: Any) -> None:
    bus = await buses(limits=SOON)
    async with proxy_to(bus.address) as proxy, Agent("boss", bus=bus.address, limits=QUICK) as boss:
        executor = Executor(proxy.address)
        async with executor.agent:
            task = await boss.delegate("worker", "obey", on_executor_lost=OnExecutorLost.REDELIVER)
            await executor.runs()
            proxy.cut(admit=False)
            await task.cancel()
            with pytest.raises(TaskCancelled):
                await task.result()
            assert (await task.get()).reason
            proxy.admit()
            # When it comes back it hears so.
            await until(lambda: executor.cancelled)
            await is_of_use(executor, boss)


async def test_c21e_task_that_is_done_stays_done(buses: Any) -> None:
    async with opened(await buses(limits=SOON)) as (executor, boss):
        task = await boss.delegate("worker", "quick")
        assert await task.result() == "done"
        assert (await task.cancel("too late")).state is TaskState.COMPLETED
        assert await boss.task(task.task_id).result() == "done"
        assert executor.cancelled == []
        await is_of_use(executor, boss)


async def test_c21f_result_waits_for_a_delegator_that_was_away(buses: Any) -> None:
    bus = await buses(limits=SOON)
    executor = Executor(bus.address)
    async with (
        proxy_to(bus.address) as proxy,
        executor.agent,
        Operator(bus.address) as operator,
        Agent("boss", bus=proxy.address, limits=QUICK) as boss,
    ):
        task = await boss.delegate("worker", "slow")
        waiting = asyncio.create_task(task.result())
        await executor.runs()
        proxy.cut(admit=False)
        executor.let_go.set()
        # It ends while its delegator is away, and for longer than the bus waits for a session.
        assert await operator.task(task.task_id, "boss").wait()
        await until(lambda: not bus.platform.ams.get("boss").session)
        assert not waiting.done()
        proxy.admit()
        assert await waiting == "a result that nobody wants any more"


async def test_c21g_result_that_nobody_fetches_is_removed_after_its_time(buses: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_retention=0.3))
    executor = Executor(bus.address)
    async with executor.agent, Operator(bus.address) as operator:
        async with Agent("boss", bus=bus.address, limits=QUICK) as boss:
            task = await boss.delegate("worker", "quick")
        kept = await operator.task(task.task_id, "boss").wait()
        assert (kept.state, kept.result) == (TaskState.COMPLETED, "done")
        assert (kept.forgotten_at - kept.updated_at).total_seconds() == pytest.approx(0.3)
        await until(lambda: _is_gone(operator, task.task_id))
        assert await operator.tasks() == []


async def _is_gone(operator: Operator, task_id: str) -> bool:
    try:
        await operator.task(task_id, "boss").get()
    except TaskNotFound:
        return True
    return False


async def test_c21h_garbage_collection_takes_no_task_away(buses: Any) -> None:
    bus = await buses()
    limits = ClientLimits(task_concurrency=500)
    worker = Agent("worker", bus=bus.address, limits=limits)
    waiting: list[weakref.ref[asyncio.Future[None]]] = []

    @worker.on_delegate
    async def work(task: TaskContext) -> int:
        # Held by nobody but the handler, which nobody holds but whoever runs it.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(weakref.ref(future))
        await future
        return task.parameters["number"]

    async with worker, Agent("boss", bus=bus.address) as boss, _collecting() as collected:
        tasks = await asyncio.gather(
            *(boss.delegate("worker", "one of many", {"number": number}) for number in range(500))
        )
        results = [asyncio.create_task(task.result()) for task in tasks]
        await until(lambda: len(waiting) == 500)
        # Also while all of it is under way: handlers, reports, watches, and whoever waits for the results.
        before = len(collected)
        await until(lambda: len(collected) >= before + 5)
        for one in waiting:
            future = one()
            assert future is not None, "a handler is gone"
            future.set_result(None)
        assert await asyncio.gather(*results) == list(range(500))


@contextlib.asynccontextmanager
async def _collecting() -> AsyncIterator[list[int]]:
    """Collect garbage every 10 ms for as long as the block lasts; the list grows with each time.

    The bus and both agents share this loop: a collection is followed by a longer pause, so that they have most of the time.
    """
    collected: list[int] = []

    async def collect() -> None:
        while True:
            began = time.perf_counter()
            collected.append(gc.collect())
            await asyncio.sleep(max(0.01, 4 * (time.perf_counter() - began)))

    # What was there before the test is nobody's garbage in it, and takes long to look through.
    gc.collect()
    gc.freeze()
    collecting = asyncio.create_task(collect())
    try:
        yield collected
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        gc.unfreeze()


async def test_c21i_task_ends_with_its_deadline(buses: Any) -> None:
    async with opened(await buses(limits=SOON)) as (executor, boss):
        task = await boss.delegate("worker", "obey", deadline=0.3)
        context = await executor.runs()
        with pytest.raises(TaskExpired, match="deadline"):
            await task.result()
        await until(lambda: executor.cancelled == [task.task_id])
        assert context.cancelled
        assert [one.outcome for one in (await task.get()).attempts] == ["expired"]
        await is_of_use(executor, boss)


async def test_c21j_children_are_cancelled_with_their_parent(buses: Any) -> None:
    bus = await buses(limits=SOON)
    executor = Executor(bus.address)
    planner = Agent("planner", bus=bus.address, limits=QUICK)
    handed: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    @planner.on_delegate
    async def plan(task: TaskContext) -> Any:
        parts = [await task.delegate("worker", "obey") for _ in range(2)]
        handed.set_result(parts)
        return [await part.result() for part in parts]

    async with executor.agent, planner, Agent("boss", bus=bus.address, limits=QUICK) as boss:
        task = await boss.delegate("planner", "plan")
        parts = await handed
        await executor.runs(2)
        await task.cancel("the plan is off")
        with pytest.raises(TaskCancelled, match="the plan is off"):
            await task.result()
        for part in parts:
            with pytest.raises(TaskCancelled, match="parent"):
                await part.result()
        await until(lambda: len(executor.cancelled) == 2)
        assert set(executor.cancelled) == {part.task_id for part in parts}
        await is_of_use(executor, boss)


# ---- processes that are killed -------------------------------------------------------------------------------------------------

WORKER = """
    import asyncio, sys
    from gagent_grpc import Agent, ClientLimits

    worker = Agent("worker", bus=sys.argv[1], limits=ClientLimits(initial_backoff=0.02, max_backoff=0.1))

    @worker.on_delegate
    async def work(task):
        done = task.checkpoint or []
        for page in range(len(done) + 1, 5):
            done.append(page)
            await task.output(f"page {page} by attempt {task.attempt}")
            await task.save(done)
            await task.progress(page / 4)
            if page == 2 and task.attempt == 1:
                print("half", flush=True)
                await asyncio.Event().wait()
        return {"pages": done, "attempt": task.attempt}

    asyncio.run(worker.run())
"""

BOSS = """
    import asyncio, sys
    from gagent_grpc import Agent, OnExecutorLost

    async def main():
        async with Agent("boss", bus=sys.argv[1]) as boss:
            await boss.delegate("worker", "Four pages", task_id="t1", on_executor_lost=OnExecutorLost.REDELIVER)
            print("delegated", flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


async def test_c21_executor_that_is_killed_goes_on_from_its_checkpoint(buses: Any, programs: Any) -> None:
    bus = await buses(limits=SOON)
    async with Agent("boss", bus=bus.address, limits=QUICK) as boss:
        async with programs(WORKER, bus.address) as first:
            await until(lambda: _is_there(boss))
            task = await boss.delegate("worker", "Four pages", on_executor_lost=OnExecutorLost.REDELIVER)
            assert await first.line() == "half"
            await first.kill()
        async with programs(WORKER, bus.address):
            assert await task.result() == {"pages": [1, 2, 3, 4], "attempt": 2}
        attempts = [(one.number, one.executor, one.outcome) for one in (await task.get()).attempts]
        assert attempts == [(1, "worker@local", "executor lost"), (2, "worker@local", "completed")]
        texts = [event.text async for event in task.events() if event.text]
        assert texts == [f"page {page} by attempt {1 if page < 3 else 2}" for page in range(1, 5)]


async def _is_there(agent: Agent) -> bool:
    return bool(await agent.ams.search(AMSAgentDescription(name="worker", state=LifeCycleState.ACTIVE)))


async def test_c21_task_goes_on_when_the_bus_is_killed(bus_processes: Any) -> None:
    half, go_on = asyncio.Event(), asyncio.Event()
    async with bus_processes(task_lease=5.0) as bus:
        worker = Agent("worker", bus=bus.address, limits=QUICK)

        @worker.on_delegate
        async def work(task: TaskContext) -> Any:
            for page in range(1, 5):
                await task.output(f"page {page}")
                await task.save(page)
                if page == 2:
                    half.set()
                    await go_on.wait()
            return {"attempt": task.attempt, "ratio": 3.0}

        async with worker, Agent("boss", bus=bus.address, limits=QUICK) as boss:
            task = await boss.delegate("worker", "Four pages")
            watching = asyncio.create_task(_all_events(task))
            waiting = asyncio.create_task(task.result())
            await half.wait()
            bus.kill()
            await bus.wait()
            go_on.set()
            await bus.start()
            assert repr(await waiting) == repr({"attempt": 1, "ratio": 3.0})
            events = await watching
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert [event.text for event in events if event.text] == [f"page {page}" for page in range(1, 5)]


async def _all_events(task: Any) -> list[Any]:
    return [event async for event in task.events()]


async def test_c21_delegator_that_was_killed_asks_again_by_id(buses: Any, programs: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, probe_timeout=0.2))
    executor = Executor(bus.address)
    async with executor.agent:
        async with programs(BOSS, bus.address) as first:
            assert await first.line() == "delegated"
            await executor.runs()
            await first.kill()
        executor.let_go.set()
        async with Agent("boss", bus=bus.address, limits=QUICK) as boss:
            assert await boss.task("t1").result() == "a result that nobody wants any more"
            # Delegated again by a program that knows no better, it is the same task.
            again = await boss.delegate("worker", "Four pages", task_id="t1", on_executor_lost=OnExecutorLost.REDELIVER)
            assert await again.result() == "a result that nobody wants any more"
        assert len(executor.contexts) == 1
