from array import array

from hypothesis import given
from hypothesis import strategies as st

from replay.engines.kv_content import KvContent, stored_again
from replay.engines.kv_events import BlocksStored


@st.composite
def contents(draw: st.DrawFn) -> KvContent:
    """A forest of blocks that events of any length stored, of which some have gone."""
    held: dict[int, tuple[BlocksStored, int]] = {}
    names = iter(range(1000))
    for _ in range(draw(st.integers(0, 6))):
        parent = draw(st.none() | st.sampled_from([*held, -1]))
        hashes = [next(names) for _ in range(draw(st.integers(1, 5)))]
        event = BlocksStored(parent, hashes, array("I", [each * 7 for each in hashes]), 1)
        held |= {each: (event, place) for place, each in enumerate(hashes)}
    gone = draw(st.sets(st.sampled_from([*held]))) if held else set()
    order = draw(st.permutations([each for each in held if each not in gone]))
    return {each: held[each] for each in order}


@given(content=contents(), at_once=st.integers(1, 8))
def test_all_is_told_once_behind_its_parent_and_in_equal_parts(
    content: KvContent, at_once: int
) -> None:
    parts = [*stored_again(content, at_once)]
    told: dict[int, int | None] = {}
    for event in (event for part in parts for event in part):
        parent = event.parent
        for content_hash, token in zip(event.hashes, event.token_ids, strict=True):
            assert content_hash not in told
            assert parent is None or parent in told or parent not in content
            assert token == content_hash * 7
            told[content_hash] = parent
            parent = content_hash
    assert told == {
        each: event.hashes[place - 1] if place else event.parent
        for each, (event, place) in content.items()
    }
    sizes = [sum(len(event.hashes) for event in part) for part in parts]
    assert all(size == at_once for size in sizes[:-1])
    assert all(0 < size <= at_once for size in sizes)
