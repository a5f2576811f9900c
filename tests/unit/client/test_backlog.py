"""Messages that wait for room: an outbox against a bus that keeps the order as `hold_order` says."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from gagent_grpc.client.message import Receipt
from gagent_grpc.client.outbox import Outbox
from gagent_grpc.client.pending import HOLD_ORDER_FLAG, Sending, withdrawal
from gagent_grpc.envelope import Outcome, Priority
from gagent_grpc.errors import PreconditionFailed
from gagent_grpc.pb.gagent.v1 import acl_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

INFINITE = float("inf")
FULL, HELD, GONE = Outcome.MAILBOX_FULL, Outcome.HELD, Outcome.NO_SUCH_AGENT


class Bus:
    """What a bus does with the messages of one session; mailboxes have room for as many as `room` says."""

    def __init__(self) -> None:
        self.room: dict[str, int] = defaultdict(lambda: 1_000_000)
        self.refuse: dict[str, Outcome] = {}
        self.mail: dict[str, list[str]] = defaultdict(list)
        self.read: list[tuple[str, str]] = []
        """(id, what became of it) of all that came."""
        self.accepted: set[tuple[str, str]] = set()
        self.number = 0
        self._holds: dict[str, str] = {}

    def new_session(self) -> None:
        self.number = 0
        self._holds.clear()

    def take(self, payloads: Sequence[bytes]) -> list[tuple[int, Receipt]]:
        """Read messages; return the receipts that are not ACCEPTED."""
        exceptions = []
        for payload in payloads:
            self.number += 1
            message = pb.BusMessage.FromString(payload)
            for to in list(message.to) or [one.name for one in message.acl.receivers]:
                name = to.removesuffix("@local")
                outcome = self._outcome(message, name)
                self.read.append((message.id, outcome.name))
                if outcome is Outcome.ACCEPTED:
                    self.room[name] -= 1
                    self.mail[name].append(message.id)
                    self.accepted.add((name, message.id))
                else:
                    after = 0.1 if outcome is FULL else None
                    exceptions.append((self.number, Receipt(outcome, to, "", after)))
                if not outcome.retryable:
                    if self._holds.get(name) == message.id:
                        del self._holds[name]
                elif message.hold_order:
                    self._holds.setdefault(name, message.id)
        return exceptions

    def _outcome(self, message: pb.BusMessage, name: str) -> Outcome:
        if message.HasField("expires_at"):
            return Outcome.EXPIRED
        if self._holds.get(name, message.id) != message.id:
            return HELD
        if name in self.refuse:
            return self.refuse[name]
        if (name, message.id) in self.accepted:
            return Outcome.DUPLICATE
        return Outcome.ACCEPTED if self.room[name] > 0 else FULL


class World:
    """An outbox and a bus, and the time."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.outbox.reconnected("local")
        self.bus = Bus()
        self.now = 0.0
        self.on_way: list[bytes] = []
        self.window = 1000

    def send(
        self, *ids: str, to: Sequence[str] = ("bob",), patience: float = INFINITE, priority: Priority = Priority.NORMAL
    ) -> tuple[Sending, asyncio.Future[None]]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sending = Sending(len(ids), done, patience=patience, priority=int(priority))
        payloads = []
        for one in ids:
            made = pb.BusMessage(id=one)
            made.acl.performative = acl_pb2.PERFORMATIVE_INFORM
            for name in to:
                made.acl.receivers.add(name=name)
            payloads.append(made.SerializeToString() + (HOLD_ORDER_FLAG if patience else b""))
        self.outbox.add(payloads, [to] * len(ids), sending)
        return sending, done

    def write(self) -> int:
        """Send what may be sent now; return how many."""
        taken = self.outbox.take(
            window_messages=self.window, window_bytes=10**9, batch_bytes=10**9, batch_messages=1000, now=self.now
        )
        self.on_way += taken
        return len(taken)

    def hear(self, count: int | None = None) -> None:
        """Have the bus read ``count`` messages, and hear the receipts."""
        count = len(self.on_way) if count is None else count
        exceptions = self.bus.take(self.on_way[:count])
        del self.on_way[:count]
        self.outbox.receipts(self.bus.number, exceptions, now=self.now)

    def run(self) -> None:
        """Go on until nothing more happens at this time."""
        while self.write() or self.on_way:
            self.hear()

    def wait(self, seconds: float = 10.0) -> None:
        """Let time pass."""
        end = self.now + seconds
        self.run()
        while self.outbox.due < end:
            self.now = max(self.now, self.outbox.due)
            self.run()
        self.now = end


