from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gagent_grpc.client.message import Receipt
from gagent_grpc.client.outbox import Outbox
from gagent_grpc.client.pending import RESEND_FLAG, Sending
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import BusUnreachable
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

EVERYTHING = {"window_messages": 1000, "window_bytes": 10**9, "batch_bytes": 10**9, "batch_messages": 1000}


def handed_over(outbox: Outbox, *payloads: bytes, receivers: Sequence[str] = ("bob",)) -> Any:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sending = Sending(len(payloads), done)
    outbox.add(payloads, [receivers] * len(payloads), sending)
    return sending, done


def refused(number: int, receiver: str = "bob", outcome: Outcome = Outcome.MAILBOX_FULL) -> tuple[int, Receipt]:
    return number, Receipt(outcome, receiver)


async def test_messages_leave_in_order_and_are_resolved_by_number() -> None:
    outbox = Outbox()
    _, first = handed_over(outbox, b"1", b"2")
    _, second = handed_over(outbox, b"3")
    assert outbox.take(**EVERYTHING) == [b"1", b"2", b"3"]
    assert not outbox.waiting
    outbox.receipts(1, [])
    assert (first.done(), second.done()) == (False, False)
    outbox.receipts(3, [])
    assert (first.done(), second.done(), len(outbox), outbox.bytes) == (True, True, 0, 0)


async def test_the_window_bounds_what_is_on_its_way_and_one_message_always_fits() -> None:
    outbox = Outbox()
    handed_over(outbox, b"xxxx", b"xxxx", b"xxxx")
    window = {**EVERYTHING, "window_messages": 2, "window_bytes": 3}
    assert outbox.take(**window) == [b"xxxx"]
    assert outbox.take(**window) == []
    outbox.receipts(1, [])
    assert outbox.take(**{**window, "window_bytes": 8}) == [b"xxxx", b"xxxx"]
    assert outbox.take(**{**window, "window_bytes": 8}) == []


async def test_a_batch_is_bounded_and_one_message_always_fits() -> None:
    outbox = Outbox()
    handed_over(outbox, b"x" * 10, b"x" * 3, b"x" * 3, b"x")
    bounds = {**EVERYTHING, "batch_bytes": 6, "batch_messages": 5}
    assert [len(one) for one in outbox.take(**bounds)] == [10]
    assert [len(one) for one in outbox.take(**bounds)] == [3, 3]
    assert [len(one) for one in outbox.take(**{**bounds, "batch_messages": 0})] == []
    assert [len(one) for one in outbox.take(**bounds)] == [1]


async def test_refusals_are_told_by_place_in_order() -> None:
    outbox = Outbox()
    sending, done = handed_over(outbox, b"1", b"2", b"3")
    outbox.take(**EVERYTHING)
    outbox.receipts(0, [refused(3)])
    outbox.receipts(3, [refused(1)])
    assert done.done()
    assert [place for place, _ in sending.refusals] == [0, 2]


async def test_a_refusal_is_heard_at_once_and_once() -> None:
    outbox = Outbox()
    _, slow = handed_over(outbox, b"1")
    sending, quick = handed_over(outbox, b"2")
    outbox.take(**EVERYTHING)
    outbox.receipts(0, [refused(2)])
    assert (slow.done(), quick.done(), outbox.bytes) == (False, True, 2)
    outbox.receipts(2, [refused(2)])
    assert len(sending.refusals) == 1
    assert (slow.done(), outbox.bytes) == (True, 0)


async def test_a_refusal_of_the_whole_message_ends_it_however_many_receivers_it_has() -> None:
    outbox = Outbox()
    sending, done = handed_over(outbox, b"1", receivers=("bob", "carol", "dave"))
    outbox.take(**EVERYTHING)
    outbox.receipts(0, [refused(1, "bob")])
    assert not done.done()
    outbox.receipts(0, [refused(1, "", Outcome.INVALID)])
    assert done.done()
    assert len(sending.refusals) == 2


async def test_receipts_for_numbers_that_are_not_there_change_nothing() -> None:
    outbox = Outbox()
    sending, done = handed_over(outbox, b"1")
    outbox.receipts(0, [refused(1)])
    outbox.take(**EVERYTHING)
    outbox.receipts(0, [refused(0), refused(7)])
    assert (done.done(), sending.refusals) == (False, [])
    outbox.receipts(1, [])
    outbox.receipts(1, [refused(1)])
    outbox.receipts(0, [])
    assert (done.done(), sending.refusals, outbox.bytes) == (True, [], 0)


