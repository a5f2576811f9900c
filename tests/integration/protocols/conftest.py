"""Agents on a bus, for conversations between them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from waiting import Inbox

from gagent_grpc import Agent, ClientLimits
from gagent_grpc.server.app import Bus

QUICK = ClientLimits(initial_backoff=0.02, max_backoff=0.1, retry_delay=0.05, connect_timeout=2.0)
"""Intervals that make a test short."""

AgentFactory = Callable[..., Awaitable[Agent]]


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
