"""Real scripts as child processes: what they may write, when they may answer, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import resource
import shutil
import signal
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gagent_grpc.bridge.command import script_command, script_environment
from gagent_grpc.bridge.faults import ScriptExited, ScriptTimeout
from gagent_grpc.bridge.framing import Answer, Noop, SendAction
from gagent_grpc.bridge.limits import ScriptLimits
from gagent_grpc.bridge.process import STOP_GRACE_S, LateAnswer, ScriptProcess
from gagent_grpc.errors import ConfigurationError, ScriptError

START = {"event": "start", "system_prompt": "", "model": "gpt-4o-mini", "max_tokens": 200, "max_history": 20}
TICK = {"event": "tick"}
NOOP = Answer((Noop(),))

# What a script by hand has: it knows events and actions and nothing else, not even ids.
BY_HAND = """
import json, os, signal, subprocess, sys, time

def events():
    for line in sys.stdin.buffer:
        yield json.loads(line)

def say(**action):
    sys.stdout.write(json.dumps(action) + "\\n")
    sys.stdout.flush()

def send(to, content, **more):
    say(action="send", to=to, msg={"performative": "inform", "content": content}, **more)
"""

MakeScript = Callable[..., ScriptProcess]


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task, child or descriptor outlives a test."""

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(psutil.Process().children(recursive=True))

    before, tasks = held(), asyncio.all_tasks()
    yield
    descriptors, children = held()
    # Fewer descriptors are fine: what an earlier test left to the collector may have been closed meanwhile.
    assert descriptors <= before[0]
    assert children == before[1]
    assert asyncio.all_tasks() - tasks - {asyncio.current_task()} == set()


@pytest.fixture
async def script(tmp_path: Path) -> AsyncIterator[MakeScript]:
    """Make a ScriptProcess of source text; it is not started, and closed at the end."""
    made: list[ScriptProcess] = []

    def make(source: str, *, suffix: str = ".py", **options: Any) -> ScriptProcess:
        path = tmp_path / f"script{len(made)}{suffix}"
        prelude = BY_HAND if suffix == ".py" else ""
        path.write_text(prelude + textwrap.dedent(source), encoding="utf-8")
        made.append(ScriptProcess("helper", script_command(path), cwd=tmp_path, **options))
        return made[-1]

    async with asyncio.timeout(60):
        yield make
        for process in made:
            await process.aclose()


def message(content: str = "hi", sender: str = "alice", **more: str) -> dict[str, Any]:
    return {"event": "message", "msg": {"performative": "request", "sender": sender, "content": content, **more}}


def contents(answer: Answer | LateAnswer | None) -> list[str | bytes | None]:
    assert answer is not None
    actions = answer.answer.actions if isinstance(answer, LateAnswer) else answer.actions
    return [action.content for action in actions if isinstance(action, SendAction)]


async def all_late(process: ScriptProcess) -> list[LateAnswer]:
    taken = []
    while (late := await process.take_late()) is not None:
        taken.append(late)
    return taken


def gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be reaped by somebody else has."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def turns_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until a state is reached that has no event of its own."""
    async with asyncio.timeout(3):
        while not condition():  # noqa: ASYNC110  # See above.
            await asyncio.sleep(0)


async def until_gone(*pids: int) -> None:
    await turns_until(lambda: all(gone(pid) for pid in pids))


# --- What scripts write ---


async def test_c01_noise_is_logged_and_is_no_answer(script: MakeScript, caplog: pytest.LogCaptureFixture) -> None:
    process = script("""
        print("Loading model weights: 100%|##########| 3/3\\n\\n[2026-03-01 10:00:00] INFO ready")
        for event in events():
            if event["event"] == "stop":
                break
            print("debug: got", event)
            if event["event"] == "start":
                say(action="noop")
            else:
                send("alice", "hello", id=event["id"])
    """)
    await process.start()
    with caplog.at_level(logging.WARNING):
        assert await process.exchange(START) == NOOP
        assert contents(await process.exchange(message())) == ["hello"]
    noise = [record for record in caplog.records if "line ignored" in record.message]
    assert len(noise) == 4
    assert all(record.message.startswith("helper: ") and record.levelno == logging.WARNING for record in noise)
    assert await process.stop() == 0
    assert await process.take_late() is None


