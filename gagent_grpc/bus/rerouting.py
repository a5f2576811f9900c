"""Mail for a role whose agent is lost before it saw it: another agent that serves the role gets it.

Owns: which letters go on, and that each stays in one mailbox or the other whatever happens in between. Leaves to others:
the choice (`bus.roles`), the mailboxes (`bus.post`).
"""

from __future__ import annotations

import logging
from collections.abc import Container

from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.post import ROLE, Post
from gagent_grpc.bus.roles import Roles
from gagent_grpc.envelope import DeadReason, OnReceiverLost

_log = logging.getLogger(__name__)


class Rerouting:
    """Sees to the mail of agents that are not there. Synchronous."""

    def __init__(self, ams: AgentManagementSystem, post: Post, roles: Roles, store: Store, clock: Clock) -> None:
        self._ams = ams
        self._post = post
        self._roles = roles
        self._store = store
        self._clock = clock
        self._stranded: dict[AgentRecord, None] = {}
        """Agents without a session that have mail which nobody else could take."""
        self.tasks: Container[tuple[str, str]] = ()
        """Sender and id of letters that hand over tasks, which `bus.task_timers` sees to."""

    def left(self, record: AgentRecord) -> None:
        """An agent has no session any more, or is about to lose its name: what came to its roles goes to others."""
        self._stranded.pop(record, None)
        tasks = self.tasks
        mine = [
            letter
            for letter in record.mailbox.letters()
            if _goes_on(letter) and (letter.sender, letter.message_id) not in tasks
        ]
        for letter in mine:
            if not self._move(record, letter):
                self._stranded[record] = None

    def look(self) -> None:
        """Try again for those whose mail nobody could take."""
        for record in list(self._stranded):
            if record.session is not None or self._ams.find(record.aid) is not record:
                del self._stranded[record]
            else:
                self.left(record)

    def _move(self, record: AgentRecord, letter: Letter) -> bool:
        """Give one letter to another agent that serves its role; return whether there is one with room."""
        now = self._clock.time()
        service = letter.via.removeprefix(ROLE)
        chosen = self._roles.least_busy(service, letter.sender, now, lost=record)
        if chosen is None:
            return False
        account = self._post.reserve(chosen, letter.size, letter.sender)
        if account is None:
            return False
        record.mailbox.withdraw(letter.sequence)
        move = _Move(self._ams, self._post, self._store, record, letter)
        # Its key is known already. Under the time at which it was accepted: by that the two are known as one, should the
        # bus stop in between.
        self._post.deliver(
            chosen,
            account,
            letter.envelope,
            move,
            0,
            chosen.name,
            None,
            letter.accepted_at,
            via=letter.via,
            message_id=letter.message_id,
        )
        _log.info("a letter to %s goes on from %s to %s", letter.via, record.aid, chosen.aid)
        return True


def _goes_on(letter: Letter) -> bool:
    """Whether a letter came to a role and nobody has seen it."""
    unseen = not letter.attempt and not letter.redelivered
    return letter.via.startswith(ROLE) and unseen and letter.envelope.on_receiver_lost != OnReceiverLost.WAIT


class _Move:
    """`Origin` of a letter on its way to another mailbox: until it is there it stays where it was, in the store."""

    def __init__(
        self, ams: AgentManagementSystem, post: Post, store: Store, record: AgentRecord, letter: Letter
    ) -> None:
        self.aid = letter.sender
        self.holds = Holds()
        self.wants_failures = False
        self._ams = ams
        self._post = post
        self._store = store
        self._record = record
        self._letter = letter

    def expect(self, number: int) -> None:
        """It is being written."""

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        """It is in the other mailbox."""
        self._post.moved_away(self._record, self._letter)

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        """It could not be written: it stays, or ends with its agent."""
        record, letter = self._record, self._letter
        if self._ams.find(record.aid) is record:
            letter.account = record.mailbox.reserve_over(letter.size, letter.sender)
            record.mailbox.put(letter)
            if record.session is not None:
                record.session.wake()
        else:
            why = f"{record.aid} is gone, and nobody else could take it: {receipt.detail}"
            self._post.give_up(record, letter, why, reason=DeadReason.DEREGISTERED)
