"""A comparison that grows, and the feed that brings it its requests."""

import attrs
import trio
from runs import observation

from replay.player.arrival import Arrival
from replay.player.live_feed import LiveFeed
from replay.player.observation import Outcome
from replay.player.schedule import Planned
from replay.player.shadow import ShadowTally


def planned(number: int) -> Planned:
    return Planned(Arrival(position=number, request_id=f"r{number}"), 0)


def test_pairs_are_counted_and_kept_for_the_end() -> None:
    tally = ShadowTally()
    for number in range(10):
        recorded = observation(f"r{number}", position=number + 100, ttft_ms=10)
        tally.expect(number, recorded)
        ids = (9, 2, 3) if number < 3 else (1, 2, 3)
        tally.note(observation(f"r{number}", position=number, ids=ids, ttft_ms=10 + number))
    assert (tally.recorded, tally.pairs, tally.tokens_differ) == (10, 10, 3)
    assert tally.ttft_shift_ms == 4.0
    baseline, candidate = tally.sides("tap", "candidate")
    assert [each.position for each in baseline.observations] == [*range(10)]
    assert len(candidate.observations) == 10
    assert (baseline.measured_at, candidate.measured_at) == ("worker", "client")


def test_ids_that_come_twice_are_told_apart_by_their_records() -> None:
    tally = ShadowTally()
    tally.expect(1, observation("same", ids=(1,)))
    tally.expect(2, observation("same", ids=(2,)))
    tally.note(observation("same", position=2, ids=(2,)))
    tally.note(observation("same", position=1, ids=(1,)))
    assert (tally.pairs, tally.tokens_differ) == (2, 0)


def test_only_the_latest_pairs_are_kept_but_all_are_counted() -> None:
    tally = ShadowTally(keep=3)
    for number in range(10):
        tally.expect(number, observation(f"r{number}"))
        tally.note(observation(f"r{number}", position=number))
    assert tally.pairs == 10
    names = [each.request_id for each in tally.sides("a", "b")[0].observations]
    assert names == ["r7", "r8", "r9"]


def test_what_was_not_sent_and_what_has_no_answer_is_counted_apart() -> None:
    tally = ShadowTally()
    tally.expect(1, None)
    tally.note(observation("a", position=1))
    tally.expect(2, observation("b"))
    tally.note(observation("b", position=2, outcome=Outcome.NOT_SENT))
    tally.expect(3, observation("c"))
    tally.note(observation("c", position=3, outcome=Outcome.ERROR))
    assert (tally.pairs, tally.not_sent, tally.without_answer) == (1, 1, 1)
    assert tally.outcomes_differ == 1
    assert ShadowTally().ttft_shift_ms is None


async def test_a_live_feed_hands_on_what_came_and_then_is_over() -> None:
    feed = LiveFeed()
    news = []
    feed.on_news = lambda: news.append(None)
    assert feed.push(planned(1))
    assert feed.push(planned(2))
    feed.end()
    assert len(news) == 3
    assert not feed.is_over
    assert feed.take() == planned(1)
    assert feed.take() == planned(2)
    assert feed.take() is None
    assert feed.is_over
    with trio.fail_after(1):
        await feed.run()


async def test_a_live_feed_that_is_full_takes_no_more() -> None:
    feed = LiveFeed(capacity=2)
    assert [feed.push(planned(number)) for number in range(4)] == [True, True, False, False]
    assert [attrs.astuple(each.arrival)[0] for each in feed.give_up()] == [0, 1]
    assert not feed.push(planned(5))
    assert feed.rest == 1
