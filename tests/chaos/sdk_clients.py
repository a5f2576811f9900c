"""Senders and receivers that use the public SDK, as an author of agents does.

Owns: the `sender`, the `visitors` and the `sdk` receiver of `tests.chaos.clients`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import time
from dataclasses import replace
from typing import Any

from gagent_grpc import (
    ACLMessage,
    Agent,
    AgentIdentifier,
    BusError,
    ClientLimits,
    DeliveryRefused,
    Performative,
    Received,
)
from tests.chaos.client_life import HandlerFailed, Stop, fails, say_ready
from tests.chaos.history import FAILED_RECEIVER, History, body_hash, mark_of

ANSWERS_WITHIN = 30.0
"""Seconds that a sender waits for its last receipts; what has none then never gets one."""
TICK = 0.05
"""Seconds between two steps of a sender."""
FILLERS = (20, 100, 100, 100, 400, 4000)
"""Sizes of contents beside the mark, in bytes; one is drawn for each message."""
MESSAGES_OF_A_VISIT = 10
"""Messages that a visitor sends before it goes."""
QUICK = ClientLimits(connect_timeout=10.0, initial_backoff=0.1, max_backoff=0.5)
"""A fault comes every second or two: clients that waited longer before they reconnect would be away most of the time."""


class SendingAgent:
    """One agent that sends, and writes down what it hears of each message."""

    def __init__(self, name: str, options: argparse.Namespace, history: History, **agent: Any) -> None:
        """Make an agent; ``agent`` goes to `Agent`."""
        self.agent = Agent(name, bus=options.bus, limits=QUICK, **agent)
        self.waiting: set[asyncio.Task[None]] = set()
        """One for each message, or each lot of them, without receipts."""
        self.number = 0
        self.defects: list[BaseException] = []
        self._name = name
        self._run = os.urandom(3).hex()
        """So that a sender that is started anew has other marks."""
        self._to: list[str] = options.to
        self._act = Performative.parse(options.act)
        self._history = history
        self._random = random.Random(f"{options.seed}:{name}")
        self.agent.on("failure")(self._given_up)
        self.agent.on()(self._heard)

    def make(self) -> tuple[str, str, ACLMessage]:
        """Make the next message and write down that it is sent; return mark, receiver and message."""
        self.number += 1
        number = self.number
        to = self._to[number % len(self._to)]
        mark = f"{self._name}.{self._run}-{number}"
        content = f"{mark} {'x' * self._random.choice(FILLERS)}"
        conversation = self._random.choice(("", "", f"c{number % 7}"))
        # A `failure` of the bus names its message by this.
        message = ACLMessage(
            self._act,
            receivers=(AgentIdentifier(to),),
            content=content,
            conversation_id=conversation or None,
            reply_with=mark,
        )
        self._history.sent(
            mark, to, sender=self._name, number=number, body=body_hash(content), conversation=conversation
        )
        return mark, to, message

    def send_one(self) -> None:
        """Send one message under its mark; the receipt is written down when it comes."""
        self._keep(self._one(*self.make()))

    def send_many(self, count: int) -> None:
        """Send many messages at once, whose ids the SDK makes."""
        self._keep(self._many([self.make() for _ in range(count)]))

    def _keep(self, work: Any) -> None:
        # Tasks begin in the order in which they are made, so messages are handed over in the order of their numbers.
        task = asyncio.create_task(work)
        self.waiting.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self.waiting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect, of the SDK or of this client: whatever the bus has to say is no error here.
            self.defects.append(error)
            self._history.error(f"{self._name}: {error!r}")

    async def _one(self, mark: str, to: str, message: ACLMessage) -> None:
        try:
            duplicates = await self.agent.send_message(message, message_id=mark)
        except DeliveryRefused as refused:
            self._history.receipt(mark, to, refused.outcome, refused.detail)
        except BusError as error:
            self._history.receipt(mark, to, "UNKNOWN", str(error))
        else:
            self._history.receipt(mark, to, "DUPLICATE" if duplicates else "ACCEPTED")

    async def _many(self, made: list[tuple[str, str, ACLMessage]]) -> None:
        try:
            others = dict(await self.agent.send_all([message for _, _, message in made], when_full="fail"))
        except BusError as error:
            for mark, to, _ in made:
                self._history.receipt(mark, to, "UNKNOWN", str(error))
            return
        for place, (mark, to, _) in enumerate(made):
            receipt = others.get(place)
            if receipt is None:
                self._history.receipt(mark, to, "ACCEPTED")
            else:
                self._history.receipt(mark, to, receipt.outcome.name, receipt.detail)

    async def _given_up(self, message: Received) -> None:
        receiver = message.user_parameters.get(FAILED_RECEIVER, "")
        self._history.dead(message.in_reply_to or "", receiver, str(message.content)[:200])

    async def _heard(self, message: Received) -> None:
        """An answer, of which nobody wants to know."""


async def send(options: argparse.Namespace, history: History) -> None:
    """Be a sender."""
    stop = Stop()
    agents = [SendingAgent(name, options, history) for name in options.names]
    async with contextlib.AsyncExitStack() as stack:
        for one in agents:
            await stack.enter_async_context(one.agent)
        say_ready()
        await _send_until(stop.told, agents, options)
        await _answered({task for one in agents for task in one.waiting}, history)
    defects = [error for one in agents for error in one.defects]
    if defects:
        raise SystemExit(f"{len(defects)} sendings failed: {defects[0]!r}")


async def _answered(waiting: set[asyncio.Task[None]], history: History) -> None:
    """Wait until sendings have their receipts; give up those that get none."""
    if not waiting:
        return
    _, late = await asyncio.wait(waiting, timeout=ANSWERS_WITHIN)
    if late:
        history.error(f"{len(late)} sendings have no receipt after {ANSWERS_WITHIN:g} s")
    for task in late:
        task.cancel()


async def _send_until(told: asyncio.Event, agents: list[SendingAgent], options: argparse.Namespace) -> None:
    """Send at the rate that was asked for until told to stop, or until the count is reached."""
    began = time.monotonic()
    chance = random.Random(options.seed)
    done = 0
    turn = 0
    while not told.is_set() and not (options.count and done >= options.count):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK):
                await told.wait()
        # A pause, of this process or of the bus, is not made up for: no more than half a second's worth is sent at once.
        due = (time.monotonic() - began) * options.rate - done
        if due > options.rate / 2:
            began += (due - options.rate / 2) / options.rate
            due = options.rate / 2
        if options.count:
            due = min(due, options.count - done)
        while due >= 1:
            one = agents[turn % len(agents)]
            turn += 1
            many = min(int(due), max(1, int(options.rate * TICK)))
            if len(one.waiting) >= options.outstanding:
                # Bounded while the bus is away; whoever waits sends no more.
                due -= many
                continue
            if chance.random() < options.bulk:
                one.send_many(many)
            else:
                for _ in range(many):
                    one.send_one()
            due -= many
            done += many


async def visit(options: argparse.Namespace, history: History) -> None:
    """Be visitors: agents that register, offer a service, look for others, send a few messages, and go for good.

    Every other one is ephemeral and says a polite bye, the others deregister.
    """
    stop = Stop()
    say_ready()
    number = 0

    async def one_visit(name: str, *, ephemeral: bool) -> None:
        visitor = SendingAgent(name, options, history, services=["visit"], ephemeral=ephemeral)
        try:
            async with visitor.agent:
                for _ in range(MESSAGES_OF_A_VISIT):
                    visitor.send_one()
                    await asyncio.sleep(TICK)
                await visitor.agent.df.search_all("visit")
                await _answered(set(visitor.waiting), history)
                await visitor.agent.aclose(deregister=not ephemeral)
        except BusError as error:
            history.error(f"{name}: {error}")

    async with asyncio.TaskGroup() as group:
        while not stop.told.is_set():
            group.create_task(one_visit(f"{options.names[0]}{number}", ephemeral=number % 2 == 0))
            number += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MESSAGES_OF_A_VISIT / options.rate):
                    await stop.told.wait()


async def receive(options: argparse.Namespace, history: History) -> None:
    """Be a receiver with the SDK."""
    stop = Stop()
    limits = replace(QUICK, retry_delay=options.retry_delay, window_messages=options.window)

    async def handle(message: Received) -> None:
        mark = mark_of(message.content) or message.id
        history.delivered(
            mark,
            sender=message.sender.name if message.sender else "",
            receiver=message.receiver,
            sequence=message.sequence,
            attempt=message.attempt,
            redelivered=message.redelivered,
            body=body_hash(message.content),
            conversation=message.conversation_id or "",
        )
        if options.delay:
            await asyncio.sleep(options.delay)
        if fails(mark, message.attempt, options):
            history.settled(mark, message.receiver, "nack")
            raise HandlerFailed(mark)
        history.handled(mark, message.receiver)

    async with contextlib.AsyncExitStack() as stack:
        agents = []
        for name in options.names:
            agent = Agent(name, bus=options.bus, limits=limits)
            agent.on()(handle)
            agents.append(await stack.enter_async_context(agent))
        say_ready()
        watched = [asyncio.create_task(agent.wait()) for agent in agents]
        told = asyncio.create_task(stop.told.wait())
        await asyncio.wait({told, *watched}, return_when=asyncio.FIRST_COMPLETED)
        over = [task.exception() for task in watched if task.done()]
        for task in (told, *watched):
            task.cancel()
        for error in over:
            history.error(f"a session is over: {error!r}")
    if over:
        raise SystemExit(f"a session is over: {over}")
