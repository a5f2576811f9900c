"""The classes of the ACP interface: connections, broadcasts, retries, a client, an agent that serves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from waiting import WAIT, Inbox, settled, until

from gagent_grpc import (
    ACPAgent,
    ACPClient,
    ACPcredentials,
    ACPMessage,
    ACPMessageType,
    ACPMetadata,
    ACPService,
    Agent,
    AgentAlreadyRegistered,
    AgentNotRegistered,
    BusLimits,
    BusUnreachable,
    ClientLimits,
    DeliveryRefused,
    InvalidArgument,
    InvalidName,
    NotUnderstoodByAgent,
    Operator,
    Outcome,
    PreconditionFailed,
    ReceivedACP,
    Refuse,
    SqliteStore,
)
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.testing import running_bus

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, retry_delay=0.05, connect_timeout=2.0, call_timeout=5.0)

ServiceFactory = Callable[..., Awaitable[ACPService]]


@pytest.fixture
async def services(bus: Any) -> AsyncIterator[ServiceFactory]:
    """Return a factory of started services: `await services("planner")`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str | Agent, **settings: Any) -> ACPService:
            if not isinstance(name, Agent):
                settings.setdefault("bus", bus.address)
                settings.setdefault("limits", QUICK)
            settings.setdefault("heartbeat_interval", 0)
            return await stack.enter_async_context(ACPService(name, **settings))

        yield start


def request(content: Any = None, **fields: Any) -> ACPMessage:
    return ACPMessage(type=ACPMessageType.REQUEST, content=content, **fields)


# ---- connections -------------------------------------------------------------------------------------------------------


