"""One shared context against a model: revisions, compare-and-set, bounds, and what each watch is told of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.bus.context_space import Space
from gagent_grpc.bus.context_values import Entry, Synced, Told, check_value
from gagent_grpc.bus.context_watches import ContextWatch
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import ContextEnded, EventsGone, InvalidArgument, ResourceExhausted, RevisionConflict

KEYS = st.sampled_from(["a", "ab", "b", "é"])
LIMITS = BusLimits(context_removals=2, context_entries=3)


def space(used: int = 0, **limits: Any) -> Space:
    return Space(BusLimits(**limits), used=used)


def watch(of: Space, prefix: str = "", after: int = 0) -> ContextWatch:
    made = ContextWatch(of, "bob@local", prefix, after, leave=of.left)
    of.watches.add(made)
    return made


async def told(by: ContextWatch, count: int = 1) -> list[Told]:
    """Return so many things that a watch tells, at least."""
    found: list[Told] = []
    async with asyncio.timeout(5):
        while len(found) < count:
            found += await by.next()
    return found


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    put = st.tuples(st.just("put"), KEYS, st.integers(0, 9), st.sampled_from([None, None, 0, "present", 99]))
    remove = st.tuples(st.just("remove"), KEYS, st.sampled_from([None, "present", 99]))
    look = st.tuples(st.sampled_from(["watch", "resume"]), st.sampled_from(["", "a"]))
    return draw(st.lists(st.one_of(put, remove, remove, look), max_size=40))


@settings(max_examples=150, deadline=None)
@given(steps(), st.integers(0, 5))
def test_space_and_its_watches_do_as_the_model(steps: list[tuple[Any, ...]], used: int) -> None:
    asyncio.run(_compared(steps, used))


async def _compared(steps: list[tuple[Any, ...]], used: int) -> None:
    made = Space(LIMITS, used=used)
    begin = made.revision
    assert begin > used or not used
    model: dict[str, tuple[str, int]] = {}
    history: list[tuple[int, str, str | None]] = []
    watches: list[tuple[ContextWatch, str, int, list[Told]]] = []
    conflicts: list[tuple[bool, ...]] = []
    for kind, *rest in steps:
        if kind in {"watch", "resume"}:
            (prefix,) = rest
            after = 0 if kind == "watch" or not history else history[len(history) // 2][0]
            try:
                watches.append((watch(made, prefix, after), prefix, after, []))
            except EventsGone:
                assert after < made.forgotten
                assert sum(value is None for _, _, value in history) > LIMITS.context_removals
                continue
            expected: dict[str, tuple[int, str | None]] = {}
            for revision, key, value in history:
                if revision > after and key.startswith(prefix):
                    expected.pop(key, None)
                    expected[key] = (revision, value)
            if not after:
                expected = {key: one for key, one in expected.items() if one[1] is not None}
            first = watches[-1][3]
            while not (first and isinstance(first[-1], Synced)):
                first += await watches[-1][0].next()
            assert [(one.revision, one.key, None if one.removed else one.value) for one in first[:-1]] == [
                (revision, key, value) for key, (revision, value) in expected.items()
            ]
            assert first.pop() == Synced(made.revision)
            first.clear()
            watches[-1] = (*watches[-1][:2], made.revision, first)
            continue
        key = rest[0]
        present = model[key][1] if key in model else 0
        expects = present if rest[-1] == "present" else rest[-1]
        value = str(rest[1]) if kind == "put" else None
        conflict = expects is not None and expects != present
        full = value is not None and key not in model and len(model) == LIMITS.context_entries
        before = made.revision
        try:
            if value is not None:
                done = made.put(key, value, "alice@local", 1.0, expects)
            else:
                removal = made.remove(key, "alice@local", 1.0, expects)
                assert (removal is None) == (not present)
                made.trim()
                if removal is None:
                    continue
                done = removal
        except RevisionConflict as error:
            conflicts.append((conflict, error.revision == present, made.revision == before))
            continue
        except ResourceExhausted:
            assert full
            assert made.revision == before
            continue
        assert not conflict
        assert not full
        assert done.revision == before + 1
        history.append((done.revision, key, value))
        if value is None:
            del model[key]
        else:
            model[key] = (value, done.revision)
    assert all(all(one) for one in conflicts)
    assert {one.key: (one.value, one.revision) for one in made.following()} == model
    assert [one.key for one in made.following("a")] == sorted(key for key in model if key.startswith("a"))
    assert made.bytes == sum(len(key.encode()) + len(value) for key, (value, _) in model.items())
    for one, prefix, since, heard in watches:
        found = list(heard)
        expected_changes = [change for change in history if change[0] > since and change[1].startswith(prefix)]
        while len(found) < len(expected_changes):
            found += await one.next()
        assert [
            (told.revision, told.key, None if told.removed else told.value) for told in found if isinstance(told, Entry)
        ] == expected_changes


def test_bytes_of_keys_and_values_have_a_bound_that_a_smaller_value_and_a_removal_give_back() -> None:
    made = space(context_bytes=10)
    made.put("é", "1234", "a", 1.0, None)
    with pytest.raises(ResourceExhausted, match="would have 11 bytes"):
        made.put("k", "1234", "a", 1.0, None)
    made.put("é", "1", "a", 1.0, None)
    made.put("k", "1234", "a", 1.0, None)
    made.remove("k", "a", 1.0, None)
    made.put("x", "123456", "a", 1.0, None)
    assert made.bytes == 10


async def test_a_reader_that_falls_too_far_behind_is_told_so_and_others_are_not() -> None:
    made = space(context_changes=5)
    slow, quick = watch(made), watch(made)
    for one in (slow, quick):
        assert await told(one) == [Synced(0)]
    for number in range(8):
        made.put("k", str(number), "a", 1.0, None)
        assert [one.revision for one in await told(quick)] == [number + 1]
    with pytest.raises(ResourceExhausted, match="reads too slowly"):
        await slow.next()
    again = watch(made, after=1)
    assert [one.revision for one in await told(again, 2)] == [8, 8]


async def test_large_changes_do_not_pile_up_for_a_slow_reader() -> None:
    made = space(context_bytes=1_000)
    slow = watch(made)
    await told(slow)
    for _ in range(8):
        made.put("k", "x" * 900, "a", 1.0, None)
    with pytest.raises(ResourceExhausted):
        await slow.next()


async def test_a_watch_that_many_changes_pass_by_does_not_fall_behind_what_is_remembered() -> None:
    made = space()
    one = watch(made, "mine/")
    await told(one)
    for number in range(300):
        made.put("k", str(number), "a", 1.0, None)
    (synced,) = await told(one)
    assert isinstance(synced, Synced)
    assert synced.revision >= 200
    made.put("mine/1", "1", "a", 1.0, None)
    assert [change.revision for change in await told(one)] == [301]


async def test_an_end_is_told_after_all_that_was_before_it() -> None:
    made = space()
    one = watch(made)
    made.put("k", "1", "a", 1.0, None)
    made.end(ContextEnded("over"))
    found = await told(one, 2)
    assert [change.revision for change in found] == [0, 1]
    with pytest.raises(ContextEnded):
        await one.next()


def test_a_later_space_takes_no_revision_and_no_cursor_of_an_earlier_one() -> None:
    made = space(used=7)
    assert made.put("k", "1", "a", 1.0, 0).revision == 9
    with pytest.raises(EventsGone):
        made.changes_after(7)
    assert [one.revision for one in made.changes_after(8)] == [9]
    with pytest.raises(InvalidArgument, match="the last one of this shared context is 9"):
        made.changes_after(10)


@pytest.mark.parametrize("text", ["", "{", "NaN", "1e999", "[1,]"])
def test_what_is_no_json_is_no_value(text: str) -> None:
    with pytest.raises(InvalidArgument, match="value_json"):
        check_value(text, 100)


def test_a_key_that_was_removed_and_put_again_is_told_once() -> None:
    made = space()
    for key in ("a", "b"):
        made.put(key, "1", "a", 1.0, None)
    made.remove("b", "a", 1.0, None)
    assert [(one.key, one.removed) for one in made.changes_after(1)] == [("b", True)]
    before = made.size
    made.put("b", "2", "a", 1.0, 0)
    assert [(one.key, one.revision, one.removed) for one in made.changes_after(1)] == [("b", 4, False)]
    assert made.size == before + 1
