"""How a script is started: its command, by the suffix of its file, and its environment.

Owns: interpreters and environment variables. Leaves to others: running the command (`bridge.process`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from gagent_grpc.errors import ScriptError

ALWAYS_INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "NODE_PATH",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
"""Variables that a script has in any case: without them programs are not found, or speak another language."""

_INTERPRETERS = {".py": (sys.executable, "-u"), ".js": ("node",), ".sh": ("bash",)}


def script_command(path: str | os.PathLike[str]) -> list[str]:
    """Return the command that runs the script at ``path``, by its suffix.

    Raises:
        ScriptError: There is no such file, or its suffix names no interpreter.
    """
    script = Path(path)
    if not script.is_file():
        raise ScriptError(f"no such script: {script}")
    interpreter = _INTERPRETERS.get(script.suffix.lower())
    if interpreter is None:
        raise ScriptError(
            f"{script}: no interpreter is known for {script.suffix or 'a file without suffix'!r}, only for"
            f" {', '.join(_INTERPRETERS)}. Give the command: gagent run --name {script.stem} -- CMD {script}"
        )
    return [*interpreter, str(script.absolute())]


def script_environment(given: Mapping[str, str] | None = None, inherit: Sequence[str] | None = None) -> dict[str, str]:
    """Return the environment of a script: this process's own, with ``given`` added, and what the protocol needs.

    Args:
        given: Variables to add, or to have in the place of this process's own.
        inherit: Names of this process's variables that the script has beside `ALWAYS_INHERITED`; `*` stands for
            anything. None for all of them.
    """
    allowed = None if inherit is None else (*ALWAYS_INHERITED, *inherit)
    environment = {
        name: value
        for name, value in os.environ.items()
        if allowed is None or any(fnmatchcase(name, pattern) for pattern in allowed)
    }
    environment.update(given or {})
    # The name would send a script that uses `gagent_py` to the bus by itself, were the marker lost on the way.
    environment.pop("GAGENT_NAME", None)
    environment["GAGENT_BRIDGE"] = "stdio"
    # Otherwise the answers of a script that does not flush stay in its buffer.
    environment["PYTHONUNBUFFERED"] = "1"
    if (folder := _library_folder()) is not None:
        # Last, so that it hides nothing that the user put there.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), folder)))
    return environment


def _library_folder() -> str | None:
    """Return the folder that scripts need in their path for `import gagent_py`; None where it is installed."""
    if any((Path(sysconfig.get_path(kind)) / "gagent_py").is_dir() for kind in ("purelib", "platlib")):
        return None
    folder = Path(__file__).parents[2] / "agent_scripts" / "python"
    return str(folder) if (folder / "gagent_py").is_dir() else None
