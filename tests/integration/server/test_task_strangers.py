"""What a stranger tries who has read the protos only: strange ids, strange values, floods, calls at the wrong time.

Nothing of it ends the bus, costs others anything, or leaves a task behind that nobody can read.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from tasking import Side, ended, info_of, refused, watched
from waiting import until

from gagent_grpc import Operator
from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.delegation import Wish
from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as bus_pb
from gagent_grpc.pb.gagent.v1 import task_service_pb2 as pb
from gagent_grpc.server.app import Bus

pytestmark = pytest.mark.timeout(60)
STATUS = grpc.StatusCode
REDELIVER = acp_pb2.EXECUTOR_LOST_POLICY_REDELIVER
STRANGE_IDS = [
    "é" * 64,
    "任务-1",
    "𐐷",
    "a b",
    "../../x",
    "a@b",
    "*",
    "role:x",
    "%00",
    "\0",
    "\n",
    "'; drop table",
    "x" * 128,
]


@pytest.fixture
async def both(bus: Bus, side: Any) -> tuple[Side, Side]:
    return await side(bus, "alice"), await side(bus, "bob")


# ---- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_id", STRANGE_IDS)
async def test_strange_id_is_an_id_like_any_other(both: tuple[Side, Side], task_id: str) -> None:
    alice, bob = both
    made = await alice.DelegateTask(task_id=task_id, target="bob")
    assert made.task.task_id == task_id
    assert (await bob.delegation()).task_id == task_id
    work = {"delegator": "alice", "task_id": task_id, "attempt": 1}
    await bob.AcceptTask(**work)
    await bob.ReportTask(**work, checkpoint_json='"here"')
    await bob.ReleaseTask(**work)
    assert (await bob.delegation(2)).attempt == 2
    await bob.AcceptTask(**{**work, "attempt": 2})
    await bob.CompleteTask(**{**work, "attempt": 2})
    assert (await ended(alice, task_id)).state == pb.TASK_STATE_COMPLETED


async def test_id_that_is_too_long_or_absent_is_told(both: tuple[Side, Side]) -> None:
    alice, bob = both
    for task_id in ("x" * 129, "é" * 65, "y" * 200, "z" * 100_000):
        code, reason, metadata = await refused(alice.DelegateTask(task_id=task_id, target="bob"))
        assert (code, reason, metadata["field"]) == (STATUS.INVALID_ARGUMENT, "INVALID_ARGUMENT", "task_id")
        (receipt,) = (await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id=task_id)))[-1:]
        assert (receipt.outcome, receipt.field) == (bus_pb.OUTCOME_INVALID, "acp.delegation.task_id")
        assert len(receipt.detail) < 300
        for call in (
            alice.GetTask(task_id=task_id),
            alice.CancelTask(task_id=task_id),
            alice.SignalTask(task_id=task_id, name="n"),
            alice.AnswerTask(task_id=task_id, answer_json="1"),
            alice.WatchTask(task_id=task_id).read(),
            bob.AcceptTask(delegator="alice", task_id=task_id),
            bob.ReleaseTask(delegator="alice", task_id=task_id, attempt=1),
        ):
            assert (await refused(call))[0] == STATUS.NOT_FOUND
    for call in (alice.GetTask(), alice.WatchTask().read(), bob.AcceptTask(delegator="alice"), bob.ReleaseTask()):
        assert (await refused(call))[0] == STATUS.INVALID_ARGUMENT
    for delegator in ("b ob", "x" * 300, "a@b@c", "alice@"):
        assert (await refused(bob.AcceptTask(delegator=delegator, task_id="t")))[0] == STATUS.INVALID_ARGUMENT


async def test_delegator_and_target_may_have_any_letters_in_one_form(bus: Bus, side: Any) -> None:
    zoe, bob = await side(bus, "zoë"), await side(bus, "борис")
    await zoe.DelegateTask(task_id="t", target="борис")
    await bob.AcceptTask(delegator="zoë", task_id="t")
    assert (await bob.GetTask(task_id="t", delegator="zoë@local")).task.state == pb.TASK_STATE_ACCEPTED
    # As an author writes it whose keyboard composes otherwise: told what is expected, and nobody else's task.
    for call in (bob.CompleteTask(delegator="zoe\u0308", task_id="t"), zoe.DelegateTask(target="zoe\u0308")):
        with pytest.raises(grpc.aio.AioRpcError, match="normal form C") as caught:
            await call
        assert caught.value.code() == STATUS.INVALID_ARGUMENT


# ---- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [math.nan, math.inf, -math.inf, -0.1, 1.0001, 1e308])
async def test_progress_that_is_none_is_refused_and_the_task_goes_on(both: tuple[Side, Side], fraction: float) -> None:
    alice, bob = both
    await alice.DelegateTask(task_id="t", target="bob")
    await bob.AcceptTask(delegator="alice", task_id="t")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    code, _, metadata = await refused(bob.ReportTask(**work, progress=pb.TaskProgress(fraction=fraction), question="?"))
    assert (code, metadata["field"]) == (STATUS.INVALID_ARGUMENT, "progress.fraction")
    update = acp_pb2.TaskUpdate(task_id="t", status="running", progress=fraction)
    assert (await bob.says("alice", "NOTIFICATION", update=update))[-1].field == "acp.update.progress"
    # Nothing of a report that is refused was taken.
    task = (await alice.GetTask(task_id="t")).task
    assert (task.state, task.last_event, task.question) == (pb.TASK_STATE_ACCEPTED, 2, "")
    await bob.CompleteTask(**work)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "deep", ['{"a":' + DEEP + "}", '{"a":' + "[" * 600 + "]" * 600 + "}", '{"a":' * 5_000 + "1" + "}" * 5_000]
)
async def test_deep_json_is_refused_everywhere_and_read_by_nobody(bus: Bus, both: tuple[Side, Side], deep: str) -> None:
    alice, bob = both
    assert (await refused(alice.DelegateTask(task_id="t", target="bob", parameters_json=deep)))[
        0
    ] == STATUS.INVALID_ARGUMENT
    order = acp_pb2.TaskDelegation(task_id="t", parameters_json=deep)
    assert (await alice.says("bob", "DELEGATE", delegation=order))[-1].outcome == bus_pb.OUTCOME_INVALID
    await alice.DelegateTask(task_id="t", target="bob", parameters_json='{"a":' + "[" * 400 + "]" * 400 + "}")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    await bob.AcceptTask(**work)
    assert (await refused(bob.ReportTask(**work, checkpoint_json=deep[: 250 * 1024])))[0] == STATUS.INVALID_ARGUMENT
    assert (await refused(alice.SignalTask(task_id="t", name="n", value_json=deep)))[0] == STATUS.INVALID_ARGUMENT
    assert (await refused(bob.CompleteTask(**work, result_json=deep)))[0] == STATUS.INVALID_ARGUMENT
    # What is taken is read by everybody.
    async with Operator(bus.address) as operator:
        (task,) = await operator.tasks()
        assert json.dumps(task.parameters) == '{"a": ' + "[" * 400 + "]" * 400 + "}"


async def test_what_is_too_large_is_refused_by_its_size(both: tuple[Side, Side]) -> None:
    alice, bob = both
    large = "x" * 1_100_000
    for said in ({"description": large}, {"parameters_json": json.dumps({"a": large})}):
        assert (await refused(alice.DelegateTask(task_id="t", target="bob", **said)))[1] == "MESSAGE_TOO_LARGE"
        (receipt,) = (await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="t", **said)))[-1:]
        assert receipt.outcome == bus_pb.OUTCOME_TOO_LARGE
    # Just below the limit description and parameters fit, and the message around them does not.
    assert (await refused(alice.DelegateTask(task_id="t", target="bob", description="x" * 1_000_000)))[
        1
    ] == "MESSAGE_TOO_LARGE"
    assert (await refused(alice.GetTask(task_id="t")))[0] == STATUS.NOT_FOUND
    assert bob.deliveries(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE) == []


@pytest.mark.parametrize(
    "url", ["", "\0", "javascript:alert(1)", "http://x\r\nHost: y", "é" * 4_000, "file:///etc/passwd"]
)
async def test_strange_callback_url_is_carried_as_it_is(both: tuple[Side, Side], url: str) -> None:
    alice, bob = both
    assert (await alice.DelegateTask(task_id="t", target="bob", callback_url=url)).task.callback_url == url
    assert (await bob.delegation()).callback_url == url
    code, _, metadata = await refused(alice.DelegateTask(task_id="u", target="bob", callback_url="x" * 8_001))
    assert (code, metadata["field"]) == (STATUS.INVALID_ARGUMENT, "callback_url")


@pytest.mark.parametrize(
    "moment",
    [
        Timestamp(seconds=1),
        Timestamp(seconds=-5),
        Timestamp(seconds=-(2**63)),
        Timestamp(seconds=2**63 - 1),
        Timestamp(seconds=300_000_000_000),
        Timestamp(),
    ],
)
async def test_deadline_that_is_none_is_refused(both: tuple[Side, Side], moment: Timestamp) -> None:
    alice, _ = both
    code, _, metadata = await refused(alice.DelegateTask(task_id="t", target="bob", deadline=moment))
    assert (code, metadata["field"]) == (STATUS.INVALID_ARGUMENT, "deadline")


async def test_numbers_that_mean_nothing_are_refused(both: tuple[Side, Side]) -> None:
    alice, bob = both
    for said, field in (
        ({"max_attempts": 2**32 - 1}, "max_attempts"),
        ({"on_executor_lost": 99}, "on_executor_lost"),
        ({"priority": 99}, "priority"),
    ):
        code, _, metadata = await refused(alice.DelegateTask(task_id="t", target="bob", **said))
        assert (code, metadata["field"]) == (STATUS.INVALID_ARGUMENT, field)
    await alice.DelegateTask(task_id="t", target="bob")
    await bob.AcceptTask(delegator="alice", task_id="t")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    assert (await refused(bob.FailTask(**work, state=99)))[0] == STATUS.INVALID_ARGUMENT
    assert (await refused(bob.FailTask(**work, state=pb.TASK_STATE_COMPLETED)))[0] == STATUS.INVALID_ARGUMENT
    assert (await refused(bob.ReportTask(**work, events_after=2**63)))[0] == STATUS.INVALID_ARGUMENT
    assert (await refused(alice.WatchTask(task_id="t", after=2**63).read()))[0] == STATUS.INVALID_ARGUMENT
    assert (await refused(alice.ListTasks(states=[99])))[0] == STATUS.INVALID_ARGUMENT
    for token in ("-1", "x", "9" * 50, "²"):
        assert (await refused(alice.ListTasks(page_token=token)))[0] == STATUS.INVALID_ARGUMENT
    assert len((await alice.ListTasks(max_results=2**32 - 1)).tasks) == 1
    assert (await refused(bob.ReleaseTask(**{**work, "attempt": 2**32 - 1})))[1] == "ATTEMPT_SUPERSEDED"


# ---- at the wrong time ---------------------------------------------------------------------------------------------------


async def test_calls_at_the_wrong_time_change_nothing(both: tuple[Side, Side]) -> None:
    alice, bob = both
    await alice.DelegateTask(task_id="t", target="bob")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    assert (await refused(alice.AnswerTask(task_id="t", answer_json="1")))[0] == STATUS.FAILED_PRECONDITION
    assert (await refused(bob.ReportTask(**work)))[0] == STATUS.FAILED_PRECONDITION
    assert (await refused(bob.CompleteTask(**work)))[0] == STATUS.FAILED_PRECONDITION
    # A signal to a task that nobody took waits for whoever takes it.
    await alice.SignalTask(task_id="t", name="hurry", value_json='{"by": 3.0}')
    await bob.AcceptTask(**work)
    heard = (await bob.ReportTask(**work, events_after=0)).events
    assert [(one.signal.name, one.signal.value_json) for one in heard] == [("hurry", '{"by": 3.0}')]
    await bob.CompleteTask(**work, result_json="1")
    for call in (
        alice.AnswerTask(task_id="t", answer_json="1"),
        alice.SignalTask(task_id="t", name="late"),
        bob.ReportTask(**work, progress=pb.TaskProgress()),
        bob.AcceptTask(**work),
        bob.ReleaseTask(**work),
        bob.FailTask(**work, state=pb.TASK_STATE_FAILED),
    ):
        assert (await refused(call))[1] == "TASK_ENDED"
    cancelled = (await alice.CancelTask(task_id="t", reason="late")).task
    assert (cancelled.state, cancelled.result_json, cancelled.cancel_requested) == (pb.TASK_STATE_COMPLETED, "1", False)


async def test_executor_under_another_name_is_a_stranger(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob", on_executor_lost=REDELIVER)
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    await bob.AcceptTask(**work)
    await bob.session.leave()
    bobby = await side(bus, "bobby")
    for call in (
        bobby.ReportTask(**work, progress=pb.TaskProgress(fraction=1)),
        bobby.CompleteTask(**work, result_json="1"),
        bobby.FailTask(**work, state=pb.TASK_STATE_FAILED),
        bobby.ReleaseTask(**work),
    ):
        assert (await refused(call))[0] == STATUS.PERMISSION_DENIED
    assert (await refused(bobby.AcceptTask(**work)))[1] == "ATTEMPT_SUPERSEDED"
    assert (await bobby.ListTasks()).tasks == []
    back = await side(bus, "bob")
    await back.CompleteTask(**work, result_json="2")
    assert (await alice.GetTask(task_id="t")).task.result_json == "2"


async def test_two_sessions_of_one_name_share_no_attempt(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    await bob.AcceptTask(delegator="alice", task_id="t")
    token = bob.session.welcome.resume_token
    other = await side(bus, "bob", resume_token=token)
    # Whoever took over speaks for the attempt; the token of the one before is worth nothing any more.
    code, _, _ = await refused(
        bob._stub.CompleteTask(
            pb.CompleteTaskRequest(delegator="alice", task_id="t", attempt=1, result_json='"old"'),
            metadata=(("gagent-session", token),),
        )
    )
    assert code == STATUS.UNAUTHENTICATED
    await other.CompleteTask(delegator="alice", task_id="t", attempt=1, result_json='"new"')
    assert (await alice.GetTask(task_id="t")).task.result_json == '"new"'


async def test_task_expires_while_input_is_required(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    deadline = Timestamp()
    deadline.FromNanoseconds(int((time.time() + 0.7) * 1e9))
    await alice.DelegateTask(task_id="t", target="bob", deadline=deadline)
    await bob.AcceptTask(delegator="alice", task_id="t")
    await bob.ReportTask(delegator="alice", task_id="t", attempt=1, question="which?")
    task = await ended(alice, "t")
    assert (task.state, task.question, task.attempts[0].outcome) == (pb.TASK_STATE_EXPIRED, "", "expired")
    assert (await refused(alice.AnswerTask(task_id="t", answer_json="1")))[1] == "TASK_ENDED"


async def test_tasks_in_a_ring_are_none(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    # Its own parent, before and after it is there.
    own = {"task_id": "own", "target": "bob", "parent_delegator": "alice", "parent_task_id": "own"}
    assert (await refused(alice.DelegateTask(**own)))[0] == STATUS.NOT_FOUND
    await alice.DelegateTask(task_id="own", target="bob")
    assert (await refused(alice.DelegateTask(**own)))[1] == "TASK_ALREADY_EXISTS"
    # Two that hand the same work back and forth come to the end of the chain.
    last, sides = ("alice", "own"), (bob, alice)
    await bob.AcceptTask(delegator="alice", task_id="own")
    for number in range(2, 9):
        giver, taker = sides[number % 2], sides[(number + 1) % 2]
        name = giver.aid.partition("@")[0]
        await giver.DelegateTask(
            task_id=f"t{number}", target=taker.aid, parent_delegator=last[0], parent_task_id=last[1]
        )
        await taker.AcceptTask(delegator=name, task_id=f"t{number}")
        last = (name, f"t{number}")
    giver = sides[1]
    ninth = giver.DelegateTask(task_id="t9", target="bob", parent_delegator=last[0], parent_task_id=last[1])
    assert (await refused(ninth))[0] == STATUS.FAILED_PRECONDITION
    # The end of the first one reaches the last one.
    await alice.CancelTask(task_id="own")
    await bob.FailTask(delegator="alice", task_id="own", attempt=1, state=pb.TASK_STATE_CANCELLED)
    for number in range(2, 9):
        giver, taker = sides[number % 2], sides[(number + 1) % 2]
        name = giver.aid.partition("@")[0]
        task = (await giver.GetTask(task_id=f"t{number}")).task
        assert task.cancel_requested
        await taker.FailTask(delegator=name, task_id=f"t{number}", attempt=1, state=pb.TASK_STATE_CANCELLED)


# ---- floods --------------------------------------------------------------------------------------------------------------


async def test_flood_of_output_is_bounded_and_told(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_events=50, task_event_bytes=200_000))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    await bob.AcceptTask(delegator="alice", task_id="t")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    code, _, metadata = await refused(bob.ReportTask(**work, output=[pb.TaskOutput()] * 1_001))
    assert (code, metadata["field"]) == (STATUS.INVALID_ARGUMENT, "output")
    before = bus.platform.tasks.table.bytes
    for _ in range(20):
        await bob.ReportTask(**work, output=[pb.TaskOutput(text="x" * 2_000)] * 400)
    assert bus.platform.tasks.table.bytes - before < 250_000
    await bob.CompleteTask(**work)
    assert (await refused(alice.WatchTask(task_id="t", after=1).read()))[1] == "EVENTS_GONE"
    kept = [one.event for one in await watched(alice.WatchTask(task_id="t", after=0))][1:]
    assert len(kept) <= 50
    assert kept[-1].sequence == 2 + 20 * 400 + 2


async def test_signals_to_an_executor_that_hears_by_messages_stop_at_its_mailbox(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, mailbox_messages=10))
    alice, bob = await side(bus, "alice"), await side(bus, "bob", window=bus_pb.Window(messages=1))
    await alice.DelegateTask(task_id="t", target="bob")
    await bob.delegation()
    update = acp_pb2.TaskUpdate(task_id="t", status="input-required", note="which?")
    await bob.says("alice", "NOTIFICATION", update=update)
    mailbox = bus.platform.ams.get("bob").mailbox
    signals = [alice.SignalTask(task_id="t", name="hurry", value_json=json.dumps("x" * 1_000)) for _ in range(20)]
    answers = await asyncio.gather(*signals, return_exceptions=True)
    refusals = [one for one in answers if isinstance(one, grpc.aio.AioRpcError)]
    assert len(refusals) > 10
    assert {(one.code(), info_of(one)[0]) for one in refusals} == {(STATUS.RESOURCE_EXHAUSTED, "MAILBOX_FULL")}
    assert mailbox.messages <= 10
    last = (await alice.GetTask(task_id="t")).task.last_event
    assert (await refused(alice.AnswerTask(task_id="t", answer_json="1")))[1] == "MAILBOX_FULL"
    # What was refused did not happen: the question stands, and can be answered when there is room.
    task = (await alice.GetTask(task_id="t")).task
    assert (task.state, task.last_event) == (pb.TASK_STATE_INPUT_REQUIRED, last)
    # An end is told all the same.
    cancelled = (await alice.CancelTask(task_id="t", reason="y" * 1_000_000)).task
    assert cancelled.cancel_requested
    assert mailbox.messages <= 11
    assert mailbox.bytes < 100_000


async def test_ten_thousand_tasks_of_one_delegator_are_the_bound_and_no_burden(bus: Bus, side: Any) -> None:
    """Through the platform, so that the test is about the bus and not about ten thousand calls."""
    alice, other = await side(bus, "alice"), await side(bus, "other")
    workers = ("bob", "carol", "dave")
    for name in workers:
        await side(bus, name)
    caller = Caller(agent=bus.platform.ams.get("alice"), principal="anybody", operator=False)
    for number in range(10_000):
        bus.platform.tasks.delegation.delegate(caller, Wish(workers[number % 3], f"t{number}"))
        if not number % 500:
            await bus.platform.flush()
    await bus.platform.flush()
    assert (await refused(alice.DelegateTask(task_id="one more", target="bob")))[1] == "RESOURCE_EXHAUSTED"
    receipts = await alice.says("bob", "DELEGATE", delegation=acp_pb2.TaskDelegation(task_id="one more"))
    assert receipts[-1].outcome == bus_pb.OUTCOME_RATE_LIMITED
    # Others have their own, and whoever may see none of these is told so.
    assert (await other.DelegateTask(task_id="t", target="bob")).task.executor == "bob@local"
    assert [one.task_id for one in (await other.ListTasks()).tasks] == ["t"]
    page = await alice.ListTasks(max_results=3)
    assert [one.task_id for one in page.tasks] == ["t9999", "t9998", "t9997"]
    page = await alice.ListTasks(max_results=2, page_token=page.next_page_token)
    assert [one.task_id for one in page.tasks] == ["t9996", "t9995"]
    assert (await alice.CancelTask(task_id="t5000")).task.state == pb.TASK_STATE_CANCELLED


async def test_many_watches_that_are_never_read_cost_no_task_anything(bus: Bus, both: tuple[Side, Side]) -> None:
    alice, bob = both
    await alice.DelegateTask(task_id="t", target="bob")
    watches = [alice.WatchTask(task_id="t", after=0) for _ in range(50)]
    await asyncio.gather(*(watch.initial_metadata() for watch in watches))
    await bob.AcceptTask(delegator="alice", task_id="t")
    work = {"delegator": "alice", "task_id": "t", "attempt": 1}
    for _ in range(20):
        await bob.ReportTask(**work, output=[pb.TaskOutput(text="x" * 1_000)] * 20)
    await bob.CompleteTask(**work)
    assert (await alice.GetTask(task_id="t")).task.state == pb.TASK_STATE_COMPLETED
    for watch in watches:
        watch.cancel()
    await until(lambda: bus.platform.tasks.table.counts.watches == 0)
