"""What agents owe: which message pays which debt, what is closed, and that nothing is counted twice or kept for ever."""

from __future__ import annotations

from typing import Any

import pytest

from gagent_grpc.acl.performative import Performative as P
from gagent_grpc.bus.debts import DEBT_COST, OWES_ANSWER, Debt, Debts
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.envelope import Envelope, OnReceiverLost

BOB, ALICE, CAROL = "bob@local", "alice@local", "carol@local"


def envelope(act: P = P.REQUEST, **fields: Any) -> Envelope:
    made = Envelope()
    made.performative = int(act)
    made.id = made.protocol = made.conversation_id = made.reply_with = made.in_reply_to = ""
    made.reply_to = ()
    made.reply_by = 0.0
    made.on_receiver_lost = 0
    made.payload = b""
    made.resend = False
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Book:
    """Debts of bob, and a mailbox that numbers what he gets."""

    def __init__(self, **bounds: Any) -> None:
        given = {"per_agent": 100, "max_bytes": 10**9, "longest_wait": 1_000.0, "closed_age": 600.0}
        self.debts = Debts(**{**given, **bounds})
        self.sequence = 0

    def ask(self, sender: str = ALICE, *, now: float = 0.0, debtor: str = BOB, **fields: Any) -> int:
        self.sequence += 1
        self.debts.owe(debtor, Letter(self.sequence, envelope(**fields), sender, "id", "", now), now)
        return self.sequence

    def found(self, receiver: str = ALICE, act: P = P.INFORM, **fields: Any) -> Debt | None:
        return self.debts.find(BOB, receiver, envelope(act, **fields))

    def answer(self, receiver: str = ALICE, act: P = P.INFORM, **fields: Any) -> int | None:
        """Pay what a message of bob pays; return the number of the message that it answers."""
        debt = self.found(receiver, act, **fields)
        if debt is None or debt.closed_at is not None:
            return None
        self.debts.pay(debt)
        return debt.sequence

    def close(self, *, now: float = 0.0) -> list[int]:
        due = self.debts.due(BOB, now)
        for debt in due:
            self.debts.close(debt, now)
        return [debt.sequence for debt in due]

    def owed(self) -> list[int]:
        return [debt.sequence for debt in self.debts.due(BOB, 1e12)]


@pytest.fixture
def book() -> Book:
    return Book()


def test_an_answer_is_owed_for_the_acts_that_the_wire_names() -> None:
    named = (
        P.REQUEST, P.REQUEST_WHEN, P.REQUEST_WHENEVER, P.QUERY_IF, P.QUERY_REF, P.CFP, P.PROPOSE, P.PROXY, P.PROPAGATE,
        P.SUBSCRIBE,
    )  # fmt: skip
    assert {int(act) for act in named} == OWES_ANSWER
    # Looked up for every letter, as what the wire has.
    assert all(type(act) is int for act in OWES_ANSWER)


# ---- paying ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [P.INFORM, P.REFUSE, P.FAILURE, P.NOT_UNDERSTOOD, P.PROPOSE, P.CANCEL])
def test_any_act_under_the_reply_with_pays_but_an_agree(book: Book, act: P) -> None:
    asked = book.ask(reply_with="r", conversation_id="c")
    assert book.answer(act=P.AGREE, in_reply_to="r", conversation_id="c") is None
    assert book.answer(act=P.AGREE, conversation_id="c") is None
    assert book.answer(act=act, in_reply_to="other") is None
    assert book.answer(act=act, in_reply_to="r") == asked
    assert book.answer(act=act, in_reply_to="r") is None
    assert (book.debts.count, book.owed()) == (0, [])
    assert BOB not in book.debts.accounts


SUBSCRIPTION: dict[str, Any] = {"act": P.SUBSCRIBE, "protocol": "fipa-subscribe", "conversation_id": "c"}


@pytest.mark.parametrize("act", [P.REFUSE, P.FAILURE, P.NOT_UNDERSTOOD])
def test_a_subscription_is_owed_beyond_its_notices_until_its_publisher_ends_it(book: Book, act: P) -> None:
    asked = book.ask(**SUBSCRIPTION, reply_with="r")
    for _ in range(2):
        assert book.answer(in_reply_to="r", conversation_id="c") is None
        assert book.answer(conversation_id="c") is None
    assert book.owed() == [asked]
    assert book.answer(act=act, in_reply_to="r", conversation_id="c") == asked
    assert BOB not in book.debts.accounts


def test_only_a_marked_subscription_under_its_protocol_goes_on(book: Book) -> None:
    for fields in ({"reply_with": "r", "protocol": ""}, {"conversation_id": ""}):
        asked = book.ask(**{**SUBSCRIPTION, **fields})
        assert book.answer(in_reply_to=fields.get("reply_with", "")) == asked


