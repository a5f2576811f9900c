"""The checker of the chaos harness finds each kind of broken promise, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.checker import Findings, check
from tests.chaos.history import History, body_hash, histories, history_path, mark_of, read
from tests.chaos.scenario import Report


class Run:
    """Histories of one sender `s0` and of receivers, written as a test says, one client process each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sender = self.process("sender")
        self._open: list[History] = [self.sender]

    def process(self, kind: str, client: str = "") -> History:
        return History(history_path(self.folder, client or kind), kind=kind)

    def receiver(self, kind: str = "raw") -> History:
        made = self.process(kind)
        self._open.append(made)
        return made

    def sent(self, number: int, outcome: str = "ACCEPTED", *, conversation: str = "", **more: object) -> str:
        """Note a message and its receipt; no receipt when the outcome is empty."""
        mark = f"m{number}"
        self.sender.sent(
            mark, "r0", sender="s0", number=number, body=body_hash(mark), conversation=conversation, **more
        )
        if outcome:
            self.sender.receipt(mark, "r0", outcome)
        return mark

    def check(self) -> Findings:
        """End every client and return what the checker says."""
        self.close()
        return check(histories(self.folder))

    def close(self) -> None:
        while self._open:
            self._open.pop().__exit__(None, None, None)


def deliver(history: History, number: int, *, acked: bool = True, **other: object) -> None:
    """Note a delivery of message ``number``, as it should be except for what ``other`` says."""
    mark = f"m{number}"
    usual = {"sender": "s0@local", "receiver": "r0@local", "sequence": number, "attempt": 1, "redelivered": False}
    history.delivered(mark, **{**usual, "body": body_hash(mark), **other})
    if acked:
        history.settled(mark, "r0@local", "ack")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.close()


def counts(found: Findings) -> dict[str, int]:
    """Return every count that is not zero and should be."""
    names = [name for name in Findings.__dataclass_fields__ if hasattr(getattr(found, name), "times")]
    return {name: getattr(found, name).times for name in names if getattr(found, name).times}


def test_a_run_in_which_all_is_well_has_no_problem(run: Run) -> None:
    receiver, handler = run.receiver("raw"), run.receiver("sdk")
    for number in range(4):
        run.sent(number, "DUPLICATE" if number == 3 else "ACCEPTED")
    deliver(receiver, 0)
    deliver(receiver, 1, acked=False)
    deliver(receiver, 1, redelivered=True, attempt=2)
    deliver(handler, 2, acked=False)
    handler.handled("m2", "r0")
    deliver(run.receiver("collector"), 3)
    found = run.check()
    assert (counts(found), found.problems()) == ({}, [])
    assert (found.sent, found.accepted, found.handled, found.stored) == (4, 4, 3, 1)
    assert (found.deliveries, found.redeliveries, found.left) == (5, 1, 1)
    assert found.into(Report("a fault", "done")).good


# ---- L0, L4 ------------------------------------------------------------------------------------------------------------


def test_an_accepted_message_of_which_nothing_is_left_is_lost(run: Run) -> None:
    run.sent(0)
    run.sent(1, "DUPLICATE")
    found = run.check()
    assert counts(found) == {"lost": 2}
    report = found.into(Report("a fault", "done"))
    assert (report.accepted, report.lost, report.good) == (2, 2, False)


def test_a_message_that_was_delivered_and_ended_nowhere_is_lost(run: Run) -> None:
    run.sent(0)
    deliver(run.receiver(), 0, acked=False)
    assert counts(run.check()) == {"lost": 1}


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_sending_a_delivery_back_is_no_end(run: Run, how: str) -> None:
    run.sent(0)
    receiver = run.receiver()
    deliver(receiver, 0, acked=False)
    receiver.settled("m0", "r0", how)
    assert counts(run.check()) == {"lost": 1}


def test_what_the_bus_gave_up_aloud_or_what_expired_is_not_lost(run: Run) -> None:
    run.sent(0)
    run.sender.dead("m0", "r0", "max-deliveries")
    run.sent(1, expires_at=1.0)
    found = run.check()
    assert (counts(found), found.stored, found.dead) == ({}, 2, 1)


def test_what_has_not_expired_yet_is_lost(run: Run) -> None:
    run.sent(0, expires_at=4e9)
    assert counts(run.check()) == {"lost": 1}


def test_transient_messages_may_go_with_the_bus(run: Run) -> None:
    run.sent(0, transient=True)
    assert counts(run.check()) == {}


