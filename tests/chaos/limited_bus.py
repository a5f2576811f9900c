"""A bus with other bounds than the shipped ones, so that a fault whose time the bounds decide need not last as long.

Owns: nothing but those bounds: `python -m tests.chaos.limited_bus NAME=VALUE ... serve ...` is `gagent serve ...` else.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from gagent_grpc import config
from gagent_grpc.cli.main import main
from gagent_grpc.config import BusLimits


def program(limits: Mapping[str, float]) -> tuple[str, ...]:
    """Return what runs such a bus, as `BusProcess` takes it."""
    return (sys.executable, "-m", "tests.chaos.limited_bus", *(f"{name}={value}" for name, value in limits.items()))


def _run() -> None:
    limits: dict[str, Any] = {}
    while len(sys.argv) > 1 and "=" in sys.argv[1]:
        name, _, value = sys.argv.pop(1).partition("=")
        limits[name] = type(getattr(BusLimits(), name))(float(value))
    # Where `serve` takes its limits from: it has flags for few of them.
    vars(config)["BusLimits"] = functools.partial(BusLimits, **limits)
    main()


if __name__ == "__main__":
    _run()
