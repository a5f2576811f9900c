"""The timers and behaviours that an agent has.

Owns: when they begin and end, and which behaviour a message is for. Leaves to others: one timer (`client.timers`), one
behaviour (`client.behaviours`), how an author adds them (`client.active`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gagent_grpc.client.behaviours import Behaviour, cut_off
from gagent_grpc.client.handlers import own_platform
from gagent_grpc.client.letters import LetterBox
from gagent_grpc.client.message import Received
from gagent_grpc.client.timers import Timer

if TYPE_CHECKING:
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.deliveries import Deliveries

_logger = logging.getLogger(__name__)


class Activity:
    """The timers and behaviours of one agent, across its sessions."""

    def __init__(self, name: str, deliveries: Deliveries) -> None:
        """Make it for the agent ``name``, whose messages come by way of ``deliveries``."""
        self.deliveries = deliveries
        self.before: Callable[[Received], bool] | None = None
        """Whether a message is of a conversation that goes on, to which it goes before any behaviour."""
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: list[Timer] = []
        """Those that begin whenever the agent opens."""
        self._waiting: dict[Behaviour, LetterBox | None] = {}
        self._running: dict[Behaviour, LetterBox | None] = {}
        self._ticking: set[asyncio.Task[None]] = set()
        self._owned: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """The agent is open: what is added from now on begins at once."""
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Begin what was added before the agent was open."""
        self._timers = [timer for timer in self._timers if not timer.cancelled]
        for timer in self._timers:
            self._start_timer(timer)
        waiting, self._waiting = self._waiting, {}
        for behaviour, box in waiting.items():
            self._start(behaviour, box)

    def add_timer(self, timer: Timer) -> None:
        """Own a timer."""
        if self._loop is None:
            self._timers.append(timer)
        else:
            self._on_loop(self._start_timer, timer)

    def add(self, agent: Agent, behaviour: Behaviour, box: LetterBox | None) -> None:
        """Own a behaviour of ``agent``, which is this one's."""
        behaviour._adopt(agent, self, box)
        if self._loop is None:
            self._waiting[behaviour] = box
        else:
            self._on_loop(self._start, behaviour, box)

    def remove(self, behaviour: Behaviour) -> bool:
        """End a behaviour; return whether it was this one's."""
        if self._waiting.pop(behaviour, self) is not self:
            behaviour._abandon()
            return True
        if behaviour in self._running:
            behaviour.kill()
            return True
        return behaviour._activity is self

    def own(self, task: asyncio.Task[None]) -> None:
        """Know a task as one of this agent's."""
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)

    def owns(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether ``task`` runs a timer or a behaviour of this agent."""
        return task in self._owned

    async def stop(self, grace: float) -> None:
        """End everything and wait for that: ``grace`` seconds for what is done at the end. Idempotent."""
        self._loop = None
        tasks = {*self._ticking, *(one._task for one in self._running if one._task is not None)}
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            await cut_off(list(late))

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Do it now, or soon where a handler asks that runs in a thread."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            call(*arguments)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(call, *arguments)

    def _start_timer(self, timer: Timer) -> None:
        task = timer.begin(self._name)
        if task is not None:
            self.own(task)
            self._ticking.add(task)
            task.add_done_callback(self._ticking.discard)

    def _start(self, behaviour: Behaviour, box: LetterBox | None) -> None:
        self._running[behaviour] = box
        if box is not None:
            self.deliveries.claim = self._claim
        behaviour._begin().add_done_callback(lambda task: self._ended(behaviour, task))

    def _claim(self, message: Received) -> LetterBox | None:
        """Return the box of the first behaviour that a message is for; None for a message of a conversation that goes on."""
        if self.before is not None and self.before(message):
            return None
        platform = own_platform(message)
        for box in self._running.values():
            if box is not None and box.template.matches(message, platform):
                return box
        return None

    def _ended(self, behaviour: Behaviour, task: asyncio.Task[None]) -> None:
        box = self._running.pop(behaviour)
        if not any(self._running.values()):
            self.deliveries.claim = None
        if box is not None:
            for letter in box.close():
                self.deliveries.not_taken(letter.job)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.error("%s: the behaviour %s failed", self._name, behaviour.name, exc_info=error)
