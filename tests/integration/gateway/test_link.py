"""`ACPClient` over a gateway: the same as over gRPC, and across lost sockets."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from proxy import Proxy, proxy_to
from waiting import WAIT, Inbox, settled, until
from websockets.asyncio.server import ServerConnection, serve

from gagent_grpc import (
    ACPClient,
    ACPcredentials,
    ACPMessage,
    Agent,
    AgentAlreadyRegistered,
    BusUnreachable,
    ClientLimits,
    DeliveryRefused,
    InvalidArgument,
    MessageTooLarge,
    Operator,
    PreconditionFailed,
    SessionSuperseded,
    Unauthenticated,
    Unauthorised,
)
from gagent_grpc.gateway.app import open_gateway

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, connect_timeout=5.0)
ORDER = {"limit": 3, "ratio": 3.0, "ticket": 9007199254740993, "flags": [True, None, ""], "é𐐷": {}}


@pytest.fixture
async def proxy(gateway: Any) -> AsyncIterator[Proxy]:
    async with proxy_to(gateway.address) as made:
        yield made


@pytest.fixture
async def echo(agents: Any) -> Agent:
    """An agent that answers every request with what it was sent."""

    async def answer(message: ACPMessage) -> Any:
        return {"you_said": message.content} if message.type == "request" else None

    return await agents("echo", answer)  # type: ignore[no-any-return]


def client_of(url: str, name: str = "alice", **settings: Any) -> ACPClient:
    return ACPClient(url, name, limits=settings.pop("limits", QUICK), **settings)


async def test_a_question_is_answered_as_over_grpc(bus: Any, gateway: Any, echo: Agent) -> None:
    said = []
    for number, url in enumerate((gateway.url, bus.address)):
        async with client_of(url, f"visitor{number}") as client:
            sent = await client.send_direct_message("echo", ORDER)
            answer = await client.receive(WAIT)
            assert answer.in_reply_to == sent.id
            assert sent.source == f"visitor{number}@local"
            said.append((answer.type, answer.source, answer.target, repr(answer.content), type(answer)))
    (kind, source, _, content, made), other = said
    assert (kind, source, content, made) == (other[0], other[1], other[3], other[4])
    assert content == repr({"you_said": ORDER})


async def test_what_is_not_taken_is_raised_as_over_grpc(bus: Any, gateway: Any) -> None:
    for number, url in enumerate((gateway.url, bus.address)):
        async with client_of(url, f"visitor{number}") as client:
            with pytest.raises(DeliveryRefused) as refused:
                await client.send_direct_message("nobody", "x")
            assert (refused.value.outcome, refused.value.receiver) == ("NO_SUCH_AGENT", "nobody")
            with pytest.raises(DeliveryRefused, match="DENIED"):
                await client.send_direct_message(f"visitor{number}", "x", source="somebody")
            with pytest.raises(MessageTooLarge) as too_large:
                await client.send_direct_message(f"visitor{number}", "x" * 1_000_000)
            assert too_large.value.limit_bytes == 1_000_000
            with pytest.raises(MessageTooLarge):
                await client.send_direct_message(f"visitor{number}", "x" * 3_000_000)
            with pytest.raises(InvalidArgument):
                await client.send_direct_message(f"visitor{number}", {1: 2})
            # The error of each was raised, and is not told a second time.
            await client.send_direct_message(f"visitor{number}", "last")
            assert (await client.receive(WAIT)).content == "last"


async def test_tasks_are_delegated_over_a_link(gateway: Any, agents: Any) -> None:
    worker = await agents("worker")

    @worker.on_delegate
    async def work(task: Any) -> Any:
        return task.parameters

    async with client_of(gateway.url) as client:
        content = {"task_id": "t", "description": "do it", "parameters": ORDER}
        await client.send_direct_message("worker", content, type="delegate")
        kinds = {}
        while "result" not in kinds:
            message = await client.receive(WAIT)
            kinds[str(message.type)] = message.content
    assert kinds["response"] == {"task_id": "t", "status": "accepted"}
    assert repr(kinds["result"]["result"]) == repr(ORDER)


async def test_what_was_not_received_comes_again_to_the_next_client(
    bus: Any, gateway: Any, agents: Any, gone: Any
) -> None:
    bob = await agents("bob")
    async with client_of(gateway.url) as client:
        for number in range(3):
            await bob.send_acp(ACPMessage(type="notification", target="alice", content=number))
        assert (await client.receive(WAIT)).content == 0
    await gone(gateway)
    assert bus.platform.ams.get("alice").mailbox.messages == 2
    async with client_of(gateway.url) as client:
        assert [(await client.receive(WAIT)).content for _ in range(2)] == [1, 2]
    await settled(bus, "alice")


async def test_a_lost_socket_is_found_again_and_everything_arrives_once(
    bus: Any, gateway: Any, agents: Any, proxy: Proxy
) -> None:
    inbox = Inbox()
    bob = await agents("bob", inbox)
    async with client_of(f"ws://{proxy.address}/acp") as client:
        got: list[Any] = []

        async def receive() -> None:
            while len(got) < 60:
                got.append((await client.receive(WAIT)).content)

        async def send(number: int) -> None:
            await client.send_direct_message("bob", number, type="notification")

        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            for number in range(60):
                group.create_task(send(number))
                await bob.send_acp(ACPMessage(type="notification", target="alice", content=number))
                if number % 15 == 7:
                    proxy.cut()
        assert sorted(got) == list(range(60))
        assert sorted(await inbox.holds(60)) == list(range(60))
    await settled(bus, "alice")
    assert len(inbox.messages) == 60


async def test_a_gateway_that_restarts_is_found_again(buses: Any, tokens: Any, agents: Any) -> None:
    bus = await buses()
    async with open_gateway(bus.address) as first:
        address = first.address
        client = client_of(first.url)
        await client.connect()
    receiving = asyncio.create_task(client.receive(WAIT))
    async with open_gateway(bus.address, listen=address), Agent("bob", bus=bus.address) as bob:
        await client.send_direct_message("bob", "back", type="notification")
        await bob.send_acp(ACPMessage(type="notification", target="alice", content="you are back"))
        assert (await receiving).content == "you are back"
        await client.aclose()


@pytest.mark.parametrize(
    ("end", "error"),
    [("superseded", SessionSuperseded), ("terminated", PreconditionFailed), ("revoked", Unauthenticated)],
)
async def test_an_end_for_good_is_told_to_whoever_waits(
    bus: Any, gateways: Any, tokens: Any, end: str, error: type[Exception]
) -> None:
    made, text = tokens.issue(["alice"])
    gateway = await gateways()
    async with client_of(gateway.url, credentials=ACPcredentials(text)) as client:
        receiving = asyncio.create_task(client.receive(WAIT))
        other: Callable[[], Any] | None = None
        if end == "superseded":
            newer = client_of(gateway.url, credentials=ACPcredentials(text))
            await newer.connect()
            other = newer.aclose
        elif end == "terminated":
            async with Operator(bus=bus.address) as operator:
                await operator.ams.terminate("alice")
        else:
            tokens.revoke(made.id)
        with pytest.raises(error):
            await receiving
        with pytest.raises(error):
            await client.send_direct_message("alice", "x")
        if other is not None:
            await other()


async def test_who_may_not_come_in_hears_it_at_once(gateways: Any, tokens: Any) -> None:
    _, text = tokens.issue(["bob"])
    gateway = await gateways()
    for token, error in (("", Unauthenticated), ("nonsense", Unauthenticated), (text, Unauthorised)):
        with pytest.raises(error) as raised:
            await client_of(gateway.url, credentials=ACPcredentials(token)).connect()
        assert not token or token not in str(raised.value)


async def test_a_name_that_is_taken_is_told(gateway: Any) -> None:
    async with client_of(gateway.url):
        with pytest.raises(AgentAlreadyRegistered):
            await client_of(gateway.url).connect()


async def test_nobody_there_is_told_with_the_way_out(bus: Any) -> None:
    limits = ClientLimits(connect_timeout=0.2, initial_backoff=0.01)
    with pytest.raises(BusUnreachable, match=r"No bus at 127\.0\.0\.1:9\..*gagent serve --web"):
        await client_of("ws://127.0.0.1:9/acp", limits=limits).connect()
    # Something that is no gateway.
    with pytest.raises(BusUnreachable):
        await client_of(f"ws://{bus.address}/acp", limits=limits).connect()


@pytest.mark.parametrize("url", ["ws://", "ws:///acp", "ws://user:secret@127.0.0.1:1/acp"])
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await ACPClient(url, "alice").connect()
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("token", ["gag_abc\n", "gag_abc\r\nOrigin: null", "gag abc", " gag_abc", "日本", "é", "="])
async def test_a_token_that_can_be_none_is_told_and_not_shown(gateway: Any, token: str) -> None:
    """Such as one with the line end of the file that it was read from, which would begin another header."""
    with pytest.raises(InvalidArgument, match="line end") as raised:
        await client_of(gateway.url, credentials=ACPcredentials(token)).connect()
    assert raised.value.field == "credentials"
    assert token not in str(raised.value) or token == "="
    assert gateway.sockets == 0


async def test_what_accepts_a_socket_and_says_nothing_is_no_gateway() -> None:
    async def say_nothing(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async with serve(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(WAIT):
            with pytest.raises(BusUnreachable, match="says nothing"):
                await client_of(f"ws://127.0.0.1:{port}/acp", limits=ClientLimits(connect_timeout=0.1)).connect()


async def test_the_log_of_a_client_has_no_token_and_no_content(
    gateways: Any, tokens: Any, agents: Any, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    _, text = tokens.issue(["alice"])
    gateway = await gateways()
    heard = Inbox()
    await agents("bob", heard)
    async with client_of(gateway.url, credentials=ACPcredentials(text)) as client:
        await client.send_direct_message("bob", "the plans")
    # What the test itself receives is told by nobody else.
    for name in ("gagent_grpc", "websockets", "uvicorn"):
        told = [one.getMessage() for one in caplog.records if one.name.startswith(name)]
        assert not [one for one in told if text in one or text[20:] in one or "the plans" in one]


async def test_a_message_that_nobody_waits_for_any_more_leaves_no_error_behind(gateway: Any, caplog: Any) -> None:
    async with client_of(gateway.url) as client:
        sending = asyncio.create_task(client.send_direct_message("nobody", "Hello"))
        # It is on its way by now.
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait({sending})
        await until(lambda: not client._link._sent)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_closed_client_is_closed(gateway: Any, gone: Any) -> None:
    client = client_of(gateway.url)
    await client.connect()
    receiving = asyncio.create_task(client.receive())
    await until(lambda: gateway.sockets == 1)
    await client.aclose()
    with pytest.raises(PreconditionFailed):
        await receiving
    await gone(gateway)
    await client.connect()
    await client.aclose()
    await client.aclose()
