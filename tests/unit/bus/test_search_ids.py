"""Ids of searches: what comes again, when it is forgotten, and how many are remembered."""

from __future__ import annotations

import pytest

from gagent_grpc.bus.search_ids import AGE, SearchIds
from gagent_grpc.errors import SearchRepeated, UnrecognisedParameterValue


def test_search_is_made_once_in_five_minutes() -> None:
    ids = SearchIds()
    ids.note("a", 0.0)
    ids.note("b", 100.0)
    for now in (0.0, AGE - 0.1):
        with pytest.raises(SearchRepeated, match="'a' was made here before") as raised:
            ids.note("a", now)
    assert raised.value.search_id == "a"
    ids.note("a", AGE)
    with pytest.raises(SearchRepeated):
        ids.note("b", AGE)
    assert len(ids) == 2


def test_search_without_an_id_may_come_as_often_as_it_likes() -> None:
    ids = SearchIds()
    for _ in range(3):
        ids.note("", 0.0)
    assert len(ids) == 0


def test_ids_are_bounded_in_number_and_length() -> None:
    ids = SearchIds()
    for number in range(20_000):
        ids.note(f"{number}", 0.0)
    assert len(ids) == 10_000
    with pytest.raises(SearchRepeated):
        ids.note("19999", 0.0)
    ids.note("0", 0.0)
    with pytest.raises(UnrecognisedParameterValue, match="search-id has 257 characters"):
        ids.note("x" * 257, 0.0)
