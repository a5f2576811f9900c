"""The clock of a bus."""

from __future__ import annotations

import logging
import time

import pytest

from gagent_grpc.server.clock import SteadyClock


class System:
    """A machine whose clocks a test turns."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.up = 500.0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.up += seconds

    def clock(self) -> SteadyClock:
        return SteadyClock(system=lambda: self.now, elapsed=lambda: self.up)


def test_the_time_is_the_systems() -> None:
    assert abs(SteadyClock().time() - time.time()) < 1
    system = System()
    clock = system.clock()
    system.wait(5)
    assert clock.time() == system.now


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_jump_of_the_systems_clock_changes_nothing_and_is_told_once(
    jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    system = System()
    clock = system.clock()
    system.now += jump
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            system.wait(61)
            assert clock.time() == system.now - jump
    assert [record.message[:37] for record in caplog.records] == [f"the system's clock was set by {jump:+.0f} s"]


def test_small_corrections_are_followed() -> None:
    system = System()
    clock = system.clock()
    for _ in range(10):
        system.now += 1.5
        system.wait(61)
        assert clock.time() == system.now


def test_a_jump_that_is_taken_back_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    system = System()
    clock = system.clock()
    for jump in (3600, -3600, 3600):
        system.now += jump
        system.wait(61)
        clock.time()
    assert len(caplog.records) == 2
