"""Rules of the worker, the HTTP port, the event plane and the shutdown."""

from collections.abc import Callable
from pathlib import Path

import pytest

from replay.config import (
    CannedConfig,
    Config,
    EventPlaneConfig,
    HttpConfig,
    LimitsConfig,
    RealisticConfig,
    ShutdownConfig,
    TapCapture,
    TapConfig,
    UpstreamConfig,
    WorkerConfig,
    check_config,
    find_warnings,
)
from replay.errors import ConfigError

Load = Callable[..., Config]
Problems = Callable[..., list[str]]


TAP = TapConfig(name="a", capture=TapCapture.REQUEST)


def broken(config: Config) -> list[str]:
    """Return the rules that *config* breaks."""
    try:
        check_config(config)
    except ConfigError as error:
        return list(error.problems)
    return []


def broken_worker(**fields: object) -> list[str]:
    return broken(Config(worker=WorkerConfig(**fields)))  # type: ignore[arg-type]


def test_the_default_configuration_breaks_no_rule() -> None:
    assert broken(Config()) == []


def test_an_embedding_program_may_leave_the_worker_out() -> None:
    assert Config(worker=None).worker == WorkerConfig()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "0.0.0.0",
        "::1",
        "::",
        "fe80::1%eth0",
        "localhost",
        "worker-1.example.org",
        "unix:/run/replay.sock",
    ],
)
def test_a_worker_listens_on_addresses_names_and_sockets(host: str) -> None:
    assert broken_worker(host=host) == []


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("", 'must be a host: an address or a name, is ""'),
        ("127.0.0.256", "must be a host: an IPv4 address has four numbers from 0 to 255"),
        ("127.1", "must be a host: an IPv4 address has four numbers from 0 to 255"),
        ("127.0.0.1:50051", "must be a host without a port"),
        ("[::1]:50051", "must be a host without a port"),
        ("::g", "must be a host: an IPv6 address does not look like this"),
        ("[127.0.0.1]", "must have an IPv6 address in its brackets"),
        ("a b", "must be a host: an address or a name"),
        ("-a", "must be a host: an address or a name"),
        ("unix:run/x", "must name a Unix socket as unix:/path"),
        ("unix:", "must name a Unix socket as unix:/path"),
        ("unix:/" + "a" * 107, "must have a socket path of at most 107 bytes"),
    ],
)
def test_a_host_that_is_none_is_refused(host: str, words: str) -> None:
    (line,) = broken_worker(host=host)
    assert line.startswith(f"$.worker.host: {words}")


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_address_is_kept_without_brackets(load: Load, host: str) -> None:
    file = f"schema_version: 1\ntaps: []\nworker: {{host: '{host}'}}\nhttp: {{host: '{host}'}}\n"
    config = load(file)
    assert (config.worker.host, config.http.host) == ("::1", "::1")


def test_a_unix_socket_holds_one_worker() -> None:
    assert broken_worker(host="unix:/x", grpc_count=2) == [
        "$.worker.grpc_count: must be at most 1 on a Unix socket"
    ]


