"""`gagent run --all`: the agents of `gagent.toml`, as lines, as JSON, and as a table at a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

FLEET = """
[[agents]]
script = "oracle.py"
count = 2
services = ["answering"]
prompt = "Be brief."
max_tokens = 7
env = { COLOUR = "green" }

[[agents]]
name = "broken"
command = ["no-such-program"]
"""


def fleet(place: Place, oracle: str, text: str = FLEET) -> None:
    place.serve()
    place.script("oracle.py", oracle)
    (place.folder / "gagent.toml").write_text(text)


def test_agents_of_the_file_run_beside_one_that_fails(place: Place, oracle: str) -> None:
    fleet(place, oracle)
    running = place.start("run", "--all")
    running.said("oracle-1: active, pid ")
    running.said("oracle-2: active, pid ")
    running.said("broken: failed: broken: cannot start 'no-such-program'")
    assert place.gagent("request", "oracle-2", "colour").stdout == "green\n"
    start = json.loads(place.gagent("request", "oracle-1", "start").stdout)
    assert (start["system_prompt"], start["max_tokens"], start["model"]) == ("Be brief.", 7, "gpt-4o-mini")
    found = json.loads(place.gagent("df", "search", "answering", "--json").stdout)
    assert {one["name"] for one in found} == {"oracle-1@local", "oracle-2@local"}
    assert running.end(signal.SIGINT) == 0
    assert [line.partition(",")[0] for line in running.lines if "stop" in line][-4:] == [
        "oracle-2: stopping",
        "oracle-2: stopped",
        "oracle-1: stopping",
        "oracle-1: stopped",
    ]


def test_changes_are_json_for_programs(place: Place, oracle: str) -> None:
    fleet(place, oracle)
    running = place.start("run", "--all", "--json")
    running.said('"agent": "oracle-1", "state": "active"')
    running.said('"agent": "oracle-2", "state": "active"')
    running.said('"agent": "broken", "state": "failed"')
    assert running.end(signal.SIGTERM) == 0
    told = [json.loads(line) for line in running.lines if line.startswith("{")]
    assert [(one["agent"], one["state"]) for one in told if one["agent"] == "oracle-1"] == [
        ("oracle-1", "starting"),
        ("oracle-1", "active"),
        ("oracle-1", "stopping"),
        ("oracle-1", "stopped"),
    ]
    assert all(set(one) == {"agent", "state", "script", "pid", "restarts", "detail"} for one in told)


def test_people_at_a_terminal_see_a_table(place: Place, oracle: str) -> None:
    fleet(place, oracle)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gagent_grpc", "run", "--all"],
        cwd=place.folder,
        env=place.env | {"TERM": "xterm", "COLUMNS": "200", "LINES": "50"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = bytearray()
    changed = threading.Condition()

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                with changed:
                    seen.extend(data)
                    changed.notify_all()
        except OSError:
            # A terminal that nobody holds any more.
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with changed:
            assert changed.wait_for(lambda: b"RESTARTS" in seen and seen.count(b"active") >= 2, 30), bytes(seen)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        reader.join(30)
        os.close(ours)
    last = bytes(seen).decode().rsplit("RESTARTS", 1)[1]
    assert last.count("stopped") == 2
    assert "failed: broken: cannot start" in last
    assert "Traceback" not in seen.decode()


def test_when_all_fail_it_ends_with_the_first_error(place: Place) -> None:
    place.serve()
    (place.folder / "gagent.toml").write_text(
        "[[agents]]\nname = 'a'\ncommand = ['no-such-program']\n[[agents]]\nname = 'b'\ncommand = ['nor-this']\n"
    )
    done = place.gagent("run", "--all")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("a: cannot start 'no-such-program'")
    assert "Traceback" not in done.stderr


def test_without_a_bus_it_says_how_to_start_one(place: Place, oracle: str) -> None:
    place.script("oracle.py", oracle)
    (place.folder / "gagent.toml").write_text("[[agents]]\nscript = 'oracle.py'\n")
    done = place.gagent("run", "--all", "--bus", "127.0.0.1:1")
    assert done.returncode == 5
    assert "gagent serve" in done.stderr


def test_options_of_a_script_reach_it(place: Place) -> None:
    """The script says what it may use, dies once too often, and is given up."""
    place.serve()
    script = place.script(
        "mortal.py",
        """\
        import json, os, resource, sys
        print(resource.getrlimit(resource.RLIMIT_DATA)[0], os.environ.get("OTHER"), os.environ.get("MODEL"), file=sys.stderr)
        sys.stdin.readline()
        print('{"action": "noop"}', flush=True)
        sys.exit(4)
        """,
    )
    options = ("--memory-mb", "500", "--inherit-env", "MOD*", "--restarts", "2", "--restart-period", "60")
    running = place.start("run", script, *options, OTHER="x", MODEL="y")
    assert running.end() == 1
    assert sum("500000000 None y" in line for line in running.lines if "stderr:" in line) == 3
    assert "exit code 4" in "\n".join(running.lines)
