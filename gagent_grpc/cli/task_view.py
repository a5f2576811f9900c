"""How tasks look on a terminal and as JSON: a task, its events as lines, and a bar that moves while they come.

Owns: the looks. Leaves to others: the commands (`cli.tasks`), where it is printed (`cli.output`).
"""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from gagent_grpc.cli.following import print_line
from gagent_grpc.cli.output import printable

if TYPE_CHECKING:
    from datetime import datetime

    from gagent_grpc.acp.tasks import DelegatedTask, TaskEvent
    from gagent_grpc.client.admin import TaskStats

_MAX_WORDS = 60
"""Characters of a description in a table; `get` and JSON have all of it."""
COLUMNS = ("ID", "STATE", "PROGRESS", "DELEGATOR", "EXECUTOR", "ATTEMPT", "CREATED", "DESCRIPTION")


def row_of(task: DelegatedTask) -> tuple[str, ...]:
    """Return the cells of a task under `COLUMNS`."""
    words = " ".join(task.description.split())
    return (
        task.task_id,
        str(task.state),
        percent(task.progress),
        task.delegator,
        task.executor,
        f"{sum(not one.released for one in task.attempts)}/{task.max_attempts}",
        _local(task.created_at),
        words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}...",
    )


def stats_rows(stats: TaskStats) -> list[tuple[str, str]]:
    """Return the rows of a table of what there is of tasks."""
    states = [(str(state), f"{count:,}") for state, count in stats.by_state.items()]
    return [
        *states,
        ("with somebody", f"{stats.running:,}"),
        ("without anybody", f"{stats.waiting:,}"),
        ("delegated since the start", f"{stats.delegated:,}"),
        ("leases", f"{stats.leases:,}"),
        ("watches", f"{stats.watches:,}"),
        ("bytes", f"{stats.size_bytes:,}"),
    ]


def stats_to_json(stats: TaskStats) -> dict[str, Any]:
    """Return what there is of tasks as a program gets it."""
    return {
        "by_state": {str(state): count for state, count in stats.by_state.items()},
        "running": stats.running,
        "waiting": stats.waiting,
        "delegated": stats.delegated,
        "leases": stats.leases,
        "watches": stats.watches,
        "size_bytes": stats.size_bytes,
    }


def percent(progress: float | None) -> str:
    """Return progress as a person reads it; "" where it is not known."""
    return "" if progress is None else f"{progress:.0%}"