@pytest.mark.parametrize(
    "cancel", [{"in_reply_to": "r"}, {"conversation_id": "c"}, {"in_reply_to": "made up", "conversation_id": "c"}]
)
def test_a_cancel_of_its_subscriber_ends_a_subscription(book: Book, cancel: dict[str, str]) -> None:
    other = book.ask(**{**SUBSCRIPTION, "conversation_id": "d"}, reply_with="s")
    asked, request = book.ask(**SUBSCRIPTION, reply_with="r"), book.ask(conversation_id="c", reply_with="q")
    book.debts.cancelled(BOB, CAROL, envelope(P.CANCEL, **cancel))
    book.debts.cancelled("nobody@local", ALICE, envelope(P.CANCEL, **cancel))
    assert book.owed() == [other, asked, request]
    book.debts.cancelled(BOB, ALICE, envelope(P.CANCEL, **cancel))
    assert book.owed() == [other, request]


def test_a_notice_to_a_subscriber_that_is_gone_is_the_last(book: Book) -> None:
    asked = book.ask(**SUBSCRIPTION, reply_with="r")
    debt = book.debts.find(BOB, ALICE, envelope(P.INFORM, in_reply_to="r"), final=True)
    assert debt is not None
    assert debt.sequence == asked


def test_without_a_reply_with_the_conversation_counts(book: Book) -> None:
    asked = book.ask(conversation_id="c")
    assert book.answer(conversation_id="d") is None
    assert book.answer() is None
    assert book.answer(act=P.AGREE, conversation_id="c") is None
    assert book.answer(act=P.QUERY_IF, conversation_id="c") == asked
    # An in-reply-to that nobody gave says nothing.
    asked = book.ask(conversation_id="c")
    assert book.answer(in_reply_to="made up", conversation_id="c") == asked


def test_without_any_mark_whatever_comes_unmarked_is_the_answer(book: Book) -> None:
    first, second = book.ask(), book.ask()
    assert book.answer(conversation_id="c") is None
    assert book.answer(in_reply_to="r") is None
    assert [book.answer(), book.answer(), book.answer()] == [first, second, None]


def test_a_simple_agent_answers_within_the_conversation_and_a_question_of_its_own_is_no_answer(book: Book) -> None:
    first, second = book.ask(reply_with="r", conversation_id="c"), book.ask(conversation_id="c")
    third = book.ask(reply_with="s", conversation_id="c")
    assert book.answer(conversation_id="c") == first
    # In the conversation of one without a reply-with, anything is an answer; of the others a question is none.
    assert book.answer(act=P.QUERY_IF, conversation_id="c") == second
    assert book.answer(act=P.QUERY_IF, conversation_id="c") is None
    assert book.answer(conversation_id="c") == third


def test_two_askers_with_the_same_marks_are_told_apart(book: Book) -> None:
    of_alice = book.ask(ALICE, reply_with="r", conversation_id="c")
    of_carol = book.ask(CAROL, reply_with="r", conversation_id="c")
    for _ in range(2):
        assert book.answer(CAROL, in_reply_to="r", conversation_id="c") in (of_carol, None)
        assert book.answer(CAROL, conversation_id="c") is None
    assert book.owed() == [of_alice]
    assert book.answer("dave@local", in_reply_to="r", conversation_id="c") is None
    assert book.answer(ALICE, in_reply_to="r", conversation_id="c") == of_alice


def test_under_one_mark_the_oldest_is_meant(book: Book) -> None:
    first, second = book.ask(reply_with="r"), book.ask(reply_with="r")
    assert [book.answer(in_reply_to="r"), book.answer(in_reply_to="r")] == [first, second]


def test_an_answer_may_go_to_the_asker_or_to_where_it_wants_its_answers(book: Book) -> None:
    for to in ("carol@local", "dave@far", ALICE):
        asked = book.ask(reply_with="r", reply_to=("carol", "dave@far", "carol@local"))
        assert book.answer("dave@local", in_reply_to="r") is None
        assert book.answer(to, in_reply_to="r") == asked
        assert BOB not in book.debts.accounts


def test_a_message_is_owed_once_and_its_end_is_the_end_of_the_debt(book: Book) -> None:
    asked = book.ask(reply_with="r")
    book.debts.owe(BOB, Letter(asked, envelope(reply_with="r"), ALICE, "id", "", 0.0), 0.0)
    assert book.debts.count == 1
    book.debts.drop(BOB, 77)
    book.debts.drop("nobody@local", asked)
    book.debts.drop(BOB, asked)
    book.debts.drop(BOB, asked)
    assert (book.debts.count, book.found(in_reply_to="r"), book.debts.debtors()) == (0, None, [])


def test_an_answer_that_was_not_kept_is_owed_again(book: Book) -> None:
    asked = book.ask(reply_with="r")
    debt = book.found(in_reply_to="r")
    assert debt is not None
    book.debts.pay(debt)
    book.debts.reinstate(debt)
    assert (book.debts.count, book.owed()) == (1, [asked])
    assert book.answer(in_reply_to="r") == asked


# ---- answering for the lost ------------------------------------------------------------------------------------------


