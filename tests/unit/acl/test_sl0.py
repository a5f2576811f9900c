"""fipa-sl0: actions and answers; what other platforms write, and what hostile texts get."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acl.aid import AgentIdentifier
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
from gagent_grpc.acl.management import ManagementFunction, ManagementRequest
from gagent_grpc.acl.sexpr import MAX_DEPTH, Keyword, Text, Word
from gagent_grpc.acl.sl0 import (
    MAX_ACTION_CHARS,
    Action,
    Agreed,
    Answer,
    Done,
    Exceptional,
    Reason,
    Result,
    action_of,
    parse_action,
    parse_answer,
    parse_request,
    parse_subscription,
    print_action,
    print_answer,
    print_request,
    reason_of,
    request_of,
)
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    AgentNotRegistered,
    BusError,
    InvalidArgument,
    InvalidName,
    MissingParameter,
    StoreUnavailable,
    Unauthorised,
    UnrecognisedParameterValue,
    UnsupportedFunction,
)

DF = "(agent-identifier :name df@p)"


def asked(function: str, actor: str = DF) -> str:
    return f"((action {actor} {function}))"


def nested(depth: int) -> str:
    return "(" * depth + "a" + ")" * depth


def test_action_whose_resolvers_are_nested_too_deeply_is_not_printed() -> None:
    resolver = AgentIdentifier("r")
    for _ in range(5000):
        resolver = AgentIdentifier("r", resolvers=(resolver,))
    with pytest.raises(InvalidArgument, match="resolvers"):
        print_action(Action(resolver, "search"))


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet='()":#\\ \n\0a1é-?') | st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    for read in (parse_action, parse_answer):
        # Any other exception fails the test.
        with contextlib.suppress(InvalidArgument):
            read(text)


# --- requests --------------------------------------------------------------------------------------------------------


def test_search_of_another_platform_is_read() -> None:
    request = parse_request(
        asked(
            "(search (df-agent-description :services (set (service-description :type summarise)))"
            " (search-constraints :max-results -1))"
        )
    )
    template = DFAgentDescription(services=(ServiceDescription(type="summarise"),))
    assert request == ManagementRequest("df@p", ManagementFunction.SEARCH, template, SearchConstraints(max_results=-1))


def test_registration_with_every_parameter_is_read() -> None:
    request = parse_request(
        asked(
            """(register (df-agent-description
                :name (agent-identifier :name t26@paris.example :addresses (sequence http://leap.example:5194/leap))
                :protocols (set fipa-request fipa-query) :ontologies (set a) :languages (set fipa-sl0 "fipa xml")
                :services (set (service-description :name DF-TEST-1 :type DF-TEST :protocols (set p) :ontologies (set o)
                    :languages (set l) :ownership LEAP
                    :properties (set (property :name p1 :value v1) (property :name p2))))
                :lease-time +00000000T000130500 :scope (set global) :X-note "kept by nobody"))"""
        )
    )
    assert request.description == DFAgentDescription(
        name="t26@paris.example",
        services=(
            ServiceDescription(
                name="DF-TEST-1",
                type="DF-TEST",
                protocols=frozenset({"p"}),
                ontologies=frozenset({"o"}),
                languages=frozenset({"l"}),
                ownership="LEAP",
                properties=(Property("p1", "v1"), Property("p2")),
            ),
        ),
        protocols=frozenset({"fipa-request", "fipa-query"}),
        ontologies=frozenset({"a"}),
        languages=frozenset({"fipa-sl0", "fipa xml"}),
        lease_seconds=90.5,
    )


def test_keywords_objects_and_functions_are_read_without_case_and_values_with_it() -> None:
    request = parse_request(
        "((ACTION (Agent-Identifier :NAME df@p) (SEARCH (DF-Agent-Description :Services"
        " (SET (Service-Description :TYPE Sing))) (Search-Constraints :Max-Results 3))))"
    )
    assert request == ManagementRequest(
        "df@p",
        ManagementFunction.SEARCH,
        DFAgentDescription(services=(ServiceDescription(type="Sing"),)),
        SearchConstraints(max_results=3),
    )


def test_spelling_of_older_platforms_is_read() -> None:
    request = parse_request(
        asked("(search (df-agent-description :protocol fipa-request :ontology (sequence a b) :language (set c)))")
    )
    assert request.description == DFAgentDescription(
        protocols=frozenset({"fipa-request"}), ontologies=frozenset({"a", "b"}), languages=frozenset({"c"})
    )


def test_search_without_constraints_asks_for_one_result() -> None:
    assert parse_request(asked("(search (df-agent-description))")).constraints.max_results == 1


def test_ams_requests_are_read() -> None:
    ams = "(agent-identifier :name ams@p)"
    request = parse_request(
        asked(
            "(modify (ams-agent-description :name (agent-identifier :name a@p) :ownership ops :state SUSPENDED))", ams
        )
    )
    assert request.description == AMSAgentDescription("a@p", "ops", LifeCycleState.SUSPENDED)
    for text in ("(get-description)", "get-description"):
        assert parse_request(asked(text, ams)).function is ManagementFunction.GET_DESCRIPTION
    assert parse_request(asked("(search)", ams)).description == AMSAgentDescription()


@pytest.mark.parametrize("text", [asked("(deregister)"), asked("(deregister)")[1:-1], asked("deregister", "df@p")])
def test_outer_parentheses_and_the_identifier_object_may_be_left_out(text: str) -> None:
    assert parse_request(text) == ManagementRequest("df@p", ManagementFunction.DEREGISTER)


def test_action_with_unknown_function_is_understood_before_it_is_refused() -> None:
    action = parse_action(asked('(Reserve :lot "L-77" :qty 4)'))
    assert action == Action(
        AgentIdentifier("df@p"), "reserve", (Keyword("lot"), Text("L-77"), Keyword("qty"), Word("4"))
    )
    with pytest.raises(UnsupportedFunction, match="'reserve'; expected one of: register, deregister") as raised:
        request_of(action)
    answer = Exceptional(action, reason_of(raised.value, action))
    assert print_answer(answer) == (f'((action {DF} (reserve :lot "L-77" :qty 4)) (unsupported-function reserve))')


def test_addresses_resolvers_and_slots_of_an_identifier_survive() -> None:
    actor = AgentIdentifier(
        "df@p",
        addresses=("iiop://n2/acc", "http://n2:8000/acc"),
        resolvers=(AgentIdentifier("ans@n1", resolvers=(AgentIdentifier("root@n0"),)),),
        user_slots={"X-Colour": "dark blue"},
    )
    found = parse_action(print_action(Action(actor, "search"))).actor
    # Equality of identifiers looks at the name alone, so each part is compared.
    assert (found.name, found.addresses, found.user_slots) == (actor.name, actor.addresses, actor.user_slots)
    assert found.resolvers == actor.resolvers
    assert found.resolvers[0].resolvers == actor.resolvers[0].resolvers


@pytest.mark.parametrize("function", ["register", "modify"])
def test_function_without_its_description_is_refused(function: str) -> None:
    with pytest.raises(MissingParameter) as raised:
        parse_request(asked(f"({function})"))
    assert (raised.value.object_name, raised.value.parameter) == (function, "df-agent-description")


@pytest.mark.parametrize(
    ("function", "object_name", "parameter"),
    [
        ("(search (df-agent-description :nmae x))", "df-agent-description", "nmae"),
        ("(search (df-agent-description :name))", "df-agent-description", "name"),
        ("(search (df-agent-description :name :services))", "df-agent-description", "name"),
        ("(search (df-agent-description :protocols a :protocol b))", "df-agent-description", "protocols"),
        ("(search (df-agent-description :languages (set (a))))", "df-agent-description", "languages"),
        ("(search (df-agent-description :lease-time soon))", "df-agent-description", "lease-time"),
        ("(search (df-agent-description :lease-time 20200101T000000000Z))", "df-agent-description", "lease-time"),
        ("(search (df-agent-description :lease-time +00000000T000000000))", "df-agent-description", "lease-time"),
        ("(search (df-agent-description :lease-time -00000001T000000000))", "df-agent-description", "lease-time"),
        ("(search (df-agent-description) (search-constraints :max-results many))", "search-constraints", "max-results"),
        (
            "(search (df-agent-description) (search-constraints :max-results 9999999999))",
            "search-constraints",
            "max-results",
        ),
        ("(search (df-agent-description) (search-constraints :max-depth 1.5))", "search-constraints", "max-depth"),
        ("(search (ams-agent-description))", "search", "description"),
        ("(search (df-agent-description) (df-agent-description))", "search", "argument"),
        ("(search (thing :name x))", "search", "argument"),
        ('(search "text")', "search", "argument"),
        ("(register (df-agent-description) (search-constraints))", "register", "search-constraints"),
    ],
)
def test_bad_parameter_is_named(function: str, object_name: str, parameter: str) -> None:
    with pytest.raises(UnrecognisedParameterValue) as raised:
        parse_request(asked(function), now=1_600_000_000.0)
    assert (raised.value.object_name, raised.value.parameter) == (object_name, parameter)


@pytest.mark.parametrize(
    "function",
    [
        "(search (df-agent-description name x))",
        "(search (df-agent-description :services (set x)))",
        "(search (df-agent-description :services (set (property :name x))))",
        "(search (df-agent-description :services (set (service-description :properties (set x)))))",
        "(search (df-agent-description :name (name x)))",
    ],
)
def test_object_of_the_wrong_kind_is_refused(function: str) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        parse_request(asked(function))


def test_nameless_identifier_and_property_are_refused() -> None:
    for text in ("(agent-identifier)", "(agent-identifier :addresses (sequence x))"):
        with pytest.raises(MissingParameter, match="agent-identifier: the parameter 'name'"):
            parse_action(asked("(search)", text))
    with pytest.raises(MissingParameter, match="property: the parameter 'name'"):
        parse_request(
            asked(
                "(search (df-agent-description :services (set (service-description"
                " :properties (set (property :value x))))))"
            )
        )


@pytest.mark.parametrize("name", ['"a/b"', "*", ">", '"a\nb"', '"e\u0301"', '"a\0"', f'"{"x" * 300}"', '""', "a@b@c"])
def test_hostile_name_is_refused_wherever_it_stands(name: str) -> None:
    aid = f"(agent-identifier :name {name})"
    with pytest.raises(InvalidName):
        parse_action(asked("(search)", aid))
    with pytest.raises(InvalidName):
        parse_request(asked(f"(deregister (df-agent-description :name {aid}))"))
    with pytest.raises(InvalidName):
        parse_action(asked("(search)", f"(agent-identifier :name a :resolvers (sequence {aid}))"))


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "()",
        "(())",
        "(action)",
        "((action a))",
        "((action df@p ()))",
        '((action df@p ("search")))',
        "((action df@p (search)) true)",
        "((action df@p (search)) (action df@p (search)))",
        "((done (action df@p (search))))",
    ],
)
def test_content_that_is_not_one_action_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        parse_action(text)


def test_length_of_an_action_is_limited() -> None:
    with pytest.raises(InvalidArgument, match="the limit is 131,072"):
        parse_action(asked(f'(search "{"x" * MAX_ACTION_CHARS}")'))


def test_content_never_appears_in_errors() -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_request(asked('(search "my password")'))
    assert "password" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("+00000000T000030000", 30.0),
        ("+00000001T000000000", 86_400.0),
        ("+00010000T000000000", 365 * 86_400.0),
        ("+00000100T000000001", 30 * 86_400.0 + 0.001),
        ("20200913T122710000Z", 30.0),
        ("20200913T122710000", 30.0),
        ("30", 30.0),
        ('"0.5"', 0.5),
    ],
)
def test_lease_is_read_as_duration_or_as_date(text: str, seconds: float) -> None:
    request = parse_request(asked(f"(register (df-agent-description :lease-time {text}))"), now=1_600_000_000.0)
    assert isinstance(request.description, DFAgentDescription)
    assert request.description.lease_seconds == pytest.approx(seconds)


def test_date_of_a_lease_needs_a_clock() -> None:
    with pytest.raises(UnrecognisedParameterValue, match="lease-time"):
        parse_request(asked("(register (df-agent-description :lease-time 20991231T235959000Z))"))


names = st.from_regex(r"\A[a-zA-Z0-9][a-zA-Z0-9._+-]{0,6}(@[a-z0-9.:/]{1,8})?\Z")
texts = st.text(max_size=8)
text_sets = st.frozensets(texts, max_size=3)
services = st.builds(
    ServiceDescription,
    name=st.none() | texts,
    type=st.none() | texts,
    protocols=text_sets,
    ontologies=text_sets,
    languages=text_sets,
    ownership=st.none() | texts,
    properties=st.lists(st.builds(Property, texts, st.none() | texts), max_size=3).map(tuple),
)
df_descriptions = st.builds(
    DFAgentDescription,
    name=st.none() | names,
    services=st.lists(services, max_size=3).map(tuple),
    protocols=text_sets,
    ontologies=text_sets,
    languages=text_sets,
    lease_seconds=st.none() | st.integers(1, 10**12).map(lambda ms: ms / 1000),
)
ams_descriptions = st.builds(
    AMSAgentDescription,
    name=st.none() | names,
    ownership=st.none() | texts,
    state=st.none() | st.sampled_from(LifeCycleState),
)
numbers = st.integers(-(2**31) + 1, 2**31 - 1)
constraints = st.builds(SearchConstraints, max_results=numbers, max_depth=numbers, search_id=texts)


def requests(
    actor: str, descriptions: st.SearchStrategy[DFAgentDescription] | st.SearchStrategy[AMSAgentDescription]
) -> st.SearchStrategy[ManagementRequest]:
    changes = st.sampled_from([ManagementFunction.REGISTER, ManagementFunction.MODIFY, ManagementFunction.DEREGISTER])
    return (
        st.builds(ManagementRequest, st.just(actor), changes, descriptions)
        | st.builds(ManagementRequest, st.just(actor), st.just(ManagementFunction.SEARCH), descriptions, constraints)
        | st.just(ManagementRequest(actor, ManagementFunction.DEREGISTER))
    )


all_requests = requests("df@p", df_descriptions) | requests("ams@hub:1099/JADE", ams_descriptions)


@settings(deadline=None)
@given(all_requests)
def test_printed_request_is_read_back(request: ManagementRequest) -> None:
    assert parse_request(print_request(request)) == request


# --- answers ---------------------------------------------------------------------------------------------------------

SEARCH = Action(AgentIdentifier("df@p"), "search")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Agreed(SEARCH), f"((action {DF} (search)) true)"),
        (Done(SEARCH), f"((done (action {DF} (search))))"),
        (
            Result(SEARCH, (DFAgentDescription("a@p"), AMSAgentDescription("b@p", state=LifeCycleState.ACTIVE))),
            f"((result (action {DF} (search)) (sequence (df-agent-description :name (agent-identifier :name a@p))"
            " (ams-agent-description :name (agent-identifier :name b@p) :state active))))",
        ),
        (Result(SEARCH, ()), f"((result (action {DF} (search)) (sequence)))"),
        (Exceptional(SEARCH, Reason("already-registered")), f"((action {DF} (search)) (already-registered))"),
        (
            Exceptional(SEARCH, Reason("missing-parameter", ("df-agent-description", "name"))),
            f"((action {DF} (search)) (missing-parameter df-agent-description name))",
        ),
        (
            Exceptional(SEARCH, Reason("internal-error", ('disk "full"',))),
            f'((action {DF} (search)) (internal-error "disk \\"full\\""))',
        ),
        (Exceptional(None, Reason("unrecognised-value", ("content",))), "((unrecognised-value content))"),
    ],
)
def test_answer_is_printed_as_fipa_has_it_and_read_back(answer: Answer, text: str) -> None:
    assert print_answer(answer) == text
    assert parse_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"(done (action {DF} (search)))", Done(SEARCH)),
        (f"((result (action {DF} (search)) (set (df-agent-description))))", Result(SEARCH, (DFAgentDescription(),))),
        (f"((result (action {DF} (search)) (df-agent-description)))", Result(SEARCH, (DFAgentDescription(),))),
        (f"((action {DF} (search)) (TRUE))", Agreed(SEARCH)),
        (f"((action {DF} (search)) Unauthorised)", Exceptional(SEARCH, Reason("unauthorised"))),
    ],
)
def test_variants_of_answers_are_read(text: str, expected: Answer) -> None:
    assert parse_answer(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "()",
        "((done))",
        "((done x))",
        f"((done {DF}))",
        f"((result (action {DF} (search))))",
        f"((action {DF} (search)))",
        f"((action {DF} (search)) (why (nested)))",
        f"((result (action {DF} (search)) (set x)))",
        f'((action {DF} (search)) "text")',
    ],
)
def test_text_that_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        parse_answer(text)


reasons = st.builds(Reason, st.from_regex(r"\A[a-su-z][a-z-]{0,8}\Z"), st.lists(texts, max_size=2).map(tuple))
actions = st.builds(action_of, all_requests)
answers = (
    st.builds(Agreed, actions)
    | st.builds(Done, actions)
    | st.builds(Result, actions, st.lists(df_descriptions | ams_descriptions, max_size=3).map(tuple))
    | st.builds(Exceptional, actions, reasons)
)


@settings(deadline=None)
@given(answers)
def test_printed_answer_is_read_back(answer: Answer) -> None:
    assert parse_answer(print_answer(answer)) == answer


def test_action_as_deep_as_it_may_be_can_be_answered() -> None:
    action = parse_action(f"((action {DF} (frobnicate {nested(MAX_DEPTH - 3)})))")
    for answer in (Done(action), Result(action, ()), Exceptional(action, Reason("unauthorised"))):
        assert parse_answer(print_answer(answer)) == answer


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MissingParameter("service-description", "type"), Reason("missing-parameter", ("service-description", "type"))),
        (
            UnrecognisedParameterValue("search-constraints", "max-results", "is 0"),
            Reason("unrecognised-parameter-value", ("search-constraints", "max-results")),
        ),
        (InvalidArgument("bad", field="name"), Reason("unrecognised-parameter-value", ("search", "name"))),
        (UnsupportedFunction("no"), Reason("unsupported-function", ("search",))),
        (Unauthorised("no"), Reason("unauthorised")),
        (AgentAlreadyRegistered("a", "DF"), Reason("already-registered")),
        (AgentNotRegistered("a", "DF"), Reason("not-registered")),
        (StoreUnavailable("the store is gone"), Reason("internal-error", ("the store is gone",))),
    ],
)
def test_error_becomes_its_fipa_reason(error: BusError, reason: Reason) -> None:
    assert reason_of(error, SEARCH) == reason


# ---- the platform and subscriptions ----------------------------------------------------------------------------------


@given(
    st.text(max_size=20),
    st.lists(
        st.tuples(st.text(max_size=20), st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3)), max_size=3
    ),
)
def test_description_of_a_platform_comes_back_as_it_was(name: str, services: Any) -> None:
    platform = PlatformDescription(name, tuple(PlatformService(a, b, tuple(c)) for a, b, c in services))
    answer = Result(SEARCH, (platform,))
    assert parse_answer(print_answer(answer)) == answer


def test_subscription_is_an_action_or_what_an_action_results_in() -> None:
    action = f"(action {DF} (search (df-agent-description)))"
    expected = parse_action(f"({action})")
    for text in (
        f"({action})",
        action,
        f"((iota ?x (result {action} ?x)))",
        f"((any ?x (result {action} ?x)))",
        f"((all ?x (result {action} ?x)))",
    ):
        assert parse_subscription(text) == expected
    for text in (f"((iota ?x (done {action} ?x)))", f"((exists ?x (result {action} ?x)))", "(hello)", "", "((("):
        with pytest.raises(InvalidArgument):
            parse_subscription(text)
    with pytest.raises(InvalidArgument, match="the limit is 131,072"):
        parse_subscription(" " * 131_073)
