"""Behaviours: their life, what they receive, and what becomes of a message that one has in hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from waiting import WAIT, settled, until

from gagent_grpc import (
    Agent,
    Behaviour,
    BusLimits,
    ClientLimits,
    CyclicBehaviour,
    FailureFromAgent,
    InvalidArgument,
    MessageTemplate,
    OneShotBehaviour,
    Performative,
    PreconditionFailed,
    Received,
    TickerBehaviour,
    WakerBehaviour,
)

pytestmark = pytest.mark.timeout(30)

ORDERS = MessageTemplate(ontology="orders")


class Doing(OneShotBehaviour):
    """Does once what it is made of: a function of the behaviour."""

    def __init__(self, function: Callable[[Any], Any], name: str = "") -> None:
        super().__init__(name)
        self.function = function

    async def action(self) -> Any:
        return await self.function(self)


class Collecting(CyclicBehaviour):
    """Receives one message at each step, and handles it when it is let."""

    def __init__(self, fails_at: str = "") -> None:
        super().__init__()
        self.received: list[Received] = []
        self.handled: list[Any] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fails_at = fails_at

    async def action(self) -> None:
        message = await self.receive()
        assert message is not None
        self.received.append(message)
        await self.go_on.wait()
        if message.content == self.fails_at:
            raise ValueError(f"not {message.content}")
        self.handled.append(message.content)


async def hang(behaviour: Behaviour) -> None:
    await asyncio.Event().wait()


# ---- life --------------------------------------------------------------------------------------------------------------


async def test_a_behaviour_goes_through_its_life_and_its_result_comes_out(agents: Any) -> None:
    bob = await agents("bob")
    steps: list[str] = []

    class Counting(Behaviour):
        async def on_start(self) -> None:
            steps.append(f"start of {self.agent.name}")

        async def action(self) -> int:
            steps.append("step")
            return steps.count("step")

        def done(self) -> bool:
            return self.result == 3

        async def on_end(self) -> None:
            steps.append("end")

    counting = bob.add_behaviour(Counting())
    assert await counting.join() == 3
    assert steps == ["start of bob", "step", "step", "step", "end"]
    assert (counting.result, counting.running, counting.killed) == (3, False, False)
    # And once more, from the beginning.
    del steps[:]
    assert await bob.add_behaviour(counting).join() == 3


async def test_what_is_added_before_begins_when_the_agent_opens(bus: Any) -> None:
    bob = Agent("bob", bus=bus.address)

    async def see(behaviour: Behaviour) -> bool:
        return behaviour.agent.connected

    seeing, gone = bob.add_behaviour(Doing(see)), bob.add_behaviour(Doing(see))
    waiting = asyncio.create_task(seeing.join())
    gone.kill()
    assert not seeing.running
    async with bob:
        assert await waiting is True
    assert await gone.join() is None
    assert gone.killed


async def test_an_error_ends_the_behaviour_is_logged_and_comes_out_of_join_and_the_agent_goes_on(
    agents: Any, inbox: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bob, alice = await agents("bob", inbox), await agents("alice")
    ends: list[str] = []

    class Failing(CyclicBehaviour):
        async def action(self) -> None:
            raise ValueError("no")

        async def on_end(self) -> None:
            ends.append("end")

    failing = bob.add_behaviour(Failing("the bad one"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await failing.join()
    assert ends == ["end"]
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR] == [
        "bob: the behaviour the bad one failed"
    ]
    await alice.send("bob", "inform", "still there")
    assert await inbox.holds(1) == ["still there"]


async def test_a_cancellation_of_something_awaited_is_a_failure_and_not_an_end_by_kill(agents: Any) -> None:
    bob = await agents("bob")

    async def wait_for_another(behaviour: Behaviour) -> None:
        other = asyncio.create_task(asyncio.Event().wait())
        other.cancel()
        await other

    with pytest.raises(RuntimeError, match="was cancelled"):
        await bob.add_behaviour(Doing(wait_for_another)).join()


@pytest.mark.parametrize("how", ["kill", "cancel", "remove", "itself", "close"])
async def test_one_that_is_killed_ends_itself_in_order(agents: Any, how: str) -> None:
    bob = await agents("bob")
    begun, ends = asyncio.Event(), []

    class Waiting(CyclicBehaviour):
        async def action(self) -> None:
            begun.set()
            if how == "itself":
                self.kill()
            await asyncio.Event().wait()

        async def on_end(self) -> None:
            await asyncio.sleep(0)
            ends.append("end")

    waiting = bob.add_behaviour(Waiting())
    await begun.wait()
    if how == "close":
        await bob.aclose()
    elif how == "remove":
        bob.remove_behaviour(waiting)
    elif how != "itself":
        getattr(waiting, how)()
    async with asyncio.timeout(WAIT):
        assert await waiting.join() is None
    assert ends == ["end"]
    assert waiting.killed
    bob.remove_behaviour(waiting)


async def test_closing_does_not_wait_for_an_end_that_does_not_come(agents: Any) -> None:
    bob = await agents("bob")
    begun = asyncio.Event()

    class Clinging(OneShotBehaviour):
        async def action(self) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def on_end(self) -> None:
            await asyncio.Event().wait()

    clinging = bob.add_behaviour(Clinging())
    await begun.wait()
    await bob.aclose(grace=0.05)
    assert not clinging.running


async def test_steps_that_never_wait_leave_room_for_others(agents: Any, inbox: Any) -> None:
    class Busy(CyclicBehaviour):
        async def action(self) -> None:
            pass

    bob, alice = await agents("bob", inbox), await agents("alice")
    busy = bob.add_behaviour(Busy())
    await alice.send("bob", "inform", "1")
    assert await inbox.holds(1) == ["1"]
    assert busy.running


async def test_whoever_gives_up_waiting_for_the_end_changes_nothing(agents: Any) -> None:
    bob = await agents("bob")
    hanging = bob.add_behaviour(Doing(hang))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await hanging.join()
    assert hanging.running


async def test_what_cannot_be_is_refused(agents: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")
    hanging = Doing(hang, "h")
    with pytest.raises(PreconditionFailed, match="never added"):
        await hanging.join()
    with pytest.raises(PreconditionFailed, match="not added to an agent"):
        hanging.agent  # noqa: B018
    with pytest.raises(PreconditionFailed, match="does not run"):
        await hanging.receive()
    bob.add_behaviour(hanging)
    for agent in (bob, alice):
        with pytest.raises(PreconditionFailed, match="added already"):
            agent.add_behaviour(hanging)
    with pytest.raises(InvalidArgument, match="none of this agent's"):
        alice.remove_behaviour(hanging)
    with pytest.raises(InvalidArgument, match="is no behaviour"):
        bob.add_behaviour(hang)
    with pytest.raises(InvalidArgument, match="expected a MessageTemplate"):
        bob.add_behaviour(Doing(hang), "inform")
    with pytest.raises(InvalidArgument, match="1 or more"):
        bob.add_behaviour(Doing(hang), ORDERS, queue=0)
    with pytest.raises(PreconditionFailed, match="without a template"):
        await bob.add_behaviour(Doing(lambda me: me.receive())).join()
    with pytest.raises(PreconditionFailed, match="its own end"):
        await bob.add_behaviour(Doing(lambda me: me.join())).join()
    with pytest.raises(TypeError, match="abstract"):
        CyclicBehaviour()  # type: ignore[abstract]


# ---- waker and ticker --------------------------------------------------------------------------------------------------


async def test_a_waker_wakes_once(agents: Any) -> None:
    class Waking(WakerBehaviour):
        async def on_wake(self) -> str:
            return f"{self.agent.name} is awake"

    bob = await agents("bob")
    assert await bob.add_behaviour(Waking(0.005)).join() == "bob is awake"
    with pytest.raises(InvalidArgument, match="after -1; expected a number of seconds, 0 or more"):
        Waking(-1)


async def test_a_ticker_ticks_until_it_is_stopped(agents: Any) -> None:
    class Ticking(TickerBehaviour):
        async def on_tick(self) -> int:
            if self.ticks == 3:
                self.stop()
            return 10 * self.ticks

    bob = await agents("bob")
    ticking = bob.add_behaviour(Ticking(0.005))
    assert await ticking.join() == 30
    assert ticking.ticks == 3
    assert await bob.add_behaviour(ticking).join() == 30
    # One that is stopped between two ticks does not wait for the next.
    ticking = bob.add_behaviour(Ticking(3600))
    await asyncio.sleep(0)
    ticking.stop()
    async with asyncio.timeout(WAIT):
        assert await ticking.join() is None
    with pytest.raises(InvalidArgument, match="period 0; expected a number of seconds, more than 0"):
        Ticking(0)


# ---- receiving ---------------------------------------------------------------------------------------------------------


async def test_a_behaviour_gets_what_fits_its_template_before_handlers_and_others(agents: Any, inbox: Any) -> None:
    bob, alice = await agents("bob", inbox), await agents("alice")
    first, second = Collecting(), Collecting()
    bob.add_behaviour(first, ORDERS & MessageTemplate("request"))
    bob.add_behaviour(second, ORDERS | MessageTemplate(sender="carol@local"))
    await alice.send("bob", "request", "1", ontology="orders")
    await alice.send("bob", "inform", "2", ontology="orders")
    await alice.send("bob", "request", "3")
    await (await agents("carol")).send("bob", "inform", "4")
    await until(lambda: (first.handled, second.handled, inbox.contents) == (["1"], ["2", "4"], ["3"]))


async def test_receive_takes_what_is_asked_for_and_leaves_the_rest_in_order(agents: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")
    got: list[Any] = []

    async def pick(behaviour: Behaviour) -> None:
        got.append(await behaviour.receive(timeout=0))
        # All three are of one lane: what is behind is there, though nothing before it was received.
        got.append((await behaviour.receive(MessageTemplate(content="c"), timeout=WAIT)).content)
        got.append(await behaviour.receive(MessageTemplate(content="d"), timeout=0.01))
        got.extend([(await behaviour.receive(timeout=WAIT)).content for _ in range(2)])

    picking = bob.add_behaviour(Doing(pick), ORDERS)
    for content in "abc":
        await alice.send("bob", "inform", content, ontology="orders")
    await picking.join()
    assert got == [None, "c", None, "a", "b"]


async def test_an_answer_to_a_request_goes_to_whoever_asked(agents: Any) -> None:
    bob = await agents("bob")
    await agents("alice", lambda message: "the answer")
    collecting = bob.add_behaviour(Collecting(), MessageTemplate())

    async def ask(behaviour: Behaviour) -> Any:
        return (await behaviour.agent.request("alice", "?")).content

    assert await bob.add_behaviour(Doing(ask)).join() == "the answer"
    assert collecting.received == []


async def test_what_belongs_to_a_conversation_that_goes_on_passes_a_behaviour_for_everything_else(agents: Any) -> None:
    buyer, seller = await agents("buyer"), await agents("seller")
    everything = MessageTemplate()
    at_buyer = buyer.add_behaviour(Collecting(), everything)
    at_seller = seller.add_behaviour(Collecting(), ~MessageTemplate("cfp"))
    rejected = asyncio.Event()

    @seller.on_cfp()
    async def bid(cfp: Received) -> str:
        return "38"

    @bid.accepted
    async def work(bid: Any) -> str:
        return "delivered"

    @bid.rejected
    async def lose(bid: Any) -> None:
        rejected.set()

    async with buyer.call_for_proposals("seller", "crate 9", reply_by=20) as call:
        (proposal,) = await call.proposals()
        assert (await call.accept(proposal)).content == "delivered"
    async with buyer.call_for_proposals("seller", "crate 10", reply_by=20) as call:
        (proposal,) = await call.proposals()
        await call.reject(proposal)
    async with asyncio.timeout(WAIT):
        await rejected.wait()
    assert (at_buyer.received, at_seller.received) == ([], [])
    # A decision about no bid is nobody's conversation.
    await buyer.send("seller", "reject-proposal", "stray", conversation_id="another")
    await until(lambda: at_seller.handled == ["stray"])


async def test_a_late_proposal_is_rejected_and_does_not_go_to_a_behaviour(agents: Any, inbox: Any) -> None:
    buyer, late = await agents("buyer"), await agents("late")
    at_buyer = buyer.add_behaviour(Collecting(), MessageTemplate())
    asked = asyncio.Queue[Received]()
    late.on("cfp")(asked.put)
    late.on("reject-proposal")(inbox)
    async with buyer.call_for_proposals("late", reply_by=20):
        async with asyncio.timeout(WAIT):
            cfp = await asked.get()
    await late.reply(cfp, "propose", "1")
    assert await inbox.holds(1) == ["the call for proposals is over"]
    # One of somebody who was not called is mail.
    await (await agents("other")).send("buyer", "propose", "2", conversation_id=cfp.conversation_id)
    await until(lambda: at_buyer.handled == ["2"])


async def test_a_cancel_ends_a_handler_and_is_answered_beside_a_behaviour_for_everything_else(
    agents: Any, inbox: Any
) -> None:
    alice, bob = await agents("alice", inbox), await agents("bob")
    begun = asyncio.Event()

    @bob.on("request")
    async def work(message: Received) -> None:
        begun.set()
        await asyncio.Event().wait()

    @bob.on_subscribe()
    async def publish(subscriber: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    at_bob = bob.add_behaviour(Collecting(), MessageTemplate("cancel"))
    for number, act in enumerate(("request", "subscribe")):
        marks = {"conversation_id": act, "protocol": f"fipa-{act}"}
        begun.clear()
        await alice.send("bob", act, "long", **marks)
        async with asyncio.timeout(WAIT):
            await begun.wait()
        await alice.send("bob", "cancel", reply_with=f"x{number}", **marks)
        await until(lambda number=number: f"x{number}" in [one.in_reply_to for one in inbox.messages])
        done = next(one for one in inbox.messages if one.in_reply_to == f"x{number}")
        assert (done.performative, done.content) == (Performative.INFORM, "done")
    assert at_bob.received == []
    # There is nothing any more that the library could cancel.
    await alice.send("bob", "cancel", "again", conversation_id="request")
    await until(lambda: at_bob.handled == ["again"])


async def test_a_behaviour_that_is_busy_keeps_neither_handlers_nor_its_sender_waiting(agents: Any, inbox: Any) -> None:
    bob = await agents("bob", inbox, limits=ClientLimits(concurrency=1))
    alice, busy = await agents("alice"), Collecting()
    busy.go_on.clear()
    bob.add_behaviour(busy, ORDERS)
    for number in range(100):
        await alice.send("bob", "inform", str(number), ontology="orders", conversation_id=str(number % 7))
    await alice.send("bob", "inform", "past them all")
    assert await inbox.holds(1) == ["past them all"]
    assert len(busy.received) == 1
    busy.go_on.set()
    await until(lambda: len(busy.handled) == 100)
    assert busy.handled == [str(number) for number in range(100)]


async def test_what_finds_no_room_in_the_queue_waits_and_is_not_lost(bus: Any, agents: Any) -> None:
    bob, alice, busy = await agents("bob"), await agents("alice"), Collecting()
    busy.go_on.clear()
    bob.add_behaviour(busy, ORDERS, queue=2)
    for number in range(20):
        await alice.send("bob", "inform", str(number), ontology="orders")
    await until(lambda: busy.received)
    busy.go_on.set()
    await until(lambda: busy.handled == [str(number) for number in range(20)])
    await settled(bus, "bob")


# ---- when a message counts as handled ----------------------------------------------------------------------------------


async def test_a_message_counts_as_handled_when_its_step_has_returned(bus: Any, agents: Any) -> None:
    received, go_on = asyncio.Event(), asyncio.Event()

    class Once(CyclicBehaviour):
        async def action(self) -> None:
            if not received.is_set():
                await self.receive()
                received.set()
                await go_on.wait()
            else:
                await asyncio.Event().wait()

    bob, alice = await agents("bob"), await agents("alice")
    bob.add_behaviour(Once(), ORDERS)
    await alice.send("bob", "inform", "1", ontology="orders")
    await received.wait()
    # Said in order: the bus has read whatever was settled before this.
    await bob.send("alice", "inform", "-")
    assert bus.platform.ams.get("bob").mailbox.messages == 1
    go_on.set()
    await settled(bus, "bob")


async def test_a_message_counts_as_handled_when_the_next_one_is_asked_for(bus: Any, agents: Any) -> None:
    async def loop(behaviour: Behaviour) -> None:
        while True:
            await behaviour.receive()

    bob, alice = await agents("bob"), await agents("alice")
    bob.add_behaviour(Doing(loop), ORDERS)
    for _ in range(3):
        await alice.send("bob", "inform", "1", ontology="orders")
    await settled(bus, "bob")


async def test_a_message_on_which_a_behaviour_failed_comes_again_flagged_and_the_rest_at_once(
    bus: Any, agents: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bob, alice = await agents("bob", limits=ClientLimits(retry_delay=0.2)), await agents("alice")
    seen: list[tuple[Any, bool, int]] = []

    @bob.on()
    async def handle(message: Received) -> None:
        seen.append((message.content, message.redelivered, message.attempt))

    failing = Collecting(fails_at="2")
    failing.go_on.clear()
    bob.add_behaviour(failing, ORDERS)
    for content in "123":
        await alice.send("bob", "inform", content, ontology="orders", conversation_id=content)
    await until(lambda: failing.received)
    failing.go_on.set()
    with pytest.raises(ValueError, match="not 2"):
        await failing.join()
    await until(lambda: len(seen) == 2)
    assert seen == [("3", False, 1), ("2", True, 2)]
    assert failing.handled == ["1"]
    await settled(bus, "bob")


async def test_nothing_of_a_lane_is_doubled_or_lost_when_a_behaviour_fails_on_its_first(bus: Any, agents: Any) -> None:
    """The bus returns what it delivered behind a message that failed, wherever that waits here by then."""
    bob = await agents("bob", limits=ClientLimits(retry_delay=0.01, concurrency=1))
    alice = await agents("alice")
    seen: list[Any] = []
    release = asyncio.Event()

    @bob.on()
    async def handle(message: Received) -> None:
        await release.wait()
        seen.append(message.content)

    failing = Collecting(fails_at="0")
    failing.go_on.clear()
    bob.add_behaviour(failing, ORDERS & ~MessageTemplate(content="9"))
    for number in range(12):
        await alice.send("bob", "inform", str(number), ontology="orders")
    await until(lambda: failing.received)
    failing.go_on.set()
    with pytest.raises(ValueError, match="not 0"):
        await failing.join()
    release.set()
    await settled(bus, "bob")
    assert sorted(seen, key=int) == [str(number) for number in range(12)]


async def test_a_request_that_kills_every_behaviour_is_given_up_with_a_failure(buses: Any, agents: Any) -> None:
    bus = await buses(limits=BusLimits(max_deliveries=2, drain_grace=1.0))
    bob = await agents("bob", bus=bus.address, limits=ClientLimits(retry_delay=0.01))
    alice = await agents("alice", bus=bus.address)

    class Supervising(CyclicBehaviour):
        async def action(self) -> None:
            failing = self.agent.add_behaviour(Collecting(fails_at="poison"), ORDERS)
            await asyncio.gather(failing.join(), return_exceptions=True)

    bob.add_behaviour(Supervising())
    with pytest.raises(FailureFromAgent, match="given up after 2 deliveries: ValueError: not poison"):
        await alice.request("bob", "poison", ontology="orders")


async def test_a_behaviour_that_is_killed_leaves_its_messages_to_others(bus: Any, agents: Any, inbox: Any) -> None:
    bob, alice, slow = await agents("bob", inbox), await agents("alice"), Collecting()
    slow.go_on.clear()
    bob.add_behaviour(slow, ORDERS, queue=2)
    for number in range(6):
        await alice.send("bob", "inform", str(number), ontology="orders", conversation_id=str(number % 2))
    await until(lambda: slow.received)
    slow.kill()
    assert sorted(await inbox.holds(6)) == list("012345")
    assert [message.content for message in inbox.messages if message.redelivered][-1] == "0"
    await settled(bus, "bob")


async def test_closing_keeps_what_a_behaviour_has_in_hand_and_in_its_queue_for_the_next_session(
    bus: Any, agents: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bob, alice, slow = await agents("bob"), await agents("alice"), Collecting()
    slow.go_on.clear()
    bob.add_behaviour(slow, ORDERS, queue=2)
    for number in range(6):
        await alice.send("bob", "inform", str(number), ontology="orders", conversation_id=str(number % 2))
    await until(lambda: slow.received)
    async with asyncio.timeout(4):
        # Without a grace for what nobody is going to take.
        await bob.aclose()
    # To be cut off is no failure of anybody.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert bus.platform.ams.get("bob").mailbox.messages == 6
    again = Collecting()
    bob.add_behaviour(again, ORDERS)
    async with bob:
        await until(lambda: len(again.handled) == 6)
        await settled(bus, "bob")
    assert sorted(again.handled) == list("012345")
    assert next(message for message in again.received if message.content == "0").redelivered


async def test_what_waits_for_a_behaviour_stays_its_own_when_the_connection_is_lost(
    bus: Any, agents: Any, proxy: Any
) -> None:
    bob, alice, slow = await agents("bob", bus=proxy.address), await agents("alice"), Collecting()
    slow.go_on.clear()
    bob.add_behaviour(slow, ORDERS)
    for number in range(10):
        await alice.send("bob", "inform", str(number), ontology="orders")
    await until(lambda: slow.received)
    before = bus.platform.ams.get("bob").generation
    proxy.cut()
    await until(lambda: bob.connected and bus.platform.ams.get("bob").generation > before)
    slow.go_on.set()
    await settled(bus, "bob")
    assert slow.handled == [str(number) for number in range(10)]
