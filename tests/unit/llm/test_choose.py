"""Which model is chosen, and what a key shows of itself."""

from __future__ import annotations

import pickle

import pytest

from gagent_grpc import ConfigurationError
from gagent_grpc.llm import AnthropicMessages, Echo, OpenAIChat, OpenAIResponses, choose
from gagent_grpc.llm.providers.secret import Secret

OPENAI, ANTHROPIC = {"OPENAI_API_KEY": "sk-o"}, {"ANTHROPIC_API_KEY": "sk-a"}
OLLAMA = {"OPENAI_BASE_URL": "http://localhost:11434/v1"}


@pytest.mark.parametrize(
    ("environ", "options", "kind", "label"),
    [
        ({}, {}, Echo, "echo"),
        (OPENAI, {}, OpenAIChat, "gpt-4o-mini at api.openai.com"),
        (ANTHROPIC, {}, AnthropicMessages, "claude-haiku-4-5 at api.anthropic.com"),
        (OPENAI | ANTHROPIC, {}, OpenAIChat, "gpt-4o-mini at api.openai.com"),
        (OPENAI | ANTHROPIC, {"model": "claude-opus-5"}, AnthropicMessages, "claude-opus-5 at api.anthropic.com"),
        (OPENAI | ANTHROPIC, {"provider": "anthropic"}, AnthropicMessages, "claude-haiku-4-5 at api.anthropic.com"),
        (OPENAI, {"provider": "openai-responses"}, OpenAIResponses, "gpt-4o-mini at api.openai.com"),
        (OPENAI, {"provider": "echo"}, Echo, "echo"),
        (OLLAMA | {"GAGENT_MODEL": "llama3"}, {}, OpenAIChat, "llama3 at localhost:11434"),
        (OPENAI | OLLAMA, {"model": "mine"}, OpenAIChat, "mine at localhost:11434"),
        ({}, {"base_url": "https://user:word@hub.example/v1"}, OpenAIChat, "gpt-4o-mini at hub.example"),
        ({}, {"base_url": " http://[::1]:8000/v1\n"}, OpenAIChat, "gpt-4o-mini at ::1:8000"),
        ({}, {"api_key": "sk-x", "model": "claude-x"}, AnthropicMessages, "claude-x at api.anthropic.com"),
        ({"OPENAI_API_KEY": ""}, {}, Echo, "echo"),
    ],
)
def test_what_is_said_counts_before_the_environment(environ: dict, options: dict, kind: type, label: str) -> None:
    chosen = choose(environ=environ, **options)
    assert type(chosen) is kind
    assert chosen.label == label


@pytest.mark.parametrize(
    ("environ", "options", "text"),
    [
        ({}, {"provider": "openai"}, "needs a key: set OPENAI_API_KEY, or OPENAI_BASE_URL"),
        (OPENAI, {"provider": "anthropic"}, "needs a key: set ANTHROPIC_API_KEY"),
        ({}, {"provider": "oracle"}, "'oracle'; expected one of openai, openai-responses, anthropic, echo"),
        ({"OPENAI_API_KEY": "sk with blanks"}, {}, "OPENAI_API_KEY is no key"),
        ({"OPENAI_API_KEY": "sk-\u00fc"}, {}, "OPENAI_API_KEY is no key"),
        ({"OPENAI_API_KEY": "sk-1\r\nx: y"}, {}, "OPENAI_API_KEY is no key"),
        (OPENAI, {"base_url": "localhost:11434"}, "base URL is none; expected http://"),
        *(
            (OPENAI, {"base_url": url}, "base URL is none; expected http://")
            for url in (
                "http://127.0.0.1:99999/v1",
                "http://127.0.0.1:0/v1",
                "http://hub:sk/v1",
                "http://[::1",
                "http://hub .example/v1",
                "http://hub.example/v1\nx",
                "http://\ud800/v1",
                "http://hub..example/v1",
                f"http://{'a' * 300}/v1",
                "ftp://hub.example/",
            )
        ),
    ],
)
def test_what_cannot_be_chosen_says_what_to_do(environ: dict, options: dict, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        choose(environ=environ, **options)
    assert "sk" not in str(caught.value)


def test_the_echo_says_what_is_missing() -> None:
    assert "no OPENAI_API_KEY or ANTHROPIC_API_KEY" in repr(choose(environ={}))


def test_a_key_shows_itself_to_nobody() -> None:
    key = Secret(" sk-secret\n")
    assert key.reveal() == "sk-secret"
    assert "secret" not in f"{key} {key!r} {[key]}"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)
