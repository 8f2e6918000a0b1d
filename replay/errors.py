"""Every exception that `replay` raises on purpose.

Expected loss is a counter, not an exception.  What is here stops a start, or ends a command.
"""

from collections.abc import Sequence


class ReplayError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(ReplayError):
    """The configuration cannot be used.  `problems` has one line for each fault."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class CaptureOpenError(ReplayError):
    """The capture file cannot be opened, so nothing may listen."""


class BindError(ReplayError):
    """An address cannot be listened on.  The text names the address and the system's reason."""
