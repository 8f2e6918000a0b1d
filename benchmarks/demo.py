"""The three runs of Dynamo's shadow demonstration: streamed, in one piece, a quarter taken back.

The taps are the demonstration's, and so are 200 requests, 16 at once, of 512 and 32 tokens.  In
place of its frontend and mock engines stands our worker, and in place of AIPerf our load generator,
straight to the worker; with --aiperf PROGRAM it is AIPerf, through the smg gateway.  What the
consumers counted has to agree with what was sent.
"""

import argparse
import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from benchmarks.contenders import WORKER, WORKER_OPTIONS
from benchmarks.generator.run import LoadError, run_load
from benchmarks.generator.spec import LoadSpec
from benchmarks.generator.summary import Summary, summarise
from benchmarks.generator.workload import Workload
from benchmarks.processes import Cores, ServerError, choose_cores, python_module, start
from benchmarks.results import Column, Report, Table, add_common_options, first_line, terminal
from benchmarks.tap_setup import consuming, write_config

TAPS: tuple[dict[str, Any], ...] = (
    {
        "name": "kv-history-tracker",
        "topic": "kv-history-tracker",
        "capture": "request",
        "filters": ["tokens-only"],
        "capacity": 4096,
    },
    {
        "name": "shadow-replay",
        "topic": "shadow-replay",
        "capture": "request_response",
        "filters": ["strip-multimodal", "strip-embeds"],
    },
)
JOINED = "shadow-replay"

REQUESTS, CONCURRENCY, PROMPT_TOKENS, OUTPUT_TOKENS = 200, 16, 512, 32
CANCEL_SHARE, CANCEL_SECONDS = 0.25, 0.05
#: About the pace of the demonstration's mock engine; a whole answer takes longer than the client of
#: the third run has patience.
ENGINE = {"kind": "canned", "gen_ms": 10.0, "token_ms": 2.0}

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TOKENIZER = Path(__file__).resolve().parent.parent / "tests" / "data" / "tiny-model"
VOCAB_SIZE = 4096
#: AIPerf loads its tokenizer and writes its reports: most of this is not the load.
AIPERF_SECONDS = 300.0


@attrs.frozen
class Run:
    """One of the three runs."""

    name: str
    stream: bool = True
    cancels: bool = False

    def workload(self) -> Workload:
        """Return it for our load generator."""
        return Workload(
            isl=str(PROMPT_TOKENS),
            osl=str(OUTPUT_TOKENS),
            stream=self.stream,
            cancel_share=CANCEL_SHARE if self.cancels else 0.0,
            cancel_delay_s=CANCEL_SECONDS,
        )

    def aiperf_flags(self) -> list[str]:
        """Return it for AIPerf."""
        flags = ["--streaming"] if self.stream else []
        if self.cancels:
            flags += ["--request-cancellation-rate", f"{CANCEL_SHARE * 100:g}"]
            flags += ["--request-cancellation-delay", f"{CANCEL_SECONDS:g}"]
        return flags


RUNS = (
    Run("streamed"),
    Run("one piece", stream=False),
    Run("taken back", cancels=True),
)


@attrs.frozen
class Played:
    """What came of a run: what each consumer counted, and what our client saw."""

    consumed: Mapping[str, Mapping[str, Any]]
    """The consumers' reports by topic."""
    summary: Summary | None
    """None when AIPerf was the client."""


def play(run: Run, cores: Cores, *, aiperf: str | None) -> Played:
    """Play a run on a fresh worker with fresh consumers.

    Raises ServerError, LoadError, OSError.
    """
    with (
        tempfile.TemporaryDirectory(prefix="replay-benchmark-") as name,
        contextlib.ExitStack() as running,
    ):
        folder = Path(name)
        worker: dict[str, Any] = {"engine": ENGINE}
        if aiperf is not None:
            # Without a seed the ids are low ones, which are no text: AIPerf would find no answer.
            worker = {"engine": {**ENGINE, "seed": 1}, "tokenizer": str(TOKENIZER)}
            worker["vocab_size"] = VOCAB_SIZE
        config = write_config(folder, TAPS, worker=worker)
        command = python_module("replay", "serve", *WORKER_OPTIONS, f"--config={config}")
        server = running.enter_context(start(WORKER, command, cores.server))
        consumers = {
            tap["topic"]: running.enter_context(consuming(folder, tap["topic"], cores.client))
            for tap in TAPS
        }
        summary = None
        if aiperf is None:
            summary = summarise(run_load(_spec(run, f"grpc://{server.address}")))
        else:
            with _gateway(server.address, folder) as gateway:
                _run_aiperf(aiperf, run, gateway, folder)
        # Records of requests that were taken back leave with them, so all are out when these end.
        return Played({topic: each.end() for topic, each in consumers.items()}, summary)


def _spec(run: Run, target: str) -> LoadSpec:
    return LoadSpec(
        target=target,
        workload=run.workload(),
        concurrency=CONCURRENCY,
        requests=REQUESTS,
        run=f"demo-{os.urandom(4).hex()}",
    )


@contextlib.contextmanager
def _gateway(address: str, folder: Path) -> Iterator[Any]:
    """Run the smg gateway as the examples do.  Raises ServerError."""
    sys.path.append(str(EXAMPLES))
    smg = importlib.import_module("smg_gateway")
    try:
        with smg.running_gateway(address, log=folder / "gateway.log") as gateway:
            yield gateway
    except smg.GatewayError as error:
        raise ServerError(str(error)) from error