def test_refused_messages_need_not_be_anywhere(run: Run) -> None:
    run.sent(0, "MAILBOX_FULL")
    found = run.check()
    assert (counts(found), found.refused, found.accepted) == ({}, 1, 0)


@pytest.mark.parametrize("outcome", ["", "UNKNOWN"])
def test_a_sender_that_lived_to_the_end_is_owed_an_outcome(run: Run, outcome: str) -> None:
    run.sent(0, outcome)
    assert counts(run.check()) == {"unanswered": 1}


def test_an_outcome_that_leaves_all_open_is_one(run: Run) -> None:
    run.sent(0, "UNREACHABLE")
    assert counts(run.check()) == {}


def test_a_sender_that_was_killed_is_owed_nothing(run: Run) -> None:
    killed = run.process("sender", "killed")
    killed.sent("k0", "r0", sender="s1", number=0, body="")
    assert counts(run.check()) == {}


def test_an_outcome_may_stand_in_another_history(run: Run) -> None:
    run.sent(0, "")
    run.receiver("sender").receipt("m0", "r0@local", "ACCEPTED")
    assert counts(run.check()) == {"lost": 1}


# ---- L1 ----------------------------------------------------------------------------------------------------------------


def test_a_delivery_that_nobody_sent_comes_from_nowhere(run: Run) -> None:
    deliver(run.receiver(), 7)
    assert counts(run.check()) == {"from_nowhere": 1}


def test_a_delivery_to_another_receiver_comes_from_nowhere(run: Run) -> None:
    run.sent(0)
    deliver(run.receiver(), 0)
    deliver(run.receiver(), 0, receiver="r1")
    assert counts(run.check()) == {"from_nowhere": 1}


def test_a_receipt_for_what_nobody_sent_comes_from_nowhere(run: Run) -> None:
    run.sender.receipt("m9", "r0", "ACCEPTED")
    assert counts(run.check()) == {"from_nowhere": 1}


def test_a_changed_body_is_found(run: Run) -> None:
    run.sent(0)
    deliver(run.receiver(), 0, body=body_hash("m0 and more"))
    assert counts(run.check()) == {"wrong_body": 1}


def test_a_changed_body_is_found_in_a_redelivery(run: Run) -> None:
    run.sent(0)
    receiver = run.receiver()
    deliver(receiver, 0, acked=False)
    deliver(receiver, 0, body="", redelivered=True)
    assert counts(run.check()) == {"wrong_body": 1}


def test_another_sender_is_found(run: Run) -> None:
    run.sent(0)
    deliver(run.receiver(), 0, sender="mallory@local")
    assert counts(run.check()) == {"wrong_sender": 1}


def test_a_message_that_was_refused_and_comes_all_the_same_is_found(run: Run) -> None:
    run.sent(0, "MAILBOX_FULL")
    deliver(run.receiver(), 0)
    assert counts(run.check()) == {"after_refusal": 1}


def test_a_message_that_was_sent_again_after_a_refusal_may_come(run: Run) -> None:
    run.sent(0, "MAILBOX_FULL")
    run.sent(0, "ACCEPTED")
    deliver(run.receiver(), 0)
    assert counts(run.check()) == {}


@pytest.mark.parametrize("outcome", ["", "UNKNOWN", "UNREACHABLE"])
def test_a_message_of_unknown_outcome_may_come(run: Run, outcome: str) -> None:
    run.sent(0, outcome)
    deliver(run.receiver(), 0)
    assert "after_refusal" not in counts(run.check())


def test_a_message_that_comes_after_it_was_given_up_is_found(run: Run) -> None:
    receiver = run.receiver()
    for number in range(2):
        run.sent(number)
        deliver(receiver, number, acked=False)
        run.sender.dead(f"m{number}", "r0@local", "given up")
    deliver(receiver, 1, redelivered=True)
    assert counts(run.check()) == {"after_given_up": 1}


def test_a_failure_of_what_nobody_sent_comes_from_nowhere(run: Run) -> None:
    run.sender.dead("m9", "r0", "given up")
    assert counts(run.check()) == {"from_nowhere": 1}


def test_a_sequence_that_stands_for_two_messages_is_found(run: Run) -> None:
    run.sent(0)
    run.sent(1)
    receiver = run.receiver()
    deliver(receiver, 0, sequence=5)
    deliver(receiver, 1, sequence=5)
    assert counts(run.check()) == {"sequence_reused": 1}


