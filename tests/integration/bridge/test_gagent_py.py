"""The library for script agents, in real scripts under the bridge and run by hand."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gagent_py
import pytest

from gagent_grpc.acl.performative import Performative
from gagent_grpc.bridge.command import script_command, script_environment
from gagent_grpc.bridge.faults import ScriptExited
from gagent_grpc.bridge.framing import Answer, BadAction, Delete, Noop, Register, SendAction, Suspend, Wake, parse_line
from gagent_grpc.bridge.process import ScriptProcess

LIBRARY = Path(__file__).parents[3] / "agent_scripts" / "python"

START = {"event": "start", "system_prompt": "", "model": "gpt-4o-mini", "max_tokens": 200, "max_history": 20}
TICK = {"event": "tick"}
STOP = {"event": "stop"}
NOOP = Answer((Noop(),))

MakeScript = Callable[..., ScriptProcess]


def write_script(folder: Path, source: str) -> Path:
    path = folder / "agent.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


@pytest.fixture
async def script(tmp_path: Path) -> AsyncIterator[MakeScript]:
    """Make a ScriptProcess of source text; it is not started, and closed at the end."""
    made: list[ScriptProcess] = []

    def make(source: str, **options: Any) -> ScriptProcess:
        command = script_command(write_script(tmp_path, source))
        made.append(ScriptProcess("helper", command, cwd=tmp_path, **options))
        return made[-1]

    async with asyncio.timeout(60):
        yield make
        for process in made:
            await process.aclose()


def message(content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"event": "message", "msg": {"performative": "request", "sender": "alice", "content": content, **more}}


def only(answer: Answer) -> Any:
    """Return the one action of an answer without its `id`."""
    (action,) = answer.actions
    return action


def run_by_hand(
    folder: Path, source: str, *events: dict[str, Any], marker: bool = True, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a script with all its input at once, as a bridge that knows nothing of ids would."""
    environment = script_environment({"PYTHONPATH": str(LIBRARY), **(env or {})})
    if not marker:
        del environment["GAGENT_BRIDGE"]
    return subprocess.run(
        [sys.executable, str(write_script(folder, source))],
        input=b"".join(json.dumps(event).encode() + b"\n" for event in events),
        capture_output=True,
        env=environment,
        cwd=folder,
        timeout=30,
        check=False,
    )


def json_lines(output: bytes) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in output.splitlines()]
    assert all(isinstance(line, dict) for line in lines)
    return lines


# --- The interface ---

EVERY_HOOK = """
    import gagent_py

    class Desk(gagent_py.Agent):
        def on_start(self):
            self.log = [f"start {self.model} {self.max_tokens} {self.max_history} {self.system_prompt!r}"]
            self.log.append(str(sorted(self.config)))
            return {"action": "register", "services": ["desk"]}

        def on_message(self, msg):
            self.log.append(msg.performative)
            if msg.content == "log":
                return self.reply(msg, "inform", "; ".join(self.log))
            if msg.content == "repr":
                return self.reply(msg, "inform", repr(msg))
            if msg.content == "both":
                return [self.send("bob", "inform", "1"), self.reply(msg, "agree", b"\\x00\\xff")]
            if isinstance(msg.content, bytes):
                return self.send(["bob", "carol"], "inform", msg.content[::-1])
            if msg.content in ("noop", "delete", "suspend", "wake"):
                return getattr(self, msg.content)()
            if msg.content == "divide":
                1 / 0
            if msg.content == "text":
                return "not an action"
            if msg.content == "dict":
                return self.reply(msg, "inform", {"answer": 42})
            if msg.content == "act":
                return self.reply(msg, "explain", "x")
            if msg.content == "keyword":
                return self.reply(msg, "inform", "x", conversationid="k")
            if msg.content == "secret":
                int("a secret")
            if msg.content == "unsendable":
                return {"action": "send", "to": "bob", "msg": {"performative": "inform", "content": object()}}

        def on_tick(self):
            self.log.append("tick")
            if self.log.count("tick") == 2:
                raise LookupError("second tick")

        def on_stop(self):
            with open("log.txt", "w") as file:
                file.write("; ".join(self.log))

    Desk().run()
"""


