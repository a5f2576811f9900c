"""What the command is before any command runs: quick, and in the order that a newcomer needs."""

import subprocess
import sys

import pytest

from gagent_grpc.cli.main import ORDER, app

HEAVY = ("asyncio", "grpc", "google.protobuf", "pydantic_settings", "rich", "structlog", "apsw", "uvloop")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["request", "--help"], ["no-such-command"]])
def test_help_version_and_usage_errors_load_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from gagent_grpc.cli.main import main\n"
        f"sys.argv = ['gagent', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('loaded:', *[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_the_order_of_the_help_names_every_command_once() -> None:
    groups = [group.name for group in app.registered_groups]
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback is not None]
    assert sorted(ORDER) == sorted([*groups, *commands])
