"""The decoder of header blocks, beside the `hpack` library's and at its own limits."""

from random import Random

import hpack
import pytest
from hpack.hpack import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from replay.rpc.hpack import (
    HeaderBlockError,
    HeaderDecoder,
    HeaderListTooLargeError,
    literal,
)

LIST_LIMIT = 65536
NAMES = (b":path", b"te", b"content-type", b"grpc-timeout", b"x-a", b"x-bbbbbbbbbbbbb", b"")
PRINTABLE = range(32, 127)
#: `x-a: 1` as a literal that goes into the table; the newest entry of the table.
X_A, NEWEST = b"\x40\x03x-a\x011", b"\xbe"


def decoder(max_list_bytes=LIST_LIMIT):
    return HeaderDecoder(max_list_bytes=max_list_bytes)


def reference():
    """The library's decoder, with our limits."""
    made = hpack.Decoder(max_header_list_size=LIST_LIMIT)
    made.max_allowed_table_size = 4096
    return made


def entries_of(made: hpack.Decoder):
    return [tuple(map(bytes, entry)) for entry in made.header_table.dynamic_entries]


def random_fields(random: Random):
    fields = []
    for _ in range(random.randrange(8)):
        name = random.choice(NAMES)
        kind = random.random()
        if kind < 0.6:
            value = bytes(random.choices(PRINTABLE, k=random.choice([0, 1, 5, 40, 200])))
        elif kind < 0.8:
            value = bytes(random.choices(range(256), k=random.randrange(30)))
        else:
            value = b"v%d" % random.randrange(5)
        never = random.random() < 0.3
        fields.append((hpack.NeverIndexedHeaderTuple if never else hpack.HeaderTuple)(name, value))
    return fields


def change_table_size(encoder: hpack.Encoder, size: int):
    """The library forgets to tell of a change that is followed by one to the same size."""
    if encoder.header_table_size != size:
        encoder.header_table_size = size


def test_blocks_of_300_random_encoders_decode_as_the_library_decodes_them():
    random = Random(1)
    lost = 0
    for _ in range(300):
        encoder, theirs, ours = hpack.Encoder(), reference(), decoder()
        for _ in range(40):
            for chance in (0.1, 0.05):  # sometimes two changes before one block
                if random.random() < chance:
                    change_table_size(encoder, random.choice([0, 60, 200, 4096]))
            fields = random_fields(random)
            block = encoder.encode(fields, huffman=random.random() < 0.5)
            expected = [tuple(field) for field in fields]
            try:
                assert [tuple(field) for field in theirs.decode(block, raw=True)] == expected
            except hpack.HPACKError:
                # The library's encoder forgets to announce some changes of its table's size.
                with pytest.raises(HeaderBlockError):
                    ours.decode(block)
                lost += 1
                break
            assert ours.decode(block) == expected
            assert ours.entries == entries_of(theirs)
    assert lost < 30


def verdict(decode, block):
    try:
        return [tuple(map(bytes, field)) for field in decode(block)]
    except (HeaderBlockError, HeaderListTooLargeError):
        return "error"


def library_verdict(block):
    made = reference()
    try:
        return [tuple(map(bytes, field)) for field in made.decode(block, raw=True)]
    except (hpack.HPACKError, IndexError):
        return "error"


def test_random_bytes_are_judged_as_the_library_judges_them():
    random = Random(2)
    errors = 0
    for _ in range(30_000):
        block = bytes(random.choices(range(256), k=random.randrange(1, 14)))
        ours = verdict(decoder().decode, block)
        assert ours == library_verdict(block), block.hex()
        errors += ours == "error"
    assert 5_000 < errors < 29_000  # both verdicts were asked for


def test_mutated_blocks_are_judged_as_the_library_judges_them():
    random = Random(3)
    for _ in range(10_000):
        block = bytearray(hpack.Encoder().encode(random_fields(random), huffman=True) or b"\x82")
        for _ in range(random.randrange(1, 4)):
            block[random.randrange(len(block))] = random.randrange(256)
        if random.random() < 0.3:
            del block[random.randrange(len(block)) :]
        block = bytes(block)
        assert verdict(decoder().decode, block) == library_verdict(block), block.hex()


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x80", "index 0"),
        (b"\xbe", "the dynamic table is empty"),
        (b"\x7f\x00", "a name that is not in the table"),
        (b"\xff", "an integer without its end"),
        (b"\xff\xff\xff\xff\xff\xff\x01", "an integer of six bytes"),
        (b"\xff" + b"\x80" * 50 + b"\x01", "an integer of zeros"),
        (b"\x40", "a literal without name"),
        (b"\x40\x05ab", "a name that is cut off"),
        (b"\x40\x01a\x7f\xff\x01b", "a value longer than the block"),
        (b"\x00\x01a\x81\x00", "Huffman padding that is no padding"),
        (b"\x00\x01a\x84\xff\xff\xff\xff", "the Huffman code's end of string"),
        (b"\x3f\xe2\x1f", "a table of 4097 bytes"),
        (b"\x82\x20", "a table size after a field"),
    ],
)
def test_what_is_no_header_block_is_an_error(block, why):
    with pytest.raises(HeaderBlockError):
        decoder().decode(block)


