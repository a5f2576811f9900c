"""The store that keeps nothing takes every write, reports no commit, and lets go who waits when it is closed."""

import asyncio

import pytest

from gagent_grpc.acl.descriptions import DFAgentDescription, LifeCycleState
from gagent_grpc.bus.ports import Store, StoredAgent, StoredDescription, StoredKey, StoredMessage, StoredPlatform
from gagent_grpc.errors import StoreUnavailable
from gagent_grpc.storage.memory import MemoryStore


def message(sequence: int) -> StoredMessage:
    return StoredMessage("bob", sequence, "alice@local", f"m-{sequence}", "", b"d", "", 1.0, 0, b"payload")


async def test_memory_store_keeps_nothing_of_what_it_took() -> None:
    store: Store = MemoryStore()
    assert not store.durable
    assert await store.open() == StoredPlatform()

    state = LifeCycleState.ACTIVE
    store.put_agent(StoredAgent("bob", "", "", state, state, False, 1, True, 1, b"", 1.0))
    store.put_description(StoredDescription(DFAgentDescription(name="bob"), 1.0, 31.0))
    assert [store.accept(message(1)), store.accept(message(2))] == [1, 2]
    store.mark_attempts("bob", [(1, 1)])
    store.settle("bob", 1, StoredKey("alice@local", "m-1", "bob", b"d", 2.0))
    store.prune_keys(3.0, 0)
    store.remove_description("bob")
    store.remove_agent("bob")
    await store.flush()
    await store.close()

    assert await MemoryStore().open() == StoredPlatform()


async def test_next_commit_of_memory_store_waits_until_it_is_closed() -> None:
    store = MemoryStore()
    await store.open()
    store.accept(message(1))
    first = asyncio.create_task(store.next_commit())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    second = asyncio.create_task(store.next_commit())
    await asyncio.sleep(0)
    assert not second.done()
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await second
