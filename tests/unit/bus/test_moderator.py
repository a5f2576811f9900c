"""What follows from what the monitor finds, on a platform with a store that commits late: receipts, failures, mailboxes."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl

from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.ams import AgentRecord
from gagent_grpc.bus.mailbox import Mailbox
from gagent_grpc.bus.platform import Platform
from gagent_grpc.bus.ports import Store
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits, ConversationPolicy
from gagent_grpc.envelope import DeadReason
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

AS_MESSAGE = pb.REPORT_MODE_FAILURE_MESSAGE


class Bench:
    """A platform that is not running, two agents, and what they hear."""

    def __init__(self, store: Store | None = None, **limits: Any) -> None:
        self.limits = BusLimits(**limits)
        self.clock = FakeClock()
        self.codec = EnvelopeCodec(max_id_bytes=self.limits.max_id_bytes)
        self.platform = Platform("local", store or MemoryStore(), self.codec, self.clock, self.limits)
        self.post = self.platform.post
        self.alice, self.bob = self._agent("alice"), self._agent("bob")
        self.origins = {"alice": NotingOrigin("alice@local"), "bob": NotingOrigin("bob@local")}
        self._number = 0

    def _agent(self, name: str) -> AgentRecord:
        box = Mailbox(max_messages=self.limits.mailbox_messages, max_bytes=self.limits.mailbox_bytes)
        record = AgentRecord(name, "local", principal="", mailbox=box, registered_at=self.clock.time())
        self.platform.ams.add(record)
        return record

    def say(self, sender: str, receiver: str, act: str = "inform", **message: Any) -> str:
        """Say something in the conversation `talk`; return why it was refused."""
        self._number += 1
        reply_by = message.pop("reply_by", 0.0)
        message = {"acl_conversation_id": "talk", "id": f"m{self._number}"} | message
        made = acl(receiver, act=int(Performative.parse(act)), **message)
        if reply_by:
            made.acl.reply_by.FromNanoseconds(int(reply_by * 1e9))
        origin = self.origins[sender]
        origin.refusals.clear()
        self.platform.router.submit(made.SerializeToString(), origin, self._number)
        return ", ".join(f"{one.outcome.name}: {one.detail}" for one in origin.refusals)

    def talk(self, turns: int, **message: Any) -> str:
        """Have the two speak in turn, alice first; return what the last one heard."""
        heard = ""
        for turn in range(turns):
            sender, receiver = ("alice", "bob") if turn % 2 == 0 else ("bob", "alice")
            heard = self.say(sender, receiver, **message)
        return heard

    def deliver_to_bob(self) -> None:
        """Have bob get what waits for it, so that it owes the answers."""
        taken = self.bob.mailbox.take(
            max_messages=10,
            max_bytes=10_000,
            batch_messages=10,
            batch_bytes=10_000,
            urgent_messages=0,
            max_deliveries=5,
        )
        for tag, letter in enumerate(taken, start=1):
            letter.tag = tag
            self.post.delivered(self.bob, letter)

    def failures(self, record: AgentRecord) -> list[ACLMessage]:
        found = [self.codec.decode_acl(letter.envelope.payload) for letter in record.mailbox.letters()]
        return [one for one in found if one is not None and one.sender is not None and one.sender.name == "ams@local"]

    def look(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.platform.keep_house()


# ---- the end of a conversation ---------------------------------------------------------------------------------------


def test_initiator_gets_one_failure_and_nobody_anything_more(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(max_turns=5)
    assert bench.talk(5) == ""
    accepted = bench.post.accepted_messages
    assert bench.say("bob", "alice", acl_in_reply_to="asked").startswith("DENIED: conversation 'talk' of ")
    (failure,) = bench.failures(bench.alice)
    assert failure.conversation_id == "talk"
    assert failure.in_reply_to == "asked"
    assert "max_turns" in str(failure.content)
    assert failure.user_parameters["X-failed-receiver"] == "bob@local"
    assert failure.user_parameters[AUTOMATIC] == "true"
    assert [record.levelname for record in caplog.records if "'talk'" in record.getMessage()] == ["WARNING"]
    for _ in range(10):
        assert bench.say("bob", "alice").startswith("DENIED")
        assert bench.say("alice", "bob").startswith("DENIED")
    assert bench.post.accepted_messages == accepted + 1
    assert (len(bench.failures(bench.alice)), bench.failures(bench.bob)) == (1, [])


def test_initiator_that_wants_refusals_as_messages_gets_no_second_failure() -> None:
    bench = Bench(max_turns=4)
    assert bench.talk(4, report=AS_MESSAGE) == ""
    for _ in range(4):
        bench.talk(2, report=AS_MESSAGE)
    assert (len(bench.failures(bench.alice)), len(bench.failures(bench.bob))) == (1, 0)


def test_refused_answer_of_the_other_is_told_to_it_as_it_wants() -> None:
    bench = Bench(max_turns=3)
    bench.talk(3)
    assert bench.say("bob", "alice", report=AS_MESSAGE).startswith("DENIED")
    assert bench.say("bob", "alice", report=AS_MESSAGE).startswith("DENIED")
    assert (len(bench.failures(bench.alice)), len(bench.failures(bench.bob))) == (1, 1)


@pytest.mark.parametrize("act", ["failure", "refuse", "not-understood"])
def test_a_failure_is_never_answered_by_one(act: str) -> None:
    bench = Bench(max_turns=3)
    for turn in range(20):
        sender, receiver = ("alice", "bob") if turn % 2 == 0 else ("bob", "alice")
        bench.say(sender, receiver, act, report=AS_MESSAGE)
    assert (bench.failures(bench.alice), bench.failures(bench.bob)) == ([], [])
    # What is no failure, and comes later, tells the initiator after all.
    assert bench.say("bob", "alice").startswith("DENIED")
    assert len(bench.failures(bench.alice)) == 1


def test_what_a_program_wrote_by_itself_is_not_answered() -> None:
    bench = Bench(max_turns=2)
    bench.talk(2)
    automatic = acl("bob", acl_conversation_id="talk", id="program")
    automatic.acl.user_parameters[AUTOMATIC] = "true"
    bench.platform.router.submit(automatic.SerializeToString(), bench.origins["alice"], 99)
    assert bench.failures(bench.alice) == []


def test_bounce_of_a_bounce_with_full_mailboxes_ends() -> None:
    bench = Bench(mailbox_messages=2, max_turns=100)
    for record in (bench.alice, bench.bob):
        for _ in range(20):
            bench.say("alice" if record is bench.bob else "bob", record.name, acl_conversation_id="")
        assert record.mailbox.full
    before = bench.post.accepted_messages
    # Each is refused, and each refusal is told by a failure from the reserve; what answers these is refused again.
    for _ in range(10):
        bench.say("alice", "bob", "request", report=AS_MESSAGE)
        bench.say("bob", "alice", "failure", report=AS_MESSAGE)
    told = len(bench.failures(bench.alice))
    assert 0 < told <= bench.limits.mailbox_messages
    assert bench.failures(bench.bob) == []
    assert bench.post.accepted_messages - before == told


def test_a_debt_in_an_ended_conversation_is_told_once() -> None:
    bench = Bench(max_turns=1)
    bench.say("alice", "bob", "request", acl_reply_with="r")
    bench.deliver_to_bob()
    assert bench.post.debts.count == 1
    assert bench.say("bob", "alice", acl_in_reply_to="r").startswith("DENIED")
    assert bench.post.debts.count == 0
    (failure,) = bench.failures(bench.alice)
    assert failure.in_reply_to == "r"


def test_refusal_in_a_conversation_that_has_no_room_for_more_is_told_once() -> None:
    bench = Bench(max_hops=1, conversation_pairs=1)
    bench.say("alice", "bob")
    for _ in range(3):
        assert bench.say("alice", "alice", report=AS_MESSAGE, headers={"hops": "9"}).startswith("DENIED")
    assert len(bench.failures(bench.alice)) == 1


def test_what_the_other_owes_in_a_conversation_that_its_asker_ends_is_told_once() -> None:
    bench = Bench(max_turns=2, resume_grace=1.0)
    bench.say("alice", "bob", "request", acl_reply_with="r")
    bench.deliver_to_bob()
    # An agree is no answer yet.
    bench.say("bob", "alice", "agree", acl_in_reply_to="r")
    assert bench.post.debts.count == 1
    assert bench.say("alice", "bob").startswith("DENIED")
    assert bench.post.debts.count == 0
    bench.bob.detached_at = bench.clock.monotonic()
    bench.look(10.0)
    assert len(bench.failures(bench.alice)) == 1


# ---- sequence --------------------------------------------------------------------------------------------------------

REQUEST: dict[str, Any] = {"acl_protocol": "fipa-request"}


def test_what_is_out_of_sequence_is_delivered_unless_that_is_enforced() -> None:
    for policy in (ConversationPolicy.OBSERVE, ConversationPolicy.WARN):
        bench = Bench(conversation_policy=policy)
        bench.say("alice", "bob", "request", **REQUEST)
        assert bench.say("bob", "alice", "propose", **REQUEST) == ""
        assert bench.alice.mailbox.messages == 1


def test_enforced_sequence_refuses_and_gives_the_room_back() -> None:
    bench = Bench(conversation_policy=ConversationPolicy.ENFORCE)
    bench.say("alice", "bob", "request", **REQUEST)
    bytes_before = bench.post.mail_bytes
    refused = bench.say("bob", "alice", "propose", **REQUEST)
    assert refused.startswith("DENIED: out of sequence in conversation 'talk': propose of bob@local")
    assert (bench.alice.mailbox.messages, bench.alice.mailbox.bytes) == (0, 0)
    assert bench.post.mail_bytes == bytes_before
    assert bench.say("bob", "alice", "inform", **REQUEST) == ""


def test_answer_that_found_no_room_may_be_sent_again_where_sequence_is_enforced() -> None:
    bench = Bench(conversation_policy=ConversationPolicy.ENFORCE, mailbox_messages=2)
    bench.say("alice", "bob", "request", **REQUEST)
    while not bench.say("bob", "alice", acl_conversation_id=""):
        pass
    for _ in range(3):
        assert bench.say("bob", "alice", "inform", **REQUEST).startswith("MAILBOX_FULL")
    for letter in list(bench.alice.mailbox.drain()):
        bench.post.settled(bench.alice, letter)
    assert bench.say("bob", "alice", "inform", **REQUEST) == ""


def test_answer_that_was_not_stored_may_be_sent_again_where_sequence_is_enforced() -> None:
    store = ManualStore()
    bench = Bench(store, conversation_policy=ConversationPolicy.ENFORCE)
    bench.say("alice", "bob", "request", **REQUEST)
    bench.post.commit(store.commit())
    bench.say("bob", "alice", "inform", id="answer", **REQUEST)
    bench.post.commit(store.commit(error="disk full"))
    assert [one.outcome.name for one in bench.origins["bob"].refusals] == ["MAILBOX_FULL"]
    assert bench.say("bob", "alice", "inform", id="answer", **REQUEST) == ""
    bench.post.commit(store.commit())
    assert bench.alice.mailbox.messages == 1


def test_a_request_that_was_given_up_counts_as_answered() -> None:
    bench = Bench(conversation_policy=ConversationPolicy.ENFORCE)
    bench.say("alice", "bob", "request", reply_by=bench.clock.time() + 5, **REQUEST)
    (letter,) = bench.bob.mailbox.drain()
    bench.post.give_up(bench.bob, letter, "rejected by the receiver", reason=DeadReason.REJECTED)
    assert len(bench.failures(bench.alice)) == 1
    bench.look(6.0)
    # And not once more when its time is over.
    assert len(bench.failures(bench.alice)) == 1


# ---- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(ConversationPolicy))
def test_initiator_hears_of_who_did_not_answer_by_reply_by(policy: ConversationPolicy) -> None:
    bench = Bench(conversation_policy=policy)
    bench.say("alice", "bob", "request", reply_by=bench.clock.time() + 5, acl_reply_with="r", **REQUEST)
    bench.look(5.0)
    assert bench.failures(bench.alice) == []
    bench.look(0.1)
    (failure,) = bench.failures(bench.alice)
    assert (failure.conversation_id, failure.protocol, failure.in_reply_to) == ("talk", "fipa-request", "r")
    assert failure.content == "no answer of bob@local by reply_by"
    assert failure.user_parameters["X-failed-receiver"] == "bob@local"
    bench.look(10.0)
    assert len(bench.failures(bench.alice)) == 1
    late = bench.say("bob", "alice", "inform", **REQUEST)
    assert bool(late) == (policy is ConversationPolicy.ENFORCE)


def test_who_is_lost_after_its_time_was_over_is_answered_for_once() -> None:
    bench = Bench(resume_grace=1.0)
    bench.say("alice", "bob", "request", reply_by=bench.clock.time() + 5, acl_reply_with="r", **REQUEST)
    bench.deliver_to_bob()
    bench.look(6.0)
    bench.bob.detached_at = bench.clock.monotonic()
    bench.look(10.0)
    assert len(bench.failures(bench.alice)) == 1


def test_who_was_lost_before_its_time_is_answered_for_once() -> None:
    bench = Bench(resume_grace=1.0)
    bench.say("alice", "bob", "request", reply_by=bench.clock.time() + 5, acl_reply_with="r", **REQUEST)
    bench.deliver_to_bob()
    bench.bob.detached_at = bench.clock.monotonic()
    bench.look(2.0)
    assert len(bench.failures(bench.alice)) == 1
    bench.look(10.0)
    assert len(bench.failures(bench.alice)) == 1
