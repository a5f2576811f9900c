"""From a message to mailboxes or refusals: with a store that commits late, fails, or fails for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.ams import SEQUENCES_WRITTEN_AHEAD, AgentManagementSystem, AgentRecord
from gagent_grpc.bus.asking import Asking
from gagent_grpc.bus.dead_letters import DeadLetters
from gagent_grpc.bus.dedupe import Dedupe
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.hints import Hints
from gagent_grpc.bus.mailbox import Letter, Mailbox
from gagent_grpc.bus.origins import ANONYMOUS
from gagent_grpc.bus.ports import Commit, Store
from gagent_grpc.bus.post import LETTER_COST, Post
from gagent_grpc.bus.publication import Gaps
from gagent_grpc.bus.roles import Roles
from gagent_grpc.bus.router import Router
from gagent_grpc.bus.topics import Topics
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason, Outcome
from gagent_grpc.errors import InvalidArgument
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

FAILURE = pb.REPORT_MODE_FAILURE_MESSAGE


class Echo:
    """The platform's agents, which answer with what they are told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ACLMessage, str]] = []
        self.content: str | None = "done"

    def answer(self, name: str, message: ACLMessage, sender: str) -> ACLMessage | None:
        self.asked.append((name, message, sender))
        if self.content is None:
            return None
        return message.create_reply(Performative.INFORM, self.content)


class Bench:
    """A router with everything around it."""

    def __init__(self, store: Store, **limits: Any) -> None:
        self.limits = BusLimits(**limits)
        self.clock = FakeClock()
        self.ams = AgentManagementSystem("local", max_agents=200_000)
        self.dedupe = Dedupe(window=600, rows=1_000)
        self.echo = Echo()
        self.codec = EnvelopeCodec(max_id_bytes=self.limits.max_id_bytes)
        self.dead_letters = DeadLetters(store, most=self.limits.dead_letters, most_bytes=10_000, ttl=3_600.0)
        self.post = Post(self.ams, store, self.codec, self.clock, self.limits, self.dedupe, self.dead_letters)
        asking = Asking(self.ams, self.post, self.codec, self.clock, self.limits, self.dedupe, self.echo)
        self.df = DirectoryFacilitator(max_entries=100)
        self.topics, roles = Topics(), Roles(self.ams, self.df)
        self.router = Router(
            self.ams,
            self.post,
            asking,
            roles,
            self.topics,
            Gaps(),
            self.codec,
            self.clock,
            self.limits,
            Hints(self.ams),
        )
        self.number = 0

    def agent(self, name: str) -> AgentRecord:
        box = Mailbox(max_messages=self.limits.mailbox_messages, max_bytes=self.limits.mailbox_bytes)
        record = AgentRecord(name, "local", principal="", mailbox=box, registered_at=self.clock.time())
        self.ams.add(record)
        return record

    def submit(self, origin: NotingOrigin, message: pb.BusMessage) -> int:
        self.number += 1
        self.router.submit(message.SerializeToString(), origin, self.number)
        return self.number

    def texts(self, record: AgentRecord) -> list[str]:
        letters = sorted(record.mailbox.letters(), key=lambda letter: letter.sequence)
        return [pb.BusMessage.FromString(letter.envelope.payload).acl.text for letter in letters]

    def failures(self, record: AgentRecord) -> list[ACLMessage]:
        found = [self.codec.decode_acl(letter.envelope.payload) for letter in record.mailbox.letters()]
        return [one for one in found if one is not None and one.performative is Performative.FAILURE]


@pytest.fixture
def store() -> ManualStore:
    return ManualStore()


@pytest.fixture
def durable(store: ManualStore) -> Bench:
    return Bench(store)


@pytest.fixture
def bench() -> Bench:
    return Bench(MemoryStore())


# ---- with a durable store --------------------------------------------------------------------------------------------


