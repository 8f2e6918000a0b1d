"""What was logged, as events with their keys."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class _Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        extra = {key: value for key, value in vars(record).items() if key not in _OWN_ATTRIBUTES}
        self.events.append(
            {"event": record.getMessage(), "log_level": record.levelname.lower(), **extra}
        )


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Collect every event of the package as long as the block lasts."""
    logger, handler = logging.getLogger("replay"), _Collecting()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler.events
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
