"""What an executor tells the bus of one attempt at a task, and hears from it: progress, output, checkpoints, questions.

Owns: one report at a time, which takes along whatever has gathered meanwhile; the lease, which every report renews; and that
nothing is told twice when a report was lost on its way. Leaves to others: the handler that has something to tell
(`client.task_context`), the end of the attempt (`client.executing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable

from gagent_grpc.acp.tasks import DelegatedTask, TaskEvent, TaskEventKind, TaskKey, TaskState
from gagent_grpc.client.task_calls import Begun, Reported, TaskCalls, is_gone
from gagent_grpc.config import MIB
from gagent_grpc.errors import BusError, EventsGone, MessageTooLarge, PreconditionFailed, Unauthenticated, Unavailable
from gagent_grpc.pb.gagent.v1 import task_service_pb2

_logger = logging.getLogger(__name__)

_REPORT_BYTES = MIB // 2
"""Output that one report takes along, in bytes; a single part may be larger."""
_REPORT_PARTS = 500
"""Parts of output that one report takes along, fewer than a bus keeps events: one that is in doubt is looked for in them."""
_LOOK_BACK = 400
"""Events of ours after which the place in the log is found anew, well below what a bus keeps of them."""
_TELLING = (TaskEventKind.OUTPUT, TaskEventKind.CHECKPOINT)


class Reports:
    """The reports of one attempt. `run` sends them, until the attempt is over or not in force any more."""

    def __init__(
        self,
        calls: TaskCalls,
        begun: Begun,
        *,
        most_bytes: int,
        largest: int,
        heard: Callable[[TaskEvent], None],
        cancelled: Callable[[], None],
    ) -> None:
        """Report on an attempt that has begun.

        Args:
            calls: Where the reports go.
            begun: The attempt.
            most_bytes: Output that waits here before `output` waits.
            largest: Message limit of the bus in bytes, which what one report tells keeps to.
            heard: Hears of answers and signals, each once and in order.
            cancelled: Is told, more than once maybe, that the delegator wants the task to end.
        """
        self._calls = calls
        self._key = TaskKey(begun.task.delegator, begun.task.task_id)
        self._attempt = begun.attempt
        self._lease = begun.lease
        self._most_bytes = most_bytes
        self._largest = largest
        self._heard = heard
        self._cancelled = cancelled
        self._progress: task_service_pb2.TaskProgress | None = None
        self._output: deque[task_service_pb2.TaskOutput] = deque()
        self._output_bytes = 0
        self._checkpoint: str | None = None
        self._question = ""
        self._waiting: list[asyncio.Future[None]] = []
        """Who waits until what there is to tell now is told."""
        self._room = asyncio.Event()
        self._quiet = asyncio.Event()
        """Set while no report is on its way."""
        self._quiet.set()
        self._wake = asyncio.Event()
        self._cursor = 0
        """Sequence of the last event that was heard."""
        self._seen = begun.task.last_event
        """A place in the log, and how much of what this attempt told stands behind it."""
        self._told = 0
        self.over: BusError | None = None
        """Why nothing can be told any more; None while it can."""
        self._refused: BusError | None = None

    # ---- what there is to tell -------------------------------------------------------------------------------------

    def poke(self) -> None:
        """Report soon: something may be there to hear."""
        self._wake.set()

    def progress(self, fraction: float | None, note: str) -> None:
        """Tell how far it is; only the latest counts."""
        self._check()
        self._progress = task_service_pb2.TaskProgress(fraction=fraction, note=note)
        self._wake.set()

    async def output(self, text: str, channel: str) -> None:
        """Tell a part of what comes out; wait while too much waits already."""
        self._check()
        while self._output_bytes >= self._most_bytes:
            self._room.clear()
            await self._room.wait()
            self._check()
        made = task_service_pb2.TaskOutput(text=text, channel=channel)
        size = made.ByteSize()
        if size > self._largest:
            raise MessageTooLarge(size, self._largest)
        self._output.append(made)
        self._output_bytes += size
        self._wake.set()

    async def save(self, checkpoint: str) -> None:
        """Tell a checkpoint, and wait until it is kept."""
        self._check()
        self._checkpoint = checkpoint
        await self._until_told()

    async def ask(self, question: str) -> None:
        """Ask for input, and wait until the question is kept."""
        self._check()
        self._question = question
        await self._until_told()

    async def flush(self) -> None:
        """Wait until everything is told.

        Raises:
            BusError: The attempt is over, or the bus refused something that was to be told.
        """
        self._check()
        if self._pending:
            await self._until_told()
        elif not self._quiet.is_set():
            # What was told last is on its way: an end that overtakes it would have it refused.
            await self._quiet.wait()
            self._check()

    @property
    def _pending(self) -> bool:
        return bool(self._output or self._question or self._waiting) or not (
            self._progress is None and self._checkpoint is None
        )

    def _check(self) -> None:
        if self.over is not None:
            raise self.over
        if self._refused is not None:
            error, self._refused = self._refused, None
            raise error

    async def _until_told(self) -> None:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        self._wake.set()
        await told

    # ---- telling ---------------------------------------------------------------------------------------------------

    async def run(self) -> BusError:
        """Report whenever there is something to tell, and at each third of the lease; return why that is over."""
        try:
            while True:
                # No time is lost while a report is on its way: what gathers meanwhile goes with the next one.
                if not (self._output or self._question):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._lease / 3):
                            await self._wake.wait()
                self._wake.clear()
                self._quiet.clear()
                error = await self._report()
                if error is not None:
                    self.close(error)
                    return error
                self._quiet.set()
        finally:
            self.close(PreconditionFailed(f"the attempt at the task {self._key.task_id} is over"))

    def close(self, error: BusError) -> None:
        """Nothing can be told any more, for this reason. Idempotent."""
        if self.over is None:
            self.over = error
            self._room.set()
            self._quiet.set()
            waiting, self._waiting = self._waiting, []
            self._settle(waiting, error)

    async def _report(self) -> BusError | None:
        """Tell what there is; return an error that ends the attempt."""
        request, waiting = self._take()
        try:
            reported = await self._insist(request)
        except BusError as error:
            if is_gone(error):
                self._settle(waiting, error)
                return error
            return await self._refused_report(request, waiting, error)
        except BaseException:
            for one in waiting:
                one.cancel()
            raise
        self._settle(waiting, None)
        self._take_in(reported)
        await self._find_place()
        return None

    async def _refused_report(
        self, request: task_service_pb2.ReportTaskRequest, waiting: list[asyncio.Future[None]], error: BusError
    ) -> BusError | None:
        """The bus takes the attempt as it is, but not what was to be told. Whoever waits for that hears it, else the next one.

        What nobody waits for is told once more without the rest, which may be what was at fault.
        """
        _logger.warning("task %s: a report was refused: %s", self._key.task_id, error)
        is_heard = any(not one.done() for one in waiting)
        self._settle(waiting, error)
        if not (is_heard and (request.output or request.HasField("progress"))):
            self._refused = None if is_heard else error
            # Not at once again: an error that stays must not become a storm.
            await asyncio.sleep(self._calls.initial_backoff)
            return None
        request.ClearField("checkpoint_json")
        request.ClearField("question")
        try:
            self._take_in(await self._insist(request))
        except BusError as again:
            if is_gone(again):
                return again
            self._refused = again
        return None

    def _take(self) -> tuple[task_service_pb2.ReportTaskRequest, list[asyncio.Future[None]]]:
        request = task_service_pb2.ReportTaskRequest(
            delegator=self._key.delegator,
            task_id=self._key.task_id,
            attempt=self._attempt,
            progress=self._progress,
            checkpoint_json=self._checkpoint,
            question=self._question,
            events_after=self._cursor,
        )
        size = 0
        # What else the report tells counts, too, and is short.
        most = min(_REPORT_BYTES, self._largest - request.ByteSize())
        while self._output and (
            not request.output or (size + self._output[0].ByteSize() <= most and len(request.output) < _REPORT_PARTS)
        ):
            part = self._output.popleft()
            size += part.ByteSize()
            request.output.append(part)
        self._output_bytes -= size
        if self._output_bytes < self._most_bytes:
            self._room.set()
        self._progress, self._checkpoint, self._question = None, None, ""
        waiting: list[asyncio.Future[None]] = []
        if not self._output:
            waiting, self._waiting = self._waiting, []
        return request, waiting

    @staticmethod
    def _settle(waiting: list[asyncio.Future[None]], error: BusError | None) -> None:
        for one in waiting:
            if one.done():
                continue
            if error is None:
                one.set_result(None)
            else:
                one.set_exception(error)

    async def _insist(self, request: task_service_pb2.ReportTaskRequest) -> Reported:
        """Report until the bus answers; what has arrived already is not told again."""
        tells = len(request.output) + (request.HasField("checkpoint_json")) + bool(request.question)
        longest = self._calls.initial_backoff
        in_doubt = False
        while True:
            token = self._calls.token
            try:
                if in_doubt and tells and await self._has_arrived():
                    request = task_service_pb2.ReportTaskRequest(
                        delegator=self._key.delegator,
                        task_id=self._key.task_id,
                        attempt=self._attempt,
                        events_after=self._cursor,
                    )
                reported = await self._calls.report(request)
            except Unavailable:
                in_doubt = True
                pause = longest
            except Unauthenticated:
                # The agent has another session meanwhile, or will have one; else it is not known any more.
                if token == self._calls.token and token:
                    raise
                pause = 0.0
            else:
                self._told += tells
                return reported
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311  # Spreads the load; nothing secret.
            longest = min(2 * longest, self._calls.max_backoff)

    async def _has_arrived(self) -> bool:
        """Whether a report whose answer was lost has come to the bus, as its log says: it is kept whole or not at all."""
        told = 0
        try:
            async with contextlib.aclosing(self._calls.watch(self._key, self._seen)) as stream:
                last = self._seen
                async for one in stream:
                    if isinstance(one, DelegatedTask):
                        last = one.last_event
                    else:
                        told += self._is_ours(one)
                    if (last if isinstance(one, DelegatedTask) else one.sequence) >= last and (
                        not isinstance(one, DelegatedTask) or last <= self._seen
                    ):
                        break
        except EventsGone:
            # Not handled: more events than the bus keeps came between. Better twice than never.
            return False
        return told > self._told

    def _is_ours(self, event: TaskEvent) -> bool:
        asks = event.kind is TaskEventKind.STATE and event.state is TaskState.INPUT_REQUIRED
        return event.attempt == self._attempt and (asks or event.kind in _TELLING)

    async def _find_place(self) -> None:
        """Begin to count anew before so much was told that the bus forgets where the count began."""
        if self._told < _LOOK_BACK:
            return
        with contextlib.suppress(BusError):
            self._seen = (await self._calls.get(self._key)).last_event
            self._told = 0

    def _take_in(self, reported: Reported) -> None:
        if reported.lease > 0:
            self._lease = reported.lease
        for event in reported.events:
            if event.sequence > self._cursor:
                self._cursor = event.sequence
                self._heard(event)
        if reported.cancel_requested:
            self._cancelled()
