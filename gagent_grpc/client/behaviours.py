"""Behaviours: what an agent does of its own accord, beside its handlers, in the manner of JADE.

Owns: the life of one behaviour, what it receives, and when a message in its hand counts as handled; one-shot, cyclic,
waker and ticker. Leaves to others: behaviours made of behaviours (`client.composites`), which message is for which
behaviour (`client.activity`).
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gagent_grpc.acl.template import MessageTemplate
from gagent_grpc.client.letters import Letter, LetterBox
from gagent_grpc.client.message import Received
from gagent_grpc.client.timers import SHORTEST, next_due, seconds_over
from gagent_grpc.client.transport import is_cancelled
from gagent_grpc.errors import InvalidArgument, PreconditionFailed

if TYPE_CHECKING:
    from gagent_grpc.client.activity import Activity
    from gagent_grpc.client.agent import Agent


class Behaviour(ABC):
    """Something that an agent does until it is done: `on_start`, then `action` until `done`, then `on_end`.

    It runs once it was given to `Agent.add_behaviour` and the agent is open, and ends with the agent at the latest. An
    exception ends it, is logged, and comes out of `join`; the agent goes on. When it has ended it may be added again,
    and begins anew.

    **When a message counts as handled**: when the behaviour that received it asks for the next one, or when its `action`
    returns, whichever comes first. When `action` raises instead, or the behaviour is killed, the message comes again
    after a delay, flagged, to whoever is for it then, and is given up after a number of deliveries, as with handlers.
    What a behaviour has not received when it ends is somebody else's at once: another behaviour's, else a handler's.
    When the agent closes, both come again to its next session.
    """

    def __init__(self, name: str = "") -> None:
        """Make a behaviour; nothing runs yet.

        Args:
            name: For the log; the name of its class by default.
        """
        self.name = name or type(self).__name__
        """What the log calls it."""
        self._agent: Agent | None = None
        self._activity: Activity | None = None
        self._box: LetterBox | None = None
        self._parent: Behaviour | None = None
        self._task: asyncio.Task[None] | None = None
        self._added: asyncio.Event | None = None
        self._in_hand: Letter | None = None
        self._result: Any = None
        self._killed = False

    # ---- what subclasses say ---------------------------------------------------------------------------------------

    @abstractmethod
    async def action(self) -> Any:
        """Do one step; what it returns last is the behaviour's `result`."""

    @abstractmethod
    def done(self) -> bool:
        """Return whether it is over; asked after each `action`."""

    async def on_start(self) -> None:  # noqa: B027  # Subclasses need not.
        """Begin: once, before the first `action`. When it raises, the behaviour has failed."""

    async def on_end(self) -> None:  # noqa: B027  # Subclasses need not.
        """End: once, also when `action` raised or the behaviour was killed; not when `on_start` raised."""

    # ---- what subclasses use ---------------------------------------------------------------------------------------

    @property
    def agent(self) -> Agent:
        """The agent that it is a behaviour of.

        Raises:
            PreconditionFailed: It was not added to one.
        """
        root = self._root()
        if root._agent is None:
            raise PreconditionFailed(f"{self.name}: not added to an agent; expected agent.add_behaviour(...) first")
        return root._agent

    @property
    def parent(self) -> Behaviour | None:
        """The behaviour that it is a part of; None for one that was added to an agent itself."""
        return self._parent

    async def receive(self, template: MessageTemplate | None = None, timeout: float | None = None) -> Received | None:
        """Take the next message; the one before counts as handled with that.

        Messages are those that fit the template with which the behaviour (for a part, the whole) was added; they wait in
        the order in which they came, and those that are not asked for go on waiting.

        Args:
            template: Take the oldest that fits this as well.
            timeout: Seconds to wait; 0 only looks, None waits for ever.

        Returns:
            The message; None when none came in time.

        Raises:
            PreconditionFailed: The behaviour was added without a template, or does not run.
        """
        self._let_go()
        root = self._root()
        if not self.running:
            raise PreconditionFailed(f"{self.name}: does not run; messages are received within its methods")
        if root._box is None:
            text = "added without a template, so it gets no messages; expected agent.add_behaviour(behaviour, template)"
            raise PreconditionFailed(f"{root.name}: {text}")
        self._in_hand = await root._box.take(template, timeout)
        return self._in_hand.message if self._in_hand is not None else None

    # ---- what everybody uses ---------------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """What `action` returned last; None before."""
        return self._result

    @property
    def running(self) -> bool:
        """Whether it has begun and not ended."""
        return self._task is not None and not self._task.done()

    @property
    def killed(self) -> bool:
        """Whether it was killed, or ended with its agent, before it was done."""
        # One that was cancelled before its first step could not note it.
        return self._killed or (self._task is not None and self._task.cancelled())

    def kill(self) -> None:
        """End it at its next `await`; `on_end` still runs. Idempotent; one that does not run stays as it is.

        One that waits for its agent to open will not begin. A part that is killed counts as ended, with no result.
        """
        if self._task is not None:
            if not self._task.done():
                self._killed = True
                self._task.cancel()
        elif self._agent is not None:
            self._killed = True
            self._agent.remove_behaviour(self)

    cancel = kill

    async def join(self) -> Any:
        """Wait until it has ended; return its result, or None when it was killed. Giving up the wait changes nothing.

        Raises:
            PreconditionFailed: It was never added, or waits for itself.
            Exception: What ended it.
        """
        if self._added is None:
            raise PreconditionFailed(f"{self.name}: never added to an agent, so it does not end")
        if self._task is None:
            await self._added.wait()
        task = self._task
        if task is not None:
            if task is asyncio.current_task():
                raise PreconditionFailed(f"{self.name}: a behaviour cannot wait for its own end")
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        return None if self.killed else self._result

    def __repr__(self) -> str:
        if self._added is None:
            state = "new"
        elif self._task is None:
            state = "killed" if self.killed else "waits for its agent"
        else:
            state = "running" if self.running else "killed" if self.killed else "ended"
        return f"<{type(self).__name__} {self.name!r}, {state}>"

    # ---- its life, as agents and composites see it -----------------------------------------------------------------

    def _root(self) -> Behaviour:
        found = self
        while found._parent is not None:
            found = found._parent
        return found

    def _check(self) -> None:  # noqa: B027  # Most have nothing to check.
        """Raise InvalidArgument when it can be seen beforehand that it cannot run."""

    def _adopt(self, agent: Agent, activity: Activity, box: LetterBox | None) -> None:
        """Belong to an agent from now on; nothing runs yet."""
        if self._parent is not None:
            raise InvalidArgument(f"{self.name}: a part of {self._parent.name}; expected the whole", field="behaviour")
        if self.running or (self._added is not None and not self._added.is_set()):
            raise PreconditionFailed(f"{self.name}: was added already, and has not ended")
        self._check()
        self._agent, self._activity, self._box = agent, activity, box
        self._prepare()

    def _prepare(self) -> None:
        self._task, self._result, self._killed = None, None, False
        self._added = asyncio.Event()

    def _begin(self) -> asyncio.Task[None]:
        """Start the task; the agent, or the whole that it is a part of, waits for its end."""
        if self._parent is not None:
            self._prepare()
        activity = self._root()._activity
        assert self._added is not None
        assert activity is not None
        self._task = asyncio.create_task(self._live(), name=f"behaviour {self.name}")
        activity.own(self._task)
        self._added.set()
        return self._task

    def _abandon(self) -> None:
        """It will not begin any more."""
        self._killed = True
        if self._added is not None:
            self._added.set()

    async def _live(self) -> None:
        try:
            await self.on_start()
            try:
                await self._act()
            except BaseException as error:
                # Before `on_end`, which may receive others.
                self._give_back(error)
                raise
            finally:
                await self.on_end()
                self._let_go()
        except asyncio.CancelledError as error:
            self._give_back(error)
            if is_cancelled():
                self._killed = True
                raise
            # One that something awaited has raised is the behaviour's failure, and no more than that.
            raise RuntimeError(f"{self.name}: something that it waited for was cancelled") from error
        except Exception as error:
            self._give_back(error)
            raise

    async def _act(self) -> None:
        while True:
            self._result = await self.action()
            self._let_go()
            if self.done():
                return
            # An action that never waits would keep everybody else from the loop.
            await asyncio.sleep(0)

    def _let_go(self) -> None:
        """The message in hand is handled."""
        letter, self._in_hand = self._in_hand, None
        activity = self._root()._activity
        if letter is not None and activity is not None:
            activity.deliveries.handled(letter.job)

    def _give_back(self, error: BaseException) -> None:
        """The message in hand is not handled, and comes again."""
        letter, self._in_hand = self._in_hand, None
        activity = self._root()._activity
        if letter is None or activity is None:
            return
        deliveries = activity.deliveries
        if deliveries.lanes.closed:
            # Like what a handler has in hand when it is cut off: for the next session.
            deliveries.leave(letter.job)
        else:
            deliveries.failed(letter.job, error)


