"""What `gagent ps --watch` and `gagent df` decide without a bus: the live table, and arguments."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from gagent_grpc import AgentEntry, AgentEvent, AgentEventKind, AMSAgentDescription, LifeCycleState
from gagent_grpc.cli.agents import LiveAgents

Gagent = Callable[..., tuple[int, str, str]]
K, S = AgentEventKind, LifeCycleState


def event(kind: K, name: str = "", state: S = S.ACTIVE, *, cause: str = "") -> AgentEvent:
    agent = AgentEntry(AMSAgentDescription(f"{name}@local", "ops", state), state is not S.UNKNOWN, 0, False)
    return AgentEvent(kind, agent if name else None, None, cause, datetime.now(UTC), "")


def names(agents: LiveAgents) -> list[str]:
    return [row[0].partition("@")[0] for row in agents.rows()]


def test_table_follows_the_events() -> None:
    agents = LiveAgents(show_all=False)
    assert not agents.hear(event(K.PRESENT, "a"))
    assert not agents.hear(event(K.PRESENT, "away", S.UNKNOWN))
    assert agents.hear(event(K.SNAPSHOT_END))
    assert names(agents) == ["a"]
    assert agents.hear(event(K.BORN, "b"))
    agents.hear(event(K.STATE, "a", S.SUSPENDED, cause="suspended by ams"))
    assert names(agents) == ["a", "b"]
    row = agents.rows()[0]
    assert (row[1], row[3], row[4]) == ("suspended", "suspended by ams", "ops")
    agents.hear(event(K.DEAD, "a"))
    assert names(agents) == ["b"]


def test_new_snapshot_takes_the_place_of_all_that_was_known() -> None:
    agents = LiveAgents(show_all=True)
    for one in (event(K.PRESENT, "a"), event(K.PRESENT, "b"), event(K.SNAPSHOT_END)):
        agents.hear(one)
    assert not agents.hear(event(K.PRESENT, "b", S.UNKNOWN))
    agents.hear(event(K.SNAPSHOT_END))
    assert names(agents) == ["b"]
    agents.hear(event(K.SNAPSHOT_END))
    assert names(agents) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("df", "search", "x", "--property", "=v"), "expected NAME=VALUE, or NAME for any value"),
        (("df", "watch", "--property", ""), "expected NAME=VALUE, or NAME for any value"),
        (("df", "register", "alice", "x", "--property", "lang"), "'lang': expected NAME=VALUE"),
        (("df", "register", "alice"), "TYPE"),
        (("df", "register", "no blanks", "x"), "no blanks"),
    ],
)
def test_bad_arguments_are_named(gagent: Gagent, arguments: tuple[str, ...], error: str) -> None:
    code, out, said = gagent(*arguments)
    assert (code, out) == (2, "")
    assert error in said


def test_help_of_the_directory_lists_its_commands(gagent: Gagent) -> None:
    code, out, _ = gagent("df", "--help")
    found: Any = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line.split()]
    assert code == 0
    assert {"search", "watch", "register"} <= set(found)
