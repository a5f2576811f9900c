"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gagent_grpc.llm.chat import ChatMessage, Completion, Role, Stop, TokenUsage, ToolCall, ToolChoice, ToolSpec
from gagent_grpc.llm.errors import ModelError, Trouble
from gagent_grpc.llm.providers.sdk import SdkProvider

_STOPS = {
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "refusal": Stop.FILTERED,
    "tool_use": Stop.CALLS,
}


class AnthropicMessages(SdkProvider):
    """A model behind `messages.create`. It is a `Provider`; see there."""

    package = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"

    @property
    def default_host(self) -> str:
        """Host of the vendor's own endpoint."""
        return "api.anthropic.com"

    def _connect(self, module: Any, key: str) -> Any:
        url = self._base_url or "https://api.anthropic.com"
        return module.AsyncAnthropic(api_key=key, base_url=url, max_retries=0)

    async def _complete(
        self,
        client: Any,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        tool_choice: ToolChoice,
        max_tokens: int,
        timeout: float,
    ) -> Completion:
        request = _request(self._model, messages, tools, tool_choice, max_tokens)
        return _completion(await client.messages.create(timeout=timeout, **request))

    async def _stream(
        self,
        client: Any,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        tool_choice: ToolChoice,
        max_tokens: int,
        timeout: float,
    ) -> AsyncGenerator[str | Completion, None]:
        request = _request(self._model, messages, tools, tool_choice, max_tokens)
        async with client.messages.stream(timeout=timeout, **request) as stream:
            async for text in stream.text_stream:
                yield text
            try:
                message = await stream.get_final_message()
            except AssertionError:
                # So the library says that not even the first event came.
                message = None
        if message is None or message.stop_reason is None:
            raise ModelError(Trouble.UNREACHABLE, f"the stream of {self.label} ended before the answer did")
        yield _completion(message)


def _completion(message: Any) -> Completion:
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = tuple(
        ToolCall(block.id, block.name, json.dumps(block.input)) for block in message.content if block.type == "tool_use"
    )
    usage = message.usage
    read = sum(
        getattr(usage, name, None) or 0
        for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )
    # As it came: a model that thinks wants its own thoughts back with the results of its calls.
    native = [block.model_dump(exclude_unset=True, warnings=False) for block in message.content]
    stop = _STOPS.get(message.stop_reason or "", Stop.END)
    return Completion(text, stop, calls, TokenUsage(read, usage.output_tokens or 0), native=native)


def _request(
    model: str, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], tool_choice: ToolChoice, max_tokens: int
) -> dict[str, Any]:
    system = "\n\n".join(one.text for one in messages if one.role is Role.SYSTEM)
    request: dict[str, Any] = {"model": model, "messages": _turns(messages), "max_tokens": max_tokens}
    if system:
        request["system"] = system
    if tools:
        request["tools"] = [
            {"name": one.name, "description": one.description, "input_schema": dict(one.parameters)} for one in tools
        ]
        request["tool_choice"] = {"type": tool_choice}
    return request


def _turns(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for one in messages:
        if one.role is Role.SYSTEM:
            continue
        if one.role is Role.TOOL:
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": one.call_id, "content": one.text}
            if one.is_error:
                result["is_error"] = True
            # The results of one turn go together, as one message of the user.
            if made and made[-1]["role"] == "user" and isinstance(made[-1]["content"], list):
                made[-1]["content"].append(result)
            else:
                made.append({"role": "user", "content": [result]})
        else:
            made.append({"role": str(one.role), "content": one.native if one.native is not None else one.text})
    return made
