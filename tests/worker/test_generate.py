"""Generate as a gateway sees it: a real worker, a real connection."""

import math
from contextlib import nullcontext

import pytest
from purerpc.grpclib.exceptions import InvalidArgumentError, ResourceExhaustedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig, RealisticConfig
from replay.engines.methods import GENERATE
from replay.worker.default_params import apply_default_sampling_params
from tests.engines.requests import generate_request
from tests.worker.running import config_of, running


def completes(messages: list[pb.GenerateResponse]) -> list[pb.GenerateComplete]:
    return [each.complete for each in messages if each.WhichOneof("response") == "complete"]


def chunks(messages: list[pb.GenerateResponse]) -> list[pb.GenerateStreamChunk]:
    return [each.chunk for each in messages if each.WhichOneof("response") == "chunk"]


@pytest.mark.parametrize("token_ms", [0.0, 1.0])
async def test_a_stream_is_a_chunk_a_token_and_one_complete_with_all_of_them(token_ms):
    async with running(config_of(engine=CannedConfig(token_ms=token_ms))) as worker:
        messages = await worker.generate(generate_request([7] * 9, max_new_tokens=3))

    assert {each.request_id for each in messages} == {"r"}
    streamed = [list(each.token_ids) for each in chunks(messages)]
    assert [token for ids in streamed for token in ids] == [100, 101, 102]
    sent = 0
    for chunk in chunks(messages):
        sent += len(chunk.token_ids)
        assert chunk.completion_tokens == sent
    if not token_ms:  # an engine that woke up late puts what is due into one chunk
        assert len(streamed) == 3
    (complete,) = completes(messages)
    assert messages[-1].complete == complete
    assert list(complete.output_ids) == [100, 101, 102]
    assert (complete.finish_reason, complete.completion_tokens) == ("length", 3)
    assert {each.prompt_tokens for each in [*chunks(messages), complete]} == {9}


async def test_without_stream_there_is_the_complete_only():
    async with running() as worker:
        messages = await worker.generate(generate_request(stream=False, max_new_tokens=5))

    assert [list(each.output_ids) for each in completes(messages)] == [[*range(100, 105)]]
    assert len(messages) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("token_ms", [0.0, 1.0])
async def test_each_of_n_choices_has_its_tokens_and_its_end(stream, token_ms):
    engine = CannedConfig(token_ms=token_ms)
    request = generate_request(stream=stream, n=3, max_new_tokens=4, sampling_seed=9)
    async with running(config_of(engine=engine)) as worker:
        messages = await worker.generate(request)

    ends = completes(messages)
    assert sorted(each.index for each in ends) == [0, 1, 2]
    assert len({tuple(each.output_ids) for each in ends}) == 3
    for end in ends:
        streamed = [t for c in chunks(messages) if c.index == end.index for t in c.token_ids]
        assert streamed == (list(end.output_ids) if stream else [])


@pytest.mark.parametrize(
    ("sampling", "tokens", "reason"),
    [
        ({}, 8, "stop"),
        ({"max_new_tokens": 0}, 0, "length"),
        ({"max_new_tokens": 1}, 1, "length"),
        ({"n": 0, "max_new_tokens": 2}, 2, "length"),
    ],
)
async def test_unset_and_zero_are_two_things(sampling, tokens, reason):
    async with running() as worker:
        messages = await worker.generate(generate_request(**sampling))

    (complete,) = completes(messages)
    assert (len(complete.output_ids), complete.finish_reason) == (tokens, reason)
    assert len(chunks(messages)) == tokens


async def test_absent_submessages_read_as_their_defaults():
    async with running() as worker:
        messages = await worker.generate(pb.GenerateRequest(request_id="bare", stream=True))

    (complete,) = completes(messages)
    assert (complete.prompt_tokens, len(complete.output_ids)) == (0, 8)


async def test_a_seed_repeats_and_another_one_differs():
    async with running() as worker:

        async def ids(**sampling):
            (complete,) = completes(await worker.generate(generate_request(**sampling)))
            return list(complete.output_ids)

        first = await ids(sampling_seed=1, temperature=0.7)
        assert first == await ids(sampling_seed=1, temperature=0.7)
        assert first != await ids(sampling_seed=2, temperature=0.7)
        assert first != await ids()


