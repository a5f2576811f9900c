"""The bus as a model's tools: search the directory, ask an agent, delegate a task and wait for its result.

Owns: what a model may do on the bus, for whom, how often and how long, and what it is told of what came. Leaves to others:
who asked whom (`llm.chain`), the talk with the model (`llm.answering`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gagent_grpc.acl.aid import split_aid
from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
from gagent_grpc.acp.free_json import json_text
from gagent_grpc.client.conversations import moment
from gagent_grpc.client.ids import new_id
from gagent_grpc.client.task_context import TaskContext
from gagent_grpc.errors import AnswerTimeout, BusError, InvalidArgument, shown
from gagent_grpc.llm.chain import attachment_with, parameters_with
from gagent_grpc.llm.chat import ChatMessage, Role, ToolCall, ToolSpec

if TYPE_CHECKING:
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.tasks import Task

_logger = logging.getLogger(__name__)

_ROLE = "role:"
_OWN = frozenset({"ams", "df"})
_LAST_WORDS_S = 2.0
_MAX_FOUND = 50

_WHOM = {
    "type": "string",
    "description": "Name of the agent as search_agents gives it, or role:TYPE for anyone who offers a service of that type.",
}
SEARCH = ToolSpec(
    "search_agents",
    "Find the agents that can be asked now, and the services that they offer.",
    {
        "type": "object",
        "properties": {
            "service": {"type": "string", "description": "Only agents that offer a service of exactly this type."}
        },
    },
)
ASK = ToolSpec(
    "ask_agent",
    "Ask another agent a question and get its answer. It knows nothing of this talk: say all that it needs.",
    {
        "type": "object",
        "properties": {"agent": _WHOM, "question": {"type": "string", "description": "The whole question."}},
        "required": ["agent", "question"],
    },
)
DELEGATE = ToolSpec(
    "delegate_task",
    "Give another agent a piece of work, wait until it is done, and get its result. For work that takes longer than an answer.",
    {
        "type": "object",
        "properties": {
            "agent": _WHOM,
            "description": {"type": "string", "description": "What is to be done, in words."},
            "parameters": {"type": "object", "description": "Arguments, where the agent wants some."},
        },
        "required": ["agent", "description"],
    },
)


class BusTools:
    """What an LLM agent's model may do on the bus.

    A model that is told to by a text may ask whomever it can: it is given those whom it needs. `LLMAgent` takes this as
    ``tools``; it holds no state, and several agents may share it.
    """

    def __init__(
        self,
        allow: Sequence[str],
        *,
        max_calls: int = 8,
        max_depth: int = 3,
        call_time: float = 30.0,
        max_result_chars: int = 20_000,
        ask: bool = True,
        delegate: bool = True,
    ) -> None:
        """Say what is allowed.

        Args:
            allow: Whom the model may ask: names, `name@platform`, `role:TYPE` for everybody who offers such a service in the
                DF, `*` for everybody. The agents `ams` and `df` are meant only where they are named.
            max_calls: Uses of a tool for one question.
            max_depth: Agents that may lead to a question, whoever asked first included, for its model to be given tools. One
                who is further down the chain answers by itself.
            call_time: Seconds for one use of a tool; the time of the question counts as well.
            max_result_chars: Characters of a result that the model is given.
            ask: Whether it may ask agents.
            delegate: Whether it may delegate tasks.

        Raises:
            InvalidArgument: Nobody is allowed, a name or a role is none, or a number is not positive.
        """
        if isinstance(allow, str) or not allow:
            raise InvalidArgument("nobody is allowed; expected a list of names, role:TYPE or '*'", field="allow")
        for one in allow:
            if one.startswith(_ROLE):
                if not one.removeprefix(_ROLE).strip():
                    raise InvalidArgument(f"{shown(one)}; expected role:TYPE", field="allow")
            elif one != "*":
                split_aid(one)
        for name, number in (
            ("max_calls", max_calls),
            ("max_depth", max_depth),
            ("call_time", call_time),
            ("max_result_chars", max_result_chars),
        ):
            if not number > 0:
                raise InvalidArgument(f"{name} {number}; expected more than 0", field=name)
        self.allow = tuple(allow)
        self.max_calls = max_calls
        self.max_depth = max_depth
        self.call_time = call_time
        self.max_result_chars = max_result_chars
        self.specs = (SEARCH, *([ASK] if ask else []), *([DELEGATE] if delegate else []))
        """The tools, as the model is shown them."""

    def for_question(
        self,
        agent: Agent,
        chain: Sequence[str],
        deadline: float,
        task: TaskContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> QuestionTools | None:
        """Return the tools for one question; None where too many agents led to it.

        Args:
            agent: Whose model it is.
            chain: Agents that led to the question, the one who asked last.
            deadline: When the question must be answered, by the clock of the loop.
            task: The task that the question is; None for a message.
            headers: Headers of a message that comes of the question, as `answer_headers` makes them; None for a task.
        """
        if len(chain) > self.max_depth:
            _logger.info("%s: %d agents led to a question; its model gets no tools", agent.name, len(chain))
            return None
        return QuestionTools(self, agent, chain, deadline, task, headers)


class _Unusable(Exception):
    """A use of a tool came to nothing; the text is for the model."""


class QuestionTools:
    """The tools for one question: a `Toolbox`."""

    def __init__(
        self,
        rules: BusTools,
        agent: Agent,
        chain: Sequence[str],
        deadline: float,
        task: TaskContext | None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._rules = rules
        self._agent = agent
        self._deadline = deadline
        self._task = task
        self._headers = headers
        self._chain = tuple(chain)
        self._used = 0
        self._mark = new_id()
        self._turns = 0
        self._tools: dict[str, Callable[[Mapping[str, Any], float], Awaitable[str]]] = {
            SEARCH.name: self._search,
            ASK.name: self._ask,
            DELEGATE.name: self._delegate,
        }

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """As `Toolbox.specs`."""
        return self._rules.specs

    @property
    def spent(self) -> bool:
        """As `Toolbox.spent`."""
        return self._used >= self._rules.max_calls

    async def use(self, calls: Sequence[ToolCall]) -> list[ChatMessage]:
        """As `Toolbox.use`."""
        if self._task is not None:
            await self._task.progress(note=f"uses {', '.join(sorted({one.name for one in calls}))}"[:200])
        async with asyncio.TaskGroup() as group:
            using = [group.create_task(self._use_one(one, self._take())) for one in calls]
        return [one.result() for one in using]

    def _take(self) -> bool:
        self._used += 1
        return self._used <= self._rules.max_calls

    async def _use_one(self, call: ToolCall, is_left: bool) -> ChatMessage:
        try:
            text = await self._run(call, is_left)
        except _Unusable as error:
            return ChatMessage(
                Role.TOOL, f"error: {error}"[: self._rules.max_result_chars], call_id=call.id, is_error=True
            )
        most = self._rules.max_result_chars
        if len(text) > most:
            text = f"{text[:most]}\n[cut: {len(text):,} characters in all]"
        return ChatMessage(Role.TOOL, text, call_id=call.id)

    async def _run(self, call: ToolCall, is_left: bool) -> str:
        if not is_left:
            raise _Unusable(f"{self._rules.max_calls} uses of tools are made; answer with what you have")
        tool = self._tools.get(call.name)
        names = [one.name for one in self.specs]
        if tool is None or call.name not in names:
            raise _Unusable(f"no tool {shown(call.name)}; there are {', '.join(names)}")
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            raise _Unusable("the arguments are no JSON") from None
        if not isinstance(arguments, dict):
            raise _Unusable("the arguments are no JSON object")
        left = min(self._rules.call_time, self._deadline - asyncio.get_running_loop().time())
        if left <= 0:
            raise _Unusable("no time is left; answer with what you have")
        try:
            return await tool(arguments, left)
        except BusError as error:
            # An agent that says no says it to the model.
            raise _Unusable(str(error)) from None

    # ---- tools -----------------------------------------------------------------------------------------------------

    async def _search(self, arguments: Mapping[str, Any], left: float) -> str:
        service = arguments.get("service") or None
        if service is not None and not isinstance(service, str):
            raise _Unusable("service is no text")
        found: dict[str, list[str]] = {}
        for template in self._templates(service):
            for entry in await self._agent.df.search(template, max_results=_MAX_FOUND):
                offered = [one.type for one in entry.services if one.type]
                if entry.name and self._may_ask(entry.name) and self._allows(entry.name, offered):
                    found[entry.name] = offered
        listed = [{"agent": name, "services": offered} for name, offered in found.items()][:_MAX_FOUND]
        return json.dumps({"agents": listed}, ensure_ascii=False)

    def _templates(self, service: str | None) -> list[DFAgentDescription]:
        """Return the patterns of those who may be asked and offer ``service``: a directory may hold far more than them."""
        services = (ServiceDescription(type=service),) if service is not None else ()
        allow = self._rules.allow
        if "*" in allow:
            return [DFAgentDescription(services=services)]
        wanted = [
            DFAgentDescription(name=self._full(one), services=services) for one in allow if not one.startswith(_ROLE)
        ]
        types = {one.removeprefix(_ROLE): None for one in allow if one.startswith(_ROLE)}
        wanted += [
            DFAgentDescription(
                services=tuple(ServiceDescription(type=one) for one in dict.fromkeys((kind, service or kind)))
            )
            for kind in types
        ]
        return wanted

    async def _ask(self, arguments: Mapping[str, Any], left: float) -> str:
        question = _text(arguments, "question")
        target = await self._target(arguments)
        agent = self._agent
        conversation_id = f"{self._mark}-{target}"
        try:
            answer = await agent.request(
                target,
                question,
                timeout=left,
                conversation_id=conversation_id,
                reply_by=moment(time.time() + left),
                user_parameters=parameters_with(self._next_chain),
                headers=self._headers,
            )
        except (AnswerTimeout, asyncio.CancelledError):
            # Nobody waits any more: whoever was asked need not go on.
            await self._call_off(agent.send(target, "cancel", conversation_id=conversation_id))
            raise
        if isinstance(answer.content, bytes):
            raise _Unusable(f"{target} answered with {len(answer.content):,} bytes that are no text")
        return answer.content or "(an answer without content)"

    async def _delegate(self, arguments: Mapping[str, Any], left: float) -> str:
        description = _text(arguments, "description")
        parameters = arguments.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise _Unusable("parameters are no JSON object")
        target = await self._target(arguments)
        delegate = self._agent.delegate if self._task is None else self._task.delegate
        handle: Task | None = None
        try:
            handle = await delegate(
                target,
                description,
                parameters,
                deadline=left,
                attachments=[attachment_with(self._next_chain)],
                timeout=left,
            )
            result = await handle.result(timeout=left)
        except (AnswerTimeout, asyncio.CancelledError):
            if handle is not None:
                await self._call_off(handle.cancel("nobody waits for it any more"))
            raise
        return result if isinstance(result, str) else json_text(result, "result")

    async def _call_off(self, ending: Awaitable[object]) -> None:
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await ending

    # ---- whom ------------------------------------------------------------------------------------------------------

    @property
    def _next_chain(self) -> tuple[str, ...]:
        return (*self._chain, self._agent.aid)

    def _full(self, name: str) -> str:
        return name if "@" in name else f"{name}@{self._agent.aid.partition('@')[2]}"

    def _may_ask(self, name: str) -> bool:
        """Whether nobody would wait for himself."""
        return self._full(name) not in {self._full(one) for one in self._next_chain}

    def _allows(self, name: str, services: Sequence[str]) -> bool:
        full, allow = self._full(name), self._rules.allow
        if full in {self._full(one) for one in allow if one != "*" and not one.startswith(_ROLE)}:
            return True
        if full.partition("@")[0] in _OWN:
            return False
        return "*" in allow or any(f"{_ROLE}{service}" in allow for service in services)

    async def _target(self, arguments: Mapping[str, Any]) -> str:
        """Return the name of the agent that is meant.

        A role is looked up here and not on the way: who serves it might be this agent, or one who waits for it.
        """
        named = _text(arguments, "agent")
        if named.startswith(_ROLE):
            service = named.removeprefix(_ROLE)
            entries = await self._agent.df.search(service, max_results=_MAX_FOUND) if service else []
            names = [one.name for one in entries if one.name and self._may_ask(one.name)]
            names = [name for name in names if self._allows(name, [service])]
            if not names:
                raise _Unusable(f"nobody who may be asked offers {shown(service)}; search_agents shows who is there")
            self._turns += 1
            return names[self._turns % len(names)]
        try:
            split_aid(named)
        except BusError as error:
            raise _Unusable(str(error)) from None
        if not self._may_ask(named):
            whom = "this agent itself" if self._full(named) == self._agent.aid else "waiting for this very answer"
            raise _Unusable(f"{named} is {whom}; ask somebody else, or answer yourself")
        if not await self._is_allowed(named):
            raise _Unusable(f"{named} may not be asked; search_agents shows who may")
        return named

    async def _is_allowed(self, name: str) -> bool:
        if self._allows(name, []):
            return True
        for role in (one for one in self._rules.allow if one.startswith(_ROLE)):
            offers = (ServiceDescription(type=role.removeprefix(_ROLE)),)
            if await self._agent.df.search(DFAgentDescription(name=self._full(name), services=offers)):
                return self._full(name).partition("@")[0] not in _OWN
        return False


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise _Unusable(f"{name} is missing; expected text")
    return value.strip() if name == "agent" else value
