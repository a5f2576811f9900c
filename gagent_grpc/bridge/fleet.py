"""`Fleet`: several script agents that are started, watched and stopped together; what `gagent run --all` runs.

Owns: the order of starts and stops, the state of each agent as a person wants to see it, and when all of it has failed.
Leaves to others: each agent's life (`bridge.supervisor`), and how it is shown (`cli.fleet`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gagent_grpc.acl.descriptions import LifeCycleState
from gagent_grpc.bridge.events import Ending
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.errors import BusError, ConfigurationError

STARTS_AT_ONCE = 4
"""Most agents whose start is under way; a machine that starts fifty interpreters at once is busy with nothing else."""
STOP_TURN_S = 2.0
"""How long the stop of one agent holds back that of the next one, at most."""
STOP_TURNS_S = 10.0
"""How long all those turns last in all; what is left then is stopped together."""
MAX_CHANGES = 10_000
"""Changes that wait to be taken; beyond that the oldest is dropped."""

_logger = logging.getLogger(__name__)


class MemberState(enum.Enum):
    """Where an agent of a fleet is."""

    WAITING = "waiting"
    """For its turn to be started."""
    STARTING = "starting"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    RESTARTING = "restarting"
    """Its script ended or has changed, and is started anew."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    """Politely: its name and its mail stay."""
    DELETED = "deleted"
    """For good, as its script wanted."""
    TERMINATED = "terminated"
    """For good, as the AMS wanted."""
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """Whether nothing comes after it."""
        return self in _ENDS


_ENDS = frozenset({MemberState.STOPPED, MemberState.DELETED, MemberState.TERMINATED, MemberState.FAILED})
_STATE_OF_ENDING = {
    Ending.STOPPED: MemberState.STOPPED,
    Ending.DELETED: MemberState.DELETED,
    Ending.TERMINATED: MemberState.TERMINATED,
}


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One agent of a fleet at one moment."""

    name: str
    what: str
    """Its script or command."""
    state: MemberState
    pid: int | None
    """Process of its script; None when none runs."""
    restarts: int
    """How often its script was started anew."""
    detail: str = ""
    """Why it failed."""


@dataclass(slots=True, eq=False)
class _Member:
    agent: ScriptAgent
    task: asyncio.Task[None] | None = None
    """What is the agent until it ends; None before `Fleet.run`."""
    state: MemberState = MemberState.WAITING
    error: BusError | None = None
    """Why it failed; None where it did not."""
    told: MemberStatus | None = None
    """The last change that was told; None before the first one."""

    @property
    def status(self) -> MemberStatus:
        behaviour = self.agent.behaviour
        return MemberStatus(
            self.agent.name,
            self.agent.what,
            self.state,
            None if self.state.is_end or not behaviour.running else behaviour.pid,
            max(0, behaviour.runs - 1),
            str(self.error) if self.error is not None else "",
        )


class Fleet:
    """Script agents that come and go together. One that fails stops none of the others.

    Read `take_changes` in a task of its own to see what happens to them.
    """

    def __init__(self, agents: Sequence[ScriptAgent]) -> None:
        """Make a fleet; nothing is started before `run`.

        Args:
            agents: Its agents, in the order in which they are started.

        Raises:
            ConfigurationError: There are none, or two of the same name.
        """
        if not agents:
            raise ConfigurationError("the fleet has no agents; expected at least one")
        names = [agent.name for agent in agents]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigurationError(f"two agents are named {twice!r}; expected a name of its own for each")
        self._members = [_Member(agent) for agent in agents]
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._stopping = False
        self._changes: deque[MemberStatus] = deque(maxlen=MAX_CHANGES)
        self._changed = asyncio.Event()
        self._over = False
        for member in self._members:
            self._listen(member)

    @property
    def statuses(self) -> list[MemberStatus]:
        """Where each agent is, in their order."""
        return [member.status for member in self._members]

    async def take_changes(self) -> list[MemberStatus]:
        """Wait for changes and return them, oldest first; an empty list when the fleet has ended and none is left."""
        while not self._changes and not self._over:
            self._changed.clear()
            await self._changed.wait()
        taken = list(self._changes)
        self._changes.clear()
        return taken

    async def run(self) -> None:
        """Start the agents in their order, and be there until all of them have ended.

        Cancelling it stops them, the last one first: each has two seconds before the next one is told, as long as ten
        seconds have not passed; within about 21 s all are gone.

        Raises:
            BusError: All of them failed; the error is the first agent's.
        """
        try:
            for member in self._members:
                member.task = asyncio.create_task(self._be(member), name=f"fleet: {member.agent.name}")
            tasks = [member.task for member in self._members if member.task is not None]
            try:
                await asyncio.wait(tasks)
            finally:
                await self._stop()
                # What is no BusError is a defect, and not the end of one agent alone.
                for task in tasks:
                    if not task.cancelled() and (error := task.exception()) is not None:
                        raise error
        finally:
            self._over = True
            self._changed.set()
        errors = [member.error for member in self._members if member.error is not None]
        if len(errors) == len(self._members):
            raise errors[0]

    def kill(self) -> None:
        """Kill every script that runs, at once and with all that it has started; for who cannot wait for `run`."""
        for member in self._members:
            pid = member.agent.behaviour.pid
            if pid is not None and not member.state.is_end:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    # ---- one agent -------------------------------------------------------------------------------------------------

    async def _be(self, member: _Member) -> None:
        """Be one agent until it ends, however."""
        state = MemberState.STOPPED
        try:
            async with contextlib.AsyncExitStack() as start:
                await start.enter_async_context(self._starting)
                self._enter(member, MemberState.STARTING)
                running = asyncio.ensure_future(member.agent.run())
                ready = asyncio.ensure_future(member.agent.ready.wait())
                try:
                    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
                    # The next one may start.
                    await start.aclose()
                    self._show(member)
                    state = _STATE_OF_ENDING[await running]
                finally:
                    ready.cancel()
                    running.cancel()
                    await asyncio.wait({running, ready})
        except BusError as error:
            member.error, state = error, MemberState.FAILED
            _logger.error("%s", error, extra={"agent": member.agent.name})  # noqa: TRY400  # Its text says all.
        finally:
            self._enter(member, state)

    def _listen(self, member: _Member) -> None:
        def show(*_: object) -> None:
            self._show(member)

        member.agent.behaviour.on_run(show)
        member.agent.agent.on_state(show)

    def _show(self, member: _Member) -> None:
        """Tell of the state that an agent has by itself, once it was active."""
        if member.state.is_end or self._stopping or not member.agent.ready.is_set():
            return
        if not member.agent.behaviour.running:
            if member.state is MemberState.STARTING:
                return
            state = MemberState.RESTARTING
        elif member.agent.agent.state is LifeCycleState.SUSPENDED:
            state = MemberState.SUSPENDED
        else:
            state = MemberState.ACTIVE
        self._enter(member, state)

    def _enter(self, member: _Member, state: MemberState) -> None:
        member.state = state
        if (status := member.status) != member.told:
            member.told = status
            self._changes.append(status)
            self._changed.set()

    # ---- the end ---------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Stop what still runs, the last one first."""
        left = [member for member in reversed(self._members) if member.task is not None and not member.task.done()]
        self._stopping = True
        loop = asyncio.get_running_loop()
        until = loop.time() + STOP_TURNS_S
        for member in left:
            assert member.task is not None
            self._enter(member, MemberState.STOPPING)
            member.task.cancel()
            await asyncio.wait({member.task}, timeout=max(0.0, min(STOP_TURN_S, until - loop.time())))
        if left:
            await asyncio.wait([member.task for member in left if member.task is not None])
