"""Taps in the file: rules 2 to 12 of the shadow tap, and ours."""

from collections.abc import Callable

import pytest

from replay.config import (
    Config,
    RecordFileConfig,
    ResponseConfig,
    TapCapture,
    TapConfig,
    WorkerConfig,
    check_config,
)
from replay.errors import ConfigError

Load = Callable[..., Config]
Problems = Callable[..., list[str]]


#: The form of a file as it is written for Dynamo.
DYNAMO = """\
schema_version: 1
taps:
  - name: kv-history-tracker
    topic: kv-history-tracker
    capture: request
    filters: [tokens-only]
    capacity: 4096
  - name: shadow-replay
    topic: shadow-replay
    capture: request_response
    emit: joined
    filters: [strip-multimodal, strip-embeds]
    response:
      tokens: true
      chunk_timing: false
"""


def one_tap(body: str, capture: str = "request") -> str:
    return f"schema_version: 1\ntaps:\n  - name: a\n    capture: {capture}\n    {body}\n"


def test_a_file_written_for_dynamo_loads_unchanged(load: Load) -> None:
    config = load(DYNAMO)
    assert config.namespace == "dynamo"
    assert config.worker == WorkerConfig()
    assert config.taps == (
        TapConfig(
            name="kv-history-tracker",
            topic="kv-history-tracker",
            capture=TapCapture.REQUEST,
            filters=("tokens-only",),
            capacity=4096,
        ),
        TapConfig(
            name="shadow-replay",
            topic="shadow-replay",
            capture=TapCapture.REQUEST_RESPONSE,
            filters=("strip-multimodal", "strip-embeds"),
            response=ResponseConfig(tokens=True, chunk_timing=False),
        ),
    )


def test_no_tap_at_all_is_a_valid_file(load: Load) -> None:
    """Rule 4."""
    assert load("schema_version: 1\ntaps: []\n").taps == ()


def test_a_bare_tap_has_the_defaults(load: Load) -> None:
    """Rules 6, 9 and 10."""
    tap = load("schema_version: 1\ntaps: [{name: a, capture: request_response}]\n").taps[0]
    assert tap.topic == "shadow-requests-a"
    assert tap.capacity == 1024
    assert tap.response == ResponseConfig(tokens=True, max_tokens=None, chunk_timing=False)
    assert (tap.filters, tap.models, tap.capacity_bytes) == ((), (), None)
    assert (tap.replay_buffer, tap.record_file) == (0, None)


def test_a_tap_of_requests_has_no_response(load: Load) -> None:
    tap = load("schema_version: 1\ntaps: [{name: a, capture: request}]\n").taps[0]
    assert tap.response is None


@pytest.mark.parametrize("value", ["2", "0", "-1"])
def test_only_version_1_of_the_file_is_known(problems: Problems, value: str) -> None:
    """Rule 3."""
    assert problems(f"schema_version: {value}\ntaps: []\n") == [
        f"taps.yaml:1: $.schema_version: must be 1, is {value}"
    ]


@pytest.mark.parametrize("name", ["a.b", "a b", "a/b", "ä", "", "a\\n"])
@pytest.mark.parametrize("key", ["name", "topic"])
def test_names_and_topics_are_tokens(problems: Problems, key: str, name: str) -> None:
    """Rule 6."""
    keys = {"name": '"a"', key: f'"{name}"'}
    body = ", ".join(f"{each}: {value}" for each, value in keys.items())
    (line,) = problems(f"schema_version: 1\ntaps: [{{{body}, capture: request}}]\n")
    assert line.startswith(f"taps.yaml:2: $.taps[0].{key}: must match [A-Za-z0-9_-]+, is ")