class OneShotBehaviour(Behaviour):
    """Does its `action` once."""

    def done(self) -> bool:
        """Return True: once is enough."""
        return True


class CyclicBehaviour(Behaviour):
    """Does its `action` again and again, until it is killed or the agent closes."""

    def done(self) -> bool:
        """Return False: it goes on."""
        return False


class WakerBehaviour(Behaviour):
    """Does `on_wake` once, after a while."""

    def __init__(self, after: float, name: str = "") -> None:
        """Make a behaviour that wakes after ``after`` seconds, counted from its start.

        Raises:
            InvalidArgument: ``after`` is no number of seconds, 0 or more.
        """
        super().__init__(name)
        self.after = seconds_over(after, 0.0, "after")
        """Seconds."""

    async def action(self) -> Any:
        """Wait, and then do `on_wake`; its value is the result."""
        await asyncio.sleep(self.after)
        return await self.on_wake()

    @abstractmethod
    async def on_wake(self) -> Any:
        """Do what is to be done then."""

    def done(self) -> bool:
        """Return True: it wakes once."""
        return True


class TickerBehaviour(Behaviour):
    """Does `on_tick` in every period, until it is stopped or killed; first after one period.

    A tick that takes longer than the period delays the next one, and what was missed meanwhile is left out.
    """

    def __init__(self, period: float, name: str = "") -> None:
        """Make a behaviour that ticks every ``period`` seconds.

        Raises:
            InvalidArgument: ``period`` is no number of seconds, or below 0.001.
        """
        super().__init__(name)
        self.period = seconds_over(period, SHORTEST, "period")
        """Seconds."""
        self.ticks = 0
        """How often it has ticked since it began."""
        self._stop = asyncio.Event()
        self._due = 0.0

    async def action(self) -> Any:
        """Wait for the next tick, and then do `on_tick`; its last value is the result."""
        loop = asyncio.get_running_loop()
        if self.ticks == 0:
            self._due = loop.time() + self.period
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._due):
                await self._stop.wait()
        if self._stop.is_set():
            return self._result
        self.ticks += 1
        value = await self.on_tick()
        self._due = next_due(self._due, self.period, loop.time())
        return value

    @abstractmethod
    async def on_tick(self) -> Any:
        """Do what is to be done at each tick."""

    def stop(self) -> None:
        """Tick no more, once the tick under way is over; `join` then returns what the last one returned."""
        self._stop.set()

    def done(self) -> bool:
        """Return whether `stop` was called."""
        return self._stop.is_set()

    def _prepare(self) -> None:
        super()._prepare()
        self.ticks, self._stop = 0, asyncio.Event()


async def ended(task: asyncio.Task[None]) -> None:
    """Wait for the end of a behaviour's task, which ends with whoever waits; raise what ended it, unless it was killed."""
    try:
        await asyncio.wait({task})
    finally:
        await cut_off([task])
    if not task.cancelled():
        task.result()


async def cut_off(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.gather(*left, return_exceptions=True)
