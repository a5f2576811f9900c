"""What searches find at present, and each change of it: for those who watch the DF.

Owns: when a description begins and ceases to be found (its agent comes and goes, its lease ends), and who is told of it.
Leaves to others: entries and leases (`bus.df`), who is there (`bus.ams`), the log (`bus.events`), subscriptions by ACL
message (`bus.subscriptions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gagent_grpc.acl.changes import DescriptionEventKind
from gagent_grpc.acl.descriptions import DFAgentDescription, SearchConstraints
from gagent_grpc.acl.matching import matches_df
from gagent_grpc.bus.ams import AgentManagementSystem
from gagent_grpc.bus.df import DirectoryFacilitator, check_size
from gagent_grpc.bus.events import EventLog, Watch
from gagent_grpc.bus.ports import Clock
from gagent_grpc.config import MIB, BusLimits

_LOG_CHARS = 16 * MIB
"""Characters in the descriptions that the log keeps at most."""


@dataclass(slots=True)
class OfferChange:
    """What searches find of one agent is another description, or none."""

    agent: str
    before: DFAgentDescription | None
    """What searches found until now."""
    after: DFAgentDescription | None
    """What they find from now on; never equal to what it was."""
    cause: str
    at: float
    """Unix seconds."""


@dataclass(slots=True)
class OfferNews:
    """What a stream is told."""

    cursor: str
    """Continues after this one; "" inside a snapshot, which has to be read to its end."""
    kind: DescriptionEventKind
    description: DFAgentDescription | None
    """As it is now; of one that matches no more its name alone. None at the end of a snapshot."""
    cause: str
    """Why; "" where nothing is said."""
    at: float
    """Unix seconds."""


class Offers:
    """What the agents of one node offer, as searches see it."""

    def __init__(self, ams: AgentManagementSystem, df: DirectoryFacilitator, clock: Clock, limits: BusLimits) -> None:
        self._ams = ams
        self._df = df
        self._clock = clock
        self.log: EventLog[OfferChange] = EventLog(
            most=limits.watch_events, most_size=_LOG_CHARS, max_readers=limits.max_watches
        )
        self._found: dict[str, DFAgentDescription] = {}

    def is_matchable(self, agent: str) -> bool:
        """Return whether searches may find an agent now: it has a session, and is active or waiting."""
        record = self._ams.find(agent)
        return record is not None and record.matchable

    def search(self, template: DFAgentDescription, constraints: SearchConstraints) -> list[DFAgentDescription]:
        """Return what is found now, oldest registration first.

        Raises:
            UnrecognisedParameterValue: The template or the constraints have a value that cannot be understood.
        """
        return self._df.search(template, constraints, now=self._clock.time(), live=self.is_matchable)

    def refresh(self, agent: str, cause: str) -> OfferChange | None:
        """Look whether searches find something else of an agent now; return what is new, None when nothing is."""
        now = self._clock.time()
        after = self._df.current(agent, now) if self.is_matchable(agent) else None
        before = self._found.get(agent)
        if after == before:
            return None
        if after is None:
            del self._found[agent]
        else:
            self._found[agent] = after
        change = OfferChange(agent, before, after, cause, now)
        self.log.append(change, sum(check_size(one) for one in (before, after) if one is not None))
        return change

    def watch(
        self, template: DFAgentDescription, cursor: str, caller: Sequence[str] = ()
    ) -> Watch[OfferChange, OfferNews]:
        """Return what a stream is told from now on, or from its cursor on.

        An event says what was found before it and after it, so what a stream saw need not be remembered for it.

        Args:
            template: What is absent matches anything.
            cursor: Of what was read last; "", one of another run, or one that is too old begins with the current
                matches.
            caller: Names under which the caller is counted, as `Places.take` takes them.

        Raises:
            UnrecognisedParameterValue: The template is over a limit.
            ResourceExhausted: Too many watch, or too many streams of this caller.
            BusDraining: The bus is shutting down.
        """
        check_size(template)
        after = self.log.after(cursor)
        number = self.log.last if after is None else after

        def tell(number: int, change: OfferChange) -> OfferNews | None:
            told = news_of(template, change.before, change.after)
            if told is None:
                return None
            kind, description = told
            return OfferNews(self.log.cursor(number), kind, description, change.cause, change.at)

        reader = self.log.read(number, caller)
        return Watch(reader, self._snapshot(template, number) if after is None else (), tell)

    def _snapshot(self, template: DFAgentDescription, number: int) -> list[OfferNews]:
        """Return what matches now, and the end of the snapshot, which is after the event with this number."""
        now = self._clock.time()
        found = self.search(template, SearchConstraints(max_results=-1))
        present = [OfferNews("", DescriptionEventKind.PRESENT, one, "", now) for one in found]
        return [*present, OfferNews(self.log.cursor(number), DescriptionEventKind.SNAPSHOT_END, None, "", now)]


def news_of(
    template: DFAgentDescription, before: DFAgentDescription | None, after: DFAgentDescription | None
) -> tuple[DescriptionEventKind, DFAgentDescription] | None:
    """Return what a change is for somebody who watches a template; None when nothing.

    Args:
        template: What is watched.
        before: What searches found of the agent before; None for nothing.
        after: What they find now; None for nothing.

    Returns:
        What happened, and the description to tell: of one that matches no more its name alone, as the subscriptions of
        older platforms have it.
    """
    matched = before is not None and matches_df(template, before)
    if after is not None and matches_df(template, after):
        return (DescriptionEventKind.CHANGED if matched else DescriptionEventKind.ADDED), after
    if matched and before is not None:
        return DescriptionEventKind.REMOVED, DFAgentDescription(name=before.name)
    return None
