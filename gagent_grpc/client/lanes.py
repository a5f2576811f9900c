"""Runs handlers: in order within a lane, lanes side by side up to a bound, urgent messages first.

Owns: lanes, the tasks that work on them, and what a lane does while one of its messages is on its way back. Leaves to
others: what a handler does (given as `run`), settling (`client.deliveries`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container
from typing import Any

_logger = logging.getLogger(__name__)

Lane = tuple[str, str, bool]
"""(sender, conversation id, urgent): messages of one lane are handled one after the other. Urgent ones have a lane of their
own beside the one of their conversation, so that a cancel does not wait for what it is to end."""


class Job:
    """One delivery that is to be handled."""

    __slots__ = ("acl", "delivery", "key", "lane", "sequence")

    def __init__(self, delivery: Any, acl: Any, sequence: int, key: tuple[str, str], lane: Lane) -> None:
        self.delivery = delivery
        self.acl = acl
        """The ACL message in it; None when it holds an ACP message."""
        self.sequence = sequence
        """Number in the mailbox; 0 once the delivery is no longer this agent's to settle."""
        self.key = key
        """(sender, message id): what makes it the same message when it comes again."""
        self.lane = lane


_JOBS_IN_A_ROW = 512
"""Jobs after which a worker lets others have a turn."""


