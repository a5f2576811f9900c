"""The model that everybody has: it says what it was told, and why."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from gagent_grpc.llm.chat import ChatMessage, Completion, Role, Stop, ToolChoice, ToolSpec
from gagent_grpc.llm.limiter import Limiter


class Echo:
    """Answers with the question, after a mark that says that no model is behind it. It is a `Provider`; see there."""

    model = "echo"
    label = "echo"
    limiter: Limiter | None = None

    def __init__(self, mark: str = "(echo)") -> None:
        self._mark = mark

    def __repr__(self) -> str:
        return f"<Echo {self._mark}>"

    async def open(self) -> None:
        """As `Provider.open`; there is nothing to do."""

    async def aclose(self) -> None:
        """As `Provider.aclose`; there is nothing to do."""

    async def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] = (),
        tool_choice: ToolChoice = "auto",
        max_tokens: int,
        timeout: float,
    ) -> Completion:
        """As `Provider.complete`; it uses no tools."""
        asked = next((one.text for one in reversed(messages) if one.role is Role.USER), "")
        return Completion(f"{self._mark} {asked}", Stop.END)

    async def stream(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] = (),
        tool_choice: ToolChoice = "auto",
        max_tokens: int,
        timeout: float,
    ) -> AsyncGenerator[str | Completion, None]:
        """As `Provider.stream`, a word at a time."""
        done = await self.complete(messages, max_tokens=max_tokens, timeout=timeout)
        for place, word in enumerate(done.text.split(" ")):
            yield f" {word}" if place else word
        yield done
