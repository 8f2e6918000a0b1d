"""The configuration: its values, how a file and flags become them, and what they must keep."""

from replay.config.describe import as_plain, describe
from replay.config.engines import (
    CannedConfig,
    EngineConfig,
    KvEventsWire,
    RealisticConfig,
    UpstreamConfig,
)
from replay.config.model import (
    Config,
    CurveConfig,
    DiscoveryConfig,
    DiscoveryKind,
    EventPlaneConfig,
    HttpConfig,
    LimitsConfig,
    RecordFileConfig,
    ResponseConfig,
    ShutdownConfig,
    TapCapture,
    TapConfig,
    TlsConfig,
    Transport,
    WorkerConfig,
)
from replay.config.resolve import load_config
from replay.config.rules import check_config, find_warnings

__all__ = [
    # what the program uses
    "Config",
    "WorkerConfig",
    "LimitsConfig",
    "TlsConfig",
    "EngineConfig",
    "CannedConfig",
    "RealisticConfig",
    "UpstreamConfig",
    "KvEventsWire",
    "EventPlaneConfig",
    "Transport",
    "DiscoveryConfig",
    "DiscoveryKind",
    "CurveConfig",
    "HttpConfig",
    "ShutdownConfig",
    "TapConfig",
    "TapCapture",
    "ResponseConfig",
    "RecordFileConfig",
    # how it comes about, and what it must keep
    "load_config",
    "check_config",
    "find_warnings",
    "as_plain",
    "describe",
]
