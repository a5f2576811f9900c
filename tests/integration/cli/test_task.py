"""`gagent task` against a real bus: what it hands out, shows, answers and calls off, and with which exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.cli.conftest import Place

WORKER = """
import asyncio, os
from gagent_grpc import Agent, TaskRefused

worker = Agent("worker", bus=os.environ["GAGENT_BUS"], services=["paint"])

@worker.on_delegate
async def paint(task):
    what = task.description
    if what == "refuse":
        raise TaskRefused("not on Sundays")
    if what == "fail":
        raise ValueError("no paint")
    if what == "echo":
        return task.parameters
    if what == "ask":
        return {"colour": await task.ask("Which colour?")}
    if what == "signal":
        await task.progress(note="listening")
        async for signal in task.signals():
            return [signal.name, signal.value]
    if what == "wait":
        await task.progress(0.25, "waiting")
        await asyncio.Event().wait()
    if what == "stream":
        await task.progress(0.5, "half way")
        for part in ("one ", "two\\n", "\\x1b[31mthree"):
            await task.output(part)
        return "all three"

async def main():
    async with worker:
        print("worker is there", flush=True)
        await worker.wait()

asyncio.run(main())
"""


HALF_A_CHARACTER = """
import asyncio, os
import grpc
from gagent_grpc import Agent
from gagent_grpc.config import SESSION_METADATA_KEY
from gagent_grpc.pb.gagent.v1.task_service_pb2 import DelegateTaskRequest
from gagent_grpc.pb.gagent.v1.task_service_pb2_grpc import TaskServiceStub

