"""Lines of script agents: where they end, what counts as an answer, and what a hostile line can do."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.acl.descriptions import Property, ServiceDescription
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bridge.framing import (
    MAX_ACTIONS_PER_LINE,
    Answer,
    BadAction,
    Blank,
    Delete,
    Deregister,
    LineSplitter,
    Noise,
    Noop,
    OverlongLine,
    Register,
    SendAction,
    Suspend,
    Wake,
    encode_event,
    max_line_bytes,
    parse_line,
)


def lines_of(*pieces: bytes, limit: int = 1_000) -> list[bytes | OverlongLine]:
    splitter = LineSplitter(limit)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.finish()


def send_line(**msg: object) -> bytes:
    return json.dumps({"action": "send", "to": "a", "msg": {"performative": "inform", **msg}}).encode()


def only_action(line: bytes) -> object:
    answer = parse_line(line)
    assert isinstance(answer, Answer)
    (action,) = answer.actions
    return action


def bad_reason(line: bytes) -> str:
    action = only_action(line)
    assert isinstance(action, BadAction)
    return action.reason


# --- Bytes to lines ---


def test_splitter_cuts_at_line_feed_only() -> None:
    text = "a\u2028b\u2029c\u0085d\u000be\u000cf\u001cg\rh"
    assert lines_of(text.encode() + b"\n" + b"next") == [text.encode(), b"next"]


def test_splitter_returns_unterminated_last_line_and_no_empty_one() -> None:
    assert lines_of(b"a\n\nb") == [b"a", b"", b"b"]
    assert lines_of(b"a\n") == [b"a"]
    assert lines_of() == []


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_splitter_drops_overlong_line_and_stays_in_step(limit: int) -> None:
    whole, over = b"x" * limit, b"y" * (limit + 1)
    expected = [whole, OverlongLine(limit + 1, over[:64]), b"z", OverlongLine(limit + 1, over[:64])]
    assert lines_of(whole + b"\n" + over + b"\nz\n" + over, limit=limit) == expected


@given(
    st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"\r\n", b"x" * 70, b'{"action":"noop"}\n'])),
    st.data(),
    st.integers(1, 80),
)
def test_splitter_gives_same_lines_however_the_stream_is_cut(
    parts: list[bytes], data: st.DataObject, limit: int
) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    lines = lines_of(*pieces, limit=limit)
    assert lines == lines_of(stream, limit=limit)
    raw = stream.split(b"\n")
    assert [line.size_bytes if isinstance(line, OverlongLine) else len(line) for line in lines] == [
        len(line) for line in (raw if raw[-1] else raw[:-1])
    ]


def test_splitter_holds_nothing_of_a_dropped_line() -> None:
    splitter = LineSplitter(100)
    for _ in range(1_000):
        assert splitter.feed(b"x" * 1_000) == []
    assert len(splitter._buffer) <= 100
    assert splitter.feed(b"\nnext\n") == [OverlongLine(1_000_000, b"x" * 64), b"next"]


# --- Events to bytes ---


def test_event_is_one_line_of_ascii() -> None:
    event = {"event": "message", "msg": {"content": "one\u2028two\u0085three\nfour\r\U0001f600"}}
    line = encode_event(event)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert b"\r" not in line
    assert json.loads(line) == event


def test_event_with_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_event({"event": "start", "temperature": float("nan")})


def test_line_limit_covers_a_fully_escaped_message() -> None:
    assert len(encode_event({"event": "message", "msg": {"content": "\x01" * 1_000_000}})) < max_line_bytes()


# --- Lines to answers ---


@pytest.mark.parametrize(
    "line",
    [
        b'{"action":"noop"}\r',
        b'\xef\xbb\xbf{"action":"noop"}',
        b' {"action" : "noop"} ',
        b'{"action":"noop"}',
        b'{"action":"noop","extra":{"k":1}}',
        b'\xef\xbb\xbf {"action":"noop"}\t\r',
    ],
)
def test_noop_as_scripts_write_it(line: bytes) -> None:
    assert parse_line(line) == Answer((Noop(),))


@pytest.mark.parametrize("line", [b"", b"   \r", b"\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r"])
def test_blank_line_is_blank(line: bytes) -> None:
    assert parse_line(line) == Blank()


@pytest.mark.parametrize(
    "line",
    [
        b'{"action":"no',
        b'{"action":"noop"}{"action":"noop"}',
        b'{"action":"noop"} trailing',
        b"Loading model weights: 100%|##########| 3/3",
        b"[2026-03-01 10:00:00] INFO ready",
        b"debug: got {'performative': 'request'}",
        b'{"level":"info"}',
        b"[1, 2]",
        b"[]",
        b'[{"action":"noop"}, 1]',
        b'"noop"',
        b"null",
        b"7",
        b"NaN",
        b'{"x":NaN}',
        b'{"x":1,"x":2}',
        b"\x00\x01",
        b'{"action":"noop","x":"raw\x01control"}',
        b'{"x":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_line_that_is_no_answer_is_noise_with_short_excerpt(line: bytes) -> None:
    noise = parse_line(line)
    assert isinstance(noise, Noise)
    assert noise.excerpt.isascii()
    assert noise.excerpt.isprintable()
    assert len(noise.excerpt) <= 80


@pytest.mark.parametrize("line", [b'{"note":"\xff\xfe"}', b'{"say":""action"","b":"\xff\xfe"}'])
def test_invalid_utf8_is_noise_with_hex_excerpt(line: bytes) -> None:
    noise = parse_line(line)
    assert isinstance(noise, Noise)
    assert f"byte {line.index(0xFF)}" in noise.reason
    assert "ff fe" in noise.excerpt


@pytest.mark.parametrize(
    "begin", [b'{"action":"noop"', b'{ "action" : "noop"', b'{"actions":[]', b'{"id":3,"action":"noop"']
)
def test_answer_that_is_not_utf8_is_an_answer_of_which_nothing_is_known(begin: bytes) -> None:
    answer = parse_line(begin + b',"note":"caf\xe9"}')
    assert isinstance(answer, Answer)
    assert answer.unreadable == f"not UTF-8 at byte {len(begin) + 12}"
    assert isinstance(answer.actions[0], BadAction)
    # For the log alone: it is a part of a content.
    assert "63 61 66 e9 22 7d" in answer.actions[0].excerpt


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"action":"NOOP"}', "unknown action 'NOOP'"),
        (b'{"action":"explode"}', "unknown action 'explode'"),
        (b'{"action":7}', "unknown action a number"),
        (b'{"action":["noop"]}', "unknown action a list"),
        (b'{"action":"\\ud800"}', "unknown action '\\ud800'"),
        (b'{"action":"send"}', "missing `to`"),
        (b'{"action":"send","to":"a"}', "missing `msg`"),
        (b'{"action":"send","to":"a","msg":"text"}', "`msg` is a text, not an object"),
        (b'{"action":"send","to":"a","msg":{"content":"x"}}', "missing `msg.performative`"),
        (b'{"action":"send","to":"","msg":{"performative":"inform"}}', "`to` holds an empty text"),
        (b'{"action":"send","to":[],"msg":{"performative":"inform"}}', "missing `to`"),
        (b'{"action":"send","to":["a",7],"msg":{"performative":"inform"}}', "`to` holds a number"),
        (b'{"action":"send","to":"a\\ud800","msg":{"performative":"inform"}}', "`to` holds a lone surrogate"),
        (send_line(performative="explain"), "unknown performative 'explain'; expected one of: accept-proposal, "),
        (send_line(performative=3), "`performative` is a number"),
        (send_line(content={"a": 1}), "`content` is an object"),
        (send_line(content="\ud800"), "`content` holds a lone surrogate"),
        (send_line(content="x", content_base64="eA=="), "exclude each other"),
        (send_line(content_base64="!"), "`content_base64` is not base64"),
        (send_line(conversation_id=4), "`conversation_id` is a number"),
        (send_line(reply_to=[None]), "`reply_to` holds null"),
        (send_line(reply_by="tomorrow"), "`reply_by` is 'tomorrow'; expected ISO 8601"),
        (send_line(reply_by="2026-12-31T23:59:59"), "with a zone"),
        (send_line(reply_by="9999-12-31T23:59:59-23:59"), "expected ISO 8601"),
        (send_line(**{"X-priority": 3}), "`X-priority` is a number"),
        (b'{"action":"register"}', "`services` must be a list"),
        (b'{"action":"register","services":[]}', "`services` must be a list"),
        (b'{"action":"register","services":[{"name":"n"}]}', "a service without `type`"),
        (b'{"action":"register","services":[{"type":"t","properties":[1]}]}', "`properties` is a list"),
        (b'{"actions":"noop"}', "`actions` is a text, not a list"),
        (b'{"actions":["noop"]}', "an entry of `actions` is a text"),
        (b'{"action":"noop","action":"delete"}', "the key 'action' comes twice"),
        (b'{"action":"noop","score":NaN}', "NaN is not a JSON value"),
        (b'{"action":"noop","score":-Infinity}', "-Infinity is not a JSON value"),
        (b'{"action":"noop","score":1e999}', "a number is too large"),
        (b'{"action":"noop","n":' + b"9" * 5_000 + b"}", "an integer of 5,000 digits"),
        (json.dumps([{"action": "noop"}] * (MAX_ACTIONS_PER_LINE + 1)).encode(), "1,001 actions in one line"),
    ],
)
def test_action_that_cannot_be_carried_out_says_why_and_counts(line: bytes, reason: str) -> None:
    assert reason in bad_reason(line)


@pytest.mark.parametrize(
    "line",
    [
        OverlongLine(7_000_000, b'{"action":"send"'),
        b'{"action":"noop","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'[{"action":"noop","x":' + b'{"x":' * 100_000,
        b'{"action":"send","to":"bob","msg":{"performative":"inform","content":NaN}}',
        b'{"action":"noop","action":"delete"}',
        json.dumps([{"action": "noop"}] * (MAX_ACTIONS_PER_LINE + 1)).encode(),
    ],
)
def test_answer_of_which_nothing_can_be_read_counts_and_says_so(line: bytes | OverlongLine) -> None:
    answer = parse_line(line)
    assert isinstance(answer, Answer)
    assert answer.idle
    assert answer.unreadable


def test_action_that_makes_no_sense_is_no_unreadable_line() -> None:
    answer = parse_line(b'{"action":"explode"}')
    assert isinstance(answer, Answer)
    assert answer.unreadable is None


def test_error_text_never_holds_content() -> None:
    assert "secret" not in bad_reason(send_line(content=["secret"]))
    assert "secret" not in bad_reason(send_line(content="secret", reply_by="never"))
    assert len(bad_reason(b'{"action":"' + b"x" * 10_000 + b'"}')) < 200


@pytest.mark.parametrize("begin", [b'{"action":"send"', b'\xef\xbb\xbf {"id":4', b'[{"action"'])
def test_overlong_line_that_begins_like_an_answer_counts_as_one(begin: bytes) -> None:
    answer = parse_line(OverlongLine(7_000_000, begin))
    assert isinstance(answer, Answer)
    assert answer.idle
    assert "7,000,000 bytes is over the limit" in str(answer.actions[0])


def test_overlong_noise_is_noise() -> None:
    noise = parse_line(OverlongLine(7_000_000, b"x" * 64))
    assert isinstance(noise, Noise)
    assert "over the limit" in noise.reason


@pytest.mark.parametrize(
    ("word", "action"), [("delete", Delete()), ("suspend", Suspend()), ("wake", Wake()), ("deregister", Deregister())]
)
def test_plain_actions(word: str, action: object) -> None:
    assert only_action(json.dumps({"action": word}).encode()) == action


def test_send_to_several_receivers() -> None:
    line = b'{"action":"send","to":["a","b","a"],"msg":{"performative":"inform","content":"x"}}'
    assert only_action(line) == SendAction(("a", "b"), Performative.INFORM, "x")


def test_send_without_to_goes_to_the_receivers() -> None:
    line = b'{"action":"send","msg":{"performative":"inform","receivers":["a","b"]}}'
    assert only_action(line) == SendAction(("a", "b"), Performative.INFORM, receivers=("a", "b"))


def test_send_maps_every_acl_parameter() -> None:
    line = send_line(
        performative="QUERY-REF",
        sender="somebody else",
        content="caf\u00e9",
        receivers="c",
        reply_to=["d", "e"],
        language="fipa-sl0",
        encoding="utf-8",
        ontology="docs",
        protocol="fipa-query",
        conversation_id="k1",
        reply_with="",
        in_reply_to="q1",
        reply_by="2026-12-31T23:59:59Z",
        **{"X-priority": "high", "x-trace": None, "unknown": {"k": 1}},
    )
    assert only_action(line) == SendAction(
        to=("a",),
        performative=Performative.QUERY_REF,
        content="caf\u00e9",
        receivers=("c",),
        reply_to=("d", "e"),
        language="fipa-sl0",
        encoding="utf-8",
        ontology="docs",
        protocol="fipa-query",
        conversation_id="k1",
        reply_with="",
        in_reply_to="q1",
        reply_by=datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC),
        user_parameters={"X-priority": "high"},
    )


@pytest.mark.parametrize("data", [b"", b"\x00\xff\n"])
def test_send_bytes_content(data: bytes) -> None:
    action = only_action(send_line(content_base64=base64.b64encode(data).decode()))
    assert isinstance(action, SendAction)
    assert action.content == data


def test_absent_and_null_content_differ_from_empty() -> None:
    assert only_action(send_line()) == only_action(send_line(content=None))
    assert only_action(send_line()) != only_action(send_line(content=""))


def test_register_services() -> None:
    line = json.dumps(
        {
            "action": "register",
            "services": [
                "echo",
                {"name": "s-en", "type": "summarise", "languages": ["en", "fr"], "properties": {"lang": "en"}},
            ],
        }
    ).encode()
    assert only_action(line) == Register(
        (
            ServiceDescription(type="echo"),
            ServiceDescription(
                name="s-en",
                type="summarise",
                languages=frozenset({"en", "fr"}),
                properties=(Property("lang", "en"),),
            ),
        )
    )


@pytest.mark.parametrize(
    "line",
    [
        b'{"actions":[{"action":"noop"},{"action":"explode"},{"action":"wake"}],"id":7}',
        b'[{"action":"noop","id":7},{"action":"explode"},{"action":"wake"}]',
    ],
)
def test_list_of_actions_passes_the_neighbours_of_a_bad_one(line: bytes) -> None:
    answer = parse_line(line)
    assert isinstance(answer, Answer)
    assert answer.id == 7
    assert [type(action) for action in answer.actions] == [Noop, BadAction, Wake]
    assert not answer.idle


def test_empty_list_of_actions_is_noop() -> None:
    assert parse_line(b'{"actions":[],"id":7}') == Answer((Noop(),), 7)


@pytest.mark.parametrize(
    ("raw", "answered"),
    [("7", 7), ('"7"', "7"), ('"a"', "a"), ("null", None), ("true", None), ("[1]", None), ("1.5", None)],
)
def test_id_is_a_number_or_text(raw: str, answered: int | str | None) -> None:
    assert parse_line(f'{{"action":"noop","id":{raw}}}'.encode()) == Answer((Noop(),), answered)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=12,
)
keys = [
    "action",
    "actions",
    "to",
    "msg",
    "performative",
    "content",
    "content_base64",
    "reply_by",
    "services",
    "type",
    "id",
]
shaped = st.recursive(
    json_values | st.sampled_from(["noop", "send", "register", "inform", "a"]),
    lambda inner: st.dictionaries(st.sampled_from(keys), inner, max_size=6) | st.lists(inner, max_size=3),
    max_leaves=20,
)


@given(shaped)
def test_no_json_makes_parsing_raise(value: object) -> None:
    assert isinstance(parse_line(json.dumps(value).encode()), Answer | Noise)


@given(st.binary(max_size=60).map(lambda data: b"{" + data) | st.binary(max_size=60))
def test_no_bytes_make_parsing_raise(line: bytes) -> None:
    assert isinstance(parse_line(line), Answer | Noise | Blank)
