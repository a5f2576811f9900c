"""Delegated tasks without a wire: what becomes of them when stores, mailboxes, providers and agents fail, and by the clock."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl

from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState, ServiceDescription
from gagent_grpc.acp.task_messages import TaskMessage, TaskMessageKind
from gagent_grpc.acp.tasks import OnExecutorLost, TaskKey, TaskState
from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.delegation import Wish
from gagent_grpc.bus.handover import Handover
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.ports import StoredPlatform, StoredTask
from gagent_grpc.bus.session import Nack, Session
from gagent_grpc.bus.task_values import Produced
from gagent_grpc.bus.tasks import Task
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import (
    AgentNotRegistered,
    MailboxFull,
    ResourceExhausted,
    StoreUnavailable,
    Unauthorised,
)
from gagent_grpc.pb.gagent.v1 import acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

S = TaskState
REDELIVER = OnExecutorLost.REDELIVER
ADDER = DFAgentDescription(services=(ServiceDescription(name="add", type="adder"),))


class Bench:
    """A platform whose clock stands still, and agents without a wire."""

    def __init__(self, store: Any = None, clock: FakeClock | None = None, **limits: Any) -> None:
        self.limits = BusLimits(**limits)
        self.clock = clock or FakeClock()
        self.codec = EnvelopeCodec(max_id_bytes=self.limits.max_id_bytes)
        self.store = store or MemoryStore()
        self.platform = Platform("local", self.store, self.codec, self.clock, self.limits)
        self.tasks = self.platform.tasks

    async def open(self, name: str, **hello: Any) -> Session:
        session = (await self.platform.attach(Hello(name, **hello), "local")).session
        await asyncio.sleep(0)
        return session

    def caller(self, name: str, *, operator: bool = False) -> Caller:
        return Caller(agent=self.platform.ams.get(name), principal="local", operator=operator)

    def delegate(self, target: str = "bob", task_id: str = "t", **wish: Any) -> tuple[Task, Handover | None]:
        task, _, handover = self.tasks.delegation.delegate(self.caller("alice"), Wish(target, task_id, **wish))
        return task, handover

    def accept(self, name: str = "bob", task_id: str = "t") -> Task:
        return self.tasks.execution.accept(self.caller(name), TaskKey("alice@local", task_id), 0)

    def later(self, seconds: float) -> None:
        """Let time pass, at the end of which the clock's business is done."""
        self.clock.advance(seconds)
        self.platform.keep_house()

    def mail(self, name: str) -> list[TaskMessage]:
        letters = sorted(self.platform.ams.get(name).mailbox.letters(), key=lambda letter: letter.sequence)
        found = [self.codec.decode_task(letter.envelope.payload) for letter in letters]
        return [one for one in found if one is not None]

    async def take(self, session: Session) -> list[int]:
        """Deliver what there is; return the sequences."""
        async with asyncio.timeout(5):
            out = await session.outgoing()
        assert out is not None
        return [letter.sequence for letter in out.letters]


@pytest.fixture
async def bench() -> Bench:
    made = Bench()
    for name in ("alice", "bob"):
        await made.open(name)
    return made


async def durable(**limits: Any) -> tuple[Bench, ManualStore]:
    store = ManualStore()
    made = Bench(store, **limits)
    for name in ("alice", "bob"):
        await made.open(name)
    return made, store


def delegate_message(to: str = "bob", task_id: str = "t", message_id: str = "m1", **fields: Any) -> bytes:
    message = pb.BusMessage(id=message_id, to=[to], **fields)
    message.acp.message_type = acp_pb2.ACP_MESSAGE_TYPE_DELEGATE
    message.acp.delegation.task_id = task_id
    return message.SerializeToString()


def result_message(message_id: str = "r1", *, to: str = "alice", task_id: str = "t") -> bytes:
    message = pb.BusMessage(id=message_id, to=[to])
    message.acp.message_type = acp_pb2.ACP_MESSAGE_TYPE_RESULT
    message.acp.result.task_id = task_id
    message.acp.result.status = "completed"
    return message.SerializeToString()


