"""Tasks of the platform as they travel, and what delegators ask for as the platform reads it.

Owns: every field of both. Leaves to others: the calls (`server.task_servicer`), the client's side (`codec.tasks`).
"""

from __future__ import annotations

from collections.abc import Iterable

from gagent_grpc.acp.tasks import TaskState
from gagent_grpc.bus.delegation import Wish
from gagent_grpc.bus.task_table import TaskCounts
from gagent_grpc.bus.task_values import (
    Answered,
    CancelAsked,
    Noted,
    Produced,
    Progressed,
    Signalled,
    StateChanged,
    TaskEvent,
)
from gagent_grpc.bus.tasks import Task
from gagent_grpc.codec.tasks import (
    attachment_from_proto,
    attachment_to_proto,
    parent_from_proto,
    policy_from_proto,
    policy_to_proto,
    priority_to_proto,
    state_from_proto,
    state_to_proto,
)
from gagent_grpc.codec.times import seconds_of, timestamp_of
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import admin_service_pb2
from gagent_grpc.pb.gagent.v1 import task_service_pb2 as pb


def task_to_proto(task: Task, *, retention: float) -> pb.DelegatedTask:
    """Return a task as it is now; ``retention`` is how many seconds it is kept after its end."""
    order = task.order
    made = pb.DelegatedTask(
        task_id=task.key.task_id,
        delegator=task.key.delegator,
        target=task.target,
        executor=task.executor,
        description=order.description,
        parameters_json=order.parameters,
        callback_url=order.callback_url,
        state=state_to_proto(task.state),
        reason=task.reason,
        result_json=task.result,
        progress=task.progress,
        note=task.note,
        question=task.question,
        checkpoint_json=task.checkpoint,
        cancel_requested=task.cancel_requested,
        max_attempts=order.max_attempts,
        on_executor_lost=policy_to_proto(order.on_executor_lost),
        created_at=timestamp_of(task.created_at),
        updated_at=timestamp_of(task.updated_at),
        root_delegator=task.root.delegator,
        root_task_id=task.root.task_id,
        depth=task.depth,
        attachments=[attachment_to_proto(one) for one in order.attachments],
        priority=priority_to_proto(order.priority),
        last_event=task.last_event,
    )
    for attempt in task.attempts:
        written = made.attempts.add(number=attempt.number, executor=attempt.executor)
        written.outcome, written.released = attempt.outcome, attempt.released
        if attempt.began_at:
            written.began_at.CopyFrom(timestamp_of(attempt.began_at))
        if attempt.ended_at:
            written.ended_at.CopyFrom(timestamp_of(attempt.ended_at))
    if task.deadline:
        made.deadline.CopyFrom(timestamp_of(task.deadline))
    if order.parent is not None:
        made.parent_delegator, made.parent_task_id = order.parent
    if task.state.final:
        made.forgotten_at.CopyFrom(timestamp_of(task.ended_at + retention))
    return made


def task_stats_to_proto(counts: TaskCounts) -> admin_service_pb2.TaskStats:
    """Return what there is of tasks, for operators."""
    return admin_service_pb2.TaskStats(
        by_state=[
            admin_service_pb2.TaskStateCount(state=state_to_proto(state), tasks=count)
            for state, count in counts.by_state.items()
        ],
        delegated=counts.delegated,
        running=counts.running,
        waiting=counts.waiting,
        leases=counts.leases,
        watches=counts.watches,
        size_bytes=counts.size,
    )


def event_to_proto(event: TaskEvent) -> pb.TaskEvent:
    """Return an event as it travels."""
    made = pb.TaskEvent(sequence=event.sequence, at=timestamp_of(event.at), attempt=event.attempt)
    what = event.what
    if isinstance(what, StateChanged):
        made.state.state = state_to_proto(what.state)
        if what.former is not None:
            made.state.former = state_to_proto(what.former)
        made.state.reason, made.state.question = what.reason, what.question
        if what.result is not None:
            made.state.result_json = what.result
    elif isinstance(what, Progressed):
        made.progress.note = what.note
        if what.fraction is not None:
            made.progress.fraction = what.fraction
    elif isinstance(what, Produced):
        made.output.text, made.output.channel = what.text, what.channel
    elif isinstance(what, Answered):
        made.answer_json = what.answer
    elif isinstance(what, Signalled):
        made.signal.name, made.signal.value_json = what.name, what.value
    elif isinstance(what, Noted):
        made.checkpoint_json = what.checkpoint
    elif isinstance(what, CancelAsked):
        made.cancel_requested = what.reason
    return made


def wish_from_proto(request: pb.DelegateTaskRequest) -> Wish:
    """Return what a delegator asks for.

    Raises:
        InvalidArgument: The deadline is before the epoch, or the policy or the urgency is none.
        MissingParameter: A parent is named by half.
    """
    return Wish(
        request.target,
        request.task_id,
        request.description,
        request.parameters_json,
        request.callback_url if request.HasField("callback_url") else None,
        # Before the epoch is as much over as one second after it.
        max(1.0, seconds_of(request.deadline)) if request.HasField("deadline") else 0.0,
        policy_from_proto(request.on_executor_lost),
        request.max_attempts,
        parent_from_proto(request.parent_delegator, request.parent_task_id),
        tuple(attachment_from_proto(one) for one in request.attachments),
        _priority(request.priority),
    )


def state_of(number: int, field: str) -> TaskState:
    """Return the state with a number.

    Raises:
        InvalidArgument: There is none.
    """
    state = state_from_proto(number)
    if state is None:
        expected = ", ".join(f"{int(one)} ({one})" for one in TaskState)
        raise InvalidArgument(f"{field} {number}; expected one of {expected}", field=field)
    return state


def states_of(numbers: Iterable[int]) -> frozenset[TaskState]:
    """Return the states with these numbers; errors as `state_of`."""
    return frozenset(state_of(number, "states") for number in numbers)


def _priority(number: int) -> Priority:
    try:
        return Priority(number or Priority.NORMAL)
    except ValueError:
        raise InvalidArgument(f"priority {number}; expected 1 (low) to 4 (urgent)", field="priority") from None
