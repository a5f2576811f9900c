"""What the command decides before it asks any bus: settings, arguments, and the errors that name both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Gagent = Callable[..., tuple[int, str, str]]


def test_config_tells_what_is_in_force_and_from_where(
    gagent: Gagent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("gagent.toml").write_text('model = "small"\nbus = "file:1"\n')
    monkeypatch.setenv("GAGENT_BUS", "127.0.0.1:1")
    code, out, _ = gagent("config", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["bus"] == {"value": "127.0.0.1:1", "from": "GAGENT_BUS"}
    assert shown["model"] == {"value": "small", "from": "gagent.toml"}
    assert shown["store"] == {"value": f"sqlite:{tmp_path}/state/gagent/local.db", "from": "default"}
    table = gagent("config")[1].splitlines()
    assert table[0].split() == ["SETTING", "VALUE", "FROM"]
    assert ["model", "small", "gagent.toml"] in [line.split() for line in table]


def test_a_table_in_a_pipe_cuts_nothing_and_pads_no_line(gagent: Gagent) -> None:
    Path("gagent.toml").write_text(f'system_prompt = "{"x" * 500}"\n')
    lines = gagent("config")[1].splitlines()
    assert any("x" * 500 in line for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_what_others_wrote_is_no_markup_and_moves_no_cursor(gagent: Gagent) -> None:
    Path("gagent.toml").write_text('model = "[red]\\u001b[2J"\n')
    out = gagent("config")[1]
    assert "[red]\\x1b[2J" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("command", ["ps", "config", "serve", "df search", "request bob hi", "run --name a -- cat"])
def test_a_bad_settings_file_stops_every_command(gagent: Gagent, command: str) -> None:
    Path("gagent.toml").write_text("colour = 1\n")
    code, out, error = gagent(*command.split())
    assert (code, out) == (2, "")
    assert error.startswith("gagent.toml: unknown key 'colour'; expected one of: bus, ")


def test_an_unknown_variable_is_told_with_the_nearest_known_one(
    gagent: Gagent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAGENT_LISTN", "1")
    monkeypatch.setenv("GAGENT_COLOUR_OF_MONEY", "1")
    # Those of script agents are known.
    monkeypatch.setenv("GAGENT_SERVICES", "spell")
    monkeypatch.setenv("GAGENT_NAME", "bob")
    code, _, error = gagent("config")
    assert code == 0
    assert error.splitlines() == [
        "GAGENT_COLOUR_OF_MONEY is ignored: no such setting. See them: gagent config",
        "GAGENT_LISTN is ignored: no such setting. Did you mean GAGENT_LISTEN?",
    ]


@pytest.mark.parametrize("command", ["shout", "request", "ps --loud", "request bob hi --timeout soon", "df"])
def test_a_command_that_is_not_understood_is_a_usage_error(gagent: Gagent, command: str) -> None:
    code, out, error = gagent(*command.split())
    assert code == 2
    assert "Usage: " in out + error


def test_a_bad_performative_names_the_22_acts(gagent: Gagent) -> None:
    code, _, error = gagent("send", "bob", "hi", "--performative", "shout")
    assert code == 2
    assert error.startswith("unknown performative 'shout'; expected one of: accept-proposal, agree, ")
    assert len(error.partition("expected one of: ")[2].split(", ")) == 22


@pytest.mark.parametrize(
    "arguments",
    [
        ["request", "two words", "hi"],
        ["send", "", "hi"],
        ["kill", "--", "-x-"],
        ["suspend", "a@b c"],
        ["run", "--name", "two words", "--", "cat"],
    ],
)
def test_a_bad_name_is_named_with_the_expected_form(gagent: Gagent, arguments: list[str]) -> None:
    code, out, error = gagent(*arguments)
    assert (code, out) == (2, "")
    assert error.startswith(("agent name ", "platform name "))
    assert "expected 1 to " in error
    assert error.count("\n") == 1


def test_text_that_is_no_text_is_a_usage_error(gagent: Gagent) -> None:
    code, _, error = gagent("request", "bob", "caf\udce9")
    assert code == 2
    assert "expected UTF-8" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "missing.py: no such file"),
        ([], "expected a script"),
        (["--", "cat"], "expected a name"),
        (["--name", "n", "--"], "nothing is given behind --"),
        (["a.py", "--", "cat"], "a script and a command are both given"),
        (["a.py", "b.py"], "b.py"),
        (["--name", "n", "--env", "NOVALUE", "--", "cat"], "'NOVALUE': expected KEY=VALUE"),
        (
            ["--name", "n", "--tick-ms", "-1", "--", "cat"],
            "--tick-ms is -1: input should be greater than or equal to 0",
        ),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(gagent: Gagent, arguments: list[str], said: str) -> None:
    code, out, error = gagent("run", *arguments)
    assert (code, out) == (2, "")
    assert said in error


def test_a_file_without_a_known_interpreter_is_told_the_other_way(gagent: Gagent) -> None:
    Path("agent.pl").write_text("print 1;")
    code, _, error = gagent("run", "agent.pl")
    assert code == 2
    assert "gagent run --name agent -- CMD" in error
