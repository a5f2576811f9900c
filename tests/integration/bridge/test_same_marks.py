"""Callers that use the same marks: each gets its own answer, whatever way the agent has of saying what it answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from script_agents import WAIT, Bridge, Bridged, Launch, PersonFactory

from gagent_grpc import Agent, FailureFromAgent
from gagent_grpc.server.app import Bus

pytestmark = pytest.mark.timeout(60)

MARKS = {"reply_with": "q", "conversation_id": "c"}

BY_COUNT = """
    for event in events():
        if event["event"] == "message":
            send(event["msg"]["sender"], event["msg"]["content"])
        else:
            say(action="noop")
"""
BY_ID = """
    for event in events():
        msg = event.get("msg")
        if msg:
            marks = {"in_reply_to": msg["reply_with"], "conversation_id": msg["conversation_id"]}
            answer = {"performative": "inform", "content": msg["content"], **marks}
            say(action="send", to=msg["sender"], msg=answer, id=event["id"])
        else:
            say(action="noop", id=event["id"])
"""
# Keeps what it is asked until it was asked twice, and answers the newer one first.
LATER = """
    kept = []
    for event in events():
        msg = event.get("msg")
        if not msg:
            say(action="noop", id=event["id"])
            continue
        kept.append(msg)
        if len(kept) < 2:
            say(action="noop", id=event["id"])
            continue
        actions = []
        while kept:
            one = kept.pop()
            marks = {"in_reply_to": one["reply_with"], "conversation_id": one["conversation_id"]}
            actions.append({"action": "send", "to": one["sender"], "id": event["id"],
                            "msg": {"performative": "inform", "content": one["content"], **marks}})
        print(json.dumps(actions), flush=True)
"""
WITH_LIBRARY = """
    import gagent_py

    class Echo(gagent_py.Agent):
        def on_message(self, msg):
            return self.reply(msg, "inform", msg.content)

    if __name__ == "__main__":
        Echo().run()
"""
# Never answers carol; dies when it is told to.
PICKY = """
    for event in events():
        msg = event.get("msg", {})
        if msg.get("content") == "die":
            os._exit(3)
        if msg.get("sender", "") == "alice":
            send("alice", msg["content"])
        else:
            say(action="noop")
"""


async def ask_both(bus: Bus, person: PersonFactory, alice: Any) -> None:
    """Have two agents ask the helper at the same time, again and again; each has to get what it said."""
    bob = await person("bob")
    async with asyncio.timeout(WAIT):
        for number in range(5):
            said = [f"{name} {number}" for name in ("alice", "bob")]
            answers = await asyncio.gather(
                alice.agent.request("helper", said[0], **MARKS), bob.agent.request("helper", said[1], **MARKS)
            )
            assert [one.content for one in answers] == said
    assert (alice.inbox.qsize(), bob.inbox.qsize(), bus.platform.post.debts.count) == (0, 0, 0)


@pytest.mark.parametrize("script", [BY_COUNT, BY_ID, LATER], ids=["by count", "by id", "later"])
async def test_scripts_by_hand(bus: Bus, bridge: Bridge, person: PersonFactory, alice: Any, script: str) -> None:
    await bridge(script, by_hand=True)
    await ask_both(bus, person, alice)


async def test_scripts_with_the_library_in_both_modes(
    bus: Bus, launch: Launch, person: PersonFactory, alice: Any
) -> None:
    await launch(WITH_LIBRARY)
    await ask_both(bus, person, alice)


async def test_an_agent_of_the_sdk(bus: Bus, person: PersonFactory, alice: Any) -> None:
    helper = Agent("helper", bus=bus.address)
    both = asyncio.Barrier(2)

    @helper.on("request")
    async def answer(message: Any) -> str:
        # Neither is answered before the other one is there.
        await both.wait()
        return str(message.content)

    async with helper:
        await ask_both(bus, person, alice)


async def test_only_who_has_no_answer_hears_of_the_end(
    bus: Bus, bridge: Bridge, person: PersonFactory, alice: Any
) -> None:
    carol, dave = await person("carol"), await person("dave")
    helper: Bridged = await bridge(PICKY, by_hand=True)
    async with asyncio.timeout(WAIT):
        asking = asyncio.create_task(carol.agent.request("helper", "carol", **MARKS))
        await asyncio.sleep(0)
        assert (await alice.agent.request("helper", "alice", **MARKS)).content == "alice"
        await dave.agent.send("helper", "inform", "die")
        with pytest.raises(FailureFromAgent, match="helper: failure"):
            await asking
        # What the bridge answered in the place of its script, the bus does not answer once more.
        await helper.stop()
        assert bus.platform.post.debts.count == 0
    assert (alice.inbox.qsize(), carol.inbox.qsize()) == (0, 0)
