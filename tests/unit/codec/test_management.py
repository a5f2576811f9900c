"""AMS and DF descriptions to the wire and back: every slot, absent and empty told apart where FIPA does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.acl.descriptions import (
    AMSAgentDescription,
    DFAgentDescription,
    LifeCycleState,
    Property,
    SearchConstraints,
    ServiceDescription,
)
from gagent_grpc.codec.management import (
    MAX_DESCRIPTION_BYTES,
    ams_from_proto,
    ams_to_proto,
    constraints_of,
    df_from_proto,
    df_to_proto,
    service_from_proto,
    state_from_proto,
    state_to_proto,
)
from gagent_grpc.errors import UnrecognisedParameterValue
from gagent_grpc.pb.gagent.v1 import agent_pb2

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
maybe = st.none() | texts
sets = st.frozensets(texts, max_size=3)
services = st.builds(
    ServiceDescription,
    name=maybe,
    type=maybe,
    protocols=sets,
    ontologies=sets,
    languages=sets,
    ownership=maybe,
    properties=st.lists(st.builds(Property, texts, maybe), max_size=3).map(tuple),
)
descriptions = st.builds(
    DFAgentDescription,
    name=st.none() | texts.filter(bool),
    services=st.lists(services, max_size=3).map(tuple),
    protocols=sets,
    ontologies=sets,
    languages=sets,
    lease_seconds=st.none() | st.floats(allow_nan=False),
)


@settings(deadline=None)
@given(descriptions)
def test_df_description_comes_back_as_it_was(description: DFAgentDescription) -> None:
    wire = agent_pb2.DfAgentDescription.FromString(df_to_proto(description).SerializeToString())
    assert df_from_proto(wire) == description


@given(
    st.builds(AMSAgentDescription, st.none() | texts.filter(bool), maybe, st.none() | st.sampled_from(LifeCycleState))
)
def test_ams_description_comes_back_as_it_was(description: AMSAgentDescription) -> None:
    wire = ams_to_proto(description, connected=True, mailbox_messages=3, ephemeral=True)
    assert (wire.connected, wire.mailbox_messages, wire.ephemeral) == (True, 3, True)
    assert ams_from_proto(wire) == description


def _filled(message: Any, name: str) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is not None and field.is_repeated:
        getattr(message, name).add(name="x")
    elif field.message_type is not None:
        getattr(message, name).name = "x"
    elif field.is_repeated:
        getattr(message, name).append("x")
    else:
        setattr(message, name, "x" if field.type == field.TYPE_STRING else 2)
    return message


@pytest.mark.parametrize("name", [field.name for field in agent_pb2.DfAgentDescription.DESCRIPTOR.fields])
def test_no_slot_of_a_df_description_is_dropped(name: str) -> None:
    wire = _filled(agent_pb2.DfAgentDescription(), name)
    assert df_to_proto(df_from_proto(wire)) == wire


@pytest.mark.parametrize("name", [field.name for field in agent_pb2.ServiceDescription.DESCRIPTOR.fields])
def test_no_slot_of_a_service_is_dropped(name: str) -> None:
    wire = agent_pb2.DfAgentDescription(services=[_filled(agent_pb2.ServiceDescription(), name)])
    assert df_to_proto(df_from_proto(wire)) == wire


def test_states_have_the_numbers_of_the_wire() -> None:
    wire = {name.removeprefix("AGENT_STATE_"): number for name, number in agent_pb2.AgentState.items() if number}
    assert wire == {state.name: int(state) for state in LifeCycleState}
    assert state_to_proto(None) == 0
    assert state_from_proto(0) is None
    assert all(state_from_proto(state_to_proto(state)) is state for state in LifeCycleState)


@pytest.mark.parametrize("number", [7, -1])
def test_unknown_state_is_refused_with_the_states_that_there_are(number: int) -> None:
    with pytest.raises(UnrecognisedParameterValue, match=rf"state is {number}; expected one of 1 \(initiated\)"):
        state_from_proto(number)


def test_description_beyond_all_measure_is_refused_unread() -> None:
    wire = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription()] * (MAX_DESCRIPTION_BYTES // 2 + 1))
    with pytest.raises(UnrecognisedParameterValue, match="300,002 bytes encoded; the limit is 300,000"):
        df_from_proto(wire)


def test_absent_property_value_is_not_an_empty_one() -> None:
    wire = agent_pb2.ServiceDescription(
        properties=[agent_pb2.ServiceProperty(name="a"), agent_pb2.ServiceProperty(name="b", value="")]
    )
    assert service_from_proto(wire).properties == (Property("a", None), Property("b", ""))


def test_absent_number_of_results_is_one() -> None:
    assert constraints_of(None) == SearchConstraints(max_results=1)
    assert constraints_of(-1).max_results == -1
    assert constraints_of(0).max_results == 0
