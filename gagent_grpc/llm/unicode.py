"""Text of a model as text that can travel: JSON can say half a surrogate pair, which is no character and has no UTF-8.

Models write such halves where an answer ends at its last token in the middle of an emoji, and endpoints that stream them cut
pairs in two.

Owns: whole pairs, and what stands for a half. Pure. Leaves to others: where text comes from (`llm.providers`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gagent_grpc.llm.chat import Completion, ToolCall


def well_formed(text: str) -> str:
    """Return ``text`` with the halves of a pair that follow each other as one character, and U+FFFD for any other half."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_json(value: Any) -> Any:
    """Return a JSON value with all of its texts, keys among them, as `well_formed` has them."""
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {well_formed_json(key): well_formed_json(item) for key, item in value.items()}
        case list():
            return [well_formed_json(item) for item in value]
        case _:
            return value


def well_formed_completion(completion: Completion) -> Completion:
    """Return a completion, all texts of which can travel."""
    calls = [ToolCall(*map(well_formed, (one.id, one.name, one.arguments))) for one in completion.calls]
    return replace(
        completion,
        text=well_formed(completion.text),
        calls=tuple(calls),
        native=well_formed_json(completion.native),
    )


class Joiner:
    """Makes text that comes in pieces well-formed: a half at the end of a piece waits for the next one."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """Return what can be passed on now."""
        text = self._half + piece
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return well_formed(text.removesuffix(self._half))

    def finish(self) -> str:
        """Return what stands for a half that waited in vain; mostly nothing."""
        text, self._half = well_formed(self._half), ""
        return text
