"""What travels between an agent and a model, in no vendor's words: messages, tools, completions, and the provider of them.

Owns: these values and the port. Pure. Leaves to others: the vendors' forms (`llm.providers`), calling (`llm.calling`).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gagent_grpc.llm.limiter import Limiter

ToolChoice = Literal["auto", "none"]
"""Whether the model may use the tools that it is shown. It has to be shown them as long as the messages hold calls."""


class Role(enum.StrEnum):
    """Who says something to a model."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Stop(enum.Enum):
    """Why a model ended."""

    END = enum.auto()
    """It was done."""
    LENGTH = enum.auto()
    """It had used the tokens that it was given, or its context was full."""
    CALLS = enum.auto()
    """It waits for tools."""
    FILTERED = enum.auto()
    """A filter, or the model itself, declined."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants to be used."""

    id: str
    """Mark that the result carries."""
    name: str
    arguments: str
    """JSON text, as the model wrote it; it may be none."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a model may use."""

    name: str
    description: str
    """What it does and when to use it; the model reads this."""
    parameters: Mapping[str, Any]
    """JSON Schema of an object."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of the talk with a model."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Of ASSISTANT: tools that it wants to be used."""
    call_id: str = ""
    """Of TOOL: the call that it is the result of."""
    is_error: bool = False
    """Of TOOL: it says why there is no result."""
    native: Any = field(default=None, compare=False, repr=False)
    """Of ASSISTANT: what the vendor's API wants back in the place of this message, such as its reasoning; None for nothing
    special. Only the provider that made it reads it."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens that something took."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model came to."""

    text: str
    stop: Stop
    calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = TokenUsage()
    """Zero where the endpoint does not say."""
    native: Any = field(default=None, compare=False, repr=False)
    """As `ChatMessage.native`."""

    @property
    def message(self) -> ChatMessage:
        """The completion as a message, with which the talk goes on."""
        return ChatMessage(Role.ASSISTANT, self.text, self.calls, native=self.native)


class Provider(Protocol):
    """A model at an endpoint. One attempt per call: what is tried again, and when, is decided in `llm.calling`."""

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    @property
    def label(self) -> str:
        """Model and endpoint as a person wants to read them; never a key."""
        ...

    @property
    def limiter(self) -> Limiter | None:
        """Says when the endpoint may be called; None where it may always be. Set once the provider is open."""
        ...

    async def open(self) -> None:
        """Get ready; each `open` has its `aclose`. Several agents may share one provider.

        Raises:
            ConfigurationError: The vendor's package is missing.
        """
        ...

    async def aclose(self) -> None:
        """Let go; connections are closed with the last one."""
        ...

    async def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] = (),
        tool_choice: ToolChoice = "auto",
        max_tokens: int,
        timeout: float,
    ) -> Completion:
        """Ask the model once and return what it came to.

        Args:
            messages: The talk, oldest first; the last one is the user's, or results of tools.
            tools: Tools that the model may use.
            tool_choice: Whether it may use them now.
            max_tokens: Most tokens of the answer.
            timeout: Seconds, for the call as a whole.

        Raises:
            ModelError: There is no completion.
        """
        ...

    def stream(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] = (),
        tool_choice: ToolChoice = "auto",
        max_tokens: int,
        timeout: float,
    ) -> AsyncGenerator[str | Completion, None]:
        """Ask the model once; iterate over the text as it comes, and then the whole completion. Otherwise as `complete`."""
        ...
