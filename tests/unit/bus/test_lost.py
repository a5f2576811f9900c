"""Agents that are lost while they owe an answer: when they count as lost, and what the bus does then in their place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl

from gagent_grpc.acl.descriptions import LifeCycleState as S
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative as P
from gagent_grpc.bus.origins import ANONYMOUS
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.ports import StoredAgent, StoredMessage, StoredPlatform
from gagent_grpc.bus.session import Nack, Session
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

WAIT = pb.ON_RECEIVER_LOST_WAIT
FAIL = pb.ON_RECEIVER_LOST_FAIL


class Bench:
    """A platform whose clock stands still, and agents without a wire."""

    def __init__(self, store: Any = None, **limits: Any) -> None:
        self.limits = BusLimits(**limits)
        self.clock = FakeClock()
        self.codec = EnvelopeCodec(max_id_bytes=self.limits.max_id_bytes)
        self.platform = Platform("local", store or MemoryStore(), self.codec, self.clock, self.limits)
        self.debts = self.platform.post.debts

    async def open(self, name: str, **hello: Any) -> Session:
        session = (await self.platform.attach(Hello(name, **hello), "local")).session
        await asyncio.sleep(0)
        return session

    def lose(self, session: Session) -> None:
        self.platform.detach(session)

    def later(self, seconds: float) -> None:
        """Let time pass, at the end of which the clock's business is done."""
        self.clock.advance(seconds)
        self.platform.keep_house()

    def mail(self, name: str) -> list[ACLMessage]:
        letters = sorted(self.platform.ams.get(name).mailbox.letters(), key=lambda letter: letter.sequence)
        found = [self.codec.decode_acl(letter.envelope.payload) for letter in letters]
        return [one for one in found if one is not None]

    def failures(self, name: str = "alice") -> list[tuple[str, str | None, str]]:
        """Return the failures that an agent got of the AMS: who failed, the in-reply-to, why."""
        return [
            (one.user_parameters["X-failed-receiver"], one.in_reply_to, str(one.content))
            for one in self.mail(name)
            if one.performative is P.FAILURE and one.sender is not None and one.sender.name == "ams@local"
        ]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def send(session: Session, *messages: pb.BusMessage) -> list[tuple[str, str]]:
    """Send messages; return the (outcome, detail) of those that were refused."""
    session.submit([message.SerializeToString() for message in messages])
    return [(one.outcome.name, one.detail) for one in session._collect().exceptions]


def ask(to: str | list[str] = "bob", mark: str = "r", *, act: P = P.REQUEST, **fields: Any) -> pb.BusMessage:
    return acl(to, "?", act=int(act), id=f"id-{mark}", acl_reply_with=mark, acl_conversation_id="c", **fields)


def answer(to: str = "alice", mark: str = "r", *, act: P = P.INFORM) -> pb.BusMessage:
    return acl(to, "!", act=int(act), acl_in_reply_to=mark)


def deliver(session: Session) -> list[int]:
    """Deliver what waits; return the sequences."""
    return [letter.sequence for letter in session._collect().letters]


def ack(session: Session, *sequences: int) -> None:
    session.settle(ack_through_tag=0, acks=sequences, nacks=(), rejects=())


# ---- lost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acked", [False, True])
@pytest.mark.parametrize("polite", [False, True])
async def test_the_bus_answers_for_who_is_lost(bench: Bench, acked: bool, polite: bool) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask(act=P.QUERY_REF, acl_protocol="fipa-query"))
    sequences = deliver(bob)
    if acked:
        ack(bob, *sequences)
    if polite:
        bench.platform.bye(bob, deregister=False)
    bench.lose(bob)
    bench.later(30.0)
    assert (bench.mail("alice"), bench.debts.count) == ([], 1)
    bench.later(0.1)
    (failure,) = bench.mail("alice")
    assert bench.failures() == [("bob@local", "r", "bob@local was lost before it answered: no session for 30 s")]
    assert (failure.conversation_id, failure.protocol) == ("c", "fipa-query")
    assert failure.user_parameters["X-failed-id"] == "id-r"
    assert (bench.mail("bob"), bench.debts.count) == ([], 0)
    bench.later(3_600.0)
    assert len(bench.mail("alice")) == 1


