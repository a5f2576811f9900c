"""Actions about tasks and ACP: what a script may write in them, and what is said of the rest."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.acp.message import ACPMessageType
from gagent_grpc.acp.tasks import Attachment, OnExecutorLost
from gagent_grpc.bridge.extension_actions import AnswerTask, CancelTask, Delegate, SendACP, TaskReport
from gagent_grpc.bridge.framing import ACTIONS, Answer, BadAction, parse_line


def parsed(**action: Any) -> Any:
    answer = parse_line(json.dumps(action).encode())
    assert isinstance(answer, Answer)
    (only,) = answer.actions
    return only


def reason(**action: Any) -> str:
    bad = parsed(**action)
    assert isinstance(bad, BadAction), bad
    return bad.reason


def test_delegate_with_everything() -> None:
    made = parsed(
        action="delegate",
        target="role:count",
        description="d",
        parameters={"limit": 3, "ratio": 3.0, "ticket": 9007199254740993},
        task_id="T-1",
        deadline="2026-12-31T23:59:59Z",
        callback_url="https://example.invalid/",
        on_executor_lost="redeliver",
        max_attempts=3,
        parent="T-0",
        attachments=[{"uri": "file:///a", "media_type": "text/csv", "size_bytes": 7}],
    )
    assert made == Delegate(
        "role:count",
        "d",
        {"limit": 3, "ratio": 3.0, "ticket": 9007199254740993},
        "T-1",
        datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC),
        "https://example.invalid/",
        OnExecutorLost.REDELIVER,
        3,
        "T-0",
        (Attachment("file:///a", "text/csv", size_bytes=7),),
    )
    assert isinstance(made.parameters["limit"], int)
    assert isinstance(made.parameters["ratio"], float)


def test_nulls_and_empty_texts_count_as_absent() -> None:
    assert parsed(action="delegate", target="bob", task_id="", parent=None, deadline=None) == Delegate("bob")
    assert parsed(action="complete", task_id=None, result=None) == TaskReport("complete", None, None)


def test_actions_about_tasks() -> None:
    assert parsed(action="answer", task_id="T-1", value=None) == AnswerTask("T-1", None)
    assert parsed(action="cancel", task_id="T-1") == CancelTask("T-1", "")
    assert parsed(action="progress", progress=0.5, note="n") == TaskReport("progress", None, None, 0.5, "n")
    assert parsed(action="output", text="x", channel="log") == TaskReport("output", None, None, None, "x", "log")
    assert parsed(action="fail", task_id="T-1", delegator="bob", reason="why") == TaskReport(
        "fail", "T-1", "bob", None, "why"
    )


def test_acp_takes_the_source_from_the_bridge_alone() -> None:
    made = parsed(action="acp", to="bob", msg={"type": "REQUEST", "source": "somebody else", "content": [1], "x": 1})
    assert isinstance(made, SendACP)
    message = made.message
    assert (message.type, message.source, message.target) == (ACPMessageType.REQUEST, None, "bob")
    assert (message.content, message.extra) == ([1], {"x": 1})


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ({"action": "delegate"}, "missing `target`"),
        ({"action": "delegate", "target": ["a", "b"]}, "`target` is a list, not a text"),
        ({"action": "delegate", "target": "a", "parameters": [1]}, "`parameters` is a list, not an object"),
        ({"action": "delegate", "target": "a", "parameters": {"a": "\ud800"}}, "lone surrogate"),
        ({"action": "delegate", "target": "a", "deadline": True}, "`deadline` is a boolean; expected a number"),
        ({"action": "delegate", "target": "a", "deadline": "soon"}, "`deadline` is 'soon'; expected ISO 8601"),
        ({"action": "delegate", "target": "a", "deadline": 10**300}, "`deadline` is out of range"),
        ({"action": "delegate", "target": "a", "deadline": -1}, "`deadline` is out of range"),
        ({"action": "delegate", "target": "a", "on_executor_lost": "cry"}, "expected fail or redeliver"),
        ({"action": "delegate", "target": "a", "max_attempts": 0}, "`max_attempts` is out of range"),
        ({"action": "delegate", "target": "a", "max_attempts": 1.5}, "`max_attempts` is not a whole number"),
        ({"action": "delegate", "target": "a", "attachments": [{}]}, "missing `uri`"),
        ({"action": "delegate", "target": "a", "attachments": {}}, "`attachments` is not a list of objects"),
        ({"action": "answer", "value": 1}, "missing `task_id`"),
        ({"action": "cancel", "task_id": 7}, "`task_id` is a number, not a text"),
        ({"action": "progress", "progress": 1.1}, "expected a number from 0 to 1"),
        ({"action": "progress", "progress": "half"}, "`progress` is a text; expected a number from 0 to 1"),
        ({"action": "ask"}, "missing `question`"),
        ({"action": "output", "text": 7}, "`text` is a number, not a text"),
        ({"action": "acp"}, "missing `msg`"),
        ({"action": "acp", "msg": []}, "`msg` is a list, not an object"),
        ({"action": "acp", "msg": {}}, "type"),
        ({"action": "acp", "msg": {"type": "shout"}}, "unknown ACP message type"),
        ({"action": "acp", "to": ["a", "b"], "msg": {"type": "request"}}, "an ACP message has one target"),
        ({"action": "acp", "msg": {"type": "request", "metadata": {"ttl": 10**400}}}, "too large"),
    ],
)
def test_bad_value_says_which_and_what_is_expected(action: dict[str, Any], why: str) -> None:
    assert why in reason(**action)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ({"action": "noop", "extensions": ["acp", "delegate", "tea", 7, None]}, ("delegate", "acp")),
        ([{"action": "noop", "extensions": ["task"]}, {"action": "noop"}], ("task",)),
        ({"actions": [{"action": "noop"}], "extensions": ["task"]}, ("task",)),
        ({"action": "noop", "extensions": "acp"}, ()),
        ({"action": "noop", "extensions": {"acp": 1}}, ()),
    ],
)
def test_extensions_are_named_in_the_answer(line: Any, names: tuple[str, ...]) -> None:
    answer = parse_line(json.dumps(line).encode())
    assert isinstance(answer, Answer)
    assert answer.extensions == names


KEYS = st.sampled_from(
    ["to", "msg", "target", "task_id", "deadline", "progress", "type", "metadata", "ttl", "timestamp", "services",
     "parameters", "attachments", "uri", "value", "result", "extensions", "id", "content", "reply_by"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**310) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)) | st.sampled_from(["request", "2026-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(ACTIONS), st.dictionaries(KEYS, VALUES))
def test_no_value_breaks_the_reader(word: str, keys: dict[str, Any]) -> None:
    answer = parse_line(json.dumps({"action": word, **keys}).encode())
    assert isinstance(answer, Answer)
    assert len(answer.actions) == 1