def shown_value(value: Any) -> str:
    """Return a JSON value as a person reads it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def print_task(task: DelegatedTask) -> None:
    """Print a task with its history, one fact on a line."""
    facts = [
        ("id", task.task_id),
        ("state", str(task.state) + (f" ({task.reason})" if task.reason else "")),
        ("delegator", task.delegator),
        ("target", task.target),
        ("executor", task.executor),
        ("description", task.description),
        ("parameters", shown_value(task.parameters) if task.parameters else ""),
        ("progress", " ".join(one for one in (percent(task.progress), task.note) if one)),
        ("question", task.question),
        ("result", shown_value(task.result) if task.result is not None else ""),
        ("checkpoint", shown_value(task.checkpoint) if task.checkpoint is not None else ""),
        ("cancel", "requested" if task.cancel_requested and not task.state.final else ""),
        ("callback", task.callback_url or ""),
        ("parent", f"{task.parent.task_id} of {task.parent.delegator}" if task.parent is not None else ""),
        ("created", _local(task.created_at)),
        ("updated", _local(task.updated_at)),
        ("deadline", _local(task.deadline) if task.deadline is not None else ""),
        ("kept until", _local(task.forgotten_at) if task.forgotten_at is not None else ""),
    ]
    facts += [
        ("attachment", " ".join(one for one in (found.name, found.media_type, found.uri, found.digest) if one))
        for found in task.attachments
    ]
    facts += [
        (f"attempt {one.number}", f"{one.executor} from {_local(one.began_at)}: {one.outcome or 'in force'}")
        for one in task.attempts
    ]
    for name, value in facts:
        if value:
            typer.echo(f"{name + ':':<13}{printable(value)}")


def task_to_json(task: DelegatedTask) -> dict[str, Any]:
    """Return the JSON object of a task, as clients without protobuf get it, and with its history."""
    from gagent_grpc.acp import task_json

    more: dict[str, Any] = {
        "attempts": [
            {
                "number": one.number,
                "executor": one.executor,
                "began_at": task_json.moment_to_json(one.began_at),
                "ended_at": task_json.moment_to_json(one.ended_at),
                "outcome": one.outcome,
                "released": one.released,
            }
            for one in task.attempts
        ],
        "max_attempts": task.max_attempts,
        "on_executor_lost": str(task.on_executor_lost),
        "forgotten_at": task_json.moment_to_json(task.forgotten_at),
        "parent": list(task.parent) if task.parent is not None else None,
        "root": list(task.root) if task.root is not None else None,
        "attachments": [
            {
                name: value
                for name in ("name", "media_type", "digest", "uri", "size_bytes")
                if (value := getattr(one, name)) not in ("", None)
            }
            for one in task.attachments
        ]
        or None,
    }
    return {**task_json.task_to_json(task), **{name: value for name, value in more.items() if value is not None}}


def event_words(event: TaskEvent) -> tuple[str, ...]:
    """Return what a person reads of an event, beside its time."""
    from gagent_grpc.acp.tasks import TaskEventKind, TaskState

    kind = event.kind
    if kind is TaskEventKind.STATE:
        value = shown_value(event.value) if event.state is TaskState.COMPLETED else ""
        reason = f"({event.reason})" if event.reason else ""
        return str(event.state), reason, event.question, value
    if kind is TaskEventKind.PROGRESS:
        return "progress", percent(event.progress), event.note
    if kind is TaskEventKind.OUTPUT:
        return "output", f"[{event.channel}]" if event.channel else "", event.text
    if kind is TaskEventKind.SIGNAL:
        return "signal", event.name, "" if event.value is None else shown_value(event.value)
    if kind is TaskEventKind.CANCEL_REQUESTED:
        return "cancel requested", f"({event.reason})" if event.reason else ""
    if kind is None:
        return ("something that this version does not know",)
    return str(kind), shown_value(event.value)


class Screen:
    """What a person sees of a task that is followed: its output as it comes, and a bar on a terminal."""

    def __init__(self, *, lines: bool) -> None:
        """Show output alone, on stderr, or with ``lines`` every event on a line of stdout."""
        self._lines = lines
        self._bar: Any = None
        self._number: Any = None
        self._rest = ""
        self._open_line = False
        self._task_id = ""

    def show(self, event: TaskEvent) -> None:
        """Show one event."""
        from gagent_grpc.acp.tasks import TaskEventKind

        if self._lines:
            # Above the bar, which is drawn anew below it.
            with self._aside():
                print_line(event.at, *event_words(event))
        elif event.kind is TaskEventKind.OUTPUT:
            self._stream(event.text)
        elif event.question:
            with self._aside():
                self._end_line()
                way = f"gagent task answer {self._task_id} TEXT"
                typer.echo(f"{printable(event.question)} Answer: {way}", err=True)
        if self._bar is not None:
            if event.kind is TaskEventKind.PROGRESS:
                known = event.progress is not None
                self._bar.update(
                    self._number,
                    total=100 if known else None,
                    completed=100 * (event.progress or 0.0),
                    what=self._note(event.note),
                )
            elif event.state is not None:
                self._bar.update(self._number, what=str(event.state))

    def finish(self) -> None:
        """Show what is left of output that ended without a line end."""
        self._end_line()
        if self._rest:
            rest, self._rest = self._rest, ""
            with self._aside():
                typer.echo(_lines_of(rest), err=True)

    def _end_line(self) -> None:
        if self._open_line:
            self._open_line = False
            typer.echo(err=True)

    def _stream(self, text: str) -> None:
        if self._bar is None:
            # Nothing else is drawn, so parts of lines can come as they are.
            typer.echo(_lines_of(text), err=True, nl=False)
            self._open_line = not text.endswith("\n") if text else self._open_line
            return
        *whole, self._rest = (self._rest + text).split("\n")
        if whole:
            with self._aside():
                typer.echo("\n".join(_lines_of(line) for line in whole), err=True)

    @staticmethod
    def _note(text: str) -> str:
        return printable(text)[:_MAX_WORDS]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Write while no bar is on the screen."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()

    @contextmanager
    def open(self, task: DelegatedTask) -> Iterator[None]:
        """Draw a bar while the block lasts, where stderr is a terminal."""
        self._task_id = task.task_id
        if not sys.stderr.isatty():
            yield
            self.finish()
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.text import Text

        class Words(TextColumn):
            """Words of others, in which brackets are no markup."""

            def render(self, task: Any) -> Text:
                return Text(str(task.fields["what"]))

        bar = Progress(
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            Words(""),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            self._bar = bar
            self._number = bar.add_task(
                "",
                total=None if task.progress is None else 100,
                completed=round(100 * (task.progress or 0.0)),
                what=self._note(task.note) or str(task.state),
            )
            try:
                yield
                self.finish()
            finally:
                self._bar = None


def _lines_of(text: str) -> str:
    """Return text with its control characters escaped, but for line ends and tabs."""
    return "".join(char if char in "\n\t" else printable(char) for char in text)


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
