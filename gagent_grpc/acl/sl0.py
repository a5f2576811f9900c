"""The content language fipa-sl0 (SC00008), as far as requests to the AMS and the DF and their answers need it.

What is said is an `Action`, or one of the answers `Agreed`, `Done`, `Result` and `Exceptional`. An action is read in two
steps, because SC00023 tests in this order: `parse_action` understands it, whatever its function; `request_of` says what
the AMS or DF is asked for.

    ((action (agent-identifier :name df@p)
        (search (df-agent-description :services (set (service-description :type summarise)))
                (search-constraints :max-results -1))))

Owns: that form. Leaves to others: s-expressions themselves (`acl.sexpr`), the same requests in JSON
(`acl.management_json`), and the rest of SL: formulas, quantifiers, modal operators.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gagent_grpc.acl.aid import AgentIdentifier, split_aid
from gagent_grpc.acl.descriptions import (
    AMSAgentDescription,
    DFAgentDescription,
    LifeCycleState,
    PlatformDescription,
    PlatformService,
    Property,
    SearchConstraints,
    ServiceDescription,
)
from gagent_grpc.acl.management import Description, Item, ManagementFunction, ManagementRequest
from gagent_grpc.acl.sexpr import (
    LANGUAGE,
    MAX_DEPTH,
    Expression,
    Keyword,
    Text,
    Word,
    constant,
    parse_expression,
    print_expression,
)
from gagent_grpc.errors import (
    BusError,
    InvalidArgument,
    MissingParameter,
    UnrecognisedParameterValue,
    UnsupportedFunction,
)

MAX_ACTION_CHARS = 131_072
"""Longest text of one action: reading a longer one would hold up everybody else's messages."""


@dataclass(frozen=True, slots=True)
class Action:
    """`(action actor (function arguments...))`: what an agent is asked to do, whether or not it has the function."""

    actor: AgentIdentifier
    function: str
    """In lower case."""
    arguments: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Agreed:
    """Content of an `agree`: the action, and the condition `true`."""

    action: Action


@dataclass(frozen=True, slots=True)
class Done:
    """Content of an `inform`: the action was done."""

    action: Action


@dataclass(frozen=True, slots=True)
class Result:
    """Content of an `inform`: what the action found."""

    action: Action
    items: tuple[Item, ...]
    """In the order of the directory."""


@dataclass(frozen=True, slots=True)
class Reason:
    """An exception proposition of SC00023 §6.3, such as `(missing-parameter df-agent-description name)`."""

    word: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exceptional:
    """Content of a `refuse`, `failure` or `not-understood`: the action and why not."""

    action: Action | None
    """None when the content could not be read as an action."""
    reason: Reason


Answer = Agreed | Done | Result | Exceptional


def parse_action(text: str) -> Action:
    """Return the action that the content of a `request` states; its function and arguments are not judged.

    Raises:
        InvalidArgument: ``text`` is not one action, or too long.
        InvalidName: The actor's name is not valid.
    """
    if len(text) > MAX_ACTION_CHARS:
        raise InvalidArgument(
            f"{LANGUAGE}: {len(text):,} characters; the limit is {MAX_ACTION_CHARS:,}", field="content"
        )
    return _action(_unwrapped(parse_expression(text)))


def parse_subscription(text: str) -> Action:
    """Return the action whose results the content of a `subscribe` wants to be told.

    That is an action by itself, or as SC00035 has it the expression `(iota ?x (result (action ...) ?x))`.

    Raises:
        InvalidArgument: As for `parse_action`.
        InvalidName: As for `parse_action`.
    """
    if len(text) > MAX_ACTION_CHARS:
        raise InvalidArgument(
            f"{LANGUAGE}: {len(text):,} characters; the limit is {MAX_ACTION_CHARS:,}", field="content"
        )
    match _unwrapped(parse_expression(text, max_depth=MAX_DEPTH + 2)):
        case (Word(), Word(), (Word(), stated, Word()) as result) as wanted if (
            _head(wanted) in ("iota", "any", "all") and _head(result) == "result"
        ):
            return _action(stated)
        case stated:
            return _action(stated)


