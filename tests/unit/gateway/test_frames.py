"""What the frames of a client say, whatever comes."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acp.message import ACPMessage
from gagent_grpc.client.message import Receipt
from gagent_grpc.envelope import Outcome
from gagent_grpc.gateway.frames import Ack, BadFrame, Unwatch, Watch, read_frame, receipt, refused, worst

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def bad(frame: Any) -> BadFrame:
    with pytest.raises(BadFrame) as raised:
        read_frame(frame if isinstance(frame, str) else json.dumps(frame))
    return raised.value


def test_a_message_is_read_as_its_json_form() -> None:
    text = '{"id":"m","type":"request","target":"bob","content":{"n":3,"f":3.0,"big":9007199254740993},"hop":1}'
    found = read_frame(text)
    assert isinstance(found, ACPMessage)
    assert json.loads(found.to_json()) == json.loads(text)
    assert '"f":3.0' in found.to_json()
    # What has a type is a message, whatever else it says.
    assert isinstance(read_frame('{"type":"notification","control":"ack","id":"m"}'), ACPMessage)


@pytest.mark.parametrize(
    ("frame", "control"),
    [
        ({"control": "ack", "id": "m"}, Ack("m", None)),
        ({"control": "ack", "id": "m", "source": "bob"}, Ack("m", "bob")),
        ({"control": "ack", "id": "m", "source": None}, Ack("m", None)),
        ({"control": "watch", "task_id": "t"}, Watch("t", "", None)),
        ({"control": "watch", "task_id": "t", "delegator": "boss", "after": 0}, Watch("t", "boss", 0)),
        ({"control": "unwatch", "task_id": "t", "delegator": "boss"}, Unwatch("t", "boss")),
    ],
)
def test_control_frames_are_read(frame: dict[str, Any], control: object) -> None:
    assert read_frame(json.dumps(frame)) == control


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ({"control": "dance"}, "control 'dance'; expected one of: ack, watch, unwatch"),
        ({"control": 3}, "control of type int"),
        ({"control": "ack"}, "ack: id is no text"),
        ({"control": "ack", "id": 3}, "ack: id is no text"),
        ({"control": "ack", "id": ""}, "ack: id is no text"),
        ({"control": "ack", "id": "m", "source": 3}, "ack: source is no text"),
        ({"control": "ack", "id": "m", "ids": []}, "ack: unknown key 'ids'"),
        ({"control": "watch", "task_id": "t", "after": -1}, "watch: after is no number"),
        ({"control": "watch", "task_id": "t", "after": True}, "watch: after is no number"),
        ({"control": "watch", "task_id": "t", "after": 1.0}, "watch: after is no number"),
        ({"control": "unwatch"}, "unwatch: task_id is no text"),
    ],
)
def test_a_bad_control_frame_says_what_is_wrong(frame: dict[str, Any], said: str) -> None:
    error = bad(frame)
    assert error.text.startswith(said)
    assert error.control is not None


@pytest.mark.parametrize(
    ("frame", "code", "message_id", "answered"),
    [
        ("not JSON", "INVALID_MESSAGE", None, True),
        ("", "INVALID_MESSAGE", None, True),
        ("[1]", "INVALID_MESSAGE", None, True),
        ("null", "INVALID_MESSAGE", None, True),
        ("{}", "INVALID_MESSAGE", None, True),
        ("[" * 100_000, "INVALID_MESSAGE", None, True),
        ('{"type":"request","content":NaN}', "INVALID_MESSAGE", None, True),
        ('{"type":"request","content":1e999}', "INVALID_MESSAGE", None, True),
        ('{"type":"request","content":' + "9" * 5000 + "}", "INVALID_MESSAGE", None, True),
        ({"id": "m", "type": "greet"}, "UNKNOWN_TYPE", "m", True),
        ({"id": "m", "type": 3}, "UNKNOWN_TYPE", "m", True),
        ({"id": "m", "type": None}, "INVALID_MESSAGE", "m", True),
        ({"id": 7, "type": "request"}, "INVALID_MESSAGE", None, True),
        ({"id": "m", "type": "request", "target": 3}, "INVALID_MESSAGE", "m", True),
        ({"id": "m", "type": "request", "timestamp": "yesterday"}, "INVALID_MESSAGE", "m", True),
        # These are never answered by an ERROR.
        ({"id": "m", "type": "heartbeat", "target": 3}, "INVALID_MESSAGE", "m", False),
        ({"id": "m", "type": "error", "metadata": 3}, "INVALID_MESSAGE", "m", False),
        ('{"id":"\\ud800","type":"greet"}', "UNKNOWN_TYPE", None, True),
        ('{"id":"m","type":"request","target":"\\uD83D"}', "INVALID_MESSAGE", "m", True),
        ('{"id":"m","type":"request","content":[{"a\\uDE00":1}]}', "INVALID_MESSAGE", "m", True),
    ],
)
def test_what_is_no_message_says_what_is_wrong(frame: Any, code: str, message_id: str | None, answered: bool) -> None:
    error = bad(frame)
    assert (error.code, error.message_id, error.answered, error.control) == (code, message_id, answered, None)


@settings(deadline=None)
@given(JSON | st.dictionaries(st.sampled_from(["type", "control", "id", "task_id", "after", "metadata", "x"]), JSON))
def test_whatever_comes_is_read_or_refused(value: Any) -> None:
    try:
        read_frame(json.dumps(value))
    except BadFrame as error:
        error.text.encode()


@settings(deadline=None)
@given(st.text())
def test_whatever_text_comes_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(BadFrame):
        read_frame(text)


def test_characters_in_two_escapes_are_whole() -> None:
    found = read_frame('{"type":"request","content":"\\ud83d\\ude00"}')
    assert isinstance(found, ACPMessage)
    assert found.content == "\U0001f600"


def test_a_receipt_says_what_there_is_to_say() -> None:
    assert receipt(1, None, "ACCEPTED") == {"control": "receipt", "number": 1, "id": None, "outcome": "ACCEPTED"}
    full = Receipt(Outcome.MAILBOX_FULL, "bob", "no room", 0.1)
    assert receipt(2, "m", "MAILBOX_FULL", full) == {
        "control": "receipt",
        "number": 2,
        "id": "m",
        "outcome": "MAILBOX_FULL",
        "receiver": "bob",
        "reason": "no room",
        "retry_after_ms": 100,
    }
    assert receipt(3, "m", "ACCEPTED", Receipt(Outcome.ACCEPTED, "topic:a", reached=2), task_id="t")["reached"] == 2


def test_of_several_receipts_the_one_that_was_not_delivered_counts() -> None:
    good, duplicate = Receipt(Outcome.ACCEPTED, "a"), Receipt(Outcome.DUPLICATE, "b")
    gone = Receipt(Outcome.NO_SUCH_AGENT, "c")
    assert worst([]) is None
    assert worst([good, duplicate]) is good
    assert worst([good, gone, duplicate]) is gone


def test_an_error_of_the_gateway_is_of_the_platform_and_automatic() -> None:
    error = refused("alice@local", "DENIED", "no", in_reply_to="m", task_id="t")
    assert error.automatic
    assert (error.source, error.target, error.in_reply_to, error.task_id) == ("ams", "alice@local", "m", "t")