async def test_every_hook_and_helper(script: MakeScript, tmp_path: Path) -> None:
    process = script(EVERY_HOOK)
    await process.start()

    started = await process.exchange({**START, "system_prompt": "be kind", "max_tokens": 50, "team": "blue"})
    assert isinstance(only(started), Register)
    assert started.id == 1
    assert await process.exchange(TICK) == Answer((Noop(),), 2)
    assert only(await process.exchange(message("log", reply_with="q1", conversation_id="k1"))) == SendAction(
        to=("alice",),
        performative=Performative.INFORM,
        content="start gpt-4o-mini 50 20 'be kind';"
        " ['max_history', 'max_tokens', 'model', 'system_prompt', 'team']; tick; request",
        conversation_id="k1",
        in_reply_to="q1",
    )
    assert only(await process.exchange(message("silence"))) == Noop()
    assert only(await process.exchange(message("noop"))) == Noop()
    assert only(await process.exchange(message("delete"))) == Delete()
    assert only(await process.exchange(message("suspend"))) == Suspend()
    assert only(await process.exchange(message("wake"))) == Wake()
    assert (await process.exchange(message("both"))).actions == (
        SendAction(("bob",), Performative.INFORM, "1"),
        SendAction(("alice",), Performative.AGREE, b"\x00\xff"),
    )
    event = message()
    event["msg"] = {"performative": "inform", "sender": "alice", "content_base64": "AAEC"}
    assert only(await process.exchange(event)) == SendAction(("bob", "carol"), Performative.INFORM, b"\x02\x01\x00")
    assert (await process.exchange(TICK)).idle
    assert "LookupError: second tick" in process.stderr_tail
    assert await process.stop() == 0
    assert (tmp_path / "log.txt").read_text().endswith("request; inform; tick")


async def test_message_shows_every_parameter(script: MakeScript) -> None:
    process = script(EVERY_HOOK)
    await process.start()
    await process.exchange(START)
    event = message(
        "repr",
        receivers=["helper"],
        reply_to="clerk",
        reply_by="2026-12-31T23:59:59Z",
        ontology="",
        protocol=None,
        hops=3,
        **{"X-team": "blue"},
    )
    assert only(await process.exchange(event)) == SendAction(
        to=("clerk",),
        performative=Performative.INFORM,
        content="ACLMessage(performative='request', sender='alice', content='repr', receivers=['helper'],"
        " reply_to=['clerk'], reply_by='2026-12-31T23:59:59Z', user_parameters={'X-team': 'blue'}, extra={'hops': 3})",
    )


ELSEWHERE = "; see the log of the script's agent"
FAILURES = {
    "divide": ("ZeroDivisionError", ELSEWHERE),
    "secret": ("ValueError", ELSEWHERE),
    "unsendable": ("TypeError", ELSEWHERE),
    # Mistakes that the library itself finds, and whose texts hold nothing of the script's.
    "dict": ("TypeError", ": content is dict; expected str or bytes, such as json.dumps(...)"),
    "act": (
        "ValueError",
        f": unknown performative 'explain'; expected one of: {', '.join(sorted(map(str, Performative)))}",
    ),
    "keyword": (
        "TypeError",
        ": unknown ACL parameter 'conversationid'; expected one of: language, encoding, ontology, protocol,"
        " conversation_id, reply_with, in_reply_to, reply_by, receivers, reply_to, user_parameters, or a name that"
        " begins with X-",
    ),
    "text": (
        "TypeError",
        ": on_message returned str; expected what self.send, self.reply, self.noop, self.delete, self.suspend or"
        " self.wake returns, a list of those, or nothing",
    ),
}


@pytest.mark.parametrize("content", FAILURES)
async def test_error_in_on_message_is_answered_with_failure(script: MakeScript, content: str) -> None:
    kind, more = FAILURES[content]
    process = script(EVERY_HOOK)
    await process.start()
    await process.exchange(START)
    event = message(content, conversation_id="k1", reply_with="q1", protocol="fipa-request")
    assert only(await process.exchange(event)) == SendAction(
        to=("alice",),
        performative=Performative.FAILURE,
        content=f"internal-error: {kind}{more}",
        protocol="fipa-request",
        conversation_id="k1",
        in_reply_to="q1",
        user_parameters={"X-automatic": "true"},
    )
    assert f"\n{kind}: " in process.stderr_tail
    assert (await process.exchange(message("noop"))).idle


@pytest.mark.parametrize("act", ["failure", "not-understood", "refuse", "FAILURE"])
async def test_error_in_on_message_never_answers_a_bad_end(script: MakeScript, act: str) -> None:
    process = script(EVERY_HOOK)
    await process.start()
    await process.exchange(START)
    assert only(await process.exchange(message("divide", performative=act))) == Noop()