@pytest.mark.parametrize(
    ("base", "count", "lines"),
    [
        (0, 65535, []),
        (65535, 1, []),
        (65535, 0, []),
        (65000, 536, []),
        (65000, 537, ["grpc_count: the last worker would listen on port 65536, past 65535"]),
        (65536, 1, ["grpc_base_port: must be at most 65535, is 65536"]),
        (-1, 1, ["grpc_base_port: must be at least 0, is -1"]),
        (1, 65536, ["grpc_count: must be at most 65535, is 65536"]),
        (0, -1, ["grpc_count: must be at least 0, is -1"]),
    ],
)
def test_every_worker_has_a_port(base: int, count: int, lines: list[str]) -> None:
    named = [f"$.worker.{line}" for line in lines]
    assert broken_worker(grpc_base_port=base, grpc_count=count) == named


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"model": ""}, "model: must not be empty"),
        ({"capture": ""}, "capture: must not be empty"),
        ({"capture": "a\0b"}, 'capture: must not have a NUL character, is "a\\u0000b"'),
        ({"script_strict": True}, "script_strict: needs worker.script"),
        ({"context_length": 0}, "context_length: must be at least 1, is 0"),
        ({"vocab_size": 0}, "vocab_size: must be at least 1, is 0"),
        ({"metadata_allow": ("x-*", "")}, "metadata_allow[1]: must not be empty"),
        ({"limits": LimitsConfig(connections=0)}, "limits.connections: must be at least 1, is 0"),
        ({"limits": LimitsConfig(idle_pings=0)}, "limits.idle_pings: must be at least 1, is 0"),
        (
            {"limits": LimitsConfig(message_bytes=2**32)},
            "limits.message_bytes: must be at most 4294967295, is 4294967296",
        ),
        ({"engine": CannedConfig(gen_ms=-1)}, "engine.gen_ms: must be at least 0, is -1"),
        (
            {"engine": CannedConfig(token_ms=float("nan"))},
            "engine.token_ms: must be a finite number, is nan",
        ),
        (
            {"engine": CannedConfig(output_tokens=-1)},
            "engine.output_tokens: must be at least 0, is -1",
        ),
        (
            {"engine": CannedConfig(seed=2**64)},
            "engine.seed: must be at most 18446744073709551615, is 18446744073709551616",
        ),
        ({"processes": 0}, "processes: must be at least 1, is 0"),
        (
            {"processes": 3, "grpc_count": 2},
            "processes: must not be above grpc_count, 2: a process needs a worker",
        ),
        (
            {"overrides": {50052: CannedConfig()}},
            "overrides[50052]: no worker has this port; the ports are 50051 to 50051",
        ),
        (
            {"overrides": {50051: CannedConfig(seed=-1)}},
            "overrides[50051].engine.seed: must be at least 0, is -1",
        ),
        (
            {"overrides": {50051: CannedConfig()}, "grpc_base_port": 0},
            "overrides: needs workers on fixed ports: set grpc_base_port",
        ),
        (
            {"default_sampling_params": {"top_p": 0}},
            "default_sampling_params.top_p: must be a number above 0 and at most 1",
        ),
    ],
)
def test_each_rule_of_the_worker_names_its_key(fields: dict[str, object], line: str) -> None:
    assert broken_worker(**fields) == [f"$.worker.{line}"]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"kv_tokens": 8}, "kv_tokens: must hold a block of 16 tokens, is 8"),
        ({"kv_tokens": 0}, "kv_tokens: must be at least 1, is 0"),
        (
            {"kv_tokens": 64, "kv_blocks": 4},
            "kv_blocks: the pool's size is given twice: leave out kv_tokens",
        ),
        ({"timing": "fit:"}, 'timing: must be polynomial, linear or fit:PATH, is "fit:"'),
        ({"speedup": 0.0}, "speedup: must be above 0, is 0"),
        ({"speedup": float("inf")}, "speedup: must be a finite number, is inf"),
        ({"spec_acceptance": 1.5}, "spec_acceptance: must be from 0 to 1, is 1.5"),
        (
            {"kv_events_zmq_base_port": 65535},
            "kv_events_zmq_base_port: the last worker would replay on port 65536, past 65535",
        ),
        ({"max_running": 0}, "max_running: must be at least 1, is 0"),
        ({"kv_events_buffer_steps": 0}, "kv_events_buffer_steps: must be at least 1, is 0"),
    ],
)
def test_each_rule_of_the_realistic_engine_names_its_key(
    fields: dict[str, object], line: str
) -> None:
    engine = RealisticConfig(**fields)  # type: ignore[arg-type]
    assert broken_worker(engine=engine) == [f"$.worker.engine.{line}"]


@pytest.mark.parametrize(
    "upstream",
    [
        "localhost:50051",
        "http://a:1",
        "grpc://a",
        "grpc://a:0",
        "grpc://a:70000",
        "grpc://a:1/x",
        "grpc://user:secret@a:1",
    ],
)
def test_an_upstream_is_a_grpc_address_and_a_wrong_one_is_not_repeated(
    problems: Problems, upstream: str
) -> None:
    file = "schema_version: 1\ntaps: []\nworker: {{engine: {{kind: upstream, upstream: '{}'}}}}\n"
    assert problems(file.format(upstream)) == [
        "taps.yaml:3: $.worker.engine.upstream: must look like grpc://HOST:PORT"
    ]


def test_names_of_metadata_are_compared_in_lower_case(load: Load) -> None:
    config = load("schema_version: 1\ntaps: []\nworker: {metadata_allow: [X-Claude-Code-*]}\n")
    assert config.worker.metadata_allow == ("x-claude-code-*",)


