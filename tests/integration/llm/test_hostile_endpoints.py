"""Endpoints and models that say what no API has: whoever asked gets an answer or a `failure` that says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vendor import Call, Reply, Vendor
from waiting import WAIT

from gagent_grpc import Agent, FailureFromAgent, TaskEventKind, TaskFailed
from gagent_grpc.llm import BusTools, RetryPolicy
from gagent_grpc.server.app import Bus

from .conftest import MakeProvider, Start

STREAM = {"content-type": "text/event-stream"}


@pytest.fixture
async def alice(bus: Bus) -> Any:
    async with Agent("alice", bus=bus.address) as one:
        yield one


def chat(message: dict[str, Any], *, finish: Any = "stop", **more: Any) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], **more}).encode()


def chunks(*deltas: dict[str, Any]) -> bytes:
    """Return a stream of chat completions, the last of which ends it."""
    lines = [
        json.dumps({"choices": [{"delta": one, "finish_reason": "stop" if number == len(deltas) else None}]})
        for number, one in enumerate(deltas, 1)
    ]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


# ---- half a character ------------------------------------------------------------------------------------------------


async def test_half_a_surrogate_pair_spoils_no_answer(
    kind: str, start: Start, make: MakeProvider, alice: Agent, vendor: Vendor
) -> None:
    await start("helper", make(kind))
    vendor.answer = lambda asked: Reply("smile \ud83d")
    assert (await alice.request("helper", "?", conversation_id="talk", timeout=WAIT)).content == "smile \ufffd"
    # It went into the history, and that goes to the model.
    vendor.answer = lambda asked: Reply(f"{len(asked.messages)} messages")
    assert (await alice.request("helper", "?", conversation_id="talk", timeout=WAIT)).content == "3 messages"


async def test_a_pair_that_is_cut_in_two_by_the_stream_is_one_character(
    start: Start, alice: Agent, vendor: Vendor
) -> None:
    await start("helper")
    raw = chunks({"content": "a \ud83d"}, {"content": "\ude00 b \ud83d"})
    vendor.answer = lambda asked: Reply(raw=raw, headers=STREAM)
    task = await alice.delegate("helper", "Smile.")
    said = [one.text async for one in task.events() if one.kind is TaskEventKind.OUTPUT]
    assert "".join(said) == "a \U0001f600 b \ufffd"
    assert await task.result(timeout=WAIT) == "a \U0001f600 b \ufffd"


@pytest.mark.parametrize(
    "call",
    [
        Call("no\ud800tool", {}),
        Call("ask_agent", {"agent": "bob", "question": "\ud83d"}),
        Call("search_agents", {"service": "\ud83d"}),
        Call("ask_agent", "[1]"),
        Call("ask_agent", "7"),
    ],
    ids=["name", "question", "service", "list", "number"],
)
async def test_a_use_of_a_tool_that_makes_no_sense_is_told_to_the_model(
    call: Call, kind: str, start: Start, make: MakeProvider, alice: Agent, vendor: Vendor, bus: Bus
) -> None:
    vendor.answer = lambda asked: Reply(
        f"told {len(asked.results)}" if asked.results else "", calls=() if asked.results else [call]
    )
    async with Agent("bob", bus=bus.address) as bob:
        bob.on("request")(lambda message: "bob's answer")
        await start("helper", make(kind), tools=BusTools(["bob"]))
        assert (await alice.request("helper", "?", timeout=WAIT)).content == "told 1"
        task = await alice.delegate("helper", "The same as a task.")
        if kind == "messages" and call.name != "no\ud800tool" and isinstance(call.arguments, dict):
            # That library reads the arguments by itself while they come, and takes no half of a pair there.
            with pytest.raises(TaskFailed, match="bad-answer: "):
                await task.result(timeout=WAIT)
            return
        assert str(await task.result(timeout=WAIT)).endswith("told 1")


# ---- other shapes than the vendor's ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (chat({"content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]}), "in parts"),
        (chat({"content": "odd"}, finish=5, usage={"prompt_tokens": "many", "completion_tokens": None}), "odd"),
        (chat({"content": 5}), "bad-answer"),
        (chat({"content": {"a": 1}}), "bad-answer"),
        (b'{"choices":[]}', "bad-answer"),
        (b"[]", "bad-answer"),
    ],
)
async def test_what_is_no_answer_is_told_and_what_is_nearly_one_is_taken(
    raw: bytes, answer: str, start: Start, alice: Agent, vendor: Vendor
) -> None:
    await start("helper")
    vendor.answer = lambda asked: Reply(raw=raw)
    if answer != "bad-answer":
        assert (await alice.request("helper", "?", timeout=WAIT)).content == answer
        return
    with pytest.raises(FailureFromAgent, match=answer):
        await alice.request("helper", "?", timeout=WAIT)


@pytest.mark.parametrize("arguments", [{"agent": "bob", "question": "?"}, '{"agent":"bob","question":"?"}'])
async def test_calls_without_a_mark_and_with_an_object_as_arguments_are_made(
    arguments: Any, start: Start, alice: Agent, vendor: Vendor, bus: Bus
) -> None:
    calls = [{"id": None, "type": "function", "function": {"name": "ask_agent", "arguments": arguments}}] * 2
    raw = chat({"content": None, "tool_calls": calls}, finish="tool_calls")
    vendor.answer = lambda asked: Reply(" ".join(asked.results)) if asked.results else Reply(raw=raw)
    async with Agent("bob", bus=bus.address) as bob:
        bob.on("request")(lambda message: "bob's answer")
        await start("helper", tools=BusTools(["bob"]))
        assert (await alice.request("helper", "?", timeout=WAIT)).content == "bob's answer bob's answer"
    marks = [one["tool_call_id"] for one in vendor.asked[-1].messages if one["role"] == "tool"]
    assert len(set(marks)) == 2


async def test_a_call_of_nothing_with_nothing_is_told_to_the_model(start: Start, alice: Agent, vendor: Vendor) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": None, "arguments": None}}
    raw = chat({"content": "x", "tool_calls": [call]}, finish="tool_calls")
    vendor.answer = lambda asked: Reply(asked.results[0]) if asked.results else Reply(raw=raw)
    await start("helper", tools=BusTools(["*"]))
    assert "no tool ''" in str((await alice.request("helper", "?", timeout=WAIT)).content)


@pytest.mark.parametrize("raw", [b"", b"garbage\n\n", b"data: \xff\n\n", b"data: []\n\n", b"data: not json\n\n"])
async def test_a_stream_of_garbage_fails_the_task_in_one_word(
    raw: bytes, kind: str, start: Start, make: MakeProvider, alice: Agent, vendor: Vendor
) -> None:
    vendor.answer = lambda asked: Reply(raw=raw, headers=STREAM)
    await start("helper", make(kind), retry=RetryPolicy(attempts=2, initial_delay=0.001, max_delay=0.001))
    with pytest.raises(TaskFailed, match=r"bad-answer: |unreachable: "):
        await (await alice.delegate("helper", "Say something.")).result(timeout=WAIT)


async def test_a_stream_with_a_number_for_text_fails_the_task_in_one_word(
    start: Start, alice: Agent, vendor: Vendor
) -> None:
    vendor.answer = lambda asked: Reply(raw=chunks({"content": 5}), headers=STREAM)
    await start("helper")
    with pytest.raises(TaskFailed, match="bad-answer: "):
        await (await alice.delegate("helper", "Say something.")).result(timeout=WAIT)


# ---- an hour -------------------------------------------------------------------------------------------------------


async def test_nobody_waits_for_a_turn_that_cannot_come_in_time(start: Start, alice: Agent, vendor: Vendor) -> None:
    vendor.answer = lambda asked: Reply(status=429, headers={"retry-after": "3600"})
    await start("helper", total_time=2 * WAIT)
    for number in range(3):
        # Within half of the time that the agent has for it: waiting would take all of that.
        with pytest.raises(FailureFromAgent, match=r"rate-limited: .* would be in \d{4}"):
            await alice.request("helper", "?", conversation_id=str(number), timeout=WAIT)
    assert len(vendor.asked) == 1
