"""Rules for CI."""

import pytest

from replay.player.fail_on import Measure, RuleError, broken, read_rule


@pytest.mark.parametrize(
    ("text", "name", "measure", "sign", "value"),
    [
        ("flagged", "flagged", Measure.NUMBER, ">", 0.0),
        ("missing > 0", "missing", Measure.NUMBER, ">", 0.0),
        ("tokens>=5", "tokens", Measure.NUMBER, ">=", 5.0),
        ("tokens > 1%", "tokens", Measure.SHARE, ">", 0.01),
        ("ttft.p99 > 20ms", "ttft.p99", Measure.MILLISECONDS, ">", 20.0),
        ("ttft.p99 > +20ms", "ttft.p99", Measure.CHANGE_MS, ">", 20.0),
        ("ttft.p50 < -10%", "ttft.p50", Measure.CHANGE_SHARE, "<", -0.1),
        ("e2e.shift > 1s", "e2e.shift", Measure.CHANGE_MS, ">", 1000.0),
        ("itl.mean > +5%", "itl.mean", Measure.CHANGE_SHARE, ">", 0.05),
        ("goodput < 95%", "goodput", Measure.SHARE, "<", 0.95),
        ("schedule_delay.p99 > 500us", "schedule_delay.p99", Measure.MILLISECONDS, ">", 0.5),
    ],
)
def test_a_rule_is_a_number_a_comparison_and_a_value(
    text: str, name: str, measure: Measure, sign: str, value: float
) -> None:
    rule = read_rule(text)
    assert (rule.name, rule.measure, rule.sign) == (name, measure, sign)
    assert rule.value == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "speed > 5",
        "ttft > 5ms",
        "ttft.p98 > 5ms",
        "ttft.p99 > 5",
        "ttft.p99",
        "ttft.p99 > 10%",
        "goodput < 95",
        "goodput < +5%",
        "missing > 5ms",
        "missing > +5",
        "schedule_delay.p99 > 5%",
        "ttft.p99 => 5ms",
        "ttft.p99 > 5ms extra",
    ],
)
def test_what_is_no_rule_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        read_rule(text)
    assert repr(text) in str(caught.value)


def test_a_rule_that_holds_is_broken_and_says_the_number() -> None:
    rules = [read_rule("ttft.p99 > +10%"), read_rule("missing > 0"), read_rule("goodput < 95%")]
    numbers: dict[tuple[str, Measure], float | None] = {
        ("ttft.p99", Measure.CHANGE_SHARE): 0.25,
        ("missing", Measure.NUMBER): 0,
        ("goodput", Measure.SHARE): 0.951,
    }
    assert [str(each) for each in broken(rules, numbers)] == ["ttft.p99 > +10%: is +25.00%"]


def test_a_rule_that_cannot_be_judged_is_broken() -> None:
    [found] = broken([read_rule("itl.p99 > 5ms")], {})
    assert found.number is None
    assert "cannot be judged" in str(found)
