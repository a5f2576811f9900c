"""Letters whose time was over before they were handled, on their way out: a few at a time.

Owns: how many are given up in one go. Leaves to others: finding them (`bus.mailbox`), and giving one up (`bus.post`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gagent_grpc.envelope import DeadReason

if TYPE_CHECKING:
    from gagent_grpc.bus.ams import AgentRecord
    from gagent_grpc.bus.mailbox import Letter
    from gagent_grpc.bus.post import Post

EXPIRED = "EXPIRED: its time was over before it was handled"
"""What the sender is told of a message that was accepted and came too late."""
_SLICE = 100
"""Letters that are given up in one go: each costs a dead letter and a failure, and other sessions wait meanwhile."""
_SLICES = 20
"""Looks within which all of them are gone, however many there are."""


class Overdue:
    """Letters out of their mailboxes that are still to be given up; their bytes count until then."""

    def __init__(self, post: Post) -> None:
        """Give letters up with ``post``."""
        self._post = post
        self._waiting: deque[tuple[AgentRecord, Letter]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, record: AgentRecord, letters: Iterable[Letter]) -> None:
        """Give up letters that were in the mailbox of ``record``: few at once, more with the next looks."""
        at_once = not self._waiting
        self._waiting.extend((record, letter) for letter in letters)
        if at_once and len(self._waiting) <= _SLICE:
            self.look()

    def look(self) -> None:
        """Give up some that wait, the longest waiting first."""
        for _ in range(min(len(self._waiting), max(_SLICE, len(self._waiting) // _SLICES))):
            self._give_up(*self._waiting.popleft())

    def removed(self, record: AgentRecord) -> None:
        """An agent is being removed: give up what is left of its letters, as another one may use their sequences again."""
        mine = [one for one in self._waiting if one[0] is record]
        if mine:
            self._waiting = deque(one for one in self._waiting if one[0] is not record)
            for one in mine:
                self._give_up(*one)

    def _give_up(self, record: AgentRecord, letter: Letter) -> None:
        self._post.give_up(record, letter, EXPIRED, reason=DeadReason.EXPIRED, error="")
