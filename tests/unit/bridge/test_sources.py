"""Which files a script is made of, and when they have changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gagent_grpc.bridge.sources import SourceFiles


async def changed(files: SourceFiles) -> list[str]:
    async with asyncio.timeout(10):
        return [path.name for path in await files.changed()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text("import json\nimport near\nfrom package.inner import thing\n")
    (tmp_path / "near.py").write_text("def late():\n    import far\n")
    (tmp_path / "far.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text("thing = 1")
    (tmp_path / "other.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", ["agent.py", "near.py", "far.py", "package/inner.py"])
async def test_script_and_what_it_imports_are_looked_at(folder: Path, name: str) -> None:
    files = SourceFiles(folder / "agent.py")
    (folder / name).write_text("x = 2")
    assert await changed(files) == [Path(name).name]


async def test_other_files_of_the_folder_do_not_count(folder: Path) -> None:
    files = SourceFiles(folder / "agent.py")
    (folder / "other.py").write_text("x = 2")
    (folder / "far.py").write_text("x = 2")
    assert await changed(files) == ["far.py"]


async def test_file_that_takes_the_place_of_another_one_counts(folder: Path) -> None:
    files = SourceFiles(folder / "agent.py")
    old = (folder / "agent.py").stat()
    new = folder / "agent.py.tmp"
    new.write_text((folder / "agent.py").read_text())
    os.utime(new, ns=(old.st_atime_ns, old.st_mtime_ns))
    new.replace(folder / "agent.py")
    assert await changed(files) == ["agent.py"]


async def test_modules_that_come_with_a_change_are_looked_at_from_then_on(folder: Path) -> None:
    files = SourceFiles(folder / "near.py")
    (folder / "near.py").write_text("import other")
    assert await changed(files) == ["near.py"]
    (folder / "other.py").write_text("x = 3")
    assert await changed(files) == ["other.py"]


async def test_only_the_file_counts_in_other_languages(folder: Path) -> None:
    (folder / "agent.sh").write_text("import near\n")
    files = SourceFiles(folder / "agent.sh")
    (folder / "near.py").write_text("")
    (folder / "agent.sh").write_text("true")
    assert await changed(files) == ["agent.sh"]


def test_modules_that_import_each_other_come_to_an_end(folder: Path) -> None:
    (folder / "far.py").write_text("import near, agent")
    assert SourceFiles(folder / "agent.py").defect() is None


@pytest.mark.parametrize(
    ("text", "told"),
    [("def (:\n", "agent.py, line 1: invalid syntax"), ("x = 1\n  y = 2\n", "agent.py, line 2"), ("\0", "agent.py")],
)
def test_what_cannot_be_python_is_told(folder: Path, text: str, told: str) -> None:
    (folder / "agent.py").write_text(text)
    assert told in str(SourceFiles(folder / "agent.py").defect())


def test_fault_in_an_imported_module_is_told(folder: Path) -> None:
    (folder / "far.py").write_text("def (:\n")
    assert "far.py, line 1" in str(SourceFiles(folder / "agent.py").defect())


def test_nothing_is_said_of_other_languages(folder: Path) -> None:
    (folder / "agent.sh").write_text("def (:\n")
    assert SourceFiles(folder / "agent.sh").defect() is None
