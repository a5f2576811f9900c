"""Requests to the AMS and the DF, and descriptions, in their JSON form.

    {"action": "register", "description": {"services": [{"type": "summarise"}], "lease_s": 30}}
    {"action": "search", "description": {"services": [{"type": "summarise", "properties": {"lang": "en"}}]},
     "constraints": {"max_results": -1}}
    {"action": "deregister"}

Keys are FIPA's parameter names with underscores; the lease is ``lease_s`` in seconds. Properties are an object from
name to value: a text, null for no value, or a list of them where a name occurs more than once. Absent is absent:
what is None or empty in a value has no key in its JSON.

Owns: that form, and errors that name the bad key by its path. Leaves to others: the same requests in fipa-sl0
(`acl.sl0`), and who the actor is: the agent to which the request was sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from gagent_grpc.acl.aid import split_aid
from gagent_grpc.acl.descriptions import (
    AMSAgentDescription,
    DFAgentDescription,
    LifeCycleState,
    PlatformDescription,
    Property,
    SearchConstraints,
    ServiceDescription,
)
from gagent_grpc.acl.management import Description, Item, ManagementFunction, ManagementRequest, description_kind
from gagent_grpc.errors import InvalidArgument, InvalidName, MissingParameter

Json = dict[str, object]
"""A JSON object."""

_REQUEST_KEYS = ("action", "description", "constraints")
_DF_KEYS = ("name", "services", "protocols", "ontologies", "languages", "lease_s")
_SERVICE_KEYS = ("name", "type", "protocols", "ontologies", "languages", "ownership", "properties")
_AMS_KEYS = ("name", "ownership", "state")
_CONSTRAINT_KEYS = ("max_results", "max_depth", "search_id")
# Counters travel as 32-bit integers.
_LARGEST = 2**31 - 1


def parse_request(text: str, *, actor: str) -> ManagementRequest:
    """Return the request that ``text`` states.

    Args:
        text: One JSON object.
        actor: AID of the agent to which it was sent.

    Raises:
        UnsupportedFunction: There is no such function.
        MissingParameter: ``action`` is absent, or the description that the function needs.
        InvalidArgument: Not JSON, an unknown key, or a value of the wrong type; the text names it.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as exc:
        why = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise InvalidArgument(f"not a JSON object: {why}", field="content") from None
    return request_from_json(value, actor=actor)


def print_request(request: ManagementRequest) -> str:
    """Return ``request`` as the JSON text that `parse_request` reads."""
    return json.dumps(request_to_json(request), ensure_ascii=False)


def request_from_json(value: object, *, actor: str) -> ManagementRequest:
    """Return the request of a decoded JSON object; arguments and errors as for `parse_request`."""
    data = _object(value, "", "request", _REQUEST_KEYS)
    action = _text(data, "action", "")
    if action is None:
        raise MissingParameter("request", "action")
    function = ManagementFunction.parse(action)
    description: Description | None = None
    constraints: SearchConstraints | None = None
    if data.get("description") is not None:
        read = ams_description_from_json if description_kind(actor) is AMSAgentDescription else df_description_from_json
        description = read(data["description"], field="description")
    if data.get("constraints") is not None:
        constraints = constraints_from_json(data["constraints"], field="constraints")
    return ManagementRequest.of(actor, function, description, constraints)


def request_to_json(request: ManagementRequest) -> Json:
    """Return the JSON object of ``request``."""
    out: Json = {"action": request.function.value.replace("-", "_")}
    if request.description is not None:
        out["description"] = description_to_json(request.description)
    if request.function is ManagementFunction.SEARCH:
        out["constraints"] = constraints_to_json(request.constraints)
    return out


