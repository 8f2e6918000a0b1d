"""The strict YAML reader: duplicates, merges, bounds, and the line of everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.config.yaml_source import (
    MAX_BYTES,
    Document,
    Items,
    Node,
    Scalar,
    Section,
    parse,
    place_of,
)


def lines(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [problem.line("taps.yaml") for problem in parse(data, "taps.yaml").problems]


def plain(node: Node | None) -> object:
    """Return a tree as Python values; scalars as their text."""
    match node:
        case Section():
            return {key: plain(entry.value) for key, entry in node.entries.items()}
        case Items():
            return [plain(each) for each in node.nodes]
        case Scalar():
            return node.text
    return None


def read(text: str) -> Document:
    document = parse(text.encode(), "taps.yaml")
    assert document.problems == ()
    return document


def test_a_duplicate_key_is_named_with_both_lines() -> None:
    assert lines("taps:\n  - filters: [tokens-only]\n    name: a\n    filters: []\n") == [
        'taps.yaml:4: $.taps[0].filters: duplicate key "filters": lines 2 and 4'
    ]


def test_a_key_given_three_times_is_two_problems() -> None:
    assert len(lines("a: 1\na: 2\na: 3\n")) == 2


def test_a_quoted_key_duplicates_the_plain_one() -> None:
    assert lines('a: 1\n"a": 2\n') == ['taps.yaml:2: $.a: duplicate key "a": lines 1 and 2']


def test_a_merge_key_takes_over_what_the_mapping_does_not_say() -> None:
    text = "- &base {name: a, capture: request, capacity: 5}\n- <<: *base\n  name: b\n"
    assert plain(read(text).root) == [
        {"name": "a", "capture": "request", "capacity": "5"},
        {"name": "b", "capture": "request", "capacity": "5"},
    ]


def test_an_own_key_wins_even_when_it_stands_before_the_merge() -> None:
    text = "- &base {name: a}\n- name: b\n  <<: *base\n"
    assert plain(read(text).root) == [{"name": "a"}, {"name": "b"}]


def test_the_first_of_several_merged_mappings_wins() -> None:
    text = "- &one {a: 1, b: 1}\n- &two {b: 2, c: 2}\n- <<: [*one, *two]\n"
    assert plain(read(text).root)[2] == {"a": "1", "b": "1", "c": "2"}  # type: ignore[index]


def test_merges_of_merges_arrive() -> None:
    text = "- &one {a: 1}\n- &two {<<: *one, b: 2}\n- {<<: *two, c: 3}\n"
    assert plain(read(text).root)[2] == {"a": "1", "b": "2", "c": "3"}  # type: ignore[index]


def test_a_merged_value_keeps_the_line_on_which_it_was_written() -> None:
    root = read("- &base\n  capacity: 0\n- <<: *base\n  name: b\n").root
    assert root is not None
    assert place_of(root, (1, "capacity")) == 2
    assert place_of(root, (1, "name")) == 4


def test_a_mapping_that_merges_may_not_repeat_its_own_keys() -> None:
    assert lines("- &base {a: 1}\n- <<: *base\n  b: 1\n  b: 2\n") == [
        'taps.yaml:4: $[1].b: duplicate key "b": lines 3 and 4'
    ]


def test_a_duplicate_in_a_mapping_with_many_aliases_is_told_once() -> None:
    assert lines("- &base\n  a: 1\n  a: 2\n- <<: *base\n- *base\n- <<: *base\n") == [
        'taps.yaml:3: $[0].a: duplicate key "a": lines 2 and 3'
    ]


def test_two_merge_keys_in_one_mapping_are_duplicates() -> None:
    text = "- &one {a: 1}\n- <<: *one\n  <<: *one\n"
    assert lines(text) == ['taps.yaml:3: $[1]["<<"]: duplicate key "<<": lines 2 and 3']


@pytest.mark.parametrize("value", ["5", "[1, 2]", "null"])
def test_a_merge_of_something_else_than_mappings_is_refused(value: str) -> None:
    assert lines(f"<<: {value}\n") == [
        'taps.yaml:1: $["<<"]: must name a mapping, or a list of mappings'
    ]


def test_a_quoted_merge_key_is_an_ordinary_key() -> None:
    assert plain(read('"<<": 5\n').root) == {"<<": "5"}


def test_aliases_of_aliases_are_refused_before_they_fill_the_memory() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 10):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    (line,) = lines(text)
    assert "grows to more than 100000 values by its aliases" in line


def test_merges_of_merges_are_bounded_as_well() -> None:
    text = "a0: &a0 {x: 1}\n"
    for level in range(1, 10):
        text += f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n"
    (line,) = lines(text)
    assert "by its aliases" in line


@pytest.mark.parametrize("text", ["&a [*a]", "&a {b: *a}", "a: &a\n  <<: *a\n"])
def test_an_alias_to_what_is_around_it_is_refused(text: str) -> None:
    (line,) = lines(text)
    assert line.endswith("contains itself by an alias")


def test_deep_nesting_is_refused_with_its_line() -> None:
    text = "a: 1\n" + "b: " + "[" * 5000
    assert lines(text) == ["taps.yaml:2: $: is nested more than 32 levels deep"]


def test_a_file_with_too_many_values_is_refused() -> None:
    (line,) = lines("[" + "1, " * 100_001 + "1]")
    assert line == "taps.yaml:1: $: has more than 100000 values"


def test_a_file_that_is_too_long_is_refused() -> None:
    assert lines(b"#" * (MAX_BYTES + 1)) == ["taps.yaml:1: $: is longer than 4 MiB"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "\ufeff"])
def test_an_empty_file_says_what_it_lacks(text: str) -> None:
    assert lines(text) == ["taps.yaml:1: $: is empty: schema_version and taps are required"]


def test_a_byte_order_mark_and_crlf_are_accepted() -> None:
    document = read("\ufeffa: 1\r\nb:\r\n  - c: 2\r\n")
    assert plain(document.root) == {"a": "1", "b": [{"c": "2"}]}
    assert document.root is not None
    assert place_of(document.root, ("b", 0, "c")) == 3


def test_a_tab_is_named_with_its_line() -> None:
    assert lines("a:\n\tb: 1\n") == [
        "taps.yaml:2: $: is not valid YAML: a tab cannot indent, use spaces"
    ]


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a: 1\nb: [1, 2\n", 3, "is not valid YAML"),
        ("a: 1\n  b: 2\n", 2, "mapping values are not allowed here"),
        ("a: *nowhere\n", 1, "undefined alias"),
        ("a: 1\n---\nb: 1\n", 2, "another document"),
        ("a: 1\nb: 'x\n", 3, "is not valid YAML"),
        ("a: 1\nb: \x07\n", 2, "has a control character, U+0007"),
    ],
)
def test_bad_yaml_is_one_message_with_a_line(text: str, line: int, part: str) -> None:
    (message,) = lines(text)
    assert message.startswith(f"taps.yaml:{line}: $: ")
    assert part in message


def test_bytes_that_are_not_utf_8_are_refused_with_their_line() -> None:
    assert lines(b"a: 1\nb: \xff\n") == ["taps.yaml:2: $: is not UTF-8 text"]


def test_a_foreign_tag_is_refused_and_nothing_is_built() -> None:
    assert lines("a: !!python/object/apply:os.getcwd []\nb: !secret x\n") == [
        "taps.yaml:1: $.a: has the tag tag:yaml.org,2002:python/object/apply:os.getcwd, "
        "which is not supported",
        "taps.yaml:2: $.b: has the tag !secret, which is not supported",
    ]


def test_a_key_that_is_a_list_is_refused() -> None:
    assert lines("? [a, b]\n: 1\n") == ["taps.yaml:1: $: has a key that is not text"]


def test_a_place_that_was_not_written_is_that_of_what_is_around_it() -> None:
    root = read("a:\n  - b: 1\n").root
    assert root is not None
    assert place_of(root, ("a", 0, "missing", "deeper")) == 2
    assert place_of(root, ("a", 7)) == 2
    assert place_of(root, ("missing",)) == 1


@given(st.binary(max_size=200))
def test_no_bytes_at_all_bring_the_reader_down(data: bytes) -> None:
    document = parse(data, "taps.yaml")
    assert document.root is not None or document.problems


@given(st.text(alphabet="ab:-[]{}&*<>!|'\"\n \t#,?%@", max_size=60))
def test_no_scraps_of_yaml_bring_the_reader_down(text: str) -> None:
    document = parse(text.encode(), "taps.yaml")
    assert document.root is not None or document.problems
