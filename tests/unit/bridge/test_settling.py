"""How long a script that repeats no ids is waited for after its answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.bridge.settling import EXPECT_S, EXPECTED_ANSWERS, NEW_ANSWERS, NEW_SETTLE_S, SETTLE_S, Settling


def pause_of(settling: Settling, now: float) -> float:
    return round(settling.answered(now) - now, 6)


def test_new_script_is_waited_for_longer_than_a_known_one() -> None:
    settling = Settling()
    assert [pause_of(settling, float(number)) for number in range(NEW_ANSWERS + 2)] == [
        *[NEW_SETTLE_S] * NEW_ANSWERS,
        SETTLE_S,
        SETTLE_S,
    ]


def test_second_line_is_waited_for_once_there_was_one_and_ends_the_pause() -> None:
    settling = Settling()
    for number in range(NEW_ANSWERS):
        settling.answered(float(number))
    settling.answered(10.0)
    settling.unsolicited(10.2)
    assert pause_of(settling, 11.0) == EXPECT_S
    assert settling.unsolicited(11.1) == 11.1 + NEW_SETTLE_S


def test_no_second_line_is_waited_for_when_none_came_for_a_while() -> None:
    settling = Settling()
    for number in range(NEW_ANSWERS):
        settling.answered(float(number))
    settling.unsolicited(NEW_ANSWERS - 1.0)
    pauses = [pause_of(settling, 20.0 + number) for number in range(EXPECTED_ANSWERS + 1)]
    assert set(pauses[:-1]) == {EXPECT_S}
    assert pauses[-1] == SETTLE_S


def test_line_of_its_own_accord_changes_nothing() -> None:
    settling = Settling()
    for number in range(NEW_ANSWERS):
        settling.answered(float(number))
    assert settling.unsolicited(100.0) == 100.0
    assert pause_of(settling, 101.0) == SETTLE_S


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10)), max_size=300))
def test_pause_is_bounded_whatever_comes(lines: list[tuple[bool, float]]) -> None:
    settling, now = Settling(), 0.0
    for owed, pause in lines:
        now += pause
        until = settling.answered(now) if owed else settling.unsolicited(now)
        assert 0 <= until - now <= EXPECT_S + 1e-9