# ---- L2 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_flagged", [True, False])
def test_a_second_delivery_without_a_flag_is_found(run: Run, first_flagged: bool) -> None:
    run.sent(0)
    receiver = run.receiver()
    deliver(receiver, 0, redelivered=first_flagged)
    deliver(receiver, 0)
    found = run.check()
    assert counts(found) == {"doubled_unflagged": 1}
    assert found.into(Report("a fault", "done")).doubled_unflagged == 1


def test_every_second_delivery_without_a_flag_counts_whoever_gets_it(run: Run) -> None:
    run.sent(0)
    deliver(run.receiver("raw"), 0)
    deliver(run.receiver("sdk"), 0)
    deliver(run.receiver("collector"), 0)
    assert counts(run.check()) == {"doubled_unflagged": 2}


def test_a_process_that_handles_a_message_twice_is_found_flag_or_not(run: Run) -> None:
    run.sent(0)
    handler = run.receiver("sdk")
    for redelivered in (False, True):
        deliver(handler, 0, acked=False, redelivered=redelivered)
        handler.handled("m0", "r0")
    assert counts(run.check()) == {"handled_twice": 1}


def test_another_life_may_handle_what_an_earlier_one_had_not_acknowledged(run: Run) -> None:
    run.sent(0)
    for redelivered in (False, True):
        handler = run.receiver("sdk")
        deliver(handler, 0, acked=False, redelivered=redelivered)
        handler.handled("m0", "r0")
    assert counts(run.check()) == {}


# ---- L3 ----------------------------------------------------------------------------------------------------------------


def test_first_deliveries_out_of_order_are_found(run: Run) -> None:
    receiver = run.receiver()
    for number in range(3):
        run.sent(number)
    for number in (0, 2, 1):
        deliver(receiver, number)
    assert counts(run.check()) == {"out_of_order": 1}


def test_order_goes_on_over_the_lives_of_a_receiver(run: Run) -> None:
    for number in range(2):
        run.sent(number)
    deliver(run.receiver(), 1)
    deliver(run.receiver(), 0)
    assert counts(run.check()) == {"out_of_order": 1}


def test_a_sender_that_is_started_anew_counts_anew(run: Run) -> None:
    run.sent(5)
    run.receiver("sender").sent("n0", "r0", sender="s0", number=0, body=body_hash("m0"))
    receiver = run.receiver()
    deliver(receiver, 5)
    receiver.delivered("n0", sender="s0", receiver="r0", sequence=6, attempt=1, redelivered=False, body=body_hash("m0"))
    assert "out_of_order" not in counts(run.check())


def test_each_sender_has_an_order_of_its_own(run: Run) -> None:
    run.sent(0)
    run.sender.sent("n1", "r0", sender="s1", number=1, body="")
    receiver = run.receiver()
    receiver.delivered("n1", sender="s1", receiver="r0", sequence=6, attempt=1, redelivered=False, body="")
    deliver(receiver, 0)
    assert "out_of_order" not in counts(run.check())


def test_redeliveries_have_no_order(run: Run) -> None:
    receiver = run.receiver()
    for number in range(2):
        run.sent(number)
        deliver(receiver, number, acked=False)
    deliver(receiver, 1, redelivered=True)
    deliver(receiver, 0, redelivered=True)
    assert counts(run.check()) == {}


def test_handlers_of_two_conversations_run_side_by_side_but_deliveries_do_not(run: Run) -> None:
    run.sent(0, conversation="a")
    run.sent(1, conversation="b")
    handler = run.receiver("sdk")
    deliver(handler, 1, conversation="b")
    deliver(handler, 0, conversation="a")
    assert counts(run.check()) == {}


def test_handlers_of_one_conversation_run_in_order(run: Run) -> None:
    run.sent(0, conversation="a")
    run.sent(1, conversation="a")
    handler = run.receiver("sdk")
    deliver(handler, 1, conversation="a")
    deliver(handler, 0, conversation="a")
    assert counts(run.check()) == {"out_of_order": 1}


def test_conversations_do_not_excuse_disorder_on_the_wire(run: Run) -> None:
    run.sent(0, conversation="a")
    run.sent(1, conversation="b")
    receiver = run.receiver("raw")
    deliver(receiver, 1, conversation="b")
    deliver(receiver, 0, conversation="a")
    assert counts(run.check()) == {"out_of_order": 1}


