"""What each key may hold: exact types, known keys, and the words of a refusal."""

import json
from collections.abc import Callable

import pytest

from replay.config import (
    CannedConfig,
    Config,
    RealisticConfig,
    TapCapture,
    UpstreamConfig,
)

Load = Callable[..., Config]
Problems = Callable[..., list[str]]


HEAD = "schema_version: 1\ntaps:\n  - name: a\n    capture: request\n"


def worker(body: str) -> str:
    return f"schema_version: 1\ntaps: []\nworker:\n  {body}\n"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0", "must be at least 1, is 0"),
        ("-1", "must be at least 1, is -1"),
        ("1e3", "must be an integer, is 1e3"),
        ("true", "must be an integer, is true"),
        ('"1024"', 'must be an integer, is "1024", which is text: take the quotes away'),
        ("2147483648", "must be at most 2147483647, is 2147483648"),
        ("1" + "0" * 5000, "must be an integer below 2^64"),
        (
            "010",
            "must be an integer, is 010: leave out the leading zero, which means octal in YAML 1.1",
        ),
        ("0x10", "must be an integer, is 0x10"),
        ("1_000", "must be an integer, is 1_000"),
        ("1:30", "must be an integer, is 1:30"),
        ("1024.0", "must be an integer, is 1024.0"),
        ("[1024]", "must be an integer, is a list"),
        ("{a: 1}", "must be an integer, is a mapping"),
        (".inf", "must be an integer, is .inf"),
    ],
)
def test_a_capacity_is_an_integer_of_31_bits(problems: Problems, value: str, words: str) -> None:
    assert problems(f"{HEAD}    capacity: {value}\n") == [
        f'taps.yaml:5: $.taps[0].capacity: {words} (tap "a")'
    ]


@pytest.mark.parametrize("value", [1, 2**31 - 1])
def test_both_ends_of_a_capacity_are_accepted(load: Load, value: int) -> None:
    assert load(f"{HEAD}    capacity: {value}\n").taps[0].capacity == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("no", "a boolean"),
        ("on", "a boolean"),
        ("7", "an integer"),
        ("1.5", "a number"),
        ("2026-01-01", "a date"),
    ],
)
def test_text_that_yaml_reads_as_something_else_must_be_quoted(
    load: Load, problems: Problems, value: str, kind: str
) -> None:
    file = "schema_version: 1\ntaps: []\nnamespace: {}\n"
    assert problems(file.format(value)) == [
        f"taps.yaml:3: $.namespace: must be text, is {value}, which YAML reads as {kind}: quote it"
    ]
    assert load(file.format(f"'{value}'")).namespace == value


def test_a_tap_named_no_must_be_quoted(problems: Problems) -> None:
    assert problems("schema_version: 1\ntaps: [{name: no, capture: request}]\n") == [
        "taps.yaml:2: $.taps[0].name: must be text, is no, which YAML reads as a boolean: quote it"
    ]


@pytest.mark.parametrize("value", ["no", "off", "1", '"true"', "null", "[]"])
def test_only_true_and_false_are_booleans(problems: Problems, value: str) -> None:
    shown = {"null": "empty", "[]": "a list"}.get(value, value)
    assert problems(worker(f"capture_extended: {value}")) == [
        f"taps.yaml:4: $.worker.capture_extended: must be true or false, is {shown}"
    ]


@pytest.mark.parametrize("value", ["true", "True", "TRUE"])
def test_true_may_be_written_in_the_three_ways_of_yaml(load: Load, value: str) -> None:
    assert load(worker(f"capture_extended: {value}")).worker.capture_extended is True


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("5", 5.0), ("0.25", 0.25), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("2.5e-1", 0.25)],
)
def test_a_number_may_have_a_fraction_and_an_exponent(
    load: Load, value: str, seconds: float
) -> None:
    config = load(f"schema_version: 1\ntaps: []\nshutdown: {{grace_seconds: {value}}}\n")
    assert config.shutdown.grace_seconds == seconds
    assert type(config.shutdown.grace_seconds) is float


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e999", "true", "1:30", "1_0", "x"])
def test_a_number_is_finite_and_decimal(problems: Problems, value: str) -> None:
    assert problems(f"schema_version: 1\ntaps: []\nshutdown: {{grace_seconds: {value}}}\n") == [
        f"taps.yaml:3: $.shutdown.grace_seconds: must be a finite number, is {value}"
    ]


def test_a_wrong_word_is_answered_with_the_right_ones(problems: Problems) -> None:
    assert problems("schema_version: 1\ntaps: [{name: a, capture: both}]\n") == [
        "taps.yaml:2: $.taps[0].capture: must be one of request, request_response, is both "
        '(tap "a")'
    ]


