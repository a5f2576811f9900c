"""Where log lines go: stderr, always, since stdout belongs to what a command prints."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["console", "json"]


def set_up_logs(form: LogFormat = "console", level: str = "warning") -> None:
    """Send the lines of this process's loggers to stderr, those of structlog and those of the standard library alike.

    Args:
        form: Lines for people, or one JSON object per line.
        level: Least level that is logged, in lower case.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if form == "json" else "%Y-%m-%d %H:%M:%S", utc=form == "json"),
    ]
    last: list[structlog.typing.Processor]
    if form == "json":
        last = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(ensure_ascii=False)]
    else:
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
