"""Which of the agents that offer a service gets a message to its role.

Owns: the choice, and that a conversation stays with it. Leaves to others: who offers what (`bus.df`), who is there
(`bus.ams`), bringing the message there (`bus.router`).
"""

from __future__ import annotations

from collections import OrderedDict

from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.df import DirectoryFacilitator

_IDLE = 600.0
"""Seconds without a message after which a conversation may go to another agent."""
_MAX_CONVERSATIONS = 100_000
"""Conversations that are remembered; beyond that the one that has been idle longest is forgotten."""
_MAX_TURNS = 10_000
"""Services of which it is remembered whose turn it is; beyond that the one that was asked for longest ago begins anew."""
_LOOKED_AT = 256
"""Agents of one service that one choice compares. Each choice goes on where the last one ended, so all get their turn."""


class Roles:
    """Chooses among the agents of one node."""

    def __init__(self, ams: AgentManagementSystem, df: DirectoryFacilitator) -> None:
        self._ams = ams
        self._df = df
        # By service, and not one for all: who asks for two services by turns would else miss half of the agents of each.
        self._turns: OrderedDict[str, int] = OrderedDict()
        # Agent and last message, in Unix seconds; the conversation that was idle longest is the first.
        self._conversations: OrderedDict[tuple[str, str, str], tuple[AgentRecord, float]] = OrderedDict()

    def choose(
        self, service: str, sender: str, conversation: str, now: float, *, lost: AgentRecord | None = None
    ) -> AgentRecord | None:
        """Return who serves a role for a message.

        Of the agents that are there, offer the service and are not suspended, this is the one with the least unsettled
        mail; of several the next one in turn. A conversation stays with its agent while that can be found, until no
        message came for ten minutes. Whoever sends is chosen only where nobody else is.

        Args:
            service: Type of the service.
            sender: `name@platform` of who sends.
            conversation: Its conversation; "" for none.
            now: Unix seconds.
            lost: Agent that is not chosen: it is not there any more, or about to go.
        """
        key = (service, sender, conversation)
        if conversation:
            known = self._conversations.get(key)
            if (
                known is not None
                and known[0] is not lost
                and now - known[1] <= _IDLE
                and self._serves(known[0], service, now)
            ):
                self._remember(key, known[0], now)
                return known[0]
        chosen = self.least_busy(service, sender, now, lost=lost)
        if conversation and chosen is not None:
            self._remember(key, chosen, now)
        return chosen

    def least_busy(
        self, service: str, sender: str, now: float, *, lost: AgentRecord | None = None
    ) -> AgentRecord | None:
        """Return who offers a service and has the least unsettled mail; ``sender`` only where nobody else does.

        Never ``lost``, which is not there any more or is about to go.
        """
        chosen: AgentRecord | None = None
        fallback: AgentRecord | None = None
        first, looked = self._turns.get(service, 0), 0
        while True:
            count, providers = self._df.providers(service, first=first + looked, most=_LOOKED_AT, now=now)
            for place, aid in providers:
                record = self._there(aid, lost)
                if record is None:
                    continue
                if aid == sender:
                    fallback = record
                elif chosen is None or record.mailbox.messages < chosen.mailbox.messages:
                    chosen = record
                    turn = place + 1
            looked += _LOOKED_AT
            if chosen is not None:
                self._turns[service] = turn
                self._turns.move_to_end(service)
                if len(self._turns) > _MAX_TURNS:
                    self._turns.popitem(last=False)
                return chosen
            # All of these are away: entries of agents that are lost stay until their leases end.
            if looked >= count:
                return fallback

    def has_provider(self, service: str, now: float, *, lost: AgentRecord | None = None) -> bool:
        """Return whether anybody but ``lost`` is there who offers a service; whose turn it is stays as it is."""
        looked = 0
        while True:
            count, providers = self._df.providers(service, first=looked, most=_LOOKED_AT, now=now)
            if any(self._there(aid, lost) is not None for _, aid in providers):
                return True
            looked += _LOOKED_AT
            if looked >= count:
                return False

    def offered(self) -> str:
        """Say which types of services are on offer, as the end of a sentence; "" when there are none."""
        types = self._df.service_types(6)
        if not types:
            return ""
        return f"; on offer: {', '.join(types[:5])}" + (" and others" if len(types) > 5 else "")

    def _there(self, aid: str, lost: AgentRecord | None) -> AgentRecord | None:
        """Return an agent that can be given a message now; None for one that cannot, and for ``lost``."""
        record = self._ams.find(aid)
        return None if record is None or record is lost or not record.matchable else record

    def _serves(self, record: AgentRecord, service: str, now: float) -> bool:
        there = self._ams.find(record.aid) is record and record.matchable
        return there and self._df.offers(record.aid, service, now=now)

    def _remember(self, key: tuple[str, str, str], record: AgentRecord, now: float) -> None:
        self._conversations[key] = (record, now)
        self._conversations.move_to_end(key)
        while self._conversations:
            _, last = next(iter(self._conversations.values()))
            if len(self._conversations) <= _MAX_CONVERSATIONS and now - last <= _IDLE:
                break
            self._conversations.popitem(last=False)