def test_an_empty_block_is_an_empty_list():
    assert decoder().decode(b"") == []


def test_the_whole_static_table_can_be_referred_to():
    for index, field in enumerate(HeaderTable.STATIC_TABLE, start=1):
        assert decoder().decode(bytes((0x80 | index,))) == [field]


def test_table_sizes_may_come_twice_before_the_first_field():
    made = decoder()
    made.decode(X_A)
    assert made.decode(b"\x20\x3f\xe1\x1f" + b"\x82") == [(b":method", b"GET")]
    assert made.entries == []


def test_a_field_larger_than_the_table_empties_it():
    made = decoder()
    made.decode(X_A)
    made.decode(b"\x40" + literal(b"x-big", b"v" * 5000)[1:])
    assert made.entries == []


def test_an_entry_that_is_pushed_out_by_its_own_name_is_still_read():
    """RFC 7541, 4.4: the name may refer to the entry that the new one evicts."""
    made = decoder()
    made.decode(b"\x3f\x09")  # 40 bytes: room for one entry
    made.decode(X_A)
    assert made.decode(b"\x7e\x012") == [(b"x-a", b"2")]
    assert made.entries == [(b"x-a", b"2")]


# ---- limits


def test_a_list_above_the_limit_still_updates_the_table():
    made = decoder(max_list_bytes=100)
    with pytest.raises(HeaderListTooLargeError):
        made.decode(literal(b"x-long", b"v" * 100) + X_A)
    assert made.decode(NEWEST) == [(b"x-a", b"1")]


def test_the_limit_counts_names_values_and_32_bytes_for_each_field():
    size = 2 * (len(b"x-a") + len(b"1") + 32)
    assert len(decoder(max_list_bytes=size).decode(X_A + NEWEST)) == 2
    with pytest.raises(HeaderListTooLargeError):
        decoder(max_list_bytes=size - 1).decode(X_A + NEWEST)


def test_references_to_a_large_entry_are_counted_at_their_size():
    """A block of 16 KB that stands for 64 MB is refused, and what it stands for is not kept."""
    made = decoder()
    made.decode(b"\x40" + literal(b"x", b"v" * 4000)[1:])
    with pytest.raises(HeaderListTooLargeError, match=r"header list of 66\d{6} bytes"):
        made.decode(NEWEST * 16384)


def test_a_field_behind_one_that_is_too_large_is_not_taken():
    made = decoder(max_list_bytes=100)
    with pytest.raises(HeaderListTooLargeError):
        made.decode(literal(b"x-long", b"v" * 100) + literal(b"x", b"y"))


# ---- the version


def test_the_version_stays_while_the_table_stays():
    made = decoder()
    made.decode(X_A)
    version = made.version
    made.decode(NEWEST + b"\x82" + literal(b"x-b", b"2"))
    assert made.version == version


@pytest.mark.parametrize("block", [X_A, b"\x20", b"\x3f\xe1\x1f"])
def test_the_version_changes_with_the_table_and_with_its_size(block):
    made = decoder()
    made.decode(X_A)
    version = made.version
    made.decode(block)
    assert made.version != version


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_the_same_version_means_the_same_table(blocks):
    made = decoder()
    made.decode(X_A)
    for block in blocks:
        version, entries = made.version, made.entries
        verdict(made.decode, block)
        assert made.version != version or made.entries == entries


# ---- encoding


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=300), st.one_of(st.binary(max_size=300), st.just(b"v" * 20_000))
        )
    )
)
def test_literals_are_read_back_by_both_decoders_and_leave_the_table_alone(fields):
    block = b"".join(literal(name, value) for name, value in fields)
    ours = HeaderDecoder(max_list_bytes=1 << 30)
    assert ours.decode(block) == fields
    assert ours.entries == []
    theirs = hpack.Decoder(max_header_list_size=1 << 30)
    assert [tuple(map(bytes, field)) for field in theirs.decode(block, raw=True)] == fields
