import json
from typing import Any

import pytest

from replay.config.engines import RealisticConfig
from replay.engines.timing import (
    Calibration,
    LinearTiming,
    PolynomialTiming,
    Timing,
    Work,
    read_calibration,
)
from replay.errors import ConfigError

CONFIG = RealisticConfig()
POLYNOMIAL = PolynomialTiming(
    prefill=CONFIG.prefill_poly, decode=CONFIG.decode_poly, capacity_tokens=1000
)
FIT = {
    "prefill_table_ms": [[100, 10], [200, 30], [400, 40]],
    "prefill_pass_ms": {"intercept_ms": 5, "ms_per_token": 0.1},
    "decode_ms": [10, 20, 0],
    "kv_capacity_tokens": 500,
    "request_overhead_ms": 2.5,
    "gpu": "not known here",
}


def prefill(tokens: int, *, requests: int = 1, largest: int | None = None) -> Work:
    return Work(prefill_tokens=tokens, prefill_requests=requests, largest_prefill=largest or tokens)


def decode(context: int, requests: int = 1) -> Work:
    return Work(decode_requests=requests, decode_context=context)


def calibration(**changes: Any) -> Calibration:
    data = {key: value for key, value in {**FIT, **changes}.items() if value is not None}
    return read_calibration(json.dumps(data), source="fit.json", capacity_tokens=1000)


@pytest.mark.parametrize("tokens", [1, 512, 4096, 8192])
def test_prefill_follows_the_published_polynomial(tokens: int) -> None:
    expected = 16.50142 + 1.518344e-2 * tokens + 4.209989e-7 * tokens**2
    assert POLYNOMIAL.pass_ms(prefill(tokens)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("context", "use"), [(0, 0), (250, 0.25), (1000, 1), (1700, 1)])
def test_decode_follows_the_published_polynomial_over_the_use(context: int, use: float) -> None:
    expected = 5.74 + 54.01 * use - 25.74 * use**2
    assert POLYNOMIAL.pass_ms(decode(context)) == pytest.approx(expected, abs=1e-9)


def test_a_decode_takes_a_millisecond_at_least() -> None:
    timing = PolynomialTiming(prefill=(0, 0, 0), decode=(0.1, 0, 0), capacity_tokens=10)
    assert timing.pass_ms(decode(5)) == 1


def test_a_pass_takes_prefill_and_decode_together() -> None:
    both = Work(
        prefill_tokens=100,
        prefill_requests=1,
        largest_prefill=100,
        decode_requests=2,
        decode_context=300,
    )
    for timing in (POLYNOMIAL, LINEAR, calibration().timing):
        parts = timing.pass_ms(prefill(100)) + timing.pass_ms(decode(300, 2))
        assert timing.pass_ms(both) == pytest.approx(parts)


LINEAR = LinearTiming(prefill_tps=8000, decode_base_ms=6, decode_per_req_ms=0.35)


@pytest.mark.parametrize("timing", [POLYNOMIAL, LINEAR])
def test_no_work_takes_no_time(timing: Timing) -> None:
    assert timing.pass_ms(Work()) == 0


def test_linear_timing_is_a_rate_and_a_price_for_each_request() -> None:
    assert LINEAR.pass_ms(prefill(4000)) == 500
    assert LINEAR.pass_ms(decode(99, 10)) == 9.5


@pytest.mark.parametrize(
    ("tokens", "ms"), [(1, 10), (100, 10), (150, 20), (200, 30), (300, 35), (400, 40), (600, 50)]
)
def test_measured_points_are_joined_and_their_last_slope_goes_on(tokens: int, ms: float) -> None:
    assert calibration().timing.pass_ms(prefill(tokens)) == pytest.approx(ms)


def test_several_prompts_cost_the_form_for_passes_and_never_less_than_their_largest() -> None:
    timing = calibration().timing
    assert timing.pass_ms(prefill(400, requests=2, largest=200)) == pytest.approx(45)
    assert timing.pass_ms(prefill(210, requests=2, largest=200)) == pytest.approx(30)


