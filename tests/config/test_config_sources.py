"""Flags over the file, the file over the environment, and the way back to a file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay.config import (
    CannedConfig,
    Config,
    EngineConfig,
    KvEventsWire,
    LimitsConfig,
    RealisticConfig,
    RecordFileConfig,
    ResponseConfig,
    TapCapture,
    TapConfig,
    WorkerConfig,
    check_config,
    describe,
    load_config,
)
from replay.config.problems import Setting
from replay.errors import ConfigError

Load = Callable[..., Config]
Problems = Callable[..., list[str]]

FILE = "schema_version: 1\ntaps: []\nworker: {grpc_count: 2, model: m, engine: {seed: 7}}\n"
TAPS = "schema_version: 1\ntaps: [{name: a, capture: request}]\n"


def test_a_flag_wins_over_the_file(load: Load) -> None:
    worker = load(FILE, {"worker.grpc_count": "3", "worker.engine.token_ms": "5"}).worker
    assert worker.grpc_count == 3
    assert worker.model == "m"
    assert worker.engine == CannedConfig(seed=7, token_ms=5.0)


def test_flags_need_no_file() -> None:
    setting = Setting("--grpc-count", ("worker", "grpc_count"))
    config = load_config(flags=[(setting, "3")], environ={})
    assert config == Config(worker=WorkerConfig(grpc_count=3))


def test_a_flag_wins_over_a_wrong_value_in_the_file(load: Load) -> None:
    file = "schema_version: 1\ntaps: []\nworker: {grpc_count: x}\n"
    assert load(file, {"worker.grpc_count": "3"}).worker.grpc_count == 3


def test_a_flag_below_a_section_that_is_none_leaves_the_complaint(problems: Problems) -> None:
    assert problems("schema_version: 1\ntaps: []\nworker: 5\n", {"worker.grpc_count": "3"}) == [
        "taps.yaml:3: $.worker: must be a mapping, is 5"
    ]


def test_flags_are_read_by_the_type_of_their_key(load: Load) -> None:
    flags = {"worker.model": "7", "worker.capture_extended": "true", "worker.engine.seed": "1"}
    worker = load(FILE, flags).worker
    assert (worker.model, worker.capture_extended) == ("7", True)
    assert worker.engine == CannedConfig(seed=1)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("worker.grpc_count", "x", '--grpc-count: must be an integer, is "x"'),
        ("worker.grpc_count", "", "--grpc-count: must be an integer, is empty"),
        ("worker.grpc_count", "1e3", '--grpc-count: must be an integer, is "1e3"'),
        ("worker.engine.gen_ms", "nan", '--gen-ms: must be a finite number, is "nan"'),
        ("worker.engine.gen_ms", "-1", "--gen-ms: must be at least 0, is -1"),
        (
            "worker.default_sampling_params",
            '{"top_p": 2}',
            "--default-sampling-params: top_p: must be a number above 0 and at most 1",
        ),
    ],
)
def test_a_wrong_flag_is_named_by_its_own_name(
    problems: Problems, key: str, value: str, line: str
) -> None:
    assert problems(FILE, {key: value}) == [line]


def test_a_rule_over_two_values_names_the_one_that_is_wrong_now(problems: Problems) -> None:
    assert problems(FILE, {"worker.grpc_base_port": "65535"}) == [
        "taps.yaml:3: $.worker.grpc_count: the last worker would listen on port 65536, past 65535"
    ]


def test_what_a_flag_makes_necessary_is_told_under_its_name() -> None:
    setting = Setting("--engine", ("worker", "engine", "kind"))
    with pytest.raises(ConfigError) as refused:
        load_config(flags=[(setting, "upstream")], environ={})
    assert "--engine: upstream: is required" in refused.value.problems


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as missing:
        load_config(str(tmp_path / "none.yaml"))
    assert missing.value.problems == (
        f"{tmp_path}/none.yaml: cannot be read: No such file or directory",
    )
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(str(tmp_path))


def test_dynamos_environment_stands_in_for_what_the_file_leaves_out(load: Load) -> None:
    environ = {"DYN_EVENT_PLANE_HOST": " [::1] ", "DYN_FILE_KV": "/kv"}
    plane = load(TAPS, environ=environ).event_plane
    assert (plane.advertise, plane.discovery.root) == ("::1", "/kv")
    file = TAPS + "event_plane: {advertise: 10.0.0.1, discovery: {root: /mine}}\n"
    plane = load(file, environ=environ).event_plane
    assert (plane.advertise, plane.discovery.root) == ("10.0.0.1", "/mine")
    nulls = TAPS + "event_plane: {advertise: null, discovery: {root: null}}\n"
    plane = load(nulls, environ=environ).event_plane
    assert (plane.advertise, plane.discovery.root) == ("::1", "/kv")


def test_a_wildcard_in_the_environment_is_named(problems: Problems) -> None:
    assert problems(TAPS, environ={"DYN_EVENT_PLANE_HOST": "0.0.0.0"}) == [
        '$DYN_EVENT_PLANE_HOST: must be an address that consumers can reach, is "0.0.0.0"'
    ]


@pytest.mark.parametrize("host", ["", "  ", "0.0.0.0"])
def test_the_environment_says_nothing_when_it_is_blank_or_there_is_no_tap(
    load: Load, host: str
) -> None:
    assert load(FILE, environ={"DYN_EVENT_PLANE_HOST": host}).event_plane.advertise is None


def test_a_file_may_say_the_defaults(load: Load) -> None:
    assert load("\n".join(describe(Config()))) == Config()


#: Texts that YAML would read as something else, or could not hold without quotes.
NAMES = st.sampled_from(["no", "1e3", "010", "null", "~", "a: b", "# x", "é\n\t'\"", "2026-01-01"])
COUNTS = st.integers(1, 2**31 - 1)
MILLISECONDS = st.floats(0, 1e12)
ENGINES: st.SearchStrategy[EngineConfig] = st.one_of(
    st.builds(CannedConfig, gen_ms=MILLISECONDS, token_ms=MILLISECONDS, seed=st.integers(0, 9)),
    st.builds(
        RealisticConfig,
        max_running=COUNTS,
        prefill_first=st.booleans(),
        kv_blocks=st.none() | COUNTS,
        prefill_poly=st.tuples(MILLISECONDS, MILLISECONDS, MILLISECONDS),
        kv_events_wire=st.sampled_from(KvEventsWire),
        kv_events_topic=NAMES,
    ),
)
TAP = st.builds(
    TapConfig,
    name=st.just("a"),
    capture=st.just(TapCapture.REQUEST_RESPONSE),
    filters=st.lists(st.sampled_from(["tokens-only", "max-tokens=5", "sample=0.05"])),
    models=st.lists(NAMES).map(tuple),
    response=st.builds(ResponseConfig, tokens=st.booleans(), max_tokens=st.none() | COUNTS),
    capacity=COUNTS,
    record_file=st.none() | st.builds(RecordFileConfig, path=NAMES, rotate_bytes=COUNTS),
)
CONFIGS = st.builds(
    Config,
    namespace=NAMES,
    worker=st.builds(
        WorkerConfig,
        model=NAMES,
        capture=st.none() | NAMES,
        engine=ENGINES,
        overrides=st.dictionaries(st.just(50051), ENGINES),
        metadata_allow=st.lists(st.just("x-*")).map(tuple),
        limits=st.builds(LimitsConfig, connections=COUNTS, message_bytes=st.none() | COUNTS),
        default_sampling_params=st.sampled_from([None, {}, {"stop": ["no"], "top_p": 0.5}]),
    ),
    taps=st.lists(TAP, max_size=1).map(tuple),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(CONFIGS)
def test_the_effective_configuration_can_be_read_again(load: Load, config: Config) -> None:
    try:
        check_config(config)
    except ConfigError:
        return  # the capture and the record file have one path
    assert load("\n".join(describe(config))) == config
