"""Names and identifiers: what is accepted, what is refused with which words, and the ASCII encoding."""

from __future__ import annotations

import unicodedata
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acl.aid import (
    MAX_NAME_BYTES,
    AgentIdentifier,
    check_name,
    check_platform,
    encode_name,
    split_aid,
)
from gagent_grpc.errors import InvalidName

HOSTILE_NAMES = {
    "empty": "",
    "blank": " ",
    "inner blank": "a b",
    "trailing newline": "planner\n",
    "newline": "a\nb",
    "carriage return": "a\rb",
    "NUL": "a\0b",
    "slash": "a/b",
    "backslash": "a\\b",
    "dot dot slash": "../etc",
    "star": "*",
    "greater": ">",
    "inner star": "a*",
    "colon": "role:x",
    "at": "a@b",
    "dot first": ".hidden",
    "minus first": "-rf",
    "plus first": "+a",
    "underscore first": "_a",
    "quote": 'a"b',
    "parenthesis": "a(b",
    "superscript": "a²",
    "fraction": "½",
    "circled digit": "①",
    "roman numeral": "Ⅻ",
    "emoji": "🙂",
    "zero-width space": "a\u200bb",
    "zero-width joiner": "a\u200db",
    "right-to-left override": "a\u202eb",
    "byte order mark": "\ufeffa",
    "soft hyphen": "a\u00adb",
    "combining mark first": "\u0301a",
    "decomposed": unicodedata.normalize("NFD", "é"),
    "singleton that NFC replaces": "\u212b",
    "lone surrogate": "a\ud800",
    "private use": "a\ue000",
    "unassigned": "a\u0378",
}


@pytest.mark.parametrize(
    "name", ["a", "A", "7", "data_analyst", "sum1.v2-b+c", "agent-é", "助手", "агент", "ams2", "नमस्ते"]
)
def test_valid_name_is_returned_unchanged(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES.keys())
def test_hostile_name_is_refused_with_the_expected_form(name: str) -> None:
    with pytest.raises(InvalidName, match="expected 1 to 128 bytes") as raised:
        check_name(name)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "char", ["\u034f", "\u115f", "\u1160", "\u17b4", "\u180b", "\u3164", "\ufe0f", "\uffa0", "\U000e0100"]
)
def test_letter_or_mark_that_shows_nothing_is_refused(char: str) -> None:
    # Otherwise "planner" and "planner" + the character would be two agents that look the same.
    with pytest.raises(InvalidName):
        check_name("planner" + char)


def test_name_is_bounded_in_bytes_not_characters() -> None:
    assert check_name("é" * 64) == "é" * 64
    for name in ("a" * (MAX_NAME_BYTES + 1), "a" * 256, "é" * 65, "a" * 1_000_000):
        with pytest.raises(InvalidName, match=r"bytes; expected") as raised:
            check_name(name)
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize("value", [None, 7, b"a", ["a"]])
def test_name_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidName):
        check_name(value)  # type: ignore[arg-type]  # What an untyped caller may do.


@pytest.mark.parametrize("platform", ["local", "server2", "hub.example:1099/JADE", "x" * 255, "[::1]:50051"])
def test_platform_of_other_systems_passes(platform: str) -> None:
    assert check_platform(platform) == platform


@pytest.mark.parametrize("platform", ["", "a b", "a@b", "a\n", "a\0", "a\u00a0b", "x" * 256, "\ud800", "a\u200b"])
def test_hostile_platform_is_refused(platform: str) -> None:
    with pytest.raises(InvalidName, match="platform name"):
        check_platform(platform)


def test_aid_splits_at_its_only_at() -> None:
    assert split_aid("a") == ("a", "")
    assert split_aid("ams") == ("ams", "")
    assert split_aid("rma@hub.example:1099/JADE") == ("rma", "hub.example:1099/JADE")


@pytest.mark.parametrize("aid", ["", "@", "a@", "@p", "a@b@c", "a b@p", "a@p q", "*", "role:x", "topic:a.b"])
def test_text_that_is_no_aid_is_refused(aid: str) -> None:
    with pytest.raises(InvalidName):
        split_aid(aid)


@settings(deadline=None)
@given(st.text())
def test_no_two_names_share_an_encoded_form(name: str) -> None:
    # What has a left inverse is injective.
    assert unquote(encode_name(name).replace("=", "%")) == name


@settings(deadline=None)
@given(st.text())
def test_encoded_name_is_safe_for_files_subjects_and_metadata(name: str) -> None:
    encoded = encode_name(name)
    assert set(encoded) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_=")
    assert encoded == encoded.lower()


def test_names_that_differ_only_in_case_stay_apart_on_every_file_system() -> None:
    names = ["planner", "Planner", "PLANNER", "=50lanner", "straße", "STRASSE", "ſ", "s"]
    assert len({encode_name(name).casefold() for name in names}) == len(names)


def test_identifiers_are_the_same_agent_when_their_names_are_equal() -> None:
    plain = AgentIdentifier("a@p")
    full = AgentIdentifier(
        "a@p", addresses=("http://x/acc",), resolvers=(AgentIdentifier("r"),), user_slots={"X-a": "1"}
    )
    assert plain == full
    assert hash(plain) == hash(full)
    assert plain != AgentIdentifier("A@p")
    assert str(full) == "a@p"


def test_identifier_of_takes_a_name_or_an_identifier() -> None:
    full = AgentIdentifier("a", addresses=("http://x/acc",))
    assert AgentIdentifier.of(full) is full
    assert AgentIdentifier.of("a") == full
