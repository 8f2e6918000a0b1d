"""The engines that can stand behind a worker, as values with their defaults.

PURE.  `kind` is the key that chooses one in the file; the fields are the keys beside it.
"""

from enum import StrEnum
from typing import ClassVar

import attrs


class KvEventsWire(StrEnum):
    """Whose layout the ZMQ publisher of KV events speaks."""

    VLLM = "vllm"
    SGLANG = "sglang"


@attrs.frozen(kw_only=True)
class CannedConfig:
    """The engine that answers with fixed ids at a fixed pace."""

    kind: ClassVar[str] = "canned"

    gen_ms: float = 0.0
    """Milliseconds before the first token."""
    token_ms: float = 0.0
    """Milliseconds between two tokens."""
    output_tokens: int = 8
    """Tokens of a choice whose request sets no `max_new_tokens`."""
    seed: int = 0
    """Mixed into sampled ids; 0 without a seed in the request gives 100, 101, …"""


@attrs.frozen(kw_only=True)
class RealisticConfig:
    """The engine that simulates continuous batching over a pool of KV blocks."""

    kind: ClassVar[str] = "realistic"

    output_tokens: int = 8
    """Tokens of a choice whose request sets no `max_new_tokens`."""
    seed: int = 0
    """Mixed into the ids that are made up."""
    max_batched_tokens: int = 8192
    """Tokens that one pass may compute."""
    max_running: int = 256
    """Sequences in one pass."""
    prefill_first: bool = False
    """Whether a pass with prefill does prefill only."""
    kv_tokens: int = 524288
    """Tokens that the KV pool holds, unless `kv_blocks` is set."""
    kv_blocks: int | None = None
    """Blocks of the KV pool; None: `kv_tokens` divided by `block_size`."""
    block_size: int = 16
    """Tokens of a KV block."""
    prefix_cache: bool = True
    """Whether prompts share cached blocks, and KV events are sent."""
    reserve_full_isl: bool = True
    """Whether a prompt waits until the pool could hold all of it that is not cached."""
    timing: str = "polynomial"
    """`polynomial`, `linear`, or `fit:PATH` with a JSON file of measured points."""
    prefill_poly: tuple[float, float, float] = (16.50142, 1.518344e-2, 4.209989e-7)
    """Milliseconds of prefill: a + b·T + c·T² over the uncached tokens T of a pass."""
    decode_poly: tuple[float, float, float] = (5.74, 54.01, -25.74)
    """Milliseconds of decode, at least 1: a + b·u + c·u² over the use u of the KV pool."""
    prefill_tps: float = 8000.0
    """Prefill tokens a second of the linear timing."""
    decode_base_ms: float = 6.0
    """Milliseconds of a decode pass of the linear timing."""
    decode_per_req_ms: float = 0.35
    """Milliseconds that each running request adds to a decode pass of the linear timing."""
    request_overhead_ms: float = 0.0
    """Milliseconds by which all events of a stream come later."""
    speedup: float = 1.0
    """All durations are divided by this."""
    spec_acceptance: float = 0.0
    """Share of draft tokens that speculative decoding accepts, 0 to 1."""
    spec_draft_tokens: int = 0
    """Draft tokens of a pass and sequence; 0: no speculative decoding."""
    kv_events_zmq_base_port: int | None = None
    """Worker i publishes on this port + 2i and replays on the next one; None: not at all."""
    kv_events_wire: KvEventsWire = KvEventsWire.VLLM
    """Layout of the KV events on ZMQ."""
    kv_events_topic: str = ""
    """First frame of the KV events on ZMQ."""
    kv_events_replay: bool = True
    """Whether old batches can be asked for on the replay port."""
    kv_events_buffer_steps: int = 10000
    """Batches that are kept for those who missed them, on gRPC and on ZMQ; fewer of very large
    ones."""


@attrs.frozen(kw_only=True)
class UpstreamConfig:
    """The engine that passes every call on to a real worker."""

    kind: ClassVar[str] = "upstream"

    upstream: str
    """`grpc://HOST:PORT`."""


EngineConfig = CannedConfig | RealisticConfig | UpstreamConfig