async def test_two_services_talk_over_their_connections(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    there, back = await planner.connect("analyst@local"), await analyst.connect("planner")
    sent = await there.send(request("hi"))
    assert sent.id
    assert (sent.source, sent.target) == (planner.agent_id, "analyst")
    heard = await back.recv(WAIT)
    assert (heard.id, heard.content, heard.source) == (sent.id, "hi", "planner")
    assert back.last_seen == sent.timestamp
    await back.send(heard.create_reply("response", "hello"))
    answer = await there.recv(WAIT)
    assert (answer.content, answer.in_reply_to) == ("hello", sent.id)


async def test_a_connection_is_the_same_until_it_is_closed(services: Any) -> None:
    planner = await services("planner")
    await services("analyst")
    first = await planner.connect("analyst")
    assert await planner.connect("analyst@local") is first
    assert planner.connections == {"analyst": first}
    async with first:
        pass
    assert first.closed
    assert planner.connections == {}
    with pytest.raises(PreconditionFailed, match="closed"):
        await first.recv()
    assert await planner.connect("analyst") is not first


async def test_all_connections_share_one_session(services: Any, bus: Any) -> None:
    planner = await services("planner")
    for number in range(5):
        await services(f"peer-{number}")
        await planner.connect(f"peer-{number}")
    assert bus.platform.sessions == 6


async def test_who_is_not_there_cannot_be_connected_with(services: Any) -> None:
    planner = await services("planner")
    with pytest.raises(AgentNotRegistered, match="nobody"):
        await planner.connect("nobody")
    with pytest.raises(InvalidName):
        await planner.connect("role:summarise")
    # What is there on another platform, sending tells.
    elsewhere = await planner.connect("analyst@server2")
    with pytest.raises(DeliveryRefused, match="UNREACHABLE"):
        await elsewhere.send(request())


async def test_what_was_not_received_is_not_acknowledged(services: Any, bus: Any, agents: Any) -> None:
    analyst = Agent("analyst", bus=bus.address, limits=QUICK)
    planner = await agents("planner")
    async with ACPService(analyst, heartbeat_interval=0) as service:
        connection = await service.connect("planner")
        for content in ("one", "two"):
            await planner.send_acp(request(content, target="analyst"))
        assert (await connection.recv(WAIT)).content == "one"
        await until(lambda: bus.platform.ams.get("analyst").mailbox.messages == 1)
    assert bus.platform.ams.get("analyst").mailbox.messages == 1
    heard = Inbox()
    next_session = Agent("analyst", bus=bus.address, limits=QUICK)
    next_session.on_acp()(heard)
    async with next_session:
        assert await heard.holds(1) == ["two"]
        assert heard.messages[0].redelivered
        await settled(bus, "analyst")


async def test_what_waits_in_a_connection_that_is_closed_goes_to_a_handler(services: Any, inbox: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    connection = await analyst.connect("planner")
    await planner.send_message("analyst", request("waits"))
    await until(lambda: len(connection.box) == 1)
    analyst.handlers[ACPMessageType.REQUEST] = inbox
    await connection.aclose()
    assert await inbox.holds(1) == ["waits"]


async def test_an_acl_request_that_waits_in_a_connection_that_is_closed_is_answered(services: Any, agents: Any) -> None:
    planner = await services("planner")
    bob = await agents("bob")
    connection = await planner.connect("bob")
    asking = asyncio.create_task(bob.request("planner", "anybody?"))
    await until(lambda: len(connection.box) == 1)
    await connection.aclose()
    async with asyncio.timeout(WAIT):
        with pytest.raises(NotUnderstoodByAgent):
            await asking


async def test_iterating_over_a_connection_ends_with_it(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    connection = await analyst.connect("planner")
    for number in range(3):
        await planner.send_message("analyst", request(number))
    heard = []
    async with asyncio.timeout(WAIT):
        async for message in connection:
            heard.append(message.content)
            if len(heard) == 3:
                await connection.aclose()
    assert heard == [0, 1, 2]


async def test_waiting_ends_with_the_service_and_with_the_session(services: Any, bus: Any) -> None:
    planner = await services("planner")
    for name in ("analyst", "writer"):
        await services(name)
    connection = await planner.connect("analyst")
    with pytest.raises(TimeoutError):
        await connection.recv(0.01)
    receiving = asyncio.create_task(connection.recv())
    await asyncio.sleep(0)
    await planner.stop()
    with pytest.raises(PreconditionFailed, match="closed"):
        await receiving
    await planner.start()
    connection = await planner.connect("writer")
    receiving = asyncio.create_task(connection.recv())
    await planner.agent.ams.deregister("planner")
    async with asyncio.timeout(WAIT):
        with pytest.raises(PreconditionFailed):
            await receiving


# ---- handlers ----------------------------------------------------------------------------------------------------------


async def test_handlers_come_before_connections_and_may_change_at_any_time(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    there, back = await planner.connect("analyst"), await analyst.connect("planner")

    async def answer(message: ReceivedACP) -> Any:
        if message.content == "no":
            raise Refuse("not today")
        return {"asked": message.content}

    # By its name, too, as it stands in the JSON form.
    analyst.handlers["request"] = answer
    await there.send(request("hi"))
    assert (await there.recv(WAIT)).content == {"asked": "hi"}
    await there.send(request("no"))
    assert (await there.recv(WAIT)).content == {"code": "REFUSED", "error": "not today"}
    del analyst.handlers[ACPMessageType.REQUEST]
    await there.send(request("anybody?"))
    assert (await back.recv(WAIT)).content == "anybody?"


async def test_a_request_from_a_stranger_is_answered_by_an_error(services: Any) -> None:
    planner = await services("planner")
    await services("analyst")
    there = await planner.connect("analyst")
    await there.send(request("hi"))
    error = await there.recv(WAIT)
    assert (error.type, error.content["code"]) == (ACPMessageType.ERROR, "NOT_UNDERSTOOD")
    assert error.automatic


async def test_an_acl_agent_can_be_connected_with(services: Any, agents: Any) -> None:
    planner = await services("planner")
    bob = await agents("bob", lambda message: f"you said {message.content}")
    connection = await planner.connect("bob")
    sent = await connection.send(request("hi"))
    answer = await connection.recv(WAIT)
    assert (answer.type, answer.content, answer.in_reply_to) == ("response", "you said hi", sent.id)
    # What it says of its own accord comes in ACP, too; and its requests can be answered so.
    asking = asyncio.create_task(bob.request("planner", "and you?"))
    asked = await connection.recv(WAIT)
    assert (asked.type, asked.content, asked.source) == ("request", "and you?", "bob")
    await connection.send(asked.create_reply("response", "me too"))
    async with asyncio.timeout(WAIT):
        assert (await asking).content == "me too"


# ---- heartbeats --------------------------------------------------------------------------------------------------------


async def test_connected_agents_get_heartbeats_and_answer_none(services: Any, agents: Any) -> None:
    heard = Inbox()
    bob = await agents("bob")
    bob.on_acp()(heard)
    planner = await services("planner", heartbeat_interval=0.01)
    await planner.connect("bob")
    await heard.holds(2)
    assert {one.type for one in heard.messages} == {ACPMessageType.HEARTBEAT}
    assert heard.messages[0].source == "planner"


async def test_a_heartbeat_tells_when_a_peer_was_there_and_nothing_more(services: Any) -> None:
    planner, analyst = await services("planner"), await services("analyst")
    connection = await analyst.connect("planner")
    assert connection.last_seen is None
    beat = await planner.send_message("analyst", ACPMessage(type=ACPMessageType.HEARTBEAT))
    await planner.send_message("analyst", request("hi"))
    assert (await connection.recv(WAIT)).content == "hi"
    assert connection.last_seen is not None
    assert beat.timestamp is not None
    assert connection.last_seen > beat.timestamp


async def test_a_peer_that_is_gone_is_connected_no_longer(services: Any, agents: Any) -> None:
    planner = await services("planner", heartbeat_interval=0.01)
    bob = await agents("bob")
    connection = await planner.connect("bob")
    await bob.aclose(deregister=True)
    async with asyncio.timeout(WAIT):
        with pytest.raises(AgentNotRegistered, match="bob"):
            await connection.recv()
    assert planner.connections == {}


# ---- broadcasts --------------------------------------------------------------------------------------------------------


async def test_a_broadcast_tells_what_became_of_it_for_each_target(services: Any, agents: Any, inboxes: Any) -> None:
    planner = await services("planner")
    heard = [inboxes(), inboxes()]
    for name, box in zip(("a", "b"), heard, strict=True):
        (await agents(name)).on_acp()(box)
    results = await planner.broadcast(
        ACPMessage(type=ACPMessageType.NOTIFICATION, content="news"), ["a", "nobody", "b", "x@server2"]
    )
    assert {name: one.outcome for name, one in results.items()} == {
        "a": Outcome.ACCEPTED,
        "nobody": Outcome.NO_SUCH_AGENT,
        "b": Outcome.ACCEPTED,
        "x@server2": Outcome.UNREACHABLE,
    }
    assert [one.delivered for one in results.values()] == [True, False, True, False]
    for box in heard:
        assert await box.holds(1) == ["news"]
    assert heard[0].messages[0].id == heard[1].messages[0].id
    assert [box.messages[0].target for box in heard] == ["a@local", "b@local"]


async def test_a_broadcast_without_targets_is_for_every_connected_agent_but_the_sender(
    services: Any, agents: Any, inboxes: Any
) -> None:
    planner = await services("planner")
    planner.handlers[ACPMessageType.NOTIFICATION] = own = inboxes()
    other = inboxes()
    (await agents("a")).on_acp()(other)
    away = await agents("away")
    await away.aclose()
    results = await planner.broadcast(ACPMessage(type=ACPMessageType.NOTIFICATION, content="news"))
    assert list(results) == ["a@local"]
    assert await other.holds(1) == ["news"]
    assert own.messages == []


async def test_a_broadcast_reaches_more_than_one_message_can_name(services: Any, agents: Any) -> None:
    planner = await services("planner")
    await agents("a")
    names = ["a", *(f"nobody-{number}" for number in range(150))]
    results = await planner.broadcast(ACPMessage(type=ACPMessageType.NOTIFICATION), names)
    assert list(results) == names
    assert [name for name, one in results.items() if one.delivered] == ["a"]
    assert await planner.broadcast(ACPMessage(type=ACPMessageType.NOTIFICATION), []) == {}


async def test_a_broadcast_to_what_is_no_name_keeps_it_from_nobody(services: Any, agents: Any, inbox: Any) -> None:
    planner = await services("planner")
    await agents("helper", inbox)
    news = ACPMessage(type=ACPMessageType.NOTIFICATION, content="news")
    told = await planner.broadcast(news, ["helper", "\ud800", "", "a b"])
    assert {name: receipt.outcome for name, receipt in told.items()} == {
        "helper": Outcome.ACCEPTED,
        "\ud800": Outcome.INVALID,
        "": Outcome.INVALID,
        "a b": Outcome.INVALID,
    }
    # A name alone is one target, and its letters are none.
    assert [*await planner.broadcast(news, "helper")] == ["helper"]
    await inbox.holds(2)
    with pytest.raises(InvalidArgument, match="target of type int"):
        await planner.broadcast(news, ["helper", 5])


async def test_what_ends_a_broadcast_is_one_error(services: Any) -> None:
    planner = await services("planner")
    names = [f"n{number}" for number in range(250)]
    with pytest.raises(InvalidArgument, match="content"):
        await planner.broadcast(ACPMessage(type=ACPMessageType.NOTIFICATION, content={1}), names)
    await planner.agent.aclose()
    with pytest.raises(PreconditionFailed, match="closed"):
        await planner.broadcast(ACPMessage(type=ACPMessageType.NOTIFICATION, content="news"), names)


async def test_a_broadcast_that_is_too_large_says_so_for_each(services: Any) -> None:
    planner = await services("planner")
    results = await planner.broadcast(ACPMessage(type=ACPMessageType.NOTIFICATION, content="x" * 1_100_000), ["a", "b"])
    assert {one.outcome for one in results.values()} == {Outcome.TOO_LARGE}


# ---- trying again ------------------------------------------------------------------------------------------------------


async def test_a_message_is_sent_again_under_the_same_id_and_arrives_once(
    buses: Any, connect: Any, proxy: Any, bus: Any, agents: Any
) -> None:
    """The receipt of the first attempt does not come: the second one is a duplicate of it."""
    heard = Inbox()
    (await agents("bob")).on_acp()(heard)
    limits = ClientLimits(initial_backoff=0.02, max_backoff=0.1, connect_timeout=2.0, call_timeout=0.3)
    async with ACPService("planner", bus=proxy.address, heartbeat_interval=0, limits=limits) as planner:
        connection = await planner.connect("bob")
        proxy.silence("out")
        sending = asyncio.create_task(connection.send_with_retry(request("once"), max_retries=50))
        assert await heard.holds(1) == ["once"]
        await proxy.held()
        proxy.speak()
        async with asyncio.timeout(WAIT):
            sent = await sending
        await settled(bus, "bob")
        assert [one.id for one in heard.messages] == [sent.id]


async def test_a_refusal_that_passes_is_tried_again_as_often_as_is_said(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(mailbox_messages=1, drain_grace=1.0))
    raw = await connect(bus, "raw", window=pb.Window(messages=1))
    async with ACPService("planner", bus=bus.address, heartbeat_interval=0, limits=QUICK) as planner:
        connection = await planner.connect("raw")
        contents = []
        with contextlib.suppress(DeliveryRefused):
            for number in range(100):
                await connection.send_with_retry(request(number), max_retries=2)
                contents.append(number)
        with pytest.raises(DeliveryRefused, match="MAILBOX_FULL"):
            await connection.send_with_retry(request("no room"), max_retries=2)
        # The receiver makes room while it is tried.
        sending = asyncio.create_task(connection.send_with_retry(request("last"), max_retries=100))
        for count in range(1, len(contents) + 2):
            await raw.delivered(count)
            await raw.settle(ack_sequences=[one.sequence for one in raw.deliveries])
        async with asyncio.timeout(WAIT):
            await sending
        assert [one.message.acp.json for one in raw.deliveries] == [*map(str, contents), '"last"']


async def test_a_refusal_for_good_is_not_tried_again(services: Any) -> None:
    planner = await services("planner", limits=ClientLimits(initial_backoff=3600))
    await services("analyst")
    connection = await planner.connect("analyst")
    with pytest.raises(DeliveryRefused, match="DENIED"):
        await connection.send_with_retry(request(source="somebody-else"))
    with pytest.raises(InvalidArgument, match="max_retries 0"):
        await connection.send_with_retry(request(), max_retries=0)
    with pytest.raises(InvalidArgument, match=r"max_retries 2\.5"):
        await connection.send_with_retry(request(), max_retries=2.5)


async def test_a_bus_that_says_nothing_is_given_up_after_the_last_attempt(bus: Any, proxy: Any, services: Any) -> None:
    await services("analyst")
    limits = ClientLimits(initial_backoff=0.01, connect_timeout=2.0, call_timeout=0.05)
    async with ACPService("planner", bus=proxy.address, heartbeat_interval=0, limits=QUICK) as planner:
        connection = await planner.connect("analyst")
        connection._limits = limits
        proxy.silence("out")
        with pytest.raises(BusUnreachable, match="no receipt"):
            await connection.send_with_retry(request(), max_retries=2)
        proxy.speak()


async def test_connections_outlive_a_restart_of_the_bus(tmp_path: Any) -> None:
    store = tmp_path / "bus.db"
    async with contextlib.AsyncExitStack() as stack:
        async with running_bus(SqliteStore(store), limits=BusLimits(drain_grace=1.0)) as bus:
            address = bus.address
            planner = await stack.enter_async_context(
                ACPService("planner", bus=address, heartbeat_interval=0, limits=QUICK)
            )
            analyst = await stack.enter_async_context(
                ACPService("analyst", bus=address, heartbeat_interval=0, limits=QUICK)
            )
            there, back = await planner.connect("analyst"), await analyst.connect("planner")
            await there.send(request("before"))
            await until(lambda: len(back.box) == 1)
        await until(lambda: not (planner.agent.connected or analyst.agent.connected))
        sending = asyncio.create_task(there.send_with_retry(request("meanwhile"), max_retries=100))
        async with running_bus(SqliteStore(store), listen=address, limits=BusLimits(drain_grace=1.0)):
            async with asyncio.timeout(WAIT):
                await sending
                heard = [(await back.recv()).content for _ in range(2)]
                await there.send(request("after"))
                heard.append((await back.recv()).content)
            assert heard == ["before", "meanwhile", "after"]
            await stack.aclose()


# ---- life --------------------------------------------------------------------------------------------------------------


async def test_a_service_is_started_once_and_stopped_as_often_as_one_likes(bus: Any) -> None:
    service = ACPService("planner", bus=bus.address, limits=QUICK)
    with pytest.raises(PreconditionFailed, match="not started"):
        await service.connect("x")
    with pytest.raises(PreconditionFailed, match="not started"):
        await service.broadcast(request())
    await service.stop()
    await service.start()
    with pytest.raises(PreconditionFailed, match="already"):
        await service.start()
    assert service.agent_id == "planner@local"
    await service.stop()
    await service.stop()
    assert not service.agent.connected
    async with service:
        assert service.agent.connected


async def test_a_service_that_is_being_started_is_not_started_again(bus: Any, services: Any) -> None:
    service = ACPService("planner", bus=bus.address, limits=QUICK)
    results = await asyncio.gather(service.start(), service.start(), return_exceptions=True)
    assert results[0] is None
    assert isinstance(results[1], PreconditionFailed)
    await service.stop()
    assert not service.agent.connected
    await services("planner")


@pytest.mark.parametrize("interval", [-1, float("nan"), float("inf"), "soon"])
def test_an_interval_that_is_none_is_refused(interval: Any) -> None:
    with pytest.raises(InvalidArgument, match="heartbeat_interval"):
        ACPService("planner", heartbeat_interval=interval)


async def test_an_agent_that_was_open_stays_open(agents: Any, services: Any) -> None:
    agent = await agents("planner")
    service = ACPService(agent, heartbeat_interval=0)
    async with service:
        assert service.agent_id == agent.aid
    assert agent.connected


async def test_a_service_that_cannot_start_is_none(services: Any, agents: Any, bus: Any) -> None:
    await agents("planner")
    service = ACPService("planner", bus=bus.address, limits=QUICK)
    with pytest.raises(AgentAlreadyRegistered):
        await service.start()
    await service.stop()
    with pytest.raises(InvalidArgument, match="heartbeat_interval"):
        ACPService("planner", heartbeat_interval=-1)
    with pytest.raises(InvalidArgument, match="beside an Agent"):
        ACPService(service.agent, bus="127.0.0.1:1")


# ---- a client ----------------------------------------------------------------------------------------------------------


async def test_a_client_asks_agents_of_either_kind(bus: Any, agents: Any, services: Any) -> None:
    await agents("bob", lambda message: f"you said {message.content}")
    analyst = await services("analyst")

    async def answer(message: ReceivedACP) -> Any:
        return {"asked": message.content}

    analyst.handlers[ACPMessageType.REQUEST] = answer
    async with ACPClient(f"grpc://{bus.address}", "visitor", ACPcredentials("secret"), limits=QUICK) as client:
        for target, said in [("bob", "you said hi"), ("analyst", {"asked": "hi"})]:
            sent = await client.send_direct_message(target, "hi")
            answered = await client.receive(WAIT)
            assert (answered.type, answered.content) == (ACPMessageType.RESPONSE, said)
            assert (answered.in_reply_to, answered.source) == (sent.id, target)
        with pytest.raises(DeliveryRefused, match="NO_SUCH_AGENT"):
            await client.send_direct_message("nobody", "hi")
        await client.send_direct_message("bob", {"n": 1}, type="notification", metadata=ACPMetadata("high"))
        with pytest.raises(TimeoutError):
            await client.receive(0.01)


async def test_a_client_hears_acl_messages_as_acp_messages(bus: Any, agents: Any, caplog: Any) -> None:
    bob = await agents("bob")
    async with ACPClient(bus.address, "visitor", limits=QUICK) as client:
        await bob.send("visitor", "inform", "news")
        heard = await client.receive(WAIT)
        assert (heard.type, heard.content, heard.source) == (ACPMessageType.NOTIFICATION, "news", "bob")
        await settled(bus, "visitor")
        await bob.send("visitor", "inform", "not received")
        await bob.send_acp(ACPMessage(type=ACPMessageType.NOTIFICATION, target="visitor", content="nor this"))
    assert bus.platform.ams.get("visitor").mailbox.messages == 2
    # To leave is no failure of a handler.
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []
    async with ACPClient(bus.address, "visitor", limits=QUICK) as client:
        assert {(await client.receive(WAIT)).content for _ in range(2)} == {"not received", "nor this"}


async def test_a_client_says_how_it_is_to_be_used(bus: Any) -> None:
    client = ACPClient(bus.address, "visitor", limits=QUICK)
    with pytest.raises(PreconditionFailed, match="not connected"):
        await client.send_direct_message("bob", "hi")
    with pytest.raises(PreconditionFailed, match="not connected"):
        await client.receive()
    await client.aclose()
    async with client:
        with pytest.raises(PreconditionFailed, match="connected already"):
            await client.connect()
        receiving = asyncio.create_task(client.receive())
        await asyncio.sleep(0)
    with pytest.raises(PreconditionFailed, match="closed"):
        await receiving


async def test_iterating_over_a_client_ends_with_it_and_fails_with_its_session(bus: Any) -> None:
    async def read(client: ACPClient) -> list[Any]:
        return [message async for message in client]

    async with asyncio.timeout(WAIT), ACPClient(bus.address, "visitor", limits=QUICK) as client:
        reading = asyncio.create_task(read(client))
        await asyncio.sleep(0)
        await client.aclose()
        assert await reading == []
        await client.connect()
        reading = asyncio.create_task(read(client))
        async with Operator(bus.address) as operator:
            await operator.ams.terminate("visitor")
        with pytest.raises(PreconditionFailed, match="terminated"):
            await reading


async def test_a_client_whose_name_is_taken_away_waits_no_longer(bus: Any) -> None:
    async with ACPClient(bus.address, "visitor", limits=QUICK) as client:
        receiving = asyncio.create_task(client.receive())
        async with Operator(bus=bus.address) as operator, asyncio.timeout(WAIT):
            await operator.ams.terminate("visitor")
            with pytest.raises(PreconditionFailed, match="terminated"):
                await receiving


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:50051", "127.0.0.1", "grpc://", "grpc://host:port"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        ACPClient(url, "visitor")


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(ACPcredentials("secret"))


# ---- an agent that serves ----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(agent: ACPAgent) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(agent.run())
    try:
        yield task
    finally:
        await agent.stop()
        async with asyncio.timeout(WAIT):
            await task


async def test_an_agent_serves_with_decorated_hooks(bus: Any, services: Any, proxy: Any) -> None:
    planner = await services("planner")
    host, _, port = proxy.address.rpartition(":")
    agent = ACPAgent("helper", host, int(port), limits=QUICK, heartbeat_interval=0)
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    @agent.on_message
    async def answer(message: ReceivedACP) -> Any:
        return {"you_said": message.content}

    @agent.on_connect
    async def connected(agent_id: str) -> None:
        await told.put(("connected", agent_id))

    @agent.on_disconnect
    def disconnected(agent_id: str) -> None:
        planner_loop.call_soon_threadsafe(told.put_nowait, ("disconnected", agent_id))

    planner_loop = asyncio.get_running_loop()
    async with running(agent), asyncio.timeout(WAIT):
        assert await told.get() == ("connected", "helper@local")
        connection = await planner.connect("helper")
        await connection.send(request("hi"))
        assert (await connection.recv()).content == {"you_said": "hi"}
        proxy.cut()
        assert await told.get() == ("disconnected", "helper@local")
        assert await told.get() == ("connected", "helper@local")
    assert await told.get() == ("disconnected", "helper@local")


async def test_an_agent_that_runs_is_not_run_again_and_ends_all_the_same(bus: Any, services: Any) -> None:
    host, _, port = bus.address.rpartition(":")
    agent = ACPAgent("helper", host, int(port), limits=QUICK)
    connected: asyncio.Queue[str] = asyncio.Queue()
    agent.on_connect(connected.put)
    async with asyncio.timeout(WAIT):
        running = asyncio.create_task(agent.run())
        await connected.get()
        with pytest.raises(PreconditionFailed, match="started already"):
            await agent.run()
        async with Operator(bus.address) as operator:
            await operator.ams.terminate("helper")
        with pytest.raises(PreconditionFailed, match="terminated"):
            await running


async def test_an_agent_serves_with_methods_of_a_subclass(bus: Any, services: Any) -> None:
    told: list[str] = []

    class Helper(ACPAgent):
        async def on_message(self, message: Any) -> Any:
            return f"you said {message.content}"

        async def on_connect(self, agent_id: Any) -> None:
            told.append(f"{agent_id} connected")
            raise RuntimeError("a hook that fails ends nothing")

        async def on_disconnect(self, agent_id: Any) -> None:
            told.append(f"{agent_id} disconnected")

    planner = await services("planner")
    host, _, port = bus.address.rpartition(":")
    agent = Helper("helper", host, int(port), limits=QUICK)
    async with running(agent):
        await until(lambda: told)
        connection = await planner.connect("helper")
        await connection.send(request("hi"))
        assert (await connection.recv(WAIT)).content == "you said hi"
    assert told == ["helper@local connected", "helper@local disconnected"]


async def test_an_agent_without_hooks_answers_by_an_error(bus: Any, services: Any, agents: Any) -> None:
    planner = await services("planner")
    agent = ACPAgent(Agent("helper", bus=bus.address, limits=QUICK))
    async with running(agent):
        await until(lambda: agent.service.agent.connected)
        connection = await planner.connect("helper")
        await connection.send(request("hi"))
        assert (await connection.recv(WAIT)).type == ACPMessageType.ERROR
    with pytest.raises(InvalidArgument, match="expected a function"):
        agent.on_message("hi")
