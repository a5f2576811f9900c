"""ACL messages and ACP messages as each other."""

from __future__ import annotations

from typing import Any

import pytest

from gagent_grpc import ACLMessage, ACPMessage, ACPMetadata, AgentIdentifier, Performative
from gagent_grpc.acl.message import AUTOMATIC
from gagent_grpc.acp.mapping import TASK_ID, acl_from_acp, acp_from_acl
from gagent_grpc.acp.message import AUTOMATIC_ENTRY

ALICE, BOB = AgentIdentifier("alice"), AgentIdentifier("bob")


def to_acl(kind: str, content: Any = None, **fields: Any) -> ACLMessage:
    made = acl_from_acp(ACPMessage("m", kind, "alice", "bob", content, **fields))
    assert made is not None
    return made


def to_acp(act: Performative, content: Any = None, **parameters: Any) -> ACPMessage:
    return acp_from_acl(ACLMessage(act, content=content, sender=BOB, receivers=(ALICE,), **parameters))


@pytest.mark.parametrize(
    ("kind", "content", "act", "said"),
    [
        ("request", "2 + 2", Performative.REQUEST, "2 + 2"),
        ("response", {"status": "accepted"}, Performative.AGREE, None),
        ("response", {"status": "accepted", "note": "soon"}, Performative.AGREE, "soon"),
        ("response", "4", Performative.INFORM, "4"),
        ("notification", "news", Performative.INFORM, "news"),
        ("delegate", {"task_id": "t", "description": "do it"}, Performative.REQUEST, "do it"),
        ("result", {"task_id": "t", "status": "completed", "result": "done"}, Performative.INFORM, "done"),
        ("result", {"task_id": "t", "status": "failed", "result": "half"}, Performative.FAILURE, "half"),
        ("error", {"error": "no"}, Performative.FAILURE, "no"),
        ("error", {"code": "DISK_FULL", "error": "no"}, Performative.FAILURE, "no"),
        ("error", {"code": "REFUSED", "error": "no"}, Performative.REFUSE, "no"),
        ("error", {"code": "REJECTED", "error": "no"}, Performative.REFUSE, "no"),
        ("error", {"code": "UNKNOWN_TYPE", "error": "no"}, Performative.NOT_UNDERSTOOD, "no"),
    ],
)
def test_each_type_has_its_act(kind: str, content: Any, act: Performative, said: str | None) -> None:
    made = to_acl(kind, content)
    assert (made.performative, made.content) == (act, said)
    assert (made.sender, made.receivers, made.language) == (ALICE, (BOB,), None)


def test_a_heartbeat_is_no_acl_message() -> None:
    assert acl_from_acp(ACPMessage(type="heartbeat")) is None


def test_a_question_can_be_answered_in_its_conversation() -> None:
    made = to_acl("request", "?")
    assert (made.conversation_id, made.reply_with, made.protocol) == ("m", "m", None)
    answer = made.create_reply(Performative.INFORM, "!")
    assert (answer.in_reply_to, answer.receivers) == ("m", (ALICE,))


def test_an_answer_names_its_question() -> None:
    made = to_acl("response", "!", in_reply_to="q")
    assert (made.conversation_id, made.in_reply_to, made.reply_with) == ("q", "q", None)


def test_a_task_is_a_request_in_a_conversation_of_its_own() -> None:
    made = to_acl("delegate", {"task_id": "t", "description": "do it", "parameters": {"n": 3, "f": 3.0}})
    assert (made.protocol, made.conversation_id, made.reply_with) == ("fipa-request", "t", "m")
    assert made.user_parameters == {TASK_ID: "t"}
    assert (made.language, made.content) == ("json", '{"description":"do it","parameters":{"n":3,"f":3.0}}')


def test_content_that_is_no_text_is_json() -> None:
    made = to_acl("request", {"n": 9007199254740993, "f": 3.0})
    assert (made.language, made.content) == ("json", '{"n":9007199254740993,"f":3.0}')


