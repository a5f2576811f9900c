from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from gagent_grpc.client import agent, ids


def test_an_identity_is_a_uuid_of_version_7_made_now() -> None:
    before = ids.time.time_ns() // 1_000_000
    text = ids.new_id()
    after = ids.time.time_ns() // 1_000_000
    made = uuid.UUID(text)
    assert str(made) == text
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after


def test_identities_differ_and_rise_also_within_one_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_700_000_000_000_000_000)
    make = ids.uuid7_source()
    made = [make() for _ in range(1_000_000)]
    assert all(one < two for one, two in itertools.pairwise(made))
    versions = {(text[14], text[19] in "89ab") for text in made}
    assert versions == {("7", True)}


def test_two_sources_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_700_000_000_000_000_000)
    one, two = ids.uuid7_source(), ids.uuid7_source()
    assert not {one() for _ in range(100_000)} & {two() for _ in range(100_000)}


def test_threads_that_share_a_source_do_not_meet() -> None:
    make = ids.uuid7_source()
    together = threading.Barrier(8)

    def many() -> list[str]:
        together.wait(10)
        return [make() for _ in range(20_000)]

    with ThreadPoolExecutor(8) as pool:
        made = [text for future in [pool.submit(many) for _ in range(8)] for text in future.result()]
    assert len(set(made)) == 160_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_does_not_repeat_its_parent() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    # As a module holds it that imported the function itself.
    child = context.Process(target=lambda: queue.put([agent.new_id()[19:] for _ in range(100)]))
    child.start()
    theirs = queue.get()
    child.join(10)
    ours = [agent.new_id()[19:] for _ in range(100)]
    # After the count come 52 bits that the child has drawn anew.
    assert {text[-12:] for text in theirs}.isdisjoint(text[-12:] for text in ours)
    assert len({text[-12:] for text in ours}) == 1
