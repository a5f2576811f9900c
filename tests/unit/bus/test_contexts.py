"""All shared contexts of a node without a wire: what is written of them, how long they live, and what a start makes of a store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes import ManualStore
from raw import acl

from gagent_grpc.acp.tasks import OnExecutorLost, TaskKey
from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.context_values import ContextAddress, Entry, Told
from gagent_grpc.bus.context_watches import ContextWatch
from gagent_grpc.bus.delegation import Wish
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.ports import StoredContext, StoredEntry, StoredPlatform
from gagent_grpc.bus.session import Session
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import (
    BusDraining,
    ContextEnded,
    EntryNotFound,
    MissingParameter,
    ResourceExhausted,
    Unauthorised,
)
from gagent_grpc.testing import FakeClock

C = ContextAddress("c")
OPERATOR = Caller(agent=None, principal="local", operator=True)


class Bench:
    """A platform whose clock stands still, on a store that says what it was told; agents without a wire."""

    def __init__(self, store: ManualStore | None = None, clock: FakeClock | None = None, **limits: Any) -> None:
        self.limits = BusLimits(**limits)
        self.clock = clock or FakeClock()
        self.store = store or ManualStore()
        codec = EnvelopeCodec(max_id_bytes=self.limits.max_id_bytes)
        self.platform = Platform("local", self.store, codec, self.clock, self.limits)
        self.contexts = self.platform.contexts
        self._sessions: dict[str, Session] = {}

    async def open(self, *names: str) -> None:
        for name in names:
            self._sessions[name] = (await self.platform.attach(Hello(name), "local")).session
        await asyncio.sleep(0)

    def caller(self, name: str) -> Caller:
        return Caller(agent=self.platform.ams.get(name), principal="local", operator=False)

    def say(self, sender: str, to: str, conversation_id: str = "c", **fields: Any) -> None:
        self._sessions[sender].submit([acl(to, "x", acl_conversation_id=conversation_id, **fields).SerializeToString()])
        self.platform.post.commit(self.store.commit())

    def put(self, name: str, key: str = "k", value: Any = 1, at: ContextAddress = C) -> Entry:
        return self.contexts.put(self.caller(name), at, key, json.dumps(value))

    def keys(self, name: str, at: ContextAddress = C) -> list[str]:
        return [one.key for one in self.contexts.list(self.caller(name), at)]

    def delegate(self, delegator: str, target: str, task_id: str, parent: TaskKey | None = None, **wish: Any) -> None:
        self.platform.tasks.delegation.delegate(self.caller(delegator), Wish(target, task_id, parent=parent, **wish))
        self.platform.post.commit(self.store.commit())

    def finish(self, executor: str, key: TaskKey) -> None:
        execution = self.platform.tasks.execution
        execution.accept(self.caller(executor), key, 0)
        execution.complete(self.caller(executor), key, 1, "1")

    def later(self, seconds: float) -> None:
        """Let time pass, at the end of which the clock's business is done."""
        self.clock.advance(seconds)
        self.platform.keep_house()

    def stored(self) -> StoredPlatform:
        """Return what the store holds, as the next start would find it."""
        for context in self.store.contexts.values():
            context.entries.sort(key=lambda one: one.revision)
        return StoredPlatform(
            agents=list(self.store.agents.values()),
            contexts=list(self.store.contexts.values()),
            context_revision=self.store.context_revision,
            tasks=list(self.store.tasks.values()),
        )

    def header(self, number: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.contexts[number].body)
        return found


async def following(watch: ContextWatch) -> list[Told]:
    """Return what a watch tells next."""
    async with asyncio.timeout(5):
        return await watch.next()


@contextlib.asynccontextmanager
async def restarted(made: Bench, *names: str) -> AsyncIterator[Bench]:
    """Start the bus again with what its store holds, and these agents."""
    again = Bench(ManualStore(made.stored()), made.clock)
    again.store.contexts = dict(made.store.contexts)
    async with again.platform.running():
        await again.open(*names)
        yield again


async def bench(*names: str, **limits: Any) -> Bench:
    made = Bench(**limits)
    await made.open(*(names or ("alice", "bob")))
    return made


# ---- conversations


async def test_what_is_put_is_written_with_whose_it_is() -> None:
    made = await bench("alice", "bob", "carol")
    made.say("alice", "bob")
    assert made.store.contexts == {}
    made.put("bob", "k", "é")
    made.say("bob", "carol")
    made.contexts.delete(made.caller("carol"), C, "k")
    assert made.header() == {
        "conversation_id": "c",
        "root": 0,
        "members": ["alice@local", "bob@local", "carol@local"],
        "owner": "bob@local",
        "at": made.clock.time(),
        "forgotten": 0,
        "joined": [made.clock.time()] * 3,
    }
    now = made.clock.time()
    assert made.store.contexts[1].entries == [StoredEntry("k", 2, "carol@local", now, "", removed=True)]


