"""C08: two tasks answer on one stream. Whatever goes out at the same time, a stream has one writer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from pulse import pulse_check
from raw import acl

from gagent_grpc import BusLimits
from gagent_grpc.pb.gagent.v1 import agent_pb2

SENDERS, EACH = 50, 20
SUBSCRIBE = 22
"""FIPA's code of the act."""


async def test_c08_mail_of_many_and_heartbeats_and_a_df_notice_come_on_one_stream(buses: Any, raw: Any) -> None:
    """With several writers, some of what is written at the same instant is lost without a word."""
    # Who is silent while others write is not what is tested here.
    bus = await buses(limits=BusLimits(heartbeat_interval=0.1, missed_heartbeats=1_000, drain_grace=1.0))
    async with pulse_check(bus) as stack, contextlib.AsyncExitStack() as sessions:
        sink = await stack.enter_async_context(raw(bus.address, "sink"))
        search = json.dumps({"action": "search", "description": {"services": [{"type": "late"}]}})
        await sink.send(acl("df", search, act=SUBSCRIBE, acl_conversation_id="late", acl_protocol="fipa-subscribe"))
        await sink.delivered(1)
        # One after another, since that is not what is tested.
        senders = [await sessions.enter_async_context(raw(bus.address, f"s{number}")) for number in range(SENDERS)]

        async def flood(number: int) -> None:
            for index in range(EACH):
                await senders[number].send(acl("sink", f"{number} {index}", id=f"{number}-{index}"))

        async def offer() -> None:
            described = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type="late")])
            await sessions.enter_async_context(raw(bus.address, "late", description=described))

        async with asyncio.TaskGroup() as group:
            for number in range(SENDERS):
                group.create_task(flood(number))
            group.create_task(offer())
            group.create_task(sink.delivered(SENDERS * EACH + 2))
        await sink.until(lambda: sink.heartbeats >= 2)
        for sender in senders:
            assert await sender.receipted(EACH) == []

        told = [json.loads(one.message.acl.text)["result"] for one in sink.deliveries if one.sender == "df@local"]
        assert [[one["name"] for one in result] for result in told] == [[], ["late@local"]]
        mail = [one.message for one in sink.deliveries if one.sender != "df@local"]
        assert len({message.id for message in mail}) == len(mail) == SENDERS * EACH
        for number in range(SENDERS):
            texts = [message.acl.text for message in mail if message.id.startswith(f"{number}-")]
            assert texts == [f"{number} {index}" for index in range(EACH)]
        assert not any(one.redelivered for one in sink.deliveries)
        assert not sink.notices
        await sink.settle(ack_through_tag=sink.deliveries[-1].tag)
        await sink.leave()
