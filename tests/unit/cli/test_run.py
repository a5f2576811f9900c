"""`gagent run` around an agent that is none: who is waited for when it ends."""

from __future__ import annotations

import asyncio
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
