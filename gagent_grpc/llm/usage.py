"""What models cost an agent: counters per model, and a hook for whoever exports them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gagent_grpc.llm.chat import TokenUsage

_logger = logging.getLogger(__name__)

OnUsage = Callable[[str, TokenUsage], None]
"""Hears of each completion: (model, its tokens). It is called on the loop and must not wait."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one model did since the agent was made."""

    completions: int = 0
    """Calls that came to something."""
    failures: int = 0
    """Calls that came to nothing, after all that was tried again."""
    retries: int = 0
    """Calls that repeated one before."""
    tokens: TokenUsage = field(default_factory=TokenUsage)


class UsageTotals:
    """The counters of one agent."""

    def __init__(self, on_usage: OnUsage | None = None) -> None:
        self._by_model: dict[str, ModelUsage] = {}
        self._on_usage = on_usage

    def by_model(self) -> dict[str, ModelUsage]:
        """Return the counters by name of the model."""
        return dict(self._by_model)

    def completed(self, model: str, tokens: TokenUsage, retries: int) -> None:
        """Count a completion that was tried ``retries`` times more than once."""
        now = self._by_model.get(model, ModelUsage())
        self._by_model[model] = replace(
            now, completions=now.completions + 1, retries=now.retries + retries, tokens=now.tokens + tokens
        )
        if self._on_usage is not None:
            try:
                self._on_usage(model, tokens)
            except Exception:
                # Whoever counts must not keep an answer back.
                _logger.exception("the hook for usage failed")

    def failed(self, model: str, retries: int) -> None:
        """Count a call that came to nothing."""
        now = self._by_model.get(model, ModelUsage())
        self._by_model[model] = replace(now, failures=now.failures + 1, retries=now.retries + retries)
