"""What a process that is nothing but a bus sets for itself, and what the server takes from it."""

from __future__ import annotations

import logging
import resource

import pytest

from gagent_grpc.config import BusLimits
from gagent_grpc.server.options import server_options
from gagent_grpc.server.process import raise_descriptor_limit


class Limits:
    """Stands in for the limits of the process, of which a test must not change the real ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, *, most: int = 1 << 20) -> None:
        self.now = (soft, hard)
        self._most = most
        monkeypatch.setattr(resource, "getrlimit", lambda _: self.now)
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, _: int, limits: tuple[int, int]) -> None:
        if limits[0] == resource.RLIM_INFINITY or limits[0] > self._most:
            raise ValueError("not allowed to raise maximum limit")
        self.now = limits


def test_soft_limit_of_descriptors_is_raised_to_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    limits = Limits(monkeypatch, 1_024, 65_536)
    assert raise_descriptor_limit() == 65_536
    assert limits.now == (65_536, 65_536)
    assert "65536" in caplog.text


@pytest.mark.parametrize(("hard", "expected"), [(resource.RLIM_INFINITY, 10_240), (1 << 30, 10_240)])
def test_hard_limit_that_the_system_does_not_grant_is_no_error(
    monkeypatch: pytest.MonkeyPatch, hard: int, expected: int
) -> None:
    limits = Limits(monkeypatch, 256, hard, most=10_240)
    assert raise_descriptor_limit() == expected
    assert limits.now == (expected, hard)


def test_limit_is_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, 20_000, resource.RLIM_INFINITY, most=10_240)
    assert raise_descriptor_limit() == 20_000
    assert limits.now[0] == 20_000


@pytest.mark.parametrize(
    ("soft", "connections"), [(1_024, 924), (1 << 20, 11_000), (resource.RLIM_INFINITY, 11_000), (64, 32)]
)
def test_server_takes_no_more_connections_than_there_are_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, connections: int
) -> None:
    Limits(monkeypatch, soft, resource.RLIM_INFINITY)
    assert dict(server_options(BusLimits()))["grpc.max_allowed_incoming_connections"] == connections