async def test_flood_of_noise_is_not_a_flood_of_records(script: MakeScript, caplog: pytest.LogCaptureFixture) -> None:
    process = script("""
        print("step\\n" * 100_000, file=sys.stderr)
        print("step\\n" * 100_000)
        for event in events():
            say(action="noop")
    """)
    await process.start()
    with caplog.at_level(logging.INFO):
        assert await process.exchange(START) == NOOP
        await process.exchange(TICK)
    assert 20 < len(caplog.records) < 400


HOSTILE_TEXT = "one\u2028two\u2029three\u0085four\u000bfive\u000csix\u001cseven\rend \U0001f600"


@pytest.mark.parametrize("language", ["python", "node"])
async def test_c02_only_line_feed_ends_a_line(script: MakeScript, tmp_path: Path, language: str) -> None:
    if language == "node":
        if shutil.which("node") is None:
            pytest.skip("node is not installed")
        process = script(
            """
            const lines = require("readline").createInterface({ input: process.stdin });
            lines.on("line", (line) => {
              const event = JSON.parse(line);
              if (event.event === "stop") process.exit(0);
              const msg = { performative: "inform", content: event.msg ? event.msg.content : "" };
              console.log(JSON.stringify(event.msg ? { action: "send", to: "alice", msg } : { action: "noop" }));
            });
            """,
            suffix=".js",
        )
    else:
        process = script("""
            for line in sys.stdin.buffer:
                with open("seen.bin", "ab") as seen:
                    seen.write(line)
                event = json.loads(line)
                if event["event"] == "stop":
                    break
                if event["event"] == "start":
                    say(action="noop")
                    continue
                answer = {"action": "send", "to": "alice", "msg": {**event["msg"], "performative": "inform"}}
                sys.stdout.buffer.write(json.dumps(answer, ensure_ascii=False).encode() + b"\\n")
                sys.stdout.buffer.flush()
        """)
    await process.start()
    assert await process.exchange(START) == NOOP
    for _ in range(2):
        assert contents(await process.exchange(message(HOSTILE_TEXT))) == [HOSTILE_TEXT]
    assert await process.stop() == 0
    if language == "python":
        seen = (tmp_path / "seen.bin").read_bytes()
        assert seen.isascii()
        assert b"\r" not in seen
        assert [json.loads(line)["event"] for line in seen.split(b"\n")[:-1]] == ["start", "message", "message", "stop"]


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}])
async def test_c03_bytes_as_other_systems_write_them(
    script: MakeScript, caplog: pytest.LogCaptureFixture, locale: dict[str, str]
) -> None:
    process = script(
        r"""
        out = sys.stdout.buffer
        out.write(b'\xef\xbb\xbf{"action":"noop"}\r\n')
        out.write(b'\n')
        out.write(b'   \r\n')
        out.write(b'{"action":"noop","note":"\xff\xfe"}\n')
        out.write(b'{"action":"send","to":"alice","msg":{"performative":"inform","content":"caf\xc3\xa9"}}\r\n')
        out.write(b'{"action":"send","to":"alice","msg":{"performative":"inform","content":"last"}}')
        """,
        env=locale,
    )
    with caplog.at_level(logging.WARNING):
        await process.start()
        assert await process.wait() == 0
    assert [contents(late) for late in await all_late(process)] == [["caf\u00e9"], ["last"]]
    assert ["ff fe" in record.message for record in caplog.records] == [True]


async def test_overlong_line_is_dropped_and_reading_goes_on(
    script: MakeScript, caplog: pytest.LogCaptureFixture
) -> None:
    process = script(
        """
        for event in events():
            if event["event"] == "message":
                send("alice", event["msg"]["content"])
            else:
                say(action="noop")
        """,
        line_limit=10_000,
    )
    await process.start()
    with caplog.at_level(logging.WARNING):
        answer = await process.exchange(message("x" * 20_000))
    assert answer.idle
    assert "over the limit" in caplog.text
    assert "xxx" not in caplog.text
    assert contents(await process.exchange(message("y"))) == ["y"]


