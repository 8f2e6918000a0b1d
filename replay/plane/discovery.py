"""File discovery: publishers keep a file each, consumers watch the folder.

The layout and the times are Dynamo's, so both sides may share a folder.  A file lives for 10 s
after its last touch.  As with Dynamo, whoever keeps files there deletes what has expired: the next
`keep_published` of any runtime clears what killed processes left.  Consumers only read; they pass
over expired files and need no right to write.
"""

import os
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import trio

from replay.logger import get_logger
from replay.plane.discovery_entry import (
    FOLDER,
    TEMPORARY_PREFIX,
    Publisher,
    file_content,
    file_name,
    file_prefix,
    parse_file,
)

log = get_logger(__name__)

ROOT_VARIABLE = "DYN_FILE_KV"
TTL_SECONDS = 10.0
#: Three touches fit into the time to live.
TOUCH_SECONDS = 3.0
#: How late a consumer may learn of a publisher.  Reading the folder costs some 10 µs a file.
WATCH_SECONDS = 0.5
#: No file that a publisher writes comes near it.
_LONGEST_FILE = 65536


def discovery_folder(root: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the files below *root*, by default $DYN_FILE_KV or Dynamo's default."""
    root = root or environ.get(ROOT_VARIABLE)
    base = Path(root) if root else Path(tempfile.gettempdir()) / "dynamo_store_kv"
    return base.joinpath(*FOLDER)


def publish(folder: Path, publisher: Publisher) -> None:
    """Write the file of *publisher*, whole or not at all.  Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "wb") as file:
            file.write(file_content(publisher))
        os.rename(temporary, folder / file_name(publisher))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def withdraw(folder: Path, publishers: Iterable[Publisher]) -> None:
    """Remove the files of *publishers*.  What cannot be removed expires by itself."""
    for publisher in publishers:
        try:
            (folder / file_name(publisher)).unlink(missing_ok=True)
        except OSError as error:
            log.warning("a discovery file stays until it expires", reason=error.strerror)


def refresh(folder: Path, publishers: Sequence[Publisher]) -> int:
    """Touch the files of *publishers*, write again what has vanished, delete what has expired.

    Returns how many were written again: Dynamo's processes delete the file of an owner that was
    stopped for longer than the time to live.  Raises `OSError` if one could not be, behind all that
    could be done: a disk that takes no new file still keeps the others alive.
    """
    written_again = 0
    failed: OSError | None = None
    for publisher in publishers:
        try:
            try:
                os.utime(folder / file_name(publisher))
            except FileNotFoundError:
                publish(folder, publisher)
                written_again += 1
        except OSError as error:
            failed = error
    _delete_expired(folder, now=time.time())
    if failed is not None:
        raise failed
    return written_again


def _delete_expired(folder: Path, now: float) -> None:
    for entry in _files(folder):
        try:
            if now - entry.stat(follow_symlinks=False).st_mtime > TTL_SECONDS:
                os.unlink(entry.path)
        except OSError:
            continue  # somebody else was faster, or it is not ours to delete


async def keep_published(folder: Path, publishers: Sequence[Publisher]) -> None:
    """Keep the files of *publishers* alive until cancelled.  Each must have been published.

    A folder that cannot be written is logged once and tried again at the next touch.  Removing the
    files is the owner's business (`withdraw`): their sockets may still linger.
    """
    limiter = trio.CapacityLimiter(1)
    is_failing = False
    while True:
        await trio.sleep(TOUCH_SECONDS)
        try:
            written_again = await trio.to_thread.run_sync(
                refresh, folder, publishers, limiter=limiter
            )
        except OSError as error:
            if not is_failing:
                log.warning("discovery files cannot be kept", reason=error.strerror)
            is_failing = True
        else:
            is_failing = False
            if written_again:
                log.warning("discovery files had vanished", written_again=written_again)


def find_publishers(folder: Path, namespace: str, topic: str) -> frozenset[Publisher]:
    """Return the publishers of exactly this namespace and topic whose files are alive."""
    prefix = file_prefix(namespace, topic)
    now = time.time()
    found = set()
    for entry in _files(folder):
        if not entry.name.startswith(prefix):
            continue
        try:
            if now - entry.stat(follow_symlinks=False).st_mtime > TTL_SECONDS:
                continue
            with open(entry.path, "rb") as file:
                publisher = parse_file(file.read(_LONGEST_FILE))
        except OSError:
            continue  # removed meanwhile
        if publisher and (publisher.namespace, publisher.topic) == (namespace, topic):
            found.add(publisher)
    return frozenset(found)


def _files(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [
                entry
                for entry in entries
                if not entry.name.startswith(TEMPORARY_PREFIX)
                and entry.is_file(follow_symlinks=False)
            ]
    except OSError:  # not there yet
        return []


async def watch_publishers(
    folder: Path,
    namespace: str,
    topic: str,
    *,
    interval_seconds: float = WATCH_SECONDS,
) -> AsyncGenerator[frozenset[Publisher], None]:
    """Yield the publishers of a topic, at once and then whenever they have changed.

    The folder is read again and again, because a file expires without any event, and a folder that
    is shared over a network tells of none.
    """
    limiter = trio.CapacityLimiter(1)
    known: frozenset[Publisher] | None = None
    look = partial(find_publishers, folder, namespace, topic)
    while True:
        found = await trio.to_thread.run_sync(look, limiter=limiter)
        if found != known:
            known = found
            yield found
        await trio.sleep(interval_seconds)
