"""What the SDK logs: through `logging`, never to stdout, and never what a message says."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import subprocess
from typing import Any

import pytest

from gagent_grpc import ClientLimits, Received

pytestmark = pytest.mark.timeout(30)

_SECRET = "the content of a message"

_AGENT = """
import asyncio, sys
from gagent_grpc import Agent, ClientLimits

agent = Agent("bob", bus=sys.argv[1], limits=ClientLimits(retry_delay=0.01))
done = asyncio.Event()

@agent.on()
async def fail(message):
    words = message.content
    if message.attempt == 3:
        done.set()
        return
    raise ValueError("not today")

async def main():
    async with agent:
        await agent.send("bob", "inform", sys.argv[2])
        await done.wait()

asyncio.run(main())
"""


async def test_an_agent_without_logging_set_up_says_its_failures_on_stderr_alone(bus: Any) -> None:
    pipe = subprocess.PIPE
    child = await subprocess.create_subprocess_exec(
        sys.executable, "-c", _AGENT, bus.address, _SECRET, stdout=pipe, stderr=pipe
    )
    said, complained = (text.decode() for text in await child.communicate())
    assert (child.returncode, said) == (0, "")
    assert complained.count("Traceback") == 1
    assert "in fail\n" in complained
    assert "\nValueError: not today" in complained
    assert _SECRET not in complained


async def test_a_failing_handler_has_a_traceback_once_and_a_line_for_each_further_attempt(
    agents: Any, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()

    async def fail(message: Received) -> None:
        words = message.content
        if message.attempt == 4:
            done.set()
        else:
            raise ValueError(f"not\ntoday, with {len(words)} characters")

    await agents("bob", fail, limits=ClientLimits(retry_delay=0.01))
    await (await agents("alice")).send("bob", "inform", _SECRET)
    await done.wait()
    records = [one for one in caplog.records if one.name.startswith("gagent_grpc.client")]
    assert [one.levelno for one in records] == [logging.ERROR] * 3
    assert [one.exc_info is not None for one in records] == [True, False, False]
    assert records[1].getMessage() == (
        "bob: the handler of a message of alice failed (attempt 2, again in 0.02 s): ValueError: not today, with 24 characters"
    )
    assert _SECRET not in caplog.text
