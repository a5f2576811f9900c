"""C16: who owns the name? What a clean farewell leaves behind, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from pulse import pulse_check
from waiting import Inbox

from gagent_grpc import Agent, DeliveryRefused, DFAgentDescription, ServiceDescription


async def test_c16_clean_farewell_frees_the_name_and_withdraws_its_services(bus: Any) -> None:
    """A stale entry would send work to a service that the agent does not offer any more."""
    async with pulse_check(bus) as stack:
        alice = await stack.enter_async_context(Agent("alice", bus=bus.address))
        async with Agent("planner", bus=bus.address, services=["plan", "draw"]):
            (found,) = await alice.df.search_all("draw")
            assert [service.type for service in found.services] == ["plan", "draw"]
        assert await alice.df.search_all() == []
        # At once, by another client that knows nothing of the first one.
        async with Agent("planner", bus=bus.address, services=["plan"]) as planner:
            entry = DFAgentDescription(name="planner@local", services=(ServiceDescription(name="plan", type="plan"),))
            assert await alice.df.search_all("plan") == [entry]
            assert await alice.df.search_all() == [entry]
            assert await alice.df.search_all("draw") == []
            assert [one.name for one in await alice.ams.search_all()] == ["alice@local", "planner@local"]
            await alice.send("planner", "inform", "one")
            assert planner.connected


async def test_c16_clean_farewell_leaves_no_subscription_behind(bus: Any) -> None:
    """A stale one would fill the mailbox of a namesake, or double what it listens to as well."""
    async with pulse_check(bus) as stack:
        alice = await stack.enter_async_context(Agent("alice", bus=bus.address))
        async with Agent("planner", bus=bus.address, topics=["plans.*", "old"]):
            assert (await alice.send("topic:old", "inform", "0"))[0].reached == 1
        with pytest.raises(DeliveryRefused, match="NO_PROVIDER"):
            await alice.send("topic:plans.new", "inform", "nobody listens")
        inbox = Inbox()
        planner = Agent("planner", bus=bus.address, topics=["plans.*"])
        planner.on()(inbox)
        await stack.enter_async_context(planner)
        with pytest.raises(DeliveryRefused, match="NO_PROVIDER"):
            await alice.send("topic:old", "inform", "1")
        assert (await alice.send("topic:plans.new", "inform", "2"))[0].reached == 1
        await alice.send("planner", "inform", "3")
        assert [text for text in await inbox.holds(2) if text != "0"] == ["2", "3"]