@pytest.mark.parametrize("value", ["null", "{}", "5", "a"])
def test_taps_must_be_a_list(problems: Problems, value: str) -> None:
    (line,) = problems(f"schema_version: 1\ntaps: {value}\n")
    assert line.startswith("taps.yaml:2: $.taps: must be a list, is ")
    assert ("write [] for none" in line) is (value == "null")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[]\n", "taps.yaml:1: $: must be a mapping, is a list"),
        ("5\n", "taps.yaml:1: $: must be a mapping, is 5"),
        (
            "---\n",
            "taps.yaml:2: $: must be a mapping, is empty: leave the key out for its defaults",
        ),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(problems: Problems, text: str, line: str) -> None:
    assert problems(text) == [line]


def test_a_section_whose_keys_are_all_commented_out_says_what_to_do(problems: Problems) -> None:
    assert problems("schema_version: 1\ntaps: []\nworker:\n  # host: ::1\n") == [
        "taps.yaml:3: $.worker: must be a mapping, is empty: leave the key out for its defaults"
    ]


def test_required_keys_are_named_with_the_line_of_what_lacks_them(problems: Problems) -> None:
    assert problems("namespace: x\n") == [
        "taps.yaml:1: $.schema_version: is required",
        "taps.yaml:1: $.taps: is required",
    ]
    assert problems("schema_version: 1\ntaps:\n  - topic: a\n") == [
        "taps.yaml:3: $.taps[0].name: is required",
        "taps.yaml:3: $.taps[0].capture: is required",
    ]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("hots: x", 'hots: unknown key "hots": did you mean "host"?'),
        ("gen_ms: 5", 'gen_ms: unknown key "gen_ms": did you mean "engine.gen_ms"?'),
        (
            "message_bytes: 5",
            'message_bytes: unknown key "message_bytes": did you mean "limits.message_bytes"?',
        ),
        (
            "tls: {certificate: a, key: b, zzz: 1}",
            'tls.zzz: unknown key "zzz": known here are certificate, key, client_ca',
        ),
        (
            "engine: {kind: canned, kv_tokens: 5}",
            'engine.kv_tokens: unknown key "kv_tokens": '
            "known here are gen_ms, token_ms, output_tokens, seed",
        ),
    ],
)
def test_an_unknown_key_is_named_with_a_guess(problems: Problems, body: str, line: str) -> None:
    lines = [each for each in problems(worker(body)) if "there is no file" not in each]
    assert lines == [f"taps.yaml:4: $.worker.{line}"]


def test_a_key_with_control_characters_cannot_steer_the_terminal(problems: Problems) -> None:
    (line,) = problems(worker('"a\\u001b b": 1'))
    assert line.startswith('taps.yaml:4: $.worker["a\\u001b b"]: unknown key "a\\u001b b": known')


def test_unknown_keys_are_refused_at_every_level_of_a_tap(problems: Problems) -> None:
    text = (
        "schema_version: 1\nfoo: 1\ntaps:\n  - name: a\n    capture: request_response\n"
        "    bar: 1\n    response: {baz: 1}\n    record_file: {path: x, qux: 1}\n"
    )
    assert [line.split(": ")[2] for line in problems(text)] == [
        'unknown key "foo"',
        'unknown key "bar"',
        'unknown key "baz"',
        'unknown key "qux"',
    ]


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    text = (
        "schema_version: 2\n"
        "taps:\n"
        "  - {name: a b, capture: both, capacity: 0}\n"
        "  - {name: no, capture: request, nonsense: 1}\n"
        "worker: {grpc_count: -1, engine: {token_ms: x}}\n"
    )
    assert problems(text, {"worker.grpc_base_port": "70000"}) == [
        "taps.yaml:1: $.schema_version: must be 1, is 2",
        "taps.yaml:3: $.taps[0].capture: must be one of request, request_response, is both "
        '(tap "a b")',
        'taps.yaml:3: $.taps[0].name: must match [A-Za-z0-9_-]+, is "a b" (tap "a b")',
        'taps.yaml:3: $.taps[0].capacity: must be at least 1, is 0 (tap "a b")',
        'taps.yaml:4: $.taps[1].nonsense: unknown key "nonsense": known here are name, capture, '
        "topic, emit, filters, models, response, capacity, capacity_bytes, replay_buffer, "
        "record_file",
        "taps.yaml:4: $.taps[1].name: must be text, is no, which YAML reads as a boolean: quote it",
        "taps.yaml:5: $.worker.engine.token_ms: must be a finite number, is x",
        "taps.yaml:5: $.worker.grpc_count: must be at least 0, is -1",
        "--grpc-base-port: must be at most 65535, is 70000",
    ]


def test_a_rule_about_a_value_that_cannot_be_read_is_not_told(problems: Problems) -> None:
    """`response` needs `capture: request_response`, but nobody knows what `capture` should be."""
    (line,) = problems("schema_version: 1\ntaps: [{name: a, capture: 5, response: {}}]\n")
    assert "$.taps[0].capture" in line


