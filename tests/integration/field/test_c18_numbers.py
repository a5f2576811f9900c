"""C18: numbers that change on the way. Python's legs: an agent, an agent of requests alone, and a script behind its lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from script_agents import Bridged, script_file
from waiting import WAIT, until

from gagent_grpc import (
    ACLMessage,
    ACPMessage,
    Agent,
    AgentIdentifier,
    Performative,
    Received,
    ReceivedACP,
    TaskContext,
    TaskFailed,
    TaskRejected,
)
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


async def test_c18_values_keep_their_types_through_messages(bus: Any) -> None:
    """The same by a DELEGATE and a RESULT that agents write themselves, as JSON that they read somewhere."""
    text = json.dumps({"type": "delegate", "content": {"task_id": "t", "description": "echo", "parameters": ORDER}})
    results: list[ReceivedACP] = []
    async with Agent("worker", bus=bus.address) as worker, Agent("boss", bus=bus.address) as boss:

        @worker.on_acp("delegate")
        async def work(order: ReceivedACP) -> None:
            result = {"task_id": order.task_id, "status": "completed", "result": order.content["parameters"]}
            await worker.send_acp(order.create_reply("result", result))

        @boss.on_acp("result")
        async def hear(result: ReceivedACP) -> None:
            results.append(result)

        await boss.send_acp(ACPMessage.from_json(text).replace(target="worker"))
        assert same(await boss.task("t").result(), ORDER)
        await until(lambda: results)
        assert same(results[0].content["result"], ORDER)
        assert same((await boss.task("t").get()).parameters, ORDER)


WHOLE = ACLMessage(
    Performative.QUERY_REF,
    receivers=(AgentIdentifier("echo"), AgentIdentifier("clerk")),
    reply_to=(AgentIdentifier("boss"), AgentIdentifier("clerk")),
    content="žluťoučký\u2028kůň",
    language="fipa-sl0",
    encoding="utf-8",
    ontology="parts",
    protocol="fipa-query",
    conversation_id="c-18",
    reply_with="r-18",
    in_reply_to="q-17",
    reply_by=datetime(2091, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
    user_parameters={"X-one": "1", "X-two": "", "X-three": "é"},
)
"""With every parameter."""
BARE = ACLMessage(Performative.INFORM, receivers=(AgentIdentifier("echo"), AgentIdentifier("clerk")), content="")
MIRROR = """
    import json, sys

    for line in sys.stdin:
        event = json.loads(line)
        if event["event"] == "stop":
            break
        if event["event"] != "message":
            print('{"action": "noop"}', flush=True)
            continue
        msg = event["msg"]
        back = {key: value for key, value in msg.items() if key not in ("sender", "receivers")}
        seen = {"performative": "inform", "content": json.dumps(msg)}
        answers = [{"action": "send", "to": "clerk", "msg": one} for one in (back, seen)]
        print(json.dumps(answers), flush=True)
"""
"""Sends what it got to the clerk: as a message of its own, and as it stood in the line."""


@pytest.mark.parametrize("sent", [WHOLE, BARE], ids=["every parameter", "hardly any"])
async def test_c18_every_parameter_passes_through_a_script(bus: Any, tmp_path: Path, sent: ACLMessage) -> None:
    script = script_file(tmp_path, MIRROR, "echo", ".py")
    got: list[Received] = []
    async with contextlib.AsyncExitStack() as stack:
        boss, clerk = Agent("boss", bus=bus.address), Agent("clerk", bus=bus.address)

        @clerk.on()
        async def keep(message: Received) -> None:
            got.append(message)

        for agent in (boss, clerk):
            await stack.enter_async_context(agent)
        bridged = Bridged(ScriptAgent(script, bus=bus.address))
        stack.push_async_callback(bridged.aclose)
        await bridged.ready()
        await boss.send_message(sent)
        await until(lambda: len(got) == 3)
        own = next(one for one in got if one.sender == AgentIdentifier("boss"))
        back, seen = (one for one in got if one.sender == AgentIdentifier("echo"))
    assert own.replace(sender=None).parameters() == sent.parameters()
    # Every parameter came back as it went out; a script's message is for whom the script says.
    passed = {**sent.parameters(), "receivers": back.parameters()["receivers"]}
    assert back.replace(sender=None).parameters() == passed
    assert isinstance(seen.content, str)
    line = json.loads(seen.content)
    # In the line there is what was said, and nothing that was not, but for the five that a simple script finds as texts always.
    assert line["sender"] == "boss"
    assert line["receivers"] == ["echo", "clerk"]
    always = {"conversation_id", "ontology", "language", "reply_with", "in_reply_to"}
    said = {"performative", "sender", "receivers", "content"} | always
    if sent is WHOLE:
        said |= {"reply_to", "encoding", "protocol", "reply_by", "X-one", "X-two", "X-three"}
        assert (line["X-two"], line["reply_to"], line["content"]) == ("", ["boss", "clerk"], WHOLE.content)
    else:
        assert {line[name] for name in always} == {""}
    assert set(line) == said


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
