"""A task that is delegated by the call and one that is delegated by a DELEGATE message are equal, whatever they say."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from tasking import Side, at, offer, refused

from gagent_grpc import ACPMetadata, Agent, Attachment, DelegateMessage, OnExecutorLost, Priority, TaskContext, TaskKey
from gagent_grpc.pb.gagent.v1 import acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as bus_pb
from gagent_grpc.pb.gagent.v1 import task_service_pb2 as pb
from gagent_grpc.server.app import Bus

pytestmark = pytest.mark.timeout(60)
REDELIVER = acp_pb2.EXECUTOR_LOST_POLICY_REDELIVER
ATTACHMENTS = [
    acp_pb2.TaskAttachment(uri="file:///a.csv", media_type="text/csv", size_bytes=0),
    acp_pb2.TaskAttachment(uri="s3://ü", media_type="x/y", name="b", digest="sha256:00"),
]
DEADLINE = Timestamp(seconds=int(time.time()) + 3_600, nanos=250_000_000)

SAID: list[dict[str, Any]] = [
    {},
    {"description": "add", "parameters_json": '{"a": 3.0, "n": 9007199254740993}', "callback_url": ""},
    {"callback_url": "http://x.invalid/?a=ü"},
    {"deadline": DEADLINE},
    {"on_executor_lost": REDELIVER},
    {"on_executor_lost": REDELIVER, "max_attempts": 7},
    {"max_attempts": 2},
    {"attachments": ATTACHMENTS},
    {"parent_delegator": "boss", "parent_task_id": "parent"},
    {
        "description": "all",
        "deadline": DEADLINE,
        "on_executor_lost": REDELIVER,
        "max_attempts": 4,
        "attachments": ATTACHMENTS,
        "parent_delegator": "boss@local",
        "parent_task_id": "parent",
    },
]


@pytest.fixture
async def alice(bus: Bus, side: Any) -> Side:
    """Return an agent that works on the task `parent` of boss, and delegates."""
    boss, alice = await side(bus, "boss"), await side(bus, "alice")
    await boss.DelegateTask(task_id="parent", target="alice", deadline=at(time.time() + 86_400))
    await alice.AcceptTask(delegator="boss", task_id="parent")
    return alice  # type: ignore[no-any-return]  # [no-any-return]: the factory of a fixture.


def comparable(task: pb.DelegatedTask) -> pb.DelegatedTask:
    """Return what does not tell one task from another one."""
    made = pb.DelegatedTask()
    made.CopyFrom(task)
    for name in ("task_id", "created_at", "updated_at"):
        made.ClearField(name)  # type: ignore[arg-type]  # [arg-type]: names from a loop.
    if made.root_task_id == task.task_id:
        made.ClearField("root_task_id")
    return made


@pytest.mark.parametrize("said", SAID, ids=["+".join(one) or "nothing" for one in SAID])
@pytest.mark.parametrize("target", ["bob", "role:adder"])
async def test_call_and_message_make_equal_tasks(
    bus: Bus, side: Any, alice: Side, target: str, said: dict[str, Any]
) -> None:
    bob = await side(bus, "bob", description=offer("adder"))
    called = (await alice.DelegateTask(task_id="called", target=target, **said)).task
    assert await alice.says(target, "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="written", **said)) == []
    written = (await alice.GetTask(task_id="written")).task
    assert comparable(written) == comparable(called)
    # Each way knows the task of the other one again, and only with the same data.
    assert (await alice.DelegateTask(task_id="written", target=target, **said)).existed
    receipts = await alice.says(target, "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="called", **said))
    assert receipts[-1].outcome == bus_pb.OUTCOME_DUPLICATE
    # What the executor reads is the same, too, but for what only the bus says.
    orders = {
        one.delegation.task_id: one.delegation for one in await bob.receives(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE, 2)
    }
    assert orders["called"].attempt == 1
    for name in ("deadline", "on_executor_lost", "attachments", "parent_task_id", "callback_url", "parameters_json"):
        if name in said:
            assert getattr(orders["called"], name) == getattr(orders["written"], name)


@pytest.mark.parametrize(
    "other",
    [
        {"deadline": at(time.time() + 7_200)},
        {"on_executor_lost": REDELIVER, "max_attempts": 1},
        {"max_attempts": 2},
        {"attachments": ATTACHMENTS[:1]},
        {"parent_delegator": "boss", "parent_task_id": "parent"},
        {"callback_url": ""},
    ],
)
async def test_message_that_says_something_else_under_the_same_id_is_refused(
    bus: Bus, side: Any, alice: Side, other: dict[str, Any]
) -> None:
    await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    (receipt,) = await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="t", **other))
    assert (receipt.outcome, receipt.field) == (bus_pb.OUTCOME_INVALID, "acp.delegation.task_id")
    assert next(iter(other)) in receipt.detail or "on_executor_lost" in receipt.detail or "parent" in receipt.detail
    assert (await refused(alice.DelegateTask(task_id="t", target="bob", **other)))[1] == "TASK_ALREADY_EXISTS"


@pytest.mark.parametrize(
    ("bad", "outcome", "field"),
    [
        ({"deadline": at(1.0)}, "INVALID", "deadline"),
        ({"deadline": at(-5.0)}, "INVALID", "deadline"),
        ({"on_executor_lost": 9}, "INVALID", "on_executor_lost"),
        ({"max_attempts": 101}, "INVALID", "max_attempts"),
        ({"max_attempts": 2**32 - 1}, "INVALID", "max_attempts"),
        ({"parent_task_id": "parent"}, "INVALID", "parent_delegator"),
        ({"parent_delegator": "boss"}, "INVALID", "parent_task_id"),
        ({"parent_delegator": "boss", "parent_task_id": "none"}, "UNREACHABLE", ""),
        ({"parent_delegator": "b oss", "parent_task_id": "parent"}, "INVALID", "parent_delegator"),
        ({"attachments": [acp_pb2.TaskAttachment(uri="x")]}, "INVALID", "attachments[0].media_type"),
        ({"attachments": ATTACHMENTS * 51}, "INVALID", "attachments"),
        ({"attachments": [acp_pb2.TaskAttachment(uri="x" * 70_000, media_type="y")]}, "INVALID", "attachments"),
    ],
)
async def test_what_a_call_refuses_a_message_is_refused_for(
    bus: Bus, side: Any, alice: Side, bad: dict[str, Any], outcome: str, field: str
) -> None:
    bob = await side(bus, "bob")
    code, _, metadata = await refused(alice.DelegateTask(task_id="t", target="bob", **bad))
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    (receipt,) = await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="t", **bad))
    assert bus_pb.Outcome.Name(receipt.outcome) == f"OUTCOME_{outcome}"
    assert receipt.field == (f"acp.delegation.{field}" if field else "")
    assert not field or field in (metadata.get("field"), metadata.get("parameter"))
    assert (await refused(alice.GetTask(task_id="t")))[0] == grpc.StatusCode.NOT_FOUND
    assert bob.deliveries(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE) == []


async def test_delegate_message_of_the_sdk_makes_the_task_that_delegate_makes(bus: Bus) -> None:
    orders: list[TaskContext] = []
    worker = Agent("worker", bus=bus.address)
    planner = Agent("planner", bus=bus.address)
    told: dict[str, Any] = {
        "attachments": (Attachment("file:///a.csv", "text/csv", size_bytes=3),),
        "on_executor_lost": OnExecutorLost.REDELIVER,
        "max_attempts": 5,
        "callback_url": "http://x.invalid",
    }

    @worker.on_delegate
    async def work(task: TaskContext) -> str:
        orders.append(task)
        return "done"

    @planner.on_delegate
    async def plan(task: TaskContext) -> list[Any]:
        deadline = task.deadline
        assert deadline is not None
        called = await task.delegate("worker", "do it", {"n": 3.0}, task_id="a", deadline=deadline, **told)
        order = DelegateMessage(
            "b", "do it", {"n": 3.0}, deadline=deadline, parent=TaskKey(task.delegator, task.task_id), **told
        )
        await planner.send_acp(order.to_message("worker", metadata=ACPMetadata(str(task.task.priority))))
        return [await called.result(), await planner.task("b").result()]

    async with worker, planner, Agent("boss", bus=bus.address) as boss:
        task = await boss.delegate("planner", "plan", deadline=600, priority=Priority.HIGH)
        assert await task.result() == ["done", "done"]
        one, other = [await planner.task(name).get() for name in ("a", "b")]
        for name in ("deadline", "parent", "root", "depth", "priority", "parameters", "description", *told):
            assert getattr(one, name) == getattr(other, name), name
        assert one.parent == TaskKey("boss@local", task.task_id)
        assert [order.attachments for order in orders] == [told["attachments"]] * 2
