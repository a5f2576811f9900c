"""The directory facilitator: registration, leases, search order, bounds, and what a search looks at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gagent_grpc.acl.descriptions import DFAgentDescription, Property, SearchConstraints, ServiceDescription
from gagent_grpc.acl.matching import matches_df
from gagent_grpc.bus.df import MAX_DESCRIPTION_CHARS, MAX_SERVICES, DirectoryFacilitator
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    AgentNotRegistered,
    MissingParameter,
    ResourceExhausted,
    UnrecognisedParameterValue,
)

ALL = SearchConstraints(max_results=-1)
EVERYTHING = DFAgentDescription()


def offer(name: str, *types: str, lease: float | None = None) -> DFAgentDescription:
    services = tuple(ServiceDescription(type=type_) for type_ in types)
    return DFAgentDescription(name=name, services=services, lease_seconds=lease)


def wanted(type_: str) -> DFAgentDescription:
    return DFAgentDescription(services=(ServiceDescription(type=type_),))


def alive(_: str) -> bool:
    return True


def names(
    df: DirectoryFacilitator,
    template: DFAgentDescription = EVERYTHING,
    *,
    now: float = 0.0,
    most: int = -1,
    live: Callable[[str], bool] = alive,
) -> list[str | None]:
    found = df.search(template, SearchConstraints(max_results=most), now=now, live=live)
    return [description.name for description in found]


@pytest.fixture
def df() -> DirectoryFacilitator:
    return DirectoryFacilitator(max_entries=100)


def test_registered_agent_is_found_until_it_deregisters(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing"), now=0)
    assert names(df, wanted("sing")) == ["a"]
    df.deregister("a")
    assert names(df, wanted("sing")) == []
    assert len(df) == 0
    assert df.get("a") is None


def test_second_registration_is_refused_and_changes_nothing(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing"), now=0)
    with pytest.raises(AgentAlreadyRegistered) as raised:
        df.register(offer("a", "dance"), now=0)
    assert (raised.value.name, raised.value.where) == ("a", "DF")
    assert names(df, wanted("sing")) == ["a"]
    assert names(df, wanted("dance")) == []


def test_unknown_agent_can_neither_modify_nor_deregister(df: DirectoryFacilitator) -> None:
    for act in (lambda: df.deregister("a"), lambda: df.modify(offer("a", "sing"), now=0)):
        with pytest.raises(AgentNotRegistered) as raised:
            act()
        assert (raised.value.name, raised.value.where) == ("a", "DF")
    assert len(df) == 0


def test_withdraw_says_whether_there_was_an_entry(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing"), now=0)
    assert df.withdraw("a") is True
    assert df.withdraw("a") is False


def test_modification_replaces_the_whole_entry(df: DirectoryFacilitator) -> None:
    df.register(replace(offer("a", "sing"), languages=frozenset({"en"})), now=0)
    df.modify(offer("a", "dance"), now=0)
    assert names(df, wanted("sing")) == []
    assert names(df, DFAgentDescription(languages=frozenset({"en"}))) == []
    assert names(df, wanted("dance")) == ["a"]


def test_replace_installs_and_overwrites(df: DirectoryFacilitator) -> None:
    df.replace(offer("a", "sing"), now=0)
    df.replace(offer("a", "dance"), now=0)
    assert [description.services[0].type for description in df] == ["dance"]


def test_name_is_mandatory(df: DirectoryFacilitator) -> None:
    for nameless in (offer("", "sing"), DFAgentDescription()):
        with pytest.raises(MissingParameter) as raised:
            df.register(nameless, now=0)
        assert (raised.value.object_name, raised.value.parameter) == ("df-agent-description", "name")


def test_type_of_each_service_is_mandatory(df: DirectoryFacilitator) -> None:
    for untyped in (ServiceDescription(name="x"), ServiceDescription(name="x", type="")):
        with pytest.raises(MissingParameter) as raised:
            df.register(DFAgentDescription("a", services=(ServiceDescription(type="sing"), untyped)), now=0)
        assert (raised.value.object_name, raised.value.parameter) == ("service-description", "type")
    assert len(df) == 0


def test_text_that_is_no_unicode_is_refused_before_anything_changes(df: DirectoryFacilitator) -> None:
    df.register(offer("bob", "sum"), now=0)
    for change in (df.modify, df.replace):
        with pytest.raises(UnrecognisedParameterValue, match="Unicode"):
            change(offer("bob", "half a pair: \ud800"), now=0)
    assert names(df, wanted("sum")) == ["bob"]


def test_service_without_name_is_named_after_its_type(df: DirectoryFacilitator) -> None:
    kept = df.register(offer("a", "sing"), now=0)
    assert kept.services == (ServiceDescription(name="sing", type="sing"),)
    assert names(df, DFAgentDescription(services=(ServiceDescription(name="sing"),))) == ["a"]


# --- search ----------------------------------------------------------------------------------------------------------


def test_oldest_registration_comes_first(df: DirectoryFacilitator) -> None:
    for name in ("z", "a", "m"):
        df.register(offer(name, "sing"), now=0)
    assert names(df, wanted("sing")) == ["z", "a", "m"]
    assert names(df) == ["z", "a", "m"]


def test_modification_keeps_the_place_in_the_order(df: DirectoryFacilitator) -> None:
    df.register(offer("old", "dance"), now=0)
    df.register(offer("young", "sing"), now=0)
    df.modify(offer("old", "dance", "sing"), now=0)
    assert names(df, wanted("sing")) == ["old", "young"]
    df.deregister("old")
    df.register(offer("old", "sing"), now=0)
    assert names(df, wanted("sing")) == ["young", "old"]


@pytest.mark.parametrize(
    ("most", "expected"), [(1, ["a0"]), (2, ["a0", "a1"]), (9, ["a0", "a1", "a2"]), (-1, ["a0", "a1", "a2"])]
)
def test_max_results_bounds_the_answer(df: DirectoryFacilitator, most: int, expected: list[str]) -> None:
    for i in range(3):
        df.register(offer(f"a{i}", "sing"), now=0)
    assert names(df, wanted("sing"), most=most) == expected


def test_absent_max_results_is_one(df: DirectoryFacilitator) -> None:
    for name in ("a", "b"):
        df.register(offer(name, "sing"), now=0)
    assert len(df.search(EVERYTHING, SearchConstraints(), now=0, live=alive)) == 1


def test_max_results_zero_is_refused(df: DirectoryFacilitator) -> None:
    with pytest.raises(UnrecognisedParameterValue) as raised:
        names(df, most=0)
    assert (raised.value.object_name, raised.value.parameter) == ("search-constraints", "max-results")


def test_agent_that_is_not_live_is_passed_over_and_does_not_count(df: DirectoryFacilitator) -> None:
    for name in ("a", "b", "c"):
        df.register(offer(name, "sing"), now=0)
    assert names(df, wanted("sing"), most=1, live=lambda name: name != "a") == ["b"]
    assert names(df, DFAgentDescription(name="a"), live=lambda name: name != "a") == []


@pytest.mark.parametrize(
    "template",
    [
        DFAgentDescription(name="a"),
        wanted("sing"),
        DFAgentDescription(services=(ServiceDescription(name="alto"),)),
        DFAgentDescription(services=(ServiceDescription(protocols=frozenset({"sp"})),)),
        DFAgentDescription(services=(ServiceDescription(ontologies=frozenset({"so"})),)),
        DFAgentDescription(services=(ServiceDescription(languages=frozenset({"sl"})),)),
        DFAgentDescription(services=(ServiceDescription(ownership="ops"),)),
        DFAgentDescription(services=(ServiceDescription(properties=(Property("key", "c"),)),)),
        DFAgentDescription(protocols=frozenset({"p"})),
        DFAgentDescription(ontologies=frozenset({"o"})),
        DFAgentDescription(languages=frozenset({"l"})),
    ],
)
def test_every_parameter_of_a_template_finds_the_one_agent(
    df: DirectoryFacilitator, template: DFAgentDescription
) -> None:
    df.register(offer("other", "dance"), now=0)
    service = ServiceDescription(
        name="alto",
        type="sing",
        protocols=frozenset({"sp"}),
        ontologies=frozenset({"so"}),
        languages=frozenset({"sl"}),
        ownership="ops",
        properties=(Property("key", "c"),),
    )
    df.register(DFAgentDescription("a", (service,), frozenset({"p"}), frozenset({"o"}), frozenset({"l"})), now=0)
    assert names(df, template) == ["a"]


def test_agent_level_sets_and_service_level_sets_are_different_parameters(df: DirectoryFacilitator) -> None:
    df.register(DFAgentDescription("a", languages=frozenset({"en"})), now=0)
    assert names(df, DFAgentDescription(services=(ServiceDescription(languages=frozenset({"en"})),))) == []


class CountingRule:
    """The matching rule, and how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, template: DFAgentDescription, entry: DFAgentDescription) -> bool:
        self.calls += 1
        return matches_df(template, entry)


