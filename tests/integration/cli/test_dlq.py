"""`gagent dlq` against a real bus: what it shows, puts back and removes, and how it says that it cannot."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from gagent_grpc import Operator

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place


@pytest.fixture
def dead(place: Place) -> Place:
    """A place whose bus keeps three dead letters to helper."""
    place.serve()
    assert place.gagent("send", "helper", "hi").returncode == 3
    address = place.env["GAGENT_BUS"]
    _register(address, "helper")
    for text in ("one", "\x1b[31mtwo", "three"):
        assert place.gagent("send", "helper", text).returncode == 0
    assert place.gagent("kill", "helper").returncode == 0
    return place


def _register(address: str, name: str) -> None:
    async def register() -> None:
        async with Operator(address) as operator:
            await operator.ams.register(name)

    asyncio.run(register())


def letters(place: Place, *arguments: str) -> list[dict[str, Any]]:
    return json.loads(place.gagent("dlq", "list", *arguments, "--json").stdout)


def test_letters_are_listed_for_people_and_for_programs(dead: Place) -> None:
    lines = dead.gagent("dlq", "list").stdout.splitlines()
    assert lines[0].split() == ["NUMBER", "RECEIVER", "SENDER", "REASON", "ATTEMPTS", "DIED", "ERROR"]
    assert len(lines) == 4
    assert re.fullmatch(
        r"1 +helper@local +cli-\w+@local +DEREGISTERED +0 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +terminated by the AMS",
        lines[1],
    )
    shown = dead.gagent("dlq", "list", "helper", "--content").stdout
    assert "CONTENT" in shown
    assert r"\x1b[31mtwo" in shown
    assert "\x1b" not in shown
    first = letters(dead)[0]
    assert (first["number"], first["receiver"], first["reason"], first["attempts"]) == (
        1,
        "helper@local",
        "DEREGISTERED",
        0,
    )
    assert first["died_at"] >= first["accepted_at"]
    assert "message" not in first
    assert [one["message"]["content"] for one in letters(dead, "--content")] == ["one", "\x1b[31mtwo", "three"]
    nothing = dead.gagent("dlq", "list", "nobody")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "No dead letter to nobody.\n")
    assert dead.gagent("dlq", "list", "helper@elsewhere").returncode == 2


def test_letter_whose_receiver_is_not_there_stays_and_comes_back_once_it_is(dead: Place, oracle: str) -> None:
    done = dead.gagent("dlq", "redrive", "1")
    assert (done.returncode, done.stdout) == (3, "redriven: 0\n")
    assert done.stderr == "1: NO_SUCH_AGENT. Nobody is registered\n"
    script = dead.script("helper.py", oracle)
    dead.start("run", script).said("helper@local")
    done = dead.gagent("dlq", "redrive", "1", "77", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["redriven"]) == (3, 1)
    assert [(one["number"], one["outcome"]) for one in told["refused"]] == [(77, "INVALID")]
    assert [one["number"] for one in letters(dead)] == [2, 3]
    done = dead.gagent("dlq", "redrive", "--receiver", "helper")
    assert (done.returncode, done.stdout, done.stderr) == (0, "redriven: 2\n", "")
    assert letters(dead) == []
    assert dead.gagent("dlq", "redrive", "--all").stdout == "redriven: 0\n"


def test_letters_are_purged_by_number_by_receiver_and_all(dead: Place) -> None:
    done = dead.gagent("dlq", "purge", "2", "9")
    assert (done.returncode, done.stdout) == (0, "purged: 1\n")
    assert done.stderr == "1 of these numbers have no dead letter. See them: gagent dlq list\n"
    assert dead.gagent("dlq", "purge", "--receiver", "nobody").stdout == "purged: 0\n"
    assert json.loads(dead.gagent("dlq", "purge", "--all", "--json").stdout) == {"purged": 2}
    nothing = dead.gagent("dlq", "list")
    assert (nothing.stdout, nothing.stderr) == ("", "No dead letter.\n")


@pytest.mark.parametrize("command", ["redrive", "purge"])
@pytest.mark.parametrize("chosen", [[], ["1", "--all"], ["--all", "--receiver", "bob"], ["0"], ["one"]])
def test_letters_have_to_be_named_in_one_way(place: Place, command: str, chosen: list[str]) -> None:
    done = place.gagent("dlq", command, *chosen)
    assert (done.returncode, done.stdout) == (2, "")
    assert "NUMBER" in done.stderr
    if chosen not in (["0"], ["one"]):
        assert "gagent dlq list" in done.stderr


def test_no_bus_is_told_with_the_way_out(place: Place) -> None:
    done = place.gagent("dlq", "list", "--bus", "127.0.0.1:1")
    assert done.returncode == 5
    assert "gagent serve" in done.stderr


def test_letters_survive_kill_9_of_the_bus_and_what_died_is_not_delivered(
    place: Place, recorder: str, eventually: Any
) -> None:
    bus = place.serve(store=f"sqlite:{place.folder}/bus.db")
    _register(bus.address, "helper")
    assert place.gagent("send", "helper", "lost").returncode == 0
    assert place.gagent("kill", "helper").returncode == 0
    bus.end(signal.SIGKILL)
    place.serve(store=f"sqlite:{place.folder}/bus.db")
    assert [one["message"]["content"] for one in letters(place, "--content")] == ["lost"]
    record = place.folder / "record.txt"
    script = place.script("helper.py", recorder)
    place.start("run", script, "--env", f"RECORD={record}").said("helper@local")
    assert place.gagent("send", "helper", "new").returncode == 0
    assert place.gagent("dlq", "redrive", "--all").stdout == "redriven: 1\n"
    assert place.gagent("send", "helper", "newer").returncode == 0
    eventually(lambda: record.exists() and record.read_text().count("\n") == 3)
    assert record.read_text().splitlines() == ["new", "lost", "newer"]


def test_drain_stops_the_bus_as_a_signal_does(place: Place, oracle: str) -> None:
    bus = place.serve()
    agent = place.start("run", place.script("oracle.py", oracle))
    agent.said("oracle@local")

    async def drain() -> None:
        async with Operator(bus.address) as operator:
            await operator.admin.drain()

    asyncio.run(drain())
    assert bus.end() == 0
    bus.said("stopping: asked by local")
    assert not (place.folder / "bus.port").exists()
    agent.end(signal.SIGINT)
