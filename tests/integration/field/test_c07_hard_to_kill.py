"""C07: hard to kill. Whatever a script does about its end, it ends in time, and nothing of it is left.

What single scripts do about it is tested with the bridge; here three of them run at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pulse import pulse_check
from script_agents import BY_HAND, LIBRARY, Bridged, script_file
from waiting import WAIT, until

from gagent_grpc.bridge.supervisor import ScriptAgent
from tests.chaos.bus_process import GAGENT, ROOT, clean_environment

BOUND = 8.0
"""Seconds that the end of any script takes at most."""

SCRIPTS = {
    # Its child holds its pipes.
    "parent": BY_HAND
    + """
import subprocess
subprocess.Popen(["sleep", "600"])
for event in events():
    say(action="noop")
""",
    # Neither the stop event, nor the end of its input, nor SIGTERM, nor Ctrl-C.
    "stubborn": BY_HAND
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
for line in sys.stdin:
    say(action="noop")
while True:
    time.sleep(600)
""",
    "normal": """
import gagent_py

class Normal(gagent_py.Agent):
    def on_stop(self):
        with open(self.system_prompt, "a") as marker:
            marker.write("stopped")

Normal().run()
""",
}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that the normal script writes when it is told to stop."""
    return tmp_path / "marker.txt"


async def test_c07_each_of_three_scripts_stops_within_the_bound(bus: Any, tmp_path: Path, marker: Path) -> None:
    """Without SIGKILL the stubborn one is waited for for ever; without the group, `sleep` is left."""
    async with pulse_check(bus) as stack:
        running: list[Bridged] = []
        for name, source in SCRIPTS.items():
            script = script_file(tmp_path, source, name, ".py")
            running.append(Bridged(ScriptAgent(script, bus=bus.address, system_prompt=str(marker), tick_ms=0)))
            stack.push_async_callback(running[-1].aclose)
            await running[-1].ready()
        scripts = psutil.Process().children()
        assert len(scripts) == len(SCRIPTS)
        everything = psutil.Process().children(recursive=True)
        assert "sleep" in [one.name() for one in everything]
        began = time.monotonic()
        await asyncio.gather(*(one.stop() for one in running))
        assert time.monotonic() - began < BOUND
        assert stopped(marker)
        await nothing_left(everything)


async def test_c07_ctrl_c_ends_all_scripts_of_a_terminal(bus: Any, tmp_path: Path, marker: Path) -> None:
    """In the group of its bridge a script dies of Ctrl-C itself, before `on_stop`."""
    async with pulse_check(bus) as commands:
        runs: list[asyncio.subprocess.Process] = []
        group = 0
        for name, source in SCRIPTS.items():
            script = script_file(tmp_path, source, name, ".py")
            command = ("run", str(script), "--bus", bus.address, "--system-prompt", str(marker), "--tick-ms", "0")
            runs.append(await commands.enter_async_context(in_group(group, tmp_path, *command)))
            group = group or runs[0].pid
        for name, run in zip(SCRIPTS, runs, strict=True):
            async with asyncio.timeout(WAIT):
                assert run.stdout is not None
                assert f"{name}@local runs".encode() in await run.stdout.readline()
        everything = [one for run in runs for one in psutil.Process(run.pid).children(recursive=True)]
        assert len(everything) == len(SCRIPTS) + 1
        began = time.monotonic()
        # What a terminal does with Ctrl-C.
        os.killpg(group, signal.SIGINT)
        async with asyncio.timeout(WAIT):
            assert [await run.wait() for run in runs] == [0, 0, 0]
        assert time.monotonic() - began < BOUND
        assert stopped(marker)
        await nothing_left(everything)


async def test_c07_killed_bridge_leaves_nothing_of_its_scripts(bus: Any, tmp_path: Path, marker: Path) -> None:
    """Without a guard the stubborn script and the other one's `sleep` live on."""
    scripts = [script_file(tmp_path, source, name, ".py") for name, source in SCRIPTS.items()]
    async with contextlib.AsyncExitStack() as commands:
        runs = [
            await commands.enter_async_context(
                in_group(0, tmp_path, "run", str(script), "--bus", bus.address, "--system-prompt", str(marker))
            )
            for script in scripts
        ]
        for run in runs:
            async with asyncio.timeout(WAIT):
                assert run.stdout is not None
                assert b"@local runs" in await run.stdout.readline()
        everything = [one for run in runs for one in psutil.Process(run.pid).children(recursive=True)]
        assert len(everything) == len(SCRIPTS) + 1
        for run in runs:
            run.kill()
        began = time.monotonic()
        try:
            await nothing_left(everything)
        finally:
            for one in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        # 3 s as documented, and some for a machine that has other things to do.
        assert time.monotonic() - began < BOUND


def stopped(marker: Path) -> bool:
    """Whether the normal script was told to stop, once."""
    return marker.read_text() == "stopped"


@contextlib.asynccontextmanager
async def in_group(group: int, folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a `gagent` command in a process group, a new one for 0; nothing of it is left at the end."""
    process = await asyncio.create_subprocess_exec(
        *GAGENT,
        *arguments,
        cwd=folder,
        env=clean_environment(folder) | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(LIBRARY)])},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        process_group=group,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
            process.kill()
        assert process.stdout is not None
        await process.wait()
        await process.stdout.read()


async def nothing_left(processes: list[psutil.Process]) -> None:
    """Wait until these processes, and all others of their groups, are gone."""
    await until(lambda: not any(_is_there(one) for one in processes))
    # Each script has a group of its own, of its number.
    groups = {one.pid for one in processes}
    assert not [one for one in psutil.process_iter() if _group_of(one) in groups]


def _is_there(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        # An orphan is reaped by whoever adopts it, which is nobody's promise here.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _group_of(process: psutil.Process) -> int:
    with contextlib.suppress(OSError, psutil.NoSuchProcess):
        if _is_there(process):
            return os.getpgid(process.pid)
    return 0