async def test_error_in_on_start_ends_the_script(script: MakeScript) -> None:
    process = script("""
        import gagent_py

        class Broken(gagent_py.Agent):
            def on_start(self):
                raise KeyError("OPENAI_API_KEY")

        Broken().run()
    """)
    await process.start()
    with pytest.raises(ScriptExited, match=r"(?s)exit code 1\).*KeyError: 'OPENAI_API_KEY'"):
        await process.exchange(START)


async def test_subclass_with_own_init_and_own_defaults(script: MakeScript) -> None:
    process = script("""
        import gagent_py

        class Own(gagent_py.Agent):
            model = "llama3"

            def __init__(self):
                self.name = "own"

            def on_message(self, msg):
                return self.reply(msg, "inform", f"{self.name} {self.model} {self.max_history} {dict(self.config)}")

        Own().run()
    """)
    await process.start()
    assert only(await process.exchange(message())).content == "own llama3 20 {}"
    await process.exchange({"event": "start", "max_history": 3})
    assert only(await process.exchange(message())).content == "own llama3 3 {'max_history': 3}"


# --- Helpers, by themselves ---

AGENT = gagent_py.Agent()
ORIGINAL = gagent_py.ACLMessage(
    performative="request",
    sender="alice",
    content="hi",
    language="fipa-sl0",
    encoding="utf-8",
    ontology="docs",
    protocol="fipa-request",
    conversation_id="k1",
    reply_with="q1",
    in_reply_to="older",
    reply_by="2026-12-31T23:59:59Z",
)
COPIED = {
    "conversation_id": "k1",
    "protocol": "fipa-request",
    "language": "fipa-sl0",
    "ontology": "docs",
    "encoding": "utf-8",
    "in_reply_to": "q1",
}


def test_reply_takes_over_what_belongs_to_the_conversation() -> None:
    action = AGENT.reply(ORIGINAL, "inform", "yes")
    assert action == {"action": "send", "to": "alice", "msg": {"performative": "inform", "content": "yes", **COPIED}}


def test_keywords_of_reply_override_and_none_removes() -> None:
    action = AGENT.reply(ORIGINAL, "inform", "yes", ontology=None, language="json", reply_with="q2", to="bob")
    expected = {**COPIED, "performative": "inform", "content": "yes", "language": "json", "reply_with": "q2"}
    del expected["ontology"]
    assert action == {"action": "send", "to": "bob", "msg": expected}


def test_reply_goes_to_reply_to() -> None:
    original = gagent_py.ACLMessage(performative="request", sender="alice", reply_to=["clerk", "boss"])
    assert AGENT.reply(original, "agree")["to"] == ["clerk", "boss"]


