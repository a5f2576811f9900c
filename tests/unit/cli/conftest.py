"""The command inside this process, in a folder and an environment of its own: for what it decides without a bus."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gagent_grpc.cli.main import main

Gagent = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _clean_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("GAGENT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def gagent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gagent:
    """Return a function that runs a command: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gagent", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run