# ---- task and message, both or neither -----------------------------------------------------------------------------------


async def test_call_waits_until_task_and_message_are_durable() -> None:
    bench, store = await durable()
    task, handover = bench.delegate()
    assert handover is not None
    waiting = asyncio.create_task(handover.outcome(5.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert set(store.tasks[task.number].parts) == {"order", "state"}
    assert bench.mail("bob") == []
    # The same call again waits for the same.
    again, existed, same = bench.tasks.delegation.delegate(bench.caller("alice"), Wish("bob", "t"))
    assert (again, existed, same) == (task, True, handover)
    bench.platform.post.commit(store.commit())
    await waiting
    assert [(one.kind, one.task_id, one.attempt) for one in bench.mail("bob")] == [(TaskMessageKind.DELEGATE, "t", 1)]
    assert bench.delegate()[1] is None


async def test_task_whose_message_could_not_be_stored_never_was() -> None:
    bench, store = await durable()
    task, handover = bench.delegate()
    assert handover is not None
    bench.platform.post.commit(store.commit(error="the disk is full"))
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await handover.outcome(5.0)
    assert (len(bench.tasks.table), store.tasks, bench.mail("bob")) == (0, {}, [])
    assert task.number not in store.tasks
    second, _ = bench.delegate()
    assert second is not task


async def test_store_that_does_not_write_is_told_after_a_while() -> None:
    bench, _ = await durable()
    _, handover = bench.delegate()
    assert handover is not None
    with pytest.raises(StoreUnavailable, match="under the same id"):
        await handover.outcome(0.0)


async def test_executor_that_is_gone_before_the_commit_gets_no_task() -> None:
    bench, store = await durable()
    _, handover = bench.delegate()
    assert handover is not None
    bench.platform.deregister("bob", bench.caller("bob"))
    bench.platform.post.commit(store.commit())
    with pytest.raises(AgentNotRegistered):
        await handover.outcome(5.0)
    assert not len(bench.tasks.table)


async def test_task_that_was_cancelled_before_the_commit_leaves_no_message() -> None:
    bench, store = await durable()
    task, handover = bench.delegate()
    assert handover is not None
    bench.tasks.delegation.cancel(bench.caller("alice"), "", "t", "")
    bench.platform.post.commit(store.commit())
    await handover.outcome(5.0)
    assert (task.state, bench.mail("bob")) == (S.CANCELLED, [])


async def test_attempt_that_is_being_written_is_given_back_later() -> None:
    bench, store = await durable()
    task, handover = bench.delegate()
    assert handover is not None

    def release() -> Task:
        return bench.tasks.execution.release(bench.caller("bob"), task.key, 1, "busy", leaving=True)

    # Its message may be delivered before the commit; whoever delegated does not know yet whether there is a task.
    with pytest.raises(StoreUnavailable, match="give it back again"):
        release()
    assert (task.executor, task.attempt) == ("bob@local", 1)
    bench.platform.post.commit(store.commit())
    await handover.outcome(5.0)
    release()
    assert (task.state, task.executor, task.counted) == (S.SUBMITTED, "", 0)
    assert bench.mail("bob") == []
    bench.later(1.0)
    assert (task.executor, task.attempt) == ("", 1)
    # With its next session it may have it again.
    bench.platform.detach(bench.platform.ams.get("bob").session)
    bench.later(1.0)
    bench.platform.post.commit(store.commit())
    assert [one.attempt for one in bench.mail("bob")] == [2]


async def test_task_given_back_by_one_that_leaves_is_forgotten_with_its_end() -> None:
    bench = Bench()
    for name in ("alice", "bob"):
        await bench.open(name)
    task, _ = bench.delegate()
    bench.accept()
    bench.tasks.execution.release(bench.caller("bob"), task.key, 1, "", leaving=True)
    handovers = bench.tasks._handovers
    assert (list(handovers.waiting), list(handovers._leaving)) == ([task.number], [task.number])
    bench.tasks.delegation.cancel(bench.caller("alice"), "", "t", "enough")
    assert (handovers.waiting, handovers._leaving, task.state) == ({}, {}, S.CANCELLED)


async def test_message_that_was_refused_leaves_no_task_and_its_repetition_shares_the_outcome() -> None:
    bench, store = await durable()
    alice = NotingOrigin("alice@local")
    bench.platform.router.submit(delegate_message(), alice, 1)
    bench.platform.router.submit(delegate_message(message_id="m2"), alice, 2)
    assert alice.waiting == 2
    bench.platform.post.commit(store.commit(error="the disk is full"))
    assert alice.outcomes == [(1, "bob", "MAILBOX_FULL"), (2, "bob", "MAILBOX_FULL")]
    assert (alice.waiting, len(bench.tasks.table)) == (0, 0)
    bench.platform.router.submit(delegate_message(), alice, 3)
    bench.platform.router.submit(delegate_message(message_id="m2"), alice, 4)
    bench.platform.post.commit(store.commit())
    assert alice.reached == [(3, "bob")]
    assert alice.outcomes[2:] == [(4, "bob", "DUPLICATE")]
    assert alice.waiting == 0
    assert len(bench.mail("bob")) == 1


async def test_mailbox_without_room_takes_no_task() -> None:
    bench = Bench(mailbox_messages=1)
    await bench.open("alice")
    await bench.open("bob")
    carol = NotingOrigin("carol@local")
    bench.platform.router.submit(acl("bob").SerializeToString(), carol, 1)
    bench.platform.router.submit(acl("bob").SerializeToString(), carol, 2)
    _, handover = bench.delegate()
    assert handover is not None
    with pytest.raises(MailboxFull):
        await handover.outcome(5.0)
    assert not len(bench.tasks.table)


async def test_result_that_found_no_room_does_not_end_the_task() -> None:
    bench = Bench(mailbox_messages=1)
    await bench.open("alice")
    await bench.open("bob")
    alice, bob = NotingOrigin("alice@local"), NotingOrigin("bob@local")
    bench.platform.router.submit(delegate_message(), alice, 1)
    bench.platform.router.submit(acl("alice").SerializeToString(), bob, 1)
    bench.platform.router.submit(result_message(), bob, 2)
    task = bench.tasks.table.get(TaskKey("alice@local", "t"))
    assert (bob.outcomes, task.state) == ([(2, "alice", "MAILBOX_FULL")], S.SUBMITTED)
    for letter in list(bench.platform.ams.get("alice").mailbox.drain()):
        bench.platform.post.settled(bench.platform.ams.get("alice"), letter)
    bench.platform.router.submit(result_message(), bob, 3)
    assert (bob.reached[-1], task.state) == ((3, "alice"), S.COMPLETED)


async def test_result_whose_commit_failed_may_be_sent_again() -> None:
    bench, store = await durable()
    alice, bob = NotingOrigin("alice@local"), NotingOrigin("bob@local")
    bench.platform.router.submit(delegate_message(), alice, 1)
    bench.platform.post.commit(store.commit())
    bench.platform.router.submit(result_message(), bob, 1)
    bench.platform.post.commit(store.commit(error="the disk is full"))
    assert bob.outcomes == [(1, "alice", "MAILBOX_FULL")]
    bench.platform.router.submit(result_message(), bob, 2)
    bench.platform.post.commit(store.commit())
    assert bob.reached == [(2, "alice")]
    bench.platform.router.submit(result_message("r2"), bob, 3)
    assert bob.outcomes[-1] == (3, "alice", "EXPIRED")
    assert [one.kind for one in bench.mail("alice")] == [TaskMessageKind.RESULT]


async def test_message_to_many_or_of_nobody_makes_no_task(bench: Bench) -> None:
    await bench.open("carol")
    alice, nobody = NotingOrigin("alice@local"), NotingOrigin("anonymous")
    message = pb.BusMessage.FromString(delegate_message())
    message.to.append("carol")
    bench.platform.router.submit(message.SerializeToString(), alice, 1)
    bench.platform.router.submit(delegate_message(), nobody, 1)
    bench.platform.router.submit(delegate_message("*"), alice, 2)
    assert {one.outcome.name for one in alice.refusals} == {"INVALID"}
    assert nobody.outcomes == [(1, "bob", "DENIED")]
    assert not len(bench.tasks.table)


async def test_free_json_and_other_acp_messages_go_their_way(bench: Bench) -> None:
    alice = NotingOrigin("alice@local")
    for kind in (acp_pb2.ACP_MESSAGE_TYPE_REQUEST, acp_pb2.ACP_MESSAGE_TYPE_DELEGATE, acp_pb2.ACP_MESSAGE_TYPE_ERROR):
        message = pb.BusMessage(to=["bob"])
        message.acp.message_type = kind
        message.acp.json = '{"task_id": "t"}'
        bench.platform.router.submit(message.SerializeToString(), alice, int(kind))
    assert len(alice.reached) == 3
    assert not len(bench.tasks.table)


async def test_deadline_of_a_message_is_its_expiry_or_its_ttl_and_repeating_it_changes_nothing(bench: Bench) -> None:
    alice = NotingOrigin("alice@local")
    message = pb.BusMessage.FromString(delegate_message())
    message.expires_at.seconds = int(bench.clock.time()) + 100
    message.acp.metadata.ttl_seconds = 50
    bench.platform.router.submit(message.SerializeToString(), alice, 1)
    task = bench.tasks.table.get(TaskKey("alice@local", "t"))
    assert task.deadline == bench.clock.time() + 50
    bench.clock.advance(10)
    bench.platform.router.submit(message.SerializeToString(), alice, 2)
    assert alice.outcomes == [(2, "bob", "DUPLICATE")]
    bench.later(41)
    assert (task.state, bench.mail("bob")) == (S.EXPIRED, [])
    (told,) = bench.mail("alice")
    assert (told.kind, told.code) == (TaskMessageKind.ERROR, "EXPIRED")


# ---- who may ------------------------------------------------------------------------------------------------------------------


async def test_strangers_see_and_change_nothing_of_a_task(bench: Bench) -> None:
    await bench.open("carol")
    delegation = bench.tasks.delegation
    bench.delegate()
    carol, bob, alice = bench.caller("carol"), bench.caller("bob"), bench.caller("alice")
    for caller in (carol, bob):
        for change in (
            lambda one: delegation.cancel(one, "alice", "t", ""),
            lambda one: delegation.answer(one, "alice", "t", "1"),
            lambda one: delegation.signal(one, "alice", "t", "x", ""),
        ):
            with pytest.raises(Unauthorised):
                change(caller)
    with pytest.raises(Unauthorised):
        delegation.get(carol, "alice", "t")
    with pytest.raises(Unauthorised):
        delegation.watch(carol, "alice@local", "t", None)

    def seen(caller: Caller, **which: str) -> list[str]:
        return [one.key.task_id for one in delegation.search(caller, states=frozenset(), before=0, **which)]

    assert delegation.get(bob, "alice", "t") is delegation.get(alice, "", "t")
    assert (seen(carol), seen(carol, delegator="alice"), seen(bob), seen(alice)) == ([], [], ["t"], ["t"])
    assert seen(bench.caller("carol", operator=True), delegator="alice") == ["t"]


async def test_next_bearer_of_a_name_sees_nothing_of_the_one_before(bench: Bench) -> None:
    bench.delegate()
    bench.accept()
    bench.platform.deregister("bob", bench.caller("bob"))
    bench.later(1)
    await bench.open("bob")
    with pytest.raises(Unauthorised):
        bench.tasks.delegation.get(bench.caller("bob"), "alice", "t")


# ---- bounds ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_tasks": 1}, "max_tasks"),
        ({"tasks_per_agent": 1}, "tasks_per_agent"),
        ({"total_task_bytes": 6_000}, "total_task"),
    ],
)
async def test_tasks_are_bounded(limits: dict[str, int], said: str) -> None:
    bench = Bench(**limits)
    await bench.open("alice")
    await bench.open("bob")
    bench.delegate()
    with pytest.raises(ResourceExhausted, match=said):
        bench.delegate(task_id="u")
    alice = NotingOrigin("alice@local")
    bench.platform.router.submit(delegate_message(task_id="u"), alice, 1)
    assert alice.outcomes == [(1, "bob", "RATE_LIMITED")]
    assert alice.refusals[0].retry_after is not None


