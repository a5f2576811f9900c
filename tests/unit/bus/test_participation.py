"""Who has a part in which conversation: groups that are brought in, strangers, names that are freed, and the bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.bus.ams import AgentManagementSystem
from gagent_grpc.bus.participation import Group, Participation
from gagent_grpc.config import BusLimits
from gagent_grpc.testing import FakeClock


def participation(**limits: Any) -> Participation:
    return Participation(AgentManagementSystem("local", max_agents=10), FakeClock(), BusLimits(**limits))


class Freed:
    """As much of an agent as the freeing of its name needs."""

    def __init__(self, aid: str) -> None:
        self.aid = aid


def group_of(made: Participation, aid: str, conversation_id: str = "c") -> Group:
    group = made.group_of(conversation_id, aid)
    assert group is not None
    return group


def members(made: Participation, aid: str, conversation_id: str = "c") -> list[str]:
    group = made.group_of(conversation_id, aid)
    return [] if group is None else list(group.members)


@pytest.fixture
def made() -> Participation:
    return participation()


def say(made: Participation, *pairs: str, conversation_id: str = "c", now: float = 1.0) -> None:
    for pair in pairs:
        made.note(conversation_id, pair[0], pair[1], now)


def test_receivers_of_a_member_join_and_an_answer_changes_nothing(made: Participation) -> None:
    say(made, "ab", "ba", "bc", "ab", "cd")
    for aid in "abcd":
        assert members(made, aid) == ["a", "b", "c", "d"]
    assert members(made, "e") == members(made, "a", "other") == []


def test_whoever_writes_into_a_conversation_of_others_has_a_group_of_its_own(made: Participation) -> None:
    say(made, "ab", "xb", "bx", "xy", "ab", "ba")
    assert members(made, "a") == ["a", "b"]
    assert members(made, "x") == members(made, "y") == ["x", "y"]
    assert members(made, "b") == ["a", "b"]
    say(made, "bz")
    assert members(made, "z") == ["a", "b", "z"]


def test_who_wrote_first_counts_whatever_others_do_later(made: Participation) -> None:
    say(made, "ab", "cd", "db", "cb")
    made.keep(group_of(made, "c"))
    say(made, "cb", "db", now=2.0)
    assert members(made, "b") == ["a", "b"]
    assert group_of(made, "d").members == {"c": 1.0, "d": 1.0}
    # Whom neither knows comes to whoever writes first.
    say(made, "de", "ae", now=3.0)
    assert members(made, "e") == ["c", "d", "e"]
    assert group_of(made, "e").members["e"] == 3.0


def test_topics_everybody_and_the_platform_make_no_participants_and_a_role_does(made: Participation) -> None:
    made.note("c", "a", "b", 1.0, "topic:news")
    made.note("c", "a", "b", 1.0, "*")
    made.note("c", "ams@local", "b", 1.0)
    made.note("c", "df@local", "b", 1.0)
    made.note("c", "anonymous", "b", 1.0)
    assert members(made, "b") == []
    assert len(made) == 0
    made.note("c", "a", "b", 1.0, "role:sum")
    assert members(made, "b") == ["a", "b"]


def test_a_freed_name_gives_no_part_to_its_next_bearer(made: Participation) -> None:
    say(made, "ab", "bc")
    say(made, "ba", conversation_id="d")
    made.freed(Freed("b"))
    assert members(made, "a") == ["a", "c"]
    made.taken("b")
    assert members(made, "b") == members(made, "b", "d") == []
    assert members(made, "a", "d") == ["a"]
    say(made, "ab")
    assert members(made, "b") == ["a", "c", "b"]


def test_members_and_groups_of_one_conversation_have_a_bound() -> None:
    made = participation(context_members=4)
    for number in range(10):
        made.note("c", "a", f"b{number}", 1.0)
    assert members(made, "a") == ["a", "b0", "b1", "b2"]
    for number in range(100):
        made.note("c", f"x{number}", "y", 2.0 + number)
    # Of those who were alone the ones that were idle longest went, and no others.
    assert members(made, "a") == ["a", "b0", "b1", "b2"]
    assert members(made, "y") == ["x0", "y"]
    assert [number for number in range(100) if members(made, f"x{number}")] == [0, *range(38, 100)]


def test_idle_conversations_are_forgotten_and_those_with_a_context_are_not() -> None:
    made = participation(context_idle=100.0)
    say(made, "ab", "xy", now=1.0)
    say(made, "ab", conversation_id="old", now=1.0)
    say(made, "ab", conversation_id="young", now=60.0)
    made.keep(group_of(made, "x"))
    made.look(120.0)
    assert members(made, "a", "old") == members(made, "a") == []
    assert members(made, "x") == ["x", "y"]
    assert members(made, "a", "young") == ["a", "b"]
    made.release(group_of(made, "x"))
    made.look(120.0)
    assert members(made, "x") == []


def test_whoever_begins_the_most_is_forgotten_first() -> None:
    made = participation(context_participants=400)
    for number in range(20):
        made.note(f"quiet {number}", "quiet", "b", 1.0)
    kept = group_of(made, "quiet", "quiet 0")
    made.keep(kept)
    for number in range(5_000):
        made.note(f"loud {number}", "loud", "b", 1.0)
        if number % 7 == 0:
            made.note(f"loud {number}", f"c{number % 3}", "loud", 1.0)
    assert all(members(made, "quiet", f"quiet {number}") for number in range(20))
    assert members(made, "loud", "loud 4999") == ["loud", "b"]
    assert members(made, "loud", "loud 4000") == []
    # Each agent of a group takes a place, and some are alone in theirs.
    assert len(made) <= 400


def test_an_old_message_that_comes_late_makes_nothing_older() -> None:
    made = participation(context_idle=100.0)
    say(made, "ab", "bc", now=500.0)
    # Moved on to somebody else who serves the role, after it had waited.
    made.note("c", "a", "d", 1.0, "role:sum")
    say(made, "ab", "bc", now=1.0)
    made.look(599.0)
    assert members(made, "a") == ["a", "b", "c", "d"]


def replayed(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    groups: list[list[str]] = []
    for sender, receiver in pairs:
        own = next((group for group in groups if sender in group), None)
        if own is None:
            own = [sender]
            groups.append(own)
        if not any(receiver in group for group in groups):
            own.append(receiver)
    return groups


AGENTS = st.sampled_from("abcdef")


@given(st.lists(st.tuples(AGENTS, AGENTS), max_size=25), st.sets(st.integers(0, 24)))
def test_groups_are_those_of_all_messages_in_their_order(pairs: list[tuple[str, str]], looks: set[int]) -> None:
    made = participation()
    for number, (sender, receiver) in enumerate(pairs):
        made.note("c", sender, receiver, 1.0)
        if number in looks:
            made.group_of("c", sender)
    expected = replayed(pairs)
    for aid in "abcdef":
        assert members(made, aid) == next((group for group in expected if aid in group), [])


def test_a_kept_group_tells_of_its_new_members() -> None:
    made = participation()
    say(made, "ab")
    told: list[tuple[Group, list[str]]] = []
    made.joined = lambda group: told.append((group, list(group.members)))
    say(made, "bc")
    group = group_of(made, "a")
    assert told == []
    made.keep(group)
    say(made, "cd", "ad")
    assert told == [(group, ["a", "b", "c", "d"])]
