"""What the program uses: the whole configuration as values, each with its default.

PURE.  An embedding program builds these in Python and a file is read into them; both go through
`replay.config.rules`.  Field names are the keys of the file.  `None` means what the field says.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import attrs

from replay.config.engines import CannedConfig, EngineConfig
from replay.taps.filter_names import FilterName, parse_filter

#: The only version of the file that there is.
SCHEMA_VERSION = 1

#: Capacities and counts end here: ZeroMQ keeps its high-water mark in a C int.
INT_MAX = 2**31 - 1

#: A shadow that has stopped reading may cost this many records, not more.
DEFAULT_CAPACITY = 1024


class TapCapture(StrEnum):
    """What a tap records of each request."""

    REQUEST = "request"
    """The request alone, as soon as it passes the tap."""
    REQUEST_RESPONSE = "request_response"
    """The request together with the whole response, when the response has ended."""


class Transport(StrEnum):
    """How records leave the process."""

    ZMQ = "zmq"
    NONE = "none"
    """They do not: only the taps' record files are written."""


class DiscoveryKind(StrEnum):
    """How consumers find the publishers."""

    FILE = "file"
    NONE = "none"


@attrs.frozen(kw_only=True)
class TlsConfig:
    """The files of a server that speaks TLS.  All are PEM."""

    certificate: str
    """The server's certificate with the chain behind it."""
    key: str
    """The certificate's private key."""
    client_ca: str | None = None
    """Who signs the certificates that clients must show; None: clients need none."""


@attrs.frozen(kw_only=True)
class LimitsConfig:
    """What a peer may ask of a worker's connections before it is refused."""

    connections: int = 1024
    """Open connections of a listener."""
    streams: int = 1024
    """Calls in flight on a connection."""
    header_bytes: int = 65536
    """Decoded headers of a call."""
    message_bytes: int | None = None
    """The longest message; None: any."""
    resets_per_second: int = 500
    """Resets that a connection may send for good."""
    reset_burst: int = 2000
    """Resets that a connection may send at once."""
    idle_pings: int = 20
    """PINGs since our last DATA or HEADERS on the connection."""


@attrs.frozen(kw_only=True)
class WorkerConfig:
    """The gRPC workers and the engine behind them."""

    host: str = "127.0.0.1"
    """Where they listen: an address without brackets, a name, or `unix:/path`."""
    grpc_base_port: int = 50051
    """Port of the first worker, the others follow; 0: any free ones."""
    grpc_count: int = 1
    """Number of workers, each with an engine of its own; 0: none."""
    model: str = "mock-model"
    """Name of the served model."""
    tokenizer: str | None = None
    """Folder that `GetTokenizer` serves; None: no tokenizer."""
    capture: str | None = None
    """File to which each Generate request is appended; None: no capture."""
    capture_extended: bool = False
    """Whether a captured line has rank, arrival and metadata after the 32 keys."""
    script: str | None = None
    """File of scripted answers that lie over the engine; None: no script."""
    script_strict: bool = False
    """Whether a request without a scripted answer gets NOT_FOUND."""
    processes: int = 1
    """Processes over which the workers are spread."""
    overrides: Mapping[int, EngineConfig] = attrs.field(factory=dict)
    """The engines of single workers, by port."""
    engine: EngineConfig = attrs.field(factory=CannedConfig)
    """The engine of every worker without an override."""
    metadata_allow: tuple[str, ...] = ()
    """Globs over names of gRPC metadata, in lower case, whose values may be recorded."""
    tls: TlsConfig | None = None
    """None: connections are in the clear."""
    limits: LimitsConfig = attrs.field(factory=LimitsConfig)
    #: A million prompt ids must pass without any flag, and no prompt may be longer than this.
    context_length: int = 1048576
    """Tokens of a prompt and its answer together, as advertised."""
    vocab_size: int = 32768
    """Ids that the engine makes up are below this."""
    weight_version: str = ""
    """Version of the weights, as advertised."""
    default_sampling_params: Mapping[str, Any] | None = None
    """Sampling values for what a request leaves unset; None: none."""


@attrs.frozen(kw_only=True)
class DiscoveryConfig:
    """Where consumers look for the publishers."""

    kind: DiscoveryKind = DiscoveryKind.FILE
    root: str | None = None
    """Folder of the file discovery; None: `dynamo_store_kv` in the folder for temporary files."""


@attrs.frozen(kw_only=True)
class CurveConfig:
    """The keys of an event plane that is encrypted with CURVE."""

    secret_key_file: str
    """The publishers' own certificate, with the secret key."""
    allowed_keys_dir: str
    """Folder with the public certificates of those who may read."""


