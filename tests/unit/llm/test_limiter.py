"""The pace at which an endpoint is called, against endpoints with limits and a clock of the test's own."""

from __future__ import annotations

import heapq
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc import InvalidArgument
from gagent_grpc.llm.limiter import Pace


def run(
    calls: int, limit: int, *, period: float = 1.0, pause: float | None = 2.0, way: float = 0.01
) -> tuple[float, int]:
    """Call an endpoint that takes ``limit`` calls in any ``period``; return when all were taken, and how often it refused."""
    pace = Pace()
    now, refused, done = 0.0, 0, 0
    waiting, last = calls, 0.0
    taken: deque[float] = deque()
    # (when the answer is there, when the call began, whether it was taken)
    on_the_way: list[tuple[float, float, bool]] = []
    while done < calls:
        ready = now + pace.wait(now)
        if waiting and (not on_the_way or ready <= on_the_way[0][0]):
            now = ready
            pace.begin(now)
            waiting -= 1
            while taken and taken[0] <= now - period:
                taken.popleft()
            is_taken = len(taken) < limit
            if is_taken:
                taken.append(now)
            heapq.heappush(on_the_way, (now + way, now, is_taken))
            continue
        now, began, is_taken = heapq.heappop(on_the_way)
        if is_taken:
            done, last = done + 1, now
            pace.succeeded(now)
        else:
            refused, waiting = refused + 1, waiting + 1
            pace.refused(now, began, pause)
        assert refused < 100 * calls
    return last, refused


@pytest.mark.parametrize("pause", [1.0, 2.0, None])
@pytest.mark.parametrize("way", [0.0, 0.01, 0.3])
def test_c22_sixty_calls_of_five_a_second(pause: float | None, way: float) -> None:
    seconds, refused = run(60, 5, pause=pause, way=way)
    # Twelve seconds are what the limit itself takes.
    assert seconds < 30
    assert refused < 0.2 * (60 + refused)


def test_an_endpoint_without_a_limit_is_hardly_slowed_down() -> None:
    seconds, refused = run(1_000, 1_000_000, way=2.0)
    assert refused == 0
    assert seconds < 2 * 2.0 + 6


@settings(deadline=None, max_examples=60)
@given(
    calls=st.integers(1, 120),
    limit=st.integers(1, 50),
    pause=st.one_of(st.none(), st.floats(0.1, 5.0)),
    way=st.floats(0.0, 0.5),
)
def test_every_limit_is_lived_with(calls: int, limit: int, pause: float | None, way: float) -> None:
    seconds, refused = run(calls, limit, pause=pause, way=way)
    # What is on the way when the first refusal comes is refused as well.
    assert refused <= 25 + 0.2 * calls
    # The first refusals may cost a few pauses; from then on it goes at no less than a fifth of what is allowed.
    assert seconds <= 5 * (calls / limit) + 15 + 10 * (pause or 1.0)


def test_nobody_calls_before_the_time_that_the_endpoint_asked_for() -> None:
    pace = Pace()
    pace.begin(0.0)
    pace.refused(0.1, 0.0, 30.0)
    assert pace.wait(0.1) >= 30.0 - 1e-9
    assert pace.wait(40.0) == 0.0


def test_refusals_of_one_moment_count_once() -> None:
    pace = Pace()
    for _ in range(10):
        pace.begin(0.0)
    pace.refused(0.5, 0.0, 1.0)
    once = pace.rate
    for _ in range(9):
        pace.refused(0.5, 0.0, 1.0)
    assert pace.rate == once


def test_a_rate_that_is_known_is_never_exceeded() -> None:
    pace, now, began = Pace(5.0), 0.0, []
    for _ in range(21):
        now += pace.wait(now)
        pace.begin(now)
        began.append(now)
        pace.succeeded(now)
    assert began[-1] - began[0] == pytest.approx(20 / 5.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(InvalidArgument, match="requests per second"):
        Pace(rate)
