"""What happens to agents, for those who watch the AMS: born, dead, another state, another owner.

Owns: which changes are events, and who is told of which. Leaves to others: the log (`bus.events`), the changes themselves
(`bus.registrations`, `bus.sessions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gagent_grpc.acl.changes import AgentEventKind
from gagent_grpc.acl.descriptions import AMSAgentDescription, LifeCycleState, SearchConstraints
from gagent_grpc.acl.matching import matches_ams
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord, AgentView
from gagent_grpc.bus.events import EventLog, Watch
from gagent_grpc.bus.ports import Clock
from gagent_grpc.config import BusLimits


@dataclass(slots=True)
class AgentEvent:
    """One change of one agent."""

    kind: AgentEventKind
    before: AgentView | None
    """None when it was not there."""
    after: AgentView | None
    """None when it is gone."""
    cause: str
    at: float
    """Unix seconds."""


@dataclass(slots=True)
class AgentNews:
    """What a stream is told."""

    cursor: str
    """Continues after this one; "" inside a snapshot, which has to be read to its end."""
    kind: AgentEventKind
    agent: AgentView | None
    """As it is now; of a dead one as it was. None at the end of a snapshot."""
    previous_state: LifeCycleState | None
    """Of another state: the one before."""
    cause: str
    """Who or what caused it, in words; "" where nothing is said."""
    at: float
    """Unix seconds."""


class AgentEvents:
    """Tells those who watch what happens to the agents of one node."""

    def __init__(self, ams: AgentManagementSystem, clock: Clock, limits: BusLimits) -> None:
        self._ams = ams
        self._clock = clock
        self.log: EventLog[AgentEvent] = EventLog(
            most=limits.watch_events, most_size=limits.watch_events, max_readers=limits.max_watches
        )

    def restore(self) -> None:
        """Take the agents that a store held for known."""
        for record in self._ams:
            record.told = record.view()

    def changed(self, record: AgentRecord, cause: str) -> None:
        """Tell what is new about an agent that is registered; nothing when nothing is."""
        before, after = record.told, record.view()
        record.told = after
        if before is None:
            self._append(AgentEventKind.BORN, None, after, cause)
            return
        same_state = replace(before.description, state=after.description.state)
        if same_state != after.description or before.ephemeral != after.ephemeral:
            # With the state of before: the next event tells of that.
            described = replace(after.description, state=before.description.state)
            between = replace(after, description=described)
            self._append(AgentEventKind.MODIFIED, before, between, cause)
            before = between
        if before.description.state is not after.description.state:
            self._append(AgentEventKind.STATE, before, after, cause)

    def dead(self, record: AgentRecord, cause: str) -> None:
        """Tell that an agent is gone."""
        self._append(AgentEventKind.DEAD, record.told or record.view(), None, cause)

    def _append(self, kind: AgentEventKind, before: AgentView | None, after: AgentView | None, cause: str) -> None:
        self.log.append(AgentEvent(kind, before, after, cause, self._clock.time()))

    def watch(
        self, template: AMSAgentDescription, cursor: str, *, with_ephemeral: bool, caller: Sequence[str] = ()
    ) -> Watch[AgentEvent, AgentNews]:
        """Return what a stream is told from now on, or from its cursor on.

        Args:
            template: What is absent matches anything; its name is a local one.
            cursor: Of what was read last; "", one of another run, or one that is too old begins with a snapshot.
            with_ephemeral: Tell of ephemeral agents, too; else only of one that the template names.
            caller: Names under which the caller is counted, as `Places.take` takes them.

        Raises:
            ResourceExhausted: Too many watch, or too many streams of this caller.
            BusDraining: The bus is shutting down.
        """
        named = template.name is not None
        if named:
            template = replace(template, name=f"{template.name}@{self._ams.platform}")
        after = self.log.after(cursor)
        number = self.log.last if after is None else after

        def concerns(view: AgentView | None) -> bool:
            shown = view is not None and (with_ephemeral or named or not view.ephemeral)
            return shown and view is not None and matches_ams(template, view.description)

        def tell(number: int, event: AgentEvent) -> AgentNews | None:
            # Whoever matched before is told once more, since nothing else would say that it does no longer.
            if not (concerns(event.before) or concerns(event.after)):
                return None
            previous = None
            if event.kind is AgentEventKind.STATE and event.before is not None:
                previous = event.before.description.state
            seen = event.after or event.before
            return AgentNews(self.log.cursor(number), event.kind, seen, previous, event.cause, event.at)

        reader = self.log.read(number, caller)
        return Watch(reader, self._snapshot(template, number, with_ephemeral) if after is None else (), tell)

    def _snapshot(self, template: AMSAgentDescription, number: int, with_ephemeral: bool) -> list[AgentNews]:
        """Return those who match now, and the end of the snapshot, which is after the event with this number."""
        now = self._clock.time()
        found = self._ams.search(template, SearchConstraints(max_results=-1), with_ephemeral=with_ephemeral)
        present = [AgentNews("", AgentEventKind.PRESENT, record.view(), None, "", now) for record in found]
        return [*present, AgentNews(self.log.cursor(number), AgentEventKind.SNAPSHOT_END, None, None, "", now)]
