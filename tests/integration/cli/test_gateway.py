"""`gagent serve --web` and `gagent auth token` as processes of their own, and a WebSocket client beside them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import stat
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place, Program

WAIT = 20.0
"""Seconds after which something that should have come will not come any more."""


def gateway_of(bus: Program) -> str:
    return bus.said("gagent: gateway listens at ").rpartition(" ")[2]


async def following(ws: ClientConnection, **like: Any) -> dict[str, Any]:
    """Return the next frame with these values."""
    async with asyncio.timeout(WAIT):
        while True:
            frame = json.loads(await ws.recv())
            if all(frame.get(name) == value for name, value in like.items()):
                return dict(frame)


async def end(ws: ClientConnection) -> int:
    """Wait until the gateway has closed the socket; return its code."""
    async with asyncio.timeout(WAIT):
        try:
            while True:
                await ws.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006


async def test_a_script_agent_is_asked_over_websocket(place: Place, oracle: str) -> None:
    bus = await asyncio.to_thread(place.serve, "--web", "127.0.0.1:0")
    url = gateway_of(bus)
    script = place.start("run", place.script("oracle.py", oracle))
    await asyncio.to_thread(script.said, "oracle@local")
    async with connect(f"{url}?agent=alice", proxy=None) as ws:
        await ws.send(json.dumps({"type": "request", "id": "m-1", "target": "oracle", "content": "hello"}))
        assert (await following(ws, control="receipt"))["outcome"] == "ACCEPTED"
        response = await following(ws, type="response")
        assert (response["content"], response["in_reply_to"]) == ("echo: hello", "m-1")
        # The other way round: the command asks the socket.
        asking = asyncio.create_task(asyncio.to_thread(place.gagent, "request", "alice", "who are you?"))
        asked = await following(ws, type="request")
        answer = {"type": "response", "target": asked["source"], "in_reply_to": asked["id"], "content": "alice"}
        await ws.send(json.dumps(answer))
        assert (await asking).stdout == "alice\n"


async def test_a_signal_drains_sockets_and_ends_in_time(place: Place) -> None:
    bus = await asyncio.to_thread(place.serve, "--web", "127.0.0.1:0")
    url = gateway_of(bus)
    async with connect(f"{url}?agent=alice", proxy=None) as alice, connect(f"{url}?agent=deaf", proxy=None) as deaf:
        await following(alice, control="welcome")
        deaf.transport.pause_reading()
        bus.process.send_signal(signal.SIGTERM)
        assert await end(alice) == 1012
        assert await asyncio.to_thread(bus.end) == 0
        deaf.transport.abort()
    assert not [line for line in bus.lines if "Traceback" in line]


async def test_tokens_of_the_command_open_sockets_until_they_are_revoked(place: Place) -> None:
    issued = place.gagent("auth", "token", "issue", "alice", "sales-*", "--label", "laptop", "--ttl", "30d", "--json")
    assert issued.returncode == 0, issued.stderr
    made = json.loads(issued.stdout)
    assert made["token"].startswith(f"gag_{made['id']}_")
    assert (made["agents"], made["label"], made["state"]) == (["alice", "sales-*"], "laptop", "valid")
    file = place.folder / "state" / "gagent" / "local.tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    bus = await asyncio.to_thread(place.serve, "--web", "127.0.0.1:0")
    url = gateway_of(bus)
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{url}?agent=alice", proxy=None)
    assert refused.value.response.status_code == 401
    headers = {"Authorization": f"Bearer {made['token']}"}
    async with connect(url, additional_headers=headers, proxy=None) as ws:
        assert (await following(ws, control="welcome"))["agent"] == "alice@local"
        revoked = await asyncio.to_thread(place.gagent, "auth", "token", "revoke", made["id"])
        assert revoked.stdout == f"{made['id']}: revoked\n"
        assert await end(ws) == 4003
    listed = await asyncio.to_thread(place.gagent, "auth", "token", "list", "--json")
    assert [(one["id"], one["state"]) for one in json.loads(listed.stdout)] == [(made["id"], "revoked")]
    assert await asyncio.to_thread(bus.end, signal.SIGTERM) == 0
    # Nowhere but in the one answer.
    secret = made["token"].rpartition(f"{made['id']}_")[2]
    everything = "\n".join([*bus.lines, revoked.stdout, revoked.stderr, listed.stdout, file.read_text()])
    assert secret not in everything


def test_a_web_address_that_cannot_be_served_is_one_line(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        usual = ("serve", "--listen", "127.0.0.1:0", "--store", "memory", "--log-level", "error")
        program = place.start(*usual, "--web", taken)
        assert program.end() == 2
    (line,) = program.lines
    assert line.startswith(f"cannot serve the web at {taken}: the address is in use")


async def test_the_gateway_is_settled_by_file_and_environment(place: Place) -> None:
    place.script(
        "gagent.toml",
        'web = "127.0.0.1:0"\nrequire_token = true\nweb_origin = "https://one.example, https://two.example"\n',
    )
    bus = await asyncio.to_thread(place.serve)
    url = gateway_of(bus)
    for origin, status in (("https://two.example", 401), ("https://three.example", 403)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{url}?agent=alice", origin=origin, proxy=None)  # type: ignore[arg-type]
        assert refused.value.response.status_code == status
