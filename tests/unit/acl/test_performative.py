"""The 22 acts of FIPA SC00037: their words, their codes, and what is none of them."""

from __future__ import annotations

import pytest

from gagent_grpc.acl.performative import EXPECTS_ANSWER, NEVER_ANSWERED, Performative
from gagent_grpc.errors import UnknownPerformative

# FIPA SC00037, in the alphabetical order that gives the codes of SC00069.
WORDS = [
    "accept-proposal",
    "agree",
    "cancel",
    "cfp",
    "confirm",
    "disconfirm",
    "failure",
    "inform",
    "inform-if",
    "inform-ref",
    "not-understood",
    "propagate",
    "propose",
    "proxy",
    "query-if",
    "query-ref",
    "refuse",
    "reject-proposal",
    "request",
    "request-when",
    "request-whenever",
    "subscribe",
]


def test_acts_are_those_of_fipa_with_its_codes() -> None:
    assert [act.text for act in Performative] == WORDS
    assert [int(act) for act in Performative] == list(range(1, 23))


@pytest.mark.parametrize("word", WORDS)
def test_word_is_read_without_case_and_printed_in_lower_case(word: str) -> None:
    for written in (word, word.upper(), word.title(), f" {word}\n"):
        assert str(Performative.parse(written)) == word


@pytest.mark.parametrize("act", Performative)
def test_code_and_word_lead_back_to_the_act(act: Performative) -> None:
    assert Performative.from_code(int(act)) is act
    assert Performative.parse(act.text) is act


@pytest.mark.parametrize(
    "text", ["", " ", "informs", "inform-done", "query ref", "query_ref", "inform\0", "1", "ınform", "\ud800"]
)
def test_word_that_is_no_act_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(UnknownPerformative, match="expected one of: accept-proposal, agree") as raised:
        Performative.parse(text)
    assert raised.value.value == text


@pytest.mark.parametrize("code", [0, 23, -1, 255, 2**40])
def test_code_that_is_no_act_is_refused(code: int) -> None:
    with pytest.raises(UnknownPerformative, match="1 to 22"):
        Performative.from_code(code)


@pytest.mark.parametrize("value", [None, 8, b"inform"])
def test_value_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(UnknownPerformative):
        Performative.parse(value)  # type: ignore[arg-type]  # What an untyped caller may do.


def test_an_answer_is_expected_for_the_acts_that_begin_a_conversation() -> None:
    """As the wire says of `on_receiver_lost`."""
    assert " ".join(sorted(act.text for act in EXPECTS_ANSWER)) == (
        "cfp propagate propose proxy query-if query-ref request request-when request-whenever subscribe"
    )


def test_acts_that_end_a_conversation_expect_no_answer() -> None:
    assert not EXPECTS_ANSWER & NEVER_ANSWERED
    assert {Performative.FAILURE, Performative.NOT_UNDERSTOOD} <= NEVER_ANSWERED
    assert Performative.INFORM not in EXPECTS_ANSWER
