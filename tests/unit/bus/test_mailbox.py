"""The mailbox of one agent: bounds, order, lanes, what is in hand, and that nothing is counted twice or lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gagent_grpc.bus.mailbox import Letter, Mailbox
from gagent_grpc.envelope import Envelope

EVERYTHING = {"max_messages": 1_000, "max_bytes": 10**9, "batch_messages": 1_000, "batch_bytes": 10**9}


def envelope(
    *, lane: str = "", priority: int = 2, size: int = 10, expires_at: float = 0.0, resend: bool = False
) -> Envelope:
    made = Envelope()
    made.conversation_id = lane
    made.priority = priority
    made.payload = b"x" * size
    made.expires_at = expires_at
    made.resend = resend
    return made


def mailbox(*, max_messages: int = 100, max_bytes: int = 10_000) -> Mailbox:
    return Mailbox(max_messages=max_messages, max_bytes=max_bytes)


def put(
    box: Mailbox, *, sender: str = "s@local", accepted_at: float = 1.0, notice: bool = False, **fields: object
) -> Letter:
    made = envelope(**fields)  # type: ignore[arg-type]  # [arg-type]: passed on as they are.
    account = None if notice else box.reserve(len(made.payload), sender)
    assert account or (notice and box.reserve_notice(len(made.payload)))
    letter = Letter(box.take_sequence(), made, sender, "id", "", accepted_at)
    letter.account = account
    box.put(letter)
    return letter


def take(box: Mailbox, **bounds: float) -> list[int]:
    letters = box.take(**{**EVERYTHING, **bounds})
    for letter in letters:
        letter.tag = max([one.tag for one in box.letters()], default=0) + 1
    return [letter.sequence for letter in letters]


def sequences(letters: Iterable[Letter]) -> list[int]:
    return [letter.sequence for letter in letters]


def test_letters_come_out_by_urgency_and_in_order_within_one() -> None:
    box = mailbox()
    for priority in (2, 1, 4, 2, 3, 4, 1):
        put(box, priority=priority)
    assert take(box) == [3, 6, 5, 1, 4, 2, 7]


def test_reserved_room_counts_before_the_letter_is_there() -> None:
    box = mailbox(max_messages=2)
    assert box.reserve(1, "s")
    assert box.reserve(1, "s")
    assert not box.reserve(1, "s")
    assert box.full


def test_bytes_bound_the_mailbox_but_one_letter_of_any_size_fits_an_empty_one() -> None:
    box = mailbox(max_bytes=100)
    assert box.reserve(1_000, "s")
    assert not box.reserve(1, "s")
    assert box.full


def test_notices_have_a_reserve_of_their_own_with_bounds_in_messages_and_bytes() -> None:
    box = mailbox(max_messages=2, max_bytes=400)
    put(box)
    put(box)
    put(box, notice=True, size=60)
    assert not box.reserve_notice(60)
    put(box, notice=True, size=40)
    assert not box.reserve_notice(0)
    assert (box.messages, box.reserve_messages, box.reserve_bytes) == (2, 2, 100)
    take(box)
    box.settle(3)
    assert (box.messages, box.reserve_messages, box.reserve_bytes) == (2, 1, 40)


def test_window_bounds_what_is_in_flight() -> None:
    box = mailbox()
    for _ in range(5):
        put(box, size=10)
    assert take(box, max_messages=2) == [1, 2]
    assert take(box, max_messages=2) == []
    assert take(box, max_messages=9, max_bytes=30) == [3]
    box.settle(1)
    assert take(box, max_messages=9, max_bytes=30) == [4]
    assert take(box, batch_bytes=1) == [5]


def test_one_letter_fits_any_window_and_any_batch_when_nothing_is_in_flight() -> None:
    box = mailbox()
    put(box, size=500)
    put(box, size=500)
    assert take(box, max_bytes=1, batch_bytes=1) == [1]
    assert take(box, max_bytes=1, batch_bytes=1) == []


def test_cumulative_settle_covers_tags_of_this_session_only() -> None:
    box = mailbox()
    for _ in range(4):
        put(box)
    take(box)
    box.return_in_flight()
    assert box.resume_in_flight({1, 2}) == {1, 2}
    assert take(box) == [3, 4]
    assert sequences(box.settle_through(99)) == [3, 4]
    assert box.in_flight == 2
    assert box.settle(1) is not None
    assert box.settle(1) is None


def test_nack_holds_its_lane_and_only_it() -> None:
    box = mailbox()
    put(box, lane="a")
    put(box, lane="b")
    put(box, lane="a")
    put(box, lane="a", sender="other@local")
    take(box)
    assert sequences(box.nack({1: 10.0})) == [1, 3]
    put(box, lane="a")
    put(box, lane="b")
    assert take(box) == [6]
    assert box.in_flight == 3
    assert not box.release_due(9.9)
    assert box.next_due == 10.0
    assert box.release_due(10.0)
    assert box.next_due is None
    returned = box.take(**EVERYTHING)
    assert [(one.sequence, one.attempt, one.redelivered) for one in returned] == [
        (1, 2, True),
        (3, 1, True),
        (5, 1, False),
    ]


def test_a_lane_that_waits_takes_no_room_of_the_others() -> None:
    """Else nothing would go out at all while more of that lane is there than one look takes."""
    box = mailbox()
    for lane in "aaaab":
        put(box, lane=lane)
    assert take(box, max_messages=1) == [1]
    box.nack({1: 10.0})
    assert take(box, max_messages=2, batch_messages=2) == [5]


def test_urgent_letter_that_went_out_first_is_no_later_delivery_of_its_lane() -> None:
    box = mailbox()
    put(box, lane="a")
    urgent = put(box, lane="a", priority=4)
    assert take(box) == [2, 1]
    box.nack({1: 10.0})
    assert box.in_flight_letter(urgent.sequence) is urgent
    assert not urgent.redelivered


def test_urgent_letter_that_went_out_later_comes_again_after_the_one_it_followed() -> None:
    box = mailbox()
    put(box, lane="a")
    take(box)
    put(box, lane="a", priority=4)
    take(box)
    box.nack({1: 10.0})
    put(box, lane="a", priority=4)
    assert take(box) == []
    box.release_due(10.0)
    assert take(box) == [2, 3, 1]


def test_several_nacks_of_one_lane_hold_it_for_its_first_and_count_one_attempt() -> None:
    box = mailbox()
    for _ in range(3):
        put(box, lane="a")
    take(box)
    assert sequences(box.nack({2: 5.0, 1: 10.0, 77: 1.0})) == [1, 2, 3]
    assert not box.release_due(5.0)
    box.release_due(10.0)
    assert [(one.sequence, one.attempt) for one in box.take(**EVERYTHING)] == [(1, 2), (2, 1), (3, 1)]


def test_returned_letter_may_still_be_settled_wherever_it_waits() -> None:
    box = mailbox()
    for _ in range(4):
        put(box, lane="a")
    take(box)
    box.nack({1: 10.0})
    assert box.settle(2) is not None
    box.release_due(10.0)
    assert box.settle(3) is not None
    assert (box.messages, box.bytes) == (2, 20)
    assert take(box) == [1, 4]


def test_letter_that_was_never_delivered_cannot_be_settled() -> None:
    box = mailbox()
    put(box, lane="a")
    put(box, lane="a", resend=True)
    assert take(box, max_messages=1) == [1]
    assert box.settle(2) is None
    box.nack({1: 10.0})
    put(box, lane="a")
    take(box)
    assert box.settle(2) is None
    assert box.settle(3) is None
    assert box.messages == 3


def test_settling_the_nacked_letter_lets_its_lane_go_and_settling_another_does_not() -> None:
    box = mailbox()
    for _ in range(3):
        put(box, lane="a")
    take(box)
    box.nack({1: 10.0})
    box.settle(2)
    assert take(box) == []
    box.settle(1)
    assert take(box) == [3]


def test_lane_that_waits_for_two_goes_on_when_both_are_gone() -> None:
    box = mailbox()
    for _ in range(3):
        put(box, lane="a")
    take(box)
    box.nack({2: 10.0})
    box.nack({1: 5.0})
    assert not box.release_due(5.0)
    box.settle(1)
    assert take(box) == []
    box.settle(2)
    assert take(box) == [3]


def test_session_end_returns_everything_in_order_and_flagged() -> None:
    box = mailbox()
    for lane in ("a", "b", "a", "b"):
        put(box, lane=lane)
    take(box, max_messages=3)
    box.nack({1: 10.0})
    in_hand = box.return_in_flight()
    assert sorted(sequences(in_hand)) == [1, 2, 3]
    assert box.next_due is None
    assert [(one.sequence, one.redelivered) for one in box.take(**EVERYTHING)] == [
        (1, True),
        (2, True),
        (3, True),
        (4, False),
    ]


def test_order_is_that_of_acceptance_after_letters_came_back_in_another() -> None:
    box = mailbox()
    for lane in ("a", "b", "c"):
        put(box, lane=lane)
    take(box)
    box.nack({1: 1.0})
    box.release_due(1.0)
    assert take(box) == [1]
    put(box)
    assert sequences(box.return_in_flight()) == [2, 3, 1]
    assert take(box) == [1, 2, 3, 4]


def test_only_what_was_delivered_can_be_held_over() -> None:
    box = mailbox()
    for _ in range(3):
        put(box)
    take(box, max_messages=2)
    box.return_in_flight()
    assert box.resume_in_flight({2, 3, 99}) == {2}
    assert take(box) == [1, 3]


def test_letter_expires_while_it_waits_and_not_in_somebodys_hand() -> None:
    box = mailbox()
    put(box, expires_at=10.0)
    put(box, expires_at=20.0)
    put(box, expires_at=10.0, lane="a")
    put(box)
    assert take(box, max_messages=1) == [1]
    assert box.next_expiry == 10.0
    assert sequences(box.expire(10.0, 0.0)) == [3]
    assert box.next_expiry == 20.0
    assert (box.messages, box.bytes) == (3, 30)


def test_letter_that_expired_in_hand_is_found_when_it_comes_back() -> None:
    for come_back in ("nack", "end"):
        box = mailbox()
        put(box, expires_at=10.0, lane="a")
        put(box, expires_at=11.0)
        take(box, max_messages=1)
        assert sequences(box.expire(11.0, 0.0)) == [2]
        if come_back == "nack":
            box.nack({1: 50.0})
        else:
            box.return_in_flight()
        assert box.next_expiry <= 12.0
        assert sequences(box.expire(12.0, 0.0)) == [1]
        assert box.messages == 0
        assert box.settle(1) is None


def test_old_mail_expires_also_in_a_lane_that_waits() -> None:
    box = mailbox()
    put(box, lane="a", accepted_at=5.0)
    take(box)
    box.nack({1: 10**9})
    assert box.expire(100.0, 4.0) == []
    assert sequences(box.expire(100.0, 6.0)) == [1]
    put(box, lane="a")
    assert take(box) == [2]


def test_drain_takes_everything_in_order() -> None:
    box = mailbox()
    for lane in ("a", "a", "b", "c"):
        put(box, lane=lane, priority=3 if lane == "b" else 2)
    put(box, notice=True)
    take(box, max_messages=3)
    box.nack({1: 10.0})
    assert sequences(box.drain()) == [1, 2, 3, 4, 5]
    assert (box.messages, box.bytes, box.reserve_messages, box.reserve_bytes, box.in_flight) == (0, 0, 0, 0, 0)
    assert box.settle(1) is None
    assert take(box) == []


def test_timers_do_not_pile_up() -> None:
    box = mailbox()
    put(box, lane="a")
    for _ in range(500):
        take(box)
        box.nack({1: 10.0**9})
        box.return_in_flight()
        take(box)
        box.nack({1: 10.0**9})
        put(box, lane="a")
        box.settle(1)
        take(box)
        box.settle_through(10**9)
        box.next_sequence = 1
        put(box, lane="a")
    assert len(box._timers) <= 70


def test_senders_are_served_in_turn_and_each_in_its_order() -> None:
    box = mailbox(max_messages=1_000)
    flood = [put(box, sender="flood").sequence for _ in range(100)]
    first, second = put(box, sender="calm").sequence, put(box, sender="calm").sequence
    got = take(box)
    assert [one for one in got if one in flood] == flood
    # Behind one turn of the flood and not behind all of it.
    assert (got.index(first), got.index(second)) == (16, 17)


def test_turns_go_on_from_one_frame_to_the_next() -> None:
    box = mailbox(max_messages=1_000)
    for _ in range(40):
        put(box, sender="flood")
    one = put(box, sender="calm").sequence
    got = [take(box, batch_messages=6) for _ in range(3)]
    assert one in got[2]
    assert box.in_flight == 18


def test_a_sender_who_filled_the_mailbox_does_not_keep_the_others_out() -> None:
    box = mailbox(max_messages=128, max_bytes=10**6)
    for _ in range(128):
        put(box, sender="flood")
    assert not box.reserve(1, "flood")
    assert box.reserve(1, "calm")
    # A little is all that is kept for each of them.
    assert not box.reserve(1, "calm")
    taken = [number for number in range(100) if box.reserve(1, f"other {number}")]
    assert len(taken) == 128 // 16 - 1
    assert not box.reserve(1, "late")


def test_a_small_mailbox_has_no_room_beside_its_bound() -> None:
    box = mailbox(max_messages=15)
    for _ in range(15):
        put(box, sender="flood")
    assert not box.reserve(1, "calm")


def test_what_a_sender_has_is_forgotten_with_its_last_message() -> None:
    box = mailbox()
    for number in range(50):
        put(box, sender=f"sender {number}")
    for sequence in take(box):
        box.settle(sequence)
    assert not box._accounts


def test_urgent_letters_go_out_beyond_a_full_window_up_to_a_bound() -> None:
    box = mailbox()
    for _ in range(5):
        put(box)
    window = {"max_messages": 3, "urgent_messages": 2}
    assert take(box, **window) == [1, 2, 3]
    for _ in range(3):
        put(box, priority=4)
    assert take(box, **window) == [6, 7]
    assert take(box, **window) == []
    box.settle(1)
    assert take(box, **window) == [8]
    box.settle(6)
    # The bulk goes on only when the window has room by itself.
    assert take(box, **window) == []


def test_urgent_letters_pass_a_window_that_is_full_in_bytes() -> None:
    box = mailbox()
    put(box, size=90)
    put(box, size=20)
    window = {"max_bytes": 100, "urgent_messages": 2}
    assert take(box, **window) == [1]
    put(box, size=50, priority=4)
    assert take(box, **window) == [3]
    assert take(box, **window) == []


@pytest.mark.parametrize("where", ["waiting", "in flight", "returned", "in a lane that waits"])
def test_a_letter_can_be_withdrawn_wherever_it_is(where: str) -> None:
    box = mailbox()
    for _ in range(3):
        put(box, lane="a")
    if where != "waiting":
        take(box, **({"batch_messages": 1} if where == "in a lane that waits" else {}))
    if where in ("returned", "in a lane that waits"):
        box.nack({1: 5.0})
        take(box)
    letter = box.withdraw(2)
    assert letter is not None
    assert letter.sequence == 2
    assert box.withdraw(2) is None
    box.return_in_flight()
    assert take(box) == [1, 3]
    assert box.messages == 2


def test_many_letters_are_withdrawn_at_once_wherever_they_are() -> None:
    box = mailbox()
    for lane in "aabbccc":
        put(box, lane=lane)
    put(box, sender="t@local", priority=4)
    # In flight: 8, 1, 3; returned and in a lane that waits: 2; there without having been delivered: 7.
    take(box, batch_messages=4)
    box.nack({2: 5.0})
    put(box, lane="a")
    take(box, max_messages=3, batch_messages=1)
    assert sorted(box.withdraw_all({1, 2, 5, 7, 8, 9, 99})) == [1, 2, 5, 7, 8, 9]
    assert box.withdraw_all({1, 2, 5}) == {}
    assert (box.messages, box.bytes) == (3, 30)
    box.return_in_flight()
    assert take(box) == [3, 4, 6]


class WalkedLetter(Letter):
    """A letter that counts how often somebody looks which one it is."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "sequence":
            WalkedLetter.looks += 1
        return super().__getattribute__(name)


