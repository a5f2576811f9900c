"""`Send`: one-shot messages, one receipt for each message and receiver, and in whose name."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from raw import acl

from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc as services
from gagent_grpc.server.app import Bus


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return services.BusServiceStub(channel)


def outcomes(response: pb.SendResponse) -> list[tuple[int, str, str]]:
    return [(one.number, one.receiver, pb.Outcome.Name(one.outcome)[8:]) for one in response.receipts]


async def test_every_message_and_receiver_has_a_receipt_in_the_order_of_the_request(
    bus: Bus, stub: Any, connect: Any
) -> None:
    bob = await connect(bus, "bob")
    response = await stub.Send(
        pb.SendRequest(messages=[acl(["nobody", "bob"], "one"), pb.BusMessage(), acl("bob", "two"), acl("ams", act=7)])
    )
    assert outcomes(response) == [
        (1, "nobody", "NO_SUCH_AGENT"),
        (1, "bob", "ACCEPTED"),
        (2, "", "INVALID"),
        (3, "bob", "ACCEPTED"),
        (4, "ams", "ACCEPTED"),
    ]
    await bob.delivered(2)
    assert [(one.sender, one.message.acl.text) for one in bob.deliveries] == [
        ("anonymous", "one"),
        ("anonymous", "two"),
    ]


async def test_empty_request_has_no_receipts(stub: Any) -> None:
    assert outcomes(await stub.Send(pb.SendRequest())) == []


async def test_session_token_says_in_whose_name(bus: Bus, stub: Any, connect: Any) -> None:
    alice = await connect(bus, "alice")
    bob = await connect(bus, "bob")
    mine = (("gagent-session", alice.welcome.resume_token),)
    await stub.Send(pb.SendRequest(messages=[acl("bob"), acl("bob", acl_sender="alice")]), metadata=mine)
    await bob.delivered(2)
    assert {one.sender for one in bob.deliveries} == {"alice@local"}
    # A failure goes to the agent's mailbox.
    lost = acl("nobody", act=19, report=pb.REPORT_MODE_FAILURE_MESSAGE, acl_reply_with="r")
    await stub.Send(pb.SendRequest(messages=[lost]), metadata=mine)
    await alice.delivered(1)
    assert alice.deliveries[0].message.acl.in_reply_to == "r"


async def test_token_of_no_open_session_is_unauthenticated(bus: Bus, stub: Any, connect: Any) -> None:
    alice = await connect(bus, "alice")
    token = alice.welcome.resume_token
    await alice.leave()
    for metadata in ((("gagent-session", token),), (("gagent-session", "x"),), (("gagent-session", "a"),) * 2):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Send(pb.SendRequest(messages=[acl("alice")]), metadata=metadata)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert token not in (caught.value.details() or "")


async def test_nobody_in_particular_cannot_send_as_somebody(bus: Bus, stub: Any, connect: Any) -> None:
    await connect(bus, "bob")
    response = await stub.Send(pb.SendRequest(messages=[acl("bob", acl_sender="bob")]))
    assert outcomes(response) == [(1, "", "DENIED")]


async def test_agent_called_anonymous_gets_nothing_that_is_meant_for_nobody(bus: Bus, stub: Any, connect: Any) -> None:
    impostor = await connect(bus, "anonymous")
    await stub.Send(
        pb.SendRequest(
            messages=[
                acl("nobody", act=19, report=pb.REPORT_MODE_FAILURE_MESSAGE),
                acl("ams", '{"action": "search"}', act=19),
                acl("ams", '{"action": "deregister"}', act=19),
            ]
        )
    )
    await impostor.in_step()
    assert impostor.deliveries == []


async def test_same_id_of_two_that_are_nobody_in_particular_is_no_repetition(bus: Bus, stub: Any, connect: Any) -> None:
    bob = await connect(bus, "bob")
    for _ in range(2):
        assert outcomes(await stub.Send(pb.SendRequest(messages=[acl("bob", id="1")]))) == [(1, "bob", "ACCEPTED")]
    await bob.delivered(2)


async def test_request_that_is_no_request_is_invalid(channel: grpc.aio.Channel) -> None:
    send = channel.unary_unary("/gagent.v1.BusService/Send")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(b"\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "not a gagent.v1.SendRequest" in (caught.value.details() or "")


async def test_more_messages_than_one_call_takes_are_refused_as_a_whole(
    buses: Any, connect: Any, channels: Any
) -> None:
    bus = await buses(limits=BusLimits(send_window_messages=10, drain_grace=1.0))
    bob = await connect(bus, "bob")
    stub = services.BusServiceStub(channels(bus))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Send(pb.SendRequest(messages=[acl("bob")] * 11))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "11 messages; expected at most 10" in (caught.value.details() or "")
    await bob.in_step()
    assert bob.deliveries == []


async def test_receipts_travel_however_much_they_have_to_say(stub: Any, connect: Any) -> None:
    nobodies = [f"nobody-{index}@" + "x" * 200 for index in range(100)]
    response = await stub.Send(pb.SendRequest(messages=[acl(nobodies)] * 100))
    assert len(response.receipts) == 10_000
    assert {one.outcome for one in response.receipts} == {pb.OUTCOME_UNREACHABLE}


async def test_more_receipts_than_one_call_may_have_are_refused_before_anything_is_sent(
    bus: Bus, stub: Any, connect: Any
) -> None:
    bob = await connect(bus, "bob")
    wide = acl(["bob", *(f"nobody-{index}" for index in range(99))])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Send(pb.SendRequest(messages=[*[wide] * 100, acl("bob")]))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "10,000 receivers" in (caught.value.details() or "")
    await bob.in_step()
    assert bob.deliveries == []
    # What is refused as a whole has one receipt.
    bad = [pb.BusMessage(), acl([f"nobody-{index}" for index in range(101)])] * 60
    response = await stub.Send(pb.SendRequest(messages=bad))
    assert len(response.receipts) == 120


async def test_draining_bus_takes_no_call(bus: Bus, stub: Any, connect: Any) -> None:
    alice = await connect(bus, "alice")
    await alice.send(acl("alice"))
    await alice.delivered(1)
    bus.platform.draining = True
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Send(pb.SendRequest(messages=[acl("alice")]))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
