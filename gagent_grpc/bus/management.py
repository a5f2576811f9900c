"""`ams` and `df` as agents: they answer ACL requests of the ontology fipa-agent-management, in fipa-sl0 or JSON.

Owns: the conversation. What is asked is carried out by `bus.platform`, as for a call. FIPA's order of tests holds: is
the act understood, is the function there, is it allowed, is it well formed. An action that is done at once is answered
without an `agree` before it (SC00023 §6, SC00026). The `df` takes a `subscribe`, too, whose content is a search, and the
`cancel` of it (SC00035); what matches is told by `bus.subscriptions`, all of it, whatever max-results says.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, assert_never

from gagent_grpc.acl import management_json, sl0
from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.descriptions import AMSAgentDescription, DFAgentDescription
from gagent_grpc.acl.management import ONTOLOGY, Item, ManagementFunction, ManagementRequest
from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import NEVER_ANSWERED, Performative
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusError,
    InvalidArgument,
    MissingParameter,
    ResourceExhausted,
    Unauthorised,
    UnrecognisedParameterValue,
    UnsupportedFunction,
)

if TYPE_CHECKING:
    from gagent_grpc.bus.ams import AgentRecord
    from gagent_grpc.bus.platform import Caller, Platform

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

Found = Iterable[Item] | None
"""What was found, made one by one as it is written; or None for "done"."""


class ManagementAgents:
    """The two agents of the platform itself."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def answer(self, name: str, message: ACLMessage, sender: str) -> ACLMessage | None:
        """Return the answer of ``name`` (`ams` or `df`) to a message from ``sender``; None when it needs none."""
        if message.performative in NEVER_ANSWERED:
            return None
        actor = f"{name}@{self._platform.name}"
        form = _Sl0 if _speaks_sl0(message) else _Json
        written = form(message, actor, self._platform.limits.max_message_bytes)
        if message.performative not in _ACTS[name]:
            return self._reply(actor, message, Performative.NOT_UNDERSTOOD, written.unsupported_act(_ACTS[name]))
        if message.ontology is not None and message.ontology.lower() != ONTOLOGY:
            return self._reply(
                actor, message, Performative.NOT_UNDERSTOOD, written.unsupported_value("ontology", message.ontology)
            )
        try:
            caller = self._platform.caller_for(sender)
            if message.performative is Performative.SUBSCRIBE:
                self._subscribe(message, written, caller)
                return None
            if message.performative is Performative.CANCEL:
                content = self._platform.subscriptions.cancel(_agent_of(caller), message)
            else:
                request = written.request(message, self._platform.now())
                outcome = self._ams(request, caller) if name == "ams" else self._df(request, caller)
                content = written.outcome(outcome)
        except BusError as error:
            act = Performative.parse(error.act) if error.act else Performative.FAILURE
            return self._reply(actor, message, act, written.exception(error))
        except Exception:
            # Whatever a stranger writes must not end the stream that it came on.
            _log.exception("a request to %s failed, of %s", actor, sender)
            hidden = BusError("internal error; the log of the bus has more")
            return self._reply(actor, message, Performative.FAILURE, written.exception(hidden))
        return self._reply(actor, message, Performative.INFORM, content)

    def _ams(self, request: ManagementRequest, caller: Caller) -> Found:
        platform = self._platform
        described = (
            request.description if isinstance(request.description, AMSAgentDescription) else AMSAgentDescription()
        )
        function = request.function
        if function is ManagementFunction.SEARCH:
            return (record.description() for record in platform.search_agents(described, request.constraints))
        if function is ManagementFunction.GET_DESCRIPTION:
            return (platform.get_description(),)
        if function is ManagementFunction.REGISTER:
            if described.name is None:
                raise MissingParameter("ams-agent-description", "name")
            _, existed = platform.register(described.name, described.ownership or "", caller)
            if existed:
                raise AgentAlreadyRegistered(described.name)
            return None
        if function is ManagementFunction.DEREGISTER:
            platform.deregister(described.name or _own_name(caller), caller)
            return None
        if function is ManagementFunction.MODIFY:
            if described.name is None:
                raise MissingParameter("ams-agent-description", "name")
            return (platform.modify_agent(described, caller).description(),)
        assert_never(function)

    def _df(self, request: ManagementRequest, caller: Caller) -> Found:
        platform = self._platform
        described = request.description if isinstance(request.description, DFAgentDescription) else DFAgentDescription()
        function = request.function
        if function is ManagementFunction.SEARCH:
            return platform.search_descriptions(described, request.constraints)
        if function is ManagementFunction.REGISTER:
            return (platform.register_description(described, caller),)
        if function is ManagementFunction.MODIFY:
            return (platform.modify_description(described, caller),)
        if function is ManagementFunction.DEREGISTER:
            platform.deregister_description(described.name, caller)
            return None
        if function is ManagementFunction.GET_DESCRIPTION:
            raise UnsupportedFunction("get-description is a function of the AMS; the DF has search")
        assert_never(function)

    def _subscribe(self, message: ACLMessage, written: _Sl0 | _Json, caller: Caller) -> None:
        """Begin a subscription; the informs about it are its answers."""
        record = _agent_of(caller)
        request = written.request(message, self._platform.now())
        if request.function is not ManagementFunction.SEARCH:
            raise UnrecognisedParameterValue("subscribe", "content", f"is {request.function.value}; expected search")
        described = request.description if isinstance(request.description, DFAgentDescription) else DFAgentDescription()
        self._platform.subscribe_to_descriptions(record, message, described, written)

    @staticmethod
    def _reply(actor: str, message: ACLMessage, act: Performative, content: str) -> ACLMessage:
        return message.create_reply(
            act,
            content,
            sender=AgentIdentifier(actor),
            ontology=message.ontology or ONTOLOGY,
            reply_with=None,
            user_parameters={AUTOMATIC: "true"},
        )