def test_two_taps_of_one_name_are_refused_once(problems: Problems) -> None:
    """Rule 7; the topics that follow from the names need no complaint of their own."""
    text = "schema_version: 1\ntaps:\n" + "  - {name: a, capture: request}\n" * 2
    assert problems(text) == [
        'taps.yaml:4: $.taps[1].name: must differ from $.taps[0].name: both are "a" (tap "a")'
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [("topic: t", "topic: t"), ("topic: shadow-requests-b", "capacity: 5")],
)
def test_two_taps_on_one_topic_are_refused(problems: Problems, first: str, second: str) -> None:
    """Rule 7, also when one of the topics is a default."""
    text = (
        f"schema_version: 1\ntaps:\n  - {{name: a, capture: request, {first}}}\n"
        f"  - {{name: b, capture: request, {second}}}\n"
    )
    topic = first.removeprefix("topic: ")
    assert problems(text) == [
        f"taps.yaml:4: $.taps[1].topic: must differ from $.taps[0].topic: "
        f'both are "{topic}" (tap "b")'
    ]


@pytest.mark.parametrize("key", ["emit: joined", "response: {}", "response: {tokens: true}"])
def test_a_tap_of_requests_takes_no_emit_and_no_response(problems: Problems, key: str) -> None:
    """Rule 8."""
    assert problems(one_tap(key)) == [
        f'taps.yaml:5: $.taps[0].{key.split(":")[0]}: needs capture: request_response (tap "a")'
    ]


def test_joined_is_the_only_way_to_emit(problems: Problems) -> None:
    assert problems(one_tap("emit: split", "request_response")) == [
        'taps.yaml:5: $.taps[0].emit: must be joined, is split (tap "a")'
    ]


def test_a_cap_of_no_tokens_points_to_the_switch(problems: Problems) -> None:
    """Rule 10."""
    assert problems(one_tap("response: {max_tokens: 0}", "request_response")) == [
        "taps.yaml:5: $.taps[0].response.max_tokens: must be at least 1, is 0: "
        'tokens: false records no tokens (tap "a")'
    ]


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ("[nope]", 'unknown filter "nope"; known are strip-worker-pins, '),
        ("[max-tokens=abc]", 'filter "max-tokens=abc" needs a whole number of tokens'),
        ("[max-tokens]", 'filter "max-tokens" needs a whole number of tokens'),
        ("[sample=2]", 'filter "sample=2" needs a share above 0 and at most 1'),
        ("[no]", "must be text, is no, which YAML reads as a boolean"),
    ],
)
def test_a_filter_that_is_none_is_named(problems: Problems, filters: str, words: str) -> None:
    """Rule 11."""
    (line,) = problems(one_tap(f"filters: {filters}"))
    assert line.startswith(f"taps.yaml:5: $.taps[0].filters[0]: {words}")


def test_filters_are_no_single_text(problems: Problems) -> None:
    (line,) = problems(one_tap("filters: tokens-only"))
    assert line == 'taps.yaml:5: $.taps[0].filters: must be a list, is tokens-only (tap "a")'


def test_pins_cannot_be_kept_when_only_tokens_are(problems: Problems, load: Load) -> None:
    """Rule 12."""
    assert problems(one_tap("filters: [keep-worker-pins, tokens-only]")) == [
        "taps.yaml:5: $.taps[0].filters[0]: keep-worker-pins contradicts tokens-only, "
        'which drops the pins (tap "a")'
    ]
    tap = load(one_tap("filters: [keep-worker-pins, strip-worker-pins]")).taps[0]
    assert [each.text for each in tap.filters] == ["keep-worker-pins", "strip-worker-pins"]


def test_the_topic_of_the_status_records_is_taken(problems: Problems) -> None:
    (line,) = problems(one_tap("topic: replay-status"))
    assert "replay-status is the topic of the status records" in line


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("capacity_bytes: 0", "capacity_bytes: must be at least 1, is 0"),
        ("replay_buffer: -1", "replay_buffer: must be at least 0, is -1"),
        ("replay_buffer: 2147483648", "replay_buffer: must be at most 2147483647, is 2147483648"),
        ("models: ['']", "models[0]: must not be empty"),
        ("record_file: {}", "record_file.path: is required"),
        ("record_file: {path: ''}", "record_file.path: must not be empty"),
        (
            "record_file: {path: x, rotate_bytes: 0}",
            "record_file.rotate_bytes: must be at least 1, is 0",
        ),
        (
            "record_file: {path: x, rotate_seconds: 0}",
            "record_file.rotate_seconds: must be above 0, is 0",
        ),
    ],
)
def test_our_keys_of_a_tap_have_bounds(problems: Problems, body: str, line: str) -> None:
    assert problems(one_tap(body)) == [f'taps.yaml:5: $.taps[0].{line} (tap "a")']


