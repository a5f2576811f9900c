"""`TaskService` over loopback with the generated stubs: delegators, executors, and what becomes of tasks without them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from tasking import Side, at, ended, offer, refused, watched
from waiting import WAIT, until

from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as bus_pb
from gagent_grpc.pb.gagent.v1 import task_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import task_service_pb2_grpc as services
from gagent_grpc.server.app import Bus
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.testing import running_bus

pytestmark = pytest.mark.timeout(60)
STATUS = grpc.StatusCode
QUICK: dict[str, Any] = {"drain_grace": 1.0, "resume_grace": 0.2, "task_lease": 0.3, "task_cancel_grace": 0.3}
REDELIVER = acp_pb2.EXECUTOR_LOST_POLICY_REDELIVER


# ---- a task and its two sides ------------------------------------------------------------------------------------------


async def test_task_is_handed_over_worked_on_and_completed(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    attachment = acp_pb2.TaskAttachment(name="data", media_type="text/csv", uri="file:///data.csv", size_bytes=12)
    response = await alice.DelegateTask(
        task_id="t1",
        target="bob",
        description="add them up",
        parameters_json='{"numbers": [1, 2]}',
        callback_url="http://example.invalid/done",
        attachments=[attachment],
        priority=acp_pb2.PRIORITY_HIGH,
    )
    assert not response.existed
    task = response.task
    assert (task.state, task.delegator, task.target, task.executor) == (
        pb.TASK_STATE_SUBMITTED,
        "alice@local",
        "bob",
        "bob@local",
    )
    assert (task.root_delegator, task.root_task_id, task.depth, task.max_attempts) == ("alice@local", "t1", 1, 1)
    order = await bob.delegation()
    assert (order.task_id, order.description, order.parameters_json) == ("t1", "add them up", '{"numbers": [1, 2]}')
    assert (order.attempt, order.delegator, order.callback_url) == (1, "alice@local", "http://example.invalid/done")
    delivery = bob.session.deliveries[0]
    assert delivery.message.priority == acp_pb2.PRIORITY_HIGH
    assert delivery.message.acp.source == "alice@local"
    begun = await bob.AcceptTask(delegator=order.delegator, task_id=order.task_id, attempt=order.attempt)
    assert (begun.attempt, begun.lease_seconds, begun.task.state) == (1, 30.0, pb.TASK_STATE_ACCEPTED)
    assert list(begun.task.attachments) == [attachment]
    reported = await bob.ReportTask(
        delegator="alice",
        task_id="t1",
        attempt=1,
        progress=pb.TaskProgress(fraction=0.5, note="halfway"),
        output=[pb.TaskOutput(text="1"), pb.TaskOutput(text="+2", channel="log")],
    )
    assert (reported.state, reported.cancel_requested) == (pb.TASK_STATE_RUNNING, False)
    running = (await alice.GetTask(task_id="t1")).task
    assert (running.state, running.progress, running.note) == (pb.TASK_STATE_RUNNING, 0.5, "halfway")
    done = (await bob.CompleteTask(delegator="alice", task_id="t1", attempt=1, result_json='{"sum": 3}')).task
    assert (done.state, done.result_json) == (pb.TASK_STATE_COMPLETED, '{"sum": 3}')
    assert done.HasField("forgotten_at")
    assert [(one.number, one.executor, one.outcome) for one in done.attempts] == [(1, "bob@local", "completed")]
    snapshot, *events = await watched(alice.WatchTask(task_id="t1", after=0))
    assert snapshot.task == done
    assert [one.event.sequence for one in events] == list(range(1, done.last_event + 1))
    assert [one.event.WhichOneof("what") for one in events] == [
        "state",
        "state",
        "state",
        "progress",
        "output",
        "output",
        "state",
    ]
    assert events[-1].event.state.result_json == '{"sum": 3}'
    # It delegated by a call, so it hears by calls; and what stays in the mailbox of the executor is withdrawn.
    assert alice.session.deliveries == []
    assert bus.platform.ams.get("bob").mailbox.messages == 0


async def test_executor_asks_and_the_delegator_answers_and_signals(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    await bob.AcceptTask(**work)
    assert (await refused(alice.AnswerTask(task_id="t", answer_json="1")))[:2] == (
        STATUS.FAILED_PRECONDITION,
        "PRECONDITION_FAILED",
    )
    asked = await bob.ReportTask(**work, question="which one?")
    assert asked.state == pb.TASK_STATE_INPUT_REQUIRED
    task = (await alice.GetTask(task_id="t")).task
    assert (task.state, task.question) == (pb.TASK_STATE_INPUT_REQUIRED, "which one?")
    assert (await refused(alice.AnswerTask(task_id="t", answer_json="{no json")))[0] == STATUS.INVALID_ARGUMENT
    answered = (await alice.AnswerTask(task_id="t", answer_json='{"n": 3}')).task
    assert (answered.state, answered.question) == (pb.TASK_STATE_RUNNING, "")
    await alice.SignalTask(task_id="t", name="faster", value_json="2")
    heard = await bob.ReportTask(**work, events_after=0)
    assert [one.WhichOneof("what") for one in heard.events] == ["answer_json", "signal"]
    assert heard.events[0].answer_json == '{"n": 3}'
    assert (heard.events[1].signal.name, heard.events[1].signal.value_json) == ("faster", "2")
    after = heard.events[-1].sequence
    assert list((await bob.ReportTask(**work, events_after=after)).events) == []


async def test_delegating_again_is_the_same_task_and_another_one_is_refused(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    order = {"task_id": "t", "target": "bob", "description": "once", "parameters_json": "{}"}
    first, second = await asyncio.gather(alice.DelegateTask(**order), alice.DelegateTask(**order))
    assert sorted([first.existed, second.existed]) == [False, True]
    assert (await alice.DelegateTask(**{**order, "target": "bob@local"})).existed
    for change in ({"description": "twice"}, {"target": "alice"}, {"max_attempts": 2}, {"parameters_json": '{"a":1}'}):
        code, reason, metadata = await refused(alice.DelegateTask(**{**order, **change}))
        assert (code, reason) == (STATUS.ALREADY_EXISTS, "TASK_ALREADY_EXISTS")
        assert metadata["task_id"] == "t"
    # Ids are the delegator's own.
    assert not (await bob.DelegateTask(**{**order, "target": "alice"})).existed
    await bob.delegation()
    await bob.session.in_step()
    assert len(bob.deliveries(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE)) == 1
    made = (await alice.DelegateTask(target="bob")).task
    assert made.task_id


async def test_bad_orders_are_refused_with_the_field(bus: Bus, side: Any) -> None:
    alice = await side(bus, "alice")
    await side(bus, "bob")
    order = {"task_id": "t", "target": "bob"}
    for change, code, reason in (
        ({"target": ""}, STATUS.INVALID_ARGUMENT, "MISSING_PARAMETER"),
        ({"target": "no name"}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"target": "topic:news"}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"target": "df"}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"target": "bob@elsewhere"}, STATUS.UNAVAILABLE, "UNAVAILABLE"),
        ({"target": "nobody"}, STATUS.NOT_FOUND, "AGENT_NOT_REGISTERED"),
        ({"target": "role:adder"}, STATUS.UNAVAILABLE, "NO_PROVIDER"),
        ({"task_id": "x" * 129}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"parameters_json": "[1]"}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"parameters_json": "{"}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"deadline": at(1.0)}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"max_attempts": 101}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"on_executor_lost": 7}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"priority": 9}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"attachments": [acp_pb2.TaskAttachment(name="x")]}, STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ({"parent_task_id": "p"}, STATUS.INVALID_ARGUMENT, "MISSING_PARAMETER"),
        ({"parent_task_id": "p", "parent_delegator": "bob"}, STATUS.NOT_FOUND, "TASK_NOT_FOUND"),
        ({"description": "x" * 1_000_001}, STATUS.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE"),
        # It fits by itself, and not with what the message around it takes.
        ({"description": "x" * 999_990}, STATUS.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE"),
    ):
        assert (await refused(alice.DelegateTask(**{**order, **change})))[:2] == (code, reason), change
    # Nothing of all that was kept.
    assert (await refused(alice.GetTask(task_id="t")))[:2] == (STATUS.NOT_FOUND, "TASK_NOT_FOUND")
    assert not (await alice.DelegateTask(**order)).existed


async def test_calls_without_a_session_may_look_and_call_off_and_work_on_nothing(
    bus: Bus, side: Any, channel: Any
) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    stub: Any = services.TaskServiceStub(channel)
    assert (await refused(stub.DelegateTask(pb.DelegateTaskRequest(target="bob"))))[0] == STATUS.PERMISSION_DENIED
    await alice.DelegateTask(task_id="t", target="bob")
    assert (await refused(stub.AcceptTask(pb.AcceptTaskRequest(delegator="alice", task_id="t"))))[0] == (
        STATUS.PERMISSION_DENIED
    )
    assert (await refused(stub.GetTask(pb.GetTaskRequest(task_id="t"))))[0] == STATUS.INVALID_ARGUMENT
    assert (await stub.GetTask(pb.GetTaskRequest(task_id="t", delegator="alice"))).task.executor == "bob@local"
    await bob.DelegateTask(task_id="u", target="bob")
    carol = await side(bus, "carol")
    await carol.DelegateTask(task_id="v", target="carol")

    async def listed(who: Any = stub, **fields: Any) -> list[str]:
        call = who.ListTasks(pb.ListTasksRequest(**fields)) if who is stub else who.ListTasks(**fields)
        return [one.task_id for one in (await call).tasks]

    assert await listed() == ["v", "u", "t"]
    assert await listed(bob) == ["u", "t"]
    assert await listed(alice) == ["t"]
    assert await listed(delegator="bob") == ["u"]
    assert await listed(executor="bob@local") == ["u", "t"]
    assert await listed(states=[pb.TASK_STATE_COMPLETED]) == []
    assert (await refused(stub.ListTasks(pb.ListTasksRequest(states=[77]))))[0] == STATUS.INVALID_ARGUMENT
    first = await stub.ListTasks(pb.ListTasksRequest(max_results=2))
    assert [one.task_id for one in first.tasks] == ["v", "u"]
    rest = await stub.ListTasks(pb.ListTasksRequest(max_results=2, page_token=first.next_page_token))
    assert ([one.task_id for one in rest.tasks], rest.next_page_token) == (["t"], "")
    assert (await refused(stub.ListTasks(pb.ListTasksRequest(page_token="x"))))[0] == STATUS.INVALID_ARGUMENT
    cancelled = (await stub.CancelTask(pb.CancelTaskRequest(task_id="t", delegator="alice", reason="why not"))).task
    assert (cancelled.state, cancelled.reason) == (pb.TASK_STATE_CANCELLED, "why not")


async def test_first_end_stays_and_saying_it_again_is_fine(bus: Bus, side: Any) -> None:
    alice, bob, carol = await side(bus, "alice"), await side(bus, "bob"), await side(bus, "carol")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    await alice.DelegateTask(task_id="t", target="bob")
    assert (await refused(bob.CompleteTask(**work)))[0] == STATUS.FAILED_PRECONDITION
    assert (await refused(carol.AcceptTask(**work)))[:2] == (STATUS.FAILED_PRECONDITION, "ATTEMPT_SUPERSEDED")
    await bob.AcceptTask(**work)
    assert (await bob.AcceptTask(**{**work, "attempt": 0})).attempt == 1
    assert (await refused(bob.AcceptTask(**{**work, "attempt": 2})))[:2] == (
        STATUS.FAILED_PRECONDITION,
        "ATTEMPT_SUPERSEDED",
    )
    assert (await refused(carol.ReportTask(**work)))[0] == STATUS.PERMISSION_DENIED
    assert (await refused(bob.FailTask(**work, state=pb.TASK_STATE_CANCELLED)))[0] == STATUS.FAILED_PRECONDITION
    assert (await refused(bob.FailTask(**work, state=pb.TASK_STATE_COMPLETED)))[0] == STATUS.INVALID_ARGUMENT
    for bad in ({"progress": pb.TaskProgress(fraction=1.5)}, {"checkpoint_json": "no json"}, {"events_after": 99}):
        assert (await refused(bob.ReportTask(**work, **bad)))[0] == STATUS.INVALID_ARGUMENT
    assert (await refused(bob.ReportTask(**work, checkpoint_json=json.dumps("x" * 300_000))))[1] == "MESSAGE_TOO_LARGE"
    await bob.CompleteTask(**work, result_json="1")
    assert (await bob.CompleteTask(**work, result_json="1")).task.state == pb.TASK_STATE_COMPLETED
    for late in (
        bob.CompleteTask(**work, result_json="2"),
        bob.FailTask(**work, state=pb.TASK_STATE_FAILED),
        bob.ReportTask(**work),
        alice.SignalTask(task_id="t", name="x"),
    ):
        code, reason, metadata = await refused(late)
        assert (code, reason, metadata["state"]) == (STATUS.FAILED_PRECONDITION, "TASK_ENDED", "completed")
    again = (await alice.CancelTask(task_id="t")).task
    assert (again.state, again.cancel_requested) == (pb.TASK_STATE_COMPLETED, False)


async def test_executor_may_reject_before_work_begins_and_fail_afterwards(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    for name in ("r", "f"):
        await alice.DelegateTask(task_id=name, target="bob")
    rejected = (await bob.FailTask(delegator="alice", task_id="r", state=pb.TASK_STATE_REJECTED, reason="busy")).task
    assert (rejected.state, rejected.reason) == (pb.TASK_STATE_REJECTED, "busy")
    work = {"delegator": "alice", "task_id": "f", "attempt": 1}
    await bob.AcceptTask(**work)
    await bob.ReportTask(**work, progress=pb.TaskProgress())
    assert (await refused(bob.FailTask(**work, state=pb.TASK_STATE_REJECTED)))[0] == STATUS.FAILED_PRECONDITION
    failed = (await bob.FailTask(**work, state=pb.TASK_STATE_FAILED, reason="no disk")).task
    assert (failed.state, failed.reason, failed.attempts[0].outcome) == (pb.TASK_STATE_FAILED, "no disk", "no disk")
    assert (await bob.FailTask(**work, state=pb.TASK_STATE_FAILED, reason="no disk")).task == failed


# ---- watching ------------------------------------------------------------------------------------------------------------


async def test_watch_goes_on_after_a_cursor_and_says_which_events_are_gone(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_events=20))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    await bob.AcceptTask(**work)
    call = alice.WatchTask(task_id="t", after=0)
    async with asyncio.timeout(WAIT):
        assert (await call.read()).task.task_id == "t"
        await bob.ReportTask(**work, output=[pb.TaskOutput(text=f"{index}") for index in range(7)])
        events = [(await call.read()).event for _ in range(10)]
    assert [one.sequence for one in events] == list(range(1, 11))
    call.cancel()
    await bob.ReportTask(**work, output=[pb.TaskOutput(text="7")])
    again = alice.WatchTask(task_id="t", after=10)
    async with asyncio.timeout(WAIT):
        assert (await again.read()).task.last_event == 11
        event = (await again.read()).event
    assert (event.sequence, event.output.text, event.attempt) == (11, "7", 1)
    await bob.ReportTask(**work, output=[pb.TaskOutput(text="x") for _ in range(30)])
    code, reason, metadata = await refused(alice.WatchTask(task_id="t", after=10).read())
    assert (code, reason, metadata["first_kept"]) == (STATUS.OUT_OF_RANGE, "EVENTS_GONE", "22")
    assert (await refused(alice.WatchTask(task_id="t", after=1_000).read()))[0] == STATUS.INVALID_ARGUMENT
    await bob.CompleteTask(**work)
    _, *kept = await watched(alice.WatchTask(task_id="t", after=0))
    assert [one.event.sequence for one in kept] == list(range(23, 43))
    assert len(await watched(alice.WatchTask(task_id="t"))) == 1


async def test_drained_bus_ends_watches_of_tasks_that_go_on(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=0.2))
    alice, _ = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    call = alice.WatchTask(task_id="t", after=0)
    async with asyncio.timeout(WAIT):
        await call.read()
        await call.read()
        draining = asyncio.create_task(bus.drain())
        await alice.session.end()
    assert (await refused(call.read()))[:2] == (STATUS.UNAVAILABLE, "BUS_DRAINING")
    await draining


async def test_watches_are_bounded_and_free_their_place(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_watches=1))
    alice, _ = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    first = alice.WatchTask(task_id="t")
    async with asyncio.timeout(WAIT):
        await first.read()
        assert (await refused(alice.WatchTask(task_id="t").read()))[0] == STATUS.RESOURCE_EXHAUSTED
        first.cancel()

        async def free() -> bool:
            call = alice.WatchTask(task_id="t")
            try:
                return bool((await call.read()).task.task_id)
            except grpc.aio.AioRpcError:
                return False
            finally:
                call.cancel()

        await until(free)


# ---- calling off ---------------------------------------------------------------------------------------------------------


async def test_task_that_nobody_accepted_is_cancelled_at_once_and_its_message_withdrawn(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    await bob.delegation()
    cancelled = (await alice.CancelTask(task_id="t", reason="changed my mind")).task
    assert (cancelled.state, cancelled.reason) == (pb.TASK_STATE_CANCELLED, "changed my mind")
    assert bus.platform.ams.get("bob").mailbox.messages == 0
    assert (await refused(bob.AcceptTask(delegator="alice", task_id="t")))[:2] == (
        STATUS.FAILED_PRECONDITION,
        "TASK_ENDED",
    )


async def test_executor_that_obeys_ends_a_cancelled_task_or_was_done_before(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    for name in ("obeys", "done"):
        await alice.DelegateTask(task_id=name, target="bob")
        work = {"delegator": "alice", "task_id": name, "attempt": 1}
        await bob.AcceptTask(**work)
        pending = (await alice.CancelTask(task_id=name, reason="too dear")).task
        assert (pending.state, pending.cancel_requested) == (pb.TASK_STATE_ACCEPTED, True)
        heard = await bob.ReportTask(**work, events_after=0)
        assert (heard.cancel_requested, [one.cancel_requested for one in heard.events]) == (True, ["too dear"])
        if name == "obeys":
            task = (await bob.FailTask(**work, state=pb.TASK_STATE_CANCELLED, reason="stopped")).task
            assert (task.state, task.reason) == (pb.TASK_STATE_CANCELLED, "stopped")
        else:
            assert (await bob.CompleteTask(**work, result_json="1")).task.state == pb.TASK_STATE_COMPLETED


async def test_executor_that_does_not_obey_loses_the_task_and_takes_the_next_one(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(**{**QUICK, "task_lease": 60.0}))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    await bob.AcceptTask(**work)
    await alice.CancelTask(task_id="t")
    task = await ended(alice, "t")
    assert (task.state, task.reason) == (pb.TASK_STATE_CANCELLED, "its executor did not obey")
    assert (await refused(bob.CompleteTask(**work)))[1] == "TASK_ENDED"
    await alice.DelegateTask(task_id="next", target="bob")
    await bob.AcceptTask(delegator="alice", task_id="next")
    done = await bob.CompleteTask(delegator="alice", task_id="next", attempt=1)
    assert done.task.state == pb.TASK_STATE_COMPLETED


async def test_end_of_a_parent_calls_off_its_children_unless_it_was_completed(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(**{**QUICK, "task_lease": 60.0}))
    alice, bob, carol = await side(bus, "alice"), await side(bus, "bob"), await side(bus, "carol")
    for parent in ("called-off", "completed"):
        await alice.DelegateTask(task_id=parent, target="bob")
        await bob.AcceptTask(delegator="alice", task_id=parent)
        for child in ("new", "begun"):
            made = await bob.DelegateTask(
                task_id=f"{parent}-{child}", target="carol", parent_delegator="alice", parent_task_id=parent
            )
            assert (made.task.depth, made.task.root_delegator, made.task.root_task_id) == (2, "alice@local", parent)
            assert (made.task.parent_delegator, made.task.parent_task_id) == ("alice@local", parent)
        await carol.AcceptTask(delegator="bob", task_id=f"{parent}-begun")
    assert (await refused(carol.DelegateTask(target="bob", parent_delegator="alice", parent_task_id="completed")))[
        0
    ] == (STATUS.PERMISSION_DENIED)
    await alice.CancelTask(task_id="called-off")
    await bob.CompleteTask(delegator="alice", task_id="completed", attempt=1)
    new = await ended(bob, "called-off-new")
    begun = await ended(bob, "called-off-begun")
    assert (new.state, "parent" in new.reason) == (pb.TASK_STATE_CANCELLED, True)
    assert (begun.state, begun.reason) == (pb.TASK_STATE_CANCELLED, "its executor did not obey")
    for child in ("new", "begun"):
        assert not (await bob.GetTask(task_id=f"completed-{child}")).task.cancel_requested
    code, reason, _ = await refused(
        bob.DelegateTask(target="carol", parent_delegator="alice", parent_task_id="completed")
    )
    assert (code, reason) == (STATUS.FAILED_PRECONDITION, "TASK_ENDED")


async def test_chain_of_tasks_has_a_bound_and_inherits_the_deadline(bus: Bus, side: Any) -> None:
    alice = await side(bus, "alice")
    deadline = at(bus.platform.now() + 100)
    later = at(bus.platform.now() + 1_000)
    for depth in range(1, 9):
        parent = {"parent_delegator": "alice", "parent_task_id": f"t{depth - 1}"} if depth > 1 else {}
        made = await alice.DelegateTask(
            task_id=f"t{depth}", target="alice", deadline=deadline if depth == 1 else later, **parent
        )
        assert (made.task.depth, made.task.root_task_id) == (depth, "t1")
        assert abs(made.task.deadline.seconds - deadline.seconds) <= 1
        await alice.AcceptTask(delegator="alice", task_id=f"t{depth}")
    code, reason, _ = await refused(alice.DelegateTask(target="alice", parent_delegator="alice", parent_task_id="t8"))
    assert (code, reason) == (STATUS.FAILED_PRECONDITION, "PRECONDITION_FAILED")


async def test_deadline_ends_a_task_in_any_state_and_withdraws_its_message(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(**{**QUICK, "task_lease": 60.0}))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    # Away: nobody sees the message.
    await bob.session.leave()
    soon = at(bus.platform.now() + 1.0)
    await alice.DelegateTask(task_id="unseen", target="bob", deadline=soon)
    await alice.DelegateTask(task_id="begun", target="alice", deadline=soon)
    await alice.AcceptTask(delegator="alice", task_id="begun")
    for name in ("unseen", "begun"):
        task = await ended(alice, name)
        assert (task.state, task.reason) == (pb.TASK_STATE_EXPIRED, "its deadline passed")
    assert bus.platform.ams.get("bob").mailbox.messages == 0
    assert not len(bus.platform.dead_letters)


# ---- executors that are lost -----------------------------------------------------------------------------------------------


async def test_lease_that_is_not_renewed_fails_the_task(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(**QUICK))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    await bob.AcceptTask(**work)
    task = await ended(alice, "t")
    assert (task.state, task.reason, task.attempts[0].outcome) == (
        pb.TASK_STATE_FAILED,
        "executor lost",
        "executor lost",
    )
    assert (await refused(bob.ReportTask(**work)))[1] == "TASK_ENDED"


async def test_next_attempt_of_a_role_gets_the_checkpoint_and_fences_the_one_before(buses: Any, side: Any) -> None:
    # Long enough for the calls of an attempt on a busy machine.
    bus = await buses(limits=BusLimits(**{**QUICK, "task_lease": 1.5}))
    alice = await side(bus, "alice")
    first = await side(bus, "first", description=offer("adder"))
    await alice.DelegateTask(task_id="t", target="role:adder", on_executor_lost=REDELIVER)
    order = await first.delegation()
    await first.AcceptTask(delegator="alice", task_id="t", attempt=order.attempt)
    await first.ReportTask(delegator="alice", task_id="t", attempt=1, checkpoint_json='{"at": 7}')
    second = await side(bus, "second", description=offer("adder"))
    # Nothing of the first one any more; it is there, but does not offer the service.
    await first.session.leave()
    order = await second.delegation()
    assert (order.task_id, order.attempt, order.delegator) == ("t", 2, "alice@local")
    begun = await second.AcceptTask(delegator="alice", task_id="t", attempt=2)
    assert (begun.attempt, begun.task.checkpoint_json, begun.task.executor) == (2, '{"at": 7}', "second@local")
    back = await side(bus, "first")
    code, reason, metadata = await refused(back.CompleteTask(delegator="alice", task_id="t", attempt=1))
    assert (code, reason, metadata["in_force"]) == (STATUS.FAILED_PRECONDITION, "ATTEMPT_SUPERSEDED", "2")
    done = (await second.CompleteTask(delegator="alice", task_id="t", attempt=2, result_json="1")).task
    assert [(one.number, one.executor, one.outcome) for one in done.attempts] == [
        (1, "first@local", "executor lost"),
        (2, "second@local", "completed"),
    ]
    states = [
        one.event.state for one in await watched(alice.WatchTask(task_id="t", after=0)) if one.event.HasField("state")
    ]
    assert [one.state for one in states] == [
        pb.TASK_STATE_SUBMITTED,
        pb.TASK_STATE_ACCEPTED,
        pb.TASK_STATE_RUNNING,
        pb.TASK_STATE_SUBMITTED,
        pb.TASK_STATE_ACCEPTED,
        pb.TASK_STATE_COMPLETED,
    ]


async def test_attempts_end_with_their_number(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(**QUICK))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob", on_executor_lost=REDELIVER, max_attempts=2)
    for attempt in (1, 2):
        order = await bob.delegation(attempt)
        assert order.attempt == attempt
        await bob.AcceptTask(delegator="alice", task_id="t", attempt=attempt)
    task = await ended(alice, "t")
    assert (task.state, task.reason, len(task.attempts)) == (pb.TASK_STATE_FAILED, "executor lost", 2)


async def test_task_of_a_role_that_nobody_has_seen_goes_to_another_provider(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(**{**QUICK, "task_lease": 60.0}))
    alice = await side(bus, "alice")
    first = await side(bus, "first", description=offer("adder"), window=bus_pb.Window(messages=1))
    # With its window full it sees nothing more.
    await alice.DelegateTask(task_id="seen", target="role:adder")
    await first.delegation()
    await alice.DelegateTask(task_id="unseen", target="role:adder")
    second = await side(bus, "second", description=offer("adder"))
    await first.session.vanish()
    order = await second.delegation()
    assert (order.task_id, order.attempt) == ("unseen", 1)
    task = await ended(alice, "seen")
    assert (task.state, task.reason) == (pb.TASK_STATE_FAILED, "executor lost")
    await second.AcceptTask(delegator="alice", task_id="unseen", attempt=1)
    assert (await second.CompleteTask(delegator="alice", task_id="unseen", attempt=1)).task.executor == "second@local"


async def test_freed_names_end_what_waits_for_them(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="unseen", target="bob")
    await alice.DelegateTask(task_id="begun", target="bob", on_executor_lost=REDELIVER)
    await bob.AcceptTask(delegator="alice", task_id="begun")
    await bob.DelegateTask(task_id="own", target="alice")
    await alice.AcceptTask(delegator="bob", task_id="own")
    await bob.session.say(bye=bus_pb.Bye(deregister=True))
    await bob.session.end()
    for name in ("unseen", "begun"):
        task = await ended(alice, name)
        assert (task.state, task.reason) == (pb.TASK_STATE_FAILED, "executor lost")
    orphan = (await alice.GetTask(task_id="own", delegator="bob")).task
    assert (orphan.state, orphan.reason) == (pb.TASK_STATE_CANCELLED, "its delegator is gone: deregistered")
    # Whoever bears the name next is somebody else, and has none of that.
    heir = await side(bus, "bob")
    assert [one.task_id for one in (await heir.ListTasks()).tasks] == []
    assert not (await heir.DelegateTask(task_id="own", target="alice", description="another")).existed
    assert [one.description for one in (await alice.ListTasks(delegator="bob")).tasks] == ["another"]


# ---- by messages -----------------------------------------------------------------------------------------------------------


async def test_delegate_message_makes_a_task_and_messages_drive_it(bus: Bus, side: Any) -> None:
    alice, bob, carol = await side(bus, "alice"), await side(bus, "bob"), await side(bus, "carol")
    order = acp_pb2.TaskDelegation(task_id="t", description="add", parameters_json='{"a": 1}')
    assert await alice.says("bob", "DELEGATE", id="m1", delegation=order) == []
    task = (await alice.GetTask(task_id="t")).task
    assert (task.state, task.executor, task.description) == (pb.TASK_STATE_SUBMITTED, "bob@local", "add")
    same = await alice.DelegateTask(task_id="t", target="bob", description="add", parameters_json='{"a": 1}')
    assert same.existed
    # The sender's own message came, as it was.
    assert (await bob.delegation()) == order
    assert bob.session.deliveries[0].message.id == "m1"
    update = acp_pb2.TaskUpdate(task_id="t", status="accepted")
    assert [one.outcome for one in await carol.says("alice", "RESPONSE", update=update)] == [bus_pb.OUTCOME_DENIED]
    assert await bob.says("alice", "RESPONSE", update=update) == []
    assert (await alice.GetTask(task_id="t")).task.state == pb.TASK_STATE_ACCEPTED
    progress = acp_pb2.TaskUpdate(task_id="t", status="running", progress=0.5, note="half")
    assert await bob.says("alice", "NOTIFICATION", update=progress) == []
    task = (await alice.GetTask(task_id="t")).task
    assert (task.state, task.progress, task.note) == (pb.TASK_STATE_RUNNING, 0.5, "half")
    result = acp_pb2.TaskResult(task_id="t", status="completed", result_json="3")
    bad = acp_pb2.TaskResult(task_id="t", status="sort of")
    assert [one.outcome for one in await bob.says("alice", "RESULT", result=bad)] == [bus_pb.OUTCOME_INVALID]
    assert await bob.says("alice", "RESULT", id="r1", result=result) == bob.session.receipts
    task = await ended(alice, "t")
    assert (task.state, task.result_json, task.attempts[0].executor) == (pb.TASK_STATE_COMPLETED, "3", "bob@local")
    assert (await alice.receives(acp_pb2.ACP_MESSAGE_TYPE_RESULT))[0].result == result
    late = await bob.says("alice", "ERROR", error=acp_pb2.AcpError(text="after all not", task_id="t"))
    assert late[-1].outcome == bus_pb.OUTCOME_EXPIRED
    repeated = await bob.says("alice", "RESULT", id="r1", result=result)
    assert repeated[-1].outcome == bus_pb.OUTCOME_DUPLICATE
    assert (await alice.GetTask(task_id="t")).task == task


async def test_delegate_message_is_known_again_and_another_one_of_its_id_refused(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    order = acp_pb2.TaskDelegation(task_id="t", description="add")
    await alice.says("bob", "DELEGATE", id="m1", delegation=order)
    receipts = await alice.says("bob", "DELEGATE", id="m1", delegation=order)
    await alice.says("bob", "DELEGATE", id="m2", delegation=order)
    await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="t", description="other"))
    await alice.says("nobody", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="n"))
    await alice.says("role:none", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="n"))
    await alice.says("topic:news", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="n"))
    await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="n", parameters_json="[]"))
    assert [bus_pb.Outcome.Name(one.outcome).removeprefix("OUTCOME_") for one in receipts] == [
        "DUPLICATE",
        "DUPLICATE",
        "INVALID",
        "NO_SUCH_AGENT",
        "NO_PROVIDER",
        "INVALID",
        "INVALID",
    ]
    assert receipts[2].field == "acp.delegation.task_id"
    assert (await refused(alice.GetTask(task_id="n")))[0] == STATUS.NOT_FOUND
    # One without an id of the task gets that of the message.
    await alice.says("bob", "DELEGATE", id="m3", delegation=acp_pb2.TaskDelegation(description="nameless"))
    assert (await bob.delegation(2)).task_id == "m3"
    assert (await alice.GetTask(task_id="m3")).task.description == "nameless"


async def test_who_delegated_by_a_message_hears_by_messages_what_calls_say(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    for name in ("done", "failed", "off"):
        await alice.says("bob", "DELEGATE", id=f"m-{name}", delegation=acp_pb2.TaskDelegation(task_id=name))
    work = {"delegator": "alice", "task_id": "done", "attempt": 1}
    await bob.AcceptTask(**work)
    await bob.ReportTask(**work, progress=pb.TaskProgress(fraction=0.25, note="a quarter"))
    await bob.CompleteTask(**work, result_json="[1]")
    (response,) = await alice.receives(acp_pb2.ACP_MESSAGE_TYPE_RESPONSE)
    assert (response.source, response.in_reply_to, response.update.status) == ("bob@local", "m-done", "accepted")
    (news,) = await alice.receives(acp_pb2.ACP_MESSAGE_TYPE_NOTIFICATION)
    assert (news.update.task_id, news.update.progress, news.update.note) == ("done", 0.25, "a quarter")
    (result,) = await alice.receives(acp_pb2.ACP_MESSAGE_TYPE_RESULT)
    assert (result.result.status, result.result.result_json, result.source) == ("completed", "[1]", "bob@local")
    await bob.FailTask(delegator="alice", task_id="failed", state=pb.TASK_STATE_REJECTED, reason="busy")
    await alice.CancelTask(task_id="off")
    rejected, off = await alice.receives(acp_pb2.ACP_MESSAGE_TYPE_ERROR, 2)
    assert (rejected.error.code, rejected.error.text, rejected.error.task_id) == ("REJECTED", "busy", "failed")
    assert (off.error.code, off.source, off.in_reply_to) == ("CANCELLED", "ams@local", "m-off")


async def test_executor_that_speaks_messages_hears_of_answers_signals_and_the_wish_to_cancel(
    bus: Bus, side: Any
) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    asks = acp_pb2.TaskUpdate(task_id="t", status="input-required", note="which?")
    await bob.says("alice", "NOTIFICATION", update=asks)
    task = (await alice.GetTask(task_id="t")).task
    assert (task.state, task.question) == (pb.TASK_STATE_INPUT_REQUIRED, "which?")
    await alice.AnswerTask(task_id="t", answer_json='"this"')
    await alice.SignalTask(task_id="t", name="hurry", value_json="1")
    await alice.CancelTask(task_id="t", reason="enough")
    heard = [one.update for one in await bob.receives(acp_pb2.ACP_MESSAGE_TYPE_NOTIFICATION, 3)]
    assert [(one.status, one.task_id) for one in heard] == [("answer", "t"), ("signal", "t"), ("cancel", "t")]
    assert (heard[0].note, json.loads(heard[1].note), heard[2].note) == (
        '"this"',
        {"name": "hurry", "value": 1},
        "enough",
    )
    await bob.says("alice", "ERROR", error=acp_pb2.AcpError(text="stopped", task_id="t"))
    task = await ended(alice, "t")
    assert (task.state, task.reason) == (pb.TASK_STATE_CANCELLED, "stopped")


async def test_delegator_calls_off_by_a_message_and_an_error_before_acceptance_rejects(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    for name in ("off", "no"):
        await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id=name))
    await bob.says("alice", "RESPONSE", update=acp_pb2.TaskUpdate(task_id="off", status="accepted"))
    await alice.says("bob", "NOTIFICATION", update=acp_pb2.TaskUpdate(task_id="off", status="cancel", note="stop"))
    (told,) = await bob.receives(acp_pb2.ACP_MESSAGE_TYPE_NOTIFICATION)
    assert told.update.note == "stop"
    assert (await alice.GetTask(task_id="off")).task.cancel_requested
    await bob.says("alice", "ERROR", error=acp_pb2.AcpError(code="BUSY", text="no time", task_id="no"))
    assert (await alice.GetTask(task_id="no")).task.state == pb.TASK_STATE_REJECTED
    # About a task that is not known here it is a message like any other.
    assert await bob.says("alice", "RESULT", result=acp_pb2.TaskResult(task_id="unknown", status="whatever")) == []
    await alice.receives(acp_pb2.ACP_MESSAGE_TYPE_RESULT)


async def test_executor_that_speaks_messages_lives_by_its_session(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(**{**QUICK, "task_lease": 0.1}))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="t"))
    await bob.says("alice", "RESPONSE", update=acp_pb2.TaskUpdate(task_id="t", status="accepted"))
    # Longer than a lease would be, seen by one that runs out meanwhile.
    await alice.DelegateTask(task_id="leased", target="bob")
    await bob.AcceptTask(delegator="alice", task_id="leased")
    await ended(alice, "leased")
    assert (await alice.GetTask(task_id="t")).task.state == pb.TASK_STATE_ACCEPTED
    await bob.session.vanish()
    task = await ended(alice, "t")
    assert (task.state, task.reason) == (pb.TASK_STATE_FAILED, "executor lost")
    (lost,) = await alice.receives(acp_pb2.ACP_MESSAGE_TYPE_ERROR)
    assert (lost.error.code, "no session" in lost.error.text) == ("EXECUTOR_LOST", True)


async def test_message_that_is_rejected_rejects_its_task(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    await bob.delegation()
    reject = bus_pb.Reject(sequence=bob.session.deliveries[0].sequence, reason="not my trade")
    await bob.session.settle(rejects=[reject])
    task = await ended(alice, "t")
    assert (task.state, "not my trade" in task.reason) == (pb.TASK_STATE_REJECTED, True)


# ---- restart, and what is forgotten ----------------------------------------------------------------------------------------


async def test_tasks_survive_a_restart_in_every_state(tmp_path: Path, side: Any) -> None:
    path = tmp_path / "bus.db"
    limits = BusLimits(drain_grace=0.2, task_events=5)
    tokens = {}
    async with running_bus(SqliteStore(path), limits=limits) as bus:
        alice, bob = await side(bus, "alice"), await side(bus, "bob")
        for name in ("new", "begun", "done", "asks"):
            await alice.DelegateTask(
                task_id=name, target="bob", description=f"the {name} one", on_executor_lost=REDELIVER
            )
        for name in ("begun", "done", "asks"):
            work = {"delegator": "alice", "task_id": name, "attempt": 1}
            await bob.AcceptTask(**work)
        await bob.ReportTask(
            delegator="alice",
            task_id="begun",
            attempt=1,
            progress=pb.TaskProgress(fraction=0.5),
            checkpoint_json='"here"',
            output=[pb.TaskOutput(text=f"{index}") for index in range(9)],
        )
        await bob.CompleteTask(delegator="alice", task_id="done", attempt=1, result_json="[1]")
        await bob.ReportTask(delegator="alice", task_id="asks", attempt=1, question="which?")
        before = {one.task_id: one for one in (await alice.ListTasks()).tasks}
        events = await watched_so_far(alice, "begun", 5)
        tokens = {one.aid: one.session.welcome.resume_token for one in (alice, bob)}
    async with running_bus(SqliteStore(path), limits=limits) as bus:
        alice = await side(bus, "alice", resume_token=tokens["alice@local"])
        bob = await side(bus, "bob", resume_token=tokens["bob@local"])
        after = {one.task_id: one for one in (await alice.ListTasks()).tasks}
        assert after == before
        assert await watched_so_far(alice, "begun", 5) == events
        assert (await refused(alice.WatchTask(task_id="begun", after=2).read()))[1] == "EVENTS_GONE"
        assert (
            await alice.DelegateTask(task_id="new", target="bob", description="the new one", on_executor_lost=REDELIVER)
        ).existed
        # Attempts go on where they were, and the message of the new one is still there.
        assert "new" in [one.delegation.task_id for one in await bob.receives(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE)]
        await bob.AcceptTask(delegator="alice", task_id="new", attempt=1)
        assert (await bob.CompleteTask(delegator="alice", task_id="begun", attempt=1)).task.last_event == (
            before["begun"].last_event + 1
        )
        await alice.AnswerTask(task_id="asks", answer_json="1")
        made = (await alice.DelegateTask(task_id="later", target="bob")).task
        assert [one.task_id for one in (await alice.ListTasks(max_results=1)).tasks] == [made.task_id]


async def watched_so_far(side: Side, task_id: str, count: int) -> list[Any]:
    call = side.WatchTask(task_id=task_id, after=0)
    async with asyncio.timeout(WAIT):
        await call.read()
        found = [(await call.read()).event for _ in range(count)]
    call.cancel()
    return found


async def test_leases_and_graces_begin_anew_after_a_restart_and_end(tmp_path: Path, side: Any) -> None:
    path = tmp_path / "bus.db"
    async with running_bus(SqliteStore(path), limits=BusLimits(drain_grace=0.2)) as bus:
        alice, bob = await side(bus, "alice"), await side(bus, "bob")
        for name in ("leased", "cancelled", "by-message"):
            await alice.DelegateTask(task_id=name, target="bob")
        await alice.DelegateTask(task_id="expires", target="alice", deadline=at(bus.platform.now() + 1.0))
        for name in ("leased", "cancelled"):
            await bob.AcceptTask(delegator="alice", task_id=name)
        await bob.says("alice", "RESPONSE", update=acp_pb2.TaskUpdate(task_id="by-message", status="accepted"))
        await alice.CancelTask(task_id="cancelled")
    limits = BusLimits(**QUICK)
    async with running_bus(SqliteStore(path), limits=limits) as bus:
        alice = await side(bus, "alice")
        reasons = {name: (await ended(alice, name)).reason for name in ("leased", "cancelled", "by-message", "expires")}
    assert reasons == {
        "leased": "executor lost",
        "cancelled": "its executor did not obey",
        "by-message": "executor lost",
        "expires": "its deadline passed",
    }


async def test_ended_tasks_are_forgotten_after_their_retention(tmp_path: Path, buses: Any, side: Any) -> None:
    path = tmp_path / "bus.db"
    # The clock of the bus goes by the shortest of its intervals.
    limits = BusLimits(drain_grace=0.2, resume_grace=0.4, task_retention=0.1, tasks_per_agent=1)
    bus = await buses(store=SqliteStore(path), limits=limits)
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    assert (await refused(alice.DelegateTask(task_id="u", target="bob")))[0] == STATUS.RESOURCE_EXHAUSTED
    await bob.AcceptTask(delegator="alice", task_id="t")
    await bob.CompleteTask(delegator="alice", task_id="t", attempt=1)
    await until(lambda: not len(bus.platform.tasks.table))
    assert (await refused(alice.GetTask(task_id="t")))[:2] == (STATUS.NOT_FOUND, "TASK_NOT_FOUND")
    assert not (await alice.DelegateTask(task_id="t", target="bob", description="another")).existed
    await bus.drain()


async def test_five_hundred_tasks_at_once_have_their_results(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    names = [f"t{index}" for index in range(500)]
    async with asyncio.timeout(WAIT):
        await asyncio.gather(*(alice.DelegateTask(task_id=name, target="bob") for name in names))

        async def work(name: str) -> None:
            await bob.AcceptTask(delegator="alice", task_id=name)
            await bob.CompleteTask(delegator="alice", task_id=name, attempt=1, result_json=f'"{name}"')

        await asyncio.gather(*map(work, names))
        found = [(await alice.GetTask(task_id=name)).task for name in names]
    assert [(one.state, one.result_json) for one in found] == [(pb.TASK_STATE_COMPLETED, f'"{name}"') for name in names]
