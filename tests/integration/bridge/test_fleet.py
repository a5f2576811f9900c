"""Several script agents together: what is told of them, one that fails among others, and the order of their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from script_agents import BY_HAND, WAIT, Person, script_file, until

from gagent_grpc.bridge.behaviour import RestartPolicy
from gagent_grpc.bridge.fleet import Fleet, MemberState, MemberStatus
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.errors import BusUnreachable, ConfigurationError, ScriptError
from gagent_grpc.server.app import Bus

WORKER = (
    BY_HAND
    + """
import os
for line in sys.stdin.buffer:
    event = json.loads(line)
    msg = event.get("msg")
    if event["event"] == "stop":
        with open(os.environ["ENDS"], "a") as ends:
            ends.write(event.get("name", "") + os.environ["ME"] + "\\n")
        break
    if msg and msg["content"] == "die":
        os._exit(3)
    elif msg and msg["content"] in ("suspend", "delete", "leave"):
        say(action={"leave": "noop"}.get(msg["content"], msg["content"]))
        if msg["content"] == "leave":
            break
    elif msg:
        send(msg["sender"], os.environ["ME"])
    else:
        say(action="noop")
"""
)


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


class Watched:
    """A fleet that runs, and everything that was told of its agents."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.told: list[MemberStatus] = []
        self.running = asyncio.create_task(fleet.run())
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while changes := await self.fleet.take_changes():
            self.told += changes

    def states(self, name: str) -> list[str]:
        return [status.state.value for status in self.told if status.name == name]

    async def are(self, **states: str) -> None:
        await until(lambda: {one.name: one.state.value for one in self.fleet.statuses} == states)

    async def stop(self) -> None:
        """Stop the fleet, and hear everything that is told of it."""
        self.running.cancel()
        await asyncio.wait({self.running})
        await self._reading

    async def aclose(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, self._reading, return_exceptions=True)


Fleets = Any


@pytest.fixture
async def fleets(bus: Bus, tmp_path: Path) -> AsyncIterator[Fleets]:
    """Return a factory: `fleets("a", "b", c={...})` runs a fleet of workers, some with options of their own."""
    script = script_file(tmp_path, WORKER, "worker", ".py")
    running: list[Watched] = []

    def start(*names: str, **options: dict[str, Any]) -> Watched:
        agents = []
        for name in (*names, *options):
            usual = {"bus": bus.address, "tick_ms": 0, "env": {"ME": name, "ENDS": str(tmp_path / "ends")}}
            agents.append(ScriptAgent(**{"script": script, "name": name} | usual | options.get(name, {})))
        running.append(Watched(Fleet(agents)))
        return running[-1]

    yield start
    for one in running:
        await one.aclose()
    assert psutil.Process().children() == []


def ends(folder: Path) -> list[str]:
    return (folder / "ends").read_text().split()


async def test_agents_come_in_their_order_and_go_in_the_other_one(
    fleets: Fleets, alice: Person, tmp_path: Path
) -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    fleet = fleets(*names)
    assert [status.name for status in fleet.fleet.statuses] == names
    await fleet.are(**dict.fromkeys(names, "active"))
    assert [await alice.ask(name) for name in names] == names
    assert all(psutil.pid_exists(status.pid) for status in fleet.fleet.statuses)
    await fleet.stop()
    assert fleet.running.cancelled()
    assert ends(tmp_path) == names[::-1]
    assert [status.name for status in fleet.told if status.state is MemberState.STARTING] == names
    assert fleet.states("c") == ["starting", "active", "stopping", "stopped"]
    assert [await alice.state(name) for name in names] == ["unknown"] * 6


