"""What every event-driven agent has in common, whoever answers its events: a child process or hooks in this one.

Owns: one event at a time, ticks when it is quiet, the states suspended and ended, carrying out actions. Leaves to
others: asking (`bridge.behaviour` a script, `gagent_py._direct` hooks), what a send means (`bridge.actions`), tasks and
ACP (`bridge.extensions`).
"""

from __future__ import annotations

import abc
import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable

from gagent_grpc.acl.descriptions import LifeCycleState
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.bridge.actions import MessageEvent, fail, message_of, send_all
from gagent_grpc.bridge.extension_actions import ExtensionAction
from gagent_grpc.bridge.extension_events import ExtensionEvent
from gagent_grpc.bridge.extensions import Extensions
from gagent_grpc.bridge.framing import Answer, Delete, Deregister, Register, SendAction, Suspend, Wake
from gagent_grpc.bridge.open_requests import OpenRequests, answers
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.message import Received
from gagent_grpc.errors import BusError, ScriptError, Unavailable, first_error

CLOSE_GRACE_S = 1.0
"""How long the last messages of an agent, and again its farewell, may take when it ends."""
GIVE_UP_S = 10.0
"""How long everybody who waits may be told of the end of a script whose agent goes on."""
GOVERN_TIMEOUT_S = 30.0
"""How long `suspend` and `wake` try to reach a bus whose connection is being found again."""
_GOVERN_PAUSE_S = 0.5

_logger = logging.getLogger(__name__)


class Ending(enum.Enum):
    """How an agent ended well."""

    STOPPED = "stopped"
    """Politely: its name and its mail stay."""
    DELETED = "deleted"
    """For good, as its script wanted: out of the AMS and the DF."""
    TERMINATED = "terminated"
    """For good, as somebody else wanted: the AMS ended it."""


