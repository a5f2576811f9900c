"""From a mailbox to the dead letters and back, over a store that commits late, fails, or stops in between."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl, eventually

from gagent_grpc.acl.descriptions import LifeCycleState
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.platform import Caller, Hello, Platform
from gagent_grpc.bus.ports import Commit, StoredAgent, StoredDeadLetter, StoredMessage, StoredPlatform
from gagent_grpc.bus.session import Nack, Session
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import DeadReason
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

OPERATOR = Caller(agent=None, principal="local", operator=True)
CODEC = EnvelopeCodec(max_id_bytes=128)


class Node:
    """A running platform with alice, who sends, and bob, who gives up."""

    def __init__(self, platform: Platform, clock: FakeClock, store: Any) -> None:
        self.platform = platform
        self.clock = clock
        self.store = store
        self.alice = NotingOrigin("alice@local")
        self.operator = NotingOrigin("operator")
        self._number = 0

    async def attach(self, name: str) -> Session:
        session = (await self.platform.attach(Hello(name), "local")).session
        session.start_delivering()
        return session

    def submit(self, message: pb.BusMessage, origin: NotingOrigin | None = None) -> None:
        self._number += 1
        self.platform.router.submit(message.SerializeToString(), origin or self.alice, self._number)
        self.commit()

    def commit(self, error: str = "", *, final: bool = False) -> None:
        if isinstance(self.store, ManualStore):
            self.platform.post.commit(Commit(self.store.position, error, final))

    async def dead(self, message: pb.BusMessage, why: str = "never") -> StoredDeadLetter:
        """Have bob reject a message, and return the dead letter."""
        before = len(self.platform.dead_letters)
        self.submit(message)
        bob = await self.attach("bob")
        letter = await self.delivered(bob)
        bob.settle(ack_through_tag=0, acks=[], nacks=[], rejects=[(letter.sequence, why)])
        self.platform.detach(bob)
        assert len(self.platform.dead_letters) == before + 1
        return list(self.platform.dead_letters)[-1]

    async def delivered(self, session: Session) -> Letter:
        while True:
            out = await session.outgoing()
            assert out is not None
            if out.letters:
                (letter,) = out.letters
                return letter

    def redrive(self, dead: StoredDeadLetter) -> None:
        self.platform.redrives.redrive(dead, self.operator)

    def mail(self, name: str = "bob") -> list[Letter]:
        return sorted(self.platform.ams.get(name).mailbox.letters(), key=lambda letter: letter.sequence)

    def failures(self) -> list[str]:
        """Return what alice was told of messages that failed."""
        self.commit()
        found = [CODEC.decode_acl(letter.envelope.payload) for letter in self.mail("alice")]
        return [str(one.content) for one in found if one is not None and one.performative is Performative.FAILURE]


@contextlib.asynccontextmanager
async def running(store: Any = None, **limits: Any) -> AsyncIterator[Node]:
    store, clock, bounds = store or ManualStore(), FakeClock(), BusLimits(**limits)
    platform = Platform("local", store, CODEC, clock, bounds)
    async with platform.running():
        for name in ("alice", "bob"):
            if platform.ams.find(name) is None:
                platform.register(name, "", OPERATOR)
        yield Node(platform, clock, store)


# ---- how a message dies ----------------------------------------------------------------------------------------------


async def test_message_that_is_sent_back_too_often_dies_of_its_last_error_and_its_lane_goes_on() -> None:
    async with running(max_deliveries=3) as node:
        node.submit(acl("bob", "poison", id="p", acl_conversation_id="c"))
        node.submit(acl("bob", "next", acl_conversation_id="c"))
        bob = await node.attach("bob")
        bob.set_window(1, 0)
        for attempt in (1, 2, 3):
            letter = await node.delivered(bob)
            assert (letter.message_id, letter.attempt) == ("p", attempt)
            bob.settle(ack_through_tag=0, acks=[], nacks=[Nack(letter.sequence, 0.0, f"boom {attempt}")], rejects=[])
        (dead,) = node.platform.dead_letters
        assert (dead.reason, dead.error, dead.attempt) == (DeadReason.MAX_DELIVERIES, "boom 3", 3)
        assert node.failures() == ["given up after 3 deliveries: boom 3"]
        assert (await node.delivered(bob)).envelope.payload != dead.payload


async def test_attempts_are_written_down_with_each_nack() -> None:
    async with running() as node:
        node.submit(acl("bob", id="m"))
        bob = await node.attach("bob")
        for attempt in (1, 2):
            letter = await node.delivered(bob)
            bob.settle(ack_through_tag=0, acks=[], nacks=[Nack(letter.sequence, 0.0, "no")], rejects=[])
            assert node.store.attempts[-1] == ("bob", letter.sequence, attempt)


async def test_rejected_expired_and_removed_mail_dies_and_its_sender_is_told_as_before() -> None:
    async with running(mailbox_ttl=1_000.0) as node:
        assert (await node.dead(acl("bob", id="r"), "not mine")).error == "not mine"
        end = node.clock.time() + 5
        node.submit(acl("bob", id="e", expires_at={"seconds": int(end)}))
        node.clock.advance(6)
        node.platform.keep_house()
        told = node.failures()
        node.submit(acl("bob", id="old"))
        node.clock.advance(1_001)
        node.platform.keep_house()
        node.submit(acl("bob", id="left"))
        node.platform.deregister("bob", OPERATOR, why="terminated by the AMS")
        found = [(one.message_id, one.reason, one.error) for one in node.platform.dead_letters]
        assert found == [
            ("r", DeadReason.REJECTED, "not mine"),
            ("e", DeadReason.EXPIRED, ""),
            ("old", DeadReason.EXPIRED, ""),
            ("left", DeadReason.DEREGISTERED, "terminated by the AMS"),
        ]
        late = "EXPIRED: its time was over before it was handled"
        assert told == ["rejected by the receiver: not mine", late]
        # Those have grown old, too.
        assert node.failures() == [late, "bob@local is gone: terminated by the AMS"]


async def test_expired_before_its_delivery_dies_too() -> None:
    async with running() as node:
        node.submit(acl("bob", id="e", expires_at={"seconds": int(node.clock.time() + 5)}))
        node.submit(acl("bob", id="m"))
        node.clock.advance(6)
        bob = await node.attach("bob")
        assert (await node.delivered(bob)).message_id == "m"
        assert [(one.message_id, one.reason) for one in node.platform.dead_letters] == [("e", DeadReason.EXPIRED)]


async def test_dead_letter_is_written_before_its_message_is_settled() -> None:
    async with running() as node:
        await node.dead(acl("bob", id="m"))
        assert node.store.writes[:3] == ["accept", "bury", "settle"]


async def test_failures_of_the_platform_are_no_dead_letters() -> None:
    async with running() as node:
        await node.dead(acl("bob", id="m"))
        assert node.failures()
        node.platform.deregister("alice", OPERATOR)
        assert len(node.platform.dead_letters) == 1


async def test_dead_letters_go_when_they_are_old() -> None:
    async with running(dead_letter_ttl=500.0) as node:
        await node.dead(acl("bob", id="m"))
        node.clock.advance(499)
        node.platform.keep_house()
        assert len(node.platform.dead_letters) == 1
        node.clock.advance(61)
        node.platform.keep_house()
        assert len(node.platform.dead_letters) == 0
        assert node.store.exhumed == [1]


# ---- and comes back --------------------------------------------------------------------------------------------------


async def test_redriven_letter_is_a_new_one_that_is_flagged_and_dead_until_its_commit() -> None:
    async with running() as node:
        dead = await node.dead(acl("bob", "again", id="m"))
        node.clock.advance(10)
        node.redrive(dead)
        assert (node.mail(), len(node.platform.dead_letters), node.operator.waiting) == ([], 1, 1)
        assert "exhume" not in node.store.writes
        assert (node.store.accepted[-1].redriven, node.store.accepted[-1].key) == (1, "m")
        node.commit()
        assert (len(node.platform.dead_letters), node.store.exhumed, node.operator.reached) == (0, [1], [(1, "bob")])
        (letter,) = node.mail()
        assert (letter.message_id, letter.sender, letter.attempt, letter.redelivered) == ("m", "alice@local", 0, True)
        assert letter.sequence > dead.sequence
        assert letter.accepted_at == node.clock.time()
        assert (await node.delivered(await node.attach("bob"))).attempt == 1
        # Its sender's repetitions are recognised on and on.
        node.clock.advance(10_000)
        node.platform.keep_house()
        node.submit(acl("bob", "again", id="m"))
        assert [outcome for _, _, outcome in node.alice.outcomes] == ["DUPLICATE"]


async def test_letter_keeps_the_id_that_the_bus_gave() -> None:
    async with running() as node:
        dead = await node.dead(acl("bob", "nameless"))
        node.redrive(dead)
        node.commit()
        assert node.mail()[0].message_id == dead.message_id
        assert dead.message_id


async def test_redrive_that_is_not_stored_leaves_the_letter_dead_and_its_sender_in_peace() -> None:
    async with running() as node:
        dead = await node.dead(acl("bob", id="m", report=pb.REPORT_MODE_FAILURE_MESSAGE))
        told = node.failures()
        node.redrive(dead)
        node.commit("disk full")
        assert node.operator.outcomes == [(1, "bob", "MAILBOX_FULL")]
        assert (node.mail(), list(node.platform.dead_letters), node.store.exhumed) == ([], [dead], [])
        assert node.platform.ams.get("bob").mailbox.messages == 0
        assert node.failures() == told
        node.redrive(dead)
        node.commit()
        assert node.operator.reached == [(1, "bob")]


async def test_receiver_that_goes_while_its_letter_is_written_leaves_it_dead() -> None:
    async with running() as node:
        dead = await node.dead(acl("bob", id="m"))
        node.redrive(dead)
        node.platform.deregister("bob", OPERATOR)
        node.commit()
        assert node.operator.outcomes == [(1, "bob", "NO_SUCH_AGENT")]
        assert (list(node.platform.dead_letters), node.store.exhumed) == ([dead], [])


async def test_letter_is_put_back_by_one_call_at_a_time() -> None:
    async with running() as node:
        dead = await node.dead(acl("bob", id="m"))
        node.redrive(dead)
        node.redrive(dead)
        assert node.operator.outcomes == [(1, "bob", "DUPLICATE")]
        node.commit()
        assert (len(node.mail()), node.operator.reached) == (1, [(1, "bob")])


async def test_letter_that_cannot_go_back_stays_and_the_receipt_says_why() -> None:
    async with running(mailbox_messages=1) as node:
        end = int(node.clock.time()) + 50
        mortal = await node.dead(acl("bob", id="e", expires_at={"seconds": end}))
        dead = await node.dead(acl("bob", id="m"))
        transient = await node.dead(acl("bob", id="t", transient=True))
        node.redrive(replace(dead, payload=b"\xff"))
        node.submit(acl("bob", "first"))
        node.redrive(dead)
        node.platform.deregister("bob", OPERATOR)
        node.redrive(dead)
        node.platform.register("bob", "", OPERATOR)
        node.clock.advance(51)
        node.redrive(mortal)
        node.platform.post.store_failure = "the disk is gone"
        node.redrive(dead)
        outcomes = [outcome for _, _, outcome in node.operator.outcomes]
        assert outcomes == ["INVALID", "MAILBOX_FULL", "NO_SUCH_AGENT", "EXPIRED", "UNREACHABLE"]
        assert "the disk is gone" in node.operator.refusals[-1].detail
        assert "registered: alice" in node.operator.refusals[2].detail
        assert {one.number for one in node.platform.dead_letters} >= {mortal.number, dead.number}
        # What needs no store comes back without one.
        node.redrive(transient)
        assert [letter.message_id for letter in node.mail()] == ["t"]


async def test_letter_goes_back_at_once_where_nothing_is_kept() -> None:
    async with running(MemoryStore()) as node:
        dead = await node.dead(acl("bob", id="m"))
        node.redrive(dead)
        assert ([one.message_id for one in node.mail()], len(node.platform.dead_letters)) == (["m"], 0)
        assert (node.operator.reached, node.operator.waiting) == ([(1, "bob")], 0)


async def test_answer_of_nobody_waits_for_no_id_of_its_own() -> None:
    async with running() as node:
        nobody = NotingOrigin("anonymous")
        for text in ("one", "two"):
            node.submit(acl("bob", text, id="same"), nobody)
        node.platform.deregister("bob", OPERATOR)
        node.platform.register("bob", "", OPERATOR)
        for dead in list(node.platform.dead_letters):
            node.redrive(dead)
        node.commit()
        assert len(node.mail()) == 2


# ---- over a stop -----------------------------------------------------------------------------------------------------


def stored_agent(name: str) -> StoredAgent:
    state = LifeCycleState.ACTIVE
    return StoredAgent(name, "local", "", state, state, False, 1, False, 50, b"", 1.0)


def stored_message(sequence: int, **changes: Any) -> StoredMessage:
    payload = acl("bob", f"{sequence}", id=f"m{sequence}").SerializeToString()
    digest = CODEC.decode(payload).digest
    made = StoredMessage("bob", sequence, "alice@local", f"m{sequence}", f"m{sequence}", digest, "", 1.0e9, 0, payload)
    return replace(made, **changes)


def dead_letter_of(message: StoredMessage, number: int = 1) -> StoredDeadLetter:
    return StoredDeadLetter(
        number=number,
        receiver=message.receiver,
        sequence=message.sequence,
        sender=message.sender,
        message_id=message.message_id,
        via="",
        accepted_at=message.accepted_at,
        attempt=5,
        reason=DeadReason.MAX_DELIVERIES,
        error="boom",
        died_at=1.0e9,
        payload=message.payload,
    )


def held(*messages: StoredMessage, dead: list[StoredDeadLetter], next_dead_letter: int = 9) -> ManualStore:
    agents = [stored_agent("alice"), stored_agent("bob")]
    return ManualStore(
        StoredPlatform(
            clean=False,
            agents=agents,
            messages=list(messages),
            dead_letters=dead,
            next_dead_letter=next_dead_letter,
        )
    )


async def test_message_that_died_as_the_bus_stopped_is_settled_and_its_sender_told() -> None:
    dying, other = stored_message(7), stored_message(8)
    async with running(held(dying, other, dead=[dead_letter_of(dying)])) as node:
        assert [letter.sequence for letter in node.mail()] == [8]
        assert [one.number for one in node.platform.dead_letters] == [1]
        ((receiver, sequence, key),) = node.store.settled
        assert (receiver, sequence, key.key if key else "") == ("bob", 7, "m7")
        await eventually(lambda: node.failures() == ["given up as the bus stopped: boom"])
        node.submit(acl("bob", "7", id="m7"))
        assert [outcome for _, _, outcome in node.alice.outcomes] == ["DUPLICATE"]
        # Numbers are not used again, also those of letters that are gone.
        node.platform.deregister("bob", OPERATOR)
        assert [one.number for one in node.platform.dead_letters] == [1, 9]


@pytest.mark.parametrize(
    "change",
    [{"message_id": "other"}, {"sender": "eve@local"}, {"accepted_at": 2.0e9}],
    ids=lambda one: next(iter(one)),
)
async def test_mail_of_an_agent_that_counts_anew_is_not_taken_for_a_dead_letter(change: dict[str, Any]) -> None:
    message = stored_message(7)
    async with running(held(message, dead=[replace(dead_letter_of(message), **change)])) as node:
        assert [letter.sequence for letter in node.mail()] == [7]
        assert (node.store.settled, len(node.platform.dead_letters)) == ([], 1)


async def test_letter_that_was_back_as_the_bus_stopped_is_no_dead_one_any_more_and_is_flagged() -> None:
    message = stored_message(40, redriven=3, message_id="m7", key="m7")
    old = replace(dead_letter_of(stored_message(7)), number=3)
    async with running(held(message, dead=[old, replace(old, number=4)])) as node:
        assert [(one.sequence, one.redelivered, one.attempt) for one in node.mail()] == [(40, True, 0)]
        assert [one.number for one in node.platform.dead_letters] == [4]
        assert node.store.exhumed == [3]


async def test_letter_stays_dead_whose_mail_has_nowhere_to_go() -> None:
    message = stored_message(40, redriven=3, receiver="gone")
    old = replace(dead_letter_of(stored_message(7)), number=3)
    async with running(held(message, dead=[old])) as node:
        assert [one.number for one in node.platform.dead_letters] == [3]
