"""A request on its way past the taps: rules 25 to 36 and 44 to 51, end to end without a socket."""

import gc
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.model import ResponseConfig, TapCapture, TapConfig
from replay.engines.base import Generation, Model
from replay.packed import IDS_AT_ONCE, Packed, TokenIds
from replay.request import Request, SamplingOptions
from replay.taps.envelope import ShadowEnvelope
from replay.taps.publisher import run_publishers
from replay.taps.recording import NOT_RECORDED, Recording
from replay.taps.response import Outcome
from replay.taps.tap import Tap
from replay.taps.taps import Taps
from tests.fakes import CollectingSink

MODEL = Model(name="m", eos_token_ids=(2,))


def joined(name: str = "joined", **options: Any) -> TapConfig:
    return TapConfig(name=name, capture=TapCapture.REQUEST_RESPONSE, **options)


def plain(name: str = "plain", **options: Any) -> TapConfig:
    return TapConfig(name=name, capture=TapCapture.REQUEST, **options)


class Clock:
    """Nanoseconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


def a_request(**changes: Any) -> Request:
    return Request(model="m", token_ids=TokenIds([1, 2, 3]), **changes)


def records(tap: Tap) -> list[ShadowEnvelope]:
    """Take what is queued, as a consumer would read it."""
    found = []
    while (record := tap.take()) is not None:
        mirrored = record.mirrored
        payload = tap.packer.pack(
            seq=record.seq,
            request_id=mirrored.request_id,
            origin=mirrored.origin,
            arrival_unix_ns=mirrored.arrival_unix_ns,
            packed_request=mirrored.packed,
            response=record.response,
        )
        tap.put_down()
        found.append(ShadowEnvelope.unpacked(payload))
    return found


def only_record(tap: Tap) -> ShadowEnvelope:
    (record,) = records(tap)
    return record


def by_name(taps: Taps, name: str) -> Tap:
    return next(tap for tap in taps if tap.name == name)


def test_rule_33_a_plain_record_is_queued_before_the_request_goes_on() -> None:
    taps = Taps([plain(), joined()])
    with taps.record(a_request(), request_id="r-1"):
        record = only_record(by_name(taps, "plain"))
        assert by_name(taps, "joined").still_queued == 0
    assert record.request_id == "r-1"
    assert record.response is None
    assert by_name(taps, "plain").still_queued == 0


def test_rule_34_a_joined_record_is_queued_once_at_the_end_and_nothing_before() -> None:
    taps = Taps([joined()])
    (tap,) = taps
    with taps.record(a_request()) as recording:
        recording.observe([7])
        recording.observe([], 0, "stop")
        recording.end()
        recording.end()
        assert tap.next_seq == 0
    assert tap.next_seq == tap.queued == 1
    response = only_record(tap).response
    assert response is not None
    assert response.outcome is Outcome.COMPLETE
    assert response.choices[0].finish_reason == "stop"


def test_rule_36_the_arrival_and_the_offsets_are_the_same_for_all_taps() -> None:
    clock = Clock()
    taps = Taps(
        [
            plain("a"),
            joined("b"),
            joined("c", filters=("tokens-only",), response=ResponseConfig(chunk_timing=True)),
        ],
        clock_ns=clock,
    )
    clock.now = 5_000
    with taps.record(a_request(), arrival_unix_ns=77, arrival_monotonic_ns=4_000) as recording:
        clock.now = 6_000
        recording.observe([1])
        clock.now = 7_000
        recording.observe([2])
        clock.now = 9_000
    found = {tap.name: only_record(tap) for tap in taps}
    assert {record.arrival_unix_ns for record in found.values()} == {77}
    for name in ("b", "c"):
        response = found[name].response
        assert response is not None
        offsets = (
            response.first_token_offset_ns,
            response.last_token_offset_ns,
            response.end_offset_ns,
        )
        assert offsets == (2_000, 3_000, 5_000)
        assert list(response.chunk_offsets_ns) == ([2_000, 3_000] if name == "c" else [])


def test_an_arrival_from_a_clock_that_is_ahead_makes_no_negative_offset() -> None:
    clock = Clock()
    taps = Taps([joined(response=ResponseConfig(chunk_timing=True))], clock_ns=clock)
    with taps.record(a_request(), arrival_monotonic_ns=2_000) as recording:
        recording.observe([1])
    (tap,) = taps
    response = only_record(tap).response
    assert response is not None
    assert (response.first_token_offset_ns, response.end_offset_ns) == (0, 0)


def test_rule_27_a_skipped_request_uses_no_seq_and_no_counter_of_the_tap() -> None:
    taps = Taps(
        [joined("short", filters=("max-tokens=2",)), joined("other", models=("n",)), joined("all")]
    )
    with taps.record(a_request()) as recording:
        recording.end()
    for name in ("short", "other"):
        tap = by_name(taps, name)
        assert (tap.next_seq, tap.queued, tap.in_flight) == (0, 0, 0)
        assert (tap.dropped_full, tap.dropped_closed, tap.dropped_bytes) == (0, 0, 0)
        assert tap.skipped == 1
    assert by_name(taps, "all").next_seq == 1
    assert by_name(taps, "all").skipped == 0


def test_what_no_tap_wants_is_not_touched() -> None:
    def explode() -> bytes:
        raise AssertionError("something was packed")

    taps = Taps([joined(models=("n",)), plain(filters=("skip-multimodal",))])
    recording = taps.record(a_request(multi_modal_data=Packed.when_needed(explode)))
    assert recording is NOT_RECORDED
    assert not recording.is_recording
    with recording:
        recording.observe([1])
        recording.observe_whole([1], "stop")
        recording.fail()
        recording.end()
    assert [tap.next_seq for tap in taps] == [0, 0]


async def test_rule_26_a_probe_is_never_mirrored_and_not_counted() -> None:
    """Nor as skipped, where a filter would not have let it through."""
    taps = Taps([joined(), plain(filters=("max-tokens=0",), models=("another",))])
    assert taps.record(a_request(health_check=True)) is NOT_RECORDED
    message = pb.GenerateRequest(request_id="HEALTH_CHECK_1")
    message.tokenized.input_ids.append(5)
    assert await taps.record_generate(generation(message), MODEL) is NOT_RECORDED
    header = [(b"x-health-check", b"1")]
    probe = generation(pb.GenerateRequest(request_id="r"), metadata=header)
    assert await taps.record_generate(probe, MODEL) is NOT_RECORDED
    assert [tap.skipped for tap in taps] == [0, 0]


def generation(message: pb.GenerateRequest, **changes: Any) -> Generation:
    values: dict[str, Any] = {
        "message": message,
        "request_id": message.request_id,
        "prompt_tokens": len(message.tokenized.input_ids),
        "choices": message.sampling_params.n or 1,
        "max_new_tokens": None,
        "arrival": 0.0,
        **changes,
    }
    return Generation(**values)


async def test_a_workers_request_has_media_when_there_is_an_item() -> None:
    taps = Taps([plain(filters=("skip-multimodal",))])
    message = pb.GenerateRequest(request_id="r", mm_inputs=pb.MultimodalInputs())
    with await taps.record_generate(generation(message), MODEL):
        pass
    message.mm_inputs.items.add()
    assert await taps.record_generate(generation(message), MODEL) is NOT_RECORDED
    (tap,) = taps
    assert (tap.queued, tap.skipped) == (1, 1)


async def test_a_workers_request_is_mirrored_with_what_the_configuration_allows() -> None:
    taps = Taps([joined()], metadata_allow=("X-Claude-Code-*",))
    message = pb.GenerateRequest(request_id="r-9", stream=True)
    message.tokenized.input_ids.extend([5, 6])
    message.sampling_params.n = 2
    metadata = [(b"authorization", b"secret"), (b"x-claude-code-session-id", b"s-1")]
    with await taps.record_generate(generation(message, metadata=metadata), MODEL) as recording:
        recording.observe([9], 0, "length")
        recording.observe([8], 1, "eos")
        recording.end()
    (tap,) = taps
    record = only_record(tap)
    assert (record.request_id, record.origin) == ("r-9", "preprocessed")
    assert list(record.request.token_ids) == [5, 6]
    assert record.request.agent_context is not None
    assert record.request.agent_context.session_id == "s-1"
    assert b"secret" not in record.packed_request
    assert record.response is not None
    assert record.response.outcome is Outcome.COMPLETE


async def test_others_get_their_turns_while_a_long_prompt_is_packed() -> None:
    taps = Taps([joined()])
    message = pb.GenerateRequest(request_id="r")
    message.tokenized.input_ids.extend(range(10 * IDS_AT_ONCE))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as others:
        others.start_soon(count_turns)
        with await taps.record_generate(generation(message), MODEL):
            seen = turns
        others.cancel_scope.cancel()
    assert seen >= 5
    (tap,) = taps
    assert only_record(tap).request.token_ids == list(range(10 * IDS_AT_ONCE))


async def test_a_request_that_is_cancelled_while_it_is_packed_has_its_record() -> None:
    taps = Taps([joined()])
    message = pb.GenerateRequest(request_id="r")
    message.tokenized.input_ids.extend(range(3 * IDS_AT_ONCE))
    with trio.CancelScope() as scope:
        scope.cancel()
        recording = await taps.record_generate(
            generation(message), MODEL, is_cancelled=lambda: scope.cancel_called
        )
        with recording:
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    (tap,) = taps
    record = only_record(tap)
    assert record.response is not None
    assert record.response.outcome is Outcome.CANCELLED
    assert len(record.request.token_ids) == 3 * IDS_AT_ONCE


async def test_without_allowed_metadata_a_workers_request_shows_none() -> None:
    taps = Taps([joined()])
    metadata = [(b"x-claude-code-session-id", b"s-1")]
    made = generation(pb.GenerateRequest(request_id="r"), metadata=metadata)
    with await taps.record_generate(made, MODEL):
        pass
    (tap,) = taps
    assert b"s-1" not in only_record(tap).packed_request


async def test_selection_sees_a_workers_request_as_it_is() -> None:
    taps = Taps(
        [
            joined("media", filters=("skip-multimodal",)),
            joined("long", filters=("max-tokens=1",)),
            joined("model", models=("other",)),
        ]
    )
    message = pb.GenerateRequest(request_id="r")
    message.tokenized.input_ids.extend([5, 6])
    message.mm_inputs.items.add()
    assert await taps.record_generate(generation(message), MODEL) is NOT_RECORDED
    assert [tap.skipped for tap in taps] == [1, 1, 1]


def test_a_request_without_an_id_gets_one() -> None:
    taps = Taps([plain()])
    for _ in range(2):
        with taps.record(a_request()):
            pass
    (tap,) = taps
    ids = {record.request_id for record in records(tap)}
    assert len(ids) == 2
    assert all(ids)


@pytest.mark.parametrize("origin", ["chat", "completions", "preprocessed", "other"])
def test_rule_32_the_origin_is_the_callers_to_say(origin: str) -> None:
    taps = Taps([plain()])
    with taps.record(a_request(), origin=origin):
        pass
    (tap,) = taps
    assert only_record(tap).origin == origin


def test_rule_28_one_copy_of_a_request_for_each_distinct_projection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taps = Taps(
        [
            joined("a"),
            plain("b"),
            joined("c", filters=("max-tokens=100",)),
            joined("d", filters=("tokens-only",)),
            joined("e", filters=("tokens-only",), models=("other",)),
        ]
    )
    with taps.record(a_request()):
        pass
    taken = {tap.name: tap.take() for tap in taps}
    copies = {name: record.mirrored.packed for name, record in taken.items() if record is not None}
    assert copies["a"] is copies["b"] is copies["c"]
    assert copies["d"] is not copies["a"]
    assert len({id(copy) for copy in copies.values()}) == 2


def test_the_ids_of_a_request_are_packed_once_for_all_projections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packs = []
    packb = msgpack.packb

    def counting(value: Any, **options: Any) -> bytes:
        if isinstance(value, list) and len(value) == 3:
            packs.append(value)
        packed: bytes = packb(value, **options)
        return packed

    monkeypatch.setattr("replay.packed.msgpack.packb", counting)
    taps = Taps([joined("a"), joined("b", filters=("tokens-only",)), plain("c")])
    with taps.record(a_request()):
        pass
    assert packs == [[1, 2, 3]]


def test_taps_that_remember_the_same_share_one_response() -> None:
    taps = Taps(
        [
            joined("a"),
            joined("b", filters=("tokens-only",)),
            joined("c", response=ResponseConfig(tokens=False)),
            joined("d", response=ResponseConfig(max_bytes_in_flight=1000)),
        ]
    )
    with taps.record(a_request()) as recording:
        recording.observe([1, 2])
        assert [tap.in_flight_bytes for tap in taps] == [8, 8, 0, 8]
        assert [tap.in_flight for tap in taps] == [1, 1, 1, 1]
    taken = {tap.name: tap.take() for tap in taps}
    responses = {name: record.response for name, record in taken.items() if record is not None}
    assert responses["a"] is responses["b"]
    assert len({id(response) for response in responses.values()}) == 3
    assert [tap.in_flight for tap in taps] == [0, 0, 0, 0]


def outcome_of(use: Callable[[Recording], None], n: int = 1, is_cancelled: bool = False) -> Outcome:
    """Return the outcome of a request during which *use* happens."""
    taps = Taps([joined()])
    (tap,) = taps
    request = a_request(sampling_options=SamplingOptions(n=n))
    try:
        with taps.record(request, is_cancelled=lambda: is_cancelled) as recording:
            use(recording)
    except (Exception, trio.Cancelled, GeneratorExit, KeyboardInterrupt):
        pass
    response = only_record(tap).response
    assert response is not None
    assert sum(tap.outcomes.values()) == tap.outcomes[response.outcome] == 1
    return response.outcome


def raising(error: BaseException, *, finish: bool = False) -> Callable[[Recording], None]:
    def use(recording: Recording) -> None:
        if finish:
            recording.observe([1], 0, "stop")
        raise error

    return use


def finishing(*reasons: str, ended: bool = True) -> Callable[[Recording], None]:
    def use(recording: Recording) -> None:
        for index, reason in enumerate(reasons):
            recording.observe([1], index, reason)
        if ended:
            recording.end()

    return use


@pytest.mark.parametrize(
    ("use", "n", "is_cancelled", "outcome"),
    [
        (finishing("stop"), 1, False, Outcome.COMPLETE),
        (finishing("stop"), 1, True, Outcome.COMPLETE),
        (finishing("stop", ended=False), 1, False, Outcome.COMPLETE),
        (finishing("stop"), 3, False, Outcome.INCOMPLETE),
        (finishing(), 1, False, Outcome.INCOMPLETE),
        (finishing(ended=False), 1, False, Outcome.CANCELLED),
        (finishing("cancelled"), 1, False, Outcome.CANCELLED),
        (finishing("stop", "error: x"), 3, False, Outcome.ERROR),
        (finishing("error: x"), 1, True, Outcome.CANCELLED),
        (lambda recording: recording.fail(), 1, False, Outcome.ERROR),
        (lambda recording: recording.fail(), 1, True, Outcome.CANCELLED),
        (raising(ValueError()), 1, False, Outcome.ERROR),
        (raising(ValueError()), 1, True, Outcome.CANCELLED),
        (raising(ExceptionGroup("", [ValueError()])), 1, False, Outcome.ERROR),
        (raising(GeneratorExit()), 1, False, Outcome.CANCELLED),
        (raising(GeneratorExit(), finish=True), 1, False, Outcome.COMPLETE),
        (raising(KeyboardInterrupt()), 1, False, Outcome.CANCELLED),
        (raising(ValueError(), finish=True), 1, False, Outcome.ERROR),
    ],
)
def test_rules_44_to_49_how_a_recording_is_left_decides(
    use: Callable[[Recording], None], n: int, is_cancelled: bool, outcome: Outcome
) -> None:
    assert outcome_of(use, n, is_cancelled) is outcome


def test_an_error_after_the_normal_end_changes_nothing() -> None:
    def use(recording: Recording) -> None:
        finishing("stop")(recording)
        raise ValueError

    assert outcome_of(use) is Outcome.COMPLETE


def test_a_recording_does_not_swallow_what_passes_through_it() -> None:
    taps = Taps([joined()])
    with pytest.raises(KeyError), taps.record(a_request()):
        raise KeyError("x")


async def test_rule_45_a_cancelled_scope_is_asked_and_not_the_exception(
    autojump_clock: trio.testing.MockClock,
) -> None:
    taps = Taps([joined()])
    (tap,) = taps

    async def engine(recording: Recording, scope: trio.CancelScope) -> None:
        recording.observe([1])
        scope.cancel()
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("an engine that answers a cancel with an error")

    with (
        trio.CancelScope() as scope,
        pytest.raises(ValueError, match="an engine"),
        taps.record(a_request(), is_cancelled=lambda: scope.cancel_called) as recording,
    ):
        await engine(recording, scope)
    response = only_record(tap).response
    assert response is not None
    assert response.outcome is Outcome.CANCELLED
    assert response.output_tokens == 1


async def test_rule_34_streams_cancelled_at_random_moments_leave_one_record_each(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chance = random.Random(4)
    taps = Taps([plain(), joined(), joined("capped", response=ResponseConfig(max_tokens=3))])
    sinks = {tap: CollectingSink() for tap in taps}

    async def request(number: int, seconds: float) -> None:
        with trio.move_on_after(seconds) as scope:
            await trio.sleep(chance.random())
            with taps.record(
                a_request(),
                request_id=f"r-{number}",
                is_cancelled=lambda: scope.cancel_called,
            ) as recording:
                for token in range(20):
                    await trio.sleep(chance.random() / 10)
                    recording.observe([token])
                recording.observe([], 0, "stop")
                recording.end()

    async with run_publishers(sinks, drain_seconds=2):
        async with trio.open_nursery() as requests:
            for number in range(500):
                requests.start_soon(request, number, chance.random() * 3)
        assert [tap.in_flight for tap in taps] == [0, 0, 0]
    by_tap = {
        tap.name: [ShadowEnvelope.unpacked(payload) for payload in sink.payloads]
        for tap, sink in sinks.items()
    }
    started = [record.request_id for record in by_tap["plain"]]
    assert len(set(started)) == len(started) > 300
    for name in ("joined", "capped"):
        assert sorted(record.request_id for record in by_tap[name]) == sorted(started)
        assert [record.seq for record in by_tap[name]] == list(range(len(started)))
    outcomes = by_name(taps, "joined").outcomes
    assert outcomes[Outcome.COMPLETE] + outcomes[Outcome.CANCELLED] == len(started)
    assert min(outcomes[Outcome.COMPLETE], outcomes[Outcome.CANCELLED]) > 20


def test_a_whole_answer_is_a_chunk_for_each_token() -> None:
    taps = Taps([joined(response=ResponseConfig(chunk_timing=True))])
    (tap,) = taps
    with taps.record(a_request()) as recording:
        recording.observe_whole([5, 6, 7], "length")
        recording.end()
    response = only_record(tap).response
    assert response is not None
    assert list(response.choices[0].token_ids) == [5, 6, 7]
    assert response.choices[0].finish_reason == "length"
    assert len(response.chunk_offsets_ns) == 3


TOKENS = 20_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "n", "response", "chunk"),
    [
        (200, 1, ResponseConfig(), 100),
        (200, 1, ResponseConfig(max_tokens=500), 100),
        (200, 2, ResponseConfig(), 100),
        (20, 1, ResponseConfig(chunk_timing=True), 1),
    ],
    ids=["plain", "max_tokens", "n2", "chunk_timing"],
)
def test_rule_42_open_streams_take_what_the_rule_says(
    streams: int, n: int, response: ResponseConfig, chunk: int
) -> None:
    """Within 5 %, beside the fixed cost of the objects of a stream."""
    taps = Taps([joined(response=response)])
    (tap,) = taps
    request = a_request(sampling_options=SamplingOptions(n=n))
    chunks = [list(range(start, start + chunk)) for start in range(0, TOKENS, chunk)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        recordings = [taps.record(request).__enter__() for _ in range(streams)]
        for recording in recordings:
            for index in range(n):
                recording.observe((), index)
        fixed = tracemalloc.get_traced_memory()[0]
        for recording in recordings:
            for index in range(n):
                for ids in chunks:
                    recording.observe(ids, index)
        taken = tracemalloc.get_traced_memory()[0] - fixed
    finally:
        tracemalloc.stop()
    assert fixed - before < streams * 4096
    rule = streams * n * 4 * min(TOKENS, response.max_tokens or TOKENS)
    if response.chunk_timing:
        rule += streams * n * 8 * len(chunks)
    assert tap.in_flight_bytes == rule
    assert taken == pytest.approx(rule, rel=0.05)
    for recording in recordings:
        recording.__exit__(None, None, None)
    assert tap.in_flight_bytes == 0


@pytest.mark.parametrize("choices", [1, 4])
def test_capacity_bytes_counts_at_least_what_a_record_takes(choices: int) -> None:
    taps = Taps([joined(capacity=1000)])
    (tap,) = taps

    def record(number: int) -> None:
        request = a_request(sampling_options=SamplingOptions(n=choices))
        with taps.record(request, request_id=f"0c1b2a3d-1111-2222-3333-{number}") as recording:
            for index in range(choices):
                recording.observe([1, 2, 3], index, "stop")
            recording.end()

    record(0)
    counted = tap.queued_bytes
    tracemalloc.start()
    try:
        for number in range(500):
            record(number)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 < taken / (tap.queued_bytes - counted) <= 1.0
