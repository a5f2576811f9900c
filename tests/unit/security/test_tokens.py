"""Tokens in their file: issued, shown, revoked, expired, and what the file never says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagent_grpc.errors import ConfigurationError, InvalidArgument, InvalidName, Unauthenticated
from gagent_grpc.security.tokens import Token, TokenFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens.json"


def test_a_token_is_known_by_its_text_alone(path: Path) -> None:
    made, text = TokenFile(path).issue(["alice"], label="laptop")
    file = TokenFile(path)
    file.read()
    assert file.authenticate(text) == made
    assert (made.agents, made.label, made.state(), made.agent) == (("alice",), "laptop", "valid", "alice")
    assert text.startswith(f"gag_{made.id}_")
    # 256 bits: 43 characters of base64.
    assert len(text.removeprefix(f"gag_{made.id}_")) == 43
    assert file.required


def test_the_file_has_no_token_and_is_its_owners_alone(path: Path) -> None:
    made, text = TokenFile(path).issue(["alice"])
    assert path.stat().st_mode & 0o777 == 0o600
    written = path.read_text()
    assert text not in written
    assert text.removeprefix(f"gag_{made.id}_") not in written
    assert text not in repr(TokenFile(path).issue(["bob"]))
    assert sorted(one.name for one in path.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[:-1],
        lambda text: text + "A",
        lambda text: text[:-2] + ("AA" if not text.endswith("AA") else "BB"),
        lambda text: text.upper(),
        lambda text: f" {text}",
        lambda text: text.replace("gag_", "gah_"),
        lambda text: "gag_000000000000_" + text[17:],
        lambda text: "\ud800",
    ],
)
def test_any_other_text_is_nobodys(path: Path, change: object) -> None:
    file = TokenFile(path)
    _, text = file.issue(["alice"])
    with pytest.raises(Unauthenticated) as raised:
        file.authenticate(change(text))  # type: ignore[operator]
    assert text[20:] not in str(raised.value)


def test_a_revoked_token_is_invalid_and_stays_so(path: Path) -> None:
    file = TokenFile(path)
    made, text = file.issue(["alice"])
    revoked = file.revoke(made.id)
    assert revoked.state() == "revoked"
    assert file.revoke(made.id) == revoked
    with pytest.raises(Unauthenticated):
        file.authenticate(text)
    assert not file.is_valid(made)
    # Still one that was issued: nobody gets in without one now.
    assert file.required


def test_a_token_that_is_over_is_invalid(path: Path) -> None:
    file = TokenFile(path)
    made, text = file.issue(["alice"], ttl=timedelta(days=30))
    assert file.authenticate(text).expires_at == made.created_at + timedelta(days=30)
    assert made.state(datetime.now(UTC) + timedelta(days=31)) == "expired"
    stored = json.loads(path.read_text())
    stored["tokens"][0]["expires_at"] = "2020-01-01T00:00:00+00:00"
    path.write_text(json.dumps(stored))
    assert file.refresh()
    with pytest.raises(Unauthenticated):
        file.authenticate(text)


def test_an_id_that_is_not_there_is_named_and_a_token_in_its_place_is_not(path: Path) -> None:
    file = TokenFile(path)
    _, text = file.issue(["alice"])
    with pytest.raises(InvalidArgument, match=r"'abc': no token has this id"):
        file.revoke("abc")
    with pytest.raises(InvalidArgument) as raised:
        file.revoke(text)
    assert text not in str(raised.value)


@pytest.mark.parametrize(
    ("patterns", "name", "allowed"),
    [
        (["alice"], "alice", True),
        (["alice"], "Alice", False),
        (["alice"], "alice2", False),
        (["sales-*"], "sales-eu", True),
        (["sales-*"], "sales-", True),
        (["sales-*"], "presales-eu", False),
        (["*-eu"], "sales-eu", True),
        (["a*z"], "az", True),
        (["a*z"], "abc", False),
        (["a.c"], "abc", False),
        (["*"], "whoever", True),
        (["bob", "sales-*"], "sales-us", True),
        (["*-*-eu"], "sales-north-eu", True),
        (["*-*-eu"], "sales-eu", False),
        (["a*a"], "a", False),
        (["ab*ba"], "aba", False),
        (["a**b"], "acb", True),
        # By a regular expression with a star in each place, this would take longer than anybody waits.
        (["*a" * 30 + "*b"], "a" * 128, False),
    ],
)
def test_a_pattern_stands_for_names(path: Path, patterns: list[str], name: str, allowed: bool) -> None:
    made, _ = TokenFile(path).issue(patterns)
    assert made.allows(name) is allowed


def test_the_agent_of_a_token_is_its_first_name() -> None:
    now = datetime.now(UTC)
    assert Token("1", ("sales-*", "bob", "carol"), "", now).agent == "bob"
    assert Token("1", ("sales-*",), "", now).agent is None


@pytest.mark.parametrize("names", [[], ["two words"], ["a@b"], ["ams"], ["df"], ["*?"], ["a"] * 101, ["-*"], [""]])
def test_names_that_no_agent_can_have_are_refused(path: Path, names: list[str]) -> None:
    with pytest.raises((InvalidArgument, InvalidName)):
        TokenFile(path).issue(names)
    assert not path.exists()


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta.max])
def test_a_time_that_is_none_is_refused(path: Path, ttl: timedelta) -> None:
    with pytest.raises(InvalidArgument, match="ttl"):
        TokenFile(path).issue(["alice"], ttl=ttl)


def test_a_file_that_others_may_read_is_refused_with_the_way_out(path: Path) -> None:
    file = TokenFile(path)
    file.issue(["alice"])
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match=r"its mode is 640.*chmod 600"):
        TokenFile(path).read()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2, "tokens": []}', '{"version": 1, "tokens": [{"id": "1"}]}', "[" * 5000]
)
def test_a_file_of_another_form_is_refused(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="no file of tokens"):
        TokenFile(path).read()


@pytest.mark.parametrize(
    "change",
    [
        {"created_at": "0001-01-01T00:00:00+23:59"},
        {"expires_at": "9999-12-31T23:59:59-23:59"},
        {"agents": ["ams"]},
        {"agents": ["two words"]},
        {"agents": [None]},
        {"id": "another"},
        {"id": None},
        {"sha256": None},
    ],
)
def test_a_file_with_a_value_that_nobody_issues_is_refused(path: Path, change: dict[str, Any]) -> None:
    TokenFile(path).issue(["alice"])
    stored = json.loads(path.read_text())
    stored["tokens"][0] |= change
    path.write_text(json.dumps(stored))
    with pytest.raises(ConfigurationError, match="no file of tokens"):
        TokenFile(path).read()


@pytest.mark.parametrize("first", [0, 1])
def test_a_token_that_is_there_twice_is_not_the_one_that_is_not_revoked(path: Path, first: int) -> None:
    TokenFile(path).issue(["alice"])
    stored = json.loads(path.read_text())
    (one,) = stored["tokens"]
    stored["tokens"].insert(first, one | {"revoked_at": "2026-01-01T00:00:00+00:00"})
    path.write_text(json.dumps(stored))
    with pytest.raises(ConfigurationError, match="no file of tokens"):
        TokenFile(path).read()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_told_and_not_waited_for(path: Path, make: Callable[[Path], None]) -> None:
    path.parent.mkdir()
    make(path)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="is no file"):
        TokenFile(path).read()


def test_a_change_of_the_file_is_seen_once(path: Path) -> None:
    running, other = TokenFile(path), TokenFile(path)
    running.read()
    assert not running.refresh()
    made, text = other.issue(["alice"])
    assert running.refresh()
    assert not running.refresh()
    assert running.authenticate(text) == made
    other.revoke(made.id)
    assert running.refresh()
    assert not running.is_valid(made)


def test_what_was_known_stays_when_the_file_breaks_and_ends_when_it_goes(path: Path) -> None:
    running = TokenFile(path)
    made, _ = running.issue(["alice"])
    path.write_text("broken")
    with pytest.raises(ConfigurationError):
        running.refresh()
    assert running.is_valid(made)
    # Told once, not at every look.
    assert not running.refresh()
    path.unlink()
    assert running.refresh()
    assert not running.is_valid(made)
    assert running.required


def test_tokens_that_are_issued_at_the_same_time_are_all_there(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = [text for _, text in pool.map(lambda n: TokenFile(path).issue([f"agent{n}"]), range(24))]
    program = (
        "import sys; from pathlib import Path; from gagent_grpc.security.tokens import TokenFile\n"
        f"TokenFile(Path({str(path)!r})).issue([sys.argv[1]])"
    )
    others = [subprocess.Popen([sys.executable, "-c", program, f"other{n}"], env=dict(os.environ)) for n in range(3)]
    assert [one.wait(30) for one in others] == [0, 0, 0]
    file = TokenFile(path)
    file.read()
    assert len(file.tokens) == 27
    assert {file.authenticate(text).agent for text in texts} == {f"agent{n}" for n in range(24)}


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        TokenFile(tmp_path / "file" / "tokens.json").issue(["alice"])


@settings(deadline=None)
@given(st.text())
def test_no_text_gets_in_by_chance(text: str) -> None:
    with pytest.raises(Unauthenticated):
        TokenFile(None).authenticate(text)