def test_without_a_transport_a_tap_needs_its_record_file(problems: Problems, load: Load) -> None:
    none = "schema_version: 1\nevent_plane: {transport: none}\n"
    assert problems(none + "taps: [{name: a, capture: request, replay_buffer: 5}]\n") == [
        "taps.yaml:3: $.taps[0].record_file: is required when event_plane.transport is none: "
        'nothing else is written (tap "a")',
        "taps.yaml:3: $.taps[0].replay_buffer: has no use when event_plane.transport is none: "
        'nobody can ask (tap "a")',
    ]
    tap = load(none + "taps: [{name: a, capture: request, record_file: {path: x}}]\n").taps[0]
    assert tap.record_file == RecordFileConfig(path="x")


@pytest.mark.parametrize(("first", "second"), [("x", "x"), ("x", "./x"), ("d/../x", "x")])
def test_two_writers_do_not_share_a_file(problems: Problems, first: str, second: str) -> None:
    text = (
        "schema_version: 1\nworker: {capture: ./y}\ntaps:\n"
        f"  - {{name: a, capture: request, record_file: {{path: {first}}}}}\n"
        f"  - {{name: b, capture: request, record_file: {{path: {second}}}}}\n"
        "  - {name: c, capture: request, record_file: {path: y}}\n"
    )
    assert problems(text) == [
        "taps.yaml:5: $.taps[1].record_file.path: must differ from $.taps[0].record_file.path "
        '(tap "b")',
        'taps.yaml:6: $.taps[2].record_file.path: must differ from $.worker.capture (tap "c")',
    ]


def test_taps_that_share_a_base_by_merge_differ_where_they_say_so(load: Load) -> None:
    text = (
        "schema_version: 1\n"
        "taps:\n"
        "  - &base {name: a, capture: request, capacity: 5, filters: [tokens-only]}\n"
        "  - {<<: *base, name: b, capacity: 6}\n"
    )
    first, second = load(text).taps
    assert (first.name, first.capacity) == ("a", 5)
    assert (second.name, second.capacity, second.topic) == ("b", 6, "shadow-requests-b")
    assert first.filters == second.filters


def test_a_duplicate_key_of_a_tap_is_named_with_both_lines_and_the_tap(problems: Problems) -> None:
    text = one_tap("filters: [tokens-only]\n    filters: []")
    assert problems(text) == [
        'taps.yaml:6: $.taps[0].filters: duplicate key "filters": lines 5 and 6 (tap "a")'
    ]


def test_an_embedding_program_meets_the_same_rules() -> None:
    tap = TapConfig(name="a b", capture=TapCapture.REQUEST, capacity=0)
    odd = TapConfig(name="c", capture=TapCapture.REQUEST_RESPONSE, response=None)
    with pytest.raises(ConfigError) as refused:
        check_config(Config(taps=(tap, odd)))
    assert refused.value.problems == (
        '$.taps[0].name: must match [A-Za-z0-9_-]+, is "a b"',
        "$.taps[0].capacity: must be at least 1, is 0",
        "$.taps[1].response: is required by capture: request_response",
    )


def test_an_embedding_program_writes_filters_as_text() -> None:
    tap = TapConfig(name="a", capture=TapCapture.REQUEST, filters=["max-tokens=5"])
    assert tap.filters[0].max_tokens == 5
    with pytest.raises(ValueError, match='unknown filter "nope"'):
        TapConfig(name="a", capture=TapCapture.REQUEST, filters=["nope"])