async def test_little_is_kept_of_events_when_all_tasks_together_take_too_much() -> None:
    bench = Bench(total_task_bytes=20_000)
    await bench.open("alice")
    await bench.open("bob")
    bench.delegate()
    task = bench.accept()
    for _ in range(5):
        bench.tasks.execution.report(bench.caller("bob"), task.key, 1, output=[Produced("x" * 9_000)])
    assert bench.tasks.table.bytes < 40_000
    assert task.last_event == 8
    bench.tasks.execution.complete(bench.caller("bob"), task.key, 1, '"done"')
    assert task.result == '"done"'


async def test_store_keeps_the_same_events_as_the_bus() -> None:
    bench, store = await durable(task_events=3)
    bench.delegate()
    bench.platform.post.commit(store.commit())
    task = bench.accept()
    for text in "abcd":
        bench.tasks.execution.report(bench.caller("bob"), task.key, 1, output=[Produced(text), Produced(text)])
        assert [sequence for sequence, _ in store.tasks[task.number].events] == [one.sequence for one in task.events]
    assert task.first_event == 9


async def test_bytes_are_counted_back_when_a_task_is_forgotten(bench: Bench) -> None:
    bench.delegate(description="x" * 1_000)
    task = bench.accept()
    bench.tasks.execution.complete(bench.caller("bob"), task.key, 1, "")
    assert bench.tasks.table.bytes > 1_000
    bench.later(bench.limits.task_retention - 1)
    assert len(bench.tasks.table) == 1
    bench.later(2)
    assert (len(bench.tasks.table), bench.tasks.table.bytes) == (0, 0)