def test_without_the_form_for_passes_their_sum_is_looked_up() -> None:
    timing = calibration(prefill_pass_ms=None).timing
    assert timing.pass_ms(prefill(300, requests=2, largest=200)) == pytest.approx(35)


def test_points_may_come_as_an_object_in_any_order() -> None:
    points = {"200": {"median_ms": 30}, "100": {"median_ms": 10, "p99_ms": 12}}
    timing = calibration(prefill_table_ms=None, prefill_points_ms=points).timing
    assert timing.pass_ms(prefill(150)) == pytest.approx(20)


def test_one_point_is_a_constant() -> None:
    assert calibration(prefill_table_ms=[[100, 7]]).timing.pass_ms(prefill(900)) == 7


@pytest.mark.parametrize(
    ("key", "value"),
    [("prefill_ms", [1, 0.5, 0]), ("prefill_fit_ms", {"a": 1, "b": 0.5, "c": 0})],
)
def test_prefill_may_be_a_polynomial(key: str, value: Any) -> None:
    assert calibration(prefill_table_ms=None, **{key: value}).timing.pass_ms(prefill(10)) == 6


def test_decode_is_read_against_the_room_that_was_measured() -> None:
    assert calibration().timing.pass_ms(decode(250)) == 20
    assert calibration(kv_capacity_tokens=None).timing.pass_ms(decode(250)) == 15
    blocks = calibration(kv_capacity_tokens=None, kv_capacity_blocks=20, block_size=25)
    assert blocks.timing.pass_ms(decode(250)) == 20
    named = calibration(decode_ms=None, decode_fit_vs_utilisation_ms={"d": 10, "e": 20, "f": 0})
    assert named.timing.pass_ms(decode(250)) == 20


def test_the_overhead_is_read() -> None:
    assert calibration().request_overhead_ms == 2.5
    assert calibration(request_overhead_ms=None).request_overhead_ms == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prefill_table_ms": None}, "no prefill"),
        ({"prefill_table_ms": []}, "prefill_table_ms"),
        ({"prefill_table_ms": {}}, "prefill_table_ms"),
        ({"prefill_table_ms": [[1]]}, "prefill_table_ms"),
        ({"prefill_table_ms": [[1, 2], [1, 3]]}, "prefill_table_ms"),
        ({"prefill_table_ms": [[1, "2"]]}, "prefill_table_ms"),
        ({"prefill_table_ms": [[1, True]]}, "prefill_table_ms"),
        ({"prefill_table_ms": None, "prefill_points_ms": []}, "prefill_points_ms"),
        ({"prefill_table_ms": None, "prefill_points_ms": {"x": {}}}, "prefill_points_ms"),
        ({"prefill_table_ms": None, "prefill_points_ms": {"1": {}}}, "prefill_points_ms.1"),
        ({"prefill_pass_ms": 5}, "prefill_pass_ms"),
        ({"prefill_pass_ms": {"intercept_ms": 5}}, "prefill_pass_ms.ms_per_token"),
        ({"decode_ms": None}, "no decode"),
        ({"decode_ms": [1, 2]}, "decode_ms"),
        ({"decode_ms": {"d": 1}}, "decode_ms"),
        ({"decode_ms": "fast"}, "decode_ms"),
        ({"kv_capacity_tokens": 0}, "kv_capacity_tokens"),
        ({"kv_capacity_tokens": None, "kv_capacity_blocks": 5}, "block_size"),
        ({"request_overhead_ms": "1"}, "request_overhead_ms"),
    ],
)
def test_a_calibration_that_cannot_be_used_is_refused_by_name(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"^fit.json: {named}"):
        calibration(**changes)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"prefill_ms": [1, 1, 1], "decode_ms": [NaN, 1, 1]}']
)
def test_what_is_no_object_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^fit\.json: "):
        read_calibration(text, source="fit.json", capacity_tokens=1)
