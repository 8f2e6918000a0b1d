"""How fast the heads of recorded requests are read, and in how much memory.

`python -m benchmarks.playing.scans FILE` scans a record file and prints what it took, as JSON: a
process of its own, so that its memory is that of the scan.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import msgpack

from benchmarks.memory import peak_rss_bytes
from benchmarks.processes import python_module
from replay.plane.codec import MessageEncoder
from replay.plane.record_file import HEADER, pack_record
from replay.player.traces.fault import Notes
from replay.player.traces.record_source import RecordSource

TOKENS = 64


@attrs.frozen
class Scan:
    """One scan."""

    records: int
    records_per_second: float
    rss_mb: float
    """The most that the process held."""
    torn_bytes: int


def write_records(path: Path, count: int) -> None:
    """Write *count* joined records of `TOKENS` tokens each way; the last one is torn."""
    encoder = MessageEncoder("shadow-requests-shadow", 7)
    record: dict[str, Any] = {
        "schema_version": 1,
        "tap": "shadow",
        "seq": 0,
        "request_id": "",
        "origin": "preprocessed",
        "filters": [],
        "arrival_unix_ns": 0,
        "request": {"model": "mock-model", "token_ids": list(range(300, 300 + TOKENS))},
        "response": {
            "outcome": "complete",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "length",
                    "output_tokens": TOKENS,
                    "token_ids": list(range(100, 100 + TOKENS)),
                }
            ],
            "output_tokens": TOKENS,
            "first_token_offset_ns": 20_000_000,
            "last_token_offset_ns": 400_000_000,
            "end_offset_ns": 400_100_000,
        },
    }
    data = b""
    with path.open("wb") as file:
        file.write(HEADER)
        for number in range(count):
            record["seq"] = number
            record["request_id"] = f"request-{number:08}"
            record["arrival_unix_ns"] = 1_700_000_000_000_000_000 + number * 1_000_000
            data = pack_record(encoder.encode(number, number, msgpack.packb(record)))
            file.write(data)
        file.truncate(file.tell() - len(data) // 2)


def scan(path: Path) -> Scan:
    """Scan the file in a process of its own."""
    command = python_module("benchmarks.playing.scans", str(path))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return Scan(**json.loads(done.stdout))


def main() -> int:
    """Scan, and print what it took."""
    notes = Notes()
    records = complete = 0
    names = 0
    began = time.perf_counter()
    for head in RecordSource(sys.argv[1]).scan(notes):
        records += 1
        complete += head.outcome == "complete"
        names += len(head.request_id)
    seconds = time.perf_counter() - began
    assert complete == records
    assert names
    found = Scan(
        records=records,
        records_per_second=records / seconds,
        rss_mb=peak_rss_bytes() / 1e6,
        torn_bytes=notes.torn_bytes,
    )
    print(json.dumps(attrs.asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
