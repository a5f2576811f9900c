"""Letters of one urgency that wait in a mailbox: in order for each sender, and senders in turn.

Owns: whose turn it is. Leaves to others: bounds, lanes, what is in flight (`bus.mailbox`). Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gagent_grpc.bus.mailbox import Letter

_TURN = 16
"""Letters of one sender before it is another one's turn: few enough that a flood delays nobody for long, enough that what
belongs together mostly travels together."""


class FairQueue:
    """A queue that serves its senders in turn, so that nobody waits behind all that another one has sent."""

    __slots__ = ("_by_sender", "_turns", "left")

    def __init__(self) -> None:
        # Both hold exactly the senders with letters; the first of the turns is the one whose turn it is.
        self._by_sender: dict[str, deque[Letter]] = {}
        self._turns: deque[str] = deque()
        self.left = _TURN
        """How many letters may be taken before it is the next sender's turn."""

    def __bool__(self) -> bool:
        return bool(self._turns)

    def __iter__(self) -> Iterator[Letter]:
        """Iterate over all letters; those of one sender in order."""
        for letters in self._by_sender.values():
            yield from letters

    @property
    def turn(self) -> deque[Letter]:
        """The letters of the sender whose turn it is; whoever takes some from the left says so with `took`."""
        return self._by_sender[self._turns[0]]

    def append(self, letter: Letter) -> None:
        """Add the newest letter of its sender."""
        letters = self._by_sender.get(letter.sender)
        if letters is None:
            self._by_sender[letter.sender] = deque((letter,))
            self._turns.append(letter.sender)
        else:
            letters.append(letter)

    def took(self, count: int) -> None:
        """Note that ``count`` letters, at most `left`, were taken from `turn`."""
        sender = self._turns[0]
        self.left -= count
        if not self._by_sender[sender]:
            del self._by_sender[sender]
            self._turns.popleft()
            self.left = _TURN
        elif not self.left:
            self._turns.rotate(-1)
            self.left = _TURN

    def heads(self) -> list[Letter]:
        """Return the oldest letter of each sender."""
        return [letters[0] for letters in self._by_sender.values()]

    def keep(self, wanted: Callable[[Letter], bool]) -> list[Letter]:
        """Remove and return the letters that are not ``wanted``."""
        gone: list[Letter] = []
        for sender, letters in list(self._by_sender.items()):
            unwanted = [letter for letter in letters if not wanted(letter)]
            if unwanted:
                gone += unwanted
                self._replace(sender, [letter for letter in letters if wanted(letter)])
        return gone

    def remove(self, letter: Letter) -> None:
        """Take out one letter, which is there."""
        letters = self._by_sender[letter.sender]
        place = bisect_left(letters, letter.sequence, key=_sequence_of)
        if place < len(letters) and letters[place] is letter:
            del letters[place]
        else:
            # What is transient does not wait for the disk, and so may stand before what was accepted earlier.
            letters.remove(letter)
        if not letters:
            self._forget(letter.sender)

    def put_back(self, letters: Iterable[Letter]) -> None:
        """Add letters that were taken out, each among those of its sender by its sequence.

        Senders who have nothing else there are served next: it was their turn when the letters were taken.
        """
        by_sender: dict[str, list[Letter]] = {}
        for letter in letters:
            by_sender.setdefault(letter.sender, []).append(letter)
        for sender, mine in by_sender.items():
            there = self._by_sender.get(sender)
            if there is None:
                self._turns.appendleft(sender)
                self.left = _TURN
            self._by_sender[sender] = deque(sorted([*mine, *(there or ())], key=_sequence_of))

    def clear(self) -> None:
        """Remove everything."""
        self._by_sender.clear()
        self._turns.clear()
        self.left = _TURN

    def _replace(self, sender: str, letters: list[Letter]) -> None:
        if letters:
            self._by_sender[sender] = deque(letters)
        else:
            self._forget(sender)

    def _forget(self, sender: str) -> None:
        del self._by_sender[sender]
        if self._turns[0] == sender:
            self.left = _TURN
        self._turns.remove(sender)


def _sequence_of(letter: Letter) -> int:
    return letter.sequence