async def test_an_answer_of_who_was_lost_comes_too_late(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask())
    deliver(bob)
    bench.lose(bob)
    bench.later(31.0)
    bob = await bench.open("bob")
    assert deliver(bob) == []
    bench.clock.advance(2.0)
    late = "its sender was lost while it owed this answer, and the bus answered in its place 2.0 s ago"
    assert send(bob, answer()) == [("EXPIRED", late)]
    assert send(bob, answer(act=P.AGREE), answer()) == [("EXPIRED", late)] * 2
    assert send(bob, answer(mark="s"), acl("alice", "news")) == []
    assert len(bench.failures()) == 1
    # Alice may ask again, and under the same mark.
    send(alice, acl("bob", "?", act=int(P.REQUEST), id="new", acl_reply_with="r", acl_conversation_id="c"))
    deliver(bob)
    assert send(bob, answer()) == []
    bench.later(601.0)
    assert bench.debts.accounts == {}


async def test_who_is_back_in_time_keeps_its_debts_and_may_pay_them(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask())
    deliver(bob)
    bench.lose(bob)
    bench.later(30.0)
    bob = await bench.open("bob")
    bench.later(40.0)
    assert bench.mail("alice") == []
    assert (deliver(bob), send(bob, answer())) == ([1], [])
    bench.lose(bob)
    bench.later(100.0)
    assert bench.failures() == []
    # It is in the mailbox still, since it was not acknowledged; answered once, it is owed no more.
    assert deliver(await bench.open("bob")) == [1]
    assert bench.debts.count == 0


async def test_a_message_that_was_sent_again_is_owed_with_its_first_delivery(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask(resend=True))
    deliver(bob)
    bench.lose(bob)
    bench.later(31.0)
    assert len(bench.failures()) == 1


async def test_what_was_not_delivered_waits(bench: Bench) -> None:
    bob, alice = await bench.open("bob", window_messages=1), await bench.open("alice")
    send(alice, ask(mark="r"), ask(mark="s"), acl("bob", "news"))
    assert deliver(bob) == [1]
    bench.lose(bob)
    bench.later(31.0)
    assert [mark for _, mark, _ in bench.failures()] == ["r"]
    assert deliver(await bench.open("bob")) == [2, 3]


async def test_an_agree_does_not_pay_and_every_other_answer_does(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, *[ask(mark=f"{number}") for number in range(4)])
    ack(bob, *deliver(bob))
    send(bob, answer(mark="0", act=P.AGREE), answer(mark="1", act=P.REFUSE), answer(mark="2"))
    bench.lose(bob)
    bench.later(31.0)
    assert [mark for _, mark, _ in bench.failures()] == ["0", "3"]


async def test_an_answer_that_was_refused_pays_nothing() -> None:
    bench = Bench(mailbox_messages=1)
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask())
    ack(bob, *deliver(bob))
    send(bob, acl("alice", "fills the mailbox"))
    assert [outcome for outcome, _ in send(bob, answer())] == ["MAILBOX_FULL"]
    bench.lose(bob)
    bench.later(31.0)
    assert len(bench.failures()) == 1


async def test_two_askers_with_the_same_marks_are_told_apart(bench: Bench) -> None:
    bob, alice, carol = await bench.open("bob"), await bench.open("alice"), await bench.open("carol")
    for asker in (alice, carol):
        send(asker, ask())
    ack(bob, *deliver(bob))
    send(bob, answer("carol"), answer("carol"))
    bench.lose(bob)
    bench.later(31.0)
    assert (len(bench.failures("alice")), bench.failures("carol")) == (1, [])
    bob = await bench.open("bob")
    assert send(bob, answer("carol")) == []
    assert [outcome for outcome, _ in send(bob, answer("alice"))] == ["EXPIRED"]


async def test_each_of_several_receivers_owes_its_own_answer(bench: Bench) -> None:
    sessions = {name: await bench.open(name) for name in ("bob", "carol", "dave", "alice")}
    send(sessions["alice"], ask(["bob", "carol", "dave"], act=P.CFP))
    for name in ("bob", "carol", "dave"):
        deliver(sessions[name])
    send(sessions["bob"], answer(act=P.PROPOSE))
    for name in ("bob", "carol"):
        bench.lose(sessions[name])
    bench.later(31.0)
    assert [receiver for receiver, _, _ in bench.failures()] == ["carol@local"]
    bench.lose(sessions["dave"])
    bench.later(31.0)
    assert [receiver for receiver, _, _ in bench.failures()] == ["carol@local", "dave@local"]