class EventBehaviour(abc.ABC):
    """Turns what happens to an SDK agent into events, one at a time, and does what the answers say.

    A message is acknowledged when its answer was carried out. Messages wait in the mailbox meanwhile, when the agent
    was made with `ClientLimits(concurrency=1, window_messages=2)`; with a larger concurrency they wait here, and only
    the order of each sender's conversation is kept.
    """

    def __init__(self, agent: Agent, name: str, *, tick_ms: int) -> None:
        """Take over the agent's messages, except those for which it has handlers of its own already.

        Args:
            agent: The agent.
            name: Its name.
            tick_ms: Milliseconds without a message after which a tick is due; 0 for no ticks.

        Raises:
            ValueError: ``name`` is not the agent's own, or ``tick_ms`` is negative.
        """
        if name not in (agent.name, agent.aid):
            raise ValueError(f"name {name!r}: expected the agent's own, {agent.name!r}")
        if tick_ms < 0:
            raise ValueError(f"tick_ms {tick_ms}; expected 0 or more")
        self.agent = agent
        self.name = agent.name
        self._tick_s = tick_ms / 1000
        self._requests = OpenRequests()
        self._extensions = Extensions(agent, self._give)
        # Held from the moment that an event is given until its answer was carried out.
        self._turn = asyncio.Lock()
        # Set while there is somebody who answers events.
        self._open = asyncio.Event()
        # Set while the agent is not suspended.
        self._awake = asyncio.Event()
        self._deleted = asyncio.Event()
        self._in_hand = 0
        self._quiet_since = 0.0
        self._show_state(agent.state, "")
        agent.on_state(self._show_state)
        agent.on()(self._take)

    # ---- life ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def start(self) -> None:
        """Make ready to answer and wait for the answer to `start`; the agent needs no session for that.

        Raises:
            ScriptError: It cannot be started, or ended.
        """

    @abc.abstractmethod
    async def stop(self) -> None:
        """End politely and within a bound what `start` began. Idempotent."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End without any politeness what `start` began. Idempotent."""

    async def run(self) -> Ending:
        """Handle messages and ticks until the script ends or deletes the agent; started first where it was not.

        The agent must be open. Cancelling this is the polite stop: the script gets its `stop` event, and what it
        says then is still carried out.

        Raises:
            ScriptError: It ended with an error, and the restart policy gave up.
        """
        failure: BusError | None = None
        ending = Ending.STOPPED
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick())
                try:
                    ending = await self._serve()
                finally:
                    ticking.cancel()
                    self._open.clear()
                    await self._give_up_requests()
        except* BusError as raised:
            failure = first_error(raised)
        finally:
            await self._extensions.aclose()
            await self.aclose()
        if failure is not None:
            raise failure
        if ending is Ending.DELETED:
            await self.agent.aclose(deregister=True, grace=CLOSE_GRACE_S)
        return ending

    @abc.abstractmethod
    async def _serve(self) -> Ending:
        """Be there for events until it is over; when cancelled, stop politely first."""

    async def _give_up_requests(
        self, why: str = "the agent ended before it answered", *, seconds: float = CLOSE_GRACE_S
    ) -> None:
        """Tell everybody who still waits for an answer that none will come, for ``seconds`` at most."""
        try:
            async with asyncio.timeout(seconds):
                # First, since that of it which concerns tasks waits for nothing.
                await self._extensions.give_up(why)
                async with asyncio.TaskGroup() as group:
                    # Side by side: one after the other, a thousand who wait would take a thousand round trips.
                    for request in self._requests.take():
                        group.create_task(fail(self.agent, request, why))
        except TimeoutError:
            _logger.warning("%s: not everybody who waits could be told", self.name)

    # ---- events ----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def _ask(self, event: MessageEvent) -> Answer | None:
        """Give a message and return the answer; None when there is none and the sender was told."""

    @abc.abstractmethod
    async def _ask_more(self, event: ExtensionEvent) -> Answer:
        """Give an event of an extension and return the answer.

        Raises:
            ScriptError: There is the event, and no answer to it.
        """

    @abc.abstractmethod
    async def _ask_tick(self) -> Answer | None:
        """Give a tick and return the answer; None when none came."""

    async def _take(self, message: Received) -> None:
        """Handle one message; the SDK acknowledges it when this returns."""
        self._in_hand += 1
        try:
            async with self._turn:
                await self._admitted()
                answer = await self._ask(MessageEvent(message, self.name))
                if answer is not None and not await self._carry_out(answer, message):
                    if answer.unreadable is None:
                        self._requests.add(message)
                    else:
                        await fail(self.agent, message, f"the script's answer cannot be read: {answer.unreadable}")
        finally:
            self._in_hand -= 1
            self._quiet_since = asyncio.get_running_loop().time()

    async def _give(self, event: ExtensionEvent) -> None:
        """Give an event of an extension, unless it is withdrawn before its turn, and carry out the answer.

        Raises:
            ScriptError: There is the event, and no answer to it.
        """
        self._in_hand += 1
        try:
            async with self._turn:
                await self._admitted()
                if not event.withdrawn:
                    event.is_given = True
                    answer = await self._ask_more(event)
                    if answer.unreadable is not None:
                        raise ScriptError(f"the script's answer cannot be read: {answer.unreadable}")
                    await self._carry_out(answer, None, event)
        finally:
            self._in_hand -= 1
            self._quiet_since = asyncio.get_running_loop().time()

    async def _admitted(self) -> None:
        """Wait until an event may be given."""
        while not (self._open.is_set() and self._awake.is_set()):
            await self._open.wait()
            await self._awake.wait()

    async def _tick(self) -> None:
        """Give a tick whenever no message came for a while. At most one is on its way, and none is made up for."""
        if not self._tick_s:
            return
        loop = asyncio.get_running_loop()
        while True:
            await self._admitted()
            # While a message is in hand, the time of quiet begins anew, and its end cannot be known.
            pause = self._tick_s if self._in_hand else self._quiet_since + self._tick_s - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
                continue
            async with self._turn:
                answer = await self._ask_tick()
                if answer is not None:
                    await self._carry_out(answer, None)
            self._quiet_since = loop.time()

    # ---- actions ---------------------------------------------------------------------------------------------------

    async def _carry_out(
        self, answer: Answer, original: ACLMessage | None, event: ExtensionEvent | None = None
    ) -> bool:
        """Do what an answer says, in its order; what comes after a `delete` is not done any more.

        Args:
            answer: What was answered.
            original: The message that it answers; None for none.
            event: The event of an extension that it answers; None for none.

        Returns:
            Whether the sender of ``original`` was answered.
        """
        # A script that repeats ids knows the protocol and says for itself what belongs to which conversation.
        inherits = original if answer.id is None else None
        platform = self.agent.aid.partition("@")[2]
        sends: list[tuple[SendAction, ACLMessage]] = []
        is_answered = False
        for action in answer.actions:
            if isinstance(action, SendAction):
                message = message_of(action, inherits, platform)
                sends.append((action, message))
                if original is not None and not is_answered and answers(message, original, platform):
                    is_answered = True
                else:
                    self._requests.sent(message, platform)
                continue
            if sends:
                await send_all(self.agent, sends, original)
                sends = []
            if isinstance(action, Delete):
                self._open.clear()
                self._deleted.set()
                return is_answered
            if isinstance(action, ExtensionAction):
                await self._extensions.carry_out(action, event)
            else:
                await self._do(action)
        if sends:
            await send_all(self.agent, sends, original)
        return is_answered

    async def _do(self, action: object) -> None:
        try:
            if isinstance(action, Suspend):
                self._show_state(await self._govern(self.agent.ams.suspend), "self")
            elif isinstance(action, Wake):
                self._show_state(await self._govern(self.agent.ams.resume), "self")
            elif isinstance(action, Register | Deregister):
                await self.agent.offer(action.services if isinstance(action, Register) else ())
        except BusError as error:
            _logger.warning("%s: the action %s failed: %s", self.name, type(action).__name__.lower(), error)

    async def _govern(self, change: Callable[[str], Awaitable[LifeCycleState]]) -> LifeCycleState:
        """Change the agent's own life-cycle state; tried again while the connection is being found again."""
        deadline = asyncio.get_running_loop().time() + GOVERN_TIMEOUT_S
        while True:
            try:
                return await change(self.name)
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(_GOVERN_PAUSE_S)

    def _show_state(self, state: LifeCycleState, changed_by: str) -> None:
        if state is LifeCycleState.SUSPENDED:
            self._awake.clear()
        else:
            self._awake.set()
