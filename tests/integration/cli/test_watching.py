"""`gagent ps --watch`, `gagent df watch`, `register` and `search`: what they print line by line, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place, Program


def words(program: Program, text: str) -> list[str]:
    """Wait for a line with ``text`` and return its words but for the time."""
    return program.said(text).split()[1:]


def test_offer_is_watched_searched_and_withdrawn(place: Place) -> None:
    place.serve()
    lines = place.start("df", "watch", "sum", "--property", "lang")
    objects = place.start("df", "watch", "--json")
    for program in (lines, objects):
        program.said("Watching 127.0.0.1:")
    objects.said('"snapshot-end"')
    offers = place.start("df", "register", "alice", "sum", "draw", "--property", "lang=en", "--lease", "60")
    offers.said("alice@local offers sum, draw for 60 s at a time; Ctrl-C ends it")
    assert words(lines, "added") == ["added", "alice@local", "sum", "lang=en", "(session", "opened)"]
    added = json.loads(objects.said('"added"'))
    assert added["description"]["name"] == "alice@local"
    assert added["description"]["lease_s"] == 60
    assert added["cause"] == "session opened"

    found = place.gagent("df", "search", "sum", "--property", "lang=en", "--max", "1")
    assert found.stdout.splitlines()[1].split() == ["alice@local", "sum", "sum", "lang=en"]
    # Whoever only offers something takes nothing that is sent to it.
    assert place.gagent("send", "alice", "waits").stdout == "alice: ACCEPTED\n"
    (entry,) = json.loads(place.gagent("ps", "--json").stdout)
    assert (entry["name"], entry["mailbox_messages"]) == ("alice@local", 1)
    taken = place.gagent("df", "register", "alice", "sum")
    assert taken.returncode == 1
    assert "Stop it (gagent kill alice) or choose another name with gagent df register NAME" in taken.stderr

    assert offers.end(signal.SIGINT) == 0
    assert words(lines, "removed") == ["removed", "alice@local", "(agent", "left)"]
    assert json.loads(objects.said('"removed"'))["description"] == {"name": "alice@local"}
    assert [program.end(signal.SIGINT) for program in (lines, objects)] == [0, 0]


def test_agents_are_watched_as_lines_and_as_objects_also_over_a_restart(place: Place) -> None:
    bus = place.serve()
    address = bus.address
    lines, objects = place.start("ps", "--watch"), place.start("ps", "-w", "--json")
    for program in (lines, objects):
        program.said("Watching 127.0.0.1:")
    objects.said('"snapshot-end"')
    offers = place.start("df", "register", "alice", "sum")
    assert words(lines, "born") == ["born", "alice@local", "initiated", "(registered)"]
    assert words(lines, "session opened") == [
        *["state", "alice@local", "initiated", "->", "active"],
        *["(session", "opened)"],
    ]
    state = json.loads(objects.said('"active"'))
    assert {name: state[name] for name in ("event", "name", "state", "previous_state", "connected", "cause")} == {
        "event": "state",
        "name": "alice@local",
        "state": "active",
        "previous_state": "initiated",
        "connected": True,
        "cause": "session opened",
    }
    place.gagent("kill", "alice")
    offers.said("alice was ended by the AMS")
    assert offers.end() == 0
    assert words(lines, "dead") == ["dead", "alice@local", "active", "(terminated", "by", "the", "AMS)"]
    assert bus.end(signal.SIGTERM) == 0
    lines.said("it begins again")
    place.start("serve", "--listen", address, "--store", "memory").said("gagent: bus ")
    place.start("df", "register", "bob", "sum")
    lines.said("bob@local")
    assert [program.end(signal.SIGTERM) for program in (lines, objects)] == [0, 0]


def test_watching_on_a_terminal_is_a_live_table(place: Place, eventually: Callable[[Callable[[], bool]], None]) -> None:
    place.serve()
    controller, terminal = pty.openpty()
    env = {**place.env, "TERM": "xterm", "COLUMNS": "100"}
    watching = subprocess.Popen(
        [sys.executable, "-m", "gagent_grpc", "ps", "--watch"],
        cwd=place.folder,
        env=env,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    os.set_blocking(controller, False)
    shown = ""

    def shows(text: str) -> bool:
        nonlocal shown
        with contextlib.suppress(BlockingIOError, OSError):
            shown += os.read(controller, 65_536).decode()
        return text in shown

    try:
        eventually(lambda: shows("Ctrl-C ends it"))
        place.start("df", "register", "alice", "sum")
        eventually(lambda: shows("alice@local"))
        eventually(lambda: shows("session opened"))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(controller)


def test_watching_and_registering_without_a_bus_says_how_to_start_one(place: Place) -> None:
    for command in (("ps", "--watch"), ("df", "register", "alice", "sum")):
        done = place.gagent(*command, "--bus", "127.0.0.1:1")
        assert (done.returncode, done.stdout) == (5, "")
        assert "No bus at 127.0.0.1:1. Start one: gagent serve" in done.stderr