# --- What scripts may use ---


async def test_memory_of_a_script_is_bounded(script: MakeScript) -> None:
    process = script(
        """
        next(events())
        try:
            bytearray(400_000_000)
        except MemoryError:
            send("alice", "refused")
        else:
            send("alice", "had")
        """,
        limits=ScriptLimits(memory_mb=200),
    )
    await process.start()
    assert contents(await process.exchange(START)) == ["refused"]


async def test_open_files_of_a_script_are_bounded(script: MakeScript) -> None:
    process = script(
        """
        next(events())
        held = []
        try:
            while len(held) < 100:
                held.append(open(os.devnull))
        except OSError as error:
            send("alice", error.strerror)
        else:
            send("alice", "had")
        """,
        limits=ScriptLimits(open_files=40),
    )
    await process.start()
    assert contents(await process.exchange(START)) == ["Too many open files"]


async def test_cpu_time_of_a_script_is_bounded(script: MakeScript) -> None:
    process = script("while True: pass", limits=ScriptLimits(cpu_seconds=1))
    await process.start()
    with pytest.raises(ScriptExited, match="killed by SIGXCPU"):
        await process.exchange(START)


async def test_limit_above_what_this_process_may_have_leaves_it_at_that(script: MakeScript) -> None:
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    process = script(
        """
        import resource
        next(events())
        send("alice", str(resource.getrlimit(resource.RLIMIT_NOFILE)))
        """,
        limits=ScriptLimits(open_files=allowed + 1),
    )
    await process.start()
    assert contents(await process.exchange(START)) == [f"({allowed}, {allowed})"]


@pytest.mark.parametrize("limit", [{"memory_mb": 0}, {"cpu_seconds": -1}, {"open_files": 7}, {"memory_mb": 1.5}])
def test_limit_that_makes_no_sense_is_told(limit: dict[str, Any]) -> None:
    ((name, value),) = limit.items()
    with pytest.raises(ConfigurationError, match=rf"{name} is {value}; expected a whole number of at least"):
        ScriptLimits(**limit)


# --- Which event a line belongs to ---


LATE_SCRIPT = """
for event in events():
    if event["event"] != "message":
        say(action="noop")
        continue
    msg = event["msg"]
    time.sleep(float(msg["content"]))
    {answer}
"""
ECHOING = 'send(msg["sender"], msg["conversation_id"], id=event["id"])'
SILENT = 'send(msg["sender"], msg["conversation_id"])'


@pytest.mark.parametrize("answer", [ECHOING, SILENT], ids=["echoing", "by count"])
async def test_c04_late_answer_belongs_to_the_event_that_owed_it(script: MakeScript, answer: str) -> None:
    process = script(LATE_SCRIPT.format(answer=answer))
    await process.start()
    await process.exchange(START)
    first = message("0.3", "alice", conversation_id="a")
    with pytest.raises(ScriptTimeout, match=r"helper: the script did not answer `message` within 0\.1 s$") as raised:
        await process.exchange(first, timeout=0.1)
    assert raised.value.delivered
    assert process.owes
    assert contents(await process.exchange(message("0", "bob", conversation_id="b"), timeout=5)) == ["b"]
    late = await process.take_late()
    assert contents(late) == ["a"]
    assert late is not None
    assert late.event is first
    assert not process.owes


