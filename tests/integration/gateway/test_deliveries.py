"""Nothing that was accepted is lost on its way to a socket, however it reads and however it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waiting import WAIT, settled, until

from gagent_grpc import ACPMessage
from gagent_grpc.config import GatewayLimits


async def mail(agent: Any, count: int, *, size: int = 0, to: str = "alice") -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            content = [number, "x" * size]
            message = ACPMessage(id=f"m-{number}", type="notification", target=to, content=content)
            group.create_task(agent.send_acp(message))
            await asyncio.sleep(0)


def mailbox(bus: Any, name: str) -> Any:
    return bus.platform.ams.get(name).mailbox


async def test_what_has_arrived_is_acknowledged_by_the_socket(
    bus: Any, gateway: Any, clients: Any, agents: Any, gone: Any
) -> None:
    bob = await agents("bob")
    alice = await clients(gateway, "alice")
    await mail(bob, 50)
    got = [(await alice.next(type="notification"))["content"][0] for _ in range(50)]
    assert got == list(range(50))
    await settled(bus, "alice")
    await alice.socket.close()
    await gone(gateway)
    again = await clients(gateway, "alice")
    await bob.send_acp(ACPMessage(type="notification", target="alice", content=["last"]))
    assert (await again.next(type="notification"))["content"] == ["last"]


async def test_mail_waits_for_a_socket(gateway: Any, clients: Any, agents: Any, gone: Any) -> None:
    bob = await agents("bob")
    alice = await clients(gateway, "alice")
    await alice.socket.close()
    await gone(gateway)
    await mail(bob, 3)
    again = await clients(gateway, "alice")
    assert [(await again.next(type="notification"))["content"][0] for _ in range(3)] == [0, 1, 2]


async def test_what_the_client_does_not_acknowledge_comes_again(
    bus: Any, gateway: Any, clients: Any, agents: Any, gone: Any
) -> None:
    bob = await agents("bob")
    alice = await clients(gateway, "alice", acks="client")
    await mail(bob, 4)
    for number in range(4):
        assert (await alice.next(type="notification"))["id"] == f"m-{number}"
    await alice.say(control="ack", id="m-1")
    await alice.say(control="ack", id="m-3", source="bob")
    # Of somebody else, of nobody, and once more: none of them does harm.
    await alice.say(control="ack", id="m-0", source="carol")
    await alice.say(control="ack", id="m-77")
    await alice.say(control="ack", id="m-1")
    await until(lambda: mailbox(bus, "alice").messages == 2)
    await alice.socket.close()
    await gone(gateway)
    again = await clients(gateway, "alice", acks="client")
    assert [(await again.next(type="notification"))["id"] for _ in range(2)] == ["m-0", "m-2"]
    for number in (0, 2):
        await again.say(control="ack", id=f"m-{number}")
    await settled(bus, "alice")


@pytest.mark.parametrize("acks", ["client", "socket"])
async def test_a_connection_that_breaks_loses_nothing(
    bus: Any, gateway: Any, clients: Any, agents: Any, gone: Any, acks: str
) -> None:
    bob = await agents("bob")
    alice = await clients(gateway, "alice", acks=acks)
    transport = alice.socket.transport
    # It reads no more, so that nothing of this has arrived.
    transport.pause_reading()
    await mail(bob, 5)
    await until(lambda: len(gateway._sockets["alice"]._unsettled) == 5)
    transport.abort()
    await gone(gateway)
    assert mailbox(bus, "alice").messages == 5
    again = await clients(gateway, "alice")
    assert [(await again.next(type="notification"))["id"] for _ in range(5)] == [f"m-{number}" for number in range(5)]
    await settled(bus, "alice")


async def test_the_window_is_what_is_on_its_way_at_most(bus: Any, gateway: Any, clients: Any, agents: Any) -> None:
    bob = await agents("bob")
    alice = await clients(gateway, "alice", acks="client", window=3)
    await mail(bob, 10)
    for number in range(3):
        assert (await alice.next(type="notification"))["id"] == f"m-{number}"
    # An answer that comes after everything that was written before.
    await alice.say(type="heartbeat", id="beat")
    assert await alice.receipt("beat") == "ACCEPTED"
    assert alice.frames == []
    await alice.say(control="ack", id="m-1")
    assert (await alice.next(type="notification"))["id"] == "m-3"
    assert mailbox(bus, "alice").messages == 9


async def test_a_client_that_reads_slowly_costs_itself_alone(bus: Any, gateway: Any, clients: Any, agents: Any) -> None:
    """600 messages of 16 KiB: what is not on its way waits in the mailbox, and others go on."""
    bob, slow = await agents("bob"), await clients(gateway, "slow")
    slow.socket.transport.pause_reading()
    await mail(bob, 600, size=16_384, to="slow")
    assert mailbox(bus, "slow").messages == 600
    server = gateway._sockets["slow"]
    assert len(server._waiting) + len(server._unsettled) <= 16
    # Beside it everything is as usual.
    alice = await clients(gateway, "alice")
    await alice.say(type="request", id="m", target="alice", content="quick")
    assert (await alice.next(type="request"))["content"] == "quick"
    assert len(server._waiting) + len(server._unsettled) <= 16
    slow.socket.transport.resume_reading()
    got = [(await slow.next(type="notification"))["content"][0] for _ in range(600)]
    assert sorted(got) == list(range(600))
    await settled(bus, "slow")


async def test_a_client_that_is_frozen_is_given_up_and_its_mail_waits(
    bus: Any, gateways: Any, clients: Any, agents: Any, gone: Any
) -> None:
    gateway = await gateways(limits=GatewayLimits(ping_interval=0.05, ping_timeout=0.2))
    bob = await agents("bob")
    frozen, alive = await clients(gateway, "alice"), await clients(gateway, "alive")
    frozen.socket.transport.pause_reading()
    await mail(bob, 3)
    await until(lambda: gateway.sockets == 1)
    assert mailbox(bus, "alice").messages == 3
    # One that answers stays, though it says nothing.
    await alive.say(type="heartbeat", id="still")
    assert await alive.receipt("still") == "ACCEPTED"
    frozen.socket.transport.abort()
    again = await clients(gateway, "alice")
    assert [(await again.next(type="notification"))["id"] for _ in range(3)] == ["m-0", "m-1", "m-2"]


async def test_a_client_that_acknowledges_slowly_is_not_given_up(
    bus: Any, gateways: Any, clients: Any, agents: Any
) -> None:
    """As many deliveries as the window has wait in the client's library, which still answers pings."""
    gateway = await gateways(limits=GatewayLimits(ping_interval=0.02, ping_timeout=0.5))
    bob = await agents("bob")
    alice = await clients(gateway, "alice", acks="client")
    await mail(bob, 40)
    server = gateway._sockets["alice"]
    # Long enough for many pings; nothing is read by the program meanwhile.
    await until(lambda: server._pings >= 40)
    assert not server.ending
    for _ in range(40):
        message = await alice.next(type="notification")
        await alice.say(control="ack", id=message["id"])
    await settled(bus, "alice")


async def test_connections_come_and_go_and_leave_nothing(bus: Any, gateway: Any, clients: Any, gone: Any) -> None:
    before = len(asyncio.all_tasks())

    async def visit(number: int) -> None:
        client = await clients(gateway, f"visitor{number % 20}-{number}", ephemeral="true")
        if number % 4 == 0:
            await client.say(type="request", target=f"visitor{number}", content="x")
        if number % 3 == 0:
            client.socket.transport.abort()
        else:
            await client.socket.close()

    for first in range(0, 200, 20):
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + 20):
                group.create_task(visit(number))
    await gone(gateway)
    await until(lambda: bus.platform.sessions == 0)
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_connection_that_says_nothing_is_closed(gateway: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("gagent_grpc.gateway.wire._REQUEST_TIMEOUT", 0.05)
    host, port = gateway.address.split(":")
    for said in (b"", b"GET /acp HTTP/1.1\r\nHost: x\r\nX-Slow: "):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(WAIT):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
