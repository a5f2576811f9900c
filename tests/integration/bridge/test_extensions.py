"""Scripts that delegate tasks, work on tasks and speak ACP, under the bridge and by themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from script_agents import WAIT, Bridge, Launch, Person, PersonFactory, until

from gagent_grpc import ACPMessage, OnExecutorLost, TaskEventKind, TaskFailed, TaskRejected, TaskState


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


WORKER = """
    import os
    import gagent_py


    class Worker(gagent_py.Agent):
        def on_start(self):
            self.kept = {}

        def on_delegate(self, task):
            what = task.description
            if what == "count":
                counts = [len(text.split()) for text in task.parameters["texts"]]
                return [
                    self.progress(task, 0.5, "half"),
                    self.output(task, "one part", "log"),
                    self.save(task, {"counted": counts}),
                    self.complete(task, {"counts": counts, "parameters": task.parameters, "attempt": task.attempt}),
                ]
            if what == "null":
                return self.complete(task)
            if what == "ask":
                return self.ask(task, "which one?")
            if what == "keep":
                self.kept[task.task_id] = task
                return [self.progress(task, 0.0), self.send("alice", "inform", f"kept {task.task_id} {task.checkpoint}")]
            if what == "fail":
                return self.fail(task, "cannot")
            if what == "reject":
                return self.reject(task, "no thanks")
            if what == "crash":
                raise RuntimeError("with a secret")
            if what == "mistake":
                return self.progress(task, 2)
            if what == "nan":
                return self.complete(task, float("nan"))
            if what == "die":
                os._exit(3)

        def on_task(self, event):
            if event.kind == "answer":
                return self.complete(event, {"answer": event.value})
            if event.kind == "cancel":
                return self.send("alice", "inform", f"cancelled {event.task_id}: {event.reason}")
            if event.kind == "signal":
                return self.send("alice", "inform", f"signal {event.name} {event.value}")

        def on_message(self, msg):
            if msg.content == "die":
                os._exit(3)
            if msg.performative == "request":
                return self.reply(msg, "inform", "a message")
            if msg.content and msg.content.startswith("finish "):
                task = self.kept.pop(msg.content[7:], msg.content[7:])
                return self.complete(task, "finished")
            if msg.content and msg.content.startswith("save "):
                return [self.save(msg.content[5:], {"part": 7}), self.send("alice", "inform", "saved")]


    Worker().run()
