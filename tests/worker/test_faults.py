import pytest

from replay.worker.faults import Admission, Aim, Failing, FaultRules, KvEventLoss, Stalling


def problems(fault: Failing | Stalling | Admission | KvEventLoss) -> list[str]:
    return [f"{each.path[0]}: {each.text}" for each in fault.faults()]


@pytest.mark.parametrize(
    ("fault", "lines"),
    [
        (Failing(code="UNAVAILABLE"), []),
        (Failing(code="INTERNAL", after_tokens=3, requests=1, seconds=0.5, message="x" * 500), []),
        (
            Failing(code="OK"),
            ['code: must be the name of a gRPC code that is an error, is "OK"'],
        ),
        (Failing(code="ABORTED", message="x" * 501), ["message: must have at most 500 characters"]),
        (Stalling(requests=0), ["requests: must be at least 1, is 0"]),
        (Stalling(after_tokens=-1), ["after_tokens: must be at least 0, is -1"]),
        (Stalling(seconds=0.0), ["seconds: must be above 0, is 0"]),
        (Stalling(seconds=2e9), ["seconds: must be at most 1e+09, is 2e+09"]),
        (Admission(), []),
        (
            Admission(delay_ms=-1.0, per_second=0.0),
            ["delay_ms: must be at least 0, is -1", "per_second: must be above 0, is 0"],
        ),
        (
            Admission(delay_ms=float("inf")),
            [
                "delay_ms: must be a finite number, is inf",
                "delay_ms: must be at most 1e+09, is inf",
            ],
        ),
        (KvEventLoss(drop_batches=-1), ["drop_batches: must be at least 0, is -1"]),
        (KvEventLoss(delay_ms=1e10), ["delay_ms: must be at most 1e+09, is 1e+10"]),
    ],
)
def test_wrong_values_are_named(
    fault: Failing | Stalling | Admission | KvEventLoss, lines: list[str]
) -> None:
    assert problems(fault) == lines


def test_a_fault_without_limits_hits_for_ever() -> None:
    fault = Failing(code="INTERNAL")
    aim = Aim(fault, 0.0)
    assert [aim.hit(now) for now in (0.0, 1e9)] == [fault, fault]
    assert aim.requests_left(1e9) is None


def test_a_fault_hits_as_many_requests_as_it_says() -> None:
    fault = Stalling(requests=2)
    aim = Aim(fault, 0.0)
    assert [aim.hit(0.0) for _ in range(4)] == [fault, fault, None, None]
    assert aim.requests_left(0.0) == 0


def test_a_fault_hits_for_as_long_as_it_says_from_when_it_was_set() -> None:
    fault = Failing(code="INTERNAL", seconds=2.0, requests=9)
    aim = Aim(fault, 100.0)
    assert [aim.hit(now) for now in (100.0, 101.9, 102.0)] == [fault, fault, None]
    assert (aim.requests_left(101.0), aim.requests_left(102.0)) == (7, 0)


def test_a_request_can_be_hit_by_both() -> None:
    rules = FaultRules()
    assert rules.hits(0.0) == (None, None)
    failing, stalling = Failing(code="INTERNAL", requests=1), Stalling(requests=2)
    rules.failing, rules.stalling = Aim(failing, 0.0), Aim(stalling, 0.0)
    assert [rules.hits(0.0) for _ in range(3)] == [
        (failing, stalling),
        (None, stalling),
        (None, None),
    ]


def test_requests_are_admitted_late_and_evenly_spaced() -> None:
    rules = FaultRules()
    assert rules.admit_at(5.0) == 5.0
    rules.admission = Admission(delay_ms=500)
    assert [rules.admit_at(now) for now in (5.0, 5.0, 6.0)] == [5.5, 5.5, 6.5]
    rules.admission = Admission(per_second=2)
    assert [rules.admit_at(now) for now in (7.0, 7.0, 7.1, 9.0)] == [7.0, 7.5, 8.0, 9.0]
    rules.admission = Admission(per_second=2, delay_ms=250)
    assert [rules.admit_at(now) for now in (10.0, 10.0)] == [10.25, 10.75]


def test_a_new_rate_does_not_know_the_row_of_the_old_one() -> None:
    rules = FaultRules()
    rules.admission = Admission(per_second=0.001)
    assert [rules.admit_at(0.0), rules.admit_at(0.0)] == [0.0, 1000.0]
    rules.admission = Admission(per_second=1000)
    assert rules.admit_at(1.0) == 1.0


def test_a_request_that_has_waited_already_is_not_admitted_in_the_past() -> None:
    rules = FaultRules()
    rules.admission = Admission(delay_ms=2000)
    assert [rules.admit_at(now, arrival=0.0) for now in (1.0, 5.0)] == [2.0, 5.0]
    rules.admission = Admission(per_second=2)
    assert [rules.admit_at(5.0, arrival=each) for each in (0.0, 1.0)] == [5.0, 5.5]
