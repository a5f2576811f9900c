"""OpenAI's responses, the API that its library offers first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gagent_grpc.llm.chat import ChatMessage, Completion, Role, Stop, TokenUsage, ToolCall, ToolChoice, ToolSpec
from gagent_grpc.llm.errors import ModelError, Trouble
from gagent_grpc.llm.providers.openai import OpenAIChat

_LEAST_TOKENS = 16
"""Smallest limit that the API takes."""


class OpenAIResponses(OpenAIChat):
    """A model behind `responses.create`. It is a `Provider`; see there."""

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
        return self._completion(await client.responses.create(timeout=timeout, **request))

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
        async with await client.responses.create(timeout=timeout, stream=True, **request) as events:
            async for event in events:
                if event.type == "response.output_text.delta":
                    yield event.delta
                elif event.type in {"response.completed", "response.incomplete", "response.failed"}:
                    yield self._completion(event.response)
                    return
                elif event.type == "error":
                    raise self._of_words([event.code] if event.code else [], 500, None)
        raise ModelError(Trouble.UNREACHABLE, f"the stream of {self.label} ended before the answer did")

    def _completion(self, response: Any) -> Completion:
        if response.status == "failed":
            code = response.error.code if response.error is not None else None
            raise self._of_words([code] if code else [], 500, None)
        text: list[str] = []
        calls: list[ToolCall] = []
        declined = False
        for item in response.output:
            if item.type == "function_call":
                calls.append(ToolCall(item.call_id, item.name, item.arguments))
            elif item.type == "message":
                text += [part.text for part in item.content if part.type == "output_text"]
                declined = declined or any(part.type == "refusal" for part in item.content)
        stop = Stop.CALLS if calls else Stop.END
        if response.status == "incomplete":
            why = response.incomplete_details.reason if response.incomplete_details is not None else ""
            stop = Stop.FILTERED if why == "content_filter" else Stop.LENGTH
        elif declined and not any(text):
            stop = Stop.FILTERED
        usage = response.usage
        tokens = TokenUsage(usage.input_tokens or 0, usage.output_tokens or 0) if usage is not None else TokenUsage()
        # As it came: a model that reasons wants its own reasoning back with the results of its calls.
        native = [item.model_dump(exclude_unset=True, warnings=False) for item in response.output]
        return Completion("".join(text), stop, tuple(calls), tokens, native=native)


def _request(
    model: str, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], tool_choice: ToolChoice, max_tokens: int
) -> dict[str, Any]:
    system = "\n\n".join(one.text for one in messages if one.role is Role.SYSTEM)
    request: dict[str, Any] = {
        "model": model,
        "input": [item for one in messages for item in _items(one)],
        "max_output_tokens": max(max_tokens, _LEAST_TOKENS),
    }
    if system:
        request["instructions"] = system
    if tools:
        request["tools"] = [
            {
                "type": "function",
                "name": one.name,
                "description": one.description,
                "parameters": dict(one.parameters),
                "strict": False,
            }
            for one in tools
        ]
        request["tool_choice"] = tool_choice
    return request


def _items(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role is Role.SYSTEM:
        return []
    if message.role is Role.TOOL:
        return [{"type": "function_call_output", "call_id": message.call_id, "output": message.text}]
    if message.native is not None:
        return list(message.native)
    return [{"role": str(message.role), "content": message.text}]
