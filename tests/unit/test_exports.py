"""The public surface: what `gagent_grpc` shows, and where it lives."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gagent_grpc
from gagent_grpc import errors


def _imported_for_types() -> dict[str, set[str]]:
    tree = ast.parse(Path(gagent_grpc.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        str(node.module): {alias.name for alias in node.names}
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }


def test_the_list_is_sorted_and_says_nothing_twice() -> None:
    assert gagent_grpc.__all__ == sorted(set(gagent_grpc.__all__))


@pytest.mark.parametrize("name", gagent_grpc.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    value = getattr(gagent_grpc, name)
    if name != "__version__":
        # One name is that under which users of another system know the class.
        assert value.__name__ == {"PythonBehaviour": "ScriptBehaviour"}.get(name, name)
        assert value.__doc__


def test_the_lazy_table_and_the_imports_for_types_agree() -> None:
    homes = {home: set(names) for home, names in gagent_grpc._HOMES.items()}
    assert homes == _imported_for_types()
    assert set().union(*homes.values()) == set(gagent_grpc.__all__) - {"__version__"}
    for home, names in homes.items():
        for name in names:
            assert getattr(gagent_grpc, name).__module__ == home


def test_every_error_that_a_caller_may_meet_is_public() -> None:
    inner = {"ProtocolViolation", "ResourceExhausted", "TooManySessions", "Unavailable"}
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert defined - inner <= set(gagent_grpc.__all__)


def test_what_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="'gagent_grpc' has no attribute 'Agents'"):
        gagent_grpc.Agents  # noqa: B018
    assert dir(gagent_grpc) == gagent_grpc.__all__


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, gagent_grpc; print([one for one in ('grpc', 'google.protobuf', 'apsw', 'asyncio') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
