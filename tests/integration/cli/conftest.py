"""The real command in processes of its own, and what they leave behind: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WAIT = 30.0
"""Seconds after which something that should have come will not come any more."""

# A script that knows nothing but the JSON lines. The content of a request says how it answers.
ORACLE = """
import json, os, sys

ANSWERS = {
    "refuse": {"performative": "refuse", "content": "not today"},
    "fail": {"performative": "failure", "content": "it broke"},
    "what": {"performative": "not-understood", "content": "what?"},
    "bytes": {"performative": "inform", "content_base64": "AAECAw=="},
    "agree": {"performative": "agree"},
    "colour": {"performative": "inform", "content": os.environ.get("COLOUR", "none")},
}

for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "stop":
        break
    msg = event.get("msg", {})
    text = msg.get("content")
    if event["event"] == "start":
        given = event
    if event["event"] != "message" or text == "mute" or msg["performative"] != "request":
        answer = {"action": "noop"}
    elif text == "start":
        answer = {"action": "send", "to": msg["sender"], "msg": {"performative": "inform", "content": json.dumps(given)}}
    elif text == "parameters":
        answer = {"action": "send", "to": msg["sender"], "msg": {"performative": "inform", "content": json.dumps(msg)}}
    else:
        said = ANSWERS.get(text, {"performative": "inform", "content": f"echo: {text}"})
        answer = {"action": "send", "to": msg["sender"], "msg": said}
    print(json.dumps(answer), flush=True)
"""

# Writes down what it is sent, message after message, as soon as it gets it.
RECORDER = """
import json, os, sys

for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "stop":
        break
    if event["event"] == "message":
        with open(os.environ["RECORD"], "a") as record:
            record.write(event["msg"]["content"] + "\\n")
    print('{"action": "noop"}', flush=True)
"""


class Program:
    """A `gagent` command that runs beside the test."""

    def __init__(self, arguments: tuple[str, ...], *, folder: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gagent_grpc", *arguments],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.arguments = arguments
        self.address = ""
        self.lines: list[str] = []
        """What it wrote, to stdout and stderr, as it came."""
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(one,)) for one in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: object) -> None:
        for line in stream:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        stream.close()

    def said(self, text: str) -> str:
        """Wait for a line with ``text`` in it, and return it."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, WAIT), f"no {text!r} in:\n" + "\n".join(
                self.lines
            )
            return found()

    def end(self, *signals: signal.Signals) -> int:
        """Send signals, wait for the end, and return the exit code."""
        for one in signals:
            self.process.send_signal(one)
        code = self.process.wait(WAIT)
        for reader in self._readers:
            reader.join(WAIT)
        return code


class Place:
    """A folder and an environment in which commands run, and the programs that were started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Program] = []
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GAGENT_")}
        self.env["XDG_STATE_HOME"] = str(folder / "state")
        self.env["PYTHONWARNINGS"] = "error"
        # Without a width of its own, help text would break where the terminal of the tester does.
        self.env.pop("COLUMNS", None)

    def gagent(self, *arguments: str, text: str | bytes | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "gagent_grpc", *arguments],
            cwd=self.folder,
            env={**self.env, **env},
            input=text or "",
            capture_output=True,
            text=not isinstance(text, bytes),
            timeout=WAIT,
            check=False,
        )

    def start(self, *arguments: str, **env: str) -> Program:
        """Start a command that goes on."""
        program = Program(arguments, folder=self.folder, env={**self.env, **env})
        self.programs.append(program)
        return program

    def serve(self, *arguments: str, store: str = "memory") -> Program:
        """Start a bus on a free port and wait until it listens; commands of this place use it from now on."""
        port_file = self.folder / "bus.port"
        port_file.unlink(missing_ok=True)
        program = self.start(
            "serve", "--listen", "127.0.0.1:0", "--store", store, "--port-file", str(port_file), *arguments
        )
        program.said("gagent: bus ")
        self.env["GAGENT_BUS"] = program.address = port_file.read_text().strip()
        return program

    def script(self, name: str, text: str) -> str:
        """Write a script; return its path."""
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def clear(self) -> None:
        """End what is left, the newest first."""
        for program in reversed(self.programs):
            if program.process.poll() is None:
                program.end(signal.SIGTERM)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place of its own for one test."""
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.clear()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with a bus and the agent `oracle`, shared by tests that leave both as they are."""
    made = Place(tmp_path_factory.mktemp("town"))
    try:
        made.serve()
        script = made.script("oracle.py", ORACLE)
        services = ("--service", "oracle", "--service", "echo")
        made.start("run", script, *services, "--env", "COLOUR=blue", "--tick-ms", "60000").said("oracle@local")
        yield made
    finally:
        made.clear()


@pytest.fixture
def recorder() -> str:
    """Text of a script that writes down what it gets."""
    return RECORDER


@pytest.fixture
def oracle() -> str:
    """Text of a script whose answers the requests choose."""
    return ORACLE


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Return a function that waits until a condition holds which nobody announces."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.02)

    return wait
