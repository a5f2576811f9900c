"""`gagent auth token`: what it prints, what it never prints, and what it says of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Gagent = Callable[..., tuple[int, str, str]]


def issue(gagent: Gagent, *arguments: str) -> tuple[str, str, str]:
    """Return a new token, its id, and what was said beside it."""
    code, out, error = gagent("auth", "token", "issue", *arguments)
    assert code == 0
    (token,) = out.splitlines()
    return token, token.split("_")[1], error


def test_a_token_is_printed_once_and_listed_without_it(gagent: Gagent, tmp_path: Path) -> None:
    assert f"No token in {tmp_path}/state/gagent/local.tokens.json" in gagent("auth", "token", "list")[2]
    token, token_id, said = issue(gagent, "alice", "--label", "laptop")
    assert said == f"Token {token_id} for alice, valid until it is revoked. It is not shown again; keep it safe.\n"
    head, row = gagent("auth", "token", "list")[1].splitlines()
    assert head.split() == ["ID", "AGENTS", "STATE", "CREATED", "EXPIRES", "LABEL"]
    assert row.split()[:3] == [token_id, "alice", "valid"]
    assert row.split()[-2:] == ["never", "laptop"]
    everything = row + gagent("auth", "token", "list", "--json")[1]
    assert token.removeprefix(f"gag_{token_id}_") not in everything


def test_a_token_is_revoked_by_its_id(gagent: Gagent) -> None:
    _, token_id, _ = issue(gagent, "alice")
    _, other, _ = issue(gagent, "bob", "sales-*", "--ttl", "30d")
    assert gagent("auth", "token", "revoke", token_id)[:2] == (0, f"{token_id}: revoked\n")
    listed = json.loads(gagent("auth", "token", "list", "--json")[1])
    assert [(one["id"], one["agents"], one["state"]) for one in listed] == [
        (token_id, ["alice"], "revoked"),
        (other, ["bob", "sales-*"], "valid"),
    ]
    assert listed[0]["revoked_at"]
    assert listed[1]["expires_at"]


def test_another_platform_has_another_file_and_a_file_can_be_named(
    gagent: Gagent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    issue(gagent, "alice")
    assert "hub.tokens.json" in gagent("auth", "token", "list", "--platform", "hub")[2]
    issue(gagent, "bob", "--tokens", "own.json")
    monkeypatch.setenv("GAGENT_TOKENS", "own.json")
    (found,) = json.loads(gagent("auth", "token", "list", "--json")[1])
    assert found["agents"] == ["bob"]
    assert json.loads(gagent("config", "--json")[1])["tokens"] == {
        "value": f"{tmp_path}/own.json",
        "from": "GAGENT_TOKENS",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("issue", "two words"), "agent name 'two words'"),
        (("issue", "ams"), "an agent of the platform itself"),
        (("issue", "alice", "--ttl", "soon"), "'soon'; expected a time such as 90s"),
        (("issue", "alice", "--ttl", "0d"), "'0d'; expected a time"),
        (("issue", "alice", "--ttl", "999999999w"), "is too long"),
        (("issue", "alice", "--ttl", "9999w", "--label", "x" * 201), "at most 200"),
        (("revoke", "abc"), "'abc': no token has this id"),
        (("issue",), "Missing argument"),
    ],
)
def test_what_cannot_be_done_is_said(gagent: Gagent, arguments: tuple[str, ...], said: str) -> None:
    code, out, error = gagent("auth", "token", *arguments)
    assert (code, out) == (2, "")
    assert said in error
    assert not list(Path("state").rglob("*.json"))