def test_search_looks_only_at_registrations_that_share_the_rarest_text_of_the_template() -> None:
    matches = CountingRule()
    df = DirectoryFacilitator(max_entries=10_001, matches=matches)
    for i in range(10_000):
        df.register(replace(offer(f"a{i}", f"common{i % 3}"), languages=frozenset({"en"})), now=0)
    df.register(replace(offer("rare1", "rare"), languages=frozenset({"en"})), now=0)

    assert names(df, wanted("rare")) == ["rare1"]
    assert matches.calls == 1

    # The language alone would yield all of them; the type is the better key.
    assert names(df, replace(wanted("rare"), languages=frozenset({"en"}))) == ["rare1"]
    assert matches.calls == 2

    assert names(df, wanted("nobody has it")) == []
    assert names(df, DFAgentDescription(name="nobody")) == []
    assert matches.calls == 2

    # The search ends with the last result that is asked for.
    assert names(df, wanted("common1"), most=3) == ["a1", "a4", "a7"]
    assert matches.calls == 5


def test_index_forgets_what_has_gone() -> None:
    matches = CountingRule()
    df = DirectoryFacilitator(max_entries=10, matches=matches)
    df.register(offer("a", "sing"), now=0)
    df.register(offer("b", "sing", lease=5), now=0)
    df.modify(offer("a", "dance"), now=0)
    assert df.expire(5) == ["b"]
    assert names(df, wanted("sing")) == []
    assert matches.calls == 0


