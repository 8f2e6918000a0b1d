"""The flags of the realistic engine: name, key, how the value is named, help."""

_ENGINE = "worker.engine"

REALISTIC_FLAGS = (
    (
        "--max-batched-tokens",
        f"{_ENGINE}.max_batched_tokens",
        "N",
        "Tokens that one pass may compute.",
    ),
    ("--max-running", f"{_ENGINE}.max_running", "N", "Sequences in one pass."),
    ("--prefill-first", f"{_ENGINE}.prefill_first", "", "Passes with prefill do prefill only."),
    ("--kv-tokens", f"{_ENGINE}.kv_tokens", "N", "Tokens that the KV pool holds."),
    ("--kv-blocks", f"{_ENGINE}.kv_blocks", "N", "Its size in blocks, instead of tokens."),
    ("--block-size", f"{_ENGINE}.block_size", "N", "Tokens of a KV block."),
    ("--prefix-cache", f"{_ENGINE}.prefix_cache", "BOOL", "Share and tell of cached blocks."),
    (
        "--reserve-full-isl",
        f"{_ENGINE}.reserve_full_isl",
        "BOOL",
        "Admit a prompt only when all of it could be held.",
    ),
    ("--timing", f"{_ENGINE}.timing", "NAME", "polynomial, linear, or fit:FILE."),
    ("--prefill-tps", f"{_ENGINE}.prefill_tps", "N", "Linear timing: prefill tokens a second."),
    ("--decode-base-ms", f"{_ENGINE}.decode_base_ms", "MS", "Linear timing: a decode pass."),
    (
        "--decode-per-req-ms",
        f"{_ENGINE}.decode_per_req_ms",
        "MS",
        "Linear timing: more of it for each request.",
    ),
    (
        "--request-overhead-ms",
        f"{_ENGINE}.request_overhead_ms",
        "MS",
        "All events of a stream come later by this.",
    ),
    ("--speedup", f"{_ENGINE}.speedup", "F", "All durations are divided by this."),
    ("--spec-acceptance", f"{_ENGINE}.spec_acceptance", "SHARE", "Draft tokens accepted, 0 to 1."),
    ("--spec-draft-tokens", f"{_ENGINE}.spec_draft_tokens", "N", "Draft tokens of a pass."),
    (
        "--kv-events-zmq-base-port",
        f"{_ENGINE}.kv_events_zmq_base_port",
        "PORT",
        "Publish KV events from here on; a worker has two ports.",
    ),
    ("--kv-events-wire", f"{_ENGINE}.kv_events_wire", "NAME", "Their layout: vllm or sglang."),
    ("--kv-events-topic", f"{_ENGINE}.kv_events_topic", "TEXT", "Their first frame."),
    ("--kv-events-replay", f"{_ENGINE}.kv_events_replay", "BOOL", "Send old ones again."),
    ("--kv-events-buffer-steps", f"{_ENGINE}.kv_events_buffer_steps", "N", "Batches kept."),
)
