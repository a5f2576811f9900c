"""`gagent watch`: the messages of a bus as they pass, as lines, as JSON, or one conversation as a sequence diagram."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.exits import ExitCode
from gagent_grpc.cli.output import message_to_json, note, printable

if TYPE_CHECKING:
    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.client.traffic import TrafficEvent

_MAX_CONTENT_CHARS = 200
"""Characters of a content in a line; JSON has all of it."""
_MAX_DRAWN = 1_000
"""Events of a diagram when nothing else is said."""
_PARAMETERS = ("protocol", "conversation_id", "reply_with", "in_reply_to")


def watch(
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="NAME", help="Only messages from or to this agent; several for any of them."),
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option(
            "--conversation",
            "--conversation-id",
            metavar="ID",
            callback=options.readable,
            help="Only this conversation.",
        ),
    ] = None,
    content: Annotated[bool, typer.Option("--content", help="Show what the messages say, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for programs.")] = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="lines|mermaid",
            help="mermaid prints the conversation that --conversation names as a sequence diagram, at the end.",
        ),
    ] = "lines",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="End after so many events. [default: never; of a diagram 1000]"
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="End when nothing passes for so long. [default: never]"),
    ] = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Watch the messages that pass the bus, from now on, until Ctrl-C.

    What is refused, given up, ended by the bus or out of sequence in its protocol is marked. Nothing waits for who watches:
    too slow a terminal misses some, and is told how many; one that reads nothing for 10 s is ended.
    """
    import asyncio

    from gagent_grpc.acl.aid import split_aid
    from gagent_grpc.cli.settings import resolve

    if form not in ("lines", "mermaid"):
        raise typer.BadParameter(f"{form!r}: expected lines or mermaid", param_hint="--format")
    if form == "mermaid" and not conversation:
        raise typer.BadParameter(
            "a diagram shows one conversation: name it with --conversation ID", param_hint="--format"
        )
    if form == "mermaid" and as_json:
        raise typer.BadParameter("expected --json or --format mermaid, not both", param_hint="--json")
    for name in agent or ():
        split_aid(name)
    settings = resolve(config, bus=bus, timeout=timeout)
    drawn: list[TrafficEvent] = []

    def show(event: TrafficEvent) -> None:
        if form == "mermaid":
            drawn.append(event)
        elif as_json:
            typer.echo(json.dumps(event_to_json(event, content=content), ensure_ascii=False))
        else:
            typer.echo(printable(event_to_line(event)))

    most = limit or (_MAX_DRAWN if form == "mermaid" else None)
    in_time = asyncio.run(_watch(settings, agent or [], conversation or "", show, content=content, limit=most))
    if form == "mermaid":
        from gagent_grpc.cli.mermaid import sequence_diagram

        typer.echo(sequence_diagram(drawn), nl=False)
    if not in_time:
        note(f"Nothing passed for {settings.timeout:g} s.")
        raise typer.Exit(ExitCode.TIMEOUT)


async def _watch(
    settings: Settings,
    agents: list[str],
    conversation_id: str,
    show: Callable[[TrafficEvent], None],
    *,
    content: bool,
    limit: int | None,
) -> bool:
    """Show events until the end; return whether any came, unless the end was asked for."""
    import asyncio
    import signal

    from gagent_grpc.client.operator import Operator

    shown = 0
    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        stream = operator.admin.watch_traffic(agents, conversation_id=conversation_id, with_content=content)
        async with stream:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stream.close)
            note(f"Watching {operator.endpoint}. Ctrl-C ends it.")
            while limit is None or shown < limit:
                try:
                    async with asyncio.timeout(settings.timeout):
                        event = await anext(stream)
                except StopAsyncIteration:
                    return True
                except TimeoutError:
                    return shown > 0
                show(event)
                shown += 1
    return True


def event_to_line(event: TrafficEvent) -> str:
    """Return what a person reads of an event."""
    from gagent_grpc.client.traffic import TrafficKind

    parts = [event.at.astimezone().strftime("%H:%M:%S.%f")[:-3]]
    if event.kind is TrafficKind.MISSED:
        return " ".join([*parts, f"MISSED {event.missed} events: this terminal was too slow"])
    parts.append(f"{event.sender or '?'} -> {event.receiver or '?'}" + (f" ({event.via})" if event.via else ""))
    message = event.message
    if event.kind is TrafficKind.REFUSED:
        parts.append("REFUSED" + (f" {event.outcome.name}" if event.outcome is not None else ""))
    elif event.kind is not TrafficKind.ACCEPTED:
        parts.append(str(event.kind).upper() if event.kind is not None else "UNKNOWN EVENT")
    if message is not None:
        parts.append(str(message.performative))
    if event.conversation_id:
        parts.append(f"[{event.conversation_id}]")
    if message is not None and message.protocol:
        parts.append(message.protocol)
    if message is not None and message.content is not None:
        parts.append(_said(message.content))
    if event.detail:
        parts.append(f"({event.detail})")
    if event.flag:
        parts.append(f"! {event.flag}")
    return " ".join(parts)


def event_to_json(event: TrafficEvent, *, content: bool) -> dict[str, Any]:
    """Return the JSON object of an event; what it has not is absent."""
    made: dict[str, Any] = {
        "kind": event.kind.name if event.kind is not None else None,
        "at": event.at.isoformat(),
        "sender": event.sender,
        "receiver": event.receiver,
        "via": event.via,
        "id": event.message_id,
        "conversation_id": event.conversation_id,
        "outcome": event.outcome.name if event.outcome is not None else None,
        "detail": event.detail,
        "flag": event.flag,
        "missed": event.missed,
    }
    message = event.message
    if message is not None and content:
        made["message"] = message_to_json(message)
    elif message is not None:
        made["performative"] = message.performative.text
        made.update({name: getattr(message, name) for name in _PARAMETERS if getattr(message, name) is not None})
    return {name: value for name, value in made.items() if value not in (None, "", 0)}


def _said(content: str | bytes) -> str:
    if isinstance(content, bytes):
        return f"({len(content):,} bytes)"
    return content if len(content) <= _MAX_CONTENT_CHARS else f"{content[:_MAX_CONTENT_CHARS]}..."
