"""What `play` and `compare` promise: schedules, traces, a cache, repeated runs, scans.

Every part has a control of its own: a process that only sleeps, the counts that a trace states, a
cache that is computed from the trace, the same run again.  With --quick the long parts are left
out; --only runs some by their names.
"""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.measures import Bar, Measure
from benchmarks.playing.repeats import compare_repeats
from benchmarks.playing.runs import PlayError, read_azure, read_mooncake
from benchmarks.playing.scans import TOKENS, scan, write_records
from benchmarks.playing.schedules import Late, play_evenly
from benchmarks.playing.traces import BLOCK_TOKENS, SPEEDS, hit_rate, play_at_speeds
from benchmarks.processes import Cores, ServerError, choose_cores
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal

TRACES = Path(__file__).resolve().parents[1] / "tests" / "data" / "traces"
MOONCAKE = "mooncake_conversation_first1000.jsonl.gz"
AZURE = "azure_llm_2023_conv_first2000.csv.gz"
KV_TOKENS = 14_000_000
SMALL_KV_TOKENS = 4_000_000
#: The engine of the part `hits`: fast, so that a closed loop of one ends soon.
SPEEDUP = 1000.0
#: The engine of the part `streams`: a token every 100 ms, a hundred of them.
LONG_STREAMS = ("--gen-ms=100", "--token-ms=100")


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks player", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--only", nargs="+", choices=[*PARTS], metavar="PART", help="only these")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where the traces lie")
    parser.add_argument(
        "--speeds", default=SPEEDS, type=_speeds, metavar="LIST", help="tried until one is kept"
    )
    options = parser.parse_args(argv)
    console, cores = terminal(), choose_cores()
    names = options.only or (QUICK if options.quick else [*PARTS])
    settings = {"parts": names, **cores.as_settings()}
    report = Report("player", first_line(__doc__), settings=settings)
    try:
        for name in names:
            with console.status(name):
                PARTS[name](report, options, cores)
    except (PlayError, ServerError, OSError, subprocess.CalledProcessError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    return report.finish(console, options.json, options.html)


def _speeds(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _delay(report: Report, options: argparse.Namespace, cores: Cores) -> None:
    """100 requests/s of 512/16."""
    rounds, seconds = (1, 3) if options.quick else (5, 10)
    late = [
        play_evenly(
            count=100 * seconds,
            rate=100.0,
            isl=512,
            osl=16,
            flags=("--gen-ms=20", "--token-ms=5"),
            cores=cores,
        )
        for _ in range(rounds)
    ]
    _show_late(report, f"Schedule delay, 100 requests/s of 512/16, {seconds} s", late)
    above = Measure(tuple(each.above_ms for each in late))
    report.bars.append(
        Bar("p99 of the schedule delay above a sleeper's, ms", above.median, at_most=3)
    )


def _streams(report: Report, options: argparse.Namespace, cores: Cores) -> None:
    """600 streams of ten seconds at 100/s."""
    late = [play_evenly(count=600, rate=100.0, isl=128, osl=100, flags=LONG_STREAMS, cores=cores)]
    _show_late(report, "600 streams of 10 s at 100/s", late)


def _show_late(report: Report, title: str, late: list[Late]) -> None:
    table = Table(
        title,
        [
            Column("who", "who"),
            Column("p50", "p50 ms", 2, spread=True),
            Column("p99", "p99 ms", 2, spread=True),
            Column("max", "max ms", 1),
        ],
    )
    table.rows.append(
        {
            "who": "the player",
            "p50": Measure(tuple(each.p50_ms for each in late)),
            "p99": Measure(tuple(each.p99_ms for each in late)),
            "max": max(each.max_ms for each in late),
        }
    )
    table.rows.append(
        {
            "who": "a sleeper beside it",
            "p50": Measure(tuple(each.control_p50_ms for each in late)),
            "p99": Measure(tuple(each.control_p99_ms for each in late)),
        }
    )
    report.tables.append(table)
    report.remarks.append(f"{title}: up to {max(each.in_flight for each in late)} open at once")
    for each in late:
        if each.complete != each.requests:
            report.wrong_answers.append(f"{title}: {each.complete} of {each.requests} complete")


def _speed(report: Report, options: argparse.Namespace, cores: Cores) -> None:
    """The highest speed that the machine keeps."""
    table = Table(
        f"Traces to two realistic workers of {KV_TOKENS:,} KV tokens each",
        [
            Column("trace", "trace"),
            Column("speed", "--speed", 0),
            Column("kept", "kept"),
            Column("late", "p99 late ms", 1),
            Column("sleeper", "the loop's own ms", 1),
            Column("seconds", "seconds", 1),
        ],
    )
    traces = (read_mooncake(options.traces / MOONCAKE), read_azure(options.traces / AZURE))
    for trace in traces:
        found = play_at_speeds(trace, cores=cores, kv_tokens=KV_TOKENS, speeds=options.speeds)
        for played in found:
            table.rows.append(
                {
                    "trace": played.trace.partition("_")[0],
                    "speed": played.speed,
                    "kept": "yes" if played.kept else "no",
                    "late": played.late_p99_ms,
                    "sleeper": played.sleeper_p99_ms,
                    "seconds": played.seconds,
                }
            )
            report.wrong_answers += played.faults
    report.tables.append(table)


def _hits(report: Report, options: argparse.Namespace, cores: Cores) -> None:
    """What a cache finds of the Mooncake rows."""
    table = Table(
        "Prompt tokens of the Mooncake trace that one worker found in its cache, per cent",
        [
            Column("pool", "KV tokens", 0),
            Column("pace", "pace"),
            Column("measured", "measured", 3),
            Column("offline", "computed", 3),
            Column("points", "points apart", 3),
        ],
    )
    limit = 150 if options.quick else None
    trace = read_mooncake(options.traces / MOONCAKE, limit)
    paces = ("--concurrency=1",) if options.quick else ("--concurrency=1", "--speed=5")
    small = 600_000 if options.quick else SMALL_KV_TOKENS
    for pace in paces:
        for kv_tokens in (KV_TOKENS, small):
            hits = hit_rate(trace, cores=cores, kv_tokens=kv_tokens, speedup=SPEEDUP, pace=pace)
            table.rows.append(
                {
                    "pool": hits.kv_tokens,
                    "pace": hits.pace,
                    "measured": hits.measured * 100,
                    "offline": hits.offline * 100,
                    "points": hits.points,
                }
            )
            report.wrong_answers += hits.faults
            what = f"hit rate, {kv_tokens:,} KV tokens, {pace}: points from the computed one"
            report.bars.append(Bar(what, hits.points, at_most=0.5))
    report.tables.append(table)
    report.remarks.append(
        "computed: benchmarks/playing/offline_cache.py, in the order in which the worker admitted "
        f"the requests, with as many blocks of {BLOCK_TOKENS} tokens as the pool has"
    )


def _repeats(report: Report, options: argparse.Namespace, cores: Cores) -> None:
    """What is flagged of a worker against itself, and of one that is slower."""
    found = compare_repeats(3 if options.quick else 20, cores=cores)
    report.remarks.append(
        f"{found.comparisons} comparisons of a worker with itself, with a control: "
        f"{found.flagged} with a difference" + (f" ({', '.join(found.what)})" if found.what else "")
    )
    report.bars.append(Bar("comparisons with itself that flag anything", found.flagged, at_most=0))
    report.bars.append(
        Bar("20 ms more at the first token are flagged", found.slower_flagged, at_least=1)
    )
    if found.slower_tokens:
        report.wrong_answers.append(f"{found.slower_tokens} requests got other tokens when slower")


def _scan(report: Report, options: argparse.Namespace, cores: Cores) -> None:
    """A record file."""
    count = 50_000 if options.quick else 1_000_000
    table = Table(
        f"Heads read of a record file: {count:,} records of {TOKENS} tokens, the last one torn",
        [
            Column("records", "records", 0),
            Column("rate", "records/s", 0, spread=True),
            Column("rss", "RSS MB", 0, spread=True),
            Column("torn", "torn bytes", 0),
        ],
    )
    with tempfile.TemporaryDirectory(prefix="replay-benchmark-") as folder:
        path = Path(folder) / "tap.records"
        write_records(path, count)
        scans = [scan(path) for _ in range(1 if options.quick else 3)]
        os.truncate(path, 0)
    rate = Measure(tuple(each.records_per_second for each in scans))
    memory = Measure(tuple(each.rss_mb for each in scans))
    table.rows.append(
        {"records": scans[0].records, "rate": rate, "rss": memory, "torn": scans[0].torn_bytes}
    )
    report.tables.append(table)
    report.bars.append(Bar("records scanned a second", rate.median, at_least=50_000))
    report.bars.append(Bar("memory of a scan, MB", memory.high, at_most=200))
    if scans[0].records != count - 1 or not scans[0].torn_bytes:
        report.wrong_answers.append(f"{scans[0].records} records of {count}, one of them torn")


PARTS: Mapping[str, Callable[[Report, argparse.Namespace, Cores], None]] = {
    "delay": _delay,
    "streams": _streams,
    "speed": _speed,
    "hits": _hits,
    "repeats": _repeats,
    "scan": _scan,
}
#: The parts that take seconds.
QUICK = ["delay", "hits", "scan"]
