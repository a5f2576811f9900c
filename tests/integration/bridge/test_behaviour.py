"""Scripts by hand that decide for an agent: correlation, ticks, states, and what becomes of messages when they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from script_agents import BY_HAND, WAIT, Bridge, Person, PersonFactory, until

from gagent_grpc import Agent, ClientLimits
from gagent_grpc.bridge.behaviour import RestartPolicy, ScriptBehaviour
from gagent_grpc.bridge.events import Ending
from gagent_grpc.bridge.faults import ScriptExited
from gagent_grpc.server.app import Bus

QUIET = 0
"""No ticks, so that a script which counts events sees messages only."""


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


# --- Correlation ---


async def test_answer_of_a_script_that_knows_no_ids_stays_in_its_conversation(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            if event["event"] == "message":
                send(event["msg"]["sender"], "yes")
            else:
                say(action="noop")
        """,
        by_hand=True,
    )
    await alice.send("helper", conversation_id="k1", protocol="fipa-request", reply_with="q1")
    answer = await alice.next()
    assert (answer.content, answer.conversation_id, answer.protocol, answer.in_reply_to) == (
        "yes",
        "k1",
        "fipa-request",
        "q1",
    )
    assert (await alice.agent.request("helper", "again")).content == "yes"


async def test_answer_with_id_says_for_itself_what_it_belongs_to(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            if event["event"] == "message":
                send(event["msg"]["sender"], "yes", id=event["id"])
            else:
                say(action="noop", id=event["id"])
        """,
        by_hand=True,
    )
    await alice.send("helper", conversation_id="k1", reply_with="q1")
    answer = await alice.next()
    assert (answer.content, answer.conversation_id, answer.in_reply_to) == ("yes", None, None)


async def test_messages_come_one_at_a_time_in_order(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            if event["event"] == "message":
                send(event["msg"]["sender"], event["msg"]["content"])
            else:
                say(action="noop")
        """,
        by_hand=True,
    )
    # In conversations of their own, which handlers of a usual agent would take up side by side.
    for number in range(40):
        await alice.send("helper", str(number), conversation_id=f"k{number % 7}")
    assert [(await alice.next()).content for _ in range(40)] == [str(number) for number in range(40)]


async def test_agent_with_many_handlers_still_gives_one_event_at_a_time(
    bus: Bus, alice: Person, tmp_path: Path
) -> None:
    path = tmp_path / "helper.py"
    path.write_text(
        BY_HAND + "for event in events():\n    send('alice', 'x') if 'msg' in event else say(action='noop')"
    )
    agent = Agent("helper", bus=bus.address, limits=ClientLimits(concurrency=64))

    @agent.on("query-ref")
    async def own(message: Any) -> str:
        return "the agent's own handler"

    behaviour = ScriptBehaviour(agent, "helper", path, tick_ms=QUIET)
    async with agent, asyncio.TaskGroup() as group:
        running = group.create_task(behaviour.run())
        answers = await asyncio.gather(*(alice.agent.request("helper", str(number)) for number in range(20)))
        assert {answer.content for answer in answers} == {"x"}
        mine = await alice.agent.request("helper", performative="query-ref")
        assert mine.content == "the agent's own handler"
        running.cancel()


# --- What a script sends ---

FORWARD = """
    heard = []
    for event in events():
        msg = event.get("msg")
        if msg is None:
            say(action="noop")
        elif msg["performative"] == "request":
            words = msg["content"].split(" ", 2)
            send(words[0], words[2], words[1], id=event["id"])
        else:
            known = {key: msg.get(key) for key in ("performative", "sender", "content", "X-failed-receiver")}
            send("alice", json.dumps(known), id=event["id"])
"""


async def test_message_to_nobody_comes_back_as_failure(bridge: Bridge, alice: Person) -> None:
    await bridge(FORWARD, by_hand=True)
    await alice.send("helper", "nobody request hello")
    failure = json.loads((await alice.next()).content or "")
    assert failure["performative"] == "failure"
    assert failure["sender"] == "ams"
    assert failure["content"].startswith("NO_SUCH_AGENT: registered: alice, helper")
    assert failure["X-failed-receiver"] == "nobody"


