"""How long to wait after the answer of a script that repeats no ids, before it is given the next event. Pure.

Such a script is matched to events by counting: one line for each. When it writes a second line for the same event, and that
comes after the next event was given, it is taken for the answer to the next one, and every later answer is off by one. A line
that comes while nothing is owed cannot be mistaken: it is unsolicited, and answers nothing. So the next event waits until
a second line would have come: some milliseconds for a script that never wrote one, longer while it is new, and until
it is there for a script that does.
"""

from __future__ import annotations

SETTLE_S = 0.01
"""Pause after an answer of a script that is known to write one line for each event."""
NEW_SETTLE_S = 0.1
"""Pause while that is not known yet, and after a second line, since a third one may follow."""
EXPECT_S = 0.5
"""How long the second line of a script that writes two is waited for. What comes later than that, it writes of its own
accord."""
NEW_ANSWERS = 5
"""Answers until a script counts as known."""
EXPECTED_ANSWERS = 20
"""Answers without a second line after which none is waited for any more."""


class Settling:
    """The pause that one script needs, learnt from when its lines come."""

    __slots__ = ("_answered_at", "_expecting", "_new")

    def __init__(self) -> None:
        """Begin with a script of which nothing is known."""
        self._answered_at = float("-inf")
        # How many answers more count as those of a new script, or as those of one that writes second lines.
        self._new = NEW_ANSWERS
        self._expecting = 0

    def answered(self, now: float) -> float:
        """Note that the line which an event owed came at ``now``, in seconds; return when the next event may be given."""
        self._answered_at = now
        if self._expecting:
            self._expecting -= 1
            return now + EXPECT_S
        if self._new:
            self._new -= 1
            return now + NEW_SETTLE_S
        return now + SETTLE_S

    def unsolicited(self, now: float) -> float:
        """Note that a line came at ``now`` that nothing owed; return when the next event may be given instead."""
        if now - self._answered_at > EXPECT_S:
            return now
        self._expecting = EXPECTED_ANSWERS
        return now + NEW_SETTLE_S
