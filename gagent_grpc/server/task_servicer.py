"""`TaskService`: the calls of delegators and executors, adapted to `bus.tasking`.

What a call returns is durable, and so is what a stream tells: a crash takes back nothing that somebody has seen.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from gagent_grpc.acp.tasks import TaskKey
from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.platform import Platform
from gagent_grpc.bus.task_values import Produced, Progressed
from gagent_grpc.bus.task_watches import TaskWatch
from gagent_grpc.bus.tasks import Task
from gagent_grpc.codec.tasks import state_to_proto
from gagent_grpc.errors import BusDraining, InvalidArgument, MissingParameter, ResourceExhausted
from gagent_grpc.pb.gagent.v1 import task_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import task_service_pb2_grpc
from gagent_grpc.server.identity import caller_of
from gagent_grpc.server.task_forms import event_to_proto, state_of, states_of, task_to_proto, wish_from_proto

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_RESULTS = 100
_RESULT_BYTES = 6
"""What a result takes beside itself: its tag and its length."""
_SLICE = 50
"""Tasks that are written in one go, before everybody else has a turn."""


class TaskServicer(task_service_pb2_grpc.TaskServiceServicer):
    """Serves delegated tasks. Errors are raised as they are; the interceptor makes statuses of them."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._delegation = platform.tasks.delegation
        self._execution = platform.tasks.execution

    # ---- delegators ------------------------------------------------------------------------------------------------

    async def DelegateTask(self, request: pb.DelegateTaskRequest, context: Context) -> pb.DelegateTaskResponse:
        """Hand a task over."""
        if self._platform.draining:
            raise BusDraining("the bus is shutting down")
        caller = caller_of(self._platform, context)
        task, existed, handover = self._delegation.delegate(caller, wish_from_proto(request))
        if handover is not None:
            await handover.outcome(self._platform.limits.write_timeout)
        await self._platform.flush()
        return pb.DelegateTaskResponse(task=self._written(task), existed=existed)

    async def GetTask(self, request: pb.GetTaskRequest, context: Context) -> pb.GetTaskResponse:
        """Return a task."""
        task = self._delegation.get(self._caller(context), request.delegator, request.task_id)
        return pb.GetTaskResponse(task=await self._durable(task))

    async def ListTasks(self, request: pb.ListTasksRequest, context: Context) -> pb.ListTasksResponse:
        """Return tasks, newest first, as many as fit."""
        before = 0
        if request.page_token:
            if not (request.page_token.isascii() and request.page_token.isdecimal() and len(request.page_token) < 20):
                raise InvalidArgument("page_token is none of an earlier response", field="page_token")
            before = max(1, int(request.page_token))
        found = self._delegation.search(
            self._caller(context),
            delegator=request.delegator,
            executor=request.executor,
            states=states_of(request.states),
            before=before,
        )
        most = request.max_results or _DEFAULT_RESULTS
        # A quarter of a frame is left for what no client of today asks for.
        room = self._platform.limits.max_frame_bytes * 3 // 4
        response = pb.ListTasksResponse()
        last = 0
        for task in found:
            if task is None:
                await asyncio.sleep(0)
                continue
            written = self._written(task)
            room -= written.ByteSize() + _RESULT_BYTES
            # One comes whatever its size, or nobody could get past it.
            if len(response.tasks) >= most or (room < 0 and response.tasks):
                response.next_page_token = str(last)
                break
            response.tasks.append(written)
            last = task.number
            if not len(response.tasks) % _SLICE:
                await asyncio.sleep(0)
        await self._platform.flush()
        return response

    async def AnswerTask(self, request: pb.AnswerTaskRequest, context: Context) -> pb.AnswerTaskResponse:
        """Give the input that was asked for."""
        caller = self._caller(context)
        task = self._delegation.answer(caller, request.delegator, request.task_id, request.answer_json)
        return pb.AnswerTaskResponse(task=await self._durable(task))

    async def SignalTask(self, request: pb.SignalTaskRequest, context: Context) -> pb.SignalTaskResponse:
        """Tell the executor something."""
        caller = self._caller(context)
        task = self._delegation.signal(caller, request.delegator, request.task_id, request.name, request.value_json)
        return pb.SignalTaskResponse(task=await self._durable(task))

    async def CancelTask(self, request: pb.CancelTaskRequest, context: Context) -> pb.CancelTaskResponse:
        """Call a task off."""
        task = self._delegation.cancel(self._caller(context), request.delegator, request.task_id, request.reason)
        return pb.CancelTaskResponse(task=await self._durable(task))

    async def WatchTask(  # type: ignore[override]  # [override]: a coroutine that writes, and so knows of its end.
        self, request: pb.WatchTaskRequest, context: Context
    ) -> None:
        """Tell of a task, and of what happens to it."""
        after = request.after if request.HasField("after") else None
        with self._delegation.watch(self._caller(context), request.delegator, request.task_id, after) as watch:
            # At once, so that the client knows that it is heard.
            await context.send_initial_metadata(())
            await self._tell(pb.WatchTaskResponse(task=await self._durable(watch.task)), context)
            await self._tell_events(watch, context)

    async def _tell_events(self, watch: TaskWatch, context: Context) -> None:
        while events := await watch.next():
            written = [pb.WatchTaskResponse(event=event_to_proto(event)) for event in events]
            await self._platform.flush()
            for response in written:
                await self._tell(response, context)

    async def _tell(self, response: pb.WatchTaskResponse, context: Context) -> None:
        timeout = self._platform.limits.write_timeout
        try:
            async with asyncio.timeout(timeout):
                await context.write(response)
        except TimeoutError:
            raise ResourceExhausted(
                f"nothing was read for {timeout:g} s; watch the task again after the last event that was read"
            ) from None

    # ---- executors -------------------------------------------------------------------------------------------------

    async def AcceptTask(self, request: pb.AcceptTaskRequest, context: Context) -> pb.AcceptTaskResponse:
        """Begin an attempt."""
        caller = self._caller(context)
        task = self._execution.accept(caller, self._key(caller, request.delegator, request.task_id), request.attempt)
        attempt, lease = task.attempt, self._platform.limits.task_lease
        return pb.AcceptTaskResponse(task=await self._durable(task), attempt=attempt, lease_seconds=lease)

    async def ReportTask(self, request: pb.ReportTaskRequest, context: Context) -> pb.ReportTaskResponse:
        """Note how a task goes."""
        caller = self._caller(context)
        most = self._platform.limits.task_report_parts
        if len(request.output) > most:
            raise InvalidArgument(f"{len(request.output):,} parts; expected at most {most:,} at once", field="output")
        progress = None
        if request.HasField("progress"):
            fraction = request.progress.fraction if request.progress.HasField("fraction") else None
            progress = Progressed(fraction, request.progress.note)
        task, events = self._execution.report(
            caller,
            self._key(caller, request.delegator, request.task_id),
            request.attempt,
            progress=progress,
            output=[Produced(one.text, one.channel) for one in request.output],
            checkpoint=request.checkpoint_json if request.HasField("checkpoint_json") else None,
            question=request.question,
            events_after=request.events_after if request.HasField("events_after") else None,
        )
        # Put down before the wait, in which more may happen that another response is for.
        response = pb.ReportTaskResponse(
            state=state_to_proto(task.state),
            cancel_requested=task.cancel_requested,
            events=[event_to_proto(event) for event in events],
            lease_seconds=self._platform.limits.task_lease,
        )
        await self._platform.flush()
        return response

    async def CompleteTask(self, request: pb.CompleteTaskRequest, context: Context) -> pb.CompleteTaskResponse:
        """End a task with its result."""
        caller = self._caller(context)
        key = self._key(caller, request.delegator, request.task_id)
        task = self._execution.complete(caller, key, request.attempt, request.result_json)
        return pb.CompleteTaskResponse(task=await self._durable(task))

    async def FailTask(self, request: pb.FailTaskRequest, context: Context) -> pb.FailTaskResponse:
        """End a task without a result."""
        caller = self._caller(context)
        key = self._key(caller, request.delegator, request.task_id)
        state = state_of(request.state, "state")
        task = self._execution.fail(caller, key, request.attempt, state, request.reason)
        return pb.FailTaskResponse(task=await self._durable(task))

    async def ReleaseTask(self, request: pb.ReleaseTaskRequest, context: Context) -> pb.ReleaseTaskResponse:
        """Take an attempt back."""
        caller = self._caller(context)
        key = self._key(caller, request.delegator, request.task_id)
        # Who is quick may give back what is being written.
        await self._platform.flush()
        task = self._execution.release(caller, key, request.attempt, request.reason, leaving=request.leaving)
        return pb.ReleaseTaskResponse(task=await self._durable(task))

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _caller(self, context: Context) -> Caller:
        return caller_of(self._platform, context)

    def _key(self, caller: Caller, delegator: str, task_id: str) -> TaskKey:
        """Return what names a task to its executor, who always says whose it is."""
        if not delegator:
            raise MissingParameter("task", "delegator")
        return self._delegation.key(caller, delegator, task_id)

    def _written(self, task: Task) -> pb.DelegatedTask:
        return task_to_proto(task, retention=self._platform.limits.task_retention)

    async def _durable(self, task: Task) -> pb.DelegatedTask:
        """Return a task as it is now, once that is durable."""
        written = self._written(task)
        await self._platform.flush()
        return written