@pytest.mark.parametrize(("conversation", "expected"), [("b", {}), ("a", {"out_of_order": 1})])
def test_what_is_sent_back_holds_up_its_own_conversation_only(
    run: Run, conversation: str, expected: dict[str, int]
) -> None:
    receiver = run.receiver("raw")
    for number, name in enumerate(("a", "a", conversation)):
        run.sent(number, conversation=name)
    deliver(receiver, 0, acked=False, conversation="a")
    receiver.settled("m0", "r0", "nack")
    deliver(receiver, 2, conversation=conversation)
    deliver(receiver, 0, conversation="a", redelivered=True)
    deliver(receiver, 1, conversation="a")
    assert counts(run.check()) == expected


@pytest.mark.parametrize("other", [{"priority": "urgent"}, {"transient": True}])
def test_priorities_and_transient_messages_have_orders_of_their_own(run: Run, other: dict[str, object]) -> None:
    run.sent(0)
    run.sent(1, **other)
    receiver = run.receiver()
    deliver(receiver, 1)
    deliver(receiver, 0)
    assert counts(run.check()) == {}


def test_a_message_that_was_refused_at_first_has_lost_its_place(run: Run) -> None:
    run.sent(0, "MAILBOX_FULL")
    run.sent(1)
    run.sent(0)
    receiver = run.receiver()
    deliver(receiver, 1)
    deliver(receiver, 0)
    assert counts(run.check()) == {}


def test_what_is_sent_again_keeps_its_first_place(run: Run) -> None:
    receiver = run.receiver()
    for number in range(2):
        run.sent(number)
        deliver(receiver, number)
    run.sender.sent("m0", "r0", sender="s0", number=9, body=body_hash("m0"))
    run.sender.receipt("m0", "r0", "DUPLICATE")
    found = run.check()
    assert (counts(found), found.sent, len(found.accepted_at)) == ({}, 2, 2)


# ---- the rest ------------------------------------------------------------------------------------------------------------


def test_the_rate_counts_accepted_messages_between_two_moments(run: Run) -> None:
    for number in range(10):
        run.sent(number)
        deliver(run.receiver(), number)
    found = run.check()
    first, last = found.accepted_at[0], found.accepted_at[-1]
    assert len(found.accepted_at) == 10
    assert found.rate(first - 1, first - 1 + 20) == pytest.approx(0.5)
    assert found.rate(last + 1, last + 2) == found.rate(first, first) == 0


def test_errors_and_cautious_flags_are_counted_and_harm_nothing(run: Run) -> None:
    run.sent(0)
    run.sender.error("the connection was lost")
    deliver(run.receiver(), 0, redelivered=True)
    found = run.check()
    assert (counts(found), found.errors, found.flagged_first) == ({}, 1, 1)


def test_problems_name_a_few_examples(run: Run) -> None:
    receiver = run.receiver()
    for number in range(5):
        deliver(receiver, number)
    assert run.check().problems() == ["5 messages from nowhere (m0 to r0, m1 to r0, m2 to r0, ...)"]


def test_the_last_line_of_a_killed_client_may_be_torn(run: Run) -> None:
    run.sent(0)
    with run.sender.path.open("ab") as file:
        file.write(b'{"e":"sent","t":1.0,"w"')
    assert [event["e"] for event in read(run.sender.path)] == ["start", "sent", "receipt"]
    assert counts(check(histories(run.folder))) == {"lost": 1}


def test_a_client_that_comes_again_writes_another_history(tmp_path: Path) -> None:
    for _ in range(2):
        with History(history_path(tmp_path, "raw-r0"), kind="raw"):
            pass
    assert [path.name for path in histories(tmp_path)] == ["raw-r0.1.history.jsonl", "raw-r0.2.history.jsonl"]
    assert [event["e"] for path in histories(tmp_path) for event in read(path)] == ["start", "end"] * 2


def test_a_client_that_failed_has_no_end(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), History(tmp_path / "one.history.jsonl", kind="raw"):
        raise ValueError("broken")
    assert [event["e"] for event in read(tmp_path / "one.history.jsonl")] == ["start"]


def test_marks_are_the_first_word() -> None:
    assert (mark_of("s0-1 xxx"), mark_of(b"s0-1 \xff"), mark_of(None), mark_of("s0-1")) == ("s0-1", "s0-1", "", "s0-1")
