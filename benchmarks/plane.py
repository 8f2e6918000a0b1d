"""Records a second of the event plane's publisher and consumer, against bare pyzmq and msgpack.

Both sides do the same: from a prompt as Python integers to four frames on a socket; from four
frames to counted tokens.  What is measured has a core of its own, its peer another; the two of a
pair take turns, and the ratio is that of each round, so that a slow phase hits both.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import plane_peers
from benchmarks.measures import Bar, Measure
from benchmarks.memory import peak_rss_bytes
from benchmarks.processes import choose_cores
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal

#: Prompt tokens → records of a round, and the share of the bare loop that is promised.
SIZES = {64: (20_000, 0.4), 2048: (5_000, 0.6)}
ROUNDS = 7
PAIR = ("ours", "bare")
SCANNED_RECORDS = 200_000
#: A round that takes longer is stuck.
ROUND_SECONDS = 120.0

_spawn = multiprocessing.get_context("spawn")


class _Peer:
    """A process with a pipe to it."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        self._control, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=run, args=(*arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def told(self) -> Any:
        """Wait for what it tells next."""
        if not self._control.poll(ROUND_SECONDS):
            raise TimeoutError("a process of the benchmark is stuck")
        return self._control.recv()

    def tell(self, value: object) -> None:
        """Let it go on."""
        self._control.send(value)

    def end(self) -> None:
        """Wait until it has ended."""
        self.process.join(ROUND_SECONDS)
        if self.process.exitcode != 0:
            self.process.kill()
            raise RuntimeError(f"a process of the benchmark ended with {self.process.exitcode}")


def publisher_round(contender: str, tokens: int, records: int) -> tuple[float, int]:
    """Return records a second and the bytes of all envelopes."""
    cores = choose_cores()
    publisher = _Peer(plane_peers.publish, contender, tokens, records, cores.server)
    reader = _Peer(plane_peers.drain, publisher.told(), records, cores.client)
    reader.told()
    publisher.tell("go")
    started = publisher.told()
    ended, size = reader.told()
    publisher.tell("end")
    for each in (publisher, reader):
        each.end()
    return records / (ended - started), size


def consumer_round(contender: str, tokens: int, records: int) -> tuple[float, int]:
    """Return records a second and the tokens that were counted."""
    cores = choose_cores()
    feeder = _Peer(plane_peers.feed, tokens, records, cores.client)
    consumer = _Peer(plane_peers.consume, contender, feeder.told(), records, cores.server)
    started = feeder.told()
    ended, counted = consumer.told()
    feeder.tell("end")
    for each in (feeder, consumer):
        each.end()
    return records / (ended - started), counted


