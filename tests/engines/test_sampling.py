import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engines.base import Generation, Model
from replay.engines.sampling import MAX_CYCLE, Choice, output_logprobs, plan_choice
from tests.engines.requests import generate_request, generation

MODEL = Model()


def plan(
    request: Generation | None = None,
    *,
    model: Model = MODEL,
    index: int = 0,
    output_tokens: int = 8,
    seed: int = 0,
    **sampling: Any,
) -> Choice:
    request = request or generation(**sampling)
    return plan_choice(request, model, index=index, output_tokens=output_tokens, seed=seed)


def test_without_a_limit_the_engines_default_counts_and_the_end_is_a_stop() -> None:
    assert plan() == Choice(tuple(range(100, 108)), "stop")


def test_an_explicit_limit_is_met_and_the_end_is_its_length() -> None:
    assert plan(max_new_tokens=3) == Choice((100, 101, 102), "length")


def test_an_explicit_zero_is_no_token_and_not_the_default() -> None:
    assert plan(max_new_tokens=0) == Choice((), "length")


def test_a_default_of_zero_tokens_stops_at_once() -> None:
    assert plan(output_tokens=0) == Choice((), "stop")


def test_equal_plain_requests_share_one_object() -> None:
    assert plan(max_new_tokens=32) is plan(max_new_tokens=32, temperature=0.7)


@pytest.mark.parametrize("limit", [{}, {"max_new_tokens": 9}, {"max_new_tokens": 2**32 - 1}])
@pytest.mark.parametrize("seeds", [{}, {"sampling_seed": 1}])
def test_the_context_left_bounds_a_choice(limit: dict[str, int], seeds: dict[str, int]) -> None:
    choice = plan(model=Model(context_length=10), prompt=range(5), **limit, **seeds)
    assert (len(choice.ids), choice.reason) == (5, "length")


def test_a_prompt_that_fills_the_context_leaves_no_token() -> None:
    assert plan(model=Model(context_length=5), prompt=range(5)) == Choice((), "length")


def test_a_stop_id_ends_the_choice_and_is_cut_off() -> None:
    assert plan(stop_token_ids=[103]) == Choice((100, 101, 102), "stop", 103)


def test_no_stop_trim_keeps_the_stop_id() -> None:
    choice = plan(stop_token_ids=[103], no_stop_trim=True)
    assert choice == Choice((100, 101, 102, 103), "stop", 103)


def test_a_stop_id_that_comes_first_leaves_no_token() -> None:
    assert plan(stop_token_ids=[100]) == Choice((), "stop", 100)


def test_a_stop_id_behind_the_limit_changes_nothing() -> None:
    assert plan(stop_token_ids=[103], max_new_tokens=3) == Choice((100, 101, 102), "length")


@pytest.mark.parametrize(
    ("at_least", "expected"),
    [
        (3, Choice((100, 101, 102), "stop", 103)),
        (4, Choice((100, 101, 102, 103, 104), "length")),
    ],
)
def test_min_new_tokens_holds_a_stop_id_back(at_least: int, expected: Choice) -> None:
    choice = plan(stop_token_ids=[103], min_new_tokens=at_least, max_new_tokens=5)
    assert choice == expected


def test_min_new_tokens_raises_the_default() -> None:
    assert len(plan(min_new_tokens=12).ids) == 12


def test_an_eos_of_the_model_ends_a_choice() -> None:
    assert plan(model=Model(eos_token_ids=(2, 102))) == Choice((100, 101), "stop", 102)


def test_ignore_eos_lets_an_eos_pass() -> None:
    choice = plan(model=Model(eos_token_ids=(102,)), ignore_eos=True, max_new_tokens=4)
    assert choice == Choice((100, 101, 102, 103), "length")


def test_ignore_eos_does_not_ignore_a_stop_id() -> None:
    choice = plan(model=Model(eos_token_ids=(102,)), ignore_eos=True, stop_token_ids=[102])
    assert choice.matched == 102


def test_counted_ids_begin_again_at_100_and_so_never_reach_a_special_token() -> None:
    choice = plan(model=Model(vocab_size=103), max_new_tokens=5)
    assert choice == Choice((100, 101, 102, 100, 101), "length")


@pytest.mark.parametrize("vocab_size", [4, 50, 99, 100])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_small_vocabulary_is_used_without_its_special_tokens(vocab_size: int, seed: int) -> None:
    choice = plan(model=Model(vocab_size=vocab_size), seed=seed, max_new_tokens=300)
    assert len(choice.ids) == 300
    assert {0, 1, 2}.isdisjoint(choice.ids)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_vocabulary_of_special_tokens_only_is_used_whole(seed: int) -> None:
    choice = plan(model=Model(vocab_size=3), seed=seed, ignore_eos=True, max_new_tokens=60)
    assert set(choice.ids) == {0, 1, 2}


def test_the_same_prompt_and_seed_say_the_same() -> None:
    assert plan(sampling_seed=5) == plan(sampling_seed=5)


def test_a_seed_of_zero_is_a_seed() -> None:
    assert plan(sampling_seed=0) != plan()


@pytest.mark.parametrize(
    "other",
    [
        {"sampling_seed": 6},
        {"sampling_seed": 5, "seed": 1},
        {"sampling_seed": 5, "index": 1},
        {"sampling_seed": 5, "prompt": (1, 2, 4)},
        {"seed": 5},
    ],
)
def test_seeds_prompt_and_index_each_change_drawn_ids(other: dict[str, Any]) -> None:
    assert plan(**other).ids != plan(sampling_seed=5).ids


