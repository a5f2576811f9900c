"""How log lines look where they go."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import logging
from gagent_grpc.cli.logs import set_up_logs

set_up_logs()
logging.getLogger("bridge").warning("something happened")
"""


def logged(**env: str) -> str:
    """Return what a program logs to a terminal."""
    terminal, its_other_end = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "TERM"}}
    subprocess.run([sys.executable, "-c", PROGRAM], env={**plain, **env}, stderr=its_other_end, timeout=60, check=True)
    os.close(its_other_end)
    try:
        return os.read(terminal, 10_000).decode()
    finally:
        os.close(terminal)


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[" in logged(TERM="xterm")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_who_wants_no_colours_gets_none(env: dict[str, str]) -> None:
    text = logged(**env)
    assert "\x1b" not in text
    assert "something happened" in text


def test_a_pipe_gets_no_colours() -> None:
    env = {**os.environ, "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, timeout=60, check=True)
    assert b"\x1b" not in done.stderr
    assert done.stderr.count(b"\n") == 1


FAILING = """
import logging
from gagent_grpc.cli.logs import set_up_logs

set_up_logs("json")
try:
    content = "the content of a message"
    raise ValueError("not today")
except ValueError:
    logging.getLogger("agent").exception("a handler failed")
"""


def test_a_traceback_in_json_shows_no_variables_which_may_hold_contents() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, timeout=60, check=True)
    (line,) = done.stderr.decode().splitlines()
    made = json.loads(line)
    assert (made["event"], made["exception"][0]["exc_value"]) == ("a handler failed", "not today")
    assert "the content of a message" not in line
