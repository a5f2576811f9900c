"""The agent platform of one node: joins AMS, DF, router and sessions, and keeps them in step with a store.

Owns: the life of the node, from reading the store to writing it all down at the end. One way in: `Platform.running`. Leaves
to others: what callers do (`bus.registrations`), opening and ending sessions (`bus.sessions`), what the clock brings
(`bus.housekeeping`), the wire (`server`), storage engines, routing and mail themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from gagent_grpc.acl.descriptions import PlatformDescription, PlatformService
from gagent_grpc.bus.agent_events import AgentEvents
from gagent_grpc.bus.ams import AgentManagementSystem
from gagent_grpc.bus.asking import Asking
from gagent_grpc.bus.callers import Caller, Callers
from gagent_grpc.bus.contexts import Contexts
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.hints import Hints
from gagent_grpc.bus.housekeeping import Housekeeping
from gagent_grpc.bus.lost import LostDebtors
from gagent_grpc.bus.management import ManagementAgents
from gagent_grpc.bus.offers import Offers
from gagent_grpc.bus.ports import Clock, Codec, Commit, Store
from gagent_grpc.bus.post import Post
from gagent_grpc.bus.publication import Gaps
from gagent_grpc.bus.redrive import Redrives
from gagent_grpc.bus.registrations import Registrations
from gagent_grpc.bus.rerouting import Rerouting
from gagent_grpc.bus.restore import restore
from gagent_grpc.bus.roles import Roles
from gagent_grpc.bus.router import Router
from gagent_grpc.bus.sessions import Hello, Opened, Sessions
from gagent_grpc.bus.subscriptions import Subscriptions
from gagent_grpc.bus.tasking import Tasking
from gagent_grpc.bus.topics import Topics
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import StoreUnavailable

__all__ = ["Caller", "Hello", "Opened", "Platform"]

_log = logging.getLogger(__name__)

_HELD_LANES_TICK = 0.1
"""Seconds between looks at lanes that wait after a nack."""


class Platform:
    """The platform of one node. Everything but waiting for a store or a sign of life is synchronous."""

    def __init__(self, name: str, store: Store, codec: Codec, clock: Clock, limits: BusLimits) -> None:
        self.name = name
        self.limits = limits
        self.addresses: list[str] = []
        """Where the platform is reached, `host:port`; whoever serves it adds to them."""
        self._store = store
        self._codec = codec
        self._clock = clock
        self.ams = AgentManagementSystem(name, max_agents=limits.max_agents)
        self.df = DirectoryFacilitator(max_entries=limits.max_df_entries, max_lease=limits.max_lease)
        self._dedupe = Dedupe(window=limits.dedupe_window, rows=limits.dedupe_rows)
        self.dead_letters = DeadLetters(
            store, most=limits.dead_letters, most_bytes=limits.dead_letter_bytes, ttl=limits.dead_letter_ttl
        )
        hints = Hints(self.ams)
        self.post = Post(self.ams, store, codec, clock, limits, self._dedupe, self.dead_letters)
        self.asking = Asking(self.ams, self.post, codec, clock, limits, self._dedupe, ManagementAgents(self))
        self.redrives = Redrives(self.ams, self.post, codec, clock, self.dead_letters, hints)
        self._topics = topics = Topics()
        gaps, roles = Gaps(), Roles(self.ams, self.df)
        self.router = Router(self.ams, self.post, self.asking, roles, topics, gaps, codec, clock, limits, hints)
        self._rerouting = rerouting = Rerouting(self.ams, self.post, roles, store, clock, grace=limits.resume_grace)
        self.tasks = Tasking(self.ams, self.post, roles, self._dedupe, store, codec, clock, limits)
        self.router.tasks = self.post.tasks = self.tasks
        rerouting.tasks = self.tasks.table.letters
        lost = LostDebtors(self.ams, self.post, clock, limits)
        self._callers = Callers(self.ams)
        self._events = AgentEvents(self.ams, clock, limits)
        offers = Offers(self.ams, self.df, clock, limits)
        per_agent = limits.df_subscriptions
        self.subscriptions = Subscriptions(self.ams, offers, self.asking.tell, store, per_agent=per_agent)
        self._registrations = Registrations(
            self.ams,
            self.df,
            self._callers,
            self._events,
            offers,
            self.subscriptions,
            self.post,
            lost,
            rerouting,
            topics,
            gaps,
            store,
            clock,
            limits,
        )
        self._registrations.tasks = self.tasks
        self.contexts = Contexts(self.ams, self.post.participation, self.tasks, store, clock, limits)
        self._registrations.contexts = self.contexts
        self._sessions = Sessions(
            self.ams,
            self.df,
            self._registrations,
            self._callers,
            self.router,
            self.post,
            topics,
            gaps,
            rerouting,
            store,
            clock,
            limits,
            flush=self.flush,
        )
        house = Housekeeping(
            self.ams,
            self._registrations,
            self._sessions,
            self.post,
            lost,
            rerouting,
            self._dedupe,
            self.dead_letters,
            self.tasks,
            self.contexts,
            store,
            clock,
            limits,
        )
        # What the platform offers is in the rooms that own it; whoever serves it finds it here.
        self.attach = self._sessions.attach
        self.bye = self._sessions.bye
        self.detach = self._sessions.detach
        self.subscribe = self._sessions.subscribe
        self.drain = self._sessions.drain
        self.register = self._registrations.register
        self.deregister = self._registrations.deregister
        self.suspend = self._registrations.suspend
        self.resume = self._registrations.resume
        self.modify_agent = self._registrations.modify_agent
        self.search_agents = self._registrations.search_agents
        self.watch_agents = self._registrations.watch_agents
        self.register_description = self._registrations.register_description
        self.modify_description = self._registrations.modify_description
        self.renew_description = self._registrations.renew_description
        self.deregister_description = self._registrations.deregister_description
        self.search_descriptions = self._registrations.search_descriptions
        self.watch_descriptions = self._registrations.watch_descriptions
        self.subscribe_to_descriptions = self._registrations.subscribe
        self.agent_of = self._callers.agent_of
        self.release_lanes = house.release_lanes
        self.keep_house = house.keep_house

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    @property
    def draining(self) -> bool:
        """The bus is shutting down, and takes nothing new."""
        return self._registrations.draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self._registrations.draining = value

    def caller_for(self, aid: str) -> Caller:
        """Return the caller that a message of ``aid`` stands for."""
        return self._callers.standing_for(self.post.sender_of(aid))

    def get_description(self) -> PlatformDescription:
        """Describe the platform and what it offers itself (FIPA SC00023 §6.1.5)."""
        where = tuple(self.addresses)
        return PlatformDescription(
            self.name,
            (
                PlatformService(f"ams@{self.name}", "fipa.agent-management.ams", where),
                PlatformService(f"df@{self.name}", "fipa.agent-management.df", where),
                PlatformService("gagent.v1.BusService", "fipa.mts", where),
            ),
        )

    def now(self) -> float:
        """Return the time of the platform's clock, in Unix seconds."""
        return self._clock.time()

    # ---- life of the node ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Platform]:
        """Load what the store holds, keep the clock's business going, and write everything down at the end.

        Raises:
            ConfigurationError: The store belongs to another program or is open elsewhere.
            StoreUnavailable: The store cannot be read.
        """
        stored = await self._store.open()
        restore(
            stored,
            ams=self.ams,
            df=self.df,
            post=self.post,
            dedupe=self._dedupe,
            topics=self._topics,
            dead_letters=self.dead_letters,
            store=self._store,
            codec=self._codec,
            clock=self._clock,
            new_mailbox=self._registrations.new_mailbox,
            max_deliveries=self.limits.max_deliveries,
        )
        self._callers.restore()
        self.subscriptions.restore(stored.subscriptions)
        self._rerouting.restored()
        self._events.restore()
        self.tasks.restore(stored.tasks)
        self.contexts.restore(stored.contexts, stored.context_revision)
        del stored
        limits = self.limits
        shortest = min(limits.heartbeat_interval, limits.resume_grace, limits.task_lease, limits.task_cancel_grace, 4.0)
        tick = shortest / 4
        work = (self._commits(), self._every(_HELD_LANES_TICK, self.release_lanes), self._every(tick, self.keep_house))
        tasks = [asyncio.create_task(one) for one in work]
        clean = False
        try:
            yield self
            clean = True
        finally:
            tasks += self._sessions.end_all()
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    _log.error("a task of the platform had died", exc_info=result)
            await self._store.close(clean=clean)

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

    async def _commits(self) -> None:
        while True:
            try:
                commit = await self._store.next_commit()
            except StoreUnavailable as error:
                _log.error("the store has failed: %s", error)  # The store logged the traceback.
                self.post.store_failure = str(error)
            except Exception as error:
                _log.exception("the store has failed")
                self.post.store_failure = f"internal error ({type(error).__name__})"
            if self.post.store_failure:
                self.post.commit(Commit(through=2**62, error=self.post.store_failure, final=True))
                return
            self.post.commit(commit)

    async def _every(self, seconds: float, work: Callable[[], None]) -> None:
        """Do ``work`` again and again; one that fails is logged, and does not keep the next one from its turn."""
        while True:
            await asyncio.sleep(seconds)
            try:
                work()
            except Exception:
                _log.exception("housekeeping failed: %s", work.__name__)