async def test_unknown_performative_is_taken_as_noop(
    bridge: Bridge, alice: Person, caplog: pytest.LogCaptureFixture
) -> None:
    await bridge(FORWARD, by_hand=True)
    await alice.send("helper", "alice explain hello")
    await alice.send("helper", "alice inform hello")
    assert (await alice.next()).content == "hello"
    assert alice.inbox.empty()
    assert "unknown performative 'explain'; expected one of: accept-proposal," in caplog.text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("'{\"action\":\"send\",' + ' ' * 7_000_000 + '}'", "a line of 7,000,018 bytes is over the limit"),
        ("'{\"action\":\"noop\",\"x\":' + '[' * 100_000 + ']' * 100_000 + '}'", "JSON nested too deeply"),
        ('\'{"action":"noop","x":NaN}\'', "not strict JSON: NaN"),
    ],
    ids=["over the limit", "too deep", "not strict"],
)
async def test_answer_that_cannot_be_read_is_told_to_the_asker_at_once(
    bridge: Bridge, alice: Person, line: str, reason: str
) -> None:
    """With the time-out that is usual, two minutes, anything but `at once` is too late for this test."""
    await bridge(
        f"""
        for event in events():
            msg = event.get("msg")
            if msg and msg["content"] == "break":
                print({line}, flush=True)
            elif msg:
                send(msg["sender"], msg["content"])
            else:
                say(action="noop")
        """,
        by_hand=True,
        tick_ms=QUIET,
    )
    await alice.send("helper", "break", conversation_id="k1", reply_with="q1")
    failure = await alice.next()
    assert (failure.performative.text, failure.conversation_id, failure.in_reply_to) == ("failure", "k1", "q1")
    assert str(failure.content).startswith(f"the script's answer cannot be read: {reason}")
    assert await alice.ask("helper", "and on") == "and on"
    assert alice.inbox.empty()


async def test_answer_over_the_limit_is_told_to_script_and_asker(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            msg = event.get("msg")
            if msg is None:
                say(action="noop")
            elif msg["performative"] == "request":
                send("alice", "x" * 2_000_000)
            else:
                send("alice", msg["performative"] + " " + msg["content"])
        """,
        by_hand=True,
    )
    await alice.send("helper", conversation_id="k1", reply_with="q1")
    told = [await alice.next(), await alice.next()]
    failure = next(one for one in told if one.performative.text == "failure")
    assert str(failure.content).startswith("the answer cannot be sent: TOO_LARGE: the message has 2,000,")
    assert failure.in_reply_to == "q1"
    heard = next(one for one in told if one is not failure)
    assert str(heard.content).startswith("failure TOO_LARGE: ")


async def test_script_registers_and_withdraws_services(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            msg = event.get("msg")
            if msg is None:
                say(action="noop")
            elif msg["content"] == "offer":
                say(actions=[{"action": "register", "services": ["spell"]},
                             {"action": "send", "to": "alice", "msg": {"performative": "inform", "content": "done"}}])
            else:
                say(actions=[{"action": "deregister"},
                             {"action": "send", "to": "alice", "msg": {"performative": "inform", "content": "done"}}])
        """,
        by_hand=True,
    )
    assert await alice.ask("helper", "offer") == "done"
    (found,) = await alice.agent.df.search_all("spell")
    assert found.name == "helper@local"
    assert await alice.agent.df.search_all("helper") == []
    assert await alice.ask("helper", "withdraw") == "done"
    assert await alice.agent.df.search_all() == []


# --- Ticks ---


async def test_ticks_come_while_it_is_quiet_and_their_answers_count(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        ticks = 0
        for event in events():
            ticks += event["event"] == "tick"
            if ticks == 3:
                ticks += 1
                send("alice", "three ticks")
            else:
                say(action="noop")
        """,
        by_hand=True,
        tick_ms=20,
    )
    assert (await alice.next()).content == "three ticks"


async def test_c06_no_tick_is_made_up_for(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        seen = []
        for event in events():
            seen.append(event["event"] if event["event"] != "message" else event["msg"]["content"])
            if seen[-1] == "0":
                time.sleep(3 * 0.4)  # Three ticks are due meanwhile; the messages that follow are there by then.
            if seen[-1] == "39":
                send("alice", json.dumps(seen[seen.index("0"):]))
            else:
                say(action="noop")
        """,
        by_hand=True,
        tick_ms=400,
    )
    for number in range(40):
        await alice.send("helper", str(number), "inform")
    assert json.loads((await alice.next()).content or "") == [str(number) for number in range(40)]


# --- Suspended, awake, deleted ---

