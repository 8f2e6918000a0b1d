"""From a path to a script that can be used, and what is odd about one beside its configuration."""

from replay.config.engines import UpstreamConfig
from replay.config.model import Config
from replay.engines.script_book import ScriptBook
from replay.engines.script_file import read_script
from replay.errors import ConfigError


def load_script(path: str) -> ScriptBook:
    """Read the script at *path*.

    Raises ConfigError with the file, the line and the reason of each fault.
    """
    try:
        with open(path, "rb") as file:
            script = read_script(file)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from error
    if script.faults:
        raise ConfigError([f"{path}:{line}: {reason}" for line, reason in script.faults])
    return ScriptBook(script.choices)


def script_warnings(config: Config, book: ScriptBook) -> list[str]:
    """Return what is allowed but hardly meant, a sentence each."""
    worker, grace = config.worker, config.shutdown.grace_seconds
    warnings = []
    if grace < book.longest_seconds:
        warnings.append(
            f"shutdown.grace_seconds: {grace:g} s are less than the longest answer of "
            f"worker.script takes, {book.longest_seconds:g} s: a stop cuts it short"
        )
    if worker.vocab_size <= book.largest_id and not isinstance(worker.engine, UpstreamConfig):
        warnings.append(
            f"worker.vocab_size: {worker.vocab_size} is advertised, and worker.script has the "
            f"token id {book.largest_id}"
        )
    return warnings
