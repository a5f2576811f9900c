"""Tasks over a socket: delegated, watched and taken up again, and worked on by messages alone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from gagent_grpc import Agent, Refuse
from gagent_grpc.config import GatewayLimits

ORDER = {"limit": 3, "ratio": 3.0, "ticket": 9007199254740993, "flags": [True, None, ""], "empty": {}}


@pytest.fixture
async def worker(agents: Any) -> Agent:
    """An agent whose tasks go on when they are told to, by a signal."""
    agent = await agents("worker")

    @agent.on_delegate
    async def work(task: Any) -> Any:
        if task.description == "no":
            raise Refuse("not today")
        await task.progress(0.25, "begun")
        await task.output("some ")
        async with contextlib.aclosing(task.signals()) as signals:
            await anext(signals)
        return task.parameters

    return agent  # type: ignore[no-any-return]


async def delegate(client: Any, task_id: str = "t-1", description: str = "do it", **more: Any) -> None:
    content = {"task_id": task_id, "description": description, "parameters": ORDER}
    await client.say(type="delegate", id=f"d-{task_id}", target="worker", content=content, **more)


async def test_a_task_is_delegated_and_its_messages_come(gateway: Any, clients: Any, worker: Any) -> None:
    alice = await clients(gateway, "alice")
    await delegate(alice)
    receipt = await alice.next(control="receipt")
    assert (receipt["outcome"], receipt["task_id"]) == ("ACCEPTED", "t-1")
    accepted = await alice.next(type="response")
    assert (accepted["content"], accepted["in_reply_to"]) == ({"task_id": "t-1", "status": "accepted"}, "d-t-1")
    progress = await alice.next(type="notification")
    assert progress["content"]["progress"] == 0.25
    await gateway._sockets["alice"].agent.task("t-1").signal("finish")
    result = await alice.next(type="result")
    assert result["content"]["status"] == "completed"
    assert repr(result["content"]["result"]) == repr(ORDER)


async def test_an_id_is_made_where_there_is_none(gateway: Any, clients: Any, worker: Any) -> None:
    alice = await clients(gateway, "alice")
    await alice.say(type="delegate", target="worker", content={"description": "no"})
    receipt = await alice.next(control="receipt")
    error = await alice.next(type="error")
    assert error["content"]["task_id"] == receipt["task_id"]
    assert error["content"]["error"] == "not today"


async def test_a_watch_tells_the_task_then_its_events_to_the_end(gateway: Any, clients: Any, worker: Any) -> None:
    alice = await clients(gateway, "alice")
    await delegate(alice)
    # At once: it is the one that is being delegated.
    await alice.say(control="watch", task_id="t-1", after=0)
    snapshot = (await alice.next(control="event"))["task"]
    assert (snapshot["task_id"], snapshot["delegator"], snapshot["description"]) == ("t-1", "alice@local", "do it")
    assert repr(snapshot["parameters"]) == repr(ORDER)
    events = []
    while not any(one.get("kind") == "output" for one in events):
        events.append((await alice.next(control="event"))["event"])
    server = gateway._sockets["alice"].agent
    await server.task("t-1").signal("finish")
    while events[-1].get("state") != "completed":
        events.append((await alice.next(control="event"))["event"])
    assert [one["sequence"] for one in events] == list(range(1, len(events) + 1))
    assert repr(events[-1]["value"]) == repr(ORDER)
    ended = await alice.next(control="watch_ended")
    assert (ended["task_id"], ended["task"]["state"]) == ("t-1", "completed")
    assert repr(ended["task"]["result"]) == repr(ORDER)


async def test_a_watch_goes_on_after_an_event_on_another_socket(
    gateway: Any, clients: Any, worker: Any, gone: Any
) -> None:
    alice = await clients(gateway, "alice")
    await delegate(alice)
    await alice.say(control="watch", task_id="t-1", after=0)
    await alice.next(control="event")
    seen = []
    while not any(one.get("kind") == "output" for one in seen):
        seen.append((await alice.next(control="event"))["event"])
    await alice.socket.close()
    await gone(gateway)

    again = await clients(gateway, "alice")
    await gateway._sockets["alice"].agent.task("t-1").signal("finish")
    await again.say(control="watch", task_id="t-1", after=seen[-1]["sequence"])
    assert "task" in await again.next(control="event")
    later = []
    while not later or later[-1].get("state") != "completed":
        later.append((await again.next(control="event"))["event"])
    numbers = [one["sequence"] for one in (*seen, *later)]
    assert numbers == list(range(1, len(numbers) + 1))
    await again.next(control="watch_ended")
    # Once more after its end: there is nothing to come.
    await again.say(control="watch", task_id="t-1")
    assert (await again.next(control="event"))["task"]["state"] == "completed"
    await again.next(control="watch_ended")


async def test_an_unwatch_ends_a_watch(gateway: Any, clients: Any, worker: Any) -> None:
    alice = await clients(gateway, "alice")
    await delegate(alice)
    await alice.say(control="watch", task_id="t-1", after=0)
    await alice.next(control="event")
    await alice.say(control="unwatch", task_id="t-1")
    assert "task" not in await alice.next(control="watch_ended")
    await gateway._sockets["alice"].agent.task("t-1").signal("finish")
    assert (await alice.next(type="result"))["content"]["status"] == "completed"
    # An answer that comes after whatever was on its way.
    await alice.say(control="unwatch", task_id="t-1")
    await alice.next(control="watch_ended")
    states = [one["event"].get("state") for one in alice.frames if "event" in one]
    assert "completed" not in states


async def test_what_cannot_be_watched_is_told(gateways: Any, clients: Any, worker: Any) -> None:
    gateway = await gateways(limits=GatewayLimits(max_watches=1))
    alice, bob = await clients(gateway, "alice"), await clients(gateway, "bob")
    await alice.say(control="watch", task_id="none")
    error = await alice.next(control="error")
    assert (error["about"], error["task_id"], error["code"]) == ("watch", "none", "TASK_NOT_FOUND")
    await delegate(alice)
    assert await alice.receipt("d-t-1") == "ACCEPTED"
    # Somebody else's is to be named with who delegated it.
    await bob.say(control="watch", task_id="t-1")
    assert (await bob.next(control="error"))["code"] == "TASK_NOT_FOUND"
    await bob.say(control="watch", task_id="t-1", delegator="alice", after=0)
    assert (await bob.next(control="event", delegator="alice"))["task"]["task_id"] == "t-1"
    await alice.say(control="watch", task_id="t-1", after=0)
    await alice.next(control="event")
    await alice.say(control="watch", task_id="t-2")
    assert "1 tasks are watched already" in (await alice.next(control="error"))["reason"]
    # The same one again is no second one.
    await alice.say(control="watch", task_id="t-1", after=0)
    while "task" not in await alice.next(control="event"):
        pass
    await gateway._sockets["alice"].agent.task("t-1").signal("finish")
    assert (await alice.next(type="result"))["content"]["status"] == "completed"


async def test_a_socket_works_on_a_task_by_messages(gateway: Any, clients: Any, agents: Any) -> None:
    boss = await agents("boss")
    alice = await clients(gateway, "alice")
    task = await boss.delegate("alice", "add", ORDER)
    order = await alice.next(type="delegate")
    assert repr(order["content"]["parameters"]) == repr(ORDER)
    about = {"task_id": task.task_id}
    await alice.say(type="response", target="boss", in_reply_to=order["id"], content={**about, "status": "accepted"})
    await alice.say(
        type="result",
        target="boss",
        in_reply_to=order["id"],
        content={**about, "status": "completed", "result": order["content"]["parameters"]},
    )
    async with asyncio.timeout(20):
        assert repr(await task.result()) == repr(ORDER)