@pytest.mark.parametrize(
    ("http", "lines"),
    [
        (HttpConfig(port=0), []),
        (HttpConfig(port=9090, admin=True), []),
        (HttpConfig(port=9090, admin=True, host="::1"), []),
        (HttpConfig(port=9090, admin=True, host="::ffff:127.0.0.1"), []),
        (HttpConfig(port=9090, admin=True, host="localhost"), []),
        (HttpConfig(port=9090, host="0.0.0.0"), []),
        (HttpConfig(port=9090, admin=True, host="0.0.0.0", token_file="t"), []),
        (
            HttpConfig(port=9090, admin=True, host="0.0.0.0"),
            ["$.http.admin: needs http.token_file, because http.host is not loopback"],
        ),
        (
            HttpConfig(port=9090, admin=True, host="example.org"),
            ["$.http.admin: needs http.token_file, because http.host is not loopback"],
        ),
        (HttpConfig(admin=True), ["$.http.admin: needs http.port"]),
        (HttpConfig(port=65536), ["$.http.port: must be at most 65535, is 65536"]),
        (HttpConfig(host=""), ['$.http.host: must be a host: an address or a name, is ""']),
    ],
)
def test_admin_needs_loopback_or_a_token(http: HttpConfig, lines: list[str]) -> None:
    assert broken(Config(http=http)) == lines


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("key", ["grace_seconds", "drain_seconds"])
def test_a_stop_takes_a_finite_time(key: str, seconds: float) -> None:
    (line,) = broken(Config(shutdown=ShutdownConfig(**{key: seconds})))
    assert line.startswith(f"$.shutdown.{key}: must be ")


@pytest.mark.parametrize(
    "bind",
    ["tcp://127.0.0.1:*", "tcp://[::1]:5600", "tcp://eth0:*", "tcp://10.0.0.1:1"],
)
def test_pub_sockets_bind_addresses_and_interfaces(bind: str) -> None:
    assert broken(Config(event_plane=EventPlaneConfig(bind=bind), taps=(TAP,))) == []


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        ("127.0.0.1:*", "must look like tcp://127.0.0.1:* or tcp://[::1]:5600"),
        ("ipc:///x", "must look like"),
        ("tcp://::1:5600", "must look like"),
        ("tcp://[127.0.0.1]:*", "must have an IPv6 address in its brackets"),
        ("tcp://localhost:*", "must name an address: write 127.0.0.1 or [::1] for localhost"),
        ("tcp://127.0.0.1:0", "must have a port from 1 to 65535, or * for any free one"),
        ("tcp://127.0.0.1:65536", "must have a port from 1 to 65535, or * for any free one"),
        ("tcp://127.0.0:*", "must be a host: an IPv4 address has four numbers"),
        ("tcp://a!b:*", "must have an IP address, an interface or * as its host"),
    ],
)
def test_a_bind_that_zmq_cannot_use_is_refused(bind: str, words: str) -> None:
    (line,) = broken(Config(event_plane=EventPlaneConfig(bind=bind)))
    assert line.startswith(f"$.event_plane.bind: {words}")


def test_a_fixed_port_is_the_first_of_as_many_as_there_are_taps() -> None:
    other = TapConfig(name="b", capture=TapCapture.REQUEST)
    plane = EventPlaneConfig(bind="tcp://127.0.0.1:65535")
    assert broken(Config(event_plane=plane, taps=(TAP,))) == []
    assert broken(Config(event_plane=plane, taps=(TAP, other))) == [
        "$.event_plane.bind: the last tap would bind port 65536, past 65535"
    ]


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:*", "tcp://[::]:*", "tcp://*:*"])
def test_who_binds_every_address_says_which_one_consumers_use(bind: str) -> None:
    assert broken(Config(event_plane=EventPlaneConfig(bind=bind), taps=(TAP,))) == [
        "$.event_plane.bind: binds every address, so event_plane.advertise must say which one "
        "consumers use"
    ]
    plane = EventPlaneConfig(bind=bind, advertise="10.0.0.1")
    assert broken(Config(event_plane=plane, taps=(TAP,))) == []