def outcomes(sending: Sending) -> list[tuple[int, str, str]]:
    return [(place, one.receiver, one.outcome.name) for place, one in sending.refusals]


@pytest.fixture
async def world() -> World:
    return World()


async def test_what_finds_no_room_waits_and_goes_in_order_when_there_is_some(world: World) -> None:
    world.bus.room["bob"] = 2
    first, all_of_it = world.send(*"abcdefg")
    world.run()
    assert world.bus.mail["bob"] == ["a", "b"]
    assert not all_of_it.done()
    assert [one for one in world.bus.read if one[1] != "ACCEPTED"] == [
        ("c", "MAILBOX_FULL"),
        *[(x, "HELD") for x in "defg"],
    ]
    # What comes now waits behind, and is not even sent.
    _, later = world.send("h", "i")
    world.run()
    assert len(world.bus.read) == 7
    world.bus.room["bob"] = 4
    world.wait()
    assert "".join(world.bus.mail["bob"]) == "abcdef"
    world.bus.room["bob"] = 100
    world.wait()
    assert "".join(world.bus.mail["bob"]) == "abcdefghi"
    assert (all_of_it.done(), later.done(), first.refusals) == (True, True, [])
    assert (len(world.outbox), world.outbox.bytes, world.outbox.backlogged) == (0, 0, False)
    assert world.outbox.due == INFINITE


async def test_a_message_that_may_not_wait_is_refused_at_once(world: World) -> None:
    world.bus.room["bob"] = 0
    sending, done = world.send("a", patience=0.0)
    world.run()
    assert done.done()
    assert outcomes(sending) == [(0, "bob", "MAILBOX_FULL")]
    assert not world.outbox.backlogged
    # Nor may it pass those that wait.
    world.send("b")
    world.run()
    sending, _ = world.send("c", patience=0.0)
    world.run()
    assert outcomes(sending) == [(0, "bob", "HELD")]
    world.bus.room["bob"] = 5
    world.wait()
    assert world.bus.mail["bob"] == ["b"]


async def test_tries_grow_rarer_while_there_is_no_room_and_carry_one_message_each(world: World) -> None:
    world.bus.room["bob"] = 0
    world.send(*"abc")
    world.run()
    assert 0.1 <= world.outbox.due <= 0.15
    del world.bus.read[:]
    world.wait(60.0)
    assert 60 / 3.2 < len(world.bus.read) < 60
    assert set(world.bus.read) == {("a", "MAILBOX_FULL")}
    # The first one that goes has the others follow without a wait.
    world.bus.room["bob"] = 100
    world.now = world.outbox.due
    world.run()
    assert world.bus.mail["bob"] == ["a", "b", "c"]


async def test_the_bus_may_ask_for_a_longer_wait(world: World) -> None:
    world.send("a")
    world.write()
    world.outbox.receipts(1, [(1, Receipt(Outcome.RATE_LIMITED, "bob", "", 30.0))], now=5.0)
    assert 35.0 <= world.outbox.due <= 50.0


async def test_other_receivers_go_their_way(world: World) -> None:
    world.bus.room["bob"] = 0
    world.send(*"abc")
    world.run()
    _, healthy = world.send(*"def", to=["carol"])
    world.send("g")
    _, last = world.send("h", to=["carol@local"])
    world.run()
    assert world.bus.mail["carol"] == ["d", "e", "f", "h"]
    assert (healthy.done(), last.done()) == (True, True)
    # What waits for room takes none of the room of the others.
    assert world.outbox.bytes == 0
    assert world.outbox.crowded(world.outbox.keys([["bob"]], 2), share=10, total=10**6)
    assert not world.outbox.crowded(world.outbox.keys([["bob@local"]], 2), share=10**6, total=10**6)
    assert world.outbox.crowded(world.outbox.keys([["bob"]], 2), share=10**6, total=10)
    assert not world.outbox.crowded(world.outbox.keys([["carol"]], 2), share=0, total=0)


