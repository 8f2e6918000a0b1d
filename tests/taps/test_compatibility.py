"""docs/compatibility.md: every rule has a row, and every test that it names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "compatibility.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.split("|")[1:5])
    for line in TEXT.splitlines()
    if re.match(r"\| \d", line)
]
NAMED = sorted(set(re.findall(r"`(tests/\S+\.py)::(\w+)`", TEXT)))


def test_every_rule_has_one_row_in_order() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 69))


@pytest.mark.parametrize(("number", "state", "how", "shown"), ROWS)
def test_a_rule_that_applies_is_shown_and_another_way_is_explained(
    number: str, state: str, how: str, shown: str
) -> None:
    assert state in ("kept", "read as", "not applicable")
    if state != "kept":
        assert how.strip()
    if state == "not applicable":
        assert not shown
    else:
        assert shown


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
