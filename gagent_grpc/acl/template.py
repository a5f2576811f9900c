"""Message templates: which messages a handler or a behaviour is for, by any ACL parameter, combined by `&`, `|` and `~`.

Owns: the comparison of a message with what is wanted of it. Pure. Leaves to others: who gets a message when several
templates fit it (`client.handlers`, `client.behaviours`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from gagent_grpc.acl.aid import AgentIdentifier, split_aid
from gagent_grpc.acl.message import PARAMETERS, ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.errors import InvalidArgument

_Test = Callable[[ACLMessage, str], bool]
"""(message, own platform) -> whether it fits."""
_USER_PREFIX = "X-"
_NAMED = tuple(name for name in PARAMETERS if name != "performative")
_TEXTS = frozenset({"language", "encoding", "ontology", "protocol", "conversation_id", "reply_with", "in_reply_to"})


class MessageTemplate:
    """What a message must be like. A value: compiled once, compared and hashed by what it says.

        orders = MessageTemplate(performative="request", ontology="shop") & ~MessageTemplate(sender="tester")

    A parameter that is not named does not matter; every one that is named must fit:

    - ``performative``: the act.
    - ``sender``: the agent. `name` and `name@platform` are the same agent where `platform` is the reader's own.
    - ``receivers``, ``reply_to``: an agent or several; each must be among the message's, which may have more.
    - ``content``: equal; text and bytes are never equal.
    - ``language``, ``encoding``, ``ontology``, ``protocol``, ``conversation_id``, ``reply_with``, ``in_reply_to``: equal,
      case included.
    - ``reply_by``: True for any time, False for none, or the very time (aware).
    - ``user_parameters``: a mapping; each of its entries must be in the message's, which may have more. Single ones can
      be named as they are: ``MessageTemplate(**{"X-priority": "high"})``.

    None (and an empty set) means that the parameter must be absent, which is different from empty text; so
    ``~MessageTemplate(reply_with=None)`` is any message with a `reply_with`. Without parameters every message fits.

    Spec: FIPA SC00061 §2 (the parameters); sets are matched as in SC00023, by containment.
    """

    __slots__ = ("_form", "_parts", "_test", "names_agents")

    names_agents: bool
    """Whether the own platform matters to it."""

    def __init__(self, performative: str | Performative | None = None, **parameters: Any) -> None:
        """Make a template of parameters that must all fit.

        Args:
            performative: The act; every act when absent.
            parameters: Further parameters by name, with the values that they must have.

        Raises:
            UnknownPerformative: None of FIPA's 22 acts.
            InvalidArgument: A parameter that ACL messages do not have, or a value that it cannot have.
            InvalidName: An agent's name is none.
        """
        wanted: list[tuple[str, Any]] = []
        tests: list[_Test] = []
        if performative is not None:
            act = performative if isinstance(performative, Performative) else Performative.parse(performative)
            wanted.append(("performative", act))
            tests.append(_act_test(act))
        user: dict[str, str | None] = {}
        for name, value in parameters.items():
            if name.startswith(_USER_PREFIX):
                user[name] = _text(name, value)
            elif name not in _NAMED:
                expected = ", ".join(_NAMED)
                raise InvalidArgument(
                    f"{name!r} is no ACL parameter; expected one of {expected}, or a name in {_USER_PREFIX}", field=name
                )
        # In the specification's order, so that the order of the call makes no difference.
        for name in _NAMED:
            if name in parameters:
                normal = _normal(name, parameters[name])
                wanted.append((name, normal))
                tests.append(_test_of(name, normal))
        if user:
            wanted.append(("X-", tuple(sorted(user.items()))))
            tests.append(_user_test(user))
        self._form = "parameters"
        self._parts: tuple[Any, ...] = tuple(wanted)
        self._test = _all(tests)
        self.names_agents = any(name in _AGENTS for name, _ in wanted)

    @classmethod
    def matching(cls, function: Callable[[ACLMessage], object]) -> MessageTemplate:
        """Return a template that a message fits when ``function(message)`` is true; two are equal with the same function.

        The function must be quick and must not wait; what it raises counts as a failure of whoever handles the message.

        Raises:
            InvalidArgument: Not callable, or a coroutine function, whose coroutine would always be true.
        """
        if not callable(function):
            raise InvalidArgument(f"{type(function).__name__}; expected a function of a message", field="function")
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            raise InvalidArgument("an async function; expected a plain one, which answers at once", field="function")
        return cls._made("matching", (function,), lambda message, platform: bool(function(message)), False)

    @classmethod
    def _made(cls, form: str, parts: tuple[Any, ...], test: _Test, names_agents: bool) -> MessageTemplate:
        made = cls.__new__(cls)
        made._form, made._parts, made._test, made.names_agents = form, parts, test, names_agents
        return made

    def matches(self, message: ACLMessage, platform: str = "") -> bool:
        """Return whether ``message`` fits.

        Args:
            message: Any ACL message.
            platform: The reader's own platform, whose agents have bare names, too; "" takes names as they are written.
        """
        return self._test(message, platform)

    # ---- combining -------------------------------------------------------------------------------------------------

    def __and__(self, other: object) -> MessageTemplate:
        return self._joined("and", other)

    def __or__(self, other: object) -> MessageTemplate:
        return self._joined("or", other)

    def __invert__(self) -> MessageTemplate:
        if self._form == "not":
            found: MessageTemplate = self._parts[0]
            return found
        test = self._test
        return self._made("not", (self,), lambda message, platform: not test(message, platform), self.names_agents)

    def _joined(self, form: str, other: object) -> MessageTemplate:
        if not isinstance(other, MessageTemplate):
            return NotImplemented  # type: ignore[no-any-return]  # [no-any-return]: what an operator returns then.
        # Flat, so that a long chain costs no deeper calls, and is the same value however it was bracketed.
        parts = tuple(part for one in (self, other) for part in (one._parts if one._form == form else (one,)))
        tests = [part._test for part in parts]
        test = _all(tests) if form == "and" else _any(tests)
        return self._made(form, parts, test, any(part.names_agents for part in parts))

    def __bool__(self) -> NoReturn:
        # `a and b` would be b alone, and nobody would notice.
        raise TypeError("a MessageTemplate is neither true nor false; combine templates with & | ~, or call matches()")

    # ---- value -----------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageTemplate):
            return NotImplemented
        return self._form == other._form and self._parts == other._parts

    def __hash__(self) -> int:
        return hash((self._form, self._parts))

    def __repr__(self) -> str:
        if self._form == "parameters":
            shown = [f"{name}={_shown(value)}" for name, value in self._parts if name != "X-"]
            user = next((dict(value) for name, value in self._parts if name == "X-"), None)
            if user:
                shown.append(f"**{user!r}")
            return f"MessageTemplate({', '.join(shown)})"
        if self._form == "matching":
            function = self._parts[0]
            return f"MessageTemplate.matching({getattr(function, '__qualname__', repr(function))})"
        inner = [f"({part!r})" if part._form in ("and", "or") else repr(part) for part in self._parts]
        return f"~{inner[0]}" if self._form == "not" else (" & " if self._form == "and" else " | ").join(inner)


def _shown(value: object) -> str:
    if isinstance(value, Performative):
        return repr(value.text)
    if isinstance(value, tuple) and value and isinstance(value[0], AgentIdentifier):
        return repr([one.name for one in value])
    if isinstance(value, tuple) and value:
        return repr(dict(value))
    return repr(value.name if isinstance(value, AgentIdentifier) else value)


# ---- what is wanted, in normal form ------------------------------------------------------------------------------------


def _normal(name: str, value: Any) -> Any:
    """Return a wanted value in the form in which two templates compare equal; None and () stand for absent.

    Raises:
        InvalidArgument: The parameter cannot have this value.
    """
    if name in _TEXTS:
        return _text(name, value)
    if name == "content":
        if value is None or isinstance(value, (str, bytes)):
            return value
        raise _wrong(name, value, "text, bytes or None")
    if name == "sender":
        return None if value is None else _agent(name, value)
    if name in _AGENTS:
        if value is None:
            return ()
        if isinstance(value, (str, AgentIdentifier)):
            return (_agent(name, value),)
        if not isinstance(value, Iterable):
            raise _wrong(name, value, "an agent, several, or None")
        # Sorted and once each, since it is a set.
        return tuple(sorted({_agent(name, one) for one in value}, key=lambda one: one.name))
    if name == "reply_by":
        if value is None or value is False:
            return None
        if value is True or (isinstance(value, datetime) and value.tzinfo is not None):
            return value
        raise _wrong(name, value, "True, False, or a time with a time zone")
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise _wrong(name, value, f"a mapping of names in {_USER_PREFIX} to texts, or None")
    return tuple(sorted((str(key), _text(str(key), one)) for key, one in value.items()))


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _wrong(name, value, "text or None")


def _agent(name: str, value: Any) -> AgentIdentifier:
    if not isinstance(value, (str, AgentIdentifier)):
        raise _wrong(name, value, "an agent's name")
    agent = AgentIdentifier.of(value)
    split_aid(agent.name)
    return agent


def _wrong(name: str, value: object, expected: str) -> InvalidArgument:
    return InvalidArgument(f"{name}: a value of type {type(value).__name__}; expected {expected}", field=name)


_AGENTS = ("sender", "receivers", "reply_to")


# ---- tests -------------------------------------------------------------------------------------------------------------


def _all(tests: list[_Test]) -> _Test:
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        first, second = tests
        return lambda message, platform: first(message, platform) and second(message, platform)
    kept = tuple(tests)

    def test(message: ACLMessage, platform: str) -> bool:
        for one in kept:  # noqa: SIM110  # A generator costs twice as much, and this runs for each message.
            if not one(message, platform):
                return False
        return True

    return test


def _any(tests: list[_Test]) -> _Test:
    kept = tuple(tests)

    def test(message: ACLMessage, platform: str) -> bool:
        for one in kept:  # noqa: SIM110  # As in `_all`.
            if one(message, platform):
                return True
        return False

    return test


def _act_test(act: Performative) -> _Test:
    return lambda message, platform: message.performative is act


def _test_of(name: str, value: Any) -> _Test:
    if name == "sender":
        if value is None:
            return lambda message, platform: message.sender is None
        same = _name_test(value.name)
        return lambda message, platform: message.sender is not None and same(message.sender.name, platform)
    if name in _AGENTS:
        return _agents_test(name, value)
    if name == "reply_by" and value is True:
        return lambda message, platform: message.reply_by is not None
    if name == "user_parameters":
        if not value:
            return lambda message, platform: not message.user_parameters
        return _user_test(dict(value))
    if value is None:
        return lambda message, platform: getattr(message, name) is None
    kind = type(value)

    def equal(message: ACLMessage, platform: str) -> bool:
        actual = getattr(message, name)
        # Of one kind first: under `-bb`, text and bytes must not even be compared.
        return isinstance(actual, kind) and bool(actual == value)

    return equal


def _agents_test(name: str, wanted: tuple[AgentIdentifier, ...]) -> _Test:
    if not wanted:
        return lambda message, platform: not getattr(message, name)
    tests = tuple(_name_test(one.name) for one in wanted)

    def contained(message: ACLMessage, platform: str) -> bool:
        there = [one.name for one in getattr(message, name)]
        return all(any(same(found, platform) for found in there) for same in tests)

    return contained


def _name_test(wanted: str) -> Callable[[str, str], bool]:
    """Return a comparison of agent names: who is of the own platform may come, and may be meant, under either name."""
    local, at, home = wanted.partition("@")
    if at:
        return lambda found, platform: found == wanted or (found == local and platform == home)
    return lambda found, platform: found == wanted or (platform != "" and found == f"{wanted}@{platform}")


def _user_test(wanted: Mapping[str, str | None]) -> _Test:
    items = tuple(wanted.items())

    def contained(message: ACLMessage, platform: str) -> bool:
        there = message.user_parameters
        return all(there.get(name) == value for name, value in items)

    return contained
