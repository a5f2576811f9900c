"""Peers that mean harm, or are broken: what one of them does costs itself alone, and the gateway says what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from waiting import WAIT, until

from gagent_grpc.config import GatewayLimits
from gagent_grpc.gateway import frames, wire

TEXT, CLOSE, PING = 1, 8, 9
CONTINUATION = 0


class RawPeer:
    """A TCP connection that speaks WebSocket by hand."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    async def say(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._connection, data)

    async def frame(self, opcode: int, payload: bytes = b"", *, fin: bool = True, times: int = 1) -> None:
        """Send a frame of at most 125 bytes, ``times`` times."""
        head = bytes([opcode | (0x80 if fin else 0), 0x80 | len(payload)])
        # Masked with zeros, which changes nothing.
        await self.say((head + bytes(4) + payload) * times)

    async def read(self) -> bytes:
        """Return what comes next; b"" at the end, or when the connection was reset."""
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(WAIT):
                return await self._loop.sock_recv(self._connection, 65536)
        return b""

    async def rest(self) -> bytes:
        """Return everything until the end of the connection."""
        return b"".join([part async for part in aiter(self.read, b"")])  # type: ignore[arg-type]

    async def ends(self) -> None:
        while await self.read():
            pass


@pytest.fixture
async def peers() -> AsyncIterator[Callable[..., Awaitable[RawPeer]]]:
    """Return a factory of connections: `await peers(gateway)`, or as an open socket `await peers(gateway, "eve")`."""
    with contextlib.ExitStack() as stack:

        async def start(gateway: Any, agent: str | None = None, *headers: str) -> RawPeer:
            connection = stack.enter_context(socket.socket())
            # So that little is on its way before a peer that reads nothing is noticed.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            host, port = gateway.address.split(":")
            await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
            peer = RawPeer(connection)
            if agent is not None:
                await peer.say(upgrade(agent, *headers))
                if not headers:
                    assert (await peer.read()).startswith(b"HTTP/1.1 101")
            return peer

        yield start


def upgrade(agent: str, *headers: str) -> bytes:
    lines = [
        f"GET /acp?agent={agent} HTTP/1.1",
        "Host: gateway.example",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *headers,
    ]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


@pytest.fixture
def wires(monkeypatch: Any) -> list[wire.Wire]:
    """The server's side of each WebSocket connection, in the order in which they came."""
    made: list[wire.Wire] = []
    before = wire.Wire.connection_made

    def connection_made(self: wire.Wire, transport: Any) -> None:
        made.append(self)
        before(self, transport)

    monkeypatch.setattr(wire.Wire, "connection_made", connection_made)
    return made


# ---- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([f"Authorization: Bearer {'x' * 9_000}"], id="one of 9 kB"),
        pytest.param([f"Authorization: Bearer {'x' * 100_000}"], id="one of 100 kB"),
        pytest.param([f"X-{number}: 1" for number in range(200)], id="two hundred"),
    ],
)
async def test_headers_that_are_too_large_are_answered_and_the_connection_ends(
    gateway: Any, peers: Any, headers: list[str]
) -> None:
    peer = await peers(gateway, "eve", *headers)
    said = b""
    while part := await peer.read():
        said += part
    assert said.split(b"\r\n")[0] in {b"HTTP/1.1 431 Request Header Fields Too Large", b"HTTP/1.1 400 Bad Request"}
    assert b"xxx" not in said
    assert gateway.sockets == 0


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", id="after a request"),
        pytest.param(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", id="within a body"),
    ],
)
async def test_a_request_that_never_ends_is_given_up_on_any_connection(
    gateway: Any, peers: Any, monkeypatch: Any, first: bytes
) -> None:
    """Not only on a new one: there, the time-out of idle connections ends with the first byte of the next request."""
    monkeypatch.setattr("gagent_grpc.gateway.wire._REQUEST_TIMEOUT", 0.2)
    peer = await peers(gateway)
    await peer.say(first)
    assert (await peer.read()).startswith(b"HTTP/1.1 ")
    await peer.say(b"G")
    await peer.ends()