# ---- executors that are lost -----------------------------------------------------------------------------------------------------


async def test_lease_is_renewed_by_reports_and_lost_without_them(bench: Bench) -> None:
    bench.delegate()
    task = bench.accept()
    for _ in range(5):
        bench.later(25)
        bench.tasks.execution.report(bench.caller("bob"), task.key, 1)
    assert task.state is S.ACCEPTED
    bench.later(29)
    assert task.state is S.ACCEPTED
    bench.later(2)
    assert (task.state, task.reason) == (S.FAILED, "executor lost")


async def test_task_of_an_agent_that_never_saw_it_waits_for_its_return(bench: Bench) -> None:
    bob = bench.platform.ams.get("bob")
    assert bob.session is not None
    bench.platform.detach(bob.session)
    task, _ = bench.delegate()
    bench.later(3_600)
    assert task.state is S.SUBMITTED
    session = await bench.open("bob")
    await bench.take(session)
    bench.later(3_600)
    # It has it in hand and its session lives: that is its delegator's business.
    assert task.state is S.SUBMITTED
    bench.platform.detach(session)
    bench.later(29)
    assert task.state is S.SUBMITTED
    bench.later(2)
    assert (task.state, task.reason) == (S.FAILED, "executor lost")
    assert bench.mail("bob") == []


