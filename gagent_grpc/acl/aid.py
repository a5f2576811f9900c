"""Agent identifiers and delivery addresses: their syntax, their normal form, and their ASCII encoding.

Owns: what a name may look like. Leaves to others: who is registered (AMS), who offers what (DF).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from gagent_grpc.errors import InvalidName

MAX_NAME_BYTES = 128
"""Longest local name, in bytes of UTF-8."""
MAX_PLATFORM_CHARS = 255
"""Longest platform name, in characters."""
RESERVED_NAMES = frozenset({"ams", "df"})
"""Local names that only the platform's own agents bear (FIPA SC00023 §4)."""
NAME_FORM = (
    f"1 to {MAX_NAME_BYTES} bytes of letters, digits and . _ - + with a letter or digit first, in Unicode normal form C"
)
PLATFORM_FORM = f"1 to {MAX_PLATFORM_CHARS} printable characters without blanks or @"


def _shown(value: object) -> str:
    """Return ``value`` as an error text shows it: quoted, with control characters escaped, cut at 80 characters."""
    text = ascii(value) if not isinstance(value, str) or not value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def check_name(name: str, *, what: str = "agent name") -> str:
    """Return ``name`` when it is a valid local name.

    Raises:
        InvalidName: It is not; the text names the value and the expected form.
    """
    if not isinstance(name, str) or not name:
        raise InvalidName(f"{what} {_shown(name)}: expected {NAME_FORM}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{what} {_shown(name)}: not valid Unicode; expected {NAME_FORM}") from None
    if size > MAX_NAME_BYTES:
        raise InvalidName(f"{what} {_shown(name)}: {size} bytes; expected {NAME_FORM}")
    first = True
    for char in name:
        # isalnum alone would also pass superscripts and fractions, which are neither letters nor digits here; a
        # combining mark belongs to the letter before it, as scripts such as Devanagari need it.
        category = unicodedata.category(char)
        letter_or_digit = category[0] == "L" or category == "Nd"
        if char in _INVISIBLE or not (letter_or_digit or (not first and (char in "._-+" or category in ("Mn", "Mc")))):
            raise InvalidName(
                f"{what} {_shown(name)}: the character {_shown(char)} is not allowed; expected {NAME_FORM}"
            )
        first = False
    if not unicodedata.is_normalized("NFC", name):
        raise InvalidName(f"{what} {_shown(name)}: not in normal form C; expected {NAME_FORM}")
    return name


def check_platform(platform: str) -> str:
    """Return ``platform`` when it is a valid platform name; `hub.example:1099/JADE` is one.

    Raises:
        InvalidName: It is not.
    """
    bad = (
        not isinstance(platform, str)
        or not 1 <= len(platform) <= MAX_PLATFORM_CHARS
        or not platform.isprintable()
        or any(char.isspace() or char == "@" for char in platform)
    )
    if bad:
        raise InvalidName(f"platform name {_shown(platform)}: expected {PLATFORM_FORM}")
    return platform


def split_aid(aid: str) -> tuple[str, str]:
    """Return the local name and the platform of ``aid``; the platform is "" for a bare name.

    Raises:
        InvalidName: Either part is not valid.
    """
    name, at, platform = aid.partition("@")
    check_name(name)
    if at:
        check_platform(platform)
    return name, platform


def encode_name(name: str) -> str:
    """Return an injective ASCII form of ``name`` for file names, NATS subjects and keys, and metadata.

    Lower-case ASCII letters, digits, `-` and `_` stand for themselves, every other byte of the UTF-8 form is `=hh`.
    Upper case is encoded too, so two names never meet on a file system that folds case.
    """
    return "".join(chr(b) if chr(b) in _PLAIN else f"={b:02x}" for b in name.encode())


# Letters and marks that show nothing (Default_Ignorable_Code_Point): with one of them, a second agent would look like
# the first.
_INVISIBLE = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164, 0xFFA0))
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


@dataclass(frozen=True, slots=True)
class AgentIdentifier:
    """FIPA's agent-identifier (SC00023 §3): two are the same agent exactly when their names are equal."""

    name: str
    """`name@platform`, or a bare name on this platform."""
    addresses: tuple[str, ...] = field(default=(), compare=False)
    """Transport addresses in order of preference; carried, not used for routing on this platform."""
    resolvers: tuple[AgentIdentifier, ...] = field(default=(), compare=False)
    """Agents that can resolve the name, in order."""
    user_slots: Mapping[str, str] = field(default_factory=dict, compare=False)
    """`X-` slots, unchanged."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, who: str | AgentIdentifier) -> AgentIdentifier:
        """Return ``who`` itself, or the identifier with that name."""
        return who if isinstance(who, AgentIdentifier) else cls(who)
