"""Subscriptions between agents: notices in order, until one of the two ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raw import acl
from waiting import WAIT, Inbox, until

from gagent_grpc import (
    AnswerTimeout,
    BusLimits,
    DeliveryRefused,
    Fail,
    FailureFromAgent,
    InvalidArgument,
    NotUnderstoodByAgent,
    PreconditionFailed,
    Received,
    Refuse,
    RefusedByAgent,
    Subscriber,
    Subscription,
)
from gagent_grpc.acl.message import AUTOMATIC
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.protocols import Stage
from gagent_grpc.server.app import Bus

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def bus(buses: Any) -> Bus:
    made: Bus = await buses(limits=BusLimits(resume_grace=0.4, drain_grace=0.2))
    return made


async def read(subscription: Subscription, seen: list[Any]) -> None:
    """Note the contents of all notices, until the end of the subscription raises."""
    async for notice in subscription:
        seen.append(notice.content)  # noqa: PERF401  # What was read before it raises counts.


async def test_notices_keep_their_order_and_leaving_cancels_the_publisher(agents: Any) -> None:
    prices, reader = await agents("prices"), await agents("reader")
    cancelled = asyncio.Event()

    @prices.on_subscribe(ontology="money")
    async def publish(subscriber: Subscriber) -> None:
        assert (subscriber.name, subscriber.content) == ("reader", "EUR/USD")
        try:
            for number in range(1_000_000):
                await subscriber.inform(str(number), when_full="wait")
                await asyncio.sleep(0)
        finally:
            cancelled.set()

    seen = []
    async with reader.subscribe("prices@local", "EUR/USD", ontology="money") as subscription:
        assert subscription.is_open
        async for notice in subscription:
            seen.append(notice.content)
            if len(seen) == 200:
                break
        first = notice
    assert seen == [str(number) for number in range(200)]
    assert (first.protocol, first.ontology, first.conversation_id) == ("fipa-subscribe", "money", subscription.mark)
    assert subscription.cancel_confirmed
    assert cancelled.is_set()
    assert (subscription.is_open, subscription.missed) == (False, 0)
    assert [one async for one in subscription] == []


async def test_a_handle_that_is_kept_informs_after_its_function_returned(agents: Any) -> None:
    prices, reader = await agents("prices"), await agents("reader")
    subscribers: list[Subscriber] = []

    @prices.on_subscribe()
    async def remember(subscriber: Subscriber) -> None:
        subscribers.append(subscriber)

    async with reader.subscribe("prices") as one, reader.subscribe("prices") as two:
        await until(lambda: len(subscribers) == 2)
        for number, subscriber in enumerate(subscribers):
            await subscriber.inform(f"to {number}")
        assert ((await anext(one)).content, (await anext(two)).content) == ("to 0", "to 1")
    async with asyncio.timeout(WAIT):
        await subscribers[0].wait_ended()
    with pytest.raises(PreconditionFailed, match="the subscription of reader is over"):
        await subscribers[0].inform("too late")
    await subscribers[0].end()


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("refuse", RefusedByAgent, "prices: refuse not for you"),
        ("return refuse", RefusedByAgent, "prices: refuse not for you"),
        ("fail", FailureFromAgent, "prices: failure sold"),
        ("raise", FailureFromAgent, "prices: failure the subscription failed: ValueError"),
        ("end", FailureFromAgent, "prices: failure enough"),
    ],
)
async def test_the_publisher_may_end_it(agents: Any, how: str, error: type, text: str) -> None:
    prices, reader = await agents("prices"), await agents("reader")

    @prices.on_subscribe()
    async def publish(subscriber: Subscriber) -> Refuse | None:
        if how == "refuse":
            raise Refuse("not for you")
        if how == "return refuse":
            return Refuse("not for you")
        await subscriber.inform("1")
        if how == "fail":
            raise Fail("sold")
        if how == "raise":
            raise ValueError("secret")
        await subscriber.end("enough")
        return None

    seen: list[Any] = []
    async with reader.subscribe("prices") as subscription:
        with pytest.raises(error, match=text):
            await read(subscription, seen)
        with pytest.raises(error):
            await anext(subscription)
        assert not subscription.is_open
    assert seen == ([] if "refuse" in how else ["1"])
    assert subscription.cancel_confirmed is None


async def test_a_publisher_that_thinks_before_its_first_notice_has_agreed_by_then(agents: Any) -> None:
    prices, reader = await agents("prices"), await agents("reader")
    go = asyncio.Event()

    @prices.on_subscribe()
    async def publish(subscriber: Subscriber) -> None:
        await go.wait()
        await subscriber.inform("at last")

    async with reader.subscribe("prices", timeout=1.6) as subscription:
        # In half of that time, which is less than the second that a handler has otherwise.
        await until(lambda: subscription._stage is Stage.SUBSCRIBED)
        go.set()
        assert (await anext(subscription)).content == "at last"


async def test_nobody_there_no_handler_and_no_answer(bus: Bus, agents: Any, connect: Any) -> None:
    reader = await agents("reader")
    with pytest.raises(DeliveryRefused, match="NO_SUCH_AGENT"):
        async with reader.subscribe("nobody"):
            pass
    await agents("dumb")
    async with reader.subscribe("dumb") as subscription:
        with pytest.raises(NotUnderstoodByAgent, match="no handler for subscribe"):
            await anext(subscription)
    await agents("silent", lambda message: None)
    async with reader.subscribe("silent", timeout=0.6) as subscription:
        with pytest.raises(AnswerTimeout, match=r"silent: no answer within 0\.6 s"):
            await anext(subscription)
        await reader.ams.terminate("silent")
    victim = await connect(bus, "victim")
    async with reader.subscribe("victim") as subscription:
        await victim.delivered(1)
        await victim.vanish()
        with pytest.raises(FailureFromAgent, match="victim@local was lost"):
            await anext(subscription)


async def test_a_publisher_that_is_lost_after_its_first_notice_is_not_waited_for_without_end(
    bus: Bus, agents: Any, connect: Any
) -> None:
    victim, reader = await connect(bus, "victim"), await agents("reader")
    async with reader.subscribe("victim", timeout=WAIT) as subscription:
        (delivery,) = await victim.delivered(1)
        for number in range(2):
            answer = acl("reader", str(number), acl_protocol="fipa-subscribe")
            answer.acl.conversation_id = answer.acl.in_reply_to = delivery.message.acl.reply_with
            await victim.send(answer)
            assert (await anext(subscription)).content == str(number)
        await victim.settle(ack_through_tag=1)
        await victim.vanish()
        async with asyncio.timeout(WAIT):
            with pytest.raises(FailureFromAgent, match="victim@local was lost"):
                await anext(subscription)


async def test_nothing_is_owed_for_a_subscription_that_was_cancelled(bus: Bus, agents: Any) -> None:
    prices, reader = await agents("prices"), await agents("reader")

    @prices.on_subscribe()
    async def publish(subscriber: Subscriber) -> None:
        await subscriber.inform("1")
        await asyncio.sleep(WAIT)

    async with reader.subscribe("prices") as subscription:
        await anext(subscription)
        assert bus.platform.post.debts.count == 1
    assert subscription.cancel_confirmed
    assert bus.platform.post.debts.count == 0


async def test_a_slow_reader_sees_what_is_newest_and_how_much_it_missed(agents: Any) -> None:
    prices, reader = await agents("prices"), await agents("reader")
    done = asyncio.Event()

    @prices.on_subscribe()
    async def publish(subscriber: Subscriber) -> None:
        for number in range(20):
            await subscriber.inform(str(number))
        await subscriber.end("that was all")
        done.set()

    async with reader.subscribe("prices", queue=3) as subscription:
        await done.wait()
        await until(lambda: not subscription.is_open)
        seen: list[Any] = []
        with pytest.raises(FailureFromAgent, match="that was all"):
            await read(subscription, seen)
    assert seen == ["17", "18", "19"]
    assert subscription.missed == 17


async def test_a_publisher_that_leaves_says_so(agents: Any) -> None:
    prices, reader = await agents("prices"), await agents("reader")

    @prices.on_subscribe()
    async def publish(subscriber: Subscriber) -> None:
        await subscriber.inform("1")
        await asyncio.Event().wait()

    async with reader.subscribe("prices") as subscription:
        assert (await anext(subscription)).content == "1"
        await prices.aclose()
        with pytest.raises(FailureFromAgent, match="the publisher has left"):
            await anext(subscription)


async def test_a_reader_that_is_closed_hears_of_it(agents: Any) -> None:
    prices, reader = await agents("prices"), await agents("reader")
    subscribers: list[Subscriber] = []

    @prices.on_subscribe()
    async def publish(subscriber: Subscriber) -> None:
        subscribers.append(subscriber)

    async with reader.subscribe("prices") as subscription:
        await until(lambda: subscribers)
        waiting = asyncio.create_task(anext(subscription))
        await reader.aclose(deregister=True)
        with pytest.raises(PreconditionFailed, match="closed"):
            await waiting
    # Its name is gone, and the publisher finds that out with the next notice, unless it was told before.
    with pytest.raises((DeliveryRefused, PreconditionFailed), match=r"NO_SUCH_AGENT|is over"):
        await subscribers[0].inform("anybody?")
    assert not subscribers[0].is_open


async def test_a_publisher_of_another_make(agents: Any, inbox: Inbox) -> None:
    """It knows neither in-reply-to nor the protocol, informs at once, and answers a cancel with a plain inform."""
    simple, reader = await agents("simple"), await agents("reader", inbox)

    @simple.on("subscribe")
    async def begin(message: Received) -> None:
        for number in range(3):
            await simple.send("reader", "inform", str(number), conversation_id=message.conversation_id)

    @simple.on("cancel")
    async def end(message: Received) -> None:
        # The notice crosses the cancel.
        await simple.send("reader", "inform", "3", conversation_id=message.conversation_id, in_reply_to="other")
        await simple.send("reader", "inform", "stopped", conversation_id=message.conversation_id)
        await simple.send("reader", "inform", "afterthought", conversation_id=message.conversation_id)
        await simple.send("reader", "inform", "mail")

    async with reader.subscribe("simple") as subscription:
        assert [(await anext(subscription)).content for _ in range(3)] == ["0", "1", "2"]
    assert subscription.cancel_confirmed
    assert await inbox.holds(1) == ["mail"]


async def test_a_subscriber_of_another_make(bus: Bus, agents: Any, connect: Any) -> None:
    prices = await agents("prices")
    cancelled = asyncio.Event()

    @prices.on_subscribe()
    async def publish(subscriber: Subscriber) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    raw = await connect(bus, "raw")
    subscribe = pb.BusMessage(to=["prices"])
    subscribe.acl.performative, subscribe.acl.conversation_id, subscribe.acl.reply_with = 0x16, "c", "s"
    await raw.send(subscribe)
    (agree,) = await raw.delivered(1)
    assert (agree.message.acl.performative, agree.message.acl.in_reply_to) == (0x02, "s")
    again = pb.BusMessage()
    again.CopyFrom(subscribe)
    again.acl.reply_with = "t"
    await raw.send(again)
    refused = (await raw.delivered(2))[1].message.acl
    assert (refused.performative, refused.in_reply_to) == (0x11, "t")
    cancel = pb.BusMessage(to=["prices"])
    cancel.acl.performative, cancel.acl.conversation_id, cancel.acl.reply_with = 0x03, "c", "x"
    await raw.send(cancel)
    done = (await raw.delivered(3))[2].message.acl
    assert (done.performative, done.text, done.in_reply_to, done.conversation_id) == (0x08, "done", "x", "c")
    assert done.user_parameters == {AUTOMATIC: "true"}
    assert cancelled.is_set()
    await raw.send(cancel)
    nothing = (await raw.delivered(4))[3].message.acl
    assert (nothing.performative, nothing.text) == (0x07, "nothing to cancel")
    assert nothing.user_parameters == {AUTOMATIC: "true"}


async def test_what_makes_no_sense_is_refused(agents: Any) -> None:
    reader = await agents("reader")
    for to, more, why in (
        (["a", "b"], {}, "to one agent"),
        ("a", {"queue": 0}, "queue 0; expected a whole number"),
        ("a", {"timeout": -1}, "timeout -1; expected seconds above 0"),
        ("a", {"reply_with": "x"}, "reply_with is set by the subscription itself"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            reader.subscribe(to, **more)
    with pytest.raises(InvalidArgument, match="expected `async def`"):
        reader.on_subscribe()(lambda subscriber: None)
    with pytest.raises(PreconditionFailed, match="not open"):
        await anext(reader.subscribe("a"))
