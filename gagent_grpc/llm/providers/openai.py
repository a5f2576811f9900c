"""OpenAI's chat completions, which Ollama, vLLM and many others speak as well."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gagent_grpc.llm.chat import ChatMessage, Completion, Role, Stop, TokenUsage, ToolCall, ToolChoice, ToolSpec
from gagent_grpc.llm.errors import ModelError, Trouble
from gagent_grpc.llm.providers.sdk import SdkProvider

_STOPS = {"length": Stop.LENGTH, "content_filter": Stop.FILTERED, "tool_calls": Stop.CALLS}


class OpenAIChat(SdkProvider):
    """A model behind `chat.completions.create`. It is a `Provider`; see there."""

    package = "openai"
    key_variable = "OPENAI_API_KEY"

    _limit_name = "max_tokens"

    @property
    def default_host(self) -> str:
        """Host of the vendor's own endpoint."""
        return "api.openai.com"

    def _connect(self, module: Any, key: str) -> Any:
        url = self._base_url or "https://api.openai.com/v1"
        return module.AsyncOpenAI(api_key=key, base_url=url, max_retries=0)

    async def _complete(
        self,
        client: Any,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        tool_choice: ToolChoice,
        max_tokens: int,
        timeout: float,
    ) -> Completion:
        done = await self._create(client, _request(messages, tools, tool_choice), max_tokens, timeout)
        choice = done.choices[0]
        calls = [ToolCall(one.id, one.function.name, one.function.arguments) for one in choice.message.tool_calls or ()]
        declined = bool(getattr(choice.message, "refusal", None))
        return _completion(choice.message.content or "", calls, choice.finish_reason, done.usage, declined=declined)

    async def _stream(
        self,
        client: Any,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        tool_choice: ToolChoice,
        max_tokens: int,
        timeout: float,
    ) -> AsyncGenerator[str | Completion, None]:
        request = _request(messages, tools, tool_choice)
        request |= {"stream": True, "stream_options": {"include_usage": True}}
        text: list[str] = []
        calls: dict[int, list[str]] = {}
        finish, usage, declined = None, None, False
        async with await self._create(client, request, max_tokens, timeout) as chunks:
            async for chunk in chunks:
                usage = chunk.usage or usage
                # The one with the usage has no choices.
                for choice in chunk.choices[:1]:
                    finish = choice.finish_reason or finish
                    delta = choice.delta
                    declined = declined or bool(getattr(delta, "refusal", None))
                    for part in delta.tool_calls or ():
                        call = calls.setdefault(part.index, ["", "", ""])
                        call[0] = part.id or call[0]
                        if part.function is not None:
                            call[1] += part.function.name or ""
                            call[2] += part.function.arguments or ""
                    if delta.content:
                        text.append(delta.content)
                        yield delta.content
        if finish is None:
            raise ModelError(Trouble.UNREACHABLE, f"the stream of {self.label} ended before the answer did")
        made = [ToolCall(*calls[index]) for index in sorted(calls)]
        yield _completion("".join(text), made, finish, usage, declined=declined)

    async def _create(self, client: Any, request: dict[str, Any], max_tokens: int, timeout: float) -> Any:
        limit = {self._limit_name: max_tokens}
        try:
            return await client.chat.completions.create(model=self._model, timeout=timeout, **limit, **request)
        except self._module.BadRequestError as error:
            if self._limit_name != "max_tokens" or error.param != "max_tokens":
                raise
            # Newer models take the other name alone; older endpoints know this one alone.
            self._limit_name = "max_completion_tokens"
            return await self._create(client, request, max_tokens, timeout)


def _completion(text: str, calls: list[ToolCall], finish: str | None, usage: Any, *, declined: bool) -> Completion:
    stop = Stop.FILTERED if declined and not text else _STOPS.get(finish or "", Stop.END)
    tokens = TokenUsage(usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage is not None else TokenUsage()
    return Completion(text, stop, tuple(calls), tokens)


def _request(messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], tool_choice: ToolChoice) -> dict[str, Any]:
    request: dict[str, Any] = {"messages": [_message(one) for one in messages]}
    if tools:
        request["tools"] = [
            {
                "type": "function",
                "function": {"name": one.name, "description": one.description, "parameters": dict(one.parameters)},
            }
            for one in tools
        ]
        request["tool_choice"] = tool_choice
    return request


def _message(message: ChatMessage) -> dict[str, Any]:
    made: dict[str, Any] = {"role": str(message.role), "content": message.text}
    if message.role is Role.TOOL:
        made["tool_call_id"] = message.call_id
    if message.calls:
        made["content"] = message.text or None
        made["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in message.calls
        ]
    return made
