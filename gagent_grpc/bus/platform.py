"""The agent platform of one node: joins AMS, DF, router and sessions, and keeps them in step with a store.

Owns: opening and ending sessions, who holds a name, what is written down, everything that happens by the clock. One way
in: `Platform.running`. Leaves to others: the wire (`server`), storage engines, routing and mail themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from gagent_grpc.acl.descriptions import AMSAgentDescription, DFAgentDescription, LifeCycleState, SearchConstraints
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.mailbox import Letter, Mailbox
from gagent_grpc.bus.management import ManagementAgents
from gagent_grpc.bus.ports import Clock, Codec, Commit, Store, StoredPlatform
from gagent_grpc.bus.router import Router
from gagent_grpc.bus.session import EXPIRED, Notice, Session
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusDraining,
    BusError,
    InvalidArgument,
    StoreUnavailable,
    TooManySessions,
    Unauthorised,
)

log = structlog.get_logger(__name__)

_HELD_LANES_TICK = 0.1
"""Seconds between looks at lanes that wait after a nack."""
_PRUNE_INTERVAL = 60.0
"""Seconds between forgettings of old keys."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client wants when it opens a session."""

    agent: str
    resume_token: str = ""
    window_messages: int = 0
    """0 for the default of the bus."""
    window_bytes: int = 0
    held: frozenset[int] = frozenset()
    """Sequences of deliveries that are still in its handlers from an earlier session."""
    description: DFAgentDescription | None = None
    ephemeral: bool = False
    ownership: str = ""
    software: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open session, and what its client has to know."""

    session: Session
    resume_token: str
    attached: bool
    """The agent was registered before."""
    description: DFAgentDescription | None
    """DF entry in force."""
    held: frozenset[int]
    """Sequences that the client still has in its handlers, and that its settles count for."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a unary call."""

    agent: AgentRecord | None
    """The agent whose session token was shown."""
    principal: str
    """Who the credentials say it is."""
    operator: bool
    """May govern other agents: everyone, on a bus without credentials."""

    def may_act_for(self, record: AgentRecord) -> bool:
        """Whether the caller is the agent itself or may govern it."""
        return self.operator or self.agent is record


