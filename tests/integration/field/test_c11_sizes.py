"""C11: one message too big. It is refused with its size and the limit, and no connection is lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from proxy import proxy_to
from pulse import pulse_check
from raw import acl
from script_agents import BY_HAND, Bridged, Person, script_file
from waiting import Inbox

from gagent_grpc import Agent, MessageTooLarge
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc as services

SIZES = [900_000, 1_100_000, 3_900_000, 4_100_000, 12_000_000]
"""Bytes of content."""
LIMIT = 1_000_000
FRAME = 4 * 1024 * 1024
"""Largest frame; the transport ends the stream of whoever writes a larger one."""


async def test_c11_sdk_delivers_or_refuses_each_size_and_stays_connected(bus: Any) -> None:
    """Without the check in the SDK, the bus refuses up to its frame limit, and 12 MB end the stream: a reconnect."""
    inbox = Inbox()
    async with pulse_check(bus) as stack:
        near = await stack.enter_async_context(proxy_to(bus.address))
        far = await stack.enter_async_context(proxy_to(bus.address))
        bob = Agent("bob", bus=far.address)
        bob.on()(inbox)
        await stack.enter_async_context(bob)
        alice = await stack.enter_async_context(Agent("alice", bus=near.address))
        for size in SIZES:
            if size < LIMIT:
                assert await alice.send("bob", "inform", b"x" * size) == []
            else:
                with pytest.raises(MessageTooLarge) as raised:
                    await alice.send("bob", "inform", b"x" * size)
                assert (size < raised.value.size_bytes < size + 1_000, raised.value.limit_bytes) == (True, LIMIT)
                assert f"{raised.value.size_bytes:,}" in str(raised.value)
                assert f"{LIMIT:,}" in str(raised.value)
            assert await alice.send("bob", "inform", f"after {size}") == []
        await inbox.holds(1 + len(SIZES))
        assert inbox.contents == [b"x" * SIZES[0], *(f"after {size}" for size in SIZES)]
        assert (near.connections, far.connections) == (1, 1)
        assert bus.platform.ams.get("alice").generation == bus.platform.ams.get("bob").generation == 1


@pytest.mark.parametrize("size", [size for size in SIZES if size < FRAME])
async def test_c11_bus_refuses_what_other_clients_send_and_only_that(bus: Any, raw: Any, size: int) -> None:
    """Without the check in the router what is over the limit is delivered, to a reader that may take less."""
    async with pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob"))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        big, small = acl("bob", "x" * size), acl("bob", f"after {size}")
        # In one frame, and each in its own.
        batches = [[big], [small]] if size + 1_000 > FRAME else [[big, small], [big], [small]]
        for batch in batches:
            await alice.send(*batch)
        sent = [message for batch in batches for message in batch]
        found = {one.number: one for one in await alice.receipted(len(sent))}
        refused = {number for number, message in enumerate(sent, 1) if message is big and size > LIMIT}
        assert set(found) == refused
        for one in found.values():
            assert (one.outcome, one.retryable) == (pb.OUTCOME_TOO_LARGE, False)
            assert f"{big.ByteSize():,}" in one.detail
            assert f"{LIMIT:,}" in one.detail
        expected = [message.acl.text for message in sent if message is small or size < LIMIT]
        assert [one.message.acl.text for one in await bob.delivered(len(expected))] == expected
        await bob.settle(ack_through_tag=len(expected))
        await bob.in_step()
        assert bus.platform.ams.get("alice").generation == bus.platform.ams.get("bob").generation == 1


async def test_c11_frame_beyond_the_transports_limit_ends_the_stream_of_its_writer_only(bus: Any, raw: Any) -> None:
    """Nobody can refuse what cannot be read; the welcome says how large a frame may be."""
    async with pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob"))
        alice = await stack.enter_async_context(raw(bus.address, "alice"))
        assert alice.welcome.max_frame_bytes == FRAME
        await alice.send(acl("bob", "before"))
        await alice.receipted(1)
        await alice.send(acl("bob", "x" * SIZES[-1]))
        assert (await alice.end())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        again = await stack.enter_async_context(raw(bus.address, "alice"))
        await again.send(acl("bob", "after"))
        assert [one.message.acl.text for one in await bob.delivered(2)] == ["before", "after"]
        await bob.settle(ack_through_tag=2)
        await bob.in_step()


@pytest.mark.parametrize("size", [size for size in SIZES if size < FRAME])
async def test_c11_one_shot_sender_hears_the_same(bus: Any, raw: Any, size: int) -> None:
    """As above; the status is OK, since the receipts say it all."""
    async with pulse_check(bus) as stack:
        bob = await stack.enter_async_context(raw(bus.address, "bob"))
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(bus.address, options=options))
        stub = services.BusServiceStub(channel)
        request = pb.SendRequest(messages=[acl("bob", "x" * size), acl("bob", f"after {size}")])
        receipts = (await stub.Send(request)).receipts
        first = pb.OUTCOME_ACCEPTED if size < LIMIT else pb.OUTCOME_TOO_LARGE
        assert [one.outcome for one in receipts] == [first, pb.OUTCOME_ACCEPTED]
        assert (f"{LIMIT:,}" in receipts[0].detail) == (size > LIMIT)
        expected = ["x" * size] * (size < LIMIT) + [f"after {size}"]
        assert [one.message.acl.text for one in await bob.delivered(len(expected))] == expected
        await bob.settle(ack_through_tag=len(expected))
        await bob.in_step()


async def test_c11_script_is_told_of_what_it_cannot_send_and_goes_on(bus: Any, tmp_path: Path) -> None:
    """Without the answer of its bridge a script, and whoever asked it, wait for ever."""
    script = script_file(
        tmp_path,
        BY_HAND
        + """
for event in events():
    msg = event.get("msg", {})
    if msg.get("performative") == "failure":
        send("bob", "refused: " + msg["content"])
    elif msg.get("content", "").isdigit():
        send(msg["sender"], "x" * int(msg["content"]))
    elif msg:
        send("bob", msg["content"])
    else:
        say(action="noop")
""",
        "helper",
        ".py",
    )
    async with pulse_check(bus) as stack:
        bob = Person(Agent("bob", bus=bus.address))
        alice = Person(Agent("alice", bus=bus.address))
        await stack.enter_async_context(bob.agent)
        await stack.enter_async_context(alice.agent)
        running = Bridged(ScriptAgent(script, bus=bus.address))
        stack.push_async_callback(running.aclose)
        await running.ready()
        # A line over its own limit, six times that of a message, is no action; nothing is known of whom it was for.
        for size in SIZES[:-1]:
            await alice.send("helper", str(size), conversation_id=str(size))
            answer = await alice.next()
            assert answer.conversation_id == str(size)
            if size < LIMIT:
                assert (answer.performative.text, len(answer.content)) == ("inform", size)
            else:
                assert answer.performative.text == "failure"
                told = (await bob.next()).content
                for text in (answer.content, told):
                    assert re.search(rf"TOO_LARGE: the message has {size // 1000:,},\d\d\d bytes", text)
                    assert f"the limit is {LIMIT:,}" in text
            await alice.send("helper", f"after {size}", "inform")
            assert (await bob.next()).content == f"after {size}"
        assert bus.platform.ams.get("helper").generation == 1
