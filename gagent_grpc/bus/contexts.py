"""All shared contexts of one node: found by conversation or task, kept in step with a store, and ended in time.

Owns: who may touch which, the bounds of all together, what is written when one changes, and how long each one lives. Leaves to
others: the entries (`bus.context_space`), who talked with whom (`bus.participation`), tasks (`bus.task_table`).

A context comes to be with its first entry. That of a conversation belongs to a group of agents and ends some time after the last
message or change, or with the name of its owner, who put the first entry. That of a tree of tasks is of whoever delegated or was
given a task of it, and ends when its first task is forgotten.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Sequence

from gagent_grpc.acp.tasks import TaskKey
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.context_records import Header, entry_of, header_of, header_text, stored_entry
from gagent_grpc.bus.context_space import Space
from gagent_grpc.bus.context_values import (
    ENTRY_COST,
    ContextAddress,
    Entry,
    check_key,
    check_prefix,
    check_value,
    size_of,
)
from gagent_grpc.bus.context_watches import ContextWatch
from gagent_grpc.bus.participation import Group, Participation
from gagent_grpc.bus.places import Places
from gagent_grpc.bus.ports import Clock, Store, StoredContext
from gagent_grpc.bus.tasking import Tasking
from gagent_grpc.bus.tasks import Task
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import (
    BusDraining,
    ContextEnded,
    EntryNotFound,
    MissingParameter,
    ResourceExhausted,
    RevisionConflict,
    Unauthorised,
    shown,
)

_log = logging.getLogger(__name__)

_AT_SHARE = 24
"""Part of the retention within which is written when something was last said in a conversation."""
_SWEEP_INTERVAL = 60.0
"""Seconds between forgettings of who spoke in idle conversations."""

Home = Group | Task
"""Whose a context is: a group of a conversation, or the first task of a tree."""


class _Shared:
    """One context beside its entries."""

    __slots__ = ("home", "number", "owner", "size", "space", "written_at")

    def __init__(self, home: Home, space: Space) -> None:
        self.home = home
        self.space = space
        self.number = 0
        """Rising in the order of beginning; 0 for one that nothing was put into yet."""
        self.owner = ""
        """Who put the first entry, `name@platform`; "" before there was one, and once that name was freed."""
        self.size = 0
        """Bytes that are counted for it; 0 before it has begun."""
        self.written_at = 0.0
        """When something was last said or changed, as the store knows it."""


class Contexts:
    """The shared contexts of one node. Synchronous; what is done is durable after `Platform.flush`."""

    def __init__(
        self,
        ams: AgentManagementSystem,
        participation: Participation,
        tasks: Tasking,
        store: Store,
        clock: Clock,
        limits: BusLimits,
    ) -> None:
        self._ams = ams
        self._participation = participation
        self._tasks = tasks
        self._store = store
        self._clock = clock
        self._limits = limits
        self._of_groups: dict[Group, _Shared] = {}
        """Of conversations; also those that somebody watches and nothing was put into yet."""
        self._of_roots: dict[int, _Shared] = {}
        """The same of trees, by the number of the first task."""
        self._by_number: dict[int, _Shared] = {}
        """All that have begun."""
        self._by_member: dict[str, dict[_Shared, None]] = {}
        """Those of conversations, by each member; and those of trees, by their owner."""
        self._owned: dict[str, int] = {}
        """How many each agent began; one that began none is not in it."""
        self._next_number = 1
        self._used = 0
        """Revisions up to this one may have been used by contexts that have ended."""
        self._due: list[tuple[float, int]] = []
        """When which context of a conversation is to be looked at, in Unix seconds."""
        self._next_sweep = 0.0
        self._places = Places(limits.context_watches, "streams that watch shared contexts", "context_watches")
        self._watches: set[ContextWatch] = set()
        self._closed = False
        self.bytes = 0
        """What all of them take, nearly."""
        participation.joined = self._joined
        tasks.table.forgotten = self._task_forgotten

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def watching(self) -> int:
        """Streams that watch at present."""
        return len(self._watches)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def get(self, caller: Caller, address: ContextAddress, key: str) -> Entry:
        """Return an entry.

        Raises:
            EntryNotFound: There is none.
            Unauthorised: The caller has no part in the conversation or the tree.
            TaskNotFound: There is no such task.
            ContextEnded: The first task of the tree is forgotten.
            MissingParameter: Neither a conversation nor a task is named, or no key.
            InvalidArgument: The key or a name cannot be one.
        """
        check_key(key)
        shared = self._find(self._home(caller, address)[1])
        entry = shared.space.get(key) if shared is not None else None
        if entry is None:
            raise EntryNotFound(key)
        return entry

    def list(self, caller: Caller, address: ContextAddress, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Return the entries whose keys begin with ``prefix`` and come after ``after``, by key; errors as `get`."""
        check_prefix(prefix)
        shared = self._find(self._home(caller, address)[1])
        return shared.space.following(prefix, after) if shared is not None else iter(())

    def watch(
        self, caller: Caller, address: ContextAddress, prefix: str, after: int, names: Sequence[str] = ()
    ) -> ContextWatch:
        """Return what a stream is told of a context, which need not have entries yet.

        Args:
            caller: Who watches.
            address: What is watched.
            prefix: What the keys begin with; "" for all.
            after: Revision up to which everything is known; 0 for nothing.
            names: Names under which the stream is counted, as `Places.take` takes them.

        Raises:
            EventsGone: Removals after it are forgotten, or it is of an earlier context.
            InvalidArgument: There was never such a revision.
            ResourceExhausted: Too many watch.
            BusDraining: The bus is shutting down.
            Unauthorised, TaskNotFound, ContextEnded, MissingParameter: As `get`.
        """
        if self._closed:
            raise BusDraining("the bus is shutting down")
        check_prefix(prefix)
        agent, home = self._home(caller, address)
        shared = self._find(home)
        space = shared.space if shared is not None else Space(self._limits, used=self._used)
        self._places.take(names)
        try:
            watch = ContextWatch(space, agent.aid, prefix, after, leave=lambda one: self._leave(one, home, names))
        except BaseException:
            self._places.leave(names)
            raise
        if shared is None:
            self._add(_Shared(home, space))
        space.watches.add(watch)
        self._watches.add(watch)
        return watch

    def _leave(self, watch: ContextWatch, home: Home, names: Sequence[str]) -> None:
        if watch not in self._watches:
            return
        self._watches.discard(watch)
        watch.space.left(watch)
        self._places.leave(names)
        shared = self._find(home)
        if shared is not None and shared.space is watch.space and not (shared.number or watch.space.watches):
            self._drop(shared)

    # ---- changing --------------------------------------------------------------------------------------------------

    def put(self, caller: Caller, address: ContextAddress, key: str, value: str, expected: int | None = None) -> Entry:
        """Write an entry, and return it.

        Args:
            caller: Who puts it.
            address: Where.
            key: Its key.
            value: JSON text.
            expected: Revision that the entry has to have; 0 for no entry, None for whatever there is.

        Raises:
            RevisionConflict: It is another one.
            ResourceExhausted: The value, the context, the contexts of one agent, or all together are at a limit.
            InvalidArgument: The value is no JSON, or the key cannot be one.
            Unauthorised, TaskNotFound, ContextEnded, MissingParameter: As `get`.
        """
        check_key(key)
        check_value(value, self._limits.context_value_bytes)
        agent, home = self._home(caller, address)
        shared = self._find(home) or _Shared(home, Space(self._limits, used=self._used))
        self._check_room(shared, agent.aid, size_of(key) + size_of(value))
        now = self._clock.time()
        entry = shared.space.put(key, value, agent.aid, now, expected)
        with self._store.together():
            if not shared.number:
                self._begin(shared, agent.aid, now)
            self._store.put_context_entry(shared.number, stored_entry(entry))
        self._changed(shared, now)
        return entry

    def delete(self, caller: Caller, address: ContextAddress, key: str, expected: int | None = None) -> Entry | None:
        """Remove an entry; return what is remembered of it, None where there was none. Arguments and errors as `put`."""
        check_key(key)
        agent, home = self._home(caller, address)
        shared = self._find(home)
        if shared is None:
            if expected:
                raise RevisionConflict(key, expected, 0)
            return None
        now = self._clock.time()
        removal = shared.space.remove(key, agent.aid, now, expected)
        if removal is None:
            return None
        with self._store.together():
            self._store.put_context_entry(shared.number, stored_entry(removal))
            if gone := shared.space.trim():
                self._store.drop_context_entries(shared.number, gone)
                self._write(shared)
        self._changed(shared, now)
        return removal

    def _changed(self, shared: _Shared, now: float) -> None:
        size = shared.space.size
        self.bytes += size - shared.size
        shared.size = size
        if isinstance(shared.home, Group):
            shared.home.at = now

    def _check_room(self, shared: _Shared, agent: str, size: int) -> None:
        limits = self._limits
        if not shared.number:
            if len(self._by_number) >= limits.max_contexts:
                raise ResourceExhausted(
                    f"{len(self._by_number):,} shared contexts are kept, the limit of this bus (max_contexts)"
                )
            own = self._owned.get(agent, 0)
            if own >= limits.contexts_per_agent:
                raise ResourceExhausted(
                    f"{own:,} shared contexts that {agent} began are kept, the limit for one agent (contexts_per_agent)"
                )
            size += shared.space.size
        if self.bytes + size + ENTRY_COST > limits.total_context_bytes:
            raise ResourceExhausted(
                f"all shared contexts together take {self.bytes:,} bytes, the limit is {limits.total_context_bytes:,} "
                "(total_context_bytes)"
            )

    # ---- whose -----------------------------------------------------------------------------------------------------

    def _home(self, caller: Caller, address: ContextAddress) -> tuple[AgentRecord, Home]:
        """Return who calls, and whose the context is, once it is known that the caller has a part in it."""
        agent = caller.agent
        if agent is None:
            raise Unauthorised("only an agent has a part in a shared context; open a session and show its token")
        if address.conversation_id:
            return agent, self._of_conversation(agent, address.conversation_id)
        if not (address.task_id or address.delegator):
            raise MissingParameter("context-space", "space")
        table = self._tasks.table
        task = table.get(self._tasks.delegation.key(caller, address.delegator, address.task_id))
        root = table.root(task)
        if _has_part(agent, task) or (root is not None and any(_has_part(agent, one) for one in table.tree(root))):
            if root is None:
                raise ContextEnded(f"the first task of the tree of {shown(task.key.task_id)} is forgotten")
            return agent, root
        raise Unauthorised(
            f"{agent.aid} has no part in the tree of the task {shown(task.key.task_id)} of {task.key.delegator}"
        )

    def _of_conversation(self, agent: AgentRecord, conversation_id: str) -> Home:
        group = self._participation.group_of(conversation_id, agent.aid)
        # A task that came as a message is a conversation to whoever knows messages only. Nobody else can delegate in the
        # caller's name; a task that is given to it later is nothing to a conversation that it has a part in already.
        table = self._tasks.table
        own = table.find(TaskKey(agent.aid, conversation_id))
        if own is not None and not own.orphaned and (root := table.root(own)) is not None:
            return root
        for task in table.of_executor(agent.aid):
            given = task.given_at(agent.aid, since=agent.registered_at) if task.key.task_id == conversation_id else None
            if given is None or (group is not None and group.members[agent.aid] < given):
                continue
            root = table.root(task)
            if root is not None:
                return root
        if group is not None:
            return group
        raise Unauthorised(
            f"{agent.aid} has no part in the conversation {shown(conversation_id)}: none of its participants has sent "
            f"{agent.aid} a message of it, nor did {agent.aid} begin one"
        )

    def _find(self, home: Home) -> _Shared | None:
        return self._of_groups.get(home) if isinstance(home, Group) else self._of_roots.get(home.number)

    # ---- coming and going ------------------------------------------------------------------------------------------

    def _add(self, shared: _Shared) -> None:
        """Know a context, which may not have begun yet."""
        home = shared.home
        if isinstance(home, Group):
            self._of_groups[home] = shared
            self._participation.keep(home)
        else:
            self._of_roots[home.number] = shared

    def _begin(self, shared: _Shared, owner: str, now: float) -> None:
        """A context begins with its first entry."""
        self._add(shared)
        shared.number = self._next_number
        self._next_number += 1
        shared.owner = owner
        if isinstance(shared.home, Group):
            shared.home.at = now
        self._index(shared)
        self._write(shared)

    def _index(self, shared: _Shared) -> None:
        self._by_number[shared.number] = shared
        if shared.owner:
            self._owned[shared.owner] = self._owned.get(shared.owner, 0) + 1
        home = shared.home
        if isinstance(home, Group):
            heapq.heappush(self._due, (self._next_look(home, self._clock.time()), shared.number))
        for aid in home.members if isinstance(home, Group) else (shared.owner,):
            self._by_member.setdefault(aid, {})[shared] = None

    def _drop(self, shared: _Shared) -> None:
        """Know nothing of a context any more; the store and those who watch are the caller's business."""
        home = shared.home
        if isinstance(home, Group):
            self._of_groups.pop(home, None)
            self._participation.release(home)
        else:
            self._of_roots.pop(home.number, None)
        if not shared.number:
            return
        del self._by_number[shared.number]
        self._disown(shared)
        for aid in home.members if isinstance(home, Group) else ():
            self._forget_member(aid, shared)
        self.bytes -= shared.size

    def _disown(self, shared: _Shared) -> None:
        owner, shared.owner = shared.owner, ""
        if not owner:
            return
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]
        if not isinstance(shared.home, Group):
            self._forget_member(owner, shared)

    def _forget_member(self, aid: str, shared: _Shared) -> None:
        known = self._by_member.get(aid)
        if known is not None:
            known.pop(shared, None)
            if not known:
                del self._by_member[aid]

    def _end(self, shared: _Shared, why: str) -> None:
        """A context is over."""
        if shared.number:
            self._store.remove_context(shared.number, shared.space.revision)
            _log.debug("shared context %d is over: %s", shared.number, why)
        self._used = max(self._used, shared.space.revision)
        self._drop(shared)
        shared.space.end(ContextEnded(f"the shared context is over: {why}"))

    def _joined(self, group: Group) -> None:
        """A group has a new member."""
        shared = self._of_groups.get(group)
        if shared is not None and shared.number:
            self._by_member.setdefault(next(reversed(group.members)), {})[shared] = None
            self._write(shared)

    def freed(self, record: AgentRecord) -> None:
        """A name was freed: the contexts of conversations that its agent began end, and it has no part in any other one."""
        aid = record.aid
        self._participation.freed(record)
        for shared in list(self._by_member.get(aid, ())):
            home = shared.home
            if not isinstance(home, Group):
                self._disown(shared)
                self._write(shared)
            elif shared.owner == aid:
                self._end(shared, f"the name of {aid}, which began it, was freed")
            else:
                self._participation.leave(home, aid)
                self._forget_member(aid, shared)
                self._write(shared)
        for watch in self._watches:
            if watch.aid == aid:
                watch.end(Unauthorised(f"the name of {aid} was freed"))

    def _task_forgotten(self, task: Task) -> None:
        shared = self._of_roots.get(task.number)
        if shared is not None:
            self._end(shared, f"the task {shown(task.key.task_id)} of {task.key.delegator} is forgotten")

    # ---- the store -------------------------------------------------------------------------------------------------

    def _write(self, shared: _Shared) -> None:
        """Write whose a context is."""
        home = shared.home
        if isinstance(home, Group):
            shared.written_at = home.at
            members, joined = tuple(home.members), tuple(home.members.values())
            header = Header(home.conversation_id, 0, members, shared.owner, home.at, shared.space.forgotten, joined)
        else:
            header = Header("", home.number, (), shared.owner, 0.0, shared.space.forgotten)
        self._store.put_context(shared.number, header_text(header))

    def restore(self, stored: Iterable[StoredContext], used: int) -> None:
        """Take over what a store held, once its agents and tasks are there. What cannot be read stays in the store.

        Args:
            stored: The contexts.
            used: Revisions up to this one were used by contexts that have ended.
        """
        self._used = used
        for one in stored:
            self._next_number = max(self._next_number, one.number + 1)
            try:
                header = header_of(one.body)
            except ValueError as error:
                _log.error("shared context %d is left in the store: %s", one.number, error)
                self._used = max([self._used, *(entry.revision for entry in one.entries)])
                continue
            self._restore(one, header)

    def _restore(self, stored: StoredContext, header: Header) -> None:
        space = Space(self._limits)
        space.restore((entry_of(entry) for entry in stored.entries), header.forgotten)
        home: Home | None
        if header.conversation_id:
            # An older version did not write when they came; what it knew was there before any task of that id.
            joined = header.joined or (0.0,) * len(header.members)
            members = {
                aid: at for aid, at in zip(header.members, joined, strict=True) if self._ams.find(aid) is not None
            }
            if header.owner not in members:
                # The bus stopped while the name was being freed.
                self._store.remove_context(stored.number, space.revision)
                return
            # When something was last said is known to within a part of the retention; nothing may end too soon.
            said = header.at + self._limits.context_retention / _AT_SHARE
            at = max([min(said, self._clock.time()), *(entry.at for entry in stored.entries)])
            home = self._participation.restore(header.conversation_id, members, at)
        else:
            home = self._tasks.table.numbered(header.root)
            if home is None:
                self._store.remove_context(stored.number, space.revision)
                return
        shared = _Shared(home, space)
        shared.number, shared.owner, shared.written_at = stored.number, header.owner, header.at
        if not header.conversation_id and self._ams.find(shared.owner) is None:
            shared.owner = ""
        self._add(shared)
        self._index(shared)
        shared.size = space.size
        self.bytes += shared.size

    # ---- the clock -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """End contexts of conversations in which nothing was said or changed for long, and forget who spoke in idle ones."""
        now = self._clock.time()
        while self._due and self._due[0][0] <= now:
            _, number = heapq.heappop(self._due)
            shared = self._by_number.get(number)
            if shared is None or not isinstance(shared.home, Group):
                continue
            group = shared.home
            if group.at + self._limits.context_retention <= now:
                self._end(shared, f"nothing was said or changed in it for {self._limits.context_retention:g} s")
                continue
            if group.at > shared.written_at:
                self._write(shared)
            heapq.heappush(self._due, (self._next_look(group, now), number))
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_INTERVAL
            self._participation.look(now)

    def _next_look(self, group: Group, now: float) -> float:
        retention = self._limits.context_retention
        return min(group.at + retention, now + retention / _AT_SHARE)

    def close(self) -> None:
        """End every watch: the bus shuts down. Idempotent."""
        self._closed = True
        for watch in self._watches:
            watch.end(BusDraining("the bus is shutting down; watch again after the last revision that was read"))


def _has_part(agent: AgentRecord, task: Task) -> bool:
    """Whether an agent delegated a task or was given it, and not a former bearer of its name."""
    if agent.aid == task.key.delegator and not task.orphaned:
        return True
    return task.was_executor(agent.aid, since=agent.registered_at)
