"""The matching rule of FIPA SC00023, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acl.descriptions import (
    AMSAgentDescription,
    DFAgentDescription,
    LifeCycleState,
    Property,
    ServiceDescription,
)
from gagent_grpc.acl.matching import matches_ams, matches_df, matches_service

SERVICE = ServiceDescription(
    name="s-en",
    type="summarise",
    protocols=frozenset({"fipa-request", "fipa-query"}),
    ontologies=frozenset({"docs"}),
    languages=frozenset({"en", "fr"}),
    ownership="ops",
    properties=(Property("lang", "en"), Property("max_tokens", "4000"), Property("beta")),
)
TRANSLATE = ServiceDescription(name="t", type="translate")
ENTRY = DFAgentDescription(
    name="sum1@p",
    services=(SERVICE, TRANSLATE),
    protocols=frozenset({"fipa-request"}),
    ontologies=frozenset({"docs", "mail"}),
    languages=frozenset({"fipa-sl0"}),
    lease_seconds=30.0,
)
EMPTY = DFAgentDescription()


def test_empty_template_matches_everything() -> None:
    assert matches_df(EMPTY, ENTRY)
    assert matches_df(EMPTY, EMPTY)
    assert matches_service(ServiceDescription(), SERVICE)
    assert matches_ams(AMSAgentDescription(), AMSAgentDescription("a", "ops", LifeCycleState.ACTIVE))


@pytest.mark.parametrize("name", [field.name for field in fields(DFAgentDescription)])
def test_df_parameter_matches_itself_and_not_its_absence(name: str) -> None:
    template = replace(EMPTY, **{name: getattr(ENTRY, name)})
    assert matches_df(template, ENTRY)
    assert not matches_df(template, replace(ENTRY, **{name: getattr(EMPTY, name)}))


@pytest.mark.parametrize("name", [field.name for field in fields(ServiceDescription)])
def test_service_parameter_matches_itself_and_not_its_absence(name: str) -> None:
    empty = ServiceDescription()
    template = replace(empty, **{name: getattr(SERVICE, name)})
    assert matches_service(template, SERVICE)
    assert not matches_service(template, replace(SERVICE, **{name: getattr(empty, name)}))


def test_constants_are_compared_with_case() -> None:
    assert not matches_df(DFAgentDescription(name="Sum1@p"), ENTRY)
    assert not matches_service(ServiceDescription(type="Summarise"), SERVICE)
    assert not matches_service(ServiceDescription(languages=frozenset({"EN"})), SERVICE)


def test_set_matches_when_it_contains_every_element_of_the_template() -> None:
    assert matches_df(DFAgentDescription(ontologies=frozenset({"mail"})), ENTRY)
    assert not matches_df(DFAgentDescription(ontologies=frozenset({"mail", "news"})), ENTRY)


def test_two_services_of_the_template_may_match_the_same_service() -> None:
    template = DFAgentDescription(services=(ServiceDescription(type="summarise"), ServiceDescription(name="s-en")))
    assert matches_df(template, replace(ENTRY, services=(SERVICE,)))


def test_every_service_of_the_template_needs_a_match() -> None:
    template = DFAgentDescription(services=(ServiceDescription(type="summarise"), ServiceDescription(type="sing")))
    assert not matches_df(template, ENTRY)


def test_parameters_of_one_template_service_are_matched_by_one_service() -> None:
    # Each parameter is there, but in two different services.
    assert not matches_df(DFAgentDescription(services=(ServiceDescription(type="summarise", name="t"),)), ENTRY)


def test_property_without_value_matches_any_value() -> None:
    for prop in (Property("lang"), Property("beta"), Property("lang", "en")):
        assert matches_service(ServiceDescription(properties=(prop,)), SERVICE)
    for prop in (Property("lang", "fr"), Property("beta", "yes"), Property("Lang"), Property("other")):
        assert not matches_service(ServiceDescription(properties=(prop,)), SERVICE)


class Counted(tuple[Property, ...]):
    """Properties that count how often somebody goes through them."""

    looks = 0

    def __iter__(self) -> Iterator[Property]:
        Counted.looks += 1
        return super().__iter__()


def test_properties_of_an_offer_are_gone_through_once_however_many_services_are_wanted() -> None:
    offered = [ServiceDescription(type="t", properties=Counted((Property("a"), Property("b", "1")))) for _ in range(8)]
    wanted = [ServiceDescription(type="t", properties=(Property("b", "2"), Property("a")))] * 8
    assert not matches_df(DFAgentDescription(services=tuple(wanted)), DFAgentDescription(services=tuple(offered)))
    # Names and values of each, and not once more for each that is wanted.
    assert 0 < Counted.looks <= 2 * len(offered)


def test_empty_text_is_a_constant_and_not_an_absence() -> None:
    assert not matches_df(DFAgentDescription(name=""), ENTRY)
    assert not matches_service(ServiceDescription(properties=(Property("lang", ""),)), SERVICE)


def test_ams_template_compares_name_ownership_and_state() -> None:
    entry = AMSAgentDescription("a@p", "ops", LifeCycleState.SUSPENDED)
    for template in (AMSAgentDescription(name="a@p"), AMSAgentDescription(state=LifeCycleState.SUSPENDED), entry):
        assert matches_ams(template, entry)
    for template in (
        AMSAgentDescription(name="a"),
        AMSAgentDescription(ownership="Ops"),
        AMSAgentDescription(name="a@p", state=LifeCycleState.ACTIVE),
    ):
        assert not matches_ams(template, entry)
    assert not matches_ams(entry, AMSAgentDescription("a@p"))


few = st.sampled_from(["a", "b", "c"])
few_sets = st.frozensets(few, max_size=2)
services = st.builds(
    ServiceDescription,
    name=st.none() | few,
    type=st.none() | few,
    protocols=few_sets,
    properties=st.lists(st.builds(Property, few, st.none() | few), max_size=2).map(tuple),
)
descriptions = st.builds(
    DFAgentDescription, name=st.none() | few, services=st.lists(services, max_size=3).map(tuple), languages=few_sets
)


@settings(deadline=None)
@given(descriptions)
def test_description_matches_itself(description: DFAgentDescription) -> None:
    assert matches_df(description, description)


@settings(deadline=None)
@given(descriptions, descriptions, descriptions)
def test_what_matches_a_narrower_template_matches_the_wider_one(
    wide: DFAgentDescription, narrow: DFAgentDescription, entry: DFAgentDescription
) -> None:
    narrow = replace(
        narrow,
        name=wide.name or narrow.name,
        services=narrow.services + wide.services,
        languages=narrow.languages | wide.languages,
    )
    assert matches_df(wide, narrow)
    if matches_df(narrow, entry):
        assert matches_df(wide, entry)