"""


async def test_script_works_on_a_task_and_tells_how_far_it_is(launch: Launch, alice: Person) -> None:
    await launch(WORKER)
    parameters = {"texts": ["one two", "three"], "ratio": 3.0, "limit": 3, "ticket": 9007199254740993}
    parameters |= {"neg": -0.5, "flags": [True, None, ""], "empty": {}, "list": []}
    task = await alice.agent.delegate("role:helper", "count", parameters)
    told = [event async for event in task.events()]
    result = await task.result()
    assert json.dumps(result) == json.dumps({"counts": [2, 1], "parameters": parameters, "attempt": 1})
    assert [(one.progress, one.note) for one in told if one.kind is TaskEventKind.PROGRESS] == [(0.5, "half")]
    assert [(one.text, one.channel) for one in told if one.kind is TaskEventKind.OUTPUT] == [("one part", "log")]
    assert (await task.get()).checkpoint == {"counted": [2, 1]}
    # It is an agent for messages all the same.
    assert await alice.ask("helper") == "a message"


async def test_every_end_of_a_task(launch: Launch, alice: Person) -> None:
    await launch(WORKER)
    assert await (await alice.agent.delegate("helper", "null")).result() is None
    ends = {
        "fail": (TaskFailed, "cannot"),
        "reject": (TaskRejected, "no thanks"),
        "crash": (TaskFailed, "internal-error: RuntimeError; see the log of the script's agent"),
        "mistake": (TaskFailed, "internal-error: ValueError: fraction is 2; expected a number from 0 to 1"),
        "nan": (
            TaskFailed,
            "internal-error: ValueError: result holds NaN, an infinity or itself; expected what JSON can say",
        ),
    }
    for what, (kind, reason) in ends.items():
        task = await alice.agent.delegate("helper", what)
        with pytest.raises(kind):
            await task.result()
        assert task.latest is not None
        assert task.latest.reason == reason


async def test_script_asks_and_hears_the_answer(bridge: Bridge, alice: Person) -> None:
    await bridge(WORKER)
    task = await alice.agent.delegate("helper", "ask")
    async for event in task.events():
        if event.state is TaskState.INPUT_REQUIRED:
            assert event.question == "which one?"
            await task.answer(None)
    assert await task.result() == {"answer": None}


async def test_task_in_hand_ends_in_the_answer_to_a_later_event(launch: Launch, alice: Person) -> None:
    await launch(WORKER)
    first = await alice.agent.delegate("helper", "keep", task_id="T-1")
    assert (await alice.next()).content == "kept T-1 None"
    second = await alice.agent.delegate("helper", "keep", task_id="T-2")
    assert (await alice.next()).content == "kept T-2 None"
    await second.signal("hurry", {"please": 1})
    assert (await alice.next()).content == "signal hurry {'please': 1}"
    await alice.send("helper", "finish T-2", "inform")
    assert await second.result() == "finished"
    cancelled = await first.cancel("not needed")
    assert (await alice.next()).content == "cancelled T-1: not needed"
    assert (await first.wait()).state is TaskState.CANCELLED
    assert cancelled.cancel_requested
    # What comes too late does no harm.
    await alice.send("helper", "finish T-1", "inform")
    assert await alice.ask("helper") == "a message"
    assert (await first.get()).state is TaskState.CANCELLED


async def test_tasks_of_two_delegators_with_one_id_are_kept_apart(
    bridge: Bridge, alice: Person, person: PersonFactory
) -> None:
    bob = await person("bob")
    await bridge(WORKER)
    own = await alice.agent.delegate("helper", "keep", task_id="T-1")
    await alice.next()
    other = await bob.agent.delegate("helper", "keep", task_id="T-1")
    await alice.next()
    await alice.send("helper", "finish T-1", "inform")
    # The script kept the one that came last, and an object of the library says whose it is.
    assert await other.result() == "finished"
    await alice.send("helper", "finish T-1", "inform")
    assert await own.result() == "finished"


async def test_task_in_hand_of_a_script_that_dies_fails(bridge: Bridge, alice: Person) -> None:
    await bridge(WORKER)
    kept = await alice.agent.delegate("helper", "keep", task_id="T-1")
    await alice.next()
    task = await alice.agent.delegate("helper", "die")
    for one in (kept, task):
        with pytest.raises(TaskFailed):
            await one.result()
        assert one.latest is not None
        assert one.latest.reason == "the script ended (exit code 3)"
    assert await alice.ask("helper") == "a message"


async def test_task_that_may_be_delivered_again_goes_to_the_next_run(bridge: Bridge, alice: Person) -> None:
    await bridge(WORKER)
    task = await alice.agent.delegate(
        "helper", "keep", task_id="T-1", on_executor_lost=OnExecutorLost.REDELIVER, max_attempts=2
    )
    assert (await alice.next()).content == "kept T-1 None"
    await alice.send("helper", "save T-1", "inform")
    assert (await alice.next()).content == "saved"
    await alice.send("helper", "die", "inform")
    # What becomes of the message that it died on, and of the task.
    assert {(await alice.next()).content for _ in range(2)} == {
        "the script ended (exit code 3)",
        "kept T-1 {'part': 7}",
    }
    await alice.send("helper", "finish T-1", "inform")
    assert await task.result() == "finished"


async def test_stop_ends_what_is_in_hand(launch: Launch, alice: Person) -> None:
    running = await launch(WORKER)
    task = await alice.agent.delegate("helper", "keep")
    await alice.next()
    assert await running.stop() == 0
    with pytest.raises(TaskFailed):
        await task.result()
    assert task.latest is not None
    assert task.latest.reason == "the agent ended before it answered"


async def test_die_in_direct_mode_is_a_lost_executor_and_exit_a_failure(launch: Launch, alice: Person) -> None:
    source = WORKER.replace("os._exit(3)", "raise SystemExit(0)")
    running = await launch(source)
    task = await alice.agent.delegate("helper", "die")
    assert await running.wait() == 0
    with pytest.raises(TaskFailed):
        await task.result()
    assert task.latest is not None
    assert task.latest.reason == "the script ended (exit code 0)"


async def test_task_that_is_cancelled_while_its_hook_blocks(launch: Launch, alice: Person, tmp_path: Path) -> None:
    await launch(f"""
        import os
        import time
        import gagent_py

        class Slow(gagent_py.Agent):
            def on_delegate(self, task):
                open({str(tmp_path / "began")!r}, "a").close()
                while not os.path.exists({str(tmp_path / "go")!r}):
                    time.sleep(0.01)
                if task.description == "complete":
                    return [self.complete(task, 1), self.send("alice", "inform", "done")]

            def on_task(self, event):
                return self.send("alice", "inform", f"{{event.kind}} {{event.task_id}} {{event.reason}}")

        Slow().run()
    """)
    task = await alice.agent.delegate("helper", "keep", task_id="T-1")
    # Never given, so that the script never hears of it.
    waiting = await alice.agent.delegate("helper", "keep", task_id="T-2")
    other = await alice.agent.delegate("helper", "complete", task_id="T-3")
    await until((tmp_path / "began").exists)
    for one in (task, waiting):
        await one.cancel("enough")
        assert (await one.wait()).state is TaskState.CANCELLED
    (tmp_path / "go").touch()
    # Its delegator hears at once, and the script when its hook has returned.
    heard = {str((await alice.next()).content) for _ in range(2)}
    assert heard == {"cancel T-1 enough", "done"}
    assert await other.result() == 1
    assert alice.inbox.empty()


# --- Without the extensions ---


async def test_script_without_the_hook_gets_a_request(bridge: Bridge, alice: Person) -> None:
    await bridge("""
        import gagent_py

        class Plain(gagent_py.Agent):
            def on_message(self, msg):
                return self.reply(msg, "inform", f"{msg.performative} {msg.content}")

        Plain().run()
    """)
    task = await alice.agent.delegate("helper", "the dishes")
    assert await task.result() == "request the dishes"


# --- Delegating ---

BOSS = """
    import gagent_py


    class Boss(gagent_py.Agent):
        def on_message(self, msg):
            if msg.performative != "request":
                return None
            self.asked, self.told = msg, []
            target, _, what = msg.content.partition(" ")
            return self.delegate(target, what, {"texts": ["a b"]}, deadline=60)

        def on_task(self, event):
            if event.kind == "question":
                return self.answer_task(event, "the blue one")
            self.told.append(event.kind)
            if event.is_end:
                end = event.result if event.kind == "result" else f"{event.state}: {event.reason}"
                return self.reply(self.asked, "inform", f"{self.told} {end}")


    Boss().run()