class ComparedLetter(Letter):
    """A letter that counts how often it is compared with another one, as a search through a queue does."""

    __slots__ = ()
    looks = 0

    def __eq__(self, other: object) -> bool:
        ComparedLetter.looks += 1
        return self is other

    __hash__ = Letter.__hash__


def test_withdrawing_many_letters_walks_the_mailbox_once() -> None:
    """Each letter is looked at a few times, and not once for every other one that goes."""
    box = mailbox(max_messages=500)
    for _ in range(400):
        letter = WalkedLetter(box.take_sequence(), envelope(), "s@local", "id", "", 1.0)
        letter.account = box.reserve(10, "s@local")
        box.put(letter)
    WalkedLetter.looks = 0
    assert len(box.withdraw_all(set(range(2, 401)))) == 399
    assert WalkedLetter.looks < 400 * 10
    assert take(box) == [1]


@pytest.mark.parametrize("waiting", [True, False], ids=["in its lane", "in the queue"])
def test_settling_what_was_returned_does_not_walk_the_mailbox_for_each(waiting: bool) -> None:
    """A reader may settle ten thousand returned deliveries in one frame, the last one first, and others must not wait."""
    box = mailbox(max_messages=500)
    for _ in range(400):
        letter = ComparedLetter(box.take_sequence(), envelope(), "s@local", "id", "", 1.0)
        letter.account = box.reserve(10, "s@local")
        box.put(letter)
    take(box)
    box.nack({1: 5.0})
    if not waiting:
        box.release_due(5.0)
    ComparedLetter.looks = 0
    assert len(box.settle_all(range(400, 1, -1))) == 399
    assert ComparedLetter.looks < 400 * 2
    box.release_due(5.0)
    assert take(box) == [1]


