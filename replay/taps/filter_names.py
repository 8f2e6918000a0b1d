"""The names that a tap's `filters` may hold, and which of them contradict each other.

PURE.  A name is Dynamo's, or `sample=F`, which is ours.  The text is kept as it was configured,
because `envelope.filters` repeats it in the order of the configuration.
"""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

import attrs

#: Dynamo reads the number of `max-tokens=` into 64 bits.
MOST_TOKENS = 2**64 - 1


class FilterKind(StrEnum):
    """What a filter does.  The value is its name, without the number that some take."""

    STRIP_WORKER_PINS = "strip-worker-pins"
    KEEP_WORKER_PINS = "keep-worker-pins"
    STRIP_MULTIMODAL = "strip-multimodal"
    STRIP_EMBEDS = "strip-embeds"
    STRIP_EXTRA_ARGS = "strip-extra-args"
    STRIP_AGENT_CONTEXT = "strip-agent-context"
    TOKENS_ONLY = "tokens-only"
    SKIP_MULTIMODAL = "skip-multimodal"
    MAX_TOKENS = "max-tokens"
    SAMPLE = "sample"


#: Kinds that take a number after `=`; the others take none.
NUMBERED = frozenset({FilterKind.MAX_TOKENS, FilterKind.SAMPLE})


@attrs.frozen
class FilterName:
    """One entry of `filters`."""

    kind: FilterKind
    text: str
    """The name as it was configured, the number of `max-tokens=` included."""
    max_tokens: int | None = None
    """The longest prompt that passes, in tokens, of `max-tokens=N`."""
    share: float | None = None
    """The share of requests that passes, above 0 and at most 1, of `sample=F`."""

    def __str__(self) -> str:
        return self.text


def parse_filter(text: str) -> FilterName:
    """Read one filter name.  Raises ValueError with a sentence that names it."""
    name, equals, number = text.partition("=")
    try:
        kind = FilterKind(name)
    except ValueError:
        raise ValueError(f'unknown filter "{text}"; known are {", ".join(known_forms())}') from None
    if kind not in NUMBERED:
        if equals:
            raise ValueError(f'filter "{text}" takes no number: write "{name}"')
        return FilterName(kind, text)
    if kind is FilterKind.MAX_TOKENS:
        if not re.fullmatch(r"[0-9]{1,20}", number) or int(number) > MOST_TOKENS:
            raise ValueError(f'filter "{text}" needs a whole number of tokens: max-tokens=4096')
        return FilterName(kind, text, max_tokens=int(number))
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", number) or not 0 < float(number) <= 1:
        raise ValueError(f'filter "{text}" needs a share above 0 and at most 1: sample=0.05')
    return FilterName(kind, text, share=float(number))


def known_forms() -> list[str]:
    """Return every filter in the form in which it is written."""
    numbers = {FilterKind.MAX_TOKENS: "=N", FilterKind.SAMPLE: "=F"}
    return [f"{kind}{numbers.get(kind, '')}" for kind in FilterKind]


def conflicts(filters: Sequence[FilterName]) -> Iterator[tuple[int, str]]:
    """Yield the index of each filter that another one contradicts, and a sentence about it.

    `keep-worker-pins` beside `strip-worker-pins` is no conflict: keep wins (rule 12).
    """
    kinds = [each.kind for each in filters]
    if FilterKind.TOKENS_ONLY in kinds:
        for index, kind in enumerate(kinds):
            if kind is FilterKind.KEEP_WORKER_PINS:
                yield index, "keep-worker-pins contradicts tokens-only, which drops the pins"
