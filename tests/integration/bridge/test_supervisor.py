"""Whole script agents on a bus: how they come, what they hear and say, how they go."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from script_agents import ROOT, WAIT, Bridge, Person, PersonFactory, script_file, until

from gagent_grpc import Agent
from gagent_grpc.bridge import behaviour
from gagent_grpc.bridge.events import Ending
from gagent_grpc.bridge.faults import ScriptExited, ScriptTimeout
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusUnreachable,
    ConfigurationError,
    InvalidName,
    ScriptError,
)
from gagent_grpc.server.app import Bus


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


ECHO = """
    for event in events():
        if event["event"] == "message":
            send(event["msg"]["sender"], event["msg"]["content"])
        else:
            say(action="noop")
"""

# --- Coming ---


async def test_agent_is_initiated_until_start_was_answered(bus: Bus, alice: Person, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    source = f"""
import json, os, sys, time
start = json.loads(sys.stdin.readline())
while not os.path.exists({str(go_on)!r}):
    time.sleep(0.01)
print(json.dumps({{"action": "send", "to": "alice", "msg": {{"performative": "inform", "content": json.dumps(start)}}}}))
sys.stdin.read()
"""
    agent = ScriptAgent(
        script_file(tmp_path, source, "helper", ".py"),
        bus=bus.address,
        services=["summarise"],
        ownership="ops",
        system_prompt="Be brief.",
        config={"team": "blue", "model": "not this way", "event": "nor this"},
    )
    running = asyncio.create_task(agent.run())

    async def registered() -> bool:
        return await alice.entry("helper") is not None

    await until(registered)
    assert await alice.state("helper") == "initiated"
    assert not agent.ready.is_set()
    assert await alice.agent.df.search_all() == []
    # Mail that comes meanwhile waits.
    await alice.send("helper", "early", "inform")
    go_on.touch()
    start = (await alice.next()).content
    assert start == (
        '{"event": "start", "system_prompt": "Be brief.", "model": "gpt-4o-mini", "max_tokens": 200,'
        ' "max_history": 20, "name": "helper", "team": "blue", "id": 1}'
    )
    assert agent.ready.is_set()
    entry = await alice.entry("helper")
    assert entry is not None
    assert (str(entry.description.state), entry.description.ownership) == ("active", "ops")
    assert [found.name for found in await alice.agent.df.search_all("summarise")] == ["helper@local"]
    running.cancel()
    await asyncio.wait({running})


async def test_service_is_the_agents_name_by_default(bridge: Bridge, alice: Person) -> None:
    await bridge(ECHO, by_hand=True)
    (found,) = await alice.agent.df.search_all("helper")
    assert [service.type for service in found.services] == ["helper"]


FAULTS = {
    "c05a_missing_module": ("import not_there\n", r"(?s)exit code 1\).*No module named 'not_there'"),
    "c05b_exit_with_last_words": (
        "import sys\nprint('OPENAI_API_KEY missing', file=sys.stderr)\nsys.exit(3)\n",
        r"(?s)exit code 3\).*OPENAI_API_KEY missing",
    ),
    "end_without_an_answer": ("", r"ended before it answered `start`; is `\.run\(\)` missing\? \(exit code 0\)"),
    "death_at_start": ("import os\nos.kill(os.getpid(), 9)\n", "killed by SIGKILL"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_script_that_does_not_start_leaves_no_name(bus: Bus, alice: Person, tmp_path: Path, fault: str) -> None:
    source, text = FAULTS[fault]
    agent = ScriptAgent(script_file(tmp_path, source, "helper", ".py"), bus=bus.address)
    with pytest.raises(ScriptExited, match=text):
        await agent.run()
    assert not agent.ready.is_set()
    assert await alice.state("helper") == "gone"


async def test_c05c_missing_script_is_told(bus: Bus, alice: Person, tmp_path: Path) -> None:
    agent = ScriptAgent(tmp_path / "helper.py", bus=bus.address)
    with pytest.raises(ScriptError, match=r"no such script: .*helper\.py"):
        await agent.run()
    assert await alice.state("helper") == "gone"


async def test_c05f_given_variables_are_added(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        import shutil
        for event in events():
            told = f"{os.environ['MODEL']} {shutil.which('ls') is not None} {'GAGENT_NAME' in os.environ}"
            send("alice", told) if "msg" in event else say(action="noop")
        """,
        by_hand=True,
        env={"MODEL": "x"},
    )
    assert await alice.ask("helper") == "x True False"


