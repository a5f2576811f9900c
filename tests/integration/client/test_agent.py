"""Sending and handling, between two agents on a bus."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from proxy import Proxy
from waiting import settled, until

from gagent_grpc import (
    ACLMessage,
    Agent,
    AgentAlreadyRegistered,
    AgentIdentifier,
    BusLimits,
    BusUnreachable,
    ClientLimits,
    DeliveryRefused,
    InvalidArgument,
    LifeCycleState,
    MessageTooLarge,
    Outcome,
    Performative,
    PreconditionFailed,
    Priority,
    Received,
    Report,
    UnknownPerformative,
)

pytestmark = pytest.mark.timeout(30)


# ---- handlers ---------------------------------------------------------------------------------------------------------


async def test_a_message_goes_to_the_first_handler_that_fits(agents: Any, inboxes: Any) -> None:
    weather, forecasts, from_carol, rest = (inboxes() for _ in range(4))
    bob = await agents("bob")
    bob.on("inform", ontology="weather", language=None)(weather)
    bob.on("INFORM", ontology="weather")(forecasts)
    bob.on(sender="carol@local")(from_carol)
    bob.on()(rest)
    alice, carol = await agents("alice"), await agents("carol")
    await alice.send("bob", "inform", "1", ontology="weather")
    await alice.send("bob", "inform", "2", ontology="weather", language="en")
    await alice.send("bob", "query-if", "3", ontology="weather")
    await carol.send("bob", "inform", "4")
    assert await rest.holds(1) == ["3"]
    assert await from_carol.holds(1) == ["4"]
    assert (weather.contents, forecasts.contents) == (["1"], ["2"])


def test_a_handler_for_what_does_not_exist_is_refused_at_once() -> None:
    agent = Agent("bob")
    with pytest.raises(UnknownPerformative):
        agent.on("shout")(print)
    with pytest.raises(InvalidArgument, match="'topic' is no ACL parameter"):
        agent.on("inform", topic="x")(print)
    with pytest.raises(InvalidArgument, match="parentheses"):
        agent.on(print)  # type: ignore[arg-type]


async def test_text_that_a_handler_returns_becomes_an_inform(agents: Any, inbox: Any) -> None:
    async def answer(message: Received) -> str:
        return f"You said: {message.content}"

    await agents("bob", answer)
    alice = await agents("alice", inbox)
    await alice.send(
        "bob", "query-ref", "hi", conversation_id="c", reply_with="r", language="en", protocol="fipa-query"
    )
    await inbox.holds(1)
    got = inbox.messages[0]
    assert (got.performative, got.content, got.sender.name) == (Performative.INFORM, "You said: hi", "bob")
    assert (got.conversation_id, got.in_reply_to, got.language, got.protocol) == ("c", "r", "en", "fipa-query")
    assert got.headers["hops"] == "1"


@pytest.mark.parametrize("form", ["def", "async def", "partial", "object", "coroutine from a thread"])
async def test_handlers_of_every_form(agents: Any, form: str) -> None:
    async def slow(message: Received, *, word: str = "x") -> str:
        return word

    class Answering:
        async def __call__(self, message: Received) -> str:
            return "x"

    handler: Callable[..., Any] = {
        "def": lambda message: "x",
        "async def": slow,
        "partial": functools.partial(slow, word="x"),
        "object": Answering(),
        "coroutine from a thread": lambda message, word="x": slow(message, word=word),
    }[form]
    await agents("bob", handler)
    alice = await agents("alice")
    assert (await alice.request("bob", "?")).content == "x"


async def test_a_blocking_handler_stops_neither_heartbeats_nor_other_lanes(buses: Any, agents: Any) -> None:
    bus = await buses(limits=BusLimits(heartbeat_interval=0.05, drain_grace=1.0))
    begun, release = threading.Event(), threading.Event()

    def block(message: Received) -> str:
        begun.set()
        release.wait(20)
        return "at last"

    bob = await agents("bob", bus=bus.address)
    bob.on("request", content="block")(block)
    bob.on("request")(lambda message: threading.current_thread().name)
    alice = await agents("alice", bus=bus.address)
    blocked = asyncio.create_task(alice.request("bob", "block"))
    try:
        await asyncio.to_thread(begun.wait, 10)
        thread = (await alice.request("bob", "?")).content
        assert thread.startswith("bob-handler")
        # Far beyond three heartbeats of the bus: an agent that is silent for so long is unknown.
        session = bus.platform.ams.get("bob").session
        for _ in range(6):
            heard = session.heard_at
            await until(lambda heard=heard: session.heard_at != heard)
        assert (await alice.ams.search_all())[0].description.state is LifeCycleState.ACTIVE
    finally:
        release.set()
    assert (await blocked).content == "at last"
    assert bus.platform.ams.get("bob").generation == 1


async def test_many_handlers_may_block_at_the_same_time(agents: Any) -> None:
    together = threading.Barrier(20)

    def block(message: Received) -> str:
        together.wait(10)
        return "x"

    await agents("bob", block)
    alice = await agents("alice")
    answers = await asyncio.gather(*(alice.request("bob", str(one)) for one in range(20)))
    assert [answer.content for answer in answers] == ["x"] * 20


async def test_an_unhandled_request_is_not_understood_and_an_unhandled_inform_is_done_with(
    bus: Any, agents: Any, inbox: Any
) -> None:
    await agents("bob")
    alice = await agents("alice", inbox)
    await alice.send("bob", "inform", "nobody is for this")
    await alice.send("bob", "request", "nor for this", reply_with="r")
    await inbox.holds(1)
    got = inbox.messages[0]
    assert (got.performative, got.in_reply_to) == (Performative.NOT_UNDERSTOOD, "r")
    assert got.user_parameters == {"X-automatic": "true"}
    await settled(bus, "bob")


@pytest.mark.parametrize("act", ["not-understood", "failure", "refuse"])
async def test_what_nobody_answers_is_not_answered_even_by_a_talkative_handler(
    bus: Any, agents: Any, inbox: Any, act: str
) -> None:
    async def talk(message: Received) -> str:
        return "and another thing"

    await agents("bob", talk)
    alice = await agents("alice", inbox)
    await alice.send("bob", act, "no")
    await settled(bus, "bob")
    await alice.send("bob", "request", "yes")
    assert await inbox.holds(1) == ["and another thing"]


async def test_agents_that_answer_every_message_do_not_go_on_for_ever(bus: Any, agents: Any) -> None:
    """C23: text that a handler returns answers a question, and nothing else."""

    async def talk(message: Received) -> str:
        return f"thank you for: {message.content}"

    alice, _ = await agents("alice", talk), await agents("bob", talk)
    before = bus.platform.post.accepted_messages
    await alice.send("bob", "inform", "hello")
    await alice.send("bob", "request", "hello")
    for name in ("bob", "alice", "bob"):
        await settled(bus, name)
    assert bus.platform.post.accepted_messages - before == 3


async def test_two_default_agents_do_not_go_on_for_ever(bus: Any, agents: Any) -> None:
    alice, _ = await agents("alice"), await agents("bob")
    before = bus.platform.post.accepted_messages
    for act in Performative:
        await alice.send("bob", act, "?")
    await settled(bus, "bob")
    await settled(bus, "alice")
    sent = bus.platform.post.accepted_messages - before
    # Each once, and a not-understood for each that expects an answer.
    assert sent == 22 + 10


async def test_an_answer_that_cannot_travel_becomes_a_failure_and_the_handler_does_not_run_again(
    agents: Any, inbox: Any
) -> None:
    runs = []

    async def answer(message: Received) -> Any:
        runs.append(message.content)
        return "x" * 2_000_000 if message.content == "long" else {"not": "text"}

    await agents("bob", answer)
    alice = await agents("alice", inbox)
    await alice.send("bob", "request", "long", reply_with="1")
    await alice.send("bob", "request", "odd", reply_with="2", conversation_id="c")
    long, odd = sorted(await inbox.holds(2), reverse=True)
    assert {message.performative for message in inbox.messages} == {Performative.FAILURE}
    assert "1,000,000" in long + odd
    assert "dict" in long + odd
    assert sorted(runs) == ["long", "odd"]


async def test_an_answer_waits_until_its_receiver_has_room(buses: Any, agents: Any, inbox: Any) -> None:
    bus = await buses(limits=BusLimits(mailbox_messages=1, drain_grace=1.0))
    answering = asyncio.Event()

    async def answer(message: Received) -> str:
        answering.set()
        return "x"

    await agents("bob", answer, bus=bus.address)
    alice = await agents("alice", bus=bus.address)
    going = asyncio.Event()

    @alice.on(content="first")
    async def hold(message: Received) -> None:
        await going.wait()

    alice.on()(inbox)
    await alice.send("alice", "inform", "first")
    await alice.send("bob", "request", "?")
    await answering.wait()
    going.set()
    assert await inbox.holds(1) == ["x"]


# ---- sending ----------------------------------------------------------------------------------------------------------


async def test_every_parameter_survives(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    sent = ACLMessage(
        Performative.PROPOSE,
        sender=AgentIdentifier("alice"),
        receivers=(AgentIdentifier("bob", addresses=("grpc://here",), resolvers=(AgentIdentifier("r"),)),),
        reply_to=(AgentIdentifier("carol", user_slots={"X-slot": "1"}),),
        content="žluťoučký \0 kůň",
        language="fipa-sl0",
        encoding="utf-8",
        ontology="",
        protocol="fipa-propose",
        conversation_id="c",
        reply_with="r",
        in_reply_to="q",
        reply_by=datetime(2031, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        user_parameters={"X-one": "1", "X-two": ""},
    )
    await alice.send_message(sent)
    await inbox.holds(1)
    got = inbox.messages[0]
    assert got == sent
    assert got.receivers[0].addresses == ("grpc://here",)
    assert got.receivers[0].resolvers == (AgentIdentifier("r"),)
    assert got.reply_to[0].user_slots == {"X-slot": "1"}
    assert got.replace(content="y").parameters() == {**sent.parameters(), "content": "y"}


async def test_absent_differs_from_empty_and_bytes_from_text(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    for content in (None, "", b"", b"\xff\0", "text"):
        await alice.send("bob", "inform", content)
    assert await inbox.holds(5) == [None, "", b"", b"\xff\0", "text"]
    assert inbox.messages[0].ontology is None


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"content": {"a": 1}}, "content"),
        ({"content": "\udcff"}, "content"),
        ({"ontology": 3}, "ontology"),
        ({"reply_by": datetime(2030, 1, 1)}, "reply_by"),
        ({"reply_by": "soon"}, "reply_by"),
        ({"user_parameters": {"X-a": 1}}, "user_parameters"),
    ],
)
async def test_what_cannot_travel_is_refused_by_its_name(agents: Any, parameters: Any, field: str) -> None:
    alice = await agents("alice")
    with pytest.raises(InvalidArgument) as raised:
        await alice.send("bob", "inform", **parameters)
    assert raised.value.field == field


async def test_several_receivers_of_whom_one_is_unknown(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match="nobody: NO_SUCH_AGENT") as raised:
        await alice.send(["bob", "nobody", "alice"], "inform", "hi")
    assert [(one.outcome, one.receiver) for one in raised.value.receipts] == [(Outcome.NO_SUCH_AGENT, "nobody")]
    assert await inbox.holds(1) == ["hi"]


async def test_the_same_message_again_is_a_duplicate_and_another_body_is_refused(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    assert await alice.send("bob", "inform", "hi", message_id="1") == []
    receipts = await alice.send("bob", "inform", "hi", message_id="1")
    assert [one.outcome for one in receipts] == [Outcome.DUPLICATE]
    with pytest.raises(DeliveryRefused, match="INVALID"):
        await alice.send("bob", "inform", "ho", message_id="1")
    await alice.send("bob", "inform", "end")
    assert await inbox.holds(2) == ["hi", "end"]


async def test_what_is_sent_with_a_message_reaches_the_bus(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    await alice.send("bob", "inform", "x", priority=Priority.URGENT, transient=True, expires_in=60, message_id="me")
    await inbox.holds(1)
    got = inbox.messages[0]
    assert (got.id, got.receiver, got.via, got.attempt, got.redelivered) == ("me", "bob@local", "", 1, False)
    assert (datetime.now(UTC) - got.accepted_at).total_seconds() < 60
    with pytest.raises(DeliveryRefused, match="EXPIRED"):
        await alice.send("bob", "inform", "x", expires_in=-1)


async def test_a_flood_arrives_in_order_and_its_refusals_are_told_by_place(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")

    def made(place: int) -> ACLMessage:
        receiver = "nobody" if place in (5, 700) else "bob"
        return ACLMessage(Performative.INFORM, receivers=(AgentIdentifier(receiver),), content=str(place))

    refused = await alice.send_all(made(place) for place in range(1000))
    assert [(place, receipt.outcome) for place, receipt in refused] == [
        (5, Outcome.NO_SUCH_AGENT),
        (700, Outcome.NO_SUCH_AGENT),
    ]
    assert await inbox.holds(998) == [str(place) for place in range(1000) if place not in (5, 700)]
    assert await alice.send_all([]) == []


async def test_two_floods_and_single_messages_side_by_side_keep_the_order_of_each(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")

    def flood(mark: str) -> list[ACLMessage]:
        to = (AgentIdentifier("bob"),)
        return [ACLMessage(Performative.INFORM, receivers=to, content=f"{mark}{one}") for one in range(600)]

    async def singles() -> None:
        for one in range(30):
            await alice.send("bob", "inform", f"c{one}")

    await asyncio.gather(alice.send_all(flood("a")), alice.send_all(flood("b")), singles())
    contents = await inbox.holds(1230)
    for mark, count in (("a", 600), ("b", 600), ("c", 30)):
        assert [one for one in contents if one[0] == mark] == [f"{mark}{one}" for one in range(count)]


@pytest.mark.parametrize("size", [900_000, 1_100_000, 3_900_000, 4_100_000, 12_000_000])
async def test_a_message_that_is_too_large_concerns_nobody_else(bus: Any, agents: Any, inbox: Any, size: int) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    if size > 1_000_000:
        with pytest.raises(MessageTooLarge) as raised:
            await alice.send("bob", "inform", "x" * size)
        assert raised.value.size_bytes >= size
        assert raised.value.limit_bytes == 1_000_000
    else:
        await alice.send("bob", "inform", "x" * size)
    await alice.send("bob", "inform", "small")
    contents = await inbox.holds(1 if size > 1_000_000 else 2)
    assert [len(one) for one in contents] == [*([size] if size < 1_000_000 else []), 5]
    assert bus.platform.ams.get("alice").generation == 1


async def test_large_messages_beyond_every_window_get_through(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    to = (AgentIdentifier("bob"),)
    many = [ACLMessage(Performative.INFORM, receivers=to, content=b"x" * 900_000) for _ in range(40)]
    assert await alice.send_all(many) == []
    await inbox.holds(40)


async def test_a_send_window_full_of_lazy_receipts_does_not_stand_still(buses: Any, agents: Any, inbox: Any) -> None:
    bus = await buses(limits=BusLimits(send_window_messages=8, drain_grace=1.0))
    await agents("bob", inbox, bus=bus.address)
    alice = await agents("alice", bus=bus.address)
    lazy = [asyncio.create_task(alice.send("bob", "inform", str(n), report=Report.RECEIPT_LAZY)) for n in range(40)]
    assert await inbox.holds(40) == [str(n) for n in range(40)]
    await alice.send("bob", "inform", "end")
    await asyncio.gather(*lazy)


async def test_sending_waits_while_too_much_waits_for_its_receipt(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice", limits=ClientLimits(max_queued_bytes=10_000))
    sends = [asyncio.create_task(alice.send("bob", "inform", "x" * 4000)) for _ in range(50)]
    await asyncio.sleep(0)
    assert alice._session.outbox.bytes < 20_000
    await asyncio.gather(*sends)
    await inbox.holds(50)


async def test_replying_keeps_the_conversation(agents: Any, inbox: Any) -> None:
    bob = await agents("bob")

    @bob.on("cfp")
    async def bid(message: Received) -> None:
        assert await bob.reply(message, "propose", "5") == []

    alice = await agents("alice", inbox)
    await alice.send("bob", "cfp", "?", conversation_id="c", reply_with="r", reply_to=(AgentIdentifier("alice"),))
    assert await inbox.holds(1) == ["5"]
    assert inbox.messages[0].conversation_id == "c"


# ---- open and closed --------------------------------------------------------------------------------------------------


async def test_sending_before_opening_and_after_closing_says_so(bus: Any, agents: Any) -> None:
    alice = Agent("alice", bus=bus.address)
    for _ in range(2):
        with pytest.raises(PreconditionFailed, match=r"alice: the agent is (not open|closed)"):
            await alice.send("bob", "inform", "hi")
        with pytest.raises(PreconditionFailed, match=r"not open|closed"):
            await alice.request("bob", "hi")
        with pytest.raises(PreconditionFailed, match=r"not open|closed"):
            await alice.send_all([ACLMessage(Performative.INFORM)])
        with pytest.raises(PreconditionFailed, match=r"not open|closed"):
            await alice.df.search()
        async with alice:
            with pytest.raises(PreconditionFailed, match="open already"):
                await alice.__aenter__()
        await alice.aclose()


async def test_an_agent_says_whether_it_is_connected(agents: Any, proxy: Proxy) -> None:
    alice = Agent("alice", bus=proxy.address, limits=ClientLimits(initial_backoff=0.02, max_backoff=0.1))
    assert not alice.connected
    async with alice:
        assert alice.connected
        proxy.cut(admit=False)
        await until(lambda: not alice.connected)
        proxy.admit()
        await until(lambda: alice.connected)
    assert not alice.connected


async def test_an_agent_may_be_opened_again_also_on_another_loop(bus: Any, agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = Agent("alice", bus=bus.address)
    for word in ("one", "two"):
        async with alice:
            await alice.send("bob", "inform", word)

    async def elsewhere() -> None:
        async with alice:
            await alice.send("bob", "inform", "three")

    await asyncio.to_thread(asyncio.run, elsewhere())
    assert await inbox.holds(3) == ["one", "two", "three"]


async def test_an_agent_on_another_loop_says_so(agents: Any) -> None:
    alice = await agents("alice")
    with pytest.raises(PreconditionFailed, match="run_coroutine_threadsafe"):
        await asyncio.to_thread(asyncio.run, alice.send("alice", "inform"))


async def test_no_bus_says_how_to_start_one() -> None:
    limits = ClientLimits(connect_timeout=0.3)
    with pytest.raises(BusUnreachable, match=r"No bus at 127.0.0.1:1\. .*Start one: gagent serve"):
        async with Agent("alice", bus="127.0.0.1:1", limits=limits):
            pass
    with pytest.raises(BusUnreachable, match=r"No bus at 127.0.0.1:1,127.0.0.1:2\. Start one: gagent serve"):
        async with Agent("alice", bus="127.0.0.1:1,127.0.0.1:2", limits=limits):
            pass


async def test_a_silent_host_takes_no_longer_than_the_connect_timeout_and_the_next_endpoint_is_tried(
    bus: Any, agents: Any
) -> None:
    async def never(reader: Any, writer: Any) -> None:
        silent.append(writer)

    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(never, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        await agents("alice", bus=f"{address},{bus.address}", limits=ClientLimits(connect_timeout=1.0))
        with pytest.raises(BusUnreachable):
            await agents("bob", bus=address, limits=ClientLimits(connect_timeout=0.3))
    finally:
        server.close()
        for writer in silent:
            writer.transport.abort()


async def test_a_name_that_somebody_holds_is_refused_at_once(agents: Any) -> None:
    await agents("alice")
    with pytest.raises(AgentAlreadyRegistered, match="alice") as raised:
        await agents("alice")
    assert (raised.value.name, raised.value.where) == ("alice", "AMS")


async def test_life_cycle_changes_are_told_and_a_handler_that_raises_harms_nobody(agents: Any, inbox: Any) -> None:
    alice = await agents("alice")
    bob = await agents("bob", inbox)
    seen: list[tuple[LifeCycleState, str]] = []
    told = asyncio.Event()

    @bob.on_state
    def fail(state: LifeCycleState, changed_by: str) -> None:
        raise RuntimeError("no")

    @bob.on_state
    def note(state: LifeCycleState, changed_by: str) -> None:
        seen.append((state, changed_by))
        told.set()

    await alice.ams.suspend("bob")
    await told.wait()
    assert bob.state is LifeCycleState.SUSPENDED
    await alice.send("bob", "inform", "later")
    told.clear()
    await alice.ams.resume("bob")
    await told.wait()
    assert await inbox.holds(1) == ["later"]
    assert seen == [(LifeCycleState.SUSPENDED, "alice@local"), (LifeCycleState.ACTIVE, "alice@local")]
    with pytest.raises(InvalidArgument, match="plain function"):
        bob.on_state(inbox.__call__)
