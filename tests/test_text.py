"""Text from outside on one line."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.text import escape_controls


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain 日本 é 👩\u200d💻", "plain 日本 é 👩\u200d💻"),
        ("a\nb\tc\0", "a\\nb\\tc\\x00"),
        ("\x1b[31mred\x7f\x9b", "\\x1b[31mred\\x7f\\x9b"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("\ud800", "\\ud800"),
        ("\ufeff", "\\ufeff"),
    ],
)
def test_what_could_break_a_line_or_steer_a_terminal_is_escaped(text: str, safe: str) -> None:
    assert escape_controls(text) == safe


def test_kept_characters_stay() -> None:
    assert escape_controls("a\n\x1b", keep="\n") == "a\n\\x1b"


@given(st.text(st.characters()))
def test_no_control_character_is_left(text: str) -> None:
    safe = escape_controls(text)
    assert not {unicodedata.category(each) for each in safe} & {"Cc", "Cs", "Zl", "Zp"}
    assert len(safe.splitlines()) <= 1