def test_transient_letter_that_came_before_an_earlier_one_can_be_settled_once_returned() -> None:
    box = mailbox()
    letters = []
    for _ in range(3):
        letter = Letter(box.take_sequence(), envelope(), "s@local", "id", "", 1.0)
        letter.account = box.reserve(10, "s@local")
        letters.append(letter)
    # What is durable is put in with its commit.
    for letter in (letters[2], letters[0], letters[1]):
        box.put(letter)
    assert take(box) == [3, 1, 2]
    box.nack({3: 0.0})
    box.release_due(0.0)
    assert sequences(box.settle_all([3, 1, 2])) == [3, 1, 2]
    assert (box.messages, take(box)) == (0, [])


def test_a_large_letter_is_not_passed_for_ever_by_small_ones_that_are_less_urgent() -> None:
    """The window is never empty enough for it while each small one that is settled makes room for the next."""
    box = mailbox()
    window = {"max_bytes": 100, "urgent_messages": 0}
    for _ in range(10):
        put(box, size=10)
    assert take(box, **window) == [*range(1, 11)]
    large = put(box, size=60, priority=4)
    for settled in range(1, 6):
        put(box, size=10)
        box.settle(settled)
        assert take(box, **window) == []
    box.settle(6)
    assert take(box, **window) == [large.sequence]


