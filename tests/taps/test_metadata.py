"""Which of a call's metadata a record may show."""

import pytest

from replay.taps.metadata import MetadataAllowList

HEADERS = [
    (b"x-claude-code-session-id", b"s"),
    (b"authorization", b"Bearer sk-1"),
    (b"x-agent", b"a"),
    (b"x-agent", b"b"),
]


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        ((), []),
        (("x-agent",), [b"x-agent", b"x-agent"]),
        (("x-claude-code-*", "X-AGENT"), [b"x-claude-code-session-id", b"x-agent", b"x-agent"]),
        (("*",), [name for name, _ in HEADERS]),
        (("agent",), []),
    ],
)
def test_only_names_that_match_a_glob_pass_in_order(
    globs: tuple[str, ...], names: list[bytes]
) -> None:
    allowed = MetadataAllowList(globs)
    for _ in range(2):
        assert [name for name, _ in allowed.of(HEADERS)] == names


def test_what_clients_call_their_headers_is_remembered_within_a_bound() -> None:
    allowed = MetadataAllowList(("x-*",))
    for number in range(2 * MetadataAllowList.MOST_KNOWN):
        name = f"x-{number}".encode()
        assert allowed.of([(name, b"")]) == [(name, b"")]
    assert len(allowed._known) == MetadataAllowList.MOST_KNOWN