"""


async def test_script_delegates_and_follows(launch: Launch, bridge: Bridge, alice: Person) -> None:
    await bridge(WORKER, name="worker")
    await launch(BOSS)
    told = str(await alice.ask("helper", "role:worker count"))
    assert told.startswith("['accepted', 'progress', 'output', 'result'] {'counts': [2]")


ENDS = {
    "worker ask": "['accepted', 'result'] {'answer': 'the blue one'}",
    "worker fail": "['accepted', 'error'] failed: cannot",
    "worker reject": "['accepted', 'error'] rejected: no thanks",
    "nobody count": "['error'] rejected: nobody: not registered with the AMS",
    "role:none count": "['error'] rejected: nobody who is connected offers a service of the type 'none'",
}


async def test_script_hears_how_its_tasks_ended(bridge: Bridge, alice: Person) -> None:
    await bridge(WORKER, name="worker")
    await bridge(BOSS)
    for asked, told in ENDS.items():
        heard = str(await alice.ask("helper", asked))
        assert heard.startswith(told), heard


async def test_script_without_the_hook_hears_messages(bridge: Bridge, alice: Person) -> None:
    await bridge(WORKER, name="worker")
    await bridge("""
        import gagent_py

        class Plain(gagent_py.Agent):
            def on_message(self, msg):
                if msg.performative == "request":
                    return self.delegate("worker", msg.content, {"texts": ["a b"]}, task_id="T-1")
                return self.send("alice", "inform", f"{msg.performative} {msg.sender} {msg.conversation_id} {msg.content}")

        Plain().run()
    """)
    await alice.send("helper", "count")
    assert (await alice.next()).content == "agree worker T-1 "
    assert str((await alice.next()).content).startswith('inform worker T-1 {"counts":[2]')
    await alice.send("helper", "fail")
    # The id of before with another description: refused, and said so.
    refused = str((await alice.next()).content)
    assert refused.startswith("refuse ams T-1 "), refused


async def test_script_delegates_to_itself(bridge: Bridge, alice: Person) -> None:
    await bridge("""
        import gagent_py

        class Both(gagent_py.Agent):
            def on_message(self, msg):
                self.asked = msg
                return self.delegate("helper", "own", {"n": 3})

            def on_delegate(self, task):
                return self.complete(task, task.parameters)

            def on_task(self, event):
                if event.is_end:
                    return self.reply(self.asked, "inform", f"{event.kind} {event.result}")

        Both().run()
    """)
    assert await alice.ask("helper") == "result {'n': 3}"


async def test_part_of_a_task_ends_with_it(bridge: Bridge, alice: Person) -> None:
    await bridge(WORKER, name="worker")
    await bridge("""
        import gagent_py

        class Middle(gagent_py.Agent):
            def on_delegate(self, task):
                return self.delegate("worker", "keep", task_id="part", parent=task)

        Middle().run()
    """)
    whole = await alice.agent.delegate("helper", "whole", task_id="whole")
    assert (await alice.next()).content == "kept part None"
    await whole.cancel("enough")
    assert str((await alice.next()).content).startswith("cancelled part")
    assert (await whole.wait()).state is TaskState.CANCELLED


# --- By hand ---


async def test_script_by_hand_serves_tasks(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            if event["event"] == "start":
                say(action="noop", extensions=["delegate", "unheard-of"])
            elif event["event"] == "delegate":
                say(action="complete", result=sorted(event))
            else:
                say(action="noop")
        """,
        by_hand=True,
    )
    task = await alice.agent.delegate("helper", "work", {"a": 1}, deadline=60)
    keys = "attempt deadline delegator description event id parameters target task_id"
    assert await task.result() == keys.split()


