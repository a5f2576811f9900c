from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waiting import WAIT

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.performative import Performative
from gagent_grpc.acl.template import MessageTemplate
from gagent_grpc.client.lanes import Job
from gagent_grpc.client.letters import Letter, LetterBox
from gagent_grpc.client.message import Received
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb


def letter(content: str, sender: str = "alice") -> Letter:
    delivery = pb.Delivery(sequence=1, sender=f"{sender}@local", receiver="bob@local")
    delivery.message.acl.performative = int(Performative.INFORM)  # type: ignore[assignment]
    delivery.message.acl.text = content
    return Letter(Received(delivery, AgentIdentifier(sender)), Job(delivery, None, 1, ("s", content), ("s", "", False)))


def box(size: int = 10) -> LetterBox:
    return LetterBox(MessageTemplate(), size)


def content(one: Letter | None) -> Any:
    return one.message.content if one is not None else None


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_letters_are_taken_in_order_and_by_template() -> None:
    made = box()
    for one in "abc":
        assert await made.put(letter(one, sender=f"s{one}"))
    assert content(await made.take(MessageTemplate(sender="sb@local"), 0)) == "b"
    assert content(await made.take(MessageTemplate(content="x"), 0)) is None
    assert [content(await made.take(None, 0)) for _ in range(3)] == ["a", "c", None]


async def test_each_letter_goes_to_one_of_those_who_wait_and_a_cancelled_one_takes_nothing() -> None:
    made = box()
    gone, first, second = (asyncio.create_task(made.take(None, WAIT)) for _ in range(3))
    choosy = asyncio.create_task(made.take(MessageTemplate(content="c"), WAIT))
    await turn()
    await made.put(letter("a"))
    gone.cancel()
    await turn()
    await made.put(letter("b"))
    await made.put(letter("c"))
    assert content(await choosy) == "c"
    assert sorted([content(await first), content(await second)]) == ["a", "b"]
    assert gone.cancelled()


async def test_a_full_box_has_whoever_brings_more_wait_until_there_is_room_or_none_will_come() -> None:
    made = box(2)
    for one in "ab":
        await made.put(letter(one))
    third, fourth = (asyncio.create_task(made.put(letter(one))) for one in "cd")
    await turn()
    assert not third.done()
    assert content(await made.take(None, 0)) == "a"
    await turn()
    assert third.done()
    assert third.result()
    assert not fourth.done()
    assert [content(one) for one in made.close()] == ["b", "c"]
    assert await fourth is False
    assert await made.put(letter("e")) is False


async def test_what_a_template_raises_comes_out_of_taking() -> None:
    made = box()
    await made.put(letter("a"))
    with pytest.raises(ZeroDivisionError):
        await made.take(MessageTemplate.matching(lambda message: 1 / 0), WAIT)
    assert content(await made.take(None, 0)) == "a"
