"""Which messages were accepted before: kept ones always, settled ones for a while, bounded in rows."""

from __future__ import annotations

from gagent_grpc.bus.dedupe import Dedupe


def key(number: int) -> tuple[str, str, str]:
    return ("alice@local", f"m-{number}", "bob")


def test_accepted_key_is_known_with_its_digest_until_the_window_after_its_settle() -> None:
    dedupe = Dedupe(window=10.0, rows=100)
    assert dedupe.find(key(1)) is None
    dedupe.accepted(key(1), b"d")
    assert dedupe.forget_old(10.0**9) == 10.0**9 - 10
    assert dedupe.find(key(1)) == b"d"
    dedupe.settled(key(1), b"d", 100.0)
    dedupe.forget_old(110.0)
    assert dedupe.find(key(1)) == b"d"
    dedupe.forget_old(110.1)
    assert dedupe.find(key(1)) is None
    assert len(dedupe) == 0


def test_oldest_settled_keys_go_first_when_there_are_too_many() -> None:
    dedupe = Dedupe(window=10.0, rows=2)
    for number in (1, 2, 3):
        dedupe.settled(key(number), b"d", float(number))
    assert [dedupe.find(key(number)) for number in (1, 2, 3)] == [None, b"d", b"d"]


def test_kept_keys_do_not_count_against_the_rows() -> None:
    dedupe = Dedupe(window=10.0, rows=1)
    for number in range(10):
        dedupe.accepted(key(number), b"d")
    dedupe.settled(key(99), b"d", 1.0)
    assert all(dedupe.find(key(number)) for number in range(10))
    assert len(dedupe) == 11


def test_key_that_is_settled_again_is_as_young_as_its_last_settle() -> None:
    dedupe = Dedupe(window=10.0, rows=100)
    dedupe.settled(key(1), b"d", 1.0)
    dedupe.settled(key(2), b"d", 2.0)
    dedupe.settled(key(1), b"d", 30.0)
    dedupe.forget_old(20.0)
    assert (dedupe.find(key(1)), dedupe.find(key(2))) == (b"d", None)
