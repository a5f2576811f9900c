"""`gagent dlq`: dead letters from the command line, to look at, to deliver again and to remove."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.exits import ExitCode
from gagent_grpc.cli.output import message_to_json, note, print_json, print_table, printable

if TYPE_CHECKING:
    from datetime import datetime

    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.client.admin import DeadLetter, Redriven

_MAX_CONTENT_CHARS = 200
"""Characters of a content that a table shows; JSON has all of it."""

app = typer.Typer(
    help="Look after messages that were accepted and given up.", no_args_is_help=True, rich_markup_mode=None
)

Numbers = Annotated[
    list[int] | None,
    typer.Argument(metavar="NUMBER", help="Numbers of the letters, as gagent dlq list shows them.", min=1, max=2**53),
]
Receiver = Annotated[str | None, typer.Option("--receiver", metavar="NAME", help="All letters to this agent.")]
Everything = Annotated[bool, typer.Option("--all", help="All letters.")]


@app.callback()
def dlq() -> None:
    """Look after messages that were accepted and given up."""


@app.command("list")
def list_letters(
    receiver: Annotated[
        str | None, typer.Argument(metavar="[RECEIVER]", help="Only letters to this agent; all when absent.")
    ] = None,
    content: Annotated[bool, typer.Option("--content", help="Show what the messages say, too.")] = False,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """List dead letters, oldest first.

    A message dies when it was delivered too often and sent back, or its receiver lost with it, each time; when its
    receiver rejected it; when its time was over; or when its receiver was removed, or lost while it owed an answer.
    """
    import asyncio

    from gagent_grpc.cli.settings import resolve

    letters = asyncio.run(_list(resolve(config, bus=bus, timeout=timeout), receiver, content=content))
    if as_json:
        print_json([_to_json(letter, content=content) for letter in letters])
    elif letters:
        columns = ("NUMBER", "RECEIVER", "SENDER", "REASON", "ATTEMPTS", "DIED", "ERROR")
        print_table((*columns, "CONTENT") if content else columns, [_row(one, content=content) for one in letters])
    else:
        note("No dead letter." if receiver is None else f"No dead letter to {printable(receiver)}.")


@app.command()
def redrive(
    numbers: Numbers = None,
    receiver: Receiver = None,
    everything: Everything = False,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Deliver dead letters once more.

    They go to the end of the mailboxes that they came from, flagged as redelivered and with attempts counted anew. Mend
    what they died of first.
    """
    import asyncio

    from gagent_grpc.cli.settings import resolve

    settings = resolve(config, bus=bus, timeout=timeout)
    _check_choice(numbers, receiver, everything)
    done = asyncio.run(_redrive(settings, numbers or [], receiver or "", everything=everything))
    if as_json:
        refused = [
            {"number": number, "receiver": one.receiver, "outcome": one.outcome.name, "detail": one.detail}
            for number, one in done.refused.items()
        ]
        print_json({"redriven": done.count, "refused": refused})
    else:
        typer.echo(f"redriven: {done.count}")
        for number, one in done.refused.items():
            what = f"{number}: {one.outcome.name}" + (
                f". {one.detail[:1].upper()}{one.detail[1:]}" if one.detail else ""
            )
            note(printable(what))
    if done.refused:
        raise typer.Exit(ExitCode.NOT_DELIVERED)


@app.command()
def purge(
    numbers: Numbers = None,
    receiver: Receiver = None,
    everything: Everything = False,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Remove dead letters for good."""
    import asyncio

    from gagent_grpc.cli.settings import resolve

    settings = resolve(config, bus=bus, timeout=timeout)
    _check_choice(numbers, receiver, everything)
    purged = asyncio.run(_purge(settings, numbers or [], receiver or "", everything=everything))
    if as_json:
        print_json({"purged": purged})
    else:
        typer.echo(f"purged: {purged}")
    missing = len(set(numbers or [])) - purged
    if missing > 0:
        note(f"{missing} of these numbers have no dead letter. See them: gagent dlq list")


def _check_choice(numbers: list[int] | None, receiver: str | None, everything: bool) -> None:
    """Make sure that the command says in exactly one way which letters it means.

    Raises:
        typer.BadParameter: It does not.
    """
    from gagent_grpc.acl.aid import split_aid

    if (bool(numbers), receiver is not None, everything).count(True) != 1:
        raise typer.BadParameter(
            "expected exactly one of: numbers, --receiver NAME, --all. See the letters: gagent dlq list",
            param_hint="NUMBER",
        )
    if receiver is not None:
        split_aid(receiver)


async def _list(settings: Settings, receiver: str | None, *, content: bool) -> list[DeadLetter]:
    from gagent_grpc.acl.aid import split_aid
    from gagent_grpc.client.operator import Operator

    if receiver is not None:
        split_aid(receiver)
    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        return [one async for one in operator.admin.dead_letters(receiver or "", with_messages=content)]


async def _redrive(settings: Settings, numbers: list[int], receiver: str, *, everything: bool) -> Redriven:
    from gagent_grpc.client.admin import Redriven
    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        if everything or receiver:
            # By number, so that every letter that stays dead is told.
            numbers = [one.number async for one in operator.admin.dead_letters(receiver)]
        return await operator.admin.redrive(numbers) if numbers else Redriven(0, {})


async def _purge(settings: Settings, numbers: list[int], receiver: str, *, everything: bool) -> int:
    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        return await operator.admin.purge(numbers, receiver=receiver, everything=everything)


def _row(letter: DeadLetter, *, content: bool) -> tuple[str, ...]:
    cells = (
        str(letter.number),
        letter.receiver,
        letter.sender,
        letter.reason.name if letter.reason is not None else "",
        str(letter.attempts),
        _local(letter.died_at),
        letter.error,
    )
    return (*cells, _content(letter)) if content else cells


def _content(letter: DeadLetter) -> str:
    if letter.message is None:
        return ""
    content = letter.message.content
    text = f"({len(content):,} bytes)" if isinstance(content, bytes) else content or ""
    return text if len(text) <= _MAX_CONTENT_CHARS else f"{text[:_MAX_CONTENT_CHARS]}..."


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _to_json(letter: DeadLetter, *, content: bool) -> dict[str, object]:
    made: dict[str, object] = {
        "number": letter.number,
        "receiver": letter.receiver,
        "sender": letter.sender,
        "id": letter.id,
        "sequence": letter.sequence,
        "reason": letter.reason.name if letter.reason is not None else None,
        "error": letter.error,
        "attempts": letter.attempts,
        "accepted_at": letter.accepted_at.isoformat(),
        "died_at": letter.died_at.isoformat(),
        "size_bytes": letter.size_bytes,
    }
    if content:
        made["message"] = message_to_json(letter.message) if letter.message is not None else None
    return made
