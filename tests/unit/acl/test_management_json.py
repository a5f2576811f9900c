"""The JSON form of management requests and descriptions: what it looks like, and which key an error names."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acl import sl0
from gagent_grpc.acl.descriptions import (
    AMSAgentDescription,
    DFAgentDescription,
    LifeCycleState,
    Property,
    SearchConstraints,
    ServiceDescription,
)
from gagent_grpc.acl.management import ManagementFunction, ManagementRequest
from gagent_grpc.acl.management_json import (
    ams_description_from_json,
    constraints_from_json,
    constraints_to_json,
    description_to_json,
    df_description_from_json,
    parse_request,
    print_request,
)
from gagent_grpc.errors import (
    InvalidArgument,
    InvalidName,
    MissingParameter,
    UnrecognisedParameterValue,
    UnsupportedFunction,
)

FULL = {
    "name": "sum1@n1",
    "services": [
        {
            "name": "s-en",
            "type": "summarise",
            "protocols": ["fipa-request"],
            "ontologies": ["docs"],
            "languages": ["fipa-sl0"],
            "ownership": "ops",
            "properties": {"max_tokens": "4000", "lang": ["en", "fr"], "beta": None},
        }
    ],
    "protocols": ["fipa-query", "fipa-request"],
    "lease_s": 30,
}


def test_full_description_is_read_and_written_back() -> None:
    description = df_description_from_json(FULL)
    assert description == DFAgentDescription(
        name="sum1@n1",
        services=(
            ServiceDescription(
                name="s-en",
                type="summarise",
                protocols=frozenset({"fipa-request"}),
                ontologies=frozenset({"docs"}),
                languages=frozenset({"fipa-sl0"}),
                ownership="ops",
                properties=(
                    Property("max_tokens", "4000"),
                    Property("lang", "en"),
                    Property("lang", "fr"),
                    Property("beta"),
                ),
            ),
        ),
        protocols=frozenset({"fipa-request", "fipa-query"}),
        lease_seconds=30.0,
    )
    assert description_to_json(description) == FULL


def test_what_is_absent_has_no_key() -> None:
    assert description_to_json(DFAgentDescription()) == {}
    assert description_to_json(AMSAgentDescription()) == {}
    assert description_to_json(DFAgentDescription(services=(ServiceDescription(type="x"),))) == {
        "services": [{"type": "x"}]
    }
    assert constraints_to_json(SearchConstraints()) == {"max_results": 1}


def test_null_is_the_same_as_absent() -> None:
    for description in ({}, dict.fromkeys(FULL)):
        assert df_description_from_json(description) == DFAgentDescription()
    assert constraints_from_json({"max_results": None, "max_depth": None}) == SearchConstraints()


def test_ams_description_names_its_state_in_words() -> None:
    value = {"name": "sum1@n1", "ownership": "ops", "state": "active"}
    description = ams_description_from_json(value)
    assert description == AMSAgentDescription("sum1@n1", "ops", LifeCycleState.ACTIVE)
    assert description_to_json(description) == value


@pytest.mark.parametrize(
    ("text", "actor", "expected"),
    [
        (
            '{"action":"search","description":{"services":[{"type":"summarise"}]},"constraints":{"max_results":-1}}',
            "df@p",
            ManagementRequest(
                "df@p",
                ManagementFunction.SEARCH,
                DFAgentDescription(services=(ServiceDescription(type="summarise"),)),
                SearchConstraints(max_results=-1),
            ),
        ),
        ('{"action":"search"}', "df", ManagementRequest("df", ManagementFunction.SEARCH, DFAgentDescription())),
        ('{"action":"search"}', "ams@p", ManagementRequest("ams@p", ManagementFunction.SEARCH, AMSAgentDescription())),
        ('{"action":"deregister"}', "df@p", ManagementRequest("df@p", ManagementFunction.DEREGISTER)),
        ('{"action":"get_description"}', "ams@p", ManagementRequest("ams@p", ManagementFunction.GET_DESCRIPTION)),
        (
            '{"action":"modify","description":{"state":"suspended"}}',
            "ams@p",
            ManagementRequest("ams@p", ManagementFunction.MODIFY, AMSAgentDescription(state=LifeCycleState.SUSPENDED)),
        ),
    ],
)
def test_request_is_read_for_the_agent_that_got_it(text: str, actor: str, expected: ManagementRequest) -> None:
    assert parse_request(text, actor=actor) == expected


@pytest.mark.parametrize(
    ("description", "field", "message"),
    [
        ({"nmae": "a"}, "nmae", "unknown key 'nmae'; expected one of: name, services"),
        ({"name": 1}, "name", "name must be a string, not a number"),
        ({"services": {"type": "x"}}, "services", "services must be a list of objects, not an object"),
        ({"services": ["x"]}, "services[0]", r"services\[0\] must be an object, not a string"),
        ({"services": [{}, {"typ": "x"}]}, "services[1].typ", r"services\[1\]: unknown key 'typ'"),
        ({"services": [{"type": ["x"]}]}, "services[0].type", "must be a string, not a list"),
        ({"services": [{"protocols": "x"}]}, "services[0].protocols", "must be a list of strings, not a string"),
        ({"services": [{"languages": ["x", 1]}]}, "services[0].languages[1]", "must be a string, not a number"),
        ({"services": [{"properties": []}]}, "services[0].properties", "must be an object from name to value"),
        (
            {"services": [{"properties": {"n": 4000}}]},
            "services[0].properties.n",
            "a string, null, or a list of them, not a number",
        ),
        ({"services": [{"properties": {"n": ["a", {}]}}]}, "services[0].properties.n", "not an object"),
        ({"languages": [None]}, "languages[0]", "must be a string, not null"),
        ({"lease_s": "30"}, "lease_s", "must be a number of seconds, not a string"),
        ({"lease_s": True}, "lease_s", "must be a number of seconds, not a boolean"),
        ({"lease_s": 0}, "lease_s", "expected more than 0 seconds"),
        ({"lease_s": float("nan")}, "lease_s", "expected more than 0 seconds"),
        ({"lease_s": float("inf")}, "lease_s", "expected more than 0 seconds"),
        ({"lease_s": 10**400}, "lease_s", "expected more than 0 seconds"),
    ],
)
def test_bad_description_is_refused_with_the_path_of_the_key(
    description: dict[str, object], field: str, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message) as raised:
        df_description_from_json(description)
    assert raised.value.field == field
    with pytest.raises(InvalidArgument) as raised:
        parse_request(json.dumps({"action": "search", "description": description}), actor="df")
    assert raised.value.field == f"description.{field}"


@pytest.mark.parametrize(
    ("constraints", "field"),
    [
        ({"max_results": "all"}, "max_results"),
        ({"max_results": 1.0}, "max_results"),
        ({"max_results": True}, "max_results"),
        ({"max_results": 2**31}, "max_results"),
        ({"max_depth": -(2**63)}, "max_depth"),
        ({"search_id": 7}, "search_id"),
        ({"limit": 7}, "limit"),
    ],
)
def test_bad_constraint_is_refused_with_its_key(constraints: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        constraints_from_json(constraints)
    assert raised.value.field == field


@pytest.mark.parametrize("state", ["Sleeping", "", "1"])
def test_unknown_state_is_refused_with_the_list(state: str) -> None:
    with pytest.raises(InvalidArgument, match="expected one of: initiated, active") as raised:
        ams_description_from_json({"state": state})
    assert raised.value.field == "state"


@pytest.mark.parametrize("name", ["", "a/b", "*", ">", "a\nb", "e\u0301", "a\0", "x" * 300, "a@b@c", "\ud800"])
def test_hostile_name_is_refused(name: str) -> None:
    for read in (df_description_from_json, ams_description_from_json):
        with pytest.raises(InvalidName) as raised:
            read({"name": name}, field="description")
        assert raised.value.field == "description.name"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '"search"',
        "7",
        "{",
        '{"action":"search"',
        '{"action":"search"}x',
        "{'action':'search'}",
        '{"action":7}',
        '{"action":"search","descripton":{}}',
        '{"action":"search","description":[]}',
        '{"action":"search","constraints":1}',
        "[" * 200_000,
        '{"action":' + "[" * 200_000,
        "9" * 10_000,
        '{"action":"search"}\0',
        "\ud800",
    ],
    ids=range(18),
)
def test_text_that_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_request(text, actor="df")
    assert len(str(raised.value)) < 400


def test_action_is_mandatory_and_must_be_a_function() -> None:
    with pytest.raises(MissingParameter, match="'action'"):
        parse_request("{}", actor="df")
    with pytest.raises(UnsupportedFunction, match="'frobnicate'; expected one of: register"):
        parse_request('{"action":"frobnicate","description":{}}', actor="df")


def test_function_takes_only_its_own_arguments() -> None:
    with pytest.raises(MissingParameter, match="df-agent-description"):
        parse_request('{"action":"register"}', actor="df")
    with pytest.raises(MissingParameter, match="ams-agent-description"):
        parse_request('{"action":"modify"}', actor="ams")
    with pytest.raises(UnrecognisedParameterValue, match="only search"):
        parse_request('{"action":"deregister","constraints":{}}', actor="df")
    with pytest.raises(UnrecognisedParameterValue, match="takes none"):
        parse_request('{"action":"get_description","description":{}}', actor="ams")


names = st.from_regex(r"\A[a-zA-Z0-9][a-zA-Z0-9._+-]{0,6}(@[a-z0-9.:/]{1,8})?\Z")
texts = st.text(max_size=8)
text_sets = st.frozensets(texts, max_size=3)
# Properties of one name stand together in JSON, so the order of a round trip is kept only where they did before.
properties = st.lists(st.builds(Property, texts, st.none() | texts), max_size=4).map(
    lambda found: tuple(sorted(found, key=lambda prop: prop.name))
)
services = st.builds(
    ServiceDescription,
    name=st.none() | texts,
    type=st.none() | texts,
    protocols=text_sets,
    ontologies=text_sets,
    languages=text_sets,
    ownership=st.none() | texts,
    properties=properties,
)
descriptions = st.builds(
    DFAgentDescription,
    name=st.none() | names,
    services=st.lists(services, max_size=3).map(tuple),
    protocols=text_sets,
    ontologies=text_sets,
    languages=text_sets,
    lease_seconds=st.none() | st.integers(1, 10**12).map(lambda ms: ms / 1000),
)
numbers = st.integers(-(2**31) + 1, 2**31 - 1)
requests = st.builds(
    ManagementRequest,
    st.just("df@p"),
    st.just(ManagementFunction.SEARCH),
    descriptions,
    st.builds(SearchConstraints, max_results=numbers, max_depth=numbers, search_id=texts),
)


@settings(deadline=None)
@given(requests)
def test_printed_request_is_read_back_and_both_languages_say_the_same(request: ManagementRequest) -> None:
    assert parse_request(print_request(request), actor="df@p") == request
    assert sl0.parse_request(sl0.print_request(request)) == request


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["action", "description", "constraints", "name", "services", "properties", "lease_s"])
            | texts,
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(json_values)
def test_any_json_is_read_or_refused_and_nothing_else(value: object) -> None:
    for read in (df_description_from_json, ams_description_from_json, constraints_from_json):
        # Any other exception fails the test.
        with contextlib.suppress(InvalidArgument):
            read(value)


@pytest.mark.parametrize(
    "text",
    [
        r'{"action":"register","description":{"name":"z","ownership":"\ud800"}}',
        r'{"action":"search","description":{"name":"z\udfff"}}',
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_the_ams(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_request(text, actor="ams@local")
    str(refused.value).encode()


@pytest.mark.parametrize(
    "services",
    [
        r'[{"type":"p\ud800"}]',
        r'[{"type":"p","languages":["\ud800"]}]',
        r'[{"type":"p","properties":{"k":"\ud800"}}]',
        r'[{"type":"p","properties":{"\ud800":"v"}}]',
        r'[{"type":"p","\ud800":"v"}]',
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_the_df(services: str) -> None:
    with pytest.raises(InvalidArgument, match=r"Unicode|unknown key") as refused:
        parse_request('{"action":"register","description":{"services":' + services + "}}", actor="df@local")
    str(refused.value).encode()