_ACTS = {
    "ams": (Performative.REQUEST,),
    "df": (Performative.REQUEST, Performative.SUBSCRIBE, Performative.CANCEL),
}
"""Acts that each agent understands."""


def _own_name(caller: Caller) -> str:
    if caller.agent is None:
        raise Unauthorised("nobody in particular cannot deregister itself; name an agent")
    return caller.agent.name


def _agent_of(caller: Caller) -> AgentRecord:
    if caller.agent is None:
        raise Unauthorised("nobody in particular has no mailbox, in which to be told; open a session")
    return caller.agent


def _speaks_sl0(message: ACLMessage) -> bool:
    if message.language is not None:
        return message.language.lower().startswith("fipa-sl")
    return isinstance(message.content, str) and message.content.lstrip().startswith("(")


def _text_of(message: ACLMessage) -> str:
    if not isinstance(message.content, str):
        what = "bytes" if message.content is not None else "nothing"
        raise InvalidArgument(f"the content is {what}; expected text in fipa-sl0 or JSON", field="content")
    return message.content


def _fitting(results: Iterable[_Result], size_of: Callable[[_Result], int], limit: int) -> list[_Result]:
    """Return all results, whose sizes in characters must come to no more than ``limit``.

    Raises:
        ResourceExhausted: They do not; the text says how many fit. What comes after them is not even looked at.
    """
    fitting: list[_Result] = []
    size = 0
    for one in results:
        size += size_of(one)
        if size > limit:
            raise ResourceExhausted(
                f"the answer would be over {limit:,} bytes: {len(fitting):,} results fit a message; ask for no more with "
                "max-results, or for a narrower description"
            )
        fitting.append(one)
    return fitting


class _Sl0:
    """A request or a subscription and its answers in fipa-sl0. Keeps nothing of the message but its action."""

    def __init__(self, message: ACLMessage, actor: str, limit: int) -> None:
        """Make the form of the answers to ``message``; none of them has more than ``limit`` characters."""
        self._act = message.performative
        self._actor = actor
        self._limit = limit
        self._action: sl0.Action | None = None

    def request(self, message: ACLMessage, now: float) -> ManagementRequest:
        subscribes = message.performative is Performative.SUBSCRIBE
        parse = sl0.parse_subscription if subscribes else sl0.parse_action
        action = parse(_text_of(message))
        # Answers repeat the action; thousands of addresses of the actor would be written with each of them.
        self._action = replace(action, actor=AgentIdentifier(action.actor.name))
        asked = sl0.request_of(action, now=now)
        # Whoever is named as the actor, the message came here.
        return ManagementRequest(self._actor, asked.function, asked.description, asked.constraints)

    def outcome(self, found: Found) -> str:
        action = self._action
        assert action is not None
        if found is None:
            return sl0.print_answer(sl0.Done(action))
        # A short action, since what a stranger asks may be long and is printed here once for each result.
        short = sl0.Action(AgentIdentifier(self._actor), action.function)
        around = len(sl0.print_answer(sl0.Result(short, ())))

        def size_of(one: Item) -> int:
            return len(sl0.print_answer(sl0.Result(short, (one,)))) - around

        return sl0.print_answer(sl0.Result(action, tuple(_fitting(found, size_of, self._limit))))

    def informed(self, found: Iterable[DFAgentDescription]) -> str:
        return self.outcome(found)

    def cancelled(self) -> str:
        return self.outcome(None)

    def exception(self, error: BusError) -> str:
        return sl0.print_answer(sl0.Exceptional(self._action, sl0.reason_of(error, self._action)))

    def unsupported_act(self, expected: Iterable[Performative]) -> str:
        return sl0.print_answer(sl0.Exceptional(None, sl0.Reason("unsupported-act", (self._act.text,))))

    def unsupported_value(self, parameter: str, value: str) -> str:
        return sl0.print_answer(sl0.Exceptional(None, sl0.Reason("unsupported-value", (parameter,))))


class _Json:
    """The same in JSON: `{"result": [...]}`, `{"done": FUNCTION}` or `{"error": REASON, ...}`."""

    def __init__(self, message: ACLMessage, actor: str, limit: int) -> None:
        self._act = message.performative
        self._actor = actor
        self._limit = limit
        self._function = ""

    def request(self, message: ACLMessage, now: float) -> ManagementRequest:
        asked = management_json.parse_request(_text_of(message), actor=self._actor)
        self._function = asked.function.value
        return asked

    def outcome(self, found: Found) -> str:
        if found is None:
            return json.dumps({"done": self._function})
        results = (json.dumps(management_json.description_to_json(one)) for one in found)
        return f'{{"result": [{", ".join(_fitting(results, len, self._limit))}]}}'

    def informed(self, found: Iterable[DFAgentDescription]) -> str:
        return self.outcome(found)

    def cancelled(self) -> str:
        return json.dumps({"done": "cancel"})

    def exception(self, error: BusError) -> str:
        return json.dumps({"error": error.reason, "detail": str(error)})

    def unsupported_act(self, expected: Iterable[Performative]) -> str:
        detail = f"{self._act} is not served; expected {' or '.join(map(str, expected))}"
        return json.dumps({"error": "unsupported-act", "detail": detail})

    def unsupported_value(self, parameter: str, value: str) -> str:
        return json.dumps(
            {"error": "unsupported-value", "detail": f"{parameter} {value!r}; expected {ONTOLOGY!r} or none"}
        )
