"""Both sides of delegated tasks with the generated stubs, as an author of another language has them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from waiting import WAIT

from gagent_grpc.pb.gagent.v1 import acp_pb2, agent_pb2
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as bus_pb
from gagent_grpc.pb.gagent.v1 import task_service_pb2 as pb


class Side:
    """One agent with its calls: a session, and the stub that shows its token."""

    def __init__(self, session: Any, stub: Any) -> None:
        self.session = session
        self.aid = session.welcome.agent
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        request = getattr(pb, f"{name}Request")

        def call(**fields: Any) -> Any:
            token = (("gagent-session", self.session.welcome.resume_token),)
            return getattr(self._stub, name)(request(**fields), metadata=token)

        return call

    def deliveries(self, kind: int) -> list[Any]:
        return [one.message.acp for one in self.session.deliveries if one.message.acp.message_type == kind]

    async def receives(self, kind: int, count: int = 1) -> list[Any]:
        await self.session.until(lambda: len(self.deliveries(kind)) >= count)
        return self.deliveries(kind)

    async def delegation(self, count: int = 1) -> Any:
        """Wait for the DELEGATE with this place, and return the task in it."""
        return (await self.receives(acp_pb2.ACP_MESSAGE_TYPE_DELEGATE, count))[count - 1].delegation

    async def says(self, to: str, kind: str, *, id: str = "", **content: Any) -> list[Any]:  # noqa: A002
        """Send an ACP message and return the receipts so far that are no ACCEPTED."""
        message = bus_pb.BusMessage(id=id, to=[to])
        message.acp.message_type = acp_pb2.AcpMessageType.Value(f"ACP_MESSAGE_TYPE_{kind}")
        for part, value in content.items():
            getattr(message.acp, part).CopyFrom(value)
        self.sent = getattr(self, "sent", 0) + 1
        await self.session.send(message)
        receipts: list[Any] = await self.session.receipted(self.sent)
        return receipts


async def refused(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Return status, reason and metadata of a call that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(WAIT):
            await call
    return caught.value.code(), *info_of(caught.value)


def info_of(error: Any) -> tuple[str, dict[str, str]]:
    info = error_details_pb2.ErrorInfo()
    status = rpc_status.from_call(error)
    assert status is not None
    assert status.details[0].Unpack(info)
    return info.reason, dict(info.metadata)


async def watched(call: Any) -> list[Any]:
    """Read a watch to its end; return its responses."""
    found = []
    async with asyncio.timeout(WAIT):
        while (response := await call.read()) is not grpc.aio.EOF:
            found.append(response)
    return found


async def ended(side: Side, task_id: str, delegator: str = "") -> Any:
    """Wait for the end of a task and return it."""
    await watched(side.WatchTask(task_id=task_id, delegator=delegator, after=0))
    return (await side.GetTask(task_id=task_id, delegator=delegator)).task


def at(seconds: float) -> Timestamp:
    moment = Timestamp()
    moment.FromNanoseconds(int(seconds * 1e9))
    return moment


def offer(service: str) -> agent_pb2.DfAgentDescription:
    return agent_pb2.DfAgentDescription(services=[agent_pb2.ServiceDescription(service_type=service)])
