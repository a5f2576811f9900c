"""Handlers that give their task back, and agents that close with tasks in hand: who goes on, with what, and how often."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from task_workers import Worker
from waiting import WAIT, until

from gagent_grpc import (
    Agent,
    BlockingTaskContext,
    BusLimits,
    ClientLimits,
    OnExecutorLost,
    PreconditionFailed,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskState,
)

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, retry_delay=0.05, connect_timeout=2.0)
REDELIVER = OnExecutorLost.REDELIVER


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


def provider(bus: Any, name: str, handler: Any, **limits: Any) -> Agent:
    settings = {"initial_backoff": 0.02, "max_backoff": 0.1, "connect_timeout": 2.0, **limits}
    agent = Agent(name, bus=bus.address, services=["work"], limits=ClientLimits(**settings))
    agent.on_delegate(handler)
    return agent


async def outcomes(task: Any) -> list[tuple[str, str]]:
    return [(one.executor, one.outcome) for one in (await task.get()).attempts]


async def test_handler_that_gives_its_task_back_is_cancelled_and_another_agent_goes_on(bus: Any, boss: Agent) -> None:
    ended: list[str] = []
    helper = Worker()

    async def declines(task: TaskContext) -> str:
        await task.output("first part")
        await task.save({"page": 3})
        try:
            await task.release("out of quota")
        except Exception:
            ended.append("an exception that a handler catches")
        finally:
            ended.append("cleaned up")
        return "never"

    async with provider(bus, "first", declines):
        task = await boss.delegate("role:work")
        # The first one is asked again until there is another one.
        await until(lambda: ended)
        helper.go_on.set()
        async with provider(bus, "second", helper):
            assert (await task.result())["attempt"] >= 2
        found = await outcomes(task)
        assert found[0] == ("first@local", "released: out of quota")
        assert found[-1] == ("second@local", "completed")
        assert helper.contexts[0].checkpoint == {"page": 3}
        assert set(ended) == {"cleaned up"}
        texts = [event.text async for event in task.events() if event.text]
        assert texts == ["first part"] * (len(found) - 1)


async def test_whatever_a_handler_comes_to_after_it_gave_its_task_back_is_nobodys(bus: Any, boss: Agent) -> None:
    attempts: list[int] = []

    async def work(task: TaskContext) -> Any:
        attempts.append(task.attempt)
        if task.attempt == 1:
            try:
                await task.release()
            except asyncio.CancelledError:
                return "too late"
        return task.attempt

    async with provider(bus, "worker", work):
        task = await boss.delegate("worker")
        assert await task.result() == 2
        assert attempts == [1, 2]


async def test_part_of_a_handler_may_give_the_task_back(bus: Any, boss: Agent) -> None:
    left = asyncio.Event()

    async def work(task: TaskContext) -> Any:
        if task.attempt > 1:
            return "done"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(task.release("not today"))
                group.create_task(asyncio.Event().wait())
        finally:
            left.set()

    async with provider(bus, "worker", work):
        task = await boss.delegate("worker")
        assert await task.result() == "done"
        assert left.is_set()


async def test_thread_gives_its_task_back(bus: Any, boss: Agent) -> None:
    cleaned = threading.Event()

    def work(task: BlockingTaskContext) -> Any:
        if task.attempt == 1:
            task.save([1])
            try:
                task.release("busy")
            finally:
                cleaned.set()
        return task.checkpoint

    async with provider(bus, "worker", work):
        task = await boss.delegate("worker")
        assert await task.result() == [1]
        assert cleaned.is_set()
        assert await outcomes(task) == [("worker@local", "released: busy"), ("worker@local", "completed")]


async def test_task_that_is_called_off_is_not_given_back(bus: Any, boss: Agent) -> None:
    asked = asyncio.Event()

    async def work(task: TaskContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asked.set()
            await task.release("let others")
            raise

    async with provider(bus, "worker", work) as worker:
        task = await boss.delegate("worker")
        await until(lambda: worker._executor.working)
        await until(lambda: _is(task, TaskState.ACCEPTED))
        await task.cancel("enough")
        with pytest.raises(TaskCancelled, match="enough"):
            await task.result()
        assert asked.is_set()


async def _is(task: Any, state: TaskState) -> bool:
    return (await task.get()).state is state


async def test_attempt_that_is_over_is_not_given_back(bus: Any, boss: Agent) -> None:
    contexts: list[TaskContext] = []

    async def work(task: TaskContext) -> str:
        contexts.append(task)
        return "done"

    async with provider(bus, "worker", work):
        assert await (await boss.delegate("worker")).result() == "done"
        with pytest.raises(PreconditionFailed, match="over"):
            await contexts[0].release()


async def test_agent_that_closes_gives_back_what_may_be_delivered_again_and_fails_the_rest(
    bus: Any, boss: Agent
) -> None:
    first, second = Worker(), Worker()
    second.go_on.set()
    closing = provider(bus, "first", first)
    async with closing:
        again = await boss.delegate("role:work", on_executor_lost=REDELIVER, max_attempts=1)
        once = await boss.delegate("role:work")
        await first.runs(2)
        async with provider(bus, "second", second):
            await closing.aclose(grace=0)
            # Long before a lease ends, which is thirty seconds.
            assert await again.result() == {"attempt": 2}
            with pytest.raises(TaskFailed, match="first was closed"):
                await once.result()
            assert await outcomes(again) == [
                ("first@local", "released: first was closed"),
                ("second@local", "completed"),
            ]
            assert first.cancelled == 2


async def test_agent_that_closes_gives_back_what_it_has_not_begun(bus: Any, boss: Agent) -> None:
    first, second = Worker(), Worker()
    second.go_on.set()
    closing = provider(bus, "first", first, task_concurrency=1)
    async with closing:
        tasks = [await boss.delegate("role:work") for _ in range(40)]
        await first.runs(1)
        # The rest waits there, unacknowledged; no policy is needed to let others do what nobody has begun.
        await until(lambda: len(closing._executor._waiting) == 39)
        async with provider(bus, "second", second):
            await closing.aclose(grace=0)
            with pytest.raises(TaskFailed, match="first was closed"):
                await tasks[0].result()
            assert [await task.result() for task in tasks[1:]] == [{"attempt": 2}] * 39
            assert len(first.contexts) == 1


async def test_task_of_a_named_agent_that_closes_waits_for_its_return(buses: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, resume_grace=0.2, task_lease=0.5))
    first, second = Worker(), Worker()
    second.go_on.set()
    async with Agent("boss", bus=bus.address, limits=QUICK) as boss:
        async with provider(bus, "worker", first, task_concurrency=1) as closing:
            tasks = [await boss.delegate("worker", on_executor_lost=REDELIVER) for _ in range(3)]
            await first.runs(1)
            await closing.aclose(grace=0)
        # Away for longer than a lost agent has, and than a lease.
        clock = asyncio.get_running_loop().time
        gone = clock()
        await until(lambda: clock() - gone > 1.2 and bus.platform.tasks.table.counts.leases == 0)
        assert [(await task.get()).state for task in tasks] == [TaskState.SUBMITTED] * 3
        async with provider(bus, "worker", second):
            assert [await task.result() for task in tasks] == [{"attempt": 2}] * 3


WORKER = """
    import asyncio, signal, sys
    from gagent_grpc import Agent

    worker = Agent(sys.argv[2], bus=sys.argv[1], services=["work"])

    @worker.on_delegate
    async def work(task):
        if task.checkpoint is None:
            await task.save("half")
            print("half", flush=True)
            await asyncio.Event().wait()
        return [task.checkpoint, task.attempt]

    async def main():
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
        async with worker:
            await asked.wait()
            await worker.aclose(grace=0.2)

    asyncio.run(main())
"""


async def test_worker_that_is_terminated_hands_its_task_on(bus: Any, boss: Agent, tmp_path: Any) -> None:
    """SIGTERM of a process, as a supervisor sends it: the next worker goes on, and nothing counts as lost."""
    first = await _program(bus, "first", tmp_path)
    try:
        await until(lambda: _offered(boss, 1))
        task = await boss.delegate("role:work", on_executor_lost=REDELIVER, max_attempts=1)
        assert first.stdout is not None
        assert await first.stdout.readline() == b"half\n"
        second = await _program(bus, "second", tmp_path)
        try:
            await until(lambda: _offered(boss, 2))
            first.send_signal(signal.SIGTERM)
            assert await task.result() == ["half", 2]
            assert await outcomes(task) == [
                ("first@local", "released: first was closed"),
                ("second@local", "completed"),
            ]
            assert await first.wait() == 0
        finally:
            await _end(second)
    finally:
        await _end(first)


async def _offered(agent: Agent, count: int) -> bool:
    return len(await agent.df.search_all("work")) == count


async def _program(bus: Any, name: str, folder: Any) -> asyncio.subprocess.Process:

    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(WORKER),
        bus.address,
        name,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    assert process.stdout is not None
    await process.stdout.read()
    await process.wait()