def test_letter_that_comes_to_its_turn_too_late_is_not_delivered_and_the_mailbox_not_walked() -> None:
    box = mailbox(max_messages=500)
    for second in range(1, 401):
        letter = WalkedLetter(box.take_sequence(), envelope(expires_at=float(second)), "s@local", "id", "", 1.0)
        letter.account = box.reserve(10, "s@local")
        box.put(letter)
    assert take(box, max_messages=1, now=0.5) == [1]
    WalkedLetter.looks = 0
    for now in range(1, 101):
        box.settle(now)
        assert take(box, max_messages=1, now=float(now)) == [now + 1]
        assert not box.overdue
    assert WalkedLetter.looks < 100 * 10
    box.settle(101)
    assert take(box, max_messages=1, now=200.0) == [201]
    assert sequences(box.overdue) == [*range(102, 201)]


def test_delivery_that_did_not_count_counts_again_once_it_is_held_over() -> None:
    """Else the next nack would take it out of the count a second time, and the letter would come as attempt 0."""
    box = mailbox()
    for _ in range(2):
        put(box, lane="a")
    take(box)
    box.nack({1: 0.0})
    box.release_due(0.0)
    box.return_in_flight()
    assert box.resume_in_flight({1, 2}) == {1, 2}
    box.nack({1: 0.0})
    box.release_due(0.0)
    assert [letter.attempt for letter in box.take(**EVERYTHING)] == [2, 1]