@attrs.frozen(kw_only=True)
class EventPlaneConfig:
    """How records travel from the taps to their consumers."""

    transport: Transport = Transport.ZMQ
    bind: str = "tcp://127.0.0.1:*"
    """Where the taps' PUB sockets bind.  With several taps a fixed port is that of the first tap,
    and the others follow."""
    advertise: str | None = None
    """Host that discovery tells; None: the host of `bind`."""
    discovery: DiscoveryConfig = attrs.field(factory=DiscoveryConfig)
    heartbeat_seconds: float = 1.0
    """Pause between two status records; 0: none are sent."""
    curve: CurveConfig | None = None
    """None: records travel in the clear."""


@attrs.frozen(kw_only=True)
class HttpConfig:
    """The one HTTP port: metrics, health, status page and admin."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None: no HTTP; 0: any free port."""
    admin: bool = False
    """Whether faults, truth and reset are served."""
    token_file: str | None = None
    """File with the bearer token that admin asks for; None: it asks for none."""


@attrs.frozen(kw_only=True)
class ShutdownConfig:
    """How long a stop may take."""

    grace_seconds: float = 5.0
    """For the streams in flight."""
    drain_seconds: float = 2.0
    """For the records that are queued."""


@attrs.frozen(kw_only=True)
class ResponseConfig:
    """What a joined record holds of the response."""

    tokens: bool = True
    """Whether it holds the token ids."""
    max_tokens: int | None = None
    """Token ids held of each choice; None: all, so an open stream costs 4 bytes a token."""
    chunk_timing: bool = False
    """Whether it holds the offset of every chunk with tokens, 8 bytes each."""
    max_bytes_in_flight: int | None = None
    """Bytes that the open streams of the tap may hold together; None: no bound."""


@attrs.frozen(kw_only=True)
class RecordFileConfig:
    """A file to which a tap's messages are written as well."""

    path: str
    """The files are `PATH.000000`, `PATH.000001`, …"""
    rotate_bytes: int | None = None
    """Size at which a new file begins; None: at no size."""
    rotate_seconds: float | None = None
    """Age at which a new file begins; None: at no age."""


def _parse_filters(filters: Iterable[str | FilterName]) -> tuple[FilterName, ...]:
    return tuple(parse_filter(each) if isinstance(each, str) else each for each in filters)


@attrs.frozen(kw_only=True)
class TapConfig:
    """One tap: which requests it mirrors, what of them, and how much may wait."""

    name: str
    capture: TapCapture
    topic: str = attrs.field()
    filters: tuple[FilterName, ...] = attrs.field(default=(), converter=_parse_filters)
    """Parsed names in the order of the file.  Texts are parsed; an unknown one is a ValueError."""
    models: tuple[str, ...] = ()
    """The models whose requests are mirrored; empty: all."""
    response: ResponseConfig | None = attrs.field()
    """None exactly when `capture` is `request`."""
    capacity: int = DEFAULT_CAPACITY
    """Records that may wait for the publisher, and again for a consumer."""
    capacity_bytes: int | None = None
    """Bytes that may wait for the publisher; None: only records are counted."""
    replay_buffer: int = 0
    """Published messages that are kept to fill gaps."""
    record_file: RecordFileConfig | None = None
    """None: nothing is written to disk."""

    @topic.default
    def _default_topic(self) -> str:
        return f"shadow-requests-{self.name}"

    @response.default
    def _default_response(self) -> ResponseConfig | None:
        return ResponseConfig() if self.capture is TapCapture.REQUEST_RESPONSE else None


def _worker_or_default(worker: WorkerConfig | None) -> WorkerConfig:
    return WorkerConfig() if worker is None else worker


@attrs.frozen(kw_only=True)
class Config:
    """The whole configuration of a runtime."""

    schema_version: int = SCHEMA_VERSION
    namespace: str = "dynamo"
    """Scope in which consumers look for the taps."""
    #: A file written for Dynamo has no worker section, and the default worker serves.
    worker: WorkerConfig = attrs.field(default=None, converter=_worker_or_default)
    """None reads as the default worker."""
    event_plane: EventPlaneConfig = attrs.field(factory=EventPlaneConfig)
    http: HttpConfig = attrs.field(factory=HttpConfig)
    shutdown: ShutdownConfig = attrs.field(factory=ShutdownConfig)
    taps: tuple[TapConfig, ...] = ()
