"""What happens on a node by the clock: heartbeats, leases, expired mail, lanes that wait, names and keys that end.

Owns: what is due, and in which order it is looked at. Leaves to others: when it is called (`bus.platform`), and doing it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.lost import LostDebtors
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.post import Post
from gagent_grpc.bus.registrations import Registrations
from gagent_grpc.bus.rerouting import Rerouting
from gagent_grpc.bus.session import EXPIRED
from gagent_grpc.bus.sessions import Sessions
from gagent_grpc.bus.tasking import Tasking
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason

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
        self._store = store
        self._clock = clock
        self._limits = limits
        self._next_prune = 0.0

    def release_lanes(self) -> None:
        """Let lanes go on whose time has come, and what `keep_house` left for a moment with less to do."""
        if self._lost.is_behind:
            self._lost.look()
        if self._rerouting.is_behind:
            self._rerouting.look()
        self._registrations.catch_up()
        now = self._clock.monotonic()
        for record in list(self._post.holding):
            if record.mailbox.release_due(now) and record.session is not None:
                record.session.wake()
            if record.mailbox.next_due is None:
                self._post.holding.discard(record)

    def keep_house(self) -> None:
        """Do what is due: heartbeats, lost sessions, leases, expired mail, ephemeral names, old keys and dead letters."""
        now = self._clock.monotonic()
        self._sessions.keep_alive(now)
        wall = self._clock.time()
        self._registrations.expire(wall)
        # Before mail expires: a task whose deadline passed takes its message with it.
        self._tasks.look()
        self._expire_mail(self._ams, wall)
        self._lost.look()
        self._post.moderator.look(wall)
        self._rerouting.look()
        for record in [one for one in self._ams if one.ephemeral and one.session is None]:
            if record.detached_at is not None and now - record.detached_at > self._limits.resume_grace:
                self._registrations.remove(record, "its ephemeral name ended")
        if wall >= self._next_prune:
            self._next_prune = wall + _PRUNE_INTERVAL
            self._store.prune_keys(self._dedupe.forget_old(wall), self._limits.dedupe_rows)
            self._dead_letters.expire(wall)

    def _expire_mail(self, records: Iterable[AgentRecord], wall: float) -> None:
        for record in records:
            mailbox = record.mailbox
            if not (mailbox.messages or mailbox.reserve_messages):
                continue
            for letter in mailbox.expire(wall, wall - self._limits.mailbox_ttl):
                self._post.give_up(record, letter, EXPIRED, reason=DeadReason.EXPIRED, error="")
