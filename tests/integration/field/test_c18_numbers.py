"""C18: numbers that change on the way. Python's legs: an agent, an agent of requests alone, and a script behind its lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from script_agents import Bridged, script_file
from waiting import WAIT

from gagent_grpc import Agent, Received, TaskContext, TaskFailed, TaskRejected
from gagent_grpc.bridge.supervisor import ScriptAgent

ORDER = {
    "limit": 3,
    "ratio": 3.0,
    "ticket": 9007199254740993,
    "neg": -0.5,
    "flags": [True, None, ""],
    "empty": {},
    "list": [],
}

ECHO = """
    import json, sys

    for line in sys.stdin:
        event = json.loads(line)
        if event["event"] == "stop":
            break
        if event["event"] != "message":
            print('{"action": "noop"}', flush=True)
            continue
        msg = event["msg"]
        told = {
            "performative": "inform",
            "language": "json",
            "content": json.dumps({"content": json.loads(msg["content"]), "keys": sorted(msg)}),
        }
        print(json.dumps({"action": "send", "to": msg["sender"], "msg": told}), flush=True)
"""
"""Knows nothing but the lines: it sends back what it was sent, and which keys there were."""


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


async def test_c18_values_keep_their_types_through_an_agent(bus: Any) -> None:
    async with Agent("worker", bus=bus.address) as worker, Agent("boss", bus=bus.address) as boss:

        @worker.on_delegate
        async def work(task: TaskContext) -> Any:
            await task.save(task.parameters)
            return [task.parameters, await task.ask("What?")]

        task = await boss.delegate("worker", "echo", ORDER)
        async for event in task.events():
            if event.question:
                await task.answer(ORDER)
        assert same(await task.result(), [ORDER, ORDER])
        assert same((await task.get()).checkpoint, ORDER)
        assert same((await task.get()).parameters, ORDER)


async def test_c18_values_keep_their_types_through_an_agent_of_requests(bus: Any) -> None:
    got: list[Received] = []
    async with Agent("worker", bus=bus.address) as worker, Agent("boss", bus=bus.address) as boss:

        @worker.on("request")
        async def answer(message: Received) -> None:
            got.append(message)
            if message.content == "no":
                await worker.reply(message, "refuse", "not today")
            elif message.content == "broken":
                await worker.reply(message, "agree")
                await worker.reply(message, "failure", "it broke")
            elif message.language is None:
                await worker.reply(message, "inform", f"done: {message.content}")
            else:
                parameters = json.loads(message.content)["parameters"]
                await worker.reply(message, "inform", json.dumps(parameters), language="json")

        task = await boss.delegate("worker", "echo", ORDER)
        assert same(await task.result(), ORDER)
        (request,) = got
        assert (request.protocol, request.conversation_id) == ("fipa-request", task.task_id)
        assert request.user_parameters["X-task-id"] == task.task_id
        assert json.loads(request.content)["description"] == "echo"
        # Text stays text, also where it looks like a number.
        assert await (await boss.delegate("worker", "3")).result() == "done: 3"
        with pytest.raises(TaskRejected, match="not today"):
            await (await boss.delegate("worker", "no")).result()
        with pytest.raises(TaskFailed, match="it broke"):
            await (await boss.delegate("worker", "broken")).result()


async def test_c18_values_keep_their_types_through_a_script(bus: Any, tmp_path: Path) -> None:
    script = script_file(tmp_path, ECHO, "echo", ".py")
    async with contextlib.AsyncExitStack() as stack:
        boss = await stack.enter_async_context(Agent("boss", bus=bus.address))
        bridged = Bridged(ScriptAgent(script, bus=bus.address))
        stack.push_async_callback(bridged.aclose)
        await bridged.ready()
        result = await (await boss.delegate("echo", "Repeat it", ORDER)).result()
    assert same(result["content"], {"description": "Repeat it", "parameters": ORDER})
    # What was not said is not there.
    assert {"protocol", "conversation_id", "X-task-id", "language"} <= set(result["keys"])
    assert not {"encoding", "reply_by", "reply_to", "receivers"} & set(result["keys"])
