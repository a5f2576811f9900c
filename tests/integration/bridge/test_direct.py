"""The same scripts under the bridge and as clients of the bus by themselves."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from script_agents import WAIT, DirectFactory, Launch, Person, PersonFactory, until

from gagent_grpc import Agent
from gagent_grpc.cli.exits import ExitCode
from gagent_grpc.config import BusLimits
from gagent_grpc.server.app import Bus


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


EVERYTHING = """
    import sys
    import threading
    import gagent_py


    class Everything(gagent_py.Agent):
        def on_start(self):
            self.seen = 0
            self.ticks = 0
            self.bob = None

        def on_message(self, msg: gagent_py.ACLMessage):
            self.seen += 1
            if msg.performative == "query-ref":
                return self.reply(msg, "inform", f"{self.seen} {msg.ontology} {msg.language} {self.system_prompt} {self.max_tokens}")
            if msg.performative == "query-if":
                return self.reply(msg, "inform", "ticked" if self.ticks else "not yet")
            if msg.performative == "request" and msg.content == "tell bob":
                return self.send("bob", "inform", "hello", ontology="greetings", conversation_id=msg.conversation_id)
            if msg.performative == "request" and msg.content == "sleep":
                return self.suspend()
            if msg.performative == "request" and msg.content == "crash":
                raise RuntimeError("asked to, with a secret")
            if msg.performative == "request" and msg.content == "both":
                print("printed by the script")
                return [self.reply(msg, "agree"), self.reply(msg, "inform", b"\\x00\\xff")]
            if msg.performative == "request" and msg.content == "leave":
                sys.exit(0)
            if msg.performative == "request" and msg.content == "thread":
                return self.reply(msg, "inform", str(threading.current_thread() is threading.main_thread()))
            if msg.performative == "failure":
                return self.send("alice", "inform", f"{msg.sender}: {msg.content}")
            if msg.performative == "cancel":
                return self.delete()

        def on_tick(self):
            self.ticks += 1
            return self.noop()

        def on_stop(self):
            return self.send("alice", "inform", "bye")


    Everything().run()
