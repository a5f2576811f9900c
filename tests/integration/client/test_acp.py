"""ACP messages between agents: every type over the stream and by `Send`, what is filled in, and the two kinds of agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from raw import acl
from waiting import WAIT, Inbox, settled, until

from gagent_grpc import (
    ACPMessage,
    ACPMessageType,
    ACPMetadata,
    DeliveryRefused,
    Fail,
    InvalidArgument,
    MessageTemplate,
    MissingParameter,
    OneShotBehaviour,
    Outcome,
    ReceivedACP,
    Refuse,
    RefusedByAgent,
)
from gagent_grpc.codec.acp import acp_from_proto, acp_to_proto
from gagent_grpc.pb.gagent.v1 import acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc as services

CONTENTS = {
    "request": {"n": 3, "f": 3.0, "big": 9007199254740993},
    "response": "yes",
    "notification": {"news": [1, None]},
    "heartbeat": None,
    "error": {"code": "DISK_FULL", "error": "no room"},
}
"""Content of each type that is about no task."""


@pytest.fixture
def acp_agents(agents: Any) -> Callable[..., Any]:
    """Return a factory of agents: `await acp_agents("bob", inbox)`; the handler gets every ACP message."""

    async def start(name: str, handler: Any, **settings: Any) -> Any:
        agent = await agents(name, **settings)
        agent.on_acp()(handler)
        return agent

    return start


def wire(kind: int = 1, to: str = "bob", text: str = '"hi"', **message: Any) -> pb.BusMessage:
    """Return an ACP message as a client in another language writes it; `acp_...` keys go into the body."""
    body = {key.removeprefix("acp_"): message.pop(key) for key in list(message) if key.startswith("acp_")}
    made = pb.BusMessage(to=[to] if to else [], **message)
    made.acp.message_type = kind  # type: ignore[assignment]  # [assignment]: a number.
    made.acp.json = text
    for key, value in body.items():
        setattr(made.acp, key, value)
    return made


def stub_of(channel: Any) -> Any:
    return services.BusServiceStub(channel)


# ---- every type --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONTENTS)
async def test_a_message_of_each_type_arrives_as_it_was_sent(
    agents: Any, acp_agents: Any, inbox: Any, kind: str
) -> None:
    bob = await acp_agents("bob", inbox)
    alice = await agents("alice")
    sent = alice.filled(ACPMessage(type=kind, target="bob", content=CONTENTS[kind], extra={"hop": 1.0}))
    assert await alice.send_acp(sent) == []
    await inbox.holds(1)
    (message,) = inbox.messages
    assert isinstance(message, ReceivedACP)
    # The bus vouches for the sender, as it does for those of ACL messages.
    assert message.to_json() == sent.replace(source="alice").to_json()
    assert message.receiver == bob.aid


async def test_each_type_of_a_raw_client_arrives_over_the_stream_and_by_send(
    bus: Any, acp_agents: Any, inbox: Any, connect: Any, channel: Any
) -> None:
    await acp_agents("bob", inbox)
    raw = await connect(bus, "raw")
    kinds = [number for number in range(1, 8) if number != 6]
    for number in kinds:
        await raw.send(wire(number))
    assert await raw.receipted(len(kinds)) == []
    await stub_of(channel).Send(pb.SendRequest(messages=[wire(number) for number in kinds]))
    await inbox.holds(2 * len(kinds))
    named = [kind for kind in ACPMessageType if kind is not ACPMessageType.DELEGATE]
    assert [one.type for one in inbox.messages if one.source == "raw"] == named
    assert sorted(one.type for one in inbox.messages if one.source != "raw") == sorted(named)


async def test_what_a_raw_client_leaves_out_is_filled_in(bus: Any, acp_agents: Any, inbox: Any, connect: Any) -> None:
    await acp_agents("bob", inbox)
    raw = await connect(bus, "raw")
    await raw.send(wire(id="m-1", priority=acp_pb2.PRIORITY_HIGH, headers={"traceparent": "00-a"}))
    await raw.send(wire(to="", acp_target="bob"))
    await inbox.holds(2)
    first, second = inbox.messages
    assert (first.id, first.source, first.target, first.content) == ("m-1", "raw", "bob", "hi")
    assert first.metadata == ACPMetadata("high", trace="00-a")
    assert first.timestamp is not None
    assert second.id
    assert (second.target, second.metadata) == ("bob", ACPMetadata("normal"))


async def test_what_an_agent_sends_says_who_it_is_and_when(bus: Any, agents: Any, connect: Any) -> None:
    raw = await connect(bus, "raw")
    alice = await agents("alice")
    await alice.send_acp(ACPMessage(type="request", target="raw", content="?"))
    (delivery,) = await raw.delivered(1)
    body = acp_from_proto(delivery.message.acp)
    assert body.id == delivery.message.id
    assert (body.source, body.target) == ("alice@local", "raw")
    assert body.metadata == ACPMetadata("normal")
    assert body.timestamp is not None
    assert delivery.message.acp.json == '"?"'


async def test_an_unknown_type_is_refused_by_name_and_the_stream_goes_on(
    bus: Any, acp_agents: Any, inbox: Any, connect: Any
) -> None:
    await acp_agents("bob", inbox)
    raw = await connect(bus, "raw")
    await raw.send(wire(8), wire(0), wire(1, text='"still here"'))
    receipts = await raw.receipted(3)
    assert [(one.number, one.outcome, one.field) for one in receipts] == [
        (1, pb.OUTCOME_INVALID, "acp.message_type"),
        (2, pb.OUTCOME_INVALID, "acp.message_type"),
    ]
    assert "5 (error)" in receipts[0].detail
    assert await inbox.holds(1) == ["still here"]


async def test_content_that_is_no_json_is_answered_by_an_error_and_the_next_message_handled(
    bus: Any, acp_agents: Any, inbox: Any, connect: Any
) -> None:
    await acp_agents("bob", inbox)
    raw = await connect(bus, "raw")
    # What would be answered to these two might be answered in its turn.
    await raw.send(wire(4, text="{"), wire(5, text="{"), wire(1, text="{", id="bad"), wire(1, text='"good"'))
    assert await inbox.holds(1) == ["good"]
    (delivery,) = await raw.delivered(1)
    answer = acp_from_proto(delivery.message.acp)
    assert (answer.type, answer.in_reply_to, answer.content["code"]) == ("error", "bad", "INVALID_CONTENT")
    assert answer.automatic
    await settled(bus, "bob")


# ---- answers -----------------------------------------------------------------------------------------------------------


async def test_what_a_handler_returns_is_the_response(agents: Any, acp_agents: Any, inbox: Any) -> None:
    alice = await acp_agents("alice", inbox)
    bob, carl = await agents("bob"), await agents("carl")

    @bob.on_acp("request")
    async def answer(message: ReceivedACP) -> Any:
        return {"asked": message.content, "f": 3.0}

    @carl.on_acp(ACPMessageType.REQUEST)
    def answer_in_a_thread(message: ReceivedACP) -> Any:
        return [message.content]

    for target in ("bob", "carl"):
        question = ACPMessage(
            "q", "request", target=target, content={"n": 3}, metadata=ACPMetadata("high", trace="00-a")
        )
        await alice.send_acp(question)
        await inbox.holds(1)
        response = inbox.messages.pop()
        assert (response.type, response.source, response.target) == ("response", target, "alice")
        assert response.in_reply_to == "q"
        assert response.metadata == ACPMetadata("high", trace="00-a")
        expected = {"bob": '{"asked": {"n": 3}, "f": 3.0}', "carl": '[{"n": 3}]'}[target]
        assert json.dumps(response.content) == expected
        assert response.headers["hops"] == "1"


@pytest.mark.parametrize(
    ("declined", "code", "text"), [(Refuse("not today"), "REFUSED", "not today"), (Fail("broken"), "FAILED", "broken")]
)
async def test_a_handler_that_declines_answers_by_an_error(
    agents: Any, acp_agents: Any, inbox: Any, declined: Exception, code: str, text: str
) -> None:
    alice = await acp_agents("alice", inbox)
    bob = await agents("bob")

    @bob.on_acp("request")
    async def decline(message: ReceivedACP) -> Any:
        if message.content == "raise":
            raise declined
        return declined

    for content in ("raise", "return"):
        await alice.send_acp(ACPMessage("q-" + content, "request", target="bob", content=content))
        await inbox.holds(1)
        error = inbox.messages.pop()
        assert (error.type, error.in_reply_to) == ("error", "q-" + content)
        assert error.content == {"code": code, "error": text}
        # Somebody has composed it.
        assert not error.automatic


async def test_a_message_whose_handler_raises_comes_again(agents: Any, acp_agents: Any, inbox: Any) -> None:
    attempts: list[int] = []

    async def fail_once(message: ReceivedACP) -> None:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            raise RuntimeError("once")
        await inbox(message)

    await acp_agents("bob", fail_once)
    alice = await agents("alice")
    await alice.send_acp(ACPMessage(type="notification", target="bob", content="news"))
    assert await inbox.holds(1) == ["news"]
    assert attempts == [1, 2]


async def test_only_a_request_is_answered_by_what_a_handler_returns(
    bus: Any, agents: Any, acp_agents: Any, inbox: Any, inboxes: Any
) -> None:
    heard = inboxes()

    async def talk(message: ReceivedACP) -> str:
        await heard(message)
        return "and another thing"

    await acp_agents("bob", talk)
    alice = await acp_agents("alice", inbox)
    for kind in ("notification", "heartbeat", "error", "response", "request"):
        await alice.send_acp(ACPMessage(type=kind, target="bob"))
    await heard.holds(5)
    await settled(bus, "bob")
    await inbox.holds(1)
    assert [one.type for one in inbox.messages] == ["response"]


async def test_a_handler_may_answer_by_itself(agents: Any, acp_agents: Any, inbox: Any) -> None:
    alice = await acp_agents("alice", inbox)
    bob = await agents("bob")

    @bob.on_acp("request")
    async def answer(message: ReceivedACP) -> None:
        await bob.reply_acp(message, "notification", {"progress": 0.5})
        await bob.reply_acp(message, "response", "done", extra={"k": 1})

    await alice.send_acp(ACPMessage("q", "request", target="bob"))
    await inbox.holds(2)
    assert [(one.type, one.in_reply_to, one.extra) for one in inbox.messages] == [
        ("notification", "q", {}),
        ("response", "q", {"k": 1}),
    ]


async def test_a_request_that_nobody_is_for_is_answered_by_a_marked_error_and_a_heartbeat_by_nothing(
    bus: Any, agents: Any, acp_agents: Any, inbox: Any
) -> None:
    await agents("bob")
    alice = await acp_agents("alice", inbox)
    for kind in ("heartbeat", "error", "notification", "response"):
        await alice.send_acp(ACPMessage(type=kind, target="bob", content={"error": "x"}))
    await alice.send_acp(ACPMessage("q", "request", target="bob"))
    await inbox.holds(1)
    await settled(bus, "bob")
    (error,) = inbox.messages
    assert (error.type, error.in_reply_to, error.content["code"]) == ("error", "q", "NOT_UNDERSTOOD")
    assert error.automatic


async def test_the_handler_of_a_type_is_chosen_in_order(agents: Any, inboxes: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")
    first, every, late = inboxes(), inboxes(), inboxes()
    bob.on_acp("notification")(first)
    bob.on_acp()(every)
    bob.on_acp("response")(late)
    for kind in ("notification", "response"):
        await alice.send_acp(ACPMessage(type=kind, target="bob", content=kind))
    assert await first.holds(1) == ["notification"]
    assert await every.holds(1) == ["response"]
    assert late.messages == []
    with pytest.raises(InvalidArgument, match="expected one of: request"):
        bob.on_acp("frobnicate")
    with pytest.raises(InvalidArgument, match="without parentheses"):
        bob.on_acp(first)


# ---- sending -----------------------------------------------------------------------------------------------------------


async def test_the_same_message_again_arrives_once(agents: Any, acp_agents: Any, inbox: Any, bus: Any) -> None:
    await acp_agents("bob", inbox)
    alice = await agents("alice")
    message = alice.filled(ACPMessage(type="request", target="bob", content="once"))
    assert await alice.send_acp(message) == []
    (receipt,) = await alice.send_acp(message)
    assert receipt.outcome is Outcome.DUPLICATE
    with pytest.raises(DeliveryRefused, match="INVALID"):
        await alice.send_acp(message.replace(content="twice"))
    await settled(bus, "bob")
    assert inbox.contents == ["once"]


async def test_who_cannot_be_reached_is_told_at_once(agents: Any) -> None:
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match="NO_SUCH_AGENT"):
        await alice.send_acp(ACPMessage(type="request", target="nobody"))
    with pytest.raises(DeliveryRefused, match="DENIED"):
        await alice.send_acp(ACPMessage(type="request", source="bob", target="alice"))
    with pytest.raises(MissingParameter, match="target"):
        await alice.send_acp(ACPMessage(type="request"))
    with pytest.raises(InvalidArgument, match="signature"):
        await alice.send_acp(ACPMessage(type="request", target="alice", signature="x"))
    with pytest.raises(InvalidArgument, match="year 9999"):
        await alice.send_acp(ACPMessage(type="request", target="alice", metadata=ACPMetadata(ttl=1e300)))


async def test_urgent_messages_pass_what_waits(bus: Any, agents: Any, connect: Any) -> None:
    raw = await connect(bus, "raw", window=pb.Window(messages=1))
    alice = await agents("alice")
    for priority in ("low", "normal", "high", "urgent"):
        await alice.send_acp(
            ACPMessage(type="request", target="raw", content=priority, metadata=ACPMetadata(priority=priority))
        )
    for count in range(1, 5):
        await raw.delivered(count)
        await raw.settle(ack_sequences=[one.sequence for one in raw.deliveries])
    said = [json.loads(one.message.acp.json) for one in raw.deliveries]
    # The first one was on its way already; an urgent one does not wait for the window.
    assert said == ["low", "urgent", "high", "normal"]
    # Who reads the bus message alone sees it, too.
    assert [one.message.priority for one in raw.deliveries[:2]] == [acp_pb2.PRIORITY_LOW, acp_pb2.PRIORITY_URGENT]


async def test_an_urgent_message_is_handled_beside_those_that_wait_for_a_handler(
    bus: Any, acp_agents: Any, connect: Any
) -> None:
    heard: list[Any] = []
    stopped = asyncio.Event()

    async def handle(message: ReceivedACP) -> None:
        heard.append(message.content)
        if message.content == "stop":
            stopped.set()
        await stopped.wait()

    await acp_agents("bob", handle)
    raw = await connect(bus, "raw")
    # The urgency stands in the ACP message alone.
    urgent = wire(3, text='"stop"')
    urgent.acp.metadata.priority = acp_pb2.PRIORITY_URGENT
    await raw.send(wire(3, text='"long"'), wire(3, text='"waits"'))
    await until(lambda: heard == ["long"])
    await raw.send(urgent)
    await until(lambda: heard == ["long", "stop", "waits"])


async def test_priority_and_ttl_of_a_raw_client_count_in_the_acp_message_alone(
    bus: Any, acp_agents: Any, inbox: Any, connect: Any
) -> None:
    raw = await connect(bus, "raw")
    late = wire(1, text='"late"', acp_in_reply_to="x")
    late.acp.metadata.ttl_seconds = 5
    late.acp.timestamp.seconds = 1_700_000_000
    bad = wire(1)
    bad.acp.metadata.ttl_seconds = -1
    fine = wire(1, text='"fine"')
    fine.acp.metadata.ttl_seconds = 600
    fine.acp.metadata.priority = acp_pb2.PRIORITY_URGENT
    await acp_agents("bob", inbox)
    await raw.send(late, bad, fine)
    receipts = await raw.receipted(3)
    assert [(one.number, one.outcome) for one in receipts] == [(1, pb.OUTCOME_EXPIRED), (2, pb.OUTCOME_INVALID)]
    assert receipts[1].field == "acp.metadata.ttl_seconds"
    assert await inbox.holds(1) == ["fine"]
    assert inbox.messages[0].metadata == ACPMetadata("urgent", ttl=600)


async def test_a_message_past_its_ttl_is_not_delivered(agents: Any, bus: Any, connect: Any) -> None:
    raw = await connect(bus, "raw")
    alice = await agents("alice")
    with pytest.raises(DeliveryRefused, match="EXPIRED"):
        await alice.send_acp(
            ACPMessage(type="request", target="raw", timestamp="2020-01-01T00:00:00Z", metadata=ACPMetadata(ttl=60))
        )
    await alice.send_acp(ACPMessage(type="request", target="raw", content="in time", metadata=ACPMetadata(ttl=60)))
    (delivery,) = await raw.delivered(1)
    end = delivery.message.expires_at.ToDatetime() - delivery.message.acp.timestamp.ToDatetime()
    assert end.total_seconds() == 60


# ---- ACL and ACP -------------------------------------------------------------------------------------------------------


async def test_an_acl_agent_answers_an_acp_client(agents: Any, acp_agents: Any, inbox: Any, inboxes: Any) -> None:
    alice = await acp_agents("alice", inbox)
    asked = inboxes()

    async def answer(message: Any) -> str:
        await asked(message)
        if message.content == "no":
            raise Refuse("not today")
        if message.content == "broken":
            raise Fail("it broke")
        return f"you said {message.content}"

    await agents("bob", answer)
    for content, kind, said in [
        ("hi", "response", "you said hi"),
        ({"n": 3.0}, "response", 'you said {"n":3.0}'),
        ("no", "error", {"code": "REFUSED", "error": "not today"}),
        ("broken", "error", {"code": "FAILED", "error": "it broke"}),
    ]:
        question = alice.filled(ACPMessage(type="request", target="bob", content=content))
        await alice.send_acp(question)
        await inbox.holds(1)
        answered = inbox.messages.pop()
        assert (answered.type, answered.content, answered.in_reply_to) == (kind, said, question.id)
        assert (answered.source, answered.target) == ("bob", "alice")
        assert answered.headers["hops"] == "1"
    first, second = asked.messages[:2]
    assert (first.performative.text, first.content, first.language) == ("request", "hi", None)
    assert (second.content, second.language) == ('{"n":3.0}', "json")
    assert first.sender.name == "alice"


async def test_an_acl_agent_that_agrees_first_and_answers_later_is_understood(
    agents: Any, acp_agents: Any, inbox: Any
) -> None:
    alice = await acp_agents("alice", inbox)
    bob = await agents("bob")

    @bob.on("request")
    async def answer(message: Any) -> None:
        await bob.reply(message, "agree")
        # As agents do that know no in-reply-to.
        await bob.send("alice@local", "inform", "done", conversation_id=message.conversation_id)

    await alice.send_acp(ACPMessage("q", "request", target="bob", content="?"))
    await inbox.holds(2)
    assert [(one.type, one.content, one.in_reply_to) for one in inbox.messages] == [
        ("response", {"status": "accepted"}, "q"),
        ("response", "done", "q"),
    ]


async def test_a_behaviour_gets_what_came_as_an_acp_message(agents: Any, acp_agents: Any, inbox: Any) -> None:
    alice = await acp_agents("alice", inbox)
    bob = await agents("bob")

    class Answering(OneShotBehaviour):
        async def action(self) -> None:
            message = await self.receive(timeout=WAIT)
            assert message is not None
            await self.agent.reply(message, "inform", "from a behaviour")

    bob.add_behaviour(Answering(), MessageTemplate("request"))
    await alice.send_acp(ACPMessage("q", "request", target="bob", content="?"))
    assert await inbox.holds(1) == ["from a behaviour"]
    assert inbox.messages[0].in_reply_to == "q"


async def test_what_an_acl_agent_tells_others_is_no_answer(
    agents: Any, acp_agents: Any, inbox: Any, inboxes: Any
) -> None:
    alice = await acp_agents("alice", inbox)
    overheard = inboxes()
    await agents("carl", overheard)
    bob = await agents("bob")

    @bob.on("request")
    async def answer(message: Any) -> str:
        await bob.send("carl", "inform", "they ask", conversation_id=message.conversation_id)
        return "yes"

    await alice.send_acp(ACPMessage("q", "request", target="bob", content="?"))
    assert await inbox.holds(1) == ["yes"]
    await overheard.holds(1)
    assert overheard.messages[0].performative.text == "inform"


async def test_an_acp_agent_answers_an_acl_request(agents: Any) -> None:
    alice, bob = await agents("alice"), await agents("bob")

    @bob.on_acp("request")
    async def answer(message: ReceivedACP) -> Any:
        if message.content == "no":
            raise Refuse("not today")
        if message.content == "later":
            await bob.reply_acp(message, "response", {"status": "accepted"})
            await bob.reply_acp(message, "response", "here it is")
            return None
        return {"asked": message.content, "by": message.source}

    async with asyncio.timeout(WAIT):
        answered = await alice.request("bob", "hi")
        assert (answered.performative.text, answered.language) == ("inform", "json")
        assert json.loads(answered.content) == {"asked": "hi", "by": "alice"}
        assert (await alice.request("bob", "later")).content == "here it is"
        with pytest.raises(RefusedByAgent, match="not today"):
            await alice.request("bob", "no")
        # Within an interaction protocol, too, which looks like a delegated task.
        assert json.loads((await alice.request("bob", "hi", protocol="fipa-request")).content)["asked"] == "hi"


async def test_news_of_an_acp_agent_reach_an_acl_agent_and_the_other_way_round(agents: Any, inboxes: Any) -> None:
    acl_heard, acp_heard = inboxes(), inboxes()
    alice, bob = await agents("alice", acl_heard), await agents("bob")
    bob.on_acp("notification")(acp_heard)
    await bob.send_acp(ACPMessage(type="notification", target="alice", content={"n": 1}))
    await alice.send("bob", "inform", "news")
    await acl_heard.holds(1)
    (message,) = acl_heard.messages
    assert (message.performative.text, message.content, message.language) == ("inform", '{"n":1}', "json")
    assert await acp_heard.holds(1) == ["news"]


async def test_acl_handlers_come_first_for_acl_messages(agents: Any, inboxes: Any) -> None:
    acl_heard, acp_heard = inboxes(), inboxes()
    alice, bob = await agents("alice"), await agents("bob")
    bob.on("inform")(acl_heard)
    bob.on_acp()(acp_heard)
    await alice.send("bob", "inform", "acl")
    await alice.send_acp(ACPMessage(type="notification", target="bob", content="acp"))
    assert await acl_heard.holds(1) == ["acl"]
    assert await acp_heard.holds(1) == ["acp"]
    assert len(acl_heard.messages) == 1


async def test_two_agents_of_different_kinds_do_not_talk_for_ever(bus: Any, agents: Any, acp_agents: Any) -> None:
    """Neither answers what the other one answers: an ERROR, a not-understood, an inform."""
    heard = Inbox()
    await acp_agents("alice", heard)
    raw = await agents("raw")
    bob = await agents("bob")

    @bob.on("request")
    async def ask_back(message: Any) -> str:
        return "no idea"

    await raw.send_acp(ACPMessage(type="error", target="bob", content={"error": "x"}))
    await raw.send_acp(ACPMessage(type="error", target="alice", content={"error": "x"}))
    await heard.holds(1)
    await settled(bus, "bob")
    await settled(bus, "raw")
    assert [one.type for one in heard.messages] == ["error"]


# ---- through a restart -------------------------------------------------------------------------------------------------


async def test_messages_outlive_a_lost_connection(agents: Any, acp_agents: Any, proxy: Any, inbox: Any) -> None:
    await acp_agents("bob", inbox)
    alice = await agents("alice", bus=proxy.address)
    proxy.cut(admit=False)
    await until(lambda: not alice.connected)
    sending = asyncio.create_task(alice.send_acp(ACPMessage(type="request", target="bob", content="later")))
    proxy.admit()
    async with asyncio.timeout(WAIT):
        assert await sending == []
    assert await inbox.holds(1) == ["later"]


async def test_a_body_that_is_neither_is_given_up(bus: Any, agents: Any, connect: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    raw = await connect(bus, "raw")
    await raw.send(pb.BusMessage(to=["bob"]), acl("bob", "fine"))
    (receipt,) = await raw.receipted(2)
    assert (receipt.number, receipt.outcome) == (1, pb.OUTCOME_INVALID)
    assert await inbox.holds(1) == ["fine"]


def test_the_wire_form_of_this_page_is_that_of_the_codec() -> None:
    made = acp_pb2.AcpMessage()
    acp_to_proto(ACPMessage(type="request", content="hi"), made)
    assert made == wire(1).acp
