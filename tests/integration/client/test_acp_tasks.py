"""Delegated tasks in the words of the ACP interface: asked for by call or by message, served by agents of either kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from waiting import WAIT, Inbox, until

from gagent_grpc import (
    ACPMessage,
    ACPMessageType,
    ACPService,
    AgentNotRegistered,
    AnswerTimeout,
    Attachment,
    ClientLimits,
    DelegateMessage,
    Fail,
    InvalidArgument,
    OnExecutorLost,
    ReceivedACP,
    Refuse,
    TaskNotFound,
)

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, retry_delay=0.05, connect_timeout=2.0)
PARAMETERS = (
    '{"limit": 3, "ratio": 3.0, "ticket": 9007199254740993, "flags": [true, null, ""], "empty": {}, "list": []}'
)

ServiceFactory = Callable[..., Awaitable[ACPService]]


@pytest.fixture
async def services(bus: Any) -> AsyncIterator[ServiceFactory]:
    """Return a factory of started services: `await services("planner")`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str, **settings: Any) -> ACPService:
            settings = {"bus": bus.address, "limits": QUICK, "heartbeat_interval": 0, **settings}
            return await stack.enter_async_context(ACPService(name, **settings))

        yield start


class Gate:
    """A handler of tasks that returns when it is told to."""

    def __init__(self, result: Any = "done") -> None:
        self.orders: list[ReceivedACP] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self._result = result

    async def __call__(self, order: ReceivedACP) -> Any:
        self.orders.append(order)
        self.begun.set()
        await self.go_on.wait()
        return self._result


async def ended(service: ACPService, task_id: str) -> dict[str, Any]:
    async with asyncio.timeout(WAIT):
        return await service.wait_for_task(task_id)


# ---- delegated by a call -----------------------------------------------------------------------------------------------


async def test_a_new_user_delegates_and_polls_until_it_is_done(bus: Any, services: Any) -> None:
    analyst = await services("data_analyst")

    async def analyse(order: ReceivedACP) -> Any:
        task = DelegateMessage.from_message(order)
        return {"cheaper": "B", "compared": task.parameters["files"]}

    analyst.handlers[ACPMessageType.DELEGATE] = analyse

    async with ACPService("planner", bus=bus.address) as service, asyncio.timeout(WAIT):
        task_id = await service.delegate_task(
            "data_analyst@local", "Compare the two offers", {"files": ["a.csv", "b.csv"]}
        )
        # As a new user writes it, who would wait a second.
        while (status := await service.check_task_status(task_id))["status"] not in ("completed", "failed"):  # noqa: ASYNC110  # See above.
            await asyncio.sleep(0.01)
        assert status["status"] == "completed"
        assert status["result"] == {"cheaper": "B", "compared": ["a.csv", "b.csv"]}
        assert status["error"] is None


async def test_a_task_is_pending_then_accepted_then_completed(services: Any, agents: Any) -> None:
    planner = await services("planner")
    # It is there, and takes nothing in hand.
    sleeper = await agents("analyst")
    await sleeper.aclose()
    task_id = await planner.delegate_task("analyst", "do it")
    status = await planner.check_task_status(task_id)
    assert status == {
        "task_id": task_id,
        "status": "pending",
        "result": None,
        "error": None,
        "progress": None,
        "note": None,
    }
    analyst = ACPService(sleeper, heartbeat_interval=0)
    gate = analyst.handlers[ACPMessageType.DELEGATE] = Gate()
    async with analyst:
        async with asyncio.timeout(WAIT):
            await gate.begun.wait()
        assert (await planner.check_task_status(task_id))["status"] in ("accepted", "running")
        gate.go_on.set()
        assert (await ended(planner, task_id))["result"] == "done"


