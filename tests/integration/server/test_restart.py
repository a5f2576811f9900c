"""A bus that is stopped and started again on its file: what was in hand, what waits, and what was settled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from raw import acl
from waiting import until

from gagent_grpc.acl.performative import Performative
from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import agent_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.testing import running_bus

LIMITS = BusLimits(drain_grace=0.2)
FAILURE, INFORM, SUBSCRIBE = int(Performative.FAILURE), int(Performative.INFORM), int(Performative.SUBSCRIBE)


async def test_mail_comes_again_in_order_and_flagged_and_what_is_held_or_settled_does_not(
    tmp_path: Path, connect: Any
) -> None:
    path = tmp_path / "bus.db"
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        bob, alice = await connect(bus, "bob"), await connect(bus, "alice")
        await alice.send(*[acl("bob", f"{index}", id=f"{index}", acl_conversation_id="c") for index in range(300)])
        assert await alice.receipted(300) == []
        await bob.delivered(300)
        await bob.settle(ack_through_tag=100)
        await bob.settle(nacks=[pb.Nack(sequence=101)])
        await bob.in_step()
        token = bob.welcome.resume_token
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        bob = await connect(bus, "bob", resume_token=token, held_sequences=[150, 50])
        assert list(bob.welcome.held_sequences) == [150]
        await bob.delivered(199)
        assert [one.sequence for one in bob.deliveries] == [number for number in range(101, 301) if number != 150]
        assert all(one.redelivered for one in bob.deliveries)
        alice = await connect(bus, "alice")
        await alice.send(acl("bob", "1", id="1", acl_conversation_id="c"), acl("bob", "new"))
        receipts = await alice.receipted(2)
        assert [(one.number, one.outcome) for one in receipts] == [(1, pb.OUTCOME_DUPLICATE)]
        await bob.delivered(200)
        assert bob.deliveries[-1].sequence > 300


async def test_offers_are_found_in_the_order_of_their_first_registration(tmp_path: Path, connect: Any) -> None:
    path = tmp_path / "bus.db"
    offer = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type="sum")])
    tokens = {}
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        for name in ("c", "a", "b"):
            tokens[name] = (await connect(bus, name, description=offer)).welcome.resume_token
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        for name in ("b", "a"):
            session = await connect(bus, name, resume_token=tokens[name], description=offer)
            tokens[name] = session.welcome.resume_token
        await connect(bus, "c", resume_token=tokens["c"])
        assert [one.name for one in bus.platform.df] == ["c@local", "a@local", "b@local"]
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        assert [one.name for one in bus.platform.df] == ["c@local", "a@local", "b@local"]


@pytest.mark.parametrize("how", ["taken over", "lost and resumed", "said bye"])
async def test_what_nobody_failed_in_is_no_dead_letter_after_a_restart(tmp_path: Path, connect: Any, how: str) -> None:
    path = tmp_path / "bus.db"
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        bob, alice = await connect(bus, "bob"), await connect(bus, "alice")
        await alice.send(acl("bob", "once", id="once"))
        assert await alice.receipted(1) == []
        for _ in range(LIMITS.max_deliveries + 2):
            await bob.delivered(1)
            token = bob.welcome.resume_token
            if how == "said bye":
                await bob.leave()
            elif how == "lost and resumed":
                await bob.vanish()
                record = bus.platform.ams.get("bob")
                await until(lambda record=record: record.session is None)
            bob = await connect(bus, "bob", resume_token=token)
        await bob.delivered(1)
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        alice, record = await connect(bus, "alice"), bus.platform.ams.get("bob")
        for _ in range(2):
            bob = await connect(bus, "bob")
            await bob.delivered(1)
            await bob.vanish()
            await until(lambda record=record: record.session is None)
        bob = await connect(bus, "bob")
        (again,) = await bob.delivered(1)
        assert again.redelivered
        # Nor does sending it back end it at once.
        await bob.settle(nacks=[pb.Nack(sequence=again.sequence)])
        await bob.delivered(2)
        await bob.settle(ack_through_tag=bob.deliveries[-1].tag)
        await bob.in_step()
        assert len(bus.platform.dead_letters) == 0


async def test_who_subscribed_to_offers_of_a_bus_that_is_killed_hears_of_it_from_the_next_one(
    tmp_path: Path, connect: Any
) -> None:
    path, copy = tmp_path / "bus.db", tmp_path / "copy.db"
    search = json.dumps({"action": "search", "description": {"services": [{"type": "sum"}]}})
    async with running_bus(SqliteStore(path), limits=LIMITS) as bus:
        alice = await connect(bus, "alice")
        subscribe = acl("df", search, act=SUBSCRIBE, acl_conversation_id="c", acl_reply_with="r")
        await alice.send(subscribe)
        (found,) = await alice.delivered(1)
        assert found.message.acl.performative == INFORM
        await alice.settle(ack_through_tag=1)
        await alice.in_step()
        await bus.platform.flush()
        # What a kill at this moment leaves behind.
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    sequences = set()
    for _ in range(2):
        async with running_bus(SqliteStore(copy), limits=LIMITS) as bus:
            alice = await connect(bus, "alice")
            ended = await alice.delivered(1)
            assert [one.message.acl.performative for one in ended] == [FAILURE]
            assert (ended[0].sender, ended[0].message.acl.in_reply_to) == ("df@local", "r")
            assert "subscribe again" in ended[0].message.acl.text
            sequences.add(ended[0].sequence)
    # Once: the second one delivers the same message again.
    assert len(sequences) == 1
