"""C12: stopping and restarting a busy bus. It ends in time, its agents come back one by one, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

from proxy import Proxy, proxy_to
from pulse import pulse_check
from waiting import Inbox, until

from gagent_grpc import Agent, ClientLimits, LifeCycleState, Received

IDLE = 40
"""Idle agents; fewer than in the case, which has 200."""
BUSY = 3
"""Agents in the middle of a task."""
GRACE = 1.0
"""Seconds of grace of the bus."""
PATIENT = ClientLimits(initial_backoff=2.0, max_backoff=2.0)
"""The first wait is twice as long as shipped: all agents share one loop here, and when it stands still their attempts
meet."""
WINDOW = 0.1
"""Seconds in which no more than a quarter of all attempts may fall."""


async def test_c12_restart_of_a_busy_bus(bus_processes: Any) -> None:
    """Without the jitter of their back-off the agents come back in one rush; without the grace those in the middle of a
    task keep the bus from its end.
    """
    attempts: list[float] = []
    runs: list[str] = []
    notes = Inbox()
    release = asyncio.Event()

    async def work(message: Received) -> str:
        runs.append(message.content)
        await release.wait()
        return f"done {message.content}"

    async with bus_processes(drain_grace=GRACE) as bus, pulse_check(bus) as stack:
        proxy = await stack.enter_async_context(proxy_to(bus.address))
        agents = [Agent(f"idle-{number}", bus=proxy.address, limits=PATIENT) for number in range(IDLE)]
        workers = [Agent(f"busy-{number}", bus=proxy.address, limits=PATIENT) for number in range(BUSY)]
        boss = Agent("boss", bus=proxy.address, limits=PATIENT)
        for worker in workers:
            worker.on("request")(work)
            worker.on("inform")(notes)
        everybody = [boss, *workers, *agents]
        for start in range(0, len(everybody), 20):
            await asyncio.gather(*map(stack.enter_async_context, everybody[start : start + 20]))
        asking = [asyncio.create_task(boss.request(one.name, one.name, conversation_id="c")) for one in workers]
        stack.push_async_callback(end, asking)
        await until(lambda: len(runs) == BUSY)
        # Behind the task in its lane, so nobody has handled it when the bus stops.
        for worker in workers:
            await boss.send(worker.name, "inform", f"note to {worker.name}", conversation_id="c")

        await stack.enter_async_context(noting_attempts(proxy, attempts))
        began = time.monotonic()
        bus.kill(signal.SIGTERM)
        assert await bus.wait() == 0
        # Grace and 2 s, and some more for a machine that has other things to do.
        assert time.monotonic() - began < GRACE + 5
        await until(lambda: not any(one.connected for one in everybody))
        assert not notes.messages
        # Down until there was an attempt for each of them.
        await until(lambda: len(attempts) >= len(everybody))
        assert most_in_a_window(attempts) <= len(attempts) / 4
        await bus.start()
        async with asyncio.timeout(30):
            while not all(one.connected for one in everybody):  # noqa: ASYNC110  # There is no event for all of them.
                await asyncio.sleep(0.05)
        found = {one.description.name: one.description.state for one in await boss.ams.search_all()}
        assert found == {f"{one.name}@local": LifeCycleState.ACTIVE for one in everybody}
        release.set()
        names = [one.name for one in workers]
        assert [one.content for one in await asyncio.gather(*asking)] == [f"done {name}" for name in names]
        assert sorted(await notes.holds(BUSY)) == [f"note to {name}" for name in names]
        assert sorted(runs) == names
        for one in agents[:3]:
            assert await boss.send(one.name, "inform", "still you?") == []
        assert len(notes.messages) == BUSY


async def end(tasks: list[asyncio.Task[Received]]) -> None:
    """Leave none of them, however the test ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def noting_attempts(proxy: Proxy, attempts: list[float]) -> AsyncIterator[None]:
    """Note when somebody tries to connect, while the block lasts."""

    async def note() -> None:
        seen = proxy.connections
        while True:
            await proxy.connected()
            attempts.extend([time.monotonic()] * (proxy.connections - seen))
            seen = proxy.connections

    noting = asyncio.create_task(note())
    try:
        yield
    finally:
        noting.cancel()
        await asyncio.gather(noting, return_exceptions=True)


def most_in_a_window(times: list[float]) -> int:
    """Return how many of ``times`` fall into one window at most; they are in order."""
    most = first = 0
    for place, at in enumerate(times):
        while at - times[first] > WINDOW:
            first += 1
        most = max(most, place - first + 1)
    return most
