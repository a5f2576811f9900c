"""ACP messages as values, and their JSON form."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc import (
    ACPMessage,
    ACPMessageType,
    ACPMetadata,
    Attachment,
    DelegateMessage,
    InvalidArgument,
    MissingParameter,
    OnExecutorLost,
    Priority,
    TaskKey,
)

NEIGHBOURS = [
    '{"id":"m-1","type":"delegate","source":"planner","target":"analyst@n2","content":{"task_id":"T-1","description":"Compare the two offers","parameters":{"files":["a.csv","b.csv"],"limit":3},"callback_url":null},"metadata":{"priority":"normal"},"timestamp":"2026-03-01T10:00:00.123Z"}',
    '{"id":"m-2","type":"response","source":"analyst@n2","target":"planner","content":{"task_id":"T-1","status":"accepted"}}',
    '{"id":"m-3","type":"notification","source":"analyst@n2","target":"planner","content":{"task_id":"T-1","status":"working","progress":0.5}}',
    '{"id":"m-4","type":"result","source":"analyst@n2","target":"planner","content":{"task_id":"T-1","status":"completed","result":"Offer B is cheaper by 4 %."}}',
    '{"id":"m-5","type":"error","source":"analyst@n2","target":"planner","content":{"task_id":"T-2","error":"file missing: b.csv"}}',
]
"""Messages as neighbours write them, one of each kind that is about a task."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("text", NEIGHBOURS)
def test_what_neighbours_write_is_read_and_written_again_as_it_was(text: str) -> None:
    assert ACPMessage.from_json(text).to_json() == text


def test_fields_of_the_json_form_are_read() -> None:
    message = ACPMessage.from_json(NEIGHBOURS[0])
    assert (message.id, message.type) == ("m-1", ACPMessageType.DELEGATE)
    assert (message.source, message.target, message.task_id) == ("planner", "analyst@n2", "T-1")
    assert message.metadata == ACPMetadata(priority="normal")
    assert message.timestamp == datetime(2026, 3, 1, 10, 0, 0, 123_000, tzinfo=UTC)
    assert DelegateMessage.from_message(message) == DelegateMessage(
        "T-1", "Compare the two offers", {"files": ["a.csv", "b.csv"], "limit": 3}
    )


def test_numbers_keep_type_and_digits() -> None:
    parameters = (
        '{"limit":3,"ratio":3.0,"ticket":9007199254740993,"neg":-0.5,"flags":[true,null,""],"empty":{},"list":[]}'
    )
    text = '{"type":"delegate","content":{"task_id":"t","parameters":' + parameters + "}}"
    assert ACPMessage.from_json(text).to_json() == text


def test_unknown_keys_are_kept() -> None:
    text = '{"type":"request","metadata":{"priority":"high","retries":2,"note":"x"},"hop":{"n":1},"content":[1,2.0]}'
    message = ACPMessage.from_json(text)
    assert message.extra == {"hop": {"n": 1}}
    assert message.metadata is not None
    assert message.metadata.entries == {"retries": 2, "note": "x"}
    assert json.loads(message.to_json()) == json.loads(text)


def test_absent_stays_absent() -> None:
    assert ACPMessage(type=ACPMessageType.REQUEST).to_json() == '{"type":"request"}'
    assert ACPMessage(type="request", content="", in_reply_to="").to_dict() == {
        "type": "request",
        "content": "",
        "in_reply_to": "",
    }


@given(
    json_values.filter(lambda value: value is not None),
    st.dictionaries(texts.map("x-{}".format), json_values, max_size=2),
)
def test_any_json_comes_back_as_it_was(content: Any, extra: dict[str, Any]) -> None:
    message = ACPMessage("m", "request", "a", "b", content, extra=extra)
    again = ACPMessage.from_json(message.to_json())
    assert again == message
    assert again.to_json() == message.to_json()


@given(st.datetimes(timezones=st.just(UTC)))
def test_any_moment_comes_back_as_it_was(moment: datetime) -> None:
    message = ACPMessage(type="heartbeat", timestamp=moment)
    assert ACPMessage.from_json(message.to_json()).timestamp == moment


