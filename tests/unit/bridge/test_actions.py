"""What a script sees of a message, what its sends become, and which requests they answer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gagent_grpc import Agent
from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage, identifiers
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bridge.actions import message_of, msg_of
from gagent_grpc.bridge.behaviour import PythonBehaviour, ScriptBehaviour
from gagent_grpc.bridge.framing import SendAction
from gagent_grpc.bridge.open_requests import MAX_OPEN_REQUESTS, OpenRequests

ALICE = AgentIdentifier("alice")
ABSENT = {"ontology": "", "language": "", "reply_with": "", "in_reply_to": ""}


def request(**parameters: Any) -> ACLMessage:
    return ACLMessage(Performative.REQUEST, **{"sender": ALICE, "receivers": identifiers("helper"), **parameters})


def inform(to: str = "alice", **parameters: Any) -> SendAction:
    return SendAction(to=(to,), performative=Performative.INFORM, content="yes", **parameters)


# --- Messages to events ---


def test_message_begins_as_documented_and_has_every_simple_parameter() -> None:
    msg = msg_of(request(content="hi", conversation_id="k1"), "helper")
    assert list(msg)[:4] == ["performative", "sender", "content", "conversation_id"]
    assert msg == {"performative": "request", "sender": "alice", "content": "hi", "conversation_id": "k1", **ABSENT}


def test_message_shows_what_else_is_set() -> None:
    message = request(
        content=b"\x00\xff",
        protocol="fipa-request",
        encoding="utf-8",
        reply_to=identifiers(["clerk", "boss@other"]),
        reply_by=datetime(2026, 12, 31, tzinfo=UTC),
        receivers=identifiers(["helper@local", "bob"]),
        user_parameters={"X-team": "blue"},
    )
    msg = msg_of(message, "helper")
    assert msg == {
        "performative": "request",
        "sender": "alice",
        "content_base64": "AP8=",
        "conversation_id": "",
        **ABSENT,
        "protocol": "fipa-request",
        "encoding": "utf-8",
        "receivers": ["helper@local", "bob"],
        "reply_to": ["clerk", "boss@other"],
        "reply_by": "2026-12-31T00:00:00+00:00",
        "X-team": "blue",
    }


def test_user_parameter_cannot_pass_for_another_parameter() -> None:
    msg = msg_of(request(content="hi", user_parameters={"sender": "boss", "content_base64": "AA=="}), "helper")
    assert msg["sender"] == "alice"
    assert "content_base64" not in msg


def test_message_without_content_has_an_empty_text() -> None:
    assert msg_of(request(), "helper")["content"] == ""


# --- Sends to messages ---

ASKED = request(conversation_id="k1", protocol="fipa-request", reply_with="q1", language="json", ontology="docs")


@pytest.mark.parametrize("to", ["alice", "alice@local"])
def test_answer_to_the_asker_inherits_the_conversation(to: str) -> None:
    message = message_of(inform(to), ASKED, "local")
    assert (message.conversation_id, message.protocol, message.in_reply_to) == ("k1", "fipa-request", "q1")
    assert (message.language, message.ontology, message.reply_with) == (None, None, None)


def test_answer_to_where_the_asker_wants_it_inherits_the_conversation() -> None:
    asked = request(conversation_id="k1", reply_to=identifiers("clerk"))
    assert message_of(inform("clerk"), asked, "local").conversation_id == "k1"


@pytest.mark.parametrize("to", [("bob",), ("alice", "bob"), ("alice@other",)])
def test_message_to_others_inherits_nothing(to: tuple[str, ...]) -> None:
    message = message_of(SendAction(to, Performative.INFORM, "x"), ASKED, "local")
    assert (message.conversation_id, message.protocol, message.in_reply_to) == (None, None, None)


def test_what_the_send_says_itself_stands() -> None:
    message = message_of(inform(conversation_id="k2", protocol="mine", in_reply_to="q2"), ASKED, "local")
    assert (message.conversation_id, message.protocol, message.in_reply_to) == ("k2", "mine", "q2")


def test_empty_text_counts_as_absent() -> None:
    # Simple scripts hand back what they were given, and they were given "" for what is absent.
    message = message_of(inform(conversation_id="", language="", in_reply_to=""), request(), "local")
    assert (message.conversation_id, message.language, message.in_reply_to) == (None, None, None)


def test_receivers_of_the_body_may_be_others_than_the_addresses() -> None:
    action = inform("role:clerk", receivers=("clerk",))
    assert [one.name for one in message_of(action).receivers] == ["clerk"]
    assert [one.name for one in message_of(inform("role:clerk")).receivers] == ["role:clerk"]


# --- Who still waits for an answer ---


def answer(act: Performative = Performative.INFORM, to: str = "alice", **parameters: Any) -> ACLMessage:
    return ACLMessage(act, receivers=identifiers(to), **parameters)


@pytest.mark.parametrize(
    ("asked", "answered", "is_open"),
    [
        (request(), answer(), False),
        (request(), answer(to="alice@local"), False),
        (request(), answer(to="bob"), True),
        (request(reply_to=identifiers("bob")), answer(to="bob"), False),
        (request(), answer(Performative.AGREE), True),
        (request(), answer(Performative.QUERY_IF), True),
        (request(), answer(Performative.REFUSE), False),
        (request(reply_with="q1"), answer(in_reply_to="q1"), False),
        (request(reply_with="q1"), answer(in_reply_to="q2"), True),
        (request(reply_with="q1", conversation_id="k1"), answer(conversation_id="k1"), False),
        (request(conversation_id="k1"), answer(conversation_id="k2"), True),
        (request(conversation_id="k1", reply_with="q1"), answer(), False),
    ],
)
def test_open_request_is_closed_by_its_answer_only(asked: ACLMessage, answered: ACLMessage, is_open: bool) -> None:
    requests = OpenRequests()
    requests.add(asked)
    requests.sent(answered, "local")
    assert requests.take() == ([asked] if is_open else [])
    assert len(requests) == 0


def test_one_answer_closes_the_oldest_request_only() -> None:
    requests = OpenRequests()
    requests.add(request(content="1"))
    requests.add(request(content="2"))
    requests.sent(answer(), "local")
    assert [one.content for one in requests.take()] == ["2"]


def test_what_expects_no_answer_is_not_open() -> None:
    requests = OpenRequests()
    requests.add(answer())
    assert len(requests) == 0


def test_open_requests_are_bounded() -> None:
    requests = OpenRequests()
    for number in range(MAX_OPEN_REQUESTS + 2):
        requests.add(request(content=str(number)))
    assert len(requests) == MAX_OPEN_REQUESTS
    assert requests.take()[0].content == "2"


# --- The behaviour's arguments ---


def test_name_is_the_agents_own() -> None:
    agent = Agent("helper")
    with pytest.raises(ValueError, match=r"name 'other': expected the agent's own, 'helper'"):
        ScriptBehaviour(agent, "other", "helper.py")
    assert PythonBehaviour is ScriptBehaviour


def test_script_or_command_is_needed() -> None:
    with pytest.raises(ValueError, match="script_path is None; expected a script, or a command"):
        ScriptBehaviour(Agent("helper"), "helper", None)
    with pytest.raises(ValueError, match="tick_ms -1; expected 0 or more"):
        ScriptBehaviour(Agent("helper"), "helper", "helper.py", tick_ms=-1)
