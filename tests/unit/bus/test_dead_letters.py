"""What becomes a dead letter, how many are kept, and that the store keeps the same ones."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from fakes import ManualStore
from raw import acl

from gagent_grpc.bus.dead_letters import MAX_ERROR_CHARS, DeadLetters
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.envelope import DeadReason

CODEC = EnvelopeCodec(max_id_bytes=128)


def letter(sequence: int = 1, text: str = "hello", **fields: Any) -> Letter:
    envelope = CODEC.decode(acl("bob", text, id=f"m{sequence}", **fields).SerializeToString())
    made = Letter(sequence, envelope, "alice@local", f"m{sequence}", "", 5.0)
    # Ordinary mail counts against somebody's account; a notice against nobody's.
    made.account = object()  # type: ignore[assignment]
    return made


def kept(store: ManualStore, **bounds: Any) -> DeadLetters:
    return DeadLetters(store, **{"most": 100, "most_bytes": 1_000_000, "ttl": 3_600.0, **bounds})


@pytest.fixture
def store() -> ManualStore:
    return ManualStore()


def test_letter_is_kept_with_all_that_is_known_of_it(store: ManualStore) -> None:
    letters, given_up = kept(store), letter(7)
    given_up.attempt, given_up.via = 5, "role:spell"
    letters.bury("bob", given_up, DeadReason.MAX_DELIVERIES, "ValueError: no", now=9.0)
    (found,) = letters
    assert (found.number, found.receiver, found.sequence, found.sender, found.message_id) == (
        1,
        "bob",
        7,
        "alice@local",
        "m7",
    )
    assert (found.via, found.accepted_at, found.attempt, found.died_at) == ("role:spell", 5.0, 5, 9.0)
    assert (found.reason, found.error) == (DeadReason.MAX_DELIVERIES, "ValueError: no")
    assert found.payload == given_up.envelope.payload
    assert store.buried == {1: found}
    assert letters.find(1) is found
    assert letters.find(2) is None


def test_notices_and_transient_messages_whose_time_was_over_are_missed_by_nobody(store: ManualStore) -> None:
    letters, notice = kept(store), letter(1)
    notice.account = None
    letters.bury("bob", notice, DeadReason.DEREGISTERED, "", now=1.0)
    letters.bury("bob", letter(2, transient=True), DeadReason.EXPIRED, "", now=1.0)
    assert (len(letters), store.writes) == (0, [])
    letters.bury("bob", letter(3, transient=True), DeadReason.REJECTED, "", now=1.0)
    letters.bury("bob", letter(4), DeadReason.EXPIRED, "", now=1.0)
    assert [one.sequence for one in letters] == [3, 4]


def test_error_is_cut_and_always_text_that_can_be_stored(store: ManualStore) -> None:
    letters = kept(store)
    letters.bury("bob", letter(), DeadReason.REJECTED, "\ud800" + "x" * 5_000, now=1.0)
    (found,) = letters
    assert found.error == "?" + "x" * (MAX_ERROR_CHARS - 1)


def test_letters_are_found_by_receiver_and_after_a_number(store: ManualStore) -> None:
    letters = kept(store)
    for sequence, receiver in enumerate(["bob", "eve", "bob", "bob"], start=1):
        letters.bury(receiver, letter(sequence), DeadReason.REJECTED, "", now=1.0)
    assert [one.number for one in letters.matching()] == [1, 2, 3, 4]
    assert [one.number for one in letters.matching(receiver="bob")] == [1, 3, 4]
    assert [one.number for one in letters.matching(receiver="bob", after=1)] == [3, 4]
    assert letters.matching(receiver="nobody") == []


def test_oldest_letters_go_beyond_the_number_and_the_log_says_so_once_a_minute(
    store: ManualStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="gagent_grpc.bus.dead_letters")
    letters = kept(store, most=2)
    for sequence in range(1, 6):
        letters.bury("bob", letter(sequence), DeadReason.REJECTED, "", now=100.0 + sequence)
    assert [one.number for one in letters] == [4, 5]
    assert (letters.dropped, sorted(store.buried), len(caplog.records)) == (3, [4, 5], 1)
    letters.bury("bob", letter(6), DeadReason.REJECTED, "", now=162.0)
    assert len(caplog.records) == 1
    letters.bury("bob", letter(7), DeadReason.REJECTED, "", now=164.0)
    assert [record.args[0] for record in caplog.records] == [1, 5]
    # The clock went back, which must not silence it.
    letters.bury("bob", letter(8), DeadReason.REJECTED, "", now=3.0)
    assert len(caplog.records) == 3


def test_bytes_are_bounded_and_one_letter_is_always_kept(store: ManualStore) -> None:
    letters = kept(store, most_bytes=1_000)
    for sequence, size in ((1, 400), (2, 400), (3, 5_000)):
        letters.bury("bob", letter(sequence, "x" * size), DeadReason.REJECTED, "", now=1.0)
    assert [one.number for one in letters] == [3]
    assert letters.bytes == len(letter(3, "x" * 5_000).envelope.payload)
    # What is said of a letter counts, too.
    letters.bury("bob", letter(4), DeadReason.REJECTED, "e" * 1_000, now=1.0)
    assert [one.number for one in letters] == [4]
    assert letters.bytes > 1_000


def test_removed_letters_are_gone_in_the_store_and_counted_once(store: ManualStore) -> None:
    letters = kept(store)
    for sequence in (1, 2, 3):
        letters.bury("bob", letter(sequence), DeadReason.REJECTED, "", now=1.0)
    assert letters.remove([3, 1, 3, 77]) == 2
    assert [one.number for one in letters] == [2]
    assert sorted(store.buried) == [2]
    assert letters.remove([2]) == 1
    assert (letters.bytes, letters.dropped) == (0, 0)
    letters.bury("bob", letter(4), DeadReason.REJECTED, "", now=1.0)
    assert [one.number for one in letters] == [4]


def test_letters_that_were_kept_for_long_enough_go(store: ManualStore) -> None:
    letters = kept(store, ttl=60.0)
    for sequence, died_at in ((1, 100.0), (2, 130.0), (3, 120.0)):
        letters.bury("bob", letter(sequence), DeadReason.REJECTED, "", now=died_at)
    assert letters.expire(159.9) == 0
    assert letters.expire(180.0) == 2
    assert ([one.number for one in letters], sorted(store.buried), letters.dropped) == ([2], [2], 0)


@pytest.mark.parametrize(("next_number", "expected"), [(9, 9), (1, 5)])
def test_numbers_go_on_after_a_restart_and_bounds_of_today_hold(
    store: ManualStore, next_number: int, expected: int
) -> None:
    before = kept(ManualStore())
    for sequence in (1, 2, 3, 4):
        before.bury("bob", letter(sequence), DeadReason.REJECTED, "", now=1.0)
    letters = kept(store, most=3)
    letters.restore([replace(one) for one in before], next_number, now=1.0)
    assert [one.number for one in letters] == [2, 3, 4]
    assert store.exhumed == [1]
    letters.bury("bob", letter(5), DeadReason.REJECTED, "", now=1.0)
    assert [one.number for one in letters] == [3, 4, expected]
