"""One task: what may follow what, the numbers of its events, attempts and their fencing, and its form in a store."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.acp.tasks import Attachment, OnExecutorLost, TaskKey, TaskState
from gagent_grpc.bus.ports import StoredTask
from gagent_grpc.bus.task_records import event_text, order_text, state_text, task_of
from gagent_grpc.bus.task_values import (
    Answered,
    CancelAsked,
    Noted,
    Produced,
    Progressed,
    Signalled,
    StateChanged,
    TaskOrder,
)
from gagent_grpc.bus.tasks import Task, may_follow
from gagent_grpc.errors import AttemptSuperseded, BusError, EventsGone, InvalidArgument, PreconditionFailed, TaskEnded

S = TaskState
KEY = TaskKey("alice@local", "t")
BOB, CAROL = "bob@local", "carol@local"


def task_for(order: TaskOrder | None = None, **fields: int) -> Task:
    made = Task(1, KEY, order or TaskOrder(BOB, "do it"), target="bob", principal="local", created_at=1.0, **fields)
    made.submit(1.0)
    return made


def handed(executor: str = BOB, **fields: int) -> Task:
    made = task_for(**fields)
    made.hand_over(executor, "m1", 1, 1.0)
    return made


def accepted(**fields: int) -> Task:
    made = handed(**fields)
    made.accept(BOB, 1, 2.0, leased=True)
    return made


ENDS = [S.COMPLETED, S.FAILED, S.REJECTED, S.CANCELLED, S.EXPIRED]


@pytest.mark.parametrize("state", list(S))
def test_table_lets_nothing_follow_an_end_and_every_other_state_end(state: TaskState) -> None:
    following = {one for one in S if may_follow(state, one)}
    if state in ENDS:
        assert not following
    else:
        assert {S.FAILED, S.CANCELLED, S.EXPIRED} <= following
        assert (S.REJECTED in following) == (state in {S.SUBMITTED, S.ACCEPTED})
        assert (S.COMPLETED in following) == (state is not S.SUBMITTED)


# ---- any order of calls ------------------------------------------------------------------------------------------------

_ACTIONS = {
    "hand over": lambda task, now: task.hand_over(BOB, f"m{now}", int(now), now),
    "take back": lambda task, now: task.take_back(),
    "lose": lambda task, now: task.lose("executor lost", now),
    "release": lambda task, now: task.release(BOB, task.attempt, "busy", now),
    "late release": lambda task, now: task.release(BOB, task.attempt - 1, "busy", now),
    "accept": lambda task, now: task.accept(BOB, task.attempt, now, leased=True),
    "accept by message": lambda task, now: task.accept(BOB, task.attempt, now, leased=False),
    "accept of a stranger": lambda task, now: task.accept(CAROL, task.attempt, now, leased=True),
    "accept an old one": lambda task, now: task.accept(BOB, task.attempt - 1, now, leased=True),
    "heartbeat": lambda task, now: task.report(BOB, task.attempt, now),
    "progress": lambda task, now: task.report(BOB, task.attempt, now, progress=Progressed(0.5, "x")),
    "output": lambda task, now: task.report(BOB, task.attempt, now, output=[Produced("a"), Produced("b" * 50)]),
    "checkpoint": lambda task, now: task.report(BOB, task.attempt, now, checkpoint="1"),
    "ask": lambda task, now: task.report(BOB, task.attempt, now, question="which?"),
    "late report": lambda task, now: task.report(BOB, task.attempt - 1, now, progress=Progressed(0.9)),
    "answer": lambda task, now: task.answer("1", now),
    "signal": lambda task, now: task.signal("hurry", "", now),
    "cancel": lambda task, now: task.ask_to_cancel("enough", now, by=now + 30),
    "complete": lambda task, now: task.complete(BOB, task.attempt, "1", now),
    "late completion": lambda task, now: task.complete(BOB, task.attempt - 1, "1", now),
    "fail": lambda task, now: task.give_up(BOB, task.attempt, S.FAILED, "no", now),
    "reject": lambda task, now: task.give_up(BOB, task.attempt, S.REJECTED, "no", now),
    "obey": lambda task, now: task.give_up(BOB, task.attempt, S.CANCELLED, "", now),
    "expire": lambda task, now: task.end(S.EXPIRED, "its deadline passed", now),
    "call off": lambda task, now: task.end(S.CANCELLED, "its executor did not obey", now),
}


@given(
    st.lists(st.sampled_from(sorted(_ACTIONS)), max_size=60),
    st.integers(min_value=1, max_value=8),
    st.integers(min_value=1, max_value=3_000),
)
def test_no_order_of_calls_leaves_an_end_or_a_gap_in_the_events(names: list[str], most: int, most_bytes: int) -> None:
    task = task_for(max_events=most, max_event_bytes=most_bytes)
    seen = list(task.events)
    ended = None
    for now, name in enumerate(names, start=2):
        before = (task.state, task.last_event, task.attempt, task.executor, task.result, task.reason)
        try:
            _ACTIONS[name](task, float(now))
        except BusError:
            # What is refused changes nothing.
            assert before == (task.state, task.last_event, task.attempt, task.executor, task.result, task.reason)
        seen += [one for one in task.events if one.sequence > seen[-1].sequence]
        if ended is not None:
            assert before == (task.state, task.last_event, task.attempt, task.executor, task.result, task.reason)
        elif task.state.final:
            ended = task.state
            assert task.attempts == [] or task.attempts[-1].ended_at or not task.executor
        assert 1 <= len(task.events) <= most
        numbers = [one.sequence for one in task.events]
        assert numbers == list(range(numbers[0], task.last_event + 1))
        assert len(numbers) == 1 or sum(one.size for one in task.events) <= most_bytes
        assert [one.number for one in task.attempts] == list(range(1, len(task.attempts) + 1))
        assert sum(not one.ended_at for one in task.attempts) <= 1
    changes = [one.what for one in seen if isinstance(one.what, StateChanged)]
    if len(seen) == task.last_event:
        # Nothing was trimmed before it was seen: each change begins where the one before ended, and the table allows it.
        for former, change in zip([None, *changes], changes, strict=False):
            assert change.former is (former.state if former is not None else None)
            assert former is None or may_follow(former.state, change.state)
    restored = task_of(_stored(task), max_events=most, max_event_bytes=most_bytes)
    assert (order_text(restored), state_text(restored)) == (order_text(task), state_text(task))
    assert restored.events == task.events


def _stored(task: Task) -> StoredTask:
    parts = {"order": order_text(task), "state": state_text(task)}
    if task.checkpoint is not None:
        parts["checkpoint"] = task.checkpoint
    return StoredTask(task.number, parts, [(one.sequence, event_text(one)) for one in task.events])


# ---- attempts ------------------------------------------------------------------------------------------------------------


def test_only_the_attempt_in_force_speaks() -> None:
    task = accepted()
    task.report(BOB, 1, 3.0, progress=Progressed(0.5, "half"), checkpoint='"here"')
    task.lose("executor lost", 4.0)
    assert (task.state, task.executor, task.progress, task.note, task.checkpoint) == (
        S.SUBMITTED,
        "",
        None,
        "",
        '"here"',
    )
    for who in (BOB, CAROL):
        with pytest.raises(AttemptSuperseded, match="waits for another executor"):
            task.accept(who, 1, 5.0, leased=True)
    task.hand_over(CAROL, "m2", 1, 5.0)
    task.accept(CAROL, 2, 6.0, leased=True)
    with pytest.raises(AttemptSuperseded, match="carol@local has it") as caught:
        task.complete(BOB, 1, "1", 7.0)
    assert (caught.value.attempt, caught.value.in_force) == ("1", "2")
    with pytest.raises(AttemptSuperseded, match="attempt 2 is"):
        task.report(CAROL, 1, 7.0)
    task.complete(CAROL, 2, "1", 8.0)
    assert [(one.executor, one.began_at, one.ended_at, one.outcome) for one in task.attempts] == [
        (BOB, 2.0, 4.0, "executor lost"),
        (CAROL, 6.0, 8.0, "completed"),
    ]
    assert task.was_executor(BOB)
    assert not task.was_executor(BOB, since=2.0)


def test_attempt_that_nobody_has_seen_is_not_counted_when_it_is_taken_back() -> None:
    task = handed()
    task.take_back()
    assert (task.attempt, task.waits) == (0, True)
    task.hand_over(CAROL, "m2", 3, 2.0)
    assert (task.attempt, task.executor, task.sequence) == (1, CAROL, 3)
    task.accept(CAROL, 1, 3.0, leased=False)
    with pytest.raises(PreconditionFailed):
        task.take_back()
    with pytest.raises(PreconditionFailed):
        task.hand_over(BOB, "m3", 1, 4.0)


def test_attempt_that_is_given_back_keeps_the_checkpoint_and_does_not_count() -> None:
    task = accepted()
    task.report(BOB, 1, 3.0, progress=Progressed(0.5, "half"), checkpoint='"here"', question="which?")
    for who, attempt in ((CAROL, 1), (BOB, 2), (BOB, 0)):
        with pytest.raises(AttemptSuperseded):
            task.release(who, attempt, "not mine", 4.0)
    task.release(BOB, 1, "busy", 4.0)
    assert (task.state, task.executor, task.leased, task.checkpoint) == (S.SUBMITTED, "", False, '"here"')
    assert (task.progress, task.note, task.question, task.reason) == (None, "", "", "released: busy")
    assert (task.attempt, task.counted, task.releases, task.waits) == (1, 0, 1, True)
    with pytest.raises(AttemptSuperseded):
        task.complete(BOB, 1, "1", 5.0)
    # Also one that nobody has accepted.
    task.hand_over(CAROL, "m2", 1, 5.0)
    task.release(CAROL, 2, "", 6.0, counts=True)
    assert (task.attempt, task.counted, task.releases) == (2, 1, 1)
    assert [(one.began_at, one.ended_at, one.outcome, one.released) for one in task.attempts] == [
        (2.0, 4.0, "released: busy", True),
        (0.0, 6.0, "released", False),
    ]
    assert task.was_released(BOB, 1)
    assert task.was_released(CAROL, 2)
    assert not task.was_released(CAROL, 1)
    restored = task_of(_stored(task), max_events=1_000, max_event_bytes=100_000)
    assert restored.attempts == task.attempts
    task.end(S.CANCELLED, "enough", 7.0)
    with pytest.raises(TaskEnded):
        task.release(CAROL, 2, "", 8.0)


def test_report_by_a_call_gives_a_lease_that_a_message_does_not_take_away() -> None:
    task = handed()
    task.accept(BOB, 1, 2.0, leased=False)
    assert not task.leased
    task.accept(BOB, 1, 3.0, leased=True)
    task.accept(BOB, 1, 4.0, leased=False)
    assert task.leased
    assert [type(one.what) for one in task.events] == [StateChanged, StateChanged]


def test_work_is_reported_after_acceptance_only() -> None:
    task = handed()
    with pytest.raises(PreconditionFailed, match="accept it first"):
        task.report(BOB, 1, 2.0)
    with pytest.raises(PreconditionFailed, match="accept it first"):
        task.complete(BOB, 1, None, 2.0)
    with pytest.raises(PreconditionFailed, match="accept it first"):
        task.give_up(BOB, 1, S.FAILED, "", 2.0)
    task.give_up(BOB, 1, S.REJECTED, "no", 2.0)
    assert task.state is S.REJECTED


# ---- states and what leads to them -----------------------------------------------------------------------------------------


def test_output_begins_work_and_only_progress_goes_on_after_a_question() -> None:
    task = accepted()
    task.report(BOB, 1, 3.0)
    assert task.state is S.ACCEPTED
    task.report(BOB, 1, 3.0, output=[Produced("x")])
    assert task.state is S.RUNNING
    task.report(BOB, 1, 3.0, question="which?")
    task.report(BOB, 1, 3.0, output=[Produced("y")])
    assert (task.state, task.question) == (S.INPUT_REQUIRED, "which?")
    task.report(BOB, 1, 3.0, question="or that?")
    assert (task.state, task.question) == (S.INPUT_REQUIRED, "or that?")
    task.report(BOB, 1, 4.0, progress=Progressed(0.1))
    assert (task.state, task.question) == (S.RUNNING, "")
    with pytest.raises(PreconditionFailed, match="no input is asked for"):
        task.answer("1", 5.0)


def test_nobody_but_the_executor_completes_and_it_cancels_only_when_asked() -> None:
    task = accepted()
    with pytest.raises(PreconditionFailed, match="only its executor"):
        task.end(S.COMPLETED, "", 3.0)
    with pytest.raises(PreconditionFailed, match="nobody asked"):
        task.give_up(BOB, 1, S.CANCELLED, "", 3.0)
    with pytest.raises(PreconditionFailed, match="cannot end a task as expired"):
        task.give_up(BOB, 1, S.EXPIRED, "", 3.0)
    assert task.ask_to_cancel("enough", 3.0, by=33.0)
    assert not task.ask_to_cancel("again", 4.0, by=34.0)
    assert (task.cancel_by, task.state) == (33.0, S.ACCEPTED)
    task.give_up(BOB, 1, S.CANCELLED, "stopped", 5.0)
    with pytest.raises(TaskEnded, match="'t' is cancelled: stopped"):
        task.end(S.EXPIRED, "", 6.0)


# ---- events ----------------------------------------------------------------------------------------------------------------


def test_events_are_read_after_a_cursor_and_gone_ones_are_named() -> None:
    task = accepted(max_events=5)
    task.report(BOB, 1, 3.0, output=[Produced(f"{index}") for index in range(10)])
    assert (task.first_event, task.last_event) == (9, 13)
    assert [one.sequence for one in task.events_after(11)] == [12, 13]
    assert [one.sequence for one in task.events_after(8)] == [9, 10, 11, 12, 13]
    assert [one.sequence for one in task.events_after(0)] == [9, 10, 11, 12, 13]
    assert task.events_after(13) == []
    with pytest.raises(EventsGone) as caught:
        task.events_after(7)
    assert caught.value.first_kept == "9"
    with pytest.raises(InvalidArgument, match="the last event of the task is 13"):
        task.events_after(14)


def test_events_are_bounded_in_bytes_and_the_newest_one_is_always_kept() -> None:
    task = accepted(max_event_bytes=2_000)
    small = task.size
    task.report(BOB, 1, 3.0, output=[Produced("x" * 5_000)])
    assert len(task.events) == 1
    assert task.size > small + 4_000
    task.report(BOB, 1, 3.0, output=[Produced("é" * 100)])
    assert [one.what for one in task.events] == [Produced("é" * 100)]
    task.keep_little()
    assert len(task.events) == 1


def test_event_says_which_attempt_it_belongs_to_and_what_the_executor_should_hear() -> None:
    task = accepted()
    task.ask_to_cancel("enough", 3.0, by=9.0)
    task.signal("hurry", "1", 3.0)
    task.lose("executor lost", 4.0)
    assert [(one.attempt, one.concerns_executor) for one in task.events] == [
        (0, False),
        (1, False),
        (1, True),
        (1, True),
        (1, False),
    ]


# ---- in a store --------------------------------------------------------------------------------------------------------------


def test_task_comes_back_from_its_texts_with_all_its_values() -> None:
    order = TaskOrder(
        "role:adder",
        "zusammenzählen \ud800",
        '{"a": 1}',
        "http://x",
        99.5,
        OnExecutorLost.REDELIVER,
        3,
        TaskKey("zoë@local", "p"),
        (Attachment("file:///x", "text/csv", "x", "sha256:00", 7),),
    )
    task = task_for(order)
    task.hand_over(BOB, "m1", 17, 2.0)
    task.accept(BOB, 1, 2.0, leased=True)
    task.report(BOB, 1, 3.0, progress=Progressed(0.25, "a"), checkpoint='{"at": 1}', question="which?")
    task.answer("1", 4.0)
    task.signal("hurry", "", 4.0)
    task.ask_to_cancel("x", 5.0, by=35.0)
    restored = task_of(_stored(task), max_events=1_000, max_event_bytes=100_000)
    assert restored.order == order
    assert restored.order.difference(order) == ""
    assert (order_text(restored), state_text(restored)) == (order_text(task), state_text(task))
    assert (restored.checkpoint, restored.size) == ('{"at": 1}', task.size)
    assert [type(one.what) for one in restored.events] == [
        StateChanged,
        StateChanged,
        StateChanged,
        Progressed,
        Noted,
        StateChanged,
        Answered,
        StateChanged,
        Signalled,
        CancelAsked,
    ]
    restored.report(BOB, 1, 6.0, output=[Produced("x")])
    assert restored.last_event == task.last_event + 1


@pytest.mark.parametrize("change", ["no state", "another word", "no JSON", "another kind"])
def test_what_this_version_does_not_write_is_no_task(change: str) -> None:
    stored = _stored(accepted())
    if change == "no state":
        del stored.parts["state"]
    elif change == "another word":
        stored.parts["state"] = json.dumps({**json.loads(stored.parts["state"]), "state": 77})
    elif change == "no JSON":
        stored.parts["order"] = "{"
    else:
        stored.events[0] = (1, '{"at":1,"attempt":0,"kind":"prophecy"}')
    with pytest.raises(ValueError):  # noqa: PT011  # Also of the JSON parser and of the enum.
        task_of(stored, max_events=10, max_event_bytes=1_000)


def test_order_names_what_differs() -> None:
    order = TaskOrder(BOB, "do it")
    assert order.difference(TaskOrder(BOB, "do it")) == ""
    assert order.difference(TaskOrder(BOB, "do that")) == "description"
    assert order.difference(TaskOrder(BOB, "do it", max_attempts=2)) == "max_attempts"
