"""An agent whose answers a language model makes: messages and tasks in, answers and `failure`s out.

Owns: what is answered, by when, and how it is said that there is no answer. Leaves to others: the talk with the model
(`llm.answering`), tools (`llm.tools`), the bus (`client.agent`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
from gagent_grpc.acl.performative import Performative
from gagent_grpc.acp.free_json import json_text
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.answers import Fail, Refuse
from gagent_grpc.client.message import Received, answer_headers
from gagent_grpc.client.task_context import TaskContext
from gagent_grpc.config import ClientLimits
from gagent_grpc.errors import InvalidArgument, TaskRefused
from gagent_grpc.llm.answering import Answering
from gagent_grpc.llm.calling import RetryPolicy
from gagent_grpc.llm.chain import chain_of, chain_of_task
from gagent_grpc.llm.chat import Provider
from gagent_grpc.llm.errors import ModelError, Trouble
from gagent_grpc.llm.history import Histories, Key
from gagent_grpc.llm.providers.choose import choose
from gagent_grpc.llm.tools import BusTools
from gagent_grpc.llm.usage import ModelUsage, OnUsage, UsageTotals

_logger = logging.getLogger(__name__)

_MARGIN, _MOST_MARGIN_S = 0.1, 1.0
"""Part of the time until reply-by that is kept for the way of the answer, and the most seconds of it."""
_REMEMBERED_ANSWERS = 256


class LLMAgent(Agent):
    """An agent that has a language model answer.

    It answers `request`, `query-ref` and `query-if`, ACP REQUESTs, and delegated tasks, whose output comes as it is made.
    What expects no answer gets none. Questions of one sender and conversation are answered in order and with what was said
    before; those of others side by side. Where the model has no answer, whoever asked gets a `failure` that begins with a
    word of `Trouble`. A `cancel`, the end of the time, and the cancel of a task end the call of the model.

        agent = LLMAgent("helper", choose(), system_prompt="Be brief.", services=["answer"])
        asyncio.run(agent.run())

    Handlers that are registered with `on` and `on_delegate` come first.
    """

    def __init__(
        self,
        name: str,
        provider: Provider | None = None,
        *,
        system_prompt: str = "",
        max_tokens: int = 200,
        max_history: int = 20,
        total_time: float = 60.0,
        concurrency: int = 16,
        tools: BusTools | None = None,
        retry: RetryPolicy | None = None,
        histories: Histories | None = None,
        on_usage: OnUsage | None = None,
        bus: str | None = None,
        services: Sequence[str | ServiceDescription] = (),
        description: DFAgentDescription | None = None,
        topics: Sequence[str] = (),
        ownership: str = "",
        ephemeral: bool = False,
        limits: ClientLimits | None = None,
    ) -> None:
        """Make an agent; nothing is connected yet.

        Args:
            name: As `Agent`.
            provider: The model; what `choose()` finds by default.
            system_prompt: What the model is told before each talk; "" for nothing.
            max_tokens: Most tokens of one completion.
            max_history: Turns of a conversation that the model is shown, latest ones; 0 for none.
            total_time: Seconds for one question, with waits, retries and tools. Where the question's reply-by, or the
                task's deadline, comes earlier, the `failure` comes before it.
            concurrency: Questions that are answered at the same time, and as many tasks.
            tools: What the model may do on the bus; None for nothing.
            retry: What is tried again.
            histories: Where talks are remembered, in the place of ``max_history``; for other bounds.
            on_usage: Hears of the tokens of each completion, such as for metrics.
            bus: As `Agent`.
            services: As `Agent`.
            description: As `Agent`.
            topics: As `Agent`.
            ownership: As `Agent`.
            ephemeral: As `Agent`.
            limits: As `Agent`; ``concurrency`` counts in the place of theirs.

        Raises:
            InvalidArgument: A number is out of range, or as for `Agent`.
            ConfigurationError: As `choose`.
            InvalidName, MissingParameter: As `Agent`.
        """
        if not 0 < total_time < float("inf"):
            raise InvalidArgument(f"total_time {total_time}; expected seconds, more than 0", field="total_time")
        if concurrency < 1:
            raise InvalidArgument(f"concurrency {concurrency}; expected at least 1", field="concurrency")
        limits = replace(limits or ClientLimits(), concurrency=concurrency, task_concurrency=concurrency)
        super().__init__(
            name,
            bus=bus,
            services=services,
            description=description,
            topics=topics,
            ownership=ownership,
            ephemeral=ephemeral,
            limits=limits,
        )
        self.provider: Provider = provider if provider is not None else choose()
        """The model."""
        self._total_time = total_time
        self._bus_tools = tools
        self._usage = UsageTotals(on_usage)
        self._answering = Answering(
            self.provider,
            system_prompt=system_prompt,
            max_tokens=max_tokens,
            histories=histories if histories is not None else Histories(max_history),
            usage=self._usage,
            policy=retry,
        )
        self._answers: OrderedDict[tuple[str, str], str | Fail] = OrderedDict()
        """What was answered lately: a message whose answer found no room comes again, and is not paid for twice."""
        self._listens = False

    @property
    def usage(self) -> Mapping[str, ModelUsage]:
        """What the model did since the agent was made, by name of the model."""
        return self._usage.by_model()

    async def setup(self) -> None:
        """Open the model; what a subclass does here comes after ``await super().setup()``.

        Raises:
            ConfigurationError: The vendor's package is missing.
        """
        await self.provider.open()
        if not self._listens:
            # Not before: handlers that the author registered come first.
            self._listens = True
            for act in (Performative.REQUEST, Performative.QUERY_REF, Performative.QUERY_IF):
                self.on(act)(self._on_question)
            self.on_delegate(self._on_task)
        _logger.info("%s: answers with %s", self.name, self.provider.label)

    async def take_down(self) -> None:
        """Let the model go; what a subclass does here comes before ``await super().take_down()``."""
        await self.provider.aclose()

    # ---- messages --------------------------------------------------------------------------------------------------

    async def _on_question(self, message: Received) -> str | None:
        sender = message.sender.name if message.sender is not None else ""
        mark = (sender, message.id)
        answer = self._answers.get(mark)
        if answer is None:
            answer = await self._answer_to(message, sender)
            self._answers[mark] = answer
            if len(self._answers) > _REMEMBERED_ANSWERS:
                self._answers.popitem(last=False)
        if isinstance(answer, Fail):
            raise answer
        if message.language is None:
            return answer
        # The answer is plain text, whatever language the question was in.
        await self._handling.answer(message, Performative.INFORM, answer, language=None)
        return None

    async def _answer_to(self, message: Received, sender: str) -> str | Fail:
        question = message.content
        if isinstance(question, bytes) or not (question or "").strip():
            raise Refuse("no question: expected text as the content")
        assert question is not None
        deadline = self._deadline(message.reply_by)
        if deadline is None:
            text = "its reply-by had passed before its turn came; give it more time, or ask less at a time"
            return Fail(f"{Trouble.TIMEOUT}: {text}")
        tools = None
        if self._bus_tools is not None:
            chain = chain_of(self._full(sender), message.user_parameters)
            tools = self._bus_tools.for_question(self, chain, deadline, headers=answer_headers(message))
        key = Key(sender, message.conversation_id or "")
        try:
            return await self._answering.answer(key, question, deadline=deadline, tools=tools)
        except ModelError as error:
            _logger.warning("%s: no answer to %s in %r: %s", self.name, sender, message.conversation_id, error)
            return Fail(str(error))
        except Exception as error:
            # Not left to be delivered again, as with other agents: each time the model would be paid for.
            _logger.exception("%s: no answer to %s in %r", self.name, sender, message.conversation_id)
            return Fail(f"internal-error: {type(error).__name__}")

    # ---- tasks -----------------------------------------------------------------------------------------------------

    async def _on_task(self, task: TaskContext) -> str:
        parameters: dict[str, Any] = task.parameters
        question = task.description.strip()
        if parameters:
            question = f"{question}\n\nParameters: {json_text(parameters, 'parameters')}".strip()
        if not question:
            raise TaskRefused("expected a description: what is to be done, in words")
        deadline = self._deadline(task.deadline)
        if deadline is None:
            raise Fail(f"{Trouble.TIMEOUT}: its deadline left no time for an answer")
        tools = None
        if self._bus_tools is not None:
            tools = self._bus_tools.for_question(self, chain_of_task(task.task), deadline, task)
        try:
            return await self._answering.answer(None, question, deadline=deadline, tools=tools, on_text=task.output)
        except ModelError as error:
            _logger.warning("%s: no result of the task %s: %s", self.name, task.task_id, error)
            raise Fail(str(error)) from None

    # ---- time ------------------------------------------------------------------------------------------------------

    def _deadline(self, by: datetime | None) -> float | None:
        """Return when a question must be answered, by the clock of the loop; None when that has passed."""
        seconds = self._total_time
        if by is not None:
            left = by.timestamp() - time.time()
            seconds = min(seconds, left - min(_MOST_MARGIN_S, _MARGIN * left))
        return asyncio.get_running_loop().time() + seconds if seconds > 0 else None

    def _full(self, name: str) -> str:
        return name if "@" in name else f"{name}@{self.aid.partition('@')[2]}"
