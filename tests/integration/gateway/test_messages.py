"""ACP messages over a socket: in and out, every outcome, and whatever else a client may say."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from waiting import Inbox, settled, until

from gagent_grpc import ACPMessage, Agent
from gagent_grpc.config import BusLimits, GatewayLimits
from gagent_grpc.gateway.app import open_gateway
from gagent_grpc.pb.gagent.v1 import acp_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

ORDER = {
    "limit": 3,
    "ratio": 3.0,
    "ticket": 9007199254740993,
    "huge": 2**70 + 1,
    "neg": -0.5,
    "tiny": 1e-7,
    "flags": [True, None, ""],
    "empty": {},
    "list": [],
    "é𐐷\u2028": "na\u0000ïve \U0001f600",
    "deep": [[[[{"a": [1, 1.0, "1"]}]]]],
}


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal and of the same types: 3 and 3.0 are not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


async def test_a_question_of_a_socket_is_answered(gateway: Any, clients: Any, agents: Any) -> None:
    async def answer(message: ACPMessage) -> Any:
        return {"you_said": message.content}

    await agents("bob", answer)
    alice = await clients(gateway, "alice")
    assert alice.welcome["agent"] == "alice@local"
    await alice.say(type="request", id="m-1", target="bob", content="hi")
    assert await alice.next(control="receipt") == {
        "control": "receipt", "number": 1, "id": "m-1", "outcome": "ACCEPTED",
    }  # fmt: skip
    response = await alice.next(type="response")
    assert (response["source"], response["in_reply_to"], response["content"]) == ("bob", "m-1", {"you_said": "hi"})


async def test_two_sockets_talk_and_the_source_is_the_one_of_the_socket(gateway: Any, clients: Any) -> None:
    alice, bob = await clients(gateway, "alice"), await clients(gateway, "bob")
    await alice.say(type="request", target="bob", content=1)
    asked = await bob.next(type="request")
    assert asked["source"] == "alice"
    await bob.say(type="response", target="alice", in_reply_to=asked["id"], content=1.0)
    answered = await alice.next(type="response")
    assert (answered["source"], answered["in_reply_to"]) == ("bob", asked["id"])
    # The id that it got by itself is told.
    assert (await alice.next(control="receipt"))["id"] == asked["id"]


@pytest.mark.parametrize("kind", ["request", "notification", "response", "result", "error", "heartbeat"])
async def test_c18_values_keep_their_types_from_a_socket_to_grpc_and_back(
    gateway: Any, clients: Any, agents: Any, kind: str
) -> None:
    inbox = Inbox()
    bob = await agents("bob", inbox)
    alice = await clients(gateway, "alice")
    sent = {
        "id": "m", "type": kind, "source": "alice@local", "target": "bob", "content": ORDER,
        "metadata": {"priority": "high", "ttl": 600, "trace": "00-a", "n": 3, "f": 3.0},
        "timestamp": "2026-03-01T10:00:00.123Z", "in_reply_to": "q-1", "extra": ORDER,
    }  # fmt: skip
    sent.pop("metadata") if kind == "heartbeat" else sent["metadata"].pop("ttl")  # type: ignore[attr-defined]
    await alice.socket.send(json.dumps(sent, ensure_ascii=False))
    await inbox.holds(1)
    got = json.loads(inbox.messages[0].to_json())
    assert same(got, {"metadata": {"priority": "normal"}, **sent, "source": "alice"})

    await bob.send_acp(ACPMessage.from_dict({**sent, "source": None, "target": "alice"}))
    back = await alice.next(type=kind)
    assert same(back, {"metadata": {"priority": "normal"}, **sent, "source": "bob", "target": "alice"})


async def test_a_message_that_is_not_taken_has_a_receipt_and_an_error(gateway: Any, clients: Any) -> None:
    alice = await clients(gateway, "alice")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"target": "nobody"}, "NO_SUCH_AGENT"),
        ({"target": "role:none"}, "NO_PROVIDER"),
        ({"target": "alice", "source": "bob"}, "DENIED"),
        ({}, "INVALID"),
        ({"target": "two words"}, "INVALID"),
        ({"target": "alice", "content": "x" * 1_000_100}, "TOO_LARGE"),
        ({"target": "alice", "metadata": {"ttl": 0}}, "EXPIRED"),
    ]
    for number, (fields, outcome) in enumerate(cases, 1):
        await alice.say(type="request", id=f"m-{number}", **fields)
        error = await alice.next(type="error")
        assert (error["in_reply_to"], error["content"]["code"]) == (f"m-{number}", outcome)
        assert (error["source"], error["metadata"]["automatic"]) == ("ams", "true")
        assert error["id"]
        receipt = await alice.next(control="receipt")
        assert (receipt["number"], receipt["id"], receipt["outcome"]) == (number, f"m-{number}", outcome)
        assert receipt["reason"]
    # The socket is as good as before.
    await alice.say(type="request", id="last", target="alice", content="still here")
    assert (await alice.next(type="request"))["content"] == "still here"


async def test_what_is_no_message_is_told_and_the_socket_stays_open(gateway: Any, clients: Any) -> None:
    alice = await clients(gateway, "alice")
    for frame, code, message_id in [
        ("not JSON", "INVALID_MESSAGE", None),
        ("[" * 50_000, "INVALID_MESSAGE", None),
        ('{"type":"greet","id":"m-3","target":"bob"}', "UNKNOWN_TYPE", "m-3"),
        ('{"type":"request","id":"m-4","target":7}', "INVALID_MESSAGE", "m-4"),
    ]:
        await alice.socket.send(frame)
        error = await alice.next(type="error")
        assert (error["content"]["code"], error.get("in_reply_to")) == (code, message_id)
        assert await alice.receipt(message_id) == "INVALID"
    # A text that no UTF-8 can say.
    await alice.socket.send('{"type":"request","id":"m-5","target":"alice","content":"\\ud800"}')
    assert await alice.receipt("m-5") == "INVALID"
    await alice.socket.send('{"type":"request","id":"\\ud800","target":"alice"}')
    assert await alice.receipt(None) == "INVALID"
    await alice.say(control="dance")
    told = await alice.next(control="error")
    assert (told["code"], told["reason"]) == (
        "INVALID_CONTROL",
        "control 'dance'; expected one of: ack, watch, unwatch",
    )
    await alice.say(type="request", id="m-6", target="alice")
    assert await alice.receipt("m-6") == "ACCEPTED"


async def test_heartbeats_and_errors_are_never_answered_by_an_error(gateway: Any, clients: Any) -> None:
    alice = await clients(gateway, "alice")
    await alice.say(type="heartbeat")
    await alice.say(type="heartbeat", id="m-2", target="nobody")
    await alice.say(type="heartbeat", id="m-3", target=7)
    await alice.say(type="error", id="m-4", target="nobody", content={"code": "X", "error": "y"})
    await alice.say(type="error", id="m-5", metadata=7)
    await alice.say(type="request", id="last", target="alice")
    assert await alice.receipt("last") == "ACCEPTED"
    outcomes = [(await alice.next(control="receipt"))["outcome"] for _ in range(5)]
    assert sorted(outcomes) == ["ACCEPTED", "INVALID", "INVALID", "NO_SUCH_AGENT", "NO_SUCH_AGENT"]
    assert [one["id"] for one in alice.frames if one.get("type") == "error"] == []


async def test_a_failure_after_the_acceptance_comes_as_an_error(gateway: Any, clients: Any, agents: Any) -> None:
    bob: Agent = await agents("bob")
    alice = await clients(gateway, "alice")
    await bob.aclose()
    await alice.say(type="request", id="m-1", target="bob", content="too late", metadata={"ttl": 0.2})
    assert await alice.receipt("m-1") == "ACCEPTED"
    error = await alice.next(type="error")
    assert (error["source"], error["in_reply_to"]) == ("ams", "m-1")


async def test_the_same_id_arrives_once(gateway: Any, clients: Any, agents: Any) -> None:
    inbox = Inbox()
    await agents("bob", inbox)
    alice = await clients(gateway, "alice")
    frame = {"type": "notification", "id": "m", "target": "bob", "timestamp": "2026-03-01T10:00:00Z", "content": 1}
    for _ in range(3):
        await alice.say(**frame)
    # They may come in any order; their numbers tell which is whose.
    outcomes = [(await alice.next(control="receipt", number=number))["outcome"] for number in (1, 2, 3)]
    assert outcomes == ["ACCEPTED", "DUPLICATE", "DUPLICATE"]
    await alice.say(**{**frame, "id": "n", "content": 2})
    assert await inbox.holds(2) == [1, 2]


async def test_many_messages_stay_in_order(gateway: Any, clients: Any) -> None:
    alice, bob = await clients(gateway, "alice"), await clients(gateway, "bob")
    for number in range(300):
        await alice.say(type="notification", id=f"m-{number}", target="bob", content=number)
    got = [(await bob.next(type="notification"))["content"] for _ in range(300)]
    assert got == list(range(300))
    assert {await alice.receipt(f"m-{number}") for number in range(300)} == {"ACCEPTED"}


async def test_an_agent_of_acl_is_asked_and_asks(gateway: Any, clients: Any, agents: Any) -> None:
    bob = await agents("bob")
    alice = await clients(gateway, "alice")

    @bob.on("request")
    async def answer(message: Any) -> str:
        return f"you said {message.content}"

    await alice.say(type="request", id="m-1", target="bob", content="hi")
    assert (await alice.next(type="response"))["content"] == "you said hi"
    asking = asyncio.create_task(bob.request("alice", "who are you?"))
    asked = await alice.next(type="request")
    await alice.say(type="response", target="bob", in_reply_to=asked["id"], content="alice")
    assert (await asking).content == "alice"


@pytest.mark.parametrize("text", ['"half \\ud800"', '{"\\udead":[1]}', "[" * 400 + "1" + "]" * 400])
async def test_what_json_can_hardly_say_arrives_all_the_same(
    bus: Any, gateway: Any, clients: Any, connect: Any, text: str
) -> None:
    alice = await clients(gateway, "alice")
    raw = await connect(bus, "raw")
    message = pb.BusMessage(to=["alice"])
    message.acp.message_type = acp_pb2.ACP_MESSAGE_TYPE_NOTIFICATION
    message.acp.json = text
    await raw.send(message)
    assert (await alice.next(type="notification"))["content"] == json.loads(text)
    await settled(bus, "alice")


async def test_what_json_cannot_say_is_told_to_its_sender(
    bus: Any, gateway: Any, clients: Any, agents: Any, connect: Any
) -> None:
    alice = await clients(gateway, "alice")
    raw = await connect(bus, "raw")
    message = pb.BusMessage(id="m", to=["alice"])
    message.acp.message_type = acp_pb2.ACP_MESSAGE_TYPE_REQUEST
    message.acp.json = "[" * 100_000
    await raw.send(message)
    await settled(bus, "alice")
    await raw.until(lambda: any(one.message.acp.error.code == "INVALID_CONTENT" for one in raw.deliveries))
    await alice.say(type="heartbeat", id="as before")
    assert await alice.receipt("as before") == "ACCEPTED"


async def test_topics_tell_how_many_they_reached(gateway: Any, clients: Any, agents: Any) -> None:
    inbox = Inbox()
    await agents("bob", inbox, topics=["news"])
    alice = await clients(gateway, "alice")
    await alice.say(type="notification", id="m", target="topic:news", content=1)
    receipt = await alice.next(control="receipt")
    assert (receipt["outcome"], receipt["receiver"], receipt["reached"]) == ("ACCEPTED", "topic:news", 1)
    assert await inbox.holds(1) == [1]


async def test_a_full_mailbox_is_told_with_a_time(buses: Any, tokens: Any, clients: Any) -> None:
    bus = await buses(limits=BusLimits(mailbox_messages=2, drain_grace=1.0))
    async with Agent("bob", bus=bus.address), open_gateway(bus.address, tokens=tokens.path) as gateway:
        alice = await clients(gateway, "alice")
        bob = await clients(gateway, "carol", acks="client")
        for number in range(10):
            await alice.say(type="notification", id=f"m-{number}", target="carol")
        receipts = [await alice.next(control="receipt", id=f"m-{number}") for number in range(10)]
        full = [one for one in receipts if one["outcome"] == "MAILBOX_FULL"]
        assert full
        assert all(one["retry_after_ms"] > 0 for one in full)
        for _ in range(10 - len(full)):
            message = await bob.next(type="notification")
            await bob.say(control="ack", id=message["id"])
        await settled(bus, "carol")


async def test_binary_frames_are_refused(gateway: Any, clients: Any) -> None:
    alice = await clients(gateway, "alice")
    await alice.socket.send(b'{"type":"request"}')
    code, reason = await alice.end()
    assert code == 1003
    assert "binary" in reason


async def test_a_frame_that_is_too_large_closes_the_socket(gateways: Any, clients: Any) -> None:
    gateway = await gateways(limits=GatewayLimits(max_frame_bytes=10_000))
    alice = await clients(gateway, "alice")
    assert alice.welcome["max_bytes"] == 10_000
    await alice.say(type="request", id="fits", target="alice", content="x" * 9_000)
    assert await alice.receipt("fits") == "ACCEPTED"
    await alice.say(type="request", target="alice", content="x" * 10_000)
    assert (await alice.end())[0] == 1009
    # In parts as well.
    bob = await clients(gateway, "bob")
    await bob.socket.send(["x" * 4_000] * 4)
    assert (await bob.end())[0] == 1009


async def test_nothing_but_nonsense_closes_the_socket(gateway: Any, clients: Any) -> None:
    alice = await clients(gateway, "alice")
    for _ in range(99):
        await alice.socket.send("x")
    await alice.say(type="heartbeat", id="in between")
    assert await alice.receipt("in between") == "ACCEPTED"
    for _ in range(100):
        await alice.socket.send("x")
    assert (await alice.end())[0] == 1008


async def test_what_a_client_is_welcomed_with_are_the_limits_in_force(gateway: Any, clients: Any) -> None:
    alice = await clients(gateway, "alice@local", acks="client", window=3)
    alice.welcome.pop("software")
    assert alice.welcome == {
        "control": "welcome",
        "agent": "alice@local",
        "acks": "client",
        "window": 3,
        "heartbeat_ms": 15_000,
        "max_bytes": 2 * 1024 * 1024,
        "max_message_bytes": 1_000_000,
    }


async def test_an_agent_of_a_socket_is_one_of_the_bus(bus: Any, gateway: Any, clients: Any, gone: Any) -> None:
    alice = await clients(gateway, "alice")
    visitor = await clients(gateway, "visitor", ephemeral="true")
    assert bus.platform.ams.get("alice").session is not None
    await alice.socket.close()
    await visitor.socket.close()
    await gone(gateway)
    # Name and mail stay.
    await until(lambda: bus.platform.ams.get("alice").session is None)
    assert bus.platform.ams.get("visitor").ephemeral
