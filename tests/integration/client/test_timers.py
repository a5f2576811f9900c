"""Functions that an agent calls again and again, or once after a while."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from waiting import WAIT, until

from gagent_grpc import Agent, InvalidArgument, Received
from gagent_grpc.client.timers import next_due

pytestmark = pytest.mark.timeout(30)

SOON = 0.005


class Ticks:
    """An async function that counts its calls."""

    def __init__(self) -> None:
        self.count = 0
        self._came = asyncio.Event()

    async def __call__(self) -> None:
        self.count += 1
        self._came.set()

    async def reaches(self, count: int) -> None:
        async with asyncio.timeout(WAIT):
            while self.count < count:
                self._came.clear()
                await self._came.wait()


async def test_a_timer_ticks_while_its_agent_is_open_and_begins_anew_with_each_opening(bus: Any) -> None:
    agent, ticks = Agent("bob", bus=bus.address), Ticks()
    agent.every(SOON, ticks)
    assert ticks.count == 0
    for _ in range(2):
        before = ticks.count
        async with agent:
            await ticks.reaches(before + 3)
        after = ticks.count
        # Nothing is left that could tick.
        await asyncio.sleep(0)
        assert ticks.count == after


async def test_the_decorated_name_is_the_timer(agents: Any) -> None:
    bob = await agents("bob")
    called = asyncio.Event()

    @bob.every(SOON)
    async def tick() -> str:
        called.set()
        return "done"

    await asyncio.wait_for(called.wait(), WAIT)
    assert await tick() == "done"
    assert not tick.cancelled
    tick.cancel()
    tick.cancel()
    assert tick.cancelled
    assert "tick every 0.005 s, cancelled" in repr(tick)


async def test_a_cancelled_timer_calls_no_more_and_a_call_under_way_ends_by_itself(agents: Any) -> None:
    bob, others = await agents("bob"), Ticks()
    begun, go_on = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def slow() -> None:
        begun.set()
        await go_on.wait()
        seen.append("ended")

    timer = bob.every(SOON, slow)
    await asyncio.wait_for(begun.wait(), WAIT)
    timer.cancel()
    go_on.set()
    bob.every(SOON, others)
    await others.reaches(5)
    assert seen == ["ended"]


async def test_a_timer_may_cancel_itself(agents: Any) -> None:
    bob, others = await agents("bob"), Ticks()
    count = 0

    @bob.every(SOON)
    async def twice() -> None:
        nonlocal count
        count += 1
        if count == 2:
            twice.cancel()

    await until(lambda: count == 2)
    bob.every(SOON, others)
    await others.reaches(5)
    assert count == 2


async def test_after_calls_once(agents: Any, bus: Any) -> None:
    late = Agent("late", bus=bus.address)
    first, second, others = Ticks(), Ticks(), Ticks()
    late.after(SOON, first)
    late.after(SOON, second).cancel()
    async with late:
        late.every(SOON, others)
        await first.reaches(1)
        await others.reaches(5)
        assert (first.count, second.count) == (1, 0)

        @late.after(0)
        async def at_once() -> None:
            await second()

        await second.reaches(1)


async def test_calls_never_overlap_and_do_not_pile_up(agents: Any) -> None:
    bob, others = await agents("bob"), Ticks()
    running = most = 0
    begun: list[int] = []
    release = asyncio.Event()

    @bob.every(SOON)
    async def slow() -> None:
        nonlocal running, most
        begun.append(others.count)
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    bob.every(SOON, others)
    await others.reaches(20)
    assert len(begun) == 1
    release.set()
    await until(lambda: len(begun) >= 30)
    assert most == 1
    # Twenty ticks were missed, and are not made up for between two ticks of the other one.
    assert max(begun.count(tick) for tick in set(begun)) < 10


@pytest.mark.parametrize(
    ("due", "now", "expected"),
    [(10.0, 10.1, 11.0), (10.0, 11.0, 11.0), (10.0, 17.4, 17.4)],
    ids=["on the beat", "just in time", "late: once, at once"],
)
def test_the_next_tick_is_on_the_beat_and_what_was_missed_is_left_out(due: float, now: float, expected: float) -> None:
    assert next_due(due, 1.0, now) == expected


async def test_an_error_is_logged_with_the_agents_name_and_the_timer_goes_on(
    agents: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bob, ticks = await agents("bob"), Ticks()

    @bob.every(SOON)
    async def failing() -> None:
        await ticks()
        if ticks.count == 1:
            raise ValueError("not today")
        if ticks.count == 2:
            other = asyncio.create_task(asyncio.Event().wait())
            other.cancel()
            await other

    await ticks.reaches(4)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert errors[0].getMessage().startswith("bob: <Timer")
    assert "not today" in str(errors[0].exc_info)


async def test_a_blocking_function_runs_in_a_thread_and_keeps_nobody_waiting(agents: Any) -> None:
    bob = await agents("bob")
    release = threading.Event()
    threads: list[str] = []

    @bob.every(SOON)
    def block() -> None:
        threads.append(threading.current_thread().name)
        release.wait(WAIT)

    try:
        await until(lambda: threads)
        others = Ticks()
        bob.every(SOON, others)
        await others.reaches(5)
        assert len(threads) == 1
        assert threads[0].startswith("bob-timer")
    finally:
        release.set()
    await until(lambda: len(threads) > 2)


async def test_closing_cancels_what_a_timer_is_doing_and_waits_for_its_end(agents: Any) -> None:
    bob = await agents("bob")
    begun = asyncio.Event()
    ends: list[str] = []

    @bob.after(0)
    async def long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ends.append("ended")

    await asyncio.wait_for(begun.wait(), WAIT)
    await bob.aclose()
    assert ends == ["ended"]


async def test_what_is_added_while_the_agent_is_open_ends_with_it(bus: Any) -> None:
    agent, first, second = Agent("bob", bus=bus.address), Ticks(), Ticks()
    async with agent:
        agent.every(SOON, first)
        await first.reaches(1)
    agent.every(SOON, second)
    count = first.count
    async with agent:
        await second.reaches(3)
    assert first.count == count


async def test_a_blocking_handler_may_start_and_cancel_timers(agents: Any) -> None:
    bob, alice, ticks = await agents("bob"), await agents("alice"), Ticks()
    timers: list[Any] = []

    @bob.on("request", content="start")
    def start(message: Received) -> str:
        timers.append(bob.every(SOON, ticks))
        return "started"

    @bob.on("request", content="stop")
    def stop(message: Received) -> str:
        timers[0].cancel()
        return "stopped"

    await alice.request("bob", "start")
    await ticks.reaches(2)
    await alice.request("bob", "stop")
    count, others = ticks.count, Ticks()
    bob.every(SOON, others)
    await others.reaches(5)
    assert ticks.count == count


async def test_a_timer_sends_and_may_close_its_own_agent(agents: Any, inbox: Any) -> None:
    await agents("alice", inbox)
    bob = await agents("bob")

    @bob.after(SOON)
    async def leave() -> None:
        await bob.send("alice", "inform", "bye")
        await bob.aclose()

    async with asyncio.timeout(WAIT):
        await bob.wait()
    assert await inbox.holds(1) == ["bye"]
    assert not bob.connected


def test_what_cannot_be_a_timer_is_refused_at_once() -> None:
    agent = Agent("bob")
    for seconds in (0, -1, "1", None, True, float("inf"), float("nan"), 10**400, -(10**5_000)):
        with pytest.raises(InvalidArgument, match="seconds, more than 0"):
            agent.every(seconds, print)  # type: ignore[arg-type]
    for seconds in (-1, 10**400):
        with pytest.raises(InvalidArgument, match="0 or more"):
            agent.after(seconds, print)
    with pytest.raises(InvalidArgument, match="a timer without its seconds"):
        agent.every(print)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="is no function"):
        agent.every(1, "print")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="without parameters"):
        agent.every(1, lambda message: None)  # type: ignore[arg-type, misc]
