"""The clock's business: each step is done in every round, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from raw import acl

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.ports import StoredMessage
from gagent_grpc.bus.session import Nack, Session
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.testing import FakeClock


class BrokenStore(ManualStore):
    """A store of which some writes raise what no store should."""

    broken: frozenset[str] = frozenset()
    prunings = 0

    def accept(self, message: StoredMessage) -> int:
        self._check("accept")
        return super().accept(message)

    def remove_description(self, name: str) -> None:
        self._check("remove_description")
        super().remove_description(name)

    def prune_keys(self, settled_before: float, keep: int) -> None:
        self._check("prune_keys")
        self.prunings += 1
        super().prune_keys(settled_before, keep)

    def _check(self, what: str) -> None:
        if what in self.broken:
            raise RuntimeError(f"{what} is broken")


class Bench:
    """A platform on a store that breaks when it is told to, and whose clock stands still."""

    def __init__(self, **limits: Any) -> None:
        bounds = BusLimits(**limits)
        self.store = BrokenStore()
        self.clock = FakeClock()
        self.codec = EnvelopeCodec(max_id_bytes=bounds.max_id_bytes)
        self.platform = Platform("local", self.store, self.codec, self.clock, bounds)

    async def open(self, name: str, *types: str, lease: float | None = None, ephemeral: bool = False) -> Session:
        services = tuple(ServiceDescription(type=one) for one in types)
        offer = DFAgentDescription(services=services, lease_seconds=lease) if types else None
        hello = Hello(name, description=offer, ephemeral=ephemeral)
        session = (await self.platform.attach(hello, "local")).session
        # Its first delivery waits for the store, which takes a turn of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        return session

    def send(self, payload: Any) -> None:
        origin = NotingOrigin("alice@local")
        self.platform.router.submit(payload.SerializeToString(), origin, 1)
        self.platform.post.commit(self.store.commit())
        assert origin.refusals == []

    def names(self) -> list[str]:
        return [record.name for record in self.platform.ams]


def failed_steps(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if "housekeeping failed" in record.getMessage()]
    return [one.rpartition(".")[2] for one in said]


async def test_a_step_of_a_round_that_raises_keeps_none_of_the_others_from_being_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(mailbox_ttl=20.0, resume_grace=5.0, dedupe_window=1.0)
    await bench.open("seller", "sum", lease=10.0)
    await bench.open("bob")
    bench.platform.detach(await bench.open("guest", ephemeral=True))
    bench.send(acl("bob", "old"))
    bench.store.broken = frozenset({"remove_description", "prune_keys"})
    bench.clock.advance(30.0)
    bench.platform.keep_house()
    # Before them, between them and after them: mail expired, the ephemeral name ended.
    assert bench.platform.ams.get("bob").mailbox.messages == 0
    assert [dead.receiver for dead in bench.platform.dead_letters.matching()] == ["bob"]
    assert bench.names() == ["seller", "bob"]
    assert failed_steps(caplog) == ["expire", "_prune_keys"]
    assert [record.exc_info is not None for record in caplog.records if "failed" in record.getMessage()] == [True] * 2


async def test_held_lanes_go_on_whatever_subscribers_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(mailbox_messages=2)
    await bench.open("alice")
    bob = await bench.open("bob")
    subscribe = ACLMessage(
        Performative.SUBSCRIBE,
        receivers=(AgentIdentifier("df"),),
        content=json.dumps({"action": "search"}),
        conversation_id="c",
    )
    bench.platform.router.submit(bench.codec.encode(subscribe, message_id=""), NotingOrigin("alice@local"), 1)
    bench.platform.post.commit(bench.store.commit())
    bench.send(acl("alice"))
    # She has no room, and is told later.
    await bench.open("seller", "sum")
    bench.platform.ams.get("alice").mailbox.drain()
    bench.send(acl("bob", "again"))
    (letter,) = bob._collect().letters
    bob.settle(ack_through_tag=0, acks=(), nacks=[Nack(letter.sequence, 1.0, "not now")], rejects=())
    bench.clock.advance(2.0)
    bench.store.broken = frozenset({"accept"})
    bench.platform.release_lanes()
    assert [one.sequence for one in bob._collect().letters] == [letter.sequence]
    assert failed_steps(caplog) == ["tell_subscribers"]
    bench.store.broken = frozenset()
    bench.platform.release_lanes()
    bench.platform.post.commit(bench.store.commit())
    (told,) = bench.platform.ams.get("alice").mailbox.letters()
    message = bench.codec.decode_acl(told.envelope.payload)
    assert message is not None
    assert "seller@local" in str(message.content)


async def test_mail_that_expires_all_at_once_is_given_up_a_part_at_a_time() -> None:
    """Each costs a dead letter and a failure; ten thousand of them in one go would keep everybody else waiting."""
    bench = Bench(mailbox_ttl=20.0)
    await bench.open("bob")
    for _ in range(250):
        bench.send(acl("bob"))
    bench.clock.advance(30.0)
    bench.platform.keep_house()
    mailbox, buried = bench.platform.ams.get("bob").mailbox, bench.platform.dead_letters
    # None of them can be delivered any more, and their room is somebody else's.
    assert (mailbox.messages, list(mailbox.letters())) == (0, [])
    counts = []
    while bench.platform.post.overdue:
        bench.platform.release_lanes()
        counts.append(len(buried))
    assert counts == [100, 200, 250]
    assert [one.sequence for one in buried.matching()] == [*range(1, 251)]
    assert bench.platform.post.mail_bytes == 0


async def test_what_has_expired_is_given_up_before_the_name_is_free_for_another_one() -> None:
    """The next agent of that name begins with the same sequences: what is removed of the old mail must not be its."""
    bench = Bench(mailbox_ttl=20.0)
    bob = await bench.open("bob")
    for _ in range(250):
        bench.send(acl("bob"))
    bench.clock.advance(30.0)
    bench.platform.keep_house()
    bench.platform.bye(bob, deregister=True)
    assert not bench.platform.post.overdue
    assert [one.receiver for one in bench.platform.dead_letters.matching()] == ["bob"] * 250


async def test_keys_are_pruned_once_a_minute() -> None:
    bench = Bench()
    pruned = []
    for _ in range(7):
        bench.clock.advance(20.0)
        before = bench.store.prunings
        bench.platform.keep_house()
        pruned.append(bench.store.prunings - before)
    assert pruned == [1, 0, 0, 1, 0, 0, 1]