def test_send_takes_further_parameters() -> None:
    deadline = datetime(2026, 12, 31, tzinfo=UTC)
    more = {"X-a": "1"}
    action = AGENT.send("bob", " CFP ", None, reply_by=deadline, reply_to="clerk", user_parameters={"X-b": "2"}, **more)
    msg = {
        "performative": "cfp",
        "reply_by": "2026-12-31T00:00:00+00:00",
        "reply_to": ["clerk"],
        "X-a": "1",
        "X-b": "2",
    }
    assert action == {"action": "send", "to": "bob", "msg": msg}
    assert isinstance(parse_line(json.dumps(action).encode()), Answer)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error"),
    [
        (("bob", "explain", "x"), {}, "unknown performative 'explain'; expected one of: accept-proposal, "),
        (("bob", "inform", {"a": 1}), {}, "content is dict; expected str or bytes"),
        (("bob", "inform", "\ud800"), {}, "surrogates not allowed"),
        (("", "inform", "x"), {}, "expected an agent's name or a list of names"),
        (([], "inform", "x"), {}, "expected an agent's name or a list of names"),
        (("bob", "inform", "x"), {"conversationid": "k"}, "unknown ACL parameter 'conversationid'"),
        (("bob", "inform", "x"), {"conversation_id": 4}, "conversation_id is int; expected str"),
    ],
)
def test_mistake_is_told_where_it_is_made(arguments: tuple[Any, ...], keywords: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        AGENT.send(*arguments, **keywords)


TASK = gagent_py.Task(task_id="T-1", delegator="alice@local")
ABOUT = {"task_id": "T-1", "delegator": "alice@local"}


def test_helpers_for_tasks_make_actions_that_the_bridge_takes() -> None:
    made = [
        AGENT.register(["a", {"type": "b"}]),
        AGENT.register("a"),
        AGENT.deregister(),
        AGENT.delegate("bob", "d", {"n": 3}, task_id="T-2", deadline=5, parent=TASK, max_attempts=2),
        AGENT.delegate("role:x", deadline=datetime(2026, 12, 31, tzinfo=UTC), on_executor_lost="redeliver"),
        AGENT.answer_task("T-2", None),
        AGENT.cancel_task("T-2", "why"),
        AGENT.progress(TASK, 0, "begun"),
        AGENT.output(TASK, "part", "log"),
        AGENT.save(TASK, None),
        AGENT.ask(TASK, "which?"),
        AGENT.complete(TASK, {"n": 3}),
        AGENT.fail(TASK, "why"),
        AGENT.reject("T-1"),
        AGENT.send_acp("bob", " Request ", [1], metadata={"priority": "high"}),
        AGENT.reply_acp(gagent_py.ACPMessage(id="m-1", source="bob"), "response", "yes"),
    ]
    for action in made:
        answer = parse_line(json.dumps(action).encode())
        assert isinstance(answer, Answer)
        assert not isinstance(answer.actions[0], BadAction), answer
    assert made[3]["parent"] == "T-1"
    assert made[7] == {"action": "progress", **ABOUT, "progress": 0, "note": "begun"}
    assert made[9] == {"action": "save", **ABOUT, "checkpoint": None}
    assert made[13] == {"action": "reject", "task_id": "T-1"}
    assert made[15]["msg"] == {"type": "response", "target": "bob", "content": "yes", "in_reply_to": "m-1"}
    # Ids of its own are new each time.
    assert AGENT.delegate("bob")["task_id"] != AGENT.delegate("bob")["task_id"]


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: AGENT.register([]), "services is empty"),
        (lambda: AGENT.register([7]), "a service is int"),
        (lambda: AGENT.register([{"name": "n"}]), "a service has the type None"),
        (lambda: AGENT.delegate(""), "the target is ''"),
        (lambda: AGENT.delegate("bob", "d", [1]), "parameters is list"),
        (lambda: AGENT.delegate("bob", "d", {"a": float("nan")}), "parameters holds NaN, an infinity or itself"),
        (lambda: AGENT.delegate("bob", deadline=True), "deadline is bool"),
        (lambda: AGENT.delegate("bob", dead_line=1), "unknown keyword 'dead_line'; expected one of: task_id, "),
        (lambda: AGENT.progress(TASK, 1.5), "fraction is 1.5; expected a number from 0 to 1"),
        (lambda: AGENT.progress(TASK, "half"), "fraction is str"),
        (lambda: AGENT.progress(7), "task is int; expected a Task, a TaskEvent or a task id"),
        (lambda: AGENT.output(TASK, b"x"), "text is bytes"),
        (lambda: AGENT.complete(TASK, {1, 2}), "result: Object of type set is not JSON serializable"),
        (lambda: AGENT.complete(TASK, ENDLESS), "result holds NaN, an infinity or itself"),
        (lambda: AGENT.complete(TASK, "\ud800"), "result holds half a surrogate pair"),
        (lambda: AGENT.complete("", 1), "the task id is empty"),
        (lambda: AGENT.send_acp("bob", "ask"), "unknown ACP type 'ask'; expected one of: request, response"),
        (lambda: AGENT.send_acp("bob", "request", to="x"), "unknown field 'to' of an ACP message"),
        (lambda: AGENT.reply_acp(gagent_py.ACPMessage(), "response"), "the target is ''"),
    ],
)
def test_mistake_about_a_task_is_told_where_it_is_made(call: Callable[[], Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        call()


def test_reply_to_nobody_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected an agent's name"):
        AGENT.reply(gagent_py.ACLMessage(performative="inform"), "inform", "x")


def test_library_knows_the_same_acts_as_the_bus() -> None:
    for act in Performative:
        assert AGENT.send("bob", act.text, "")["msg"]["performative"] == act.text


def test_library_is_python_3_9_and_standard_library_only() -> None:
    for path in (LIBRARY / "gagent_py").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if path.name != "_direct.py":
            assert {name.split(".")[0] for name in modules} <= {*sys.stdlib_module_names, "gagent_py"}


# --- What scripts do beside answering ---

CHATTY = """
    import ctypes, logging, multiprocessing, os, subprocess, sys
    import gagent_py

    logging.basicConfig(stream=sys.stdout, level=logging.INFO)
    print("printed at import")

    def square(number):
        print("printed in a worker")
        return number * number

    class Chatty(gagent_py.Agent):
        def on_message(self, msg):
            print("printed in a hook \\u2192")
            print("printed without newline", end="")
            sys.__stdout__.write("printed to the original stdout\\n")
            logging.info("logged to stdout")
            os.write(1, b"written to descriptor 1\\n")
            os.system("echo echoed by a shell")
            subprocess.run(["cat"])  # Reads its stdin, which must not be the protocol's.
            subprocess.run(["echo", "echoed by a child"], check=True)
            ctypes.CDLL(None).puts(b"put by C")
            ctypes.CDLL(None).fflush(None)
            squares = []
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    squares += pool.map(square, [2, 3])
            try:
                input("asked: ")
            except EOFError:
                squares.append("EOF")
            names = [name for name in ("GAGENT_BRIDGE", "GAGENT_NAME") if name in os.environ]
            return self.reply(msg, "inform", f"{squares} {names}")

    Chatty().run()
"""


@pytest.mark.parametrize("env", [{}, {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}, {"PYTHONUNBUFFERED": ""}])
def test_c01_nothing_printed_reaches_the_protocol(tmp_path: Path, env: dict[str, str]) -> None:
    done = run_by_hand(tmp_path, CHATTY, START, message(), TICK, STOP, env=env)
    assert done.returncode == 0, done.stderr.decode()
    assert json_lines(done.stdout) == [
        {"action": "noop"},
        {"action": "send", "to": "alice", "msg": {"performative": "inform", "content": "[4, 9, 4, 9, 'EOF'] []"}},
        {"action": "noop"},
    ]
    stderr = done.stderr.decode(errors="replace")
    for text in ("printed at import", "printed in a hook", "original stdout", "logged to stdout", "descriptor 1"):
        assert text in stderr
    for text in ("echoed by a shell", "echoed by a child", "put by C", "asked: "):
        assert text in stderr
    # Both methods, two calls each; the spawned worker imports the script anew and does not run the agent.
    assert stderr.count("printed in a worker") == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_forked_child_does_not_hold_the_pipes(script: MakeScript) -> None:
    process = script("""
        import os, signal, sys, time
        import gagent_py

        class Forking(gagent_py.Agent):
            def on_message(self, msg):
                pid = os.fork()
                if pid == 0:
                    os.setsid()  # Out of the group that is killed with the script.
                    time.sleep(600)
                return self.reply(msg, "inform", str(pid))

        Forking().run()
    """)
    await process.start()
    pid = int(str(only(await process.exchange(message())).content))
    try:
        assert process._child is not None
        assert await process.stop() == 0
        # EOF, and not the end of patience: nobody else holds the writing end.
        assert process._child.stdout.at_eof()
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_c02_content_passes_code_point_for_code_point(script: MakeScript) -> None:
    process = script(
        """
        import gagent_py

        class Echo(gagent_py.Agent):
            def on_message(self, msg):
                return self.reply(msg, "inform", msg.content)

        Echo().run()
        """,
        env={"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"},
    )
    await process.start()
    text = "one\u2028two\u2029three\u0085four\u000bfive\u000csix\u001cseven\r\nend \U0001f600\x00"
    assert only(await process.exchange(message(text))).content == text


async def test_c07_ctrl_c_leaves_the_script_to_its_stop_event(script: MakeScript, tmp_path: Path) -> None:
    process = script("""
        import subprocess, time
        import gagent_py

        class Patient(gagent_py.Agent):
            def on_message(self, msg):
                # Programs that it starts keep their own way with Ctrl-C.
                child = subprocess.Popen(["sleep", "600"])
                child.send_signal(2)
                return self.reply(msg, "inform", str(child.wait()))

            def on_stop(self):
                open("stopped.txt", "w").close()
                return self.send("alice", "inform", "bye")

        Patient().run()
    """)
    await process.start()
    await process.exchange(START)
    assert process.pid is not None
    os.killpg(process.pid, signal.SIGINT)
    assert only(await process.exchange(message())).content == "-2"
    assert await process.stop() == 0
    assert (tmp_path / "stopped.txt").exists()
    late = await process.take_late()
    assert late is not None
    assert only(late.answer).content == "bye"


# --- Other parents ---

QUIET = """
    import gagent_py

    class Quiet(gagent_py.Agent):
        def on_stop(self):
            open("stopped.txt", "w").close()

    Quiet().run()
    open("after.txt", "w").close()
"""


def test_bridge_without_marker_and_ids_is_answered(tmp_path: Path) -> None:
    done = run_by_hand(tmp_path, QUIET, START, TICK, {"event": "unheard-of"}, STOP, marker=False)
    assert done.returncode == 0
    assert json_lines(done.stdout) == [{"action": "noop"}] * 3
    assert (tmp_path / "stopped.txt").exists()
    assert (tmp_path / "after.txt").exists()


@pytest.mark.parametrize("marker", [True, False])
def test_end_of_input_is_a_stop(tmp_path: Path, marker: bool) -> None:
    done = run_by_hand(tmp_path, QUIET, START, marker=marker)
    assert done.returncode == 0
    assert (tmp_path / "stopped.txt").exists()


def test_bridge_that_vanished_is_a_stop(tmp_path: Path) -> None:
    environment = script_environment({"PYTHONPATH": str(LIBRARY)})
    command = [sys.executable, str(write_script(tmp_path, QUIET))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(json.dumps(START).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(timeout=10) == 0
    assert (tmp_path / "stopped.txt").exists()


@pytest.mark.parametrize("text", [b"", b"\n", b"hello\n", b"[1]\n\xff\n"])
def test_script_run_by_hand_says_how(tmp_path: Path, text: bytes) -> None:
    environment = {**script_environment({"PYTHONPATH": str(LIBRARY)}), "GAGENT_BRIDGE": ""}
    path = write_script(tmp_path, QUIET)
    command = [sys.executable, str(path)]
    done = subprocess.run(command, input=text, capture_output=True, env=environment, timeout=10, check=False)
    assert done.returncode == 2
    assert done.stdout == b""
    assert f"gagent run {path}\n" in done.stderr.decode()
    assert f"GAGENT_NAME=my-agent python {path}\n" in done.stderr.decode()


def test_script_run_at_a_terminal_says_how(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    try:
        environment = {**script_environment({"PYTHONPATH": str(LIBRARY)}), "GAGENT_BRIDGE": ""}
        command = [sys.executable, str(write_script(tmp_path, QUIET))]
        done = subprocess.run(command, stdin=theirs, capture_output=True, env=environment, timeout=10, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert b"gagent run" in done.stderr


def test_direct_mode_without_the_package_says_what_is_missing(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GAGENT_")}
    # Without `site` nothing that is installed is found.
    done = subprocess.run(
        [sys.executable, "-S", str(write_script(tmp_path, QUIET))],
        capture_output=True,
        env={**environment, "GAGENT_NAME": "helper", "PYTHONPATH": str(LIBRARY)},
        cwd=tmp_path,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "GAGENT_NAME is set, and the package gagent-grpc is missing. Install it: pip install gagent-grpc."
        " Or leave the connection to: gagent run SCRIPT.py\n"
    )


def _python_3_9() -> str | None:
    """Return a Python 3.9 that starts: a shim may be there without the Python behind it, and a Python without its shim."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in ("python3.9", *map(str, sorted(kept.glob("3.9*/bin/python3.9")))):
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
                return python
    return None


@pytest.mark.skipif(_python_3_9() is None, reason="not run: no Python 3.9 is here")
def test_library_runs_on_python_3_9(tmp_path: Path) -> None:
    environment = script_environment({"PYTHONPATH": str(LIBRARY)})
    python = _python_3_9()
    assert python is not None
    command = [python, str(write_script(tmp_path, EVERY_HOOK))]
    events = (START, message("repr"), {"event": "delegate", "task_id": "T-1", "description": "d"}, STOP)
    done = subprocess.run(
        command,
        input=b"".join(json.dumps(event).encode() + b"\n" for event in events),
        capture_output=True,
        env=environment,
        cwd=tmp_path,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert [line.get("action") for line in json_lines(done.stdout)] == ["register", "send", "noop"]
    direct = {**environment, "GAGENT_BRIDGE": "", "GAGENT_NAME": "helper"}
    done = subprocess.run(command, capture_output=True, env=direct, cwd=tmp_path, timeout=30, check=False)
    assert done.returncode == 2
    assert b"needs Python 3.11 or newer" in done.stderr


def test_script_beside_the_library_folder_imports_it(tmp_path: Path) -> None:
    (tmp_path / "gagent_py").symlink_to(LIBRARY / "gagent_py")
    environment = {key: value for key, value in script_environment().items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(write_script(tmp_path, QUIET))],
        input=json.dumps(START).encode() + b"\n",
        capture_output=True,
        env=environment,
        cwd="/",
        timeout=10,
        check=False,
    )
    assert json_lines(done.stdout) == [{"action": "noop"}]
