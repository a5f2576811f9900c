"""Behaviours made of behaviours: sequential, parallel, and state machines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waiting import WAIT, settled, until

from gagent_grpc import (
    Behaviour,
    CyclicBehaviour,
    FSMBehaviour,
    InvalidArgument,
    MessageTemplate,
    OneShotBehaviour,
    ParallelBehaviour,
    PreconditionFailed,
    SequentialBehaviour,
)

pytestmark = pytest.mark.timeout(30)

ORDERS = MessageTemplate(ontology="orders")


class Saying(OneShotBehaviour):
    """Notes that it was there, and returns a value or raises it."""

    def __init__(self, word: Any, notes: list[Any] | None = None, *, after: asyncio.Event | None = None) -> None:
        super().__init__(f"saying {word}")
        self.word = word
        self.notes = notes if notes is not None else []
        self.after = after

    async def action(self) -> Any:
        if self.after is not None:
            await self.after.wait()
        self.notes.append(self.word)
        if isinstance(self.word, Exception):
            raise self.word
        return self.word

    async def on_end(self) -> None:
        self.notes.append(f"end {self.word}")


class Receiving(OneShotBehaviour):
    """Returns the content of the message that it receives."""

    def __init__(self, template: MessageTemplate | None = None) -> None:
        super().__init__()
        self.template = template

    async def action(self) -> Any:
        message = await self.receive(self.template, timeout=WAIT)
        return message.content if message is not None else None


def never() -> asyncio.Event:
    return asyncio.Event()


# ---- sequential --------------------------------------------------------------------------------------------------------


async def test_parts_run_one_after_the_other(agents: Any) -> None:
    bob, notes = await agents("bob"), []
    inner = SequentialBehaviour(Saying("b", notes), Saying("c", notes))
    whole = SequentialBehaviour(Saying("a", notes), inner)
    whole.add(Saying("d", notes))
    assert await bob.add_behaviour(whole).join() == "d"
    assert notes == ["a", "end a", "b", "end b", "c", "end c", "d", "end d"]
    assert inner.result == "c"
    assert inner.parent is whole
    assert inner.agent is bob
    # Once more, with one that is added on the way.
    del notes[:]

    class Adding(OneShotBehaviour):
        async def action(self) -> None:
            whole.add(Saying("last", notes))

    whole.add(Adding())
    assert await bob.add_behaviour(whole).join() == "last"
    assert notes.count("a") == 1
    assert await bob.add_behaviour(SequentialBehaviour()).join() is None


async def test_the_error_of_a_part_is_the_error_of_the_whole(agents: Any) -> None:
    bob, notes = await agents("bob"), []
    whole = SequentialBehaviour(Saying(ValueError("no"), notes), Saying("b", notes))
    with pytest.raises(ValueError, match="no"):
        await bob.add_behaviour(whole).join()
    assert "b" not in notes


async def test_parts_end_with_the_whole_and_a_part_may_be_killed_alone(agents: Any) -> None:
    bob, notes = await agents("bob"), []
    first, second = Saying("a", notes, after=never()), Saying("b", notes, after=never())
    whole = bob.add_behaviour(SequentialBehaviour(first, second))
    await until(lambda: first.running)
    await asyncio.sleep(0)
    first.kill()
    await until(lambda: second.running)
    await asyncio.sleep(0)
    whole.kill()
    assert await whole.join() is None
    assert not second.running
    assert notes == ["end a", "end b"]


async def test_parts_receive_what_the_whole_was_added_for(bus: Any, agents: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")
    last = MessageTemplate(content="last")
    whole = bob.add_behaviour(SequentialBehaviour(Receiving(last), Receiving(), Receiving()), ORDERS)
    parts: list[Behaviour] = whole._parts
    for content in ("1", "2", "last"):
        await alice.send("bob", "inform", content, ontology="orders")
    assert await whole.join() == "2"
    assert [part.result for part in parts] == ["last", "1", "2"]
    await settled(bus, "bob")


# ---- parallel ----------------------------------------------------------------------------------------------------------


async def test_parallel_parts_run_side_by_side_until_all_have_ended(agents: Any) -> None:
    bob, gate = await agents("bob"), asyncio.Event()

    class Opening(OneShotBehaviour):
        async def action(self) -> str:
            gate.set()
            return "opened"

    whole = ParallelBehaviour(Saying("waited", after=gate), until=ParallelBehaviour.ALL)
    whole.add(Opening())
    assert await bob.add_behaviour(whole).join() == ["waited", "opened"]
    assert await bob.add_behaviour(ParallelBehaviour()).join() == []


async def test_parallel_until_any_ends_the_others(agents: Any) -> None:
    bob, notes = await agents("bob"), []
    slow, quick = Saying("slow", notes, after=never()), Saying("quick", notes)
    assert await bob.add_behaviour(ParallelBehaviour(slow, quick, until=ParallelBehaviour.ANY)).join() == "quick"
    assert slow.killed
    assert sorted(notes) == ["end quick", "end slow", "quick"]


async def test_a_parallel_part_that_fails_ends_the_others_and_one_that_is_killed_has_no_result(agents: Any) -> None:
    bob, notes = await agents("bob"), []
    slow = Saying("slow", notes, after=never())
    failing = [Saying(ValueError("first"), notes), Saying(ValueError("second"), notes)]
    with pytest.raises(ValueError, match="first"):
        await bob.add_behaviour(ParallelBehaviour(slow, *failing)).join()
    assert slow.killed

    killed = Saying("killed", after=never())
    whole = bob.add_behaviour(ParallelBehaviour(killed, Saying("x")))
    await until(lambda: killed.running)
    await asyncio.sleep(0)
    killed.kill()
    assert await whole.join() == [None, "x"]


async def test_each_message_goes_to_one_of_the_parts_that_want_it(bus: Any, agents: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")
    whole = bob.add_behaviour(
        ParallelBehaviour(Receiving(MessageTemplate("request")), Receiving(MessageTemplate("inform")), Receiving()),
        ORDERS,
    )
    await until(lambda: all(part.running for part in whole._parts))
    await alice.send("bob", "inform", "i", ontology="orders")
    await alice.send("bob", "cfp", "c", ontology="orders")
    await alice.send("bob", "inform", "j", ontology="orders")
    await alice.send("bob", "request", "r", ontology="orders")
    results = await whole.join()
    assert results[0] == "r"
    assert sorted(results[1:]) in (["c", "i"], ["i", "j"])
    await until(lambda: bus.platform.ams.get("bob").mailbox.messages == 0)


# ---- state machines ----------------------------------------------------------------------------------------------------


class Shop(FSMBehaviour):
    """Takes orders until somebody pays, or too many were bad."""

    def __init__(self) -> None:
        super().__init__("shop")
        self.bad = 0
        self.way: list[str] = []
        shop = self

        class Wait(OneShotBehaviour):
            async def action(self) -> Any:
                shop.way.append("wait")
                message = await self.receive(timeout=WAIT)
                return message.content if message is not None else None

        class Refuse(OneShotBehaviour):
            async def action(self) -> bool:
                shop.way.append(f"refuse after {shop.state}")
                shop.bad += 1
                return shop.bad >= 2

        self.add_state("wait", Wait(), start=True)
        self.add_state("refuse", Refuse())
        self.add_state("paid", Saying("thanks", self.way), final=True)
        self.add_state("closed", Saying("closed", self.way), final=True)
        self.add_transition("wait", "refuse")
        self.add_transition("wait", "paid", "money")
        self.add_transition("refuse", "wait", False)
        self.add_transition("refuse", "closed", True)


async def test_a_state_machine_goes_by_the_results_of_its_states(bus: Any, agents: Any) -> None:
    bob, alice = await agents("bob"), await agents("alice")
    shop = bob.add_behaviour(Shop(), ORDERS)
    for content in ("stones", "money"):
        await alice.send("bob", "inform", content, ontology="orders")
    assert await shop.join() == "thanks"
    assert shop.state == "paid"
    assert shop.way == ["wait", "refuse after refuse", "wait", "thanks", "end thanks"]
    # Once more, from its start state.
    shop.way.clear()
    bob.add_behaviour(shop, ORDERS)
    await alice.send("bob", "inform", "stones", ontology="orders")
    assert await shop.join() == "closed"
    await settled(bus, "bob")


async def test_a_result_without_a_transition_ends_the_machine_with_an_error(agents: Any) -> None:
    bob = await agents("bob")
    machine = FSMBehaviour("m")
    machine.add_state("a", Saying("odd"), start=True)
    machine.add_state("b", Saying("b"), final=True)
    machine.add_transition("a", "b", "even")
    with pytest.raises(InvalidArgument, match="m: 'a' ended with 'odd'; expected 'even'"):
        await bob.add_behaviour(machine).join()


async def test_a_machine_without_a_final_state_goes_on_until_it_is_killed(agents: Any) -> None:
    bob, notes = await agents("bob"), []
    machine = FSMBehaviour()
    machine.add_state("tick", Saying("tick", notes), start=True)
    machine.add_state("tock", Saying("tock", notes))
    machine.add_transition("tick", "tock")
    machine.add_transition("tock", "tick")
    bob.add_behaviour(machine)
    await until(lambda: notes.count("tock") >= 3)
    machine.kill()
    assert await machine.join() is None
    assert notes[:4] == ["tick", "end tick", "tock", "end tock"]


def machine_with(*transitions: tuple[str, str], start: str = "a", finals: str = "c") -> FSMBehaviour:
    made = FSMBehaviour("m")
    for name in "abc":
        made.add_state(name, Saying(name), start=name == start, final=name in finals)
    for source, target in transitions:
        made.add_transition(source, target)
    return made


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (lambda: FSMBehaviour("m"), "no start state; expected one of none"),
        (lambda: machine_with(("a", "b"), ("b", "c"), start=""), "no start state; expected one of a, b, c"),
        (lambda: machine_with(("a", "b"), ("b", "x")), "names the state 'x'; expected one of a, b, c"),
        (lambda: machine_with(("a", "b"), ("b", "c"), ("x", "a")), "names the state 'x'"),
        (lambda: machine_with(("a", "b")), "'b' has no transition and is not final"),
        (lambda: machine_with(("a", "c"), ("b", "c")), "no transition leads to 'b'"),
        (lambda: machine_with(("a", "b"), ("b", "c"), ("c", "a")), "'c' is final and has a transition"),
    ],
)
async def test_a_machine_that_cannot_work_is_refused_before_it_runs(agents: Any, machine: Any, why: str) -> None:
    bob = await agents("bob")
    with pytest.raises(InvalidArgument, match=f"m: .*{why}"):
        bob.add_behaviour(machine())
    with pytest.raises(InvalidArgument, match=f"m: .*{why}"):
        bob.add_behaviour(SequentialBehaviour(machine()))


async def test_what_makes_no_machine_and_no_whole_is_refused_at_once(agents: Any) -> None:
    machine = machine_with(("a", "b"))
    with pytest.raises(InvalidArgument, match="'a' is there already"):
        machine.add_state("a", Saying("x"))
    with pytest.raises(InvalidArgument, match="'d' cannot be the start, since 'a' is"):
        machine.add_state("d", Saying("x"), start=True)
    with pytest.raises(InvalidArgument, match="has a transition for any result already"):
        machine.add_transition("a", "c")
    part = Saying("x")
    whole = SequentialBehaviour(part)
    with pytest.raises(InvalidArgument, match="in use already"):
        ParallelBehaviour(part)
    with pytest.raises(InvalidArgument, match="part of itself"):
        whole.add(whole)
    with pytest.raises(InvalidArgument, match="is no behaviour"):
        whole.add("x")  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match="until 'all'; expected"):
        ParallelBehaviour(until="all")  # type: ignore[arg-type]
    bob = await agents("bob")
    with pytest.raises(InvalidArgument, match="expected the whole"):
        bob.add_behaviour(part)

    class Endless(CyclicBehaviour):
        async def action(self) -> None:
            await asyncio.Event().wait()

    running = bob.add_behaviour(ParallelBehaviour(Endless()))
    with pytest.raises(PreconditionFailed, match="runs already"):
        running.add(Saying("x"))
