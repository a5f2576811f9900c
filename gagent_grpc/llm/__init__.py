"""Agents that speak through a language model.

    from gagent_grpc.llm import LLMAgent, choose

The vendors' libraries come with the extra `llm`, and are imported when an agent opens.
"""

from gagent_grpc.llm.agent import LLMAgent
from gagent_grpc.llm.calling import RetryPolicy
from gagent_grpc.llm.chat import (
    ChatMessage,
    Completion,
    Provider,
    Role,
    Stop,
    TokenUsage,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from gagent_grpc.llm.errors import ModelError, Trouble
from gagent_grpc.llm.history import Histories
from gagent_grpc.llm.providers.anthropic import AnthropicMessages
from gagent_grpc.llm.providers.choose import choose
from gagent_grpc.llm.providers.echo import Echo
from gagent_grpc.llm.providers.openai import OpenAIChat
from gagent_grpc.llm.providers.openai_responses import OpenAIResponses
from gagent_grpc.llm.tools import BusTools
from gagent_grpc.llm.usage import ModelUsage

__all__ = [
    "AnthropicMessages",
    "BusTools",
    "ChatMessage",
    "Completion",
    "Echo",
    "Histories",
    "LLMAgent",
    "ModelError",
    "ModelUsage",
    "OpenAIChat",
    "OpenAIResponses",
    "Provider",
    "RetryPolicy",
    "Role",
    "Stop",
    "TokenUsage",
    "ToolCall",
    "ToolChoice",
    "ToolSpec",
    "Trouble",
    "choose",
]
