"""The agent management system: who is registered, in which life-cycle state, and who holds which name.

Owns: agent records and the transitions between life-cycle states (FIPA SC00023 §5). Leaves to others: sessions and
mail (the record only points to them), the DF, what is written to a store (`bus.registrations`), who watches
(`bus.agent_events`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gagent_grpc.acl.aid import RESERVED_NAMES, check_name, check_platform, split_aid
from gagent_grpc.acl.descriptions import AMSAgentDescription, LifeCycleState, SearchConstraints
from gagent_grpc.bus.mailbox import Mailbox
from gagent_grpc.bus.ports import StoredAgent
from gagent_grpc.errors import (
    AgentNotRegistered,
    InvalidName,
    PreconditionFailed,
    ResourceExhausted,
    Unauthorised,
    UnrecognisedParameterValue,
)

if TYPE_CHECKING:
    from gagent_grpc.bus.session import Session

_DELIVERABLE = frozenset({LifeCycleState.ACTIVE})
SEQUENCES_WRITTEN_AHEAD = 10_000
"""Sequences that one write of an agent covers, so that only every so many messages need one."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the life-cycle table (SC00023 §5.1.2)."""

    name: str
    before: frozenset[LifeCycleState]
    after: LifeCycleState
    of_agent: bool
    """The agent itself may do it."""
    of_ams: bool
    """The AMS may do it, which is to say whoever governs agents."""


