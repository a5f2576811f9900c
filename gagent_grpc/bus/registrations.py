"""What callers do with the AMS and the DF of one node: registering, changing, searching, freeing names.

Owns: the actions of SC00023 with their effects on mail, sessions and the store. Leaves to others: the two registries
themselves (`bus.ams`, `bus.df`), who may do what (`bus.callers`), opening sessions (`bus.sessions`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gagent_grpc.acl.descriptions import AMSAgentDescription, DFAgentDescription, SearchConstraints
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.bus.agent_events import AgentEvent, AgentEvents, AgentNews
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.callers import Caller, Callers
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.events import Watch
from gagent_grpc.bus.lost import LostDebtors
from gagent_grpc.bus.mailbox import Mailbox
from gagent_grpc.bus.offers import OfferChange, OfferNews, Offers
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.post import Post
from gagent_grpc.bus.publication import Gaps
from gagent_grpc.bus.rerouting import Rerouting
from gagent_grpc.bus.search_ids import SearchIds
from gagent_grpc.bus.subscriptions import Form, Subscriptions
from gagent_grpc.bus.topics import Topics
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusDraining,
    BusError,
    InvalidArgument,
    Unauthorised,
    shown,
)

if TYPE_CHECKING:
    from gagent_grpc.bus.contexts import Contexts
    from gagent_grpc.bus.tasking import Tasking

_log = logging.getLogger(__name__)

MAX_OWNERSHIP_CHARS = 1_000
"""Most characters of an agent's ownership: every search that finds the agent repeats them."""