def lose(box: Mailbox, *, times: int, **bounds: int) -> list[list[int]]:
    """Have a reader take what it can and be lost, again and again; return what each one got."""
    got = []
    for _ in range(times):
        got.append(take(box, **bounds))
        box.return_in_flight(lost=True)
    return got


def test_a_letter_with_which_every_reader_is_lost_goes_out_alone_the_last_time_and_is_then_exhausted() -> None:
    box = mailbox()
    for _ in range(3):
        put(box)
    assert lose(box, times=3, max_deliveries=3) == [[1, 2, 3], [1, 2, 3], [1]]
    assert take(box, max_deliveries=3) == [2]
    assert sequences(box.exhausted) == [1]
    # Nothing goes out beside one that goes out alone; the innocent are settled one by one.
    assert take(box, max_deliveries=3) == []
    box.settle(2)
    assert take(box, max_deliveries=3) == [3]


def test_a_letter_waits_for_those_in_hand_before_it_goes_out_alone() -> None:
    box = mailbox()
    put(box)
    lose(box, times=2, max_deliveries=3)
    put(box, sender="t@local", priority=4)
    put(box, sender="u@local")
    assert take(box, max_deliveries=3, batch_messages=1) == [2]
    assert take(box, max_deliveries=3) == []
    box.settle(2)
    assert take(box, max_deliveries=3) == [1]
    assert take(box, max_deliveries=3) == []
    box.settle(1)
    assert take(box, max_deliveries=3) == [3]


