"""What scripts do wrong, in both modes: each mistake has one outcome, whoever waits hears of it, and the agent goes on."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator

import pytest
from script_agents import WAIT, Bridge, Bridged, Direct, DirectFactory, Launch, Person, until

from gagent_grpc.errors import ScriptError


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


CLUMSY = """
    import os
    import subprocess
    import sys
    import threading
    import gagent_py


    class Clumsy(gagent_py.Agent):
        ticks = 0

        def on_message(self, msg):
            if msg.performative != "request":
                return None
            what = msg.content
            if what == "ticks":
                return self.reply(msg, "inform", str(self.ticks))
            if what == "recursion":
                return self.on_message(msg)
            if what == "int":
                return 7
            if what == "string":
                return "noop"
            if what == "empty":
                return {}
            if what == "generator":
                return (self.noop() for _ in range(2))
            if what == "in a list":
                return [self.reply(msg, "inform", "x"), 7]
            if what == "surrogate":
                return self.reply(msg, "inform", "\\ud800")
            if what == "number":
                return self.reply(msg, "inform", 3)
            if what == "nan":
                return {"action": "send", "to": msg.sender, "msg": {"performative": "inform", "content": float("nan")}}
            if what == "object":
                return {"action": "send", "to": msg.sender, "msg": {"performative": "inform", "content": object()}}
            if what == "too large":
                return self.reply(msg, "inform", "x" * 2_000_000)
            if what == "a line too long":
                return self.reply(msg, "inform", "x" * 7_000_000)
            if what == "a group":
                raise ExceptionGroup("two", [ValueError("a secret"), KeyError("another")])
            if what == "an error without words":
                class Mute(Exception):
                    def __str__(self):
                        raise RuntimeError("no words")

                raise Mute
            if what == "prints":
                threads = [threading.Thread(target=lambda: print("{\\"action\\":\\"delete\\"}")) for _ in range(5)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                os.write(1, b'{"action":"delete"}\\n')
                os.system("echo '{\\"action\\":\\"delete\\"}'")
                subprocess.run([sys.executable, "-c", "print('{\\"action\\":\\"delete\\"}')"])
                return self.reply(msg, "inform", "printed")
            if what == "closes":
                # Libraries that make a daemon of the process do that.
                os.close(0)
                os.close(1)
                return self.reply(msg, "inform", "closed")

        def on_tick(self):
            self.ticks += 1
            if self.ticks % 3 == 0:
                raise LookupError("in a tick")
            return [None, 7, "noop"][self.ticks % 3]

        def on_stop(self):
            raise LookupError("at the end")


    Clumsy().run()
"""

WRONG = "expected what self.send, self.reply, self.noop, self.delete, self.suspend or self.wake returns, a list of"
ELSEWHERE = "; see the log of the script's agent"
OUTCOMES = {
    "recursion": f"internal-error: RecursionError{ELSEWHERE}",
    "int": f"internal-error: TypeError: on_message returned int; {WRONG}",
    "string": f"internal-error: TypeError: on_message returned str; {WRONG}",
    "empty": f"internal-error: TypeError: on_message returned dict; {WRONG}",
    "generator": f"internal-error: TypeError: on_message returned generator; {WRONG}",
    "in a list": f"internal-error: TypeError: on_message returned int; {WRONG}",
    "surrogate": "internal-error: ValueError: content: surrogates not allowed (at 0); expected valid Unicode",
    "number": "internal-error: TypeError: content is int; expected str or bytes",
    "nan": f"internal-error: ValueError{ELSEWHERE}",
    "object": f"internal-error: TypeError{ELSEWHERE}",
    "too large": "the answer cannot be sent: TOO_LARGE",
    "a line too long": "internal-error: ValueError: the answer is a line of 7,0",
    "a group": f"internal-error: ExceptionGroup{ELSEWHERE}",
    "an error without words": f"internal-error: Mute{ELSEWHERE}",
}


async def test_every_mistake_is_answered_and_the_agent_goes_on(launch: Launch, alice: Person) -> None:
    running = await launch(CLUMSY, tick_ms=10)
    for what, outcome in OUTCOMES.items():
        await alice.send("helper", what, conversation_id=what, reply_with="q")
        failure = await alice.next()
        assert failure.performative.text == "failure", what
        assert str(failure.content).startswith(outcome), failure.content
        assert "secret" not in str(failure.content)
        assert (failure.conversation_id, failure.in_reply_to) == (what, "q")

    async def ticked() -> bool:
        # Through ticks that raise, and ticks that return what is no action.
        return int(str(await alice.ask("helper", "ticks"))) > 6

    await until(ticked)
    assert await alice.ask("helper", "prints") == "printed"
    assert await alice.ask("helper", "closes") == "closed"
    assert await alice.state("helper") == "active"
    assert await running.stop() == 0
    assert alice.inbox.empty()


ENDS = """
    import sys
    import gagent_py

    class Ends(gagent_py.Agent):
        def on_start(self):
            if self.system_prompt == "exit at start":
                sys.exit(3)
            if self.system_prompt == "wrong at start":
                return 7
            if self.system_prompt == "delete at start":
                return self.delete()

        def on_message(self, msg):
            if msg.content == "interrupt":
                raise KeyboardInterrupt
            if msg.content == "exit":
                sys.exit("a last word")

    Ends().run()
"""


async def test_exit_in_on_start_is_the_end_and_frees_the_name(
    bridge: Bridge, direct: DirectFactory, alice: Person
) -> None:
    with pytest.raises(ScriptError, match="exit code 3"):
        await bridge(ENDS, system_prompt="exit at start")
    assert await alice.state("helper") == "gone"
    running = await direct(ENDS, system_prompt="exit at start", wait=False)
    assert await running.wait() == 3
    assert await alice.state("helper") == "gone"


async def test_result_of_on_start_that_is_no_action_is_the_end(
    bridge: Bridge, direct: DirectFactory, alice: Person
) -> None:
    with pytest.raises(ScriptError, match="on_start returned int"):
        await bridge(ENDS, system_prompt="wrong at start")
    running = await direct(ENDS, system_prompt="wrong at start", wait=False)
    assert await running.wait() == 1
    assert "on_start returned int" in running.err
    assert await alice.state("helper") == "gone"


async def test_delete_in_on_start(bridge: Bridge, direct: DirectFactory, alice: Person) -> None:
    bridged = await bridge(ENDS, system_prompt="delete at start")
    assert await bridged.wait() == 0
    assert await alice.state("helper") == "gone"
    running = await direct(ENDS, system_prompt="delete at start", wait=False)
    assert await running.wait() == 0
    assert await alice.state("helper") == "gone"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("interrupt", "the script ended ("),
        ("exit", "the script ended (exit code 1)"),
    ],
)
async def test_who_asked_hears_how_the_script_ended(launch: Launch, alice: Person, content: str, told: str) -> None:
    running = await launch(ENDS)
    await alice.send("helper", content, conversation_id="k1")
    failure = await alice.next()
    assert (failure.performative.text, failure.conversation_id) == ("failure", "k1")
    assert str(failure.content).startswith(told)
    if isinstance(running, Direct):
        # As Python itself ends then.
        assert await running.wait() == (-2 if content == "interrupt" else 1)
        assert re.search("KeyboardInterrupt" if content == "interrupt" else "a last word", running.err)
    else:
        assert isinstance(running, Bridged)
        # Started anew.
        await alice.send("helper", "exit")
        assert (await alice.next()).performative.text == "failure"


WORKERS = """
    import multiprocessing
    import os
    import signal
    import subprocess
    import sys
    import gagent_py


    def square(number):
        print("printed in a worker")
        return number * number


    class Workers(gagent_py.Agent):
        def on_message(self, msg):
            if msg.content == "both":
                return [self.suspend(), self.wake(), self.reply(msg, "inform", "awake")]
            if msg.content == "child":
                marks = [name for name in ("GAGENT_BRIDGE", "GAGENT_NAME") if name in os.environ]
                child = subprocess.run([sys.executable, __file__], stdin=subprocess.DEVNULL, capture_output=True)
                return self.reply(msg, "inform", f"{child.returncode} {marks}")
            if msg.content == "end a child":
                pid = os.fork()
                while pid == 0:
                    signal.pause()
                os.kill(pid, signal.SIGTERM)
                return self.reply(msg, "inform", str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            with multiprocessing.get_context(msg.content).Pool(1) as pool:
                return self.reply(msg, "inform", str(pool.map(square, [2, 3])))


    Workers().run()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
async def test_workers_of_multiprocessing_do_no_harm(launch: Launch, alice: Person, method: str) -> None:
    running = await launch(WORKERS)
    for _ in range(2):
        assert await alice.ask("helper", method) == "[4, 9]"
    assert await alice.state("helper") == "active"
    assert await running.stop() == 0
    assert alice.inbox.empty()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_forked_child_ends_by_the_signals_that_end_any_other(launch: Launch, alice: Person) -> None:
    await launch(WORKERS)
    assert await alice.ask("helper", "end a child") == "-15"


async def test_script_that_is_started_by_a_script_is_no_agent(launch: Launch, alice: Person) -> None:
    await launch(WORKERS)
    # It says how it is run, and finds nothing that would make it this agent once more.
    assert await alice.ask("helper", "child") == "2 []"
    assert await alice.ask("helper", "both") == "awake"


async def test_suspended_agent_that_wakes_itself_goes_on(launch: Launch, alice: Person) -> None:
    await launch(WORKERS)
    assert await alice.ask("helper", "both") == "awake"
    assert await alice.ask("helper", "both") == "awake"
    assert await alice.state("helper") == "active"
