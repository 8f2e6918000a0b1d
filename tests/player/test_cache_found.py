"""What the simulated engine's cache finds of prompts that are made of a trace's `hash_ids`.

A client sees it in `cached_tokens`.  It is held against a cache that is computed from the trace, by
a model that shares no code with the engine.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks.playing.offline_cache import OfflineCache, TraceRow
from replay.config.engines import RealisticConfig
from replay.config.model import Config, ShutdownConfig, WorkerConfig
from replay.player.feed import ReadAhead
from replay.player.grpc_target import open_grpc_target
from replay.player.observation import Observation, Outcome
from replay.player.play import Player, PlaySettings
from replay.player.schedule import unpaced
from replay.player.traces.opening import Source
from replay.player.traces.options import ReadOptions
from replay.runtime import open_runtime

BLOCK = 16


def write_trace(path: Path, rows: Sequence[TraceRow]) -> None:
    with path.open("w") as file:
        for row in rows:
            values = {
                "timestamp": 0,
                "input_length": row.prompt_tokens,
                "output_length": row.output_tokens,
                "hash_ids": list(row.hash_ids),
            }
            file.write(json.dumps(values) + "\n")


async def one_by_one(
    path: Path, rows: Sequence[TraceRow], *, trace_block_size: int = 512, **engine: Any
) -> list[Observation]:
    """Write *rows* as a Mooncake trace and play it, one request at a time, to one worker."""
    write_trace(path, rows)
    setup = WorkerConfig(grpc_base_port=0, engine=RealisticConfig(speedup=1e4, **engine))
    results: list[Observation] = []
    with Source(path) as source:
        async with (
            open_runtime(Config(worker=setup, shutdown=ShutdownConfig(grace_seconds=0))) as runtime,
            open_grpc_target(runtime.addresses[0]) as target,
        ):
            model = await target.describe()
            player = Player(
                target,
                ReadAhead(unpaced(source.arrivals(ReadOptions(block_size=trace_block_size)))),
                vocab_size=model.vocab_size,
                settings=PlaySettings(concurrency=1),
                on_result=results.append,
            )
            with trio.fail_after(60):
                await player.run(stop=trio.Event(), quit_now=trio.Event())
    assert {each.outcome for each in results} == {Outcome.COMPLETE}
    return results


async def test_rows_that_share_hash_ids_share_exactly_that_prefix(tmp_path: Path) -> None:
    rows = [
        TraceRow(1536, 4, (1, 2, 3)),
        TraceRow(1536, 4, (1, 2, 9)),
        TraceRow(1536, 4, (1, 9, 3)),
        TraceRow(1536, 4, (8, 2, 3)),
        TraceRow(2048, 4, (1, 2, 3, 7)),
        # The last block is a part of one: it is the beginning of that whole one.
        TraceRow(1024 + 300, 4, (1, 2, 9)),
        # No id covers the last 100 tokens: they are this row's alone.
        TraceRow(1024 + 100, 4, (1, 2)),
        TraceRow(1024 + 100, 4, (1, 2)),
        # The token that gives the next one is computed in any case.
        TraceRow(1536, 4, (1, 2, 3)),
    ]
    results = await one_by_one(tmp_path / "trace.jsonl", rows)
    assert [each.prompt_tokens for each in results] == [row.prompt_tokens for row in rows]
    assert [each.cached_tokens for each in results] == [
        *(0, 1024, 512, 0, 1536),
        1024 + 300 // BLOCK * BLOCK,
        *(1024, 1024, 1536 - BLOCK),
    ]


def conversations(seed: int, count: int) -> list[TraceRow]:
    """Return turns of conversations that grow, some of which are taken up again much later."""
    draw = random.Random(seed)
    talks: list[list[int]] = []
    rows = []
    for number in range(count):
        if talks and draw.random() < 0.7:
            talk = talks[-1 - min(len(talks) - 1, int(draw.expovariate(0.15)))]
        else:
            talk = [0, 1000 + number] if draw.random() < 0.5 else [2000 + number]
            talks.append(talk)
        rows.append(TraceRow(len(talk) * 64 - draw.randrange(64), draw.randrange(1, 40), [*talk]))
        talk.append(3000 + number)
    return rows


@pytest.mark.parametrize("kv_tokens", [1 << 20, 3072, 2048])
async def test_a_worker_finds_what_an_lru_of_its_size_would(tmp_path: Path, kv_tokens: int) -> None:
    rows = conversations(seed=3, count=150)
    results = await one_by_one(
        tmp_path / "trace.jsonl", rows, trace_block_size=64, kv_tokens=kv_tokens
    )
    cache = OfflineCache(kv_tokens // BLOCK, BLOCK, trace_block_size=64)
    assert [each.cached_tokens for each in results] == [cache.serve(row) for row in rows]
    whole = OfflineCache(None, BLOCK, trace_block_size=64)
    for row in rows:
        whole.serve(row)
    # The small ones do forget: the test would not tell an LRU from a cache without a bound.
    assert (cache.hit_rate < whole.hit_rate) is (kv_tokens < 1 << 20)
