"""Providers, through the vendors' own libraries, against a server that speaks their APIs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from vendor import CHAT, MESSAGES, RESPONSES, Call, Reply, Vendor

from gagent_grpc import ConfigurationError
from gagent_grpc.llm import (
    AnthropicMessages,
    ChatMessage,
    Completion,
    ModelError,
    OpenAIChat,
    Role,
    Stop,
    TokenUsage,
    ToolSpec,
    Trouble,
    choose,
)
from gagent_grpc.llm.providers.sdk import SdkProvider

from .conftest import KEY, KINDS, MakeProvider

PATHS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
TALK = (
    ChatMessage(Role.SYSTEM, "Be brief."),
    ChatMessage(Role.USER, "earlier"),
    ChatMessage(Role.ASSISTANT, "yes"),
    ChatMessage(Role.USER, "What is it?"),
)
WEATHER = ToolSpec("weather", "Tells the weather.", {"type": "object", "properties": {"town": {"type": "string"}}})
TIMEOUT = 15.0


@contextlib.asynccontextmanager
async def opened(provider: SdkProvider) -> AsyncIterator[SdkProvider]:
    await provider.open()
    try:
        yield provider
    finally:
        await provider.aclose()


async def ask(
    provider: SdkProvider, messages: Any = TALK, *, streams: bool = False, timeout: float = TIMEOUT, **options: Any
) -> tuple[list[str], Completion]:
    """Return what was streamed, and the completion."""
    if not streams:
        return [], await provider.complete(messages, max_tokens=77, timeout=timeout, **options)
    parts = [one async for one in provider.stream(messages, max_tokens=77, timeout=timeout, **options)]
    assert isinstance(parts[-1], Completion)
    return [one for one in parts if isinstance(one, str)], parts[-1]


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_with_its_tokens(kind: str, streams: bool, vendor: Vendor, client: SdkProvider) -> None:
    vendor.answer = lambda asked: Reply("It is a mailbox.")
    async with opened(client) as provider:
        parts, done = await ask(provider, streams=streams)
    assert done.text == "It is a mailbox."
    assert parts == (["It", " is", " a", " mailbox."] if streams else [])
    assert (done.stop, done.calls, done.usage) == (Stop.END, (), TokenUsage(10, 3))
    (asked,) = vendor.asked
    assert asked.path == PATHS[kind]
    assert KEY in (asked.headers.get("authorization", "") + asked.headers.get("x-api-key", ""))
    assert asked.question == "What is it?"
    said = json.dumps(asked.body)
    assert said.count("Be brief.") == said.count("earlier") == said.count('"yes"') == 1
    limit = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[kind]
    assert asked.body[limit] == 77


@pytest.mark.parametrize("streams", [False, True])
async def test_tools_are_called_and_their_results_go_back(
    kind: str, streams: bool, vendor: Vendor, client: SdkProvider
) -> None:
    calls = [Call("weather", {"town": "Ulm"}, "c1"), Call("weather", {"town": "Bonn"}, "c2")]
    vendor.answer = lambda asked: Reply("Sunny.") if asked.results else Reply("Let me see.", calls=calls)
    async with opened(client) as provider:
        _, first = await ask(provider, streams=streams, tools=[WEATHER])
        assert first.text == "Let me see."
        assert first.stop is Stop.CALLS
        assert [(one.id, one.name, json.loads(one.arguments)) for one in first.calls] == [
            ("c1", "weather", {"town": "Ulm"}),
            ("c2", "weather", {"town": "Bonn"}),
        ]
        results = [
            ChatMessage(Role.TOOL, "warm", call_id="c1"),
            ChatMessage(Role.TOOL, "error: no such town", call_id="c2", is_error=True),
        ]
        talk = [*TALK, first.message, *results]
        _, second = await ask(provider, talk, streams=streams, tools=[WEATHER], tool_choice="none")
    assert second.text == "Sunny."
    assert vendor.asked[1].results == ["warm", "error: no such town"]
    shown = [one["name"] if "name" in one else one["function"]["name"] for one in vendor.asked[1].body["tools"]]
    assert shown == ["weather"]
    choice = vendor.asked[1].body["tool_choice"]
    assert choice == ({"type": "none"} if kind == "messages" else "none")
    if kind == "responses":
        # A model that reasons wants its own reasoning back.
        assert [one.get("type") for one in vendor.asked[1].messages].count("reasoning") == 1


CASES = [
    (Reply(status=401, error="authentication_error", says=f"Incorrect API key provided: {KEY}"), Trouble.KEY_REFUSED),
    (Reply(status=403, error="permission_error"), Trouble.KEY_REFUSED),
    (Reply(status=404, error="not_found_error"), Trouble.NO_SUCH_MODEL),
    (Reply(status=429, error="rate_limit_error"), Trouble.RATE_LIMITED),
    (Reply(status=429, error="insufficient_quota", code="insufficient_quota"), Trouble.NO_CREDIT),
    (Reply(status=500, error="api_error"), Trouble.SERVER_ERROR),
    (Reply(status=529, error="overloaded_error"), Trouble.SERVER_ERROR),
    (Reply(status=400, code="context_length_exceeded"), Trouble.CONTEXT_TOO_LONG),
    (Reply(status=400, says="prompt is too long: 9 tokens > 8 maximum"), Trouble.CONTEXT_TOO_LONG),
    (Reply(status=400, code="content_filter"), Trouble.CONTENT_FILTER),
    (Reply(status=400, code="unsupported_value", param="temperature"), Trouble.REQUEST_REFUSED),
    (Reply(raw=b"<html>a login page</html>"), Trouble.BAD_ANSWER),
    (Reply(raw=b'{"hello": "world"}'), Trouble.BAD_ANSWER),
    (Reply("half of it", cut_after=-1), Trouble.UNREACHABLE),
]


@pytest.mark.parametrize(("reply", "trouble"), CASES, ids=[f"{i}-{trouble}" for i, (_, trouble) in enumerate(CASES)])
async def test_what_goes_wrong_is_told_in_one_word_and_without_secrets(
    kind: str, reply: Reply, trouble: Trouble, vendor: Vendor, client: SdkProvider
) -> None:
    vendor.answer = lambda asked: reply
    async with opened(client) as provider:
        with pytest.raises(ModelError) as caught:
            await ask(provider)
    assert caught.value.trouble is trouble
    text = f"{caught.value} {caught.value!r} {provider!r} {vars(provider)}"
    assert KEY not in text
    assert "What is it?" not in text
    assert reply.says not in text
    # The library's own repetition is switched off.
    assert len(vendor.asked) == 1


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("stop", "expected"), [("length", Stop.LENGTH), ("filter", Stop.FILTERED)])
async def test_why_an_answer_ended(
    kind: str, stop: str, expected: Stop, streams: bool, vendor: Vendor, client: SdkProvider
) -> None:
    vendor.answer = lambda asked: Reply("", stop=stop)
    async with opened(client) as provider:
        _, done = await ask(provider, streams=streams)
    assert (done.text, done.stop) == ("", expected)


async def test_a_stream_that_breaks_is_no_answer(kind: str, vendor: Vendor, client: SdkProvider) -> None:
    vendor.answer = lambda asked: Reply("one two three four", cut_after=4)
    async with opened(client) as provider:
        with pytest.raises(ModelError) as caught:
            await ask(provider, streams=True)
    assert caught.value.trouble is Trouble.UNREACHABLE


@pytest.mark.parametrize("streams", [False, True])
async def test_an_endpoint_that_never_answers_is_left(
    kind: str, streams: bool, vendor: Vendor, client: SdkProvider
) -> None:
    vendor.answer = lambda asked: Reply("late", hang=asyncio.Event())
    async with opened(client) as provider:
        with pytest.raises(ModelError) as caught:
            await ask(provider, streams=streams, timeout=0.3)
    assert caught.value.trouble is Trouble.TIMEOUT
    async with asyncio.timeout(TIMEOUT):
        for asked in vendor.asked:
            await asked.gone.wait()


async def test_nobody_at_the_endpoint() -> None:
    async with opened(OpenAIChat("a-model", base_url="http://127.0.0.1:9")) as provider:
        with pytest.raises(ModelError, match=r"unreachable: nobody answers at 127\.0\.0\.1:9") as caught:
            await ask(provider)
    assert caught.value.retryable


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
async def test_how_long_to_wait_is_heard(kind: str, name: str, vendor: Vendor, client: SdkProvider) -> None:
    vendor.answer = lambda asked: Reply(status=429, error="rate_limit_error", headers={name: "7"})
    async with opened(client) as provider:
        with pytest.raises(ModelError) as caught:
            await ask(provider)
    assert caught.value.retry_after == (7.0 if name == "retry-after" else 0.007)


async def test_models_that_call_the_limit_otherwise(vendor: Vendor, make: MakeProvider) -> None:
    def answer(asked: Any) -> Reply:
        if "max_tokens" in asked.body:
            return Reply(status=400, code="unsupported_parameter", param="max_tokens")
        return Reply(str(asked.body["max_completion_tokens"]))

    vendor.answer = answer
    async with opened(make("chat")) as provider:
        assert [(await ask(provider))[1].text for _ in range(2)] == ["77", "77"]
    # Found out once.
    assert len(vendor.asked) == 3


async def test_an_endpoint_of_ones_own_needs_no_key(kind: str, vendor: Vendor, make: MakeProvider) -> None:
    async with opened(make(kind, api_key=None)) as provider:
        assert (await ask(provider))[1].text == "model says: What is it?"


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_the_vendors_endpoint_needs_a_key(kind: str) -> None:
    provider = KINDS[kind][0]("a-model")
    async with opened(provider):
        with pytest.raises(ModelError, match=f"no-key: .* set {provider.key_variable}"):
            await ask(provider)


async def test_a_provider_is_closed_with_the_last_who_opened_it(vendor: Vendor, make: MakeProvider) -> None:
    provider = make("chat")
    async with opened(provider), opened(provider):
        pass
    with pytest.raises(ModelError, match="not open"):
        await ask(provider)
    async with opened(provider):
        async with opened(provider):
            pass
        assert (await ask(provider))[1].text


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_package_that_is_missing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = KINDS[kind][0]("a-model", api_key=KEY)
    monkeypatch.setitem(sys.modules, provider.package, None)
    text = f"The {provider.package} package is missing. Install it: pip install 'gagent-grpc\\[llm\\]'"
    with pytest.raises(ConfigurationError, match=text):
        await provider.open()


@pytest.mark.skipif(
    not (os.environ.get("OPENAI_API_KEY") or os.environ.get("ANTHROPIC_API_KEY")),
    reason="asks a real model, where a key is set",
)
async def test_a_real_model_answers() -> None:
    provider = choose()
    assert isinstance(provider, OpenAIChat | AnthropicMessages)
    async with opened(provider):
        _, done = await ask(provider, [ChatMessage(Role.USER, "Say the word blue, and nothing else.")], timeout=60)
    assert "blue" in done.text.lower()
    assert done.usage.output_tokens > 0