@pytest.mark.parametrize("act", [P.INFORM, P.FAILURE, P.NOT_UNDERSTOOD, P.REFUSE, P.ACCEPT_PROPOSAL, P.CANCEL])
async def test_nothing_is_owed_for_other_acts(bench: Bench, act: P) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask(act=act, on_receiver_lost=FAIL))
    deliver(bob)
    bench.lose(bob)
    bench.later(31.0)
    assert (bench.mail("alice"), len(bench.mail("bob"))) == ([], 1)


async def test_where_nobody_can_hear_of_it_nothing_is_said(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask())
    bench.platform.router.submit(ask(mark="s").SerializeToString(), NotingOrigin(ANONYMOUS), 1)
    assert deliver(bob) == [1, 2]
    bench.platform.deregister("alice", bench.platform.caller_for("alice@local"))
    bench.lose(bob)
    bench.later(31.0)
    # The one of nobody in particular is mail like any other.
    assert [one.reply_with for one in bench.mail("bob")] == ["s"]
    assert bench.platform.post.unheard_failures == 0


async def test_an_answer_to_who_is_gone_ends_the_debt(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask())
    deliver(bob)
    bench.platform.deregister("alice", bench.platform.caller_for("alice@local"))
    assert [outcome for outcome, _ in send(bob, answer())] == ["NO_SUCH_AGENT"]
    assert bench.debts.count == 0


async def test_many_debts_are_answered_a_few_at_a_time(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, *[ask(mark=f"{number}") for number in range(450)])
    deliver(bob)
    bench.lose(bob)
    seen = []
    bench.later(31.0)
    while bench.debts.count:
        seen.append(len(bench.failures()))
        bench.platform.release_lanes()
    assert seen == [200, 400]
    assert [mark for _, mark, _ in bench.failures()] == [f"{number}" for number in range(450)]


# ---- waiting ---------------------------------------------------------------------------------------------------------


def waiting(bench: Bench, seconds: float) -> pb.BusMessage:
    message = ask(on_receiver_lost=WAIT)
    message.acl.reply_by.FromSeconds(int(bench.clock.time() + seconds))
    return message


async def test_what_waits_comes_again(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask(on_receiver_lost=WAIT))
    deliver(bob)
    bench.lose(bob)
    bench.later(3_600.0)
    assert bench.mail("alice") == []
    bob = await bench.open("bob")
    assert (deliver(bob), send(bob, answer())) == ([1], [])


async def test_what_waits_fails_at_its_reply_by(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, waiting(bench, 100.0))
    deliver(bob)
    bench.lose(bob)
    bench.later(99.0)
    assert bench.mail("alice") == []
    bench.later(1.0)
    assert (len(bench.failures()), bench.mail("bob")) == (1, [])
    assert [outcome for outcome, _ in send(await bench.open("bob"), answer())] == ["EXPIRED"]


async def test_the_reply_by_is_nothing_to_an_agent_that_is_there(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, waiting(bench, 10.0))
    deliver(bob)
    bench.later(20.0)
    bench.lose(bob)
    bench.later(30.0)
    bob = await bench.open("bob")
    assert (bench.failures(), deliver(bob), send(bob, answer())) == ([], [1], [])


# ---- gone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acked", [False, True])
@pytest.mark.parametrize("how", ["bye", "deregister", "terminate", "ephemeral"])
@pytest.mark.parametrize("mode", [0, WAIT])
async def test_who_is_removed_answers_nothing_any_more(bench: Bench, how: str, mode: Any, acked: bool) -> None:
    bob, alice = await bench.open("bob", ephemeral=how == "ephemeral"), await bench.open("alice")
    send(alice, ask(on_receiver_lost=mode))
    sequences = deliver(bob)
    if acked:
        ack(bob, *sequences)
    if how == "bye":
        bench.platform.bye(bob, deregister=True)
    elif how == "ephemeral":
        bench.lose(bob)
        bench.later(31.0)
    else:
        bench.platform.deregister("bob", bench.platform.caller_for("alice@local"), why=how)
    assert [(receiver, mark) for receiver, mark, _ in bench.failures()] == [("bob@local", "r")]
    assert bench.debts.count == 0
    # Whoever bears the name next is not the one that was asked.
    assert [outcome for outcome, _ in send(await bench.open("bob"), answer())] == ["EXPIRED"]


