"""C09: quiet links. Who only asks whether the link lives is not thrown out, and who is frozen is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from proxy import proxy_to
from pulse import pulse_check
from raw import acl
from waiting import until

from gagent_grpc import Agent, BusLimits, LifeCycleState
from gagent_grpc.client import transport
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc as services
from gagent_grpc.server import app

CLIENTS_MAY_PING_EVERY = 10.0
"""Seconds; what the bus allows its clients."""

FROZEN = """
    import asyncio, sys
    from gagent_grpc import Agent

    bob = Agent("bob", bus=sys.argv[1])

    @bob.on()
    async def keep(message):
        print(message.content, flush=True)

    async def main():
        async with bob:
            print("open", flush=True)
            await bob.wait()

    asyncio.run(main())
"""


def faster(options: list[tuple[str, int]], factor: int) -> list[tuple[str, int]]:
    """Return channel options whose keepalive times are so many times shorter; what they are to each other stays."""
    return [(name, value // factor if name.endswith("_ms") else value) for name, value in options]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes the keepalive of every bus and client from then on so many times faster."""

    def make(factor: int) -> None:
        bus_options = app.server_options
        monkeypatch.setattr(app, "server_options", lambda limits: faster(bus_options(limits), factor))
        monkeypatch.setattr(transport, "OPTIONS", faster(transport.OPTIONS, factor))

    return make


async def test_c09a_quiet_clients_that_ping_as_often_as_they_may_are_not_cut(hurry: Any, buses: Any) -> None:
    """Without `min_ping_interval_without_data_ms` the bus cuts both clients at their third ping."""
    factor = 40
    hurry(factor)
    bus = await buses()
    interval = int(CLIENTS_MAY_PING_EVERY * 1000 / factor)
    options = [
        ("grpc.keepalive_time_ms", interval),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with (
        pulse_check(bus) as stack,
        proxy_to(bus.address) as other,
        proxy_to(bus.address) as shipped,
        proxy_to(bus.address) as callless,
        grpc.aio.insecure_channel(other.address, options=options) as channel,
        grpc.aio.insecure_channel(callless.address, options=options) as idle,
    ):
        # A client in another language, one that only holds a connection, and the SDK with its own interval.
        call = services.BusServiceStub(channel).OpenSession()
        await call.write(pb.OpenSessionRequest(hello=pb.Hello(protocol_version=1, agent="other")))
        assert (await call.read()).HasField("welcome")
        await idle.channel_ready()
        agent = await stack.enter_async_context(Agent("shipped", bus=shipped.address))
        links = (other, callless, shipped)
        # Nothing else is said on these links than pings and their answers.
        async with asyncio.timeout(15):
            await asyncio.gather(*(_forwarded(link, 8) for link in links))
        assert [link.connections for link in links] == [1, 1, 1]
        assert idle.get_state() is grpc.ChannelConnectivity.READY
        # The streams are still the same, and carry.
        assert await agent.send("other", "inform", "still here?") == []
        frame = await call.read()
        assert frame.deliver.deliveries[0].message.acl.text == "still here?"
        await call.write(pb.OpenSessionRequest(send=pb.SendBatch(messages=[acl("shipped", "yes")])))
        assert (await call.read()).receipts.accepted_through == 1
        assert bus.platform.ams.get("shipped").generation == bus.platform.ams.get("other").generation == 1
        call.cancel()


async def _forwarded(link: Any, count: int) -> None:
    for _ in range(count):
        await link.passed("in")


@pytest.mark.parametrize("half", ["heartbeat", "keepalive"])
async def test_c09b_frozen_agent_is_lost_within_the_bound_and_gets_its_mail_once(
    hurry: Any, buses: Any, programs: Any, tmp_path: Path, half: str
) -> None:
    """Each half of liveness notices by itself: without it the frozen agent stays active for ever."""
    if half == "heartbeat":
        interval, bound = 0.4, 3 * 0.4
    else:
        # 20 + 5 s, ten times faster; heartbeats are far away.
        interval, bound = 15.0, 2.5
        hurry(10)
    bus = await buses(limits=BusLimits(heartbeat_interval=interval, drain_grace=1.0))
    async with pulse_check(bus) as stack:
        alice = await stack.enter_async_context(Agent("alice", bus=bus.address))
        bob = await stack.enter_async_context(programs(FROZEN, bus.address))
        assert await bob.line() == "open"

        async def state() -> LifeCycleState:
            found = {one.name: one.description.state for one in await alice.ams.search_all()}
            return found["bob@local"]

        async def is_lost() -> bool:
            return await state() is LifeCycleState.UNKNOWN

        assert await state() is LifeCycleState.ACTIVE
        os.kill(bob.process.pid, signal.SIGSTOP)
        async with asyncio.timeout(bound + 5):
            await until(is_lost)
        for number in range(3):
            assert await alice.send("bob", "inform", f"{number}") == []
        os.kill(bob.process.pid, signal.SIGCONT)
        assert [await bob.line() for _ in range(3)] == ["0", "1", "2"]
        assert await state() is LifeCycleState.ACTIVE
        # What comes behind them is the next line, so none of them came twice.
        await alice.send("bob", "inform", "last")
        assert await bob.line() == "last"
        assert bus.platform.ams.get("bob").generation == 2
