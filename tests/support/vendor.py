"""A server on loopback that speaks the vendors' HTTP APIs: chat completions, responses, messages; whole and streamed.

What it answers is what a test says: `vendor.answer = lambda asked: Reply("hello")`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from waiting import WAIT

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests", 500: "Internal Server Error"}


@dataclass
class Call:
    """A tool that the model wants."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = "call-1"

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass
class Reply:
    """What comes back."""

    text: str = ""
    calls: Sequence[Call] = ()
    status: int = 200
    error: str = "invalid_request_error"
    """Type of an error, and its code where `code` is empty."""
    code: str = ""
    param: str | None = None
    says: str = "what the vendor says"
    """Sentence of an error."""
    headers: Mapping[str, str] = field(default_factory=dict)
    stop: str = "end"
    """`end`, `length` or `filter`."""
    hang: asyncio.Event | None = None
    """The rest comes once this is set."""
    hang_after: int = 0
    """Parts of a stream that come before."""
    cut_after: int | None = None
    """Parts of a stream after which the connection is lost."""
    raw: bytes | None = None
    """Body instead of everything else."""


@dataclass
class Asked:
    """One request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once whoever asked has hung up."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What was said, as the API has it."""
        return self.body["input"] if self.path == RESPONSES else self.body["messages"]

    @property
    def question(self) -> str:
        """What the user said last."""
        texts = [one["content"] for one in self.messages if one.get("role") == "user"]
        return next(text for text in reversed(texts) if isinstance(text, str))

    @property
    def results(self) -> list[str]:
        """What tools came to, oldest first."""
        found: list[str] = []
        for one in self.messages:
            if one.get("role") == "tool":
                found.append(one["content"])
            elif one.get("type") == "function_call_output":
                found.append(one["output"])
            elif isinstance(one.get("content"), list):
                found += [part["content"] for part in one["content"] if part.get("type") == "tool_result"]
        return found


class Vendor:
    """The server; `url` is the root of all three APIs."""

    def __init__(self) -> None:
        self.url = ""
        self._came = asyncio.Event()
        self.reset()

    def reset(self) -> None:
        """Forget what was asked, and answer as at the beginning."""
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Reply] = lambda asked: Reply(f"model says: {asked.question}")

    async def holds(self, count: int) -> list[Asked]:
        """Wait until so many requests came."""
        async with asyncio.timeout(WAIT):
            while len(self.asked) < count:
                self._came.clear()
                await self._came.wait()
        return self.asked

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        asked = Asked(head[0].split(" ")[1].partition("?")[0], headers, json.loads(body or b"{}"))
        self.asked.append(asked)
        self._came.set()
        reply = self.answer(asked)
        # Somebody who asks for one thing at a time says nothing more before the answer: what comes is the end.
        hearing = asyncio.create_task(reader.read(1))
        hearing.add_done_callback(lambda _: asked.gone.set())
        try:
            parts = list(_parts(asked, reply))
            for place, part in enumerate(parts):
                if reply.cut_after is not None and place > reply.cut_after:
                    return False
                if reply.hang is not None and place == reply.hang_after:
                    waits = [asyncio.create_task(one.wait()) for one in (reply.hang, asked.gone)]
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    for one in waits:
                        one.cancel()
                    await asyncio.wait(waits)
                    if asked.gone.is_set():
                        return False
                writer.write(part)
                await writer.drain()
        finally:
            hearing.cancel()
            await asyncio.wait({hearing})
        return False