def test_a_debt_has_what_a_failure_in_its_place_needs(book: Book) -> None:
    book.ask(reply_with="r", conversation_id="c", protocol="fipa-query", id="m", act=P.QUERY_REF)
    (debt,) = book.debts.due(BOB, 0.0)
    assert (debt.asker, debt.debtor, debt.sequence, debt.performative) == (ALICE, BOB, 1, P.QUERY_REF)
    assert (debt.reply_with, debt.conversation_id, debt.protocol, debt.id) == ("r", "c", "fipa-query", "m")


def test_what_waits_is_due_at_its_reply_by_or_when_no_message_would_wait_any_longer(book: Book) -> None:
    at_once = book.ask(now=50.0, on_receiver_lost=int(OnReceiverLost.FAIL), reply_by=100.0)
    until = book.ask(now=50.0, on_receiver_lost=int(OnReceiverLost.WAIT), reply_by=100.0)
    without = book.ask(now=50.0, on_receiver_lost=int(OnReceiverLost.WAIT))
    for now, due in ((60.0, [at_once]), (100.0, [at_once, until]), (1_050.0, [at_once, until, without])):
        assert [debt.sequence for debt in book.debts.due(BOB, now)] == due
    assert [debt.sequence for debt in book.debts.due(BOB, 1e9, 2)] == [at_once, until]
    assert book.debts.due("nobody@local", 1e9) == []


def test_an_answer_to_what_is_closed_comes_too_late(book: Book) -> None:
    book.ask(reply_with="r", conversation_id="r")
    book.ask(reply_with="s", conversation_id="talk")
    book.ask(conversation_id="c")
    assert book.close(now=10.0) == [1, 2, 3]
    assert (book.debts.count, book.debts.debtors()) == (0, [])
    for late in (
        {"in_reply_to": "r"},
        {"in_reply_to": "r", "act": P.AGREE},
        {"in_reply_to": "s", "act": P.PROPOSE},
        {"conversation_id": "r"},
        {"conversation_id": "c"},
        {"conversation_id": "c", "act": P.AGREE},
    ):
        for _ in range(2):
            debt = book.found(**late)
            assert debt is not None
            assert debt.closed_at == 10.0
    for other in (
        {"in_reply_to": "t", "conversation_id": "r"},
        # A conversation that goes on has other messages than late answers.
        {"conversation_id": "talk"},
        {"conversation_id": "c", "act": P.REQUEST},
        {"in_reply_to": "r", "receiver": CAROL},
        {},
    ):
        assert book.found(**other) is None


def test_without_a_mark_nothing_is_late(book: Book) -> None:
    book.ask()
    assert book.close() == [1]
    assert book.found() is None
    assert BOB not in book.debts.accounts


def test_who_asks_anew_under_a_closed_mark_can_be_answered(book: Book) -> None:
    book.ask(reply_with="r", conversation_id="r")
    book.ask(conversation_id="c")
    book.close()
    again = book.ask(reply_with="r", conversation_id="r")
    assert book.answer(in_reply_to="r") == again
    assert book.found(in_reply_to="r") is None
    assert book.found(conversation_id="r") is None
    assert book.ask(conversation_id="c") == book.answer(conversation_id="c")
    assert book.found(conversation_id="c") is None
    book.debts.forget_old(1e9)
    assert BOB not in book.debts.accounts


def test_what_is_closed_is_forgotten_in_time(book: Book) -> None:
    book.ask(reply_with="r")
    book.close(now=10.0)
    book.ask(reply_with="s")
    book.close(now=20.0)
    book.debts.forget_old(615.0)
    assert (book.found(in_reply_to="r"), book.found(in_reply_to="s") is None) == (None, False)
    book.debts.forget_old(621.0)
    assert BOB not in book.debts.accounts


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_beyond_its_bound_the_oldest_debt_of_an_agent_is_forgotten() -> None:
    book = Book(per_agent=2)
    book.ask(reply_with="other", debtor="dave@local")
    asked = [book.ask(reply_with=f"{number}") for number in range(4)]
    assert (book.owed(), book.debts.count, book.debts.forgotten) == (asked[2:], 3, 2)
    assert book.answer(in_reply_to="0") is None
    assert book.answer(in_reply_to="3") == asked[3]


def test_bytes_are_bounded_and_what_is_closed_goes_first() -> None:
    book = Book(max_bytes=3 * (DEBT_COST + 100))
    book.ask(reply_with="closed")
    book.close()
    asked = [book.ask(reply_with=f"{number}") for number in range(3)]
    assert (book.found(in_reply_to="closed"), book.debts.forgotten) == (None, 0)
    asked.append(book.ask(reply_with="3"))
    assert (book.owed(), book.debts.forgotten) == (asked[1:], 1)
    # Not at the cost of others: who has nothing to forget is not watched over.
    book.ask(reply_with="x", debtor="dave@local")
    assert (book.owed(), book.debts.count, book.debts.forgotten) == (asked[1:], 3, 2)
