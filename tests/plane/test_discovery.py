"""Discovery files: Dynamo's names and content, alive for ten seconds, written again, removed."""

import json
import os
import time
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from replay.plane import discovery
from replay.plane.discovery import (
    discovery_folder,
    find_publishers,
    keep_published,
    publish,
    refresh,
    watch_publishers,
    withdraw,
)
from replay.plane.discovery_entry import (
    Publisher,
    file_content,
    file_name,
    file_prefix,
    parse_file,
)

PUBLISHER = Publisher("dynamo", "shadow-replay", 0xE0E57358BEAE5, "tcp://127.0.0.1:38995")


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_file_is_named_as_dynamo_names_it() -> None:
    assert file_name(PUBLISHER) == ("namespace%2Fdynamo%2Ftopic%2Fshadow%2Dreplay%2Fe0e57358beae5")


def test_segments_are_encoded_before_the_whole_is() -> None:
    assert file_prefix("a b", "t_é/-") == "namespace%2Fa%2520b%2Ftopic%2Ft%5F%25C3%25A9%252F%2D%2F"


def test_the_content_is_one_line_with_dynamos_keys_in_dynamos_order() -> None:
    assert file_content(PUBLISHER) == (
        b'{"type":"EventChannel","scope":{"kind":"namespace","name":"dynamo"},'
        b'"topic":"shadow-replay","instance_id":3956417397254885,'
        b'"transport":{"kind":"Zmq","config":{"endpoint":"tcp://127.0.0.1:38995"}}}'
    )


@given(
    namespace=st.text(min_size=1, max_size=8),
    topic=st.text(min_size=1, max_size=8),
    publisher_id=st.integers(0, 2**53 - 1),
)
def test_a_file_reads_back_whatever_the_names_are(
    namespace: str, topic: str, publisher_id: int
) -> None:
    publisher = Publisher(namespace, topic, publisher_id, "tcp://[::1]:5600")
    name = file_name(publisher)
    assert parse_file(file_content(publisher)) == publisher
    assert name.startswith(file_prefix(namespace, topic))
    assert name.isascii()
    assert all(char.isalnum() or char == "%" for char in name)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "Instance"},
        {"scope": {"kind": "endpoint", "name": "dynamo"}},
        {"scope": "namespace"},
        {"scope": {"kind": "namespace"}},
        {"topic": 5},
        {"instance_id": -1},
        {"instance_id": True},
        {"instance_id": "7"},
        {"transport": {"kind": "Nats", "config": {"endpoint": "tcp://127.0.0.1:1"}}},
        {"transport": {"kind": "Zmq", "config": {"endpoint": "ipc:///run/plane"}}},
        {"transport": {"kind": "Zmq", "config": []}},
        {"transport": {"kind": "Zmq", "config": {"endpoint": "tcp://\ud800:1"}}},
    ],
)
def test_what_is_no_publisher_of_a_namespace_is_passed_over(change: dict[str, object]) -> None:
    content = json.loads(file_content(PUBLISHER)) | change
    assert parse_file(json.dumps(content).encode()) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_passed_over(content: bytes) -> None:
    assert parse_file(content) is None


def test_the_folder_is_the_one_asked_for_or_dynamos() -> None:
    assert discovery_folder("/a", {}) == Path("/a/v1/event_channels")
    assert discovery_folder(None, {"DYN_FILE_KV": "/b"}) == Path("/b/v1/event_channels")
    assert discovery_folder(None, {}).parts[-3:] == ("dynamo_store_kv", "v1", "event_channels")


def test_only_publishers_of_exactly_this_namespace_and_topic_are_found(tmp_path: Path) -> None:
    others = [
        Publisher("dynamo", "shadow-replay-2", 1, "tcp://127.0.0.1:1"),
        Publisher("dynamo", "shadow", 2, "tcp://127.0.0.1:2"),
        Publisher("dynamo2", "shadow-replay", 3, "tcp://127.0.0.1:3"),
    ]
    for publisher in [PUBLISHER, *others]:
        publish(tmp_path, publisher)
    assert find_publishers(tmp_path, "dynamo", "shadow-replay") == {PUBLISHER}


def test_temporary_expired_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    publish(tmp_path, PUBLISHER)
    name = tmp_path / file_name(PUBLISHER)
    (tmp_path / ".tmp_0123456789abcdef").write_bytes(file_content(PUBLISHER))
    (tmp_path / f"{file_prefix('dynamo', 'shadow-replay')}1").write_bytes(b"{")
    (tmp_path / f"{file_prefix('dynamo', 'shadow-replay')}2").mkdir()
    (tmp_path / f"{file_prefix('dynamo', 'shadow-replay')}3").symlink_to(name)
    os.mkfifo(tmp_path / f"{file_prefix('dynamo', 'shadow-replay')}4")
    assert find_publishers(tmp_path, "dynamo", "shadow-replay") == {PUBLISHER}
    age(name, 9)
    assert find_publishers(tmp_path, "dynamo", "shadow-replay") == {PUBLISHER}
    age(name, 11)
    assert find_publishers(tmp_path, "dynamo", "shadow-replay") == frozenset()
    assert name.exists()  # a consumer deletes nothing
    assert find_publishers(tmp_path / "missing", "dynamo", "shadow-replay") == frozenset()


