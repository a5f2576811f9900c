"""A conversation as a sequence diagram: what is drawn, and that no name and no text breaks it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.cli.mermaid import escape, sequence_diagram
from gagent_grpc.client.traffic import TrafficEvent, TrafficKind
from gagent_grpc.envelope import Outcome

# One line of a diagram as the grammar of Mermaid has it; labels hold no character that means anything.
LINE = re.compile(
    r"    (participant p\d+ as [^;#\n]*|(p\d+)(->>|-->>|-x|--x)p\d+: [^;#\n]+|Note over p\d+(,p\d+)?: [^;#\n]+|%% .*)"
)


def event(kind: TrafficKind = TrafficKind.ACCEPTED, act: str = "inform", **more: Any) -> TrafficEvent:
    body = {name: more.pop(name) for name in ("content", "in_reply_to") if name in more}
    message = ACLMessage(Performative.parse(act), **body)
    made = TrafficEvent(
        kind, datetime(2026, 1, 1, tzinfo=UTC), "a@local", "b@local", "", "", "talk", message, None, "", "", 0
    )
    return replace(made, **more)


def lines_of(diagram: str) -> list[str]:
    assert diagram.endswith("\n")
    first, *lines = diagram.removesuffix("\n").split("\n")
    assert first == "sequenceDiagram"
    for line in lines:
        assert LINE.fullmatch(re.sub(r"#\d+;", "_", line)), line
    return lines


def test_question_and_answer_are_arrows_between_participants() -> None:
    asked = event(act="request", content="what?")
    answered = event(sender="b@local", receiver="a@local", in_reply_to="r", content=b"\0\1")
    assert lines_of(sequence_diagram([asked, answered])) == [
        "    participant p1 as a@local",
        "    participant p2 as b@local",
        "    p1->>p2: request: what?",
        "    p2-->>p1: inform: (2 bytes)",
    ]


def test_what_went_wrong_is_drawn() -> None:
    events = [
        event(TrafficKind.REFUSED, receiver="nobody", outcome=Outcome.NO_SUCH_AGENT, detail="Registered: a"),
        event(TrafficKind.GIVEN_UP, detail="too often"),
        event(TrafficKind.CONVERSATION_ENDED, message=None, detail="turns"),
        event(flag="after the end", receiver="a@local"),
        event(TrafficKind.MISSED, message=None, sender="", receiver="", missed=3),
    ]
    assert lines_of(sequence_diagram(events)) == [
        "    participant p1 as a@local",
        "    participant p2 as nobody",
        "    participant p3 as b@local",
        "    p1-xp2: inform refused: NO_SUCH_AGENT",
        "    Note over p1,p3: given up: too often",
        "    Note over p1,p3: ended by the bus: turns",
        "    p1->>p1: inform",
        "    Note over p1: out of sequence: after the end",
        "    Note over p1,p3: 3 events missed",
    ]


def test_nothing_is_a_diagram_too() -> None:
    assert lines_of(sequence_diagram([])) == ["    %% Nothing was said."]


def test_long_contents_are_cut_and_stay_in_one_line() -> None:
    (label,) = [line for line in lines_of(sequence_diagram([event(content="a\n\tb " * 100)])) if "->>" in line]
    assert label.startswith("    p1->>p2: inform: a b a b")
    assert label.endswith("...")
    assert len(label) < 150


@given(st.text())
def test_no_text_has_a_meaning_to_mermaid(text: str) -> None:
    made = escape(text)
    assert not re.search(r"[;#%<>{}\n\r]", re.sub(r"#\d+;", "", made))
    assert re.sub(r"#(\d+);", lambda code: chr(int(code[1])), made) == text


@given(st.text(min_size=1), st.text(), st.text(), st.text())
def test_nothing_that_agents_write_breaks_a_diagram(name: str, content: str, detail: str, flag: str) -> None:
    events = [
        event(sender=name, content=content, flag=flag),
        event(TrafficKind.CONVERSATION_ENDED, receiver=name, message=None, detail=detail),
    ]
    lines_of(sequence_diagram(events))