# --- leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "policy", "granted"),
    [(None, None, None), (30, None, 30), (None, 60, 60), (30, 60, 30), (90, 60, 60)],
)
def test_lease_granted_is_the_smaller_of_asked_and_policy(
    asked: float | None, policy: float | None, granted: float | None
) -> None:
    df = DirectoryFacilitator(max_entries=10, max_lease=policy)
    assert df.register(offer("a", "sing", lease=asked), now=0).lease_seconds == granted
    (kept,) = df.search(EVERYTHING, ALL, now=0, live=alive)
    assert kept.lease_seconds == granted


@pytest.mark.parametrize("asked", [0, -1, float("nan"), float("inf")])
def test_lease_that_is_no_positive_number_is_refused(df: DirectoryFacilitator, asked: float) -> None:
    with pytest.raises(UnrecognisedParameterValue, match="lease-time"):
        df.register(offer("a", "sing", lease=asked), now=0)


def test_entry_never_matches_from_the_end_of_its_lease_even_before_it_is_swept(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing", lease=30), now=1000)
    assert names(df, wanted("sing"), now=1029.9) == ["a"]
    assert names(df, wanted("sing"), now=1030) == []
    assert names(df, now=1030) == []
    assert names(df, DFAgentDescription(name="a"), now=1030) == []
    assert df.expire(1029.9) == []
    assert df.expire(1030) == ["a"]
    assert len(df) == 0
    assert df.expire(1030) == []


def test_expiry_reports_names_in_the_order_in_which_leases_end(df: DirectoryFacilitator) -> None:
    for name, lease in (("slow", 30.0), ("never", None), ("fast", 10.0), ("later", 99.0)):
        df.register(offer(name, "sing", lease=lease), now=0)
    assert df.expire(50) == ["fast", "slow"]
    assert names(df, now=50) == ["never", "later"]


def test_modification_renews_the_lease(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing", lease=30), now=0)
    df.modify(offer("a", "sing", lease=30), now=20)
    assert df.expire(30) == []
    assert names(df, now=49) == ["a"]
    df.modify(offer("a", "sing"), now=49)
    assert df.expire(1e9) == []
    assert names(df, now=1e9) == ["a"]


def test_entry_whose_lease_has_ended_blocks_no_registration_and_cannot_be_modified(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing", lease=5), now=0)
    df.register(offer("b", "sing"), now=0)
    with pytest.raises(AgentNotRegistered):
        df.modify(offer("a", "sing"), now=5)
    df.register(offer("a", "sing"), now=5)
    assert names(df, now=5) == ["b", "a"]
    assert df.expire(100) == []


def test_registration_under_an_old_name_is_not_swept_by_the_old_lease(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing", lease=5), now=0)
    df.deregister("a")
    df.register(offer("a", "sing", lease=50), now=1)
    assert df.expire(10) == []
    assert names(df, now=10) == ["a"]


def test_frequent_renewals_of_a_long_lease_lose_no_expiry(df: DirectoryFacilitator) -> None:
    df.register(offer("steady", "sing", lease=3600), now=0)
    df.register(offer("short", "sing", lease=2500), now=0)
    for now in range(1000):
        df.modify(offer("steady", "sing", lease=3600), now=now)
    assert df.expire(2500) == ["short"]
    assert df.expire(999 + 3599) == []
    assert df.expire(999 + 3600) == ["steady"]


# --- bounds and persistence ------------------------------------------------------------------------------------------


def test_full_registry_refuses_newcomers_and_still_serves_its_own() -> None:
    df = DirectoryFacilitator(max_entries=2)
    df.register(offer("a", "sing"), now=0)
    df.register(offer("b", "sing"), now=0)
    for install in (df.register, df.replace):
        with pytest.raises(ResourceExhausted, match=r"2 entries.*max_df_entries"):
            install(offer("c", "sing"), now=0)
    df.modify(offer("a", "dance"), now=0)
    df.replace(offer("b", "dance"), now=0)
    assert names(df, wanted("dance")) == ["a", "b"]
    df.deregister("a")
    df.register(offer("c", "sing"), now=0)
    assert names(df) == ["b", "c"]


def test_agent_whose_lease_has_ended_registers_again_in_a_full_registry() -> None:
    df = DirectoryFacilitator(max_entries=1)
    df.register(offer("a", "sing", lease=5), now=0)
    df.register(offer("a", "dance", lease=5), now=5)
    assert names(df, wanted("dance"), now=5) == ["a"]


def test_entry_and_template_have_a_limited_number_of_services(df: DirectoryFacilitator) -> None:
    most = [f"t{i}" for i in range(MAX_SERVICES)]
    df.register(offer("a", *most), now=0)
    assert names(df, offer("a", *most)) == ["a"]
    with pytest.raises(UnrecognisedParameterValue, match="65 elements; the limit is 64"):
        df.register(offer("b", *most, "one more"), now=0)
    with pytest.raises(UnrecognisedParameterValue, match="65 elements; the limit is 64"):
        names(df, offer("a", *most, "one more"))


@pytest.mark.parametrize(
    "service",
    [
        ServiceDescription(type="x" * MAX_DESCRIPTION_CHARS),
        ServiceDescription(type="x", languages=frozenset(map(str, range(MAX_DESCRIPTION_CHARS // 4)))),
        ServiceDescription(type="x", properties=(Property("", ""),) * (MAX_DESCRIPTION_CHARS // 2)),
    ],
    ids=["one text", "many languages", "many empty properties"],
)
def test_size_of_an_entry_is_limited(df: DirectoryFacilitator, service: ServiceDescription) -> None:
    with pytest.raises(UnrecognisedParameterValue, match="the limit is 65,536"):
        df.register(DFAgentDescription("a", services=(service,)), now=0)
    assert len(df) == 0


def test_stored_entries_restore_an_equal_registry(df: DirectoryFacilitator) -> None:
    df.register(offer("b", "sing", lease=30), now=1)
    df.register(offer("a", "sing", "dance"), now=2)
    df.modify(offer("b", "dance", lease=30), now=3)
    df.replace(offer("a", "sing", "dance"), now=4)
    stored = [df.stored(name) for name in ("b", "a")]
    assert [(one.registered_at, one.lease_end) for one in stored] == [(1, 33), (2, math.inf)]
    restored = DirectoryFacilitator(max_entries=100)
    assert all(restored.restore(one, now=20) for one in stored)
    assert list(restored) == list(df)
    assert [restored.stored(name) for name in ("b", "a")] == stored
    assert names(restored, wanted("dance"), now=20) == ["b", "a"]
    assert restored.expire(32.9) == []
    assert restored.expire(33) == ["b"]


def test_entry_whose_lease_ended_meanwhile_is_not_restored(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing", lease=30), now=0)
    assert not DirectoryFacilitator(max_entries=100).restore(df.stored("a"), now=30)


def test_restored_lease_is_no_longer_than_the_policy_of_today(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing"), now=0)
    df.register(offer("b", "sing", lease=1_000), now=0)
    restored = DirectoryFacilitator(max_entries=100, max_lease=60)
    for name in ("a", "b"):
        assert restored.restore(df.stored(name), now=100)
        assert restored.stored(name).lease_end == 160


def test_entry_that_comes_after_the_end_of_a_lease_is_a_new_one(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing", lease=30), now=0)
    df.replace(offer("a", "sing"), now=30)
    assert df.stored("a").registered_at == 30


class RegistryAgainstModel(RuleBasedStateMachine):
    """Any sequence of acts leaves the registry in agreement with a plain list that is searched from end to end."""

    agents = st.sampled_from("abcd")
    types = st.lists(st.sampled_from("xyz"), max_size=3)
    leases = st.none() | st.integers(1, 5)

    @initialize()
    def start(self) -> None:
        self.df = DirectoryFacilitator(max_entries=10)
        self.now = 0.0
        self.model: list[tuple[DFAgentDescription, float]] = []

    def in_model(self, name: str) -> int | None:
        return next((i for i, (entry, end) in enumerate(self.model) if entry.name == name and end > self.now), None)

    @rule(name=agents, types=types, lease=leases)
    def register(self, name: str, types: list[str], lease: int | None) -> None:
        if self.in_model(name) is not None:
            with pytest.raises(AgentAlreadyRegistered):
                self.df.register(offer(name, *types, lease=lease), now=self.now)
        else:
            kept = self.df.register(offer(name, *types, lease=lease), now=self.now)
            self.model = [item for item in self.model if item[0].name != name]
            self.model.append((kept, self.now + lease if lease else float("inf")))

    @rule(name=agents, types=types, lease=leases)
    def modify(self, name: str, types: list[str], lease: int | None) -> None:
        place = self.in_model(name)
        if place is None:
            with pytest.raises(AgentNotRegistered):
                self.df.modify(offer(name, *types, lease=lease), now=self.now)
        else:
            kept = self.df.modify(offer(name, *types, lease=lease), now=self.now)
            self.model[place] = (kept, self.now + lease if lease else float("inf"))

    @rule(name=agents)
    def withdraw(self, name: str) -> None:
        assert self.df.withdraw(name) == any(entry.name == name for entry, _ in self.model)
        self.model = [item for item in self.model if item[0].name != name]

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        gone = {entry.name for entry, end in self.model if end <= self.now}
        assert set(self.df.expire(self.now)) == gone
        self.model = [item for item in self.model if item[1] > self.now]

    @invariant()
    def searches_agree(self) -> None:
        for template in (
            EVERYTHING,
            wanted("x"),
            offer("a", "y"),
            replace(offer("", "x", "z"), name=None),
        ):
            expected = [entry for entry, end in self.model if end > self.now and matches_df(template, entry)]
            assert self.df.search(template, ALL, now=self.now, live=alive) == expected


RegistryAgainstModel.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=25)
test_registry_agrees_with_a_plain_list = RegistryAgainstModel.TestCase


# ---- renewing --------------------------------------------------------------------------------------------------------


def test_renewed_lease_begins_anew_and_says_what_is_granted() -> None:
    df = DirectoryFacilitator(max_entries=10, max_lease=20)
    df.register(offer("a", "sing", lease=10), now=0)
    df.register(offer("b", "sing"), now=0)
    assert df.renew("a", None, now=8).lease_seconds == 10
    assert df.expire(17.9) == []
    assert df.renew("a", 15, now=17).lease_seconds == 15
    assert df.renew("a", 1_000, now=18).lease_seconds == 20
    assert df.expire(37.9) == ["b"]
    assert names(df, now=37.9) == ["a"]
    assert df.expire(38) == ["a"]


def test_renewal_keeps_the_entry_and_its_place(df: DirectoryFacilitator) -> None:
    df.register(offer("a", "sing", lease=10), now=0)
    df.register(offer("b", "sing"), now=0)
    before = df.get("a")
    assert df.renew("a", None, now=5) == before
    assert names(df, wanted("sing"), now=14) == ["a", "b"]
    assert df.renew("b", None, now=5).lease_seconds is None


def test_only_a_current_entry_is_renewed_and_by_a_positive_lease(df: DirectoryFacilitator) -> None:
    with pytest.raises(AgentNotRegistered, match="nobody: not registered with the DF"):
        df.renew("nobody", None, now=0)
    df.register(offer("a", "sing", lease=10), now=0)
    for lease in (0, -1, math.nan, math.inf):
        with pytest.raises(UnrecognisedParameterValue, match="lease-time"):
            df.renew("a", lease, now=1)
    with pytest.raises(AgentNotRegistered):
        df.renew("a", None, now=10)


def test_current_entry_is_there_until_its_lease_ends(df: DirectoryFacilitator) -> None:
    entry = df.register(offer("a", "sing", lease=10), now=0)
    assert df.current("a", 9.9) == entry
    assert df.current("a", 10) is None
    assert df.current("b", 0) is None
