"""IH-T: messages about tasks as neighbours write them. They arrive as they were written, and drive the task that they are about."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from waiting import WAIT, until

from gagent_grpc import ACPMessage, Agent, Attachment, DeliveryRefused, OnExecutorLost, ReceivedACP, TaskState

DELEGATE = (
    '{"id":"m-1","type":"delegate","source":"planner","target":"analyst@n2","content":{"task_id":"T-1","description":'
    '"Compare the two offers","parameters":{"files":["a.csv","b.csv"],"limit":3},"callback_url":null},"metadata":'
    '{"priority":"normal"},"timestamp":"2026-03-01T10:00:00.123Z"}'
)
ANSWERS = [
    '{"id":"m-2","type":"response","source":"analyst@n2","target":"planner","content":{"task_id":"T-1","status":"accepted"}}',
    '{"id":"m-3","type":"notification","source":"analyst@n2","target":"planner","content":{"task_id":"T-1","status":"working","progress":0.5}}',
    '{"id":"m-4","type":"result","source":"analyst@n2","target":"planner","content":{"task_id":"T-1","status":"completed","result":"Offer B is cheaper by 4 %."}}',
    '{"id":"m-5","type":"error","source":"analyst@n2","target":"planner","content":{"task_id":"T-2","error":"file missing: b.csv"}}',
]


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


class Mail:
    """An agent that speaks by messages alone."""

    def __init__(self, bus: Any, name: str) -> None:
        self.agent = Agent(name, bus=bus.address)
        self.got: list[ReceivedACP] = []
        self.agent.on_acp()(self._keep)

    async def _keep(self, message: ReceivedACP) -> None:
        self.got.append(message)

    async def holds(self, count: int) -> ReceivedACP:
        await until(lambda: len(self.got) >= count)
        return self.got[count - 1]


async def test_ih_t_messages_of_neighbours_drive_their_tasks(buses: Any) -> None:
    bus = await buses(platform="n2")
    planner, analyst = Mail(bus, "planner"), Mail(bus, "analyst")
    async with planner.agent, analyst.agent:
        await planner.agent.send_acp(ACPMessage.from_json(DELEGATE))
        got = await analyst.holds(1)
        assert json.loads(got.to_json()) == json.loads(DELEGATE)
        assert json.dumps(got.content) == json.dumps(json.loads(DELEGATE)["content"])
        task = planner.agent.task("T-1")
        first = await task.get()
        assert (first.state, first.executor, first.target) == (TaskState.SUBMITTED, "analyst@n2", "analyst@n2")
        assert (first.description, first.callback_url) == ("Compare the two offers", None)
        assert json.dumps(first.parameters) == '{"files": ["a.csv", "b.csv"], "limit": 3}'
        states = []
        for place, text in enumerate(ANSWERS[:3], start=1):
            await analyst.agent.send_acp(ACPMessage.from_json(text))
            heard = await planner.holds(place)
            told = json.loads(text)
            assert (heard.id, str(heard.type)) == (told["id"], told["type"])
            assert json.dumps(heard.content) == json.dumps(told["content"])
            now = await task.get()
            states.append((now.state, now.progress, now.result))
        assert states == [
            (TaskState.ACCEPTED, None, None),
            (TaskState.RUNNING, 0.5, None),
            (TaskState.COMPLETED, 0.5, "Offer B is cheaper by 4 %."),
        ]
        # An ERROR fails the task that it names, and no other one; of one that nobody delegated it is a message like any other.
        await planner.agent.delegate("analyst", "Read b.csv", task_id="T-2")
        await analyst.agent.send_acp(ACPMessage.from_json(ANSWERS[0].replace("T-1", "T-2").replace("m-2", "m-2b")))
        await analyst.agent.send_acp(ACPMessage.from_json(ANSWERS[3]))
        failed = await planner.agent.task("T-2").wait()
        assert (failed.state, failed.reason) == (TaskState.FAILED, "file missing: b.csv")
        assert (await task.get()).state is TaskState.COMPLETED
        await analyst.agent.send_acp(ACPMessage.from_json(ANSWERS[3].replace("T-2", "T-3").replace("m-5", "m-6")))
        assert (await planner.holds(6)).content["error"] == "file missing: b.csv"


async def test_ih_t_delegate_says_everything_in_json_that_a_call_can_say(bus: Any) -> None:
    text = DELEGATE.replace("@n2", "").replace(
        '"callback_url":null',
        '"callback_url":"http://x.invalid/done","deadline":"2091-01-01T00:00:00Z","on_executor_lost":"redeliver",'
        '"max_attempts":4,"attachments":[{"uri":"file:///a.csv","media_type":"text/csv","size_bytes":3}]',
    )
    planner, analyst = Mail(bus, "planner"), Mail(bus, "analyst")
    async with planner.agent, analyst.agent:
        await planner.agent.send_acp(ACPMessage.from_json(text))
        assert (await analyst.holds(1)).content == json.loads(text)["content"]
        task = await planner.agent.task("T-1").get()
        assert task.deadline is not None
        assert task.deadline.isoformat() == "2091-01-01T00:00:00+00:00"
        assert (task.on_executor_lost, task.max_attempts) == (OnExecutorLost.REDELIVER, 4)
        assert task.attachments == (Attachment("file:///a.csv", "text/csv", size_bytes=3),)
        assert task.callback_url == "http://x.invalid/done"
        # Sent by a program that knows no better it is the same task, and another one is refused.
        await planner.agent.send_acp(ACPMessage.from_json(text.replace("m-1", "m-1b")))
        with pytest.raises(DeliveryRefused, match="max_attempts"):
            await planner.agent.send_acp(
                ACPMessage.from_json(text.replace("m-1", "m-1c").replace('"max_attempts":4', '"max_attempts":5'))
            )
        assert len(analyst.got) == 1


async def test_ih_t_answers_of_a_stranger_change_nothing(bus: Any) -> None:
    planner, analyst, stranger = Mail(bus, "planner"), Mail(bus, "analyst"), Mail(bus, "stranger")
    async with planner.agent, analyst.agent, stranger.agent:
        await planner.agent.send_acp(ACPMessage.from_json(DELEGATE.replace("@n2", "")))
        await analyst.holds(1)
        for text in ANSWERS[:3]:
            with pytest.raises(DeliveryRefused, match="DENIED"):
                await stranger.agent.send_acp(ACPMessage.from_json(text.replace("analyst@n2", "stranger")))
        assert (await planner.agent.task("T-1").get()).state is TaskState.SUBMITTED
        assert planner.got == []
