"""The conversations that the monitor follows, in the order in which they are forgotten when there are too many.

Owns: that order, and who has how many: whoever begins the most loses its own first, so that a flood of new conversations ends
nobody else's watch. Leaves to others: what a conversation is, and when there are too many (`bus.conversations`). Pure; each
step takes the same time however many there are, taken together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gagent_grpc.bus.conversations import Conversation


class Followed:
    """Conversations with how many pairs each has, all together and by initiator."""

    def __init__(self) -> None:
        # Ordered, since the first key of a plain dictionary gets dearer to find with each one deleted before it.
        self._all: OrderedDict[Conversation, None] = OrderedDict()
        """In the order of `queued_at`; one that went on since then is put in its place when its turn comes."""
        self._of: dict[str, OrderedDict[Conversation, None]] = {}
        """By initiator, in the same order."""
        self._counts: dict[str, int] = {}
        """By initiator, pairs in its conversations."""
        self._with: dict[int, OrderedDict[str, None]] = {}
        """By such a count, the initiators that have it."""
        self._most = 0
        """The highest count."""
        self.pairs = 0
        """Pairs in all conversations."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Conversation]:
        """Yield the conversations, the one that was queued first first."""
        return iter(self._all)

    def add_pair(self, conversation: Conversation) -> None:
        """A conversation, new or not, has one more pair; it counts for its initiator, who spoke first in it."""
        initiator = conversation.initiator
        self._all.setdefault(conversation)
        self._of.setdefault(initiator, OrderedDict()).setdefault(conversation)
        self._count(initiator, 1)

    def remove(self, conversation: Conversation, pairs: int) -> None:
        """A conversation with so many pairs is not followed any more."""
        initiator = conversation.initiator
        del self._all[conversation]
        own = self._of[initiator]
        del own[conversation]
        if not own:
            del self._of[initiator]
        self._count(initiator, -pairs)

    def requeue(self, conversation: Conversation, at: float) -> None:
        """Put a conversation in which something was said at ``at`` behind the others."""
        conversation.queued_at = at
        self._all.move_to_end(conversation)
        self._of[conversation.initiator].move_to_end(conversation)

    def next_to_forget(self, spared: Conversation) -> Conversation | None:
        """Return the conversation that makes room: of whoever has most, the one that was idle longest; never ``spared``."""
        while len(self._all) > 1:
            initiators = self._with[self._most]
            initiator = next(iter(initiators))
            oldest = next(iter(self._of[initiator]))
            if oldest is spared and len(self._of[initiator]) == 1:
                # All that it has, and more than anybody else: then it is one of the others.
                oldest = next(one for one in self._all if one is not spared)
            if oldest is spared or oldest.at > oldest.queued_at:
                self.requeue(oldest, oldest.at)
                # Of many who have as much, too, it is one that is idle.
                if oldest.initiator in initiators:
                    initiators.move_to_end(oldest.initiator)
                continue
            return oldest
        return None

    def _count(self, initiator: str, change: int) -> None:
        self.pairs += change
        before = self._counts.get(initiator, 0)
        after = before + change
        if before:
            same = self._with[before]
            del same[initiator]
            if not same:
                del self._with[before]
        if after:
            self._counts[initiator] = after
            self._with.setdefault(after, OrderedDict())[initiator] = None
            self._most = max(self._most, after)
        else:
            self._counts.pop(initiator, None)
        # As far down at most as it came up, one pair at a time.
        while self._most and self._most not in self._with:
            self._most -= 1
