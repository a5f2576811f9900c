"""The interaction protocols as state machines: who may say what next, and who owes the next word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.acl.performative import Performative
from gagent_grpc.protocols import PROTOCOLS, InteractionProtocol, Move, Stage, open_protocol

P = Performative
NAMES = sorted(PROTOCOLS)
OPENING = {
    "fipa-request": P.REQUEST,
    "fipa-query": P.QUERY_REF,
    "fipa-contract-net": P.CFP,
    "fipa-subscribe": P.SUBSCRIBE,
    "fipa-propose": P.PROPOSE,
}


def move(sender: str, to: str, act: Performative, **more: Any) -> Move:
    return Move(sender, tuple(to.split()), act, **more)


def begun(name: str, *participants: str, **more: Any) -> InteractionProtocol:
    protocol = open_protocol(name, "i")
    assert protocol is not None
    to = " ".join(participants or ("p",))
    assert protocol.observe(move("i", to, OPENING[name], reply_with="open", **more)).in_sequence
    return protocol


def lost(about: str, to: str = "i") -> Move:
    return Move("ams", (to,), P.FAILURE, platform=True, about=about)


def flow(protocol: InteractionProtocol, *acts: tuple[str, Performative]) -> list[bool]:
    """Return for each act, of initiator or participant, whether it was in sequence."""
    return [protocol.observe(move(who, "p" if who == "i" else "i", act)).in_sequence for who, act in acts]


def test_names_are_known_in_any_case_and_others_are_not() -> None:
    assert open_protocol("FIPA-Contract-Net", "i") is not None
    assert open_protocol(" fipa-query ", "i") is not None
    assert open_protocol("fipa-brokering", "i") is None
    assert open_protocol("", "i") is None


@pytest.mark.parametrize("name", ["fipa-request", "fipa-query"])
@pytest.mark.parametrize(
    ("acts", "finished"),
    [
        ([P.REFUSE], True),
        ([P.AGREE], False),
        ([P.AGREE, P.INFORM], True),
        ([P.AGREE, P.FAILURE], True),
        ([P.INFORM], True),
        ([P.FAILURE], True),
        ([P.NOT_UNDERSTOOD], True),
        ([P.AGREE, P.NOT_UNDERSTOOD], True),
    ],
)
def test_what_answers_a_request(name: str, acts: list[Performative], finished: bool) -> None:
    protocol = begun(name)
    assert protocol.waiting == {"p"}
    assert flow(protocol, *(("p", act) for act in acts)) == [True] * len(acts)
    assert protocol.finished is finished
    assert protocol.waiting == (frozenset() if finished else {"p"})


@pytest.mark.parametrize("name", ["fipa-request", "fipa-query"])
def test_what_does_not_answer_a_request(name: str) -> None:
    protocol = begun(name)
    for act in set(P) - {P.REFUSE, P.AGREE, P.INFORM, P.FAILURE, P.NOT_UNDERSTOOD}:
        assert not protocol.observe(move("p", "i", act)).in_sequence
    assert flow(protocol, ("p", P.AGREE), ("p", P.AGREE), ("p", P.REFUSE), ("p", P.INFORM)) == [
        True,
        False,
        False,
        True,
    ]


def test_a_query_may_be_of_either_kind() -> None:
    for act in (P.QUERY_IF, P.QUERY_REF):
        protocol = open_protocol("fipa-query", "i")
        assert protocol is not None
        assert flow(protocol, ("i", act), ("p", P.INFORM)) == [True, True]


def test_a_proposal_is_accepted_or_rejected_and_that_is_the_end() -> None:
    for act in (P.ACCEPT_PROPOSAL, P.REJECT_PROPOSAL):
        protocol = begun("fipa-propose")
        assert flow(protocol, ("p", P.INFORM), ("p", act), ("p", act)) == [False, True, False]
        assert protocol.finished


def test_notices_come_until_the_publisher_fails_or_the_cancel_is_answered() -> None:
    protocol = begun("fipa-subscribe")
    assert protocol.waiting == {"p"}
    assert flow(protocol, ("p", P.AGREE), ("p", P.INFORM), ("p", P.INFORM)) == [True] * 3
    # Nobody owes anything.
    assert (protocol.waiting, protocol.finished) == (frozenset(), False)
    assert protocol.observe(move("i", "p", P.CANCEL, reply_with="c", reply_by=9.0)).in_sequence
    assert (protocol.waiting, protocol.deadline) == ({"p"}, 9.0)
    # A notice that crossed the cancel.
    assert protocol.observe(move("p", "i", P.INFORM, in_reply_to="open")).in_sequence
    assert (protocol.finished, protocol.deadline) == (False, 9.0)
    assert protocol.observe(move("p", "i", P.INFORM, in_reply_to="c")).in_sequence
    assert protocol.finished
    failed = begun("fipa-subscribe")
    assert flow(failed, ("p", P.INFORM), ("p", P.REFUSE), ("p", P.FAILURE)) == [True, False, True]
    assert failed.finished


def test_the_contract_net_of_three_bidders_one_refuses_and_one_is_late() -> None:
    """The log of a field case, message by message."""
    net = open_protocol("fipa-contract-net", "buyer")
    assert net is not None
    log = [
        (move("buyer", "s1 s2 s3", P.CFP, reply_with="cfp-9", reply_by=103.0, at=100.0), {"s1", "s2", "s3"}),
        (move("s2", "buyer", P.REFUSE, in_reply_to="cfp-9", at=101.0), {"s1", "s3"}),
        (move("s1", "buyer", P.PROPOSE, in_reply_to="cfp-9", reply_with="p-s1", at=102.0), {"s3"}),
        (move("s3", "buyer", P.PROPOSE, in_reply_to="cfp-9", at=104.0), set()),
    ]
    for one, waiting in log:
        assert net.observe(one).in_sequence, one
        assert net.waiting == waiting
    assert (net.stage_of("s1"), net.stage_of("s3")) == (Stage.PROPOSED, Stage.LATE)
    accepted = net.observe(move("buyer", "s3", P.ACCEPT_PROPOSAL, at=105.0))
    assert not accepted.in_sequence
    assert "s3 is late" in accepted.why
    assert net.observe(move("buyer", "s3", P.REJECT_PROPOSAL, at=105.0)).in_sequence
    assert net.observe(
        move("buyer", "s1", P.ACCEPT_PROPOSAL, in_reply_to="p-s1", reply_with="acc-1", reply_by=200.0, at=105.0)
    ).in_sequence
    assert (net.waiting, net.deadline, net.finished) == ({"s1"}, 200.0, False)
    assert net.observe(move("s1", "buyer", P.INFORM, in_reply_to="acc-1", at=106.0)).in_sequence
    assert net.finished


def test_nobody_is_awarded_who_has_not_proposed_and_nobody_works_without_an_award() -> None:
    net = begun("fipa-contract-net", "a", "b")
    assert not net.observe(move("i", "a", P.ACCEPT_PROPOSAL)).in_sequence
    assert not net.observe(move("a", "i", P.INFORM)).in_sequence
    assert net.observe(move("a", "i", P.PROPOSE)).in_sequence
    assert not net.observe(move("a", "i", P.PROPOSE)).in_sequence
    assert not net.observe(move("a", "i", P.INFORM)).in_sequence
    # One message for all of them is in sequence for all or for none.
    assert not net.observe(move("i", "a b", P.REJECT_PROPOSAL)).in_sequence
    assert net.stage_of("a") is Stage.PROPOSED
    assert net.observe(move("i", "a a", P.REJECT_PROPOSAL)).in_sequence
    assert not net.observe(move("i", "a", P.ACCEPT_PROPOSAL)).in_sequence
    assert net.waiting == {"b"}


def test_a_decision_on_another_message_than_the_proposal_decides_nothing() -> None:
    net = begun("fipa-contract-net")
    assert net.observe(move("p", "i", P.PROPOSE, reply_with="first")).in_sequence
    assert not net.observe(move("p", "i", P.PROPOSE, reply_with="second")).in_sequence
    rejected = net.observe(move("i", "p", P.REJECT_PROPOSAL, in_reply_to="second"))
    assert rejected.why == "reject-proposal of i answers something else than the proposal of p"
    assert net.observe(move("i", "p", P.ACCEPT_PROPOSAL, in_reply_to="first")).in_sequence
    assert net.waiting == {"p"}


@pytest.mark.parametrize("name", NAMES)
def test_only_the_initiator_cancels_and_the_answer_ends_it(name: str) -> None:
    for ending in (P.INFORM, P.FAILURE):
        protocol = begun(name)
        said = protocol.observe(move("p", "i", P.CANCEL))
        assert not said.in_sequence
        assert said.why == "p says cancel; only the initiator, i, may do so"
        assert protocol.observe(move("i", "p", P.CANCEL, reply_with="c")).in_sequence
        assert not protocol.finished
        assert protocol.observe(move("p", "i", ending, in_reply_to="c")).in_sequence
        assert protocol.finished
        assert not protocol.observe(move("i", "p", P.CANCEL, reply_with="d")).in_sequence


def test_what_crosses_a_cancel_is_in_sequence_and_the_cancel_is_still_to_be_answered() -> None:
    net = begun("fipa-contract-net")
    assert net.observe(move("i", "p", P.CANCEL, reply_with="c")).in_sequence
    assert net.observe(move("p", "i", P.PROPOSE, in_reply_to="open")).in_sequence
    assert net.waiting == {"p"}
    decided = net.observe(move("i", "p", P.ACCEPT_PROPOSAL))
    assert not decided.in_sequence
    assert "cancelled" in decided.why
    assert net.observe(move("p", "i", P.INFORM)).in_sequence
    assert net.finished


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("who", ["i", "p"])
def test_not_understood_may_come_from_either_side_and_ends_one_part(name: str, who: str) -> None:
    protocol = begun(name, "p", "q")
    assert protocol.observe(move(who, "p" if who == "i" else "i", P.NOT_UNDERSTOOD)).in_sequence
    assert (protocol.stage_of("p"), protocol.stage_of("q")) == (Stage.OVER, Stage.ASKED)


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_of_the_platform_is_the_answer_of_who_is_lost(name: str) -> None:
    protocol = begun(name, "p", "q")
    assert protocol.observe(lost("p")).in_sequence
    assert protocol.waiting == {"q"}
    assert not protocol.observe(lost("p")).in_sequence
    assert not protocol.observe(lost("nobody")).in_sequence
    assert not protocol.observe(Move("ams", ("i",), P.INFORM, platform=True, about="q")).in_sequence
    # The initiator is gone: whoever wrote to it has nobody to go on with.
    assert protocol.observe(lost("i", to="q")).in_sequence
    assert protocol.finished


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_begins_with_its_act_said_by_its_initiator(name: str) -> None:
    protocol = open_protocol(name, "i")
    assert protocol is not None
    for one in (move("p", "i", OPENING[name]), move("i", "p", P.INFORM), move("i", "", OPENING[name]), lost("p")):
        verdict = protocol.observe(one)
        assert not verdict.in_sequence
        assert verdict.why
    assert (protocol.finished, protocol.waiting, protocol.deadline) == (False, frozenset(), 0.0)
    assert protocol.observe(move("i", "p", OPENING[name])).in_sequence
    again = protocol.observe(move("i", "p", OPENING[name]))
    assert not again.in_sequence
    assert "p, who has a part" in again.why
    # Others may still be asked, in a message of their own.
    assert protocol.observe(move("i", "q", OPENING[name])).in_sequence
    stranger = protocol.observe(move("x", "i", P.INFORM))
    assert stranger.why == "x has no part in the conversation"


def test_only_first_answers_and_what_was_awarded_can_be_overdue() -> None:
    net = begun("fipa-contract-net", "a", "b", "c", reply_by=50.0)
    assert (net.deadline, net.overdue(50.0), net.overdue(50.1)) == (50.0, frozenset(), {"a", "b", "c"})
    assert net.observe(move("a", "i", P.PROPOSE, at=10.0)).in_sequence
    assert net.observe(move("i", "a", P.ACCEPT_PROPOSAL, reply_by=99.0)).in_sequence
    assert (net.deadline, net.overdue(60.0), net.overdue(100.0)) == (99.0, {"b", "c"}, {"a", "b", "c"})
    request = begun("fipa-request", reply_by=50.0)
    assert request.observe(move("p", "i", P.AGREE, at=10.0)).in_sequence
    # After an agree the time is its own.
    assert (request.deadline, request.overdue(1e9)) == (0.0, frozenset())


def test_an_agent_may_ask_itself() -> None:
    for name, answers in {
        "fipa-request": [P.AGREE, P.INFORM],
        "fipa-subscribe": [P.INFORM, P.FAILURE],
        "fipa-propose": [P.ACCEPT_PROPOSAL],
    }.items():
        protocol = begun(name, "i")
        for act in answers:
            assert protocol.observe(move("i", "i", act, in_reply_to="open")).in_sequence
        assert protocol.finished
    net = begun("fipa-contract-net", "i")
    for act in (P.PROPOSE, P.ACCEPT_PROPOSAL, P.INFORM):
        assert net.observe(move("i", "i", act, in_reply_to="x")).in_sequence
    assert net.finished


AGENTS = ["i", "p", "q", "x"]
MOVES = st.builds(
    Move,
    sender=st.sampled_from(AGENTS),
    receivers=st.lists(st.sampled_from(AGENTS), max_size=3).map(tuple),
    performative=st.sampled_from(sorted(Performative)),
    reply_with=st.sampled_from(["", "open", "c"]),
    in_reply_to=st.sampled_from(["", "open", "c"]),
    reply_by=st.sampled_from([0.0, 5.0, 10.0]),
    at=st.sampled_from([0.0, 4.0, 7.0, 20.0]),
    platform=st.booleans(),
    about=st.sampled_from(["", *AGENTS]),
)


def seen(protocol: InteractionProtocol) -> tuple[object, ...]:
    stages = [protocol.stage_of(name) for name in AGENTS]
    return (protocol.finished, protocol.waiting, protocol.deadline, protocol.overdue(6.0), *stages)


@given(name=st.sampled_from(NAMES), opened=st.booleans(), moves=st.lists(MOVES, max_size=12))
def test_no_sequence_of_moves_breaks_a_protocol(name: str, opened: bool, moves: list[Move]) -> None:
    protocol = begun(name, "p", "q", reply_by=5.0) if opened else open_protocol(name, "i")
    assert protocol is not None
    for one in moves:
        before, was_finished = seen(protocol), protocol.finished
        verdict = protocol.observe(one)
        assert verdict.in_sequence is not bool(verdict.why)
        if not verdict.in_sequence:
            assert seen(protocol) == before
        if was_finished:
            assert not verdict.in_sequence
        if protocol.finished:
            assert (protocol.waiting, protocol.deadline, protocol.overdue(1e9)) == (frozenset(), 0.0, frozenset())
        assert protocol.overdue(1e9) <= protocol.waiting


@given(name=st.sampled_from(NAMES), moves=st.lists(MOVES, max_size=12))
def test_whatever_was_said_the_platform_can_end_what_is_waited_for(name: str, moves: list[Move]) -> None:
    protocol = begun(name, "p", "q")
    for one in moves:
        protocol.observe(one)
    for owing in protocol.waiting:
        assert protocol.observe(lost(owing)).in_sequence
    assert not protocol.waiting
