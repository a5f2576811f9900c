"""The s-expressions of fipa-sl0 (SC00008): words, strings, keywords and lists, read and printed.

Owns: the lexical form and its bounds. Leaves to others: what is said with it (`acl.sl0`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from gagent_grpc.errors import InvalidArgument

LANGUAGE = "fipa-sl0"
"""Name of the language; other platforms write it in other cases, so compare without case."""
MAX_DEPTH = 64
"""Deepest nesting of parentheses."""

_WORD = r'[^\x00-\x20()":#][^\x00-\x20()"]*+'
_WORD_FORM = re.compile(_WORD)
# FIPA's word, which unlike ours begins with no digit, `-` or `?`; what is no such word is printed in quotes.
_PLAIN_WORD = re.compile(r'[^\x00-\x20()":#0-9?-][^\x00-\x20()"]*')
_TOKEN = re.compile(
    rf"""(?P<open>\() | (?P<close>\))
    | "(?P<string>(?:[^"\\]++|\\.)*+)"
    | \#(?P<size>[0-9]{{1,9}})"
    | :(?P<keyword>{_WORD})
    | (?P<word>{_WORD})""",
    re.DOTALL | re.VERBOSE,
)
_BLANKS = re.compile(r"[ \t\r\n]*+")
# A backslash escapes a quote or itself and is an ordinary character before anything else.
_ESCAPED = re.compile(r'\\(["\\])')


@dataclass(frozen=True, slots=True)
class Word:
    """An unquoted symbol or number, as it was written."""

    text: str

    def __post_init__(self) -> None:
        """Refuse a text that would be read back as something else."""
        if not _WORD_FORM.fullmatch(self.text):
            raise InvalidArgument(f"{self.text[:80]!r} is not a word of {LANGUAGE}")


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal, without its quotes and escapes."""

    text: str


@dataclass(frozen=True, slots=True)
class Keyword:
    """The `:name` before a parameter, without the colon; compared without case where it is looked up."""

    name: str

    def __post_init__(self) -> None:
        """Refuse a name that would be read back as something else."""
        if not _WORD_FORM.fullmatch(self.name):
            raise InvalidArgument(f"{self.name[:80]!r} is not a keyword of {LANGUAGE}")


Expression: TypeAlias = "Word | Text | Keyword | tuple[Expression, ...]"
"""An atom, or a list in parentheses."""


def parse_expression(text: str, *, max_depth: int = MAX_DEPTH) -> Expression:
    """Return the one expression that ``text`` holds.

    Args:
        text: The expression, with any white space around it.
        max_depth: Deepest nesting that is read.

    Raises:
        InvalidArgument: Anything else; the text says at which character, and what was expected.

    Spec: FIPA SC00008, lexical definitions.
    """
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise _syntax(exc.start, "valid Unicode, not half of a surrogate pair") from None
    # Lists that are open, innermost last, each with the place of its parenthesis. A loop and no recursion: how deep a
    # stranger nests must not be a matter of the interpreter's stack.
    lists: list[tuple[int, list[Expression]]] = []
    end = len(text)
    at = _skip_blanks(text, 0)
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            _bad_token(text, at)
        done: Expression
        if token["open"]:
            if len(lists) == max_depth:
                raise _syntax(at, f"at most {max_depth} levels of parentheses")
            lists.append((at, []))
            at = _skip_blanks(text, token.end())
            continue
        start, at = at, token.end()
        if token["close"]:
            if not lists:
                raise _syntax(start, "an expression, not ')'")
            done = tuple(lists.pop()[1])
        else:
            done, at = _atom(text, token)
            if at < end and text[at] not in " \t\r\n()":
                raise _syntax(at, "a blank or a parenthesis after an atom")
        at = _skip_blanks(text, at)
        if lists:
            lists[-1][1].append(done)
        elif at < end:
            raise _syntax(at, "the end of the text after the first expression")
        else:
            return done
    if lists:
        raise _syntax(end, f"')' for the '(' at character {lists[-1][0]}")
    raise _syntax(end, "an expression")


def print_expression(expression: Expression) -> str:
    """Return ``expression`` as text; `parse_expression` gives the same expression back.

    Raises:
        InvalidArgument: It is nested deeper than an answer to a readable action can be.
    """
    parts: list[str] = []
    _print(expression, parts, 0)
    return "".join(parts)


def constant(text: str) -> Word | Text:
    """Return the atom that states ``text``: a word where FIPA has it as one, else a string."""
    return Word(text) if text.isprintable() and _PLAIN_WORD.fullmatch(text) else Text(text)


def _print(expression: Expression, parts: list[str], depth: int) -> None:
    match expression:
        case Word(text):
            parts.append(text)
        case Text(text):
            parts.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
        case Keyword(name):
            parts.append(":" + name)
        case _:
            # An answer wraps the action that it answers in one more list.
            if depth > MAX_DEPTH:
                raise InvalidArgument(f"{LANGUAGE}: nested deeper than {MAX_DEPTH + 1} levels")
            parts.append("(")
            for i, item in enumerate(expression):
                if i:
                    parts.append(" ")
                _print(item, parts, depth + 1)
            parts.append(")")


def _skip_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _atom(text: str, token: re.Match[str]) -> tuple[Expression, int]:
    """Return the atom that ``token`` begins, and the place behind it."""
    if token["word"] is not None:
        return Word(token["word"]), token.end()
    if token["keyword"] is not None:
        return Keyword(token["keyword"]), token.end()
    if token["string"] is not None:
        return Text(_ESCAPED.sub(r"\1", token["string"])), token.end()
    # A byte-length string: #5"hello, with no closing quote. No more characters than bytes can belong to it.
    size = int(token["size"])
    start = token.end()
    data = text[start : start + size].encode()
    try:
        found = data[:size].decode()
    except UnicodeDecodeError:
        raise _syntax(start, f"{size} bytes that end with a whole character") from None
    if len(data) < size:
        raise _syntax(start, f"{size} bytes, not {len(data)}")
    return Text(found), start + len(found)


def _bad_token(text: str, at: int) -> NoReturn:
    """Say what is wrong where no token begins."""
    match text[at]:
        case '"':
            raise _syntax(at, "a closing quote for this string")
        case "#":
            raise _syntax(at, 'a byte-length string such as #5"hello')
        case ":":
            raise _syntax(at, "a parameter name right after ':'")
        case char:
            raise _syntax(at, f"an expression, not the character {char!a}")


def _syntax(at: int, expected: str) -> InvalidArgument:
    return InvalidArgument(f"{LANGUAGE}, character {at}: expected {expected}", field="content")
