"""Rules 64 to 68 with real workers and `replay consume` as processes."""

from pathlib import Path

import trio

from replay.plane.discovery import discovery_folder, keep_published, publish, withdraw
from replay.plane.discovery_entry import Publisher
from replay.plane.sockets import open_context
from tests.consumer.test_exact_loss import UNTIL_THE_TAIL_IS_KNOWN_SECONDS
from tests.plane.peers import XPub
from tests.plane.records import record
from tests.taps.mirroring import JOINED, PLAIN, QUICK, ask_worker, consuming, counted, worker

TOPIC = "shadow-replay"


async def test_rule_64_a_consumer_that_comes_late_misses_nothing_unless_it_is_asked_to(
    tmp_path: Path,
) -> None:
    with worker(tmp_path, [JOINED], event_plane=QUICK) as process:
        await ask_worker(process, 100)
        async with (
            consuming(tmp_path, TOPIC, "--no-fill") as late,
            consuming(tmp_path, TOPIC, "--no-fill", "--from-start", name="strict") as strict,
        ):
            await ask_worker(process, 50)
            await counted(tmp_path, TOPIC, 50)
            await counted(tmp_path, "strict", 50)
            await trio.sleep(UNTIL_THE_TAIL_IS_KNOWN_SECONDS)
            _, report = await late.end()
            _, strict_report = await strict.end()
    assert list(report["joined_at"].values()) == [100]
    assert report["records"] == 50
    assert report["transport_loss"] == report["tail_loss"] == report["tap_gaps"] == 0
    assert list(strict_report["joined_at"].values()) == [0]
    assert strict_report["records"] == 50
    assert strict_report["transport_loss"] == 100
    assert strict_report["tail_loss"] == 0


async def test_rule_65_publishers_are_counted_apart_and_summed_up(tmp_path: Path) -> None:
    """Two workers with the same tap; the second one starts when the first has been read."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    plane = {**QUICK, "discovery": {"kind": "file", "root": str(tmp_path)}}
    with worker(folders[0], [JOINED], event_plane=plane) as first:
        async with consuming(tmp_path, TOPIC) as consumer:
            await ask_worker(first, 30, max_new_tokens=2)
            await counted(tmp_path, TOPIC, 30)
            with worker(folders[1], [JOINED], event_plane=plane) as second:
                await consumer.until("joined ", times=2)
                await ask_worker(second, 20, max_new_tokens=3)
                await counted(tmp_path, TOPIC, 50)
                await trio.sleep(UNTIL_THE_TAIL_IS_KNOWN_SECONDS)
                _, report = await consumer.end()
    assert report["epochs"] == 2
    assert sorted(each["messages"] for each in report["publishers"]) == [20, 30]
    assert report["records"] == 50
    assert report["output_tokens"] == 30 * 2 + 20 * 3
    assert report["tap_gaps"] == report["transport_gaps"] == report["transport_loss"] == 0


async def test_rule_66_without_status_records_the_end_and_its_loss_are_not_known(
    tmp_path: Path,
) -> None:
    """As with Dynamo's publishers."""
    with worker(tmp_path, [JOINED], event_plane={"heartbeat_seconds": 0}) as process:
        async with trio.open_nursery() as asking:

            async def keep_asking() -> None:
                while True:
                    await ask_worker(process, 1)

            asking.start_soon(keep_asking)
            # Nothing but a record tells such a consumer that it has joined.
            async with consuming(tmp_path, TOPIC) as consumer:
                await counted(tmp_path, TOPIC, 5)
                asking.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    _, report = await consumer.end()
    assert report["records"] >= 5
    assert report["tap_gaps"] == report["transport_gaps"] == 0
    assert report["tail_loss"] is report["transport_loss"] is report["tap_drops"] is None
    assert report["end_seen"] is None


async def test_rule_67_what_a_tap_dropped_is_told_from_what_was_lost_on_the_way(
    tmp_path: Path,
) -> None:
    """Long prompts do not fit the bytes that the queue may hold, the short ones between them do."""
    taps = [{**JOINED, "capacity_bytes": 20_000}, PLAIN]
    with worker(tmp_path, taps, event_plane=QUICK) as process:
        async with (
            consuming(tmp_path, TOPIC) as consumer,
            consuming(tmp_path, "shadow-audit") as other,
        ):
            for _ in range(5):
                await ask_worker(process, 4, at_once=1)
                await ask_worker(process, 3, at_once=1, prompt=range(70_000, 75_000))
            await ask_worker(process, 1)
            await counted(tmp_path, TOPIC, 21)
            await counted(tmp_path, "shadow-audit", 36)
            await trio.sleep(UNTIL_THE_TAIL_IS_KNOWN_SECONDS)
            _, report = await consumer.end()
            _, whole = await other.end()
    assert report["records"] == 21
    assert report["tap_gaps"] == report["tap_drops"] == 15
    assert report["publishers"][0]["tap_drops"] == {"full": 0, "closed": 0, "bytes": 15}
    assert report["transport_gaps"] == report["transport_loss"] == report["tail_loss"] == 0
    assert whole["records"] == 36
    assert whole["tap_drops"] == 0


async def test_rule_68_what_does_not_decode_is_told_and_reading_goes_on(tmp_path: Path) -> None:
    """Somebody else publishes on the topic, and not only records."""
    folder = discovery_folder(str(tmp_path))
    with worker(tmp_path, [JOINED], event_plane=QUICK) as process:
        async with open_context(term_seconds=5) as context, trio.open_nursery() as tasks:
            with XPub(context) as stranger:
                entry = [Publisher("dynamo", TOPIC, stranger.publisher_id, stranger.endpoint)]
                publish(folder, entry[0])
                tasks.start_soon(keep_published, folder, entry)
                async with consuming(tmp_path, TOPIC) as consumer:
                    await stranger.next_subscription()
                    stranger.send(0, record(0), topic=TOPIC)
                    stranger.send(1, b"\x93no record, a secret", topic=TOPIC)
                    stranger.socket.send_multipart([TOPIC.encode(), b"three", b"frames"])
                    stranger.send(2, record(1, schema_version=2), topic=TOPIC)
                    stranger.send(3, record(2), topic=TOPIC)
                    await ask_worker(process, 5)
                    await counted(tmp_path, TOPIC, 7)
                    _, report = await consumer.end()
                tasks.cancel_scope.cancel()
                withdraw(folder, entry)
    assert report["records"] == 7
    assert report["undecodable"] == 2
    assert report["unsupported"] == 1
    said = (tmp_path / f"{TOPIC}.err").read_text()
    assert said.count("undecodable record: ") == 2
    assert "secret" not in said
