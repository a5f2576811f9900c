"""`[[agents]]` of `gagent.toml`: from tables to agents, and what is said of tables that make none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.cli.fleet_config import fleet_agents
from gagent_grpc.cli.settings import resolve
from gagent_grpc.errors import ConfigurationError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker.py").write_text("")
    return tmp_path


def agents(folder: Path, text: str) -> list[ScriptAgent]:
    (folder / "gagent.toml").write_text(text)
    return fleet_agents(None, resolve())


def test_tables_make_agents_in_their_order(folder: Path) -> None:
    made = agents(
        folder,
        """
        model = "general"

        [[agents]]
        script = "worker.py"
        count = 3

        [[agents]]
        name = "boss"
        command = ["node", "boss.mjs"]
        """,
    )
    assert [agent.name for agent in made] == ["worker-1", "worker-2", "worker-3", "boss"]
    assert [agent.what for agent in made] == ["worker.py"] * 3 + ["node boss.mjs"]


def test_script_is_looked_for_beside_the_settings_file(folder: Path) -> None:
    there = folder / "there"
    there.mkdir()
    (there / "near.py").write_text("")
    (there / "fleet.toml").write_text("[[agents]]\nscript = 'near.py'")
    (agent,) = fleet_agents(there / "fleet.toml", resolve(there / "fleet.toml"))
    assert agent.name == "near"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"gagent.toml: no \[\[agents\]\] table; expected one for each script"),
        ("agents = 3", "agents is no list of tables"),
        ("[agents]\nscript = 'worker.py'", "agents is no list of tables"),
        ("[[agents]]", r"\[\[agents\]\] number 1: expected either script or command"),
        ("[[agents]]\nscript = 'worker.py'\ncommand = ['x']", "expected either script or command"),
        ("[[agents]]\ncommand = ['x']", "a command needs a name"),
        ("[[agents]]\nscript = 'gone.py'", "no such script: gone.py"),
        ("[[agents]]\nname = 'a'\nscript = 'gagent.toml'", r"number 1 \(a\): .*no interpreter is known"),
        ("[[agents]]\nscript = 'worker.py'\nmodle = 'x'", "unknown key 'modle'; expected one of: name, script"),
        ("[[agents]]\nscript = 'worker.py'\ncount = 0", "count is 0: input should be greater"),
        (
            "[[agents]]\nscript = 'worker.py'\nmax_tokens = 'many'",
            "max_tokens is 'many': input should be a valid integer",
        ),
        ("[[agents]]\nscript = 'worker.py'\nenv = { A = [1] }", r"env.A is \[1\]: input should be a valid string"),
        ("[[agents]]\nscript = 'worker.py'\nanswer_timeout = inf", "answer_timeout is inf"),
        ("[[agents]]\nscript = 'worker.py'\nname = 'a b'", r"number 1 \(a b\): "),
        ("[[agents]]\nscript = 'worker.py'\nname = ''", r"number 1 \(\): agent name '': expected"),
        ('[[agents]]\nscript = "worker.py"\nname = "a\\u001b[31m"', r"^gagent.toml: \S+ number 1 \(a\\x1b\[31m\): "),
        (
            "[[agents]]\nscript = 'worker.py'\nconfig = { day = 2026-01-01 }",
            "number 1: config.day cannot be told to a script",
        ),
        ("[[agents]]\nscript = 'worker.py'\nconfig = { a = { b = [nan] } }", "number 1: config.a cannot be told"),
        (
            "[[agents]]\nscript = 'worker.py'\n[[agents]]\nscript = 'worker.py'",
            "number 2: 'worker' is the name of number 1",
        ),
        (
            "[[agents]]\nscript = 'worker.py'\ncount = 2\n[[agents]]\nname = 'worker-2'\nscript = 'worker.py'",
            r"number 2 \(worker-2\): 'worker-2' is the name of number 1",
        ),
    ],
)
def test_tables_that_make_no_agents_are_told(folder: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        agents(folder, text)


def test_numbers_come_before_the_platform(folder: Path) -> None:
    made = agents(folder, "[[agents]]\nname = 'worker@local'\nscript = 'worker.py'\ncount = 2")
    assert [agent.agent.aid for agent in made] == ["worker-1@local", "worker-2@local"]


def test_tables_are_no_setting(folder: Path) -> None:
    (folder / "gagent.toml").write_text("max_tokens = 7\n[[agents]]\nscript = 'worker.py'")
    assert resolve().max_tokens == 7
