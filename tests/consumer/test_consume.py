"""A consumer beside a publishing tap, over real sockets: joining, loss, gaps, ends."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from replay.consumer import ledger as ledger_module
from replay.consumer.consume import Consumer, Listener, Source
from replay.consumer.ledger import PublisherLedger
from replay.consumer.summary import RecordSummary
from replay.errors import JournalWriteError
from replay.plane import discovery, gap_filling, subscriber
from replay.plane.codec import Message, decode_message
from replay.plane.record_file import RecordFiles
from replay.plane.record_writer import RecordFileWriter
from replay.plane.sockets import open_context
from tests.consumer.publishing import TOPIC, Publishing, open_publishing
from tests.logs import capture_logs
from tests.plane.peers import XPub, eventually
from tests.plane.records import record


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look into the folder often, and settle sooner: heartbeats are quick here too."""
    monkeypatch.setattr(
        subscriber, "watch_publishers", partial(discovery.watch_publishers, interval_seconds=0.02)
    )
    monkeypatch.setattr(ledger_module, "SETTLE_SECONDS", 0.15)


@attrs.define
class Kept(Listener):
    """What a consumer has told."""

    joins: list[int | None] = attrs.field(factory=list)
    sequences: list[int] = attrs.field(factory=list)
    reasons: list[str] = attrs.field(factory=list)

    def joined(self, ledger: PublisherLedger) -> None:
        self.joins.append(ledger.joined_at)

    def record(self, summary: RecordSummary, message: Message) -> None:
        self.sequences.append(message.envelope.sequence)

    def unreadable(self, reason: str) -> None:
        self.reasons.append(reason)


@asynccontextmanager
async def consuming(
    source: Source, *, record_file: RecordFileWriter | None = None
) -> AsyncIterator[tuple[Consumer, Kept]]:
    kept = Kept()
    consumer = Consumer(source, kept, record_file=record_file)
    async with open_context(term_seconds=5) as context, trio.open_nursery() as running:
        running.start_soon(consumer.run, context)
        yield consumer, kept
        running.cancel_scope.cancel()


def in_folder(folder: Path, **changes: Any) -> Source:
    return Source(topic=TOPIC, discovery=folder, **changes)