@pytest.mark.parametrize(
    ("body", "engine"),
    [
        ("engine: {}", CannedConfig()),
        ("engine: {seed: 5}", CannedConfig(seed=5)),
        ("engine: {kind: canned, token_ms: 2}", CannedConfig(token_ms=2.0)),
        ("engine: {kind: realistic, kv_blocks: 7}", RealisticConfig(kv_blocks=7)),
        (
            "engine: {kind: realistic, decode_poly: [1, 2.5, 0]}",
            RealisticConfig(decode_poly=(1.0, 2.5, 0.0)),
        ),
        (
            "engine: {kind: upstream, upstream: 'grpc://[::1]:50051'}",
            UpstreamConfig(upstream="grpc://[::1]:50051"),
        ),
    ],
)
def test_the_kind_chooses_the_engine_and_its_options(load: Load, body: str, engine: object) -> None:
    assert load(worker(body)).worker.engine == engine


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("{kind: reel}", '.kind: must be one of canned, realistic, upstream, is "reel"'),
        ("{kind: upstream}", ".upstream: is required"),
        ("{kind: realistic, decode_poly: [1]}", ".decode_poly: must have 3 values, has 1"),
        ("canned", ": must be a mapping, is canned"),
    ],
)
def test_a_wrong_engine_is_refused(problems: Problems, body: str, line: str) -> None:
    assert problems(worker(f"engine: {body}")) == [f"taps.yaml:4: $.worker.engine{line}"]


def test_overrides_are_read_by_port(load: Load) -> None:
    config = load(worker("grpc_count: 2\n  overrides: {50052: {engine: {kind: realistic}}}"))
    assert config.worker.overrides == {50052: RealisticConfig()}


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("[]", ": must be a mapping from ports, is a list"),
        ("{a: {}}", ".a: must be an integer, is a"),
        ("{50051: {host: x}}", '[50051].host: unknown key "host": known here are engine'),
        ("{50051: {engine: {seed: x}}}", "[50051].engine.seed: must be an integer, is x"),
        ("{50052: {}}", "[50052]: no worker has this port; the ports are 50051 to 50051"),
    ],
)
def test_a_wrong_override_is_refused(problems: Problems, value: str, line: str) -> None:
    assert problems(worker(f"overrides: {value}")) == [f"taps.yaml:4: $.worker.overrides{line}"]


@pytest.mark.parametrize("quote", ["", "'"])
def test_sampling_defaults_are_a_mapping_or_its_json(load: Load, quote: str) -> None:
    text = '{"temperature": 0.5, "stop": ["x"], "n": 2}'
    config = load(worker(f"default_sampling_params: {quote}{text}{quote}"))
    assert json.dumps(config.worker.default_sampling_params) == text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("'{'", "is not valid JSON: Expecting property name enclosed in double quotes"),
        ("'[]'", "must be a JSON object, is a list"),
        ("[]", "must be a JSON object, is a list"),
        ("'5'", "must be a JSON object, is 5"),
        ("5", "must be a JSON object, is 5"),
        ("'{\"top_p\": NaN}'", "is not valid JSON: NaN is no JSON number"),
        ('\'{"top_p": 1, "top_p": 1}\'', 'is not valid JSON: duplicate key "top_p"'),
        (f"'{'[' * 100000}'", "is not valid JSON"),
    ],
)
def test_sampling_defaults_must_be_one_json_object(
    problems: Problems, value: str, words: str
) -> None:
    (line,) = problems(worker(f"default_sampling_params: {value}"))
    assert line.startswith(f"taps.yaml:4: $.worker.default_sampling_params: {words}")


def test_a_wrong_sampling_default_is_told_with_its_own_line(problems: Problems) -> None:
    text = worker("default_sampling_params:\n    top_p: 2\n    temperatur: 1\n    n: true")
    assert [line.rsplit("; known are", 1)[0] for line in problems(text)] == [
        "taps.yaml:5: $.worker.default_sampling_params.top_p: "
        "must be a number above 0 and at most 1",
        "taps.yaml:6: $.worker.default_sampling_params.temperatur: is no sampling parameter",
        "taps.yaml:7: $.worker.default_sampling_params.n: must be an integer from 1 to 255",
    ]


def test_what_is_null_in_a_tap_takes_its_default(load: Load) -> None:
    keys = ["topic", "emit", "response", "capacity", "capacity_bytes", "record_file"]
    nulls = ", ".join(f"{key}: null" for key in keys)
    bare, full = (
        "name: a, capture: request_response",
        f"name: a, capture: request_response, {nulls}",
    )
    file = "schema_version: 1\nnamespace: {}\ntaps: [{{{}}}]\n"
    assert load(file.format("null", full)) == load(file.format("dynamo", bare))
    assert load(file.format("null", full)).taps[0].capture is TapCapture.REQUEST_RESPONSE
