"""What every test stands on: nothing may be left running or unheard."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator

import pytest


def pytest_configure() -> None:
    """Have the commands that tests start hear Ctrl-C: what a shell starts in the background is told to ignore it, and tells its
    children so, too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
async def _nothing_left(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Fail a test that leaves a task, or of which asyncio or gRPC logs an error that nobody handled."""
    before = asyncio.all_tasks()
    yield
    # A task that was just cancelled, or a call whose status is on its way, needs a moment to end.
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=5)
    assert not left, f"tasks are left behind: {left}"
    loud = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and record.name.partition(".")[0] in {"asyncio", "grpc"}
    ]
    assert not loud, f"errors that nobody handled: {loud}"
