"""C17: yellow pages full of dead entries. Callers go on choosing a worker that has crashed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import grpc
import pytest
from pulse import pulse_check
from waiting import Inbox, until

from gagent_grpc import (
    Agent,
    BusLimits,
    DFAgentDescription,
    Property,
    ServiceDescription,
    Unauthorised,
    UnrecognisedParameterValue,
)
from gagent_grpc.pb.gagent.v1 import agent_pb2

LEASE = 2.0
"""Seconds, granted to whoever asks for more: 30 in the field."""

PROVIDER = """
    import asyncio, sys
    from gagent_grpc import Agent, DFAgentDescription, ServiceDescription

    async def main():
        entry = DFAgentDescription(services=(ServiceDescription(type="summarise"),), lease_seconds=30)
        async with Agent("crashes", bus=sys.argv[1], description=entry):
            print("open", flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.timeout(60)
async def test_c17_search_finds_the_living_and_every_removal_is_told_once(buses: Any, programs: Any, raw: Any) -> None:
    bus = await buses(limits=BusLimits(max_lease=LEASE, resume_grace=2.0, drain_grace=1.0))
    async with pulse_check(bus) as stack:
        inbox = Inbox()
        watcher = Agent("watcher", bus=bus.address)
        watcher.on("inform", protocol="fipa-subscribe")(inbox)
        await stack.enter_async_context(watcher)
        crashes = await stack.enter_async_context(programs(PROVIDER, bus.address))
        assert await crashes.line() == "open"
        described = DFAgentDescription(
            services=(ServiceDescription(type="summarise", properties=(Property("lang", "en"),)),), lease_seconds=30
        )
        renews = await stack.enter_async_context(Agent("renews", bus=bus.address, description=described))
        offer = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type="summarise")])
        offer.lease_seconds = 30
        silent = await stack.enter_async_context(raw(bus.address, "silent", description=offer))
        # The answer says what was granted, which is less than what was asked for.
        assert silent.welcome.description.lease_seconds == LEASE

        await watcher.send(
            "df",
            "subscribe",
            json.dumps({"action": "search", "description": {"services": [{"type": "summarise"}]}}),
            protocol="fipa-subscribe",
            conversation_id="changes",
        )
        stream = await stack.enter_async_context(contextlib.aclosing(watcher.df.watch("summarise")))
        snapshot = [await anext(stream) for _ in range(4)]
        assert [one.name for one in snapshot] == ["crashes@local", "renews@local", "silent@local", ""]
        await _refused_to_others(watcher)

        await crashes.kill()
        removed = [await anext(stream) for _ in range(2)]
        assert [(str(one.kind), one.name, one.cause) for one in removed] == [
            ("removed", "crashes@local", "agent lost"),
            ("removed", "silent@local", "lease ended"),
        ]
        # Twice the bound has passed for who renews.
        granted_until = bus.platform.df.stored("renews@local").lease_end
        await until(lambda: bus.platform.df.stored("renews@local").lease_end >= granted_until + LEASE)

        found = await watcher.df.search("summarise", max_results=1)
        assert [one.name for one in found] == ["renews@local"]
        assert await watcher.df.search("summarise", max_results=-1) == found
        assert await watcher.df.search_all() == found
        english = ServiceDescription(properties=(Property("lang", "en"),))
        assert await watcher.df.search_all(english) == found
        assert await watcher.df.search_all(ServiceDescription(properties=(Property("lang", "de"),))) == []
        with pytest.raises(UnrecognisedParameterValue, match="is 0"):
            await watcher.df.search(max_results=0)

        # Who subscribed by message was told the same: the matches, and two removals, each once.
        told = [json.loads(content)["result"] for content in await inbox.holds(3)]
        assert [one["name"] for one in told[0]] == ["crashes@local", "renews@local", "silent@local"]
        assert told[1:] == [[{"name": "crashes@local"}], [{"name": "silent@local"}]]
        await renews.aclose()
        assert (await anext(stream)).name == "renews@local"
        assert json.loads((await inbox.holds(4))[3])["result"] == [{"name": "renews@local"}]
        # The one whose lease ended is still there, and may offer again.
        assert silent.call.done() is False
        with contextlib.suppress(grpc.aio.BaseError):
            await silent.leave()


async def _refused_to_others(agent: Agent) -> None:
    """Make sure that an agent cannot change what another one registered."""
    other = DFAgentDescription(name="renews", services=(ServiceDescription(type="mine"),))
    with pytest.raises(Unauthorised):
        await agent.df.modify(other)
    with pytest.raises(Unauthorised):
        await agent.df.register(other)
    answer = await agent.request("df", '{"action": "search", "description": {"name": "renews"}}')
    assert json.loads(str(answer.content))["result"][0]["services"][0]["type"] == "summarise"
