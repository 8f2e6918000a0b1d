"""Files that commands write: whole or not at all, and never over what they read."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from replay.errors import ConfigError


def refuse_overwriting(
    inputs: Iterable[str | os.PathLike[str] | None],
    outputs: Mapping[str, str | os.PathLike[str] | None],
) -> None:
    """Raise a ConfigError if one of *outputs*, by their flags, is an input or another output."""
    sources = [Path(each) for each in inputs if each is not None]
    problems = []
    taken: dict[Path, str] = {}
    for flag, output in outputs.items():
        if output is None or not _is_plain(path := Path(output)):
            continue
        if any(_are_same(path, source) for source in sources):
            problems.append(f"{flag}: {path} is read; it would be written over")
        for other, other_flag in taken.items():
            if _are_same(path, other):
                problems.append(f"{other_flag} and {flag} are one file: {path}")
        taken[path] = flag
    if problems:
        raise ConfigError(problems)


def write_whole(path: str | os.PathLike[str], pieces: Iterable[bytes], *, mode: int = 0o666) -> int:
    """Write a file whole or not at all, and return its bytes; a new file gets *mode*.

    A file that is there keeps its mode.  Raises UsageError.
    """
    # What a link names is replaced, not the link.
    target = Path(path).resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    written = 0
    try:
        if not _is_plain(target):
            if target.is_dir():
                raise IsADirectoryError(None, "Is a directory")
            draft = target  # a device or a pipe
        elif target.exists():
            mode = target.stat().st_mode & 0o777
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
                for piece in pieces:
                    written += file.write(piece)
            if draft != target:
                draft.replace(target)
        except BaseException:
            if draft != target:
                draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from None
    return written


def _is_plain(path: Path) -> bool:
    return path.is_file() or not path.exists()


def _are_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()
