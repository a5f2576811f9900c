"""S-expressions of fipa-sl0: what is read, what is printed, and what hostile texts get."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acl.sexpr import (
    MAX_DEPTH,
    Expression,
    Keyword,
    Text,
    Word,
    constant,
    parse_expression,
    print_expression,
)
from gagent_grpc.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("word", Word("word")),
        (" \r\n\tword ", Word("word")),
        ("-1", Word("-1")),
        ("df@hub.example:1099/JADE", Word("df@hub.example:1099/JADE")),
        ("http://x:7778/acc", Word("http://x:7778/acc")),
        ("a#b", Word("a#b")),
        ("()", ()),
        ("(a(b)c)", (Word("a"), (Word("b"),), Word("c"))),
        ("(a :Name b)", (Word("a"), Keyword("Name"), Word("b"))),
        ('""', Text("")),
        (r'"say \"hi\" to C:\dir \\ "', Text(r'say "hi" to C:\dir \ ')),
        ('"line\nbreak (and) :not a keyword"', Text("line\nbreak (and) :not a keyword")),
        ('#5"hello', Text("hello")),
        ('(#3"é" b)', (Text('é"'), Word("b"))),
        ('#0"', Text("")),
        ('#7")(":x " ', Text(')(":x "')),
    ],
)
def test_expression_is_read(text: str, expected: Expression) -> None:
    assert parse_expression(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "character 0: expected an expression"),
        ("  ", "character 2: expected an expression"),
        ("(a", r"character 2: expected '\)' for the '\(' at character 0"),
        ("(a (b)", r"character 6: expected '\)' for the '\(' at character 0"),
        ("a)", "character 1: expected the end of the text"),
        (")", r"character 0: expected an expression, not '\)'"),
        ("a b", "character 2: expected the end of the text"),
        ('(a "b)', "character 3: expected a closing quote"),
        ('"a\\"', "character 0: expected a closing quote"),
        ('"a\\', "character 0: expected a closing quote"),
        ('(a"b")', "character 2: expected a blank or a parenthesis"),
        ('("a"b)', "character 4: expected a blank or a parenthesis"),
        ("(a :)", "character 3: expected a parameter name"),
        ("(a ::b)", "character 3: expected a parameter name"),
        ("#", "character 0: expected a byte-length string"),
        ("#x", "character 0: expected a byte-length string"),
        ('#9999999999"a', "character 0: expected a byte-length string"),
        ('#6"hello', "character 3: expected 6 bytes, not 5"),
        ('#999999999"a', "character 11: expected 999999999 bytes, not 1"),
        ('#1"é', "character 3: expected 1 bytes that end with a whole character"),
        ("a\0b", r"character 1: expected .*"),
        ("(a \0)", r"character 3: expected an expression, not the character '\\x00'"),
        ("(a \x0b b)", r"character 3: expected an expression"),
        ("(a \ud800)", "character 3: expected valid Unicode"),
    ],
)
def test_bad_text_is_refused_with_the_place_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_expression(text)


def nested(depth: int) -> str:
    return "(" * depth + "a" + ")" * depth


def test_nesting_is_bounded() -> None:
    assert print_expression(parse_expression(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(InvalidArgument, match="character 64: expected at most 64 levels"):
        parse_expression(nested(MAX_DEPTH + 1))
    with pytest.raises(InvalidArgument, match="at most 64 levels"):
        parse_expression("(" * 1_000_000)


def test_expression_that_is_nested_too_deeply_is_not_printed() -> None:
    deep: Expression = ()
    for _ in range(5000):
        deep = (deep,)
    with pytest.raises(InvalidArgument, match="nested deeper"):
        print_expression(deep)


@pytest.mark.parametrize(
    "hostile",
    [
        '"' * 300_001,
        '"\\' * 150_000,
        "(" + '#1"a ' * 50_000,
        "a" * 1_000_000 + '"',
        " " * 1_000_000,
        '"' + "a" * 1_000_000,
        '"' + "\\a" * 500_000,
    ],
)
def test_huge_bad_text_is_refused_in_linear_time(hostile: str) -> None:
    # A quadratic or backtracking reader would not come back from these within the test's patience.
    with pytest.raises(InvalidArgument):
        parse_expression(hostile)


@pytest.mark.parametrize("text", ["", "a b", "(", '"', ":a", "#1", "a\0", "a\n"])
def test_word_and_keyword_that_would_be_read_as_something_else_cannot_be_made(text: str) -> None:
    for kind in (Word, Keyword):
        with pytest.raises(InvalidArgument):
            kind(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("df@p", "df@p"),
        ("2fast", '"2fast"'),
        ("-x", '"-x"'),
        ("a b", '"a b"'),
        ("", '""'),
        ("?x", '"?x"'),
        ('a"', r'"a\""'),
    ],
)
def test_text_is_printed_as_a_word_only_where_fipa_has_it_as_one(text: str, printed: str) -> None:
    assert print_expression(constant(text)) == printed


words = st.from_regex(r"\A[a-z0-9?_-][a-zA-Z0-9:#@/._-]{0,8}\Z")
atoms: st.SearchStrategy[Expression] = st.builds(Word, words) | st.builds(Text, st.text()) | st.builds(Keyword, words)
expressions = st.recursive(atoms, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=20)


@settings(deadline=None)
@given(expressions)
def test_printed_expression_is_read_back(expression: Expression) -> None:
    assert parse_expression(print_expression(expression)) == expression


@settings(deadline=None)
@given(st.text())
def test_any_text_as_a_constant_is_read_back(text: str) -> None:
    found = parse_expression(print_expression(constant(text)))
    assert isinstance(found, Word | Text)
    assert found.text == text


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet='()":#\\ \n\0a1é-?') | st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    # Any other exception fails the test.
    with contextlib.suppress(InvalidArgument):
        parse_expression(text)
