import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engines.regex_syntax import regex_fault


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(", "an unmatched ( at character 0"),
        ("a(b(c)", "an unmatched ( at character 1"),
        ("ab)", "an unmatched ) at character 2"),
        ("[a-z", "an unmatched [ at character 0"),
        ("x[]a", None),
        ("a\\", "a lone backslash at character 1"),
        ("[\\", "a lone backslash at character 1"),
        ("*a", "nothing to repeat at character 0"),
        ("a|+", "nothing to repeat at character 2"),
        ("(?", "an unmatched ( at character 0"),
        ("(*a)", "nothing to repeat at character 1"),
        ("a{3,2}", "a repetition whose bounds go down at character 1"),
        ("a{10,9}", "a repetition whose bounds go down at character 1"),
        ("a{1" + "0" * 5000 + ",9}", "a repetition whose bounds go down at character 1"),
    ],
)
def test_what_no_dialect_accepts_is_a_fault(pattern: str, fault: str | None) -> None:
    assert regex_fault(pattern) == fault


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "[0-9]{1,4}",
        r"\p{Greek}+\z",  # Rust
        r"(?<year>\d{4})-(?P<month>\d\d)",
        r"a(?i)b",
        r"a**",
        r"\x{10FFFF}\u{1F600}",
        "[[:alpha:]--[aeiou]]+",
        "[a-z&&[^(]]",
        "[[a](]",
        "[](]",  # Python, PCRE
        "[^](]",
        "[[](]]",
        "[]|a",  # ECMAScript
        r"[\]\[(]",
        "(?=a)(?!b)(?<=c)(?<!d)(?:e)(?>f)",
        "a{,3}b{x}c{2}d{3,}e{3,3}f{007,8}",
        "{",
        "a{",
        "x*?y+?z??w{1,2}?v*+",
        "^*$+",
        "(?x) a # an open ( in a comment",
        "\N{GREEK SMALL LETTER ALPHA}[\n]",
    ],
)
def test_what_some_dialect_accepts_is_no_fault(pattern: str) -> None:
    assert regex_fault(pattern) is None


@given(st.text(alphabet="ab[]()|*+?{},^\\-:<=!P12 ", max_size=14))
def test_what_python_accepts_is_no_fault(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            re.compile(pattern)
        except re.error:
            return
    assert regex_fault(pattern) is None
