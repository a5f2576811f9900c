"""A script that changes while it runs: no message is lost, none is handled twice, and a broken change harms nothing."""

from __future__ import annotations

import asyncio
import logging
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from script_agents import BY_HAND, WAIT, Bridge, Bridged, Person, until

from gagent_grpc.bridge import behaviour
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.errors import ConfigurationError

QUIET = 60_000

ANSWERING = """
for event in events():
    msg = event.get("msg")
    if msg:
        send(msg["sender"], {answer})
    else:
        say(action="noop")
"""
HOLDING = """
for event in events():
    msg = event.get("msg")
    if msg:
        open("{marks}/taken", "w").close()
        while not os.path.exists("{marks}/go-on"):
            time.sleep(0.01)
        send(msg["sender"], "old: " + msg["content"])
    else:
        say(action="noop")
"""


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


def write(path: Path, text: str) -> None:
    path.write_text(text)


def answering(text: str) -> str:
    return BY_HAND + textwrap.dedent(ANSWERING).format(answer=f'"{text}: " + msg["content"]')


async def started_anew(running: Bridged, runs: int = 2) -> None:
    await until(lambda: running.agent.behaviour.runs >= runs and running.agent.behaviour.running)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "helper.py"


async def test_changed_script_answers_from_then_on(bridge: Bridge, alice: Person, script: Path) -> None:
    write(script, answering("old"))
    running = await bridge(script, reload=True, tick_ms=QUIET)
    assert await alice.ask("helper", "1") == "old: 1"
    write(script, answering("new"))
    await started_anew(running)
    assert await alice.ask("helper", "2") == "new: 2"
    entry = await alice.entry("helper")
    assert entry is not None
    assert entry.connected


async def test_changed_module_beside_the_script_counts(bridge: Bridge, alice: Person, script: Path) -> None:
    module = script.with_name("manners.py")
    write(module, "WORD = 'old'")
    write(script, BY_HAND + "from manners import WORD\n" + ANSWERING.format(answer="WORD"))
    running = await bridge(script, reload=True, tick_ms=QUIET)
    assert await alice.ask("helper") == "old"
    # Of another size: the cache of compiled modules knows a source by its second and its size.
    write(module, "WORD = 'newer'")
    await started_anew(running)
    assert await alice.ask("helper") == "newer"


async def test_event_under_way_is_answered_by_the_script_that_has_it(
    bridge: Bridge, alice: Person, script: Path, tmp_path: Path
) -> None:
    """One message is in its hands, more wait: each is answered once, the first one by the old script."""
    write(script, BY_HAND + HOLDING.format(marks=tmp_path))
    running = await bridge(script, reload=True, tick_ms=QUIET)
    for number in range(5):
        await alice.send("helper", str(number))
    await until((tmp_path / "taken").exists)
    write(script, answering("new"))
    await until(lambda: not running.agent.behaviour.running)
    (tmp_path / "go-on").touch()
    assert [(await alice.next()).content for _ in range(5)] == ["old: 0", "new: 1", "new: 2", "new: 3", "new: 4"]
    assert alice.inbox.empty()


async def test_event_that_is_not_answered_goes_to_the_new_script(
    bridge: Bridge, alice: Person, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behaviour, "RELOAD_WAIT_S", 0.1)
    write(script, BY_HAND + HOLDING.format(marks=tmp_path))
    await bridge(script, reload=True, tick_ms=QUIET, grace=0.1)
    for number in range(3):
        await alice.send("helper", str(number))
    await until((tmp_path / "taken").exists)
    write(script, answering("new"))
    assert [(await alice.next()).content for _ in range(3)] == ["new: 0", "new: 1", "new: 2"]
    assert alice.inbox.empty()


async def test_change_that_is_no_python_leaves_the_old_script_running(
    bridge: Bridge, alice: Person, script: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(script, answering("old"))
    running = await bridge(script, reload=True, tick_ms=QUIET)
    with caplog.at_level(logging.WARNING):
        write(script, "def (:\n")
        await until(lambda: "not started anew: helper.py, line 1: invalid syntax" in caplog.text)
    assert await alice.ask("helper", "1") == "old: 1"
    write(script, answering("new"))
    await started_anew(running)
    assert await alice.ask("helper", "2") == "new: 2"


async def test_mail_waits_for_the_next_change_when_one_does_not_start(
    bridge: Bridge, alice: Person, script: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(script, answering("old"))
    running = await bridge(script, reload=True, tick_ms=QUIET)
    with caplog.at_level(logging.WARNING):
        write(script, "import not_there\n")
        await until(lambda: "its mail waits for the next change" in caplog.text)
    assert "not_there" in caplog.text
    await alice.send("helper", "1")
    write(script, answering("new"))
    await started_anew(running)
    assert (await alice.next()).content == "new: 1"
    assert await alice.ask("helper", "2") == "new: 2"


async def test_script_that_dies_too_often_waits_for_a_change(
    bridge: Bridge, alice: Person, script: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(script, BY_HAND + "next(events())\nsay(action='noop')\nsys.exit(5)\n")
    with caplog.at_level(logging.WARNING):
        running = await bridge(script, reload=True, tick_ms=QUIET)
        await until(lambda: "its mail waits for a change" in caplog.text)
    write(script, answering("new"))
    await started_anew(running, 3)
    assert await alice.ask("helper", "1") == "new: 1"


async def test_agent_that_waits_for_a_change_stops_politely(
    bridge: Bridge, alice: Person, script: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(script, answering("old"))
    running = await bridge(script, reload=True, tick_ms=QUIET)
    with caplog.at_level(logging.WARNING):
        write(script, "import not_there\n")
        await until(lambda: "its mail waits for the next change" in caplog.text)
    await alice.send("helper", "1")
    assert await running.stop() == 0
    assert await alice.state("helper") != "gone"
    write(script, answering("later"))
    await bridge(script, tick_ms=QUIET)
    assert (await alice.next()).content == "later: 1"


def test_command_cannot_be_reloaded() -> None:
    options: dict[str, Any] = {"name": "helper", "command": ["cat"], "reload": True}
    with pytest.raises(ConfigurationError, match="a command has no file whose changes could count"):
        ScriptAgent(**options)