async def test_unseen_task_ends_when_its_mail_does(bench: Bench) -> None:
    bob = bench.platform.ams.get("bob")
    assert bob.session is not None
    bench.platform.detach(bob.session)
    task, _ = bench.delegate()
    bench.later(bench.limits.mailbox_ttl + 1)
    assert task.state is S.FAILED
    assert "nobody took it up" in task.reason


async def test_next_attempt_waits_for_a_provider_and_no_longer_than_mail() -> None:
    bench = Bench()
    await bench.open("alice")
    first = await bench.open("first", description=ADDER)
    task, _ = bench.delegate("role:adder", on_executor_lost=REDELIVER)
    late, _ = bench.delegate("role:adder", task_id="late", on_executor_lost=REDELIVER)
    await bench.take(first)
    for name in ("t", "late"):
        bench.accept("first", name)
    bench.platform.detach(first)
    bench.later(31)
    assert (task.state, task.executor, task.attempt) == (S.SUBMITTED, "", 1)
    second = await bench.open("second", description=ADDER)
    bench.later(1)
    assert (task.executor, task.attempt) == ("second@local", 2)
    assert [(one.task_id, one.attempt) for one in bench.mail("second")] == [("t", 2), ("late", 2)]
    bench.accept("second", "late")
    bench.platform.detach(second)
    bench.later(31)
    # What nobody had seen went nowhere, as there is nobody else; what was accepted waits.
    assert (late.state, late.executor) == (S.SUBMITTED, "")
    bench.later(bench.limits.mailbox_ttl + 1)
    assert (late.state, late.reason) == (S.FAILED, "executor lost")


