"""Addresses that stand for others: a role, a topic, everybody."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw import RawSession, acl
from waiting import WAIT, Inbox, settled, until

from gagent_grpc import (
    Agent,
    BusLimits,
    ClientLimits,
    DeliveryRefused,
    DFAgentDescription,
    FailureFromAgent,
    InvalidArgument,
    MemoryStore,
    Operator,
    Outcome,
    Received,
    ServiceDescription,
    SqliteStore,
)
from gagent_grpc.bus.platform import Caller
from gagent_grpc.pb.gagent.v1 import acl_pb2, agent_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc as services
from gagent_grpc.server.app import Bus
from gagent_grpc.testing import running_bus

pytestmark = pytest.mark.timeout(60)


def who(name: str) -> Callable[[Received], str]:
    """Return a handler that answers with the name of its agent."""

    def answer(message: Received) -> str:
        return name

    return answer


# ---- roles ------------------------------------------------------------------------------------------------------------


async def test_a_role_is_served_by_one_who_offers_it_and_its_answer_comes_back(agents: Any) -> None:
    await agents("sum", who("sum"), services=["summarise"])
    await agents("tra", who("tra"), services=["translate"])
    alice = await agents("alice")
    assert (await alice.request("role:translate", "x")).content == "tra"
    assert (await alice.request("role:summarise", "x")).content == "sum"


async def test_a_delivery_says_which_address_led_to_it(agents: Any, inbox: Inbox) -> None:
    await agents("sum", inbox, services=["summarise"])
    alice = await agents("alice")
    await alice.send("role:summarise", "inform", "x")
    await alice.send("sum", "inform", "y")
    await inbox.holds(2)
    first, second = inbox.messages
    assert (first.via, second.via) == ("role:summarise", "")


async def test_messages_to_a_role_go_to_the_one_with_the_least_unsettled_mail(
    bus: Bus, agents: Any, inboxes: Any
) -> None:
    busy, idle = inboxes(), inboxes()
    release = asyncio.Event()

    async def slow(message: Received) -> None:
        await busy(message)
        await release.wait()

    await agents("a", slow, services=["work"])
    await agents("b", idle, services=["work"])
    alice = await agents("alice")
    await alice.send("a", "inform", "keeps it busy")
    await busy.holds(1)
    for number in range(4):
        await alice.send("role:work", "inform", str(number))
        # Handled and acknowledged, so the one who is not busy has nothing again.
        await idle.holds(number + 1)
        await settled(bus, "b")
    assert idle.contents == ["0", "1", "2", "3"]
    release.set()


def unsettled(bus: Bus, name: str) -> int:
    record = bus.platform.ams.find(name)
    assert record is not None
    return record.mailbox.messages


async def test_equally_busy_ones_get_their_turn_and_a_conversation_stays_with_one(agents: Any, bus: Bus) -> None:
    for name in ("a", "b", "c"):
        await agents(name, who(name), services=["work"])
    alice = await agents("alice")

    async def ask(**parameters: Any) -> str:
        answer = await alice.request("role:work", "x", **parameters)
        for name in ("a", "b", "c"):
            await settled(bus, name)
        return str(answer.content)

    assert sorted([await ask() for _ in range(3)]) == ["a", "b", "c"]
    first = await ask(conversation_id="c-1")
    assert {await ask(conversation_id="c-1") for _ in range(4)} == {first}
    # Another sender's conversation of the same name is another conversation.
    bob = await agents("bob")
    assert len({(await bob.request("role:work", "x", conversation_id=f"c-{n}")).content for n in range(3)}) == 3


async def test_who_is_suspended_or_gone_is_not_chosen(agents: Any, bus: Bus) -> None:
    first = await agents("a", who("a"), services=["work"])
    await agents("b", who("b"), services=["work"])
    alice = await agents("alice")
    async with Operator(bus.address) as operator:
        await operator.ams.suspend("b")
        assert {(await alice.request("role:work", "x")).content for _ in range(3)} == {"a"}
        await operator.ams.resume("b")
    await first.aclose()
    assert {(await alice.request("role:work", "x")).content for _ in range(3)} == {"b"}


async def test_a_role_that_nobody_serves_is_refused_at_once_and_says_what_is_on_offer(agents: Any) -> None:
    await agents("sum", services=["summarise"])
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match=r"NO_PROVIDER.*'sumarise'; on offer: summarise") as raised:
        await alice.send("role:sumarise", "inform", "x")
    assert raised.value.receipts[0].outcome is Outcome.NO_PROVIDER


async def test_whoever_waits_for_a_provider_gets_one_that_comes_later(agents: Any) -> None:
    alice = await agents("alice")
    asking = asyncio.ensure_future(alice.request("role:work", "x", wait_for_provider=True))
    sending = asyncio.ensure_future(alice.send("role:work", "inform", "y", wait_for_provider=True))
    await until(lambda: alice._session.outbox.backlogged)
    inbox = Inbox()

    async def work(message: Received) -> str | None:
        await inbox(message)
        return "done" if message.performative.text == "request" else None

    await agents("worker", work, services=["work"])
    async with asyncio.timeout(WAIT):
        assert (await asking).content == "done"
        assert await sending == []
    assert sorted(await inbox.holds(2)) == ["x", "y"]


async def test_the_longest_role_can_be_waited_for(agents: Any, inbox: Inbox) -> None:
    longest = "w" * 1_000
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match="NO_PROVIDER"):
        await alice.send(f"role:{longest}", "inform", "now")
    sending = [
        asyncio.ensure_future(alice.send(f"role:{longest}", "inform", content, wait_for_provider=True))
        for content in "xy"
    ]
    await until(lambda: alice._session.outbox.backlogged)
    await agents("worker", inbox, services=[longest])
    async with asyncio.timeout(WAIT):
        assert await asyncio.gather(*sending) == [[], []]
    assert await inbox.holds(2) == ["x", "y"]


async def test_waiting_for_a_provider_does_not_wait_for_room(agents: Any, buses: Any, inbox: Inbox) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, mailbox_messages=1))
    release = asyncio.Event()

    async def slow(message: Received) -> None:
        await release.wait()

    worker = await agents("worker", slow, services=["work"], bus=bus.address)
    alice = await agents("alice", bus=bus.address)
    async with Operator(bus.address) as operator:
        await operator.ams.suspend("worker")
        await alice.send("worker", "inform", "1")
        with contextlib.suppress(DeliveryRefused):
            # Some room is kept beside the bound.
            await alice.send("worker", "inform", "2")
        with pytest.raises(DeliveryRefused, match="MAILBOX_FULL"):
            await alice.send("worker", "inform", "3", wait_for_provider=True)
        await operator.ams.resume("worker")
    release.set()
    await settled(bus, worker.name)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_mail_that_a_lost_provider_never_saw_goes_to_another(
    buses: Any, agents: Any, connect: Any, tmp_path: Path, kind: str
) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "bus.db")
    bus = await buses(limits=BusLimits(drain_grace=1.0, resume_grace=0.5), store=store)
    lost: RawSession = await connect(bus, "lost", window=pb.Window(messages=1), description=offer("work"))
    alice = await agents("alice", bus=bus.address)
    # One message is in its hands, and two wait behind its window.
    asked = [asyncio.ensure_future(alice.request("role:work", str(number))) for number in range(3)]
    await lost.delivered(1)
    await until(lambda: unsettled(bus, "lost") == 3)
    inbox = Inbox()

    async def work(message: Received) -> str:
        await inbox(message)
        return f"done {message.content}"

    await agents("other", work, bus=bus.address, services=["work"])
    await lost.vanish()
    async with asyncio.timeout(WAIT):
        assert [(await one).content for one in asked[1:]] == ["done 1", "done 2"]
    assert [(one.content, one.redelivered, one.attempt, one.via) for one in inbox.messages] == [
        ("1", False, 1, "role:work"),
        ("2", False, 1, "role:work"),
    ]
    # What it had in hand is answered for: somebody may have seen it.
    with pytest.raises(FailureFromAgent, match="was lost before it answered"):
        await asked[0]


async def test_mail_that_nobody_could_take_goes_to_whoever_comes(buses: Any, agents: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, resume_grace=0.2, heartbeat_interval=0.2))
    lost: RawSession = await connect(bus, "lost", window=pb.Window(messages=1), description=offer("work"))
    alice = await agents("alice", bus=bus.address)
    await alice.send("lost", "inform", "in hand")
    await lost.delivered(1)
    await alice.send("role:work", "inform", "x")
    await lost.vanish()
    inbox = Inbox()
    await agents("late", inbox, bus=bus.address, services=["work"])
    assert await inbox.holds(1) == ["x"]


async def test_entries_of_the_lost_do_not_hide_who_is_there(bus: Bus, agents: Any) -> None:
    for number in range(300):
        nobody = Caller(agent=None, principal="", operator=True)
        record, _ = bus.platform.register(f"gone-{number}", "", nobody)
        entry = DFAgentDescription(services=(ServiceDescription(type="work"),))
        bus.platform.register_description(entry, Caller(agent=record, principal="", operator=True))
    await agents("there", who("there"), services=["work"])
    alice = await agents("alice")
    assert [(await alice.request("role:work", "x")).content for _ in range(5)] == ["there"] * 5


async def test_a_conversation_that_goes_on_elsewhere_stays_together_and_in_order(
    buses: Any, agents: Any, connect: Any
) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, resume_grace=0.5))
    lost: RawSession = await connect(bus, "lost", window=pb.Window(messages=1), description=offer("work"))
    alice = await agents("alice", bus=bus.address)
    await alice.send("lost", "inform", "in hand")
    await lost.delivered(1)
    for number in range(10):
        await alice.send("role:work", "inform", str(number), conversation_id="job")
    inboxes = {name: Inbox() for name in ("w1", "w2")}
    for name, inbox in inboxes.items():
        await agents(name, inbox, bus=bus.address, services=["work"])
    await lost.vanish()
    await until(lambda: any(len(inbox.messages) == 10 for inbox in inboxes.values()))
    assert sorted(inbox.contents for inbox in inboxes.values()) == [[], [str(number) for number in range(10)]]


async def test_role_mail_of_who_does_not_come_back_after_a_restart_goes_to_another(
    connect: Any, tmp_path: Path
) -> None:
    path, limits = tmp_path / "bus.db", BusLimits(drain_grace=0.2, resume_grace=0.5)
    async with running_bus(SqliteStore(path), limits=limits) as bus:
        lost: RawSession = await connect(bus, "lost", window=pb.Window(messages=1), description=offer("work"))
        async with Agent("alice", bus=bus.address) as alice:
            await alice.send("lost", "inform", "in hand")
            await lost.delivered(1)
            await alice.send("role:work", "inform", "x")
        await lost.vanish()
    inbox = Inbox()
    async with running_bus(SqliteStore(path), limits=limits) as bus:
        other = Agent("other", bus=bus.address, services=["work"])
        other.on()(inbox)
        async with other:
            assert await inbox.holds(1) == ["x"]
            await settled(bus, "other")


async def test_a_repeated_message_to_a_role_is_a_duplicate_whoever_serves_it_now(
    bus: Bus, agents: Any, connect: Any
) -> None:
    first = await agents("a", services=["work"])
    sender: RawSession = await connect(bus, "sender")
    await sender.send(acl("role:work", "x", id="m"))
    assert await sender.receipted(1) == []
    await settled(bus, "a")
    await first.aclose(deregister=True)
    inbox = Inbox()
    await agents("b", inbox, services=["work"])
    await sender.send(acl("role:work", "x", id="m"), acl("role:work", "other", id="m"), acl("role:work", "y"))
    outcomes = [one.outcome for one in await sender.receipted(4)]
    assert outcomes == [pb.OUTCOME_DUPLICATE, pb.OUTCOME_INVALID]
    assert await inbox.holds(1) == ["y"]


def offer(service: str) -> Any:
    return agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type=service)])


# ---- topics -----------------------------------------------------------------------------------------------------------


async def test_what_is_published_reaches_everybody_who_listens_once(agents: Any, inboxes: Any) -> None:
    boxes = {name: inboxes() for name in ("exact", "level", "rest", "other", "twice")}
    await agents("exact", boxes["exact"], topics=["sales.eu"])
    await agents("level", boxes["level"], topics=["topic:sales.*"])
    await agents("rest", boxes["rest"], topics=[">"])
    await agents("other", boxes["other"], topics=["sales.eu.berlin"])
    await agents("twice", boxes["twice"], topics=["sales.eu", "sales.*", "sales.>"])
    alice = await agents("alice")
    (receipt,) = await alice.send("topic:sales.eu", "inform", "10")
    assert (receipt.outcome, receipt.receiver, receipt.reached, receipt.missed) == (
        Outcome.ACCEPTED,
        "topic:sales.eu",
        4,
        0,
    )
    await alice.send("topic:sales.eu.berlin", "inform", "last")
    for name, count in (("exact", 1), ("level", 1), ("rest", 2), ("other", 1), ("twice", 2)):
        assert len(await boxes[name].holds(count)) == count, name
        assert all(one.via.startswith("topic:sales.eu") for one in boxes[name].messages)


async def test_topics_change_while_the_agent_is_open(agents: Any, inbox: Inbox) -> None:
    bob = await agents("bob", inbox)
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match=r"NO_PROVIDER.*nobody listens to 'topic:a'"):
        await alice.send("topic:a", "inform", "0")
    await bob.listen_to("a", "topic:b.*")
    assert bob.topics == ("a", "b.*")
    await alice.send("topic:a", "inform", "1")
    await bob.stop_listening_to("a")
    with pytest.raises(DeliveryRefused, match="NO_PROVIDER"):
        await alice.send("topic:a", "inform", "2")
    await alice.send("topic:b.c", "inform", "3")
    assert await inbox.holds(2) == ["1", "3"]


async def test_a_topic_that_is_not_valid_is_refused_and_changes_nothing(agents: Any) -> None:
    bob = await agents("bob", topics=["a"])
    with pytest.raises(InvalidArgument, match="expected a dotted name"):
        await bob.listen_to("b", "c..d")
    assert bob.topics == ("a",)
    with pytest.raises(InvalidArgument, match="101 topics"):
        await bob.listen_to(*[f"t{number}" for number in range(100)])
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match=r"INVALID.*without blanks"):
        await alice.send("topic:a.*", "inform", "x")
    with pytest.raises(InvalidArgument, match="the subscription"):
        await agents("carol", topics=["x y"])


async def test_topics_outlive_a_lost_connection_and_a_restart_and_end_with_bye(
    buses: Any, agents: Any, proxy: Any, tmp_path: Path
) -> None:
    path = tmp_path / "bus.db"
    inbox = Inbox()
    async with running_bus(SqliteStore(path)) as bus:
        listener = Agent("listener", bus=bus.address, topics=["news"], limits=ClientLimits(max_backoff=0.1))
        async with Agent("alice", bus=bus.address) as alice:
            session = bus.platform.ams
            async with listener:
                record = session.find("listener")
            # A polite end.
            with pytest.raises(DeliveryRefused, match="NO_PROVIDER"):
                await alice.send("topic:news", "inform", "nobody")
            assert record is not None
            async with Agent("listener", bus=bus.address, topics=["news"]):
                assert record.session is not None
                bus.platform.detach(record.session)
                # Lost, but it still listens.
                (receipt,) = await alice.send("topic:news", "inform", "while lost")
                assert receipt.reached == 1
    async with running_bus(SqliteStore(path)) as bus:
        async with Agent("alice", bus=bus.address) as alice:
            reached = (await alice.send("topic:news", "inform", "after the restart"))[0].reached
        listener = Agent("listener", bus=bus.address, topics=["news"])
        listener.on()(inbox)
        async with listener:
            got = await inbox.holds(2)
    assert (reached, got) == (1, ["while lost", "after the restart"])


async def test_a_full_listener_misses_a_message_is_told_so_and_does_not_refuse_the_publisher(
    buses: Any, agents: Any, connect: Any, inbox: Inbox
) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, mailbox_messages=2))
    full: RawSession = await connect(bus, "full", topics=["news"])
    await agents("other", inbox, bus=bus.address, topics=["news"])
    alice = await agents("alice", bus=bus.address)
    missed = 0
    for number in range(5):
        (receipt,) = await alice.send("topic:news", "inform", str(number))
        assert receipt.outcome is Outcome.ACCEPTED
        assert receipt.reached + receipt.missed == 2
        missed += receipt.missed
        await settled(bus, "other")
    assert missed >= 1
    await full.until(lambda: sum(notice.missed for notice in full.notices) == missed)
    assert {(notice.kind, notice.address) for notice in full.notices} == {(pb.NOTICE_KIND_GAP, "topic:news")}
    assert await inbox.holds(5) == ["0", "1", "2", "3", "4"]


async def test_a_gap_of_an_agent_without_a_session_is_told_to_the_next_one(buses: Any, agents: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0, mailbox_messages=2))
    gaps: list[tuple[str, int]] = []
    told = asyncio.Event()
    listener = Agent("listener", bus=bus.address, topics=["news"])

    @listener.on_gap
    def gap(address: str, missed: int) -> None:
        gaps.append((address, missed))
        told.set()

    alice = await agents("alice", bus=bus.address)
    async with Agent("listener", bus=bus.address, topics=["news"]):
        record = bus.platform.ams.find("listener")
        assert record is not None
        assert record.session is not None
        bus.platform.detach(record.session)
        missed = sum([(await alice.send("topic:news", "inform", str(n)))[0].missed for n in range(6)])
        record.session = None
    async with listener:
        async with asyncio.timeout(WAIT):
            await told.wait()
    assert missed > 0
    assert gaps == [("topic:news", missed)]


async def test_a_publication_that_is_repeated_reaches_each_listener_once(
    bus: Bus, agents: Any, connect: Any, inboxes: Any
) -> None:
    first, second = inboxes(), inboxes()
    await agents("first", first, topics=["news"])
    sender: RawSession = await connect(bus, "sender")
    await sender.send(acl("topic:news", "x", id="m"))
    assert [one.reached for one in await sender.receipted(1)] == [1]
    await agents("second", second, topics=["news"])
    await sender.send(acl("topic:news", "x", id="m", resend=True))
    assert [(one.outcome, one.reached) for one in (await sender.receipted(2))[1:]] == [(pb.OUTCOME_ACCEPTED, 2)]
    await sender.send(acl("topic:news", "x", id="m"), acl("topic:news", "end"))
    assert [(one.outcome, one.reached) for one in (await sender.receipted(4))[2:]] == [
        (pb.OUTCOME_DUPLICATE, 2),
        (pb.OUTCOME_ACCEPTED, 2),
    ]
    for box in (first, second):
        assert await box.holds(2) == ["x", "end"]


# ---- everybody --------------------------------------------------------------------------------------------------------


async def test_everybody_who_is_connected_gets_it_but_the_sender_and_ephemeral_ones(agents: Any, inboxes: Any) -> None:
    boxes = [inboxes() for _ in range(4)]
    await agents("a", boxes[0])
    await agents("b", boxes[1])
    await agents("visitor", boxes[2], ephemeral=True)
    gone = await agents("gone")
    await gone.aclose()
    alice = await agents("alice", boxes[3])
    (receipt,) = await alice.send("*", "inform", "hello")
    assert (receipt.receiver, receipt.reached, receipt.missed) == ("*", 2, 0)
    await alice.send(["a", "b", "visitor", "alice"], "inform", "end")
    for box, expected in zip(boxes, (["hello", "end"], ["hello", "end"], ["end"], ["end"]), strict=True):
        assert await box.holds(len(expected)) == expected


async def test_what_goes_to_everybody_is_not_written_down(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    async with (
        running_bus(SqliteStore(path)) as bus,
        Agent("alice", bus=bus.address) as alice,
        Agent("bob", bus=bus.address),
        Operator(bus.address) as op,
    ):
        await op.ams.suspend("bob")
        await alice.send("bob", "inform", "kept")
        assert (await alice.send("*", "inform", "gone"))[0].reached == 1
    inbox = Inbox()
    async with running_bus(SqliteStore(path)) as bus, Operator(bus.address) as op:
        bob = Agent("bob", bus=bus.address)
        bob.on()(inbox)
        async with bob:
            await op.ams.resume("bob")
            await op.admin.stats()
            assert await inbox.holds(1) == ["kept"]
            await settled(bus, "bob")
    assert len(inbox.messages) == 1


async def test_alone_on_the_bus_nobody_is_reached(agents: Any) -> None:
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match=r"NO_PROVIDER .nobody else is connected"):
        await alice.send("*", "inform", "x")


async def test_one_message_may_go_to_agents_roles_and_topics_together(bus: Bus, agents: Any, inboxes: Any) -> None:
    boxes = [inboxes() for _ in range(3)]
    await agents("a", boxes[0])
    await agents("b", boxes[1], services=["work"])
    await agents("c", boxes[2], topics=["news"])
    alice = await agents("alice")
    (receipt,) = await alice.send(["a", "role:work", "topic:news"], "inform", "x")
    assert (receipt.receiver, receipt.reached) == ("topic:news", 1)
    for box in boxes:
        assert await box.holds(1) == ["x"]


@pytest.mark.parametrize("address", ["role:", "topic:", "queue:x", "**", "role:" + "x" * 1_001])
async def test_an_address_of_no_kind_is_refused_with_words(agents: Any, address: str) -> None:
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused) as raised:
        await alice.send(address, "inform", "x")
    assert raised.value.receipts[0].outcome is Outcome.INVALID
    assert "expected" in raised.value.receipts[0].detail


async def test_a_message_of_nobody_reaches_a_topic(bus: Bus, channels: Any, agents: Any, inbox: Inbox) -> None:
    await agents("bob", inbox, topics=["news"])
    stub = services.BusServiceStub(channels(bus))
    message = pb.BusMessage(to=["topic:news"], acl=acl_pb2.AclMessage(performative=acl_pb2.PERFORMATIVE_INFORM))
    response = await stub.Send(pb.SendRequest(messages=[message, pb.BusMessage(to=["topic:x"], acl=message.acl)]))
    assert [(one.outcome, one.reached) for one in response.receipts] == [
        (pb.OUTCOME_ACCEPTED, 1),
        (pb.OUTCOME_NO_PROVIDER, 0),
    ]
    await inbox.holds(1)
