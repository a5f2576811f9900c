"""Which model an agent speaks to: what it is told, else what the environment says, else the echo."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gagent_grpc.errors import ConfigurationError, shown
from gagent_grpc.llm.chat import Provider
from gagent_grpc.llm.providers.anthropic import AnthropicMessages
from gagent_grpc.llm.providers.echo import Echo
from gagent_grpc.llm.providers.openai import OpenAIChat
from gagent_grpc.llm.providers.openai_responses import OpenAIResponses
from gagent_grpc.llm.providers.sdk import SdkProvider

OPENAI_MODEL = "gpt-4o-mini"
ANTHROPIC_MODEL = "claude-haiku-4-5"

_PROVIDERS: dict[str, type[SdkProvider]] = {
    "openai": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "anthropic": AnthropicMessages,
}
_NO_KEY = "(echo: no OPENAI_API_KEY or ANTHROPIC_API_KEY)"


def choose(
    provider: str | None = None,
    *,
    model: str | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    requests_per_second: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> Provider:
    """Return the model to speak to.

    What is not said comes from the environment: `OPENAI_API_KEY` and `OPENAI_BASE_URL` for any server that speaks OpenAI's
    API (http://localhost:11434/v1 is Ollama, which needs no key), `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`,
    `GAGENT_MODEL` for the model. Where both vendors have a key, OpenAI is taken, unless the model is a `claude`. Where
    nothing is set it is the echo, which says so in each answer.

    Args:
        provider: `openai` (chat completions), `openai-responses`, `anthropic` or `echo`; by default what there is a key for.
        model: Name of the model; gpt-4o-mini or claude-haiku-4-5 by default.
        api_key: Key, in the place of that in the environment.
        base_url: Endpoint, in the place of that in the environment.
        requests_per_second: Calls that the endpoint takes, where that is known; learnt by default.
        environ: The environment; `os.environ` by default.

    Raises:
        ConfigurationError: There is no such provider, it has no key and needs one, or a value is none.
    """
    environ = os.environ if environ is None else environ
    model = model or environ.get("GAGENT_MODEL") or None
    name = provider or _found(environ, model, given=bool(api_key or base_url))
    if name == "echo":
        return Echo("(echo)" if provider else _NO_KEY)
    kind = _PROVIDERS.get(name)
    if kind is None:
        names = ", ".join([*_PROVIDERS, "echo"])
        raise ConfigurationError(f"provider {shown(name)}; expected one of {names}")
    vendor = kind.key_variable.removesuffix("_API_KEY")
    key = api_key or environ.get(kind.key_variable) or None
    url = base_url or environ.get(f"{vendor}_BASE_URL") or None
    if key is None and url is None:
        text = f"{name} needs a key: set {kind.key_variable}, or {vendor}_BASE_URL for a server that needs none"
        raise ConfigurationError(text)
    default = ANTHROPIC_MODEL if kind is AnthropicMessages else OPENAI_MODEL
    return kind(model or default, api_key=key, base_url=url, requests_per_second=requests_per_second)


def _found(environ: Mapping[str, str], model: str | None, *, given: bool) -> str:
    """Return the provider that the environment speaks for; ``given`` is whether a key or an endpoint was said."""
    openai = bool(environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"))
    anthropic = bool(environ.get("ANTHROPIC_API_KEY") or environ.get("ANTHROPIC_BASE_URL"))
    if (model or "").startswith("claude") and (anthropic or (given and not openai)):
        return "anthropic"
    if openai or given:
        return "openai"
    return "anthropic" if anthropic else "echo"
