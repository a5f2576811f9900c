"""Subscriptions with the DF by ACL message (SC00035): who is told what, once, also when a mailbox was full."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fakes import ManualStore, NotingOrigin
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from raw import acl

from gagent_grpc.acl import sl0
from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.descriptions import DFAgentDescription, Property, ServiceDescription
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative as P
from gagent_grpc.bus.platform import Caller, Hello, Platform
from gagent_grpc.bus.ports import StoredMessage, StoredPlatform, StoredSubscription
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

SUMS = {"action": "search", "description": {"services": [{"type": "sum"}]}}
EVERYTHING = {"action": "search"}
SL0 = (
    "((action (agent-identifier :name df@local) "
    "(search (df-agent-description :services (set (service-description :type sum))))))"
)


def offer(*types: str, **changes: Any) -> DFAgentDescription:
    return DFAgentDescription(services=tuple(ServiceDescription(type=one, **changes) for one in types))


class Bench:
    """A platform with a subscriber, `alice`, whose mail is read as it comes."""

    def __init__(self, store: Any = None, **limits: Any) -> None:
        bounds = BusLimits(**limits)
        self.store = store or MemoryStore()
        self.codec = EnvelopeCodec(max_id_bytes=bounds.max_id_bytes)
        self.clock = FakeClock()
        self.platform = Platform("local", self.store, self.codec, self.clock, bounds)

    async def start(self) -> Bench:
        await self.open("alice")
        return self

    async def open(self, agent: str, *types: str, **changes: Any) -> Any:
        hello = Hello(agent, description=offer(*types, **changes) if types else None)
        return (await self.platform.attach(hello, "local")).session

    def say(self, act: P, content: Any, conversation: str | None = "c", *, sender: str = "alice", **more: Any) -> None:
        """Send a message to the DF."""
        text = json.dumps(content) if isinstance(content, dict) else content
        message = ACLMessage(
            act,
            receivers=(AgentIdentifier("df"),),
            content=text,
            conversation_id=conversation,
            **{"reply_with": "r", "protocol": "fipa-subscribe", **more},
        )
        origin = NotingOrigin(sender if sender == "anonymous" else f"{sender}@local")
        self.platform.router.submit(self.codec.encode(message, message_id=""), origin, 1)
        assert origin.reached == [(1, "df")]

    def commit(self) -> None:
        """What was written is durable."""
        self.platform.post.commit(self.store.commit())

    def letters(self, name: str = "alice") -> list[ACLMessage]:
        """Take the mail of an agent."""
        record = self.platform.ams.get(name)
        found = [self.codec.decode_acl(letter.envelope.payload) for letter in record.mailbox.drain()]
        assert all(one is not None for one in found)
        return [one for one in found if one is not None]

    def told(self, name: str = "alice") -> list[list[tuple[str, list[str]]]]:
        """Return what each `inform` of the DF in the mailbox tells: agents and the types of their services."""
        told = []
        for message in self.letters(name):
            if str(message.sender) != "df@local":
                continue
            assert message.performative is P.INFORM, message
            result = json.loads(str(message.content))["result"]
            told.append([(one["name"].partition("@")[0], types_of(one)) for one in result])
        return told

    def modify(self, name: str, *types: str) -> None:
        self.platform.modify_description(offer(*types), Caller(self.platform.ams.get(name), "local", operator=True))


def types_of(entry: dict[str, Any]) -> list[str]:
    return [service["type"] for service in entry.get("services", [])]


@pytest.fixture
async def bench() -> Bench:
    return await Bench().start()


# ---- telling ---------------------------------------------------------------------------------------------------------


async def test_current_matches_come_first_and_each_change_once(bench: Bench) -> None:
    await bench.open("a", "sum")
    await bench.open("b", "sum", "sing")
    await bench.open("c", "sing")
    bench.say(P.SUBSCRIBE, SUMS)
    assert bench.told() == [[("a", ["sum"]), ("b", ["sum", "sing"])]]
    bench.modify("c", "sum")
    bench.modify("c", "sum")
    bench.modify("b", "sing")
    bench.platform.deregister("a", Caller(None, "", operator=True))
    # A removed one comes with its name and no services, as on other platforms.
    assert bench.told() == [[("c", ["sum"])], [("b", [])], [("a", [])]]
    bench.platform.keep_house()
    bench.platform.release_lanes()
    assert bench.told() == []


async def test_informs_are_answers_in_the_conversation_and_the_language_of_the_subscribe(bench: Bench) -> None:
    bench.say(P.SUBSCRIBE, SL0, "mine", language="fipa-sl0", ontology="fipa-agent-management")
    await bench.open("a", "sum")
    first, second = bench.letters()
    for message in (first, second):
        assert str(message.sender) == "df@local"
        assert (message.performative, message.conversation_id, message.in_reply_to) == (P.INFORM, "mine", "r")
        assert (message.protocol, message.language, message.ontology) == (
            "fipa-subscribe",
            "fipa-sl0",
            "fipa-agent-management",
        )
    answers = [sl0.parse_answer(str(one.content)) for one in (first, second)]
    assert all(isinstance(one, sl0.Result) and one.action == sl0.parse_action(SL0) for one in answers)
    empty, (found,) = [one.items for one in answers if isinstance(one, sl0.Result)]
    assert empty == ()
    assert isinstance(found, DFAgentDescription)
    assert found.name == "a@local"


async def test_expression_of_the_standard_subscribes_as_its_action_does(bench: Bench) -> None:
    bench.say(P.SUBSCRIBE, f"((iota ?x (result {SL0[1:-1]} ?x)))")
    assert len(bench.letters()) == 1
    await bench.open("a", "sum")
    assert len(bench.letters()) == 1


async def test_what_searches_do_not_find_is_removed_and_comes_back(bench: Bench) -> None:
    session = await bench.open("a", "sum")
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    governor = Caller(None, "", operator=True)
    bench.platform.suspend("a", governor)
    bench.platform.resume("a", governor)
    bench.platform.detach(session)
    await bench.open("a")
    assert bench.told() == [[("a", [])], [("a", ["sum"])], [("a", [])], [("a", ["sum"])]]


async def test_ended_lease_is_told_once(bench: Bench) -> None:
    described = DFAgentDescription(services=(ServiceDescription(type="sum"),), lease_seconds=10)
    await bench.platform.attach(Hello("a", description=described), "local")
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    bench.clock.advance(10)
    bench.platform.keep_house()
    bench.platform.keep_house()
    assert bench.told() == [[("a", [])]]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ({}, True),
        ({"name": "a"}, True),
        ({"name": "b"}, False),
        ({"protocols": ["fipa-request"]}, False),
        ({"services": [{"name": "n"}]}, True),
        ({"services": [{"type": "sum", "properties": {"lang": "en"}}]}, True),
        ({"services": [{"properties": {"lang": None}}]}, True),
        ({"services": [{"properties": {"lang": "de"}}]}, False),
        ({"services": [{"languages": ["fipa-sl0"]}]}, True),
    ],
)
async def test_templates_of_every_kind_are_heard_of_by_their_changes(
    bench: Bench, template: dict[str, Any], told: bool
) -> None:
    bench.say(P.SUBSCRIBE, {"action": "search", "description": template})
    bench.letters()
    await bench.open("a", "sum", name="n", properties=(Property("lang", "en"),), languages=frozenset({"fipa-sl0"}))
    assert bench.told() == ([[("a", ["sum"])]] if told else [])


async def test_subscriptions_of_several_conversations_and_agents_are_told_apart(bench: Bench) -> None:
    await bench.open("bob")
    bench.say(P.SUBSCRIBE, SUMS, "1")
    bench.say(P.SUBSCRIBE, EVERYTHING, "2")
    bench.say(P.SUBSCRIBE, SUMS, "1", sender="bob")
    bench.letters(), bench.letters("bob")
    await bench.open("a", "sum")
    assert sorted(str(one.conversation_id) for one in bench.letters()) == ["1", "2"]
    assert [one.conversation_id for one in bench.letters("bob")] == ["1"]


# ---- ending ----------------------------------------------------------------------------------------------------------


async def test_cancel_ends_it_and_is_answered_by_inform(bench: Bench) -> None:
    bench.say(P.SUBSCRIBE, SUMS, "1")
    bench.say(P.SUBSCRIBE, SL0, "2")
    bench.letters()
    bench.say(P.CANCEL, None, "1")
    bench.say(P.CANCEL, SL0, "2")
    first, second = bench.letters()
    assert (first.performative, json.loads(str(first.content))) == (P.INFORM, {"done": "cancel"})
    assert (second.performative, sl0.parse_answer(str(second.content))) == (
        P.INFORM,
        sl0.Done(sl0.parse_action(SL0)),
    )
    await bench.open("a", "sum")
    assert bench.letters() == []
    assert len(bench.platform.subscriptions) == 0


async def test_cancel_of_what_is_not_subscribed_is_a_failure(bench: Bench) -> None:
    await bench.open("bob")
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    for conversation, sender in (("other", "alice"), (None, "alice"), ("c", "bob")):
        bench.say(P.CANCEL, None, conversation, sender=sender)
        (answer,) = bench.letters(sender)
        assert answer.performative is P.FAILURE
        assert json.loads(str(answer.content))["error"] == "not-registered"
    assert len(bench.platform.subscriptions) == 1


async def test_subscriptions_end_with_the_name_and_with_a_farewell_but_not_with_a_lost_connection() -> None:
    bench = await Bench(resume_grace=30).start()
    session = bench.platform.ams.get("alice").session
    assert session is not None
    bench.say(P.SUBSCRIBE, SUMS)
    bench.platform.detach(session)
    bench.clock.advance(100)
    bench.platform.keep_house()
    await bench.open("a", "sum")
    assert bench.told() == [[], [("a", ["sum"])]]
    bench.platform.bye(await bench.open("alice"), deregister=False)
    assert len(bench.platform.subscriptions) == 0
    await bench.open("b", "sum")
    assert bench.letters() == []
    bench.say(P.SUBSCRIBE, SUMS)
    bench.platform.deregister("alice", Caller(None, "", operator=True))
    assert len(bench.platform.subscriptions) == 0
    await bench.open("c", "sum")


async def test_subscribers_hear_of_the_end_of_the_bus(bench: Bench) -> None:
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    session = bench.platform.ams.get("alice").session
    assert session is not None
    bench.platform.detach(session)
    await bench.platform.drain()
    (message,) = bench.letters()
    assert (message.performative, message.conversation_id) == (P.FAILURE, "c")
    assert "subscribe again" in str(message.content)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "more", "act", "reason"),
    [
        ({"action": "register", "description": {}}, {}, P.REFUSE, "unrecognised-parameter-value"),
        ({"action": "frobnicate"}, {}, P.REFUSE, "unsupported-function"),
        ("hello", {}, P.REFUSE, "unrecognised-parameter-value"),
        (None, {}, P.REFUSE, "unrecognised-parameter-value"),
        (SUMS, {"conversation": None}, P.REFUSE, "missing-parameter"),
        ({"action": "search", "description": {"name": "a@elsewhere"}}, {}, P.REFUSE, "unrecognised-parameter-value"),
        (SUMS, {"ontology": "beer"}, P.NOT_UNDERSTOOD, "unsupported-value"),
        ({"action": "search", "description": {"name": "x" * 9_000}}, {}, P.REFUSE, "unrecognised-parameter-value"),
    ],
)
async def test_subscribe_that_cannot_be_served_says_why(
    bench: Bench, content: Any, more: dict[str, Any], act: P, reason: str
) -> None:
    bench.say(P.SUBSCRIBE, content, **more)
    (answer,) = bench.letters()
    assert answer.performative is act
    assert json.loads(str(answer.content))["error"] == reason
    assert len(bench.platform.subscriptions) == 0


async def test_nobody_in_particular_subscribes_to_nothing(bench: Bench) -> None:
    bench.say(P.SUBSCRIBE, SUMS, sender="anonymous")
    assert len(bench.platform.subscriptions) == 0


async def test_subscriptions_of_an_agent_are_bounded_and_the_same_conversation_begins_anew() -> None:
    bench = await Bench(df_subscriptions=2).start()
    await bench.open("a", "sum")
    for conversation in ("1", "2", "1"):
        bench.say(P.SUBSCRIBE, SUMS, conversation)
    assert bench.told() == [[("a", ["sum"])]] * 3
    bench.say(P.SUBSCRIBE, SUMS, "3")
    (answer,) = bench.letters()
    assert answer.performative is P.FAILURE
    assert "df_subscriptions" in json.loads(str(answer.content))["detail"]
    await bench.open("b", "sum")
    assert len(bench.told()) == 2


# ---- full mailboxes --------------------------------------------------------------------------------------------------


def fill(bench: Bench, name: str = "alice") -> None:
    """Fill a mailbox to its bound."""
    origin = NotingOrigin("filler@local")
    while not origin.refusals:
        bench.platform.router.submit(acl(name).SerializeToString(), origin, 1)
    assert bench.platform.ams.get(name).mailbox.full


async def test_change_that_finds_no_room_is_told_later_as_it_is_then() -> None:
    bench = await Bench(mailbox_messages=16).start()
    await bench.open("filler")
    for name in "abc":
        await bench.open(name, "sum")
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    fill(bench)
    bench.modify("a", "sing")
    bench.modify("b", "sing")
    bench.modify("b", "sum", "sing")
    await bench.open("d", "sum")
    await bench.open("e", "sum")
    bench.platform.deregister("e", Caller(None, "", operator=True))
    # Nobody else waits for it.
    await bench.open("bob")
    bench.say(P.SUBSCRIBE, SUMS, sender="bob")
    bench.platform.release_lanes()
    # There is always room for one more of who has little in a mailbox; after that it is really full.
    assert bench.told() == [[("a", [])]]
    bench.platform.release_lanes()
    assert bench.told() == [[("b", ["sum", "sing"])], [("d", ["sum"])]]
    bench.platform.release_lanes()
    assert bench.told() == []
    bench.modify("c", "sing")
    assert bench.told() == [[("c", [])]]


async def test_subscriber_that_is_told_bit_by_bit_misses_nothing() -> None:
    bench = await Bench(mailbox_messages=16).start()
    await bench.open("filler")
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    fill(bench)
    for number in range(60):
        await bench.open(f"a{number}", "sum")
    found: list[str] = []
    for _ in range(10):
        found += [name for one in bench.told() for name, _ in one]
        bench.platform.release_lanes()
    assert found == [f"a{number}" for number in range(60)]


async def test_changes_that_concern_many_are_told_in_turns_each_once_and_in_order() -> None:
    bench = await Bench(df_subscriptions=1_000).start()
    await bench.open("bob")
    await bench.open("a", "sing")
    for number in range(300):
        bench.say(P.SUBSCRIBE, SUMS, f"{number}")
        bench.say(P.SUBSCRIBE, SUMS, f"{number}", sender="bob")
    bench.letters()
    bench.letters("bob")
    changes = [["sum"], ["sum", "sing"], ["sing"], ["sum", "ask"]]
    for types in changes:
        bench.modify("a", *types)
    # Whoever subscribes meanwhile finds what is, and hears of nothing that was before.
    bench.say(P.SUBSCRIBE, SUMS, "late")
    at_once = [bench.letters(), bench.letters("bob")]
    assert sum(map(len, at_once)) == 201
    heard: dict[tuple[int, str | None], list[list[str]]] = {}
    for _ in range(20):
        for place, letters in enumerate(at_once):
            for message in letters:
                result = json.loads(str(message.content))["result"]
                heard.setdefault((place, message.conversation_id), []).append([t for e in result for t in types_of(e)])
        bench.platform.release_lanes()
        at_once = [bench.letters(), bench.letters("bob")]
        assert sum(map(len, at_once)) <= 200
    assert heard.pop((0, "late")) == [["sum", "ask"]]
    assert len(heard) == 600
    for told in heard.values():
        assert [sorted(one) for one in told] == [["sum"], ["sing", "sum"], [], ["ask", "sum"]]


async def test_those_who_never_read_keep_nobody_else_from_their_turn() -> None:
    bench = await Bench(mailbox_messages=128).start()
    await bench.open("filler")
    stuck = ["s1", "s2", "s3"]
    for name in stuck:
        await bench.open(name)
        for number in range(100):
            bench.say(P.SUBSCRIBE, SUMS, f"{number}", sender=name)
        fill(bench, name)
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    fill(bench)
    # The second one finds no room in any of the mailboxes.
    for name in "abcdefghijklmnop":
        await bench.open(name, "sum")
    told = bench.told()
    for _ in range(5):
        bench.platform.release_lanes()
        told += bench.told()
    assert [name for one in told for name, _ in one] == list("abcdefghijklmnop")


async def test_matches_that_do_not_fit_one_message_come_one_by_one() -> None:
    bench = await Bench(max_message_bytes=1_000).start()
    for number in range(20):
        await bench.open(f"a{number}", "sum", name="x" * 100)
    bench.say(P.SUBSCRIBE, SUMS)
    assert [name for one in bench.told() for name, _ in one] == [f"a{number}" for number in range(20)]
    await bench.open("b", "sum")
    assert bench.told() == [[("b", ["sum"])]]


async def test_match_that_fits_no_message_ends_the_subscription_with_a_failure() -> None:
    bench = await Bench(max_message_bytes=1_000).start()
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    await bench.open("a", "sum", name="x" * 2_000)
    (message,) = bench.letters()
    assert message.performative is P.FAILURE
    assert len(bench.platform.subscriptions) == 0


async def test_match_that_fits_no_message_ends_the_subscription_once_there_is_room_to_say_so() -> None:
    bench = await Bench(max_message_bytes=1_000, mailbox_messages=4).start()
    await bench.open("filler")
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    fill(bench)
    await bench.open("a", "sum", name="x" * 2_000)
    await bench.open("b", "sum", name="x" * 2_000)
    for _ in range(3):
        bench.platform.release_lanes()
    assert len(bench.platform.subscriptions) == 1
    bench.letters()
    for _ in range(3):
        bench.platform.release_lanes()
    (message,) = bench.letters()
    assert message.performative is P.FAILURE
    assert len(bench.platform.subscriptions) == 0


async def test_match_that_fits_again_before_there_was_room_goes_on() -> None:
    bench = await Bench(max_message_bytes=1_000, mailbox_messages=4).start()
    await bench.open("filler")
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    fill(bench)
    await bench.open("a", "sum", name="x" * 2_000)
    bench.modify("a", "sum")
    bench.letters()
    bench.platform.release_lanes()
    assert bench.told() == [[("a", ["sum"])]]
    assert len(bench.platform.subscriptions) == 1


@pytest.mark.parametrize("content", [SUMS, SL0])
async def test_match_whose_content_fits_and_whose_message_does_not_is_no_silence(content: Any) -> None:
    bench = await Bench(max_message_bytes=1_000).start()
    bench.say(P.SUBSCRIBE, content)
    bench.letters()
    for size in range(300, 1_000, 10):
        await bench.open(f"a{size}", "sum", name="\N{GREEK SMALL LETTER ALPHA}" + "x" * size)
        letters = bench.letters()
        assert len(letters) == 1, size
        if letters[0].performative is P.FAILURE:
            break
    assert len(bench.platform.subscriptions) == 0


# ---- the bus is killed -----------------------------------------------------------------------------------------------


async def killed(bench: Bench, **limits: Any) -> Bench:
    """Return what runs on the store of a platform that was killed."""
    store = bench.store
    stored = StoredPlatform(clean=False, agents=list(store.agents.values()))
    stored.subscriptions = list(store.subscriptions.values())
    return Bench(ManualStore(stored), **limits)


async def durable(**limits: Any) -> Bench:
    return await Bench(ManualStore(), **limits).start()


async def test_who_subscribed_to_a_bus_that_is_killed_hears_of_it_at_the_next_start() -> None:
    before = await durable()
    before.say(P.SUBSCRIBE, SUMS, "one", ontology="fipa-agent-management")
    before.say(P.SUBSCRIBE, SL0, "two", language="fipa-sl0", protocol=None)
    bench = await killed(before)
    async with bench.platform.running():
        bench.commit()
        one, two = bench.letters()
        assert [one.performative, two.performative] == [P.FAILURE, P.FAILURE]
        assert (str(one.sender), one.conversation_id, one.in_reply_to) == ("df@local", "one", "r")
        assert (one.protocol, one.ontology) == ("fipa-subscribe", "fipa-agent-management")
        assert "subscribe again" in json.loads(str(one.content))["detail"]
        assert (two.conversation_id, two.protocol, two.language) == ("two", "fipa-subscribe", "fipa-sl0")
        assert "subscribe again" in str(two.content)
        # Once.
        assert bench.store.subscriptions == {}
        bench.platform.release_lanes()
        assert bench.letters() == []


@pytest.mark.parametrize("how", ["cancel", "bye", "deregister", "end of the bus"])
async def test_what_has_ended_before_is_told_no_more(how: str) -> None:
    bench = await durable()
    session = bench.platform.ams.get("alice").session
    assert session is not None
    bench.say(P.SUBSCRIBE, SUMS)
    assert len(bench.store.subscriptions) == 1
    if how == "cancel":
        bench.say(P.CANCEL, "")
    elif how == "end of the bus":
        async with bench.platform.running():
            pass
    else:
        bench.platform.bye(session, deregister=how == "deregister")
    assert bench.store.subscriptions == {}


async def test_what_finds_no_room_at_the_end_stays_written_down() -> None:
    bench = await durable(mailbox_messages=4)
    bench.say(P.SUBSCRIBE, SUMS)
    bench.letters()
    fill(bench)
    async with bench.platform.running():
        pass
    assert len(bench.store.subscriptions) == 1


async def restarted_with_a_full_mailbox() -> Bench:
    before = await durable()
    before.say(P.SUBSCRIBE, SUMS)
    stored = (await killed(before)).store.stored
    payload = acl("alice").SerializeToString()
    stored.messages = [StoredMessage("alice", 1, "x@local", "m", "", b"", "", 1.0, 0, payload)]
    return Bench(ManualStore(stored), mailbox_messages=1)


async def test_who_has_no_room_at_the_next_start_hears_of_it_when_it_has() -> None:
    bench = await restarted_with_a_full_mailbox()
    async with bench.platform.running():
        bench.platform.release_lanes()
        assert bench.store.accepted == []
        bench.letters()
        bench.platform.release_lanes()
        bench.commit()
        assert [one.performative for one in bench.letters()] == [P.FAILURE]


async def test_who_subscribes_again_in_the_conversation_is_told_of_no_end() -> None:
    bench = await restarted_with_a_full_mailbox()
    async with bench.platform.running():
        await bench.open("alice")
        bench.letters()
        bench.say(P.SUBSCRIBE, SUMS)
        bench.platform.release_lanes()
        bench.commit()
        assert [one.performative for one in bench.letters()] == [P.INFORM]


async def test_what_is_written_down_of_agents_that_are_gone_or_in_no_form_is_dropped() -> None:
    stored = StoredPlatform(agents=list((await durable()).store.agents.values()))
    stored.subscriptions = [StoredSubscription("nobody", "c", "{}"), StoredSubscription("alice", "c", "[")]
    store = ManualStore(stored)
    store.subscriptions = {(one.name, one.conversation): one for one in stored.subscriptions}
    bench = Bench(store)
    async with bench.platform.running():
        assert store.subscriptions == {}
        assert store.accepted == []


class Believer(RuleBasedStateMachine):
    """Whatever happens and however full its mailbox is: a subscriber that has caught up believes what a search finds."""

    names = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.bench = Bench(mailbox_messages=4)
        self.run(self.bench.start())
        self.run(self.bench.open("filler"))
        self.bench.say(P.SUBSCRIBE, SUMS)
        self.believed: dict[str, list[str]] = {}
        self.sessions: dict[str, Any] = {}

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def teardown(self) -> None:
        self.loop.close()

    @rule(name=names, types=st.sampled_from([("sum",), ("sum", "sing"), ("sing",)]))
    def comes_or_changes(self, name: str, types: tuple[str, ...]) -> None:
        if name not in self.sessions:
            self.sessions[name] = self.run(self.bench.open(name, *types))
        else:
            self.bench.modify(name, *types)

    @rule(name=names)
    def is_lost(self, name: str) -> None:
        if name in self.sessions:
            self.bench.platform.detach(self.sessions.pop(name))

    @rule()
    def mailbox_is_full(self) -> None:
        fill(self.bench)

    @rule()
    def reads(self) -> None:
        for name, types in [told for one in self.bench.told() for told in one]:
            # Each change is news.
            assert self.believed.get(name, []) != types
            if types:
                self.believed[name] = types
            else:
                del self.believed[name]

    @rule()
    def time_passes(self) -> None:
        self.bench.platform.release_lanes()

    @invariant()
    def believes_what_is_found_once_it_has_caught_up(self) -> None:
        if self.bench.platform.ams.get("alice").mailbox.messages:
            return
        self.bench.platform.release_lanes()
        while self.bench.platform.ams.get("alice").mailbox.messages:
            self.reads()
            self.bench.platform.release_lanes()
        self.bench.say(P.REQUEST, {**SUMS, "constraints": {"max_results": -1}}, "asked")
        (answer,) = self.bench.told()
        assert dict(answer) == self.believed


Believer.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBeliever = Believer.TestCase