NASTY: list[dict[str, Any]] = [
    {"action": "complete", "task_id": "T-none", "result": 1},
    {"action": "complete"},
    {"action": "answer", "task_id": "T-none", "value": 1},
    {"action": "cancel", "task_id": "x" * 10_000},
    {"action": "delegate", "target": "not a name!"},
    {"action": "delegate", "target": "alice", "task_id": "x" * 10_000},
    {"action": "delegate", "target": "alice", "description": "large"},
    {"action": "delegate", "target": "alice", "deadline": 1e9},
    {"action": "delegate", "target": "alice", "deadline": "0001-01-01T00:00:00Z"},
    {"action": "delegate", "target": "alice", "parent": "T-none"},
    {"action": "acp", "msg": {"type": "response", "content": 1}},
    {"action": "acp", "msg": {"type": "request", "target": "not a name!"}},
    {"action": "acp", "msg": {"type": "request", "target": "alice", "metadata": {"ttl": 1e300}}},
    {"action": "acp", "msg": {"type": "request", "target": "alice", "timestamp": "0001-01-01T00:00:00Z"}},
    {"action": "acp", "msg": {"type": "request", "target": "alice", "signature": "x"}},
    {"action": "acp", "msg": {"type": "delegate", "target": "alice", "content": 7}},
    {"action": "acp", "msg": {"type": "request", "target": "alice", "id": "x" * 100_000}},
    {"action": "acp", "msg": {"type": "request", "target": "alice", "content": "large"}},
    {"action": "register", "services": [{"type": "x" * 100_000}]},
]