@contextlib.asynccontextmanager
async def running_vendor() -> AsyncIterator[Vendor]:
    """Run a server while the block lasts; its end waits for its connections."""
    vendor = Vendor()
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(vendor.serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    vendor.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield vendor
    finally:
        server.close()
        for task in set(connections):
            task.cancel()
        if connections:
            await asyncio.wait(set(connections))
        await server.wait_closed()


def _parts(asked: Asked, reply: Reply) -> list[bytes]:
    """Return what goes over the wire, head first."""
    if reply.status != 200:
        error = {"type": reply.error, "code": reply.code or None, "param": reply.param, "message": reply.says}
        return _whole(reply, json.dumps({"type": "error", "error": error}).encode())
    if reply.raw is not None:
        return _whole(reply, reply.raw)
    make = {CHAT: _chat, RESPONSES: _responses, MESSAGES: _messages}[asked.path]
    body, events = make(reply)
    if not asked.body.get("stream"):
        return _whole(reply, json.dumps(body).encode())
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    lines = [
        f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" if asked.path != CHAT else f"data: {json.dumps(one)}\n\n"
        for one in events
    ]
    if asked.path == CHAT:
        lines.append("data: [DONE]\n\n")
    return [head, *(line.encode() for line in lines)]


def _whole(reply: Reply, body: bytes) -> list[bytes]:
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **reply.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return [f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Other')}\r\n{lines}\r\n".encode() + body]


def _words(text: str) -> list[str]:
    return [word if place == 0 else f" {word}" for place, word in enumerate(text.split(" "))] if text else []


def _chat(reply: Reply) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    finish = {"end": "stop", "length": "length", "filter": "content_filter"}[reply.stop]
    finish = "tool_calls" if reply.calls else finish
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    common = {"id": "chat-1", "created": 1, "model": "a-model"}
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.text}} for one in reply.calls
    ]
    message = {"role": "assistant", "content": reply.text or None, **({"tool_calls": calls} if calls else {})}
    body = {
        **common,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        *({"content": one} for one in _words(reply.text)),
    ]
    for index, call in enumerate(calls):
        function = {"name": call["function"]["name"], "arguments": ""}  # type: ignore[index]
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]})
        text = call["function"]["arguments"]  # type: ignore[index]
        half = len(text) // 2
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": one}}]} for one in (text[:half], text[half:])
        ]
    chunks = [
        {**common, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": one, "finish_reason": None}]}
        for one in deltas
    ]
    last = {"index": 0, "delta": {}, "finish_reason": finish}
    chunks.append({**common, "object": "chat.completion.chunk", "choices": [last]})
    chunks.append({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    return body, chunks


def _responses(reply: Reply) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    output: list[dict[str, Any]] = [{"type": "reasoning", "id": "rs-1", "summary": []}]
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        output.append({"type": "message", "id": "m-1", "role": "assistant", "status": "completed", "content": [part]})
    output += [
        {"type": "function_call", "id": f"fc-{one.id}", "call_id": one.id, "name": one.name, "arguments": one.text}
        for one in reply.calls
    ]
    body = {
        "id": "resp-1",
        "object": "response",
        "created_at": 1,
        "model": "a-model",
        "status": "completed" if reply.stop == "end" else "incomplete",
        "incomplete_details": {
            "end": None,
            "length": {"reason": "max_output_tokens"},
            "filter": {"reason": "content_filter"},
        }[reply.stop],
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 13,
        },
    }
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**body, "output": []}}]
    place = {"item_id": "m-1", "output_index": 1, "content_index": 0, "logprobs": []}
    events += [{"type": "response.output_text.delta", "delta": one, **place} for one in _words(reply.text)]
    events.append({"type": f"response.{body['status']}", "response": body})
    for number, event in enumerate(events):
        event["sequence_number"] = number
    return body, events


def _messages(reply: Reply) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    stop = {"end": "end_turn", "length": "max_tokens", "filter": "refusal"}[reply.stop]
    stop = "tool_use" if reply.calls else stop
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    content += [
        {"type": "tool_use", "id": one.id, "name": one.name, "input": json.loads(one.text)} for one in reply.calls
    ]
    body = {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": "a-model",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 3},
    }
    start = {**body, "content": [], "stop_reason": None, "usage": {"input_tokens": 10, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(content):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        if block["type"] == "text":
            deltas = [{"type": "text_delta", "text": one} for one in _words(reply.text)]
        else:
            text = json.dumps(block["input"])
            half = len(text) // 2
            deltas = [{"type": "input_json_delta", "partial_json": one} for one in (text[:half], text[half:])]
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}})
    events.append({"type": "message_stop"})
    return body, events