async def test_children_of_a_lost_executor_are_called_off_when_another_one_goes_on() -> None:
    bench = Bench()
    await bench.open("alice")
    await bench.open("bob")
    first = await bench.open("first", description=ADDER)
    task, _ = bench.delegate("role:adder", on_executor_lost=REDELIVER)
    await bench.take(first)
    bench.accept("first")
    wish = Wish("bob", "child", parent=task.key)
    child, _, _ = bench.tasks.delegation.delegate(bench.caller("first"), wish)
    bench.platform.detach(first)
    second = await bench.open("second", description=ADDER)
    bench.later(31)
    assert (task.executor, child.state) == ("second@local", S.CANCELLED)
    assert "not the executor" in child.reason
    assert second.record.mailbox.messages == 1


async def test_executor_that_is_lost_while_it_should_stop_leaves_a_cancelled_task(bench: Bench) -> None:
    bench.delegate(on_executor_lost=REDELIVER)
    task = bench.accept()
    bench.later(20)
    bench.tasks.delegation.cancel(bench.caller("alice"), "", "t", "enough")
    bench.later(11)
    assert (task.state, task.reason) == (S.CANCELLED, "executor lost")


async def test_message_that_was_sent_back_too_often_fails_its_task() -> None:
    bench = Bench(max_deliveries=1)
    await bench.open("alice")
    bob = await bench.open("bob")
    alice = NotingOrigin("alice@local")
    bench.platform.router.submit(delegate_message(), alice, 1)
    (sequence,) = await bench.take(bob)
    bob.settle(ack_through_tag=0, acks=(), nacks=[Nack(sequence, 0.0, "no such file")], rejects=())
    task = bench.tasks.table.get(TaskKey("alice@local", "t"))
    assert (task.state, "no such file" in task.reason) == (S.FAILED, True)
    # One message says so, and it is no second one of the AMS.
    letters = list(bench.platform.ams.get("alice").mailbox.letters())
    assert [one.code for one in bench.mail("alice")] == ["FAILED"]
    assert len(letters) == 1


async def test_suspended_executor_keeps_what_it_has_and_its_clocks_run_on(bench: Bench) -> None:
    bench.delegate()
    task = bench.accept()
    bench.platform.suspend("bob", bench.caller("bob"))
    assert bench.platform.ams.get("bob").state is LifeCycleState.SUSPENDED
    bench.tasks.execution.report(bench.caller("bob"), task.key, 1)
    bench.later(31)
    assert (task.state, task.reason) == (S.FAILED, "executor lost")


