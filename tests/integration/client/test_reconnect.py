"""What a lost connection, a restarted bus, or a newer session does to an agent: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from proxy import Proxy, proxy_to
from waiting import settled, until

from gagent_grpc import (
    Agent,
    AgentAlreadyRegistered,
    BusError,
    BusLimits,
    BusUnreachable,
    ClientLimits,
    DeliveryRefused,
    LifeCycleState,
    MessageTooLarge,
    PreconditionFailed,
    Received,
    SessionSuperseded,
    SqliteStore,
)
from gagent_grpc.client import session as session_module
from gagent_grpc.errors import ProtocolViolation
from gagent_grpc.pb.gagent.internal.v1 import bus_frames_pb2 as twin
from gagent_grpc.testing import running_bus

pytestmark = pytest.mark.timeout(40)

_WELCOME = twin.OpenSessionResponse(
    welcome=twin.Welcome(
        protocol_version=1,
        agent="alice@local",
        platform="local",
        generation=1,
        heartbeat_interval=Duration(seconds=15),
        send_window=twin.Window(messages=100, bytes=1_000_000),
    )
).SerializeToString()


# ---- what was sent ----------------------------------------------------------------------------------------------------


async def test_messages_without_a_receipt_are_sent_again_and_arrive_once_in_order(
    bus: Any, agents: Any, proxy: Proxy, inbox: Any
) -> None:
    await agents("bob", inbox)
    alice = await agents("alice", bus=proxy.address)
    # They reach the bus, and their receipts do not come back.
    proxy.silence("out")
    first = [asyncio.create_task(alice.send("bob", "inform", str(number))) for number in range(50)]
    await inbox.holds(50)
    assert not any(one.done() for one in first)
    second = [asyncio.create_task(alice.send("bob", "inform", str(number))) for number in range(50, 100)]
    proxy.cut()
    proxy.speak()
    assert await asyncio.gather(*first, *second) == [[]] * 100
    assert await inbox.holds(100) == [str(number) for number in range(100)]
    assert sessions_of(bus, alice) == 2


async def test_a_refusal_that_was_heard_is_not_heard_again(bus: Any, agents: Any, proxy: Proxy) -> None:
    alice = await agents("alice", bus=proxy.address)
    proxy.silence("out")
    asking = asyncio.create_task(alice.send(["nobody", "alice"], "inform", "x"))
    await until(lambda: bus.platform.post.accepted_messages)
    proxy.cut()
    proxy.speak()
    with pytest.raises(DeliveryRefused) as raised:
        await asking
    assert [one.receiver for one in raised.value.receipts] == ["nobody"]


async def test_the_largest_message_that_may_be_sent_may_be_sent_again(buses: Any, agents: Any, inbox: Any) -> None:
    # Small enough to pass without a word of the bus, which is silent below.
    bus = await buses(limits=BusLimits(max_message_bytes=30_000, drain_grace=1.0))
    async with proxy_to(bus.address) as proxy:
        await agents("bob", inbox, bus=bus.address)
        alice = await agents("alice", bus=proxy.address)
        # Not even one byte more could be sent; what comes around the content is always as large.
        with pytest.raises(MessageTooLarge) as raised:
            await alice.send("bob", "inform", b"x" * 30_000)
        size = 30_000 - (raised.value.size_bytes - raised.value.limit_bytes)
        with pytest.raises(MessageTooLarge):
            await alice.send("bob", "inform", b"x" * (size + 1))
        proxy.silence("out")
        sending = asyncio.create_task(alice.send("bob", "inform", b"x" * size))
        await inbox.holds(1)
        proxy.cut()
        proxy.speak()
        assert await sending == []
        assert sessions_of(bus, alice) == 2
        assert [len(one) for one in inbox.contents] == [size]
        await alice.aclose()


async def test_connections_that_are_cut_again_and_again_during_a_flood(agents: Any, proxy: Proxy, inbox: Any) -> None:
    await agents("bob", inbox, bus=proxy.address)
    alice = await agents("alice", bus=proxy.address)

    async def cut() -> None:
        for count in (100, 400, 900, 1500):
            await inbox.holds(count)
            proxy.cut()

    cutting = asyncio.create_task(cut())
    sends = [asyncio.create_task(alice.send("bob", "inform", str(number))) for number in range(2000)]
    assert await asyncio.gather(*sends) == [[]] * 2000
    await cutting
    assert await inbox.holds(2000) == [str(number) for number in range(2000)]


async def test_a_request_survives_a_lost_connection_on_either_side(bus: Any, agents: Any, proxy: Proxy) -> None:
    asked, release = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    async def answer(message: Received) -> str:
        runs.append(message.content)
        asked.set()
        await release.wait()
        return "yes"

    bob = await agents("bob", answer, bus=proxy.address)
    alice = await agents("alice", bus=proxy.address)
    asking = asyncio.create_task(alice.request("bob", "?"))
    await asked.wait()
    proxy.cut()
    await until(lambda: sessions_of(bus, bob) == sessions_of(bus, alice) == 2)
    release.set()
    assert (await asking).content == "yes"
    assert runs == ["?"]


# ---- what was delivered -----------------------------------------------------------------------------------------------


async def test_a_handler_that_runs_across_a_reconnect_is_not_run_again_and_its_ack_counts(
    bus: Any, agents: Any, proxy: Proxy
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.content)
        begun.set()
        await release.wait()

    bob = await agents("bob", handle, bus=proxy.address)
    alice = await agents("alice")
    for number in range(5):
        await alice.send("bob", "inform", str(number))
    await begun.wait()
    proxy.cut()
    await until(lambda: sessions_of(bus, bob) == 2 and bob.connected)
    release.set()
    await until(lambda: len(seen) == 5)
    await settled(bus, "bob")
    assert seen == list("01234")


async def test_a_message_whose_ack_was_lost_is_not_handled_again(
    bus: Any, agents: Any, proxy: Proxy, inbox: Any
) -> None:
    bob = await agents("bob", inbox, bus=proxy.address)
    alice = await agents("alice")
    proxy.silence("in")
    await alice.send("bob", "inform", "1")
    await inbox.holds(1)
    # The ack has left the client, and has not reached the bus.
    await until(lambda: not bob._session.deliveries.unsaid)
    proxy.cut()
    proxy.speak()
    await alice.send("bob", "inform", "2")
    assert await inbox.holds(2) == ["1", "2"]
    await settled(bus, "bob")
    assert sessions_of(bus, bob) == 2


async def test_a_handler_that_ends_while_nothing_is_connected_is_acknowledged_later(
    bus: Any, agents: Any, proxy: Proxy
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.content)
        begun.set()
        await release.wait()

    bob = await agents("bob", handle, bus=proxy.address)
    alice = await agents("alice")
    await alice.send("bob", "inform", "1")
    await begun.wait()
    proxy.cut(admit=False)
    await proxy.connected()
    release.set()
    await until(lambda: not bob._session.deliveries.in_progress)
    proxy.admit()
    await settled(bus, "bob")
    assert seen == ["1"]


@pytest.mark.parametrize("moment", ["before the hello", "between hello and welcome"])
async def test_a_handler_that_raises_while_nothing_is_connected_runs_again_and_its_lane_goes_on(
    bus: Any, agents: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.content)
        begun.set()
        await release.wait()
        if len(seen) == 1:
            raise ValueError("not now")

    bob = await agents("bob", handle, bus=proxy.address)
    alice = await agents("alice")
    for number in range(3):
        await alice.send("bob", "inform", str(number))
    await begun.wait()

    async def raised() -> None:
        release.set()
        await until(lambda: not bob._session.deliveries.in_progress)

    if moment == "before the hello":
        proxy.cut(admit=False)
        await proxy.connected()
        await raised()
        proxy.admit()
    else:
        # The hello has said that a handler still runs, and the bus holds its delivery.
        read = session_module._read_frame

        async def read_late(call: Any) -> bytes | None:
            frame = await read(call)
            await raised()
            return frame

        monkeypatch.setattr(session_module, "_read_frame", read_late)
        proxy.cut()
    await until(lambda: len(seen) >= 4)
    assert seen == ["0", "0", "1", "2"]
    await settled(bus, "bob")


async def test_a_message_that_is_on_its_way_back_when_the_connection_is_lost_comes_back_in_order(
    bus: Any, agents: Any, proxy: Proxy
) -> None:
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.content)
        if len(seen) == 1:
            proxy.cut()
            raise ValueError("not now")

    await agents("bob", handle, bus=proxy.address)
    alice = await agents("alice")
    for number in range(3):
        await alice.send("bob", "inform", str(number))
    await until(lambda: len(seen) >= 4)
    assert seen == ["0", "0", "1", "2"]
    await settled(bus, "bob")


async def test_an_answer_is_taken_once_though_it_comes_again(bus: Any, agents: Any, proxy: Proxy, inbox: Any) -> None:
    bob = await agents("bob")
    bob.on("request")(_yes)
    alice = await agents("alice", inbox, bus=proxy.address)
    asking = asyncio.create_task(alice.request("bob", "?"))
    assert (await asking).content == "yes"
    await settled(bus, "alice")
    proxy.silence("in")
    await bob.send("alice", "inform", "mail")
    await inbox.holds(1)
    proxy.cut()
    proxy.speak()
    await settled(bus, "alice")
    assert inbox.contents == ["mail"]


# ---- the bus goes away ------------------------------------------------------------------------------------------------


async def test_a_bus_that_is_restarted_finds_its_agents_again_with_mail_and_order(tmp_path: Path, inbox: Any) -> None:
    limits = BusLimits(drain_grace=1.0)
    quick = ClientLimits(initial_backoff=0.05, max_backoff=0.2)
    async with contextlib.AsyncExitStack() as stack:
        async with running_bus(SqliteStore(tmp_path / "bus.db"), limits=limits) as bus:
            address = bus.address
            begun, release = asyncio.Event(), asyncio.Event()
            seen: list[str] = []

            async def handle(message: Received) -> None:
                seen.append(message.content)
                begun.set()
                await release.wait()

            bob = Agent("bob", bus=address, services=["x"], limits=quick)
            bob.on()(handle)
            await stack.enter_async_context(bob)
            alice = await stack.enter_async_context(Agent("alice", bus=address, limits=quick))
            for number in range(10):
                await alice.send("bob", "inform", str(number))
            await begun.wait()
        await until(lambda: not bob.connected)
        later = asyncio.create_task(alice.send("bob", "inform", "10"))
        searching = asyncio.create_task(alice.df.search("x"))
        async with running_bus(SqliteStore(tmp_path / "bus.db"), listen=address, limits=limits) as bus:
            await until(lambda: bob.connected)
            release.set()
            await later
            await until(lambda: len(seen) == 11)
            assert seen == [str(number) for number in range(11)]
            await settled(bus, "bob")
            with contextlib.suppress(PreconditionFailed):
                assert (await searching) in ([], [*await alice.df.search("x")])
            assert [one.name for one in await alice.df.search("x")] == ["bob@local"]
            assert bob.state is LifeCycleState.ACTIVE
            await stack.aclose()


async def test_a_bus_that_lost_everything_gets_the_name_and_the_offer_again(inbox: Any) -> None:
    quick = ClientLimits(initial_backoff=0.05, max_backoff=0.2)
    async with contextlib.AsyncExitStack() as stack:
        async with running_bus(limits=BusLimits(drain_grace=1.0)) as bus:
            address = bus.address
            bob = Agent("bob", bus=address, limits=quick)
            bob.on()(inbox)
            await stack.enter_async_context(bob)
            await bob.df.register("late")
        async with running_bus(listen=address, limits=BusLimits(drain_grace=1.0)) as bus:
            await until(lambda: bus.platform.ams.find("bob") is not None and bob.connected)
            assert [one.name for one in await bob.df.search("late")] == ["bob@local"]
            await bob.df.deregister()
            await bob.send("bob", "inform", "hi")
            assert await inbox.holds(1) == ["hi"]
            await stack.aclose()


async def test_a_bus_that_drains_waits_for_a_handler_and_takes_its_answer_and_its_ack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gagent_grpc.client")
    begun, release = asyncio.Event(), asyncio.Event()
    limits = BusLimits(drain_grace=10.0)
    async with running_bus(SqliteStore(tmp_path / "bus.db"), limits=limits) as bus:
        bob = Agent("bob", bus=bus.address)

        @bob.on("request")
        async def handle(message: Received) -> str:
            begun.set()
            await release.wait()
            return "yes"

        async with Agent("alice", bus=bus.address) as alice, bob:
            asking = asyncio.create_task(alice.request("bob", "?"))
            await begun.wait()
            draining = asyncio.create_task(bus.drain())
            await until(lambda: "bob: the bus is shutting down" in caplog.messages)
            release.set()
            await draining
            assert bus.platform.ams.get("bob").mailbox.messages == 0
            # The answer is stored, for the next session of who asked.
            assert bus.platform.ams.get("alice").mailbox.messages == 1
            asking.cancel()


async def test_a_bus_that_stands_still_is_left_after_three_heartbeats(buses: Any, agents: Any, inbox: Any) -> None:
    bus = await buses(limits=BusLimits(heartbeat_interval=0.1, drain_grace=1.0))
    async with proxy_to(bus.address) as proxy:
        bob = await agents("bob", inbox, bus=proxy.address)
        alice = await agents("alice", bus=bus.address)
        proxy.silence()
        connecting = asyncio.create_task(proxy.connected())
        await alice.send("bob", "inform", "1")
        await connecting
        proxy.speak()
        assert await inbox.holds(1) == ["1"]
        await until(lambda: bob.connected)
        await bob.aclose()


async def test_a_silent_bus_is_noticed_also_while_the_agent_sends_without_a_pause(buses: Any, agents: Any) -> None:
    bus = await buses(limits=BusLimits(heartbeat_interval=0.1, drain_grace=1.0))
    async with proxy_to(bus.address) as proxy:
        bob = await agents("bob", bus=proxy.address)
        proxy.silence("out")
        sends: list[asyncio.Task[Any]] = []
        connecting = asyncio.create_task(proxy.connected())
        while not connecting.done():
            passed = asyncio.create_task(proxy.passed("in"))
            sends.append(asyncio.create_task(bob.send("bob", "inform", "x")))
            await asyncio.wait({connecting, passed}, return_when=asyncio.FIRST_COMPLETED)
            passed.cancel()
        proxy.speak()
        assert await asyncio.gather(*sends) == [[]] * len(sends)


async def test_a_loop_that_stood_still_is_no_silence_of_the_bus(buses: Any, agents: Any, inbox: Any) -> None:
    bus = await buses(limits=BusLimits(heartbeat_interval=0.05, missed_heartbeats=1000, drain_grace=1.0))
    bob = await agents("bob", inbox, bus=bus.address)
    time.sleep(0.2)  # noqa: ASYNC251  # On purpose: a handler that forgets itself, for four heartbeats.
    await bob.send("bob", "inform", "1")
    assert await inbox.holds(1) == ["1"]
    assert sessions_of(bus, bob) == 1


# ---- the session is over ----------------------------------------------------------------------------------------------


async def test_a_superseded_agent_does_not_come_back(bus: Any, agents: Any, inbox: Any) -> None:
    old = await agents("bob")
    new = Agent("bob", bus=bus.address)
    new._session.token = old._session.token
    new.on()(inbox)
    async with new:
        with pytest.raises(SessionSuperseded, match="newer session"):
            await old.wait()
        with pytest.raises(SessionSuperseded):
            await old.send("bob", "inform", "x")
        with pytest.raises(SessionSuperseded):
            await old.df.search()
        await old.aclose()
        await new.send("bob", "inform", "still here")
        assert await inbox.holds(1) == ["still here"]
        assert bus.platform.ams.get("bob").generation == 2


async def test_run_raises_what_ended_the_session(bus: Any, agents: Any) -> None:
    bob = Agent("bob", bus=bus.address)
    running = asyncio.create_task(bob.run())
    await until(lambda: bob.connected)
    alice = await agents("alice")
    waiting = asyncio.create_task(bob.send("bob", "inform", "x"))
    await alice.ams.terminate("bob")
    with pytest.raises(PreconditionFailed, match="terminated"):
        await running
    with contextlib.suppress(PreconditionFailed):
        await waiting


async def test_who_missed_that_a_newer_session_took_over_hears_who_holds_the_name(
    bus: Any, agents: Any, proxy: Proxy
) -> None:
    old = await agents("bob", bus=proxy.address)
    new = Agent("bob", bus=bus.address)
    new._session.token = old._session.token
    proxy.cut(admit=False)
    async with new:
        proxy.admit()
        with pytest.raises(AgentAlreadyRegistered):
            await old.wait()


async def test_a_bug_in_the_session_is_raised_and_neither_hangs_nor_reconnects(
    bus: Any, agents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await agents("alice")

    def fail(self: Any, batch: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(session_module.ClientSession, "_receipts", fail)
    with pytest.raises(BusError, match="ZeroDivisionError"):
        await alice.send("alice", "inform", "x")
    with pytest.raises(ZeroDivisionError):
        await alice.wait()
    assert sessions_of(bus, alice) == 1


async def test_a_bug_in_the_writer_is_raised_too(agents: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = await agents("alice")

    def fail(self: Any, batch_bytes: int) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(session_module.ClientSession, "_next_frame", fail)
    sending = asyncio.create_task(alice.send("alice", "inform", "x"))
    with pytest.raises(ZeroDivisionError):
        await alice.wait()
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_status_cancelled_of_the_other_side_is_a_lost_connection() -> None:
    """A proxy or a dying server may send CANCELLED, which gRPC raises as if this task had been cancelled."""
    opened = 0

    async def open_session(request_iterator: Any, context: Any) -> None:
        nonlocal opened
        opened += 1
        await context.read()
        await context.write(_WELCOME)
        if opened == 1:
            await context.abort(grpc.StatusCode.CANCELLED, "reset by somebody")
        while await context.read() is not grpc.aio.EOF:
            pass

    quick = ClientLimits(initial_backoff=0.01)
    async with _impostor(open_session) as address, Agent("alice", bus=address, limits=quick) as alice:
        await until(lambda: opened == 2 and alice.connected)


@pytest.mark.parametrize("frames", [[b"\xff\xff"], [b""], ["welcome", b"\xff\xff"]])
async def test_a_bus_that_does_not_speak_the_protocol_is_left_and_told(frames: list[Any]) -> None:
    async def open_session(request_iterator: Any, context: Any) -> None:
        await context.read()
        for frame in frames:
            await context.write(_WELCOME if frame == "welcome" else frame)
        await context.read()

    async with _impostor(open_session) as address:
        with pytest.raises(ProtocolViolation, match=r"frame of 2 bytes|did not begin with a welcome"):
            await Agent("alice", bus=address).run()


async def test_a_welcome_that_leaves_numbers_out_does_not_stop_the_agent() -> None:
    heard = asyncio.Event()

    async def open_session(request_iterator: Any, context: Any) -> None:
        await context.read()
        welcome = twin.Welcome(agent="alice@local", platform="local")
        await context.write(twin.OpenSessionResponse(welcome=welcome).SerializeToString())
        await context.read()
        heard.set()
        await context.read()

    async with _impostor(open_session) as address:
        async with Agent("alice", bus=address) as alice:
            sending = asyncio.create_task(alice.send("bob", "inform", "x"))
            await heard.wait()
        await asyncio.gather(sending, return_exceptions=True)


@contextlib.asynccontextmanager
async def _impostor(open_session: Any) -> AsyncIterator[str]:
    """Run a server that answers `OpenSession` in its own way; yield its address."""
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(open_session)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("gagent.v1.BusService", {"OpenSession": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


# ---- closing meanwhile ------------------------------------------------------------------------------------------------


async def test_closing_while_nothing_is_connected_is_quick_when_nothing_is_left_to_say(
    agents: Any, proxy: Proxy
) -> None:
    alice = await agents("alice", bus=proxy.address, limits=ClientLimits(initial_backoff=30, max_backoff=60))
    proxy.cut(admit=False)
    await until(lambda: not alice.connected)
    async with asyncio.timeout(2):
        await alice.aclose()


async def test_closing_finds_the_bus_again_for_what_is_not_sent_yet(agents: Any, proxy: Proxy, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice", bus=proxy.address)
    proxy.cut(admit=False)
    await proxy.connected()
    sending = asyncio.create_task(alice.send("bob", "inform", "last words"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(alice.aclose())
    await proxy.connected()
    proxy.admit()
    await closing
    assert await sending == []
    assert await inbox.holds(1) == ["last words"]


async def test_closing_finds_the_bus_again_for_the_ack_of_a_handler_that_still_runs(
    bus: Any, agents: Any, proxy: Proxy
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def handle(message: Received) -> None:
        begun.set()
        await release.wait()

    bob = await agents("bob", handle, bus=proxy.address)
    await (await agents("alice")).send("bob", "inform", "1")
    await begun.wait()
    proxy.cut(admit=False)
    await proxy.connected()
    closing = asyncio.create_task(bob.aclose())
    await proxy.connected()
    proxy.admit()
    release.set()
    await closing
    assert bus.platform.ams.get("bob").mailbox.messages == 0


async def test_what_could_not_be_sent_by_the_end_says_so(agents: Any, proxy: Proxy) -> None:
    alice = await agents("alice", bus=proxy.address)
    proxy.cut(admit=False)
    await proxy.connected()
    sending = asyncio.create_task(alice.send("alice", "inform", "x"))
    await asyncio.sleep(0)
    await alice.aclose(grace=0.1)
    with pytest.raises((PreconditionFailed, BusUnreachable)):
        await sending


async def test_a_bye_that_was_lost_is_said_again_until_the_name_is_free(bus: Any, agents: Any, proxy: Proxy) -> None:
    alice = await agents("alice", bus=proxy.address)
    proxy.silence("in")
    closing = asyncio.create_task(alice.aclose(deregister=True))
    # The bye has left the agent, and has not reached the bus.
    await proxy.held()
    proxy.cut()
    proxy.speak()
    await closing
    assert bus.platform.ams.find("alice") is None


async def test_a_bye_that_reaches_nobody_in_time_is_told(
    bus: Any, agents: Any, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    alice = await agents("alice", bus=proxy.address)
    proxy.cut(admit=False)
    await proxy.connected()
    await alice.aclose(deregister=True, grace=0.1)
    assert bus.platform.ams.find("alice") is not None
    assert caplog.messages[-1] == "alice: the bus was not reached in time; the name stays registered"


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_connection_that_is_lost_while_closing_leaves_nothing(
    agents: Any, proxy: Proxy, inbox: Any, turns: int
) -> None:
    await agents("bob", inbox)
    alice = await agents("alice", bus=proxy.address)
    sends = [asyncio.create_task(alice.send("bob", "inform", str(number))) for number in range(20)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(alice.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    proxy.cut()
    await closing
    assert await asyncio.gather(*sends) == [[]] * 20
    assert await inbox.holds(20) == [str(number) for number in range(20)]


async def test_calls_wait_until_the_connection_is_found_again(agents: Any, proxy: Proxy) -> None:
    alice = await agents("alice", bus=proxy.address, services=["x"])
    proxy.cut(admit=False)
    await proxy.connected()
    searching = asyncio.create_task(alice.df.search("x"))
    await asyncio.sleep(0)
    proxy.admit()
    assert [one.name for one in await searching] == ["alice@local"]


async def test_a_call_that_is_under_way_when_its_connection_is_closed_is_not_cancelled(
    agents: Any, proxy: Proxy
) -> None:
    alice = await agents("alice", bus=proxy.address)
    proxy.silence("out")
    searching = asyncio.create_task(alice.df.search())
    await proxy.held()
    # gRPC raises CancelledError for a call whose channel is closed, to whoever waits and was not cancelled.
    await alice.aclose(grace=0.05)
    with pytest.raises(BusUnreachable):
        await searching


def sessions_of(bus: Any, agent: Agent) -> int:
    """Return how many sessions the bus has had with an agent."""
    return int(bus.platform.ams.get(agent.name).generation)


async def _yes(message: Received) -> str:
    return "yes"


async def test_bus_on_this_machine_is_not_looked_for_behind_a_proxy(
    bus: Any, agents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("grpc_proxy", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    alice = await agents("alice")
    assert await alice.ams.search()
