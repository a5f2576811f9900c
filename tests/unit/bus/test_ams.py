"""The AMS: names, searches, and which life-cycle state follows which."""

from __future__ import annotations

from typing import cast

import pytest

from gagent_grpc.acl.descriptions import AMSAgentDescription, LifeCycleState, SearchConstraints
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.mailbox import Mailbox
from gagent_grpc.bus.session import Session
from gagent_grpc.errors import (
    AgentNotRegistered,
    InvalidName,
    PreconditionFailed,
    ResourceExhausted,
    Unauthorised,
    UnrecognisedParameterValue,
)

ALL = SearchConstraints(max_results=-1)
SOME_SESSION = cast("Session", object())


@pytest.fixture
def ams() -> AgentManagementSystem:
    return AgentManagementSystem("here", max_agents=5)


def add(ams: AgentManagementSystem, name: str, **attributes: object) -> AgentRecord:
    box = Mailbox(max_messages=10, max_bytes=1_000)
    record = AgentRecord(name, ams.platform, principal="ops", mailbox=box, registered_at=1.0)
    for attribute, value in attributes.items():
        setattr(record, attribute, value)
    ams.add(record)
    return record


def test_agent_is_found_by_both_forms_of_its_name_until_it_is_removed(ams: AgentManagementSystem) -> None:
    record = add(ams, "bob")
    assert ams.find("bob") is ams.find("bob@here") is record
    assert ams.get("bob@here") is record
    assert ams.find("Bob") is None
    ams.remove(record)
    assert ams.find("bob") is ams.find("bob@here") is None
    assert len(ams) == 0


@pytest.mark.parametrize("address", ["nobody", "nobody@here"])
def test_unknown_name_is_not_registered(ams: AgentManagementSystem, address: str) -> None:
    with pytest.raises(AgentNotRegistered, match="nobody: not registered with the AMS"):
        ams.get(address)


@pytest.mark.parametrize("address", ["", "a b", "bob@", "bob@else where", "bob@elsewhere", "@here"])
def test_name_that_is_none_of_this_platform_is_invalid(ams: AgentManagementSystem, address: str) -> None:
    with pytest.raises(InvalidName):
        ams.get(address)
    with pytest.raises(InvalidName):
        ams.claimable(address)


@pytest.mark.parametrize("address", ["ams", "df@here"])
def test_names_of_the_platforms_own_agents_cannot_be_borne(ams: AgentManagementSystem, address: str) -> None:
    with pytest.raises(Unauthorised, match="reserved"):
        ams.claimable(address)


def test_platform_name_is_checked() -> None:
    with pytest.raises(InvalidName):
        AgentManagementSystem("two words", max_agents=1)


def test_number_of_agents_is_bounded(ams: AgentManagementSystem) -> None:
    for index in range(5):
        add(ams, f"a{index}")
    with pytest.raises(ResourceExhausted, match="max_agents"):
        add(ams, "one-more")
    assert ams.find("one-more") is None


def test_search_compares_what_the_template_names(ams: AgentManagementSystem) -> None:
    add(ams, "a", ownership="ops")
    add(ams, "b", ownership="dev", state=LifeCycleState.ACTIVE)
    add(ams, "c", ownership="dev")
    add(ams, "cli-1", ephemeral=True)

    def search(constraints: SearchConstraints = ALL, **template: object) -> list[str]:
        wanted = AMSAgentDescription(**template)  # type: ignore[arg-type]  # [arg-type]: passed on as they are.
        return [record.name for record in ams.search(wanted, constraints)]

    assert search() == ["a", "b", "c"]
    assert search(SearchConstraints()) == ["a"]
    assert search(SearchConstraints(max_results=2)) == ["a", "b"]
    assert search(ownership="dev") == ["b", "c"]
    assert search(ownership="dev", state=LifeCycleState.INITIATED) == ["c"]
    assert search(name="cli-1") == ["cli-1"]
    assert search(name="b", ownership="ops") == []
    with pytest.raises(UnrecognisedParameterValue, match="max-results is 0"):
        search(SearchConstraints(max_results=0))


S = LifeCycleState


@pytest.mark.parametrize(
    ("act", "before", "after"),
    [
        ("invoke", S.INITIATED, S.ACTIVE),
        ("invoke", S.UNKNOWN, S.ACTIVE),
        ("invoke", S.SUSPENDED, S.SUSPENDED),
        ("invoke", S.WAITING, S.WAITING),
        ("lose", S.ACTIVE, S.UNKNOWN),
        ("lose", S.SUSPENDED, S.SUSPENDED),
        ("lose", S.WAITING, S.WAITING),
        ("suspend", S.ACTIVE, S.SUSPENDED),
        ("suspend", S.WAITING, S.SUSPENDED),
        ("suspend", S.UNKNOWN, S.SUSPENDED),
        ("suspend", S.SUSPENDED, S.SUSPENDED),
        ("suspend", S.INITIATED, None),
        ("suspend", S.TRANSIT, None),
        ("resume", S.ACTIVE, S.ACTIVE),
        ("resume", S.WAITING, S.WAITING),
        ("resume", S.INITIATED, None),
        ("resume", S.UNKNOWN, None),
    ],
)
def test_life_cycle(ams: AgentManagementSystem, act: str, before: S, after: S | None) -> None:
    record = add(ams, "bob", state=before)
    if after is None:
        with pytest.raises(PreconditionFailed, match=f"bob is {before}"):
            getattr(ams, act)(record)
        assert record.state is before
    else:
        said = getattr(ams, act)(record)
        assert said in {None, before is not after}
        assert record.state is after