async def test_requests_that_are_refused_are_no_errors_of_the_gateway(gateway: Any, refused: Any, caplog: Any) -> None:
    """Or whoever may not come in could fill the log."""
    caplog.set_level(logging.INFO)
    assert (await refused(gateway, "?agent=two%20words"))[0] == 400
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_token_is_good_as_soon_as_it_was_issued_and_no_longer_than_until_it_was_revoked(
    gateways: Any, tokens: Any, clients: Any, refused: Any
) -> None:
    # The file is never looked at by itself.
    gateway = await gateways(limits=GatewayLimits(token_check_interval=3600.0))
    made, text = tokens.issue(["alice"])
    shown = {"additional_headers": {"Authorization": f"Bearer {text}"}}
    assert (await refused(gateway, "?agent=alice"))[0] == 401
    assert (await clients(gateway, **shown)).welcome["agent"] == "alice@local"
    tokens.revoke(made.id)
    assert (await refused(gateway, **shown))[0] == 401


async def test_a_token_file_that_breaks_ends_no_watch_over_it(gateways: Any, tokens: Any, clients: Any) -> None:
    made, text = tokens.issue(["alice"])
    gateway = await gateways()
    alice = await clients(gateway, additional_headers={"Authorization": f"Bearer {text}"})
    whole = tokens.path.read_text()
    # A moment that no clock can say in UTC.
    tokens.path.write_text(whole.replace(made.created_at.isoformat(), "0001-01-01T00:00:00+23:59"))
    await until(lambda: gateway._tokens._seen == gateway._tokens._look())
    await alice.say(type="heartbeat", id="still here")
    assert await alice.receipt("still here") == "ACCEPTED"
    tokens.path.write_text(whole)
    tokens.revoke(made.id)
    assert (await alice.end())[0] == 4003


async def test_a_token_that_does_not_stand_for_the_agent_any_more_closes_its_socket(
    gateways: Any, tokens: Any, clients: Any
) -> None:
    _, text = tokens.issue(["alice", "bob"])
    gateway = await gateways()
    shown = {"additional_headers": {"Authorization": f"Bearer {text}"}}
    alice, bob = await clients(gateway, "alice", **shown), await clients(gateway, "bob", **shown)
    tokens.path.write_text(tokens.path.read_text().replace('"alice"', '"carol"'))
    assert (await alice.end())[0] == 4003
    await bob.say(type="heartbeat", id="still here")
    assert await bob.receipt("still here") == "ACCEPTED"


# ---- frames ------------------------------------------------------------------------------------------------------------


async def test_a_message_in_tiny_fragments_takes_no_more_room_than_one_in_a_piece(
    gateway: Any, peers: Any, wires: list[wire.Wire]
) -> None:
    peer = await peers(gateway, "eve")
    await peer.frame(TEXT, b'{"type": "heart', fin=False)
    for _ in range(20):
        await peer.frame(CONTINUATION, b"", fin=False, times=1_000)
    for char in b'beat", "id": "m-1':
        await peer.frame(CONTINUATION, bytes([char]), fin=False)
    (connection,) = wires
    await until(lambda: bool(connection.frames) and connection.frames[0].endswith(b"m-1"))
    assert len(connection.frames) == 1
    await peer.frame(CONTINUATION, b'"}')
    said = b""
    while b'"receipt"' not in said:
        said += await peer.read()
    assert b'"id":"m-1","outcome":"ACCEPTED"' in said


async def test_pings_of_a_peer_that_does_not_read_the_answers_end_its_connection(
    gateway: Any, peers: Any, gone: Any, wires: list[wire.Wire]
) -> None:
    peer = await peers(gateway, "eve")
    most = 0
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(WAIT):
            while gateway.sockets:
                await peer.frame(PING, bytes(125), times=50)
                most = max(most, wires[0].transport.get_write_buffer_size())
    await gone(gateway)
    # What is written beyond what the system takes.
    assert most < 1_000_000


