"""One session without a stream: receipts, the heartbeat's clock, probes, and how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import ManualStore
from raw import acl

from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.session import MAX_BATCH_RECEIPTS, MAX_UNSAID_EXCEPTIONS, Nack, Notice, Outgoing, Session
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import AnswerTimeout, SessionSuperseded
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.testing import FakeClock

LAZY = pb.REPORT_MODE_RECEIPT_LAZY


class Bench:
    def __init__(self, **limits: Any) -> None:
        self.limits = BusLimits(**limits)
        self.clock = FakeClock()
        self.store = ManualStore()
        self.platform = Platform(
            "local", self.store, EnvelopeCodec(max_id_bytes=self.limits.max_id_bytes), self.clock, self.limits
        )

    async def open(self, name: str, **hello: Any) -> Session:
        session = (await self.platform.attach(Hello(name, **hello), "local")).session
        # One turn, in which the store writes that it is there.
        await asyncio.sleep(0)
        return session

    def commit(self, through: int | None = None) -> None:
        self.platform.post.commit(self.store.commit(through))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def submit(session: Session, *messages: pb.BusMessage) -> None:
    session.submit([message.SerializeToString() for message in messages])


async def next_out(session: Session) -> Outgoing:
    async with asyncio.timeout(5):
        out = await session.outgoing()
    assert out is not None
    return out


def silent(session: Session) -> bool:
    return not session._collect()


def test_nothing_to_say_is_nothing() -> None:
    assert not Outgoing()
    assert Outgoing(accepted_through=0)


async def test_accepted_through_follows_the_commits_and_exceptions_come_at_once(bench: Bench) -> None:
    alice, _ = await bench.open("alice"), await bench.open("bob")
    submit(alice, acl("bob"), acl("nobody"), acl("bob"), acl(["bob", "nobody"]))
    out = await next_out(alice)
    assert out.accepted_through == 0
    assert [one.number for one in out.exceptions] == [2, 4]
    bench.commit(1)
    assert (await next_out(alice)).accepted_through == 2
    bench.commit(2)
    assert (await next_out(alice)).accepted_through == 3
    bench.commit()
    out = await next_out(alice)
    assert (out.accepted_through, out.exceptions) == (4, [])


async def test_message_to_several_is_accepted_when_its_last_receiver_is(bench: Bench) -> None:
    alice = await bench.open("alice")
    for name in ("a", "b"):
        await bench.open(name)
    submit(alice, acl(["a", "b"]), acl("a"))
    bench.commit(1)
    assert silent(alice)
    bench.commit(2)
    assert (await next_out(alice)).accepted_through == 1


async def test_repetition_in_a_later_session_is_counted_where_it_was_sent(bench: Bench) -> None:
    await bench.open("bob")
    older = await bench.open("alice")
    submit(older, acl("bob", id="m"))
    bench.platform.detach(older)
    newer = await bench.open("alice")
    submit(newer, acl("bob", "first"), acl("bob", id="m"), acl("bob", "last"))
    bench.commit(1)
    out = await next_out(newer)
    assert (out.accepted_through, [one.number for one in out.exceptions]) == (0, [2])
    bench.commit()
    assert (await next_out(newer)).accepted_through == 3


async def test_lazy_receipts_go_with_the_heartbeat(bench: Bench) -> None:
    alice, _ = await bench.open("alice"), await bench.open("bob")
    submit(alice, acl("bob", report=LAZY, transient=True))
    assert silent(alice)
    alice.beat()
    out = await next_out(alice)
    assert (out.heartbeat, out.accepted_through) == (True, 1)


async def test_lazy_receipts_go_with_a_delivery(bench: Bench) -> None:
    alice = await bench.open("alice")
    submit(alice, acl("alice", report=LAZY, transient=True))
    out = await next_out(alice)
    assert (out.accepted_through, len(out.letters)) == (1, 1)


async def test_many_exceptions_are_split_and_only_the_last_part_says_that_all_is_said(bench: Bench) -> None:
    alice = await bench.open("alice")
    submit(alice, *[acl("nobody")] * (2 * MAX_BATCH_RECEIPTS + 1))
    parts = [await next_out(alice) for _ in range(3)]
    assert [len(part.exceptions) for part in parts] == [MAX_BATCH_RECEIPTS, MAX_BATCH_RECEIPTS, 1]
    assert [part.accepted_through for part in parts] == [0, 0, 2 * MAX_BATCH_RECEIPTS + 1]
    assert silent(alice)


async def test_session_that_closes_waits_for_its_receipts_and_then_ends_well(bench: Bench) -> None:
    alice, _ = await bench.open("alice"), await bench.open("bob")
    submit(alice, acl("bob", report=LAZY))
    alice.close_when_answered()
    assert silent(alice)
    assert not alice.ended
    bench.commit()
    assert (await next_out(alice)).accepted_through == 1
    assert await alice.outgoing() is None
    assert (alice.ended, alice.failure) == (True, None)


async def test_session_of_a_draining_bus_ends_when_nothing_is_in_hand(bench: Bench) -> None:
    alice = await bench.open("alice")
    submit(alice, acl("alice", transient=True), acl("alice", transient=True))
    tags = [letter.tag for letter in (await next_out(alice)).letters]
    assert tags == [1, 2]
    async with asyncio.TaskGroup() as group:
        group.create_task(bench.platform.drain())
        assert (await next_out(alice)).notices[0].kind == "DRAINING"
        submit(alice, acl("alice", transient=True))
        alice.settle(ack_through_tag=2, acks=(), nacks=(), rejects=())
        assert (await next_out(alice)).letters == []
        assert await alice.outgoing() is None
        bench.platform.detach(alice)
    assert bench.platform.ams.get("alice").mailbox.messages == 1


async def test_heartbeat_goes_out_when_nothing_else_did_or_nothing_was_heard(bench: Bench) -> None:
    alice = await bench.open("alice")
    interval = bench.limits.heartbeat_interval

    def look() -> bool:
        bench.platform.keep_house()
        return bool(alice._collect().heartbeat)

    bench.clock.advance(interval - 1)
    alice.heard()
    assert not look()
    bench.clock.advance(1)
    assert look()
    assert not look()
    # Written to all the time, and silent: asked for life once in each interval.
    beats = 0
    for _ in range(int(2 * interval) - 1):
        bench.clock.advance(1)
        alice.written_at = bench.clock.monotonic()
        beats += look()
    assert beats == 1
    assert not alice.ended


async def test_silent_client_is_lost_after_the_missed_heartbeats(bench: Bench) -> None:
    alice = await bench.open("alice")
    bench.clock.advance(45)
    bench.platform.keep_house()
    assert not alice.ended
    bench.clock.advance(0.1)
    bench.platform.keep_house()
    assert isinstance(alice.failure, AnswerTimeout)


async def test_client_that_the_bus_does_not_read_is_not_called_silent() -> None:
    bench = Bench(send_window_messages=2)
    alice, _ = await bench.open("alice"), await bench.open("bob")
    submit(alice, acl("bob"), acl("bob"), acl("bob"))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(alice.room_to_send())
        await asyncio.sleep(0)
        bench.clock.advance(1_000)
        bench.platform.keep_house()
        assert not alice.ended
        assert not waiting.done()
        bench.commit(1)
        await next_out(alice)
    assert alice.heard_at == bench.clock.monotonic()


async def test_session_waits_for_receipts_of_more_bytes_than_the_window_has() -> None:
    bench = Bench(send_window_bytes=5_000)
    alice, _ = await bench.open("alice"), await bench.open("bob")
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(2):
            submit(alice, acl("bob", "x" * 2_000))
            await alice.room_to_send()
        submit(alice, acl("bob", "x" * 2_000))
        waiting = group.create_task(alice.room_to_send())
        await asyncio.sleep(0)
        assert not alice.listening
        # What a commit covers is receipted, and what is not yet durable goes on counting.
        bench.commit(1)
        assert (await next_out(alice)).accepted_through == 1
        await waiting
        submit(alice, acl("bob", "x" * 2_000))
        waiting = group.create_task(alice.room_to_send())
        await asyncio.sleep(0)
        assert not alice.listening
        bench.commit()
        assert (await next_out(alice)).accepted_through == 4
    assert alice.listening


async def test_lazy_receipts_do_not_keep_a_window_of_bytes_full() -> None:
    bench = Bench(send_window_bytes=5_000)
    alice, _ = await bench.open("alice"), await bench.open("bob")
    submit(alice, *[acl("bob", "x" * 2_000, report=LAZY, transient=True) for _ in range(3)])
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(alice.room_to_send())
        assert (await next_out(alice)).accepted_through == 3


async def test_batch_is_taken_up_to_a_number_of_receivers(bench: Bench) -> None:
    # However few messages name them: each one costs, and the others wait meanwhile.
    alice = await bench.open("alice")
    wide = acl([f"nobody-{index}" for index in range(100)]).SerializeToString()
    one = acl("nobody").SerializeToString()
    assert alice.submit([wide] * 3, max_receivers=150) == 2
    assert alice.submit([one] * 3, max_receivers=150) == 3
    assert alice.submit([b"no message", b""], max_receivers=1) == 1
    out = await next_out(alice)
    assert (out.accepted_through, [one.number for one in out.exceptions][-4:]) == (6, [3, 4, 5, 6])
    assert len(out.exceptions) == 204


async def test_session_waits_while_too_many_exceptions_are_not_read(bench: Bench) -> None:
    alice = await bench.open("alice")
    wide = acl([f"nobody-{index}" for index in range(100)])
    submit(alice, *[wide] * (MAX_UNSAID_EXCEPTIONS // 100))
    await alice.room_to_send()
    submit(alice, wide)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(alice.room_to_send())
        await asyncio.sleep(0)
        assert not alice.listening
        # One frame of them makes room; the message window is not full.
        assert len((await next_out(alice)).exceptions) == MAX_BATCH_RECEIPTS
        await waiting


async def test_end_lets_go_who_waits_for_room() -> None:
    bench = Bench(send_window_messages=1)
    alice, _ = await bench.open("alice"), await bench.open("bob")
    submit(alice, acl("bob"), acl("bob"))
    async with asyncio.TaskGroup() as group:
        group.create_task(alice.room_to_send())
        await asyncio.sleep(0)
        alice.end()


async def test_probe_hears_any_frame_and_gives_up_an_ended_session_at_once(bench: Bench) -> None:
    alice = await bench.open("alice")
    async with asyncio.TaskGroup() as group:
        probes = [group.create_task(alice.probe(5)) for _ in range(3)]
        assert (await next_out(alice)).heartbeat
        alice.heard()
    assert [probe.result() for probe in probes] == [True, True, True]
    assert not await alice.probe(0)
    async with asyncio.TaskGroup() as group:
        ended_meanwhile = group.create_task(alice.probe(5))
        await asyncio.sleep(0)
        alice.end()
    assert not ended_meanwhile.result()
    assert not await alice.probe(10**9)


async def test_silence_of_a_client_that_the_bus_does_not_read_says_nothing_to_a_probe() -> None:
    bench = Bench(send_window_messages=1)
    alice, _ = await bench.open("alice"), await bench.open("bob")
    submit(alice, acl("bob"), acl("bob"))
    async with asyncio.TaskGroup() as group:
        group.create_task(alice.room_to_send())
        await asyncio.sleep(0)
        assert await alice.probe(0.01)
        alice.end()
        assert not await alice.probe(10**9)


async def test_superseded_session_delivers_and_settles_nothing_more(bench: Bench) -> None:
    older = await bench.open("bob")
    submit(older, acl("bob", transient=True))
    assert len((await next_out(older)).letters) == 1
    record = older.record
    older.supersede()
    older.end(None)
    older.settle(ack_through_tag=1, acks=[1], nacks=[Nack(1, 0.0, "")], rejects=[(1, "")])
    assert record.mailbox.in_flight == 1
    out = await next_out(older)
    assert (out.notices[0].kind, out.letters) == ("SUPERSEDED", [])
    assert await older.outgoing() is None
    assert isinstance(older.failure, SessionSuperseded)


async def test_window_of_zero_is_the_default_of_the_bus(bench: Bench) -> None:
    alice = await bench.open("alice", window_messages=3, window_bytes=4)
    alice.set_window(5, 0)
    assert (alice.window_messages, alice.window_bytes) == (5, bench.limits.window_bytes)
    alice.set_window(0, 7)
    assert (alice.window_messages, alice.window_bytes) == (bench.limits.window_messages, 7)


async def test_expired_letter_is_given_up_instead_of_delivered(bench: Bench) -> None:
    alice = await bench.open("alice")
    message = acl("bob", act=19, transient=True, acl_reply_with="r")
    message.expires_at.FromSeconds(int(bench.clock.time()) + 5)
    bob = await bench.open("bob")
    bench.platform.suspend("bob", bench.platform.caller_for("bob@local"))
    submit(alice, message)
    bench.clock.advance(5)
    bench.platform.resume("bob", bench.platform.caller_for("bob@local"))
    assert (await next_out(bob)).letters == []
    bench.commit()
    (letter,) = (await next_out(alice)).letters
    failure = pb.BusMessage.FromString(letter.envelope.payload).acl
    assert failure.in_reply_to == "r"
    assert failure.text.startswith("EXPIRED")


async def test_reader_finds_heartbeat_receipts_and_notices_before_the_deliveries(bench: Bench) -> None:
    alice = await bench.open("alice")
    submit(alice, *[acl("alice", "x" * 100_000, transient=True) for _ in range(20)])
    await next_out(alice)
    alice.beat()
    alice.state_changed(alice.record.state, "ams")
    submit(alice, acl("nobody"))
    out = await next_out(alice)
    assert out.heartbeat
    assert out.states
    assert out.exceptions
    assert len(out.letters) <= 5


async def test_client_that_reads_nothing_does_not_pile_up_notices(bench: Bench) -> None:
    alice = await bench.open("alice")
    for index in range(5_000):
        alice.notify(Notice("UNKNOWN_FRAME", f"{index}"))
        alice.state_changed(alice.record.state, f"{index}")
    out = await next_out(alice)
    assert (len(out.notices), out.notices[-1].text) == (100, "4999")
    assert (len(out.states), out.states[-1].changed_by) == (100, "4999")
