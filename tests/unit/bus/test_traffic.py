"""Those who watch the traffic: what they see, what they miss, and that nobody waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raw import acl

from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.traffic import MAX_EVENT_BYTES, MAX_EVENTS, Traffic, TrafficEvent, TrafficKind, TrafficWatch
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.envelope import Envelope, Outcome
from gagent_grpc.errors import BusDraining, ResourceExhausted
from gagent_grpc.testing import FakeClock

CODEC = EnvelopeCodec(max_id_bytes=128)
ALL: frozenset[str] = frozenset()


def envelope(text: str = "hi", conversation: str = "talk") -> Envelope:
    return CODEC.decode(acl("bob", text, acl_conversation_id=conversation).SerializeToString())


def letter(sender: str = "alice@local", **message: Any) -> Letter:
    return Letter(1, envelope(**message), sender, "id", "", 1.0)


def traffic(most: int = 8) -> Traffic:
    return Traffic(FakeClock(), "local", most=most)


async def drained(watch: TrafficWatch) -> list[TrafficEvent]:
    watch.end()
    return [event async for event in watch.events()]


async def test_each_event_says_what_happened() -> None:
    told = traffic()
    with told.watching(ALL) as watch:
        flagged = letter()
        told.flag(flagged, "out of sequence")
        told.accepted("bob@local", flagged)
        told.refused("alice@local", Receipt(1, "nobody", Outcome.NO_SUCH_AGENT, "not here"), envelope())
        told.refused("alice@local", Receipt(1, "", Outcome.INVALID, "no message"), None)
        told.given_up("bob@local", letter(), "too often")
        told.conversation_ended("talk", "alice@local", "bob@local", "turns")
        told.asked("alice@local", "df@local", envelope())
        found = await drained(watch)
    assert [(one.kind.name, one.sender, one.receiver, one.detail, one.flag) for one in found] == [
        ("ACCEPTED", "alice@local", "bob@local", "", "out of sequence"),
        ("REFUSED", "alice@local", "nobody@local", "not here", ""),
        ("REFUSED", "alice@local", "", "no message", ""),
        ("GIVEN_UP", "alice@local", "bob@local", "too often", ""),
        ("CONVERSATION_ENDED", "alice@local", "bob@local", "turns", ""),
        ("ACCEPTED", "alice@local", "df@local", "", ""),
    ]
    assert [one.outcome for one in found[1:3]] == [Outcome.NO_SUCH_AGENT, Outcome.INVALID]
    assert [one.conversation_id for one in found] == ["talk", "talk", "", "talk", "talk", "talk"]
    assert found[0].payload == envelope().payload


async def test_watchers_see_what_they_asked_for() -> None:
    told = traffic()
    with (
        told.watching(frozenset({"bob@local"})) as of_bob,
        told.watching(ALL, "two") as of_two,
        told.watching(frozenset({"carol@local"}), "two") as of_both,
    ):
        told.accepted("bob@local", letter(conversation="one"))
        told.accepted("carol@local", letter(conversation="two"))
        told.accepted("dave@local", letter("bob@local", conversation="two"))
        told.refused("dave@local", Receipt(1, "bob", Outcome.MAILBOX_FULL), envelope(conversation="three"))
        seen = [[(one.receiver, one.conversation_id) for one in await drained(w)] for w in (of_bob, of_two, of_both)]
    assert seen == [
        [("bob@local", "one"), ("dave@local", "two"), ("bob@local", "three")],
        [("carol@local", "two"), ("dave@local", "two")],
        [("carol@local", "two")],
    ]


async def test_reader_that_is_too_slow_is_told_where_and_how_much_it_missed() -> None:
    told = traffic()
    with told.watching(ALL) as watch:
        for number in range(MAX_EVENTS + 5):
            told.accepted(f"{number}@local", letter())
        events = watch.events()
        read = [await anext(events) for _ in range(10)]
        told.accepted("later@local", letter())
        rest = await drained(watch)
    kinds = [(one.kind.name, one.missed) for one in [*read, *rest]]
    assert kinds == [*[("ACCEPTED", 0)] * MAX_EVENTS, ("MISSED", 5), ("ACCEPTED", 0)]
    assert rest[-1].receiver == "later@local"


async def test_what_is_missed_is_only_counted() -> None:
    told = traffic()
    with told.watching(ALL) as watch:
        for _ in range(MAX_EVENTS + 1_000):
            told.accepted("bob@local", letter())
        kept = list(watch._events)
        assert [one.kind for one in kept] == [TrafficKind.ACCEPTED] * MAX_EVENTS
        *_, last = await drained(watch)
    assert (last.kind, last.missed) == (TrafficKind.MISSED, 1_000)


async def test_large_messages_are_bounded_in_bytes_and_one_always_fits() -> None:
    told = traffic()
    size = MAX_EVENT_BYTES // 4 + 1
    with told.watching(ALL) as watch:
        for _ in range(5):
            told.accepted("bob@local", letter(text="x" * size))
        found = await drained(watch)
    assert [(one.kind.name, one.missed) for one in found] == [*[("ACCEPTED", 0)] * 3, ("MISSED", 2)]
    with told.watching(ALL) as watch:
        told.accepted("bob@local", letter(text="x" * (MAX_EVENT_BYTES + 1)))
        assert [one.kind for one in await drained(watch)] == [TrafficKind.ACCEPTED]


async def test_who_waits_is_woken_by_an_event_and_by_the_end() -> None:
    told = traffic()
    with told.watching(ALL) as watch:
        events = watch.events()
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            waiting = group.create_task(anext(events))
            await asyncio.sleep(0)
            told.accepted("bob@local", letter())
            assert (await waiting).receiver == "bob@local"
            ended = group.create_task(anext(events, None))
            await asyncio.sleep(0)
            told.close()
            assert await ended is None
    with pytest.raises(BusDraining), told.watching(ALL):
        pass


def test_watches_are_bounded_and_leave_nothing_behind() -> None:
    told = traffic(most=1)
    assert not told.watched
    with told.watching(ALL):
        assert told.watched
        with pytest.raises(ResourceExhausted), told.watching(ALL):
            pass
        told.flag(letter(), "never kept")
    assert not told.watched
    with told.watching(ALL):
        assert told.watched


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("bob", "bob@local"),
        ("bob@local", "bob@local"),
        ("bob@elsewhere", "bob@elsewhere"),
        ("role:sum", "role:sum"),
        ("topic:a.b", "topic:a.b"),
        ("*", "*"),
        ("no name!", "no name!"),
        ("", ""),
    ],
)
async def test_an_agent_has_one_name_whatever_it_was_called(written: str, told: str) -> None:
    traffic_ = traffic()
    with traffic_.watching(ALL) as watch:
        traffic_.refused("alice@local", Receipt(1, written, Outcome.MAILBOX_FULL), envelope())
        (event,) = await drained(watch)
    assert event.receiver == told


def test_one_caller_cannot_have_all_the_places() -> None:
    told = traffic(most=4)
    with told.watching(ALL, caller=("alice@local",)):
        with (
            pytest.raises(ResourceExhausted, match=r"alice@local has 1 .*traffic_watches"),
            told.watching(ALL, caller=("alice@local",)),
        ):
            pass
        with told.watching(ALL, caller=("bob@local",)):
            pass
    with told.watching(ALL, caller=("alice@local",)):
        pass
