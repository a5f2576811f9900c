"""Script agents, which know nothing of ACP, asked in ACP: questions and delegated tasks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from script_agents import ROOT, Bridge
from waiting import WAIT

from gagent_grpc import ACPMessage, ACPService, DelegateMessage

BY_HAND = """
for event in events():
    if event["event"] != "message":
        say(action="noop")
    elif event["msg"]["content"] == "no":
        send(event["msg"]["sender"], "not today", "refuse")
    else:
        send(event["msg"]["sender"], "by hand: " + event["msg"]["content"])
"""


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_script_answers_a_question_in_acp(bus: Any, bridge: Bridge, by_hand: bool) -> None:
    source = BY_HAND if by_hand else ROOT / "agent_scripts" / "python" / "echo.py"
    await bridge(source, name="helper", by_hand=by_hand)
    async with ACPService("planner", bus=bus.address) as planner:
        connection = await planner.connect("helper")
        sent = await connection.send(ACPMessage(type="request", content="hi"))
        answer = await connection.recv(WAIT)
        assert (answer.type, answer.in_reply_to) == ("response", sent.id)
        assert answer.content == ("by hand: hi" if by_hand else "hi")


async def test_a_script_serves_a_delegated_task(bus: Any, bridge: Bridge) -> None:
    await bridge(BY_HAND, name="helper", by_hand=True)
    async with ACPService("planner", bus=bus.address) as planner, asyncio.timeout(WAIT):
        status = await planner.wait_for_task(await planner.delegate_task("helper", "the dishes"))
        assert (status["status"], status["result"]) == ("completed", "by hand: the dishes")
        status = await planner.wait_for_task(await planner.delegate_task("helper", "no"))
        assert (status["status"], status["error"]) == ("rejected", "not today")


async def test_parameters_reach_a_script_as_json(bus: Any, bridge: Bridge) -> None:
    await bridge(ROOT / "agent_scripts" / "python" / "echo.py", name="helper")
    parameters = json.loads('{"limit":3,"ratio":3.0,"ticket":9007199254740993,"flags":[true,null,""],"empty":{}}')
    async with ACPService("planner", bus=bus.address) as planner:
        connection = await planner.connect("helper")
        await connection.send(DelegateMessage("T-1", "echo", parameters).to_message())
        accepted, result = await connection.recv(WAIT), await connection.recv(WAIT)
        assert (accepted.type, accepted.content["status"]) == ("response", "accepted")
        assert result.type == "result"
        echoed = result.content["result"]
        # A script that answers in the language that it was asked in has said JSON.
        echoed = json.loads(echoed) if isinstance(echoed, str) else echoed
        assert json.dumps(echoed["parameters"]) == json.dumps(parameters)
