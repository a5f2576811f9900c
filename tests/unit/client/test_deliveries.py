"""What an agent does with its deliveries beside what the bus does with them: nothing is lost, doubled, overtaken or stuck.

Both state machines are the real ones; what is between them comes late, in parts, or is lost with the connection. Handlers fail,
wait and are overtaken by a new session with another window. That this finds something was seen with lanes that forget which of
them wait for a return, and with a bus that lets a lane go on at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from raw import acl
from waiting import WAIT

from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.client.deliveries import Deliveries
from gagent_grpc.client.message import Received
from gagent_grpc.client.questions import Questions
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits, ClientLimits
from gagent_grpc.pb.gagent.internal.v1 import bus_frames_pb2 as twin
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.server import frames
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

MAX_DELIVERIES = 4
POISON = MAX_DELIVERIES + 10
"""Failures that no message outlives."""


class Talk:
    """One agent and its bus, and the frames on their way between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        limits = BusLimits(max_deliveries=MAX_DELIVERIES, urgent_messages=2)
        self.clock = FakeClock()
        self.platform = Platform("local", MemoryStore(), EnvelopeCodec(max_id_bytes=128), self.clock, limits)
        self.deliveries = Deliveries(
            "bob",
            self._handle,
            Questions(),
            ClientLimits(concurrency=rng.choice([1, 2, 4]), retry_delay=rng.choice([0.0, 1.0])),
        )
        self.deliveries.prepare(asyncio.Event())
        self.finished: list[str] = []
        self.sent: dict[tuple[str, str, int], list[str]] = {}
        """Contents by sender, conversation and urgency, within which they are handled in order."""
        self.failures: Counter[str] = Counter()
        """How often a message is still to fail."""
        self.poison: set[str] = set()
        self._token = ""
        self._gates: list[asyncio.Future[None]] = []
        self._down: list[bytes] = []
        self._up: list[twin.SettleBatch] = []

    async def open(self) -> None:
        self.senders = [(await self.platform.attach(Hello(name), "")).session for name in ("ada", "bea")]
        await self.connect()

    async def connect(self) -> None:
        """Open a session; what was on its way in an older one is lost."""
        hello = Hello(
            "bob",
            resume_token=self._token,
            window_messages=self.rng.choice([1, 2, 5, 100]),
            held=frozenset(self.deliveries.held()),
        )
        opened = await self.platform.attach(hello, "")
        self.session, self._token = opened.session, opened.resume_token
        self._down.clear()
        self._up.clear()
        self.deliveries.reconnected(opened.held, "local")

    async def _handle(self, message: Received) -> None:
        content = str(message.content)
        if self.rng.random() < 0.4:
            gate = asyncio.get_running_loop().create_future()
            self._gates.append(gate)
            await gate
        if self.failures[content]:
            self.failures[content] -= 1
            raise ValueError(content)
        self.finished.append(content)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def send(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            sender = self.rng.choice(self.senders)
            content = str(sum(map(len, self.sent.values())))
            priority, conversation = self.rng.choice([2, 2, 2, 4]), self.rng.choice(["", "x", "y"])
            if self.rng.random() < 0.25:
                self.failures[content] = self.rng.choice([1, 1, 2, POISON])
                if self.failures[content] == POISON:
                    self.poison.add(content)
            more = {"acl_conversation_id": conversation} if conversation else {}
            message = acl("bob", content, id=content, priority=priority, **more)
            sender.submit([message.SerializeToString()])
            self.sent.setdefault((sender.aid, conversation, priority), []).append(content)

    def say(self) -> None:
        """The bus writes what it has to say."""
        out = self.session._collect()
        self._down.extend(frames.control_frames(out))
        if out.letters:
            self._down.append(frames.deliver_frame(out.letters, self.session.aid))

    def hear(self, count: int) -> None:
        """The agent reads ``count`` frames."""
        for data in self._down[:count]:
            frame = pb.OpenSessionResponse.FromString(data)
            if frame.HasField("deliver"):
                self.deliveries.add(frame.deliver)
            elif frame.HasField("returned"):
                self.deliveries.lanes.returned(frozenset(frame.returned.sequences))
        del self._down[:count]

    def answer(self) -> None:
        """The agent writes what is to be settled."""
        settle = self.deliveries.settlements()
        if settle is not None:
            self._up.append(settle)

    def settle(self, count: int) -> None:
        """The bus reads ``count`` frames."""
        for settle in self._up[:count]:
            nacks = frames.nacks_from_frame(settle.nacks)
            self.session.settle(ack_through_tag=0, acks=settle.ack_sequences, nacks=nacks, rejects=[])
        del self._up[:count]

    def go_on(self) -> None:
        """A handler that waits goes on."""
        if self._gates:
            self._gates.pop(self.rng.randrange(len(self._gates))).set_result(None)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for session in (*self.senders, self.session):
            session.heard()
        self.platform.release_lanes()

    async def lose(self) -> None:
        """The connection is lost, which the bus may hear of before the agent is back."""
        self.settle(self.rng.randint(0, len(self._up)))
        self.deliveries.lanes.forget_waiting()
        if self.rng.random() < 0.5:
            self.platform.detach(self.session)
        await _turns(self.rng.randint(0, 3))
        await self.connect()

    async def step(self) -> None:
        rng = self.rng
        what = rng.choices(
            ["send", "say", "hear", "answer", "settle", "go on", "time", "lose"], [25, 15, 15, 10, 10, 10, 5, 3]
        )[0]
        if what == "send":
            self.send()
        elif what == "say":
            self.say()
        elif what == "hear":
            self.hear(rng.randint(0, len(self._down)))
        elif what == "answer":
            self.answer()
        elif what == "settle":
            self.settle(rng.randint(0, len(self._up)))
        elif what == "go on":
            self.go_on()
        elif what == "time":
            self.pass_time(rng.choice([0.1, 1.0]))
        else:
            await self.lose()
        await _turns(rng.randint(0, 6))

    async def calm_down(self) -> None:
        """Let everything take its course."""
        for _ in range(2_000):
            if not self.waiting:
                return
            self.say()
            self.hear(len(self._down))
            await _turns(6)
            while self._gates:
                self.go_on()
            await _turns(3)
            self.answer()
            self.settle(len(self._up))
            self.pass_time(2.0)

    @property
    def waiting(self) -> bool:
        mailbox = self.platform.ams.get("bob").mailbox
        return bool(mailbox.messages or self.deliveries.in_progress or self.deliveries.lanes._lanes)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _check(rng: random.Random) -> None:
    talk = Talk(rng)
    await talk.open()
    try:
        for _ in range(rng.randint(20, 120)):
            await talk.step()
        await talk.calm_down()
        assert not talk.waiting
        dead = {one.message_id for one in talk.platform.dead_letters}
        everything = [content for contents in talk.sent.values() for content in contents]
        # Each one ends in one way, and only what never succeeds is given up.
        assert Counter([*talk.finished, *dead]) == Counter(everything)
        assert dead <= talk.poison
        for contents in talk.sent.values():
            handled = [one for one in talk.finished if one in contents]
            assert handled == sorted(handled, key=int)
    finally:
        await talk.deliveries.lanes.aclose()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
# A failure crosses an earlier return of the same delivery, which so comes twice before anybody has begun it.
@example(seed=52)
def test_each_message_is_handled_once_and_in_order_whatever_is_late_lost_or_fails(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    # Each failure of a handler is logged with its traceback.
    with caplog.at_level(logging.CRITICAL), asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(_check(random.Random(seed)), WAIT))
