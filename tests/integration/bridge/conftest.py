"""Script agents on a bus, in both modes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from script_agents import (
    BY_HAND,
    LIBRARY,
    ROOT,
    Bridge,
    Bridged,
    Direct,
    DirectFactory,
    Launch,
    Person,
    PersonFactory,
    script_file,
    until,
)

from gagent_grpc import Agent
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.server.app import Bus


@pytest.fixture
async def person(bus: Bus) -> AsyncIterator[PersonFactory]:
    async with contextlib.AsyncExitStack() as stack:

        async def make(name: str) -> Person:
            made = Person(Agent(name, bus=bus.address))
            await stack.enter_async_context(made.agent)
            return made

        yield make


@pytest.fixture
async def alice(person: PersonFactory) -> Person:
    return await person("alice")


@pytest.fixture
async def bridge(bus: Bus, tmp_path: Path) -> AsyncIterator[Bridge]:
    """Return a factory: `await bridge(source, name="helper", by_hand=True)` runs a script under the bridge."""
    made: list[Bridged] = []

    async def start(
        source: str | Path, *, name: str = "helper", suffix: str = ".py", by_hand: bool = False, **options: Any
    ) -> Bridged:
        if by_hand:
            source = BY_HAND + textwrap.dedent(str(source))
        options.setdefault("bus", bus.address)
        agent = ScriptAgent(script_file(tmp_path, source, name, suffix), name=name, **options)
        made.append(Bridged(agent))
        await made[-1].ready()
        return made[-1]

    yield start
    for one in made:
        await one.aclose()


@pytest.fixture
async def direct(bus: Bus, alice: Person, tmp_path: Path) -> AsyncIterator[DirectFactory]:
    """Return a factory: `await direct(source, name="helper")` runs a script that connects by itself."""
    made: list[Direct] = []

    async def start(
        source: str | Path,
        *,
        name: str = "helper",
        services: str | None = None,
        env: dict[str, str] | None = None,
        args: tuple[str, ...] = (),
        wait: bool = True,
        **settings: Any,
    ) -> Direct:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GAGENT_")}
        environment.update(GAGENT_NAME=name, GAGENT_BUS=bus.address, PYTHONPATH=f"{LIBRARY}{os.pathsep}{ROOT}")
        environment.update({f"GAGENT_{key.upper()}": str(value) for key, value in settings.items()})
        if services is not None:
            environment["GAGENT_SERVICES"] = services
        environment.update(env or {})
        out, err = tmp_path / f"{name}-{len(made)}.out", tmp_path / f"{name}-{len(made)}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(script_file(tmp_path, source, name, ".py")),
                *args,
                env=environment,
                cwd=tmp_path,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        running = Direct(name, process, out, err)
        made.append(running)
        if wait:

            async def connected() -> bool:
                entry = await alice.entry(name)
                assert process.returncode is None, running.err
                return entry is not None and entry.connected

            await until(connected)
        return running

    yield start
    for one in made:
        await one.aclose()


@pytest.fixture(params=["bridge", "direct"])
def launch(request: pytest.FixtureRequest, bridge: Bridge, direct: DirectFactory) -> Launch:
    """Run a script in either mode; the test runs in both."""
    return bridge if request.param == "bridge" else direct
