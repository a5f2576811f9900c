"""Topics and who listens to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc.bus.topics import MAX_TOPICS, Topics, check_subscriptions, check_topic
from gagent_grpc.errors import InvalidArgument


def covers(subscription: str, topic: str) -> bool:
    """Whether a subscription covers a topic, by looking at both."""
    wanted, levels = subscription.split("."), topic.split(".")
    if wanted[-1] == ">":
        return len(levels) >= len(wanted) and levels[: len(wanted) - 1] == wanted[:-1]
    if wanted[-1] == "*":
        return len(levels) == len(wanted) and levels[:-1] == wanted[:-1]
    return wanted == levels


LEVELS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4)
SUBSCRIPTIONS = st.builds(lambda levels, end: ".".join([*levels, *end]), LEVELS, st.sampled_from(["", "*", ">"]))


@given(
    changes=st.lists(st.tuples(st.sampled_from("xyz"), st.lists(SUBSCRIPTIONS, max_size=4)), max_size=8),
    topic=LEVELS.map(".".join),
)
def test_listeners_are_those_with_a_subscription_that_covers_the_topic(
    changes: list[tuple[str, list[str]]], topic: str
) -> None:
    topics, model = Topics(), dict[str, tuple[str, ...]]()
    for name, wanted in changes:
        checked = check_subscriptions(wanted)
        assert topics.replace(name, checked) == (model.get(name, ()) != checked)
        model[name] = checked
    expected = {name for name, wanted in model.items() if any(covers(one, topic) for one in wanted)}
    found = topics.listeners(topic)
    assert set(found) == expected
    assert len(found) == len(expected)
    assert all(topics.of(name) == wanted for name, wanted in model.items())


def test_whoever_stops_listening_leaves_nothing_behind() -> None:
    topics = Topics()
    topics.replace("bob", ("a.b", "a.*", ">"))
    topics.replace("bob", ())
    assert (topics.listeners("a.b"), topics.of("bob")) == ([], ())


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "a.*", ">", "a b", "a.\n", "x" * 256, "a\ud800"])
def test_a_topic_that_is_not_valid_is_named_with_the_expected_form(name: str) -> None:
    with pytest.raises(InvalidArgument, match="expected a dotted name") as raised:
        check_topic(name)
    assert raised.value.field == "to"


@pytest.mark.parametrize("name", ["a", "a.b", "Größe.東京", "x" * 255, "a-b.c_d"])
def test_a_topic_that_is_valid_stands(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize("name", ["", "*.a", ">.a", "a.b*", "a.>.b", "a..*", "a. "])
def test_a_subscription_that_is_not_valid_is_named_with_the_expected_form(name: str) -> None:
    with pytest.raises(InvalidArgument, match="whose last level may be") as raised:
        check_subscriptions([name])
    assert raised.value.field == "topics"


def test_subscriptions_lose_their_prefix_and_repetitions_and_are_bounded() -> None:
    assert check_subscriptions(["topic:a.*", "a.*", "b", ">"]) == ("a.*", "b", ">")
    many = [f"t{number}" for number in range(MAX_TOPICS)]
    assert len(check_subscriptions(many)) == MAX_TOPICS
    with pytest.raises(InvalidArgument, match="101 topics; expected at most 100"):
        check_subscriptions([*many, "one.more"])