async def test_a_stranger_who_puts_first_is_not_what_a_participant_sees() -> None:
    made = await bench("alice", "bob", "mallory")
    made.say("alice", "bob")
    made.later(1)
    made.say("mallory", "bob")
    made.put("mallory", "trap")
    assert made.keys("bob") == []
    async with restarted(made, "alice", "bob", "mallory") as again:
        # Nothing had been put, so who spoke is forgotten; the stranger's context is nevertheless none of bob's.
        with pytest.raises(Unauthorised):
            again.keys("bob")
        again.say("alice", "bob")
        again.put("bob", "ours")
        assert again.keys("alice") == ["ours"]
        assert again.keys("mallory") == ["trap"]


async def test_a_message_that_was_not_accepted_gives_no_part() -> None:
    made = await bench(mailbox_messages=1)
    made.say("alice", "bob", "other")
    made.say("alice", "bob", id="refused")
    for name in ("alice", "bob"):
        with pytest.raises(Unauthorised):
            made.keys(name)


async def test_a_failed_write_of_the_first_entry_leaves_no_context() -> None:
    made = await bench(total_context_bytes=3_000)
    made.say("alice", "bob")
    with pytest.raises(ResourceExhausted, match="total_context_bytes"):
        made.put("alice", "k", "x" * 1_000)
    assert (len(made.contexts), made.contexts.bytes, made.store.contexts) == (0, 0, {})
    made.put("alice", "k", "x" * 100)
    assert made.contexts.bytes > 2_000
    made.platform.deregister("alice", OPERATOR)
    assert (made.contexts.bytes, made.store.contexts) == (0, {})


async def test_only_agents_have_a_part_and_something_has_to_be_named() -> None:
    made = await bench()
    with pytest.raises(Unauthorised, match="only an agent"):
        made.contexts.get(OPERATOR, C, "k")
    with pytest.raises(MissingParameter, match="space"):
        made.keys("alice", ContextAddress())
    with pytest.raises(MissingParameter, match="task_id"):
        made.keys("alice", ContextAddress(delegator="bob"))


async def test_removals_beyond_the_bound_are_forgotten_in_the_store_too() -> None:
    made = await bench(context_removals=32)
    made.say("alice", "bob")
    for number in range(40):
        made.put("alice", f"{number}")
    for number in range(33):
        made.contexts.delete(made.caller("alice"), C, f"{number}")
    kept = [one.key for one in made.store.contexts[1].entries if one.removed]
    assert kept == [f"{number}" for number in range(3, 33)]
    assert made.header()["forgotten"] == 43


# ---- how long they live


async def test_a_context_is_kept_for_its_retention_after_the_last_message_or_change() -> None:
    made = await bench(context_retention=100.0)
    made.say("alice", "bob")
    made.put("alice")
    made.later(99)
    made.say("bob", "alice")
    made.later(99)
    made.put("bob", "other")
    made.later(99)
    assert made.keys("alice") == ["k", "other"]
    made.later(2)
    assert made.keys("alice") == []
    assert (made.store.contexts, made.store.context_revision) == ({}, 2)
    # It is another one, though the conversation is the same.
    assert made.put("alice").revision > 2


async def test_the_time_of_the_last_message_survives_a_restart_to_within_a_part_of_the_retention() -> None:
    made = await bench(context_retention=2_400.0)
    made.say("alice", "bob")
    made.put("alice")
    for _ in range(20):
        made.later(101)
        made.say("alice", "bob")
    again = Bench(ManualStore(made.stored()), made.clock, context_retention=2_400.0)
    async with again.platform.running():
        again.later(2_300)
        await again.open("alice")
        assert again.keys("alice") == ["k"]
        again.later(250)
        assert (again.keys("alice"), len(again.contexts)) == ([], 0)


async def test_who_goes_leaves_and_who_began_it_takes_it_along() -> None:
    made = await bench("alice", "bob", "carol")
    for to in ("bob", "carol"):
        made.say("alice", to)
    made.put("bob")
    watch = made.contexts.watch(made.caller("carol"), C, "", 0)
    assert len(await following(watch)) == 2
    made.platform.deregister("carol", OPERATOR)
    assert made.header()["members"] == ["alice@local", "bob@local"]
    with watch, pytest.raises(Unauthorised, match="carol@local was freed"):
        await following(watch)
    made.platform.deregister("bob", OPERATOR)
    assert made.store.contexts == {}
    assert made.keys("alice") == []