def main(argv: list[str]) -> int:
    """Run the benchmark; the exit status is 1 only for a wrong answer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks plane", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    add_common_options(parser)
    options = parser.parse_args(argv)
    rounds = min(options.rounds, 2) if options.quick else options.rounds
    share = 0.2 if options.quick else 1.0
    cores = choose_cores()
    report = Report(
        "plane", first_line(__doc__), settings={"rounds": rounds, **cores.as_settings()}
    )
    if cores.shared:
        report.limits.append("one core for both sides: they slow each other down")
    table = Table(
        "Records a second",
        (
            Column("side", "side"),
            Column("tokens", "prompt tokens", decimals=0),
            Column("ours", "ours", decimals=0, spread=True),
            Column("bare", "bare loop", decimals=0, spread=True),
            Column("ratio", "ratio", decimals=2, spread=True),
        ),
    )
    report.tables.append(table)
    for side, play in (("publisher", publisher_round), ("consumer", consumer_round)):
        for tokens, (records, least) in SIZES.items():
            count = round(records * share)
            rates, outcomes = _contest(play, tokens, count, rounds)
            ratio = rates["ours"].over(rates["bare"])
            table.rows.append({"side": side, "tokens": tokens, **rates, "ratio": ratio})
            what = f"{side}, {tokens} tokens: ours as a share of the bare loop"
            report.bars.append(Bar(what, ratio.median, at_least=least))
            report.wrong_answers += _compare(side, tokens, count, outcomes)
    _scan(report, round(SCANNED_RECORDS * share))
    return report.finish(terminal(), options.json, options.html)


def _contest(
    play: Callable[[str, int, int], tuple[float, int]], tokens: int, records: int, rounds: int
) -> tuple[dict[str, Measure], dict[str, set[int]]]:
    """Play the rounds of a pair in turns, after one that warms up."""
    rates: dict[str, list[float]] = {name: [] for name in PAIR}
    outcomes: dict[str, set[int]] = {name: set() for name in PAIR}
    for number in range(rounds + 1):
        # Who goes first changes, in case the first one of a round has it harder.
        for name in PAIR if number % 2 else reversed(PAIR):
            rate, outcome = play(name, tokens, records)
            outcomes[name].add(outcome)
            if number:
                rates[name].append(rate)
    return {name: Measure(tuple(values)) for name, values in rates.items()}, outcomes


def _compare(side: str, tokens: int, records: int, outcomes: dict[str, set[int]]) -> list[str]:
    """Return what the two sides of a pair disagree about: nothing, if all is right."""
    everything = outcomes["ours"] | outcomes["bare"]
    if side == "consumer":
        expected = {records * (tokens + 16)}
        return [] if everything == expected else [f"counted tokens {everything}, not {expected}"]
    # Only the width of a packed number may differ, and our id is the same: so nothing may.
    return [] if len(everything) == 1 else [f"{side}, {tokens} tokens: {everything} bytes"]


def _scan(report: Report, records: int) -> None:
    """Measure how fast a record file is read, in a process of its own for its memory."""
    with tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder:
        path = Path(folder) / "records"
        writer = _Peer(_write_file, path, records)
        size = writer.told()
        writer.end()
        scanner = _Peer(_scan_file, path)
        seconds, found, rss_mb = scanner.told()
        scanner.end()
    report.tables.append(
        Table(
            "Scanning a record file: request id, arrival and outcome of each record of 64 tokens",
            (
                Column("records", "records", decimals=0),
                Column("mb", "MB", decimals=0),
                Column("rate", "records/s", decimals=0),
                Column("rss", "RSS MB", decimals=0),
            ),
            [{"records": found, "mb": size / 1e6, "rate": found / seconds, "rss": rss_mb}],
        )
    )
    report.bars.append(Bar("records scanned a second", found / seconds, at_least=50_000))
    report.bars.append(Bar("RSS of the scan, MB", rss_mb, at_most=200))
    if found != records:
        report.wrong_answers.append(f"{found} of {records} records found in the file")


def _write_file(path: Path, records: int, control: Connection) -> None:
    import msgpack

    from replay.plane.codec import MessageEncoder
    from replay.plane.record_file import HEADER, pack_record

    encoder = MessageEncoder(plane_peers.TOPIC, plane_peers.PUBLISHER_ID)
    record = plane_peers.plain_record(64)
    with path.open("wb") as file:
        file.write(HEADER)
        for number in range(records):
            record["seq"] = number
            file.write(pack_record(encoder.encode(number, 1, msgpack.packb(record))))
        control.send(file.tell())


def _scan_file(path: Path, control: Connection) -> None:
    from replay.consumer.summary import SummaryReader
    from replay.plane.codec import decode_message
    from replay.plane.record_file import RecordFiles

    reader = SummaryReader()
    found = 0
    started = time.perf_counter()
    for frames in RecordFiles(path):
        summary = reader.read(decode_message(frames).payload)
        found += bool(summary.request_id and summary.arrival_unix_ns and summary.outcome)
    seconds = time.perf_counter() - started
    control.send((seconds, found, peak_rss_bytes() / 1e6))