SLEEPER = """
    def wake_up():
        while not os.path.exists("{folder}/go-on"):
            time.sleep(0.01)
        say(action="wake")

    for event in events():
        content = event["msg"]["content"] if "msg" in event else ""
        with open("{folder}/heard", "a") as heard:
            print(content or event["event"], file=heard)
        if content == "sleep":
            threading.Thread(target=wake_up, daemon=True).start()
            say(action="suspend")
        elif content == "wake":
            say(actions=[{{"action": "wake"}}, {{"action": "send", "to": "alice", "msg": {{"performative": "inform", "content": "still up"}}}}])
        elif content == "delete":
            say(action="delete")
        elif content:
            send("alice", content)
        else:
            say(action="noop")
"""

CLOCK = """
    left = 0
    for event in events():
        if "msg" in event:
            left = int(event["msg"]["content"])
        elif event["event"] == "tick" and left:
            left -= 1
            if not left:
                send("alice", "over")
                continue
        say(action="noop")
"""


@pytest.mark.parametrize("who", ["script", "ams"])
async def test_suspended_agent_gets_nothing_until_it_is_woken(
    bridge: Bridge, alice: Person, tmp_path: Path, who: str
) -> None:
    heard = tmp_path / "heard"
    await bridge(SLEEPER.format(folder=tmp_path), by_hand=True, tick_ms=10)
    await bridge(CLOCK, name="clock", by_hand=True, tick_ms=10)

    async def ticked() -> bool:
        return heard.exists() and "tick" in heard.read_text()

    async def suspended() -> bool:
        return await alice.state("helper") == "suspended"

    await until(ticked)
    await alice.send("helper", "sleep", "inform")
    await until(suspended)
    before = heard.read_text()
    assert before.endswith("sleep\n")
    await alice.send("helper", "good morning")
    # The time in which it would have got twenty ticks and the message, were it awake.
    assert await alice.ask("clock", "20") == "over"
    assert heard.read_text() == before
    if who == "script":
        (tmp_path / "go-on").touch()
    else:
        await alice.agent.ams.resume("helper")
    assert (await alice.next()).content == "good morning"
    # One tick may have been due when it awoke; none is made up for.
    since = heard.read_text().removeprefix(before).split("\n")
    assert since[: since.index("good morning")] in ([], ["tick"])
    assert await alice.state("helper") == "active"


async def test_suspended_agent_stops_politely_and_keeps_its_mail(bridge: Bridge, alice: Person) -> None:
    source = """
        for line in sys.stdin.buffer:
            event = json.loads(line)
            if event["event"] == "stop":
                send("alice", "bye")
                break
            say(action="suspend" if event.get("msg", {}).get("content") == "rest" else "noop")
    """
    running = await bridge(source, by_hand=True, tick_ms=QUIET)
    await alice.send("helper", "rest")

    async def is_suspended() -> bool:
        return await alice.state("helper") == "suspended"

    await until(is_suspended)
    await alice.send("helper", "waits")
    assert await running.stop() == 0
    assert (await alice.next()).content == "bye"
    assert alice.inbox.empty()


async def test_wake_of_an_active_agent_does_nothing(bridge: Bridge, alice: Person, tmp_path: Path) -> None:
    await bridge(SLEEPER.format(folder=tmp_path), by_hand=True)
    assert await alice.ask("helper", "wake") == "still up"
    assert await alice.state("helper") == "active"


async def test_delete_frees_name_and_mail(bridge: Bridge, alice: Person, tmp_path: Path) -> None:
    running = await bridge(SLEEPER.format(folder=tmp_path), by_hand=True)
    await alice.send("helper", "delete", "inform")
    assert await running.ending() is Ending.DELETED
    assert await alice.state("helper") == "gone"
    assert await alice.agent.df.search_all() == []
    assert running.agent.behaviour.pid is not None


# --- Late, dead, hanging ---


async def test_c04_late_answer_reaches_its_own_conversation(
    bridge: Bridge, alice: Person, person: PersonFactory, tmp_path: Path
) -> None:
    bob = await person("bob")
    told = tmp_path / "told"
    await bridge(
        f"""
        for event in events():
            msg = event.get("msg")
            if msg is None:
                say(action="noop")
                continue
            while msg["sender"] == "alice" and not os.path.exists({str(told)!r}):
                time.sleep(0.01)
            send(msg["sender"], "for " + msg["conversation_id"])
        """,
        by_hand=True,
        tick_ms=QUIET,
        answer_timeout=1.0,
    )
    await alice.send("helper", conversation_id="a", reply_with="q1")
    await bob.send("helper", conversation_id="b")
    failure = await alice.next()
    assert (failure.performative.text, failure.conversation_id, failure.in_reply_to) == ("failure", "a", "q1")
    assert failure.content == "timeout: no answer within 1 s"
    assert failure.user_parameters["X-automatic"] == "true"
    told.touch()
    late = await alice.next()
    assert (late.content, late.conversation_id) == ("for a", "a")
    answer = await bob.next()
    assert (answer.content, answer.conversation_id) == ("for b", "b")
    assert bob.inbox.empty()


