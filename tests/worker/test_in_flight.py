"""What an Abort finds."""

from hypothesis import given
from hypothesis import strategies as st

from replay.worker.in_flight import InFlight


def test_an_id_finds_itself_and_its_children_only():
    in_flight: InFlight[str] = InFlight()
    for request_id in ("r", "r-n0", "r-p12", "r-x1", "r-n", "r-n1-p0", "rr-n0", "r-nn1"):
        in_flight.add(request_id, request_id)

    assert sorted(in_flight.find("r")) == ["r", "r-n0", "r-p12"]
    assert in_flight.find("r-n1") == ["r-n1-p0"]
    assert in_flight.find("nobody") == []


def test_two_requests_with_one_id_are_both_found_until_each_has_ended():
    in_flight: InFlight[int] = InFlight()
    in_flight.add("r", 1)
    in_flight.add("r", 2)

    assert in_flight.find("r") == [1, 2]

    in_flight.remove("r", 1)

    assert in_flight.find("r") == [2]


@given(st.lists(st.sampled_from(["a", "a-n0", "a-n1", "a-p0", "b", "b-n0", "", "-n0"])))
def test_nothing_is_left_when_all_have_ended(request_ids):
    in_flight: InFlight[int] = InFlight()
    for number, request_id in enumerate(request_ids):
        in_flight.add(request_id, number)
    assert len(in_flight) == len(request_ids)

    for number, request_id in enumerate(request_ids):
        in_flight.remove(request_id, number)

    assert len(in_flight) == 0
    assert not in_flight._by_id
    assert not in_flight._children