async def test_script_that_never_answers_start_is_told(bus: Bus, alice: Person, tmp_path: Path) -> None:
    path = script_file(tmp_path, "import sys\nsys.stdin.read()\n", "helper", ".py")
    with pytest.raises(ScriptTimeout, match=r"did not answer `start` within 0\.3 s"):
        await ScriptAgent(path, bus=bus.address, answer_timeout=0.3).run()
    assert await alice.state("helper") == "gone"


async def test_script_that_is_slow_to_answer_start_is_told_of_meanwhile(
    bus: Bus, alice: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(behaviour, "START_WARNING_S", 0.05)
    agent = ScriptAgent(script_file(tmp_path, "import sys\nsys.stdin.read()\n", "helper", ".py"), bus=bus.address)
    running = asyncio.create_task(agent.run())

    async def told() -> bool:
        return "helper has not answered its start event yet; prints to stdout must be JSON lines" in caplog.text

    await until(told)
    running.cancel()
    await asyncio.wait({running})


async def test_name_that_existed_stays_when_the_script_does_not_start(bus: Bus, alice: Person, tmp_path: Path) -> None:
    await alice.agent.ams.register("helper", ownership="somebody")
    await alice.send("helper", "waits", "inform")
    with pytest.raises(ScriptExited):
        await ScriptAgent(script_file(tmp_path, "", "helper", ".py"), bus=bus.address).run()
    entry = await alice.entry("helper")
    assert entry is not None
    assert entry.mailbox_messages == 1


async def test_script_that_does_not_start_leaves_the_agent_that_took_its_name(
    bus: Bus, alice: Person, person: PersonFactory, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    source = f"""
import os, sys, time
while not os.path.exists({str(go_on)!r}):
    time.sleep(0.01)
sys.exit(3)
"""
    running = asyncio.create_task(ScriptAgent(script_file(tmp_path, source, "helper", ".py"), bus=bus.address).run())

    async def registered() -> bool:
        return await alice.entry("helper") is not None

    await until(registered)
    other = await person("helper")
    go_on.touch()
    with pytest.raises(ScriptExited):
        await running
    await alice.send("helper", "still there?")
    assert (await other.next()).content == "still there?"


async def test_name_of_a_live_agent_is_refused_before_the_script_is_started(
    bridge: Bridge, bus: Bus, alice: Person, tmp_path: Path
) -> None:
    await bridge(ECHO, by_hand=True)
    mark = tmp_path / "started"
    second = script_file(tmp_path, f"open({str(mark)!r}, 'w')\n", "second", ".py")
    with pytest.raises(AgentAlreadyRegistered, match="a live session holds the name"):
        await ScriptAgent(second, name="helper", bus=bus.address).run()
    assert not mark.exists()
    assert await alice.ask("helper", "hello") == "hello"


async def test_no_bus_is_told_with_the_way_out(tmp_path: Path) -> None:
    agent = ScriptAgent(script_file(tmp_path, "", "helper", ".py"), bus="127.0.0.1:1")
    with pytest.raises(BusUnreachable, match=r"No bus at 127\.0\.0\.1:1\. Start one: gagent serve"):
        await agent.run()


def test_arguments_that_make_no_agent_are_told() -> None:
    with pytest.raises(ConfigurationError, match="neither script nor command"):
        ScriptAgent()
    with pytest.raises(ConfigurationError, match="expected --name NAME"):
        ScriptAgent(command=["cat"])
    with pytest.raises(InvalidName, match="my agent"):
        ScriptAgent("my agent.py")


# --- Going ---

FAREWELL = """
    import gagent_py

    class Farewell(gagent_py.Agent):
        def on_message(self, msg):
            return self.reply(msg, "inform", msg.content)

        def on_stop(self):
            return self.send("alice", "inform", "bye")

    Farewell().run()
"""


async def test_cancelled_agent_stops_politely_and_its_last_words_are_sent(bridge: Bridge, alice: Person) -> None:
    running = await bridge(FAREWELL)
    assert await alice.ask("helper", "hello") == "hello"
    assert await running.stop() == 0
    assert (await alice.next()).content == "bye"
    # Name and mail stay, the services do not.
    await alice.send("helper", "later")
    assert await alice.agent.df.search_all() == []
    await bridge(FAREWELL)
    assert (await alice.next()).content == "later"


async def test_mail_of_a_stopped_agent_comes_in_order_and_once(bridge: Bridge, alice: Person) -> None:
    running = await bridge(ECHO, by_hand=True)
    await running.stop()
    for number in range(20):
        await alice.send("helper", str(number), conversation_id=f"k{number % 3}")
    await bridge(ECHO, by_hand=True)
    assert [(await alice.next()).content for _ in range(20)] == [str(number) for number in range(20)]
    assert await alice.ask("helper", "last") == "last"


async def test_message_in_hand_of_a_script_that_must_be_killed_comes_again(bridge: Bridge, alice: Person) -> None:
    source = """
        import time
        for event in events():
            if "msg" in event:
                time.sleep(600)
            say(action="noop")
    """
    running = await bridge(source, by_hand=True, grace=0.1)
    await alice.send("helper", "unlucky")
    process = running.agent.behaviour._process
    assert process is not None

    async def in_hand() -> bool:
        return process.owes

    await until(in_hand)
    await running.stop()
    await bridge(ECHO, by_hand=True)
    assert (await alice.next()).content == "unlucky"


async def test_end_with_exit_code_0_is_a_polite_stop(bridge: Bridge, alice: Person) -> None:
    running = await bridge("next(events()); say(action='noop'); send('alice', 'done')", by_hand=True)
    assert await running.ending() is Ending.STOPPED
    assert (await alice.next()).content == "done"
    await alice.send("helper", "waits", "inform")
    entry = await alice.entry("helper")
    assert entry is not None
    assert (entry.connected, entry.mailbox_messages) == (False, 1)


async def test_terminated_agent_ends_its_script(bridge: Bridge, alice: Person) -> None:
    running = await bridge(ECHO, by_hand=True)
    pid = running.agent.behaviour.pid
    assert pid is not None
    await alice.agent.ams.terminate("helper")
    assert await running.ending() is Ending.TERMINATED
    assert not psutil.pid_exists(pid)


async def test_c07_hard_to_kill_script_is_gone_within_the_bound(bridge: Bridge, alice: Person) -> None:
    running = await bridge(
        """
        import subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        for line in sys.stdin:
            event = json.loads(line)
            send("alice", str(child.pid)) if "msg" in event else say(action="noop")
        while True:
            time.sleep(1)
        """,
        by_hand=True,
        grace=0.2,
    )
    child = int(await alice.ask("helper"))
    pid = running.agent.behaviour.pid
    assert pid is not None
    async with asyncio.timeout(8):
        await running.stop()
    assert not psutil.pid_exists(pid)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


async def test_nothing_is_left_after_many_rounds(bus: Bus, alice: Person, tmp_path: Path) -> None:
    path = script_file(
        tmp_path,
        'while read -r line; do [[ $line == *stop* ]] && exit; echo \'{"action":"noop"}\'; done\n',
        "helper",
        ".sh",
    )

    async def one_round() -> None:
        agent = ScriptAgent(path, bus=bus.address)
        running = asyncio.create_task(agent.run())
        await agent.ready.wait()
        running.cancel()
        await asyncio.wait({running})

    await one_round()
    held = len(os.listdir("/proc/self/fd")), asyncio.all_tasks()
    for _ in range(10):
        await one_round()

    async def settled() -> bool:
        # The bus is in this process, too, and its calls end a little after the agents that made them.
        return len(os.listdir("/proc/self/fd")) <= held[0] + 2 and len(asyncio.all_tasks() - held[1]) <= 2

    await until(settled)
    assert psutil.Process().children() == []


# --- Field cases, from the script to another agent's inbox ---


async def test_c01_chatty_script(bridge: Bridge, alice: Person, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await bridge(
            """
            print("Loading model weights: 100%|##########| 3/3\\n\\n[2026-03-01 10:00:00] INFO ready")
            for event in events():
                if "msg" in event:
                    print("debug: got", event["msg"])
                    send("alice", "hello")
                else:
                    say(action="noop")
            """,
            by_hand=True,
        )
        await alice.send("helper", conversation_id="k1")
        answer = await alice.next()
    assert (answer.performative.text, answer.content, answer.conversation_id) == ("inform", "hello", "k1")
    assert alice.inbox.empty()
    noise = [record for record in caplog.records if record.name.startswith("gagent_grpc.bridge")]
    assert len(noise) == 3
    assert all(record.levelno == logging.WARNING and record.message.startswith("helper: ") for record in noise)
    assert await alice.state("helper") == "active"


HOSTILE_TEXT = "one\u2028two\u2029three\u0085four\u000bfive\u000csix\u001cseven\rend \U0001f600"


@pytest.mark.parametrize("language", ["python", "node", "client"])
async def test_c02_line_separators_that_are_not_newlines(
    bridge: Bridge, bus: Bus, alice: Person, language: str
) -> None:
    if language == "client":
        other = Agent("helper", bus=bus.address)

        @other.on("request")
        async def echo(message: Any) -> Any:
            return message.content

        async with other:
            assert await alice.ask("helper", HOSTILE_TEXT) == HOSTILE_TEXT
        return
    if language == "node":
        if shutil.which("node") is None:
            pytest.skip("node is not installed")
        await bridge(ROOT / "agent_scripts" / "node" / "echo.js")
    else:
        # Raw: every character that JSON allows unescaped is written as it is.
        await bridge(
            """
            for event in events():
                if "msg" not in event:
                    say(action="noop")
                    continue
                msg = {"performative": "inform", "content": event["msg"]["content"]}
                line = json.dumps({"action": "send", "to": "alice", "msg": msg}, ensure_ascii=False)
                sys.stdout.buffer.write(line.encode() + b"\\n")
                sys.stdout.buffer.flush()
            """,
            by_hand=True,
        )
    assert await alice.ask("helper", HOSTILE_TEXT) == HOSTILE_TEXT


@pytest.mark.parametrize("env", [{}, {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}])
async def test_c03_bytes_as_other_systems_write_them(bridge: Bridge, alice: Person, env: dict[str, str]) -> None:
    running = await bridge(
        r"""
        next(events())
        for line in (
            b'\xef\xbb\xbf{"action":"noop"}\r\n',
            b'\n',
            b'   \r\n',
            b'{"action":"noop","note":"\xff\xfe"}\n',
            b'{"action":"send","to":"alice","msg":{"performative":"inform","content":"caf\xc3\xa9"}}\r\n',
            b'{"action":"send","to":"alice","msg":{"performative":"inform","content":"last"}}',
        ):
            os.write(1, line)
        """,
        by_hand=True,
        env=env,
    )
    assert await running.ending() is Ending.STOPPED
    assert [(await alice.next()).content, (await alice.next()).content] == ["café", "last"]
    assert alice.inbox.empty()


async def test_agent_of_a_command(bus: Bus, alice: Person) -> None:
    script = ROOT / "agent_scripts" / "bash" / "shout.sh"
    agent = ScriptAgent(name="shout", command=["bash", str(script)], bus=bus.address)
    running = asyncio.create_task(agent.run())
    await agent.ready.wait()
    assert await alice.ask("shout", 'say "hi"\\\n\u00e9') == 'say "hi"\\\n\u00e9!'
    assert (await alice.agent.request("shout", "and again")).content == "and again!"
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("turns", range(0, 60, 4))
async def test_agent_cancelled_at_any_moment_leaves_nothing(
    bus: Bus, alice: Person, tmp_path: Path, turns: int
) -> None:
    agent = ScriptAgent(script_file(tmp_path, FAREWELL, "helper", ".py"), bus=bus.address)
    running = asyncio.create_task(agent.run())
    if turns < 30:
        for _ in range(turns):
            await asyncio.sleep(0)
    else:
        await agent.ready.wait()
        for _ in range(turns - 30):
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert psutil.Process().children() == []

    async def disconnected() -> bool:
        entry = await alice.entry("helper")
        return entry is None or not entry.connected

    await until(disconnected)