@pytest.mark.parametrize(
    ("before", "session", "after"),
    [
        (S.ACTIVE, SOME_SESSION, S.ACTIVE),
        (S.WAITING, SOME_SESSION, S.WAITING),
        (S.UNKNOWN, SOME_SESSION, S.ACTIVE),
        (S.ACTIVE, None, S.UNKNOWN),
    ],
)
def test_resume_restores_what_suspend_found(
    ams: AgentManagementSystem, before: S, session: Session | None, after: S
) -> None:
    record = add(ams, "bob", state=before)
    ams.suspend(record)
    ams.suspend(record)
    record.session = session
    assert ams.resume(record)
    assert record.state is after


@pytest.mark.parametrize("state", list(S))
def test_only_an_active_agent_gets_mail_and_only_who_is_there_is_found(ams: AgentManagementSystem, state: S) -> None:
    record = add(ams, "bob", state=state, session=SOME_SESSION)
    assert record.deliverable == (state is S.ACTIVE)
    assert record.matchable == (state in {S.ACTIVE, S.WAITING})
    record.session = None
    assert not record.matchable


# ---- the table of SC00023 §5.1.2 -------------------------------------------------------------------------------------

S = LifeCycleState
TABLE = {
    (S.ACTIVE, S.SUSPENDED): ("suspend", True, True),
    (S.WAITING, S.SUSPENDED): ("suspend", True, True),
    (S.UNKNOWN, S.SUSPENDED): ("suspend", True, True),
    (S.SUSPENDED, S.ACTIVE): ("resume", False, True),
    (S.ACTIVE, S.WAITING): ("wait", True, False),
    (S.WAITING, S.ACTIVE): ("wake up", False, True),
    (S.ACTIVE, S.TRANSIT): ("move", True, False),
    (S.TRANSIT, S.ACTIVE): ("execute", False, True),
}


@pytest.mark.parametrize("wanted", list(S))
@pytest.mark.parametrize("before", list(S))
def test_state_changes_by_the_table_and_in_no_other_way(ams: AgentManagementSystem, before: S, wanted: S) -> None:
    record = add(ams, "bob", state=before, session=SOME_SESSION)
    if before is wanted:
        assert ams.transition(record, wanted) is None
    elif (before, wanted) not in TABLE:
        with pytest.raises(PreconditionFailed, match=f"bob is {before}, from which no transition leads to {wanted}"):
            ams.transition(record, wanted)
    else:
        transition = ams.transition(record, wanted)
        assert transition is not None
        assert (transition.name, transition.of_agent, transition.of_ams) == TABLE[before, wanted]
        ams.carry_out(record, transition)
        assert record.state is wanted


def test_refused_transition_names_those_that_are_possible(ams: AgentManagementSystem) -> None:
    with pytest.raises(PreconditionFailed, match="possible are: suspended, transit, waiting"):
        ams.transition(add(ams, "bob", state=S.ACTIVE), S.INITIATED)
    with pytest.raises(PreconditionFailed, match="it has to open a session first"):
        ams.transition(add(ams, "eve", state=S.INITIATED), S.WAITING)


@pytest.mark.parametrize("before", [S.WAITING, S.TRANSIT])
def test_agent_without_a_session_is_lost_rather_than_active(ams: AgentManagementSystem, before: S) -> None:
    record = add(ams, "bob", state=before)
    transition = ams.transition(record, S.ACTIVE)
    assert transition is not None
    ams.carry_out(record, transition)
    assert record.state is S.UNKNOWN


def test_waiting_agent_that_was_suspended_waits_again(ams: AgentManagementSystem) -> None:
    for session in (SOME_SESSION, None):
        record = add(ams, f"bob{session is None}", state=S.WAITING, session=session)
        assert ams.suspend(record)
        assert ams.resume(record)
        assert record.state is S.WAITING


@pytest.mark.parametrize(
    ("state", "delivers", "matches"),
    [
        (S.INITIATED, False, False),
        (S.ACTIVE, True, True),
        (S.SUSPENDED, False, False),
        (S.WAITING, False, True),
        (S.TRANSIT, False, False),
        (S.UNKNOWN, False, False),
    ],
)
def test_mail_and_searches_go_by_the_state(ams: AgentManagementSystem, state: S, delivers: bool, matches: bool) -> None:
    record = add(ams, "bob", state=state, session=SOME_SESSION)
    assert (record.deliverable, record.matchable) == (delivers, matches)