def test_message_is_delivered_and_receipted_with_its_commit(durable: Bench, store: ManualStore) -> None:
    bob, alice = durable.agent("bob"), NotingOrigin("alice@local")
    durable.submit(alice, acl("bob", "one", id="m"))
    durable.submit(alice, acl("bob", "two"))
    assert (durable.texts(bob), alice.reached, alice.waiting) == ([], [], 2)
    assert bob.mailbox.messages == 2
    durable.post.commit(store.commit(1))
    assert (durable.texts(bob), alice.reached) == (["one"], [(1, "bob")])
    durable.post.commit(store.commit())
    assert (durable.texts(bob), alice.waiting) == (["one", "two"], 0)
    assert [(one.key, one.sequence) for one in store.accepted] == [("m", 1), ("", 2)]


def test_transient_message_waits_for_no_commit(durable: Bench, store: ManualStore) -> None:
    bob, alice = durable.agent("bob"), NotingOrigin("alice@local")
    durable.submit(alice, acl("bob", "durable"))
    durable.submit(alice, acl("bob", "transient", transient=True))
    assert (durable.texts(bob), alice.reached) == (["transient"], [(2, "bob")])
    durable.post.commit(store.commit())
    assert durable.texts(bob) == ["durable", "transient"]


def test_failed_commit_refuses_and_gives_all_room_back(durable: Bench, store: ManualStore) -> None:
    bob, alice = durable.agent("bob"), NotingOrigin("alice@local")
    message = acl("bob", id="m")
    durable.submit(alice, message)
    durable.submit(alice, message)
    durable.post.commit(store.commit(error="disk full"))
    assert alice.outcomes == [(1, "bob", "MAILBOX_FULL"), (2, "bob", "MAILBOX_FULL")]
    assert "disk full" in alice.refusals[0].detail
    assert alice.refusals[0].retry_after
    assert alice.waiting == 0
    assert (bob.mailbox.messages, bob.mailbox.bytes, durable.post.mail_bytes) == (0, 0, 0)
    # A refused id may be tried again.
    durable.submit(alice, message)
    durable.post.commit(store.commit())
    assert alice.reached == [(3, "bob")]


