"""How requests end early: each way cancels the request's scope and says what the spec wants."""

import pytest
import trio
from purerpc.grpclib.exceptions import DeadlineExceededError, UnavailableError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import CannedConfig
from replay.engines.base import Answer, Generation, Model
from replay.engines.canned import CannedEngine
from replay.engines.methods import GENERATE
from replay.rpc.client import open_channel
from replay.runtime import Runtime, open_runtime, serve
from tests.engines.requests import generate_request
from tests.worker.running import Running, config_of, running, until

SLOW = CannedConfig(token_ms=5)
LONG = 100_000


class WatchedEngine(CannedEngine):
    """A canned engine that tells how its requests ended."""

    def __init__(self, **config: float) -> None:
        super().__init__(Model(context_length=10**6), CannedConfig(**config))
        self.cancelled: list[str] = []
        self.ended = trio.Event()

    async def generate(self, generation: Generation, answer: Answer) -> None:
        try:
            await super().generate(generation, answer)
        except trio.Cancelled:
            self.cancelled.append(generation.request_id)
            self.ended.set()
            raise


async def test_leaving_a_stream_cancels_its_scope_at_once():
    engine = WatchedEngine(token_ms=5)
    async with running(engine=engine) as worker:
        async with worker.channel.stream(GENERATE, generate_request(max_new_tokens=LONG)) as it:
            await it.receive()
        with trio.fail_after(1):
            await engine.ended.wait()
        assert engine.cancelled == ["r"]
        await until(lambda: worker.in_flight == 0)
        assert engine.loads().running == 0


async def test_a_connection_that_closes_ends_its_requests():
    engine = WatchedEngine(token_ms=5)
    async with running(engine=engine) as worker, trio.open_nursery() as clients:

        async def leave_with_the_connection() -> None:
            async with (
                open_channel(worker.runtime.addresses[0]) as channel,
                channel.stream(GENERATE, generate_request(max_new_tokens=LONG)) as answers,
            ):
                await answers.receive()
                clients.cancel_scope.cancel()
                await trio.sleep_forever()

        clients.start_soon(leave_with_the_connection)
    assert engine.cancelled == ["r"]


async def test_a_deadline_is_enforced_and_the_scope_has_ended():
    engine = WatchedEngine(token_ms=5)
    async with running(engine=engine) as worker:
        with pytest.raises(DeadlineExceededError):
            await worker.generate(generate_request(max_new_tokens=LONG), timeout=0.2)
        with trio.fail_after(1):
            await engine.ended.wait()


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_gives_each_open_choice_its_end_and_then_ok(stream):
    request = generate_request(stream=stream, max_new_tokens=LONG, n=2)
    async with running(config_of(engine=SLOW)) as worker:
        async with worker.channel.stream(GENERATE, request) as answers:
            await answers.wait_head()
            if stream:
                await answers.receive()
            reply = await worker.call("Abort", pb.AbortRequest(request_id="r"))
            messages = [each async for each in answers]
        again = await worker.call("Abort", pb.AbortRequest(request_id="r"))

    assert reply.success
    ends = [each.complete for each in messages if each.WhichOneof("response") == "complete"]
    assert sorted((each.index, each.finish_reason) for each in ends) == [
        (0, "abort"),
        (1, "abort"),
    ]
    assert messages[-1].WhichOneof("response") == "complete"
    assert not again.success
    assert again.message


async def test_an_abort_sweeps_the_children_of_an_id_and_nobody_else():
    async with running(config_of(engine=SLOW)) as worker, trio.open_nursery() as clients:
        ended: list[str] = []

        async def generate(request_id: str) -> None:
            messages = await worker.generate(
                generate_request(request_id=request_id, max_new_tokens=LONG)
            )
            ended.append(f"{request_id} {messages[-1].complete.finish_reason}")

        for request_id in ("r", "r", "r-n0", "r-p1", "r2"):
            clients.start_soon(generate, request_id)
        await until(lambda: worker.in_flight == 5)

        assert (await worker.call("Abort", pb.AbortRequest(request_id="r"))).success
        await until(lambda: len(ended) == 4)

        assert sorted(ended) == ["r abort", "r abort", "r-n0 abort", "r-p1 abort"]
        assert worker.in_flight == 1
        clients.cancel_scope.cancel()