def test_what_is_urgent_passes_a_letter_that_went_out_alone() -> None:
    box = mailbox()
    put(box)
    lose(box, times=2, max_deliveries=3)
    bounds = {"max_deliveries": 3, "urgent_messages": 2}
    assert take(box, **bounds) == [1]
    put(box)
    urgent = put(box, priority=4).sequence
    assert take(box, **bounds) == [urgent]
    assert take(box, **bounds) == []


def test_a_reader_that_goes_of_its_own_will_or_sends_back_puts_nothing_under_suspicion() -> None:
    box = mailbox()
    put(box)
    put(box)
    for _ in range(5):
        assert take(box, max_deliveries=3) == [1, 2]
        box.return_in_flight()
    assert take(box, max_deliveries=3) == [1, 2]
    box.return_in_flight(lost=True)
    take(box, max_deliveries=9)
    box.nack({1: 0.0, 2: 0.0})
    box.release_due(1.0)
    assert take(box, max_deliveries=3) == [1, 2]


def test_what_went_out_alone_holds_up_nothing_once_it_is_no_longer_suspect() -> None:
    box = mailbox()
    put(box)
    lose(box, times=2, max_deliveries=3)
    assert take(box, max_deliveries=3) == [1]
    put(box)
    assert take(box, max_deliveries=3) == []
    box.return_in_flight()
    assert take(box, max_deliveries=3) == [1, 2]
    put(box)
    assert take(box, max_deliveries=3) == [3]


def test_what_nobody_failed_in_does_not_count() -> None:
    box = mailbox()
    letter = put(box)
    for _ in range(9):
        assert take(box, max_deliveries=3) == [1]
        box.return_in_flight()
    assert (letter.attempt, letter.counted) == (9, 1)
    # As many readers may be lost with it as with any other one.
    assert lose(box, times=3, max_deliveries=3) == [[1]] * 3
    assert take(box, max_deliveries=3) == []
    assert sequences(box.exhausted) == [1]


def test_a_reader_that_comes_back_is_no_proof_against_what_it_had_in_hand() -> None:
    box = mailbox()
    first, second = put(box), put(box)
    for _ in range(5):
        assert take(box, max_deliveries=3) == [1, 2]
        box.return_in_flight(lost=True)
        box.pardon()
    assert (first.counted, second.counted) == (1, 1)
    assert take(box, max_deliveries=3) == [1, 2]


def test_what_the_next_reader_goes_on_with_counts_once_it_ends() -> None:
    box = mailbox()
    first, second = put(box), put(box)
    for _ in range(3):
        take(box)
        box.return_in_flight(kept={1})
        assert box.resume_in_flight({1}) == {1}
        box.nack({1: 0.0})
        box.release_due(0.0)
    assert (first.counted, second.counted) == (3, 1)


class MailboxMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: counts are right, nothing is lost or doubled, order holds in each queue."""

    def __init__(self) -> None:
        super().__init__()
        self.box = mailbox(max_messages=12, max_bytes=200)
        self.now = 0.0
        self.tag = 0
        self.alive: dict[int, Letter] = {}
        self.in_hand: set[int] = set()

    @rule(
        sender=st.sampled_from("st"),
        lane=st.sampled_from("abc"),
        priority=st.integers(1, 4),
        size=st.integers(1, 60),
        ttl=st.integers(0, 6),
    )
    def accept(self, sender: str, lane: str, priority: int, size: int, ttl: int) -> None:
        made = envelope(lane=lane, priority=priority, size=size, expires_at=self.now + ttl if ttl else 0.0)
        account = self.box.reserve(size, sender)
        if account is not None:
            letter = Letter(self.box.take_sequence(), made, sender, "id", "", self.now)
            letter.account = account
            self.box.put(letter)
            self.alive[letter.sequence] = letter

    @rule(window=st.integers(1, 8), urgent=st.integers(0, 2))
    def deliver(self, window: int, urgent: int) -> None:
        before = self.box.in_flight
        taken = self.box.take(
            max_messages=window, max_bytes=150, batch_messages=4, batch_bytes=100, urgent_messages=urgent
        )
        most = window + (urgent if any(one.envelope.priority == 4 for one in taken) else 0)
        assert self.box.in_flight <= max(before, most)
        for letter in taken:
            assert letter.sequence in self.alive
            self.tag += 1
            letter.tag = self.tag
            self.in_hand.add(letter.sequence)

    @rule(sequence=st.integers(1, 30))
    def settle(self, sequence: int) -> None:
        letter = self.box.settle(sequence)
        assert (letter is not None) == (sequence in self.in_hand)
        if letter is not None:
            self._gone([letter])

    @rule(several=st.lists(st.integers(1, 30), max_size=6))
    def settle_all(self, several: list[int]) -> None:
        letters = self.box.settle_all(several)
        assert sequences(letters) == [one for one in dict.fromkeys(several) if one in self.in_hand]
        self._gone(letters)

    @rule(sequences=st.sets(st.integers(1, 30), min_size=1, max_size=4))
    def withdraw(self, sequences: set[int]) -> None:
        letters = self.box.withdraw_all(sequences)
        assert letters.keys() == sequences & self.alive.keys()
        self._gone(list(letters.values()))

    @rule(back=st.integers(0, 6))
    def settle_through(self, back: int) -> None:
        self._gone(self.box.settle_through(self.tag - back))

    @rule(nacks=st.dictionaries(st.integers(1, 30), st.integers(0, 5), max_size=4))
    def nack(self, nacks: dict[int, int]) -> None:
        self.box.nack({sequence: self.now + delay for sequence, delay in nacks.items()})

    @rule(seconds=st.integers(0, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.box.release_due(self.now)

    @rule(held=st.sets(st.integers(1, 30), max_size=3))
    def reconnect(self, held: set[int]) -> None:
        assert set(sequences(self.box.return_in_flight())) == self.in_hand
        assert all(self.alive[sequence].redelivered for sequence in self.in_hand)
        self.in_hand = self.box.resume_in_flight(held)
        assert self.in_hand <= held

    @rule()
    def expire(self) -> None:
        gone = self.box.expire(self.now, self.now - 20)
        self._gone(gone)
        late = [one for one in self.alive.values() if 0 < one.envelope.expires_at <= self.now and not one.tag]
        assert not [one for one in late if self.box.in_flight_letter(one.sequence) is None]

    @precondition(lambda self: len(self.alive) > 9)
    @rule()
    def drain(self) -> None:
        self._gone(self.box.drain())
        assert not self.alive

    def _gone(self, letters: list[Letter]) -> None:
        for letter in letters:
            del self.alive[letter.sequence]
            self.in_hand.discard(letter.sequence)

    @invariant()
    def everything_adds_up(self) -> None:
        letters = list(self.box.letters())
        assert len(letters) == len(self.alive) == self.box.messages
        assert {one.sequence for one in letters} == set(self.alive)
        assert self.box.bytes == sum(one.size for one in letters)
        assert self.box._in_flight_bytes == sum(one.size for one in self.box._in_flight.values())
        assert {*self.box._in_flight, *self.box._returned} == self.in_hand
        for queue in self.box._queues:
            for sender in "st":
                mine = sequences(one for one in queue if one.sender == sender)
                assert mine == sorted(mine)
            assert sorted(queue._turns) == sorted({one.sender for one in queue})
        for sender in "st":
            account = self.box._accounts.get(sender)
            mine = [one for one in letters if one.sender == sender]
            assert (
                (account.messages, account.bytes) == (len(mine), sum(one.size for one in mine)) if account else not mine
            )
        for lane in self.box._held.values():
            # In order within one urgency, as in the queues to which they go back.
            for priority in range(1, 5):
                mine = sequences(one for one in lane.letters.values() if one.envelope.priority == priority)
                assert mine == sorted(mine)
            assert lane.holders <= lane.letters.keys()


MailboxMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestMailbox = MailboxMachine.TestCase