async def test_a_stop_id_ends_a_choice_and_is_named():
    async with running() as worker:
        messages = await worker.generate(
            generate_request(stop_token_ids=[103], max_new_tokens=20, min_new_tokens=2)
        )

    (complete,) = completes(messages)
    assert complete.finish_reason == "stop"
    assert complete.matched_token_id == 103
    assert list(complete.output_ids) == [100, 101, 102]


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_have_the_shapes_that_were_asked_for(stream):
    request = generate_request(
        stream=stream,
        max_new_tokens=3,
        logprobs={"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [5]},
    )
    async with running() as worker:
        messages = await worker.generate(request)

    (complete,) = completes(messages)
    logprobs = complete.output_logprobs
    assert list(logprobs.token_ids) == list(complete.output_ids)
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 3
    assert {len(each.values) for each in logprobs.top_logprobs} == {3}
    assert all(math.isfinite(value) and value <= 0 for value in logprobs.token_logprobs)
    for position, chunk in enumerate(chunks(messages)):
        assert list(chunk.output_logprobs.token_logprobs) == [logprobs.token_logprobs[position]]


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": -0.5}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens"),
        ({"regex": "("}, "regex"),
        ({"json_schema": "{"}, "json_schema"),
    ],
)
async def test_bad_input_is_refused_with_the_field_named(sampling, field):
    async with running() as worker:
        with pytest.raises(InvalidArgumentError, match=field):
            await worker.generate(generate_request(**sampling))
        assert await worker.generate(generate_request())


async def test_a_prompt_beyond_the_advertised_context_is_refused():
    async with running(config_of(context_length=100)) as worker:
        with pytest.raises(InvalidArgumentError, match="100"):
            await worker.generate(generate_request([1] * 101))


async def test_a_message_limit_refuses_what_is_larger():
    async with running() as worker:
        assert await worker.generate(generate_request([1] * 200_000, max_new_tokens=1))
    limits = config_of().worker.limits.__class__(message_bytes=1000)
    async with running(config_of(limits=limits)) as worker:
        with pytest.raises(ResourceExhaustedError, match="1000"):
            await worker.generate(generate_request([1] * 2000))
        assert await worker.generate(generate_request([1] * 200))


async def test_ids_stay_within_the_vocabulary():
    async with running(config_of(vocab_size=150)) as worker:
        info = await worker.call("GetModelInfo", pb.GetModelInfoRequest())
        for sampling in ({}, {"sampling_seed": 3}):
            request = generate_request(max_new_tokens=300, **sampling)
            (complete,) = completes(await worker.generate(request))
            assert len(complete.output_ids) == 300
            assert 0 <= min(complete.output_ids) <= max(complete.output_ids) < info.vocab_size


async def test_defaults_apply_to_what_a_request_leaves_unset_and_are_advertised():
    defaults = {"max_new_tokens": 2, "sampling_seed": 5}
    async with running(config_of(default_sampling_params=defaults)) as worker:
        info = await worker.call("GetModelInfo", pb.GetModelInfoRequest())
        unset = completes(await worker.generate(generate_request()))
        own = completes(await worker.generate(generate_request(max_new_tokens=4)))
        plain = generate_request()
        same = completes(await worker.generate(apply_default_sampling_params(plain, defaults)))

    assert info.default_sampling_params_json == '{"max_new_tokens": 2, "sampling_seed": 5}'
    assert [len(each.output_ids) for each in (*unset, *own)] == [2, 4]
    assert unset == same
    assert not plain.sampling_params.HasField("max_new_tokens")


async def test_the_weight_version_is_in_every_message():
    async with running(config_of(weight_version="v7")) as worker:
        messages = await worker.generate(generate_request())

    assert {each.weight_version for each in chunks(messages)} == {"v7"}
    assert {each.weight_version for each in completes(messages)} == {"v7"}


async def test_what_a_simulated_engine_never_holds_is_refused_before_there_are_headers() -> None:
    """A gateway may send it elsewhere, as long as nobody was told that there is an answer."""
    engine = RealisticConfig(kv_blocks=4, block_size=4)
    async with running(config_of(engine=engine)) as worker:
        for prompt, refusal in ((range(17), pytest.raises(ResourceExhaustedError)), ([1], None)):
            request = generate_request(prompt, max_new_tokens=1)
            async with worker.channel.stream(GENERATE, request) as answers:
                with refusal or nullcontext():
                    await answers.wait_head()
