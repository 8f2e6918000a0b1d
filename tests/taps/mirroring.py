"""A worker with taps as a process, requests to it, and where it says its sockets are."""

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio
import yaml
from worker_process import WorkerProcess, running_worker

from replay.engines.methods import GENERATE
from replay.rpc.client import Channel, open_channel
from tests.consumer.commands import Command, running
from tests.consumer.test_exact_loss import has_counted
from tests.engines.requests import generate_request

JOINED: Mapping[str, Any] = {
    "name": "shadow-replay",
    "topic": "shadow-replay",
    "capture": "request_response",
    "filters": ["strip-multimodal", "strip-embeds"],
}
PLAIN: Mapping[str, Any] = {
    "name": "shadow-audit",
    "topic": "shadow-audit",
    "capture": "request",
    "filters": ["tokens-only"],
}

#: A consumer that comes later has joined, and one that was stopped knows its loss, the sooner.
QUICK: Mapping[str, Any] = {"heartbeat_seconds": 0.2}


def write_config(folder: Path, taps: Sequence[Mapping[str, Any]], **sections: Any) -> Path:
    """Write a configuration whose discovery is in *folder*, and return its path."""
    plane = {"discovery": {"kind": "file", "root": str(folder)}, **sections.pop("event_plane", {})}
    config = {
        "schema_version": 1,
        "taps": [dict(tap) for tap in taps],
        "event_plane": plane,
        **sections,
    }
    path = folder / "taps.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def worker(
    folder: Path, taps: Sequence[Mapping[str, Any]], *flags: str, **sections: Any
) -> Iterator[WorkerProcess]:
    """Run `replay serve` with *taps*; its log is in *folder*."""
    config = write_config(folder, taps, **sections)
    with running_worker("--config", config, *flags, log=folder / "serve.log") as process:
        yield process


def events(process: WorkerProcess) -> list[dict[str, Any]]:
    """Return what the worker has logged so far."""
    return [json.loads(line) for line in process.log.read_text().splitlines()]


def channels_of(folder: Path) -> list[Path]:
    """Return the discovery files of *folder*."""
    found = folder / "v1" / "event_channels"
    return sorted(found.iterdir()) if found.exists() else []


@asynccontextmanager
async def consuming(
    folder: Path, topic: str, *flags: str, name: str | None = None
) -> AsyncIterator[Command]:
    """Run a consumer of *topic* that has joined.

    In *folder* its summary is `<name>.json` and its stderr `<name>.err`; the name is the topic's if
    none is given.
    """
    name = name or topic
    summary = folder / f"{name}.json"
    options = (
        *("--discovery", str(folder), "--summary-path", str(summary)),
        *("--report-interval", "0.1"),
    )
    with (folder / f"{name}.err").open("w") as err:
        consumer = running("--topic", topic, *options, *flags, stderr=err.fileno())
        async with consumer as command:
            await command.until("joined ")
            yield command


async def counted(folder: Path, name: str, records: int) -> None:
    """Wait until the consumer of this name has written that it has so many records."""
    await has_counted(folder / f"{name}.json", records)


async def ask(channel: Channel, count: int, *, at_once: int = 8, **request: Any) -> int:
    """Send *count* requests, so many at once, and return how many tokens came in all."""
    tokens = 0
    numbers = iter(range(count))

    async def ask_some() -> None:
        nonlocal tokens
        for number in numbers:
            message = generate_request(request_id=f"r-{number}", **request)
            async with channel.stream(GENERATE, message) as answers:
                async for answer in answers:
                    tokens += len(answer.chunk.token_ids)

    async with trio.open_nursery() as askers:
        for _ in range(at_once):
            askers.start_soon(ask_some)
    return tokens


async def ask_worker(process: WorkerProcess, count: int, **request: Any) -> int:
    """Do what `ask` does on a connection of its own."""
    async with open_channel(process.address) as channel:
        return await ask(channel, count, **request)


def rss_bytes(process: WorkerProcess) -> int:
    """Return its resident memory."""
    pages = Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
