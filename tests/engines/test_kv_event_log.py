from array import array

from replay.engines.kv_event_log import BLOCKS_TOLD_AT_ONCE, KvEventLog
from replay.engines.kv_events import BlocksRemoved, BlocksStored, CacheCleared


def stored(*hashes: int, parent: int | None = None) -> BlocksStored:
    return BlocksStored(parent, hashes, array("I", range(2 * len(hashes))), 2)


def numbers(log: KvEventLog, after: int, limit: int = 100) -> list[int]:
    return [batch.sequence for batch in log.after(after, limit)]


def test_batches_count_from_one_and_events_too() -> None:
    log = KvEventLog(10)
    assert (log.first, log.last) == (1, 0)
    log.append([stored(1), stored(2)], 5.0)
    log.append([stored(3)], 6.0)
    first, second = log.after(0, 9)
    assert (first.sequence, first.first_event_id, first.unix_seconds) == (1, 1, 5.0)
    assert (second.sequence, second.first_event_id) == (2, 3)


def test_only_the_last_batches_are_kept() -> None:
    log = KvEventLog(3)
    for number in range(5):
        log.append([stored(number)], 0.0)
    assert (log.first, log.last) == (3, 5)
    assert numbers(log, 0) == [3, 4, 5]
    assert numbers(log, 3) == [4, 5]
    assert numbers(log, 0, limit=2) == [3, 4]
    assert numbers(log, 5) == []
    assert numbers(log, 99) == []


def test_batches_with_many_blocks_go_before_their_number_is_reached() -> None:
    log = KvEventLog(9, most_blocks=4)
    for number in range(0, 8, 2):
        log.append([stored(number, number + 1), CacheCleared()], 0.0)
    assert numbers(log, 0) == [3, 4]
    log.append([stored(*range(9))], 0.0)
    assert numbers(log, 0) == [5], "the last one stays, whatever it has"
    log.append([stored(90)], 0.0)
    assert numbers(log, 0) == [6]
    log.append([CacheCleared()], 0.0)
    log.restart(0.0)
    log.append([stored(91, 92, 93, 94)], 0.0)
    assert numbers(log, 0) == [1, 2], "a restart forgets what there was"


def test_the_content_is_what_all_batches_add_up_to() -> None:
    log = KvEventLog(1)
    first, second = stored(1, 2), stored(3, parent=2)
    log.append([first], 0.0)
    log.append([BlocksRemoved([1]), second], 0.0)
    assert log.content() == {2: (first, 1), 3: (second, 0)}
    log.append([CacheCleared()], 0.0)
    assert log.content() == {}


def test_batches_that_are_withheld_are_marked_and_kept() -> None:
    log = KvEventLog(9)
    log.withhold(2)
    for number in range(4):
        log.append([stored(number)], 0.0)
    assert [batch.is_withheld for batch in log.after(0, 9)] == [True, True, False, False]


def test_a_restart_counts_from_one_again_and_tells_what_is_held() -> None:
    log = KvEventLog(9)
    log.append([stored(2, 3, parent=1)], 0.0)
    log.append([stored(1), stored(7)], 0.0)
    log.append([BlocksRemoved([7])], 0.0)
    before = set(log.content())
    log.withhold(5)
    log.restart(6.0)
    assert (log.first, log.last, log.generation) == (1, 2, 1)
    cleared, told = log.after(0, 9)
    assert (cleared.events, cleared.unix_seconds) == ([CacheCleared()], 6.0)
    assert [(each.parent, each.hashes) for each in told.events] == [
        (None, (1,)),
        (1, (2, 3)),
    ]
    assert set(log.content()) == before
    assert not cleared.is_withheld


def test_a_restart_tells_much_in_batches_that_readers_take() -> None:
    log = KvEventLog(9)
    log.append([stored(*range(2 * BLOCKS_TOLD_AT_ONCE + 1))], 0.0)
    log.restart(0.0)
    _, *told = log.after(0, 9)
    sizes = [sum(len(event.hashes) for event in batch.events) for batch in told]
    assert sizes == [BLOCKS_TOLD_AT_ONCE, BLOCKS_TOLD_AT_ONCE, 1]
    assert [len(batch.events) for batch in told] == [1, 1, 1], "runs stay together"


def test_listeners_are_told_while_they_listen() -> None:
    log = KvEventLog(9)
    told: list[int] = []
    with log.listening(lambda: told.append(log.last)):
        log.append([stored(1)], 0.0)
        log.tell()
        log.restart(0.0)
    log.append([stored(2)], 0.0)
    assert told == [1, 1, 2]
