"""Agents that are lost while they owe an answer: the bus answers for them, so that nobody waits without end.

Owns: when an agent counts as lost, and what becomes then of the messages that it has not answered. Leaves to others: what
is owed (`bus.debts`), withdrawing and telling (`bus.mailbox`, `bus.post`).
"""

from __future__ import annotations

import logging
import math

from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.ports import Clock
from gagent_grpc.bus.post import Post
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason

_log = logging.getLogger(__name__)

_AT_ONCE = 200
"""Debts that one look answers at most, about 20 ms of work: sessions that are well must not wait for those that are not."""


class LostDebtors:
    """Answers for the agents of one node that are lost."""

    def __init__(self, ams: AgentManagementSystem, post: Post, clock: Clock, limits: BusLimits) -> None:
        self._ams = ams
        self._post = post
        self._clock = clock
        self._limits = limits
        self.is_behind = False
        """Whether the last look left something to do, so that the next one should come soon."""

    def look(self) -> None:
        """Answer for every agent that has had no session for longer than `resume_grace`."""
        now, wall = self._clock.monotonic(), self._clock.time()
        grace = self._limits.resume_grace
        left = _AT_ONCE
        for aid in self._post.debts.debtors():
            record = self._ams.find(aid)
            # None while a session is open.
            detached_at = record.detached_at if record is not None else None
            if record is not None and detached_at is not None and now - detached_at > grace:
                why = f"{aid} was lost before it answered: no session for {grace:g} s"
                left -= self._answer_for(record, wall, why, left, DeadReason.RECEIVER_LOST)
                if left <= 0:
                    break
        self.is_behind = left <= 0
        self._post.debts.forget_old(wall)

    def removed(self, record: AgentRecord, why: str) -> None:
        """Answer for an agent whose name was freed; also what would have waited for it."""
        self._answer_for(record, math.inf, f"{record.aid} is gone: {why}", None, DeadReason.DEREGISTERED)

    def _answer_for(self, record: AgentRecord, until: float, why: str, most: int | None, reason: DeadReason) -> int:
        """Withdraw what is not settled, tell who asked, and close the debts; return how many there were."""
        post, mailbox = self._post, record.mailbox
        due = post.debts.due(record.aid, until, most)
        if not due:
            return 0
        # All at once, since each time walks the whole mailbox.
        unsettled = mailbox.withdraw_all({debt.sequence for debt in due})
        now = self._clock.time()
        for debt in due:
            letter = unsettled.get(debt.sequence)
            # First of all: giving up the letter would end the debt as one that may still be paid.
            post.debts.close(debt, now)
            if letter is not None:
                post.give_up(record, letter, why, reason=reason)
            else:
                post.fail(debt, debt.asker, record.aid, why)
        _log.info("%s owed %d answers, and the bus answered in its place: %s", record.aid, len(due), why)
        return len(due)
