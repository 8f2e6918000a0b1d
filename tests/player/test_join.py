"""Which request of one run is which of another."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from replay.player.join import Joined, Name, join, name_of

U1, U2, U3 = (str(uuid.UUID(int=number)) for number in (1, 2, 3))


def joined(left: list[str], right: list[str]) -> Joined[str]:
    return join(left, right, lambda name: name)


def pairs(left: list[str], right: list[str]) -> set[tuple[str, str]]:
    return set(joined(left, right).pairs)


def test_equal_ids_join() -> None:
    found = joined(["a", "b", "c"], ["c", "a", "x"])
    assert set(found.pairs) == {("a", "a"), ("c", "c")}
    assert (found.only_left, found.only_right) == (["b"], ["x"])


def test_the_kth_request_of_an_id_is_the_kth_of_the_other_side() -> None:
    left = [("a", 1), ("a", 2), ("b", 3)]
    right = [("a", 4), ("b", 5), ("a", 6), ("a", 7)]
    found = join(left, right, lambda item: item[0])
    assert found.pairs == [(("a", 1), ("a", 4)), (("b", 3), ("b", 5)), (("a", 2), ("a", 6))]
    assert found.only_right == [("a", 7)]


def test_a_uuid_behind_an_id_is_taken_off() -> None:
    assert pairs(["a", "b"], [f"a-{U1}", f"b-{U2}"]) == {("a", f"a-{U1}"), ("b", f"b-{U2}")}
    assert pairs([f"a-{U1}"], [f"a-{U2}"]) == {(f"a-{U1}", f"a-{U2}")}


def test_the_prompts_of_an_array_never_join_to_one_another() -> None:
    assert pairs(["a-p0", "a-p1"], [f"a-p1-{U1}", f"a-p0-{U2}"]) == {
        ("a-p0", f"a-p0-{U2}"),
        ("a-p1", f"a-p1-{U1}"),
    }
    assert pairs([f"a-{U1}-p0"], [f"a-p1-{U2}"]) == set()


def test_an_id_that_comes_once_for_each_place_of_an_array_joins_in_order() -> None:
    found = join([("a", 0), ("a", 1)], [("a-p1", 3), ("a-p0", 2)], lambda item: item[0])
    assert set(found.pairs) == {(("a", 0), ("a-p0", 2)), (("a", 1), ("a-p1", 3))}
    assert pairs(["a-p0"], ["a"]) == {("a-p0", "a")}


def test_an_id_that_could_be_any_place_of_an_array_joins_none() -> None:
    found = joined(["a"], ["a-p0", "a-p1"])
    assert found.pairs == []
    assert found.ambiguous == ["a"]
    assert found.only_left == ["a"]


def test_ids_that_are_themselves_a_name_and_a_uuid_do_not_become_one_request() -> None:
    """A gateway's own ids look like its suffixes."""
    ids = [f"chatcmpl-{name}" for name in (U1, U2, U3)]
    assert pairs(ids, ids) == {(each, each) for each in ids}
    found = joined(ids[:2], [ids[2], f"chatcmpl-{uuid.UUID(int=9)}"])
    assert found.pairs == []
    assert found.ambiguous == ["chatcmpl"]
    assert (len(found.only_left), len(found.only_right)) == (2, 2)


def test_an_id_that_is_nothing_but_a_suffix_is_a_name() -> None:
    assert name_of("-p0") == Name("-p0", None)
    assert name_of(f"-{U1}") == Name(f"-{U1}", None)
    assert name_of(U1) == Name(U1, None)
    assert name_of("a-p01") == Name("a-p01", None)
    assert name_of("a-p7") == Name("a", 7)


IDS = st.lists(
    st.sampled_from(["a", "b", "a-p0", "a-p1", f"a-{U1}", f"a-{U2}", f"a-p0-{U1}", f"b-{U3}"])
)


@given(IDS, IDS)
def test_every_request_is_in_one_pair_or_left_over(left: list[str], right: list[str]) -> None:
    found = joined(left, right)
    assert sorted([pair[0] for pair in found.pairs] + found.only_left) == sorted(left)
    assert sorted([pair[1] for pair in found.pairs] + found.only_right) == sorted(right)
    for one, other in found.pairs:
        assert name_of(one).base == name_of(other).base