async def test_what_is_delegated_and_what_comes_of_it_keep_their_types(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")

    async def echo(order: ReceivedACP) -> Any:
        return order.content["parameters"]

    analyst.handlers[ACPMessageType.DELEGATE] = echo
    task_id = await planner.delegate_task("analyst", "echo", json.loads(PARAMETERS))
    assert json.dumps((await ended(planner, task_id))["result"]) == PARAMETERS


async def test_a_handler_gets_the_task_as_a_delegate(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    gate = analyst.handlers[ACPMessageType.DELEGATE] = Gate()
    gate.go_on.set()
    task_id = await planner.delegate_task("analyst", "do it", {"n": 3}, task_id="T-1", callback_url="http://x.invalid/")
    assert task_id == "T-1"
    await ended(planner, task_id)
    (order,) = gate.orders
    assert (order.type, order.task_id, order.source) == (ACPMessageType.DELEGATE, "T-1", planner.agent_id)
    # The URL is carried, and nobody fetches it.
    assert DelegateMessage.from_message(order) == DelegateMessage("T-1", "do it", {"n": 3}, "http://x.invalid/")
    # And everything else that a delegator may say of it.
    told = {
        "deadline": datetime(2091, 1, 1, tzinfo=UTC),
        "on_executor_lost": OnExecutorLost.REDELIVER,
        "attachments": (Attachment("file:///a.csv", "text/csv", size_bytes=3),),
    }
    await (await planner.agent.delegate("analyst", "do more", task_id="T-2", **told)).result()
    assert DelegateMessage.from_message(gate.orders[1]) == DelegateMessage("T-2", "do more", **told)


@pytest.mark.parametrize(
    ("outcome", "status", "error"),
    [
        (RuntimeError("file missing: b.csv"), "failed", "file missing: b.csv"),
        (Fail("no disk"), "failed", "no disk"),
        (Refuse("too busy"), "rejected", "too busy"),
    ],
)
async def test_a_task_that_does_not_come_about_says_why(
    services: Any, outcome: Exception, status: str, error: str
) -> None:
    planner, analyst = await services("planner"), await services("analyst")

    def work(order: ReceivedACP) -> Any:
        raise outcome

    analyst.handlers[ACPMessageType.DELEGATE] = work
    found = await ended(planner, await planner.delegate_task("analyst", "do it"))
    assert (found["status"], found["result"]) == (status, None)
    assert error in found["error"]


async def test_a_service_that_takes_no_tasks_rejects_them(services: Any) -> None:
    planner = await services("planner")
    await services("analyst")
    found = await ended(planner, await planner.delegate_task("analyst", "do it"))
    assert (found["status"], found["error"]) == ("rejected", "analyst takes no tasks")


async def test_a_task_can_be_waited_for_and_cancelled(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    gate = analyst.handlers[ACPMessageType.DELEGATE] = Gate()
    task_id = await planner.delegate_task("analyst", "do it")
    async with asyncio.timeout(WAIT):
        await gate.begun.wait()
    with pytest.raises(AnswerTimeout):
        await planner.wait_for_task(task_id, 0.01)
    await planner.cancel_task(task_id, "not wanted any more")
    assert (await ended(planner, task_id))["status"] == "cancelled"


async def test_what_is_not_there_is_told(services: Any) -> None:
    planner = await services("planner")
    with pytest.raises(TaskNotFound):
        await planner.check_task_status("never heard of")
    with pytest.raises(AgentNotRegistered):
        await planner.delegate_task("nobody", "do it")


@pytest.mark.parametrize("bad", ["\ud800", 5])
async def test_an_id_that_cannot_be_one_is_told(services: Any, bad: Any) -> None:
    planner = await services("planner")
    for call in (planner.check_task_status(bad), planner.wait_for_task(bad, WAIT), planner.cancel_task(bad)):
        with pytest.raises(InvalidArgument):
            await call
    task = planner.agent.task("t")
    for calling in (task.signal(bad), task.cancel(bad), planner.agent.tasks(delegator=bad)):
        with pytest.raises(InvalidArgument):
            await calling
    with pytest.raises(InvalidArgument, match="parameters of type list"):
        await planner.delegate_task("planner", "x", [bad])


async def test_health_counts_connections_and_tasks(services: Any, bus: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    gate = analyst.handlers[ACPMessageType.DELEGATE] = Gate()
    await planner.connect("analyst")
    tasks = [await planner.delegate_task("analyst", "do it") for _ in range(2)]
    await until(lambda: len(gate.orders) == 2)
    health = await planner.health_check()
    assert health.pop("timestamp").endswith("Z")
    assert health == {
        "agent_id": "planner@local",
        "connected": True,
        "connections": 1,
        "pending_tasks": 2,
        "running_tasks": 0,
    }
    health = await analyst.health_check()
    assert (health["connections"], health["pending_tasks"], health["running_tasks"]) == (0, 0, 2)
    gate.go_on.set()
    for task_id in tasks:
        await ended(planner, task_id)
    assert (await planner.health_check())["pending_tasks"] == 0
    assert (await analyst.health_check())["running_tasks"] == 0
    await planner.stop()
    health = await planner.health_check()
    assert (health["connected"], health["pending_tasks"], health["running_tasks"]) == (False, None, None)


# ---- delegated by a message --------------------------------------------------------------------------------------------


async def test_a_delegate_is_answered_by_acceptance_then_by_the_result(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    gate = analyst.handlers[ACPMessageType.DELEGATE] = Gate({"n": 3.0})
    connection = await planner.connect("analyst")
    sent = await connection.send(DelegateMessage("", "do it", {"n": 3}).to_message())
    # Nobody gave the task an id.
    assert sent.task_id
    accepted = await connection.recv(WAIT)
    assert (accepted.type, accepted.content["status"]) == (ACPMessageType.RESPONSE, "accepted")
    assert accepted.task_id == sent.task_id
    assert (await planner.health_check())["pending_tasks"] == 1
    gate.go_on.set()
    result = await connection.recv(WAIT)
    while result.type is ACPMessageType.NOTIFICATION:
        result = await connection.recv(WAIT)
    assert (result.type, result.task_id) == (ACPMessageType.RESULT, sent.task_id)
    assert json.dumps(result.content["result"]) == '{"n": 3.0}'
    # The same task as one that is delegated by a call.
    assert (await planner.check_task_status(sent.task_id))["status"] == "completed"


async def test_a_delegate_that_fails_is_answered_by_an_error(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")

    async def work(order: ReceivedACP) -> Any:
        raise Fail("file missing: b.csv")

    analyst.handlers[ACPMessageType.DELEGATE] = work
    connection = await planner.connect("analyst")
    await connection.send(DelegateMessage("T-2", "do it").to_message())
    answer = await connection.recv(WAIT)
    while answer.type is not ACPMessageType.ERROR:
        answer = await connection.recv(WAIT)
    assert answer.task_id == "T-2"
    assert "file missing: b.csv" in answer.content["error"]


async def test_an_agent_that_speaks_acp_by_messages_alone_serves_a_task(services: Any, agents: Any) -> None:
    planner = await services("planner")
    analyst = await agents("analyst")

    @analyst.on_acp("delegate")
    async def work(order: ReceivedACP) -> None:
        about = {"task_id": order.task_id}
        await analyst.reply_acp(order, "response", {**about, "status": "accepted"})
        await analyst.reply_acp(order, "notification", {**about, "status": "running", "progress": 0.5})
        await analyst.reply_acp(order, "result", {**about, "status": "completed", "result": "by messages"})

    found = await ended(planner, await planner.delegate_task("analyst", "do it"))
    assert (found["status"], found["result"], found["progress"]) == ("completed", "by messages", 0.5)


# ---- ACL agents --------------------------------------------------------------------------------------------------------


async def test_an_acl_agent_serves_a_task(services: Any, agents: Any) -> None:
    planner = await services("planner")
    asked = Inbox()

    async def answer(message: Any) -> str:
        await asked(message)
        return f"did {message.content}"

    await agents("helper", answer)
    task_id = await planner.delegate_task("helper", "the dishes")
    assert (await ended(planner, task_id))["result"] == "did the dishes"
    (message,) = asked.messages
    assert (message.performative.text, message.protocol, message.conversation_id) == (
        "request",
        "fipa-request",
        task_id,
    )
    task_id = await planner.delegate_task("helper", "the dishes", {"n": 3.0})
    assert (await ended(planner, task_id))["result"] == 'did {"description":"the dishes","parameters":{"n":3.0}}'


async def test_what_an_acl_agent_answers_to_a_delegate_is_acceptance_and_result(services: Any, agents: Any) -> None:
    planner = await services("planner")
    await agents("helper", lambda message: f"did {message.content}")
    connection = await planner.connect("helper")
    await connection.send(DelegateMessage("T-4", "the dishes").to_message())
    accepted, result = await connection.recv(WAIT), await connection.recv(WAIT)
    assert (accepted.type, accepted.content["status"]) == (ACPMessageType.RESPONSE, "accepted")
    assert (result.type, result.task_id, result.content["result"]) == (ACPMessageType.RESULT, "T-4", "did the dishes")


@pytest.mark.parametrize(("declined", "status"), [(Refuse("not today"), "rejected"), (Fail("broken"), "failed")])
async def test_an_acl_agent_that_declines_ends_the_task(
    services: Any, agents: Any, declined: Exception, status: str
) -> None:
    planner = await services("planner")

    async def decline(message: Any) -> None:
        raise declined

    await agents("helper", decline)
    found = await ended(planner, await planner.delegate_task("helper", "the dishes"))
    assert (found["status"], str(declined) in found["error"]) == (status, True)


async def test_an_agent_without_any_handler_rejects_a_task(services: Any, agents: Any) -> None:
    planner = await services("planner")
    await agents("helper")
    found = await ended(planner, await planner.delegate_task("helper", "the dishes"))
    assert found["status"] == "rejected"


async def test_an_acl_agent_that_agrees_has_accepted(services: Any, agents: Any) -> None:
    planner = await services("planner")
    helper = await agents("helper")
    go_on = asyncio.Event()

    @helper.on("request")
    async def answer(message: Any) -> None:
        await helper.reply(message, "agree")
        await go_on.wait()
        await helper.reply(message, "inform", "done")

    connection = await planner.connect("helper")
    await connection.send(DelegateMessage("T-3", "the dishes").to_message())
    accepted = await connection.recv(WAIT)
    assert (accepted.type, accepted.content["status"]) == (ACPMessageType.RESPONSE, "accepted")
    go_on.set()
    assert (await ended(planner, "T-3"))["result"] == "done"
    result = await connection.recv(WAIT)
    assert (result.type, result.content["result"]) == (ACPMessageType.RESULT, "done")


def test_a_request_is_no_task() -> None:
    assert ACPMessage(type="request", content="x").task_id is None
