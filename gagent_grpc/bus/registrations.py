"""What callers do with the AMS and the DF of one node: registering, changing, searching, freeing names.

Owns: the actions of SC00023 with their effects on mail, sessions and the store. Leaves to others: the two registries
themselves (`bus.ams`, `bus.df`), who may do what (`bus.callers`), opening sessions (`bus.sessions`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from gagent_grpc.acl.descriptions import AMSAgentDescription, DFAgentDescription, SearchConstraints
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.callers import Caller, Callers
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.lost import LostDebtors
from gagent_grpc.bus.mailbox import Mailbox
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.post import Post
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import AgentAlreadyRegistered, BusDraining, BusError, InvalidArgument, shown

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
        post: Post,
        lost: LostDebtors,
        store: Store,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._ams = ams
        self._df = df
        self._callers = callers
        self._post = post
        self._lost = lost
        self._store = store
        self._clock = clock
        self._limits = limits
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
            self._state_changed(record, caller)
        return record

    def resume(self, address: str, caller: Caller) -> AgentRecord:
        """Resume a suspended agent to the state that it was suspended in; errors as in `suspend`."""
        record = self._callers.governed(address, caller)
        if self._ams.resume(record):
            self._state_changed(record, caller)
        return record

    def search_agents(self, template: AMSAgentDescription, constraints: SearchConstraints) -> list[AgentRecord]:
        """Return the agents that match a template, oldest registration first."""
        if template.name is not None:
            template = replace(template, name=self._ams.local_name(template.name))
        return self._ams.search(template, constraints)

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
        entry = self._df.register(replace(description, name=record.aid), now=self._clock.time())
        self._store.put_description(self._df.stored(record.aid))
        return entry

    def modify_description(self, description: DFAgentDescription, caller: Caller) -> DFAgentDescription:
        """Replace the description of the calling agent; errors as for registering, and AgentNotRegistered for none."""
        record = self._callers.described(description.name, caller)
        entry = self._df.modify(replace(description, name=record.aid), now=self._clock.time())
        self._store.put_description(self._df.stored(record.aid))
        return entry

    def install_description(self, record: AgentRecord, description: DFAgentDescription) -> DFAgentDescription:
        """Install the description of an agent that says hello; return the entry with the lease granted.

        Raises:
            MissingParameter: A service has no type.
            UnrecognisedParameterValue: It has a bad lease or is over a limit.
            ResourceExhausted: The DF is full.
        """
        entry = self._df.replace(description, now=self._clock.time())
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

    def search_descriptions(
        self, template: DFAgentDescription, constraints: SearchConstraints
    ) -> list[DFAgentDescription]:
        """Return the descriptions that match, oldest registration first; of agents that are there and not suspended."""
        if template.name is not None:
            template = replace(template, name=f"{self._ams.local_name(template.name)}@{self._ams.platform}")
        return self._df.search(template, constraints, now=self._clock.time(), live=self._is_matchable)

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
        try:
            self._store.put_agent(record.stored())
        except BusError:
            self._ams.remove(record)
            raise
        _log.info("agent registered: %s", record.aid)
        return record

    def remove(self, record: AgentRecord, why: str) -> None:
        """Free the name of an agent: its DF entry goes, its mail is given up. Its session is the caller's business."""
        self.withdraw(record)
        self._ams.remove(record)
        self._callers.forget(record)
        self._post.holding.discard(record)
        # Before the rest of its mail, which is given up without further ado.
        self._lost.removed(record, why)
        for letter in record.mailbox.drain():
            self._post.give_up(
                record, letter, f"{record.aid} is gone: {why}", reason=DeadReason.DEREGISTERED, error=why
            )
        self._store.remove_agent(record.name)
        _log.info("agent removed: %s, %s", record.aid, why)

    def withdraw(self, record: AgentRecord) -> None:
        """Remove the DF entry of an agent, if it has one."""
        if self._df.withdraw(record.aid):
            self._store.remove_description(record.aid)

    def expire(self, wall: float) -> None:
        """Remove the DF entries whose lease has ended at ``wall``, in Unix seconds."""
        for name in self._df.expire(wall):
            self._store.remove_description(name)

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

    def _state_changed(self, record: AgentRecord, caller: Caller) -> None:
        self._store.put_agent(record.stored())
        if record.session is not None:
            changed_by = "self" if caller.agent is record else (caller.agent.aid if caller.agent else "ams")
            record.session.state_changed(record.state, changed_by)
        _log.info("state changed: %s is %s", record.aid, record.state)

    def _is_matchable(self, aid: str) -> bool:
        record = self._ams.find(aid)
        return record is not None and record.matchable


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