async def test_a_watch_holds_a_context_that_is_empty_and_the_end_of_the_bus_ends_it() -> None:
    made = await bench(context_idle=1.0)
    made.say("alice", "bob")
    with made.contexts.watch(made.caller("bob"), C, "", 0) as watch:
        await following(watch)
        made.later(100)
        made.put("alice")
        assert [one.revision for one in await following(watch)] == [1]
        made.contexts.close()
        with pytest.raises(BusDraining):
            await following(watch)
    with pytest.raises(BusDraining):
        made.contexts.watch(made.caller("bob"), C, "", 0)


async def test_who_watched_something_empty_leaves_nothing_behind() -> None:
    made = await bench(context_idle=1.0, context_watches=4)
    made.say("alice", "bob")
    for _ in range(9):
        with made.contexts.watch(made.caller("bob"), C, "", 0, ["bob"]):
            pass
    made.later(100)
    with pytest.raises(Unauthorised):
        made.keys("bob")


# ---- trees of tasks

ROOT, CHILD, LEAF = TaskKey("alice@local", "root"), TaskKey("bob@local", "child"), TaskKey("carol@local", "leaf")


def at(key: TaskKey) -> ContextAddress:
    return ContextAddress(delegator=key.delegator, task_id=key.task_id)


async def tree() -> Bench:
    made = await bench("alice", "bob", "carol", "dave", "eve", task_retention=100.0)
    made.delegate("alice", "bob", "root")
    made.platform.tasks.execution.accept(made.caller("bob"), ROOT, 0)
    made.delegate("bob", "carol", "child", ROOT)
    made.platform.tasks.execution.accept(made.caller("carol"), CHILD, 0)
    made.delegate("carol", "dave", "leaf", CHILD)
    return made


async def test_all_who_delegated_or_were_given_a_task_of_a_tree_share_its_context() -> None:
    made = await tree()
    made.put("dave", "k", at=at(LEAF))
    for name in ("alice", "bob", "carol", "dave"):
        for key in (ROOT, CHILD, LEAF):
            assert made.keys(name, at(key)) == ["k"]
    with pytest.raises(Unauthorised, match="eve@local has no part in the tree"):
        made.keys("eve", at(CHILD))
    assert made.header()["root"] == made.platform.tasks.table.get(ROOT).number


async def test_a_freed_name_loses_its_part_in_a_tree_whose_context_stays() -> None:
    made = await tree()
    made.put("dave", "k", at=at(LEAF))
    made.platform.deregister("dave", OPERATOR)
    assert made.header()["owner"] == ""
    made.later(1)
    await made.open("dave")
    with pytest.raises(Unauthorised):
        made.keys("dave", at(ROOT))
    assert made.keys("alice", at(ROOT)) == ["k"]
    made.platform.deregister("alice", OPERATOR)
    made.later(1)
    await made.open("alice")
    with pytest.raises(Unauthorised):
        made.keys("alice", at(ROOT))
    assert made.keys("bob", at(ROOT)) == ["k"]


async def test_a_context_ends_with_its_first_task_and_a_later_one_of_the_same_id_has_another() -> None:
    made = await bench(task_retention=100.0)
    made.delegate("alice", "bob", "root")
    made.put("bob", at=at(ROOT))
    made.finish("bob", ROOT)
    made.later(99)
    assert made.keys("alice", at(ROOT)) == ["k"]
    watch = made.contexts.watch(made.caller("alice"), at(ROOT), "", 0)
    await following(watch)
    made.later(2)
    with watch, pytest.raises(ContextEnded, match="is forgotten"):
        await following(watch)
    assert made.store.contexts == {}
    made.delegate("alice", "bob", "root")
    assert made.keys("bob", at(ROOT)) == []


async def test_what_came_of_a_forgotten_task_does_not_belong_to_its_namesake() -> None:
    made = await tree()
    made.put("alice", at=at(ROOT))
    made.platform.tasks.execution.complete(made.caller("bob"), ROOT, 1, "1")
    made.later(101)
    with pytest.raises(ContextEnded):
        made.keys("carol", at(CHILD))
    made.delegate("alice", "eve", "root")
    made.put("eve", "secret", at=at(ROOT))
    with pytest.raises(Unauthorised):
        made.keys("carol", at(ROOT))
    with pytest.raises(ContextEnded):
        made.keys("carol", at(CHILD))


