"""The README's examples, run as a reader would paste them.

A block that follows `<!-- session: NAME -->` is a terminal: its commands run one after the other in one shell, in an
empty folder, with a bus at hand, and print what the page says; `...` in the page stands for anything. A block that
follows `<!-- file: NAME -->` is a file in that folder.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gagent_grpc import MemoryStore
from gagent_grpc.testing import running_bus

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"<!-- (session|file): (\S+) -->\n```\w*\n(.*?)```", re.DOTALL)
MARK = "@@@ next command"


def blocks(kind: str) -> dict[str, str]:
    return {name: text for what, name, text in BLOCK.findall(README.read_text(encoding="utf-8")) if what == kind}


def written_files() -> dict[str, str]:
    """Return the files that some terminal of the page writes, by name: a later one goes on with them."""
    return {
        name: text
        for session in blocks("session").values()
        for name, text in re.findall(r"^\$ cat > (\S+) <<'END'\n(.*?)^END$", session, re.DOTALL | re.MULTILINE)
    }


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a terminal and what it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        end = 1
        heredoc = re.search(r"<<\s*'?(\w+)'?", lines[0])
        if heredoc:
            end = next(i for i, line in enumerate(lines) if line.rstrip("\n") == heredoc[1]) + 1
        yield "".join(lines[:end]), "".join(lines[end:])


def pattern(expected: str) -> re.Pattern[str]:
    return re.compile(re.escape(expected.strip()).replace(r"\.\.\.", r".*?"), re.DOTALL)


def test_page_has_examples() -> None:
    assert len(blocks("session")) >= 3
    text = README.read_text(encoding="utf-8")
    assert "gagent request" in text
    names = [(kind, name) for kind, name, _ in BLOCK.findall(text)]
    # One of two with the same name would not be run.
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", sorted(blocks("session")))
async def test_readme_session_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    for file, text in {**written_files(), **blocks("file")}.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    commands = list(steps(blocks("session")[name]))
    # Job control, so that what runs in the background can be interrupted as from a terminal.
    script = ["set -m"]
    for command, _ in commands:
        script.append(f"echo '{MARK}'")
        background = command.rstrip().endswith("&")
        # What a background job prints may come at any time, so it goes to a file of its own.
        script.append(
            command.rstrip().removesuffix("&") + " >>background.log 2>&1 &" if background else command.rstrip("\n")
        )
    script += [f"echo '{MARK}'", "for job in $(jobs -p); do kill -INT -- -$job; done", "wait"]
    async with running_bus(MemoryStore()) as bus:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "GAGENT_BUS": bus.address,
            "LC_ALL": "C.UTF-8",
        }
        run = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", "\n".join(script)],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=90,
            check=False,
            text=True,
        )
    # After the last mark is what the shell says of the jobs that end.
    printed = run.stdout.split(f"{MARK}\n")[1:-1]
    log = tmp_path / "background.log"
    about = f"{run.stdout}\n-- background --\n{log.read_text() if log.exists() else ''}"
    assert len(printed) == len(commands), about
    # What the shell says of its jobs may come at any time.
    printed = [re.sub(r"^\[\d+\].*\n?", "", text, flags=re.MULTILINE) for text in printed]
    for (command, expected), actual in zip(commands, printed, strict=True):
        assert pattern(expected).fullmatch(actual.strip()), (
            f"$ {command}{actual}\n-- the page says --\n{expected}\n{about}"
        )