def _run_aiperf(program: str, run: Run, gateway: Any, folder: Path) -> None:
    """Send the run's requests with AIPerf.  Raises ServerError when it fails."""
    command = [
        *(program, "profile", "--model", gateway.model, "--url", gateway.url),
        *("--endpoint-type", "chat", "--tokenizer", str(TOKENIZER), "--ui", "none"),
        *("--request-count", str(REQUESTS), "--concurrency", str(CONCURRENCY)),
        *("--synthetic-input-tokens-mean", str(PROMPT_TOKENS)),
        *("--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", str(OUTPUT_TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--artifact-dir", str(folder / "aiperf")),
        *run.aiperf_flags(),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=AIPERF_SECONDS,
            # It finds a tokenizer in a folder only where it might ask a hub.
            env={**os.environ, "HOME": str(folder)},
        )
    except subprocess.TimeoutExpired:
        raise ServerError(f"{program} ran for {AIPERF_SECONDS:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout)[-800:]
        raise ServerError(f"{program} ended with {done.returncode}: {said}")


def main(argv: list[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks demo", description=__doc__)
    add_common_options(parser)
    parser.add_argument("--aiperf", metavar="PROGRAM", help="send with AIPerf, through smg")
    options = parser.parse_args(argv)
    if options.aiperf is not None and shutil.which(options.aiperf) is None:
        parser.error(f"--aiperf: there is no program {options.aiperf}")
    console, cores = terminal(), choose_cores()
    report = Report(
        "demo",
        first_line(__doc__),
        settings={
            "client": "own load generator, gRPC" if options.aiperf is None else "AIPerf, smg",
            "requests": REQUESTS,
            "concurrency": CONCURRENCY,
            "isl": PROMPT_TOKENS,
            "osl": OUTPUT_TOKENS,
            **ENGINE,
        },
    )
    counted = Table(
        f"What the consumers counted of {REQUESTS} requests (gaps: tap, transport)",
        [
            Column("run", "run"),
            Column("tap", "tap"),
            *(
                Column(key, head, 0)
                for key, head in (
                    ("records", "records"),
                    ("prompt_tokens", "prompt"),
                    ("output_tokens", "output"),
                    ("complete", "complete"),
                    ("cancelled", "cancelled"),
                    ("incomplete", "incomplete"),
                    ("error", "error"),
                )
            ),
            Column("gaps", "gaps"),
        ],
    )
    report.tables.append(counted)
    try:
        with console.status("starting") as status:
            for run in RUNS:
                status.update(run.name)
                _note(report, counted, run, play(run, cores, aiperf=options.aiperf))
    except (LoadError, ServerError, OSError) as error:
        console.print(f"cannot measure: {error}", style="red", highlight=False, markup=False)
        return 1
    return report.finish(console, options.json, options.html)


def _note(report: Report, counted: Table, run: Run, played: Played) -> None:
    """Add the rows of a run, and what does not agree."""
    for topic, consumed in played.consumed.items():
        keys = [column.key for column in counted.columns[2:-1]]
        if topic != JOINED:  # it mirrors requests, and knows no answer
            keys = keys[:2]
        row = {key: consumed.get(key) for key in keys}
        gaps = f"{consumed.get('tap_gaps')}, {consumed.get('transport_gaps')}"
        counted.rows.append({"run": run.name, "tap": topic, **row, "gaps": gaps})
    report.wrong_answers += [f"{run.name}: {fault}" for fault in disagreements(run, played)]
    if played.summary is not None:
        statuses = ", ".join(f"{count} {name}" for name, count in played.summary.statuses.items())
        report.remarks.append(f"{run.name}: the client saw {statuses}")


def disagreements(run: Run, played: Played) -> list[str]:
    """Return what the consumers counted and the run does not bear out."""
    found = []
    counts = {topic: consumed.get("records") for topic, consumed in played.consumed.items()}
    prompts = {consumed.get("prompt_tokens") for consumed in played.consumed.values()}
    if len(prompts) > 1:
        found.append(f"the taps do not agree on the prompt tokens: {sorted(map(str, prompts))}")
    # A request that is taken back before it has left the client or the gateway has no record.
    least = REQUESTS * (1 - CANCEL_SHARE * 2) if run.cancels else REQUESTS
    for topic, consumed in played.consumed.items():
        gaps = {key: consumed[key] for key in ("tap_gaps", "transport_gaps") if consumed.get(key)}
        if gaps:
            found.append(f"{topic}: {gaps}")
        if not least <= (counts[topic] or 0) <= REQUESTS:
            found.append(f"{topic}: {counts[topic]} records of {REQUESTS} requests")
    if len(set(counts.values())) > 1:
        found.append(f"the taps do not agree on the records: {counts}")
    joined = played.consumed.get(JOINED, {})
    ends = {key: joined.get(key, 0) for key in ("complete", "cancelled", "incomplete", "error")}
    if sum(ends.values()) != joined.get("records") or ends["incomplete"] or ends["error"]:
        found.append(f"{JOINED}: {joined.get('records')} records ended as {ends}")
    if bool(ends["cancelled"]) != run.cancels:
        found.append(f"{JOINED}: {ends['cancelled']} records are cancelled")
    return found
