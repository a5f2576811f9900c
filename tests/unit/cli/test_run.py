"""`gagent run` before there is an agent, and around one that is none: usage, and who is waited for when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gagent_grpc.cli import run


async def test_an_agent_is_ended_politely_when_nobody_reads_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, ended = asyncio.Event(), False

    async def live() -> Any:
        nonlocal ended
        try:
            ready.set()
            await asyncio.Event().wait()
        finally:
            # As long as a farewell takes.
            await asyncio.sleep(0)
            ended = True

    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(run.typer, "echo", closed)
    agent: Any = SimpleNamespace(run=live, ready=ready, name="helper", agent=SimpleNamespace(aid="helper@local"))
    before = asyncio.all_tasks()
    with pytest.raises(BrokenPipeError):
        await run._run(agent, "helper.py")
    assert ended
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("run", "expected a script, a command behind --"),
        ("run --all", "gagent.toml: no [[agents]] table"),
        ("run --all worker.py", "belongs into the [[agents]] tables"),
        ("run --all --memory-mb 100", "belongs into the [[agents]] tables"),
        ("run --all --name a", "belongs into the [[agents]] tables"),
        ("run --all -- cat", "a command and --all are both given"),
        ("run worker.py --json", "only with --all"),
        ("run _worker.py", "Give the agent another one: --name NAME"),
        ("run worker.py --answer-timeout 0", "expected more than 0"),
        ("run worker.py --answer-timeout inf", "expected more than 0"),
        ("run worker.py --restarts -1", "expected 0 or more"),
        ("run worker.py --restart-period 0", "expected more than 0"),
        ("run worker.py --memory-mb 0", "memory_mb is 0; expected a whole number of at least 1"),
        ("run worker.py --open-files 3", "open_files is 3; expected a whole number of at least 8"),
        ("run --name a --reload -- cat", "a command has no file whose changes could count"),
    ],
)
def test_what_makes_no_agent_is_a_usage_error(gagent: Callable[..., Any], arguments: str, told: str) -> None:
    Path("worker.py").touch()
    Path("_worker.py").touch()
    code, out, error = gagent(*arguments.split())
    assert (code, out) == (2, "")
    assert told in " ".join(error.split())