def test_a_moment_of_another_zone_is_the_same_moment() -> None:
    moment = datetime(2026, 3, 1, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    assert ACPMessage(type="heartbeat", timestamp=moment).to_dict()["timestamp"] == "2026-03-01T10:00:00Z"


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("[]", "message", "expected a JSON object"),
        ("{", "message", "JSON"),
        (b"\xff", "message", "UTF-8"),
        ('{"type":"request","content":NaN}', "message", "NaN"),
        ("{}", "type", "missing"),
        ('{"type":"frobnicate"}', "type", "'frobnicate'; expected one of: request, response"),
        ('{"type":3}', "type", "expected one of"),
        ('{"type":"request","id":3}', "id", "expected text"),
        ('{"type":"request","metadata":[]}', "metadata", "expected an object"),
        (
            '{"type":"request","metadata":{"priority":"soon"}}',
            "metadata.priority",
            "'soon'; expected one of: low, normal",
        ),
        ('{"type":"request","metadata":{"priority":2}}', "metadata.priority", "expected one of"),
        ('{"type":"request","metadata":{"ttl":-1}}', "metadata.ttl", "0 or more"),
        ('{"type":"request","metadata":{"ttl":true}}', "metadata.ttl", "seconds"),
        ('{"type":"request","metadata":{"trace":7}}', "metadata.trace", "expected text"),
        ('{"type":"request","timestamp":"yesterday"}', "timestamp", "2026-03-01T10:00:00.123Z"),
        ('{"type":"request","timestamp":"2026-03-01T10:00:00"}', "timestamp", "no time zone"),
        ('{"type":"request","timestamp":5}', "timestamp", "expected an aware datetime"),
    ],
)
def test_what_is_wrong_is_named(text: str | bytes, field: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=r".") as raised:
        ACPMessage.from_json(text)
    assert raised.value.field == field
    assert words in str(raised.value)


def test_a_message_without_a_type_is_none() -> None:
    with pytest.raises(MissingParameter, match="'type' is missing"):
        ACPMessage(content="x")


@pytest.mark.parametrize("content", [float("nan"), {1: "x"}, object(), "\ud800"])
def test_content_that_json_cannot_say_is_refused_when_it_is_written(content: Any) -> None:
    with pytest.raises(InvalidArgument):
        ACPMessage(type="request", content=content).to_json()


@pytest.mark.parametrize("priority", ["low", "normal", "high", "urgent"])
def test_priorities_are_those_of_the_bus(priority: str) -> None:
    assert ACPMetadata(priority=priority).urgency is Priority[priority.upper()]
    assert ACPMetadata(priority=Priority[priority.upper()]).priority == priority  # type: ignore[arg-type]  # [arg-type]: taken, too.
    assert ACPMetadata(priority=None).urgency is Priority.NORMAL


def test_an_entry_cannot_have_the_name_of_a_field() -> None:
    with pytest.raises(InvalidArgument, match="field of its own"):
        ACPMetadata(entries={"ttl": 3})
    with pytest.raises(InvalidArgument, match="field of its own"):
        ACPMessage(type="request", extra={"source": "bob"})


def test_an_answer_goes_to_the_source_and_names_the_question() -> None:
    question = ACPMessage(
        "m", "request", "alice", "bob", "?", ACPMetadata("high", ttl=5, trace="00-a", entries={"x": 1})
    )
    answer = question.create_reply("response", {"n": 1})
    assert (answer.type, answer.target, answer.in_reply_to, answer.content) == ("response", "alice", "m", {"n": 1})
    # How long the question was of use says nothing of the answer.
    assert answer.metadata == ACPMetadata("high", trace="00-a")
    assert (answer.id, answer.source, answer.timestamp) == (None, None, None)


def test_a_change_is_a_new_message() -> None:
    message = ACPMessage(type="request", content="x", extra={"k": 1})
    assert message.replace(target="bob") == ACPMessage(type="request", content="x", target="bob", extra={"k": 1})
    assert message.target is None
    with pytest.raises(TypeError):
        message.replace(to="bob")


# ---- tasks -------------------------------------------------------------------------------------------------------------


