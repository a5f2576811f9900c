"""C15: pull the plug anywhere. What was accepted is there afterwards; what was not is absent, or a known repetition."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from pulse import pulse, pulse_check
from raw import acl
from waiting import Inbox, until

from gagent_grpc import Agent, BusLimits, ClientLimits, Received, SqliteStore
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.testing import running_bus

REQUEST, FAILURE = 0x13, 0x07

LOCKING = """
    import sqlite3, sys, time

    other = sqlite3.connect(sys.argv[1], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    time.sleep(600)
"""
"""SQLite's locks are those of a process, so whoever holds one has to be another one."""

QUICK = ClientLimits(initial_backoff=0.05, max_backoff=0.2, retry_delay=0.01)


async def test_c15a_kill_9_under_load_loses_and_doubles_nothing(bus_processes: Any) -> None:
    """With receipts before the commit, or without sending again, messages are missing."""
    handled: list[Received] = []
    async with bus_processes() as bus, pulse_check(bus) as stack:
        bob = Agent("bob", bus=bus.address, limits=QUICK)

        @bob.on()
        async def keep(message: Received) -> None:
            handled.append(message)

        await stack.enter_async_context(bob)
        alice = await stack.enter_async_context(Agent("alice", bus=bus.address, limits=QUICK))
        accepted: list[str] = []

        async def send(lane: int) -> None:
            for place in range(60):
                # Returns when all is said: accepted, or a repetition of what had been.
                await alice.send("bob", "inform", f"{lane} {place}", conversation_id=str(lane))
                accepted.append(f"{lane} {place}")

        sending = [asyncio.create_task(send(lane)) for lane in range(40)]
        for count in (200, 800, 1500):
            await until(lambda count=count: len(accepted) >= count)
            bus.kill()
            await bus.wait()
            await bus.start()
        await asyncio.gather(*sending)
        await until(lambda: len(handled) >= len(accepted))
        contents = [one.content for one in handled]
        assert sorted(contents) == sorted(accepted)
        for lane in range(40):
            mine = [text for text in contents if text.startswith(f"{lane} ")]
            assert mine == [f"{lane} {place}" for place in range(60)]


async def test_c15b_torn_tail_is_skipped_and_the_rest_is_there(bus_processes: Any, raw: Any, tmp_path: Path) -> None:
    """A file that was cut anywhere opens; what is left is what was accepted first."""
    async with bus_processes() as bus:
        async with raw(bus.address, "bob") as bob:
            await bob.leave()
        async with raw(bus.address, "alice") as alice:
            for number in range(30):
                await alice.send(acl("bob", f"{number}", id=f"{number}"))
                assert await alice.receipted(number + 1) == []
            bus.kill()
            await bus.wait()
        whole = Path(bus.store.removeprefix("sqlite:"))
        size = whole.with_name(f"{whole.name}-wal").stat().st_size
        kept: list[int] = []
        for cut in (0, 1, 25, 4_200, size // 2):
            path = tmp_path / f"cut-{cut}" / whole.name
            path.parent.mkdir()
            shutil.copy(whole, path)
            wal = path.with_name(f"{path.name}-wal")
            shutil.copy(whole.with_name(wal.name), wal)
            with wal.open("rb+") as file:
                file.truncate(size - cut)
            async with running_bus(SqliteStore(path)) as torn, raw(torn.address, "bob") as bob:
                left = torn.platform.ams.get("bob").mailbox.messages
                assert [one.message.id for one in await bob.delivered(left)] == [f"{number}" for number in range(left)]
                # What the tear took was the last that was written, and nothing else.
                assert left == 30 if cut == 0 else left < 30
                kept.append(left)
                await pulse(torn.address)
        assert kept == sorted(kept, reverse=True)
        assert kept[1] >= 28
        await bus.start()


async def test_c15b_full_disk_refuses_and_loses_nothing(tmp_path: Path, raw: Any) -> None:
    """Without the bound of the store, or with a refusal that is not passing, this does not come to its end."""
    store = SqliteStore(tmp_path / "bus.db", max_bytes=400_000)
    async with running_bus(store, limits=BusLimits(drain_grace=1.0)) as bus, pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob", window=pb.Window(messages=1)))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        accepted: list[str] = []
        while not alice.receipts:
            number = alice.accepted_through + 1
            assert number < 100
            await alice.send(acl("bob", "x" * 20_000, id=f"{number}"))
            await alice.receipted(number)
            if not alice.receipts:
                accepted.append(f"{number}")
        refusal = alice.receipts[0]
        assert (refusal.outcome, refusal.retryable) == (pb.OUTCOME_MAILBOX_FULL, True)
        assert len(accepted) > 3
        refused = f"{refusal.number}"
        for place in range(len(accepted)):
            await bob.delivered(place + 1)
            await bob.settle(ack_through_tag=place + 1)
        # Room is there once the settles are written, and the same id is taken then.
        while alice.receipts:
            alice.receipts.clear()
            await alice.send(acl("bob", "x" * 20_000, id=refused))
            await alice.receipted(alice.accepted_through + 1)
        await bob.delivered(len(accepted) + 1)
        assert [one.message.id for one in bob.deliveries] == [*accepted, refused]
        await bob.settle(ack_through_tag=len(accepted) + 1)
        await bob.in_step()


async def test_c15c_locked_store_waits_and_gives_one_honest_answer(tmp_path: Path, raw: Any, programs: Any) -> None:
    """Without the wait for the lock, the answer is a refusal; written a second time, the resend is no DUPLICATE."""
    path = tmp_path / "bus.db"
    async with running_bus(SqliteStore(path), limits=BusLimits(drain_grace=1.0)) as bus, pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob"))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        await bob.in_step()
        async with programs(LOCKING, str(path)) as other:
            assert await other.line() == "locked"
            await alice.send(acl("bob", "locked out", id="1"), acl("bob", "need not be stored", transient=True))
            assert (await bob.delivered(1))[0].message.transient
            await alice.in_step()
            # Others are not held up; and of the one that is not stored yet, nothing is said.
            assert (alice.accepted_through, alice.receipts) == (0, [])
        assert await alice.receipted(2) == []
        await alice.send(acl("bob", "locked out", id="1", resend=True))
        assert [one.outcome for one in await alice.receipted(3)] == [pb.OUTCOME_DUPLICATE]
        await bob.delivered(2)
        await bob.in_step()
        assert [one.message.id for one in bob.deliveries][1:] == ["1"]
        await bob.settle(ack_through_tag=2)
        await bob.in_step()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
async def test_c15d_attempts_are_counted_over_restarts_of_the_bus(bus_processes: Any, raw: Any, stop: Any) -> None:
    """Counted in memory only, message 13 would come again for as long as the bus is restarted between two attempts."""
    async with bus_processes(max_deliveries=3, drain_grace=0.2) as bus, pulse_check(bus):
        async with raw(bus.address, "bob") as bob:
            await bob.leave()
        async with raw(bus.address, "alice") as alice:
            await alice.send(acl("bob", "13", id="13", act=REQUEST, acl_reply_with="r13"), acl("bob", "14", id="14"))
            assert await alice.receipted(2) == []
            await alice.leave()
        seen = []
        for life in range(3):
            async with raw(bus.address, "bob") as bob:
                first, second = (await bob.delivered(2))[:2]
                seen.append((first.message.id, first.attempt, second.message.id))
                nack = pb.Nack(sequence=first.sequence, error="it breaks whoever reads it")
                # Longer than this life of the bus.
                nack.delay.FromSeconds(60)
                await bob.settle(nacks=[nack])
                await bob.in_step()
                if life < 2:
                    # Behind the nack in the store, so that a kill finds both written.
                    await bob.send(acl("alice", "written", transient=False))
                    assert await bob.receipted(1) == []
                    bus.kill(stop)
                    await bus.wait()
                    await bob.end()
                    await bus.start()
                    continue
                # Given up, and what is behind it can be handled.
                await bob.settle(ack_sequences=[second.sequence])
                await bob.in_step()
                assert len(bob.deliveries) == 2
        assert seen == [("13", 1, "14"), ("13", 2, "14"), ("13", 3, "14")]
        async with raw(bus.address, "alice") as alice, raw(bus.address, "bob") as bob:
            told = (await alice.delivered(3))[2].message.acl
            assert (told.performative, told.in_reply_to) == (FAILURE, "r13")
            assert "it breaks whoever reads it" in told.text
            await alice.settle(ack_through_tag=3)
            await alice.in_step()
            await alice.send(acl("bob", "15", id="15"))
            assert [one.message.id for one in await bob.delivered(1)] == ["15"]
            await bob.settle(ack_through_tag=1)
            await bob.in_step()


POISONED = """
    import asyncio, os, signal, sys
    from gagent_grpc import Agent

    bob = Agent("bob", bus=sys.argv[1])

    @bob.on()
    async def keep(message):
        print(message.content, flush=True)
        if message.content == "13":
            os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        async with bob:
            await bob.wait()

    asyncio.run(main())
"""


@pytest.mark.parametrize("stop", [None, signal.SIGTERM, signal.SIGKILL])
async def test_c15d_message_that_kills_its_receiver_is_given_up(bus_processes: Any, programs: Any, stop: Any) -> None:
    """While only what is sent back is counted, the receiver dies of it again and again."""
    async with bus_processes(max_deliveries=3, drain_grace=0.2) as bus, pulse_check(bus) as stack:
        inbox = Inbox()
        alice = Agent("alice", bus=bus.address, limits=QUICK)
        alice.on()(inbox)
        await stack.enter_async_context(alice)
        async with programs(POISONED, bus.address) as bob:
            await until(lambda: _is_there(alice))
            await alice.send("bob", "request", "12")
            assert await bob.line() == "12"
            await alice.send("bob", "request", "13", reply_with="13")
            assert await bob.line() == "13"
            await alice.send("bob", "inform", "14")
            await bob.wait()
        tries = 1
        while tries < 8:
            if stop is not None:
                # What the bus has not noticed and written down, it cannot know after a kill.
                await until(lambda: _is_lost(alice))
                await alice.send("bob", "inform", "written")
                bus.kill(stop)
                await bus.wait()
                await bus.start()
            async with programs(POISONED, bus.address) as bob:
                if await bob.line() == "14":
                    break
                tries += 1
                await bob.wait()
        # Who was lost because of what is not known after a restart, so it goes out by itself once more.
        assert tries == (3 if stop is None else 4)
        await inbox.holds(1)
        assert inbox.messages[0].in_reply_to == "13"
        assert f"given up after {tries} deliveries" in str(inbox.messages[0].content)


async def _is_there(alice: Agent) -> bool:
    return any(one.name == "bob@local" for one in await alice.ams.search_all())


async def _is_lost(alice: Agent) -> bool:
    return any(one.name == "bob@local" and not one.connected for one in await alice.ams.search_all())
