"""C10: a reader slower than its mail costs itself. Memory is bounded, what was accepted stays, others pay nothing."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from pulse import pulse_check
from waiting import until

from gagent_grpc import Agent, ClientLimits, Received

MESSAGES = 60_000
GROWTH = 64 * 1024 * 1024
"""Bytes that the bus may grow by: less than what is sent, with what each message costs the bus."""
LATENCY = 0.2
"""Seconds within which a third pair is served, by the median: 99 of 100 is for a quiet machine."""
PROMPTLY = 5.0
"""Seconds within which each single one is."""

FLOOD = """
    import asyncio, json, sys
    from gagent_grpc import ACLMessage, Agent, AgentIdentifier, Performative

    bus, count = sys.argv[1], int(sys.argv[2])
    slow = (AgentIdentifier("slow"),)

    async def main():
        async with Agent("fast", bus=bus) as fast:
            messages = (ACLMessage(Performative.INFORM, receivers=slow, content=f"{n:<1000}") for n in range(count))
            refused = await fast.send_all(messages, when_full="fail")
        with open("refused.json", "w") as out:
            json.dump([(place, one.outcome.name, one.outcome.retryable) for place, one in refused], out)
        print("done", flush=True)

    asyncio.run(main())
"""


async def test_c10_flooded_reader_costs_neither_memory_nor_mail_nor_others(
    bus_processes: Any, programs: Any, tmp_path: Path
) -> None:
    """Without the bound of the mailbox nothing is refused and the bus grows beyond its bound; a mailbox that drops its
    oldest instead of refusing loses what was accepted.
    """
    handled: list[int] = []
    in_time = asyncio.Event()
    times: list[float] = []

    async def slowly(message: Received) -> None:
        handled.append(int(message.content))
        if not in_time.is_set():
            await asyncio.sleep(0.05)

    async with bus_processes(store="memory") as bus, pulse_check(bus) as stack:
        limits = ClientLimits(window_messages=100, concurrency=1)
        slow = Agent("slow", bus=bus.address, limits=limits)
        slow.on()(slowly)
        pong = Agent("pong", bus=bus.address)
        pong.on("request")(answer)
        for agent in (slow, pong):
            await stack.enter_async_context(agent)
        ping = await stack.enter_async_context(Agent("ping", bus=bus.address))
        before = bus.rss

        flood = await stack.enter_async_context(programs(FLOOD, bus.address, str(MESSAGES)))
        done = asyncio.create_task(flood.line())
        while not done.done():
            began = time.monotonic()
            assert (await ping.request("pong", "?")).content == "!"
            times.append(time.monotonic() - began)
        assert bus.rss - before < GROWTH
        assert await done == "done"
        found = json.loads((tmp_path / "refused.json").read_text())
        refused = {place for place, *_ in found}
        assert {(outcome, retryable) for _, outcome, retryable in found} == {("MAILBOX_FULL", True)}
        # Far from all of it was handled, or the reader was not slow.
        assert len(handled) < MESSAGES // 100

        in_time.set()
        accepted = [number for number in range(MESSAGES) if number not in refused]
        await until(lambda: len(handled) >= len(accepted))
        assert handled == accepted
        times.sort()
        assert times[len(times) // 2] < LATENCY
        assert times[-1] < PROMPTLY


async def answer(message: Received) -> str:
    return "!"
