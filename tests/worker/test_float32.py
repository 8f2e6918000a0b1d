"""Float32 as JSON, against exact arithmetic."""

import json
import math
import struct
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replay.worker.float32 import float32_json

INFINITY_BITS = 0x7F80_0000


def from_bits(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def to_bits(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


def interval(bits: int) -> tuple[Fraction, Fraction]:
    """Return the bounds of what rounds to the positive float32 *bits*."""
    value, below = Fraction(from_bits(bits)), Fraction(from_bits(bits - 1))
    beyond = bits + 1 == INFINITY_BITS
    above = 2 * value - below if beyond else Fraction(from_bits(bits + 1))
    return (below + value) / 2, (value + above) / 2


def some_decimal_reads_back(bits: int, digits: int) -> bool:
    """Return whether any number of that many digits reads back as the positive float32 *bits*."""
    low, high = interval(bits)
    exponent = math.floor(math.log10(high)) + 1
    while Fraction(10) ** exponent > high:
        exponent -= 1
    step = Fraction(10) ** (exponent - digits + 1)
    nearest = math.ceil(low / step) * step
    if bits % 2 == 0:  # ties go to even
        return nearest <= high
    return nearest < high if nearest > low else nearest + step < high


def digits_of(text: str) -> int:
    """Return the number of significant digits of a JSON number."""
    mantissa = text.lstrip("-").split("e")[0].replace(".", "")
    return len(mantissa.strip("0"))


finite = st.one_of(
    st.integers(1, INFINITY_BITS - 1),
    st.integers(1, 254).map(lambda exponent: exponent << 23),  # powers of two
    st.integers(1, 254).map(lambda exponent: (exponent << 23) - 1),
    st.integers(1, 0x7F_FFFF),  # subnormals
)


@given(finite)
@example(0x0F80_0000)
@example(0x6B00_0000)
@example(0x6C80_0000)
@example(1)
@example(INFINITY_BITS - 1)
def test_the_text_reads_back_and_no_shorter_one_does(bits: int) -> None:
    text = float32_json(from_bits(bits))
    assert to_bits(json.loads(text)) == bits
    assert digits_of(text) == 1 or not some_decimal_reads_back(bits, digits_of(text) - 1)


@given(finite)
def test_a_sign_changes_nothing_else(bits: int) -> None:
    assert float32_json(-from_bits(bits)) == f"-{float32_json(from_bits(bits))}"


def test_every_power_of_two_has_its_shortest_text() -> None:
    """Below one of these lie twice as many numbers as above, and three texts depend on it."""
    for exponent in range(1, 255):
        bits = exponent << 23
        text = float32_json(from_bits(bits))
        assert to_bits(json.loads(text)) == bits
        assert digits_of(text) == 1 or not some_decimal_reads_back(bits, digits_of(text) - 1)


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (0x3F333333, "0.7"),
        (0x3DCCCCCD, "0.1"),
        (0x3F800000, "1.0"),
        (0x00000000, "0.0"),
        (0x80000000, "-0.0"),
        (0x00000001, "1e-45"),
        (0x007FFFFF, "1.1754942e-38"),
        (0x00800000, "1.1754944e-38"),
        (0x7E967699, "1e+38"),
        (0x7F7FFFFF, "3.4028235e+38"),
        (0x4B800000, "16777216.0"),
        (0x0F800000, "1.2621775e-29"),
        (0x7FC00000, '"NaN"'),
        (0x7F800000, '"inf"'),
        (0xFF800000, '"-inf"'),
    ],
)
def test_known_texts(bits: int, text: str) -> None:
    assert float32_json(from_bits(bits)) == text


def test_the_two_zeros_stay_apart_in_any_order() -> None:
    assert [float32_json(value) for value in (0.0, -0.0, 0.0)] == ["0.0", "-0.0", "0.0"]
