"""Free JSON: text on the wire and in stores, Python values for whoever reads it.

Owns: the two directions, which keep the type of each number (3 stays 3, 3.0 stays 3.0) and all digits of an integer.
Leaves to others: what the values mean.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from gagent_grpc.errors import InvalidArgument

MAX_NESTING = 500
"""Most lists and objects in each other: fewer than any reader here can follow, so that what one takes the others read."""


def json_text(value: Any, field: str) -> str:
    """Return ``value``, which is the value of ``field``, as JSON text.

    Args:
        value: None, booleans, whole numbers, finite floats, texts, and lists, tuples and dicts of these; keys are texts.
        field: What it is, for the error.

    Raises:
        InvalidArgument: JSON has no such value, or it is nested too deeply.
    """
    try:
        _check_keys(value, field, MAX_NESTING)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{field}: a text has a lone surrogate; expected valid Unicode", field=field) from error
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{field}: {error}; expected what JSON can say", field=field) from error
    return text


def json_value(text: str, field: str) -> Any:
    """Return the value in JSON text, which is that of ``field``.

    Raises:
        InvalidArgument: It is no JSON, has a number that nothing here can hold, or is nested more than 500 deep.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except ValueError as error:
        raise InvalidArgument(f"{field}: not JSON ({error})", field=field) from error
    except RecursionError as error:
        raise _too_deep(field) from error
    if text.count("[") + text.count("{") > MAX_NESTING:
        _check_nesting(value, field)
    return value


def parameters_text(parameters: Any) -> str:
    """Return the arguments of a task, a dict or None, as they travel; "" for none.

    Raises:
        InvalidArgument: They are no dict, or JSON cannot say them.
    """
    if parameters is not None and not isinstance(parameters, dict):
        kind = type(parameters).__name__
        raise InvalidArgument(f"parameters: a value of type {kind}; expected a dict", field="parameters")
    return json_text(parameters, "parameters") if parameters else ""


def parameters_value(text: str) -> dict[str, Any]:
    """Return the arguments of a task from what travelled.

    Raises:
        InvalidArgument: It is no JSON object.
    """
    value = json_value(text, "parameters") if text else {}
    if not isinstance(value, dict):
        raise InvalidArgument("parameters: not a JSON object; expected one, such as {}", field="parameters")
    return value


def _too_deep(field: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: is nested too deeply; expected at most {MAX_NESTING} levels", field=field)


def _check_nesting(value: Any, field: str) -> None:
    level = [value]
    for _ in range(MAX_NESTING):
        insides = [one.values() if isinstance(one, dict) else one for one in level]
        # Of what is innermost there may be a million.
        level = [inner for inside in insides for inner in inside if isinstance(inner, _CONTAINERS)]
        if not level:
            return
    if any(level):
        raise _too_deep(field)


def _check_keys(value: Any, field: str, levels: int) -> None:
    # The encoder makes texts of other keys, and then what arrives is not what was given.
    if not isinstance(value, _CONTAINERS):
        return
    if levels < 1 and value:
        raise _too_deep(field)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidArgument(
                    f"{field}: a key of type {type(key).__name__}; expected texts as keys", field=field
                )
    for one in value.values() if isinstance(value, dict) else value:
        # Not called for each value: there may be a million, and the loop of a gateway waits for this.
        if isinstance(one, _CONTAINERS):
            _check_keys(one, field, levels - 1)


_CONTAINERS = (dict, list, tuple)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