def print_action(action: Action) -> str:
    """Return the content of a `request`."""
    return print_expression((_action_expression(action),))


def request_of(action: Action, *, now: float | None = None) -> ManagementRequest:
    """Return what ``action`` asks of the AMS or the DF.

    Parameter names, names of objects and functions are read without case. The spelling of older platforms is read
    too: `:protocol`, `:ontology`, `:language`, and one value where a set is expected. `X-` parameters are passed over.

    Args:
        action: As `parse_action` returns it.
        now: Unix seconds, for a lease that ends at a date; None refuses such a lease.

    Raises:
        UnsupportedFunction: There is no such function.
        MissingParameter: An argument that the function needs is absent.
        UnrecognisedParameterValue: A parameter is unknown or has a value that cannot be understood.
        InvalidName: A name is not valid.
    """
    function = ManagementFunction.parse(action.function)
    description: Description | None = None
    constraints: SearchConstraints | None = None
    for argument in action.arguments:
        if _head(argument) == "search-constraints" and constraints is None:
            constraints = _constraints(argument)
        elif _head(argument) in _DESCRIPTIONS and description is None:
            description = _description(argument, now)
        else:
            why = f"cannot be {_shown(argument)}; expected one description, and search-constraints for a search"
            raise UnrecognisedParameterValue(function.value, "argument", why)
    return ManagementRequest.of(action.actor.name, function, description, constraints)


def action_of(request: ManagementRequest) -> Action:
    """Return ``request`` as an action, which `request_of` reads."""
    arguments: list[Expression] = []
    if request.description is not None:
        arguments.append(_description_expression(request.description))
    if request.function is ManagementFunction.SEARCH:
        arguments.append(_constraints_expression(request.constraints))
    return Action(AgentIdentifier(request.actor), request.function.value, tuple(arguments))


def parse_request(text: str, *, now: float | None = None) -> ManagementRequest:
    """Return `request_of` the `parse_action` of ``text``."""
    return request_of(parse_action(text), now=now)


def print_request(request: ManagementRequest) -> str:
    """Return ``request`` as the content of an ACL `request`."""
    return print_action(action_of(request))


def parse_answer(text: str, *, now: float | None = None) -> Answer:
    """Return what the content of an answer of an AMS or a DF says.

    Args:
        text: The content.
        now: As for `request_of`.

    Raises:
        InvalidArgument: It is none of the forms of `Answer`.
    """
    whole = parse_expression(text, max_depth=MAX_DEPTH + 1)
    if isinstance(whole, tuple) and len(whole) == 2 and _head(whole[0]) == "action":
        action = _action(whole[0])
        reason = _reason(whole[1])
        return Agreed(action) if reason == Reason("true") else Exceptional(action, reason)
    match _unwrapped(whole):
        case (Word(), stated) as answer if _head(answer) == "done":
            return Done(_action(stated))
        case (Word(), stated, items) as answer if _head(answer) == "result":
            return Result(_action(stated), tuple(_item(item, now) for item in _elements(items)))
        case answer if _head(answer) not in ("", "action", "done", "result"):
            return Exceptional(None, _reason(answer))
        case answer:
            raise InvalidArgument(
                f"{LANGUAGE}: expected done, result or a reason, not {_shown(answer)}", field="content"
            )


def print_answer(answer: Answer) -> str:
    """Return the content of ``answer``, which `parse_answer` reads."""
    match answer:
        case Agreed(action):
            return print_expression((_action_expression(action), Word("true")))
        case Done(action):
            return print_expression(((Word("done"), _action_expression(action)),))
        case Result(action, items):
            found = (Word("sequence"), *(_description_expression(item) for item in items))
            return print_expression(((Word("result"), _action_expression(action), found),))
        case Exceptional(action, reason):
            why = (constant(reason.word), *map(constant, reason.arguments))
            return print_expression((why,) if action is None else (_action_expression(action), why))