def test_the_text_beside_the_prompt_changes_nothing() -> None:
    request = generation(sampling_seed=5)
    request.message.tokenized.original_text = "a companion"
    assert plan(request) == plan(sampling_seed=5)


def test_a_longer_limit_continues_the_same_drawn_ids() -> None:
    long = plan(sampling_seed=5, max_new_tokens=50).ids
    assert plan(sampling_seed=5, max_new_tokens=20).ids == long[:20]


def test_drawn_ids_are_the_same_in_every_process_and_release() -> None:
    choice = plan(sampling_seed=2**64 - 1, seed=3, max_new_tokens=3)
    assert choice == Choice((25250, 30915, 12707), "length")


@pytest.mark.parametrize("seed", [0, 1])
def test_very_long_choices_repeat_their_ids(seed: int) -> None:
    model = Model(vocab_size=1_000_000, context_length=10_000_000)
    ids = plan(model=model, seed=seed, max_new_tokens=MAX_CYCLE + 10).ids
    assert len(ids) == MAX_CYCLE + 10
    assert ids[MAX_CYCLE:] == ids[:10]


def test_a_stop_id_held_back_in_the_first_round_ends_a_later_one() -> None:
    choice = plan(
        model=Model(vocab_size=110), stop_token_ids=[104], min_new_tokens=7, max_new_tokens=40
    )
    assert (len(choice.ids), choice.matched) == (14, 104)


@given(
    vocab_size=st.integers(1, 300),
    eos=st.sets(st.integers(0, 300), max_size=3),
    stops=st.lists(st.integers(0, 300), max_size=3),
    at_least=st.integers(0, 40),
    limit=st.none() | st.integers(40, 80),
    seed=st.integers(0, 3),
    trim=st.booleans(),
    ignore_eos=st.booleans(),
    room=st.integers(0, 90),
)
def test_every_choice_keeps_the_rules(
    vocab_size: int,
    eos: set[int],
    stops: list[int],
    at_least: int,
    limit: int | None,
    seed: int,
    trim: bool,
    ignore_eos: bool,
    room: int,
) -> None:
    model = Model(vocab_size=vocab_size, eos_token_ids=tuple(eos), context_length=3 + room)
    choice = plan(
        model=model,
        seed=seed,
        stop_token_ids=stops,
        min_new_tokens=at_least,
        no_stop_trim=not trim,
        ignore_eos=ignore_eos,
        **({} if limit is None else {"max_new_tokens": limit}),
    )
    ends = set(stops) | (set() if ignore_eos else eos)
    wanted = max(8, at_least) if limit is None else limit
    assert all(0 <= i < vocab_size for i in choice.ids)
    kept = choice.ids if choice.matched is None or trim else choice.ids[:-1]
    assert ends.isdisjoint(kept[at_least:])
    if choice.matched is None:
        assert len(choice.ids) == min(wanted, room)
        assert choice.reason == ("stop" if limit is None and wanted <= room else "length")
    else:
        assert choice.reason == "stop"
        assert choice.matched in ends
        assert at_least <= len(kept) < min(wanted, room)


def test_logprobs_have_one_entry_a_token_and_the_asked_width() -> None:
    message = generate_request(
        logprobs={"return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [5, 101, 7]}
    )
    logprobs = output_logprobs(message, MODEL, (100, 32767), 4)
    assert list(logprobs.token_ids) == [100, 32767]
    assert [list(top.token_ids) for top in logprobs.top_logprobs] == [
        [100, 101, 102, 5, 101, 7],
        [32767, 0, 1, 5, 101, 7],
    ]
    for own, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top.values) == 6
        assert top.values[0] == own
    assert logprobs.top_logprobs[0].values[1] == logprobs.top_logprobs[0].values[4]


def test_logprobs_without_alternatives_still_align_by_position() -> None:
    logprobs = output_logprobs(generate_request(), MODEL, (100, 101), 0)
    assert [list(top.values) for top in logprobs.top_logprobs] == [[], []]


def test_the_width_never_exceeds_the_vocabulary() -> None:
    message = generate_request(logprobs={"top_logprobs_num": 10})
    logprobs = output_logprobs(message, Model(vocab_size=4), (2,), 0)
    assert list(logprobs.top_logprobs[0].token_ids) == [2, 3, 0, 1]


@given(
    ids=st.lists(st.integers(0, 32767), min_size=1, max_size=20),
    cut=st.integers(0, 20),
    width=st.integers(0, 64),
)
def test_logprobs_are_plausible_and_the_same_for_any_cut(
    ids: list[int], cut: int, width: int
) -> None:
    message = generate_request(logprobs={"top_logprobs_num": width, "token_ids_logprob": [9]})
    whole = output_logprobs(message, MODEL, ids, 0)
    joined = output_logprobs(message, MODEL, ids[:cut], 0)
    joined.MergeFrom(output_logprobs(message, MODEL, ids[cut:], cut))
    assert joined == whole
    for own, top in zip(whole.token_logprobs, whole.top_logprobs, strict=True):
        likeliest = list(top.values)[:width]
        assert likeliest == sorted(likeliest, reverse=True)
        assert sum(map(math.exp, likeliest)) < 1
        assert all(math.isfinite(value) and value <= 0 for value in (own, *top.values))
