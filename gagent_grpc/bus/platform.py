"""The agent platform of one node: joins AMS, DF, router and sessions, and keeps them in step with a store.

Owns: opening and ending sessions, who holds a name, what is written down, everything that happens by the clock. One way
in: `Platform.running`. Leaves to others: the wire (`server`), storage engines, routing and mail themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace

from gagent_grpc.acl.aid import RESERVED_NAMES
from gagent_grpc.acl.descriptions import AMSAgentDescription, DFAgentDescription, SearchConstraints
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.lost import LostDebtors
from gagent_grpc.bus.mailbox import Mailbox
from gagent_grpc.bus.management import ManagementAgents
from gagent_grpc.bus.ports import Clock, Codec, Commit, Store
from gagent_grpc.bus.restore import restore
from gagent_grpc.bus.router import Router
from gagent_grpc.bus.session import EXPIRED, Notice, Session
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusDraining,
    BusError,
    InvalidArgument,
    StoreUnavailable,
    TooManySessions,
    Unauthorised,
    shown,
)

_log = logging.getLogger(__name__)

_HELD_LANES_TICK = 0.1
"""Seconds between looks at lanes that wait after a nack."""
_FLUSH_PAUSE = 0.25
"""Seconds before another look whether a store that could not write can do so again."""
MAX_OWNERSHIP_CHARS = 1_000
"""Most characters of an agent's ownership: every search that finds the agent repeats them."""
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
        self.dead_letters = DeadLetters(
            store, most=limits.dead_letters, most_bytes=limits.dead_letter_bytes, ttl=limits.dead_letter_ttl
        )
        self.router = Router(self.ams, store, codec, clock, limits, self._dedupe, self._agents, self.dead_letters)
        self._lost = LostDebtors(self.ams, self.router, clock, limits)
        self._sessions: set[Session] = set()
        self._opening = 0
        """Hellos that passed the bound on sessions and wait for their name to be written."""
        self._tokens: dict[bytes, AgentRecord] = {}
        self._starts: set[asyncio.Task[None]] = set()
        """One for each session whose first delivery waits for the store."""
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
        restore(
            await self._store.open(),
            ams=self.ams,
            df=self.df,
            router=self.router,
            dedupe=self._dedupe,
            dead_letters=self.dead_letters,
            store=self._store,
            codec=self._codec,
            clock=self._clock,
            new_mailbox=self._new_mailbox,
            max_deliveries=self.limits.max_deliveries,
        )
        self._tokens = {record.resume_digest: record for record in self.ams if record.resume_digest}
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
            tasks += self._starts
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    _log.error("a task of the platform had died", exc_info=result)
            await self._store.close(clean=clean)

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
            InvalidArgument: The ownership is too long, or the store cannot take what is said.
            Unauthorised: The name is reserved, somebody else owns it, or the description is that of another agent.
            MissingParameter: A service of the description has no type.
            UnrecognisedParameterValue: The description has a bad lease or is over a limit.
            AgentAlreadyRegistered: A live session holds the name.
            TooManySessions: The node is full.
            ResourceExhausted: The AMS or the DF is full.
            BusDraining: The bus is shutting down.
            StoreUnavailable: The name could not be written down.
        """
        name = self.ams.claimable(hello.agent)
        _check_ownership(hello.ownership)
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
        sessions = len(self._sessions) + self._opening
        if (record is None or record.session is None) and sessions >= self.limits.max_sessions:
            raise TooManySessions(f"{sessions} sessions are open, the limit of this node (max_sessions)")
        if record is None:
            record = self._register(name, principal, hello.ownership, ephemeral=hello.ephemeral)
            await self._written(record)
            try:
                return self._open(record, hello, digest, attached=False)
            except BusError:
                # The DF has become full meanwhile: a hello that is refused leaves no name behind.
                self._remove(record, "its first session was refused")
                raise
        if record.principal != principal:
            raise Unauthorised(f"{name}: the name belongs to another principal")
        return self._open(record, hello, digest, attached=True)

    async def _written(self, record: AgentRecord) -> None:
        """Wait until a new agent is durable, so that no session promises a name that a crash would forget.

        A second client may open the record meanwhile, over a registration that is not yet durable. That is safe: the
        store writes in order, so nothing of that session becomes durable before its name.
        """
        # In one stretch with the test of the bound, which other hellos would pass during the wait.
        self._opening += 1
        try:
            await self.flush()
        finally:
            self._opening -= 1
        if record.session is not None or self.ams.find(record.aid) is not record:
            raise AgentAlreadyRegistered(record.name, "AMS", "another client registered it in the same instant")
        self._refuse_when_draining()

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
            self._store.put_description(self.df.stored(record.aid))
        if record.session is not None:
            # Before `resume_in_flight`: it looks through the queues, to which this returns what the older one had in
            # hand.
            older = record.session
            older.supersede()
            # Its client is there, and goes on with the newer one.
            older.polite = True
            self._release(older)
        token = secrets.token_urlsafe(24)
        self._tokens.pop(record.resume_digest, None)
        record.resume_digest = _digest(token)
        self._tokens[record.resume_digest] = record
        record.generation += 1
        # Never the other way round: the name, and the mail that waits under it, were meant to stay.
        record.ephemeral = record.ephemeral and hello.ephemeral
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
            held_back=self._store.durable,
        )
        record.session = session
        self._sessions.add(session)
        self.ams.invoke(record)
        held = frozenset(record.mailbox.resume_in_flight(set(hello.held)) if resumed else ())
        self._store.put_agent(record.stored())
        if self._store.durable:
            start = asyncio.create_task(self._start_delivering(session))
            self._starts.add(start)
            start.add_done_callback(self._starts.discard)
        _log.info(
            "session opened: %s, generation %d, %s%s",
            record.aid,
            record.generation,
            "resumed" if resumed else record.state,
            f", {hello.software!r}" if hello.software else "",
        )
        return Opened(session, token, attached, description, held)

    async def _start_delivering(self, session: Session) -> None:
        """Let a session deliver once it is durable that it is there: what it is given comes flagged after a crash.

        A store that cannot write, as on a full disk, gets `write_timeout` for it: receivers have to drain their mail, also
        to make room. Killed in that state, the bus delivers again without the flag.
        """
        try:
            async with asyncio.timeout(self.limits.write_timeout):
                while not (session.ended or self.router.store_failure):
                    try:
                        await self._store.flush()
                        break
                    except StoreUnavailable:
                        # What failed is tried again by the store itself.
                        await asyncio.sleep(_FLUSH_PAUSE)
        except TimeoutError:
            _log.warning("%s: delivers while the store does not write that it has a session", session.aid)
        session.start_delivering()

    def bye(self, session: Session, *, deregister: bool) -> None:
        """The client says a polite end: withdraw its DF entry, and free its name too when it asks for that."""
        record = session.record
        session.polite = True
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
            _log.info("session ended: %s, generation %d, %s", record.aid, session.generation, record.state)

    def _release(self, session: Session) -> None:
        """Take a session off its agent: what it had in hand is queued again, flagged."""
        record = session.record
        record.session = None
        returned = record.mailbox.return_in_flight(lost=not session.polite)
        # What was returned by the nack of another letter has been delivered, too, though that attempt does not count.
        kept = [(letter.sequence, max(1, letter.attempt)) for letter in returned if not letter.envelope.transient]
        if kept:
            self._store.mark_attempts(record.name, kept)

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._sessions)

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
        name = self.ams.claimable(address)
        _check_ownership(ownership)
        self._refuse_when_draining()
        record = self.ams.find(name)
        if record is not None:
            if record.principal != caller.principal or record.ownership != ownership or record.session is not None:
                why = "a live session holds the name" if record.session is not None else "with other data"
                raise AgentAlreadyRegistered(name, "AMS", why)
            return record, True
        return self._register(name, caller.principal, ownership), False

    def deregister(self, address: str, caller: Caller, *, why: str = "deregistered") -> None:
        """Free a name: its session ends, its mail is given up, its DF entry goes.

        Raises:
            AgentNotRegistered: Nobody has the name.
            Unauthorised: The caller is neither the agent nor may it govern others.
        """
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

    def register_description(self, description: DFAgentDescription, caller: Caller) -> DFAgentDescription:
        """Register a description for the calling agent.

        Raises:
            AgentNotRegistered: The AMS does not know the agent.
            AgentAlreadyRegistered: It has an entry.
            Unauthorised: The caller is not the agent.
            MissingParameter: A service has no type.
        """
        record = self._described(description.name, caller)
        entry = self.df.register(replace(description, name=record.aid), now=self._clock.time())
        self._store.put_description(self.df.stored(record.aid))
        return entry

    def modify_description(self, description: DFAgentDescription, caller: Caller) -> DFAgentDescription:
        """Replace the description of the calling agent; errors as for registering, and AgentNotRegistered for none."""
        record = self._described(description.name, caller)
        entry = self.df.modify(replace(description, name=record.aid), now=self._clock.time())
        self._store.put_description(self.df.stored(record.aid))
        return entry

    def deregister_description(self, name: str | None, caller: Caller) -> None:
        """Remove the description of the calling agent.

        Raises:
            AgentNotRegistered: It has no entry, or the AMS does not know it.
            Unauthorised: The caller is not the agent.
        """
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

    async def flush(self) -> None:
        """Wait until everything done so far is durable; what was done without it stays done.

        Raises:
            StoreUnavailable: The store has failed, or does not write for `write_timeout` seconds.
        """
        try:
            async with asyncio.timeout(self.limits.write_timeout):
                await self._store.flush()
        except TimeoutError:
            raise StoreUnavailable("the store does not write at present; nothing is lost, try again later") from None

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
        name = self.ams.local_name(address)
        if name in RESERVED_NAMES:
            raise Unauthorised(f"{name}: this name is reserved for the platform's own agent, which nobody governs")
        record = self.ams.get(name)
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
        try:
            self._store.put_agent(record.stored())
        except BusError:
            self.ams.remove(record)
            raise
        _log.info("agent registered: %s", record.aid)
        return record

    def _remove(self, record: AgentRecord, why: str) -> None:
        self._withdraw(record)
        self.ams.remove(record)
        self._tokens.pop(record.resume_digest, None)
        self.router.holding.discard(record)
        # Before the rest of its mail, which is given up without further ado.
        self._lost.removed(record, why)
        for letter in record.mailbox.drain():
            self.router.give_up(
                record, letter, f"{record.aid} is gone: {why}", reason=DeadReason.DEREGISTERED, error=why
            )
        self._store.remove_agent(record.name)
        _log.info("agent removed: %s, %s", record.aid, why)

    def _withdraw(self, record: AgentRecord) -> None:
        if self.df.withdraw(record.aid):
            self._store.remove_description(record.aid)

    def _state_changed(self, record: AgentRecord, caller: Caller) -> None:
        self._store.put_agent(record.stored())
        if record.session is not None:
            changed_by = "self" if caller.agent is record else (caller.agent.aid if caller.agent else "ams")
            record.session.state_changed(record.state, changed_by)
        _log.info("state changed: %s is %s", record.aid, record.state)

    def _is_matchable(self, aid: str) -> bool:
        record = self.ams.find(aid)
        return record is not None and record.matchable

    def _refuse_when_draining(self) -> None:
        if self.draining:
            raise BusDraining("the bus is shutting down")

    # ---- by the clock ----------------------------------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            try:
                commit = await self._store.next_commit()
            except StoreUnavailable as error:
                _log.error("the store has failed: %s", error)  # The store logged the traceback.
                self.router.store_failure = str(error)
            except Exception as error:
                _log.exception("the store has failed")
                self.router.store_failure = f"internal error ({type(error).__name__})"
            if self.router.store_failure:
                self.router.commit(Commit(through=2**62, error=self.router.store_failure, final=True))
                return
            self.router.commit(commit)

    async def _every(self, seconds: float, work: Callable[[], None]) -> None:
        """Do ``work`` again and again; one that fails is logged, and does not keep the next one from its turn."""
        while True:
            await asyncio.sleep(seconds)
            try:
                work()
            except Exception:
                _log.exception("housekeeping failed: %s", work.__name__)

    def release_lanes(self) -> None:
        """Let lanes go on whose time has come, and what `keep_house` left for a moment with less to do."""
        if self._lost.is_behind:
            self._lost.look()
        now = self._clock.monotonic()
        for record in list(self.router.holding):
            if record.mailbox.release_due(now) and record.session is not None:
                record.session.wake()
            if record.mailbox.next_due is None:
                self.router.holding.discard(record)

    def keep_house(self) -> None:
        """Do what is due: heartbeats, lost sessions, leases, expired mail, ephemeral names, old keys and dead letters."""
        now = self._clock.monotonic()
        for session in list(self._sessions):
            session.keep_alive(now)
        wall = self._clock.time()
        for name in self.df.expire(wall):
            self._store.remove_description(name)
        self._expire_mail(self.ams, wall)
        self._lost.look()
        for record in [one for one in self.ams if one.ephemeral and one.session is None]:
            if record.detached_at is not None and now - record.detached_at > self.limits.resume_grace:
                self._remove(record, "its ephemeral name ended")
        if wall >= self._next_prune:
            self._next_prune = wall + _PRUNE_INTERVAL
            self._store.prune_keys(self._dedupe.forget_old(wall), self.limits.dedupe_rows)
            self.dead_letters.expire(wall)

    def _expire_mail(self, records: Iterable[AgentRecord], wall: float) -> None:
        for record in records:
            mailbox = record.mailbox
            if not (mailbox.messages or mailbox.reserve_messages):
                continue
            for letter in mailbox.expire(wall, wall - self.limits.mailbox_ttl):
                self.router.give_up(record, letter, EXPIRED, reason=DeadReason.EXPIRED, error="")


def _check_ownership(ownership: str) -> None:
    if len(ownership) > MAX_OWNERSHIP_CHARS:
        raise InvalidArgument(
            f"ownership has {len(ownership):,} characters; expected at most {MAX_OWNERSHIP_CHARS:,}", field="ownership"
        )
    try:
        ownership.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"ownership {shown(ownership)} is not valid Unicode", field="ownership") from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
