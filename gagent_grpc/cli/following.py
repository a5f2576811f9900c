"""Commands that watch the AMS or the DF until Ctrl-C: the loop, and how a line of it looks.

Owns: the end, and the times in lines. Leaves to others: what is watched and shown (`cli.agents`, `cli.df`).
"""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, TypeVar

import typer

from gagent_grpc.cli.output import note, printable

if TYPE_CHECKING:
    from datetime import datetime

    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.client.operator import Operator

EventT = TypeVar("EventT")


def follow(
    settings: Settings, watch: Callable[[Operator], AsyncGenerator[EventT, None]], show: Callable[[EventT], None]
) -> None:
    """Show what ``watch`` tells, event by event, until Ctrl-C or SIGTERM; a lost bus is found again.

    Args:
        settings: Where the bus is.
        watch: Begins the watch.
        show: Shows one event.

    Raises:
        BusUnreachable: There is no bus at the beginning.
    """
    import asyncio

    from gagent_grpc.cli.logs import set_up_logs

    set_up_logs()
    asyncio.run(_follow(settings, watch, show))


async def _follow(
    settings: Settings, watch: Callable[[Operator], AsyncGenerator[EventT, None]], show: Callable[[EventT], None]
) -> None:
    import asyncio
    import contextlib
    import signal

    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:

        async def read() -> None:
            async with contextlib.aclosing(watch(operator)) as stream:
                async for event in stream:
                    show(event)

        reading = asyncio.ensure_future(read())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, reading.cancel)
        note(f"Watching {operator.endpoint}. Ctrl-C ends it.")
        try:
            await asyncio.wait({reading})
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            reading.cancel()
        if not reading.cancelled():
            reading.result()


def print_line(at: datetime, *words: str) -> None:
    """Print one event on a line: when it was, and what."""
    told = " ".join(word for word in words if word)
    typer.echo(f"{at.astimezone().strftime('%H:%M:%S.%f')[:-3]} {printable(told)}")


def print_json_line(value: object) -> None:
    """Print ``value`` as JSON on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))