async def test_a_name_is_one_receiver_in_either_form(world: World) -> None:
    world.bus.room["bob"] = 0
    world.send("a", to=["bob"])
    world.send("b", to=["bob@local"])
    world.run()
    world.send("c", to=["bob", "bob@local"])
    world.run()
    world.bus.room["bob"] = 5
    world.wait()
    assert world.bus.mail["bob"] == ["a", "b", "c"]
    assert (len(world.outbox), world.outbox.bytes) == (0, 0)


async def test_of_several_receivers_only_the_one_without_room_gets_it_again(world: World) -> None:
    world.bus.room["bob"] = world.bus.room["dave"] = 0
    world.bus.refuse["nobody"] = GONE
    sending, done = world.send("a", to=["bob", "carol", "nobody", "dave"])
    world.send("b", to=["carol", "bob"])
    world.run()
    # Set aside before it is sent, for the same reason.
    world.send("c", to=["bob", "carol"])
    world.send("d", to=["bob", "dave"])
    world.run()
    assert world.bus.mail == {"carol": ["a", "b", "c"]}
    world.bus.room["dave"] = 5
    world.wait()
    assert world.bus.mail["dave"] == ["a", "d"]
    assert not done.done()
    world.bus.room["bob"] = 5
    world.wait()
    assert world.bus.mail["bob"] == ["a", "b", "c", "d"]
    assert done.done()
    assert outcomes(sending) == [(0, "nobody", "NO_SUCH_AGENT")]
    assert "DUPLICATE" not in {outcome for _, outcome in world.bus.read}
    assert (len(world.outbox), world.outbox.bytes) == (0, 0)


async def test_a_refusal_for_good_ends_the_wait_and_is_told(world: World) -> None:
    world.bus.room["bob"] = 0
    sending, done = world.send(*"abc")
    world.run()
    world.bus.refuse["bob"] = GONE
    world.wait()
    assert done.done()
    assert outcomes(sending) == [(place, "bob", "NO_SUCH_AGENT") for place in range(3)]
    assert not world.outbox.backlogged


async def test_whoever_gives_up_is_not_sent_again_and_keeps_nobody_waiting(world: World) -> None:
    world.bus.room["bob"] = 0
    _, first = world.send("a")
    _, second = world.send("b")
    world.run()
    _, third = world.send("c")
    _, fourth = world.send("d")
    world.run()
    first.cancel()
    third.cancel()
    world.bus.room["bob"] = 5
    world.wait()
    assert world.bus.mail["bob"] == ["b", "d"]
    assert (second.done(), fourth.done()) == (True, True)
    # What the bus waited for was taken back; of what it never saw it does not hear.
    assert ("a", "EXPIRED") in world.bus.read
    assert "c" not in {one for one, _ in world.bus.read}
    assert (len(world.outbox), world.outbox.bytes) == (0, 0)


async def test_whoever_gives_up_while_it_is_on_its_way_keeps_nobody_waiting(world: World) -> None:
    world.bus.room["bob"] = 0
    _, first = world.send("a")
    world.write()
    first.cancel()
    world.run()
    _, second = world.send("b", patience=0.0)
    world.wait()
    world.bus.room["bob"] = 5
    _, third = world.send("c", patience=0.0)
    world.run()
    assert world.bus.mail["bob"] == ["c"]
    assert (second.done(), third.done(), world.outbox.backlogged) == (True, True, False)


async def test_patience_that_ends_refuses_the_message_and_lets_the_next_one_go(world: World) -> None:
    world.bus.room["bob"] = 0
    hasty, first = world.send("a", patience=5.0)
    _, second = world.send("b")
    world.run()
    late, third = world.send("c", patience=5.0)
    world.run()
    world.wait(4.0)
    assert not first.done()
    world.wait(5.0)
    assert outcomes(hasty) == outcomes(late) == [(0, "bob", "MAILBOX_FULL")]
    assert (first.done(), second.done(), third.done()) == (True, False, True)
    world.bus.room["bob"] = 5
    world.wait()
    assert world.bus.mail["bob"] == ["b"]


