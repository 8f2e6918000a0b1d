from replay.engines.throughput import WINDOW_SECONDS, Throughput


def test_the_rate_is_what_the_window_holds() -> None:
    throughput = Throughput()
    for tenth in range(100):
        throughput.add(5, tenth / 10)
    assert throughput.rate(10.0) == 50


def test_what_is_older_than_the_window_does_not_count() -> None:
    throughput = Throughput()
    throughput.add(100, 1.0)
    assert throughput.rate(1.0) == 100 / WINDOW_SECONDS
    assert throughput.rate(1.5 + WINDOW_SECONDS) == 0


def test_a_time_that_steps_back_is_not_lost() -> None:
    throughput = Throughput()
    throughput.add(1, 3.0)
    throughput.add(2, 2.0)
    assert throughput.rate(3.0) == 3 / WINDOW_SECONDS


def test_nothing_made_is_no_rate() -> None:
    assert Throughput().rate(100.0) == 0