@pytest.mark.parametrize(
    ("act", "parameters", "kind", "content"),
    [
        (Performative.REQUEST, {}, "request", "x"),
        (Performative.QUERY_REF, {}, "request", "x"),
        (Performative.AGREE, {}, "response", {"status": "accepted", "note": "x"}),
        (Performative.INFORM, {"in_reply_to": "q"}, "response", "x"),
        (Performative.INFORM, {}, "notification", "x"),
        (Performative.CONFIRM, {}, "notification", "x"),
        (Performative.FAILURE, {}, "error", {"code": "FAILED", "error": "x"}),
        (Performative.REFUSE, {}, "error", {"code": "REFUSED", "error": "x"}),
        (Performative.NOT_UNDERSTOOD, {}, "error", {"code": "NOT_UNDERSTOOD", "error": "x"}),
        (
            Performative.REQUEST,
            {"protocol": "fipa-request", "conversation_id": "t"},
            "delegate",
            {"task_id": "t", "description": "x"},
        ),
        (
            Performative.INFORM,
            {"user_parameters": {TASK_ID: "t"}},
            "result",
            {"task_id": "t", "status": "completed", "result": "x"},
        ),
        (
            Performative.FAILURE,
            {"user_parameters": {TASK_ID: "t"}},
            "error",
            {"code": "FAILED", "error": "x", "task_id": "t"},
        ),
    ],
)
def test_each_act_has_its_type(act: Performative, parameters: dict[str, Any], kind: str, content: Any) -> None:
    made = to_acp(act, "x", **parameters)
    assert (made.type, made.content, made.source, made.target) == (kind, content, "bob", "alice")


def test_an_act_that_has_no_type_of_its_own_is_named() -> None:
    made = to_acp(Performative.PROPOSE, "38 EUR")
    assert made.metadata == ACPMetadata(entries={"performative": "propose"})
    assert to_acp(Performative.INFORM, "x").metadata is None


def test_a_failure_of_the_platform_names_what_failed() -> None:
    assert to_acp(Performative.FAILURE, "gone", user_parameters={"X-failed-id": "m-1"}).in_reply_to == "m-1"
    both = to_acp(Performative.FAILURE, "gone", in_reply_to="r-1", user_parameters={"X-failed-id": "m-1"})
    assert both.in_reply_to == "r-1"


def test_a_request_of_the_protocol_is_a_question_where_tasks_are_not_wanted() -> None:
    message = ACLMessage(Performative.REQUEST, content="x", protocol="fipa-request", conversation_id="t")
    assert acp_from_acl(message, delegates=False).type == "request"


def test_json_is_read_and_bytes_are_written_as_text() -> None:
    assert to_acp(Performative.INFORM, '{"n":3.0}', language="JSON").content == {"n": 3.0}
    assert to_acp(Performative.INFORM, "{", language="json").content == "{"
    assert to_acp(Performative.INFORM, b"\x00\xff").content == {"content_base64": "AP8="}


def test_the_mark_of_an_automatic_answer_is_kept() -> None:
    made = to_acp(Performative.NOT_UNDERSTOOD, "?", user_parameters={AUTOMATIC: "true"})
    assert made.automatic
    again = acl_from_acp(made)
    assert again is not None
    assert again.user_parameters[AUTOMATIC] == "true"
    assert made.metadata is not None
    assert made.metadata.entries == {AUTOMATIC_ENTRY: "true"}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("delegate", {"task_id": "t", "description": "do it"}),
        ("delegate", {"task_id": "t", "description": "do it", "parameters": {"n": 3, "big": 9007199254740993}}),
        ("result", {"task_id": "t", "status": "completed", "result": {"n": 3.0}}),
        ("response", {"task_id": "t", "status": "accepted"}),
        ("request", {"n": [1, 2.0, None]}),
        ("error", {"code": "REFUSED", "error": "no", "task_id": "t"}),
    ],
)
def test_there_and_back_says_the_same(kind: str, content: Any) -> None:
    again = acp_from_acl(to_acl(kind, content), message_id="m")
    assert (again.type, again.content, again.source, again.target) == (kind, content, "alice", "bob")
    assert again.to_json().count("3.0") == ACPMessage(type=kind, content=content).to_json().count("3.0")
