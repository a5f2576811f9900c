from __future__ import annotations

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage, identifiers
from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.questions import Question, Questions
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

INFORM = int(Performative.INFORM)
BOB = AgentIdentifier("bob")


def asked(questions: Questions, to: str, reply_with: str, conversation_id: str) -> Question:
    message = ACLMessage(
        Performative.REQUEST, receivers=identifiers(to), reply_with=reply_with, conversation_id=conversation_id
    )
    question = Question(message, "local")
    questions.add(question)
    return question


async def test_an_answer_belongs_to_the_mark_that_it_names() -> None:
    questions = Questions()
    one, two = asked(questions, "bob", "1", "1"), asked(questions, "bob", "2", "2")
    assert questions.find(INFORM, "bob", "1", "") is one
    assert questions.find(INFORM, "bob", "2", "1") is two
    assert questions.find(INFORM, "bob", "3", "1") is None
    assert questions.find(INFORM, "carol", "1", "") is one


async def test_without_a_mark_the_conversation_counts_and_another_question_is_no_answer() -> None:
    questions = Questions()
    own, named = asked(questions, "bob", "1", "1"), asked(questions, "bob@local", "2", "c")
    assert questions.find(INFORM, "carol", "", "1") is own
    assert questions.find(INFORM, "bob", "", "c") is named
    assert questions.find(INFORM, "carol", "", "c") is None
    assert questions.find(INFORM, "bob", "", "") is None
    assert questions.find(int(Performative.QUERY_IF), "bob", "", "c") is None


async def test_under_one_mark_the_oldest_to_the_sender_is_meant_else_the_oldest() -> None:
    questions = Questions()
    first, second, third = (asked(questions, to, "q", "c") for to in ("bob", "carol", "bob"))
    assert questions.find(INFORM, "carol", "q", "") is second
    assert questions.find(INFORM, "bob", "q", "") is first
    assert questions.find(INFORM, "ams", "q", "") is first
    questions.discard(first)
    questions.discard(first)
    assert questions.find(INFORM, "bob", "q", "") is third
    questions.discard(second)
    questions.discard(third)
    assert not questions


def answer(act: int, in_reply_to: str) -> bus_service_pb2.Delivery:
    made = bus_service_pb2.Delivery(sequence=1)
    made.message.acl.performative = act  # type: ignore[assignment]  # [assignment]: also one that is no act.
    made.message.acl.in_reply_to = in_reply_to
    return made


async def test_an_answer_is_taken_once_and_an_agree_is_not_the_end() -> None:
    questions = Questions()
    question = asked(questions, "bob", "1", "1")
    assert questions.take(answer(Performative.AGREE, "1"), BOB)
    assert not question.answer.done()
    assert not questions.take(answer(INFORM, "2"), BOB)
    assert questions.take(answer(INFORM, "1"), BOB)
    assert question.answer.result().sender is BOB
    assert not questions.take(answer(INFORM, "1"), BOB)
    assert not questions


async def test_what_is_no_act_or_comes_in_the_turn_of_giving_up_is_mail() -> None:
    questions = Questions()
    question = asked(questions, "bob", "1", "1")
    assert not questions.take(answer(77, "1"), BOB)
    question.answer.cancel()
    assert not questions.take(answer(Performative.AGREE, "1"), BOB)
    assert not questions.take(answer(INFORM, "1"), BOB)


async def test_what_the_ams_says_of_an_agent_is_for_the_question_to_that_one() -> None:
    questions = Questions()
    first, second = asked(questions, "carol", "q", "c"), asked(questions, "bob", "q", "c")
    failure = answer(Performative.FAILURE, "q")
    failure.message.acl.user_parameters["X-failed-receiver"] = "bob@local"
    assert questions.take(failure, AgentIdentifier("ams"))
    assert (first.answer.done(), second.answer.done()) == (False, True)
    # Nobody waits for bob any more, and carol has not failed; only the AMS may speak for others, though.
    assert not questions.take(failure, AgentIdentifier("ams"))
    assert questions.take(failure, AgentIdentifier("carol"))
    assert first.answer.done()
