"""Values kept in MessagePack form."""

import math
from array import array
from collections.abc import Iterator

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.packed import (
    IDS_AT_ONCE,
    Packed,
    TokenIds,
    array_header,
    map_header,
    pack,
    pack_float32,
    unpack,
)

U32 = st.integers(0, 2**32 - 1)
#: Every width that MessagePack has for an unsigned 32-bit number, at both ends.
EDGES = [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1]


@given(st.lists(U32, max_size=300))
def test_ids_are_packed_as_msgpack_packs_a_list(ids: list[int]) -> None:
    assert TokenIds(ids).packed == msgpack.packb(ids)
    assert TokenIds.packing(ids).packed == msgpack.packb(ids)


@pytest.mark.parametrize("count", [16384, 16385, 32768, 32769 + 14, 70_000])
def test_many_ids_are_packed_in_pieces_to_the_same_bytes(count: int) -> None:
    ids = [number * 7919 % 2**32 for number in range(count)]
    assert TokenIds.packing(ids).packed == msgpack.packb(ids)


@pytest.mark.parametrize("count", [0, 1, IDS_AT_ONCE, IDS_AT_ONCE + 1, 70_000])
def test_packing_in_pieces_stops_after_each_of_them(count: int) -> None:
    ids = [number * 7919 % 2**32 for number in range(count)]
    made = []

    def packing() -> Iterator[None]:
        made.append((yield from TokenIds.packing_in_pieces(ids)))

    assert len(list(packing())) == 1 + math.ceil(count / IDS_AT_ONCE)
    assert made[0].packed == msgpack.packb(ids)
    assert len(made[0]) == count


def test_each_width_of_an_id_is_the_shortest() -> None:
    sizes = [len(TokenIds([id_]).packed) - 1 for id_ in EDGES]
    assert sizes == [1, 1, 2, 2, 3, 3, 5, 5]


@given(st.lists(U32))
def test_packed_ids_come_back_as_an_array_of_four_bytes_each(ids: list[int]) -> None:
    back = TokenIds.packing(ids)
    assert len(back) == len(ids)
    assert back.array == array("I", ids)
    assert back.array.itemsize == 4
    assert list(back) == ids
    assert back == ids == TokenIds(ids)


def test_ids_are_copied_so_a_caller_cannot_change_them_later() -> None:
    source = array("I", [1, 2, 3])
    ids = TokenIds(source)
    source[0] = 9
    assert list(ids) == [1, 2, 3]
    assert ids[0] == 1
    assert ids[1:] == array("I", [2, 3])


@pytest.mark.parametrize("bad", [[-1], [2**32], ["1"], [1.5]])
def test_what_is_no_unsigned_32_bit_id_is_refused(bad: list[object]) -> None:
    with pytest.raises((OverflowError, TypeError)):
        TokenIds(bad)  # type: ignore[arg-type]


def test_token_ids_and_packed_values_show_nothing_of_their_content() -> None:
    assert repr(TokenIds([42, 4242])) == "<TokenIds: 2>"
    assert repr(Packed.of({"secret": "sk-1"})) == "<Packed>"


def test_ids_equal_sequences_of_the_same_ids_and_nothing_else() -> None:
    assert TokenIds([1, 2]) == (1, 2)
    assert TokenIds([1, 2]) != [1, 2, 3]
    assert TokenIds([1, 2]) != "12"


def test_a_late_value_is_made_at_its_first_use_and_once() -> None:
    made = []

    def make() -> bytes:
        made.append(1)
        return pack("late")

    late = Packed.when_needed(make)
    assert made == []
    assert late.value == late.value == "late"
    assert made == [1]


def test_packed_values_are_equal_by_their_bytes() -> None:
    assert Packed.of({"a": 1}) == Packed(msgpack.packb({"a": 1}))
    assert hash(Packed.of(1)) == hash(Packed.of(1))
    assert Packed.of(1) != Packed.of(2)
    assert Packed.of(1) != 1
    packed = Packed.of(1)
    assert Packed.of(packed) is packed


def test_float32_stays_four_bytes() -> None:
    assert pack_float32(0.7) == b"\xca\x3f\x33\x33\x33"
    assert pack(0.7)[0] == 0xCB


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65535, 65536])
def test_heads_are_those_of_msgpack(count: int) -> None:
    packer = msgpack.Packer()
    assert map_header(count) == packer.pack_map_header(count)
    assert array_header(count) == packer.pack_array_header(count)


def test_maps_with_any_keys_unpack() -> None:
    assert unpack(msgpack.packb({1: "a"})) == {1: "a"}
