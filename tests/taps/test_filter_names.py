"""The names of filters: what each means, and what is none."""

import pytest

from replay.taps.filter_names import FilterKind, FilterName, conflicts, known_forms, parse_filter


@pytest.mark.parametrize(
    "kind", [each for each in FilterKind if each not in (FilterKind.MAX_TOKENS, FilterKind.SAMPLE)]
)
def test_a_name_without_a_number_is_its_kind(kind: FilterKind) -> None:
    assert parse_filter(kind.value) == FilterName(kind, kind.value)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("max-tokens=0", 0),
        ("max-tokens=4096", 4096),
        ("max-tokens=18446744073709551615", 2**64 - 1),
    ],
)
def test_max_tokens_holds_its_number_and_its_text(text: str, tokens: int) -> None:
    parsed = parse_filter(text)
    assert (parsed.kind, parsed.max_tokens, str(parsed)) == (FilterKind.MAX_TOKENS, tokens, text)


@pytest.mark.parametrize(
    ("text", "share"),
    [("sample=0.05", 0.05), ("sample=1", 1.0), ("sample=.5", 0.5), ("sample=1.0", 1.0)],
)
def test_sample_holds_its_share_and_its_text(text: str, share: float) -> None:
    parsed = parse_filter(text)
    assert (parsed.kind, parsed.share, str(parsed)) == (FilterKind.SAMPLE, share, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nope",
        "Tokens-Only",
        " tokens-only",
        "tokens-only=",
        "tokens-only=5",
        "max-tokens",
        "max-tokens=",
        "max-tokens=abc",
        "max-tokens=-1",
        "max-tokens=1.5",
        "max-tokens= 5",
        "max-tokens=1_0",
        "max-tokens=\N{ARABIC-INDIC DIGIT FIVE}",
        "max-tokens=18446744073709551616",
        "max-tokens=" + "9" * 5000,
        "sample",
        "sample=0",
        "sample=1.01",
        "sample=-0.5",
        "sample=nan",
        "sample=inf",
        "sample=1e-2",
        "sample=",
    ],
)
def test_what_is_no_filter_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ValueError, match="filter") as refused:
        parse_filter(text)
    assert f'"{text}"' in str(refused.value)


def test_every_kind_has_a_form_that_the_error_shows() -> None:
    assert len(known_forms()) == len(FilterKind)
    assert {"tokens-only", "max-tokens=N", "sample=F"} <= set(known_forms())


@pytest.mark.parametrize(
    ("names", "indices"),
    [
        (["keep-worker-pins", "tokens-only"], [0]),
        (["tokens-only", "keep-worker-pins", "keep-worker-pins"], [1, 2]),
        (["keep-worker-pins", "strip-worker-pins"], []),
        (["tokens-only", "strip-worker-pins", "max-tokens=5"], []),
    ],
)
def test_only_kept_pins_contradict_tokens_only(names: list[str], indices: list[int]) -> None:
    filters = [parse_filter(name) for name in names]
    assert [index for index, _ in conflicts(filters)] == indices
