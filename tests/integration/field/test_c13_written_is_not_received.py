"""C13: written is not received. What a killed client, or a killed bus, had in its buffers comes again."""

from __future__ import annotations

from typing import Any

import pytest
from pulse import pulse_check
from raw import acl

from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

WINDOW = 4_096
"""Unsettled deliveries of one session, by default."""

DEAF = """
    import asyncio, sys
    import grpc
    from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
    from gagent_grpc.pb.gagent.v1 import bus_service_pb2_grpc as services

    async def main():
        async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
            call = services.BusServiceStub(channel).OpenSession()
            await call.write(pb.OpenSessionRequest(hello=pb.Hello(protocol_version=1, agent="bob")))
            assert (await call.read()).HasField("welcome")
            print("open", flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.parametrize(("killed", "messages"), [("reader", 20_000), ("bus", 10_000)])
async def test_c13_mail_of_a_killed_reader_or_bus_arrives_whole(
    bus_processes: Any, programs: Any, raw: Any, killed: str, messages: int
) -> None:
    """Settled when written, what was in a buffer is gone; without the window all of it is in flight."""
    numbers = [f"{number}" for number in range(messages)]
    async with bus_processes(mailbox_messages=messages + 1) as bus, pulse_check(bus) as stack:
        deaf = await stack.enter_async_context(programs(DEAF, bus.address))
        assert await deaf.line() == "open"
        async with raw(bus.address, "alice") as alice:
            for start in range(0, messages, 1_000):
                part = numbers[start : start + 1_000]
                await alice.send(*(acl("bob", f"{number:>20}", id=number) for number in part))
                # All that may be on its way to the receiver is, before the next ones come.
                assert await alice.receipted(start + len(part)) == []
            if killed == "bus":
                bus.kill()
                await bus.wait()
                await bus.start()
        await deaf.kill()

        bob = await stack.enter_async_context(raw(bus.address, "bob", window=pb.Window(messages=WINDOW)))
        await bob.delivered(WINDOW)
        await bob.in_step()
        # Nobody gets more than the window unsettled.
        assert len(bob.deliveries) == WINDOW
        settled = 0
        while settled < messages:
            await bob.settle(ack_through_tag=bob.deliveries[-1].tag)
            settled = len(bob.deliveries)
            assert settled <= messages
            await bob.delivered(min(settled + 1, messages))
        assert [one.message.id for one in bob.deliveries] == numbers
        flagged = [one.redelivered for one in bob.deliveries]
        if killed == "reader":
            # What the first reader may have had, and no more.
            assert 0 < sum(flagged) <= WINDOW
            assert all(flagged[: sum(flagged)])
        else:
            assert all(flagged)