class Platform:
    """The platform of one node. Everything but waiting for a store or a sign of life is synchronous."""

    def __init__(self, name: str, store: Store, codec: Codec, clock: Clock, limits: BusLimits) -> None:
        self.name = name
        self.limits = limits
        self._store = store
        self._codec = codec
        self._clock = clock
        self.ams = AgentManagementSystem(name, max_agents=limits.max_agents)
        self.df = DirectoryFacilitator(max_entries=limits.max_df_entries, max_lease=limits.max_lease)
        self._dedupe = Dedupe(window=limits.dedupe_window, rows=limits.dedupe_rows)
        self._agents = ManagementAgents(self)
        self.router = Router(self.ams, store, codec, clock, limits, self._dedupe, self._agents)
        self._sessions: set[Session] = set()
        self._tokens: dict[bytes, AgentRecord] = {}
        self._all_ended = asyncio.Event()
        self._next_prune = 0.0
        self.draining = False

    # ---- life of the node ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Platform]:
        """Load what the store holds, keep the clock's business going, and write everything down at the end.

        Raises:
            ConfigurationError: The store belongs to another program or is open elsewhere.
            StoreUnavailable: The store cannot be read.
        """
        self._restore(await self._store.open())
        tick = min(1.0, self.limits.heartbeat_interval / 4, self.limits.resume_grace / 4)
        work = (self._commits(), self._every(_HELD_LANES_TICK, self.release_lanes), self._every(tick, self.keep_house))
        tasks = [asyncio.create_task(one) for one in work]
        clean = False
        try:
            yield self
            clean = True
        finally:
            for session in list(self._sessions):
                session.end(BusDraining("the bus is stopping"))
                self.detach(session)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._store.close(clean=clean)

    def _restore(self, stored: StoredPlatform) -> None:
        """Take over what the store held. After an unclean stop what may have been delivered is flagged."""
        records: dict[str, AgentRecord] = {}
        may_be_doubled: set[str] = set()
        for agent in stored.agents:
            mailbox = self._new_mailbox(agent.next_sequence)
            record = AgentRecord(
                agent.name, self.name, principal=agent.principal, mailbox=mailbox, registered_at=agent.registered_at
            )
            record.ownership = agent.ownership
            record.state = agent.state if agent.state is not LifeCycleState.ACTIVE else LifeCycleState.UNKNOWN
            record.resume_to = agent.resume_to
            record.ephemeral = agent.ephemeral
            record.generation = agent.generation
            record.resume_digest = agent.resume_digest
            # A store does not say when the session ended, so the grace of an ephemeral name starts anew.
            record.detached_at = self._clock.monotonic()
            if agent.attached and not stored.clean:
                may_be_doubled.add(agent.name)
            self.ams.add(record)
            records[agent.name] = record
            if record.resume_digest:
                self._tokens[record.resume_digest] = record
        for key in stored.keys:
            self._dedupe.settled((key.sender, key.key, key.receiver), key.digest, key.settled_at)
        for message in stored.messages:
            record_or_none = records.get(message.receiver)
            if record_or_none is None:
                log.warning(
                    "mail without an agent is left in the store", receiver=message.receiver, sequence=message.sequence
                )
                continue
            record = record_or_none
            try:
                envelope = self._codec.decode(message.payload)
            except InvalidArgument as error:
                # Not handled: another version of the bus, or another limit, took it. It is there for that one.
                log.error("mail that cannot be read is left in the store", receiver=message.receiver, error=str(error))  # noqa: TRY400
                record.mailbox.next_sequence = max(record.mailbox.next_sequence, message.sequence + 1)
                continue
            letter = Letter(
                message.sequence, envelope, message.sender, message.message_id, message.via, message.accepted_at
            )
            letter.attempt = message.attempt
            letter.redelivered = envelope.resend or message.attempt > 0 or message.receiver in may_be_doubled
            record.mailbox.next_sequence = max(record.mailbox.next_sequence, message.sequence + 1)
            self.router.restore(record, letter)
        now = self._clock.time()
        for description in stored.descriptions:
            if description.name is None or self.ams.find(description.name) is None:
                continue
            try:
                self.df.replace(description, now=now)
            except BusError as error:
                log.error("a DF entry is left in the store", agent=description.name, error=str(error))  # noqa: TRY400
        log.info(
            "store opened",
            agents=len(stored.agents),
            messages=len(stored.messages),
            descriptions=len(stored.descriptions),
            clean_stop=stored.clean,
        )

    async def drain(self) -> None:
        """Take nothing new, tell every session, and wait until they ended or the grace is over. Idempotent.

        A session ends at once when nothing is unsettled; else it has the grace for what its agent has in hand.
        """
        self.draining = True
        notice = Notice("DRAINING", "the bus is shutting down; reconnect and resume", reconnect_after=0.5)
        for session in list(self._sessions):
            session.drain(notice)
        try:
            async with asyncio.timeout(self.limits.drain_grace):
                while self._sessions:
                    self._all_ended.clear()
                    await self._all_ended.wait()
        except TimeoutError:
            for session in list(self._sessions):
                session.close_when_answered()

    # ---- sessions --------------------------------------------------------------------------------------------------

    async def attach(self, hello: Hello, principal: str) -> Opened:
        """Open a session: register the agent or attach to it.

        Raises:
            InvalidName: No valid name, or one of another platform.
            Unauthorised: The name is reserved, or somebody else owns it.
            AgentAlreadyRegistered: A live session holds the name.
            TooManySessions: The node is full.
            BusDraining: The bus is shutting down.
        """
        name = self.ams.claimable(hello.agent)
        hello = self._with_own_description(hello, name)
        self._refuse_when_draining()
        digest = _digest(hello.resume_token) if hello.resume_token else b""
        record = self.ams.find(name)
        while record is not None and record.session is not None:
            holder = record.session
            if digest and secrets.compare_digest(digest, record.resume_digest):
                break
            if await holder.probe(self.limits.probe_timeout):
                raise AgentAlreadyRegistered(name, "AMS", "a live session of another client holds the name")
            # While this one waited, another client may have taken the place of the silent one.
            record = self.ams.find(name)
            if record is not None and record.session is holder:
                break
        self._refuse_when_draining()
        if (record is None or record.session is None) and len(self._sessions) >= self.limits.max_sessions:
            raise TooManySessions(f"{len(self._sessions)} sessions are open, the limit of this node (max_sessions)")
        attached = record is not None
        if record is None:
            record = self._register(name, principal, hello.ownership, ephemeral=hello.ephemeral)
            # One more await before the session exists: without it the name would be promised and not yet stored.
            await self._flush_registration()
            if record.session is not None or self.ams.find(name) is not record:
                raise AgentAlreadyRegistered(name, "AMS", "another client registered it in the same instant")
            self._refuse_when_draining()
        elif record.principal != principal:
            raise Unauthorised(f"{name}: the name belongs to another principal")
        return self._open(record, hello, digest, attached=attached)

    def _with_own_description(self, hello: Hello, name: str) -> Hello:
        """Return the hello with its description completed and checked, before the name is registered for it."""
        described = hello.description
        if described is None:
            return hello
        if described.name is not None and self.ams.local_name(described.name) != name:
            raise Unauthorised(f"{name} may not change the DF entry of {described.name}")
        described = replace(described, name=f"{name}@{self.name}")
        self.df.check(described)
        return replace(hello, description=described)

    def _open(self, record: AgentRecord, hello: Hello, digest: bytes, *, attached: bool) -> Opened:
        resumed = bool(digest) and secrets.compare_digest(digest, record.resume_digest)
        description = self.df.get(record.aid)
        if hello.description is not None:
            # Before anything else changes, since it may be refused.
            description = self.df.replace(hello.description, now=self._clock.time())
            self._store.put_description(description, self._clock.time())
        if record.session is not None:
            older = record.session
            older.supersede()
            self._release(older)
        token = secrets.token_urlsafe(24)
        self._tokens.pop(record.resume_digest, None)
        record.resume_digest = _digest(token)
        self._tokens[record.resume_digest] = record
        record.generation += 1
        record.ephemeral = hello.ephemeral
        record.ownership = hello.ownership or record.ownership
        record.detached_at = None
        session = Session(
            record,
            record.generation,
            self.router,
            self._clock,
            self.limits,
            window_messages=hello.window_messages or self.limits.window_messages,
            window_bytes=hello.window_bytes or self.limits.window_bytes,
        )
        record.session = session
        self._sessions.add(session)
        self.ams.invoke(record)
        held = frozenset(record.mailbox.resume_in_flight(set(hello.held)) if resumed else ())
        self._store.put_agent(record.stored())
        log.info(
            "session opened", agent=record.aid, generation=record.generation, resumed=resumed, software=hello.software
        )
        return Opened(session, token, attached, description, held)

    def bye(self, session: Session, *, deregister: bool) -> None:
        """The client says a polite end: withdraw its DF entry, and free its name too when it asks for that."""
        record = session.record
        if record.session is not session:
            return
        if deregister:
            self._remove(record, "deregistered")
        else:
            self._withdraw(record)
        session.close_when_answered()

    def detach(self, session: Session) -> None:
        """The stream of a session ended. What it had in hand goes back; for an older generation nothing happens."""
        if session in self._sessions:
            self._sessions.discard(session)
            if not self._sessions:
                self._all_ended.set()
        session.end()
        record = session.record
        if record.session is not session:
            return
        self._release(session)
        if self.ams.find(record.aid) is record:
            self.ams.lose(record)
            record.detached_at = self._clock.monotonic()
            self._store.put_agent(record.stored())
            log.info("session ended", agent=record.aid, generation=session.generation, state=str(record.state))

    def _release(self, session: Session) -> None:
        """Take a session off its agent: what it had in hand is queued again, flagged."""
        record = session.record
        record.session = None
        returned = record.mailbox.return_in_flight()
        # What was returned by the nack of another letter has been delivered, too, though that attempt does not count.
        kept = [(letter.sequence, max(1, letter.attempt)) for letter in returned if not letter.envelope.transient]
        if kept:
            self._store.mark_attempts(record.name, kept)

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    # ---- AMS -------------------------------------------------------------------------------------------------------

    async def register(self, address: str, ownership: str, caller: Caller) -> tuple[AgentRecord, bool]:
        """Register an agent without a session; return it, and whether it existed with the same data.

        Raises:
            InvalidName: No valid name, or one of another platform.
            Unauthorised: The name is reserved.
            AgentAlreadyRegistered: The name is taken.
        """
        record, existed = self.register_now(address, ownership, caller)
        await self._flush_registration()
        return record, existed

    def register_now(self, address: str, ownership: str, caller: Caller) -> tuple[AgentRecord, bool]:
        """Do what `register` does without waiting until it is durable."""
        name = self.ams.claimable(address)
        self._refuse_when_draining()
        record = self.ams.find(name)
        if record is not None:
            if record.principal != caller.principal or record.ownership != ownership or record.session is not None:
                why = "a live session holds the name" if record.session is not None else "with other data"
                raise AgentAlreadyRegistered(name, "AMS", why)
            return record, True
        return self._register(name, caller.principal, ownership), False

    async def deregister(self, address: str, caller: Caller, *, why: str = "deregistered") -> None:
        """Free a name: its session ends, its mail is given up, its DF entry goes.

        Raises:
            AgentNotRegistered: Nobody has the name.
            Unauthorised: The caller is neither the agent nor may it govern others.
        """
        self.deregister_now(address, caller, why=why)
        await self._flush_registration()

    def deregister_now(self, address: str, caller: Caller, *, why: str = "deregistered") -> None:
        """Do what `deregister` does without waiting until it is durable."""
        record = self._governed(address, caller)
        session = record.session
        self._remove(record, why)
        if session is not None:
            session.terminate()

    def suspend(self, address: str, caller: Caller) -> AgentRecord:
        """Suspend an agent: mail waits and searches skip it; what it has in hand stays in hand.

        Raises:
            AgentNotRegistered: Nobody has the name.
            Unauthorised: The caller is neither the agent nor may it govern others.
            PreconditionFailed: Its state forbids it.
        """
        record = self._governed(address, caller)
        if self.ams.suspend(record):
            self._state_changed(record, caller)
        return record

    def resume(self, address: str, caller: Caller) -> AgentRecord:
        """Resume a suspended agent to the state that it was suspended in; errors as in `suspend`."""
        record = self._governed(address, caller)
        if self.ams.resume(record):
            self._state_changed(record, caller)
        return record

    def search_agents(self, template: AMSAgentDescription, constraints: SearchConstraints) -> list[AgentRecord]:
        """Return the agents that match a template, oldest registration first."""
        if template.name is not None:
            template = replace(template, name=self.ams.local_name(template.name))
        return self.ams.search(template, constraints)

    # ---- DF --------------------------------------------------------------------------------------------------------

    async def register_description(self, description: DFAgentDescription, caller: Caller) -> DFAgentDescription:
        """Register a description for the calling agent.

        Raises:
            AgentNotRegistered: The AMS does not know the agent.
            AgentAlreadyRegistered: It has an entry.
            Unauthorised: The caller is not the agent.
            MissingParameter: A service has no type.
        """
        entry = self.register_description_now(description, caller)
        await self._flush_registration()
        return entry

    def register_description_now(self, description: DFAgentDescription, caller: Caller) -> DFAgentDescription:
        """Do what `register_description` does without waiting until it is durable."""
        record = self._described(description.name, caller)
        now = self._clock.time()
        entry = self.df.register(replace(description, name=record.aid), now=now)
        self._store.put_description(entry, now)
        return entry

    def modify_description_now(self, description: DFAgentDescription, caller: Caller) -> DFAgentDescription:
        """Replace the description of the calling agent; errors as for registering, and AgentNotRegistered for none."""
        record = self._described(description.name, caller)
        now = self._clock.time()
        entry = self.df.modify(replace(description, name=record.aid), now=now)
        self._store.put_description(entry, now)
        return entry

    async def deregister_description(self, name: str | None, caller: Caller) -> None:
        """Remove the description of the calling agent.

        Raises:
            AgentNotRegistered: It has no entry, or the AMS does not know it.
            Unauthorised: The caller is not the agent.
        """
        self.deregister_description_now(name, caller)
        await self._flush_registration()

    def deregister_description_now(self, name: str | None, caller: Caller) -> None:
        """Do what `deregister_description` does without waiting until it is durable."""
        record = self._described(name, caller)
        self.df.deregister(record.aid)
        self._store.remove_description(record.aid)

    def search_descriptions(
        self, template: DFAgentDescription, constraints: SearchConstraints
    ) -> list[DFAgentDescription]:
        """Return the descriptions that match, oldest registration first; of agents that are there and not suspended."""
        if template.name is not None:
            template = replace(template, name=f"{self.ams.local_name(template.name)}@{self.name}")
        return self.df.search(template, constraints, now=self._clock.time(), live=self._is_matchable)

    # ---- callers ---------------------------------------------------------------------------------------------------

    def agent_of(self, token: str) -> AgentRecord | None:
        """Return the agent whose session has this token; None when it is not, or no longer, a session's."""
        record = self._tokens.get(_digest(token))
        return record if record is not None and record.session is not None else None

    def caller_for(self, aid: str) -> Caller:
        """Return the caller that a message of ``aid`` stands for."""
        record = self.router.sender_of(aid)
        # Without credentials everybody governs, which is why such a bus listens on loopback only.
        return Caller(
            agent=record, principal=record.principal if record is not None else "", operator=record is not None
        )

    def now(self) -> float:
        """Return the time of the platform's clock, in Unix seconds."""
        return self._clock.time()

    def _governed(self, address: str, caller: Caller) -> AgentRecord:
        record = self.ams.get(address)
        if not caller.may_act_for(record):
            raise Unauthorised(f"{caller.agent.aid if caller.agent else caller.principal} may not govern {record.name}")
        return record

    def _described(self, name: str | None, caller: Caller) -> AgentRecord:
        """Return the agent whose DF entry the caller may change: only its own (SC00023 §4.1.2)."""
        if caller.agent is None:
            raise Unauthorised("only an agent registers itself with the DF; open a session and show its token")
        if name is None:
            return caller.agent
        record = self.ams.get(name)
        if record is not caller.agent:
            raise Unauthorised(f"{caller.agent.aid} may not change the DF entry of {record.aid}")
        return record

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _new_mailbox(self, next_sequence: int = 1) -> Mailbox:
        return Mailbox(
            max_messages=self.limits.mailbox_messages, max_bytes=self.limits.mailbox_bytes, next_sequence=next_sequence
        )

    def _register(self, name: str, principal: str, ownership: str, *, ephemeral: bool = False) -> AgentRecord:
        record = AgentRecord(
            name, self.name, principal=principal, mailbox=self._new_mailbox(), registered_at=self._clock.time()
        )
        record.ownership = ownership
        record.ephemeral = ephemeral
        # An ephemeral name ends by itself also when its session never comes to be.
        record.detached_at = self._clock.monotonic()
        self.ams.add(record)
        self._store.put_agent(record.stored())
        log.info("agent registered", agent=record.aid)
        return record

    def _remove(self, record: AgentRecord, why: str) -> None:
        self._withdraw(record)
        self.ams.remove(record)
        self._tokens.pop(record.resume_digest, None)
        self.router.holding.discard(record)
        for letter in record.mailbox.drain():
            self.router.give_up(record, letter, f"{record.aid} is gone: {why}")
        self._store.remove_agent(record.name)
        log.info("agent removed", agent=record.aid, why=why)

    def _withdraw(self, record: AgentRecord) -> None:
        if self.df.withdraw(record.aid):
            self._store.remove_description(record.aid)

    def _state_changed(self, record: AgentRecord, caller: Caller) -> None:
        self._store.put_agent(record.stored())
        if record.session is not None:
            changed_by = "self" if caller.agent is record else (caller.agent.aid if caller.agent else "ams")
            record.session.state_changed(record.state, changed_by)
        log.info("state changed", agent=record.aid, state=str(record.state))

    def _is_matchable(self, aid: str) -> bool:
        record = self.ams.find(aid)
        return record is not None and record.matchable

    def _refuse_when_draining(self) -> None:
        if self.draining:
            raise BusDraining("the bus is shutting down")

    async def _flush_registration(self) -> None:
        """Wait until a registration is durable; a store that cannot write says so instead of holding the caller."""
        try:
            async with asyncio.timeout(self.limits.write_timeout):
                await self._store.flush()
        except TimeoutError:
            raise StoreUnavailable("the store does not write at present; nothing is lost, try again later") from None

    # ---- by the clock ----------------------------------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            try:
                commit = await self._store.next_commit()
            except StoreUnavailable as error:
                log.error("the store has failed", error=str(error))  # noqa: TRY400  # The store logged the traceback.
                self.router.store_failure = str(error)
                commit = Commit(through=2**62, error=str(error))
            try:
                self.router.commit(commit)
            except Exception:
                # One letter's trouble must not keep all later ones from their receipts.
                log.exception("a commit was not finished", through=commit.through)
            if self.router.store_failure:
                return

    async def _every(self, seconds: float, work: Callable[[], None]) -> None:
        """Do ``work`` again and again; one that fails is logged, and does not keep the next one from its turn."""
        while True:
            await asyncio.sleep(seconds)
            try:
                work()
            except Exception:
                log.exception("housekeeping failed", work=work.__name__)

    def release_lanes(self) -> None:
        """Let lanes go on whose time has come."""
        now = self._clock.monotonic()
        for record in list(self.router.holding):
            if record.mailbox.release_due(now) and record.session is not None:
                record.session.wake()
            if record.mailbox.next_due is None:
                self.router.holding.discard(record)

    def keep_house(self) -> None:
        """Do what is due: heartbeats, lost sessions, leases, expired mail, ephemeral names, old keys."""
        now = self._clock.monotonic()
        for session in list(self._sessions):
            session.keep_alive(now)
        wall = self._clock.time()
        for name in self.df.expire(wall):
            self._store.remove_description(name)
        self._expire_mail(self.ams, wall)
        for record in [one for one in self.ams if one.ephemeral and one.session is None]:
            if record.detached_at is not None and now - record.detached_at > self.limits.resume_grace:
                self._remove(record, "its ephemeral name ended")
        if wall >= self._next_prune:
            self._next_prune = wall + _PRUNE_INTERVAL
            self._store.prune_keys(self._dedupe.forget_old(wall), self.limits.dedupe_rows)

    def _expire_mail(self, records: Iterable[AgentRecord], wall: float) -> None:
        for record in records:
            mailbox = record.mailbox
            if not (mailbox.messages or mailbox.reserve_messages):
                continue
            for letter in mailbox.expire(wall, wall - self.limits.mailbox_ttl):
                self.router.give_up(record, letter, EXPIRED)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