async def test_nothing_that_a_script_says_ends_its_agent(bridge: Bridge, alice: Person) -> None:
    await bridge(
        """
        for event in events():
            if event["event"] == "start":
                say(action="noop", extensions=["delegate", "task", "acp"])
            elif event["event"] == "message" and event["msg"]["performative"] == "request":
                # Larger than any message may be.
                actions = json.loads(event["msg"]["content"].replace('"large"', '"' + "x" * 2_000_000 + '"'))
                pong = {"action": "send", "to": "alice", "msg": {"performative": "inform", "content": "pong"}}
                print(json.dumps([*actions, pong]), flush=True)
            else:
                say(action="noop")
        """,
        by_hand=True,
    )
    for nasty in NASTY:
        await alice.send("helper", json.dumps([nasty]))
        while (heard := await alice.next()).content != "pong":
            assert heard.performative.text in ("request", "inform", "failure", "not-understood"), heard
    assert await alice.state("helper") == "active"


# --- Services ---


async def test_services_change_with_the_script(bridge: Bridge, alice: Person) -> None:
    await bridge("""
        import gagent_py

        class Shop(gagent_py.Agent):
            def on_message(self, msg):
                if msg.content == "close":
                    return [self.deregister(), self.reply(msg, "inform", "done")]
                return [
                    self.register(["bread", {"type": "cake", "properties": {"price": "3"}}]),
                    self.reply(msg, "inform", "done"),
                ]

        Shop().run()
    """)
    await alice.ask("helper", "open")
    for kind in ("bread", "cake"):
        assert [one.name for one in await alice.agent.df.search_all(kind)] == ["helper@local"]
    assert await alice.agent.df.search_all("helper") == []
    await alice.ask("helper", "close")
    assert await alice.agent.df.search_all() == []


# --- ACP ---

SPEAKER = """
    import gagent_py


    class Speaker(gagent_py.Agent):
        def on_acp(self, msg):
            if msg.type == "request" and msg.content == "crash":
                raise RuntimeError("with a secret")
            if msg.type == "request" and msg.content == "tell nobody":
                self.asked = msg
                return self.send_acp("nobody", "notification", {"a": 1})
            if msg.type == "request":
                return self.reply_acp(msg, "response", {"you_said": msg.content, "from": msg.source})
            if msg.type == "error":
                return self.reply_acp(self.asked, "response", msg.content["code"])

        def on_message(self, msg):
            return self.reply(msg, "inform", "a message")


    Speaker().run()
"""


async def test_script_speaks_acp(launch: Launch, alice: Person) -> None:
    await launch(SPEAKER)
    heard: asyncio.Queue[Any] = asyncio.Queue()

    @alice.agent.on_acp()
    async def keep(message: Any) -> None:
        heard.put_nowait(message)

    async def ask(content: Any) -> Any:
        question = alice.agent.filled(ACPMessage(type="request", target="helper", content=content))
        await alice.agent.send_acp(question)
        answer = await heard.get()
        assert answer.in_reply_to == question.id
        return answer

    answer = await ask({"n": 3, "x": 3.0})
    assert answer.type == "response"
    assert json.dumps(answer.content) == '{"you_said": {"n": 3, "x": 3.0}, "from": "alice"}'
    answer = await ask("crash")
    assert (answer.type, answer.content["code"]) == ("error", "FAILED")
    assert answer.content["error"] == "internal-error: RuntimeError; see the log of the script's agent"
    assert (await ask("tell nobody")).content == "NO_SUCH_AGENT"
    assert await alice.ask("helper") == "a message"


async def test_acp_question_of_a_script_that_dies_is_answered(bridge: Bridge, alice: Person) -> None:
    await bridge("""
        import os
        import gagent_py

        class Mortal(gagent_py.Agent):
            def on_acp(self, msg):
                if msg.type == "notification":
                    os._exit(3)

        Mortal().run()
    """)
    heard: asyncio.Queue[Any] = asyncio.Queue()

    @alice.agent.on_acp()
    async def keep(message: Any) -> None:
        heard.put_nowait(message)

    await alice.agent.send_acp(ACPMessage(id="q-1", type="request", target="helper", content="later"))
    await alice.agent.send_acp(ACPMessage(type="notification", target="helper"))
    answers = [await heard.get(), await heard.get()]
    # What was open before, and what it died with.
    assert "q-1" in [one.in_reply_to for one in answers]
    for answer in answers:
        assert answer.type == "error"
        assert answer.content == {"code": "FAILED", "error": "the script ended (exit code 3)"}
