"""C23: polite for ever. Agents that answer whatever comes: the platform answers no failure with one, and ends the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw import acl
from script_agents import BY_HAND, Bridged, script_file
from waiting import WAIT, Inbox, until

from gagent_grpc import (
    ACLMessage,
    Agent,
    AgentIdentifier,
    BusLimits,
    DeliveryRefused,
    Operator,
    Performative,
    Received,
    RefusedByAgent,
    TrafficEvent,
    TrafficKind,
)
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.client.message import answer_headers
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.server.app import Bus

TURNS = 12
LIMITS = BusLimits(max_turns=TURNS, max_hops=TURNS, drain_grace=1.0)

POLITE = f"""{BY_HAND}
import sys

for event in events():
    msg = event.get("msg", {{}})
    if event["event"] != "message":
        say(action="noop")
    elif msg["content"] == "begin":
        say(action="send", to="ben", msg={{"performative": "inform", "content": "hello", "conversation_id": "chat"}})
    else:
        say(action="send", to=msg["sender"], msg={{"performative": "inform", "content": "thank you"}})
"""


class Looker:
    """What passes a bus, from the first message on."""

    def __init__(self, traffic: Any) -> None:
        self.events: list[TrafficEvent] = []
        self._traffic = traffic

    async def until(self, condition: Callable[[TrafficEvent], bool]) -> TrafficEvent:
        """Read until an event is as it should be; return it."""
        async with asyncio.timeout(WAIT):
            async for event in self._traffic:
                self.events.append(event)
                if condition(event):
                    return event
        raise AssertionError("the bus ended")

    async def ended(self) -> TrafficEvent:
        return await self.until(lambda event: event.kind is TrafficKind.CONVERSATION_ENDED)

    def accepted(self, act: str, receiver: str = "") -> int:
        return sum(
            event.kind is TrafficKind.ACCEPTED
            and event.message is not None
            and event.message.performative.text == act
            and receiver in ("", event.receiver)
            for event in self.events
        )


async def quiet(bus: Bus) -> int:
    """Wait until nobody has anything to do any more; return how many messages were accepted in all."""
    await until(lambda: all(not one.mailbox.messages and not one.mailbox.reserve_messages for one in bus.platform.ams))
    async with Operator(bus.address) as operator:
        return (await operator.admin.stats()).accepted


@pytest.fixture
async def bus(buses: Any) -> Bus:
    return await buses(limits=LIMITS)


@pytest.fixture
async def looker(bus: Bus) -> Any:
    async with Operator(bus.address) as operator, operator.admin.watch_traffic() as traffic:
        yield Looker(traffic)


def polite(agent: Agent, inbox: Inbox | None = None) -> None:
    """Have an agent answer whatever comes."""

    @agent.on()
    async def answer(message: Received) -> None:
        if inbox is not None and message.performative is Performative.FAILURE:
            await inbox(message)
        with contextlib.suppress(DeliveryRefused):
            await agent.reply(message, "inform", "thank you")


async def test_c23_two_script_agents_end_at_the_limit(bus: Bus, looker: Looker, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for name in ("anna", "ben"):
            script = Bridged(ScriptAgent(script_file(tmp_path, POLITE, name, ".py"), name=name, bus=bus.address))
            stack.push_async_callback(script.aclose)
            await script.ready()
        async with Agent("alice", bus=bus.address) as alice:
            await alice.send("anna", "inform", "begin")
            end = await looker.ended()
            # The one who began is told, and says thank you even for that.
            await looker.until(lambda event: event.receiver.startswith("ams"))
            accepted = await quiet(bus)
    assert (end.sender, end.conversation_id) == ("anna@local", "chat")
    assert accepted == 1 + TURNS + 1
    assert (looker.accepted("failure"), looker.accepted("failure", "anna@local")) == (1, 1)


async def test_c23_agent_that_faces_a_copy_of_itself(bus: Bus, looker: Looker) -> None:
    inbox = Inbox()
    async with Agent("twin", bus=bus.address) as twin:
        polite(twin, inbox)
        await twin.send("twin", "inform", "hello", conversation_id="mirror")
        await looker.ended()
        await looker.until(lambda event: event.receiver.startswith("ams"))
        assert await quiet(bus) == TURNS + 1
    assert len(inbox.messages) == 1


async def test_c23_ring_that_forwards_in_new_conversations(bus: Bus, looker: Looker) -> None:
    names = ("anna", "ben", "cleo")
    async with contextlib.AsyncExitStack() as stack:
        for name, other in zip(names, (*names[1:], names[0]), strict=True):
            agent = await stack.enter_async_context(Agent(name, bus=bus.address))

            @agent.on("inform")
            async def forward(message: Received, agent: Agent = agent, other: str = other) -> None:
                onward = ACLMessage(
                    Performative.INFORM,
                    receivers=(AgentIdentifier(other),),
                    content=message.content,
                    conversation_id=f"{message.conversation_id}+",
                )
                with contextlib.suppress(DeliveryRefused):
                    await agent.send_message(onward, headers=answer_headers(message))

        starter = await stack.enter_async_context(Agent("starter", bus=bus.address))
        await starter.send("anna", "inform", "pass it on", conversation_id="ring")
        await looker.ended()
        await looker.until(lambda event: event.sender == "ams@local")
        accepted = await quiet(bus)
    # Hops from 0 on, and one more since the message itself is a turn of its own conversation; then the failure.
    assert accepted == TURNS + 2 + 1
    assert looker.accepted("failure") == 1


async def test_c23_ring_that_forwards_in_one_conversation(bus: Bus, looker: Looker) -> None:
    names = ("anna", "ben", "cleo")
    async with contextlib.AsyncExitStack() as stack:
        for name, other in zip(names, (*names[1:], names[0]), strict=True):
            agent = await stack.enter_async_context(Agent(name, bus=bus.address))

            @agent.on("inform")
            async def forward(message: Received, agent: Agent = agent, other: str = other) -> None:
                with contextlib.suppress(DeliveryRefused):
                    await agent.send(other, "inform", message.content, conversation_id=message.conversation_id)

        starter = await stack.enter_async_context(Agent("starter", bus=bus.address))
        await starter.send("anna", "inform", "pass it on", conversation_id="ring")
        end = await looker.ended()
        await looker.until(lambda event: event.sender == "ams@local")
        accepted = await quiet(bus)
    assert end.sender == "starter@local"
    assert accepted <= 1 + 3 * TURNS + 1
    assert looker.accepted("failure", "starter@local") == 1


async def test_c23_unknown_performative_between_two_default_agents(bus: Bus, raw: Any) -> None:
    async with Agent("ben", bus=bus.address), raw(bus.address, "anna") as anna:
        # No act of FIPA: it goes nowhere, and its sender hears why.
        await anna.send(acl("ben", act=99))
        (receipt,) = await anna.receipted(1)
        assert receipt.outcome == pb.OUTCOME_INVALID
        # One that ben has no handler for: said once, and not answered in turn by an agent without handlers.
        await anna.send(acl("ben", act=int(Performative.REQUEST), acl_reply_with="r", acl_conversation_id="what"))
        (delivery,) = await anna.delivered(1)
        assert delivery.message.acl.performative == int(Performative.NOT_UNDERSTOOD)
        assert delivery.message.acl.user_parameters["X-automatic"] == "true"
    async with Agent("anna", bus=bus.address):
        # A default agent gets it once more, and says nothing to it.
        assert await quiet(bus) == 2


@pytest.mark.parametrize("conversation", [{}, {"conversation_id": "chat"}])
async def test_c23_platforms_own_agents_do_not_go_on_with_who_answers_everything(
    conversation: dict[str, str], bus: Bus, looker: Looker
) -> None:
    async with Agent("anna", bus=bus.address) as anna:
        polite(anna)
        await anna.send("ams", "inform", "hello", **conversation)
        answers = 8
        await looker.until(lambda event: looker.accepted("inform", "ams@local") == answers + 1)
        assert await quiet(bus) == answers
        # Who asks for something gets an answer all the same.
        with pytest.raises(RefusedByAgent, match="not a JSON object"):
            await anna.request("ams", "what?", timeout=WAIT, **conversation)
