"""`OpenSession` as a client in another language meets it: frames over loopback, with nothing but the public stubs."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from raw import WAIT, RawSession, acl, eventually

from gagent_grpc.acl.performative import Performative
from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import agent_pb2, ams_service_pb2, ams_service_pb2_grpc
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.server.app import Bus

OK = grpc.StatusCode.OK
BUSY = BusLimits(drain_grace=1.0)


def outcome_of(receipt: pb.Receipt) -> tuple[int, str, str]:
    return receipt.number, receipt.receiver, pb.Outcome.Name(receipt.outcome).removeprefix("OUTCOME_")


def texts(session: RawSession) -> list[str]:
    return [delivery.message.acl.text for delivery in session.deliveries]


# ---- hello and welcome -----------------------------------------------------------------------------------------------


async def test_welcome_is_first_and_says_what_is_in_force(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    welcome = alice.welcome
    limits = bus.platform.limits
    assert welcome.protocol_version == 1
    assert (welcome.agent, welcome.platform) == ("alice@local", "local")
    assert (welcome.generation, welcome.attached) == (1, False)
    assert len(welcome.resume_token) >= 32
    assert welcome.heartbeat_interval.seconds == limits.heartbeat_interval
    assert welcome.max_message_bytes == limits.max_message_bytes
    assert welcome.max_frame_bytes == limits.max_frame_bytes
    assert (welcome.send_window.messages, welcome.send_window.bytes) == (4_096, 16 * 1024 * 1024)
    assert (welcome.window.messages, welcome.window.bytes) == (4_096, 8 * 1024 * 1024)
    assert welcome.resume_grace.seconds == 30
    assert welcome.state == agent_pb2.AGENT_STATE_ACTIVE
    assert not welcome.HasField("description")


async def test_hello_with_a_full_name_and_a_window_gets_both(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice@local", window=pb.Window(messages=3, bytes=1_000))
    assert alice.welcome.agent == "alice@local"
    assert (alice.welcome.window.messages, alice.welcome.window.bytes) == (3, 1_000)


async def test_hello_installs_the_df_entry_and_bye_withdraws_it(bus: Bus, connect: Any) -> None:
    offer = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type="sum")], lease_seconds=60)
    alice = await connect(bus, "alice", description=offer)
    assert alice.welcome.description.name.name == "alice@local"
    assert alice.welcome.description.services[0].name == "sum"
    assert alice.welcome.description.lease_seconds == 60
    assert bus.platform.df.get("alice@local") is not None
    await alice.leave()
    assert bus.platform.df.get("alice@local") is None
    assert bus.platform.ams.find("alice") is not None


async def test_refused_df_entry_refuses_the_hello_and_leaves_everything_as_it_was(bus: Bus, connect: Any) -> None:
    nameless = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(name="no type")])
    fresh = await connect(bus, "fresh", welcomed=False, description=nameless)
    code, text = await fresh.end()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "type" in text
    assert bus.platform.ams.find("fresh") is None

    alice = await connect(bus, "alice")
    other = await connect(bus, "alice", welcomed=False, description=nameless, resume_token=alice.welcome.resume_token)
    assert (await other.end())[0] == grpc.StatusCode.INVALID_ARGUMENT
    await alice.send(acl("alice", "still here"))
    await alice.delivered(1)


async def test_hello_cannot_describe_another_agent(bus: Bus, connect: Any) -> None:
    offer = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type="sum")])
    offer.name.name = "bob"
    alice = await connect(bus, "alice", welcomed=False, description=offer)
    assert (await alice.end())[0] == grpc.StatusCode.PERMISSION_DENIED


# ---- messages and receipts -------------------------------------------------------------------------------------------


async def test_message_arrives_with_what_the_bus_adds_and_unchanged(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    message = acl("bob", "hello", id="m-1", act=19, acl_conversation_id="c", headers={"traceparent": "00-1-2-3"})
    await alice.send(message)
    assert await alice.receipted(1) == []
    (delivery,) = await bob.delivered(1)
    assert delivery.message == message
    assert (delivery.tag, delivery.sequence, delivery.attempt, delivery.redelivered) == (1, 1, 1, False)
    assert (delivery.sender, delivery.receiver, delivery.via, delivery.id) == ("alice@local", "bob@local", "", "")
    assert delivery.accepted_at.seconds > 1_700_000_000


async def test_message_without_id_gets_one_that_is_never_given_again(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    bob = await connect(bus, "bob")
    ids = []
    for count in (1, 2):
        await alice.send(acl("bob"))
        await bob.delivered(1)
        ids.append(bob.deliveries[0].id)
        assert ids[-1]
        await bob.say(bye=pb.Bye(deregister=True))
        assert await bob.end() == (OK, "")
        if count == 1:
            bob = await connect(bus, "bob")
    assert len(set(ids)) == 2


async def test_each_receiver_is_reached_or_named(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(
        acl(["bob", "nobody", "bob@local", "carol@elsewhere", "role:sum", "a b"], "one"),
        acl("bob", "two"),
        acl("nobody", "three"),
    )
    receipts = await alice.receipted(3)
    assert [outcome_of(one) for one in receipts] == [
        (1, "nobody", "NO_SUCH_AGENT"),
        (1, "carol@elsewhere", "UNREACHABLE"),
        (1, "role:sum", "NO_PROVIDER"),
        (1, "a b", "INVALID"),
        (3, "nobody", "NO_SUCH_AGENT"),
    ]
    assert "registered: bob, alice" in receipts[0].detail
    assert "'elsewhere'" in receipts[1].detail
    assert receipts[1].retryable
    assert "'sum'" in receipts[2].detail
    assert receipts[3].field == "to"
    await bob.delivered(2)
    assert texts(bob) == ["one", "two"]


async def test_receivers_come_from_the_body_when_the_envelope_names_none(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    message = acl()
    message.acl.receivers.add(name="bob@local")
    await alice.send(message)
    assert len(await bob.delivered(1)) == 1


async def test_lazy_receipt_waits_for_a_frame_and_a_lazy_refusal_does_not(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    await connect(bus, "bob")
    lazy = pb.REPORT_MODE_RECEIPT_LAZY
    await alice.send(acl("bob", report=lazy))
    # Nothing said by itself; the notice that answers this frame takes the receipt along.
    await alice.write(pb.OpenSessionRequest())
    frame = await alice.read()
    assert frame is not None
    assert frame.WhichOneof("frame") == "receipts"
    assert alice.accepted_through == 1
    await alice.until(lambda: bool(alice.notices))
    await alice.send(acl("nobody", report=lazy))
    assert [outcome_of(one) for one in await alice.receipted(2)] == [(2, "nobody", "NO_SUCH_AGENT")]


async def test_lazy_receipts_do_not_wait_for_more_than_half_a_window(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(send_window_messages=8, drain_grace=1.0))
    alice = await connect(bus, "alice")
    await connect(bus, "bob")
    await alice.send(*[acl("bob", report=pb.REPORT_MODE_RECEIPT_LAZY) for _ in range(4)])
    await alice.receipted(4)


async def test_lazy_receipts_do_not_wait_for_more_than_half_a_window_of_bytes(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(send_window_bytes=10_000, drain_grace=1.0))
    alice = await connect(bus, "alice")
    await connect(bus, "bob")
    await alice.send(acl("bob", "x" * 6_000, report=pb.REPORT_MODE_RECEIPT_LAZY))
    await alice.receipted(1)


async def test_failure_message_comes_beside_the_receipt_as_a_reply(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    await alice.send(
        acl(
            ["nobody", "nowhere"],
            act=19,
            id="m-1",
            report=pb.REPORT_MODE_FAILURE_MESSAGE,
            acl_conversation_id="c-1",
            acl_reply_with="r-1",
            acl_protocol="fipa-request",
        )
    )
    failures = [delivery.message.acl for delivery in await alice.delivered(2)]
    await alice.receipted(1)
    assert len(alice.receipts) == 2
    assert {one.performative for one in failures} == {int(Performative.FAILURE)}
    assert {(one.conversation_id, one.in_reply_to, one.protocol) for one in failures} == {
        ("c-1", "r-1", "fipa-request")
    }
    assert [one.user_parameters["X-failed-receiver"] for one in failures] == ["nobody", "nowhere"]
    assert {delivery.sender for delivery in alice.deliveries} == {"ams@local"}
    assert all("NO_SUCH_AGENT" in one.text for one in failures)


@pytest.mark.parametrize("act", [Performative.FAILURE, Performative.NOT_UNDERSTOOD])
async def test_failures_are_never_answered_by_a_failure(bus: Bus, connect: Any, act: Performative) -> None:
    alice = await connect(bus, "alice")
    await alice.send(acl("nobody", act=int(act), report=pb.REPORT_MODE_FAILURE_MESSAGE))
    assert len(await alice.receipted(1)) == 1
    await alice.in_step()
    assert alice.deliveries == []


async def test_repetition_is_duplicate_and_another_body_under_its_id_is_invalid(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", "one", id="m"), acl("bob", "one", id="m", resend=True), acl("bob", "two", id="m"))
    receipts = await alice.receipted(3)
    assert [outcome_of(one) for one in receipts] == [(2, "bob", "DUPLICATE"), (3, "bob", "INVALID")]
    assert receipts[1].field == "id"
    await bob.delivered(1)
    await bob.settle(ack_through_tag=1)
    await bob.in_step()
    await alice.send(acl("bob", "one", id="m", resend=True))
    assert outcome_of((await alice.receipted(4))[-1]) == (4, "bob", "DUPLICATE")
    await bob.in_step()
    assert texts(bob) == ["one"]


async def test_resend_that_the_bus_has_no_record_of_is_flagged(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", id="m", resend=True))
    (delivery,) = await bob.delivered(1)
    assert (delivery.redelivered, delivery.attempt) == (True, 1)


async def test_expired_message_is_refused_at_once_or_given_up_with_a_failure(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    late = acl("alice", act=19)
    late.expires_at.FromSeconds(1)
    await alice.send(late)
    assert [outcome_of(one) for one in await alice.receipted(1)] == [(1, "alice", "EXPIRED")]


async def test_messages_arrive_by_urgency_and_in_order_within_one(bus: Bus, connect: Any) -> None:
    await (await connect(bus, "bob")).leave()
    alice = await connect(bus, "alice")
    urgencies = [2, 1, 4, 2, 3, 4, 1, 0]
    await alice.send(*[acl("bob", f"{index}", priority=urgency) for index, urgency in enumerate(urgencies)])
    await alice.receipted(len(urgencies))
    bob = await connect(bus, "bob")
    await bob.delivered(len(urgencies))
    assert texts(bob) == ["2", "5", "4", "0", "3", "7", "1", "6"]


async def test_mail_for_an_agent_without_a_session_waits_in_order(bus: Bus, connect: Any) -> None:
    await (await connect(bus, "bob")).leave()
    alice = await connect(bus, "alice")
    await alice.send(*[acl("bob", f"{index}") for index in range(100)])
    await alice.receipted(100)
    bob = await connect(bus, "bob")
    assert bob.welcome.attached
    await bob.delivered(100)
    assert texts(bob) == [f"{index}" for index in range(100)]
    assert not any(delivery.redelivered for delivery in bob.deliveries)


async def test_full_mailbox_refuses_and_takes_again_after_a_settle(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(mailbox_messages=3, drain_grace=1.0))
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(*[acl("bob", f"{index}") for index in range(5)])
    receipts = await alice.receipted(5)
    assert [outcome_of(one) for one in receipts] == [(4, "bob", "MAILBOX_FULL"), (5, "bob", "MAILBOX_FULL")]
    assert receipts[0].retryable
    assert receipts[0].retry_after.nanos > 0
    assert "3 messages" in receipts[0].detail
    await bob.delivered(3)
    await bob.settle(ack_through_tag=3)
    await bob.in_step()
    await alice.send(acl("bob", "again"))
    assert len(await alice.receipted(6)) == 2
    await bob.delivered(4)


# ---- windows and settling --------------------------------------------------------------------------------------------


async def test_no_more_than_the_window_is_in_flight(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob", window=pb.Window(messages=3))
    alice = await connect(bus, "alice")
    await alice.send(*[acl("bob", f"{index}") for index in range(10)])
    await alice.receipted(10)
    await bob.in_step()
    assert [delivery.tag for delivery in bob.deliveries] == [1, 2, 3]
    await bob.settle(ack_sequences=[2])
    await bob.delivered(4)
    await bob.say(window=pb.Window(messages=5))
    await bob.delivered(6)
    await bob.in_step()
    assert len(bob.deliveries) == 6
    # 0 is the default of the bus.
    await bob.say(window=pb.Window())
    await bob.delivered(10)
    assert [delivery.tag for delivery in bob.deliveries] == list(range(1, 11))


async def test_window_bounds_bytes_and_one_message_always_fits(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob", window=pb.Window(bytes=10_000))
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", "x" * 50_000), *[acl("bob", "y" * 4_000) for _ in range(3)])
    await alice.receipted(4)
    await bob.in_step()
    assert len(bob.deliveries) == 1
    await bob.settle(ack_through_tag=1)
    await bob.delivered(3)
    await bob.in_step()
    assert len(bob.deliveries) == 3
    await bob.settle(ack_through_tag=2)
    await bob.delivered(4)


async def test_settled_messages_never_come_again(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(*[acl("bob", f"{index}") for index in range(6)])
    await bob.delivered(6)
    await bob.settle(ack_through_tag=2, ack_sequences=[4, 4, 999], in_progress_sequences=[3])
    await bob.settle(ack_through_tag=1, rejects=[pb.Reject(sequence=6, reason="no")])
    await bob.in_step()
    await bob.vanish()
    bob = await connect(bus, "bob")
    await bob.delivered(2)
    assert texts(bob) == ["2", "4"]
    assert [(one.redelivered, one.attempt, one.tag) for one in bob.deliveries] == [(True, 2, 1), (True, 2, 2)]


async def test_rejected_request_is_told_to_who_waits_for_an_answer(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", act=19, acl_reply_with="r", id="m"))
    await bob.delivered(1)
    await bob.settle(rejects=[pb.Reject(sequence=1, reason="cannot sing")])
    (failure,) = await alice.delivered(1)
    assert failure.message.acl.performative == int(Performative.FAILURE)
    assert failure.message.acl.in_reply_to == "r"
    assert "cannot sing" in failure.message.acl.text
    assert failure.message.acl.user_parameters["X-failed-receiver"] == "bob@local"


async def test_settling_what_was_not_delivered_changes_nothing(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob", window=pb.Window(messages=1))
    alice = await connect(bus, "alice")
    await alice.send(*[acl("bob", f"{index}") for index in range(3)])
    await bob.delivered(1)
    await bob.settle(ack_sequences=[2], rejects=[pb.Reject(sequence=3)], nacks=[pb.Nack(sequence=2)], ack_through_tag=0)
    await bob.settle(ack_through_tag=1)
    await bob.delivered(2)
    await bob.settle(ack_through_tag=2)
    await bob.delivered(3)
    assert texts(bob) == ["0", "1", "2"]
    assert not bob.deliveries[1].redelivered


async def test_nack_brings_the_message_and_what_follows_in_its_lane_again(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(
        acl("bob", "a1", acl_conversation_id="a"),
        acl("bob", "b1", acl_conversation_id="b"),
        acl("bob", "a2", acl_conversation_id="a"),
    )
    await bob.delivered(3)
    await bob.settle(nacks=[pb.Nack(sequence=1, error="busy")])
    await bob.delivered(5)
    # Told before they come again, so that a client takes them out of its queue.
    assert bob.returned == [1, 3]
    assert [(one.message.acl.text, one.attempt, one.redelivered) for one in bob.deliveries[3:]] == [
        ("a1", 2, True),
        ("a2", 1, True),
    ]


async def test_nack_of_what_is_not_in_hand_is_answered_too(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    await bob.settle(nacks=[pb.Nack(sequence=77)])
    await bob.until(lambda: bob.returned == [77])


async def test_nack_with_a_delay_holds_its_lane_and_only_it(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", "a1", acl_conversation_id="a"))
    await bob.delivered(1)
    nack = pb.Nack(sequence=1)
    nack.delay.FromMilliseconds(400)
    await bob.settle(nacks=[nack])
    await bob.in_step()
    await alice.send(acl("bob", "a2", acl_conversation_id="a"), acl("bob", "b1", acl_conversation_id="b"))
    await bob.delivered(2)
    assert texts(bob) == ["a1", "b1"]
    await bob.delivered(4)
    assert texts(bob)[2:] == ["a1", "a2"]
    assert [one.attempt for one in bob.deliveries[2:]] == [2, 1]


async def test_message_is_given_up_after_max_deliveries_and_its_sender_hears_why(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(max_deliveries=3, drain_grace=1.0))
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", "poison", act=19, acl_conversation_id="c", acl_reply_with="r"))
    for attempt in (1, 2, 3):
        await bob.delivered(attempt)
        assert bob.deliveries[-1].attempt == attempt
        await bob.settle(nacks=[pb.Nack(sequence=1, error="it hurts")])
    (failure,) = await alice.delivered(1)
    assert "3 deliveries" in failure.message.acl.text
    assert "it hurts" in failure.message.acl.text
    assert failure.message.acl.in_reply_to == "r"
    await bob.in_step()
    assert bob.returned == [1, 1, 1]
    assert len(bob.deliveries) == 3


async def test_c13_unread_mail_is_not_lost_and_never_over_the_window(bus: Bus, connect: Any) -> None:
    """C13: written is not received."""
    bob = await connect(bus, "bob", answers=False)
    alice = await connect(bus, "alice")
    for start in range(0, 8_000, 500):
        await alice.send(*[acl("bob", f"{index}", id=f"m{index}") for index in range(start, start + 500)])
    assert await alice.receipted(8_000) == []
    assert bus.platform.ams.get("bob").mailbox.in_flight <= bob.welcome.window.messages
    await bob.vanish()
    bob = await connect(bus, "bob")
    while len(bob.deliveries) < 8_000:
        await bob.delivered(len(bob.deliveries) + 1)
        await bob.settle(ack_through_tag=bob.deliveries[-1].tag)
    assert texts(bob) == [f"{index}" for index in range(8_000)]


async def test_c08_many_senders_and_control_frames_share_one_stream(bus: Bus, connect: Any) -> None:
    """C08: exactly one writer per stream; everything arrives, in order per sender."""
    sink = await connect(bus, "sink")
    senders = [await connect(bus, f"sender-{index}") for index in range(50)]

    async def send(index: int) -> None:
        for count in range(20):
            await senders[index].send(acl("sink", f"{count}", id=f"{index}.{count}"))

    platform = bus.platform
    sink_session = platform.ams.get("sink").session
    assert sink_session is not None
    async with asyncio.TaskGroup() as group:
        for index in range(50):
            group.create_task(send(index))
        for _ in range(20):
            sink_session.beat()
            await asyncio.sleep(0)
    await sink.delivered(1_000)
    assert len({delivery.message.id for delivery in sink.deliveries}) == 1_000
    assert sink.heartbeats >= 1
    for index in range(50):
        mine = [one.message.acl.text for one in sink.deliveries if one.sender == f"sender-{index}@local"]
        assert mine == [f"{count}" for count in range(20)]


async def test_large_and_small_messages_keep_their_order_across_a_reconnect(bus: Bus, connect: Any) -> None:
    """C14: first sent, first handled."""
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")

    async def send() -> None:
        for index in range(120):
            await alice.send(acl("bob", f"{index}:" + "x" * (400_000 if index % 10 == 0 else 10)))

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        handled: list[int] = []
        await bob.delivered(40)
        await bob.settle(ack_through_tag=25)
        await bob.in_step()
        handled += [int(text.partition(":")[0]) for text in texts(bob)[:25]]
        await bob.vanish()
        bob = await connect(bus, "bob")
        while len(handled) < 120:
            await bob.delivered(len(bob.deliveries) + 1)
            await bob.settle(ack_through_tag=bob.deliveries[-1].tag)
            handled = handled[:25] + [int(text.partition(":")[0]) for text in texts(bob)]
    assert handled == list(range(120))


# ---- resuming, taking over, names ------------------------------------------------------------------------------------


async def test_resume_token_takes_over_at_once_and_held_deliveries_do_not_come_again(bus: Bus, connect: Any) -> None:
    older = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(*[acl("bob", f"{index}") for index in range(4)])
    await older.delivered(4)
    newer = await connect(bus, "bob", resume_token=older.welcome.resume_token, held_sequences=[1, 3, 77])
    assert newer.welcome.generation == 2
    assert newer.welcome.resume_token != older.welcome.resume_token
    assert sorted(newer.welcome.held_sequences) == [1, 3]
    await newer.delivered(2)
    assert texts(newer) == ["1", "3"]
    assert all(delivery.redelivered for delivery in newer.deliveries)
    code, _ = await older.end()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert [notice.kind for notice in older.notices] == [pb.NOTICE_KIND_SUPERSEDED]
    # What is held waits for its settle, which a tag of the new session does not give.
    await newer.settle(ack_through_tag=2)
    await newer.in_step()
    assert bus.platform.ams.get("bob").mailbox.in_flight == 2
    await newer.settle(ack_sequences=[1, 3])
    await newer.in_step()
    assert bus.platform.ams.get("bob").mailbox.messages == 0


async def test_only_what_was_delivered_can_be_held(bus: Bus, connect: Any) -> None:
    older = await connect(bus, "bob", window=pb.Window(messages=1))
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", "0"), acl("bob", "1"))
    await older.delivered(1)
    await alice.receipted(2)
    newer = await connect(bus, "bob", resume_token=older.welcome.resume_token, held_sequences=[1, 2])
    assert list(newer.welcome.held_sequences) == [1]
    await newer.delivered(1)
    assert texts(newer) == ["1"]


async def test_settles_of_an_older_generation_change_nothing(bus: Bus, connect: Any) -> None:
    older = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob"))
    await older.delivered(1)
    newer = await connect(bus, "bob", resume_token=older.welcome.resume_token)
    await older.end()
    await newer.delivered(1)
    assert bus.platform.ams.get("bob").mailbox.messages == 1
    await newer.settle(ack_through_tag=1)
    await newer.in_step()
    assert bus.platform.ams.get("bob").mailbox.messages == 0


async def test_old_token_and_made_up_token_do_not_resume(bus: Bus, connect: Any) -> None:
    first = await connect(bus, "bob")
    second = await connect(bus, "bob", resume_token=first.welcome.resume_token)
    for token in (first.welcome.resume_token, "made up"):
        third = await connect(bus, "bob", welcomed=False, resume_token=token)
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(third.end())
            # The holder is asked for a sign of life, and gives it.
            await second.until(lambda: second.heartbeats > 0)
            code, text = await ended
        assert code == grpc.StatusCode.ALREADY_EXISTS
        assert "live session" in text
        second.heartbeats = 0


async def test_silent_holder_loses_the_name_within_the_probe_bound(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(probe_timeout=0.2, drain_grace=1.0))
    silent = await connect(bus, "bob", answers=False)
    alice = await connect(bus, "alice")
    await alice.send(acl("bob"))
    await silent.delivered(1)
    other = await connect(bus, "bob")
    assert other.welcome.generation == 2
    await other.delivered(1)
    assert other.deliveries[0].redelivered
    assert (await silent.end())[0] == grpc.StatusCode.FAILED_PRECONDITION


async def test_c16a_two_hellos_at_the_same_instant_have_one_winner(bus: Bus, connect: Any, channels: Any) -> None:
    """C16 (a), a hundred times."""
    ways = [channels(bus), channels(bus)]

    async def claim(name: str, way: grpc.aio.Channel) -> tuple[RawSession, grpc.StatusCode | None]:
        session = await connect(way, name, welcomed=False)
        try:
            frame = await session.read()
        except grpc.aio.AioRpcError as error:
            return session, error.code()
        assert frame is not None
        return session, None

    for count in range(100):
        name = f"planner-{count}"
        async with asyncio.timeout(WAIT):
            tasks = [asyncio.ensure_future(claim(name, way)) for way in ways]
            first, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = next(iter(first)).result()[0]
            assert winner.welcome.agent == f"{name}@local"
            # The winner goes on reading, and so answers when it is asked for a sign of life.
            living = asyncio.ensure_future(winner.end())
            outcomes = [(await task)[1] for task in tasks]
            assert sorted(outcomes, key=str) == [None, grpc.StatusCode.ALREADY_EXISTS]
            await winner.say(bye=pb.Bye())
            assert await living == (OK, "")


async def test_same_hello_again_after_a_polite_end_finds_one_agent_and_only_the_new_offer(
    bus: Bus, connect: Any
) -> None:
    """C16 (b) and (c), without topics."""

    def offer(*types: str) -> agent_pb2.DfAgentDescription:
        return agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type=one) for one in types])

    planner = await connect(bus, "planner", description=offer("plan", "paint"))
    await planner.leave()
    planner = await connect(bus, "planner", description=offer("plan"))
    assert (planner.welcome.attached, planner.welcome.generation) == (True, 2)
    assert [one.service_type for one in planner.welcome.description.services] == ["plan"]
    assert len(bus.platform.ams) == 1
    assert len(bus.platform.df) == 1


async def test_c16c_registering_twice_with_the_same_data_is_fine(
    bus: Bus, channel: grpc.aio.Channel, connect: Any
) -> None:
    """C16 (c) by unary calls, and with a session after it."""
    ams = ams_service_pb2_grpc.AmsServiceStub(channel)
    request = ams_service_pb2.RegisterAgentRequest()
    request.description.name.name = "planner"
    request.description.ownership = "ops"
    assert not (await ams.RegisterAgent(request)).existed
    assert (await ams.RegisterAgent(request)).existed
    planner = await connect(bus, "planner", ownership="ops")
    assert planner.welcome.attached
    assert len(bus.platform.ams) == 1


async def test_bye_with_deregister_frees_the_name_and_tells_who_waits(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", act=19, acl_reply_with="r1"), acl("bob", act=19, acl_reply_with="r2"))
    await bob.delivered(2)
    await bob.settle(ack_sequences=[1])
    await bob.say(bye=pb.Bye(deregister=True))
    assert await bob.end() == (OK, "")
    # What was acknowledged was not answered either.
    failures = await alice.delivered(2)
    assert [one.message.acl.in_reply_to for one in failures] == ["r1", "r2"]
    assert bus.platform.ams.find("bob") is None
    bob = await connect(bus, "bob")
    assert (bob.welcome.attached, bob.welcome.generation) == (False, 1)
    await bob.in_step()
    assert bob.deliveries == []


async def test_bye_answers_what_was_sent_before_it(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(*[acl("bob", report=pb.REPORT_MODE_RECEIPT_LAZY) for _ in range(50)], acl("nobody"))
    await alice.say(bye=pb.Bye())
    assert await alice.end() == (OK, "")
    assert alice.accepted_through == 51
    assert [outcome_of(one) for one in alice.receipts] == [(51, "nobody", "NO_SUCH_AGENT")]
    await bob.delivered(50)


async def test_half_close_answers_what_was_sent_and_counts_as_lost(bus: Bus, connect: Any) -> None:
    offer = agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type="sum")])
    alice = await connect(bus, "alice", description=offer)
    await connect(bus, "bob")
    await alice.send(acl("bob"), acl("nobody"))
    await alice.call.done_writing()
    assert await alice.end() == (OK, "")
    assert alice.accepted_through == 2
    record = bus.platform.ams.get("alice")
    assert (str(record.state), record.session) == ("unknown", None)
    assert bus.platform.df.get("alice@local") is not None


async def test_nothing_is_sent_in_the_name_of_an_agent_that_is_gone(bus: Bus, connect: Any) -> None:
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.say(bye=pb.Bye(deregister=True))
    await alice.send(acl("bob", "ghost"))
    assert await alice.end() == (OK, "")
    await bob.in_step()
    assert bob.deliveries == []


async def test_ephemeral_name_ends_after_the_grace(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(resume_grace=0.2, drain_grace=1.0))
    cli = await connect(bus, "cli-1", ephemeral=True)
    alice = await connect(bus, "alice")
    await cli.leave()
    await alice.send(acl("cli-1", act=19, acl_reply_with="r"))
    # The name goes, and what waited for it is told.
    (failure,) = await alice.delivered(1)
    assert failure.message.acl.in_reply_to == "r"
    assert bus.platform.ams.find("cli-1") is None
    assert bus.platform.ams.find("alice") is not None


# ---- liveness, life cycle, the end -----------------------------------------------------------------------------------


async def test_client_that_answers_no_heartbeat_is_lost(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(heartbeat_interval=0.1, drain_grace=1.0))
    silent = await connect(bus, "silent", answers=False)
    alive = await connect(bus, "alive")
    async with asyncio.TaskGroup() as group:
        living = group.create_task(alive.end())
        code, text = await silent.end()
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "nothing heard" in text
        assert silent.heartbeats >= 2
        record = bus.platform.ams.get("silent")
        assert str(record.state) == "unknown"
        await alive.say(bye=pb.Bye())
        assert await living == (OK, "")


async def test_suspended_agent_gets_its_mail_when_it_is_resumed(
    bus: Bus, channel: grpc.aio.Channel, connect: Any
) -> None:
    ams = ams_service_pb2_grpc.AmsServiceStub(channel)
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob", "in hand"))
    await bob.delivered(1)
    answer = await ams.SuspendAgent(ams_service_pb2.SuspendAgentRequest(agent="bob"))
    assert answer.state == agent_pb2.AGENT_STATE_SUSPENDED
    await bob.until(lambda: len(bob.states) == 1)
    assert (bob.states[0].state, bob.states[0].changed_by) == (agent_pb2.AGENT_STATE_SUSPENDED, "ams")
    await alice.send(acl("bob", "waits"))
    assert await alice.receipted(2) == []
    await bob.settle(ack_through_tag=1)
    await bob.in_step()
    assert len(bob.deliveries) == 1
    await ams.SuspendAgent(ams_service_pb2.SuspendAgentRequest(agent="bob"))
    await ams.ResumeAgent(ams_service_pb2.ResumeAgentRequest(agent="bob"))
    await bob.delivered(2)
    assert [one.state for one in bob.states] == [agent_pb2.AGENT_STATE_SUSPENDED, agent_pb2.AGENT_STATE_ACTIVE]


async def test_suspended_agent_stays_suspended_across_sessions(
    bus: Bus, channel: grpc.aio.Channel, connect: Any
) -> None:
    ams = ams_service_pb2_grpc.AmsServiceStub(channel)
    bob = await connect(bus, "bob")
    await ams.SuspendAgent(ams_service_pb2.SuspendAgentRequest(agent="bob"))
    await bob.vanish()
    bob = await connect(bus, "bob")
    assert bob.welcome.state == agent_pb2.AGENT_STATE_SUSPENDED
    await ams.ResumeAgent(ams_service_pb2.ResumeAgentRequest(agent="bob"))
    await bob.until(lambda: [one.state for one in bob.states] == [agent_pb2.AGENT_STATE_ACTIVE])


async def test_terminated_agent_is_told_and_its_name_is_free(bus: Bus, channel: grpc.aio.Channel, connect: Any) -> None:
    ams = ams_service_pb2_grpc.AmsServiceStub(channel)
    bob = await connect(bus, "bob")
    await ams.TerminateAgent(ams_service_pb2.TerminateAgentRequest(agent="bob@local"))
    code, text = await bob.end()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "terminated" in text
    assert [notice.kind for notice in bob.notices] == [pb.NOTICE_KIND_TERMINATED]
    assert not (await connect(bus, "bob")).welcome.attached


async def test_drain_ends_streams_well_answers_what_was_sent_and_waits_for_what_is_in_hand(
    buses: Any, connect: Any
) -> None:
    bus = await buses(limits=BusLimits(drain_grace=WAIT))
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob"), acl("nobody"))
    await bob.delivered(1)
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(bus.drain())
        assert await alice.end() == (OK, "")
        assert [notice.kind for notice in alice.notices] == [pb.NOTICE_KIND_DRAINING]
        assert alice.notices[0].HasField("reconnect_after")
        assert len(alice.receipts) == 1
        # Bob has one in his handler: he may still say what became of it.
        await bob.until(lambda: bool(bob.notices))
        assert not draining.done()
        await bob.settle(ack_through_tag=1)
        assert await bob.end() == (OK, "")
    assert bus.platform.ams.get("bob").mailbox.messages == 0


async def test_drain_does_not_wait_longer_than_the_grace(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=0.2))
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    await alice.send(acl("bob"))
    await bob.delivered(1)
    async with asyncio.TaskGroup() as group:
        group.create_task(bus.drain())
        assert await bob.end() == (OK, "")
    assert bus.platform.ams.get("bob").mailbox.messages == 1


async def test_draining_bus_takes_no_new_session(buses: Any, connect: Any, channels: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=WAIT))
    bob = await connect(bus, "bob")
    waiting = await connect(bus, None)
    await bob.send(acl("bob"))
    await bob.delivered(1)
    async with asyncio.TaskGroup() as group:
        group.create_task(bus.drain())
        await bob.until(lambda: bool(bob.notices))
        await waiting.say(hello=pb.Hello(protocol_version=1, agent="late"))
        assert (await waiting.end())[0] == grpc.StatusCode.UNAVAILABLE
        await bob.settle(ack_through_tag=1)
        await bob.end()


async def test_full_node_refuses_another_session_and_still_lets_one_resume(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(max_sessions=2, drain_grace=1.0))
    alice = await connect(bus, "alice")
    await connect(bus, "bob")
    third = await connect(bus, "carol", welcomed=False)
    assert (await third.end())[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert bus.platform.ams.find("carol") is None
    again = await connect(bus, "alice", resume_token=alice.welcome.resume_token)
    assert again.welcome.generation == 2


async def test_call_cancelled_at_any_moment_leaves_no_session(bus: Bus, connect: Any, channels: Any) -> None:
    channel = channels(bus)
    for turns in range(30):
        session = await connect(channel, f"agent-{turns % 3}", welcomed=False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await session.vanish()
    last = await connect(channel, "agent-0")
    await last.leave()
    await eventually(lambda: bus.platform.sessions == 0)
    assert all(record.session is None for record in bus.platform.ams)


async def test_client_that_reads_nothing_is_lost_and_leaves_nothing_behind(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(write_timeout=0.3, drain_grace=1.0, window_bytes=64 * 1024 * 1024))
    deaf = await connect(bus, "deaf", answers=False)
    alice = await connect(bus, "alice")
    for _ in range(40):
        await alice.send(acl("deaf", "x" * 500_000))
    await alice.receipted(40)
    record = bus.platform.ams.get("deaf")
    await eventually(lambda: record.session is None)
    assert record.mailbox.messages == 40
    assert str(record.state) == "unknown"
    again = await connect(bus, "deaf")
    await again.delivered(1)
    assert again.deliveries[0].redelivered
    # Should it ever read again, it hears what happened.
    assert (await deaf.end())[0] == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_sender_over_its_window_is_slowed_down_and_loses_nothing(buses: Any, connect: Any) -> None:
    bus = await buses(limits=BusLimits(send_window_messages=10, drain_grace=1.0))
    bob = await connect(bus, "bob")
    alice = await connect(bus, "alice")
    for start in range(0, 3_000, 1_000):
        await alice.send(*[acl("bob", f"{index}") for index in range(start, start + 1_000)])
    assert await alice.receipted(3_000) == []
    while len(bob.deliveries) < 3_000:
        await bob.delivered(len(bob.deliveries) + 1)
        await bob.settle(ack_through_tag=bob.deliveries[-1].tag)
    assert texts(bob) == [f"{index}" for index in range(3_000)]


async def test_very_many_refusals_come_in_frames_that_fit(bus: Bus, connect: Any) -> None:
    alice = await connect(bus, "alice")
    await alice.send(*[acl([f"nobody-{index}" for index in range(100)]) for _ in range(100)])
    receipts = await alice.receipted(100)
    assert len(receipts) == 10_000
    assert len({(one.number, one.receiver) for one in receipts}) == 10_000
