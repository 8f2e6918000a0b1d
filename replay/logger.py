"""The logger of library code: structured events on the standard library's loggers.

Nothing of the process is configured here.  A command sets up how the log looks (`replay.log`); in
an embedding program the events go where that program sends its logging, or, like any library's,
their warnings to stderr.
"""

import logging

import structlog


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger for `log.info("event", key=value)`; the keys become the record's `extra`."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _as_extra],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return logger


def _as_extra(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, object]]:
    """Hand the event to the standard library: its name as the message, the rest as `extra`."""
    message = str(event.pop("event"))
    passed: dict[str, object] = {
        key: event.pop(key) for key in ("exc_info", "stack_info") if key in event
    }
    # Without arguments the standard library leaves a "%" in the message alone.
    return (message,), {**passed, "extra": dict(event)}
