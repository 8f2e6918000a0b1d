"""The cache that the simulated engine is held against, by cases that can be counted by hand."""

from benchmarks.playing.offline_cache import OfflineCache, TraceRow


def row(*hash_ids: int, tokens: int | None = None, output: int = 1) -> TraceRow:
    """Return a request whose prompt is made of blocks of two."""
    return TraceRow(len(hash_ids) * 2 if tokens is None else tokens, output, hash_ids)


def cache(capacity: int | None = None) -> OfflineCache:
    return OfflineCache(capacity, block_size=2, trace_block_size=2)


def test_the_last_token_of_a_prompt_is_never_found() -> None:
    whole = cache()
    assert whole.serve(row(1, 2, 3)) == 0
    assert whole.serve(row(1, 2, 3)) == 4
    assert whole.serve(row(1, 2, 3, 4)) == 6
    assert (whole.prompt_tokens, whole.cached_tokens) == (20, 10)


def test_a_block_counts_only_behind_the_same_beginning() -> None:
    whole = cache()
    whole.serve(row(1, 2, 3))
    assert whole.serve(row(9, 2, 3)) == 0
    assert whole.serve(row(1, 9, 3)) == 2


def test_what_a_request_generates_is_nobody_elses() -> None:
    whole = cache()
    whole.serve(row(1, output=9))
    assert whole.serve(row(1, 1, 1, 1)) == 2


def test_what_was_used_longest_ago_goes_first_and_of_one_request_its_end() -> None:
    small = cache(capacity=5)
    small.serve(row(1, 2))
    small.serve(row(3, 4))
    small.serve(row(1, 2, 5))  # finds 1 and 2, and needs one block: the fifth is free
    assert small.serve(row(3, 4, 6)) == 4
    # 6 took the place of 5, the last block of what is now the older request.
    assert small.serve(row(1, 2, 5, 7)) == 4


def test_an_answer_takes_room_too() -> None:
    small = cache(capacity=5)
    small.serve(row(1, 2))
    small.serve(row(3, output=6))  # a prompt of one block, and five tokens behind it
    assert small.serve(row(1, 2, 5)) == 2