async def test_executors_of_earlier_attempts_keep_their_part() -> None:
    made = await bench("alice", "bob", resume_grace=1.0)
    made.delegate("alice", "bob", "root", on_executor_lost=OnExecutorLost.REDELIVER, max_attempts=3)
    made.platform.tasks.execution.accept(made.caller("bob"), ROOT, 0)
    made.put("bob", at=at(ROOT))
    made.later(made.limits.task_lease + 1)
    assert made.keys("bob", at(ROOT)) == ["k"]


async def test_a_stranger_with_the_id_of_a_task_does_not_come_between_its_executor_and_the_tree() -> None:
    made = await bench("alice", "bob", "mallory", "friend")
    made.say("mallory", "friend", "root")
    made.put("mallory", "trap", at=ContextAddress("root"))
    made.later(1)
    made.delegate("alice", "bob", "root")
    made.later(1)
    made.say("mallory", "bob", "root")
    assert made.keys("mallory", ContextAddress("root")) == ["trap"]
    made.put("bob", "ours", at=ContextAddress("root"))
    assert made.keys("alice", at(ROOT)) == made.keys("alice", ContextAddress("root")) == ["ours"]
    async with restarted(made, "alice", "bob", "mallory") as again:
        assert again.keys("bob", ContextAddress("root")) == ["ours"]
        assert again.keys("mallory", ContextAddress("root")) == ["trap"]


async def test_a_task_with_the_id_of_a_conversation_does_not_come_between_its_participants() -> None:
    made = await bench("alice", "bob", "mallory")
    made.say("alice", "bob", "c")
    made.put("alice", "ours")
    made.later(1)
    made.delegate("mallory", "bob", "c")
    made.put("mallory", "trap", at=at(TaskKey("mallory@local", "c")))
    assert made.keys("bob") == ["ours"]
    async with restarted(made, "alice", "bob", "mallory") as again:
        assert again.keys("bob") == ["ours"]
        # What an agent delegates itself is its own choice.
        again.delegate("bob", "alice", "c")
        assert again.keys("bob") == []


# ---- what a start makes of a store


async def started(stored: StoredPlatform, *names: str, **limits: Any) -> Bench:
    made = Bench(ManualStore(stored), **limits)
    made.store.contexts = {one.number: one for one in stored.contexts}
    return made


async def test_contexts_of_agents_and_tasks_that_are_gone_are_removed_at_the_start() -> None:
    made = await tree()
    made.say("alice", "bob")
    made.put("alice")
    made.put("dave", at=at(LEAF))
    stored = made.stored()
    stored.agents = [one for one in stored.agents if one.name != "alice"]
    stored.tasks = []
    again = await started(stored)
    async with again.platform.running():
        assert (len(again.contexts), again.store.contexts) == (0, {})
        assert again.store.context_revision == 1


async def test_a_context_that_cannot_be_read_is_left_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    made = await bench()
    made.say("alice", "bob")
    made.put("alice")
    stored = made.stored()
    stored.contexts += [
        StoredContext(number, body, [StoredEntry("k", 50, "x", 1.0, "1")])
        for number, body in enumerate(["", "{}", '{"of":"tomorrow"}', made.store.contexts[1].body[:-1]], 5)
    ]
    again = await started(stored)
    with caplog.at_level(logging.ERROR):
        async with again.platform.running():
            await again.open("alice", "bob")
            assert again.keys("bob") == ["k"]
            assert len(again.store.contexts) == 5
            again.say("alice", "bob", "other")
            again.put("alice", at=ContextAddress("other"))
            assert 9 in again.store.contexts
    assert sum("is left in the store" in one.getMessage() for one in caplog.records) == 4


async def test_revisions_go_on_after_a_start() -> None:
    made = await bench()
    for conversation in ("c", "d"):
        made.say("alice", "bob", conversation)
        made.say("bob", "alice", conversation)
    for number in range(5):
        made.put("bob", f"{number}", at=ContextAddress("d"))
    made.put("alice")
    made.contexts.delete(made.caller("bob"), C, "k")
    made.platform.deregister("bob", OPERATOR)
    again = await started(made.stored())
    async with again.platform.running():
        await again.open("alice", "bob")
        with pytest.raises(EntryNotFound):
            again.contexts.get(again.caller("alice"), C, "k")
        assert again.put("alice").revision == 3
        again.say("alice", "bob", "d")
        assert again.put("alice", at=ContextAddress("d")).revision > 5