async def test_after_a_reconnect_everything_unresolved_goes_again_first_flagged_and_numbered_anew() -> None:
    outbox = Outbox()
    _, receipted = handed_over(outbox, b"1")
    sending, done = handed_over(outbox, b"2", b"3")
    outbox.take(**EVERYTHING)
    outbox.receipts(1, [])
    handed_over(outbox, b"4")
    outbox.reconnected()
    assert outbox.take(**EVERYTHING) == [b"2" + RESEND_FLAG, b"3" + RESEND_FLAG, b"4"]
    outbox.receipts(2, [refused(2)])
    assert (receipted.done(), done.done()) == (True, True)
    assert [place for place, _ in sending.refusals] == [1]
    outbox.reconnected()
    assert outbox.take(**EVERYTHING) == [b"4" + RESEND_FLAG]
    outbox.receipts(1, [])
    assert (len(outbox), outbox.bytes) == (0, 0)


async def test_what_was_refused_is_not_sent_again_and_frees_its_room() -> None:
    outbox = Outbox()
    handed_over(outbox, b"1")
    handed_over(outbox, b"22")
    outbox.take(**EVERYTHING)
    outbox.receipts(0, [refused(2)])
    outbox.reconnected()
    assert outbox.bytes == 1
    assert outbox.take(**EVERYTHING) == [b"1" + RESEND_FLAG]


async def test_a_message_refused_by_some_is_told_once_after_a_reconnect_and_its_arrival_is_no_duplicate() -> None:
    outbox = Outbox()
    sending, done = handed_over(outbox, b"1", receivers=("nobody", "bob"))
    outbox.take(**EVERYTHING)
    outbox.receipts(0, [refused(1, "nobody", Outcome.NO_SUCH_AGENT)])
    outbox.reconnected()
    outbox.take(**EVERYTHING)
    again = [refused(1, "nobody", Outcome.NO_SUCH_AGENT), refused(1, "bob", Outcome.DUPLICATE)]
    outbox.receipts(1, again)
    assert done.done()
    assert [(one.outcome, one.receiver) for _, one in sending.refusals] == [(Outcome.NO_SUCH_AGENT, "nobody")]


async def test_a_duplicate_of_what_was_sent_once_is_told() -> None:
    outbox = Outbox()
    sending, _ = handed_over(outbox, b"1")
    outbox.take(**EVERYTHING)
    outbox.receipts(1, [refused(1, outcome=Outcome.DUPLICATE)])
    assert [one.outcome for _, one in sending.refusals] == [Outcome.DUPLICATE]


async def test_the_end_fails_everybody_who_waits() -> None:
    outbox = Outbox()
    _, sent = handed_over(outbox, b"1")
    outbox.take(**EVERYTHING)
    _, waiting = handed_over(outbox, b"2")
    _, given_up = handed_over(outbox, b"3")
    given_up.cancel()
    outbox.fail(BusUnreachable("here"))
    for future in (sent, waiting):
        with pytest.raises(BusUnreachable):
            future.result()
    assert (len(outbox), outbox.bytes, outbox.take(**EVERYTHING)) == (0, 0, [])
    # A later session counts anew.
    _, again = handed_over(outbox, b"4")
    outbox.reconnected()
    assert outbox.take(**EVERYTHING) == [b"4"]
    outbox.receipts(1, [])
    assert again.done()


async def test_whoever_gave_up_waiting_harms_nobody() -> None:
    outbox = Outbox()
    _, given_up = handed_over(outbox, b"1")
    _, done = handed_over(outbox, b"2")
    outbox.take(**EVERYTHING)
    given_up.cancel()
    outbox.receipts(2, [refused(1)])
    assert done.done()


def test_the_resend_flag_is_a_field_of_a_message_wherever_it_stands() -> None:
    message = pb.BusMessage(id="1", to=["bob"])
    message.acl.text = "hi"
    flagged = pb.BusMessage.FromString(message.SerializeToString() + RESEND_FLAG)
    assert flagged.resend
    message.resend = True
    assert flagged == message
