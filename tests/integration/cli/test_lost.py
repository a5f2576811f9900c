"""`gagent request` to an agent that is killed while it thinks: a failure, and not the whole time-out."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from gagent_grpc import BusLimits
from gagent_grpc.server.app import Bus

pytestmark = pytest.mark.timeout(60)

GRACE = 1.0
# Leaves a trace of what it was asked, and thinks.
THINKER = """
import json, os, sys, time

for line in sys.stdin:
    if json.loads(line)["event"] == "message":
        open("asked", "w").close()
        time.sleep(3600)
    print('{"action": "noop"}', flush=True)
"""


@pytest.fixture
async def bus(buses: Any) -> Bus:
    made: Bus = await buses(limits=BusLimits(resume_grace=GRACE, drain_grace=1.0))
    return made


@pytest.fixture
async def thinker(bus: Bus, tmp_path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """An agent under `gagent run` that thinks for ever."""
    (tmp_path / "thinker.py").write_text(THINKER)
    process = await gagent(bus, tmp_path, "run", "thinker.py")
    await until(lambda: (record := bus.platform.ams.find("thinker")) is not None and record.session is not None)
    yield process
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
    await process.communicate()


async def gagent(bus: Bus, folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gagent_grpc", *arguments, "--bus", bus.address),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_request_to_an_agent_that_is_killed_fails_in_time(
    bus: Bus, thinker: asyncio.subprocess.Process, tmp_path: Path
) -> None:
    asking = await gagent(bus, tmp_path, "request", "thinker", "hello", "--json")
    waiting = await gagent(bus, tmp_path, "request", "thinker", "hello", "--on-receiver-lost", "wait", "--timeout", "8")
    await until((tmp_path / "asked").exists)
    await until(lambda: bus.platform.post.debts.count == 2)
    thinker.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    out, err = await asking.communicate()
    assert time.monotonic() - killed < GRACE + 2
    why = f"thinker@local was lost before it answered: no session for {GRACE:g} s"
    assert asking.returncode == 1
    assert json.loads(out) == {"performative": "failure", "sender": "ams", "content": why}
    assert err.decode().rstrip() == f"ams: failure {why}"
    out, err = await waiting.communicate()
    assert (waiting.returncode, out) == (4, b"")
    assert b"thinker is not connected (unknown); the request waits in its mailbox" in err


async def test_another_word_for_on_receiver_lost_is_a_wrong_use(bus: Bus, tmp_path: Path) -> None:
    done = await gagent(bus, tmp_path, "send", "thinker", "hello", "--on-receiver-lost", "never")
    _, err = await done.communicate()
    assert done.returncode == 2
    assert b"'never'; expected fail or wait" in err
