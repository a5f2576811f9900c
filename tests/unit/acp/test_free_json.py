"""Free JSON: what goes in comes out, with the types of its numbers; what JSON cannot say is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acp.free_json import MAX_NESTING, json_text, json_value, parameters_text, parameters_value
from gagent_grpc.errors import InvalidArgument

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: types_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [types_of(one) for one in value]
    return type(value)


@settings(deadline=None)
@given(values)
def test_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    found = json_value(json_text(value, "it"), "it")
    assert found == value
    assert types_of(found) == types_of(value)


def test_numbers_keep_type_and_digits() -> None:
    given = {"limit": 3, "ratio": 3.0, "ticket": 9007199254740993, "neg": -0.5, "flags": [True, None, ""], "empty": {}}
    text = parameters_text(given)
    assert '"limit":3,"ratio":3.0,"ticket":9007199254740993' in text
    assert repr(parameters_value(text)) == repr(given)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, {1: "a"}, {"a": [{None: 1}]}, "\ud800", object(), b"bytes", {"a", "b"}],
    ids=["nan", "infinity", "number as key", "null as key", "half a surrogate", "object", "bytes", "set"],
)
def test_what_json_cannot_say_is_refused_by_the_name_of_its_field(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^result: ") as caught:
        json_text(value, "result")
    assert caught.value.field == "result"


def test_value_that_is_nested_too_deeply_is_refused_both_ways() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="deeply"):
        json_text(deep, "result")
    with pytest.raises(InvalidArgument, match="deeply"):
        json_value("[" * 200_000 + "]" * 200_000, "result")
    # Freed level by level: the garbage of such a list is a recursion of its own.
    while deep:
        deep = deep[0]


@pytest.mark.parametrize("inside", ["", "1", '{"a":[2]}'])
@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_what_one_side_takes_the_other_one_reads_at_every_depth(kind: str, inside: str) -> None:
    """The bound is the same for every reader, and so in every version of Python and at any depth of the stack."""
    taken = []
    for depth in range(1, 600):
        if kind == "[]":
            text = "[" * depth + inside + "]" * depth
        else:
            text = '{"a":' * (depth - 1) + ("{" + (f'"a":{inside}' if inside else "") + "}") + "}" * (depth - 1)
        try:
            value = json_value(text, "it")
        except InvalidArgument:
            break
        assert json_text(value, "it") == text
        taken.append(depth)
    with pytest.raises(InvalidArgument, match="expected at most 500 levels"):
        json_value(text, "it")
    assert MAX_NESTING - 3 < len(taken) <= MAX_NESTING + 1
    # As many brackets in texts or beside each other are not deep.
    wide = json_text([["[" * 600], *([[]] * 2_000)], "it")
    assert json_text(json_value(wide, "it"), "it") == wide


@pytest.mark.parametrize("text", ["", "{", "NaN", "-Infinity", "1e999", "{'a': 1}", "1" * 5_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^answer: "):
        json_value(text, "answer")


@pytest.mark.parametrize("parameters", [[1], "text", 3])
def test_parameters_that_are_no_object_are_refused(parameters: Any) -> None:
    with pytest.raises(InvalidArgument, match="parameters"):
        parameters_text(parameters)
    with pytest.raises(InvalidArgument, match="not a JSON object"):
        parameters_value(json_text(parameters, "it"))


def test_no_parameters_travel_as_nothing() -> None:
    assert parameters_text(None) == parameters_text({}) == ""
    assert parameters_value("") == {}