async def until(consumer: Consumer, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the report is so, and return it."""
    await eventually(lambda: is_so(consumer.report()))
    return consumer.report()


async def join(consumer: Consumer) -> None:
    await until(consumer, lambda report: report["epochs"] == 1)


async def test_it_joins_without_a_message_and_then_misses_nothing(tmp_path: Path) -> None:
    async with open_publishing(tmp_path) as tap, consuming(in_folder(tmp_path)) as (consumer, kept):
        await tap.offer(7)  # nobody is there
        await join(consumer)
        assert kept.joins == [7]
        await tap.offer(50)
        await until(consumer, lambda report: report["records"] == 50)
        report = await until(consumer, lambda report: report["tail_loss"] == 0)
    assert kept.sequences == list(range(7, 57))
    assert report["records"] == report["responses"] == report["complete"] == 50
    assert (report["prompt_tokens"], report["output_tokens"]) == (150, 100)
    assert report["joined_at"] == {f"{tap.publisher_id:x}": 7}
    for key in ("tap_gaps", "transport_gaps", "transport_loss", "tap_drops", "duplicates"):
        assert report[key] == 0


async def test_endpoints_do_without_discovery() -> None:
    async with open_publishing(None) as tap:
        source = Source(
            topic=TOPIC, endpoints=(tap.endpoint,), status_endpoints=(tap.status_endpoint,)
        )
        async with consuming(source) as (consumer, kept):
            await join(consumer)
            await tap.offer(5)
            await until(consumer, lambda report: report["records"] == 5)
            await until(consumer, lambda report: report["tail_loss"] == 0)
    assert kept.joins == [0]


async def test_a_status_of_publishers_that_nobody_named_joins_nothing() -> None:
    """With two taps in the status and one endpoint it is not known which of them is read."""
    async with open_publishing(None) as tap, open_publishing(None) as other:
        source = Source(
            topic=TOPIC,
            endpoints=(tap.endpoint,),
            status_endpoints=(tap.status_endpoint, other.status_endpoint),
        )
        async with consuming(source) as (consumer, kept):
            await until(consumer, lambda report: len(report["publishers"]) == 2)
            for _ in range(3):
                await tap.beat()
                await other.beat()
                await trio.sleep(0.05)
            assert kept.joins == []
            await tap.offer(1)
            await until(consumer, lambda report: report["records"] == 1)
            report = await until(consumer, lambda report: report["tail_loss"] == 0)
    assert report["epochs"] == 1


async def test_without_status_records_the_tail_is_not_known(tmp_path: Path) -> None:
    """Dynamo sends none."""
    publishing = open_publishing(tmp_path, heartbeat=False)
    async with publishing as tap, consuming(in_folder(tmp_path)) as (consumer, kept):
        await _first_message(tap, consumer)
        first = kept.sequences[0]
        await tap.offer(10)
        report = await until(consumer, lambda it: it["records"] == tap.sink.next_sequence - first)
    assert report["tail_loss"] is report["transport_loss"] is report["tap_drops"] is None
    assert report["end_seen"] is None
    assert kept.joins == [first]
    assert not consumer.has_ended


async def _first_message(tap: Publishing, consumer: Consumer) -> None:
    with trio.fail_after(5):
        while not consumer.totals.records:
            await tap.offer(1)
            await trio.sleep(0.01)


async def test_drops_of_the_tap_are_exact_and_apart_from_losses_on_the_way(
    tmp_path: Path,
) -> None:
    async with open_publishing(tmp_path) as tap, consuming(in_folder(tmp_path)) as (consumer, _):
        tap.drop(4)  # before anybody was there
        await tap.offer(1)
        await join(consumer)
        await tap.offer(5)
        tap.drop(3)
        await tap.offer(5)
        report = await until(consumer, lambda report: report["tap_drops"] == 3)
        report = await until(consumer, lambda report: report["tail_loss"] == 0)
    assert (report["tap_gaps"], report["transport_gaps"], report["transport_loss"]) == (3, 0, 0)
    assert report["publishers"][0]["tap_drops"] == {"full": 3, "closed": 0, "bytes": 0}


def _lose(tap: Publishing, count: int) -> None:
    """Let messages be numbered, and kept, that never leave."""
    for _ in range(count):
        sequence = tap.sink.next_sequence
        frames = tap.sink._encoder.encode(sequence, 1, record(tap.seq))
        if tap.buffer is not None:
            tap.buffer.append(sequence, frames)
        tap.sink.next_sequence += 1
        tap.seq += 1


async def test_loss_in_the_middle_and_at_the_end_is_exact(tmp_path: Path) -> None:
    async with open_publishing(tmp_path) as tap, consuming(in_folder(tmp_path)) as (consumer, _):
        await join(consumer)
        _lose(tap, 2)
        await tap.offer(3)
        _lose(tap, 4)
        await tap.offer(1)
        _lose(tap, 5)
        report = await until(consumer, lambda report: report["tail_loss"] == 5)
    assert (report["transport_loss"], report["transport_gaps"]) == (6, 4)
    assert report["records"] + report["transport_loss"] + report["tail_loss"] == 15


async def test_gaps_are_filled_in_order_at_the_beginning_in_the_middle_and_at_the_end(
    tmp_path: Path,
) -> None:
    publishing = open_publishing(tmp_path, replay_buffer=100)
    async with publishing as tap, consuming(in_folder(tmp_path)) as (consumer, kept):
        await join(consumer)
        _lose(tap, 2)
        await tap.offer(3)
        _lose(tap, 4)
        await tap.offer(1)
        await until(consumer, lambda report: report["records"] == 10)
        _lose(tap, 5)
        report = await until(consumer, lambda report: report["records"] == 15)
    assert kept.sequences == list(range(15))
    assert (report["recovered"], report["unrecovered"]) == (11, 0)
    assert report["transport_loss"] == report["transport_gaps"] == report["tap_gaps"] == 0


async def test_what_cannot_be_had_is_told_and_holds_up_nothing_for_long(tmp_path: Path) -> None:
    publishing = open_publishing(tmp_path, replay_buffer=3)
    async with publishing as tap, consuming(in_folder(tmp_path)) as (consumer, kept):
        await join(consumer)
        await tap.offer(1)
        _lose(tap, 6)
        await tap.offer(1)
        await until(consumer, lambda report: report["unrecovered"] == 4)
        report = await until(consumer, lambda report: report["records"] == 4)
        await tap.offer(1)
        await until(consumer, lambda report: report["records"] == 5)
    assert kept.sequences == [0, 5, 6, 7, 8]
    assert (report["recovered"], report["transport_loss"]) == (2, 4)


async def test_what_waits_behind_a_gap_at_the_end_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_filling, "SILENCE_SECONDS", 60)
    publishing = open_publishing(tmp_path, replay_buffer=100)
    async with publishing as tap:
        tap.router = "tcp://127.0.0.1:1"  # where nobody answers
        async with consuming(in_folder(tmp_path)) as (consumer, kept):
            await join(consumer)
            await tap.offer(1)
            _lose(tap, 2)
            await tap.offer(3)
            await until(consumer, lambda report: report["publishers"][0]["messages"] == 4)
            assert kept.sequences == [0]
        await consumer.finish()
    assert kept.sequences == [0, 3, 4, 5]
    assert consumer.report()["transport_loss"] == 2


async def test_what_was_there_before_joining_is_only_asked_for_on_demand(tmp_path: Path) -> None:
    """Case 20."""
    async with open_publishing(tmp_path, replay_buffer=100) as tap:
        await tap.offer(10)
        async with consuming(in_folder(tmp_path)) as (late, kept):
            await join(late)
            await tap.offer(1)
            await until(late, lambda report: report["records"] == 1)
            assert kept.joins == [10]
            assert kept.sequences == [10]
        async with consuming(in_folder(tmp_path, from_start=True)) as (whole, kept):
            await until(whole, lambda report: report["records"] == 11)
            assert sorted(kept.sequences) == list(range(11))
            assert whole.report()["recovered"] == 11


async def test_nothing_is_asked_for_when_gaps_are_not_to_be_filled(tmp_path: Path) -> None:
    source = in_folder(tmp_path, fills_gaps=False)
    async with open_publishing(tmp_path, replay_buffer=100) as tap, consuming(source) as (it, kept):
        await join(it)
        _lose(tap, 2)
        await tap.offer(1)
        await until(it, lambda report: report["records"] == 1)
        report = await until(it, lambda report: report["tail_loss"] == 0)
    assert kept.sequences == [2]
    assert (report["recovered"], report["transport_loss"]) == (0, 2)


async def test_the_end_is_seen_and_a_restart_is_a_new_epoch(tmp_path: Path) -> None:
    async with consuming(in_folder(tmp_path)) as (consumer, kept):
        for run in (1, 2):
            async with open_publishing(tmp_path) as tap:
                await until(consumer, lambda report, run=run: report["epochs"] == run)
                assert consumer.report()["end_seen"] is False
                await tap.offer(20)
                _lose(tap, 1)
            await until(consumer, lambda report: report["end_seen"] is True)
            await eventually(lambda: consumer.has_ended)
            assert consumer.report()["tail_loss"] == run
    assert kept.joins == [0, 0]
    assert consumer.totals.records == 40


async def test_a_publisher_that_counts_anew_under_its_id_loses_nothing() -> None:
    """Dynamo's draw a new id.  What comes twice is still counted once."""
    async with open_context(term_seconds=5) as context:
        with XPub(context) as pub:
            source = Source(topic=TOPIC, endpoints=(pub.endpoint,))
            async with consuming(source) as (consumer, kept):
                await pub.next_subscription()
                for published_at_ms, numbers in ((1000, range(10)), (2000, range(5))):
                    for number in (*numbers, numbers[-1]):
                        pub.send(number, record(number), published_at_ms=published_at_ms + number)
                report = await until(consumer, lambda report: report["duplicates"] == 2)
    assert (report["records"], report["epochs"]) == (15, 2)
    assert [each["messages"] for each in report["publishers"]] == [10, 5]
    assert report["tap_gaps"] == report["transport_gaps"] == 0
    assert kept.joins == [0, 0]


async def test_bad_records_are_counted_apart_and_reading_goes_on(tmp_path: Path) -> None:
    """Rule 68 and case 52."""
    async with open_publishing(tmp_path) as tap, consuming(in_folder(tmp_path)) as (consumer, kept):
        await join(consumer)
        await tap.offer(1)
        await tap.offer(1, schema_version=2)
        await tap.offer(1, tap=5)
        await tap.sink.publish(b"secret")
        await tap.offer(1)
        report = await until(consumer, lambda report: report["records"] == 2)
        report = await until(consumer, lambda report: report["tail_loss"] == 0)
    assert (report["unsupported"], report["undecodable"]) == (1, 2)
    assert len(kept.reasons) == 2
    assert "secret" not in str(kept.reasons)
    # Their numbers came, so nothing is missing.
    assert (report["tap_gaps"], report["transport_gaps"], report["transport_loss"]) == (0, 0, 0)


async def test_messages_that_are_none_are_undecodable_and_foreign_ones_foreign() -> None:
    async with open_context(term_seconds=5) as context:
        with XPub(context) as pub:
            source = Source(topic=TOPIC, endpoints=(pub.endpoint,))
            async with consuming(source) as (consumer, kept):
                assert await pub.next_subscription() == b"\x01shadow"
                pub.socket.send_multipart([b"shadow", b"secret"])
                pub.send(0, record(0), topic="shadow-other")
                for sequence in (1, 2, 2, 1):
                    pub.send(sequence, record(sequence))
                report = await until(consumer, lambda report: report["duplicates"] == 2)
    assert (report["undecodable"], report["foreign"], report["records"]) == (1, 1, 2)
    assert len(kept.reasons) == 1


async def test_messages_are_recorded_unchanged_and_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "discovery"
    async with (
        RecordFileWriter.open(tmp_path / "out.rec", is_numbered=False) as writer,
        open_publishing(folder, replay_buffer=100) as tap,
        consuming(in_folder(folder), record_file=writer) as (consumer, _),
    ):
        await join(consumer)
        await tap.offer(3)
        _lose(tap, 3)
        await tap.offer(1, schema_version=2)
        await tap.offer(3)
        await until(consumer, lambda report: report["records"] == 9)
        stored = [list(frames) for frames in tap.buffer.between(0, 99)] if tap.buffer else []
    assert list(RecordFiles(tmp_path / "out.rec")) == stored
    assert len(stored) == 10


async def test_a_message_that_no_record_file_holds_is_told_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer decides how long its messages are: 256 MiB are as easily sent as a kilobyte."""
    monkeypatch.setattr("replay.plane.record_file.LONGEST_RECORD", 5000)
    folder, out = tmp_path / "discovery", tmp_path / "out.rec"
    with capture_logs() as events:
        async with (
            RecordFileWriter.open(out, is_numbered=False) as writer,
            open_publishing(folder) as tap,
            consuming(in_folder(folder), record_file=writer) as (consumer, _),
        ):
            await join(consumer)
            await tap.offer(1)
            await tap.offer(1, padding=10_000)
            await tap.offer(1)
            await until(consumer, lambda report: report["records"] == 3)
    assert [decode_message(frames).sequence for frames in RecordFiles(out)] == [0, 2]
    assert [each["sequence"] for each in events if "too long" in each["event"]] == [1]


async def test_a_record_file_that_takes_no_more_ends_the_consumer(tmp_path: Path) -> None:
    folder, out = tmp_path / "discovery", tmp_path / "out"
    out.mkdir()
    async with (
        RecordFileWriter.open(out / "out.rec", rotate_bytes=1) as writer,
        open_publishing(folder) as tap,
    ):
        with pytest.RaisesGroup(JournalWriteError, flatten_subgroups=True):
            async with consuming(in_folder(folder), record_file=writer) as (consumer, _):
                await join(consumer)
                await tap.offer(1)
                await until(consumer, lambda report: report["records"] == 1)
                out.rename(tmp_path / "moved")
                await tap.offer(1)
                await trio.sleep_forever()


async def test_a_status_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    async with open_publishing(tmp_path) as tap, consuming(in_folder(tmp_path)) as (consumer, _):
        await join(consumer)
        await tap.status_sink.publish(b"\xc1")
        await tap.status_sink.publish(b"\x80")
        await tap.offer(1)
        await until(consumer, lambda report: report["records"] == 1)
        await until(consumer, lambda report: report["tail_loss"] == 0)
    assert consumer.totals.undecodable == 0


async def test_a_consumer_leaves_no_socket_behind() -> None:
    async with open_publishing(None) as tap:
        source = Source(topic=TOPIC, endpoints=(tap.endpoint,))
        with trio.fail_after(2):  # a socket that is left would hold the context for five seconds
            async with consuming(source) as (consumer, _):
                await _first_message(tap, consumer)
