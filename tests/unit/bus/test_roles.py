"""Who gets a message to a role: the one with the least mail, several in turn, and a conversation stays with its agent."""

from __future__ import annotations

from typing import Any

import pytest
from raw import acl

from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.mailbox import Letter, Mailbox
from gagent_grpc.bus.roles import Roles
from gagent_grpc.codec.envelope import EnvelopeCodec

CODEC = EnvelopeCodec(max_id_bytes=128)
NOW = 1_000_000.0


class Town:
    """Agents that offer services, and who is chosen among them."""

    def __init__(self) -> None:
        self.ams = AgentManagementSystem("local", max_agents=1_000)
        self.df = DirectoryFacilitator(max_entries=1_000)
        self.roles = Roles(self.ams, self.df)
        self.now = NOW

    def open(self, name: str, *services: str) -> AgentRecord:
        box = Mailbox(max_messages=100, max_bytes=100_000)
        record = AgentRecord(name, "local", principal="", mailbox=box, registered_at=NOW)
        self.ams.add(record)
        # What is there has a session; whose it is does not matter here.
        session: Any = object()
        record.session = session
        self.ams.invoke(record)
        offered = tuple(ServiceDescription(type=one) for one in services)
        self.df.register(DFAgentDescription(name=record.aid, services=offered), now=NOW)
        return record

    def give(self, record: AgentRecord) -> None:
        envelope = CODEC.decode(acl("x").SerializeToString())
        letter = Letter(record.mailbox.take_sequence(), envelope, "s@local", "id", "", NOW)
        letter.account = record.mailbox.reserve(letter.size, "s@local")
        record.mailbox.put(letter)

    def choose(self, service: str, sender: str = "s@local", conversation: str = "", **more: Any) -> str | None:
        found = self.roles.choose(service, sender, conversation, self.now, **more)
        return found.name if found is not None else None


@pytest.fixture
def town() -> Town:
    return Town()


def test_agents_with_as_little_mail_are_chosen_in_turn(town: Town) -> None:
    a, _, _ = (town.open(name, "sum") for name in "abc")
    assert [town.choose("sum") for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]
    town.give(a)
    assert [town.choose("sum") for _ in range(4)] == ["b", "c", "b", "c"]


def test_whose_turn_it_is_does_not_depend_on_other_services(town: Town) -> None:
    for name in ("a", "b"):
        town.open(name, "sum")
    for name in ("x", "y"):
        town.open(name, "sing")
    # Whoever asks for both by turns reaches everybody all the same.
    asked = [(town.choose("sum"), town.choose("sing")) for _ in range(4)]
    assert asked == [("a", "x"), ("b", "y"), ("a", "x"), ("b", "y")]


def test_to_ask_whether_anybody_is_there_moves_no_turn(town: Town) -> None:
    a, b = town.open("a", "sum"), town.open("b", "sum")
    assert town.choose("sum") == "a"
    for _ in range(3):
        assert town.roles.has_provider("sum", NOW)
        assert town.roles.has_provider("sum", NOW, lost=a)
    assert town.choose("sum") == "b"
    assert not town.roles.has_provider("sing", NOW)
    b.session = None
    assert not town.roles.has_provider("sum", NOW, lost=a)


def test_a_provider_behind_many_that_are_away_is_found(town: Town) -> None:
    for number in range(600):
        town.open(f"away{number}", "sum").session = None
    town.open("here", "sum")
    assert town.roles.has_provider("sum", NOW)
    assert town.choose("sum") == "here"


def test_a_conversation_stays_with_its_agent_while_that_is_there_and_for_ten_minutes(town: Town) -> None:
    a, b = town.open("a", "sum"), town.open("b", "sum")
    assert town.choose("sum", conversation="c") == "a"
    town.give(a)
    for _ in range(3):
        town.now += 599.0
        assert town.choose("sum", conversation="c") == "a"
    # Of somebody else, and of another service, it is another conversation.
    assert town.choose("sum", "t@local", "c") == "b"
    town.now += 601.0
    assert town.choose("sum", conversation="c") == "b"
    assert town.choose("sum", conversation="c", lost=b) == "a"
    a.session = None
    assert town.choose("sum", conversation="c") == "b"


def test_whoever_sends_serves_itself_only_where_nobody_else_does(town: Town) -> None:
    town.open("a", "sum")
    assert town.choose("sum", "a@local") == "a"
    town.open("b", "sum")
    assert [town.choose("sum", "a@local") for _ in range(3)] == ["b"] * 3
    assert town.choose("sing") is None


def test_what_is_on_offer_is_said_in_few_words(town: Town) -> None:
    assert town.roles.offered() == ""
    town.open("a", "sum")
    town.open("s", "sing")
    assert town.roles.offered() == "; on offer: sum, sing"
    town.open("b", *(f"s{number}" for number in range(9)))
    assert town.roles.offered().endswith(" and others")