def reason_of(error: BusError, action: Action | None = None) -> Reason:
    """Return the proposition that tells another agent about ``error``.

    Args:
        error: What the AMS or the DF raised; ``error.act`` is the act to answer with.
        action: What was asked for, when it was understood.

    Spec: FIPA SC00023 §6.3 (exceptions).
    """
    match error:
        case MissingParameter() | UnrecognisedParameterValue():
            return Reason(error.reason, (error.object_name, error.parameter))
        case InvalidArgument():
            return Reason(error.reason, (action.function if action else "content", error.field or "content"))
        case UnsupportedFunction():
            return Reason(error.reason, (action.function,) if action else ())
        case _ if error.reason in _BARE_REASONS:
            return Reason(error.reason)
        case _:
            return Reason("internal-error", (str(error)[:500],))


_BARE_REASONS = frozenset({"unauthorised", "already-registered", "not-registered"})


# --- expressions to values -------------------------------------------------------------------------------------------

_LISTS = {"protocols": "protocols", "ontologies": "ontologies", "languages": "languages"}
# Names in earlier versions of SC00023, which agents of that time still write.
_OLDER = {
    "protocol": "protocols",
    "interaction-protocols": "protocols",
    "ontology": "ontologies",
    "language": "languages",
}
_AID = {"name": "name", "addresses": "addresses", "resolvers": "resolvers"}
# Not handled: scope, which is read and dropped: every registration is visible to federated searches.
_DF = {"name": "name", "services": "services", **_LISTS, **_OLDER, "lease-time": "lease-time", "scope": "scope"}
_SERVICE = {"name": "name", "type": "type", **_LISTS, **_OLDER, "ownership": "ownership", "properties": "properties"}
_AMS = {"name": "name", "ownership": "ownership", "state": "state"}
_PLATFORM = {"name": "name", "ap-services": "ap-services"}
_PLATFORM_SERVICE = {"name": "name", "type": "type", "addresses": "addresses"}
_PROPERTY = {"name": "name", "value": "value"}
_CONSTRAINTS = {"max-depth": "max-depth", "max-results": "max-results", "search-id": "search-id"}
_DESCRIPTIONS = ("df-agent-description", "ams-agent-description")
_STATES = {str(state): state for state in LifeCycleState}
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_LARGEST = 2**31 - 1


def _unwrapped(expression: Expression) -> Expression:
    """Return the one expression of a content, with or without the parentheses that SC00008 has around it."""
    match expression:
        case (tuple() as only,):
            return only
        case _:
            return expression


def _head(expression: Expression) -> str:
    """Return the word in lower case that a list begins with; "" for anything else."""
    match expression:
        case (Word(text), *_):
            return text.lower()
        case _:
            return ""


def _shown(expression: Expression) -> str:
    """Return what an error text says of an expression; string literals are content and not shown."""
    match expression:
        case Word(text):
            return repr(text[:80])
        case Text():
            return "a string"
        case Keyword(name):
            return repr(":" + name[:80])
        case _:
            return f"({_head(expression)[:80]} ...)" if expression else "()"


def _action(expression: Expression) -> Action:
    match expression:
        case (Word(), actor, asked) if _head(expression) == "action":
            match asked:
                # A function without arguments comes with and without parentheses.
                case Word(function):
                    return Action(_aid(actor), function.lower())
                case (Word(function), *arguments):
                    return Action(_aid(actor), function.lower(), tuple(arguments))
    raise InvalidArgument(
        f"{LANGUAGE}: expected ((action (agent-identifier :name ...) (function ...))), not {_shown(expression)}",
        field="content",
    )


def _reason(expression: Expression) -> Reason:
    match expression:
        case Word(text):
            return Reason(text.lower())
        case (Word(text), *arguments) if all(isinstance(item, Word | Text) for item in arguments):
            return Reason(text.lower(), tuple(item.text for item in arguments if isinstance(item, Word | Text)))
    raise InvalidArgument(f"{LANGUAGE}: expected a reason, not {_shown(expression)}", field="content")


