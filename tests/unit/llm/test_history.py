"""What is remembered of talks: whole turns, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc import InvalidArgument
from gagent_grpc.llm.history import Histories, Key, Turn

ALICE, BOB = Key("alice", "talk"), Key("bob", "talk")


def turns(count: int) -> list[Turn]:
    return [Turn(f"question {number}", f"answer {number}") for number in range(count)]


def test_the_latest_turns_are_kept_whole() -> None:
    histories = Histories(2)
    for turn in turns(5):
        histories.add(ALICE, turn)
    assert histories.turns(ALICE) == tuple(turns(5)[3:])
    assert histories.turns(BOB) == histories.turns(Key("alice", "")) == ()


def test_nothing_is_kept_of_no_turns() -> None:
    histories = Histories(0)
    histories.add(ALICE, Turn("q", "a"))
    assert (histories.turns(ALICE), len(histories), histories.size) == ((), 0, 0)


def test_a_turn_that_is_too_large_goes_whole() -> None:
    histories = Histories(turn_bytes=20)
    histories.add(ALICE, Turn("short", "one"))
    histories.add(ALICE, Turn("é" * 10, "x"))
    assert histories.turns(ALICE) == ()
    histories.add(ALICE, Turn("é" * 9, "xx"))
    assert histories.turns(ALICE) == (Turn("é" * 9, "xx"),)


def test_the_conversation_that_was_quiet_for_longest_is_forgotten() -> None:
    histories = Histories(conversations=2)
    for name in ("alice", "bob", "alice", "carl"):
        histories.add(Key(name, ""), Turn(name, "yes"))
    assert [bool(histories.turns(Key(name, ""))) for name in ("alice", "bob", "carl")] == [True, False, True]


def test_half_of_a_conversation_is_forgotten_until_nothing_is_left() -> None:
    histories = Histories()
    for turn in turns(5):
        histories.add(ALICE, turn)
    left = []
    while histories.shorten(ALICE):
        left.append(len(histories.turns(ALICE)))
    assert left == [2, 1, 0]
    assert histories.size == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.text(max_size=30), st.text(max_size=30)), max_size=60))
def test_bounds_hold_whatever_is_said(said: list[tuple[int, str, str]]) -> None:
    histories = Histories(3, turn_bytes=60, total_bytes=150, conversations=4)
    for who, question, answer in said:
        key, turn = Key(str(who), ""), Turn(question, answer)
        histories.add(key, turn)
        assert len(histories.turns(key)) <= 3
        if turn.size <= 60:
            assert histories.turns(key)[-1] == turn
        sizes = [sum(one.size for one in histories.turns(Key(str(name), ""))) for name in range(6)]
        assert histories.size == sum(sizes) <= 150
        assert max(sizes) <= 60
        assert len(histories) <= 4


@pytest.mark.parametrize("bound", ["max_turns", "turn_bytes", "total_bytes", "conversations"])
def test_a_bound_below_zero(bound: str) -> None:
    with pytest.raises(InvalidArgument, match="expected 0 or more"):
        Histories(**{bound: -1})