@pytest.mark.parametrize("answer", [ECHOING, SILENT], ids=["echoing", "by count"])
async def test_c04_pairing_survives_delays_around_the_timeout(script: MakeScript, answer: str) -> None:
    process = script(LATE_SCRIPT.format(answer=answer))
    await process.start()
    await process.exchange(START)
    delays = random.Random(4)
    timed_out = []
    for number in range(50):
        try:
            event = message(str(delays.uniform(0, 0.06)), conversation_id=str(number))
            assert contents(await process.exchange(event, timeout=0.03)) == [str(number)]
        except ScriptTimeout as error:
            if error.delivered:
                timed_out.append(str(number))
    assert contents(await process.exchange(message("0", conversation_id="51"), timeout=5)) == ["51"]
    assert 5 < len(timed_out) < 45
    await process.stop()
    late = await all_late(process)
    assert [contents(item) for item in late] == [[number] for number in timed_out]
    assert [item.event["msg"]["conversation_id"] for item in late if item.event] == timed_out


@pytest.mark.parametrize("echo", [', id=event["id"]', ""], ids=["echoing", "by count"])
async def test_c04_second_line_for_one_event_is_an_extra_one(script: MakeScript, echo: str) -> None:
    process = script(f"""
        for event in events():
            if event["event"] == "message":
                send("alice", "first for " + event["msg"]["content"]{echo})
                send("alice", "second for " + event["msg"]["content"]{echo})
            elif event["event"] != "stop":
                say(action="noop")
    """)
    await process.start()
    await process.exchange(START)
    for number in range(10):
        assert contents(await process.exchange(message(str(number)))) == [f"first for {number}"]
    await process.stop()
    late = await all_late(process)
    assert [contents(item) for item in late] == [[f"second for {number}"] for number in range(10)]
    assert [item.event["msg"]["content"] if item.event else None for item in late] == [
        str(number) if echo else None for number in range(10)
    ]


async def test_second_line_that_comes_late_shifts_nothing(script: MakeScript) -> None:
    """It comes well after the pause that a script which writes one line for each event has."""
    process = script("""
        for event in events():
            if event["event"] == "message":
                send("alice", "first for " + event["msg"]["content"])
                time.sleep(0.025)
                send("alice", "second for " + event["msg"]["content"])
            elif event["event"] != "stop":
                say(action="noop")
    """)
    await process.start()
    await process.exchange(START)
    for number in range(15):
        assert contents(await process.exchange(message(str(number)))) == [f"first for {number}"]
    await process.stop()
    late = await all_late(process)
    assert [contents(item) for item in late] == [[f"second for {number}"] for number in range(15)]


async def test_unsolicited_line_is_delivered_while_idle(script: MakeScript) -> None:
    process = script("""
        next(events())
        say(action="noop")
        say(action="wake")
        next(events())
        say(action="noop")
    """)
    await process.start()
    assert await process.exchange(START) == NOOP
    late = await process.take_late()
    assert late is not None
    assert late.event is None
    assert (await process.exchange(TICK)).idle
    assert await process.wait() == 0
    assert await process.take_late() is None


async def test_event_behind_an_owed_line_is_not_sent(script: MakeScript) -> None:
    process = script("""
        for event in events():
            if event["event"] == "tick":
                continue  # It swallows ticks, so that a line is owed for ever.
            send("alice", event["event"])
    """)
    await process.start()
    await process.exchange(START)
    with pytest.raises(ScriptTimeout):
        await process.exchange(TICK, timeout=0.05)
    with pytest.raises(ScriptTimeout, match="was not sent") as raised:
        await process.exchange(message(), timeout=0.05)
    assert not raised.value.delivered
    await process.stop()
    # The line that answered `stop`, which owes none.
    assert [contents(late) for late in await all_late(process)] == [["stop"]]


async def test_cancelled_exchange_still_owes_its_line(script: MakeScript) -> None:
    process = script(LATE_SCRIPT.format(answer=SILENT))
    await process.start()
    await process.exchange(START)
    cancelled = asyncio.create_task(process.exchange(message("0.2", conversation_id="a")))
    await turns_until(lambda: process.owes)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert contents(await process.exchange(message("0", conversation_id="b"))) == ["b"]
    assert contents(await process.take_late()) == ["a"]