async def test_agent_that_fails_stops_no_other_one(fleets: Fleets, alice: Person, tmp_path: Path) -> None:
    bad = script_file(tmp_path, "import not_there", "bad", ".py")
    fleet = fleets("a", bad={"script": bad}, b={})
    await fleet.are(a="active", bad="failed", b="active")
    (failed,) = [status for status in fleet.told if status.name == "bad" and status.state.is_end]
    assert "exit code 1" in failed.detail
    assert "not_there" in failed.detail
    assert failed.pid is None
    assert await alice.ask("b") == "b"
    await fleet.stop()
    assert fleet.running.cancelled()


async def test_fleet_of_which_all_failed_tells_the_first_error(fleets: Fleets, tmp_path: Path) -> None:
    bad = script_file(tmp_path, "import not_there", "bad", ".py")
    fleet = fleets(one={"script": bad}, two={"script": bad})
    with pytest.raises(ScriptError, match="one: the script ended"):
        await fleet.running


async def test_fleet_without_a_bus_is_told_with_the_way_out(fleets: Fleets) -> None:
    fleet = fleets(a={"bus": "127.0.0.1:1"}, b={"bus": "127.0.0.1:1"})
    with pytest.raises(BusUnreachable, match="gagent serve"):
        await fleet.running


async def test_fleet_ends_when_all_of_it_has_ended_well(fleets: Fleets, alice: Person) -> None:
    fleet = fleets("a", "b", "c")
    await fleet.are(a="active", b="active", c="active")
    await alice.send("a", "leave")
    await alice.send("b", "delete")
    await alice.agent.ams.terminate("c")
    await fleet.running
    assert {status.name: status.state.value for status in fleet.fleet.statuses} == {
        "a": "stopped",
        "b": "deleted",
        "c": "terminated",
    }


async def test_restarts_and_suspensions_are_told(fleets: Fleets, alice: Person) -> None:
    fleet = fleets(a={"restart": RestartPolicy(3, 60.0)})
    await fleet.are(a="active")
    await alice.send("a", "die")
    assert (await alice.next()).performative.text == "failure"
    await until(lambda: fleet.fleet.statuses[0].restarts == 1)
    await fleet.are(a="active")
    await alice.send("a", "suspend")
    await fleet.are(a="suspended")
    await alice.agent.ams.resume("a")
    await fleet.are(a="active")
    await fleet.stop()
    assert fleet.states("a") == [
        "starting",
        "active",
        "restarting",
        "active",
        "suspended",
        "active",
        "stopping",
        "stopped",
    ]


async def test_agent_that_hangs_holds_back_the_others_for_its_turn_only(
    fleets: Fleets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gagent_grpc.bridge.fleet.STOP_TURN_S", 0.05)
    hanging = script_file(tmp_path, BY_HAND + "for line in sys.stdin: say(action='noop')\ntime.sleep(600)", "h", ".py")
    fleet = fleets("a", "b", h={"script": hanging, "grace": 0.5})
    await fleet.are(a="active", b="active", h="active")
    await fleet.stop()
    assert ends(tmp_path) == ["b", "a"]
    order = [status.name for status in fleet.told if status.state is MemberState.STOPPED]
    assert order == ["b", "a", "h"]


async def test_kill_leaves_nothing(fleets: Fleets, tmp_path: Path) -> None:
    parent = script_file(
        tmp_path,
        BY_HAND + "import subprocess\nsubprocess.Popen(['sleep', '600'])\nfor event in events(): say(action='noop')",
        "parent",
        ".py",
    )
    fleet = fleets(parent={"script": parent})
    await fleet.are(parent="active")
    everything = psutil.Process().children(recursive=True)
    assert "sleep" in [one.name() for one in everything]
    fleet.fleet.kill()
    await until(lambda: not any(_is_there(one) for one in everything))


def _is_there(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_agents_that_make_no_fleet_are_told() -> None:
    with pytest.raises(ConfigurationError, match="the fleet has no agents"):
        Fleet([])
    one = ScriptAgent(name="a", command=[os.devnull])
    two = ScriptAgent(name="a", command=[os.devnull])
    with pytest.raises(ConfigurationError, match="two agents are named 'a'"):
        Fleet([one, two])
