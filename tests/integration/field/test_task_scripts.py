"""The example agents that delegate and work on tasks, as processes of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from script_agents import LIBRARY
from waiting import WAIT, until

from gagent_grpc import Agent, Operator, TaskEventKind, TaskRejected


async def test_planner_cuts_its_task_in_parts_and_workers_report(bus: Any, programs: Any) -> None:
    worker, planner = ((LIBRARY / f"task_{name}.py").read_text() for name in ("worker", "planner"))
    async with (
        asyncio.timeout(3 * WAIT),
        programs(worker, GAGENT_BUS=bus.address, GAGENT_NAME="first"),
        programs(worker, GAGENT_BUS=bus.address, GAGENT_NAME="second"),
        programs(planner, GAGENT_BUS=bus.address),
        Agent("boss", bus=bus.address) as boss,
        Operator(bus.address) as operator,
    ):

        async def are_there() -> bool:
            return len(await boss.df.search_all("count-words")) == 2 and bool(await boss.df.search_all("plan-words"))

        await until(are_there)
        task = await boss.delegate("task_planner", "Count", {"texts": ["one two", "three", "four five six", ""]})
        events = [event async for event in task.events()]
        assert await task.result() == {"words": 6}
        progress = [event.progress for event in events if event.kind is TaskEventKind.PROGRESS]
        assert progress == sorted(progress)
        assert progress[-1] == 1.0
        parts = await operator.tasks(delegator="task_planner")
        assert {part.task_id for part in parts} == {f"{task.task_id}-1", f"{task.task_id}-2"}
        assert {part.executor for part in parts} == {"first@local", "second@local"}
        assert {part.parent for part in parts} == {(await task.get()).key}
        with pytest.raises(TaskRejected, match="texts"):
            await (await boss.delegate("task_planner", "Count")).result()
