"""`gagent demo`: the command; what it shows is in `cli.demo_bus`."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import os


def demo() -> None:
    """Run a bus and a few agents, and show their conversation.

    It takes a few seconds, needs no key and no network, and leaves nothing behind.
    """
    import asyncio

    # gRPC's own lines would stand between those of the conversation.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gagent_grpc.cli.demo_bus import show
    from gagent_grpc.cli.logs import set_up_logs

    set_up_logs()
    asyncio.run(show())
