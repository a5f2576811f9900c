"""All sessions of one node: how they open, who holds a name, and how they end.

Owns: the hello and its consequences, taking over, farewells, the drain. Leaves to others: one session (`bus.session`),
names and DF entries (`bus.registrations`), the stream (`server`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, replace

from gagent_grpc.acl.descriptions import DFAgentDescription
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.callers import Callers, digest_of
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.ports import Clock, Store
from gagent_grpc.bus.post import Post
from gagent_grpc.bus.publication import Gaps
from gagent_grpc.bus.registrations import Registrations, check_ownership
from gagent_grpc.bus.rerouting import Rerouting
from gagent_grpc.bus.router import Router
from gagent_grpc.bus.session import Notice, Session, Subscribed
from gagent_grpc.bus.topics import TOPIC, Topics, check_subscriptions
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusDraining,
    InvalidArgument,
    StoreUnavailable,
    TooManySessions,
    Unauthorised,
)

_log = logging.getLogger(__name__)

_FLUSH_PAUSE = 0.25
"""Seconds before another look whether a store that could not write can do so again."""


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
    topics: tuple[str, ...] = ()
    """Subscriptions, which are checked."""
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
    topics: tuple[str, ...]
    """Subscriptions in force."""
    held: frozenset[int]
    """Sequences that the client still has in its handlers, and that its settles count for."""


class Sessions:
    """The open sessions of one node. Only opening and draining wait."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        df: DirectoryFacilitator,
        registrations: Registrations,
        callers: Callers,
        router: Router,
        post: Post,
        topics: Topics,
        gaps: Gaps,
        rerouting: Rerouting,
        store: Store,
        clock: Clock,
        limits: BusLimits,
        *,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        """Make a node without sessions; ``flush`` waits until what was written is durable, or raises."""
        self._ams = ams
        self._df = df
        self._registrations = registrations
        self._callers = callers
        self._router = router
        self._post = post
        self._topics = topics
        self._gaps = gaps
        self._rerouting = rerouting
        self._store = store
        self._clock = clock
        self._limits = limits
        self._flush = flush
        self._sessions: set[Session] = set()
        self._opening = 0
        """Hellos that passed the bound on sessions and wait for their name to be written."""
        self._starts: set[asyncio.Task[None]] = set()
        """One for each session whose first delivery waits for the store."""
        self._all_ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    # ---- opening ---------------------------------------------------------------------------------------------------

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
        name = self._ams.claimable(hello.agent)
        check_ownership(hello.ownership)
        hello = self._with_own_description(hello, name)
        self._registrations.refuse_when_draining()
        digest = digest_of(hello.resume_token) if hello.resume_token else b""
        record = self._ams.find(name)
        while record is not None and record.session is not None:
            holder = record.session
            if digest and secrets.compare_digest(digest, record.resume_digest):
                break
            if await holder.probe(self._limits.probe_timeout):
                raise AgentAlreadyRegistered(name, "AMS", "a live session of another client holds the name")
            # While this one waited, another client may have taken the place of the silent one.
            record = self._ams.find(name)
            if record is not None and record.session is holder:
                break
        self._registrations.refuse_when_draining()
        sessions = len(self._sessions) + self._opening
        if (record is None or record.session is None) and sessions >= self._limits.max_sessions:
            raise TooManySessions(f"{sessions} sessions are open, the limit of this node (max_sessions)")
        if record is None:
            record = self._registrations.add(name, principal, hello.ownership, ephemeral=hello.ephemeral)
            try:
                await self._written(record)
                return self._open(record, hello, digest, attached=False)
            except BaseException:
                # The store does not write, the DF has become full meanwhile, or the client has gone: a hello that is refused
                # leaves no name behind. Another client may have opened it.
                if record.session is None and self._ams.find(record.aid) is record:
                    self._registrations.remove(record, "its first session was refused")
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
            await self._flush()
        finally:
            self._opening -= 1
        if record.session is not None or self._ams.find(record.aid) is not record:
            raise AgentAlreadyRegistered(record.name, "AMS", "another client registered it in the same instant")
        self._registrations.refuse_when_draining()

    def _with_own_description(self, hello: Hello, name: str) -> Hello:
        """Return the hello with its description completed and checked, before the name is registered for it."""
        described = hello.description
        if described is None:
            return hello
        if described.name is not None and self._ams.local_name(described.name) != name:
            raise Unauthorised(f"{name} may not change the DF entry of {described.name}")
        described = replace(described, name=f"{name}@{self._ams.platform}")
        self._df.check(described)
        return replace(hello, description=described)

    def _open(self, record: AgentRecord, hello: Hello, digest: bytes, *, attached: bool) -> Opened:
        resumed = bool(digest) and secrets.compare_digest(digest, record.resume_digest)
        description = self._df.get(record.aid)
        if hello.description is not None:
            # Before anything else changes, since it may be refused.
            description = self._registrations.install_description(record, hello.description)
        if record.session is not None:
            # Before `resume_in_flight`: it looks through the queues, to which this returns what the older one had in
            # hand.
            older = record.session
            older.supersede()
            # Who shows the token is the same client, and goes on with the newer one. Else the older one was silent.
            older.polite = older.polite or resumed
            self._release(older, kept=hello.held if resumed else frozenset())
        token = self._callers.new_token(record)
        record.generation += 1
        # Never the other way round: the name, and the mail that waits under it, were meant to stay.
        record.ephemeral = record.ephemeral and hello.ephemeral
        record.ownership = hello.ownership or record.ownership
        record.detached_at = None
        session = Session(
            record,
            record.generation,
            self._router,
            self._post,
            self._clock,
            self._limits,
            window_messages=hello.window_messages or self._limits.window_messages,
            window_bytes=hello.window_bytes or self._limits.window_bytes,
            held_back=self._store.durable,
        )
        record.session = session
        self._sessions.add(session)
        self._ams.invoke(record)
        self._listen(record, hello.topics)
        self._gaps.tell(record)
        held: frozenset[int] = frozenset()
        if resumed:
            held = frozenset(record.mailbox.resume_in_flight(set(hello.held)))
            record.mailbox.pardon()
        self._store.put_agent(record.stored())
        self._registrations.session_changed(record, "session opened")
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
        return Opened(session, token, attached, description, hello.topics, held)

    async def _start_delivering(self, session: Session) -> None:
        """Let a session deliver once it is durable that it is there: what it is given comes flagged after a crash.

        A store that cannot write, as on a full disk, gets `write_timeout` for it: receivers have to drain their mail, also
        to make room. Killed in that state, the bus delivers again without the flag.
        """
        try:
            async with asyncio.timeout(self._limits.write_timeout):
                while not (session.ended or self._post.store_failure):
                    try:
                        await self._store.flush()
                        break
                    except StoreUnavailable:
                        # What failed is tried again by the store itself.
                        await asyncio.sleep(_FLUSH_PAUSE)
        except TimeoutError:
            _log.warning("%s: delivers while the store does not write that it has a session", session.aid)
        session.start_delivering()

    def subscribe(self, session: Session, number: int, *, add: Sequence[str], remove: Sequence[str]) -> None:
        """Change the topics of an agent; the answer goes to its session under ``number``."""
        record = session.record
        former = self._topics.of(record.name)
        if record.session is not session:
            return
        try:
            gone = {topic.removeprefix(TOPIC) for topic in remove}
            topics = check_subscriptions([*(one for one in former if one not in gone), *add])
            self._listen(record, topics)
        except InvalidArgument as error:
            session.subscribed(Subscribed(number, former, str(error)))
            return
        session.subscribed(Subscribed(number, topics))

    def _listen(self, record: AgentRecord, topics: tuple[str, ...]) -> None:
        if self._topics.replace(record.name, topics):
            self._store.put_topics(record.name, topics)

    # ---- ending ----------------------------------------------------------------------------------------------------

    def bye(self, session: Session, *, deregister: bool) -> None:
        """The client says a polite end: withdraw its DF entry, and free its name too when it asks for that."""
        record = session.record
        session.polite = True
        if record.session is not session:
            return
        if deregister:
            self._registrations.remove(record, "deregistered")
        else:
            self._registrations.withdraw(record, "agent left")
            self._listen(record, ())
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
        if self._ams.find(record.aid) is record:
            self._ams.lose(record)
            record.detached_at = self._clock.monotonic()
            self._store.put_agent(record.stored())
            self._registrations.session_changed(record, "agent left" if session.polite else "agent lost")
            # A bus that drains sends everybody away, and they come back to the next one.
            self._rerouting.left(record, politely=session.polite and not self._registrations.draining)
            _log.info("session ended: %s, generation %d, %s", record.aid, session.generation, record.state)

    def _release(self, session: Session, *, kept: Set[int] = frozenset()) -> None:
        """Take a session off its agent: what it had in hand is queued again, flagged; the next one goes on with ``kept``."""
        record = session.record
        record.session = None
        returned = record.mailbox.return_in_flight(lost=not session.polite, kept=kept)
        # Also what nobody failed in, since it has been delivered, too.
        attempts = [(letter.sequence, letter.counted) for letter in returned if not letter.envelope.transient]
        if attempts:
            self._store.mark_attempts(record.name, attempts)

    async def drain(self) -> None:
        """Take nothing new, tell every session, and wait until they ended or the grace is over. Idempotent.

        A session ends at once when nothing is unsettled; else it has the grace for what its agent has in hand.
        """
        self._registrations.draining = True
        notice = Notice("DRAINING", "the bus is shutting down; reconnect and resume", reconnect_after=0.5)
        for session in list(self._sessions):
            session.drain(notice)
        try:
            async with asyncio.timeout(self._limits.drain_grace):
                while self._sessions:
                    self._all_ended.clear()
                    await self._all_ended.wait()
        except TimeoutError:
            for session in list(self._sessions):
                session.close_when_answered()
        self._registrations.stop_telling()

    def end_all(self) -> list[asyncio.Task[None]]:
        """End what is left when the bus stops; return the tasks that are to be cancelled and awaited."""
        self._registrations.draining = True
        for session in list(self._sessions):
            session.end(BusDraining("the bus is stopping"))
            # It is the bus that goes, and no client that is lost.
            session.polite = True
            self.detach(session)
        self._registrations.stop_telling()
        return list(self._starts)

    def keep_alive(self, now: float) -> None:
        """Send the heartbeats that are due at ``now``, in monotonic seconds, and end the sessions that are silent."""
        for session in list(self._sessions):
            session.keep_alive(now)
