"""Mail for a role whose agent is lost before it saw it: another agent that serves the role gets it.

Owns: which letters go on, and that each stays in one mailbox or the other whatever happens in between. Leaves to others:
the choice (`bus.roles`), the mailboxes (`bus.post`).
"""

from __future__ import annotations

import logging
from collections.abc import Container

from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.mailbox import Account, Letter
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.post import ROLE, Post
from gagent_grpc.bus.roles import Roles
from gagent_grpc.envelope import DeadReason, OnReceiverLost

_log = logging.getLogger(__name__)

_AT_ONCE = 500
"""Letters that one look moves at most, about 20 ms of work."""
_ALL = 2**31


class Rerouting:
    """Sees to the mail of agents that are not there. Synchronous."""

    def __init__(
        self, ams: AgentManagementSystem, post: Post, roles: Roles, store: Store, clock: Clock, *, grace: float
    ) -> None:
        """Make one that counts an agent as lost when it had no session for ``grace`` seconds."""
        self._ams = ams
        self._post = post
        self._roles = roles
        self._store = store
        self._clock = clock
        self._grace = grace
        self._stranded: dict[AgentRecord, float] = {}
        """Agents without a session that may have mail for others, and from when on those get it, in monotonic seconds."""
        self._stuck: dict[AgentRecord, set[str]] = {}
        """Those of them whose mail nobody could take, and the services that it waits for."""
        self.is_behind = False
        """Whether the last look left something to do, so that the next one should come soon."""
        self.tasks: Container[tuple[str, str]] = ()
        """Sender and id of letters that hand over tasks, which `bus.task_timers` sees to."""
        post.stranded = self.left

    def restored(self) -> None:
        """The bus has started: whoever does not come back in time is lost."""
        for record in self._ams:
            if any(_goes_on(letter) for letter in record.mailbox.letters()):
                self.left(record)

    def left(self, record: AgentRecord, *, politely: bool = False) -> None:
        """An agent has no session any more: what came to its roles goes to others, at once when it said bye."""
        since = record.detached_at if record.detached_at is not None else self._clock.monotonic()
        self._stranded[record] = since if politely else since + self._grace
        self._stuck.pop(record, None)
        if politely:
            self.look()

    def going(self, record: AgentRecord) -> None:
        """An agent is about to lose its name: what others can take goes to them now."""
        self._stranded.pop(record, None)
        self._stuck.pop(record, None)
        self._move(record, _ALL, {})

    def look(self) -> None:
        """Move what is due, a bounded part of it at a time: sessions that are well must not wait for those that are not."""
        now, left = self._clock.monotonic(), _AT_ONCE
        # Asked once for all letters: there may be many, and nobody for any of them.
        takers: dict[str, bool] = {}
        for record, due in list(self._stranded.items()):
            if record.session is not None or self._ams.find(record.aid) is not record:
                del self._stranded[record]
                self._stuck.pop(record, None)
            elif due <= now and self._may_go(record, takers):
                left -= self._move(record, left, takers)
                if left <= 0:
                    break
        self.is_behind = left <= 0

    def _may_go(self, record: AgentRecord, takers: dict[str, bool]) -> bool:
        """Whether somebody serves a role of which an agent has mail, as far as that is known."""
        services = self._stuck.get(record)
        if services is None:
            return True
        now = self._clock.time()
        for service in services:
            if service not in takers:
                takers[service] = self._roles.has_provider(service, now, lost=record)
        return any(takers[service] for service in services)

    def _move(self, record: AgentRecord, most: int, takers: dict[str, bool]) -> int:
        """Give at most ``most`` letters to other agents that serve their roles; return how many went."""
        now, tasks = self._clock.time(), self.tasks
        going: dict[int, tuple[AgentRecord, Account]] = {}
        stuck: set[str] = set()
        for letter in record.mailbox.letters():
            if not _goes_on(letter) or (letter.sender, letter.message_id) in tasks:
                continue
            service = letter.via.removeprefix(ROLE)
            if takers.get(service) is False:
                stuck.add(service)
                continue
            if len(going) == most:
                break
            chosen = self._roles.choose(service, letter.sender, letter.envelope.conversation_id, now, lost=record)
            takers[service] = chosen is not None
            account = None if chosen is None else self._post.reserve(chosen, letter.size, letter.sender)
            if chosen is None or account is None:
                stuck.add(service)
            else:
                going[letter.sequence] = (chosen, account)
        else:
            if stuck and record in self._stranded:
                self._stuck[record] = stuck
            elif not stuck:
                self._stranded.pop(record, None)
        letters = record.mailbox.withdraw_all(going.keys())
        for sequence, (chosen, account) in going.items():
            self._hand_over(record, letters[sequence], chosen, account)
        if going:
            _log.info("%d letters to roles go on from %s to others", len(going), record.aid)
        return len(going)

    def _hand_over(self, record: AgentRecord, letter: Letter, chosen: AgentRecord, account: Account) -> None:
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
                # Tried again with the next look.
                self._post.stranded(record)
        else:
            why = f"{record.aid} is gone, and nobody else could take it: {receipt.detail}"
            self._post.give_up(record, letter, why, reason=DeadReason.DEREGISTERED)
