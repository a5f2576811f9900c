"""Works on tasks for the service `count-words`: counts the words of texts, one after the other, and tells how far it is.

    python task_worker.py
    gagent task delegate role:count-words "Count" --parameters '{"texts": ["one two", "three"]}' --wait

What it has counted is saved after each text, so that the next worker goes on there when this one dies (`--redeliver`).
"""

import asyncio
import os

from gagent_grpc import Agent, TaskRefused

worker = Agent(os.environ.get("GAGENT_NAME", "task_worker"), services=["count-words"])


@worker.on_delegate("count-words")
async def count(task):
    texts = task.parameters.get("texts")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TaskRefused("expected the parameter texts: a list of texts")
    counted = task.checkpoint or []
    for number, text in enumerate(texts[len(counted) :], len(counted) + 1):
        counted.append(len(text.split()))
        await task.output(f"text {number}: {counted[-1]} words\n")
        await task.progress(number / len(texts), f"text {number} of {len(texts)}")
        await task.save(counted)
    return {"words": sum(counted), "counts": counted}


if __name__ == "__main__":
    asyncio.run(worker.run())
