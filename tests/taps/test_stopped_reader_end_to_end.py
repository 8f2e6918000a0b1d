"""A consumer under SIGSTOP, from the worker's port to the consumer's report: clients and the other
consumer notice nothing, memory is bounded, and every record is accounted for when it goes on.

What that costs in time is measured by `python -m benchmarks stalled`.
"""

import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.consumer.test_exact_loss import UNTIL_THE_TAIL_IS_KNOWN_SECONDS
from tests.taps.mirroring import (
    JOINED,
    PLAIN,
    QUICK,
    ask_worker,
    consuming,
    counted,
    rss_bytes,
    worker,
)

#: 40 MB of records: more than a queue of ten and the system's buffers hold together.
REQUESTS, CAPACITY = 400, 10
PROMPT = tuple(range(70_000, 90_000))
RECORD_BYTES = 5 * len(PROMPT) + 1024
#: What memory may grow beyond the queue.
MARGIN_BYTES = 32 << 20
BUFFERED = {"capacity": CAPACITY, "replay_buffer": 2 * REQUESTS}
ROOMY = {"capacity": 2 * REQUESTS}


@pytest.mark.parametrize("tap", [{"capacity": CAPACITY}, BUFFERED, ROOMY])
async def test_a_stopped_consumer_hurts_nobody_and_knows_its_loss_when_it_goes_on(
    tmp_path: Path, tap: dict[str, Any]
) -> None:
    """Little follows what it missed: most of the loss is a tail that statuses tell of."""
    taps = [{**JOINED, **tap}, {**PLAIN, "capacity": 2 * REQUESTS}]
    with worker(tmp_path, taps, event_plane=QUICK) as process:
        async with (
            consuming(tmp_path, "shadow-replay") as stopped,
            consuming(tmp_path, "shadow-audit") as other,
        ):
            await ask_worker(process, 50, prompt=PROMPT, max_new_tokens=4)
            await counted(tmp_path, "shadow-replay", 50)
            before = rss_bytes(process)
            stopped.process.send_signal(signal.SIGSTOP)
            tokens = await ask_worker(process, REQUESTS, prompt=PROMPT, max_new_tokens=4)
            grown = rss_bytes(process) - before
            stopped.process.send_signal(signal.SIGCONT)
            if tap != {"capacity": CAPACITY}:
                await counted(tmp_path, "shadow-replay", 50 + REQUESTS)
            await trio.sleep(UNTIL_THE_TAIL_IS_KNOWN_SECONDS)
            _, report = await stopped.end()
            _, others = await other.end()
    assert tokens == 4 * REQUESTS
    sent = 50 + REQUESTS
    assert others["records"] == sent
    assert others["tap_drops"] == others["transport_loss"] == others["tail_loss"] == 0
    lost = report["transport_loss"] + report["tail_loss"]
    assert report["tap_drops"] == report["duplicates"] == 0
    assert report["records"] + lost == sent
    if tap == {"capacity": CAPACITY}:
        assert lost > REQUESTS / 4
        assert grown <= CAPACITY * RECORD_BYTES + MARGIN_BYTES
    else:
        assert lost == report["tap_gaps"] == report["transport_gaps"] == 0
    assert (report["recovered"] > REQUESTS / 4) == (tap == BUFFERED)
