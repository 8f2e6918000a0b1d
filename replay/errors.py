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


class FileOpenError(ReplayError):
    """A file that was asked for cannot be opened, so nothing may listen."""


class CaptureOpenError(FileOpenError):
    """The capture file cannot be opened."""


class RecordFileOpenError(FileOpenError):
    """The record file of a tap cannot be opened."""


class JournalWriteError(ReplayError):
    """A line could not be written.  `errno` is the system's number for the reason.

    The text names the reason only: it may be sent to a client, whom the path is no concern of.
    """

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot write: {error.strerror or 'unknown error'}")
        self.path = path
        self.errno = error.errno


class BindError(ReplayError):
    """An address cannot be listened on.  The text names the address and the system's reason."""