async def test_a_peer_that_leaves_and_does_not_read_holds_no_connection(
    gateway: Any, peers: Any, gone: Any, wires: list[wire.Wire], monkeypatch: Any
) -> None:
    monkeypatch.setattr("gagent_grpc.gateway.websocket._LINGER", 0.05)
    monkeypatch.setattr("gagent_grpc.gateway.wire._MOST_UNREAD_PONGS", 1_000_000)
    peer = await peers(gateway, "eve")
    (connection,) = wires
    async with asyncio.timeout(WAIT):
        # Until answers wait in the process.
        while connection.writable.is_set():
            await peer.frame(PING, bytes(125), times=10)
    await peer.frame(CLOSE, struct.pack("!H", 1000))
    await gone(gateway)
    await until(lambda: connection.disconnected)


async def test_pings_of_a_peer_that_reads_are_answered_as_often_as_they_come(gateway: Any, clients: Any) -> None:
    alice = await clients(gateway, "alice")
    async with asyncio.timeout(WAIT):
        for _ in range(1_200):
            await alice.socket.ping()
        await (await alice.socket.ping(os.urandom(8)))
    await alice.say(type="heartbeat", id="still here")
    assert await alice.receipt("still here") == "ACCEPTED"


async def test_frames_that_come_at_once_are_read_in_turns(gateway: Any, peers: Any, monkeypatch: Any) -> None:
    """Or whoever sends thousands of them keeps all others waiting."""
    turns: list[int] = []
    turn = 0
    read_frame = frames.read_frame

    def read(text: str) -> Any:
        turns.append(turn)
        return read_frame(text)

    monkeypatch.setattr(frames, "read_frame", read)
    peer = await peers(gateway, "eve")
    await peer.frame(TEXT, b'{"control":"ack","id":"of nobody"}', times=1_000)
    async with asyncio.timeout(WAIT):
        while len(turns) < 1_000:
            await asyncio.sleep(0)
            turn += 1
    assert max(Counter(turns).values()) <= 32


async def test_wishes_to_watch_one_task_are_taken_one_after_the_other(gateway: Any, peers: Any) -> None:
    """Each one costs the bus a question, and ends the one before."""
    peer = await peers(gateway, "eve")
    await peer.frame(TEXT, b'{"control":"watch","task_id":"t-1"}', times=500)
    await peer.frame(TEXT, b'{"type":"heartbeat","id":"last"}')
    said, most = b"", 0

    async def count() -> None:
        nonlocal most
        while True:
            running = [task.get_coro() for task in asyncio.all_tasks()]
            most = max(most, sum(getattr(one, "__qualname__", "") == "Socket._watch" for one in running))
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    while b'"id":"last"' not in said:
        said += await peer.read()
    counting.cancel()
    assert 1 <= most <= 2


async def test_of_thousands_of_frames_that_come_at_once_few_are_parsed_before_they_are_taken(
    gateway: Any, peers: Any, wires: list[wire.Wire]
) -> None:
    peer = await peers(gateway, "eve")
    (connection,) = wires
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, connection.queue.qsize())
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        await peer.frame(TEXT, b"{}", times=99)
        for _ in range(5):
            await peer.frame(TEXT, b'{"control":"ack","id":"of nobody"}', times=4_000)
        await peer.frame(TEXT, b'{"type":"heartbeat","id":"last"}')
        said = b""
        while b'"id":"last"' not in said:
            said += await peer.read()
    finally:
        counting.cancel()
    # All of them arrived, and in order: the answers to what was no message come first.
    assert said.index(b'"number":99,') < said.index(b'"number":100,"id":"last"')
    assert most <= 1_000
