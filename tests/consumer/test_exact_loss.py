"""A consumer that is stopped and continued reports exactly what it lost, or gets it back."""

import json
import signal
from pathlib import Path

import pytest
import trio

from tests.consumer.commands import running
from tests.consumer.publishing import TOPIC, open_publishing
from tests.plane.peers import eventually

#: 37 MB, and a queue of ten messages: the system's buffers hold far less.
RECORDS, PADDING, CAPACITY = 600, 1 << 16, 10
SECOND_RECORDS = 5


#: Two heartbeats are 0.2 s here; what counts is that nothing has come for half a second.
UNTIL_THE_TAIL_IS_KNOWN_SECONDS = 1.2


async def has_counted(summary: Path, records: int) -> None:
    """Wait until the consumer has written that it has so many records."""

    def is_so() -> bool:
        return summary.exists() and json.loads(summary.read_text())["records"] >= records

    await eventually(is_so, seconds=30)


@pytest.mark.parametrize("replay_buffer", [0, 10 * RECORDS])
@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_stopped_consumer_reports_its_loss_exactly_with_the_tail(
    tmp_path: Path, replay_buffer: int, goes_on: bool
) -> None:
    """Without a buffer the loss is counted; with one all of it is fetched.

    If the tap goes on, the loss lies in the middle; if not, mostly at the end, where only the
    status records tell of it.
    """
    folder = tmp_path / "v1" / "event_channels"
    summary = tmp_path / "summary.json"
    flags = ("--topic", TOPIC, "--discovery", str(tmp_path), "--report-interval", "0.1")
    publishing = open_publishing(folder, capacity=CAPACITY, replay_buffer=replay_buffer)
    async with publishing as tap, running(*flags, "--summary-path", str(summary)) as command:
        await command.until("joined ")
        await tap.offer(1)
        await has_counted(summary, 1)
        command.process.send_signal(signal.SIGSTOP)
        await tap.offer(RECORDS, padding=PADDING)
        command.process.send_signal(signal.SIGCONT)
        if replay_buffer:
            await has_counted(summary, 1 + RECORDS)
        else:
            await trio.sleep(UNTIL_THE_TAIL_IS_KNOWN_SECONDS)
        if goes_on:
            await tap.offer(SECOND_RECORDS)
            await has_counted(summary, 1 + SECOND_RECORDS)
            await trio.sleep(UNTIL_THE_TAIL_IS_KNOWN_SECONDS)
        _, report = await command.end()
    total = 1 + RECORDS + (SECOND_RECORDS if goes_on else 0)
    lost = report["transport_loss"] + report["tail_loss"]
    assert report["records"] + lost == total == tap.sink.next_sequence
    assert report["duplicates"] == report["tap_drops"] == 0
    if replay_buffer:
        assert lost == 0
        assert report["recovered"] > RECORDS / 4
        assert report["tap_gaps"] == report["transport_gaps"] == 0
    else:
        assert lost > RECORDS / 4
        assert report["tap_gaps"] == report["transport_gaps"]
        assert report["tail_loss"] == 0 or not goes_on


async def test_with_room_for_all_a_stopped_consumer_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "v1" / "event_channels"
    summary = tmp_path / "summary.json"
    flags = ("--topic", TOPIC, "--discovery", str(tmp_path), "--report-interval", "0.1")
    publishing = open_publishing(folder, capacity=2 * RECORDS)
    async with publishing as tap, running(*flags, "--summary-path", str(summary)) as command:
        await command.until("joined ")
        await tap.offer(1)
        await has_counted(summary, 1)
        command.process.send_signal(signal.SIGSTOP)
        await tap.offer(RECORDS, padding=PADDING)
        command.process.send_signal(signal.SIGCONT)
        await has_counted(summary, 1 + RECORDS)
        await trio.sleep(UNTIL_THE_TAIL_IS_KNOWN_SECONDS)
        _, report = await command.end()
    assert report["transport_loss"] == report["tail_loss"] == report["tap_gaps"] == 0