async def test_late_lines_that_nobody_takes_push_back(script: MakeScript, tmp_path: Path) -> None:
    process = script("""
        import select

        for number in range(5_000):
            while not select.select([], [sys.stdout], [], 0.2)[1]:
                open("full", "w").close()
            send("alice", f"{number} " + "x" * 1_000)
        open("done", "w").close()
    """)
    await process.start()
    first = await process.take_late()
    async with asyncio.timeout(30):
        while not (tmp_path / "full").exists():  # noqa: ASYNC110  # A file has no event.
            await asyncio.sleep(0.01)
    assert not (tmp_path / "done").exists()
    rest = await all_late(process)
    numbers = [str(contents(late)[0]).split()[0] for late in [first, *rest] if late]
    assert numbers == [str(number) for number in range(5_000)]
    assert process.returncode == 0


# --- Scripts that never get going ---


async def test_c05a_missing_module_is_told_with_exit_code(script: MakeScript) -> None:
    process = script("import not_there\n")
    await process.start()
    async with asyncio.timeout(5):
        with pytest.raises(ScriptExited, match=r"helper: the script ended \(exit code 1\)") as raised:
            await process.exchange(START)
    assert "not_there" in str(raised.value)
    assert raised.value.returncode == 1


async def test_c05b_last_words_on_stderr_are_told(script: MakeScript) -> None:
    process = script("""
        print("OPENAI_API_KEY missing", file=sys.stderr)
        sys.exit(3)
    """)
    await process.start()
    async with asyncio.timeout(5):
        with pytest.raises(ScriptExited, match=r"(?s)exit code 3.*OPENAI_API_KEY missing"):
            await process.exchange(START)
    with pytest.raises(ScriptExited):
        await process.exchange(TICK)


def test_c05c_missing_script_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"^no such script: .*/absent\.py$"):
        script_command(tmp_path / "absent.py")


def test_unknown_suffix_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "agent.rb").touch()
    with pytest.raises(ScriptError, match=r"'\.rb'.*gagent run --name agent -- CMD .*/agent\.rb$"):
        script_command(tmp_path / "agent.rb")


async def test_missing_program_is_told() -> None:
    process = ScriptProcess("helper", ["/nowhere/ruby", "agent.rb"])
    with pytest.raises(ScriptError, match="cannot start '/nowhere/ruby'"):
        await process.start()
    await process.aclose()
    assert process.returncode is None


async def test_c05d_script_that_kills_itself_is_told_with_signal(script: MakeScript) -> None:
    process = script("""
        for event in events():
            if event["event"] == "message":
                os.kill(os.getpid(), signal.SIGKILL)
            say(action="noop")
    """)
    await process.start()
    await process.exchange(START)
    async with asyncio.timeout(5):
        with pytest.raises(ScriptExited, match="killed by SIGKILL") as raised:
            await process.exchange(message())
    assert raised.value.returncode == -signal.SIGKILL


async def test_c05e_unflushed_answer_arrives(script: MakeScript) -> None:
    process = script("""
        for line in sys.stdin:
            print(json.dumps({"action": "noop"}))
    """)
    await process.start()
    assert await process.exchange(START, timeout=2) == NOOP


