"""What two taps cost at least: the same records from the same bytes, with msgpack and pyzmq alone.

`python -m benchmarks.tap_work FILE` publishes for the request in FILE what a worker with the taps
of `tap_setup` publishes for it: the ids are decoded and packed once, then there are two records,
two event envelopes and two sends of four frames.  It is what anybody writes, and not to be made
faster or slower: the worker is measured against it.

It binds a REP socket for orders, `{"requests": N, "rate": R}`, and a PUB socket for each tap.
"""

import json
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import zmq

from benchmarks.payloads import canned_ids
from replay._proto import tokenspeed_scheduler_pb2 as pb

TOPICS = ("shadow-replay", "shadow-audit")
#: Of each PUB socket, as the taps have it by default.
HIGH_WATER_MARK = 1024
#: Requests that are worked off at a time, as a worker finds several when it wakes up.
BATCH = 16
ENDPOINTS = "endpoints"

_PUBLISHER_ID = 2**52 + 1
_FILTERS = (["strip-multimodal", "strip-embeds", "strip-worker-pins"], ["tokens-only"])


def records(data: bytes, seq: int, *, arrival_unix_ns: int, offset_ns: int) -> Iterator[bytes]:
    """Yield the two records of the request *data*, whose answer took *offset_ns*."""
    message = pb.GenerateRequest.FromString(data)
    ids = msgpack.packb(message.tokenized.input_ids[:])
    count = message.sampling_params.max_new_tokens
    head = {"request_id": message.request_id, "arrival_unix_ns": arrival_unix_ns, "seq": seq}
    answer = {
        "outcome": "complete",
        "choices": [
            {
                "index": 0,
                "finish_reason": "length",
                "output_tokens": count,
                "token_ids": canned_ids(count),
            }
        ],
        "output_tokens": count,
        "first_token_offset_ns": offset_ns,
        "last_token_offset_ns": offset_ns,
        "end_offset_ns": offset_ns,
    }
    extra = {"extra_args": {"tokenspeed": {"stream": message.stream}}}
    yield _record(head, "shadow-replay", _FILTERS[0], _request(message, ids, extra), answer)
    yield _record(
        head, "shadow-audit", [*_FILTERS[1], "strip-worker-pins"], _request(message, ids, {}), None
    )


def _request(message: pb.GenerateRequest, packed_ids: bytes, extra: Mapping[str, Any]) -> bytes:
    params = message.sampling_params
    fields = {
        "stop_conditions": {
            "max_tokens": params.max_new_tokens,
            "stop": None,
            "stop_token_ids": None,
            "stop_token_ids_visible": None,
            "stop_token_ids_hidden": None,
            "min_tokens": None,
            "ignore_eos": params.ignore_eos,
            "max_thinking_tokens": None,
        },
        "sampling_options": {
            "n": params.n,
            "best_of": None,
            "presence_penalty": None,
            "frequency_penalty": None,
            "repetition_penalty": None,
            "temperature": params.temperature,
            "top_p": None,
            "top_k": None,
            "min_p": None,
            "use_beam_search": None,
            "length_penalty": None,
            "seed": None,
            "include_stop_str_in_output": None,
            "guided_decoding": None,
        },
        "output_options": {
            "logprobs": None,
            "prompt_logprobs": None,
            "skip_special_tokens": params.skip_special_tokens,
            "formatted_prompt": None,
            "return_tokens_as_token_ids": None,
        },
        "eos_token_ids": [],
        "mdc_sum": None,
        "annotations": [],
        "router_config_override": None,
        **extra,
    }
    packed: bytes = msgpack.packb(fields, use_single_float=True)
    # The two first keys go in front of the others, so that the ids are not packed twice.
    front = msgpack.packb("model") + msgpack.packb("mock-model") + msgpack.packb("token_ids")
    whole: bytes = bytes((packed[0] + 2,)) + front + packed_ids + packed[1:]
    return whole


def _record(
    head: Mapping[str, Any],
    tap: str,
    filters: Sequence[str],
    request: bytes,
    answer: Mapping[str, Any] | None,
) -> bytes:
    fields = {
        "schema_version": 1,
        "tap": tap,
        "seq": head["seq"],
        "request_id": head["request_id"],
        "origin": "preprocessed",
        "filters": filters,
        "arrival_unix_ns": head["arrival_unix_ns"],
    }
    packed = msgpack.packb(fields)
    keys, end = packed[0] + 1, b""
    if answer is not None:
        keys, end = keys + 1, msgpack.packb("response") + msgpack.packb(answer)
    whole: bytes = bytes((keys,)) + packed[1:] + msgpack.packb("request") + request + end
    return whole


def _publish(socket: zmq.Socket[bytes], topic: str, sequence: int, payload: bytes) -> None:
    envelope = msgpack.packb(
        {
            "publisher_id": _PUBLISHER_ID,
            "sequence": sequence,
            "published_at": time.time_ns() // 1_000_000,
            "topic": topic,
            "payload": payload,
        }
    )
    frame = b"\x01" + struct.pack(">I", len(envelope)) + envelope
    numbers = struct.pack(">Q", _PUBLISHER_ID), struct.pack(">Q", sequence)
    socket.send_multipart([topic.encode(), *numbers, frame], zmq.DONTWAIT)


class _Work:
    def __init__(self, data: bytes, sockets: Sequence[zmq.Socket[bytes]]) -> None:
        self._data, self._sockets, self._sequence = data, sockets, 0

    def play(self, requests: int, rate: float) -> dict[str, float]:
        """Publish for so many requests; return the CPU of it, all threads, and how long it took."""
        cpu, started = time.process_time(), time.monotonic()
        due = started
        for number in range(1, requests + 1):
            arrival = time.time_ns()
            payloads = records(
                self._data, self._sequence, arrival_unix_ns=arrival, offset_ns=1_000_000
            )
            for socket, topic, payload in zip(self._sockets, TOPICS, payloads, strict=True):
                _publish(socket, topic, self._sequence, payload)
            self._sequence += 1
            if number % BATCH == 0:
                due += BATCH / rate
                time.sleep(max(0.0, due - time.monotonic()))
        return {"cpu_s": time.process_time() - cpu, "seconds": time.monotonic() - started}


def main(path: str) -> None:
    """Take orders until killed."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    control = context.socket(zmq.REP)
    port = control.bind_to_random_port("tcp://127.0.0.1")
    sockets, endpoints = [], []
    for _ in TOPICS:
        socket = context.socket(zmq.PUB)
        socket.sndhwm = HIGH_WATER_MARK
        endpoints.append(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
        sockets.append(socket)
    said = {"event": "listening", "addresses": [f"127.0.0.1:{port}"]}
    print(json.dumps(said), file=sys.stderr, flush=True)
    work = _Work(Path(path).read_bytes(), sockets)
    while True:
        order = json.loads(control.recv())
        control.send_json(endpoints if order == ENDPOINTS else work.play(**order))


def read(topic: str, endpoint: str, core: int) -> None:
    """Read *topic* and do nothing with it, until killed."""
    os.sched_setaffinity(0, {core})
    socket = zmq.Context().socket(zmq.SUB)
    socket.subscribe(topic.encode())
    socket.connect(endpoint)
    while True:
        socket.recv_multipart()


if __name__ == "__main__":
    main(sys.argv[1])
