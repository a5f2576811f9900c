"""The files that a script is made of, and when they have changed: for those who write a script while it runs.

Owns: which files those are, and noticing a change. Leaves to others: what is done about it (`bridge.behaviour`).
"""

from __future__ import annotations

import ast
import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

POLL_S = 0.25
"""Seconds between two looks at the files."""
MAX_FILES = 200
"""Most files that are looked at; imports beyond that are not followed."""

_Marks = Mapping[Path, tuple[int, int, int] | None]


class SourceFiles:
    """A script and, when it is in Python, the modules beside it that it imports, and those that they import.

    Modules are found by their `import` statements in the folder of the script alone, so that a change of one agent's
    script does not touch the other agents in that folder.
    """

    def __init__(self, script: str | os.PathLike[str]) -> None:
        """Look at the files of ``script`` as they are now; changes count from here on."""
        self._script = Path(script).absolute()
        self._paths = self._find()
        self._known = self._look()

    async def changed(self) -> list[Path]:
        """Wait until a file has another content, has come or has gone, and is not written to any more; return which ones.

        What changed since the call before, or since this object was made, counts, too.
        """
        while True:
            now = self._look()
            if now != self._known:
                await asyncio.sleep(POLL_S)
                if self._look() == now and now.get(self._script) is not None:
                    found = sorted(path for path in now if now[path] != self._known[path])
                    # What is imported may have changed with it.
                    self._paths = self._find()
                    self._known = {path: now[path] if path in now else _mark(path) for path in self._paths}
                    return found
                continue
            await asyncio.sleep(POLL_S)

    def defect(self) -> str | None:
        """Return why the script cannot be run as it is now; None where that cannot be told without running it."""
        if self._script.suffix.lower() != ".py":
            return None
        for path in self._known:
            try:
                ast.parse(path.read_bytes(), str(path))
            except SyntaxError as error:
                return f"{path.name}, line {error.lineno}: {error.msg}"
            except (RecursionError, MemoryError):
                # MemoryError is what the parser raises when its own stack is full.
                return f"{path.name}: nested too deeply"
            except ValueError as error:
                return f"{path.name}: {error}"
            except OSError as error:
                return f"{path.name} cannot be read: {error.strerror}"
        return None

    def _look(self) -> _Marks:
        """Return what tells the present content of each file from another one."""
        return {path: _mark(path) for path in self._paths}

    def _find(self) -> list[Path]:
        found = [self._script]
        if self._script.suffix.lower() == ".py":
            # The list grows while it is gone through.
            for path in found:
                found += [one for one in self._imported(path) if one not in found][: max(0, MAX_FILES - len(found))]
        return found

    def _imported(self, path: Path) -> Iterator[Path]:
        """Yield the files of the modules beside the script that the module at ``path`` imports."""
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            return
        folder = self._script.parent
        for name in dict.fromkeys(_module_names(tree)):
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                module = folder.joinpath(*parts[:depth])
                for file in (module.with_name(f"{module.name}.py"), module / "__init__.py"):
                    if file.is_file():
                        yield file


def _module_names(tree: ast.Module) -> Iterator[str]:
    """Yield the absolute names of everything that may be a module in the import statements of ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # Editors write a new file in the place of the old one, which may have the same size and time.
    return status.st_mtime_ns, status.st_size, status.st_ino
