"""Mail for a role whose agent is lost before it saw it: who gets it, when, and that it is never in two hands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl

from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
from gagent_grpc.bus.platform import Caller, Hello, Platform
from gagent_grpc.bus.session import Session
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

GRACE = 30.0


class Bench:
    """A platform whose clock stands still, and workers that offer `sum`."""

    def __init__(self, store: Any = None, **limits: Any) -> None:
        bounds = BusLimits(resume_grace=GRACE, **limits)
        self.clock = FakeClock()
        self.codec = EnvelopeCodec(max_id_bytes=bounds.max_id_bytes)
        self.platform = Platform("local", store or MemoryStore(), self.codec, self.clock, bounds)
        self.alice = NotingOrigin("alice@local")

    async def open(self, name: str, *types: str) -> Session:
        offer = DFAgentDescription(services=tuple(ServiceDescription(type=one) for one in types))
        session = (await self.platform.attach(Hello(name, description=offer if types else None), "local")).session
        await asyncio.sleep(0)
        return session

    def send(self, *texts: str, to: str = "role:sum", **fields: Any) -> None:
        for text in texts:
            self.platform.router.submit(acl(to, text, **fields).SerializeToString(), self.alice, 1)

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.platform.keep_house()

    def mail(self, name: str) -> list[str]:
        letters = sorted(self.platform.ams.get(name).mailbox.letters(), key=lambda letter: letter.sequence)
        return [pb.BusMessage.FromString(letter.envelope.payload).acl.text for letter in letters]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_it_goes_on_to_another_once_its_agent_counts_as_lost(bench: Bench) -> None:
    first = await bench.open("w1", "sum")
    bench.send("1", "2", acl_conversation_id="c")
    await bench.open("w2", "sum")
    bench.platform.detach(first)
    bench.later(GRACE - 1)
    assert (bench.mail("w1"), bench.mail("w2")) == (["1", "2"], [])
    bench.later(1)
    assert (bench.mail("w1"), bench.mail("w2")) == ([], ["1", "2"])


async def test_it_goes_on_at_once_when_its_agent_says_bye_or_loses_its_name(bench: Bench) -> None:
    first = await bench.open("w1", "sum")
    bench.send("1")
    second = await bench.open("w2", "sum")
    bench.platform.bye(first, deregister=False)
    bench.platform.detach(first)
    assert bench.mail("w2") == ["1"]
    await bench.open("w3", "sum")
    bench.platform.deregister("w2", Caller(None, "", operator=True))
    assert bench.mail("w3") == ["1"]
    assert second.ended


async def test_who_is_back_in_time_keeps_it(bench: Bench) -> None:
    first = await bench.open("w1", "sum")
    bench.send("1")
    await bench.open("w2", "sum")
    bench.platform.detach(first)
    bench.later(GRACE - 1)
    await bench.open("w1", "sum")
    bench.later(GRACE)
    assert (bench.mail("w1"), bench.mail("w2")) == (["1"], [])


async def test_what_somebody_saw_what_has_a_name_and_what_is_to_wait_stays(bench: Bench) -> None:
    first = await bench.open("w1", "sum")
    bench.send("seen")
    assert len(first._collect().letters) == 1
    bench.send("named", to="w1")
    bench.send("waits", on_receiver_lost=pb.ON_RECEIVER_LOST_WAIT)
    bench.send("goes")
    await bench.open("w2", "sum")
    bench.platform.detach(first)
    bench.later(GRACE)
    assert (bench.mail("w1"), bench.mail("w2")) == (["seen", "named", "waits"], ["goes"])


async def test_it_waits_for_somebody_who_can_take_it_and_moves_nobodys_turn_meanwhile(bench: Bench) -> None:
    first = await bench.open("w1", "sum", "sing")
    bench.send("1")
    for name in ("x", "y"):
        await bench.open(name, "ask")
    bench.platform.detach(first)
    bench.later(GRACE)
    for _ in range(5):
        bench.later(1)
        bench.send("?", to="role:ask")
    assert sorted([len(bench.mail("x")), len(bench.mail("y"))]) == [2, 3]
    assert bench.mail("w1") == ["1"]
    await bench.open("w2", "sum")
    await bench.open("w3", "sum")
    bench.later(1)
    assert (bench.mail("w1"), bench.mail("w2"), bench.mail("w3")) == ([], ["1"], [])


async def test_many_letters_move_a_few_at_a_time(bench: Bench) -> None:
    first = await bench.open("w1", "sum")
    bench.send(*(str(number) for number in range(1_200)))
    await bench.open("w2", "sum")
    bench.platform.detach(first)
    bench.later(GRACE)
    moved = [len(bench.mail("w2"))]
    for _ in range(3):
        bench.platform.release_lanes()
        moved.append(len(bench.mail("w2")))
    assert moved == [500, 1_000, 1_200, 1_200]
    assert bench.mail("w2") == [str(number) for number in range(1_200)]


async def test_it_stays_where_it_was_until_it_is_written_elsewhere() -> None:
    store = ManualStore()
    bench = Bench(store)
    first = await bench.open("w1", "sum")
    bench.send("1", id="m")
    bench.platform.post.commit(store.commit())
    await bench.open("w2", "sum")
    bench.platform.detach(first)
    bench.later(GRACE)
    assert [(one.receiver, one.message_id) for one in store.accepted] == [("w1", "m"), ("w2", "m")]
    assert store.settled == []
    bench.platform.post.commit(store.commit(error="the disk is full"))
    assert (bench.mail("w1"), bench.mail("w2")) == (["1"], [])
    bench.later(1)
    bench.platform.post.commit(store.commit())
    assert (bench.mail("w1"), bench.mail("w2")) == ([], ["1"])
    assert [(receiver, key) for receiver, _, key in store.settled] == [("w1", None)]


async def test_who_has_no_room_gets_it_later() -> None:
    bench = Bench(mailbox_messages=2)
    first = await bench.open("w1", "sum")
    bench.send("1", "2")
    second = await bench.open("w2", "sum")
    bench.send("own", "own", to="w2")
    bench.platform.detach(first)
    bench.later(GRACE)
    assert (bench.mail("w1"), bench.mail("w2")) == (["1", "2"], ["own", "own"])
    taken = second._collect().letters
    second.settle(ack_through_tag=len(taken), acks=(), nacks=(), rejects=())
    bench.later(1)
    assert (bench.mail("w1"), bench.mail("w2")) == ([], ["1", "2"])
