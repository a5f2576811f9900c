"""What an agent does of its own accord, as its author says it: hooks, timers, behaviours, and how all of it ends.

Owns: the part of `Agent` that is not about messages, and the order of things at an agent's beginning and end. Leaves to
others: keeping timers and behaviours (`client.activity`), handlers (`client.handling`), the stream (`client.session`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from gagent_grpc.acl.template import MessageTemplate
from gagent_grpc.client.activity import Activity
from gagent_grpc.client.behaviours import Behaviour, cut_off
from gagent_grpc.client.letters import LetterBox
from gagent_grpc.client.session import ClientSession
from gagent_grpc.client.timers import Timer
from gagent_grpc.errors import InvalidArgument

if TYPE_CHECKING:
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.deliveries import Deliveries

_logger = logging.getLogger(__name__)

BehaviourT = TypeVar("BehaviourT", bound=Behaviour)


class Active:
    """The part of an `Agent` that acts of its own accord."""

    def __init__(self, name: str, deliveries: Deliveries) -> None:
        self._activity = Activity(name, deliveries)
        self._is_set_up = False
        self._retiring: asyncio.Task[None] | None = None
        self._at_take_down: asyncio.Task[Any] | None = None

    # ---- hooks -----------------------------------------------------------------------------------------------------

    async def setup(self) -> None:
        """Begin; for subclasses, does nothing here. Called whenever the agent opens, once its session is open.

        It may send, ask and search. No handler begins, and no behaviour gets a message, before it has returned; answers
        to its own `request` come. Timers and behaviours that were added before begin after it, those that it adds begin
        at once. What it raises comes out of `async with agent`, and the agent is closed again, without `take_down`.
        """

    async def take_down(self) -> None:
        """End; for subclasses, does nothing here. Called once for each `setup` that returned, before the session ends.

        By then no timer, behaviour or handler runs any more (but for handlers that took longer than the grace of
        `aclose`); it may still send. It is also called when the agent is cancelled, and when its session is over
        already because it was superseded or terminated. It has the grace of `aclose` in seconds; what it raises is
        logged, and the agent closes all the same.
        """

    # ---- timers ----------------------------------------------------------------------------------------------------

    @overload
    def every(self, seconds: float) -> Callable[[Callable[[], Any]], Timer]: ...

    @overload
    def every(self, seconds: float, function: Callable[[], Any]) -> Timer: ...

    def every(
        self, seconds: float, function: Callable[[], Any] | None = None
    ) -> Timer | Callable[[Callable[[], Any]], Timer]:
        """Call a function every ``seconds`` while the agent is open, first after that time. Also `@agent.every(5)`.

        One call at a time: one that takes longer delays the next, and what was missed is left out. An exception is
        logged, and the timer goes on. Calls are made also while the bus is away. What is added before the agent opens
        begins anew with each opening; what is added while it is open ends with it.

        Args:
            seconds: Between calls; at least 0.001.
            function: Without parameters; `async def`, or `def`, which runs in a thread.

        Returns:
            The timer, to `cancel`; without ``function``, a decorator that returns it.

        Raises:
            InvalidArgument: Not such a time, or not such a function.
        """
        return self._timer(seconds, function, repeats=True)

    @overload
    def after(self, seconds: float) -> Callable[[Callable[[], Any]], Timer]: ...

    @overload
    def after(self, seconds: float, function: Callable[[], Any]) -> Timer: ...

    def after(
        self, seconds: float, function: Callable[[], Any] | None = None
    ) -> Timer | Callable[[Callable[[], Any]], Timer]:
        """Call a function once, ``seconds`` from now, or from when the agent opens. Also `@agent.after(5)`.

        Otherwise as `every`; ``seconds`` may be 0.
        """
        return self._timer(seconds, function, repeats=False)

    def _timer(
        self, seconds: float, function: Callable[[], Any] | None, *, repeats: bool
    ) -> Timer | Callable[[Callable[[], Any]], Timer]:
        def register(function: Callable[[], Any]) -> Timer:
            timer = Timer(function, seconds, repeats=repeats)
            self._activity.add_timer(timer)
            return timer

        if callable(seconds):
            raise InvalidArgument("a timer without its seconds; expected @agent.every(5)", field="seconds")
        return register if function is None else register(function)

    # ---- behaviours ------------------------------------------------------------------------------------------------

    def add_behaviour(
        self, behaviour: BehaviourT, template: MessageTemplate | None = None, *, queue: int = 256
    ) -> BehaviourT:
        """Have the agent do something of its own accord, beside its handlers; it begins once the agent is open.

        Messages that fit ``template`` go to the behaviour, and not to a handler; of several behaviours, to the one that
        was added first. Only what belongs to a conversation that goes on goes there before all others: the answer to a
        `request`, the decision on a bid, the `cancel` of what the library runs. When ``queue`` messages wait for it,
        further ones wait where they are, and hold up the handlers when they are as many as may run at once.

        Args:
            behaviour: What it does; one that is new, or has ended.
            template: Which messages are for it; none by default.
            queue: Messages that may wait for it to `receive` them.

        Returns:
            The behaviour, to `join` or `kill`.

        Raises:
            InvalidArgument: Not a behaviour or a template, a part of another one, or a state machine that cannot work.
            PreconditionFailed: It was added before, and has not ended.
        """
        if not isinstance(behaviour, Behaviour):
            raise InvalidArgument(
                f"{behaviour!r} is no behaviour; expected an instance of Behaviour", field="behaviour"
            )
        if template is not None and not isinstance(template, MessageTemplate):
            raise InvalidArgument(f"{template!r} is no template; expected a MessageTemplate", field="template")
        if not isinstance(queue, int) or queue < 1:
            raise InvalidArgument(f"queue {queue!r}; expected a number of messages, 1 or more", field="queue")
        box = LetterBox(template, queue) if template is not None else None
        self._activity.add(cast("Agent", self), behaviour, box)
        return behaviour

    def remove_behaviour(self, behaviour: Behaviour) -> None:
        """Kill a behaviour, as its `kill` does. Idempotent.

        Raises:
            InvalidArgument: It was never added to this agent.
        """
        if not self._activity.remove(behaviour):
            raise InvalidArgument(f"{behaviour!r} is none of this agent's behaviours", field="behaviour")

    # ---- beginning and end, as the agent sees them -----------------------------------------------------------------

    async def _set_up(self, still_open: Callable[[], bool]) -> None:
        """Begin, unless `setup` has closed the agent; close it when `setup` raises."""
        self._activity.open()
        try:
            await self.setup()
        except BaseException:
            await cast("Agent", self).aclose()
            raise
        if still_open():
            self._is_set_up = True
            self._activity.begin()
            self._activity.deliveries.lanes.release()

    def _is_inside(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether ``task`` is one for whose end the end of the agent has to wait."""
        inside = self._activity.deliveries.lanes.has_worker(task) or self._activity.owns(task)
        return inside or (task is not None and task is self._at_take_down)

    def _retire_soon(self, grace: float, then: Callable[[], None]) -> None:
        """Retire when whoever asks for it, from inside, has ended; then do the rest."""
        self._activity.deliveries.lanes.close()

        async def retire() -> None:
            try:
                await self._end(grace, None)
            finally:
                then()

        if self._retiring is None and self._at_take_down is None:
            self._retiring = asyncio.create_task(retire(), name="Agent retires")

    async def _retire(self, grace: float) -> bool:
        """Do what comes before the end of the session; return whether every handler has ended by then."""
        retiring, self._retiring = self._retiring, None
        if retiring is not None:
            try:
                await asyncio.wait({retiring}, timeout=grace)
            finally:
                await cut_off([retiring])
        return await self._end(grace, grace)

    async def _end(self, grace: float, patience: float | None) -> bool:
        lanes = self._activity.deliveries.lanes
        # Anything that has not begun comes again to the next session. Nothing may begin any more either, or an agent
        # with steady mail would never be found idle.
        lanes.close()
        await self._activity.stop(grace)
        idle = await lanes.idle(patience)
        if self._is_set_up:
            self._is_set_up = False
            await self._take_down(grace)
        return idle

    async def _take_down(self, grace: float) -> None:
        name = cast("Agent", self).name
        self._at_take_down = asyncio.current_task()
        try:
            async with asyncio.timeout(grace):
                await self.take_down()
        except TimeoutError:
            _logger.exception("%s: take_down did not end within %g s", name, grace)
        except Exception:
            _logger.exception("%s: take_down failed", name)
        finally:
            self._at_take_down = None

    async def _end_now(self) -> None:
        """Leave nothing running."""
        retiring, self._retiring = self._retiring, None
        if retiring is not None:
            await cut_off([retiring])
        await self._activity.stop(0.0)


async def leave(
    session: ClientSession, keeper: asyncio.Task[None], *, deregister: bool, patience: float, grace: float
) -> None:
    """End a session politely as far as that can be done in time.

    Args:
        session: What is to end.
        keeper: The task that runs it.
        deregister: Free the agent's name.
        patience: Seconds until handlers that still run are left behind.
        grace: Seconds for what was sent to get its receipts then.
    """
    session.say_bye(deregister=deregister)
    if session.is_open or (session.sessions_opened and session.unsaid):
        await asyncio.wait({keeper}, timeout=patience)
        if not keeper.done():
            session.say_bye(deregister=deregister, at_once=True)
            await asyncio.wait({keeper}, timeout=grace)
    if deregister and not keeper.done():
        _logger.warning("%s: the bus was not reached in time; the name stays registered", session.introduction.name)
