"""`ContextService` over loopback with the generated stubs, as an author of another language has them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from raw import acl
from tasking import info_of, refused
from waiting import WAIT

from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import context_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import context_service_pb2_grpc as services
from gagent_grpc.server.app import Bus

STATUS = grpc.StatusCode
C = pb.ContextSpace(conversation_id="c")


class Caller:
    """The calls of one agent about the conversation `c`."""

    def __init__(self, stub: Any, token: str) -> None:
        self._stub = stub
        self._token = token

    def __getattr__(self, name: str) -> Any:
        def call(**fields: Any) -> Any:
            request = getattr(pb, f"{name}Request")(**{"space": C, **fields})
            return getattr(self._stub, name)(request, metadata=(("gagent-session", self._token),))

        return call


@pytest.fixture
def caller(connect: Any, channels: Any) -> Any:
    """Return a factory: `await caller(bus, "alice", to="bob")`, for one who said something in the conversation."""

    async def make(bus: Bus, name: str, to: str = "") -> Caller:
        session = await connect(bus, name)
        if to:
            await session.send(acl(to, "hello", acl_conversation_id="c"))
            assert await session.receipted(1) == []
        return Caller(services.ContextServiceStub(channels(bus)), session.welcome.resume_token)

    return make


async def told(stream: Any, count: int) -> list[pb.WatchContextResponse]:
    async with asyncio.timeout(WAIT):
        return [await stream.read() for _ in range(count)]


async def test_pages_hold_as_many_as_were_asked_for_and_go_on_by_key(bus: Bus, caller: Any) -> None:
    alice = await caller(bus, "alice", to="alice")
    assert list((await alice.ListContextEntries()).entries) == []
    keys = [f"k{number:03}" for number in range(130)]
    for key in reversed(keys):
        await alice.PutContextEntry(key=key, value_json="[1, 2.0]")
    first = await alice.ListContextEntries()
    assert [one.key for one in first.entries] == keys[:100]
    rest = await alice.ListContextEntries(page_token=first.next_page_token)
    assert ([one.key for one in rest.entries], rest.next_page_token) == (keys[100:], "")
    part = await alice.ListContextEntries(prefix="k00", max_results=3, page_token="k004")
    assert [one.key for one in part.entries] == ["k005", "k006", "k007"]
    # An entry that is removed meanwhile takes no other one along.
    await alice.DeleteContextEntry(key="k007")
    after = await alice.ListContextEntries(prefix="k00", page_token=part.next_page_token)
    assert [one.key for one in after.entries] == ["k008", "k009"]
    assert rest.entries[0].value_json == "[1, 2.0]"


async def test_each_refusal_has_its_status_and_reason(bus: Bus, caller: Any, channels: Any) -> None:
    alice, stranger = await caller(bus, "alice", to="alice"), await caller(bus, "stranger")
    assert (await refused(alice.GetContextEntry(key="k"))) == (STATUS.NOT_FOUND, "ENTRY_NOT_FOUND", {"key": "k"})
    put = (await alice.PutContextEntry(key="k", value_json="1", expected_revision=0)).entry
    for stale in (
        alice.PutContextEntry(key="k", value_json="2", expected_revision=0),
        alice.DeleteContextEntry(key="k", expected_revision=put.revision + 1),
    ):
        status, reason, details = await refused(stale)
        assert (status, reason, details["revision"]) == (STATUS.ABORTED, "REVISION_CONFLICT", f"{put.revision}")
    for text in ("", "{", "NaN"):
        assert (await refused(alice.PutContextEntry(key="k", value_json=text)))[0] is STATUS.INVALID_ARGUMENT
    assert (await refused(alice.PutContextEntry(value_json="1")))[1] == "MISSING_PARAMETER"
    assert (await refused(alice.GetContextEntry(space=None, key="k")))[1] == "MISSING_PARAMETER"
    too_large = alice.PutContextEntry(key="k", value_json=f'"{"x" * 65_535}"')
    assert (await refused(too_large))[0] is STATUS.RESOURCE_EXHAUSTED
    for call in (stranger.GetContextEntry(key="k"), stranger.PutContextEntry(key="k", value_json="1")):
        assert (await refused(call))[:2] == (STATUS.PERMISSION_DENIED, "UNAUTHORISED")
    task = pb.ContextSpace(task=pb.ContextTaskKey(task_id="none"))
    assert (await refused(alice.ListContextEntries(space=task)))[:2] == (STATUS.NOT_FOUND, "TASK_NOT_FOUND")
    nobody = services.ContextServiceStub(channels(bus))
    assert (await refused(nobody.GetContextEntry(pb.GetContextEntryRequest(space=C, key="k"))))[0] is (
        STATUS.PERMISSION_DENIED
    )
    assert (await refused(alice.WatchContext(after_revision=99).read()))[0] is STATUS.INVALID_ARGUMENT
    assert (await alice.GetContextEntry(key="k")).entry == put


async def test_the_end_of_the_bus_ends_a_watch_after_what_there_was(buses: Any, caller: Any) -> None:
    bus = await buses(limits=BusLimits(drain_grace=1.0))
    alice = await caller(bus, "alice", to="alice")
    stream = alice.WatchContext()
    assert (await told(stream, 1))[0].WhichOneof("change") == "synced"
    put = (await alice.PutContextEntry(key="k", value_json="1")).entry
    draining = asyncio.create_task(bus.drain())
    assert [one.put for one in await told(stream, 1)] == [put]
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await told(stream, 1)
    assert (ended.value.code(), info_of(ended.value)[0]) == (STATUS.UNAVAILABLE, "BUS_DRAINING")
    await draining


async def test_a_stream_that_is_not_read_costs_itself_alone(buses: Any, caller: Any) -> None:
    limits = BusLimits(drain_grace=1.0, write_timeout=0.5, context_bytes=300_000)
    bus = await buses(limits=limits)
    alice = await caller(bus, "alice", to="alice")
    slow, quick = alice.WatchContext(), alice.WatchContext()
    await told(slow, 1)
    await told(quick, 1)
    seen = 0
    async with asyncio.timeout(WAIT):
        # Until the transport takes no more for whoever does not read.
        while bus.platform.contexts.watching > 1:
            await alice.PutContextEntry(key="k", value_json=f'"{"x" * 60_000}"')
            await told(quick, 1)
            seen += 1
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await told(slow, seen + 1)
    assert ended.value.code() is STATUS.RESOURCE_EXHAUSTED
    await alice.PutContextEntry(key="last", value_json="1")
    assert (await told(quick, 1))[0].put.key == "last"
    quick.cancel()
