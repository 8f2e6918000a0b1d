"""What a load asks and when: lengths, schedules, prompts, and the parts of several processes."""

import itertools
import random
import statistics

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.generator.arrivals import SECOND_NS, Arrivals, Pace
from benchmarks.generator.lengths import Fixed, LogNormal, Uniform, read_lengths
from benchmarks.generator.run import client_cores
from benchmarks.generator.sender import Share
from benchmarks.generator.spec import LoadSpec, spec_from_json, spec_to_json
from benchmarks.generator.workload import Prompts, RequestMaker, Workload


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("512", Fixed(512)),
        ("uniform:1-9", Uniform(1, 9)),
        ("lognormal:100,0.5", LogNormal(100, 0.5)),
        ("lognormal:100,1,2000", LogNormal(100, 1.0, 2000)),
    ],
)
def test_lengths_are_read(text, wanted):
    assert read_lengths(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "uniform:9-1", "uniform:0-1", "lognormal:0,1", "normal:1,1"]
)
def test_a_length_that_cannot_be_is_refused(text):
    with pytest.raises(ValueError, match="lognormal:MEDIAN"):
        read_lengths(text)


@given(st.integers(1, 50), st.integers(0, 50), st.integers())
def test_a_uniform_length_is_within_its_ends(low, more, seed):
    assert low <= Uniform(low, low + more).draw(random.Random(seed)) <= low + more


def test_a_lognormal_length_has_its_median_and_its_most():
    chance = random.Random(1)
    drawn = [LogNormal(200, 0.7, 900).draw(chance) for _ in range(20_000)]
    assert statistics.median(drawn) == pytest.approx(200, rel=0.03)
    assert max(drawn) == 900
    assert sum(each > 200 * 2.0138 for each in drawn) / len(drawn) == pytest.approx(
        0.1587, abs=0.01
    )


def test_constant_arrivals_do_not_add_up_errors():
    due = list(itertools.islice(Arrivals(rate=3).due_ns(), 3_000_001))
    assert due[3_000_000] == 1_000_000 * SECOND_NS


@pytest.mark.parametrize(
    ("arrivals", "variation"),
    [
        (Arrivals(rate=100, pace=Pace.CONSTANT), 0.0),
        (Arrivals(rate=100, pace=Pace.POISSON, seed=3), 1.0),
        (Arrivals(rate=100, pace=Pace.GAMMA, shape=0.25, seed=3), 2.0),
        (Arrivals(rate=100, pace=Pace.GAMMA, shape=4, seed=3), 0.5),
    ],
)
def test_a_pace_has_its_rate_and_its_variation(arrivals, variation):
    due = list(itertools.islice(arrivals.due_ns(), 20_001))
    gaps = [later - earlier for earlier, later in itertools.pairwise(due)]
    mean = statistics.fmean(gaps)
    assert due == sorted(due)
    assert due[0] == 0
    assert mean == pytest.approx(SECOND_NS / 100, rel=0.05)
    assert statistics.pstdev(gaps) / mean == pytest.approx(variation, abs=0.05)


def test_equal_seeds_give_equal_times_and_others_do_not():
    poisson = Arrivals(rate=50, pace=Pace.POISSON, seed=1)
    once, again = (list(poisson.until(SECOND_NS)) for _ in range(2))
    assert once == again
    assert once != list(attrs.evolve(poisson, seed=2).until(SECOND_NS))
    assert max(once) < SECOND_NS


@given(st.integers(1, 7), st.integers(0, 100))
def test_the_shares_of_all_processes_are_the_whole(processes, count):
    shares = [Share(index, processes) for index in range(processes)]
    assert sorted(number for share in shares for number in share.numbers(count)) == [*range(count)]
    assert sum(share.part(count) for share in shares) == count


def test_processes_are_not_put_on_the_first_core_when_there_are_others(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert client_cores(5) == [3, 2, 1, 3, 2]
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2})
    assert client_cores(2) == [2, 2]


def maker(**workload):
    return RequestMaker(Workload(**workload), vocab_size=32_000, run="r")


def test_a_request_is_the_same_in_every_process_and_different_from_its_neighbours():
    first, second = maker(isl="uniform:20-40"), maker(isl="uniform:20-40")
    requests = [first.make(number) for number in range(50)]
    assert requests == [second.make(number) for number in range(50)]
    assert len({tuple(each.outgoing.ids) for each in requests}) == 50
    assert len({each.outgoing.request_id for each in requests}) == 50
    assert all(20 <= len(each.outgoing.ids) <= 40 for each in requests)


def test_prompts_share_the_prefixes_that_were_asked_for_and_no_more():
    some = maker(isl="96", prefix_tokens=64, prefixes=3)
    prompts = [some.make(number).outgoing.ids for number in range(60)]
    assert len({tuple(each[:64]) for each in prompts}) == 3
    assert len({tuple(each[64:]) for each in prompts}) == 60
    assert {len(each) for each in prompts} == {96}


def test_an_answer_is_asked_for_in_its_length_and_without_an_early_end():
    request = maker(osl="uniform:3-9").make(5)
    assert request.outgoing.parameters.max_new_tokens == request.asked_tokens
    assert request.outgoing.parameters.ignore_eos is True


def test_about_the_asked_share_is_taken_back():
    some = maker(cancel_share=0.25, cancel_delay_s=0.5)
    after = [some.make(number).cancel_after_s for number in range(2000)]
    assert set(after) == {None, 0.5}
    assert after.count(0.5) / 2000 == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("prompts", [Prompts.TEXT, Prompts.CHAT])
def test_a_prompt_of_words_has_as_many_as_were_asked_for(prompts):
    outgoing = maker(isl="40", prompts=prompts).make(1).outgoing
    text = outgoing.text if prompts is Prompts.TEXT else outgoing.messages[0]["content"]
    assert len(text.split()) == 40
    assert outgoing.ids is None


def test_a_run_survives_its_way_to_a_process():
    spec = LoadSpec(
        target="grpc://h:1",
        arrivals=Arrivals(rate=5.0, pace=Pace.GAMMA),
        seconds=3.0,
        workload=Workload(prompts=Prompts.CHAT, cancel_share=0.5),
    )
    assert spec_from_json(spec_to_json(spec)) == spec


def test_an_open_loop_has_as_many_requests_as_time_or_number_allow():
    spec = LoadSpec(target="", arrivals=Arrivals(rate=10), seconds=2.0)
    assert len(spec.due_ns()) == 20
    assert len(attrs.evolve(spec, requests=7).due_ns()) == 7
    assert len(attrs.evolve(spec, seconds=None, requests=70).due_ns()) == 70


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "one of --concurrency and --rate"),
        ({"concurrency": 0}, "--concurrency must be at least 1"),
        ({"arrivals": Arrivals(rate=0)}, "--rate must be above 0"),
        ({"arrivals": Arrivals(rate=float("nan"))}, "--rate must be above 0"),
        ({"concurrency": 1, "seconds": None}, "--seconds or --requests"),
        ({"concurrency": 1, "warm_up_s": 5.0}, "warm-up leaves nothing"),
        ({"concurrency": 1, "processes": 2}, "must not be below --processes"),
        ({"concurrency": 1, "workload": Workload(cancel_share=25)}, "--cancel-rate"),
    ],
)
def test_a_run_that_cannot_be_is_refused_with_a_reason(changes, told):
    spec = attrs.evolve(LoadSpec(target="", seconds=5.0), **changes)
    assert any(told in problem for problem in spec.problems())
