"""OpenAI's chat completions, which Ollama, vLLM and many others speak as well."""

from __future__ import annotations

import json
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
        calls = [
            [one.id, one.function.name, _arguments(one.function.arguments)] for one in choice.message.tool_calls or ()
        ]
        declined = bool(getattr(choice.message, "refusal", None))
        return _completion(_text(choice.message.content), calls, choice.finish_reason, done.usage, declined=declined)

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
                            call[2] += _arguments(part.function.arguments)
                    if piece := _text(delta.content):
                        text.append(piece)
                        yield piece
        if finish is None:
            raise ModelError(Trouble.UNREACHABLE, f"the stream of {self.label} ended before the answer did")
        made = [calls[index] for index in sorted(calls)]
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


def _completion(text: str, calls: list[list[Any]], finish: Any, usage: Any, *, declined: bool) -> Completion:
    """Return what came to a completion; the library checks nothing of it, and not every endpoint is the vendor's."""
    stop = Stop.FILTERED if declined and not text else _STOPS.get(str(finish), Stop.END)
    tokens = TokenUsage()
    if usage is not None:
        tokens = TokenUsage(
            *(one if isinstance(one, int) else 0 for one in (usage.prompt_tokens, usage.completion_tokens))
        )
    made = [
        # Some endpoints give no marks; the results have to find their calls all the same.
        ToolCall(str(id_ or f"call-{number}"), str(name or ""), arguments)
        for number, (id_, name, arguments) in enumerate(calls, 1)
    ]
    return Completion(text, stop, tuple(made), tokens)


def _text(content: Any) -> str:
    """Return content as text: a text, nothing, or a list of parts, as some endpoints have it.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(content, list):
        return "".join(_text(one.get("text")) for one in content if isinstance(one, dict))
    if content is None or isinstance(content, str):
        return content or ""
    raise TypeError("content is no text")


def _arguments(given: Any) -> str:
    """Return the arguments of a call as JSON text, also where an endpoint gives the object itself."""
    return given if isinstance(given, str) else "" if given is None else json.dumps(given)


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
