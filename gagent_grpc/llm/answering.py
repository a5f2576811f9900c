"""From a question to its answer: history, model, tools and model again, within one deadline.

Owns: the talk with the model. Leaves to others: calling it (`llm.calling`), what tools do (given as `Toolbox`), where
questions come from and answers go (`llm.agent`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from gagent_grpc.errors import InvalidArgument
from gagent_grpc.llm.calling import Caller, OnText, RetryPolicy
from gagent_grpc.llm.chat import ChatMessage, Completion, Provider, Role, Stop, ToolCall, ToolSpec
from gagent_grpc.llm.errors import ModelError, Trouble
from gagent_grpc.llm.history import Histories, Key, Turn
from gagent_grpc.llm.usage import UsageTotals

MAX_ROUNDS = 8
"""Completions for one question at most; in the last one the model may use no tool any more."""


class Toolbox(Protocol):
    """Tools for one question."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """What there is; the same for the whole question."""
        ...

    @property
    def spent(self) -> bool:
        """Whether no call is left of those that one question may make."""
        ...

    async def use(self, calls: Sequence[ToolCall]) -> list[ChatMessage]:
        """Use tools side by side; return a result for each call, in order. What fails is a result that says so."""
        ...


class Answering:
    """Answers the questions of one agent. Those of one conversation are answered one after the other."""

    def __init__(
        self,
        provider: Provider,
        *,
        system_prompt: str,
        max_tokens: int,
        histories: Histories,
        usage: UsageTotals,
        policy: RetryPolicy | None = None,
    ) -> None:
        """Make one.

        Raises:
            InvalidArgument: ``max_tokens`` is not positive.
        """
        if max_tokens < 1:
            raise InvalidArgument(f"max_tokens {max_tokens}; expected at least 1", field="max_tokens")
        self._provider = provider
        self._system_prompt = system_prompt
        self._max_tokens = max_tokens
        self._histories = histories
        self._usage = usage
        self._policy = policy
        self._talks: dict[Key, tuple[asyncio.Lock, int]] = {}

    async def answer(
        self,
        key: Key | None,
        question: str,
        *,
        deadline: float,
        tools: Toolbox | None = None,
        on_text: OnText | None = None,
    ) -> str:
        """Return the model's answer; question and answer are remembered then.

        Args:
            key: The conversation; None for a question that belongs to none, of which nothing is remembered.
            question: What is asked.
            deadline: When there must be an answer, by the clock of the loop.
            tools: What the model may use; None for nothing.
            on_text: Gets the text as it comes, also what the model says before it uses a tool.

        Raises:
            ModelError: There is no answer; nothing is remembered.
        """
        if key is None:
            return await self._talk((), question, deadline, tools, on_text)
        async with self._turn(key, deadline):
            while True:
                try:
                    text = await self._talk(self._histories.turns(key), question, deadline, tools, on_text)
                except ModelError as error:
                    # Else the conversation would be stuck: each further question comes with the same history.
                    if error.trouble is not Trouble.CONTEXT_TOO_LONG or not self._histories.shorten(key):
                        raise
                else:
                    self._histories.add(key, Turn(question, text))
                    return text

    @contextlib.asynccontextmanager
    async def _turn(self, key: Key, deadline: float) -> AsyncGenerator[None, None]:
        """Wait until nobody else talks in the conversation."""
        lock, users = self._talks.get(key, (asyncio.Lock(), 0))
        self._talks[key] = lock, users + 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await lock.acquire()
            except TimeoutError:
                text = "an earlier question of the conversation is still being answered"
                raise ModelError(Trouble.TIMEOUT, text) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._talks.pop(key)
            if users > 1:
                self._talks[key] = lock, users - 1

    async def _talk(
        self, turns: Sequence[Turn], question: str, deadline: float, tools: Toolbox | None, on_text: OnText | None
    ) -> str:
        messages = [ChatMessage(Role.SYSTEM, self._system_prompt)] if self._system_prompt else []
        for turn in turns:
            messages += [ChatMessage(Role.USER, turn.question), ChatMessage(Role.ASSISTANT, turn.answer)]
        messages.append(ChatMessage(Role.USER, question))
        for number in range(1, MAX_ROUNDS + 1):
            may_call = tools is not None and not tools.spent and number < MAX_ROUNDS
            done = await self._complete(messages, tools, may_call, deadline, on_text)
            if tools is None or not done.calls:
                return self._checked(done)
            if not may_call:
                break
            messages.append(done.message)
            messages += await tools.use(done.calls)
        text = f"{self._provider.label} asks for tools again and again; ask for less at a time"
        raise ModelError(Trouble.TOO_MANY_CALLS, text)

    async def _complete(
        self,
        messages: Sequence[ChatMessage],
        tools: Toolbox | None,
        may_call: bool,
        deadline: float,
        on_text: OnText | None,
    ) -> Completion:
        model = self._provider.model
        caller = Caller(self._provider, self._policy)
        try:
            done = await caller.call(
                messages,
                tools=tools.specs if tools is not None else (),
                tool_choice="auto" if may_call else "none",
                max_tokens=self._max_tokens,
                deadline=deadline,
                on_text=on_text,
            )
        except ModelError:
            self._usage.failed(model, caller.retries)
            raise
        self._usage.completed(model, done.usage, caller.retries)
        return done

    def _checked(self, done: Completion) -> str:
        text = done.text.strip()
        label = self._provider.label
        if done.stop is Stop.FILTERED:
            raise ModelError(Trouble.CONTENT_FILTER, f"{label} declined to answer; ask in other words")
        if not text and done.stop is Stop.LENGTH:
            why = f"{label} used all of {self._max_tokens} tokens and said nothing; raise max_tokens"
            raise ModelError(Trouble.EMPTY_ANSWER, why)
        if not text:
            raise ModelError(Trouble.EMPTY_ANSWER, f"{label} said nothing; ask again, or in other words")
        return text
