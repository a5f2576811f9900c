"""Text of a model that holds halves of surrogate pairs, whole and in pieces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.llm import Completion, Stop, ToolCall
from gagent_grpc.llm.unicode import Joiner, well_formed, well_formed_completion

HALVES = st.text(st.sampled_from("a\u00e9\U0001f600\ud83d\ude00\ud800\udfff"), max_size=12)


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("plain", "plain"),
        ("\U0001f600", "\U0001f600"),
        ("a \ud83d\ude00 b", "a \U0001f600 b"),
        ("cut \ud83d", "cut \ufffd"),
        ("\ud83da", "\ufffda"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
    ],
)
def test_halves_become_a_character_or_its_stand_in(said: str, sent: str) -> None:
    assert well_formed(said) == sent


@given(HALVES, st.lists(st.integers(0, 12)))
def test_pieces_come_to_the_same_as_the_whole(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(min(one, len(text)) for one in cuts)})
    joiner = Joiner()
    pieces = [joiner.feed(text[start:end]) for start, end in itertools.pairwise(places)]
    assert "".join([*pieces, joiner.finish()]) == well_formed(text)
    for piece in pieces:
        piece.encode()


@given(HALVES)
def test_every_text_of_a_completion_can_travel(text: str) -> None:
    native = [{"type": "text", "text": text, "more": {text: [text, 1, None]}}]
    done = well_formed_completion(Completion(text, Stop.CALLS, (ToolCall(text, text, text),), native=native))
    call = done.calls[0]
    for one in (done.text, call.id, call.name, call.arguments, json.dumps(done.native, ensure_ascii=False)):
        one.encode()