class Lanes:
    """Lanes with work, and the workers on them.

    ``run`` handles one job, raises nothing, and returns whether the lane may go on: False when the job is on its way
    back to the bus, which holds its lane until `returned` names what else came back.
    """

    def __init__(self, run: Callable[[Job], Awaitable[bool]], *, concurrency: int) -> None:
        self._run = run
        self._concurrency = concurrency
        self._lanes: dict[Lane, deque[Job]] = {}
        self._ready: deque[Lane] = deque()
        self._urgent: deque[Lane] = deque()
        """As `_ready`, for urgent lanes."""
        self._stopped: set[Lane] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._closed = False
        self._held = False

    def add(self, jobs: list[Job]) -> None:
        """Take deliveries in the order in which they came; nothing is taken after `close`."""
        if self._closed:
            return
        lanes = self._lanes
        for job in jobs:
            lane = lanes.get(job.lane)
            if lane is None:
                lanes[job.lane] = deque((job,))
                (self._urgent if job.lane[2] else self._ready).append(job.lane)
            else:
                lane.append(job)
        if self._urgent or self._ready:
            self._start_worker()

    def returned(self, sequences: frozenset[int]) -> None:
        """Drop deliveries that count as returned; the lanes that waited for this word go on."""
        for key in list(self._stopped):
            lane = self._lanes[key]
            if lane[0].sequence not in sequences:
                continue
            self._stopped.discard(key)
            self._drop(key, sequences)
            if key in self._lanes:
                self._ready_of(key).append(key)
        # Wherever they wait, not only in lanes that stopped: to the bus it is one lane with the one of another urgency, and a
        # failure that crosses an earlier return of the same delivery has it returned, and delivered, once more.
        self._drop_waiting(sequences)
        if self._urgent or self._ready:
            self._start_worker()

    def put_back(self, job: Job) -> None:
        """Take a delivery once more that nobody has begun, before what waits in its lane; not after `close`."""
        if self._closed:
            return
        lane = self._lanes.get(job.lane)
        if lane is None:
            self.add([job])
            return
        begun = job.lane not in self._ready_of(job.lane)
        # In the order of acceptance, also when several are put back.
        place = next((i for i, one in enumerate(lane) if i >= begun and one.sequence > job.sequence), len(lane))
        lane.insert(place, job)

    def _drop_waiting(self, sequences: frozenset[int]) -> None:
        ready = {*self._ready, *self._urgent}
        for key, lane in list(self._lanes.items()):
            if not any(job.sequence in sequences for job in lane):
                continue
            self._drop(key, sequences, begun=key not in ready)
            if key not in self._lanes:
                self._ready_of(key).remove(key)

    def _ready_of(self, key: Lane) -> deque[Lane]:
        return self._urgent if key[2] else self._ready

    def _drop(self, key: Lane, sequences: frozenset[int], *, begun: int = 0) -> None:
        """Drop the jobs of a lane that are in ``sequences``, but for the first ``begun``."""
        lane = list(self._lanes[key])
        kept = deque(job for place, job in enumerate(lane) if place < begun or job.sequence not in sequences)
        if kept:
            self._lanes[key] = kept
        else:
            del self._lanes[key]

    def forget_waiting(self, *, held: Container[int] = frozenset()) -> None:
        """Drop every delivery that no handler has begun: the session is over and they come again.

        A lane that waits for the return of a job goes on waiting when the new session still has the job in ``held``.
        """
        dropped = {*self._ready, *self._urgent}
        dropped.update(key for key in self._stopped if self._lanes[key][0].sequence not in held)
        # What is left has a handler, or waits for a return.
        self._lanes = {key: deque((lane[0],)) for key, lane in self._lanes.items() if key not in dropped}
        self._stopped -= dropped
        self._ready.clear()
        self._urgent.clear()

    def close(self) -> None:
        """Begin no handler any more: what waits, and what still comes, is for the next session."""
        self._closed = True
        self.forget_waiting()

    def reopen(self) -> None:
        """Take deliveries again, for a new session."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether no handler is begun any more."""
        return self._closed

    def hold(self) -> None:
        """Begin no handler until `release`; what comes waits here."""
        self._held = True

    def release(self) -> None:
        """Begin handlers again."""
        self._held = False
        if self._urgent or self._ready:
            self._start_worker()

    async def idle(self, timeout: float | None) -> bool:
        """Wait until no handler runs, after `close`; return whether that came within ``timeout`` seconds, if any."""
        workers = set(self._workers)
        if workers:
            _, workers = await asyncio.wait(workers, timeout=timeout)
        return not workers

    def has_worker(self, task: asyncio.Task[object] | None) -> bool:
        """Whether ``task`` is one that runs handlers."""
        return task in self._workers

    async def aclose(self) -> None:
        """Cancel every handler and wait for its end. Idempotent."""
        while self._workers:
            workers = list(self._workers)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            self._workers.difference_update(workers)
        self._lanes.clear()
        self._ready.clear()
        self._urgent.clear()
        self._stopped.clear()
        # One that was cancelled before its first step has not counted itself.
        self._starting = 0

    def _start_worker(self) -> None:
        """See to one more worker; each one that begins sees to the next, so handlers that never wait need just one.

        Urgent work may have one more than all the others.
        """
        if self._held:
            return
        if self._starting == 0 and len(self._workers) < self._concurrency + bool(self._urgent):
            self._starting += 1
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._leave)

    def _leave(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        error = None if worker.cancelled() else worker.exception()
        if error is not None:
            # Never seen, and if it is, it must be heard of: the lane in hand stands still.
            _logger.error("a worker failed", exc_info=error)

    async def _work(self) -> None:
        self._starting -= 1
        done = 0
        run, urgent, ready, workers = self._run, self._urgent, self._ready, self._workers
        # The one worker more is for urgent work: when that is done, whichever is done first leaves.
        while urgent or (ready and len(workers) <= self._concurrency):
            done += 1
            if done % _JOBS_IN_A_ROW == 0:
                # Handlers that never wait would keep the loop from the writer, and the bus from their settles.
                await asyncio.sleep(0)
                if not (urgent or ready):
                    break
            key = (urgent or ready).popleft()
            if urgent or ready:
                self._start_worker()
            lane = self._lanes[key]
            while await run(lane[0]):
                # Not kept from before: what waited in the lane may have been dropped meanwhile.
                lane = self._lanes[key]
                lane.popleft()
                if not lane:
                    del self._lanes[key]
                    break
                if urgent or ready or not (done + 1) % _JOBS_IN_A_ROW or len(workers) > self._concurrency:
                    # To the end of the line, so that a busy lane does not keep the others waiting.
                    self._ready_of(key).append(key)
                    break
                done += 1
            else:
                self._stopped.add(key)
        # Here and not only when the task is done, which is a turn of the loop later: what is added in between needs
        # another worker.
        worker = asyncio.current_task()
        if worker is not None:
            self._workers.discard(worker)
