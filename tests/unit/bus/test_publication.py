"""One message for many agents: one receipt that counts, and a notice for whom it did not reach."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl

from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.session import Notice, Session
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.testing import FakeClock


class Bench:
    """A platform whose agents listen to `news`, with mailboxes for four messages and a store that commits when told to."""

    def __init__(self) -> None:
        limits = BusLimits(mailbox_messages=4)
        self.store = ManualStore()
        self.codec = EnvelopeCodec(max_id_bytes=limits.max_id_bytes)
        self.platform = Platform("local", self.store, self.codec, FakeClock(), limits)
        self.alice = NotingOrigin("alice@local")
        self.number = 0

    async def open(self, name: str, **hello: Any) -> Session:
        return (await self.platform.attach(Hello(name, topics=("news",), **hello), "local")).session

    def publish(self, mark: str = "", to: str = "topic:news") -> int:
        self.number += 1
        self.platform.router.submit(acl(to, id=mark).SerializeToString(), self.alice, self.number)
        return self.number

    def commit(self, error: str = "") -> None:
        self.platform.post.commit(self.store.commit(error=error))

    def fill(self, name: str) -> None:
        for number in range(4):
            self.publish(f"{name}-{number}", name)
        self.commit()

    @property
    def counts(self) -> list[tuple[int, str, int, int]]:
        return [(one.number, one.outcome.name, one.reached, one.missed) for one in self.alice.refusals]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def gaps(session: Session) -> list[tuple[str, int]]:
    notices: list[Notice] = session._collect().notices
    return [(one.address, one.missed) for one in notices if one.kind == "GAP"]


async def test_the_receipt_waits_for_all_of_them_and_counts(bench: Bench) -> None:
    await bench.open("a")
    await bench.open("b")
    number = bench.publish()
    assert (bench.counts, bench.alice.waiting) == ([], 1)
    bench.platform.post.commit(bench.store.commit(1))
    assert (bench.counts, bench.alice.waiting) == ([], 1)
    bench.commit()
    assert (bench.counts, bench.alice.waiting) == ([(number, "ACCEPTED", 2, 0)], 0)


async def test_who_has_no_room_is_told_of_the_gap_and_refuses_nobody(bench: Bench) -> None:
    full, _ = await bench.open("a"), await bench.open("b")
    bench.fill("a")
    first, second = bench.publish(), bench.publish()
    bench.commit()
    assert bench.counts == [(first, "ACCEPTED", 1, 1), (second, "ACCEPTED", 1, 1)]
    assert "1 missed it, the first because of MAILBOX_FULL" in bench.alice.refusals[0].detail
    assert gaps(full) == [("topic:news", 2)]
    assert gaps(full) == []


async def test_who_is_away_is_told_of_its_gaps_when_it_is_back(bench: Bench) -> None:
    away = await bench.open("a")
    bench.fill("a")
    bench.platform.detach(away)
    bench.publish()
    bench.publish()
    assert gaps(await bench.open("a")) == [("topic:news", 2)]


async def test_a_write_that_fails_counts_as_missed(bench: Bench) -> None:
    a = await bench.open("a")
    number = bench.publish()
    bench.commit(error="the disk is full")
    ((found, _, reached, missed),) = bench.counts
    assert (found, reached, missed) == (number, 0, 1)
    assert "the disk is full" in bench.alice.refusals[0].detail
    assert gaps(a) == [("topic:news", 1)]


async def test_a_repetition_that_all_of_them_have_is_a_duplicate(bench: Bench) -> None:
    await bench.open("a")
    first = bench.publish("m")
    bench.commit()
    await bench.open("b")
    second = bench.publish("m")
    bench.commit()
    third = bench.publish("m")
    assert bench.counts == [(first, "ACCEPTED", 1, 0), (second, "ACCEPTED", 2, 0), (third, "DUPLICATE", 2, 0)]


async def test_a_topic_reaches_its_sender_too_and_everybody_does_not(bench: Bench) -> None:
    await bench.open("alice")
    own = bench.publish()
    bench.commit()
    everybody = bench.publish(to="*")
    assert bench.counts == [(own, "ACCEPTED", 1, 0), (everybody, "NO_PROVIDER", 0, 0)]
