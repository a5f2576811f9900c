"""Where log lines go: stderr, always, since stdout belongs to what a command prints."""

from __future__ import annotations

import logging
import os
import sys
from typing import Literal

import structlog
import structlog.tracebacks

LogFormat = Literal["console", "json"]


def set_up_logs(form: LogFormat = "console", level: str = "warning") -> None:
    """Send the lines of this process's loggers to stderr.

    Args:
        form: Lines for people, or one JSON object per line.
        level: Least level that is logged, in lower case.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    added: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if form == "json" else "%Y-%m-%d %H:%M:%S", utc=form == "json"),
    ]
    last: list[structlog.typing.Processor]
    if form == "json":
        # Without local variables, which may hold what messages say.
        tracebacks = structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        last = [tracebacks, structlog.processors.JSONRenderer(ensure_ascii=False)]
    else:
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=_may_colour(), exception_formatter=plain)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=added, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)


def _may_colour() -> bool:
    """Whether stderr is a terminal that shows colours, and its user wants them (no-color.org)."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