def description_to_json(description: Item) -> Json:
    """Return the JSON object of a description of the DF, the AMS or the platform."""
    if isinstance(description, PlatformDescription):
        services = [
            _present({"name": one.name, "type": one.type, "addresses": list(one.addresses) or None})
            for one in description.services
        ]
        return _present({"name": description.name, "services": services or None})
    if isinstance(description, AMSAgentDescription):
        return _present(
            {
                "name": description.name,
                "ownership": description.ownership,
                "state": None if description.state is None else str(description.state),
            }
        )
    return _present(
        {
            "name": description.name,
            "services": [service_to_json(service) for service in description.services] or None,
            "protocols": sorted(description.protocols) or None,
            "ontologies": sorted(description.ontologies) or None,
            "languages": sorted(description.languages) or None,
            "lease_s": description.lease_seconds,
        }
    )


def service_to_json(service: ServiceDescription) -> Json:
    """Return the JSON object of a service-description."""
    values: dict[str, list[str | None]] = {}
    for prop in service.properties:
        values.setdefault(prop.name, []).append(prop.value)
    return _present(
        {
            "name": service.name,
            "type": service.type,
            "protocols": sorted(service.protocols) or None,
            "ontologies": sorted(service.ontologies) or None,
            "languages": sorted(service.languages) or None,
            "ownership": service.ownership,
            "properties": {name: found[0] if len(found) == 1 else found for name, found in values.items()} or None,
        }
    )


def constraints_to_json(constraints: SearchConstraints) -> Json:
    """Return the JSON object of search constraints; ``max_results`` is always in it."""
    out: Json = {"max_results": constraints.max_results}
    if constraints.max_depth:
        out["max_depth"] = constraints.max_depth
    if constraints.search_id:
        out["search_id"] = constraints.search_id
    return out


def df_description_from_json(value: object, *, field: str = "") -> DFAgentDescription:
    """Return the df-agent-description of a decoded JSON object.

    Args:
        value: What the JSON decoder made.
        field: Path of the value in the whole, for error texts; "" when it is the whole.

    Raises:
        InvalidArgument: Not an object, an unknown key, or a value of the wrong type; the text names it.
    """
    data = _object(value, field, "df-agent-description", _DF_KEYS)
    services = data.get("services")
    if services is None:
        services = []
    path = _join(field, "services")
    if not isinstance(services, list):
        raise _wrong(path, "a list of objects", services)
    return DFAgentDescription(
        name=_aid(data, field),
        services=tuple(service_from_json(item, field=f"{path}[{i}]") for i, item in enumerate(services)),
        protocols=_texts(data, "protocols", field),
        ontologies=_texts(data, "ontologies", field),
        languages=_texts(data, "languages", field),
        lease_seconds=_seconds(data, "lease_s", field),
    )


def ams_description_from_json(value: object, *, field: str = "") -> AMSAgentDescription:
    """Return the ams-agent-description of a decoded JSON object; arguments and errors as for the DF's.

    ``state`` is one of the life-cycle states in lower case.
    """
    data = _object(value, field, "ams-agent-description", _AMS_KEYS)
    word = _text(data, "state", field)
    state = None if word is None else _STATES.get(word.lower())
    if word is not None and state is None:
        path = _join(field, "state")
        raise InvalidArgument(f"{path}: no state {word[:80]!r}; expected one of: {', '.join(_STATES)}", field=path)
    return AMSAgentDescription(name=_aid(data, field), ownership=_text(data, "ownership", field), state=state)


_STATES = {str(state): state for state in LifeCycleState}


def service_from_json(value: object, *, field: str = "") -> ServiceDescription:
    """Return the service-description of a decoded JSON object; arguments and errors as for the DF's."""
    data = _object(value, field, "service-description", _SERVICE_KEYS)
    properties = data.get("properties")
    if properties is None:
        properties = {}
    path = _join(field, "properties")
    if not isinstance(properties, dict):
        raise _wrong(path, "an object from name to value", properties)
    found: list[Property] = []
    for name, held in properties.items():
        for item in held if isinstance(held, list) else [held]:
            if item is not None and not isinstance(item, str):
                raise _wrong(_join(path, name), "a string, null, or a list of them", item)
            if item is not None:
                _string(item, _join(path, _shown_key(name)))
            found.append(Property(_string(name, _join(path, _shown_key(name))), item))
    return ServiceDescription(
        name=_text(data, "name", field),
        type=_text(data, "type", field),
        protocols=_texts(data, "protocols", field),
        ontologies=_texts(data, "ontologies", field),
        languages=_texts(data, "languages", field),
        ownership=_text(data, "ownership", field),
        properties=tuple(found),
    )


