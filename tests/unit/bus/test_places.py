"""Places for streams: so many for all, a quarter for one caller, and each comes back."""

from __future__ import annotations

import pytest

from gagent_grpc.bus.places import Places
from gagent_grpc.errors import ResourceExhausted


def places(most: int) -> Places:
    return Places(most, "streams that watch", "max_watches")


def test_all_together_are_bounded_and_the_refusal_says_by_which_limit() -> None:
    room = places(2)
    room.take()
    room.take()
    with pytest.raises(ResourceExhausted, match=r"2 streams that watch, the limit of this node \(max_watches\)"):
        room.take(("alice",))
    room.leave()
    room.take(("alice",))
    assert room.taken == 2


def test_one_caller_gets_a_quarter_and_the_others_the_rest() -> None:
    room = places(8)
    for name in ("alice", "bob", "carol", "dave"):
        room.take((name,))
        room.take((name,))
        if name == "alice":
            with pytest.raises(
                ResourceExhausted, match=r"alice has 2 .* one caller: a part of the 8 .*\(max_watches\)"
            ):
                room.take((name,))
    room.leave(("alice",))
    room.take(("alice",))
    with pytest.raises(ResourceExhausted, match="limit of this node"):
        room.take(("erin",))


def test_a_caller_counts_under_each_of_its_names_and_a_refusal_takes_nothing() -> None:
    room = places(4)
    room.take(("alice", "line 1"))
    for names in (("alice", "line 2"), ("bob", "line 1")):
        with pytest.raises(ResourceExhausted):
            room.take(names)
    assert room.taken == 1
    room.take(("bob", "line 2"))
    room.leave(("alice", "line 1"))
    room.take(("alice", "line 1"))


def test_where_there_is_one_place_anybody_may_have_it() -> None:
    room = places(1)
    room.take(("alice",))
    room.leave(("alice",))
    room.take(("bob",))
