"""Who gets in, whom a socket makes way for, and how each one ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from typing import Any

import pytest
from waiting import WAIT, until

from gagent_grpc import Agent, Operator
from gagent_grpc.config import GatewayLimits
from gagent_grpc.errors import ConfigurationError
from gagent_grpc.gateway.app import open_gateway


async def http(gateway: Any, request: str) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of a plain HTTP request."""
    host, port = gateway.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{request} HTTP/1.1\r\nHost: {gateway.address}\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(WAIT):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body.startswith(b"{") else {}


def bearer(text: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {text}"}}


# ---- tokens ------------------------------------------------------------------------------------------------------------


async def test_a_token_opens_a_socket_for_its_agent(gateways: Any, tokens: Any, clients: Any) -> None:
    _, text = tokens.issue(["alice", "sales-*"])
    gateway = await gateways()
    assert (await clients(gateway, **bearer(text))).welcome["agent"] == "alice@local"
    assert (await clients(gateway, "sales-eu", **bearer(text))).welcome["agent"] == "sales-eu@local"


async def test_a_browser_shows_its_token_as_a_subprotocol(gateways: Any, tokens: Any, clients: Any) -> None:
    _, text = tokens.issue(["alice"])
    gateway = await gateways()
    origin = f"http://{gateway.address}"
    alice = await clients(gateway, subprotocols=["gagent.acp", f"bearer.{text}"], origin=origin)
    assert alice.welcome["agent"] == "alice@local"
    assert alice.socket.subprotocol == "gagent.acp"


async def test_who_may_not_come_in_is_told_why(gateways: Any, tokens: Any, refused: Any) -> None:
    made, text = tokens.issue(["alice"])
    gateway = await gateways()
    assert (await refused(gateway, "?agent=alice"))[0] == 401
    status, said = await refused(gateway, **bearer(text[:-1] + ("A" if text[-1] != "A" else "B")))
    assert (status, said["code"]) == (401, "UNAUTHENTICATED")
    status, said = await refused(gateway, "?agent=bob", **bearer(text))
    assert (status, said["code"]) == (403, "UNAUTHORISED")
    status, said = await refused(gateway, "?agent=two%20words", **bearer(text))
    assert (status, said["code"]) == (400, "INVALID_NAME")
    status, said = await refused(gateway, origin="http://evil.example", **bearer(text))
    assert (status, said["code"]) == (403, "UNAUTHORISED")
    tokens.revoke(made.id)
    await until(lambda: not gateway._tokens.is_valid(made))
    assert (await refused(gateway, **bearer(text)))[0] == 401
    # Still nobody gets in without one.
    assert (await refused(gateway, "?agent=alice"))[0] == 401
    assert gateway.sockets == 0


async def test_a_token_may_be_required_before_there_is_one(gateways: Any, refused: Any) -> None:
    gateway = await gateways(require_token=True)
    assert (await refused(gateway, "?agent=alice"))[0] == 401


async def test_the_first_token_of_a_running_gateway_ends_the_open_door(
    gateway: Any, tokens: Any, clients: Any, refused: Any
) -> None:
    alice = await clients(gateway, "alice")
    _, text = tokens.issue(["bob"])
    await until(lambda: gateway._tokens.required)
    assert (await refused(gateway, "?agent=carol"))[0] == 401
    assert (await clients(gateway, **bearer(text))).welcome["agent"] == "bob@local"
    # Who came in by the open door has no token either.
    assert await alice.end() == (4003, "a token is required now")


@pytest.mark.parametrize("how", ["revoked", "expired", "file gone"])
async def test_a_token_that_ends_closes_its_sockets(gateways: Any, tokens: Any, clients: Any, how: str) -> None:
    made, text = tokens.issue(["alice"])
    _, other = tokens.issue(["bob"])
    gateway = await gateways()
    alice, bob = await clients(gateway, **bearer(text)), await clients(gateway, **bearer(other))
    if how == "revoked":
        tokens.revoke(made.id)
    elif how == "expired":
        stored = json.loads(tokens.path.read_text())
        (found,) = (one for one in stored["tokens"] if one["id"] == made.id)
        found["expires_at"] = "2020-01-01T00:00:00+00:00"
        tokens.path.write_text(json.dumps(stored))
    else:
        tokens.path.unlink()
    assert (await alice.end())[0] == 4003
    if how == "file gone":
        assert (await bob.end())[0] == 4003
    else:
        await bob.say(type="heartbeat", id="still here")
        assert await bob.receipt("still here") == "ACCEPTED"


async def test_tokens_are_in_no_log_and_no_answer(
    gateways: Any, tokens: Any, clients: Any, refused: Any, caplog: Any
) -> None:
    made, text = tokens.issue(["alice"])
    _, other = tokens.issue(["bob"])
    said = []
    with caplog.at_level(logging.DEBUG):
        gateway = await gateways()
        await clients(gateway, **bearer(text))
        await clients(gateway, subprotocols=["gagent.acp", f"bearer.{other}"])
        said.append(await refused(gateway, "?agent=carol", **bearer(text)))
        said.append(await refused(gateway, f"?agent=alice&token={text}"))
        said.append(await refused(gateway, **bearer(text[:-1])))
        tokens.revoke(made.id)
        await until(lambda: gateway.sockets == 1)
    # The client of this test, which logs what it sends, is not ours.
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets.client")]
    everything = "\n".join([*logged, repr(said)])
    assert made.id in everything
    for secret in (text, other):
        assert secret[17:40] not in everything


async def test_tokens_that_cannot_be_read_are_no_open_door(bus: Any, tokens: Any) -> None:
    tokens.issue(["alice"])
    tokens.path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        async with open_gateway(bus.address, tokens=tokens.path):
            pass


# ---- names -------------------------------------------------------------------------------------------------------------


async def test_a_newer_socket_of_the_same_token_takes_over(gateways: Any, tokens: Any, clients: Any) -> None:
    _, text = tokens.issue(["alice"])
    gateway = await gateways()
    first = await clients(gateway, **bearer(text))
    second = await clients(gateway, **bearer(text))
    code, reason = await first.end()
    assert (code, "took over" in reason) == (4001, True)
    await second.say(type="request", id="m", target="alice", content="mine")
    assert (await second.next(type="request"))["content"] == "mine"


async def test_without_a_token_who_is_there_keeps_the_name(gateway: Any, clients: Any, refused: Any) -> None:
    first = await clients(gateway, "alice")
    status, said = await refused(gateway, "?agent=alice")
    assert (status, said["code"]) == (409, "AGENT_ALREADY_REGISTERED")
    await first.say(type="heartbeat", id="still here")
    assert await first.receipt("still here") == "ACCEPTED"


async def test_without_a_token_who_is_not_there_any_more_makes_way(gateway: Any, clients: Any) -> None:
    first = await clients(gateway, "alice")
    first.socket.transport.pause_reading()
    second = await clients(gateway, "alice")
    await second.say(type="heartbeat", id="here")
    assert await second.receipt("here") == "ACCEPTED"
    first.socket.transport.abort()


async def test_the_name_of_an_agent_over_grpc_is_taken(bus: Any, gateway: Any, refused: Any) -> None:
    async with Agent("alice", bus=bus.address):
        status, said = await refused(gateway, "?agent=alice")
    assert (status, said["code"]) == (409, "AGENT_ALREADY_REGISTERED")
    assert gateway.sockets == 0


async def test_many_that_want_one_name_get_it_one_after_the_other(gateways: Any, tokens: Any, clients: Any) -> None:
    _, text = tokens.issue(["alice"])
    gateway = await gateways()
    many = await asyncio.gather(*(clients(gateway, **bearer(text)) for _ in range(6)), return_exceptions=True)
    opened = [one for one in many if not isinstance(one, BaseException)]
    assert opened
    assert gateway.sockets == 1
    ended = [asyncio.create_task(one.end()) for one in opened]
    # One has it; all others know that they have not.
    await until(lambda: sum(one.done() for one in ended) == len(opened) - 1)
    assert {one.result()[0] for one in ended if one.done()} <= {4001}
    for one in ended:
        one.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


async def test_an_agent_that_is_ended_by_the_ams_loses_its_socket(bus: Any, gateway: Any, clients: Any) -> None:
    alice = await clients(gateway, "alice")
    async with Operator(bus=bus.address) as operator:
        await operator.ams.terminate("alice")
    assert (await alice.end())[0] == 4002


# ---- the gateway -------------------------------------------------------------------------------------------------------


async def test_there_are_as_many_sockets_as_allowed(gateways: Any, clients: Any, refused: Any, gone: Any) -> None:
    gateway = await gateways(limits=GatewayLimits(max_sockets=2))
    first = await clients(gateway, "one")
    await clients(gateway, "two")
    status, said = await refused(gateway, "?agent=three")
    assert (status, said["code"]) == (503, "RESOURCE_EXHAUSTED")
    await first.socket.close()
    await until(lambda: gateway.sockets == 1)
    await clients(gateway, "three")


async def test_paths_beside_the_socket(gateway: Any) -> None:
    assert await http(gateway, "GET /healthz") == (200, {"status": "ok"})
    status, said = await http(gateway, "GET /acp")
    assert (status, said["code"]) == (426, "UPGRADE_REQUIRED")
    assert (await http(gateway, "GET /"))[0] == 404
    assert (await http(gateway, "POST /healthz"))[0] == 405


async def test_a_drain_tells_every_socket_and_lets_nobody_in(
    bus: Any, gateway: Any, clients: Any, refused: Any
) -> None:
    alice, bob = await clients(gateway, "alice"), await clients(gateway, "bob")
    for number in range(20):
        await alice.say(type="notification", id=f"m-{number}", target="away", content=number)
    await gateway.drain()
    assert [(await one.end())[0] for one in (alice, bob)] == [1012, 1012]
    assert (await refused(gateway, "?agent=carol"))[0] == 503
    assert (await http(gateway, "GET /healthz"))[0] == 503
    assert bus.platform.sessions == 0


async def test_a_drain_does_not_wait_for_who_does_not_read(bus: Any, gateway: Any, clients: Any) -> None:
    frozen = await clients(gateway, "alice")
    frozen.socket.transport.pause_reading()
    async with Agent("bob", bus=bus.address) as bob:
        for _ in range(16):
            await bob.send("alice", "inform", "x" * 500_000)
        async with asyncio.timeout(WAIT):
            await gateway.drain()
    assert bus.platform.ams.get("alice").mailbox.messages == 16
    frozen.socket.transport.abort()


async def test_a_bus_that_goes_takes_the_sockets_with_it(buses: Any, clients: Any) -> None:
    bus = await buses()
    async with open_gateway(bus.address) as gateway:
        alice = await clients(gateway, "alice")
        await bus.drain()
    assert (await alice.end())[0] == 1012


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen": "0.0.0.0:0"}, "is not loopback"),
        ({"listen": "here"}, "expected HOST:PORT"),
        ({"listen": "no-such-host.invalid:0", "insecure": True}, "cannot serve the web at"),
        ({"origins": ["*"]}, "expected SCHEME://HOST"),
    ],
)
async def test_what_cannot_be_served_is_said(bus: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        async with open_gateway(bus.address, **settings):
            pass


async def test_a_port_that_is_taken_is_said(bus: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=r"the address is in use.*--web HOST:PORT"):
            async with open_gateway(bus.address, listen=address):
                pass


async def test_pages_of_a_named_origin_may_connect(gateways: Any, clients: Any, refused: Any) -> None:
    gateway = await gateways(origins=["https://console.example"])
    await clients(gateway, "alice", origin="https://console.example")
    assert (await refused(gateway, "?agent=bob", origin="null"))[0] == 403
    host = gateway.address.replace("127.0.0.1", "localhost")
    await clients(gateway, "bob", origin=f"http://{host}")


async def test_other_addresses_of_this_machine_are_served(bus: Any, clients: Any) -> None:
    with contextlib.suppress(ConfigurationError):
        async with open_gateway(bus.address, listen="[::1]:0") as gateway:
            alice = await clients(gateway, "alice", origin=f"http://{gateway.address}")
            assert alice.welcome["agent"] == "alice@local"
    async with open_gateway(bus.address, listen="0.0.0.0:0", insecure=True) as gateway:
        port = gateway.address.rpartition(":")[2]
        bob = await clients(f"ws://127.0.0.1:{port}/acp", "bob")
        assert bob.welcome["agent"] == "bob@local"