async def test_an_unknown_or_finished_id_is_not_aborted():
    async with running() as worker:
        await worker.generate(generate_request())
        for request_id in ("r", "never"):
            reply = await worker.call("Abort", pb.AbortRequest(request_id=request_id))
            assert (reply.success, bool(reply.message)) == (False, True)


async def test_at_a_stop_short_streams_finish_and_long_ones_end_at_the_grace():
    config = config_of(engine=SLOW, grace_seconds=1.0)
    shutdown = trio.Event()
    seen: dict[str, object] = {}
    async with trio.open_nursery() as nursery:
        runtime = await nursery.start(
            lambda task_status: serve(config, shutdown=shutdown, task_status=task_status)
        )
        async with open_channel(runtime.addresses[0]) as channel, trio.open_nursery() as clients:
            worker = Running(runtime, channel)

            async def generate(name: str, tokens: int) -> None:
                try:
                    messages = await worker.generate(
                        generate_request(request_id=name, max_new_tokens=tokens)
                    )
                except UnavailableError as error:
                    seen[name] = error.status.status_message
                else:
                    seen[name] = messages[-1].complete.finish_reason

            clients.start_soon(generate, "short", 60)
            clients.start_soon(generate, "long", LONG)
            await until(lambda: worker.in_flight == 2)
            before = trio.current_time()
            shutdown.set()
            await until(lambda: runtime.workers[0].server.is_draining)
            with pytest.raises(UnavailableError):
                await worker.generate(generate_request(request_id="late"))
        after = trio.current_time()

    assert seen == {"short": "length", "long": "the server shuts down"}
    assert 0.9 <= after - before < 3


async def test_cancelling_the_scope_around_a_runtime_says_unavailable_to_its_clients():
    config = config_of(engine=SLOW, grace_seconds=60.0)
    said: list[str] = []
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        ready = trio.Event()
        runtimes: list[Runtime] = []

        async def embed() -> None:
            with scope:
                async with open_runtime(config) as runtime:
                    runtimes.append(runtime)
                    ready.set()
                    await trio.sleep_forever()

        nursery.start_soon(embed)
        await ready.wait()
        async with (
            open_channel(runtimes[0].addresses[0]) as channel,
            channel.stream(GENERATE, generate_request(max_new_tokens=LONG)) as answers,
        ):
            await answers.receive()
            before = trio.current_time()
            scope.cancel()
            with pytest.raises(UnavailableError) as caught:
                async for _ in answers:
                    pass
            said.append(caught.value.status.status_message)
        assert trio.current_time() - before < 2

    assert said == ["the server shuts down"]


async def test_two_runtimes_live_in_one_process():
    async with running() as one, running(config_of(engine=CannedConfig(output_tokens=3))) as two:
        first = await one.generate(generate_request())
        second = await two.generate(generate_request())

    assert (len(first), len(second)) == (9, 4)


async def test_an_engine_of_the_embedding_program_answers():
    class Echo(CannedEngine):
        async def generate(self, generation: Generation, answer: Answer) -> None:
            answer.tokens(list(generation.message.tokenized.input_ids))
            answer.finish("stop")

    async with running(engine=Echo(Model(name="echo"))) as worker:
        info = await worker.call("GetModelInfo", pb.GetModelInfoRequest())
        messages = await worker.generate(generate_request([9, 8, 7]))

    assert info.served_model_name == "echo"
    assert list(messages[-1].complete.output_ids) == [9, 8, 7]


async def test_an_engine_that_fails_fails_its_request_only_and_hides_its_text():
    class Broken(CannedEngine):
        async def generate(self, generation: Generation, answer: Answer) -> None:
            if generation.request_id == "bad":
                raise ValueError("the secret prompt")
            await super().generate(generation, answer)

    async with running(engine=Broken(Model())) as worker:
        with pytest.raises(Exception, match=r"INTERNAL: internal error \(ValueError\)$"):
            await worker.generate(generate_request(request_id="bad"))
        assert await worker.generate(generate_request())


async def test_one_of_two_choices_can_fail():
    class HalfBroken(CannedEngine):
        async def generate(self, generation: Generation, answer: Answer) -> None:
            answer.tokens([5], 0)
            answer.fail("out of memory", 1)
            answer.finish("stop", 0)

    async with running(engine=HalfBroken(Model())) as worker:
        messages = await worker.generate(generate_request(n=2))

    ends = {each.complete.index: each.complete for each in messages[1:]}
    assert {index: end.finish_reason for index, end in ends.items()} == {0: "stop", 1: "error"}
