"""A server that speaks the vendors' APIs, and providers that call it through the vendors' own libraries."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from vendor import Vendor, running_vendor

from gagent_grpc.llm import AnthropicMessages, LLMAgent, OpenAIChat, OpenAIResponses, RetryPolicy
from gagent_grpc.llm.providers.sdk import SdkProvider
from gagent_grpc.server.app import Bus

KEY = "sk-very-secret-0123456789"
NUMBERS = itertools.count()
AT_ONCE = RetryPolicy(initial_delay=0.001, max_delay=0.01)

KINDS: dict[str, tuple[type[SdkProvider], str]] = {
    "chat": (OpenAIChat, "/v1"),
    "responses": (OpenAIResponses, "/v1"),
    "messages": (AnthropicMessages, ""),
}

MakeProvider = Callable[..., SdkProvider]
Start = Callable[..., Any]


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[Vendor]:
    with pytest.MonkeyPatch.context() as patch:
        # The libraries heed proxies of the environment, which loopback is not behind.
        patch.setenv("NO_PROXY", "127.0.0.1")
        async with running_vendor() as one:
            yield one


@pytest.fixture
def vendor(server: Vendor) -> Vendor:
    """Return the server, as it was at the beginning."""
    server.reset()
    return server


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(vendor: Vendor) -> MakeProvider:
    """Return a factory of providers that call the server: `make("chat")`."""

    def provider(kind: str = "chat", *, api_key: str | None = "", **options: Any) -> SdkProvider:
        made, path = KINDS[kind]
        # Each with a key of its own: those who share one share the pace.
        key = f"{KEY}-{next(NUMBERS)}" if api_key == "" else api_key
        return made("a-model", api_key=key, base_url=vendor.url + path, **options)

    return provider


@pytest.fixture(scope="session")
async def clients(server: Vendor) -> AsyncIterator[dict[str, SdkProvider]]:
    """Return one provider per API that is open for all tests: a client of a library takes a while to make."""
    made = {kind: one("a-model", api_key=KEY, base_url=server.url + path) for kind, (one, path) in KINDS.items()}
    for one in made.values():
        await one.open()
    yield made
    for one in made.values():
        await one.aclose()


@pytest.fixture
def client(kind: str, clients: dict[str, SdkProvider], vendor: Vendor) -> SdkProvider:
    return clients[kind]


@pytest.fixture
async def start(bus: Bus, make: MakeProvider) -> AsyncIterator[Start]:
    """Return a factory of open LLM agents: `await start("helper", ...)`; their model is the server's chat."""
    async with contextlib.AsyncExitStack() as stack:

        async def agent(name: str, provider: Any = None, **options: Any) -> LLMAgent:
            options.setdefault("retry", AT_ONCE)
            made = LLMAgent(name, provider or make(), bus=bus.address, **options)
            await stack.enter_async_context(made)
            return made

        yield agent