"""
PROMPT = {"system_prompt": "kind", "max_tokens": 50}


# --- In both modes ---


async def test_every_hook_and_helper(launch: Launch, alice: Person) -> None:
    running = await launch(EVERYTHING, **PROMPT)
    assert await alice.ask("helper", "", "query-ref", ontology="o", language="l") == "1 o l kind 50"

    # Nobody of that name: the script hears of it.
    await alice.send("helper", "tell bob", conversation_id="k7")
    told = await alice.next()
    assert str(told.content).startswith("ams: NO_SUCH_AGENT: registered: alice, helper")

    await alice.send("helper", "crash", conversation_id="k8", reply_with="q8")
    failure = await alice.next()
    assert failure.performative.text == "failure"
    assert failure.content == "internal-error: RuntimeError; see the log of the script's agent"
    assert (failure.conversation_id, failure.in_reply_to) == ("k8", "q8")

    await alice.send("helper", "both", conversation_id="k9")
    agree, inform = await alice.next(), await alice.next()
    assert [agree.performative.text, inform.performative.text] == ["agree", "inform"]
    assert inform.content == b"\x00\xff"
    assert {agree.conversation_id, inform.conversation_id} == {"k9"}

    assert await alice.ask("helper", "thread") == "True"
    assert [found.name for found in await alice.agent.df.search_all("helper")] == ["helper@local"]

    assert await running.stop() == 0
    assert (await alice.next()).content == "bye"
    await alice.send("helper", "name and mail stay")


async def test_message_of_a_script_reaches_others(launch: Launch, alice: Person, person: PersonFactory) -> None:
    bob = await person("bob")
    await launch(EVERYTHING)
    await alice.send("helper", "tell bob", conversation_id="k7")
    message = await bob.next()
    assert (str(message.sender), message.content, message.ontology, message.conversation_id) == (
        "helper",
        "hello",
        "greetings",
        "k7",
    )


async def test_ticks_come_in_both_modes(launch: Launch, alice: Person) -> None:
    await launch(EVERYTHING, tick_ms=10)

    async def ticked() -> bool:
        return await alice.ask("helper", "", "query-if") == "ticked"

    await until(ticked)


async def test_suspend_and_resume(launch: Launch, alice: Person) -> None:
    await launch(EVERYTHING)
    await alice.send("helper", "sleep")

    async def suspended() -> bool:
        return await alice.state("helper") == "suspended"

    await until(suspended)
    await alice.send("helper", "", "query-ref")
    entry = await alice.entry("helper")
    assert entry is not None
    assert entry.mailbox_messages >= 1
    assert alice.inbox.empty()
    await alice.agent.ams.resume("helper")
    assert str((await alice.next()).content).startswith("2 ")


async def test_agent_suspended_before_it_came_waits_to_be_resumed(launch: Launch, alice: Person) -> None:
    running = await launch(EVERYTHING)
    await alice.agent.ams.suspend("helper")
    assert await running.stop() == 0
    assert (await alice.next()).content == "bye"
    await alice.send("helper", "", "query-ref")
    await launch(EVERYTHING)
    assert await alice.state("helper") == "suspended"
    await alice.agent.ams.resume("helper")
    assert str((await alice.next()).content).startswith("1 ")


async def test_delete_frees_the_name(launch: Launch, alice: Person) -> None:
    running = await launch(EVERYTHING)
    await alice.send("helper", "", "cancel")
    assert await running.wait() == 0
    assert (await alice.next()).content == "bye"
    assert await alice.state("helper") == "gone"


async def test_script_that_exits_in_a_hook_ends_well_and_the_asker_hears(launch: Launch, alice: Person) -> None:
    running = await launch(EVERYTHING)
    await alice.send("helper", "leave", conversation_id="k1")
    assert await running.wait() == 0
    failure = await alice.next()
    assert (failure.performative.text, failure.content) == ("failure", "the script ended (exit code 0)")
    entry = await alice.entry("helper")
    assert entry is not None
    assert (entry.connected, entry.mailbox_messages) == (False, 0)


# --- The direct mode alone ---


async def test_services_from_the_environment(direct: DirectFactory, alice: Person) -> None:
    await direct(EVERYTHING, services="spell, summarise")
    for kind in ("spell", "summarise"):
        assert [found.name for found in await alice.agent.df.search_all(kind)] == ["helper@local"]
    assert await alice.agent.df.search_all("helper") == []


async def test_prints_stay_the_scripts_own(direct: DirectFactory, alice: Person) -> None:
    running = await direct(EVERYTHING)
    await alice.send("helper", "both")
    await alice.next()
    await alice.next()
    await running.stop()
    out, err = running.out, running.err
    assert out == "printed by the script\n"
    assert err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_is_a_polite_stop(direct: DirectFactory, alice: Person, number: signal.Signals) -> None:
    running = await direct(EVERYTHING)
    # Before `on_start` has returned there is nothing that `on_stop` could end.
    await alice.send("helper", "thread")
    await alice.next()
    running.process.send_signal(number)
    assert await running.wait() == 0
    assert (await alice.next()).content == "bye"
    assert (running.out, running.err) == ("", "")
    assert await alice.agent.df.search_all() == []


STUCK = """
    import time
    import gagent_py

    class Stuck(gagent_py.Agent):
        def on_message(self, msg):
            if msg.content == "block":
                print("blocks", flush=True)
                time.sleep({seconds})
            return self.reply(msg, "inform", msg.content)

        def on_stop(self):
            return self.send("alice", "inform", "bye")

    Stuck().run()
