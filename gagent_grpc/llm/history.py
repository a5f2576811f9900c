"""What an agent remembers of its talks: whole turns per conversation, within bounds on each and on all of them.

Owns: which turns are kept. Pure. Leaves to others: what a conversation is, and what a turn says (`llm.answering`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from gagent_grpc.errors import InvalidArgument

KIB, MIB = 1024, 1024 * 1024


class Key(NamedTuple):
    """Whose conversation it is."""

    sender: str
    """`name@platform`, or the name as the bus gave it."""
    conversation_id: str
    """Empty for messages that belong to none."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str

    @property
    def size(self) -> int:
        """Bytes of UTF-8."""
        return len(self.question.encode()) + len(self.answer.encode())


class Histories:
    """The turns of every conversation. The conversation that was quiet for longest is forgotten first."""

    def __init__(
        self,
        max_turns: int = 20,
        *,
        turn_bytes: int = 256 * KIB,
        total_bytes: int = 64 * MIB,
        conversations: int = 1_000,
    ) -> None:
        """Make empty ones.

        Args:
            max_turns: Turns of one conversation that are kept, latest ones; 0 for none.
            turn_bytes: Bytes of one conversation; the oldest turns go first, and always whole.
            total_bytes: Bytes of all conversations.
            conversations: Conversations at most.

        Raises:
            InvalidArgument: A bound is negative.
        """
        for name, bound in (
            ("max_history", max_turns),
            ("turn_bytes", turn_bytes),
            ("total_bytes", total_bytes),
            ("conversations", conversations),
        ):
            if bound < 0:
                raise InvalidArgument(f"{name} {bound}; expected 0 or more", field=name)
        self._max_turns = max_turns
        self._turn_bytes = turn_bytes
        self._total_bytes = total_bytes
        self._conversations = conversations
        self._turns: OrderedDict[Key, tuple[Turn, ...]] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self.size = 0
        """Bytes that are kept, of all conversations."""

    def __len__(self) -> int:
        return len(self._turns)

    def turns(self, key: Key) -> tuple[Turn, ...]:
        """Return the turns of a conversation, oldest first."""
        return self._turns.get(key, ())

    def add(self, key: Key, turn: Turn) -> None:
        """Keep a turn, as far as the bounds allow."""
        turns = [*self.turns(key), turn]
        turns = turns[-self._max_turns :] if self._max_turns else []
        size = sum(one.size for one in turns)
        while turns and size > self._turn_bytes:
            size -= turns.pop(0).size
        self._keep(key, tuple(turns), size)
        while self._turns and (len(self._turns) > self._conversations or self.size > self._total_bytes):
            self._drop(next(iter(self._turns)))

    def shorten(self, key: Key) -> bool:
        """Forget the older half of a conversation; return whether there was anything to forget."""
        turns = self.turns(key)
        kept = turns[(len(turns) + 1) // 2 :]
        self._keep(key, kept, sum(one.size for one in kept))
        return bool(turns)

    def _keep(self, key: Key, turns: tuple[Turn, ...], size: int) -> None:
        self._drop(key)
        if turns:
            self._turns[key] = turns
            self._sizes[key] = size
            self.size += size

    def _drop(self, key: Key) -> None:
        self._turns.pop(key, None)
        self.size -= self._sizes.pop(key, 0)