_ACTIVE = frozenset({LifeCycleState.ACTIVE})
# Create, invoke, destroy and quit are not here: an agent is created and destroyed by its registration, invoked by its
# session. An agent that was lost or waits can be suspended, too, so that it is not woken by its return.
TRANSITIONS = (
    Transition(
        "suspend",
        frozenset({LifeCycleState.ACTIVE, LifeCycleState.WAITING, LifeCycleState.UNKNOWN}),
        LifeCycleState.SUSPENDED,
        of_agent=True,
        of_ams=True,
    ),
    Transition("resume", frozenset({LifeCycleState.SUSPENDED}), LifeCycleState.ACTIVE, of_agent=False, of_ams=True),
    Transition("wait", _ACTIVE, LifeCycleState.WAITING, of_agent=True, of_ams=False),
    Transition("wake up", frozenset({LifeCycleState.WAITING}), LifeCycleState.ACTIVE, of_agent=False, of_ams=True),
    Transition("move", _ACTIVE, LifeCycleState.TRANSIT, of_agent=True, of_ams=False),
    Transition("execute", frozenset({LifeCycleState.TRANSIT}), LifeCycleState.ACTIVE, of_agent=False, of_ams=True),
)
"""What changes a state by request, and who may do it."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """One agent as others see it at one moment."""

    description: AMSAgentDescription
    connected: bool
    """A session of it is open."""
    mailbox_messages: int
    """Unsettled messages in its mailbox."""
    ephemeral: bool
    """Its name ends by itself after its session."""


class AgentRecord:
    """One registered agent: what the AMS knows of it, its mailbox and its session."""

    __slots__ = (
        "aid",
        "detached_at",
        "ephemeral",
        "generation",
        "mailbox",
        "name",
        "ownership",
        "principal",
        "registered_at",
        "resume_digest",
        "resume_to",
        "sequences_written",
        "session",
        "state",
        "told",
    )

    def __init__(self, name: str, platform: str, *, principal: str, mailbox: Mailbox, registered_at: float) -> None:
        self.name = name
        self.aid = f"{name}@{platform}"
        self.principal = principal
        """Who owns the name."""
        self.mailbox = mailbox
        self.registered_at = registered_at
        """Unix seconds."""
        self.sequences_written = mailbox.next_sequence
        """What the store was told last: no sequence from here on may be used before it knows a higher number."""
        self.ownership = ""
        self.state = LifeCycleState.INITIATED
        self.resume_to = LifeCycleState.ACTIVE
        """State that `resume` restores."""
        self.ephemeral = False
        self.generation = 0
        """Number of the newest session; what acts for an older one is ignored."""
        self.session: Session | None = None
        self.detached_at: float | None = None
        """When the last session ended, in monotonic seconds; None while one is open or none ever was."""
        self.resume_digest = b""
        self.told: AgentView | None = None
        """What those who watch were told last; None before they were told of it."""

    @property
    def deliverable(self) -> bool:
        """Whether mail is handed out in this state (SC00023 §5.1: only an active agent gets it)."""
        return self.state in _DELIVERABLE

    @property
    def matchable(self) -> bool:
        """Whether searches and roles may choose the agent now."""
        return self.session is not None and self.state in (LifeCycleState.ACTIVE, LifeCycleState.WAITING)

    def stored(self) -> StoredAgent:
        """Return what a store keeps of the record."""
        return StoredAgent(
            name=self.name,
            principal=self.principal,
            ownership=self.ownership,
            state=self.state,
            resume_to=self.resume_to,
            ephemeral=self.ephemeral,
            generation=self.generation,
            attached=self.session is not None,
            next_sequence=max(self.sequences_written, self.mailbox.next_sequence),
            resume_digest=self.resume_digest,
            registered_at=self.registered_at,
        )

    def description(self) -> AMSAgentDescription:
        """Return the ams-agent-description of the agent."""
        return AMSAgentDescription(name=self.aid, ownership=self.ownership or None, state=self.state)

    def view(self) -> AgentView:
        """Return the agent as others see it now."""
        return AgentView(
            self.description(),
            connected=self.session is not None,
            mailbox_messages=self.mailbox.messages + self.mailbox.reserve_messages,
            ephemeral=self.ephemeral,
        )


class AgentManagementSystem:
    """The registry of one platform. Synchronous, and without a clock."""

    def __init__(self, platform: str, *, max_agents: int) -> None:
        self.platform = check_platform(platform)
        self._suffix = f"@{platform}"
        self._max_agents = max_agents
        self._records: dict[str, AgentRecord] = {}
        self._known: dict[str, AgentRecord] = {}
        self.changes = 0
        """How often a name came or went."""

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[AgentRecord]:
        return iter(self._records.values())

    # ---- names -----------------------------------------------------------------------------------------------------

    def find(self, address: str) -> AgentRecord | None:
        """Return the record for a bare name or `name@platform` of this platform; None when there is none."""
        return self._known.get(address)

    def get(self, address: str) -> AgentRecord:
        """Return the record for a name of this platform.

        Raises:
            InvalidName: It is no valid name.
            AgentNotRegistered: Nobody has it.
        """
        record = self._known.get(address)
        if record is None:
            raise AgentNotRegistered(self.local_name(address))
        return record

    def local_name(self, address: str) -> str:
        """Return the local name in ``address``.

        Raises:
            InvalidName: It is no valid name, or of another platform.
        """
        name, platform = split_aid(address)
        if platform and platform != self.platform:
            raise InvalidName(
                f"{address}: this platform is {self.platform!r}; expected a bare name or name{self._suffix}"
            )
        return name

    def claimable(self, address: str) -> str:
        """Return the local name in ``address`` when an agent may bear it.

        Raises:
            InvalidName: It is no valid name, or of another platform.
            Unauthorised: It is reserved for the platform's own agents.
        """
        name = self.local_name(address)
        if name in RESERVED_NAMES:
            raise Unauthorised(f"{name}: this name is reserved for the platform's own agent; choose another one")
        return name

    # ---- registering -----------------------------------------------------------------------------------------------

    def add(self, record: AgentRecord) -> None:
        """Register a record under its name, which must be free.

        Raises:
            ResourceExhausted: The platform holds as many agents as it is configured for.
        """
        if len(self._records) >= self._max_agents:
            raise ResourceExhausted(
                f"{record.name}: the platform holds {self._max_agents} agents, its limit (max_agents)"
            )
        check_name(record.name)
        self.changes += 1
        self._records[record.name] = record
        self._known[record.name] = record
        self._known[record.aid] = record

    def remove(self, record: AgentRecord) -> None:
        """Free the name of a record."""
        self.changes += 1
        del self._records[record.name]
        del self._known[record.name]
        del self._known[record.aid]

    def search(
        self, template: AMSAgentDescription, constraints: SearchConstraints, *, with_ephemeral: bool = False
    ) -> list[AgentRecord]:
        """Return the agents that match, oldest registration first; ephemeral ones only when asked for, as by name.

        Raises:
            UnrecognisedParameterValue: `max_results` is 0.

        Spec: FIPA SC00023 §6.1.3 (ams-agent-description), §6.1.4 (search-constraints).
        """
        if constraints.max_results == 0:
            raise UnrecognisedParameterValue(
                "search-constraints", "max-results", "is 0; expected 1 or more, or -1 for all"
            )
        if template.name is not None:
            record = self._known.get(template.name)
            candidates = [record] if record is not None else []
        else:
            candidates = [record for record in self._records.values() if with_ephemeral or not record.ephemeral]
        found = []
        for record in candidates:
            if template.ownership is not None and template.ownership != record.ownership:
                continue
            if template.state is not None and template.state != record.state:
                continue
            found.append(record)
            if 0 < constraints.max_results <= len(found):
                break
        return found

    # ---- life cycle ------------------------------------------------------------------------------------------------

    def invoke(self, record: AgentRecord) -> None:
        """A session opened: initiated and unknown agents become active."""
        if record.state in (LifeCycleState.INITIATED, LifeCycleState.UNKNOWN):
            record.state = LifeCycleState.ACTIVE

    def lose(self, record: AgentRecord) -> None:
        """The session ended: an active agent becomes unknown.

        A suspended or waiting one stays what it is: nobody resumed it.
        """
        if record.state is LifeCycleState.ACTIVE:
            record.state = LifeCycleState.UNKNOWN

    def transition(self, record: AgentRecord, wanted: LifeCycleState) -> Transition | None:
        """Return what brings an agent to the state ``wanted``; None when it is there.

        Raises:
            PreconditionFailed: The table has no such transition.

        Spec: FIPA SC00023 §5.1.2.
        """
        if record.state is wanted:
            return None
        for one in TRANSITIONS:
            if one.after is wanted and record.state in one.before:
                return one
        ways = sorted({str(one.after) for one in TRANSITIONS if record.state in one.before})
        raise PreconditionFailed(
            f"{record.name} is {record.state}, from which no transition leads to {wanted}; "
            + (f"possible are: {', '.join(ways)}" if ways else "it has to open a session first")
        )

    def carry_out(self, record: AgentRecord, transition: Transition) -> None:
        """Bring an agent to its new state. One without a session is lost rather than active."""
        if transition.name == "suspend":
            self.suspend(record)
        elif transition.name == "resume":
            self.resume(record)
        elif transition.after is LifeCycleState.ACTIVE and record.session is None:
            record.state = LifeCycleState.UNKNOWN
        else:
            record.state = transition.after

    def suspend(self, record: AgentRecord) -> bool:
        """Suspend an agent; return whether the state changed (suspending it again changes nothing).

        Raises:
            PreconditionFailed: It was never started or is on its way elsewhere.
        """
        if record.state is LifeCycleState.SUSPENDED:
            return False
        if record.state not in (LifeCycleState.ACTIVE, LifeCycleState.WAITING, LifeCycleState.UNKNOWN):
            raise PreconditionFailed(
                f"{record.name} is {record.state}; only an active, waiting or lost agent can be suspended"
            )
        record.resume_to = LifeCycleState.WAITING if record.state is LifeCycleState.WAITING else LifeCycleState.ACTIVE
        record.state = LifeCycleState.SUSPENDED
        return True

    def resume(self, record: AgentRecord) -> bool:
        """Resume a suspended agent to what it was before; return whether the state changed.

        Raises:
            PreconditionFailed: It is neither suspended nor running.
        """
        if record.state is not LifeCycleState.SUSPENDED:
            if record.state in (LifeCycleState.ACTIVE, LifeCycleState.WAITING):
                return False
            raise PreconditionFailed(f"{record.name} is {record.state}; only a suspended agent can be resumed")
        lost = record.session is None and record.resume_to is LifeCycleState.ACTIVE
        record.state = LifeCycleState.UNKNOWN if lost else record.resume_to
        return True
