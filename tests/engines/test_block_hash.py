from array import array

from hypothesis import given
from hypothesis import strategies as st

from replay.engines.block_hash import hash_blocks

IDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40)


def test_hashes_are_the_same_in_every_process_and_release() -> None:
    hashes = hash_blocks(array("I", range(8)), 4, None)
    assert hashes == [-387804988308644362, -7896885017602367359]


def test_a_block_that_is_not_full_has_no_hash() -> None:
    assert hash_blocks(array("I", range(7)), 4, None) == [-387804988308644362]
    assert hash_blocks(array("I"), 4, None) == []


@given(ids=IDS, block_size=st.integers(1, 8), cut=st.integers(0, 40))
def test_hashing_in_pieces_gives_the_same_chain(ids: list[int], block_size: int, cut: int) -> None:
    tokens = array("I", ids)
    blocks = len(ids) // block_size
    cut = min(cut, blocks) * block_size
    whole = hash_blocks(tokens, block_size, None)
    first = hash_blocks(tokens[:cut], block_size, None)
    rest = hash_blocks(tokens[cut:], block_size, first[-1] if first else None)
    assert first + rest == whole
    assert len(whole) == blocks
    assert all(-(2**63) <= each < 2**63 for each in whole)


@given(ids=IDS, position=st.integers(0, 39))
def test_a_changed_token_changes_its_block_and_all_that_follow(
    ids: list[int], position: int
) -> None:
    position %= len(ids)
    other = list(ids)
    other[position] ^= 1
    before = hash_blocks(array("I", ids), 1, None)
    after = hash_blocks(array("I", other), 1, None)
    same = [a == b for a, b in zip(before, after, strict=True)]
    assert same == [True] * position + [False] * (len(ids) - position)
