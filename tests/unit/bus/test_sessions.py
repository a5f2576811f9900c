"""How sessions of an agent follow each other, and which of their deliveries count against the bound on them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl

from gagent_grpc.bus.platform import Hello, Opened, Platform
from gagent_grpc.bus.ports import StoredAgent, StoredPlatform
from gagent_grpc.bus.session import Nack, Session
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import AgentAlreadyRegistered
from gagent_grpc.testing import FakeClock

MOST = 3


class Bench:
    """A platform on a store that commits at once, and an agent `bob` with one message."""

    def __init__(self, stored: StoredPlatform | None = None) -> None:
        limits = BusLimits(max_deliveries=MOST, probe_timeout=0.01)
        self.store = ManualStore(stored)
        self.codec = EnvelopeCodec(max_id_bytes=limits.max_id_bytes)
        self.platform = Platform("local", self.store, self.codec, FakeClock(), limits)

    async def open(self, token: str = "", **hello: Any) -> Opened:
        opened = await self.platform.attach(Hello("bob", resume_token=token, **hello), "local")
        # Its first delivery waits for the store, which takes a turn of the loop or two.
        for _ in range(3):
            await asyncio.sleep(0)
        return opened

    def send(self) -> None:
        self.platform.router.submit(acl("bob", id="m").SerializeToString(), NotingOrigin("alice@local"), 1)
        self.platform.post.commit(self.store.commit())

    @property
    def written(self) -> int:
        """Deliveries of the message that the store knows of."""
        return max(attempt for _, _, attempt in self.store.attempts)

    @property
    def dead(self) -> int:
        return len(self.platform.dead_letters)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def deliver(session: Session) -> list[int]:
    return [letter.sequence for letter in session._collect().letters]


def nack(session: Session) -> None:
    session.settle(ack_through_tag=0, acks=(), nacks=[Nack(1, 0.0, "not now")], rejects=())


async def test_deliveries_that_another_session_took_over_do_not_count(bench: Bench) -> None:
    opened = await bench.open()
    bench.send()
    for _ in range(MOST + 2):
        assert deliver(opened.session) == [1]
        opened = await bench.open(opened.resume_token)
    assert bench.written == 1
    for count in range(1, MOST + 1):
        assert (deliver(opened.session), bench.dead) == ([1], 0)
        nack(opened.session)
        assert bench.written == min(count, MOST - 1)
    assert bench.dead == 1


async def test_what_the_next_session_holds_is_the_same_delivery_and_fails_as_such(bench: Bench) -> None:
    opened = await bench.open()
    bench.send()
    for _ in range(MOST):
        assert bench.dead == 0
        assert deliver(opened.session) == [1]
        opened = await bench.open(opened.resume_token, held=frozenset({1}))
        assert opened.held == {1}
        nack(opened.session)
    assert bench.dead == 1


@pytest.mark.parametrize("polite", [True, False])
async def test_a_polite_end_does_not_count_and_a_loss_does(bench: Bench, polite: bool) -> None:
    opened = await bench.open()
    bench.send()
    for _ in range(MOST):
        assert deliver(opened.session) == [1]
        if polite:
            bench.platform.bye(opened.session, deregister=False)
        bench.platform.detach(opened.session)
        opened = await bench.open()
    assert deliver(opened.session) == ([1] if polite else [])
    assert (bench.dead, bench.written) == ((0, 1) if polite else (1, MOST))


async def test_a_session_that_was_silent_when_a_new_client_came_is_lost_with_what_it_had(bench: Bench) -> None:
    opened = await bench.open()
    bench.send()
    for _ in range(MOST):
        assert deliver(opened.session) == [1]
        older = opened.session
        opened = await bench.open()
        assert older.ended
    assert (deliver(opened.session), bench.dead) == ([], 1)


async def test_a_client_that_shows_the_token_of_a_lost_session_was_not_lost_by_what_it_had(bench: Bench) -> None:
    opened = await bench.open()
    bench.send()
    for _ in range(MOST + 2):
        assert deliver(opened.session) == [1]
        bench.platform.detach(opened.session)
        opened = await bench.open(opened.resume_token)
    assert (deliver(opened.session), bench.dead) == ([1], 0)


async def test_a_bus_that_stops_loses_nobody(bench: Bench) -> None:
    async with bench.platform.running():
        opened = await bench.open()
        bench.send()
        nacked = deliver(opened.session)
        nack(opened.session)
        bench.platform.release_lanes()
        assert nacked == deliver(opened.session) == [1]
    # One that failed, and one that the bus cut off.
    assert bench.written == 1


async def test_a_live_session_keeps_its_name(bench: Bench) -> None:
    opened = await bench.open()
    session, stop = opened.session, asyncio.Event()

    async def answer_heartbeats() -> None:
        while not stop.is_set():
            session.heard()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(answer_heartbeats())
        with pytest.raises(AgentAlreadyRegistered, match="a live session"):
            await bench.open()
        stop.set()
    assert not session.ended
    # Whoever shows the token needs no probe.
    assert (await bench.open(opened.resume_token)).attached
    assert session.ended


async def test_tokens_outlive_the_bus_and_are_good_for_one_session(bench: Bench) -> None:
    token = (await bench.open()).resume_token
    agents: list[StoredAgent] = list(bench.store.agents.values())
    after = Bench(StoredPlatform(agents=agents))
    async with after.platform.running():
        record = after.platform.ams.get("bob")
        assert after.platform.agent_of(token) is None
        newer = await after.open(token)
        assert newer.attached
        assert after.platform.agent_of(token) is None
        assert after.platform.agent_of(newer.resume_token) is record
