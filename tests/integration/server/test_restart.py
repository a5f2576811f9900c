"""A bus that is stopped and started again on its file: what was in hand, what waits, and what was settled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raw import acl

from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import agent_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.testing import running_bus

LIMITS = BusLimits(drain_grace=0.2)


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