class Registrations:
    """The names and the offers of one node. Synchronous; what is done is durable after `Platform.flush`."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        df: DirectoryFacilitator,
        callers: Callers,
        events: AgentEvents,
        offers: Offers,
        subscriptions: Subscriptions,
        post: Post,
        lost: LostDebtors,
        rerouting: Rerouting,
        topics: Topics,
        gaps: Gaps,
        store: Store,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._ams = ams
        self._df = df
        self._callers = callers
        self._events = events
        self._offers = offers
        self._subscriptions = subscriptions
        self._search_ids = SearchIds()
        self._post = post
        self._lost = lost
        self._rerouting = rerouting
        self._topics = topics
        self._gaps = gaps
        self._store = store
        self._clock = clock
        self._limits = limits
        self.tasks: Tasking | None = None
        """Tasks of those who lose their names."""
        self.contexts: Contexts | None = None
        """Shared contexts in which they have a part."""
        self.draining = False
        """The bus is shutting down, and takes no new names."""

    # ---- AMS -------------------------------------------------------------------------------------------------------

    def register(self, address: str, ownership: str, caller: Caller) -> tuple[AgentRecord, bool]:
        """Register an agent without a session; return it, and whether it existed with the same data.

        Raises:
            InvalidName: No valid name, or one of another platform.
            InvalidArgument: The ownership is too long, or the store cannot take what is said.
            Unauthorised: The name is reserved.
            AgentAlreadyRegistered: The name is taken.
            ResourceExhausted: The platform is full.
            BusDraining: The bus is shutting down.
        """
        name = self._ams.claimable(address)
        check_ownership(ownership)
        self.refuse_when_draining()
        record = self._ams.find(name)
        if record is not None:
            if record.principal != caller.principal or record.ownership != ownership or record.session is not None:
                why = "a live session holds the name" if record.session is not None else "with other data"
                raise AgentAlreadyRegistered(name, "AMS", why)
            return record, True
        return self.add(name, caller.principal, ownership), False

    def deregister(self, address: str, caller: Caller, *, why: str = "deregistered") -> None:
        """Free a name: its session ends, its mail is given up, its DF entry goes.

        Raises:
            AgentNotRegistered: Nobody has the name.
            Unauthorised: The caller is neither the agent nor may it govern others.
        """
        record = self._callers.governed(address, caller)
        session = record.session
        self.remove(record, why)
        if session is not None:
            session.terminate()

    def suspend(self, address: str, caller: Caller) -> AgentRecord:
        """Suspend an agent: mail waits and searches skip it; what it has in hand stays in hand.

        Raises:
            AgentNotRegistered: Nobody has the name.
            Unauthorised: The caller is neither the agent nor may it govern others.
            PreconditionFailed: Its state forbids it.
        """
        record = self._callers.governed(address, caller)
        if self._ams.suspend(record):
            self._state_changed(record, caller, "suspended")
        return record

    def resume(self, address: str, caller: Caller) -> AgentRecord:
        """Resume a suspended agent to the state that it was suspended in; errors as in `suspend`.

        An agent may resume itself: one that suspended itself would else depend on somebody who knows of it.
        """
        record = self._callers.governed(address, caller)
        if self._ams.resume(record):
            self._state_changed(record, caller, "resumed")
        return record

    def modify_agent(self, description: AMSAgentDescription, caller: Caller) -> AgentRecord:
        """Change the ownership of an agent, its state, or both; nothing is changed when one of them is refused.

        Args:
            description: The agent by its name, which must be there, and what changes; None stays as it is. The state
                goes by the life-cycle table.
            caller: Who asks. The agent itself may suspend, wait and move; who governs it may suspend, resume, wake up and
                execute.

        Raises:
            AgentNotRegistered: Nobody has the name.
            InvalidArgument: The ownership is too long.
            Unauthorised: The caller may not change this agent, or not in this way.
            PreconditionFailed: The table has no such transition.

        Spec: FIPA SC00023 §5.1.2 (life cycle), §6.2 (modify).
        """
        record = self._callers.governed(description.name or "", caller)
        if description.ownership is not None:
            check_ownership(description.ownership)
        transition = None
        if description.state is not None:
            transition = self._ams.transition(record, description.state)
        if transition is not None:
            itself = transition.of_agent and caller.agent is record
            if not (itself or (transition.of_ams and caller.operator)):
                who = f"{record.name} itself" if transition.of_agent else "who governs agents"
                raise Unauthorised(f"{caller.name} may not {transition.name} {record.name}; only {who} may")
        if description.ownership is not None:
            record.ownership = description.ownership
        if transition is not None:
            self._ams.carry_out(record, transition)
            self._state_changed(record, caller, transition.name)
        elif description.ownership is not None:
            self._store.put_agent(record.stored())
            self._events.changed(record, f"modified by {_by(record, caller)}")
        return record

    def search_agents(self, template: AMSAgentDescription, constraints: SearchConstraints) -> list[AgentRecord]:
        """Return the agents that match a template, oldest registration first."""
        if template.name is not None:
            template = replace(template, name=self._ams.local_name(template.name))
        return self._ams.search(template, constraints)

    def watch_agents(
        self,
        template: AMSAgentDescription,
        cursor: str = "",
        *,
        with_ephemeral: bool = False,
        caller: Sequence[str] = (),
    ) -> Watch[AgentEvent, AgentNews]:
        """Return what a stream is told of the agents that match a template; arguments and errors as `AgentEvents.watch`.

        Raises:
            InvalidName: The template has no valid name, or one of another platform.
        """
        if template.name is not None:
            template = replace(template, name=self._ams.local_name(template.name))
        return self._events.watch(template, cursor, with_ephemeral=with_ephemeral, caller=caller)

    # ---- DF --------------------------------------------------------------------------------------------------------

    def register_description(self, description: DFAgentDescription, caller: Caller) -> DFAgentDescription:
        """Register a description for the calling agent.

        Raises:
            AgentNotRegistered: The AMS does not know the agent.
            AgentAlreadyRegistered: It has an entry.
            Unauthorised: The caller is not the agent.
            MissingParameter: A service has no type.
        """
        record = self._callers.described(description.name, caller)
        now = self._clock.time()
        # First of all: whoever watches hears of the end of an old lease before the new one.
        self.expire(now)
        entry = self._df.register(replace(description, name=record.aid), now=now)
        return self._described(record, entry, "registered")

    def modify_description(self, description: DFAgentDescription, caller: Caller) -> DFAgentDescription:
        """Replace the description of the calling agent; errors as for registering, and AgentNotRegistered for none."""
        record = self._callers.described(description.name, caller)
        entry = self._df.modify(replace(description, name=record.aid), now=self._clock.time())
        return self._described(record, entry, "modified")

    def renew_description(self, name: str | None, lease_seconds: float | None, caller: Caller) -> DFAgentDescription:
        """Start the lease of the calling agent's description anew.

        Args:
            name: The agent; None for the caller.
            lease_seconds: Lease asked for; None for as long as the one that runs.
            caller: Who asks.

        Returns:
            The entry with the lease granted.

        Raises:
            AgentNotRegistered: It has no entry, as after the lease has ended, or the AMS does not know it.
            Unauthorised: The caller is not the agent.
            UnrecognisedParameterValue: The lease is not a positive number.
        """
        record = self._callers.described(name, caller)
        entry = self._df.renew(record.aid, lease_seconds, now=self._clock.time())
        return self._described(record, entry, "renewed")

    def install_description(self, record: AgentRecord, description: DFAgentDescription) -> DFAgentDescription:
        """Install the description of an agent that says hello; return the entry with the lease granted.

        What it is found by is told with `session_changed`, once the session is there.

        Raises:
            MissingParameter: A service has no type.
            UnrecognisedParameterValue: It has a bad lease or is over a limit.
            ResourceExhausted: The DF is full.
        """
        now = self._clock.time()
        self.expire(now)
        entry = self._df.replace(description, now=now)
        self._store.put_description(self._df.stored(record.aid))
        return entry

    def deregister_description(self, name: str | None, caller: Caller) -> None:
        """Remove the description of the calling agent.

        Raises:
            AgentNotRegistered: It has no entry, or the AMS does not know it.
            Unauthorised: The caller is not the agent.
        """
        record = self._callers.described(name, caller)
        self._df.deregister(record.aid)
        self._store.remove_description(record.aid)
        self._offer_changed(record.aid, "deregistered")

    def search_descriptions(
        self, template: DFAgentDescription, constraints: SearchConstraints
    ) -> list[DFAgentDescription]:
        """Return the descriptions that match, oldest registration first; of agents that are there and not suspended.

        This platform is all there is to search, so a ``max_depth`` of any value finds the same.

        Raises:
            InvalidName: The template has no valid name, or one of another platform.
            UnrecognisedParameterValue: The template or the constraints have a value that cannot be understood.
            SearchRepeated: A search of this ``search_id`` was made within five minutes.
        """
        found = self._offers.search(self._own_template(template), constraints)
        self._search_ids.note(constraints.search_id, self._clock.monotonic())
        return found

    def watch_descriptions(
        self, template: DFAgentDescription, cursor: str = "", *, caller: Sequence[str] = ()
    ) -> Watch[OfferChange, OfferNews]:
        """Return what a stream is told of the descriptions that match a template; arguments and errors as `Offers.watch`.

        Raises:
            InvalidName: The template has no valid name, or one of another platform.
        """
        # Searches find no entry whose lease has ended, so nobody may be told of its end who was not told of it.
        self.expire(self._clock.time())
        return self._offers.watch(self._own_template(template), cursor, caller)

    def subscribe(self, record: AgentRecord, message: ACLMessage, template: DFAgentDescription, form: Form) -> None:
        """Begin to tell an agent by ACL messages what matches a template; arguments and errors as `Subscriptions.subscribe`.

        Raises:
            InvalidName: The template has no valid name, or one of another platform.
        """
        self.expire(self._clock.time())
        self._subscriptions.subscribe(record, message, self._own_template(template), form)

    # ---- for sessions and the clock ----------------------------------------------------------------------------------

    def add(self, name: str, principal: str, ownership: str, *, ephemeral: bool = False) -> AgentRecord:
        """Register an agent under a free name.

        Raises:
            InvalidArgument: The store cannot take what is said.
            ResourceExhausted: The platform is full.
        """
        mailbox = self.new_mailbox()
        record = AgentRecord(
            name, self._ams.platform, principal=principal, mailbox=mailbox, registered_at=self._clock.time()
        )
        record.ownership = ownership
        record.ephemeral = ephemeral
        # An ephemeral name ends by itself also when its session never comes to be.
        record.detached_at = self._clock.monotonic()
        self._ams.add(record)
        self._post.participation.taken(record.aid)
        try:
            self._store.put_agent(record.stored())
        except BusError:
            self._ams.remove(record)
            raise
        self._events.changed(record, "registered")
        _log.info("agent registered: %s", record.aid)
        return record

    def remove(self, record: AgentRecord, why: str) -> None:
        """Free the name of an agent: its DF entry goes, its mail is given up. Its session is the caller's business."""
        self.withdraw(record, why)
        self._rerouting.going(record)
        self._topics.replace(record.name, ())
        self._gaps.forget(record)
        self._ams.remove(record)
        self._events.dead(record, why)
        self._callers.forget(record)
        self._post.holding.discard(record)
        # Before the rest of its mail, which is given up without further ado.
        self._lost.removed(record, why)
        if self.tasks is not None:
            self.tasks.removed(record, why)
        if self.contexts is not None:
            self.contexts.freed(record)
        self._post.overdue.removed(record)
        for letter in record.mailbox.drain():
            self._post.give_up(
                record, letter, f"{record.aid} is gone: {why}", reason=DeadReason.DEREGISTERED, error=why
            )
        self._store.remove_agent(record.name)
        _log.info("agent removed: %s, %s", record.aid, why)

    def withdraw(self, record: AgentRecord, why: str) -> None:
        """Remove the DF entry of an agent, if it has one, and its subscriptions."""
        self._subscriptions.end(record)
        if self._df.withdraw(record.aid):
            self._store.remove_description(record.aid)
            self._offer_changed(record.aid, why)

    def session_changed(self, record: AgentRecord, cause: str) -> None:
        """An agent got a session or lost it: tell those who watch what is another state, and what is found now."""
        self._events.changed(record, cause)
        self._offer_changed(record.aid, cause)

    def tell_subscribers(self) -> None:
        """Tell subscribers of changes that wait for them, and what they had no room for."""
        self._subscriptions.tell_what_waits()

    def stop_telling(self) -> None:
        """The bus stops: end all that watches and all subscriptions. Idempotent."""
        self._subscriptions.end_all()
        self._events.log.close()
        self._offers.log.close()

    def expire(self, wall: float) -> None:
        """Remove the DF entries whose lease has ended at ``wall``, in Unix seconds."""
        for name in self._df.expire(wall):
            self._store.remove_description(name)
            self._offer_changed(name, "lease ended")

    def new_mailbox(self, next_sequence: int = 1) -> Mailbox:
        """Return an empty mailbox whose next letter has the number given."""
        return Mailbox(
            max_messages=self._limits.mailbox_messages,
            max_bytes=self._limits.mailbox_bytes,
            next_sequence=next_sequence,
        )

    def refuse_when_draining(self) -> None:
        """Take nothing new while the bus shuts down.

        Raises:
            BusDraining: It does.
        """
        if self.draining:
            raise BusDraining("the bus is shutting down")

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _described(self, record: AgentRecord, entry: DFAgentDescription, cause: str) -> DFAgentDescription:
        """Write down the new entry of an agent, and tell those who watch; return it."""
        self._store.put_description(self._df.stored(record.aid))
        self._offer_changed(record.aid, cause)
        return entry

    def _state_changed(self, record: AgentRecord, caller: Caller, what: str) -> None:
        self._store.put_agent(record.stored())
        by = _by(record, caller)
        if record.session is not None:
            record.session.state_changed(record.state, by)
        self._events.changed(record, f"{what} by {by}")
        self._offer_changed(record.aid, f"agent {record.state}")
        _log.info("state changed: %s is %s", record.aid, record.state)

    def _offer_changed(self, aid: str, cause: str) -> None:
        change = self._offers.refresh(aid, cause)
        if change is not None:
            self._subscriptions.notify(change)

    def _own_template(self, template: DFAgentDescription) -> DFAgentDescription:
        """Return a template whose agent, if it names one, is written as the DF writes it."""
        if template.name is None:
            return template
        return replace(template, name=f"{self._ams.local_name(template.name)}@{self._ams.platform}")


def _by(record: AgentRecord, caller: Caller) -> str:
    """Say who changed an agent."""
    if caller.agent is record:
        return "self"
    return caller.agent.aid if caller.agent is not None else "ams"


def check_ownership(ownership: str) -> None:
    """Make sure that an agent can have this ownership.

    Raises:
        InvalidArgument: It is too long, or no valid Unicode.
    """
    if len(ownership) > MAX_OWNERSHIP_CHARS:
        raise InvalidArgument(
            f"ownership has {len(ownership):,} characters; expected at most {MAX_OWNERSHIP_CHARS:,}", field="ownership"
        )
    try:
        ownership.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"ownership {shown(ownership)} is not valid Unicode", field="ownership") from None