def test_a_delegation_says_what_it_has_and_nothing_more() -> None:
    assert DelegateMessage("t", "do it").to_content() == {"task_id": "t", "description": "do it"}
    whole = DelegateMessage("t", "do it", {"n": 3}, "http://x.invalid")
    message = whole.to_message("bob", metadata=ACPMetadata("urgent"))
    assert (message.type, message.target, message.task_id) == (ACPMessageType.DELEGATE, "bob", "t")
    assert DelegateMessage.from_message(message) == whole


def test_a_delegation_says_in_json_what_the_bus_is_to_do_with_it() -> None:
    whole = DelegateMessage(
        "t",
        "do it",
        deadline=datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1))),
        on_executor_lost=OnExecutorLost.REDELIVER,
        max_attempts=5,
        parent=TaskKey("planner@local", "p"),
        attachments=(
            Attachment("file:///a.csv", "text/csv", size_bytes=0),
            Attachment("s3://b", "x/y", "b", "sha256:00"),
        ),
    )
    assert whole.to_content() == {
        "task_id": "t",
        "description": "do it",
        "deadline": "2030-01-02T02:04:05Z",
        "on_executor_lost": "redeliver",
        "max_attempts": 5,
        "parent_delegator": "planner@local",
        "parent_task_id": "p",
        "attachments": [
            {"uri": "file:///a.csv", "media_type": "text/csv", "size_bytes": 0},
            {"uri": "s3://b", "media_type": "x/y", "name": "b", "digest": "sha256:00"},
        ],
    }
    text = whole.to_message("bob").to_json()
    assert DelegateMessage.from_message(ACPMessage.from_json(text)) == whole


def test_the_other_name_of_the_description_is_read() -> None:
    message = ACPMessage(type="delegate", content={"task_id": "t", "task_description": "do it", "callback_url": None})
    assert DelegateMessage.from_message(message) == DelegateMessage("t", "do it")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (ACPMessage(type="request", content={}), "content"),
        (ACPMessage(type="delegate", content="do it"), "content"),
        (ACPMessage(type="delegate", content={"task_id": 3}), "content.task_id"),
        (ACPMessage(type="delegate", content={"parameters": [1]}), "content.parameters"),
        (ACPMessage(type="delegate", content={"callback_url": 1}), "content.callback_url"),
        (ACPMessage(type="delegate", content={"deadline": 600}), "content.deadline"),
        (ACPMessage(type="delegate", content={"deadline": "tomorrow"}), "content.deadline"),
        (ACPMessage(type="delegate", content={"deadline": "2030-01-02T03:04:05"}), "content.deadline"),
        (ACPMessage(type="delegate", content={"deadline": "0001-01-01T00:00:00+14:00"}), "content.deadline"),
        (ACPMessage(type="delegate", content={"on_executor_lost": "retry"}), "content.on_executor_lost"),
        (ACPMessage(type="delegate", content={"on_executor_lost": 2}), "content.on_executor_lost"),
        (ACPMessage(type="delegate", content={"max_attempts": 2.0}), "content.max_attempts"),
        (ACPMessage(type="delegate", content={"max_attempts": True}), "content.max_attempts"),
        (ACPMessage(type="delegate", content={"max_attempts": -1}), "content.max_attempts"),
        (ACPMessage(type="delegate", content={"parent_task_id": 1}), "content.parent_task_id"),
        (ACPMessage(type="delegate", content={"attachments": "a.csv"}), "content.attachments"),
        (ACPMessage(type="delegate", content={"attachments": ["a.csv"]}), "content.attachments[0]"),
        (ACPMessage(type="delegate", content={"attachments": [{"uri": "a"}]}), "content.attachments[0].media_type"),
        (
            ACPMessage(type="delegate", content={"attachments": [{"uri": "a", "media_type": "b", "size_bytes": -1}]}),
            "content.attachments[0].size_bytes",
        ),
        (
            ACPMessage(type="delegate", content={"attachments": [{"uri": "a", "media_type": "b", "digest": 1}]}),
            "content.attachments[0].digest",
        ),
    ],
)
def test_what_is_no_delegation_is_refused(message: ACPMessage, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        DelegateMessage.from_message(message)
    assert raised.value.field == field