async def test_an_unknown_platform_is_no_passing_reason_and_a_failing_store_is(world: World) -> None:
    world.bus.refuse["x@elsewhere"] = world.bus.refuse["bob"] = Outcome.UNREACHABLE
    sending, done = world.send("a", to=["x@elsewhere"])
    _, waiting = world.send("b")
    world.run()
    assert outcomes(sending) == [(0, "x@elsewhere", "UNREACHABLE")]
    assert (done.done(), waiting.done()) == (True, False)
    sending, _ = world.send("c", to=["x@elsewhere"])
    world.wait()
    assert outcomes(sending) == [(0, "x@elsewhere", "UNREACHABLE")]
    # Maybe the store had it: then it is there, and nothing is told.
    world.bus.refuse.clear()
    world.bus.accepted.add(("bob", "b"))
    world.wait()
    assert waiting.done()
    assert ("b", "DUPLICATE") in world.bus.read


async def test_a_message_that_is_refused_for_good_is_not_sent_again_for_the_others_that_wait(world: World) -> None:
    world.bus.refuse["x@elsewhere"] = Outcome.UNREACHABLE
    world.bus.room["bob"] = 0
    sending, done = world.send("a", "b", to=["x@elsewhere", "bob"])
    world.wait()
    assert [one for one in world.bus.read if one[1] in {"UNREACHABLE", "EXPIRED"}] == [
        ("a", "UNREACHABLE"),
        ("a", "EXPIRED"),
        ("b", "UNREACHABLE"),
        ("b", "EXPIRED"),
    ]
    world.bus.room["bob"] = 2
    world.wait()
    assert done.done()
    assert outcomes(sending) == [(0, "x@elsewhere", "UNREACHABLE"), (1, "x@elsewhere", "UNREACHABLE")]


async def test_after_progress_it_is_tried_soon_and_with_one_message_again(world: World) -> None:
    world.bus.room["bob"] = 0
    world.send(*(f"{number:02}" for number in range(40)))
    world.wait(20.0)
    world.bus.room["bob"] = 10
    world.now = world.outbox.due
    world.run()
    assert len(world.bus.mail["bob"]) == 10
    assert 0.1 <= world.outbox.due - world.now <= 0.15
    world.now = world.outbox.due
    assert world.write() == 1


async def test_what_may_have_arrived_before_says_so_also_after_a_wait(world: World) -> None:
    world.send("a")
    world.write()
    del world.on_way[:]
    world.outbox.reconnected("local")
    world.bus.room["bob"] = 0
    world.run()
    world.now = world.outbox.due
    world.write()
    assert pb.BusMessage.FromString(world.on_way[0]).resend


async def test_what_nobody_wants_any_more_is_not_told_to_a_new_session(world: World) -> None:
    world.bus.room["bob"] = 0
    _, done = world.send("a")
    world.run()
    done.cancel()
    world.now = world.outbox.due
    assert world.write() == 1
    world.outbox.reconnected("local")
    assert world.write() == 0
    assert (len(world.outbox), world.outbox.bytes) == (0, 0)


async def test_messages_of_another_urgency_on_their_way_are_not_waited_for(world: World) -> None:
    world.bus.room["bob"] = 1
    world.send("u", priority=Priority.URGENT)
    _, done = world.send("a")
    world.run()
    world.bus.room["bob"] = 1
    world.wait()
    assert done.done()
    assert world.bus.mail["bob"] == ["u", "a"]


async def test_nothing_is_tried_again_before_what_is_on_its_way_has_its_receipts(world: World) -> None:
    world.bus.room["bob"] = 1
    world.send(*"abcd")
    world.write()
    world.hear(2)
    world.bus.room["bob"] = 5
    world.now = 100.0
    assert world.write() == 0
    # These are still held for the first one, which would not be so if it had gone again.
    world.hear()
    world.wait()
    assert "".join(world.bus.mail["bob"]) == "abcd"


async def test_a_new_session_tries_everything_again_in_order(world: World) -> None:
    world.bus.room["bob"] = 1
    world.send(*"abc")
    world.run()
    world.send("d", to=["carol", "bob"])
    world.send("e")
    _, given_up = world.send("f")
    world.run()
    given_up.cancel()
    world.send("g", to=["carol"])
    world.write()
    # Lost on the way.
    del world.on_way[:]
    world.bus.new_session()
    world.bus.room["bob"] = 100
    world.outbox.reconnected("local")
    assert not world.outbox.backlogged
    world.run()
    assert "".join(world.bus.mail["bob"]) == "abcde"
    assert world.bus.mail["carol"] == ["d", "g"]
    assert (len(world.outbox), world.outbox.bytes) == (0, 0)