async def main():
    async with Agent("other", bus=os.environ["GAGENT_BUS"]) as other, grpc.aio.insecure_channel(os.environ["GAGENT_BUS"]) as channel:
        # As programs in other languages write it; this library would not.
        request = DelegateTaskRequest(task_id="half", target="worker", description="refuse", parameters_json='{"x":"\\\\ud800"}')
        await TaskServiceStub(channel).DelegateTask(request, metadata=((SESSION_METADATA_KEY, other._session.token),))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def works(town: Place) -> Iterator[Place]:
    """A place with a bus and an agent that works on tasks."""
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(
        command, env=town.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "worker is there\n"
            yield town
        finally:
            process.terminate()


def delegate(place: Place, what: str, *arguments: str) -> str:
    done = place.gagent("task", "delegate", "worker", what, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_delegated_task_is_waited_for_and_its_result_printed(works: Place) -> None:
    order = '{"limit": 3, "ratio": 3.0, "ticket": 9007199254740993}'
    done = works.gagent("task", "delegate", "role:paint", "echo", "--parameters", order, "--wait")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{order}\n", "")
    piped = works.gagent("task", "delegate", "worker", "echo", "--parameters", "-", "--wait", "--json", text=order)
    task = json.loads(piped.stdout)
    assert repr(task["result"]) == repr(json.loads(order))
    assert (task["state"], task["delegator"], task["executor"]) == ("completed", "cli-tasks@local", "worker@local")


def test_half_a_character_in_json_of_others_is_shown_as_json_says_it(works: Place) -> None:
    subprocess.run([sys.executable, "-c", HALF_A_CHARACTER], env=works.env, check=True, timeout=30)
    shown = works.gagent("task", "get", "half", "--delegator", "other", "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert '{\n    "x": "\\ud800"\n  }' in shown.stdout
    assert json.loads(shown.stdout)["parameters"] == {"x": "\ud800"}


def test_counts_of_the_bus_tell_what_runs(works: Place) -> None:
    def stats() -> dict[str, int]:
        found = json.loads(works.gagent("task", "stats", "--json").stdout)
        return {**found.pop("by_state"), **found}

    before = stats()
    task_id = delegate(works, "ask")
    works.gagent("task", "delegate", "worker", "echo", "--wait")
    now = stats()
    assert {name: now[name] - before[name] for name in ("delegated", "running", "completed", "failed", "waiting")} == {
        "delegated": 2,
        "running": 1,
        "completed": 1,
        "failed": 0,
        "waiting": 0,
    }
    works.gagent("task", "answer", task_id, "blue")
    table = works.gagent("task", "stats")
    assert table.returncode == 0
    assert re.search(r"^input-required +\d+$", table.stdout, re.MULTILINE)
    assert re.search(r"^leases +\d+$", table.stdout, re.MULTILINE)


def test_output_comes_on_stderr_and_the_result_on_stdout(works: Place) -> None:
    done = works.gagent("task", "delegate", "worker", "stream", "--wait")
    assert (done.returncode, done.stdout) == (0, "all three\n")
    assert done.stderr == "one two\n\\x1b[31mthree\n"


def test_how_a_task_ends_is_told_by_words_and_exit_code(works: Place) -> None:
    refused = works.gagent("task", "delegate", "worker", "refuse", "--wait")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(r"the task '[-\w]+' of worker@local was rejected: not on Sundays\n", refused.stderr)
    expired = works.gagent("task", "delegate", "worker", "wait", "--wait", "--deadline", "0.2")
    assert expired.returncode == 4
    assert "expired" in expired.stderr
    late = works.gagent("task", "delegate", "worker", "wait", "--wait", "--timeout", "0.5")
    assert late.returncode == 4
    assert "it goes on; see gagent task watch" in late.stderr
    nobody = works.gagent("task", "delegate", "nobody", "x")
    assert (nobody.returncode, nobody.stdout) == (3, "")
    assert "nobody" in nobody.stderr
    unserved = works.gagent("task", "delegate", "role:sing", "x")
    assert (unserved.returncode, unserved.stdout) == (3, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("delegate", "worker", "x", "--parameters", "[1]"), "not a JSON object"),
        (("delegate", "worker", "x", "--parameters", "{'a': 1}"), "not JSON"),
        (("delegate", "two words", "x"), "two words"),
        (("delegate", "worker", "x", "--deadline", "-1"), "deadline"),
        (("list", "--state", "asleep"), "expected one of: submitted, accepted"),
        (("answer", "t", "{", "--as-json"), "not JSON"),
    ],
)
def test_what_was_typed_wrong_is_told(works: Place, arguments: tuple[str, ...], words: str) -> None:
    done = works.gagent("task", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_task_is_listed_shown_and_cancelled(works: Place) -> None:
    task_id = delegate(works, "wait", "--redeliver")
    watching = works.start("task", "watch", task_id)
    watching.said("progress 25% waiting")
    table = works.gagent("task", "list", "--state", "running").stdout.splitlines()
    assert table[0].split() == ["ID", "STATE", "PROGRESS", "DELEGATOR", "EXECUTOR", "ATTEMPT", "CREATED", "DESCRIPTION"]
    (row,) = [line for line in table if line.startswith(task_id)]
    assert row.split()[1:6] == ["running", "25%", "cli-tasks@local", "worker@local", "1/3"]
    listed = json.loads(works.gagent("task", "list", "--executor", "worker", "--limit", "1", "--json").stdout)
    assert [one["task_id"] for one in listed] == [task_id]
    cancelled = works.gagent("task", "cancel", task_id, "--reason", "enough")
    assert cancelled.returncode == 0
    assert cancelled.stdout.startswith(f"{task_id}: ")
    # Whoever watches sees the end of it.
    assert watching.end() == 1
    assert any(line.endswith("cancelled (enough)") for line in watching.lines)
    shown = works.gagent("task", "get", task_id).stdout
    assert re.search(r"^state: +cancelled \(enough\)$", shown, re.MULTILINE)
    assert re.search(r"^attempt 1: +worker@local from .*: cancelled$", shown, re.MULTILINE)
    unknown = works.gagent("task", "get", "no-such-task")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no-such-task" in unknown.stderr


def test_question_is_answered_and_signal_told(works: Place) -> None:
    task_id = delegate(works, "ask")
    watching = works.start("task", "watch", task_id, "--json")
    watching.said("Which colour?")
    assert works.gagent("task", "answer", task_id, "-", text="blue\n").stdout == f"{task_id}: running\n"
    assert watching.end() == 0
    events = [json.loads(line) for line in watching.lines]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["value"] == {"colour": "blue"}
    task_id = delegate(works, "signal")
    works.gagent("task", "signal", task_id, "hurry", '{"by": 3.0}')
    rest = works.gagent("task", "watch", task_id, "--after", "4", "--json")
    assert rest.returncode == 0
    events = [json.loads(line) for line in rest.stdout.splitlines()]
    assert events[0]["sequence"] == 5
    assert repr(events[-1]["value"]) == repr(["hurry", {"by": 3.0}])


def test_the_same_id_again_is_the_same_task_and_several_need_a_delegator(works: Place) -> None:
    assert [delegate(works, "echo", "--task-id", "t-1") for _ in range(2)] == ["t-1"] * 2
    other = works.gagent("task", "delegate", "worker", "other", "--task-id", "t-1")
    assert (other.returncode, other.stdout) == (1, "")
    assert delegate(works, "echo", "--task-id", "t-2", "--as", "anna") == "t-2"
    assert delegate(works, "echo", "--task-id", "t-2", "--as", "berta") == "t-2"
    several = works.gagent("task", "get", "t-2")
    assert several.returncode == 2
    assert "berta@local, anna@local" in several.stderr
    told = works.gagent("task", "get", "t-2", "--delegator", "berta", "--json")
    assert json.loads(told.stdout)["delegator"] == "berta@local"


def test_a_terminal_sees_a_bar_and_the_output_as_it_comes(works: Place) -> None:
    """What is drawn on the terminal stays off stdout, which has the result alone."""
    near, far = pty.openpty()
    drawn = bytearray()

    def read() -> None:
        while True:
            try:
                data = os.read(near, 65536)
            except OSError:
                return
            if not data:
                return
            drawn.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gagent_grpc", "task", "delegate", "worker", "stream", "--wait"],
            env={**works.env, "TERM": "xterm", "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=far,
            text=True,
            timeout=30,
            check=False,
        )
    finally:
        os.close(far)
        reader.join(30)
        os.close(near)
    screen = drawn.decode()
    assert (done.returncode, done.stdout) == (0, "all three\n")
    assert "50%" in screen
    assert "half way" in screen
    assert "one two" in screen
    assert "\\x1b[31mthree" in screen


def test_help_answers_at_once(works: Place) -> None:
    done = works.gagent("task", "--help")
    assert done.returncode == 0
    for command in ("delegate", "list", "get", "watch", "answer", "signal", "cancel"):
        assert re.search(rf"^  {command} ", done.stdout, re.MULTILINE)
    heavy = "import sys; from gagent_grpc.cli import main; print([n for n in ('grpc', 'rich', 'google.protobuf') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout == "[]\n"