def test_no_temporary_file_is_left_whether_publishing_works_or_not(tmp_path: Path) -> None:
    publish(tmp_path / "v1", PUBLISHER)
    assert [path.name for path in (tmp_path / "v1").iterdir()] == [file_name(PUBLISHER)]
    blocked = tmp_path / "blocked"
    (blocked / file_name(PUBLISHER)).mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        publish(blocked, PUBLISHER)
    assert [path.name for path in blocked.iterdir()] == [file_name(PUBLISHER)]


def test_a_refresh_touches_writes_again_what_vanished_and_deletes_what_expired(
    tmp_path: Path,
) -> None:
    other = Publisher("dynamo", "other", 5, "tcp://127.0.0.1:5")
    killed = Publisher("dynamo", "killed", 6, "tcp://127.0.0.1:6")
    for publisher in (PUBLISHER, other, killed):
        publish(tmp_path, publisher)
    temporary = tmp_path / ".tmp_0123456789abcdef"
    temporary.write_bytes(b"")
    mine = tmp_path / file_name(PUBLISHER)
    age(mine, 9)
    age(temporary, 11)
    age(tmp_path / file_name(killed), 11)
    assert refresh(tmp_path, [PUBLISHER]) == 0
    assert time.time() - mine.stat().st_mtime < 5
    assert not (tmp_path / file_name(killed)).exists()
    assert (tmp_path / file_name(other)).exists()
    assert temporary.exists()
    mine.unlink()
    assert refresh(tmp_path, [PUBLISHER]) == 1
    assert mine.read_bytes() == file_content(PUBLISHER)


def test_a_file_that_cannot_be_written_again_does_not_keep_the_others_from_being_touched(
    tmp_path: Path,
) -> None:
    """They would expire with it, and readers would lose publishers that are well."""
    lost = Publisher("dynamo", "t" * 300, 1, "tcp://127.0.0.1:1")  # no file has so long a name
    publish(tmp_path, PUBLISHER)
    age(tmp_path / file_name(PUBLISHER), 9)
    with pytest.raises(OSError, match="too long"):
        refresh(tmp_path, [lost, PUBLISHER])
    assert time.time() - (tmp_path / file_name(PUBLISHER)).stat().st_mtime < 5
    assert find_publishers(tmp_path, "dynamo", "shadow-replay") == {PUBLISHER}


def test_an_owner_that_was_stopped_too_long_keeps_its_own_file(tmp_path: Path) -> None:
    publish(tmp_path, PUBLISHER)
    age(tmp_path / file_name(PUBLISHER), 60)
    refresh(tmp_path, [PUBLISHER])
    assert find_publishers(tmp_path, "dynamo", "shadow-replay") == {PUBLISHER}


def test_withdrawing_removes_ones_own_files_also_those_that_are_gone(tmp_path: Path) -> None:
    other = Publisher("dynamo", "other", 5, "tcp://127.0.0.1:5")
    gone = Publisher("dynamo", "gone", 6, "tcp://127.0.0.1:6")
    for publisher in (PUBLISHER, other):
        publish(tmp_path, publisher)
    withdraw(tmp_path, [PUBLISHER, gone])
    assert [path.name for path in tmp_path.iterdir()] == [file_name(other)]


async def test_a_file_is_kept_alive_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "TOUCH_SECONDS", 0.01)
    publish(tmp_path, PUBLISHER)
    path = tmp_path / file_name(PUBLISHER)
    async with trio.open_nursery() as keeping:
        keeping.start_soon(keep_published, tmp_path, [PUBLISHER])
        path.unlink()
        with trio.fail_after(5):
            async with aclosing(
                watch_publishers(tmp_path, "dynamo", "shadow-replay", interval_seconds=0.01)
            ) as watched:
                async for publishers in watched:
                    if publishers:
                        break
        assert publishers == {PUBLISHER}
        keeping.cancel_scope.cancel()
    assert path.exists()  # the owner withdraws it, when its sockets are closed


async def test_a_folder_that_cannot_be_written_does_not_end_the_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "TOUCH_SECONDS", 0.01)
    folder = tmp_path / "folder"
    publish(folder, PUBLISHER)
    (folder / file_name(PUBLISHER)).unlink()
    folder.rmdir()
    folder.write_bytes(b"")  # a file is in the way
    async with trio.open_nursery() as keeping:
        keeping.start_soon(keep_published, folder, [PUBLISHER])
        async with aclosing(
            watch_publishers(folder, "dynamo", "shadow-replay", interval_seconds=0.01)
        ) as watched:
            assert await anext(watched) == frozenset()
            folder.unlink()
            with trio.fail_after(5):
                assert await anext(watched) == {PUBLISHER}
        keeping.cancel_scope.cancel()


async def test_a_watch_tells_at_once_and_then_only_of_changes(tmp_path: Path) -> None:
    second = Publisher("dynamo", "shadow-replay", 9, "tcp://[::1]:9")
    async with aclosing(
        watch_publishers(tmp_path, "dynamo", "shadow-replay", interval_seconds=0.01)
    ) as watched:
        with trio.fail_after(5):
            assert await anext(watched) == frozenset()
            publish(tmp_path, PUBLISHER)
            assert await anext(watched) == {PUBLISHER}
            publish(tmp_path, Publisher("dynamo", "other", 5, "tcp://127.0.0.1:5"))
            publish(tmp_path, second)
            assert await anext(watched) == {PUBLISHER, second}
            age(tmp_path / file_name(PUBLISHER), 11)
            assert await anext(watched) == {second}
            withdraw(tmp_path, [second])
            assert await anext(watched) == frozenset()
