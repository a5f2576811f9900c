"""Programs in processes of their own: the planner of the agent scripts, and the README's agent with a key."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from vendor import Asked, Call, Reply, Vendor
from waiting import WAIT, until

from gagent_grpc import Agent, FailureFromAgent
from gagent_grpc.server.app import Bus

from .conftest import KEY, Start

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "agent_scripts" / "python" / "llm_planner.py"
README = ROOT / "README.md"
LONG = 3 * WAIT
"""Seconds that a program may take that imports a vendor's library first."""


@contextlib.asynccontextmanager
async def program(path: Path, bus: Bus, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a Python program while the block lasts."""
    clean = {name: value for name, value in os.environ.items() if not re.match(r"(OPENAI|ANTHROPIC|GAGENT)_", name)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        path,
        env={**clean, "GAGENT_BUS": bus.address, "NO_PROXY": "127.0.0.1", **variables},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def offered(agent: Agent, name: str) -> None:
    async def is_there() -> bool:
        return any(one.description.name == f"{name}@local" for one in await agent.ams.search_all())

    async with asyncio.timeout(LONG):
        await until(is_there)


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "{}/v1"}, "/v1/chat/completions"),
        ({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "{}"}, "/v1/messages"),
    ],
)
async def test_the_planner_solves_a_question_by_asking_two_others(
    variables: dict[str, str], path: str, bus: Bus, start: Start, vendor: Vendor
) -> None:
    def answer(asked: Asked) -> Reply:
        """Play all three models: the two that know something, and the one that plans."""
        if "tools" not in asked.body:
            said = json.dumps(asked.body)
            return Reply("Ulm, Passau and Vienna" if "You know rivers" in said else "161 metres, in Ulm")
        results = asked.results
        if not results:
            return Reply(calls=[Call("search_agents", {}, "c1")])
        if len(results) == 1:
            found = [one["agent"] for one in json.loads(results[0])["agents"]]
            questions = ["Which towns lie on the Danube?", "How tall is the tallest church, and where?"]
            pairs = zip(sorted(found, reverse=True), questions, strict=True)
            return Reply(
                calls=[Call("ask_agent", {"agent": a, "question": q}, f"c{n}") for n, (a, q) in enumerate(pairs, 2)]
            )
        return Reply(f"Ulm. {results[1]}; {results[2]}")

    vendor.answer = answer
    variables = {name: value.format(vendor.url) for name, value in variables.items()}
    await start("rivers", services=["answer"], system_prompt="You know rivers.")
    await start("churches", services=["answer"], system_prompt="You know churches.")
    # Nobody that it may ask.
    await start("other", services=["something else"])
    async with program(SCRIPT, bus, **variables), Agent("alice", bus=bus.address) as alice:
        await offered(alice, "llm_planner")
        question = "Which town on the Danube has the tallest church?"
        answer_of = await alice.request("llm_planner", question, timeout=LONG)
    assert answer_of.content == "Ulm. Ulm, Passau and Vienna; 161 metres, in Ulm"
    planned = [asked for asked in vendor.asked if "tools" in asked.body]
    assert [asked.path for asked in planned] == [path] * 3
    assert len(vendor.asked) == 5


async def test_c22_the_script_asks_no_model_when_nobody_waits_for_the_answer(bus: Bus, vendor: Vendor) -> None:
    variables = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{vendor.url}/v1", "GAGENT_NAME": "llm"}
    async with program(SCRIPT.with_name("llm.py"), bus, **variables), Agent("alice", bus=bus.address) as alice:
        await offered(alice, "llm")
        with pytest.raises(FailureFromAgent, match="reply-by had passed"):
            await alice.request("llm", "late", reply_by=datetime.now(UTC), timeout=LONG)
        by = datetime.now(UTC) + timedelta(seconds=LONG)
        answer = await alice.request("llm", "in time", reply_by=by, timeout=LONG)
    assert answer.content == "model says: in time"
    assert [asked.question for asked in vendor.asked] == ["in time"]


async def test_the_agent_of_the_readme_answers_with_a_model_when_there_is_a_key(
    bus: Bus, vendor: Vendor, tmp_path: Path
) -> None:
    match = re.search(r"<!-- file: teller\.py -->\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    teller = tmp_path / "teller.py"
    teller.write_text(match[1], encoding="utf-8")
    variables = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{vendor.url}/v1"}
    async with program(teller, bus, **variables), Agent("alice", bus=bus.address) as alice:
        await offered(alice, "teller")
        answer = await alice.request("teller", "What is a mailbox?", timeout=LONG)
    assert answer.content == "model says: What is a mailbox?"
    assert vendor.asked[0].body["model"] == "gpt-4o-mini"


def test_importing_agents_imports_no_library_of_a_vendor() -> None:
    code = "import sys, gagent_grpc.llm; print([n for n in ('openai', 'anthropic') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
