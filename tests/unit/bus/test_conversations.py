"""The conversation monitor by itself: turns, hops, sequence, deadlines, and what it forgets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw import acl

from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.conversations import ConversationMonitor, Step
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits, ConversationPolicy
from gagent_grpc.envelope import Envelope

A, B, C = "a@local", "b@local", "c@local"
CODEC = EnvelopeCodec(max_id_bytes=128)
NOW = 1_000_000.0
REQUEST = {"protocol": "fipa-request"}
NET = {"protocol": "fipa-contract-net"}


def envelope(
    act: str = "inform", conversation: str = "talk", *, hops: int = 0, reply_by: float = 0.0, **body: Any
) -> Envelope:
    parameters = {f"acl_{name}": value for name, value in body.items()}
    message = acl("x", act=int(Performative.parse(act)), acl_conversation_id=conversation, id="m", **parameters)
    if hops:
        message.headers["hops"] = str(hops)
    if reply_by:
        message.acl.reply_by.FromNanoseconds(int(reply_by * 1e9))
    return CODEC.decode(message.SerializeToString())


class Talk:
    """A monitor, and messages that are accepted unless it refuses them."""

    def __init__(self, **limits: Any) -> None:
        self.monitor = ConversationMonitor(BusLimits(**limits))
        self.now = NOW

    def look(self, sender: str, receiver: str, *message: Any, via: str = "", **more: Any) -> Step | None:
        return self.monitor.look(envelope(*message, **more), sender, receiver, self.now, via)

    def say(self, sender: str, receiver: str, *message: Any, via: str = "", **more: Any) -> str:
        """Say something; return why it was refused, or what is out of sequence about it."""
        step = self.look(sender, receiver, *message, via=via, **more)
        if step is None:
            return ""
        return step.refusal or self.monitor.take(step, self.now)

    def play(self, most: int, *speakers: tuple[str, str], **more: Any) -> int:
        """Have speakers go on in turn until one is refused; return how many messages were accepted, ``most`` at most."""
        for count in range(most):
            if self.say(*speakers[count % len(speakers)], **more):
                return count
        return most


# ---- turns -----------------------------------------------------------------------------------------------------------


def test_two_who_answer_each_other_are_ended_at_the_limit() -> None:
    talk = Talk(max_turns=10)
    assert talk.play(30, (A, B), (B, A)) == 10
    step = talk.look(B, A)
    assert step is not None
    assert "conversation 'talk' of a@local and b@local was ended" in step.refusal
    assert "10 turns (max_turns)" in step.refusal
    assert not step.ends


def test_the_first_refusal_is_the_one_that_ends_it() -> None:
    talk = Talk(max_turns=2)
    talk.play(2, (A, B), (B, A))
    first, second = talk.look(A, B), talk.look(A, B)
    assert first is not None
    assert second is not None
    assert (first.ends, second.ends) == (True, False)
    assert first.conversation is second.conversation
    assert first.conversation is not None
    assert first.conversation.initiator == A


def test_a_conversation_of_thirty_turns_is_untouched_by_default() -> None:
    assert Talk().play(30, (A, B), (B, A)) == 30


def test_default_limit_is_two_hundred_turns_whatever_hops_say() -> None:
    talk = Talk()
    accepted = 0
    while not talk.say(*((A, B) if accepted % 2 == 0 else (B, A)), hops=accepted):
        accepted += 1
    assert accepted == BusLimits().max_turns == 200


def test_a_flood_one_way_has_no_turns() -> None:
    talk = Talk(max_turns=3)
    assert talk.play(1_000, (A, B)) == 1_000
    # Also where the sender hears of somebody else all the time.
    assert talk.play(1_000, (C, A), (A, B)) == 1_000


def test_messages_to_oneself_are_turns() -> None:
    assert Talk(max_turns=7).play(30, (A, A)) == 7


def test_a_ring_in_one_conversation_comes_to_an_end() -> None:
    talk = Talk(max_turns=5)
    accepted = talk.play(1_000, (A, B), (B, C), (C, A))
    assert accepted == 5 * 3
    # Nothing goes round any more, whatever the others add to what they said.
    for _ in range(3):
        assert talk.say(B, C) == talk.say(C, A) == ""
        assert talk.say(A, B)


def test_a_ring_of_requests_under_a_protocol_comes_to_an_end() -> None:
    talk = Talk(max_turns=5)
    accepted = 0
    while accepted < 1_000:
        sender, receiver = ((A, B), (B, C), (C, A))[accepted % 3]
        step = talk.look(sender, receiver, "request", protocol="fipa-request")
        assert step is not None
        if step.refusal:
            break
        talk.monitor.take(step, talk.now)
        accepted += 1
    assert accepted <= 5 * 3


def test_one_who_asks_many_in_turn_in_one_conversation_has_few_turns_with_each() -> None:
    talk = Talk(max_turns=3)
    for number in range(100):
        worker = f"w{number}@local"
        assert talk.say(A, worker, "request") == ""
        assert talk.say(worker, A) == ""


def test_pairs_that_use_the_same_id_do_not_mix() -> None:
    talk = Talk(max_turns=4)
    server = "server@local"
    for number in range(20):
        client = f"client{number}@local"
        assert talk.play(10, (client, server), (server, client)) == 4
    assert talk.play(10, (A, B), (B, A)) == 4


def test_zero_is_no_limit() -> None:
    talk = Talk(max_turns=0, max_hops=0)
    assert talk.play(500, (A, B), (B, A), hops=10_000) == 500


def test_what_was_not_accepted_is_no_turn() -> None:
    talk = Talk(max_turns=2)
    talk.say(A, B)
    for _ in range(10):
        # Looked at, and then there was no room.
        step = talk.look(B, A)
        assert step is not None
        assert not step.refusal
    assert talk.say(B, A) == ""
    assert talk.say(A, B)


def test_an_ended_conversation_begins_anew_once_it_was_idle() -> None:
    talk = Talk(max_turns=2, conversation_idle=60.0)
    talk.play(3, (A, B), (B, A))
    for _ in range(5):
        # Whoever goes on trying keeps it closed.
        talk.now += 50.0
        talk.monitor.forget_idle(talk.now)
        assert talk.say(A, B)
    talk.now += 61.0
    assert talk.play(3, (A, B), (B, A)) == 2


def test_two_who_are_ended_end_nothing_for_others_of_their_conversation() -> None:
    talk = Talk(max_turns=4)
    talk.say(A, C)
    assert talk.play(30, (A, B), (B, A)) == 4
    assert talk.play(30, (C, A), (A, C)) == 3
    assert talk.say(A, B)
    assert talk.say(A, "d@local") == ""


@given(st.lists(st.booleans(), max_size=60))
def test_turns_of_two_are_the_changes_of_speaker(speakers: list[bool]) -> None:
    talk = Talk(max_turns=12)
    turns, last = 0, None
    for speaker in speakers:
        refused = bool(talk.say(*((A, B) if speaker else (B, A))))
        expected = turns + (speaker is not last)
        assert refused == (expected > 12)
        if refused:
            return
        turns, last = expected, speaker


# ---- hops ------------------------------------------------------------------------------------------------------------


def test_a_ring_with_a_new_conversation_each_time_ends_by_its_hops() -> None:
    talk = Talk(max_hops=8)
    accepted = 0
    while not talk.say(*((A, B), (B, C), (C, A))[accepted % 3], "inform", f"talk {accepted}", hops=accepted):
        accepted += 1
    # The message itself is a turn of its own conversation.
    assert accepted == 10


def test_hops_count_without_a_conversation_and_to_a_topic() -> None:
    talk = Talk(max_hops=8)
    assert talk.say(A, B, "inform", "", hops=8) == ""
    assert "9 messages led to it" in talk.say(A, B, "inform", "", hops=9)
    assert "max_hops" in talk.say(A, B, "inform", "talk", via="topic:news", hops=9)
    # Nothing else of the two is touched.
    assert talk.say(A, B, "inform", "") == ""


def test_the_sender_of_messages_without_conversation_is_told_once_while_it_goes_on() -> None:
    talk = Talk(max_hops=8, conversation_idle=60.0)
    steps = [talk.look(A, B, "inform", "", hops=9) for _ in range(3)]
    assert [step is not None and step.ends for step in steps] == [True, False, False]
    talk.now += 61.0
    again = talk.look(A, B, "inform", "", hops=9)
    assert again is not None
    assert again.ends


def test_a_participant_whose_message_went_too_far_ends_nothing_for_the_others() -> None:
    talk = Talk(max_hops=8)
    for worker in (B, C):
        talk.say(A, worker, "cfp", **NET)
    assert "max_hops" in talk.say(B, A, "refuse", hops=1_000, **NET)
    assert talk.say(B, A, "propose", **NET)
    assert talk.say(C, A, "propose", **NET) == ""
    assert talk.say(A, C, "accept-proposal", **NET) == ""
    # Still judged.
    assert "after" not in talk.say(C, A, "inform", **NET)
    assert "after" in talk.say(C, A, "inform", **NET)


def test_whose_message_went_too_far_is_not_overdue_as_well() -> None:
    talk = Talk(max_hops=8)
    for worker in (B, C):
        talk.say(A, worker, "request", reply_by=NOW + 10, **REQUEST)
    assert talk.say(B, A, "inform", hops=1_000, **REQUEST)
    talk.now += 11.0
    assert overdue(talk) == [(A, C)]


def test_a_stranger_that_is_refused_ends_nothing_under_the_same_id() -> None:
    talk = Talk(max_hops=8, conversation_pairs=3)
    talk.say(A, B, "cfp", **NET)
    for number in range(10):
        step = talk.look(f"stranger{number}@local", A, "inform", hops=1_000)
        assert step is not None
        assert step.pair is not None
        assert step.pair.conversation.initiator == f"stranger{number}@local"
    assert talk.say(B, A, "propose", **NET) == ""
    # Neither is what it begins with others led into what the stranger said, nor is the room for it taken.
    late = talk.look(A, C, "cfp", **NET)
    assert late is not None
    assert late.refusal == talk.monitor.take(late, NOW) == ""
    assert late.conversation is not None
    assert [(pair.first, pair.second) for pair in late.conversation.pairs] == [(A, B), (A, C)]


def test_what_a_participant_is_refused_takes_no_room_in_the_conversation() -> None:
    talk = Talk(max_hops=8, conversation_pairs=3, max_turns=1)
    talk.say(A, B)
    for number in range(10):
        assert talk.say(B, f"w{number}@local", hops=1_000)
    assert talk.say(A, C) == ""
    assert talk.say(C, A)


@pytest.mark.parametrize("hops", ["", "many", "-1", "9" * 20, "1.5"])
def test_hops_that_are_no_number_count_as_none(hops: str) -> None:
    message = acl("x", id="m")
    message.headers["hops"] = hops
    assert CODEC.decode(message.SerializeToString()).hops == 0


# ---- sequence --------------------------------------------------------------------------------------------------------


def test_a_conversation_in_sequence_is_not_flagged() -> None:
    talk = Talk()
    assert talk.say(A, B, "request", **REQUEST) == ""
    assert talk.say(B, A, "agree", **REQUEST) == ""
    assert talk.say(B, A, "inform", **REQUEST) == ""


def test_a_second_answer_is_out_of_sequence() -> None:
    talk = Talk()
    talk.say(A, B, "request", **REQUEST)
    talk.say(B, A, "inform", **REQUEST)
    assert "after its end" in talk.say(B, A, "inform", **REQUEST)


def test_another_request_under_the_same_id_begins_another_round_in_either_direction() -> None:
    talk = Talk()
    for sender, receiver in ((A, B), (A, B), (B, A)):
        assert talk.say(sender, receiver, "request", **REQUEST) == ""
        assert talk.say(receiver, sender, "inform", **REQUEST) == ""


def test_what_begins_in_the_middle_is_not_judged() -> None:
    talk = Talk()
    assert talk.say(B, A, "inform", **REQUEST) == ""
    assert talk.say(B, A, "inform", **REQUEST) == ""
    assert talk.say(A, B, "accept-proposal", **REQUEST) == ""


def test_only_those_who_name_a_known_protocol_are_judged() -> None:
    talk = Talk()
    for conversation, protocol in (("one", {}), ("two", {"protocol": "my-own"})):
        assert talk.say(A, B, "request", conversation, **protocol) == ""
        assert talk.say(B, A, "inform", conversation, **protocol) == ""
        assert talk.say(B, A, "inform", conversation, **protocol) == ""


def test_a_dialogue_under_another_protocol_within_one_is_not_judged_by_it() -> None:
    talk = Talk()
    talk.say(A, B, "request", **REQUEST)
    assert talk.say(B, A, "query-ref", protocol="fipa-query") == ""
    assert talk.say(A, B, "inform", protocol="fipa-query") == ""
    assert talk.say(B, A, "inform", **REQUEST) == ""


def test_several_receivers_of_one_message_have_a_part_each() -> None:
    talk = Talk()
    net = {"protocol": "fipa-contract-net"}
    for worker in (B, C):
        assert talk.say(A, worker, "cfp", **net) == ""
    assert talk.say(B, A, "propose", **net) == ""
    assert talk.say(C, A, "refuse", **net) == ""
    assert talk.say(C, A, "propose", **net)
    assert talk.say(A, B, "accept-proposal", **net) == ""
    assert talk.say(B, A, "inform", **net) == ""


def test_where_sequence_is_enforced_a_wrong_move_changes_nothing() -> None:
    talk = Talk(conversation_policy=ConversationPolicy.ENFORCE, max_turns=4)
    talk.say(A, B, "request", **REQUEST)
    for _ in range(20):
        assert talk.say(B, A, "propose", **REQUEST)
    assert talk.say(B, A, "inform", **REQUEST) == ""


def test_a_failure_of_the_platform_is_the_participants_answer() -> None:
    talk = Talk()
    talk.say(A, B, "request", **REQUEST)
    talk.monitor.platform_failed("talk", A, B, NOW)
    assert talk.say(B, A, "inform", **REQUEST)


def test_a_move_that_was_not_kept_ends_the_judging() -> None:
    talk = Talk(conversation_policy=ConversationPolicy.ENFORCE)
    talk.say(A, B, "request", **REQUEST)
    talk.say(B, A, "inform", **REQUEST)
    talk.monitor.lose_track("talk", B, A)
    assert talk.say(B, A, "inform", **REQUEST) == ""


# ---- deadlines -------------------------------------------------------------------------------------------------------


def overdue(talk: Talk) -> list[tuple[str, str]]:
    return [(one.initiator, one.participant) for one in talk.monitor.overdue(talk.now)]


def test_who_does_not_answer_by_the_reply_by_is_overdue_once() -> None:
    talk = Talk()
    talk.say(A, B, "request", reply_by=NOW + 10, **REQUEST)
    talk.now += 10.0
    assert overdue(talk) == []
    talk.now += 0.1
    assert overdue(talk) == [(A, B)]
    assert overdue(talk) == []
    assert "after" in talk.say(B, A, "inform", **REQUEST)


def test_who_answered_is_not_overdue() -> None:
    talk = Talk()
    talk.say(A, B, "request", reply_by=NOW + 10, **REQUEST)
    talk.say(A, C, "request", reply_by=NOW + 10, **REQUEST)
    talk.say(B, A, "agree", **REQUEST)
    talk.now += 11.0
    assert overdue(talk) == [(A, C)]


def test_a_call_for_proposals_ends_by_itself_and_late_proposals_pass() -> None:
    talk = Talk(conversation_policy=ConversationPolicy.ENFORCE)
    net = {"protocol": "fipa-contract-net"}
    talk.say(A, B, "cfp", reply_by=NOW + 10, **net)
    talk.now += 11.0
    assert overdue(talk) == []
    assert talk.say(B, A, "propose", **net) == ""
    assert talk.say(A, B, "reject-proposal", **net) == ""


def test_who_got_the_job_and_does_not_answer_is_overdue() -> None:
    talk = Talk()
    net = {"protocol": "fipa-contract-net"}
    talk.say(A, B, "cfp", **net)
    talk.say(B, A, "propose", **net)
    talk.say(A, B, "accept-proposal", reply_by=NOW + 5, **net)
    talk.now += 6.0
    assert overdue(talk) == [(A, B)]


def test_a_conversation_with_a_deadline_ahead_is_not_forgotten() -> None:
    talk = Talk(conversation_idle=60.0)
    talk.say(A, B, "request", "long", reply_by=NOW + 1_000, **REQUEST)
    talk.say(A, B, "request", "short", **REQUEST)
    talk.now += 500.0
    talk.monitor.forget_idle(talk.now)
    assert len(talk.monitor) == 1
    talk.now += 501.0
    assert overdue(talk) == [(A, B)]
    talk.now += 61.0
    talk.monitor.forget_idle(talk.now)
    assert (len(talk.monitor), talk.monitor.pairs) == (0, 0)


def test_each_participant_is_overdue_at_its_own_time() -> None:
    talk = Talk()
    for worker, seconds in ((B, 20), (C, 10), ("d@local", 30), ("e@local", 30)):
        talk.say(A, worker, "request", reply_by=NOW + seconds, **REQUEST)
    found = []
    for _ in range(4):
        talk.now += 10.5
        found.append(overdue(talk))
    assert found == [[(A, C)], [(A, B)], [(A, "d@local"), (A, "e@local")], []]


@pytest.mark.parametrize("later", [1, -1])
def test_rounds_of_few_conversations_leave_few_deadlines(later: int) -> None:
    talk = Talk(conversations=5, max_turns=0)
    for number in range(2_000):
        talk.say(A, B, "request", reply_by=NOW + 100_000 + later * number, **REQUEST)
        talk.say(B, A, "inform", **REQUEST)
        assert len(talk.monitor._deadlines) <= 300
    # And one that nobody answers is noted all the same.
    talk.say(A, C, "request", "another", reply_by=NOW + 10, **REQUEST)
    talk.now += 11.0
    assert overdue(talk) == [(A, C)]


def test_deadlines_of_forgotten_conversations_do_not_pile_up() -> None:
    talk = Talk(conversations=5)
    for number in range(2_000):
        talk.say(A, B, "request", f"talk {number}", reply_by=NOW + 100_000 + number, **REQUEST)
        assert len(talk.monitor._deadlines) <= 300
    talk.now += 200_000.0
    assert len(overdue(talk)) == 5


def test_who_is_overdue_is_found_at_once_behind_many_who_answered() -> None:
    talk = Talk()
    for number in range(1_000):
        talk.say(A, B, "request", f"talk {number}", reply_by=NOW + 5, **REQUEST)
        talk.say(B, A, "inform", f"talk {number}", **REQUEST)
    talk.say(A, C, "request", reply_by=NOW + 10, **REQUEST)
    talk.now += 11.0
    assert overdue(talk) == [(A, C)]


def test_one_look_ends_a_bounded_number() -> None:
    talk = Talk()
    for number in range(500):
        talk.say(A, B, "request", f"talk {number}", reply_by=NOW + 5, **REQUEST)
    talk.now += 11.0
    assert [len(overdue(talk)) for _ in range(4)] == [200, 200, 100, 0]


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_the_conversation_that_was_idle_longest_is_forgotten() -> None:
    talk = Talk(conversations=3, max_turns=2)
    for conversation in ("one", "two", "three"):
        talk.now += 1.0
        talk.play(2, (A, B), (B, A), conversation=conversation)
    talk.now += 1.0
    assert talk.say(A, B, "inform", "one")
    talk.say(A, B, "inform", "four")
    assert talk.monitor.pairs == 3
    # The first one was tried again just now, so that the second one is the one to go.
    assert talk.say(A, B, "inform", "one")
    assert talk.say(A, B, "inform", "three")
    assert talk.say(A, B, "inform", "two") == ""


def test_a_flood_of_new_conversations_forgets_its_own_and_nobody_elses() -> None:
    talk = Talk(conversations=100, max_turns=2)
    talk.play(2, (A, B), (B, A), conversation="healthy")
    for number in range(5_000):
        talk.now += 0.001
        talk.say("flood@local", f"{number % 7}@local", "inform", f"flood {number}")
        assert talk.monitor.pairs <= 100
    # Still known to have had its turns.
    assert talk.say(A, B, "inform", "healthy")
    assert talk.say("flood@local", "0@local", "inform", "flood 4998") == ""


def test_of_two_who_flood_both_lose_their_own() -> None:
    talk = Talk(conversations=60, max_turns=1)
    talk.say(A, B, "inform", "healthy")
    for number in range(2_000):
        talk.now += 0.001
        for name in ("f1@local", "f2@local"):
            talk.say(name, C, "inform", f"{name} {number}")
    # Still known to have had its turn.
    assert talk.say(B, A, "inform", "healthy")
    newest = [talk.say(C, name, "inform", f"{name} 1999") != "" for name in ("f1@local", "f2@local")]
    assert newest == [True, True]


def test_of_many_who_have_one_each_the_one_that_was_idle_longest_is_forgotten() -> None:
    talk = Talk(conversations=10, max_turns=0)
    for number in range(10):
        talk.now += 1.0
        talk.say(f"{number}@local", B, "request", "c", reply_by=talk.now + 500, **REQUEST)
    talk.now += 1.0
    # Goes on, and so is none of those that are idle.
    talk.say("0@local", B, "inform", "c")
    for number in range(10, 19):
        talk.now += 1.0
        talk.say(f"{number}@local", B, "inform", "c")
    talk.now += 1_000.0
    assert overdue(talk) == [("0@local", B)]


def test_who_has_one_large_conversation_and_more_than_all_makes_room_by_others() -> None:
    talk = Talk(conversations=5, conversation_pairs=50, max_turns=1)
    talk.say(A, B, "inform", "small")
    for number in range(8):
        assert talk.say(C, f"{number}@local", "inform", "large") == ""
    assert talk.monitor.pairs == 8
    assert talk.say(C, "7@local", "inform", "another") == ""
    # The new one takes its place: of C's two, the older one is forgotten.
    assert talk.monitor.pairs == 1


def test_pairs_beyond_the_bound_of_one_conversation_speak_unwatched() -> None:
    talk = Talk(conversation_pairs=2, max_turns=1)
    for worker in ("w1", "w2", "w3"):
        assert talk.say(A, f"{worker}@local") == ""
    assert talk.monitor.pairs == 2
    assert talk.say("w2@local", A)
    talk = Talk(conversation_pairs=1)
    for number in range(50):
        assert talk.say(A, f"{number}@local") == ""
    assert talk.monitor.pairs == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]),
            st.sampled_from([A, B, C]),
            st.sampled_from(["", "one", "two", "three"]),
            st.sampled_from(["request", "inform", "failure", "cfp", "propose"]),
            st.sampled_from(["", "fipa-request", "fipa-contract-net", "other"]),
            st.sampled_from([0, 1, 5]),
            st.floats(0, 40),
        ),
        max_size=60,
    )
)
def test_whatever_is_said_the_bounds_hold_and_everything_is_forgotten(said: list[tuple[Any, ...]]) -> None:
    talk = Talk(conversations=4, conversation_pairs=2, conversation_idle=30.0, max_turns=3, max_hops=2)
    for sender, receiver, conversation, act, protocol, hops, passed in said:
        talk.now += passed
        more = {"protocol": protocol} if protocol else {}
        talk.say(sender, receiver, act, conversation, hops=hops, reply_by=talk.now + 10, **more)
        talk.monitor.overdue(talk.now)
        assert talk.monitor.pairs <= 4 + 2
    talk.now += 100.0
    talk.monitor.overdue(talk.now)
    talk.monitor.forget_idle(talk.now)
    assert (len(talk.monitor), talk.monitor.pairs) == (0, 0)
    assert not talk.monitor._pairs
    assert not talk.monitor._latest
