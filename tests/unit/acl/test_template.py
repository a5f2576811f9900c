"""Which messages fit a template, what templates say of themselves, and the laws of their combinations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import PARAMETERS, ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.acl.template import MessageTemplate
from gagent_grpc.errors import InvalidArgument, InvalidName, UnknownPerformative

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
TEXTS = ("language", "encoding", "ontology", "protocol", "conversation_id", "reply_with", "in_reply_to")


def message(performative: Performative = Performative.INFORM, **parameters: Any) -> ACLMessage:
    for name in ("receivers", "reply_to"):
        parameters[name] = tuple(AgentIdentifier(one) for one in parameters.get(name, ()))
    if "sender" in parameters:
        parameters["sender"] = AgentIdentifier(parameters["sender"])
    return ACLMessage(performative, **parameters)


# ---- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "fitting", "other"),
    [
        ({"performative": "INFORM"}, {}, {"performative": Performative.REQUEST}),
        ({"performative": Performative.CFP}, {"performative": Performative.CFP}, {}),
        ({"sender": "alice"}, {"sender": "alice"}, {"sender": "Alice"}),
        ({"sender": None}, {}, {"sender": "alice"}),
        ({"receivers": "bob"}, {"receivers": ["carol", "bob"]}, {"receivers": ["carol"]}),
        ({"receivers": ["bob", "carol"]}, {"receivers": ["carol", "bob", "dan"]}, {"receivers": ["bob"]}),
        ({"receivers": ()}, {}, {"receivers": ["bob"]}),
        ({"reply_to": AgentIdentifier("bob")}, {"reply_to": ["bob"]}, {}),
        ({"reply_to": None}, {}, {"reply_to": ["bob"]}),
        ({"content": "x"}, {"content": "x"}, {"content": b"x"}),
        ({"content": b"x"}, {"content": b"x"}, {"content": "x"}),
        ({"content": None}, {}, {"content": ""}),
        ({"content": ""}, {"content": ""}, {}),
        ({"reply_by": True}, {"reply_by": NOON}, {}),
        ({"reply_by": False}, {}, {"reply_by": NOON}),
        ({"reply_by": NOON}, {"reply_by": NOON}, {"reply_by": NOON.replace(hour=13)}),
        ({"user_parameters": {"X-a": "1"}}, {"user_parameters": {"X-a": "1", "X-b": "2"}}, {}),
        ({"user_parameters": {"X-a": None}}, {"user_parameters": {"X-b": "2"}}, {"user_parameters": {"X-a": "1"}}),
        ({"user_parameters": {}}, {}, {"user_parameters": {"X-a": "1"}}),
        ({"X-a": "1", "X-b": "2"}, {"user_parameters": {"X-a": "1", "X-b": "2"}}, {"user_parameters": {"X-a": "1"}}),
    ]
    + [({name: "v"}, {name: "v"}, {name: "V"}) for name in TEXTS]
    + [({name: None}, {}, {name: ""}) for name in TEXTS],
    ids=str,
)
def test_each_parameter_is_compared_by_its_own_rule(
    wanted: dict[str, Any], fitting: dict[str, Any], other: dict[str, Any]
) -> None:
    template = MessageTemplate(**wanted)
    assert template.matches(message(**fitting))
    assert not template.matches(message(**other))
    assert not (~template).matches(message(**fitting))
    assert (~template).matches(message(**other))


def test_every_parameter_has_a_rule() -> None:
    for name in PARAMETERS:
        assert MessageTemplate(**{name: None}).matches(message()), name


def test_all_parameters_must_fit_and_none_is_for_every_message() -> None:
    both = MessageTemplate("request", ontology="weather", language=None)
    assert both.matches(message(Performative.REQUEST, ontology="weather"))
    assert not both.matches(message(Performative.REQUEST, ontology="weather", language="en"))
    assert not both.matches(message(Performative.REQUEST))
    assert not both.matches(message(ontology="weather"))
    assert MessageTemplate().matches(message())


@pytest.mark.parametrize(
    ("wanted", "actual", "same"),
    [
        ("alice", "alice", True),
        ("alice", "alice@here", True),
        ("alice@here", "alice", True),
        ("alice@here", "alice@here", True),
        ("alice", "alice@there", False),
        ("alice@there", "alice", False),
        ("alice@there", "alice@there", True),
        ("alice", "alic", False),
    ],
)
def test_an_agent_of_the_own_platform_has_two_names(wanted: str, actual: str, same: bool) -> None:
    for name, value in (("sender", actual), ("receivers", ["x", actual]), ("reply_to", [actual])):
        assert MessageTemplate(**{name: wanted}).matches(message(**{name: value}), "here") is same
    # Without a platform, names are what they are.
    assert MessageTemplate(sender=wanted).matches(message(sender=actual)) is (wanted == actual)


def test_what_cannot_be_wanted_is_refused_when_the_template_is_made() -> None:
    with pytest.raises(UnknownPerformative, match="shout"):
        MessageTemplate("shout")
    with pytest.raises(InvalidArgument, match="'topic' is no ACL parameter; expected one of sender, receivers"):
        MessageTemplate(topic="x")
    with pytest.raises(InvalidName):
        MessageTemplate(sender="two words")
    for name, value, expected in (
        ("ontology", 5, "text or None"),
        ("content", 5, "text, bytes or None"),
        ("sender", ["alice"], "an agent's name"),
        ("receivers", 5, "an agent, several, or None"),
        ("receivers", [5], "an agent's name"),
        ("reply_by", datetime(2026, 5, 1), "a time with a time zone"),
        ("reply_by", "soon", "True, False"),
        ("user_parameters", ["X-a"], "a mapping"),
        ("user_parameters", {"X-a": 1}, "text or None"),
        ("X-a", 1, "text or None"),
    ):
        with pytest.raises(InvalidArgument, match=expected):
            MessageTemplate(**{name: value})


# ---- functions ---------------------------------------------------------------------------------------------------------


def test_a_function_may_decide() -> None:
    template = MessageTemplate.matching(lambda one: one.content and len(one.content) > 3)
    assert template.matches(message(content="long")) is True
    assert template.matches(message(content="no")) is False
    assert template.matches(message()) is False
    assert (MessageTemplate("inform") & template).matches(message(content="long"))
    assert not (MessageTemplate("request") & template).matches(message(content="long"))


def test_what_cannot_decide_is_refused() -> None:
    async def later(one: ACLMessage) -> bool:
        return True

    with pytest.raises(InvalidArgument, match="async"):
        MessageTemplate.matching(later)
    with pytest.raises(InvalidArgument, match="expected a function"):
        MessageTemplate.matching("x")  # type: ignore[arg-type]


# ---- values ------------------------------------------------------------------------------------------------------------


def test_templates_are_values() -> None:
    first = MessageTemplate("inform", receivers=["b", "a"], ontology="o")
    second = MessageTemplate(Performative.INFORM, ontology="o", receivers=("a", AgentIdentifier("b"), "a"))
    assert first == second
    assert hash(first) == hash(second)
    assert len({first, second, ~first, ~~second, first & second, first | second}) == 4
    assert MessageTemplate(content="x") != MessageTemplate(content=b"x")
    assert MessageTemplate.matching(print) == MessageTemplate.matching(print) != MessageTemplate.matching(len)
    assert first != "inform"


def test_a_template_shows_how_it_is_made() -> None:
    inform = MessageTemplate(performative="inform")
    both = inform & ~MessageTemplate(sender="x", receivers=["a", "b"])
    assert repr(both) == "MessageTemplate(performative='inform') & ~MessageTemplate(sender='x', receivers=['a', 'b'])"
    assert repr(~(inform | MessageTemplate())) == "~(MessageTemplate(performative='inform') | MessageTemplate())"
    assert repr((inform | both) & inform).startswith("(MessageTemplate(performative='inform') | (MessageTemplate(")
    assert repr(MessageTemplate(**{"X-a": "1"})) == "MessageTemplate(**{'X-a': '1'})"
    assert "test_a_template_shows" in repr(MessageTemplate.matching(test_a_template_shows_how_it_is_made))


def test_what_would_silently_be_something_else_is_an_error() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        MessageTemplate("inform") and MessageTemplate("request")
    with pytest.raises(TypeError):
        MessageTemplate("inform") & "request"  # type: ignore[operator]


# ---- laws --------------------------------------------------------------------------------------------------------------

_words = st.sampled_from(["a", "b", "c"])
_messages = st.builds(
    message,
    performative=st.sampled_from([Performative.INFORM, Performative.REQUEST]),
    sender=_words,
    receivers=st.lists(_words, max_size=2),
    content=st.none() | _words,
    ontology=st.none() | _words,
    user_parameters=st.dictionaries(st.sampled_from(["X-a", "X-b"]), _words),
)
_simple = st.one_of(
    st.just(MessageTemplate()),
    st.sampled_from(["inform", "request"]).map(MessageTemplate),
    _words.map(lambda name: MessageTemplate(sender=name)),
    _words.map(lambda name: MessageTemplate(receivers=name)),
    (st.none() | _words).map(lambda text: MessageTemplate(content=text)),
    (st.none() | _words).map(lambda text: MessageTemplate("inform", ontology=text)),
    _words.map(lambda text: MessageTemplate(**{"X-a": text})),
    _words.map(lambda text: MessageTemplate.matching(lambda one: one.content == text)),
)
_templates = st.recursive(
    _simple,
    lambda inner: st.one_of(
        inner.map(lambda one: ~one),
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
    ),
    max_leaves=6,
)


@given(_templates, _templates, _messages)
def test_combinations_are_those_of_logic(a: MessageTemplate, b: MessageTemplate, one: ACLMessage) -> None:
    in_a, in_b = a.matches(one, "here"), b.matches(one, "here")
    assert (a & b).matches(one, "here") is (in_a and in_b)
    assert (a | b).matches(one, "here") is (in_a or in_b)
    assert (~a).matches(one, "here") is (not in_a)


@given(_templates, _templates, _templates, _messages)
def test_laws(a: MessageTemplate, b: MessageTemplate, c: MessageTemplate, one: ACLMessage) -> None:
    def same(left: MessageTemplate, right: MessageTemplate) -> bool:
        return left.matches(one) is right.matches(one)

    assert same(a & b, b & a)
    assert same(a | b, b | a)
    assert same(a & (b | c), (a & b) | (a & c))
    assert same(~(a & b), ~a | ~b)
    assert same(~(a | b), ~a & ~b)
    assert same(a & a, a)
    assert not (a & ~a).matches(one)
    assert (a | ~a).matches(one)
    # As values, too.
    assert (a & b) & c == a & (b & c)
    assert (a | b) | c == a | (b | c)
    assert ~~a == a
