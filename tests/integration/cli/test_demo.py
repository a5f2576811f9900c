"""`gagent demo`: real scripts, a real conversation, and nothing left of it."""

from __future__ import annotations

import contextlib
import signal
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place


@pytest.fixture
def left_behind(place: Place) -> Callable[[], list[str]]:
    """Return a function that lists the processes which descend from commands of the place and still run."""
    mark = place.env["TEST_MARK"] = uuid.uuid4().hex

    def find() -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("TEST_MARK") == mark:
                    found.append(" ".join(process.cmdline()))
        return found

    return find


def test_the_demo_shows_a_conversation_and_leaves_nothing(place: Place, left_behind: Callable[[], list[str]]) -> None:
    place.env["OPENAI_API_KEY"] = ""
    place.env["TMPDIR"] = str(place.folder)
    demo = place.start("demo")
    assert demo.end() == 0, demo.lines
    said = [" ".join(line.split()) for line in demo.lines]
    assert said[0].startswith("A bus listens at 127.0.0.1:")
    for line in (
        "visitor > echo request Is anybody there?",
        "echo > visitor inform Is anybody there?",
        # The planner knew nobody; the DF told it.
        "tester > planner request What is an agent?",
        "planner > guide request What is an agent?",
        "planner > llm request What is an agent?",
        "llm > planner inform (echo: no OPENAI_API_KEY) What is an agent?",
        "guide > planner inform There are echo, guide, llm, planner, tester.",
    ):
        assert line in said
    assert sum(line.startswith("planner > tester inform") for line in said) == 3
    assert said[-1].startswith("Done: ")
    assert left_behind() == []
    assert list(place.folder.glob("gagent-demo-*")) == []


def test_ctrl_c_ends_the_demo_with_every_agent(place: Place, left_behind: Callable[[], list[str]]) -> None:
    demo = place.start("demo")
    demo.said("planner is a script")
    assert demo.end(signal.SIGINT) == 130, demo.lines
    assert left_behind() == []