def constraints_from_json(value: object, *, field: str = "") -> SearchConstraints:
    """Return the search constraints of a decoded JSON object; arguments and errors as for the DF description."""
    data = _object(value, field, "search-constraints", _CONSTRAINT_KEYS)
    default = SearchConstraints()
    return SearchConstraints(
        max_results=_integer(data, "max_results", field, default.max_results),
        max_depth=_integer(data, "max_depth", field, default.max_depth),
        search_id=_text(data, "search_id", field) or "",
    )


def _present(data: Mapping[str, object]) -> Json:
    """Return ``data`` without what is absent."""
    return {key: value for key, value in data.items() if value is not None}


def _join(field: str, key: str) -> str:
    return f"{field}.{key[:80]}" if field else key[:80]


def _object(value: object, field: str, what: str, keys: tuple[str, ...]) -> Json:
    """Return ``value`` when it is an object that has no other than these keys."""
    if not isinstance(value, dict):
        raise _wrong(field or what, "an object", value)
    for key in value:
        if key not in keys:
            raise InvalidArgument(
                f"{field or what}: unknown key {str(key)[:80]!a}; expected one of: {', '.join(keys)}",
                field=_join(field, _shown_key(str(key))),
            )
    return value


def _text(data: Json, key: str, field: str) -> str | None:
    value = data.get(key)
    if value is None:
        return None
    return _string(value, _join(field, key))


def _shown_key(key: str) -> str:
    """Return a key as a path may show it: short, and valid Unicode itself."""
    return key[:80].encode("utf-8", "replace").decode()


def _string(value: object, path: str) -> str:
    """Return ``value`` when it is a text that can travel and be stored: JSON can also write half of a surrogate pair."""
    if not isinstance(value, str):
        raise _wrong(path, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{path} must be valid Unicode, not half of a surrogate pair", field=path) from None
    return value


def _aid(data: Json, field: str) -> str | None:
    name = data.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise _wrong(_join(field, "name"), "a string", name)
        try:
            split_aid(name)
        except InvalidName as exc:
            raise InvalidName(str(exc), field=_join(field, "name")) from None
    return name


def _texts(data: Json, key: str, field: str) -> frozenset[str]:
    value = data.get(key)
    if value is None:
        return frozenset()
    path = _join(field, key)
    if not isinstance(value, list):
        raise _wrong(path, "a list of strings", value)
    return frozenset(_string(item, f"{path}[{i}]") for i, item in enumerate(value))


def _integer(data: Json, key: str, field: str, default: int) -> int:
    value = data.get(key)
    if value is None:
        return default
    path = _join(field, key)
    # A bool is an int to isinstance, and `true` results are nobody's intention.
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(path, "a whole number", value)
    if abs(value) > _LARGEST:
        raise InvalidArgument(f"{path} is out of range; expected at most {_LARGEST:,} either way", field=path)
    return value


def _seconds(data: Json, key: str, field: str) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    path = _join(field, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(path, "a number of seconds", value)
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    # Written so that NaN, which Python's decoder lets pass, fails too.
    if not (seconds > 0 and math.isfinite(seconds)):
        raise InvalidArgument(f"{path} is {seconds:g}; expected more than 0 seconds", field=path)
    return seconds


def _wrong(path: str, expected: str, value: object) -> InvalidArgument:
    """Return the error for a value of the wrong type; it names the type and never shows the value."""
    kind = _KINDS.get(type(value), type(value).__name__)
    return InvalidArgument(f"{path} must be {expected}, not {kind}", field=path)


_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}
