"""The benchmark of the event plane compares two sides that do the same."""

import pytest

from benchmarks.plane import PAIR, SIZES, _compare, consumer_round, publisher_round


@pytest.mark.parametrize("tokens", SIZES)
def test_both_publishers_send_the_same_bytes_and_both_consumers_count_the_same(
    tokens: int,
) -> None:
    sent = {name: {publisher_round(name, tokens, 200)[1]} for name in PAIR}
    counted = {name: {consumer_round(name, tokens, 200)[1]} for name in PAIR}
    assert _compare("publisher", tokens, 200, sent) == []
    assert _compare("consumer", tokens, 200, counted) == []
    assert sent["ours"] != {0}
    assert counted["ours"] == {200 * (tokens + 16)}


def test_a_disagreement_is_a_wrong_answer() -> None:
    assert _compare("publisher", 64, 10, {"ours": {5}, "bare": {6}})
    assert _compare("consumer", 64, 10, {"ours": {800}, "bare": {799}})
    assert _compare("consumer", 64, 10, {"ours": {5}, "bare": {5}})