async def test_a_session_that_is_lost_halfway_doubles_nothing(world: World) -> None:
    world.bus.room["bob"] = 0
    sending, done = world.send("a", to=["bob", "carol"])
    world.write()
    # The refusal is heard, and not that the other one has it.
    exceptions = world.bus.take(world.on_way)
    del world.on_way[:]
    world.outbox.receipts(0, exceptions)
    world.bus.new_session()
    world.outbox.reconnected("local")
    world.bus.room["bob"] = 5
    world.wait()
    assert (world.bus.mail["bob"], world.bus.mail["carol"]) == (["a"], ["a"])
    assert done.done()
    assert sending.refusals == []


async def test_closing_ends_every_wait_for_room(world: World) -> None:
    world.bus.room["bob"] = 0
    _, waiting = world.send("a")
    world.run()
    _, set_aside = world.send("b")
    world.run()
    world.outbox.stop_waiting(PreconditionFailed("closed"))
    for done in (waiting, set_aside):
        with pytest.raises(PreconditionFailed):
            done.result()
    assert len(world.outbox) == 0
    # From now on a refusal is told.
    sending, _ = world.send("c")
    world.run()
    assert outcomes(sending) == [(0, "bob", "HELD")]
    assert not world.outbox.backlogged


async def test_urgent_messages_do_not_wait_behind_others_but_among_themselves(world: World) -> None:
    world.bus.room["bob"] = 0
    world.send("a")
    world.run()
    world.send("u", "v", priority=Priority.URGENT)
    world.send("b")
    # To the bus it is a message like any other, until the bus knows better.
    assert world.write() == 2
    world.run()
    world.bus.room["bob"] = 9
    world.wait()
    got = world.bus.mail["bob"]
    assert sorted(got) == ["a", "b", "u", "v"]
    assert got.index("a") < got.index("b")
    assert got.index("u") < got.index("v")


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_happens_everything_arrives_once_and_in_order(world: World, seed: int) -> None:
    chance = random.Random(seed)
    names = ["bob", "carol", "dave"]
    world.window = chance.choice([3, 10, 1000])
    for name in names:
        world.bus.room[name] = chance.randrange(5)
    sent: dict[str, list[str]] = defaultdict(list)
    waits: list[Any] = []
    count = 0
    for _ in range(300):
        step = chance.random()
        if step < 0.4:
            to = chance.sample(names, chance.choice([1, 1, 1, 2, 3]))
            ids = [f"{count + place:05}" for place in range(chance.randrange(1, 5))]
            count += len(ids)
            for name in to:
                sent[name] += ids
            waits.append(world.send(*ids, to=to))
        elif step < 0.6:
            world.write()
        elif step < 0.8:
            world.hear(chance.randrange(len(world.on_way) + 1))
        elif step < 0.85:
            # Refusals are told before acceptances are.
            read = chance.randrange(len(world.on_way) + 1)
            exceptions = world.bus.take(world.on_way[:read])
            del world.on_way[:read]
            world.outbox.receipts(0, exceptions, now=world.now)
        elif step < 0.95:
            world.now += chance.random()
            world.bus.room[chance.choice(names)] += chance.randrange(6)
        elif step < 0.97:
            # Some of what was on its way arrives, and nobody hears of it.
            world.bus.take(world.on_way[: chance.randrange(len(world.on_way) + 1)])
            del world.on_way[:]
            world.bus.new_session()
            world.outbox.reconnected("local")
    for name in names:
        world.bus.room[name] = 10_000
    world.hear()
    world.wait(100.0)
    assert all(done.done() and sending.refusals == [] for sending, done in waits)
    assert world.bus.mail == {name: ids for name, ids in sent.items() if ids}
    assert (len(world.outbox), world.outbox.bytes, world.outbox.backlogged) == (0, 0, False)


@pytest.mark.parametrize("priority", [0, 3, 4])
def test_a_withdrawal_is_of_the_priority_whose_order_it_releases(priority: int) -> None:
    message = pb.BusMessage(id="m", priority=priority, hold_order=True)
    message.acl.performative = 8
    made = pb.BusMessage.FromString(withdrawal(message.SerializeToString(), ["bob"]))
    assert (made.id, list(made.to), made.priority, made.hold_order) == ("m", ["bob"], priority, True)
