"""C22: the limited. An endpoint takes five requests a second, thirty agents share it, and sixty questions wait."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from pulse import pulse_check
from vendor import Asked, Reply, running_vendor

from gagent_grpc import Agent
from gagent_grpc.llm import LLMAgent, OpenAIChat

PER_SECOND = 5
AGENTS, QUESTIONS = 30, 60


async def test_c22_sixty_questions_to_thirty_agents_of_one_limited_endpoint(
    buses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    bus = await buses()
    taken: list[float] = []

    def answer(asked: Asked) -> Reply:
        now = time.monotonic()
        if sum(at > now - 1.0 for at in taken) >= PER_SECOND:
            return Reply(status=429, error="rate_limit_error", headers={"retry-after": "2"})
        taken.append(now)
        return Reply(f"re {asked.question}")

    async with pulse_check(bus) as stack:
        vendor = await stack.enter_async_context(running_vendor())
        vendor.answer = answer
        # One client for all, which is about the time that the test has.
        model = OpenAIChat("a-model", api_key="sk-one", base_url=f"{vendor.url}/v1")
        names = [f"llm-{number}" for number in range(AGENTS)]
        agents = [LLMAgent(name, model, bus=bus.address) for name in names]
        async with contextlib.AsyncExitStack() as opened:
            for agent in agents:
                await opened.enter_async_context(agent)
            alice = await opened.enter_async_context(Agent("alice", bus=bus.address))
            asking = [alice.request(names[n % AGENTS], f"question {n}", timeout=60) for n in range(QUESTIONS)]
            answers = await asyncio.gather(*asking)
        assert [one.content for one in answers] == [f"re question {n}" for n in range(QUESTIONS)]
        # One chain of calls for each question, and few calls in vain.
        assert len(taken) == QUESTIONS
        assert len(vendor.asked) - len(taken) < 0.2 * len(vendor.asked)
        assert sum(one.usage["a-model"].completions for one in agents) == QUESTIONS
