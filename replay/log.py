"""Where the log of a command goes and what it looks like.

Only a command calls `configure_logging`: it sets up structlog and the standard library's root
logger for the whole process.  Library code logs through `replay.logger`, so an embedding program
keeps its own set-up.

A terminal gets lines for people, everything else one JSON object a line.  What comes from outside
cannot break a line or steer a terminal.  Tracebacks have no local variables: prompts live there.
"""

import logging
import os
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from replay.text import escape_controls

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]


def configure_logging(
    level: LogLevel = "info", form: LogFormat = "auto", stream: TextIO | None = None
) -> None:
    """Send the log of structlog and of the standard library to *stream*, by default stderr.

    `auto` is `console` when *stream* is a terminal, else `json`.  NO_COLOR is honoured.
    """
    stream = sys.stderr if stream is None else stream
    is_terminal = stream.isatty()
    is_console = form == "console" or (form == "auto" and is_terminal)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_logger_name,
                *shared,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderer(is_console, is_terminal and "NO_COLOR" not in os.environ),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(root.level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _renderer(is_console: bool, has_colors: bool) -> list[Processor]:
    if not is_console:
        # json.dumps escapes all that is not ASCII, and so every control character.
        return [structlog.processors.JSONRenderer()]
    return [
        _escape_values,
        structlog.dev.ConsoleRenderer(
            colors=has_colors, exception_formatter=structlog.dev.plain_traceback
        ),
    ]


def _escape_values(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, str):
            lines = "\n" if key in ("exception", "stack") else ""
            event[key] = escape_controls(value, keep=lines)
    return event
