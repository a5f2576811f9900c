"""Attempts that their executors give back, over loopback with the generated stubs; and what operators see of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from tasking import Side, ended, offer, refused, watched
from waiting import until

from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import acp_pb2, admin_service_pb2, admin_service_pb2_grpc
from gagent_grpc.pb.gagent.v1 import task_service_pb2 as pb
from gagent_grpc.server.app import Bus
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.testing import running_bus

pytestmark = pytest.mark.timeout(60)
STATUS = grpc.StatusCode
REDELIVER = acp_pb2.EXECUTOR_LOST_POLICY_REDELIVER
WORK: dict[str, Any] = {"delegator": "alice", "task_id": "t"}


def outcomes(task: Any) -> list[tuple[int, str, str]]:
    return [(one.number, one.executor, one.outcome) for one in task.attempts]


async def begun(side: Side, attempt: int, **report: Any) -> None:
    """Accept the attempt that was handed over, and report."""
    assert (await side.delegation(attempt)).attempt == attempt
    await side.AcceptTask(**WORK, attempt=attempt)
    if report:
        await side.ReportTask(**WORK, attempt=attempt, **report)


@pytest.mark.parametrize("policy", [acp_pb2.EXECUTOR_LOST_POLICY_FAIL, REDELIVER])
async def test_released_attempt_of_a_role_goes_to_another_provider_with_its_checkpoint(
    bus: Bus, side: Any, policy: Any
) -> None:
    alice = await side(bus, "alice")
    first = await side(bus, "first", description=offer("adder"))
    await alice.DelegateTask(task_id="t", target="role:adder", on_executor_lost=policy, max_attempts=1)
    second = await side(bus, "second", description=offer("adder"))
    await begun(first, 1, checkpoint_json='{"at": 7}', progress=pb.TaskProgress(fraction=0.5))
    released = (await first.ReleaseTask(**WORK, attempt=1, reason="going home")).task
    assert (released.executor, released.checkpoint_json) == ("second@local", '{"at": 7}')
    assert not released.HasField("progress")
    order = await second.delegation()
    assert (order.task_id, order.attempt, order.delegator) == ("t", 2, "alice@local")
    # Saying it again is fine, and whoever has it now is not disturbed.
    await second.AcceptTask(**WORK, attempt=2)
    again = (await first.ReleaseTask(**WORK, attempt=1)).task
    assert (again.state, again.executor) == (pb.TASK_STATE_ACCEPTED, "second@local")
    assert (await refused(first.ReportTask(**WORK, attempt=1)))[1] == "ATTEMPT_SUPERSEDED"
    done = (await second.CompleteTask(**WORK, attempt=2, result_json="1")).task
    assert outcomes(done) == [(1, "first@local", "released: going home"), (2, "second@local", "completed")]
    events = [one.event for one in await watched(alice.WatchTask(task_id="t", after=0))]
    (back,) = [one for one in events if one.state.state == pb.TASK_STATE_SUBMITTED and one.state.former]
    assert (back.attempt, back.state.reason) == (1, "released: going home")


async def test_attempt_that_was_not_accepted_is_released_and_its_message_withdrawn(bus: Bus, side: Any) -> None:
    alice = await side(bus, "alice")
    first = await side(bus, "first", description=offer("adder"))
    await alice.DelegateTask(task_id="t", target="role:adder")
    await first.delegation()
    second = await side(bus, "second", description=offer("adder"))
    await first.ReleaseTask(**WORK)
    assert bus.platform.ams.get("first").mailbox.messages == 0
    await second.delegation()
    task = (await alice.GetTask(task_id="t")).task
    assert (task.state, task.executor) == (pb.TASK_STATE_SUBMITTED, "second@local")
    assert outcomes(task) == [(1, "first@local", "released"), (2, "second@local", "")]


async def test_only_the_attempt_in_force_is_released_and_only_by_its_executor(bus: Bus, side: Any) -> None:
    alice, bob, carol = await side(bus, "alice"), await side(bus, "bob"), await side(bus, "carol")
    await alice.DelegateTask(task_id="t", target="bob")
    assert (await refused(carol.ReleaseTask(**WORK, attempt=1)))[0] == STATUS.PERMISSION_DENIED
    assert (await refused(alice.ReleaseTask(**WORK, attempt=1)))[0] == STATUS.PERMISSION_DENIED
    assert (await refused(bob.ReleaseTask(**WORK, attempt=2)))[1] == "ATTEMPT_SUPERSEDED"
    await begun(bob, 1)
    # By no number only one that was not begun.
    assert (await refused(bob.ReleaseTask(**WORK)))[1] == "ATTEMPT_SUPERSEDED"
    assert (await refused(bob.ReleaseTask(task_id="t", attempt=1)))[0] == STATUS.INVALID_ARGUMENT
    assert (await refused(bob.ReleaseTask(delegator="alice", task_id="none", attempt=1)))[0] == STATUS.NOT_FOUND
    await bob.CompleteTask(**WORK, attempt=1)
    assert (await refused(bob.ReleaseTask(**WORK, attempt=1)))[1] == "TASK_ENDED"
    assert (await alice.GetTask(task_id="t")).task.state == pb.TASK_STATE_COMPLETED


async def test_only_provider_of_a_role_gets_it_again(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0))
    alice, first = await side(bus, "alice"), await side(bus, "first", description=offer("adder"))
    await alice.DelegateTask(task_id="t", target="role:adder")
    await begun(first, 1)
    assert (await first.ReleaseTask(**WORK, attempt=1, reason="later")).task.executor == ""
    # Within a second, so that others have a chance and nothing spins.
    await begun(first, 2)


async def test_task_of_one_that_leaves_waits_for_its_next_session(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    await begun(bob, 1)
    assert (await bob.ReleaseTask(**WORK, attempt=1, leaving=True)).task.executor == ""
    other = await alice.DelegateTask(task_id="other", target="bob")
    # What is new comes to it all the same, and the other one does not, though it was looked at meanwhile.
    assert (await bob.delegation(2)).task_id == "other"
    bus.platform.keep_house()
    assert bus.platform.ams.get("bob").mailbox.messages == 1
    assert (await alice.GetTask(task_id="t")).task.executor == ""
    assert other.task.executor == "bob@local"
    await bob.session.leave()
    await until(lambda: bus.platform.ams.get("bob").mailbox.messages == 2)
    back = await side(bus, "bob")
    await back.delegation(2)
    assert {(one.delegation.task_id, one.delegation.attempt) for one in await back.receives(6, 2)} == {
        ("other", 1),
        ("t", 2),
    }


async def test_releases_are_bounded_and_then_count(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_releases=3))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob", on_executor_lost=REDELIVER, max_attempts=2)
    for attempt in range(1, 5):
        await begun(bob, attempt)
        await bob.ReleaseTask(**WORK, attempt=attempt, reason="not me")
    await begun(bob, 5)
    task = (await bob.ReleaseTask(**WORK, attempt=5, reason="not me")).task
    assert (task.state, len(task.attempts)) == (pb.TASK_STATE_FAILED, 5)
    assert "given back" in task.reason
    assert (await ended(alice, "t")).state == pb.TASK_STATE_FAILED


async def test_release_leaves_the_attempts_that_a_loss_may_use(buses: Any, side: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_lease=0.3))
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob", on_executor_lost=REDELIVER, max_attempts=2)
    await begun(bob, 1)
    await bob.ReleaseTask(**WORK, attempt=1)
    for attempt in (2, 3):
        # Lost by its lease.
        await begun(bob, attempt)
    task = await ended(alice, "t")
    assert [one.outcome for one in task.attempts] == ["released", "executor lost", "executor lost"]
    assert (task.state, task.reason) == (pb.TASK_STATE_FAILED, "executor lost")


async def test_task_that_is_to_be_cancelled_ends_when_it_is_given_back(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    await alice.DelegateTask(task_id="t", target="bob")
    await begun(bob, 1)
    await alice.CancelTask(task_id="t")
    assert (await bob.ReleaseTask(**WORK, attempt=1)).task.state == pb.TASK_STATE_CANCELLED


async def test_parts_of_a_task_that_goes_to_another_one_are_called_off(bus: Bus, side: Any) -> None:
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    first = await side(bus, "first", description=offer("plan"))
    await alice.DelegateTask(task_id="t", target="role:plan")
    await begun(first, 1)
    await first.DelegateTask(task_id="part", target="bob", parent_delegator="alice", parent_task_id="t")
    await bob.delegation()
    second = await side(bus, "second", description=offer("plan"))
    await first.ReleaseTask(**WORK, attempt=1)
    await second.delegation()
    part = (await first.GetTask(task_id="part")).task
    assert (part.state, "not the executor of its parent" in part.reason) == (pb.TASK_STATE_CANCELLED, True)


async def test_release_survives_a_restart(tmp_path: Path, side: Any) -> None:
    path = tmp_path / "bus.db"
    limits = BusLimits(drain_grace=1.0)
    async with running_bus(store=SqliteStore(path), limits=limits) as bus:
        alice, bob = await side(bus, "alice"), await side(bus, "bob")
        await alice.DelegateTask(task_id="t", target="bob", on_executor_lost=REDELIVER, max_attempts=1)
        await begun(bob, 1, checkpoint_json="7")
        await bob.ReleaseTask(**WORK, attempt=1, reason="restart", leaving=True)
        assert bus.platform.ams.get("bob").mailbox.messages == 0
    async with running_bus(store=SqliteStore(path), limits=limits) as bus:
        bob = await side(bus, "bob")
        await bob.delegation()
        accepted = await bob.AcceptTask(**WORK, attempt=2)
        assert (accepted.attempt, accepted.task.checkpoint_json) == (2, "7")
        done = (await bob.CompleteTask(**WORK, attempt=2)).task
        assert outcomes(done) == [(1, "bob@local", "released: restart"), (2, "bob@local", "completed")]


# ---- what operators see --------------------------------------------------------------------------------------------------


async def test_stats_count_tasks_by_state_with_their_leases_and_watches(bus: Bus, side: Any, channels: Any) -> None:
    admin = admin_service_pb2_grpc.AdminServiceStub(channels(bus))

    async def stats() -> Any:
        return (await admin.GetStats(admin_service_pb2.GetStatsRequest())).tasks

    assert (await stats()).ByteSize() == 0
    alice, bob = await side(bus, "alice"), await side(bus, "bob")
    for name in ("new", "accepted", "running", "asks", "done", "failed"):
        await alice.DelegateTask(task_id=name, target="bob")
        work = {"delegator": "alice", "task_id": name}
        if name != "new":
            await bob.AcceptTask(**work)
        if name == "running":
            await bob.ReportTask(**work, attempt=1, progress=pb.TaskProgress())
        if name == "asks":
            await bob.ReportTask(**work, attempt=1, question="which?")
        if name == "done":
            await bob.CompleteTask(**work, attempt=1)
        if name == "failed":
            await bob.FailTask(**work, attempt=1, state=pb.TASK_STATE_FAILED)
    again = await alice.DelegateTask(task_id="new", target="bob")
    assert again.existed
    assert (await refused(alice.DelegateTask(task_id="lost", target="nobody")))[0] == STATUS.NOT_FOUND
    # One that waits for somebody: given back by one that leaves.
    await bob.ReleaseTask(delegator="alice", task_id="accepted", attempt=1, leaving=True)
    watch = alice.WatchTask(task_id="running")
    await watch.read()
    found = await stats()
    assert {pb.TaskState.Name(one.state).removeprefix("TASK_STATE_"): one.tasks for one in found.by_state} == {
        "SUBMITTED": 2,
        "RUNNING": 1,
        "INPUT_REQUIRED": 1,
        "COMPLETED": 1,
        "FAILED": 1,
    }
    assert (found.delegated, found.running, found.waiting, found.leases, found.watches) == (6, 2, 1, 2, 1)
    assert found.size_bytes > 6_000
    watch.cancel()
    await until(lambda: bus.platform.tasks.table.counts.watches == 0)


async def test_stats_forget_what_the_bus_forgets_and_know_what_it_restored(tmp_path: Path, side: Any) -> None:
    path = tmp_path / "bus.db"
    async with running_bus(store=SqliteStore(path), limits=BusLimits(drain_grace=1.0)) as bus:
        alice, bob = await side(bus, "alice"), await side(bus, "bob")
        for name in ("done", "open"):
            await alice.DelegateTask(task_id=name, target="bob")
        await bob.AcceptTask(delegator="alice", task_id="done")
        await bob.CompleteTask(delegator="alice", task_id="done", attempt=1)
    async with running_bus(store=SqliteStore(path), limits=BusLimits(drain_grace=1.0, task_retention=0.2)) as bus:
        table = bus.platform.tasks.table
        assert table.counts.delegated == 0
        # What ended is forgotten in its time, also over the restart.
        await until(lambda: sum(table.counts.by_state.values()) == 1)
        assert list(table.counts.by_state) == [1]
        alice = await side(bus, "alice")
        assert (await refused(alice.GetTask(task_id="done")))[0] == STATUS.NOT_FOUND
        assert (await alice.GetTask(task_id="open")).task.state == pb.TASK_STATE_SUBMITTED
