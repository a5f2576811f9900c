"""Who is registered, in words: what a refusal says beside NO_SUCH_AGENT, so that a wrong name is seen at once.

Owns: the words, and that they cost nothing where refusals come in thousands.
"""

from __future__ import annotations

import itertools

from gagent_grpc.bus.ams import AgentManagementSystem

_MAX_NAMES_LOOKED_AT = 50


class Hints:
    """What to say of those who are there."""

    def __init__(self, ams: AgentManagementSystem) -> None:
        self._ams = ams
        self._registered = ""
        self._changes = -1

    def registered(self) -> str:
        """Say who is registered, in the same words until somebody comes or goes."""
        if self._changes != self._ams.changes:
            self._changes = self._ams.changes
            self._registered = self._describe_registered()
        return self._registered

    def _describe_registered(self) -> str:
        # A look at all of them would cost more than everything else that happens to the message.
        looked_at = itertools.islice(self._ams, _MAX_NAMES_LOOKED_AT)
        names = list(itertools.islice((record.name for record in looked_at if not record.ephemeral), 6))
        if not names:
            return "nobody is registered" if len(self._ams) <= _MAX_NAMES_LOOKED_AT else ""
        return f"registered: {', '.join(names[:5])}" + (" and others" if len(names) > 5 else "")