async def test_deregistered_delegator_leaves_cancelled_tasks_and_its_executor_hears_of_it(bench: Bench) -> None:
    alice, bob = NotingOrigin("alice@local"), NotingOrigin("bob@local")
    bench.platform.router.submit(delegate_message(), alice, 1)
    message = pb.BusMessage(to=["alice"])
    message.acp.message_type = acp_pb2.ACP_MESSAGE_TYPE_RESPONSE
    message.acp.update.task_id, message.acp.update.status = "t", "accepted"
    bench.platform.router.submit(message.SerializeToString(), bob, 1)
    task = bench.tasks.table.get(TaskKey("alice@local", "t"))
    bench.platform.deregister("alice", bench.caller("alice"))
    assert (task.state, task.orphaned) == (S.CANCELLED, True)
    (told,) = bench.mail("bob")
    assert (told.kind, told.status) == (TaskMessageKind.NOTIFICATION, "cancel")
    bench.later(bench.limits.task_retention + 1)
    assert not len(bench.tasks.table)


# ---- from a store ------------------------------------------------------------------------------------------------------------------


def held(bench: Bench, store: ManualStore, **changes: Any) -> StoredPlatform:
    """Return what a store would give back after a stop in this moment."""
    settled = {(name, sequence) for name, sequence, _ in store.settled}
    kept: dict[str, Any] = {
        "agents": list(store.agents.values()),
        "messages": [one for one in store.accepted if (one.receiver, one.sequence) not in settled],
        "keys": [key for _, _, key in store.settled if key is not None],
        "tasks": list(store.tasks.values()),
    }
    return StoredPlatform(**{**kept, **changes})


async def test_message_that_did_not_survive_is_handed_over_again_flagged_and_as_the_same_attempt() -> None:
    bench, store = await durable()
    bench.delegate()
    bench.platform.post.commit(store.commit())
    again = Bench(ManualStore(held(bench, store, messages=[])), bench.clock)
    async with again.platform.running():
        task = again.tasks.table.get(TaskKey("alice@local", "t"))
        again.platform.post.commit(again.store.commit())
        (letter,) = again.platform.ams.get("bob").mailbox.letters()
        assert (letter.redelivered, letter.sender, task.attempt) == (True, "alice@local", 1)
        assert again.mail("bob")[0].attempt == 1


async def test_message_that_was_settled_is_not_handed_over_again() -> None:
    bench, store = await durable()
    bench.delegate()
    bench.platform.post.commit(store.commit())
    session = bench.platform.ams.get("bob").session
    assert session is not None
    session.start_delivering()
    (sequence,) = await bench.take(session)
    session.settle(ack_through_tag=0, acks=[sequence], nacks=(), rejects=())
    again = Bench(ManualStore(held(bench, store)), bench.clock)
    async with again.platform.running():
        task = again.tasks.table.get(TaskKey("alice@local", "t"))
        assert (again.mail("bob"), task.executor, task.state) == ([], "bob@local", S.SUBMITTED)
        again.later(31)
        # Whoever had it did not come back.
        assert (task.state, task.reason) == (S.FAILED, "executor lost")


async def test_task_that_waits_goes_on_waiting_after_a_restart() -> None:
    bench, store = await durable()
    first = await bench.open("first", description=ADDER)
    bench.delegate("role:adder", on_executor_lost=REDELIVER)
    bench.platform.post.commit(store.commit())
    bench.accept("first")
    bench.platform.detach(first)
    bench.later(31)
    again = Bench(ManualStore(held(bench, store)), bench.clock)
    async with again.platform.running():
        task = again.tasks.table.get(TaskKey("alice@local", "t"))
        assert (task.state, task.executor) == (S.SUBMITTED, "")
        await again.open("second", description=ADDER)
        again.later(1)
        assert (task.executor, task.attempt) == ("second@local", 2)
        made = again.tasks.table.next_number()
        assert made > task.number


async def test_task_that_cannot_be_read_stays_in_the_store(caplog: pytest.LogCaptureFixture) -> None:
    store = ManualStore(StoredPlatform(tasks=[StoredTask(7, {"order": "{}", "state": "{}"})]))
    bench = Bench(store)
    with caplog.at_level(logging.ERROR):
        async with bench.platform.running():
            assert not len(bench.tasks.table)
            assert bench.tasks.table.next_number() == 8
    assert "task 7" in caplog.text
