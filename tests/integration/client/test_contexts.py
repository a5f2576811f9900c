"""Shared contexts through the SDK: who has a part, compare-and-set, watching, trees of tasks, and a bus that is killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import WAIT, Inbox, until

from gagent_grpc import (
    Agent,
    BusLimits,
    ClientLimits,
    ContextChange,
    ContextChangeKind,
    ContextEnded,
    EntryNotFound,
    EventsGone,
    InvalidArgument,
    MissingParameter,
    Operator,
    RevisionConflict,
    SharedContext,
    SqliteStore,
    TaskContext,
    TaskNotFound,
    Unauthorised,
)
from gagent_grpc.errors import ResourceExhausted
from gagent_grpc.testing import running_bus
from tests.chaos.bus_process import BusProcess

PUT, REMOVED, SYNCED = ContextChangeKind
QUICK = ClientLimits(initial_backoff=0.05, max_backoff=0.2)


class Watcher:
    """Reads what a watch tells, in a task of its own."""

    def __init__(self, context: SharedContext, prefix: str = "", after_revision: int = 0) -> None:
        self.changes: list[ContextChange] = []
        self._came = asyncio.Event()
        self._stream = context.watch(prefix, after_revision=after_revision)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with contextlib.aclosing(self._stream) as stream:
            async for change in stream:
                self.changes.append(change)
                self._came.set()

    async def holds(self, condition: Callable[[list[ContextChange]], object]) -> list[ContextChange]:
        async with asyncio.timeout(WAIT):
            while not condition(self.changes):
                if self.task.done():
                    self.task.result()
                self._came.clear()
                await self._came.wait()
        return self.changes

    @property
    def told(self) -> list[tuple[ContextChangeKind, str, Any]]:
        return [(one.kind, one.key, one.value) for one in self.changes]

    async def aclose(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


@pytest.fixture
async def watchers() -> Any:
    made: list[Watcher] = []

    def start(*args: Any, **named: Any) -> Watcher:
        made.append(Watcher(*args, **named))
        return made[-1]

    yield start
    for one in made:
        await one.aclose()


async def pair(agents: Any, conversation_id: str = "c") -> tuple[Agent, Agent]:
    """Return two agents that have a conversation."""
    alice, bob = await agents("alice"), await agents("bob", Inbox())
    await alice.send("bob", "inform", "hello", conversation_id=conversation_id)
    return alice, bob


# ---- entries


async def test_two_of_a_conversation_share_entries_with_revision_author_and_the_very_value(agents: Any) -> None:
    alice, bob = await pair(agents)
    mine, its = alice.context("c"), bob.context("c")
    value = {"limit": 3, "ratio": 3.0, "ticket": 9007199254740993, "neg": -0.5, "flags": [True, None, ""], "é": {}}
    put = await mine.put("plan/ä", value)
    found = await its.entry("plan/ä")
    assert found == put
    assert (found.key, found.revision, found.author) == ("plan/ä", 1, "alice@local")
    assert found.put_at.tzinfo is not None
    assert repr(await its.get("plan/ä")) == repr(value)
    assert (await its.put("plan/ä", None)).revision == 2
    assert await mine.get("plan/ä", "default") is None
    assert await mine.entry("nothing") is None
    assert await mine.get("nothing", default=7) == 7
    with pytest.raises(EntryNotFound, match="nothing") as missing:
        await mine.get("nothing")
    assert missing.value.key == "nothing"
    assert await mine.delete("plan/ä")
    assert not await mine.delete("plan/ä")
    assert await its.list() == []


async def test_expected_revision_is_compared_and_a_conflict_tells_the_present_one(agents: Any) -> None:
    alice, bob = await pair(agents)
    mine, its = alice.context("c"), bob.context("c")
    with pytest.raises(RevisionConflict) as conflict:
        await mine.put("k", 1, expected_revision=4)
    assert conflict.value.revision == 0
    first = await mine.put("k", 1, expected_revision=0)
    with pytest.raises(RevisionConflict, match="none was expected") as conflict:
        await its.put("k", 2, expected_revision=0)
    assert (conflict.value.revision, conflict.value.key) == (first.revision, "k")
    second = await its.put("k", 2, expected_revision=first.revision)
    for stale in (
        mine.put("k", 3, expected_revision=first.revision),
        mine.delete("k", expected_revision=first.revision),
    ):
        with pytest.raises(RevisionConflict) as conflict:
            await stale
        assert conflict.value.revision == second.revision
    assert await mine.get("k") == 2
    assert await mine.delete("k", expected_revision=second.revision)
    assert not await mine.delete("k", expected_revision=0)
    with pytest.raises(RevisionConflict):
        await mine.delete("k", expected_revision=second.revision)
    # A revision is never used again, so what was read before the removal is stale for ever.
    assert (await mine.put("k", 4, expected_revision=0)).revision > second.revision + 1


async def test_twenty_writers_at_once_lose_no_increment(agents: Any) -> None:
    alice = await agents("alice")
    writers = [await agents(f"w{number}", Inbox()) for number in range(10)]
    await alice.send([f"w{number}" for number in range(10)], "inform", "go", conversation_id="c")

    async def count(agent: Agent) -> None:
        for _ in range(5):
            await agent.context("c").update("count", lambda value: value + 1, default=0)

    async def count_slowly(agent: Agent) -> None:
        async def increased(value: int) -> int:
            await asyncio.sleep(0)
            return value + 1

        for _ in range(5):
            await agent.context("c").update("count", increased, default=0)

    async with asyncio.timeout(WAIT):
        await asyncio.gather(*(work(agent) for agent in writers for work in (count, count_slowly)))
    found = await alice.context("c").entry("count")
    assert found is not None
    assert (found.value, found.revision) == (100, 100)


async def test_list_gives_all_pages_by_key(agents: Any, buses: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, context_bytes=8_000_000))
    alice = await agents("alice", bus=bus.address)
    await agents("bob", Inbox(), bus=bus.address)
    await alice.send("bob", "inform", "hello", conversation_id="c")
    context = alice.context("c")
    keys = [f"n/{number:04}" for number in range(300)]
    # So large that not all of them fit one message.
    for start in range(0, len(keys), 50):
        await asyncio.gather(*(context.put(key, "x" * 14_000) for key in keys[::-1][start : start + 50]))
    await context.put("other", 1)
    assert [one.key for one in await context.list("n/")] == keys
    assert [one.key for one in await context.list()] == [*keys, "other"]
    assert await context.list("zzz") == []


# ---- who has a part


async def test_a_stranger_is_refused_whatever_it_asks_and_whether_there_is_anything_or_not(agents: Any) -> None:
    alice, _ = await pair(agents)
    await alice.context("c").put("k", 1)
    stranger = await agents("stranger")
    for conversation in ("c", "no such"):
        context = stranger.context(conversation)
        for call in (
            context.get("k", None),
            context.put("k", 2),
            context.delete("k"),
            context.list(),
            anext(context.watch()),
        ):
            with pytest.raises(Unauthorised, match="has no part in the conversation"):
                await call
    assert await alice.context("c").get("k") == 1


async def test_strangers_who_guess_an_id_have_a_context_of_their_own(agents: Any) -> None:
    alice, bob = await pair(agents)
    await alice.context("c").put("secret", "ours")
    guesser, friend = await agents("guesser"), await agents("friend", Inbox())
    await guesser.send(["bob", "friend"], "inform", "me, too", conversation_id="c")
    await bob.send("guesser", "not-understood", "who are you?", conversation_id="c")
    own = guesser.context("c")
    assert await own.list() == []
    await own.put("secret", "theirs")
    assert await friend.context("c").get("secret") == "theirs"
    assert await alice.context("c").get("secret") == await bob.context("c").get("secret") == "ours"


async def test_whom_a_participant_addresses_becomes_one_and_a_topic_or_everybody_does_not(agents: Any) -> None:
    alice, bob = await pair(agents)
    carol, provider = await agents("carol", Inbox()), await agents("provider", Inbox(), services=["sum"])
    listener = await agents("listener", Inbox(), topics=["news"])
    context = alice.context("c")
    await context.put("k", 1)
    await bob.send("carol", "inform", "look here", conversation_id="c")
    await carol.send("role:sum", "inform", "and you", conversation_id="c")
    assert [await one.context("c").get("k") for one in (carol, provider)] == [1, 1]
    await alice.send("topic:news", "inform", "to all", conversation_id="c")
    await alice.send("*", "inform", "to all", conversation_id="c")
    with pytest.raises(Unauthorised):
        await listener.context("c").get("k")


async def test_the_name_of_a_participant_that_was_freed_gives_no_part_to_its_next_bearer(agents: Any) -> None:
    alice, bob = await pair(agents)
    await alice.context("c").put("k", 1)
    assert await bob.context("c").get("k") == 1
    await bob.aclose(deregister=True)
    other = await agents("bob", Inbox())
    with pytest.raises(Unauthorised):
        await other.context("c").get("k")
    await alice.send("bob", "inform", "hello", conversation_id="c")
    assert await other.context("c").get("k") == 1


async def test_bad_input_is_refused_in_words(agents: Any) -> None:
    alice, _ = await pair(agents)
    context = alice.context("c")
    with pytest.raises(MissingParameter, match="key"):
        await context.put("", 1)
    with pytest.raises(InvalidArgument, match="257 bytes; expected 1 to 256"):
        await context.put("x" * 257, 1)
    with pytest.raises(InvalidArgument, match="prefix has 300 bytes"):
        await context.list("x" * 300)
    with pytest.raises(InvalidArgument, match="value"):
        await context.put("k", float("nan"))
    with pytest.raises(InvalidArgument, match="cannot be made"):
        await context.put("k", 1, expected_revision=-1)
    with pytest.raises(InvalidArgument, match="after_revision 9: the last one of this shared context is 0"):
        await anext(context.watch(after_revision=9))
    for wrong in ({}, {"conversation_id": ""}, {"conversation_id": "c", "task": "t"}, {"task": ""}):
        with pytest.raises(InvalidArgument):
            alice.context(**wrong)
    with pytest.raises(TaskNotFound):
        await alice.context(task="none").list()


async def test_limits_refuse_in_words_and_leave_everything_as_it_was(agents: Any, buses: Any) -> None:
    limits = BusLimits(
        drain_grace=1.0,
        context_entries=2,
        context_value_bytes=100,
        context_bytes=150,
        max_contexts=2,
        contexts_per_agent=1,
        context_watches=4,
    )
    bus = await buses(limits=limits)
    alice, bob = await agents("alice", bus=bus.address), await agents("bob", Inbox(), bus=bus.address)
    for conversation in ("c", "d", "e"):
        await alice.send("bob", "inform", "hello", conversation_id=conversation)
    context = alice.context("c")
    with pytest.raises(ResourceExhausted, match="102 bytes, the limit is 100"):
        await context.put("k", "x" * 100)
    await context.put("a", "x" * 90)
    with pytest.raises(ResourceExhausted, match="context_bytes"):
        await context.put("b", "x" * 90)
    await context.put("b", 1)
    with pytest.raises(ResourceExhausted, match="2 entries, the limit is 2"):
        await context.put("c", 1)
    await context.put("b", 2)
    with pytest.raises(ResourceExhausted, match="contexts_per_agent"):
        await alice.context("d").put("k", 1)
    await bob.context("d").put("k", 1)
    with pytest.raises(ResourceExhausted, match="max_contexts"):
        await bob.context("e").put("k", 1)
    assert [(one.key, one.value) for one in await context.list()] == [("a", "x" * 90), ("b", 2)]
    assert await bob.context("e").list() == []
    watching = context.watch()
    await anext(watching)
    # One of four places for one caller.
    with pytest.raises(ResourceExhausted, match="streams that watch shared contexts"):
        await anext(alice.context("e").watch())
    await watching.aclose()


# ---- watching


async def test_a_watch_tells_what_is_there_and_then_each_change_once_in_order(agents: Any, watchers: Any) -> None:
    alice, bob = await pair(agents)
    context = alice.context("c")
    await context.put("a", 1)
    await context.put("b", 2)
    await context.put("a", 3)
    await context.put("gone", 4)
    await context.delete("gone")
    watcher = watchers(bob.context("c"))
    await watcher.holds(lambda changes: len(changes) == 3)
    assert watcher.told == [(PUT, "b", 2), (PUT, "a", 3), (SYNCED, "", None)]
    for number in range(100):
        await context.put("b", number)
    await context.delete("a")
    await watcher.holds(lambda changes: len(changes) == 104)
    assert watcher.told[3:] == [*((PUT, "b", number) for number in range(100)), (REMOVED, "a", None)]
    revisions = [one.revision for one in watcher.changes if one.kind is not SYNCED]
    assert revisions == sorted(set(revisions))
    assert watcher.changes[-1].author == "alice@local"
    # From a revision on, the last change of each key.
    later = watchers(alice.context("c"), after_revision=watcher.changes[-3].revision)
    await later.holds(lambda changes: changes and changes[-1].kind is SYNCED)
    assert later.told == [(PUT, "b", 99), (REMOVED, "a", None), (SYNCED, "", None)]


async def test_a_watch_of_a_prefix_waits_for_a_context_that_is_still_empty(agents: Any, watchers: Any) -> None:
    alice, bob = await pair(agents)
    watcher = watchers(bob.context("c"), "n/")
    await watcher.holds(lambda changes: changes)
    await alice.context("c").put("other", 0)
    await alice.context("c").put("n/1", 1)
    await watcher.holds(lambda changes: len(changes) == 2)
    assert watcher.told == [(SYNCED, "", None), (PUT, "n/1", 1)]


async def test_a_watch_goes_on_where_it_was_when_its_connection_is_lost(agents: Any, proxy: Any, watchers: Any) -> None:
    alice, _ = await pair(agents)
    bob = await agents("carol", Inbox(), bus=proxy.address)
    await alice.send("carol", "inform", "hello", conversation_id="c")
    context = alice.context("c")
    watcher = watchers(bob.context("c"))
    await watcher.holds(lambda changes: changes)
    for number in range(30):
        await context.put(f"k{number}", number)
        if number % 10 == 5:
            proxy.cut()
    await context.delete("k0")
    await watcher.holds(lambda changes: len(changes) >= 31 and changes[-1].kind is REMOVED)
    # What came and went while the connection was lost is told once, by its end.
    told = [one for one in watcher.told if one[0] is PUT]
    assert told[0] == (PUT, "k0", 0)
    assert told == [(PUT, f"k{number}", number) for number in range(30)]


async def test_what_is_forgotten_cannot_be_gone_on_with(agents: Any, buses: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, context_removals=5))
    alice = await agents("alice", bus=bus.address)
    await alice.send("alice", "inform", "note", conversation_id="c")
    context = alice.context("c")
    first = await context.put("k", 1)
    for number in range(6):
        await context.put(f"{number}", 1)
        await context.delete(f"{number}")
    with pytest.raises(EventsGone, match="this shared context are not kept any more"):
        await anext(context.watch(after_revision=first.revision))
    last = (await context.put("k", 2)).revision
    assert (await anext(context.watch(after_revision=last))).kind is SYNCED


# ---- how long it lives


async def test_a_context_ends_with_the_name_of_who_began_it_and_a_later_one_takes_no_old_revision(
    agents: Any, watchers: Any
) -> None:
    alice, bob = await pair(agents)
    for number in range(5):
        await alice.context("c").put("k", number)
    await bob.context("c").put("mine", 1)
    watcher = watchers(bob.context("c"))
    changes = await watcher.holds(lambda changes: changes and changes[-1].kind is SYNCED)
    last = changes[-1].revision
    await alice.aclose(deregister=True)
    async with asyncio.timeout(WAIT):
        with pytest.raises(ContextEnded, match="alice@local, which began it, was freed"):
            await watcher.task
    assert await bob.context("c").list() == []
    for number in range(9):
        assert (await bob.context("c").put("k", number)).revision > last
    with pytest.raises(EventsGone):
        await anext(bob.context("c").watch(after_revision=last))


async def test_a_context_ends_some_time_after_the_last_message_or_change(
    agents: Any, buses: Any, watchers: Any
) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, context_retention=0.5, heartbeat_interval=0.4))
    alice = await agents("alice", bus=bus.address)
    await alice.send("alice", "inform", "note", conversation_id="c")
    await alice.context("c").put("k", 1)
    watcher = watchers(alice.context("c"))
    async with asyncio.timeout(WAIT):
        with pytest.raises(ContextEnded, match=r"nothing was said or changed in it for 0\.5 s"):
            await watcher.task
    assert await alice.context("c").list() == []
    assert len(bus.platform.contexts) == 0


# ---- tasks


async def test_a_tree_of_tasks_shares_one_context_with_all_who_work_on_it(agents: Any) -> None:
    boss, stranger = await agents("boss"), await agents("stranger")
    worker, helper = await agents("worker"), await agents("helper")
    release = asyncio.Event()

    @worker.on_delegate()
    async def work(task: TaskContext) -> Any:
        await task.shared.put("worker", task.task_id)
        child = await task.delegate("helper", "a part", task_id="child")
        await child.result()
        return await task.shared.get("helper")

    @helper.on_delegate()
    async def help_out(task: TaskContext) -> str:
        seen = await task.shared.get("worker")
        await task.shared.update("helper", lambda value: [*value, seen], default=[])
        await release.wait()
        return "done"

    task = await boss.delegate("worker", "the whole", task_id="whole")
    context = boss.context(task=task)
    await until(lambda: context.get("helper", None))
    # By any task of it, by whoever has a part in any of them.
    assert await worker.context(task=await worker.task("child").get()).get("helper") == ["whole"]
    assert await boss.context(task="whole").get("helper") == ["whole"]
    assert {one.author for one in await context.list()} == {"worker@local", "helper@local"}
    for foreign in (await task.get(), await worker.task("child").get()):
        with pytest.raises(Unauthorised, match="no part in the tree"):
            await stranger.context(task=foreign).list()
    # Whoever gets a task as a message has nothing but its conversation.
    assert await helper.context("child").get("worker") == "whole"
    release.set()
    assert await task.result(WAIT) == ["whole"]
    assert await context.get("worker") == "whole"


async def test_the_context_of_a_tree_ends_when_its_first_task_is_forgotten(
    agents: Any, buses: Any, watchers: Any
) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, task_retention=0.3, heartbeat_interval=0.4))
    boss, worker = await agents("boss", bus=bus.address), await agents("worker", bus=bus.address)

    @worker.on_delegate()
    def work(task: Any) -> int:
        # In a thread, where the handle is used through the loop.
        task.run(task.shared.put("k", 1))
        return 1

    task = await boss.delegate("worker", "x")
    watcher = watchers(boss.context(task=task))
    await task.result(WAIT)
    async with asyncio.timeout(WAIT):
        with pytest.raises(ContextEnded, match="is forgotten"):
            await watcher.task
    assert (PUT, "k", 1) in watcher.told
    with pytest.raises(TaskNotFound):
        await boss.context(task=task).list()
    assert len(bus.platform.contexts) == 0


# ---- a bus that stops, is killed, and starts again


async def test_participants_entries_and_revisions_survive_a_restart_and_what_ended_does_not(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    limits = BusLimits(drain_grace=1.0)

    async def agent(stack: contextlib.AsyncExitStack, bus: Any, name: str, **settings: Any) -> Agent:
        made = Agent(name, bus=bus.address, limits=QUICK, **settings)
        made.on()(Inbox())
        return await stack.enter_async_context(made)

    async with running_bus(SqliteStore(path), limits=limits) as bus, contextlib.AsyncExitStack() as stack:
        alice, bob = await agent(stack, bus, "alice"), await agent(stack, bus, "bob")
        await alice.send("bob", "inform", "x", conversation_id="c")
        await bob.send("alice", "inform", "x", conversation_id="d")
        await alice.context("c").put("a", 1)
        await bob.context("c").put("b", 2.0)
        await alice.context("c").put("gone", 3)
        await alice.context("c").delete("gone")
        ended = (await bob.context("d").put("k", 1)).revision
        async with Agent("late", bus=bus.address, limits=QUICK):
            pass
        await alice.send("late", "inform", "for later", conversation_id="c")
        async with Operator(bus.address) as operator:
            await bob.aclose()
            await operator.ams.terminate("bob")
    async with running_bus(SqliteStore(path), limits=limits) as bus, contextlib.AsyncExitStack() as stack:
        alice = await agent(stack, bus, "alice")
        context = alice.context("c")
        assert [(one.key, one.value, one.revision) for one in await context.list()] == [("a", 1, 1), ("b", 2.0, 2)]
        stream = context.watch(after_revision=2)
        removal = await anext(stream)
        assert (removal.kind, removal.key, removal.revision) == (REMOVED, "gone", 4)
        await stream.aclose()
        assert (await context.put("a", 5)).revision == 5
        with pytest.raises(Unauthorised):
            await (await agent(stack, bus, "bob")).context("c").list()
        # The context that bob began is gone, and with it who had a part in that conversation.
        with pytest.raises(Unauthorised):
            await alice.context("d").list()
        await alice.send("bob", "inform", "x", conversation_id="d")
        assert (await alice.context("d").put("k", 1)).revision > ended
        # It was addressed before the restart.
        late = await agent(stack, bus, "late")
        assert await late.context("c").get("a") == 5


async def test_mail_from_before_a_restart_gives_its_handler_a_part_in_the_conversation(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    async with running_bus(SqliteStore(path)) as bus:
        async with Agent("bob", bus=bus.address):
            pass
        async with Agent("alice", bus=bus.address) as alice:
            await alice.send("bob", "inform", "hello", conversation_id="c")
    put: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    async with running_bus(SqliteStore(path)) as bus:
        bob = Agent("bob", bus=bus.address)

        @bob.on()
        async def note(message: Any) -> None:
            put.set_result(await bob.context(message.conversation_id).put("heard", message.content))

        async with bob, Agent("alice", bus=bus.address) as alice, asyncio.timeout(WAIT):
            await put
            assert await alice.context("c").get("heard") == "hello"


async def test_kill_9_loses_nothing_that_was_answered_and_a_watch_goes_on_without_gap_or_double(
    tmp_path: Path, watchers: Any
) -> None:
    async with BusProcess(tmp_path / "bus") as bus, contextlib.AsyncExitStack() as stack:
        alice = await stack.enter_async_context(Agent("alice", bus=bus.address, limits=QUICK))
        bob = Agent("bob", bus=bus.address, limits=QUICK)
        bob.on()(Inbox())
        await stack.enter_async_context(bob)
        await alice.send("bob", "inform", "hello", conversation_id="c")
        answered: dict[str, int] = {}
        await alice.context("c").put("begun", 0)
        watcher = watchers(bob.context("c"))
        await watcher.holds(lambda changes: len(changes) == 2)

        async def write(lane: int) -> None:
            for number in range(25):
                key = f"{lane}/{number}"
                while key not in answered:
                    # What was not answered may have been written: then the second one is its repetition.
                    with contextlib.suppress(Exception):
                        entry = await alice.context("c").put(key, number)
                        answered[key] = entry.revision

        writing = [asyncio.create_task(write(lane)) for lane in range(8)]
        await until(lambda: len(answered) >= 50)
        bus.kill()
        await bus.wait()
        # Whoever saw it saw it after it was durable.
        seen = {one.key for one in watcher.changes if one.kind is PUT}
        await bus.start()
        there = {one.key for one in await _patiently(alice.context("c").list)}
        assert seen <= there
        await asyncio.gather(*writing)
        entries = await alice.context("c").list()
        assert len(entries) == 201
        present = {one.key: one.revision for one in entries}
        assert all(present[key] >= revision for key, revision in answered.items())
        await watcher.holds(lambda changes: {one.key for one in changes} >= present.keys())
        revisions = [one.revision for one in watcher.changes if one.kind is PUT]
        assert revisions == sorted(set(revisions))
        last = {one.key: one.revision for one in watcher.changes if one.kind is PUT}
        assert last == present


async def _patiently(call: Callable[[], Any]) -> Any:
    """Call again while the agent finds its bus."""
    found: list[Any] = []

    async def answered() -> bool:
        with contextlib.suppress(Exception):
            found.append(await call())
        return bool(found)

    await until(answered)
    return found[0]