"""


async def test_second_signal_interrupts_a_hook_and_its_message_comes_again(
    direct: DirectFactory, alice: Person
) -> None:
    running = await direct(STUCK.format(seconds=600))
    await alice.send("helper", "block", conversation_id="k1")

    # In the hook, and not only on its way to it.
    await until(lambda: running.out == "blocks\n")
    running.process.send_signal(signal.SIGINT)

    async def noticed() -> bool:
        return running.err == "Stopping after this message; Ctrl-C again interrupts it.\n"

    await until(noticed)
    running.process.send_signal(signal.SIGINT)
    assert await running.wait() == 0
    assert (await alice.next()).content == "bye"
    await direct(STUCK.format(seconds=0))
    again = await alice.next()
    assert (again.content, again.conversation_id) == ("block", "k1")


async def test_hook_that_blocks_does_not_cost_the_session(
    buses: Callable[..., Awaitable[Bus]], direct: DirectFactory
) -> None:
    bus = await buses(limits=BusLimits(heartbeat_interval=0.2, missed_heartbeats=3, drain_grace=1.0))
    running = await direct(STUCK.format(seconds=1.5), bus=bus.address, wait=False)

    async def active() -> bool:
        record = bus.platform.ams.find("helper")
        return record is not None and record.session is not None

    await until(active)
    generation = bus.platform.ams.find("helper").generation

    async with Agent("carol", bus=bus.address) as carol:
        assert (await carol.request("helper", "block", timeout=WAIT)).content == "block"
    assert bus.platform.ams.find("helper").generation == generation
    await running.stop()


# --- What goes wrong before it begins ---


async def test_no_bus_is_one_line_and_exit_code_5(direct: DirectFactory) -> None:
    running = await direct(EVERYTHING, bus="127.0.0.1:1", wait=False)
    assert await running.wait() == 5
    assert (running.out, running.err) == ("", "No bus at 127.0.0.1:1. Start one: gagent serve\n")


async def test_name_of_a_live_agent_is_one_line_and_exit_code_1(direct: DirectFactory, alice: Person) -> None:
    running = await direct(EVERYTHING, name="alice", wait=False)
    assert await running.wait() == 1
    out, err = running.out, running.err
    assert (out, err.count("\n")) == ("", 1)
    assert err == (
        "alice: already registered with the AMS (a live session holds the name). Stop it (gagent kill alice) or choose"
        " another name with GAGENT_NAME\n"
    )


async def test_exit_codes_are_those_of_gagent(
    buses: Callable[..., Awaitable[Bus]], direct: DirectFactory, alice: Person
) -> None:
    full = await buses(limits=BusLimits(max_agents=1, drain_grace=1.0))
    async with Agent("carol", bus=full.address):
        running = await direct(EVERYTHING, bus=full.address, wait=False)
        assert await running.wait() == ExitCode.NOT_DELIVERED
    assert running.err == "helper: the platform holds 1 agents, its limit (max_agents)\n"


@pytest.mark.parametrize(
    ("settings", "text", "code"),
    [
        ({"tick_ms": "soon"}, "GAGENT_TICK_MS is 'soon'; expected a whole number such as 200", 2),
        ({"bus": "somewhere"}, "bus endpoint 'somewhere': expected HOST:PORT", 2),
        ({"name": "my agent"}, "'my agent'", 2),
        ({"name": "df"}, "df: this name is reserved", 6),
    ],
)
async def test_bad_setting_is_one_line(direct: DirectFactory, settings: dict[str, str], text: str, code: int) -> None:
    running = await direct(EVERYTHING, wait=False, **settings)
    assert await running.wait() == code
    out, err = running.out, running.err
    assert (out, err.count("\n")) == ("", 1)
    assert text in err


async def test_error_in_on_start_frees_the_name(direct: DirectFactory, alice: Person) -> None:
    source = """
        import gagent_py

        class Broken(gagent_py.Agent):
            def on_start(self):
                raise KeyError("OPENAI_API_KEY")

        Broken().run()
    """
    running = await direct(source, wait=False)
    assert await running.wait() == 1
    out, err = running.out, running.err
    assert out == ""
    assert err.rstrip().endswith("KeyError: 'OPENAI_API_KEY'")
    assert await alice.state("helper") == "gone"


async def test_terminated_agent_ends_with_one_line(direct: DirectFactory, alice: Person) -> None:
    running = await direct(EVERYTHING)
    await alice.agent.ams.terminate("helper")
    assert await running.wait() == 0
    assert running.err == "helper was ended by the AMS (gagent kill)\n"