async def test_c05f_given_variables_are_added(script: MakeScript, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAGENT_NAME", "parent")
    process = script(
        """
        import shutil
        next(events())
        told = [os.environ["MODEL"], os.environ["GAGENT_BRIDGE"], os.environ.get("GAGENT_NAME"), sys.executable]
        send("alice", json.dumps([shutil.which("ls") is not None, *told]))
        """,
        env={"MODEL": "x", "GAGENT_NAME": "given"},
    )
    await process.start()
    (content,) = contents(await process.exchange(START))
    assert json.loads(str(content)) == [True, "x", "stdio", None, script_command(__file__)[0]]


async def test_script_gets_only_the_variables_that_it_may_have(
    script: MakeScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", "for this one")
    monkeypatch.setenv("OTHER_KEY", "for another one")
    process = script(
        """
        next(events())
        send("alice", json.dumps(dict(os.environ)))
        """,
        inherit=["MODEL_*"],
        env={"MODEL": "x"},
    )
    await process.start()
    environment = json.loads(str(contents(await process.exchange(START))[0]))
    assert (environment["MODEL_KEY"], environment["MODEL"], environment["PATH"]) == (
        "for this one",
        "x",
        os.environ["PATH"],
    )
    assert "OTHER_KEY" not in environment


def test_library_folder_comes_after_what_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert script_environment()["PYTHONPATH"].split(os.pathsep)[0] == "/mine"
    assert script_environment({"PYTHONPATH": "/given"})["PYTHONPATH"].split(os.pathsep)[0] == "/given"
    assert "" not in script_environment({"PYTHONPATH": ""}).get("PYTHONPATH", "unset").split(os.pathsep)


async def test_script_by_hand_in_shell(script: MakeScript) -> None:
    process = script(
        """
        while read -r line; do
          case "$line" in *'"stop"'*) exit 0 ;; esac
          echo '{"action":"noop"}'
        done
        """,
        suffix=".sh",
    )
    await process.start()
    assert await process.exchange(START) == NOOP
    assert await process.stop() == 0


# --- Full pipes ---


async def test_c06_both_pipes_full(script: MakeScript) -> None:
    process = script("""
        sys.stderr.write(("e" * 99 + "\\n") * 10_000)
        for _ in range(30):
            print("n" * 49_999)
            send("bob", "x" * 50_000)
        for event in events():
            if event["event"] == "stop":
                break
            if event["event"] == "message":
                send("alice", event["msg"]["content"], id=event["id"])
    """)
    await process.start()
    big = "y" * 3_000_000
    async with asyncio.timeout(10):
        # The first line that comes counts as the answer of a script without ids; the one with the id comes later.
        assert contents(await process.exchange(message(big))) == ["x" * 50_000]
        late = [await process.take_late() for _ in range(30)]
        assert [len(str(contents(item)[0])) for item in late] == [50_000] * 29 + [3_000_000]
        assert late[-1] is not None
        assert late[-1].event == message(big)
        assert await process.stop() == 0


async def test_c06_stop_works_while_the_script_does_not_read(script: MakeScript) -> None:
    process = script("""
        next(events())
        say(action="noop")
        time.sleep(600)
    """)
    await process.start()
    await process.exchange(START)
    with pytest.raises(ScriptTimeout):
        await process.exchange(message("z" * 3_000_000), timeout=0.1)
    # It reads nothing any more, so the event is still in the pipe; nothing is added to it.
    with pytest.raises(ScriptTimeout):
        await process.exchange(TICK, timeout=0.1)
    async with asyncio.timeout(10):
        assert await process.stop(grace=0.2) == -signal.SIGTERM


# --- Hard to kill ---


async def test_c07a_grandchild_that_holds_the_pipes_is_killed_too(script: MakeScript) -> None:
    process = script("""
        child = subprocess.Popen(["sleep", "600"])
        for event in events():
            if event["event"] == "stop":
                break
            send("alice", str(child.pid))
    """)
    await process.start()
    (pid,) = contents(await process.exchange(START))
    async with asyncio.timeout(10):
        assert await process.stop() == 0
    await until_gone(int(str(pid)))


async def test_end_is_noticed_though_a_stranger_holds_the_pipes(script: MakeScript) -> None:
    process = script("""
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        next(events())
        send("alice", str(child.pid))
        send("alice", "last words")
        sys.exit(5)
    """)
    await process.start()
    (pid,) = contents(await process.exchange(START))
    try:
        async with asyncio.timeout(5):
            assert await process.wait() == 5
            assert contents(await process.take_late()) == ["last words"]
            await process.aclose()
        assert not gone(int(str(pid)))
    finally:
        os.kill(int(str(pid)), signal.SIGKILL)


async def test_c07b_script_that_ignores_everything_is_killed_within_the_bound(
    script: MakeScript, tmp_path: Path
) -> None:
    process = script("""
        def ignore(*_):
            print("SIGTERM", file=heard, flush=True)

        heard = open("heard", "w")
        signal.signal(signal.SIGTERM, ignore)
        child = subprocess.Popen(["sleep", "600"])
        next(events())
        send("alice", str(child.pid))
        for line in sys.stdin:
            print(json.loads(line)["event"], file=heard, flush=True)
        print("end of stdin", file=heard, flush=True)
        while True:
            time.sleep(600)
    """)
    await process.start()
    (pid,) = contents(await process.exchange(START))
    assert process.pid is not None
    # What `stop` promises: grace + 3.5 s. And some more for a machine that has other things to do.
    async with asyncio.timeout(STOP_GRACE_S + 3.5 + 5):
        assert await process.stop() == -signal.SIGKILL
    assert (tmp_path / "heard").read_text().splitlines() == ["stop", "end of stdin", "SIGTERM"]
    await until_gone(process.pid, int(str(pid)))


async def test_c07c_start_and_stop_two_hundred_times(tmp_path: Path) -> None:
    path = tmp_path / "agent.sh"
    path.write_text(
        'while read -r line; do case "$line" in *stop*) exit 0 ;; *) echo \'{"action":"noop"}\' ;; esac; done'
    )
    for _ in range(200):
        async with ScriptProcess("helper", script_command(path)) as process:
            assert await process.exchange(START) == NOOP
            assert await process.stop() == 0
    # The fixture counts descriptors and children, zombies among them.


async def test_script_has_a_process_group_of_its_own(script: MakeScript) -> None:
    process = script("for event in events(): say(action='noop')")
    await process.start()
    assert process.pid is not None
    # Which is not this one's, so Ctrl-C at the terminal of the bridge does not reach it.
    assert os.getpgid(process.pid) == process.pid


async def test_guard_goes_with_the_script(script: MakeScript) -> None:
    process = script("for event in events(): say(action='noop')")
    await process.start()
    pipe = os.readlink(f"/proc/self/fd/{process._guard._pipe}")

    def guards() -> list[int]:
        found = []
        for one in psutil.process_iter(["name"]):
            with contextlib.suppress(OSError):
                if one.info["name"] == "sh" and os.readlink(f"/proc/{one.pid}/fd/3") == pipe:
                    found.append(one.pid)
        return found

    (guard,) = guards()
    await process.stop()
    await until_gone(guard)


async def test_stop_may_be_answered_and_repeated(script: MakeScript) -> None:
    process = script("""
        for event in events():
            if event["event"] == "stop":
                send("alice", "bye")
                sys.exit(7)
            say(action="noop")
    """)
    await process.start()
    await process.exchange(START)
    assert list(await asyncio.gather(process.stop(), process.stop())) == [7, 7]
    assert await process.stop() == 7
    assert [contents(late) for late in await all_late(process)] == [["bye"]]
    with pytest.raises(RuntimeError, match="runs once"):
        await process.start()


async def test_event_under_way_is_released_by_stop(script: MakeScript) -> None:
    process = script("""
        for event in events():
            if event["event"] == "stop":
                sys.exit(0)
    """)
    await process.start()
    waiting = asyncio.create_task(process.exchange(START))
    await turns_until(lambda: process.owes)
    await process.stop()
    with pytest.raises(ScriptExited, match="exit code 0"):
        await waiting


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
async def test_script_that_closes_a_pipe_and_goes_on_is_ended(script: MakeScript, stream: str) -> None:
    process = script(f"""
        next(events())
        os.write(1, b'{{"action":"noop"}}\\n')
        os.close(sys.{stream}.fileno())
        time.sleep(600)
    """)
    await process.start()
    await process.exchange(START)
    # The loop has to notice first that stdin is closed, or the event is lost in the pipe.
    await turns_until(lambda: stream == "stdout" or (process._child is not None and process._child.stdin.is_closing()))
    async with asyncio.timeout(8):
        with pytest.raises(ScriptExited) as raised:
            await process.exchange(TICK, timeout=6)
    assert f"closed its {stream} and went on (killed by SIGKILL)" in str(raised.value)