MORTAL = """
    print("a secret on stderr", file=sys.stderr)
    for event in events():
        msg = event.get("msg", {"content": ""})
        if msg["content"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif msg["content"] == "exit":
            sys.exit(int(msg["conversation_id"] or 3))
        elif msg["content"] == "later":
            say(action="noop")
        elif msg["content"]:
            send("alice", "alive")
        else:
            say(action="noop")
"""


async def test_c05d_message_that_kills_the_script_is_answered_with_failure(bridge: Bridge, alice: Person) -> None:
    running = await bridge(MORTAL, by_hand=True)
    first = running.agent.behaviour.pid
    await alice.send("helper", "die", conversation_id="k1", reply_with="q1")
    failure = await alice.next()
    assert failure.performative.text == "failure"
    assert failure.content == "the script ended (killed by SIGKILL)"
    assert (failure.conversation_id, failure.in_reply_to) == ("k1", "q1")
    assert failure.user_parameters["X-automatic"] == "true"
    assert await alice.ask("helper", "hello") == "alive"
    assert running.agent.behaviour.pid != first
    assert await alice.state("helper") == "active"
    entry = await alice.entry("helper")
    assert entry is not None
    assert entry.mailbox_messages == 0


async def test_requests_that_wait_for_an_answer_fail_with_the_script(bridge: Bridge, alice: Person) -> None:
    await bridge(MORTAL, by_hand=True)
    await alice.send("helper", "later", conversation_id="k1")
    await alice.send("helper", "die", "inform", conversation_id="k2")
    told = {str((message := await alice.next()).conversation_id): message for _ in range(2)}
    assert {message.performative.text for message in told.values()} == {"failure"}
    assert set(told) == {"k1", "k2"}


async def test_script_that_dies_too_often_is_given_up(bridge: Bridge, alice: Person) -> None:
    running = await bridge(MORTAL, by_hand=True, restart=RestartPolicy(restarts=1, period=60))
    await alice.send("helper", "exit")
    await alice.send("helper", "exit", conversation_id="4")
    await alice.send("helper", "hello")
    with pytest.raises(ScriptExited, match=r"(?s)exit code 4\).*a secret on stderr"):
        await running.ending()
    failures = [await alice.next(), await alice.next()]
    assert [failure.content for failure in failures] == [
        "the script ended (exit code 3)",
        "the script ended (exit code 4)",
    ]
    # What no run has seen waits for the next one.
    entry = await alice.entry("helper")
    assert entry is not None
    assert entry.mailbox_messages == 1


async def test_script_that_may_not_be_restarted_is_given_up_at_once(bridge: Bridge, alice: Person) -> None:
    running = await bridge(MORTAL, by_hand=True, restart=RestartPolicy(restarts=0))
    await alice.send("helper", "exit")
    with pytest.raises(ScriptExited, match="exit code 3"):
        await running.ending()
    assert (await alice.next()).performative.text == "failure"


async def test_script_that_ends_well_on_a_message_ends_the_agent_and_not_the_asker(
    bridge: Bridge, alice: Person
) -> None:
    running = await bridge(MORTAL, by_hand=True)
    await alice.send("helper", "later", conversation_id="k1")
    await alice.send("helper", "exit", conversation_id="0")
    assert await running.ending() is Ending.STOPPED
    told = {message.conversation_id: message.content for message in (await alice.next(), await alice.next())}
    assert told == {"0": "the script ended (exit code 0)", "k1": "the agent ended before it answered"}


async def test_script_that_hangs_is_killed_and_its_mail_goes_to_the_next_run(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            content = event["msg"]["content"] if "msg" in event else ""
            if content == "hang":
                time.sleep(600)
            elif content:
                send("alice", "alive")
            else:
                say(action="noop")
        """,
        by_hand=True,
        tick_ms=QUIET,
        answer_timeout=0.3,
    )
    await alice.send("helper", "hang")
    assert (await alice.next()).content == "timeout: no answer within 0.3 s"
    assert await alice.ask("helper", "hello") == "alive"
