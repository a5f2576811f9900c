"""Calling a model until it answers: turns, retries and their waits, all within one deadline.

Owns: the one policy of what is tried again and when; the vendors' libraries have theirs switched off. Leaves to others: one
attempt (`llm.providers`), the pace (`llm.limiter`), what is asked (`llm.answering`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gagent_grpc.errors import InvalidArgument
from gagent_grpc.llm.chat import ChatMessage, Completion, Provider, ToolChoice, ToolSpec
from gagent_grpc.llm.errors import ModelError, Trouble
from gagent_grpc.llm.limiter import Limiter
from gagent_grpc.llm.unicode import Joiner, well_formed_completion

OnText = Callable[[str], Awaitable[None]]
"""Takes the text of an answer as it comes."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is tried again: calls refused for a while, servers that fail, connections that are lost."""

    attempts: int = 8
    """Calls at most for one completion, the first one included."""
    initial_delay: float = 0.5
    """Upper bound of the first wait in seconds; the wait is drawn evenly below it and the bound doubles. Where the endpoint
    says how long to wait, that counts."""
    max_delay: float = 8.0
    """Upper bound of any such wait in seconds."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidArgument(f"attempts {self.attempts}; expected at least 1", field="attempts")
        if not 0 <= self.initial_delay <= self.max_delay:
            text = f"delays of {self.initial_delay:g} to {self.max_delay:g} s; expected 0 or more, and rising"
            raise InvalidArgument(text, field="initial_delay")

    def delay(self, attempt: int, drawn: float) -> float:
        """Return the seconds to wait after the attempt of this number, from 1; ``drawn`` is a number from 0 to 1."""
        return drawn * float(min(self.max_delay, self.initial_delay * 2.0 ** min(attempt - 1, 30)))


class Caller:
    """Calls one model for one agent."""

    def __init__(
        self, provider: Provider, policy: RetryPolicy | None = None, *, jitter: Callable[[], float] = random.random
    ) -> None:
        self.provider = provider
        self._policy = policy or RetryPolicy()
        self._jitter = jitter
        self.retries = 0
        """Calls that repeated one before."""

    async def call(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[ToolSpec] = (),
        tool_choice: ToolChoice = "auto",
        max_tokens: int,
        deadline: float,
        on_text: OnText | None = None,
    ) -> Completion:
        """Return a completion.

        Args:
            messages: As `Provider.complete`.
            tools: As `Provider.complete`.
            tool_choice: As `Provider.complete`.
            max_tokens: As `Provider.complete`.
            deadline: When there must be an answer, by the clock of the loop; waits for turns and retries included.
            on_text: Gets the text as it comes. Once it has got some, nothing is tried again.

        Raises:
            ModelError: There is none.
        """
        attempt = 0
        while True:
            attempt += 1
            self.retries += attempt > 1
            spoken = _Spoken(on_text)
            try:
                return await self._attempt(messages, tools, tool_choice, max_tokens, deadline, spoken)
            except ModelError as error:
                if spoken.characters and (error.retryable or error.trouble is Trouble.TIMEOUT):
                    text = (
                        f"the answer of {self.provider.label} broke off after {spoken.characters} characters ({error})"
                    )
                    raise ModelError(Trouble.BROKE_OFF, text) from None
                await self._pause(error, attempt, deadline)

    async def _pause(self, error: ModelError, attempt: int, deadline: float) -> None:
        """Wait before the next attempt; raise ``error`` where there is none."""
        if not error.retryable:
            raise error
        left = deadline - asyncio.get_running_loop().time()
        if attempt >= self._policy.attempts:
            raise ModelError(error.trouble, f"{error.why} (given up after {attempt} attempts)") from None
        asked = error.retry_after
        if asked is not None and self.provider.limiter is not None:
            # The turn is given after that time, to everybody.
            delay = 0.0
        else:
            delay = (asked or 0.0) + self._policy.delay(attempt, self._jitter())
        if max(delay, asked or 0.0) >= left:
            text = f"{error.why} (given up: the next attempt would be in {max(delay, asked or 0.0):.1f} s, and {max(left, 0.0):.1f} s are left)"
            raise ModelError(error.trouble, text, retry_after=asked) from None
        await asyncio.sleep(delay)

    async def _attempt(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        tool_choice: ToolChoice,
        max_tokens: int,
        deadline: float,
        spoken: _Spoken,
    ) -> Completion:
        limiter = self.provider.limiter
        began = None
        if limiter is not None:
            self._refuse_hopeless(limiter, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                began = await limiter.turn() if limiter is not None else 0.0
                left = max(deadline - asyncio.get_running_loop().time(), 0.001)
                completion = await self._once(messages, tools, tool_choice, max_tokens, left, spoken)
        except TimeoutError:
            if began is None:
                rate = limiter.pace.rate if limiter is not None else 0.0
                text = (
                    f"{self.provider.label} is limited to about {rate:.2g} requests a second, and no turn came in time"
                )
            else:
                text = f"{self.provider.label} gave no whole answer in time"
            raise ModelError(Trouble.TIMEOUT, text) from None
        except ModelError as error:
            held_off = error.trouble is Trouble.RATE_LIMITED or (error.retryable and error.retry_after is not None)
            if limiter is not None and held_off:
                limiter.refused(began or 0.0, error.retry_after)
            raise
        if limiter is not None:
            limiter.succeeded()
        return completion

    def _refuse_hopeless(self, limiter: Limiter, deadline: float) -> None:
        """Raise where the endpoint asked not to be called before the deadline: nobody is to wait for what cannot come."""
        now = asyncio.get_running_loop().time()
        pause = limiter.pace.held_off(now)
        if pause > max(deadline - now, 0.0):
            text = f"{self.provider.label} takes no more requests at present, as it said to one before"
            raise ModelError(Trouble.RATE_LIMITED, text, retry_after=pause)

    async def _once(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        tool_choice: ToolChoice,
        max_tokens: int,
        left: float,
        spoken: _Spoken,
    ) -> Completion:
        provider = self.provider
        if spoken.on_text is None:
            whole = await provider.complete(
                messages, tools=tools, tool_choice=tool_choice, max_tokens=max_tokens, timeout=left
            )
            return well_formed_completion(whole)
        parts = provider.stream(messages, tools=tools, tool_choice=tool_choice, max_tokens=max_tokens, timeout=left)
        async with contextlib.aclosing(parts) as stream:
            async for part in stream:
                if isinstance(part, Completion):
                    await spoken.end()
                    return well_formed_completion(part)
                await spoken.say(part)
        raise ModelError(Trouble.BAD_ANSWER, f"the stream of {provider.label} ended without an end")


class _Spoken:
    """What was passed on of an answer."""

    __slots__ = ("_joiner", "characters", "on_text")

    def __init__(self, on_text: OnText | None) -> None:
        self.on_text = on_text
        self.characters = 0
        self._joiner = Joiner()

    async def say(self, piece: str) -> None:
        await self._pass_on(self._joiner.feed(piece))

    async def end(self) -> None:
        await self._pass_on(self._joiner.finish())

    async def _pass_on(self, text: str) -> None:
        if text and self.on_text is not None:
            self.characters += len(text)
            await self.on_text(text)
