"""`gagent watch` against a real bus: lines, JSON and a diagram, and how it ends."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place, Program

BEGUN = "Watching 127.0.0.1:"


def watching(place: Place, *arguments: str) -> Program:
    """Start a watch, and wait until it misses nothing any more."""
    program = place.start("watch", *arguments)
    program.said(BEGUN)
    return program


def printed(program: Program) -> list[str]:
    return [line for line in program.lines if not line.startswith(BEGUN)]


def test_messages_are_shown_as_they_pass_and_contents_only_when_asked_for(town: Place) -> None:
    plain = watching(town, "--agent", "oracle", "--limit", "2")
    told = watching(town, "--agent", "oracle", "--limit", "2", "--content")
    assert town.gagent("request", "oracle", "se\x1b[31mcret", "--conversation-id", "c 1").returncode == 0
    assert (plain.process.wait(30), told.process.wait(30)) == (0, 0)
    told.end(), plain.end()
    asked, answered = printed(plain)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} cli-\w+@local -> oracle@local request \[c 1\]", asked)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} oracle@local -> cli-\w+@local inform \[c 1\]", answered)
    asked, answered = printed(told)
    assert asked.endswith(r"request [c 1] se\x1b[31mcret")
    assert answered.endswith(r"inform [c 1] echo: se\x1b[31mcret")


def test_what_is_refused_is_marked_and_others_are_not_shown(town: Place) -> None:
    watch = watching(town, "--agent", "nobody", "--limit", "1")
    assert town.gagent("request", "oracle", "hi").returncode == 0
    assert town.gagent("send", "nobody", "hi").returncode == 3
    assert watch.process.wait(30) == 0
    watch.end()
    (line,) = printed(watch)
    assert "-> nobody@local REFUSED NO_SUCH_AGENT inform" in line


def test_json_has_one_object_per_line(town: Place) -> None:
    watch = watching(town, "--conversation", "j", "--json", "--limit", "2")
    whole = watching(town, "--conversation", "j", "--json", "--content", "--limit", "2")
    assert town.gagent("request", "oracle", "hi").returncode == 0
    assert (
        town.gagent("request", "oracle", "hi", "--conversation-id", "j", "--protocol", "fipa-request").returncode == 0
    )
    assert (watch.process.wait(30), whole.process.wait(30)) == (0, 0)
    watch.end(), whole.end()
    first, second = map(json.loads, printed(watch))
    assert (first["kind"], first["receiver"], first["performative"], first["protocol"]) == (
        "ACCEPTED",
        "oracle@local",
        "request",
        "fipa-request",
    )
    assert (second["sender"], second["performative"], second["conversation_id"]) == ("oracle@local", "inform", "j")
    assert "message" not in first
    assert [json.loads(line)["message"]["content"] for line in printed(whole)] == ["hi", "echo: hi"]


def test_a_conversation_becomes_a_diagram(town: Place) -> None:
    watch = watching(town, "--format", "mermaid", "--conversation", "d;1", "--content", "--limit", "2")
    assert town.gagent("request", "oracle", "what; # is <this>?", "--conversation-id", "d;1").returncode == 0
    assert watch.process.wait(30) == 0
    watch.end()
    lines = printed(watch)
    assert lines[0] == "sequenceDiagram"
    assert re.fullmatch(r"    participant p1 as cli-\w+@local", lines[1])
    assert lines[2] == "    participant p2 as oracle@local"
    assert lines[3] == "    p1->>p2: request: what#59; #35; is #60;this#62;?"
    assert lines[4].startswith("    p2-->>p1: inform: echo: what#59;")


def test_a_quiet_bus_ends_the_watch_after_the_timeout(place: Place) -> None:
    place.serve()
    done = place.gagent("watch", "--timeout", "0.3")
    assert (done.returncode, done.stdout) == (4, "")
    assert "Nothing passed for 0.3 s." in done.stderr


def test_a_diagram_is_whole_also_when_the_watch_is_interrupted(town: Place) -> None:
    watch = watching(town, "--format", "mermaid", "--conversation", "nobody's")
    assert watch.end(signal.SIGINT) == 0
    assert printed(watch) == ["sequenceDiagram", "    %% Nothing was said."]


def test_the_end_of_the_bus_is_the_end_of_the_watch(place: Place) -> None:
    bus = place.serve()
    watch = watching(place)
    assert bus.end(signal.SIGTERM) == 0
    assert watch.end() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--format", "mermaid"), "--conversation"),
        (("--format", "dot"), "expected lines or mermaid"),
        (("--agent", "no name"), "no name"),
        (("--agent", "x@elsewhere"), "elsewhere"),
    ],
)
def test_what_cannot_be_watched_is_said(town: Place, arguments: tuple[str, ...], says: str) -> None:
    done = town.gagent("watch", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_serve_takes_the_limits_of_conversations(place: Place) -> None:
    place.serve("--max-turns", "1", "--conversation-policy", "enforce")
    oracle = place.start("run", place.script("oracle.py", ORACLE), "--tick-ms", "60000")
    oracle.said("oracle@local")
    done = place.gagent("request", "oracle", "hi", "--conversation-id", "c")
    # Its answer would be the second turn.
    assert done.returncode == 1
    assert "1 turns (max_turns)" in done.stdout + done.stderr
    wrong = place.gagent("serve", "--conversation-policy", "strict")
    assert wrong.returncode == 2
    assert "--conversation-policy" in wrong.stderr


ORACLE = """
import json, sys

for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "stop":
        break
    if event["event"] != "message":
        print('{"action": "noop"}', flush=True)
        continue
    msg = {"performative": "inform", "content": "echo"}
    print(json.dumps({"action": "send", "to": event["msg"]["sender"], "msg": msg}), flush=True)
"""