def test_letter_that_cannot_be_finished_is_refused_and_those_of_its_commit_are_not_held_up(
    durable: Bench, store: ManualStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, broken = durable.agent("bob"), durable.agent("broken")
    alice, again = NotingOrigin("alice@local"), NotingOrigin("alice@local")
    monkeypatch.setattr(type(broken.mailbox), "put", _put_unless(broken.mailbox))
    durable.submit(alice, acl("broken", id="m"))
    durable.submit(again, acl("broken", id="m"))
    durable.submit(alice, acl("bob", "fine"))
    durable.post.commit(store.commit())
    assert alice.outcomes == [(1, "broken", "UNREACHABLE")]
    assert again.outcomes == [(2, "broken", "UNREACHABLE")]
    assert "internal error" in alice.refusals[0].detail
    assert "wrong" not in alice.refusals[0].detail
    assert (alice.reached, durable.texts(bob)) == ([(3, "bob")], ["fine"])
    assert alice.waiting == again.waiting == 0


def _put_unless(broken: Mailbox) -> Callable[[Mailbox, Letter], None]:
    put = Mailbox.put

    def put_or_fail(mailbox: Mailbox, letter: Letter) -> None:
        if mailbox is broken:
            raise ValueError("something is wrong")
        put(mailbox, letter)

    return put_or_fail


def test_repetition_of_what_is_being_written_shares_its_commit(durable: Bench, store: ManualStore) -> None:
    durable.agent("bob")
    alice, reborn = NotingOrigin("alice@local"), NotingOrigin("alice@local")
    durable.submit(alice, acl("bob", id="m"))
    durable.submit(reborn, acl("bob", id="m"))
    durable.submit(reborn, acl("bob", "other", id="m"))
    assert reborn.outcomes == [(3, "bob", "INVALID")]
    assert reborn.waiting == 1
    durable.post.commit(store.commit())
    assert alice.reached == [(1, "bob")]
    assert reborn.outcomes == [(3, "bob", "INVALID"), (2, "bob", "DUPLICATE")]
    assert reborn.waiting == 0
    assert len(store.accepted) == 1


def test_receiver_that_goes_while_its_mail_is_written_is_no_such_agent(durable: Bench, store: ManualStore) -> None:
    bob, alice = durable.agent("bob"), NotingOrigin("alice@local")
    durable.submit(alice, acl("bob", id="m"))
    durable.ams.remove(bob)
    successor = durable.agent("bob")
    # The same id, to another agent of the same name: neither a repetition nor in the way of the first one's commit.
    durable.submit(alice, acl("bob", id="m"))
    durable.post.commit(store.commit(1))
    durable.post.commit(store.commit())
    assert alice.outcomes == [(1, "bob", "NO_SUCH_AGENT")]
    assert alice.reached == [(2, "bob")]
    assert durable.texts(successor) == ["hi"]
    assert durable.post.mail_bytes == successor.mailbox.bytes + LETTER_COST
    assert bob.mailbox.messages == 0


def test_store_that_failed_for_good_refuses_at_once_and_transient_mail_goes_on(
    durable: Bench, store: ManualStore
) -> None:
    bob, alice = durable.agent("bob"), NotingOrigin("alice@local")
    sender = durable.agent("alice")
    durable.submit(alice, acl("bob", "written"))
    durable.post.store_failure = "the disk is gone"
    durable.post.commit(Commit(2**62, "the disk is gone", final=True))
    durable.submit(alice, acl("bob", "late", report=FAILURE, act=19))
    assert alice.outcomes == [(1, "bob", "UNREACHABLE"), (2, "bob", "UNREACHABLE")]
    assert [one.retry_after for one in alice.refusals] == [None, None]
    assert alice.waiting == 0
    # What tells of it does not depend on the store.
    (failure,) = durable.failures(sender)
    assert "the disk is gone" in str(failure.content)
    durable.submit(alice, acl("bob", "transient", transient=True))
    assert durable.texts(bob) == ["transient"]


def test_message_that_the_store_cannot_take_is_invalid_and_leaves_no_trace(
    durable: Bench, store: ManualStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(message: object) -> int:
        raise InvalidArgument("not to be written")

    bob = durable.agent("bob")
    monkeypatch.setattr(store, "accept", refuse)
    origin = NotingOrigin("alice@local")
    durable.submit(origin, acl("bob", id="1"))
    assert (origin.outcomes, origin.waiting) == ([(1, "bob", "INVALID")], 0)
    assert (bob.mailbox.messages, bob.mailbox.bytes, durable.post.mail_bytes) == (0, 0, 0)
    monkeypatch.undo()
    durable.submit(origin, acl("bob", id="1"))
    durable.post.commit(store.commit())
    assert origin.reached == [(2, "bob")]


@pytest.mark.parametrize("settled", [False, True])
def test_messages_of_nobody_in_particular_share_no_ids(durable: Bench, store: ManualStore, settled: bool) -> None:
    bob = durable.agent("bob")
    first, second = NotingOrigin(ANONYMOUS), NotingOrigin(ANONYMOUS)
    durable.submit(first, acl("bob", id="1"))
    durable.post.commit(store.commit())
    if settled:
        for letter in bob.mailbox.drain():
            durable.post.settled(bob, letter)
    durable.submit(second, acl("bob", id="1"))
    durable.submit(second, acl("df", id="1", act=19))
    durable.submit(second, acl("df", id="1", act=19))
    durable.post.commit(store.commit())
    assert (second.outcomes, len(second.reached)) == ([], 3)
    assert [one.key for one in store.accepted] == ["", ""]
    assert all(key is None for _, _, key in store.settled)
    assert len(durable.dedupe) == 0


def test_notice_of_the_platform_goes_out_even_when_it_cannot_be_stored(durable: Bench, store: ManualStore) -> None:
    sender, alice = durable.agent("alice"), NotingOrigin("alice@local")
    durable.submit(alice, acl("nobody", report=FAILURE, act=19))
    durable.post.commit(store.commit(error="disk full"))
    assert len(durable.failures(sender)) == 1


def test_settled_message_is_forgotten_in_the_store_and_its_key_kept(durable: Bench, store: ManualStore) -> None:
    bob, alice = durable.agent("bob"), NotingOrigin("alice@local")
    durable.submit(alice, acl("bob", id="m"))
    durable.submit(alice, acl("bob"))
    durable.submit(alice, acl("bob", transient=True))
    durable.post.commit(store.commit())
    bob.mailbox.take(max_messages=9, max_bytes=10**6, batch_messages=9, batch_bytes=10**6)
    for sequence in (1, 2, 3):
        letter = bob.mailbox.settle(sequence)
        assert letter is not None
        durable.post.settled(bob, letter)
    assert [(sequence, key.key if key else None) for _, sequence, key in store.settled] == [(1, "m"), (2, None)]
    assert durable.post.mail_bytes == 0


def test_store_knows_a_higher_sequence_before_one_is_used(durable: Bench, store: ManualStore) -> None:
    bob, alice = durable.agent("bob"), NotingOrigin("alice@local")
    durable.submit(alice, acl("bob"))
    assert store.agents["bob"].next_sequence > bob.mailbox.next_sequence
    bob.mailbox.next_sequence = 1 + SEQUENCES_WRITTEN_AHEAD
    durable.submit(alice, acl("bob", transient=True))
    assert store.agents["bob"].next_sequence == 1 + 2 * SEQUENCES_WRITTEN_AHEAD


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_all_mail_together_is_bounded_with_what_letters_cost(bench: Bench) -> None:
    bench = Bench(MemoryStore(), total_mail_bytes=3 * LETTER_COST)
    records = [bench.agent(name) for name in ("a", "b")]
    alice = NotingOrigin("alice@local")
    for _ in range(2):
        for name in ("a", "b"):
            bench.submit(alice, acl(name))
    assert alice.outcomes == [(3, "a", "MAILBOX_FULL"), (4, "b", "MAILBOX_FULL")]
    assert "all mailboxes together" in alice.refusals[0].detail
    letter = records[0].mailbox.take(max_messages=9, max_bytes=99, batch_messages=9, batch_bytes=99)[0]
    records[0].mailbox.settle(letter.sequence)
    bench.post.settled(records[0], letter)
    bench.submit(alice, acl("a"))
    assert alice.reached[-1] == (5, "a")


def test_every_way_out_of_a_mailbox_gives_its_room_back() -> None:
    bench = Bench(MemoryStore())
    bob, alice = bench.agent("bob"), NotingOrigin("alice@local")
    sender = bench.agent("alice")
    for text in ("acked", "rejected", "expired", "drained"):
        message = acl("bob", text, act=19)
        if text == "expired":
            message.expires_at.FromSeconds(int(bench.clock.time()) + 5)
        bench.submit(alice, message)
    bob.mailbox.take(max_messages=2, max_bytes=10**6, batch_messages=9, batch_bytes=10**6)
    acked, rejected = bob.mailbox.settle(1), bob.mailbox.settle(2)
    assert acked is not None
    assert rejected is not None
    bench.post.settled(bob, acked)
    bench.post.give_up(bob, rejected, "no", reason=DeadReason.REJECTED)
    bench.clock.advance(10)
    for letter in [*bob.mailbox.expire(bench.clock.time(), 0.0), *bob.mailbox.drain()]:
        bench.post.give_up(bob, letter, "late", reason=DeadReason.EXPIRED)
    assert (bob.mailbox.messages, bob.mailbox.bytes, bench.post.mail_bytes) == (0, 0, 0)
    assert len(bench.failures(sender)) == 3
    for letter in sender.mailbox.drain():
        bench.post.settled(sender, letter)
    assert bench.post._notice_bytes == 0


def test_refusal_of_an_unknown_receiver_does_not_look_at_every_agent(bench: Bench) -> None:
    alice = NotingOrigin("alice@local")
    bench.submit(alice, acl("nobody"))
    assert alice.refusals[0].detail == "nobody is registered"
    for index in range(7):
        bench.agent(f"a{index}")
    bench.submit(alice, acl("nobody"))
    assert alice.refusals[1].detail == "registered: a0, a1, a2, a3, a4 and others"


# ---- failures of the platform ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", list(Performative))
def test_failure_answers_everything_but_failures(bench: Bench, act: Performative) -> None:
    sender, alice = bench.agent("alice"), NotingOrigin("alice@local")
    bench.submit(
        alice, acl("nobody", act=int(act), report=FAILURE, id="m", acl_conversation_id="c", acl_reply_with="r")
    )
    failures = bench.failures(sender)
    if act in {Performative.FAILURE, Performative.NOT_UNDERSTOOD, Performative.REFUSE}:
        assert failures == []
        return
    (failure,) = failures
    assert str(failure.sender) == "ams@local"
    assert (failure.conversation_id, failure.in_reply_to, failure.protocol) == ("c", "r", None)
    assert failure.user_parameters == {"X-failed-receiver": "nobody", "X-failed-id": "m", "X-automatic": "true"}
    assert str(failure.content).startswith("NO_SUCH_AGENT: ")


def test_failure_for_a_sender_that_is_gone_or_nobody_goes_nowhere(bench: Bench) -> None:
    bench.agent("anonymous")
    for origin in (NotingOrigin("gone@local"), NotingOrigin("anonymous")):
        bench.submit(origin, acl("nobody", act=19, report=FAILURE))
        assert origin.refusals[0].outcome is Outcome.NO_SUCH_AGENT
    assert bench.ams.get("anonymous").mailbox.reserve_messages == 0


# ---- the platform's own agents ---------------------------------------------------------------------------------------


def test_answer_of_a_platform_agent_is_ordinary_mail_of_who_asked(bench: Bench) -> None:
    asker, alice = bench.agent("alice"), NotingOrigin("alice@local")
    bench.submit(alice, acl("df@local", "who?", act=19))
    assert alice.reached == [(1, "df@local")]
    (letter,) = asker.mailbox.letters()
    assert (letter.sender, letter.in_reserve) == ("df@local", False)
    assert (asker.mailbox.messages, bench.post.mail_bytes) == (1, letter.size + LETTER_COST)


def test_platform_agent_is_not_asked_while_there_is_no_room_for_its_answer() -> None:
    bench = Bench(MemoryStore(), mailbox_messages=1)
    bench.agent("alice")
    alice = NotingOrigin("alice@local")
    bench.submit(alice, acl("alice"))
    bench.submit(alice, acl("df", act=19))
    assert alice.outcomes == [(2, "df", "MAILBOX_FULL")]
    assert bench.echo.asked == []


def test_request_to_a_platform_agent_is_carried_out_once(bench: Bench) -> None:
    bench.agent("alice")
    alice = NotingOrigin("alice@local")
    for text in ("once", "once", "other"):
        bench.submit(alice, acl("ams", text, act=19, id="m"))
    assert len(bench.echo.asked) == 1
    assert alice.outcomes == [(2, "ams", "DUPLICATE"), (3, "ams", "INVALID")]


def test_answer_over_the_message_limit_becomes_a_failure_that_says_so(bench: Bench) -> None:
    asker, alice = bench.agent("alice"), NotingOrigin("alice@local")
    bench.echo.content = "x" * 1_000_001
    bench.submit(alice, acl("df", act=19, acl_reply_with="r"))
    (failure,) = bench.failures(asker)
    assert failure.in_reply_to == "r"
    assert "ask for fewer results" in str(failure.content)
    assert asker.mailbox.messages == 0


def test_answer_that_cannot_be_encoded_becomes_a_failure_that_says_so(bench: Bench) -> None:
    bench.echo.content = "half a pair: \ud800"
    alice, origin = bench.agent("alice"), NotingOrigin("alice@local")
    bench.submit(origin, acl("df", act=19, acl_reply_with="r"))
    assert origin.reached == [(1, "df")]
    (failure,) = bench.failures(alice)
    assert failure.in_reply_to == "r"
    assert "cannot be encoded" in str(failure.content)


def test_failure_that_cannot_be_encoded_is_counted_and_ends_nothing(bench: Bench) -> None:
    alice, bob = bench.agent("alice"), bench.agent("bob")
    bench.submit(NotingOrigin("alice@local"), acl("bob", act=19))
    (letter,) = bob.mailbox.drain()
    bench.post.give_up(bob, letter, "half a pair: \ud800", reason=DeadReason.REJECTED)
    assert bench.post.unheard_failures == 1
    assert bench.texts(alice) == []


def test_refusals_share_the_words_about_who_is_there_while_nobody_comes_or_goes(bench: Bench) -> None:
    bench.agent("bob")
    origin = NotingOrigin("alice@local")
    bench.submit(origin, acl(["x", "y"]))
    record = bench.agent("carol")
    bench.submit(origin, acl("x"))
    bench.ams.remove(record)
    bench.submit(origin, acl("x"))
    details = [one.detail for one in origin.refusals]
    assert details[0] is details[1]
    assert details[1:] == ["registered: bob", "registered: bob, carol", "registered: bob"]


def test_answer_goes_to_reply_to(bench: Bench) -> None:
    asker, carol, alice = bench.agent("alice"), bench.agent("carol"), NotingOrigin("alice@local")
    message = acl("df", act=19)
    message.acl.reply_to.add(name="carol@local")
    message.acl.reply_to.add(name="carol")
    bench.submit(alice, message)
    assert (asker.mailbox.messages, carol.mailbox.messages) == (0, 1)


def test_acp_message_to_a_platform_agent_is_invalid(bench: Bench) -> None:
    alice = NotingOrigin("alice@local")
    message = pb.BusMessage(to=["ams"])
    message.acp.message_type = 1
    bench.submit(alice, message)
    assert alice.outcomes == [(1, "ams", "INVALID")]
    assert alice.refusals[0].field == "body"


# ---- order across refusals (`hold_order`) ----------------------------------------------------------------------------


def held(text: str, id: str, to: Any = "bob") -> pb.BusMessage:  # noqa: A002  # The field's name.
    return acl(to, text, id=id, hold_order=True)


def make_room(bench: Bench, record: AgentRecord) -> None:
    for letter in record.mailbox.take(max_messages=99, max_bytes=10**9, batch_messages=99, batch_bytes=10**9):
        record.mailbox.settle(letter.sequence)
        bench.post.settled(record, letter)


def test_after_a_passing_refusal_later_ones_are_held_until_it_is_sent_again() -> None:
    bench = Bench(MemoryStore(), mailbox_messages=1)
    bob, alice = bench.agent("bob"), NotingOrigin("alice@local")
    bench.submit(alice, held("one", "1"))
    bench.submit(alice, held("two", "2"))
    make_room(bench, bob)
    # There is room again, but these come later.
    bench.submit(alice, held("three", "3"))
    bench.submit(alice, acl("bob@local", "four"))
    assert alice.outcomes == [
        (2, "bob", "MAILBOX_FULL"),
        (3, "bob", "HELD"),
        (4, "bob@local", "HELD"),
    ]
    assert "'2'" in alice.refusals[1].detail
    assert all(one.outcome.retryable and one.retry_after for one in alice.refusals)
    for text, id_ in (("two", "2"), ("three", "3")):
        bench.submit(alice, held(text, id_))
        assert bench.texts(bob) == [text]
        make_room(bench, bob)
    assert len(alice.refusals) == 3


def test_a_message_that_is_refused_again_still_holds_the_others() -> None:
    bench = Bench(MemoryStore(), mailbox_messages=1)
    bench.agent("bob")
    alice = NotingOrigin("alice@local")
    for id_ in ("1", "2", "2", "3"):
        bench.submit(alice, held(id_, id_))
    assert [one[2] for one in alice.outcomes] == ["MAILBOX_FULL", "MAILBOX_FULL", "HELD"]


def test_holds_are_those_of_one_sender_and_one_receiver() -> None:
    bench = Bench(MemoryStore(), mailbox_messages=1)
    bob, carol = bench.agent("bob"), bench.agent("carol")
    alice, dave = NotingOrigin("alice@local"), NotingOrigin("dave@local")
    bench.submit(alice, held("one", "1"))
    bench.submit(alice, held("two", "2"))
    make_room(bench, bob)
    bench.submit(alice, held("to carol", "3", to="carol"))
    bench.submit(dave, held("of dave", "1"))
    assert (bench.texts(bob), bench.texts(carol)) == (["of dave"], ["to carol"])


def test_holds_are_bounded() -> None:
    bench = Bench(MemoryStore())
    alice = NotingOrigin("alice@local")
    for number in range(10_050):
        bench.submit(alice, held("x", str(number), to=f"a{number}@elsewhere"))
    assert len(alice.holds.waiting) == 10_000


def test_without_the_flag_nothing_is_held() -> None:
    bench = Bench(MemoryStore(), mailbox_messages=1)
    bob, alice = bench.agent("bob"), NotingOrigin("alice@local")
    bench.submit(alice, acl("bob", "one", id="1"))
    bench.submit(alice, acl("bob", "two", id="2"))
    make_room(bench, bob)
    bench.submit(alice, acl("bob", "three", id="3"))
    assert bench.texts(bob) == ["three"]


@pytest.mark.parametrize("ending", ["refused for good", "refused as a whole", "receiver gone"])
def test_nothing_waits_for_a_message_that_will_never_be_taken(ending: str) -> None:
    bench = Bench(MemoryStore(), mailbox_messages=1)
    bob, alice = bench.agent("bob"), NotingOrigin("alice@local")
    bench.submit(alice, held("one", "1"))
    bench.submit(alice, held("two", "2"))
    make_room(bench, bob)
    again = held("two", "2")
    if ending == "refused for good":
        again.expires_at.FromSeconds(1)
    elif ending == "refused as a whole":
        again.acl.sender.name = "mallory"
    else:
        bench.ams.remove(bob)
    bench.submit(alice, again)
    if ending == "receiver gone":
        bob = bench.agent("bob")
    bench.submit(alice, held("three", "3"))
    assert bench.texts(bob) == ["three"]


def test_what_was_written_behind_a_message_that_could_not_be_stored_goes_as_well() -> None:
    store = ManualStore()
    bench = Bench(store)
    bob, alice = bench.agent("bob"), NotingOrigin("alice@local")
    bench.submit(alice, held("one", "1"))
    bench.submit(alice, held("two", "2"))
    bench.post.commit(store.commit(1, error="the disk is full"))
    bench.post.commit(store.commit(2))
    assert alice.outcomes == [(1, "bob", "MAILBOX_FULL"), (2, "bob", "HELD")]
    assert (bench.texts(bob), bob.mailbox.messages, bench.post.mail_bytes) == ([], 0, 0)
    # Gone from the store, too, and without a key that would make a duplicate of what is sent again.
    assert [(name, sequence, key) for name, sequence, key in store.settled] == [("bob", 2, None)]
    for id_, text in (("1", "one"), ("2", "two")):
        bench.submit(alice, held(text, id_))
    bench.post.commit(store.commit())
    assert (bench.texts(bob), alice.waiting) == (["one", "two"], 0)


def test_an_urgent_message_does_not_wait_for_a_held_one_of_another_urgency() -> None:
    bench = Bench(MemoryStore(), mailbox_messages=1)
    bob, alice = bench.agent("bob"), NotingOrigin("alice@local")
    bench.submit(alice, held("one", "1"))
    bench.submit(alice, held("two", "2"))
    make_room(bench, bob)
    bench.submit(alice, acl("bob", "now", id="3", priority=4, hold_order=True))
    assert bench.texts(bob) == ["now"]
