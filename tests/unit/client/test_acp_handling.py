"""What becomes of an ACP message that a bus of a later version may bring."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acp.message import ACPMessage
from gagent_grpc.client.acp.handling import ACPHandling, Remembered
from gagent_grpc.client.deliveries import Deliveries, Taken
from gagent_grpc.client.handling import Handling
from gagent_grpc.client.lanes import Job
from gagent_grpc.client.questions import Questions
from gagent_grpc.config import ClientLimits
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb


class Bench:
    """The handling of one agent, and what it sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[ACPMessage, Mapping[str, str]]] = []
        self.handling = Handling("bob", self._send_acl, threads=1)
        deliveries = Deliveries("bob", self.handling.handle, Questions(), ClientLimits())
        self.acp = ACPHandling("bob", self.handling, deliveries, self._send, lambda: "local")

    async def _send(self, message: ACPMessage, headers: Mapping[str, str]) -> None:
        self.sent.append((message, headers))

    async def _send_acl(self, message: ACLMessage, headers: Mapping[str, str]) -> None:
        raise AssertionError("an ACL message was sent")

    async def come(self, kind: int, **message: str) -> object:
        delivery = pb.Delivery(sender="alice@local", receiver="bob@local", message=pb.BusMessage(id="m"))
        delivery.message.headers["hops"] = "3"
        delivery.message.acp.message_type = kind  # type: ignore[assignment]  # [assignment]: a number.
        for name, value in message.items():
            setattr(delivery.message.acp, name, value)
        job = Job(delivery, None, 1, ("alice@local", "m"), ("alice@local", "", False))
        try:
            return await self.acp.handle(job, AgentIdentifier("alice"))
        finally:
            self.handling.close()


async def test_an_unknown_type_is_answered_by_a_marked_error_that_names_those_that_are_known() -> None:
    bench = Bench()
    assert await bench.come(8) is Taken.HANDLED
    ((answer, headers),) = bench.sent
    assert (answer.type, answer.target, answer.in_reply_to) == ("error", "alice", "m")
    assert answer.content["code"] == "UNKNOWN_TYPE"
    assert "unknown ACP message type 8; expected 1 (request), 2 (response)" in answer.content["error"]
    assert answer.automatic
    assert headers == {"hops": "4"}


@pytest.mark.parametrize("kind", [4, 5])
async def test_a_heartbeat_or_an_error_that_cannot_be_read_is_never_answered(kind: int) -> None:
    bench = Bench()
    assert await bench.come(kind, json="{") is Taken.HANDLED
    assert bench.sent == []


def test_of_too_many_questions_the_oldest_is_forgotten() -> None:
    kept: Remembered[int] = Remembered(2)
    for number, key in enumerate(["a", "b", "a", "c"]):
        kept[key] = number
    assert (kept.get("a"), kept.get("b"), kept.get("c"), kept.get(None)) == (2, None, 3, None)