@pytest.mark.parametrize("advertise", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_nobody_can_reach_a_wildcard(advertise: str) -> None:
    assert broken(Config(event_plane=EventPlaneConfig(advertise=advertise))) == [
        f'$.event_plane.advertise: must be an address that consumers can reach, is "{advertise}"'
    ]


def test_a_root_without_file_discovery_is_refused(problems: Problems) -> None:
    file = "schema_version: 1\ntaps: []\nevent_plane: {discovery: {kind: none, root: /x}}\n"
    assert problems(file) == [
        "taps.yaml:3: $.event_plane.discovery.root: has no use with discovery.kind none"
    ]


@pytest.mark.parametrize("value", ["-0.1", ".inf"])
def test_a_heartbeat_comes_after_a_finite_time_or_never(problems: Problems, value: str) -> None:
    (line,) = problems(
        f"schema_version: 1\ntaps: []\nevent_plane: {{heartbeat_seconds: {value}}}\n"
    )
    assert line.startswith("taps.yaml:3: $.event_plane.heartbeat_seconds: must be ")


def test_what_processes_cannot_share_is_refused(problems: Problems) -> None:
    file = (
        "schema_version: 1\n"
        "worker: {processes: 2, grpc_count: 2}\n"
        "http: {port: 9090}\n"
        "event_plane: {bind: 'tcp://127.0.0.1:5600'}\n"
        "taps:\n"
        "  - {name: a, capture: request, record_file: {path: x}}\n"
    )
    assert problems(file) == [
        "taps.yaml:3: $.http.port: 2 processes cannot share one port: use 0 for any free ones",
        "taps.yaml:4: $.event_plane.bind: 2 processes cannot share one port: "
        "use * for any free ones",
        'taps.yaml:6: $.taps[0].record_file: 2 processes cannot write one record file (tap "a")',
    ]


def test_files_and_folders_that_are_read_must_be_there(load: Load, problems: Problems) -> None:
    file = (
        "schema_version: 1\ntaps: []\nworker:\n  tokenizer: t\n  script: s\n"
        "  tls: {certificate: c, key: k}\nhttp: {token_file: f}\n"
        "event_plane: {curve: {secret_key_file: a, allowed_keys_dir: b}}\n"
    )
    assert problems(file) == [
        'taps.yaml:4: $.worker.tokenizer: there is no folder "t"',
        'taps.yaml:5: $.worker.script: there is no file "s"',
        'taps.yaml:6: $.worker.tls.certificate: there is no file "c"',
        'taps.yaml:6: $.worker.tls.key: there is no file "k"',
        'taps.yaml:7: $.http.token_file: there is no file "f"',
        'taps.yaml:8: $.event_plane.curve.secret_key_file: there is no file "a"',
        'taps.yaml:8: $.event_plane.curve.allowed_keys_dir: there is no folder "b"',
    ]
    for name in ("s", "c", "k", "f", "a"):
        Path(name).touch()
    for name in ("t", "b"):
        Path(name).mkdir()
    assert load(file).worker.tokenizer == "t"


def test_a_folder_is_no_file_and_a_file_no_folder(problems: Problems) -> None:
    file = "schema_version: 1\ntaps: []\nworker: {tokenizer: taps.yaml, script: .}\n"
    assert problems(file) == [
        'taps.yaml:3: $.worker.tokenizer: must be a folder, is a file: "taps.yaml"',
        'taps.yaml:3: $.worker.script: must be a file, is a folder: "."',
    ]


def test_a_capture_without_a_worker_is_a_warning() -> None:
    config = Config(worker=WorkerConfig(capture="x", grpc_count=0))
    assert broken(config) == []
    assert find_warnings(config) == [
        "worker.capture: nothing will be captured, because grpc_count is 0"
    ]
    extended = Config(worker=WorkerConfig(capture_extended=True))
    assert find_warnings(extended) == [
        "worker.capture_extended: there is no worker.capture to extend"
    ]
    assert find_warnings(Config(worker=WorkerConfig(capture="x", capture_extended=True))) == []


def test_what_the_upstream_has_of_its_own_is_warned_of() -> None:
    engine = UpstreamConfig(upstream="grpc://10.0.0.1:1")
    assert find_warnings(Config(worker=WorkerConfig(engine=engine, model="m"))) == []
    worker = WorkerConfig(engine=engine, vocab_size=9, default_sampling_params={"top_k": 1})
    assert find_warnings(Config(worker=worker)) == [
        "worker.vocab_size: has no effect, the upstream has its own",
        "worker.default_sampling_params: has no effect, the upstream has its own",
    ]
