"""What becomes of a message when its handler returns, raises, or is cut off."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from waiting import settled, until

from gagent_grpc import Agent, BusLimits, ClientLimits, FailureFromAgent, Received, Report
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

pytestmark = pytest.mark.timeout(30)

PATIENT = ClientLimits(retry_delay=0.05)


class Failing:
    """A handler that raises for some contents, a number of times each, and notes everything that it is given."""

    def __init__(self, **times: int) -> None:
        self.left = times
        self.seen: list[tuple[str, int, bool]] = []
        self._came = asyncio.Event()

    async def __call__(self, message: Received) -> None:
        content = str(message.content)
        self.seen.append((content, message.attempt, message.redelivered))
        self._came.set()
        if self.left.get(content, 0):
            self.left[content] -= 1
            raise ValueError(f"not today: {content}")

    async def holds(self, count: int) -> list[str]:
        async with asyncio.timeout(10):
            while len(self.seen) < count:
                self._came.clear()
                await self._came.wait()
        return [content for content, _, _ in self.seen]


async def test_lanes_run_side_by_side_up_to_the_bound_and_each_in_order(bus: Any, agents: Any) -> None:
    running: list[str] = []
    order: list[tuple[str, str]] = []
    most = 0
    full, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: Received) -> None:
        nonlocal most
        assert message.conversation_id not in running
        running.append(message.conversation_id)
        most = max(most, len(running))
        if most == 3:
            full.set()
        await go_on.wait()
        running.remove(message.conversation_id)
        order.append((message.conversation_id, message.content))

    await agents("bob", handle, limits=ClientLimits(concurrency=3))
    alice = await agents("alice")
    for number in range(5):
        for lane in "abcdef":
            await alice.send("bob", "inform", str(number), conversation_id=lane)
    await full.wait()
    await asyncio.sleep(0)
    go_on.set()
    await until(lambda: len(order) == 30)
    assert most == 3
    for lane in "abcdef":
        assert [content for mine, content in order if mine == lane] == list("01234")
    assert bus.platform.ams.get("bob").generation == 1


async def test_a_lane_without_conversation_is_the_pair(agents: Any, inboxes: Any) -> None:
    order: list[str] = []
    from_alice, release = asyncio.Event(), asyncio.Event()

    async def handle(message: Received) -> None:
        if message.content == "a1":
            from_alice.set()
            await release.wait()
        order.append(message.content)

    await agents("bob", handle)
    alice, carol = await agents("alice"), await agents("carol")
    await alice.send("bob", "inform", "a1")
    await alice.send("bob", "inform", "a2")
    await from_alice.wait()
    await carol.send("bob", "inform", "c1")
    await until(lambda: order == ["c1"])
    release.set()
    await until(lambda: order == ["c1", "a1", "a2"])


async def test_a_handler_that_raises_is_tried_again_and_its_lane_waits_while_others_go_on(
    bus: Any, agents: Any
) -> None:
    handler = Failing(a1=2)
    await agents("bob", handler, limits=PATIENT)
    alice = await agents("alice")
    for content in ("a1", "b1", "a2", "b2", "a3"):
        await alice.send("bob", "inform", content, conversation_id=content[0])
    await handler.holds(7)
    lane_a = [one for one in handler.seen if one[0][0] == "a"]
    assert lane_a[:3] == [("a1", 1, False), ("a1", 2, True), ("a1", 3, True)]
    assert [content for content, _, _ in lane_a[3:]] == ["a2", "a3"]
    lane_b = [one for one in handler.seen if one[0][0] == "b"]
    assert lane_b == [("b1", 1, False), ("b2", 1, False)]
    assert handler.seen.index(lane_b[-1]) < handler.seen.index(lane_a[1])
    await settled(bus, "bob")


async def test_a_message_that_is_given_up_gives_its_requester_a_failure_and_its_lane_free(
    buses: Any, agents: Any
) -> None:
    bus = await buses(limits=BusLimits(max_deliveries=3, drain_grace=1.0))
    handler = Failing(poison=99)
    bob = await agents("bob", bus=bus.address, limits=ClientLimits(retry_delay=0.01))
    bob.on()(handler)
    alice = await agents("alice", bus=bus.address)
    asking = asyncio.create_task(alice.request("bob", "poison", conversation_id="c"))
    await handler.holds(1)
    await alice.send("bob", "inform", "after", conversation_id="c")
    with pytest.raises(FailureFromAgent, match="given up after 3 deliveries: ValueError: not today") as raised:
        await asking
    assert raised.value.sender == "ams"
    assert (await handler.holds(4))[-1] == "after"
    await settled(bus, "bob")


async def test_an_error_of_something_awaited_is_the_handlers_and_not_the_end_of_its_worker(
    bus: Any, agents: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []

    # What cannot be encoded cannot be in a test's report either.
    caplog.set_level(logging.CRITICAL, "gagent_grpc.client")

    async def handle(message: Received) -> None:
        runs.append(message.content)
        if runs.count(message.content) > 1:
            return
        if message.content == "cancelled":
            other = asyncio.create_task(asyncio.sleep(60))
            other.cancel()
            await other
        if message.content == "unspeakable":
            raise Unspeakable
        if message.content == "not to be encoded":
            raise ValueError("\udcff")

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    await agents("bob", handle, limits=ClientLimits(retry_delay=0.01, concurrency=1))
    alice = await agents("alice")
    bad = ["cancelled", "unspeakable", "not to be encoded"]
    for content in (*bad, "fine"):
        await alice.send("bob", "inform", content)
    await until(lambda: runs == [*(one for one in bad for _ in range(2)), "fine"])
    await settled(bus, "bob")


async def test_a_blocking_handler_may_raise_anything(bus: Any, agents: Any) -> None:
    runs: list[str] = []

    def handle(message: Received) -> None:
        runs.append(message.content)
        if len(runs) == 1:
            next(iter(()))

    await agents("bob", handle, limits=ClientLimits(retry_delay=0.01))
    alice = await agents("alice")
    await alice.send("bob", "inform", "1")
    await until(lambda: runs == ["1", "1"])
    await settled(bus, "bob")


async def test_a_message_that_acl_has_no_word_for_is_settled_and_the_next_one_handled(
    bus: Any, agents: Any, connect: Any, inbox: Any
) -> None:
    await agents("bob", inbox)
    raw = await connect(bus, "raw")
    message = pb.BusMessage(to=["bob"])
    message.acp.message_type = 4
    message.acp.source, message.acp.target = "raw", "bob"
    await raw.send(message)
    assert await raw.receipted(1) == []
    await (await agents("alice")).send("bob", "inform", "hi")
    assert await inbox.holds(1) == ["hi"]
    await settled(bus, "bob")


# ---- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_lets_handlers_finish_and_keeps_what_has_not_begun(bus: Any, agents: Any, inbox: Any) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def handle(message: Received) -> str:
        begun.set()
        await release.wait()
        done.append(message.content)
        return "answered"

    bob = await agents("bob", handle)
    alice = await agents("alice", inbox)
    for number in range(20):
        await alice.send("bob", "request", str(number))
    await begun.wait()
    closing = asyncio.create_task(bob.aclose())
    await asyncio.sleep(0)
    release.set()
    await closing
    assert done == ["0"]
    assert await inbox.holds(1) == ["answered"]
    assert bus.platform.ams.get("bob").mailbox.messages == 19
    again = await agents("bob", handle)
    await until(lambda: len(done) == 20)
    assert done == [str(number) for number in range(20)]
    assert again.aid == "bob@local"


async def test_a_handler_that_asks_gets_its_answer_while_its_agent_closes(agents: Any) -> None:
    asked, release = asyncio.Event(), asyncio.Event()
    oracle = await agents("oracle")

    @oracle.on("request")
    async def tell(message: Received) -> str:
        asked.set()
        await release.wait()
        return "truth"

    bob = await agents("bob")

    @bob.on("request")
    async def ask(message: Received) -> str:
        return (await bob.request("oracle", "?")).content

    alice = await agents("alice")
    answer = asyncio.create_task(alice.request("bob", "?"))
    await asked.wait()
    closing = asyncio.create_task(bob.aclose())
    await asyncio.sleep(0)
    release.set()
    assert (await answer).content == "truth"
    await closing


async def test_a_handler_that_does_not_end_is_cut_off_and_its_message_comes_again(bus: Any, agents: Any) -> None:
    begun = asyncio.Event()
    ends: list[str] = []

    async def hang(message: Received) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cut off")

    bob = await agents("bob", hang)
    alice = await agents("alice")
    await alice.send("bob", "inform", "1")
    await begun.wait()
    await bob.aclose(grace=0.05)
    assert ends == ["cut off"]
    again = Failing()
    await agents("bob", again)
    await again.holds(1)
    assert again.seen == [("1", 2, True)]
    await settled(bus, "bob")


@pytest.mark.parametrize("deregister", [False, True])
async def test_a_handler_may_close_its_own_agent(bus: Any, agents: Any, deregister: bool) -> None:
    bob = await agents("bob")

    @bob.on("inform")
    async def stop(message: Received) -> None:
        await bob.aclose(deregister=deregister)

    alice = await agents("alice")
    await alice.send("bob", "inform", "stop")
    async with asyncio.timeout(10):
        await bob.wait()
    found = bus.platform.ams.find("bob")
    if deregister:
        assert found is None
    else:
        # Handled means acknowledged, also for the message that says so.
        assert found.mailbox.messages == 0
        assert found.session is None


async def test_closing_says_bye_and_deregistering_frees_the_name(bus: Any, agents: Any) -> None:
    bob = await agents("bob", services=["x"])
    alice = await agents("alice")
    assert len(await alice.df.search_all("x")) == 1
    await bob.aclose()
    assert await alice.df.search_all("x") == []
    assert bus.platform.ams.find("bob") is not None
    bob = await agents("bob")
    await bob.aclose(deregister=True)
    assert bus.platform.ams.find("bob") is None


async def test_everything_that_was_handed_over_is_sent_before_the_end(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    sends = [asyncio.create_task(alice.send("bob", "inform", str(number))) for number in range(500)]
    await asyncio.sleep(0)
    await asyncio.gather(alice.aclose(), alice.aclose())
    assert await asyncio.gather(*sends) == [[]] * 500
    assert await inbox.holds(500) == [str(number) for number in range(500)]


async def test_lazily_receipted_messages_do_not_hold_up_the_end(agents: Any, inbox: Any) -> None:
    await agents("bob", inbox)
    alice = await agents("alice")
    lazy = asyncio.create_task(alice.send("bob", "inform", "lazy", report=Report.RECEIPT_LAZY))
    await inbox.holds(1)
    assert not lazy.done()
    async with asyncio.timeout(2):
        await alice.aclose()
    assert await lazy == []


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_closing_that_is_cancelled_at_any_moment_leaves_nothing(agents: Any, turns: int) -> None:
    before = asyncio.all_tasks()
    alice = await agents("alice", _hang)
    await alice.send("alice", "inform", "hang")
    closing = asyncio.create_task(alice.aclose(grace=20))
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    if closing.cancelled():
        await alice.aclose(grace=0)
    await until(lambda: not _agent_tasks(before))


@pytest.mark.parametrize("turns", range(0, 60, 2))
async def test_running_that_is_cancelled_at_any_moment_leaves_nothing(bus: Any, turns: int) -> None:
    before = asyncio.all_tasks()
    running = asyncio.create_task(Agent("alice", bus=bus.address).run())
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not _agent_tasks(before))


async def test_whoever_waits_is_not_cancelled_when_another_task_closes(agents: Any, proxy: Any) -> None:
    alice = await agents("alice", bus=proxy.address)
    waiting = asyncio.create_task(alice.wait())
    proxy.cut(admit=False)
    await proxy.connected()
    await alice.aclose()
    await waiting


async def _hang(message: Received) -> None:
    await asyncio.Event().wait()


def _agent_tasks(before: set[Any]) -> list[Any]:
    """Return tasks of agents that did not run before; those of the bus come and go."""
    names = ("ClientSession", "Lanes", "Agent")
    return [
        task
        for task in asyncio.all_tasks() - before
        if any(name in getattr(task.get_coro(), "__qualname__", "") for name in names)
    ]