def _parameters(
    expression: Expression, name: str, known: Mapping[str, str]
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    """Return the parameters of an object by FIPA's name, and its `X-` parameters as they are written."""
    if not isinstance(expression, tuple) or _head(expression) != name:
        raise InvalidArgument(f"{LANGUAGE}: expected ({name} ...), not {_shown(expression)}", field=name)
    found: dict[str, Expression] = {}
    extra: dict[str, Expression] = {}
    for i in range(1, len(expression), 2):
        keyword = expression[i]
        if not isinstance(keyword, Keyword):
            raise InvalidArgument(f"{name}: expected a :parameter, not {_shown(keyword)}", field=name)
        value = expression[i + 1] if i + 1 < len(expression) else keyword
        if isinstance(value, Keyword):
            raise UnrecognisedParameterValue(name, keyword.name[:80], "has no value")
        key = keyword.name.lower()
        if key.startswith("x-"):
            extra[keyword.name] = value
            continue
        parameter = known.get(key)
        if parameter is None:
            expected = ", ".join(sorted(set(known.values())))
            raise UnrecognisedParameterValue(name, keyword.name[:80], f"is not known; expected one of: {expected}")
        if parameter in found:
            raise UnrecognisedParameterValue(name, parameter, "is given twice")
        found[parameter] = value
    return found, extra


def _elements(expression: Expression) -> tuple[Expression, ...]:
    """Return the elements of a set or a sequence; anything else is its own only element."""
    if isinstance(expression, tuple) and _head(expression) in ("set", "sequence"):
        return expression[1:]
    return (expression,)


def _string(found: Mapping[str, Expression], name: str, parameter: str) -> str | None:
    value = found.get(parameter)
    return None if value is None else _constant_text(value, name, parameter)


def _strings(found: Mapping[str, Expression], name: str, parameter: str) -> list[str]:
    value = found.get(parameter)
    return [] if value is None else [_constant_text(item, name, parameter) for item in _elements(value)]


def _constant_text(value: Expression, name: str, parameter: str) -> str:
    if not isinstance(value, Word | Text):
        raise UnrecognisedParameterValue(name, parameter, f"is {_shown(value)}; expected a word or a string")
    return value.text


def _aid(expression: Expression) -> AgentIdentifier:
    """Return an agent identifier; a constant is one that has only a name."""
    if isinstance(expression, Word | Text):
        split_aid(expression.text)
        return AgentIdentifier(expression.text)
    found, extra = _parameters(expression, "agent-identifier", _AID)
    name = _string(found, "agent-identifier", "name")
    if name is None:
        raise MissingParameter("agent-identifier", "name")
    split_aid(name)
    return AgentIdentifier(
        name,
        addresses=tuple(_strings(found, "agent-identifier", "addresses")),
        resolvers=tuple(map(_aid, _elements(found.get("resolvers", (Word("sequence"),))))),
        user_slots={key: _slot_text(value) for key, value in extra.items()},
    )


def _slot_text(value: Expression) -> str:
    return value.text if isinstance(value, Word | Text) else print_expression(value)


def _name(found: Mapping[str, Expression]) -> str | None:
    value = found.get("name")
    return None if value is None else _aid(value).name


def _description(expression: Expression, now: float | None) -> Description:
    return _ams(expression) if _head(expression) == "ams-agent-description" else _df(expression, now)


def _item(expression: Expression, now: float | None) -> Item:
    if _head(expression) != "ap-description":
        return _description(expression, now)
    found, _ = _parameters(expression, "ap-description", _PLATFORM)
    return PlatformDescription(
        name=_string(found, "ap-description", "name") or "",
        services=tuple(map(_platform_service, _elements(found.get("ap-services", (Word("set"),))))),
    )


def _platform_service(expression: Expression) -> PlatformService:
    found, _ = _parameters(expression, "ap-service", _PLATFORM_SERVICE)
    return PlatformService(
        name=_string(found, "ap-service", "name") or "",
        type=_string(found, "ap-service", "type") or "",
        addresses=tuple(_strings(found, "ap-service", "addresses")),
    )


def _df(expression: Expression, now: float | None) -> DFAgentDescription:
    what = "df-agent-description"
    found, _ = _parameters(expression, what, _DF)
    lease = _string(found, what, "lease-time")
    return DFAgentDescription(
        name=_name(found),
        services=tuple(map(_service, _elements(found.get("services", (Word("set"),))))),
        protocols=frozenset(_strings(found, what, "protocols")),
        ontologies=frozenset(_strings(found, what, "ontologies")),
        languages=frozenset(_strings(found, what, "languages")),
        lease_seconds=None if lease is None else _lease(lease, now),
    )


def _ams(expression: Expression) -> AMSAgentDescription:
    what = "ams-agent-description"
    found, _ = _parameters(expression, what, _AMS)
    word = _string(found, what, "state")
    state = None if word is None else _STATES.get(word.lower())
    if word is not None and state is None:
        raise UnrecognisedParameterValue(what, "state", f"is {word[:80]!r}; expected one of: {', '.join(_STATES)}")
    return AMSAgentDescription(name=_name(found), ownership=_string(found, what, "ownership"), state=state)


def _service(expression: Expression) -> ServiceDescription:
    what = "service-description"
    found, _ = _parameters(expression, what, _SERVICE)
    return ServiceDescription(
        name=_string(found, what, "name"),
        type=_string(found, what, "type"),
        protocols=frozenset(_strings(found, what, "protocols")),
        ontologies=frozenset(_strings(found, what, "ontologies")),
        languages=frozenset(_strings(found, what, "languages")),
        ownership=_string(found, what, "ownership"),
        properties=tuple(map(_property, _elements(found.get("properties", (Word("set"),))))),
    )


def _property(expression: Expression) -> Property:
    found, _ = _parameters(expression, "property", _PROPERTY)
    name = _string(found, "property", "name")
    if name is None:
        raise MissingParameter("property", "name")
    return Property(name, _string(found, "property", "value"))


def _constraints(expression: Expression) -> SearchConstraints:
    found, _ = _parameters(expression, "search-constraints", _CONSTRAINTS)
    default = SearchConstraints()
    return SearchConstraints(
        max_results=_integer(found, "max-results", default.max_results),
        max_depth=_integer(found, "max-depth", default.max_depth),
        search_id=_string(found, "search-constraints", "search-id") or "",
    )


def _integer(found: Mapping[str, Expression], parameter: str, default: int) -> int:
    text = _string(found, "search-constraints", parameter)
    if text is None:
        return default
    if not _INTEGER.fullmatch(text) or abs(int(text)) > _LARGEST:
        why = f"is {text[:80]!r}; expected a whole number of at most {_LARGEST:,} either way"
        raise UnrecognisedParameterValue("search-constraints", parameter, why)
    return int(text)


# --- values to expressions -------------------------------------------------------------------------------------------


def _object(name: str, *parameters: tuple[str, Expression | None]) -> Expression:
    """Return an object with the parameters that are not absent."""
    items: list[Expression] = [Word(name)]
    for parameter, value in parameters:
        if value is not None:
            items += (Keyword(parameter), value)
    return tuple(items)


def _constant_or_none(text: str | None) -> Expression | None:
    return None if text is None else constant(text)


def _collection(word: str, items: Iterable[Expression]) -> Expression | None:
    """Return a set or a sequence; None for an empty one, which says the same as an absent one."""
    found = tuple(items)
    return (Word(word), *found) if found else None


def _text_set(texts: frozenset[str]) -> Expression | None:
    return _collection("set", map(constant, sorted(texts)))


def _action_expression(action: Action) -> Expression:
    return (Word("action"), _aid_expression(action.actor), (constant(action.function), *action.arguments))


def _aid_expression(aid: AgentIdentifier, depth: int = 0) -> Expression:
    if depth > MAX_DEPTH:
        raise InvalidArgument(f"agent-identifier: resolvers nested deeper than {MAX_DEPTH} levels", field="resolvers")
    return _object(
        "agent-identifier",
        ("name", constant(aid.name)),
        ("addresses", _collection("sequence", map(constant, aid.addresses))),
        ("resolvers", _collection("sequence", [_aid_expression(resolver, depth + 1) for resolver in aid.resolvers])),
        *((key, constant(value)) for key, value in aid.user_slots.items()),
    )


def _name_expression(name: str | None) -> Expression | None:
    return None if name is None else _aid_expression(AgentIdentifier(name))


def _description_expression(description: Item) -> Expression:
    if isinstance(description, PlatformDescription):
        return _object(
            "ap-description",
            ("name", constant(description.name)),
            ("ap-services", _collection("set", map(_platform_service_expression, description.services))),
        )
    if isinstance(description, AMSAgentDescription):
        return _object(
            "ams-agent-description",
            ("name", _name_expression(description.name)),
            ("ownership", _constant_or_none(description.ownership)),
            ("state", None if description.state is None else Word(str(description.state))),
        )
    lease = description.lease_seconds
    return _object(
        "df-agent-description",
        ("name", _name_expression(description.name)),
        ("services", _collection("set", map(_service_expression, description.services))),
        ("protocols", _text_set(description.protocols)),
        ("ontologies", _text_set(description.ontologies)),
        ("languages", _text_set(description.languages)),
        ("lease-time", None if lease is None else Word(_lease_text(lease))),
    )


def _platform_service_expression(service: PlatformService) -> Expression:
    return _object(
        "ap-service",
        ("name", constant(service.name)),
        ("type", constant(service.type)),
        ("addresses", _collection("sequence", map(constant, service.addresses))),
    )


def _service_expression(service: ServiceDescription) -> Expression:
    return _object(
        "service-description",
        ("name", _constant_or_none(service.name)),
        ("type", _constant_or_none(service.type)),
        ("protocols", _text_set(service.protocols)),
        ("ontologies", _text_set(service.ontologies)),
        ("languages", _text_set(service.languages)),
        ("ownership", _constant_or_none(service.ownership)),
        ("properties", _collection("set", map(_property_expression, service.properties))),
    )


def _property_expression(prop: Property) -> Expression:
    return _object("property", ("name", constant(prop.name)), ("value", _constant_or_none(prop.value)))


def _constraints_expression(constraints: SearchConstraints) -> Expression:
    return _object(
        "search-constraints",
        ("max-depth", Word(str(constraints.max_depth)) if constraints.max_depth else None),
        ("max-results", Word(str(constraints.max_results))),
        ("search-id", constant(constraints.search_id) if constraints.search_id else None),
    )


# --- lease times -----------------------------------------------------------------------------------------------------

_DATE = re.compile(r"([+-]?)(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)(\d{3})([Zz]?)", re.ASCII)
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_DAY_MS = 86_400_000
# A relative date counts a year as 365 days and a month as 30, as other platforms do.
_UNITS_MS = (365 * _DAY_MS, 30 * _DAY_MS, _DAY_MS, 3_600_000, 60_000, 1_000, 1)


def _lease(text: str, now: float | None) -> float:
    """Return the seconds of a lease: `+` and a relative date, the date of its end, or a number of seconds."""
    date = _DATE.fullmatch(text)
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if date is not None and date[1]:
        sign = 1 if date[1] == "+" else -1
        seconds = sign * sum(int(part) * unit for part, unit in zip(date.groups()[1:8], _UNITS_MS, strict=True)) / 1000
    elif date is not None and now is not None:
        year, month, day, hour, minute, second, ms = map(int, date.groups()[1:8])
        try:
            # Without a designator FIPA has the sender's local time, of which the receiver knows nothing: read as UTC.
            seconds = dt.datetime(year, month, day, hour, minute, second, ms * 1000, dt.UTC).timestamp() - now
        except ValueError:
            seconds = 0.0
    if seconds <= 0:
        why = f"is {text[:80]!r}; expected a time to come, such as +00000000T000030000 for 30 s"
        raise UnrecognisedParameterValue("df-agent-description", "lease-time", why)
    return seconds


def _lease_text(seconds: float) -> str:
    """Return a lease as FIPA's relative date, to the millisecond."""
    rest = max(1, round(seconds * 1000))
    parts: list[int] = []
    for unit in _UNITS_MS:
        part, rest = divmod(rest, unit)
        parts.append(part)
    if parts[0] > 9999:
        raise InvalidArgument(f"a lease of {seconds:g} s is too long for {LANGUAGE}", field="lease-time")
    return "+{:04}{:02}{:02}T{:02}{:02}{:02}{:03}".format(*parts)
