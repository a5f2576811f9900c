"""Agents on a bus."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from proxy import Proxy, proxy_to
from waiting import Inbox

from gagent_grpc import Agent, ClientLimits
from gagent_grpc.server.app import Bus

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, retry_delay=0.05, connect_timeout=2.0)
"""Intervals that make a test short."""

AgentFactory = Callable[..., Awaitable[Agent]]


@pytest.fixture
async def proxy(bus: Bus) -> AsyncIterator[Proxy]:
    async with proxy_to(bus.address) as made:
        yield made


@pytest.fixture
async def agents(bus: Bus) -> AsyncIterator[AgentFactory]:
    """Return a factory of open agents: `await agents("alice", handler)`; a handler gets every message."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str, *handlers: Callable[..., Any], **settings: Any) -> Agent:
            settings.setdefault("bus", bus.address)
            settings.setdefault("limits", QUICK)
            agent = Agent(name, **settings)
            for handler in handlers:
                agent.on()(handler)
            return await stack.enter_async_context(agent)

        yield start


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def inboxes() -> Callable[[], Inbox]:
    return Inbox


@pytest.fixture
async def boss(agents: AgentFactory) -> Agent:
    """Return an open agent that delegates tasks."""
    return await agents("boss")


@pytest.fixture
async def worker(bus: Bus) -> AsyncIterator[Agent]:
    """Return an agent that offers `work`, which the test opens when it has its handlers."""
    agent = Agent("worker", bus=bus.address, services=["work"], limits=QUICK)
    yield agent
    await agent.aclose(grace=0)
