"""Delegates to whoever offers `count-words`, follows the tasks, and is a worker itself: its own task is that of others.

    python task_worker.py                  # one or several
    python task_planner.py
    gagent task delegate task_planner "Count" --parameters '{"texts": ["one two", "three", "four"]}' --wait

It cuts the texts in two parts and delegates each. The parts come of its own task: they end when it is cancelled.
"""

import asyncio
import os

from gagent_grpc import Agent, TaskEventKind, TaskRefused

planner = Agent(os.environ.get("GAGENT_NAME", "task_planner"), services=["plan-words"])


@planner.on_delegate
async def plan(task):
    texts = task.parameters.get("texts")
    if not texts:
        raise TaskRefused("expected the parameter texts: a list of texts")
    half = (len(texts) + 1) // 2
    parts = [part for part in (texts[:half], texts[half:]) if part]
    done = [0.0] * len(parts)

    async def follow(number, part):
        # The same ids again when another planner goes on after this one: it finds what is done.
        handle = await task.delegate(
            "role:count-words", f"Part {number + 1}", {"texts": part}, task_id=f"{task.task_id}-{number + 1}"
        )
        async for event in handle.events():
            if event.kind is TaskEventKind.PROGRESS:
                done[number] = event.progress
                await task.progress(sum(done) / len(done), f"part {number + 1}: {event.note}")
        return await handle.result()

    results = await asyncio.gather(*(follow(number, part) for number, part in enumerate(parts)))
    return {"words": sum(result["words"] for result in results)}


if __name__ == "__main__":
    asyncio.run(planner.run())
