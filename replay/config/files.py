"""The files and folders that a configuration names for reading must be there.

They are looked for when the configuration is read, so that a wrong path is told with its line and
with all other problems.  Whoever opens them later still says what the system says.
"""

import os
from collections.abc import Iterator

from replay.config.engines import RealisticConfig
from replay.config.model import Config
from replay.config.problems import Fault, Path, quoted


def missing_files(config: Config) -> Iterator[Fault]:
    """Yield each path that cannot be read, or is a folder instead of a file or the other way."""
    worker, plane = config.worker, config.event_plane
    yield from _folder(("worker", "tokenizer"), worker.tokenizer)
    yield from _file(("worker", "script"), worker.script)
    if worker.tls is not None:
        yield from _file(("worker", "tls", "certificate"), worker.tls.certificate)
        yield from _file(("worker", "tls", "key"), worker.tls.key)
        yield from _file(("worker", "tls", "client_ca"), worker.tls.client_ca)
    if isinstance(worker.engine, RealisticConfig) and worker.engine.timing.startswith("fit:"):
        yield from _file(("worker", "engine", "timing"), worker.engine.timing.removeprefix("fit:"))
    yield from _file(("http", "token_file"), config.http.token_file)
    if plane.curve is not None:
        yield from _file(("event_plane", "curve", "secret_key_file"), plane.curve.secret_key_file)
        yield from _folder(
            ("event_plane", "curve", "allowed_keys_dir"), plane.curve.allowed_keys_dir
        )


def _file(path: Path, name: str | None) -> Iterator[Fault]:
    if not name or "\0" in name:
        return
    if not os.path.exists(name):
        yield Fault(path, f"there is no file {quoted(name)}")
    elif os.path.isdir(name):
        yield Fault(path, f"must be a file, is a folder: {quoted(name)}")
    elif not os.access(name, os.R_OK):
        yield Fault(path, f"may not be read: {quoted(name)}")


def _folder(path: Path, name: str | None) -> Iterator[Fault]:
    if not name or "\0" in name:
        return
    if not os.path.exists(name):
        yield Fault(path, f"there is no folder {quoted(name)}")
    elif not os.path.isdir(name):
        yield Fault(path, f"must be a folder, is a file: {quoted(name)}")
    elif not os.access(name, os.R_OK | os.X_OK):
        yield Fault(path, f"may not be read: {quoted(name)}")