async def test_what_is_given_up_is_told_once(bench: Bench) -> None:
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask())
    for _ in range(5):
        (sequence,) = deliver(bob)
        bob.settle(ack_through_tag=0, acks=(), nacks=[Nack(sequence, 0.0, "no")], rejects=())
    assert (len(bench.failures()), bench.debts.count) == (1, 0)
    bench.lose(bob)
    bench.later(31.0)
    assert len(bench.failures()) == 1


# ---- with a durable store --------------------------------------------------------------------------------------------


async def delivered_and_owed(store: ManualStore) -> tuple[Bench, Session, Session]:
    bench = Bench(store)
    bob, alice = await bench.open("bob"), await bench.open("alice")
    send(alice, ask())
    bench.platform.post.commit(store.commit())
    ack(bob, *deliver(bob))
    assert bench.debts.count == 1
    return bench, bob, alice


async def test_an_answer_on_its_way_to_the_disk_counts_when_its_sender_goes() -> None:
    store = ManualStore()
    bench, bob, _ = await delivered_and_owed(store)
    send(bob, answer())
    bench.platform.bye(bob, deregister=True)
    bench.platform.post.commit(store.commit())
    assert [one.performative for one in bench.mail("alice")] == [P.INFORM]


async def test_an_answer_that_is_not_kept_when_its_sender_is_gone_is_a_failure() -> None:
    store = ManualStore()
    bench, bob, _ = await delivered_and_owed(store)
    send(bob, answer())
    bench.platform.bye(bob, deregister=True)
    bench.platform.post.commit(store.commit(error="disk full"))
    bench.platform.post.commit(store.commit())
    why = "bob@local is gone, and its answer was not kept: not stored: disk full"
    assert bench.failures() == [("bob@local", "r", why)]


async def test_an_answer_that_is_not_kept_is_owed_again() -> None:
    store = ManualStore()
    bench, bob, _ = await delivered_and_owed(store)
    send(bob, answer())
    bench.platform.post.commit(store.commit(error="disk full"))
    assert bench.debts.count == 1
    send(bob, answer())
    bench.platform.post.commit(store.commit())
    bench.lose(bob)
    bench.later(31.0)
    assert [one.performative for one in bench.mail("alice")] == [P.INFORM]


@pytest.mark.parametrize(("clean", "owed"), [(True, ["tried"]), (False, ["fresh", "tried"])])
async def test_a_restart_asks_again_for_what_may_have_been_delivered(clean: bool, owed: list[str]) -> None:
    def agent(name: str, *, attached: bool) -> StoredAgent:
        return StoredAgent(name, "local", "", S.ACTIVE, S.ACTIVE, False, 1, attached, 10, b"", 1.0)

    def message(sequence: int, mark: str, attempt: int) -> StoredMessage:
        payload = ask(mark=mark).SerializeToString()
        digest = EnvelopeCodec(max_id_bytes=128).decode(payload).digest
        return StoredMessage(
            "bob", sequence, "alice@local", f"id-{mark}", f"id-{mark}", digest, "", 1e9, attempt, payload
        )

    store = ManualStore(
        StoredPlatform(
            clean=clean,
            agents=[agent("bob", attached=True), agent("alice", attached=False)],
            messages=[message(1, "fresh", 0), message(2, "tried", 1)],
        )
    )
    bench = Bench(store)
    async with bench.platform.running():
        assert bench.debts.count == len(owed)
        bench.later(30.0)
        assert bench.debts.count == len(owed)
        bench.later(0.1)
        bench.platform.post.commit(store.commit())
        assert [mark for _, mark, _ in bench.failures()] == owed
        assert [one.reply_with for one in bench.mail("bob")] == ([] if len(owed) == 2 else ["fresh"])
