"""What happens on a node by the clock: heartbeats, leases, expired mail, lanes that wait, names and keys that end.

Owns: what is due, in which order it is looked at, and that no step keeps the others from being done. Leaves to others:
when it is called (`bus.platform`), and doing it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.contexts import Contexts
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.lost import LostDebtors
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.post import Post
from gagent_grpc.bus.registrations import Registrations
from gagent_grpc.bus.rerouting import Rerouting
from gagent_grpc.bus.sessions import Sessions
from gagent_grpc.bus.tasking import Tasking
from gagent_grpc.config import BusLimits

_log = logging.getLogger(__name__)

_Given = ParamSpec("_Given")
_PRUNE_INTERVAL = 60.0
"""Seconds between forgettings of old keys."""


class Housekeeping:
    """The clock's business of one node."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        registrations: Registrations,
        sessions: Sessions,
        post: Post,
        lost: LostDebtors,
        rerouting: Rerouting,
        dedupe: Dedupe,
        dead_letters: DeadLetters,
        tasks: Tasking,
        contexts: Contexts,
        store: Store,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._ams = ams
        self._registrations = registrations
        self._sessions = sessions
        self._post = post
        self._lost = lost
        self._rerouting = rerouting
        self._dedupe = dedupe
        self._dead_letters = dead_letters
        self._tasks = tasks
        self._contexts = contexts
        self._store = store
        self._clock = clock
        self._limits = limits
        self._next_prune = 0.0

    def release_lanes(self) -> None:
        """Let lanes go on whose time has come, and what `keep_house` left for a moment with less to do."""
        steps = [self._registrations.tell_subscribers, self._release_due]
        if self._post.overdue:
            steps.insert(0, self._post.overdue.look)
        if self._rerouting.is_behind:
            steps.insert(0, self._rerouting.look)
        if self._lost.is_behind:
            steps.insert(0, self._lost.look)
        for step in steps:
            _do(step)

    def keep_house(self) -> None:
        """Do what is due: heartbeats, lost sessions, leases, expired mail, ephemeral names, old keys and dead letters."""
        now, wall = self._clock.monotonic(), self._clock.time()
        _do(self._sessions.keep_alive, now)
        _do(self._registrations.expire, wall)
        # Before mail expires: a task whose deadline passed takes its message with it.
        _do(self._tasks.look)
        for record in self._ams:
            if record.mailbox.messages or record.mailbox.reserve_messages:
                _do(self._expire_mail, record, wall)
        _do(self._lost.look)
        _do(self._post.moderator.look, wall)
        _do(self._rerouting.look)
        _do(self._contexts.look)
        for record in [one for one in self._ams if one.ephemeral and one.session is None]:
            if record.detached_at is not None and now - record.detached_at > self._limits.resume_grace:
                _do(self._registrations.remove, record, "its ephemeral name ended")
        if wall >= self._next_prune:
            self._next_prune = wall + _PRUNE_INTERVAL
            _do(self._prune_keys, wall)
            _do(self._dead_letters.expire, wall)

    def _release_due(self) -> None:
        now = self._clock.monotonic()
        for record in list(self._post.holding):
            if record.mailbox.release_due(now) and record.session is not None:
                record.session.wake()
            if record.mailbox.next_due is None:
                self._post.holding.discard(record)

    def _expire_mail(self, record: AgentRecord, wall: float) -> None:
        self._post.overdue.add(record, record.mailbox.expire(wall, wall - self._limits.mailbox_ttl))

    def _prune_keys(self, wall: float) -> None:
        self._store.prune_keys(self._dedupe.forget_old(wall), self._limits.dedupe_rows)


def _do(step: Callable[_Given, object], *given: _Given.args, **named: _Given.kwargs) -> None:
    """Do one step of a round. One that fails is logged, and keeps none of the others from being done."""
    try:
        step(*given, **named)
    except Exception:
        _log.exception("housekeeping failed: %s", getattr(step, "__qualname__", step))
