"""What happens to the registrations of the AMS and the DF, as those who watch are told; the values are those of the wire.

Owns: the words. Leaves to others: who tells them (`bus.agent_events`, `bus.offers`) and who hears them (`client.ams`,
`client.df`).
"""

from __future__ import annotations

import enum


class AgentEventKind(enum.IntEnum):
    """What happened to an agent."""

    PRESENT = 1
    """Part of a snapshot: it is there. What was known before a snapshot is void."""
    SNAPSHOT_END = 2
    """The snapshot is complete; what comes now are changes."""
    BORN = 3
    """It was registered."""
    DEAD = 4
    """Its name is free."""
    STATE = 5
    """Its life-cycle state changed."""
    MODIFIED = 6
    """Its ownership changed, or its name stays that was to end by itself."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


class DescriptionEventKind(enum.IntEnum):
    """What happened to a description that is watched."""

    PRESENT = 1
    """It matches at present. What was known before the first of these is void."""
    SNAPSHOT_END = 2
    """All current matches were told; what comes now are changes."""
    ADDED = 3
    """It matches from now on: it was registered or changed, or its agent is there again."""
    CHANGED = 4
    """It matched before and does so still, with other data."""
    REMOVED = 5
    """It matches no more."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")
